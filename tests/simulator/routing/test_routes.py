"""Which links a message takes."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import both_ways, random_links, two_tiers, wild_networks
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.routing.routes import routes
from simulator.support.errors import TopologyError
from simulator.topology import SCALE_OUT, Link, Routing, topology
from topologies import build, catalog, load_cluster, parse_topology

PAIRS = [(a, b) for a in range(4) for b in range(4) if a != b]


@st.composite
def networks(draw):
    return topology("random", 4, draw(random_links(4, extra=8)))


def least_metrics(network):
    """By networkx: from every node to every one it reaches."""
    graph = network.graph()
    for _, _, data in graph.edges(data=True):
        data["metric"] = 1000 if data["resource"] == SCALE_OUT else 1
    return dict(nx.all_pairs_dijkstra_path_length(graph, weight="metric"))


def check_least(network, pairs, least=None):
    """Follow every path, and compare its metric with networkx's."""
    least = least or least_metrics(network)
    fabric = [resource == SCALE_OUT for resource in network.resources]
    metric = np.where(np.array(fabric)[network.resource], 1000, 1)
    for (source, target), path in zip(pairs, paths(network, pairs), strict=True):
        assert [source, *network.target[path].tolist()][-1] == target
        assert [*network.source[path].tolist(), target][0] == source
        assert network.target[path][:-1].tolist() == network.source[path][1:].tolist()
        assert metric[path].sum() == least[network.nodes[source]][network.nodes[target]]


def hashed(network):
    """The network with one path for every pair, of fewest links."""
    return replace(network, routing=Routing())


def paths(network, pairs=PAIRS):
    """Links of every pair, in order."""
    source, target = np.array(pairs, dtype=np.int32).T
    offset, link, _ = routes(network, source, target)
    return [link[a:b] for a, b in pairwise(offset)]


@tries(150)
@given(networks())
def test_a_path_leads_from_source_to_target_without_a_gap(network):
    for (source, target), path in zip(PAIRS, paths(network), strict=True):
        nodes = [*network.source[path].tolist(), target]
        assert nodes[0] == source
        assert network.target[path].tolist() == nodes[1:]
        assert len(set(nodes)) == len(nodes)


@tries(150)
@given(networks())
def test_no_path_is_longer_than_networkx_finds(network):
    """Hops, where one of the scale-out fabric weighs a thousand."""
    graph = network.graph()
    for _, _, data in graph.edges(data=True):
        data["hops"] = 1000 if data["resource"] == SCALE_OUT else 1
    for (source, target), path in zip(PAIRS, paths(network), strict=True):
        hops = sum(1000 if network.link(i).resource == SCALE_OUT else 1 for i in path)
        assert hops == nx.shortest_path_length(graph, source, target, weight="hops")


@tries(50)
@given(networks(), st.randoms(use_true_random=False))
def test_a_path_depends_on_its_ends_alone(network, random):
    """Not on the other messages, their order, or what ran before."""
    together = dict(zip(PAIRS, paths(network), strict=True))
    shuffled = random.sample(PAIRS, 7)
    for pair, path in zip(shuffled, paths(network, shuffled), strict=True):
        assert path.tolist() == together[pair].tolist()
        assert paths(network, [pair])[0].tolist() == path.tolist()


@tries(30)
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


@tries(300)
@given(wild_networks(), st.randoms(use_true_random=False))
def test_every_path_of_a_wild_network_is_the_least_whatever_else_is_sent(network, random):
    """Between switches and NICs too, through ranks where that is shorter, all at once or some."""
    least = least_metrics(network)
    nodes = range(len(network.nodes))
    ends = [(a, b) for a in nodes for b in nodes if network.nodes[b] in least[network.nodes[a]]]
    check_least(network, ends, least)
    together = dict(zip(ends, paths(network, ends), strict=True))
    some = random.sample(ends, min(6, len(ends)))
    for pair, path in zip(some, paths(network, some), strict=True):
        assert path.tolist() == together[pair].tolist()
        assert paths(network, [pair])[0].tolist() == path.tolist()


