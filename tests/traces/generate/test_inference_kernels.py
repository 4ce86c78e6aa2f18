"""Kernels of an inference pass one by one: sizes of products, bytes of passes, exchanges."""

from dataclasses import replace

import pytest

from simulator.support.errors import WorkloadError
from traces.generate.inference import (
    Adapters,
    InferencePass,
    Precisions,
    Segment,
    attention_part,
    embedding_block,
    head_block,
    layer_block,
    score_shapes,
)
from traces.generate.kernel_times import Attention, ExpertGemms, Gemm, LatentAttention, Streaming
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism

SEGMENTS = (Segment(5, 1, 700), Segment(2, 30, 90))
TOKENS, SEQUENCES = 65, 7
MIXED = Precisions(attention="fp8", network="int8", experts="fp8_block", cache="fp8")


def a_pass(name, tp=2, segments=SEGMENTS, **fields):
    parallel = {key: fields.pop(key) for key in ("dp", "ep") if key in fields}
    return InferencePass(
        model=load_model(name),
        parallelism=Parallelism(tp=tp, **parallel),
        segments=segments,
        precisions=MIXED,
        **fields,
    )


def shapes(part):
    """Each kernel's name and shape, in order."""
    return [(kernel.name, kernel.forward.shape) for kernel in part.kernels]


def same(got, expected):
    assert [name for name, _ in got] == [name for name, _ in expected]
    for (name, shape), (_, other) in zip(got, expected, strict=True):
        assert type(shape) is type(other), name
        for field in shape.__slots__:
            value = getattr(other, field)
            is_number = isinstance(value, int | float)
            assert getattr(shape, field) == (pytest.approx(value) if is_number else value), name


def gemm(m, k, n, dtype):
    return Gemm(m=m, k=k, n=n, dtype=dtype)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "minimax-m2.5", "qwen3.5-35b-a3b", "mistral-7b"])
@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("rows", [1, 64])
def test_grouped_attention_is_one_product_of_queries_keys_and_values(name, tp, rows):
    batch = a_pass(name, tp, decode_rows=rows)
    model, layer = (
        batch.model,
        next(at for at in range(batch.model.layers) if batch.model.delta_at(at) is None),
    )
    heads, kv_heads, head = (
        getattr(model.attention, each) for each in ("heads", "kv_heads", "head")
    )
    query, key = heads / tp * head, max(kv_heads / tp, 1) * head
    gate = query if model.gated_attention else 0
    h, window = model.hidden, model.window_at(layer)
    scores = [
        Attention(5, heads / tp, max(kv_heads / tp, 1), rows, 700, head, rows == 1, window,
                  cached=True, cache_dtype="fp8"),
        Attention(2, heads / tp, max(kv_heads / tp, 1), 30, 90, head, True, window,
                  cached=True, cache_dtype="fp8"),
    ]  # fmt: skip
    expected = [
        ("norm", Streaming(4 * 2 * TOKENS * h)),
        ("qkv", gemm(TOKENS, h, query + gate + 2 * key, "fp8")),
        ("rotary", Streaming(2 * 2 * TOKENS * (query + key))),
        *([("squares", Streaming(2 * TOKENS * (query + key)))] if model.qk_norm_across else []),
        *(("scores", each) for each in scores),
        *([("gate", Streaming(3 * 2 * TOKENS * query))] if gate else []),
        ("output", gemm(TOKENS, query, h, "fp8")),
    ]
    part = attention_part(batch, layer)
    same(shapes(part), expected)
    assert score_shapes(batch, layer) == tuple(scores)
    summed = [("all_reduce", TOKENS * h * 2.0)] if tp > 1 else []
    if tp > 1 and model.qk_norm_across:
        summed = [("all_reduce", TOKENS * 8.0), *summed]
    assert [(each.kind, each.size) for each in part.after] == summed


