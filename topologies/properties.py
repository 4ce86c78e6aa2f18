"""What a topology is worth, measured on the graph itself: the closed forms are held to these.

The bisection bandwidth of a family by its closed form, for networks too large to try cuts on.

A topology's name carries its parameters, ``torus(4x8)``; the formulas are those of the docstrings,
where their sources are. A network that was changed afterwards has another name or unequal links,
and then there is no closed form.
"""

import math
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.topology import Node, Topology

if TYPE_CHECKING:
    import networkx as nx


MOST_RANKS = 12
"""Balanced cuts of 12 ranks: 924, a second or two. Of 16: 12,870."""

_BLOCK = 1024
"""Ranks that walk at once: 128 bytes per link, whatever the size of the machine."""


def diameter(network: Topology) -> int:
    """Links on the longest shortest path between two ranks.

    Raises
    ------
    TopologyError
        If a rank cannot reach another.

    Examples
    --------
    >>> from topologies import ring
    >>> diameter(ring(8, bandwidth=50e9, latency=1e-6))
    4
    """
    blocks = range(0, network.ranks, _BLOCK)
    return max(_farthest(network, np.arange(begin, network.ranks)[:_BLOCK]) for begin in blocks)


def _farthest(network: Topology, ranks: NDArray[np.int64]) -> int:
    """Hops until every one of these ranks has reached all ranks, all of them walking at once.

    Bit ``i`` of a node's row says that rank ``ranks[i]`` reaches the node.
    """
    order = np.argsort(network.target, kind="stable")
    ends, first = np.unique(network.target[order], return_index=True)
    place = np.arange(len(ranks))
    reached = np.zeros((len(network.nodes), -(-len(ranks) // 64)), dtype=np.uint64)
    reached[ranks, place // 64] = np.uint64(1) << (place % 64).astype(np.uint64)
    full = np.bitwise_or.reduce(reached, axis=0)
    hops = 0
    while (reached[: network.ranks] != full).any():
        before = reached.copy()
        if len(order):
            came = before[network.source[order]]
            reached[ends] |= np.bitwise_or.reduceat(came, first, axis=0)
        hops += 1
        if (reached == before).all():
            missing = reached[: network.ranks] ^ full
            other, word = (int(index) for index in np.argwhere(missing)[0])
            lowest = (int(missing[other, word]) & -int(missing[other, word])).bit_length() - 1
            lost = ranks[64 * word + lowest]
            raise TopologyError(f"{network.name}: rank {lost} does not reach rank {other}")
    return hops


def bisection_bandwidth(network: Topology) -> float:
    """Least one-way bandwidth over all balanced cuts of the ranks, by trying them all.

    Nodes that are not ranks fall on the side where the cut is least (maximum flow from one half
    to the other). With an odd number of ranks the halves differ by one.

    Raises
    ------
    TopologyError
        If there are fewer than 2 ranks, or more than 12: then use the closed form.

    Examples
    --------
    >>> from topologies import switch
    >>> bisection_bandwidth(switch(8, bandwidth=50e9, latency=1e-6))
    200000000000.0
    """
    ranks = network.ranks
    if not 2 <= ranks <= MOST_RANKS:
        raise TopologyError(
            f"{network.name}: cuts are tried for 2 to {MOST_RANKS} ranks, not {ranks}"
        )
    graph = network.graph()
    halves = {ranks // 2, ranks - ranks // 2}
    cuts = (half for size in sorted(halves) for half in combinations(range(ranks), size))
    return min(_cut(graph, half, ranks) for half in cuts)


def _cut(graph: "nx.DiGraph[Node]", half: Sequence[int], ranks: int) -> float:
    """Least bandwidth from the ranks of ``half`` to the others; both ends tied with no limit."""
    import networkx as nx  # slow to load, and nothing else here needs it

    tied = graph.copy()
    tied.add_edges_from(("half", rank) for rank in half)
    tied.add_edges_from((rank, "rest") for rank in set(range(ranks)) - set(half))
    return float(nx.minimum_cut_value(tied, "half", "rest", capacity="bandwidth"))


_NAME = re.compile(r"(?P<family>\w+)\((?P<numbers>[^()]*)\)")


def closed_form(network: Topology) -> float | None:
    """Bisection bandwidth by the formula of the family, or None where it has none.

    Examples
    --------
    >>> from topologies import fat_tree, torus
    >>> closed_form(torus((16, 16), bandwidth=50e9, latency=1e-6))
    1600000000000.0
    >>> closed_form(torus((15, 15), bandwidth=50e9, latency=1e-6)) is None
    True
    """
    match = _NAME.fullmatch(network.name)
    if match is None or not len(network):
        return None
    numbers = [int(digits) for digits in re.findall(r"\d+", match["numbers"])]
    if match["family"] in _LEVELS:
        return _two_levels(network, *_LEVELS[match["family"]], numbers)
    cables = _CABLES.get(match["family"])
    bandwidth = float(network.bandwidth[0])
    if cables is None or "wrap" in match["numbers"] or (network.bandwidth != bandwidth).any():
        return None
    count = cables(numbers)
    return None if count is None else count * bandwidth


def _torus(lengths: list[int]) -> float | None:
    longest = max(lengths)
    if longest == 2:
        return math.prod(lengths) / 2
    return None if longest % 2 else 2 * math.prod(lengths) / longest


def _mesh(lengths: list[int]) -> float | None:
    longest = max(lengths)
    return None if longest % 2 else math.prod(lengths) / longest


_CABLES: dict[str, Callable[[list[int]], float | None]] = {
    "ring": lambda numbers: 2 if numbers[0] > 2 else 1,
    "line": lambda _: 1,
    "switch": lambda numbers: numbers[0] // 2,
    "fully_connected": lambda numbers: (numbers[0] // 2) * ((numbers[0] + 1) // 2),
    "torus": _torus,
    "mesh": _mesh,
    "twisted_torus": lambda numbers: 4 * min(numbers) if len(numbers) == 2 else None,
    "hypercube": lambda numbers: 2 ** numbers[0] / 2,
    "fat_tree": lambda numbers: numbers[0] ** 3 / 8,
}
"""Cables across the least cut, all of one bandwidth."""

_LEVELS = {"leaf_spine": ("leaf:", 0), "rail": ("rail:", 1)}
"""How the lower switches are called, and which of the numbers counts them."""


def _two_levels(network: Topology, prefix: str, place: int, numbers: list[int]) -> float | None:
    """Half of the lower switches on a side: all their cables up, or all their ranks."""
    lower = numbers[place]
    if lower % 2:
        return None
    below = np.array([str(node).startswith(prefix) for node in network.nodes])
    down = below[network.target] & (network.source < network.ranks)
    up = below[network.source] & (network.target >= network.ranks)
    widest = [network.bandwidth[side] for side in (down, up)]
    if any(len(set(side.tolist())) > 1 for side in widest):
        return None
    return min(float(side.sum()) for side in widest) / 2
