"""Folded answers are the whole job's, and say what was folded."""

from dataclasses import replace

import pytest

from experiments.questions.generate import Step, representatives
from experiments.scenario.resources import improve
from simulator.errors import WhatIfError
from topologies import load_cluster
from traces.generate.kernel_times import Accelerator
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

CLUSTER = load_cluster("hgx-h100").model_copy(update={"nodes": 64})


def step(**degrees):
    parallelism = Parallelism(**degrees)
    return Step(
        load_model("qwen3-4b"),
        parallelism,
        Training(micro_batch=1, global_batch=parallelism.dp, sequence=4096),
        Accelerator(peak=989e12, memory_bandwidth=3.35e12),
    )


@pytest.mark.parametrize("engine", ["flow", "analytic"])
def test_a_step_takes_as_long_folded_generated_in_part_or_whole(engine):
    asked = step(tp=4, dp=8, pp=2)
    few, said = representatives(asked, CLUSTER, engine)
    whole = asked.scenario(CLUSTER, engine)
    timeline = replace(whole, fold=True).run()
    expected = replace(whole, fold=False).run().makespan
    assert few.run().makespan == pytest.approx(expected, rel=1e-9)
    assert timeline.makespan == pytest.approx(expected, rel=1e-9)
    assert len(timeline.end) == len(whole.workload)
    assert said == "16 of 64 ranks stand for all"
    assert timeline.folded.startswith("16 of 64 ranks are simulated: 2 of 8 like parts")


def test_a_what_if_on_representatives_is_that_of_the_whole_job():
    asked = step(tp=8, dp=4)
    few, _ = representatives(asked, CLUSTER)
    for resource in ("scale_out.bandwidth", "compute", "scale_up.latency"):
        whole = replace(asked.scenario(CLUSTER, "flow"), fold=False)
        better = improve(whole, resource, 2).run().makespan
        assert improve(few, resource, 2).run().makespan == pytest.approx(better, rel=1e-9)


@pytest.mark.parametrize(
    ("degrees", "reason"),
    [({"tp": 8}, "it is no larger"), ({"tp": 2, "dp": 6}, "its replicas do not fill whole nodes")],
)
def test_where_nothing_can_be_folded_all_ranks_are_there_and_it_is_said(degrees, reason):
    scenario, text = representatives(step(**degrees), CLUSTER)
    assert len(scenario.workload.ranks) == scenario.ranks
    assert text == f"nothing is folded: {reason}"


def test_a_network_on_which_replicas_differ_gets_all_ranks():
    alps = load_cluster("gh200-alps")
    scenario, text = representatives(step(tp=4, dp=16), alps)
    assert len(scenario.workload.ranks) == 64
    assert text.startswith("nothing is folded: ")
    on_one_router, _ = representatives(step(tp=4, dp=4), alps)
    whole = replace(step(tp=4, dp=4).scenario(alps, "flow"), fold=False).run().makespan
    assert on_one_router.workload.ranks == (0, 1, 2, 3)
    assert on_one_router.run().makespan == pytest.approx(whole, rel=1e-9)


def test_the_engine_of_single_transfers_is_refused():
    with pytest.raises(WhatIfError, match="flow and analytic can fold"):
        representatives(step(tp=8, dp=2), CLUSTER, "transfer")
