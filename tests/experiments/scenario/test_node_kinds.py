"""Steps on clusters whose nodes differ: closed forms, resources of a kind, rates of each rank."""

from dataclasses import replace

import numpy as np
import pytest

from collectives.libraries.planners import parse_rule
from collectives.machine import NodeFigures, slowest
from collectives.traffic import least_time
from experiments.baseline import Settings, baseline
from experiments.evaluate.design_points import DesignPoints
from experiments.evaluate.generated_steps import representatives, with_own_rates
from experiments.points.sweep import curve, sweep
from experiments.points.utility import utility
from experiments.priors.doubts import touched
from experiments.questions.generate import generate, plan_on
from experiments.questions.metrics import ports
from experiments.scenario.change import Change
from experiments.scenario.language import parse_change
from experiments.scenario.resources import check_resource
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import one_call
from helpers.calls import call_of
from helpers.experiments_jobs import write_job
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.symmetry import symmetry
from simulator.engine.simulate import ENGINES
from simulator.support.errors import WhatIfError, WorkloadError
from simulator.workload import What
from topologies import build, parse_cluster
from traces.generate.generate import generate as generate_step
from traces.generate.parallelism import Parallelism
from traces.generate.plan import RankRates, plan_text, read_plan
from traces.generate.run import Training

FILE = """\
name: two
accelerator: {name: new, generation: hopper, peak: {bf16: 900 TFLOP/s}, memory_bandwidth: 3 TB/s}
ranks_per_node: PER
nodes: 8
node_kinds:
  fast: {count: 4}
  slow: {count: 4, SLOW}
scale_up: {topology: switch, size: PER, bandwidth: 100 GB/s, latency: 1 us}
scale_out: {topology: switch, nics_per_node: PER, bandwidth: 20 GB/s, latency: 4 us}
library: {name: none}
"""
CHIP = (
    "accelerator: {name: old, generation: ampere, peak: {bf16: 300 TFLOP/s}, "
    "memory_bandwidth: 1.5 TB/s}"
)
SIZE = 64e6
same = pytest.approx


def two(slow="scale_out: {bandwidth: 5 GB/s}", per_node=1, library="none"):
    text = FILE.replace("SLOW", slow).replace("PER", str(per_node))
    return parse_cluster(text.replace("none", library), source="two.yaml")


def ring(cluster, ranks, engine="flow", **options):
    forced = (parse_rule("all_reduce=ring"),)
    workload = one_call("all_reduce", ranks, SIZE)
    return Scenario(workload, cluster, engine, forced=forced, **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("ranks", "bandwidth"), [(4, 20e9), (5, 5e9), (8, 5e9)])
def test_a_ring_is_paced_by_the_slowest_kind_that_it_passes(engine, ranks, bandwidth):
    step = ring(two(), ranks, engine).run().makespan
    assert step == same(2 * (ranks - 1) * (4e-6 + SIZE / ranks / bandwidth))


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_of_one_kind_see_nothing_of_the_other(engine):
    alike = two("ranks_per_node: 1")
    assert ring(two(), 4, engine).run().makespan == ring(alike, 4, engine).run().makespan


def test_twice_a_kind_is_twice_its_links_and_no_others():
    slow = ring(two(), 8)
    done = parse_change("scale_out@slow.bandwidth x4").apply(slow)
    assert done.note == "5 GB/s → 20 GB/s"
    assert done.scenario.run().makespan == same(ring(two("ranks_per_node: 1"), 8).run().makespan)
    assert touched(slow, done.scenario) == ("scale_out.bandwidth",)
    nothing = parse_change("scale_out@fast.bandwidth x4").apply(slow).scenario
    assert nothing.run().makespan == same(slow.run().makespan)
    both = parse_change("scale_out.bandwidth x2").apply(slow)
    assert both.note == "20 GB/s (fast), 5 GB/s (slow) → 40 GB/s (fast), 10 GB/s (slow)"
    assert both.scenario.run().makespan == same(2 * 7 * (4e-6 + SIZE / 8 / 10e9))


def test_design_points_of_kinds_are_the_what_ifs_one_by_one():
    slow = ring(two(per_node=4), 32, "analytic")
    texts = [
        "scale_out@slow.bandwidth x3",
        "scale_out.bandwidth x3",
        "scale_out.bandwidth x3 and nic 1 of node 6 x0.5",
        "scale_up@fast.latency x9",
    ]
    changes = [parse_change(text) for text in texts]
    together = DesignPoints(slow).steps([Change(), *changes])
    assert together[1:] == same([one.apply(slow).scenario.run().makespan for one in changes])


def test_calls_of_two_kinds_with_like_links_are_costed_apart():
    builder = WorkloadBuilder(job_ranks=32)
    for node in (0, 7):
        ranks = tuple(range(4 * node, 4 * node + 4))
        group = builder.group(ranks)
        for number in range(20):
            call = builder.call(CallRow("all_reduce", group, number, 1e4 * (number + 1)))
            for rank in ranks:
                what = What.COLLECTIVE
                builder.op(what, rank=rank, lane="s", name="call", duration=0.0, call=call)
    both = Scenario(builder.build(), two(CHIP, per_node=4, library="nccl"), "analytic")
    assert DesignPoints(both).steps([Change()]) == same([both.run().makespan], rel=1e-12)
    ends = both.run().call_end
    assert ends[-1] > ends[19]  # the older generation takes longer


