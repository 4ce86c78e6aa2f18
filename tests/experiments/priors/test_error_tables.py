"""Errors of predictions by their definition: quantiles, pooled classes, comparable steps."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scipy.stats import norm, t

from experiments.priors import errors as tables
from experiments.priors import network
from experiments.priors.errors import (
    CLASSES,
    NO_CALLS,
    NO_GAIN,
    REST,
    STEP_ERRORS,
    STEPS,
    WHOLE,
    Errors,
    own_error,
    read_errors,
    replay_error,
    serving_prior,
    step_class,
    student_95,
)
from experiments.priors.steps import kernel_prior, likely_step, size_class, step_prior, steps_on
from helpers.tries import tries
from topologies.cluster.fabrics import HowKnown
from topologies.cluster.node import FittedSteps
from traces.generate.kernel_times.times import kernel_error, shared_error


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 10**6])
def test_an_interval_of_few_has_the_quantile_of_student(degrees):
    within = 0.0074 if degrees > 2 else 1e-9
    assert student_95(degrees) == pytest.approx(t.ppf(0.975, degrees), rel=within)
    if degrees > 2:  # the terms of 26.7.5, with the normal quantile to three digits
        z, n = Fraction(196, 100), degrees
        g1 = (z**3 + z) / 4
        g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        exact = float(z + g1 / n + g2 / n**2 + g3 / n**3)
        assert student_95(degrees) == pytest.approx(exact, rel=1e-12)


def test_half_widths_of_a_normal_distribution():
    for share, width in ((0.5, tables.WITHIN_50), (0.9, tables.WITHIN_90), (0.95, 1.96)):
        assert width == pytest.approx(norm.ppf((1 + share) / 2), rel=3e-4)
    assert tables.WITHIN_95 == 1.96
    with pytest.raises(ValueError, match="0 degrees of freedom"):
        student_95(0)


@tries(30)
@given(
    st.dictionaries(
        st.sampled_from(CLASSES), st.tuples(st.integers(1, 9), st.floats(0.01, 0.5)), min_size=1
    )
)
def test_a_class_is_pulled_to_all_by_four_points_and_has_the_degrees_of_freedom_of_both(rows):
    table = {}
    for number, (name, (count, shared)) in enumerate(rows.items()):
        machines = (f"m{number}", f"m{number + 1}")  # neighbours share a program
        table[name, WHOLE] = Errors((name, WHOLE), count, 0.0, 0.0, 0.0, shared, machines)
        rest = structs.replace(table[name, WHOLE], shared=shared / 2, machines=("x", "y"))
        table[name, REST] = rest
    table[NO_CALLS, WHOLE] = Errors((NO_CALLS, WHOLE), 9, 0.0, 0.0, 0.0, 9.0, ("g", "h", "i"))
    points = [shared for count, shared in rows.values() for _ in range(count)]
    every = np.mean(np.square(points))
    for name in CLASSES:
        own = [shared for key, (count, shared) in rows.items() if key == name for _ in range(count)]
        squares = [*np.square(own), *[every] * 4]
        parts = np.array([sum(squares[: len(own)]), 4 * every]) / len(squares)
        for part, programs, times in ((WHOLE, len(rows) + 1, 1), (REST, 2, 2)):
            # Satterthwaite's, of two programs and of all; without any of the class, of all
            counted = parts.sum() ** 2 / np.sum(parts**2 / (2, programs)) if own else programs
            expected = student_95(int(round(counted, 9))) * math.sqrt(parts.sum()) / times
            assert replay_error(name, part, table) == pytest.approx(expected)
    assert replay_error(NO_CALLS, REST, table) == pytest.approx(student_95(3) * 9.0)


def test_the_errors_of_single_rows_are_those_of_their_programs():
    table = {
        (name, WHOLE): Errors((name, WHOLE), 8, 1.0, 2.0, 0.5, shared, tuple("abcd"[:programs]))
        for name, shared, programs in ((NO_GAIN, 0.01, 3), (STEPS[0], 0.04, 4), (STEPS[1], 0.03, 2))
    }
    assert own_error(NO_GAIN, table) == student_95(3) * 0.01
    assert own_error(STEPS[0], table) == student_95(4) * 0.04
    assert own_error(STEPS[1], table) == student_95(2) * 0.03
    assert [step_class(name) for name in (NO_CALLS, *CLASSES)] == [STEPS[1], *[STEPS[0]] * 4]


def test_a_table_of_errors_has_its_lines(tmp_path):
    path = tmp_path / "errors.csv"
    path.write_text(
        "# about\nwhat,where,count,median_pct,p90_pct,bias_pct,shared,machines\n"
        "a,b,3,1.5,2.5,-0.5,0.25,m n\n,c,4,1,2,0,0,\n"
    )
    assert read_errors(path) == {
        ("a", "b"): Errors(("a", "b"), 3, 1.5, 2.5, -0.5, 0.25, ("m", "n")),
        ("", "c"): Errors(("", "c"), 4, 1.0, 2.0, 0.0, 0.0, ()),
    }
    for key, row in read_errors(STEP_ERRORS).items():
        assert row.key == key
        assert 0 <= row.median_pct <= row.p90_pct
        assert abs(row.bias_pct) <= row.p90_pct


def test_engines_without_rows_have_the_errors_of_all():
    rows = [serving_prior(name).rows for name in ("vllm", "sglang", "trtllm")]
    assert sum(rows) == serving_prior("all").rows == serving_prior("orca").rows
    median = [serving_prior(name) for name in ("vllm", "sglang", "trtllm")]
    for field in ("tpot_pct", "ttft_pct"):  # a median of all lies between those of parts
        parts = [getattr(prior, field) for prior in median]
        assert min(parts) < getattr(serving_prior("all"), field) < max(parts)


@tries(40)
@given(st.integers(1, 20000))
def test_classes_of_sizes_end_at_powers_of_eight(ranks):
    ends = (8, 64, 512, 4096)
    text = size_class(ranks)
    if ranks > 4096:
        assert text == "4097 and more"
    else:
        least, most = map(int, text.split("-"))
        assert least <= ranks <= most
        assert most in ends
        assert least == 1 or least - 1 in ends


def test_a_generated_step_has_the_errors_of_the_nearest_measured_ones():
    table = read_errors(STEP_ERRORS)
    seen = set()
    for framework, accelerator, _ in table:
        for ranks in (8, 64, 512, 4096, 5000):
            prior = step_prior(framework, accelerator, ranks)
            if not accelerator:
                continue
            keys = [(accelerator, size_class(ranks)), (accelerator, ""), ("", "")]
            key = next(key for key in keys if (framework, *key) in table)
            seen.add(keys.index(key))
            row = table[framework, *key]
            assert (prior["steps"], prior["median_pct"]) == (row.count, row.median_pct)
            assert (prior["p90_pct"], prior["signed_pct"]) == (row.p90_pct, row.bias_pct)
            like = f"framework {framework}" + f" on {key[0]}" * bool(key[0])
            like += f", {key[1]} ranks" * bool(key[1])
            assert prior["like"] == like
            routed = step_prior(framework, accelerator, ranks, experts=True)
            assert routed == prior | {"like": f"{like}, none with experts"}
    assert seen >= {0, 1}
    fitted = FittedSteps(runs=7, median_pct=1.0, p90_pct=3.0, signed_pct=-0.5)
    prior = step_prior("none", "H100-SXM5-80GB", 8, fitted)
    assert {name: prior[name] for name in ("steps", "median_pct", "p90_pct", "signed_pct")} == {
        "steps": 7,
        "median_pct": 1.0,
        "p90_pct": 3.0,
        "signed_pct": -0.5,
    }
    bare = step_prior("none", "H100-SXM5-80GB", 8, FittedSteps(runs=7, p90_pct=3.0))
    assert (bare["median_pct"], bare["signed_pct"]) == (0.0, 0.0)
    unfitted = step_prior("none", "H100-SXM5-80GB", 8, FittedSteps(runs=2))
    assert unfitted == step_prior("none", "H100-SXM5-80GB", 8)
    assert likely_step(3.0, prior) == pytest.approx(3.0 / 0.995)


def test_kernels_of_a_generated_step_are_no_further_off_than_whole_steps_were():
    shares, held = {"roofline": 0.9, "measured": 0.1}, set()
    for framework, name in product(
        ("none", "megatron", "maxtext", "vllm"), ("H100-SXM5-80GB", "A100-SXM4-80GB", "TPU v5p")
    ):
        prior, steps = kernel_prior(shares, framework, name), steps_on(framework, name)
        shared, held_to = shared_error(shares), ""
        if steps is not None and -math.log(1 - steps.p90_pct / 100) / 1.645 < shared:
            most = -math.log(1 - steps.p90_pct / 100) / 1.645
            shared = max(most, kernel_error("measured").shared)
            of = "without a framework" if framework == "none" else f"of {framework}"
            held_to = f"{steps.count} measured steps {of} on {steps.key[1]}"
        held.add(bool(held_to))
        assert (prior["shared"], prior["held_to"]) == (pytest.approx(shared), held_to)
        for row, (origin, share) in zip(prior["origins"], shares.items(), strict=True):
            error = kernel_error(origin)
            assert row["known"] == origin
            assert row["share_pct"] == 100 * share
            assert (row["median_pct"], row["p90_pct"]) == (error.median_pct, error.p90_pct)
            assert row["shared"] == error.shared
    assert held == {True, False}
    name = "H100-SXM5-80GB"
    nearer = kernel_prior(shares, "none", name, FittedSteps(runs=4, p90_pct=20.0))
    assert nearer["shared"] == pytest.approx(-math.log(0.8) / 1.645)
    assert nearer["held_to"] == "4 steps that the cluster was calibrated with"
    wild = kernel_prior(shares, "none", name, FittedSteps(runs=4, p90_pct=100.0))
    assert wild == kernel_prior(shares, "none", name, FittedSteps(runs=4))
    assert kernel_prior(shares, None, name)["shared"] == shared_error(shares)


@tries(40)
@given(
    small=st.lists(st.floats(-2, 2), max_size=6),
    large=st.lists(st.floats(-2, 2), max_size=6),
    how=st.sampled_from(["fitted", "same generation", "data sheet"]),
)
def test_measured_calls_give_their_own_quantiles_from_three_on(small, large, how):
    calls = [
        network.CallResidual("scale_out", kind, sizes, log)
        for sizes, logs, kind in (("small", small, "all_reduce"), ("large", large, "all_gather"))
        for log in logs
    ]
    found = network.measured_by(HowKnown(scale_out=how), calls)
    if not calls:
        assert found == HowKnown(scale_out=how)
        return
    own = found.errors["scale_out"]
    assert (found.scale_out, own.others) == ("measured", how)
    assert own.kinds == tuple(sorted({call.kind for call in calls}))
    for sizes, logs in (("small", small), ("large", large)):
        before = network.held_out_errors(how, "scale_out", sizes)
        got = getattr(own, sizes)
        if len(logs) < 3:
            expected = before.median_pct / 100, before.p90_pct / 100
        else:
            ranked = sorted(map(abs, logs))
            at = [(len(logs) - 1) * share for share in (0.5, 0.9)]
            between = [
                ranked[int(x)]
                + (x - int(x)) * (ranked[min(int(x) + 1, len(logs) - 1)] - ranked[int(x)])
                for x in at
            ]
            expected = tuple(math.exp(log) - 1 for log in between)
        assert (got.median, got.p90) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("how", ["fitted", "same generation", "data sheet"])
@pytest.mark.parametrize("tier", ["scale_up", "scale_out", "pcie"])
def test_the_deviation_of_a_part_is_that_of_its_sizes_and_at_least_a_twentieth(how, tier):
    figures = HowKnown(scale_up=how, scale_out="fitted" if how != "fitted" else "data sheet")
    side = "scale_up" if tier == "scale_up" else "scale_out"
    for what, sizes in (("bandwidth", "large"), ("latency", "small")):
        errors = network.held_out_errors(getattr(figures, side), side, sizes)
        assert network.spread_of(figures, f"{tier}.{what}") == max(0.05, errors.shared)
    software = network.held_out_errors(how, "scale_up", "small")
    assert network.spread_of(figures, "software") == max(0.05, software.shared)
