"""Kernels slow down beside communication.

A collective takes memory bandwidth and multiprocessors from the kernels beside it. A kernel's
duration is taken to grow linearly with the part of it that lies beside a call of its rank that
moves (from the last member's arrival on)::

    duration = alone * (1 + slope * fraction beside)

How long a kernel takes then depends on when it runs, and that on how long kernels take: the two are
simulated in turn until they agree.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.metrics import Intervals, cover, union
from simulator.support.arrays import Floats, Longs, Mask
from simulator.timeline import Measured, RunTimes, Timeline
from simulator.workload import STEP_BEFORE, What, Workload

_ROUNDS = 30
"""Simulations at most."""
_PLAIN = 5
"""After so many, each goes half the way only: kernels that swap places do not settle otherwise."""
_SETTLED = 1e-5
"""Durations have settled when together they change by less than this share of them."""


def recorded(workload: Workload) -> RunTimes:
    """Take the times of the recording: a call moves for its transfer, until its first end.

    NaN where that is not known.
    """
    joined = np.flatnonzero(workload.call >= 0)
    end = np.full(len(workload.calls), np.inf)
    np.fmin.at(end, workload.call[joined], workload.measured_end[joined])
    end[np.isinf(end)] = np.nan
    start = end - workload.calls.transfer
    return Measured(workload, workload.measured_start, workload.measured_end, start, end)


def kernels(workload: Workload) -> Mask:
    """Which ops can slow down: kernels of the step, parts of kernels like their whole."""
    before = np.array([name == STEP_BEFORE for name in workload.names], dtype=bool)
    earlier = before[workload.name] if len(before) else np.zeros(len(workload), dtype=bool)
    return np.asarray((workload.what == What.COMPUTE) & ~earlier)


def overlapped(workload: Workload, times: RunTimes, *, collectives_only: bool = False) -> Floats:
    """Fraction of each kernel that lies beside a call of its rank that moves; 0 for other ops."""
    fraction = np.zeros(len(workload))
    called = workload.call >= 0
    if collectives_only:
        called &= workload.what == What.COLLECTIVE
    measured = kernels(workload) & (times.end > times.start)
    ops, calls = (_by_rank(workload, np.flatnonzero(marked)) for marked in (measured, called))
    for rank, busy in ops.items():
        intervals = _moving(times, workload.call[calls.get(rank, np.empty(0, dtype=np.int64))])
        fraction[busy] = covered(intervals, times.start[busy], times.end[busy])
    return fraction


def _by_rank(workload: Workload, ops: Longs) -> dict[int, Longs]:
    """Return ops by their rank, each rank's in order."""
    ordered = ops[np.argsort(workload.rank[ops], kind="stable")]
    ranks, first = np.unique(workload.rank[ordered], return_index=True)
    return dict(zip(ranks.tolist(), np.split(ordered, first[1:]), strict=False))


def moving(workload: Workload, times: RunTimes, rank: int) -> Intervals:
    """When a call of a rank moves."""
    return _moving(times, workload.call[(workload.call >= 0) & (workload.rank == rank)])


def _moving(times: RunTimes, calls: NDArray[np.integer[Any]]) -> Intervals:
    calls = calls[times.call_end[calls] > times.call_start[calls]]
    return union(times.call_start[calls], times.call_end[calls])


def covered(intervals: Intervals, start: Floats, end: Floats) -> Floats:
    """Fraction of each span that intervals cover."""
    return np.asarray(np.clip(cover(intervals, start, end) / (end - start), 0.0, 1.0))


def kernels_alone(workload: Workload, slope: float) -> Workload:
    """Return a recorded workload whose kernels last as long as they would have alone.

    What was not recorded is taken to have run alone.
    """
    slower = 1 + slope * overlapped(workload, recorded(workload))
    return workload.lasting(workload.duration / slower)


def settled(run: Callable[[Workload], Timeline], workload: Workload, slope: float) -> Timeline:
    """Simulate a workload of kernels alone, slowed down by what they turn out to run beside."""
    timeline = run(workload)
    duration = workload.duration
    for number in range(_ROUNDS):
        slower = 1 + slope * overlapped(workload, timeline)
        wanted = workload.duration * slower
        change = float(np.abs(wanted - duration).sum())
        if change <= _SETTLED * float(wanted.sum()):
            break
        duration = wanted if number < _PLAIN else (wanted + duration) / 2
        timeline = run(workload.lasting(duration))
    return timeline
