"""Kernels slow down beside communication.

A collective takes memory bandwidth and multiprocessors from concurrent kernels. A kernel's
duration is assumed to grow linearly with the fraction of it during which a call of its rank
transfers (from the last member's arrival on)::

    duration = alone * (1 + slope * fraction beside)

The duration of a kernel then depends on when it runs, and that on the durations of kernels:
simulations are iterated to a fixed point.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.metrics import Intervals, cover, union
from simulator.support.arrays import Floats, Longs, Mask
from simulator.timeline import RunTimes, Timeline, recorded_times
from simulator.workload import STEP_BEFORE, What, Workload

_ROUNDS = 30
"""Most simulations."""
_PLAIN = 5
"""Iterations before damping: later ones take half a step, or kernels that swap places oscillate."""
_SETTLED = 1e-5
"""Converged if the total change of durations is below this fraction of their sum."""


def kernels(workload: Workload) -> Mask:
    """Mark the ops that can slow down: kernels of the step, and parts of kernels."""
    return np.asarray((workload.what == What.COMPUTE) & ~workload.is_named(STEP_BEFORE))


def overlapped(workload: Workload, times: RunTimes, *, collectives_only: bool = False) -> Floats:
    """Return the fraction of each kernel beside a transfer of its rank's calls; 0 for others."""
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
    """Return the intervals in which a call of a rank transfers."""
    calls = workload.call[workload.ops_of(rank)]
    return _moving(times, calls[calls >= 0])


def _moving(times: RunTimes, calls: NDArray[np.integer[Any]]) -> Intervals:
    calls = calls[times.call_end[calls] > times.call_start[calls]]
    return union(times.call_start[calls], times.call_end[calls])


def covered(intervals: Intervals, start: Floats, end: Floats) -> Floats:
    """Return the fraction of each span that intervals cover."""
    return np.asarray(np.clip(cover(intervals, start, end) / (end - start), 0.0, 1.0))


def kernels_alone(workload: Workload, slope: float) -> Workload:
    """Return a recorded workload whose kernels have the durations they would have alone.

    Unrecorded kernels are assumed to have run alone.
    """
    slower = 1 + slope * overlapped(workload, recorded_times(workload))
    return workload.lasting(workload.duration / slower)


def settled(run: Callable[[Workload], Timeline], workload: Workload, slope: float) -> Timeline:
    """Simulate a workload of kernels alone, slowed down by the calls they run beside."""
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
