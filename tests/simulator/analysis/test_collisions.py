"""Collisions inside a call, and calls that meet: which link, how many, by how much."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.analysis.contention import (
    collision,
    meetings,
    packet_delay,
    packet_factor,
    spread_evenly,
)
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import Costs, simulate_on
from simulator.schedule import Plan, Schedule, Step
from simulator.topology import Routing
from simulator.workload import What
from topologies import parse_topology, switch

CABLE = {"bandwidth": 1e9, "latency": 0.0}


def exchange(pairs, ranks):
    source, target = np.array(pairs, dtype=np.int32).T
    none, one = np.zeros(len(pairs), np.int32), np.ones(len(pairs), np.int32)
    step = Step(source, target, none, one, reduce=False)
    return Plan(Schedule("all_to_all", "drawn", ranks, 1, 1, (step,)))


def met(policy, seed=0):
    network = replace(
        parse_topology("leaf_spine:2x4x4", **CABLE), routing=Routing(policy, seed=seed)
    )
    plan = exchange([(rank, rank + 4) for rank in range(4)], 8)
    return collision(plan, np.arange(8, dtype=np.int32), 1e9, (network, spread_evenly(network)))


def test_four_messages_on_four_spines_take_as_long_as_the_most_on_one():
    for seed in range(20):
        found = met("ecmp", seed)
        if found is None:  # all four apart: 9 % of the draws
            continue
        assert found.slower == pytest.approx(found.messages)
        assert len(found.pairs) == found.messages
        assert all(there == here + 4 for here, there in found.pairs)
        assert {end.split(":")[0] for end in found.link} == {"leaf", "spine"}


@pytest.mark.parametrize("policy", ["d_mod_k", "spray", "adaptive"])
def test_where_no_message_meets_another_there_is_nothing_to_say(policy):
    assert met(policy) is None


def two_calls(delay):
    """All-gathers of ranks 0 and 1 and of 0 and 2, the second later by ``delay`` (s)."""
    builder = WorkloadBuilder(job_ranks=3)
    for lane, (other, begin) in enumerate([(1, 0.0), (2, delay)]):
        call = builder.call(
            CallRow("all_gather", builder.group((0, other), label=f"g{lane}"), 0, 2e9)
        )
        for rank in (0, other):
            wait = builder.op(What.COMPUTE, rank=rank, lane=f"l{lane}", name="w", duration=begin)
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane=f"l{lane}", name="g", duration=0.0, call=call
            )
            builder.edge(wait, op)
    return builder.build()


def met_on_switch(delay):
    pair, none = np.array([0, 1], np.int32), np.zeros(2, np.int32)
    step = Step(pair, pair[::-1], pair, none + 1, reduce=False)
    schedule = Schedule("all_gather", "pair", 2, 2, 2, (step,))
    costs = Costs(switch(3, **CABLE), lambda call, topology: Plan(schedule))
    return meetings(simulate_on(two_calls(delay), costs, engine="flow"), costs)


def test_two_calls_on_one_cable_lose_what_the_closed_form_says():
    """1 GB each over rank 0's cable of 1 GB/s, at once: both take 2 s, and lose 1 s each."""
    (one,) = met_on_switch(0.0)
    assert 0 in [int(end) for end in one.link if end.isdigit()]
    assert one.calls == ("all_gather (g0)", "all_gather (g1)")
    assert (one.times, one.lost) == (2, pytest.approx(2.0))


def test_calls_one_after_the_other_do_not_meet():
    assert met_on_switch(1.5) == ()


@pytest.mark.parametrize(("ports", "busy"), [(4, 0.5), (8, 0.8)])
def test_packets_queue_as_they_do_behind_a_switch(ports, busy):
    """A slot moves one packet; each port sends one with chance ``busy / ports``: Karol 1987."""
    arrivals = np.random.default_rng(3).binomial(ports, busy / ports, 400_000)
    walk = np.cumsum(arrivals - 1)
    queue = walk - np.minimum.accumulate(np.minimum(walk, 0))
    waited = queue.mean() / busy  # Little's law
    variance = 1 - 1 / ports
    assert waited == pytest.approx(variance * busy / (2 * (1 - busy)), rel=0.05)
    # Where a sender's window lets it send at just this speed, that is what packets wait.
    in_flight = waited / (1 / busy - 1)
    assert packet_delay(np.ones(1), np.array([variance]), in_flight) == pytest.approx(
        1 / busy - 1, rel=0.05
    )


def test_packets_lose_more_the_more_of_them_meet_and_the_fewer_are_on_their_way():
    cable = {"bandwidth": 12.5e9, "latency": 1e-6}
    factor = {
        policy: packet_factor(parse_topology(f"fat_tree:8@{policy}", **cable))
        for policy in ("spray", "adaptive", "ecmp", "d_mod_k")
    }
    headers = 1 + 64 / 4096
    assert factor["ecmp"] == factor["d_mod_k"] == headers
    # Four cables between switches, four ways at each; 12 us and 6 packets fill the way.
    in_flight = 12e-6 * 12.5e9 / 4160 + 6
    assert factor["spray"] == pytest.approx(headers * (1 + np.sqrt(3 / (2 * in_flight))))
    assert factor["adaptive"] == pytest.approx(headers * (1 + np.sqrt(1.5 / (2 * in_flight))))
    shorter = parse_topology("fat_tree:8@spray", bandwidth=12.5e9, latency=1e-7)
    assert packet_factor(shorter) > factor["spray"]
    assert packet_factor(switch(64, **cable)) is None
