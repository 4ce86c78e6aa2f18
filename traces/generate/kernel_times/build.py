"""Tables made of measured rows, or carried over from a related accelerator.

From rows to a surface that obeys physics, without outliers, holes, or times that fall:

1. A lone row that is slower or faster than both its neighbours along an axis takes the nearer one's
   time (running median of three; it leaves every sequence that does not turn as it is).
2. Holes are filled in terms of efficiency: the ratio of the time to the roofline (plus a kernel's
   start and end) is interpolated between measured points, over the axes that have such on both
   sides, the nearer counting more; where there are none it is that of the nearest.
3. Least-squares isotonic regression along all axes together (Dykstra, JASA 78, 1983), on
   logarithms, the measured points weighing most. What still falls after the last round is replaced
   by the mean of the least monotone surface above and the greatest below.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.accelerators import Accelerator, multiprocessor_count
from simulator.support.compiled import hot_loop
from simulator.support.errors import WorkloadError
from simulator.workload import Floats, Ints, Matrix
from traces.generate.kernel_times.families import FAMILIES, Key, attention_variant, roofline
from traces.generate.kernel_times.machines import MEMORY_EFFICIENCY
from traces.generate.kernel_times.rows import Rows, believed
from traces.generate.kernel_times.shapes import LAUNCHED
from traces.generate.kernel_times.tables import Curves, Surface

FEWEST = 10
"""Rows that a table must have; fewer say nothing about the shapes between them."""


def build_tables(
    rows: Mapping[Key, Rows], chip: Accelerator, left_out: Counter[str]
) -> dict[Key, Surface | Curves]:
    """Make tables of the rows that can be believed.

    Parameters
    ----------
    rows
        As :func:`traces.generate.kernel_times.rows.read` returns them.
    chip
        Where they were measured.
    left_out
        Counts, by reason, rows that are not used.
    """
    tables: dict[Key, Surface | Curves] = {}
    for key, measured_rows in _with_flash(rows, chip):
        usable = believed(key, measured_rows, chip, left_out if key[0] != "flash" else Counter())
        if len(usable) >= FEWEST:
            tables[key] = build_table(key, usable, chip)
        elif key[0] != "flash":
            left_out["fewer than ten rows of a table"] += len(usable)
    return tables


_LARGEST = 2_000_000
"""Points of a grid; of more, each shape has a curve of its own."""


def build_table(key: Key, rows: Rows, chip: Accelerator) -> Surface | Curves:
    """Make the table of rows: a surface, or curves where kernels are tuned by shape."""
    family = FAMILIES[key[0]]
    points = np.prod([len(np.unique(column)) for column in rows.points.T], dtype=np.float64)
    make = curves if family.tuned_by_shape or points > _LARGEST else surface
    return make(
        rows.points,
        rows.times,
        family.exponents,
        lambda nodes: roofline(family, key[1], nodes, chip),
    )


def _with_flash(rows: Mapping[Key, Rows], chip: Accelerator) -> Iterator[tuple[Key, Rows]]:
    """Yield tables, and prefill without what serving does besides: keys and values to the cache."""
    for key, table_rows in rows.items():
        yield key, table_rows
        if key[0] != "prefill" or not key[1].startswith("bf16/"):
            continue
        _, head_size, _ = attention_variant(key[1])
        batch, tokens, _, kv_heads = table_rows.points.T
        # Keys and values are read once and written once, 2 B each.
        copied = 8.0 * head_size * batch * tokens * kv_heads
        written = copied / (chip.memory_bandwidth * MEMORY_EFFICIENCY)
        least = np.maximum(
            roofline(FAMILIES["flash"], key[1], table_rows.points, chip), LEAST * table_rows.times
        )
        yield (
            ("flash", key[1]),
            Rows(table_rows.points, np.maximum(table_rows.times - written, least)),
        )


LEAST = 0.5
"""Of a prefill's time, the share that attention itself has at least."""


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
    # All shapes of the grid, one per row, in the order of `grid.reshape(-1)`.
    nodes = np.stack(
        [coordinates.reshape(-1) for coordinates in np.meshgrid(*axes, indexing="ij")], axis=1
    )
    # Logarithms throughout: errors of times are relative, and a product of sizes is a sum.
    expected = np.log(least(nodes) + LAUNCHED).reshape(grid.shape)
    filled = _filled(_calm(grid), expected, logarithms)
    is_measured = np.isfinite(grid)
    weights = np.where(is_measured, 1.0, FILLED_WEIGHT)
    return Surface(
        logarithms, monotone(filled, weights), is_measured | _among(is_measured), exponents
    )


