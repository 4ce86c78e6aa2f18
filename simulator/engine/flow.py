"""The engines that have a clock: SimPy's, which begins a call when its last member has arrived."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costing.programs import has_transfers
from simulator.engine.fair_network import Network
from simulator.engine.meeting import At, Meetings
from simulator.engine.propagate import LocalTimes
from simulator.engine.simulation import Progress, Simulation
from simulator.engine.transfers import Followed, carry_out, lay_transfers
from simulator.engine.works import Work, Works

Begin = Callable[[int, Callable[[], None]], None]
"""Begin a call (its index) now; call back when it has ended."""


def flow(simulation: Simulation) -> None:
    """Contention: calls on the same links at the same time share them, transfer by transfer.

    Only calls that may meet others need a clock. All are first taken to be alone on their links;
    those on links where two then are at once get one, and all that may use these links. If what
    they do to each other makes others meet, every call gets one.
    """
    works = Works(simulation.topology)
    work, row = works.distinct(simulation.workload, simulation.costs)
    parts = parts_of_network(work, len(simulation.topology))
    meets = np.zeros(len(work) + 1, dtype=np.bool_)
    meets[-1] = True  # of a call that nobody takes part in nothing is known
    for _ in range(_TRIES):
        _timed(simulation, work, row, meets)
        found = _in_parts(parts, _overlapping(simulation, parts[row], ~meets[row]))
        if not found.any():
            _report_all(simulation)
            return
        meets[:-1] |= found
    _timed(simulation, work, row, np.ones_like(meets))


_TRIES = 2
"""Passes in which some calls have no clock: the first has none at all and is over at once."""


def _report_all(simulation: Simulation) -> None:
    if simulation.progress is not None and len(simulation.workload.calls):
        count = len(simulation.workload.calls)
        simulation.progress(count, count)


def parts_of_network(work: Sequence[Work], links: int) -> NDArray[np.intp]:
    """Part the network so that works on links of different parts never meet.

    Parameters
    ----------
    work
        What calls are to the links.
    links
        How many there are.

    Returns
    -------
    NDArray[np.intp]
        The part of each work, then one for none; -1 of a work without links.
    """
    part_of_link = np.full(links, -1, dtype=np.intp)
    parts = np.full(len(work) + 1, -1, dtype=np.intp)
    first: list[int] = []
    for number, one in enumerate(work):
        if not len(one.link):
            continue
        parts[number] = number
        known = np.unique(part_of_link[one.link])
        part_of_link[one.link] = number
        first.append(number)
        for other in known[known >= 0].tolist():
            part_of_link[part_of_link == other] = number
            parts[parts == other] = number
    return parts


def _overlapping(
    simulation: Simulation, part: NDArray[np.intp], asked: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Parts of the network on which calls, of those asked about, are under way at once."""
    calls = simulation.local.calls
    own = np.flatnonzero(asked & (part >= 0) & ~np.isnan(calls.end))
    own = own[np.lexsort((calls.end[own], calls.start[own], part[own]))]
    alike = part[own][1:] == part[own][:-1]
    at_once = alike & (calls.start[own][1:] < calls.end[own][:-1])
    return np.unique(part[own][1:][at_once])


def _in_parts(parts: NDArray[np.intp], some: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each work is in some parts of the network."""
    return np.isin(parts[:-1], some)


def _timed(
    simulation: Simulation,
    work: Sequence[Work],
    row: NDArray[np.intp],
    meets: NDArray[np.bool_],
) -> None:
    """Simulate all calls; those of works that do not meet others take what they take alone."""
    env = simpy.Environment()
    meetings = Meetings(env, simulation.topology, remembers=True)
    factor = simulation.workload.calls.factor
    own = ~meets[row]
    simulation.spent[:] = 0.0
    cost = np.full(len(row), np.nan)
    alone = np.array([one.time for one in work] + [np.nan])
    cost[own] = alone[row[own]] * factor[own]
    for number in np.unique(row[own]).tolist():
        mine = np.flatnonzero(own & (row == number))
        simulation.spent[mine] = work[number].spent * factor[mine, None]
        meetings.add_bytes(work[number], float(factor[mine].sum()))
    factors, rows = factor.tolist(), row.tolist()

    def begin(call: int, done: Callable[[], None]) -> None:
        def finish(spent: NDArray[np.float64]) -> None:
            simulation.spent[call] = spent
            done()

        meetings.start(work[rows[call]], factors[call], finish)

    _Clock(simulation, env, begin, simulation.progress, int(own.sum())).run(cost)
    simulation.link_bytes = meetings.link_bytes


def transfer(simulation: Simulation) -> None:
    """Every transfer is a flow of its own.

    A call that is no list of transfers is what it is to ``flow``: one of unknown size, and one
    whose steps are all under way at once or added up by the switches. Progress counts calls, of a
    single call its transfers.
    """
    env, costs, topology = simpy.Environment(), simulation.costs, simulation.topology
    network = Network(env, topology)
    progress = simulation.progress if len(simulation.workload.calls) == 1 else None

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
        carry_out(network, steps, plan.overhead, factor, Followed(finish, progress))

    _Clock(simulation, env, begin, None if progress else simulation.progress).run()
    simulation.link_bytes = network.link_bytes


@dataclass(slots=True, eq=False)
class _Clock:
    """Begins calls when they can start; made, run and thrown away by an engine."""

    simulation: Simulation
    env: simpy.Environment
    begin: Begin
    progress: Progress | None
    finished: int = 0

    def run(self, cost: NDArray[np.float64] | None = None) -> None:
        """Begin calls until nothing happens any more; what some cost (s) may be known."""
        self.simulation.local = LocalTimes.of(self.simulation.workload, cost)
        self._schedule(self.simulation.local.begin())
        self.env.run()

    def _schedule(self, calls: list[int]) -> None:
        for call in calls:
            start = At(self.simulation.local.calls.start[call])
            self.env.timeout(start).callbacks.append(partial(self._start, call))

    def _start(self, call: int, _: simpy.Event) -> None:
        self.begin(call, lambda: self._finish(call))

    def _finish(self, call: int) -> None:
        self.finished += 1
        if self.progress is not None:
            self.progress(self.finished, len(self.simulation.workload.calls))
        self._schedule(self.simulation.local.finish(call, self.env.now))
