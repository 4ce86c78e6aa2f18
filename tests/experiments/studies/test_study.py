"""Studies as a whole: points are what other questions say of them, whatever is kept where."""

import itertools
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from collectives.libraries.planners import parse_rule
from experiments.baseline import baseline
from experiments.points.compare import compare
from experiments.questions.generate import generate
from experiments.scenario.language import parse_change
from experiments.scenario.resources import improve
from experiments.studies.declaration import declare
from experiments.studies.sites import Sites
from experiments.studies.study import read_workloads, study
from helpers.studies import PLAN, TRACE, links
from simulator.support.errors import StudyError
from simulator.support.quantities import parse_quantity
from simulator.workload import What
from topologies import changed, load_cluster
from topologies.cluster.bill import bill_of
from traces.generate.memory import fullest, memory_of
from traces.generate.plan import read_plan


def column(report, name):
    return report.explored.results.column(name)


def test_points_are_those_of_scenarios_changed_one_by_one():
    report = study(links(steps=3))
    base = baseline(TRACE, "dgx-a100", engine="analytic").scenario
    bandwidths, latencies = column(report, "scale_up.bandwidth"), column(report, "scale_up.latency")
    for step, bandwidth, latency in zip(
        column(report, "step_s"), bandwidths, latencies, strict=True
    ):
        scenario = improve(base, "scale_up.bandwidth", float(bandwidth / 300e9))
        scenario = improve(scenario, "scale_up.latency", float(0.6e-6 / latency))
        assert step == pytest.approx(scenario.run().makespan, rel=1e-9)


def test_factors_what_ifs_and_algorithms_are_those_of_other_questions():
    space = {
        "compute": [1, 2],
        "what_if": ["none", "all_reduce bytes x0.5"],
        "algorithm": ["none", "all_reduce=ring"],
    }
    report = study(links(space=space, objectives={"step_s": "min"}))
    base = baseline(TRACE, "dgx-a100", engine="analytic").scenario
    for number, (compute, change, rule) in enumerate(itertools.product(*space.values())):
        forced = () if rule == "none" else (parse_rule(rule),)
        scenario = improve(replace(base, forced=forced), "compute", compute)
        if change != "none":
            scenario = parse_change(change).apply(scenario).scenario
        assert column(report, "step_s")[number] == pytest.approx(scenario.run().makespan, rel=1e-9)
        assert report.explored.results.values(number)["what_if"] == change


def test_an_objective_may_be_computed_from_figures():
    """As CCL-Search weighs a step against what it takes: w T0/T + (1 - w) N0/N."""
    formula = "0.7 * 27 ms / step_s + 0.3 * 300 GB/s / scale_up.bandwidth"
    report = study(links(steps=3, objectives={"score": {"max": formula}}))
    step, bandwidth = column(report, "step_s"), column(report, "scale_up.bandwidth")
    scores = 0.7 * 27e-3 / step + 0.3 * 300e9 / bandwidth
    assert column(report, "score") == pytest.approx(scores, rel=1e-12)
    assert list(report.explored.front) == [int(np.argmax(scores))]
    assert f"{scores.max():.6g}" in report.document().headline
    searched = study(
        links(
            objectives={"score": {"max": formula}},
            search={"method": "random", "trials": 4, "seed": 1},
        )
    )
    assert len(column(searched, "score")) == 4


def test_a_point_where_a_formula_divides_by_nothing_is_refused():
    objectives = {"score": {"min": "step_s / (scale_up.size - 8)"}}
    report = study(links(space={"scale_up.size": [4, 8]}, objectives=objectives))
    assert report.explored.results.refused == ["", "score is not a number here: it divides by 0"]


def test_clusters_and_topologies_are_those_of_compare():
    report = study(
        links(
            space={"cluster": ["dgx-a100", "hgx-h100"], "scale_up.topology": ["switch", "ring"]},
            objectives={"step_s": "min"},
        )
    )
    expected = compare(
        TRACE, ["dgx-a100", "hgx-h100"], topologies=["scale_up=ring"], engine="analytic"
    )
    steps = column(report, "step_s")
    assert steps[0] == pytest.approx(expected.points[0].step_s, rel=1e-9)
    assert steps[2] == pytest.approx(expected.points[1].step_s, rel=1e-9)
    assert steps[1] == pytest.approx(expected.points[2].step_s, rel=1e-9)


