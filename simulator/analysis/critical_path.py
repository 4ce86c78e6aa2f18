"""The critical path: ops that each start when the one before ends, up to the makespan.

The engine records what released each op, so the path is read backwards from the op that ended last,
without a search. Its segments tile the time from 0 to the makespan without a gap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from simulator.calls import KINDS
from simulator.support.arrays import Floats, Ints, Mask, by_appearance
from simulator.support.compiled import hot_loop
from simulator.timeline import Timeline
from simulator.workload import DATA_LOADER, LAUNCH_DELAY, UNEXPLAINED_HOST, What, Workload

_MOVING = "communication"
_USES = (
    *("host", "compute", "copy", "drain", _MOVING, "absent ranks", "launch", "gap", "not ready"),
    *(LAUNCH_DELAY, DATA_LOADER, UNEXPLAINED_HOST),
)
_CODE = {use: code for code, use in enumerate(_USES)}


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


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath(Sequence[Segment]):
    """Segments of the critical path in order of time, as columns: start and end (s), op, use.

    ``use`` numbers the words of ``Segment.what``: :meth:`is_spent_on` and :meth:`seconds_by_use`
    read it. A path of a million segments needs no :class:`Segment` for each.
    """

    start: Floats
    end: Floats
    op: Ints
    use: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.op)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> "CriticalPath": ...
    def __getitem__(self, index: int | slice) -> "Segment | CriticalPath":
        columns = self.start[index], self.end[index], self.op[index], self.use[index]
        if isinstance(index, slice):
            return CriticalPath(*columns)
        start, end, op, use = columns
        return Segment(float(start), float(end), _USES[use], int(op))

    def __iter__(self) -> Iterator[Segment]:
        columns = self.start.tolist(), self.end.tolist(), self.op.tolist(), self.use.tolist()
        for start, end, op, use in zip(*columns, strict=True):
            yield Segment(start, end, _USES[use], op)

    @property
    def duration(self) -> Floats:
        """Length of each segment (s)."""
        return self.end - self.start

    def is_spent_on(self, *uses: str) -> Mask:
        """Return the mask of segments spent on one of some uses."""
        return np.isin(self.use, [_CODE[use] for use in uses])

    def seconds_by_use(self) -> dict[str, float]:
        """Return the time of each use (s), in order of appearance."""
        number, first = by_appearance(self.use)
        seconds = np.bincount(number, weights=self.duration, minlength=len(first)).tolist()
        return {_USES[self.use[at]]: time for at, time in zip(first, seconds, strict=True)}


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the segments of the critical path, which tile the time from 0 to the makespan.

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
    workload = timeline.workload
    if not len(timeline.end):
        empty = np.empty(0)
        return CriticalPath(empty, empty, empty.astype(np.int32), empty.astype(np.uint8))
    joined = ended_with(workload, timeline.start, timeline.call_end)
    left, arrived = ops_on_path(
        timeline.end, Released(timeline.released_by, joined, timeline.call_released_by)
    )
    # In order of time; each op of the path has up to four segments.
    left, arrived = left[::-1], arrived[::-1]
    call, before = joined[left], timeline.released_by[arrived]
    start, end = timeline.start[arrived], timeline.end[left]
    # An op without a call lasts to its end: its third and fourth segment have no length.
    begun, over = (
        np.where(call >= 0, times[call] if len(times) else 0.0, end)
        for times in (timeline.call_start, timeline.call_end)
    )
    released = np.where(before >= 0, timeline.end[before], 0.0)
    times = np.stack([released, start, begun, over, end], axis=1)
    # A rank may have begun a step that repeats before the step before had ended on all: that time
    # is the other step's.
    first, last = np.maximum(0.0, times[:, :-1]), times[:, 1:]
    use = _uses(workload, (before, arrived, left), call)
    op = np.stack([arrived, arrived, left, left], axis=1)
    lasts = last > first
    return CriticalPath(first[lasts], last[lasts], op[lasts], use[lasts])


def _uses(workload: Workload, ops: tuple[Ints, Ints, Ints], call: Ints) -> NDArray[np.uint8]:
    """Return the uses of the four segments of each op on the path, shape ``(ops, 4)``.

    ``ops`` are what released the member that started its call (-1: nothing), that member, and the
    op itself; ``call`` is its call, -1 for none.
    """
    before, arrived, left = ops
    use = np.empty((len(left), 4), dtype=np.uint8)
    # Up to the start of the member.
    launched = (before >= 0) & (workload.what[before] == What.HOST)
    use[:, 0] = np.where(launched, _CODE["launch"], _CODE["gap"])
    if LAUNCH_DELAY in workload.names:
        delayed = workload.name[before] == workload.names.index(LAUNCH_DELAY)
        use[(before >= 0) & ~launched & delayed, 0] = _CODE[LAUNCH_DELAY]
    use[before < 0, 0] = _CODE["not ready"]
    if DATA_LOADER in workload.names:  # it began before the step
        loaded = workload.name[arrived] == workload.names.index(DATA_LOADER)
        use[(before < 0) & loaded, 0] = _CODE[DATA_LOADER]
    # What an op does itself; a silent thread or a loader is not the host at work.
    use[:, 1] = _CODE["drain"]
    for what, name in ((What.HOST, "host"), (What.COMPUTE, "compute"), (What.COPY, "copy")):
        use[workload.what[left] == what, 1] = _CODE[name]
    for name in (DATA_LOADER, UNEXPLAINED_HOST):
        use[workload.is_host_named(name)[left], 1] = _CODE[name]
    use[call >= 0, 1] = _CODE["absent ranks"]
    use[:, 2], use[:, 3] = _CODE[_MOVING], _CODE["drain"]
    return use


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


def path_by_what(timeline: Timeline, path: CriticalPath) -> dict[str, float]:
    """Time on the critical path by use (s); communication is split by resource.

    The split of a call follows the network's own: ``scale_up``, ``scale_out``, …, and ``software``
    for overhead that no link causes.
    """
    totals = path.seconds_by_use()
    totals.pop(_MOVING, None)
    names = (*timeline.topology.resources, "software")
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


def pinned_parts(timeline: Timeline, path: CriticalPath) -> dict[str, float]:
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
    """
    spent_on = path.seconds_by_use().items()
    totals = {use: seconds for use, seconds in spent_on if use not in REACTING}
    call, duration = _calls_on_path(timeline, path)
    sized = ~np.isnan(timeline.workload.calls.size[call])
    spent = timeline.call_spent[call]
    every = spent.sum(axis=1)
    software = spent[:, -1] / np.where(every > 0, every, 1.0)
    totals[UNKNOWN_CALLS] = float(duration[~sized].sum())
    totals[SOFTWARE] = float((duration * software)[sized].sum())
    parts = sorted(totals.items(), key=lambda part: -part[1])
    return {cause: seconds for cause, seconds in parts if seconds > 0}


def path_by_group(timeline: Timeline, path: CriticalPath) -> dict[str, float]:
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


def _calls_on_path(timeline: Timeline, path: CriticalPath) -> tuple[Ints, Floats]:
    """Return the calls on the path, and for how long the path follows each (s)."""
    moving = path.is_spent_on(_MOVING)
    return timeline.workload.call[path.op[moving]], path.duration[moving]
