"""Graphs and specs as fabrics of a cluster, and as clusters of their own."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Machine, plan
from experiments.provenance import identity
from experiments.questions.collective import collective
from experiments.scenario.timed_calls import one_call
from helpers.tries import tries
from simulator.engine.simulate import simulate
from simulator.support.errors import ClusterError, TopologyError, WhatIfError
from topologies import FAMILIES, build, changed, load_cluster, parse_cluster, with_topology
from topologies.cluster.bare import bare_network, unspecified
from topologies.cluster.catalog import cluster_text
from topologies.cluster.changed import resource_range, resource_values
from topologies.cluster.graphs import fabric_for
from topologies.cluster.placement import islands

FILE = """
name: mine
accelerator: {{name: chip}}
ranks_per_node: 4
nodes: {nodes}
scale_up: {up}
scale_out: {out}
"""
SWITCH = "{topology: switch, size: 4, bandwidth: 100 GB/s, latency: 2 us}"
NICS = "nics_per_node: 4, bandwidth: 25 GB/s, latency: 4 us"
FABRIC = f"{{topology: switch, {NICS}}}"


def edge(source, target, bandwidth="50 GB/s", latency="1 us", **more):
    return {"source": source, "target": target, "bandwidth": bandwidth, "latency": latency} | more


def written(path, ranks, edges):
    nodes = [{"id": name, "rank": rank} for rank, name in enumerate(ranks)]
    others = {end for one in edges for end in (one["source"], one["target"])} - set(ranks)
    nodes += [{"id": name} for name in sorted(others)]
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}), encoding="utf-8")
    return path


def three_tiers(path, *, names=("scale_up", "scale_out", "core")):
    """16 ranks: two nodes on a switch each, a NIC per rank to a leaf per node, two spines."""
    ranks = [f"gpu{rank}" for rank in range(16)]
    up, out, core = names
    edges = []
    for rank, name in enumerate(ranks):
        edges.append(edge(name, f"nvs{rank // 8}", "450 GB/s", "1 us", resource=up))
        edges.append(edge(name, f"leaf{rank // 8}", "50 GB/s", "2 us", resource=out))
    edges += [
        edge(f"leaf{leaf}", f"spine{spine}", "200 GB/s", "500 ns", resource=core)
        for leaf in range(2)
        for spine in range(2)
    ]
    return written(path, ranks, edges)


def made(*, up=SWITCH, out=FABRIC, nodes=4, source="mine.yaml"):
    return parse_cluster(FILE.format(up=up, out=out, nodes=nodes), source=str(source))


def time_of(cluster, kind="all_reduce", size=1 << 20, ranks=None):
    """Time of a call of all ranks, each in the same domain as its node's (s)."""
    ranks = ranks or cluster.capacity
    network, machine = build(cluster, ranks), Machine(islands(cluster, ranks))
    work = one_call(kind, ranks, size)
    return simulate(work, network, lambda call, graph: plan(call, graph, machine)).makespan


def test_a_spec_that_a_domain_knows_by_name_is_that_fabric():
    named = "{topology: torus, dimensions: 2x2, size: 4, bandwidth: 100 GB/s, latency: 2 us}"
    spec = "{topology: 'torus:2x2', bandwidth: 100 GB/s, latency: 2 us}"
    assert made(up=spec).scale_up == made(up=named).scale_up


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ("switch:4", "topology: switch"),
        ("torus:2x2", "topology: torus, dimensions: 2x2"),
        ("leaf_spine:2x3x2:2", "topology: leaf_spine, nodes_per_leaf: 2, spines: 3"),
        ("leaf_spine:2x3x8", "topology: leaf_spine, nodes_per_leaf: 2, spines: 3"),
        ("rail:4x4x2", "topology: rail, nodes_per_pod: 4, spines: 2"),
        ("fat_tree:4", "topology: fat_tree, ports: 4"),
        (
            "dragonfly:2x2x1",
            "topology: dragonfly, groups: 2, routers_per_group: 2, nodes_per_group: 2,"
            " global_links_per_router: 1",
        ),
    ],
)
def test_a_spec_that_a_fabric_knows_by_name_is_that_fabric(spec, fields):
    more = {"leaf_spine:2x3x2:2": ", oversubscription: 2.0"}.get(spec, "")
    by_name = made(out=f"{{{fields}{more}, {NICS}}}").scale_out
    by_spec = made(out=f"{{topology: '{spec}', {NICS}}}").scale_out
    told = by_spec.model_dump(), by_name.model_dump()
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_a_domain_drawn_as_the_star_it_is_answers_as_the_switch(tmp_path, kind):
    ranks = [f"g{rank}" for rank in range(4)]
    written(tmp_path / "g.json", ranks, [edge(one, "nvs", "100 GB/s") for one in ranks])
    drawn = made(up="{topology: {file: g.json}}", source=tmp_path / "c.yaml")
    assert drawn.scale_up.bandwidth == 100e9
    assert time_of(drawn, kind) == pytest.approx(time_of(made(), kind), rel=1e-12)


