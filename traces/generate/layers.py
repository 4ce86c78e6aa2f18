"""Attention on one rank: projections, scores, and what context parallelism gathers.

A layer as parts: kernels that follow each other, and what is exchanged around them.

The feed-forward network of a layer on one rank: dense, or experts and their routing.

Blocks of a transformer on one rank: embedding, layers, head.

FLOPs are those of the matrix products, forward ``24 b s h^2 + 4 b s^2 h`` for a layer of GPT and
``2 b s h V`` for the head, twice that backward (Narayanan et al. 2021, arXiv 2104.04473, appendix);
memory traffic is each kernel's operands once.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from traces.generate.kernel_times import Kernel, Work, elementwise, matrix
from traces.generate.model import (
    Experts,
    GroupedAttention,
    LatentAttention,
    Parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from traces.generate.run import MicroBatch


class Exchange(NamedTuple):
    """A collective in a group of the rank's; ``size`` is S of nccl-tests (B)."""

    kind: str
    label: str
    size: float


Exchanges = tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels between two exchanges.

    ``before`` is exchanged ahead of the first kernel and ``after`` behind the last one, in the
    forward pass; the other two around the kernels' gradients.
    """

    name: str
    kernels: tuple[Kernel, ...]
    before: Exchanges = ()
    after: Exchanges = ()
    back_before: Exchanges = ()
    back_after: Exchanges = ()


class Block(NamedTuple):
    """A layer, or what precedes or follows them all: parts in order, and weights.

    ``weights`` are the block's, before any rank takes its share.
    """

    parts: tuple[Part, ...]
    weights: Parameters
    is_layer: bool = False


def part(
    name: str, kernels: tuple[Kernel, ...], *, before: Exchanges = (), after: Exchanges = ()
) -> Part:
    """Make a part whose backward pass mirrors its forward pass.

    The transpose of gathering is scattering sums, that of an all-to-all an all-to-all. An
    all-reduce behind a part has none, but the part's input, which is the same on all ranks,
    gets its gradient from an all-reduce (``f`` and ``g`` of Megatron-LM, arXiv 1909.08053,
    section 3).
    """
    summed = tuple(one for one in after if one.kind == "all_reduce")
    mirrored = tuple(_mirrored(one) for one in reversed(after) if one.kind != "all_reduce")
    back_after = tuple(_mirrored(one) for one in reversed(before)) + summed
    return Part(name, kernels, before, after, mirrored, back_after)


def around(batch: MicroBatch, size: float) -> tuple[Exchanges, Exchanges]:
    """Return what tensor parallelism exchanges around a part with activations of ``size`` bytes.

    An all-reduce behind it (arXiv 1909.08053); with sequence parallelism an all-gather ahead and
    a reduce-scatter behind, together the same bytes (arXiv 2205.05198, section 4.2.2).
    """
    if batch.parallelism.sequence_parallel:
        return (Exchange("all_gather", "tp", size),), (Exchange("reduce_scatter", "tp", size),)
    return (), (Exchange("all_reduce", "tp", size),)


def first_of(one: Part) -> Part:
    """Let a part's input need no gradient: the embedding's is a token's number."""
    return replace(one, back_after=())


def _mirrored(one: Exchange) -> Exchange:
    return one._replace(kind=_MIRRORED[one.kind])


_MIRRORED = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
}


NORM_PASSES = (4.0, 4.0)
"""A norm with its residual reads both inputs and writes both outputs; backward as many."""


def attention(batch: MicroBatch) -> tuple[Part, ...]:
    """Parts of attention.

    With context parallelism every rank gathers all keys and values before it computes the scores
    of its own queries, and scatters their gradients back (Llama 3, arXiv 2407.21783, section
    3.3.2); it pairs early and late tokens, so that causal scores are even.
    """
    norm = elementwise("norm", batch.own_tokens * batch.model.hidden, batch.width, NORM_PASSES)
    before, after = around(batch, batch.hidden_bytes)
    projections, scores, keys = _kernels(batch)
    if batch.parallelism.cp == 1:
        return (part("attention", (norm, *projections, *scores), before=before, after=after),)
    gathered = (Exchange("all_gather", "cp", keys),)
    return (
        part("projections", (norm, *projections), before=before),
        part("attention", scores, before=gathered, after=after),
    )


