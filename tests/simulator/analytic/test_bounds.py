"""A bound holds whatever changes; a curve is within its gap; overlap says when flow is needed."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.passes import points, scales, timeline
from helpers.passes import scaled as scaled_parts
from helpers.strategies import (
    ENGINES,
    both_ways,
    cases,
    collective,
    plan,
    switch_network,
    two_tiers,
)
from simulator.analysis.critical_path import critical_path
from simulator.analytic.bounds import (
    busiest_links,
    least_of_link,
    least_of_links,
    least_step,
    least_times,
    longest_ways,
)
from simulator.analytic.contention import overlap
from simulator.analytic.contraction import contract
from simulator.analytic.curve import break_even, trace
from simulator.analytic.longest_path import Points, makespans
from simulator.builder import WorkloadBuilder
from simulator.costing.link_load import cost, lay_in_step
from simulator.engine.simulate import Costs
from simulator.schedule import Plan, Schedule, Step
from simulator.topology import SCALE_UP, scaled, topology
from simulator.workload import CallRow, What

exact = {"rel": 1e-12, "abs": 1e-18}


@given(case=cases(), scale=scales, times=st.lists(st.floats(0, 5), min_size=20, max_size=20))
def test_no_change_makes_a_step_shorter_than_the_bound(case, scale, times):
    workload, network = case
    graph, base = contract(workload), points(workload, network)
    ways = longest_ways(graph, base)
    changed = points(workload, network, scale)
    cost = changed.cost * np.resize(times, (len(base.cost), 1))
    changed = replace(changed, cost=cost)
    step = makespans(graph, changed)
    assert (least_step(ways, graph, changed) <= step * (1 + 1e-12)).all()


@given(case=cases(), scale=scales)
def test_at_the_baseline_the_bound_is_the_step(case, scale):
    workload, network = case
    graph, base = contract(workload), points(workload, network, scale)
    (way,) = longest_ways(graph, base)
    assert way.length(graph, base) == pytest.approx(makespans(graph, base), **exact)


@given(case=cases())
def test_the_longest_way_is_as_long_as_the_critical_path_and_passes_calls_in_order(case):
    workload, network = case
    truth = timeline(workload, network)
    graph, base = contract(workload), points(workload, network)
    (way,) = longest_ways(graph, base)
    path = sum(one.duration for one in critical_path(truth))
    assert way.length(graph, base) == pytest.approx([path], **exact)
    assert (np.diff(truth.call_start[way.calls]) >= 0).all()


@given(case=cases(), factor=st.sampled_from([1.0, 1.5, 2.0, 10.0]))
def test_a_better_network_saves_something_and_no_more_than_the_bound(case, factor):
    workload, network = case
    if SCALE_UP not in network.resources:
        return
    better = scaled(network, SCALE_UP, bandwidth=factor)
    graph, base = contract(workload), points(workload, network)
    changed = points(workload, better)
    step, after = makespans(graph, base), makespans(graph, changed)
    least = least_step(longest_ways(graph, base), graph, changed)
    assert least <= after * (1 + 1e-12)
    assert after <= step * (1 + 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@given(case=cases())
def test_no_call_takes_less_than_its_least(engine, case):
    workload, network = case
    truth = timeline(workload, network, engine=engine)
    took = np.nan_to_num(truth.call_end - truth.call_start)
    least = least_times(workload, Costs(network, plan), engine)
    assert (took >= least * (1 - 1e-9) - 1e-10).all()


def test_a_call_whose_ranks_run_ahead_takes_less_than_its_steps():
    """Of two steps, each slow between other ranks, nobody has to wait for both.

    One after the other they last 1 + 1 ms; the ranks, two pairs, each have one slow and one fast
    step.
    """
    slow, fast = 1e-3, 1e-6
    pairs = [((0, 1), slow), ((2, 3), fast), ((0, 4), fast), ((2, 5), slow)]
    links = [
        link
        for pair, latency in pairs
        for link in both_ways([pair], bandwidth=np.inf, latency=latency)
    ]
    joined = both_ways([(1, 2)], bandwidth=np.inf, latency=0.0)
    network = topology("uneven", 6, links + joined)
    at_once = np.array([0, 0]), np.array([1, 1]), False
    steps = (
        Step(np.array([0, 2]), np.array([1, 3]), *at_once),
        Step(np.array([0, 2]), np.array([4, 5]), *at_once),
    )
    schedule = Schedule("broadcast", "two pairs", ranks=6, chunks=1, parts=1, steps=steps)
    in_step = cost(lay_in_step(Plan(schedule), np.arange(6, dtype=np.int32), 8.0, network))
    assert in_step == pytest.approx(2 * slow)
    for engine in ENGINES:
        took = collective(schedule, network, 8.0, engine=engine).makespan
        assert took == pytest.approx(slow + fast)


@pytest.mark.parametrize("engine", ["flow", "transfer"])
@given(case=cases(), scale=scales)
def test_no_step_is_shorter_than_its_links_need(engine, case, scale):
    workload, network = case
    costs = Costs(network, plan)
    least = least_times(workload, costs, engine)
    ones, rows = np.ones(len(least)), np.arange(len(least))
    factors = {part: np.array([by]) for part, by in scale.items()}
    changed = Points(least[:, None], rows, ones, factors)
    bound = least_of_links(contract(workload), changed, busiest_links(workload, costs))
    step = timeline(scaled_parts(workload, scale), network, engine=engine).makespan
    assert step >= bound * (1 - 1e-9) - 1e-10


jobs = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6
)


@given(jobs=jobs)
def test_the_bound_of_a_link_is_that_of_the_worst_set_of_calls(jobs):
    """Carlier's theorem 1: least start, all the work, least tail, of any set of them."""
    head, busy, tail = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    sets = (
        list(chosen)
        for size in range(1, len(jobs) + 1)
        for chosen in combinations(range(len(jobs)), size)
    )
    worst = max(head[one].min() + busy[one].sum() + tail[one].min() for one in sets)
    assert least_of_link(head, busy, tail) == pytest.approx(worst)