@pytest.mark.parametrize("ranks", ["nodes", "nics"])
def test_a_fabric_drawn_as_the_leaves_it_has_answers_as_by_name(tmp_path, ranks):
    """One spine, so that there is one path, whatever a hash would choose."""
    count, speed = (4, "100 GB/s") if ranks == "nodes" else (16, "25 GB/s")
    names = [f"place{one}" for one in range(count)]
    edges = [edge(one, f"l{2 * at // count}", speed, "0 s") for at, one in enumerate(names)]
    edges += [edge(f"l{leaf}", "spine", "200 GB/s", "300 ns") for leaf in range(2)]
    written(tmp_path / "g.json", names, edges)
    drawn = made(out=f"{{topology: {{file: g.json}}, {NICS}}}", source=tmp_path / "c.yaml")
    assert drawn.scale_out.graph.ranks == ranks
    fields = "topology: leaf_spine, nodes_per_leaf: 2, spines: 1, hop_latency: 300 ns"
    named = made(out=f"{{{fields}, {NICS}}}")
    for kind in ("all_reduce", "all_to_all"):
        assert time_of(drawn, kind) == pytest.approx(time_of(named, kind), rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        *("ring", "line:4", "switch", "fully_connected", "torus:4", "mesh:2x2"),
        *("mesh:4", "hypercube:2", "leaf_spine:2x2x2", "rail:2x2x1", "dragonfly:2x2x1"),
    ],
)
def test_every_family_may_be_a_domain(change):
    cluster = with_topology(made(nodes=1), change)
    assert cluster.scale_up.size == 4
    network = build(cluster, 4)
    out = network.source < network.ranks
    leaving = network.bandwidth[out & (network.resource == network.resources.index("scale_up"))]
    most = np.bincount(network.source[out & (network.resource == 0)], leaving).max()
    drawn = cluster.scale_up.topology == "graph"
    assert most == pytest.approx(100e9) if drawn else most <= 100e9 * (1 + 1e-12)
    assert time_of(cluster) > 0


@pytest.mark.parametrize(
    "change",
    [
        *("ring:4", "line:4", "switch", "fully_connected:4", "torus:2x2", "twisted_torus:2x4"),
        *("mesh:4", "hypercube:2", "leaf_spine:2x2x2", "rail:4x4x1", "fat_tree:4"),
        "dragonfly:2x2x1",
    ],
)
def test_every_family_may_be_a_fabric(change):
    assert {change.partition(":")[0] for change in (change,)} <= FAMILIES.keys()
    cluster = with_topology(made(), f"scale_out={change}", nodes=4)
    assert time_of(cluster) > 0


def test_a_fabric_with_room_for_the_job_will_do():
    big = made(nodes=64)
    assert with_topology(big, "scale_out=ring:8", nodes=4).nodes == 8
    with pytest.raises(ClusterError, match="room for 2 nodes, and the job needs 4"):
        with_topology(big, "scale_out=ring:2", nodes=4)
    assert fabric_for("rail:4x8x2", 8, 2)[1] == 4


