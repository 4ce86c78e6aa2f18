"""The op on another stream that a device op waits for: recorded, or inferred from host calls.

With ids (``cuda_sync`` events) nothing needs to be inferred. Without, all that remains of a wait is
that some thread called ``StreamWaitEvent``: neither the waiting stream nor the event is in the
trace. The launches around it and the measured times decide. If the times of one wait tell nothing
(its op was delayed by something else), those of equal waits do: :class:`Votes`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from simulator.workload import What
from traces.core.events import HostKind, RankTrace, names_with
from traces.core.loaded import CONTRADICTED, EXPLAINED
from traces.profiler.comms import Enclosing
from traces.profiler.device import DeviceOps
from traces.profiler.window import Launches, Window

_MATTERS = re.compile(r"EventRecord|StreamWaitEvent|DeviceSynchronize")
TICK = 0.5e-9
"""Half of what profilers count time in, at the finest (s)."""


class RuntimeCall(NamedTuple):
    """A runtime call: by which thread, from when (s), what it launched.

    ``around`` is the row of the outermost event of the communication call that it is part of, of a
    launch of compute None; ``sequence`` the number of the collective which a wait is for, if
    recorded.
    """

    thread: int
    start: float
    name: str
    launched: tuple[int, ...]
    around: int | None
    sequence: int | None


def stream_calls(
    trace: RankTrace, window: Window, launches: Launches, enclosing: Enclosing, ops: DeviceOps
) -> Iterator[RuntimeCall]:
    """Collect the runtime calls of all threads that launch, record or wait, in order of start.

    They do not nest: of two that begin at one tick the shorter was first.
    """
    host = trace.host
    launched_by: dict[int, list[int]] = {}
    for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True):
        launched_by.setdefault(launch, []).append(ops.op_of[device])
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    matching_names = names_with(trace, _MATTERS)
    rows = rows[np.isin(rows, launches.host) | np.isin(host.name[rows], matching_names)]
    rows = rows[np.lexsort((rows, host.end[rows], host.start[rows]))]
    columns = (rows, host.thread[rows], host.name[rows], host.start[rows], host.end[rows])
    for row, thread, number, start, end in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        name, launched = trace.names[number], tuple(launched_by.get(row, ()))
        around = sequence = None
        if not launched or launched[0] in ops.graph.collectives:
            # The middle of a call decides which communication call it is part of: the next may
            # begin at the tick on which the one before ended. Of those without length at that tick,
            # an event recorded is the library's last, a wait is not.
            instant = (start + end) / 2 + (-TICK if "EventRecord" in name else TICK)
            around = enclosing.outermost(thread, instant)
        if around is not None and "StreamWaitEvent" in name:
            sequence = enclosing.waits_for(row)
        yield RuntimeCall(thread, start, name, launched, around, sequence)


STAMPS = 2e-6
"""How far apart profilers stamp two events of one device that happened together (s)."""
Pair = tuple[int, int]
Waits = dict[int, set[int]]
"""For each op, the ops that it waits for."""


def waits_between_streams(
    trace: RankTrace, window: Window, launches: Launches, enclosing: Enclosing, ops: DeviceOps
) -> Waits:
    """Collect waits that were recorded, with ids where the profiler wrote them.

    A wait that the measured times contradict is counted and refused.
    """
    pairs = list(_with_ids(trace, ops))
    if not pairs:
        pairs = list(_without_ids(trace, window, launches, enclosing, ops))
    waits: Waits = {}
    for source, op in pairs:
        if ops.stream[source] != ops.stream[op] and ops.launched_before(source, op):
            if _contradicted(ops, source, op):
                count = ops.graph.explained.get("contradicted waits", 0)
                ops.graph.explained["contradicted waits"] = count + 1
            else:
                waits.setdefault(op, set()).add(source)
    return waits


def _contradicted(ops: DeviceOps, source: int, op: int) -> bool:
    return ops.ends[source] > ops.starts[op] + CONTRADICTED


def _with_ids(trace: RankTrace, ops: DeviceOps) -> Iterator[Pair]:
    """Read the waits CUPTI recorded: a stream's next op waits for another stream's last."""
    stream_of = {label: stream for stream, label in enumerate(trace.streams)}
    called_at = calls_by_correlation(trace) if trace.syncs else {}
    for sync in trace.syncs:
        if "Wait" not in sync.kind or sync.source_stream is None or sync.stream is None:
            continue
        recorded = called_at.get(sync.record_correlation)
        called = called_at.get(sync.correlation)
        if recorded is None or called is None:
            continue
        source = ops.last_launched(stream_of.get(sync.source_stream, -1), recorded)
        target = ops.first_launched(stream_of.get(sync.stream, -1), called)
        if source is not None and target is not None:
            yield source, target


def calls_by_correlation(trace: RankTrace) -> dict[int | None, float]:
    """When each runtime call began (s), by its correlation id."""
    host = trace.host
    runtime = (host.kind == HostKind.RUNTIME) & (host.correlation >= 0)
    ids, starts = host.correlation[runtime].tolist(), host.start[runtime].tolist()
    return dict(zip(ids, starts, strict=True))


def _without_ids(
    trace: RankTrace, window: Window, launches: Launches, enclosing: Enclosing, ops: DeviceOps
) -> Iterator[Pair]:
    """Infer waits from the order of calls on the host, for profilers that recorded no ids.

    ProcessGroupNCCL makes the communicator's stream wait for the current one before it launches,
    and ``work.wait()`` makes the current stream wait for the communicator's. So a wait inside the
    span of a communication call that launches a kernel is the first kind (NCCL's own waits, after
    the launch, concern its internal streams); any other is the second.
    """
    calls = list(stream_calls(trace, window, launches, enclosing, ops))
    latency = launches.latency
    votes = Votes()
    for _ in _Scan(ops, latency, votes).run(calls):
        pass
    votes.closed = True
    yield from _Scan(ops, latency, votes).run(calls)


Site = tuple[int | None, int]
"""What equal waits share: the stream of the collective they follow, and the stream that waits."""
Source = tuple[str, int, int]
"""A kind of collective, the stream of the compute launched before, the stream of the collective."""


class Votes(Struct):
    """What was seen at each site: collected along all waits of a step, then ``closed`` and asked.

    A program runs the same code for each layer, so like waits are for alike: for the collective
    launched last to some stream (to be waited for at once), or for the oldest there that nobody
    waited for (prefetched). A start that comes before a stream's newest ended refutes the first.

    ``explained`` counts, per stream and whether it was the newest there, starts that came just as a
    collective ended; ``behind`` the collectives that began just as the one launched before them
    ended, ``not_behind`` those that began earlier; ``after`` and ``not_after``
    count the same for compute.
    """

    closed: bool = False
    explained: Counter[tuple[Site, int, bool]] = field(default_factory=Counter)
    refuted: Counter[tuple[Site, int]] = field(default_factory=Counter)
    behind: Counter[Site] = field(default_factory=Counter)
    not_behind: Counter[Site] = field(default_factory=Counter)

    after: Counter[Source] = field(default_factory=Counter)
    not_after: Counter[Source] = field(default_factory=Counter)

    def stream(self, site: Site, streams: Iterable[int]) -> int | None:
        """Choose among streams: most starts explained, newest never refuted, the one followed.

        A wait that follows no collective is for none in particular, unless times tell.
        """

        def rank(stream: int) -> tuple[int, bool, bool, int]:
            refuted = self.refuted[site, stream] > 0
            return -self._fitting(site, stream), refuted, stream != site[0], stream

        candidates = [
            candidate
            for candidate in streams
            if site[0] is not None or self._fitting(site, candidate)
        ]
        return min(candidates, key=rank, default=None)

    def takes_newest(self, site: Site, stream: int) -> bool:
        """Whether such a wait is for the newest collective of a stream, not for the oldest."""
        return site[0] is not None and not self.refuted[site, stream]

    def is_behind(self, site: Site) -> bool:
        """Whether a collective waits for the previously launched one, not for compute."""
        return self.closed and self.behind[site] > 0 and not self.not_behind[site]

    def is_after(self, source: Source) -> bool:
        """Whether a collective waits for compute: one launched from a side stream never began so.

        If it sometimes did, it was launched while another thread launched compute.
        """
        return self.after[source] > 0 or not self.not_after[source]

    def _fitting(self, site: Site, stream: int) -> int:
        """Count the starts explained that are not of another kind than the waits unexplained."""
        newest = 0 if self.refuted[site, stream] else self.explained[site, stream, True]
        return newest + self.explained[site, stream, False]


class _StreamWait(NamedTuple):
    """A ``StreamWaitEvent``: its time (s), and the enclosing communication call.

    ``sequence`` is the number of the collective that it is for, if recorded; ``recorded`` says that
    the event was recorded just before, as ``wait_stream`` does; ``follows`` is the collective that
    this thread launched last, with nothing else since; ``newest`` is the collective launched last
    to each stream.
    """

    called: float
    around: int | None
    sequence: int | None
    recorded: bool
    follows: int | None
    newest: dict[int, int]


class _Scan:
    """Goes through the host's calls in order of time and keeps track of waits."""

    def __init__(self, ops: DeviceOps, latency: float, votes: Votes) -> None:
        self._ops = ops
        self._latency = latency
        self._votes = votes
        self._last_compute: int | None = None
        self._waiting: dict[int, list[_StreamWait]] = {}
        self._behind: dict[int, list[int]] = {}
        self._launched_in: set[int] = set()
        self._pending: list[int] = []
        self._newest: dict[int, int] = {}
        self._follows: dict[int, int] = {}
        self._stream_of: dict[int, int] = {}
        self._just_recorded: set[int] = set()
        self._records = False

    def run(self, calls: list[RuntimeCall]) -> Iterator[Pair]:
        """Go through all calls and yield ``(source, op)`` for the waits that ops must obey."""
        for call in calls:
            if call.launched:
                yield from self._launch(call)
            elif "EventRecord" in call.name:
                # Note an event recorded on some stream; the library's own are for its own use.
                self._records = True
                if call.around is None:
                    self._just_recorded.add(call.thread)
            elif "StreamWaitEvent" in call.name:
                # Note a wait; NCCL's own, after its launch, concern its internal streams only.
                recorded = call.thread in self._just_recorded and call.sequence is None
                self._just_recorded.discard(call.thread)
                if call.around not in self._launched_in:
                    follows = self._follows.get(call.thread)
                    wait = _StreamWait(
                        call.start, call.around, call.sequence, recorded, follows, self._newest
                    )
                    self._waiting.setdefault(call.thread, []).append(wait)
            elif "DeviceSynchronize" in call.name:
                self._pending.clear()

    def _launch(self, call: RuntimeCall) -> Iterator[Pair]:
        op, thread = call.launched[0], call.thread
        self._just_recorded.discard(thread)
        waiting = self._waiting.pop(thread, [])
        if op in self._ops.graph.collectives:
            yield from self._collective(call, waiting)
            return
        if self._waiting:
            waiting = [*self._left_by_others(op), *waiting]
        if waiting:
            yield from self._compute(op, thread, waiting)
        self._behind.pop(thread, None)
        self._follows.pop(thread, None)
        self._last_compute = call.launched[-1]
        self._stream_of[thread] = self._ops.stream[op]

    def _compute(self, op: int, thread: int, waiting: list[_StreamWait]) -> Iterator[Pair]:
        """Assign pending waits to a kernel, and those of the collectives launched after them."""
        self._vote(op, waiting)
        for source, wait in self._joins(op, waiting):
            yield source, op
            for collective in self._behind.get(thread, []):
                if wait.called < (self._ops.launched[collective] or 0.0):
                    yield source, collective

    def _collective(self, call: RuntimeCall, waiting: list[_StreamWait]) -> Iterator[Pair]:
        """Assign a collective's own wait to compute, or to the collective launched before it.

        In the second case the current stream is not one of compute but one that was made to wait
        for the previous collective (FSDP's all-reduce of what was reduce-scattered), so the waits
        called between the two are for that stream.
        """
        op = call.launched[0]
        same_call = [wait for wait in waiting if wait.around == call.around]
        left = [wait for wait in waiting if wait not in same_call]
        before = self._follows.get(call.thread)
        if same_call and before is not None and self._is_behind(op, before):
            yield before, op
            left = [wait for wait in left if wait.follows != before]
        elif (
            same_call and self._last_compute is not None and self._is_after(op, self._last_compute)
        ):
            yield self._last_compute, op
        if call.around is not None:
            self._launched_in.add(call.around)
        ops = self._ops.graph.ops
        collectives = [op for op in call.launched if ops[op].what >= What.COLLECTIVE]
        self._pending.extend(collectives)
        launched = {self._ops.stream[op]: op for op in collectives}
        self._newest = self._newest | launched  # waits keep the one they saw
        self._behind.setdefault(call.thread, []).extend(collectives)
        self._follows[call.thread] = collectives[-1]
        self._waiting[call.thread] = left

    def _is_behind(self, op: int, before: int) -> bool:
        ops = self._ops
        site = ops.stream[before], ops.stream[op]
        if site[0] == site[1]:
            return False
        if not self._votes.closed:
            self._votes.not_behind[site] += _contradicted(ops, before, op)
            self._votes.behind[site] += self._explains(before, op)
        return self._votes.is_behind(site)

    def _is_after(self, op: int, compute: int) -> bool:
        ops = self._ops
        source = ops.graph.collectives[op].kind, ops.stream[compute], ops.stream[op]
        if not self._votes.closed:
            self._votes.not_after[source] += _contradicted(ops, compute, op)
            self._votes.after[source] += self._explains(compute, op)
        return self._votes.is_after(source)

    def _vote(self, op: int, waiting: list[_StreamWait]) -> None:
        """Count what a start shows about its wait; of several waits, only which was the last."""
        if self._votes.closed or len(waiting) != 1:
            return
        wait = waiting[0]
        if wait.recorded or wait.sequence is not None:
            return
        site = self._site(op, wait)
        ended = self._explaining(op)
        if ended is not None:
            stream = self._ops.stream[ended]
            newest = wait.newest.get(stream) == ended
            self._votes.explained[site, stream, newest] += 1
        for stream, newest_there in wait.newest.items():
            self._votes.refuted[site, stream] += _contradicted(self._ops, newest_there, op)

    def _site(self, op: int, wait: _StreamWait) -> Site:
        stream = self._ops.stream
        return None if wait.follows is None else stream[wait.follows], stream[op]

    def _left_by_others(self, op: int) -> Iterator[_StreamWait]:
        """Take over the waits of a thread that launched to this stream and has stopped launching.

        The stream waits, not the thread: backward's first kernel waits for forward's last wait.
        """
        for thread, waiting in list(self._waiting.items()):
            if waiting and self._stream_of.get(thread) == self._ops.stream[op]:
                yield from self._waiting.pop(thread)

    def _joins(self, op: int, waiting: list[_StreamWait]) -> Iterator[tuple[int, _StreamWait]]:
        """Assign each wait to the op that it was most likely for.

        In this order: the collective that the wait names; the other stream, if an event was
        recorded just before; the collective whose end explains the start; the other stream, if no
        profiler recorded events; the op that equal waits are for; the oldest collective without a
        wait. All earlier ops of a collective's stream have ended before it, so they need no wait
        any more.
        """
        spent = 0
        for number, wait in enumerate(waiting):
            if number < spent:
                continue
            spent += 1
            source = self._source(op, wait, first=number == 0)
            if source is None:
                continue
            yield source, wait
            if source in self._pending:
                spent += self._done(source)

    def _done(self, collective: int) -> int:
        """Remove a collective and earlier ones on its stream; return the number of the others."""
        stream = self._ops.stream
        position = self._pending.index(collective)
        older = {
            pending for pending in self._pending[:position] if stream[pending] == stream[collective]
        }
        self._pending = [
            pending for pending in self._pending if pending not in older and pending != collective
        ]
        return len(older)

    def _source(self, op: int, wait: _StreamWait, *, first: bool) -> int | None:
        named = [
            pending
            for pending in self._pending
            if self._ops.graph.collectives[pending].sequence == wait.sequence
        ]
        if wait.sequence is not None and named:
            return self._oldest(op, named)
        last_compute = self._last_compute
        if last_compute is not None and self._ops.stream[last_compute] == self._ops.stream[op]:
            last_compute = None
        if wait.recorded:
            return last_compute
        ended = self._explaining(op)
        if ended is not None:
            return ended
        if last_compute is not None and first and not self._records and wait.around is None:
            return last_compute
        return self._like_others(op, wait)

    def _like_others(self, op: int, wait: _StreamWait) -> int | None:
        """Choose what equal waits are for, unless the op's own times contradict it."""
        site, stream = self._site(op, wait), self._ops.stream
        chosen = self._votes.stream(
            site, {stream[pending] for pending in self._pending} - {stream[op]}
        )
        if chosen is not None:
            on_chosen = [pending for pending in self._pending if stream[pending] == chosen]
            newest = wait.newest.get(chosen)
            if newest in on_chosen and self._votes.takes_newest(site, chosen):
                on_chosen = [newest]
            source = self._oldest(op, on_chosen)
            if source is not None and not _contradicted(self._ops, source, op):
                return source
        return self._oldest(op, self._pending)

    def _oldest(self, op: int, pending: list[int]) -> int | None:
        """Return the oldest that did not end too late, if there is one; else the oldest."""
        fits = (call for call in pending if not _contradicted(self._ops, call, op))
        return next(fits, next(iter(pending), None))

    def _explaining(self, op: int) -> int | None:
        """Return the collective that ended just before the op started, and after its launch."""
        ended = [pending for pending in self._pending if self._explains(pending, op)]
        return max(ended, key=self._ops.ends.__getitem__, default=None)

    def _explains(self, source: int, op: int) -> bool:
        """Whether an op, launched and with its stream free, started just as another ended."""
        ops = self._ops
        # When an op would have started without any wait (s)
        before = self._ops.previous(op)
        free = -1.0 if before is None else self._ops.ends[before]
        begun, due = ops.starts[op], max((self._ops.launched[op] or 0.0) + self._latency, free)
        if _contradicted(ops, source, op) or begun - ops.ends[source] > EXPLAINED:
            return False
        return ops.ends[source] > due and begun > due + STAMPS


def graph_waits(launches: Launches, ops: DeviceOps) -> Waits:
    """Return what nodes on other streams wait for, and what waits for them.

    Edges that the measured times contradict are left out.
    """
    waits: Waits = {}
    if not ops.nodes:
        return waits
    pairs = zip(launches.host.tolist(), launches.device.tolist(), strict=True)
    for _, rows in groupby(pairs, key=lambda pair: pair[0]):
        nodes = sorted(ops.op_of[device] for _, device in rows)
        ((main, _),) = Counter(ops.stream[node] for node in nodes).most_common(1)
        sides = {ops.stream[node] for node in nodes} - {main}
        if not sides:
            continue
        # Connect nodes on side streams to what runs before and after the graph on its own stream.
        home = [node for node in nodes if ops.stream[node] == main]
        before, after = ops.previous(home[0]), ops.next(home[-1])
        for side in sides:
            branch = [node for node in nodes if ops.stream[node] == side]
            for source, op in ((before, branch[0]), (branch[-1], after)):
                if source is None or op is None or _contradicted(ops, source, op):
                    continue
                if ops.launched_before(source, op):
                    waits.setdefault(op, set()).add(source)
    return waits
