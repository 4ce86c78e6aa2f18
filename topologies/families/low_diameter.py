"""Networks of low diameter: HyperX, Slim Fly, Dragonfly+.

*HyperX* is a grid whose rows are complete graphs (J. H. Ahn et al., "HyperX: Topology,
Routing, and Packaging of Efficient Large-Scale Networks", SC 2009). *Slim Fly* is the graph of
McKay, Miller and Širáň, in which any two routers are two hops apart with nearly the fewest cables
that this needs (M. Besta and T. Hoefler, "Slim Fly: A Cost Effective Low-Diameter Network
Topology", SC 2014). *Dragonfly+* has groups of leaves and spines, and connects the groups by their
spines (A. Shpiner et al., "Dragonfly+: Low Cost Topology for Scaling Datacenters", HiPINEB 2017).

Routers are the nodes ``router:GROUP.NUMBER``. In a Dragonfly+ leaves come before spines. The other
two are one group, any router of which may be the middle of a detour.
"""

from collections.abc import Iterator
from itertools import combinations, product
from math import prod
from typing import Unpack

from simulator.support.errors import TopologyError
from simulator.topology import Node, Topology, topology
from topologies.families.dragonfly import DragonflyShape, global_ends, groups_of, router_name
from topologies.families.family import Cable, Counts, Family, ParsedSpec, cables, cables_cut, joined

Ends = Iterator[tuple[Node, Node]]


def hyperx(lengths: tuple[int, ...], ranks_per_router: int, **cable: Unpack[Cable]) -> Topology:
    """Build a grid of routers with ranks; every two routers of a row are connected.

    ``R = prod(lengths)`` routers with ``p`` ranks each; ``2 (p R + R sum(S - 1) / 2)`` links; a hop
    for each dimension, so diameter ``2 + dimensions``; bisection of an even least length ``S``
    ``min(R S / 4, p R / 2) B``.

    Parameters
    ----------
    lengths
        Number of routers along each dimension, ``S``.
    ranks_per_router
        Number of ranks on a router, ``p``.
    **cable
        ``bandwidth`` ``B``, ``latency``, ``resource``: :class:`~topologies.families.family.Cable`.

    Examples
    --------
    >>> network = hyperx((4, 4), 2, bandwidth=25e9, latency=1e-6)
    >>> network.ranks, len(network.nodes), len(network)
    (32, 48, 160)
    """
    if min(*lengths, ranks_per_router) < 1:
        raise TopologyError("hyperx: every length and the ranks of a router are at least 1")
    coordinates = list(product(*map(range, lengths)))
    inner = [
        (source, target)
        for (source, near), (target, far) in combinations(enumerate(coordinates), 2)
        if sum(a != b for a, b in zip(near, far, strict=True)) == 1
    ]
    words = "x".join(map(str, (*lengths, ranks_per_router)))
    return _with_ranks(f"hyperx({words})", len(coordinates), ranks_per_router, inner, cable)


def slim_fly(order: int, ranks_per_router: int, **cable: Unpack[Cable]) -> Topology:
    """Build the McKay-Miller-Širáň graph of an odd prime, with ranks on its routers.

    ``2 q**2`` routers of ``(3 q - d) / 2`` cables to others with ``q = 4 w + d``, ``d`` 1 or -1;
    any two are at most 2 hops apart, so diameter at most 4.

    Parameters
    ----------
    order
        ``q``, a prime from 5 on.
    ranks_per_router
        Ranks on a router; balanced with half of the cables to others, rounded up.
    **cable
        ``bandwidth`` ``B``, ``latency``, ``resource``: :class:`~topologies.families.family.Cable`.

    Examples
    --------
    >>> network = slim_fly(5, 4, bandwidth=25e9, latency=1e-6)
    >>> network.ranks, len(network.nodes) - network.ranks
    (200, 50)
    """
    _check_prime(order)
    if ranks_per_router < 1:
        raise TopologyError("slim_fly: a router has at least 1 rank")
    rows, columns = _generators(order)
    inner = []
    # Router (0, x, y) is x q + y, router (1, m, c) behind them; lines y = m x + c join the halves.
    for x, (y, far) in product(range(order), combinations(range(order), 2)):
        if (far - y) % order in rows:
            inner.append((x * order + y, x * order + far))
        if (far - y) % order in columns:
            inner.append((order * order + x * order + y, order * order + x * order + far))
    inner += [
        (x * order + (m * x + c) % order, order * order + m * order + c)
        for x, m, c in product(range(order), repeat=3)
    ]
    name = f"slim_fly({order}x{ranks_per_router})"
    return _with_ranks(name, 2 * order * order, ranks_per_router, inner, cable)


def _check_prime(order: int) -> None:
    if order < 5 or any(order % divisor == 0 for divisor in range(2, int(order**0.5) + 1)):
        raise TopologyError(f"slim_fly: {order} is no prime of 5 or more: 5, 7, 11, 13, 17, 19, …")


def _generators(order: int) -> tuple[set[int], set[int]]:
    """Return the distances joined in rows of either half: even and odd powers of a generator.

    If ``q = 4 w - 1`` the powers change sides half way, so that both sets contain the negative of
    each distance (B. D. McKay, M. Miller, J. Širáň, J. Combin. Theory B 74, 1998).
    """
    root = next(
        g for g in range(2, order) if len({pow(g, e, order) for e in range(order - 1)}) == order - 1
    )
    half = (order - 1) // 2
    if order % 4 == 1:
        even = {pow(root, power, order) for power in range(0, order - 1, 2)}
        return even, {pow(root, power, order) for power in range(1, order - 1, 2)}
    even = {pow(root, power, order) for power in range(0, half + 1, 2)}
    odd = {pow(root, power, order) for power in range(1, half + 1, 2)}
    return even | {-d % order for d in even}, odd | {-d % order for d in odd}


