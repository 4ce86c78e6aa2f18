"""Fits to measured steps once more, in plain algebra with constants of its own."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import multivariate_t

from experiments.calibration import step_fitting
from experiments.calibration.step_fitting import PARAMETERS, fit_to_steps, fitted_cluster, moved
from experiments.priors.network import spread_of
from helpers.tries import tries
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")
SPREAD = partial(spread_of, CLUSTER.known)
PRIOR = [0.1, 0.3, SPREAD("scale_up.bandwidth"), SPREAD("scale_out.bandwidth")]
logs = st.floats(-0.6, 0.6)


def predict(shares, number, cluster):
    """A step whose parts, for kernels, host and both tiers' bytes, follow one after the other."""
    steps = cluster.steps
    host, kernels = (1.0, 1.0) if steps is None else (steps.host_time, steps.kernel_time)
    tiers = [
        getattr(CLUSTER, tier).efficiency / getattr(cluster, tier).efficiency
        for tier in ("scale_up", "scale_out")
    ]
    return float(shares[number] @ np.array([kernels, host, *tiers]))


def evidence(errors, figures):
    """Log-density of errors with a scatter whose square is inverse gamma: a t distribution."""
    shape = 0.1**2 * (np.eye(len(errors)) + figures @ figures.T / 0.1**2)
    return multivariate_t(shape=shape, df=6).logpdf(errors)


def most_probable(target, slopes, prior):
    """Logarithms of the figures by steps that are ``target`` longer than on the cluster."""
    shown = [at for at in range(len(prior)) if np.abs(slopes[:, at]).max() >= 0.02]
    answer = np.zeros(len(prior))
    if not shown:
        return answer
    chosen, deviation = slopes[:, shown], np.array([prior[at] for at in shown])
    figures = chosen * deviation
    bayes = 0.3 * math.exp(evidence(target, figures))
    bayes /= bayes + 0.7 * math.exp(evidence(target, 0 * figures))
    inverse = np.linalg.inv(np.eye(len(target)) + figures @ figures.T / 0.1**2)
    variance = (6 * 0.1**2 + target @ inverse @ target) / (6 + len(target))
    weight = np.ones(len(target))
    for _ in range(20):  # a normal prior is as many more steps of one figure each
        rows = np.vstack([chosen * np.sqrt(weight / variance)[:, None], np.diag(1 / deviation)])
        goals = np.concatenate([target * np.sqrt(weight / variance), np.zeros(len(shown))])
        solution = np.linalg.lstsq(rows, goals, rcond=None)[0]
        weight = 5 / (4 + (target - chosen @ solution) ** 2 / variance)
    bounded = np.clip(solution, -math.log(3), math.log(3))
    answer[shown] = bayes * min(1, len(target) / 3) * bounded
    return answer


def fitted(measured, shares):
    """The fit to steps, the errors of those left out, and which figures they show."""
    count, names = len(measured), list(PARAMETERS)

    def times(point):
        cluster = moved(CLUSTER, names, point)
        return np.log([predict(shares, at, cluster) for at in range(count)])

    point = np.zeros(4)
    for _ in range(3):
        now = times(point)
        slopes = np.array([(times(point + 0.1 * unit) - now) / 0.1 for unit in np.eye(4)]).T
        target = np.log(measured) - now + slopes @ point
        point = most_probable(target, slopes, PRIOR)
    target = np.log(measured) - times(point) + slopes @ point
    left_out = None
    if count >= 3:
        left_out = []
        for at in range(count):
            rest = [number for number in range(count) if number != at]
            without = moved(CLUSTER, names, most_probable(target[rest], slopes[rest], PRIOR))
            left_out.append(predict(shares, at, without) / measured[at] - 1)
        before = np.exp(times(np.zeros(4))) / measured - 1
        if np.median(np.abs(left_out)) > 0.9 * np.median(np.abs(before)):
            return np.zeros(4), before, np.zeros(4, dtype=bool)
    return point, left_out, np.abs(slopes).max(axis=0) >= 0.02


def test_the_evidence_is_a_density():
    """Ours leaves constants out, which are the same for any covariance and cancel in odds."""
    random = np.random.default_rng(1)
    for count in (1, 3, 7):
        errors, figures = random.normal(0, 0.2, count), random.normal(0, 0.2, (count, 2))
        covariance = np.eye(count) + figures @ figures.T / 0.1**2
        left_out = (
            gammaln((6 + count) / 2) - gammaln(3) - count / 2 * math.log(math.pi)
        ) + 3 * math.log(6 * 0.1**2)
        got, scatter = step_fitting._evidence(errors, covariance)
        assert got + left_out == pytest.approx(evidence(errors, figures))
        squares = 0.06 + errors @ np.linalg.inv(covariance) @ errors
        assert scatter == pytest.approx(math.sqrt(squares / (6 + count)))


