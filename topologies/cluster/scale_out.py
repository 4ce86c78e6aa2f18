"""The fabric between scale-up domains: NICs, and the switches they are plugged into.

Half of the tier's latency is on each NIC's link, so that two NICs on one switch are that latency
apart; every cable between switches adds ``hop_latency``. Only switches that the nodes of a job need
are built.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from simulator.topology import SCALE_OUT, SCALE_OUT_HOPS, Link, Routing, Topology
from topologies.cluster.fabrics import (
    DragonflyFabric,
    FatTreeFabric,
    GraphFabric,
    LeafSpineFabric,
    PlanedFabric,
    RailFabric,
    ScaleOut,
    SwitchFabric,
    TorusFabric,
)
from topologies.cluster.graphs import fabric_graph
from topologies.cluster.schema import Cluster
from topologies.families.dragonfly import (
    DragonflyShape,
    global_ends,
    groups_of,
    local_ends,
    router_name,
)
from topologies.families.family import cables
from topologies.families.from_file import preferring_fast
from topologies.families.grid import slice_ends

HOST_COPIES = "host_copies"
"""Resource of what the host's processor copies through a NIC (``scale_out.host_bandwidth``)."""


class Nic(Struct, frozen=True):
    """NIC ``first`` of a node, or ``count`` of them from there that serve one rank together.

    ``fabric`` has the bandwidth and latency of each, as its kind of node sees them.
    """

    node: int
    first: int
    count: int
    fabric: ScaleOut

    @property
    def name(self) -> str:
        """Name in the graph: ``nic:3.1``, or ``nic:3.2-3`` for several."""
        last = f"-{self.first + self.count - 1}" if self.count > 1 else ""
        return f"nic:{self.node}.{self.first}{last}"

    @property
    def out(self) -> str:
        """Name of the sending side."""
        return f"{self.name}:out"

    @property
    def into(self) -> str:
        """Name of the receiving side."""
        return f"{self.name}:in"


