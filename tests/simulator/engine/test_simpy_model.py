"""Engine ``flow`` is held to the model in SimPy's own words, and its network to the definition."""

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pairs import NETWORKS, case, planned
from helpers.strategies import cases, with_software
from helpers.wide_cases import NETWORKS as FAMILIES
from helpers.wide_cases import wide_case
from simulator.engine.simpy_model import Network
from simulator.engine.simulate import simulate
from simulator.topology import Link, topology

TIMES = ("start", "end", "call_start", "call_end")
NEAR = 1e-9


def assert_engines_agree(workload, network, planner=with_software):
    """Times within 1e-9 of the step, bytes of links within 1e-9 of the most on one."""
    flow, model = (
        simulate(workload, network, planner, engine=engine) for engine in ("flow", "simpy")
    )
    step = model.makespan
    for name in TIMES:
        np.testing.assert_allclose(
            getattr(flow, name), getattr(model, name), rtol=0, atol=NEAR * step, err_msg=name
        )
    most = model.link_bytes.max(initial=0.0)
    np.testing.assert_allclose(flow.link_bytes, model.link_bytes, rtol=0, atol=NEAR * most)
    took = model.call_end - model.call_start
    made = np.isfinite(took)  # somebody takes part
    for timeline in (flow, model):
        spent = timeline.call_spent[made].sum(axis=1)
        np.testing.assert_allclose(spent, took[made], rtol=0, atol=NEAR * step)


@given(cases(items=14))
def test_flow_is_the_model_on_drawn_workloads(found):
    assert_engines_agree(*found)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", range(3))
def test_flow_is_the_model_on_eight_topologies(family, number):
    found = wide_case(family, number)
    assert_engines_agree(found.workload, found.network, found.planner)


@pytest.mark.parametrize(("family", "number"), [("fat tree", 226), ("dragonfly", 239)])
def test_a_rank_that_runs_ahead_meets_transfers_of_earlier_steps(family, number):
    """Two ranks of a tree are not in its first step, and a link of theirs carries it."""
    found = wide_case(family, number)
    assert_engines_agree(found.workload, found.network, found.planner)


@pytest.mark.parametrize("family", NETWORKS)
def test_flow_is_the_model_where_calls_of_any_algorithm_overlap(family):
    found = case(family, 1, calls=4, seed=20)
    assert_engines_agree(found.workload, found.network, planned)
    factor = np.array([3.0, 0.5, 1.0, 2.0])
    assert_engines_agree(found.workload.with_calls(factor=factor), found.network, planned)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@settings(max_examples=5000)
@given(cases(items=14))
def test_flow_is_the_model_on_five_thousand_drawn_workloads(found):
    assert_engines_agree(*found)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=625)
@given(number=st.integers(0, 2**32))
def test_flow_is_the_model_on_five_thousand_steps_on_eight_topologies(family, number):
    found = wide_case(family, number)
    assert_engines_agree(found.workload, found.network, found.planner)


@st.composite
def flows(draw):
    """Links in a row, with flows on them: ``(network, (begin, link, weight, amount) of each)``."""
    count = draw(st.integers(1, 5))
    bandwidth = draw(st.lists(st.floats(0.5, 1e3), min_size=count, max_size=count))
    links = [Link(number, number + 1, each, 0.0) for number, each in enumerate(bandwidth)]
    drawn = []
    for _ in range(draw(st.integers(1, 6))):
        link = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
        weight = [draw(st.one_of(st.just(1.0), st.floats(0.1, 10.0))) for _ in link]
        begin = draw(st.sampled_from([0.0, 0.0, 1.0, 2.5]))
        amount = draw(st.floats(1.0, 1e4))
        drawn.append((begin, np.array(link, dtype=np.int32), np.array(weight), amount))
    return topology("row", count + 1, links), drawn


def carried(network, drawn, look=lambda network: None):
    """Let flows begin; return when each arrived and what held it back, in that order."""
    env = simpy.Environment()
    shared, arrivals = Network(env, network), []

    def carry(begin, link, weight, amount):
        yield env.timeout(begin)
        spent = np.zeros(len(network.resources) + 1)
        yield shared.carry(link, weight, amount, spent)
        arrivals.append((begin, env.now, spent))

    for each in drawn:
        env.process(carry(*each))
    while env.peek() < np.inf:
        env.step()
        if env.peek() > env.now:  # the instant is over
            look(shared)
    return arrivals, shared


def check_max_min_fair(network):
    """No link is over its bandwidth; each flow is on a full link on which nobody is faster."""
    bandwidth, load = network.topology.bandwidth, np.zeros(len(network.topology))
    fastest = np.zeros_like(load)
    for flow in network.flows:
        load[flow.link] += flow.weight * flow.rate
        fastest[flow.link] = np.maximum(fastest[flow.link], flow.rate)
    assert (load <= bandwidth * (1 + NEAR)).all()
    full = load >= bandwidth * (1 - NEAR)
    for flow in network.flows:
        assert (full & (fastest <= flow.rate * (1 + NEAR)))[flow.link].any()
        assert full[flow.bottleneck]


@given(flows())
def test_shares_are_max_min_fair_at_all_times(found):
    network, drawn = found
    arrivals, shared = carried(network, drawn, check_max_min_fair)
    assert len(arrivals) == len(drawn)
    assert not shared.flows


@given(flows())
def test_all_bytes_arrive_no_sooner_than_alone_and_every_second_is_somebodys(found):
    network, drawn = found
    arrivals, shared = carried(network, drawn)
    given_bytes = np.zeros(len(network))
    for _, link, weight, amount in drawn:
        given_bytes[link] += weight * amount
    assert shared.link_bytes == pytest.approx(given_bytes)
    for begin, arrived, spent in arrivals:
        assert spent.sum() == pytest.approx(arrived - begin, rel=NEAR)
    last = max(arrived for _, arrived, _ in arrivals)
    assert last >= (given_bytes / network.bandwidth).max() * (1 - NEAR)


def test_a_flow_that_comes_later_halves_the_rate_of_the_first():
    """1 B/s: the first moves 1 of 2 B alone, then both move at half a byte per second."""
    network = topology("wire", 2, [Link(0, 1, 1.0, 0.0)])
    link, weight = np.zeros(1, dtype=np.int32), np.ones(1)
    arrivals, _ = carried(network, [(0.0, link, weight, 2.0), (1.0, link, weight, 2.0)])
    assert [arrived for _, arrived, _ in arrivals] == pytest.approx([3.0, 4.0])
