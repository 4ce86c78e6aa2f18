"""The critical path: ops that each start when the one before ends, up to the makespan.

The engine records what released each op, so the path is read backwards from the op that ended last,
without a search. Its segments tile the time from 0 to the makespan without a gap.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from simulator.calls import KINDS
from simulator.support.arrays import Floats, Ints, by_appearance
from simulator.support.compiled import hot_loop
from simulator.timeline import Timeline
from simulator.workload import DATA_LOADER, LAUNCH_DELAY, What, Workload

_MOVING = "communication"
_BUSY = {What.HOST: "host", What.COMPUTE: "compute", What.COPY: "copy"}


class Segment(NamedTuple):
    """A segment of the critical path (s), spent on ``what`` by op ``op``.

    ``what`` is ``host``, ``compute``, ``copy``, ``communication``, ``drain`` (a rank's own time at
    the end of a call), ``launch`` (from a host op's end to the start of what it released), ``gap``
    (from one device op to the next), ``launch delay`` (after a launch and unexplained by it),
    ``absent ranks`` (waiting for members that were not traced), ``not ready`` (a rank starts late)
    or ``unexplained host`` (a thread without visible work).
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
    """Return the segments of the critical path in order of time; they sum to the makespan.

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
    return [_with_use(timeline, segment) for segment in segments][::-1]


def _with_use(timeline: Timeline, segment: Segment) -> Segment:
    """Tell the host at work from a silent thread or a loader, and a gap from a launch delay."""
    workload = timeline.workload
    if segment.what == "host" and workload.part[segment.op] != What.HOST:
        return segment._replace(what=workload.names[workload.name[segment.op]])
    if segment.what == "not ready" and workload.names[workload.name[segment.op]] == DATA_LOADER:
        return segment._replace(what=DATA_LOADER)  # it began before the step
    if segment.what == "gap":
        before = int(timeline.released_by[segment.op])
        if workload.names[workload.name[before]] == LAUNCH_DELAY:
            return segment._replace(what=LAUNCH_DELAY)
    return segment


def _backwards(timeline: Timeline) -> Iterator[Segment]:
    """Segments from the last to the first, some of length 0."""
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
    """Return the call whose end ended each op, -1 for an op without one.

    The receiver of an eager message that arrives after the message waits for nothing. ``start`` is
    the start of each op, ``call_end`` the end of each call (s).
    """
    call, receives = workload.call.copy(), np.flatnonzero(workload.unawaited)
    came_late = start[receives] >= call_end[call[receives]]
    call[receives[came_late]] = -1
    return call


class Released(NamedTuple):
    """What released each op; the call that ended it (-1: none); each call's last member."""

    by: Ints
    call: Ints
    last: Ints


def ops_on_path(end: Floats, released: Released) -> tuple[Ints, Ints]:
    """Return the ops on the path, from the last, each with the member that started its call.

    For an op without a call that is the op itself. ``end`` is the end of each op (s).
    """
    left, arrived = np.empty((2, len(end)), dtype=np.int32)
    count = _follow(int(np.argmax(end)), released, left, arrived)
    return left[:count], arrived[:count]


@hot_loop
def _follow(op: int, released: Released, left: Ints, arrived: Ints) -> int:
    """Fill two columns from an op back to one that nothing released; return their length."""
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
    """Time on the critical path by use (s); communication is split by resource.

    The split of a call follows the network's own: ``scale_up``, ``scale_out``, …, and ``software``
    for overhead that no link causes.
    """
    totals: dict[str, float] = {}
    names = (*timeline.topology.resources, "software")
    for segment in path:
        if segment.what != _MOVING:
            totals[segment.what] = totals.get(segment.what, 0.0) + segment.duration
    call, duration = _calls_on_path(timeline, path)
    spent = timeline.call_spent[call]
    every = spent.sum(axis=1)
    seconds = (spent * (duration / np.where(every > 0, every, 1.0))[:, None]).sum(axis=0)
    return totals | {name: time for name, time in zip(names, seconds.tolist(), strict=True) if time}


REACTING = ("host", "compute", "launch", _MOVING)
"""Uses of the path that some resource shortens: ``launch`` is time of the host, and the time of a
call on links belongs to its tiers."""
UNKNOWN_CALLS, SOFTWARE = "unknown calls", "software"
"""Causes that are parts of calls."""


def pinned_parts(timeline: Timeline, path: list[Segment]) -> dict[str, float]:
    """Time on the critical path that depends on no resource (s), by cause, the largest first.

    It stays as recorded, however good the resources get. All other time of the path depends on one:
    kernels on ``compute``; host ops with visible work and launch latencies on ``host``; the time of
    a call on its links on the bandwidth and latency of a tier. These causes are insensitive:

    ``copy``
        Copies between host and device memory, or inside one: no resource stands for either.
    ``gap``
        From one device op to the next, without a known reason.
    ``launch delay``
        The part of a launch beyond the usual latency, unexplained.
    ``unexplained host``
        A thread without visible work (:data:`simulator.workload.UNEXPLAINED_HOST`).
    ``data loader``
        Worker processes prepare the batch that a rank waits for.
    ``not ready``
        A rank, or one of its streams, starts late.
    ``absent ranks``
        Members of a call that were not recorded arrive late.
    ``unknown calls``
        Calls of unknown kind or size, which keep their measured time on any network.
    ``software``
        Overhead of a call that no link causes. On another network the library may choose an
        algorithm with less of it.
    ``drain``
        A rank's own time after the end of a call.

    Returns
    -------
    dict of str to float
        Seconds; causes of 0 s are left out.
    """
    totals: dict[str, float] = {}
    for segment in path:
        if segment.what not in REACTING:
            totals[segment.what] = totals.get(segment.what, 0.0) + segment.duration
    call, duration = _calls_on_path(timeline, path)
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
    call, duration = _calls_on_path(timeline, path)
    kinds = len(KINDS) + 1
    number, first = by_appearance(workload.calls.group[call] * kinds + workload.calls.kind[call])
    totals: dict[str, float] = {}
    seconds = np.bincount(number, weights=duration, minlength=len(first)).tolist()
    for index, time in zip(call[first].tolist(), seconds, strict=True):
        view = workload.call_view(index)
        key = f"{view.kind} {view.group}"
        totals[key] = totals.get(key, 0.0) + time
    return totals


def _calls_on_path(timeline: Timeline, path: list[Segment]) -> tuple[Ints, Floats]:
    """Return the calls on the path, and for how long the path follows each (s)."""
    moving = [(segment.op, segment.duration) for segment in path if segment.what == _MOVING]
    ops, duration = zip(*moving, strict=True) if moving else ((), ())
    return timeline.workload.call[np.array(ops, dtype=np.int64)], np.array(duration)
