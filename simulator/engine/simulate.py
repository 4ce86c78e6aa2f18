"""``simulate``: one signature for every engine.

A rank's ops are released by :mod:`simulator.engine.propagate`; a call starts when its last member
has arrived (rendezvous) and is timed by the network. The engine has no options for questions: a
what-if is a function on its inputs.
"""

from collections.abc import Callable

import numpy as np

from simulator.costing.call_costs import Costs, Planner, distinct_calls
from simulator.costing.link_load import cost
from simulator.engine.propagate import LocalTimes
from simulator.engine.simulation import Progress, Simulation
from simulator.errors import TopologyError, WorkloadError
from simulator.names import one_of
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Workload

__all__ = ["ENGINES", "Costs", "Planner", "Progress", "simulate", "simulate_on"]


def simulate(
    workload: Workload,
    topology: Topology,
    planner: Planner,
    *,
    engine: str = "flow",
    progress: Progress | None = None,
) -> Timeline:
    """Run a workload on a topology; rank ``r`` sits on node ``r``.

    Raises
    ------
    DeadlockError
        If nothing can happen any more and ops are pending; names who waits for whom.
    TopologyError
        If the job has more ranks than the topology.
    WorkloadError
        If the engine has no such name.
    """
    return simulate_on(workload, Costs(topology, planner), engine=engine, progress=progress)


def simulate_on(
    workload: Workload, costs: Costs, *, engine: str = "flow", progress: Progress | None = None
) -> Timeline:
    """Run a workload where it is known what calls put on the links: :func:`simulate`, going on.

    ``costs`` remembers: the next workload on the same topology plans only what it has besides.

    Raises
    ------
    TwofoldError
        As :func:`simulate`.
    """
    topology = costs.topology
    if engine not in ENGINES:
        raise WorkloadError(f"engine {one_of(engine, ENGINES)}")
    if workload.job_ranks > topology.ranks:
        raise TopologyError(
            f"the job has {workload.job_ranks} ranks, {topology.name} has {topology.ranks}"
        )
    simulation = Simulation(workload, topology, costs, progress)
    ENGINES[engine](simulation)
    return simulation.timeline(engine)


def _analytic(simulation: Simulation) -> None:
    """No contention: a call costs what it costs on an idle network, so no clock is needed."""
    workload = simulation.workload
    first, row = distinct_calls(workload)
    time = np.zeros(len(first))
    spent = np.zeros((len(first), simulation.spent.shape[1]))
    often = np.bincount(row[row >= 0], workload.calls.factor[row >= 0], len(first))
    for number, index in enumerate(first):
        loads = simulation.costs.loads(workload.call_view(index))
        time[number] = cost(loads)
        for load in loads:
            spent[number] += load.spent(simulation.topology)
            simulation.link_bytes[load.link] += load.weight * load.amount * often[number]
    factor = np.where(row >= 0, workload.calls.factor, np.nan)
    simulation.spent = spent[row] * factor[:, None]
    simulation.local = LocalTimes.of(workload, cost=time[row] * factor)
    simulation.local.begin()
    if simulation.progress is not None:
        simulation.progress(len(workload.calls), len(workload.calls))


def _flow(simulation: Simulation) -> None:
    from simulator.engine import flow

    flow.flow(simulation)


def _fluid(simulation: Simulation) -> None:
    from simulator.engine import fluid

    fluid.fluid(simulation)


def _transfer(simulation: Simulation) -> None:
    from simulator.engine import flow

    flow.transfer(simulation)


ENGINES: dict[str, Callable[[Simulation], None]] = {
    "flow": _flow,
    "fluid": _fluid,
    "analytic": _analytic,
    "transfer": _transfer,
}
