"""Routing policies: conservation, contention-free shifts, the expected loss of random hashing."""

from dataclasses import replace
from math import comb, factorial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.faults import cut, slow
from helpers.strategies import wild_networks
from helpers.tries import few, tries
from simulator.routing.paths import between_switches, found_paths, link_metrics
from simulator.routing.routes import best_part, mixed, routes
from simulator.routing.totals import link_loads
from simulator.support.errors import TopologyError
from simulator.topology import POLICIES, Link, Routing, topology
from topologies import parse_topology
from topologies.faults import Fault, LinkNamed, broken

CABLE = {"bandwidth": 1.0, "latency": 1e-6}


def shift(network, by):
    ranks = np.arange(network.ranks, dtype=np.int32)
    return ranks, np.roll(ranks, -by)


def busiest(network, source, target):
    return link_loads(network, source, target, np.ones(len(source))).max()


def net_flow(network, ways, message):
    """What leaves a node less what enters it."""
    row = slice(ways.offset[message], ways.offset[message + 1])
    link, share = ways.link[row], ways.share[row]
    flow = np.bincount(network.source[link], weights=share, minlength=len(network.nodes))
    return flow - np.bincount(network.target[link], weights=share, minlength=len(network.nodes))


SPECS = [
    "fat_tree:4",
    "leaf_spine:4x3x2:2",
    "rail:3x4x2",
    "torus:4x3",
    "ring:6",
    "mesh:3x3",
    "hypercube:3",
    "dragonfly:5x4x1x2",
    "fully_connected:5",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_the_policy_every_byte_leaves_its_source_and_reaches_its_target(spec, policy):
    if policy == "valiant" and spec.startswith(("fat", "leaf", "rail")):
        return
    network = parse_topology(f"{spec}@{policy}", **CABLE)
    source, target = shift(network, network.ranks // 2)
    ways = routes(network, source, target)
    assert (ways.share > 0).all()
    for message in range(len(source)):
        expected = np.zeros(len(network.nodes))
        expected[source[message]] += 1
        expected[target[message]] -= 1
        np.testing.assert_allclose(net_flow(network, ways, message), expected, atol=1e-12)
        row = slice(ways.offset[message], ways.offset[message + 1])
        assert len(np.unique(ways.link[row])) == row.stop - row.start


@tries(40)
@given(wild_networks(), st.sampled_from(["static", "d_mod_k", "spray", "minimal", "adaptive"]))
def test_without_groups_every_policy_keeps_to_paths_of_least_metric(network, policy):
    routed = replace(network, routing=Routing(policy))
    ranks = np.arange(network.ranks, dtype=np.int32)
    source, target = (end.ravel() for end in np.meshgrid(ranks, ranks))
    try:
        least = routes(network, source, target).along(link_metrics(network).astype(float))
    except TopologyError:
        return
    found = routes(routed, source, target).along(link_metrics(network).astype(float))
    np.testing.assert_allclose(found, least)


@pytest.mark.parametrize("spec", ["fat_tree:4", "torus:4x4", "dragonfly:5x4x2x2", "ring:8"])
@pytest.mark.parametrize("policy", ["ecmp", "d_mod_k", "spray", "minimal", "valiant", "adaptive"])
def test_loads_are_the_sums_of_the_shares(spec, policy):
    if policy == "valiant" and spec == "fat_tree:4":
        return
    network = parse_topology(f"{spec}@{policy}", **CABLE)
    source, target = shift(network, network.ranks // 2 - 1)
    amount = 1.0 + np.arange(len(source)) % 3
    ways = routes(network, source, target, amount)
    summed = np.bincount(ways.link, weights=(amount[ways.message] * ways.share))
    loads = link_loads(network, source, target, amount)
    np.testing.assert_allclose(loads[: len(summed)], summed, atol=1e-9)


@pytest.mark.parametrize("policy", ["d_mod_k", "spray", "adaptive"])
@pytest.mark.parametrize("by", [1, 3, 8, 9, 64, 100, 127])
def test_a_shift_meets_no_other_message_on_a_fat_tree(policy, by):
    """Zahavi (2010): D-Mod-K is free of contention for shift permutations."""
    network = parse_topology(f"fat_tree:8@{policy}", **CABLE)
    assert busiest(network, *shift(network, by)) == pytest.approx(1.0)


def test_d_mod_k_gives_every_target_of_a_fat_tree_links_of_its_own_down():
    network = parse_topology("fat_tree:4@d_mod_k", **CABLE)
    ranks = np.arange(16, dtype=np.int32)
    source, target = (end.ravel() for end in np.meshgrid(ranks, ranks))
    apart = source != target
    ways = routes(network, source[apart], target[apart])
    level = {"core": 3, "aggregation": 2, "edge": 1}
    height = np.array([level.get(str(node).split(":")[0], 0) for node in network.nodes])
    down = height[network.source] > height[network.target]
    for link in np.flatnonzero(down):
        assert len(set(target[apart][ways.message[ways.link == link]])) == 1


def test_a_forwarding_table_knows_no_source():
    """At every switch all messages to one target leave by one link."""
    network = parse_topology("fat_tree:4@static", **CABLE)
    ranks = np.arange(16, dtype=np.int32)
    source, target = (end.ravel() for end in np.meshgrid(ranks, ranks))
    apart = source != target
    ways = routes(network, source[apart], target[apart])
    taken = {}
    for message, link in zip(ways.message, ways.link, strict=True):
        switch = network.source[link]
        if switch >= network.ranks:
            key = switch, target[apart][message]
            assert taken.setdefault(key, link) == link


def expected_maximum(balls, bins):
    """Mean of the fullest of ``bins`` into which ``balls`` are thrown by lot, by counting."""

    def ways(limit, left, rest):
        if rest == 0:
            return float(left == 0)
        return sum(
            comb(left, here) * ways(limit, left - here, rest - 1)
            for here in range(min(limit, left) + 1)
        )

    within = [ways(limit, balls, bins) / bins**balls for limit in range(balls + 1)]
    return sum(limit * (within[limit] - within[limit - 1]) for limit in range(1, balls + 1))


@pytest.mark.parametrize("spines", [2, 4])
def test_what_a_hash_loses_is_the_expected_maximum_load_of_random_hashing(spines):
    """As many messages as uplinks from one leaf to another: balls into bins, 400 draws."""
    assert expected_maximum(2, 2) == 1.5
    network = parse_topology(f"leaf_spine:2x{spines}x{spines}", **CABLE)
    source = np.arange(spines, dtype=np.int32)
    most = []
    for seed in range(400):
        drawn = replace(network, routing=Routing("ecmp", seed=seed))
        most.append(busiest(drawn, source, source + spines))
    spread = np.std(most) / np.sqrt(len(most))
    assert abs(np.mean(most) - expected_maximum(spines, spines)) < 4 * spread
    assert factorial(spines) / spines**spines == pytest.approx(
        np.mean(np.array(most) == 1), abs=0.06
    )


def test_another_seed_is_another_draw_and_none_is_that_of_before():
    network = parse_topology("fat_tree:8", **CABLE)
    ends = shift(network, 64)
    links = [
        routes(replace(network, routing=Routing("ecmp", seed=seed)), *ends).link
        for seed in range(2)
    ]
    assert np.array_equal(links[0], routes(network, *ends).link)
    assert not np.array_equal(links[0], links[1])


@pytest.mark.parametrize("policy", ["spray", "adaptive"])
def test_a_leaf_that_loses_one_of_its_spines_keeps_the_others(policy):
    network = parse_topology(f"leaf_spine:2x4x4@{policy}", **CABLE)
    ends = np.arange(4, dtype=np.int32), np.arange(4, 8, dtype=np.int32)
    broken = cut(network, "leaf0-spine1")
    assert busiest(network, *ends) == pytest.approx(1.0)
    assert busiest(broken, *ends) == pytest.approx(4 / 3)


def test_messages_that_are_divided_send_less_over_a_slow_cable_also_where_it_is_farther_on():
    """One of four downlinks at half speed: 3.5 instead of 4 remain."""
    network = slow(parse_topology("leaf_spine:2x4x4", **CABLE), "spine1-leaf1", factor=2)
    ends = np.arange(4, dtype=np.int32), np.arange(4, 8, dtype=np.int32)
    for policy in ("spray", "adaptive"):
        routed = replace(network, routing=replace(network.routing, policy=policy))
        busy = (link_loads(routed, *ends, np.ones(4)) / network.bandwidth).max()
        assert busy == pytest.approx(4 / 3.5)


def test_adaptive_switches_see_slow_cables_two_hops_on():
    """Behind one of two uplinks 1/2 + 1/4 are left, behind the other 1: 2 messages over 7/4."""
    network = parse_topology("fat_tree:4@adaptive", **CABLE)
    network = slow(network, "core0.0-aggregation1.0", factor=2)
    network = slow(network, "core0.1-aggregation1.0", factor=4)
    ends = np.array([0, 1], np.int32), np.array([4, 5], np.int32)
    busy = link_loads(network, *ends, np.ones(2)) / network.bandwidth
    assert busy.max() == pytest.approx(2 / (7 / 4))


@tries(200)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=12))
def test_the_best_part_is_that_of_a_search_over_all(loads):
    least, detoured = np.array(loads).T
    part = best_part(least, detoured)
    assert 0 <= part <= 1
    tried = np.linspace(0, 1, 1001)[:, None]
    lowest = (tried * least + (1 - tried) * detoured).max(axis=1).min()
    found = (part * least + (1 - part) * detoured).max()
    assert found <= lowest * (1 + 1e-8) + 1e-9


def test_where_detours_gain_nothing_there_are_none():
    network = parse_topology("dragonfly:5x4x2x2@adaptive", **CABLE)
    minimal = replace(network, routing=replace(network.routing, policy="minimal"))
    ranks = np.arange(network.ranks, dtype=np.int32)
    source, target = (end.ravel() for end in np.meshgrid(ranks, ranks))
    for one, other in zip(
        routes(network, source, target), routes(minimal, source, target), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("part", [0.0, 0.25, 0.875, 1.0])
@pytest.mark.parametrize("spec", ["fat_tree:4@adaptive", "leaf_spine:2x4x4@adaptive"])
def test_of_two_sets_of_paths_every_link_carries_its_part(spec, part):
    network = parse_topology(spec, **CABLE)
    for at in np.flatnonzero(between_switches(network))[:3].tolist():
        ends = "-".join(str(network.nodes[end[at]]) for end in (network.source, network.target))
        network = slow(network, ends, factor=3)
    first, second = (
        found_paths(network, *shift(network, 4), by_capacity=way) for way in (False, True)
    )
    one, other = (np.bincount(f.link, f.share, len(network)) for f in (first, second))
    assert not np.allclose(one, other)
    both = mixed(first, second, part)
    found = np.bincount(both.link, both.share, len(network))
    assert found == pytest.approx(part * one + (1 - part) * other)


def test_adaptive_shares_follow_the_bytes_and_not_their_unit():
    network = parse_topology("dragonfly:9x4x2x2@adaptive", **CABLE)
    source, target = shift(network, 8)
    amount = 1.0 + np.arange(len(source)) % 2
    one, other = (routes(network, source, target, amount * unit) for unit in (1.0, 2.0**20))
    np.testing.assert_allclose(one.share, other.share)


def test_in_a_cluster_the_policy_is_that_of_the_fabric_alone():
    """Two ways inside the node, by 2 or 3: the hash chooses, whatever the fabric does."""
    inside = [Link(a, b, 1.0, 0.0) for a, b in [(0, 2), (0, 3), (2, 1), (3, 1)]]
    outside = [Link(1, "x", 1.0, 0.0, "scale_out"), Link("x", 0, 1.0, 0.0, "scale_out")]
    network = replace(
        topology("mixed", 4, inside + outside), routing=Routing("spray", resource="scale_out")
    )
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    assert routes(network, zero, one).share.tolist() == [1.0, 1.0]
    everywhere = replace(network, routing=Routing("spray"))
    assert routes(everywhere, zero, one).share.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy": "random"}, "'random' is not a routing policy"),
        ({"policy": "ecmp", "seed": -1}, "seed -1 of a routing is negative"),
        ({"policy": "valiant"}, "needs groups"),
    ],
)
def test_a_routing_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(TopologyError, match=message):
        Routing(**fields)


