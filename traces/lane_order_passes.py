"""The execution by which :mod:`traces.lane_order` orders lanes, as hot loops."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.heap import Heap, pop, push
from simulator.hot import hot_loop
from simulator.workload import Floats, Ints, Offsets


class Given(NamedTuple):
    """What is executed: ``lane`` is a lane of a rank, ``takes`` says which ops take theirs.

    ``transfer`` and ``members`` are those of each call; edges leave an op as in a workload.
    """

    lane: Offsets
    takes: NDArray[np.bool_]
    call: Ints
    duration: Floats
    transfer: Floats
    members: Ints
    offset: Offsets
    target: Ints
    lag: Floats


class State(NamedTuple):
    """How far it is.

    ``ready`` is when each op may start as far as is known, ``missing`` how many it waits for.
    ``events`` has ends and begins of ops, ``waiting`` the ops that are ready for their lane: those
    of lane ``i`` from ``room[i]`` on, ``held[i]`` many. ``last`` op of a lane, ``before`` each op
    on its lane: -1 where none. Ops that have come to a call are a list: ``came[call]``,
    ``other[op]``.
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
    state.other[op] = state.came[call]
    state.came[call] = op
    state.arrived[call] += 1
    if state.arrived[call] < given.members[call]:
        return size
    end = now + given.transfer[call]
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
