"""Embedding, layers and head of a transformer on one rank: kernels and exchanges between ranks.

A block (a layer, the embedding or the head) is a sequence of parts; a part is the kernels between
two exchanges. FLOPs are those of the matrix products: forward ``24 b s h^2 + 4 b s^2 h`` for a
layer of GPT and ``2 b s h V`` for the head, twice that backward (Narayanan et al. 2021, arXiv
2104.04473, appendix). Memory traffic is each kernel's operands once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.imbalance import Imbalance
from simulator.shares import Shares, of_bytes
from traces.generate.framework import NONE
from traces.generate.layer_kernels import (
    NO_WORK,
    GemmShape,
    Kernel,
    Passes,
    elementwise,
    linear,
    normalised,
    scores,
)
from traces.generate.model import (
    Experts,
    GroupedAttention,
    LatentAttention,
    Parameters,
    adapter_parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from traces.generate.run import MicroBatch


class Exchange(NamedTuple):
    """A collective in the rank's group of a label; ``size`` is S of nccl-tests (B).

    ``shares`` are those of an all-to-all with different bytes per pair. ``by_ep`` has a factor on
    the size for the groups of each expert-parallel rank, where they differ.
    """

    kind: str
    label: str
    size: float
    shares: Shares | None = None
    by_ep: tuple[float, ...] = ()


Exchanges = tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Kernels between two exchanges.

    In the forward pass ``before`` precedes the first kernel and ``after`` follows the last; in the
    backward pass ``back_before`` and ``back_after`` precede and follow the kernels' gradients. If
    the work of expert-parallel ranks differs, ``by_ep`` has the kernels of each of them, and
    ``kernels`` are those of the mean.
    """

    name: str
    kernels: tuple[Kernel, ...]
    before: Exchanges = ()
    after: Exchanges = ()
    back_before: Exchanges = ()
    back_after: Exchanges = ()
    by_ep: tuple[tuple[Kernel, ...], ...] = ()


class ModelBlock(NamedTuple):
    """A layer, the embedding or the head: its parts in order, and its parameters on all ranks.

    ``adapters`` are trained instead of the parameters; None: the parameters are trained.
    """

    parts: tuple[LayerPart, ...]
    parameters: Parameters
    is_layer: bool = False
    adapters: Parameters | None = None

    @property
    def trained(self) -> Parameters:
        """The parameters that have gradients."""
        return self.parameters if self.adapters is None else self.adapters

    @property
    def held(self) -> Parameters:
        """All parameters, including adapters."""
        if self.adapters is None:
            return self.parameters
        return Parameters(*(a + b for a, b in zip(self.parameters, self.adapters, strict=True)))


def chunks(batch: MicroBatch) -> list[list[ModelBlock]]:
    """Return the blocks of every chunk of the pipeline; embedding and head are on the outer two.

    The layers are divided evenly. Chunks in the middle take the remainder, one layer each, so that
    the first and the last have room for embedding and head, as in Llama 3 (arXiv 2407.21783,
    section 3.3.2).
    """
    layers = [_layer(batch, index) for index in range(batch.model.layers)]
    outer = (_outer(batch, _embedding(batch)), _outer(batch, _head(batch)))
    return divided(layers, outer, batch.parallelism.chunks)


def divided(
    layers: Sequence[ModelBlock], outer: tuple[ModelBlock, ModelBlock], count: int
) -> list[list[ModelBlock]]:
    """Divide layers over ``count`` chunks, with embedding and head on the outer two."""
    blocks: list[list[ModelBlock]] = []
    layer = 0
    for size in chunk_sizes(len(layers), count):
        blocks.append(list(layers[layer : layer + size]))
        layer += size
    blocks[0].insert(0, outer[0])
    blocks[-1].append(outer[1])
    return blocks


