"""Equivalent groups of ranks on a network, and on every other network of the same graph.

Two groups are equivalent if, member by member, they are on the same kinds of node and in the same
order of domains, have links of the same classes between them and to their neighbours, and if the
messages between the same members pass links of the same classes and share the same of them. A call
of one then loads its links as the same call of the other loads its own: it is planned and routed
once, and its loads are mapped to the other's links.

Links are of one class if their numbers are equal and belong to the same resources. On another
network of the same graph, whose links of one class again have equal numbers, the same groups are
equivalent, whatever the numbers: equivalence is determined once for all such networks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.link_load import Load
from simulator.costing.symmetry import Symmetry, symmetry, symmetry_of_ranks
from simulator.routing.paths import of_resource
from simulator.routing.routes import is_uneven, routes, share_routes
from simulator.support.arrays import Ints, Longs, by_appearance, equal, equal_in
from simulator.topology import Topology

_MOST_MEMBERS = 256
"""Most members of a group whose paths are all compared; few groups of a job are larger."""


class Place(NamedTuple):
    """Where a group is in the network: groups with one ``pattern`` are equivalent.

    Entries ``i`` of ``links`` of two such groups correspond. The links are those that messages of
    the group pass, in order of first use.
    """

    pattern: bytes
    links: Longs

    def holds(self, loads: Iterable[Load]) -> bool:
        """Whether all links are on the paths of the group."""
        return all(np.isin(load.link, self.links).all() for load in loads)

    def links_of(self, link: Ints, seat: "Place") -> Ints:
        """Map links on the paths of an equivalent group to those of this one."""
        order = np.argsort(seat.links)
        at = order[np.searchsorted(seat.links, link, sorter=order)]
        return np.asarray(self.links[at], dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class InComponents:
    """A group in components of a network that equal others."""

    pattern: bytes
    symmetry: Symmetry
    components: Longs

    def holds(self, loads: Iterable[Load]) -> bool:
        """Whether all links are of these components, or between hubs that they share."""
        return all(self.symmetry.confined(load.link, self.components) for load in loads)

    def links_of(self, link: Ints, seat: "InComponents") -> Ints:
        """Map links of an equivalent group to those of this one."""
        return self.symmetry.moved(link, seat.components, self.components)


Seat = InComponents | Place


@dataclass(eq=False)
class Likeness:
    """Equivalences on the networks of a graph, computed on first use.

    Parameters
    ----------
    network
        One of the networks.
    domains
        Domain of each position, which is all that the planner of calls knows of it besides the
        network, shape ``(ranks,)``. None if unknown: then :meth:`place` returns None.
    """

    network: Topology
    domains: NDArray[np.integer[Any]] | None = None
    _places: dict[tuple[int, ...], Place | None] = field(default_factory=dict)
    _seats: dict[tuple[int, ...], Seat | None] = field(default_factory=dict)
    _first: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def classes(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Class of each link, shape ``(links,)``, and the first link of each class."""
        graph = self.network
        owner = np.unique(graph.latency_resource, return_inverse=True)[1].ravel()
        columns = np.stack([graph.resource, graph.bandwidth, graph.latency, owner], axis=1)
        _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        return of.ravel(), first

    @property
    def has_answers(self) -> bool:
        """Whether anything has been computed, so that further questions are cheap."""
        return bool(self._places) or "symmetry" in self.__dict__

    @cached_property
    def symmetry(self) -> Symmetry | None:
        """Components that equal each other; None if there are none."""
        return symmetry(self.network)

    @cached_property
    def symmetry_of_ranks(self) -> Symmetry | None:
        """Ranks that equal each other, in one node or in several; None if there are none."""
        return symmetry_of_ranks(self.network)

    def serves(self, network: Topology, domains: NDArray[np.integer[Any]] | None) -> bool:
        """Whether groups that are equivalent here are so on another network."""
        graph = self.network
        if network is graph and domains is self.domains:
            return True
        if not (_same_graph(graph, network) and equal(domains, self.domains)):
            return False
        if is_uneven(graph) != is_uneven(network):
            return False  # then the path of a message depends on what else is sent
        of, first = self.classes
        return all(
            np.array_equal(numbers, numbers[first][of])
            for numbers in (network.bandwidth, network.latency)
        )

    def place(self, ranks: tuple[int, ...]) -> Place | None:
        """Return where a group is; None if paths do not determine that, or are too many to compare.

        This is so for groups of more than 256 members, and where the path of a message depends on
        what else is sent.
        """
        if ranks not in self._places:
            self._places[ranks] = self._find_place(np.array(ranks, dtype=np.int32))
        return self._places[ranks]

    def pattern(self, ranks: tuple[int, ...]) -> bytes | None:
        """Return the pattern of :meth:`place`, computed once for groups in equal components."""
        seat = self.seat(ranks)
        if isinstance(seat, InComponents):
            ranks = self._first.setdefault(seat.pattern, ranks)
        on_paths = self.place(ranks)
        return None if on_paths is None else on_paths.pattern

    def seats(self, ranks: tuple[int, ...]) -> Iterator[Seat]:
        """Yield where a group is: among equal nodes or on its paths, then among equal ranks."""
        if (seat := self.seat(ranks)) is not None:
            yield seat
        if self.domains is not None and (among := _among(self.symmetry_of_ranks, ranks)):
            together = np.unique(self.domains[list(ranks)], return_inverse=True)[1]
            yield replace(among, pattern=among.pattern + b"|" + together.tobytes())

    def seat(self, ranks: tuple[int, ...]) -> Seat | None:
        """Return where a group is; None if that does not determine the cost of its calls."""
        if ranks not in self._seats:
            self._seats[ranks] = _among(self.symmetry, ranks) or self.place(ranks)
        return self._seats[ranks]

    def _find_place(self, ranks: Ints) -> Place | None:
        graph = self.network
        if self.domains is None or len(ranks) > _MOST_MEMBERS or is_uneven(graph):
            return None
        member = np.arange(len(ranks))
        source, target = (grid.ravel() for grid in np.meshgrid(member, member))
        differ = source != target
        offset, link, share = routes(graph, ranks[source[differ]], ranks[target[differ]])
        if graph.routing.detours and of_resource(graph, graph.routing)[link].any():
            return None
        appears, first = by_appearance(link)
        of = self.classes[0]
        parts = [
            np.argsort(ranks),
            np.unique(self.domains[ranks], return_inverse=True)[1].ravel(),
            self._links_around(ranks),
            offset,
            appears,
            of[link],
            share.view(np.int64),
            np.array(graph.kind, dtype=np.int64)[ranks] if graph.kind else (),
        ]
        pattern = b"|".join(np.ascontiguousarray(part, dtype=np.int64).tobytes() for part in parts)
        return Place(pattern, link[first].astype(np.int64))

    def _links_around(self, ranks: Ints) -> Longs:
        """Links that leave each member of a group: for which other (-1: none), and their class."""
        graph, of = self.network, self.classes[0]
        order = np.argsort(ranks)
        at = np.full(len(graph.nodes), -1, dtype=np.int64)
        at[ranks[order]] = order
        source, target = at[graph.source], at[graph.target]
        rows = np.stack([source, target, of])[:, source >= 0]
        return rows[:, np.lexsort(rows[::-1])]


