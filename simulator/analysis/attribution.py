"""Where the step went: by the critical path, and by what each rank did. Both add up to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.critical_path import Segment
from simulator.analysis.metrics import Intervals, cover, length, moves, rank_times, union
from simulator.engine.simulate import Costs
from simulator.timeline import Timeline
from simulator.workload import UNEXPLAINED_HOST, Floats, What


@dataclass(frozen=True, slots=True)
class PathPart:
    """Time on the critical path spent on ``what`` (s); ``name`` says on which.

    The name is an op's, or of communication kind, group and what held it: a resource's latency or
    bandwidth, or ``software`` for overhead that no link causes.
    """

    what: str
    name: str
    seconds: float


def path_parts(timeline: Timeline, path: list[Segment]) -> list[PathPart]:
    """Put the critical path down to causes, the largest first; they add up to the makespan."""
    totals: dict[tuple[str, str], float] = {}
    costs = Costs(timeline.topology, lambda call, _: timeline.plans[call.index])
    for segment in path:
        for name, share in _causes(timeline, segment, costs):
            key = segment.what, name
            totals[key] = totals.get(key, 0.0) + share * segment.duration
    parts = (PathPart(what, name, seconds) for (what, name), seconds in totals.items() if seconds)
    return sorted(parts, key=lambda part: -part.seconds)


def _causes(timeline: Timeline, segment: Segment, costs: Costs) -> Iterator[tuple[str, float]]:
    """Name what a segment was spent on, with shares that add up to 1."""
    workload = timeline.workload
    if segment.what in ("host", "compute", "copy"):
        yield workload.names[workload.name[segment.op]], 1.0
        return
    if segment.what not in ("communication", "drain"):
        yield "", 1.0
        return
    index = int(workload.call[segment.op])
    call = workload.call_view(index)
    where = f"{call.kind} {call.group}"
    spent = timeline.call_spent[index]
    if segment.what == "drain" or not spent.sum():
        yield where, 1.0
        return
    # A call's latency does not depend on what else is on the links; the rest is bytes.
    latency = sum((load.latency_of for load in costs.loads(call)), np.zeros(len(spent)))
    latency = np.minimum(latency * workload.calls.factor[index], spent)
    latency[-1] = spent[-1]
    names = (*timeline.topology.resources, "software")
    for number, name in enumerate(names):
        word = "" if name == "software" else " latency"
        yield f"{where}: {name}{word}", float(latency[number] / spent.sum())
        yield f"{where}: {name} bandwidth", float((spent - latency)[number] / spent.sum())


@dataclass(frozen=True, slots=True)
class Stretch:
    """Segments of the critical path in a row that are alike; times in s."""

    rank: int
    lane: str
    what: str
    name: str
    start_s: float
    duration_s: float
    count: int


def stretches(timeline: Timeline, path: list[Segment]) -> list[Stretch]:
    """Merge what follows on the critical path with like rank, lane, name and use of time."""
    workload = timeline.workload

    def alike(segment: Segment) -> tuple[int, str, str, str]:
        op = workload.op(segment.op)
        return op.rank, op.lane, segment.what, op.name

    rows = []
    for key, run in groupby(path, alike):
        segments = list(run)
        start = segments[0].start
        rows.append(Stretch(*key, start, segments[-1].end - start, len(segments)))
    return rows


COMPUTE, COPY, WAITING, HOST, LAUNCH = "compute", "copy", "waiting for ranks", "host", "launch"
BEFORE, AFTER, IDLE = "not started", "finished", "idle"
EXPOSED = "exposed "
"""What the exposed communication of a kind and group begins with."""


def rank_parts(timeline: Timeline, rank: int) -> dict[str, float]:
    """Where a rank's time went (s), adding up to the makespan; every instant counts once.

    In this order: kernels, copies, ``exposed`` communication by kind and group (a call of the rank
    moves and nothing computes; of several the kind and group that came first), waiting in a call
    for other ranks, the host at work, launches on their way, host threads on which nothing is seen
    at work, before its first op and after its last, and ``idle``, where its device and host wait
    for something else.
    """
    parts: dict[str, float] = {}
    covered = np.empty((0, 2))
    before = 0.0
    for name, spans in _covers(timeline, rank):
        both = np.concatenate([covered, spans])
        covered = union(both[:, 0], both[:, 1])
        now = length(covered)
        parts[name] = parts.get(name, 0.0) + max(0.0, now - before)
        before = now
    return parts


def rank_parts_in(timeline: Timeline, rank: int, edges: Floats) -> dict[str, Floats]:
    """Where a rank's time went in each of several windows (s), as :func:`rank_parts` has it.

    Parameters
    ----------
    timeline
        A simulated step.
    rank
        Which rank.
    edges
        Ends of the windows, ascending (s): window ``i`` is from ``edges[i]`` to ``edges[i + 1]``.

    Returns
    -------
    dict of str to array
        By what covers the time, shape ``(len(edges) - 1,)``; together they add up to what of each
        window lies between 0 and the makespan.
    """
    parts: dict[str, Floats] = {}
    covered, before = np.empty((0, 2)), np.zeros(len(edges) - 1)
    for name, spans in _covers(timeline, rank):
        both = np.concatenate([covered, spans])
        covered = union(both[:, 0], both[:, 1])
        now = cover(covered, edges[:-1], edges[1:])
        parts[name] = parts.get(name, 0.0) + np.maximum(0.0, now - before)
        before = now
    return parts


def _covers(timeline: Timeline, rank: int) -> Iterator[tuple[str, Intervals]]:
    """Spans of time by what covers them; a later one counts where no earlier one does."""
    workload, start, end = timeline.workload, timeline.start, timeline.end
    mine = workload.ops_of(rank)
    what = workload.what[mine]
    for name, kind in ((COMPUTE, What.COMPUTE), (COPY, What.COPY)):
        ops = mine[what == kind]
        yield name, _spans(start[ops], end[ops])
    calls = mine[what >= What.COLLECTIVE]
    yield from _exposed(timeline, calls)
    begun = np.maximum(start[calls], timeline.call_start[workload.call[calls]])
    yield WAITING, _spans(start[calls], begun)
    host = mine[workload.part[mine] == What.HOST]
    yield HOST, _spans(start[host], end[host])
    device = mine[what != What.HOST]
    launch = timeline.released_by[device]
    launched = (launch >= 0) & (workload.what[launch] == What.HOST)
    yield LAUNCH, _spans(end[launch[launched]], start[device[launched]])
    silent = mine[(what == What.HOST) & (workload.part[mine] != What.HOST)]
    yield UNEXPLAINED_HOST, _spans(start[silent], end[silent])
    first, last, makespan = start[mine].min(), end[mine].max(), timeline.makespan
    yield BEFORE, np.array([[0.0, first]])
    yield AFTER, np.array([[last, makespan]])
    yield IDLE, np.array([[0.0, makespan]])


def _exposed(timeline: Timeline, ops: NDArray[np.int64]) -> Iterator[tuple[str, Intervals]]:
    """Spans in which a rank's calls move, by kind and group in order of their first call."""
    workload = timeline.workload
    calls = workload.call[ops]
    begun, over = moves(timeline, ops)
    key = workload.calls.group[calls].astype(np.int64) * 256 + workload.calls.kind[calls]
    for kind_and_group in dict.fromkeys(key[np.argsort(begun, kind="stable")].tolist()):
        mine = key == kind_and_group
        call = workload.call_view(int(calls[mine][0]))
        yield f"{EXPOSED}{call.kind} {call.group}", _spans(begun[mine], over[mine])