@tries(100)
@given(wild_networks())
def test_wherever_networkx_finds_no_path_there_is_an_error(network):
    least = least_metrics(network)
    nodes = range(len(network.nodes))
    for source, target in [(a, b) for a in nodes for b in nodes]:
        if network.nodes[target] not in least[network.nodes[source]]:
            with pytest.raises(TopologyError, match="no path"):
                paths(network, [(0, 0), (source, target)])


FAMILIES = (
    "ring:7 line:5 switch:20 fully_connected:6 torus:4x3x2 mesh:3x4 twisted_torus:2x4 hypercube:4 "
    "leaf_spine:4x3x4 rail:3x4x2 fat_tree:4 dragonfly:9x4x2 dragonfly:5x2x3x4"
)


@pytest.mark.parametrize("spec", FAMILIES.split())
def test_no_path_of_a_family_is_longer_than_networkx_finds(spec):
    network = parse_topology(spec, bandwidth=1e9, latency=1e-6)
    ranks = range(network.ranks)
    check_least(network, [(a, b) for a in ranks for b in ranks])


@pytest.mark.parametrize("name", catalog())
def test_no_path_of_a_cluster_is_longer_than_networkx_finds(name):
    cluster = load_cluster(name)
    nodes = min(cluster.nodes, 5)
    network = hashed(build(cluster, nodes * min(cluster.ranks_per_node, 8), nodes))
    ranks = range(network.ranks)
    check_least(network, [(a, b) for a in ranks for b in ranks])


@pytest.mark.parametrize("name", ["hgx-h100", "h100-pcie-8"])
def test_switches_and_nics_are_ends_of_paths_as_ranks_are(name):
    cluster = load_cluster(name)
    network = hashed(build(cluster, 2 * cluster.ranks_per_node))
    least = least_metrics(network)
    last = network.ranks - 1
    for node in range(network.ranks, len(network.nodes)):
        pairs = [(0, node), (last, node), (node, 0), (node, last)]
        reached = [(a, b) for a, b in pairs if network.nodes[b] in least.get(network.nodes[a], ())]
        check_least(network, reached, least)


def test_no_path_of_a_dragonfly_of_nodes_is_longer_than_networkx_finds():
    """NICs of a node on routers of their own, three groups: a neighbour's NIC may be nearer."""
    cluster = load_cluster("gh200-alps")
    fabric = cluster.scale_out.model_copy(update={"nodes_per_group": 5})
    network = hashed(build(cluster.model_copy(update={"scale_out": fabric}), 60))
    ranks = range(network.ranks)
    check_least(network, [(a, b) for a in ranks for b in ranks])


def rails(nodes):
    """Two ranks a node behind a switch, each with a NIC on a rail of its own; rails on a spine."""
    up, out = [], []
    for rank in range(2 * nodes):
        up.append((rank, f"domain {rank // 2}"))
        out.append(Link(rank, f"nic {rank}:out", 1.0, 0.0, "pcie"))
        out.append(Link(f"nic {rank}:in", rank, 1.0, 0.0, "pcie"))
        out.append(Link(f"nic {rank}:out", f"rail {rank % 2}", 1.0, 0.0, SCALE_OUT))
        out.append(Link(f"rail {rank % 2}", f"nic {rank}:in", 1.0, 0.0, SCALE_OUT))
    over = both_ways(
        [(f"rail {i}", "spine") for i in range(2)], bandwidth=1.0, latency=0.0, resource=SCALE_OUT
    )
    return topology("rails", 2 * nodes, [*both_ways(up, bandwidth=1.0, latency=0.0), *out, *over])


