"""Paths by dimension order, minimal and Valiant paths of a dragonfly."""

from itertools import pairwise
from math import prod

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import TopologyError
from topologies import (
    DragonflyShape,
    dimension_order,
    dragonfly,
    mesh,
    minimal,
    path_links,
    torus,
    valiant,
)

CABLE = {"bandwidth": 50e9, "latency": 1e-6}
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(data=st.data(), dimensions=shapes)
@settings(deadline=None)
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
    assert len(path_links(network, path)) == len(path) - 1
    places = [np.unravel_index(node, dimensions) for node in path]
    moved = [int(np.argmax(np.array(a) != np.array(b))) for a, b in pairwise(places)]
    assert moved == sorted(moved)


def test_the_shorter_way_round_is_taken_and_up_if_both_are_as_short():
    assert dimension_order((8,), 0, 6) == [0, 7, 6]
    assert dimension_order((8,), 0, 4) == [0, 1, 2, 3, 4]
    assert dimension_order((8,), 4, 0) == [4, 5, 6, 7, 0]
    assert dimension_order((8,), 6, 0, wrap=(False,)) == [6, 5, 4, 3, 2, 1, 0]


SHAPE = DragonflyShape(groups=5, routers=4, ranks_per_router=2, global_links=2)
NETWORK = dragonfly(SHAPE, **CABLE)
ranks = st.integers(0, NETWORK.ranks - 1)


def groups(path):
    names = [node.removeprefix("router:").split(".")[0] for node in path[1:-1]]
    return [int(name) for name in dict.fromkeys(names)]


@given(source=ranks, target=ranks)
def test_a_minimal_path_exists_and_has_at_most_one_global_cable(source, target):
    path = minimal(SHAPE, source, target)
    if source != target:
        path_links(NETWORK, path)
    assert len(path) - 2 <= 4
    assert len(groups(path)) == len({source // 8, target // 8})


@given(source=ranks, target=ranks, via=st.integers(0, 4))
def test_a_valiant_path_passes_the_group_chosen(source, target, via):
    path = valiant(SHAPE, source, target, via=via)
    begin, end = source // 8, target // 8
    if source != target:
        path_links(NETWORK, path)
    assert len(path) - 2 <= 6
    if begin == end or via in (begin, end):
        assert path == minimal(SHAPE, source, target)
    else:
        assert groups(path) == [begin, via, end]


def test_minimal_paths_between_two_groups_use_every_cable_between_them():
    used = {
        (path[i], path[i + 1])
        for source in range(8)
        for target in range(8, 16)
        for path in [minimal(SHAPE, source, target)]
        for i in range(len(path) - 1)
        if str(path[i]).startswith("router:0") and str(path[i + 1]).startswith("router:1")
    }
    there = {
        (a, b)
        for a, b in NETWORK.graph().edges
        if str(a).startswith("router:0.") and str(b).startswith("router:1.")
    }
    assert used == there


def test_valiant_spreads_what_the_minimal_path_concentrates():
    """All of group 0 sends to group 1: the busiest global link carries less by way of others."""

    def busiest(paths):
        counts = {}
        for path in paths:
            for one, other in pairwise(path[1:-1]):
                if one.split(".")[0] != other.split(".")[0]:
                    width = NETWORK.graph().edges[one, other]["bandwidth"]
                    counts[one, other] = counts.get((one, other), 0.0) + 1 / width
        return max(counts.values())

    pairs = [(source, 8 + source) for source in range(8)]
    direct = busiest(minimal(SHAPE, *pair) for pair in pairs)
    spread = busiest(valiant(SHAPE, *pair, via=2 + pair[0] % 3) for pair in pairs)
    assert spread < direct


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dimension_order((4, 4), 0, 16), "ranks 0 to 15"),
        (lambda: dimension_order((4, 4), -1, 3), "ranks 0 to 15"),
        (lambda: dimension_order((4, 4), 0, 1, wrap=(True,)), "1 entries for 2 dimensions"),
        (lambda: minimal(SHAPE, 0, 40), "has no rank 40"),
        (lambda: valiant(SHAPE, 0, 9, via=5), "groups 0 to 4"),
        (lambda: path_links(torus((4, 4), **CABLE), [0, 2]), "has no path 0 - 2"),
        (lambda: path_links(torus((4, 4), **CABLE), [0, "switch"]), "has no path 0 - switch"),
    ],
)
def test_ends_that_do_not_exist_are_refused(call, message):
    with pytest.raises(TopologyError, match=message):
        call()
