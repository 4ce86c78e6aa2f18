"""Time one collective at several sizes, as nccl-tests prints it: no trace, only the network."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from collectives import Machine, plan
from collectives.bandwidth import algbw, busbw
from collectives.libraries.planners import algorithm_named, parse_rule
from experiments.documents import networks as documents
from experiments.priors.network import NetworkPrior, prior_of
from experiments.provenance import Unbounded
from experiments.report import Report, question
from experiments.routing_notes import RoutingNotes, notes_of_call
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import one_call
from simulator.builder import WorkloadBuilder
from simulator.calls import KINDS, CallRow, kind_named
from simulator.engine.simulate import Planner, simulate
from simulator.imbalance import parse_imbalance
from simulator.schedule import Plan
from simulator.shares import Shares, inputs, largest
from simulator.support.errors import ClusterError, ScheduleError, WhatIfError
from simulator.support.names import one_of
from simulator.support.quantities import format_quantity, parse_quantity
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import What, Workload
from topologies import Cluster, load_cluster
from topologies.cluster.catalog import link_doubts

if TYPE_CHECKING:
    from experiments.settings import Watch


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """One size; columns as nccl-tests names them (doc/PERFORMANCE.md), bandwidths in 1e9 B/s.

    ``size_bytes`` is S: the larger of a rank's input and output, on the rank with the most. For an
    all-to-all with ``imbalance``, ``input_bytes`` is the mean number of bytes that a rank sends,
    from which S follows, and ``even_s`` the time of the same bytes evenly spread.
    """

    kind: str
    ranks: int
    size_bytes: float
    algorithm: str
    protocol: str
    time_s: float
    algbw_GBps: Unbounded
    busbw_GBps: Unbounded
    input_bytes: float | None = None
    even_s: float | None = None


@dataclass(frozen=True, slots=True)
class SpreadBytes:
    """Imbalance of an all-to-all: load of its busiest port over the mean, and that port's rank.

    ``way`` is ``sends`` or ``receives``; ``rank`` is one of the busiest ranks.
    """

    given: str
    busiest_over_mean: float
    rank: int
    way: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CollectiveReport(Report):
    """A collective on a network (``where``) at several sizes, in ascending order.

    ``network_prior`` is the uncertainty of the cluster's figures; empty for a bare topology.
    ``routing`` describes where messages of the largest size collide, ``imbalance`` an uneven
    all-to-all.
    """

    schema: ClassVar[str] = "twofold/collective/1"
    listed: ClassVar = CollectivePoint, "points"
    document = documents.collective
    answered: ClassVar = "where engine network_prior points routing imbalance"

    where: str
    engine: str
    points: tuple[CollectivePoint, ...]
    cluster: Cluster | None
    routing: RoutingNotes
    imbalance: SpreadBytes | None = None
    network_prior: tuple[NetworkPrior, ...] = ()
    doubts: tuple[str, ...] = ()


SIZES = "1KiB..1GiB"
"""Default sizes."""


@question("collective")
def collective(  # noqa: PLR0913 - the options of the command
    kind: str,
    network: Cluster | Topology | Path | str,
    sizes: Sequence[float] | str | None = None,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    algorithm: str | None = None,
    engine: str = "flow",
    imbalance: str | None = None,
    what_ifs: Sequence[str] = (),
    watch: "Watch" = lambda _: None,
) -> CollectiveReport:
    """Time a collective at several sizes (B) on a cluster or a bare topology.

    On a cluster the ranks fill nodes in order, or are spread evenly over ``nodes`` of them.

    Parameters
    ----------
    kind
        A kind, or the name of a program of nccl-tests (``alltoall_perf``). ``sendrecv`` is a ring:
        every rank sends to the next and receives from the one before, all at once; ``hypercube``
        is an all-gather by recursive doubling.
    network
        A cluster, its name in the catalogue, the path of its file, or a bare topology.
    sizes
        S of nccl-tests (B, or as in ``--sizes``); with ``imbalance`` the mean bytes that a rank
        sends. By default that of the imbalance's file, else powers of two from 1 KiB to 1 GiB. A
        barrier has no size.
    ranks, nodes
        Number of ranks that take part, and of nodes that they are on. By default all ranks take
        part: of the nodes, or of a network that is one node or bare.
    algorithm
        A name, or a file with a schedule (:mod:`collectives.files.schedule_file`: JSON or MSCCL
        XML).
    engine
        ``flow``, ``simpy`` or ``analytic``.
    imbalance
        For an all-to-all: how unevenly its bytes are spread over ranks, as
        :func:`simulator.imbalance.parse_imbalance` reads it.
    what_ifs
        Changes of the cluster, such as ``transport sockets``
        (:mod:`experiments.scenario.language`).
    watch
        Called with what is about to be simulated; returns where its progress goes.

    Raises
    ------
    TwofoldError
        If the kind, algorithm or cluster is unknown, the ranks do not fit or are not given, or
        an imbalance is given of another kind or does not fit them.
    """
    kind, algorithm = _program(kind, algorithm, imbalance)
    if ranks is None:
        ranks = _all_ranks(network, nodes)
    unchanged, network = network, changed_network(network, what_ifs, ranks, nodes)
    own_schedule = _schedule_from_file(kind, ranks, algorithm)
    where, topology, planner = network_of(
        network, ranks, nodes, (kind, None if own_schedule else algorithm)
    )
    spread = _Spread()
    if imbalance is not None:
        mean, shares = parse_imbalance(imbalance).of_ranks(ranks)
        spread = _Spread(shares, None if mean is None else inputs(mean, shares))
    timed = _Timed(
        kind, ranks, spread, topology, own_schedule or planner, engine, watch, own_schedule is None
    )
    chosen = _sizes(kind, sizes, spread)
    points = tuple(timed.point(size) for size in chosen)
    spread_note = None
    if imbalance is not None:
        pairs = spread.shares or Shares(np.ones((ranks, ranks)))
        spread_note = SpreadBytes(imbalance, pairs.imbalance, *pairs.busiest())
    cluster, call = cluster_of(network), one_call(kind, ranks, 0.0)
    return CollectiveReport(
        where,
        engine,
        points,
        cluster,
        timed.routing(chosen[-1]),
        spread_note,
        () if cluster is None else tuple(prior_of(Scenario(call, cluster, nodes=nodes))),
        (*link_doubts(cluster_of(unchanged)), *_beyond_memory(cluster_of(unchanged), max(chosen))),
    )


def _beyond_memory(cluster: Cluster | None, size: float) -> Iterator[str]:
    if cluster is not None and size > (memory := cluster.accelerator.memory or math.inf):
        words = [format_quantity(each, "B") for each in (size, memory)]
        yield f"{words[0]} do not fit into {words[1]} of a {cluster.accelerator.name}"


def _all_ranks(network: Cluster | Topology | Path | str, nodes: int | None) -> int:
    """Return the ranks of the nodes, or of a network that is one node or a bare topology."""
    if isinstance(network, Topology):
        return network.ranks
    cluster = load_cluster(network)
    if cluster.nodes == (nodes or 1):
        return cluster.capacity
    if nodes is None or cluster.node_kinds:
        raise ClusterError(
            f"{cluster.name} has {cluster.nodes:,} nodes: how many ranks? Give --ranks, or --nodes"
            " for all ranks of so many nodes of one kind"
        )
    return nodes * cluster.ranks_per_node


@dataclass(frozen=True, slots=True)
class _Spread:
    """Spread of an all-to-all (None: even), and the mean bytes that a rank sends, from a file."""

    shares: Shares | None = None
    given: float | None = None

    def evenly(self, size: float) -> float:
        """Return S of the evenly spread call that moves as many bytes in total."""
        if self.shares is None:
            return size
        return size * float(self.shares.crossing.sum()) / max(1, len(self.shares) - 1)


def _program(kind: str, algorithm: str | None, imbalance: str | None) -> tuple[str, str | None]:
    """Return a kind by name, and the algorithm by which nccl-tests carries it out."""
    name = kind.lower().removesuffix("_mpi").removesuffix("_perf")
    if name == "hypercube":
        return "all_gather", algorithm or "recursive_doubling"
    if name == "alltoallv" and imbalance is None:
        raise WhatIfError(f"{kind}: say how bytes are spread over pairs (imbalance)")
    named = kind_named("all_to_all" if name == "alltoallv" else kind)
    if named is None:
        raise WhatIfError(f"kind {one_of(kind, KINDS)}")
    if imbalance is not None and named != "all_to_all":
        raise WhatIfError(f"imbalance {imbalance}: only an all_to_all has one, not {named}")
    return named, algorithm


def _sizes(kind: str, sizes: Sequence[float] | str | None, spread: _Spread) -> list[float]:
    if kind == "barrier":
        return [0.0]
    if sizes is None and spread.given is not None:
        return [spread.given]
    wanted = SIZES if sizes is None else sizes
    return parse_sizes(wanted) if isinstance(wanted, str) else sorted(wanted)


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """Calls of one kind on a network, timed by size; ``ring``: each message is one of a ring.

    ``plans`` keeps the plan of each size: ``simpy`` may take minutes to simulate one.
    """

    kind: str
    ranks: int
    spread: _Spread
    topology: Topology
    planner: Planner
    engine: str
    watch: "Watch"
    ring: bool
    plans: dict[float, Plan] = field(default_factory=dict)

    def point(self, mean: float) -> CollectivePoint:
        """Time one size; ``mean`` is the mean number of bytes that a rank sends."""
        shares = self.spread.shares
        size = largest(mean, shares)
        timeline = self._run(size, shares)
        chosen, time = timeline.plans[0], timeline.makespan
        self.plans[size] = chosen
        speed = busbw(self.kind, size=size, n=self.ranks, time=time, shares=shares)
        return CollectivePoint(
            kind=self.kind,
            ranks=self.ranks,
            size_bytes=size,
            algorithm=chosen.schedule.algorithm,
            protocol=chosen.protocol,
            time_s=time,
            algbw_GBps=algbw(size, time) / 1e9,
            busbw_GBps=speed / 1e9,
            input_bytes=None if shares is None else mean,
            even_s=self._run(self.spread.evenly(size), None).makespan if shares else None,
        )

    def routing(self, mean: float) -> RoutingNotes:
        """Describe how the messages of one size are routed."""
        size = largest(mean, self.spread.shares)
        plan = self.plans[size]
        call_text = f"{self.kind} of {format_quantity(size, 'B')}"
        return notes_of_call(call_text, plan, plan.schedule.ranks, size, self.topology)

    def _run(self, size: float, shares: Shares | None) -> Timeline:
        if self.kind == "send_receive" and self.ring and self.ranks > 1:
            workload = ring_of_messages(self.ranks, size)
        else:
            workload = one_call(self.kind, self.ranks, size, shares)
        call_text = f"{self.kind} of {format_quantity(size, 'B')}"
        progress = self.watch(call_text)
        return simulate(
            workload, self.topology, self.planner, engine=self.engine, progress=progress
        )


def ring_of_messages(ranks: int, size: float) -> Workload:
    """Return a workload in which all ranks send to the next at once, the last to the first.

    That is what ``sendrecv`` of nccl-tests times: a send and a receive of every rank in one group.
    """
    builder = WorkloadBuilder(job_ranks=ranks)
    for rank in range(ranks):
        ends = (rank, (rank + 1) % ranks)
        call = builder.call(CallRow("send_receive", builder.group(ends), 0, size))
        for what, end in zip((What.SEND, What.RECEIVE), ends, strict=True):
            name = what.name.lower()
            builder.op(what, rank=end, lane=name, name=name, duration=0.0, call=call)
    return builder.build()


_MOST_SIZES = 1000


def parse_sizes(text: str) -> list[float]:
    """Return sizes in bytes from ``1KiB,64MiB``, or every power of two of ``1KiB..1GiB``.

    Raises QuantityError if a size is not a quantity. Raises WhatIfError if a range is empty, or a
    list too long.

    Examples
    --------
    >>> parse_sizes("1KiB..4KiB"), parse_sizes("64 MiB, 1 GB")
    ([1024.0, 2048.0, 4096.0], [67108864.0, 1000000000.0])
    """
    if ".." not in text:
        parts = text.split(",")
        if len(parts) > _MOST_SIZES:
            raise WhatIfError(f"{len(parts)} sizes; the limit is {_MOST_SIZES}")
        return [parse_quantity(part, "B") for part in parts]
    first, _, last = text.partition("..")
    low, high = parse_quantity(first, "B"), parse_quantity(last, "B")
    if not 0 < low <= high:
        raise WhatIfError(f"sizes {text!r}: write the smaller first, such as 1KiB..1GiB")
    return [low * 2.0**power for power in range(int(math.log2(high / low) + 1e-9) + 1)]


def _schedule_from_file(kind: str, ranks: int, algorithm: str | None) -> Planner | None:
    """Return a planner for a schedule from a file; None if ``algorithm`` is a name."""
    if algorithm is None or Path(algorithm).suffix not in (".json", ".xml"):
        return None
    from collectives.files.schedule_file import load_schedule  # few schedules are from files

    schedule = load_schedule(Path(algorithm))
    if (schedule.kind, schedule.ranks) != (kind, ranks):
        raise ScheduleError(f"{algorithm}: {schedule}, and {kind} of {ranks} ranks was requested")
    return lambda call, topology: Plan(schedule)


def network_of(
    network: Cluster | Topology | Path | str,
    ranks: int,
    nodes: int | None,
    choice: tuple[str, str | None],
) -> tuple[str, Topology, Planner]:
    """Return the name of a network, its topology, and its planner of calls."""
    kind, algorithm = choice
    algorithm = algorithm_named(algorithm, kind) if algorithm else None
    if isinstance(network, Topology):
        # A bare topology has no library: all ranks in one domain, no overhead
        machine = Machine(domains=np.zeros(network.ranks, dtype=np.int32))
        return network.name, network, partial(plan, machine=machine, algorithm=algorithm)
    cluster = load_cluster(network)
    forced = (parse_rule(f"{kind}={algorithm}"),) if algorithm else ()
    empty = WorkloadBuilder(job_ranks=ranks).build()
    scenario = Scenario(empty, cluster, nodes=nodes, forced=forced)
    where = cluster.name if nodes is None else f"{cluster.name}, {nodes} node{'s' * (nodes != 1)}"
    return where, scenario.site.topology, scenario.site.costs.planner


def changed_network(
    network: Cluster | Topology | Path | str, what_ifs: Sequence[str], ranks: int, nodes: int | None
) -> Cluster | Topology | Path | str:
    """Return a cluster with what-ifs, named after them.

    Raises WhatIfError if a text is no what-if, or changes anything but the cluster, such as a step
    or a link.
    """
    if not what_ifs:
        return network
    cluster = cluster_of(network)
    if cluster is None:
        raise WhatIfError(f"what-if {what_ifs[0]!r}: a bare topology has none; name a cluster")
    before = Scenario(WorkloadBuilder(job_ranks=ranks).build(), cluster, nodes=nodes)
    after = before
    for text in what_ifs:
        after = parse_change(text).apply(after).scenario
        same = after.workload is before.workload and after.ranks == before.ranks
        if after.faults or after.forced or not same:
            raise WhatIfError(f"what-if {text!r}: collective takes changes of the cluster only")
    return after.cluster.model_copy(update={"name": ", ".join((cluster.name, *what_ifs))})


def cluster_of(network: Cluster | Topology | Path | str) -> Cluster | None:
    """Return the cluster, or None for a bare topology."""
    if isinstance(network, Cluster | Topology):
        return network if isinstance(network, Cluster) else None
    return load_cluster(network)
