"""The dragonfly: groups of routers, every router of a group joined, every two groups joined.

J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven, Highly-Scalable Dragonfly Topology",
ISCA 2008. Which router of a group has the cable to which other group is the *absolute
arrangement* of E. Hastings et al., "Comparing global link arrangements for Dragonfly networks",
CLUSTER 2015: global port ``k`` of group ``i`` leads to group ``k`` if ``k < i``, else ``k + 1``.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import combinations

from simulator.errors import TopologyError
from simulator.topology import SCALE_UP, Topology, topology
from topologies.families.ring_and_switch import cables


@dataclass(frozen=True, slots=True, kw_only=True)
class DragonflyShape:
    """How many of everything; in the paper's letters ``g``, ``a``, ``p`` and ``h``.

    The canonical, balanced dragonfly has ``a = 2p = 2h`` and ``g = ah + 1``. With fewer groups
    the ports left over carry further cables, the same number between every two groups.
    """

    groups: int
    routers: int
    ranks_per_router: int
    global_links: int

    def __post_init__(self) -> None:
        if min(self.groups, self.routers, self.ranks_per_router) < 1 or self.global_links < 0:
            raise TopologyError(f"{self} has nothing where something must be")
        if self.groups > 1 and not self.cables_per_pair:
            ports = self.routers * self.global_links
            raise TopologyError(
                f"{self}: {ports} global links per group reach at most {ports + 1} groups"
            )

    @property
    def cables_per_pair(self) -> int:
        """Global cables between every two groups."""
        ports = self.routers * self.global_links
        return ports // (self.groups - 1) if self.groups > 1 else 0


def dragonfly(
    shape: DragonflyShape,
    *,
    bandwidth: float,
    latency: float,
    global_bandwidth: float | None = None,
    resource: str = SCALE_UP,
) -> Topology:
    """Ranks on the routers of a dragonfly; all cables alike unless the global ones are given.

    ``g a p`` ranks and ``g a`` routers; ``2 (g a p + g a (a - 1) / 2 + c g (g - 1) / 2)`` links
    with ``c`` cables per pair of groups (cables between the same two routers are one link with
    their bandwidth together); at most 3 links between routers, so diameter at most 5; bisection
    bandwidth of ``g`` even, all ranks of a group on one side, ``c (g / 2)**2 B``: an upper bound.

    Examples
    --------
    >>> shape = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)
    >>> network = dragonfly(shape, bandwidth=25e9, latency=1e-6)
    >>> network.ranks, len(network.nodes), len(network)
    (72, 108, 324)
    """
    attached = [
        (rank, router_name(*divmod(rank // shape.ranks_per_router, shape.routers)))
        for rank in range(shape.groups * shape.routers * shape.ranks_per_router)
    ]
    links = [
        *cables(attached, bandwidth=bandwidth, latency=latency, resource=resource),
        *cables(
            local_ends(shape, range(shape.groups)),
            bandwidth=bandwidth,
            latency=latency,
            resource=resource,
        ),
    ]
    each = bandwidth if global_bandwidth is None else global_bandwidth
    for ends, count in global_ends(shape, range(shape.groups)).items():
        links += cables([ends], bandwidth=count * each, latency=latency, resource=resource)
    return topology(_name(shape), len(attached), links)


def router_name(group: int, router: int) -> str:
    """Name of a router as a node of the graph."""
    return f"router:{group}.{router}"


def local_ends(shape: DragonflyShape, groups: Collection[int]) -> Iterator[tuple[str, str]]:
    """Cables inside the given groups: every two routers of a group."""
    for group in groups:
        routers = [router_name(group, router) for router in range(shape.routers)]
        yield from combinations(routers, 2)


def global_ends(shape: DragonflyShape, groups: Collection[int]) -> Counter[tuple[str, str]]:
    """Count the cables between routers of the given groups, in the absolute arrangement."""
    ends: Counter[tuple[str, str]] = Counter()
    for one, other in combinations(sorted(groups), 2):
        for cable in range(shape.cables_per_pair):
            there = cable * (shape.groups - 1) + other - 1
            back = cable * (shape.groups - 1) + one
            pair = (
                router_name(one, there // shape.global_links),
                router_name(other, back // shape.global_links),
            )
            ends[pair] += 1
    return ends


def _name(shape: DragonflyShape) -> str:
    return (
        f"dragonfly(g={shape.groups}, a={shape.routers}, p={shape.ranks_per_router},"
        f" h={shape.global_links})"
    )
