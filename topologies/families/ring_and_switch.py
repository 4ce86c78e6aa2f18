"""Every rank one step from every other: the switch and the full mesh.

The one helper that every family of topologies shares: a cable is two links.

Ranks in a row: the ring and the line.

Closed forms: W. J. Dally, B. Towles, "Principles and Practices of Interconnection Networks"
(2004), chapter 5: a ring is the k-ary 1-cube, a line the k-ary 1-mesh.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

from simulator.topology import SCALE_UP, Link, Node, Topology, topology


def cables(
    ends: Iterable[tuple[Node, Node]],
    *,
    bandwidth: float,
    latency: float,
    resource: str = SCALE_UP,
) -> Iterator[Link]:
    """Both directions of every cable; ``bandwidth`` is that of one direction.

    Examples
    --------
    >>> [(link.source, link.target) for link in cables([(0, 1)], bandwidth=1.0, latency=0.0)]
    [(0, 1), (1, 0)]
    """
    for one, other in ends:
        yield Link(one, other, bandwidth, latency, resource)
        yield Link(other, one, bandwidth, latency, resource)


def ring(ranks: int, *, bandwidth: float, latency: float, resource: str = SCALE_UP) -> Topology:
    """Every rank joined to the next one, and the last to the first.

    For ``n >= 3`` ranks: ``n`` nodes, ``2n`` links, diameter ``n // 2``, bisection bandwidth
    ``2 B``. Two ranks have one cable, not two.

    Examples
    --------
    >>> network = ring(8, bandwidth=50e9, latency=2e-6)
    >>> network.name, len(network)
    ('ring(8)', 16)
    """
    closing = [(ranks - 1, 0)] if ranks > 2 else []
    ends = [*((rank, rank + 1) for rank in range(ranks - 1)), *closing]
    links = cables(ends, bandwidth=bandwidth, latency=latency, resource=resource)
    return topology(f"ring({ranks})", ranks, links)


def line(ranks: int, *, bandwidth: float, latency: float, resource: str = SCALE_UP) -> Topology:
    """Every rank joined to the next one.

    ``n`` nodes, ``2(n - 1)`` links, diameter ``n - 1``, bisection bandwidth ``B``.

    Examples
    --------
    >>> len(line(8, bandwidth=50e9, latency=2e-6))
    14
    """
    ends = [(rank, rank + 1) for rank in range(ranks - 1)]
    links = cables(ends, bandwidth=bandwidth, latency=latency, resource=resource)
    return topology(f"line({ranks})", ranks, links)


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
