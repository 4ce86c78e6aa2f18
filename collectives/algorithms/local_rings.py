"""Rings through the ranks of one node, as its wiring invites: over NVLink or xGMI, then PCIe.

A library that searches the graph of a node (NCCL and RCCL do, NVIDIA/nccl src/graph/search.cc) lays
as many rings as its direct links carry. Finding the most is hard; here rings are laid one after the
other, each with its reverse, every one over the links with the most left.
"""

import numpy as np
from numpy.typing import NDArray

from collectives.algorithms.placement import Ranks
from simulator.routing.routes import routes
from simulator.routing.survey import link_metrics
from simulator.topology import Topology

_MOST_TRIES = 20_000
"""Ranks tried for one ring before it is given up; rings of 8 take some dozens."""


def local_rings(positions: Ranks, network: Topology) -> Ranks:
    """Lay rings through ranks of one node.

    Parameters
    ----------
    positions
        The ranks, shape ``(n,)``.
    network
        Where they are.

    Returns
    -------
    ndarray
        Members of the group, in the order of each ring, shape ``(rings, n)``. Over direct links
        where these close a ring, each ring as fast as the slowest link. Else a ring that goes
        from each rank to the nearest that is left, and back too if it has direct links, of which
        it would leave one direction idle.

    Examples
    --------
    A square whose sides are cables:

    >>> from topologies import ring
    >>> local_rings(np.arange(4), ring(4, bandwidth=1e9, latency=0.0)).tolist()
    [[0, 1, 2, 3], [3, 2, 1, 0]]
    """
    n = len(positions)
    if n < 3:
        return np.arange(n, dtype=np.int32)[None, :]
    left = _direct(positions, network)
    share = left[left > 0].min(initial=np.inf)
    found: list[list[int]] = []
    while (cycle := _cycle(left, share)) is not None:
        for order in (cycle, cycle[::-1]):
            left[order, np.roll(order, -1)] -= share
            found.append(order)
    if not found:
        around = _nearest_first(positions, network)
        found = [around, around[::-1]] if left.any() else [around]
    return np.array(found, dtype=np.int32)


def _direct(positions: Ranks, network: Topology) -> NDArray[np.float64]:
    """Bandwidth of the link from each member to each other; 0 where there is none."""
    member = np.full(len(network.nodes), -1)
    member[positions] = np.arange(len(positions))
    ends = member[network.source], member[network.target]
    inside = (ends[0] >= 0) & (ends[1] >= 0)
    found = np.zeros((len(positions), len(positions)))
    found[ends[0][inside], ends[1][inside]] = network.bandwidth[inside]
    return np.minimum(found, found.T)


def _cycle(left: NDArray[np.float64], share: float) -> list[int] | None:
    """Find a ring through all, on links that have a share left: of these those with the most."""
    n = len(left)
    enough = left >= share * (1 - 1e-9)
    order = np.argsort(-left, axis=1, kind="stable")
    beside = [[int(one) for one in order[here] if enough[here, one]] for here in range(n)]
    path, tries = [0], [iter(beside[0])]
    for _ in range(_MOST_TRIES):
        if len(path) == n and enough[path[-1], 0]:
            return path
        step = next((one for one in tries[-1] if one not in path), None)
        if step is not None:
            path.append(step)
            tries.append(iter(beside[step]))
            continue
        path.pop()
        tries.pop()
        if not path:
            return None
    return None


def _nearest_first(positions: Ranks, network: Topology) -> list[int]:
    """Order ranks from each to the nearest that is left, by what their paths count."""
    n = len(positions)
    source, target = np.repeat(positions, n), np.tile(positions, n)
    apart = source != target
    ways = routes(network, source[apart].astype(np.int32), target[apart].astype(np.int32))
    far = np.zeros(n * n)
    far[apart] = ways.along(link_metrics(network).astype(np.float64))
    table = far.reshape(n, n)
    order, rest = [0], list(range(1, n))
    while rest:
        order.append(min(rest, key=lambda one: (table[order[-1], one], one)))
        rest.remove(order[-1])
    return order
