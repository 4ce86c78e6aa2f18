"""A cluster fitted to measured steps: what they show is found, what they do not stays."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.calibration.step_fitting import PARAMETERS, fit_to_steps, fitted_cluster, moved
from experiments.priors.network import spread_of
from experiments.priors.steps import step_prior
from topologies import load_cluster
from topologies.cluster.catalog import cluster_text

CLUSTER = load_cluster("dgx-a100")
SPREAD = partial(spread_of, CLUSTER.known)
SHARES = np.array(
    [[0.7, 0.2, 0.1, 0.0], [0.2, 0.7, 0.05, 0.05], [0.5, 0.1, 0.1, 0.3], [0.3, 0.1, 0.1, 0.5]] * 3
)
"""Parts of steps that kernels, the host, and the bytes of both tiers take."""


def multiples(cluster):
    """What parts of a step take, by parameter, as times those of the catalogue's cluster."""
    steps = cluster.steps
    host, kernels = (1.0, 1.0) if steps is None else (steps.host_time, steps.kernel_time)
    tiers = [
        getattr(CLUSTER, tier).efficiency / getattr(cluster, tier).efficiency
        for tier in ("scale_up", "scale_out")
    ]
    return np.array([kernels, host, *tiers])


def of_parts(shares):
    """Steps that are the sum of their parts."""
    return lambda number, cluster: float(shares[number] @ multiples(cluster))


@pytest.mark.parametrize("parameter", ["kernel_time", "host_time", "scale_out.efficiency"])
def test_a_figure_that_is_off_is_found_by_many_steps(parameter):
    """That of NVLink, which the catalogue has from measurements to 5 %, hardly moves."""
    truth = np.where(np.array(PARAMETERS) == parameter, np.log(1.3), 0.0)
    machine = moved(CLUSTER, PARAMETERS, truth)
    predict = of_parts(SHARES)
    fit = fit_to_steps(
        CLUSTER, [predict(at, machine) for at in range(len(SHARES))], predict, SPREAD
    )
    assert np.median(np.abs(fit.after)) < 0.6 * np.median(np.abs(fit.before))
    others = [fit.multiples[name] for name in PARAMETERS if name != parameter]
    assert fit.multiples[parameter] > max(others)


def test_what_no_step_depends_on_stays():
    shares = np.array([[0.8, 0.2, 0.0, 0.0]] * 4)
    predict = of_parts(shares)
    fit = fit_to_steps(CLUSTER, [1.2] * 4, predict, SPREAD)
    assert fit.multiples["scale_out.efficiency"] == fit.multiples["scale_up.efficiency"] == 1
    assert "no step depends on it" in fit.why_not["scale_out.efficiency"]
    assert fit.cluster.scale_out == CLUSTER.scale_out


def test_one_step_moves_figures_less_than_five_do():
    predict = of_parts(np.array([[1.0, 0.0, 0.0, 0.0]] * 5))
    found = [fit_to_steps(CLUSTER, [1.2] * told, predict, SPREAD) for told in (1, 3, 5)]
    kernels = [fit.multiples["kernel_time"] for fit in found]
    assert 1 < kernels[0] < kernels[1] < kernels[2] < 1.2
    assert found[0].left_out is None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=8))
def test_steps_that_are_left_out_are_never_further_off_than_without(logs):
    predict = of_parts(SHARES)
    measured = [predict(at, CLUSTER) * float(np.exp(log)) for at, log in enumerate(logs)]
    fit = fit_to_steps(CLUSTER, measured, predict, SPREAD)
    assert np.median(np.abs(fit.left_out)) <= np.median(np.abs(fit.before)) + 1e-12


@pytest.mark.parametrize("told", [3, 5])
def test_a_few_steps_of_a_machine_that_is_as_known_do_not_spoil_the_others(told):
    """Steps scatter by 8 %, from which nothing can be learned; those not told stay as near."""
    random = np.random.default_rng(7)
    more = []
    for _ in range(60):
        shares = random.dirichlet([4, 2, 1, 1], told + 10)
        scatter = np.exp(0.08 * random.standard_normal(len(shares)))
        measured = shares.sum(axis=1) * scatter
        predict = of_parts(shares)
        fit = fit_to_steps(CLUSTER, measured[:told], predict, SPREAD)
        before, after = (
            np.abs([predict(at, cluster) / measured[at] - 1 for at in range(told, len(shares))])
            for cluster in (CLUSTER, fit.cluster)
        )
        more.append(after.mean() - before.mean())
    assert np.median(more) <= 1e-9
    assert np.mean(more) < 0.005


def test_a_written_cluster_says_where_its_figures_are_from_and_what_the_next_step_is_off():
    predict = of_parts(SHARES)
    measured = [1.2 * predict(at, CLUSTER) for at in range(6)]
    cluster = fitted_cluster(fit_to_steps(CLUSTER, measured, predict, SPREAD), "runs.csv")
    assert cluster.sources["steps.kernel_time"] == "fitted to runs.csv"
    prior = step_prior("megatron", cluster.accelerator.name, 8, cluster.steps)
    assert prior["steps"] == 6
    assert prior["p90_pct"] == cluster.steps.p90_pct < 15
    assert step_prior("megatron", cluster.accelerator.name, 8) != prior


def test_steps_that_went_over_sockets_show_it(tmp_path):
    """Of six steps, four on several nodes, whose NICs moved a tenth of what they could."""
    share = np.array([0.0, 0.0, 0.2, 0.3, 0.4, 0.5])

    def predict(number, cluster):
        is_slow = cluster.scale_out.transport == "sockets"
        return 1 - share[number] + share[number] * (10.0 if is_slow else 1.0)

    sockets = [1 + 9 * float(part) for part in share]
    fit = fit_to_steps(CLUSTER, sockets, predict, SPREAD)
    assert fit.transport == fit.cluster.scale_out.transport == "sockets"
    assert np.abs(fit.after).max() < 0.01
    assert fit.before.min() < -0.8
    cluster = fitted_cluster(fit, "runs.csv")
    assert cluster.sources["scale_out.transport"] == "fitted to runs.csv"
    written = tmp_path / "mine.yaml"
    written.write_text(cluster_text(cluster))
    assert load_cluster(str(written)).model_dump() == cluster.model_dump()
    assert fit_to_steps(CLUSTER, [1.0] * 6, predict, SPREAD).transport == ""
    one_node = fit_to_steps(CLUSTER, [3.0, 3.0], predict, SPREAD)
    assert one_node.transport == ""