@pytest.mark.parametrize(
    ("up", "out", "told"),
    [
        ("{topology: 'fat_tree:4', size: 4, bandwidth: 1 GB/s, latency: 1 us}", FABRIC, "16 ranks"),
        ("{topology: 'tours:2x2', bandwidth: 1 GB/s, latency: 1 us}", FABRIC, "mean torus:4x4?"),
        ("{topology: {file: gone.json}}", FABRIC, "gone.json: cannot be read"),
        ("{topology: {fil: g.json}}", FABRIC, "scale_up.graph.fil"),
        ("{topology: {}}", FABRIC, "give either file"),
        ("{topology: {file: a.json, spec: 'ring:4'}}", FABRIC, "give either file"),
        (SWITCH, f"{{topology: 'ring:3', {NICS}}}", "3 ranks, but the cluster has 4 nodes with 16"),
        (SWITCH, f"{{topology: 'rail:4x3x1', {NICS}}}", "3 rails, but a node has 4 NICs"),
        (SWITCH, f"{{topology: 'torus:1x2', {NICS}}}", "room for 2 nodes, not for 4"),
        (SWITCH, f"{{topology: 'leaf_spine:4x1x6', {NICS}, ranks: x}}", "scale_out.ranks"),
    ],
)
def test_what_does_not_fit_is_one_line(up, out, told):
    with pytest.raises((ClusterError, TopologyError)) as found:
        made(up=up, out=out)
    assert told in str(found.value)
    assert "mine.yaml" in str(found.value)
    assert "\n" not in str(found.value)


def test_a_graph_that_was_changed_since_is_refused(tmp_path):
    file = three_tiers(tmp_path / "g.json")
    cluster = load_cluster(str(file))
    again = parse_cluster(cluster_text(cluster), source="again.yaml")
    assert again == cluster
    file.write_text(file.read_text().replace("450 GB/s", "451 GB/s"))
    with pytest.raises(ClusterError, match="not the graph that the cluster was made with"):
        parse_cluster(cluster_text(cluster), source="again.yaml")


def test_a_graph_is_the_same_wherever_it_lies(tmp_path):
    (tmp_path / "there").mkdir()
    here, there = (three_tiers(tmp_path / one) for one in ("g.json", "there/g.json"))
    assert identity(load_cluster(here))["sha256"] == identity(load_cluster(there))["sha256"]
    other = three_tiers(tmp_path / "o.json", names=("a", "b", "c"))
    assert identity(load_cluster(other))["sha256"] != identity(load_cluster(here))["sha256"]


def test_a_cluster_file_may_be_json(tmp_path):
    text = {"name": "mine", "accelerator": {"name": "chip"}, "ranks_per_node": 2, "nodes": 1}
    text |= {
        "scale_up": {"topology": "switch", "size": 2, "bandwidth": "1 GB/s", "latency": "1 us"}
    }
    (tmp_path / "c.json").write_text(json.dumps(text))
    assert load_cluster(tmp_path / "c.json").scale_up.topology == "switch"


def test_what_a_bare_network_leaves_open_is_said(tmp_path):
    (said,) = unspecified(load_cluster(three_tiers(tmp_path / "g.json")))
    assert "accelerator" in said
    assert "communication library" in said
    assert "2 domains of 8" in said
    assert unspecified(made()) == ()
    (said,) = unspecified(bare_network("ring:8, 1 GB/s, 1 us"))
    assert "all 8 ranks are one scale-up domain" in said


def test_links_of_scale_up_make_domains(tmp_path):
    cluster = load_cluster(three_tiers(tmp_path / "g.json"))
    assert islands(cluster, 16).tolist() == [0] * 8 + [1] * 8
    own = load_cluster(three_tiers(tmp_path / "o.json", names=("nvlink", "nic", "core")))
    assert islands(own, 16).tolist() == [0] * 16


def test_every_resource_of_a_graph_is_a_value(tmp_path):
    cluster = load_cluster(three_tiers(tmp_path / "g.json", names=("nvlink", "nic", "core")))
    values = resource_values(cluster)
    assert values == {
        "nvlink.bandwidth": 450e9,
        "nvlink.latency": 1e-6,
        "nic.bandwidth": 50e9,
        "nic.latency": 2e-6,
        "core.bandwidth": 200e9,
        "core.latency": pytest.approx(5e-7),
    }
    assert resource_range(cluster)["core.bandwidth"] == (200e9, 200e9)