@pytest.mark.parametrize("slow", ["scale_out: {bandwidth: 5 GB/s}", CHIP])
def test_folding_is_exact_where_nodes_differ(slow):
    cluster = two(slow, per_node=4, library="nccl")
    alone = ring(cluster, 32).run().makespan
    assert ring(cluster, 32, fold=True).run().makespan == alone


def test_nodes_of_kinds_that_differ_only_inside_are_not_alike():
    plain = two("ranks_per_node: 4", per_node=4).model_copy(update={"node_kinds": {}})
    kinds, alike = (build(one, 32) for one in (two(CHIP, per_node=4), plain))
    assert sorted(kinds.bandwidth) == sorted(alike.bandwidth)
    assert symmetry(alike).shape.tolist() == [0] * 8
    assert symmetry(kinds).shape.tolist() == [0] * 4 + [1] * 4


def test_a_library_takes_the_figures_of_the_slowest_of_the_group():
    found = slowest([NodeFigures("hopper", "intel", True, 1e-6), NodeFigures("ampere", "amd")])
    assert found == NodeFigures("ampere", "amd", False, 1e-6)
    cluster = two(CHIP, per_node=4, library="nccl")
    machine = ring(cluster, 32).site.machine
    assert [machine.among(ranks).generation for ranks in (range(16), range(16, 32), (15, 16))] == [
        "hopper",
        "ampere",
        "ampere",
    ]
    assert machine.among(range(4)) is machine.among(range(8))
    ampere = two("ranks_per_node: 4", per_node=4, library="nccl")
    ampere = ampere.model_copy(update={"accelerator": cluster.node_kinds["slow"].accelerator})
    mixed, plain = (
        Scenario(one_call("all_reduce", 32, SIZE), one).run().makespan for one in (cluster, ampere)
    )
    assert mixed == plain  # the links are alike: only the library's constants differ
    hopper = two("ranks_per_node: 4", per_node=4, library="nccl")
    assert Scenario(one_call("all_reduce", 32, SIZE), hopper).run().makespan != mixed


def test_questions_take_a_resource_of_one_kind(tmp_path):
    job = write_job(tmp_path / "job", 8)
    cluster = two()
    assert check_resource("scale-out@slow.bandwidth") == "scale_out@slow.bandwidth"
    with pytest.raises(WhatIfError, match="is not a resource"):
        check_resource("scale_aut@slow.bandwidth")
    swept = sweep(job, cluster, "scale_out@slow.bandwidth", factors=[1, 4])
    assert [point.value for point in swept.points] == ["5 GB/s", "20 GB/s"]
    assert swept.points[1].step_s < swept.points[0].step_s
    with pytest.raises(WhatIfError, match="all kinds of node, not scale_out@slow"):
        curve(job, cluster, "scale_out@slow.bandwidth")
    asked = ["scale_out@slow.bandwidth", "scale_out@fast.bandwidth", "scale_out.bandwidth"]
    found = {row.resource: row for row in utility(job, cluster, resources=asked).utilities}
    assert found["scale_out@slow.bandwidth"].utility_pct > 0
    assert found["scale_out@fast.bandwidth"].utility_pct == same(0.0, abs=1e-6)
    assert found["scale_out.bandwidth"].baseline == "20 GB/s (fast), 5 GB/s (slow)"
    for row in found.values():
        if row.bound_pct is not None:
            assert row.utility_pct <= row.bound_pct + 1e-9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale_out@slo.bandwidth x2", "no nodes of kind 'slo'; did you mean slow? it has fast"),
        ("scale_out.bandwidth = 400 Gbit/s", "write scale_out@fast.bandwidth = … and scale_out@sl"),
        ("scale_aut@slow.bandwidth x2", "'scale_aut' is not a kind of call"),
        ("scale_out@slow.bandwith x2", "did you mean 'scale_out.bandwidth'"),
        ("accelerator@slo hgx-h100", "no nodes of kind 'slo'; did you mean slow?"),
    ],
)
def test_what_no_kind_has_is_refused(text, message):
    scenario = _generated(two(CHIP)) if "accelerator" in text else ring(two(), 8)
    with pytest.raises(WhatIfError) as error:
        parse_change(text).apply(scenario)
    assert message in str(error.value)


def _plan(cluster):
    run = Training(micro_batch=1, global_batch=8, sequence=1024)
    return plan_on(cluster, model="llama-3.1-8b", parallelism=Parallelism(dp=8), run=run)


def _generated(cluster):
    plan = with_own_rates(_plan(cluster), cluster)
    return Scenario(generate_step(plan)[0], cluster, "analytic")


def kernels(workload, rank):
    mine = (workload.what == What.COMPUTE) & (workload.rank == rank)
    return workload.duration[mine]


