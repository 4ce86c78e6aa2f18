"""A simulated step in the terms of a Kineto file: threads, streams, and times in nanoseconds.

A profiler records threads that launch ops on streams:

* host ops are on threads, all others on streams; lanes with other names get numbers of their own;
* an edge from a host op to an op on a stream is its launch, at the end of the host op: each has
  at most one, and a host op that launches several launches them together, as a graph;
* an edge from a stream to the host is a synchronising call, which waits for the last op launched
  to one stream, or to all of them, or for an event recorded after an op;
* an edge between streams is an event recorded on one and waited for on the other, before the
  launch of the op that waits;
* a message is sent by the first rank of its group and received by the second, on a communicator
  of the two.

Ops launched to a stream run in the order of launch and one at a time. Ops without a launch keep
their times; no event records that they wait for another stream, or that one thread wakes another: a
reader must infer it from times. Anything else (an edge to another rank, a call scaled by a what-if)
would read back as another workload: it is refused.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.calls import SEND_RECEIVE
from simulator.support.errors import WorkloadError
from simulator.timeline import Timeline, group_sizes
from simulator.workload import STEP_BEFORE, What, Workload
from traces.core.comm_kernels import communicates


@dataclass(frozen=True, slots=True)
class HostOp:
    """An op of a thread: it waits for the device, then lasts, then launches.

    ``awaits`` are the ops on streams that it waits for, ``launched`` those that it launches,
    ``waits`` the ops on other streams that the first of those waits for. ``by_event`` are those of
    ``awaits`` after which more was launched to their stream. ``awaits`` are sorted by their ends;
    they are of all streams if it waits for the ``whole`` device.
    """

    op: int
    awaits: tuple[int, ...]
    by_event: frozenset[int]
    whole: bool
    launched: tuple[int, ...]
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThreadProgram:
    """The ops of a thread in order; ``recorded`` are those with an event after their launch.

    ``ProcessGroupNCCL`` records one after each collective; others are recorded if an op waits for
    them after more was launched to their stream.
    """

    rank: int
    thread: int
    host: tuple[HostOp, ...]
    recorded: frozenset[int]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """A rank's threads, sorted by first start, and the ops that no thread launched.

    ``unwritten`` counts the waits that no event records.
    """

    rank: int
    threads: tuple[ThreadProgram, ...]
    unlaunched: tuple[int, ...]
    unwritten: int


def rank_programs(timeline: Timeline) -> dict[int, RankProgram]:
    """Return the program of each rank of a simulated step.

    Raises
    ------
    WorkloadError
        If a Kineto file cannot represent it; see the module's docstring.
    """
    workload = timeline.workload
    _check_workload(workload)
    links = _EdgesByKind.of(timeline, lane_numbers(timeline))
    return {rank: _program(timeline, links, rank) for rank in workload.ranks}


_RESERVED_NAMES = re.compile(r"^ProfilerStep#|nccl(dev)?kernel|rccl", re.IGNORECASE)
"""Names with a meaning for readers: a step, a collective."""


def _check_workload(workload: Workload) -> None:
    _check_messages(workload)
    calls = workload.calls
    ranks = set(workload.ranks)
    sizes = np.array([len(ranks.intersection(group.ranks)) for group in workload.groups], dtype=int)
    # Of a call that misses ranks of the job a reader takes the excess for their lateness again.
    late = (calls.late != 0) & (sizes == group_sizes(workload))[calls.group]
    changed = (calls.factor != 1) | late | (workload.members != sizes[calls.group])
    for call in np.flatnonzero(changed).tolist():
        raise _refused(f"{workload.call_view(call)} lacks members, or has a factor, or is late")
    _check_unknown(workload)
    meant = {name for number, name in enumerate(workload.names) if _RESERVED_NAMES.search(name)}
    for op in np.flatnonzero(workload.call < 0).tolist():
        if meant and workload.op(op).name in meant:
            raise _refused(f"{workload.op(op)} has a name that a reader takes for something else")


def _check_unknown(workload: Workload) -> None:
    """Refuse calls that are not known in full and whose kernel's name is not NCCL's."""
    unknown = np.isnan(workload.calls.size)
    joined = np.flatnonzero(workload.call >= 0)
    for op in joined[unknown[workload.call[joined]]].tolist():
        if not communicates(workload.op(op).name):
            what = f"{workload.op(op)} of {workload.call_view(int(workload.call[op]))}"
            raise _refused(f"{what}: only the name of a kernel could identify it")


def _check_messages(workload: Workload) -> None:
    """Refuse messages that do not go from the first rank of a group of two to the second."""
    for index, group in enumerate(workload.groups):
        in_group = workload.calls.group == index
        if len(group.ranks) != 2 and bool(np.any(workload.calls.kind[in_group] == SEND_RECEIVE)):
            raise _refused(f"a message among {len(group.ranks)} ranks ({group})")
    for op in np.flatnonzero(workload.what >= What.COLLECTIVE).tolist():
        call = workload.call_view(int(workload.call[op]))
        sends = call.group.ranks[0] == workload.rank[op]
        may_be = {What.COLLECTIVE}
        if call.kind == "send_receive":
            may_be.add(What.SEND if sends else What.RECEIVE)
        if workload.what[op] not in may_be:
            what, expected = (kind.name.lower() for kind in (What(workload.what[op]), max(may_be)))
            raise _refused(f"{workload.op(op)} of {call} is a {what}, not a {expected}")
    for eager in np.flatnonzero(workload.calls.eager).tolist():
        call = workload.call_view(eager)
        raise _refused(f"{call} does not wait for its receiver, as NCCL's messages do")


@dataclass(frozen=True, slots=True, eq=False)
class _EdgesByKind:
    """Edges by kind: ``launcher`` and ``launched`` in both directions, ``waits`` by waiting op."""

    timeline: Timeline
    numbers: NDArray[np.int64]
    launcher: dict[int, int] = field(default_factory=dict)
    launched: dict[int, list[int]] = field(default_factory=dict)
    waits: dict[int, list[int]] = field(default_factory=dict)

    @staticmethod
    def of(timeline: Timeline, numbers: NDArray[np.int64]) -> "_EdgesByKind":
        links = _EdgesByKind(timeline, numbers)
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
        elif not from_host and (to_host or self.numbers[source] != self.numbers[target]):
            self.waits.setdefault(target, []).append(source)

    def _launch(self, host: int, device: int) -> None:
        workload = self.timeline.workload
        if device in self.launcher:
            raise _refused(f"{workload.op(device)} is launched twice")
        self.launcher[device] = host
        self.launched.setdefault(host, []).append(device)


def _program(timeline: Timeline, links: _EdgesByKind, rank: int) -> RankProgram:
    workload = timeline.workload
    rank_ops = np.flatnonzero(workload.rank == rank).tolist()
    host = [op for op in _by_start(timeline, rank_ops) if workload.what[op] == What.HOST]
    numbers = links.numbers
    of_thread: dict[int, list[int]] = {}
    for op in host:
        of_thread.setdefault(int(numbers[op]), []).append(op)
    for ops in of_thread.values():
        _check_one_at_a_time(timeline, ops)
    device = [op for op in rank_ops if workload.what[op] != What.HOST]
    _launch_together(timeline, links, host, device)
    walk = _Walk(timeline, links)
    unlaunched = tuple(op for op in _by_start(timeline, device) if op not in links.launcher)
    walk.begin(unlaunched)
    done = walk.walk(host)
    _check_streams(timeline, links, device, walk)
    threads = tuple(
        ThreadProgram(rank, thread, tuple(done[op] for op in ops), frozenset(walk.recorded))
        for thread, ops in of_thread.items()
    )
    return RankProgram(rank, threads, unlaunched, walk.unwritten)


def _launch_together(
    timeline: Timeline, links: _EdgesByKind, host: Sequence[int], device: Sequence[int]
) -> None:
    """Assign ops without a launch to the launch before, if readers would miss them in the step.

    A reader determines the step by its threads: ops before a stream's first launch or after the
    last host op count as another step's. XLA launches a program as a whole, and only its first op
    names the launch: the others are assigned to it, like the kernels of a graph.
    """
    workload = timeline.workload
    over = max((float(timeline.end[op]) for op in host), default=-np.inf)
    first: dict[int, float] = {}
    for op in device:
        if op in links.launcher:
            stream, start = int(links.numbers[op]), float(timeline.start[op])
            first[stream] = min(first.get(stream, np.inf), start)
    launches = sorted((op for op in host if op in links.launched), key=lambda op: timeline.end[op])
    ends = [float(timeline.end[op]) for op in launches]
    for op in device:
        start = float(timeline.start[op])
        inside = first.get(int(links.numbers[op]), -np.inf) <= start < over
        if op in links.launcher or inside or workload.op(op).name == STEP_BEFORE:
            continue
        at = bisect_right(ends, start) - 1
        if at < 0:
            raise _refused(f"{workload.op(op)} has no launch (an edge from a host op) in the step")
        links.launcher[op] = launches[at]
        links.launched[launches[at]].append(op)


def _by_start(timeline: Timeline, ops: Iterable[int]) -> list[int]:
    return sorted(ops, key=lambda op: (timeline.start[op], timeline.end[op], op))


def _check_one_at_a_time(timeline: Timeline, ops: Sequence[int]) -> None:
    for earlier, later in pairwise(ops):
        if timeline.end[earlier] > timeline.start[later]:
            op = timeline.workload.op
            raise _refused(f"{op(later)} starts before {op(earlier)} has ended on the same lane")


def _check_streams(
    timeline: Timeline, links: _EdgesByKind, device: Sequence[int], walk: "_Walk"
) -> None:
    """Refuse a stream with two ops at once, or with ops in another order than their launches."""
    streams: dict[int, list[int]] = {}
    for op in _by_start(timeline, device):
        streams.setdefault(walk.numbers[op], []).append(op)
    for ops in streams.values():
        _check_one_at_a_time(timeline, ops)
        launched = [op for op in ops if op in links.launcher]
        for earlier, later in pairwise(launched):
            if walk.place[links.launcher[later]] < walk.place[links.launcher[earlier]]:
                view = timeline.workload.op
                raise _refused(f"{view(later)} was launched before {view(earlier)}, and ran after")


class _Walk:
    """Follows a rank's threads and the last launch to each stream.

    ``place`` is the position of a host op in the order of launches.
    """

    def __init__(self, timeline: Timeline, links: _EdgesByKind) -> None:
        self._timeline, self._workload, self._links = timeline, timeline.workload, links
        self.numbers = links.numbers
        self._last: dict[int, int] = {}
        self._launched: set[int] = set()
        self.place: dict[int, int] = {}
        self.recorded: set[int] = set()
        self.unwritten = 0

    def begin(self, unlaunched: Iterable[int]) -> None:
        """Treat ops that no thread launched as launched before all others."""
        for op in unlaunched:
            self._launched.add(op)
            self._last[int(self.numbers[op])] = op
            self.unwritten += len(self._links.waits.get(op, []))

    def walk(self, host: Sequence[int]) -> dict[int, HostOp]:
        """Process host ops, sorted by start: each waits at its start, launches at its end."""
        turns = []
        for number, op in enumerate(host):
            turns.append((float(self._timeline.start[op]), 2 * number, op))
            turns.append((float(self._timeline.end[op]), 2 * number + 1, op))
        awaits: dict[int, tuple[tuple[int, ...], frozenset[int], bool]] = {}
        done = {}
        for _, turn, op in sorted(turns):
            if turn % 2 == 0:
                awaits[op] = self._await(op)
                continue
            self.place[op] = len(self.place)
            launched = tuple(_by_start(self._timeline, self._links.launched.get(op, [])))
            waits = self._launch(launched) if launched else ()
            done[op] = HostOp(op, *awaits[op], launched, waits)
        return done

    def _await(self, op: int) -> tuple[tuple[int, ...], frozenset[int], bool]:
        awaits = self._latest(op).values()
        last = [source for source in awaits if source in self._last.values()]
        by_event = frozenset(awaits) - frozenset(last)
        if not by_event <= self._links.launcher.keys():
            self.unwritten += 1  # without a launch no event can be recorded after it
            return (), frozenset(), False
        self.recorded |= by_event
        whole = 1 < len(awaits) == len(last) == len(self._last)
        ended = sorted(awaits, key=lambda source: float(self._timeline.end[source]))
        return tuple(ended), by_event, whole

    def _launch(self, launched: tuple[int, ...]) -> tuple[int, ...]:
        first, *others = launched
        latest = self._latest(first).values()
        behind = {source for source in latest if source not in self._last.values()}
        # A set difference with the keys would iterate over the launches of all ranks.
        never = {source for source in behind if source not in self._links.launcher}
        self.unwritten += len(never)
        waits = tuple(source for source in latest if source not in never)
        behind -= never
        behind |= {op for op in launched if self._workload.what[op] >= What.COLLECTIVE}
        self.recorded |= behind
        self.unwritten += sum(len(self._links.waits.get(op, [])) for op in others)
        for op in launched:
            self._launched.add(op)
            self._last[int(self.numbers[op])] = op
        return waits

    def _latest(self, waiter: int) -> dict[int, int]:
        """Return per stream the last op that an op waits for; it implies those before it."""
        latest: dict[int, int] = {}
        for source in self._links.waits.get(waiter, []):
            if source not in self._launched:
                view = self._workload.op
                raise _refused(f"{view(waiter)} waits for {view(source)}, launched after it")
            stream = int(self.numbers[source])
            best = latest.get(stream, source)
            latest[stream] = max(
                best, source, key=lambda op: self.place.get(self._links.launcher.get(op, -1), -1)
            )
        return latest


_LANE = re.compile(r"(thread|stream) (\d+)$")


def lane_numbers(timeline: Timeline) -> NDArray[np.int64]:
    """Return each op's thread or stream number: 7 for ``thread 7``, otherwise a free one.

    An op that overlaps an earlier one on its stream gets another stream.
    """
    workload = timeline.workload
    is_host = workload.what == What.HOST
    number = np.zeros(len(workload), dtype=np.int64)
    for mask, word in ((is_host, "thread"), (~is_host, "stream")):
        lanes = np.unique(workload.lane[mask]).tolist()
        matches = {lane: _LANE.match(workload.lanes[lane]) for lane in lanes}
        numbers = {lane: int(m[2]) for lane, m in matches.items() if m is not None and m[1] == word}
        free = count(1 + max(numbers.values(), default=0))
        of_lane = np.zeros(len(workload.lanes), dtype=np.int64)
        for lane in lanes:
            of_lane[lane] = numbers[lane] if lane in numbers else next(free)
        number[mask] = of_lane[workload.lane[mask]]
    _split_streams(timeline, number, np.flatnonzero(~is_host), free)
    return number


def _split_streams(
    timeline: Timeline, number: NDArray[np.int64], ops: NDArray[np.intp], free: Iterator[int]
) -> None:
    """Give overlapping ops of a stream streams of their own, the same on every rank."""
    rank = timeline.workload.rank
    until: dict[tuple[int, int], list[float]] = {}
    more: dict[tuple[int, int], int] = {}
    # First fit in order of start: the first free stream takes the op; number 0 is its own.
    for op in ops[np.lexsort((ops, timeline.end[ops], timeline.start[ops]))].tolist():
        stream, start = int(number[op]), float(timeline.start[op])
        ends = until.setdefault((int(rank[op]), stream), [-np.inf])
        at = next((at for at, end in enumerate(ends) if end <= start), len(ends))
        if at == len(ends):
            ends.append(-np.inf)
        ends[at] = float(timeline.end[op])
        if at:
            if (stream, at) not in more:
                more[stream, at] = next(free)
            number[op] = more[stream, at]


def _refused(reason: str) -> WorkloadError:
    return WorkloadError(f"no Kineto trace of this workload: {reason}")


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Start and end of the ops of step ``number``, in nanoseconds since the base of the file.

    ``lane`` is the number of each op's thread or stream.
    """

    number: int
    workload: Workload
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    lane: NDArray[np.int64]

    def span(self, op: int) -> tuple[int, int]:
        """Start and end of an op."""
        return int(self.start[op]), int(self.end[op])


_BEFORE = 1_000_000
_BETWEEN = 10_000
"""Time from the base of the file to the first step, and between steps (ns)."""


def in_sequence(timelines: Sequence[Timeline], first: int) -> list[StepTimes]:
    """Place simulated steps one after the other, each after the previous has ended on all ranks."""
    steps: list[StepTimes] = []
    origin = _BEFORE
    for number, timeline in enumerate(timelines, first):
        start, end = (
            np.rint(column * 1e9).astype(np.int64) + origin
            for column in (timeline.start, timeline.end)
        )
        lanes = lane_numbers(timeline)
        steps.append(StepTimes(number, timeline.workload, start, end, lanes))
        origin = int(end.max(initial=origin)) + _BETWEEN
    return steps
