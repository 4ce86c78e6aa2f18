"""Is a graph of edges free of circles, and if not, which one; and if so, in which order."""

import networkx as nx
import numpy as np
from numba import njit
from numpy.typing import NDArray


def find_circle(offset: NDArray[np.int64], target: NDArray[np.int32]) -> list[int]:
    """Ops on one circle, in order; empty if there is none. The graph is in CSR form."""
    caught = np.ones(len(offset) - 1, dtype=bool)
    caught[topological(offset, target)] = False
    stuck = np.flatnonzero(caught)
    if not len(stuck):
        return []
    rows = ((op, target[offset[op] : offset[op + 1]].tolist()) for op in stuck.tolist())
    graph = nx.DiGraph((op, follower) for op, followers in rows for follower in followers)
    return [int(op) for op, _ in nx.find_cycle(graph)]


@njit(cache=True)
def topological(offset, target):  # type: ignore[no-untyped-def]
    """Order ops so that every edge leads on (Kahn 1962); those on or behind a circle are left out.

    Of a graph in CSR form. Ops that may come at the same time come in order of their index or of
    what freed them: the same graph always has the same order.
    """
    ops = len(offset) - 1
    waits = np.zeros(ops, dtype=np.int32)
    for follower in target:
        waits[follower] += 1
    queue = np.empty(ops, dtype=np.int32)
    queued = 0
    for op in range(ops):
        if waits[op] == 0:
            queue[queued] = op
            queued += 1
    head = 0
    while head < queued:
        op = queue[head]
        head += 1
        for edge in range(offset[op], offset[op + 1]):
            follower = target[edge]
            waits[follower] -= 1
            if waits[follower] == 0:
                queue[queued] = follower
                queued += 1
    return queue[:queued]


@njit(cache=True)
def depths(offset, target):  # type: ignore[no-untyped-def]
    """Length, in edges, of the longest way to each op; of a graph without circles, in CSR form."""
    depth = np.zeros(len(offset) - 1, dtype=np.int64)
    for op in topological(offset, target):
        for edge in range(offset[op], offset[op + 1]):
            depth[target[edge]] = max(depth[target[edge]], depth[op] + 1)
    return depth
