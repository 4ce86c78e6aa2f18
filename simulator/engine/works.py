"""What calls are to the links: how long they take alone, and what they do beside others.

A call that is never beside another is not written out. As soon as two meet, all that may meet are,
and one transfer is kept of those that are alike (:mod:`simulator.transfers.equivalence`), unless
there
are too many to compare. What was written on one network serves every other of the same graph: which
transfers there are, who waits for whom, and which are alike; only the numbers are others.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.calls import Call
from simulator.costing.call_costs import Carried, Costs, distinct_calls
from simulator.costing.likeness import Likeness
from simulator.costing.link_load import Load, cost, program
from simulator.schedule import Schedule, Step
from simulator.support.arrays import Floats
from simulator.topology import Topology
from simulator.transfers.crowd import Program
from simulator.transfers.equivalence import quotient
from simulator.transfers.program import folded, numbered, runs_ahead
from simulator.workload import Workload

_COMPARED = 2**19
"""Transfers of calls that differ, at the most, among which those that are alike are looked for."""


@dataclass(frozen=True, eq=False)
class Work:
    """What a call is to the links; the same for all calls that are like it.

    Parameters
    ----------
    loads
        What it puts on the links.
    write
        Writes it out, transfer by transfer; asked once, and only where it meets others.
    overhead
        What its software takes before its first transfer (s), if that is not in the program.
    network
        Where it goes on.
    """

    loads: tuple[Load, ...]
    write: Callable[[], Program]
    overhead: float
    network: Topology

    @cached_property
    def program(self) -> Program:
        """What it does beside others."""
        return self.write()

    @cached_property
    def link(self) -> NDArray[np.int32]:
        """All links that it uses at some time."""
        return np.unique(np.concatenate([load.link for load in self.loads]))

    @cached_property
    def time(self) -> float:
        """How long it takes alone (s)."""
        return cost(self.loads)

    @cached_property
    def spent(self) -> Floats:
        """Where that time goes (s)."""
        spent: Floats = np.sum([load.spent(self.network) for load in self.loads], axis=0)
        return spent


@dataclass(frozen=True, slots=True, eq=False)
class _Called:
    """A call, and how it is carried out; ``ahead`` says whether it is a list of transfers."""

    call: Call
    carried: Carried

    @property
    def ahead(self) -> bool:
        return runs_ahead(self.carried.plan)

    @property
    def transfers(self) -> int:
        """Transfers of its steps, like steps counted once."""
        plan = self.carried.plan
        if plan is None or not self.ahead:
            return 0
        return sum(step.width for step in plan.schedule.steps)

    def written(self, network: Topology) -> Program:
        """Write it out."""
        plan, loads = self.carried
        group = self.call.group
        where = np.array(group.ranks, dtype=np.int32), self.call.size, network
        whole = program(plan, loads, where)
        if not self.ahead or not group.stand_in:
            return whole
        position = {rank: number for number, rank in enumerate(group.ranks)}
        return folded(whole, np.array([position[rank] for rank in group.stand_in]))

    def like(self, carried: Carried) -> bool:
        """Whether the call goes by the same transfers if it is carried out so."""
        plan, other_plan = self.carried.plan, carried.plan
        if plan is None or other_plan is None:
            return plan is other_plan
        return plan.pipelined == other_plan.pipelined and _same(plan.schedule, other_plan.schedule)


def _same(first: Schedule, second: Schedule) -> bool:
    """Whether two schedules are the same transfers."""
    if first is second:
        return True
    if (first.ranks, first.parts) != (second.ranks, second.parts):
        return False
    return len(first.steps) == len(second.steps) and all(
        _same_step(first, step, second, other_step)
        for step, other_step in zip(first.steps, second.steps, strict=True)
    )


def _same_step(first: Schedule, step: Step, second: Schedule, other_step: Step) -> bool:
    return (
        (step.repeats, step.in_network) == (other_step.repeats, other_step.in_network)
        and np.array_equal(step.source, other_step.source)
        and np.array_equal(step.target, other_step.target)
        and np.array_equal(first.units(step), second.units(other_step))
    )


class _Written(NamedTuple):
    """A program as it was first written, and on which network that was."""

    program: Program
    network: Topology


@dataclass(slots=True, eq=False)
class Works:
    """What all calls that may meet are to the links of one network.

    ``likeness`` says which links stay alike on the other networks that are asked.
    """

    network: Topology
    likeness: Likeness | None = None
    _called: list[_Called] = field(default_factory=list)
    _written: dict[int, _Written] = field(default_factory=dict)

    def of(self, workload: Workload, costs: Costs) -> Callable[[int], Work]:
        """Add a workload; return a function from its calls, by index, to what they are.

        To be asked of all workloads before the first call begins.
        """
        known, rows = self.distinct(workload, costs)
        row: list[int] = rows.tolist()
        return lambda call: known[row[call]]

    def distinct(self, workload: Workload, costs: Costs) -> tuple[list[Work], NDArray[np.intp]]:
        """Add a workload; return what its calls are, each once, and which of them every call is.

        -1 for a call that nobody takes part in. To be asked as :meth:`of`.
        """
        self.likeness = costs.alike
        first, rows = distinct_calls(workload)
        views = [workload.call_view(call) for call in first]
        return [self._added(call, costs.carried(call)) for call in views], rows

    def again(self, costs: Costs) -> "tuple[Works, list[Work]] | None":
        """Say what the same calls are on another network of the same graph.

        Returns
        -------
        Works, list of Work
            Which take over what has been written; None where it cannot be: on another graph, where
            links are not alike any more that were, or where a call goes by other transfers.
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
        """Whether messages pass the same links on another network of the graph, or none at all.

        Adaptive switches look at what links can carry, in proportion to each other.
        """
        here, there = self.network.bandwidth, network.bandwidth
        finite = np.isfinite(here)
        if not np.array_equal(finite, np.isfinite(there)):
            return False
        if network.routing.policy != "adaptive" or network.routing.capacity is not None:
            return True
        ratio = there[finite] / here[finite]
        return bool(np.ptp(ratio) == 0) if len(ratio) else True

    def _added(self, call: Call, carried: Carried) -> Work:
        called = _Called(call, carried)
        self._called.append(called)
        overhead = carried.plan.overhead if carried.plan is not None and called.ahead else 0.0
        number = len(self._called) - 1
        return Work(carried.loads, partial(self._program, number), overhead, self.network)

    def _program(self, number: int) -> Program:
        """Write out a call, or give what is known of it the numbers that it has here."""
        called = self._called[number]
        if number not in self._written:
            self._write(number)
        program, network = self._written[number]
        if network is self.network:
            return program
        if program.ways is None or called.carried.plan is None:
            return called.written(self.network)
        return numbered(program, called.carried.plan, called.call.size, self.network)

    def _write(self, number: int) -> None:
        if sum(called.transfers for called in self._called) > _COMPARED:
            self._written[number] = _Written(
                self._called[number].written(self.network), self.network
            )
            return
        whole = [called.written(self.network) for called in self._called]
        kinds = (self.likeness or Likeness(self.network)).classes[0]
        for row, load in enumerate(quotient(whole, kinds)):
            self._written[row] = _Written(load, self.network)
