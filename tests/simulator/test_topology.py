"""What links and topologies say of themselves, and what they refuse."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.refusals import refused
from helpers.strategies import random_links
from helpers.tries import tries
from simulator.support.errors import TopologyError
from simulator.topology import POLICIES, SCALE_UP, Link, Routing, topology, with_links


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_link_needs_a_bandwidth(wrong):
    refused(lambda: Link("a", "b", wrong, 0.0), "a -> b", "bandwidth", error=TopologyError)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_a_link_needs_a_latency(wrong):
    refused(lambda: Link("a", "b", 1.0, wrong), "a -> b", "latency", error=TopologyError)


def test_a_network_that_cannot_be_is_refused():
    def made(*pairs, ranks=2):
        return lambda: topology("net", ranks, [Link(*pair, 1.0, 0.0) for pair in pairs])

    refused(lambda: Link(1, 1, 1.0, 0.0), "1 -> 1", error=TopologyError)
    refused(made((0, 1), (0, 1)), "net", "two links 0 -> 1", error=TopologyError)
    refused(made((0, 1), ranks=3), "net", "rank 2 has no link", error=TopologyError)
    refused(made(ranks=0), "net", "not 0", error=TopologyError)


@st.composite
def links_of(draw):
    """Links of a connected network, some with metrics and with the latency of another resource."""
    chance = random.Random(draw(st.integers(0, 2**32 - 1)))
    return [
        replace(
            link,
            metric=chance.choice((0, 0, 7)),
            latency_resource=chance.choice(("", SCALE_UP, "pcie")),
        )
        for link in draw(random_links(4))
    ]


@tries(60)
@given(links_of(), st.data())
def test_a_network_has_the_links_that_it_was_given(links, data):
    network = topology("drawn", 4, links)
    wanted = [replace(one, latency_resource=one.latency_resource or one.resource) for one in links]
    assert [network.link(number) for number in range(len(network))] == wanted
    assert network.nodes[:4] == (0, 1, 2, 3)
    assert set(network.nodes) == {
        0,
        1,
        2,
        3,
        *(end for one in links for end in (one.source, one.target)),
    }
    assert list(network.resources) == list(dict.fromkeys(one.resource for one in links))
    assert (network.metric is None) == (not any(one.metric for one in links))
    offset, order = network.out_links
    for number, node in enumerate(network.nodes):
        out = order[offset[number] : offset[number + 1]].tolist()
        assert sorted(out) == [at for at, one in enumerate(links) if one.source == node]
        ends = network.target[out].tolist()
        assert ends == sorted(ends)
    graph = network.graph()
    assert sorted(map(str, graph.nodes)) == sorted(map(str, network.nodes))
    assert {
        (a, b): (d["bandwidth"], d["latency"], d["resource"]) for a, b, d in graph.edges(data=True)
    } == {(one.source, one.target): (one.bandwidth, one.latency, one.resource) for one in links}
    for name in (*network.resources, "nothing"):
        of = [network.following(f"{name}.{what}").tolist() for what in ("bandwidth", "latency")]
        assert of[0] == [one.resource == name for one in links]
        assert of[1] == [one.latency_resource == name for one in wanted]
    capacity = np.arange(1.0, 1 + len(links))
    routing = Routing("spray", capacity=capacity, slowed=capacity / 2)
    some = np.array(data.draw(st.lists(st.booleans(), min_size=len(links), max_size=len(links))))
    for routed in (network, replace(network, routing=routing)):
        part = with_links(routed, some)
        kept = np.flatnonzero(some).tolist()
        assert [part.link(number) for number in range(len(part))] == [wanted[at] for at in kept]
        if routed is network:
            assert part.routing.capacity is part.routing.slowed is None
            continue
        assert part.routing.policy == "spray"
        assert part.routing.capacity.tolist() == capacity[some].tolist()
        assert part.routing.slowed.tolist() == (capacity[some] / 2).tolist()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"policy": "ecpm"}, "did you mean ecmp.*there are"),
        ({"seed": -1}, "seed -1 of a routing is negative"),
        ({"flows": 0}, "0 flows of a message under ecmp"),
        ({"policy": "spray", "flows": 2}, "2 flows of a message under spray"),
        ({"policy": "valiant"}, "needs groups of routers"),
    ],
)
def test_a_routing_that_cannot_be_is_refused(said, why):
    with pytest.raises(TopologyError, match=why):
        Routing(**said)


def test_which_routings_divide_a_message_and_which_take_detours():
    group = np.zeros(4, np.int32)
    divided = {name for name in POLICIES if Routing(name, group=group).divides}
    assert divided == {"spray", "adaptive", "valiant", "minimal"} & set(POLICIES)
    assert Routing("ecmp", flows=2).divides
    detours = {name for name in POLICIES if Routing(name, group=group).detours}
    assert detours == {"adaptive", "valiant"}
    assert not Routing("adaptive").detours


def test_a_latency_is_an_hour_at_most_and_one_rank_needs_no_link():
    assert Link("a", "b", 1.0, 3600.0).latency == 3600
    refused(lambda: Link("a", "b", 1.0, 3600.1), "a -> b", "latency", error=TopologyError)
    assert len(topology("alone", 1, [])) == 0
    assert repr(topology("pair", 2, [Link(0, 1, 1.0, 0.0)])) == "<Topology pair: 2 ranks, 1 links>"
