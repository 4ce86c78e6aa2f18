"""``replicas x4``: what it says of a job of another size, against jobs generated at that size."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.evaluate.design_points import DesignPoints
from experiments.scenario.language import parse_change
from experiments.scenario.resources import better
from experiments.scenario.scenario import Scenario
from helpers.bounds import most_utility
from helpers.places import SAMPLES, SHARED
from helpers.synthetic_jobs import generated
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import WhatIfError
from simulator.workload import What
from topologies import load_cluster
from traces.card.package import load_package
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

CLUSTER = load_cluster("hgx-h100")
DENSE, EXPERTS = "qwen3-4b", "deepseek-v3-16b"
PLANS = [
    (DENSE, {"tp": 1, "dp": 2}),
    (DENSE, {"tp": 2, "dp": 2, "zero": 1}),
    (DENSE, {"tp": 4, "dp": 2, "zero": 3, "sequence_parallel": True}),
    (DENSE, {"tp": 8, "dp": 2, "zero": 2, "sequence_parallel": True}),
    (DENSE, {"tp": 2, "pp": 2, "dp": 2, "zero": 1}),
    (DENSE, {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 3}),
    (EXPERTS, {"tp": 1, "dp": 4, "ep": 2, "zero": 1}),
    (EXPERTS, {"tp": 2, "dp": 4, "ep": 2, "pp": 2, "sequence_parallel": True}),
]


def planned(model, degrees, times=1.0):
    """Generate a step with so many times the replicas, each with two batches of its own."""
    p = Parallelism(**{**degrees, "dp": int(degrees["dp"] * times)})
    run = Training(micro_batch=1, global_batch=2 * p.dp, sequence=2048)
    return generated(load_model(model), p, run)


def asked(text, scenario):
    return parse_change(text).apply(scenario)


def run(text, scenario):
    return asked(text, scenario).scenario.run()


@pytest.fixture(scope="module")
def sample():
    return Scenario(load_package(SAMPLES / "gpu-dp2-tp4").workload, load_cluster("dgx-a100"))


@pytest.mark.parametrize(
    ("model", "degrees", "engine"),
    [
        *((*one, "analytic") for one in PLANS),
        *((*one, "flow") for one in (PLANS[0], PLANS[-1])),
        *(pytest.param(*one, "flow", marks=pytest.mark.slow) for one in PLANS[1:-1]),
    ],
)
def test_the_larger_job_is_the_one_that_a_plan_of_its_size_makes(model, degrees, engine):
    """Without jitter nothing but the optimiser's shards could differ, and those are known."""
    small = Scenario(planned(model, degrees), CLUSTER, engine)
    large = Scenario(planned(model, degrees, 4), CLUSTER, engine).run()
    found = run("replicas x4", small)
    assert found.makespan == pytest.approx(large.makespan, rel=1e-9)
    assert found.resource_bytes() == pytest.approx(large.resource_bytes(), rel=1e-9)


@pytest.mark.parametrize(("model", "degrees"), PLANS)
def test_the_smaller_job_is_the_one_that_a_plan_of_its_size_makes(model, degrees):
    large = Scenario(planned(model, degrees, 4), CLUSTER)
    small = Scenario(planned(model, degrees), CLUSTER).run()
    found = run("replicas x0.25", large)
    assert found.makespan == pytest.approx(small.makespan, rel=1e-9)
    assert found.resource_bytes() == pytest.approx(small.resource_bytes(), rel=1e-9)


def test_experts_on_all_replicas_spread_with_them():
    degrees = {"tp": 1, "dp": 4, "ep": 4, "zero": 1}
    small = Scenario(planned(EXPERTS, degrees), CLUSTER)
    large = Scenario(planned(EXPERTS, {**degrees, "ep": 16}, 4), CLUSTER).run()
    found = asked("replicas x4", small)
    assert "ep[4] → 16" in found.note
    assert found.scenario.run().resource_bytes() == pytest.approx(large.resource_bytes(), rel=1e-9)


def test_as_many_replicas_change_nothing(sample):
    done = asked("replicas x1", sample)
    assert done.scenario.workload is sample.workload
    assert done.note == "dp[2] as they are"
    assert done.assumptions == ()


@pytest.mark.parametrize(
    ("one_by_one", "at_once"),
    [
        ("replicas x2 and replicas x2", "replicas x4"),
        ("replicas x4 and replicas x0.5", "replicas x2"),
        ("replicas x2 and compute x0.5", "compute x0.5 and replicas x2"),
        ("replicas x2 and scale_out.bandwidth x2", "scale_out.bandwidth x2 and replicas x2"),
        ("replicas x2 and all_reduce@dp bytes x0.5", "all_reduce@dp bytes x0.5 and replicas x2"),
        ("replicas x2 and calls drop", "calls drop"),
        ("replicas@dp x2", "replicas x2"),
        ("replicas x2 outermost", "replicas x2"),
        ("replicas x2 and rank 0-15 compute x2", "compute x2 and replicas x2"),
    ],
)
def test_changes_compose(sample, one_by_one, at_once):
    found, expected = run(one_by_one, sample), run(at_once, sample)
    assert found.makespan == pytest.approx(expected.makespan, rel=1e-9)
    assert found.resource_bytes() == pytest.approx(expected.resource_bytes(), rel=1e-9)


