"""Bills of materials: hand counts of whole fabrics, closed forms, and laws of what is added up."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import ClusterError
from topologies import load_cluster, parse_cluster
from topologies.cluster.bill import bill_of, tree_of_switches
from topologies.cluster.catalog import catalog, cluster_text
from topologies.cluster.changed import changed, with_topology

H100 = load_cluster("hgx-h100")
JOB = 1024
"""Ranks, on 128 nodes of 8 GPUs and 8 NICs each."""


def on_fabric(nodes=128, **fabric):
    data = H100.model_dump(mode="json", exclude_unset=True)
    keep = ("nics_per_node", "bandwidth", "latency", "efficiency")
    own = {name: data["scale_out"][name] for name in keep}
    data |= {"scale_out": own | fabric, "sources": {}, "nodes": nodes}
    return type(H100).model_validate(data)


def counts(cluster, ranks=JOB):
    bill = bill_of(cluster, ranks)
    return bill.switches, bill.count("switch_port"), bill.count("cable")


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        # k = 16: 128 edge, 128 aggregation and 64 core switches, all of their 16 ports in use;
        # 1,024 cables to NICs, to aggregation, and to the core
        ({"topology": "fat_tree", "ports": 16}, (320, 320 * 16, 3 * 1024)),
        # 4 pods of 32 nodes: 32 rail switches with 32 NICs; 16 spines, 2 cables from each
        ({"topology": "rail", "nodes_per_pod": 32, "spines": 16}, (48, 3072, 2048)),
        # half of the cables up: 32 switches with 32 NICs and 16 cables
        (
            {"topology": "rail", "nodes_per_pod": 32, "spines": 16, "oversubscription": 2.0},
            (48, 1024 + 2 * 512, 1024 + 512),
        ),
        # 8 leaves of 16 nodes (128 NICs) with 128 cables up: each leaf, 256 ports, is a tree of 12
        # switches with 256 cables inside; 32 spines have 8 x 4 ports
        (
            {"topology": "leaf_spine", "nodes_per_leaf": 16, "spines": 32},
            (8 * 12 + 32, 8 * (256 + 512) + 32 * 32, 1024 + 1024 + 8 * 256),
        ),
        # 8 groups of 16 routers, 8 NICs each: 15 cables to each router of the group; 28 pairs of
        # groups with 16 * 7 // 7 = 16 cables
        (
            {
                "topology": "dragonfly",
                "groups": 8,
                "routers_per_group": 16,
                "nodes_per_group": 16,
                "global_links_per_router": 7,
            },
            (128, 1024 + 8 * 16 * 15 + 2 * 28 * 16, 1024 + 8 * (16 * 15 // 2) + 28 * 16),
        ),
        # a router for each node, 8 NICs, 2 cables of a NIC's bandwidth to each of 4 neighbours
        ({"topology": "torus", "dimensions": "8x16"}, (128, 1024 + 128 * 8, 1024 + 512)),
        # one switch that never blocks: 32 leaves and 16 spines of 64 ports
        ({"topology": "switch"}, (48, 3072, 2048)),
    ],
)
def test_fabrics_of_1024_gpus_are_as_counted_by_hand(fabric, expected) -> None:
    cluster = on_fabric(**fabric)
    assert counts(cluster) == expected
    bill = bill_of(cluster, JOB)
    assert [bill.count(part) for part in ("accelerator", "node", "nic")] == [1024, 128, 1024]


def test_a_graph_is_the_fabric_that_it_draws(tmp_path) -> None:
    """The same 64 NICs on 4 leaves and 4 spines, by the fabric's name and as a drawing."""
    ports = [{"source": f"p{rank}", "target": f"leaf{rank // 16}"} for rank in range(64)]
    up = [
        {"source": f"leaf{leaf}", "target": f"spine{spine}", "bandwidth": "200 GB/s"}
        for leaf in range(4)
        for spine in range(4)
    ]
    nodes = [{"id": f"p{rank}", "rank": rank} for rank in range(64)]
    nodes += [{"id": f"{kind}{number}"} for kind in ("leaf", "spine") for number in range(4)]
    file = tmp_path / "drawn.json"
    file.write_text(json.dumps({"nodes": nodes, "edges": ports + up}))
    drawn = on_fabric(8, topology=str(file))
    assert drawn.scale_out.topology == "graph"
    named = on_fabric(topology="leaf_spine", nodes_per_leaf=2, spines=4)
    assert counts(drawn, 64) == counts(named, 64) == (8, 64 + 2 * 64, 64 + 64)


def test_a_graph_without_switches_has_a_router_where_a_nic_is() -> None:
    """A ring of 64 NICs: each router has a port for its NIC and two for its neighbours."""
    drawn = with_topology(H100, "scale_out=ring:64", nodes=8)
    assert counts(drawn, 64) == (64, 3 * 64, 2 * 64)


