"""Fits to logs by their definition: densities, calls left out one by one, tables read back."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from collectives.files.measured_calls import LINK, MeasuredCall
from collectives.machine import time_multiple
from experiments.calibration import log_fitting
from experiments.calibration.log_fitting import (
    OWN,
    SHARED,
    Reach,
    fit_logged,
    logged,
    logged_cluster,
)
from experiments.calibration.modelled_calls import modelled
from helpers.tries import tries
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")
SIZES = [2.0**power for power in range(10, 30, 3)]
REACH = Reach(0.2, 0.1, 0.05, 0.3, 4.0, 2.0, 1.5, 0.5, 0.04)


def measured(kinds=("all_reduce", "all_to_all"), ranks=((8, 1), (16, 2)), sizes=SIZES, seed=3):
    """Calls that take the model's time, times a smooth deviation and some scatter."""
    asked = [MeasuredCall(k, r, n, s, 1.0, "here") for k in kinds for r, n in ranks for s in sizes]
    answered, _ = modelled(asked, CLUSTER)
    random = np.random.default_rng(seed)
    times = [
        each.time * math.exp(0.3 * math.sin(math.log2(each.call.size)) + 0.02 * random.normal())
        for each in answered
    ]
    calls = [replace(each.call, time=time) for each, time in zip(answered, times, strict=True)]
    return modelled(calls, CLUSTER)[0]


@pytest.fixture(scope="module")
def problem():
    """A problem in which every part is free, and calls count as they did."""
    calls = logged(measured())
    spread = np.full((1 + len(calls.kinds), len(calls.names)), OWN * SHARED)
    spread[0] = SHARED
    spread[1, 0] = 0.0  # a part that is not fitted
    return log_fitting._Problem(
        calls, spread.ravel(), log_fitting._features_of(calls), np.log(calls.took)
    )


@pytest.fixture(scope="module")
def within(problem):
    return problem.within(REACH, np.linspace(0.5, 1.0, len(problem.calls)))


@pytest.fixture(scope="module")
def theta(problem, within):
    return log_fitting._solved(problem, np.zeros(len(problem.spread)), within)


def test_derivatives_are_those_of_the_times(problem):
    theta = np.linspace(-0.3, 0.4, len(problem.spread))
    line, slope = problem.linear(theta)
    parts = len(problem.calls.names)
    shared, own = theta[:parts], theta[parts:].reshape(-1, parts)
    number = [problem.calls.kinds.index(kind) for kind in problem.calls.kind.tolist()]
    times = (problem.calls.parts * np.exp(shared + own[number])).sum(axis=1)
    assert line == pytest.approx(np.log(times))
    for at in range(len(theta)):
        moved = theta + 1e-6 * (np.arange(len(theta)) == at)
        assert (problem.linear(moved)[0] - line) / 1e-6 == pytest.approx(slope[:, at], abs=1e-5)


def test_the_most_likely_multiples_are_where_the_density_is_flat(problem, within, theta):
    line, slope = problem.linear(theta)
    free = problem.spread > 0
    pull = slope.T @ np.linalg.solve(within, problem.target - line)
    assert pull[free] == pytest.approx(theta[free] / problem.spread[free] ** 2, abs=1e-3)
    assert (theta[~free] == 0).all()
    assert np.abs(theta).max() > 0.01


def test_multiples_stay_within_a_factor_of_ten(problem, within):
    far = replace(problem, target=problem.target + 9.0, spread=100 * problem.spread)
    theta = log_fitting._solved(far, np.zeros(len(far.spread)), within)
    assert np.abs(theta).max() == pytest.approx(math.log(10))


