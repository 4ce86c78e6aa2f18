"""What a topology is worth, measured on the graph itself: the closed forms are held to these."""

from collections.abc import Sequence
from itertools import combinations

import networkx as nx

from simulator.errors import TopologyError
from simulator.topology import Node, Topology

_MOST_RANKS = 12
"""Balanced cuts of 12 ranks: 924, a second or two. Of 16: 12,870."""


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
    graph, longest = network.graph(), 0
    for rank in range(network.ranks):
        hops = nx.single_source_shortest_path_length(graph, rank)
        for other in range(network.ranks):
            if other not in hops:
                raise TopologyError(f"{network.name}: rank {rank} does not reach rank {other}")
            longest = max(longest, hops[other])
    return longest


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
    if not 2 <= ranks <= _MOST_RANKS:
        raise TopologyError(
            f"{network.name}: cuts are tried for 2 to {_MOST_RANKS} ranks, not {ranks}"
        )
    graph = network.graph()
    halves = {ranks // 2, ranks - ranks // 2}
    cuts = (half for size in sorted(halves) for half in combinations(range(ranks), size))
    return min(_cut(graph, half, ranks) for half in cuts)


def _cut(graph: "nx.DiGraph[Node]", half: Sequence[int], ranks: int) -> float:
    """Least bandwidth from the ranks of ``half`` to the others; both ends tied with no limit."""
    tied = graph.copy()
    tied.add_edges_from(("half", rank) for rank in half)
    tied.add_edges_from((rank, "rest") for rank in set(range(ranks)) - set(half))
    return float(nx.minimum_cut_value(tied, "half", "rest", capacity="bandwidth"))
