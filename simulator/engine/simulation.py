"""A simulation under way: what every engine fills in, and an explanation of deadlocks.

Local ops need no clock. Between two communication calls every start is a maximum of known ends, so
an op is released as soon as its last predecessor has a time. Only calls become events of the
simulation, and not even they where their costs are fixed. The loops are compiled, which makes them
50 times as fast as in Python: a million ops take tenths of a second.

In engine ``analytic`` every call has its links to itself, so costs are fixed (:func:`time_alone`).
If no two calls that share a link overlap at these times, they are also the times of an engine with
sharing: up to the first overlap nothing is shared, and there is none (:func:`closed_form`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs
from simulator.costing.link_load import cost
from simulator.support.arrays import Floats, Ints, Longs, Mask, offsets
from simulator.support.compiled import hot_loop
from simulator.support.errors import DeadlockError
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Workload

NOBODY = -1


class Successors(NamedTuple):
    """Edges in CSR form; ``lag`` is the least time from one op's end to the other's start (s)."""

    offset: Longs
    target: Ints
    lag: Floats


class OpColumns(NamedTuple):
    """The call of each op (-1: none) and its own duration (s).

    A call does not wait for ``unawaited`` members: receivers of eager messages.
    """

    call: Ints
    duration: Floats
    unawaited: NDArray[np.bool_]


class OpTimes(NamedTuple):
    """State of the ops.

    ``available`` is the latest end plus lag of the predecessors so far, ``released_by`` the op it
    is from (``NOBODY``: the op's own ``ready``), ``waits`` the number of predecessors without a
    time. ``start`` and ``end`` are NaN until known.
    """

    available: Floats
    released_by: Ints
    waits: Ints
    start: Floats
    end: Floats


class Rendezvous(NamedTuple):
    """State of the calls: ``member[offset[c]:offset[c + 1]]`` are the ops of call ``c``.

    ``missing`` is the number of awaited members that have not arrived, ``last_arrival`` the latest
    arrival so far and ``last_member`` its op. A call starts ``late`` after its last arrival and
    ends ``cost`` later; where that is NaN, the engine ends it. ``start`` and ``end`` are NaN until
    known.
    """

    offset: Longs
    member: Ints
    late: Floats
    cost: Floats
    missing: Ints
    last_arrival: Floats
    last_member: Ints
    start: Floats
    end: Floats


class Columns(NamedTuple):
    """Arguments of the loops over local ops; ``queue`` has room for all ops and members."""

    queue: Ints
    edges: Successors
    work: OpColumns
    ops: OpTimes
    calls: Rendezvous


@dataclass(slots=True, eq=False)
class LocalTimes:
    """The state of ops and calls of a workload, advanced call by call."""

    ops: OpTimes
    calls: Rendezvous
    columns: Columns = field(repr=False)

    @staticmethod
    def of(
        workload: Workload, cost: Floats | None = None, call_end: Floats | None = None
    ) -> "LocalTimes":
        """Start before the first op; costs or ends of calls may be given (s)."""
        ops = OpTimes(
            available=workload.ready.copy(),
            released_by=np.full(len(workload), NOBODY, dtype=np.int32),
            waits=workload.predecessors.copy(),
            start=np.full(len(workload), np.nan),
            end=np.full(len(workload), np.nan),
        )
        count = len(workload.calls)
        joined = np.flatnonzero(workload.call >= 0).astype(np.int32)
        awaited = workload.call[(workload.call >= 0) & ~workload.unawaited]
        calls = Rendezvous(
            offset=offsets(workload.members),
            member=joined[np.argsort(workload.call[joined], kind="stable")],
            late=workload.calls.late,
            cost=np.full(count, np.nan) if cost is None else cost,
            missing=np.bincount(awaited, minlength=len(workload.calls)).astype(np.int32),
            last_arrival=np.full(count, workload.ready.min(initial=0.0)),
            last_member=np.full(count, NOBODY, dtype=np.int32),
            start=np.full(count, np.nan),
            end=np.full(count, np.nan) if call_end is None else call_end.copy(),
        )
        edges = workload.edges
        columns = Columns(
            np.empty(len(workload) + len(calls.member), dtype=np.int32),
            Successors(edges.offset, edges.target, edges.lag),
            OpColumns(workload.call, workload.duration, workload.unawaited),
            ops,
            calls,
        )
        return LocalTimes(ops, calls, columns)

    def begin(self) -> list[int]:
        """Release the ops without predecessors; return the calls that can start."""
        return self._first(release(*self.columns, self.queue_roots()))

    def queue_roots(self) -> int:
        """Queue the ops without predecessors; return their number."""
        roots = np.flatnonzero(self.ops.waits == 0)
        self.columns.queue[: len(roots)] = roots
        return len(roots)

    def finish(self, call: int, time: float) -> list[int]:
        """End a call at a time (s); return the calls that can start."""
        self.calls.end[call] = time
        return self._first(end_call(*self.columns, call))

    def _first(self, count: int) -> list[int]:
        calls: list[int] = self.columns.queue[:count].tolist()
        return calls


@hot_loop
def end_call(
    queue: Ints, edges: Successors, work: OpColumns, ops: OpTimes, calls: Rendezvous, call: int
) -> int:
    """Release the successors of a call that has ended; return as :func:`release` does."""
    return release(queue, edges, work, ops, calls, _queue_members(queue, work, ops, calls, call, 0))


@hot_loop
def release(
    queue: Ints, edges: Successors, work: OpColumns, ops: OpTimes, calls: Rendezvous, queued: int
) -> int:
    """Process the ready queue: ops that can start, and members of calls that have ended.

    Returns the number of calls that can start and whose end is unknown; they are at the front of
    the queue. Of predecessors that allow the same start the one of lowest index counts as the
    cause, so that the order of the queue has no influence.
    """
    # The array holds both: calls that can start in front, ops to process behind. An op leaves the
    # queue before it adds a call, so ``started`` never passes ``head``.
    head = 0
    started = 0
    while head < queued:
        op = queue[head]
        head += 1
        # An op with an end is a member of a call that has ended: only its successors are due.
        if np.isnan(ops.end[op]):
            ops.start[op] = ops.available[op]
            call = work.call[op]
            if call < 0:
                ops.end[op] = ops.start[op] + work.duration[op]
            elif work.unawaited[op]:
                if np.isnan(calls.end[call]):
                    continue
                ops.end[op] = max(ops.start[op], calls.end[call]) + work.duration[op]
            elif not _arrive(ops, calls, op, call):
                continue
            elif np.isnan(calls.end[call]):
                queue[started] = call
                started += 1
                continue
            else:
                queued = _queue_members(queue, work, ops, calls, call, queued)
                continue
        queued = _release_successors(queue, edges, ops, op, queued)
    return started


@hot_loop
def _arrive(ops: OpTimes, calls: Rendezvous, op: int, call: int) -> bool:
    """Count an arrival; the last one starts the call. Return whether it was the last."""
    last, arrival = calls.last_member[call], ops.start[op]
    if (
        last == NOBODY
        or arrival > calls.last_arrival[call]
        or (arrival == calls.last_arrival[call] and op < last)
    ):
        calls.last_arrival[call] = arrival
        calls.last_member[call] = op
    calls.missing[call] -= 1
    if calls.missing[call] > 0:
        return False
    calls.start[call] = calls.last_arrival[call] + calls.late[call]
    if not np.isnan(calls.cost[call]):
        calls.end[call] = calls.start[call] + calls.cost[call]
    return True


@hot_loop
def _queue_members(
    queue: Ints, work: OpColumns, ops: OpTimes, calls: Rendezvous, call: int, queued: int
) -> int:
    """Queue the members of a call that has ended; return the length of the queue.

    A receiver that has not arrived at an eager message yet continues when it does.
    """
    for index in range(calls.offset[call], calls.offset[call + 1]):
        op = calls.member[index]
        if np.isnan(ops.start[op]) or not np.isnan(ops.end[op]):
            continue
        ops.end[op] = max(ops.start[op], calls.end[call]) + work.duration[op]
        queue[queued] = op
        queued += 1
    return queued


@hot_loop
def _release_successors(queue: Ints, edges: Successors, ops: OpTimes, op: int, queued: int) -> int:
    """Release the successors of an op that has ended; return the length of the queue."""
    for edge in range(edges.offset[op], edges.offset[op + 1]):
        follower = edges.target[edge]
        time = ops.end[op] + edges.lag[edge]
        # Of equal times the least index counts, whatever the order of the queue.
        if time > ops.available[follower] or (
            time == ops.available[follower] and not 0 <= ops.released_by[follower] <= op
        ):
            ops.available[follower] = time
            ops.released_by[follower] = op
        ops.waits[follower] -= 1
        if ops.waits[follower] == 0:
            queue[queued] = follower
            queued += 1
    return queued


Progress = Callable[[int, int], None]
"""Called from time to time with the number of calls done and that of all calls."""


@dataclass(slots=True, eq=False)
class Simulation:
    """One run of :func:`simulator.engine.simulate.simulate`.

    An engine fills in the ends of calls in ``local``, the time that each ``spent`` by resource (s),
    and ``link_bytes``, the bytes that passed each link.
    """

    workload: Workload
    topology: Topology
    costs: Costs
    progress: Progress | None
    local: LocalTimes = field(init=False)
    spent: NDArray[np.float64] = field(init=False)
    link_bytes: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.spent = np.zeros((len(self.workload.calls), len(self.topology.resources) + 1))
        self.link_bytes = np.zeros(len(self.topology))

    def timeline(self, engine: str) -> Timeline:
        """Return the timeline of the run.

        Raises
        ------
        DeadlockError
            If ops are pending although no event is left.
        """
        ops, calls = self.local.ops, self.local.calls
        if np.isnan(ops.end).any():
            raise DeadlockError(explain_deadlock(self.workload, self.local))
        return Timeline(
            workload=self.workload,
            topology=self.topology,
            engine=engine,
            start=ops.start,
            end=ops.end,
            released_by=ops.released_by,
            call_start=calls.start,
            call_end=calls.end,
            call_released_by=calls.last_member,
            call_spent=self.spent,
            link_bytes=self.link_bytes,
            plans=self.costs.plans(self.workload),
        )


def explain_deadlock(workload: Workload, local: LocalTimes) -> str:
    """Say in one message which calls wait, who has arrived, who has not, and where those are."""
    pending = np.isnan(local.ops.end)
    at_rendezvous = np.flatnonzero(pending & ~np.isnan(local.ops.start) & (workload.call >= 0))
    waiting = list(dict.fromkeys(workload.call[at_rendezvous].tolist()))
    lines = [_waiting_text(workload, local, call) for call in waiting[:_SHOWN]]
    if len(waiting) > _SHOWN:
        lines.append(f"and {len(waiting) - _SHOWN} more calls")
    now = local.ops.end[~pending].max(initial=0.0)
    return (
        f"nothing can happen after t={now:.6g} s, {int(pending.sum())} ops pending: "
        + "; ".join(lines)
    )


_SHOWN = 6
"""Most waiting calls, and most absent ranks of each, that a message names."""


def _waiting_text(workload: Workload, local: LocalTimes, call: int) -> str:
    ops = np.flatnonzero(workload.call == call)
    arrived = [int(workload.rank[op]) for op in ops if not np.isnan(local.ops.start[op])]
    missing = ops[np.isnan(local.ops.start[ops]) & ~workload.unawaited[ops]]
    absent = [_whereabouts(workload, local, op) for op in missing.tolist()]
    return (
        f"{workload.call_view(call)}: ranks {arrived} wait, not there: {', '.join(absent[:_SHOWN])}"
    )


def _whereabouts(workload: Workload, local: LocalTimes, op: int) -> str:
    """Name a rank, and the call in which it waits instead."""
    rank = int(workload.rank[op])
    stuck = np.flatnonzero(
        (workload.rank == rank) & ~np.isnan(local.ops.start) & np.isnan(local.ops.end)
    )
    if not len(stuck):
        return f"rank {rank}"
    return f"rank {rank} (waits in {workload.call_view(int(workload.call[stuck[0]]))})"


def time_alone(simulation: Simulation) -> None:
    """Compute the times of all ops and calls, time by resource, and the bytes of every link."""
    workload, topology = simulation.workload, simulation.topology
    first, row = workload.distinct_calls
    joined = row >= 0  # calls with members
    factor = np.where(joined, workload.calls.factor, np.nan)
    factors = np.bincount(row[joined], workload.calls.factor[joined], len(first))
    time = np.zeros(len(first))
    spent = np.zeros((len(first) + 1, simulation.spent.shape[1]))  # last row: calls not made
    simulation.link_bytes = np.zeros(len(topology))
    for number, call in enumerate(first):
        loads = simulation.costs.loads(workload.call_view(call))
        time[number] = cost(loads)
        for load in loads:
            spent[number] += load.spent(topology)
            simulation.link_bytes[load.link] += load.weight * (load.amount * factors[number])
    simulation.spent = spent[row] * workload.calls.factor[:, None]
    simulation.local = LocalTimes.of(workload, cost=np.append(time, np.nan)[row] * factor)
    simulation.local.begin()


class _Spans(NamedTuple):
    """For every call: start and end (s), and the index of its distinct call."""

    start: Floats
    end: Floats
    row: Longs


class _Links(NamedTuple):
    """Distinct call ``d`` uses ``link[offset[d]:offset[d + 1]]``."""

    offset: Longs
    link: NDArray[np.int32]


def meeting(timeline: Timeline, costs: Costs) -> Mask:
    """Mark calls that use a link while another does; one that begins as it ends does not.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.engine.simulate import simulate_on
    >>> from simulator.topology import topology
    >>> costs = Costs(topology("alone", 1, []), lambda call, network: None)
    >>> meeting(simulate_on(WorkloadBuilder(job_ranks=1).build(), costs), costs).any()
    np.False_
    """
    return overlaps(timeline.workload, costs, timeline.call_start, timeline.call_end)


def closed_form(simulation: Simulation) -> bool:
    """Time calls alone on their links; return whether no two calls meet, so that this is exact."""
    time_alone(simulation)
    calls = simulation.local.calls
    if overlaps(simulation.workload, simulation.costs, calls.start, calls.end).any():
        return False
    if simulation.progress is not None and len(simulation.workload.calls):
        count = len(simulation.workload.calls)
        simulation.progress(count, count)
    return True


def overlaps(workload: Workload, costs: Costs, start: Floats, end: Floats) -> Mask:
    """Mark calls with these starts and ends (s) that overlap on a link; NaN: call not made."""
    first, row = workload.distinct_calls
    none = np.empty(0, dtype=np.int32)
    loads = [costs.loads(workload.call_view(call)) for call in first]
    used = [np.unique(np.concatenate([none, *(load.link for load in of)])) for of in loads]
    offset, links = offsets(map(len, used)), np.concatenate([none, *used])
    joined = np.flatnonzero(~np.isnan(end) & (row >= 0))
    meets = np.zeros(len(row), dtype=np.bool_)
    _mark_overlaps(
        joined[np.argsort(start[joined], kind="stable")],
        _Spans(start, end, row.astype(np.int64)),
        _Links(offset, links),
        np.full(len(costs.topology), -np.inf),
        np.zeros(len(costs.topology), dtype=np.int64),
        meets,
    )
    return meets


@hot_loop
def _mark_overlaps(
    order: Longs, spans: _Spans, used: _Links, until: Floats, holder: Longs, meets: Mask
) -> None:
    """Mark calls that overlap on a link, in the order of their starts.

    ``until`` is the latest end of a call on each link so far, ``holder`` that call. An earlier call
    other than the holder that a call overlaps has overlapped the holder, and been marked.
    """
    for call in order:
        row = spans.row[call]
        for index in range(used.offset[row], used.offset[row + 1]):
            link = used.link[index]
            if until[link] > spans.start[call] and spans.end[call] > spans.start[call]:
                meets[call] = True
                meets[holder[link]] = True
            if spans.end[call] > until[link]:
                until[link] = spans.end[call]
                holder[link] = call