def busy_alone_and_together(network, ends):
    """Busiest link if all messages are a call, and if each is a call of its own."""
    apart = sum(
        link_loads(network, source[None], target[None], np.ones(1))
        for source, target in zip(*ends, strict=True)
    )
    together = link_loads(network, *ends, np.ones(len(ends[0])))
    return [(load / network.bandwidth).max() for load in (together, apart)]


FAULTY = [
    "leaf_spine:4x4x4",
    "fat_tree:4",
    "rail:4x4x2",
    "dragonfly:9x4x2x2",
    "dragonfly:5x4x2x2",
    "torus:4x4",
    "torus:3x5",
    "torus:2x3x4",
    "twisted_torus:2x4",
    "mesh:4x4",
    "hypercube:4",
    "ring:8",
    "hyperx:4x4x1",
    "slim_fly:5x1",
    "dragonfly_plus:3x2x2x2",
    "ring:5",
    "mesh:3x3",
    "hypercube:3",
    "fully_connected:6",
]


def a_cable(network, draw):
    """A link between switches, or between ranks where there are no switches."""
    inner = np.flatnonzero(np.minimum(network.source, network.target) >= network.ranks)
    inner = inner if len(inner) else np.arange(len(network))
    return LinkNamed(named(network, int(draw(st.sampled_from(inner.tolist())))))


