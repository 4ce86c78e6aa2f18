"""Which links a message takes."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import TopologyError
from simulator.routing import routes
from simulator.topology import SCALE_OUT, Link, scaled, topology
from strategies import random_links, two_tiers

PAIRS = [(a, b) for a in range(4) for b in range(4) if a != b]


@st.composite
def networks(draw):
    return topology("random", 4, draw(random_links(4, extra=8)))


def paths(network, pairs=PAIRS):
    """Links of every pair, in order."""
    source, target = np.array(pairs, dtype=np.int32).T
    offset, link = routes(network, source, target)
    return [link[a:b] for a, b in pairwise(offset)]


@settings(max_examples=150)
@given(networks())
def test_a_path_leads_from_source_to_target_without_a_gap(network):
    for (source, target), path in zip(PAIRS, paths(network), strict=True):
        nodes = [*network.source[path].tolist(), target]
        assert nodes[0] == source
        assert network.target[path].tolist() == nodes[1:]
        assert len(set(nodes)) == len(nodes)


@settings(max_examples=150)
@given(networks())
def test_no_path_is_longer_than_networkx_finds(network):
    """Hops, where one of the scale-out fabric weighs a thousand."""
    graph = network.graph()
    for _, _, data in graph.edges(data=True):
        data["hops"] = 1000 if data["resource"] == SCALE_OUT else 1
    for (source, target), path in zip(PAIRS, paths(network), strict=True):
        hops = sum(1000 if network.link(i).resource == SCALE_OUT else 1 for i in path)
        assert hops == nx.shortest_path_length(graph, source, target, weight="hops")


@settings(max_examples=50)
@given(networks(), st.randoms(use_true_random=False))
def test_a_path_depends_on_its_ends_alone(network, random):
    """Not on the other messages, their order, or what ran before."""
    together = dict(zip(PAIRS, paths(network), strict=True))
    shuffled = random.sample(PAIRS, 7)
    for pair, path in zip(shuffled, paths(network, shuffled), strict=True):
        assert path.tolist() == together[pair].tolist()
        assert paths(network, [pair])[0].tolist() == path.tolist()


@settings(max_examples=30)
@given(networks())
def test_a_path_does_not_follow_bandwidth_or_latency(network):
    """A what-if on the links leaves every message where it was."""
    changed = scaled(network, network.resources[0], bandwidth=8.0, latency=0.5)
    for path, other in zip(paths(network), paths(changed), strict=True):
        assert path.tolist() == other.tolist()


def leaf_spine(hosts, spines):
    up = [(rank, f"leaf {rank % 2}") for rank in range(hosts)]
    over = [(f"leaf {leaf}", f"spine {spine}") for leaf in range(2) for spine in range(spines)]
    links = [Link(a, b, 1e9, 1e-6) for pair in up + over for a, b in (pair, pair[::-1])]
    return topology("leaf-spine", hosts, links)


def spines_used(network, pairs):
    used = [network.nodes[network.source[path[2]]] for path in paths(network, pairs)]
    return {spine: used.count(spine) for spine in used}


def test_messages_spread_over_all_equal_paths():
    """240 messages each way on 4 spines: 60 each, 6.7 of standard deviation if thrown by lot."""
    network = leaf_spine(32, 4)
    for leaf in range(2):
        pairs = [(a, b) for a in range(leaf, 32, 2) for b in range(1 - leaf, 32, 2)]
        used = spines_used(network, pairs)
        assert len(used) == 4
        assert min(used.values()) > len(pairs) / 4 * 0.6


def test_one_pair_of_ends_keeps_to_one_path():
    network = leaf_spine(8, 4)
    assert len(spines_used(network, [(0, 1)] * 20)) == 1


def test_a_message_stays_in_its_domain_if_it_can():
    """Ranks 0 and 2 share a switch: two hops there, rather than two of the fabric."""
    network = two_tiers(4)
    same, other = paths(network, [(0, 2), (0, 1)])
    assert {network.link(i).resource for i in same} == {"scale_up"}
    assert SCALE_OUT in {network.link(i).resource for i in other}


def test_a_long_way_inside_is_shorter_than_a_short_way_outside():
    chain = [Link(i, i + 1, 1.0, 0.0) for i in range(400)]
    short = Link(0, 400, 1.0, 0.0, SCALE_OUT)
    (path,) = paths(topology("chain", 401, [*chain, short]), [(0, 400)])
    assert len(path) == 400


@pytest.mark.parametrize("pair", [(1, 0), (2, "switch")])
def test_no_path_is_an_error_that_names_both_ends(pair):
    links = [Link(0, 1, 1.0, 0.0), Link("switch", 2, 1.0, 0.0)]
    network = topology("one way", 3, links)
    ends = [network.nodes.index(node) for node in pair]
    with pytest.raises(TopologyError, match=rf"one way: no path from {pair[0]} to {pair[1]}"):
        paths(network, [(0, 1), tuple(ends)])