def test_errors_left_out_are_those_of_the_rest_alone(problem, within, theta):
    """The conditional mean and variance of one of jointly normal numbers, given all others."""
    line, slope = problem.linear(theta)
    whole = within + slope @ np.diag(problem.spread**2) @ slope.T
    left = problem.target - line + slope @ theta
    off, variance = log_fitting._leave_one_out(problem, theta, within)
    for at in range(len(left)):
        rest = np.arange(len(left)) != at
        gain = np.linalg.solve(whole[np.ix_(rest, rest)], whole[rest, at])
        assert off[at] == pytest.approx(left[at] - gain @ left[rest])
        assert variance[at] == pytest.approx(whole[at, at] - gain @ whole[rest, at])


def test_deviations_are_of_the_inverse_of_the_information(problem, within, theta):
    parts, free = len(problem.calls.names), problem.spread > 0
    _, slope = problem.linear(theta)
    information = slope.T @ np.linalg.solve(within, slope)
    after = np.zeros((len(theta), len(theta)))
    own = information + np.diag(1 / np.where(free, problem.spread, 1.0) ** 2)
    after[np.ix_(free, free)] = np.linalg.inv(own[np.ix_(free, free)])
    for covariance, got in zip(
        (after, np.diag(problem.spread**2)),
        log_fitting._deviations(problem, theta, within),
        strict=True,
    ):
        for kind in range(1 + len(problem.calls.kinds)):
            for part in range(parts):
                sums = np.zeros(len(theta))  # the logarithm of a whole multiple is a sum
                sums[part] = 1.0
                sums[kind * parts + part] = 1.0
                variance = sums @ covariance @ sums
                assert got[kind, part] == pytest.approx(math.sqrt(max(variance, 0.0)), abs=1e-9)


def test_deviations_of_calls_are_alike_by_kind_pattern_size_and_ranks():
    calls = measured(("all_reduce", "all_gather", "all_to_all"), ((4, 1), (8, 1), (16, 2)))
    links = [
        replace(calls[0], call=replace(calls[0].call, kind=LINK, ranks=2, streamed=True)),
        replace(calls[1], call=replace(calls[1].call, kind=LINK, ranks=2, streamed=True)),
    ]
    features = log_fitting._features_of(logged([*calls, *links]))
    covariance = log_fitting._covariance(features, features, REACH)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9

    def matern(distance, length):
        scaled = math.sqrt(3) * abs(distance) / length
        return (1 + scaled) * math.exp(-scaled)

    for a in range(len(features.kind)):
        for b in range(len(features.kind)):
            far_ranks = features.ranks[a] - features.ranks[b]
            size = features.size[a] - features.size[b] - REACH.moved * far_ranks
            near, far = matern(size, REACH.near), matern(size, REACH.far)
            by_ranks = math.exp(-abs(far_ranks) / REACH.ranks)
            expected = REACH.every**2 * far
            if features.way[a] == features.way[b]:
                expected += REACH.way**2 * near * by_ranks
            if features.kind[a] == features.kind[b]:
                expected += (REACH.own**2 * far + REACH.own_near**2 * near) * by_ranks
            apart = features.across[a] != features.across[b]
            if apart or features.bare[a] or features.bare[b]:
                expected = 0.0
            assert covariance[a, b] == pytest.approx(expected)
    assert features.bare.sum() == 2
    patterns = dict(zip(features.kind.tolist(), features.way.tolist(), strict=True))
    assert patterns["all_reduce"] == patterns["all_gather"] != patterns["all_to_all"]


def test_scatter_is_less_of_calls_that_were_timed_often(problem):
    heavy = np.full(len(problem.calls), 0.5)
    often = replace(problem, calls=replace(problem.calls, count=4 * problem.calls.count))
    once, four = (each.within(REACH, heavy) for each in (problem, often))
    assert np.diag(once - four) == pytest.approx(0.75 * REACH.scatter**2 / 0.5)
    assert (once - four)[~np.eye(len(once), dtype=bool)] == pytest.approx(0.0)


