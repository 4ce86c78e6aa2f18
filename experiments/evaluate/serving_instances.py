"""Serving instances of a model: memory, iteration surface, and cache transfers."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from collectives.libraries.engine_all_reduce import engine_all_reduce
from experiments.scenario.timed_calls import Computed, Part, collective_time, network_of
from simulator.accelerators import Accelerator, compute_capability
from simulator.imbalance import Imbalance
from simulator.serving.engines import Engine, captured_sizes, check_version, engine
from simulator.serving.surface import IterationSurface, with_drafts
from simulator.support.arrays import Floats
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.names import one_of
from topologies import Cluster, load_cluster
from traces.generate.inference import Adapters, InferencePass, Precisions, Segment, pass_blocks
from traces.generate.kernel_times import (
    PRECISIONS,
    KernelTimes,
    Origin,
    OwnKernels,
    kernel_times,
    shares,
)
from traces.generate.layers import Exchange, expert_loads
from traces.generate.model import (
    GroupedAttention,
    LatentAttention,
    Model,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    load_model,
)
from traces.generate.parallelism import Parallelism
from traces.generate.pass_times import PassClock, SurfaceLimits, surface

_CONTEXT = 1.2e9
"""Bytes of driver, communicators and captured graphs: what logs of vLLM leave after weights, cache
and sampling on one to eight accelerators of 24 to 141 GB (docs/background/serving.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One instance: model, cluster, parallelism and engine.

    ``blocks`` is the number of cache blocks, if a log gives it; None: what memory leaves.
    ``tokens`` and ``sequences`` of ``engine`` are the limits it runs with. ``measured`` are kernel
    times of one's own machine, which take precedence over tables. ``logged`` is the log that the
    times of ``engine``'s host are from. ``dcp`` neighbouring tensor ranks, which would have the
    same keys and values, share those of each context (vLLM's ``-dcp``). Context-parallel ranks of
    ``parallelism`` share the tokens of prompts, and have all of the cache each.
    """

    model: Model
    cluster: Cluster
    parallelism: Parallelism
    engine: Engine
    precisions: Precisions = Precisions()  # noqa: RUF009 - frozen
    distribution: str = "power_law_1.2"
    imbalance: Imbalance | None = None
    context: int = 32768
    blocks: int | None = None
    speculation: "Speculation | None" = None
    adapters: Adapters | None = None
    encoder: "Encoder | None" = None
    measured: "MeasuredKernels | None" = None
    logged: str = ""
    dcp: int = 1

    def __post_init__(self) -> None:
        heads, tp = self.model.attention.heads, self.parallelism.tp
        if heads % tp:
            raise WorkloadError(f"tp {tp} does not divide {heads} heads of {self.model.name}")
        if self.dcp > 1:
            self._check_contexts()
        if self.parallelism.cp > 1:
            self._check_prompts()
        if self.adapters is not None:
            self._check_adapters(self.adapters)
        if self.imbalance is not None:
            self._check_imbalance(self.imbalance)
        if not self.model.makes_tokens:
            raise WorkloadError(
                f"{self.model.name} does not generate token by token: for one pass of it, use"
                " generate --phase prefill"
            )

    def _check_adapters(self, adapters: Adapters) -> None:
        """Refuse adapters that engines do not have, or whose decodes are not modelled."""
        if adapters.rank > self.model.hidden:
            at_most = f"{self.model.hidden}, the hidden size of {self.model.name}"
            raise WorkloadError(f"adapters of rank {adapters.rank}: at most {at_most}")
        if isinstance(self.model.attention, LatentAttention):
            raise WorkloadError(
                f"{self.model.name}: adapters of latent attention are not modelled, because decodes"
                " absorb one of its products into others"
            )
        if self.parallelism.ep > 1:
            raise WorkloadError(
                f"ep {self.parallelism.ep}: engines have adapters of experts only where every rank"
                " has a part of each expert (vLLM asserts it): leave ep out"
            )

    def _check_contexts(self) -> None:
        """Refuse to share contexts that are not whole, or among ranks with other heads."""
        attention, tp, name = self.model.attention, self.parallelism.tp, self.model.name
        heads = attention.kv_heads if isinstance(attention, GroupedAttention) else 1
        if self.model.window or self.model.delta or getattr(attention, "sparse", None):
            raise WorkloadError(
                f"dcp {self.dcp}: caches of attention to all tokens alone are modelled; {name} has"
                " windows, states or sparse attention"
            )
        copies = max(1, tp // heads)
        if copies % self.dcp:
            raise WorkloadError(
                f"dcp {self.dcp}: with tp {tp} a key and value of {name} is on {copies} of the"
                f" ranks, which share it: dcp must divide {copies}"
            )

    def _check_prompts(self) -> None:
        """Refuse to share prompts where the engine does not, or with what else it does not."""
        p, model, name = self.parallelism, self.model, self.engine.name
        shares, cp = self.engine.context_parallel, f"cp {self.parallelism.cp}"
        kind = "windowed" if model.window else "recurrent" if model.delta else "grouped"
        if isinstance(model.attention, LatentAttention):
            kind = "latent" if model.attention.sparse is None else "sparse"
        if kind not in shares["attention"]:
            raise WorkloadError(f"{cp}: {model.name} has {kind} attention; {shares['reason']}")
        for option in (*shares["without"], *shares["left_out"]):
            if getattr(self, option, getattr(p, option, None)) not in (None, 1):
                refuses = option in shares["without"]
                reason = f"{name} does not combine it" if refuses else "it is not modelled"
                raise WorkloadError(f"{cp}: {reason} with {option}")
        if model.experts is not None and p.expert_tp * p.ep < p.tp * p.cp:
            raise WorkloadError(
                f"{cp}: experts are spread over all ranks of a prompt: give ep, a multiple of"
                f" {p.cp} that divides {p.tp * p.cp}"
            )

    def _check_imbalance(self, imbalance: Imbalance) -> None:
        """Refuse what does not fit the model's experts, before any pass."""
        of_layers = [self.model.experts_at(layer) for layer in range(self.model.layers)]
        if not any(of_layers):
            raise WorkloadError(f"expert_imbalance {imbalance}: {self.model.name} has no experts")
        for layer, experts in enumerate(of_layers):
            if experts is not None:
                expert_loads(imbalance, experts, self.parallelism.ep, layer, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Tokens drafted for each decode, and the mean number it produces, its own included.

    Drafts come from an extra layer of the model for each (multi-token prediction, EAGLE), from
    another model ``draft``, or from the prompt, after the same words (``looks_up``), which takes no
    time.

    Raises
    ------
    WorkloadError
        If nothing is drafted, or the accepted number is impossible.
    """

    drafts: int
    accepted: float
    draft: Model | None = None
    looks_up: bool = False

    def __post_init__(self) -> None:
        if self.drafts < 1 or not 1 <= self.accepted <= 1 + self.drafts:
            raise WorkloadError(
                f"{self.drafts} drafts cannot give {self.accepted:g} tokens per step: it is 1, plus"
                " at most the number of drafts"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """What makes embeddings of a request's images, which are tokens of its prompt.

    Each request has ``images`` of ``patches``. ``accelerators`` of its own encode one request at a
    time each; 0: an instance does in the iteration that begins to read the prompt, before it.

    Raises
    ------
    WorkloadError
        If the model is not an encoder of patches, or a number is not positive.
    """

    model: Model
    images: int
    patches: int
    accelerators: int = 0

    def __post_init__(self) -> None:
        model = self.model
        if model.patch is None or model.encoder_layers < model.layers:
            raise WorkloadError(
                f"encoder {model.name} is none of patches: use a card such as vit-l-16, or the"
                " config.json of a vision transformer"
            )
        if min(self.images, self.patches) < 1:
            raise WorkloadError("encoder: a request has at least one image of at least one patch")


def encoder_time(deployment: Deployment, requests: float, base: Cluster | None = None) -> float:
    """Return the time of the images of some requests at once on the device (s); 0 without any."""
    encoder = deployment.encoder
    if encoder is None:
        return 0.0
    p = _encoder_ranks(deployment, encoder)
    clock = PassClock(
        _kernels(chip_of(deployment.cluster)),
        ExchangeClock(deployment.cluster, p, base or deployment.cluster),
    )
    images = Segment(requests * encoder.images, encoder.patches, encoder.patches)
    time = clock.encoding(InferencePass(model=encoder.model, parallelism=p, segments=(images,)))
    return time * deployment.engine.host.kernels


def encoding_delays(deployment: Deployment, arrival: Floats, base: Cluster, apart: int) -> Floats:
    """Return how long (s) each request is with accelerators that only encode.

    Each takes the next request, first come first served, and sends an embedding of every patch to
    an instance ``apart`` ranks away.
    """
    delays, encoder = np.zeros(len(arrival)), deployment.encoder
    if encoder is None or not encoder.accelerators:
        return delays
    time = encoder_time(deployment, 1, base)
    size = 2.0 * encoder.images * encoder.patches * deployment.model.hidden
    sent = collective_time(deployment.cluster, "send_receive", 2, size, apart)
    for number in range(encoder.accelerators):
        mine = arrival[number :: encoder.accelerators]
        busy = time * np.arange(len(mine))
        begins = np.maximum.accumulate(mine - busy) + busy
        delays[number :: encoder.accelerators] = begins + time + sent - mine
    return delays


def _encoder_ranks(deployment: Deployment, encoder: Encoder) -> Parallelism:
    """Return the ranks of an encoder's pass: an instance's tensor ranks, if they divide its heads.

    Others encode on one rank, and so does an accelerator of its own.
    """
    tp = deployment.parallelism.tp
    is_whole = encoder.accelerators or encoder.model.attention.heads % tp
    return Parallelism(tp=1 if is_whole else tp)


class MemoryUse(NamedTuple):
    """Contents of a rank's memory (B), and the number of cache blocks that fit."""

    size: float
    weights: float
    activations: float
    context: float
    cache: float
    token: float
    blocks: int


def memory_use(deployment: Deployment) -> MemoryUse:
    """Return the contents of a rank's memory, and the number of cache blocks.

    Raises
    ------
    ClusterError
        If the accelerator's memory is not known.
    WorkloadError
        If the weights do not fit.
    """
    size = deployment.cluster.accelerator.memory
    if size is None:
        raise ClusterError(f"{deployment.cluster.name}: accelerator.memory is missing: give it")
    model, by, p = deployment.model, deployment.engine, deployment.parallelism
    weights = _weights(deployment) + math.fsum(map(_weights, _draft(deployment)))
    activations = max(
        by.tokens * _widest(model, p) * 2.0, by.sequences * model.vocabulary * by.sampling
    )
    left = {
        "total": size * by.memory_fraction - weights - activations - _CONTEXT,
        "static": (size - _CONTEXT) * by.memory_fraction - weights,
        "free": (size - weights - activations - _CONTEXT) * by.memory_fraction,
    }[by.memory_of]
    if left <= 0:
        raise WorkloadError(
            f"{model.name} does not fit: a rank needs {weights / 1e9:.1f} GB for weights and"
            f" {(activations + _CONTEXT) / 1e9:.1f} GB for activations and context, and the engine"
            f" may use {100 * by.memory_fraction:.0f} % of the {size / 1e9:.1f} GB of"
            f" {deployment.cluster.accelerator.name}: use more tensor ranks"
            " (tp) or weights of fewer bits (weights fp8)"
        )
    token = cache_bytes(deployment) + math.fsum(map(cache_bytes, _draft(deployment)))
    fit = int(left / (token * by.block))
    blocks = fit if deployment.blocks is None else deployment.blocks
    if blocks * token * by.block > size:
        need = f"{blocks * token * by.block / 1e9:.0f} GB"
        raise WorkloadError(f"blocks {blocks}: they need {need} of {size / 1e9:.1f} GB of memory")
    return MemoryUse(size, weights, activations, _CONTEXT, left, token, blocks)


def _widest(model: Model, p: Parallelism) -> float:
    """Return the elements per token that a pass keeps at its widest point, on a rank."""
    inner = 2 * max(model.ffn or 0, model.hidden * 4) / p.tp
    if experts := model.experts:
        # Inputs of experts' two products, of which the outputs may take the place of the first.
        width = experts.hidden / p.expert_tp
        inner = max(inner, experts.top_k / p.ep * (max(2 * width, model.hidden) + width))
    return float(4 * model.hidden + inner)


def _draft(deployment: Deployment) -> list[Deployment]:
    """Return the drafting model as a deployment on the same ranks, if there is one."""
    draft = deployment.speculation.draft if deployment.speculation else None
    if draft is None:
        return []
    alone = replace(deployment, speculation=None, adapters=None, imbalance=None, encoder=None)
    return [replace(alone, model=draft, dcp=1)]


def _layers(deployment: Deployment) -> float:
    model, p, parts = deployment.model, deployment.parallelism, deployment.precisions
    whole, experts = (PRECISIONS[recipe].stored for recipe in (parts.attention, parts.experts))
    layers = 0.0
    for layer in range(model.layers):
        numbers = layer_parameters(model, layer)
        layers += (numbers.sharded / p.tp + numbers.replicated) * whole
        layers += numbers.experts / (p.ep * p.expert_tp) * experts
    return layers


def _weights(deployment: Deployment) -> float:
    model, p, layers = deployment.model, deployment.parallelism, _layers(deployment)
    if deployment.adapters is not None:
        layers += deployment.adapters.held * adapter_bytes(deployment)
    if (encoder := deployment.encoder) is not None and not encoder.accelerators:
        images, by = encoder.model, _encoder_ranks(deployment, encoder).tp
        parts_of_it = [layer_parameters(images, layer) for layer in range(images.layers)]
        layers += 2.0 * math.fsum(each.sharded / by + each.replicated for each in parts_of_it)
    outer = embedding_parameters(model).sharded, head_parameters(model).sharded
    # The first stage looks tokens up, the last one has the head.
    return (
        layers * stage_share(deployment)
        + (math.fsum(outer) if p.pp == 1 else max(outer)) / p.tp * 2.0
    )


def read_weights(deployment: Deployment) -> float:
    """Return the least bytes of weights that a rank reads from memory for a token, on average.

    Without embeddings and head, what caches may hold, and the experts that a token does not choose.
    """
    model, p = deployment.model, deployment.parallelism
    if model.experts is not None:
        chosen = model.experts.model_copy(update={"count": model.experts.top_k})
        model = model.model_copy(update={"experts": chosen})
    return max(0.0, _layers(replace(deployment, model=model)) - p.pp * _CACHE)


_CACHE = 256e6
"""Bytes that caches of an accelerator hold at most (MI300X's: 256 MB)."""


def stage_share(deployment: Deployment) -> float:
    """Return the share of the layers that the largest pipeline stage has."""
    layers = deployment.model.layers
    return math.ceil(layers / deployment.parallelism.pp) / layers


def adapter_bytes(deployment: Deployment) -> float:
    """Return the bytes of an adapter on a tensor rank (B); 0 if there is none."""
    if deployment.adapters is None:
        return 0.0
    model, p = deployment.model, deployment.parallelism
    assert isinstance(model.attention, GroupedAttention)  # noqa: S101 - a deployment sees to it
    ups, query = 2 if model.gated else 1, model.attention.heads * model.attention.head / p.tp
    key = max(model.attention.kv_heads / p.tp, 1.0) * model.attention.head
    numbers = 0.0
    for layer in range(model.layers):
        if (delta := model.delta_at(layer)) is None:
            numbers += 4 * model.hidden + 2 * query + 2 * key
        else:
            keys, values = delta.key_heads * delta.key, delta.value_heads * delta.value
            numbers += 2 * model.hidden + (2 * keys + 3 * values) / p.tp
        dense, routed = model.ffn or 0, 0.0
        if (experts := model.experts_at(layer)) is not None:
            dense = experts.shared * experts.hidden
            routed = experts.count * (model.hidden + experts.hidden / p.expert_tp)
        numbers += (1 + ups) * ((dense > 0) * (model.hidden + dense / p.tp) + routed)
    return deployment.adapters.rank * numbers * 2.0


def cache_bytes(deployment: Deployment) -> float:
    """Return the mean bytes of a token of context in the cache of a rank.

    Layers with windows count as in a context of the deployment's length.
    """
    model, p = deployment.model, deployment.parallelism
    element = 1.0 if deployment.precisions.cache.startswith("fp8") else 2.0
    match model.attention:
        case LatentAttention() as latent:
            numbers = float(latent.kv_rank + latent.rope)
        case GroupedAttention() as grouped:
            numbers = 2.0 * max(grouped.kv_heads / p.tp, 1.0) * grouped.head
    layers = math.fsum(
        model.seen(layer, deployment.context) / deployment.context
        for layer in range(model.layers)
        if model.delta_at(layer) is None
    )
    return numbers * element * layers * stage_share(deployment) / deployment.dcp


def running_precisions(deployment: Deployment) -> Precisions:
    """Return the recipes that a deployment's kernels run.

    Without matrix units for 8 or 4 bits engines keep the small weights and multiply in 16 bits
    (Marlin's kernels, which vLLM uses for fp8 before Ada and for four bits before Blackwell,
    docs.vllm.ai quantization).
    """
    peaks, parts = deployment.cluster.accelerator.peak, deployment.precisions

    def runs(recipe: str) -> str:
        needed = PRECISIONS[recipe].peak
        if needed in peaks or needed not in ("fp8", "fp4"):
            return recipe
        if "mxfp4" in recipe:
            return "w4a16_mxfp4"
        return "int8_wo" if PRECISIONS[recipe].weight >= 1.0 else "int4_wo"

    return replace(
        parts,
        attention=runs(parts.attention),
        network=runs(parts.network),
        experts=runs(parts.experts),
    )


class MeasuredKernels(NamedTuple):
    """Kernel times of one's own machine, and its accelerator's rates."""

    own: OwnKernels
    chip: Accelerator


@lru_cache(maxsize=8)
def _kernels(chip: Accelerator, measured: MeasuredKernels | None = None) -> KernelTimes:
    """Return kernel times; measured ones are scaled to other rates as tables are."""
    own = None if measured is None else measured.own
    if measured is not None and measured.chip != chip:
        now, then = _kernels(chip), _kernels(measured.chip)
        rows = (
            (shape, time * now.time(shape).seconds / then.time(shape).seconds)
            for shape, time in measured.own.rows
        )
        own = OwnKernels(measured.own.source, tuple(rows))
    return kernel_times(chip, own=own)


def pcie_rate(deployment: Deployment, option: str) -> float:
    """Return the rate (B/s) at which an accelerator copies from host memory.

    Raises
    ------
    ClusterError
        If the cluster does not describe it; names the option that needs it.
    """
    pcie, name = deployment.cluster.pcie, deployment.cluster.name
    if pcie is None:
        raise ClusterError(f"{name}: pcie.bandwidth is missing, and {option} needs it")
    return pcie.bandwidth * pcie.efficiency


def chip_of(cluster: Cluster) -> Accelerator:
    """Return a cluster's accelerator, or refuse one without rates."""
    accelerator = cluster.accelerator
    if accelerator.memory_bandwidth is None or not accelerator.peak:
        raise ClusterError(
            f"{cluster.name}: accelerator.peak and accelerator.memory_bandwidth are missing, and"
            " serving needs them: give both"
        )
    by, peaks = accelerator.memory_bandwidth, dict(accelerator.peak)
    return Accelerator(accelerator.name, peaks, by, accelerator.generation or "")


def kernel_origins(deployment: Deployment) -> dict[Origin, float]:
    """Return the shares of a decode's kernel time by source of the times, for 16 sequences."""
    kernels = _kernels(chip_of(deployment.cluster), deployment.measured)
    return shares(
        kernels.fastest(kernel.forward.shape)
        for block in pass_blocks(_pass_of(deployment, Segment(16, 1, 1024)))
        for part in block.parts
        for kernel in part.kernels
        if kernel.forward.shape is not None
    )


def _pass_of(deployment: Deployment, segment: Segment) -> InferencePass:
    return InferencePass(
        model=deployment.model,
        parallelism=deployment.parallelism,
        segments=(segment,),
        precisions=running_precisions(deployment),
        distribution=deployment.distribution,
        imbalance=deployment.imbalance,
        adapters=deployment.adapters,
        dcp=deployment.dcp,
    )


def instance_surface(deployment: Deployment, base: Cluster | None = None) -> IterationSurface:
    """Return the surface of a deployment's iteration times.

    Parameters
    ----------
    deployment
        The instance.
    base
        The cluster before a what-if: its measured all-reduce kernels are scaled by the change that
        the network model predicts; None: the deployment's own.
    """
    surface = _surface(_Key(deployment, base or deployment.cluster))
    for draft in _draft(deployment):
        drafts = deployment.speculation.drafts if deployment.speculation else 0
        surface = with_drafts(surface, instance_surface(draft, base), drafts)
    return surface


class _Key:
    """What an instance's surface depends on, as a key: clusters and models do not hash."""

    def __init__(self, deployment: Deployment, base: Cluster) -> None:
        self.deployment, self.base = deployment, base
        by, ranks = deployment.engine, deployment.parallelism.ranks
        self._value = (
            deployment.model.model_dump_json(),
            chip_of(deployment.cluster),
            chip_of(base),
            # One rank has no exchanges.
            ranks > 1 and network_of(deployment.cluster, ranks),
            ranks > 1 and network_of(base, ranks),
            deployment.parallelism,
            deployment.precisions,
            deployment.distribution,
            deployment.imbalance and deployment.imbalance.content,
            deployment.adapters,
            deployment.measured,
            deployment.context,
            (by.tokens, by.sequences, by.captured, by.pads_chunks, by.fuses_casts),
            _decode_rows(deployment),
            deployment.dcp,
        )

    def __hash__(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other._value == self._value


@lru_cache(maxsize=256)
def _surface(key: _Key) -> IterationSurface:
    deployment, p = key.deployment, key.deployment.parallelism
    clock = PassClock(
        _kernels(chip_of(deployment.cluster), deployment.measured),
        ExchangeClock(deployment.cluster, p, key.base, deployment.dcp),
        spreads_experts=p.dp * p.cp > 1 and p.ep > 1,
        fuses_casts=deployment.engine.fuses_casts,
    )
    by = deployment.engine
    limits = SurfaceLimits(
        tokens=max(by.tokens, 4096),
        sequences=by.sequences,
        context=deployment.context,
        captured=captured_sizes(by.captured),
        pads_chunks=by.pads_chunks,
        query_block=_decode_rows(deployment),
    )
    return surface(clock, _pass_of(deployment, Segment(1, 1, 1)), limits)


def _decode_rows(deployment: Deployment) -> int:
    """Return the query rows of a decode's head beside chunks of prompts.

    8-bit caches are not FlashAttention-2's (vLLM, ``v1/attention/backends/flash_attn.py``).
    """
    if deployment.precisions.cache.startswith("fp8"):
        return 1
    capability = compute_capability(chip_of(deployment.cluster))
    return deployment.engine.decode_rows.get(capability or 0, 1)


_SMALL_DOMAIN = 4e6
"""Bytes beyond which engines leave all-reduces to the library where that is faster (vLLM's custom
all-reduce takes up to 8 MiB, flashinfer's fused one 8 to 32)."""


@dataclass(frozen=True, slots=True)
class ExchangeClock:
    """Times of an instance's collectives: the engine's kernels if measured, else the library's."""

    cluster: Cluster
    parallelism: Parallelism
    base: Cluster
    dcp: int = 1

    def __call__(self, exchange: Exchange) -> float:
        """Return the time of an exchange (s)."""
        p = self.parallelism
        if exchange.label == "pp":  # from a rank of a stage to that of the next one
            return collective_time(self.cluster, exchange.kind, 2, exchange.size, p.ranks_per_stage)
        ranks = {"tp": p.tp, "ep": p.ep * p.expert_tp, "cp": p.cp}.get(exchange.label, self.dcp)
        if ranks == 1 or not exchange.size:
            return 0.0
        stride = p.tp if exchange.label == "cp" else 1
        library = collective_time(self.cluster, exchange.kind, ranks, exchange.size, stride)
        if exchange.kind != "all_reduce" or ranks > self.base.scale_up.size:
            return library
        kernel = engine_all_reduce(chip_of(self.base), ranks, exchange.size)
        if kernel is None:
            return library
        if self.cluster is not self.base:
            kernel *= library / collective_time(self.base, exchange.kind, ranks, exchange.size)
        return min(kernel, library) if exchange.size > _SMALL_DOMAIN else kernel


def deployment_of(  # noqa: PLR0913 - what a deployment is named by
    model: str | Model,
    cluster: str | Cluster,
    *,
    degrees: tuple[int, ...] = (1, 1, 1),
    recipes: tuple[str, str, str] = ("bf16", "bf16", "bf16"),
    engine_name: str = "vllm",
    version: str = "",
    context: int = 32768,
) -> Deployment:
    """Return a deployment from names.

    Parameters
    ----------
    model, cluster
        A card or cluster, or its name.
    degrees
        ``tp``, ``dp``, ``ep``, and ``pp`` and ``cp`` unless they are 1.
    recipes
        Of weights, of experts, of the cache.
    engine_name, version
        Of :func:`simulator.serving.engines.engine`.
    context
        Longest sequence.

    Raises
    ------
    TwofoldError
        If a name is unknown or degrees do not fit each other.

    Examples
    --------
    >>> deployment_of("llama-3.1-8b", "hgx-h100").engine.tokens
    8192
    """
    card = model if isinstance(model, Model) else load_model(model)
    where = load_cluster(cluster)
    weights, experts, cache = recipes
    for recipe in recipes:
        if recipe not in PRECISIONS:
            raise WorkloadError(f"precision {one_of(recipe, PRECISIONS)}")
    chip = where.accelerator
    by = engine(engine_name, version, chip.memory or 80e9, chip.name)
    check_version(engine_name, version)
    return Deployment(
        model=card,
        cluster=where,
        parallelism=parallelism_of(card, where, degrees),
        engine=by,
        precisions=Precisions(attention=weights, network=weights, experts=experts, cache=cache),
        context=context,
    )


def parallelism_of(model: Model, cluster: Cluster, degrees: tuple[int, ...]) -> Parallelism:
    """Return the parallelism of an instance by its degrees, as in :func:`deployment_of`.

    Raises
    ------
    TwofoldError
        If they do not fit the model, the cluster, or each other.
    """
    tp, dp, ep, pp, cp = (*degrees, 1, 1)[:5]
    if ep > 1 and model.experts is None:
        raise WorkloadError(f"ep {ep}: {model.name} has no experts: leave it out")
    if ep > 1 and model.experts is not None and (model.experts.count % ep or tp * cp * dp % ep):
        raise WorkloadError(
            f"ep {ep} does not divide the {model.experts.count} experts of {model.name}, or tp x"
            f" {'cp x ' if cp > 1 else ''}dp, which is {tp * cp * dp}"
        )
    if pp > model.layers:
        raise WorkloadError(f"pp {pp}: {model.name} has {model.layers} layers: use fewer stages")
    if (ranks := tp * cp * dp * pp) > cluster.capacity:
        raise ClusterError(
            f"{cluster.name} has {cluster.capacity} accelerators, an instance {ranks}: use fewer"
        )
    expert_tp = tp * cp * dp // ep if ep > 1 else None
    return Parallelism(tp=tp, cp=cp, dp=dp, ep=ep, pp=pp, etp=expert_tp)


def computed_by_layer(begun: float, ends: float, layers: int, last: float) -> Computed:
    """Return when which share of a cache is computed: layers take equal parts of an iteration.

    Layers go together by twos, fours, ... toward the middle: where sends are slower than layers
    the first ones fill the link, where they are faster the last one goes alone.

    Parameters
    ----------
    begun, ends
        The iteration (s).
    layers
        How many the model has.
    last
        Share of the prompt that the iteration reads; the rest was read before.

    Examples
    --------
    >>> [share for _, share in computed_by_layer(0.0, 1.0, 8, 1.0)]
    [0.0, 0.125, 0.25, 0.5, 0.75, 0.875, 1.0]
    """
    powers = [2**k for k in range(layers.bit_length()) if 2 * 2**k <= layers]
    counts = sorted({0, *powers, *(layers - n for n in powers)})
    step = (ends - begun) / layers
    shares = [(begun + n * step, 1 - last * (1 - n / layers)) for n in counts]
    return (*shares, (ends, 1.0))


def parts_of(
    prefill: Deployment, decode: Deployment, size: float, ends: tuple[int, int]
) -> list[Part]:
    """Return the messages between ranks for a prompt's cache.

    Each decoding rank receives its part from those that have it: heads of keys and values are
    divided over tensor ranks, a latent cache is on all of them, or divided by token among ``dcp``.

    Parameters
    ----------
    prefill, decode
        The two deployments.
    size
        Bytes of the blocks on a decoding rank.
    ends
        The first rank of either.
    """
    have, want = prefill.parallelism.tp, decode.parallelism.tp
    latent = isinstance(decode.model.attention, LatentAttention)
    held, wanted = prefill.dcp, decode.dcp
    parts = []
    for rank in range(want):
        heads = (rank * have // want + n for n in range(1 if latent else max(1, have // want)))
        # Of ranks that share a context those that have its tokens.
        shares = range(rank, rank + math.lcm(held, wanted), wanted)
        sources = sorted({at - at % held + share % held for at in heads for share in shares})
        parts += [(ends[0] + at, ends[1] + rank, size / len(sources)) for at in sources]
    return parts
