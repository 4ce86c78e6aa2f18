"""The order of ops on lanes that run one op at a time, for files with dependencies only.

The order is that of an execution of the whole job: a lane takes the op that became ready first, and
of several the one with the lowest index. An executed order can be executed again, so the added
edges close no cycle in the graph, nor one through the calls that ranks join. The execution is a
compiled pass.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Ints, Longs
from simulator.support.compiled import hot_loop
from simulator.support.heap import Heap, pop, push, room
from simulator.workload import Edges, Workload


class LaneGraph(NamedTuple):
    """Input of the execution: ``lane`` is a lane of a rank, ``takes`` marks ops that occupy theirs.

    ``transfer`` is that of each call, ``awaited`` the number of members it waits for, without
    ``unawaited`` ones. Edges leave an op as in a workload.
    """

    lane: Longs
    takes: NDArray[np.bool_]
    call: Ints
    duration: Floats
    transfer: Floats
    awaited: Ints
    unawaited: NDArray[np.bool_]
    offset: Longs
    target: Ints
    lag: Floats


class State(NamedTuple):
    """State of the execution.

    ``ready`` is the earliest known start of each op, ``missing`` its number of pending
    predecessors. ``events`` has ends and begins of ops, ``waiting`` the ops that are ready for
    their lane: those of lane ``i`` from ``room[i]`` on, ``held[i]`` of them. ``last`` is the last
    op of a lane, ``before`` the op before each on its lane: -1 if none. Ops that have arrived at a
    call form a linked list: ``came[call]``, ``other[op]``; ``over`` is the end of a call, NaN until
    known.
    """

    ready: Floats
    missing: Longs
    events: Heap
    waiting: Heap
    room: Longs
    held: Longs
    free: NDArray[np.bool_]
    last: Ints
    before: Ints
    came: Ints
    other: Ints
    arrived: Ints
    over: Floats


LOOSE = (
    "ranks come to calls on different lanes in orders that do not fit together: from there on "
    "calls may overlap on a lane"
)


def one_at_a_time(workload: Workload, busy: NDArray[np.bool_]) -> Workload:
    """Add edges so that the ops marked ``busy`` follow each other on their lane.

    If ranks arrive at their calls in incompatible orders, so that none can continue, calls occupy
    no lane from there on, as the workload's notes record.
    """
    edges = workload.edges
    graph = LaneGraph(
        # A lane belongs to a rank: rank * lanes + lane numbers each pair once.
        lane=workload.rank.astype(np.int64) * max(1, len(workload.lanes)) + workload.lane,
        takes=busy,
        call=workload.call,
        duration=workload.duration,
        transfer=np.nan_to_num(workload.calls.transfer, nan=0.0),
        awaited=awaited(workload.call, workload.unawaited, len(workload.calls)),
        unawaited=workload.unawaited,
        offset=edges.offset,
        target=edges.target,
        lag=edges.lag,
    )
    before, loose = before_on_lane(graph, workload.ready)
    notes = (*workload.notes, LOOSE) if loose else workload.notes
    return replace(workload, notes=notes, edges=with_lanes(edges, before))


def awaited(call: Ints, unawaited: NDArray[np.bool_], calls: int) -> Ints:
    """Return the number of members that each call waits for."""
    return np.bincount(call[(call >= 0) & ~unawaited], minlength=calls).astype(np.int32)


def before_on_lane(graph: LaneGraph, ready: Floats) -> tuple[NDArray[np.int32], bool]:
    """Return the op before each on its lane, -1 if none; and whether calls left their lanes.

    ``LaneGraph.lane`` may be any numbers; ops on and behind a cycle are left out.
    """
    # Numbers without gaps, so that they index columns of one row per lane.
    lanes, lane = np.unique(graph.lane, return_inverse=True)
    graph = graph._replace(lane=lane)
    state = _state(graph, ready, len(lanes))
    now = execute(graph, state, begin(graph, state))
    # Nothing is left to happen and ops still wait in calls: a deadlock of lanes. Calls give up
    # their lanes, the stuck ones at once, and the simulation goes on from there.
    # Mark the ops that have come to a call to which others have not.
    stuck = np.zeros(len(graph.call), dtype=np.bool_)
    for call in np.flatnonzero((state.came >= 0) & np.isnan(state.over)).tolist():
        op = int(state.came[call])
        while op >= 0:
            stuck[op] = True
            op = int(state.other[op])
    if not stuck.any():
        return state.before, False
    loose = graph._replace(takes=graph.takes & (graph.call < 0))
    execute(loose, state, release(loose, state, stuck & graph.takes, now))
    return state.before, True


def with_lanes(edges: Edges, before: NDArray[np.int32]) -> Edges:
    """Return the edges with those from the previous op on a lane."""
    after = np.flatnonzero(before >= 0)
    return Edges.of(
        len(before),
        np.concatenate([edges.source, before[after]]),
        np.concatenate([edges.target, after]),
        np.concatenate([edges.lag, np.zeros(len(after))]),
    )


def _state(graph: LaneGraph, ready: Floats, lanes: int) -> State:
    ops, calls = len(graph.call), len(graph.awaited)
    # Each lane has a heap of its own in one shared column, with room for all ops of the lane.
    offset = np.zeros(lanes + 1, dtype=np.int64)
    np.cumsum(np.bincount(graph.lane, minlength=lanes), out=offset[1:])
    return State(
        ready=ready.copy(),
        missing=np.bincount(graph.target, minlength=ops),
        events=room(ops),
        waiting=room(ops),
        room=offset,
        held=np.zeros(lanes, dtype=np.int64),
        free=np.ones(lanes, dtype=np.bool_),
        last=np.full(lanes, -1, dtype=np.int32),
        before=np.full(ops, -1, dtype=np.int32),
        came=np.full(calls, -1, dtype=np.int32),
        other=np.full(ops, -1, dtype=np.int32),
        arrived=np.zeros(calls, dtype=np.int32),
        over=np.full(calls, np.nan),
    )


@hot_loop
def begin(graph: LaneGraph, state: State) -> int:
    """Add begin events of ops without predecessors; return the number of events."""
    ops, size = len(graph.call), 0
    for op in range(ops):
        if state.missing[op] == 0:
            # An event is a number: `op` is its end, `ops + op` its begin, so that at equal times
            # ends come first and free their lanes.
            size = push(state.events, size, state.ready[op], ops + op)
    return size


@hot_loop
def execute(graph: LaneGraph, state: State, size: int) -> float:
    """Handle events until none is left; return the time of the last."""
    ops, now = len(graph.call), 0.0
    while size:
        now, event = state.events.key[0], state.events.item[0]
        size = pop(state.events, size)
        op = event % ops
        lane = graph.lane[op]
        if event < ops:
            size = _release_successors(graph, state, size, op, now)
        # An op that takes no lane starts as soon as it is ready.
        if not graph.takes[op]:
            if event >= ops:
                size = _start(graph, state, size, op, now)
            continue
        if event < ops:
            state.before[op] = state.last[lane]
            state.last[lane] = op
            state.free[lane] = True
        else:
            _wait(state, lane, op, now)
        size = _start_waiting(graph, state, size, lane, now)
    return now


@hot_loop
def release(graph: LaneGraph, state: State, stuck: NDArray[np.bool_], now: float) -> int:
    """Free the lanes of ops that are stuck in a call; return the number of events then."""
    size = 0
    for op in range(len(graph.call)):
        # The op keeps its place in the call; only its lane goes on to the next.
        if stuck[op]:
            lane = graph.lane[op]
            state.free[lane] = True
            size = _start_waiting(graph, state, size, lane, now)
    return size


@hot_loop
def _start_waiting(graph: LaneGraph, state: State, size: int, lane: int, now: float) -> int:
    """Start ops that wait for a lane as long as it is free."""
    # Views of the lane's part of the shared columns: pop and push change them in place.
    first, end = state.room[lane], state.room[lane + 1]
    waiting = Heap(state.waiting.key[first:end], state.waiting.item[first:end])
    while state.free[lane] and state.held[lane]:
        op = waiting.item[0]
        state.held[lane] = pop(waiting, state.held[lane])
        # Only after `release` can an op wait here that takes no lane any more.
        state.free[lane] = not graph.takes[op]
        size = _start(graph, state, size, op, now)
    return size


@hot_loop
def _start(graph: LaneGraph, state: State, size: int, op: int, now: float) -> int:
    """Start an op; that of a call ends when the last member has arrived."""
    call = graph.call[op]
    if call < 0:
        return push(state.events, size, now + graph.duration[op], op)
    # The call is over already: a member that nobody waited for (the receiver of an eager message)
    # comes late.
    if not np.isnan(state.over[call]):
        return push(state.events, size, max(now, state.over[call]) + graph.duration[op], op)
    # Members are a linked list through `other`, the last to come first.
    state.other[op] = state.came[call]
    state.came[call] = op
    # The call starts when the last of those that it waits for has come, and ends for all at once.
    state.arrived[call] += not graph.unawaited[op]
    if state.arrived[call] < graph.awaited[call]:
        return size
    end = now + graph.transfer[call]
    state.over[call] = end
    member = op
    while member >= 0:
        size = push(state.events, size, end + graph.duration[member], member)
        member = state.other[member]
    return size


@hot_loop
def _wait(state: State, lane: int, op: int, now: float) -> None:
    first, end = state.room[lane], state.room[lane + 1]
    # First come, first served: the key is when the op became ready.
    waiting = Heap(state.waiting.key[first:end], state.waiting.item[first:end])
    state.held[lane] = push(waiting, state.held[lane], now, op)


@hot_loop
def _release_successors(graph: LaneGraph, state: State, size: int, op: int, now: float) -> int:
    """Release the successors of an op that has ended."""
    ops = len(graph.call)
    for edge in range(graph.offset[op], graph.offset[op + 1]):
        follower = graph.target[edge]
        soonest = now + graph.lag[edge]
        if soonest > state.ready[follower]:
            state.ready[follower] = soonest
        # Not earlier than the latest of all it waits for: `ready` is complete when nothing is
        # missing.
        state.missing[follower] -= 1
        if state.missing[follower] == 0:
            size = push(state.events, size, state.ready[follower], ops + follower)
    return size
