"""Edges between device ops: stream order, recorded waits, and what explains a start.

Edges come from what is certain (launch, stream order), from what was recorded (``cuda_sync``
events with ids), from the order of ``EventRecord`` and ``StreamWaitEvent`` calls on the host, and
last from measured times: a kernel that starts just when one on another stream ends waited for it.
No edge is kept that the measured times contradict.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

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
"""For each op, the ops on other streams that it waits for."""


def add_stream_edges(ops: DeviceOps, waits: Waits, latency: float, lane_op: dict[int, int]) -> None:
    """Give every device op its edges and lags, and count what explains its start.

    ``latency`` is the typical launch latency (s), ``lane_op`` the host op whose end is the launch.
    The predecessor that was last to allow the start carries the rest of the measured delay as lag;
    a device op that nothing explains keeps that delay too, and is counted ``unexplained``.
    """
    ends = sorted((ops.end(op), op) for op in range(len(ops.stream)))
    end_times = [end for end, _ in ends]
    previous = {op: before for order in ops.on_stream.values() for before, op in pairwise(order)}
    for op in range(len(ops.stream)):
        if op in ops.before:
            continue
        allowed = _allowed_by(ops, op, previous.get(op), waits.get(op, set()), latency)
        reason = _reason(ops, op, allowed)
        if reason == "unexplained":
            found = _explained_by_end(ops, op, (end_times, ends))
            if found is not None:
                allowed[found] = ops.end(found)
                reason = "inferred"
        ops.graph.explained[reason] = ops.graph.explained.get(reason, 0) + 1
        _connect(ops, op, allowed, lane_op, latency)


_LAUNCH = -1
"""Stands for the launch among an op's predecessors."""


def _allowed_by(
    ops: DeviceOps, op: int, previous: int | None, waits: set[int], latency: float
) -> dict[int, float]:
    """When each predecessor alone would have let the op start (s)."""
    allowed = {source: ops.end(source) for source in waits}
    if previous is not None:
        allowed[previous] = ops.end(previous)
    launched = ops.launched[op]
    if launched is not None:
        allowed[_LAUNCH] = min(launched + latency, max(ops.start(op), launched))
    return allowed


def _reason(ops: DeviceOps, op: int, allowed: dict[int, float]) -> str:
    ready = ops.graph.ops[op].ready
    if not allowed:
        return "step before" if ready is not None else "unexplained"
    last = max(allowed, key=lambda source: (allowed[source], source))
    if ready is not None and ready > allowed[last]:
        return "step before"
    if ops.start(op) - allowed[last] > EXPLAINED:
        return "unexplained"
    if last == _LAUNCH:
        return "launch"
    if last in ops.before:
        return "step before"
    return "stream" if ops.stream[last] == ops.stream[op] else "wait"


def _explained_by_end(
    ops: DeviceOps, op: int, ends: tuple[list[float], list[tuple[float, int]]]
) -> int | None:
    """Find the op on another stream that ended last before this one started, if just before."""
    times, by_end = ends
    start = ops.start(op)
    place = bisect_right(times, start) - 1
    while place >= 0 and times[place] >= start - EXPLAINED:
        candidate = by_end[place][1]
        if ops.stream[candidate] != ops.stream[op] and _launched_before(ops, candidate, op):
            return candidate
        place -= 1
    return None


def _launched_before(ops: DeviceOps, one: int, other: int) -> bool:
    first, second = ops.launched[one], ops.launched[other]
    return first is not None and second is not None and first < second


def _connect(
    ops: DeviceOps, op: int, allowed: dict[int, float], lane_op: dict[int, int], latency: float
) -> None:
    """Turn predecessors into edges; the last to allow the start carries the rest as lag."""
    start = ops.start(op)
    last = max(allowed, key=lambda source: (allowed[source], source)) if allowed else None
    for source in sorted(allowed):
        if source == _LAUNCH:
            delay = max(0.0, start - (ops.launched[op] or 0.0))
            lag = delay if source == last else min(latency, delay)
            ops.graph.wait_for(op, [lane_op[op]], lag=lag)
        else:
            lag = max(0.0, start - ops.end(source)) if source == last else 0.0
            ops.graph.wait_for(op, [source], lag=lag)
    if last is None:
        ops.graph.ops[op].ready = start


