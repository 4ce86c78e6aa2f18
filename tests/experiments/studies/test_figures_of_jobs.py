"""Figures of a point by their definition: means by weight, the largest job, energies, draws."""

import math
from types import SimpleNamespace as Of

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.studies.figures import (
    FIGURES,
    Goal,
    Job,
    check_quantile,
    drawn,
    figure_of,
    is_quantile,
    knee,
    memory_room,
    number_at,
    say_figure,
)
from helpers.tries import tries
from simulator.support.errors import StudyError
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")


class Bill(Of):
    def energy(self, seconds, busy):
        """Idle parts take 100 W, and accelerators at work 300 W more."""
        return seconds * (100 + 300 * busy["accelerator"])

    def count(self, part):
        return {"accelerator": self.accelerators}[part]


class Site(Of):
    """A site of a workload, of which each is another."""

    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


def job(share, step=1.0, busy=0.5, *, tokens=10, served=None, ranks=8, **fields):
    site = Site(
        ranks=ranks, nodes=None, cluster=CLUSTER, tokens=tokens, workload="w", plan=None,
        **{"memory": None, "memory_room": None, **fields},
    )  # fmt: skip
    bill = Bill(cost=1e6 * ranks, active_power=500.0 * ranks, accelerators=ranks)
    placed = Of(site=site, cluster=CLUSTER, bill=bill)
    return Job(placed, share, step, busy, served=served)


shares = st.floats(0.1, 0.9)
seconds = st.floats(0.1, 10)


@tries(40)
@given(shares, seconds, seconds, st.integers(1, 99), st.integers(1, 99))
def test_steps_and_tokens_are_weighted_over_workloads(share, first, second, few, many):
    jobs = [job(share, first, tokens=few), job(1 - share, second, tokens=many)]
    step = share * first + (1 - share) * second
    assert FIGURES["step_s"].of(jobs) == pytest.approx(step)
    tokens = share * few + (1 - share) * many
    assert FIGURES["tokens_per_s"].of(jobs) == pytest.approx(tokens / step)
    energy = sum(
        weight * (100 * time + 300 * 0.5) for weight, time in ((share, first), (1 - share, second))
    )
    assert FIGURES["energy_per_step"].of(jobs) == pytest.approx(energy)
    assert FIGURES["energy_per_token"].of(jobs) == pytest.approx(energy / tokens)
    random = np.random.default_rng(0)
    factors = [random.lognormal(0, 0.2, 5) for _ in jobs]
    steps = share * first * factors[0] + (1 - share) * second * factors[1]
    assert drawn("step_s", jobs, factors) == pytest.approx(steps)
    assert drawn("tokens_per_s", jobs, factors) == pytest.approx(tokens / steps)
    energies = 100 * steps + 300 * 0.5
    assert drawn("energy_per_step", jobs, factors) == pytest.approx(energies)
    assert drawn("energy_per_token", jobs, factors) == pytest.approx(energies / tokens)
    with pytest.raises(StudyError, match="does not vary at random"):
        drawn("cost", jobs, factors)


def test_sizes_and_prices_are_those_of_the_largest_job():
    jobs = [job(0.5, ranks=8), job(0.5, ranks=24)]
    assert FIGURES["gpus"].of(jobs) == 24
    assert FIGURES["nodes"].of(jobs) == 3
    assert FIGURES["cost"].of(jobs) == 24e6
    assert FIGURES["power"].of(jobs) == 12e3
    assert job(1.0, 0.0).energy(0.0) == 0.0
    with pytest.raises(StudyError, match="w is a trace"):
        FIGURES["tokens_per_s"].of([job(0.5), job(0.5, tokens=None)])


def test_memory_is_that_of_the_fullest_rank_and_its_room_that_of_the_plan_with_least_left():
    plans = [job(0.3, memory=60.0, memory_room=80.0), job(0.3, memory=70.0, memory_room=95.0)]
    assert FIGURES["memory"].of([*plans, job(0.4)]) == 70
    assert memory_room(plans) == 70 + 80 - 60
    assert memory_room([*plans, job(0.1, memory=79.0, memory_room=None)]) == 79 + 80 - 60
    assert memory_room([job(1.0, memory=1.0)]) == math.inf
    assert memory_room([job(1.0)]) == math.inf
    with pytest.raises(StudyError, match="only a plan gives it"):
        FIGURES["memory"].of([job(1.0)])


