"""A raw topology from a few words (``torus:4x4``, ``leaf_spine:4x2x8:2``), and its figures."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from simulator.errors import TopologyError
from simulator.names import nearest, same_name
from simulator.topology import Topology
from topologies.families.clos import LeafSpineShape, RailShape, fat_tree, leaf_spine, rail
from topologies.families.dragonfly import DragonflyShape, dragonfly
from topologies.families.from_file import custom
from topologies.families.grid import hypercube, mesh, torus, twisted_torus
from topologies.families.ring_and_switch import fully_connected, line, ring, switch
from topologies.families.routed import by_valiant, dimension_ordered, minimally
from topologies.properties import MOST_RANKS, bisection_bandwidth, closed_form, diameter

_MOST_LINKS = 10_000_000
"""A spec with a digit too many should be an error, not a machine without memory."""


@dataclass(frozen=True, slots=True)
class _Words:
    """What stands after the family: numbers joined by ``x``, and perhaps an option."""

    numbers: tuple[int, ...]
    option: str
    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class _Family:
    """How a spec is written, how many numbers it has, which option, and what builds it."""

    form: str
    numbers: range
    build: Callable[[_Words], Topology]
    option: str = ""


def parse_topology(
    spec: str, *, bandwidth: float | None = None, latency: float | None = None
) -> Topology:
    """Build the topology that a spec names, every cable with this bandwidth and latency.

    ``FAMILY:NUMBERS[:OPTION][@ROUTING]`` or the path of a graph
    (:mod:`topologies.families.from_file`), whose edges may then say both themselves.
    ``leaf_spine:4x2x8:2`` is oversubscribed twofold, ``mesh:4x4:yn`` closes the first dimension.
    ``dragonfly:GROUPSxROUTERSxRANKS`` has as few global links per router as join all groups, unless
    a fourth number says how many. A torus or mesh may be routed ``@dimension_order``, a dragonfly
    ``@minimal`` or ``@valiant``; else messages take the shortest path.

    Raises
    ------
    TopologyError
        If the family is unknown (the message lists all), the numbers do not fit it, or the graph
        cannot be read.

    Examples
    --------
    >>> parse_topology("torus:4x4", bandwidth=50e9, latency=500e-9).name
    'torus(4x4)'
    >>> parse_topology("dragonfly:9x4x2", bandwidth=25e9, latency=1e-6).ranks
    72
    """
    if Path(spec).suffix in (".graphml", ".json"):
        return custom(spec, bandwidth=bandwidth, latency=latency)
    spec, _, routing = spec.partition("@")
    name, _, rest = spec.partition(":")
    name = same_name(name, FAMILIES) or name
    family = FAMILIES.get(name)
    if family is None:
        near = nearest(name, FAMILIES)
        hint = f"did you mean {' or '.join(FAMILIES[one].form for one in near)}? " if near else ""
        raise TopologyError(f"{spec!r} is not a topology; {hint}accepted: {accepted()}")
    digits, _, option = rest.partition(":")
    parts = digits.split("x")
    if not all(part.isascii() and part.isdigit() for part in parts) or (
        len(parts) not in family.numbers or (option and not family.option)
    ):
        raise TopologyError(f"{spec!r}: write {family.form}{family.option}")
    if bandwidth is None or latency is None:
        raise TopologyError(f"{spec!r} needs a bandwidth and a latency for its cables")
    try:
        words = _Words(tuple(int(part) for part in parts), option, bandwidth, latency)
        _refuse_huge(name, words.numbers)
        return _routed(family.build(words), name, words, routing)
    except ValueError as error:
        raise TopologyError(f"{spec!r}: write {family.form}{family.option}: {error}") from error


def accepted() -> str:
    """Every way to write a spec, in one line."""
    forms = ", ".join(family.form + family.option for family in FAMILIES.values())
    return f"{forms}, or the path of a graph (.graphml, .json)"


def _refuse_huge(name: str, numbers: tuple[int, ...]) -> None:
    """Raise if there would be far more links than anybody simulates."""
    links = 1
    for number in numbers:
        links *= max(number, 1)
    if name == "fully_connected":
        links **= 2
    elif name == "hypercube":
        links = 2 ** min(numbers[0], 64)
    elif name == "fat_tree":
        links **= 3
    if links > _MOST_LINKS:
        raise ValueError("that is more than ten million links")


class _Cable(TypedDict):
    bandwidth: float
    latency: float


def _cable(words: _Words) -> _Cable:
    return {"bandwidth": words.bandwidth, "latency": words.latency}


def _ratio(words: _Words) -> float:
    try:
        return float(words.option) if words.option else 1.0
    except ValueError:
        raise ValueError(f"oversubscription {words.option!r} is not a number") from None


def _mesh(words: _Words) -> Topology:
    if set(words.option) - {"y", "n"}:
        raise ValueError(f"wrap-around {words.option!r} is not y or n per dimension")
    wrap = [letter == "y" for letter in words.option] if words.option else None
    return mesh(words.numbers, wrap=wrap, **_cable(words))


def _dragonfly(words: _Words) -> Topology:
    return dragonfly(_dragonfly_shape(words), **_cable(words))


def _dragonfly_shape(words: _Words) -> DragonflyShape:
    groups, routers, ranks, *given = words.numbers
    fewest = -(-(groups - 1) // routers) if routers else 0
    return DragonflyShape(
        groups=groups,
        routers=routers,
        ranks_per_router=ranks,
        global_links=given[0] if given else fewest,
    )


def _routed(network: Topology, name: str, words: _Words, routing: str) -> Topology:
    """Give the topology the routing that stands behind the ``@``."""
    if not routing:
        return network
    choices = ROUTINGS.get(name, {})
    if routing not in choices:
        has = ", ".join(choices) or "none but the shortest path"
        raise TopologyError(f"{name} has no routing {routing!r}; it has {has}")
    return choices[routing](network, words)


def _grid_routed(network: Topology, words: _Words) -> Topology:
    return dimension_ordered(network, words.numbers)


def _mesh_routed(network: Topology, words: _Words) -> Topology:
    closes = [letter == "y" for letter in words.option] or [False] * len(words.numbers)
    return dimension_ordered(network, words.numbers, wrap=closes)


ROUTINGS: dict[str, dict[str, Callable[[Topology, _Words], Topology]]] = {
    "torus": {"dimension_order": _grid_routed},
    "mesh": {"dimension_order": _mesh_routed},
    "dragonfly": {
        "minimal": lambda network, words: minimally(network, _dragonfly_shape(words)),
        "valiant": lambda network, words: by_valiant(network, _dragonfly_shape(words)),
    },
}
"""Ways to route a family besides the shortest path, by their name in a spec."""


def _leaf_spine(words: _Words) -> Topology:
    leaves, spines, ranks = words.numbers
    shape = LeafSpineShape(leaves=leaves, spines=spines, ranks_per_leaf=ranks)
    return leaf_spine(shape, oversubscription=_ratio(words), **_cable(words))


def _rail(words: _Words) -> Topology:
    nodes, rails, spines = words.numbers
    shape = RailShape(nodes=nodes, rails=rails, spines=spines)
    return rail(shape, oversubscription=_ratio(words), **_cable(words))


_ONE, _THREE, _MANY = range(1, 2), range(3, 4), range(1, 9)
_RATIO = "[:OVERSUBSCRIPTION]"

FAMILIES: dict[str, _Family] = {
    "ring": _Family("ring:8", _ONE, lambda w: ring(w.numbers[0], **_cable(w))),
    "line": _Family("line:8", _ONE, lambda w: line(w.numbers[0], **_cable(w))),
    "switch": _Family("switch:8", _ONE, lambda w: switch(w.numbers[0], **_cable(w))),
    "fully_connected": _Family(
        "fully_connected:8", _ONE, lambda w: fully_connected(w.numbers[0], **_cable(w))
    ),
    "torus": _Family("torus:4x4", _MANY, lambda w: torus(w.numbers, **_cable(w))),
    "twisted_torus": _Family(
        "twisted_torus:4x8", _MANY, lambda w: twisted_torus(w.numbers, **_cable(w))
    ),
    "mesh": _Family("mesh:4x4", _MANY, _mesh, "[:WRAP, as yn]"),
    "hypercube": _Family("hypercube:4", _ONE, lambda w: hypercube(w.numbers[0], **_cable(w))),
    "dragonfly": _Family("dragonfly:GROUPSxROUTERSxRANKS[xGLOBAL]", range(3, 5), _dragonfly),
    "leaf_spine": _Family("leaf_spine:LEAVESxSPINESxRANKS", _THREE, _leaf_spine, _RATIO),
    "rail": _Family("rail:NODESxRAILSxSPINES", _THREE, _rail, _RATIO),
    "fat_tree": _Family("fat_tree:4", _ONE, lambda w: fat_tree(w.numbers[0], **_cable(w))),
}
"""Families by their name in a spec."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and figures; ``bisection_from`` says how that was found, or why not."""

    name: str
    ranks: int
    nodes: int
    links: int
    diameter: int
    bisection_bandwidth: float | None
    bisection_from: str


def summary(network: Topology) -> Summary:
    """Count nodes, links and hops; the bisection bandwidth by closed form, else by trying cuts.

    Raises
    ------
    TopologyError
        If a rank does not reach another.

    Examples
    --------
    >>> summary(parse_topology("torus:4x4", bandwidth=50e9, latency=500e-9))
    Summary(name='torus(4x4)', ranks=16, nodes=16, links=64, diameter=4, bisection_bandwidth=400000000000.0, bisection_from='closed form')
    """  # noqa: E501
    bandwidth, how = closed_form(network), "closed form"
    if network.ranks < 2:
        bandwidth, how = None, "one rank cannot be cut in two"
    elif bandwidth is None and network.ranks <= MOST_RANKS:
        bandwidth, how = bisection_bandwidth(network), "every cut tried"
    elif bandwidth is None:
        how = f"no closed form is known, and more than {MOST_RANKS} ranks have too many cuts"
    return Summary(
        network.name,
        network.ranks,
        len(network.nodes),
        len(network),
        diameter(network),
        bandwidth,
        how,
    )
