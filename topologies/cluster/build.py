"""The network that a job sees on a cluster: scale-up domains joined by a scale-out fabric.

Nodes of the graph besides the ranks: ``scale_up:2`` is the switch of domain 2, ``fabric`` the
switch between domains, ``router:…`` a router of it. NIC 1 of node 3 is two nodes, ``nic:3.1:out``
and ``nic:3.1:in``, so that no path can turn round in a NIC, from one rank to another that shares
it, without paying for the fabric. A message between domains passes rank, NIC out, fabric, NIC in,
rank.

If a node has several domains and the file gives ``pcie``, its ranks reach each other through
``host:3``, a PCIe switch with a port of that bandwidth per rank. The ports to the NICs are
separate: contention of NIC and host traffic of a rank for one slot is not modelled.

If a graph describes a domain or the fabric, its switches keep the names of the graph, in a domain
followed by its number (``nvswitch0:2``). ``place:7`` is a rank of the fabric's graph, where NICs
are plugged in, and ``seat:2.7`` a rank of a domain's graph that the job does not use. A cluster
that is one graph is always built whole.

If the cluster has a ``wiring`` (:mod:`topologies.cluster.wiring`) a node is the graph that it
describes: a vertex ``plx0`` of node 3 is ``plx0:3``, a GPU that the job does not use ``gpu:3.7``. A
path between two GPUs costs the latency of the tier they meet on. A cable of the scale-up fabric has
all of it between two GPUs, half of it between a GPU and anything else, and none otherwise. PCIe has
latency only if peers have to use it: elsewhere it leads to NICs, whose latency includes it.

A message's path in a tier costs the latency that the cluster file gives for the tier: half of it on
each side of a switch, all of it on a direct cable.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.support.limits import limits
from simulator.topology import (
    PCIE,
    SCALE_OUT,
    SCALE_UP,
    Doors,
    Link,
    Node,
    Routing,
    Topology,
    topology,
)
from topologies.cluster.fabrics import Graph, GraphFabric, RailFabric, SwitchFabric
from topologies.cluster.graphs import domain_graph
from topologies.cluster.node import WIRED, PciePaths, ScaleUp
from topologies.cluster.placement import Placement, place
from topologies.cluster.scale_out import Nic, fabric_links, fabric_routing, node_nics
from topologies.cluster.schema import Cluster
from topologies.cluster.wiring import (
    HOST_MEMORY,
    P2P_LEVELS,
    USUAL_P2P,
    Cable,
    P2pLevel,
    Wiring,
    gpu_number,
    is_processor,
    nic_number,
    reached,
)
from topologies.families.family import Domain, cables
from topologies.faults import with_outages


def build(cluster: Cluster, ranks: int, nodes: int | None = None) -> Topology:
    """Build the network of a job: its domains, all NICs of its nodes, the fabric.

    Ranks fill the nodes in order; with ``nodes`` they are spread evenly over that many. The rank
    in slot ``i`` of a node uses NIC ``i * nics // ranks_per_node``. If a node has more NICs than
    ranks, the NICs of one rank (``k`` such that ``k * ranks_per_node // nics`` is its slot) are
    one NIC with their total bandwidth, named after the first and the last (``nic:0.0-1``).
    If nodes differ, the job fills kind after kind; each is built from its own fields.

    Parameters
    ----------
    cluster
        The machine.
    ranks
        Ranks of the job.
    nodes
        Number of nodes that the ranks are spread over evenly; by default as few as hold them.

    Returns
    -------
    Topology
        Named ``dgx-a100(16)``, with those of the resources ``scale_up``, ``pcie`` and
        ``scale_out`` that the cluster has.

    Raises
    ------
    ClusterError
        If the job does not fit.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> network = build(load_cluster("dgx-a100"), 16)
    >>> network.name, network.resources
    ('dgx-a100(16)', ('scale_up', 'pcie', 'scale_out'))
    """
    placement = place(cluster, ranks, nodes)
    over = "" if nodes is None else f", nodes={nodes}"
    name = f"{cluster.name}({ranks}{over})"
    graph = cluster.scale_up.graph
    if graph is not None and cluster.is_one_graph:
        return _with_factors(replace(_graph_of_domain(graph, cluster.scale_up), name=name), cluster)
    nics: list[Nic] = []
    links: list[Link] = []
    for part in placement.parts_of(cluster):
        kind, seats = part.cluster, part.placement
        plugged = node_nics(kind, seats.nodes, seats.first_node)
        nics += plugged
        cables = len(kind.wiring.cables) if kind.wiring is not None else 1
        what = f"{seats.nodes} nodes of {cables} cables"
        limits().check("items", seats.nodes * cables, cluster.name, what)
        if kind.wiring is not None:
            links += wired_links(kind, seats, plugged, kind.wiring)
            continue
        links += _domain_links(kind, seats)
        links += _host_links(kind, seats)
        links += _port_links(kind, seats, plugged)
    fabric = cluster.scale_out
    if fabric is not None:
        links += fabric_links(fabric, nics, placement.nodes)
    kinds = enumerate(part.placement.ranks for part in placement.parts)
    kind_of_rank = tuple(number for number, seats in kinds for _ in range(seats))
    network = _with_factors(replace(topology(name, ranks, links), kind=kind_of_rank), cluster)
    # A torus spreads messages over their shortest paths (TPU: Y. Zu et al., "Resiliency at Scale:
    # Managing Google's TPUv4 Machine Learning Supercomputer", NSDI 2024, routes so that links are
    # evenly loaded), also beside a single switch; switches of a fabric hash.
    routing = Routing()
    if cluster.scale_up.dimensions is not None and isinstance(fabric, SwitchFabric | None):
        routing = Routing("spray")
    elif fabric is not None:
        routing = fabric_routing(fabric, network)
    network = replace(network, routing=routing)
    own_rails = cluster.library is not None and not cluster.library.pxn
    if cluster.wiring is not None or (nics and own_rails):
        network = with_doors(network, cluster, placement, nics)
    graphs = [part.cluster.scale_up.graph for part in placement.parts_of(cluster)]
    if isinstance(fabric, GraphFabric) or any(graph is not None for graph in graphs):
        return with_outages(network)
    return network


def _with_factors(network: Topology, cluster: Cluster) -> Topology:
    """Return the network with the cluster's ``link_factors`` applied, resource by resource."""
    bandwidth, latency = network.bandwidth.copy(), network.latency.copy()
    for resource, by in cluster.link_factors.items():
        bandwidth[network.following(f"{resource}.bandwidth")] *= by.bandwidth
        latency[network.following(f"{resource}.latency")] *= by.latency
    return replace(network, bandwidth=bandwidth, latency=latency)


def _graph_of_domain(graph: Graph, scale_up: ScaleUp) -> Topology:
    return domain_graph(graph, scale_up.bandwidth, scale_up.latency, scale_up.efficiency)


def _graph_links(cluster: Cluster, placement: Placement, graph: Graph) -> Iterator[Link]:
    """Yield the links of a domain's graph, once for every domain in use."""
    network, size = _graph_of_domain(graph, cluster.scale_up), cluster.scale_up.size
    links = [network.link(index) for index in range(len(network))]
    for number, members in placement.domains(cluster).items():
        ranks = {placement.place(cluster, rank) % size: rank for rank in members}
        for link in links:
            source, target = (
                ranks.get(end, f"seat:{number}.{end}")
                if isinstance(end, int)
                else f"{end}:{number}"
                for end in (link.source, link.target)
            )
            yield replace(link, source=source, target=target)


def _domain_links(cluster: Cluster, placement: Placement) -> Iterator[Link]:
    """Yield the links inside every domain in use; a job that does not fill a grid gets a slice."""
    scale_up = cluster.scale_up
    if scale_up.graph is not None:
        yield from _graph_links(cluster, placement, scale_up.graph)
        return
    role = scale_up.role
    for number, members in placement.domains(cluster).items():
        domain = Domain(
            members, f"scale_up:{number}", scale_up.shape, scale_up.wrap_multiple, scale_up.twisted
        )
        yield from cables(
            role.ends(domain),
            bandwidth=scale_up.link_bandwidth,
            # A message passes two links of a switch, to it and from it: each costs half of the
            # tier's latency.
            latency=scale_up.latency / 2 if role.switched else scale_up.latency,
            resource=SCALE_UP,
        )


def _host_links(cluster: Cluster, placement: Placement) -> Iterator[Link]:
    """Yield links between ranks and their node's PCIe switch, if it has several domains."""
    size, pcie = cluster.scale_up.size, cluster.pcie
    if pcie is None or placement.ranks_per_node <= size:
        return
    # Without a latency of PCIe in the file, use the scale-up's, which what-ifs then change too.
    latency, of = pcie.latency, PCIE
    if latency is None:
        latency, of = cluster.scale_up.latency, SCALE_UP
    ends = [(rank, f"host:{placement.seat(rank)[0]}") for rank in placement.members]
    bandwidth = pcie.bandwidth * pcie.efficiency
    # Rank to rank passes two of these links.
    for link in cables(ends, bandwidth=bandwidth, latency=latency / 2, resource=PCIE):
        yield replace(link, latency_resource=of)


def _port_links(cluster: Cluster, placement: Placement, nics: Sequence[Nic]) -> Iterator[Link]:
    """Yield links between ranks and their NICs, both ways; unlimited if the file has no PCIe.

    If the scale-up fabric is PCIe itself, a rank has one slot for both: the NIC is plugged into the
    switch of the domain.
    """
    pcie = cluster.pcie
    bandwidth = math.inf if pcie is None else pcie.bandwidth * pcie.efficiency
    resource = SCALE_OUT if pcie is None else PCIE
    per_node, nic_of_slot = len(nics) // placement.nodes, own_nics(cluster)
    with_peers = one_slot(cluster.scale_up)
    plugs: dict[tuple[Node, str], Nic] = {}
    for rank in placement.members if nics else ():
        node, slot = placement.seat(rank)
        # `nics` is ordered by node; all nodes of a kind have the same number.
        nic = nics[(node - placement.first_node) * per_node + nic_of_slot[slot]]
        plug: Node = f"scale_up:{placement.domain(cluster, rank)}" if with_peers else rank
        # Ranks that share a slot or a NIC share its links: make each link once.
        plugs.setdefault((plug, nic.out), nic)
    for (plug, _), nic in plugs.items():
        yield Link(plug, nic.out, bandwidth, 0.0, resource)
        yield Link(nic.into, plug, bandwidth, 0.0, resource)


def own_nics(cluster: Cluster) -> list[int]:
    """Return the NIC of each slot, an index into :func:`~topologies.cluster.scale_out.node_nics`.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> own_nics(load_cluster("mi250x-frontier"))
    [0, 0, 1, 1, 2, 2, 3, 3]
    """
    if cluster.scale_out is None:
        return []
    if cluster.wiring is not None:
        return cluster.wiring.own_nics()
    per_node = cluster.ranks_per_node
    nics = min(cluster.scale_out.nics_per_node, per_node)
    # Runs of slots share a NIC: with half as many NICs as ranks, two neighbours share one.
    return [slot * nics // per_node for slot in range(per_node)]


def one_slot(scale_up: ScaleUp) -> bool:
    """Whether a rank reaches its peers and its NIC over the same PCIe slot."""
    return scale_up.topology in ("switch", WIRED) and (scale_up.link or "").startswith("pcie")


def wired_links(
    cluster: Cluster, placement: Placement, nics: Sequence[Nic], wiring: Wiring
) -> Iterator[Link]:
    """Yield the links inside every node in use; none to NICs if there is no fabric."""
    speed = _unit_bandwidths(cluster, wiring)
    paths = cluster.pcie.paths if cluster.pcie and one_slot(cluster.scale_up) else None
    tree = None if paths is None else _PcieTree(cluster, wiring, paths)
    for node in range(placement.nodes):
        # A NIC of several ports is listed once, with its first port.
        nic_by_number = {nic.first // nic.count: nic for nic in nics if nic.node == node}
        if tree is not None:
            yield from tree.links(node, placement, nic_by_number)
            continue
        for cable in wiring.cables:
            bandwidth = cable.width * speed[cable.tier]
            number = [nic_index for end in cable.ends if (nic_index := nic_number(end)) is not None]
            if number and number[0] in nic_by_number:
                nic = nic_by_number[number[0]]
                plug = next(end for end in cable.ends if nic_number(end) is None)
                vertex = _node_for(plug, node, placement)
                yield Link(vertex, nic.out, nic.count * bandwidth, 0.0, PCIE)
                yield Link(nic.into, vertex, nic.count * bandwidth, 0.0, PCIE)
            elif not number:
                source, target = (_node_for(end, node, placement) for end in cable.ends)
                link = _link_of_cable(cluster, wiring, cable, bandwidth)
                yield replace(link, source=source, target=target)
                yield replace(link, source=target, target=source)


class _PcieTree:
    """PCIe of a wired node: paths go up towards a processor and turn where they may.

    Every switch and processor has two sides, ``cpu0`` on the upward path and ``cpu0-down`` on the
    downward path, joined where messages may turn: at a switch only with peer access, at a processor
    through its root complex or the buffers in its memory. Links between processors are downward, so
    that a message is stored in the memory of one processor only.
    """

    def __init__(self, cluster: Cluster, wiring: Wiring, paths: PciePaths) -> None:
        level = (cluster.library and cluster.library.p2p) or USUAL_P2P
        self.cluster, self.wiring, self.paths = cluster, wiring, paths
        self.reach = P2P_LEVELS.index(level)
        self.speed = _unit_bandwidths(cluster, wiring)
        top = [name for name in wiring.vertices if name.startswith("cpu") and is_processor(name)]
        top = top or [name for name in wiring.vertices if is_processor(name)]
        inside = [cable for cable in wiring.cables if cable.tier == SCALE_UP]
        self.depth = {
            name: min(reached(processor, inside).get(name, len(inside)) for processor in top)
            for name in wiring.vertices
        }

    def links(self, node: int, placement: Placement, nics: Mapping[int, Nic]) -> Iterator[Link]:
        """Yield the links inside one node."""
        for cable in self.wiring.cables:
            if cable.tier == SCALE_UP:
                yield from self._cable_links(cable, node, placement)
        for name in self.wiring.vertices:
            turn = self._turn_bandwidth(name)
            if turn > 0:
                of = SCALE_UP if math.isinf(turn) else HOST_MEMORY
                yield Link(f"{name}:{node}", f"{name}-down:{node}", turn, 0.0, of)
        for cable in self.wiring.cables:
            number = next((n for end in cable.ends if (n := nic_number(end)) is not None), None)
            if number is None or number not in nics:
                continue
            nic, plug = nics[number], next(end for end in cable.ends if nic_number(end) is None)
            bandwidth = nic.count * cable.width * self.speed[PCIE]
            sides = (f"{plug}:{node}", f"{plug}-down:{node}")
            for side in sides if gpu_number(plug) is None else (_node_for(plug, node, placement),):
                yield Link(side, nic.out, bandwidth, 0.0, PCIE)
                yield Link(nic.into, side, bandwidth, 0.0, PCIE)

    def _cable_links(self, cable: Cable, node: int, placement: Placement) -> Iterator[Link]:
        lower, upper = sorted(cable.ends, key=self.depth.__getitem__, reverse=True)
        bandwidth = cable.width * self.speed[SCALE_UP] * self._share(lower, upper)
        latency = self.cluster.scale_up.latency * (gpu_number(lower) is not None) / 2
        below = _node_for(lower, node, placement)
        down = below if gpu_number(lower) is not None else f"{lower}-down:{node}"
        if self.depth[lower] == self.depth[upper]:  # between processors, or switches side by side
            up = down if is_processor(lower) else below
            across = f"{upper}-down:{node}" if is_processor(lower) else f"{upper}:{node}"
            yield Link(up, f"{upper}-down:{node}", bandwidth, latency, SCALE_UP)
            yield Link(across, down, bandwidth, latency, SCALE_UP)
            return
        yield Link(below, f"{upper}:{node}", bandwidth, latency, SCALE_UP)
        yield Link(f"{upper}-down:{node}", down, bandwidth, latency, SCALE_UP)

    def _share(self, lower: str, upper: str) -> float:
        """Return the share of a cable's bandwidth that its class of path achieves."""
        if is_processor(lower) and is_processor(upper):
            share, peers = self.paths.socket, self._has_peer_access("SYS")
        elif is_processor(upper):
            share, peers = self.paths.host_bridge, self._has_peer_access("PHB")
        else:
            share, peers = self.paths.switch, self._has_peer_access("PIX")
        return share if peers else self.paths.shared_memory

    def _turn_bandwidth(self, name: str) -> float:
        """Return the bandwidth of turning at a vertex (B/s); 0 where it is not allowed."""
        if gpu_number(name) is not None or nic_number(name) is not None:
            return 0.0
        if is_processor(name):
            return math.inf if self._has_peer_access("PHB") else self.paths.memory
        joined = (cable.ends for cable in self.wiring.cables if name in cable.ends)
        leaf = any(gpu_number(end) is not None for ends in joined for end in ends)
        return math.inf if self._has_peer_access("PIX" if leaf else "PXB") else 0.0

    def _has_peer_access(self, level: P2pLevel) -> bool:
        """Whether GPUs at this distance have peer access."""
        return self.reach >= P2P_LEVELS.index(level)


def with_doors(
    network: Topology, cluster: Cluster, placement: Placement, nics: Sequence[Nic]
) -> Topology:
    """Return the network with messages leaving and entering nodes by the ranks' own NICs."""
    nic_of_slot, fabric = own_nics(cluster) if nics else [], cluster.scale_out
    index = {node: number for number, node in enumerate(network.nodes)}
    # (nodes, NICs per node): a message leaves by out[node, nic] and arrives by into[node, nic].
    seats = [placement.seat(rank) for rank in range(placement.ranks)]
    shape = (placement.nodes, len(nics) // placement.nodes)
    out, into = (
        np.array([index[side] for side in sides], dtype=np.int32).reshape(shape)
        for sides in ([nic.out for nic in nics], [nic.into for nic in nics])
    )
    doors = Doors(
        node=np.array([node for node, _ in seats], dtype=np.int32),
        nic=np.array(
            [nic_of_slot[slot] if nic_of_slot else 0 for _, slot in seats], dtype=np.int32
        ),
        out=out,
        into=into,
        # A message may have to leave by the NIC on its receiver's rail or plane.
        by_target=(cluster.library is None or cluster.library.pxn)
        and (isinstance(fabric, RailFabric) or getattr(fabric, "is_parted", False)),
    )
    return replace(network, doors=doors)


def _unit_bandwidths(cluster: Cluster, wiring: Wiring) -> dict[str, float]:
    """Return the payload bandwidth of a cable of width 1, by tier (B/s)."""
    whole = {SCALE_UP: cluster.scale_up.link_bandwidth}
    if cluster.pcie is not None:
        whole[PCIE] = cluster.pcie.bandwidth * cluster.pcie.efficiency
    return {tier: each / unit for tier, each in whole.items() if (unit := wiring.unit(tier))}


def _node_for(name: str, node: int, placement: Placement) -> Node:
    slot = gpu_number(name)
    if slot is None:
        return f"{name}:{node}"
    rank = node * placement.ranks_per_node + slot
    used = slot < placement.ranks_per_node and rank < placement.ranks
    return rank if used else f"gpu:{node}.{slot}"


def _link_of_cable(cluster: Cluster, wiring: Wiring, cable: Cable, bandwidth: float) -> Link:
    """Return one direction of a cable, between vertex names; the caller replaces the ends."""
    # A path between GPUs over switches has two cables that end at a GPU: half of the latency each.
    # A cable between two GPUs has all of it, one between switches none.
    share = sum(gpu_number(end) is not None for end in cable.ends) / 2
    if cable.tier == SCALE_UP:
        latency = cluster.scale_up.latency * share
        return Link(cable.source, cable.target, bandwidth, latency, SCALE_UP)
    stated = None if cluster.pcie is None else cluster.pcie.latency
    latency = (cluster.scale_up.latency if stated is None else stated) * share
    if not wiring.peers_use_pcie:
        latency = 0.0
    of = SCALE_UP if stated is None else PCIE
    return Link(cable.source, cable.target, bandwidth, latency, PCIE, latency_resource=of)
