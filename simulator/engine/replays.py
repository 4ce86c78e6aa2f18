"""One step simulated again and again, with other numbers: what its points have in common stays.

A what-if on a bandwidth, a latency or a part of the time changes neither which calls there are, nor
which links their transfers pass, nor who waits for whom. The event loop
(:mod:`simulator.engine.flow`) keeps the calls that it has written out, each in its place; a
further point gives them their numbers, and costs its events.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.calls import Group
from simulator.costing.call_costs import Costs
from simulator.engine.flow import Loop, Step, closed_form
from simulator.engine.simulation import Progress, Simulation, explain_deadlock
from simulator.engine.works import Works
from simulator.support.errors import DeadlockError, TopologyError
from simulator.timeline import Timeline
from simulator.workload import Workload

_MOST_KEPT = 4
"""Steps and graphs of which what was written is kept."""


@dataclass(slots=True, eq=False)
class _Kept:
    """What was set up for a step with these calls on a graph; ``works`` are those of the last."""

    workload: Workload
    works: Works
    row: NDArray[np.intp]
    loop: Loop

    def renewed(self, simulation: Simulation) -> bool:
        """Set out anew with other numbers; say whether that can be."""
        if not _same_calls(self.workload, simulation.workload):
            return False
        again = self.works.again(simulation.costs)
        if again is None:
            return False
        self.works, works = again
        return self.loop.renew(simulation.topology, works, Step.of(simulation))


@dataclass(slots=True, eq=False)
class Replays:
    """Simulates points; of the last few steps and graphs what was set up is kept.

    Each point comes with its own workload and costs. It is looked up what is the same as of a point
    before: the calls, the graph of links with its routes, and the transfers of each call.
    """

    _kept: list[_Kept] = field(default_factory=list)

    def timeline(
        self, workload: Workload, costs: Costs, progress: Progress | None = None
    ) -> Timeline:
        """Simulate a point as engine ``flow`` does."""
        return self._simulated(workload, costs, progress).timeline("flow")

    def makespan(self, workload: Workload, costs: Costs) -> float:
        """Simulate a point, and say no more than how long it takes (s)."""
        simulation = self._simulated(workload, costs, None)
        ends = simulation.local.ops.end
        if np.isnan(ends).any():
            raise DeadlockError(explain_deadlock(workload, simulation.local))
        return float(ends.max(initial=0.0))

    def _simulated(self, workload: Workload, costs: Costs, progress: Progress | None) -> Simulation:
        if workload.job_ranks > costs.topology.ranks:
            raise TopologyError(
                f"the job has {workload.job_ranks} ranks, {costs.topology.name} has "
                f"{costs.topology.ranks}"
            )
        simulation = Simulation(workload, costs.topology, costs, progress)
        replay = next(
            (replay for replay in reversed(self._kept) if replay.renewed(simulation)), None
        )
        if replay is None and not closed_form(simulation):
            works = Works(simulation.topology)
            distinct, row = works.distinct(simulation.workload, simulation.costs)
            loop = Loop.of(simulation.topology, distinct, row, Step.of(simulation))
            replay = _Kept(simulation.workload, works, row, loop)
            self._kept[:] = [*self._kept[1 - _MOST_KEPT :], replay]
        if replay is not None:
            replay.loop.answer(simulation)
        return simulation


def _same_calls(first: Workload, second: Workload) -> bool:
    """Whether two steps have the same calls of the same groups, joined by as many ops."""
    if first.calls is not second.calls:
        columns = ("kind", "group", "size", "dtype", "transfer", "spread", "shares")
        calls, other_calls = first.calls, second.calls
        if len(calls) != len(other_calls) or not all(
            _equal(getattr(calls, name), getattr(other_calls, name)) for name in columns
        ):
            return False
    same = first.call is second.call or np.array_equal(first.members, second.members)
    return same and _same_groups(first.groups, second.groups)


def _equal(first: object, second: object) -> bool:
    if first is second:
        return True
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    return bool(first == second)


def _same_groups(first: tuple[Group, ...], second: tuple[Group, ...]) -> bool:
    if first is second:
        return True
    return first == second and all(
        group.stand_in == other.stand_in for group, other in zip(first, second, strict=True)
    )
