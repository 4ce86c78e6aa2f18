"""What many messages put on each link in all: the sum over every one of them, found without a list.

Link bytes added up goal by goal, alike messages together, are those of :func:`routes` pair by pair.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from helpers.strategies import random_links, two_tiers, wild_networks
from helpers.tries import tries
from simulator.routing import messages as module
from simulator.routing.messages import exchange, listed
from simulator.routing.paths import survey_of
from simulator.routing.routes import routes
from simulator.routing.totals import link_loads, routes_in_blocks, totals
from simulator.support.arrays import row_of_entries
from simulator.support.errors import TopologyError
from simulator.topology import HASHED, POLICIES, Routing, topology
from topologies import build, load_cluster, parse_topology

CABLE = {"bandwidth": 50e9, "latency": 1e-6}
SPECS = (
    "torus:3x4x2",
    "torus:4x4",
    "mesh:3x5",
    "hypercube:4",
    "twisted_torus:2x4",
    "ring:7",
    "switch:11",
    "fully_connected:6",
    "fat_tree:4",
    "leaf_spine:3x2x3",
    "dragonfly:5x4x2",
)
ADAPTIVE = ("adaptive", "valiant")
ADDED_UP = tuple(name for name in POLICIES if name not in ADAPTIVE)
MACHINES = ("perlmutter", "gh200-alps", "mi250x-frontier", "leonardo")
"""Whose fabrics route adaptively."""


def policy(network, name, seed=0):
    return replace(network, routing=replace(network.routing, policy=name, seed=seed))


def with_bandwidths(network, seed):
    """Links of unlike bandwidth: adaptive switches divide by what they can carry on."""
    chosen = np.random.default_rng(seed).integers(1, 4, len(network))
    return replace(network, bandwidth=chosen * 25e9)


def uneven_latencies(network, seed):
    chosen = np.random.default_rng(seed).integers(1, 9, len(network))
    return replace(network, latency=chosen * 1e-7)


def one_by_one(network, source, target, amount):
    """Bytes on links, latencies, and which messages pass which link, from the list of all."""
    ways = routes(network, source, target, amount)
    load = np.bincount(ways.link, amount[ways.message] * ways.share, len(network))
    return load, ways.along(network.latency), ways


def check(network, traffic, ends, amount):
    """Hold sums against the list; messages of nothing are not sent."""
    load, latency, ways = one_by_one(network, *ends, amount)
    found = totals(network, traffic)
    np.testing.assert_allclose(found.load, load, rtol=1e-11, atol=1e-12)
    latency[amount == 0] = -1.0
    slowest = np.flatnonzero(latency >= latency.max() * (1 - 1e-12))[0]
    assert found.slowest == (ends[0][slowest], ends[1][slowest])
    hops = ways.message == slowest
    link, share = ways.link[hops], ways.share[hops]
    of_resource = np.zeros(len(network.resources))
    np.add.at(of_resource, network.resource[link], network.latency[link] * share)
    np.testing.assert_allclose(found.latency_of, of_resource, rtol=1e-11, atol=1e-18)
    in_blocks = np.zeros(len(network))
    blocks = traffic.blocks(len(network.nodes))
    for sent, part in zip(blocks, routes_in_blocks(network, traffic, found.parts), strict=True):
        in_blocks += part.loads(sent.amount[sent.amount > 0], len(network))
    np.testing.assert_allclose(in_blocks, load, rtol=1e-11, atol=1e-12)


def pairs(nodes):
    source, target = np.repeat(nodes, len(nodes)), np.tile(nodes, len(nodes))
    return source[source != target], target[source != target]


@st.composite
def described(draw):
    network = parse_topology(draw(st.sampled_from(SPECS)), **CABLE)
    network = policy(network, draw(st.sampled_from(ADDED_UP)), draw(st.integers(0, 3)))
    return uneven_latencies(network, draw(st.integers(0, 9)))


@st.composite
def drawn(draw):
    network = topology("random", 6, draw(random_links(6, extra=12)))
    return policy(network, draw(st.sampled_from(ADDED_UP)), draw(st.integers(0, 3)))


@tries(120)
@given(st.one_of(described(), drawn()), st.data())
def test_an_exchange_among_any_ranks_puts_on_links_what_its_pairs_do(network, data):
    everyone = list(range(network.ranks))
    group = data.draw(st.lists(st.sampled_from(everyone), min_size=2, unique=True))
    nodes = np.array(group, dtype=np.int32)
    source, target = pairs(nodes)
    check(network, exchange(nodes), (source, target), np.ones(len(source)))


@tries(80)
@given(st.one_of(described(), drawn()), st.integers(0, 2**32 - 1))
def test_uneven_bytes_and_pairs_without_any_are_added_up_pair_by_pair(network, seed):
    rng = np.random.default_rng(seed)
    nodes = np.arange(network.ranks, dtype=np.int32)
    table = rng.integers(0, 3, (len(nodes), len(nodes))).astype(np.float64)
    table[0, 1] = 1.0
    source, target = pairs(nodes)
    amount = table[source, target]
    check(network, exchange(nodes, table), (source, target), amount)
    check(network, listed(source, target, amount), (source, target), amount)


@st.composite
def adaptive(draw):
    """Networks whose messages take detours: grids, dragonflies, and a fat tree that has none."""
    grids = ("torus:3x4@", "mesh:3x3@", "torus:2x2x3@", "dragonfly:5x4x2@", "dragonfly:3x2x1@")
    spec = draw(st.sampled_from([*(one + name for one in grids for name in ADAPTIVE),
                                 "fat_tree:4@adaptive", "leaf_spine:3x2x3@adaptive"]))  # fmt: skip
    network = uneven_latencies(parse_topology(spec, **CABLE), draw(st.integers(0, 9)))
    return with_bandwidths(network, draw(st.integers(0, 9))) if draw(st.booleans()) else network


@tries(60)
@given(adaptive(), st.integers(0, 2**32 - 1))
def test_adaptive_networks_take_the_parts_on_detours_that_the_list_takes(network, seed):
    rng = np.random.default_rng(seed)
    nodes = rng.permutation(network.ranks)[: rng.integers(2, network.ranks + 1)].astype(np.int32)
    table = rng.integers(0, 3, (len(nodes), len(nodes))).astype(np.float64)
    table[0, 1] = 1.0
    source, target = pairs(nodes)
    place = np.argsort(nodes)
    row, column = (place[np.searchsorted(nodes[place], one)] for one in (source, target))
    check(network, exchange(nodes), (source, target), np.ones(len(source)))
    check(network, exchange(nodes, table), (source, target), table[row, column])


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("ranks", [24, 128])
def test_machines_with_adaptive_fabrics_are_added_up_pair_by_pair(name, ranks):
    network = build(load_cluster(name), ranks)
    source, target = pairs(np.arange(ranks, dtype=np.int32))
    check(
        network, exchange(np.arange(ranks, dtype=np.int32)), (source, target), np.ones(len(source))
    )


@tries(60)
@given(st.one_of(described(), drawn()), st.integers(0, 2**32 - 1))
def test_messages_in_any_order_and_more_than_once_are_added_up(network, seed):
    rng = np.random.default_rng(seed)
    source = rng.integers(0, network.ranks, 50).astype(np.int32)
    target = ((source + rng.integers(1, network.ranks, 50)) % network.ranks).astype(np.int32)
    check(network, listed(source, target), (source, target), np.ones(50))


@tries(80)
@given(wild_networks(), st.sampled_from(ADDED_UP))
def test_on_any_graph_the_sums_are_right_or_there_are_none(network, name):
    """Ranks pass messages on, links lead one way, some nodes are cut off."""
    network = policy(network, name)
    nodes = np.arange(network.ranks, dtype=np.int32)
    source, target = pairs(nodes)
    try:
        load, _, _ = one_by_one(network, source, target, np.ones(len(source)))
    except TopologyError:
        assert totals(network, exchange(nodes)) is None
        with pytest.raises(TopologyError, match="no path"):
            link_loads(network, source, target, np.ones(len(source)))
        return
    many = link_loads(network, source, target, np.ones(len(source)))
    np.testing.assert_allclose(many, load, rtol=1e-11, atol=1e-12)
    found = totals(network, exchange(nodes))
    if found is not None:
        np.testing.assert_allclose(found.load, load, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ADDED_UP)
def test_a_policy_of_the_fabric_only_leaves_the_choice_of_a_nic_to_the_hash(name):
    network = two_tiers(12)
    network = replace(network, routing=Routing(name, resource="scale_out"))
    source, target = pairs(np.arange(12, dtype=np.int32))
    check(network, exchange(np.arange(12, dtype=np.int32)), (source, target), np.ones(132))


@tries(60)
@given(described(), st.data())
def test_the_messages_on_a_watched_link_are_counted(network, data):
    network = policy(network, data.draw(st.sampled_from([*HASHED, "d_mod_k"])))
    link = data.draw(st.integers(0, len(network) - 1))
    nodes = np.arange(network.ranks, dtype=np.int32)
    source, target = pairs(nodes)
    _, _, ways = one_by_one(network, source, target, np.ones(len(source)))
    meeting = ways.message[ways.link == link]
    count, numbers = totals(network, exchange(nodes), link).passing
    assert count == len(meeting)
    assert [divmod(number, len(nodes)) for number in numbers] == [
        (source[one], target[one]) for one in meeting[:4]
    ]


def test_blocks_of_a_few_goals_come_to_the_same(monkeypatch):
    network = parse_topology("fat_tree:4", **CABLE)
    nodes = np.arange(16, dtype=np.int32)
    whole = totals(network, exchange(nodes))
    monkeypatch.setattr(module, "_BLOCK", 20)
    parts = totals(network, exchange(nodes))
    np.testing.assert_allclose(parts.load, whole.load, rtol=1e-12)
    assert parts.slowest == whole.slowest


def test_links_of_a_torus_carry_what_the_closed_form_says():
    """All-to-all on a k-ary n-cube, k even: k/8 messages per node and link, times n nodes.

    A dimension of length k takes k/4 hops in the mean over all k distances (W. J. Dally, B. Towles
    2004, section 5.2.2), so of n nodes n * n * k/4 hops fall on 2n links, alike.
    """
    network = policy(parse_topology("torus:8x8x8", **CABLE), "spray")
    found = totals(network, exchange(np.arange(512, dtype=np.int32)))
    np.testing.assert_allclose(found.load, 512 * 8 / 8, rtol=1e-9)


def test_networks_that_give_the_paths_themselves_are_left_to_the_list():
    network = replace(parse_topology("ring:4", **CABLE), route=lambda here, there: (here, there))
    assert totals(network, exchange(np.arange(4, dtype=np.int32))) is None


def test_a_node_that_is_not_there_is_named():
    with pytest.raises(TopologyError, match="no node 9"):
        totals(parse_topology("ring:4", **CABLE), exchange(np.array([0, 9], dtype=np.int32)))


@pytest.mark.parametrize(
    "spec", ["torus:3x4", "torus:5", "dragonfly:9x4x2x2", "slim_fly:5x4", "hyperx:4x4x2"]
)
def test_detours_added_up_by_router_are_those_pair_by_pair(spec):
    """Inside a group every router is passed alike, so that pairs need not be gone through."""
    network = parse_topology(f"{spec}@valiant", **CABLE)
    detours = survey_of(network).detours
    routers = np.flatnonzero(detours.group >= 0)
    draw = np.random.default_rng(0)
    first, last = draw.choice(routers, (2, 40)).astype(np.int64)
    apart = first != last
    first, last = first[apart], last[apart]
    amount, latency = draw.random(len(first)), draw.random(len(network))
    offset, link, share = detours.between(first, last)
    pair = row_of_entries(offset)
    by_pair = np.bincount(link, share * amount[pair], len(network))
    assert detours.loads(first, last, amount) == pytest.approx(by_pair, rel=1e-9, abs=1e-12)
    mean = np.bincount(pair, latency[link] * share)
    assert structs.replace(detours, latency=latency).latencies(first, last) == pytest.approx(
        mean, rel=1e-9
    )


def test_valiants_all_to_all_on_a_ring_is_twice_that_of_shortest_paths():
    """Both halves are uniform traffic (Dally and Towles 2004, section 9.2), to oneself included."""
    ends = np.divmod(np.arange(64 * 64, dtype=np.int64), 64)
    apart = ends[0] != ends[1]
    first, last = ends[0][apart], ends[1][apart]
    network = parse_topology("torus:64@valiant", **CABLE)
    loads = survey_of(network).detours.loads(first, last, np.ones(len(first)))
    inside = loads[loads > 0]
    # n^2/4 hops in all over 2n links from each of n ranks to all; n - 1 of n targets.
    assert inside == pytest.approx(np.full(128, 2 * (64**2 / 4) * 64 / 128 * 63 / 64))
