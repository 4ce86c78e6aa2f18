"""Constraints: what they mean, and that nothing but their grammar is understood."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.studies.constraints import contradiction, parse_constraint
from simulator.support.errors import StudyError
from simulator.support.quantities import parse_quantity

UNITS = {"gpus": "", "step_s": "s", "power": "W", "cost": "USD", "memory": "B", "room": "B"}
UNITS |= {"plan.tp": "", "scale_up.size": "", "scale_out.bandwidth": "B/s"}
FITS = {"memory": ("memory", "room")}


def unit_of(name):
    if name not in UNITS:
        raise StudyError(f"{name!r} is not a figure")
    return UNITS[name]


def read(text):
    return parse_constraint(text, unit_of, FITS)


def holds(text, **values):
    named = {name.replace("__", "."): value for name, value in values.items()}
    return read(text).holds(named.__getitem__)


def test_a_comparison_of_names_and_numbers_with_units():
    assert holds("gpus == 1,024", gpus=1024)
    assert not holds("gpus == 1024", gpus=1025)
    assert holds("power <= 2 MW", power=2e6)
    assert not holds("power < 2 MW", power=2e6)
    assert holds("cost <= 40 MUSD", cost=39.9e6)
    assert holds("scale_out.bandwidth >= 400 Gbit/s", scale_out__bandwidth=50e9)
    assert holds("30 ms > step_s", step_s=0.02)
    assert holds("memory fits", memory=70e9, room=80e9)
    assert not holds("memory fits", memory=81e9, room=80e9)


def test_arithmetic_binds_as_it_does_everywhere():
    assert holds("gpus + 2 * 3 == 10", gpus=4)
    assert holds("(gpus + 2) * 3 == 18", gpus=4)
    assert holds("gpus - 1 - 1 == 2", gpus=4)
    assert holds("gpus / 2 / 2 == 1", gpus=4)
    assert holds("plan.tp <= scale_up.size", plan__tp=8, scale_up__size=8)
    assert holds("2 * step_s <= 1 s", step_s=0.5)
    assert holds("step_s / 10 ms <= 3", step_s=0.03)


def test_a_division_by_nothing_meets_no_constraint():
    assert not holds("gpus / plan.tp == 1", gpus=4, plan__tp=0)


@given(value=st.floats(0.1, 1e6), most=st.floats(0.1, 1e6))
def test_excess_is_nothing_exactly_where_it_holds_and_grows_with_the_distance(value, most):
    constraint = read(f"gpus <= {most!r}")
    excess = constraint.excess({"gpus": value}.__getitem__)
    assert (excess == 0) == constraint.holds({"gpus": value}.__getitem__)
    assert constraint.excess({"gpus": value * 2}.__getitem__) >= excess


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "invalid syntax"),
        ("gpus", "by one of =="),
        ("gpus ==", "invalid syntax"),
        ("gpus == 8 9", "invalid syntax"),
        ("gpus = 8", "'= 8'"),
        ("gpuz == 8", "'gpuz' is not a figure"),
        ("power <= 2", "W <= a number without a unit: give both the same unit, as in 'step_s"),
        ("power <= 2 s", "W <= s"),
        ("power <= 2 mw", "'mw' is not a unit"),
        ("power <= 2 parsecs", "is not a unit"),
        ("(gpus == 8", "never closed"),
        ("1 == 1", "names no figure"),
        ("power fits", "what fits is one of: memory fits"),
        ("power * power <= 1 W", "W times W is not supported"),
        ("__import__('os').system('true') == 0", "__import__"),
        ("gpus == 8; gpus", "'; gpus'"),
        ("(" * 240 + "gpus" + ")" * 240 + " == 8", "too many nested parentheses"),
        ("gpus < 8 < 9", "compare two things"),
        ("-gpus == 8", "only + - * /"),
        ("gpus ** 2 == 8", "invalid syntax"),
        ("gpus " + "+ 1 " * 400 + "== 2", "characters"),
    ],
)
def test_what_is_no_constraint_is_refused_in_one_line(text, said):
    with pytest.raises(StudyError) as caught:
        read(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "contradicts"),
    [
        (("gpus == 8", "gpus == 16"), True),
        (("gpus < 8", "gpus >= 8"), True),
        (("gpus <= 8", "gpus >= 8"), False),
        (("gpus <= 8", "power > 1 W"), False),
        (("8 < gpus", "gpus <= 8"), True),
        (("gpus != 8", "gpus == 8"), False),  # told apart only at points
    ],
)
def test_a_contradiction_is_found_where_names_are_compared_with_numbers(texts, contradicts):
    assert (contradiction(map(read, texts)) is not None) == contradicts


def test_numbers_are_read_to_the_last_bit():
    assert read("step_s <= 20 us").right.value == parse_quantity("20 us", "s")


@pytest.mark.parametrize(
    ("sign", "below", "rounded_below", "equal", "rounded_above", "above"),
    [
        ("==", 0, 1, 1, 1, 0),
        ("!=", 1, 0, 0, 0, 1),
        ("<=", 1, 1, 1, 1, 0),
        (">=", 0, 1, 1, 1, 1),
        ("<", 1, 1, 0, 0, 0),
        (">", 0, 0, 0, 1, 1),
    ],
)
def test_a_comparison_takes_numbers_that_rounding_sets_apart_for_equal(
    sign, below, rounded_below, equal, rounded_above, above
):
    """An equation must not fail by the last bits; what is strictly less is less by any bit."""
    expected = [below, rounded_below, equal, rounded_above, above]
    values = [8 * (1 + off) for off in (-1e-8, -1e-11, 0.0, 1e-11, 1e-8)]
    assert [holds(f"gpus {sign} 8", gpus=value) for value in values] == [bool(e) for e in expected]


@pytest.mark.parametrize(
    ("text", "value", "excess"),
    [
        ("gpus <= 8", 10.0, 0.2),
        ("gpus >= 8", 6.0, 0.25),
        ("gpus == 8", 4.0, 0.5),
        ("gpus <= 8", 8.0, 0.0),
        ("gpus < 8", 8.0, 1.0),
        ("gpus != 8", 8.0, 1.0),
        ("gpus > 0", 0.0, 1.0),
        ("gpus >= 0", -4.0, 1.0),
        ("gpus / gpus == 1", 0.0, 1.0),
        ("gpus - 8 >= 2", 6.0, 2.0),
    ],
)
def test_excess_is_the_share_of_the_larger_side_or_all_where_there_is_none(text, value, excess):
    assert read(text).excess({"gpus": value}.__getitem__) == pytest.approx(excess)
