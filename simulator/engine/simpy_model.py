"""The model in SimPy's terms, the reference for engine ``flow``.

A step is a few kinds of processes under one clock:

* an **op** (:meth:`Job.op`) starts when all its predecessors have ended. Host code, kernels and
  copies then take their recorded durations; a member of a call waits for the call;
* a **call** (:meth:`Job.call`) starts when its last member has arrived. Each of its ranks takes the
  steps of the schedule in order (:meth:`Collective.rank`), and a **transfer** of a step
  (:meth:`Collective.transfer`) starts when both of its ranks have reached it: a late receiver
  delays its sender;
* the **network** (:meth:`Network.share`) moves the bytes of all current transfers. Those on one
  link share it max-min fairly: whenever a flow starts or ends, all rates are recomputed.

This is written to be read, and for small steps: every transfer is a process, nothing is folded and
nothing is compiled. Engine ``flow`` (:mod:`simulator.engine.flow`) simulates the same for a million
transfers in a second or two, and is tested against this.

Times are in seconds, amounts in bytes, rates in bytes per second.
"""

from collections.abc import Generator, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
import simpy
from msgspec import Struct, field
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
"""Flows that would end within a picosecond, or within this fraction of the clock, have ended.

So two arrivals that differ by rounding only are one event. The fraction is 4,500 times the spacing
of floats around the clock; a picosecond is more than that spacing of any clock below 1,000 s, so
that every delay moves the clock.
"""


def simulate_with_simpy(simulation: Simulation) -> None:
    """Simulate all ops of a workload; the times of ops that cannot run stay NaN."""
    env = simpy.Environment()
    network = Network(env, simulation.topology)
    Job(env, network, simulation).begin()
    env.run()  # until no event is left, even if ops are pending
    simulation.link_bytes = network.link_bytes


class At(float):
    """An absolute time, passed to SimPy as a delay.

    SimPy adds a delay to its clock, and rounds: the event may come a last bit before or after
    others of the same instant. The sum of the clock and an ``At`` is exactly its time.
    """

    def __radd__(self, now: float) -> float:
        """Return the time, or the clock if that is later."""
        return max(now, float(self))


def until(env: simpy.Environment, time: float) -> Process:
    """Wait for an absolute time; one that has come takes no event."""
    if time > env.now:
        yield env.timeout(At(time))


# ------------------------------------------------------------------------------------ the network


