"""What a job sees on a cluster: placement, tiers, NICs, slices."""

import math
from functools import lru_cache
from itertools import combinations, pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.topologies import scaled
from helpers.work import python_calls
from simulator.support.errors import ClusterError
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP, Topology
from topologies import build, catalog, changed, load_cluster, parse_cluster, place

FILE = """\
name: small
accelerator: {{name: chip}}
ranks_per_node: {per_node}
nodes: 16
scale_up: {{topology: {kind}, size: {size}, bandwidth: 120 GB/s, efficiency: 0.5, latency: 2 us}}
scale_out: {{topology: {fabric}, nics_per_node: {nics}, bandwidth: 100 Gbit/s, latency: 10 us}}
"""


def small(*, kind="switch", per_node=4, size=4, fabric="switch", nics=4):
    text = FILE.format(kind=kind, per_node=per_node, size=size, fabric=fabric, nics=nics)
    return parse_cluster(text, source="small.yaml")


def only(network: Topology, *resources: str) -> nx.DiGraph:
    graph = network.graph()
    kept = [(a, b) for a, b, d in graph.edges(data=True) if d["resource"] in resources]
    return graph.edge_subgraph(kept)


@lru_cache(maxsize=64)
def built(name: str, ranks: int) -> Topology:
    """Build the network of a cluster of the catalogue once for all that is asked of it."""
    return build(load_cluster(name), ranks)


def edges(network: Topology, resource: str) -> set[tuple[object, object]]:
    return set(only(network, resource).edges)


def between(graph: nx.DiGraph, one: int, other: int) -> tuple[float, float]:
    """Latency and bandwidth of the fastest path."""
    path = nx.shortest_path(graph, one, other, weight="latency")
    cables = [graph.edges[pair] for pair in pairwise(path)]
    return sum(c["latency"] for c in cables), min(c["bandwidth"] for c in cables)


@pytest.mark.parametrize("kind", ["switch", "fully_connected", "ring"])
def test_neighbours_in_a_domain_are_the_tiers_latency_apart(kind):
    network = build(small(kind=kind), 8)
    latency, bandwidth = between(only(network, SCALE_UP), 0, 1)
    assert latency == pytest.approx(2e-6, rel=1e-12)
    assert bandwidth == pytest.approx(60e9 / {"switch": 1, "fully_connected": 3, "ring": 2}[kind])


def test_domains_are_not_joined_by_the_scale_up_fabric():
    graph = only(build(small(), 8), SCALE_UP)
    assert nx.has_path(graph, 0, 3)
    assert not nx.has_path(graph, 3, 4)


@given(per_node=st.sampled_from([1, 2, 4, 8]), nics=st.integers(1, 9), over=st.integers(2, 16))
def test_ranks_on_two_nodes_are_the_fabrics_latency_apart_and_share_no_scale_up(
    per_node, nics, over
):
    cluster = small(per_node=per_node, size=per_node, nics=nics)
    network = build(cluster, per_node * over)
    latency, bandwidth = between(only(network, SCALE_OUT), 0, network.ranks - 1)
    assert latency == pytest.approx(10e-6, rel=1e-12)
    assert 12.5e9 <= bandwidth <= 12.5e9 * math.ceil(nics / per_node)


@given(per_node=st.sampled_from([1, 2, 4, 8]), nics=st.integers(1, 20), nodes=st.integers(1, 4))
def test_a_node_moves_as_much_as_all_its_nics_whoever_uses_them(per_node, nics, nodes):
    network = build(small(per_node=per_node, size=per_node, nics=nics), per_node * nodes)
    graph = network.graph()
    for node in range(nodes):
        own = {name for name in graph if str(name).startswith(f"nic:{node}.")}
        for ends in (graph.in_edges("fabric", data=True), graph.out_edges("fabric", data=True)):
            moved = [data["bandwidth"] for *names, data in ends if own & set(names)]
            assert sum(moved) == pytest.approx(nics * 12.5e9)


@pytest.mark.parametrize(
    ("nics", "used"),
    [
        (1, ["0", "0", "0", "0"]),
        (2, ["0", "0", "1", "1"]),
        (3, ["0", "0", "1", "2"]),
        (4, ["0", "1", "2", "3"]),
        (6, ["0-1", "2", "3-4", "5"]),
        (8, ["0-1", "2-3", "4-5", "6-7"]),
    ],
)
def test_a_rank_uses_the_nic_of_its_slot(nics, used):
    graph = build(small(nics=nics), 8).graph()
    for rank in range(8):
        nic = f"nic:{rank // 4}.{used[rank % 4]}"
        out = {node for node in graph.successors(rank) if str(node).startswith("nic")}
        back = {node for node in graph.predecessors(rank) if str(node).startswith("nic")}
        assert (out, back) == ({f"{nic}:out"}, {f"{nic}:in"})


def test_no_path_turns_round_in_a_nic():
    graph = only(build(small(nics=1), 8), SCALE_OUT).copy()
    graph.remove_node("fabric")
    assert not any(nx.has_path(graph, 0, other) for other in range(1, 8))


