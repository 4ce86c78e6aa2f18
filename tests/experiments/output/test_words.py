"""Numbers and names in text: digits by their definition, and texts that read back as numbers."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.output import words
from experiments.output.words import (
    NOTHING,
    better,
    is_plural,
    percent,
    plural,
    say_counts,
    say_devices,
    say_gain,
    say_interval,
    say_number,
    say_part,
    say_rate,
    say_resource,
    say_size,
    say_step,
    say_time,
    shortened,
    unit_of,
)
from helpers.tries import tries

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
times = st.floats(2e-6, 900.0)
gains = st.floats(-300, 100).filter(lambda gain: gain == 0 or abs(gain) > 1e-6)
widths = st.floats(0.001, 500)


def digits(text):
    return len(text.partition(".")[2])


def decimals_of(width):
    """One significant digit of an uncertainty, two where the first is 1; never under 0.01."""
    if width >= 10:
        return 0
    first, power = f"{math.floor(width * 10.0 ** -math.floor(math.log10(width)) + 1e-12)}", 0
    while width * 10.0**power < 1 - 1e-12:
        power += 1
    return min(2, power + (first == "1" and width < 10))


def read(text):
    number, unit = text.split()
    return float(number) * SECONDS[unit]


@tries(60)
@given(gains, widths)
def test_a_gain_has_the_digits_of_its_interval(gain, width):
    text = say_gain(gain, width)
    if abs(gain) + width < 0.1:
        assert text == "< 0.1 %"
        return
    decimals = decimals_of(width)
    if round(width, decimals) == 0:
        assert text == f"{round(gain, decimals) + 0.0:.{decimals}f} %"
        return
    middle, half = re.fullmatch(r"(\S+) ± (\S+) %", text).groups()
    assert digits(middle) == digits(half) == decimals
    assert float(middle) == pytest.approx(gain, abs=0.5001 * 10.0**-decimals)
    assert float(half) == pytest.approx(width, abs=0.5001 * 10.0**-decimals)


@tries(60)
@given(gains, widths, st.floats(0.0, 1.0))
def test_an_interval_that_ends_at_a_bound_shows_both_ends(gain, width, share):
    whole, cut = say_gain(gain, width), say_gain(gain, width, share * width)
    ends = re.fullmatch(r"(\S+) \+(\S+) -(\S+) %", cut)
    if ends is None:
        assert cut == whole
        return
    middle, half = whole.removesuffix(" %").split(" ± ")
    assert (ends[1], ends[3]) == (middle, half)
    assert float(ends[2]) < float(half)
    assert digits(ends[2]) == digits(half)
    assert float(ends[2]) == pytest.approx(share * width, abs=0.5001 * 10.0 ** -digits(half))


@tries(40)
@given(gains)
def test_a_gain_without_an_interval_has_one_decimal(gain):
    text = say_gain(gain)
    if gain == 0:
        assert text == "0 %"
    elif abs(gain) < NOTHING == 0.1:
        assert text == "< 0.1 %"
    else:
        assert text == f"{gain:.1f} %"
    assert say_gain(0.0, 0.05) == "< 0.1 %"
    assert say_gain(0.0, 2.0) == "0 ± 2 %"
    assert say_gain(-0.04, 3.0) == "0 ± 3 %"


@tries(60)
@given(times, st.floats(0.001, 2.0))
def test_a_time_and_its_interval_have_one_unit_and_its_digits(seconds, share):
    half = share * seconds
    text = say_interval(seconds, half)
    factor, unit = unit_of(seconds)
    if round(factor * half, 2) == 0:
        assert text == say_time(seconds)
        return
    middle, width, name = re.fullmatch(r"(\S+) ± (\S+) (\w+)", text).groups()
    decimals = decimals_of(factor * half)
    assert name == unit
    assert digits(middle) == digits(width) == decimals
    assert float(middle) / factor == pytest.approx(seconds, abs=0.5001 * 10.0**-decimals / factor)
    assert float(width) / factor == pytest.approx(half, abs=0.5001 * 10.0**-decimals / factor)


@tries(40)
@given(times)
def test_the_unit_of_times_leaves_one_to_three_digits(seconds):
    factor, unit = unit_of(seconds)
    assert factor == pytest.approx(1 / SECONDS[unit])
    assert seconds < 1 or unit == "s"
    assert seconds * factor >= 1
    assert unit == "s" or seconds * factor < 1000
    assert read(say_time(seconds)) == pytest.approx(seconds, rel=5.1e-4)
    assert read(say_step(seconds)) == pytest.approx(seconds, rel=5.1e-3)
    assert read(say_step(seconds)) == pytest.approx(float(f"{seconds:.3g}"), rel=1e-9)


def test_times_that_were_not_measured_say_so():
    assert say_time(math.nan) == say_step(math.nan) == "not measured"
    assert say_time(None) == ""
    assert say_interval(2.0, 0.0) == say_interval(2.0, None) == "2 s"


@tries(40)
@given(st.integers(1, 2**45))
def test_sizes_have_the_unit_that_leaves_the_shortest_whole_number(size):
    text = say_size(float(size))
    number, unit = text.split()
    scale = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB": 10**9, "MB": 10**6, "B": 1}
    assert float(number.replace(",", "")) * scale[unit] == size
    digits = {name: len(f"{size // s}") for name, s in scale.items() if size % s == 0}
    assert unit == min(digits, key=digits.__getitem__)
    assert (say_size(3.0 * 2**30), say_size(2.0**10)) == ("3 GiB", "1 KiB")
    assert (say_size(256e6), say_size(1e9)) == ("256 MB", "1 GB")


@tries(40)
@given(st.floats(-1e4, 1e4))
def test_percentages_have_two_decimals_and_nothing_has_no_sign(value):
    assert float(percent(value)[:-2]) == pytest.approx(value, abs=0.00501)
    assert percent(value).endswith(" %")
    signed = percent(value, signed=True)
    assert signed[0] == ("-" if round(value, 2) < 0 else "+")
    assert signed.lstrip("+") == percent(value)
    assert percent(-0.001) == "0.00 %"
    assert percent(None) == say_number(None) == ""


@tries(40)
@given(st.floats(0.01, 1e7))
def test_numbers_have_three_significant_digits_and_thousands_all(value):
    expected = f"{round(value):,}" if value >= 1000 else f"{value:.3g}"
    assert say_number(value) == expected


@pytest.mark.parametrize("factor", [2, 3, 4, 10, 0.5, 0.25, 1 / 3, 0.1, 1.5, 0.7])
def test_better_is_a_multiple_or_a_part_of_each_resource(factor):
    multiple = {
        2: "twice", 0.5: "half", 0.25: "a quarter", 1 / 3: "1/3", 0.1: "1/10",
    }.get(factor, f"{factor:.3g} times")  # fmt: skip
    of = " of" if factor in (0.25, 1 / 3, 0.1) else ""
    inverse = {1 / 3: 3.0}.get(factor, 1 / factor)
    for resource, noun in (
        ("scale_out.bandwidth", "scale-out bandwidth"),
        ("scale_up.size", "scale-up domain"),
    ):
        assert better(resource, factor, begins=False) == f"{multiple}{of} the {noun}"
        phrase = better(resource, factor)
        assert phrase == phrase[0].upper() + better(resource, factor, begins=False)[1:]
    assert better("host", factor) == f"Hosts {multiple} as fast"
    assert better("compute", factor, devices="TPUs") == f"TPUs {multiple} as fast"
    latency = better("scale_up.latency", inverse, begins=False)
    assert latency == f"{multiple}{of} the scale-up latency"


def test_names_of_resources_devices_and_parts():
    nouns = {
        "pcie.bandwidth": "PCIe bandwidth",
        "scale_out latency": "scale-out latency",
        "host_copies": "host-copy",
        "scale_out.nics_per_node": "NICs per node",
        "memory.bandwidth": "memory bandwidth",
        "compute": "compute",
    }
    assert {name: say_resource(name) for name in nouns} == nouns
    assert [is_plural(name) for name in ("compute", "host", "scale_out.nics_per_node")] == [
        True
    ] * 3
    assert not is_plural("scale_up.bandwidth")
    assert say_part("communication", "software") == "software"
    assert say_part("compute", "a: scale_up bandwidth") == "a: scale_up bandwidth"
    assert say_devices("MI300X") == "GPUs"
    assert say_devices("no such chip") == "GPUs"


def test_counts_are_the_largest_first_and_one_thing_is_no_plural():
    assert say_counts({"a": 1, "b": 2000, "c": 3}) == "2,000 b, 3 c, 1 a"
    assert [plural(number, "call") for number in (0, 1, 2, 2000)] == [
        "0 calls",
        "1 call",
        "2 calls",
        "2,000 calls",
    ]


@tries(40)
@given(st.text("abcdefgh", min_size=1, max_size=60), st.integers(10, 40))
def test_long_names_are_cut_in_the_middle(name, most):
    short = shortened(name, most)
    if len(name) <= most:
        assert short == name
    else:
        before, after = short.split("...")
        assert (len(before), len(after)) == (most // 2 - 3, most // 2)
        assert name.startswith(before)
        assert name.endswith(after)
    assert shortened(f"void at::native::(anonymous namespace)::{name}", 99) == name
    assert words._COMMON[0] == "void "


def test_a_rate_on_which_seeds_agree_has_no_interval():
    assert say_rate(21.94, 0.52) == "21.9 ± 0.52 requests/s"
    assert say_rate(21.94, 0.0) == say_rate(21.94, None) == "21.9 requests/s"
