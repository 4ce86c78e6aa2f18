"""Laws of utility, sweep, compare and replay; what each what-if changes and what it leaves."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from experiments.baseline import Settings, baseline
from experiments.output.document import Table
from experiments.points.compare import compare
from experiments.points.sweep import sweep
from experiments.points.utility import utility
from experiments.points.what_if import HELPFUL, what_ifs
from experiments.questions.explain import replay
from experiments.questions.inspect_trace import inspect
from experiments.scenario.resources import RESOURCES, improve, utility_pct
from helpers.experiments_jobs import SAMPLE, write_job
from helpers.link_tapes import Tape
from helpers.places import SAMPLES
from simulator.engine.simulate import ENGINES
from simulator.support.errors import ClusterError, ScheduleError, WhatIfError
from simulator.workload import What
from topologies import load_cluster, resource_values

CLUSTER = "dgx-a100"
RANKS = {"one node": 8, "two nodes": 16}
every_resource = pytest.mark.parametrize("resource", RESOURCES)
same = pytest.approx


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes: every resource is used."""
    return write_job(tmp_path_factory.mktemp("two_nodes"), RANKS["two nodes"])


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("one_node"), RANKS["one node"])


@pytest.fixture(scope="module")
def base(job):
    return baseline(job, CLUSTER)


@pytest.fixture(scope="module")
def doubled(job):
    return utility(job, CLUSTER)


@pytest.mark.parametrize("engine", ENGINES)
def test_once_as_good_is_worth_nothing(job, engine):
    report = utility(job, CLUSTER, factor=1, settings=Settings(engine=engine))
    assert [row.utility_pct for row in report.utilities] == [0.0] * len(RESOURCES)
    assert {row.step_s for row in report.utilities} == {report.base.timeline.makespan}


def test_every_resource_is_answered_once_and_the_greatest_is_first(doubled):
    gains = [row.utility_pct for row in doubled.utilities]
    assert gains == sorted(gains, reverse=True)
    assert sorted(row.resource for row in doubled.utilities) == sorted(RESOURCES)


def test_utility_is_the_share_of_the_step_that_is_saved(doubled):
    before = doubled.base.timeline.makespan
    for row in doubled.utilities:
        assert row.utility_pct == same(100 * (before - row.step_s) / before)
    assert utility_pct(2.0, 1.0) == 50.0
    assert utility_pct(1.0, 2.0) == -100.0


def test_no_doubling_saves_more_than_half(doubled):
    assert all(row.utility_pct <= 50 for row in doubled.utilities)


def test_a_what_if_can_be_asked_alone(job, doubled):
    alone = utility(job, CLUSTER, resources=["compute"])
    assert alone.utilities == tuple(r for r in doubled.utilities if r.resource == "compute")


@every_resource
def test_a_sweep_passes_through_the_baseline_and_the_utility(job, doubled, resource):
    report = sweep(job, CLUSTER, resource, factors=[2, 1])
    at_one, at_two = report.points
    (row,) = (row for row in doubled.utilities if row.resource == resource)
    assert (at_one.factor, at_one.step_s) == (1, report.base.timeline.makespan)
    assert (at_two.step_s, at_two.utility_pct) == (row.step_s, row.utility_pct)
    assert (at_one.value, at_two.value) == (row.baseline, row.changed)


def test_the_points_of_a_sweep_are_in_order_and_there_once(job):
    report = sweep(job, CLUSTER, "compute", factors=[4, 0.5, 4, 1])
    assert [point.factor for point in report.points] == [0.5, 1, 4]


@every_resource
def test_doubling_twice_is_four_times(base, resource):
    twice = improve(improve(base.scenario, resource, 2), resource, 2)
    at_once = improve(base.scenario, resource, 4)
    assert twice.run().makespan == same(at_once.run().makespan, rel=1e-12)


@every_resource
def test_there_and_back_is_where_it_was(base, resource):
    back = improve(improve(base.scenario, resource, 2), resource, 0.5)
    assert back.run().makespan == same(base.timeline.makespan, rel=1e-12)


@pytest.mark.parametrize("resource", ["scale_up.latency", "scale_out.latency"])
def test_latencies_are_halved_where_all_else_is_doubled(base, resource):
    before = resource_values(base.scenario.cluster)
    after = resource_values(improve(base.scenario, resource, 2).cluster)
    assert after == before | {resource: before[resource] / 2}


