"""An inference pass on a mixed batch: chunks of prompts and decodes at once, as engines run it.

Serving engines fuse kernels that are separate in training: queries, keys and values are one
product, the residual sum is part of the norm, the activation is one kernel, experts are grouped
products, and MLA has kernels of its own. The tables' times of quantised products include the casts
(:meth:`KernelTimes.with_input_cast_before` subtracts one). A pass is a list of blocks
(:class:`traces.generate.layers.ModelBlock`), forward only.

Kernels named ``scores`` are those of attention: they depend on the segments of the batch. All
others depend on the number of tokens, and those of the head on the number of sequences.
"""

from dataclasses import dataclass, replace
from math import fsum, inf
from typing import NamedTuple

from simulator.imbalance import Imbalance
from simulator.support.errors import WorkloadError
from simulator.support.names import one_of
from traces.generate.kernel_times import Attention, ExpertGemms, Gemm, Shape, Streaming, work_of
from traces.generate.kernel_times import LatentAttention as LatentScores
from traces.generate.layer_kernels import NO_WORK, Kernel, Work
from traces.generate.layers import Exchange, Exchanges, LayerPart, ModelBlock, divided, expert_loads
from traces.generate.model import (
    Experts,
    GatedDelta,
    GroupedAttention,
    LatentAttention,
    Model,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from traces.generate.parallelism import Parallelism
from traces.generate.run import MicroBatch

SCORES, NORM, OF_DECODES = "scores", "norm", "dcp of decodes"
CAST_BEFORE = ("qkv", "qkvz", "up", "down")
"""Products whose input is the output of a norm or an activation."""
_HALF = 2.0
"""Bytes of an element of activations, which stay in 16 bits."""
_STATE_BYTES = 4.0
"""States of gated delta nets are kept in fp32 (``mamba_ssm_dtype`` of Qwen3.5's config.json)."""


class Segment(NamedTuple):
    """Equal sequences of a batch.

    ``new_tokens`` of each are computed, of which the last attends to ``context`` tokens, itself
    included; 1 is a decode, more is a chunk of a prompt.
    """

    sequences: float
    new_tokens: float
    context: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Precisions:
    """Recipes of a checkpoint's parts (:data:`traces.generate.kernel_times.PRECISIONS`).

    ``network`` is that of dense feed-forward networks and shared experts, ``cache`` that of keys
    and values. Embedding, router and head are in bf16, as in checkpoints.

    Raises
    ------
    WorkloadError
        If the cache's type is not one of 16 or 8 bits.
    """

    attention: str = "bf16"
    network: str = "bf16"
    experts: str = "bf16"
    cache: str = "bf16"

    def __post_init__(self) -> None:
        if self.cache not in ("bf16", "fp16") and not self.cache.startswith("fp8"):
            raise WorkloadError(f"cache {one_of(self.cache, ('bf16', 'fp16', 'fp8'))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """LoRA adapters of all linear layers (Hu et al., arXiv 2106.09685): their number and rank.

    Of ``slots`` an accelerator holds at most so many at once (vLLM's ``max_loras``); 0: all.
    """

    count: int
    rank: int
    slots: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.count <= _MOST_ADAPTERS and 1 <= self.rank <= _MOST_ADAPTERS):
            raise WorkloadError(
                f"{self.count} adapters of rank {self.rank}: both are 1 to {_MOST_ADAPTERS}"
            )

    def used(self, tokens: float, experts: int = 1, chosen: float = 1.0) -> float:
        """Return the mean number of distinct adapters in a batch whose tokens choose at random.

        Each has a part for every one of so many experts, of which a token chooses some, too.
        """
        parts = self.count * experts
        return min(self.held * experts, float(parts * (1 - (1 - chosen / parts) ** tokens)))

    @property
    def held(self) -> int:
        """Most adapters that an accelerator holds at once."""
        return min(self.count, self.slots or self.count)


_MOST_ADAPTERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InferencePass:
    """One pass of one instance of a model.

    Parameters
    ----------
    model, parallelism
        ``tp`` ranks share attention; each of ``dp`` ranks has a batch of its own, with experts
        spread over all of them (``ep`` x ``etp``). ``cp`` ranks share the tokens of each chunk of a
        prompt; all of them have all decodes.
    segments
        The batch of one data-parallel rank.
    tokens
        Tokens that a rank's kernels compute, including padding to a captured size; 0: those of the
        segments.
    precisions
        Of the checkpoint's parts.
    distribution
        How tokens choose experts, as named in tables of grouped products.
    imbalance
        How they choose by a histogram or a law, in place of that; the busiest rank sets the pace.
    adapters
        Adapters, of which each token uses one; not for latent attention.
    decode_rows
        Rows of queries that grouped attention computes for each head of a decode: more than one if
        kernels give it a block of its own.
    dcp
        Neighbouring tensor ranks that share the cache of a context: each has every ``dcp``-th token
        of it (decode context parallelism), and reads that for the heads of all.

    Raises
    ------
    WorkloadError
        If there is no token, or fewer tokens than the segments have.
    """

    model: Model
    parallelism: Parallelism
    segments: tuple[Segment, ...]
    tokens: float = 0.0
    precisions: Precisions = Precisions()
    distribution: str = "power_law_1.2"
    imbalance: Imbalance | None = None
    adapters: Adapters | None = None
    decode_rows: int = 1
    dcp: int = 1

    def __post_init__(self) -> None:
        cp = self.parallelism.cp
        least = fsum(count * (new / cp if new > 1 else 1) for count, new, _ in self.segments)
        if not self.tokens:
            object.__setattr__(self, "tokens", least)
        if self.tokens < least or self.tokens <= 0:
            raise WorkloadError(f"tokens {self.tokens:g}: the segments have {least:g}")

    @property
    def sequences(self) -> float:
        """Sequences for which the head computes a token."""
        return fsum(segment.sequences for segment in self.segments)

    @property
    def attending(self) -> tuple[Segment, ...]:
        """Segments of which a rank computes attention.

        A chunk is cut into ``2 cp`` pieces; a rank has one from the front and the one as far from
        the back (vLLM, ``PCPManager``), which are taken for two in the middle between them.
        """
        if (n := 2 * self.parallelism.cp) == 2:
            return self.segments
        pieces = (
            (2 * count, max(2.0, new / n), max(2.0, context - new * (n - 1) / (2 * n)))
            for count, new, context in self.segments
        )
        both = zip(self.segments, pieces, strict=True)
        return tuple(each if each.new_tokens == 1 else Segment(*own) for each, own in both)

    @property
    def hidden_bytes(self) -> float:
        """Bytes of the activations between two layers."""
        return self.tokens * self.model.hidden * _HALF


def pass_blocks(batch: InferencePass) -> list[ModelBlock]:
    """Return embedding, layers and head of a pass, in order.

    Examples
    --------
    >>> from traces.generate.model import load_model
    >>> model = load_model("llama-3.1-8b")
    >>> one = InferencePass(
    ...     model=model, parallelism=Parallelism(), segments=(Segment(8, 1, 1024),)
    ... )
    >>> len(pass_blocks(one)) == model.layers + 2
    True
    """
    layers = [layer_block(batch, index) for index in range(batch.model.layers)]
    return [embedding_block(batch), *layers, head_block(batch)]


def pass_chunks(batch: MicroBatch) -> list[list[ModelBlock]] | None:
    """Return the blocks of every pipeline chunk of a serving pass, with an engine's kernels.

    None if no engine divides it so: along the sequence, or with experts over replicas.
    """
    p = batch.parallelism
    if p.sequence_parallel or p.cp > 1 or p.ep > 1 or not batch.model.makes_tokens:
        return None
    recipe = batch.recipe
    run = InferencePass(
        model=batch.model,
        # Replicas that share no experts are separate instances.
        parallelism=replace(p, dp=1, pp=1),
        segments=(Segment(batch.sequences, batch.new_tokens, batch.context),),
        precisions=Precisions(attention=recipe, network=recipe, experts=recipe),
        imbalance=batch.imbalance,
    )
    embedding, *layers, head = pass_blocks(run)
    return divided(layers, (embedding, head), p.chunks)


def embedding_block(batch: InferencePass) -> ModelBlock:
    """Look up tokens; the table is sharded by vocabulary, and tensor ranks sum their results.

    Every tensor rank projects all patches of an image. The outputs of ranks that share a prompt are
    gathered at the end of a pass (vLLM, ``PCPManager.restore_hidden_states``).
    """
    if (patch := batch.model.patch) is not None:
        kernels = (_product("patches", batch.tokens, patch, batch.model.hidden, "bf16"),)
        return ModelBlock((LayerPart("embedding", kernels),), embedding_parameters(batch.model))
    kernel = _streamed("embedding", 2 * batch.hidden_bytes)
    exchanges = (*_summed(batch), *_gathered(batch, [batch.model.hidden]))
    part = LayerPart("embedding", (kernel,), after=exchanges)
    return ModelBlock((part,), embedding_parameters(batch.model))


def layer_block(batch: InferencePass, index: int) -> ModelBlock:
    """Return one layer: attention or a gated delta net, and a network or experts."""
    experts = batch.model.experts_at(index)
    if experts is None:
        kernels = (_norm(batch), *_dense(batch, float(batch.model.ffn or 0)))
        network: tuple[LayerPart, ...] = (LayerPart("network", kernels, after=_summed(batch)),)
    else:
        network = _experts(batch, experts, index)
    parameters = layer_parameters(batch.model, index)
    return ModelBlock((attention_part(batch, index), *network), parameters, is_layer=True)


def attention_part(batch: InferencePass, index: int) -> LayerPart:
    """Return attention of one layer, or its gated delta net."""
    delta = batch.model.delta_at(index)
    if delta is not None:
        return _delta(batch, delta)
    match batch.model.attention:
        case GroupedAttention() as grouped:
            kernels = _grouped(batch, grouped, batch.model.window_at(index))
        case LatentAttention() as latent:
            kernels = _latent(batch, latent)
    summed = (*context_exchanges(batch), *_summed(batch))
    if summed and batch.model.qk_norm_across:
        # Squares of queries and of keys, summed over all heads in fp32.
        summed = (Exchange("all_reduce", "tp", batch.tokens * 2 * 4.0), *summed)
    return LayerPart("attention", (_norm(batch), *kernels), after=summed)


def score_shapes(batch: InferencePass, index: int) -> tuple[Shape, ...]:
    """Return the shapes of one layer's kernels whose times depend on contexts, not on tokens."""
    works = (k.forward for k in attention_part(batch, index).kernels if k.name == SCORES)
    return tuple(work.shape for work in works if work.shape is not None)


def context_exchanges(batch: InferencePass) -> Exchanges:
    """Return the exchanges of a layer's attention over contexts that ranks share.

    Ranks that share a prompt gather the keys and values of its new tokens, in 16 bits each, and
    those of sparse attention's indexer; all of them keep all (vLLM, ``pcp_manager.py``, SGLang,
    ``layers/cp/zigzag.py``, ``materialize_full_kv``).

    Of caches that are divided by token, queries are gathered, and outputs over the parts scattered,
    weighted by gathered log-sum-exps in fp32 (vLLM, ``v1/attention/ops/common.py``,
    ``cp_lse_ag_out_rs``): of all tokens, or, where attention is latent, of decodes alone
    (:data:`OF_DECODES`), as prompts' keys are on every rank.
    """
    attention, parts = batch.model.attention, list[float]()
    match attention:
        case LatentAttention(kv_rank=value, rope=rope):
            label, query = OF_DECODES, value + rope
            parts = [value, rope, *([] if attention.sparse is None else [_INDEX_SIZE])]
        case GroupedAttention(head=value):
            label, query = "dcp", value
            parts = 2 * [max(attention.kv_heads / batch.parallelism.tp, 1.0) * value]
    if batch.parallelism.cp > 1:
        return _gathered(batch, parts)
    tokens = fsum(
        each.sequences * each.new_tokens
        for each in batch.segments
        if label != OF_DECODES or each.new_tokens == 1
    )
    if batch.dcp == 1 or not tokens:
        return ()
    rows = tokens * attention.heads / batch.parallelism.tp * batch.dcp
    return (
        Exchange("all_gather", label, _HALF * rows * query),
        Exchange("all_gather", label, 4.0 * rows * batch.dcp),
        Exchange("reduce_scatter", label, _HALF * rows * value),
    )


def _gathered(batch: InferencePass, widths: list[float]) -> Exchanges:
    """Gather so many 16-bit numbers of each token from ranks that share chunks, if there are."""
    cp, tokens = batch.parallelism.cp, batch.tokens
    if cp == 1 or all(each.new_tokens == 1 for each in batch.segments):
        return ()
    return tuple(Exchange("all_gather", "cp", cp * tokens * size * _HALF) for size in widths)


def head_block(batch: InferencePass) -> ModelBlock:
    """Sample a token for each sequence: norm, logits sharded by vocabulary, gathered, sampled."""
    model, rows = batch.model, batch.sequences
    columns = model.vocabulary / batch.parallelism.tp
    kernels = (
        _streamed("norm", 4 * _HALF * rows * model.hidden),
        _product("logits", rows, model.hidden, columns, "bf16"),
        # Cast to fp32, softmax or argmax: two passes over 4 B.
        _streamed("sampling", 3 * 4.0 * rows * model.vocabulary),
    )
    gathered = (Exchange("all_gather", "tp", rows * model.vocabulary * _HALF),)
    exchanges = gathered if batch.parallelism.tp > 1 else ()
    return ModelBlock((LayerPart("head", kernels, after=exchanges),), head_parameters(model))


# --- attention


def _grouped(
    batch: InferencePass, attention: GroupedAttention, window: int | None
) -> tuple[Kernel, ...]:
    tp, tokens, recipe = batch.parallelism.tp, batch.tokens, batch.precisions.attention
    heads = attention.heads / tp
    kv_heads = max(attention.kv_heads / tp, 1.0)
    query, key = heads * attention.head, kv_heads * attention.head
    gate = query if batch.model.gated_attention else 0.0
    across, encodes = batch.model.qk_norm_across, batch.model.encoder_layers > 0
    shapes = (
        Attention(
            batch=segment.sequences,
            heads=heads * _sharers(batch, segment),
            kv_heads=kv_heads,
            queries=batch.decode_rows if segment.new_tokens == 1 else segment.new_tokens,
            keys=max(1.0, segment.context / _sharers(batch, segment)),
            head_size=attention.head,
            causal=not encodes and (segment.new_tokens > 1 or batch.decode_rows == 1),
            window=window,
            cached=not encodes,
            cache_dtype=batch.precisions.cache,
        )
        for segment in batch.attending
    )
    return (
        _product("qkv", tokens, batch.model.hidden, query + gate + 2 * key, recipe),
        *_adapted(batch, batch.model.hidden, query + gate + 2 * key, 3),
        # Norms of queries and keys and their rotation are one kernel, in place.
        _streamed("rotary", 2 * _HALF * tokens * (query + key)),
        *([_streamed("squares", _HALF * tokens * (query + key))] if across else []),
        *(_kernel(SCORES, shape) for shape in shapes),
        *([_streamed("gate", 3 * _HALF * tokens * query)] if gate else []),
        _product("output", tokens, query, batch.model.hidden, recipe),
        *_adapted(batch, query, batch.model.hidden, 1),
    )


def _sharers(batch: InferencePass, segment: Segment) -> int:
    """Return the ranks that share a decode's context; a chunk's own tokens are on all."""
    return batch.dcp if segment.new_tokens == 1 else 1


def _latent(batch: InferencePass, attention: LatentAttention) -> tuple[Kernel, ...]:
    """MLA: on the latent for decodes, with keys and values expanded for chunks of prompts.

    Expansion takes as many products per token as projecting queries into the latent and outputs out
    of it, so a pass has both products for all tokens. Down-projections are one product, on every
    tensor rank. With sparse attention (DSA) a query attends to at most ``sparse`` keys, which a
    separate indexer selects.
    """
    tokens, recipe = batch.tokens, batch.precisions.attention
    hidden, heads = batch.model.hidden, attention.heads / batch.parallelism.tp
    rank, key = attention.kv_rank, attention.nope + attention.rope
    down = (attention.q_rank or 0) + rank + attention.rope
    up = (
        _product("query up", tokens, attention.q_rank, heads * key, recipe)
        if attention.q_rank is not None
        else _product("query", tokens, hidden, heads * key, recipe)
    )
    most = inf if attention.sparse is None else float(attention.sparse)
    shapes = (
        LatentScores(
            batch=segment.sequences,
            heads=heads * _sharers(batch, segment),
            queries=segment.new_tokens,
            keys=max(segment.new_tokens, min(segment.context, most) / _sharers(batch, segment)),
            cache_dtype=batch.precisions.cache,
        )
        for segment in batch.attending
    )
    return (
        _product("down", tokens, hidden, down, recipe),
        _streamed("latent norms", 2 * _HALF * tokens * down),
        up,
        *_indexer(batch, attention),
        _product("into latent", tokens, heads * attention.nope, rank, "bf16"),
        _streamed("rotary", 2 * _HALF * tokens * (heads * attention.rope + rank)),
        *(_kernel(SCORES, shape) for shape in shapes),
        _product("out of latent", tokens, rank, heads * attention.value, "bf16"),
        _product("output", tokens, heads * attention.value, hidden, recipe),
    )


def _indexer(batch: InferencePass, attention: LatentAttention) -> tuple[Kernel, ...]:
    """Select the keys of sparse attention: a small attention in fp8 over all keys, then top-k.

    DeepSeek-V3.2 (arXiv 2512.02556, section 2.1): its keys have 128 elements and are shared by all
    heads; every tensor rank computes all of it.
    """
    if attention.sparse is None or attention.q_rank is None:
        return ()
    tokens, heads = batch.tokens, attention.index_heads
    read = fsum(segment.sequences * segment.context for segment in batch.attending)
    pairs = fsum(
        segment.sequences * segment.new_tokens * (segment.context - segment.new_tokens / 2)
        for segment in batch.attending
    )
    return (
        _product("index queries", tokens, attention.q_rank, heads * _INDEX_SIZE, "bf16"),
        _product("index keys", tokens, batch.model.hidden, _INDEX_SIZE + heads, "bf16"),
        # Keys are read in fp8; a score is written and read in fp32 to choose the top.
        _streamed(SCORES, _INDEX_SIZE * read + 8.0 * pairs),
        _streamed(SCORES, 4.0 * pairs),
    )


_INDEX_SIZE = 128.0
"""Elements of an indexer's key."""


def _delta(batch: InferencePass, delta: GatedDelta) -> LayerPart:
    """Gated delta net (arXiv 2412.06464): a state for each head instead of keys and values.

    A decode reads and writes the state. A chunk of 64 tokens of a prompt takes the products of the
    state and of the chunk with itself; its kernels reach about a tenth of the peak. This is
    modelled by their bytes: six passes over queries, keys, values and the output, in fp32.
    """
    tp, tokens, recipe = batch.parallelism.tp, batch.tokens, batch.precisions.attention
    hidden = batch.model.hidden
    keys, values = delta.key_heads * delta.key / tp, delta.value_heads * delta.value / tp
    states = 2 * (delta.value_heads / tp * delta.key * delta.value * _STATE_BYTES)
    chunks = (
        (new > 1) * (new / 64 * states + 6 * 4.0 * new * (2 * keys + 2 * values))
        for _, new, _ in batch.segments
    )
    scores = (
        _streamed(SCORES, each.sequences * (states + chunk), 1 if each.new_tokens == 1 else 6)
        for each, chunk in zip(batch.segments, chunks, strict=True)
    )
    kernels = (
        _norm(batch),
        _product("qkvz", tokens, hidden, 2 * keys + 2 * values, recipe),
        *_adapted(batch, hidden, 2 * keys + 2 * values, 1),
        _product("gates", tokens, hidden, 2 * delta.value_heads / tp, "bf16"),
        _streamed("convolution", 2 * _HALF * tokens * (2 * keys + values)),
        *scores,
        _streamed("gated norm", 3 * _HALF * tokens * values),
        _product("output", tokens, values, hidden, recipe),
        *_adapted(batch, values, hidden, 1),
    )
    return LayerPart("delta", kernels, after=_summed(batch))


# --- networks


def _dense(batch: InferencePass, width: float) -> tuple[Kernel, ...]:
    tokens, hidden, recipe = batch.tokens, batch.model.hidden, batch.precisions.network
    shard = width / batch.parallelism.tp
    ups = 2 if batch.model.gated else 1
    return (
        _product("up", tokens, hidden, ups * shard, recipe),
        *_adapted(batch, hidden, ups * shard, ups),
        _streamed("activation", (ups + 1) * _HALF * tokens * shard),
        _product("down", tokens, shard, hidden, recipe),
        *_adapted(batch, shard, hidden, 1),
    )


def _experts(batch: InferencePass, experts: Experts, layer: int) -> tuple[LayerPart, ...]:
    """Router, grouped products of the experts, and shared experts beside them.

    Every tensor rank has all tokens: it computes its experts, or its part of each, and one
    all-reduce sums them. Data- and context-parallel ranks gather each other's tokens before the
    experts and scatter the sums after them (vLLM's ``allgather_reducescatter``, TensorRT-LLM's
    attention DP), decodes of context-parallel ranks once for each rank; unless there are more ranks
    than experts per token: then each token is sent to those ranks alone.
    """
    p, hidden = batch.parallelism, batch.model.hidden
    tokens, chosen, load = batch.tokens * p.dp * p.cp, experts.top_k / p.ep, 1.0
    held, distribution = experts.count / p.ep, batch.distribution
    if batch.imbalance is not None:
        ranks = expert_loads(batch.imbalance, experts, p.ep, layer, tokens)
        load, read = max(zip(ranks.loads, ranks.visited, strict=True))
        distribution = "balanced"
        # Of an even choice as many experts are read by one row each, or have all rows.
        if tokens * chosen * load <= held:
            tokens = read / (chosen * load)
        else:
            held = read
    chosen *= load
    # With more ranks than experts per token a rank receives and computes only those of its experts.
    is_wide = p.dp * p.cp > 1 and p.ep > experts.top_k
    if is_wide:
        tokens, chosen = tokens * chosen, 1.0
    grouped = ExpertGemms(
        tokens=tokens,
        chosen=chosen,
        hidden=hidden,
        intermediate=experts.hidden / p.expert_tp,
        experts=held,
        dtype=batch.precisions.experts,
        distribution=distribution,
    )
    kernels = (
        _norm(batch),
        _product("router", batch.tokens, hidden, experts.count, "bf16"),
        _streamed("top-k", 4.0 * batch.tokens * experts.count),
        *(_dense(batch, experts.shared * experts.hidden) if experts.shared else ()),
    )
    width, ups = experts.hidden / p.expert_tp, 2 if batch.model.gated else 1
    routed = (
        _kernel("experts", grouped),
        *_adapted(batch, hidden, ups * width, ups, experts),
        *_adapted(batch, width, hidden, 1, experts),
    )
    if p.dp * p.cp == 1:
        return (LayerPart("experts", (*kernels, *routed), after=_summed(batch)),)
    if is_wide:
        # Sent in 8 bits, and back in 16 (DeepEP's kernels, github deepseek-ai/DeepEP); the port of
        # the busiest rank limits both.
        visits = batch.tokens / p.tp * experts.top_k * hidden * load
        dispatch = Exchange("all_to_all", "ep", visits)
        combine = Exchange("all_to_all", "ep", _HALF * visits)
    else:
        size = batch.tokens * p.dp * p.cp * hidden * _HALF
        dispatch = Exchange("all_gather", "ep", size)
        combine = Exchange("reduce_scatter", "ep", size)
    return (
        LayerPart("shared", kernels, after=_summed(batch) if experts.shared else ()),
        LayerPart("experts", routed, before=(dispatch,), after=(combine,)),
    )


# --- kernels


def _adapted(
    batch: InferencePass,
    inner: float,
    columns: float,
    projections: int,
    experts: Experts | None = None,
) -> tuple[Kernel, ...]:
    """Add the adapters' kernels beside a product: shrink its input to their rank, expand (Punica).

    Both kernels read each used adapter's matrix once, and intermediate sums go through memory in
    32 bits (vLLM, ``vllm/lora/ops``), which takes longer than the arithmetic. A product of several
    projections has as many adapters, and one of experts as many as there are experts, of which
    each token's are read (vLLM, ``vllm/lora/layers/fused_moe.py``).
    """
    if batch.adapters is None:
        return ()
    tokens, rank = batch.tokens, batch.adapters.rank * projections
    used = batch.adapters.used(tokens)
    if experts is not None:
        used = batch.adapters.used(tokens, experts.count, experts.top_k)
        tokens *= experts.top_k
    shrunk = 4.0 * tokens * rank
    down = _HALF * (used * rank * inner + tokens * inner) + shrunk
    up = _HALF * (used * batch.adapters.rank * columns + 2 * tokens * columns) + shrunk
    return _streamed("shrink", down), _streamed("expand", up)


def _norm(batch: InferencePass) -> Kernel:
    """Add the residual and normalise, one kernel: two reads, two writes."""
    return _streamed(NORM, 4 * batch.hidden_bytes)


def _summed(batch: InferencePass) -> Exchanges:
    if batch.parallelism.tp == 1:
        return ()
    return (Exchange("all_reduce", "tp", batch.hidden_bytes),)


def _product(name: str, rows: float, inner: float, columns: float, recipe: str) -> Kernel:
    return _kernel(name, Gemm(m=rows, n=columns, k=inner, dtype=recipe))


def _streamed(name: str, traffic: float, launches: int = 1) -> Kernel:
    return Kernel(name, Work(0.0, traffic, Streaming(traffic), launches), NO_WORK)


def _kernel(name: str, shape: Shape) -> Kernel:
    flops, traffic = work_of(shape)
    return Kernel(name, Work(flops, traffic, shape), NO_WORK)
