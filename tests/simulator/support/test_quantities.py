"""Text becomes a number at one door, and comes back."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from simulator.support.errors import QuantityError, TwofoldError, WorkloadError
from simulator.support.quantities import (
    MOST_BYTES,
    MOST_RANKS,
    PHYSICAL,
    BandwidthText,
    SecondsText,
    bytes_per_element,
    format_quantity,
    parse_quantity,
)

BASES = ["s", "B", "B/s", "FLOP/s"]


@pytest.mark.parametrize(
    ("unit", "base", "share"),
    [
        *(("B", "B", 1.0), ("B/s", "B/s", 1.0), ("bit/s", "B/s", 1 / 8), ("W", "W", 1.0)),
        *(("FLOP/s", "FLOP/s", 1.0), ("J", "J", 1.0), ("USD", "USD", 1.0)),
    ],
)
def test_prefixes_are_those_of_the_si(unit, base, share):
    """BIPM, SI brochure, table 7; those of powers of two: IEC 80000-13."""
    for power, prefix in enumerate(("", "k", "M", "G", "T", "P")):
        value = 8 * share * 1000.0**power
        if PHYSICAL[base][0] <= value <= PHYSICAL[base][1]:
            assert parse_quantity(f"8 {prefix}{unit}", base) == pytest.approx(value)
    if unit.startswith("B"):
        for power, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1):
            if PHYSICAL[base][0] <= 8 * 1024.0**power:
                assert parse_quantity(f"8 {prefix}{unit}", base) == 8 * 1024.0**power


def test_energy_bought_is_in_joules():
    assert parse_quantity("0.36 USD/kWh", "USD/J") == pytest.approx(1e-7)
    assert parse_quantity("360 USD/MWh", "USD/J") == pytest.approx(1e-7)
    assert parse_quantity("0.5 USD/J", "USD/J") == 0.5


def test_the_most_is_what_is_written():
    assert (MOST_BYTES, MOST_RANKS) == (1024.0**6, 16_777_216)


@pytest.mark.parametrize(
    ("base", "least", "most"),
    [
        ("s", 1e-21, 3.2e9),
        ("B", 1e-3, 2.0**60),
        ("B/s", 1e6, 1e18),
        ("FLOP/s", 1e6, 1e19),
        ("W", 1e-6, 1e12),
        ("J", 1e-12, 1e21),
        ("USD", 1e-9, 1e15),
        ("USD/J", 1e-18, 1.0),
    ],
)
def test_what_no_machine_has_is_refused(base, least, most):
    for value in (0.0, least, most):
        assert parse_quantity(f"{value!r} {base}", base) == value
    for value in (0.999 * least, 1.001 * most):
        with pytest.raises(QuantityError, match="outside the accepted range"):
            parse_quantity(f"{value!r} {base}", base)


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [
        ("25 us", "s", 25e-6),
        ("25us", "s", 25e-6),
        (" 3.5 ms ", "s", 3.5e-3),
        ("1e3 ns", "s", 1e-6),
        ("2 µs", "s", 2e-6),
        ("64 MiB", "B", 64 * 2**20),
        ("1 GB", "B", 1e9),
        ("8 B", "B", 8.0),
        ("2 KiB", "B", 2048.0),
        ("400 Gbit/s", "B/s", 50e9),
        ("8 Mbit/s", "B/s", 1e6),
        ("50 GB/s", "B/s", 50e9),
        ("2 GiB/s", "B/s", 2.0**31),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("0 s", "s", 0.0),
    ],
)
def test_a_number_with_its_unit_is_si(text, base, value):
    assert parse_quantity(text, base) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("400", "B/s"),
        ("400 gbps", "B/s"),
        ("400 Gbps", "B/s"),
        ("400 Gb/s", "B/s"),
        ("400 GB", "B/s"),
        ("400 GB/s", "B"),
        ("64 mib", "B"),
        ("64 Gibit/s", "B/s"),
        ("2 sec", "s"),
        ("2 m s", "s"),
        ("2 Ms", "s"),
        ("-2 us", "s"),
        ("+2 us", "s"),
        ("1,5 ms", "s"),
        (".5 ms", "s"),
        ("inf s", "s"),
        ("nan s", "s"),
        ("1e400 s", "s"),
        ("", "s"),
        ("us", "s"),
        ("2 us 3", "s"),
        (400, "B/s"),
        (4.0, "s"),
        (None, "s"),
    ],
)
def test_anything_else_is_refused_and_the_message_shows_what_would_do(text, base):
    with pytest.raises(QuantityError, match="write a number with a unit, such as") as error:
        parse_quantity(text, base)
    assert repr(text) in str(error.value)
    assert isinstance(error.value, TwofoldError)


@given(st.floats(1e-6, 1), st.sampled_from(BASES))
def test_what_is_written_reads_back_to_four_digits(share, base):
    value = share * PHYSICAL[base][1]
    assume(value > PHYSICAL[base][0])
    assert parse_quantity(format_quantity(value, base), base) == pytest.approx(value, rel=5e-4)


@given(st.floats(1e-6, 9.99e2), st.sampled_from(["ns", "us", "ms", "s"]))
def test_numbers_are_read_to_the_last_bit(value, unit):
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert parse_quantity(f"{value!r} {unit}", "s") == value * scale


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [
        (50e9, "B/s", "50 GB/s"),
        (1e3, "B", "1 kB"),
        (999.0, "B", "999 B"),
        (2.5e-9, "s", "2.5 ns"),
        (120.0, "s", "120 s"),
        (0.0, "B/s", "0 B/s"),
        (312e12, "FLOP/s", "312 TFLOP/s"),
    ],
)
def test_a_number_is_written_with_the_unit_that_fits(value, base, text):
    assert format_quantity(value, base) == text


def test_a_files_fields_take_text_with_a_unit_and_nothing_else():
    class Port(BaseModel):
        bandwidth: BandwidthText
        latency: SecondsText

    port = Port.model_validate({"bandwidth": "400 Gbit/s", "latency": "2 us"})
    assert (port.bandwidth, port.latency) == (50e9, 2e-6)
    with pytest.raises(ValidationError, match="bandwidth"):
        Port.model_validate({"bandwidth": 400, "latency": "2 us"})


WIDTHS = {
    1: "Bool bool Byte Char ncclChar ncclInt8 ncclUint8 int8 uint8 s8 u8 pred torch.uint8 "
    "Float8_e4m3fn c10::Float8_e4m3fn Float8_e5m2 torch.float8_e5m2fnuz Float8_e8m0fnu "
    "ncclFloat8e4m3 ncclFloat8e5m2 f8e4m3fn f8e5m2 f8e4m3b11fnuz QInt8 Float4_e2m1fn_x2",
    2: "Half half c10::Half BFloat16 c10::BFloat16 torch.bfloat16 ncclHalf ncclFloat16 "
    "ncclBfloat16 float16 fp16 f16 bf16 __nv_bfloat16 Short int16 s16 u16",
    4: "Float float ncclFloat ncclFloat32 torch.float32 float32 fp32 f32 Int int ncclInt ncclInt32 "
    "ncclUint32 int32 s32 u32 QInt32 ComplexHalf DT_FLOAT",
    8: "Double double ncclDouble ncclFloat64 float64 f64 Long long ncclInt64 ncclUint64 int64 s64 "
    "u64 ComplexFloat c64 complex64 c10::complex<float>",
    16: "ComplexDouble c128 complex128 c10::complex<double>",
}


WITH_SPACES = {"signed char": 1, "unsigned char": 1, "long int": 8, "long long": 8, " Float ": 4}


CASES = [(name, width) for width, names in WIDTHS.items() for name in names.split()]


@pytest.mark.parametrize(("name", "width"), CASES + list(WITH_SPACES.items()))
def test_a_known_spelling_has_its_width_in_any_case(name, width):
    assert bytes_per_element(name) == width
    assert bytes_per_element(name.upper()) == width
    assert bytes_per_element(name.lower()) == width


@pytest.mark.parametrize(
    "name",
    ["", "unknown", "nccl", "Undefined", "s4", "bf64", "float48", "Tensor", "2", "nccl nccl"],
)
def test_an_unknown_spelling_is_refused_by_name(name):
    with pytest.raises(WorkloadError) as error:
        bytes_per_element(name)
    assert repr(name) in str(error.value)
