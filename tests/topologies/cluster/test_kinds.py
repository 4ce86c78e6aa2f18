"""Clusters whose nodes differ: what each kind is, where ranks sit, what is refused."""

import numpy as np
import pytest

from simulator.support.errors import ClusterError, WhatIfError
from topologies import build, changed, load_cluster, parse_cluster, place, resource_values
from topologies.cluster.catalog import cluster_text
from topologies.cluster.schema import kinds_of

FILE = """\
name: two
accelerator: {name: chip, peak: {bf16: 100 TFLOP/s}, memory_bandwidth: 1 TB/s}
ranks_per_node: 4
nodes: 5
node_kinds:
  plain: {count: 2}
  wide: {count: 3, ranks_per_node: 8,
         scale_up: {topology: switch, size: 4, bandwidth: 60 GB/s, latency: 3 us},
         scale_out: {nics_per_node: 2, bandwidth: 10 GB/s}, pcie: {bandwidth: 20 GB/s}}
scale_up: {topology: switch, size: 4, bandwidth: 100 GB/s, latency: 2 us}
scale_out: {topology: FABRIC, nics_per_node: 4, bandwidth: 25 GB/s, latency: 10 us}
pcie: {bandwidth: 30 GB/s}
"""


def two(old="", new="", fabric="switch"):
    text = FILE.replace("FABRIC", fabric)
    assert old in text
    return parse_cluster(text.replace(old, new, 1), source="two.yaml")


def speeds(network, here, there):
    return network.graph().edges[here, there]["bandwidth"]


def test_a_kind_is_a_cluster_of_its_own_nodes():
    kinds = kinds_of(two())
    assert {name: (one.nodes, one.ranks_per_node) for name, one in kinds.items()} == {
        "plain": (2, 4),
        "wide": (3, 8),
    }
    assert kinds["plain"].scale_out == two().scale_out
    assert kinds["wide"].scale_out.bandwidth == 10e9
    assert kinds["wide"].scale_out.latency == two().scale_out.latency
    assert two().capacity == 2 * 4 + 3 * 8


def test_ranks_fill_kind_after_kind():
    placement = place(two(), 20)
    assert [placement.seat(rank) for rank in (0, 7, 8, 15, 16, 19)] == [
        (0, 0),
        (1, 3),
        (2, 0),
        (2, 7),
        (3, 0),
        (3, 3),
    ]
    assert placement.nodes == 4
    domains = placement.domains(two())
    assert domains == {
        0: [0, 1, 2, 3],
        1: [4, 5, 6, 7],
        2: [8, 9, 10, 11],
        3: [12, 13, 14, 15],
        4: [16, 17, 18, 19],
    }


