"""Times that are known without a simulation."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import direct, ring, tree
from helpers.closed_forms import ring_all_reduce
from helpers.strategies import ENGINES, collective, full_network, plan, ring_network, switch_network
from helpers.tries import tries
from helpers.work import python_calls
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.topology import Link, topology
from simulator.workload import What

every_engine = pytest.mark.parametrize("engine", ENGINES)
alphas = st.floats(0.0, 1e-3)
bandwidths = st.floats(1e6, 1e12)
amounts = st.floats(0.0, 1e10)


@every_engine
@tries(25)
@given(n=st.integers(2, 9), alpha=alphas, bandwidth=bandwidths, size=amounts)
def test_a_ring_all_reduce_on_a_ring_takes_hockneys_time(engine, n, alpha, bandwidth, size):
    network = ring_network(n, bandwidth=bandwidth, latency=alpha)
    timeline = collective(ring.all_reduce(n), network, size, engine=engine)
    expected = ring_all_reduce(size=size, n=n, alpha=alpha, bandwidth=bandwidth)
    assert expected == pytest.approx(2 * (n - 1) * (alpha + size / n / bandwidth))
    assert timeline.makespan == pytest.approx(expected, rel=1e-9, abs=1e-11)


@every_engine
@pytest.mark.parametrize("hops", [1, 2, 3, 7])
def test_a_path_of_many_hops_costs_an_alpha_each_and_its_bytes_once(engine, hops):
    nodes = [0, *range(100, 99 + hops), 1]
    links = [Link(*pair, 1e9, 2e-6) for pair in pairwise(nodes)]
    timeline = collective(direct.send_receive(), topology("line", 2, links), 1e6, engine=engine)
    assert timeline.makespan == pytest.approx(hops * 2e-6 + 1e-3, rel=1e-12)


@every_engine
def test_the_narrowest_link_of_a_path_sets_the_pace(engine):
    links = [Link(0, "a", 3e9, 0.0), Link("a", "b", 1e9, 0.0), Link("b", 1, 2e9, 0.0)]
    timeline = collective(direct.send_receive(), topology("line", 2, links), 1e6, engine=engine)
    assert timeline.makespan == pytest.approx(1e-3, rel=1e-12)


@every_engine
@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_direct_all_to_all_on_a_switch_is_held_by_the_port(engine, n):
    timeline = collective(direct.all_to_all(n), switch_network(n), 1e6, engine=engine)
    assert timeline.makespan == pytest.approx(2e-6 + (n - 1) / n * 1e6 / 1e9, rel=1e-9)


@every_engine
@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_direct_all_to_all_on_links_of_its_own_takes_one_message(engine, n):
    timeline = collective(direct.all_to_all(n), full_network(n), 1e6, engine=engine)
    assert timeline.makespan == pytest.approx(1e-6 + 1e6 / n / 1e9, rel=1e-9)


@every_engine
@pytest.mark.parametrize(("n", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3)])
def test_a_tree_broadcast_takes_its_depth_in_messages(engine, n, rounds):
    timeline = collective(tree.broadcast(n), full_network(n), 1e6, engine=engine)
    assert timeline.makespan == pytest.approx(rounds * (1e-6 + 1e-3), rel=1e-9)


@every_engine
def test_software_is_paid_once_per_call_and_once_per_step(engine):
    software = {"overhead": 7e-6, "step_latency": 3e-6, "efficiency": 0.5}
    timeline = collective(ring.all_reduce(4), ring_network(4), 1e6, engine=engine, **software)
    assert timeline.makespan == pytest.approx(7e-6 + 6 * (1e-6 + 3e-6 + 1e6 / 4 / 1e9 / 0.5))


@every_engine
def test_a_group_of_one_pays_the_overhead_alone(engine):
    network = topology("alone", 1, [])
    timeline = collective(ring.all_reduce(1), network, 1e6, engine=engine, overhead=7e-6)
    assert timeline.makespan == pytest.approx(7e-6)


@every_engine
def test_links_of_infinite_bandwidth_cost_their_latency(engine):
    network = ring_network(4, bandwidth=float("inf"), latency=1e-6)
    timeline = collective(ring.all_reduce(4), network, 1e9, engine=engine)
    assert timeline.makespan == pytest.approx(6e-6)


def test_a_thousand_ranks_take_hockneys_time_and_a_handful_of_events():
    n, size = 1024, 64 * 2**20
    schedule, network = ring.all_reduce(n), ring_network(n, bandwidth=50e9, latency=2e-6)
    timeline = collective(schedule, network, size)
    expected = ring_all_reduce(size=size, n=n, alpha=2e-6, bandwidth=50e9)
    assert timeline.makespan == pytest.approx(expected, rel=1e-9)
    work = python_calls(lambda: collective(schedule, network, size))
    assert work < 20 * n  # of n * (2 * n - 2) transfers


@every_engine
def test_every_port_of_a_switch_carries_what_its_rank_sends_or_receives(engine):
    timeline = collective(direct.all_to_all(4), switch_network(4), 8e5, engine=engine)
    assert timeline.link_bytes.tolist() == pytest.approx([6e5] * 8)


@every_engine
def test_like_groups_on_unlike_links_cost_what_their_own_links_cost(engine):
    builder = WorkloadBuilder(job_ranks=4)
    for sequence, members in enumerate([(0, 1), (2, 3)]):
        call = builder.call(CallRow("all_gather", builder.group(members), sequence, 2e3))
        for rank in members:
            builder.op(What.COLLECTIVE, rank=rank, lane="c", name="c", duration=0.0, call=call)
    links = [Link(a, b, 1e3 * 2**a, 0.0) for a, b in [(0, 1), (1, 0), (2, 3), (3, 2)]]
    timeline = simulate(builder.build(), topology("pairs", 4, links), plan, engine=engine)
    assert timeline.call_end.tolist() == pytest.approx([1.0, 0.25])
