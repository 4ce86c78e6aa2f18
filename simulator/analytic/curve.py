"""A curve of step time over how good a resource is, to a stated gap, by evaluating it at points.

``x`` is what a resource costs: 1/bandwidth, latency, or time per unit of work, so a factor ``f`` on
the resource is ``x = 1/f``. Without contention the step never falls with ``x``, so between two
points it lies between theirs. Where it is convex as well (every call has one schedule, whatever the
numbers), it lies below the chord of two points and above the chords of their neighbours carried on,
and far fewer points do. The interval with the largest gap is halved until none is larger than
asked.

Where links are shared neither law holds: more bandwidth may make a step longer.
:func:`sample_curve` simulates points and halves intervals where halfway the step is off the line.
That is no bound.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.support.arrays import Floats

Evaluate = Callable[[Floats], Floats]
"""Steps (s) at some ``x``, all at once."""

_NARROW = 1e-9
"""An interval of ``x`` is not halved below this fraction: there the step jumps."""
_ROUNDING = 1e-12
_AT_ONCE = 5
"""Points to begin with."""
_SAMPLED_FIRST = 9
"""Points to begin with where no law is known."""
_FINE, _ZOOMS = 1024, 2
"""Points of a grid on which a break-even is looked for, and how often it is looked at closer."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Points in ascending order of ``x``, and how far off (s) straight lines between them are.

    ``gap[i]`` bounds the distance of the step from the line between points ``i`` and ``i + 1``,
    if it never falls with ``x`` and, where ``convex`` says so, is convex. ``fell`` says that it
    was seen to fall, so that the bound need not hold. Of a sampled curve it is no bound; ``cut``
    says that not all points of one could be evaluated.
    """

    x: Floats
    step: Floats
    gap: Floats
    convex: bool
    fell: bool
    cut: bool = False

    def at(self, x: Floats) -> Floats:
        """Step on the lines between the points (s)."""
        step: Floats = np.interp(x, self.x, self.step)
        return step


def trace_curve(
    evaluate: Evaluate, first: float, last: float, *, gap: float, convex: bool, most: int = 20_000
) -> Curve:
    """Trace the curve until no gap exceeds what was asked.

    Half of the gap is for the points, the other half for leaving out those near a line between
    others. Intervals that are too narrow to halve are left; the gaps that are left say so.

    Parameters
    ----------
    evaluate
        The step at some ``x``.
    first, last
        Ends of ``x``, greater than 0, in ascending order.
    gap
        How far the step may be off the lines (s).
    convex
        Whether the step is convex in ``x``, not only monotone.
    most
        Points at which it ends early.
    """
    x = np.geomspace(first, last, _AT_ONCE)
    step = evaluate(x)
    while True:
        gaps = _convex_gaps(x, step) if convex else np.abs(np.diff(step))
        wide = (gaps > gap / 2) & (np.diff(x) > _NARROW * x[1:])
        room = most - len(x)
        if not wide.any() or room <= 0:
            return _thinned(x, step, gaps, tolerance=gap / 2, convex=convex)
        chosen = np.flatnonzero(wide)[np.argsort(-gaps[wide], kind="stable")[:room]]
        chosen.sort()
        middle = np.sqrt(x[chosen] * x[chosen + 1])
        step = np.insert(step, chosen + 1, evaluate(middle))
        x = np.insert(x, chosen + 1, middle)


def sample_curve(
    evaluate: Evaluate, first: float, last: float, *, gap: float, most: int = 100
) -> Curve:
    """Sample a curve of which no law is known, from ``first`` to ``last``.

    Each interval is looked at halfway, on a scale of factors; where the step is more than ``gap``
    (s) off the line there, its halves are looked at, too. ``gap`` of the curve is how far off
    the step was halfway before that point became one of the curve, or, where ``most`` points did
    not suffice, how far the ends are apart. Elsewhere in an interval it may be more: of a convex
    step up to about twice as much, of one that falls and rises between two looks anything.

    Where ``evaluate`` returns fewer steps than it was asked for, the first of them are the last:
    the curve ends there.
    """
    x = np.geomspace(first, last, _SAMPLED_FIRST)
    step = evaluate(x)
    complete = len(step) == len(x)
    x = x[: len(step)]
    gaps = np.full(len(x) - 1, np.inf)  # of intervals that are not looked at yet
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


def _thinned(x: Floats, step: Floats, gaps: Floats, *, tolerance: float, convex: bool) -> Curve:
    """Leave out points that lie within ``tolerance`` of a line between two that stay.

    From a point that stays, the slopes of lines that pass all points since closely enough are a
    range; the line ends at the last point whose own slope is within it.
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
    """Greatest distance of the chord from what convexity allows below it, for each interval.

    Below is the higher of the neighbours' chords carried on, and the step at the left: at the
    first and last interval, where a neighbour is missing, the line is level or rises from there.
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
    """Greatest ``x`` from which on, towards ``first``, ``factor`` times as good never buys much.

    Much is ``least``, a fraction of the step; judged at ``x`` whose better part is on the curve.
    ``last`` if it buys as much nowhere, None if it still does at the first. A stretch of ``x`` of
    less than the step of a grid of a thousand may be overlooked.
    """
    left, right = first * factor, last
    for _ in range(_ZOOMS):
        x = np.geomspace(left, right, _FINE)
        now, better = np.split(evaluate(np.concatenate([x, x / factor])), 2)
        much = (now - better >= least * now) & (now > 0)
        if not much.any():
            return last
        where = int(np.argmax(much))
        if where == 0:
            return None
        left, right = x[where - 1], x[where]
    return float(left)
