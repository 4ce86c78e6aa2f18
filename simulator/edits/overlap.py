"""Overlap as a what-if: none, full, or one call in flight per rank.

One call in flight per rank is how ASTRA-sim's workload layer issues communication. An idle rank
issues, of its ready collectives and sends, the first in program order (in a Chakra file the one
with the lowest id), and no other until that has ended. Receives are excepted. The resulting order
depends on the durations of calls; it is computed by simulating the rule, and added to the step as
dependencies.
"""

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from simulator.support.arrays import Floats, Longs
from simulator.support.errors import DeadlockError
from simulator.workload import Edges, What, Workload, depths


def without_overlap(workload: Workload) -> Workload:
    """Let every rank compute nothing while it is in a call, from its arrival to the call's end.

    Each call is serialised with the kernels and copies of its rank, after those of smaller depth
    (longest path through the graph; calls first among equals). That is program order if all ranks
    run the same program, it is one order for all ranks, and no edge contradicts it: it cannot cause
    a cycle. Calls without computation between them may still overlap, and the host runs ahead.
    """
    line = _device_order(workload)
    rank, is_call = workload.rank[line], workload.call[line] >= 0
    turns = np.flatnonzero((np.diff(rank) != 0) | np.diff(is_call)) + 1
    begins = np.concatenate([[0], turns])[: len(line)]
    stretch = np.repeat(np.arange(len(begins)), np.diff([*begins, len(line)]))
    # A joint separates a rank's kernels from the calls after them, and calls from later kernels.
    meets = np.diff(rank[begins]) == 0
    joint = len(workload) + np.cumsum(meets) - 1
    leads, follows = (np.concatenate(parts) for parts in ((meets, [False]), ([False], meets)))
    before, after = leads[stretch], follows[stretch]
    source = np.concatenate([line[before], joint[stretch[after] - 1]])
    target = np.concatenate([joint[stretch[before]], line[after]])
    edges = workload.edges
    ordered = Edges.of(
        len(workload) + int(meets.sum()),
        np.concatenate([edges.source, source]),
        np.concatenate([edges.target, target]),
        np.concatenate([edges.lag, np.zeros(len(source))]),
    )
    like = line[begins[1:][meets]]
    return _with_joints(workload, like, np.zeros(len(like)), ordered)


def _device_order(workload: Workload) -> Longs:
    """Return device ops by rank, each rank's in an order consistent with all edges and calls."""
    node = np.arange(len(workload), dtype=np.int64)
    calls = np.flatnonzero(workload.call >= 0)
    # All members of a call are one node: waiting for one means waiting for all. But a receiver
    # that its message does not wait for comes after it.
    first = np.full(len(workload.calls), len(workload), dtype=np.int64)
    met = calls[~workload.unawaited[calls]]
    np.minimum.at(first, workload.call[met], met)
    node[met] = first[workload.call[met]]
    after = np.flatnonzero(workload.unawaited)
    edges = workload.edges
    joined = Edges.of(
        len(workload),
        np.concatenate([node[edges.source], first[workload.call[after]]]),
        np.concatenate([node[edges.target], after]),
        np.concatenate([edges.lag, np.zeros(len(after))]),
    )
    depth = depths(joined.offset, joined.target)
    line = np.lexsort((node, workload.call < 0, depth[node], workload.rank))
    return np.asarray(line[workload.what[line] != What.HOST])


def with_full_overlap(workload: Workload) -> Workload:
    """Let nothing but calls wait for a call: an upper bound on the gain from overlap.

    Data that a call brings are assumed to be there; no program could do better. Calls keep their
    dependencies, and the step ends when the last of them has. Every call's op is replaced by an op
    without a duration that links its predecessors and successors on its rank.
    """
    calls = np.flatnonzero(workload.call >= 0)
    ops = len(workload)
    joint = np.arange(ops)
    joint[calls] = ops + np.arange(len(calls))
    edges = workload.edges
    is_call = workload.call >= 0
    among = is_call[edges.source] & is_call[edges.target]
    free = Edges.of(
        ops + len(calls),
        np.concatenate([joint[edges.source], edges.source[among], joint[calls]]),
        np.concatenate([joint[edges.target], edges.target[among], calls]),
        np.concatenate([np.where(among, 0.0, edges.lag), edges.lag[among], np.zeros(len(calls))]),
    )
    return _with_joints(workload, calls, workload.ready[calls], free)


def _with_joints(workload: Workload, like: Longs, ready: Floats, edges: Edges) -> Workload:
    """Append ops without a duration, with the names and places of the ops ``like``."""
    unknown = dict.fromkeys(("flops", "traffic", "advance"), np.nan)
    return replace(
        workload,
        **workload.columns_with(like, what=What.COPY, duration=0.0, ready=ready, **unknown),
        call=np.append(workload.call, np.full(len(like), -1, dtype=np.int32)),
        edges=edges,
    )


def one_call_per_rank(workload: Workload, call_time: Floats) -> Workload:
    """Let every rank have one call in flight: the calls that it issues become a chain.

    Parameters
    ----------
    workload
        The step; its ops are in program order.
    call_time
        Transfer time of each call (s), shape ``(calls,)``: it determines which is ready first.

    Raises
    ------
    DeadlockError
        If ranks then wait for each other in different calls.
    """
    line = _Ranks(workload, call_time).issue()
    follows = workload.rank[line[1:]] == workload.rank[line[:-1]]
    edges = workload.edges
    ordered = Edges.of(
        len(workload),
        np.concatenate([edges.source, line[:-1][follows]]),
        np.concatenate([edges.target, line[1:][follows]]),
        np.concatenate([edges.lag, np.zeros(int(follows.sum()))]),
    )
    return replace(workload, edges=ordered)


