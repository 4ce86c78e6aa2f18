"""Compile the hot passes once, so that the first answer does not wait for it: run as a module.

Numba keeps what it compiled beside the source, or in the user's cache directory where that cannot
be written. Without this the first simulation after an installation takes some ten seconds longer.
"""

import numpy as np

from simulator.analytic import Points, makespans
from simulator.builder import WorkloadBuilder
from simulator.contract import contract
from simulator.engine import Costs, simulate
from simulator.overlap import overlap
from simulator.schedule import Plan, Schedule, Step
from simulator.timeline import Timeline
from simulator.topology import Link, Topology, topology
from simulator.workload import CallRow, What, Workload


def warm() -> Timeline:
    """Simulate one exchange over two switches; every compiled pass is used.

    Examples
    --------
    >>> warm().makespan > 0
    True
    """
    ranks = 4
    builder = WorkloadBuilder(job_ranks=ranks)
    call = builder.call(CallRow("all_gather", builder.group(tuple(range(ranks))), 0, 1e6))
    for rank in range(ranks):
        gemm = builder.op(What.COMPUTE, rank=rank, lane="stream", name="gemm", duration=1e-3)
        gather = builder.op(
            What.COLLECTIVE, rank=rank, lane="nccl", name="all_gather", duration=0.0, call=call
        )
        builder.edge(gemm, gather)
    links = []
    for rank in range(ranks):
        switch = f"leaf:{rank % 2}"
        links += [Link(rank, switch, 25e9, 1e-6), Link(switch, rank, 25e9, 1e-6)]
    links += [Link("leaf:0", "leaf:1", 25e9, 1e-6), Link("leaf:1", "leaf:0", 25e9, 1e-6)]
    everyone = np.arange(ranks, dtype=np.int32)
    one = np.ones(ranks, dtype=np.int32)
    ring = Step(everyone, np.roll(everyone, -1), everyone, one, reduce=False)
    schedule = Schedule("all_gather", "ring", ranks, ranks, ranks, (ring,))
    network = topology("leaves", ranks, links)
    workload = builder.build()
    _warm_passes(workload, network, Plan(schedule))
    return simulate(workload, network, lambda _, __: Plan(schedule))


def _warm_passes(workload: Workload, network: Topology, plan: Plan) -> None:
    """Contract and pass over it, as studies of many design points do."""
    idle = simulate(workload, network, lambda _, __: plan, engine="analytic")
    overlap(idle, Costs(network, lambda _, __: plan))
    cost = idle.call_end - idle.call_start
    points = Points(cost[:, None], np.arange(len(cost)), np.ones(len(cost)), {})
    makespans(contract(workload), points)


if __name__ == "__main__":
    warm()