def _among(parts: Symmetry | None, ranks: tuple[int, ...]) -> InComponents | None:
    """Return where a group is in equal components; None if that does not determine its paths."""
    members = np.array(ranks)
    pattern = None if parts is None else parts.pattern(members)
    if parts is None or pattern is None:
        return None
    return InComponents(pattern, parts, parts.components(members))


_MOST_GRAPHS = 8
"""Most graphs whose equivalences are cached."""


@dataclass(slots=True, eq=False)
class Likenesses:
    """Cache of the equivalences on the graphs of several networks."""

    _cached: list[Likeness] = field(default_factory=list)

    def of(self, network: Topology, domains: NDArray[np.integer[Any]] | None) -> Likeness:
        """Return the equivalences on a network."""
        for likeness in self._cached:
            if likeness.serves(network, domains):
                share_routes(network, likeness.network)
                return likeness
        self._cached[:] = [*self._cached[1 - _MOST_GRAPHS :], Likeness(network, domains)]
        return self._cached[-1]


def _same_graph(first: Topology, second: Topology) -> bool:
    """Whether two networks differ only in the bandwidths and latencies of their links."""
    columns = ("source", "target", "resource", "latency_resource", "metric")
    doors, theirs = first.doors, second.doors
    return (
        equal_in(("ranks", "resources", "kind", "nodes", "route", *columns), first, second)
        and equal_in(_ROUTING, first.routing, second.routing)
        and [out.left.tobytes() for out in first.outages]
        == [out.left.tobytes() for out in second.outages]
        and (doors is theirs or (bool(doors and theirs) and equal_in(_DOORS, doors, theirs)))
    )


_ROUTING = ("policy", "resource", "seed", "flows", "group", "capacity", "slowed")
_DOORS = ("node", "nic", "out", "into", "by_target")
