"""The description of a family of topologies, and a helper that every builder uses.

Each module of this folder has builders and, at its end, ``FAMILIES``: a :class:`Family` for each
builder by its name in a spec. :mod:`topologies.families.table` combines these into one table, which
specs (:mod:`topologies.spec`), closed forms (:mod:`topologies.properties`), the gallery
(:mod:`topologies.drawing`), cluster files (:mod:`topologies.cluster.schema`) and the tests read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.topology import SCALE_UP, Link, Node, Topology, topology


class Cable(TypedDict):
    """Keyword arguments of every builder that describe its cables.

    ``bandwidth`` (B/s, above 0) and ``latency`` (s, 0 or more) are those of one direction of a
    cable. ``resource`` is the resource of its links: ``scale_up``, by default, ``scale_out``,
    ``pcie`` or a name of the user's. For other values a builder raises ``TopologyError``.
    """

    bandwidth: float
    latency: float
    resource: NotRequired[str]


class ParsedSpec(Struct, frozen=True):
    """Numbers behind the family's name in a spec, and its option if any.

    ``bandwidth`` (B/s) and ``latency`` (s) are those of every cable.
    """

    numbers: tuple[int, ...]
    option: str
    bandwidth: float
    latency: float

    @property
    def cable(self) -> Cable:
        """Arguments of the builder for every cable."""
        return {"bandwidth": self.bandwidth, "latency": self.latency}

    @property
    def oversubscription(self) -> float:
        """The option as a ratio; 1 by default."""
        try:
            return float(self.option) if self.option else 1.0
        except ValueError:
            raise ValueError(f"oversubscription {self.option!r} is not a number") from None


class Counts(NamedTuple):
    """Closed forms of counts; ``diameter`` is None if only a bound is known."""

    ranks: int
    nodes: int
    links: int
    diameter: int | None


class Domain(NamedTuple):
    """A scale-up domain as a job uses it.

    ``members`` are its ranks in order, ``switch`` the node that its switch would be, ``lengths``
    those of the whole grid (its size if the family has no dimensions). ``wrap_multiple`` and
    ``twisted`` are those of :class:`topologies.cluster.node.ScaleUp`.
    """

    members: Sequence[int]
    switch: Node
    lengths: tuple[int, ...]
    wrap_multiple: int | None
    twisted: bool


class ScaleUpRole(Struct, frozen=True, kw_only=True):
    """How a family serves as the fabric inside a scale-up domain.

    ``links`` returns, for the lengths of the domain, the number of links that share a rank's
    bandwidth, ``ends`` the cables of the domain. With ``dimensions`` a cluster file gives the
    lengths of a grid. A ``switched`` domain has a switch: a message passes two of its links, each
    with half of the latency, and the switch may support reductions.
    """

    links: Callable[[tuple[int, ...]], int]
    ends: Callable[[Domain], list[tuple[Node, Node]]]
    dimensions: bool = False
    switched: bool = False


Bisection = Callable[[Topology, tuple[int, ...]], float | None]
"""Closed form of the bisection bandwidth (B/s) by the numbers in the name; None if unknown."""

Routing = Callable[[Topology, ParsedSpec], Topology]
"""Function that gives a topology another routing than the shortest path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Description of a family.

    ``form`` and ``option`` give the syntax of its spec, ``example`` a small one (if it is not the
    form), ``numbers`` how many numbers it may have. ``routings`` are routings by their name behind
    ``@``, besides the shortest path and the policies of :mod:`simulator.topology` that every family
    has. ``group`` returns the group of routers of each node of a topology (-1: none); a family
    without it has no detours. A family without a ``scale_up`` role cannot be the fabric inside a
    scale-up domain.
    """

    form: str
    option: str = ""
    example: str = ""
    numbers: range = range(1, 2)
    build: Callable[[ParsedSpec], Topology]
    counts: Callable[[ParsedSpec], Counts]
    bisection: Bisection | None = None
    routings: Mapping[str, Routing] = field(default_factory=dict)
    group: Callable[[Topology], NDArray[np.int32]] | None = None
    scale_up: ScaleUpRole | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "example", self.example or self.form)


def one_group(network: Topology) -> NDArray[np.int32]:
    """Return one group for all nodes: any of them may be the middle of a detour."""
    return np.zeros(len(network.nodes), dtype=np.int32)


def by_numbers(count: Callable[..., Counts]) -> Callable[[ParsedSpec], Counts]:
    """Return a function of a spec from one of its numbers."""
    return lambda spec: count(*spec.numbers)


def joined(
    name: str, ranks: int, ends: Iterable[tuple[Node, Node]], **cable: Unpack[Cable]
) -> Topology:
    """Build a topology from equal cables between ranks and switches."""
    return topology(name, ranks, cables(ends, **cable))


def cables(
    ends: Iterable[tuple[Node, Node]], *, bandwidth: float, latency: float, resource: str = SCALE_UP
) -> Iterator[Link]:
    """Yield both directions of every cable: :class:`Cable`.

    Examples
    --------
    >>> [(link.source, link.target) for link in cables([(0, 1)], bandwidth=1.0, latency=0.0)]
    [(0, 1), (1, 0)]
    """
    for source, target in ends:
        yield Link(source, target, bandwidth, latency, resource)
        yield Link(target, source, bandwidth, latency, resource)


def cables_cut(count: Callable[[tuple[int, ...]], float | None]) -> Bisection:
    """Return the closed form of equal cables, ``count`` of which cross the least cut."""

    def bisection(network: Topology, numbers: tuple[int, ...]) -> float | None:
        crossing, each = count(numbers), float(network.bandwidth[0])
        if crossing is None or (network.bandwidth != each).any():
            return None
        return crossing * each

    return bisection


_NAME = re.compile(r"(\w+)\(([^()]*)\)(.*)")


def family_of(network: Topology) -> tuple[str, tuple[int, ...], str]:
    """Parse family, numbers and later changes from the name of a topology.

    Examples
    --------
    >>> from topologies import Fault, LinkNamed, broken, torus
    >>> network = torus((4, 8), bandwidth=50e9, latency=1e-6)
    >>> family_of(broken(network, [Fault(LinkNamed("0-1"), None)]).network)
    ('torus', (4, 8), ', link 0-1 down')
    """
    match = _NAME.fullmatch(network.name)
    if match is None:
        return "", (), network.name
    family, numbers, change = match.groups()
    return family, tuple(int(digits) for digits in re.findall(r"\d{1,18}", numbers)), change