@pytest.mark.parametrize(
    "resource", ["scale_up.bandwidth", "scale_out.bandwidth", "scale_out.nics_per_node"]
)
def test_a_network_what_if_changes_one_value(base, resource):
    before = resource_values(base.scenario.cluster)
    better = improve(base.scenario, resource, 2)
    assert resource_values(better.cluster) == before | {resource: 2 * before[resource]}
    assert better.workload is base.scenario.workload


def with_copies_and_drains(scenario):
    """The scenario with every other kernel a copy, and a second for every op."""
    what = scenario.workload.what.copy()
    what[np.flatnonzero(what == What.COMPUTE)[::2]] = What.COPY
    workload = replace(scenario.workload, what=what, duration=np.ones(len(what)))
    return replace(scenario, workload=workload)


def test_compute_makes_kernels_faster_and_nothing_else(base):
    scenario = with_copies_and_drains(base.scenario)
    before, after = scenario.workload, improve(scenario, "compute", 4).workload
    kernels = before.what == What.COMPUTE
    assert set(before.what) == {What.HOST, What.COMPUTE, What.COPY, What.COLLECTIVE}
    np.testing.assert_array_equal(after.duration[kernels], before.duration[kernels] / 4)
    np.testing.assert_array_equal(after.duration[~kernels], before.duration[~kernels])
    others = (field.name for field in fields(before) if field.name != "duration")
    assert all(getattr(after, name) is getattr(before, name) for name in others)


def test_host_makes_host_ops_and_launches_faster_and_nothing_else(base):
    scenario = with_copies_and_drains(base.scenario)
    before, after = scenario.workload, improve(scenario, "host", 4).workload
    host = before.what == What.HOST
    assert host.any()
    np.testing.assert_array_equal(after.duration[host], before.duration[host] / 4)
    np.testing.assert_array_equal(after.duration[~host], before.duration[~host])
    launches = host[before.edges.source]
    assert before.edges.lag[launches].any()
    np.testing.assert_array_equal(after.edges.lag[launches], before.edges.lag[launches] / 4)
    np.testing.assert_array_equal(after.edges.lag[~launches], before.edges.lag[~launches])
    assert after.calls is before.calls


@pytest.mark.parametrize("trace", ["job", "sample"])
def test_without_contention_nothing_is_slower_than_with(job, trace):
    where = job if trace == "job" else SAMPLE
    alone = baseline(where, CLUSTER, Settings(engine="analytic")).timeline.makespan
    shared = baseline(where, CLUSTER, Settings(engine="flow")).timeline.makespan
    assert alone <= shared * (1 + 1e-9)


def test_a_cluster_against_itself_is_worth_nothing(job):
    report = compare(job, [CLUSTER, CLUSTER, load_cluster(CLUSTER)])
    assert [point.utility_pct for point in report.points] == [0.0] * 3
    assert len({point.exposed_communication_s for point in report.points}) == 1


def test_a_comparison_keeps_the_order_and_says_what_is_what(job):
    report = compare(job, [CLUSTER, "hgx-h100"], topologies=["ring"])
    assert [point.cluster for point in report.points] == [
        "dgx-a100",
        "hgx-h100",
        "dgx-a100 (scale_up ring)",
    ]
    assert "ring of 8" in report.points[2].value
    assert report.points[1].utility_pct > 0 > report.points[2].utility_pct


def test_a_job_in_one_node_says_so_for_scale_out(one_node):
    report = utility(one_node, CLUSTER)
    notes = {row.resource: row.note for row in report.utilities if row.step_s is None}
    assert notes == dict.fromkeys(
        [
            "scale_out.bandwidth",
            "scale_out.latency",
            "scale_up.size",
            "scale_out.nics_per_node",
            "pcie.bandwidth",
        ],
        "one node: no scale-out traffic",
    )
    assert [row.step_s for row in report.utilities[-5:]] == [None] * 5


