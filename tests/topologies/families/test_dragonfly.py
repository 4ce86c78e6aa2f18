"""The dragonfly: how groups are joined, and what routing it minimally or by Valiant crosses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.topologies import CABLE, B, everyone
from simulator.routing.routes import routes
from simulator.routing.totals import link_loads
from simulator.support.errors import TopologyError
from simulator.topology import Routing
from topologies import DragonflyShape, bisection_bandwidth, diameter, dragonfly
from topologies.families.dragonfly import global_ends, groups_of

NINE_GROUPS = DragonflyShape(groups=9, routers=4, ranks_per_router=2, global_links=2)


@given(g=st.integers(1, 9), a=st.integers(1, 4), p=st.integers(1, 2), h=st.integers(2, 3))
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


def by_policy(network, policy):
    return replace(network, routing=Routing(policy, group=groups_of(network)))


GROUPS = groups_of(dragonfly(NINE_GROUPS, **CABLE))


@pytest.mark.parametrize(("policy", "most"), [("minimal", 1), ("valiant", 2)])
def test_a_message_crosses_as_many_global_cables_as_it_may(policy, most):
    """In the mean over its paths; two only where the group in between is another."""
    network = by_policy(dragonfly(NINE_GROUPS, **CABLE), policy)
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
        link_loads(by_policy(network, policy), source, target, np.ones(per_group)).max()
        for policy in ("minimal", "valiant")
    ]
    assert busiest[1] < busiest[0]
