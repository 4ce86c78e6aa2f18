"""The host's part of a rank's graph: each thread is a lane of ops, cut at events.

A thread is cut where it launches, where it waits for the device, and where it hands over to another
thread or takes over from one (forward to autograd and back, a worker that carries out gloo's
collectives). Between two cuts is one op of the measured length: host time is part of the program.

Only long silences are separate ops. Between two operators a thread runs Python, which profilers
seldom record: that is work, and a faster processor shortens it. A silence of many milliseconds may
be anything: a data loader, a lock, a sleep, a wait for a device or another process. Nothing shows
that the processor was at work, unless the profiler recorded calls of Python functions
(``with_stack``): then a silence is the time outside of them, or in a C function that waits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from simulator.analysis.metrics import union, united
from simulator.support.arrays import Floats
from simulator.workload import UNEXPLAINED_HOST, What
from traces.core.events import HostKind, PythonCalls, RankTrace
from traces.core.rank_graph import LocalOp, RankGraph, shortest_silence
from traces.profiler.comms import Enclosing
from traces.profiler.host_collectives import work_rows
from traces.profiler.host_waits import Handover, HostWait
from traces.profiler.window import Window


class Silences(Struct, frozen=True, eq=False):
    """Silences of a rank's threads in order: begins and ends of those longer than ``shortest`` (s).

    The time before a thread's first event of the step and after its last may be silence, too; there
    a bound is infinite.
    """

    shortest: float
    of_thread: Mapping[int, Sequence[tuple[float, float]]]

    def within(self, thread: int, begin: float, end: float) -> list[tuple[float, float]]:
        """Return a thread's silences between two times, if still long after clipping (s)."""
        if end - begin <= self.shortest:
            return []
        spans = self.of_thread.get(thread, ())
        first = bisect_right(spans, begin, key=lambda span: span[1])
        last = bisect_left(spans, end, key=lambda span: span[0])
        inside = ((max(begun, begin), min(over, end)) for begun, over in spans[first:last])
        return [(begun, over) for begun, over in inside if over - begun > self.shortest]


def unexplained_silences(trace: RankTrace, window: Window) -> Silences:
    """Return the spans of each thread without any operator, call or annotation.

    An annotation counts as an explanation, except one of a whole step.
    """
    host = trace.host
    pauses: dict[int, Floats] = {}
    for thread in np.unique(host.thread[window.host]).tolist():
        rows = window.host[host.thread[window.host] == thread]
        begins = np.concatenate([[-np.inf], np.maximum.accumulate(host.end[rows])])
        ends = np.concatenate([host.start[rows], [np.inf]])
        pauses[thread] = np.stack([begins, ends], axis=1)[ends > begins]
    shortest = shortest_silence(pauses)
    long = {thread: spans[spans[:, 1] - spans[:, 0] > shortest] for thread, spans in pauses.items()}
    if trace.python is not None:
        long = {thread: _outside(trace.python, thread, spans) for thread, spans in long.items()}
    spans = {thread: list(map(tuple, silent.tolist())) for thread, silent in long.items()}
    return Silences(shortest, spans)


def _outside(calls: PythonCalls, thread: int, spans: Floats) -> Floats:
    """Return the parts of spans outside Python functions, or in C functions that wait (s)."""
    of_thread = calls.thread == thread
    at_work, waiting = of_thread & ~calls.waits, of_thread & calls.waits
    if not at_work.any():
        return spans
    busy = union(calls.start[at_work], calls.end[at_work])
    # Between the ends of one busy interval and the start of the next, and before and after all.
    idle = np.stack([np.append(-np.inf, busy[:, 1]), np.append(busy[:, 0], np.inf)], axis=1)
    idle = united(idle, union(calls.start[waiting], calls.end[waiting]))
    # Every span with every idle interval: (spans, idle, 2), of which those that overlap are left.
    begin = np.maximum(spans[:, None, 0], idle[None, :, 0])
    end = np.minimum(spans[:, None, 1], idle[None, :, 1])
    return np.stack([begin, end], axis=2)[begin < end]


_NO_THREAD = "no thread recorded"


