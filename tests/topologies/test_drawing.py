"""Figures are written, and put every node somewhere of its own."""

import math
from itertools import combinations

import pytest

from benchmarks.topology_gallery import gallery
from helpers.faults import cut
from simulator.support.errors import TopologyError
from topologies import build, load_cluster, parse_topology
from topologies.drawing import figure, merged, places

SPECS = [
    "ring:8",
    "line:5",
    "switch:8",
    "fully_connected:8",
    "hypercube:0",
    "hypercube:4",
    "hypercube:7",
    "torus:8",
    "torus:4x4",
    "mesh:3x3x3",
    "mesh:2x2x2x2",
    "twisted_torus:4x8",
    "leaf_spine:4x2x4",
    "fat_tree:4",
    "rail:4x4x2",
    "dragonfly:5x4x2",
    "dragonfly:1x1x3x0",
    "slim_fly:5x2",
    "slim_fly:7x1",
]


def made(spec):
    return parse_topology(spec, bandwidth=50e9, latency=1e-6)


NETWORKS = {
    **{spec: made(spec) for spec in SPECS},
    "cut": cut(made("torus:4x4"), "0-1"),
    "lost switch": cut(made("leaf_spine:2x2x2"), "leaf0-spine1", "leaf1-spine1"),
    **{
        name: build(load_cluster(name), 16) for name in ("dgx-a100", "polaris", "tpu-v5e", "aws-p5")
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_node_has_a_place_of_its_own(name):
    graph, where = merged(NETWORKS[name]), places(NETWORKS[name])
    assert where.keys() == set(graph)
    assert all(math.isfinite(value) for point in where.values() for value in point)
    if graph.number_of_nodes() > 1:
        assert min(math.dist(a, b) for a, b in combinations(where.values(), 2)) > 0.02


def test_both_sides_of_a_nic_are_one_node_and_both_directions_one_line():
    graph = merged(NETWORKS["dgx-a100"])
    assert "nic:0.0" in graph
    assert not any(str(node).endswith((":out", ":in")) for node in graph)
    assert graph.number_of_edges() == 16 * 3


@pytest.mark.parametrize("name", ["dgx-a100", "hypercube:0", "cut", "dragonfly:5x4x2"])
def test_a_figure_is_drawn(tmp_path, name):
    figure(NETWORKS[name]).savefig(tmp_path / "figure.png", dpi=120)
    assert (tmp_path / "figure.png").stat().st_size > 2000


def test_the_gallery_is_drawn_and_small(tmp_path):
    gallery().savefig(tmp_path / "gallery.png", dpi=66)
    assert 50_000 < (tmp_path / "gallery.png").stat().st_size < 400_000


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(TopologyError, match="at most 1024 ranks, not 2000"):
        figure(made("ring:2000"))
