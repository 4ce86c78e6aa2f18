"""The model in SimPy's own words: what engine ``flow`` is held to.

A step is a few kinds of processes under one clock:

* an **op** (:meth:`Job.op`) begins when all that it waits for has ended. Host code, kernels and
  copies then last as long as they were recorded; a member of a call waits for the call;
* a **call** (:meth:`Job.call`) begins when its last member has arrived. Each of its ranks takes the
  steps of the schedule in order (:meth:`Collective.rank`), and a **transfer** of a step
  (:meth:`Collective.transfer`) begins when both of its ranks have got there: a receiver that is
  late holds its sender back;
* the **network** (:meth:`Network.share`) moves the bytes of all transfers under way. Those on one
  link share it max-min fairly: whenever bytes come or have arrived, all rates are found again.

This is written to be read, and for small steps: every transfer is a process, nothing is folded and
nothing is compiled. Engine ``flow`` (:mod:`simulator.engine.flow`) says the same of a million
transfers in a second or two, and is tested against this.

Times are in seconds, amounts in bytes, rates in bytes per second.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costing.link_load import Load, Run
from simulator.engine.simulation import NOBODY, LocalTimes, Simulation
from simulator.schedule import Plan, Step
from simulator.support.arrays import Floats
from simulator.topology import Topology
from simulator.transfers.program import has_transfers, transfers

Process = Generator[simpy.Event, Any, Any]
"""A SimPy process: it yields the events that it waits for."""

Links = NDArray[np.int32]

RESOLUTION = 1e-12
"""Bytes that would arrive within a picosecond have arrived, or within this fraction of the clock.

Two arrivals that differ by rounding only are one event by that. The fraction is 4,500 times the
spacing of floats around the clock; a picosecond is more than that spacing of any clock below
1,000 s, so that every delay that is waited for moves the clock.
"""


def simulate_with_simpy(simulation: Simulation) -> None:
    """Run all ops of a workload; what cannot happen is left without a time (NaN)."""
    env = simpy.Environment()
    network = Network(env, simulation.topology)
    Job(env, network, simulation).begin()
    env.run()  # until nothing can happen any more, whether or not all has happened
    simulation.link_bytes = network.link_bytes


class At(float):
    """A time of the clock, to be given to SimPy as a delay.

    SimPy adds a delay to its clock, and rounds: the event may come a last bit before or after
    others of the same instant. The sum of a clock and this is the time itself.
    """

    def __radd__(self, now: float) -> float:
        """Return the time, or what the clock says if that is later."""
        return max(now, float(self))


# ------------------------------------------------------------------------------------ the network


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes under way at one ``rate`` on all of its links.

    A flow at rate ``x`` puts ``weight[i] * x`` on ``link[i]``: 1 on a plain path, less on each of
    several parallel paths, more where a library does not reach what the link has. ``end`` is when
    the last of them arrives at this rate, ``bottleneck`` the link that holds it to that, ``spent``
    how long each resource has done so.
    """

    link: Links
    weight: Floats
    remaining: float
    spent: Floats
    arrived: simpy.Event
    rate: float = 0.0
    end: float = inf
    bottleneck: int = -1


