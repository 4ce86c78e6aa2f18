"""Efficiencies of one accelerator carried over to a relative without a table of its own."""

import math

import numpy as np

from simulator.errors import WorkloadError
from simulator.workload import Floats
from traces.generate.kernel_times.families import FAMILIES
from traces.generate.kernel_times.machines import Accelerator, multiprocessors_of
from traces.generate.kernel_times.rows import Key, roofline
from traces.generate.kernel_times.smoothing import FILLED_WEIGHT, monotone
from traces.generate.kernel_times.surface import Curves, Surface


def carried(
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
    shift = math.log(_ratio(chip, measured_on))
    if isinstance(table, Surface):
        axes = list(table.axes)
        before = _points(tuple(axes))
        axes[family.spread] = axes[family.spread] + shift
        after = _points(tuple(axes))
        times = np.log(
            _scaled(family.name, variant, table.times, (before, after), (measured_on, chip))
        )
        weights = np.where(table.measured, 1.0, FILLED_WEIGHT)
        return Surface(tuple(axes), monotone(times, weights), table.measured, table.exponents)
    return _carried_curves(key, table, measured_on, chip, shift)


def _carried_curves(
    key: Key, table: Curves, measured_on: Accelerator, chip: Accelerator, shift: float
) -> Curves:
    count, length = table.times.shape
    shapes = np.repeat(table.shapes, length, axis=0)
    first = np.tile(table.axis, count)
    before = np.exp(np.column_stack([first, shapes]))
    after = np.exp(np.column_stack([first + shift, shapes]))
    times = np.log(_scaled(key[0], key[1], table.times, (before, after), (measured_on, chip)))
    weights = np.where(table.measured, 1.0, FILLED_WEIGHT)
    lines = [monotone(line, weight) for line, weight in zip(times, weights, strict=True)]
    axis = table.axis + shift
    return Curves(axis, table.shapes, np.array(lines), table.measured, table.exponents)


def _scaled(
    name: str,
    variant: str,
    logarithms: Floats,
    points: tuple[Floats, Floats],
    chips: tuple[Accelerator, Accelerator],
) -> Floats:
    family = FAMILIES[name]
    before, after = (
        roofline(family, variant, own, chip).reshape(logarithms.shape)
        for own, chip in zip(points, chips, strict=True)
    )
    # Rows faster than the roofline were left out, but smoothing moves times by some per cent.
    above = np.maximum(np.exp(logarithms) - before, 0.0)
    return after + above


def _points(axes: tuple[Floats, ...]) -> Floats:
    grids = np.meshgrid(*axes, indexing="ij")
    return np.exp(np.stack([grid.reshape(-1) for grid in grids], axis=1))


def _ratio(chip: Accelerator, measured_on: Accelerator) -> float:
    """How many multiprocessors an accelerator has for each of the other; 1 if not known."""
    own, other = multiprocessors_of(chip), multiprocessors_of(measured_on)
    if own is not None and own <= 0:
        raise WorkloadError(f"accelerator {chip.name}: multiprocessors {own} must be positive")
    return own / other if own and other else 1.0
