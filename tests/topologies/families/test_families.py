"""Closed forms of every family, held to the graph itself."""

from math import prod

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import TopologyError
from simulator.topology import Topology
from topologies import (
    DragonflyShape,
    LeafSpineShape,
    bisection_bandwidth,
    diameter,
    dragonfly,
    fat_tree,
    fully_connected,
    hypercube,
    leaf_spine,
    line,
    mesh,
    ring,
    switch,
    torus,
)
from topologies.families.dragonfly import global_ends

B = 50e9
CABLE = {"bandwidth": B, "latency": 1e-6}
some_dimensions = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def figures(network: Topology) -> tuple[int, int, int]:
    return len(network.nodes), len(network), diameter(network)


def neighbours(network: Topology, rank: int) -> set[object]:
    return set(network.graph().successors(rank))


@given(n=st.integers(3, 20))
def test_a_ring_has_its_closed_forms(n):
    network = ring(n, **CABLE)
    assert figures(network) == (n, 2 * n, n // 2)
    assert all(neighbours(network, r) == {(r - 1) % n, (r + 1) % n} for r in range(n))


@given(n=st.integers(2, 20))
def test_a_line_has_its_closed_forms(n):
    network = line(n, **CABLE)
    assert figures(network) == (n, 2 * (n - 1), n - 1)
    assert neighbours(network, 0) == {1}


def test_a_ring_of_two_has_one_cable():
    assert len(ring(2, **CABLE)) == 2


@pytest.mark.parametrize("family", [ring, line, switch, fully_connected])
def test_a_single_rank_is_a_network(family):
    assert family(1, **CABLE).ranks == 1


@given(n=st.integers(2, 20))
def test_a_switch_has_its_closed_forms_and_two_hops_cost_two_latencies(n):
    network = switch(n, **CABLE)
    assert figures(network) == (n + 1, 2 * n, 2)
    cost = nx.shortest_path_length(network.graph(), 0, n - 1, weight="latency")
    assert cost == pytest.approx(2e-6, rel=1e-12)


@given(n=st.integers(2, 12))
def test_fully_connected_has_its_closed_forms(n):
    assert figures(fully_connected(n, **CABLE)) == (n, n * (n - 1), 1)


@given(dimensions=some_dimensions)
@settings(deadline=None)
def test_a_torus_has_its_closed_forms(dimensions):
    n = prod(dimensions)
    links = sum({1: 0, 2: n}.get(length, 2 * n) for length in dimensions)
    expected = (n, links, sum(length // 2 for length in dimensions))
    assert figures(torus(dimensions, **CABLE)) == expected


@given(dimensions=some_dimensions)
@settings(deadline=None)
def test_a_mesh_has_its_closed_forms(dimensions):
    n = prod(dimensions)
    links = sum(2 * n * (length - 1) // length for length in dimensions)
    expected = (n, links, sum(length - 1 for length in dimensions))
    assert figures(mesh(dimensions, **CABLE)) == expected


@given(dimensions=some_dimensions)
@settings(deadline=None)
def test_a_torus_is_the_product_of_rings_as_networkx_has_it(dimensions):
    theirs = nx.grid_graph(dim=list(reversed(dimensions)), periodic=True)
    ours = torus(dimensions, **CABLE).graph().to_undirected()
    places = sorted(theirs) if len(dimensions) > 1 else list(range(prod(dimensions)))
    theirs = nx.relabel_nodes(theirs, {place: rank for rank, place in enumerate(places)})
    theirs.remove_edges_from(nx.selfloop_edges(theirs))
    assert {frozenset(edge) for edge in ours.edges} == {frozenset(edge) for edge in theirs.edges}


def test_wrap_around_is_chosen_per_dimension():
    network = mesh((3, 4), wrap=(True, False), **CABLE)
    assert neighbours(network, 0) == {4, 8, 1}
    assert figures(network) == (12, 2 * 12 + 2 * 9, 1 + 3)
    assert network.name == "mesh(3x4, wrap=yn)"


@given(order=st.integers(0, 5))
def test_a_hypercube_has_its_closed_forms(order):
    n = 2**order
    network = hypercube(order, **CABLE)
    assert figures(network) == (n, n * order, order)
    assert neighbours(network, n - 1) == {n - 1 - 2**bit for bit in range(order)}


@pytest.mark.parametrize(
    ("network", "cables"),
    [
        (ring(8, **CABLE), 2),
        (ring(7, **CABLE), 2),
        (line(8, **CABLE), 1),
        (switch(8, **CABLE), 4),
        (switch(7, **CABLE), 3),
        (fully_connected(6, **CABLE), 9),
        (fully_connected(7, **CABLE), 12),
        (torus((4, 2), **CABLE), 4),
        (torus((2, 2, 2), **CABLE), 4),
        (mesh((4, 2), **CABLE), 2),
        (mesh((2, 4), wrap=(False, True), **CABLE), 4),
        (hypercube(3, **CABLE), 4),
        (leaf_spine(LeafSpineShape(leaves=2, spines=2, ranks_per_leaf=4), **CABLE), 4),
        (
            leaf_spine(
                LeafSpineShape(leaves=2, spines=2, ranks_per_leaf=4), oversubscription=4, **CABLE
            ),
            1,
        ),
        (fat_tree(2, **CABLE), 1),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_bisection_bandwidth_is_the_closed_form(network, cables):
    assert bisection_bandwidth(network) == pytest.approx(cables * B, rel=1e-9)


def test_bisection_bandwidth_of_a_dragonfly_is_its_global_cables_between_half_the_groups():
    shape = DragonflyShape(groups=2, routers=2, ranks_per_router=2, global_links=1)
    network = dragonfly(shape, global_bandwidth=B / 8, **CABLE)
    assert shape.cables_per_pair == 2
    assert bisection_bandwidth(network) == pytest.approx(2 * B / 8)


@given(g=st.integers(1, 9), a=st.integers(1, 4), p=st.integers(1, 2), h=st.integers(2, 3))
@settings(deadline=None)
def test_a_dragonfly_joins_every_two_groups_alike_and_needs_one_global_link(g, a, p, h):
    if g > a * h + 1:
        with pytest.raises(TopologyError, match="reach at most"):
            DragonflyShape(groups=g, routers=a, ranks_per_router=p, global_links=h)
        return
    shape = DragonflyShape(groups=g, routers=a, ranks_per_router=p, global_links=h)
    network = dragonfly(shape, **CABLE)
    graph = network.graph()
    assert (network.ranks, len(network.nodes)) == (g * a * p, g * a * p + g * a)
    assert network.ranks == 1 or diameter(network) <= 5
    between = {}
    for one, other, data in graph.edges(data=True):
        if isinstance(one, str) and isinstance(other, str):
            groups = tuple(name.removeprefix("router:").split(".")[0] for name in (one, other))
            between[groups] = between.get(groups, 0) + data["bandwidth"] / B
    local = {pair: count for pair, count in between.items() if pair[0] == pair[1]}
    far = {pair: count for pair, count in between.items() if pair[0] != pair[1]}
    assert set(local.values()) <= {a * (a - 1)}
    assert len(far) == g * (g - 1)
    assert set(far.values()) <= {a * h // (g - 1) if g > 1 else 0}


def test_no_router_of_a_dragonfly_has_more_global_cables_than_ports():
    shape = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)
    ports = dict.fromkeys((f"router:{g}.{a}" for g in range(9) for a in range(4)), 0)
    for pair, count in global_ends(shape, range(9)).items():
        for name in pair:
            ports[name] += count
    assert set(ports.values()) == {2}


@pytest.mark.parametrize("k", [2, 4, 6])
def test_a_fat_tree_has_its_closed_forms(k):
    network = fat_tree(k, **CABLE)
    assert network.ranks == k**3 // 4
    assert figures(network) == (k**3 // 4 + 5 * k**2 // 4, 3 * k**3 // 2, 6)


def test_every_switch_of_a_fat_tree_uses_its_ports():
    graph = fat_tree(6, **CABLE).graph()
    assert {graph.out_degree(node) for node in graph if isinstance(node, str)} == {6}


def test_a_leaf_has_its_bandwidth_down_over_its_bandwidth_up():
    shape = LeafSpineShape(leaves=3, spines=2, ranks_per_leaf=4)
    network = leaf_spine(shape, oversubscription=2, **CABLE)
    assert figures(network) == (12 + 5, 2 * (12 + 6), 4)
    up = [d["bandwidth"] for _, _, d in network.graph().out_edges("leaf:0", data=True)]
    assert sorted(up) == [B] * 6


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ring(0, **CABLE), "needs a rank"),
        (lambda: torus((), **CABLE), "positive dimensions"),
        (lambda: torus((4, 0), **CABLE), "positive dimensions"),
        (lambda: mesh((4, 4), wrap=(True,), **CABLE), "1 entries for 2 dimensions"),
        (lambda: hypercube(-1, **CABLE), "negative"),
        (lambda: fat_tree(3, **CABLE), "even number of ports"),
        (lambda: LeafSpineShape(leaves=0, spines=1, ranks_per_leaf=1), "nothing"),
        (
            lambda: leaf_spine(
                LeafSpineShape(leaves=1, spines=1, ranks_per_leaf=1), oversubscription=0, **CABLE
            ),
            "oversubscription",
        ),
        (
            lambda: DragonflyShape(groups=0, routers=1, ranks_per_router=1, global_links=1),
            "nothing",
        ),
        (lambda: bisection_bandwidth(ring(13, **CABLE)), "2 to 12 ranks"),
        (lambda: ring(4, bandwidth=0, latency=0), "not positive"),
    ],
)
def test_what_cannot_be_built_is_refused(build, message):
    with pytest.raises(TopologyError, match=message):
        build()