class Flow(Struct, eq=False):
    """Bytes that move at one ``rate`` over all of its links.

    A flow at rate ``x`` puts ``weight[i] * x`` on ``link[i]``: 1 on a plain path, less on each of
    several parallel paths, more where a library does not reach the link's bandwidth. ``end`` is
    when its last byte arrives at this rate, ``bottleneck`` the link that limits the rate, ``spent``
    the time for which links of each resource did so.
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
    """Links shared by flows; ``link_bytes`` is the bytes sent over each."""

    def __init__(self, env: simpy.Environment, topology: Topology):
        self.env, self.topology = env, topology
        self.link_bytes = np.zeros(len(topology))
        self.flows: list[Flow] = []
        self.moved_until = 0.0
        self.joined = env.event()  # a flow has started since the rates were computed
        env.process(self.share())

    def carry(self, link: Links, weight: Floats, amount: float, spent: Floats) -> simpy.Event:
        """Start a flow; return the event of its end. Its time by resource is added to ``spent``."""
        np.add.at(self.link_bytes, link, weight * amount)
        self.move()  # advance the other flows without this one
        flow = Flow(link, weight, amount, spent, self.env.event())
        self.flows.append(flow)
        if not self.joined.triggered:
            self.joined.succeed()
        return flow.arrived

    def share(self) -> Process:
        """Sleep until a flow starts or ends, then recompute all rates; for ever."""
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
        """Advance all flows to now, at their current rates."""
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
                if rate != flow.rate:  # an unchanged rate must not change its end by rounding
                    flow.rate, flow.end = rate, self.env.now + flow.remaining / rate


# ---------------------------------------------------------------------------- calls and their ranks


class Transfer(Struct, frozen=True, eq=False):
    """What is sent as one: it waits a latency, then moves bytes.

    ``latency_of`` splits the latency by resource, the last for software, shape ``(resources +
    1,)``. ``source`` and ``target`` are ranks, as positions in the group.
    """

    latency_of: Floats
    amount: float
    link: Links
    weight: Floats
    source: int = -1
    target: int = -1


StepOfRanks = list[list[Transfer]]
"""Transfers that each rank of a group sends or receives in a step; each is in two lists."""


class Collective(Struct, eq=False):
    """A call while it runs.

    ``factor`` multiplies latencies and amounts: 1 is the model unchanged. ``meeting`` has the
    transfers that one end has reached and the other has not, by the number of the step.
    """

    env: simpy.Environment
    network: Network
    factor: float
    meeting: dict[tuple[int, Transfer], simpy.Event] = field(default_factory=dict)

    def together(self, loads: Sequence[Load], spent: Floats) -> Process:
        """Carry out a call whose group advances in step; return its time by resource.

        Either its transfers are unknown, or no rank takes any by itself: the switches add, or all
        steps run at once.
        """
        for transfer in steps_of_group(loads):
            spent = yield from self.transfer(transfer, spent)
        return spent

    def by_ranks(self, plan: Plan, steps: Sequence[StepOfRanks], spent: Floats) -> Process:
        """Carry out a call whose ranks advance independently; return its time by resource (s).

        That is the time of the last transfer, of the one that released it, and so on back to the
        start: it sums to the time of the call.
        """
        repeats = [step.repeats for step in plan.schedule.steps]
        all_steps = [
            ranks for ranks, times in zip(steps, repeats, strict=True) for _ in range(times)
        ]
        ranks = range(plan.schedule.ranks)
        ways = [self.env.process(self.rank(rank, all_steps, spent)) for rank in ranks]
        return (yield from self.last_of(ways, spent))

    def rank(self, rank: int, steps: Sequence[StepOfRanks], spent: Floats) -> Process:
        """Take a rank through all steps; each ends when the rank's transfers in it have ended."""
        for number, step in enumerate(steps):
            ends = [self.meet(number, transfer, spent) for transfer in step[rank]]
            spent = yield from self.last_of(ends, spent)
        return spent

    def last_of(self, ends: Sequence[simpy.Event], spent: Floats) -> Process:
        """Wait for all of some events; return the time by resource up to the last of them."""
        for end in ends:
            before = self.env.now
            spent_until = yield end
            if self.env.now > before:  # else it had ended before another one that we waited for
                spent = spent_until
        return spent

    def meet(self, number: int, transfer: Transfer, spent: Floats) -> simpy.Event:
        """Let one end reach a transfer; the second end starts it. Return the event of its end.

        Its time by resource continues that of the second end.
        """
        ended = self.meeting.pop((number, transfer), None)
        if ended is None:
            ended = self.meeting[number, transfer] = self.env.event()
        else:
            self.env.process(self.send(transfer, spent, ended))
        return ended

    def send(self, transfer: Transfer, spent: Floats, ended: simpy.Event) -> Process:
        """Carry out a transfer of two ranks, and trigger the event of its end."""
        ended.succeed((yield from self.transfer(transfer, spent)))

    def transfer(self, transfer: Transfer, spent: Floats) -> Process:
        """Wait the latency, then move the bytes; return the time by resource at the end."""
        latency_of = transfer.latency_of * self.factor
        spent = spent + latency_of
        if latency := float(latency_of.sum()):
            yield self.env.timeout(latency)
        if amount := transfer.amount * self.factor:
            yield self.network.carry(transfer.link, transfer.weight, amount, spent)
        return spent


def steps_of_group(loads: Sequence[Load]) -> Iterator[Transfer]:
    """Iterate over the transfers of a group that advances in step."""
    for load in loads:
        for run in load.runs or (Run(1, load.latency, load.amount),):
            part = run.latency / load.latency if load.latency else 0.0
            step = Transfer(load.latency_of * part, run.amount, load.link, load.weight)
            for _ in range(run.repeats):
                yield step


