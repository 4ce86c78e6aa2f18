"""A deployment: the model, cluster, parallelism and engine of an instance, and its memory."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.accelerators import Accelerator
from simulator.imbalance import Imbalance
from simulator.serving.engines import Engine
from simulator.support.errors import ClusterError, WorkloadError
from topologies import Cluster
from traces.generate.inference import Adapters, Precisions
from traces.generate.kernel_times import PRECISIONS, OwnKernels
from traces.generate.layers import expert_loads
from traces.generate.model import (
    GroupedAttention,
    LatentAttention,
    Model,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from traces.generate.parallelism import Parallelism

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
    time. Raises WorkloadError if nothing is drafted, or the accepted number is impossible.
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
    Raises WorkloadError if the model is not an encoder of patches, or a number is not positive.
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


class MeasuredKernels(NamedTuple):
    """Kernel times of one's own machine, and its accelerator's rates."""

    own: OwnKernels
    chip: Accelerator


def encoder_ranks(deployment: Deployment, encoder: Encoder) -> Parallelism:
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

    Raises ClusterError if the accelerator's memory is not known. Raises WorkloadError if the
    weights do not fit.
    """
    size = deployment.cluster.accelerator.memory
    if size is None:
        raise ClusterError(f"{deployment.cluster.name}: accelerator.memory is missing: give it")
    model, by, p = deployment.model, deployment.engine, deployment.parallelism
    weights = _weights(deployment) + math.fsum(map(_weights, drafting(deployment)))
    # Elements per token that a pass keeps at its widest point, on a rank
    inner = 2 * max(model.ffn or 0, model.hidden * 4) / p.tp
    if experts := model.experts:
        # Inputs of experts' two products, of which the outputs may take the place of the first.
        width = experts.hidden / p.expert_tp
        inner = max(inner, experts.top_k / p.ep * (max(2 * width, model.hidden) + width))
    widest = float(4 * model.hidden + inner)
    activations = max(by.tokens * widest * 2.0, by.sequences * model.vocabulary * by.sampling)
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
    token = cache_bytes(deployment) + math.fsum(map(cache_bytes, drafting(deployment)))
    fit = int(left / (token * by.block))
    blocks = fit if deployment.blocks is None else deployment.blocks
    if blocks * token * by.block > size:
        need = f"{blocks * token * by.block / 1e9:.0f} GB"
        raise WorkloadError(f"blocks {blocks}: they need {need} of {size / 1e9:.1f} GB of memory")
    return MemoryUse(size, weights, activations, _CONTEXT, left, token, blocks)


def drafting(deployment: Deployment) -> list[Deployment]:
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
        images, by = encoder.model, encoder_ranks(deployment, encoder).tp
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