def waits_between_streams(
    trace: RankTrace, window: Window, launches: Launches, enclosing: Enclosing, ops: DeviceOps
) -> Waits:
    """Collect waits that were recorded, with ids where the profiler wrote them."""
    pairs = list(_with_ids(trace, ops))
    if not pairs:
        pairs = list(_without_ids(trace, window, launches, enclosing, ops))
    waits: Waits = {}
    for source, op in pairs:
        if ops.stream[source] != ops.stream[op]:
            if ops.end(source) > ops.start(op) + CONTRADICTED:
                count = ops.graph.explained.get("contradicted waits", 0)
                ops.graph.explained["contradicted waits"] = count + 1
            else:
                waits.setdefault(op, set()).add(source)
    return waits


def _with_ids(trace: RankTrace, ops: DeviceOps) -> Iterator[Pair]:
    """Read the waits CUPTI recorded: a stream's next op waits for another stream's last."""
    stream_of = {label: stream for stream, label in enumerate(trace.streams)}
    runtime = trace.host.kind == HostKind.RUNTIME
    called_at = dict(
        zip(
            trace.host.correlation[runtime].tolist(),
            trace.host.start[runtime].tolist(),
            strict=True,
        )
    )
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


def _without_ids(
    trace: RankTrace, window: Window, launches: Launches, enclosing: Enclosing, ops: DeviceOps
) -> Iterator[Pair]:
    """Infer waits from the order of calls on the host, for profilers that recorded no ids.

    ProcessGroupNCCL makes the communicator's stream wait for the current one before it launches,
    and ``work.wait()`` makes the current stream wait for the communicator's. So a wait inside the
    span of a communication call that launches a kernel is the first kind (NCCL's own waits, after
    the launch, concern its internal streams); any other is the second: the next kernel of this
    thread waits for the stream that was launched to last, or for collectives not waited for yet.
    """
    host = trace.host
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    launched_by: dict[int, list[int]] = {}
    for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True):
        launched_by.setdefault(launch, []).append(ops.op_of[device])
    scan = _Scan(ops)
    for row in rows.tolist():
        thread, time = int(host.thread[row]), float(host.start[row])
        if row in launched_by:
            yield from scan.launch(thread, launched_by[row], enclosing.span(thread, time))
        elif "StreamWaitEvent" in trace.names[host.name[row]]:
            scan.wait(thread, enclosing.span(thread, time))


class _Scan:
    """Walks along the host's calls in order of time and remembers who waits for what."""

    def __init__(self, ops: DeviceOps) -> None:
        self._ops = ops
        self._last_compute: int | None = None
        self._waiting: dict[int, list[Span | None]] = {}
        self._launched_in: set[int] = set()
        self._pending: list[int] = []

    def wait(self, thread: int, span: Span | None) -> None:
        """Note a wait; NCCL's own, after its launch, concern its internal streams only."""
        if span is None or id(span) not in self._launched_in:
            self._waiting.setdefault(thread, []).append(span)

    def launch(self, thread: int, launched: list[int], span: Span | None) -> Iterator[Pair]:
        """Note a launch and yield ``(source, op)`` for the waits it has to obey."""
        op = launched[0]
        waiting = self._waiting.pop(thread, [])
        if self._ops.graph.ops[op].what == What.COLLECTIVE:
            if self._last_compute is not None and any(wait is span for wait in waiting):
                yield self._last_compute, op
            if span is not None:
                self._launched_in.add(id(span))
            self._pending.extend(launched)
            return
        yield from self._joins(op, len(waiting))
        self._last_compute = launched[-1]

    def _joins(self, op: int, waits: int) -> Iterator[Pair]:
        """Spend waits on the other stream this thread used, then on the oldest open collectives."""
        stream = self._ops.stream
        other = self._last_compute
        if waits and other is not None and stream[other] != stream[op]:
            waits -= 1
            yield other, op
        for _ in range(min(waits, len(self._pending))):
            yield self._pending.pop(0), op
