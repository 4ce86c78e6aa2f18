"""Topologies whose messages do not take the shortest path of :mod:`simulator.routing`.

The path function travels with the topology, so every engine and every what-if uses it.
"""

from collections.abc import Sequence
from dataclasses import replace

from simulator.topology import Node, Topology
from topologies.dragonfly import DragonflyShape
from topologies.paths import dimension_order, minimal, valiant

_MIX = 0x9E3779B97F4A7C15
"""Odd and without a pattern (2**64 over the golden ratio): spreads pairs over groups."""


def dimension_ordered(
    network: Topology, dimensions: Sequence[int], *, wrap: Sequence[bool] | None = None
) -> Topology:
    """Route a torus or mesh by dimension order: the first dimension first.

    Examples
    --------
    >>> from topologies import torus
    >>> network = torus((4, 4), bandwidth=50e9, latency=1e-6)
    >>> list(dimension_ordered(network, (4, 4)).route(0, 10))
    [0, 4, 8, 9, 10]
    """
    shape = tuple(dimensions)

    def route(source: int, target: int) -> Sequence[Node]:
        return dimension_order(shape, source, target, wrap=wrap)

    return replace(network, route=route)


def minimally(network: Topology, shape: DragonflyShape) -> Topology:
    """Route a dragonfly over at most one global cable, also where a detour has as few hops."""

    def route(source: int, target: int) -> Sequence[Node]:
        return minimal(shape, source, target)

    return replace(network, route=route)


def by_valiant(network: Topology, shape: DragonflyShape) -> Topology:
    """Route a dragonfly over a group in between, chosen by a hash of source and target.

    Twice the global bytes of minimal routing, spread over all groups whatever the traffic.
    """

    def route(source: int, target: int) -> Sequence[Node]:
        mixed = (source * _MIX + target * (_MIX >> 1)) % 2**64
        return valiant(shape, source, target, via=(mixed >> 32) % shape.groups)

    return replace(network, route=route)
