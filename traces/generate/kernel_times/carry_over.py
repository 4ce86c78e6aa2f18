"""Tables carried over from a related accelerator, as surfaces that do not fall.

What falls along an axis is levelled by least-squares isotonic regression along all axes together
(Dykstra, JASA 78, 1983), on logarithms, the measured points weighing most. What still falls after
the last round is replaced by the mean of the least monotone surface above and the greatest below.
"""

import math
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.accelerators import Accelerator, multiprocessor_count
from simulator.support.arrays import Floats, Ints, Matrix
from simulator.support.compiled import hot_loop
from simulator.support.errors import WorkloadError
from traces.generate.kernel_times.families import FAMILIES, Key, roofline
from traces.generate.kernel_times.tables import Curves, Surface

ROUNDS = 12
"""Of Dykstra's alternating projections; more change no measured table's error by 0.1 %."""

_T = TypeVar("_T", bound=np.generic)

FILLED_WEIGHT = 0.02
"""Weight of a point that was filled in, beside 1 of a measured one."""


def carry_over(
    key: Key, table: Surface | Curves, measured_on: Accelerator, chip: Accelerator
) -> Surface | Curves:
    """Carry a table over from one accelerator to another.

    What a shape's time is by the roofline scales as the rooflines do; what it is above that, where
    kernels start, end and wait, stays. It is taken where the relative has as much of the shape on
    each multiprocessor. (Times that scaled as a whole would be off by 19 to 42 % in the median from
    H100 to H200 and back, instead of 2 to 7 %: ``python -m benchmarks.kernels --carried``.)

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


def monotone(values: Floats, weights: Floats) -> Floats:
    """Return the surface nearest to values that does not fall along any axis."""
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
        below = backwards(np.minimum, below, axis)
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


def backwards(operation: np.ufunc, values: NDArray[_T], axis: int) -> NDArray[_T]:
    """Accumulate along an axis from its end."""
    flipped: NDArray[_T] = np.flip(operation.accumulate(np.flip(values, axis), axis), axis)
    return flipped


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