class Network:
    """Links that flows share; ``link_bytes`` is what each has been given to carry."""

    def __init__(self, env: simpy.Environment, topology: Topology):
        self.env, self.topology = env, topology
        self.link_bytes = np.zeros(len(topology))
        self.flows: list[Flow] = []
        self.moved_until = 0.0
        self.joined = env.event()  # that a flow has come since the rates were found
        env.process(self.share())

    def carry(self, link: Links, weight: Floats, amount: float, spent: Floats) -> simpy.Event:
        """Put bytes on links; return the event of their arrival. ``spent`` is added to."""
        np.add.at(self.link_bytes, link, weight * amount)
        self.move()  # up to now the others had the links without this flow
        flow = Flow(link, weight, amount, spent, self.env.event())
        self.flows.append(flow)
        if not self.joined.triggered:
            self.joined.succeed()
        return flow.arrived

    def share(self) -> Process:
        """Sleep until bytes come or have arrived, then find all rates; for ever."""
        while True:
            earliest = min((flow.end for flow in self.flows), default=inf)
            wake_up: simpy.Event = self.joined
            if earliest < inf:
                wake_up |= self.env.timeout(At(earliest))
            yield wake_up
            if self.joined.processed:
                self.joined = self.env.event()
            self.move()
            soon = self.env.now + RESOLUTION * min(1.0, self.env.now)
            arrived = [flow for flow in self.flows if flow.end <= soon]
            self.flows = [flow for flow in self.flows if flow.end > soon]
            for flow in arrived:
                flow.arrived.succeed()
            self.find_rates()

    def move(self) -> None:
        """Move bytes for the time since this was last done, at the rates of that time."""
        passed = self.env.now - self.moved_until
        self.moved_until = self.env.now
        for flow in self.flows if passed else ():
            flow.remaining = max(0.0, flow.remaining - flow.rate * passed)
            flow.spent[self.topology.resource[flow.bottleneck]] += passed

    def find_rates(self) -> None:
        """Share every link fairly among the flows on it."""
        if self.flows:
            rates, bottlenecks = max_min_rates(
                [flow.link for flow in self.flows],
                [flow.weight for flow in self.flows],
                self.topology.bandwidth,
            )
            for flow, rate, link in zip(self.flows, rates.tolist(), bottlenecks, strict=True):
                flow.bottleneck = int(link)
                if rate != flow.rate:  # else its end stays what it is, to the last bit
                    flow.rate, flow.end = rate, self.env.now + flow.remaining / rate


# ---------------------------------------------------------------------------- calls and their ranks


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """What is sent at once: it waits a latency, then moves bytes.

    ``latency_of`` splits the latency by resource, the last for software, shape
    ``(resources + 1,)``. ``source`` and ``target`` are ranks, as positions in the group.
    """

    latency_of: Floats
    amount: float
    link: Links
    weight: Floats
    source: int = -1
    target: int = -1


StepOfRanks = list[list[Transfer]]
"""What each rank of a group sends and receives in a step; every transfer stands there twice."""


@dataclass(slots=True, eq=False)
class Collective:
    """A call under way.

    ``factor`` multiplies latencies and amounts: 1 is the model as it is. ``meeting`` has the
    transfers of which one end is there and the other is not, by the number of the step.
    """

    env: simpy.Environment
    network: Network
    factor: float
    meeting: dict[tuple[int, Transfer], simpy.Event] = field(default_factory=dict)

    def together(self, loads: Sequence[Load], spent: Floats) -> Process:
        """Carry out a call whose group moves as one; return where its time went.

        Either nobody knows its transfers, or no rank takes any by itself: the switches add up, or
        all steps are under way at once.
        """
        for transfer in steps_of_group(loads):
            spent = yield from self.transfer(transfer, spent)
        return spent

    def by_ranks(self, plan: Plan, steps: Sequence[StepOfRanks], spent: Floats) -> Process:
        """Carry out a call of which each rank goes its own way; return where its time went (s).

        That is where the time of the last transfer went, of the one that released it, and so on
        back to the begin: it adds up to the time of the call.
        """
        repeats = [step.repeats for step in plan.schedule.steps]
        all_steps = [
            ranks for ranks, times in zip(steps, repeats, strict=True) for _ in range(times)
        ]
        ranks = range(plan.schedule.ranks)
        ways = [self.env.process(self.rank(rank, all_steps, spent)) for rank in ranks]
        return (yield from self.last_of(ways, spent))

    def rank(self, rank: int, steps: Sequence[StepOfRanks], spent: Floats) -> Process:
        """Take a rank through all steps: to the next when its transfers of this one have ended."""
        for number, step in enumerate(steps):
            ends = [self.meet(number, transfer, spent) for transfer in step[rank]]
            spent = yield from self.last_of(ends, spent)
        return spent

    def last_of(self, ends: Sequence[simpy.Event], spent: Floats) -> Process:
        """Wait for all of some events; return where the time went up to the last of them."""
        for end in ends:
            before = self.env.now
            went = yield end
            if self.env.now > before:  # else it had happened, and what was waited for came later
                spent = went
        return spent

    def meet(self, number: int, transfer: Transfer, spent: Floats) -> simpy.Event:
        """Bring one end of a transfer to a step, the second begins it; return the event of its end.

        The time before it went where that of the second end did.
        """
        ended = self.meeting.pop((number, transfer), None)
        if ended is None:
            ended = self.meeting[number, transfer] = self.env.event()
        else:
            self.env.process(self.send(transfer, spent, ended))
        return ended

    def send(self, transfer: Transfer, spent: Floats, ended: simpy.Event) -> Process:
        """Carry out a transfer of two ranks, and let both know."""
        ended.succeed((yield from self.transfer(transfer, spent)))

    def transfer(self, transfer: Transfer, spent: Floats) -> Process:
        """Wait the latency, then move the bytes; return where the time went by then."""
        latency_of = transfer.latency_of * self.factor
        spent = spent + latency_of
        if latency := float(latency_of.sum()):
            yield self.env.timeout(latency)
        if amount := transfer.amount * self.factor:
            yield self.network.carry(transfer.link, transfer.weight, amount, spent)
        return spent


