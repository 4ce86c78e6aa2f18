"""What carries a rank's bytes on a cluster: the links that bandwidth utilisation is a share of."""

from collections.abc import Sequence

from collectives.traffic import Ports
from topologies import Cluster, place
from topologies.compose import one_slot


def ports(cluster: Cluster, ranks: int, nodes: int | None = None) -> Ports:
    """Bandwidths as the cluster file gives them, without its ``efficiency``.

    Ranks are placed, and use NICs, as :func:`topologies.compose.build` says: each its own, or where
    the scale-up fabric is PCIe itself, any of those that its domain's ranks have.
    """
    placement = place(cluster, ranks, nodes)
    fabric, per_node = cluster.scale_out, cluster.ranks_per_node
    nics = min(fabric.nics_per_node, per_node) if fabric is not None else 0
    shared = placement.ranks_per_node > cluster.scale_up.size and cluster.pcie is not None
    places = [placement.place(rank) for rank in range(ranks)]
    domains = [placement.domain(cluster, rank) for rank in range(ranks)]
    own = [slot * nics // per_node if nics else None for _, slot in places]
    return Ports(
        adds=cluster.scale_up.in_network_reduction,
        domain=domains,
        node=[node for node, _ in places],
        nics=_nics(cluster, domains, own),
        scale_up=cluster.scale_up.bandwidth,
        nic_bandwidth=fabric.bandwidth * -(-fabric.nics_per_node // nics) if fabric else 0.0,
        host=cluster.pcie.bandwidth if shared and cluster.pcie is not None else 0.0,
    )


def _nics(
    cluster: Cluster, domains: Sequence[int], own: Sequence[int | None]
) -> list[tuple[int, ...]]:
    """NICs that each rank may use, by their number in its node."""
    plugged: dict[int, set[int]] = {}
    for domain, nic in zip(domains, own, strict=True):
        plugged.setdefault(domain, set()).update(() if nic is None else (nic,))
    if one_slot(cluster.scale_up):
        return [tuple(sorted(plugged[domain])) for domain in domains]
    return [() if nic is None else (nic,) for nic in own]
