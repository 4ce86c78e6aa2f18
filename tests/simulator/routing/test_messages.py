"""Paths of many messages at once, whatever is called a hub and however little room there is."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import both_ways, wild_networks
from helpers.tries import tries
from simulator.routing.graph import UNKNOWN, cells, filled, hubs
from simulator.routing.messages import gathered, messages
from simulator.routing.paths import Survey, graph_of, list_links, rule_of
from simulator.routing.tree import listing
from simulator.topology import topology
from topologies import parse_topology

SMALL = np.zeros(5, dtype=np.int32)


def found(network, hub, pairs, room=None):
    """Metric, offset and links of all pairs, with room for so many links at first."""
    source, target = np.array(pairs, dtype=np.int32).T
    graph = graph_of(network)
    survey = Survey(network, graph, hub, cells(graph, hub))
    sent = messages(source, target, len(network.nodes))
    passing = None if room is None else listing(room)
    links = list_links(sent, survey, rule_of(network, hub), passing)
    return sent.metric, *gathered(sent, links)[:2]


def weighted(network):
    graph, metric = nx.DiGraph(), graph_of(network).metric
    graph.add_nodes_from(range(len(network.nodes)))
    ends = zip(network.source.tolist(), network.target.tolist(), metric.tolist(), strict=True)
    graph.add_weighted_edges_from(ends)
    return graph


@tries(200)
@given(wild_networks(), st.data())
def test_paths_are_the_least_whatever_nodes_are_called_hubs(network, data):
    """Ranks and dead ends too, all nodes or none of them."""
    nodes = len(network.nodes)
    hub = np.array(data.draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes)))
    pairs = [(a, b) for a in range(nodes) for b in range(nodes)]
    metric, offset, link = found(network, hub, pairs)
    least = dict(nx.all_pairs_dijkstra_path_length(weighted(network)))
    weight = graph_of(network).metric
    for number, (source, target) in enumerate(pairs):
        path = link[offset[number] : offset[number + 1]]
        if target not in least[source]:
            assert metric[number] == UNKNOWN
            assert not len(path)
            continue
        assert metric[number] == weight[path].sum() == least[source][target]
        walk = [source, *network.target[path].tolist()]
        assert network.source[path].tolist() == walk[:-1]
        assert walk[-1] == target


@tries(100)
@given(wild_networks(), st.data())
def test_paths_are_the_same_however_little_room_there_is_for_them(network, data):
    nodes = len(network.nodes)
    hub = np.array(data.draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes)))
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    pairs = data.draw(st.lists(ends, min_size=1, max_size=40))
    enough = found(network, hub, pairs, 100 * nodes)
    for room in (1, data.draw(st.integers(0, 100))):
        for one, other in zip(enough, found(network, hub, pairs, room), strict=True):
            assert one.tolist() == other.tolist()


@pytest.mark.parametrize("spec", ["leaf_spine:4x3x4", "rail:3x4x2", "torus:4x3x2"])
def test_a_family_has_the_same_paths_however_little_room_there_is_for_them(spec):
    network = parse_topology(spec, bandwidth=1e9, latency=1e-6)
    hub = np.arange(len(network.nodes)) >= network.ranks
    pairs = [(a, b) for a in range(network.ranks) for b in range(network.ranks)]
    results = [found(network, hub, pairs, room) for room in (1, 77, 100_000)]
    for metric, offset, link in results:
        assert (np.diff(offset) >= 1).tolist() == [a != b for a, b in pairs]
        for one, other in zip((metric, offset, link), results[0], strict=True):
            assert one.tolist() == other.tolist()


def test_no_path_is_written_twice_where_there_is_little_room_for_them():
    """What was written before there was no more room is not written again behind it."""
    network = parse_topology("leaf_spine:4x3x4", bandwidth=1e9, latency=1e-6)
    graph, nodes = graph_of(network), len(network.nodes)
    hub = np.array([str(node).startswith("spine") for node in network.nodes])
    assert hub.any()
    ends = np.divmod(np.arange(network.ranks**2, dtype=np.int32), network.ranks)
    sent = messages(*ends, nodes)
    survey = Survey(network, graph, hub, cells(graph, hub))
    links = list_links(sent, survey, rule_of(network, hub), listing(len(SMALL)))
    assert links.used[0] == sent.length.sum() > 4 * len(SMALL)


@pytest.mark.parametrize("ports", [511, 512, 513, 1500])
def test_all_nodes_near_hubs_are_found_however_many_they_are(ports):
    """Two switches and a cable between them; there is room for 1,024 nodes at first."""
    ranks = 2 * ports
    pairs = [(rank, f"switch {rank % 2}") for rank in range(ranks)] + [("switch 0", "switch 1")]
    network = topology("two", ranks, both_ways(pairs, bandwidth=1.0, latency=0.0))
    beyond = hubs(graph_of(network), np.arange(ranks + 2) >= ranks).beyond
    assert beyond.offset.tolist() == [0, ports + 1, 2 * ports + 2]
    for row, (begin, end) in enumerate(pairwise(beyond.offset)):
        near = beyond.item[begin:end].tolist()
        assert near[0] == network.nodes.index(f"switch {row}")
        assert sorted(near[1:]) == list(range(row, ranks, 2))
        assert beyond.metric[begin:end].tolist() == [0] + ports * [1]


@given(st.integers(0, 60), st.integers(0, 9), st.integers(1, 7))
def test_what_is_filled_is_filled_once_and_in_order(end, room, most):
    """Even from no room at all, and by steps that need several places."""

    def go_on(begin, one, other):
        while begin < end:
            stop = min(end, begin + most)
            if stop > len(one):
                return begin
            calls.append(range(begin, stop))
            one[begin:stop] = other[begin:stop] = range(begin, stop)
            begin = stop
        return end

    calls = []
    one, other = filled(go_on, end, (np.zeros(room, dtype=np.int32), np.zeros(room)))
    assert [place for call in calls for place in call] == list(range(end))
    assert one[:end].tolist() == other[:end].tolist() == list(range(end))
    assert (one.dtype, other.dtype) == (np.int32, np.float64)
