"""A step asked again with other numbers is what it is asked for the first time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import ring
from collectives.algorithms.hierarchical import placed
from helpers.replicated import replicated
from helpers.strategies import plan, switch_network, with_software
from helpers.tries import few
from helpers.wide_cases import NETWORKS, wide_case
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.call_costs import Costs, Likenesses
from simulator.engine import simulate as module
from simulator.engine import works
from simulator.engine.simulate import Replays, simulate, simulate_on
from simulator.folding.fold import Folds
from simulator.routing.paths import between_switches
from simulator.routing.routes import routes
from simulator.workload import What
from topologies import parse_topology

TIMES = ("start", "end", "call_start", "call_end", "call_spent", "link_bytes")
NEAR = 1e-9


def same(one, other):
    for name in TIMES:
        expected = getattr(other, name)
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
        np.testing.assert_allclose(
            getattr(one, name), expected, rtol=NEAR, atol=largest * NEAR**2, err_msg=name
        )
    np.testing.assert_array_equal(one.released_by, other.released_by)


def points(found, random):
    """The case itself, and others with other bandwidths, latencies, times, factors and software."""
    yield found.workload, found.network, found.planner
    for _ in range(4):
        network, workload = found.network, found.workload
        for name in network.resources:
            for of, column in (("bandwidth", "bandwidth"), ("latency", "latency")):
                values = getattr(network, column).copy()
                values[network.following(f"{name}.{of}")] *= random.choice([1.0, 2.0, 0.5, 7.0])
                network = replace(network, **{column: values})
        if random.integers(2):
            workload = workload.lasting(workload.duration * random.choice([0.5, 3.0]))
        if random.integers(3) == 0:
            workload = workload.with_calls(factor=workload.calls.factor * 0.75)
        software = {} if random.integers(2) else {"efficiency": 0.5, "overhead": 4e-6}
        software["bandwidth_factor"] = {network.resources[0]: float(random.choice([1.0, 0.7]))}
        planned = _otherwise(found.planner, software)
        yield workload, network, planned


def _otherwise(planner, software):
    return lambda call, network: replace(planner(call, network), **software)


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("number", range(4))
def test_a_further_point_is_as_if_it_was_the_first(family, number):
    holds(family, number)


@pytest.mark.parametrize(
    ("policy", "of_all", "of_one", "serves"),
    [
        ("adaptive", 3.0, 1.0, True),
        ("adaptive", 1.0, 0.5, False),
        ("adaptive", 1.0, np.inf, False),
        ("spray", 3.0, 0.5, True),
        ("spray", 1.0, np.inf, False),
    ],
)
def test_routes_written_before_serve_where_messages_take_them_again(policy, of_all, of_one, serves):
    """Adaptive switches follow the ratios of bandwidths, and nobody's bytes a link without one."""
    network = parse_topology(f"leaf_spine:2x2x2@{policy}", bandwidth=1e9, latency=1e-6)
    speed = network.bandwidth * of_all
    cable = np.flatnonzero(between_switches(network))[0]
    speed[cable] *= of_one
    other = replace(network, bandwidth=speed)
    ranks = np.arange(4, dtype=np.int32)
    ways = [routes(each, ranks, ranks[::-1]) for each in (network, other)]
    assert works.Works(network)._routes_as(other) == serves
    if serves:
        for one, again in zip(*ways, strict=True):
            np.testing.assert_array_equal(one, again)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", NETWORKS)
def test_further_points_of_many_steps_are_as_if_they_were_the_first(family):
    for number in range(4, 300):
        holds(family, number)


def holds(family, number):
    found, random = wide_case(family, number), np.random.default_rng(number)
    replays = Replays()
    for workload, network, planner in points(found, random):
        expected = simulate(workload, network, planner)
        same(replays.timeline(workload, Costs(network, planner)), expected)
        makespan = replays.timeline(workload, Costs(network, planner)).makespan
        assert makespan == pytest.approx(expected.makespan, rel=NEAR)


@few(8)
@given(case=replicated(), factors=st.permutations([0.25, 1.0, 3.0]))
def test_further_points_of_a_folded_step_are_those_of_all_ranks(case, factors):
    workload, network = case
    likenesses, folds, replays = Likenesses(), Folds(), Replays()
    for factor in factors:
        bandwidth = network.bandwidth * np.where(network.resource == 0, factor, 1.0)
        point = replace(network, bandwidth=bandwidth)
        costs = Costs(point, with_software, likenesses.of(point, None))
        folded = folds.fold(workload, costs)
        found = folded.unfold(replays.timeline(folded.workload, costs))
        expected = simulate(workload, point, with_software)
        assert found.call_end == pytest.approx(expected.call_end, rel=NEAR, nan_ok=True)
        assert found.end == pytest.approx(expected.end, rel=NEAR)


@pytest.mark.parametrize("family", ["torus", "drawn", "fat tree"])
def test_points_of_one_graph_are_set_up_once(family):
    found, replays = wide_case(family, 1), Replays()  # in which calls meet
    for factor in (1.0, 2.0, 3.0):
        network = replace(found.network, bandwidth=found.network.bandwidth * factor)
        replays.timeline(found.workload, Costs(network, found.planner))
    assert len(replays._kept) == 1


def test_steps_and_graphs_in_turn_do_not_get_in_each_others_way(monkeypatch):
    monkeypatch.setattr(module, "_MOST_CACHED", 2)
    replays = Replays()
    cases = [wide_case(family, number) for family in ("rail", "torus") for number in (1, 3)]
    for found in [*cases, *cases[::-1]]:
        costs = Costs(found.network, found.planner)
        expected = simulate_on(found.workload, costs, engine="flow")
        same(replays.timeline(found.workload, costs), expected)
    assert len(replays._kept) == 2


def test_a_link_that_leaves_its_like_is_a_graph_of_its_own():
    """On like ports one transfer stands for all of a ring; behind a slow port it no longer does."""
    builder = WorkloadBuilder(job_ranks=6)
    group = builder.group(tuple(range(6)))
    for number in range(2):
        call = builder.call(CallRow("all_gather", group, number, 1e6))
        for rank in range(6):
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"stream {number}",
                name="c",
                duration=0.0,
                call=call,
                ready=3e-4 * number,
            )
    step, network, replays = builder.build(), switch_network(6), Replays()
    slow = network.bandwidth.copy()
    slow[0] /= 5
    steps = []
    for one in (network, replace(network, bandwidth=slow), network):
        same(replays.timeline(step, Costs(one, plan)), simulate(step, one, plan))
        steps.append(replays.timeline(step, Costs(one, plan)).makespan)
    assert steps[1] > 4 * steps[0] == pytest.approx(4 * steps[2])
    assert len(replays._kept) == 2


def test_schedules_are_the_same_where_every_transfer_is():
    """As many steps of other transfers are another program."""
    ours, again = ring.all_gather(4), ring.all_gather(4)
    assert works._same(ours, ours)
    assert works._same(ours, again)
    assert not works._same(ours, placed(again, np.array([0, 2, 1, 3], dtype=np.int32)))
    assert not works._same(ours, ring.all_reduce(4))
    assert not works._same(ours, ring.all_gather(5))
