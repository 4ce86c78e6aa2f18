"""Closed forms of the rail-optimised network and the twisted torus."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import TopologyError
from topologies import (
    RailShape,
    bisection_bandwidth,
    closed_form,
    diameter,
    rail,
    torus,
    twisted_torus,
)

B = 50e9
CABLE = {"bandwidth": B, "latency": 1e-6}


@given(n=st.integers(1, 6), r=st.integers(1, 6), s=st.integers(1, 4))
@settings(deadline=None)
def test_a_rail_network_has_its_closed_forms(n, r, s):
    network = rail(RailShape(nodes=n, rails=r, spines=s), **CABLE)
    assert (network.ranks, len(network.nodes)) == (n * r, n * r + r + s)
    assert len(network) == 2 * (n * r + r * s)
    if network.ranks > 1:
        assert diameter(network) == (2 if r == 1 else 4)


@pytest.mark.parametrize("over", [1, 2, 4])
@pytest.mark.parametrize(("n", "r"), [(2, 4), (3, 2), (1, 4), (5, 2)])
def test_bisection_bandwidth_of_rails_is_that_of_half_of_them(n, r, over):
    network = rail(RailShape(nodes=n, rails=r, spines=3), oversubscription=over, **CABLE)
    assert bisection_bandwidth(network) == pytest.approx(r / 2 * n * B / over)
    assert closed_form(network) == pytest.approx(r / 2 * n * B / over)


def test_ranks_of_one_slot_share_a_rail_and_pass_no_spine():
    graph = rail(RailShape(nodes=3, rails=4, spines=2), **CABLE).graph()
    for slot in range(4):
        assert {slot, 4 + slot, 8 + slot} <= set(graph.successors(f"rail:{slot}"))
    assert nx.shortest_path(graph, 1, 9) == [1, "rail:1", 9]


def test_rails_without_spines_do_not_reach_each_other():
    with pytest.raises(TopologyError, match="does not reach"):
        diameter(rail(RailShape(nodes=2, rails=2, spines=0), **CABLE))


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


@pytest.mark.parametrize(
    ("shape", "over"), [({"nodes": 0}, 1), ({"rails": 0}, 1), ({"spines": -1}, 1), ({}, 0)]
)
def test_a_rail_network_that_cannot_be_is_refused(shape, over):
    with pytest.raises(TopologyError):
        rail(
            RailShape(**{"nodes": 2, "rails": 2, "spines": 1} | shape),
            oversubscription=over,
            **CABLE,
        )
