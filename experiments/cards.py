"""Workload cards against clusters and traces.

Contradictions of a card and the trace beside it, one line each. And a cluster from its hardware
section: a card gives the accelerator, the number of ranks, and two bandwidths, but no latency, so
the most similar cluster of the catalogue supplies the rest, and is named.
"""

import math
import re
from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from pydantic import ValidationError

from collectives.bandwidth import busbw
from simulator.accelerators import same_accelerator
from simulator.calls import UNKNOWN
from simulator.support.errors import ClusterError
from simulator.support.quantities import format_quantity
from simulator.workload import Workload
from topologies import Cluster, catalog, load_cluster
from topologies.cluster.catalog import complaints
from traces.core.loaded import Loaded

if TYPE_CHECKING:
    from traces.card.card import WorkloadCard

_TRAINING = "model_fwd_bwd_pass"


class StepFlops(Struct, frozen=True):
    """FLOPs of one step of the job; None if the card does not give them, ``why`` is the reason."""

    flops: float | None
    why: str


def step_flops(card: "WorkloadCard") -> StepFlops:
    """FLOPs per step of training a dense transformer: per token ``6 (N - E) + 12 L H Q T``.

    N parameters without the E of the embedding, L layers, Q heads of dimension H, sequences of T
    tokens; a matrix multiplication counts 2 FLOPs forward and 4 backward. Chowdhery et al., PaLM,
    arXiv 2204.02311, appendix B, with the embedding left out as CCL-Bench (arXiv 2605.06544) does.
    The batch is global unless ``batch_size_scope`` says otherwise: then times the data parallel
    ranks. Not given: for experts (which parameters are active), for inference (whether the step is
    prefill or decode), for granularities other than a forward and backward pass.
    """
    model, data = card.workload.model, card.workload.data
    if model.phase is None or model.phase.lower() != "training":
        return StepFlops(None, f"phase {model.phase or 'unknown'}: FLOPs are counted for training")
    if model.moe:
        return StepFlops(
            None, "the card does not say how many parameters of the experts are active"
        )
    if model.granularity not in (None, _TRAINING):
        return StepFlops(None, f"granularity {model.granularity}: not a whole training step")
    scope = (data.batch_size_scope or "global").lower()
    replicas = 1 if scope == "global" else card.parallelism.dp
    arch = model.model_arch
    parts = arch.num_params, arch.num_layers, arch.num_heads, arch.head_dim, data.seq_len
    if None in (*parts, data.batch_size, replicas):
        return StepFlops(None, "the card lacks model_arch, batch_size, seq_len or data parallelism")
    params, layers, heads, dimension, tokens = (float(part or 0) for part in parts)
    embedding = arch.num_params_embedding or 0
    per_token = 6 * max(0.0, params - embedding) + 12 * layers * heads * dimension * tokens
    return StepFlops(per_token * (data.batch_size or 0) * (replicas or 0) * tokens, "")


def peak_of(peaks: dict[str, float], precision: str | None) -> float | None:
    """Peak FLOP/s of a precision as cards write it; None if the cluster does not give it.

    Examples
    --------
    >>> peak_of({"bf16": 312e12}, "BF16"), peak_of({"bf16": 312e12}, "fp8")
    (312000000000000.0, None)
    """
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16"}
    wanted = (precision or "").lower()
    wanted = names.get(wanted, wanted)
    if wanted == "fp16":
        return peaks.get("fp16", peaks.get("bf16"))
    return peaks.get(wanted)


_LABELS = (
    ("tp", r"tp|tensor"),
    ("pp", r"pp|pipeline"),
    ("cp", r"cp|context"),
    ("ep", r"ep|expert"),
    ("dp", r"dp|fsdp|data|dp_shard|dp_replicate"),
)
"""Words by which PyTorch's meshes, Megatron and vLLM label the groups of a kind of parallelism."""
_SURE_SIZE = 1 << 20
"""Bytes from which a measured bandwidth is not dominated by rounding of time stamps."""
_NOISE = 1.05
_BACKWARD = re.compile(
    r"backward|(?<![a-z])(?:bwd|dgrad|wgrad)(?![a-z])|optimizer\.step", re.IGNORECASE
)
_SHORTEST = 1e-6
"""Shorter transfers (s) ended before their last time stamp."""