def chunk_sizes(layers: int, count: int) -> list[int]:
    """Return the number of layers of each of ``count`` chunks.

    Examples
    --------
    >>> chunk_sizes(126, 16)  # Llama 3.1 405B
    [7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7]
    """
    base, remainder = divmod(layers, count)
    longer = range((count - remainder) // 2, (count - remainder) // 2 + remainder)
    return [base + (chunk in longer) for chunk in range(count)]


def _outer(batch: MicroBatch, block: ModelBlock) -> ModelBlock:
    """Freeze the embedding or the head if adapters are trained."""
    return block._replace(adapters=Parameters()) if batch.lora_rank else block


def parameters_on_rank(parameters: Parameters, batch: MicroBatch) -> Parameters:
    """Return how many of a block's parameters one rank holds, before ZeRO shards them."""
    p = batch.parallelism
    return Parameters(
        sharded=parameters.sharded / p.tp,
        replicated=parameters.replicated,
        experts=parameters.experts / p.expert_tp / p.ep,
    )


def _layer(batch: MicroBatch, index: int) -> ModelBlock:
    cross = _attention(batch) if batch.model.has_cross_attention(index) else ()
    across = (replace(part, name=f"cross-{part.name}") for part in cross)
    parts = (*_attention(batch), *across, *_network(batch, index))
    adapters = None
    if batch.lora_rank:
        adapters = adapter_parameters(batch.model, index, batch.lora_rank, batch.lora_targets)
    return ModelBlock(parts, layer_parameters(batch.model, index), is_layer=True, adapters=adapters)


def _embedding(batch: MicroBatch) -> ModelBlock:
    """Look up tokens, or project patches.

    The table is sharded by vocabulary, and the tensor ranks sum their results. The input is a
    token's number, which needs no gradient. Every rank projects the patches of its own tokens.
    """
    model = batch.model
    if model.patch is not None:
        shape = GemmShape(m=batch.sharded_tokens, k=model.patch, n=model.hidden)
        projected = tuple(
            replace(kernel, input_gradient=NO_WORK) for kernel in linear(batch, "patches", shape)
        )
        return ModelBlock((_part("embedding", projected),), embedding_parameters(model))
    looked_up = elementwise(batch, "embedding", batch.sharded_tokens * model.hidden, Passes(2, 2))
    if batch.lora_rank:
        looked_up = replace(looked_up, input_gradient=NO_WORK)
    _, after = _tensor_parallel(batch, batch.hidden_bytes)
    part = replace(_part("embedding", (looked_up,), after=after), back_after=())
    return ModelBlock((part,), embedding_parameters(model))


_LOGIT_BYTES = 4
"""The loss is computed in fp32, as Megatron-LM's vocabulary-parallel cross entropy does."""


def _head(batch: MicroBatch) -> ModelBlock:
    """Turn the last activations into logits, sharded by vocabulary, and those into loss or tokens.

    In training the tensor ranks exchange, per token, the greatest logit, the sum of exponentials
    and the target's logit, and backward the activations' gradient; to choose tokens they gather the
    logits. With several pipeline stages a tied head is a copy of the embedding.
    """
    model, p = batch.model, batch.parallelism
    tokens = batch.sequences * batch.logit_tokens / (p.cp if batch.phase == "training" else 1)
    columns = model.vocabulary / p.tp
    # From logits to probabilities.
    forward, backward = (2.0, 2.0)
    if batch.framework != NONE and batch.phase == "training":
        forward, backward = _LOSS_PASSES[batch.fused]
    counts = Passes(forward, backward, launches=(5, 3), element_bytes=_LOGIT_BYTES)
    kernels = (
        elementwise(batch, "norm", tokens / p.sequence_shards * model.hidden, Passes(2, 3)),
        *linear(
            replace(batch, recipe=batch.dtype),
            "logits",
            GemmShape(m=tokens, k=model.hidden, n=columns),
            reads_input=True,
        ),
        elementwise(batch, "probabilities", tokens * columns, counts),
    )
    size = tokens * model.hidden * batch.element_bytes
    before, _ = _tensor_parallel(batch, size)
    gradient = Exchange("reduce_scatter" if p.sequence_parallel else "all_reduce", "tp", size)
    result: Exchanges = (Exchange("all_reduce", "tp", tokens * _LOGIT_BYTES),) * 3
    if batch.phase != "training":
        logits = tokens * model.vocabulary * batch.element_bytes
        result = (Exchange("all_gather", "tp", logits),)
    parameters = head_parameters(model)
    if model.tied_embeddings and p.pp > 1:
        parameters = parameters._replace(sharded=float(model.vocabulary * model.hidden))
    return ModelBlock((LayerPart("head", kernels, before, result, (), (gradient,)),), parameters)


_LOSS_PASSES = {True: (4.0, 3.0), False: (8.0, 4.0)}
"""Passes of the cross entropy over the logits, in fp32. Fused or not: they are cast or read
unchanged, the greatest is subtracted, exponentials are summed and kept; backward these are
scaled."""


def _part(
    name: str, kernels: tuple[Kernel, ...], *, before: Exchanges = (), after: Exchanges = ()
) -> LayerPart:
    """Return a part whose backward pass mirrors its forward pass.

    The transpose of an all-gather is a reduce-scatter, that of an all-to-all an all-to-all. An
    all-reduce after a part has none, but the part's input, which is the same on all ranks, gets its
    gradient from an all-reduce (``f`` and ``g`` of Megatron-LM, arXiv 1909.08053, section 3).
    """
    summed = tuple(exchange for exchange in after if exchange.kind == "all_reduce")
    back_before = tuple(
        _transposed(exchange) for exchange in reversed(after) if exchange.kind != "all_reduce"
    )
    back_after = tuple(_transposed(exchange) for exchange in reversed(before)) + summed
    return LayerPart(name, kernels, before, after, back_before, back_after)


def _transposed(exchange: Exchange) -> Exchange:
    shares = None if exchange.shares is None else exchange.shares.transposed()
    return exchange._replace(kind=_TRANSPOSED[exchange.kind], shares=shares)


_TRANSPOSED = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
}


