"""Where the ranks of a job sit: nodes filled in order, or evenly."""

from dataclasses import dataclass

from simulator.errors import ClusterError
from topologies.cluster.schema import Cluster


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks of a job sit.

    Rank ``r`` is the one in slot ``r % ranks_per_node`` of node ``r // ranks_per_node``.

    ``ranks_per_node`` is that of the job, which may leave slots of a node empty.
    """

    ranks: int
    ranks_per_node: int

    @property
    def nodes(self) -> int:
        """Nodes with at least one rank."""
        return -(-self.ranks // self.ranks_per_node)

    def seat(self, rank: int) -> tuple[int, int]:
        """Node and slot of a rank."""
        return divmod(rank, self.ranks_per_node)

    def domains(self, cluster: Cluster) -> dict[int, list[int]]:
        """Ranks of each scale-up domain in use."""
        domains: dict[int, list[int]] = {}
        for rank in range(self.ranks):
            domains.setdefault(self.domain(cluster, rank), []).append(rank)
        return domains

    def domain(self, cluster: Cluster, rank: int) -> int:
        """Scale-up domain of a rank."""
        return self.place(cluster, rank) // cluster.scale_up.size

    def place(self, cluster: Cluster, rank: int) -> int:
        """Place of a rank among all those of the machine, used or not."""
        node, slot = self.seat(rank)
        return node * cluster.ranks_per_node + slot


def place(cluster: Cluster, ranks: int, nodes: int | None = None) -> Placement:
    """Fill the nodes in order, or spread the ranks evenly over ``nodes`` of them.

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
        raise ClusterError(f"{cluster.name}: a job needs a rank, not {ranks}")
    if cluster.is_one_graph and nodes is not None:
        raise ClusterError(f"{cluster.name} is one graph without nodes: leave --nodes out")
    machine = f"{cluster.nodes} nodes of {cluster.ranks_per_node}"
    if ranks > cluster.capacity:
        raise ClusterError(
            f"{cluster.name}: {ranks} ranks do not fit: it has {cluster.capacity} ({machine})"
        )
    if nodes is None:
        return Placement(ranks, cluster.ranks_per_node)
    if not 1 <= nodes <= cluster.nodes:
        raise ClusterError(f"{cluster.name}: {nodes} nodes asked for, and it has {machine}")
    if ranks % nodes:
        raise ClusterError(f"{cluster.name}: {ranks} ranks do not divide evenly over {nodes} nodes")
    if ranks // nodes > cluster.ranks_per_node:
        raise ClusterError(
            f"{cluster.name}: {ranks} ranks on {nodes} nodes are {ranks // nodes} per node,"
            f" and a node has {cluster.ranks_per_node}"
        )
    return Placement(ranks, ranks // nodes)