def check_card(card: "WorkloadCard", loaded: Loaded, *, source: str = "card") -> tuple[str, ...]:
    """Return what of the card the trace contradicts; nothing if they agree or are silent.

    Compared are ranks of the job, sizes of the groups against the parallelism, the accelerator, the
    phase, and the bandwidths against the fastest measured call.
    """
    findings = [*_ranks(card, loaded), *_groups(card, loaded.workload)]
    on_card, traced = card.xpu.model, loaded.accelerator
    if on_card and traced and not same_accelerator(on_card, traced):
        findings.append(
            f"workload.hardware.xpu_spec.model is {on_card!r}, the trace was recorded on {traced!r}"
        )
    findings += [*_phase(card, loaded.workload), *_bandwidth(card, loaded, source)]
    return tuple(findings)


def _ranks(card: "WorkloadCard", loaded: Loaded) -> Iterator[str]:
    traced = loaded.coverage.ranks_in_job
    total, plan = card.xpu.total_count, card.parallelism.ranks
    if total is not None and total != traced:
        where = "workload.hardware.xpu_spec.total_count"
        yield f"{where} is {total}, the trace's job has {traced} ranks"
    if plan is not None and plan not in {total, traced}:
        yield (
            f"model_plan_parallelization is dp x tp x pp x cp = {plan} ranks, "
            f"but the job has {total or traced}"
        )
    per_node = card.xpu.count_per_node
    if total is not None and per_node is not None and total > per_node and total % per_node:
        yield f"{total} accelerators do not fill nodes of {per_node}"


def _groups(card: "WorkloadCard", workload: Workload) -> Iterator[str]:
    """Compare labelled groups with their kind; others must be a product of some of the sizes."""
    plan = card.parallelism
    sizes = {"tp": plan.tp, "pp": plan.pp, "cp": plan.cp, "ep": plan.ep, "dp": plan.dp}
    sharded = {size for size in (plan.dp_replicate, plan.dp_shard) if size is not None}
    chosen = ([size for size in sizes.values() if size is not None] + list(sharded))[:8]
    picks = (pick for count in range(len(chosen) + 1) for pick in combinations(chosen, count))
    products = {math.prod(pick) for pick in picks}
    sentences: dict[str, None] = {}
    # Groups with collectives only: messages are between any two ranks
    used = {
        int(workload.calls.group[index])
        for index in range(len(workload.calls))
        if workload.call_view(index).kind not in ("send_receive", UNKNOWN)
    }
    for group in [workload.groups[index] for index in sorted(used)]:
        ranks = len(group.ranks)
        kind = kind_of_group(group.label)
        if kind is not None and sizes[kind] is not None:
            if ranks != sizes[kind] and not (kind == "dp" and ranks in products):
                sentences[f"{kind} is {sizes[kind]}, but the trace has {group}"] = None
        elif (
            kind is None and plan.ranks is not None and ranks not in {*products, workload.job_ranks}
        ):
            sentences[f"{group} of the trace fits no product of the card's parallel sizes"] = None
    yield from sentences


def kind_of_group(label: str) -> str | None:
    """Return the kind of parallelism that a group's label names; None if none, or several.

    Examples
    --------
    >>> kind_of_group("mesh_tp"), kind_of_group("TENSOR_MODEL_PARALLEL_GROUP")
    ('tp', 'tp')
    >>> kind_of_group("default_pg") is None, kind_of_group("mesh_dp_cp") is None
    (True, True)
    """
    kinds = [
        kind
        for kind, words in _LABELS
        if re.search(rf"(?<![a-z])(?:{words})(?![a-z])", label.lower().replace("_", " "))
    ]
    return kinds[0] if len(kinds) == 1 else None


def _phase(card: "WorkloadCard", workload: Workload) -> Iterator[str]:
    phase = (card.workload.model.phase or "").lower()
    backward = next((name for name in workload.names if _BACKWARD.search(name)), None)
    if phase in ("inference", "serving") and backward is not None:
        yield f"workload.model.phase is {phase}, but the trace has {backward[:60]!r}"
    if phase and phase not in ("training", "inference", "serving"):
        yield f"workload.model.phase is {phase!r}: write training, inference or serving"