def _tensor_parallel(batch: MicroBatch, size: float) -> tuple[Exchanges, Exchanges]:
    """Return the tensor ranks' exchanges before and after a part with activations of ``size`` (B).

    An all-reduce after it (arXiv 1909.08053); with sequence parallelism an all-gather before and a
    reduce-scatter after, together the same bytes (arXiv 2205.05198, section 4.2.2).
    """
    if batch.parallelism.sequence_parallel:
        return (Exchange("all_gather", "tp", size),), (Exchange("reduce_scatter", "tp", size),)
    return (), (Exchange("all_reduce", "tp", size),)


def _norm(batch: MicroBatch) -> Kernel:
    """Add the residual and normalise: both inputs are read, both outputs written; backward too."""
    return normalised(batch, batch.sharded_tokens * batch.model.hidden)


def _attention(batch: MicroBatch) -> tuple[LayerPart, ...]:
    """Return the parts of attention.

    With context parallelism every rank gathers all keys and values before it computes the scores of
    its own queries, and scatters their gradients back (Llama 3, arXiv 2407.21783, section 3.3.2); a
    rank has early and late tokens, which balances causal scores.
    """
    before, after = _tensor_parallel(batch, batch.hidden_bytes)
    match batch.model.attention:
        case GroupedAttention() as grouped:
            kernels = _grouped(batch, grouped)
        case LatentAttention() as latent:
            kernels = (_absorbed if batch.phase == "decode" else _latent)(batch, latent)
    projections = (_norm(batch), *kernels.projections)
    if batch.parallelism.cp == 1:
        together = (*projections, *kernels.scores)
        return (_part("attention", together, before=before, after=after),)
    gathered = (Exchange("all_gather", "cp", kernels.key_value_bytes),)
    return (
        _part("projections", projections, before=before),
        _part("attention", kernels.scores, before=gathered, after=after),
    )


class _AttentionKernels(NamedTuple):
    """Kernels up to keys and values, kernels from the scores on, and bytes of keys and values."""

    projections: tuple[Kernel, ...]
    scores: tuple[Kernel, ...]
    key_value_bytes: float


def _grouped(batch: MicroBatch, attention: GroupedAttention) -> _AttentionKernels:
    tp, hidden, width = batch.parallelism.tp, batch.model.hidden, batch.element_bytes
    heads = attention.heads / tp
    kv_heads = max(attention.kv_heads / tp, 1.0)
    query, key = heads * attention.head, kv_heads * attention.head
    qkv = GemmShape(m=batch.tokens, k=hidden, n=query + 2 * key)
    return _AttentionKernels(
        projections=(*linear(batch, "qkv", qkv, reads_input=True),),
        scores=(
            *scores(
                batch, heads, attention.head, attention.head, cached=2 * key, kv_heads=kv_heads
            ),
            *linear(batch, "output", GemmShape(m=batch.tokens, k=query, n=hidden)),
        ),
        key_value_bytes=batch.sequences * batch.context * 2 * key * width,
    )


def _latent(batch: MicroBatch, attention: LatentAttention) -> _AttentionKernels:
    """MLA with keys and values expanded for every head, as in training and prefill."""
    tp, width, tokens = batch.parallelism.tp, batch.element_bytes, batch.tokens
    heads = attention.heads / tp
    expanded = heads * (attention.nope + attention.value)
    key = attention.nope + attention.rope
    cached = heads * (key + attention.value)
    output = GemmShape(m=tokens, k=heads * attention.value, n=batch.model.hidden)
    return _AttentionKernels(
        projections=(
            *_latent_queries(batch, attention),
            *linear(batch, "kv up", GemmShape(m=tokens, k=attention.kv_rank, n=expanded)),
        ),
        scores=(
            *scores(batch, heads, key, attention.value, cached=cached, kv_heads=heads),
            *linear(batch, "output", output),
        ),
        key_value_bytes=batch.sequences * batch.context * cached * width,
    )


