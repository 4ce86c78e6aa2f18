"""Topologies that bring their own routing."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import TopologyError
from simulator.routing.routes import routes
from topologies import DragonflyShape, by_valiant, dimension_ordered, dragonfly, minimally, torus
from topologies.spec import parse_topology

SHAPE = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)
CABLE = {"bandwidth": 25e9, "latency": 1e-6}


def everyone(network):
    source, target = np.divmod(np.arange(network.ranks**2, dtype=np.int32), network.ranks)
    other = source != target
    return source[other].astype(np.int32), target[other].astype(np.int32)


def ends(network, offset, link, row):
    mine = link[offset[row] : offset[row + 1]]
    return network.source[mine].tolist(), network.target[mine].tolist()


@given(shape=st.lists(st.integers(2, 4), min_size=1, max_size=3))
def test_dimension_order_takes_a_shortest_path_on_a_torus(shape):
    network = torus(tuple(shape), **CABLE)
    source, target = everyone(network)
    shortest = dict(nx.all_pairs_shortest_path_length(network.graph()))
    offset, _ = routes(dimension_ordered(network, shape), source, target)
    expected = [shortest[a][b] for a, b in zip(source.tolist(), target.tolist(), strict=True)]
    assert np.diff(offset).tolist() == expected


@pytest.mark.parametrize(("routed", "most"), [(minimally, 1), (by_valiant, 2)])
def test_a_path_is_connected_and_crosses_as_many_global_cables_as_it_may(routed, most):
    network = routed(dragonfly(SHAPE, **CABLE), SHAPE)
    source, target = everyone(network)
    offset, link = routes(network, source, target)
    group = {
        number: str(node).partition(":")[2].partition(".")[0]
        for number, node in enumerate(network.nodes)
        if str(node).startswith("router:")
    }
    for row in range(0, len(source), 7):
        begins, stops = ends(network, offset, link, row)
        assert begins[0] == source[row]
        assert stops[-1] == target[row]
        assert begins[1:] == stops[:-1]
        hops = zip(begins, stops, strict=True)
        assert sum(a in group and b in group and group[a] != group[b] for a, b in hops) <= most


def test_valiant_spreads_what_one_group_sends_another():
    network = dragonfly(SHAPE, **CABLE)
    per_group = SHAPE.routers * SHAPE.ranks_per_router
    source = np.arange(per_group, dtype=np.int32)
    target = source + per_group
    busiest = [
        np.bincount(routes(one, source, target)[1], minlength=len(network)).max()
        for one in (minimally(network, SHAPE), by_valiant(network, SHAPE))
    ]
    assert busiest[1] < busiest[0]


def test_a_spec_may_name_a_routing():
    network = parse_topology("dragonfly:9x4x2@valiant", **CABLE)
    assert network.route is not None
    assert parse_topology("mesh:4x4@dimension_order", **CABLE).route(0, 3) == [0, 1, 2, 3]
    with pytest.raises(
        TopologyError, match="torus has no routing 'valiant'; it has dimension_order"
    ):
        parse_topology("torus:4x4@valiant", **CABLE)


def test_a_route_over_a_missing_link_is_refused():
    network = dimension_ordered(torus((4, 4), **CABLE), (2, 8))
    with pytest.raises(TopologyError, match="a link is missing"):
        routes(network, np.array([0], np.int32), np.array([7], np.int32))
