"""What a topology is worth: measured on the graph itself, and by the closed forms of its family.

A topology's name carries its parameters, ``torus(4x8)``, by which :func:`closed_form` finds the
formula of the family. A network that was changed afterwards has another name or unequal links, and
then there is none. The closed forms are held to what is measured here.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.topology import Node, Topology
from topologies.families.family import family_of
from topologies.families.table import FAMILIES

if TYPE_CHECKING:
    import networkx as nx


def diameter(network: Topology) -> int:
    """Links on the longest shortest path between two ranks.

    Parameters
    ----------
    network
        Any topology; it may have been changed.

    Returns
    -------
    int
        Hops; 0 for a single rank.

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


_BLOCK = 1024
"""Ranks that walk at once: 128 bytes per link, whatever the size of the machine."""


def _farthest(network: Topology, ranks: NDArray[np.int64]) -> int:
    """Hops until every one of these ranks has reached all ranks, all of them walking at once.

    Bit ``i`` of a node's row says that rank ``ranks[i]`` reaches the node.
    """
    order = np.argsort(network.target, kind="stable")
    ends, first = np.unique(network.target[order], return_index=True)
    bit = np.arange(len(ranks))
    reached = np.zeros((len(network.nodes), -(-len(ranks) // 64)), dtype=np.uint64)
    reached[ranks, bit // 64] = np.uint64(1) << (bit % 64).astype(np.uint64)
    full = np.bitwise_or.reduce(reached, axis=0)
    hops = 0
    while (reached[: network.ranks] != full).any():
        before = reached.copy()
        if len(order):
            arriving = before[network.source[order]]
            reached[ends] |= np.bitwise_or.reduceat(arriving, first, axis=0)
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

    Parameters
    ----------
    network
        A topology of at most 12 ranks.

    Returns
    -------
    float
        Bandwidth (B/s).

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
    return min(_least_cut(graph, half, ranks) for half in cuts)


MOST_RANKS = 12
"""Balanced cuts of 12 ranks: 924, a second or two. Of 16: 12,870."""


def _least_cut(graph: "nx.DiGraph[Node]", half: Sequence[int], ranks: int) -> float:
    """Least bandwidth from the ranks of ``half`` to the others; both ends tied with no limit."""
    import networkx as nx  # slow to load, and nothing else here needs it

    tied = graph.copy()
    tied.add_edges_from(("half", rank) for rank in half)
    tied.add_edges_from((rank, "rest") for rank in set(range(ranks)) - set(half))
    return float(nx.minimum_cut_value(tied, "half", "rest", capacity="bandwidth"))


def closed_form(network: Topology) -> float | None:
    """Bisection bandwidth by the formula of the family (B/s), or None where it has none.

    The formulas stand in the docstrings of the builders, with their sources.

    Parameters
    ----------
    network
        A topology as its builder returned it, perhaps with the links of a resource scaled.

    Examples
    --------
    >>> from topologies import fat_tree, torus
    >>> closed_form(torus((16, 16), bandwidth=50e9, latency=1e-6))
    1600000000000.0
    >>> closed_form(torus((15, 15), bandwidth=50e9, latency=1e-6)) is None
    True
    """
    name, numbers, change = family_of(network)
    family = FAMILIES.get(name)
    if family is None or family.bisection is None or change or not len(network):
        return None
    return family.bisection(network, numbers)


def path_links(network: Topology, path: Sequence[Node]) -> NDArray[np.int32]:
    """Find the links of a path.

    Parameters
    ----------
    network
        Any topology.
    path
        The nodes a message passes, both ends included.

    Returns
    -------
    NDArray
        Indices of links, shape ``(hops,)``.

    Raises
    ------
    TopologyError
        If two nodes of the path that follow each other have no link.

    Examples
    --------
    >>> from topologies import dimension_order, torus
    >>> network = torus((4, 4), bandwidth=50e9, latency=1e-6)
    >>> links = path_links(network, dimension_order((4, 4), 0, 10))
    >>> [network.link(index).target for index in links]
    [4, 8, 9, 10]
    """
    index = {node: number for number, node in enumerate(network.nodes)}
    links = {
        ends: number
        for number, ends in enumerate(
            zip(network.source.tolist(), network.target.tolist(), strict=True)
        )
    }
    try:
        return np.array([links[index[a], index[b]] for a, b in pairwise(path)], dtype=np.int32)
    except KeyError:
        raise TopologyError(f"{network.name} has no path {' - '.join(map(str, path))}") from None