def convex(x):
    """Three lines, one after the other the highest."""
    return np.max([np.full_like(x, 1.0), 0.4 + x, 3 * x - 4], axis=0)


@pytest.mark.parametrize(
    ("is_convex", "gap"), [(True, 0.3), (True, 1e-2), (True, 1e-6), (False, 0.3), (False, 5e-3)]
)
def test_the_curve_is_within_its_gap_of_the_lines(gap, is_convex):
    curve = trace(convex, 0.1, 10.0, gap=gap, convex=is_convex)
    x = np.geomspace(0.1, 10, 5001)
    off = np.abs(curve.at(x) - convex(x))
    of = np.clip(np.searchsorted(curve.x, x, side="right") - 1, 0, len(curve.gap) - 1)
    assert (off <= curve.gap[of] + 1e-12).all()
    assert curve.gap.max() <= gap
    assert not curve.fell


@given(
    lines=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 9)), min_size=1, max_size=5),
    gap=st.floats(1e-3, 1),
)
def test_it_is_so_for_any_rising_convex_curve(lines, gap):
    def highest(x):
        return np.max([start + slope * x for start, slope in lines], axis=0)

    curve = trace(highest, 0.05, 4.0, gap=gap, convex=True)
    x = np.geomspace(0.05, 4, 2001)
    assert np.abs(curve.at(x) - highest(x)).max() <= gap + 1e-9
    assert curve.gap.max() <= gap * (1 + 1e-12)


def test_convexity_saves_points():
    asked = {True: 0, False: 0}
    for is_convex in asked:

        def counted(x, is_convex=is_convex):
            asked[is_convex] += len(x)
            return convex(x)

        trace(counted, 0.1, 10.0, gap=1e-3, convex=is_convex)
    assert asked[True] < asked[False] / 20