def test_pcie_limits_a_rank_only_where_the_file_gives_it():
    without = build(small(), 8)
    assert without.resources == (SCALE_UP, SCALE_OUT)
    assert without.graph().edges[0, "nic:0.0:out"]["bandwidth"] == math.inf
    network = build(load_cluster("dgx-a100"), 16)
    ports = only(network, PCIE).edges(data=True)
    assert len(ports) == 32
    assert {data["bandwidth"] for _, _, data in ports} == {31e9}
    assert {data["latency"] for _, _, data in ports} == {0.0}


def test_nics_of_a_node_that_is_half_full_are_all_there():
    graph = build(load_cluster("dgx-a100"), 2, nodes=2).graph()
    assert sum(str(node).endswith(":out") for node in graph) == 16
    assert set(graph.successors(1)) == {"scale_up:1", "nic:1.0:out"}


def test_a_rank_of_a_half_full_node_uses_the_nic_of_its_slot():
    graph = build(small(), 4, nodes=2).graph()
    assert "nic:1.1:out" in graph.successors(3)


def test_a_mesh_domain_stays_open_where_a_torus_closes():
    grid = "size: 9, dimensions: 3x3"
    for kind, cables in (("mesh", 12), ("torus", 18)):
        text = FILE.format(kind=kind, per_node=3, size=9, fabric="switch", nics=1)
        cluster = parse_cluster(text.replace("size: 9", grid), source="grid.yaml")
        assert len(edges(build(cluster, 9), SCALE_UP)) == 2 * cables


def test_the_efficiency_of_a_tier_is_in_its_links():
    cluster = load_cluster("dgx-a100")
    graph = build(cluster, 16).graph()
    out, up = cluster.scale_out.efficiency, cluster.scale_up.efficiency
    assert out < 1
    assert up < 1
    assert graph.edges["fabric", "nic:0.0:in"]["bandwidth"] == pytest.approx(25e9 * out)
    assert graph.edges[0, "scale_up:0"]["bandwidth"] == pytest.approx(300e9 * up)


def test_ranks_fill_nodes_in_order_or_are_spread_evenly():
    cluster = small()
    assert [place(cluster, 6).seat(rank) for rank in (0, 3, 4, 5)] == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 1),
    ]
    assert [place(cluster, 6, 3).seat(rank) for rank in (0, 1, 2, 5)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 1),
    ]


def test_a_domain_may_span_nodes_and_a_node_may_hold_domains():
    wide, narrow = small(size=8), small(size=2)
    assert place(wide, 16).domains(wide) == {0: list(range(8)), 1: list(range(8, 16))}
    assert place(narrow, 6).domains(narrow) == {0: [0, 1], 1: [2, 3], 2: [4, 5]}
    assert place(wide, 6, 3).domains(wide) == {0: [0, 1, 2, 3], 1: [4, 5]}


def test_nodes_keep_their_nics_when_the_domain_grows():
    before, after = build(small(), 16), build(changed(small(), "scale_up.size", 2), 16)
    assert edges(before, SCALE_OUT) == edges(after, SCALE_OUT)
    assert ("scale_up:1", 15) in edges(after, SCALE_UP)


def test_a_domain_without_scale_out_is_the_whole_network():
    lines = [line for line in FILE.splitlines() if not line.startswith("scale_out")]
    text = (
        "\n".join(lines).replace("nodes: 16", "nodes: 1").format(kind="switch", per_node=4, size=4)
    )
    network = build(parse_cluster(text, source="one.yaml"), 4)
    assert network.resources == (SCALE_UP,)
    assert len(network) == 8


def test_a_full_mesh_that_is_half_used_keeps_the_bandwidth_of_its_cables():
    network = build(small(kind="fully_connected"), 2)
    assert edges(network, SCALE_UP) == {(0, 1), (1, 0)}
    assert network.bandwidth[0] == pytest.approx(20e9)


def test_a_ring_that_is_not_filled_is_a_line():
    assert edges(build(small(kind="ring"), 4), SCALE_UP) >= {(3, 0), (0, 3)}
    assert edges(build(small(kind="ring"), 3), SCALE_UP) == {(0, 1), (1, 0), (1, 2), (2, 1)}


@pytest.mark.parametrize(
    ("ranks", "shape", "wraps"),
    [
        (1, (1, 1), 0),
        (4, (2, 2), 0),
        (8, (2, 4), 0),
        (32, (4, 8), 0),
        (128, (8, 16), 8),
        (256, (16, 16), 32),
    ],
)
def test_a_tpu_slice_closes_only_an_axis_of_16(ranks, shape, wraps):
    rows, columns = shape
    network = build(load_cluster("tpu-v6e"), ranks)
    mesh = rows * (columns - 1) + columns * (rows - 1)
    assert len(edges(network, SCALE_UP)) == 2 * (mesh + wraps)
    if ranks > 1:
        assert set(network.bandwidth[network.resource == 0]) == {90e9}


