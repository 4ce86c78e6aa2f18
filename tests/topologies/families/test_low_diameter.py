"""HyperX, Slim Fly and Dragonfly+ against their papers' closed forms."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.topologies import CABLE
from helpers.tries import tries
from simulator.support.errors import TopologyError
from topologies import load_cluster, parse_topology
from topologies.cluster.bill import bill_of
from topologies.cluster.changed import with_topology
from topologies.properties import throughput


def routers_of(network):
    graph = nx.Graph((a, b) for a, b, _ in network.graph().edges(data=True))
    return graph.subgraph([node for node in graph if isinstance(node, str)])


@pytest.mark.parametrize(
    ("order", "degree"),
    [(5, 7), (7, 11), (11, 17), (13, 19), pytest.param(17, 25, marks=pytest.mark.slow)],
)
def test_any_two_routers_of_a_slim_fly_are_two_hops_apart(order, degree):
    """(3 q - d) / 2 cables each, 2 q^2 routers, diameter 2 (Besta and Hoefler, SC 2014)."""
    routers = routers_of(parse_topology(f"slim_fly:{order}x1", **CABLE))
    assert len(routers) == 2 * order**2
    assert {count for _, count in routers.degree} == {degree}
    assert nx.diameter(routers) == 2


def test_the_slim_fly_of_five_is_the_graph_of_hoffman_and_singleton():
    """50 routers of 7 cables at distance 2 are as many as there can be (Moore's bound): 1 + 7 * 7.

    No two share more than a neighbour, and there is no triangle.
    """
    routers = routers_of(parse_topology("slim_fly:5x1", **CABLE))
    assert len(routers) == 1 + 7 * 7
    assert nx.girth(routers) == 5


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 3))
@tries(25)
def test_routers_of_a_hyperx_are_joined_where_they_differ_in_one_place(lengths, each):
    words = "x".join(map(str, (*lengths, each)))
    network = parse_topology(f"hyperx:{words}", **CABLE)
    routers = routers_of(network)
    degree = sum(length - 1 for length in lengths)
    assert {count for _, count in routers.degree} <= {degree}
    if len(routers) > 1:
        assert nx.diameter(routers) == sum(length > 1 for length in lengths)


def test_a_hyperx_of_lengths_of_two_is_a_hypercube():
    routers = routers_of(parse_topology("hyperx:2x2x2x2x1", **CABLE))
    assert nx.is_isomorphic(nx.Graph(routers), nx.hypercube_graph(4))


@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
@tries(25)
def test_groups_of_a_dragonfly_plus_meet_at_their_spines(groups, leaves, spines, ranks):
    network = parse_topology(f"dragonfly_plus:{groups}x{leaves}x{spines}x{ranks}", **CABLE)
    graph = routers_of(network)

    def place(name):
        group, number = name.partition(":")[2].split(".")
        return int(group), int(number)

    between = [(a, b) for a, b in graph.edges if place(a)[0] != place(b)[0]]
    assert all(place(end)[1] >= leaves for edge in between for end in edge)
    pairs = {frozenset((place(a)[0], place(b)[0])) for a, b in between}
    assert len(pairs) == groups * (groups - 1) // 2


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        # All of a rank's cable, or the share of a router's: 4 ranks on 7 cables of two hops each.
        ("slim_fly:5x3", 1.0),
        ("hyperx:4x4x3", 1.0),
        # A cable between two groups of 16 ranks, of 80: 80 / 16^2.
        ("dragonfly_plus:5x4x4x4", 80 / 256),
        ("dragonfly_plus:9x4x4x4x2", 144 / 256),
    ],
)
def test_networks_carry_the_uniform_traffic_that_their_cables_count(spec, part):
    network = parse_topology(f"{spec}@spray", **CABLE)
    carried = throughput(network, "uniform").per_rank / CABLE["bandwidth"]
    assert carried == pytest.approx(part, rel=0.03)


@pytest.mark.parametrize("spec", ["slim_fly:5x1", "hyperx:4x4x1", "dragonfly_plus:5x2x2x4"])
def test_they_are_fabrics_between_nodes_with_a_bill(spec):
    cluster = with_topology(load_cluster("hgx-h100"), f"scale_out={spec}", nodes=4)
    bill = bill_of(cluster, 32)
    assert bill is not None


@pytest.mark.parametrize("spec", ["slim_fly:9x1", "slim_fly:4x1", "slim_fly:5x0", "hyperx:0x1"])
def test_shapes_that_do_not_exist_are_refused(spec):
    with pytest.raises(TopologyError):
        parse_topology(spec, **CABLE)
