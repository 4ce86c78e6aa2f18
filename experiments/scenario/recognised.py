"""Kernels of a trace without FLOPs: what each computes, by its operator's sizes or by its name.

A kernel whose operator's sizes the profile has (``record_shapes=True``) has a shape, and scales
from one accelerator to another as the tables of measured kernels say
(:mod:`traces.generate.kernel_times`). One that only its name tells of scales as the peaks of the
two compare, if it multiplies matrices, and as their memory bandwidths, if it passes over elements.
Any other lasts as long as it did.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.edits.ops import Mask
from simulator.errors import TraceError, WhatIfError, WorkloadError
from simulator.workload import Floats, What, Workload
from traces.generate.kernel_times import Accelerator, Shape, kernel_times
from traces.generate.kernel_times.learnt import is_elementwise, kind_by_name

_KEPT, _BY_PEAK, _BY_MEMORY, _BY_SHAPE = range(4)
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
        parts = [
            f"{100 * self.duration[self.how == how].sum() / total:.0f} % {words}"
            for how, words in (
                (_BY_SHAPE, "by shape"),
                (_BY_PEAK, "by name as products"),
                (_BY_MEMORY, "by name as passes over memory"),
                (_KEPT, "not recognised and kept"),
            )
        ]
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
    computing = workload.what == What.COMPUTE
    known, why = _shapes_of(trace)
    numbers: dict[Shape, int] = {}
    shape = np.full(len(workload), -1, dtype=np.int64)
    how = np.full(len(workload), _KEPT, dtype=np.int64)
    lasted = np.nan_to_num(workload.measured_end - workload.measured_start)
    by_name = [_by_name(name) for name in workload.names]
    for op in np.flatnonzero(computing).tolist():
        name = int(workload.name[op])
        found = known.get((workload.names[name], round(1e9 * float(lasted[op]))))
        if found is None:
            how[op] = by_name[name]
        else:
            how[op] = _BY_SHAPE
            shape[op] = numbers.setdefault(found, len(numbers))
    duration = np.where(computing, workload.duration, 0.0)
    ops = RecognisedOps(tuple(numbers), shape, how, duration)
    if ops.share < LEAST_KNOWN:
        raise WhatIfError(
            "the trace tells of no op how many FLOPs or bytes it has, and only"
            f" {100 * ops.share:.0f} % of the computing time is of kernels that are recognised;"
            f" the longest that are not: {_longest_kept(workload, ops)}{why}"
        )
    return ops


def _longest_kept(workload: Workload, ops: RecognisedOps) -> str:
    kept = np.where(ops.scaled, 0.0, ops.duration)
    time = np.bincount(workload.name, kept, minlength=len(workload.names))
    names = [workload.names[name] for name in np.argsort(-time)[:3] if time[name] > 0]
    return ", ".join(names)


def _shapes_of(trace: str) -> tuple[dict[tuple[str, int], Shape], str]:
    """Shapes of the kernels of a trace, none where it is no profile of PyTorch, and why."""
    from traces.kernels import kernel_shapes

    try:
        return (kernel_shapes(Path(trace)), "") if trace else ({}, "")
    except TraceError as error:
        return {}, f" ({error})"


def _by_name(name: str) -> int:
    kind = kind_by_name(name)
    if kind in ("matrix products without sizes", "attention without sizes"):
        return _BY_PEAK
    return _BY_MEMORY if is_elementwise(name) else _KEPT


def ratios(kernels: RecognisedOps, own: Accelerator, other: Accelerator) -> Floats:
    """Return by what the duration of each op is multiplied on another accelerator.

    Raises
    ------
    WhatIfError
        If a peak that a shape needs is not known of either.
    """
    ratio = np.ones(len(kernels.how))
    peaks = [chip.peak("bf16") for chip in (own, other)]
    if peaks[0] and peaks[1]:
        ratio[kernels.how == _BY_PEAK] = peaks[0] / peaks[1]
    ratio[kernels.how == _BY_MEMORY] = own.memory_bandwidth / other.memory_bandwidth
    by_shape = np.ones(len(kernels.shapes))
    before, after = kernel_times(own), kernel_times(other)
    for number, shape in enumerate(kernels.shapes):
        try:
            by_shape[number] = after.time(shape).seconds / before.time(shape).seconds
        except WorkloadError:
            # A type of which a peak is not given, such as fp32: as the memory's bandwidths compare.
            by_shape[number] = own.memory_bandwidth / other.memory_bandwidth
    known = kernels.how == _BY_SHAPE
    ratio[known] = by_shape[kernels.shape[known]]
    return ratio