def node_nics(cluster: Cluster, nodes: int, first_node: int = 0) -> list[Nic]:
    """Return all NICs of ``nodes`` nodes, used or not; the same number for each node.

    If a wired node has more NICs than its wiring, each of that represents several.

    Examples
    --------
    >>> from topologies import changed, load_cluster
    >>> doubled = changed(load_cluster("perlmutter"), "scale_out.nics_per_node", 2)
    >>> [nic.name for nic in node_nics(doubled, 1)]
    ['nic:0.0-1', 'nic:0.2-3', 'nic:0.4-5', 'nic:0.6-7']
    """
    if cluster.scale_out is None:
        return []
    count = cluster.scale_out.nics_per_node
    drawn = cluster.wiring.nics if cluster.wiring is not None else cluster.ranks_per_node
    shares = min(count, drawn)
    starts = [-(-share * count // shares) for share in range(shares + 1)]
    return [
        Nic(node, first, after - first, cluster.scale_out)
        for node in range(first_node, first_node + nodes)
        for first, after in pairwise(starts)
    ]


def fabric_links(fabric: ScaleOut, nics: Sequence[Nic], nodes: int) -> Iterator[Link]:
    """Yield the links of the NICs, and those between the switches that the nodes need."""
    if isinstance(fabric, PlanedFabric) and fabric.planes > 1:
        yield from _plane_links(fabric, nics, nodes)
        return
    plug, inner = _LINKS[type(fabric)]
    plugs: dict[str, None] = {}
    for nic in nics:
        bandwidth, latency = nic.fabric.bandwidth * nic.fabric.efficiency, nic.fabric.latency / 2
        switch = plug(fabric, nic)
        plugs[switch] = None
        out, into = nic.out, nic.into
        if nic.fabric.host_bandwidth is not None:
            out, into = f"{nic.name}:wire-out", f"{nic.name}:wire-in"
            copied = nic.count * nic.fabric.host_bandwidth
            yield Link(nic.out, out, copied, 0.0, HOST_COPIES)
            yield Link(into, nic.into, copied, 0.0, HOST_COPIES)
        yield Link(out, switch, nic.count * bandwidth, latency, SCALE_OUT)
        yield Link(switch, into, nic.count * bandwidth, latency, SCALE_OUT)
    yield from inner(fabric, list(plugs), nodes)


def in_plane(name: str, plane: int) -> str:
    """Return the name of a switch of a plane.

    Examples
    --------
    >>> in_plane("leaf:3", 1)
    'leaf:3.p1'
    """
    return f"{name}.p{plane}"


def _plane_links(
    fabric: LeafSpineFabric | RailFabric | FatTreeFabric, nics: Sequence[Nic], nodes: int
) -> Iterator[Link]:
    """Yield each plane's links as a fabric of its own, its switches named by the plane."""
    each = fabric.ports_of_nic
    ports: list[list[tuple[Nic, Nic]]] = [[] for _ in range(fabric.planes)]
    for nic in nics:
        subnet = nic.fabric.in_plane() if isinstance(nic.fabric, PlanedFabric) else nic.fabric
        numbers = range(nic.first * each, (nic.first + nic.count) * each)
        for plane, plane_ports in enumerate(ports):
            of_plane = (port for port in numbers if port % fabric.planes == plane)
            nics_there = [port // fabric.planes for port in of_plane]
            if nics_there:
                plane_ports.append((nic, Nic(nic.node, nics_there[0], len(nics_there), subnet)))
    for plane, plane_ports in enumerate(ports):
        ends = {
            side: whole_side
            for whole, port in plane_ports
            for side, whole_side in ((port.out, whole.out), (port.into, whole.into))
        }
        for link in fabric_links(fabric.in_plane(), [port for _, port in plane_ports], nodes):
            source, target = (
                ends.get(str(end), in_plane(str(end), plane)) for end in (link.source, link.target)
            )
            yield replace(link, source=source, target=target)


def fabric_routing(fabric: ScaleOut, network: Topology) -> Routing:
    """Return the routing of a fabric's switches on the network that a job sees.

    Routers of a dragonfly form its groups; those of a torus are one group.
    """
    group = None
    if isinstance(fabric, DragonflyFabric):
        group = groups_of(network)
    elif isinstance(fabric, TorusFabric):
        router = [str(node).startswith("router:") for node in network.nodes]
        group = np.where(router, 0, -1).astype(np.int32)
    if isinstance(fabric, SwitchFabric):
        return Routing(fabric.policy, resource=SCALE_OUT)
    seed, flows = fabric.routing_seed, fabric.flows
    return Routing(fabric.policy, resource=SCALE_OUT, seed=seed, flows=flows, group=group)


def _rail_links(fabric: RailFabric, plugs: list[str], nodes: int) -> Iterator[Link]:
    """Yield links to spines; NICs that serve one rank as one share one rail switch."""
    pods = -(-nodes // fabric.nodes_per_pod)
    ports = fabric.nodes_per_pod * fabric.nics_per_node * pods // len(plugs)
    yield from _spine_links(fabric, plugs, ports)


def _spine_links(
    fabric: LeafSpineFabric | RailFabric, switches: list[str], ports: int
) -> Iterator[Link]:
    """Yield links of every switch of ``ports`` NICs to every spine; none for one switch."""
    if not fabric.spines:
        return
    down = ports * fabric.bandwidth * fabric.efficiency
    spines = range(fabric.spines if len(switches) > 1 else 0)
    yield from cables(
        ((switch, f"spine:{spine}") for switch in switches for spine in spines),
        bandwidth=down / (fabric.spines * fabric.oversubscription),
        latency=fabric.hop_latency,
        resource=SCALE_OUT,
    )


def _edge(fabric: FatTreeFabric, nic: Nic) -> str:
    half = fabric.ports // 2
    edge = (nic.node * fabric.nics_per_node + nic.first) // half
    return "edge:{}.{}".format(*divmod(edge, half))


def _fat_tree_links(fabric: FatTreeFabric, plugs: list[str], nodes: int) -> Iterator[Link]:
    """Yield links above the edge switches in use; none for one, no cores for one pod."""
    del nodes
    highs = range(fabric.ports // 2 if len(plugs) > 1 else 0)
    pods = list(dict.fromkeys(plug.removeprefix("edge:").partition(".")[0] for plug in plugs))
    low = [
        (plug, f"aggregation:{plug.removeprefix('edge:').partition('.')[0]}.{high}")
        for plug in plugs
        for high in highs
    ]
    cores = range(fabric.ports // 2 if len(pods) > 1 else 0)
    high_ends = [
        (f"aggregation:{pod}.{high}", f"core:{high}.{core}")
        for pod in pods
        for high in highs
        for core in cores
    ]
    yield from cables(
        [*low, *high_ends],
        bandwidth=fabric.bandwidth * fabric.efficiency / fabric.oversubscription,
        latency=fabric.hop_latency,
        resource=SCALE_OUT,
    )


def _torus_links(fabric: TorusFabric, plugs: list[str], nodes: int) -> Iterator[Link]:
    del plugs
    # The bandwidth of a node's NICs is divided over both directions of each dimension.
    node_bandwidth = fabric.nics_per_node * fabric.bandwidth * fabric.efficiency
    ends = slice_ends(fabric.dimensions, nodes, closes=True)
    yield from cables(
        ((f"router:{source}", f"router:{target}") for source, target in ends),
        bandwidth=node_bandwidth / (2 * len(fabric.dimensions)),
        latency=fabric.hop_latency,
        resource=SCALE_OUT,
    )


def _router(fabric: DragonflyFabric, nic: Nic) -> str:
    group, node = divmod(nic.node, fabric.nodes_per_group)
    # Ports of a group are numbered node by node; each router has a run of them.
    port = node * fabric.nics_per_node + nic.first
    return router_name(group, port // _dragonfly_shape(fabric).ranks_per_router)


def _dragonfly_links(fabric: DragonflyFabric, plugs: list[str], nodes: int) -> Iterator[Link]:
    """Yield links of all routers of the groups in use; for one group only those with NICs."""
    shape, groups = _dragonfly_shape(fabric), range(-(-nodes // fabric.nodes_per_group))
    local = fabric.efficiency * (fabric.local_bandwidth or fabric.bandwidth)
    far = fabric.efficiency * (fabric.global_bandwidth or fabric.bandwidth)
    ends = local_ends(shape, groups) if len(groups) > 1 else combinations(sorted(plugs), 2)
    yield from cables(ends, bandwidth=local, latency=fabric.hop_latency, resource=SCALE_OUT)
    for pair, count in global_ends(shape, groups).items():
        yield from cables(
            [pair], bandwidth=count * far, latency=fabric.hop_latency, resource=SCALE_OUT
        )


def _dragonfly_shape(fabric: DragonflyFabric) -> DragonflyShape:
    """Return the shape with whole nodes on a router if possible, to keep messages on their rail.

    Otherwise the shortest path would lead through the rank of the node whose NIC happens to be on
    the nearer router, and messages of several ranks would share one NIC.
    """
    nodes, routers = fabric.nodes_per_group, fabric.routers_per_group
    # Whole nodes per router, rounded up; with fewer nodes than routers, NICs are divided instead.
    ports = -(-nodes // routers) * fabric.nics_per_node
    if nodes < routers:
        ports = -(-nodes * fabric.nics_per_node // routers)
    return DragonflyShape(
        groups=fabric.groups,
        routers=fabric.routers_per_group,
        ranks_per_router=ports,
        global_links=fabric.global_links_per_router,
    )


def _place_of(fabric: GraphFabric, nic: Nic) -> str:
    each = fabric.nics_per_node
    number = nic.node if fabric.graph.ranks == "nodes" else nic.node * each + nic.first
    return f"place:{number}"


def _graph_links(fabric: GraphFabric, plugs: list[str], nodes: int) -> Iterator[Link]:
    """Yield all links of the graph: which of them the job's messages take is not known."""
    del plugs, nodes
    network = fabric_graph(fabric)
    for link in preferring_fast(
        [network.link(number) for number in range(len(network))], SCALE_OUT_HOPS
    ):
        source, target = (
            f"place:{end}" if isinstance(end, int) else end for end in (link.source, link.target)
        )
        bandwidth = link.bandwidth * fabric.efficiency
        yield replace(link, source=source, target=target, bandwidth=bandwidth)


_LINKS: dict[
    type, tuple[Callable[[Any, Nic], str], Callable[[Any, list[str], int], Iterator[Link]]]
]
_LINKS = {
    SwitchFabric: (lambda fabric, nic: "fabric", lambda fabric, plugs, nodes: iter(())),
    LeafSpineFabric: (
        lambda fabric, nic: f"leaf:{nic.node // fabric.nodes_per_leaf}",
        lambda fabric, plugs, nodes: _spine_links(
            fabric, plugs, fabric.nodes_per_leaf * fabric.nics_per_node
        ),
    ),
    RailFabric: (
        lambda fabric, nic: f"rail:{nic.node // fabric.nodes_per_pod}.{nic.first}",
        _rail_links,
    ),
    FatTreeFabric: (_edge, _fat_tree_links),
    TorusFabric: (lambda fabric, nic: f"router:{nic.node}", _torus_links),
    DragonflyFabric: (_router, _dragonfly_links),
    GraphFabric: (_place_of, _graph_links),
}
"""By fabric: the switch of a NIC, and the links between those switches."""
