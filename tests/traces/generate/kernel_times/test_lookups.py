"""Which rows of which tables a shape takes, by which factor; work and bytes of each type."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from traces.generate.kernel_times import (
    Accelerator,
    Attention,
    ExpertGemms,
    Gemm,
    LatentAttention,
    Streaming,
    work_of,
)
from traces.generate.kernel_times.lookups import (
    Lookup,
    Term,
    backward_ratio,
    dense_time,
    full_mask_ratio,
    lookup,
    older_ratio,
)
from traces.generate.kernel_times.shapes import PRECISIONS, KernelRates, roofline_time

FLASH = {("flash", f"bf16/{size}/{window}") for size in (64, 128) for window in (0, 512)}
CACHED = {
    (family, f"{recipe}/{size}/{window}")
    for family in ("prefill", "decode")
    for recipe in ("bf16", "fp8")
    for size in (64, 128)
    for window in (0, 512)
}
lengths = st.integers(600, 20000)
sizes = st.sampled_from([32.0, 64.0, 80.0, 128.0, 192.0])


def one(key, point, factor=1.0, *, exact=True):
    return Lookup((Term(key, point),), factor, exact)


def same(got, expected):
    """Whether two lookups are alike, to rounding."""
    assert [term.key for term in got.terms] == [term.key for term in expected.terms]
    for term, other in zip(got.terms, expected.terms, strict=True):
        assert term.point == pytest.approx(other.point)
        assert term.weight == pytest.approx(other.weight)
    assert got.factor == pytest.approx(expected.factor)
    assert got.exact == expected.exact


def of_heads(family, recipe, window, size, point, *, exact=True):
    """Between the tables of heads of 64 and 128 straight in logarithms, beyond 128 in the size."""
    keys = {each: (family, f"{recipe}/{each}/{window}") for each in (64, 128)}
    if size in keys:
        return one(keys[size], point, exact=exact)
    if size < 64:
        return one(keys[64], point, exact=False)
    if size > 128:
        return one(keys[128], point, size / 128, exact=False)
    share = math.log(size / 64) / math.log(2)
    terms = Term(keys[64], point, 1 - share), Term(keys[128], point, share)
    return Lookup(terms, exact=False)


@tries(40)
@given(n=lengths, size=sizes, window=st.sampled_from([None, 512, 10**6, 700]))
def test_a_square_under_a_mask_is_that_of_its_table_else_of_one_with_as_many_pairs(n, size, window):
    shape = Attention(2, 16, 4, n, n, size, window=window)
    if window == 700 < n:  # no table has that window
        n = math.sqrt(2 * shape.pairs)
    expected = of_heads("flash", "bf16", 512 if window == 512 else 0, size, (2, n, 16, 4))
    same(lookup(shape, FLASH), expected.times(1.0) if n != shape.queries else expected)
    backward = lookup(Attention(2, 16, 4, n, n, size, direction="backward"), FLASH)
    plain = of_heads("flash", "bf16", 0, size, (2, n, 16, 4))
    same(backward, plain.times(backward_ratio(n, size)))


@tries(40)
@given(queries=st.integers(2, 900), before=st.integers(1, 900), size=sizes, cached=st.booleans())
def test_oblong_attention_is_a_square_with_as_many_pairs(queries, before, size, cached):
    keys = queries + before
    family, tables = ("prefill", CACHED) if cached else ("flash", FLASH)
    shape = Attention(3, 8, 8, queries, keys, size, cached=cached)
    pairs = queries * before + queries**2 / 2
    length = math.sqrt(2 * pairs)
    expected = of_heads(family, "bf16", 0, size, (3, length, 8, 8)).times(1.0)
    same(lookup(shape, tables), expected)
    full = Attention(3, 8, 8, queries, keys, size, causal=False, cached=cached)
    if cached:  # rows of blocks of 128 keys that see all of them
        factor, length = 2 * queries / (keys + 128), keys
    else:
        length = math.sqrt(queries * keys)
        factor = full_mask_ratio(length, size)
    expected = of_heads(family, "bf16", 0, size, (3, length, 8, 8)).times(1.0)
    got = lookup(full, tables)
    same(got, Lookup(expected.terms, expected.factor * factor, exact=False))


def test_a_block_over_a_window_of_the_cache_sees_that():
    shape = Attention(3, 8, 8, 10, 5000, 64, causal=False, cached=True, window=100)
    same(lookup(shape, CACHED), one(("prefill", "bf16/64/0"), (3, 100, 8, 8)).times(20 / 228))


@tries(40)
@given(keys=st.integers(2, 9000), size=sizes, window=st.sampled_from([None, 512, 700, 10**6]))
@pytest.mark.parametrize("cache", ["bf16", "fp8", "int8"])
def test_a_decode_takes_its_window_s_table_or_that_of_as_few_keys(cache, keys, size, window):
    shape = Attention(5, 16, 2, 1, keys, size, cached=True, window=window, cache_dtype=cache)
    recipe, exact = (cache, True) if cache != "int8" else ("fp8", False)
    of_window = window if window is not None and window < keys else 0
    point = (5, keys if of_window != 700 else 700, 16, 2)
    expected = of_heads("decode", recipe, 512 if of_window == 512 else 0, size, point, exact=exact)
    same(lookup(shape, CACHED), expected.times(1.0) if of_window == 700 else expected)
    assert lookup(shape, FLASH) is None


def test_arithmetic_of_eight_bits_is_looked_for_before_that_of_sixteen():
    both = {("decode", "fp8/128/0"), ("decode", "fp8:fp8/128/0")}
    for dtype, key, exact in (("fp8", "fp8:fp8/128/0", True), ("bf16", "fp8/128/0", True)):
        shape = Attention(1, 8, 8, 1, 100, 128, cached=True, dtype=dtype, cache_dtype="fp8")
        same(lookup(shape, both), one(("decode", key), (1, 100, 8, 8), exact=exact))
    shape = Attention(1, 8, 8, 1, 100, 128, cached=True, dtype="fp8", cache_dtype="fp8")
    same(lookup(shape, CACHED), one(("decode", "fp8/128/0"), (1, 100, 8, 8), exact=False))
    # Without a cache keys have 16 bits, whatever the recipe of a cache would be.
    flash = Attention(1, 8, 8, 700, 700, 128, cache_dtype="fp8")
    same(lookup(flash, FLASH), one(("flash", "bf16/128/0"), (1, 700, 8, 8)))


@pytest.mark.parametrize("generation", ["ampere", "hopper", "blackwell"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_older_kernels_are_slower_where_there_are_newer_ones(generation, direction):
    shape = Attention(1, 8, 8, 2048, 2048, 128, kind="flash2", direction=direction)
    newer = Attention(1, 8, 8, 2048, 2048, 128, direction=direction)
    expected = lookup(newer, FLASH, generation)
    if generation != "ampere":
        backward = direction == "backward"
        expected = expected.times(older_ratio(2048, 128, backward=backward, causal=True))
    same(lookup(shape, FLASH, generation), expected)
    unfused = Attention(1, 8, 8, 2048, 2048, 128, kind="unfused")
    assert lookup(unfused, FLASH) is None
    assert lookup(Streaming(1.0), FLASH) is None


@tries(30)
@given(queries=st.integers(1, 500), before=st.integers(0, 500), backward=st.booleans())
def test_latent_attention_is_a_square_with_as_many_pairs(queries, before, backward):
    tables = {("mla_decode", "fp8"), ("mla_prefill", "fp8"), ("mla_prefill", "bf16")}
    keys = queries + before
    direction = "backward" if backward else "forward"
    shape = LatentAttention(3, 16, queries, keys, direction, cache_dtype="fp8")
    length = keys
    if queries not in (1, keys):
        length = math.sqrt(2 * sum(before + at + 0.5 for at in range(queries)))
    family = "mla_decode" if queries == 1 else "mla_prefill"
    expected = one((family, "fp8"), (3, length, 16), exact=queries in (1, keys))
    same(
        lookup(shape, tables), expected.times(backward_ratio(length, 128)) if backward else expected
    )
    assert lookup(shape, {("mla_decode", "int8")}) is None
    narrow = LatentAttention(3, 16, 1, 7, dtype="fp8", cache_dtype="fp8")
    assert not lookup(narrow, tables).exact


def test_experts_and_products_take_their_recipe_s_table_or_a_substitute_s():
    tables = {("gemm", "bf16"), ("gemm", "fp8"), ("experts", "fp8/balanced")}
    tables |= {("experts", "fp8/power_law_1.2")}
    for recipe, used in (("bf16", "bf16"), ("fp16", "bf16"), ("mxfp8", "fp8"), ("int8", "fp8")):
        key = ("gemm", used)
        plain = recipe == used
        same(lookup(Gemm(8, 16, 32, recipe), tables), one(key, (8, 16, 32), exact=plain))
        batched = lookup(Gemm(8, 16, 32, recipe, batch=3), tables)
        same(batched, one(key, (24, 16, 32), exact=False))
    for recipe in ("int4_wo", "w4a16_mxfp4"):
        assert lookup(Gemm(1, 1, 1, recipe), {("gemm", "bf16")}).terms[0].key == ("gemm", "bf16")
    assert lookup(Gemm(1, 1, 1, "nvfp4"), tables) is None
    point = (64.0, 2.0, 4096.0, 1024.0, 8.0)
    for distribution, used in (
        ("power_law_1.2", "power_law_1.2"),
        ("power_law_1.01", "balanced"),
        ("balanced", "balanced"),
    ):
        for recipe in ("fp8", "fp8_block"):
            shape = ExpertGemms(*point, recipe, distribution)
            exact = recipe == "fp8" and used == distribution
            forward = one(("experts", f"fp8/{used}"), point, exact=exact)
            same(lookup(shape, tables), forward)
            backward = ExpertGemms(*point, recipe, distribution, "backward")
            same(lookup(backward, tables), forward.times(2.0))


BYTES = {
    "fp32": (4, 4, 0), "tf32": (4, 4, 0), "bf16": (2, 2, 0), "fp16": (2, 2, 0), "fp8": (1, 1, 0),
    "mxfp8": (1, 1, 1 / 32), "nvfp4": (0.5, 0.5, 1 / 16), "mxfp4": (0.5, 0.5, 1 / 32),
    "int8": (1, 1, 0), "sq": (1, 1, 0), "int8_wo": (2, 1, 0), "int4_wo": (2, 0.5, 1 / 16),
    "w4a16_mxfp4": (2, 0.5, 1 / 32), "w4afp8": (1, 0.5, 1 / 32),
}  # fmt: skip
"""Bytes of an activation, of a weight, and of a weight's part of its scale: one byte for 16 weights
(NVFP4), one for 32 (OCP Microscaling Formats 1.0), two for 32 (GPTQ's groups)."""


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_recipe_has_the_bytes_of_its_name(name):
    alike = {"fp8_block": "fp8", "fp8_static": "fp8", "fp8_ootb": "fp8"}
    alike |= dict.fromkeys(("w4a8_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8_trtllm"), "w4afp8")
    activation, weight, scale = BYTES[alike.get(name, name)]
    recipe = PRECISIONS[name]
    assert (recipe.activation, recipe.weight, recipe.stored) == (activation, weight, weight + scale)
    assert recipe.is_decompressed == (weight < activation)
    m, n, k = 5.0, 7.0, 11.0
    flops, traffic = work_of(Gemm(m, n, k, name, batch=3))
    assert flops == 3 * 2 * m * n * k
    assert traffic == pytest.approx(3 * (activation * m * k + weight * k * n + 2 * m * n))
    flops, traffic = work_of(ExpertGemms(6, 1.5, n, k, 4, name))
    assert flops == pytest.approx(3 * 2 * 9 * n * k)
    assert traffic == pytest.approx(3 * weight * 4 * n * k + 9 * n * (activation + 2))
    few = work_of(ExpertGemms(1, 2, n, k, 4, name)).traffic  # two rows reach two experts
    assert few == pytest.approx(3 * weight * 2 * n * k + 2 * n * (activation + 2))


@tries(30)
@given(queries=st.integers(1, 300), before=st.integers(0, 300), window=st.integers(1, 700))
def test_attention_reads_what_its_queries_see_and_no_more(queries, before, window):
    keys = queries + before
    windowed = Attention(2, 8, 4, queries, keys, 64, window=window, cached=True, cache_dtype="fp8")
    seen = min(keys, window + queries)
    flops, traffic = work_of(windowed)
    assert flops == pytest.approx(4 * 64 * 2 * 8 * windowed.pairs)
    assert traffic == pytest.approx(2 * 64 * (2 * 2 * 8 * queries + 1 * 2 * 4 * seen))
    full = Attention(2, 8, 4, queries, keys, 64, causal=False)
    assert full.pairs == queries * keys
    assert work_of(full).traffic == pytest.approx(2 * 64 * 2 * (2 * 8 * queries + 2 * 4 * keys))


def test_latent_attention_of_one_query_works_in_the_latent_space():
    flops, traffic = work_of(LatentAttention(3, 16, 1, 1000, cache_dtype="fp8"))
    assert flops == 2 * 3000 * 16 * (2 * 512 + 64)
    assert traffic == 3000 * 576
    assert work_of(LatentAttention(3, 16, 1, 1000)).traffic == 2 * traffic


def test_a_roofline_is_the_larger_of_arithmetic_and_memory():
    rates = KernelRates(
        peak=1e14, memory_bandwidth=1e12, compute_efficiency=0.5, memory_efficiency=0.25
    )
    for shape in (Gemm(64, 64, 64), Gemm(9e3, 9e3, 9e3)):
        work = work_of(shape)
        expected = max(work.flops / 5e13, work.traffic / 2.5e11)
        assert roofline_time(work.flops, work.traffic, rates) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["flash", "flash2"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("causal", [True, False])
def test_published_speeds_hold_for_a_peak_and_as_many_multiprocessors_as_tiles(
    kind, direction, causal
):
    chip = Accelerator("a chip", {"bf16": 500e12}, 1e12, "hopper", multiprocessors=100)
    shape = Attention(1, 2, 2, 4096, 4096, 128, causal, kind=kind, direction=direction)
    speed = (579e12 if causal else 638e12) * 500 / 989
    time = 4 * 2 * shape.pairs * 128 / speed
    if direction == "backward":
        time *= 2.5 * 638 / 542
    if kind == "flash2":
        time *= 542 / 310 if direction == "backward" else 579 / 319 if causal else 638 / 368
    tiles = 2 * 4096 / 128
    assert dense_time(shape, chip) == pytest.approx(time * max(1.0, 100 / tiles))
    for other in (
        Accelerator("a chip", {"bf16": 5e14}, 1e12, "ampere", multiprocessors=100),
        Accelerator("a chip", {"fp8": 5e14}, 1e12, "hopper", multiprocessors=100),
        Accelerator("a chip", {"bf16": 5e14}, 1e12, "hopper"),
    ):
        assert math.isinf(dense_time(shape, other))
    cached = Attention(1, 2, 2, 4096, 4096, 128, causal, cached=True)
    assert math.isinf(dense_time(cached, chip))


@tries(30)
@given(tokens=st.floats(1, 1e4), experts=st.integers(1, 40), power=st.sampled_from([1.2, 1.01]))
def test_skewed_experts_are_read_if_one_of_the_tokens_chooses_them(tokens, experts, power):
    shape = ExpertGemms(tokens, 0.5, 64, 64, experts, distribution=f"power_law_{power}")
    largest, exponent = max(1.0, 0.8 * tokens), 1 - power
    ranks = [
        (1 + (at + 0.5) / experts * (largest**exponent - 1)) ** (1 / exponent)
        for at in range(experts)
    ]
    chance = [min(1.0, 0.5 * rank / sum(ranks)) for rank in ranks]
    read = max(1.0, sum(1 - (1 - each) ** tokens for each in chance))
    assert shape.read == pytest.approx(read)
    least, usual = work_of(shape), work_of(shape, least=False)
    assert least.flops == usual.flops
    weights = 3 * 2 * 64 * 64
    more = min(read, max(1.0, shape.rows)) - 1
    assert usual.traffic - least.traffic == pytest.approx(weights * more, abs=1e-6)
    assert np.isfinite(usual.traffic)
