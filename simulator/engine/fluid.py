"""The flow engine in one compiled loop: the same model, the same answers, without SimPy.

:mod:`simulator.engine.flow` is the readable statement of the model; this is its twin for those who
ask many points. Calls begin, are folded, meet and end in the same order there and here
(:mod:`simulator.engine.fluid_loop`), and their transfers share links in the same loop
(:mod:`simulator.costing.crowd_loop`), so that times agree to the last bits. Here Python only makes
room, and writes out the transfers of a call when it meets another for the first time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from simulator.costing.crowd import Crowd
from simulator.engine.fluid_loop import (
    CALL,
    DONE,
    ENDED,
    EVENT,
    IDLE,
    LACKING,
    MET,
    NEEDS_EVENTS,
    NOBODY,
    PASSED,
    PAUSED,
    QUEUED,
    STAMP,
    TALLIES,
    WIRE,
    WORK,
    World,
    go_on,
    set_out,
)
from simulator.engine.propagate import LocalTimes
from simulator.engine.simulation import Simulation
from simulator.engine.works import Work, Works
from simulator.heap import room
from simulator.topology import Topology
from simulator.workload import Floats

_AWAY = 0.1
"""Seconds, at the most, that are aimed at between two visits of the loop to Python, which reports
progress and may be interrupted."""
_KEPT = 2**21
"""Links of flows for which there are places, above which those that are free are given up."""


def fluid(simulation: Simulation) -> None:
    """Contention as ``flow`` has it: calls on the same links at the same time share them."""
    simulation.local = LocalTimes.of(simulation.workload)
    works, row = Works(simulation.topology).distinct(simulation.workload, simulation.costs)
    Loop.of(simulation, works, row).answer(simulation)


@dataclass(slots=True, eq=False)
class Loop:
    """The arrays of a simulation under way, and room for more.

    Where it has come to its end it may :meth:`renew`: what calls have been written stays in its
    place.
    """

    network: Topology
    works: Sequence[Work]
    world: World
    crowd: Crowd
    past: Crowd
    _links_placed: int = 0
    _dropped_at: int = -1
    _reported: int = 0

    @staticmethod
    def of(simulation: Simulation, works: Sequence[Work], row: NDArray[np.intp]) -> "Loop":
        """Nothing has happened yet; call ``c`` is ``works[row[c]]``."""
        network, count = simulation.topology, len(simulation.workload.calls)
        given = network.bandwidth, network.resource, len(network.resources)
        crowd, past = Crowd(*given), Crowd(*given)
        calls = np.zeros(count, CALL)
        calls["work"] = row
        world = World(
            crowd=crowd.state,
            past=past.state,
            local=simulation.local.columns,
            calls=calls,
            works=_records_of(works),
            wires=np.zeros(len(network), WIRE),
            events=np.zeros(0, EVENT),
            heap=room(0),
            idle=np.zeros(0, dtype=np.int64),
            links=np.concatenate([np.zeros(0, np.int64), *(work.link for work in works)]),
            new=np.zeros(count, dtype=np.int64),
            held=np.zeros(count, dtype=np.int64),
            alone=np.zeros((len(works), len(network.resources) + 1)),
            spent=simulation.spent,
            clock=np.zeros(2),
            tally=np.zeros(TALLIES, dtype=np.int64),
        )
        loop = Loop(network, works, world, crowd, past)
        loop._more_events()
        loop._begin(simulation)
        return loop

    def renew(self, simulation: Simulation, works: Sequence[Work]) -> bool:
        """Go back to the begin, on another network of the graph; say whether that can be.

        Call ``c`` is still the same one of the works, on the same links.
        """
        if self.world.tally[QUEUED] or self.world.tally[MET]:
            return False  # it was interrupted
        if not self._rewritten(works):
            return False
        self.network, self.works = simulation.topology, works
        self.crowd.restart(self.network.bandwidth)
        self.past.restart(self.network.bandwidth)
        self._begin(simulation)
        return True

    def _rewritten(self, works: Sequence[Work]) -> bool:
        """Give the places of all works the numbers that they have now."""
        places = self.crowd.state.calls
        for record, before, work in zip(self.world.works, self.works, works, strict=True):
            if not np.array_equal(before.link, work.link):
                return False
            if record["past"] == NOBODY and record["free"] == NOBODY:
                continue
            program, place = work.program, int(record["free"])
            if record["past"] != NOBODY and not self.past.rewrite(int(record["past"]), program):
                return False
            while place != NOBODY:
                if not self.crowd.rewrite(place, program):
                    return False
                place = int(places["next"][place])
        return True

    def _begin(self, simulation: Simulation) -> None:
        """Set all to what it is before anything happens."""
        world = self.world
        kept = {tally: int(world.tally[tally]) for tally in (IDLE, STAMP)}
        world.tally[:] = 0
        for tally, value in kept.items():
            world.tally[tally] = value
        world.clock[:] = 0.0, np.inf
        world.wires["present"], world.wires["holder"] = 0, NOBODY
        world.calls["factor"] = simulation.workload.calls.factor
        world.calls["folded"] = 0
        world.works["factors"], world.works["order"] = 0.0, NOBODY
        world.works["time"] = [work.time for work in self.works]
        world.works["overhead"] = [work.overhead for work in self.works]
        for number, work in enumerate(self.works):
            world.alone[number] = work.spent
        self._dropped_at, self._reported = -1, 0
        self.world = world._replace(local=simulation.local.columns, spent=simulation.spent)

    def answer(self, simulation: Simulation) -> None:
        """Simulate, and say how many bytes passed the links."""
        self.run(simulation)
        simulation.link_bytes = self.link_bytes()

    def run(self, simulation: Simulation) -> None:
        """Go on until nothing happens any more."""
        set_out(self.world, simulation.local.queue_roots())
        most, begun = 1, monotonic()
        while (why := go_on(self.world, most)) != DONE:
            if why == PAUSED:
                passed = monotonic() - begun
                if passed < _AWAY / 4 or passed > _AWAY:
                    most = most * 2 if passed < _AWAY else max(1, most // 2)
                self._report(simulation)
                begun = monotonic()
            elif why == NEEDS_EVENTS:
                self._more_events()
            else:
                self._place(int(self.world.tally[LACKING]))
        self._report(simulation)

    def _report(self, simulation: Simulation) -> None:
        done = int(self.world.tally[ENDED])
        if simulation.progress is not None and done > self._reported:
            self._reported = done
            simulation.progress(done, len(simulation.workload.calls))

    def link_bytes(self) -> Floats:
        """Bytes of the calls that have begun, on each link (B), shape ``(links,)``."""
        total = np.zeros(len(self.network))
        order = self.world.works["order"]
        for number in np.argsort(order, kind="stable")[np.count_nonzero(order < 0) :].tolist():
            times = float(self.world.works["factors"][number])
            for load in self.works[number].loads:
                total[load.link] += load.weight * (load.amount * times)
        return total

    def _more_events(self) -> None:
        """Make room for twice the events: many calls are never under way at once."""
        old = self.world
        before = len(old.events)
        events = np.zeros(2 * before or len(old.calls) + 8, EVENT)
        events[:before] = old.events
        heap, idle = room(len(events)), np.zeros(len(events), dtype=np.int64)
        queued, free = int(old.tally[QUEUED]), int(old.tally[IDLE])
        heap.key[:queued], heap.item[:queued] = old.heap.key[:queued], old.heap.item[:queued]
        added = np.arange(before, len(events))
        idle[: free + len(added)] = np.concatenate([old.idle[:free], added])
        old.tally[IDLE] += len(added)
        self.world = old._replace(events=events, heap=heap, idle=idle)

    def _place(self, number: int) -> None:
        """Make a place for a work that is about to meet others."""
        if self._links_placed > _KEPT and self._dropped_at != self.world.tally[PASSED]:
            self._drop()
        program, work = self.works[number].program, self.world.works[number]
        self._links_placed += len(program.link)
        if work["past"] == NOBODY:
            work["past"] = self.past.reserve(program)
        place = self.crowd.reserve(program)
        self.crowd.state.calls["next"][place] = work["free"]
        work["free"] = place
        work["spare"] += 1
        self.world = self.world._replace(crowd=self.crowd.state, past=self.past.state)

    def _drop(self) -> None:
        """Give up the places that are free."""
        self._dropped_at, self._links_placed = int(self.world.tally[PASSED]), 0
        for work in self.world.works:
            while work["free"] != NOBODY:
                place = int(work["free"])
                work["free"] = self.crowd.state.calls["next"][place]
                self.crowd.forget(place)
            if work["past"] != NOBODY:
                self.past.forget(int(work["past"]))
            work["spare"], work["past"] = 0, NOBODY


def _records_of(works: Sequence[Work]) -> NDArray[np.void]:
    """Write down where the links of the works are; none has a place yet."""
    found = np.zeros(len(works), WORK)
    last = np.cumsum([0, *(len(work.link) for work in works)])
    found["first"], found["last"] = last[:-1], last[1:]
    found["past"] = found["free"] = NOBODY
    return found
