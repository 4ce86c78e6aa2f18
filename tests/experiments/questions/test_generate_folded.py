"""Folded answers are the whole job's, and say what was folded."""

from dataclasses import replace

import pytest

from experiments.baseline import Settings
from experiments.documents.step import trust
from experiments.evaluate.generated_steps import representatives
from experiments.questions import generate as module
from experiments.questions.generate import generate
from experiments.scenario.resources import improve
from experiments.scenario.scenario import Scenario
from helpers.synthetic_jobs import planned
from simulator.support.errors import WhatIfError
from topologies import load_cluster
from traces.generate.generate import generate as generate_step
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

CLUSTER = load_cluster("hgx-h100").model_copy(update={"nodes": 64})


def plan_of(**degrees):
    parallelism = Parallelism(**degrees)
    run = Training(micro_batch=1, global_batch=parallelism.dp, sequence=4096)
    return planned(load_model("qwen3-4b"), parallelism, run)


def all_ranks(plan, cluster=CLUSTER, engine="flow"):
    return Scenario(generate_step(plan)[0], cluster, engine)


def fewest(plan, cluster=CLUSTER, engine="flow"):
    """Scenario of the ranks that stand for all, and what is said of them."""
    step = representatives(plan, cluster, Settings(engine=engine))
    return Scenario(step.workload, cluster, engine), step.folded


@pytest.mark.parametrize("engine", ["flow", "analytic"])
def test_a_step_takes_as_long_folded_generated_in_part_or_whole(engine):
    plan = plan_of(tp=4, dp=8, pp=2)
    few, said = fewest(plan, engine=engine)
    whole = all_ranks(plan, engine=engine)
    timeline = replace(whole, fold=True).run()
    expected = replace(whole, fold=False).run().makespan
    assert few.run().makespan == pytest.approx(expected, rel=1e-9)
    assert timeline.makespan == pytest.approx(expected, rel=1e-9)
    assert len(timeline.end) == len(whole.workload)
    assert said == "4 of 64 ranks stand for all"
    assert timeline.folded.startswith("2 of 64 ranks are simulated, on 2 of 64 parts")


def test_a_what_if_on_representatives_is_that_of_the_whole_job():
    plan = plan_of(tp=8, dp=4)
    few, _ = fewest(plan)
    for resource in ("scale_out.bandwidth", "compute", "scale_up.latency"):
        whole = all_ranks(plan)
        better = improve(whole, resource, 2).run().makespan
        assert improve(few, resource, 2).run().makespan == pytest.approx(better, rel=1e-9)


@pytest.mark.parametrize(
    ("degrees", "reason"),
    [({"dp": 8}, "it is no larger"), ({"dp": 6}, "its replicas do not fill whole nodes")],
)
def test_where_nothing_can_be_folded_all_ranks_are_there_and_it_is_said(degrees, reason):
    scenario, text = fewest(plan_of(**degrees))
    assert len(scenario.workload.ranks) == scenario.ranks
    assert text == f"nothing is folded: {reason}"


def test_tensor_ranks_are_folded_where_replicas_are_not():
    plan = plan_of(tp=2, dp=6, pp=2)
    scenario, text = fewest(plan)
    assert text == "12 of 24 ranks stand for all"
    whole = all_ranks(plan).run().makespan
    assert scenario.run().makespan == pytest.approx(whole, rel=1e-9)


def test_a_network_on_which_replicas_differ_gets_all_ranks():
    alps = load_cluster("gh200-alps")
    scenario, text = fewest(plan_of(tp=4, dp=16), alps)
    assert len(scenario.workload.ranks) == 64
    assert text.startswith("nothing is folded: ")
    on_one_router, _ = fewest(plan_of(tp=4, dp=4), alps)
    whole = all_ranks(plan_of(tp=4, dp=4), alps).run().makespan
    assert on_one_router.workload.ranks == (0, 1, 2, 3)
    assert on_one_router.run().makespan == pytest.approx(whole, rel=1e-9)


def test_the_engine_of_single_transfers_is_refused():
    with pytest.raises(WhatIfError, match="use flow, analytic"):
        fewest(plan_of(tp=8, dp=2), engine="simpy")


def test_it_is_folded_for_the_nodes_and_the_algorithms_that_are_asked_for():
    plan = plan_of(tp=2, dp=16)
    asked = Settings(nodes=16, algorithms=("all_reduce=tree",))
    step = representatives(plan, CLUSTER, asked)
    expected = generate(plan, CLUSTER, settings=asked).base.timeline.makespan
    found = generate(plan, CLUSTER, settings=asked, fold_replicas=True)
    assert found.base.timeline.makespan == pytest.approx(expected, rel=1e-9)
    assert found.folded == step.folded


def test_a_large_step_is_folded_unless_it_is_changed_or_somebody_says_no(monkeypatch):
    monkeypatch.setattr(module, "_FOLD_FROM", 32)
    large, kept = plan_of(tp=8, dp=4), []
    report = generate(large, CLUSTER, planned=kept.append)
    assert report.folded == "1 of 32 ranks stand for all"
    assert [plan.replicas for plan in kept] == [1]
    for options in ({"fold_replicas": False}, {"settings": Settings(what_ifs=("compute x0.5",))}):
        whole = generate(large, CLUSTER, **options)
        assert whole.folded == ""
        assert len(whole.base.loaded.coverage.ranks) == 32
    assert generate(plan_of(tp=8, dp=2), CLUSTER).folded == ""


def test_ranks_that_representatives_stand_for_are_not_said_to_lack_a_recording():
    report = generate(plan_of(tp=8, dp=4), CLUSTER, fold_replicas=True)
    coverage = report.base.loaded.coverage
    assert len(coverage.ranks) < coverage.ranks_in_job
    assert not any("were recorded" in doubt.cause for doubt in trust(report.base).doubts)
    recorded = replace(report.base.loaded, coverage=replace(coverage, step=3))
    doubts = trust(replace(report.base, loaded=recorded)).doubts
    assert any("were recorded" in doubt.cause for doubt in doubts)
