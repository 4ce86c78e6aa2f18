"""NICs with ports in several planes: counts, bandwidth, bills, and a plane that fails."""

import numpy as np
import pytest

from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.routing.routes import routes
from simulator.routing.totals import link_loads
from simulator.support.errors import ClusterError, TopologyError, WhatIfError
from topologies import Fault, broken, build, load_cluster, parse_cluster
from topologies.cluster.bill import bill_of
from topologies.cluster.changed import with_setting
from topologies.drawing import figure
from topologies.faults import SwitchNamed
from topologies.properties import middle_cut

FILE = """\
name: planes
accelerator: {{name: chip}}
ranks_per_node: 8
nodes: {nodes}
scale_up: {{topology: switch, size: {size}, bandwidth: 400 GB/s, latency: 1 us}}
scale_out:
  nics_per_node: 8
  bandwidth: 400 Gbit/s
  latency: 2 us
  {fabric}
"""
FABRICS = {
    "leaf_spine": "topology: leaf_spine, nodes_per_leaf: 2, spines: 4",
    "rail": "topology: rail, nodes_per_pod: 4, spines: 4",
    "fat_tree": "topology: fat_tree, ports: 8",
}
NIC = 50e9


def cluster(fabric, *more, nodes=8, size=8):
    lines = "\n  ".join([*FABRICS.get(fabric, fabric).split(", "), *more])
    return parse_cluster(FILE.format(nodes=nodes, size=size, fabric=lines), source="planes.yaml")


def permutation_rate(network, shift=32):
    """Rate (B/s) at which all ranks may send to those ``shift`` further before a link is full."""
    ranks = np.arange(network.ranks, dtype=np.int32)
    loads = link_loads(network, ranks, (ranks + shift) % network.ranks, np.ones(len(ranks)))
    return 1 / (loads / network.bandwidth).max()


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("planes", [2, 4])
def test_planes_carry_what_a_single_fabric_does_by_more_and_thinner_cables(fabric, planes):
    one = build(cluster(fabric, "routing: spray"), 64)
    many = build(cluster(fabric, f"planes: {planes}"), 64)
    switches = [
        len(network.nodes) - network.ranks - 2 * 64 - 8 for network in (one, many)
    ]  # less ranks, both sides of NICs, and switches of nodes
    assert switches[1] == planes * switches[0]
    between = [
        network.bandwidth[network.source >= network.ranks + 8].sum() for network in (one, many)
    ]
    assert between[0] == pytest.approx(between[1])
    for shift in (8, 32):
        assert permutation_rate(many, shift) == pytest.approx(permutation_rate(one, shift))
    assert middle_cut(many) == pytest.approx(middle_cut(one))


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_failed_plane_halves_a_nic_and_no_more(fabric):
    sound = build(cluster(fabric, "planes: 2"), 64)
    failed = broken(sound, [Fault(SwitchNamed("plane1"), None)]).network
    for shift in (8, 32):
        assert permutation_rate(failed, shift) == pytest.approx(permutation_rate(sound, shift) / 2)


def test_each_queue_pair_takes_a_plane_of_its_own_and_a_single_one_half_of_a_nic():
    pairs = [
        build(cluster("leaf_spine", "planes: 2", "routing: ecmp", f"flows: {flows}"), 64)
        for flows in (1, 2)
    ]
    for network, rate in zip(pairs, (NIC / 2, NIC), strict=True):
        single = link_loads(
            network, np.array([0], np.int32), np.array([32], np.int32), np.array([1.0])
        )
        assert 1 / (single / network.bandwidth).max() == pytest.approx(rate)


def test_a_nic_in_each_plane_is_deepseek_s_multi_plane_fat_tree():
    """16,384 endpoints on 768 switches of 64 ports, two layers in 8 planes (arXiv 2505.09343)."""
    bill = bill_of(load_cluster("deepseek-mpft"))
    assert (bill.count("nic"), bill.switches) == (16384, 768)
    three_layers = bill_of(cluster("topology: switch", nodes=2048))
    assert three_layers.switches > 1.6 * bill.switches