def steps_of_group(loads: Sequence[Load]) -> Iterator[Transfer]:
    """List what a group that moves as one does, step by step."""
    for load in loads:
        for run in load.runs or (Run(1, load.latency, load.amount),):
            part = run.latency / load.latency if load.latency else 0.0
            step = Transfer(load.latency_of * part, run.amount, load.link, load.weight)
            for _ in range(run.repeats):
                yield step


def _of_ranks(
    step: Step, plan: Plan, positions: NDArray[np.int32], where: tuple[float, Topology]
) -> StepOfRanks:
    latency_of, amount, hops, link, weight = transfers(step, plan, positions, where)
    last = np.cumsum(hops)  # the links of transfer t end at last[t]
    ranks: StepOfRanks = [[] for _ in range(plan.schedule.ranks)]
    for number, (source, target) in enumerate(zip(step.source, step.target, strict=True)):
        path = slice(last[number] - hops[number], last[number])
        transfer = Transfer(
            latency_of[number],
            float(amount[number]),
            link[path].astype(np.int32),
            weight[path],
            int(source),
            int(target),
        )
        ranks[transfer.source].append(transfer)
        ranks[transfer.target].append(transfer)
    return ranks


# -------------------------------------------------------------------------------- ops of all ranks


class Job:
    """A workload under way: ops that wait for each other and for calls.

    What happens is written to ``simulation``: when ops and calls start and end, and which op was
    the last that let another start.
    """

    def __init__(self, env: simpy.Environment, network: Network, simulation: Simulation):
        workload = simulation.workload
        self.env, self.network, self.simulation = env, network, simulation
        self.workload, self.costs = workload, simulation.costs
        simulation.local = LocalTimes.of(workload)
        self.ops, self.calls = simulation.local.ops, simulation.local.calls
        self.arrived = [env.event() for _ in range(len(workload.calls))]  # the last member
        self.ended = [env.event() for _ in range(len(workload.calls))]
        self.laid: dict[Any, list[StepOfRanks]] = {}
        self.calls_ended = 0

    def begin(self) -> None:
        """Begin the calls, which wait for their members, and the ops that wait for nothing."""
        for call in np.flatnonzero(self.workload.members).tolist():
            self.env.process(self.call(call))
        for op in np.flatnonzero(self.ops.waits == 0).tolist():
            self.env.process(self.op(op))

    def op(self, op: int) -> Process:
        """Run an op of which all predecessors have ended, then tell its successors."""
        start = self.ops.available[op]  # what lets it start may do so some time later: a lag
        yield self.env.timeout(At(start))
        self.ops.start[op] = start
        call = int(self.workload.call[op])
        if call != NOBODY:
            if not self.workload.unawaited[op]:
                self.arrive(op, call)
            yield self.ended[call]
        end = self.env.now + self.workload.duration[op]
        yield self.env.timeout(At(end))
        self.ops.end[op] = end
        self.release_successors(op, end)

    def release_successors(self, op: int, end: float) -> None:
        """Begin the ops that waited for this one and now wait for nothing.

        Among predecessors that allow the same start the one of the lowest index released it.
        """
        edges, ops = self.workload.edges, self.ops
        for edge in range(edges.offset[op], edges.offset[op + 1]):
            successor = edges.target[edge]
            time, latest = end + edges.lag[edge], ops.available[successor]
            released_by = ops.released_by[successor]
            if time > latest or (time == latest and not NOBODY < released_by <= op):
                ops.available[successor], ops.released_by[successor] = time, op
            ops.waits[successor] -= 1
            if ops.waits[successor] == 0:
                self.env.process(self.op(int(successor)))

    def arrive(self, op: int, call: int) -> None:
        """Count a member of a call in; of those that come last the lowest index is named."""
        calls, now = self.calls, self.env.now
        last = calls.last_member[call]
        if last == NOBODY or now > calls.last_arrival[call] or op < last:
            calls.last_arrival[call], calls.last_member[call] = now, op
        calls.missing[call] -= 1
        if calls.missing[call] == 0:
            self.arrived[call].succeed()

    def call(self, call: int) -> Process:
        """Wait for all members of a call, carry it out, and let them go on."""
        yield self.arrived[call]
        start = self.env.now + self.workload.calls.late[call]
        yield self.env.timeout(At(start))
        self.calls.start[call] = start
        view = self.workload.call_view(call)
        plan, loads = self.costs.carried(view)
        factor = float(self.workload.calls.factor[call])
        spent = np.zeros(len(self.network.topology.resources) + 1)
        collective = Collective(self.env, self.network, factor)
        if plan is None or not has_transfers(plan):
            spent = yield from collective.together(loads, spent)
        else:
            key = id(plan), view.group.ranks, view.size
            if key not in self.laid:
                positions = np.array(view.group.ranks, dtype=np.int32)
                self.laid[key] = [
                    _of_ranks(step, plan, positions, (view.size, self.network.topology))
                    for step in plan.schedule.steps
                ]
            overhead = plan.overhead * factor
            spent[-1] = overhead
            yield self.env.timeout(overhead)
            spent = yield from collective.by_ranks(plan, self.laid[key], spent)
        self.simulation.spent[call] = spent
        self.calls.end[call] = self.env.now
        self.ended[call].succeed()
        self.calls_ended += 1
        if self.simulation.progress is not None:
            self.simulation.progress(self.calls_ended, len(self.workload.calls))


