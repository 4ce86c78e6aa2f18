"""Contraction and the pass over what it leaves are exact: the engine op by op is the oracle."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.passes import OF_OPS, points, scaled, scales, timeline
from helpers.strategies import cases, switch_network, with_software
from helpers.tries import tries
from simulator.analytic.contraction import contract
from simulator.analytic.longest_path import Points, makespans, starts
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulation import LocalTimes
from simulator.support.errors import DeadlockError, WorkloadError
from simulator.workload import What

exact = {"rel": 1e-12, "abs": 1e-18}


@given(case=cases(), scale=scales)
def test_the_step_is_the_engines_whatever_the_factors_are(case, scale):
    workload, network = case
    graph = contract(workload)
    (step,) = makespans(graph, points(workload, network, scale))
    truth = timeline(scaled(workload, scale), network)
    assert step == pytest.approx(truth.makespan, **exact)


@given(case=cases(), part=st.sampled_from(OF_OPS), scale=scales)
def test_it_is_so_if_only_what_is_scaled_is_told_apart(case, part, scale):
    workload, network = case
    scale = {part: scale[part]}
    whole, some = contract(workload), contract(workload, [part])
    at = points(workload, network, scale)
    assert makespans(some, at) == pytest.approx(makespans(whole, at), **exact)
    assert len(contract(workload, []).source) <= len(some.source) <= len(whole.source)


@given(case=cases(), scale=scales)
def test_calls_start_when_they_do_in_the_engine(case, scale):
    workload, network = case
    graph = contract(workload)
    start = starts(graph, points(workload, network, scale))[:, 0]
    truth = timeline(scaled(workload, scale), network)
    is_call = graph.call >= 0
    assert start[is_call] == pytest.approx(truth.call_start[graph.call[is_call]], **exact)


@given(case=cases())
def test_every_op_gets_its_times_back(case):
    workload, network = case
    truth = timeline(workload, network, engine="flow")
    local = LocalTimes.of(workload, call_end=truth.call_end)
    local.begin()
    assert local.ops.start == pytest.approx(truth.start, **exact)
    assert local.ops.end == pytest.approx(truth.end, **exact)


@given(case=cases(serial=True), scale=scales)
def test_without_overlap_it_is_what_the_flow_engine_says(case, scale):
    workload, network = case
    at = points(workload, network, scale, planner=with_software)
    truth = timeline(scaled(workload, scale), network, planner=with_software, engine="flow")
    assert makespans(contract(workload), at) == pytest.approx([truth.makespan], rel=1e-9, abs=1e-15)


@given(case=cases(), data=st.data(), count=st.sampled_from([1, 7, 129, 300]))
def test_scenarios_do_not_know_of_each_other(case, data, count):
    """Blocks of scenarios of any width, of equal scales or not: each is answered as if alone."""
    workload, network = case
    one = points(workload, network)
    some = st.lists(st.floats(0, 4), min_size=count, max_size=count)
    times, compute = (np.array(data.draw(some)) for _ in range(2))
    compute = data.draw(st.sampled_from([compute, np.full(count, 0.7)]))
    graph = contract(workload)
    many = Points(one.cost * times, one.row, one.factor, {What.COMPUTE: compute})
    alone = [
        makespans(
            graph, Points(one.cost * times[at], one.row, one.factor, {What.COMPUTE: compute[[at]]})
        )[0]
        for at in range(0, count, 50)
    ]
    assert makespans(graph, many)[::50].tolist() == alone


def chain(length):
    """Host, compute and copy by turns on one rank, each launched by the one before."""
    builder = WorkloadBuilder(job_ranks=1)
    before = None
    for number in range(length):
        what = OF_OPS[number % 3]
        op = builder.op(what, rank=0, lane="one", name="op", duration=1.0 + number)
        if before is not None:
            builder.edge(before, op, lag=0.5)
        before = op
    return builder.build()


def test_a_chain_is_one_edge_with_its_time_by_part():
    graph = contract(chain(6))
    assert (len(graph), len(graph.source)) == (2, 1)
    assert graph.weight.tolist() == [[0.5 * 3, 5 + 0.5 * 2, 7, 9]]
    assert graph.ratio == 5


def test_a_long_chain_takes_no_recursion():
    assert contract(chain(100_000)).ratio > 50_000


def test_a_way_that_is_never_the_longest_is_left_out():
    """Of three ways side by side the middle one is shorter than a mean of the others."""
    builder = WorkloadBuilder(job_ranks=1)
    ends = [builder.op(What.HOST, rank=0, lane=place, name="end", duration=0.0) for place in "ab"]
    for host, compute in ((4.0, 0.0), (1.9, 1.9), (0.0, 4.0)):
        one = builder.op(What.HOST, rank=0, lane="h", name="h", duration=host)
        other = builder.op(What.COMPUTE, rank=0, lane="c", name="c", duration=compute)
        for edge in ((ends[0], one), (one, other), (other, ends[1])):
            builder.edge(*edge)
    graph = contract(builder.build(), [What.COMPUTE])
    assert len(graph.source) == 2


def no_shorter(weight, than):
    return all(one >= other for one, other in zip(weight, than, strict=True))


def replaced(weight, low, high):
    """Whether some weighted mean of two edges is no shorter: at an end of where each part is."""
    ends = [0.0, 1.0]
    for middle, one, other in zip(weight, low, high, strict=True):
        if one != other:
            ends.append(min(1.0, max(0.0, (middle - one) / (other - one))))
    means = [[(1 - x) * a + x * b for a, b in zip(low, high, strict=True)] for x in ends]
    return any(no_shorter(mean, weight) for mean in means)


@tries(100)
@given(case=cases(), part=st.sampled_from([*OF_OPS, None]))
def test_nothing_is_left_that_something_else_replaces(case, part):
    """No edge beside one as long, nor beside two others that are, nor beside a path as long.

    And no point that only one edge leads to, or from, but calls and the ends.
    """
    graph = contract(case[0], OF_OPS if part is None else [part])
    edges = [
        (source, target, graph.weight[row].tolist())
        for target in range(len(graph))
        for row in range(graph.offset[target], graph.offset[target + 1])
        for source in [int(graph.source[row])]
    ]
    for source, target, weight in edges:
        beside = [w for s, t, w in edges if (s, t) == (source, target) and w is not weight]
        assert not any(no_shorter(other, weight) for other in beside)
        if part is not None:
            assert not any(replaced(weight, *two) for two in combinations(beside, 2))
        for _, over, first in (edge for edge in edges if edge[0] == source):
            for second in (w for s, t, w in edges if (s, t) == (over, target)):
                path = [one + other for one, other in zip(first, second, strict=True)]
                assert not no_shorter(path, weight)
    ops = [point for point in range(1, len(graph) - 1) if graph.call[point] < 0]
    for point in ops:
        assert sum(target == point for _, target, _ in edges) > 1
        assert sum(source == point for source, _, _ in edges) > 1


@pytest.mark.parametrize("direct", [2.5, 2.9, 3.1, 4.0])
def test_a_direct_way_counts_unless_the_way_over_a_call_is_as_long(direct):
    """From the start 2 s to a call that costs nothing and 1 s to the next, or directly there."""
    builder = WorkloadBuilder(job_ranks=1)
    calls = [builder.call(CallRow("barrier", builder.group((0,)), n, 0.0)) for n in (0, 1)]
    first, second = (
        builder.op(What.COLLECTIVE, rank=0, lane="s", name="c", duration=0.0, call=call)
        for call in calls
    )
    ways = (((), 2.0, first), ((first,), 1.0, second), ((), direct, second))
    for before, duration, after in ways:
        op = builder.op(What.COMPUTE, rank=0, lane="k", name="k", duration=duration)
        for one in before:
            builder.edge(one, op)
        builder.edge(op, after)
    workload = builder.build()
    graph = contract(workload)
    assert len(graph.source) == (4 if direct > 3 else 3)
    network = switch_network(2)
    assert makespans(graph, points(workload, network)) == pytest.approx([max(3.0, direct)])


def crossed():
    builder = WorkloadBuilder(job_ranks=2)
    calls = [builder.call(CallRow("all_reduce", builder.group((0, 1)), n, 8.0)) for n in (0, 1)]
    for rank, order in enumerate((calls, calls[::-1])):
        ops = [
            builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
            for call in order
        ]
        builder.edge(*ops)
    return builder.build()


def test_calls_in_opposite_orders_are_a_deadlock_that_names_them():
    with pytest.raises(DeadlockError, match=r"in a cycle: all_reduce #0.*all_reduce #1"):
        contract(crossed())


def test_an_empty_step_takes_no_time():
    workload = WorkloadBuilder(job_ranks=1).build()
    assert makespans(contract(workload), points(workload, switch_network(2))).tolist() == [0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": np.array([[np.nan]])}, "cost"),
        ({"cost": np.array([[-1.0]])}, "cost"),
        ({"scale": {What.HOST: np.array([np.inf])}}, "scale of host"),
        ({"scale": {What.HOST: np.ones(2)}}, "each of 1 scenarios"),
        ({"row": np.arange(2)}, "as many factors as rows"),
        ({"row": np.array([1])}, "a row outside the 1 of the costs"),
    ],
)
def test_what_is_no_scenario_is_refused(change, message):
    sound = {"cost": np.ones((1, 1)), "row": np.arange(1), "factor": np.ones(1), "scale": {}}
    with pytest.raises(WorkloadError, match=message):
        Points(**(sound | change))


def test_a_part_that_was_not_told_apart_cannot_be_scaled():
    workload = chain(3)
    at = points(workload, switch_network(2), {What.COPY: 2.0})
    with pytest.raises(WorkloadError, match="copy"):
        makespans(contract(workload, [What.HOST]), at)
