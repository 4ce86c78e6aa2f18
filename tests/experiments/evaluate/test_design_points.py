"""Design points, bounds, curves and the engine that is enough: as one by one, only sooner."""

import json
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.libraries.planners import parse_rule, times
from experiments.baseline import Settings, baseline
from experiments.evaluate.design_points import DesignPoints, different_calls, grid, steps_at
from experiments.output.figure import draw
from experiments.points.sweep import curve, sweep
from experiments.scenario.change import LINKS, Change, Changed, Edited
from experiments.scenario.language import parse_change as what_if
from experiments.scenario.resources import RANKS, RESOURCES, better, improve
from experiments.scenario.scenario import Scenario
from helpers.bounds import most_utility
from helpers.calls import stacked
from helpers.places import ROOT, SAMPLES
from helpers.strategies import networks, workloads
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import DeadlockError, TwofoldError, WhatIfError
from simulator.topology import Link, topology
from simulator.workload import What
from topologies import load_cluster
from topologies.cluster.node import Calibrated

SAMPLE = SAMPLES / "gpu-dp2-tp4"
ANALYTIC = Settings(engine="analytic", nodes=2)
CLUSTERS = ("dgx-a100", "hgx-h100", "mi300x-8", "gb200-nvl72", "tpu-v4", "perlmutter")
factors = st.sampled_from([0.1, 0.5, 1.0, 1.0, 2.0, 3.7, 16.0])
exact = {"rel": 1e-11, "abs": 1e-18}


