"""The host's part of a rank's graph: each thread a lane of ops, cut where something happens.

A thread is cut where it launches, where it waits for the device, and where it hands over to
another thread or takes over from one (forward to autograd and back, a worker that carries out
gloo's collectives). Between two cuts lies one op with its measured length: host time is part of
the program. Only long silences are ops of their own (:mod:`traces.profiler.host_silence`): nothing
says that the host was at work.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from simulator.workload import UNEXPLAINED_HOST, What
from traces.core.events import Floats, RankTrace
from traces.core.rank_graph import LocalOp, RankGraph
from traces.profiler.comms import Enclosing
from traces.profiler.host_collectives import HostCollective, work_rows
from traces.profiler.host_silence import Silences, unexplained_silences
from traces.profiler.host_waits import Handover, HostWait
from traces.profiler.launches import Launches
from traces.profiler.window import Window

_NO_THREAD = "no thread recorded"


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where a thread's lane is cut (s): at ``start``, resumed at ``end``.

    ``name`` is what happens there.
    """

    start: float
    end: float
    name: str
    launch: int | None = None
    wait: HostWait | None = None
    wakes: Handover | None = None
    hands_over: bool = False


@dataclass(slots=True, eq=False)
class HostLanes:
    """What building the lanes found: ``launch_op`` is, per launch row, the op that ends at it."""

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
    """Add the threads' ops to the graph, with their order and what they wait for.

    A thread that neither launches nor waits, wakes nobody and is woken by nobody, has no part in
    the step and is left out. One whose first sign of life nobody explains begins when the main
    thread has got as far.
    """
    lanes = HostLanes()
    quiet = unexplained_silences(trace, window)
    graph.left_out = [trace.threads[known] for known in cuts if known != main and not cuts[known]]
    for thread in sorted(known for known in cuts if known != main and cuts[known]):
        _begin_with_main(trace, window, thread, main, cuts)
    for thread in sorted(known for known in cuts if known == main or cuts[known]):
        rows = window.host[trace.host.thread[window.host] == thread]
        begin = float(trace.host.start[rows].min(initial=window.end))
        end = float(trace.host.end[rows].max(initial=window.start))
        if thread == main and trace.steps:
            begin, end = window.start, max(end, window.end)
        label = trace.threads[thread] if trace.threads else _NO_THREAD
        builder = _LaneBuilder(graph, lanes, _Events(enclosing, quiet), thread, label)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """What the events of a rank's threads say: what they are inside of, and when there is none."""

    enclosing: Enclosing
    silences: Silences


class _LaneBuilder:
    """Builds one thread's chain of ops from left to right."""

    def __init__(
        self, graph: RankGraph, lanes: HostLanes, events: "_Events", thread: int, label: str
    ) -> None:
        self._graph, self._lanes, self._events = graph, lanes, events
        self._thread, self._label = thread, label
        self._cursor = 0.0
        self._last: int | None = None

    def build(self, begin: float, end: float, cuts: Iterable[Cut]) -> None:
        """Cut ``[begin, end]`` (s) into ops."""
        self._cursor = begin
        for cut in sorted(cuts, key=lambda cut: (cut.start, cut.end)):
            if cut.wakes is not None and cut.start <= begin:
                self._cursor = max(self._cursor, cut.end)
                self._resume(cut)
                continue
            if cut.start < self._cursor and cut.launch is None and not cut.hands_over:
                continue
            op = self._host(max(cut.start, self._cursor), cut.name)
            if cut.launch is not None:
                self._lanes.launch_op[cut.launch] = op
            if cut.hands_over:
                self._lanes.ends_at[self._thread, cut.start] = op
            self._after(cut)
        if end > self._cursor:
            self._host(end, "")

    def _after(self, cut: Cut) -> None:
        """Carry on at the end of the cut: a wait, or a wake-up."""
        if cut.wait is not None:
            wait = cut.wait
            begun = max([cut.start, *(self._graph.ops[op].end for op in wait.sources)])
            begun = min(begun, cut.end)
            op = self._chain(LocalOp(What.HOST, self._label, cut.name, begun, cut.end))
            self._graph.wait_for(op, wait.sources)
        elif cut.wakes is not None:
            self._cursor = max(self._cursor, cut.end)
            self._resume(cut)
        self._cursor = max(self._cursor, cut.end if cut.launch is None else cut.start)

    def _resume(self, cut: Cut) -> None:
        """Start again at ``cut.end``, released by another thread."""
        op = self._chain(self._wake_up())
        if cut.wakes is not None:
            self._lanes.woken.append((op, cut.wakes))

    def _wake_up(self) -> LocalOp:
        begin = self._graph.start
        return LocalOp(What.HOST, self._label, "wake-up", self._cursor, self._cursor, ready=begin)

    def _host(self, until: float, name: str) -> int:
        """Add the host's time until then; what is silent of it by itself. Returns the last op."""
        for begun, over in self._events.silences.within(self._thread, self._cursor, until):
            if begun > self._cursor:
                self._at_work(begun, name)
            self._chain(LocalOp(What.HOST, self._label, UNEXPLAINED_HOST, begun, over))
            self._cursor = over
        return self._at_work(until, name)

    def _at_work(self, until: float, name: str) -> int:
        inside = self._events.enclosing.operator(self._thread, until)
        what = inside or name or "host"
        op = self._chain(LocalOp(What.HOST, self._label, what, self._cursor, until))
        self._cursor = until
        return op

    def _chain(self, local: LocalOp) -> int:
        if self._last is None and local.ready is None:
            local.ready = local.start
        op = self._graph.add(local)
        if self._last is not None:
            self._graph.wait_for(op, [self._last])
        self._last = op
        return op


def launch_cuts(trace: RankTrace, launches: Launches, cuts: dict[int, list[Cut]]) -> None:
    """Cut each thread where its launches reach the device: as they begin, or end if held up."""
    rows = launches.host
    held = np.isin(rows, list(launches.held))
    _cut(trace, rows[~held].tolist(), trace.host.start, cuts)
    _cut(trace, rows[held].tolist(), trace.host.end, cuts)


def queue_cuts(
    trace: RankTrace, works: Iterable[HostCollective], cuts: dict[int, list[Cut]]
) -> None:
    """Cut each thread where it queues a host collective."""
    rows = [work.call for work in works if work.call is not None]
    _cut(trace, rows, trace.host.start, cuts)


def _cut(trace: RankTrace, rows: Iterable[int], at: Floats, cuts: dict[int, list[Cut]]) -> None:
    """Cut at times that ``at`` has for each row of the host (s)."""
    host, called = trace.host, np.array(list(dict.fromkeys(rows)), dtype=np.int64)
    columns = (called, host.thread[called], host.name[called], at[called])
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


def main_thread(trace: RankTrace, window: Window, cuts: dict[int, list[Cut]]) -> int:
    """Pick the thread with the earliest event of the step: the one that opened it."""
    return next(
        (thread for thread in trace.host.thread[window.host].tolist() if thread in cuts),
        min(cuts),
    )


def every_thread(trace: RankTrace, window: Window) -> dict[int, list[Cut]]:
    """One empty list of cuts for each thread with an event of its own in the step."""
    own = np.setdiff1d(window.host, work_rows(trace, window))
    threads = np.unique(trace.host.thread[own]).tolist()
    return {thread: [] for thread in threads or [0]}