def _kernels(batch: MicroBatch) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], float]:
    """Kernels up to keys and values, kernels from the scores on, and bytes of keys and values."""
    match batch.model.attention:
        case GroupedAttention() as grouped:
            return _grouped(batch, grouped)
        case LatentAttention() as latent:
            return _absorbed(batch, latent) if batch.phase == "decode" else _latent(batch, latent)


def _grouped(
    batch: MicroBatch, attention: GroupedAttention
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], float]:
    tp, hidden, width = batch.parallelism.tp, batch.model.hidden, batch.width
    heads = attention.heads / tp
    kv_heads = max(attention.kv_heads / tp, 1.0)
    query, key = heads * attention.head, kv_heads * attention.head
    projections = (matrix("qkv", (batch.tokens, hidden, query + 2 * key), width, entry=True),)
    scores = (
        _scores(batch, heads, (attention.head, attention.head), 2 * key),
        matrix("output", (batch.tokens, query, hidden), width),
    )
    return projections, scores, batch.sequences * batch.context * 2 * key * width


def _latent(
    batch: MicroBatch, attention: LatentAttention
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], float]:
    """MLA with keys and values expanded for every head, as in training and prefill."""
    tp, width, tokens = batch.parallelism.tp, batch.width, batch.tokens
    heads = attention.heads / tp
    expanded = heads * (attention.nope + attention.value)
    projections = (
        *_queries(batch, attention),
        matrix("kv up", (tokens, attention.kv_rank, expanded), width),
    )
    key = attention.nope + attention.rope
    kept = heads * (key + attention.value)
    scores = (
        _scores(batch, heads, (key, attention.value), kept),
        matrix("output", (tokens, heads * attention.value, batch.model.hidden), width),
    )
    return projections, scores, batch.sequences * batch.context * kept * width


def _absorbed(
    batch: MicroBatch, attention: LatentAttention
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...], float]:
    """MLA on the cached latent: queries and outputs are projected (arXiv 2405.04434, 2.1.2)."""
    tp, width, tokens = batch.parallelism.tp, batch.width, batch.tokens
    heads, rank = attention.heads / tp, attention.kv_rank
    cached = rank + attention.rope
    projections = (
        *_queries(batch, attention),
        matrix("query into latent", (tokens * heads, attention.nope, rank), width, held=heads),
    )
    scores = (
        _scores(batch, heads, (cached, rank), cached),
        matrix("latent into value", (tokens * heads, rank, attention.value), width, held=heads),
        matrix("output", (tokens, heads * attention.value, batch.model.hidden), width),
    )
    return projections, scores, batch.sequences * batch.context * cached * width


def _queries(batch: MicroBatch, attention: LatentAttention) -> tuple[Kernel, ...]:
    """Make queries, and the latent of keys and values, which every tensor rank has whole.

    What every tensor rank holds is computed on its own tokens where the sequence is cut.
    """
    hidden, width, tokens = batch.model.hidden, batch.width, batch.tokens
    query = attention.heads / batch.parallelism.tp * (attention.nope + attention.rope)
    latent = attention.kv_rank + attention.rope
    down = matrix("kv down", (batch.own_tokens, hidden, latent), width, entry=True)
    if attention.q_rank is None:
        return matrix("query", (tokens, hidden, query), width, entry=True), down
    return (
        matrix("query down", (batch.own_tokens, hidden, attention.q_rank), width, entry=True),
        matrix("query up", (tokens, attention.q_rank, query), width),
        down,
    )