@tries(25)
@given(
    resource=st.sampled_from(["nvlink", "nic", "core"]),
    number=st.sampled_from(["bandwidth", "latency"]),
    factor=st.floats(0.1, 10.0),
)
def test_a_factor_changes_the_links_of_one_resource_only(
    tmp_path_factory, resource, number, factor
):
    folder = tmp_path_factory.getbasetemp() / "own"
    folder.mkdir(exist_ok=True)
    file = folder / "g.json"
    if not file.exists():
        three_tiers(file, names=("nvlink", "nic", "core"))
    before = build(load_cluster(file), 16)
    after = build(changed(load_cluster(file), f"{resource}.{number}", factor), 16)
    chosen = before.following(f"{resource}.{number}")
    expected = getattr(before, number) * np.where(chosen, factor, 1.0)
    assert np.allclose(getattr(after, number), expected, rtol=1e-12)
    other = "latency" if number == "bandwidth" else "bandwidth"
    assert np.array_equal(getattr(after, other), getattr(before, other))


def test_factors_add_up_and_are_kept_in_a_file(tmp_path):
    cluster = load_cluster(three_tiers(tmp_path / "g.json"))
    twice = changed(changed(cluster, "core.bandwidth", 2), "core.bandwidth", 3)
    assert twice.link_factors["core"].bandwidth == 6
    assert parse_cluster(cluster_text(twice), source="again.yaml") == twice
    assert resource_values(twice)["core.bandwidth"] == 1200e9


def test_resources_of_a_fabric_double_with_its_nics_or_by_themselves(tmp_path):
    names = [f"n{one}" for one in range(4)]
    edges = [edge(one, f"l{at // 2}", "100 GB/s", "0 s") for at, one in enumerate(names)]
    edges += [edge(f"l{leaf}", "s", "100 GB/s", "1 us", resource="core") for leaf in range(2)]
    written(tmp_path / "g.json", names, edges)
    cluster = made(out=f"{{topology: {{file: g.json}}, {NICS}}}", source=tmp_path / "c.yaml")
    assert resource_values(cluster)["core.bandwidth"] == 100e9
    before = build(cluster, 16)
    for resource in ("scale_out", "core"):
        after = build(changed(cluster, f"{resource}.bandwidth", 2), 16)
        factor = np.where(before.following(f"{resource}.bandwidth"), 2.0, 1.0)
        assert np.array_equal(after.bandwidth, factor * before.bandwidth)
    assert changed(cluster, "scale_out.nics_per_node", 2).scale_out.nics_per_node == 8


@pytest.mark.parametrize(
    ("resource", "told"),
    [
        ("scale_up.size", "one graph, so its domains cannot grow"),
        ("scale_out.nics_per_node", "without links of scale_out"),
        ("pcie.bandwidth", "without links of pcie"),
        ("cores.bandwidth", "mean core.bandwidth"),
    ],
)
def test_what_a_graph_cannot_be_asked_is_one_line(tmp_path, resource, told):
    cluster = load_cluster(three_tiers(tmp_path / "g.json", names=("nvlink", "nic", "core")))
    with pytest.raises(WhatIfError, match=told):
        changed(cluster, resource, 2)


def test_of_equally_many_hops_a_message_takes_the_faster_resource(tmp_path):
    """GPUs of a node are two hops apart over the switch and over the leaf."""
    plain = load_cluster(three_tiers(tmp_path / "g.json"))
    own = load_cluster(three_tiers(tmp_path / "o.json", names=("nvlink", "nic", "core")))
    slowed = changed(own, "nvlink.bandwidth", 0.01)
    for one in (plain, own, slowed):
        network = build(one, 16)
        work = one_call("all_reduce", 8, 1 << 20)
        machine = Machine(np.zeros(16, dtype=np.int32))
        run = simulate(work, network, lambda call, graph, m=machine: plan(call, graph, m))
        moved = {name for name, sent in run.resource_bytes().items() if sent}
        assert moved == {network.resources[0]}


def test_a_bare_spec_keeps_its_routing():
    network = build(bare_network("dragonfly:5x2x2@valiant, 25 GB/s, 1 us"), 20)
    assert network.routing.policy == "valiant"
    torus = build(bare_network("torus:4x4@dimension_order, 25 GB/s, 1 us"), 16)
    assert torus.route is not None