def test_but_a_smaller_domain_makes_scale_out_traffic(one_node):
    (row,) = utility(one_node, CLUSTER, factor=0.5, resources=["scale_up.size"]).utilities
    assert row.utility_pct < 0
    assert sweep(one_node, CLUSTER, "scale_up.size", factors=[0.5, 1]).note == ""
    assert sweep(one_node, CLUSTER, "scale_up.size", factors=[1, 2]).note


def test_a_job_spread_over_nodes_uses_the_fabric(one_node):
    spread = utility(one_node, CLUSTER, settings=Settings(nodes=2), resources=["scale_out.latency"])
    assert spread.utilities[0].utility_pct > 0


def test_a_trace_without_kernels_says_so_for_compute():
    (row,) = utility(SAMPLE, CLUSTER, resources=["compute"]).utilities
    assert row.note == "no kernels; the host computes"


@pytest.mark.parametrize("trace", ["job", "sample"])
def test_the_critical_path_adds_up_to_the_step(job, trace):
    report = replay(job if trace == "job" else SAMPLE, CLUSTER)
    step = report.base.timeline.makespan
    assert sum(report.path_by_what.values()) == same(step)
    on_links = sum(segment.duration for segment in report.path if segment.what == "communication")
    assert sum(report.path_by_group.values()) == same(on_links)
    ends = [0.0, *(segment.end for segment in report.path)]
    assert [segment.start for segment in report.path] == same(ends[:-1])
    assert ends[-1] == step


def test_the_slowest_rank_is_the_step(job):
    report = replay(job, CLUSTER)
    assert max(rank.simulated_end_s for rank in report.ranks) == report.base.timeline.makespan
    assert max(rank.measured_end_s for rank in report.ranks) == report.base.loaded.measured_step
    for rank in report.ranks:
        assert rank.exposed_communication_s <= rank.communication_s + 1e-15


def test_costs_taken_from_the_trace_give_the_trace_back(job):
    assert baseline(job, CLUSTER, Settings(collective_cost="trace")).error == same(0, abs=1e-9)


def test_a_trace_can_be_asked_about_without_a_cluster(job):
    report = inspect(job)
    assert report.ops == {"host": report.ops["host"], "compute": 48, "collective": 48}
    (calls,) = report.calls
    assert (calls.kind, calls.count, calls.size_bytes) == ("all_reduce", 3, float(4 << 20))
    assert calls.transfer_s == same(24e-6)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e300, 1e-320])
def test_a_factor_that_multiplies_nothing_is_refused_before_anything_is_read(factor):
    for ask in (
        lambda: utility("nowhere", CLUSTER, factor=factor),
        lambda: sweep("nowhere", CLUSTER, "host", factors=[1, factor]),
    ):
        with pytest.raises(WhatIfError, match="is not a number from 1e-06 to 1e\\+06"):
            ask()


def test_an_unknown_resource_is_refused_with_the_nearest(job):
    with pytest.raises(WhatIfError, match=r"did you mean scale_up\.bandwidth\?"):
        utility(job, CLUSTER, resources=["scale_up.bandwith"])
    with pytest.raises(WhatIfError, match="'gpu' is not a resource; did you mean compute"):
        sweep(job, CLUSTER, "gpu")
    with pytest.raises(WhatIfError, match="needs a factor"):
        sweep(job, CLUSTER, "host", factors=[])


def test_a_cluster_that_is_too_small_is_refused(job):
    small = load_cluster(CLUSTER).model_copy(update={"nodes": 1})
    with pytest.raises(ClusterError, match="16 ranks"):
        utility(job, small)
    with pytest.raises(ClusterError, match="name a cluster"):
        compare(job, [])


def test_a_scenario_is_not_changed_by_what_is_asked_of_it(base):
    for resource in RESOURCES:
        improve(base.scenario, resource, 2).run()
    assert base.scenario.run().makespan == base.timeline.makespan


def test_an_algorithm_may_be_forced_by_size_and_group():
    """A rule that no call meets changes nothing; one that all meet is what they get."""
    sample = SAMPLES / "gpu-dp2-tp4"

    def step(*rules):
        settings = Settings(nodes=2, algorithms=rules)
        return baseline(sample, "dgx-a100", settings).timeline.makespan

    free = step()
    assert step("all_reduce[1TB..]=tree", "all_gather=ring", "all_reduce@nobody=tree") == free
    assert step("all_reduce@tp=two_shot") != free
    with pytest.raises(ScheduleError, match="no algorithm 'rign'"):
        step("all_reduce=rign")


