"""One collective at several sizes, as nccl-tests prints it: no trace, only the network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from collectives import Machine, plan
from collectives.bandwidth import algbw, busbw
from collectives.libraries.rules import algorithm_named, parse_rule
from experiments.provenance import Head, Unbounded
from experiments.question import question
from experiments.report import Report, Rows
from experiments.routing_notes import RoutingAnswer, RoutingNotes, notes_of_call
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.engine.simulate import Planner, simulate
from simulator.errors import ScheduleError, WhatIfError
from simulator.names import one_of
from simulator.quantities import format_quantity, parse_quantity
from simulator.schedule import Plan
from simulator.topology import Topology
from simulator.workload import KINDS, CallRow, What, Workload, kind_named
from topologies import Cluster, load_cluster

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class CollectivePoint:
    """One size; columns as nccl-tests names them (doc/PERFORMANCE.md), bandwidths in 1e9 B/s."""

    kind: str
    ranks: int
    size_bytes: float
    algorithm: str
    protocol: str
    time_s: float
    algbw_GBps: Unbounded
    busbw_GBps: Unbounded


class CollectiveAnswer(Head):
    """A collective at several sizes, in ascending order, on the network ``where``.

    ``routing`` says where messages of the largest size collide.
    """

    where: str
    engine: str
    points: list[CollectivePoint]
    routing: RoutingAnswer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CollectiveReport(Report):
    """A collective on a network (``where``) at several sizes, in ascending order."""

    schema: ClassVar[str] = "twofold/collective/1"
    printed_by: ClassVar[str] = "experiments.output.tables.networks:print_collective"
    drawn_by: ClassVar[str] = "experiments.output.figures:collective"

    where: str
    engine: str
    points: tuple[CollectivePoint, ...]
    cluster: Cluster | None
    routing: RoutingNotes

    def answer(self) -> "CollectiveAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.cluster),
            "where": self.where,
            "engine": self.engine,
            "points": list(self.points),
            "routing": self.routing.answer(),
        }

    def summary(self) -> str:
        """Say the answer in a few words."""
        first, most = self.points[0], max(point.busbw_GBps for point in self.points)
        what = f"{first.kind} of {first.ranks} ranks on {self.where}"
        return f"{what}: {len(self.points)} sizes, busbw up to {most:.4g} GB/s"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return CollectivePoint, self.points


@question("collective")
def collective(  # noqa: PLR0913 - the options of the command
    kind: str,
    network: Cluster | Topology | Path | str,
    sizes: Sequence[float],
    *,
    ranks: int,
    nodes: int | None = None,
    algorithm: str | None = None,
    engine: str = "flow",
) -> CollectiveReport:
    """Time a collective of ``ranks`` ranks at several sizes (B) on a cluster or a bare topology.

    ``algorithm`` is a name, or a file with a schedule (:mod:`collectives.files.schedule_file`: JSON
    or MSCCL XML). On a cluster the ranks fill nodes in order, or are spread evenly over ``nodes``
    of them. A barrier has no size.

    Raises
    ------
    TwofoldError
        If the kind, algorithm or cluster is unknown, or the ranks do not fit.
    """
    named = kind_named(kind)
    if named is None:
        raise WhatIfError(f"kind {one_of(kind, KINDS)}")
    kind = named
    own = _own_schedule(kind, ranks, algorithm)
    where, topology, planner = _network(network, ranks, nodes, (kind, None if own else algorithm))
    planner = own or planner
    points = []
    for size in sorted(sizes) if kind != "barrier" else [0.0]:
        timeline = simulate(one_call(kind, ranks, size), topology, planner, engine=engine)
        chosen, time = timeline.plans[0], timeline.makespan
        points.append(
            CollectivePoint(
                kind=kind,
                ranks=ranks,
                size_bytes=size,
                algorithm=chosen.schedule.algorithm,
                protocol=chosen.protocol,
                time_s=time,
                algbw_GBps=algbw(size, time) / _GIGA,
                busbw_GBps=busbw(kind, size=size, n=ranks, time=time) / _GIGA,
            )
        )
    largest = points[-1].size_bytes
    said = f"{kind} of {format_quantity(largest, 'B')}"
    notes = notes_of_call(said, timeline.plans[0], ranks, largest, topology)
    return CollectiveReport(where, engine, tuple(points), _cluster(network), notes)


def one_call(kind: str, ranks: int, size: float) -> Workload:
    """Return a workload of one collective that all ranks join at once."""
    builder = WorkloadBuilder(job_ranks=ranks)
    call = builder.call(CallRow(kind, builder.group(tuple(range(ranks))), 0, size))
    what = What.COLLECTIVE
    for rank in range(ranks):
        builder.op(what, rank=rank, lane="stream", name=kind, duration=0.0, call=call)
    return builder.build()


def parse_sizes(text: str) -> list[float]:
    """Sizes in bytes from ``1KiB,64MiB``, or every power of two of ``1KiB..1GiB``.

    Raises
    ------
    QuantityError
        If a size is no quantity.
    WhatIfError
        If a range is empty.

    Examples
    --------
    >>> parse_sizes("1KiB..4KiB"), parse_sizes("64 MiB, 1 GB")
    ([1024.0, 2048.0, 4096.0], [67108864.0, 1000000000.0])
    """
    if ".." not in text:
        return [parse_quantity(part, "B") for part in text.split(",")]
    first, _, last = text.partition("..")
    low, high = parse_quantity(first, "B"), parse_quantity(last, "B")
    if not 0 < low <= high:
        raise WhatIfError(f"sizes {text!r}: write the smaller first, such as 1KiB..1GiB")
    return [low * 2.0**power for power in range(int(math.log2(high / low) + 1e-9) + 1)]


def _own_schedule(kind: str, ranks: int, algorithm: str | None) -> Planner | None:
    """Return a planner for a schedule from a file, None where ``algorithm`` is a name."""
    if algorithm is None or Path(algorithm).suffix not in (".json", ".xml"):
        return None
    from collectives.files.schedule_file import load_schedule  # few schedules are from files

    schedule = load_schedule(Path(algorithm))
    if (schedule.kind, schedule.ranks) != (kind, ranks):
        raise ScheduleError(f"{algorithm}: {schedule}, and {kind} of {ranks} ranks was asked for")
    return lambda call, topology: Plan(schedule)


def _network(
    network: Cluster | Topology | Path | str,
    ranks: int,
    nodes: int | None,
    choice: tuple[str, str | None],
) -> tuple[str, Topology, Planner]:
    kind, algorithm = choice
    algorithm = algorithm_named(algorithm, kind) if algorithm else None
    if isinstance(network, Topology):
        return network.name, network, _bare_planner(network, algorithm)
    cluster = network if isinstance(network, Cluster) else load_cluster(network)
    forced = (parse_rule(f"{kind}={algorithm}"),) if algorithm else ()
    empty = WorkloadBuilder(job_ranks=ranks).build()
    scenario = Scenario(empty, cluster, nodes=nodes, forced=forced)
    where = cluster.name if nodes is None else f"{cluster.name}, {nodes} node{'s' * (nodes != 1)}"
    return where, scenario.topology(), scenario.planner()


def _cluster(network: Cluster | Topology | Path | str) -> Cluster | None:
    """Return the cluster that was asked about; None for a bare topology."""
    if isinstance(network, Cluster | Topology):
        return network if isinstance(network, Cluster) else None
    return load_cluster(network)


def _bare_planner(network: Topology, algorithm: str | None) -> Planner:
    """Plan on a topology that no library is known for: all ranks in one domain, no overhead."""
    machine = Machine(domains=np.zeros(network.ranks, dtype=np.int32))
    return partial(plan, machine=machine, algorithm=algorithm)
