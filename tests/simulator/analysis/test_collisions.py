"""Collisions inside a call, and calls that meet: which link, how many, by how much."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.packets import packet_delay
from helpers.strategies import cases, with_software
from helpers.tries import tries
from simulator.analysis.contention import collision, meetings, packet_factor, spread_evenly
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.link_load import cost, plan_loads
from simulator.engine.simulate import Costs, simulate_on
from simulator.routing.routes import routes
from simulator.schedule import Plan, Schedule, Step
from simulator.topology import Link, Routing, topology
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


@pytest.mark.parametrize("ranks", [2, 3, 5, 9])
def test_packets_to_the_only_rank_behind_the_spines_count_whichever_it_is(ranks):
    """Nine ranks and fewer are all looked at; within a leaf packets have headers only."""
    headers = 1 + 64 / 4096
    for far in (*range(1, ranks), None):
        cables = [(rank, f"leaf:{int(rank == far)}") for rank in range(ranks)]
        cables += [(f"leaf:{leaf}", f"spine:{n}") for leaf in range(2) for n in range(4)]
        links = [Link(*end, 12.5e9, 1e-6) for cable in cables for end in (cable, cable[::-1])]
        network = replace(topology("far", ranks, links), routing=Routing("spray"))
        # Four cables on the way, two of them between switches, where four ports are chosen from.
        delay = 0.0 if far is None else np.sqrt(2 * (1 - 1 / 4) / (2 * (8e-6 * 12.5e9 / 4160 + 4)))
        assert packet_factor(network) == pytest.approx(headers * (1 + delay)), far


def drawn_exchange(chance, ranks):
    """Steps of transfers of different sizes between drawn pairs; some are repeated."""
    steps = []
    for _ in range(chance.integers(1, 4)):
        source = chance.integers(0, ranks, chance.integers(1, 9)).astype(np.int32)
        target = ((source + chance.integers(1, ranks, len(source))) % ranks).astype(np.int32)
        count = chance.integers(1, 4, len(source)).astype(np.int32)
        repeats = int(chance.integers(1, 4))
        zero = np.zeros(len(source), np.int32)
        steps.append(Step(source, target, zero, count, reduce=False, repeats=repeats))
    return Plan(Schedule("all_to_all", "drawn", ranks, 3, 1, tuple(steps)))


def busy_plainly(plan, step, network):
    """Bytes over bandwidth of each link, and which transfers are on it, one after the other."""
    busy, on_link = [0.0] * len(network), [[] for _ in range(len(network))]
    for number in range(len(step.source)):
        ends = (np.array([end[number]], np.int32) for end in (step.source, step.target))
        ways = routes(network, *ends)
        for link, share in zip(ways.link.tolist(), ways.share.tolist(), strict=True):
            busy[link] += step.count[number] * share / network.bandwidth[link]
            on_link[link].append((int(step.source[number]), int(step.target[number])))
    return busy, on_link


@tries(50)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["ecmp", "static", "d_mod_k"]),
    st.sampled_from(["leaf_spine:2x4x4", "fat_tree:4", "leaf_spine:4x2x3:2"]),
)  # fmt: skip
def test_where_most_messages_meet_is_what_a_list_of_all_of_them_says(seed, policy, spec):
    chance = np.random.default_rng(seed)
    network = parse_topology(spec, **CABLE)
    network = replace(network, routing=Routing(policy, seed=int(chance.integers(9))))
    plan = drawn_exchange(chance, network.ranks)
    both = network, spread_evenly(network)
    positions = np.arange(network.ranks, dtype=np.int32)
    found = collision(plan, positions, 1e9, both)
    took = [cost(plan_loads(plan, positions, 1e9, one)) for one in both]
    if took[0] <= took[1] * 1.05:
        assert found is None
        return
    assert found.slower == pytest.approx(took[0] / took[1])
    lost = []
    for step in plan.schedule.steps:
        chosen, even = (busy_plainly(plan, step, one)[0] for one in both)
        lost.append(step.repeats * (max(chosen) - max(even)))
    step = plan.schedule.steps[lost.index(max(lost))]
    (busy, on_link), (even, _) = (busy_plainly(plan, step, one) for one in both)
    fuller = [one if one > other * (1 + 1e-9) else 0 for one, other in zip(busy, even, strict=True)]
    link = fuller.index(max(fuller))
    ends = network.nodes[network.source[link]], network.nodes[network.target[link]]
    assert found.link == tuple(map(str, ends))
    assert found.messages == len(on_link[link])
    assert found.pairs == tuple(on_link[link][:4])


@tries(60)
@given(cases(items=14))
def test_calls_that_meet_are_those_that_a_loop_over_all_pairs_finds(case):
    workload, network = case
    costs = Costs(network, with_software)
    timeline = simulate_on(workload, costs, engine="flow")
    number = range(len(workload.calls))
    start, end = timeline.call_start.tolist(), timeline.call_end.tolist()
    views = [workload.call_view(call) for call in number]
    loads = [costs.loads(view) for view in views]
    alone = [
        sum(load.time for load in loads[call]) * float(workload.calls.factor[call])
        for call in number
    ]
    took = [end[call] - start[call] for call in number]
    lost = {
        call: took[call] - alone[call] for call in number if took[call] > alone[call] * 1.000001
    }
    busy = []
    for call in number:
        each = dict.fromkeys(range(len(network)), 0.0)
        for load in loads[call]:
            for link, weight in zip(load.link.tolist(), load.weight.tolist(), strict=True):
                each[link] += weight * load.amount / network.bandwidth[link]
        busy.append(each)
    wanted = {}
    for call in lost:
        spans = {
            other: min(end[call], end[other]) - max(start[call], start[other])
            for other in number
            if other != call
        }
        beside = sorted((one for one in spans if spans[one] > 0), key=lambda one: -spans[one])
        for other in beside:
            shared = [min(busy[call][link], busy[other][link]) for link in range(len(network))]
            if any(shared):
                link = shared.index(max(shared))
                names = sorted(
                    f"{views[one].kind}"
                    + f" ({views[one].group.label})" * bool(views[one].group.label)
                    for one in (call, other)
                )
                wanted.setdefault((link, *names), []).append(lost[call])
                break
    found = meetings(timeline, costs, most=99)
    ends = {
        (
            str(network.nodes[network.source[link]]),
            str(network.nodes[network.target[link]]),
            *names,
        ): (len(times), pytest.approx(sum(times), rel=1e-6))
        for (link, *names), times in wanted.items()
    }
    assert {(*one.link, *one.calls): (one.times, one.lost) for one in found} == ends
    assert [one.lost for one in found] == sorted((one.lost for one in found), reverse=True)
    assert meetings(timeline, costs) == found[:3]


@given(
    st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.01, 1)), min_size=1, max_size=4),
    st.floats(1, 100),
    st.floats(1, 3),
)
def test_packets_wait_until_a_sender_has_no_more_of_them_on_their_way(cables, in_flight, windows):
    """What waits at all cables, beside what fills the way, is what its window lets it send."""
    load, variance = np.array(cables).T
    delay = packet_delay(load, variance, in_flight, windows)
    queued = sum(
        change * full / (1 + delay) / (2 * (1 - full / (1 + delay))) for full, change in cables
    )
    if 1e-6 < delay < 9.999:
        assert in_flight + queued == pytest.approx(windows * in_flight * (1 + delay), rel=1e-4)
    alike = packet_delay(np.ones(len(load)), variance, in_flight)
    assert alike == pytest.approx((variance.sum() / (2 * in_flight)) ** 0.5, abs=1e-8)
