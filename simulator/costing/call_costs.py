"""What calls put on the links of a topology: laid once for equal calls of groups that lie alike."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.calls import Call
from simulator.costing.likeness import Likeness, Seat
from simulator.costing.link_load import Load, cost, lay, unknown
from simulator.schedule import Plan, Plans
from simulator.shares import Shares
from simulator.support.arrays import Floats
from simulator.topology import Topology
from simulator.workload import Workload

Planner = Callable[[Call, Topology], Plan]
"""How a library would carry out a call on a topology: algorithm, protocol, overheads.

It may depend on where the ranks of the group are on the network, not on the number of a component
that is like others (:mod:`simulator.costing.symmetry`), nor on which links they are that a group's
messages pass (:mod:`simulator.costing.likeness`): calls of groups that lie alike are planned once.
"""
_WORTH_IT = 16
"""Groups laid one by one before it is asked which of them lie alike."""

_Sort = tuple[str, str, float, str, Shares | None]
"""Kind, label of the group, size, dtype and shares of a call."""


class Carried(NamedTuple):
    """How a call is carried out, and what that puts on the links.

    ``plan`` is None of a call whose size is unknown: nobody knows how that was carried out.
    """

    plan: Plan | None
    loads: tuple[Load, ...]


class _LaidAt(NamedTuple):
    """A call that was laid, and where, for those of groups that lie alike."""

    where: Seat
    carried: Carried


@dataclass(slots=True, eq=False)
class Costs:
    """Plans and loads of calls on a topology; equal calls are planned and laid once.

    ``likeness`` says which groups lie alike; given by who has it of another network of the graph.
    """

    topology: Topology
    planner: Planner
    likeness: Likeness | None = None
    _carried: dict[tuple[_Sort, tuple[int, ...]], Carried] = field(default_factory=dict)
    _by_pattern: dict[tuple[_Sort, type, bytes], _LaidAt] = field(default_factory=dict)

    @property
    def alike(self) -> Likeness:
        """Which groups lie alike."""
        if self.likeness is None:
            self.likeness = Likeness(self.topology)
        return self.likeness

    def carried(self, call: Call) -> Carried:
        """Say how the call is carried out, and what it puts on the links."""
        if math.isnan(call.size):
            return Carried(None, (unknown(call.transfer, self.topology),))
        sort = call.kind, call.group.label, call.size, call.dtype, call.shares
        key = sort, call.group.ranks
        if key not in self._carried:
            self._carried[key] = self._laid_or_moved(sort, call)
        return self._carried[key]

    def loads(self, call: Call) -> tuple[Load, ...]:
        """Return what the call puts on the links; nothing for a group of one rank."""
        return self.carried(call).loads

    def loads_by_index(self, workload: Workload) -> Callable[[int], tuple[Load, ...]]:
        """Return a function from a call of the workload, by its index, to its loads."""
        row: list[int] = distinct_calls(workload)[1].tolist()
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
        """Time of every call of a workload on an idle network (s); 0 if nobody takes part."""
        first, row = distinct_calls(workload)
        times = [self.idle_time(workload.call_view(call)) for call in first]
        return np.array([*times, 0.0])[row]

    def plans(self, workload: Workload) -> Plans:
        """Plan of every call of a workload, shape ``(calls,)``; None if nobody takes part."""
        first, row = distinct_calls(workload)
        plans = np.empty(len(first) + 1, dtype=np.object_)
        for number, call in enumerate(first):
            plans[number] = self.carried(workload.call_view(call)).plan
        return plans[row]

    def _laid_or_moved(self, sort: _Sort, call: Call) -> Carried:
        """Lay a call, or move what is known of a group that lies alike."""
        pays = len(self._carried) >= _WORTH_IT or self.alike.has_answers
        seat = self.alike.seat(call.group.ranks) if pays else None
        if seat is None:
            return self._laid(call)
        key = sort, type(seat), seat.pattern
        if key not in self._by_pattern:
            carried = self._laid(call)
            if seat.holds(carried.loads):
                self._by_pattern[key] = _LaidAt(seat, carried)
            return carried
        laid_at, (plan, loads) = self._by_pattern[key]
        return Carried(plan, tuple(_moved(load, seat, laid_at) for load in loads))

    def _laid(self, call: Call) -> Carried:
        positions = np.array(call.group.ranks, dtype=np.int32)
        plan = self.planner(call, self.topology)
        return Carried(plan, lay(plan, positions, call.size, self.topology))


_LEAST = np.iinfo(np.int64).min


def distinct_calls(workload: Workload) -> tuple[list[int], NDArray[np.intp]]:
    """Find calls that cost the same on any network: the first of each, and which every call is.

    A call that nobody takes part in is none of them (-1).
    """
    calls = workload.calls
    dtypes = {dtype: number for number, dtype in enumerate(dict.fromkeys(calls.dtype))}
    # Of floats from 0 the bits, as integers, are in the floats' order: measured times, of calls of
    # unknown size, stand below all sizes, and what is neither known nor measured below these.
    sized, timed = ~np.isnan(calls.size), ~np.isnan(calls.transfer)
    amount = np.where(sized, calls.size, np.where(timed, calls.transfer, 0.0)) + 0.0
    order = amount.view(np.int64) + np.where(sized, 0, np.where(timed, _LEAST + 1, _LEAST))
    sort = calls.kind.astype(np.int64) * len(workload.groups) + calls.group
    sort = sort * len(dtypes) + np.array([dtypes[dtype] for dtype in calls.dtype])
    for column in (order, calls.spread):
        values, which = np.unique(column, return_inverse=True)
        sort = sort * len(values) + which
    joined = np.flatnonzero(workload.members)
    _, first, which = np.unique(sort[joined], return_index=True, return_inverse=True)
    row = np.full(len(calls), -1, dtype=np.intp)
    row[joined] = which
    return joined[first].tolist(), row


def _moved(load: Load, seat: Any, laid_at: Any) -> Load:
    """Put a load of a like group on the links of this one; both seats are of one sort."""
    if not len(load.link):
        return load
    links = seat.links_of(np.append(load.link, np.int32(load.bottleneck)), laid_at)
    return replace(load, link=links[:-1], bottleneck=int(links[-1]))