def _absorbed(batch: MicroBatch, attention: LatentAttention) -> _AttentionKernels:
    """MLA on the cached latent: queries and outputs are projected (arXiv 2405.04434, 2.1.2)."""
    tp, width, tokens = batch.parallelism.tp, batch.element_bytes, batch.tokens
    heads, rank = attention.heads / tp, attention.kv_rank
    cached = rank + attention.rope
    into_latent = GemmShape(m=tokens * heads, k=attention.nope, n=rank)
    into_value = GemmShape(m=tokens * heads, k=rank, n=attention.value)
    output = GemmShape(m=tokens, k=heads * attention.value, n=batch.model.hidden)
    return _AttentionKernels(
        projections=(
            *_latent_queries(batch, attention),
            *linear(batch, "query into latent", into_latent, weight_matrices=heads),
        ),
        scores=(
            *scores(batch, heads, cached, rank, cached=cached, kv_heads=1.0),
            *linear(batch, "latent into value", into_value, weight_matrices=heads),
            *linear(batch, "output", output),
        ),
        key_value_bytes=batch.sequences * batch.context * cached * width,
    )


def _latent_queries(batch: MicroBatch, attention: LatentAttention) -> tuple[Kernel, ...]:
    """Compute queries, and the latent of keys and values.

    The down-projections are replicated on every tensor rank; each computes them for its own tokens
    if the sequence is sharded.
    """
    hidden, tokens = batch.model.hidden, batch.tokens
    query = attention.heads / batch.parallelism.tp * (attention.nope + attention.rope)
    latent = GemmShape(m=batch.sharded_tokens, k=hidden, n=attention.kv_rank + attention.rope)
    kv_down = linear(batch, "kv down", latent, reads_input=True)
    if attention.q_rank is None:
        whole = GemmShape(m=tokens, k=hidden, n=query)
        return (*linear(batch, "query", whole, reads_input=True), *kv_down)
    down = GemmShape(m=batch.sharded_tokens, k=hidden, n=attention.q_rank)
    return (
        *linear(batch, "query down", down, reads_input=True),
        *linear(batch, "query up", GemmShape(m=tokens, k=attention.q_rank, n=query)),
        *kv_down,
    )


def _network(batch: MicroBatch, layer: int) -> tuple[LayerPart, ...]:
    """Return the parts of a layer's feed-forward network."""
    experts = batch.model.experts_at(layer)
    if experts is not None and batch.parallelism.ep > 1:
        return _spread_experts(batch, experts, layer)
    before, after = _tensor_parallel(batch, batch.hidden_bytes)
    if experts is None:
        kernels = (_norm(batch), *_dense(batch, batch.model.ffn or 0))
        return (_part("network", kernels, before=before, after=after),)
    # Every rank holds all experts, or a shard of each: replicas exchange no tokens.
    kernels = (
        _norm(batch),
        *_router(batch, experts),
        *_shared_experts(batch, experts),
        *_kernels_at_load(batch, experts, 1.0, _visited(experts, experts.count, batch.tokens)),
    )
    return (_part("experts", kernels, before=before, after=after),)


def _dense(batch: MicroBatch, width: float) -> tuple[Kernel, ...]:
    return _feed_forward(batch, batch.tokens, width / batch.parallelism.tp, networks=1.0)


def _feed_forward(
    batch: MicroBatch, rows: float, width: float, *, networks: float
) -> tuple[Kernel, ...]:
    """Up-projection (twice if gated), activation, down-projection of networks of this width."""
    hidden = batch.model.hidden
    ups = 2 if batch.model.gated else 1
    up = GemmShape(m=rows, k=hidden, n=ups * width)
    down = GemmShape(m=rows, k=width, n=hidden)
    # The activation, of a product of two if gated; a separate bias takes 2 more passes.
    extra_kernels = 0 if batch.fused or batch.framework == NONE else ups + 1
    launches = 1 if batch.fused else 2 * ups
    counts = Passes(ups + 1 + extra_kernels, 2 * ups + 1 + extra_kernels, (launches, launches))
    return (
        *linear(batch, "up", up, weight_matrices=networks, reads_input=True),
        elementwise(batch, "activation", rows * width, counts),
        *linear(batch, "down", down, weight_matrices=networks),
    )


