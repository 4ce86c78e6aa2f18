"""Folding changes no answer, whatever is asked, and says which ranks stood for all."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.chakra import without_our_attributes
from collectives.libraries.planners import parse_rule
from experiments.baseline import Settings, baseline
from experiments.cli.main import app
from experiments.costing.collective_costs import by_model
from experiments.evaluate.design_points import DesignPoints
from experiments.points.utility import utility
from experiments.scenario.change import Change
from experiments.scenario.scenario import Scenario
from helpers.replicated import replicated, with_straggler
from helpers.strategies import workloads
from helpers.synthetic_jobs import generated, planned
from helpers.tries import few
from simulator.analytic.contraction import contract
from simulator.analytic.longest_path import makespans
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.folding.fold import most_alike
from simulator.support.errors import DeadlockError
from simulator.workload import What
from topologies import changed, load_cluster
from traces.chakra.write import write_chakra
from traces.generate.kernel_times import KernelRates
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import plan_text
from traces.generate.run import Training

EIGHT = load_cluster("dgx-a100")
NICS = changed(EIGHT, "scale_out.nics_per_node", 0.5)
NCCL = changed(NICS, "scale_up.size", 0.5).model_copy(update={"ranks_per_node": 4})
CLUSTER = NCCL.model_copy(update={"library": None})
"""Nodes of four; without a library all calls are rings, of which every node has the like part."""
SAME = {"rel": 1e-9, "abs": 1e-15}
COLUMNS = ("start", "end", "call_start", "call_end", "link_bytes")


def assert_same(scenario):
    """Simulate all ranks, and those that stand for all; return what was folded."""
    found = replace(scenario, fold=True).run()
    whole = replace(scenario, fold=False).run()
    for column in COLUMNS:
        expected = getattr(whole, column)
        assert getattr(found, column) == pytest.approx(expected, nan_ok=True, **SAME), column
    assert found.workload.duration == pytest.approx(whole.workload.duration, **SAME)
    assert found.engine == whole.engine
    assert whole.folded == ""
    return found.folded


def labelled(workload):
    """Give every group a label of its own, as comm_group.json does."""
    groups = enumerate(workload.groups)
    return replace(
        workload, groups=tuple(replace(group, label=str(number)) for number, group in groups)
    )


jobs = replicated(stages=2, per_node=4).map(lambda case: labelled(case[0]))
engines = st.sampled_from(["flow", "analytic"])


@given(workload=jobs, engine=engines, slow_down=st.sampled_from([0.0, 0.3]))
def test_a_replicated_job_has_its_times_from_half_of_its_ranks_at_most(workload, engine, slow_down):
    folded = assert_same(Scenario(workload, CLUSTER, engine, slow_down=slow_down))
    if folded.startswith("nothing is folded"):
        return  # a ring through nodes that differ tells all of them apart by their neighbours
    kept, everyone = int(folded.split()[0]), len(workload.ranks)
    assert folded.startswith(f"{kept} of {everyone} ranks are simulated")
    assert kept <= everyone / 2


@few(6)
@given(data=st.data(), workload=jobs, extra=st.sampled_from([1e-9, 1e-3]), engine=engines)
def test_stragglers_and_rules_for_single_groups_are_not_folded_away(data, workload, extra, engine):
    late = data.draw(st.integers(0, len(workload) - 1))
    label = data.draw(st.integers(0, max(0, len(workload.groups) - 1)))
    rules = (parse_rule(f"all_reduce@{label}=tree"), parse_rule("all_gather=ring"))
    slow_down = data.draw(st.sampled_from([0.0, 0.5]))
    for one, forced in ((with_straggler(workload, late, extra), ()), (workload, rules)):
        cluster = data.draw(st.sampled_from([CLUSTER, NCCL]))
        assert_same(Scenario(one, cluster, engine, forced=forced, slow_down=slow_down))


@given(workload=workloads(8), engine=engines)
def test_any_workload_keeps_its_times(workload, engine):
    assert_same(Scenario(workload, NCCL, engine))


def test_a_rule_for_one_group_keeps_its_ranks():
    scenario = Scenario(sixteen_alike(), CLUSTER, forced=(parse_rule("all_reduce@3=tree"),))
    assert assert_same(scenario).startswith("5 of 16 ranks are simulated, on 5 of 16 parts")
    for_all = replace(scenario, forced=(parse_rule("all_reduce=tree"),))
    assert assert_same(for_all).startswith("4 of 16 ranks are simulated, on 4 of 16 parts")


def test_calls_of_unknown_size_are_alike_if_they_took_as_long():
    alike, slower = (
        sixteen_alike(transfers=[1e-3] * 4),
        sixteen_alike(transfers=[1e-3] * 3 + [2e-3]),
    )
    assert assert_same(Scenario(alike, CLUSTER)).startswith("1 of 16 ranks are simulated")
    assert assert_same(Scenario(slower, CLUSTER)).startswith("2 of 16 ranks are simulated")


def sixteen_alike(late=0.0, transfers=None):
    """Four nodes, an all-reduce in each, of unknown size if it took so long; rank 5 may be late."""
    builder = WorkloadBuilder(job_ranks=16)
    for node in range(4):
        members = tuple(range(4 * node, 4 * node + 4))
        size = {"size": 1e8} if transfers is None else {"size": np.nan, "transfer": transfers[node]}
        call = builder.call(CallRow("all_reduce", builder.group(members, str(node)), 0, **size))
        for rank in members:
            wait = late if rank == 5 else 0.0
            kernel = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=1e-3 + wait)
            joined = builder.op(
                What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call
            )
            builder.edge(kernel, joined)
    return builder.build()


def test_by_itself_it_folds_where_four_nodes_or_more_look_alike():
    alike, late = sixteen_alike(), sixteen_alike(late=1e-6)
    nodes = np.arange(16) // 4
    assert (most_alike(alike, nodes), most_alike(late, nodes)) == (4.0, 2.0)
    scenario = Scenario(alike, CLUSTER, fold=None)
    assert scenario.run().folded.startswith("1 of 16 ranks")
    two_of_a_kind = replace(scenario, workload=late)
    assert two_of_a_kind.run().folded == (
        "nothing is folded: too few ranks are alike for folding to pay off"
    )
    without_a_clock = replace(scenario, engine="analytic")
    assert without_a_clock.run().folded == (
        "nothing is folded: engine 'analytic' is sooner without"
    )
    for one in (scenario, without_a_clock):
        assert replace(one, fold=True).run().folded.startswith("1 of 16 ranks")
    assert replace(two_of_a_kind, fold=True).run().folded.startswith("5 of 16 ranks")


def test_the_engine_of_single_transfers_says_that_it_cannot():
    timeline = Scenario(sixteen_alike(), CLUSTER, "simpy", fold=True).run()
    assert timeline.folded == ("nothing is folded: engine 'simpy' simulates every transfer")


def test_who_waits_for_ever_is_named_as_without_folding():
    builder = WorkloadBuilder(job_ranks=16)
    for node in range(4):
        group = builder.group(tuple(range(4 * node, 4 * node + 4)))
        calls = [builder.call(CallRow("all_reduce", group, number, 8.0)) for number in (0, 1)]
        for rank in range(4 * node, 4 * node + 4):
            order = calls if rank % 4 else calls[::-1]
            ops = [
                builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
                for call in order
            ]
            builder.edge(*ops)
    scenario = Scenario(builder.build(), CLUSTER)
    with pytest.raises(DeadlockError) as whole:
        scenario.run()
    with pytest.raises(DeadlockError) as folded:
        replace(scenario, fold=True).run()
    assert str(folded.value) == str(whole.value)


@pytest.fixture(scope="module")
def chakra(tmp_path_factory):
    """A generated step as files of another tool: 4 nodes, groups named by numbers."""
    folder = tmp_path_factory.mktemp("chakra")
    workload = generated(
        load_model("llama-3.1-8b"),
        Parallelism(tp=8, dp=4),
        Training(micro_batch=1, global_batch=4, sequence=512),
        KernelRates(peak=312e12, memory_bandwidth=2e12),
    )
    write_chakra(workload, folder)
    without_our_attributes(folder)
    return folder


def test_chakra_files_are_folded_by_themselves(chakra):
    base = baseline(chakra, EIGHT)
    assert base.timeline.folded.startswith("1 of 32 ranks are simulated, on 1 of 32 parts")
    assert base.answer()["folded"] == base.timeline.folded
    assert_same(base.scenario)


@pytest.mark.parametrize("options", [{}, {"slow_down": "0.2"}, {"engine": "analytic"}])
def test_questions_are_answered_alike(chakra, options):
    asked = [
        utility(
            chakra,
            EIGHT,
            resources=["compute", "scale_out.bandwidth"],
            settings=Settings(fold=fold, **options),
        )
        for fold in (None, False)
    ]
    folded, whole = ({row.resource: row for row in report.utilities} for report in asked)
    for resource, row in whole.items():
        assert folded[resource].step_s == pytest.approx(row.step_s, **SAME)
        assert folded[resource].model_bound_pct == pytest.approx(row.model_bound_pct)


@pytest.mark.parametrize(
    ("option", "said"),
    [((), "1 of 32 ranks"), (("--fold",), "1 of 32 ranks"), (("--no-fold",), "")],
)
def test_the_command_says_what_was_folded(chakra, option, said):
    command = ["replay", str(chakra), "--cluster", "dgx-a100", *option]
    table = CliRunner().invoke(app, [*command, "--verbose"])
    assert table.exit_code == 0
    assert ("ranks are simulated" in table.output) == bool(said)
    record = json.loads(CliRunner().invoke(app, [*command, "--output", "json"]).stdout)
    assert record["folded"].startswith(said)
    assert bool(record["folded"]) == bool(said)


def test_a_table_says_why_nothing_was_folded_if_that_was_asked_for():
    command = ["replay", "traces/samples/gpu-dp2-tp4", "--cluster", "dgx-a100"]
    for option, said in ((), False), (("--fold",), True):
        table = CliRunner().invoke(app, [*command, *option, "--verbose"])
        assert ("nothing is folded: no two nodes do the same" in table.output) == said


STEPS = {
    "nodes": ("qwen3-4b", {"tp": 8, "dp": 2, "pp": 2}, None, EIGHT),
    "a replica": ("qwen3-4b", {"tp": 8, "dp": 2, "pp": 4}, 1, EIGHT),
    "replicas in a node": ("qwen3-4b", {"tp": 4, "dp": 4, "pp": 2, "zero": 1}, 2, EIGHT),
    "contexts": ("qwen3-4b", {"tp": 4, "cp": 2, "dp": 2}, None, EIGHT),
    "experts": (
        "mixtral-8x7b",
        {"tp": 2, "dp": 8, "ep": 4, "sequence_parallel": True},
        None,
        load_cluster("hgx-h100"),
    ),
    "a NIC for two": ("qwen3-4b", {"tp": 8, "dp": 2}, None, load_cluster("polaris")),
    "a domain of many": ("qwen3-4b", {"tp": 8, "dp": 2}, None, load_cluster("gb200-nvl72")),
    "a torus": ("qwen3-4b", {"tp": 4, "dp": 2}, None, "torus:4x2, 50 GB/s, 1 us"),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"engine": "analytic"}, marks=pytest.mark.slow),
        pytest.param({"what_ifs": ("rank 1 compute x0.5",)}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=[pytest.mark.slow] if step in ("contexts", "nodes") else [])
        for step in STEPS
    ],
)
def test_utilities_of_a_plan_are_those_of_all_its_ranks_to_the_last_bit(tmp_path, step, options):
    model, degrees, replicas, cluster = STEPS[step]
    p = Parallelism(**degrees)
    run = Training(micro_batch=1, global_batch=2 * p.dp, sequence=512)
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(planned(load_model(model), p, run, replicas=replicas)))
    whole, folded = (
        utility(path, cluster, fold=fold, **options).answer() for fold in (False, True)
    )
    as_told = {"command", "settings", "folded"}
    assert whole.keys() == folded.keys() > as_told
    for part in whole.keys() - as_told:
        assert json.dumps(folded[part], default=str) == json.dumps(whole[part], default=str), part


def test_points_are_passed_over_a_few_ranks_unless_their_calls_cost_something_else():
    scenario = Scenario(sixteen_alike(), CLUSTER, fold=True)
    workload, design = scenario.workload, DesignPoints(scenario)
    (costed,) = design.costed([Change()])
    points = costed.of_step()
    few = design.graph(workload, points, ())
    assert (few.ops, few.like.tolist()) == (2, [0, 0, 0, 0])
    late = replace(points, factor=np.array([1.0, 1.0, 1.0, 1.5]))
    every = design.graph(workload, late, ())
    assert (every.ops, every.like) == (len(workload), None)
    assert makespans(few, points) == makespans(contract(workload, ()), points)
    assert makespans(every, late) > makespans(every, points)


def test_a_plan_without_measured_calls_is_simulated_once_before_its_answer(monkeypatch):
    workload = generated(
        load_model("qwen3-4b"),
        Parallelism(tp=4, dp=2),
        Training(micro_batch=1, global_batch=2, sequence=512),
        replicas=1,
    )
    monkeypatch.setattr(Scenario, "run", lambda *_: pytest.fail("was simulated"))
    costed = by_model(Scenario(workload, EIGHT))
    assert not costed.workload.calls.late.any()
