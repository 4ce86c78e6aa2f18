"""Figures of topologies.

Nodes are placed by the layout of their family if it has one, else in levels.
"""

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from simulator.support.errors import TopologyError
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP, Node, Topology
from topologies.families.family import family_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Places = dict[Node, tuple[float, float]]
"""Position of each node in the figure."""


def figure(network: Topology) -> Figure:
    """Draw a topology as a matplotlib figure.

    Raises
    ------
    TopologyError
        If there are more than 1,024 ranks.
    """
    drawn = Figure(figsize=(8, 6), layout="constrained")
    draw_on(drawn.add_subplot(), network)
    return drawn


def draw_on(axes: "Axes", network: Topology) -> None:
    """Draw a topology, a line per cable: coloured by resource, thicker with more bandwidth."""
    if network.ranks > _MOST_RANKS:
        raise TopologyError(
            f"{network.name}: a figure shows at most {_MOST_RANKS} ranks, not {network.ranks}"
        )
    unnamed = [name for name in network.resources if name not in _COLOURS]
    colours = _COLOURS | {name: _EXTRAS[at % len(_EXTRAS)] for at, name in enumerate(unnamed)}
    # A figure without levels has axes of equal scale.
    graph, where, levels = merged(network), places(network), (family_of(network)[0] not in _LAYOUTS)
    most = max((b for b in network.bandwidth.tolist() if b < math.inf), default=1.0)
    for source, target, data in graph.edges(data=True):
        axes.add_patch(
            FancyArrowPatch(
                where[source],
                where[target],
                arrowstyle="-",
                connectionstyle=f"arc3,rad={_bend(where, source, target) * (2 if levels else 1)}",
                linewidth=0.6 + 1.4 * min(data["bandwidth"] / most, 1.0),
                color=colours[data["resource"]],
                zorder=1,
                shrinkA=0,
                shrinkB=0,
            )
        )
    _draw_nodes(axes, graph, where)
    if len(network.resources) > 1:
        handles = [
            Line2D([], [], color=colours[name], label=name, linewidth=2)
            for name in network.resources
        ]
        axes.legend(handles=handles, fontsize=8, loc="upper right", frameon=False)
    axes.set_title(f"{network.name}: {network.ranks} ranks, {len(network)} links", fontsize=10)
    axes.set_axis_off()
    axes.margins(0.08)
    if not levels:
        axes.set_aspect("equal")
    axes.autoscale_view()


_MOST_RANKS = 1024
"""With more ranks a figure is just black."""


_COLOURS = {SCALE_UP: "#2563a8", SCALE_OUT: "#d9722b", PCIE: "#7d8590"}
_EXTRAS = ("#3a8a4a", "#8a3a7a", "#b8a21e", "#2a9aa0", "#a0522d", "#555555")
"""Colours of resources that a user's graph names, in order, repeated if there are more."""


def _bend(where: Places, source: Node, target: Node) -> float:
    """Return the curvature of a line: 0, unless a straight one would cross nodes between."""
    begin, end = where[source], where[target]
    longest = math.dist(begin, end) * (1 + 1e-3)  # by a point on the line, or very near it
    nodes = [where[node] for node in where.keys() - {source, target}]
    if not any(math.dist(begin, node) + math.dist(node, end) < longest for node in nodes):
        return 0.0
    return 0.22 if (begin[0], -begin[1]) <= (end[0], -end[1]) else -0.22


