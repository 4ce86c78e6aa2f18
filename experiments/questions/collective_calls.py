"""Several concurrent calls on one network: the time of each, and what slows it down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from collectives.bandwidth import busbw
from collectives.libraries.planners import algorithm_named
from experiments.documents import networks as documents
from experiments.priors.network import NetworkPrior, prior_of
from experiments.provenance import Unbounded
from experiments.questions.collective import changed_network, cluster_of, network_of
from experiments.report import Report, question
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import TimedCall, for_ranks, parse_timed_call
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow
from simulator.engine.simulate import Costs, Planner, simulate_on
from simulator.imbalance import parse_imbalance
from simulator.schedule import Plan
from simulator.shares import Shares, largest
from simulator.support.arrays import Floats
from simulator.support.errors import WhatIfError
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import What, Workload
from topologies import Cluster
from topologies.cluster.catalog import link_doubts

_MOST_CALLS = 64
"""Most concurrent calls: of 64, each pair is simulated, 2,016 in all."""
_MOST = 100_000
"""Most repetitions of a call: more are a mistake in ``every``."""
_ROUNDS = 50
"""Most simulations to find how often calls without an end repeat: each adds some repetitions."""


@dataclass(frozen=True, slots=True)
class CallBeside:
    """One call alone and beside the others; times are means over its repetitions (s).

    ``number`` counts from 1. ``slowdown`` is ``mean_s`` over ``alone_s``, ``longest_s`` the longest
    repetition. ``start_s`` is the start of the first repetition beside the others, ``end_s`` the
    end of the last. Busbw in 1e9 B/s, as nccl-tests defines it.
    """

    number: int
    call: str
    kind: str
    ranks: int
    size_bytes: float
    algorithm: str
    protocol: str
    times: int
    alone_s: float
    mean_s: float
    longest_s: float
    slowdown: float
    start_s: float
    end_s: float
    alone_busbw_GBps: Unbounded
    busbw_GBps: Unbounded


@dataclass(frozen=True, slots=True)
class CallEffect:
    """Effect of one call on another, and the links that they share.

    ``slowdown`` is the mean time of ``call`` with only ``beside`` on the network, over its time
    alone. ``links`` is the number of links that carry both; ``link`` is the one of these with the
    longest total busy time, of ``resource``; ``busy_s`` and ``beside_busy_s`` are how long each
    call alone keeps it busy, over all repetitions (s).
    """

    call: int
    beside: int
    slowdown: float
    links: int
    link: str
    resource: str
    busy_s: float
    beside_busy_s: float


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One repetition of a call beside the others (s)."""

    call: int
    repetition: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CollectiveCallsReport(Report):
    """Concurrent calls on a network (``where``): each alone, together, and in pairs.

    ``network_prior`` is the uncertainty of the cluster's figures; empty for a bare topology.
    """

    schema: ClassVar[str] = "twofold/collective_calls/1"
    listed: ClassVar = CallBeside, "calls"
    document = documents.collective_calls
    answered: ClassVar = "where engine makespan_s calls effects spans network_prior"

    where: str
    engine: str
    makespan_s: float
    calls: tuple[CallBeside, ...]
    effects: tuple[CallEffect, ...]
    spans: tuple[CallSpan, ...]
    cluster: Cluster | None
    network_prior: tuple[NetworkPrior, ...] = ()
    doubts: tuple[str, ...] = ()

    def write_timeline(self, path: Path) -> None:
        """Write the calls for ui.perfetto.dev, together and alone."""
        from experiments.output.timeline_files import events_of_calls, write_events

        about = {"network": self.where, "engine": self.engine}
        write_events(path, about, events_of_calls(self))


