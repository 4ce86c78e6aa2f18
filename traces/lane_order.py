"""Lanes that run one op at a time, where a file tells dependencies but not the order on a lane.

The order is that of an execution of the whole job: a lane takes what became ready first, and of
those the op that stands first. Whatever was executed can be executed again, so these edges put no
circle into the graph, nor one through the calls that ranks join.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.heap import room
from simulator.workload import Edges, Floats, Workload
from traces.lane_order_passes import Given, State, begin, execute, release

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
        members=workload.members,
        offset=edges.offset,
        target=edges.target,
        lag=edges.lag,
    )
    before, loose = before_on_lane(given, workload.ready)
    notes = (*workload.notes, LOOSE) if loose else workload.notes
    return replace(workload, notes=notes, edges=with_lanes(edges, before))


def before_on_lane(given: Given, ready: Floats) -> tuple[NDArray[np.int32], bool]:
    """Find the op that runs before each on its lane, -1 if none does; and whether calls came loose.

    ``given.lane`` may be any numbers; edges with a circle leave out what is on and behind it.
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
    ops, calls = len(given.call), len(given.members)
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
    )


def _stuck(given: Given, state: State) -> NDArray[np.bool_]:
    """Mark the ops that have come to a call to which others have not."""
    stuck = np.zeros(len(given.call), dtype=np.bool_)
    for call in np.flatnonzero((state.arrived > 0) & (state.arrived < given.members)).tolist():
        op = int(state.came[call])
        while op >= 0:
            stuck[op] = True
            op = int(state.other[op])
    return stuck