def test_plans_are_generated_for_each_point(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    report = study(
        {
            "name": "plans",
            "workloads": [{"plan": str(path), "ignore_memory": True}],
            "cluster": "hgx-h100",
            "space": {"plan.tp": [1, 2, 3], "plan.gpus": [4, 8], "plan.zero": [0, 1]},
            "constraints": ["gpus == 8"],
            "objectives": {"tokens_per_s": "max"},
        }
    )
    results, plan = report.explored.results, read_plan(path)
    refused = np.array(results.refused)
    values = [results.values(number) for number in range(len(results))]
    assert len(values) == 12
    for number, point in enumerate(values):
        if point["plan.tp"] == 3:
            assert "not a multiple of tp 3" in refused[number]
        elif point["plan.gpus"] == 4:
            assert refused[number] == "gpus == 8"
            assert np.isnan(column(report, "step_s")[number])
        else:
            tp, zero = int(point["plan.tp"]), int(point["plan.zero"])
            p = replace(plan.parallelism, tp=tp, dp=8 // tp, zero=zero)
            alone = generate(replace(plan, parallelism=p), "hgx-h100", engine="analytic")
            step = alone.base.timeline.makespan
            assert column(report, "step_s")[number] == pytest.approx(step, rel=1e-9)
            assert column(report, "tokens_per_s")[number] == pytest.approx(8 * 1024 / step)
    assert {one["reason"] for one in report.refused} >= {"gpus == 8"}


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("llama-3.2-1b", "{dp: 8, zero: 3, dp_replicate: 2}"),
        ("qwen3-30b-a3b", "{tp: 4, dp: 2, ep: 8, etp: 1, sequence_parallel: true}"),
    ],
)
def test_replicas_fill_the_accelerators_however_a_plan_divides_experts_and_states(
    tmp_path, model, degrees
):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("llama-3.1-8b", model).replace("{tp: 2, dp: 2}", degrees))
    fields = {
        "name": "replicas",
        "workloads": [{"plan": str(path), "ignore_memory": True}],
        "cluster": "hgx-h100",
        "space": {"plan.gpus": [8]},
        "objectives": {"step_s": "min"},
        "confirm": "none",
    }
    report = study(fields)
    assert report.explored.results.refused == [""]
    alone = generate(read_plan(path), "hgx-h100", engine="analytic").base.timeline.makespan
    assert column(report, "step_s") == pytest.approx([alone], rel=1e-9)


