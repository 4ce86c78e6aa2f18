"""Attribution of the step: to the critical path, to what each rank did, and to ops.

Each of the three adds up to the step.

An instant of a rank counts for the first of these that applies: kernels, copies, calls that move
data, calls that wait for other ranks, the host at work, launches in flight, host threads without
visible work. The rest is time before the rank's first op, after its last, or idle.
:func:`rank_parts` sums by rank, :func:`account` by op: several ops of one use share an instant
equally. On a rank without kernels the host computes, and comes first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.critical_path import CriticalPath, Segment
from simulator.analysis.metrics import Intervals, cover, length, moves, step_time, union
from simulator.engine.simulate import Costs
from simulator.support.arrays import Floats, Ints, Longs, Mask
from simulator.timeline import RunTimes, Timeline
from simulator.workload import DATA_LOADER, IN_PART, UNEXPLAINED_HOST, What, Workload


@dataclass(frozen=True, slots=True)
class PathPart:
    """Time on the critical path spent on ``what`` (s), by ``name``.

    The name is that of an op; for communication it is kind, group and cause: the latency or
    bandwidth of a resource, or ``software`` for overhead that no link causes.
    """

    what: str
    name: str
    seconds: float


def path_parts(timeline: Timeline, path: CriticalPath) -> list[PathPart]:
    """Attribute the critical path to causes, the largest first; they add up to the makespan."""
    totals: dict[tuple[str, str], float] = {}
    costs = Costs(timeline.topology, lambda call, _: timeline.plans[call.index])
    for segment in path:
        for name, share in _causes(timeline, segment, costs):
            key = segment.what, name
            totals[key] = totals.get(key, 0.0) + share * segment.duration
    parts = (PathPart(what, name, seconds) for (what, name), seconds in totals.items() if seconds)
    return sorted(parts, key=lambda part: -part.seconds)


def _causes(timeline: Timeline, segment: Segment, costs: Costs) -> Iterator[tuple[str, float]]:
    """Return the causes of a segment with their shares, which sum to 1."""
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
    """Consecutive segments of the critical path of one rank, lane, name and use; times in s."""

    rank: int
    lane: str
    what: str
    name: str
    start_s: float
    duration_s: float
    count: int


def stretches(timeline: Timeline, path: CriticalPath) -> list[Stretch]:
    """Merge consecutive segments of the critical path with equal rank, lane, name and use."""
    workload = timeline.workload

    def key_of(segment: Segment) -> tuple[int, str, str, str]:
        op = workload.op(segment.op)
        return op.rank, op.lane, segment.what, op.name

    rows = []
    for key, run in groupby(path, key_of):
        segments = list(run)
        start = segments[0].start
        rows.append(Stretch(*key, start, segments[-1].end - start, len(segments)))
    return rows


COMPUTE, COPY, WAITING, HOST, LAUNCH = "compute", "copy", "waiting for ranks", "host", "launch"
BEFORE, AFTER, IDLE = "not started", "finished", "idle"
EXPOSED = "exposed "
"""Prefix of the names of exposed communication; kind and group follow."""


def rank_parts(timeline: Timeline, rank: int) -> dict[str, float]:
    """Return where a rank's time went (s); every instant counts once, and all sum to the makespan.

    In this order: kernels, copies, ``exposed`` communication by kind and group (a call of the rank
    moves data while nothing computes; of several calls the first kind and group), waiting in a call
    for other ranks, the host at work, launches in flight, data loaders, host threads without
    visible work, before the first op and after the last, and ``idle``, while device and host wait
    for something else.
    """
    whole = _parts_by(timeline, rank, lambda covered: np.array([length(covered)]))
    return {name: float(seconds[0]) for name, seconds in whole.items()}


def rank_parts_in(timeline: Timeline, rank: int, edges: Floats) -> dict[str, Floats]:
    """Return where a rank's time went in each of several windows (s), as :func:`rank_parts` does.

    Window ``i`` is from ``edges[i]`` to ``edges[i + 1]`` (s).

    Returns
    -------
    dict of str to array
        By what covers the time, shape ``(len(edges) - 1,)``; together they add up to what of each
        window lies between 0 and the makespan.
    """
    return _parts_by(timeline, rank, lambda covered: cover(covered, edges[:-1], edges[1:]))


def _parts_by(
    timeline: Timeline, rank: int, measure: Callable[[Intervals], Floats]
) -> dict[str, Floats]:
    """Return by use what each adds to the time covered by those before it, as measured (s)."""
    parts: dict[str, Floats] = {}
    covered = np.empty((0, 2))
    before = measure(covered)
    for name, spans in _spans_by_use(timeline, rank):
        both = np.concatenate([covered, spans])
        covered = union(both[:, 0], both[:, 1])
        now = measure(covered)
        parts[name] = parts.get(name, 0.0) + np.maximum(0.0, now - before)
        before = now
    return parts


def _spans_by_use(timeline: Timeline, rank: int) -> Iterator[tuple[str, Intervals]]:
    """Spans by use, in order of priority: an instant counts for the first use that covers it."""
    workload, start, end = timeline.workload, timeline.start, timeline.end
    ops_of_rank = workload.ops_of(rank)
    what = workload.what[ops_of_rank]
    kernels, copies = ops_of_rank[what == What.COMPUTE], ops_of_rank[what == What.COPY]
    yield COMPUTE, _spans(start[kernels], end[kernels])
    calls = ops_of_rank[what >= What.COLLECTIVE]
    yield from _exposed(timeline, calls)
    yield COPY, _spans(start[copies], end[copies])
    begun = np.maximum(start[calls], timeline.call_start[workload.call[calls]])
    yield WAITING, _spans(start[calls], begun)
    host = ops_of_rank[workload.part[ops_of_rank] == What.HOST]
    yield HOST, _spans(start[host], end[host])
    device = ops_of_rank[what != What.HOST]
    launch = timeline.released_by[device]
    launched = (launch >= 0) & (workload.what[launch] == What.HOST)
    yield LAUNCH, _spans(end[launch[launched]], start[device[launched]])
    for name in (DATA_LOADER, UNEXPLAINED_HOST):
        silent = ops_of_rank[workload.is_host_named(name)[ops_of_rank]]
        yield name, _spans(start[silent], end[silent])
    first, last, makespan = start[ops_of_rank].min(), end[ops_of_rank].max(), timeline.makespan
    yield BEFORE, np.array([[0.0, max(0.0, first)]])
    yield AFTER, np.array([[max(0.0, last), makespan]])
    yield IDLE, np.array([[0.0, makespan]])


def _exposed(timeline: Timeline, ops: Longs) -> Iterator[tuple[str, Intervals]]:
    """Spans in which calls of a rank move data, by kind and group in order of their first call."""
    workload = timeline.workload
    calls = workload.call[ops]
    begun, over = moves(timeline, ops)
    key = workload.calls.group[calls].astype(np.int64) * 256 + workload.calls.kind[calls]
    for kind_and_group in dict.fromkeys(key[np.argsort(begun, kind="stable")].tolist()):
        of_kind = key == kind_and_group
        call = workload.call_view(int(calls[of_kind][0]))
        yield f"{EXPOSED}{call.kind} {call.group}", _spans(begun[of_kind], over[of_kind])


def _spans(start: Floats, end: Floats) -> Intervals:
    """Clip spans to times from 0 on: earlier times belong to the step before."""
    return np.maximum(0.0, np.stack([start, end], axis=1))


COMMUNICATION = "communication"
"""A call moves data while its rank computes nothing: exposed communication."""
USES = (COMPUTE, COMMUNICATION, COPY, WAITING, HOST, LAUNCH, DATA_LOADER, UNEXPLAINED_HOST)
"""Uses of time that belong to ops."""
REST = (BEFORE, AFTER, IDLE)
"""Uses of time that belong to a rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Time by use (s): ``of_op[use]`` for each op, ``of_rank[use]`` for each rank.

    ``lasted[use]`` is the whole time that each op spent on a use, whatever else ran; NaN if none.
    A part of a kernel counts where no other kernel runs, and lasted so long.
    The mean over ranks of all uses together is ``step``.
    """

    workload: Workload
    step: float
    of_op: dict[str, Floats]
    lasted: dict[str, Floats]
    of_rank: dict[str, Floats]

    def totals(self) -> dict[str, float]:
        """Mean of each use over the ranks (s); they sum to the step."""
        ranks = max(1, len(self.workload.ranks))
        columns = {**self.of_op, **self.of_rank}
        return {use: float(column.sum()) / ranks for use, column in columns.items()}


def account(run: RunTimes) -> Account:
    """Attribute every instant of every rank to an op, or to the rank.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.timeline import measured
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> for lane, times in (("stream 7", (1.0, 3.0)), ("stream 9", (2.0, 4.0))):
    ...     _ = builder.op(
    ...         What.COMPUTE, rank=0, lane=lane, name="gemm", duration=2.0, measured=times
    ...     )
    >>> found = account(measured(builder.build()))
    >>> found.of_op["compute"].tolist(), found.totals()["not started"]
    ([1.5, 1.5], 1.0)
    """
    workload, step = run.workload, step_time(run)
    spans = _uses(run)
    of_op = {use: np.zeros(len(workload)) for use in USES}
    of_rank = {use: np.zeros(len(workload.ranks)) for use in REST}
    for number, rank in enumerate(workload.ranks):
        ops = workload.ops_of(rank)
        instants = _FreeTime(ops, spans, step)
        for use in _order(workload, ops):
            of_op[use][ops] = instants.take(use)
            if use == COMPUTE:
                of_op[use][ops] += instants.take(IN_PART)
        first, last = run.start[ops].min(), run.end[ops].max()
        for use, column in zip(REST, instants.unused(first, last), strict=True):
            of_rank[use][number] = column
    lasted = {use: spans[use][1] - spans[use][0] for use in USES}
    part = np.isnan(lasted[COMPUTE]) & (of_op[COMPUTE] > 0)
    lasted[COMPUTE][part] = of_op[COMPUTE][part]
    return Account(workload, step, of_op, lasted, of_rank)


def _order(workload: Workload, ops: NDArray[np.intp]) -> tuple[str, ...]:
    if (workload.what[ops] == What.COMPUTE).any():
        return USES
    return (HOST, *(use for use in USES if use != HOST))


_Spans = dict[str, tuple[Floats, Floats]]


def _uses(run: RunTimes) -> _Spans:
    """Begin and end of each op in each use (s); NaN where it has none."""
    workload = run.workload
    what, part = workload.what, workload.part
    start, end = run.start, run.end
    # What a kernel had done when another started lies beside the whole: it counts there, and as
    # a part only where no whole runs.
    partial = np.array([name == IN_PART for name in workload.names], dtype=bool)[workload.name]
    kernels = what == What.COMPUTE
    calls = np.flatnonzero(workload.call >= 0)
    begun, over = np.full((2, len(workload)), np.nan)
    begun[calls], over[calls] = moves(run, calls)
    by = _released_by(run)
    launched = (what != What.HOST) & (by >= 0) & (what[by] == What.HOST)

    def where(mask: Mask, first: Floats, last: Floats) -> tuple[Floats, Floats]:
        first = np.where(mask, first, np.nan)
        return first, np.where(mask, np.maximum(first, last), np.nan)

    return {
        COMPUTE: where(kernels & ~partial, start, end),
        IN_PART: where(kernels & partial, start, end),
        COPY: where(what == What.COPY, start, end),
        COMMUNICATION: where(workload.call >= 0, begun, over),
        WAITING: where(workload.call >= 0, start, begun),
        HOST: where(part == What.HOST, start, end),
        LAUNCH: where(launched, end[by], start),
        **{
            name: where(workload.is_host_named(name), start, end)
            for name in (DATA_LOADER, UNEXPLAINED_HOST)
        },
    }


def _released_by(run: RunTimes) -> Ints:
    """Op that released each op (-1: none); of measured times, its predecessor that ended last."""
    if isinstance(run, Timeline):
        return run.released_by
    edges = run.workload.edges
    source = edges.source
    order = np.lexsort((-source, run.end[source], edges.target))
    last = np.full(len(run.workload), -1, dtype=np.int32)
    last[edges.target[order]] = source[order]  # the last of each target stays
    return last


class _FreeTime:
    """The time of a rank between any two starts or ends, and how much of it is unattributed."""

    def __init__(self, ops: NDArray[np.intp], spans: _Spans, step: float) -> None:
        # What is before time 0 belongs to the step before. NaN stays NaN.
        self._spans = {
            use: (np.maximum(0.0, start[ops]), np.maximum(0.0, end[ops]))
            for use, (start, end) in spans.items()
        }
        times = np.concatenate([time for both in self._spans.values() for time in both])
        self._step = step
        self._bounds = np.unique(np.concatenate([[0.0, step], times[~np.isnan(times)]]))
        self._length = np.diff(self._bounds)
        self._free = np.ones(len(self._length), dtype=bool)

    def take(self, use: str) -> Floats:
        """Attribute unattributed time to the ops of a use; return the time of each (s)."""
        start, end = self._spans[use]
        occurs = ~np.isnan(start)
        first = np.searchsorted(self._bounds, start[occurs])
        last = np.searchsorted(self._bounds, end[occurs])
        count = len(self._bounds)
        busy = np.cumsum(np.bincount(first, minlength=count) - np.bincount(last, minlength=count))
        used = busy[:-1] > 0
        each = np.where(used & self._free, self._length / np.maximum(busy[:-1], 1), 0.0)
        until = np.concatenate([[0.0], np.cumsum(each)])
        self._free &= ~used
        seconds = np.zeros(len(start))
        seconds[occurs] = until[last] - until[first]
        return seconds

    def unused(self, first: float, last: float) -> tuple[float, float, float]:
        """Return the unattributed time before the first op, after the last, and between (s)."""
        free = np.where(self._free, self._length, 0.0)
        before = float(free[self._bounds[1:] <= first].sum())
        after = float(free[self._bounds[:-1] >= last].sum())
        return before, after, float(free.sum()) - before - after
