"""``simulate``: one signature for every engine.

``flow`` gives the answers, ``simpy`` states the same model in SimPy's terms, ``analytic`` has no
contention. An engine has no options for questions: a what-if is a function of its inputs.

:class:`Replays` simulates a step again with other numbers. A what-if on a bandwidth, a latency or a
part of the time changes neither the calls, nor the links of their transfers, nor any dependence.
The event loop (:mod:`simulator.engine.flow`) keeps the calls that it has written out, each in its
place; a further point sets their numbers, and costs only its events.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field

from simulator.costing.call_costs import Costs, Planner
from simulator.engine.simulation import Progress, Simulation, closed_form, time_alone
from simulator.support.arrays import equal_in
from simulator.support.errors import TopologyError, WorkloadError
from simulator.support.names import one_of
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.engine.flow import Loop
    from simulator.engine.works import Works

__all__ = ["ENGINES", "Costs", "Planner", "Progress", "Replays", "simulate", "simulate_on"]


def simulate(
    workload: Workload,
    topology: Topology,
    planner: Planner,
    *,
    engine: str = "flow",
    progress: Progress | None = None,
) -> Timeline:
    """Simulate a workload on a topology; rank ``r`` is on node ``r``.

    Raises
    ------
    DeadlockError
        If no event is left and ops are pending; names the ranks that wait, and for which.
    TopologyError
        If the job has more ranks than the topology.
    WorkloadError
        If no engine has this name.
    """
    return simulate_on(workload, Costs(topology, planner), engine=engine, progress=progress)


def simulate_on(
    workload: Workload, costs: Costs, *, engine: str = "flow", progress: Progress | None = None
) -> Timeline:
    """Simulate a workload, given the costs of calls, as :func:`simulate` does.

    ``costs`` caches: for another workload on the same topology only its new calls are planned.
    """
    if engine not in ENGINES:
        raise WorkloadError(f"engine {one_of(engine, ENGINES)}")
    simulation = _begun(workload, costs, progress)
    ENGINES[engine](simulation)
    return simulation.timeline(engine)


def _begun(workload: Workload, costs: Costs, progress: Progress | None) -> Simulation:
    topology = costs.topology
    if workload.job_ranks > topology.ranks:
        raise TopologyError(
            f"the job has {workload.job_ranks} ranks, {topology.name} has {topology.ranks}"
        )
    return Simulation(workload, topology, costs, progress)


def _analytic(simulation: Simulation) -> None:
    time_alone(simulation)
    if simulation.progress is not None:
        simulation.progress(len(simulation.workload.calls), len(simulation.workload.calls))


def _flow(simulation: Simulation) -> None:
    """Time calls alone on their links; if any two meet, run the event loop over the step."""
    if not closed_form(simulation):
        _Prepared.of(simulation).loop.answer(simulation)


def _simpy(simulation: Simulation) -> None:
    from simulator.engine.simpy_model import simulate_with_simpy

    simulate_with_simpy(simulation)


ENGINES: dict[str, Callable[[Simulation], None]] = {
    "flow": _flow,
    "simpy": _simpy,
    "analytic": _analytic,
}

_MOST_CACHED = 4
"""Most pairs of step and graph whose prepared loops are cached."""


class _Prepared(Struct, eq=False):
    """A loop prepared for the calls of a step on a graph; ``works`` are those of the last point."""

    workload: Workload
    works: "Works"
    loop: "Loop"

    @staticmethod
    def of(simulation: Simulation) -> "_Prepared":
        """Prepare a loop; in many steps no two calls meet, and none is needed."""
        from simulator.engine.flow import Loop, Step
        from simulator.engine.works import Works

        works = Works(simulation.topology)
        distinct, row = works.distinct(simulation.workload, simulation.costs)
        loop = Loop.of(simulation.topology, distinct, row, Step.of(simulation))
        return _Prepared(simulation.workload, works, loop)

    def renew(self, simulation: Simulation) -> bool:
        """Reset the loop to other numbers; return False if it has other calls, or cannot be."""
        columns = ("kind", "group", "size", "dtype", "transfer", "spread", "shares")
        first, second = self.workload, simulation.workload
        same_groups = first.groups is second.groups or (
            first.groups == second.groups
            and all(
                equal_in(["stand_in"], *pair)
                for pair in zip(first.groups, second.groups, strict=True)
            )
        )
        if not (
            same_groups
            and (first.calls is second.calls or equal_in(columns, first.calls, second.calls))
            and (first.call is second.call or np.array_equal(first.members, second.members))
        ):
            return False
        again = self.works.again(simulation.costs)
        if again is None:
            return False
        self.works, works = again
        return self.loop.renew(simulation, works)


class Replays(Struct, eq=False):
    """Simulates points, and caches the loops of the last few steps and graphs.

    Each point has its own workload and costs. Parts equal to those of an earlier point are reused:
    the calls, the graph of links with its routes, and the transfers of each call.
    """

    _kept: list[_Prepared] = field(default_factory=list)

    def timeline(
        self, workload: Workload, costs: Costs, progress: Progress | None = None
    ) -> Timeline:
        """Simulate a point as engine ``flow`` does."""
        simulation = _begun(workload, costs, progress)
        replay = next((replay for replay in reversed(self._kept) if replay.renew(simulation)), None)
        if replay is None and not closed_form(simulation):
            replay = _Prepared.of(simulation)
            self._kept[:] = [*self._kept[1 - _MOST_CACHED :], replay]
        if replay is not None:
            replay.loop.answer(simulation)
        return simulation.timeline("flow")