class Cut(NamedTuple):
    """A cut of a thread's lane (s): it ends at ``start`` and resumes at ``end``.

    ``name`` is the event there.
    """

    start: float
    end: float
    name: str
    launch: int | None = None
    wait: HostWait | None = None
    wakes: Handover | None = None
    hands_over: bool = False


class HostLanes(Struct, eq=False):
    """Result of building the lanes: ``launch_op`` is, per launch row, the op that ends at it."""

    launch_op: dict[int, int] = field(default_factory=dict)
    ends_at: dict[tuple[int, float], int] = field(default_factory=dict)
    woken: list[tuple[int, Handover]] = field(default_factory=list)


def add_host_ops(
    trace: RankTrace,
    window: Window,
    graph: RankGraph,
    enclosing: Enclosing,
    cuts: dict[int, list[Cut]],
    main: int,
) -> HostLanes:
    """Add the threads' ops to the graph, with their order and their waits.

    A thread that neither launches nor waits, neither wakes another nor is woken, has no part in the
    step and is left out. A thread whose first event is unexplained begins when the main thread
    reaches that time. If devices worked and no launch was recorded, nothing connects the host to
    them, and its operators' ranges say nothing about the step.
    """
    lanes = HostLanes()
    if len(window.device) and not (trace.host.kind == HostKind.RUNTIME).any():
        graph.left_out = [trace.threads[thread] for thread in cuts if trace.threads]
        return lanes
    silences = unexplained_silences(trace, window)
    taking_part = sorted(thread for thread in cuts if thread == main or cuts[thread])
    graph.left_out = [trace.threads[thread] for thread in cuts if thread not in taking_part]
    for thread in taking_part:
        if thread != main:
            _begin_with_main(trace, window, thread, main, cuts)
    for thread in taking_part:
        rows = window.host[trace.host.thread[window.host] == thread]
        begin = float(trace.host.start[rows].min(initial=window.end))
        end = float(trace.host.end[rows].max(initial=window.start))
        if thread == main and trace.steps:
            begin, end = window.start, max(end, window.end)
        label = trace.threads[thread] if trace.threads else _NO_THREAD
        builder = _ThreadBuilder(graph, lanes, enclosing, silences, thread, label)
        builder.build(begin, end, cuts[thread])
    for op, handover in lanes.woken:
        source = lanes.ends_at.get((handover.source_thread, handover.source_time))
        if source is not None and source != op:
            graph.wait_for(op, [source], lag=handover.lag)
    return lanes


def _begin_with_main(
    trace: RankTrace, window: Window, thread: int, main: int, cuts: dict[int, list[Cut]]
) -> None:
    """Hand over from the main thread to one that begins without being woken."""
    rows = window.host[trace.host.thread[window.host] == thread]
    begin = float(trace.host.start[rows].min())
    if any(cut.wakes is not None and cut.start <= begin for cut in cuts[thread]):
        return
    asleep = [cut.start for cut in cuts[main] if cut.start < begin < cut.end]
    source = max(window.start, min(asleep, default=begin))
    handover_cuts([Handover(thread, -np.inf, begin, main, source)], cuts)