def test_an_encoder_sees_all_tokens_and_keeps_no_cache():
    batch = a_pass("bert-large", 1, segments=(Segment(3, 50, 50),))
    (scores,) = score_shapes(batch, 0)
    assert not scores.causal
    assert not scores.cached


@pytest.mark.parametrize("name", ["deepseek-v3-671b", "deepseek-v3.2-671b", "deepseek-v3-16b"])
def test_latent_attention_goes_through_the_latent(name):
    tp = 4
    batch = a_pass(name, tp)
    a, h = batch.model.attention, batch.model.hidden
    heads, rank = a.heads / tp, a.kv_rank
    down = (a.q_rank or 0) + rank + a.rope
    seen = [min(700, a.sparse or 700), max(30, min(90, a.sparse or 90))]
    scores = [
        LatentAttention(5, heads, 1, seen[0], cache_dtype="fp8"),
        LatentAttention(2, heads, 30, seen[1], cache_dtype="fp8"),
    ]
    read, pairs = 5 * 700 + 2 * 90, 5 * (700 - 0.5) + 2 * 30 * (90 - 15)
    selection = [("scores", Streaming(128 * read + 8 * pairs)), ("scores", Streaming(4 * pairs))]
    indexer = [
        ("index queries", gemm(TOKENS, a.q_rank, a.index_heads * 128, "bf16")),
        ("index keys", gemm(TOKENS, h, 128 + a.index_heads, "bf16")),
        *selection,
    ] if a.sparse else []  # fmt: skip
    key = heads * (a.nope + a.rope)
    up = (
        ("query", gemm(TOKENS, h, key, "fp8"))
        if a.q_rank is None
        else ("query up", gemm(TOKENS, a.q_rank, key, "fp8"))
    )
    expected = [
        ("norm", Streaming(4 * 2 * TOKENS * h)),
        ("down", gemm(TOKENS, h, down, "fp8")),
        ("latent norms", Streaming(2 * 2 * TOKENS * down)),
        up,
        *indexer,
        ("into latent", gemm(TOKENS, heads * a.nope, rank, "bf16")),
        ("rotary", Streaming(2 * 2 * TOKENS * (heads * a.rope + rank))),
        *(("scores", each) for each in scores),
        ("out of latent", gemm(TOKENS, rank, heads * a.value, "bf16")),
        ("output", gemm(TOKENS, heads * a.value, h, "fp8")),
    ]
    same(shapes(attention_part(batch, 0)), expected)
    streamed = [shape for _, shape in selection] if a.sparse else []
    assert score_shapes(batch, 0) == (*streamed, *scores)
    assert indexer == [] or a.sparse == 2048


def test_a_gated_delta_net_reads_its_state_and_prompts_in_chunks():
    tp = 2
    batch = a_pass("qwen3.5-35b-a3b", tp)
    layer = next(at for at in range(batch.model.layers) if batch.model.delta_at(at) is not None)
    delta, h = batch.model.delta_at(layer), batch.model.hidden
    keys, values = delta.key_heads * delta.key / tp, delta.value_heads * delta.value / tp
    state = 4 * delta.value_heads / tp * delta.key * delta.value
    prompt = 2 * state + 30 / 64 * 2 * state + 6 * 4 * 30 * (2 * keys + 2 * values)
    expected = [
        ("norm", Streaming(4 * 2 * TOKENS * h)),
        ("qkvz", gemm(TOKENS, h, 2 * keys + 2 * values, "fp8")),
        ("gates", gemm(TOKENS, h, 2 * delta.value_heads / tp, "bf16")),
        ("convolution", Streaming(2 * 2 * TOKENS * (2 * keys + values))),
        ("scores", Streaming(5 * 2 * state)),
        ("scores", Streaming(2 * prompt)),
        ("gated norm", Streaming(3 * 2 * TOKENS * values)),
        ("output", gemm(TOKENS, values, h, "fp8")),
    ]
    part = attention_part(batch, layer)
    same(shapes(part), expected)
    launches = [kernel.forward.launches for kernel in part.kernels if kernel.name == "scores"]
    assert launches == [1, 6]
    assert [(each.kind, each.size) for each in part.after] == [("all_reduce", TOKENS * h * 2.0)]


