"""The bisection bandwidth of a family by its closed form, for networks too large to try cuts on.

A topology's name carries its parameters, ``torus(4x8)``; the formulas are those of the docstrings,
where their sources are. A network that was changed afterwards has another name or unequal links,
and then there is no closed form.
"""

import math
import re
from collections.abc import Callable

import numpy as np

from simulator.topology import Topology

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