def exposed_by_resource(timeline: Timeline) -> dict[str, float]:
    """Exposed communication by the resource whose links it is on, the mean over ranks (s).

    A rank's exposed communication (:func:`simulator.analysis.metrics.exposed_communication`) is
    split as its calls are exposed and as each call spends its time. What no link causes (software,
    calls of unknown size) is left out.
    """
    workload, names = timeline.workload, timeline.topology.resources
    totals = np.zeros(len(names))
    for rank, row in zip(workload.ranks, rank_times(timeline), strict=True):
        mine = workload.ops_of(rank)
        busy = mine[(workload.what[mine] == What.COMPUTE) | (workload.what[mine] == What.COPY)]
        calls = workload.call[mine[workload.what[mine] >= What.COLLECTIVE]]
        begun, over = timeline.call_start[calls], timeline.call_end[calls]
        hidden = cover(union(timeline.start[busy], timeline.end[busy]), begun, over)
        alone = np.maximum(0.0, over - begun - hidden)
        spent = timeline.call_spent[calls]
        every = spent.sum(axis=1)
        share = spent / np.where(every > 0, every, 1.0)[:, None]
        together = float(alone.sum())
        if together > 0:
            seconds = (share * alone[:, None]).sum(axis=0)[:-1]
            totals += seconds * min(1.0, row.exposed_communication / together)
    means = totals / max(1, len(workload.ranks))
    return {name: time for name, time in zip(names, means.tolist(), strict=True) if time > 0}


def _spans(start: Floats, end: Floats) -> Intervals:
    return np.stack([start, end], axis=1)
