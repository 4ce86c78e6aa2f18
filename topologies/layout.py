"""Where the nodes of a figure are: by the family where it has a shape, else in levels."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from simulator.topology import Node, Topology

Places = dict[Node, tuple[float, float]]


def merged(network: Topology) -> "nx.Graph[Any]":
    """One edge per cable, and one node per NIC; edges keep ``bandwidth`` and ``resource``."""
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(shown(node) for node in network.nodes)
    for index in range(len(network)):
        link = network.link(index)
        graph.add_edge(
            shown(link.source),
            shown(link.target),
            bandwidth=link.bandwidth,
            resource=link.resource,
        )
    return graph


def shown(node: Node) -> Node:
    """Return the node of the figure: both sides of a NIC are one."""
    return re.sub(r":(out|in)$", "", node) if isinstance(node, str) else node


def places(network: Topology) -> Places:
    """Positions; ranks of a grid on a grid, of a ring on a circle, all else in levels."""
    family, _, rest = network.name.partition("(")
    numbers = [int(digits) for digits in re.findall(r"\d+", rest.partition(")")[0])]
    layout = _LAYOUTS.get(family)
    if layout is None or (family in _GRIDS and len(numbers) > 3):
        return _levels(network, numbers)
    return layout(network, numbers)


def _circle(network: Topology, numbers: list[int]) -> Places:
    del numbers
    return {rank: _polar(rank / network.ranks, 1.0) for rank in range(network.ranks)}


def _row(network: Topology, numbers: list[int]) -> Places:
    del numbers
    return {rank: (float(rank), 0.0) for rank in range(network.ranks)}


def _star(network: Topology, numbers: list[int]) -> Places:
    return {**_circle(network, numbers), "switch": (0.0, 0.0)}


def _grid(network: Topology, lengths: list[int]) -> Places:
    """Rows and columns; a third dimension goes back to the right, as on an axis seen aslant."""
    axes = [(0.0, -1.0), (1.0, 0.0)] if len(lengths) < 3 else [(0.42, 0.5), (0.0, -1.3), (1.3, 0.0)]
    if len(lengths) == 1:
        axes = [(1.0, 0.0)]
    where = np.array(np.unravel_index(np.arange(network.ranks), lengths)).T @ np.array(axes)
    return {rank: (float(x), float(y)) for rank, (x, y) in enumerate(where)}


def _cube(network: Topology, numbers: list[int]) -> Places:
    """Every bit has a direction of its own; a cube inside a cube for order 4."""
    directions = [(1.0, 0.0), (0.0, 1.0), (0.38, 0.28), (2.1, 0.72), (0.7, 2.4), (4.8, 1.1)]
    order = numbers[0]
    if order > len(directions):
        return _circle(network, numbers)
    chosen = np.array(directions[:order]).reshape(order, 2)
    bits = np.arange(network.ranks)[:, None] >> np.arange(order) & 1
    return {rank: (float(x), float(y)) for rank, (x, y) in enumerate(bits @ chosen)}


def _groups(network: Topology, numbers: list[int]) -> Places:
    """Put the groups of a dragonfly on a circle, their routers on small ones, ranks outside."""
    groups, routers, per_router = numbers[:3]
    size = 0.75 * math.pi / max(groups, 4)
    found: Places = {}
    for group in range(groups):
        middle = _polar(group / groups, 1.0)
        for router in range(routers):
            turn = group / groups + (router + 0.5) / routers
            inner = _polar(turn, 0.5 * size)
            found[f"router:{group}.{router}"] = (middle[0] + inner[0], middle[1] + inner[1])
            for place in range(per_router):
                spread = (place - (per_router - 1) / 2) / (2 * routers * max(per_router, 2))
                outer = _polar(turn + spread, 0.95 * size)
                rank = (group * routers + router) * per_router + place
                found[rank] = (middle[0] + outer[0], middle[1] + outer[1])
    return found


def _levels(network: Topology, numbers: list[int]) -> Places:
    """Ranks in a row, switches of the scale-up fabric below, everything else above by distance.

    Within a level nodes are sorted by where their neighbours below are. A switch that no rank
    reaches is on top.
    """
    del numbers
    graph = merged(network)
    level: dict[Node, float] = {node: _level_below(node) for node in graph}
    above = graph.subgraph([node for node in graph if level[node] >= 0])
    ranks = [rank for rank in range(network.ranks) if rank in graph]
    reached = nx.multi_source_dijkstra_path_length(above, set(ranks), weight=None)
    top = max(reached.values()) + 1
    level |= {node: reached.get(node, top) for node in above}
    found: Places = {rank: (float(rank), 0.0) for rank in ranks}
    width = max(network.ranks - 1, 1)
    for height in sorted(set(level.values()) - {0}, key=abs):
        row = [node for node in graph if level[node] == height]
        centre = {node: _mean([found[n][0] for n in graph[node] if n in found]) for node in row}
        row.sort(key=lambda node: centre[node])
        even = {node: (i + 0.5) / len(row) * (width + 1) - 0.5 for i, node in enumerate(row)}
        gaps = [centre[b] - centre[a] for a, b in pairwise(row)]
        apart = all(gap >= 0.5 * (width + 1) / len(row) for gap in gaps)
        rise = height * 0.32 * (width + 1) ** 0.75
        found |= {node: (centre[node] if apart else even[node], rise) for node in row}
    return found


def _level_below(node: Node) -> int:
    kind = str(node).partition(":")[0]
    return {"scale_up": -1, "host": -2}.get(kind, 0)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _polar(turn: float, radius: float) -> tuple[float, float]:
    """Clockwise from the top."""
    angle = 2 * math.pi * turn
    return radius * math.sin(angle), radius * math.cos(angle)


def in_levels(network: Topology) -> bool:
    """Whether the figure has levels; every other one is drawn with equal axes."""
    return network.name.partition("(")[0] not in _LAYOUTS


_GRIDS = ("torus", "mesh", "twisted_torus")
_LAYOUTS: dict[str, Callable[[Topology, list[int]], Places]] = {
    "ring": _circle,
    "line": _row,
    "switch": _star,
    "fully_connected": _circle,
    **dict.fromkeys(_GRIDS, _grid),
    "hypercube": _cube,
    "dragonfly": _groups,
}