def curves(points: Floats, times: Floats, exponents: tuple[float, ...], least: Least) -> Curves:
    """Make curves of measured rows, over the first dimension, one for each shape of the others.

    Parameters and rules are those of :func:`surface`.
    """
    # A line of the grid is a curve: its number (from 1, since axes are positive) stands in for the
    # other dimensions.
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
        axis, position = np.unique(column, return_inverse=True)
        axes.append(axis)
        places.append(position)
    shape = tuple(len(axis) for axis in axes)
    # Rows sorted by cell, within a cell by time: the median is the middle row, or the mean of both.
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
    # The axis in question last; `last` and `following` are the index of the nearest finite value
    # before and after each place, -1 and `length` where there is none.
    lines = np.moveaxis(grid, axis, -1)
    length = lines.shape[-1]
    indices = np.where(np.isfinite(lines), np.arange(length), -1)
    last = np.full_like(indices, -1)
    # Shifted by one place, so that a point is not its own neighbour.
    last[..., 1:] = np.maximum.accumulate(indices, axis=-1)[..., :-1]
    indices = np.where(indices < 0, length, indices)
    following = np.full_like(indices, length)
    following[..., :-1] = np.flip(np.minimum.accumulate(np.flip(indices, -1), -1), -1)[..., 1:]
    sides = []
    for neighbour in (last, following):
        clipped = np.clip(neighbour, 0, length - 1)
        values = np.take_along_axis(lines, clipped, -1)
        distance = np.abs(positions - positions[clipped])
        # Clipping changes exactly those that do not exist.
        absent = neighbour != clipped
        sides.append(
            _Near(
                np.moveaxis(np.where(absent, np.nan, values), -1, axis),
                np.moveaxis(np.where(absent, np.nan, distance), -1, axis),
            )
        )
    return sides[0], sides[1]


def _filled(grid: Floats, expected: Floats, axes: Sequence[Floats]) -> Floats:
    """Fill holes of logarithms of times by what they are of those expected."""
    # A difference of logarithms is a ratio, which varies far less over shapes than times do.
    share = grid - expected
    # First between measured points on a line, once per axis so that a hole far from all can be
    # reached by way of another; then whatever is left from one side.
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
        # Linear between both; a side that is absent is NaN, and makes the line NaN.
        line = (before.values * after.distance + after.values * before.distance) / gap
        if not both:
            line = np.where(np.isnan(before.values), after.values, before.values)
            gap = np.fmin(before.distance, after.distance)
        # Axes are averaged by the inverse square of the gap: the closer pair counts.
        weight = np.where(np.isnan(line), 0.0, 1.0 / gap**2)
        total += weight * np.nan_to_num(line)
        weights += weight
    hole = np.isnan(grid) & (weights > 0.0)
    return np.where(hole, total / np.where(weights > 0.0, weights, 1.0), grid)


