"""Kernels of a trained layer one by one: FLOPs, bytes, launches and shapes, both ways."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from traces.generate.kernel_times import Attention, Gemm, Streaming
from traces.generate.layer_kernels import (
    GemmShape,
    Passes,
    elementwise,
    gemm,
    linear,
    normalised,
    scores,
    streamed,
)
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.run import MicroBatch

M, K, N = 24.0, 40.0, 56.0
SHAPE = GemmShape(M, K, N)
LLAMA, GPT = load_model("llama-3.1-8b"), load_model("gpt-2")


def batch(model=LLAMA, **fields):
    usual = {
        "phase": "training", "model": model, "parallelism": Parallelism(), "sequences": 3,
        "new_tokens": 512, "context": 512, "logit_tokens": 512, "attended": 1.0,
        "element_bytes": 2, "dtype": "bf16", "framework": "megatron",
    }  # fmt: skip
    return MicroBatch(**{**usual, **fields})


def works(kernel):
    return kernel.forward, kernel.input_gradient, kernel.weight_gradient


@tries(30)
@given(
    st.floats(1, 99),
    st.floats(1, 99),
    st.floats(1, 99),
    st.sampled_from([1, 2, 4]),
    st.floats(1, 9),
)
def test_a_product_and_both_gradients_are_two_flops_a_multiply_add(m, k, n, element, matrices):
    kernel = gemm("x", GemmShape(m, k, n), element, weight_matrices=matrices, reads_input=True)
    for work in works(kernel):
        assert work.flops == pytest.approx(2 * m * k * n)
        assert work.traffic == pytest.approx(element * (m * k + matrices * k * n + m * n))
    assert kernel.reads_input


@pytest.mark.parametrize("matrices", [1.0, 4.0])
def test_under_a_framework_each_product_has_the_shape_of_its_transposes(matrices):
    kernels = linear(batch(), "up", SHAPE, weight_matrices=matrices, reads_input=True)
    product, added = kernels
    rows = M / matrices
    assert [work.shape for work in works(product)] == [
        Gemm(m=rows, n=N, k=K, batch=matrices),
        Gemm(m=rows, n=K, k=N, batch=matrices),
        Gemm(m=K, n=N, k=rows, batch=matrices),
    ]
    # The step's gradient, in fp32, is read and written beside the product's, in bf16.
    assert added.weight_gradient.traffic == matrices * K * N * (2 + 2 * 4)
    assert (added.forward.traffic, added.input_gradient.traffic) == (0, 0)
    assert added.reads_input
    (plain,) = linear(batch(framework="none"), "up", SHAPE, weight_matrices=matrices)
    assert {work.shape for work in works(plain)} == {None}
    assert [work.flops for work in works(plain)] == [work.flops for work in works(product)]


def test_biases_are_summed_and_gradients_only_where_a_kernel_adds_them():
    def sums(**fields):
        made = linear(batch(**fields), "up", SHAPE)
        return [each.weight_gradient.traffic for each in made if each.name == "gradient sum"]

    whole = K * N * (2 + 2 * 4)
    assert sums() == [whole]
    assert sums(gradient_bytes=2) == [K * N * (2 + 2 * 2)]
    assert sums(model=GPT) == [M * N * 2, whole]
    assert sums(phase="prefill") == []
    assert sums(model=GPT, phase="prefill") == [M * N * 2]
    for zero, framework, expected in (
        (1, "composer", [whole]), (2, "composer", []), (3, "composer", []),
        (3, "megatron", [whole]), (0, "fsdp2", []), (0, "maxtext", []),
    ):  # fmt: skip
        assert sums(framework=framework, parallelism=Parallelism(dp=8, zero=zero)) == expected


@pytest.mark.parametrize(
    ("recipe", "written", "reads"),
    [("fp8", 1, 1), ("fp8_block", 1 + 4 / 128, 1), ("mxfp8", 1 + 1 / 32, 1),
     ("nvfp4", 0.5 + 1 / 16, 2), ("mxfp4", 0.5 + 1 / 32, 1)],
)  # fmt: skip
def test_small_recipes_cast_what_they_multiply_twice_in_training(recipe, written, reads):
    cast, product, _ = linear(batch(recipe=recipe), "up", SHAPE)
    forward = 2 * written + (0 if recipe == "fp8" else 2 * reads)
    assert cast.forward.traffic == pytest.approx(forward * M * K)
    assert cast.input_gradient.traffic == pytest.approx((2 * written + 2 * reads) * M * N)
    assert {work.shape.dtype for work in works(product)} == {recipe}
    serving, _ = linear(batch(recipe=recipe, phase="decode"), "up", SHAPE)
    assert serving.forward.traffic == pytest.approx((2 * reads + written) * M * K)
    assert serving.input_gradient.traffic == 0
    assert [each.name for each in linear(batch(), "up", SHAPE)] == ["up", "gradient sum"]


def test_adapters_are_two_products_and_a_sum_beside_frozen_weights():
    adapted = batch(lora_rank=8, lora_targets=("up", "qkv"), recipe="fp8")
    cast, frozen, inner, first, outer, second, added = linear(
        adapted, "up", SHAPE, reads_input=True
    )
    assert frozen.weight_gradient.flops == cast.weight_gradient.traffic == 0
    assert not frozen.reads_input
    assert (inner.forward.flops, outer.forward.flops) == (2 * M * K * 8, 2 * M * 8 * N)
    assert (inner.reads_input, outer.reads_input) == (True, False)
    assert inner.forward.shape.dtype == "bf16"
    assert first.weight_gradient.traffic == K * 8 * 10
    assert second.weight_gradient.traffic == 8 * N * 10
    assert added.forward.traffic == 3 * M * N * 2
    assert added.input_gradient.traffic == M * N * 2
    for name in ("down", "logits"):
        assert [each.name for each in linear(adapted, name, SHAPE)] == ["cast", name]
    for name in ("qkv", "query", "query up", "kv down"):
        assert len(linear(adapted, name, SHAPE)) == 7


def test_passes_are_of_their_elements_and_launches():
    passes = Passes(3.0, 5.0, (2, 4))
    kernel = elementwise(batch(), "x", 10.0, passes)
    assert (kernel.forward.traffic, kernel.input_gradient.traffic) == (60.0, 100.0)
    assert (kernel.forward.launches, kernel.input_gradient.launches) == (2, 4)
    assert kernel.forward.shape == Streaming(60.0)
    narrow = elementwise(batch(), "x", 10.0, replace_passes(passes, 0.5))
    assert (narrow.forward.traffic, narrow.input_gradient.traffic) == (15.0, 25.0)
    plain = elementwise(batch(framework="none"), "x", 10.0, passes)
    assert (plain.forward.traffic, plain.forward.shape, plain.forward.launches) == (60.0, None, 1)
    assert streamed(7.0, 3).launches == 3


def replace_passes(passes, width):
    return passes._replace(element_bytes=width)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_a_sum_and_a_norm_have_their_passes_and_those_of_what_is_not_fused(fused, dropout, model):
    kernel = normalised(batch(model=model, fused=fused, dropout=dropout), 10.0)
    extra = 0 if fused else int(model.biases) + int(dropout)
    mask = 0.5 * dropout
    assert kernel.forward.traffic == 20 * (5 + mask + 2 * extra)
    assert kernel.input_gradient.traffic == 20 * (6 + mask + 2 * extra)
    assert (kernel.forward.launches, kernel.input_gradient.launches) == (2 + extra, 4 + extra)
    plain = normalised(batch(model=model, framework="none"), 10.0)
    assert (plain.forward.traffic, plain.input_gradient.traffic) == (80.0, 80.0)


@pytest.mark.parametrize("attention", ["flash", "flex", "unfused"])
@pytest.mark.parametrize("dropout", [True, False])
def test_scores_are_of_all_pairs_and_move_what_stays_outside_the_chip(attention, dropout):
    one = batch(attention=attention, dropout=dropout, parallelism=Parallelism(cp=2))
    kernel, *rest = scores(one, 8.0, 64.0, 128.0, cached=32.0, kv_heads=2.0)
    tokens = 3 * 512 / 2
    pairs = tokens * 512 * 8
    assert kernel.forward.flops == 2 * pairs * (64 + 128)
    elements = tokens * 8 * (64 + 128) + 3 * 512 * 32
    assert kernel.forward.traffic == 2 * elements
    assert kernel.input_gradient.flops == 2 * kernel.forward.flops
    assert kernel.input_gradient.traffic == 2 * kernel.forward.traffic
    launches = {"flash": (1, 2), "flex": (1, 2), "unfused": (6, 9)}[attention]
    assert (kernel.forward.launches, kernel.input_gradient.launches) == launches
    assert bool(rest) == (dropout and attention == "unfused")
    for dropped in rest:
        assert dropped.forward.traffic == dropped.input_gradient.traffic == 2.5 * 2 * pairs
        assert dropped.forward.launches == 0
    kind = {"flash": "flash", "flex": "flash2", "unfused": "unfused"}[attention]
    assert kernel.forward.shape == Attention(
        3, 8.0, 2.0, 256.0, 512.0, 96.0, causal=False, direction="forward", kind=kind
    )
    assert kernel.input_gradient.shape == replace(kernel.forward.shape, direction="backward")


def test_causal_scores_see_half_of_the_keys_in_the_mean_and_decodes_all():
    causal = batch(attended=0.5, parallelism=Parallelism(cp=2))
    (kernel,) = scores(causal, 8.0, 64.0, 64.0, cached=0.0, kv_heads=8.0)
    assert kernel.forward.flops == 0.5 * 2 * (3 * 256) * 512 * 8 * 128
    shape = kernel.forward.shape
    assert (shape.queries, shape.keys, shape.causal) == (256.0, 256.0 + 128.0, True)
    decode = batch(phase="decode", new_tokens=1)
    (kernel,) = scores(decode, 8.0, 64.0, 64.0, cached=32.0, kv_heads=8.0)
    assert (kernel.forward.shape.queries, kernel.forward.shape.keys) == (1.0, 512)
    assert kernel.forward.shape.causal
    assert kernel.forward.traffic == 2 * (3 * 8 * 128 + 3 * 512 * 32)
    for framework, kind, first in (("fsdp2", "flash2", False), ("composer", "flash2", True)):
        (kernel,) = scores(batch(framework=framework), 8.0, 64.0, 64.0, cached=0.0, kv_heads=8.0)
        assert (kernel.forward.shape.kind, kernel.forward.first_flash) == (kind, first)
    (plain,) = scores(batch(framework="none"), 8.0, 64.0, 64.0, cached=0.0, kv_heads=8.0)
    assert plain.forward.shape is None