def test_the_search_finds_what_is_likelier_than_its_start_and_all_it_tried_last(problem, theta):
    heavy = np.ones(len(problem.calls))
    line, slope = problem.linear(theta)
    left = problem.target - line + slope @ theta

    def likely(reach):
        whole = problem.within(reach, heavy) + slope @ np.diag(problem.spread**2) @ slope.T
        prior = sum(
            math.log(getattr(reach, name) / getattr(problem.first, name)) ** 2
            for name in log_fitting._LIMITS
        )
        return multivariate_normal(cov=whole).logpdf(left) - prior / (2 * 0.5**2)

    best = log_fitting._optimised(problem, theta, problem.first, heavy)
    assert likely(best) > likely(problem.first) + 1
    for name, (low, high) in log_fitting._LIMITS.items():
        assert low <= getattr(best, name) <= high
        for times in (2.0, 0.5):
            moved = min(max(getattr(best, name) * times, low), high)
            assert likely(replace(best, **{name: moved})) <= likely(best) + 0.05


@tries(30)
@given(inside=st.sets(st.integers(1, 6), max_size=3), across=st.sets(st.integers(2, 8), max_size=3))
def test_tables_go_on_for_larger_and_smaller_groups_of_the_same_layout(inside, across):
    timed = sorted([(2**n, 1) for n in inside] + [(2**n, 2 ** (n - 1)) for n in across])
    made = list(log_fitting._groups(timed))
    assert made[: len(timed)] == timed
    added = set(made[len(timed) :])
    expected = set()
    for layout in ([pair for pair in timed if pair[1] == 1], [p for p in timed if p[1] > 1]):
        if layout:
            (least, _), (most, domains) = layout[0], layout[-1]
            is_one = domains == 1
            expected |= {(most * 2**n, 1 if is_one else domains * 2**n) for n in range(1, 7)} | {
                (least // 2**n, 1 if is_one else 2) for n in range(1, 7) if least // 2**n >= 2
            }
    assert added == expected


@pytest.fixture(scope="module")
def fit():
    return fit_logged(logged(measured(sizes=[2.0**power for power in range(12, 27)])))


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all", "all_gather"])
@pytest.mark.parametrize("place", [(8, 1), (16, 2), (64, 8)])
def test_a_clusters_table_of_deviations_is_the_fits_at_every_size(fit, kind, place):
    curves = logged_cluster(CLUSTER, fit, "a test").calibration[kind].by_size
    sizes = 2.0 ** np.arange(41)
    longer = fit.longer(kind, *place, sizes)
    read = [time_multiple(curves, *place, size) for size in sizes.tolist()]
    assert read == pytest.approx(longer.tolist(), rel=0.006)
    assert np.abs(np.log(longer)).max() > 0.05
    for size in (2.0**6, 2.0**33):  # six doublings beyond what was timed
        assert fit.longer(kind, *place, np.array([size]))[0] == 1.0


def test_a_clusters_parts_are_the_fits_multiples(fit):
    made = logged_cluster(CLUSTER, fit, "a test")
    for kind in ("all_reduce", "all_to_all", "broadcast"):
        calibrated = made.calibration[kind]
        multiples = dict(zip(fit.calls.names, fit.multiples(kind).tolist(), strict=True))
        known = dict(zip(fit.calls.names, fit.informed[0].tolist(), strict=True))
        for name, multiple in multiples.items():
            tier, _, what = name.rpartition(".")
            if not known[name]:
                assert tier not in getattr(calibrated, what, {}) or not what
            elif what == "bandwidth":
                assert calibrated.bandwidth[tier] == pytest.approx(1 / multiple)
            elif what == "latency":
                assert calibrated.latency[tier] == pytest.approx(multiple)
            else:
                assert calibrated.overhead == pytest.approx(multiple)
    timed = int(fit.calls.count[fit.calls.kind == "all_reduce"].sum())
    about = {name: text for name, text in made.sources.items() if name.startswith("calibration.")}
    assert f"a test: {timed} calls" in about.values()
    assert "a test: what all kinds share" in about.values()
