"""From measured rows to a surface that obeys physics: no hiccups, no holes, no time that falls.

1. A lone row that is slower or faster than both its neighbours along an axis takes the nearer one's
   time (running median of three; it leaves every sequence that does not turn as it is).
2. Holes are filled in the sense of efficiency: what a time is of the roofline's, and the start and
   end of a kernel, is interpolated between measured points, over the axes that have such on both
   sides, the nearer counting more; where there are none it is that of the nearest.
3. Least-squares isotonic regression along all axes together (Dykstra, JASA 78, 1983), on
   logarithms, the measured points weighing most. What falls after so many rounds is ended by the
   mean of the least monotone surface above and the greatest below.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.hot import hot_loop
from simulator.workload import Floats, Ints, Matrix
from traces.generate.kernel_times.shapes import LAUNCHED
from traces.generate.kernel_times.surface import Curves, Surface

ROUNDS = 12
"""Of Dykstra's alternating projections; more change no measured table's error by 0.1 %."""
_T = TypeVar("_T", bound=np.generic)

FILLED_WEIGHT = 0.02
"""Weight of a point that was filled in, beside 1 of a measured one."""


Least = Callable[[Floats], Floats]
"""Least time by the roofline (s) of shapes, ``(shapes, dimensions)``."""


def surface(points: Floats, times: Floats, exponents: tuple[float, ...], least: Least) -> Surface:
    """Make a surface of measured rows.

    Parameters
    ----------
    points
        Sizes of each row, shape ``(rows, dimensions)``, positive.
    times
        Time of each row in s; the median of those at one shape is taken.
    exponents
        By which power of each dimension the work grows.
    least
        Least times of shapes on the accelerator.
    """
    axes, grid = _gridded(points, np.log(times))
    logarithms = tuple(np.log(axis) for axis in axes)
    nodes = np.stack([one.reshape(-1) for one in np.meshgrid(*axes, indexing="ij")], axis=1)
    expected = np.log(least(nodes) + LAUNCHED).reshape(grid.shape)
    filled = _filled(_calm(grid), expected, logarithms)
    known = np.isfinite(grid)
    weights = np.where(known, 1.0, FILLED_WEIGHT)
    return Surface(logarithms, monotone(filled, weights), known | _among(known), exponents)


def curves(points: Floats, times: Floats, exponents: tuple[float, ...], least: Least) -> Curves:
    """Make curves of measured rows, over the first dimension, one for each shape of the others.

    Parameters and rules are those of :func:`surface`.
    """
    shapes, curve = np.unique(points[:, 1:], axis=0, return_inverse=True)
    curve = curve.reshape(-1)
    numbered = np.stack([curve + 1.0, points[:, 0]], axis=1)
    (_, axis), grid = _gridded(numbered, np.log(times))
    logarithms = np.log(axis)
    rows = []
    for line, shape in zip(grid, shapes, strict=True):
        nodes = np.column_stack([axis, np.tile(shape, (len(axis), 1))])
        filled = _filled(_calm(line), np.log(least(nodes) + LAUNCHED), (logarithms,))
        rows.append(monotone(filled, np.where(np.isfinite(line), 1.0, FILLED_WEIGHT)))
    among = np.array([np.isfinite(line) | _among(np.isfinite(line)) for line in grid])
    return Curves(logarithms, np.log(shapes), np.array(rows), among, exponents)


def _gridded(points: Floats, times: Floats) -> tuple[list[Floats], Floats]:
    """Return the axes that rows lie on, and times over them; NaN where there is no row."""
    axes, places = [], []
    for column in points.T:
        axis, place = np.unique(column, return_inverse=True)
        axes.append(axis)
        places.append(place)
    shape = tuple(len(axis) for axis in axes)
    cell = np.ravel_multi_index(tuple(places), shape)
    order = np.lexsort((times, cell))
    cell, times = cell[order], times[order]
    first = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
    count = np.diff(np.r_[first, len(cell)])
    grid = np.full(shape, np.nan)
    low, high = first + (count - 1) // 2, first + count // 2
    grid.reshape(-1)[cell[first]] = (times[low] + times[high]) / 2.0
    return axes, grid


def _calm(grid: Floats) -> Floats:
    """Take the median of each measured point and of the measured next to it, along every axis."""
    for axis in range(grid.ndim):
        before, after = (
            near.values for near in _nearest(grid, np.arange(float(grid.shape[axis])), axis)
        )
        middle = np.median(np.stack([before, grid, after]), axis=0)
        # The first of a line may be a hiccup, too: it is not above what follows.
        middle = np.where(np.isnan(before), np.fmin(grid, after), middle)
        grid = np.where(np.isnan(grid) | np.isnan(middle), grid, middle)
    return grid


class _Near(NamedTuple):
    """The nearest measured value on one side along an axis, and how far it is; NaN: none."""

    values: Floats
    distance: Floats


def _nearest(grid: Floats, positions: Floats, axis: int) -> tuple[_Near, _Near]:
    """Return the nearest measured values before and after each point, itself left out."""
    lines = np.moveaxis(grid, axis, -1)
    length = lines.shape[-1]
    own = np.where(np.isfinite(lines), np.arange(length), -1)
    last = np.full_like(own, -1)
    last[..., 1:] = np.maximum.accumulate(own, axis=-1)[..., :-1]
    own = np.where(own < 0, length, own)
    following = np.full_like(own, length)
    following[..., :-1] = np.flip(np.minimum.accumulate(np.flip(own, -1), -1), -1)[..., 1:]
    found = []
    for place in (last, following):
        held = np.clip(place, 0, length - 1)
        values = np.take_along_axis(lines, held, -1)
        distance = np.abs(positions - positions[held])
        absent = place != held
        found.append(
            _Near(
                np.moveaxis(np.where(absent, np.nan, values), -1, axis),
                np.moveaxis(np.where(absent, np.nan, distance), -1, axis),
            )
        )
    return found[0], found[1]


def _filled(grid: Floats, expected: Floats, axes: Sequence[Floats]) -> Floats:
    """Fill holes of logarithms of times by what they are of those expected."""
    share = grid - expected
    for _ in axes:
        share = _spread(share, axes, both=True)
    while np.isnan(share).any():
        share = _spread(share, axes, both=False)
    return share + expected


def _spread(grid: Floats, axes: Sequence[Floats], *, both: bool) -> Floats:
    """Fill holes from the nearest points along each axis, those on both sides or on either."""
    total, weights = np.zeros_like(grid), np.zeros_like(grid)
    for axis, positions in enumerate(axes):
        before, after = _nearest(grid, positions, axis)
        gap = before.distance + after.distance
        line = (before.values * after.distance + after.values * before.distance) / gap
        if not both:
            line = np.where(np.isnan(before.values), after.values, before.values)
            gap = np.fmin(before.distance, after.distance)
        weight = np.where(np.isnan(line), 0.0, 1.0 / gap**2)
        total += weight * np.nan_to_num(line)
        weights += weight
    hole = np.isnan(grid) & (weights > 0.0)
    return np.where(hole, total / np.where(weights > 0.0, weights, 1.0), grid)


def _among(known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which points have measured ones below and above, in all dimensions together."""
    below, above = known, known
    for axis in range(known.ndim):
        below = np.logical_or.accumulate(below, axis)
        above = _backwards(np.logical_or, above, axis)
    return below & above


