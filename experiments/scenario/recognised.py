"""Kernels of a trace without FLOPs: what each computes, by its operator's sizes or by its name.

A kernel whose operator's sizes the profile has (``record_shapes=True``) has a shape, and scales
from one accelerator to another as the tables of measured kernels say
(:mod:`traces.generate.kernel_times`). One that is recognised by its name alone scales as what the
two reach of their memory bandwidths, if it passes over elements or has few rows, as in decoding,
and of their peaks, if it multiplies matrices of many. Any other lasts as long as it did.
"""

from dataclasses import dataclass
from math import hypot
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Mask
from simulator.support.errors import TraceError, WhatIfError, WorkloadError
from simulator.workload import NOT_RECORDED, What, Workload
from traces.generate.kernel_times import Accelerator, KernelTimes, Shape, kernel_times
from traces.generate.kernel_times.families import (
    UNSIZED_ATTENTION,
    UNSIZED_PRODUCTS,
    has_few_rows,
    is_elementwise,
    kind_by_name,
)
from traces.generate.kernel_times.shapes import (
    COMPUTE_EFFICIENCY,
    LAUNCHED,
    MEMORY_EFFICIENCY,
    REACHED_MEMORY,
    REACHED_PEAK,
)
from traces.generate.kernel_times.times import COMPARED, kernel_error

