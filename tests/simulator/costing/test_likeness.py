"""What is known of a group is known of those that lie alike, on all networks of one graph."""

import random
from dataclasses import fields, replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.resources import improve
from experiments.scenario.scenario import Scenario, Site
from helpers.replicated import like_nodes
from helpers.sites import MAKE
from helpers.strategies import networks, ring_network, switch_network, two_tiers
from helpers.strategies import with_software as planner
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, Group
from simulator.costing.call_costs import Costs, Likeness, Likenesses
from simulator.costing.link_load import plan_loads
from simulator.costing.symmetry import symmetry
from simulator.routing.routes import routes, share_routes
from simulator.topology import POLICIES, Link, Routing, topology
from topologies import build, load_cluster, parse_topology, resource_values, torus
from topologies.families.grid import dimension_ordered

KINDS = ("all_reduce", "all_gather", "all_to_all", "broadcast")


def nowhere(network):
    """Put all positions into one domain."""
    return np.zeros(network.ranks, dtype=np.int64)


def by_paths(network, domains=None):
    """Say what is alike by paths alone, whatever components are."""
    alike = Likeness(network, nowhere(network) if domains is None else domains)
    alike.__dict__.update(symmetry=None, symmetry_of_ranks=None)
    return alike


def leaves_and_spines(leaves, per_leaf, spines, *, nodes=2):
    """Ranks in nodes on a switch; every node on a leaf, every leaf on every spine."""
    graph = nx.Graph()
    ranks = leaves * per_leaf * nodes
    for rank in range(ranks):
        graph.add_edge(rank, f"node {rank // nodes}", at=8)
        graph.add_edge(rank, f"leaf {rank // (nodes * per_leaf)}", at=2)
    for leaf in range(leaves):
        for spine in range(spines):
            graph.add_edge(f"leaf {leaf}", f"spine {spine}", at=1)
    links = []
    for one, other, at in graph.edges(data="at"):
        resource = "scale_up" if at == 8 else "scale_out"
        links += [Link(a, b, at * 1e9, 1e-6, resource) for a, b in ((one, other), (other, one))]
    return topology("leaves", ranks, links)


def groups_of(ranks):
    """Groups of all sorts, each of them in several places."""
    rows = [tuple(range(first, first + 4)) for first in range(0, ranks - 3, 4)]
    apart = [tuple(range(first, ranks, 4)) for first in range(4)]
    return [*rows, *apart, *(one[::-1] for one in rows)]


def check(network, alike, groups, plan=planner):
    """Compare what is moved with what would be laid; return how many were laid."""
    assert alike.symmetry is None or alike.has_answers
    planned = []
    costs = Costs(network, lambda *asked: planned.append(asked) or plan(*asked), alike)
    for kind in KINDS:
        for ranks in groups:
            call = Call(kind, Group(ranks), 1e6, "float")
            laid = plan_loads(plan(call, network), np.array(ranks, np.int32), call.size, network)
            found = costs.loads(call)
            assert len(found) == len(laid)
            for one, other in zip(found, laid, strict=True):
                order = np.argsort(one.link)
                assert np.array_equal(one.link[order], np.sort(other.link)), (kind, ranks)
                assert one.weight[order] == pytest.approx(other.weight, rel=1e-12)
                assert one.time == pytest.approx(other.time, rel=1e-12)
                assert one.spent(network) == pytest.approx(other.spent(network), rel=1e-9)
    return len(planned)


