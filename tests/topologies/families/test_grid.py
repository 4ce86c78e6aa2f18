"""Torus, mesh, twisted torus and hypercube: their closed forms, and their dimension order."""

from itertools import combinations, pairwise
from math import prod

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.topologies import CABLE, B, everyone, figures, neighbours
from simulator.routing.routes import routes
from simulator.support.errors import TopologyError
from topologies import (
    bisection_bandwidth,
    closed_form,
    diameter,
    dimension_order,
    dimension_ordered,
    hypercube,
    mesh,
    torus,
    twisted_torus,
)
from topologies.families.grid import slice_ends, slice_shape

some_dimensions = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(dimensions=some_dimensions)
def test_a_torus_has_its_closed_forms(dimensions):
    n = prod(dimensions)
    links = sum({1: 0, 2: n}.get(length, 2 * n) for length in dimensions)
    expected = (n, links, sum(length // 2 for length in dimensions))
    assert figures(torus(dimensions, **CABLE)) == expected


@given(dimensions=some_dimensions)
def test_a_mesh_has_its_closed_forms(dimensions):
    n = prod(dimensions)
    links = sum(2 * n * (length - 1) // length for length in dimensions)
    expected = (n, links, sum(length - 1 for length in dimensions))
    assert figures(mesh(dimensions, **CABLE)) == expected


@given(dimensions=some_dimensions)
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


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6])
def test_a_twisted_torus_of_two_dimensions_has_its_closed_forms(k):
    network = twisted_torus((k, 2 * k), **CABLE)
    assert (network.ranks, len(network), diameter(network)) == (2 * k * k, 8 * k * k, k)
    if k > 2:
        assert len(network) == len(torus((k, 2 * k), **CABLE))
        assert diameter(torus((k, 2 * k), **CABLE)) == k // 2 + k


def test_bisection_bandwidth_of_a_twisted_torus_is_twice_that_of_the_plain_one():
    network = twisted_torus((2, 4), **CABLE)
    assert bisection_bandwidth(network) == pytest.approx(8 * B)
    assert bisection_bandwidth(torus((2, 4), **CABLE)) == pytest.approx(4 * B)
    assert closed_form(network) == pytest.approx(8 * B)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_a_twisted_torus_of_three_dimensions_has_its_closed_forms(k):
    for dimensions in ((k, k, 2 * k), (k, 2 * k, 2 * k)):
        network = twisted_torus(dimensions, **CABLE)
        assert len(network) == 6 * network.ranks
        assert diameter(network) == 3 * k // 2
        plain = closed_form(torus(dimensions, **CABLE))
        assert closed_form(network) == (None if k % 2 else pytest.approx(2 * plain))


def test_no_cut_of_a_small_twisted_torus_is_less_than_whole_planes():
    """All halves of 2x2x4; of 2x4x4 by the second eigenvalue (M. Fiedler 1973): n lambda / 4."""
    network = twisted_torus((2, 2, 4), **CABLE)
    halves = np.array([[0, *rest] for rest in combinations(range(1, 16), 7)])
    inside = np.zeros((len(halves), 16), dtype=bool)
    np.put_along_axis(inside, halves, values=True, axis=1)
    crossing = inside[:, network.source] & ~inside[:, network.target]
    assert crossing.sum(axis=1).min() * B == pytest.approx(closed_form(network))
    network = twisted_torus((2, 4, 4), **CABLE)
    laplacian = np.zeros((32, 32))
    np.add.at(laplacian, (network.source, network.target), -1.0)
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    second = np.linalg.eigvalsh(laplacian)[1]
    assert 32 * second / 4 * B == pytest.approx(closed_form(network))


def test_a_slice_is_twisted_only_where_switches_close_lengths_of_k_and_2k():
    def ends(count, **options):
        return slice_ends((16, 16, 16), count, closes=True, multiple=4, **options)

    for count in (32, 64, 192, 512):
        assert ends(count, twisted=True) == ends(count)
    for count in (128, 256, 1024, 2048):
        shape = slice_shape((16, 16, 16), count)
        links = twisted_torus(shape, **CABLE)
        assert len(ends(count, twisted=True)) == len(links) // 2
        assert set(ends(count, twisted=True)) <= set(
            zip(links.source.tolist(), links.target.tolist(), strict=True)
        )
        assert sorted(ends(count)) != sorted(ends(count, twisted=True))


@pytest.mark.parametrize("dimensions", [(4, 8), (8, 4), (2, 2, 4), (3, 6, 6), (4, 4, 8)])
def test_every_node_of_a_twisted_torus_has_two_cables_per_dimension(dimensions):
    graph = twisted_torus(dimensions, **CABLE).graph()
    assert set(dict(graph.out_degree()).values()) == {2 * len(dimensions)}
    assert set(dict(graph.in_degree()).values()) == {2 * len(dimensions)}


@pytest.mark.parametrize("dimensions", [(4, 8), (4, 4, 8), (4, 8, 8)])
def test_a_twisted_torus_looks_the_same_from_every_node(dimensions):
    graph = twisted_torus(dimensions, **CABLE).graph()
    seen = {
        tuple(sorted(nx.single_source_shortest_path_length(graph, node).values())) for node in graph
    }
    assert len(seen) == 1


def test_the_wrap_around_of_the_short_dimension_is_shifted_by_half_the_long_one():
    graph = twisted_torus((4, 8), **CABLE).graph()
    assert set(graph.successors(24)) == {16, 25, 31, 4}
    assert set(graph.successors(7)) == {6, 0, 15, 27}


@pytest.mark.parametrize("dimensions", [(), (4,), (4, 4), (4, 12), (1, 2), (2, 4, 8)])
def test_a_twisted_torus_of_other_lengths_is_refused(dimensions):
    with pytest.raises(TopologyError, match="lengths k and 2k"):
        twisted_torus(dimensions, **CABLE)


@given(data=st.data(), dimensions=some_dimensions)
def test_dimension_order_is_a_shortest_path_that_finishes_a_dimension_before_the_next(
    data, dimensions
):
    ends = st.integers(0, prod(dimensions) - 1)
    source, target = data.draw(ends), data.draw(ends)
    wrap = data.draw(st.lists(st.booleans(), min_size=len(dimensions), max_size=len(dimensions)))
    network = mesh(dimensions, wrap=wrap, **CABLE) if prod(dimensions) > 1 else None
    path = dimension_order(dimensions, source, target, wrap=wrap)
    assert (path[0], path[-1]) == (source, target)
    if network is None:
        return
    graph = network.graph()
    assert len(path) - 1 == nx.shortest_path_length(graph, source, target)
    assert all(graph.has_edge(*hop) for hop in pairwise(path))
    places = [np.unravel_index(node, dimensions) for node in path]
    moved = [int(np.argmax(np.array(a) != np.array(b))) for a, b in pairwise(places)]
    assert moved == sorted(moved)


def test_the_shorter_way_round_is_taken_and_up_if_both_are_as_short():
    assert dimension_order((8,), 0, 6) == [0, 7, 6]
    assert dimension_order((8,), 0, 4) == [0, 1, 2, 3, 4]
    assert dimension_order((8,), 4, 0) == [4, 5, 6, 7, 0]
    assert dimension_order((8,), 6, 0, wrap=(False,)) == [6, 5, 4, 3, 2, 1, 0]


@given(shape=st.lists(st.integers(2, 4), min_size=1, max_size=3))
def test_dimension_order_takes_a_shortest_path_on_a_torus(shape):
    network = torus(tuple(shape), **CABLE)
    source, target = everyone(network)
    shortest = dict(nx.all_pairs_shortest_path_length(network.graph()))
    offset, _, _ = routes(dimension_ordered(network, shape), source, target)
    expected = [shortest[a][b] for a, b in zip(source.tolist(), target.tolist(), strict=True)]
    assert np.diff(offset).tolist() == expected


def test_a_route_over_a_missing_link_is_refused():
    network = dimension_ordered(torus((4, 4), **CABLE), (2, 8))
    with pytest.raises(TopologyError, match="a link is missing"):
        routes(network, np.array([0], np.int32), np.array([7], np.int32))


@pytest.mark.parametrize(
    ("source", "target", "wrap", "message"),
    [
        (0, 16, None, r"grids of \(4, 4\) end at rank 15"),
        (-1, 3, None, r"grids of \(4, 4\) end at rank 15"),
        (0, 1, (True,), "1 entries for 2 dimensions"),
    ],
)
def test_ends_that_are_not_on_the_grid_are_refused(source, target, wrap, message):
    with pytest.raises(TopologyError, match=message):
        dimension_order((4, 4), source, target, wrap=wrap)
