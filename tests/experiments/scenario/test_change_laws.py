"""Changes are data: they compose, what follows a value is known, and memories change no result."""

from dataclasses import fields, replace
from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.baseline import Settings, baseline
from experiments.evaluate.design_points import DesignPoints
from experiments.evaluate.parallel import outcome
from experiments.points.sweep import sweep
from experiments.points.utility import utility
from experiments.scenario import scenario as scenarios
from experiments.scenario.change import LINKS, Change
from experiments.scenario.language import parse_change
from experiments.scenario.resources import RESOURCES, better, improve
from experiments.scenario.scenario import Scenario, Site
from helpers.places import SAMPLES
from helpers.sites import MAKE
from helpers.strategies import workloads
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.support.errors import WhatIfError
from topologies import build, catalog, load_cluster, resource_values

SAMPLE = SAMPLES / "gpu-dp2-tp4"
NODES = Settings(nodes=2)
CLUSTER = load_cluster("dgx-a100")
FACTORS = (0.3, 2.0, 7.0)

changes = st.one_of(
    st.builds(better, st.sampled_from([*LINKS, "compute", "host"]), st.sampled_from(FACTORS)),
    st.just(better("scale_out.nics_per_node")),
    st.sampled_from(["host drop", "calls bytes x2", "all_reduce time x3"]).map(parse_change),
    st.just(Change()),
)


@pytest.fixture(scope="module")
def base():
    return baseline(SAMPLE, CLUSTER, NODES).scenario


def same(one, other):
    """Whether two scenarios are the same to the last bit."""
    columns = ("duration", "ready", "call")
    calls = ("size", "factor", "transfer")
    return (
        one.cluster == other.cluster
        and one.forced == other.forced
        and all(
            np.array_equal(getattr(one.workload, name), getattr(other.workload, name))
            for name in columns
        )
        and all(
            np.array_equal(
                getattr(one.workload.calls, name),
                getattr(other.workload.calls, name),
                equal_nan=True,
            )
            for name in calls
        )
        and np.array_equal(one.workload.edges.lag, other.workload.edges.lag)
    )


@tries(30)
@given(several=st.lists(changes, min_size=3, max_size=3))
def test_to_compose_changes_is_to_apply_one_after_the_other(base, several):
    one, two, three = several
    step = base
    for change in several:
        step = change.apply(step).scenario
    for composed in ((one | two) | three, one | (two | three)):
        assert same(composed.apply(base).scenario, step)
    assert ((one | two) | three).parts == (one | (two | three)).parts
    assert same((one | Change()).apply(base).scenario, (Change() | one).apply(base).scenario)


def test_a_change_says_what_it_touched_and_how_it_was_written(base):
    both = parse_change("scale_out.bandwidth x2") | parse_change("rank 3 compute x1.2")
    assert both.text == "scale_out.bandwidth x2 and rank 3 compute x1.2"
    assert both.apply(base).note == "25 GB/s → 50 GB/s; 140 kernels on rank 3"
    with pytest.raises(WhatIfError, match=r"^what-if 'nothing here x2': "):
        (Change("nothing here x2", parse_change("nothing* x2").parts)).apply(base)


def test_numbers_are_read_off_and_the_rest_is_applied():
    numbers = parse_change("compute x0.5 and scale_up.latency x3")
    assert (len(numbers.split()[0]), len(numbers.split()[1])) == (0, 2)
    structure, left = (numbers | better("scale_up.size")).split()
    assert [part.resource for part in structure] == ["scale_up.size"]
    assert left == numbers.parts
    edited = numbers | parse_change("rank 3 compute x2")
    assert edited.split() == (edited.parts, ())


@pytest.mark.parametrize("name", catalog())
def test_links_follow_what_they_are_said_to(name):
    """A network with links multiplied is the one built from the cluster with the value so."""
    cluster = load_cluster(name)
    ranks = min(cluster.capacity, 4 * cluster.ranks_per_node, 64)
    network = build(cluster, ranks)
    for resource in LINKS:
        if resource not in resource_values(cluster):
            continue
        follow = network.following(resource)
        for factor in FACTORS:
            part = better(resource, factor).parts[0]
            empty = Scenario(WorkloadBuilder(job_ranks=ranks).build(), cluster)
            built = part.apply(empty).scenario.site.topology
            by = np.where(follow, part.times / part.over, 1.0)
            ours = {"bandwidth": network.bandwidth, "latency": network.latency}
            ours[resource.partition(".")[2]] = ours[resource.partition(".")[2]] * by
            np.testing.assert_allclose(ours["bandwidth"], built.bandwidth, rtol=1e-12)
            np.testing.assert_allclose(ours["latency"], built.latency, rtol=1e-12)
            assert built.nodes == network.nodes


