"""The topological order of a graph of edges, or a cycle that keeps it from having one."""

import numpy as np

from simulator.support.arrays import Ints, Longs
from simulator.support.compiled import hot_loop


def find_cycle(offset: Longs, target: Ints) -> list[int]:
    """Ops on a cycle, in order; empty if there is none. The graph is in CSR form."""
    on_or_behind = np.ones(len(offset) - 1, dtype=bool)
    on_or_behind[topological_order(offset, target)] = False
    stuck = np.flatnonzero(on_or_behind)
    if not len(stuck):
        return []
    import networkx as nx  # slow to import, and seldom is there a cycle

    rows = ((op, target[offset[op] : offset[op + 1]].tolist()) for op in stuck.tolist())
    graph = nx.DiGraph((op, follower) for op, followers in rows for follower in followers)
    return [int(op) for op, _ in nx.find_cycle(graph)]


def topological_order(offset: Longs, target: Ints) -> Ints:
    """Order ops so that every edge leads on (Kahn 1962); those on or behind a cycle are left out.

    Of a graph in CSR form. Ops that may come at the same time come in order of their index or of
    what freed them: the same graph always has the same order.
    """
    waits = np.bincount(target, minlength=len(offset) - 1).astype(np.int32)
    queue = np.empty(len(waits), dtype=np.int32)
    return queue[: _queue_up(offset, target, waits, queue)]


def depths(offset: Longs, target: Ints) -> Longs:
    """Edges on the longest path to each op; of a graph without cycles, in CSR form."""
    depth = np.zeros(len(offset) - 1, dtype=np.int64)
    _deepen(offset, target, topological_order(offset, target), depth)
    return depth


@hot_loop
def _queue_up(offset: Longs, target: Ints, waits: Ints, queue: Ints) -> int:
    """Put ops into the ready queue when nothing is before them any more; return how many were."""
    queued = 0
    for op in range(len(waits)):
        if waits[op] == 0:
            queue[queued] = op
            queued += 1
    head = 0  # the queue is the order itself: ops before ``head`` are done
    while head < queued:
        op = queue[head]
        head += 1
        for edge in range(offset[op], offset[op + 1]):
            follower = target[edge]
            waits[follower] -= 1
            if waits[follower] == 0:
                queue[queued] = follower
                queued += 1
    return queued


@hot_loop
def _deepen(offset: Longs, target: Ints, order: Ints, depth: Longs) -> None:
    for op in order:
        for edge in range(offset[op], offset[op + 1]):
            depth[target[edge]] = max(depth[target[edge]], depth[op] + 1)