def dense(batch, width):
    model, tp = batch.model, batch.parallelism.tp
    ups = 2 if model.gated else 1
    return [
        ("up", gemm(TOKENS, model.hidden, ups * width / tp, "int8")),
        ("activation", Streaming((ups + 1) * 2 * TOKENS * width / tp)),
        ("down", gemm(TOKENS, width / tp, model.hidden, "int8")),
    ]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-2"])
def test_a_network_is_two_products_and_an_activation(name):
    batch = a_pass(name)
    (_, network) = layer_block(batch, 0).parts
    norm = ("norm", Streaming(4 * 2 * TOKENS * batch.model.hidden))
    same(shapes(network), [norm, *dense(batch, batch.model.ffn)])


@pytest.mark.parametrize(
    ("name", "tp", "dp", "ep"),
    [
        ("mixtral-8x7b", 2, 1, 1),
        ("qwen3-30b-a3b", 2, 4, 8),
        ("deepseek-v3-671b", 1, 16, 16),
        ("deepseek-v3-671b", 1, 4, 4),
        ("deepseek-v3-671b", 2, 8, 16),
    ],
)
def test_experts_have_their_share_of_tokens_and_exchange_them(name, tp, dp, ep):
    batch = a_pass(name, tp, dp=dp, ep=ep)
    model, p, layer = batch.model, batch.parallelism, batch.model.layers - 1
    experts, h = model.experts_at(layer), model.hidden
    parts = layer_block(batch, layer).parts[1:]
    width = experts.hidden / p.expert_tp
    is_wide = dp > 1 and ep > experts.top_k
    tokens, chosen = TOKENS * dp, experts.top_k / ep
    if is_wide:
        tokens, chosen = tokens * chosen, 1.0
    grouped = ExpertGemms(
        tokens, chosen, h, width, experts.count / ep, "fp8_block", "power_law_1.2"
    )
    router = [
        ("norm", Streaming(4 * 2 * TOKENS * h)),
        ("router", gemm(TOKENS, h, experts.count, "bf16")),
        ("top-k", Streaming(4 * TOKENS * experts.count)),
        *(dense(batch, experts.shared * experts.hidden) if experts.shared else []),
    ]
    if dp == 1:
        (part,) = parts
        same(shapes(part), [*router, ("experts", grouped)])
        assert [(each.kind, each.label) for each in part.after] == [("all_reduce", "tp")]
        return
    shared, routed = parts
    same(shapes(shared), router)
    same(shapes(routed), [("experts", grouped)])
    assert bool(shared.after) == (bool(experts.shared) and tp > 1)
    (before,), (after,) = routed.before, routed.after
    if is_wide:
        visits = TOKENS / tp * experts.top_k * h
        expected = ("all_to_all", visits), ("all_to_all", 2 * visits)
    else:
        size = TOKENS * dp * h * 2
        expected = ("all_gather", size), ("reduce_scatter", size)
    assert ((before.kind, before.size), (after.kind, after.size)) == expected
    assert {before.label, after.label} == {"ep"}


@pytest.mark.parametrize("tp", [1, 4])
def test_tokens_are_looked_up_and_one_of_each_sequence_is_sampled(tp):
    batch = a_pass("llama-3.1-8b", tp)
    h, vocabulary = batch.model.hidden, batch.model.vocabulary
    (first,), (last,) = embedding_block(batch).parts, head_block(batch).parts
    same(shapes(first), [("embedding", Streaming(2 * 2 * TOKENS * h))])
    same(
        shapes(last),
        [
            ("norm", Streaming(4 * 2 * SEQUENCES * h)),
            ("logits", gemm(SEQUENCES, h, vocabulary / tp, "bf16")),
            ("sampling", Streaming(12 * SEQUENCES * vocabulary)),
        ],
    )
    exchanged = [("all_reduce", TOKENS * h * 2.0), ("all_gather", SEQUENCES * vocabulary * 2.0)]
    got = [(each.kind, each.size) for each in (*first.after, *last.after)]
    assert got == (exchanged if tp > 1 else [])
    image = a_pass("vit-b-16", tp, segments=(Segment(1, TOKENS, TOKENS),))
    (patches,) = embedding_block(image).parts
    same(
        shapes(patches), [("patches", gemm(TOKENS, image.model.patch, image.model.hidden, "bf16"))]
    )