def test_a_plan_that_no_engine_trains_is_refused(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    fields = {
        "name": "frameworks",
        "workloads": [{"plan": str(path), "ignore_memory": True}],
        "cluster": "hgx-h100",
        "space": {"plan.framework": ["megatron", "vllm"]},
        "objectives": {"step_s": "min"},
    }
    refused = study(fields).explored.results.refused
    assert [bool(reason) for reason in refused] == [False, True]
    assert "vllm trains no model" in refused[1]


def test_a_plan_that_does_not_fit_into_memory_is_no_design(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    fields = {
        "name": "memory",
        "workloads": [{"plan": str(path)}],
        "cluster": "hgx-h100",
        "space": {"plan.tp": [1, 8], "plan.dp": [1]},
    }
    results = study(fields).explored.results
    assert results.refused == ["memory fits", ""]
    for number, tp in enumerate((1, 8)):
        p = replace(read_plan(path).parallelism, tp=tp, dp=1)
        needed = fullest(memory_of(replace(read_plan(path), parallelism=p))).total
        assert results.column("memory")[number] == pytest.approx(needed, rel=1e-6)
    fields["workloads"] = [{"plan": str(path), "ignore_memory": True}]
    assert study(fields).explored.results.refused == ["", ""]


def test_cost_power_and_energy_are_those_of_the_bill():
    report = study(
        links(
            space={
                "nodes": [2],
                "scale_out.bandwidth": ["12.5 GB/s", "25 GB/s", "50 GB/s"],
                "compute": [1, 2],
            },
            workloads=[{"trace": TRACE, "tokens": 1000}],
            constraints=["power <= 1 MW"],
            objectives={"cost": "min", "energy_per_step": "min", "energy_per_token": "min"},
        )
    )
    base = load_cluster("dgx-a100")
    scenario = baseline(TRACE, "dgx-a100", engine="analytic", nodes=2).scenario
    kernels = scenario.workload.duration[scenario.workload.part == What.COMPUTE].sum() / 8
    for number, (factor, compute) in enumerate(itertools.product((0.5, 1, 2), (1, 2))):
        bill = bill_of(changed(base, "scale_out.bandwidth", factor), 8, 2)
        assert column(report, "cost")[number] == pytest.approx(bill.cost)
        assert column(report, "power")[number] == pytest.approx(bill.active_power)
        step = column(report, "step_s")[number]
        # Half of the accelerators of the two nodes have no rank.
        energy = bill.energy(step, {"accelerator": min(1.0, kernels / compute / step) / 2})
        assert column(report, "energy_per_step")[number] == pytest.approx(energy, rel=0.02)
        assert column(report, "energy_per_token")[number] == pytest.approx(
            column(report, "energy_per_step")[number] / 1000
        )


def test_weights_are_shares_of_steps(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    space = {"scale_up.bandwidth": ["150 GB/s", "300 GB/s"]}
    both = [{"trace": TRACE, "weight": 3, "tokens": 100}, {"plan": str(path), "weight": 1}]
    one, other = (
        study(links(workloads=[entry], space=space, cluster="hgx-h100")) for entry in both
    )
    joined = study(links(workloads=both, space=space, cluster="hgx-h100"))
    expected = (3 * column(one, "step_s") + column(other, "step_s")) / 4
    assert column(joined, "step_s") == pytest.approx(expected, rel=1e-12)
    tokens = (3 * 100 + 8 * 1024) / 4
    assert column(joined, "tokens_per_s") == pytest.approx(tokens / expected, rel=1e-12)


def test_constraints_refuse_before_and_after_simulating():
    report = study(
        links(steps=4, constraints=["scale_up.bandwidth <= 800 GB/s", "step_s <= 28 ms"])
    )
    results = report.explored.results
    step, bandwidth = column(report, "step_s"), column(report, "scale_up.bandwidth")
    for number, why in enumerate(results.refused):
        if bandwidth[number] > 800e9 * (1 + 1e-9):
            assert why == "scale_up.bandwidth <= 800 GB/s"
            assert np.isnan(step[number])
        else:
            assert why == ("" if step[number] <= 28e-3 else "step_s <= 28 ms")
    assert report.explored.counts.computed == 12


def test_a_study_without_a_point_says_what_refused_them():
    with pytest.raises(
        StudyError, match="none of 4 points is feasible: refused are 4 by 'gpus == 7'"
    ):
        study(links(steps=2, constraints=["gpus == 7"]))


def test_tokens_of_a_trace_are_not_made_up():
    with pytest.raises(StudyError, match="tokens_per_s needs the tokens of a step of gpu-dp2"):
        study(links(steps=2, objectives={"tokens_per_s": "max"}))


def test_the_front_is_confirmed_by_another_engine():
    report = study(links(steps=2, confirm="flow"))
    for row in report.front:
        values = report.explored.results.values(row.point)
        base = baseline(TRACE, "dgx-a100", engine="flow").scenario
        scenario = improve(base, "scale_up.bandwidth", values["scale_up.bandwidth"] / 300e9)
        scenario = improve(scenario, "scale_up.latency", 0.6e-6 / values["scale_up.latency"])
        assert row.confirmed_step_s == pytest.approx(scenario.run().makespan, rel=1e-9)
        step = row.objectives["step_s"]
        assert row.longer_pct == pytest.approx(100 * (row.confirmed_step_s - step) / step)


def test_the_front_is_confirmed_unless_one_says_otherwise():
    usual = links(steps=2)
    del usual["confirm"]
    report = study(usual)
    assert report.answer()["confirmed_by"] == "flow"
    assert all(row.confirmed_step_s is not None for row in report.front)
    explicit = study({**usual, "confirm": "flow"})
    for one, other in zip(report.front, explicit.front, strict=True):
        assert one.confirmed_step_s == pytest.approx(other.confirmed_step_s, rel=1e-9)
    for fields in (
        {"confirm": "none"},
        {"settings": {"engine": "flow"}},
        {"objectives": {"cost": "min"}},
        {"search": {"method": "bisect", "over": "scale_up.bandwidth"}},
    ):
        assert study({**usual, **fields}).answer()["confirmed_by"] is None


def test_replicas_of_a_job_that_is_spread_are_on_as_many_more_nodes():
    """Four ranks on each of two nodes: twice the replicas are on four."""
    report = study(
        links(
            space={"nodes": [1, 2], "what_if": ["none", "replicas x2"]},
            objectives={"step_s": "min", "cost": "min"},
        )
    )
    assert report.explored.results.refused == [""] * 4
    assert column(report, "nodes").tolist() == [1, 2, 2, 4]
    assert column(report, "gpus").tolist() == [8, 16, 8, 16]


def read(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "results").iterdir())}


def test_results_are_the_same_bytes_whatever_the_workers_and_where_answers_are_from(tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "cached", "none")]
    plain = study(links(), folders[0], cache=False)
    several = study(links(), folders[1], workers=2)
    cached = study(links(), folders[2])
    counts = [one.explored.counts for one in (plain, several, cached)]
    assert [(one.computed, one.cached) for one in counts] == [(36, 0), (36, 0), (0, 36)]
    again = study(links(), folders[0], cache=False).explored.counts
    assert (again.computed, again.stored) == (0, 36)
    assert read(folders[0]) == read(folders[1]) == read(folders[2])
    table = pq.read_table(folders[0] / "results")
    assert table.num_rows == 36
    assert table.column("step_s").to_pylist() == column(plain, "step_s").tolist()
    assert table.schema.field("scale_up.bandwidth").metadata == {b"unit": b"B/s"}


