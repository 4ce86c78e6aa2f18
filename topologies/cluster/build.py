"""The network that a job sees on a cluster: scale-up domains joined by a scale-out fabric.

Nodes of the graph beside the ranks: ``scale_up:2`` is the switch of domain 2, ``fabric`` the
switch between domains, ``router:…`` a router of it, and a NIC is two nodes, ``nic:3.1:out`` and
``nic:3.1:in`` (node 3, its NIC 1). It is two so that no path can turn round in a NIC, from one
rank to another that shares it, without paying for the fabric. A message between domains runs
rank, NIC out, fabric, NIC in, rank.

Where a node holds several domains and the file gives ``pcie``, its ranks reach each other through
``host:3``, a PCIe switch with a port of that bandwidth per rank. The ports to the NICs are others:
that a rank's traffic to its NIC and to its host shares one slot is not modelled.

Where a graph draws a domain or the fabric, its switches have the names that the graph gives them,
in a domain with its number behind (``nvswitch0:2``); ``place:7`` is a rank of the fabric's graph,
where NICs are plugged in, and ``seat:2.7`` one of a domain's that the job does not use. A cluster
that is one graph is that graph, whole, whatever of it the job uses.

Where the cluster has a ``wiring`` a node is the graph that it draws
(:mod:`topologies.cluster.wired`).

The path of a message in a tier costs the latency that the cluster file states for the tier: a
switch has half of it on each side, a direct cable all of it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.topology import PCIE, SCALE_OUT, SCALE_UP, Link, Node, Topology, topology
from topologies.cluster.fabrics import Graph
from topologies.cluster.graphs import domain_graph
from topologies.cluster.placement import Placement, place
from topologies.cluster.scale_out import Nic, fabric_links, fabric_routing, node_nics
from topologies.cluster.schema import WIRED, Cluster, ScaleUp
from topologies.cluster.wired import wired_links, with_doors
from topologies.families.family import Domain, cables


def build(cluster: Cluster, ranks: int, nodes: int | None = None) -> Topology:
    """Build what a job of ``ranks`` uses: its domains, every NIC of its nodes, the fabric.

    Ranks fill the nodes in order; with ``nodes`` they are spread evenly over that many. Rank in
    slot ``i`` of a node uses NIC ``i * nics // ranks_per_node``. Where a node has more NICs than
    ranks, the NICs of one rank (``k`` such that ``k * ranks_per_node // nics`` is its slot) are
    one NIC with their bandwidth together, named after the first and the last (``nic:0.0-1``).
    Where nodes differ the job fills kind after kind, each built as its own kind says.

    Parameters
    ----------
    cluster
        The machine.
    ranks
        Of the job.
    nodes
        Over how many the ranks are spread evenly; as few as hold them if it is not given.

    Returns
    -------
    Topology
        Named ``dgx-a100(16)``, with the resources ``scale_up``, ``pcie`` and ``scale_out`` as far
        as the cluster has them.

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
        return with_factors(replace(_drawn(graph, cluster.scale_up), name=name), cluster)
    nics: list[Nic] = []
    links: list[Link] = []
    for part in placement.parts_of(cluster):
        kind, own = part.cluster, part.placement
        plugged = node_nics(kind, own.nodes, own.first_node)
        nics += plugged
        if kind.wiring is not None:
            links += wired_links(kind, own, plugged, kind.wiring)
            continue
        links += _domain_links(kind, own)
        links += _host_links(kind, own)
        links += _port_links(kind, own, plugged)
    if cluster.scale_out is not None:
        links += fabric_links(cluster.scale_out, nics, placement.nodes)
    network = replace(topology(name, ranks, links), kind=_kinds(placement))
    network = with_factors(network, cluster)
    if cluster.scale_out is not None:
        network = replace(network, routing=fabric_routing(cluster.scale_out, network))
    return network if cluster.wiring is None else with_doors(network, cluster, placement, nics)


def with_factors(network: Topology, cluster: Cluster) -> Topology:
    """Return the network with the links of some resources multiplied, as the cluster says."""
    bandwidth, latency = network.bandwidth.copy(), network.latency.copy()
    for resource, by in cluster.link_factors.items():
        bandwidth[network.following(f"{resource}.bandwidth")] *= by.bandwidth
        latency[network.following(f"{resource}.latency")] *= by.latency
    return replace(network, bandwidth=bandwidth, latency=latency)


def _drawn(graph: Graph, scale_up: ScaleUp) -> Topology:
    return domain_graph(graph, scale_up.bandwidth, scale_up.latency, scale_up.efficiency)


def _drawn_links(cluster: Cluster, placement: Placement, graph: Graph) -> Iterator[Link]:
    """Links of the graph of a domain, once for every domain in use."""
    network, size = _drawn(graph, cluster.scale_up), cluster.scale_up.size
    links = [network.link(index) for index in range(len(network))]
    for number, members in placement.domains(cluster).items():
        ranks: dict[int, Node]
        ranks = {placement.place(cluster, rank) % size: rank for rank in members}
        for link in links:
            here, there = (_in_domain(end, number, ranks) for end in (link.source, link.target))
            yield replace(link, source=here, target=there)


def _in_domain(node: Node, number: int, ranks: Mapping[int, Node]) -> Node:
    if not isinstance(node, int):
        return f"{node}:{number}"
    return ranks.get(node, f"seat:{number}.{node}")


def _kinds(placement: Placement) -> tuple[int, ...]:
    """Which kind of node each rank sits on; nothing where all are alike."""
    numbered = enumerate(part.placement.ranks for part in placement.parts)
    return tuple(number for number, ranks in numbered for _ in range(ranks))


def _domain_links(cluster: Cluster, placement: Placement) -> Iterator[Link]:
    """Cables inside every domain in use; a grid that is not filled gives the job a slice of it."""
    scale_up = cluster.scale_up
    if scale_up.graph is not None:
        yield from _drawn_links(cluster, placement, scale_up.graph)
        return
    role = scale_up.role
    for number, members in placement.domains(cluster).items():
        domain = Domain(members, f"scale_up:{number}", scale_up.shape, scale_up.wrap_multiple)
        yield from cables(
            role.ends(domain),
            bandwidth=scale_up.link_bandwidth,
            latency=scale_up.latency / 2 if role.switched else scale_up.latency,
            resource=SCALE_UP,
        )


def _host_links(cluster: Cluster, placement: Placement) -> Iterator[Link]:
    """Between a rank and the PCIe switch of its node, if it has ranks of several domains."""
    size, pcie = cluster.scale_up.size, cluster.pcie
    if pcie is None or placement.ranks_per_node <= size:
        return
    latency, of = (pcie.latency, PCIE)
    if latency is None:
        latency, of = cluster.scale_up.latency, SCALE_UP
    ends = [(rank, f"host:{placement.seat(rank)[0]}") for rank in placement.members]
    bandwidth = pcie.bandwidth * pcie.efficiency
    for link in cables(ends, bandwidth=bandwidth, latency=latency / 2, resource=PCIE):
        yield replace(link, latency_resource=of)


def _port_links(cluster: Cluster, placement: Placement, nics: Sequence[Nic]) -> Iterator[Link]:
    """Between a rank and its NIC, both ways; without PCIe in the file nothing limits them.

    Where the scale-up fabric is PCIe itself a rank has one slot for both: the NIC is plugged into
    the switch of the domain.
    """
    pcie = cluster.pcie
    bandwidth = math.inf if pcie is None else pcie.bandwidth * pcie.efficiency
    resource = SCALE_OUT if pcie is None else PCIE
    per_node, own = len(nics) // placement.nodes, own_nics(cluster)
    plugs: dict[tuple[Node, str], Nic] = {}
    for rank in placement.members if nics else ():
        node, slot = placement.seat(rank)
        nic = nics[(node - placement.first_node) * per_node + own[slot]]
        domain = placement.domain(cluster, rank)
        plug: Node = f"scale_up:{domain}" if one_slot(cluster.scale_up) else rank
        plugs.setdefault((plug, nic.out), nic)
    for (plug, _), nic in plugs.items():
        yield Link(plug, nic.out, bandwidth, 0.0, resource)
        yield Link(nic.into, plug, bandwidth, 0.0, resource)


def own_nics(cluster: Cluster) -> list[int]:
    """Which of the NICs that :func:`~topologies.cluster.scale_out.node_nics` lists a slot uses.

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
    return [slot * nics // per_node for slot in range(per_node)]


def one_slot(scale_up: ScaleUp) -> bool:
    """Whether a rank reaches its peers and its NIC over the same PCIe slot."""
    return scale_up.topology in ("switch", WIRED) and (scale_up.link or "").startswith("pcie")