@tries(25)
@given(off=st.lists(logs, min_size=1, max_size=7), bias=logs, seed=st.integers(0, 99))
def test_a_fit_is_that_of_plain_algebra(off, bias, seed):
    random = np.random.default_rng(seed)
    shares = random.dirichlet([1, 0.5, 0.3, 0.3], len(off))
    shares[:, 2] *= seed % 2  # in every other case no step depends on NVLink
    shares[:, 1] *= 0.019 / max(0.019, shares[:, 1].max()) if seed % 3 == 0 else 1.0
    measured = [
        predict(shares, at, CLUSTER) * math.exp(bias + 0.3 * error) for at, error in enumerate(off)
    ]
    fit = fit_to_steps(CLUSTER, measured, partial(predict, shares), SPREAD)
    point, left_out, shown = fitted(measured, shares)
    assert list(fit.multiples) == list(PARAMETERS)
    assert list(fit.multiples.values()) == pytest.approx(np.exp(point))
    figures = moved(CLUSTER, PARAMETERS, point)
    assert fit.after == pytest.approx(
        [predict(shares, at, figures) / took - 1 for at, took in enumerate(measured)]
    )
    assert fit.before == pytest.approx(
        [predict(shares, at, CLUSTER) / took - 1 for at, took in enumerate(measured)]
    )
    assert fit.left_out == (None if left_out is None else pytest.approx(left_out))
    assert [name not in fit.why_not for name in PARAMETERS] == shown.tolist()
    table = fitted_cluster(fit, "runs.csv").steps
    assert table.runs == len(measured)
    if left_out is not None:
        percent = sorted(100 * abs(error) for error in left_out)
        assert table.median_pct == pytest.approx(np.median(percent))
        assert table.p90_pct == pytest.approx(percent[math.ceil(0.9 * (len(percent) - 1))])
        assert table.signed_pct == pytest.approx(100 * np.median(left_out))


@tries(40)
@given(point=st.lists(st.floats(-1, 1), min_size=4, max_size=4))
def test_moved_figures_are_multiples_and_no_link_is_more_than_its_bandwidth(point):
    cluster = moved(moved(CLUSTER, PARAMETERS[:2], [0.2, -0.1]), PARAMETERS, point)
    assert cluster.steps.kernel_time == pytest.approx(math.exp(point[0] + 0.2))
    assert cluster.steps.host_time == pytest.approx(math.exp(point[1] - 0.1))
    for tier, log in zip(("scale_up", "scale_out"), point[2:], strict=True):
        slower = getattr(CLUSTER, tier).efficiency / math.exp(log)
        assert getattr(cluster, tier).efficiency == pytest.approx(min(1.0, slower))


@tries(40)
@given(off=st.lists(logs, min_size=1, max_size=6), sockets=st.lists(logs, min_size=6, max_size=6))
def test_sockets_are_believed_where_nineteen_times_more_probable(off, sockets):
    as_known, over = np.array(off), np.array(sockets[: len(off)])
    none = np.zeros((len(off), 1))
    odds = evidence(over, none) - evidence(as_known, none) - math.log(19)
    if abs(odds) > 1e-6:
        every = np.ones(len(off), dtype=bool)
        believed = step_fitting._goes_over_sockets(as_known, over, every)
        assert believed == (odds > 0 and not np.allclose(as_known, over))
        rest = np.append(every, False)
        more = [np.append(errors, 5.0) for errors in (as_known, over)]
        assert step_fitting._goes_over_sockets(*more, rest) == believed


@tries(40)
@given(errors=st.lists(st.floats(-0.4, 0.4), min_size=5, max_size=5))
def test_steps_left_out_of_a_change_to_sockets_are_met_by_what_the_others_show(errors):
    """The step's own error counts as unchanged where the others alone show no sockets."""
    share = np.array([0.0, 0.0, 0.05, 0.1, 0.2])

    def over(number, cluster):
        return 1 + 4 * share[number] * (cluster.scale_out.transport == "sockets")

    measured = [(1 + 4 * part) * math.exp(error) for part, error in zip(share, errors, strict=True)]
    fit = fit_to_steps(CLUSTER, measured, over, SPREAD)
    as_known = -np.log(measured)
    there = np.log(1 + 4 * share) + as_known
    assert fit.before == pytest.approx(np.exp(as_known) - 1)
    none = np.zeros((5, 1))
    is_shown = evidence(there, none) - evidence(as_known, none) > math.log(19)
    assert fit.transport == ("sockets" if is_shown else "")
    for at in range(5 if is_shown else 0):
        rest = np.arange(5) != at
        odds = evidence(there[rest], none[rest]) - evidence(as_known[rest], none[rest])
        expected = there[at] if odds > math.log(19) else as_known[at]
        assert fit.left_out[at] == pytest.approx(math.exp(expected) - 1)