def test_a_message_to_another_rail_goes_by_a_neighbour_rather_than_the_spine():
    """As NCCL's PXN does; the neighbour is that of the source or of the target, half and half."""
    network = rails(20)
    pairs = [(a, b) for a in range(0, 40, 2) for b in range(1, 40, 2) if a + 1 != b]
    by_source = 0
    for (source, target), path in zip(pairs, paths(network, pairs), strict=True):
        through = set(network.target[path].tolist()) & set(range(40)) - {target}
        assert through in ({source + 1}, {target - 1})
        by_source += through == {source + 1}
    assert 0.4 < by_source / len(pairs) < 0.6


@pytest.mark.parametrize("size", [3, 20])
def test_where_only_one_rank_has_a_nic_it_forwards_for_its_domain(size):
    """Domains of either kind: with a switch that a search passes, and with one it starts from."""
    up = [(rank, f"domain {rank // size}") for rank in range(2 * size)]
    links = both_ways(up, bandwidth=1.0, latency=0.0)
    links += both_ways([(0, "fabric"), (size, "fabric")], bandwidth=1.0, latency=0.0)
    network = topology("gateway", 2 * size, links)
    (path,) = paths(network, [(1, size + 1)])
    names = [network.nodes[node] for node in network.target[path]]
    assert names == ["domain 0", 0, "fabric", size, "domain 1", size + 1]


def test_no_path_turns_round_in_a_shared_nic():
    links = [Link(rank, "nic:out", 1.0, 0.0) for rank in range(2)]
    links += [Link("nic:in", rank, 1.0, 0.0) for rank in range(2)]
    links += [Link("nic:out", "fabric", 1.0, 0.0), Link("fabric", "nic:in", 1.0, 0.0)]
    network = topology("shared", 2, links)
    (path,) = paths(network, [(0, 1)])
    assert [network.nodes[node] for node in network.target[path]] == [
        "nic:out",
        "fabric",
        "nic:in",
        1,
    ]


def planes(hosts, spines):
    """Every rank on a leaf of each of two planes, by two NICs each: many ways at every place."""
    pairs = []
    for rank in range(hosts):
        for plane in range(2):
            for port in range(2):
                nic = f"nic {rank}.{plane}.{port}"
                pairs += [(rank, nic), (nic, f"leaf {plane}.{rank % 2}")]
    for plane in range(2):
        tops = [f"spine {plane}.{spine}" for spine in range(spines)]
        pairs += [(f"leaf {plane}.{leaf}", top) for leaf in range(2) for top in tops]
    return topology("planes", hosts, both_ways(pairs, bandwidth=1.0, latency=0.0))


def test_messages_spread_over_all_equal_nics_leaves_and_spines():
    """2 planes, 2 NICs out, 3 spines, 2 NICs in: 24 paths, on average 20 messages on each."""
    network = planes(32, 3)
    pairs = [(a, b) for a in range(32) for b in range(32) if a % 2 != b % 2]
    for part in (pairs[:256], pairs[256:]):
        used = {}
        for (source, target), path in zip(part, paths(network, part), strict=True):
            names = [str(network.nodes[node]) for node in network.target[path[:-1]]]
            assert len(names) == 5
            way = tuple(
                name.replace(f" {source}.", " ").replace(f" {target}.", " ") for name in names
            )
            used[way] = used.get(way, 0) + 1
        assert len(used) >= 22
        assert max(used.values()) < 3 * len(part) / 24


def test_a_rank_reaches_itself_without_a_link():
    assert [len(path) for path in paths(two_tiers(4), [(1, 1), (0, 1), (2, 2)])][::2] == [0, 0]


def test_no_messages_have_no_paths():
    empty = np.empty(0, dtype=np.int32)
    offset, link, _ = routes(two_tiers(4), empty, empty)
    assert offset.tolist() == [0]
    assert not len(link)


@pytest.mark.parametrize("ends", [(0, 9), (-1, 2)])
def test_a_node_that_is_not_there_is_refused(ends):
    network = topology("two", 2, both_ways([(0, 1)], bandwidth=1e9, latency=1e-6))
    source, target = (np.array([end], dtype=np.int32) for end in ends)
    with pytest.raises(TopologyError, match=r"two: no node (9|-1): it has 0 to 1"):
        routes(network, source, target)
