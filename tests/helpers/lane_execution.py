"""The execution that orders lanes, once more and plainly, to compare the compiled one with."""

from heapq import heappop, heappush
from itertools import pairwise

import numpy as np


class _Lane:
    def __init__(self):
        self.free = True
        self.waiting, self.done = [], []


class Execution:
    """One greedy execution; a lane takes what became ready first, then what stands first."""

    def __init__(self, workload, busy):
        self.workload, self.busy, self.loose, self.now = workload, busy, False, 0.0
        self.lanes, self.arrived, self.over, self.events = {}, {}, {}, []
        self.missing = workload.predecessors.tolist()
        self.ready = workload.ready.tolist()
        for op, missing in enumerate(self.missing):
            if missing == 0:
                heappush(self.events, (self.ready[op], "starts", op))
        self._go_on()
        stuck = [op for members in self.arrived.values() for op in members]
        self.loose = bool(stuck)
        for op in stuck:
            if busy[op]:
                self._lane(op).free = True
                self._serve(self.now, self._lane(op))
        self._go_on()

    def links(self):
        """Pairs of ops of which one follows the other on a lane."""
        return {pair for lane in self.lanes.values() for pair in pairwise(lane.done)}

    def _lane(self, op):
        key = int(self.workload.rank[op]), int(self.workload.lane[op])
        return self.lanes.setdefault(key, _Lane())

    def _go_on(self):
        while self.events:
            self.now, what, op = heappop(self.events)
            if what == "ends":
                self._end(self.now, op)
            elif self._takes_lane(op):
                heappush(self._lane(op).waiting, (self.now, op))
                self._serve(self.now, self._lane(op))
            else:
                self._start(self.now, op)

    def _takes_lane(self, op):
        return self.busy[op] and not (self.loose and self.workload.call[op] >= 0)

    def _serve(self, time, lane):
        while lane.free and lane.waiting:
            _, op = heappop(lane.waiting)
            lane.free = not self._takes_lane(op)
            self._start(time, op)

    def _start(self, time, op):
        call = int(self.workload.call[op])
        if call < 0:
            heappush(self.events, (time + float(self.workload.duration[op]), "ends", op))
            return
        if call in self.over:
            self._leave(max(time, self.over[call]), [op])
            return
        members = self.arrived.setdefault(call, [])
        members.append(op)
        awaited = (self.workload.call == call) & ~self.workload.unawaited
        if set(np.flatnonzero(awaited)) <= set(members):
            del self.arrived[call]
            self.over[call] = time + float(np.nan_to_num(self.workload.calls.transfer[call]))
            self._leave(self.over[call], members)

    def _leave(self, time, members):
        for member in members:
            end = time + float(self.workload.duration[member])
            heappush(self.events, (end, "ends", member))

    def _end(self, time, op):
        if self._takes_lane(op):
            lane = self._lane(op)
            lane.done.append(op)
            lane.free = True
            self._serve(time, lane)
        edges = self.workload.edges
        for edge in range(edges.offset[op], edges.offset[op + 1]):
            follower = edges.target[edge]
            self.ready[follower] = max(self.ready[follower], time + float(edges.lag[edge]))
            self.missing[follower] -= 1
            if self.missing[follower] == 0:
                heappush(self.events, (self.ready[follower], "starts", int(follower)))
