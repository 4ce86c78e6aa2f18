"""Engine ``analytic``: every call has its links to itself, so no clock is needed.

What a call costs does not depend on what else goes on, and one pass over the ops in the order in
which they are released says when everything happens.
"""

import numpy as np

from simulator.costing.call_costs import distinct_calls
from simulator.costing.link_load import cost
from simulator.engine.propagate import LocalTimes
from simulator.engine.simulation import Simulation


def time_alone(simulation: Simulation) -> None:
    """Time all ops and calls, where time goes, and the bytes of every link."""
    workload, topology = simulation.workload, simulation.topology
    first, row = distinct_calls(workload)
    made = row >= 0  # somebody takes part
    factor = np.where(made, workload.calls.factor, np.nan)
    factors = np.bincount(row[made], workload.calls.factor[made], len(first))
    time = np.zeros(len(first))
    spent = np.zeros((len(first) + 1, simulation.spent.shape[1]))  # the last: of calls not made
    simulation.link_bytes = np.zeros(len(topology))
    for number, call in enumerate(first):
        loads = simulation.costs.loads(workload.call_view(call))
        time[number] = cost(loads)
        for load in loads:
            spent[number] += load.spent(topology)
            simulation.link_bytes[load.link] += load.weight * (load.amount * factors[number])
    simulation.spent = spent[row] * workload.calls.factor[:, None]
    simulation.local = LocalTimes.of(workload, cost=np.append(time, np.nan)[row] * factor)
    simulation.local.begin()