def dragonfly_plus(numbers: tuple[int, ...], **cable: Unpack[Cable]) -> Topology:
    """Build groups connected by their spines; a group's leaves connect to all its spines.

    ``g l p`` ranks; any two are at most 5 links apart: leaf, spine, spine of the other group, leaf.

    Parameters
    ----------
    numbers
        Groups ``g``, leaves ``l`` and spines ``s`` of a group, ranks ``p`` of a leaf, and cables of
        a spine to other groups; by default as few as join all groups.
    **cable
        ``bandwidth`` ``B``, ``latency``, ``resource``: :class:`~topologies.families.family.Cable`.

    Examples
    --------
    >>> network = dragonfly_plus((3, 2, 2, 4), bandwidth=25e9, latency=1e-6)
    >>> network.ranks, len(network.nodes)
    (24, 36)
    """
    groups, leaves, spines, ranks, *_ = numbers
    shape = _parse_spines(numbers)
    routers = leaves + spines
    attached: list[tuple[Node, Node]] = [
        (rank, router_name(rank // (leaves * ranks), rank // ranks % leaves))
        for rank in range(groups * leaves * ranks)
    ]
    inner = [
        (router_name(group, leaf), router_name(group, spine))
        for group, leaf, spine in product(range(groups), range(leaves), range(leaves, routers))
    ]
    links = list(cables([*attached, *inner], **cable))
    for pair, count in global_ends(shape, range(groups)).items():
        source, target = (_spine_name(name, leaves) for name in pair)
        wide = cable | {"bandwidth": count * cable["bandwidth"]}
        links += cables([(source, target)], **wide)
    words = "x".join(map(str, (groups, leaves, spines, ranks, shape.global_links)))
    return topology(f"dragonfly_plus({words})", len(attached), links)


def _parse_spines(numbers: tuple[int, ...]) -> DragonflyShape:
    groups, leaves, spines, ranks, *links = numbers
    if min(groups, leaves, spines, ranks) < 1:
        raise TopologyError("dragonfly_plus: groups, leaves, spines and ranks are at least 1")
    fewest = -(-(groups - 1) // spines)
    return DragonflyShape(
        groups=groups,
        routers=spines,
        ranks_per_router=1,
        global_links=links[0] if links else fewest,
    )


def _spine_name(router: str, leaves: int) -> str:
    group, _, spine = router.partition(":")[2].partition(".")
    return router_name(int(group), leaves + int(spine))


def _with_ranks(
    name: str, routers: int, each: int, inner: list[tuple[int, int]], cable: Cable
) -> Topology:
    """Build routers with equal numbers of ranks, numbered router by router."""
    ends: list[tuple[Node, Node]] = [
        (rank, router_name(0, rank // each)) for rank in range(routers * each)
    ]
    ends += [(router_name(0, source), router_name(0, target)) for source, target in inner]
    return joined(name, routers * each, ends, **cable)


def _hyperx_counts(spec: ParsedSpec) -> Counts:
    *lengths, each = spec.numbers
    routers = prod(lengths)
    ranks = routers * each
    inner = routers * sum(length - 1 for length in lengths)
    hops = sum(length > 1 for length in lengths)
    far = 0 if ranks == 1 else 2 + hops
    return Counts(ranks, ranks + routers, 2 * ranks + inner, far)


def _hyperx_cut(numbers: tuple[int, ...]) -> float | None:
    *lengths, each = numbers
    least = min((length for length in lengths if length > 1), default=1)
    if least % 2:
        return None
    return min(prod(lengths) * least / 4, each * prod(lengths) / 2)


def _slim_fly_counts(spec: ParsedSpec) -> Counts:
    order, each = spec.numbers
    _check_prime(order)
    routers, degree = 2 * order**2, (3 * order - (1 if order % 4 == 1 else -1)) // 2
    return Counts(routers * each, routers * (each + 1), 2 * routers * each + routers * degree, 4)


def _dragonfly_plus_counts(spec: ParsedSpec) -> Counts:
    """Return the counts; fewer links if several cables join the same two spines."""
    groups, leaves, spines, ranks, *_ = spec.numbers
    shape = _parse_spines(spec.numbers)
    attached, inner = groups * leaves * ranks, groups * leaves * spines
    far = len(global_ends(shape, range(groups)))
    nodes = attached + groups * (leaves + spines)
    return Counts(attached, nodes, 2 * (attached + inner + far), 5 if groups > 1 else None)


FAMILIES = {
    "hyperx": Family(
        form="hyperx:LENGTHxLENGTHx…xRANKS",
        example="hyperx:4x3x2",
        numbers=range(2, 7),
        build=lambda spec: hyperx(spec.numbers[:-1], spec.numbers[-1], **spec.cable),
        counts=_hyperx_counts,
        bisection=cables_cut(_hyperx_cut),
        group=groups_of,
    ),
    "slim_fly": Family(
        form="slim_fly:PRIMExRANKS",
        example="slim_fly:5x1",
        numbers=range(2, 3),
        build=lambda spec: slim_fly(*spec.numbers, **spec.cable),
        counts=_slim_fly_counts,
        group=groups_of,
    ),
    "dragonfly_plus": Family(
        form="dragonfly_plus:GROUPSxLEAVESxSPINESxRANKS[xGLOBAL]",
        example="dragonfly_plus:4x2x3x2",
        numbers=range(4, 6),
        build=lambda spec: dragonfly_plus(spec.numbers, **spec.cable),
        counts=_dragonfly_plus_counts,
        group=groups_of,
    ),
}
