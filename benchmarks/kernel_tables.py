"""Tables made of measured rows: what ``python -m benchmarks.kernels`` writes and the program reads.

From rows to a surface that obeys physics, without outliers, holes, or times that fall:

1. A lone row that is slower or faster than both its neighbours along an axis takes the nearer one's
   time (running median of three; it leaves every sequence that does not turn as it is).
2. Holes are filled in terms of efficiency: the ratio of the time to the roofline (plus a kernel's
   start and end) is interpolated between measured points, over the axes that have such on both
   sides, the nearer counting more; where there are none it is that of the nearest.
3. What falls is levelled: :func:`traces.generate.kernel_times.tables.monotone`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernel_rows import Rows, believed
from simulator.accelerators import Accelerator
from simulator.support.arrays import Floats
from traces.generate.kernel_times.families import FAMILIES, Key, attention_variant, roofline
from traces.generate.kernel_times.shapes import LAUNCHED, MEMORY_EFFICIENCY
from traces.generate.kernel_times.tables import FILLED_WEIGHT, Curves, Surface, backwards, monotone

FEWEST = 10
"""Rows that a table must have; fewer say nothing about the shapes between them."""


def build_tables(
    rows: Mapping[Key, Rows], chip: Accelerator, left_out: Counter[str]
) -> dict[Key, Surface | Curves]:
    """Make tables of the rows that can be believed.

    Parameters
    ----------
    rows
        As :func:`benchmarks.kernel_rows.read_rows` returns them.
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
        above = backwards(np.logical_or, above, axis)
    return below & above


_STEPS = 65535
"""Of a time between the least and the greatest of a table."""


def save_tables(file: Path, tables: Mapping[Key, Surface | Curves]) -> None:
    """Write tables to a file."""
    arrays: dict[str, Any] = {}
    for (family, variant), table in tables.items():
        name = f"{family}|{variant}"
        low, high = float(table.times.min()), float(table.times.max())
        step = max((high - low) / _STEPS, 1e-12)
        arrays[f"{name}|times"] = np.round((table.times - low) / step).astype(np.uint16)
        arrays[f"{name}|scale"] = np.array([low, step])
        arrays[f"{name}|measured"] = np.packbits(table.measured)
        if isinstance(table, Surface):
            for number, axis in enumerate(table.axes):
                arrays[f"{name}|axis{number}"] = axis
        else:
            arrays[f"{name}|axis0"] = table.axis
            arrays[f"{name}|shapes"] = table.shapes.astype(np.float32)
    np.savez_compressed(file, allow_pickle=False, **arrays)
