"""What a family of topologies says of itself, and the one helper that every builder uses.

A module of this folder holds builders and, at its end, ``FAMILIES``: a :class:`Family` for each of
them by its name in a spec. :mod:`topologies.families.table` joins these into one table, which specs
(:mod:`topologies.spec`), closed forms (:mod:`topologies.properties`), the gallery
(:mod:`topologies.drawing`), cluster files (:mod:`topologies.cluster.schema`) and the tests read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from simulator.topology import SCALE_UP, Link, Node, Topology, topology


class Cable(TypedDict):
    """What every builder takes of its cables, as keywords.

    ``bandwidth`` (B/s, above 0) and ``latency`` (s, 0 or more) are those of one direction of a
    cable. ``resource`` is what its links are counted as: ``scale_up``, by default, ``scale_out``,
    ``pcie`` or a name of the user's. A builder raises ``TopologyError`` of any other.
    """

    bandwidth: float
    latency: float
    resource: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ParsedSpec:
    """What stands behind the family's name in a spec: numbers, and perhaps an option.

    ``bandwidth`` (B/s) and ``latency`` (s) are those of every cable.
    """

    numbers: tuple[int, ...]
    option: str
    bandwidth: float
    latency: float

    @property
    def cable(self) -> Cable:
        """What the builder gets for every cable."""
        return {"bandwidth": self.bandwidth, "latency": self.latency}

    @property
    def oversubscription(self) -> float:
        """The option as a ratio; 1 where none is given."""
        try:
            return float(self.option) if self.option else 1.0
        except ValueError:
            raise ValueError(f"oversubscription {self.option!r} is not a number") from None


class Counts(NamedTuple):
    """Closed forms of what can be counted; ``diameter`` is None where only a bound is known."""

    ranks: int
    nodes: int
    links: int
    diameter: int | None


class Domain(NamedTuple):
    """A scale-up domain as a job uses it.

    ``members`` are its ranks in order, ``switch`` the node that its switch would be, ``lengths``
    those of the whole grid (its size where the family has no dimensions). ``wrap_multiple`` and
    ``twisted`` are those of :class:`topologies.cluster.node.ScaleUp`.
    """

    members: Sequence[int]
    switch: Node
    lengths: tuple[int, ...]
    wrap_multiple: int | None
    twisted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUpRole:
    """How a family serves as the fabric inside a scale-up domain.

    ``links`` says, for the lengths of the domain, over how many links a rank's bandwidth is
    divided, and ``ends`` which cables the domain has. With ``dimensions`` a cluster file gives the
    lengths of a grid. A ``switched`` domain has a switch: a message passes two of its links, each
    with half of the latency, and the switch may be able to add.
    """

    links: Callable[[tuple[int, ...]], int]
    ends: Callable[[Domain], list[tuple[Node, Node]]]
    dimensions: bool = False
    switched: bool = False


Bisection = Callable[[Topology, tuple[int, ...]], float | None]
"""Closed form of the bisection bandwidth (B/s) by the numbers in the name; None if not known."""

Routing = Callable[[Topology, ParsedSpec], Topology]
"""Gives a topology another routing than the shortest path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All that a family says of itself.

    ``form`` and ``option`` are how its spec is written, ``example`` is a small one, ``numbers`` how
    many numbers it may have. ``routings`` are the ways to route it besides the shortest path, by
    their name behind ``@``, besides the policies of :mod:`simulator.topology` that every
    family has; ``group`` gives each node of a topology its group of routers (-1: none), and a
    family without it has no detours. One without a ``scale_up`` role cannot be the fabric inside a
    scale-up domain.
    """

    form: str
    option: str = ""
    example: str
    numbers: range
    build: Callable[[ParsedSpec], Topology]
    counts: Callable[[ParsedSpec], Counts]
    bisection: Bisection | None = None
    routings: Mapping[str, Routing] = field(default_factory=dict)
    group: Callable[[Topology], NDArray[np.int32]] | None = None
    scale_up: ScaleUpRole | None = None


def one_group(network: Topology) -> NDArray[np.int32]:
    """Put every node into one group: any of them may be the middle of a detour."""
    return np.zeros(len(network.nodes), dtype=np.int32)


def by_numbers(count: Callable[..., Counts]) -> Callable[[ParsedSpec], Counts]:
    """Count by the numbers of a spec alone."""
    return lambda spec: count(*spec.numbers)


def joined(
    name: str, ranks: int, ends: Iterable[tuple[Node, Node]], **cable: Unpack[Cable]
) -> Topology:
    """Join ranks and switches by cables that are all alike."""
    return topology(name, ranks, cables(ends, **cable))


def cables(
    ends: Iterable[tuple[Node, Node]], *, bandwidth: float, latency: float, resource: str = SCALE_UP
) -> Iterator[Link]:
    """Both directions of every cable: :class:`Cable`.

    Examples
    --------
    >>> [(link.source, link.target) for link in cables([(0, 1)], bandwidth=1.0, latency=0.0)]
    [(0, 1), (1, 0)]
    """
    for source, target in ends:
        yield Link(source, target, bandwidth, latency, resource)
        yield Link(target, source, bandwidth, latency, resource)


def cables_cut(count: Callable[[tuple[int, ...]], float | None]) -> Bisection:
    """Make the closed form of a family whose cables are all alike: so many cross the least cut."""

    def bisection(network: Topology, numbers: tuple[int, ...]) -> float | None:
        crossing, each = count(numbers), float(network.bandwidth[0])
        if crossing is None or (network.bandwidth != each).any():
            return None
        return crossing * each

    return bisection


_NAME = re.compile(r"(\w+)\(([^()]*)\)(.*)")


def family_of(network: Topology) -> tuple[str, tuple[int, ...], str]:
    """Read the family, its numbers and what was changed since off the name of a topology.

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