def test_adapters_of_a_batch_are_read_once_each():
    adapters = Adapters(count=10, rank=16, slots=4)
    batch = a_pass("llama-3.1-8b", 2, adapters=adapters)
    h, ffn = batch.model.hidden, batch.model.ffn
    used = 10 * (1 - (1 - 1 / 10) ** TOKENS)
    assert adapters.used(TOKENS) == min(4, used) == 4
    assert adapters.used(1) == pytest.approx(1.0)
    assert adapters.used(3) == pytest.approx(10 * (1 - 0.9**3))
    assert Adapters(count=10, rank=16).held == 10
    assert Adapters(count=3, rank=16, slots=4).held == 3
    # Of 8 experts a token chooses 2: each adapter has a part for every one of them.
    assert adapters.used(2, 8, 2.0) == pytest.approx(80 * (1 - (1 - 2 / 80) ** 2))

    def beside(inner, columns, projections):
        shrunk = 4 * TOKENS * 16 * projections
        return [
            ("shrink", Streaming(2 * (4 * 16 * projections * inner + TOKENS * inner) + shrunk)),
            ("expand", Streaming(2 * (4 * 16 * columns + 2 * TOKENS * columns) + shrunk)),
        ]

    (_, network) = layer_block(batch, 0).parts
    up, activation, down = dense(batch, ffn)
    same(
        shapes(network)[1:],
        [up, *beside(h, 2 * ffn / 2, 2), activation, down, *beside(ffn / 2, h, 1)],
    )
    attention = [row for row in shapes(attention_part(batch, 0)) if row[0] in ("shrink", "expand")]
    a = batch.model.attention
    columns = (a.heads + 2 * a.kv_heads) / 2 * a.head
    same(attention, [*beside(h, columns, 3), *beside(a.heads / 2 * a.head, h, 1)])
    sparse = a_pass("mixtral-8x7b", 2, adapters=adapters)
    experts = sparse.model.experts_at(0)
    part = layer_block(sparse, 0).parts[1]
    shrink = next(shape for name, shape in shapes(part) if name == "shrink")
    tokens, hidden = TOKENS * experts.top_k, sparse.model.hidden
    read = adapters.used(TOKENS, experts.count, experts.top_k)
    expected = 2 * (read * 32 * hidden + tokens * hidden) + 4 * tokens * 32
    assert shrink.traffic == pytest.approx(expected)


@pytest.mark.parametrize(("count", "rank"), [(0, 1), (1, 0), (10_001, 1), (1, 10_001)])
def test_adapters_are_one_to_ten_thousand(count, rank):
    with pytest.raises(WorkloadError, match="both are 1 to 10000"):
        Adapters(count=count, rank=rank)
    assert Adapters(count=10_000, rank=10_000).held == 10_000


def test_a_pass_has_its_tokens_and_what_pads_them():
    with pytest.raises(WorkloadError, match="cache"):
        Precisions(cache="int8")
    for cache in ("bf16", "fp16", "fp8", "fp8_e4m3"):
        assert Precisions(cache=cache).cache == cache
    padded = a_pass("llama-3.1-8b", tokens=128.0)
    assert padded.tokens == 128.0
    assert padded.hidden_bytes == 128 * padded.model.hidden * 2
    assert padded.sequences == SEQUENCES
    with pytest.raises(WorkloadError, match="the segments have 0"):
        replace(padded, segments=(), tokens=0.0)
