"""Lanes that run one op at a time, where a file tells dependencies but not the order on a lane.

The order is that of an execution of the whole job: a lane takes what became ready first, and of
those the op that stands first. Whatever was executed can be executed again, so these edges close no
cycle in the graph, nor one through the calls that ranks join. The execution is a compiled pass.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.heap import Heap, pop, push, room
from simulator.hot import hot_loop
from simulator.workload import Edges, Floats, Ints, Offsets, Workload


class Given(NamedTuple):
    """What is executed: ``lane`` is a lane of a rank, ``takes`` says which ops take theirs.

    ``transfer`` is that of each call, ``awaited`` how many members it waits for; not for those that
    are ``unawaited``. Edges leave an op as in a workload.
    """

    lane: Offsets
    takes: NDArray[np.bool_]
    call: Ints
    duration: Floats
    transfer: Floats
    awaited: Ints
    unawaited: NDArray[np.bool_]
    offset: Offsets
    target: Ints
    lag: Floats


class State(NamedTuple):
    """How far it is.

    ``ready`` is when each op may start as far as is known, ``missing`` how many it waits for.
    ``events`` has ends and begins of ops, ``waiting`` the ops that are ready for their lane: those
    of lane ``i`` from ``room[i]`` on, ``held[i]`` many. ``last`` op of a lane, ``before`` each op
    on its lane: -1 where none. Ops that have come to a call are a list: ``came[call]``,
    ``other[op]``; ``over`` is when it has ended, NaN until it has.
    """

    ready: Floats
    missing: Offsets
    events: Heap
    waiting: Heap
    room: Offsets
    held: Offsets
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
    """Add edges so that the ops marked ``busy`` follow each other on the lane they are on.

    Where ranks have come to their calls in orders that do not fit together, so that nobody can go
    on, calls take no lane from there on, which the workload's notes tell.
    """
    edges = workload.edges
    given = Given(
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
    before, loose = before_on_lane(given, workload.ready)
    notes = (*workload.notes, LOOSE) if loose else workload.notes
    return replace(workload, notes=notes, edges=with_lanes(edges, before))


def awaited(call: Ints, unawaited: NDArray[np.bool_], calls: int) -> Ints:
    """Count the members that each call waits for."""
    return np.bincount(call[(call >= 0) & ~unawaited], minlength=calls).astype(np.int32)


def before_on_lane(given: Given, ready: Floats) -> tuple[NDArray[np.int32], bool]:
    """Find the op that runs before each on its lane, -1 if none does; and whether calls came loose.

    ``given.lane`` may be any numbers; edges with a cycle leave out what is on and behind it.
    """
    lanes, lane = np.unique(given.lane, return_inverse=True)
    given = given._replace(lane=lane)
    state = _state(given, ready, len(lanes))
    now = execute(given, state, begin(given, state))
    stuck = _stuck(given, state)
    if not stuck.any():
        return state.before, False
    loose = given._replace(takes=given.takes & (given.call < 0))
    execute(loose, state, release(loose, state, stuck & given.takes, now))
    return state.before, True


def with_lanes(edges: Edges, before: NDArray[np.int32]) -> Edges:
    """Return the edges and those from the op before on a lane."""
    after = np.flatnonzero(before >= 0)
    return Edges.of(
        len(before),
        np.concatenate([edges.source, before[after]]),
        np.concatenate([edges.target, after]),
        np.concatenate([edges.lag, np.zeros(len(after))]),
    )


def _state(given: Given, ready: Floats, lanes: int) -> State:
    ops, calls = len(given.call), len(given.awaited)
    offset = np.zeros(lanes + 1, dtype=np.int64)
    np.cumsum(np.bincount(given.lane, minlength=lanes), out=offset[1:])
    return State(
        ready=ready.copy(),
        missing=np.bincount(given.target, minlength=ops),
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


def _stuck(given: Given, state: State) -> NDArray[np.bool_]:
    """Mark the ops that have come to a call to which others have not."""
    stuck = np.zeros(len(given.call), dtype=np.bool_)
    for call in np.flatnonzero((state.came >= 0) & np.isnan(state.over)).tolist():
        op = int(state.came[call])
        while op >= 0:
            stuck[op] = True
            op = int(state.other[op])
    return stuck


@hot_loop
def begin(given: Given, state: State) -> int:
    """Put the begins of what waits for nothing among the events; return how many there are."""
    ops, size = len(given.call), 0
    for op in range(ops):
        if state.missing[op] == 0:
            size = push(state.events, size, state.ready[op], ops + op)
    return size


@hot_loop
def execute(given: Given, state: State, size: int) -> float:
    """Carry out events until none is left; return when the last was."""
    ops, now = len(given.call), 0.0
    while size:
        now, event = state.events.key[0], state.events.item[0]
        size = pop(state.events, size)
        op = event % ops
        lane = given.lane[op]
        if event < ops:
            size = _follow(given, state, size, op, now)
        if not given.takes[op]:
            if event >= ops:
                size = _start(given, state, size, op, now)
            continue
        if event < ops:
            state.before[op] = state.last[lane]
            state.last[lane] = op
            state.free[lane] = True
        else:
            _wait(state, lane, op, now)
        size = _serve(given, state, size, lane, now)
    return now


@hot_loop
def release(given: Given, state: State, stuck: NDArray[np.bool_], now: float) -> int:
    """Free the lanes of ops that are stuck in a call; return how many events there are then."""
    size = 0
    for op in range(len(given.call)):
        if stuck[op]:
            lane = given.lane[op]
            state.free[lane] = True
            size = _serve(given, state, size, lane, now)
    return size


@hot_loop
def _serve(given: Given, state: State, size: int, lane: int, now: float) -> int:
    """Start what waits for a lane as long as that is free."""
    first, end = state.room[lane], state.room[lane + 1]
    waiting = Heap(state.waiting.key[first:end], state.waiting.item[first:end])
    while state.free[lane] and state.held[lane]:
        op = waiting.item[0]
        state.held[lane] = pop(waiting, state.held[lane])
        state.free[lane] = not given.takes[op]
        size = _start(given, state, size, op, now)
    return size


@hot_loop
def _start(given: Given, state: State, size: int, op: int, now: float) -> int:
    """Start an op: one of a call ends when the last member has come."""
    call = given.call[op]
    if call < 0:
        return push(state.events, size, now + given.duration[op], op)
    if not np.isnan(state.over[call]):
        return push(state.events, size, max(now, state.over[call]) + given.duration[op], op)
    state.other[op] = state.came[call]
    state.came[call] = op
    state.arrived[call] += not given.unawaited[op]
    if state.arrived[call] < given.awaited[call]:
        return size
    end = now + given.transfer[call]
    state.over[call] = end
    member = op
    while member >= 0:
        size = push(state.events, size, end + given.duration[member], member)
        member = state.other[member]
    return size


@hot_loop
def _wait(state: State, lane: int, op: int, now: float) -> None:
    first, end = state.room[lane], state.room[lane + 1]
    waiting = Heap(state.waiting.key[first:end], state.waiting.item[first:end])
    state.held[lane] = push(waiting, state.held[lane], now, op)


@hot_loop
def _follow(given: Given, state: State, size: int, op: int, now: float) -> int:
    """Let what waits for an op know that it has ended."""
    ops = len(given.call)
    for edge in range(given.offset[op], given.offset[op + 1]):
        follower = given.target[edge]
        soonest = now + given.lag[edge]
        if soonest > state.ready[follower]:
            state.ready[follower] = soonest
        state.missing[follower] -= 1
        if state.missing[follower] == 0:
            size = push(state.events, size, state.ready[follower], ops + follower)
    return size
