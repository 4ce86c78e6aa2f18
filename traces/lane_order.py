"""Lanes that run one op at a time, where a file tells dependencies but not the order on a lane.

The order is that of an execution of the whole job: a lane takes what became ready first, and of
those the op that stands first. Whatever was executed can be executed again, so these edges put no
circle into the graph, nor one through the calls that ranks join.
"""

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.workload import Edges, Workload


def one_at_a_time(workload: Workload, busy: NDArray[np.bool_]) -> Workload:
    """Add edges so that the ops marked ``busy`` follow each other on the lane they are on.

    Where ranks have come to their calls in orders that do not fit together, so that nobody can go
    on, calls take no lane from there on, which the workload's notes tell.
    """
    run = _Run(workload, busy)
    run.execute()
    source, target = run.links()
    notes = (*workload.notes, _LOOSE) if run.loose else workload.notes
    edges = workload.edges
    return replace(
        workload,
        notes=notes,
        edges=Edges.of(
            len(workload),
            np.concatenate([edges.source, source]),
            np.concatenate([edges.target, target]),
            np.concatenate([edges.lag, np.zeros(len(source))]),
        ),
    )


_LOOSE = (
    "ranks come to calls on different lanes in orders that do not fit together: from there on "
    "calls may overlap on a lane"
)


@dataclass(slots=True)
class _Lane:
    """What waits for a lane, as ``(ready, op)``, and the ops that have run on it."""

    free: bool = True
    waiting: list[tuple[float, int]] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


class _Run:
    """One greedy execution: made, run and thrown away."""

    def __init__(self, workload: Workload, busy: NDArray[np.bool_]):
        self._busy = busy.tolist()
        keys = workload.rank.astype(np.int64) * max(1, len(workload.lanes)) + workload.lane
        self._lane_of = keys.tolist()
        self._lanes: dict[int, _Lane] = {key: _Lane() for key in np.unique(keys).tolist()}
        self._call = workload.call.tolist()
        self._duration = workload.duration.tolist()
        self._transfer = np.nan_to_num(workload.calls.transfer, nan=0.0).tolist()
        self._members = workload.members.tolist()
        self._arrived: dict[int, list[int]] = {}
        self._missing = workload.predecessors.tolist()
        self._offset = workload.edges.offset.tolist()
        self._target = workload.edges.target.tolist()
        self._lag = workload.edges.lag.tolist()
        self._ready = workload.ready.tolist()
        self._events: list[tuple[float, int, int]] = []
        self._now = 0.0
        self.loose = False

    def execute(self) -> None:
        for op, missing in enumerate(self._missing):
            if missing == 0:
                self._at(self._ready[op], 1, op)
        self._go_on()
        stuck = [op for members in self._arrived.values() for op in members]
        if stuck:
            self.loose = True
            for op in stuck:
                self._release(self._now, op)
            self._go_on()

    def _go_on(self) -> None:
        events, end, begin = self._events, self._end, self._begin
        while events:
            self._now, is_begin, op = heappop(events)
            if is_begin:
                begin(self._now, op)
            else:
                end(self._now, op)

    def links(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each op that ran on a lane and the one that ran there next."""
        pairs = [
            (one, other) for lane in self._lanes.values() for one, other in pairwise(lane.done)
        ]
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def _at(self, time: float, what: int, op: int) -> None:
        heappush(self._events, (time, what, op))

    def _begin(self, time: float, op: int) -> None:
        """Let an op take its lane, or wait for it: nothing else holds it up."""
        if not self._takes_lane(op):
            self._start(time, op)
            return
        lane = self._lanes[self._lane_of[op]]
        if lane.free and not lane.waiting:
            lane.free = False
            self._start(time, op)
            return
        heappush(lane.waiting, (time, op))
        self._serve(time, lane)

    def _serve(self, time: float, lane: _Lane) -> None:
        while lane.free and lane.waiting:
            _, op = heappop(lane.waiting)
            lane.free = not self._takes_lane(op)
            self._start(time, op)

    def _takes_lane(self, op: int) -> bool:
        return self._busy[op] and not (self.loose and self._call[op] >= 0)

    def _release(self, time: float, op: int) -> None:
        if self._busy[op]:
            lane = self._lanes[self._lane_of[op]]
            lane.free = True
            self._serve(time, lane)

    def _start(self, time: float, op: int) -> None:
        call = self._call[op]
        if call < 0:
            self._at(time + self._duration[op], 0, op)
            return
        members = self._arrived.setdefault(call, [])
        members.append(op)
        if len(members) == self._members[call]:
            del self._arrived[call]
            for member in members:
                self._at(time + self._transfer[call] + self._duration[member], 0, member)

    def _end(self, time: float, op: int) -> None:
        if self._takes_lane(op):
            lane = self._lanes[self._lane_of[op]]
            lane.done.append(op)
            lane.free = True
            if lane.waiting:
                self._serve(time, lane)
        ready, missing, events = self._ready, self._missing, self._events
        for edge in range(self._offset[op], self._offset[op + 1]):
            follower = self._target[edge]
            soonest = time + self._lag[edge]
            if soonest > ready[follower]:
                ready[follower] = soonest
            missing[follower] -= 1
            if missing[follower] == 0:
                heappush(events, (ready[follower], 1, follower))
