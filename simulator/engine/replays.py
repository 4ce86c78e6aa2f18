"""One step simulated repeatedly with other numbers: points share what they have in common.

A what-if on a bandwidth, a latency or a part of the time changes neither the calls, nor the links
of their transfers, nor any dependence. The event loop (:mod:`simulator.engine.flow`) keeps the
calls that it has written out, each in its place; a further point sets their numbers, and costs only
its events.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs
from simulator.engine.alone import closed_form
from simulator.engine.simulation import Progress, Simulation
from simulator.support.arrays import equal_in
from simulator.support.errors import TopologyError
from simulator.timeline import Timeline
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.engine.flow import Loop
    from simulator.engine.works import Works

_MOST_CACHED = 4
"""Most pairs of step and graph whose prepared loops are cached."""


@dataclass(slots=True, eq=False)
class _Prepared:
    """A loop prepared for the calls of a step on a graph; ``works`` are those of the last point."""

    workload: Workload
    works: "Works"
    row: NDArray[np.intp]
    loop: "Loop"

    def renew(self, simulation: Simulation) -> bool:
        """Reset the loop to other numbers; return False if it does not fit them."""
        if not _same_calls(self.workload, simulation.workload):
            return False
        again = self.works.again(simulation.costs)
        if again is None:
            return False
        self.works, works = again
        return self.loop.renew(simulation, works)


@dataclass(slots=True, eq=False)
class Replays:
    """Simulates points, and caches the loops of the last few steps and graphs.

    Each point has its own workload and costs. Parts equal to those of an earlier point are reused:
    the calls, the graph of links with its routes, and the transfers of each call.
    """

    _kept: list[_Prepared] = field(default_factory=list)

    def timeline(
        self, workload: Workload, costs: Costs, progress: Progress | None = None
    ) -> Timeline:
        """Simulate a point as engine ``flow`` does."""
        if workload.job_ranks > costs.topology.ranks:
            raise TopologyError(
                f"the job has {workload.job_ranks} ranks, {costs.topology.name} has "
                f"{costs.topology.ranks}"
            )
        simulation = Simulation(workload, costs.topology, costs, progress)
        replay = next((replay for replay in reversed(self._kept) if replay.renew(simulation)), None)
        if replay is None and not closed_form(simulation):
            from simulator.engine.flow import Loop, Step  # in many steps no two calls meet
            from simulator.engine.works import Works

            works = Works(simulation.topology)
            distinct, row = works.distinct(simulation.workload, simulation.costs)
            loop = Loop.of(simulation.topology, distinct, row, Step.of(simulation))
            replay = _Prepared(simulation.workload, works, row, loop)
            self._kept[:] = [*self._kept[1 - _MOST_CACHED :], replay]
        if replay is not None:
            replay.loop.answer(simulation)
        return simulation.timeline("flow")


def _same_calls(first: Workload, second: Workload) -> bool:
    """Whether two steps have the same calls of the same groups, with as many members."""
    columns = ("kind", "group", "size", "dtype", "transfer", "spread", "shares")
    calls, groups = (first.calls, second.calls), (first.groups, second.groups)
    return (
        (calls[0] is calls[1] or equal_in(columns, *calls))
        and (first.call is second.call or np.array_equal(first.members, second.members))
        and (
            groups[0] is groups[1]
            or (
                groups[0] == groups[1]
                and all(equal_in(["stand_in"], *pair) for pair in zip(*groups, strict=True))
            )
        )
    )
