"""Kernels at other lengths of tensors and on other cards, shape by shape and formula by formula."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.change import are_alike, weighted_uncertainty
from experiments.scenario.recognised import (
    Factors,
    Lengths,
    RecognisedOps,
    compared,
    compared_alike,
    worked_alike,
)
from helpers.tries import tries
from simulator.accelerators import kernel_machines
from simulator.builder import WorkloadBuilder
from simulator.workload import What
from traces.core.events import RecordedOperator
from traces.generate.kernel_times import Accelerator, Attention, Gemm, Streaming
from traces.generate.kernel_times.times import kernel_error

TOKENS, HIDDEN, WIDE, NARROW, WORDS, SEQUENCE, ROWS = 96, 64, 256, 80, 1000, 24, 4
WEIGHTS = (((HIDDEN, WIDE), 3), ((HIDDEN, NARROW), 2), ((HIDDEN, WORDS), 1), ((HIDDEN, HIDDEN), 2))
LENGTHS = Lengths(TOKENS, HIDDEN, frozenset({WIDE, NARROW}), frozenset({WORDS}), WEIGHTS)
times = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0])
factors = st.builds(
    Factors,
    lengths=st.just(LENGTHS),
    tokens=times,
    recorded=st.just(SEQUENCE),
    sequence=times,
    hidden=times,
    widths=times,
    outside=times,
)


def of_length(factor, length):
    by = {TOKENS: factor.tokens, HIDDEN: factor.hidden, WORDS: factor.outside}
    return by | {WIDE: factor.widths, NARROW: factor.widths}, by.get(length)


@tries(12)
@given(factors)
def test_each_length_of_a_product_has_its_factor_wherever_it_stands(factor):
    by, _ = of_length(factor, 0)
    for others in ((HIDDEN, WIDE), (NARROW, HIDDEN), (HIDDEN, WORDS), (7, HIDDEN)):
        for m, k, n in permutations((TOKENS, *others)):
            after = factor.product(Gemm(m=m, k=k, n=n, dtype="fp16"))
            sides = {
                name: side * by.get(side, 1.0) for name, side in zip("mkn", (m, k, n), strict=True)
            }
            assert after == Gemm(**sides, dtype="fp16")
    without = factor.product(Gemm(m=WIDE, k=HIDDEN, n=WORDS))  # of weights alone
    assert without == Gemm(m=WIDE * by[WIDE], k=HIDDEN * by[HIDDEN], n=WORDS * by[WORDS])
    square = factor.product(Gemm(m=TOKENS, k=HIDDEN, n=HIDDEN))  # one of them is a width
    assert (square.m, square.k * square.n) == (
        TOKENS * factor.tokens,
        HIDDEN**2 * factor.hidden * factor.widths,
    )
    batched = factor.product(Gemm(m=SEQUENCE, k=16, n=SEQUENCE, batch=8))
    long = SEQUENCE * factor.sequence
    heads = 8 * factor.widths * factor.tokens / factor.sequence
    assert batched == Gemm(m=long, k=16, n=long, batch=heads)


@tries(25)
@given(factors)
def test_weights_are_as_many_as_their_sizes_say(factor):
    by, _ = of_length(factor, 0)
    before = sum(a * b * count for (a, b), count in WEIGHTS)
    after = sum(
        a * by[a] * b * (by[b] if a != b else factor.widths) * count for (a, b), count in WEIGHTS
    )
    assert factor.weights == pytest.approx(after / before)


@tries(25)
@given(factors)
def test_a_tensor_has_the_factors_of_its_lengths(factor):
    by, _ = of_length(factor, 0)
    for sizes in ((HIDDEN,), (WIDE,), (WORDS,), (HIDDEN, WIDE), (WORDS, HIDDEN)):
        assert factor.tensor(sizes) == math.prod(by[side] for side in sizes)  # weights
    assert factor.tensor((HIDDEN, HIDDEN)) == factor.hidden * factor.widths
    for width in (HIDDEN, WIDE, WORDS):  # activations: of all tokens, however these are split
        for rows in ((TOKENS,), (ROWS, SEQUENCE), (SEQUENCE, ROWS)):
            assert factor.tensor((*rows, width)) == factor.tokens * by[width]
    for one in ((TOKENS,), (ROWS, SEQUENCE), (TOKENS, 1)):
        assert factor.tensor(one) == factor.tokens
    scores = factor.tensor((ROWS, 7, SEQUENCE, SEQUENCE))
    assert scores == factor.tokens * factor.widths * factor.sequence
    assert factor.tensor((ROWS, 7, SEQUENCE, 11)) == factor.tokens * factor.widths
    assert factor.tensor((TOKENS, 7)) == factor.tokens  # of no known width
    for other in ((5,), (0, TOKENS), (5, 7, 11)):
        assert factor.tensor(other) == 1.0


@tries(25)
@given(factors)
def test_attention_keeps_its_head_size_and_one_head_at_least(factor):
    after = factor.attention(Attention(2.0, 8.0, 2.0, 24.0, 24.0, 64.0))
    assert after.batch == 2 * factor.tokens / factor.sequence
    assert (after.heads, after.kv_heads) == (8 * factor.widths, max(1, 2 * factor.widths))
    assert (after.queries, after.keys) == (24 * factor.sequence, 24 * factor.sequence)
    assert after.head_size == 64


@tries(25)
@given(factors)
def test_a_pass_reads_each_tensor_and_writes_the_largest(factor):
    sizes = ((TOKENS, HIDDEN), (HIDDEN,), (), (0, 5), (TOKENS,))
    types = ("c10::BFloat16", "float", "", "float", "no type")
    operator = RecordedOperator("aten::mul", sizes, types, ("",) * 5, ())
    before = [TOKENS * HIDDEN * 2, HIDDEN * 4]
    after = [before[0] * factor.tokens * factor.hidden, before[1] * factor.hidden]
    passes = factor.streaming(operator)
    assert passes == tuple(Streaming(sum(each) + max(each)) for each in (before, after))
    assert factor.streaming(RecordedOperator("x", ((0, 5),), ("float",), ("",), ())) is None


H100, A100 = kernel_machines()["h100_sxm"], kernel_machines()["a100_sxm"]
HOWS = kept, by_peak, by_memory, by_shape, few_rows, by_tensors, strided = range(7)
SHAPES = (Gemm(64, 64, 64), Streaming(64.0), Gemm(64, 64, 64, "fp8"))
kernels = st.lists(
    st.tuples(st.sampled_from(HOWS), st.floats(1e-6, 1e-3), st.floats(0, 2), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


def recognised(rows, reached):
    how, duration, share, shape = (np.array(column) for column in zip(*rows, strict=True))
    moved = share * np.maximum(duration - 2e-6, 0) * reached
    return RecognisedOps(SHAPES, np.where(how == by_shape, shape, -1), how, duration, moved)


@tries(40)
@given(rows=kernels, memory=st.floats(0.3, 3.0), peak=st.floats(0.3, 3.0))
def test_a_card_of_the_generation_changes_each_kernel_by_the_cubes_of_its_limits(
    rows, memory, peak
):
    """The time after a start of 2 us is that of the bytes and that of the rest, in cubes."""
    faster = {name: value * peak for name, value in H100.peaks.items()}
    other = Accelerator("another card", faster, H100.memory_bandwidth * memory, "hopper")
    found = compared_alike(recognised(rows, 0.9 * H100.memory_bandwidth), H100, other)
    apart = max(
        (1 - 1 / by) / (1 - (3.35 / 4.8 if by > 1 else 4.8 / 3.35)) for by in (memory, peak)
    )
    for (how, duration, share, _), (ratio, error) in zip(rows, found, strict=True):
        if how == kept:
            assert (ratio, error) == (1.0, 0.0)
            continue
        running = max(duration - 2e-6, 0.0)
        part = min(share, 1.0) if running else 1.0
        part = {by_memory: 1.0, few_rows: 1.0, by_peak: 0.0, strided: 0.0}.get(how, part)
        rest = 1 / peak  # its multiprocessors are unknown: they count as its peak
        cubes = (part / memory) ** 3 + (1 - part**3) * rest**3
        expected = (duration - running + running * cubes ** (1 / 3)) / duration
        assert ratio == pytest.approx(expected)
        assert error == pytest.approx(apart * kernel_error("alike").shared)


@tries(40)
@given(rows=kernels, memory=st.floats(0.3, 3.0), products=st.lists(st.booleans(), min_size=8))
def test_kernels_of_known_work_change_as_those_of_known_tensors(rows, memory, products):
    other = Accelerator("another card", H100.peaks, H100.memory_bandwidth * memory, "hopper")
    ops = recognised([(by_tensors, *row[1:]) for row in rows], 0.9 * H100.memory_bandwidth)
    flops = np.array(products[: len(rows)], dtype=float)
    found = worked_alike(ops.duration, (flops, ops.traffic), H100, other)
    assert found == pytest.approx(compared_alike(ops, H100, other))


@tries(30)
@given(rows=kernels)
def test_on_another_generation_a_kernel_changes_by_its_name_or_its_shape(rows):
    found = compared(recognised(rows, 1.0), A100, H100)
    memory, peaks = 2.039e12 / 3.35e12, A100.peaks["bf16"] / H100.peaks["bf16"]
    for (how, *_), (ratio, error) in zip(rows, found, strict=True):
        if how in (by_memory, few_rows):
            assert (ratio, error) == (pytest.approx(memory), kernel_error("compared").shared)
        elif how == by_peak:
            assert error == kernel_error("compared").shared
            assert 0.5 * peaks < ratio < 2 * peaks
        elif how != by_shape:
            assert (ratio, error) == (1.0, 0.0)


def test_what_is_recognised_is_said_in_percent():
    how = np.array([by_shape, by_tensors, by_peak, few_rows, by_memory, strided, kept, kept])
    duration = np.array([40.0, 20, 10, 9, 8, 7.6, 5.0, 0.4]) / 1e3
    ops = RecognisedOps((), np.full(8, -1), how, duration, np.zeros(8))
    assert ops.share == pytest.approx(0.946)
    assert ops.described() == (
        "kernel time scaled: 40 % by shape, 20 % by the bytes of their tensors, 10 % named like"
        " matrix products, 9 % named like matrix products of few rows, 8 % named like kernels"
        " limited by memory, 8 % named like kernels limited by instructions, 5 % not recognised"
        " and unchanged"
    )
    little = RecognisedOps((), how[:2], np.array([by_shape, kept]), np.array([0.996, 0.004]), how)
    assert little.described() == "kernel time scaled: 100 % by shape"
    assert RecognisedOps((), how[:0], how[:0], duration[:0], duration[:0]).share == 0.0


def test_cards_are_alike_by_their_generation_or_their_name():
    unknown = Accelerator("no card of the table", {}, 1e12)
    assert not are_alike(unknown, Accelerator("nor is this", {}, 1e12))
    assert are_alike(unknown, Accelerator("no card of the table", {}, 2e12))
    assert are_alike(H100, Accelerator("H200-SXM-141GB", {}, 4.8e12))
    assert not are_alike(H100, A100)


def test_uncertainty_is_weighted_by_the_time_of_kernels():
    builder = WorkloadBuilder(job_ranks=1)
    for what, lasts in ((What.COMPUTE, 1.0), (What.HOST, 9.0), (What.COMPUTE, 3.0)):
        builder.op(what, rank=0, lane="s", name="k", duration=lasts)
    workload = builder.build()
    assert weighted_uncertainty(workload, np.array([0.4, 9.0, 0.0])) == pytest.approx(0.1)
    hosts = WorkloadBuilder(job_ranks=1)
    hosts.op(What.HOST, rank=0, lane="s", name="k", duration=1.0)
    assert weighted_uncertainty(hosts.build(), np.array([9.0])) == 0.0
