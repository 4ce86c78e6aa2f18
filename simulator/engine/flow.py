"""The engines that have a clock: SimPy's, which begins a call when its last member has arrived."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costing.programs import has_transfers
from simulator.engine.fair_network import Network
from simulator.engine.meeting import Meetings, Works
from simulator.engine.propagate import LocalTimes
from simulator.engine.simulation import Simulation
from simulator.engine.transfers import carry_out, lay_transfers

Begin = Callable[[int, Callable[[], None]], None]
"""Begin a call (its index) now; call back when it has ended."""


def flow(simulation: Simulation) -> None:
    """Contention: calls on the same links at the same time share them, transfer by transfer."""
    env = simpy.Environment()
    meetings = Meetings(env, simulation.topology)
    factor = simulation.workload.calls.factor.tolist()
    work = Works(simulation.topology).of(simulation.workload, simulation.costs)

    def begin(call: int, done: Callable[[], None]) -> None:
        def finish(spent: NDArray[np.float64]) -> None:
            simulation.spent[call] = spent
            done()

        meetings.start(work(call), factor[call], finish)

    _Clock(simulation, env, begin).run()
    simulation.link_bytes = meetings.link_bytes


def transfer(simulation: Simulation) -> None:
    """Every transfer is a flow of its own.

    A call that is no list of transfers is what it is to ``flow``: one of unknown size, and one
    whose steps are all under way at once or added up by the switches.
    """
    env, costs, topology = simpy.Environment(), simulation.costs, simulation.topology
    network = Network(env, topology)

    def begin(index: int, done: Callable[[], None]) -> None:
        call = simulation.workload.call_view(index)
        factor = float(simulation.workload.calls.factor[index])

        def finish(spent: NDArray[np.float64]) -> None:
            simulation.spent[index] = spent
            done()

        plan, loads = costs.carried(call)
        if plan is None or not has_transfers(plan):
            whole = network.start(loads, factor, lambda: finish(whole.spent))
            return
        positions = np.array(call.group.ranks, dtype=np.int32)
        steps = lay_transfers(plan, positions, call.size, topology)
        carry_out(network, steps, plan.overhead, factor, finish)

    _Clock(simulation, env, begin).run()
    simulation.link_bytes = network.link_bytes


@dataclass(slots=True, eq=False)
class _Clock:
    """Begins calls when they can start; made, run and thrown away by an engine."""

    simulation: Simulation
    env: simpy.Environment
    begin: Begin
    finished: int = 0

    def run(self) -> None:
        """Begin calls until nothing happens any more."""
        self.simulation.local = LocalTimes.of(self.simulation.workload)
        self._schedule(self.simulation.local.begin())
        self.env.run()

    def _schedule(self, calls: list[int]) -> None:
        for call in calls:
            wait = float(self.simulation.local.calls.start[call]) - self.env.now
            self.env.timeout(wait).callbacks.append(partial(self._start, call))

    def _start(self, call: int, _: simpy.Event) -> None:
        self.begin(call, lambda: self._finish(call))

    def _finish(self, call: int) -> None:
        self.finished += 1
        if self.simulation.progress is not None:
            self.simulation.progress(self.finished, len(self.simulation.workload.calls))
        self._schedule(self.simulation.local.finish(call, self.env.now))