def test_a_point_that_another_study_knows_is_not_computed_again():
    study(links(steps=3))
    wider = links(steps=3)
    wider["space"] = {
        "compute": [1, 2],
        "scale_up.bandwidth": ["75 GB/s", "150 GB/s", "2.4 TB/s"],
        "scale_up.latency": ["0.2 us", "4 us"],
    }
    report = study({**wider, "name": "wider", "objectives": {"step_s": "min"}})
    assert report.explored.counts.cached == 4  # two bandwidths, two latencies, as recorded
    fresh = study({**wider, "objectives": {"step_s": "min"}}, cache=False)
    assert column(report, "step_s").tolist() == column(fresh, "step_s").tolist()


def test_fabrics_are_sized_for_the_job():
    report = study(
        {
            "name": "fabrics",
            "workloads": [{"trace": TRACE}],
            "cluster": "dgx-a100",
            "space": {
                "nodes": [2],
                "scale_out.topology": [
                    "switch",
                    "leaf_spine",
                    "rail",
                    "fat_tree",
                    "torus",
                    {"dragonfly": {"routing": "minimal"}},
                ],
            },
        }
    )
    assert report.explored.results.refused == [""] * 6
    assert (column(report, "nodes") == 2).all()


def test_values_that_a_cluster_does_not_have_refuse_the_point():
    report = study(links(space={"scale_up.size": [3, 8, 16]}, objectives={"step_s": "min"}))
    assert [bool(why) for why in report.explored.results.refused] == [True, False, False]
    base = load_cluster("dgx-a100")
    assert base.scale_up.bandwidth == parse_quantity("300 GB/s", "B/s")


