"""``simulate``: one signature for every engine.

``flow`` answers, ``simpy`` states the same model in SimPy's own words, ``analytic`` knows no
contention. An engine has no options for questions: a what-if is a function on its inputs.
"""

from collections.abc import Callable

from simulator.costing.call_costs import Costs, Planner
from simulator.engine.simulation import Progress, Simulation
from simulator.support.errors import TopologyError, WorkloadError
from simulator.support.names import one_of
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
    from simulator.engine.alone import time_alone

    time_alone(simulation)
    if simulation.progress is not None:
        simulation.progress(len(simulation.workload.calls), len(simulation.workload.calls))


def _flow(simulation: Simulation) -> None:
    from simulator.engine.flow import flow

    flow(simulation)


def _simpy(simulation: Simulation) -> None:
    from simulator.engine.simpy_model import simulate_with_simpy

    simulate_with_simpy(simulation)


ENGINES: dict[str, Callable[[Simulation], None]] = {
    "flow": _flow,
    "simpy": _simpy,
    "analytic": _analytic,
}