def _draw_nodes(axes: "Axes", graph: "nx.Graph[Any]", where: Places) -> None:
    ranks = [node for node in graph if isinstance(node, int)]
    nics = [node for node in graph if str(node).startswith("nic:")]
    switches = [node for node in graph if isinstance(node, str) and node not in nics]
    small = len(ranks) > _MOST_LABELS
    _draw_markers(axes, where, nics, marker="D", size=16, face="#b9bec5")
    _draw_markers(axes, where, switches, marker="s", size=100 if small else 180, face="#ffffff")
    _draw_markers(axes, where, ranks, marker="o", size=14 if small else 130, face="#20303f")
    if not small:
        for rank in ranks:
            axes.annotate(str(rank), where[rank], color="white", fontsize=7, **_CENTRED)
    if len(switches) > _MOST_LABELS:
        return
    # The number is written into each switch, and each kind beside its first: leaf:3 is a 3.
    firsts: dict[str, str] = {}
    for name in sorted(switches, key=lambda name: where[name]):
        kind, _, number = name.partition(":")
        axes.annotate(number, where[name], fontsize=5.5, **_CENTRED)
        firsts.setdefault(kind, name)
    offset: dict[str, Any] = {"xytext": (-9, 4), "textcoords": "offset points", "ha": "right"}
    for kind, name in firsts.items():
        axes.annotate(kind, where[name], fontsize=8, **offset)


_MOST_LABELS = 36
"""Most ranks, and most switches, that are labelled."""


_CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}


def _draw_markers(
    axes: "Axes", where: Places, nodes: Sequence[Node], *, marker: str, size: float, face: str
) -> None:
    if not nodes:
        return
    x, y = zip(*(where[node] for node in nodes), strict=True)
    axes.scatter(x, y, s=size, marker=marker, c=face, edgecolors="#20303f", zorder=2, clip_on=False)


def merged(network: Topology) -> "nx.Graph[Any]":
    """Merge links to one edge per cable, and NICs to one node; edges keep their attributes."""
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(figure_node(node) for node in network.nodes)
    for index in range(len(network)):
        link = network.link(index)
        graph.add_edge(
            figure_node(link.source),
            figure_node(link.target),
            bandwidth=link.bandwidth,
            resource=link.resource,
        )
    return graph


def figure_node(node: Node) -> Node:
    """Return the figure's node of a graph's node: both sides of a NIC are one."""
    return re.sub(r":(out|in)$", "", node) if isinstance(node, str) else node


def places(network: Topology) -> Places:
    """Return positions: ranks of a grid on a grid, of a ring on a circle, others in levels."""
    family, numbers, _ = family_of(network)
    layout = _LAYOUTS.get(family)
    if layout is None or (family in _GRIDS and len(numbers) > 3):
        return _levels(network)
    return layout(network, numbers)


def _circle(network: Topology, numbers: Sequence[int]) -> Places:
    del numbers
    return {rank: _at_angle(rank / network.ranks, 1.0) for rank in range(network.ranks)}


def _grid_axes(network: Topology, lengths: Sequence[int]) -> Places:
    """Place rows and columns; a third dimension is an oblique axis to the right."""
    axes = [(0.0, -1.0), (1.0, 0.0)] if len(lengths) < 3 else [(0.42, 0.5), (0.0, -1.3), (1.3, 0.0)]
    if len(lengths) == 1:
        axes = [(1.0, 0.0)]
    where = np.array(np.unravel_index(np.arange(network.ranks), tuple(lengths))).T @ np.array(axes)
    return {rank: (float(x), float(y)) for rank, (x, y) in enumerate(where)}


def _cube(network: Topology, numbers: Sequence[int]) -> Places:
    """Give every bit its own direction; order 4 is a cube inside a cube."""
    directions = [(1.0, 0.0), (0.0, 1.0), (0.38, 0.28), (2.1, 0.72), (0.7, 2.4), (4.8, 1.1)]
    order = numbers[0]
    if order > len(directions):
        return _circle(network, numbers)
    chosen = np.array(directions[:order]).reshape(order, 2)
    bits = np.arange(network.ranks)[:, None] >> np.arange(order) & 1
    return {rank: (float(x), float(y)) for rank, (x, y) in enumerate(bits @ chosen)}


def _dragonfly_groups(network: Topology, numbers: Sequence[int]) -> Places:
    """Place groups on a circle, their routers on small circles, with the ranks outside."""
    groups, routers, per_router = numbers[:3]
    size = 0.75 * math.pi / max(groups, 4)
    circles = [(_at_angle(group / groups, 1.0), group / groups) for group in range(groups)]
    return _on_circles(
        circles, (routers, per_router), (0.5 * size, 0.95 * size), "router:{circle}.{number}"
    )