_ENDS, _READY, _ISSUES = range(3)
"""Order of events at one instant: an op ends, an op is ready, a rank issues a call."""

_SHOWN = 4
"""Most deadlocked calls to name in a message."""


class _Ranks:
    """Simulates the ranks with the given durations of calls; used once.

    ``_waits`` counts the predecessors of each op that have not ended, ``_available`` is the latest
    end of the others (s). ``_ready`` holds, by rank, what it may issue, ``_under_way`` what it has
    issued. ``_missing`` counts the members of a call that have not arrived, ``_present`` are those
    that have.
    """

    def __init__(self, workload: Workload, call_time: Floats) -> None:
        calls = len(workload.calls)
        self._workload = workload
        self._call_time: list[float] = (workload.calls.late + call_time).tolist()
        self._duration: list[float] = workload.duration.tolist()
        self._call: list[int] = workload.call.tolist()
        self._rank: list[int] = workload.rank.tolist()
        self._awaited: list[bool] = (~workload.unawaited).tolist()
        self._issued_by_rank: list[bool] = (
            (workload.call >= 0) & (workload.what != What.RECEIVE)
        ).tolist()
        self._waits: list[int] = workload.predecessors.tolist()
        self._available: list[float] = workload.ready.tolist()
        joined = workload.call[(workload.call >= 0) & ~workload.unawaited]
        self._missing: list[int] = np.bincount(joined, minlength=calls).tolist()
        self._present: list[list[int]] = [[] for _ in range(calls)]
        self._end: list[float | None] = [None] * calls
        self._ready: dict[int, list[int]] = {rank: [] for rank in workload.ranks}
        self._under_way: dict[int, int | None] = dict.fromkeys(workload.ranks)
        self._issued: list[int] = []
        self._events: list[tuple[float, int, int]] = []

    def issue(self) -> Longs:
        """Return the ops that ranks issue, each rank's in order, rank by rank."""
        happens = {_ENDS: self._ends, _READY: self._is_ready, _ISSUES: self._issues}
        for op in np.flatnonzero(self._workload.predecessors == 0).tolist():
            heappush(self._events, (self._available[op], _READY, op))
        while self._events:
            time, what, number = heappop(self._events)
            happens[what](number, time)
        if len(self._issued) < sum(self._issued_by_rank):
            raise DeadlockError(self._describe_deadlock())
        issued = np.array(self._issued, dtype=np.int64)
        return issued[np.argsort(self._workload.rank[issued], kind="stable")]

    def _is_ready(self, op: int, time: float) -> None:
        rank = self._rank[op]
        if self._issued_by_rank[op]:
            heappush(self._ready[rank], op)
            heappush(self._events, (time, _ISSUES, rank))
        elif self._call[op] >= 0:
            self._arrives(op, time)
        else:
            heappush(self._events, (time + self._duration[op], _ENDS, op))

    def _issues(self, rank: int, time: float) -> None:
        """Issue the first ready call in program order, if the rank is idle."""
        if self._under_way[rank] is None and self._ready[rank]:
            self._under_way[rank] = op = heappop(self._ready[rank])
            self._issued.append(op)
            self._arrives(op, time)

    def _arrives(self, op: int, time: float) -> None:
        """Join a call; when its last awaited member joins, it begins and its end is known."""
        call = self._call[op]
        end = self._end[call]
        if end is not None:
            heappush(self._events, (max(time, end) + self._duration[op], _ENDS, op))
            return
        self._present[call].append(op)
        self._missing[call] -= self._awaited[op]
        if self._missing[call] == 0:
            self._end[call] = end = time + self._call_time[call]
            for member in self._present[call]:
                heappush(self._events, (end + self._duration[member], _ENDS, member))

    def _ends(self, op: int, time: float) -> None:
        rank, edges = self._rank[op], self._workload.edges
        if self._under_way[rank] == op:
            self._under_way[rank] = None
            heappush(self._events, (time, _ISSUES, rank))
        for edge in range(edges.offset[op], edges.offset[op + 1]):
            follower = int(edges.target[edge])
            start = max(self._available[follower], time + float(edges.lag[edge]))
            self._available[follower] = start
            self._waits[follower] -= 1
            if not self._waits[follower]:
                heappush(self._events, (start, _READY, follower))

    def _describe_deadlock(self) -> str:
        """Name ranks, the call that each has issued, and the ranks that have not arrived."""
        waiting = [(rank, op) for rank, op in self._under_way.items() if op is not None]
        waits = []
        for rank, op in waiting[:_SHOWN]:
            call = self._workload.call_view(self._call[op])
            present = {self._rank[member] for member in self._present[self._call[op]]}
            absent = sorted(set(call.group.ranks) - present)
            waits.append(f"rank {rank} in {call}, in which ranks {absent[:_SHOWN]} are not")
        more = f"; and {len(waiting) - _SHOWN} more" if len(waiting) > _SHOWN else ""
        return f"with one call per rank the ranks wait for each other: {'; '.join(waits)}{more}"