def _transfers_of_ranks(
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
    """A workload while it runs: ops that wait for each other and for calls.

    Results are written to ``simulation``: starts and ends of ops and calls, and the op that
    released each op.
    """

    def __init__(self, env: simpy.Environment, network: Network, simulation: Simulation):
        workload = simulation.workload
        self.env, self.network, self.simulation = env, network, simulation
        self.workload, self.costs = workload, simulation.costs
        simulation.local = LocalTimes.of(workload)
        self.ops, self.calls = simulation.local.ops, simulation.local.calls
        self.arrived = [env.event() for _ in range(len(workload.calls))]  # the last member
        self.ended = [env.event() for _ in range(len(workload.calls))]
        self.written: dict[Any, list[StepOfRanks]] = {}
        self.calls_ended = 0

    def begin(self) -> None:
        """Start the calls, which wait for their members, and the ops without predecessors."""
        for call in np.flatnonzero(self.workload.members).tolist():
            self.env.process(self.call(call))
        for op in np.flatnonzero(self.ops.waits == 0).tolist():
            self.env.process(self.op(op))

    def op(self, op: int) -> Process:
        """Run an op whose predecessors have all ended, then release its successors."""
        start = self.ops.available[op]  # ends of predecessors plus lags
        yield from until(self.env, start)
        self.ops.start[op] = start
        call = int(self.workload.call[op])
        if call != NOBODY:
            if not self.workload.unawaited[op]:
                self.arrive(op, call)
            yield self.ended[call]
        end = self.env.now + self.workload.duration[op]
        yield from until(self.env, end)
        self.ops.end[op] = end
        self.release_successors(op, end)

    def release_successors(self, op: int, end: float) -> None:
        """Start the successors of an op that have no other predecessor left.

        Of predecessors that allow the same start, the one with the lowest index released it.
        """
        edges, ops = self.workload.edges, self.ops
        following = slice(edges.offset[op], edges.offset[op + 1])
        lags = edges.lag[following].tolist()
        for successor, lag in zip(edges.target[following].tolist(), lags, strict=True):
            time, latest = end + lag, ops.available[successor]
            released_by = ops.released_by[successor]
            if time > latest or (time == latest and not NOBODY < released_by <= op):
                ops.available[successor], ops.released_by[successor] = time, op
            ops.waits[successor] -= 1
            if ops.waits[successor] == 0:
                self.env.process(self.op(successor))

    def arrive(self, op: int, call: int) -> None:
        """Count an arrival of a call; among the last members the lowest index is recorded."""
        calls, now = self.calls, self.env.now
        last = calls.last_member[call]
        if last == NOBODY or now > calls.last_arrival[call] or op < last:
            calls.last_arrival[call], calls.last_member[call] = now, op
        calls.missing[call] -= 1
        if calls.missing[call] == 0:
            self.arrived[call].succeed()

    def call(self, call: int) -> Process:
        """Wait for all members of a call, carry it out, and release them."""
        yield self.arrived[call]
        start = self.env.now + self.workload.calls.late[call]
        yield from until(self.env, start)
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
            if key not in self.written:
                positions = np.array(view.group.ranks, dtype=np.int32)
                self.written[key] = [
                    _transfers_of_ranks(step, plan, positions, (view.size, self.network.topology))
                    for step in plan.schedule.steps
                ]
            overhead = plan.overhead * factor
            spent[-1] = overhead
            yield self.env.timeout(overhead)
            spent = yield from collective.by_ranks(plan, self.written[key], spent)
        self.simulation.spent[call] = spent
        self.calls.end[call] = self.env.now
        self.ended[call].succeed()
        self.calls_ended += 1
        if self.simulation.progress is not None:
            self.simulation.progress(self.calls_ended, len(self.workload.calls))


_EQUAL = 1e-12
"""Relative difference of levels below which links saturate together."""


def max_min_rates(
    links: Sequence[NDArray[np.int32]],
    weights: Sequence[NDArray[np.float64]],
    bandwidth: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the rates of loads that share links max-min fairly, flow by flow.

    Load ``i`` at rate ``x`` puts ``weights[i][k] * x`` on link ``links[i][k]``: the flows of a load
    advance together, and all flows count equally at a link (Bertsekas and Gallager, Data
    Networks, 1992, section 6.5.2, progressive filling).

    Parameters
    ----------
    links, weights
        For each load: its links, and its rate on each of them per unit of its own rate.
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
        full = level <= lowest * (1 + _EQUAL)
        at_full = active & full[link]
        stopped = owner[at_full]  # once for each of a load's full links
        rates[stopped] = lowest
        holds[stopped] = used[link[at_full]]
        free[stopped] = False
        now_fixed = active & ~free[owner]
        taken += np.bincount(
            link[now_fixed], weights=weight[now_fixed] * lowest, minlength=len(used)
        )
    return rates, holds
