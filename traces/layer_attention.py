"""Attention on one rank: projections, scores, and what context parallelism gathers."""

from traces.layer_parts import Exchange, Part, around, part
from traces.model_card import GroupedAttention, LatentAttention
from traces.phases import MicroBatch
from traces.roofline import Kernel, Work, elementwise, matrix

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
