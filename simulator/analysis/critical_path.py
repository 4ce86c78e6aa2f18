"""The critical path: ops that each start when the one before ends, up to the makespan.

Nothing is searched for: the engine noted what released each op, so the path is read backwards
from the op that ended last. Its segments tile the time from 0 to the makespan without a gap.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simulator.calls import KINDS
from simulator.support.arrays import Floats, Ints, by_appearance
from simulator.support.compiled import hot_loop
from simulator.timeline import Timeline
from simulator.workload import LAUNCH_DELAY, UNEXPLAINED_HOST, What, Workload

_MOVING = "communication"
_BUSY = {What.HOST: "host", What.COMPUTE: "compute", What.COPY: "copy"}


class Segment(NamedTuple):
    """A stretch of the critical path (s), spent on ``what`` by op ``op``.

    ``what`` is ``host``, ``compute``, ``copy``, ``communication``, ``drain`` (a rank's own end of
    a call), ``launch`` (from a host op's end to the start of what it released), ``gap`` (from one
    device op to the next), ``launch delay`` (behind a launch, which explains none of it),
    ``absent ranks`` (waiting for members that were not traced), ``not ready`` (a rank that starts
    late) or ``unexplained host`` (a thread on which nothing is seen at work).
    """

    start: float
    end: float
    what: str
    op: int

    @property
    def duration(self) -> float:
        """Length (s)."""
        return self.end - self.start


def critical_path(timeline: Timeline) -> list[Segment]:
    """Segments of the critical path in order of time; their durations add up to the makespan.

    Returns
    -------
    list of Segment
        They tile the time from 0 to the makespan; empty for a workload without ops.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.engine.simulate import simulate
    >>> from simulator.topology import topology
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> launch = builder.op(What.HOST, rank=0, lane="main", name="launch", duration=1e-3)
    >>> gemm = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=2e-3)
    >>> builder.edge(launch, gemm)
    >>> timeline = simulate(builder.build(), topology("alone", 1, []), lambda call, network: None)
    >>> [(segment.what, segment.duration) for segment in critical_path(timeline)]
    [('host', 0.001), ('compute', 0.002)]
    """
    if not len(timeline.end):
        return []
    # A rank may have begun a step that repeats before the step before had ended on all: that time
    # is the other step's.
    every = (part._replace(start=max(0.0, part.start)) for part in _backwards(timeline))
    segments = (part for part in every if part.end > part.start)
    return [_with_cause(timeline, segment) for segment in segments][::-1]


def _with_cause(timeline: Timeline, segment: Segment) -> Segment:
    """Tell the host at work from a silent thread, and a gap from a delay behind a launch."""
    workload = timeline.workload
    if segment.what == "host" and workload.part[segment.op] != What.HOST:
        return segment._replace(what=UNEXPLAINED_HOST)
    if segment.what == "gap":
        before = int(timeline.released_by[segment.op])
        if workload.names[workload.name[before]] == LAUNCH_DELAY:
            return segment._replace(what=LAUNCH_DELAY)
    return segment


def _backwards(timeline: Timeline) -> Iterator[Segment]:
    """Segments from the last to the first, some of no length."""
    workload = timeline.workload
    call = ended_with(workload, timeline.start, timeline.call_end)
    released = Released(timeline.released_by, call, timeline.call_released_by)
    left, arrived = ops_on_path(timeline.end, released)
    call, before = call[left], timeline.released_by[arrived]
    launched = workload.what[before] == What.HOST
    rows = zip(
        workload.what[left].tolist(),
        left.tolist(),
        timeline.end[left].tolist(),
        arrived.tolist(),
        timeline.start[arrived].tolist(),
        call.tolist(),
        before.tolist(),
        np.where(before >= 0, timeline.end[before], 0.0).tolist(),
        launched.tolist(),
        strict=True,
    )
    for what, op, end, last, start, joined, earlier, released, by_host in rows:
        if joined >= 0:
            begun, over = float(timeline.call_start[joined]), float(timeline.call_end[joined])
            yield Segment(over, end, "drain", op)
            yield Segment(begun, over, _MOVING, op)
            yield Segment(start, begun, "absent ranks", last)
        else:
            yield Segment(start, end, _BUSY.get(What(what), "drain"), op)
        reason = "not ready" if earlier < 0 else "launch" if by_host else "gap"
        yield Segment(released, start, reason, last)


def ended_with(workload: Workload, start: Floats, call_end: Floats) -> Ints:
    """Call with whose end each op ended, -1 of one without.

    A receiver that comes to a message after that has come waits for nobody there. ``start`` is when
    each op starts, ``call_end`` when each call is over (s).
    """
    call, receives = workload.call.copy(), np.flatnonzero(workload.unawaited)
    came_late = start[receives] >= call_end[call[receives]]
    call[receives[came_late]] = -1
    return call


class Released(NamedTuple):
    """What released each op; the call whose end ended it (-1: none); who each call began with."""

    by: Ints
    call: Ints
    last: Ints


def ops_on_path(end: Floats, released: Released) -> tuple[Ints, Ints]:
    """Ops on the path, from the last: each with the member whose arrival let its call begin.

    Of an op without a call that is itself. ``end`` is when each op ends (s).
    """
    left, arrived = np.empty((2, len(end)), dtype=np.int32)
    count = _follow(int(np.argmax(end)), released, left, arrived)
    return left[:count], arrived[:count]


@hot_loop
def _follow(op: int, released: Released, left: Ints, arrived: Ints) -> int:
    """Fill two columns from an op back to one that nothing released; return how long they are."""
    count = 0
    while op >= 0:
        left[count] = op
        if released.call[op] >= 0:
            op = released.last[released.call[op]]
        arrived[count] = op
        count += 1
        op = released.by[op]
    return count


def path_by_what(timeline: Timeline, path: list[Segment]) -> dict[str, float]:
    """Time on the critical path by what it was spent on (s); communication is split by resource.

    The split of a call follows where the network spent it: ``scale_up``, ``scale_out``, …, and
    ``software`` for overhead that no link causes.
    """
    totals: dict[str, float] = {}
    names = (*timeline.topology.resources, "software")
    for segment in path:
        if segment.what != _MOVING:
            totals[segment.what] = totals.get(segment.what, 0.0) + segment.duration
    call, duration = _moving(timeline, path)
    spent = timeline.call_spent[call]
    every = spent.sum(axis=1)
    seconds = (spent * (duration / np.where(every > 0, every, 1.0))[:, None]).sum(axis=0)
    return totals | {name: time for name, time in zip(names, seconds.tolist(), strict=True) if time}


REACTING = ("host", "compute", "launch", _MOVING)
"""Uses of the path that some resource shortens: ``launch`` is the host's time, and a call's time on
links is its tiers'."""
UNKNOWN_CALLS, SOFTWARE = "unknown calls", "software"
"""Causes that are parts of calls."""


