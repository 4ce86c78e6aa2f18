"""Inference passes: the surface against the pass, physics of its parts, MLA, experts."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.accelerators import accelerators
from simulator.serving.surface import Batch, IterationSurface, iteration_time
from simulator.support.errors import WorkloadError
from traces.generate.inference import (
    InferencePass,
    Precisions,
    Segment,
    context_exchanges,
    pass_blocks,
)
from traces.generate.kernel_times import ExpertGemms, Gemm, LatentAttention, kernel_times, work_of
from traces.generate.model import layer_parameters, load_model
from traces.generate.parallelism import Parallelism
from traces.generate.pass_times import PassClock, SurfaceLimits, surface
from traces.generate.run import Serving

KERNELS = kernel_times(accelerators()["H100-SXM5-80GB"])
CLOCK = PassClock(KERNELS, lambda exchange: 5e-6 + exchange.size / 300e9)
LIMITS = SurfaceLimits(tokens=8192, sequences=256, context=16384)
FP8 = Precisions(attention="fp8", network="fp8", experts="fp8_block")


def a_pass(
    model: str, *segments: Segment, tp: int = 8, cp: int = 1, **changes: object
) -> InferencePass:
    ep = 8 * cp if cp > 1 and load_model(model).experts else 1
    return InferencePass(
        model=load_model(model),
        parallelism=Parallelism(tp=tp, cp=cp, ep=ep, etp=1 if ep > 1 else None),
        segments=segments,
        precisions=FP8,
        **changes,
    )


@cache
def surface_of(model: str, dcp: int = 1, cp: int = 1) -> IterationSurface:
    return surface(CLOCK, a_pass(model, Segment(1, 1, 1), dcp=dcp, cp=cp), LIMITS)


SHARED = ("deepseek-v3-671b", 8), ("deepseek-v3-671b", 4), ("qwen3-235b-a22b", 2)
"""Models with the ranks that share a context."""
TOGETHER = (
    ("llama-3.1-70b", 2),
    ("llama-3.1-70b", 4),
    ("qwen3-235b-a22b", 2),
    ("deepseek-v3-671b", 2),
)
"""Models with the ranks that share the tokens of a prompt."""


@given(
    st.sampled_from(
        (
            *((name, 1, 1) for name in ("deepseek-v3-671b", "gpt-oss-120b", "llama-3.1-70b")),
            *((name, dcp, 1) for name, dcp in SHARED),
            *((name, 1, cp) for name, cp in TOGETHER),
        )
    ),
    st.integers(1, 200),
    st.integers(64, 8000),
    st.integers(0, 3),
    st.integers(64, 2000),
)
def test_the_surface_is_the_pass_within_two_per_cent(model, decodes, context, chunks, length):
    """The same layers, kernels and exchanges: the surface adds interpolation alone."""
    name, dcp, cp = model
    segments = [Segment(decodes, 1, context)]
    if chunks:
        segments.append(Segment(chunks, length, length))
    whole = CLOCK.time(a_pass(name, *segments, dcp=dcp, cp=cp))
    batch = Batch(
        1, decodes, float(decodes * context), chunks, float(chunks * length), chunks * length**2 / 2
    )
    assert iteration_time(surface_of(name, dcp, cp), batch) == pytest.approx(whole, rel=0.02)


@given(st.integers(2, 8), st.integers(4, 400), st.integers(0, 5000), st.integers(1, 5))
def test_ranks_that_share_a_prompt_have_as_many_pairs_of_tokens_each(cp, piece, past, sequences):
    """Zig-zag by hand: rank r has pieces r and 2 cp - 1 - r of a chunk, an equal part of it."""
    new = 2 * cp * piece
    shares = [
        sum(
            past + at + 1
            for number in (rank, 2 * cp - 1 - rank)
            for at in range(number * piece, (number + 1) * piece)
        )
        for rank in range(cp)
    ]
    assert len(set(shares)) == 1
    (mine,) = a_pass("llama-3.1-70b", Segment(sequences, new, past + new), cp=cp).attending
    assert mine.sequences * mine.new_tokens == sequences * new / cp
    middle = mine.context - (mine.new_tokens - 1) / 2
    assert mine.sequences * mine.new_tokens * middle == pytest.approx(sequences * shares[0])


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        ("deepseek-v3-671b", (512, 64)),
        ("deepseek-v3.2-671b", (512, 64, 128)),
        ("llama-3.1-70b", (128, 128)),
        ("qwen3-235b-a22b", (128, 128)),
    ],
)
def test_ranks_that_share_a_prompt_gather_what_its_new_tokens_have_in_the_cache(model, widths):
    """In 16 bits, in each layer: a latent, its positions, an indexer's key, or a head's two."""
    decodes, chunk = Segment(5, 1, 4000), Segment(3, 800, 9000)
    both = context_exchanges(a_pass(model, decodes, chunk, cp=4))
    assert [(each.kind, each.label) for each in both] == len(widths) * [("all_gather", "cp")]
    assert [each.size for each in both] == [(4 * 5 + 2400) * width * 2 for width in widths]
    assert not context_exchanges(a_pass(model, decodes, cp=4)), "all ranks have all decodes"
    assert not context_exchanges(a_pass(model, chunk))


@pytest.mark.parametrize(("model", "cp"), TOGETHER)
def test_sharing_prompts_shortens_them_and_no_decode(model, cp):
    alone, shared = surface_of(model), surface_of(model, cp=cp)
    assert (alone.decodes == shared.decodes).all()
    assert (alone.sequences == shared.sequences).all()
    assert 0.8 * cp < alone.chunks[0, -1] / shared.chunks[0, -1] < 1.05 * cp, "one long prompt"
    prompt = Batch(1, 0, 0.0, 1, 8192.0, 8192.0**2 / 2)
    assert 1 < iteration_time(alone, prompt) / iteration_time(shared, prompt) < cp
    if load_model(model).experts is None:
        assert (alone.tokens == shared.tokens).all()


@pytest.mark.parametrize(
    ("model", "dcp", "gathered", "scattered"),
    [
        # 128 heads on 8 ranks, all of them on 8: a latent of 512 and 64 of position, 512 back.
        ("deepseek-v3-671b", 8, 128 * 576 * 2, 128 * 512 * 2),
        ("deepseek-v3-671b", 4, 64 * 576 * 2, 64 * 512 * 2),
        # 64 heads of 128 on 8 ranks, 16 of them on 2.
        ("qwen3-235b-a22b", 2, 16 * 128 * 2, 16 * 128 * 2),
    ],
)
def test_ranks_that_share_a_context_gather_queries_and_scatter_outputs(
    model, dcp, gathered, scattered
):
    """Bytes of 5 decodes in a layer, by hand, and 4 for each log-sum-exp of each rank; a chunk of a
    prompt has its own exchanges where keys are of heads."""
    decodes, chunk = Segment(5, 1, 4000), Segment(2, 100, 100)
    heads = gathered // {576: 1152, 128: 256}[576 if "deepseek" in model else 128]
    for segments, tokens in (([decodes], 5), ([decodes, chunk], 5 if "deep" in model else 205)):
        exchanges = context_exchanges(a_pass(model, *segments, dcp=dcp))
        assert [(each.kind, each.size) for each in exchanges] == [
            ("all_gather", tokens * gathered),
            ("all_gather", tokens * heads * dcp * 4),
            ("reduce_scatter", tokens * scattered),
        ]
        assert not context_exchanges(a_pass(model, *segments))


@pytest.mark.parametrize(("model", "dcp"), SHARED)
def test_sharing_a_context_costs_exchanges_and_saves_reading_it(model, dcp):
    """Of one short context it is slower, at least by three exchanges a layer, of many long ones
    faster, by at most as many times; prompts of latent attention take as long as before."""
    card, (alone, shared) = load_model(model), (surface_of(model, n) for n in (1, dcp))
    short = Batch(1, 1, 10.0, 0, 0.0, 0.0)
    slower = iteration_time(shared, short) - iteration_time(alone, short)
    assert slower > card.layers * 3 * 5e-6
    assert 1 < alone.decodes[-1, -1] / shared.decodes[-1, -1] <= dcp
    assert (alone.tokens == shared.tokens).all() == ("deepseek" in model)
    assert (alone.chunks == shared.chunks).all()


@pytest.mark.parametrize("model", ["mistral-7b", "deepseek-v3.2-671b"])
@pytest.mark.parametrize(
    ("chunks", "length", "past"), [(1, 500, 4000), (2, 700, 7000), (1, 256, 0), (1, 2048, 14000)]
)
def test_a_chunk_attends_to_what_its_window_reaches_of_the_tokens_before_it(
    model, chunks, length, past
):
    """All layers of Mistral-7B have a window of 4,096; DeepSeek-V3.2 selects 2,048 of all keys."""
    whole = CLOCK.time(a_pass(model, Segment(chunks, length, length + past)))
    pairs = chunks * length * (past + length / 2)
    batch = Batch(1, 0, 0.0, chunks, float(chunks * length), pairs)
    assert iteration_time(surface_of(model), batch) == pytest.approx(whole, rel=0.02)


_STEPS = (64, 65, 128, 129, 256, 257, 512, 513, 768, 769)
"""Tokens on each side of a step, for which a surface has the times of the pass itself."""


@pytest.mark.parametrize("chip", ["RTX PRO 6000 Blackwell Server Edition", "B200-SXM-180GB"])
def test_batches_of_one_tile_more_take_a_step_of_the_surface_too(chip):
    """Products take a step where one row more is one tile more, by up to a fifth."""
    clock = PassClock(kernel_times(accelerators()[chip]), CLOCK.exchange)
    small = replace(a_pass("llama-3.1-8b", Segment(1, 1, 1), tp=1), precisions=Precisions())
    table = surface(clock, small, LIMITS)
    for tokens in (*_STEPS, 200, 618, 1025, 1280, 1300, 2049, 2560, 4097):
        segments = (Segment(1, tokens, tokens),)
        whole = clock.time(replace(small, segments=segments, tokens=float(tokens)))
        batch = Batch(1, 0, 0.0, 1, float(tokens), tokens**2 / 2)
        assert iteration_time(table, batch) == pytest.approx(whole, rel=0.02)
        if tokens in _STEPS:
            assert iteration_time(table, batch) == pytest.approx(whole, rel=3e-4)


@pytest.mark.parametrize("chunks", [0, 2])
def test_attention_in_blocks_counts_beside_chunks_only(chunks):
    """As FlashAttention-2 takes decodes in a mixed batch, here with heads that share keys."""
    clock = PassClock(kernel_times(accelerators()["A100-SXM4-80GB"]), CLOCK.exchange)
    one, limits = a_pass("llama-3.1-70b", Segment(1, 1, 1)), replace(LIMITS, query_block=64)
    table = surface(clock, replace(one, precisions=Precisions()), limits)
    segments = [Segment(100, 1, 1000), *([Segment(chunks, 500, 500)] if chunks else [])]
    rows = 64 if chunks else 1
    given_pass = a_pass("llama-3.1-70b", *segments, decode_rows=rows)
    whole = clock.time(replace(given_pass, precisions=Precisions()))
    batch = Batch(1, 100, 1e5, chunks, chunks * 500.0, chunks * 500.0**2 / 2)
    assert iteration_time(table, batch) == pytest.approx(whole, rel=0.02)
    plain = clock.time(replace(given_pass, precisions=Precisions(), decode_rows=1))
    assert (whole > 1.05 * plain) == bool(chunks)


def test_experts_and_mla_ask_their_own_tables():
    shapes = {
        type(kernel.forward.shape)
        for block in pass_blocks(a_pass("deepseek-v3-671b", Segment(4, 1, 1000)))
        for part in block.parts
        for kernel in part.kernels
    }
    assert {ExpertGemms, LatentAttention} <= shapes


@given(st.integers(1, 128), st.integers(64, 16000))
def test_more_context_and_more_decodes_never_take_less(decodes, context):
    least = CLOCK.time(a_pass("llama-3.1-70b", Segment(decodes, 1, context)))
    assert CLOCK.time(a_pass("llama-3.1-70b", Segment(decodes, 1, 2 * context))) >= least
    assert CLOCK.time(a_pass("llama-3.1-70b", Segment(2 * decodes, 1, context))) >= least * 0.999


def test_a_decode_is_no_faster_than_its_weights_are_read():
    """70.6e9 weights of 8 bits over 8 x 3.35 TB/s."""
    assert CLOCK.time(a_pass("llama-3.1-70b", Segment(1, 1, 10))) > 69e9 / 8 / 3.35e12


def test_captured_sizes_pad():
    whole = surface(CLOCK, a_pass("llama-3.1-70b", Segment(1, 1, 1)), LIMITS)
    limits = SurfaceLimits(tokens=8192, sequences=256, context=16384, captured=(1, 64))
    coarse = surface(CLOCK, a_pass("llama-3.1-70b", Segment(1, 1, 1)), limits)
    assert coarse.tokens[2] == pytest.approx(whole.tokens[64])


def test_fewer_tokens_than_the_segments_have_are_refused():
    with pytest.raises(WorkloadError, match="tokens 2: the segments have 4"):
        a_pass("llama-3.1-70b", Segment(4, 1, 10), tokens=2)


DENSE = ("llama-3.1-8b", "llama-3.1-70b", "mistral-7b", "qwen3-8b", "gemma-2-9b", "llama-3.2-1b")
SPARSE = ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b")
BATCH = (Segment(5, 1, 700), Segment(2, 30, 30))
TOKENS, SEQUENCES = 5 + 2 * 30, 7


def flops_of(block):
    """FLOPs of a block's products, without those of attention's scores."""
    shapes = [kernel.forward.shape for part in block.parts for kernel in part.kernels]
    return sum(work_of(shape).flops for shape in shapes if isinstance(shape, Gemm | ExpertGemms))


@pytest.mark.parametrize("name", [*DENSE, *SPARSE])
@pytest.mark.parametrize("tp", [1, 4])
def test_every_token_is_multiplied_by_every_weight_that_it_uses(name, tp):
    """Two FLOPs for each weight and token (of the head: for each sequence), and no others."""
    model = load_model(name)
    plain = model.model_copy(update={"biases": False, "qkv_biases": False})
    one = a_pass(name, *BATCH, tp=tp, distribution="balanced")
    embedding, *layers, head = pass_blocks(one)
    assert flops_of(embedding) == 0
    for index, block in enumerate(layers):
        parameters, experts = layer_parameters(plain, index), model.experts_at(index)
        weights = parameters.sharded / tp
        if experts is not None:
            weights += parameters.experts * experts.top_k / experts.count / tp
            weights += model.hidden * experts.count  # the router is on every rank
        assert flops_of(block) == pytest.approx(2 * TOKENS * weights), index
    vocabulary = model.vocabulary * model.hidden / tp
    assert flops_of(head) == pytest.approx(2 * SEQUENCES * vocabulary)


@pytest.mark.parametrize("name", [*DENSE, *SPARSE])
def test_tensor_ranks_sum_what_each_half_of_a_layer_makes(name):
    """Activations of all tokens in 2 bytes, after attention and after the network of each layer."""
    model = load_model(name)
    embedding, *layers, head = (
        [exchange for part in block.parts for exchange in (*part.before, *part.after)]
        for block in pass_blocks(a_pass(name, *BATCH, tp=4))
    )
    whole = ("all_reduce", "tp", TOKENS * model.hidden * 2.0)
    assert [(each.kind, each.label, each.size) for each in embedding] == [whole]
    for exchanges in layers:
        assert [(each.kind, each.label, each.size) for each in exchanges] == [whole, whole]
    gathered = ("all_gather", "tp", SEQUENCES * model.vocabulary * 2.0)
    assert [(each.kind, each.label, each.size) for each in head] == [gathered]
    alone = pass_blocks(a_pass(name, *BATCH, tp=1))
    assert not any(part.before or part.after for block in alone for part in block.parts)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_micro_batches_are_said_where_there_are_several(count):
    said = str(Serving(phase="decode", batch=6, context=1024, micro_batches=count))
    assert (f"in {count} micro-batches" in said) == (count > 1)
    assert ("micro-batches" in said) == (count > 1)
