"""Distinct calls: how long each takes alone, and its transfers where it meets others.

A call that never meets another is not written out. As soon as two meet, all that may meet are
written out, and of equivalent transfers one is kept (:mod:`simulator.transfers.equivalence`),
unless there are too many to compare. What was written on one network serves every network of the
same graph: the transfers, their order and their equivalence stay, only the numbers change.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.calls import Call
from simulator.costing.call_costs import Carried, Costs, Likeness
from simulator.costing.link_load import Load, cost, program
from simulator.schedule import Schedule
from simulator.support.arrays import Floats, equal_in
from simulator.topology import Topology
from simulator.transfers.crowd import Program
from simulator.transfers.equivalence import quotient
from simulator.transfers.program import folded, numbered, runs_ahead, widest
from simulator.workload import Workload

_COMPARED = 2**19
"""Most transfers, over all distinct calls, among which equivalent ones are looked for."""


@dataclass(frozen=True, eq=False)
class Work:
    """A distinct call: its load on the links, shared by all calls that equal it.

    Parameters
    ----------
    loads
        Its bytes on links, step by step.
    write
        Writes out its transfers; called once, and only if it meets another call.
    overhead
        Software overhead before its first transfer (s), unless the program has it.
    network
        The network that carries it.
    """

    loads: tuple[Load, ...]
    write: Callable[[], Program]
    overhead: float
    network: Topology

    @cached_property
    def program(self) -> Program:
        """Its transfers, for when it shares links."""
        return self.write()

    @cached_property
    def link(self) -> NDArray[np.int32]:
        """All links that it uses, sorted."""
        return np.unique(np.concatenate([load.link for load in self.loads]))

    @cached_property
    def time(self) -> float:
        """Its time alone on its links (s)."""
        return cost(self.loads)

    @cached_property
    def spent(self) -> Floats:
        """That time by resource, software last (s), shape ``(resources + 1,)``."""
        spent: Floats = np.sum([load.spent(self.network) for load in self.loads], axis=0)
        return spent


class _Called(Struct, frozen=True, eq=False):
    """A call, its plan and its loads on a network; ``ahead``: it is a list of transfers."""

    call: Call
    carried: Carried
    ahead: bool

    @property
    def transfers(self) -> int:
        """Number of transfers of its steps; repetitions of a step count once."""
        plan = self.carried.plan
        if plan is None or not self.ahead:
            return 0
        return sum(step.width for step in plan.schedule.steps)

    def written(self, network: Topology) -> Program:
        """Write out its transfers on a network."""
        plan, loads = self.carried
        group = self.call.group
        where = np.array(group.ranks, dtype=np.int32), self.call.size, network
        whole = program(plan, loads, where)
        if not self.ahead or not group.stand_in:
            return whole
        position = {rank: number for number, rank in enumerate(group.ranks)}
        return folded(whole, np.array([position[rank] for rank in group.stand_in]))

    def like(self, carried: Carried) -> bool:
        """Whether the call has the same transfers, on the same links, under another plan."""
        plan, other_plan = self.carried.plan, carried.plan
        if plan is None or other_plan is None:
            return plan is other_plan
        alike = plan.pipelined == other_plan.pipelined and plan.outage == other_plan.outage
        return alike and _same(plan.schedule, other_plan.schedule)


def _same(first: Schedule, second: Schedule) -> bool:
    """Whether two schedules have the same transfers."""
    if first is second:
        return True
    if (first.ranks, first.parts) != (second.ranks, second.parts):
        return False
    columns = ("repeats", "in_network", "source", "target")
    return len(first.steps) == len(second.steps) and all(
        equal_in(columns, *pair) and np.array_equal(first.units(pair[0]), second.units(pair[1]))
        for pair in zip(first.steps, second.steps, strict=True)
    )


class _Written(NamedTuple):
    """A program as first written, and the network it was written for."""

    program: Program
    network: Topology


@dataclass(slots=True, eq=False)
class Works:
    """The distinct calls of one simulation on one network.

    ``likeness`` says which links are interchangeable on every network that is asked. ``compares``:
    of equivalent transfers one is kept; not where others, who are not among these, use the links.
    """

    network: Topology
    likeness: Likeness | None = None
    compares: bool = field(default=True, kw_only=True)
    _called: list[_Called] = field(default_factory=list)
    _written: dict[int, _Written] = field(default_factory=dict)

    def distinct(self, workload: Workload, costs: Costs) -> tuple[list[Work], NDArray[np.intp]]:
        """Add a workload; return its distinct calls, and the index of that of each call.

        -1 for a call without members. To be called for all workloads before the first call begins.
        """
        self.likeness = costs.alike
        first, rows = workload.distinct_calls
        views = [workload.call_view(call) for call in first]
        return [self._added(call, costs.carried(call)) for call in views], rows

    def again(self, costs: Costs) -> "tuple[Works, list[Work]] | None":
        """Return the same distinct calls on another network of the same graph.

        Returns
        -------
        Works, list of Work
            They reuse what has been written. None if they cannot: on another graph, where
            interchangeable links are so no longer, or where a call has other transfers.
        """
        like, network = self.likeness, costs.topology
        if like is None or not (like.serves(network, like.domains) and self._routes_as(network)):
            return None
        restated = Works(network, like, [], self._written)
        works = []
        for called in self._called:
            carried = costs.carried(called.call)
            if not called.like(carried):
                return None
            works.append(restated._added(called.call, carried))
        return restated, works

    def _routes_as(self, network: Topology) -> bool:
        """Whether messages take the same routes on another network of the graph.

        Adaptive routing, and what goes past slow cables, depend on the ratios of bandwidths.
        """
        here, there = self.network.bandwidth, network.bandwidth
        finite = np.isfinite(here)
        if not np.array_equal(finite, np.isfinite(there)):
            return False
        routing = network.routing
        if routing.slowed is None and (
            routing.policy != "adaptive" or routing.capacity is not None
        ):
            return True
        ratio = there[finite] / here[finite]
        return bool(np.ptp(ratio) == 0) if len(ratio) else True

    def _added(self, call: Call, carried: Carried) -> Work:
        called = _Called(call, carried, runs_ahead(carried.plan, widest(self.network)))
        self._called.append(called)
        overhead = carried.plan.overhead if carried.plan is not None and called.ahead else 0.0
        number = len(self._called) - 1
        return Work(carried.loads, partial(self._program, number), overhead, self.network)

    def _program(self, number: int) -> Program:
        """Write out a call, or give what is known of it the numbers that it has here."""
        called = self._called[number]
        if number not in self._written:
            transfers = sum(each.transfers for each in self._called)
            if not self.compares or transfers > _COMPARED:
                self._written[number] = _Written(called.written(self.network), self.network)
            else:
                whole = [each.written(self.network) for each in self._called]
                kinds = (self.likeness or Likeness(self.network)).classes[0]
                for row, reduced in enumerate(quotient(whole, kinds)):
                    self._written[row] = _Written(reduced, self.network)
        program, network = self._written[number]
        if network is self.network:
            return program
        if program.ways is None or called.carried.plan is None:
            return called.written(self.network)
        return numbered(program, called.carried.plan, called.call.size, self.network)
