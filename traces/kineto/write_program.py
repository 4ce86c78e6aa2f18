"""A simulated step as what a Kineto file can say: threads, streams, and times in nanoseconds.

A profiler sees threads that launch what runs on streams:

* ops of the host lie on threads, all others on streams; lanes that are called otherwise are given
  numbers of their own;
* an edge from a host op to an op on a stream is its launch, made where the host op ends: each has
  at most one, and a host op that launches several launches them together, as a graph;
* an edge from a stream to the host is a synchronising call, which waits for the last op launched
  to one stream, or to all of them, or for an event recorded behind an op;
* an edge between streams is an event recorded on one and waited for on the other, before the
  launch of the op that waits;
* a message is sent by the first rank of its group and received by the second, on a communicator
  of the two.

What a stream was launched runs in that order and one at a time. What has no launch stands as it
ran; that it waits for another stream, and that one thread wakes another, no event records: a reader
has to see it by the times. Anything else (an edge to another rank, a call made longer by a what-if)
would read back as another workload: it is refused.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.calls import KINDS
from simulator.support.errors import WorkloadError
from simulator.timeline import Timeline
from simulator.workload import STEP_BEFORE, What, Workload
from traces.core.comm_kernels import communicates


@dataclass(frozen=True, slots=True)
class HostOp:
    """An op of a thread: it waits for the device, then lasts, then launches.

    ``awaits`` are the ops on streams it waits for, ``launched`` what it launches, ``waits`` the ops
    on other streams that the first of those waits for. ``by_event`` are those of ``awaits`` behind
    which more was launched to their stream. If there are several, it waits for the whole device.
    """

    op: int
    awaits: tuple[int, ...]
    by_event: frozenset[int]
    launched: tuple[int, ...]
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThreadProgram:
    """A thread from first to last; ``recorded`` are the ops behind whose launch an event is.

    ``ProcessGroupNCCL`` records one behind each collective; the others are those that someone waits
    for after more was launched to their stream.
    """

    rank: int
    thread: int
    host: tuple[HostOp, ...]
    recorded: frozenset[int]


@dataclass(frozen=True, slots=True)
class RankProgram:
    """A rank's threads, that which begins first before the others, and what no thread launched.

    ``unwritten`` counts the waits that no event records.
    """

    rank: int
    threads: tuple[ThreadProgram, ...]
    unlaunched: tuple[int, ...]
    unwritten: int


def rank_programs(timeline: Timeline) -> dict[int, RankProgram]:
    """Take a simulated step apart, rank by rank.

    Raises
    ------
    WorkloadError
        If a Kineto file cannot say it; see the module's docstring.
    """
    workload = timeline.workload
    _check_job(workload)
    links = _EdgesByKind.of(timeline, lane_numbers(timeline))
    return {rank: _program(timeline, links, rank) for rank in workload.ranks}


_MEANT = re.compile(r"^ProfilerStep#|nccl(dev)?kernel|rccl", re.IGNORECASE)
"""Names with a meaning: a step, a collective."""
_MESSAGE = KINDS.index("send_receive")


def _check_job(workload: Workload) -> None:
    _check_messages(workload)
    calls = workload.calls
    recorded = set(workload.ranks)
    sizes = np.array(
        [len(recorded & set(group.ranks)) for group in workload.groups], dtype=np.int64
    )
    changed = (calls.factor != 1) | (calls.late != 0) | (workload.members != sizes[calls.group])
    for call in np.flatnonzero(changed).tolist():
        raise _refused(f"{workload.call_view(call)} lacks members, or has a factor, or is late")
    _check_unknown(workload)
    meant = {name for number, name in enumerate(workload.names) if _MEANT.search(name)}
    for op in np.flatnonzero(workload.call < 0).tolist():
        if meant and workload.op(op).name in meant:
            raise _refused(f"{workload.op(op)} has a name that a reader takes for something else")


def _check_unknown(workload: Workload) -> None:
    """Refuse calls of which not all is known and whose kernel's name is not NCCL's."""
    unknown = np.isnan(workload.calls.size)
    joined = np.flatnonzero(workload.call >= 0)
    for op in joined[unknown[workload.call[joined]]].tolist():
        if not communicates(workload.op(op).name):
            call = workload.call_view(int(workload.call[op]))
            raise _refused(
                f"{workload.op(op)} of {call}: only the name of a kernel could identify it"
            )


def _check_messages(workload: Workload) -> None:
    """Refuse messages that do not go from the first rank of a group of two to the second."""
    for index, group in enumerate(workload.groups):
        in_group = workload.calls.group == index
        if len(group.ranks) != 2 and bool(np.any(workload.calls.kind[in_group] == _MESSAGE)):
            raise _refused(f"a message among {len(group.ranks)} ranks ({group})")
    for op in np.flatnonzero(workload.what >= What.COLLECTIVE).tolist():
        call = workload.call_view(int(workload.call[op]))
        sends = call.group.ranks[0] == workload.rank[op]
        may_be = {What.COLLECTIVE}
        if call.kind == "send_receive":
            may_be.add(What.SEND if sends else What.RECEIVE)
        if workload.what[op] not in may_be:
            what = What(workload.what[op]).name.lower()
            expected = max(may_be).name.lower()
            raise _refused(f"{workload.op(op)} of {call} is a {what}, not a {expected}")
    eager = np.flatnonzero(workload.calls.eager)
    if len(eager):
        call = workload.call_view(int(eager[0]))
        raise _refused(f"{call} does not wait for its receiver, as NCCL's messages do")


@dataclass(frozen=True, slots=True, eq=False)
class _EdgesByKind:
    """Edges by what they are: ``launcher`` and ``launched`` both ways, ``waits`` by the waiter."""

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
    host = [op for op in _in_time(timeline, rank_ops) if workload.what[op] == What.HOST]
    numbers = links.numbers
    of_thread: dict[int, list[int]] = {}
    for op in host:
        of_thread.setdefault(int(numbers[op]), []).append(op)
    for ops in of_thread.values():
        _check_one_at_a_time(timeline, ops)
    device = [op for op in rank_ops if workload.what[op] != What.HOST]
    _launch_together(timeline, links, host, device)
    walk = _Walk(timeline, links)
    unlaunched = tuple(op for op in _in_time(timeline, device) if op not in links.launcher)
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
    """Let ops without a launch that no reader would take for the step's go with the launch before.

    A reader knows the step by its threads: what runs before a stream's first launch or after the
    last host op it takes for another step's. XLA launches a program as a whole, and only its first
    op names the launch: the others go with that, as the kernels of a graph do.
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


