"""A simulated step as what a Kineto file can say: a thread per rank, and times in nanoseconds.

A profiler sees one thread per rank here, which launches what runs on streams:

* ops of the host lie on one lane ``thread N`` per rank, all others on lanes ``stream N``;
* an edge from a host op to an op on a stream is its launch, made where the host op ends: each has
  exactly one, and a host op launches at most one;
* an edge from a stream to the host is a synchronising call, which waits for the last op launched
  to one stream, or to all of them;
* an edge between streams is an event recorded on one and waited for on the other;
* a message is sent by the first rank of its group and received by the second, on a communicator
  of the two.

What a stream was launched runs in that order and one at a time. Anything else (an edge to another
rank, several threads, a collective that drains) would read back as another workload: it is refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.errors import WorkloadError
from simulator.timeline import Timeline
from simulator.workload import KINDS, What, Workload


@dataclass(frozen=True, slots=True)
class HostOp:
    """An op of a rank's thread: it waits for the device, then lasts, then launches.

    ``awaits`` are the ops on streams it waits for, ``launched`` is the op it launches, ``waits``
    the ops on other streams that one waits for. ``all_streams``: it waits for the whole device.
    """

    op: int
    awaits: tuple[int, ...]
    all_streams: bool
    launched: int | None
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThreadProgram:
    """A rank's thread from first to last; ``recorded`` are the ops behind whose launch an event is.

    ``ProcessGroupNCCL`` records one behind each collective; the others are those that someone waits
    for after more was launched to their stream.
    """

    rank: int
    thread: int
    host: tuple[HostOp, ...]
    recorded: frozenset[int]


def thread_programs(timeline: Timeline) -> tuple[ThreadProgram, ...]:
    """Take a simulated step apart, rank by rank.

    Raises
    ------
    WorkloadError
        If a Kineto file cannot say it; see the module's docstring.
    """
    workload = timeline.workload
    _check_job(workload)
    links = _EdgesByKind.of(timeline)
    return tuple(_program(timeline, links, rank) for rank in workload.ranks)


_MEANT = re.compile(r"^ProfilerStep#|nccl(dev)?kernel|rccl|Pageable", re.IGNORECASE)
"""Names with a meaning: a step, a collective, a copy for which its caller waits."""
_MESSAGE = KINDS.index("send_receive")


def _check_job(workload: Workload) -> None:
    if workload.ranks != tuple(range(workload.job_ranks)):
        raise _refused(f"it holds {len(workload.ranks)} of the job's {workload.job_ranks} ranks")
    _check_messages(workload)
    calls = workload.calls
    sizes = np.array([len(group.ranks) for group in workload.groups], dtype=np.int64)
    changed = (calls.factor != 1) | (calls.late != 0) | (workload.members != sizes[calls.group])
    for call in np.flatnonzero(changed).tolist():
        raise _refused(f"{workload.call_view(call)} lacks members, or has a factor, or is late")
    for op in np.flatnonzero((workload.call >= 0) & (workload.duration > 0)).tolist():
        raise _refused(f"{workload.op(op)} goes on after its call has ended (drains)")
    meant = {name for number, name in enumerate(workload.names) if _MEANT.search(name)}
    for op in np.flatnonzero(workload.call < 0).tolist():
        if meant and workload.op(op).name in meant:
            raise _refused(f"{workload.op(op)} has a name that a reader takes for something else")


def _check_messages(workload: Workload) -> None:
    """Refuse messages that do not go from the first rank of a group of two to the second."""
    for index, known in enumerate(workload.groups):
        own = workload.calls.group == index
        if len(known.ranks) != 2 and bool(np.any(workload.calls.kind[own] == _MESSAGE)):
            raise _refused(f"a message among {len(known.ranks)} ranks ({known})")
    for op in np.flatnonzero(workload.what >= What.COLLECTIVE).tolist():
        call = workload.call_view(int(workload.call[op]))
        sends = call.group.ranks[0] == workload.rank[op]
        own = What.COLLECTIVE
        if call.kind == "send_receive":
            own = What.SEND if sends else What.RECEIVE
        if workload.what[op] != own:
            what = What(workload.what[op]).name.lower()
            raise _refused(f"{workload.op(op)} of {call} is a {what}, not a {own.name.lower()}")


@dataclass(frozen=True, slots=True, eq=False)
class _EdgesByKind:
    """Edges by what they are: ``launcher`` and ``launched`` both ways, ``waits`` by the waiter."""

    timeline: Timeline
    launcher: dict[int, int] = field(default_factory=dict)
    launched: dict[int, int] = field(default_factory=dict)
    waits: dict[int, list[int]] = field(default_factory=dict)

    @staticmethod
    def of(timeline: Timeline) -> "_EdgesByKind":
        links = _EdgesByKind(timeline)
        edges = timeline.workload.edges
        for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
            links._add(source, target)
        return links

    def _add(self, source: int, target: int) -> None:
        workload = self.timeline.workload
        if workload.rank[source] != workload.rank[target]:
            raise _refused(f"{workload.op(target)} waits for {workload.op(source)}")
        from_host, to_host = workload.what[[source, target]] == What.HOST
        if from_host and not to_host:
            self._launch(source, target)
        elif not from_host and (to_host or workload.lane[source] != workload.lane[target]):
            self.waits.setdefault(target, []).append(source)

    def _launch(self, host: int, device: int) -> None:
        workload = self.timeline.workload
        if device in self.launcher:
            raise _refused(f"{workload.op(device)} is launched twice")
        if host in self.launched:
            other = workload.op(self.launched[host])
            raise _refused(f"{workload.op(host)} launches {other} and {workload.op(device)}")
        self.launcher[device] = host
        self.launched[host] = device


def _program(timeline: Timeline, links: _EdgesByKind, rank: int) -> ThreadProgram:
    workload = timeline.workload
    mine = np.flatnonzero(workload.rank == rank).tolist()
    host = [op for op in _in_time(timeline, mine) if workload.what[op] == What.HOST]
    threads = {lane_number(workload, op) for op in host}
    if len(threads) != 1:
        raise _refused(f"rank {rank} has {len(threads)} host threads")
    _check_one_at_a_time(timeline, host)
    number_of = {op: number for number, op in enumerate(host)}
    _check_streams(timeline, links, [op for op in mine if op not in number_of], number_of)
    walk = _Walk(workload, links, number_of)
    steps = tuple(walk.step(op) for op in host)
    return ThreadProgram(rank, threads.pop(), steps, frozenset(walk.recorded))


def _in_time(timeline: Timeline, ops: Iterable[int]) -> list[int]:
    return sorted(ops, key=lambda op: (timeline.start[op], timeline.end[op], op))


def _check_one_at_a_time(timeline: Timeline, ops: Sequence[int]) -> None:
    for earlier, later in pairwise(ops):
        if timeline.end[earlier] > timeline.start[later]:
            op = timeline.workload.op
            raise _refused(f"{op(later)} starts before {op(earlier)} has ended on the same lane")


def _check_streams(
    timeline: Timeline, links: _EdgesByKind, device: Sequence[int], number_of: Mapping[int, int]
) -> None:
    """Every op on a stream was launched, and a stream runs what it was launched, in that order."""
    workload = timeline.workload
    streams: dict[int, list[int]] = {}
    for op in device:
        if op not in links.launcher:
            raise _refused(f"{workload.op(op)} has no launch (an edge from a host op)")
        streams.setdefault(lane_number(workload, op), []).append(op)
    for ops in streams.values():
        ops.sort(key=lambda op: number_of[links.launcher[op]])
        _check_one_at_a_time(timeline, ops)


class _Walk:
    """Goes along a thread and knows what was launched to each stream last."""

    def __init__(
        self, workload: Workload, links: _EdgesByKind, number_of: Mapping[int, int]
    ) -> None:
        self._workload, self._links, self._place = workload, links, number_of
        self._last: dict[int, int] = {}
        self.recorded: set[int] = set()

    def step(self, op: int) -> HostOp:
        awaits = self._latest(op, op)
        for source in awaits.values():
            if source not in self._last.values():
                raise self._not_last(op, source)
        all_streams = len(awaits) > 1
        if all_streams and len(awaits) != len(self._last):
            raise _refused(f"{self._workload.op(op)} waits for some of its streams, not all")
        launched = self._links.launched.get(op)
        waits: tuple[int, ...] = ()
        if launched is not None:
            waits = self._launch(op, launched)
        return HostOp(op, tuple(awaits.values()), all_streams, launched, waits)

    def _launch(self, host: int, launched: int) -> tuple[int, ...]:
        waits = tuple(self._latest(launched, host).values())
        behind = {source for source in waits if source not in self._last.values()}
        if self._workload.what[launched] >= What.COLLECTIVE:
            behind.add(launched)
        self.recorded |= behind
        self._last[lane_number(self._workload, launched)] = launched
        return waits

    def _latest(self, waiter: int, host: int) -> dict[int, int]:
        """Per stream the last of the ops that an op waits for: it stands for those before it."""
        latest: dict[int, int] = {}
        launched = self._links.launcher
        for source in self._links.waits.get(waiter, []):
            if self._place[launched[source]] >= self._place[host]:
                view = self._workload.op
                raise _refused(f"{view(waiter)} waits for {view(source)}, launched after it")
            stream = lane_number(self._workload, source)
            best = latest.get(stream, source)
            latest[stream] = max(
                best, source, key=lambda waited_for: self._place[launched[waited_for]]
            )
        return latest

    def _not_last(self, op: int, source: int) -> WorkloadError:
        view = self._workload.op
        return _refused(f"{view(op)} waits for {view(source)}, not the last of its stream by then")


def lane_number(workload: Workload, op: int) -> int:
    """Return the number in ``thread 7`` or ``stream 7``."""
    view = workload.op(op)
    word = "thread" if view.what == What.HOST else "stream"
    name, _, number = view.lane.partition(" ")
    if name != word or not (number.isascii() and number.isdigit()):
        raise _refused(f"{view} lies on the lane {view.lane!r}, not on a '{word} 7' or so")
    return int(number)


def _refused(reason: str) -> WorkloadError:
    return WorkloadError(f"no Kineto trace of this workload: {reason}")


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Start and end of the ops of step ``number``, in nanoseconds since the base of the file."""

    number: int
    workload: Workload
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def span(self, op: int) -> tuple[int, int]:
        """Start and end of an op."""
        return int(self.start[op]), int(self.end[op])

    def rank_end(self, rank: int) -> int:
        """When the rank's last op ends."""
        return int(self.end[self.workload.rank == rank].max())


_BEFORE = 1_000_000
_BETWEEN = 10_000
"""From the base of the file to the first step, and from step to step (ns)."""


def in_sequence(timelines: Sequence[Timeline], first: int) -> list[StepTimes]:
    """Put simulated steps one behind the other, each after the last rank is done with the other."""
    steps: list[StepTimes] = []
    origin = _BEFORE
    for number, timeline in enumerate(timelines, first):
        start, end = (
            np.rint(column * 1e9).astype(np.int64) + origin
            for column in (timeline.start, timeline.end)
        )
        steps.append(StepTimes(number, timeline.workload, start, end))
        origin = int(end.max(initial=origin)) + _BETWEEN
    return steps