def test_figures_of_requests_are_weighted_over_deployments():
    served = [
        Of(tokens=100.0, ranks=4, ttft_mean=1.0, ttft_p99=2.0),
        Of(tokens=300.0, ranks=8, ttft_mean=3.0, ttft_p99=5.0),
    ]
    jobs = [job(0.25, served=served[0]), job(0.75, served=served[1])]
    assert FIGURES["ttft_mean"].of(jobs) == pytest.approx(0.25 * 1 + 0.75 * 3)
    assert FIGURES["ttft_p99"].of(jobs) == pytest.approx(0.25 * 2 + 0.75 * 5)
    assert FIGURES["tokens_per_s"].of(jobs) == pytest.approx(250)
    per_gpu = 0.25 * 100 / 4 + 0.75 * 300 / 8
    assert FIGURES["tokens_per_s_per_gpu"].of(jobs) == pytest.approx(per_gpu)
    for name in ("ttft_mean", "tokens_per_s_per_gpu"):
        with pytest.raises(StudyError, match="no workload is a deployment"):
            FIGURES[name].of([job(1.0)])


def test_numbers_of_a_point_are_figures_fields_of_plans_or_values_of_the_cluster():
    plan = Of(parallelism=Of(tp=4, name="x"), run=Of(sequence=2048.0, tp=9), gpus=16, model="m")
    jobs = [job(0.5), job(0.5, ranks=16)]
    jobs[1].placed.site.plan = plan
    assert number_at(jobs, "gpus") == 16
    assert number_at(jobs, "plan.tp") == 4
    assert number_at(jobs, "plan.sequence") == 2048
    assert number_at(jobs, "plan.gpus") == 16
    assert number_at(jobs, "scale_up.size") == CLUSTER.scale_up.size
    for name in ("plan.model", "plan.none", "none"):
        with pytest.raises(StudyError, match="is not a number of this point"):
            number_at(jobs, name)
    with pytest.raises(StudyError):
        number_at([job(1.0)], "plan.tp")


def test_figures_are_said_with_their_unit_and_whole_numbers_whole():
    assert say_figure(math.nan, "s") == ""
    assert say_figure(2048.0, "") == "2,048"
    assert say_figure(0.123456789, "") == "0.123457"
    assert say_figure(1.5e-3, "s") == "1.5 ms"
    assert figure_of("energy_per_step p90") is FIGURES["energy_per_step"]
    assert figure_of("scale_up.size") is None


@pytest.mark.parametrize("text", ["median", "worst", "p1", "p50", "p99"])
def test_quantiles_are_of_one_to_ninety_nine_percent(text):
    assert is_quantile(text)
    assert check_quantile(text) == text
    goal = Goal("step_s", "max", text)
    assert (goal.column, goal.sign, goal.names) == (f"step_s {text}", -1.0, {"step_s"})


@pytest.mark.parametrize("text", ["p0", "p100", "p", "p5.5", "mean", "", 50, None])
def test_other_words_are_no_quantile(text):
    assert not is_quantile(text)
    with pytest.raises(ValueError, match="is not a quantile"):
        check_quantile(text)
    goal = Goal("step_s", "min")
    assert (goal.column, goal.sign) == ("step_s", 1.0)


@tries(60)
@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=7))
def test_the_knee_is_the_farthest_below_the_line_between_the_ends(points):
    front = np.array(sorted(points))
    spans = np.ptp(front, axis=0)
    found = knee(front, (1, 1))
    if len(front) < 3 or not spans.all():
        assert found is None
        return
    sums = [sum((row - front.min(axis=0)) / spans) for row in front]
    if min(sums) >= 1 - 1e-9:
        assert found is None
    else:
        assert sums[found] == pytest.approx(min(sums))
