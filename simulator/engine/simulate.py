"""``simulate``: one signature for every engine.

``flow`` gives the answers, ``simpy`` states the same model in SimPy's terms, ``analytic`` has no
contention. An engine has no options for questions: a what-if is a function of its inputs.
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
