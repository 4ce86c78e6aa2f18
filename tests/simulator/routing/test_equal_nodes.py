"""All-to-alls among equal nodes: a few messages tell what a list of all of them does."""

import numpy as np
import pytest

from simulator.routing.messages import exchange
from simulator.routing.routes import routes
from simulator.routing.totals import automorphisms, check_listed, totals
from simulator.support.errors import LimitError
from simulator.topology import Link, topology
from topologies import build, load_cluster
from topologies.faults import Fault, LinkNamed, broken

EQUAL = [
    ("switch:12", 12),
    ("torus:4x3x2@spray", 24),
    ("torus:5x4@minimal", 20),
    ("ring:7@spray", 7),
    ("hypercube:4@spray", 16),
    ("torus:4x3x2@adaptive", 24),
    ("torus:4x3x2@valiant", 24),
    ("torus:5x4@valiant", 20),
]
ON_HUBS = [
    ("fat_tree:4@spray", 16),
    ("leaf_spine:4x2x8:2@spray", 32),
    ("dragonfly:9x4x2x2@minimal", 72),
    ("dragonfly:9x4x2x2@adaptive", 72),
    ("dragonfly:9x4x2x2@valiant", 72),
]


def network_of(spec, ranks):
    return build(load_cluster(f"{spec}, 50 GB/s, 1 us"), ranks)


def listed(network, nodes):
    """Bytes on links and the longest latency, message by message."""
    source, target = (end[~np.eye(len(nodes), dtype=bool)] for end in np.meshgrid(nodes, nodes))
    ways = routes(network, source, target, np.ones(len(source)))
    load = np.bincount(ways.link, ways.share, len(network))
    latency = np.add.reduceat(network.latency[ways.link] * ways.share, ways.offset[:-1])
    return load, latency.max()


@pytest.mark.parametrize(("spec", "ranks"), EQUAL + ON_HUBS)
def test_sums_are_those_of_a_list(spec, ranks):
    network, nodes = network_of(spec, ranks), np.arange(ranks, dtype=np.int32)
    total = totals(network, exchange(nodes))
    load, longest = listed(network, nodes)
    assert total.load == pytest.approx(load, rel=1e-9)
    assert total.latency_of.sum() == pytest.approx(longest, rel=1e-9)


@pytest.mark.parametrize("spec", ["fat_tree:4@spray", "dragonfly:9x4x2x2@adaptive"])
def test_some_of_the_nodes_are_summed_up_as_well(spec):
    network = network_of(spec, 16 if spec.startswith("fat") else 72)
    nodes = np.array([9, 0, 1, 5, 14, 2], dtype=np.int32)
    total = totals(network, exchange(nodes))
    load, longest = listed(network, nodes)
    assert total.load == pytest.approx(load, rel=1e-9)
    assert total.latency_of.sum() == pytest.approx(longest, rel=1e-9)


def ring(bandwidths):
    count = len(bandwidths)
    links = [
        Link(rank, (rank + step) % count, bandwidth, 1e-6)
        for rank, bandwidth in enumerate(bandwidths)
        for step in (1, count - 1)
    ]
    return topology("ring", count, links)


def test_one_cable_unlike_the_others_ends_the_symmetry():
    assert automorphisms(ring([1e9] * 6)) is not None
    assert automorphisms(ring([1e9] * 5 + [2e9])) is None


def test_a_chain_has_no_turn():
    ends = [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert automorphisms(topology("chain", 3, [Link(a, b, 1e9, 0.0) for a, b in ends])) is None


def test_every_link_of_a_torus_carries_its_closed_form():
    """A dimension of length L even: n (L/8) messages each way (Dally and Towles 2004, 3.4)."""
    network = network_of("torus:16x8x4@spray", 512)
    load = totals(network, exchange(np.arange(512, dtype=np.int32))).load
    assert np.unique(load.round(6)).tolist() == [512 * 4 / 8, 512 * 8 / 8, 512 * 16 / 8]


@pytest.mark.parametrize("lengths", ["4x4x8", "4x8x8"])
def test_a_twisted_torus_loads_all_its_links_alike(lengths):
    """What TPU v4 twists slices for: all links of an all-to-all are as full as the mean."""
    ranks = int(np.prod([int(length) for length in lengths.split("x")]))
    nodes = np.arange(ranks, dtype=np.int32)
    plain, twisted = (
        totals(network_of(f"{family}:{lengths}@spray", ranks), exchange(nodes)).load
        for family in ("torus", "twisted_torus")
    )
    assert twisted == pytest.approx(twisted.mean())
    assert plain.max() == pytest.approx(ranks * 8 / 8)
    assert plain.max() > 1.3 * twisted.max()


@pytest.mark.parametrize(("policy", "times"), [("adaptive", 1.0), ("valiant", 2 * 2047 / 2048)])
def test_detours_over_equal_nodes_are_two_all_to_alls(policy, times):
    """Adaptive messages take none; of all of Valiant's one in N is no detour (its closed form)."""
    network = network_of(f"torus:8x16x16@{policy}", 2048)
    load = totals(network, exchange(np.arange(2048, dtype=np.int32))).load
    assert load.max() == pytest.approx(2048 * 16 / 8 * times)


def test_following_too_many_messages_is_refused_with_an_estimate():
    network = network_of("torus:32x32x16", 16384)
    with pytest.raises(LimitError, match=r"268 million .* about \d minutes .*spray.*--limit work="):
        totals(network, exchange(np.arange(16384, dtype=np.int32)))


SLOW = [
    ("torus:5x4@spray", 20, ("0-1",)),
    ("torus:4x3x2@adaptive", 24, ("0-1", "3-5")),
    ("leaf_spine:4x2x8:2@spray", 32, ("leaf0-spine0",)),
]


@pytest.mark.parametrize(("spec", "ranks", "cables"), SLOW)
def test_sums_around_slow_cables_are_those_of_a_list(spec, ranks, cables):
    whole, nodes = network_of(spec, ranks), np.arange(ranks, dtype=np.int32)
    network = broken(whole, [Fault(LinkNamed(cable), 0.25) for cable in cables]).network
    total = totals(network, exchange(nodes))
    load, longest = listed(network, nodes)
    assert total.load == pytest.approx(load, rel=1e-9)
    assert total.latency_of.sum() == pytest.approx(longest, rel=1e-9)
    assert total.load.sum() > totals(whole, exchange(nodes)).load.sum() * (1 - 1e-9)


def test_a_million_messages_around_a_slow_cable_are_no_later_than_around_a_dead_one():
    whole, everyone = (
        network_of("torus:32x32@spray", 1024),
        exchange(np.arange(1024, dtype=np.int32)),
    )
    busiest = []
    for left in (None, 0.25, 1.0):  # cut, slow, whole
        network = broken(whole, [Fault(LinkNamed("0-1"), left)]).network
        busiest.append((totals(network, everyone).load / network.bandwidth).max())
    assert busiest == sorted(busiest, reverse=True)


def test_listing_too_many_messages_is_refused_with_an_estimate():
    """A node whose last cable is slow has no path around it, so all messages must be listed."""
    whole = network_of("torus:32x32@spray", 1024)
    last = [Fault(LinkNamed(f"0-{peer}"), None if peer > 1 else 0.5) for peer in (1, 31, 32, 992)]
    network = broken(whole, last).network
    everyone = exchange(np.arange(1024, dtype=np.int32))
    assert totals(network, everyone) is None
    with pytest.raises(LimitError, match=r"1 million messages takes about \d+\.\d GB.*memory="):
        check_listed(network, everyone)
    check_listed(network, exchange(np.arange(65, dtype=np.int32)))