LEFT = st.sampled_from([0.95, 0.9, 0.5, 0.25, 0.02])
"""Of the bandwidth of a slow cable."""


@pytest.mark.parametrize("policy", ["spray", "adaptive", "minimal", "valiant"])
@few(6)
@given(spec=st.sampled_from(FAULTY), data=st.data())
def test_a_slow_link_never_costs_more_than_a_dead_one(policy, spec, data):
    """Nor calls of one message each, which know nothing of each other: on any fabric.

    Not under a hash, which knows no bandwidths and goes on using the slow link. Messages by
    themselves may take detours that are in each other's way, and so all around a ring adaptive ones
    do: a sound link may then be worse than a cut one (Braess), and a slow one is between the two.
    """
    assume(policy != "valiant" or not spec.startswith(("leaf_spine", "fat_tree", "rail")))
    network = parse_topology(f"{spec}@{policy}", **CABLE)
    part, factor = a_cable(network, data.draw), data.draw(LEFT)
    shift = data.draw(st.integers(1, network.ranks - 1))
    source = np.arange(network.ranks, dtype=np.int32)
    ends = source, np.roll(source, shift)
    dead = busy_alone_and_together(broken(network, [Fault(part, None)]).network, ends)
    slowed = busy_alone_and_together(broken(network, [Fault(part, factor)]).network, ends)
    assert slowed[0] <= dead[0] * (1 + 1e-9)
    most = dead[1]
    if spec.startswith("ring") and policy == "adaptive":
        most = max(most, busy_alone_and_together(network, ends)[1])
    assert slowed[1] <= most * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["spray", "adaptive", "minimal", "valiant"])