def _backwards(operation: np.ufunc, values: NDArray[_T], axis: int) -> NDArray[_T]:
    flipped: NDArray[_T] = np.flip(operation.accumulate(np.flip(values, axis), axis), axis)
    return flipped


def monotone(values: Floats, weights: Floats) -> Floats:
    """Return the surface nearest to values that does not fall along any axis.

    Parameters
    ----------
    values, weights
        Of one shape; weights are positive.
    """
    nearest = values.copy()
    rests = [np.zeros_like(values) for _ in range(values.ndim)]
    for _ in range(ROUNDS):
        for axis, rest in enumerate(rests):
            wanted = nearest + rest
            nearest = _along(wanted, weights, axis)
            rests[axis] = wanted - nearest
    above, below = nearest, nearest
    for axis in range(values.ndim):
        above = np.maximum.accumulate(above, axis)
        below = _backwards(np.minimum, below, axis)
    middle: Floats = (above + below) / 2.0
    return middle


def _along(values: Floats, weights: Floats, axis: int) -> Floats:
    lines = np.ascontiguousarray(np.moveaxis(values, axis, -1))
    weighted = np.ascontiguousarray(np.moveaxis(weights, axis, -1))
    length = lines.shape[-1]
    fitted = np.empty_like(lines)
    pools = Pools(np.empty(length), np.empty(length), np.empty(length, np.int32))
    _pool(
        lines.reshape(-1, length), weighted.reshape(-1, length), pools, fitted.reshape(-1, length)
    )
    return np.moveaxis(fitted, -1, axis)


class Pools(NamedTuple):
    """Runs of points that share a level, while a line is fitted; as many as a line has points."""

    level: Floats
    weight: Floats
    many: Ints


@hot_loop
def _pool(lines: Matrix, weights: Matrix, scratch: Pools, fitted: Matrix) -> None:
    """Pool adjacent violators of every line (Barlow et al. 1972, isotonic regression)."""
    rows, length = lines.shape
    level, weight, count = scratch
    for row in range(rows):
        pools = 0
        for column in range(length):
            level[pools] = lines[row, column]
            weight[pools] = weights[row, column]
            count[pools] = 1
            pools += 1
            while pools > 1 and level[pools - 2] > level[pools - 1]:
                both = weight[pools - 2] + weight[pools - 1]
                level[pools - 2] = (
                    level[pools - 2] * weight[pools - 2] + level[pools - 1] * weight[pools - 1]
                ) / both
                weight[pools - 2] = both
                count[pools - 2] += count[pools - 1]
                pools -= 1
        end = 0
        for pool in range(pools):
            fitted[row, end : end + count[pool]] = level[pool]
            end += count[pool]
