"""A cluster from the hardware section of a workload card, after the nearest of the catalogue.

A card tells the accelerator, how many there are, and two bandwidths; it tells no latency. So the
catalogue's cluster that is most like it lends what is missing, and is named.
"""

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from simulator.errors import ClusterError
from simulator.quantities import format_quantity
from topologies import Cluster, catalog, load_cluster
from topologies.cluster.catalog import complaints

if TYPE_CHECKING:
    from traces.card.card import WorkloadCard

_WORD = re.compile(r"[a-z]+[0-9]+[a-z]?|[a-z]+|[0-9]+gb|[0-9]{4}\b")
_MAKERS = frozenset({"nvidia", "amd", "google", "intel", "aws", "instinct", "tesla", "gpu", "tpu"})
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

    Bandwidths and ranks per node are the card's where it tells them. Everything else is that of
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
    known = [load_cluster(name) for name in catalog()]
    candidates = [one for one in known if same_accelerator(card.xpu.model, one.accelerator.name)]
    if (card.xpu.total_count or 0) > (card.xpu.count_per_node or math.inf):
        candidates = [one for one in candidates if one.scale_out is not None]
    if not candidates:
        raise ClusterError(
            f"{source}: no cluster of the catalogue of that size has {card.xpu.model!r}: "
            "name one with --cluster"
        )
    nearest = max(candidates, key=lambda one: _likeness(card, one))
    return _made(card, nearest, source)


def same_accelerator(one: str, other: str) -> bool:
    """Whether two names are of one accelerator, as far as both tell.

    Examples
    --------
    >>> same_accelerator("nvidia_a100", "NVIDIA A100-SXM4-80GB")
    True
    >>> same_accelerator("nvidia_a100_40gb", "A100-SXM4-80GB")
    False
    >>> same_accelerator("tpu_v6e", "TPU v4")
    False
    """
    first, second = _words(one), _words(other)
    chips = [{word for word in words if re.search("[0-9]", word)} for words in (first, second)]
    memory = [{word for word in words if word.endswith("gb")} for words in chips]
    if memory[0] and memory[1] and memory[0] != memory[1]:
        return False
    named = [words - sizes - _forms(words) for words, sizes in zip(chips, memory, strict=True)]
    return bool(named[0] & named[1])


def _forms(words: set[str]) -> set[str]:
    """Words that name a socket or a memory, not a chip: ``sxm4``, ``hbm3``."""
    return {word for word in words if word.startswith(("sxm", "pcie", "oam", "hbm", "nvl"))}


def _words(name: str) -> set[str]:
    return set(_WORD.findall(name.lower())) - _MAKERS


def _likeness(card: "WorkloadCard", cluster: Cluster) -> tuple[int, int, int, int, float]:
    """How alike they are: the name, ranks per node, words of the network, bandwidths."""
    bandwidths = card.bandwidths()
    fabric = cluster.scale_out
    text = f"{cluster.name} {cluster.description} {fabric.topology if fabric else ''}".lower()
    network = (card.workload.hardware.network_topo.topology or "").lower()
    words = re.findall("[a-z]{4,}", network)
    apart = [
        _apart(bandwidths.scale_up, cluster.scale_up.bandwidth),
        _apart(bandwidths.scale_out, fabric.bandwidth if fabric else None),
    ]
    per_node = card.xpu.count_per_node
    return (
        len(cluster.name) * (cluster.name in network),
        int(per_node == cluster.ranks_per_node),
        sum(word in text for word in words),
        sum(one <= _CLOSE for one in apart),
        -sum(apart),
    )


def _apart(one: float | None, other: float | None) -> float:
    return 1.0 if one is None or other is None else abs(math.log(one / other))


def _made(card: "WorkloadCard", nearest: Cluster, source: str) -> CardCluster:
    per_node = card.xpu.count_per_node or nearest.ranks_per_node
    total = card.xpu.total_count or per_node
    bandwidths = card.bandwidths()
    data: dict[str, Any] = nearest.model_dump(
        mode="json", exclude_unset=True, exclude={"sources", "name", "description"}
    )
    data["name"] = f"{nearest.name} (by its card)"
    notes = [f"cluster from the card, after {nearest.name} of the catalogue"]
    for tier, given in (("scale_up", bandwidths.scale_up), ("scale_out", bandwidths.scale_out)):
        if given is None or tier not in data:
            continue
        before = getattr(nearest, tier).bandwidth
        data[tier]["bandwidth"] = f"{given!r} B/s"
        if _apart(given, before) > _CLOSE:
            told = format_quantity(given, "B/s"), format_quantity(before, "B/s")
            notes.append(f"{tier}.bandwidth is {told[0]} on the card, {told[1]} on {nearest.name}")
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