@given(spec=st.sampled_from(FAULTY), data=st.data())
def test_a_slow_link_never_costs_a_few_messages_more_than_a_dead_one(policy, spec, data):
    """Of one call, whatever they are: where all ways without the link are better it is not used.

    So of a single message on a full mesh, whose one shortest path is busier than many detours.
    """
    assume(policy != "valiant" or not spec.startswith(("leaf_spine", "fat_tree", "rail")))
    network = parse_topology(f"{spec}@{policy}", **CABLE)
    part, factor = a_cable(network, data.draw), data.draw(LEFT)
    rank = st.integers(0, network.ranks - 1)
    pairs = data.draw(
        st.lists(st.tuples(rank, rank).filter(lambda p: p[0] != p[1]), min_size=1, max_size=6)
    )
    source, target = np.array(pairs, np.int32).T.copy()
    amount = np.array(
        data.draw(st.lists(st.integers(1, 4), min_size=len(pairs), max_size=len(pairs))), float
    )
    busy = []
    for left in (None, factor):
        faulty = broken(network, [Fault(part, left)]).network
        busy.append((link_loads(faulty, source, target, amount) / faulty.bandwidth).max())
    assert busy[1] <= busy[0] * (1 + 1e-9)


@few(6)
@given(
    policy=st.sampled_from(["spray", "adaptive", "minimal"]),
    spec=st.sampled_from(FAULTY[:12]),
    data=st.data(),
)
def test_nor_does_one_of_several_slow_links(policy, spec, data):
    """Each of a few may be done without, whatever is used of the others."""
    network = parse_topology(f"{spec}@{policy}", **CABLE)
    part, *others = (a_cable(network, data.draw) for _ in range(data.draw(st.integers(2, 3))))
    slow = [Fault(other, data.draw(LEFT)) for other in others]
    shift = data.draw(st.integers(1, network.ranks - 1))
    source = np.arange(network.ranks, dtype=np.int32)
    ends = source, np.roll(source, shift)
    dead, slowed = (
        busy_alone_and_together(broken(network, [Fault(part, left), *slow]).network, ends)[0]
        for left in (None, data.draw(LEFT))
    )
    assert slowed <= dead * (1 + 1e-9)


