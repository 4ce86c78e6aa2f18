"""A topology in a few words, and its figures."""

import json

import pytest

from helpers.faults import cut
from helpers.topologies import scaled
from simulator.support.errors import LimitError, TopologyError
from simulator.topology import HASHED, POLICIES, Topology
from topologies import (
    FAMILIES,
    bisection_bandwidth,
    build,
    closed_form,
    diameter,
    load_cluster,
    parse_topology,
    summary,
)

SPECS = {
    "ring:8": ("ring(8)", 8, 8, 16, 4, 2),
    "ring:2": ("ring(2)", 2, 2, 2, 1, 1),
    "line:8": ("line(8)", 8, 8, 14, 7, 1),
    "switch:7": ("switch(7)", 7, 8, 14, 2, 3),
    "fully_connected:7": ("fully_connected(7)", 7, 7, 42, 1, 12),
    "fully_connected:4": ("fully_connected(4)", 4, 4, 12, 1, 4),
    "torus:4x2": ("torus(4x2)", 8, 8, 24, 3, 4),
    "torus:2x2x2": ("torus(2x2x2)", 8, 8, 24, 3, 4),
    "mesh:4x2": ("mesh(4x2)", 8, 8, 20, 4, 2),
    "twisted_torus:2x4": ("twisted_torus(2x4)", 8, 8, 32, 2, 8),
    "hypercube:3": ("hypercube(3)", 8, 8, 24, 3, 4),
    "leaf_spine:2x2x4:2": ("leaf_spine(l=2, s=2, p=4)", 8, 12, 24, 4, 2),
    "rail:2x4x2": ("rail(n=2, r=4, s=2)", 8, 14, 32, 4, 4),
    "fat_tree:2": ("fat_tree(2)", 2, 7, 12, 6, 1),
    "hyperx:4x2x1": ("hyperx(4x2x1)", 8, 16, 48, 4, 4),
    "hyperx:2x2x2": ("hyperx(2x2x2)", 8, 12, 24, 4, 2),
    "hyperx:6x1": ("hyperx(6x1)", 6, 12, 42, 3, 3),
}


def made(spec: str) -> Topology:
    return parse_topology(spec, bandwidth=50e9, latency=500e-9)


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_names_its_topology_and_its_closed_form_is_the_least_of_all_cuts(spec):
    network = made(spec)
    name, ranks, nodes, links, hops, cables = SPECS[spec]
    figures = summary(network)
    assert (figures.name, figures.ranks, figures.nodes, figures.links) == (
        name,
        ranks,
        nodes,
        links,
    )
    assert figures.diameter == diameter(network) == hops
    assert figures.bisection_bandwidth == pytest.approx(cables * 50e9)
    assert figures.bisection_from == "closed form"
    assert bisection_bandwidth(network) == pytest.approx(cables * 50e9)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_can_be_written_as_its_form_says(name):
    family = FAMILIES[name]
    assert made(family.example).ranks > 1
    if family.form[-1].isdigit():
        assert made(family.form).ranks > 1
    written = [spec for spec in SPECS if spec.partition(":")[0] == name]
    assert written or family.bisection is None  # each closed form is held to all cuts above


def test_the_bandwidth_and_latency_are_those_of_every_cable():
    network = made("torus:4x4")
    assert set(network.bandwidth) == {50e9}
    assert set(network.latency) == {500e-9}


@pytest.mark.parametrize(
    ("spec", "h"), [("9x4x2", 2), ("9x4x2x2", 2), ("3x4x2", 1), ("3x4x2x2", 2)]
)
def test_a_dragonfly_has_as_few_global_links_as_join_its_groups_if_not_told(spec, h):
    network = made(f"dragonfly:{spec}")
    assert network.name.endswith(f"a=4, p=2, h={h})")
    assert diameter(network) <= 5


def test_a_mesh_may_close_some_dimensions():
    assert made("mesh:4x4:yn").name == "mesh(4x4, wrap=yn)"
    assert made("mesh:4x4:nn").name == "mesh(4x4)"


def test_oversubscription_is_an_option():
    plain, over = made("leaf_spine:4x2x8"), made("leaf_spine:4x2x8:2")
    assert closed_form(plain) == pytest.approx(2 * 8 * 50e9)
    assert closed_form(over) == pytest.approx(closed_form(plain) / 2)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("torus:15x15", "no closed form is known"),
        ("dragonfly:9x4x2", "no closed form is known"),
        ("mesh:4x4:yn", "no closed form is known"),
        ("leaf_spine:3x2x8", "no closed form is known"),
        ("ring:1", "one rank cannot be cut"),
    ],
)
def test_a_bisection_that_is_not_known_says_why(spec, reason):
    figures = summary(made(spec))
    assert figures.bisection_bandwidth is None
    assert reason in figures.bisection_from


@pytest.mark.parametrize(
    ("spec", "cables"), [("torus:3x3", 8), ("dragonfly:2x2x2", 2), ("mesh:3x4:yn", 3)]
)
def test_a_small_network_without_closed_form_has_every_cut_tried(spec, cables):
    figures = summary(made(spec))
    assert figures.bisection_from == "every cut tried"
    assert figures.bisection_bandwidth == pytest.approx(cables * 50e9)


