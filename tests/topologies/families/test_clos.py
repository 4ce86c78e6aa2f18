"""Closed forms of leaf-spine, the rail-optimised network and the fat tree."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.topologies import CABLE, B, figures
from simulator.support.errors import TopologyError
from topologies import (
    LeafSpineShape,
    RailShape,
    bisection_bandwidth,
    closed_form,
    diameter,
    fat_tree,
    leaf_spine,
    rail,
)


def test_a_leaf_has_its_bandwidth_down_over_its_bandwidth_up():
    shape = LeafSpineShape(leaves=3, spines=2, ranks_per_leaf=4)
    network = leaf_spine(shape, oversubscription=2, **CABLE)
    assert figures(network) == (12 + 5, 2 * (12 + 6), 4)
    up = [d["bandwidth"] for _, _, d in network.graph().out_edges("leaf:0", data=True)]
    assert sorted(up) == [B] * 6


@given(n=st.integers(1, 6), r=st.integers(1, 6), s=st.integers(1, 4))
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


@pytest.mark.parametrize("k", [2, 4, 6])
def test_a_fat_tree_has_its_closed_forms(k):
    network = fat_tree(k, **CABLE)
    assert network.ranks == k**3 // 4
    assert figures(network) == (k**3 // 4 + 5 * k**2 // 4, 3 * k**3 // 2, 6)


def test_every_switch_of_a_fat_tree_uses_its_ports():
    graph = fat_tree(6, **CABLE).graph()
    assert {graph.out_degree(node) for node in graph if isinstance(node, str)} == {6}