@pytest.mark.parametrize(
    "spec", ["torus:4x4@adaptive", "fat_tree:4@spray", "dragonfly:5x4x2@minimal"]
)
def test_of_a_slow_link_a_message_takes_the_part_that_is_left(spec):
    """Between sound and dead in proportion, so that it is neither at a jump."""
    network = parse_topology(spec, **CABLE)
    ends = np.array([0], np.int32), np.array([network.ranks - 1], np.int32)
    sound = link_loads(network, *ends, np.ones(1))
    inner = np.minimum(network.source, network.target) >= network.ranks
    link = int(np.argmax(np.where(inner | ~inner.any(), sound, 0.0)))
    part = LinkNamed(named(network, link))
    cut = broken(network, [Fault(part, None)]).network
    dead = np.zeros(len(network))
    dead[np.arange(len(network)) != link] = link_loads(cut, *ends, np.ones(1))
    for factor in (0.99, 0.5, 0.01):
        slow = broken(network, [Fault(part, factor)]).network
        loads = link_loads(slow, *ends, np.ones(1))
        np.testing.assert_allclose(loads, factor * sound + (1 - factor) * dead, atol=1e-12)


def named(network, link):
    """The cable of a link, one way, as a user calls it."""
    ends = (network.nodes[end[link]] for end in (network.source, network.target))
    return "->".join(f"rank{end}" if isinstance(end, int) else str(end) for end in ends)


@given(flows=st.integers(1, 8), seed=st.integers(0, 99))
def test_flows_of_a_message_are_drawn_one_by_one_and_carry_it_whole(flows, seed):
    network = parse_topology("fat_tree:4", **CABLE)
    network = replace(network, routing=Routing("ecmp", seed=seed, flows=flows))
    ends = shift(network, 4)
    ways = routes(network, *ends)
    for message in range(len(ends[0])):
        flow = net_flow(network, ways, message)
        assert flow[ends[0][message]] == pytest.approx(1.0)
        assert flow[ends[1][message]] == pytest.approx(-1.0)
    parts = np.round(ways.share * flows)
    assert ways.share == pytest.approx(parts / flows)
    loads = np.bincount(ways.link, ways.share, len(network))
    assert link_loads(network, *ends, np.ones(len(ends[0]))) == pytest.approx(loads)


def test_more_flows_lose_less_to_collisions_in_the_mean():
    """The law of large numbers: each host's NIC is full at 1."""
    network = parse_topology("fat_tree:8", **CABLE)
    ends, mean = shift(network, 16), []
    for flows in (1, 2, 4, 8, 16):
        drawn = [
            replace(network, routing=Routing("ecmp", seed=seed, flows=flows)) for seed in range(10)
        ]
        mean.append(np.mean([busiest(draw, *ends) for draw in drawn]))
    assert mean == sorted(mean, reverse=True)
    assert mean[0] > 3.5
    assert 1 <= mean[-1] < 2


@pytest.mark.parametrize(("policy", "flows"), [("spray", 2), ("static", 4), ("ecmp", 0)])
def test_flows_are_what_ecmp_hashes(policy, flows):
    with pytest.raises(TopologyError, match="give 1, or more under ecmp"):
        Routing(policy, flows=flows)