def _spread_experts(batch: MicroBatch, experts: Experts, layer: int) -> tuple[LayerPart, ...]:
    """Experts are spread over ``ep`` ranks: tokens are dispatched to them and combined again.

    An all-to-all sends each token's activations to its ``top_k`` experts and another brings them
    back, ``tokens x top_k x hidden`` each (GShard, arXiv 2006.16668, section 3.2), evenly spread or
    by the plan's imbalance: then all ranks' tokens choose by the same distribution, the return is
    the transpose of the dispatch, and a rank computes the tokens that it receives. If an expert is
    divided over tensor ranks (``etp``) they gather its tokens first, as Megatron-LM's all-to-all
    dispatcher does. Shared experts run before.
    """
    p = batch.parallelism
    sent = batch.sharded_tokens * experts.top_k * batch.model.hidden * batch.element_bytes
    tokens = batch.tokens * p.expert_tp / p.tp * p.ep
    tokens_asked = expert_loads(batch.imbalance, experts, p.ep, layer, tokens)
    to_experts = Exchange("all_to_all", "ep", sent)
    if tokens_asked.loads:
        size, shares = of_bytes(np.tile(np.array(tokens_asked.loads) * sent / p.ep, (p.ep, 1)))
        to_experts = Exchange("all_to_all", "ep", size, shares)
    dispatch: Exchanges = (to_experts,)
    combine: Exchanges = (_transposed(to_experts),)
    if p.expert_tp > 1:
        dispatch += (Exchange("all_gather", "tp", sent * p.tp, by_ep=tokens_asked.loads),)
        gathered = Exchange("reduce_scatter", "tp", sent * p.tp, by_ep=tokens_asked.loads)
        combine = (gathered, *combine)
    router = _part("router", (_norm(batch), *_router(batch, experts)))
    routed = _part(
        "experts",
        _kernels_at_load(batch, experts, 1.0, tokens_asked.mean),
        before=dispatch,
        after=combine,
    )
    by_ep = [
        _kernels_at_load(batch, experts, load, visited)
        for load, visited in zip(tokens_asked.loads, tokens_asked.visited, strict=True)
    ]
    routed = replace(routed, by_ep=tuple(by_ep))
    if not experts.shared:
        return router, routed
    before, after = _tensor_parallel(batch, batch.hidden_bytes)
    shared = _part("shared", _shared_experts(batch, experts), before=before, after=after)
    return router, shared, routed


class ExpertLoads(NamedTuple):
    """Load of the experts of each expert-parallel rank.

    ``loads`` are tokens over the mean, ``visited`` the number of experts read from memory; both are
    empty if all ranks are equal, with ``mean`` experts read.
    """

    mean: float
    loads: tuple[float, ...] = ()
    visited: tuple[float, ...] = ()


def expert_loads(
    imbalance: Imbalance | None, experts: Experts, ep: int, layer: int, tokens: float
) -> ExpertLoads:
    """Return the load of the experts of ``ep`` ranks, for which ``tokens`` choose independently."""
    mean = _visited(experts, experts.count // ep, tokens)
    if imbalance is None:
        return ExpertLoads(mean)
    popular = imbalance.popularity(ep, experts.count, layer)
    if imbalance.factor is None:
        of_experts = imbalance.of_experts(experts.count, layer)
    else:
        of_experts = np.repeat(popular * ep / experts.count, experts.count // ep)
    chosen = np.minimum(1.0, experts.top_k * of_experts)
    visited = (1 - (1 - chosen) ** tokens).reshape(ep, -1).sum(axis=1)
    return ExpertLoads(mean, tuple((popular * ep).tolist()), tuple(visited.tolist()))


def _kernels_at_load(
    batch: MicroBatch, experts: Experts, load: float, visited: float
) -> tuple[Kernel, ...]:
    """Return the experts' kernels on a rank that gets ``load`` times the mean of the tokens."""
    p = batch.parallelism
    rows = batch.tokens * p.expert_tp / p.tp * experts.top_k * load
    return _feed_forward(batch, rows, experts.hidden / p.expert_tp, networks=visited)


def _router(batch: MicroBatch, experts: Experts) -> tuple[Kernel, ...]:
    shape = GemmShape(m=batch.sharded_tokens, k=batch.model.hidden, n=experts.count)
    return linear(batch, "router", shape, reads_input=True)


def _shared_experts(batch: MicroBatch, experts: Experts) -> tuple[Kernel, ...]:
    return _dense(batch, experts.shared * experts.hidden) if experts.shared else ()


def _visited(experts: Experts, experts_on_rank: int, tokens: float) -> float:
    """Return the mean number of a rank's experts that get a token, and so are read from memory.

    Tokens choose at random: one omits an expert with probability ``1 - top_k / count``.
    """
    left_out: float = (1 - experts.top_k / experts.count) ** tokens
    return experts_on_rank * (1 - left_out)
