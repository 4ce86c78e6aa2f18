"""The one helper that every family of topologies shares: a cable is two links."""

from collections.abc import Iterable, Iterator

from simulator.topology import SCALE_UP, Link, Node


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
