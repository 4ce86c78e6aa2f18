"""Faults of single parts: what they meet, what they leave alone, whom they cut off."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulator.routing.routes import routes
from simulator.support.errors import DisconnectedError, TopologyError
from simulator.topology import Link, topology
from topologies import build, load_cluster, parse_cluster, place, ring
from topologies.faults import (
    Drawn,
    Fault,
    LinkNamed,
    NicNamed,
    NodeNamed,
    SwitchNamed,
    broken,
    joined_ranks,
)
from topologies.part_names import Parts, homes

LEAVES = """\
name: leaves
accelerator: {name: chip}
ranks_per_node: 4
nodes: 8
scale_up: {topology: switch, size: 4, bandwidth: 100 GB/s, latency: 2 us}
scale_out: {topology: leaf_spine, nodes_per_leaf: 2, spines: 4, nics_per_node: NICS,
            bandwidth: 200 Gbit/s, latency: 4 us, hop_latency: 1 us}
pcie: {bandwidth: 50 GB/s}
"""


def leaves(nics=4):
    return parse_cluster(LEAVES.replace("NICS", str(nics)), source="leaves.yaml")


def there(cluster, ranks):
    network, placement = build(cluster, ranks), place(cluster, ranks)
    return network, homes(network, [placement.seat(rank)[0] for rank in range(ranks)])


NETWORK, HOME = there(leaves(), 32)


def changed_links(fault, network=NETWORK, home=HOME):
    """Ends of the links that a fault changes, with the factors of bandwidth and latency."""
    after = broken(network, [fault], home).network
    assert len(after) == len(network)
    pairs = [(after.link(index), network.link(index)) for index in range(len(network))]
    factors = {
        (one.source, one.target): (
            now.bandwidth / one.bandwidth,
            now.latency / one.latency if one.latency else 1.0,
        )
        for now, one in pairs
    }
    return {ends: both for ends, both in factors.items() if both != (1.0, 1.0)}


@pytest.mark.parametrize(
    "name", ["leaf:1-spine:3", "leaf1-spine3", "spine3-leaf1", "LEAF 1 - Spine 3"]
)
def test_a_link_is_both_directions_however_its_ends_are_spelt(name):
    both = {("leaf:1", "spine:3"), ("spine:3", "leaf:1")}
    assert changed_links(Fault(LinkNamed(name), 0.5)) == dict.fromkeys(both, (0.5, 1.0))


@pytest.mark.parametrize("arrow", ["->", "→"])
def test_an_arrow_is_one_direction(arrow):
    fault = Fault(LinkNamed(f"leaf1{arrow}spine3"), 0.25)
    assert changed_links(fault) == {("leaf:1", "spine:3"): (0.25, 1.0)}


def test_a_slow_nic_is_slow_both_ways_and_its_slot_is_not():
    ends = {("nic:2.3:out", "leaf:1"), ("leaf:1", "nic:2.3:in")}
    assert changed_links(Fault(NicNamed(2, 3), 0.5)) == dict.fromkeys(ends, (0.5, 1.0))


def test_one_of_two_nics_that_serve_a_rank_is_half_of_both():
    network, home = there(leaves(nics=8), 8)
    ends = {("nic:1.2-3:out", "leaf:0"), ("leaf:0", "nic:1.2-3:in")}
    slow = changed_links(Fault(NicNamed(1, 3), 0.5), network, home)
    assert slow == dict.fromkeys(ends, (0.75, 1.0))
    assert changed_links(Fault(NicNamed(1, 2), None), network, home) == dict.fromkeys(
        ends, (0.5, 1.0)
    )
    both = [Fault(NicNamed(1, 2), 0.5), Fault(NicNamed(1, 3), 0.5)]
    assert broken(network, both, home).network.bandwidth.min() > 0


def test_the_cable_of_one_of_two_nics_is_half_of_both():
    network, home = there(leaves(nics=8), 8)
    ends = {("nic:1.2-3:out", "leaf:0"), ("leaf:0", "nic:1.2-3:in")}
    one = changed_links(Fault(LinkNamed("nic1.3-leaf0"), 0.5), network, home)
    assert one == dict.fromkeys(ends, (0.75, 1.0))
    both = changed_links(Fault(LinkNamed("nic1.2-3-leaf0"), 0.5), network, home)
    assert both == dict.fromkeys(ends, (0.5, 1.0))
    with pytest.raises(TopologyError, match=r"no link nic1\.3-rank0: nic:1\.2-3 leads to"):
        broken(network, [Fault(LinkNamed("nic1.3-rank0"), 0.5)], home)


def test_a_node_is_all_links_inside_it_and_at_its_edge():
    found = changed_links(Fault(NodeNamed(5), 10.0, "latency"))
    ranks = {(rank, "scale_up:5") for rank in range(20, 24)}
    nics = {(f"nic:5.{nic}:out", "leaf:2") for nic in range(4)}
    into = {("leaf:2", f"nic:5.{nic}:in") for nic in range(4)}
    assert found.keys() == ranks | {(b, a) for a, b in ranks} | nics | into
    assert set(found.values()) == {(1.0, 10.0)}
    outside = changed_links(Fault(NodeNamed(5), 10.0, "latency", "scale_out"))
    assert outside.keys() == nics | into


def test_a_switch_is_all_its_links():
    ends = {(f"leaf:{leaf}", "spine:0") for leaf in range(4)}
    found = changed_links(Fault(SwitchNamed("spine0"), 0.5))
    assert found == dict.fromkeys(ends | {(b, a) for a, b in ends}, (0.5, 1.0))


def test_what_is_down_is_gone_and_nodes_keep_their_numbers():
    done = broken(NETWORK, [Fault(SwitchNamed("spine:1"), None)], HOME)
    assert done.rerouted
    assert done.network.nodes == NETWORK.nodes
    gone = set(NETWORK.graph().edges) - set(done.network.graph().edges)
    assert gone == {pair for pair in NETWORK.graph().edges if "spine:1" in pair}


def test_faults_of_one_link_multiply_and_no_fault_changes_nothing():
    faults = [Fault(LinkNamed("leaf0-spine0"), 0.5), Fault(SwitchNamed("spine0"), 0.5)]
    done = broken(NETWORK, faults, HOME)
    assert not done.rerouted, "what is slow is still there"
    least = done.network
    slow = least.bandwidth / NETWORK.bandwidth
    assert sorted(set(slow)) == [0.25, 0.5, 1.0]
    same = broken(NETWORK, [], HOME).network
    assert (same.bandwidth == NETWORK.bandwidth).all()


CUTS = [
    (NodeNamed(3), "ranks 12-15 are cut off from the other 28"),
    (SwitchNamed("leaf0"), "ranks 0-7 are cut off from the other 24"),
]


@pytest.mark.parametrize(("part", "who"), CUTS)
def test_who_is_cut_off_is_named(part, who):
    with pytest.raises(DisconnectedError, match=who):
        broken(NETWORK, [Fault(part, None)], HOME)


def test_a_cut_in_one_direction_cuts_off_too():
    network = ring(4, bandwidth=1e9, latency=0.0)
    assert broken(network, [Fault(LinkNamed("0->1"), None)]).rerouted
    pair = topology("pair", 2, [Link(0, 1, 1e9, 0.0), Link(1, 0, 1e9, 0.0)])
    with pytest.raises(DisconnectedError, match="rank 1 is cut off from rank 0"):
        broken(pair, [Fault(LinkNamed("0->1"), None)])


def test_a_rank_without_its_nic_sends_through_another_of_its_node():
    done = broken(NETWORK, [Fault(NicNamed(0, 0), None)], HOME)
    assert joined_ranks(done.network)[0].tolist() == list(range(32))


REFUSED = [
    (LinkNamed("leaf0-spin1"), "no part of leaves(32) is called 'spin1'; did you mean spine:1"),
    (LinkNamed("leaf0-spine9"), "is called 'spine9'"),
    (LinkNamed("leaf0-leaf1"), "has no link leaf0-leaf1: leaf:0 leads to nic:0.0, "),
    (LinkNamed("leaf0"), "link 'leaf0': name both ends, as in leaf0-spine1"),
    (NicNamed(2, 4), "node 2 has NICs 0 to 3, not 4"),
    (NicNamed(8, 0), "no node 8: the job is on nodes 0 to 7"),
    (NodeNamed(8), "no node 8: the job is on nodes 0 to 7"),
    (SwitchNamed("nic:0.0"), "nic:0.0 is not a switch"),
    (SwitchNamed("rank3"), "rank3 is not a switch"),
    (Drawn(0.1, "links"), "0.1 % of 112 links of leaves(32) is less than one; the least is 0.5 %"),
]


@pytest.mark.parametrize(("part", "message"), REFUSED)
def test_what_is_not_there_is_refused(part, message):
    with pytest.raises(TopologyError) as error:
        broken(NETWORK, [Fault(part, 0.5)], HOME)
    assert message in str(error.value)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_a_factor_is_positive_and_finite(factor):
    with pytest.raises(TopologyError, match="not positive and finite"):
        Fault(NodeNamed(0), factor)


def test_a_link_without_bandwidth_of_its_own_cannot_be_slow():
    bare = parse_cluster(LEAVES.replace("NICS", "4").partition("pcie")[0], source="bare.yaml")
    network, home = there(bare, 8)
    with pytest.raises(TopologyError, match="no bandwidth of its own"):
        broken(network, [Fault(LinkNamed("rank0-nic:0.0"), 0.5)], home)


@given(
    percent=st.floats(1, 100),
    of=st.sampled_from(["links", "nics", "switches", "nodes"]),
    seed=st.integers(0, 99),
)
def test_a_share_is_that_many_of_them_and_the_seed_decides_which(percent, of, seed):
    known = {"links": 32 + 32 + 32 + 16, "nics": 32, "switches": 8 + 4 + 4, "nodes": 8}[of]
    fault = Fault(Drawn(percent, of, seed=seed), 0.5)
    count = int(percent / 100 * known + 0.5)
    assume(count)
    once, again = (broken(NETWORK, [fault], HOME) for _ in range(2))
    assert once.notes[0].startswith(f"{count} of {known} {of}: ")
    assert once.notes == again.notes
    assert (once.network.bandwidth == again.network.bandwidth).all()
    slow = once.network.bandwidth < NETWORK.bandwidth
    assert set(once.network.bandwidth[slow] / NETWORK.bandwidth[slow]) == {0.5}
    if of in ("links", "nics"):
        assert len(np.unique(Parts(NETWORK).cable[slow])) == count


def test_a_smaller_share_is_part_of_a_greater_one_and_draws_differ():
    def slow(percent, draw=0):
        fault = Fault(Drawn(percent, "links", seed=1, draw=draw), 0.5)
        return broken(NETWORK, [fault], HOME).network.bandwidth < NETWORK.bandwidth

    assert (slow(5) <= slow(20)).all()
    assert (slow(5) != slow(5, draw=1)).any()


def test_two_draws_of_one_network_are_two():
    fault = Fault(Drawn(10, "links"), 0.5)
    twice = broken(NETWORK, [fault, fault], HOME)
    assert twice.notes[0] != twice.notes[1]


def test_a_share_of_a_tier_is_of_its_links():
    fault = Fault(Drawn(100, "links", "scale_up"), 0.5)
    after = broken(NETWORK, [fault], HOME).network
    assert ((after.bandwidth < NETWORK.bandwidth) == NETWORK.following("scale_up.bandwidth")).all()


def test_every_cable_of_the_catalogue_is_found_by_its_name():
    for name in ("perlmutter", "mi300x-8", "gb200-nvl72", "tpu-v5e", "hgx-b200"):
        cluster = load_cluster(name)
        network = build(cluster, min(cluster.capacity, 3 * cluster.ranks_per_node))
        parts = Parts(network)
        assert len(parts.first_link) == len(
            set(map(parts.cable_name, range(len(parts.first_link))))
        )
        for number in range(len(parts.first_link)):
            found = parts.link_named(parts.cable_name(number))
            assert (found[0] == (parts.cable == number)).all()
            assert found[1] == 1


WIRED = """\
name: box
accelerator: {name: chip}
ranks_per_node: 4
nodes: 2
scale_up: {topology: wired, size: 4, bandwidth: 90 GB/s, latency: 1 us}
scale_out: {topology: FABRIC, nics_per_node: 3, bandwidth: 200 Gbit/s, latency: 2 us}
pcie: {bandwidth: 30 GB/s}
wiring:
  cables:
"""
CABLES = (
    *((f"gpu{one}", f"gpu{two}", "scale_up") for one in range(4) for two in range(one)),
    *((f"gpu{slot}", f"plx{slot // 2}", "pcie") for slot in range(4)),
    *(("plx0", f"nic{nic}", "pcie") for nic in (0, 1)),
    ("plx1", "nic2", "pcie"),
    ("plx0", "cpu", "pcie"),
    ("plx1", "cpu", "pcie"),
)


def wired(fabric="switch"):
    rows = (f"  - {{source: {a}, target: {b}, tier: {tier}}}\n" for a, b, tier in CABLES)
    cluster = parse_cluster(WIRED.replace("FABRIC", fabric) + "".join(rows), source="box.yaml")
    network, placement = build(cluster, 8), place(cluster, 8)
    seats = [placement.seat(rank)[0] for rank in range(8)]
    return network, homes(network, seats, cluster.wiring.vertices)


def nics_of_way(network, here, there):
    """Names of the NICs that a message passes."""
    found = routes(network, np.array([here], dtype=np.int32), np.array([there], dtype=np.int32))
    ends = [network.nodes[network.source[link]] for link in found.link]
    return [str(end).rpartition(":")[0] for end in ends if str(end).startswith("nic:")]


@pytest.mark.parametrize("fabric", ["switch", "rail, nodes_per_pod: 2, spines: 1"])
def test_a_wired_node_uses_the_nearest_nic_that_is_left(fabric):
    network, home = wired(fabric)
    rails = "rail" in fabric
    assert nics_of_way(network, 0, 4) == ["nic:0.0", "nic:1.0"]
    done = broken(network, [Fault(NicNamed(0, 0), None)], home).network
    assert nics_of_way(done, 0, 4) == ["nic:0.1", "nic:1.0"]
    assert nics_of_way(done, 4, 0) == ["nic:1.0", "nic:0.1"]
    assert nics_of_way(done, 1, 4) == ["nic:0.1", "nic:1.0"]
    for here, there in ((2, 6), (3, 7)):  # the NIC of the other switch is not concerned
        assert nics_of_way(done, here, there) == nics_of_way(network, here, there)
    both = [Fault(NicNamed(0, 0), None), Fault(NicNamed(0, 1), None)]
    done = broken(network, both, home).network
    assert nics_of_way(done, 0, 4) == ["nic:0.2", "nic:1.0"]
    assert rails == (network.doors.by_target)


def test_a_wired_node_without_a_nic_is_cut_off_and_its_vertices_have_names():
    network, home = wired()
    with pytest.raises(DisconnectedError, match="ranks 4-7 are cut off from the other 4"):
        broken(network, [Fault(NicNamed(0, nic), None) for nic in range(3)], home)
    slow = changed_links(Fault(LinkNamed("plx1:1-cpu:1"), 0.5), network, home)
    assert slow.keys() == {("plx1:1", "cpu:1"), ("cpu:1", "plx1:1")}
    inside = broken(network, [Fault(NodeNamed(1), 0.5)], home).network
    met = {str(network.nodes[end]) for end in network.source[inside.bandwidth < network.bandwidth]}
    assert {"plx0:1", "cpu:1", "nic:1.0:out", "4"} <= met
    assert not met & {"plx0:0", "nic:0.0:out", "0"}


def test_links_that_are_left_keep_their_metrics():
    """Links of a resource of one's own have metrics, which tell the fast way from the slow one."""
    links = [
        Link(one, other, speed, 1e-6, resource, metric=metric)
        for resource, speed, metric in (("mine", 4e9, 17), ("spare", 1e9, 18))
        for one, other in ((0, f"{resource}0"), (1, f"{resource}0"))
        for one, other in ((one, other), (other, one))
    ]
    network = topology("own", 2, links)
    after = broken(network, [Fault(LinkNamed("0-mine0"), None)]).network
    assert sorted(after.metric) == [17, 17, 18, 18, 18, 18]
    found = routes(after, np.array([0], dtype=np.int32), np.array([1], dtype=np.int32))
    assert {after.link(index).resource for index in found.link} == {"spare"}
