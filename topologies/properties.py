"""What a topology is worth, measured on the graph itself: the closed forms are held to these."""

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.topology import Node, Topology

if TYPE_CHECKING:
    import networkx as nx

MOST_RANKS = 12
"""Balanced cuts of 12 ranks: 924, a second or two. Of 16: 12,870."""

_BLOCK = 1024
"""Ranks that walk at once: 128 bytes per link, whatever the size of the machine."""


def diameter(network: Topology) -> int:
    """Links on the longest shortest path between two ranks.

    Raises
    ------
    TopologyError
        If a rank cannot reach another.

    Examples
    --------
    >>> from topologies import ring
    >>> diameter(ring(8, bandwidth=50e9, latency=1e-6))
    4
    """
    blocks = range(0, network.ranks, _BLOCK)
    return max(_farthest(network, np.arange(begin, network.ranks)[:_BLOCK]) for begin in blocks)


def _farthest(network: Topology, ranks: NDArray[np.int64]) -> int:
    """Hops until every one of these ranks has reached all ranks, all of them walking at once.

    Bit ``i`` of a node's row says that rank ``ranks[i]`` reaches the node.
    """
    order = np.argsort(network.target, kind="stable")
    ends, first = np.unique(network.target[order], return_index=True)
    place = np.arange(len(ranks))
    reached = np.zeros((len(network.nodes), -(-len(ranks) // 64)), dtype=np.uint64)
    reached[ranks, place // 64] = np.uint64(1) << (place % 64).astype(np.uint64)
    full = np.bitwise_or.reduce(reached, axis=0)
    hops = 0
    while (reached[: network.ranks] != full).any():
        before = reached.copy()
        if len(order):
            came = before[network.source[order]]
            reached[ends] |= np.bitwise_or.reduceat(came, first, axis=0)
        hops += 1
        if (reached == before).all():
            missing = reached[: network.ranks] ^ full
            other, word = (int(index) for index in np.argwhere(missing)[0])
            lowest = (int(missing[other, word]) & -int(missing[other, word])).bit_length() - 1
            lost = ranks[64 * word + lowest]
            raise TopologyError(f"{network.name}: rank {lost} does not reach rank {other}")
    return hops


def bisection_bandwidth(network: Topology) -> float:
    """Least one-way bandwidth over all balanced cuts of the ranks, by trying them all.

    Nodes that are not ranks fall on the side where the cut is least (maximum flow from one half
    to the other). With an odd number of ranks the halves differ by one.

    Raises
    ------
    TopologyError
        If there are fewer than 2 ranks, or more than 12: then use the closed form.

    Examples
    --------
    >>> from topologies import switch
    >>> bisection_bandwidth(switch(8, bandwidth=50e9, latency=1e-6))
    200000000000.0
    """
    ranks = network.ranks
    if not 2 <= ranks <= MOST_RANKS:
        raise TopologyError(
            f"{network.name}: cuts are tried for 2 to {MOST_RANKS} ranks, not {ranks}"
        )
    graph = network.graph()
    halves = {ranks // 2, ranks - ranks // 2}
    cuts = (half for size in sorted(halves) for half in combinations(range(ranks), size))
    return min(_cut(graph, half, ranks) for half in cuts)


def _cut(graph: "nx.DiGraph[Node]", half: Sequence[int], ranks: int) -> float:
    """Least bandwidth from the ranks of ``half`` to the others; both ends tied with no limit."""
    import networkx as nx  # slow to load, and nothing else here needs it

    tied = graph.copy()
    tied.add_edges_from(("half", rank) for rank in half)
    tied.add_edges_from((rank, "rest") for rank in set(range(ranks)) - set(half))
    return float(nx.minimum_cut_value(tied, "half", "rest", capacity="bandwidth"))
