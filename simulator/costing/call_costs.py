"""Costs of calls on a topology: routed once for equal calls of equivalent groups.

Two groups are equivalent if, member by member, they are on the same kinds of node and in the same
order of domains, have links of the same classes between them and to their neighbours, and if the
messages between the same members pass links of the same classes and share the same of them. A call
of one then loads its links as the same call of the other loads its own: it is planned and routed
once, and its loads are mapped to the other's links.

Links are of one class if their numbers are equal and belong to the same resources. On another
network of the same graph, whose links of one class again have equal numbers, the same groups are
equivalent, whatever the numbers: equivalence is determined once for all such networks.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from simulator.calls import Call
from simulator.costing.link_load import Load, cost, plan_loads, unknown
from simulator.costing.symmetry import Symmetry, symmetry, symmetry_of_ranks
from simulator.routing.paths import of_resource
from simulator.routing.routes import is_uneven, routes, share_routes
from simulator.schedule import Plan, Plans
from simulator.shares import Shares
from simulator.support.arrays import Floats, Ints, Longs, by_appearance, equal, equal_in
from simulator.topology import Topology
from simulator.workload import Workload

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


class InComponents(Struct, frozen=True, eq=False):
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


class Likeness(Struct, eq=False, dict=True):
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
            yield structs.replace(among, pattern=among.pattern + b"|" + together.tobytes())

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


class Likenesses(Struct, eq=False):
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


Planner = Callable[[Call, Topology], Plan]
"""Choice of a library for a call on a topology: algorithm, protocol, overheads.

It may depend on where the ranks of the group are in the network. It must not depend on the number
of a component that equals others (:mod:`simulator.costing.symmetry`), nor on which of equivalent
links its messages pass (:class:`Likeness`): equal calls of those are planned once.
"""
_FEW_GROUPS = 16
"""Groups routed one by one before equivalent ones are looked for."""

_Kind = tuple[str, str, float, str, Shares | None]
"""Kind, label of the group, size, dtype and shares of a call."""


class Carried(NamedTuple):
    """The plan of a call and its loads on the links.

    ``plan`` is None for a call of unknown size: its plan is unknown, too.
    """

    plan: Plan | None
    loads: tuple[Load, ...]


class _Known(NamedTuple):
    """A call that was routed, and the seat of its group, reused for equivalent groups."""

    where: Seat
    carried: Carried


class Costs(Struct, eq=False):
    """Plans and loads of calls on a topology; equal calls are planned and routed once.

    ``likeness`` determines which groups are equivalent; it can be shared by networks of one graph.
    """

    topology: Topology
    planner: Planner
    likeness: Likeness | None = None
    _carried: dict[tuple[_Kind, tuple[int, ...]], Carried] = field(default_factory=dict)
    _by_pattern: dict[tuple[_Kind, type, bytes], _Known] = field(default_factory=dict)

    @property
    def alike(self) -> Likeness:
        """Which groups are equivalent."""
        if self.likeness is None:
            self.likeness = Likeness(self.topology)
        return self.likeness

    def carried(self, call: Call) -> Carried:
        """Return the plan of a call and its loads on the links."""
        if math.isnan(call.size):
            return Carried(None, (unknown(call.transfer, self.topology),))
        sort = call.kind, call.group.label, call.size, call.dtype, call.shares
        key = sort, call.group.ranks
        if key not in self._carried:
            self._carried[key] = self._route_or_map(sort, call)
        return self._carried[key]

    def loads(self, call: Call) -> tuple[Load, ...]:
        """Return the loads of a call on the links; none for a group of one rank."""
        return self.carried(call).loads

    def loads_by_index(self, workload: Workload) -> Callable[[int], tuple[Load, ...]]:
        """Return a function from a call of the workload, by its index, to its loads."""
        row: list[int] = workload.distinct_calls[1].tolist()
        by_row: dict[int, tuple[Load, ...]] = {}

        def loads(call: int) -> tuple[Load, ...]:
            if row[call] not in by_row:
                by_row[row[call]] = self.loads(workload.call_view(call))
            return by_row[row[call]]

        return loads

    def idle_time(self, call: Call) -> float:
        """Time of the call on an idle network (s)."""
        return cost(self.loads(call))

    def idle_times(self, workload: Workload) -> Floats:
        """Time of every call of a workload on an idle network (s); 0 for a call without members."""
        first, row = workload.distinct_calls
        times = [self.idle_time(workload.call_view(call)) for call in first]
        return np.array([*times, 0.0])[row]

    def plans(self, workload: Workload) -> Plans:
        """Plan of every call of a workload, shape ``(calls,)``; None for a call without members."""
        first, row = workload.distinct_calls
        plans = np.empty(len(first) + 1, dtype=np.object_)
        for number, call in enumerate(first):
            plans[number] = self.carried(workload.call_view(call)).plan
        return plans[row]

    def _route_or_map(self, sort: _Kind, call: Call) -> Carried:
        """Route a call, or map the loads of an equivalent group to its links."""
        pays = len(self._carried) >= _FEW_GROUPS or self.alike.has_answers
        missed = []
        for seat in self.alike.seats(call.group.ranks) if pays else ():
            key = sort, type(seat), seat.pattern
            if key in self._by_pattern:
                known_seat, (plan, loads) = self._by_pattern[key]
                return Carried(plan, tuple(_mapped(load, seat, known_seat) for load in loads))
            missed.append((key, seat))
        positions = np.array(call.group.ranks, dtype=np.int32)
        plan = self.planner(call, self.topology)
        carried = Carried(plan, plan_loads(plan, positions, call.size, self.topology))
        for key, seat in missed:
            if seat.holds(carried.loads):
                self._by_pattern[key] = _Known(seat, carried)
        return carried


def _mapped(load: Load, seat: Any, known_seat: Any) -> Load:
    """Map a load of an equivalent group to the links of this one; both seats have one type."""
    if not len(load.link):
        return load
    links = seat.links_of(np.append(load.link, np.int32(load.bottleneck)), known_seat)
    return structs.replace(load, link=links[:-1], bottleneck=int(links[-1]))