@given(ports=st.integers(1, 20_000), sold=st.sampled_from([4, 16, 32, 64, 144]))
def test_a_tree_of_switches_has_room_and_no_loose_end(ports: int, sold: int) -> None:
    tree = tree_of_switches(ports, sold)
    assert tree.ports == ports + 2 * tree.cables
    assert tree.ports <= tree.switches * sold
    assert tree.switches >= math.ceil(ports / sold)
    assert (tree.switches == 1) == (ports <= sold)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_full_tree_is_the_closed_form_of_a_folded_clos(levels: int) -> None:
    radix = 16
    ports = 2 * (radix // 2) ** levels
    tree = tree_of_switches(ports, radix)
    assert tree.switches == (2 * levels - 1) * ports // radix
    assert tree.ports == tree.switches * radix


@given(
    fabric=st.sampled_from(["switch", "torus:4x4", "fat_tree:16", "rail:16x8x4"]),
    nodes=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_every_cable_has_two_ends(fabric: str, nodes: int) -> None:
    cluster = H100 if fabric == "switch" else with_topology(H100, f"scale_out={fabric}", nodes=16)
    bill = bill_of(cluster, 8 * nodes)
    assert 2 * bill.count("cable") == bill.count("nic") + bill.count("switch_port")


def test_catalogue_has_a_bill_or_says_which_price_is_missing() -> None:
    for name in catalog():
        cluster = load_cluster(name)
        ranks = min(cluster.capacity, 4 * cluster.scale_up.size)
        bill = bill_of(cluster, ranks)
        assert bill.count("accelerator") >= ranks
        if bill.missing:
            field = bill.missing[0]
            with pytest.raises(ClusterError, match=rf"give {field} in the cluster file"):
                _ = bill.cost, bill.active_power
        else:
            assert bill.cost > 0
            assert bill.idle_power < bill.active_power


def priced(**tables):
    return H100.model_copy(
        update={name: getattr(H100, name).model_validate(one) for name, one in tables.items()}
    )


def test_a_file_overrides_one_line() -> None:
    before = bill_of(H100, JOB)
    after = bill_of(priced(prices={"cable": "500 USD"}), JOB)
    assert after.cost == pytest.approx(before.cost - 2048 * (1280 - 500))
    line = next(line for line in after.lines if line.part == "cable")
    assert (line.piece.price_source, line.piece.price_spread) == ("the cluster file", 0)
    assert line.piece.power_source == before.lines[-1].piece.power_source


def test_parts_of_the_network_grow_with_its_bandwidth() -> None:
    twice = changed(H100, "scale_out.bandwidth", 2.0)
    before, after = bill_of(H100, JOB), bill_of(twice, JOB)
    for one, other in zip(before.lines, after.lines, strict=True):
        assert other.count == one.count
        grows = one.part in ("nic", "switch_port", "cable")
        assert other.cost == pytest.approx(one.cost * (2 if grows else 1))


@given(share=st.floats(0, 1), seconds=st.floats(1e-3, 1e3))
def test_energy_lies_between_waiting_and_working(share: float, seconds: float) -> None:
    bill = bill_of(H100, JOB)
    energy = bill.energy(seconds, {"accelerator": share, "node": share})
    assert bill.idle_power * seconds <= energy * (1 + 1e-12)
    assert energy <= bill.active_power * seconds * (1 + 1e-12)


def test_power_of_a_node_is_what_one_drew() -> None:
    """A node of 8 H100 drew 8.4 kW at most in training (arXiv 2412.08602)."""
    lines = [line for line in bill_of(H100, 8).lines if line.part in ("accelerator", "node")]
    assert sum(line.power[1] for line in lines) == pytest.approx(8400)


def test_prices_are_written_and_read_back() -> None:
    own = priced(
        prices={"accelerator": {"price": "20 kUSD", "spread": 0.1}, "energy": "0.05 USD/kWh"},
        power={"node": {"idle": "1 kW", "active": "2 kW"}, "overhead": 1.1},
    )
    assert parse_cluster(cluster_text(own), source="text") == own


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ("prices: {cable: 500}", "prices.cable.price: 500 is not a quantity"),
        ("power: {node: 2.4 MW}", r"power.node.idle: .* 1 MW: is the unit right\?"),
        ("prices: {cable: 500 EUR}", "500 EUR"),
        ("prices: {cabel: 500 USD}", "prices.cabel"),
        ("power: {nic: {idle: 30 W, active: 20 W}}", "idle, 30 W, is more than active, 20 W"),
        ("power: {overhead: 0.9}", "power.overhead"),
        ("prices: {switch_ports: 7}", "prices.switch_ports"),
    ],
)
def test_what_is_no_price_is_refused_by_field(tables: str, told: str) -> None:
    text = f"{cluster_text(load_cluster('dgx-a100'))}\n{tables}\n"
    with pytest.raises(ClusterError, match=told):
        parse_cluster(text, source="mine.yaml")


@pytest.mark.parametrize(
    "fabric",
    [
        {"topology": "rail", "nodes_per_pod": 32, "spines": 32},
        {"topology": "fat_tree", "ports": 16},
        {"topology": "torus", "dimensions": "8x16"},
    ],
)
def test_a_bill_is_the_same_whatever_was_counted_before(fabric):
    cluster, counted = on_fabric(**fabric), {}
    for factor in (1, 0.5, 3):
        faster = changed(cluster, "scale_out.bandwidth", factor)
        for ranks in (64, JOB):
            assert bill_of(faster, ranks, None, counted) == bill_of(faster, ranks)
    assert len(counted) == 2