def test_segments_of_hpn_send_at_full_rate_and_at_half_without_a_plane():
    """15 segments of 1,024 GPUs (Qian et al., SIGCOMM 2024); two of them here, a rank a node."""
    hpn = load_cluster("alibaba-hpn7")
    assert bill_of(hpn).count("nic") == 15 * 1024
    fabric = hpn.scale_out.model_copy(update={"routing": "spray", "flows": 1})
    sound = build(hpn.model_copy(update={"scale_out": fabric}), 256, nodes=256)
    failed = broken(sound, [Fault(SwitchNamed("plane1"), None)]).network
    whole, half = (permutation_rate(network, 128) for network in (sound, failed))
    assert whole == pytest.approx(0.96 * NIC)
    assert half == pytest.approx(whole / 2)


def test_between_parted_planes_a_message_goes_through_the_node_of_its_sender():
    network = build(cluster("leaf_spine", "planes: 8", "nic_ports: 1", "routing: spray"), 64)
    everyone = np.arange(64, dtype=np.int32)
    source, target = np.repeat(everyone, 64), np.tile(everyone, 64)
    other_node = source // 8 != target // 8
    offset, links, _ = routes(network, source[other_node], target[other_node])
    assert len(offset) == other_node.sum() + 1
    names = {str(network.nodes[network.target[link]]) for link in links}
    for plane in range(8):
        assert f"leaf:0.p{plane}" in names
    for number in np.unique(links):
        ends = [str(network.nodes[end[number]]) for end in (network.source, network.target)]
        planes = {name.rpartition(".p")[2] for name in ends if ".p" in name}
        assert len(planes) <= 1


def test_ports_are_thinner_than_nics_in_the_bill():
    one, two = (bill_of(cluster("leaf_spine", f"planes: {count}"), 64) for count in (1, 2))
    figures = [{line.part: line for line in bill.lines} for bill in (one, two)]
    assert two.count("switch_port") == 2 * one.count("switch_port")
    assert two.count("cable") == 2 * one.count("cable")
    assert two.count("nic") == one.count("nic")
    assert figures[0]["switch_port"].cost == pytest.approx(figures[1]["switch_port"].cost)


def test_planes_are_what_if_settings_and_a_plane_is_a_part():
    scenario = Scenario(WorkloadBuilder(job_ranks=64).build(), cluster("leaf_spine"))
    two = parse_change("scale_out.planes = 2").apply(scenario).scenario
    assert two.cluster.scale_out.policy == "spray"
    down = parse_change("plane 1 down").apply(two).scenario
    network = build(two.cluster, 64)
    left = broken(network, down.faults).network
    assert len(left) == len(network) - 2 * (64 + 4 * 4)  # a cable of each NIC, and of each leaf
    with pytest.raises(TopologyError, match="plane7"):
        broken(network, [Fault(SwitchNamed("plane7"), None)])
    with pytest.raises(WhatIfError, match="plane by its number"):
        parse_change("plane 1 2 down")
    parted = with_setting(two.cluster, "scale_out.planes", "8")
    assert with_setting(parted, "scale_out.nic_ports", "1").scale_out.is_parted


def test_a_figure_shows_every_plane():
    text = "".join(
        label.get_text()
        for label in figure(build(cluster("leaf_spine", "planes: 2"), 64)).axes[0].texts
    )
    assert "leaf" in text


@pytest.mark.parametrize(
    ("more", "size", "reason"),
    [
        (("planes: 3", "nic_ports: 2"), 8, "no multiple of nic_ports"),
        (("planes: 32", "nic_ports: 2"), 8, "do not divide"),
        (("planes: 2", "routing: d_mod_k"), 8, "not among the ports of a NIC"),
        (("planes: 2", "host_bandwidth: 1 GB/s"), 8, "NICs with one port"),
        (("planes: 8", "nic_ports: 1"), 4, "one domain per node"),
    ],
)
def test_planes_that_do_not_fit_are_refused(more, size, reason):
    with pytest.raises(ClusterError, match=reason):
        cluster("leaf_spine", *more, size=size)


def test_planes_of_another_fabric_are_refused_with_what_to_change():
    with pytest.raises(WhatIfError, match="a switch joins the NICs of dgx-a100; write"):
        with_setting(load_cluster("dgx-a100"), "scale_out.planes", "2")