SMALL = ("dgx-a100", "mi250x-frontier", "l40s-pcie-8", "tpu-v4", "leonardo", "gh200-alps")


@tries(40)
@given(
    workload=workloads(4),
    name=st.sampled_from(SMALL),
    several=st.lists(
        st.tuples(st.sampled_from(RESOURCES), st.sampled_from(FACTORS)), min_size=1, max_size=3
    ),
)
def test_the_evaluator_answers_what_the_analytic_engine_does(workload, name, several):
    scenario = Scenario(workload, load_cluster(name), "analytic")
    change = reduce(or_, (better(*one) for one in several))
    try:
        expected = change.apply(scenario).scenario.run().makespan
    except WhatIfError:
        with pytest.raises(WhatIfError):
            DesignPoints(scenario).steps([change])
        return
    found = DesignPoints(scenario).steps([Change(), change])[1]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_what_a_site_remembers_changes_no_result(base, monkeypatch):
    """Asked first, asked again, and asked after others: the same bits as on a site of its own."""
    monkeypatch.setattr(Site, "of", staticmethod(MAKE))
    answers = [improve(base, name, 2).run().makespan for name in RESOURCES if name != "host"]
    fresh = Scenario(base.workload, base.cluster, base.engine, base.nodes, base.forced, fold=None)
    assert fresh.site is not base.site
    for engine in ("flow", "analytic", "simpy"):
        first = replace(fresh, engine=engine).run()
        again = replace(base, engine=engine).run()
        for column in ("start", "end", "call_spent", "link_bytes"):
            np.testing.assert_array_equal(getattr(first, column), getattr(again, column))
        assert [plan.protocol for plan in first.plans] == [plan.protocol for plan in again.plans]
    assert answers == [
        improve(fresh, name, 2).run().makespan for name in RESOURCES if name != "host"
    ]


def test_scenarios_that_differ_in_their_workload_or_engine_share_a_site(base):
    faster = improve(base, "compute", 2)
    assert faster.site is base.site is replace(base, engine="analytic").site
    assert improve(base, "pcie.bandwidth", 2).site is not base.site
    assert replace(base, nodes=4).site is not base.site
    copied = base.site.__getstate__()
    assert copied.keys() == {field.name for field in fields(base.site)}


def test_the_network_of_a_scenario_is_built_once(monkeypatch):
    built = []

    def counted(cluster, ranks, nodes):
        built.append(cluster)
        return build(cluster, ranks, nodes)

    monkeypatch.setattr(scenarios, "build", counted)
    monkeypatch.setattr(scenarios.Site, "of", staticmethod(MAKE))  # what no other test built
    utility(SAMPLE, "dgx-a100", settings=NODES)
    networks = 1 + sum(name not in ("compute", "host") for name in RESOURCES)
    by_study = 2  # what changes which links there are is passed over, too
    by_doubt = 1  # a tier whose communication is exposed is asked for twice of it all together
    by_insensitive = 1  # a network without end, which leaves what depends on no resource
    assert len(built) == networks + by_study + by_doubt + by_insensitive


def test_a_sweep_without_contention_goes_through_the_baseline():
    report = sweep(SAMPLE, "dgx-a100", "scale_out.latency", factors=(0.5, 1, 3), settings=ANALYTIC)
    assert report.points[1].step_s == report.base.timeline.makespan
    assert report.points[1].utility_pct == 0
    for point in report.points:
        changed = improve(report.base.scenario, "scale_out.latency", point.factor)
        assert point.step_s == pytest.approx(outcome(changed).makespan, rel=1e-12)
        assert point.engine == "analytic"


ANALYTIC = replace(NODES, engine="analytic")


def test_factors_that_are_written_alike_are_points_of_their_own():
    factors = (1.2345671, 1.2345672)
    for asked in (NODES, ANALYTIC):
        report = sweep(SAMPLE, "dgx-a100", "compute", factors=factors, settings=asked)
        assert [point.factor for point in report.points] == list(factors)


def test_every_call_says_how_it_was_carried_out(base):
    timeline = base.run()
    names = {plan.schedule.kind for plan in timeline.plans}
    assert names == {base.workload.call_view(call).kind for call in range(len(timeline.plans))}
