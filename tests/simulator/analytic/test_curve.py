"""A curve is within its gap, says where it fell, and ends where it was told to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.analytic.curve import break_even, sample_curve, trace_curve


def convex(x):
    """Three lines, one after the other the highest."""
    return np.max([np.full_like(x, 1.0), 0.4 + x, 3 * x - 4], axis=0)


@pytest.mark.parametrize(
    ("is_convex", "gap"), [(True, 0.3), (True, 1e-2), (True, 1e-6), (False, 0.3), (False, 5e-3)]
)
def test_the_curve_is_within_its_gap_of_the_lines(gap, is_convex):
    curve = trace_curve(convex, 0.1, 10.0, gap=gap, convex=is_convex)
    x = np.geomspace(0.1, 10, 5001)
    off = np.abs(curve.at(x) - convex(x))
    of = np.clip(np.searchsorted(curve.x, x, side="right") - 1, 0, len(curve.gap) - 1)
    assert (off <= curve.gap[of] + 1e-12).all()
    assert curve.gap.max() <= gap
    assert not curve.fell


@given(
    lines=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 9)), min_size=1, max_size=5),
    gap=st.floats(1e-3, 1),
)
def test_it_is_so_for_any_rising_convex_curve(lines, gap):
    def highest(x):
        return np.max([start + slope * x for start, slope in lines], axis=0)

    curve = trace_curve(highest, 0.05, 4.0, gap=gap, convex=True)
    x = np.geomspace(0.05, 4, 2001)
    assert np.abs(curve.at(x) - highest(x)).max() <= gap + 1e-9
    assert curve.gap.max() <= gap * (1 + 1e-12)


def test_convexity_saves_points():
    asked = {True: 0, False: 0}
    for is_convex in asked:

        def counted(x, is_convex=is_convex):
            asked[is_convex] += len(x)
            return convex(x)

        trace_curve(counted, 0.1, 10.0, gap=1e-3, convex=is_convex)
    assert asked[True] < asked[False] / 20


def test_a_jump_leaves_a_gap_that_is_told():
    curve = trace_curve(lambda x: np.where(x < 1, 1.0, 2.0), 0.1, 10.0, gap=0.1, convex=False)
    assert curve.gap.max() >= 1
    assert not curve.fell


def test_a_step_that_falls_is_told():
    assert trace_curve(lambda x: 2 - x, 0.1, 1.0, gap=0.1, convex=False).fell


def test_a_curve_ends_at_the_most_points():
    counted = []
    trace_curve(lambda x: counted.extend(x) or x, 0.1, 10.0, gap=1e-9, convex=False, most=100)
    assert len(counted) == 100


def test_break_even_is_where_doubling_stops_to_pay():
    """Of ``1 + x`` doubling saves ``x / 2``: a tenth at x = 0.25."""
    x = break_even(lambda x: 1 + x, 0.01, 10.0, factor=2.0, least=0.1)
    assert x == pytest.approx(0.25, rel=1e-4)


def test_break_even_asks_for_nothing_beyond_the_curve():
    asked = []
    break_even(lambda x: asked.extend(x) or 1 + x, 0.01, 10.0, factor=4.0, least=0.1)
    assert min(asked) >= 0.01 * (1 - 1e-12)
    assert max(asked) <= 10 * (1 + 1e-12)


def test_break_even_is_an_end_if_it_pays_nowhere_or_everywhere():
    assert break_even(lambda x: 0 * x + 1, 0.01, 10.0, factor=2.0, least=0.1) == 10
    assert break_even(lambda x: x, 0.01, 10.0, factor=2.0, least=0.4) is None


@given(
    lines=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 9)), min_size=1, max_size=5),
    gap=st.floats(1e-2, 1),
)
def test_a_sampled_curve_has_its_points_and_was_looked_at_between_them(lines, gap):
    def highest(x):
        return np.max([start + slope * x for start, slope in lines], axis=0)

    asked = []

    def counted(x):
        asked.extend(x.tolist())
        return highest(x)

    curve = sample_curve(counted, 0.05, 4.0, gap=gap)
    assert sorted(asked) == curve.x.tolist()
    assert np.array_equal(curve.step, highest(curve.x))
    assert len(curve.x) < 100
    assert curve.gap.max() <= gap
    x = np.geomspace(0.05, 4, 2001)
    # beside a look a convex one is off by that times 1 + the ratio of an interval's ends at most
    assert np.abs(curve.at(x) - highest(x)).max() <= (1 + (4.0 / 0.05) ** 0.125) * gap + 1e-9


@pytest.mark.parametrize("most", [1, 5, 9, 12, 30])
def test_a_sampled_curve_that_is_cut_off_has_what_was_answered(most):
    answered = []

    def cut_off(x):
        done = x[: most - len(answered)]
        answered.extend(done.tolist())
        return 1 / done

    curve = sample_curve(cut_off, 0.05, 4.0, gap=1e-3)
    assert curve.x.tolist() == sorted(answered)
    assert len(curve.x) == most
    assert np.array_equal(curve.step, 1 / curve.x)
    assert len(curve.gap) == most - 1


def test_a_sampled_curve_ends_at_its_number_of_points_and_says_what_is_left():
    jump = sample_curve(lambda x: np.where(x < 1, 1.0, 2.0), 0.1, 10.0, gap=0.1, most=20)
    assert len(jump.x) == 20
    assert jump.gap.max() == 1.0
    assert not jump.fell
    assert sample_curve(lambda x: -x, 0.1, 10.0, gap=20.0).fell