def test_a_tier_that_begins_to_hold_back_is_named():
    """Twice the NICs of a DGX A100 is more than PCIe feeds; twice its PCIe changes nothing."""
    sample = SAMPLES / "gpu-dp2-tp4"
    names = ["scale_out.bandwidth", "scale_up.bandwidth", "pcie.bandwidth"]
    report = utility(sample, "dgx-a100", resources=names, settings=Settings(nodes=2))
    notes = {row.resource: row.note for row in report.utilities}
    assert notes == {
        "scale_out.bandwidth": "limited by PCIe",
        "scale_up.bandwidth": "",
        "pcie.bandwidth": "",
    }


def test_calls_of_unknown_size_are_said_beside_what_the_network_would_buy(tmp_path):
    """A kernel of DeepEP beside NCCL's: no network makes it faster, as nobody knows what moves."""
    tape = Tape(world=2, groups=[("0", "world", range(2))])
    tape.collective(0, 24, 15, 100)
    tape.launch(200, 7, 205, 50, "void deep_ep::intranode::dispatch<2, 768>(int4*)")
    report = utility(tape.write(tmp_path), "dgx-a100", resources=["scale_up.bandwidth", "compute"])
    notes = {row.resource: row.note for row in report.utilities}
    said = "1 of 2 calls of unknown size: as measured on any network"
    assert notes == {"scale_up.bandwidth": said, "compute": "no kernels; the host computes"}


def test_a_fault_that_helps_is_said(tmp_path):
    """With this draw of the hash two flows of a shift collide, which the lost cable parts."""
    flows = "".join(
        f"rank {rank} {{\nl0: send 4000000b to {(rank + 4) % 16} tag {rank}\n"
        f"l1: recv 4000000b from {(rank - 4) % 16} tag {(rank - 4) % 16}\n}}\n"
        for rank in range(16)
    )
    trace = tmp_path / "shift.goal"
    trace.write_text(f"num_ranks 16\n{flows}")
    changes = [
        "link edge:0.0->aggregation:0.1 down",
        "link edge:0.0->aggregation:0.0 down",
        "scale_up.bandwidth x2",
    ]
    helpful, harmful, faster = what_ifs(
        trace, "fat_tree:4@ecmp:5, 100 Gbit/s, 1 us", changes
    ).points
    assert helpful.gain_pct > 10
    assert HELPFUL in helpful.note
    assert HELPFUL not in harmful.note
    assert HELPFUL not in faster.note


def test_a_change_that_cannot_be_made_refuses_none_of_the_others(job):
    asked = ["compute x0.5", "node 9 down", "nothing-like-this drop", "scale_up.bandwidth x2"]
    report = what_ifs(job, CLUSTER, asked)
    assert [point.change for point in report.points] == [asked[0], asked[3]]
    assert [row.change for row in report.refused] == asked[1:3]
    alone = what_ifs(job, CLUSTER, [asked[0], asked[3]])
    assert [point.step_s for point in report.points] == [point.step_s for point in alone.points]
    (table,) = (part for part in report.document().sections[0].blocks if isinstance(part, Table))
    assert [row.cells[0] for row in table.rows] == [*(asked[0], asked[3]), *asked[1:3]]
    with pytest.raises(WhatIfError, match="node 9"):
        what_ifs(job, CLUSTER, asked[1:3])


def test_what_a_note_is_of_is_said_where_several_were_drawn(job):
    one, several = (
        what_ifs(job, CLUSTER, ["20% of links x0.5"], draws=draws).points[0].note
        for draws in (1, 2)
    )
    assert several == f"first draw: {one}"


def test_seed_nought_is_the_usual_one_and_a_negative_one_is_refused(job):
    usual, nought = (
        what_ifs(job, CLUSTER, ["20% of links down"], draws=2, **seed).points
        for seed in ({}, {"seed": 0})
    )
    assert [point.step_s for point in usual] == [point.step_s for point in nought]
    with pytest.raises(WhatIfError, match="seed -1 is negative"):
        what_ifs(job, CLUSTER, ["20% of links down"], seed=-1)
