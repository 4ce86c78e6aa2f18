"""Paths that are not shortest: dimension order on a grid, Valiant's detour on a dragonfly.

A path is the nodes a message passes, both ends included. :mod:`topologies.families.routed` makes a
topology route by these instead of the shortest path, and :func:`path_links` gives the links of a
path.

Topologies whose messages do not take the shortest path of :mod:`simulator.routing.routes`.

The path function travels with the topology, so every engine and every what-if uses it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.topology import Node, Topology
from topologies.families.dragonfly import DragonflyShape, global_ends, router_name


def dimension_order(
    dimensions: Sequence[int], source: int, target: int, *, wrap: Sequence[bool] | None = None
) -> list[int]:
    """Correct one coordinate after the other, the first dimension first, the shorter way round.

    Deadlock-free on a mesh (W. J. Dally, C. L. Seitz, IEEE Trans. Computers C-36, 1987); as long
    as a shortest path. Halfway round, where both ways are as long, it goes up. ``wrap`` says which
    dimensions close, all of them if it is not given.

    Raises
    ------
    TopologyError
        If an end is not on the grid, or ``wrap`` has another length.

    Examples
    --------
    >>> dimension_order((4, 4), 0, 10)
    [0, 4, 8, 9, 10]
    >>> dimension_order((4, 4), 0, 15), dimension_order((4, 4), 0, 3, wrap=(True, False))
    ([0, 12, 15], [0, 1, 2, 3])
    """
    shape = tuple(dimensions)
    closes = [True] * len(shape) if wrap is None else list(wrap)
    grid = np.arange(int(np.prod(shape))).reshape(shape)
    if not (0 <= source < grid.size and 0 <= target < grid.size):
        raise TopologyError(
            f"{source} to {target}: a grid of {shape} has ranks 0 to {grid.size - 1}"
        )
    if len(closes) != len(shape):
        raise TopologyError(f"wrap has {len(closes)} entries for {len(shape)} dimensions")
    here = [int(place) for place in np.unravel_index(source, shape)]
    goal = [int(place) for place in np.unravel_index(target, shape)]
    path = [source]
    for axis, length in enumerate(shape):
        up = (goal[axis] - here[axis]) % length
        forward = up <= length - up if closes[axis] else goal[axis] > here[axis]
        while here[axis] != goal[axis]:
            here[axis] = (here[axis] + (1 if forward else -1)) % length
            path.append(int(grid[tuple(here)]))
    return path


def minimal(shape: DragonflyShape, source: int, target: int) -> list[Node]:
    """From rank to rank of a dragonfly over at most one global cable.

    At most 3 hops between routers. Of several cables between two groups it takes the one whose
    number is the sum of the two ranks modulo their count.

    Examples
    --------
    >>> shape = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)
    >>> minimal(shape, 0, 71)
    [0, 'router:0.0', 'router:0.3', 'router:8.0', 'router:8.3', 71]
    """
    ends = [_router_of(shape, rank) for rank in (source, target)]
    return [source, *_between(shape, ends[0], ends[1], source + target), target]


def valiant(shape: DragonflyShape, source: int, target: int, *, via: int) -> list[Node]:
    """Go to group ``via`` first, and from there minimally: at most 5 hops between routers.

    L. G. Valiant, "A scheme for fast parallel communication", SIAM J. Computing 11 (1982), as
    J. Kim et al. (ISCA 2008) use it on groups: with ``via`` chosen at random per message, traffic
    between two groups spreads over all others. Within a group, or via one of the two groups, it
    is the minimal path.

    Raises
    ------
    TopologyError
        If there is no group ``via``.

    Examples
    --------
    >>> shape = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)
    >>> valiant(shape, 0, 71, via=4)[1:-1]
    ['router:0.0', 'router:0.1', 'router:4.0', 'router:4.3', 'router:8.2', 'router:8.3']
    """
    if not 0 <= via < shape.groups:
        raise TopologyError(f"via group {via}: there are groups 0 to {shape.groups - 1}")
    begin, end = _router_of(shape, source), _router_of(shape, target)
    if begin[0] == end[0] or via in (begin[0], end[0]):
        return minimal(shape, source, target)
    _, there = _gateway(shape, begin[0], via, source + target)
    middle = (via, there)
    first = _between(shape, begin, middle, source + target)
    second = _between(shape, middle, end, source + target)
    return [source, *first, *second[1:], target]


def path_links(network: Topology, path: Sequence[Node]) -> NDArray[np.int32]:
    """Return the links of a path.

    Raises
    ------
    TopologyError
        If two nodes of the path that follow each other have no link.

    Examples
    --------
    >>> from topologies import torus
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


def _router_of(shape: DragonflyShape, rank: int) -> tuple[int, int]:
    if not 0 <= rank < shape.groups * shape.routers * shape.ranks_per_router:
        raise TopologyError(f"{shape} has no rank {rank}")
    return divmod(rank // shape.ranks_per_router, shape.routers)


def _between(
    shape: DragonflyShape, begin: tuple[int, int], end: tuple[int, int], choice: int
) -> list[Node]:
    """Routers from one to another, minimally."""
    routers = [begin]
    if begin[0] != end[0]:
        here, there = _gateway(shape, begin[0], end[0], choice)
        routers += [(begin[0], here), (end[0], there)]
    routers.append(end)
    return list(dict.fromkeys(router_name(*router) for router in routers))


def _gateway(shape: DragonflyShape, group: int, other: int, choice: int) -> tuple[int, int]:
    """Routers of two groups that a cable joins: the one of number ``choice``, counted round."""
    cables = sorted(global_ends(shape, (group, other)).elements())
    chosen = cables[choice % len(cables)]
    low, high = (int(name.rpartition(".")[2]) for name in chosen)
    return (low, high) if group < other else (high, low)


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
