"""Engine ``flow``: calls on the same links at the same time share them, transfer by transfer.

The step is first timed as if every call had its links to itself, which needs no clock. If no two
calls are then on one link at once, that is the answer. Otherwise a compiled event loop runs the
step (:mod:`simulator.engine.event_loop`). This module allocates its arrays, and writes out the
transfers of a call when it first meets another.

:mod:`simulator.engine.simpy_model` states the model in SimPy's terms; tests hold this engine to it.
"""

from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.engine.event_loop import (
    CALL,
    DONE,
    ENDED,
    EVENT,
    HANDLED,
    IDLE,
    IN_CROWD,
    LACKING,
    NEEDS_EVENTS,
    NEEDS_PROGRAM,
    NOBODY,
    QUEUED,
    STAMP,
    TALLIES,
    WIRE,
    WORK,
    Control,
    World,
    run_events,
    schedule_roots,
)
from simulator.engine.simulation import Columns, LocalTimes, Progress, Simulation
from simulator.engine.works import Work
from simulator.support.arrays import Floats, Matrix, offsets
from simulator.support.heap import room
from simulator.topology import Topology
from simulator.transfers.crowd import Crowd

_VISIT = 0.1
"""Seconds aimed at, at most, between two returns to Python, which reports progress and can be
interrupted."""
_MOST_USES = 2**21
"""Uses of links, over all places of calls, above which free places are given up."""


class Step(NamedTuple):
    """Input of a loop: ops and calls, each call's factor, and the array for its times (s)."""

    columns: Columns
    factor: Floats
    spent: Matrix

    @staticmethod
    def of(simulation: Simulation) -> "Step":
        """Reset a simulation's workload to before its first event."""
        simulation.local = LocalTimes.of(simulation.workload)
        simulation.spent = np.zeros_like(simulation.spent)
        return Step(simulation.local.columns, simulation.workload.calls.factor, simulation.spent)


