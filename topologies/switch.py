"""Every rank one step from every other: the switch and the full mesh."""

from itertools import combinations

from simulator.topology import SCALE_UP, Topology, topology
from topologies.cables import cables


def switch(ranks: int, *, bandwidth: float, latency: float, resource: str = SCALE_UP) -> Topology:
    """One non-blocking switch, a port for every rank.

    ``n + 1`` nodes, ``2n`` links, diameter 2, bisection bandwidth ``(n // 2) B``: a crossbar
    (Dally and Towles 2004, chapter 6). ``latency`` is that of one link, so a message between two
    ranks pays it twice.

    Examples
    --------
    >>> network = switch(8, bandwidth=50e9, latency=1e-6)
    >>> len(network.nodes), len(network)
    (9, 16)
    """
    ends = [(rank, "switch") for rank in range(ranks)]
    links = cables(ends, bandwidth=bandwidth, latency=latency, resource=resource)
    return topology(f"switch({ranks})", ranks, links)


def fully_connected(
    ranks: int, *, bandwidth: float, latency: float, resource: str = SCALE_UP
) -> Topology:
    """Join every two ranks by a cable; ``bandwidth`` is that of one cable, not of a rank.

    ``n`` nodes, ``n(n - 1)`` links, diameter 1, bisection bandwidth
    ``(n // 2) * ((n + 1) // 2) * B``: the links of the complete bipartite graph between the
    halves.

    Examples
    --------
    >>> len(fully_connected(4, bandwidth=100e9, latency=1e-6))
    12
    """
    ends = combinations(range(ranks), 2)
    links = cables(ends, bandwidth=bandwidth, latency=latency, resource=resource)
    return topology(f"fully_connected({ranks})", ranks, links)
