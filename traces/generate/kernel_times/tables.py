"""Tables of kernels' times: interpolation between measured shapes, and the files in the package.

Logarithms are interpolated linearly, cell by cell. If work is a product of powers of the
dimensions, this interpolates achieved FLOP/s, or B/s, in logarithms: efficiency is interpolated;
and if the grid's times do not decrease along any dimension, interpolated times do not either.
Beyond the last point of a dimension its efficiency is kept.

A file (``.npz``) has the tables of one accelerator, read one by one. Times are 16-bit steps of
their logarithm between the least and the greatest of a table, at most 0.02 % apart; the order of
any two is kept.

Tables are carried over from a related accelerator as non-decreasing surfaces. Decreases along an
axis are levelled by least-squares isotonic regression along all axes together (Dykstra, JASA 78,
1983), on logarithms, with the largest weights on measured points. Decreases that remain after the
last round are replaced by the mean of the least monotone surface above and the greatest below.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.accelerators import (
    Accelerator,
    compute_capability,
    kernel_machines,
    multiprocessor_count,
    named,
    rates_within,
)
from simulator.support.arrays import Floats, Ints, Matrix
from simulator.support.compiled import hot_loop
from simulator.support.errors import TraceError, WorkloadError
from traces.generate.kernel_times.families import FAMILIES, Key, roofline


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Times of a family's kernels over a grid.

    Parameters
    ----------
    axes
        Logarithms of each dimension's points, ascending.
    times
        Logarithms of times in s, shape ``tuple(len(axis) for axis in axes)``; non-decreasing along
        every axis.
    measured
        Which of them were measured, or lie among measured points; the others are derived.
    exponents
        Power of each dimension in the work, and so in the time beyond the last point.
    """

    axes: tuple[Floats, ...]
    times: Floats
    measured: NDArray[np.bool_]
    exponents: tuple[float, ...]

    def at(self, points: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return times (s) of shapes ``(shapes, dimensions)``, and which lie among measured points.

        Examples
        --------
        >>> axis = np.log([1.0, 4.0])
        >>> line = Surface((axis,), np.log([1.0, 4.0]), np.array([True, True]), (1.0,))
        >>> times, inside = line.at(np.array([[2.0], [8.0]]))
        >>> times.round(6).tolist(), inside.tolist()
        ([2.0, 8.0], [True, False])
        """
        wanted = np.log(points)
        first = np.array([axis[0] for axis in self.axes])
        beyond = np.maximum(wanted - np.array([axis[-1] for axis in self.axes]), 0.0)
        columns = zip(self.axes, wanted.T, strict=True)
        cells, shares = zip(*(_cells(axis, column) for axis, column in columns), strict=True)
        # Axes: corner of the cell, shape, dimension.
        corners = np.array(list(product((0, 1), repeat=len(self.axes))))[:, None, :]
        last = np.array(self.times.shape) - 1
        index = np.minimum(np.stack(cells, axis=1) + corners, last)
        share = np.stack(shares, axis=1)
        # Multilinear interpolation of logarithms: a corner's weight is the product over dimensions.
        weight = np.where(corners, share, 1.0 - share).prod(axis=2)
        flat = np.ravel_multi_index(tuple(np.moveaxis(index, 2, 0)), self.times.shape)
        times = (weight * self.times.reshape(-1)[flat]).sum(axis=0)
        # Inside if every corner with a weight was measured or lies among measured points.
        inside = (self.measured.reshape(-1)[flat] | (weight <= 0.0)).all(axis=0)
        inside &= ((beyond < _EDGE) & (wanted > first - _EDGE)).all(axis=1)
        return np.exp(times + beyond @ np.array(self.exponents)), inside


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Times of kernels that libraries tune shape by shape: a curve for each measured shape.

    Kernels of experts' grouped products have files of tuned settings for some shapes and defaults
    for others, up to three times slower; between shapes their times are not monotone. So each curve
    is independent and non-decreasing along its own axis; a shape without one has the mean
    efficiency of the measured shapes, weighted by the inverse fourth power of the distance between
    logarithms (Shepard, ACM 1968).

    Parameters
    ----------
    axis
        Logarithms of the first dimension's points, ascending.
    shapes
        Logarithms of the other dimensions of each curve, shape ``(curves, dimensions - 1)``.
    times
        Logarithms of times in s, shape ``(curves, len(axis))``.
    measured
        Which of them were measured, or lie between measured points.
    exponents
        Power of each dimension in the work.
    """

    axis: Floats
    shapes: Floats
    times: Floats
    measured: NDArray[np.bool_]
    exponents: tuple[float, ...]

    def at(self, points: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """Return times at shapes, and whether each lies on a measured part of its own curve.

        Parameters and results are those of :meth:`Surface.at`.
        """
        wanted = np.log(points)
        first = wanted[:, 0]
        cell, share = _cells(self.axis, first)
        upper = np.minimum(cell + 1, len(self.axis) - 1)
        along = self.times[:, cell] * (1.0 - share) + self.times[:, upper] * share
        offsets = wanted[:, None, 1:] - self.shapes[None, :, :]
        scaled = along.T + offsets @ np.asarray(self.exponents[1:])
        distance = (offsets**2).sum(axis=2)
        nearest = distance.min(axis=1, keepdims=True)
        # Relative to the nearest, so that an exact match gets all the weight and nothing overflows.
        weight = ((nearest + _EDGE) / (distance + _EDGE)) ** 2
        times = (weight * scaled).sum(axis=1) / weight.sum(axis=1)
        beyond = np.maximum(first - self.axis[-1], 0.0)
        closest = distance.argmin(axis=1)
        inside = (nearest[:, 0] < _EDGE) & (beyond < _EDGE) & (first > self.axis[0] - _EDGE)
        inside &= (self.measured[closest, cell] | (share >= 1.0)) & (
            self.measured[closest, upper] | (share <= 0.0)
        )
        return np.exp(times + self.exponents[0] * beyond), inside


_EDGE = 1e-9
"""Sizes whose logarithms differ by less are equal."""


def _cells(axis: Floats, column: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the cell of each value, and its position in the cell, in [0, 1]."""
    if len(axis) == 1:
        return np.zeros(len(column), dtype=np.intp), np.zeros(len(column))
    clipped = np.minimum(np.maximum(column, axis[0]), axis[-1])
    cell = np.minimum(np.searchsorted(axis, clipped, side="right") - 1, len(axis) - 2)
    share = (clipped - axis[cell]) / (axis[cell + 1] - axis[cell])
    return cell, np.minimum(share, 1.0)


SHIPPED = Path(__file__).parent / "data"
"""The tables in the package; their origin is in ``README.md`` there."""

SAME_RATE = 0.05
"""Largest relative difference of an accelerator's rates from those of a table for the table's times
to count as measured: B200 is sold with 7.7 and 8 TB/s."""


@cache
def shipped_machines() -> Mapping[str, Accelerator]:
    """Return the accelerators' rates by name of the table in the package."""
    return {
        table: machine
        for table, machine in kernel_machines().items()
        if (SHIPPED / f"{table}.npz").is_file()
    }


def shipped_table(chip: Accelerator) -> str | None:
    """Return the name of the table that was measured on an accelerator; None if there is none.

    Its name must allow it, and peaks and bandwidth must be those by which the table was reduced, or
    those of the accelerator's own data sheet, to 5 %.

    Examples
    --------
    >>> shipped_table(Accelerator("H100-SXM5-80GB", {"bf16": 989e12}, 3.35e12))
    'h100_sxm'
    >>> shipped_table(Accelerator("H100-PCIe-80GB", {"bf16": 756e12}, 2e12)) is None
    True
    """
    machines = shipped_machines()
    for sheet in named(chip.name):
        machine = machines.get(sheet.kernel_table)
        if machine is not None and (
            rates_within(chip, machine, SAME_RATE) or rates_within(chip, sheet, SAME_RATE)
        ):
            return sheet.kernel_table
    return None


def nearest_relative(chip: Accelerator) -> str | None:
    """Return the table of the nearest relative of an accelerator; None if it has none.

    It is the table of an accelerator of its name, if what-ifs gave it other rates; else one of its
    generation, of its compute capability if there is any, since kernels are written for that
    (Blackwell's data-centre chips have 10, its RTX cards 12); of these the one with the nearest
    FLOPs per byte to its data sheet's: kernels change from one bound to the other at the same
    shapes there. A what-if does not change the choice: kernels of other tables have other versions,
    and twice the peak could take longer.

    Examples
    --------
    >>> nearest_relative(Accelerator("H100-PCIe-80GB", {"bf16": 756e12}, 2e12, "hopper"))
    'h100_sxm'
    >>> nearest_relative(Accelerator("RTX-5090", {"bf16": 209e12}, 1.8e12, "blackwell"))
    'rtx_pro_6000_server'
    """
    known = named(chip.name)
    for sheet in known:
        if sheet.kernel_table in shipped_machines():
            return sheet.kernel_table
    balance = _flops_per_byte(known[0] if len(known) == 1 else chip)
    if not balance:
        return None
    capability = compute_capability(chip)
    relatives = [
        (
            compute_capability(machine) != capability,
            abs(_flops_per_byte(machine) / balance - 1.0),
            table,
        )
        for table, machine in shipped_machines().items()
        if machine.generation == chip.generation
    ]
    return min(relatives)[-1] if relatives else None


def measured_rates(table: str, chip: Accelerator) -> Accelerator:
    """Return the rates behind a table from which it is carried over to an accelerator.

    For an accelerator of the table's name they are the accelerator's own where what-ifs left them
    unchanged (:func:`shipped_table`), so that unchanged kernels keep their times; else the sheet's.
    """
    machine = shipped_machines()[table]
    sheet = next((sheet for sheet in named(chip.name) if sheet.kernel_table == table), None)
    if sheet is None:
        return machine

    def unchanged(rate: float | None, of_table: float, of_sheet: float | None) -> float:
        usual = of_sheet or of_table
        if rate and any(abs(rate / each - 1.0) <= SAME_RATE for each in (of_table, usual)):
            return rate
        return usual

    peaks = {
        dtype: unchanged(chip.peak(dtype), peak, sheet.peak(dtype))
        for dtype, peak in machine.peaks.items()
    }
    bandwidth = unchanged(chip.memory_bandwidth, machine.memory_bandwidth, sheet.memory_bandwidth)
    return replace(machine, peaks=peaks, memory_bandwidth=bandwidth)


def _flops_per_byte(chip: Accelerator) -> float:
    peak = chip.peak("bf16")
    return peak / chip.memory_bandwidth if peak else 0.0


def table_keys(file: Path) -> tuple[Key, ...]:
    """Return the keys of a file's tables."""
    with _open_archive(file) as archive:
        names = [name.split("|") for name in archive.files if name.endswith("|times")]
    return tuple((family, variant) for family, variant, _ in names)


def load_table(file: Path, key: Key) -> Surface | Curves:
    """Read one table."""
    name = "|".join(key)
    exponents = FAMILIES[key[0]].exponents
    with _open_archive(file) as archive:
        low, step = archive[f"{name}|scale"]
        steps = archive[f"{name}|times"]
        times = low + step * steps.astype(np.float64)
        bits = np.unpackbits(archive[f"{name}|measured"], count=times.size)
        measured = bits.astype(np.bool_).reshape(times.shape)
        if f"{name}|shapes" in archive.files:
            shapes = archive[f"{name}|shapes"].astype(np.float64)
            return Curves(archive[f"{name}|axis0"], shapes, times, measured, exponents)
        axes = tuple(archive[f"{name}|axis{number}"] for number in range(times.ndim))
        return Surface(axes, times, measured, exponents)


def _open_archive(file: Path) -> "np.lib.npyio.NpzFile":
    try:
        archive: np.lib.npyio.NpzFile = np.load(file)
    except FileNotFoundError:
        raise TraceError(f"{file}: no such file") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{file}: no table of kernels: {error}") from None
    return archive


ROUNDS = 12
"""Of Dykstra's alternating projections; more change no measured table's error by 0.1 %."""

_T = TypeVar("_T", bound=np.generic)

FILLED_WEIGHT = 0.02
"""Weight of a filled-in point, relative to 1 of a measured one."""


def carry_over(
    key: Key, table: Surface | Curves, measured_on: Accelerator, chip: Accelerator
) -> Surface | Curves:
    """Carry a table over from one accelerator to another.

    A shape's roofline time scales as the rooflines do; the rest, in which kernels start, end and
    wait, stays. The table is read at the shape that gives each multiprocessor as much work. (Times
    scaled as a whole would be off by 19 to 42 % in the median from H100 to H200 and back, instead
    of 2 to 7 %: ``python -m benchmarks.kernels --carried``.)
    """
    family, variant = FAMILIES[key[0]], key[1]
    # With twice the multiprocessors a shape twice as large gives each as much work: an axis in
    # logarithms moves by the logarithm of the ratio.
    # Ratio of the accelerators' numbers of multiprocessors; 1 if not known
    count, measured_count = multiprocessor_count(chip), multiprocessor_count(measured_on)
    if count is not None and count <= 0:
        raise WorkloadError(f"accelerator {chip.name}: multiprocessors {count} must be positive")
    shift = math.log(count / measured_count if count and measured_count else 1.0)
    if isinstance(table, Surface):
        axes = list(table.axes)
        axes[0] = axes[0] + shift
        points = [_grid_points(table.axes), _grid_points(tuple(axes))]
    else:
        # Rows in the order of `table.times.reshape(-1)`: shape by shape, along the first dimension.
        count_of_curves, length = table.times.shape
        shapes = np.repeat(table.shapes, length, axis=0)
        first = np.tile(table.axis, count_of_curves)
        points = [np.exp(np.column_stack([axis, shapes])) for axis in (first, first + shift)]
    before, after = (
        roofline(family, variant, sizes, machine, least=False).reshape(table.times.shape)
        for sizes, machine in zip(points, (measured_on, chip), strict=True)
    )
    # Smoothing moves some times below the roofline: those keep their ratio to it.
    tabled = np.exp(table.times)
    times = np.log(after * np.minimum(tabled / before, 1.0) + np.maximum(tabled - before, 0.0))
    weights = np.where(table.measured, 1.0, FILLED_WEIGHT)
    if isinstance(table, Surface):
        return replace(table, axes=tuple(axes), times=monotone(times, weights))
    lines = [monotone(line, weight) for line, weight in zip(times, weights, strict=True)]
    return replace(table, axis=table.axis + shift, times=np.array(lines))


def _grid_points(axes: tuple[Floats, ...]) -> Floats:
    grids = np.meshgrid(*axes, indexing="ij")
    return np.exp(np.stack([grid.reshape(-1) for grid in grids], axis=1))


def monotone(values: Floats, weights: Floats) -> Floats:
    """Return the nearest surface to values that is non-decreasing along every axis."""
    nearest = values.copy()
    rests = [np.zeros_like(values) for _ in range(values.ndim)]
    # Dykstra's alternating projections: each axis in turn, with what its last projection removed
    # put back first, converge to the nearest surface that is monotone along all axes.
    for _ in range(ROUNDS):
        for axis, rest in enumerate(rests):
            wanted = nearest + rest
            nearest = _fit_along_axis(wanted, weights, axis)
            rests[axis] = wanted - nearest
    # Violations left after the rounds are replaced by the mean of both bounds.
    above, below = nearest, nearest
    for axis in range(values.ndim):
        above = np.maximum.accumulate(above, axis)
        below = backwards(np.minimum, below, axis)
    middle: Floats = (above + below) / 2.0
    return middle


def _fit_along_axis(values: Floats, weights: Floats, axis: int) -> Floats:
    lines = np.ascontiguousarray(np.moveaxis(values, axis, -1))
    weighted = np.ascontiguousarray(np.moveaxis(weights, axis, -1))
    length = lines.shape[-1]
    fitted = np.empty_like(lines)
    pools = Pools(np.empty(length), np.empty(length), np.empty(length, np.int32))
    _pool(
        lines.reshape(-1, length), weighted.reshape(-1, length), pools, fitted.reshape(-1, length)
    )
    return np.moveaxis(fitted, -1, axis)


def backwards(operation: np.ufunc, values: NDArray[_T], axis: int) -> NDArray[_T]:
    """Accumulate along an axis from its end."""
    flipped: NDArray[_T] = np.flip(operation.accumulate(np.flip(values, axis), axis), axis)
    return flipped


class Pools(NamedTuple):
    """Runs of points that share a level during a fit; at most one per point of a line."""

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
            # The point starts as its own pool; while the previous pool is higher, both are merged
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