def _scores(batch: MicroBatch, heads: float, sizes: tuple[float, float], cached: float) -> Kernel:
    """Softmax of queries times keys, times values; ``sizes`` of a head's key and value.

    ``2 s^2 (d_k + d_v)`` FLOPs per head forward and twice that backward; scores stay on the chip
    (FlashAttention, arXiv 2205.14135), so that only queries, keys, values and outputs are moved.
    ``cached`` counts the numbers read per token of the context.
    """
    key, value = sizes
    pairs = batch.tokens * batch.context * batch.attended * heads
    flops = 2.0 * pairs * (key + value)
    moved = batch.tokens * heads * (key + value) + batch.sequences * batch.context * cached
    traffic = float(moved * batch.width)
    return Kernel("scores", Work(flops, traffic), Work(2 * flops, 2 * traffic))


def network(batch: MicroBatch, layer: int) -> tuple[Part, ...]:
    """Parts of a layer's network."""
    experts = batch.model.experts_at(layer)
    norm = elementwise("norm", batch.own_tokens * batch.model.hidden, batch.width, NORM_PASSES)
    if experts is None:
        before, after = around(batch, batch.hidden_bytes)
        kernels = (norm, *_dense(batch, batch.model.ffn or 0))
        return (part("network", kernels, before=before, after=after),)
    if batch.parallelism.ep == 1:
        return _local_experts(batch, experts, norm)
    return _spread_experts(batch, experts, norm)


def _dense(batch: MicroBatch, width: float) -> tuple[Kernel, ...]:
    return _matrices(batch, batch.tokens, width / batch.parallelism.tp, held=1.0)


def _matrices(batch: MicroBatch, rows: float, width: float, *, held: float) -> tuple[Kernel, ...]:
    """Up (twice if gated), activation, down, for ``held`` networks of this width."""
    hidden, element = batch.model.hidden, batch.width
    both = 2 if batch.model.gated else 1
    return (
        matrix("up", (rows, hidden, both * width), element, held=held, entry=True),
        elementwise("activation", rows * width, element, (both + 1, 2 * both + 1)),
        matrix("down", (rows, width, hidden), element, held=held),
    )


def _local_experts(batch: MicroBatch, experts: Experts, norm: Kernel) -> tuple[Part, ...]:
    """Every rank holds all experts, or a slice of each: nothing is sent between replicas."""
    tp = batch.parallelism.tp
    before, after = around(batch, batch.hidden_bytes)
    visits = batch.tokens * experts.top_k
    met = _met(experts, experts.count, batch.tokens)
    kernels = (
        norm,
        _router(batch, experts),
        *_shared(batch, experts),
        *_matrices(batch, visits, experts.hidden / tp, held=met),
    )
    return (part("experts", kernels, before=before, after=after),)