def pinned_parts(timeline: Timeline, path: list[Segment]) -> dict[str, float]:
    """Time on the critical path that reacts to no resource (s), by cause, the largest first.

    It is as long as it was recorded, however good the resources get; what else there is of the path
    reacts. To ``compute`` react kernels; to ``host``, host ops in which something is seen at work
    and the latency of launches; to a tier's bandwidth and latency, what a call spends on its links.
    These causes are insensitive:

    ``copy``
        Copies between host and device memory, or inside one: no resource stands for either.
    ``gap``
        From one device op to the next, where nothing is known to have come between.
    ``launch delay``
        What a launch took beyond the usual latency, which nothing explains.
    ``unexplained host``
        A thread on which nothing is seen at work (:data:`simulator.workload.UNEXPLAINED_HOST`).
    ``not ready``
        A rank, or one of its streams, begins late.
    ``absent ranks``
        Members of a call that were not recorded arrive late.
    ``unknown calls``
        Calls of unknown kind or size: they cost what was measured on any network.
    ``software``
        What a call costs that no link causes. Another network may let the library choose an
        algorithm with less of it.
    ``drain``
        What a rank needs of itself after the end of a call.

    Returns
    -------
    dict of str to float
        Seconds; only causes of which there is some.
    """
    totals: dict[str, float] = {}
    for segment in path:
        if segment.what not in REACTING:
            totals[segment.what] = totals.get(segment.what, 0.0) + segment.duration
    call, duration = _moving(timeline, path)
    sized = ~np.isnan(timeline.workload.calls.size[call])
    spent = timeline.call_spent[call]
    every = spent.sum(axis=1)
    software = spent[:, -1] / np.where(every > 0, every, 1.0)
    totals[UNKNOWN_CALLS] = float(duration[~sized].sum())
    totals[SOFTWARE] = float((duration * software)[sized].sum())
    parts = sorted(totals.items(), key=lambda part: -part[1])
    return {cause: seconds for cause, seconds in parts if seconds > 0}


def path_by_group(timeline: Timeline, path: list[Segment]) -> dict[str, float]:
    """Time of communication on the critical path by kind and group (s)."""
    workload = timeline.workload
    call, duration = _moving(timeline, path)
    kinds = len(KINDS) + 1
    number, first = by_appearance(workload.calls.group[call] * kinds + workload.calls.kind[call])
    totals: dict[str, float] = {}
    seconds = np.bincount(number, weights=duration, minlength=len(first)).tolist()
    for index, time in zip(call[first].tolist(), seconds, strict=True):
        view = workload.call_view(index)
        key = f"{view.kind} {view.group}"
        totals[key] = totals.get(key, 0.0) + time
    return totals


def _moving(timeline: Timeline, path: list[Segment]) -> tuple[Ints, Floats]:
    """Return the calls that move on the path, and for how long they do (s)."""
    moving = [(segment.op, segment.duration) for segment in path if segment.what == _MOVING]
    ops, duration = zip(*moving, strict=True) if moving else ((), ())
    return timeline.workload.call[np.array(ops, dtype=np.int64)], np.array(duration)
