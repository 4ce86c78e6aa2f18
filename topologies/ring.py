"""Ranks in a row: the ring and the line.

Closed forms: W. J. Dally, B. Towles, "Principles and Practices of Interconnection Networks"
(2004), chapter 5: a ring is the k-ary 1-cube, a line the k-ary 1-mesh.
"""

from simulator.topology import SCALE_UP, Topology, topology
from topologies.cables import cables


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