def test_a_copy_may_be_slow_alone(sample):
    """Rank 12 is the copy of rank 4 on the second node; its group and all others wait for it."""
    done = asked("replicas x2 and rank 12 compute x1.5", sample).scenario
    assert done.workload.job_ranks == 16
    slow = done.workload.duration[done.workload.ops_of(12)].sum()
    assert slow > 1.3 * done.workload.duration[done.workload.ops_of(4)].sum()
    assert done.run().makespan > run("replicas x2", sample).makespan


def test_a_large_factor_simulates_few_ranks(sample):
    timeline = run("replicas x64", sample)
    assert timeline.workload.job_ranks == 512
    assert len(timeline.workload.ranks) <= 32
    assert "of 512 ranks are simulated: the others are copies of them" in timeline.folded


def test_more_nodes_have_as_many_ranks_each(sample):
    spread = replace(sample, nodes=2)
    done = asked("replicas x4", spread)
    assert done.scenario.nodes == 8
    assert "8 → 32 ranks on 8 nodes; 24 are copies of those recorded" in done.note
    assert asked("replicas x0.5", spread).scenario.nodes == 1
    assert asked("replicas x4", sample).scenario.nodes is None


def test_one_node_asks_what_its_nics_are_worth(sample):
    """The traffic that one node does not have is there on several; a design asks of it, too."""
    assert not sample.run().resource_bytes()["scale_out"]
    several = asked("replicas x32", sample).scenario
    assert several.run().resource_bytes()["scale_out"] > 0
    design = DesignPoints(several)
    now, then = design.steps([parse_change(f"scale_out.bandwidth x{by}") for by in (1, 2)])
    assert then < 0.95 * now
    step = replace(several, engine="analytic").run().makespan
    assert now == pytest.approx(step, rel=1e-9)


@pytest.mark.parametrize("resource", ["scale_up.size", "scale_out.nics_per_node"])
def test_a_study_follows_copies_onto_another_graph(sample, resource):
    """On domains twice the size groups of two replicas share one: other copies tell the times."""
    several = asked("replicas x8", sample).scenario
    change = better(resource)
    other = replace(change.apply(several).scenario.whole(), engine="analytic").run()
    assert DesignPoints(several).steps([change])[0] == pytest.approx(other.makespan, rel=1e-9)
    found = most_utility(several, resources=[resource])
    assert np.isfinite(found[resource])


def test_a_study_writes_out_copies_whose_groups_lie_across_nodes():
    """On nodes of eight, groups of three: the first two lie inside, ranks 6 to 8 lie across."""
    builder = WorkloadBuilder(job_ranks=6)
    for label, groups in (("tp", [(0, 1, 2), (3, 4, 5)]), ("dp", [(0, 3), (1, 4), (2, 5)])):
        for ranks in groups:
            call = builder.call(CallRow("all_reduce", builder.group(ranks, label), 0, 1e8))
            for rank in ranks:
                builder.op(
                    What.COLLECTIVE, rank=rank, lane=label, name="c", duration=0.0, call=call
                )
    several = asked("replicas x4", Scenario(builder.build(), CLUSTER)).scenario
    changes = [better("scale_out.nics_per_node"), better("scale_out.bandwidth")]
    for change, step in zip(changes, DesignPoints(several).steps(changes), strict=True):
        whole = replace(change.apply(several).scenario.whole(), engine="analytic").run()
        assert step == pytest.approx(whole.makespan, rel=1e-9)


def test_the_answer_says_what_it_takes_for_granted(sample):
    said = " ".join(asked("replicas x4", sample).assumptions)
    for part in (
        "the global batch grows",
        "jitter of their originals",
        "last as recorded",
        "replicas are outermost",
    ):
        assert part in said
    sharded = Scenario(planned(DENSE, {"tp": 2, "pp": 2, "dp": 2, "zero": 1}), CLUSTER)
    said = " ".join(asked("replicas x4", sharded).assumptions)
    assert "8 kernels of the optimiser update shards: x0.25 of their time" in said
    assert "replicas lie within blocks of 16 ranks" in said
    assert "replicas are outermost" in " ".join(asked("replicas x4 outermost", sharded).assumptions)