def test_a_network_that_was_changed_has_no_closed_form_and_a_scaled_one_has():
    assert closed_form(cut(made("ring:8"), "0-1")) is None
    assert closed_form(scaled(made("ring:8"), "scale_up", bandwidth=2)) == pytest.approx(200e9)
    assert closed_form(build(load_cluster("dgx-a100"), 16)) is None
    assert summary(cut(made("ring:8"), "0-1")).bisection_bandwidth == pytest.approx(50e9)


def test_a_thousand_ranks_are_summed_up():
    figures = summary(made("torus:8x8x16"))
    assert (figures.ranks, figures.links, figures.diameter) == (1024, 6144, 16)
    assert figures.bisection_bandwidth == pytest.approx(2 * 64 * 50e9)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tours:4x4", "did you mean torus:4x4.*accepted: ring:8, line:8, .*or the path of a graph"),
        ("", "is not a topology; accepted"),
        ("torus", "write torus:4x4"),
        ("torus:", "write torus:4x4"),
        ("torus:4*4", "write torus:4x4"),
        ("torus:4x-4", "write torus:4x4"),
        ("torus:4x0", "positive dimensions"),
        ("torus:4x4:yn", "write torus:4x4$"),
        ("ring:8x8", "write ring:8"),
        ("ring:٣", "write ring:8"),
        ("ring:0", "needs a rank"),
        ("dragonfly:9x4", "write dragonfly:GROUPSxROUTERSxRANKS"),
        ("dragonfly:9x0x2", "must be at least 1"),
        ("dragonfly:9x4x2x1", "reach at most 5 groups"),
        ("leaf_spine:4x2x8:x", "oversubscription 'x' is not a number"),
        ("leaf_spine:4x2x8:0", "not positive"),
        ("leaf_spine:4x2x8:nan", "not positive"),
        ("rail:4x2x0", "does not reach rank"),
        ("mesh:4x4:z", "not y or n"),
        ("mesh:4x4:y", "1 entries for 2 dimensions"),
        ("fat_tree:3", "even number of ports"),
        ("hypercube:99", "limit of 1000000"),
        ("ring:99999999999999999999", "write ring:8"),
        ("torus:100x100x100", "topology torus:100x100x100: 6000000 links"),
        ("fully_connected:99999", "limit of 1000000"),
        ("nothing.json", "cannot be read"),
    ],
)
def test_a_spec_that_says_nothing_is_refused_with_what_is_accepted(spec, message):
    with pytest.raises((TopologyError, LimitError), match=message):
        summary(made(spec))


def test_cables_need_a_bandwidth_and_a_latency():
    with pytest.raises(TopologyError, match="needs a bandwidth and a latency"):
        parse_topology("ring:8", bandwidth=50e9)


def test_a_spec_may_name_a_routing():
    network = parse_topology("dragonfly:9x4x2@valiant", bandwidth=25e9, latency=1e-6)
    assert network.routing.policy == "valiant"
    assert network.routing.group.max() == 8
    assert parse_topology("mesh:4x4@dimension_order", bandwidth=25e9, latency=1e-6).route(0, 3) == [
        0,
        1,
        2,
        3,
    ]


def test_a_graph_of_a_file_may_be_routed_too(tmp_path):
    file = tmp_path / "g.json"
    ends = [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    links = [{"source": x, "target": y} for x, y in ends] + [
        {"source": y, "target": x} for x, y in ends
    ]
    nodes = [{"id": 0, "rank": 0}, {"id": 1, "rank": 1}, {"id": "a"}, {"id": "b"}]
    graph = {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "links": links}
    file.write_text(json.dumps(graph))
    network = parse_topology(f"{file}@spray", bandwidth=1e9, latency=0.0)
    assert network.routing.policy == "spray"
    with pytest.raises(TopologyError, match="valiant needs groups"):
        parse_topology(f"{file}@valiant", bandwidth=1e9, latency=0.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spec", ["torus:4x4", "dragonfly:5x4x2", "fully_connected:4"])
def test_networks_with_groups_of_routers_have_every_policy(spec, policy):
    network = parse_topology(f"{spec}@{policy}", bandwidth=25e9, latency=1e-6)
    assert (network.routing.policy, network.routing.seed) == (policy, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_is_of_a_policy_that_draws(policy):
    if policy in HASHED:
        assert parse_topology(f"torus:4x4@{policy}:3", bandwidth=1e9, latency=0.0).routing.seed == 3
        return
    with pytest.raises(
        TopologyError, match=f"only .* take a seed, for their hash; write {policy} without"
    ):
        parse_topology(f"torus:4x4@{policy}:3", bandwidth=1e9, latency=0.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fat_tree:4@valiant", "valiant needs groups of routers"),
        ("fat_tree:4@dmodk", "'dmodk' is not a routing policy; did you mean d_mod_k"),
        ("fat_tree:4@ecmp:two", "'ecmp:two': the seed after the colon is not a number"),
    ],
)
def test_a_routing_that_does_not_exist_is_refused(spec, message):
    with pytest.raises(TopologyError, match=message):
        parse_topology(spec, bandwidth=25e9, latency=1e-6)