def _slim_fly_halves(network: Topology, numbers: Sequence[int]) -> Places:
    """Place a Slim Fly's halves above each other, the columns of each on small circles.

    Cables inside a half join routers of one column; all others join the two halves.
    """
    order, each = numbers
    circles = [
        ((left - (order - 1) / 2, 0.5 * order * (0.5 - half)), 0.0)
        for half in range(2)
        for left in range(order)
    ]
    return _on_circles(circles, (order, each), (0.25, 0.4), "router:0.{router}")


def _on_circles(
    circles: Sequence[tuple[tuple[float, float], float]],
    counts: tuple[int, int],
    radii: tuple[float, float],
    name: str,
) -> Places:
    """Place routers on small circles, each with its first turn, and their ranks outside.

    ``counts`` are routers of a circle and ranks of a router, ``radii`` those of both.
    """
    routers, each = counts
    positions: Places = {}
    for circle, (middle, begin) in enumerate(circles):
        for number in range(routers):
            router, turn = circle * routers + number, begin + (number + 0.5) / routers
            inner = _at_angle(turn, radii[0])
            at = (middle[0] + inner[0], middle[1] + inner[1])
            positions[name.format(circle=circle, number=number, router=router)] = at
            for slot in range(each):
                spread = (slot - (each - 1) / 2) / (2 * routers * max(each, 2))
                outer = _at_angle(turn + spread, radii[1])
                positions[router * each + slot] = (middle[0] + outer[0], middle[1] + outer[1])
    return positions


def _at_angle(turn: float, radius: float) -> tuple[float, float]:
    """Return a position at a number of turns, clockwise from the top."""
    angle = 2 * math.pi * turn
    return radius * math.sin(angle), radius * math.cos(angle)


def _levels(network: Topology) -> Places:
    """Place ranks in a row, scale-up switches below, all others above, by their distance.

    Within a level nodes are sorted by the positions of their neighbours below. A switch that no
    rank reaches is on top.
    """
    graph = merged(network)
    of_kind = {"scale_up": -1.0, "host": -2.0}
    level = {node: of_kind.get(str(node).partition(":")[0], 0.0) for node in graph}
    above = graph.subgraph([node for node in graph if level[node] >= 0])
    ranks = [rank for rank in range(network.ranks) if rank in graph]
    reached = nx.multi_source_dijkstra_path_length(above, set(ranks), weight=None)
    top = max(reached.values()) + 1
    level |= {node: reached.get(node, top) for node in above}
    positions: Places = {rank: (float(rank), 0.0) for rank in ranks}
    width = max(network.ranks - 1, 1)
    for height in sorted(set(level.values()) - {0}, key=abs):
        row = [node for node in graph if level[node] == height]
        below = {node: [positions[n][0] for n in graph[node] if n in positions] for node in row}
        centre = {node: fmean(at) if at else 0.0 for node, at in below.items()}
        row.sort(key=lambda node: centre[node])
        even = {node: (i + 0.5) / len(row) * (width + 1) - 0.5 for i, node in enumerate(row)}
        gaps = [centre[b] - centre[a] for a, b in pairwise(row)]
        readable = all(gap >= 0.5 * (width + 1) / len(row) for gap in gaps)
        rise = height * 0.32 * (width + 1) ** 0.75
        positions |= {node: (centre[node] if readable else even[node], rise) for node in row}
    return positions


_GRIDS = ("torus", "mesh", "twisted_torus")
_LAYOUTS: dict[str, Callable[[Topology, Sequence[int]], Places]] = {
    "ring": _circle,
    "line": lambda network, numbers: {rank: (float(rank), 0.0) for rank in range(network.ranks)},
    "switch": lambda network, numbers: {**_circle(network, numbers), "switch": (0.0, 0.0)},
    "fully_connected": _circle,
    **dict.fromkeys(_GRIDS, _grid_axes),
    "hypercube": _cube,
    "dragonfly": _dragonfly_groups,
    "slim_fly": _slim_fly_halves,
}
