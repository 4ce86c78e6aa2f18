"""The reference: every transfer of a schedule is a flow of its own.

No step is folded into another and nobody waits for the whole group. Each rank takes its steps in
order (each repetition of a run is a step), and a transfer starts when both its ends have ended
all that they send and receive in the steps before, whatever the others do: a receiver that is not
there yet holds its sender back, as rendezvous does. Concurrent transfers share links max-min
fairly.

Costs an event and a share of every settlement per transfer: for small cases, and to hold the flow
engine to.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.link_load import Load, unknown
from simulator.costing.programs import by_resource
from simulator.engine.fair_network import Network
from simulator.engine.simulation import Progress
from simulator.routing.routes import Routes, routes
from simulator.schedule import Plan, Step
from simulator.topology import Topology

Floats = NDArray[np.float64]
Done = Callable[[Floats], None]
"""Called when a call ends, with where its time went (s), shape ``(resources + 1,)``.

That is where the time of the last transfer went, of the one that released it, and so on back to
the call's start: it adds up to the time of the call.
"""


class Followed(NamedTuple):
    """Who is told of a call: when it has ended, and how many of its transfers have, of how many."""

    done: Done
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One send of a chunk, or of several together.

    Parameters
    ----------
    source, target
        Ranks, as positions in the group.
    load
        Its bytes and latency on the links of its path.
    """

    source: int
    target: int
    load: Load


Transfers = dict[int, list[Transfer]]
"""What each rank sends and receives in one step; every transfer stands in two rows."""


def lay_transfers(
    plan: Plan, positions: NDArray[np.int32], size: float, network: Topology
) -> list[Transfers]:
    """Lay a plan on a topology, transfer by transfer.

    Arguments are those of :func:`simulator.costing.link_load.lay`.

    Returns
    -------
    list
        One item per step, each repetition of a run being a step.
    """
    chunk_bytes = size / plan.schedule.parts / plan.efficiency
    steps: list[Transfers] = []
    for step in plan.schedule.steps:
        transfers = _transfers(step, positions, (chunk_bytes, plan), network)
        steps.extend([transfers] * step.repeats)
    return steps


def carry_out(
    network: Network, steps: list[Transfers], overhead: float, factor: float, followed: Followed
) -> None:
    """Begin a call now: ``overhead`` (s) first, then every rank its first step.

    ``factor`` multiplies the overhead, latencies and amounts.
    """
    run = _Run(network, steps, factor, followed)
    software = (unknown(overhead, network.topology),)
    traffic = network.start(software, factor, lambda: run.begin(traffic.spent))


def _transfers(
    step: Step, positions: NDArray[np.int32], what: tuple[float, Plan], network: Topology
) -> Transfers:
    chunk_bytes, plan = what
    flow: Floats = plan.schedule.units(step)
    flow *= chunk_bytes
    ways = routes(network, positions[step.source], positions[step.target], flow)
    rows: Transfers = {}
    for number in range(len(step.source)):
        load = _flow(ways, number, (float(flow[number]), plan), network)
        source, target = int(step.source[number]), int(step.target[number])
        transfer = Transfer(source, target, load)
        for rank in (source, target):
            rows.setdefault(rank, []).append(transfer)
    return rows


def _flow(ways: Routes, number: int, what: tuple[float, Plan], network: Topology) -> Load:
    """One flow along a path, or divided over several; infinite bandwidths only add latency."""
    amount, plan = what
    taken = slice(ways.offset[number], ways.offset[number + 1])
    path, share = ways.link[taken], ways.share[taken]
    latency_of = np.zeros(len(network.resources) + 1)
    np.add.at(latency_of, network.resource[path], network.latency[path] * share)
    latency_of[:-1] *= plan.latencies * by_resource(plan.latency_factor, network)
    latency_of[-1] += plan.step_latency
    finite = np.isfinite(network.bandwidth[path])
    used = path[finite]
    weight = share[finite] / by_resource(plan.bandwidth_factor, network)[network.resource[used]]
    rates = network.bandwidth[used] / weight
    tightest = int(np.argmin(rates)) if len(used) else -1
    return Load(
        latency=float(latency_of.sum()),
        latency_of=latency_of,
        amount=amount if len(used) else 0.0,
        link=used,
        weight=weight,
        alone=float(rates[tightest]) if len(used) else np.inf,
        bottleneck=int(used[tightest]) if len(used) else -1,
    )


@dataclass(slots=True, eq=False)
class _Run:
    """A call under way.

    ``at`` is the step each rank is in (-1: not begun), ``pending[step]`` counts, by rank, the
    sends and receives of a step that have not ended, ``left`` all transfers that have not.
    """

    network: Network
    steps: list[Transfers]
    factor: float
    followed: Followed
    at: dict[int, int] = field(init=False)
    pending: list[dict[int, int]] = field(init=False)
    left: int = field(init=False)
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.at = {rank: -1 for step in self.steps for rank in step}
        self.pending = [{rank: len(row) for rank, row in step.items()} for step in self.steps]
        self.left = self.total = sum(sum(step.values()) for step in self.pending) // 2

    def begin(self, spent: Floats) -> None:
        """Send every rank into its first step; ``spent`` is where the time went before."""
        if not self.left:
            self.followed.done(spent)
        for rank in sorted(self.at):
            self._advance(rank, spent)

    def _advance(self, rank: int, spent: Floats) -> None:
        """Take the rank to the first step in which it still waits for something."""
        while self._may_go_on(rank):
            self.at[rank] += 1
            if self.at[rank] < len(self.steps):
                for transfer in self.steps[self.at[rank]].get(rank, ()):
                    self._start_if_both_are_there(transfer, spent)

    def _may_go_on(self, rank: int) -> bool:
        step = self.at[rank]
        return step < 0 or (step < len(self.steps) and not self.pending[step].get(rank, 0))

    def _start_if_both_are_there(self, transfer: Transfer, before: Floats) -> None:
        step = self.at[transfer.source]
        if step == self.at[transfer.target]:
            traffic = self.network.start(
                (transfer.load,), self.factor, lambda: self._end(step, transfer, traffic.spent)
            )
            traffic.spent += before

    def _end(self, step: int, transfer: Transfer, spent: Floats) -> None:
        self.left -= 1
        if self.followed.progress is not None:
            self.followed.progress(self.total - self.left, self.total)
        ends = (transfer.source, transfer.target)
        for rank in ends:
            self.pending[step][rank] -= 1
        if not self.left:
            self.followed.done(spent)
            return
        for rank in ends:
            self._advance(rank, spent)
