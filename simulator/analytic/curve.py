"""Curve of step time over the quality of a resource, to a given gap, by evaluating points.

``x`` is the cost of a resource: 1/bandwidth, latency, or time per unit of work, so a factor ``f``
on the resource is ``x = 1/f``. Without contention the step never falls with ``x``, so between two
points it lies between their steps. If it is convex as well (every call has one schedule for all
numbers), it lies below the chord of two points and above the extended chords of their neighbours,
and far fewer points suffice. The interval with the largest gap is halved until no gap is larger
than asked.

Where links are shared neither property holds: more bandwidth may make a step longer.
:func:`sample_curve` simulates points, and halves intervals whose midpoint is off the line. That is
no bound.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.support.arrays import Floats

Evaluate = Callable[[Floats], Floats]
"""Function that returns the steps (s) at several ``x``."""

_NARROW = 1e-9
"""Relative width below which an interval of ``x`` is not halved: there the step jumps."""
_ROUNDING = 1e-12
_FIRST_POINTS = 5
"""Points to begin with."""
_FIRST_SAMPLES = 9
"""Points to begin with where neither property holds."""
_GRID, _ZOOMS = 1024, 2
"""Points of the grid on which a break-even is searched, and how often the grid is refined."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Points in ascending order of ``x``, and the error of straight lines between them (s).

    ``gap[i]`` bounds the distance of the step from the line between points ``i`` and ``i + 1``, if
    it never falls with ``x`` and, if ``convex``, is convex. ``fell``: it was seen to fall, so the
    bound may not hold. For a sampled curve ``gap`` is no bound; ``cut``: some of its points could
    not be evaluated.
    """

    x: Floats
    step: Floats
    gap: Floats
    convex: bool
    fell: bool
    cut: bool = False

    def at(self, x: Floats) -> Floats:
        """Return the step on the lines between the points (s)."""
        step: Floats = np.interp(x, self.x, self.step)
        return step


def trace_curve(
    evaluate: Evaluate, first: float, last: float, *, gap: float, convex: bool, most: int = 20_000
) -> Curve:
    """Trace the curve until no gap exceeds the given one.

    Half of the gap is for the points, the other half for dropping those near a line between others.
    Intervals too narrow to halve are left, with their gaps.

    Parameters
    ----------
    evaluate
        The step at several ``x``.
    first, last
        Ends of ``x``, greater than 0, in ascending order.
    gap
        Largest error of the lines (s).
    convex
        Whether the step is convex in ``x``, not only monotone.
    most
        Number of points at which it ends early.
    """
    x = np.geomspace(first, last, _FIRST_POINTS)
    step = evaluate(x)
    while True:
        gaps = _convex_gaps(x, step) if convex else np.abs(np.diff(step))
        wide = (gaps > gap / 2) & (np.diff(x) > _NARROW * x[1:])
        room = most - len(x)
        if not wide.any() or room <= 0:
            return _simplify(x, step, gaps, tolerance=gap / 2, convex=convex)
        chosen = np.flatnonzero(wide)[np.argsort(-gaps[wide], kind="stable")[:room]]
        chosen.sort()
        middle = np.sqrt(x[chosen] * x[chosen + 1])
        step = np.insert(step, chosen + 1, evaluate(middle))
        x = np.insert(x, chosen + 1, middle)


def sample_curve(
    evaluate: Evaluate, first: float, last: float, *, gap: float, most: int = 100
) -> Curve:
    """Sample a curve without known properties, from ``first`` to ``last``.

    Each interval is evaluated at its midpoint, on a logarithmic scale; if the step is more than
    ``gap`` (s) off the line there, its halves are evaluated, too. ``gap`` of the curve is the error
    at the midpoint before that became a point of the curve, or, if ``most`` points did not suffice,
    the difference of the ends. Elsewhere in an interval the error may be larger: up to about twice
    for a convex step, anything for one that falls and rises between two points.

    If ``evaluate`` returns fewer steps than asked for, the curve ends with the last of them.
    """
    x = np.geomspace(first, last, _FIRST_SAMPLES)
    step = evaluate(x)
    complete = len(step) == len(x)
    x = x[: len(step)]
    gaps = np.full(len(x) - 1, np.inf)  # inf: interval not evaluated yet
    while complete and (open_ := np.flatnonzero(np.isinf(gaps))).size and len(x) < most:
        open_ = open_[: most - len(x)]
        halfway = evaluate(np.sqrt(x[open_] * x[open_ + 1]))
        complete = len(halfway) == len(open_)
        open_ = open_[: len(halfway)]
        middle = np.sqrt(x[open_] * x[open_ + 1])
        off = np.abs(halfway - np.interp(middle, x, step))
        narrow = x[open_ + 1] - x[open_] <= _NARROW * x[open_ + 1]
        gaps[open_] = np.where((off > gap) & ~narrow, np.inf, off)
        gaps = np.insert(gaps, open_ + 1, gaps[open_])
        x, step = np.insert(x, open_ + 1, middle), np.insert(step, open_ + 1, halfway)
    gaps = np.where(np.isinf(gaps), np.abs(np.diff(step)), gaps)
    fell = (np.diff(step) < -_ROUNDING * step[:-1]).any()
    return Curve(x, step, gaps, convex=False, fell=bool(fell), cut=not complete)


def _simplify(x: Floats, step: Floats, gaps: Floats, *, tolerance: float, convex: bool) -> Curve:
    """Drop points within ``tolerance`` of a line between two points that stay.

    From a point that stays, the lines that pass all later points closely enough have a range of
    slopes; the line ends at the last point whose own slope is within it.
    """
    chosen, lowest, highest = [0], -np.inf, np.inf
    for point in range(1, len(x)):
        run, rise = x[point] - x[chosen[-1]], step[point] - step[chosen[-1]]
        if point > chosen[-1] + 1 and not lowest <= rise / run <= highest:
            chosen.append(point - 1)
            lowest, highest = -np.inf, np.inf
            run, rise = x[point] - x[point - 1], step[point] - step[point - 1]
        lowest = max(lowest, (rise - tolerance) / run)
        highest = min(highest, (rise + tolerance) / run)
    chosen.append(len(x) - 1)
    off = np.abs(step - np.interp(x, x[chosen], step[chosen]))
    inside = np.maximum(off[:-1], off[1:]) + gaps
    fell = (np.diff(step) < -_ROUNDING * step[:-1]).any()
    gap = np.maximum.reduceat(inside, chosen[:-1])
    return Curve(x[chosen], step[chosen], gap, convex, bool(fell))


def _convex_gaps(x: Floats, step: Floats) -> Floats:
    """Return the greatest distance of each chord from the lower bound by convexity.

    The lower bound is the higher of the neighbours' extended chords, and at least the step at the
    left. In the first interval the left chord is level; the last one has no right chord.
    """
    slope = np.diff(step) / np.diff(x)
    before = np.concatenate([[0.0], np.maximum(slope[:-1], 0.0)])
    after = np.concatenate([slope[1:], [np.inf]])
    width, rise = np.diff(x), np.diff(step)
    steep = np.isfinite(after) & (after > before)
    meet = np.where(
        steep,
        (after * width - rise) / np.where(steep, after - before, 1.0),
        np.where(np.isfinite(after), 0.0, width),
    )
    meet = np.clip(meet, 0.0, width)
    gaps: Floats = np.maximum(0.0, (slope - before) * meet)
    return gaps


def break_even(
    evaluate: Evaluate, first: float, last: float, *, factor: float, least: float
) -> float | None:
    """Return the greatest ``x`` below which a resource ``factor`` times as good never gains much.

    Much is ``least``, a fraction of the step, checked where the better ``x`` is on the curve.
    Returns ``last`` if it never gains as much, None if it does so already at the first. A range of
    ``x`` smaller than a step of a grid of a thousand may be missed.
    """
    left, right = first * factor, last
    for _ in range(_ZOOMS):
        x = np.geomspace(left, right, _GRID)
        now, better = np.split(evaluate(np.concatenate([x, x / factor])), 2)
        much = (now - better >= least * now) & (now > 0)
        if not much.any():
            return last
        where = int(np.argmax(much))
        if where == 0:
            return None
        left, right = x[where - 1], x[where]
    return float(left)
