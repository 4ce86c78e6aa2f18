"""The table of families: every closed form held to the graph, every role to a cluster."""

from itertools import product

import pytest

from helpers.topologies import CABLE
from simulator.support.errors import TopologyError
from simulator.topology import Topology
from topologies import (
    FAMILIES,
    DragonflyShape,
    LeafSpineShape,
    diameter,
    fat_tree,
    hypercube,
    leaf_spine,
    mesh,
    parse_topology,
    ring,
    torus,
)
from topologies.cluster.fabrics import FABRICS, GRAPH
from topologies.families.family import ParsedSpec, family_of
from topologies.families.table import SCALE_UP_ROLES

MORE = (
    "ring:2",
    "ring:1",
    "line:1",
    "switch:1",
    "fully_connected:1",
    "torus:4x2x1",
    "torus:3x5",
    "twisted_torus:2x2x4",
    "mesh:4x3x1",
    "mesh:2x4:yn",
    "mesh:4x3:yn",
    "mesh:4x3:yy",
    "hypercube:0",
    "leaf_spine:1x2x4",
    "leaf_spine:3x2x2:4",
    "rail:3x1x2",
    "rail:3x3x1:2",
    "fat_tree:2",
    "dragonfly:9x4x2",
    "dragonfly:3x4x2x1",
    "hyperx:4x1",
    "hyperx:2x2x2x1",
    "hyperx:1x1",
    "hyperx:6x2x1",
    "slim_fly:7x2",
    "slim_fly:11x1",
    "slim_fly:13x1",
    "dragonfly_plus:1x2x2x3",
    "dragonfly_plus:3x2x2x2x3",
)
"""Beside each family's example: shapes at the edges of its closed forms."""


@pytest.mark.parametrize("spec", [family.example for family in FAMILIES.values()] + list(MORE))
def test_the_counts_of_a_family_are_those_of_its_graph(spec):
    name, _, rest = spec.partition(":")
    numbers, _, option = rest.partition(":")
    parsed = ParsedSpec(tuple(int(n) for n in numbers.split("x")), option, **CABLE)
    ranks, nodes, links, hops = FAMILIES[name].counts(parsed)
    network = parse_topology(spec, **CABLE)
    assert (ranks, nodes, links) == (network.ranks, len(network.nodes), len(network))
    assert hops in (None, diameter(network))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_named_as_in_the_table(name):
    network = parse_topology(FAMILIES[name].example, **CABLE)
    assert isinstance(network, Topology)
    assert family_of(network)[0] == name
    assert family_of(network)[2] == ""
    assert FAMILIES[name].form.startswith(f"{name}:")


@pytest.mark.parametrize(
    ("name", "routing"),
    [(name, routing) for name, family in FAMILIES.items() for routing in family.routings],
)
def test_every_routing_of_a_family_leads_from_rank_to_rank(name, routing):
    network = parse_topology(f"{FAMILIES[name].example}@{routing}", **CABLE)
    for source, target in product(range(network.ranks), repeat=2):
        path = list(network.route(source, target))
        assert (path[0], path[-1]) == (source, target)


def test_every_fabric_of_a_cluster_and_every_role_is_that_of_a_family():
    assert FABRICS.keys() <= FAMILIES.keys() | {GRAPH}
    assert SCALE_UP_ROLES.keys() <= FAMILIES.keys()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ring(0, **CABLE), "needs a rank"),
        (lambda: torus((), **CABLE), "positive dimensions"),
        (lambda: torus((4, 0), **CABLE), "positive dimensions"),
        (lambda: mesh((4, 4), wrap=(True,), **CABLE), "1 entries for 2 dimensions"),
        (lambda: hypercube(-1, **CABLE), "negative"),
        (lambda: fat_tree(3, **CABLE), "even number of ports"),
        (lambda: LeafSpineShape(leaves=0, spines=1, ranks_per_leaf=1), "must be at least 1"),
        (
            lambda: leaf_spine(
                LeafSpineShape(leaves=1, spines=1, ranks_per_leaf=1), oversubscription=0, **CABLE
            ),
            "oversubscription",
        ),
        (
            lambda: DragonflyShape(groups=0, routers=1, ranks_per_router=1, global_links=1),
            "must be at least 1",
        ),
        (lambda: ring(4, bandwidth=0, latency=0), "not positive"),
    ],
)
def test_what_cannot_be_built_is_refused(build, message):
    with pytest.raises(TopologyError, match=message):
        build()