_KEPT, _BY_PEAK, _BY_MEMORY, _BY_SHAPE, _FEW_ROWS = range(5)
LEAST_KNOWN = 0.5
"""Of the computing time; where less is recognised, what is kept would pass for an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class RecognisedOps:
    """What is known of a workload's ops.

    Parameters
    ----------
    shapes
        Shapes that occur.
    shape
        Of each op, an index into ``shapes``, -1 where it is not known.
    how
        Of each op, by what it scales: kept, peak, memory bandwidth or shape.
    duration
        Of each op that computes, in s; 0 of others.
    """

    shapes: tuple[Shape, ...]
    shape: NDArray[np.int64]
    how: NDArray[np.int64]
    duration: Floats

    @property
    def scaled(self) -> Mask:
        """Ops that another accelerator changes."""
        return np.asarray(self.how != _KEPT)

    @property
    def share(self) -> float:
        """Of the computing time, what belongs to ops that are recognised; 0 if there is none."""
        total = self.duration.sum()
        return float(self.duration[self.scaled].sum() / total) if total > 0 else 0.0

    def told(self) -> str:
        """Say how much of the computing time is known, and how."""
        total = self.duration.sum()
        shares = [
            (self.duration[self.how == how].sum() / total, words)
            for how, words in (
                (_BY_SHAPE, "by shape"),
                (_BY_PEAK, "by name as products"),
                (_FEW_ROWS, "by name as products of few rows"),
                (_BY_MEMORY, "by name as passes over memory"),
                (_KEPT, "not recognised and kept"),
            )
        ]
        parts = [f"{100 * share:.0f} % {words}" for share, words in shares if share]
        return f"of the time of kernels {', '.join(parts)}"


def recognise(workload: Workload, trace: str) -> RecognisedOps:
    """Recognise the kernels of a workload.

    Parameters
    ----------
    workload
        As recorded; an op is found again by its name and its measured duration.
    trace
        Where it was recorded.

    Raises
    ------
    WhatIfError
        If of less than half of the computing time the kernels are recognised, by shape or by name.
    """
    # Ops that are no kernel of the step: what a stream had left to do, parts of others
    named = [name in NOT_RECORDED for name in workload.names]
    computing = (workload.what == What.COMPUTE) & ~np.array([*named, False])[workload.name]
    shape_of, why = _shapes_of(trace)
    numbers: dict[Shape, int] = {}
    shape = np.full(len(workload), -1, dtype=np.int64)
    how = np.full(len(workload), _KEPT, dtype=np.int64)
    lasted = np.nan_to_num(workload.measured_end - workload.measured_start)
    by_name = _by_names(workload, computing)
    for op in np.flatnonzero(computing).tolist():
        name = int(workload.name[op])
        kernel_shape = shape_of.get((workload.names[name], round(1e9 * float(lasted[op]))))
        if kernel_shape is None:
            how[op] = by_name[name]
        else:
            how[op] = _BY_SHAPE
            shape[op] = numbers.setdefault(kernel_shape, len(numbers))
    duration = np.where(computing, workload.duration, 0.0)
    ops = RecognisedOps(tuple(numbers), shape, how, duration)
    if ops.share < LEAST_KNOWN:
        raise WhatIfError(
            "the trace gives no op's FLOPs or bytes, and only"
            f" {100 * ops.share:.0f} % of the computing time is of kernels that are recognised;"
            f" the longest that are not: {_longest_kept(workload, ops)}{why}"
        )
    return ops


def _longest_kept(workload: Workload, ops: RecognisedOps) -> str:
    unscaled = np.where(ops.scaled, 0.0, ops.duration)
    time = np.bincount(workload.name, unscaled, minlength=len(workload.names))
    names = [workload.names[name] for name in np.argsort(-time)[:3] if time[name] > 0]
    return ", ".join(names)


def _shapes_of(trace: str) -> tuple[dict[tuple[str, int], Shape], str]:
    """Shapes of the kernels of a trace, none where it is not a profile of PyTorch, and why."""
    from traces.load import kernel_shapes

    try:
        return (kernel_shapes(Path(trace)), "") if trace else ({}, "")
    except TraceError as error:
        return {}, f" ({error})"


def _by_names(workload: Workload, computing: Mask) -> list[int]:
    """By what kernels of each name scale.

    Products and attention whose names do not say whether they have few rows are as most of those
    whose names do, by time.
    """
    time = np.bincount(
        workload.name[computing], workload.duration[computing], minlength=len(workload.names)
    )
    few = [has_few_rows(name) if _is_product(name) else None for name in workload.names]
    times = [
        sum(time[i] for i, is_few in enumerate(few) if is_few is value) for value in (True, False)
    ]
    usual = times[0] > times[1]
    return [
        _by_name(name, usual if is_few is None else is_few)
        for name, is_few in zip(workload.names, few, strict=True)
    ]


def _is_product(name: str) -> bool:
    return kind_by_name(name) in (UNSIZED_PRODUCTS, UNSIZED_ATTENTION)


def _by_name(name: str, few: bool) -> int:  # noqa: FBT001 - one of two ways to scale
    if _is_product(name):
        return _FEW_ROWS if few else _BY_PEAK
    return _BY_MEMORY if is_elementwise(name) else _KEPT


def ratios(kernels: RecognisedOps, recorded: Accelerator, target: Accelerator) -> Floats:
    """Return by what the duration of each op is multiplied on another accelerator.

    Raises
    ------
    WhatIfError
        If a peak that a shape needs is not known of either.
    """
    ratio = np.ones(len(kernels.how))
    peaks = [
        (chip.peak("bf16") or 0.0) * REACHED_PEAK.get(chip.generation, COMPUTE_EFFICIENCY)
        for chip in (recorded, target)
    ]
    memory = _reached_memory(recorded) / _reached_memory(target)
    if peaks[0] and peaks[1]:
        ratio[kernels.how == _BY_PEAK] = peaks[0] / peaks[1]
    ratio[np.isin(kernels.how, (_BY_MEMORY, _FEW_ROWS))] = memory
    by_shape = np.ones(len(kernels.shapes))
    before, after = _times(recorded), _times(target)
    for number, shape in enumerate(kernels.shapes):
        try:
            by_shape[number] = _seconds(after, shape) / _seconds(before, shape)
        except WorkloadError:
            # A type of which a peak is not given, such as fp32: as the memory's bandwidths compare.
            by_shape[number] = memory
    is_shaped = kernels.how == _BY_SHAPE
    ratio[is_shaped] = by_shape[kernels.shape[is_shaped]]
    return ratio


def unsure_by(kernels: RecognisedOps, recorded: Accelerator, target: Accelerator) -> Floats:
    """Return the standard deviation of the logarithm of :func:`ratios`, by op; 0 of what is kept.

    That of a shape follows from how it is known on both accelerators, of any other from how well
    times compare as rooflines do (:mod:`traces.generate.kernel_times.times`).
    """
    unsure = np.zeros(len(kernels.how))
    if recorded == target:
        return unsure
    compared = kernel_error(COMPARED).shared
    unsure[kernels.how != _KEPT] = compared
    by_shape = np.full(len(kernels.shapes), compared)
    before, after = _times(recorded), _times(target)
    for number, shape in enumerate(kernels.shapes):
        try:
            origins = {times.time(shape).origin for times in (before, after)}
        except WorkloadError:
            continue
        if "roofline" not in origins:
            by_shape[number] = hypot(
                *(kernel_error(times.time(shape).origin).shared for times in (before, after))
            )
    shaped = kernels.how == _BY_SHAPE
    unsure[shaped] = by_shape[kernels.shape[shaped]]
    return unsure


def _times(chip: Accelerator) -> KernelTimes:
    """Return the times of kernels on an accelerator, with what its generation reaches."""
    return kernel_times(
        chip,
        compute_efficiency=REACHED_PEAK.get(chip.generation, COMPUTE_EFFICIENCY),
        memory_efficiency=REACHED_MEMORY.get(chip.generation, MEMORY_EFFICIENCY),
    )


def _seconds(times: KernelTimes, shape: Shape) -> float:
    """Time of a kernel (s): tables have what it takes to begin in their times, a roofline has not.

    Without it a kernel of few bytes would take a thousand times as long where there are tables.
    """
    return times.time(shape).seconds + (0.0 if times.sources else LAUNCHED)


def _reached_memory(chip: Accelerator) -> float:
    """Return what large transfers reach on an accelerator (B/s)."""
    return chip.memory_bandwidth * REACHED_MEMORY.get(chip.generation, MEMORY_EFFICIENCY)