def test_a_policy_behind_a_fabric_s_spec_is_its_routing():
    spec = made(out=f"{{topology: 'fat_tree:4@ecmp:7', {NICS}}}").scale_out
    assert (spec.routing, spec.routing_seed, spec.topology) == ("ecmp", 7, "fat_tree")
    own = made(out=f"{{topology: 'hypercube:2@spray', {NICS}}}")
    assert build(own, 16).routing.policy == "spray"
    with pytest.raises(ClusterError, match="the routing is one of"):
        made(out=f"{{topology: 'mesh:2x2@dimension_order', {NICS}}}")
    with pytest.raises(ClusterError, match="a routing after @"):
        made(up="{topology: 'mesh:2x2@dimension_order', bandwidth: 1 GB/s, latency: 1 us}")


def test_a_job_may_use_a_part_of_a_graph(tmp_path):
    cluster = load_cluster(three_tiers(tmp_path / "g.json"))
    assert build(cluster, 4).ranks == 16
    with pytest.raises(ClusterError, match="32 ranks do not fit"):
        build(cluster, 32)
    with pytest.raises(ClusterError, match="remove --nodes"):
        build(cluster, 8, 2)


def test_a_ring_around_the_earth_has_its_latency_and_longer_is_a_wrong_unit():
    """An all-reduce of 8 B passes 14 cables of 80 ms."""
    report = collective("all_reduce", "ring:8, 10 Gbit/s, 80 ms", [8.0], algorithm="ring")
    assert report.points[0].time_s == pytest.approx(14 * 0.08, rel=1e-6)
    with pytest.raises(TopologyError, match=r"^ring:8: 3 s is not .* the unit right\?$"):
        bare_network("ring:8, 10 Gbit/s, 3 s")


@pytest.mark.parametrize(
    "text", ["ring:8, 50 GB/s", "ring:8, 50 GB/s, 1 us, 2 us", "ring:8, fast, 1 us", "gone.json"]
)
def test_a_bare_network_that_is_wrong_is_one_line(text):
    with pytest.raises((TopologyError, ClusterError, ValueError)) as found:
        load_cluster(text)
    assert "\n" not in str(found.value)
    assert text.partition(",")[0] in str(found.value)


def test_a_resource_is_one_word(tmp_path):
    file = written(tmp_path / "g.json", ["a", "b"], [edge("a", "b", resource="my.links")])
    with pytest.raises(TopologyError, match=r"edge a - b: resource 'my.links': write one word"):
        load_cluster(file)


def test_many_domains_are_drawn_by_one_graph(tmp_path):
    ranks = [f"g{rank}" for rank in range(2)]
    written(tmp_path / "g.json", ranks, [edge("g0", "g1", "100 GB/s")])
    up = "{topology: {file: g.json}}"
    pairs = made(up=up, source=tmp_path / "c.yaml")
    network = build(pairs, 16)
    assert pairs.scale_up.size == 2
    inside = network.resource == network.resources.index("scale_up")
    ends = zip(network.source[inside].tolist(), network.target[inside].tolist(), strict=True)
    assert {tuple(sorted(one)) for one in ends} == {(2 * at, 2 * at + 1) for at in range(8)}


def test_a_graph_of_ones_own_takes_a_routing_behind_its_name(tmp_path):
    """As ``topology g.json@spray`` does; a fabric between nodes has a field for it."""
    file = tmp_path / "g.json"
    ends = [("r0", "leaf0"), ("r1", "leaf1")]
    ends += [(f"leaf{leaf}", f"spine{spine}") for leaf in (0, 1) for spine in (0, 1)]
    nodes = [{"id": f"r{rank}", "rank": rank} for rank in (0, 1)]
    nodes += [{"id": f"{kind}{number}"} for kind in ("leaf", "spine") for number in (0, 1)]
    cable = {"bandwidth": "1 GB/s", "latency": "1 us"}
    edges = [{"source": one, "target": other} | cable for one, other in ends]
    file.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    cluster = load_cluster(f"{file}@spray")
    assert build(cluster, 2).routing.policy == "spray"
    assert build(load_cluster(str(file)), 2).routing.policy == "ecmp"
    with pytest.raises(TopologyError, match="'foo' is not a routing policy"):
        build(load_cluster(f"{file}@foo"), 2)