@question("collective_calls")
def collective_calls(
    calls: Sequence[str],
    network: Cluster | Topology | Path | str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    engine: str = "flow",
    what_ifs: Sequence[str] = (),
) -> CollectiveCallsReport:
    """Time calls alone and concurrently on a cluster or a bare topology.

    Parameters
    ----------
    calls
        Such as ``all_reduce 64MiB ranks 0-15`` and ``all_to_all 1MiB ranks 0-31 every 2ms``
        (:mod:`experiments.scenario.timed_calls`).
    network
        A cluster, its name in the catalogue, the path of its file, or a bare topology.
    ranks
        Ranks of the job, all of which take part in calls that name none; by default as many as the
        calls name.
    nodes
        Number of nodes over which they are spread evenly; by default they fill nodes in order.
    engine
        ``flow`` or ``simpy``.
    what_ifs
        Changes of the cluster, such as ``transport sockets``.

    Raises
    ------
    TwofoldError
        If a call cannot be read, names ranks that do not exist, or has no end and all others have
        none; if the network is unknown; if the engine leaves out contention.

    Examples
    --------
    The message gets a quarter of its sender's port, as do the three messages of the all-to-all:

    >>> from topologies import switch
    >>> network = switch(4, bandwidth=1e9, latency=0.0)
    >>> calls = ["all_to_all 4MB", "send_recv 1MB ranks 0,1"]
    >>> report = collective_calls(calls, network, ranks=4)
    >>> [(one.alone_s, one.slowdown) for one in report.calls]
    [(0.003, 1.3333333333333333), (0.001, 4.0)]
    """
    if engine == "analytic":
        raise WhatIfError(
            "engine analytic times each call alone; use flow, where calls share links"
        )
    if not calls:
        raise WhatIfError("which calls? Name one, such as all_reduce 64MiB ranks 0-15")
    if len(calls) > _MOST_CALLS:
        raise WhatIfError(
            f"{len(calls)} calls; every pair is compared, and the limit is {_MOST_CALLS}"
        )
    parsed = list(for_ranks([parse_timed_call(text) for text in calls], ranks))
    job = max(ranks or 0, 1 + max(max(call.ranks) for call in parsed))
    unchanged, network = network, changed_network(network, what_ifs, job, nodes)
    where, topology, planner = network_of(network, job, nodes, ("", None))
    run = _Run(parsed, job, Costs(topology, _forced(parsed, planner)), engine)
    repetitions = run.repetitions()
    together = run.simulated(repetitions)
    alone = [run.alone(number) for number in range(len(parsed))]
    rows = tuple(run.beside(number, alone, together) for number in range(len(parsed)))
    machine = cluster_of(network)
    prior = () if machine is None else prior_of(Scenario(together.workload, machine, nodes=nodes))
    return CollectiveCallsReport(
        where,
        engine,
        together.makespan,
        rows,
        tuple(run.effects(repetitions, alone, together)),
        _spans(together, repetitions),
        machine,
        tuple(prior),
        link_doubts(cluster_of(unchanged)),
    )


def _forced(calls: Sequence[TimedCall], planner: Planner) -> Planner:
    """Return a planner with the algorithms that calls name."""
    algorithms = {
        _label(number): algorithm_named(call.algorithm, call.kind)
        for number, call in enumerate(calls)
        if call.algorithm
    }

    def plan(call: Call, topology: Topology) -> Plan:
        chosen = algorithms.get(call.group.label)
        if chosen is None:
            return planner(call, topology)
        return planner(call, topology, algorithm=chosen)  # type: ignore[call-arg]

    return plan if algorithms else planner


def _label(number: int) -> str:
    return f"call {number + 1}"


