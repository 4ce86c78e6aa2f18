"""What carries a rank's bytes on a cluster: the links that bandwidth utilisation is a share of."""

from collectives.traffic import Ports
from topologies import Cluster, place


def ports(cluster: Cluster, ranks: int, nodes: int | None = None) -> Ports:
    """Bandwidths as the cluster file gives them, without its ``efficiency``.

    Ranks are placed, and use NICs, as :func:`topologies.compose.build` says.
    """
    placement = place(cluster, ranks, nodes)
    fabric, per_node = cluster.scale_out, cluster.ranks_per_node
    nics = min(fabric.nics_per_node, per_node) if fabric is not None else 0
    shared = placement.ranks_per_node > cluster.scale_up.size and cluster.pcie is not None
    places = [placement.place(rank) for rank in range(ranks)]
    return Ports(
        adds=cluster.scale_up.in_network_reduction,
        domain=[placement.domain(cluster, rank) for rank in range(ranks)],
        node=[node for node, _ in places],
        nic=[slot * nics // per_node if nics else None for _, slot in places],
        scale_up=cluster.scale_up.bandwidth,
        nic_bandwidth=fabric.bandwidth * -(-fabric.nics_per_node // nics) if fabric else 0.0,
        host=cluster.pcie.bandwidth if shared and cluster.pcie is not None else 0.0,
    )
