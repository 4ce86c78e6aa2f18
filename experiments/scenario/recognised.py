"""Kernels of a trace without FLOPs, recognised by their operators' sizes or by their names.

A kernel whose operator's sizes are in the profile (``record_shapes=True``) has a shape, and scales
between accelerators as the tables of measured kernels say (:mod:`traces.generate.kernel_times`). A
kernel recognised by its name only scales with the achieved memory bandwidth if it is element-wise
or has few rows, as in decoding, and with the peak if it multiplies matrices of many rows. Any other
kernel keeps its duration.
"""

from contextlib import suppress
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

_HOWS = 5
_KEPT, _BY_PEAK, _BY_MEMORY, _BY_SHAPE, _FEW_ROWS = range(_HOWS)
LEAST_KNOWN = 0.5
"""Least recognised share of the compute time; with less, most of the answer would be kept
durations."""


@dataclass(frozen=True, slots=True, eq=False)
class RecognisedOps:
    """How the ops of a workload were recognised.

    Parameters
    ----------
    shapes
        Distinct shapes.
    shape
        Index of each op into ``shapes``, -1 if unknown.
    how
        How each op scales: kept, peak, memory bandwidth or shape.
    duration
        Duration of each op that computes (s); 0 for others.
    """

    shapes: tuple[Shape, ...]
    shape: NDArray[np.int64]
    how: NDArray[np.int64]
    duration: Floats

    @property
    def scaled(self) -> Mask:
        """Mask of ops that another accelerator changes."""
        return np.asarray(self.how != _KEPT)

    @property
    def share(self) -> float:
        """Recognised share of the compute time; 0 if there is none."""
        total = self.duration.sum()
        return float(self.duration[self.scaled].sum() / total) if total > 0 else 0.0

    def described(self) -> str:
        """Describe how much of the compute time is recognised, and how."""
        total = self.duration.sum()
        shares = [
            (self.duration[self.how == how].sum() / total, words)
            for how, words in (
                (_BY_SHAPE, "by shape"),
                (_BY_PEAK, "by name as matrix products"),
                (_FEW_ROWS, "by name as matrix products of few rows"),
                (_BY_MEMORY, "by name as limited by memory"),
                (_KEPT, "not recognised and unchanged"),
            )
        ]
        parts = [f"{100 * share:.0f} % {words}" for share, words in shares if share]
        return f"kernel time scaled: {', '.join(parts)}"


def recognise(workload: Workload, trace: str) -> RecognisedOps:
    """Recognise the kernels of a workload.

    Parameters
    ----------
    workload
        As recorded; an op is identified by its name and measured duration.
    trace
        The trace of the recording.

    Raises
    ------
    WhatIfError
        If less than half of the compute time is recognised, by shape or by name.
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
    """Return the shapes of a trace's kernels; none, and the reason, if it is no PyTorch profile."""
    from traces.load import kernel_shapes

    try:
        return (kernel_shapes(Path(trace)), "") if trace else ({}, "")
    except TraceError as error:
        return {}, f" ({error})"


def _by_names(workload: Workload, computing: Mask) -> list[int]:
    """Return how kernels of each name scale.

    Products and attention whose names do not tell whether they have few rows count as most of those
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


def compared(kernels: RecognisedOps, recorded: Accelerator, target: Accelerator) -> Floats:
    """Factor on each op's duration on another accelerator, and its error (log), shape ``(ops, 2)``.

    The error of a shape follows from the sources of its times on both accelerators, that of others
    from how well times compare as rooflines do (:mod:`traces.generate.kernel_times.times`); what is
    kept has none, and the same accelerator has none.
    """
    error = kernel_error(COMPARED).shared
    peaks = [
        (chip.peak("bf16") or 0.0) * REACHED_PEAK.get(chip.generation, COMPUTE_EFFICIENCY)
        for chip in (recorded, target)
    ]
    memory = _reached_memory(recorded) / _reached_memory(target)
    by = dict.fromkeys((_BY_MEMORY, _FEW_ROWS), (memory, error))
    by[_BY_PEAK] = peaks[0] / peaks[1] if all(peaks) else 1.0, error
    scaled = np.array([by.get(how, (1.0, 0.0)) for how in range(_HOWS)])[kernels.how]
    # A type of which a peak is not given, such as fp32, compares as the memory's bandwidths do.
    by_shape = np.full((len(kernels.shapes), 2), (memory, error))
    before, after = _times(recorded), _times(target)
    for number, shape in enumerate(kernels.shapes):
        with suppress(WorkloadError):
            by_shape[number, 0] = _seconds(after, shape) / _seconds(before, shape)
            origins = [times.time(shape).origin for times in (before, after)]
            if "roofline" not in origins:
                by_shape[number, 1] = hypot(*(kernel_error(origin).shared for origin in origins))
    is_shaped = kernels.how == _BY_SHAPE
    scaled[is_shaped] = by_shape[kernels.shape[is_shaped]]
    if recorded == target:
        scaled[:, 1] = 0.0
    return scaled


def _times(chip: Accelerator) -> KernelTimes:
    """Return kernel times on an accelerator, with the efficiency of its generation."""
    return kernel_times(
        chip,
        compute_efficiency=REACHED_PEAK.get(chip.generation, COMPUTE_EFFICIENCY),
        memory_efficiency=REACHED_MEMORY.get(chip.generation, MEMORY_EFFICIENCY),
    )


def _seconds(times: KernelTimes, shape: Shape) -> float:
    """Time of a kernel (s); a roofline gets a start-up time, which tables include.

    Without it a kernel of few bytes would take a thousand times as long where there are tables.
    """
    return times.time(shape).seconds + (0.0 if times.sources else LAUNCHED)


def _reached_memory(chip: Accelerator) -> float:
    """Return the achieved memory bandwidth of large transfers (B/s)."""
    return chip.memory_bandwidth * REACHED_MEMORY.get(chip.generation, MEMORY_EFFICIENCY)
