"""``simulate``: one signature for every engine.

A rank's ops are released by :mod:`simulator.propagate`; a call starts when its last member has
arrived (rendezvous) and is timed by the network. The engine has no options for questions: a
what-if is a function on its inputs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costs import Costs, Planner, distinct
from simulator.deadlock import explain
from simulator.errors import DeadlockError, TopologyError, WorkloadError
from simulator.load import cost
from simulator.network import Network
from simulator.propagate import LocalTimes
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.transfers import carry_out, lay_transfers
from simulator.workload import Workload

__all__ = ["ENGINES", "Costs", "Planner", "Progress", "simulate"]

Progress = Callable[[int, int], None]
"""Called now and then with calls done and calls in all."""


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
    if engine not in ENGINES:
        raise WorkloadError(f"engine {engine!r} is not one of {', '.join(ENGINES)}")
    if workload.job_ranks > topology.ranks:
        raise TopologyError(
            f"the job has {workload.job_ranks} ranks, {topology.name} has {topology.ranks}"
        )
    run = _Run(workload, topology, Costs(topology, planner), progress)
    ENGINES[engine](run)
    return run.timeline(engine)


Begin = Callable[[int, Callable[[], None]], None]
"""Begin a call (its index) now; call back when it has ended."""


@dataclass(slots=True, eq=False)
class _Run:
    """Made, run and thrown away by :func:`simulate`."""

    workload: Workload
    topology: Topology
    costs: Costs
    progress: Progress | None
    env: simpy.Environment = field(default_factory=simpy.Environment)
    local: LocalTimes = field(init=False)
    spent: NDArray[np.float64] = field(init=False)
    link_bytes: NDArray[np.float64] = field(init=False)
    finished: int = 0

    def __post_init__(self) -> None:
        self.local = LocalTimes.of(self.workload)
        self.spent = np.zeros((len(self.workload.calls), len(self.topology.resources) + 1))
        self.link_bytes = np.zeros(len(self.topology))

    def by_the_clock(self, begin: Begin) -> None:
        """Begin calls when they can start, until nothing happens any more."""
        self._schedule(self.local.begin(), begin)
        self.env.run()

    def timeline(self, engine: str) -> Timeline:
        """Return what happened.

        Raises
        ------
        DeadlockError
            If not everything that there is to do has.
        """
        ops, calls = self.local.ops, self.local.calls
        if np.isnan(ops.end).any():
            raise DeadlockError(explain(self.workload, self.local))
        return Timeline(
            workload=self.workload,
            topology=self.topology,
            engine=engine,
            start=ops.start,
            end=ops.end,
            released_by=ops.released_by,
            call_start=calls.start,
            call_end=calls.end,
            call_released_by=calls.last_member,
            call_spent=self.spent,
            link_bytes=self.link_bytes,
        )

    def _schedule(self, calls: list[int], begin: Begin) -> None:
        for call in calls:
            wait = float(self.local.calls.start[call]) - self.env.now
            self.env.timeout(wait).callbacks.append(partial(self._start, call, begin))

    def _start(self, call: int, begin: Begin, _: simpy.Event) -> None:
        begin(call, lambda: self._finish(call, begin))

    def _finish(self, call: int, begin: Begin) -> None:
        self.finished += 1
        if self.progress is not None:
            self.progress(self.finished, len(self.workload.calls))
        self._schedule(self.local.finish(call, self.env.now), begin)


def _flow(run: _Run) -> None:
    """Contention: loads that use the same links at the same time share them."""
    network = Network(run.env, run.topology)
    run.link_bytes = network.link_bytes
    factor = run.workload.calls.factor.tolist()
    loads = run.costs.of(run.workload)

    def begin(call: int, done: Callable[[], None]) -> None:
        traffic = network.start(loads(call), factor[call], done)
        run.spent[call] = traffic.spent
        traffic.spent = run.spent[call]

    run.by_the_clock(begin)


def _analytic(run: _Run) -> None:
    """No contention: a call costs what it costs on an idle network, so no clock is needed."""
    workload = run.workload
    first, row = distinct(workload)
    time = np.zeros(len(first))
    spent = np.zeros((len(first), run.spent.shape[1]))
    often = np.bincount(row[row >= 0], workload.calls.factor[row >= 0], len(first))
    for number, index in enumerate(first):
        loads = run.costs.loads(workload.call_view(index))
        time[number] = cost(loads)
        for load in loads:
            spent[number] += load.latency_of
            if load.amount:
                spent[number, run.topology.resource[load.bottleneck]] += load.transfer
            run.link_bytes[load.link] += load.weight * load.amount * often[number]
    factor = np.where(row >= 0, workload.calls.factor, np.nan)
    run.spent = spent[row] * factor[:, None]
    run.local = LocalTimes.of(workload, cost=time[row] * factor)
    run.local.begin()
    if run.progress is not None:
        run.progress(len(workload.calls), len(workload.calls))


def _transfer(run: _Run) -> None:
    """Every transfer is a flow of its own.

    A call that is no list of transfers is what it is to ``flow``: one of unknown size, and one
    whose steps are all under way at once or added up by the switches.
    """
    network = Network(run.env, run.topology)
    run.link_bytes = network.link_bytes

    def begin(index: int, done: Callable[[], None]) -> None:
        call = run.workload.call_view(index)
        factor = float(run.workload.calls.factor[index])

        def finish(spent: NDArray[np.float64]) -> None:
            run.spent[index] = spent
            done()

        plan = None if math.isnan(call.size) else run.costs.planner(call, run.topology)
        if plan is None or plan.pipelined or any(step.in_network for step in plan.schedule.steps):
            whole = network.start(run.costs.loads(call), factor, lambda: finish(whole.spent))
            return
        positions = np.array(call.group.ranks, dtype=np.int32)
        steps = lay_transfers(plan, positions, call.size, run.topology)
        carry_out(network, steps, plan.overhead, factor, finish)

    run.by_the_clock(begin)


ENGINES: dict[str, Callable[[_Run], None]] = {
    "flow": _flow,
    "analytic": _analytic,
    "transfer": _transfer,
}
