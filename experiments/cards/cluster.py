"""A cluster from the hardware section of a workload card, after the nearest of the catalogue.

A card gives the accelerator, how many there are, and two bandwidths; it gives no latency. So the
catalogue's cluster that is most like it lends what is missing, and is named.
"""

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from simulator.accelerators import same_accelerator
from simulator.support.errors import ClusterError
from simulator.support.quantities import format_quantity
from topologies import Cluster, catalog, load_cluster
from topologies.cluster.catalog import complaints

if TYPE_CHECKING:
    from traces.card.card import WorkloadCard

_CLOSE = 0.25
"""Bandwidths within this fraction of each other are the same hardware, by another source."""


@dataclass(frozen=True, slots=True)
class CardCluster:
    """The cluster, the catalogue's that it is made after, and what was taken from where."""

    cluster: Cluster
    nearest: str
    notes: tuple[str, ...]


def card_cluster(card: "WorkloadCard", *, source: str) -> CardCluster:
    """Make a cluster of a card; ``source`` is what errors call it.

    Bandwidths and ranks per node are the card's where it gives them. Everything else is that of
    the catalogue's cluster with the accelerator, of several the one that is most alike in ranks
    per node, network and bandwidths.

    Raises
    ------
    ClusterError
        If the card names no accelerator, or one that no cluster of the catalogue has.
    """
    if card.xpu.model is None:
        raise ClusterError(
            f"{source}: workload.hardware.xpu_spec.model is blank: name a cluster with --cluster"
        )
    shipped = [load_cluster(name) for name in catalog()]
    candidates = [
        cluster for cluster in shipped if same_accelerator(card.xpu.model, cluster.accelerator.name)
    ]
    if (card.xpu.total_count or 0) > (card.xpu.count_per_node or math.inf):
        candidates = [cluster for cluster in candidates if cluster.scale_out is not None]
    if not candidates:
        raise ClusterError(
            f"{source}: no cluster of the catalogue of that size has {card.xpu.model!r}: "
            "name one with --cluster"
        )
    nearest = max(candidates, key=lambda cluster: _likeness(card, cluster))
    return _with_bandwidths(card, nearest, source)


def _likeness(card: "WorkloadCard", cluster: Cluster) -> tuple[int, int, int, int, float]:
    """How alike they are: the name, ranks per node, words of the network, bandwidths."""
    bandwidths = card.bandwidths()
    fabric = cluster.scale_out
    text = f"{cluster.name} {cluster.description} {fabric.topology if fabric else ''}".lower()
    network = (card.workload.hardware.network_topo.topology or "").lower()
    words = re.findall("[a-z]{4,}", network)
    differences = [
        _relative_difference(bandwidths.scale_up, cluster.scale_up.bandwidth),
        _relative_difference(bandwidths.scale_out, fabric.bandwidth if fabric else None),
    ]
    per_node = card.xpu.count_per_node
    return (
        len(cluster.name) * (cluster.name in network),
        int(per_node == cluster.ranks_per_node),
        sum(word in text for word in words),
        sum(difference <= _CLOSE for difference in differences),
        -sum(differences),
    )


def _relative_difference(first: float | None, second: float | None) -> float:
    return 1.0 if first is None or second is None else abs(math.log(first / second))


def _with_bandwidths(card: "WorkloadCard", nearest: Cluster, source: str) -> CardCluster:
    per_node = card.xpu.count_per_node or nearest.ranks_per_node
    total = card.xpu.total_count or per_node
    bandwidths = card.bandwidths()
    data: dict[str, Any] = nearest.model_dump(
        mode="json", exclude_unset=True, exclude={"sources", "name", "description"}
    )
    data["name"] = f"{nearest.name} (by its card)"
    notes = [f"cluster from the card, after {nearest.name} of the catalogue"]
    for tier, bandwidth in (("scale_up", bandwidths.scale_up), ("scale_out", bandwidths.scale_out)):
        if bandwidth is None or tier not in data:
            continue
        before = getattr(nearest, tier).bandwidth
        data[tier]["bandwidth"] = f"{bandwidth!r} B/s"
        if _relative_difference(bandwidth, before) > _CLOSE:
            after = format_quantity(bandwidth, "B/s"), format_quantity(before, "B/s")
            notes.append(
                f"{tier}.bandwidth is {after[0]} on the card, {after[1]} on {nearest.name}"
            )
    if per_node != nearest.ranks_per_node:
        data |= _other_node(data, nearest, per_node)
        notes.append(f"a node has {per_node} ranks on the card, {nearest.ranks_per_node} there")
    data["nodes"] = max(-(-total // per_node), nearest.nodes)
    try:
        return CardCluster(Cluster.model_validate(data), nearest.name, tuple(notes))
    except ValidationError as error:
        raise ClusterError(
            f"{source}: no cluster can be made of the card after {nearest.name}: "
            f"{complaints(error)}; name one with --cluster"
        ) from error


def _other_node(data: dict[str, Any], nearest: Cluster, per_node: int) -> dict[str, Any]:
    """Give the nearest cluster nodes of another size, each a domain with its share of NICs."""
    if nearest.scale_up.size != nearest.ranks_per_node or nearest.scale_up.dimensions is not None:
        return {"ranks_per_node": per_node}
    changed: dict[str, Any] = {
        "ranks_per_node": per_node,
        "scale_up": data["scale_up"] | {"size": per_node},
    }
    if nearest.scale_out is not None:
        share = nearest.scale_out.nics_per_node * per_node / nearest.ranks_per_node
        changed["scale_out"] = data["scale_out"] | {"nics_per_node": max(1, round(share))}
    return changed
