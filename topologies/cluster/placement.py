"""Placement of the ranks of a job: node, slot and scale-up domain of each."""

from bisect import bisect_right

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.support.errors import ClusterError
from simulator.support.quantities import MOST_RANKS
from simulator.topology import SCALE_UP, Topology
from topologies.cluster.graphs import domain_graph
from topologies.cluster.schema import Cluster, kinds_of


class Placement(Struct, frozen=True):
    """Placement of the ranks of a job.

    Rank ``r`` is in slot ``r % ranks_per_node`` of node ``r // ranks_per_node`` if all nodes are
    equal. If they differ, the job fills kind after kind: ``parts`` are the kinds in use, each with
    a placement of its own ranks on its own nodes, counted from its first.

    ``ranks_per_node`` is that of the job, which may leave slots of a node empty; if nodes differ,
    the most of any.
    """

    ranks: int
    ranks_per_node: int
    first_rank: int = 0
    first_node: int = 0
    first_domain: int = 0
    parts: "tuple[Part, ...]" = ()

    @property
    def nodes(self) -> int:
        """Number of nodes with at least one rank."""
        if self.parts:
            return sum(part.placement.nodes for part in self.parts)
        return -(-self.ranks // self.ranks_per_node)

    @property
    def members(self) -> range:
        """The ranks."""
        return range(self.first_rank, self.first_rank + self.ranks)

    def parts_of(self, cluster: Cluster) -> "tuple[Part, ...]":
        """Return the kinds of node in use; if all nodes are equal, they are one part."""
        return self.parts or (Part("", cluster, self),)

    def part(self, rank: int) -> "Part":
        """Return the kind of node of a rank, if nodes differ."""
        return self.parts[
            bisect_right([part.placement.first_rank for part in self.parts], rank) - 1
        ]

    def seat(self, rank: int) -> tuple[int, int]:
        """Return the node and slot of a rank."""
        if self.parts:
            return self.part(rank).placement.seat(rank)
        node, slot = divmod(rank - self.first_rank, self.ranks_per_node)
        return self.first_node + node, slot

    def domains(self, cluster: Cluster) -> dict[int, list[int]]:
        """Return the ranks of each scale-up domain in use."""
        domains: dict[int, list[int]] = {}
        for rank in self.members:
            domains.setdefault(self.domain(cluster, rank), []).append(rank)
        return domains

    def domain(self, cluster: Cluster, rank: int) -> int:
        """Return the scale-up domain of a rank."""
        if self.parts:
            part = self.part(rank)
            return part.placement.domain(part.cluster, rank)
        return self.first_domain + self.place(cluster, rank) // cluster.scale_up.size

    def place(self, cluster: Cluster, rank: int) -> int:
        """Return the index of a rank's slot among all of the machine, or of its kind of node."""
        node, slot = self.seat(rank)
        return (node - self.first_node) * cluster.ranks_per_node + slot


class Part(Struct, frozen=True, eq=False):
    """Nodes of one kind that a job uses.

    ``cluster`` is the cluster as if all its nodes were of this ``kind``; "" if all nodes are equal.
    """

    kind: str
    cluster: Cluster
    placement: Placement


def place(cluster: Cluster, ranks: int, nodes: int | None = None) -> Placement:
    """Fill the nodes in order, or spread the ranks evenly over ``nodes`` of them.

    Parameters
    ----------
    cluster
        The machine; if nodes differ, the first kind is filled first.
    ranks
        Ranks of the job.
    nodes
        Number of nodes that the ranks are spread over evenly; by default as few as hold them.

    Returns
    -------
    Placement
        Node and slot of every rank.

    Raises
    ------
    ClusterError
        If the job does not fit on the machine, or does not divide evenly over the nodes.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> place(load_cluster("dgx-a100"), 16).nodes, place(load_cluster("dgx-a100"), 16, 8).nodes
    (2, 8)
    """
    if ranks < 1:
        raise ClusterError(f"{cluster.name}: a job needs at least 1 rank, not {ranks}")
    if ranks > MOST_RANKS:
        raise ClusterError(f"{cluster.name}: {ranks} ranks; a job has at most {MOST_RANKS}")
    if cluster.is_one_graph and nodes is not None:
        raise ClusterError(f"{cluster.name} is one graph without nodes: remove --nodes")
    kinds = kinds_of(cluster)
    machine = " and ".join(
        f"{kind.nodes} node{'s' * (kind.nodes != 1)} of {kind.ranks_per_node}"
        for kind in kinds.values()
    )
    if ranks > cluster.capacity:
        needed = -(-ranks // cluster.ranks_per_node)
        fits = not (cluster.node_kinds or cluster.is_one_graph or ranks % needed)
        hint = f"; {needed} nodes are enough: --nodes {needed}, for a step" if fits else ""
        raise ClusterError(
            f"{cluster.name}: {ranks} ranks do not fit: it has {cluster.capacity} ({machine}){hint}"
        )
    if nodes is not None and not 1 <= nodes <= cluster.nodes:
        raise ClusterError(f"{cluster.name}: {nodes} nodes were requested, but it has {machine}")
    if nodes is not None and ranks % nodes:
        raise ClusterError(f"{cluster.name}: {ranks} ranks do not divide evenly over {nodes} nodes")
    return _filled(cluster, kinds, ranks, nodes)


def _filled(
    cluster: Cluster, kinds: dict[str, Cluster], ranks: int, nodes: int | None
) -> Placement:
    """Fill kind by kind; refuse more ranks per node than a kind's nodes have."""
    parts: list[Part] = []
    done = node = domain = 0
    for name, kind in kinds.items():
        on_node = kind.ranks_per_node if nodes is None else ranks // nodes
        on_kind = min(ranks - done, kind.nodes * on_node)
        if not on_kind:
            break
        if on_node > kind.ranks_per_node:
            which = f"a node of kind {name}" if name else "a node"
            raise ClusterError(
                f"{cluster.name}: {ranks} ranks on {nodes} nodes are {on_node} per node,"
                f" but {which} has {kind.ranks_per_node}"
            )
        part = Placement(on_kind, on_node, done, node, domain)
        parts.append(Part(name, kind, part))
        done, node = done + on_kind, node + part.nodes
        # Round up: a domain that the last nodes fill only partly counts as one.
        domain += -(-part.nodes * kind.ranks_per_node // kind.scale_up.size)
    if len(kinds) == 1:
        return parts[0].placement
    return Placement(
        ranks, max(part.placement.ranks_per_node for part in parts), parts=tuple(parts)
    )


def islands(cluster: Cluster, ranks: int, nodes: int | None = None) -> NDArray[np.int32]:
    """Return the scale-up domain of each rank of a job, numbered by first appearance.

    It is that of the cluster file. If one graph is the whole network, ranks that are connected by
    links of ``scale_up`` alone are a domain; if all or none of its links are of ``scale_up``, all
    ranks are one domain.
    """
    placement = place(cluster, ranks, nodes)
    domain_of_rank = np.empty(ranks, dtype=np.int32)
    for domain, members in placement.domains(cluster).items():
        domain_of_rank[members] = domain
    scale_up = cluster.scale_up
    if scale_up.graph is None or not cluster.is_one_graph:
        return domain_of_rank
    network = domain_graph(scale_up.graph, scale_up.bandwidth, scale_up.latency, 1.0)
    return joined(network)[:ranks] if len(network.resources) > 1 else domain_of_rank


def joined(network: Topology) -> NDArray[np.int32]:
    """Return each rank's component over links of ``scale_up``, shape ``(ranks,)``.

    Examples
    --------
    >>> from simulator.topology import Link, topology
    >>> links = [Link(0, 1, 1.0, 0.0), Link(1, 2, 1.0, 0.0, "fibre"), Link(2, 3, 1.0, 0.0)]
    >>> joined(topology("two pairs", 4, links)).tolist()
    [0, 0, 1, 1]
    """
    if SCALE_UP not in network.resources:
        return np.zeros(network.ranks, dtype=np.int32)
    import networkx as nx  # slow to load

    inside = network.resource == network.resources.index(SCALE_UP)
    ends = zip(network.source[inside].tolist(), network.target[inside].tolist(), strict=True)
    graph: nx.Graph[int] = nx.Graph(ends)
    graph.add_nodes_from(range(network.ranks))
    parts = sorted(nx.connected_components(graph), key=min)  # ranks are the first nodes
    part_of = {node: number for number, nodes in enumerate(parts) for node in nodes}
    return np.array([part_of[rank] for rank in range(network.ranks)], dtype=np.int32)