@dataclass(slots=True, eq=False)
class _Run:
    """Calls on a network; ``rows`` has S and the spread of each."""

    calls: Sequence[TimedCall]
    ranks: int
    costs: Costs
    engine: str
    rows: list[tuple[float, Shares | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = [_size(call) for call in self.calls]

    def repetitions(self) -> dict[int, int]:
        """Return the repetitions by call; a call without an end repeats until the others ended."""
        often = {at: call.times for at, call in enumerate(self.calls) if call.times is not None}
        if not often:
            raise WhatIfError(
                f"{self.calls[0].text!r} repeats without an end, as do all others: say how "
                "often, such as x10"
            )
        _check_count(often, self.calls)
        endless = [at for at in range(len(self.calls)) if at not in often]
        counts = {**often, **dict.fromkeys(endless, 0)}
        # More repetitions of endless calls delay the others, whose later end allows more of them.
        for _ in range(_ROUNDS if endless else 0):
            timeline = self.simulated(counts)
            until = max(timeline.call_end[self.of_call(timeline, at)].max() for at in often)
            more = {at: max(counts[at], _starts_until(self.calls[at], until)) for at in endless}
            if all(more[at] == counts[at] for at in endless):
                break
            counts |= more
            _check_count(counts, self.calls)
        for at in endless:  # delayed by earlier ones, some repetitions start after the others' end
            started = timeline.call_start[self.of_call(timeline, at)]
            counts[at] = max(1, int((started < until).sum()))
        return {at: counts[at] for at in sorted(counts)}

    def simulated(self, repetitions: Mapping[int, int]) -> Timeline:
        """Simulate some of the calls concurrently, each with its number of repetitions."""
        return simulate_on(self._workload(repetitions), self.costs, engine=self.engine)

    def alone(self, number: int) -> Timeline:
        """Simulate a call once, on an idle network."""
        return self.simulated({number: 1})

    def of_call(self, timeline: Timeline, number: int) -> NDArray[np.intp]:
        """Return the indices of the repetitions of a call in a timeline."""
        labels = [group.label == _label(number) for group in timeline.workload.groups]
        return np.flatnonzero(np.array(labels)[timeline.workload.calls.group])

    def times(self, timeline: Timeline, number: int) -> Floats:
        """Duration of each repetition of a call in a timeline (s)."""
        times_of_call = self.of_call(timeline, number)
        took: Floats = timeline.call_end[times_of_call] - timeline.call_start[times_of_call]
        return took

    def beside(self, number: int, alone: Sequence[Timeline], together: Timeline) -> CallBeside:
        """Compare a call alone with itself beside the others."""
        call, (size, shares) = self.calls[number], self.rows[number]
        took, times_of_call = self.times(together, number), self.of_call(together, number)
        mean, idle = float(took.mean()), float(self.times(alone[number], number)[0])
        chosen = together.plans[times_of_call[0]]
        speeds = [
            busbw(call.kind, size=size, n=len(call.ranks), time=time, shares=shares) / 1e9
            for time in (idle, mean)
        ]
        return CallBeside(
            number=number + 1,
            call=call.text,
            kind=call.kind,
            ranks=len(call.ranks),
            size_bytes=size,
            algorithm=chosen.schedule.algorithm,
            protocol=chosen.protocol,
            times=len(times_of_call),
            alone_s=idle,
            mean_s=mean,
            longest_s=float(took.max()),
            slowdown=mean / idle if idle else 1.0,
            start_s=float(together.call_start[times_of_call].min()),
            end_s=float(together.call_end[times_of_call].max()),
            alone_busbw_GBps=speeds[0],
            busbw_GBps=speeds[1],
        )

    def effects(
        self, repetitions: Mapping[int, int], alone: Sequence[Timeline], together: Timeline
    ) -> list[CallEffect]:
        """Compute the effect of each call on each other one, with only these two on the network."""
        effects = []
        for pair in combinations(range(len(self.calls)), 2):
            both = together
            if len(self.calls) > 2:
                both = self.simulated({number: repetitions[number] for number in pair})
            for first, second in (pair, pair[::-1]):
                idle = float(self.times(alone[first], first)[0])
                mean = float(self.times(both, first).mean())
                slower = mean / idle if idle else 1.0
                effects.append(self._effect(first, second, slower, repetitions))
        return effects

    def _effect(
        self, call_number: int, partner: int, slowdown: float, repetitions: Mapping[int, int]
    ) -> CallEffect:
        """Return the effect of one call on another, with the links that carry both."""
        topology = self.costs.topology
        busy = [repetitions[number] * self._busy_time(number) for number in (call_number, partner)]
        shared = np.flatnonzero((busy[0] > 0) & (busy[1] > 0))
        if not len(shared):
            return CallEffect(call_number + 1, partner + 1, slowdown, 0, "", "", 0.0, 0.0)
        worst = int(shared[np.argmax(busy[0][shared] + busy[1][shared])])
        ends = topology.nodes[topology.source[worst]], topology.nodes[topology.target[worst]]
        return CallEffect(
            call=call_number + 1,
            beside=partner + 1,
            slowdown=slowdown,
            links=len(shared),
            link=f"{ends[0]} -> {ends[1]}",
            resource=topology.resources[topology.resource[worst]],
            busy_s=float(busy[0][worst]),
            beside_busy_s=float(busy[1][worst]),
        )

    def _busy_time(self, number: int) -> Floats:
        """Time for which a call alone keeps each link busy (s), shape ``(links,)``."""
        topology = self.costs.topology
        busy = np.zeros(len(topology))
        for load in self.costs.loads(self._workload({number: 1}).call_view(0)):
            busy[load.link] += load.weight * load.amount / topology.bandwidth[load.link]
        return busy

    def _workload(self, repetitions: Mapping[int, int]) -> Workload:
        builder = WorkloadBuilder(job_ranks=self.ranks)
        for number, times in repetitions.items():
            call, (size, shares) = self.calls[number], self.rows[number]
            group, lane = builder.group(call.ranks, _label(number)), _label(number)
            ends = {call.ranks[0]: What.SEND} if call.kind == "send_receive" else {}
            before: dict[int, int] = {}  # a repetition waits for the one before, rank by rank
            for time in range(times):
                index = builder.call(CallRow(call.kind, group, time, size, shares=shares))
                ready = call.start + time * (call.every or 0.0)
                for rank in call.ranks:
                    what = ends.get(rank, What.RECEIVE if ends else What.COLLECTIVE)
                    op = builder.op(
                        what,
                        rank=rank,
                        lane=lane,
                        name=call.kind,
                        duration=0.0,
                        call=index,
                        ready=ready,
                    )
                    if rank in before:
                        builder.edge(before[rank], op)
                    before[rank] = op
        return builder.build()


def _size(call: TimedCall) -> tuple[float, Shares | None]:
    """Return S of a call and its spread."""
    if not call.imbalance:
        return call.size, None
    _, shares = parse_imbalance(call.imbalance).of_ranks(len(call.ranks))
    return largest(call.size, shares), shares


def _starts_until(call: TimedCall, until: float) -> int:
    """Return how many repetitions of a call start by schedule before the others have ended."""
    return max(0, math.ceil((until - call.start) / (call.every or math.inf)))


def _check_count(repetitions: Mapping[int, int], calls: Sequence[TimedCall]) -> None:
    for number, times in repetitions.items():
        if times * len(calls[number].ranks) > _MOST * 10 or times > _MOST:
            raise WhatIfError(
                f"{calls[number].text!r} would be made {times:,} times: say how often, such as x10"
            )


def _spans(timeline: Timeline, repetitions: Mapping[int, int]) -> tuple[CallSpan, ...]:
    numbered = [(number, time) for number, times in repetitions.items() for time in range(times)]
    ends = zip(timeline.call_start.tolist(), timeline.call_end.tolist(), strict=True)
    return tuple(
        CallSpan(number + 1, time + 1, *span)
        for (number, time), span in zip(numbered, ends, strict=True)
    )