def _in_time(timeline: Timeline, ops: Iterable[int]) -> list[int]:
    return sorted(ops, key=lambda op: (timeline.start[op], timeline.end[op], op))


def _check_one_at_a_time(timeline: Timeline, ops: Sequence[int]) -> None:
    for earlier, later in pairwise(ops):
        if timeline.end[earlier] > timeline.start[later]:
            op = timeline.workload.op
            raise _refused(f"{op(later)} starts before {op(earlier)} has ended on the same lane")


def _check_streams(
    timeline: Timeline, links: _EdgesByKind, device: Sequence[int], walk: "_Walk"
) -> None:
    """Refuse a stream that runs two ops at once, or in another order than they were launched."""
    streams: dict[int, list[int]] = {}
    for op in _in_time(timeline, device):
        streams.setdefault(walk.numbers[op], []).append(op)
    for ops in streams.values():
        _check_one_at_a_time(timeline, ops)
        launched = [op for op in ops if op in links.launcher]
        for earlier, later in pairwise(launched):
            if walk.place[links.launcher[later]] < walk.place[links.launcher[earlier]]:
                view = timeline.workload.op
                raise _refused(f"{view(later)} was launched before {view(earlier)}, and ran after")


class _Walk:
    """Goes along a rank's threads and knows what was launched to each stream last.

    ``place`` is the order in which host ops launch.
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
        """Take what no thread launched as launched before all else."""
        for op in unlaunched:
            self._launched.add(op)
            self._last[int(self.numbers[op])] = op
            self.unwritten += len(self._links.waits.get(op, []))

    def walk(self, host: Sequence[int]) -> dict[int, HostOp]:
        """Go through host ops, given by start: each waits when it starts, launches when it ends."""
        turns = []
        for number, op in enumerate(host):
            turns.append((float(self._timeline.start[op]), 2 * number, op))
            turns.append((float(self._timeline.end[op]), 2 * number + 1, op))
        awaits: dict[int, tuple[tuple[int, ...], frozenset[int]]] = {}
        done = {}
        for _, turn, op in sorted(turns):
            if turn % 2 == 0:
                awaits[op] = self._await(op)
                continue
            self.place[op] = len(self.place)
            launched = tuple(_in_time(self._timeline, self._links.launched.get(op, [])))
            waits = self._launch(launched) if launched else ()
            done[op] = HostOp(op, *awaits[op], launched, waits)
        return done

    def _await(self, op: int) -> tuple[tuple[int, ...], frozenset[int]]:
        awaits = self._latest(op)
        last = [source for source in awaits.values() if source in self._last.values()]
        if len(awaits) > 1 and not len(awaits) == len(last) == len(self._last):
            raise _refused(f"{self._workload.op(op)} waits for some of its streams, not all")
        by_event = frozenset(awaits.values()) - frozenset(last)
        if not by_event <= self._links.launcher.keys():
            self.unwritten += 1  # nothing launched it, so that no event can stand behind its launch
            return (), frozenset()
        self.recorded |= by_event
        return tuple(awaits.values()), by_event

    def _launch(self, launched: tuple[int, ...]) -> tuple[int, ...]:
        first, *others = launched
        latest = self._latest(first).values()
        behind = {source for source in latest if source not in self._last.values()}
        # A difference from the view of the keys would go through the launches of all ranks.
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
        """Per stream the last of the ops that an op waits for: it stands for those before it."""
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
    """Give every op the number of its thread or stream: of ``thread 7``, or one that is free.

    What runs on a stream beside what was launched there before has another stream to itself.
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
    _part(timeline, number, np.flatnonzero(~is_host), free)
    return number


def _part(
    timeline: Timeline, number: NDArray[np.int64], ops: NDArray[np.intp], free: Iterator[int]
) -> None:
    """Give ops that overlap on a stream streams of their own: the same ones on every rank."""
    rank = timeline.workload.rank
    until: dict[tuple[int, int], list[float]] = {}
    more: dict[tuple[int, int], int] = {}
    # First fit in order of start: the first stream that is free takes the op, the 0th being its
    # own.
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
        lanes = lane_numbers(timeline)
        steps.append(StepTimes(number, timeline.workload, start, end, lanes))
        origin = int(end.max(initial=origin)) + _BETWEEN
    return steps
