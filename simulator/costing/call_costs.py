"""Costs of calls on a topology: routed once for equal calls of equivalent groups."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from simulator.calls import Call
from simulator.costing.likeness import Likeness, Seat
from simulator.costing.link_load import Load, cost, plan_loads, unknown
from simulator.schedule import Plan, Plans
from simulator.shares import Shares
from simulator.support.arrays import Floats
from simulator.topology import Topology
from simulator.workload import Workload

Planner = Callable[[Call, Topology], Plan]
"""Choice of a library for a call on a topology: algorithm, protocol, overheads.

It may depend on where the ranks of the group are in the network. It must not depend on the number
of a component that equals others (:mod:`simulator.costing.symmetry`), nor on which of equivalent
links its messages pass (:mod:`simulator.costing.likeness`): equal calls of those are planned once.
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


@dataclass(slots=True, eq=False)
class Costs:
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
        carried = self._route(call)
        for key, seat in missed:
            if seat.holds(carried.loads):
                self._by_pattern[key] = _Known(seat, carried)
        return carried

    def _route(self, call: Call) -> Carried:
        positions = np.array(call.group.ranks, dtype=np.int32)
        plan = self.planner(call, self.topology)
        return Carried(plan, plan_loads(plan, positions, call.size, self.topology))


def _mapped(load: Load, seat: Any, known_seat: Any) -> Load:
    """Map a load of an equivalent group to the links of this one; both seats have one type."""
    if not len(load.link):
        return load
    links = seat.links_of(np.append(load.link, np.int32(load.bottleneck)), known_seat)
    return replace(load, link=links[:-1], bottleneck=int(links[-1]))
