"""The dragonfly: how groups are joined, its minimal and its Valiant paths."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.topologies import CABLE, B, everyone
from simulator.routing.routes import link_loads, routes
from simulator.support.errors import TopologyError
from topologies import (
    DragonflyShape,
    bisection_bandwidth,
    by_valiant,
    diameter,
    dragonfly,
    minimal,
    minimally,
    path_links,
    valiant,
)
from topologies.families.dragonfly import global_ends, groups_of

SHAPE = DragonflyShape(groups=5, routers=4, ranks_per_router=2, global_links=2)
NETWORK = dragonfly(SHAPE, **CABLE)
ranks = st.integers(0, NETWORK.ranks - 1)
NINE_GROUPS = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)


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


def test_bisection_bandwidth_of_a_dragonfly_is_its_global_cables_between_half_the_groups():
    shape = DragonflyShape(groups=2, routers=2, ranks_per_router=2, global_links=1)
    network = dragonfly(shape, global_bandwidth=B / 8, **CABLE)
    assert shape.cables_per_pair == 2
    assert bisection_bandwidth(network) == pytest.approx(2 * B / 8)


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


GROUPS = groups_of(dragonfly(NINE_GROUPS, **CABLE))


@pytest.mark.parametrize(("routed", "most"), [(minimally, 1), (by_valiant, 2)])
def test_a_message_crosses_as_many_global_cables_as_it_may(routed, most):
    """In the mean over its paths; two only where the group in between is another."""
    network = routed(dragonfly(NINE_GROUPS, **CABLE))
    source, target = everyone(network)
    here, there = GROUPS[network.source], GROUPS[network.target]
    far = ((here >= 0) & (there >= 0) & (here != there)).astype(float)
    crossed = routes(network, source, target).along(far)
    apart = source // 8 != target // 8
    assert not crossed[~apart].any()
    if most == 1:
        np.testing.assert_allclose(crossed[apart], 1.0)
    else:
        np.testing.assert_allclose(crossed[apart], (7 * 2 + 2 * 1) / 9)


def test_valiant_spreads_what_one_group_sends_another():
    network = dragonfly(NINE_GROUPS, **CABLE)
    per_group = NINE_GROUPS.routers * NINE_GROUPS.ranks_per_router
    source = np.arange(per_group, dtype=np.int32)
    target = source + per_group
    busiest = [
        link_loads(routed(network), source, target, np.ones(per_group)).max()
        for routed in (minimally, by_valiant)
    ]
    assert busiest[1] < busiest[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimal(SHAPE, 0, 40), "has no rank 40"),
        (lambda: valiant(SHAPE, 0, 9, via=5), "groups 0 to 4"),
    ],
)
def test_ends_that_do_not_exist_are_refused(call, message):
    with pytest.raises(TopologyError, match=message):
        call()