def test_a_slice_that_does_not_exist_is_refused():
    with pytest.raises(ClusterError, match="no slice of 17 places exists in a grid of 16x16"):
        build(load_cluster("tpu-v6e"), 17)


def test_a_torus_of_nodes_shares_a_nodes_nics_over_its_cables():
    cluster = small(fabric="torus, dimensions: 4x4, hop_latency: 1 us")
    network = build(cluster, 64)
    graph = network.graph()
    assert set(graph.successors("router:0")) >= {f"router:{node}" for node in (1, 3, 4, 12)}
    assert graph.edges["router:0", "router:1"]["bandwidth"] == pytest.approx(4 * 12.5e9 / 4)
    fabric = only(network, SCALE_OUT)
    assert between(fabric, 0, 4)[0] == pytest.approx(11e-6)
    assert between(fabric, 0, 40)[0] == pytest.approx(14e-6)


DRAGONFLY = (
    "dragonfly, groups: 4, routers_per_group: 2, nodes_per_group: 4, global_links_per_router: 3,"
    " hop_latency: 1 us, local_bandwidth: 50 Gbit/s, global_bandwidth: 40 Gbit/s"
)


def test_a_dragonfly_of_nodes_has_local_and_global_cables_of_their_own():
    network = build(small(fabric=DRAGONFLY), 64)
    graph = network.graph()
    assert "router:0.0" in graph.successors("nic:0.0:out")
    assert "router:0.1" in graph.successors("nic:2.0:out")
    assert "router:1.0" in graph.successors("nic:4.3:out")
    assert graph.edges["router:3.0", "router:3.1"]["bandwidth"] == pytest.approx(6.25e9)
    for one, other in combinations(range(4), 2):
        cables = [
            data["bandwidth"]
            for a, b, data in graph.edges(data=True)
            if str(a).startswith(f"router:{one}.") and str(b).startswith(f"router:{other}.")
        ]
        assert sum(cables) == pytest.approx(2 * 5e9)


def test_cables_between_the_same_two_routers_are_one_link_with_their_bandwidth():
    shape = "dragonfly, groups: 2, routers_per_group: 2, nodes_per_group: 8, "
    cluster = small(fabric=shape + "global_links_per_router: 3, global_bandwidth: 40 Gbit/s")
    graph = build(cluster, 64).graph()
    assert graph.edges["router:0.1", "router:1.1"]["bandwidth"] == pytest.approx(3 * 5e9)


def test_only_the_groups_in_use_are_built():
    graph = build(small(fabric=DRAGONFLY), 8).graph()
    assert {node for node in graph if str(node).startswith("router")} == {"router:0.0"}
    graph = build(small(fabric=DRAGONFLY), 32).graph()
    assert {str(node)[7] for node in graph if str(node).startswith("router")} == {"0", "1"}


@pytest.mark.parametrize("name", catalog())
@pytest.mark.parametrize(
    ("resource", "tier", "what"),
    [
        ("scale_up.bandwidth", SCALE_UP, "bandwidth"),
        ("scale_up.latency", SCALE_UP, "latency"),
        ("scale_out.bandwidth", SCALE_OUT, "bandwidth"),
        ("scale_out.latency", SCALE_OUT, "latency"),
    ],
)
def test_a_what_if_on_the_cluster_is_the_what_if_on_its_links(name, resource, tier, what):
    cluster = load_cluster(name)
    ranks = min(4 * cluster.scale_up.size, cluster.capacity, 512)
    network = built(name, ranks)
    if tier not in network.resources:
        return
    ours, theirs = (build(changed(cluster, resource, 2), ranks), scaled(network, tier, **{what: 2}))
    np.testing.assert_allclose(ours.bandwidth, theirs.bandwidth, rtol=1e-12)
    np.testing.assert_allclose(ours.latency, theirs.latency, rtol=1e-12)


@pytest.mark.parametrize("name", catalog())
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 512])
def test_every_rank_of_a_catalogue_cluster_reaches_every_other(name, ranks):
    cluster = load_cluster(name)
    ranks = min(ranks, cluster.capacity)
    graph = built(name, ranks).graph()
    assert set(range(ranks)) <= nx.descendants(graph, 0) | {0}
    assert set(range(ranks)) <= nx.ancestors(graph, 0) | {0}


@pytest.mark.parametrize(
    ("ranks", "nodes", "message"),
    [
        (0, None, "needs at least 1 rank"),
        (65, None, "65 ranks do not fit: it has 64"),
        (8, 17, "17 nodes were requested"),
        (8, 0, "0 nodes were requested"),
        (8, 3, "do not divide evenly over 3 nodes"),
        (16, 2, "8 per node, but a node has 4"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(ranks, nodes, message):
    with pytest.raises(ClusterError, match=message):
        build(small(), ranks, nodes)


def test_the_work_of_building_grows_with_the_ranks_and_no_faster():
    cluster = load_cluster("dgx-a100")
    build(cluster, 1024)
    few, many = (python_calls(lambda r=ranks: build(cluster, r)) for ranks in (256, 1024))
    assert many < 1.1 * 4 * few