def test_every_rank_of_a_generated_step_computes_at_its_own_rates():
    cluster = two(CHIP)
    plan = with_own_rates(_plan(cluster), cluster)
    assert [(one.first, one.last) for one in plan.others] == [(4, 7)]
    workload = generate_step(plan)[0]
    old = two("ranks_per_node: 1").model_copy(
        update={"accelerator": cluster.node_kinds["slow"].accelerator}
    )
    fast, slow = (generate_step(_plan(one))[0] for one in (cluster, old))
    for rank in range(8):
        theirs = fast if rank < 4 else slow
        assert np.array_equal(kernels(workload, rank), kernels(theirs, rank))
    assert plan.peak == 600e12
    report = generate(_plan(cluster), cluster, settings=Settings(engine="analytic"))
    assert report.plan == plan
    assert "those of ranks 4-7 of 80% of 300 TFLOP/s" in " ".join(plan.assumptions)


def test_replicas_stand_for_no_ranks_with_other_accelerators():
    cluster = two(CHIP)
    plan = with_own_rates(_plan(cluster), cluster)
    found = representatives(plan, cluster)
    assert found.folded == "nothing is folded: its nodes differ"
    assert np.array_equal(found.workload.duration, generate_step(plan)[0].duration)


def test_a_plan_says_in_its_file_which_ranks_have_other_accelerators(tmp_path):
    cluster = two(CHIP)
    plan = with_own_rates(_plan(cluster), cluster)
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(plan))
    assert read_plan(path) == plan
    assert with_own_rates(plan, cluster) is plan
    with pytest.raises(WorkloadError, match="ranks 6-9 are no ranks of the job"):
        type(plan)(**{**_fields(plan), "others": (RankRates(6, 9, plan.accelerator),)})
    twice = (RankRates(0, 3, plan.accelerator), RankRates(3, 4, plan.accelerator))
    with pytest.raises(WorkloadError, match="ranks 3-4 are given twice"):
        type(plan)(**{**_fields(plan), "others": twice})


def _fields(plan):
    return {name: getattr(plan, name) for name in ("model", "parallelism", "run", "accelerator")}


def test_another_accelerator_replaces_each_ranks_own():
    cluster = two(CHIP)
    mixed = _generated(cluster)
    text = "accelerator@slow dgx-a100"
    done = parse_change(text).apply(mixed)
    assert done.note.startswith("old → A100-SXM4-80GB: ")
    for rank in range(4):
        assert np.array_equal(kernels(done.scenario.workload, rank), kernels(mixed.workload, rank))
    for rank in range(4, 8):
        assert (kernels(done.scenario.workload, rank) < kernels(mixed.workload, rank)).all()
    everyone = parse_change("accelerator dgx-a100")
    both = everyone.apply(mixed).scenario.workload
    old = two("ranks_per_node: 1").model_copy(
        update={"accelerator": cluster.node_kinds["slow"].accelerator, "node_kinds": {}}
    )
    alone = everyone.apply(_generated(old)).scenario.workload
    assert np.array_equal(kernels(both, 7), kernels(alone, 7))
    fast = everyone.apply(_generated(two("ranks_per_node: 1"))).scenario.workload
    assert np.array_equal(kernels(both, 0), kernels(fast, 0))


def test_a_recorded_trace_keeps_its_durations(tmp_path):
    job = write_job(tmp_path / "job", 8)
    one, other = (baseline(job, cluster).scenario for cluster in (two(), two(CHIP)))
    assert np.array_equal(one.workload.duration, other.workload.duration)


def test_ports_are_those_of_each_ranks_node():
    one = ports(two(per_node=4), 32)
    assert one.nic_bandwidth == [20e9] * 16 + [5e9] * 16
    assert one.node == [rank // 4 for rank in range(32)]
    assert one.domain == one.node
    alike = ports(two("ranks_per_node: 4", per_node=4), 32)
    plain = ports(two(per_node=4).model_copy(update={"node_kinds": {}}), 32)
    calls = [call_of("all_reduce", ranks, SIZE) for ranks in (range(16), range(16, 32), range(32))]
    fast, slow, both = (least_time(call, one) for call in calls)
    assert slow == same(4 * fast)
    assert both >= fast
    for call in calls:
        assert least_time(call, alike) == same(least_time(call, plain))


def test_whose_durations_a_trace_does_not_tell_is_said(tmp_path):
    job = write_job(tmp_path / "job", 8)
    chips = CHIP.replace("old", "A100-SXM4-80GB")
    mixed = parse_cluster(
        FILE.replace("SLOW", chips).replace("PER", "1").replace("name: new", "name: H100"),
        source="two.yaml",
    )
    base = baseline(job, mixed)
    for device, said in (
        (
            "NVIDIA H100 80GB HBM3",
            "the trace names NVIDIA H100 80GB HBM3 only: on nodes of kind slow too, kernels and",
        ),
        ("NVIDIA V100-SXM2-16GB", "recorded on NVIDIA V100-SXM2-16GB, not on H100"),
    ):
        recorded = replace(base, loaded=replace(base.loaded, accelerator=device))
        assert recorded.warnings[0].startswith(said)
