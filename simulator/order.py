"""Is a graph of edges free of circles, and if not, which one."""

import networkx as nx
import numpy as np
from numba import njit
from numpy.typing import NDArray


def find_circle(offset: NDArray[np.int64], target: NDArray[np.int32]) -> list[int]:
    """Ops on one circle, in order; empty if there is none. The graph is in CSR form."""
    stuck = np.flatnonzero(_never_free(offset, target))
    if not len(stuck):
        return []
    rows = ((op, target[offset[op] : offset[op + 1]].tolist()) for op in stuck.tolist())
    graph = nx.DiGraph((op, follower) for op, followers in rows for follower in followers)
    return [int(op) for op, _ in nx.find_cycle(graph)]


@njit(cache=True)
def _never_free(offset, target):  # type: ignore[no-untyped-def]
    """Take away ops that wait for nobody until none is left (Kahn 1962); True where one stays."""
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
    return waits > 0