def _bandwidth(card: "WorkloadCard", loaded: Loaded, source: str) -> Iterator[str]:
    try:
        cluster = card_cluster(card, source=source)
    except ClusterError:
        cluster = None
    on_card = card.bandwidths()
    if on_card.scale_up is not None and cluster is not None:
        yield from _bits_for_bytes(
            "scale-up", on_card.scale_up, load_cluster(cluster.nearest).scale_up.bandwidth
        )
    fabric = load_cluster(cluster.nearest).scale_out if cluster is not None else None
    if on_card.scale_out is not None and fabric is not None:
        yield from _bits_for_bytes("scale-out", on_card.scale_out, fabric.bandwidth)
    if on_card.scale_up is None:
        return
    adds = cluster is not None and cluster.cluster.scale_up.in_network_reduction
    fastest = max(_busbws(loaded.workload, card.xpu.count_per_node, adds=adds), default=None)
    if fastest is not None and fastest[0] > _NOISE * on_card.scale_up:  # no port can carry that
        number = on_card.scale_up * 8 / 1e9
        means = f"; perhaps {number:g} is GB/s, not Gb/s" * (fastest[0] <= 8 * on_card.scale_up)
        yield (
            f"scale-up bandwidth {number:g} Gb/s is {format_quantity(on_card.scale_up, 'B/s')}, but"
            f" {fastest[1]} ran at a busbw of {format_quantity(fastest[0], 'B/s')}{means}"
        )


def _bits_for_bytes(tier: str, on_card: float, expected: float) -> Iterator[str]:
    """Find bandwidths eight times off those of the hardware: bytes written for bits."""
    for factor, means in ((8.0, "GB/s one way"), (4.0, "GB/s of both directions together")):
        if abs(on_card * factor / expected - 1) < 0.1:
            number = on_card * 8 / 1e9
            yield (
                f"{tier} bandwidth {number:g} Gb/s is {format_quantity(on_card, 'B/s')}, a "
                f"{factor:g}th of the {format_quantity(expected, 'B/s')} of this hardware: "
                f"perhaps {number:g} is {means}"
            )


def _busbws(workload: Workload, per_node: int | None, *, adds: bool) -> Iterator[tuple[float, str]]:
    """Busbw of the large calls inside one node (B/s) that all members recorded, and their names.

    A switch that reduces (``adds``) makes the busbw of a reduction differ from traffic.
    """
    whole = workload.members
    for index in range(len(workload.calls)):
        call = workload.call_view(index)
        ranks = call.group.ranks
        if call.kind == UNKNOWN or not call.size >= _SURE_SIZE or len(ranks) != whole[index]:
            continue
        if not call.transfer > _SHORTEST or (adds and "reduce" in call.kind):
            continue
        if per_node is None or len({rank // per_node for rank in ranks}) == 1:
            speed = busbw(
                call.kind, size=call.size, n=len(ranks), time=call.transfer, shares=call.shares
            )
            yield (0.0 if np.isnan(speed) else speed), str(call)


_CLOSE = 0.25
"""Bandwidths within this fraction of each other are the same hardware in different sources."""


class CardCluster(Struct, frozen=True):
    """The cluster, the one of the catalogue that it is based on, and sources of its values."""

    cluster: Cluster
    nearest: str
    notes: tuple[str, ...]


def card_cluster(card: "WorkloadCard", *, source: str) -> CardCluster:
    """Make a cluster from a card; ``source`` is its name in errors.

    Bandwidths and ranks per node are the card's if it gives them. Everything else is from the
    catalogue's cluster with the accelerator; of several, from the one most similar in ranks per
    node, network and bandwidths. Raises ClusterError if the card names no accelerator, or one that
    no cluster of the catalogue has.
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
    """Similarity: the name, ranks per node, words of the network, bandwidths."""
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
        -math.fsum(differences),
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
        data["ranks_per_node"] = per_node
        up, out = nearest.scale_up, nearest.scale_out
        if up.size == nearest.ranks_per_node and up.dimensions is None:
            # Each node is a domain with its share of NICs.
            data["scale_up"] |= {"size": per_node}
            if out is not None:
                share = out.nics_per_node * per_node / nearest.ranks_per_node
                data["scale_out"] |= {"nics_per_node": max(1, round(share))}
        notes.append(
            f"the card has {per_node} ranks a node, {nearest.name} has {nearest.ranks_per_node}"
        )
    data["nodes"] = max(-(-total // per_node), nearest.nodes)
    try:
        return CardCluster(Cluster.model_validate(data), nearest.name, tuple(notes))
    except ValidationError as error:
        raise ClusterError(
            f"{source}: no cluster can be made of the card after {nearest.name}: "
            f"{complaints(error)}; name one with --cluster"
        ) from error