_LIKE_OTHERS = ("hgx-h100", "perlmutter", "tpu-v4")
"""Switches that add as on GB200, A100s as in the DGX, links of ranks to ranks as of MI300X."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in _LIKE_OTHERS else ())
        for name in CLUSTERS
    ],
)
def base(request):
    one = ANALYTIC if request.param != "gb200-nvl72" else replace(ANALYTIC, nodes=None)
    return baseline(SAMPLE, request.param, one).scenario


def asked(scenario, point):
    for resource, factor in point.items():
        scenario = improve(scenario, resource, factor)
    return scenario


def test_design_points_are_the_what_ifs_one_by_one(base):
    there = [name for name in (*LINKS, *RANKS) if possible(base, name)]
    rng = np.random.default_rng(1)
    points = {name: rng.choice([0.3, 0.5, 1, 2, 5.5], 12) for name in there}
    together = steps_at(base, points)
    for number, step in enumerate(together):
        point = {name: float(values[number]) for name, values in points.items()}
        assert step == pytest.approx(asked(base, point).run().makespan, **exact)


def possible(scenario, resource, factor=2):
    try:
        improve(scenario, resource, factor)
    except WhatIfError:
        return False
    return True


def test_design_points_may_change_which_links_there_are():
    base = baseline(SAMPLE, "dgx-a100", ANALYTIC).scenario
    points = grid(
        {
            "scale_up.size": [0.5, 1, 2],
            "scale_out.nics_per_node": [1, 2],
            "scale_up.bandwidth": [1, 3],
        }
    )
    together = steps_at(base, points)
    assert len(together) == 12
    for number, step in enumerate(together):
        point = {name: float(values[number]) for name, values in points.items()}
        assert step == pytest.approx(asked(base, point).run().makespan, **exact)


def test_a_study_answers_one_point_as_it_answers_many(base):
    """Resources in any order and number, then others, then the first again."""
    design = DesignPoints(base)
    there = [name for name in (*LINKS, *RANKS) if possible(base, name)]
    rng = np.random.default_rng(2)
    points = {name: rng.choice([0.3, 1, 2, 5.5], 8) for name in there}
    together = steps_at(base, points)
    for names in (there, there[::-1]):
        for number, step in enumerate(together):
            point = {name: [points[name][number]] for name in names}
            assert design.steps_at(point) == pytest.approx([step], rel=1e-12)
    for name in there:
        alone = design.steps_at({name: points[name]})
        assert alone == pytest.approx(steps_at(base, {name: points[name]}), rel=1e-12)
    assert design.steps_at(points) == pytest.approx(together, rel=1e-12)


def test_another_spelling_of_a_resource_is_the_same_question():
    base = baseline(SAMPLE, "dgx-a100", ANALYTIC).scenario
    design = DesignPoints(base)
    spelt = design.steps_at({"scaleout.bandwidth": [1, 2, 4], "Compute": [1, 1, 3]})
    assert len(design._shapes) == 1  # all points in one pass
    known = design.steps_at({"scale_out.bandwidth": [1, 2, 4], "compute": [1, 1, 3]})
    assert spelt.tolist() == known.tolist()
    with pytest.raises(WhatIfError, match="compute is given twice, the second time as 'Compute'"):
        design.steps_at({"compute": [1], "Compute": [2]})


def test_a_study_may_change_which_links_there_are_one_point_at_a_time():
    base = baseline(SAMPLE, "dgx-a100", ANALYTIC).scenario
    points = grid({"scale_out.nics_per_node": [1, 2], "scale_up.latency": [1, 4]})
    design, together = DesignPoints(base), steps_at(base, points)
    for number in (3, 0, 1, 2, 3):
        point = {name: values[number : number + 1] for name, values in points.items()}
        assert design.steps_at(point) == pytest.approx([together[number]], rel=1e-12)


@tries(40, least=13)
@given(data=st.data())
def test_calls_of_groups_that_lie_alike_cost_the_same_on_any_network(data):
    """On real clusters and on networks of any links."""
    if data.draw(st.booleans()):
        cluster = load_cluster(data.draw(st.sampled_from(CLUSTERS)))
        ranks = min(cluster.capacity, 16)
    else:
        cluster, ranks = load_cluster("dgx-a100"), 6
    builder = WorkloadBuilder(job_ranks=ranks)
    members = st.lists(st.integers(0, ranks - 1), min_size=2, max_size=3, unique=True)
    for number in range(24):
        kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "broadcast", "all_to_all"]))
        ranks_of = tuple(data.draw(members))
        group = builder.group(ranks_of, f"g{number}")
        call = builder.call(CallRow(kind, group, 0, data.draw(st.sampled_from([1e4, 1e8]))))
        for rank in ranks_of:
            builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    forced = (parse_rule("broadcast@g1=tree"),)
    scenario = Scenario(builder.build(), cluster, "analytic", forced=forced)
    graph = scenario.site.topology
    if ranks == 6:
        graph = data.draw(networks(ranks))
    some = stacked([graph, *(scaled(graph, name, bandwidth=0.3) for name in graph.resources)])
    found = different_calls([scenario.workload], scenario.site.machine, some)
    cost = found.on(some)[found.rows[0]]
    for index in range(len(scenario.workload.calls)):
        call = scenario.workload.call_view(index)
        name = "tree" if (call.kind, call.group.label) == ("broadcast", "g1") else None
        expected = times(call, some, replace(scenario.site.machine, forced=()), name)
        assert cost[index] == pytest.approx(expected, rel=1e-12)


def test_groups_that_meet_on_links_or_have_rules_of_their_own_are_not_like_others():
    """Ranks 0 and 1 leave by one link; all links have the same numbers."""
    exits = ("out 0", "out 0", "out 2", "out 3")
    ends = {(rank, leave) for rank, leave in enumerate(exits)} | {(one, "all") for one in exits}
    ends |= {("all", rank) for rank in range(4)}
    graph = topology("exits", 4, [Link(*pair, 1e9, 1e-6) for pair in sorted(ends, key=str)])
    builder = WorkloadBuilder(job_ranks=4)
    groups = [(0, 1, 3), (0, 2, 3), (1, 2, 3), (1, 3, 0)]
    for size in (1e6, 2e6, 3e6, 4e6):
        for number, ranks in enumerate(groups):
            row = CallRow("all_gather", builder.group(ranks, f"g{number}"), 0, size)
            call = builder.call(row)
            for rank in ranks:
                builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    cluster = load_cluster("l40s-pcie-8").model_copy(update={"library": None})
    for rules, alike in (((), [0, 1, 1, 0]), ((parse_rule("all_gather@g2=direct"),), [0, 1, 2, 0])):
        scenario = Scenario(builder.build(), cluster, "analytic", forced=rules)
        found = different_calls([scenario.workload], scenario.site.machine, stacked([graph]))
        cost = found.on(stacked([graph]))[found.rows[0]][:4, 0]
        assert len(set(cost.tolist())) == len(set(alike))
        assert cost.tolist() == [cost[alike.index(one)] for one in alike]


def test_equal_groups_of_like_nodes_are_asked_about_once():
    builder = WorkloadBuilder(job_ranks=64)
    groups = [tuple(range(first, first + 8)) for first in range(0, 64, 8)]
    groups += [tuple(range(first, 64, 8)) for first in range(8)]
    for members in groups:
        call = builder.call(CallRow("all_reduce", builder.group(members), 0, 1e8))
        for rank in members:
            builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    scenario = Scenario(builder.build(), load_cluster("hgx-h100"), "analytic")
    found = different_calls(
        [scenario.workload], scenario.site.machine, stacked([scenario.site.topology])
    )
    assert [call.group.ranks for call in found.calls] == [groups[0], groups[8]]
    assert found.rows[0].tolist() == [0] * 8 + [1] * 8


def shifted(scenario):
    workload = scenario.workload
    workload = replace(workload, duration=workload.duration + 1e-6)
    return Changed(replace(scenario, workload=workload), "")


def test_changes_of_all_sorts_are_answered_in_their_order(base):
    some = [
        better(name, factor)
        for name in RESOURCES
        for factor in (2, 0.5, 3)
        if possible(base, name, factor)
    ]
    some.append(better("host", 3) | better("scale_up.bandwidth"))
    some.append(better("scale_up.latency") | Change(parts=(Edited(shifted),)) | better("compute"))
    texts = ("compute x0.5", "host x3 and scale_up.bandwidth x2", "overlap none", "calls bytes x2")
    some += [Change(), *map(what_if, texts)]
    order = np.random.default_rng(0).permutation(len(some))
    asked_for = [some[place] for place in order]
    expected = [change.apply(base).scenario.run().makespan for change in asked_for]
    design = DesignPoints(base)
    assert design.steps(asked_for) == pytest.approx(expected, **exact)
    one_by_one = [design.steps([change])[0] for change in asked_for]
    assert one_by_one == pytest.approx(expected, **exact)


CLUSTER = load_cluster("dgx-a100")


@tries(30)
@given(workload=workloads(4), host=factors, compute=factors, bandwidth=factors)
def test_any_workload_is_answered_as_alone(workload, host, compute, bandwidth):
    base = Scenario(workload, CLUSTER, "analytic", nodes=2)
    point = {"host": host, "compute": compute, "scale_out.bandwidth": bandwidth}
    truth = asked(base, point).run().makespan
    assert steps_at(base, {name: [value] for name, value in point.items()}) == pytest.approx(
        [truth], **exact
    )
    change = reduce(or_, [better(name, factor) for name, factor in point.items()])
    assert DesignPoints(base).steps([Change(), change])[1] == pytest.approx(truth, **exact)


@pytest.mark.parametrize("other", [("all_reduce", (0, 2), 1e7), ("all_gather", (0, 1), 1e7)])
def test_calls_that_differ_in_anything_have_costs_of_their_own(other):
    """In one node and between two, of one kind and another, of two sizes, and of unknown size."""
    builder = WorkloadBuilder(job_ranks=4)
    before = {}
    rows = [("all_reduce", (0, 1), 1e7), other, ("all_reduce", (0, 1), 2e7)]
    unknown = [("unknown", (0, 1), np.nan, 1e-3), ("unknown", (0, 1), np.nan, 3e-3)]
    for number, (kind, ranks, size, *transfer) in enumerate(rows + unknown):
        row = CallRow(kind, builder.group(ranks), number, size, "", *transfer)
        call = builder.call(row)
        for rank in ranks:
            op = builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
            if rank in before:
                builder.edge(before[rank], op)
            before[rank] = op
    base = Scenario(builder.build(), CLUSTER, "analytic", nodes=2)
    truth = [base.run().makespan, improve(base, "scale_out.bandwidth", 3).run().makespan]
    assert steps_at(base, {"scale_out.bandwidth": [1, 3]}) == pytest.approx(truth, **exact)


def test_a_calibrated_cluster_keeps_its_calibration():
    base = baseline(SAMPLE, "dgx-a100", ANALYTIC).scenario
    known = Calibrated(overhead=3.0, latency={"scale_up": 2.0}, bandwidth={"scale_up": 0.5})
    cluster = base.cluster.model_copy(update={"calibration": {"all_reduce": known}})
    calibrated = replace(base, cluster=cluster)
    truth = [
        one.run().makespan for one in (calibrated, improve(calibrated, "scale_up.bandwidth", 2))
    ]
    assert truth[0] != base.run().makespan
    assert DesignPoints(calibrated).steps(
        [Change(), better("scale_up.bandwidth")]
    ) == pytest.approx(truth, **exact)
    assert steps_at(calibrated, {"scale_up.bandwidth": [1, 2]}) == pytest.approx(truth, **exact)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "the same number of factors"),
        ({"compute": [1, 2], "host": [1]}, "the same number of factors"),
        ({"compute": [0.0]}, "factor 0"),
        ({"compute": [np.nan]}, "nan"),
        ({"scale_up.bandwith": [2.0]}, "did you mean"),
        ({"scale_up.size": [1.3]}, "whole number"),
        ({"pcie.bandwidth": [1.0, 2.0]}, "no pcie"),
    ],
)
def test_what_cannot_be_a_design_point_is_refused(points, message):
    base = baseline(SAMPLE, "mi250x-frontier", ANALYTIC).scenario
    with pytest.raises(WhatIfError, match=message):
        steps_at(base, points)


def test_a_deadlock_names_who_waits_for_whom():
    builder = WorkloadBuilder(job_ranks=2)
    calls = [builder.call(CallRow("all_reduce", builder.group((0, 1)), n, 8.0)) for n in (0, 1)]
    for rank, order in enumerate((calls, calls[::-1])):
        builder.edge(
            *(
                builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
                for call in order
            )
        )
    base = Scenario(builder.build(), CLUSTER, "analytic")
    with pytest.raises(DeadlockError, match="rank 0") as alone:
        base.run()
    for ask in (
        lambda: DesignPoints(base).steps([Change()]),
        lambda: steps_at(base, {"host": [1.0]}),
    ):
        with pytest.raises(DeadlockError) as together:
            ask()
        assert str(together.value) == str(alone.value)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_without_calls_is_a_step(ranks):
    builder = WorkloadBuilder(job_ranks=ranks)
    builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0)
    base = Scenario(builder.build(), CLUSTER, "analytic")
    points = {"compute": [1, 2], "scale_up.bandwidth": [1, 2]}
    assert steps_at(base, points).tolist() == [1.0, 0.5]
    assert DesignPoints(base).steps([Change(), better("compute", 4)]).tolist() == [1.0, 0.25]
    assert most_utility(base, resources=["compute", "host"]) == {"compute": 50.0, "host": 0.0}
    assert len(DesignPoints(base).steps([])) == 0


def test_no_utility_exceeds_its_bound(base):
    most = most_utility(base)
    step = base.run().makespan
    for resource, bound in most.items():
        gain = 100 * (1 - improve(base, resource, 2).run().makespan / step)
        assert gain <= bound + 1e-9
    assert set(most) == {name for name in RESOURCES if possible(base, name)}


REACH = (0.25, 16.0)


@pytest.mark.parametrize("resource", [*LINKS[:3], *RANKS])
@pytest.mark.parametrize("cluster", [pytest.param("dgx-a100", marks=pytest.mark.slow), "mi300x-8"])
def test_the_step_is_within_the_gap_of_the_curve(cluster, resource):
    report = curve(SAMPLE, cluster, resource, reach=REACH, gap=2e-3, settings=ANALYTIC)
    scenario = report.base.scenario
    asked_for = np.geomspace(0.25, 16, 40)
    truth = steps_at(scenario, {resource: asked_for})
    points = report.points[::-1]
    lines = np.interp(
        1 / asked_for, [1 / point.factor for point in points], [point.step_s for point in points]
    )
    assert np.abs(lines - truth).max() <= report.gap_s + 1e-12
    assert report.gap_s <= 2e-3 * report.base.timeline.makespan
    # between nodes links differ, so that some ring need not keep step on every network
    assert report.certificate == ("convex" if resource in RANKS else "monotone")
    assert points[0].factor == pytest.approx(16)


@pytest.mark.parametrize("threshold", [2.0, 5.0, 25.0, 60.0])
def test_beyond_the_break_even_doubling_buys_less(threshold):
    where = SAMPLE, "dgx-a100", "scale_up.bandwidth"
    report = curve(*where, reach=REACH, threshold=threshold, settings=ANALYTIC)
    asked_for = np.geomspace(0.25, 8, 300)
    now = steps_at(report.base.scenario, {report.resource: asked_for})
    better = steps_at(report.base.scenario, {report.resource: 2 * asked_for})
    much = 100 * (now - better) / now >= threshold
    even = report.break_even
    assert even is not None
    assert not much[asked_for > even * 1.001].any()
    assert much.any() == (even > 0.25 * 1.001)
    assert not much.any() or much[asked_for < even * 0.999][-1]


def test_a_curve_can_be_written_printed_and_drawn(tmp_path):
    report = curve(SAMPLE, "dgx-a100", "scale_up.bandwidth", threshold=5.0, settings=ANALYTIC)
    record = json.loads(json.dumps(report.record()))
    assert [point["factor"] for point in record["points"]] == sorted(
        point["factor"] for point in record["points"]
    )
    assert record["engine"] == "analytic"
    assert "saves less than 5 %" in report.document().headline
    draw(report.document(), tmp_path / "curve.svg")
    assert "scale-up bandwidth" in (tmp_path / "curve.svg").read_text()


LIVE = ROOT / "traces" / "live"


def test_where_calls_share_links_each_point_of_a_curve_is_what_a_sweep_says():
    where = LIVE / "ddp-cpu-2", LIVE / "net250.yaml", "scale_out.bandwidth"
    report = curve(*where, reach=(0.5, 8.0), gap=0.02)
    assert report.certificate == "sampled"
    assert report.base.engine_check["agrees"]
    swept = sweep(*where, factors=[point.factor for point in report.points])
    assert [point.step_s for point in report.points] == pytest.approx(
        [point.step_s for point in swept.points], rel=1e-9
    )
    alone = curve(*where, reach=(0.5, 8.0), gap=0.02, engine="analytic")
    assert alone.certificate == "monotone"
    assert "share links" in alone.note
    now = alone.base.timeline.makespan
    assert report.base.timeline.makespan > 1.2 * now


def test_a_curve_on_which_no_calls_meet_is_certified_and_that_of_the_analytic_engine():
    asked = {"reach": (0.5, 2.0), "nodes": 2}
    report = curve(SAMPLE, "dgx-a100", "scale_up.bandwidth", **asked)
    alone = curve(SAMPLE, "dgx-a100", "scale_up.bandwidth", engine="analytic", **asked)
    assert report.certificate == alone.certificate != "sampled"
    assert report.points == alone.points


def test_a_resource_that_is_not_used_has_a_level_curve():
    report = curve(SAMPLE, "tpu-v4", "scale_out.bandwidth", settings=replace(ANALYTIC, nodes=None))
    assert report.note
    assert {point.utility_pct for point in report.points} == {0.0}
    assert "does not affect" in report.document().headline


@pytest.mark.parametrize(
    ("resource", "options", "message"),
    [
        ("scale_up.size", {}, "use sweep"),
        ("nonsense", {}, "not a resource"),
        ("compute", {"reach": (1.0, 1.5)}, "no doubling"),
        ("compute", {"reach": (0.0, 4.0)}, "factor 0"),
        ("compute", {"reach": (1.0, 1.5)}, "end at 2 or later"),
        ("compute", {"gap": 0.0}, "gap 0 %"),
        ("compute", {"gap": 1e-7}, "gap 1e-05 % of the step: ask for 0.0001 % or more"),
        ("compute", {"gap": np.nan}, "gap nan"),
        ("compute", {"threshold": 100.0}, "threshold 100 %"),
    ],
)
def test_what_has_no_curve_is_refused_before_anything_is_read(resource, options, message):
    with pytest.raises(TwofoldError, match=message):
        curve("no such file", "dgx-a100", resource, **options)