def test_more_shards_leave_less_for_replicas_to_reduce():
    builder = WorkloadBuilder(job_ranks=4)
    for ranks, label in [((0, 1), "dp_shard"), ((2, 3), "dp_shard"), ((0, 2), "dp_replicate")]:
        call = builder.call(CallRow("all_reduce", builder.group(ranks, label), 0, 1e6))
        for rank in ranks:
            builder.op(What.COLLECTIVE, rank=rank, lane=label, name="c", duration=0.0, call=call)
    step = Scenario(builder.build(), CLUSTER)
    sizes = asked("replicas@dp_shard x4", step).scenario.workload.calls.size.tolist()
    assert sizes == [1e6, 1e6, 0.25e6]
    assert asked("replicas x4", step).scenario.workload.calls.size.tolist() == [1e6, 1e6, 1e6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas x0.3", r"x0.3 of dp\[2\] is 0.6 ranks: choose .* such as x0.5 or x2"),
        ("replicas x1.3", r"x1.3 of dp\[2\] is 2.6 ranks"),
        ("replicas@pp x2", r"no group is called 'pp'; the step has .*tp\[4\]"),
        ("replicas@tp x2", r"tp\[4\] is not data parallel by its name"),
        (
            "replicas x1000",
            r"8,000 ranks need 1,000 nodes, and dgx-a100 has 140 of 8: .*'nodes: 1000'",
        ),
        ("replicas x500000", "4,000,000 ranks are more than 1,048,576"),
    ],
)
def test_what_cannot_be_says_why(sample, text, message):
    with pytest.raises(WhatIfError, match=message):
        asked(text, sample)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas", "write how many times the replicas, as in 'replicas x4'"),
        ("replicas@ x4", "write how many times"),
        ("replicas x4 x2", "write how many times"),
        ("replicas outermost", "write how many times"),
        ("replicas drop", "'drop' is not a factor such as x0.5"),
        ("rank 3 replicas x4", "is not a change to single ranks"),
    ],
)
def test_what_is_not_written_so_says_how(text, message):
    with pytest.raises(WhatIfError, match=message):
        parse_change(text)


def test_nodes_that_would_not_be_full_are_refused(sample):
    with pytest.raises(WhatIfError, match="12 ranks do not fill the job's nodes of 8 ranks"):
        asked("replicas x1.5", replace(sample, nodes=1))


@pytest.mark.parametrize(
    ("trace", "cluster", "grown"),
    [
        ("live/ddp_s2.1", "live/net250.yaml", r"default_pg\[2\] → 8"),
        pytest.param(
            "live/ddp_cpu2.1", "live/net250.yaml", r"default_pg\[2\] → 8", marks=pytest.mark.slow
        ),
        ("live/zero3_s2.0", "live/net250.yaml", r"default_pg\[2\] → 8"),
        ("kineto/mi300x_8gpu_resnet_ddp_rank0.json.gz", "mi300x-8", r"default_pg\[8\] → 32"),
        ("kineto/a100_16gpu_dlrm_like_rank0.json.gz", "dgx-a100", r"group\[16\] → 64"),
        pytest.param("nsys-jax", "hgx-h100", r"group\[4\] → 16", marks=pytest.mark.slow),
        ("live/tp_l2.0", "live/net250.yaml", None),
        ("live/pp_s2.0", "live/net250.yaml", None),
        pytest.param("megatron-tp8-a100", "dgx-a100", None, marks=pytest.mark.slow),
    ],
)
def test_real_traces_are_told_or_refused(trace, cluster, grown):
    path = SHARED / "traces" / trace
    if not path.exists():
        pytest.skip("the shared traces are not beside the checkout")
    where = load_cluster(SHARED / "traces" / cluster if cluster.endswith("yaml") else cluster)
    scenario = Scenario(load_package(path).workload, where)
    if grown is None:
        with pytest.raises(WhatIfError, match=r"'replicas@.*x4'|no group of several ranks"):
            asked("replicas x4", scenario)
    else:
        assert asked("replicas x4", scenario).note.startswith(grown.replace("\\", ""))


@pytest.mark.parametrize(
    "command",
    [
        ["utility"],
        ["replay"],
        ["explain"],
        ["metrics"],
        ["sweep", "-r", "compute", "--factors", "1"],
        ["sweep", "--curve", "-r", "compute", "--range", "1..2", "--gap", "10%"],
        ["compare", "-c", "dgx-a100"],
        ["what-if", "compute x1"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_a_number_of_replicas(command):
    """It is the what-if of that name, put first."""
    name, *rest = command
    changes = ["--what-if", "compute x0.5", "--replicas", "4"]
    words = [name, str(SAMPLES / "gpu-dp2-tp4"), *rest, "-c", "dgx-a100", *changes, "-o", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert [one["change"] for one in answer["what_ifs"]] == ["replicas x4", "compute x0.5"]
    assert "the global batch grows with the replicas" in answer["assumptions"][0]


def test_a_generated_step_is_asked_for_at_its_size():
    words = ["generate", DENSE, "-c", "hgx-h100", "--dp", "2", "--tp", "2"]
    done = CliRunner().invoke(app, [*words, "--what-if", "replicas x2"])
    assert done.exit_code == 1
    assert "change --dp" in done.output