NETWORKS = {
    "torus": lambda: torus((4, 4), bandwidth=50e9, latency=1e-6),
    "dimension order": lambda: dimension_ordered(
        torus((4, 4), bandwidth=50e9, latency=1e-6), (4, 4)
    ),
    "hashed": lambda: leaves_and_spines(4, 4, 3),
    "two switches": lambda: two_tiers(16),
    "like nodes": lambda: like_nodes(4, 4, slow=(2,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_load_that_is_moved_is_the_one_that_would_be_laid(name):
    network = NETWORKS[name]()
    groups = groups_of(network.ranks)
    assert check(network, by_paths(network), groups) <= len(KINDS) * len(groups)
    again = scaled(network, network.resources[0], bandwidth=3.0, latency=0.5)
    alike = by_paths(network)
    assert alike.serves(again, alike.domains)
    check(again, alike, groups)


@pytest.mark.parametrize("name", [field.name for field in fields(Routing)])
def test_what_is_known_of_a_routing_serves_no_other(name):
    """Whichever of its fields it differs in."""
    links, nodes = np.ones(32), np.zeros(12, dtype=np.int32)
    routing = Routing("ecmp", group=nodes, capacity=links, slowed=links)
    other = {
        "policy": "spray", "resource": "scale_out", "seed": 1, "flows": 2, "group": nodes + 1,
        "capacity": 2 * links, "slowed": links / 2,
    }  # fmt: skip
    network = replace(torus((4, 2), bandwidth=50e9, latency=1e-6), routing=routing)
    alike = by_paths(network)
    assert alike.serves(replace(network, routing=replace(routing)), alike.domains)
    changed = replace(routing, **{name: other[name]})
    assert not alike.serves(replace(network, routing=changed), alike.domains)


@tries(100)
@given(st.integers(0, 2**32 - 1))
def test_groups_have_the_same_links_around_them_as_a_loop_over_links_finds(seed):
    """Between members, and away from each: two copies of a graph, of one of which a link is cut."""
    chance = random.Random(seed)
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b and chance.random() < 0.6]
    pairs += [(a, "out") for a in range(4) if chance.random() < 0.6]
    links = [
        Link(*(end if end == "out" else end + 4 * copy for end in pair), 1e9, 1e-6)
        for copy in range(2)
        for pair in pairs
    ]
    links += [Link(*cable, 2e9, 1e-6) for n in range(8) for cable in ((n, "hub"), ("hub", n))]
    links.append(Link("out", "hub", 1e9, 1e-6))
    if pairs and chance.random() < 0.8:
        links.pop(chance.randrange(2 * len(pairs)))
    network = topology("copies", 8, links)
    order = chance.sample(range(4), chance.randint(1, 4))

    def around(ranks):
        ends = zip(network.source.tolist(), network.target.tolist(), network.bandwidth, strict=True)
        return sorted(
            (ranks.index(a), ranks.index(b) if b in ranks else -1, speed)
            for a, b, speed in ends
            if a in ranks
        )

    groups = [[rank + 4 * copy for rank in order] for copy in range(2)]
    found = [by_paths(network)._links_around(np.array(ranks)) for ranks in groups]
    assert np.array_equal(*found) == (around(groups[0]) == around(groups[1]))


def test_groups_on_a_graph_with_a_hash_are_laid_once():
    network = leaves_and_spines(4, 4, 3, nodes=4)
    nodes = [tuple(range(first, first + 4)) for first in range(0, 64, 4)]
    assert check(network, by_paths(network), nodes) == len(KINDS)


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100", "aws-p5"])
def test_groups_in_other_places_of_their_nodes_are_laid_once(name):
    """Each rank has its share of the NICs: one group of each place, two groups of two places."""
    network = build(load_cluster(name), 32)
    domains = np.arange(32) // 8
    rails = [tuple(range(place, 32, 8)) for place in range(8)]
    assert check(network, Likeness(network, domains), rails) == len(KINDS)
    quads = [(place, place + 4, place + 16, place + 20) for place in range(4)]
    assert check(network, Likeness(network, domains), quads) == len(KINDS)
    pairs = [(0, 1), (3, 4)]  # of one domain, and of one or two
    assert check(network, Likeness(network, domains), pairs) == len(KINDS)
    assert check(network, Likeness(network, np.arange(32) // 4), pairs) == 2 * len(KINDS)


@tries(50)
@given(data=st.data())
def test_on_any_network_a_load_is_what_would_be_laid(data):
    ranks = data.draw(st.integers(2, 8))
    network = data.draw(networks(ranks))
    some = st.permutations(range(ranks)).flatmap(
        lambda order: st.integers(2, ranks).map(lambda n: tuple(order[:n]))
    )
    check(network, by_paths(network), data.draw(st.lists(some, min_size=2, max_size=6)))


def test_links_are_moved_to_those_that_are_in_their_place():
    network = switch_network(6)
    alike = by_paths(network)
    one, other = alike.place((0, 1, 2)), alike.place((3, 5, 4)[::-1])
    way = routes(network, np.array([0], np.int32), np.array([2], np.int32)).link
    there = routes(network, np.array([4], np.int32), np.array([3], np.int32)).link
    reverse = alike.place((4, 5, 3))
    assert one.pattern != reverse.pattern  # libraries order members by number
    assert one.pattern != other.pattern
    like = alike.place((3, 4, 5))
    assert like.pattern == one.pattern
    ends = routes(network, np.array([3], np.int32), np.array([5], np.int32)).link
    assert like.links_of(way, one).tolist() == ends.tolist()
    assert there.tolist() != ends.tolist()


def test_groups_are_not_alike_that_differ_in_anything_a_planner_sees():
    network = like_nodes(4, 4, slow=(2,))
    alike = by_paths(network, np.repeat(np.arange(4), 4))
    patterns = {ranks: alike.place(ranks).pattern for ranks in ((0, 4), (4, 8), (8, 12), (0, 1))}
    assert patterns[0, 4] != patterns[4, 8] != patterns[8, 12]  # the third node is slow
    assert patterns[0, 1] not in (patterns[0, 4], patterns[4, 8])
    assert alike.place((12, 0)).pattern != alike.place((0, 12)).pattern
    other = by_paths(network, np.repeat([3, 1, 2, 0], 4))
    assert other.place((0, 4)).pattern != alike.place((0, 4)).pattern
    assert Likeness(network).place((0, 4)) is None  # who plans may see what nobody told
    kinds = by_paths(replace(network, kind=(0,) * 4 + (1,) * 12))
    assert kinds.place((0, 1)).pattern != kinds.place((4, 5)).pattern


def test_a_link_that_leads_out_of_a_group_is_seen_though_no_message_passes_it():
    links = [Link(a, b, 1e9, 1e-6) for a, b in ((0, 1), (1, 0), (2, 3), (3, 2))]
    links += [Link(a, b, 1e7, 1e-6) for a, b in ((0, 4), (4, 0), (2, 4), (4, 2))]
    network = topology("pairs", 5, links)
    assert by_paths(network).place((0, 1)).pattern == by_paths(network).place((2, 3)).pattern
    more = topology("pairs", 5, [*links, Link(3, 4, 5e9, 1e-6), Link(4, 3, 5e9, 1e-6)])
    assert by_paths(more).place((0, 1)).pattern != by_paths(more).place((2, 3)).pattern


def test_large_groups_and_ways_that_depend_on_others_are_not_told():
    wide = switch_network(260)
    assert by_paths(wide).place(tuple(range(257))) is None
    assert by_paths(wide).place(tuple(range(256))) is not None


def test_what_is_alike_is_so_on_all_networks_of_a_graph_and_on_no_other():
    network = like_nodes(4, 2)
    alike, domains = by_paths(network), nowhere(network)
    faster = scaled(network, "scale_out", bandwidth=3.0)
    assert alike.serves(faster, domains)
    assert alike.serves(like_nodes(4, 2, bandwidth=7e9, latency=3e-6), domains)
    assert not alike.serves(like_nodes(4, 2, slow=(1,)), domains)
    assert not alike.serves(ring_network(8), domains)
    assert not alike.serves(network, domains + np.arange(8))
    slow = network.bandwidth.copy()
    slow[3] /= 2
    assert not alike.serves(replace(network, bandwidth=slow), domains)
    moving = replace(network, routing=replace(network.routing, seed=1))
    assert not alike.serves(moving, domains)
    known = Likenesses()
    first = known.of(network, domains)
    assert known.of(faster, domains) is first
    assert known.of(ring_network(8), domains) is not first
    assert known.of(replace(network, bandwidth=slow), domains) is not first


@pytest.mark.parametrize("times", [2.0, 3.0, (4.0, 2.0)])
@pytest.mark.parametrize("policy", POLICIES)
def test_networks_of_one_graph_share_their_routes_unless_bandwidths_decide(policy, times):
    def made():
        network = parse_topology(f"dragonfly:5x4x1x2@{policy}", bandwidth=1e9, latency=1e-6)
        switches = (network.source >= network.ranks) & (network.target >= network.ranks)
        sped = np.where(switches, *times) if isinstance(times, tuple) else times
        return network, replace(network, bandwidth=sped * network.bandwidth)

    (network, faster), alone = made(), made()[1]
    ranks = np.arange(network.ranks, dtype=np.int32)
    ends = [(ranks, np.roll(ranks, shift)) for shift in (1, 3)] + [(ranks[:1], ranks[-1:])]
    for graph in (network, faster):
        share_routes(graph, network)
        found = [routes(graph, *pair) for pair in ends]
    for ways, pair in zip(found, ends, strict=True):
        for mine, theirs in zip(ways, routes(alone, *pair), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        shared = routes(network, *pair) is ways
        assert shared == (policy != "adaptive" or times == 2.0)
    again = replace(network, bandwidth=faster.bandwidth / 4)
    share_routes(again, network)
    assert all(routes(again, *pair) is ways for ways, pair in zip(found, ends, strict=True))
    worn = replace(network, routing=replace(network.routing, slowed=np.ones(len(network))))
    share_routes(worn, network)
    assert worn.known_routes is not network.known_routes
    known = network.known_routes
    assert known.links == sum(len(ways.link) for ways in known.values())


@pytest.mark.parametrize("name", ["hgx-h100", "tpu-v5e", "gb200-nvl72", "leonardo"])
def test_scenarios_made_of_each_other_know_what_is_alike(name, monkeypatch):
    monkeypatch.setattr(Site, "of", staticmethod(MAKE))  # what no other test found out
    builder = WorkloadBuilder(job_ranks=16)
    base = Scenario(builder.build(), load_cluster(name))
    first = base.site.costs.alike
    for resource in ("scale_up.bandwidth", "scale_up.latency", "scale_out.bandwidth"):
        if resource not in resource_values(base.cluster):
            continue
        changed = improve(base, resource, 2.0)
        assert changed.site.costs.alike is first
        fresh = Scenario(base.workload, changed.cluster)
        assert fresh.site.costs.alike is not first
        for ranks in ((0, 1, 2, 3), (4, 5, 6, 7), (0, 8)):
            call = Call("all_reduce", Group(ranks), 1e7)
            mine, theirs = changed.site.costs.idle_time(call), fresh.site.costs.idle_time(call)
            assert mine == pytest.approx(theirs, rel=1e-12)
    other = improve(base, "scale_up.size", 2.0) if name == "hgx-h100" else base
    assert other is base or other.site.costs.alike is not first


def test_tori_of_one_shape_are_one_graph():
    one, other = (build(load_cluster("tpu-v5e"), 16) for _ in range(2))
    assert Likeness(one, nowhere(one)).serves(other, nowhere(other))


@pytest.mark.parametrize("name", ["hgx-h100", "mi300x-8", "aws-p4d"])
def test_groups_in_like_components_are_asked_once_how_they_lie(name):
    cluster = load_cluster(name)
    ranks = 16 * cluster.ranks_per_node
    network = build(cluster, ranks)
    domains = np.arange(ranks) // cluster.ranks_per_node
    groups = groups_of(ranks) + [(one, (one + 8) % ranks) for one in range(ranks)]
    alike, each = Likeness(network, domains), Likeness(network, domains)
    patterns = [alike.pattern(group) for group in groups]
    assert patterns == [each.place(group).pattern for group in groups]
    assert alike.symmetry is not None
    assert len(alike._places) < len(each._places) / 3


def test_parts_are_not_alike_whose_latencies_belong_to_others():
    network = switch_network(4)
    assert symmetry(network) is not None
    owners = np.where(network.source == 0, "pcie", network.latency_resource)
    kinds = symmetry(replace(network, latency_resource=owners)).kind
    assert kinds[0] not in kinds[1:]
