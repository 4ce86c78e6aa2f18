"""The dragonfly: groups of fully connected routers, and all groups connected pairwise.

J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology",
ISCA 2008. Which routers hold the cables between two groups is the *absolute arrangement* of E.
Hastings et al., "Comparing global link arrangements for Dragonfly networks", CLUSTER 2015: global
port ``k`` of group ``i`` leads to group ``k`` if ``k < i``, else ``k + 1``.

Besides the shortest path a dragonfly may be routed minimally, over at most one global cable, by
Valiant's detour over a group in between, or adaptively, by both (:mod:`simulator.topology`). The
policy is part of the topology, so every engine and every what-if uses it.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations
from typing import Unpack

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.support.errors import TopologyError
from simulator.topology import Topology, topology
from topologies.families.family import Cable, Counts, Family, ParsedSpec, cables


class DragonflyShape(Struct, frozen=True, kw_only=True):
    """Sizes of a dragonfly; in the paper's letters ``g``, ``a``, ``p`` and ``h``.

    The canonical, balanced dragonfly has ``a = 2p = 2h`` and ``g = ah + 1``. With fewer groups the
    ports left over carry further cables, the same number between every two groups.

    Parameters
    ----------
    groups
        Number of groups, ``g``.
    routers
        Number of routers of a group, ``a``.
    ranks_per_router
        Number of ranks on a router, ``p``.
    global_links
        Ports of a router for cables to other groups, ``h``.

    Raises
    ------
    TopologyError
        If a number is not positive, or the global links do not reach every group.
    """

    groups: int
    routers: int
    ranks_per_router: int
    global_links: int

    def __post_init__(self) -> None:
        if min(self.groups, self.routers, self.ranks_per_router) < 1 or self.global_links < 0:
            raise TopologyError(f"{self}: groups, routers and ranks per router must be at least 1")
        if self.groups > 1 and not self.cables_per_pair:
            ports = self.routers * self.global_links
            raise TopologyError(
                f"{self}: {ports} global links per group reach at most {ports + 1} groups"
            )

    @property
    def cables_per_pair(self) -> int:
        """Number of global cables between two groups."""
        ports = self.routers * self.global_links
        return ports // (self.groups - 1) if self.groups > 1 else 0


def dragonfly(
    shape: DragonflyShape, *, global_bandwidth: float | None = None, **cable: Unpack[Cable]
) -> Topology:
    """Build a dragonfly with ranks on its routers; global cables may have their own bandwidth.

    ``g a p`` ranks and ``g a`` routers; ``2 (g a p + g a (a - 1) / 2 + c g (g - 1) / 2)`` links
    with ``c`` cables per pair of groups (cables between the same two routers are one link with
    their bandwidth together); at most 3 links between routers, so diameter at most 5; bisection
    bandwidth of ``g`` even, all ranks of a group on one side, ``c (g / 2)**2 B``: an upper bound.

    Parameters
    ----------
    shape
        Numbers of groups, routers, ranks and global links.
    global_bandwidth
        Bandwidth of a cable between groups, one direction (B/s); by default ``bandwidth``.
    **cable
        ``bandwidth`` ``B``, ``latency``, ``resource``: :class:`~topologies.families.family.Cable`.

    Returns
    -------
    Topology
        Named ``dragonfly(g=…, a=…, p=…, h=…)``; routers are the nodes ``"router:GROUP.ROUTER"``.

    Examples
    --------
    >>> shape = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)
    >>> network = dragonfly(shape, bandwidth=25e9, latency=1e-6)
    >>> network.ranks, len(network.nodes), len(network)
    (72, 108, 324)
    """
    # Ranks are numbered router by router, routers group by group.
    attached = [
        (rank, router_name(*divmod(rank // shape.ranks_per_router, shape.routers)))
        for rank in range(shape.groups * shape.routers * shape.ranks_per_router)
    ]
    links = [*cables(attached, **cable), *cables(local_ends(shape, range(shape.groups)), **cable)]
    each = cable["bandwidth"] if global_bandwidth is None else global_bandwidth
    for ends, count in global_ends(shape, range(shape.groups)).items():
        links += cables([ends], **(cable | {"bandwidth": count * each}))
    return topology(
        f"dragonfly(g={shape.groups}, a={shape.routers}, p={shape.ranks_per_router},"
        f" h={shape.global_links})",
        len(attached),
        links,
    )


def router_name(group: int, router: int) -> str:
    """Return the name of a router as a node of the graph."""
    return f"{_ROUTER}{group}.{router}"


_ROUTER = "router:"


def local_ends(shape: DragonflyShape, groups: Collection[int]) -> Iterator[tuple[str, str]]:
    """Return the ends of cables inside the given groups: every two routers of a group."""
    for group in groups:
        routers = [router_name(group, router) for router in range(shape.routers)]
        yield from combinations(routers, 2)


def global_ends(shape: DragonflyShape, groups: Collection[int]) -> Counter[tuple[str, str]]:
    """Count the cables between routers of the given groups, in the absolute arrangement."""
    ends: Counter[tuple[str, str]] = Counter()
    for low, high in combinations(sorted(groups), 2):
        for cable in range(shape.cables_per_pair):
            # Absolute arrangement: port k of a group leads to group k, its own left out, so that
            # ports from its own number on lead one further (`high > low`: port high - 1, and back
            # port low). Round after round of groups - 1 ports for further cables; a router has
            # global_links ports.
            far_port = cable * (shape.groups - 1) + high - 1
            back = cable * (shape.groups - 1) + low
            pair = (
                router_name(low, far_port // shape.global_links),
                router_name(high, back // shape.global_links),
            )
            ends[pair] += 1
    return ends


def groups_of(network: Topology) -> NDArray[np.int32]:
    """Parse the group of every router from its name; -1 for nodes that are not routers."""
    group = np.full(len(network.nodes), -1, dtype=np.int32)
    for number, node in enumerate(network.nodes):
        if isinstance(node, str) and node.startswith(_ROUTER):
            group[number] = int(node.removeprefix(_ROUTER).partition(".")[0])
    return group


def _parse_shape(spec: ParsedSpec) -> DragonflyShape:
    """Return the shape of a spec; by default the fewest global links that join all groups."""
    groups, routers, ranks, *links = spec.numbers
    # One port per other group, divided over the routers, rounded up.
    fewest = -(-(groups - 1) // routers) if routers else 0
    return DragonflyShape(
        groups=groups,
        routers=routers,
        ranks_per_router=ranks,
        global_links=links[0] if links else fewest,
    )


def _counts(spec: ParsedSpec) -> Counts:
    """Return the counts; fewer links if several cables join the same two routers."""
    shape = _parse_shape(spec)
    routers = shape.groups * shape.routers
    ranks = routers * shape.ranks_per_router
    local = routers * (shape.routers - 1)
    far = shape.cables_per_pair * shape.groups * (shape.groups - 1)
    return Counts(ranks, ranks + routers, 2 * ranks + local + far, None)


FAMILIES = {
    "dragonfly": Family(
        form="dragonfly:GROUPSxROUTERSxRANKS[xGLOBAL]",
        example="dragonfly:5x4x2",
        numbers=range(3, 5),
        build=lambda spec: dragonfly(_parse_shape(spec), **spec.cable),
        counts=_counts,
        group=groups_of,
    )
}