class Loop(Struct, eq=False):
    """The arrays of a simulation under way.

    After it has ended, :meth:`renew` runs it again on other numbers; transfers that are written
    out keep their places.
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
    def of(network: Topology, works: Sequence[Work], row: NDArray[np.intp], step: Step) -> "Loop":
        """Allocate a loop before its first event; call ``c`` is ``works[row[c]]``."""
        count = len(row)
        links = network.bandwidth, network.resource, len(network.resources)
        crowd, past = Crowd(*links), Crowd(*links)
        calls = np.zeros(count, CALL)
        calls["work"] = row
        # A record per work: the range of its links, and no place yet.
        records = np.zeros(len(works), WORK)
        last = offsets(len(work.link) for work in works)
        records["first"], records["last"] = last[:-1], last[1:]
        records["past"] = records["free"] = NOBODY
        control = Control(
            calls=calls,
            works=records,
            wires=np.zeros(len(network), WIRE),
            events=np.zeros(0, EVENT),
            heap=room(0),
            idle=np.zeros(0, dtype=np.int64),
            links=np.concatenate([np.zeros(0, np.int64), *(work.link for work in works)]),
            new=np.zeros(count, dtype=np.int64),
            held=np.zeros(count, dtype=np.int64),
            clock=np.zeros(2),
            tally=np.zeros(TALLIES, dtype=np.int64),
        )
        alone = np.zeros((len(works), len(network.resources) + 1))
        world = World(control, crowd.state, past.state, step.columns, alone, step.spent)
        loop = Loop(network, works, world, crowd, past)
        loop.make_events()
        loop._reset(step)
        return loop

    def renew(self, simulation: Simulation, works: Sequence[Work]) -> bool:
        """Reset to the start, on another network of the same graph; return False if impossible.

        Call ``c`` stays the same one of the works, on the same links.
        """
        if self.world.control.tally[QUEUED] or self.world.control.tally[IN_CROWD]:
            return False  # it was interrupted
        if not self._rewritten(works):
            return False
        self.network, self.works = simulation.topology, works
        self.crowd.restart(self.network.bandwidth)
        self.past.restart(self.network.bandwidth)
        self._reset(Step.of(simulation))
        return True

    def _rewritten(self, works: Sequence[Work]) -> bool:
        """Write the present latencies and bytes of all works into their places."""
        places = self.crowd.state.calls
        for record, before, work in zip(self.world.control.works, self.works, works, strict=True):
            if not np.array_equal(before.link, work.link):
                return False
            if record["past"] == NOBODY and record["free"] == NOBODY:
                continue
            program, slot = work.program, int(record["free"])
            if record["past"] != NOBODY and not self.past.rewrite(int(record["past"]), program):
                return False
            while slot != NOBODY:
                if not self.crowd.rewrite(slot, program):
                    return False
                slot = int(places["next"][slot])
        return True

    def _reset(self, step: Step) -> None:
        """Reset clocks, counters and works to the start."""
        world, control = self.world, self.world.control
        lasting = {tally: int(control.tally[tally]) for tally in (IDLE, STAMP)}
        control.tally[:] = 0
        for tally, value in lasting.items():
            control.tally[tally] = value
        control.clock[:] = 0.0, np.inf
        control.wires["present"], control.wires["holder"] = 0, NOBODY
        control.calls["factor"] = step.factor
        control.calls["folded"] = 0
        control.works["factors"], control.works["order"] = 0.0, NOBODY
        control.works["time"] = [work.time for work in self.works]
        control.works["overhead"] = [work.overhead for work in self.works]
        for number, work in enumerate(self.works):
            world.alone[number] = work.spent
        self._dropped_at, self._reported = -1, 0
        self.world = world._replace(local=step.columns, spent=step.spent)

    def answer(self, simulation: Simulation) -> None:
        """Simulate, and fill in the bytes that passed each link."""
        self.run(simulation)
        simulation.link_bytes = self.link_bytes()

    def run(self, simulation: Simulation) -> None:
        """Simulate to the end."""
        total = len(simulation.workload.calls)
        schedule_roots(self.world.control, simulation.local.columns, simulation.local.queue_roots())
        most, begun = 1, monotonic()
        while self.run_events(most) != DONE:
            passed = monotonic() - begun
            if passed < _VISIT / 4 or passed > _VISIT:
                most = most * 2 if passed < _VISIT else max(1, most // 2)
            self._report(simulation.progress, total)
            begun = monotonic()
        self._report(simulation.progress, total)

    def run_events(self, most: int) -> int:
        """Handle events until ``most`` more calls have ended, an alarm rings or none is left.

        Returns
        -------
        int
            ``PAUSED``, ``RANG`` or ``DONE``.
        """
        while True:
            reason = run_events(self.world, most)
            if reason == NEEDS_EVENTS:
                self.make_events()
            elif reason == NEEDS_PROGRAM:
                self._add_place(int(self.world.control.tally[LACKING]))
            else:
                return reason

    def _report(self, progress: Progress | None, total: int) -> None:
        ended = int(self.world.control.tally[ENDED])
        if progress is not None and ended > self._reported:
            self._reported = ended
            progress(ended, total)

    def link_bytes(self) -> Floats:
        """Bytes of the calls that have begun, on each link (B), shape ``(links,)``."""
        total = np.zeros(len(self.network))
        order = self.world.control.works["order"]
        for number in np.argsort(order, kind="stable")[np.count_nonzero(order < 0) :].tolist():
            times = float(self.world.control.works["factors"][number])
            for load in self.works[number].loads:
                total[load.link] += load.weight * (load.amount * times)
        return total

    def make_events(self) -> None:
        """Double the room for events, which begins small: few calls are under way at once."""
        old = self.world.control
        before = len(old.events)
        events = np.zeros(2 * before or len(old.calls) + 8, EVENT)
        events[:before] = old.events
        heap, idle = room(len(events)), np.zeros(len(events), dtype=np.int64)
        queued, free = int(old.tally[QUEUED]), int(old.tally[IDLE])
        heap.key[:queued], heap.item[:queued] = old.heap.key[:queued], old.heap.item[:queued]
        added = np.arange(before, len(events))
        idle[: free + len(added)] = np.concatenate([old.idle[:free], added])
        old.tally[IDLE] += len(added)
        control = old._replace(events=events, heap=heap, idle=idle)
        self.world = self.world._replace(control=control)

    def _add_place(self, number: int) -> None:
        """Add a place in the crowd for a distinct call that is about to meet others.

        With too many places all free ones are given up first.
        """
        if (
            self._links_placed > _MOST_USES
            and self._dropped_at != self.world.control.tally[HANDLED]
        ):
            self._dropped_at, self._links_placed = int(self.world.control.tally[HANDLED]), 0
            for dropped in self.world.control.works:
                while dropped["free"] != NOBODY:
                    slot = int(dropped["free"])
                    dropped["free"] = self.crowd.state.calls["next"][slot]
                    self.crowd.forget(slot)
                if dropped["past"] != NOBODY:
                    self.past.forget(int(dropped["past"]))
                dropped["spare"], dropped["past"] = 0, NOBODY
        program, work = self.works[number].program, self.world.control.works[number]
        self._links_placed += len(program.link)
        if work["past"] == NOBODY:
            work["past"] = self.past.reserve(program)
        slot = self.crowd.reserve(program)
        self.crowd.state.calls["next"][slot] = work["free"]
        work["free"] = slot
        work["spare"] += 1
        self.world = self.world._replace(crowd=self.crowd.state, past=self.past.state)