_SAME = 1e-12
"""Links whose levels differ by less than this fraction saturate together."""


def max_min_rates(
    links: Sequence[NDArray[np.int32]],
    weights: Sequence[NDArray[np.float64]],
    bandwidth: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rates of loads that share links max-min fairly, flow by flow.

    Load ``i`` at rate ``x`` puts ``weights[i][k] * x`` on link ``links[i][k]``: the flows of a
    load advance together, and each flow counts the same at a link (Bertsekas and Gallager, Data
    Networks, 1992, section 6.5.2, progressive filling).

    Parameters
    ----------
    links, weights
        By load: the links it uses, and what it puts on each per unit of its rate.
    bandwidth
        Of every link (B/s), shape ``(links,)``.

    Returns
    -------
    rates
        Of each load (B/s), shape ``(loads,)``.
    holds
        The bottleneck of each, shape ``(loads,)``.

    Examples
    --------
    Two flows on link 0 (3 B/s), one of them also on link 1 (1 B/s):

    >>> ones = np.ones(2)
    >>> rates, _ = max_min_rates(
    ...     [np.array([0], np.int32), np.array([0, 1], np.int32)],
    ...     [ones[:1], ones],
    ...     np.array([3.0, 1.0]),
    ... )
    >>> rates.tolist()
    [2.0, 1.0]
    """
    owner = np.repeat(np.arange(len(links)), [len(link) for link in links])
    used, link = np.unique(np.concatenate(links), return_inverse=True)
    weight = np.concatenate(weights)
    capacity = bandwidth[used].astype(np.float64)
    rates = np.zeros(len(links))
    holds = np.full(len(links), -1, dtype=np.int64)
    free = np.ones(len(links), dtype=bool)
    taken = np.zeros(len(used))
    while free.any():
        active = free[owner]
        demand = np.bincount(link[active], weights=weight[active], minlength=len(used))
        level = np.full(len(used), np.inf)
        np.divide(np.maximum(capacity - taken, 0.0), demand, out=level, where=demand > 0)
        lowest = level.min()
        full = level <= lowest * (1 + _SAME)
        at_full = active & full[link]
        stopped = np.unique(owner[at_full])
        rates[stopped] = lowest
        holds[owner[at_full]] = used[link[at_full]]
        free[stopped] = False
        now_fixed = active & ~free[owner]
        taken += np.bincount(
            link[now_fixed], weights=weight[now_fixed] * lowest, minlength=len(used)
        )
    return rates, holds
