"""``simulate``: one signature for every engine.

A rank's ops are released by :mod:`simulator.propagate`; a call starts when its last member has
arrived (rendezvous) and is timed by the network. The engine has no options for questions: a
what-if is a function on its inputs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costs import Costs, Planner
from simulator.deadlock import explain
from simulator.errors import DeadlockError, TopologyError, WorkloadError
from simulator.load import cost
from simulator.network import Network
from simulator.propagate import NOBODY, LocalTimes
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
    return run.simulate(ENGINES[engine](run), engine)


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
    missing: list[int] = field(init=False)
    last_arrival: list[float] = field(init=False)
    last_member: list[int] = field(init=False)
    call_start: NDArray[np.float64] = field(init=False)
    call_end: NDArray[np.float64] = field(init=False)
    spent: NDArray[np.float64] = field(init=False)
    link_bytes: NDArray[np.float64] = field(init=False)
    members: list[NDArray[np.int32]] = field(init=False)
    finished: int = 0

    def __post_init__(self) -> None:
        calls = len(self.workload.calls)
        self.local = LocalTimes.of(self.workload)
        self.missing = self.workload.members.tolist()
        self.last_arrival = [0.0] * calls
        self.last_member = [NOBODY] * calls
        self.call_start = np.full(calls, np.nan)
        self.call_end = np.full(calls, np.nan)
        self.spent = np.zeros((calls, len(self.topology.resources) + 1))
        self.link_bytes = np.zeros(len(self.topology))
        joined = np.flatnonzero(self.workload.call >= 0).astype(np.int32)
        by_call = joined[np.argsort(self.workload.call[joined], kind="stable")]
        self.members = np.split(by_call, np.cumsum(self.workload.members)[:-1])

    def simulate(self, begin: Begin, engine: str) -> Timeline:
        self._arrive(self.local.begin(), begin)
        self.env.run()
        pending = int(np.isnan(self.local.end).sum())
        if pending:
            missing = np.array(self.missing, dtype=np.int32)
            raise DeadlockError(explain(self.workload, self.local, missing, self.env.now))
        return Timeline(
            workload=self.workload,
            topology=self.topology,
            engine=engine,
            start=self.local.start,
            end=self.local.end,
            released_by=self.local.released_by,
            call_start=self.call_start,
            call_end=self.call_end,
            call_released_by=np.array(self.last_member, dtype=np.int32),
            call_spent=self.spent,
            link_bytes=self.link_bytes,
        )

    def _arrive(self, ops: NDArray[np.int32], begin: Begin) -> None:
        """Count members in; the last one starts the call, at the latest of their arrivals."""
        calls, arrivals = self.workload.call[ops].tolist(), self.local.start[ops].tolist()
        for op, call, arrival in zip(ops.tolist(), calls, arrivals, strict=True):
            member = self.last_member[call]
            if (
                arrival > self.last_arrival[call]
                or member == NOBODY
                or (arrival == self.last_arrival[call] and op < member)
            ):
                self.last_arrival[call] = arrival
                self.last_member[call] = op
            self.missing[call] -= 1
            if self.missing[call] == 0:
                self._schedule(call, begin)

    def _schedule(self, call: int, begin: Begin) -> None:
        due = float(self.last_arrival[call] + self.workload.calls.late[call])
        event = self.env.timeout(due - self.env.now)
        event.callbacks.append(lambda _: self._start(call, due, begin))

    def _start(self, call: int, due: float, begin: Begin) -> None:
        self.call_start[call] = due
        begin(call, lambda: self._finish(call, begin))

    def _finish(self, call: int, begin: Begin) -> None:
        now = self.env.now
        self.call_end[call] = now
        self.finished += 1
        if self.progress is not None:
            self.progress(self.finished, len(self.workload.calls))
        self._arrive(self.local.finish(self.members[call], now), begin)


def _flow(run: _Run) -> Begin:
    """Contention: loads that use the same links at the same time share them."""
    network = Network(run.env, run.topology)
    run.link_bytes = network.link_bytes
    factor = run.workload.calls.factor

    def begin(call: int, done: Callable[[], None]) -> None:
        loads = run.costs.loads(run.workload.call_view(call))
        traffic = network.start(loads, float(factor[call]), done)
        run.spent[call] = traffic.spent
        traffic.spent = run.spent[call]

    return begin


def _analytic(run: _Run) -> Begin:
    """No contention: every call costs what it costs on an idle network."""
    factor = run.workload.calls.factor

    def begin(call: int, done: Callable[[], None]) -> None:
        loads = run.costs.loads(run.workload.call_view(call))
        for load in loads:
            run.spent[call] += load.latency_of
            if load.amount:
                run.spent[call, run.topology.resource[load.bottleneck]] += load.transfer
            run.link_bytes[load.link] += load.weight * load.amount * factor[call]
        run.spent[call] *= factor[call]
        event = run.env.timeout(cost(loads) * factor[call])
        event.callbacks.append(lambda _: done())

    return begin


def _transfer(run: _Run) -> Begin:
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

    return begin


ENGINES: dict[str, Callable[[_Run], Begin]] = {
    "flow": _flow,
    "analytic": _analytic,
    "transfer": _transfer,
}
