"""Figures are written, and put every node somewhere of its own."""

import cmath
import math
from itertools import combinations

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from benchmarks.topology_gallery import gallery
from helpers.faults import cut
from simulator.support.errors import TopologyError
from topologies import build, load_cluster, parse_topology
from topologies.drawing import draw_on, figure, merged, places

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


CIRCLE = {0: (0, 1), 1: (1, 0), 2: (0, -1), 3: (-1, 0)}
RISE = 0.32 * 4**0.75
"""How far levels of four ranks are apart."""


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ring:4", CIRCLE),
        ("switch:4", CIRCLE | {"switch": (0, 0)}),
        ("line:3", {rank: (rank, 0) for rank in range(3)}),
        ("dragonfly:2x2x2", {"router:0.0": (0.375 * math.pi / 4, 1)}),
        ("torus:3", {rank: (rank, 0) for rank in range(3)}),
        ("torus:2x3", {rank: (rank % 3, -(rank // 3)) for rank in range(6)}),
        ("slim_fly:5x1", {"router:0.0": (-2 + 0.25 * math.sin(0.2 * math.pi),
                                         1.25 + 0.25 * math.cos(0.2 * math.pi))}),
        ("leaf_spine:2x2x2", {
            **{rank: (rank, 0) for rank in range(4)},
            "leaf:0": (0.5, RISE), "leaf:1": (2.5, RISE),
            "spine:0": (0.5, 2 * RISE), "spine:1": (2.5, 2 * RISE),
        }),
    ],
)  # fmt: skip
def test_small_layouts_are_where_one_would_draw_them(spec, expected):
    where = places(made(spec))
    for node, point in expected.items():
        assert where[node] == pytest.approx(point, abs=1e-12), node


@pytest.mark.parametrize(
    ("spec", "dimensions"), [("mesh:2x3x3", (9, 3, 1)), ("hypercube:5", (1, 2, 4, 8, 16))]
)
def test_steps_along_a_dimension_are_parallel_and_equally_long(spec, dimensions):
    where = places(made(spec))
    steps = {stride: set() for stride in dimensions}
    for a, b in merged(made(spec)).edges:
        (x, y), (u, v) = where[a], where[b]
        steps[b - a].add((round(u - x, 9), round(v - y, 9)))
    assert [len(step) for step in steps.values()] == [1] * len(dimensions)
    assert len(set().union(*steps.values())) == len(dimensions)


def test_groups_of_a_dragonfly_are_one_drawing_turned_about_the_middle():
    groups, routers, each = 5, 4, 2
    where, size = places(made("dragonfly:5x4x2")), 0.75 * math.pi / groups
    for group in range(groups):
        turn = -2 * math.pi * group / groups
        middle = complex(0, 1) * cmath.exp(1j * turn)
        for router in range(routers):
            first = complex(*where[f"router:0.{router}"]) * cmath.exp(1j * turn)
            point = complex(*where[f"router:{group}.{router}"])
            assert point == pytest.approx(first)
            assert abs(point - middle) == pytest.approx(0.5 * size)
            ranks = [
                complex(*where[(group * routers + router) * each + slot]) for slot in range(each)
            ]
            assert [abs(rank - middle) for rank in ranks] == pytest.approx([0.95 * size] * each)
            apart = [abs(rank - point) for rank in ranks]
            assert apart[0] == pytest.approx(apart[1]), "on both sides of their router"


def test_cables_are_as_wide_as_they_carry_and_bend_round_what_is_between():
    drawn = Figure().add_subplot()
    draw_on(drawn, NETWORKS["dgx-a100"])
    cables = merged(NETWORKS["dgx-a100"]).edges.values()
    most = max(cable["bandwidth"] for cable in cables)
    assert [patch.get_linewidth() for patch in drawn.patches] == pytest.approx(
        [0.6 + 1.4 * cable["bandwidth"] / most for cable in cables]
    )
    legend = drawn.get_legend()
    names, lines = [text.get_text() for text in legend.get_texts()], legend.get_lines()
    colours = dict(zip(names, (line.get_color() for line in lines), strict=True))
    assert [to_hex(patch.get_edgecolor()) for patch in drawn.patches] == [
        colours[cable["resource"]] for cable in cables
    ]
    closed = Figure().add_subplot()
    draw_on(closed, made("torus:4"))
    bends = [patch.get_connectionstyle().rad for patch in closed.patches]
    assert [bend != 0 for bend in bends] == [
        abs(a - b) > 1 for a, b in merged(made("torus:4")).edges
    ]


def test_a_figure_of_one_rank_is_drawn(tmp_path):
    figure(NETWORKS["hypercube:0"]).savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 500


@pytest.mark.slow
def test_the_gallery_is_drawn_and_small(tmp_path):
    gallery().savefig(tmp_path / "gallery.png", dpi=66)
    assert 50_000 < (tmp_path / "gallery.png").stat().st_size < 400_000


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(TopologyError, match="at most 1024 ranks, not 2000"):
        figure(made("ring:2000"))
