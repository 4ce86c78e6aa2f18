"""A curve is within its gap, says where it fell, and ends where it was told to."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.analytic.curve import _convex_gaps, _simplify, break_even, sample_curve, trace_curve


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
    assert not curve.cut


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


rising = st.lists(
    st.tuples(st.floats(0.01, 2), st.floats(0, 5)), min_size=2, max_size=9
)  # widths, and slopes on them


@given(rising, st.booleans())
@tries(60)
def test_a_chord_is_as_far_from_a_convex_curve_as_its_neighbours_leave_room(intervals, is_convex):
    """Below the chord lie the step at its left and the neighbours' chords, and nothing else."""
    widths, slopes = np.array(intervals).T
    slopes = np.sort(slopes) if is_convex else slopes
    x = 1 + np.concatenate([[0], np.cumsum(widths)])
    step = np.concatenate([[1], 1 + np.cumsum(widths * slopes)])
    gaps = _convex_gaps(x, step)
    for i, slope in enumerate(slopes):
        inside = np.linspace(x[i], x[i + 1], 5001)
        chord = step[i] + slope * (inside - x[i])
        below = [np.full_like(inside, step[i])]
        if i > 0:
            below.append(step[i] + slopes[i - 1] * (inside - x[i]))
        if i + 1 < len(slopes):
            below.append(step[i + 1] - slopes[i + 1] * (x[i + 1] - inside))
        room = (chord - np.max(below, axis=0)).max()
        if is_convex:
            assert gaps[i] == pytest.approx(room, abs=2e-3 * widths[i] * slopes.max() + 1e-12)
        assert gaps[i] >= 0


@given(
    st.lists(st.tuples(st.floats(0.01, 2), st.floats(-1, 1)), min_size=2, max_size=30),
    st.floats(1e-3, 0.5),
)
@tries(60)
def test_lines_go_as_far_as_they_pass_all_points_and_no_further(points, tolerance):
    widths, step = np.array(points).T
    x, gaps = np.cumsum(widths), np.abs(np.diff(step)) / 7
    curve = _simplify(x, step, gaps, tolerance=tolerance, convex=False)
    stays = np.searchsorted(x, curve.x).tolist()
    assert np.array_equal(curve.step, step[stays])
    assert (stays[0], stays[-1]) == (0, len(x) - 1)

    def off(first, last):
        line = np.interp(x[first : last + 1], x[[first, last]], step[[first, last]])
        return np.abs(step[first : last + 1] - line)

    for (first, last), gap in zip(pairwise(stays), curve.gap, strict=True):
        away = off(first, last)
        assert away.max() <= tolerance * (1 + 1e-9)
        # What lies between two points may be as far off as the farther of both, and its own gap.
        inside = np.maximum(away[:-1], away[1:]) + gaps[first:last]
        assert gap == pytest.approx(inside.max())
        if last < len(x) - 1:
            assert off(first, last + 1).max() > tolerance * (1 - 1e-9)
    assert curve.fell == bool((np.diff(step) < -1e-12 * step[:-1]).any())


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(-9, 9)), min_size=1, max_size=4))
def test_a_sampled_curve_is_halved_where_its_middle_is_off_the_line(lines):
    """The same by recursion, each interval for itself."""

    def zigzag(x):
        return np.sum([np.abs(start + slope * x) for start, slope in lines], axis=0)

    def halved(low, high):
        middle = np.sqrt(low * high)
        ends = zigzag(np.array([low, middle, high]))
        off = abs(ends[1] - np.interp(middle, [low, high], ends[[0, 2]]))
        if off <= 0.2:
            return [(low, off), (middle, off)]
        return halved(low, middle) + halved(middle, high)

    curve = sample_curve(zigzag, 0.05, 4.0, gap=0.2, most=10**4)
    expected = [part for ends in pairwise(np.geomspace(0.05, 4, 9)) for part in halved(*ends)]
    x, gaps = zip(*expected, strict=True)
    assert curve.x[:-1] == pytest.approx(x)
    assert curve.gap == pytest.approx(gaps, abs=1e-12)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 9)), min_size=1, max_size=4),
       st.sampled_from([1.5, 2.0, 4.0]), st.sampled_from([0.05, 0.2]))  # fmt: skip
def test_below_a_break_even_nothing_gains_much_and_just_above_it_does(lines, factor, least):
    def highest(x):
        return np.max([start + slope * x for start, slope in lines], axis=0)

    def gain(x):
        return (highest(x) - highest(x / factor)) / highest(x)

    x = break_even(highest, 0.01, 10.0, factor=factor, least=least)
    if x is None:
        assert gain(np.array([0.01 * factor])) >= least
        return
    assert (gain(np.geomspace(0.01 * factor, x, 300)) < least).all()
    assert x == 10.0 or gain(np.array([x * (1 + 1e-4)])) >= least * (1 - 1e-3)