def test_a_jump_leaves_a_gap_that_is_told():
    curve = trace(lambda x: np.where(x < 1, 1.0, 2.0), 0.1, 10.0, gap=0.1, convex=False)
    assert curve.gap.max() >= 1
    assert not curve.fell


def test_a_step_that_falls_is_told():
    assert trace(lambda x: 2 - x, 0.1, 1.0, gap=0.1, convex=False).fell


def test_a_curve_ends_at_the_most_points():
    counted = []
    trace(lambda x: counted.extend(x) or x, 0.1, 10.0, gap=1e-9, convex=False, most=100)
    assert len(counted) == 100


def test_break_even_is_where_doubling_stops_to_pay():
    """Of ``1 + x`` doubling saves ``x / 2``: a tenth at x = 0.25."""
    x = break_even(lambda x: 1 + x, 0.01, 10.0, factor=2.0, least=0.1)
    assert x == pytest.approx(0.25, rel=1e-4)


def test_break_even_asks_for_nothing_beyond_the_curve():
    asked = []
    break_even(lambda x: asked.extend(x) or 1 + x, 0.01, 10.0, factor=4.0, least=0.1)
    assert min(asked) >= 0.01 * (1 - 1e-12)
    assert max(asked) <= 10 * (1 + 1e-12)


def test_break_even_is_an_end_if_it_pays_nowhere_or_everywhere():
    assert break_even(lambda x: 0 * x + 1, 0.01, 10.0, factor=2.0, least=0.1) == 10
    assert break_even(lambda x: x, 0.01, 10.0, factor=2.0, least=0.4) is None


def judged(workload, network):
    truth = timeline(workload, network)
    return overlap(truth, Costs(network, plan)), truth


@given(case=cases())
def test_where_no_calls_overlap_on_a_link_flow_says_the_same(case):
    workload, network = case
    shared, truth = judged(workload, network)
    assert shared.contended >= shared.step == truth.makespan
    if not shared.calls:
        flow = timeline(workload, network, engine="flow")
        assert flow.end == pytest.approx(truth.end, rel=1e-9, abs=1e-12)
        assert shared.fraction == 0


def pair(size, apart, *, network=None, groups=((0, 1), (0, 1))):
    """Two messages between two ranks, the second ``apart`` seconds behind the first."""
    builder = WorkloadBuilder(job_ranks=4)
    for number, group in enumerate(groups):
        call = builder.call(CallRow("send_receive", builder.group(group), number, size))
        for rank in group:
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"s{number}",
                name="c",
                duration=0.0,
                call=call,
                ready=number * apart,
            )
    return builder.build(), network or switch_network(4, bandwidth=1e9, latency=0.0)


@pytest.mark.parametrize("apart", [0.0, 0.25e-3, 0.9e-3])
def test_the_estimate_for_two_messages_on_one_link_is_the_step_with_contention(apart):
    workload, network = pair(1e6, apart)
    shared, _ = judged(workload, network)
    flow = timeline(workload, network, engine="flow").makespan
    assert shared.calls == 2
    assert shared.contended == pytest.approx(flow, rel=1e-9)
    assert shared.matters


def test_messages_one_behind_the_other_and_on_other_links_do_not_overlap():
    for workload, network in (pair(1e6, 1e-3), pair(1e6, 0.0, groups=((0, 1), (2, 3)))):
        shared, _ = judged(workload, network)
        assert shared.calls == 0
        assert not shared.matters


def test_opposite_directions_share_no_link():
    shared, _ = judged(*pair(1e6, 0.0, groups=((0, 1), (1, 0))))
    assert shared.calls == 0


def test_messages_on_two_tiers_share_no_link():
    groups = ((0, 2), (0, 1))
    shared, _ = judged(*pair(1e6, 0.0, network=two_tiers(4), groups=groups))
    assert shared.calls == 0


def test_points_of_no_scenario_have_no_steps():
    workload, network = pair(1e6, 0.0)
    one = points(workload, network)
    none = Points(one.cost[:, :0], one.row, one.factor, {})
    assert len(makespans(contract(workload), none)) == 0