def _among(measured: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which points have measured ones below and above, in all dimensions together."""
    # Accumulated along every axis: whether any measured point is at most as large (or as small) in
    # all dimensions.
    below, above = measured, measured
    for axis in range(measured.ndim):
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
    # Dykstra's alternating projections: each axis in turn, with what its last projection took away
    # put back first, converge to the nearest surface that is monotone along all axes.
    for _ in range(ROUNDS):
        for axis, rest in enumerate(rests):
            wanted = nearest + rest
            nearest = _along(wanted, weights, axis)
            rests[axis] = wanted - nearest
    # What the rounds leave of violations is halved between both sides.
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
            # The point is a pool of its own; as long as the pool before is higher, both become one
            # with their weighted mean.
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
            # Every point of a pool gets its level.
            fitted[row, end : end + count[pool]] = level[pool]
            end += count[pool]


def carry_over(
    key: Key, table: Surface | Curves, measured_on: Accelerator, chip: Accelerator
) -> Surface | Curves:
    """Carry a table over from one accelerator to another.

    What a shape's time is by the roofline scales as the rooflines do; what it is above that, where
    kernels start, end and wait, stays. It is taken where the relative has as much of the shape on
    each multiprocessor. (Times that scaled as a whole would be off by 19 to 42 % in the median from
    H100 to H200 and back, instead of 2 to 7 %: ``python -m benchmarks.kernels --carried``.)

    Parameters
    ----------
    key
        Family and variant.
    table, measured_on
        Times, and where they were measured.
    chip
        Whose times are asked.

    Raises
    ------
    WorkloadError
        If a peak that the kernels need is not known.
    """
    family, variant = FAMILIES[key[0]], key[1]
    # With twice the multiprocessors a shape twice as large fills each as much: an axis in
    # logarithms moves by the logarithm of the ratio.
    shift = math.log(_multiprocessor_ratio(chip, measured_on))
    if isinstance(table, Surface):
        axes = list(table.axes)
        before = _grid_points(tuple(axes))
        axes[family.spread] = axes[family.spread] + shift
        after = _grid_points(tuple(axes))
        times = np.log(
            _with_roofline_of(
                family.name, variant, table.times, (before, after), (measured_on, chip)
            )
        )
        weights = np.where(table.measured, 1.0, FILLED_WEIGHT)
        return Surface(tuple(axes), monotone(times, weights), table.measured, table.exponents)
    return _carried_curves(key, table, measured_on, chip, shift)


def _carried_curves(
    key: Key, table: Curves, measured_on: Accelerator, chip: Accelerator, shift: float
) -> Curves:
    count, length = table.times.shape
    # Rows in the order of `table.times.reshape(-1)`: shape by shape, along the first dimension.
    shapes = np.repeat(table.shapes, length, axis=0)
    first = np.tile(table.axis, count)
    before = np.exp(np.column_stack([first, shapes]))
    after = np.exp(np.column_stack([first + shift, shapes]))
    times = np.log(
        _with_roofline_of(key[0], key[1], table.times, (before, after), (measured_on, chip))
    )
    weights = np.where(table.measured, 1.0, FILLED_WEIGHT)
    lines = [monotone(line, weight) for line, weight in zip(times, weights, strict=True)]
    axis = table.axis + shift
    return Curves(axis, table.shapes, np.array(lines), table.measured, table.exponents)


def _with_roofline_of(
    name: str,
    variant: str,
    logarithms: Floats,
    points: tuple[Floats, Floats],
    chips: tuple[Accelerator, Accelerator],
) -> Floats:
    family = FAMILIES[name]
    before, after = (
        roofline(family, variant, sizes, chip).reshape(logarithms.shape)
        for sizes, chip in zip(points, chips, strict=True)
    )
    # Rows faster than the roofline were left out, but smoothing moves times by some per cent.
    above = np.maximum(np.exp(logarithms) - before, 0.0)
    return after + above


def _grid_points(axes: tuple[Floats, ...]) -> Floats:
    grids = np.meshgrid(*axes, indexing="ij")
    return np.exp(np.stack([grid.reshape(-1) for grid in grids], axis=1))


def _multiprocessor_ratio(chip: Accelerator, measured_on: Accelerator) -> float:
    """How many multiprocessors an accelerator has for each of the other; 1 if not known."""
    count, measured_count = multiprocessor_count(chip), multiprocessor_count(measured_on)
    if count is not None and count <= 0:
        raise WorkloadError(f"accelerator {chip.name}: multiprocessors {count} must be positive")
    return count / measured_count if count and measured_count else 1.0
