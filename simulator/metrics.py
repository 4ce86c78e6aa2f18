"""Numbers people quote: one function, one definition each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.timeline import Timeline
from simulator.workload import What

Intervals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankTime:
    """Where one rank's time went (s).

    ``compute`` is time with a kernel or copy under way, ``exposed_communication`` time a rank
    communicates while it computes nothing, ``exposed_waiting`` time it waits in a call for other
    members while it computes nothing, ``communication`` all time a call of the rank is moving.
    """

    rank: int
    start: float
    end: float
    compute: float
    communication: float
    exposed_communication: float
    exposed_waiting: float


def rank_times(timeline: Timeline) -> list[RankTime]:
    """One row per rank, ascending."""
    return [_rank_time(timeline, rank) for rank in timeline.workload.ranks]


def exposed_communication(timeline: Timeline) -> float:
    """Mean over ranks of the time a rank communicates while it computes nothing (s).

    Communicating is from the last member's arrival to the call's end; waiting for members is not.
    """
    rows = rank_times(timeline)
    return float(np.mean([row.exposed_communication for row in rows])) if rows else 0.0


def _rank_time(timeline: Timeline, rank: int) -> RankTime:
    workload = timeline.workload
    mine = np.flatnonzero(workload.rank == rank)
    what = workload.what[mine]
    busy = mine[(what == What.COMPUTE) | (what == What.COPY)]
    calls = mine[what >= What.COLLECTIVE]
    compute = union(timeline.start[busy], timeline.end[busy])
    begun = timeline.call_start[workload.call[calls]]
    moving = union(begun, timeline.end[calls])
    waiting = union(timeline.start[calls], begun)
    return RankTime(
        rank=rank,
        start=float(timeline.start[mine].min()),
        end=float(timeline.end[mine].max()),
        compute=length(compute),
        communication=length(moving),
        exposed_communication=max(0.0, length(moving) - _common(moving, compute)),
        exposed_waiting=max(0.0, length(waiting) - _common(waiting, compute)),
    )


def union(start: NDArray[np.float64], end: NDArray[np.float64]) -> Intervals:
    """Disjoint intervals that cover the same time, sorted, shape ``(n, 2)``."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if len(order) else end
    if not len(start):
        return np.empty((0, 2))
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([start[first], end[last]], axis=1)


def length(intervals: Intervals) -> float:
    """Time that disjoint intervals cover (s)."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _common(one: Intervals, other: Intervals) -> float:
    """Length of what two unions have in common: lengths add up, less what the union of both has."""
    both = np.concatenate([one, other])
    return length(one) + length(other) - length(union(both[:, 0], both[:, 1]))
