"""Which op on another stream a device op waits for: as recorded, else as the host's calls tell.

With ids (``cuda_sync`` events) there is nothing to guess. Without, all that is left of a wait is
that some thread called ``StreamWaitEvent``: neither the stream that waits nor the event is in the
trace. What the calls around it and the measured times say decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.workload import What
from traces.device import DeviceOps
from traces.enclosing import Enclosing, Span
from traces.events import HostKind, RankTrace
from traces.launches import Launches
from traces.window import Window

CONTRADICTED = 5e-6
"""A wait is refused if its source ended later than this after the waiter's start (s).

Profilers stamp neighbouring events of one device within 1-2 us of each other.
"""
EXPLAINED = 20e-6
"""A start is explained if it came at most this long after what released it (s).

Twice the launch latency of a CUDA kernel (5-10 us), within which the device starts what is ready.
"""

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
    return ops.end(source) > ops.start(op) + CONTRADICTED


def _with_ids(trace: RankTrace, ops: DeviceOps) -> Iterator[Pair]:
    """Read the waits CUPTI recorded: a stream's next op waits for another stream's last."""
    stream_of = {label: stream for stream, label in enumerate(trace.streams)}
    called_at = calls_by_correlation(trace)
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
    host = trace.host
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    launched_by: dict[int, list[int]] = {}
    for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True):
        launched_by.setdefault(launch, []).append(ops.op_of[device])
    scan = _Scan(ops)
    for row in rows.tolist():
        thread, time = int(host.thread[row]), float(host.start[row])
        name = trace.names[host.name[row]]
        if row in launched_by:
            yield from scan.launch(thread, launched_by[row], enclosing.span(thread, time))
        elif "EventRecord" in name:
            scan.record(thread, enclosing.span(thread, time))
        elif "StreamWaitEvent" in name:
            scan.wait(thread, enclosing.span(thread, time), enclosing.waits_for(row))
        elif "DeviceSynchronize" in name:
            scan.synchronize()


@dataclass(frozen=True, slots=True)
class _Wait:
    """A ``StreamWaitEvent``: in which communication call, for which collective's number if told.

    ``recorded`` says that the event was recorded just before, as ``wait_stream`` does;
    ``follows`` is the collective that this thread launched last, nothing else since.
    """

    span: Span | None
    sequence: int | None
    recorded: bool
    follows: int | None


class _Scan:
    """Walks along the host's calls in order of time and remembers who waits for what."""

    def __init__(self, ops: DeviceOps) -> None:
        self._ops = ops
        self._last_compute: int | None = None
        self._waiting: dict[int, list[_Wait]] = {}
        self._behind: dict[int, list[int]] = {}
        self._launched_in: set[int] = set()
        self._pending: list[int] = []
        self._follows: dict[int, int] = {}
        self._stream_of: dict[int, int] = {}
        self._just_recorded: set[int] = set()
        self._records = False

    def record(self, thread: int, span: Span | None) -> None:
        """Note an event recorded on some stream; the library's own are for its own use."""
        self._records = True
        if span is None:
            self._just_recorded.add(thread)

    def wait(self, thread: int, span: Span | None, sequence: int | None) -> None:
        """Note a wait; NCCL's own, after its launch, concern its internal streams only."""
        recorded = thread in self._just_recorded and sequence is None
        self._just_recorded.discard(thread)
        if span is None or id(span) not in self._launched_in:
            one = _Wait(span, sequence, recorded, self._follows.get(thread))
            self._waiting.setdefault(thread, []).append(one)

    def synchronize(self) -> None:
        """Forget what the host has waited for."""
        self._pending.clear()

    def launch(self, thread: int, launched: list[int], span: Span | None) -> Iterator[Pair]:
        """Note a launch and yield ``(source, op)`` for the waits it has to obey."""
        op = launched[0]
        self._just_recorded.discard(thread)
        waiting = self._waiting.pop(thread, [])
        if self._ops.graph.ops[op].what == What.COLLECTIVE:
            own = [wait for wait in waiting if wait.span is span]
            if self._last_compute is not None and own:
                yield self._last_compute, op
            self._issue(thread, launched, span)
            self._waiting[thread] = [wait for wait in waiting if wait not in own]
            return
        waiting = [*self._left_by_others(op), *waiting]
        for source in self._joins(op, waiting):
            yield source, op
            yield from ((source, collective) for collective in self._behind.get(thread, []))
        self._behind.pop(thread, None)
        self._follows.pop(thread, None)
        self._last_compute = launched[-1]
        self._stream_of[thread] = self._ops.stream[op]

    def _left_by_others(self, op: int) -> Iterator[_Wait]:
        """Take over the waits of a thread that launched to this stream and has stopped launching.

        The stream waits, not the thread: backward's first kernel waits for forward's last wait.
        """
        for thread, waiting in list(self._waiting.items()):
            if waiting and self._stream_of.get(thread) == self._ops.stream[op]:
                yield from self._waiting.pop(thread)

    def _issue(self, thread: int, launched: list[int], span: Span | None) -> None:
        if span is not None:
            self._launched_in.add(id(span))
        ops = self._ops.graph.ops
        collectives = [op for op in launched if ops[op].what == What.COLLECTIVE]
        self._pending.extend(collectives)
        self._behind.setdefault(thread, []).extend(collectives)
        self._follows[thread] = collectives[-1]

    def _launched(self, op: int) -> float:
        return self._ops.launched[op] or 0.0

    def _joins(self, op: int, waiting: list[_Wait]) -> Iterator[int]:
        """Spend each wait on the op it was most likely for.

        The collective that the wait names; the other stream, if an event was recorded just before;
        the collective whose end explains the start; the other stream, where no profiler recorded
        events; the collective launched just before the wait; the oldest that nobody waited for.
        A collective's stream has done all before it, so those need no wait any more.
        """
        spent = 0
        for number, wait in enumerate(waiting):
            if number < spent:
                continue
            spent += 1
            source = self._source(op, wait, first=number == 0)
            if source is None:
                continue
            yield source
            if source in self._pending:
                spent += self._done(source)

    def _done(self, collective: int) -> int:
        """Strike a collective and those before it on its stream; returns how many others."""
        stream = self._ops.stream
        place = self._pending.index(collective)
        older = {one for one in self._pending[:place] if stream[one] == stream[collective]}
        self._pending = [one for one in self._pending if one not in older and one != collective]
        return len(older)

    def _source(self, op: int, wait: _Wait, *, first: bool) -> int | None:
        named = [one for one in self._pending if self._sequence(one) == wait.sequence]
        if wait.sequence is not None and named:
            return self._best(op, named, None)
        other = self._last_compute
        if other is not None and self._ops.stream[other] == self._ops.stream[op]:
            other = None
        if wait.recorded:
            return other
        ended = self._explaining(op)
        if ended is not None:
            return ended
        if other is not None and first and not self._records and wait.span is None:
            return other
        return self._best(op, self._pending, wait.follows)

    def _sequence(self, op: int) -> int | None:
        return self._ops.graph.collectives[op].sequence

    def _best(self, op: int, pending: list[int], follows: int | None) -> int | None:
        """Take the one launched just before the wait, else the oldest; none that ended too late."""
        fits = [one for one in pending if not _contradicted(self._ops, one, op)]
        if follows in fits:
            return follows
        return next(iter(fits or pending), None)

    def _explaining(self, op: int) -> int | None:
        """Find the collective that ended just before the op started, and after its launch."""
        ops = self._ops
        begun = ops.start(op)
        ended = [
            one
            for one in self._pending
            if not _contradicted(ops, one, op)
            and begun - ops.end(one) <= EXPLAINED
            and ops.end(one) > self._launched(op)
            and ops.end(one) > self._stream_free(op)
        ]
        return max(ended, key=ops.end, default=None)

    def _stream_free(self, op: int) -> float:
        """When the op before it on its stream had ended (s)."""
        before = self._ops.previous(op)
        return -1.0 if before is None else self._ops.end(before)
