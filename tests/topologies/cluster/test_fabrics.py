"""Leaf-spine, fat-tree and rail-optimised fabrics of a cluster; PCIe between domains of a node."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.routing.routes import routes
from simulator.support.errors import ClusterError
from simulator.topology import PCIE, SCALE_OUT, Topology
from topologies import Cluster, build, changed, load_cluster, parse_cluster

FILE = """\
name: small
accelerator: {{name: chip}}
ranks_per_node: 4
nodes: 16
scale_up: {{topology: switch, size: {size}, bandwidth: 100 GB/s, latency: 2 us}}
scale_out:
  {fabric}
  nics_per_node: {nics}
  bandwidth: 80 Gbit/s
  efficiency: 0.5
  latency: 10 us
  hop_latency: 1 us
{pcie}
"""
NIC = 5e9
"""Payload of one NIC."""

FABRICS = {
    "leaf_spine": "topology: leaf_spine\n  nodes_per_leaf: 2\n  spines: 2",
    "rail": "topology: rail\n  nodes_per_pod: 2\n  spines: 2",
    "fat_tree": "topology: fat_tree\n  ports: 8",
}


def small(kind: str, *, nics=4, size=4, over: float = 1.0, pcie="") -> Cluster:
    fabric = f"{FABRICS[kind]}\n  oversubscription: {over}"
    return parse_cluster(
        FILE.format(fabric=fabric, nics=nics, size=size, pcie=pcie), source="small.yaml"
    )


def passed(network: Topology, one: int, other: int) -> list[object]:
    """Nodes on the way of a message."""
    _, links, _ = routes(network, np.array([one], np.int32), np.array([other], np.int32))
    return [one, *(network.nodes[network.target[link]] for link in links)]


def fabric_latency(network: Topology, one: int, other: int) -> float:
    graph = network.graph()
    kept = [(a, b) for a, b, d in graph.edges(data=True) if d["resource"] == SCALE_OUT]
    path = nx.shortest_path(graph.edge_subgraph(kept), one, other, weight="latency")
    return sum(graph.edges[pair]["latency"] for pair in pairwise(path))


def out_of(network: Topology, node: str, prefix: str) -> list[float]:
    graph = network.graph()
    ends = graph.out_edges(node, data=True)
    return [data["bandwidth"] for _, other, data in ends if str(other).startswith(prefix)]


@pytest.mark.parametrize(
    ("kind", "near", "far"), [("leaf_spine", 4, 12), ("rail", 4, 8), ("fat_tree", 1, 4)]
)
def test_a_hop_latency_is_paid_per_cable_between_switches(kind, near, far):
    network = build(small(kind), 64)
    assert fabric_latency(network, 0, near) == pytest.approx(10e-6)
    assert fabric_latency(network, 0, far) == pytest.approx(12e-6)
    if kind == "fat_tree":
        assert fabric_latency(network, 0, 63) == pytest.approx(14e-6)


@pytest.mark.parametrize("over", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(
    ("kind", "switch", "ports"), [("leaf_spine", "leaf:0", 8), ("rail", "rail:0.0", 2)]
)
def test_a_switch_has_its_bandwidth_down_over_its_bandwidth_up(kind, switch, ports, over):
    network = build(small(kind, over=over), 64)
    down, up = out_of(network, switch, "nic:"), out_of(network, switch, "spine:")
    assert sum(down) == pytest.approx(ports * NIC)
    assert len(up) == 2
    assert sum(up) == pytest.approx(ports * NIC / over)


@pytest.mark.parametrize("over", [1.0, 2.0])
def test_the_cables_above_the_edge_of_a_fat_tree_are_oversubscribed(over):
    network = build(small("fat_tree", over=over), 64)
    assert out_of(network, "edge:0.0", "aggregation:") == pytest.approx([NIC / over] * 4)
    assert out_of(network, "aggregation:0.0", "core:") == pytest.approx([NIC / over] * 4)
    assert len([node for node in network.nodes if str(node).startswith("core:")]) == 16
    assert len([node for node in network.nodes if str(node).startswith("edge:")]) == 16


def test_the_nics_of_a_node_fill_the_edge_switches_of_a_fat_tree_in_order():
    graph = build(small("fat_tree", nics=3), 64).graph()
    plugs = [
        next(iter(graph.successors(f"nic:{node}.{nic}:out")))
        for node in range(3)
        for nic in range(3)
    ]
    assert plugs == ["edge:0.0"] * 4 + ["edge:0.1"] * 4 + ["edge:0.2"]


@pytest.mark.parametrize("kind", FABRICS)
def test_a_job_on_one_switch_has_no_others(kind):
    network = build(small(kind, nics=1), 8)
    switches = {str(node).partition(":")[0] for node in network.nodes if isinstance(node, str)}
    assert switches == {
        "scale_up",
        "nic",
        {"leaf_spine": "leaf", "fat_tree": "edge"}.get(kind, kind),
    }


def test_within_a_rail_no_message_meets_a_spine():
    network = build(small("rail"), 8)
    for slot in range(4):
        way = passed(network, slot, 4 + slot)
        assert way[2:-2] == [f"rail:0.{slot}"]


def test_between_rails_a_message_goes_through_the_rank_on_the_wanted_rail():
    way = passed(build(small("rail"), 8), 0, 5)
    assert way[:3] == [0, "scale_up:0", 1] or way[-3:] == [4, "scale_up:1", 5]
    assert not any(str(node).startswith("spine") for node in way)


def test_without_pxn_a_message_between_rails_crosses_a_spine():
    """NCCL_PXN_DISABLE=1: from the sender's own NIC to the receiver's, past the spine."""
    cluster = small("rail", pcie="library: {name: nccl, pxn: false}")
    way = passed(build(cluster, 8), 0, 5)
    assert (way[1], way[-2]) == ("nic:0.0:out", "nic:1.1:in")
    assert [str(node).partition(":")[0] for node in way[2:-2]] == ["rail", "spine", "rail"]
    straight = passed(build(cluster, 8), 0, 4)
    assert straight == passed(build(small("rail"), 8), 0, 4)
    assert passed(build(cluster, 8), 0, 1) == passed(build(small("rail"), 8), 0, 1)


def test_pxn_off_is_refused_where_it_is_not_modelled():
    with pytest.raises(ClusterError, match="pxn false is modelled for nodes of one kind"):
        small("rail", size=8, pcie="library: {name: nccl, pxn: false}")


def test_between_pods_a_message_meets_one_spine():
    way = passed(build(small("rail"), 64), 0, 12)
    assert [str(node).partition(":")[0] for node in way[2:-2]] == ["rail", "spine", "rail"]


@pytest.mark.parametrize("kind", FABRICS)
@given(nics=st.integers(1, 8), nodes=st.integers(1, 16))
@tries(25)
def test_every_rank_reaches_every_other_and_a_node_moves_all_its_nics(kind, nics, nodes):
    network = build(small(kind, nics=nics), 4 * nodes)
    graph = network.graph()
    assert set(range(4 * nodes)) <= nx.descendants(graph, 0) | {0}
    for node in range(nodes):
        names = [name for name in graph if str(name).startswith(f"nic:{node}.")]
        out = [
            d["bandwidth"]
            for n in names
            for _, _, d in graph.out_edges(n, data=True)
            if str(n).endswith(":out")
        ]
        assert sum(out) == pytest.approx(nics * NIC)


@pytest.mark.parametrize("kind", FABRICS)
def test_a_what_if_on_the_bandwidth_takes_the_cables_between_switches_with_it(kind):
    before, after = (
        build(cluster, 64)
        for cluster in (small(kind), changed(small(kind), "scale_out.bandwidth", 2))
    )
    tier = before.resource == before.resources.index(SCALE_OUT)
    np.testing.assert_allclose(after.bandwidth[tier], 2 * before.bandwidth[tier])


def test_domains_of_a_node_reach_each_other_over_pcie_where_the_file_gives_it():
    cluster = small("rail", size=2, pcie="pcie: {bandwidth: 30 GB/s, latency: 6 us}")
    network = build(cluster, 8)
    assert passed(network, 0, 1) == [0, "scale_up:0", 1]
    assert passed(network, 0, 3) == [0, "host:0", 3]
    graph = network.graph()
    for ends in ((0, "host:0"), ("host:0", 3)):
        cable = graph.edges[ends]
        assert (cable["bandwidth"], cable["resource"]) == (30e9, PCIE)
        assert cable["latency"] == pytest.approx(3e-6)
    assert "host:0" not in passed(network, 0, 4)


def test_without_pcie_domains_of_a_node_reach_each_other_through_their_nics():
    way = passed(build(small("rail", size=2), 8), 0, 2)
    assert way[1] == "nic:0.0:out" or way[:3] == [0, "scale_up:0", 1]
    assert any(str(node).startswith("rail") for node in way)


def test_pcie_has_the_latency_of_the_scale_up_fabric_if_it_gives_none():
    network = build(small("rail", size=2, pcie="pcie: {bandwidth: 30 GB/s}"), 4)
    assert network.graph().edges[0, "host:0"]["latency"] == pytest.approx(1e-6)


@pytest.mark.parametrize("size", [4, 8])
def test_a_node_within_one_domain_has_no_pcie_switch(size):
    network = build(small("rail", size=size, pcie="pcie: {bandwidth: 30 GB/s}"), 16)
    assert not any(str(node).startswith("host") for node in network.nodes)


@pytest.mark.parametrize(
    "name", ["gh200-alps", "perlmutter", "polaris", "leonardo", "mi250x-frontier"]
)
def test_a_message_leaves_a_dragonfly_node_through_the_nic_of_its_own_rank(name):
    cluster = load_cluster(name)
    per_node, nics = cluster.ranks_per_node, cluster.scale_out.nics_per_node
    network = build(cluster, 24 * per_node)
    for node in range(23):
        for slot in range(per_node):
            way = passed(network, node * per_node + slot, (node + 1) * per_node + slot)
            port = slot * nics // per_node
            assert way[1] == f"nic:{node}.{port}:out"
            assert way[-2] == f"nic:{node + 1}.{port}:in"


@pytest.mark.parametrize(("nodes", "routers", "used"), [(5, 3, 3), (4, 2, 2), (2, 4, 4)])
def test_the_routers_of_a_group_hold_its_nodes(nodes, routers, used):
    text = FILE.format(
        fabric=f"topology: dragonfly\n  groups: 4\n  nodes_per_group: {nodes}\n"
        f"  routers_per_group: {routers}\n  global_links_per_router: 2",
        nics=4,
        size=4,
        pcie="",
    ).replace("nodes: 16", f"nodes: {nodes}")
    network = build(parse_cluster(text, source="small.yaml"), 4 * nodes)
    assert len([node for node in network.nodes if str(node).startswith("router")]) == used