def test_domains_are_numbered_through_kinds_with_several_on_a_node():
    text = FILE.replace("FABRIC", "switch")
    plain = "  plain: {count: 2}\n"
    begin = text.index("scale_up: {topology: switch, size: 4, bandwidth: 100")
    swapped = text[:begin].replace(plain, "") + plain + text[begin:]
    cluster = parse_cluster(swapped, source="two.yaml")
    placement = place(cluster, 32)
    domains = [placement.domain(cluster, rank) for rank in range(32)]
    assert domains == [rank // 4 for rank in range(32)]
    assert placement.seat(24) == (3, 0)
    assert "scale_up:6" in build(cluster, 32).nodes


def test_ranks_are_spread_evenly_over_nodes_that_differ():
    placement = place(two(), 10, 5)
    assert [placement.seat(rank) for rank in range(10)] == [
        (node, slot) for node in range(5) for slot in range(2)
    ]
    assert [part.placement.ranks for part in placement.parts] == [4, 6]
    with pytest.raises(ClusterError, match="5 per node, but a node of kind plain has 4"):
        place(two(), 25, 5)
    with pytest.raises(ClusterError, match=r"it has 32 .2 nodes of 4 and 3 nodes of 8"):
        place(two(), 33)


def test_every_kind_has_its_own_links():
    network = build(two(), 32)
    assert speeds(network, 0, "scale_up:0") == 100e9
    assert speeds(network, 8, "scale_up:2") == 60e9
    assert speeds(network, 3, "nic:0.3:out") == 30e9
    assert speeds(network, 8, "nic:2.0:out") == speeds(network, 11, "nic:2.0:out") == 20e9
    assert speeds(network, "nic:1.3:out", "fabric") == 25e9
    assert speeds(network, "nic:4.1:out", "fabric") == 10e9
    assert speeds(network, 8, "host:2") == 20e9
    assert "host:0" not in network.nodes  # a node that is one domain needs none
    assert network.kind == (0,) * 8 + (1,) * 24


def test_kinds_that_say_nothing_are_the_cluster_without_kinds():
    kinds = FILE[
        FILE.index("node_kinds") : FILE.index(
            "scale_up: {topology: switch, size: 4, bandwidth: 100"
        )
    ]
    alike = two(kinds, "")
    same = two(kinds, "node_kinds: {one: {count: 2}, other: {count: 3}}\n")
    for ranks in (3, 8, 20):
        one, other = build(alike, ranks), build(same, ranks)
        assert sorted(map(str, one.nodes)) == sorted(map(str, other.nodes))
        assert dict(one.graph().edges) == dict(other.graph().edges)


def test_a_resource_is_that_of_all_kinds_or_of_one():
    cluster = two()
    values = resource_values(cluster)
    assert values["scale_up.bandwidth"] == values["scale_up@plain.bandwidth"] == 100e9
    assert values["scale_up@wide.bandwidth"] == 60e9
    both = build(changed(cluster, "scale_up.bandwidth", 2), 32)
    before = build(cluster, 32)
    mine = before.following("scale_up.bandwidth")
    assert np.array_equal(both.bandwidth, np.where(mine, 2, 1) * before.bandwidth)
    one = build(changed(cluster, "scale_up@wide.bandwidth", 2), 32)
    assert speeds(one, 0, "scale_up:0") == 100e9
    assert speeds(one, 8, "scale_up:2") == 120e9


@pytest.mark.parametrize("resource", ["scale_out.latency", "scale_out.bandwidth", "pcie.bandwidth"])
def test_all_links_of_a_resource_change_together(resource):
    before, after = build(two(), 32), build(changed(two(), resource, 0.5), 32)
    mine = before.following(resource)
    value = "latency" if resource.endswith("latency") else "bandwidth"
    factor = np.where(mine, 0.5, 1.0)
    assert np.array_equal(getattr(after, value), factor * getattr(before, value))


def test_counts_change_of_all_kinds():
    cluster = changed(two(), "scale_out.nics_per_node", 2)
    kinds = kinds_of(cluster)
    assert [one.scale_out.nics_per_node for one in kinds.values()] == [8, 4]
    domains = changed(two(), "scale_up@wide.size", 2)
    assert [one.scale_up.size for one in kinds_of(domains).values()] == [4, 8]


def test_a_kind_like_another_cluster_is_its_nodes_and_nics():
    text = FILE.replace("FABRIC", "switch")
    begin, end = (
        text.index("  wide"),
        text.index("scale_up: {topology: switch, size: 4, bandwidth: 100"),
    )
    like = "  dgx: {count: 3, like: dgx-a100, scale_out: {nics_per_node: 4}}\n"
    cluster = parse_cluster(text[:begin] + like + text[end:], source="like.yaml")
    dgx, own = load_cluster("dgx-a100"), kinds_of(cluster)["dgx"]
    assert (own.accelerator, own.scale_up, own.pcie) == (dgx.accelerator, dgx.scale_up, dgx.pcie)
    assert (own.scale_out.nics_per_node, own.scale_out.bandwidth) == (4, dgx.scale_out.bandwidth)
    assert cluster.sources["node_kinds.dgx.scale_up.bandwidth"].startswith("dgx-a100: ")
    assert "node_kinds.dgx.scale_out.nics_per_node" not in cluster.sources
    assert parse_cluster(cluster_text(cluster), source="text") == cluster
    assert changed(cluster, "scale_up.bandwidth", 2).scale_up.bandwidth == 200e9


def test_a_cluster_with_kinds_reads_back_as_the_same():
    for cluster in (two(), two("pcie: {bandwidth: 20 GB/s}", "pcie: null")):
        assert parse_cluster(cluster_text(cluster), source="text") == cluster


REFUSED = [
    ("nodes: 5", "nodes: 6", "nodes 6 is not the sum of node_kinds, which is 5"),
    ("count: 2", "count: 0", "node_kinds.plain.count: 0"),
    ("count: 2", "cont: 2", "node_kinds.plain.cont: no such field; did you mean count?"),
    ("{count: 2}", "{count: 2, like: dgx-a10}", "dgx-a10: no such cluster; did you mean dgx-a100"),
    ("{count: 2}", "{count: 2, like: 3}", "node_kinds.plain.like: 3: name a cluster"),
    ("{count: 2}", "{count: 2, scale_up: null}", "node_kinds.plain.scale_up: cannot be null"),
    ("{count: 2}", "{count: 2, ranks_per_node: 6}", "node_kinds.plain: scale_up.size 4 is neither"),
    ("nics_per_node: 2, band", "nics: 2, band", "node_kinds.wide.scale_out.nics: no such field"),
    ("  plain:", "  pla@in:", "'pla@in' is not a name"),
    ("{count: 2}", "7", "node_kinds.plain: 7: write a table of fields"),
    (
        "{count: 2}",
        "{count: 2, accelerator: {name: a, generation: cdna3}}\n  other: {count: 0}",
        "node_kinds.other.count: 0",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_a_kind_that_cannot_be_is_refused_in_one_line(old, new, message):
    with pytest.raises(ClusterError) as error:
        two(old, new)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_kinds_fit_the_ports_and_the_library():
    rail = "rail, nodes_per_pod: 4, spines: 2"
    with pytest.raises(ClusterError, match="8 NICs per node, but the rail has ports for only 4"):
        two("nics_per_node: 2", "nics_per_node: 8", fabric=rail)
    kinds = FILE.replace("FABRIC", "switch").replace(
        "{count: 2}", "{count: 2, accelerator: {name: a, generation: cdna3}}"
    )
    nccl = (
        kinds.replace("name: chip,", "name: chip, generation: hopper,") + "library: {name: nccl}\n"
    )
    with pytest.raises(ClusterError, match="AMD and NVIDIA have no nccl in common"):
        parse_cluster(nccl, source="two.yaml")


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ("scale_up@wid.bandwidth", "no nodes of kind 'wid'; did you mean wide? it has plain, wide"),
        ("scale_up@wide.size", "neither a multiple nor a divisor"),
        ("memory.bandwidth", "has no memory"),
    ],
)
def test_what_no_kind_has_cannot_be_changed(resource, message):
    with pytest.raises(WhatIfError) as error:
        changed(two(), resource, 1.5 if resource.endswith("size") else 2.0)
    assert message in str(error.value)
    with pytest.raises(WhatIfError, match="nodes of one kind only"):
        changed(load_cluster("dgx-a100"), "scale_up@wide.bandwidth", 2.0)
