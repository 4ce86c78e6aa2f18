"""Instances that come and go with the load, and requests that no longer keep the SLO."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.evaluate.serving_clients import Slo
from experiments.evaluate.serving_plan import instances_of, serving_plan
from experiments.evaluate.serving_runs import serve
from experiments.questions.serving import serving
from simulator.support.errors import TwofoldError
from traces.requests.table import Requests


def surge(seed: int = 0):
    """Make requests for ten minutes, of which the second two are at thirty times the rate."""
    generator = np.random.default_rng(seed)
    parts = [(0.0, 120.0, 1.0), (120.0, 240.0, 30.0), (240.0, 600.0, 1.0)]
    arrival = np.sort(
        np.concatenate(
            [
                begin + (end - begin) * generator.random(int(rate * (end - begin)))
                for begin, end, rate in parts
            ]
        )
    )
    arrival -= arrival[0]
    count = len(arrival)
    return Requests(arrival, np.full(count, 1024), np.full(count, 128), "surge")


def scaled(scale: str | None, count: int = 6):
    plan = serving_plan(model="llama-3.1-8b", rate="1/s", instances=count, scale=scale)
    return serve(instances_of(plan, "hgx-h100"), surge())


def test_autoscaling_is_between_its_least_and_all():
    least, all_of_them = scaled(None, 1), scaled(None)
    quick = scaled("from 1 at 20 requests, 10 s to start")
    slow = scaled("from 1 at 20 requests, 60 s to start")
    worst = [float(np.quantile(run.ttft, 0.99)) for run in (all_of_them, quick, slow, least)]
    assert worst == sorted(worst)
    assert worst[1] < worst[2] < worst[3]
    assert all_of_them.held == 6
    assert 1 < quick.held < 6
    for run in (quick, slow):
        assert run.totals["decoded_tokens"] == 128 * len(run.ttft)
        assert run.unserved == 0


def test_instances_that_are_not_held_cost_nothing():
    """The same tokens by fewer accelerators: each makes more, and all together cost less."""
    plan = {"model": "llama-3.1-8b", "rate": "1/s", "instances": 6}
    always, scaled = (
        serving(instances_of(serving_plan(**plan, **more), "hgx-h100"), surge(), resources=[])
        for more in ({}, {"scale": "from 1 at 20 requests, 10 s to start"})
    )
    assert scaled.held < 6
    rate = always.tokens_per_second_per_gpu * 6 / scaled.held
    assert scaled.tokens_per_second_per_gpu == pytest.approx(rate, rel=0.05)
    # They work for more of the time, and draw more then.
    assert always.spent.usd * scaled.held / 6 < scaled.spent.usd < always.spent.usd


def test_autoscaling_from_all_changes_nothing():
    usual, same = scaled(None, 3), scaled("from 3 at 20 requests, 10 s to start", 3)
    assert (usual.ttft == same.ttft).all()
    assert same.held == pytest.approx(3.0)


def test_instances_go_when_the_load_has_been_low_for_long_enough():
    """Of 600 s the surge takes 120, and what it wanted holds for 300 s."""
    run = scaled("from 1 at 20 requests, 10 s to start")
    late = run.arrived > 590.0
    assert len(np.unique(run.worker[(run.arrived > 200.0) & (run.arrived < 300.0)])) > 1
    assert set(run.worker[late]) <= {int(worker) for worker in np.unique(run.worker)}
    assert run.held < 6 * 500 / 600


def test_more_requests_keep_the_slo_if_those_that_no_longer_can_go_last():
    """As Clockwork (OSDI 2020) has it, but that nothing is refused."""
    fields = {"model": "llama-3.1-8b", "rate": "1/s", "slo": "ttft 500 ms"}
    crowded = replace(surge(), arrival=surge().arrival / 3)
    first, last = (
        serving(
            instances_of(serving_plan(**fields, policy=policy), "hgx-h100"),
            crowded,
            slo=Slo(ttft=0.5),
            resources=[],
        )
        for policy in ("fcfs", "slo")
    )
    assert last.goodput_fraction > 3 * first.goodput_fraction
    assert last.first_run.unserved == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scale": "2"}, "write, for example"),
        ({"scale": "from 9 at 20 requests, 1 s to start", "instances": 3}, "from 9 instances of 3"),
        ({"scale": "from 1 at 0 requests, 1 s to start", "instances": 3}, "positive"),
        ({"scale": "from 1 at 2 requests, 1 s to start", "instances": 3, "decode": "1"}, "neither"),
    ],
)
def test_autoscaling_that_cannot_be_is_refused(fields, said):
    with pytest.raises(TwofoldError, match=said):
        instances_of(serving_plan(model="llama-3.1-8b", rate="1/s", **fields), "hgx-h100")


def test_the_policy_slo_goes_by_the_time_to_the_first_token():
    fields = {"model": "llama-3.1-8b", "rate": "1/s", "policy": "slo"}
    served_by = instances_of(serving_plan(**fields, slo="ttft 500 ms"), "hgx-h100")
    assert served_by.patience == pytest.approx(0.5)
    with pytest.raises(TwofoldError, match="goes by the SLO's TTFT"):
        instances_of(serving_plan(**fields, slo="tpot 50 ms"), "hgx-h100")