class _ThreadBuilder(Struct, eq=False):
    """Builds one thread's chain of ops from left to right, up to ``cursor`` (s) so far."""

    graph: RankGraph
    lanes: HostLanes
    enclosing: Enclosing
    silences: Silences
    thread: int
    label: str
    cursor: float = 0.0
    last: int | None = None

    def build(self, begin: float, end: float, cuts: Iterable[Cut]) -> None:
        """Cut ``[begin, end]`` (s) into ops."""
        self.cursor = begin
        for cut in sorted(cuts, key=lambda cut: (cut.start, cut.end)):
            if cut.wakes is not None and cut.start <= begin:
                self._resume(cut.end, cut.wakes)
                continue
            if cut.start < self.cursor and cut.launch is None and not cut.hands_over:
                continue
            op = self._host(max(cut.start, self.cursor), cut.name)
            if cut.launch is not None:
                self.lanes.launch_op[cut.launch] = op
            if cut.hands_over:
                self.lanes.ends_at[self.thread, cut.start] = op
            if cut.wait is not None:
                begun = max([cut.start, *(self.graph.ops[op].end for op in cut.wait.sources)])
                op = self._chain(cut.name, min(begun, cut.end), cut.end)
                self.graph.wait_for(op, cut.wait.sources)
            elif cut.wakes is not None:
                self._resume(cut.end, cut.wakes)
            self.cursor = max(self.cursor, cut.end if cut.launch is None else cut.start)
        if end > self.cursor:
            self._host(end, "")

    def _resume(self, awake: float, wakes: Handover) -> None:
        """Restart at a time (s), released by another thread."""
        self.cursor = max(self.cursor, awake)
        op = self._chain("wake-up", self.cursor, self.cursor, ready=self.graph.start)
        self.lanes.woken.append((op, wakes))

    def _host(self, until: float, name: str) -> int:
        """Add the host's time until then, silences as separate ops; return the last op."""
        for begun, over in self.silences.within(self.thread, self.cursor, until):
            if begun > self.cursor:
                self._at_work(begun, name)
            self._chain(UNEXPLAINED_HOST, begun, over)
            self.cursor = over
        return self._at_work(until, name)

    def _at_work(self, until: float, name: str) -> int:
        inside = self.enclosing.operator(self.thread, until)
        op = self._chain(inside or name or "host", self.cursor, until)
        self.cursor = until
        return op

    def _chain(self, name: str, start: float, end: float, ready: float | None = None) -> int:
        """Add an op behind the last one of the thread, the first as early as it started."""
        if self.last is None and ready is None:
            ready = start
        op = self.graph.add(LocalOp(What.HOST, self.label, name, start, end, ready))
        if self.last is not None:
            self.graph.wait_for(op, [self.last])
        self.last = op
        return op


def launch_cuts(
    trace: RankTrace, rows: Iterable[int], cuts: dict[int, list[Cut]], held: Collection[int] = ()
) -> None:
    """Cut each thread where its calls reach the device or a queue.

    ``rows`` are the host rows of the calls: cut at their start, those ``held`` up at their end.
    """
    in_order = sorted(dict.fromkeys(rows), key=lambda row: row in held)
    host, called = trace.host, np.array(in_order, dtype=np.int64)
    at = np.where(np.isin(called, list(held)), host.end[called], host.start[called])
    columns = (called, host.thread[called], host.name[called], at)
    for row, thread, number, time in zip(*(column.tolist() for column in columns), strict=True):
        cut = Cut(time, time, trace.names[number], launch=row)
        cuts.setdefault(thread, []).append(cut)


def wait_cuts(trace: RankTrace, waits: Iterable[HostWait], cuts: dict[int, list[Cut]]) -> None:
    """Cut each thread where it waits for the device."""
    for wait in waits:
        cut = Cut(wait.start, wait.end, wait.name, wait=wait)
        cuts.setdefault(wait.thread, []).append(cut)


def handover_cuts(handovers: Iterable[Handover], cuts: dict[int, list[Cut]]) -> None:
    """Cut both threads of each handover."""
    seen: set[tuple[int, float]] = set()
    for handover in handovers:
        cuts.setdefault(handover.thread, []).append(
            Cut(handover.asleep, handover.awake, "", wakes=handover)
        )
        key = (handover.source_thread, handover.source_time)
        if key not in seen:
            seen.add(key)
            cut = Cut(handover.source_time, handover.source_time, "", hands_over=True)
            cuts.setdefault(handover.source_thread, []).append(cut)


def threads_of_step(trace: RankTrace, window: Window) -> tuple[dict[int, list[Cut]], int]:
    """Return an empty list of cuts for each thread with an event of its own, and the main thread.

    That is the one with the earliest event of the step: the one that opened it.
    """
    is_other = np.ones(len(trace.host), dtype=np.bool_)
    is_other[work_rows(trace, window)] = False
    own = trace.host.thread[window.host[is_other[window.host]]]
    cuts: dict[int, list[Cut]] = {thread: [] for thread in np.unique(own).tolist() or [0]}
    first = trace.host.thread[window.host]
    main = first[np.isin(first, list(cuts))][:1].tolist()
    return cuts, main[0] if main else min(cuts)
