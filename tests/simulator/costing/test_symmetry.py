"""What is moved from like to like is what would have been laid there."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.scenario import Scenario
from helpers.replicated import like_nodes
from helpers.strategies import (
    both_ways,
    full_network,
    networks,
    ring_network,
    switch_network,
    two_tiers,
)
from helpers.strategies import with_software as planner
from helpers.tries import tries
from simulator.calls import Call, Group
from simulator.costing.call_costs import Costs, Likeness
from simulator.costing.link_load import plan_loads
from simulator.costing.symmetry import symmetry
from simulator.topology import SCALE_OUT, topology
from topologies import load_cluster, place
from topologies.cluster.fabrics import LeafSpineFabric, RailFabric

KINDS = ("all_reduce", "all_gather", "all_to_all", "send_receive", "broadcast")
CLUSTERS = ("hgx-h100", "aws-p4d", "gb200-nvl72", "mi300x-8", "leonardo", "mi250x-frontier")


def call_of(kind, ranks, size=1e6):
    return Call(kind, Group(tuple(ranks)), size, "float")


def groups_of(ranks):
    """Groups of all sorts, each of them in several places."""
    eights = [range(first, first + 8) for first in range(0, ranks - 7, 8)]
    across = [range(first, ranks, 16) for first in range(16)]
    pairs = [(one, (one + 8) % ranks) for one in range(0, ranks, 3)]
    backwards = [tuple(reversed(one)) for one in eights[:4]]
    return [tuple(one) for one in chain(eights, across, pairs, backwards)]


def asked(network, domains=None):
    """Say what is alike on a network, from the first call on."""
    alike = Likeness(network, domains)
    assert (alike.symmetry is None) == (symmetry(network) is None)
    return alike


def check_moved(network, plan, groups, kinds=KINDS, alike=None):
    costs = Costs(network, plan, alike or asked(network))
    for kind in kinds:
        for ranks in groups:
            if kind == "send_receive" and len(ranks) != 2:
                continue
            call = call_of(kind, ranks)
            direct = plan_loads(plan(call, network), np.array(ranks, np.int32), call.size, network)
            found = costs.loads(call)
            assert len(found) == len(direct)
            for one, other in zip(found, direct, strict=True):
                order = np.argsort(one.link)
                assert np.array_equal(one.link[order], other.link), (kind, ranks)
                assert one.weight[order] == pytest.approx(other.weight, rel=1e-12)
                assert one.amount == pytest.approx(other.amount)
                assert one.latency_of == pytest.approx(other.latency_of)
                assert one.alone == pytest.approx(other.alone)
    return costs


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("hgx-h100", "mi300x-8") else [])
        for name in CLUSTERS
    ],
)
def test_a_load_that_is_moved_is_the_one_that_would_be_laid(name):
    cluster = load_cluster(name)
    cluster = cluster.model_copy(update={"nodes": max(cluster.nodes, 32)})
    ranks = 88 if name == "gb200-nvl72" else 64
    scenario = Scenario(_Of(ranks), cluster)
    costs = check_moved(
        scenario.site.topology, scenario.site.costs.planner, groups_of(ranks), KINDS[:4]
    )
    assert len(costs._by_pattern) < len(costs._carried) or name == "leonardo"


class _Of:
    """All of a workload that a topology needs."""

    def __init__(self, job_ranks):
        self.job_ranks, self.library = job_ranks, ""


FABRICS = {
    "one spine": LeafSpineFabric(
        topology="leaf_spine",
        nics_per_node=8,
        bandwidth="400 Gbit/s",
        latency="2 us",
        nodes_per_leaf=2,
        spines=1,
    ),
    "several spines": LeafSpineFabric(
        topology="leaf_spine",
        nics_per_node=8,
        bandwidth="400 Gbit/s",
        latency="2 us",
        nodes_per_leaf=2,
        spines=3,
    ),
    "rails": RailFabric(
        topology="rail",
        nics_per_node=8,
        bandwidth="400 Gbit/s",
        latency="2 us",
        nodes_per_pod=4,
        spines=2,
    ),
}


@pytest.mark.parametrize("slow", [(), (1,), (0, 2)])
@pytest.mark.parametrize("per_node", [2, 3])
def test_ranks_are_of_one_kind_in_one_place_of_components_of_one_shape(per_node, slow):
    """Nodes of ranks in a row, whose first has a cable that is slow in some, and no switch."""
    nodes = 8
    links = []
    for node in range(nodes):
        first = node * per_node
        inside = [(first + a, first + a + 1) for a in range(per_node - 1)]
        links += both_ways(inside, bandwidth=1e9 / (1 + (node in slow)), latency=1e-6)
        links += both_ways([(first, "fabric")], bandwidth=1e9, latency=1e-6)
    found = symmetry(topology("rows", nodes * per_node, links))
    assert found is not None
    where = [(rank // per_node in slow, rank % per_node) for rank in range(nodes * per_node)]
    kinds = list(zip(where, found.kind.tolist(), strict=True))
    assert len(set(kinds)) == len(set(where)) == len(set(found.kind.tolist()))


@pytest.mark.parametrize("fabric", FABRICS)
def test_loads_on_fabrics_with_several_paths_are_right_too(fabric):
    cluster = load_cluster("hgx-h100").model_copy(update={"scale_out": FABRICS[fabric]})
    scenario = Scenario(_Of(64), cluster)
    assert place(scenario.cluster, 64).nodes == 8
    check_moved(scenario.site.topology, scenario.site.costs.planner, groups_of(64), KINDS[:4])


@tries(60)
@given(data=st.data())
def test_on_any_network_a_load_is_what_would_be_laid(data):
    ranks = data.draw(st.integers(2, 8))
    network = data.draw(networks(ranks))
    some = st.permutations(range(ranks)).flatmap(
        lambda order: st.integers(2, ranks).map(lambda n: tuple(order[:n]))
    )
    groups = data.draw(st.lists(some, min_size=2, max_size=8))
    check_moved(network, planner, groups)


def test_components_are_nodes_and_their_places_ranks():
    found = symmetry(like_nodes(4, 2))
    assert found.component[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert found.place[:8].tolist() == [0, 1] * 4
    assert found.shape.tolist() == [0, 0, 0, 0]
    assert found.certain.all()
    assert (found.link_component >= 0).all()


def test_a_slower_node_has_a_shape_of_its_own():
    assert symmetry(like_nodes(8, 2, slow=(3,))).shape.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


def test_ranks_on_one_switch_are_alike_and_ranks_on_two_are_not():
    assert symmetry(switch_network(5)).shape.tolist() == [0] * 5
    assert symmetry(two_tiers(6)).shape.tolist() == [0, 1] * 3


def test_rings_meshes_and_networks_with_paths_of_their_own_have_no_like_parts():
    assert symmetry(ring_network(6)) is None
    assert symmetry(full_network(4)) is None
    assert symmetry(replace(switch_network(4), route=lambda a, b: (a, "switch", b))) is None


def test_nodes_whose_ranks_are_not_numbered_in_a_row_are_not_compared():
    links = like_nodes(4, 2)
    swapped = links.source.copy(), links.target.copy()
    for ends in swapped:
        one, other = ends == 1, ends == 2
        ends[one], ends[other] = 2, 1
    found = symmetry(replace(links, source=swapped[0], target=swapped[1]))
    assert found.component[:8].tolist() == list(range(8))
    assert found.shape.tolist() == [0, 1, 0, 1, 2, 2, 3, 3]


def test_two_paths_between_nodes_are_not_certain():
    cluster = load_cluster("hgx-h100").model_copy(update={"scale_out": FABRICS["several spines"]})
    network = Scenario(_Of(64), cluster).site.topology
    found = symmetry(network)
    assert found is None or found.pattern(np.arange(0, 64, 8)) is None
    assert SCALE_OUT in network.resources


def test_groups_in_other_order_or_other_places_have_other_patterns():
    found = symmetry(like_nodes(4, 2))
    patterns = [
        found.pattern(np.array(one))
        for one in [(0, 2), (2, 4), (0, 6), (2, 0), (1, 3), (0, 3), (0, 1), (0, 2, 4)]
    ]
    assert patterns[0] == patterns[1] == patterns[2]
    assert len(set(patterns)) == 6