PRICED = {
    "scale_out.bandwidth": {"factors": [1, 2]},
    "scale_out.nics_per_node": [4, 8],
    "scale_out.topology": ["fat_tree", "rail"],
    "nodes": [2, 4],
    "cluster": ["dgx-a100", "hgx-h100"],
}
FREE = {
    "compute": [1, 2],
    "host": [1, 2],
    "scale_up.bandwidth": {"factors": [1, 2]},
    "scale_up.latency": {"factors": [1, 2]},
    "scale_up.topology": ["switch", "torus:2x4"],
    "pcie.bandwidth": {"factors": [1, 2]},
    "scale_out.latency": {"factors": [1, 2]},
    "scale_out.efficiency": [0.9, 0.95],
    "what_if": ["none", "compute x0.5"],
    "accelerator.memory_bandwidth": ["2 TB/s", "4 TB/s"],
}


def test_where_nothing_is_bought_nothing_is_free():
    space = {"compute": FREE["compute"]}
    assert study(links(space=space, objectives={"step_s": "min"})).free == []


@pytest.mark.parametrize("name", [*PRICED, *FREE])
def test_an_answer_names_what_has_no_price(name):
    space = {name: (PRICED | FREE)[name]}
    report = study(links(space=space, objectives={"step_s": "min", "cost": "min"}))
    costs = column(report, "cost")
    assert len(costs) == 2
    assert report.free == ([name] if costs[0] == costs[1] else [])
    assert report.free == ([name] if name in FREE else [])
    told = f"does not depend on {name}," in " ".join(report.document().lead)
    assert told == (name in FREE)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("workloads: [{trace: none}]\ncluster: dgx-a100", "line 2, column 14: workloads.0.trace"),
        ("workloads: [{plan: none}]\ncluster: dgx-a100", "line 2, column 14: workloads.0.plan"),
        ('workloads: [{trace: "a\\0b"}]\ncluster: dgx-a100', "0.trace: a\0b: there is no"),
        ("workloads: [{trace: .}]\ncluster: dgx-a10", "line 3, column 1: cluster: dgx-a10: no"),
        (
            "workloads: [{trace: ., cluster: none.yaml}]\ncluster: dgx-a100",
            "line 2, column 24: workloads.0.cluster: none.yaml: cannot be read",
        ),
    ],
)
def test_what_a_study_names_and_is_not_there_is_said_with_its_place(tmp_path, fields, said):
    path = tmp_path / "study.yaml"
    path.write_text(f"name: x\n{fields}\nspace: {{compute: [1, 2]}}\n")
    with pytest.raises(StudyError) as caught:
        study(path, tmp_path / "kept", cache=False)
    assert str(caught.value).startswith(f"{path}: line ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "kept").exists()


def test_fields_of_a_tier_are_those_of_the_topology_that_a_point_gives_it():
    """The catalogue's fabric has no routing; the one that takes its place has what is asked."""
    level = {"fat_tree": {"ports": 8}}
    space = {"scale_out.topology": ["fat_tree", level], "scale_out.routing": ["ecmp", "adaptive"]}
    fields = links(space=space, objectives={"step_s": "min"}, settings={"nodes": 2})
    declared = declare(fields)
    bases, _ = read_workloads(declared)
    sites = Sites(declared, bases)
    for number in range(2):
        for routing in ("ecmp", "adaptive"):
            values = {
                "scale_out.topology": declared.dimensions[0].levels[number],
                "scale_out.routing": routing,
            }
            fabric = sites.placed(0, values).cluster.scale_out
            assert (fabric.topology, fabric.routing) == ("fat_tree", routing)
            assert fabric.ports == (64, 8)[number]
    routed = study(fields)
    assert routed.explored.results.feasible.all()
    assert routed.explored.results.values(1)["scale_out.routing"] == "adaptive"


def test_a_field_that_a_topology_does_not_have_refuses_its_points_alone():
    space = {"scale_out.topology": ["switch", "rail"], "scale_out.oversubscription": [1, 2]}
    report = study(links(space=space, objectives={"step_s": "min"}, settings={"nodes": 2}))
    assert report.explored.results.feasible.tolist() == [False, False, True, True]