def _spread_experts(batch: MicroBatch, experts: Experts, norm: Kernel) -> tuple[Part, ...]:
    """Experts are spread over ``ep`` ranks: tokens go to them and come back.

    An all-to-all sends each token's activations to its ``top_k`` experts and another brings them
    back, ``tokens x top_k x hidden`` each (GShard, arXiv 2006.16668, section 3.2), taken as evenly
    spread. With tensor parallelism an expert is cut too, and gathers its tokens over the tensor
    ranks first, as Megatron-LM's all-to-all dispatcher does. Shared experts run before.
    """
    p = batch.parallelism
    sent = batch.own_tokens * experts.top_k * batch.model.hidden * batch.width
    there: Exchanges = (Exchange("all_to_all", "ep", sent),)
    back: Exchanges = (Exchange("all_to_all", "ep", sent),)
    if p.tp > 1:
        there += (Exchange("all_gather", "tp", sent * p.tp),)
        back = (Exchange("reduce_scatter", "tp", sent * p.tp), *back)
    visits = batch.tokens * experts.top_k
    met = _met(experts, experts.count // p.ep, batch.tokens * p.ep)
    routing = part("router", (norm, _router(batch, experts)))
    visited = part(
        "experts",
        _matrices(batch, visits, experts.hidden / p.tp, held=met),
        before=there,
        after=back,
    )
    if not experts.shared:
        return routing, visited
    before, after = around(batch, batch.hidden_bytes)
    return routing, part("shared", _shared(batch, experts), before=before, after=after), visited


def _router(batch: MicroBatch, experts: Experts) -> Kernel:
    shape = (batch.own_tokens, batch.model.hidden, experts.count)
    return matrix("router", shape, batch.width, entry=True)


def _shared(batch: MicroBatch, experts: Experts) -> tuple[Kernel, ...]:
    return _dense(batch, experts.shared * experts.hidden) if experts.shared else ()


def _met(experts: Experts, held: int, tokens: float) -> float:
    """Return how many of the experts held are visited at all, and so read from memory.

    Tokens choose at random: one leaves an expert out with probability ``1 - top_k / count``.
    """
    left_out: float = (1 - experts.top_k / experts.count) ** tokens
    return held * (1 - left_out)


_LOGIT_BYTES = 4
"""The loss is computed in fp32, as Megatron-LM's vocabulary-parallel cross entropy does."""


def chunks(batch: MicroBatch) -> list[list[Block]]:
    """Blocks of every chunk of the pipeline: the first begins with the embedding.

    The layers are divided evenly; where that leaves a remainder, chunks in the middle take one
    more, and first and last are spared, as Llama 3's were (arXiv 2407.21783, section 3.3.2).
    """
    model, count = batch.model, batch.parallelism.chunks
    base, more = divmod(model.layers, count)
    heavier = range((count - more) // 2, (count - more) // 2 + more)
    divided: list[list[Block]] = []
    layer = 0
    for chunk in range(count):
        until = layer + base + (1 if chunk in heavier else 0)
        divided.append([_layer(batch, index) for index in range(layer, until)])
        layer = until
    divided[0].insert(0, _embedding(batch))
    divided[-1].append(_head(batch))
    return divided


def weights_on_rank(weights: Parameters, batch: MicroBatch) -> Parameters:
    """Return what one rank holds of a block's weights, before ZeRO shares them out."""
    p = batch.parallelism
    return Parameters(weights.cut / p.tp, weights.whole, weights.experts / p.tp / p.ep)


def _layer(batch: MicroBatch, index: int) -> Block:
    parts = (*attention(batch), *network(batch, index))
    return Block(parts, layer_parameters(batch.model, index), is_layer=True)


def _embedding(batch: MicroBatch) -> Block:
    """Look tokens up; the table is cut by vocabulary, so that ranks add up what they found."""
    model = batch.model
    looked_up = elementwise("embedding", batch.own_tokens * model.hidden, batch.width, (2, 2))
    _, after = around(batch, batch.hidden_bytes)
    part_of_all = part("embedding", (looked_up,), after=after)
    return Block((first_of(part_of_all),), embedding_parameters(model))


def _head(batch: MicroBatch) -> Block:
    """Turn the last activations into logits, cut by vocabulary, and those into loss or tokens.

    In training the ranks exchange, per token, the greatest logit, the sum of exponentials and the
    target's logit, and backward the activations' gradient; to choose tokens they gather the
    logits. Where stages lie between, a tied head is a copy of the embedding.
    """
    model, p = batch.model, batch.parallelism
    tokens = batch.sequences * batch.logits / (p.cp if batch.phase == "training" else 1)
    columns = model.vocabulary / p.tp
    own = tokens / p.tokens_cut * model.hidden
    kernels = (
        elementwise("norm", own, batch.width, (2, 3)),
        matrix("logits", (tokens, model.hidden, columns), batch.width, entry=True),
        elementwise("probabilities", tokens * columns, _LOGIT_BYTES, (2, 2)),
    )
    size = tokens * model.hidden * batch.width
    before, _ = around(batch, size)
    summed = Exchange("reduce_scatter" if p.sequence_parallel else "all_reduce", "tp", size)
    told: Exchanges = (Exchange("all_reduce", "tp", tokens * _LOGIT_BYTES),) * 3
    if batch.phase != "training":
        told = (Exchange("all_gather", "tp", tokens * model.vocabulary * batch.width),)
    weights = head_parameters(model)
    if model.tied_embeddings and p.pp > 1:
        weights = weights._replace(cut=float(model.vocabulary * model.hidden))
    return Block((Part("head", kernels, before, told, (), (summed,)),), weights)
