"""The fabric between scale-up domains: NICs, and what they are plugged into.

Half of the tier's latency lies on each NIC's link, so that two NICs on one switch are that
latency apart; every cable between routers adds ``hop_latency``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from simulator.topology import SCALE_OUT, Link
from topologies.cables import cables
from topologies.cluster import Cluster, DragonflyFabric, ScaleOut, TorusFabric
from topologies.dragonfly import DragonflyShape, global_ends, local_ends, router_name
from topologies.slices import slice_ends


@dataclass(frozen=True, slots=True)
class Nic:
    """NIC ``first`` of a node, or ``count`` of them from there that serve one rank together."""

    node: int
    first: int
    count: int

    @property
    def name(self) -> str:
        """``nic:3.1``, or ``nic:3.2-3`` for several."""
        last = f"-{self.first + self.count - 1}" if self.count > 1 else ""
        return f"nic:{self.node}.{self.first}{last}"

    @property
    def out(self) -> str:
        """The side that sends."""
        return f"{self.name}:out"

    @property
    def into(self) -> str:
        """The side that receives."""
        return f"{self.name}:in"


def node_nics(cluster: Cluster, nodes: int) -> list[Nic]:
    """Every NIC of the first ``nodes`` nodes, whether or not a rank uses it; as many per node.

    Examples
    --------
    >>> from topologies import changed, load_cluster
    >>> doubled = changed(load_cluster("perlmutter"), "scale_out.nics_per_node", 2)
    >>> [nic.name for nic in node_nics(doubled, 1)]
    ['nic:0.0-1', 'nic:0.2-3', 'nic:0.4-5', 'nic:0.6-7']
    """
    count = 0 if cluster.scale_out is None else cluster.scale_out.nics_per_node
    shares = min(count, cluster.ranks_per_node)
    starts = [-(-share * count // shares) for share in range(shares + 1)]
    return [
        Nic(node, first, after - first)
        for node in range(nodes)
        for first, after in pairwise(starts)
    ]


def fabric_links(fabric: ScaleOut, nics: Sequence[Nic], nodes: int) -> Iterator[Link]:
    """Links of the NICs, and those between the routers that the nodes in use need."""
    bandwidth, latency = fabric.bandwidth * fabric.efficiency, fabric.latency / 2
    for nic in nics:
        plug = _plug(fabric, nic)
        yield Link(nic.out, plug, nic.count * bandwidth, latency, SCALE_OUT)
        yield Link(plug, nic.into, nic.count * bandwidth, latency, SCALE_OUT)
    if isinstance(fabric, TorusFabric):
        yield from _torus_links(fabric, nodes)
    elif isinstance(fabric, DragonflyFabric):
        yield from _dragonfly_links(fabric, {_plug(fabric, nic) for nic in nics}, nodes)


def _plug(fabric: ScaleOut, nic: Nic) -> str:
    """Return the switch or router that a NIC is plugged into."""
    if isinstance(fabric, TorusFabric):
        return f"router:{nic.node}"
    if isinstance(fabric, DragonflyFabric):
        group, node = divmod(nic.node, fabric.nodes_per_group)
        port = node * fabric.nics_per_node + nic.first
        return router_name(group, port // _shape(fabric).ranks_per_router)
    return "fabric"


def _torus_links(fabric: TorusFabric, nodes: int) -> Iterator[Link]:
    node_bandwidth = fabric.nics_per_node * fabric.bandwidth * fabric.efficiency
    places = slice_ends(fabric.dimensions, nodes, closes=True)
    yield from cables(
        ((f"router:{one}", f"router:{other}") for one, other in places),
        bandwidth=node_bandwidth / (2 * len(fabric.dimensions)),
        latency=fabric.hop_latency,
        resource=SCALE_OUT,
    )


def _dragonfly_links(fabric: DragonflyFabric, plugs: set[str], nodes: int) -> Iterator[Link]:
    """All routers of the groups in use; of a single group only those that have a NIC."""
    shape, groups = _shape(fabric), range(-(-nodes // fabric.nodes_per_group))
    local = fabric.efficiency * (fabric.local_bandwidth or fabric.bandwidth)
    far = fabric.efficiency * (fabric.global_bandwidth or fabric.bandwidth)
    ends = local_ends(shape, groups) if len(groups) > 1 else combinations(sorted(plugs), 2)
    yield from cables(ends, bandwidth=local, latency=fabric.hop_latency, resource=SCALE_OUT)
    for pair, count in global_ends(shape, groups).items():
        yield from cables(
            [pair], bandwidth=count * far, latency=fabric.hop_latency, resource=SCALE_OUT
        )


def _shape(fabric: DragonflyFabric) -> DragonflyShape:
    ports = fabric.nodes_per_group * fabric.nics_per_node
    return DragonflyShape(
        groups=fabric.groups,
        routers=fabric.routers_per_group,
        ranks_per_router=-(-ports // fabric.routers_per_group),
        global_links=fabric.global_links_per_router,
    )
