"""Waits of host threads: for the device, in a call or by polling, or for another thread.

A synchronising call waits for what CUPTI recorded, or otherwise for what ended as it returned. A
loop that queries the device until it has finished waits, too, although no single call does; so does
one that reads memory until a kernel has written there. Profilers also do not record that the main
thread sleeps in ``backward()`` while autograd's thread works, nor that it waits for gloo's worker:
but a thread that was silent for long and resumes just when another falls silent was woken by it,
and so was one that resumes just when a collective ends.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Longs
from simulator.workload import DATA_LOADER, What
from traces.core.events import HostKind, RankTrace, names_with
from traces.core.loaded import CONTRADICTED, EXPLAINED
from traces.core.rank_graph import LocalOp, RankGraph
from traces.profiler.device import DeviceOps
from traces.profiler.stream_waits import STAMPS, calls_by_correlation
from traces.profiler.window import Launches, Window


class HostWait(Struct, frozen=True):
    """A host call that returned when device ops had ended (s)."""

    thread: int
    start: float
    end: float
    name: str
    sources: tuple[int, ...]


_WAITS = re.compile(r"[Ss]ynchronize")


def device_waits(
    trace: RankTrace, window: Window, launches: Launches, ops: DeviceOps
) -> Iterator[HostWait]:
    """Return the synchronising calls of a step, and the copies that their caller waited for."""
    recorded = _recorded(trace, ops)
    copies = {
        launch: ops.op_of[device]
        for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True)
        if ops.graph.ops[ops.op_of[device]].what == What.COPY
    }
    launched = dict(zip(launches.host.tolist(), launches.device.tolist(), strict=True))
    last: dict[int, int] = {}
    host = trace.host
    may_wait = names_with(trace, _WAITS)
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    rows = rows[np.isin(rows, launches.host) | np.isin(host.name[rows], may_wait)]
    columns = (rows, host.thread[rows], host.name[rows], host.start[rows], host.end[rows])
    for row, thread, number, start, end in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        name = trace.names[number]
        if row in launched:
            last[thread] = ops.op_of[launched[row]]
        if row in copies:
            # The caller waited for it: pageable memory, or a blocking call
            copy = copies[row]
            may_block = _BLOCKING_COPY.search(name) or _PAGEABLE in ops.graph.ops[copy].name
            sources = [copy] if may_block and ops.ends[copy] <= end + EXPLAINED else []
        elif not _WAITS.search(name):
            continue
        else:
            op = recorded.get(int(host.correlation[row]))
            op = _read_back(ops, last.get(thread), end) if op is None else op
            sources = _synchronized(ops, name, (start, end), op)
        if sources:
            # A launch is a cut of its own at the same place; the wait begins right behind it.
            yield HostWait(thread, start, end, name, tuple(sorted(sources)))


_BLOCKING_COPY = re.compile(
    r"^(cuda|hip)Memcpy(WithStream|DtoH|HtoD)?$|^cuMemcpy(DtoH|HtoD)?(_v2)?$"
)
_PAGEABLE = "Pageable"


_TO_HOST = "Memcpy DtoH"


def _read_back(ops: DeviceOps, launched: int | None, end: float) -> int | None:
    """Return a thread's last launch if it is a copy to the host: ``item()`` waits for it.

    One that ended after the call, at ``end`` (s), is not what was waited for: a server waits for
    the step before.
    """
    if launched is None or _TO_HOST not in ops.graph.ops[launched].name:
        return None
    return launched if ops.ends[launched] <= end + EXPLAINED else None


_ALL_STREAMS = re.compile(r"(DeviceSynchronize|CtxSynchronize)")
_ONE_STREAM = re.compile(r"StreamSynchronize|synchronizeStream")
_EVENT = re.compile(r"EventSynchronize")


def _synchronized(
    ops: DeviceOps, name: str, called: tuple[float, float], recorded: int | None
) -> list[int]:
    start, end = called
    if _ALL_STREAMS.search(name):
        return [op for op in ops.launched_by(start) if ops.ends[op] <= end + EXPLAINED]
    if not (_ONE_STREAM.search(name) or _EVENT.search(name)):
        return []
    if recorded is not None:
        return [recorded] if ops.ends[recorded] <= end + EXPLAINED else []
    # Without a record of the stream: the op launched before that ended last by the return. A call
    # that did not have to wait returns at once and tells nothing. Of the step before, what ended
    # just then counts.
    done = [op for op in ops.launched_by(start) if start < ops.ends[op] <= end + EXPLAINED]
    done += [
        op for op in ops.before if start < ops.ends[op] and abs(end - ops.ends[op]) <= EXPLAINED
    ]
    return ops.last_ended(done)


def _recorded(trace: RankTrace, ops: DeviceOps) -> dict[int, int]:
    """Map correlation ids of calls to the op that CUPTI's record says they waited for.

    A stream is waited for up to its last launch before the call, an event up to its last launch
    before the event was recorded.
    """
    called_at = calls_by_correlation(trace) if trace.syncs else {}
    waited_for = {}
    for sync in trace.syncs:
        label = sync.source_stream or sync.stream
        if "Wait" in sync.kind or label is None or label not in trace.streams:
            continue
        called = called_at.get(sync.correlation)
        if called is None:
            continue
        until = min(called, called_at.get(sync.record_correlation, called))
        op = ops.last_launched(trace.streams.index(label), until)
        if op is not None:
            waited_for[sync.correlation] = op
    return waited_for


_ENOUGH = 4
"""Least number of queries: an allocator asks once for each block that another stream has used."""
_LONG = 100e-6
"""Least duration of a loop (s): an allocator that goes through its blocks takes less."""


_ASKS = re.compile(r"(Event|Stream)Query")


def polling_waits(trace: RankTrace, window: Window, ops: DeviceOps) -> Iterator[HostWait]:
    """Return the loops of queries that ended when an op of the device did.

    A loop is a run of enough queries without another runtime call between them. The answer was no
    before the last query: the op ended between the last two answers.
    """
    host = trace.host
    asks = names_with(trace, _ASKS)
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    for thread in np.unique(host.thread[rows[np.isin(host.name[rows], asks)]]).tolist():
        on_thread = rows[host.thread[rows] == thread]
        query = np.isin(host.name[on_thread], asks)
        # Where the mask changes: begin and end of each run of queries, in pairs.
        edges = np.flatnonzero(np.diff(np.concatenate([[False], query, [False]]).astype(np.int8)))
        runs = edges.reshape(-1, 2)
        for first, last in runs[runs[:, 1] - runs[:, 0] >= _ENOUGH].tolist():
            run = on_thread[first:last]
            start, end = float(host.start[run[0]]), float(host.end[run[-1]])
            if end - start < _LONG:
                continue
            began, ended = float(host.start[run[-2]]), end + STAMPS
            done = [op for op in ops.launched_by(start) if began <= ops.ends[op] <= ended]
            if done:
                name = trace.names[host.name[run[0]]]
                yield HostWait(thread, start, end, name, tuple(ops.last_ended(done)))


_LOADER = re.compile(r"_MultiProcessingDataLoaderIter\.__next__")
"""PyTorch's range around what takes a batch from worker processes (torch/utils/data/dataloader.py);
a loader without workers makes it on the thread itself."""
_STARVED = 0.1
"""Least share of a step for which a thread waits for a batch if its loader limits the step: what
takes a batch that is there needs less."""


def loader_waits(trace: RankTrace, window: Window, graph: RankGraph) -> Iterator[HostWait]:
    """Return the waits for batches that worker processes prepare, if they limit the step.

    Workers prepare the next batch whatever the thread does meanwhile: their time is an op of a lane
    of its own, which follows that of the step before as late as it did in the recording. How fast a
    loader is that nobody waits for, no trace shows.
    """
    host = trace.host
    last: int | None = None
    rows = window.host[np.isin(host.name[window.host], names_with(trace, _LOADER))]
    for row in rows.tolist():
        thread, start, end = int(host.thread[row]), float(host.start[row]), float(host.end[row])
        after = (host.thread == thread) & (host.start > start)
        arrival = float(host.start[after].min(initial=end))
        if arrival - start < max(_LONG, _STARVED * (window.end - window.start)):
            graph.notes.append(
                "a data loader kept up with the step; its top speed is not recorded and may limit"
                " large savings"
            )
            continue
        begun = window.start if last is None else graph.ops[last].end
        op = graph.add(LocalOp(What.HOST, DATA_LOADER, DATA_LOADER, begun, arrival))
        if last is None:
            graph.ops[op].ready = begun
        else:
            graph.wait_for(op, [last])
        last = op
        yield HostWait(thread, start, arrival, trace.names[host.name[row]], (op,))


_FAR = 10
"""A call that lasts this many times the median of its name did something else besides."""
_DEEP = 64
"""A stream with fewer pending launches has room for more: CUDA's queues hold about 1,024."""
_ABOUT = 2
"""Tolerance of the depth of a full queue, in launches: stamps are not exact."""


def blocked_waits(
    trace: RankTrace, window: Window, launches: Launches, ops: DeviceOps
) -> Iterator[HostWait]:
    """Return calls that waited for the device although that is not their purpose.

    A call that lasts far beyond others of its name, and returns just when the device has done all
    that was launched before it, has waited for that (freeing memory, loading a module). If many
    launches return with the same number of pending launches, and none ever has more, they have
    waited for room in the stream's queue.
    """
    host = trace.host
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    lasted = host.end[rows] - host.start[rows]
    names, index = np.unique(host.name[rows], return_inverse=True)
    median = np.array([np.median(lasted[index == number]) for number in range(len(names))])
    may_wait = np.array([_WAITS.search(trace.names[at]) is not None for at in names], dtype=bool)
    far = (lasted >= np.maximum(_LONG, _FAR * median[index])) & ~may_wait[index]
    copies = launches.host[trace.device.copy[launches.device]]
    for row in np.setdiff1d(rows[far], copies).tolist():
        start, end = float(host.start[row]), float(host.end[row])
        sources = ops.last_ended(ops.launched_by(start))
        done = ops.ends[sources[0]] if sources else -np.inf
        if start < done and abs(end - done) <= EXPLAINED:
            name = trace.names[host.name[row]]
            yield HostWait(int(host.thread[row]), start, end, name, tuple(sources))
    stream = trace.device.stream[launches.device]
    for number in np.unique(stream).tolist():
        yield from _until_room(trace, launches, ops, np.flatnonzero(stream == number))


def _until_room(
    trace: RankTrace, launches: Launches, ops: DeviceOps, on_stream: NDArray[np.int64]
) -> Iterator[HostWait]:
    """Return the launches of a stream (rows of launches) that waited for room in its queue."""
    host, device = trace.host, trace.device
    rows, first = np.unique(launches.host[on_stream], return_index=True)
    of_call = launches.device[on_stream][first]
    order = np.argsort(host.start[rows], kind="stable")
    rows, of_call = rows[order], of_call[order]
    ends = np.maximum.accumulate(device.end[of_call])
    done = np.searchsorted(ends, host.end[rows], side="right")  # of this stream, when it returns
    ahead = np.arange(len(rows)) - done
    lasted = host.end[rows] - host.start[rows]
    if not len(lasted):
        return
    # Most may have waited: what a launch takes of itself the shortest tenth shows.
    long = np.flatnonzero((lasted > np.quantile(lasted, 0.1) + EXPLAINED) & (done > 0))
    if len(long) < _AGAIN:
        return
    depth = int(np.median(ahead[long]))
    full = long[np.abs(ahead[long] - depth) <= _ABOUT]
    if depth < _DEEP or len(full) < _AGAIN or ahead.max() > depth + _ABOUT:
        return
    for call in full.tolist():
        source = ops.op_of[int(of_call[done[call] - 1])]
        row, start = int(rows[call]), float(host.start[rows[call]])
        if ops.ends[source] > start:
            name = trace.names[host.name[row]]
            yield HostWait(int(host.thread[row]), start, float(host.end[row]), name, (source,))


_SPUN_ON = re.compile(r"(?<!cached_)notify_dispatch")
"""DeepEP's csrc/deep_ep.cpp reads ``moe_recv_counter`` in a loop behind this kernel; behind the
cached one, which is given the counts, it does not."""
_AGAIN = 3
"""Times at least that a thread is seen to wait for kernels of a name: fewer may be chance."""
_SPIN = 100e-6
"""A thread without a sign of life for so long (s) does not just prepare its next operator."""
_SURELY = 25
"""A silence that lasts so many times as long as the span in which it ends, beside one kernel's end,
ends there by chance once in as many times: where all do, that is no chance, few as they are."""
_STEADIER = 3.0
"""How much more the waits of a thread differ in length than what it takes to go on after them.

Where a kernel is of like length each time, and what the thread does beside it, too, they may end
together without either waiting for the other.
"""

_ALIKE = 0.05
"""Kernels whose durations differ by so much (of the logarithm) are of like duration."""


def spin_waits(
    trace: RankTrace, window: Window, launches: Launches, ops: DeviceOps
) -> Iterator[HostWait]:
    """Return where a thread spun on memory until a kernel that it had launched wrote there.

    Libraries that need a result of the device on the host (DeepEP: how many tokens arrive) read
    mapped memory in a loop, which no profiler records. The thread is then silent from its launch
    until the kernel has written, however long that takes, each time a kernel of that name is
    launched, and never launches anything before. The kernel may run on after it has written:
    ``ops.written`` keeps that time.
    """
    names = names_with(trace, _SPUN_ON)
    for thread in np.unique(trace.host.thread[launches.host]).tolist():
        usual = _LaunchSilences.of(trace, window, launches, thread)
        silent = usual.name[usual.ended > usual.began]
        for name in np.union1d(silent, np.intersect1d(usual.name, names)).tolist():
            is_known = name in names
            # Behind these kernels a thread is not silent for anything else, be it ever so short.
            spun = (
                _LaunchSilences.of(trace, window, launches, thread, EXPLAINED)
                if is_known
                else usual
            )
            for spin in np.flatnonzero(spun.waits_for(name, known=is_known)).tolist():
                source = ops.op_of[int(spun.device[spin])]
                began, ended = float(spun.began[spin]), float(spun.ended[spin])
                if ended < ops.ends[source] - CONTRADICTED:
                    ops.written[source] = ended
                # What lasts longer than a reaction is work of the thread behind the wait.
                yield HostWait(
                    thread, began, min(ended, ops.ends[source] + EXPLAINED), "spin", (source,)
                )


class _LaunchSilences(Struct, frozen=True, eq=False):
    """Launches of a thread, and its first long silence behind each; ``(launches,)``.

    ``device`` is the row of what was launched, ``name`` its name; it ran from ``start`` to ``done``
    (s). The thread was silent from ``began`` to ``ended`` (s), or, where both are equal, not for
    long; ``next`` is when it launched again.
    """

    device: NDArray[np.int64]
    name: NDArray[np.int32]
    start: Floats
    done: Floats
    began: Floats
    ended: Floats
    next: Floats

    @staticmethod
    def of(
        trace: RankTrace, window: Window, launches: Launches, thread: int, least: float = _SPIN
    ) -> "_LaunchSilences":
        """Collect them; a silence inside a runtime call is the library's own and does not count."""
        host = trace.host
        on_thread = host.thread[launches.host] == thread
        calls, first = np.unique(launches.host[on_thread], return_index=True)
        last = np.append(first[1:], on_thread.sum()) - 1  # of a graph its last node
        device = launches.device[on_thread][last]
        next_launch = np.append(host.start[calls][1:], np.inf)
        begins, ends = _long_silences(trace, window, thread, least)
        silence = np.searchsorted(begins, host.start[calls])
        is_silent = begins[silence] < next_launch
        began = np.where(is_silent, begins[silence], host.start[calls])
        ended = np.where(is_silent, ends[silence], began)
        start, done = trace.device.start[device], trace.device.end[device]
        return _LaunchSilences(
            device, trace.device.name[device], start, done, began, ended, next_launch
        )

    def waits_for(self, name: int, *, known: bool) -> NDArray[np.bool_]:
        """Mark the silences that waited for kernels of a name; none if some certainly did not.

        For ``known`` kernels one such wait is enough, and it ends anywhere in the kernel.
        """
        named = self.name == name
        reaction, silent = self.ended - self.done, named & (self.ended > self.began)
        if known:
            prompt = silent & (reaction <= EXPLAINED) & (self.ended >= self.start)
            ran_on = named & (self.next < self.start)
            return np.asarray(prompt & ~ran_on.any())
        if not silent.any():
            return np.zeros_like(named)
        from_end = min(float(np.median(reaction[silent])), 0.0)  # it may go on when it has written
        from_start = max(float(np.median((self.ended - self.start)[silent])), 0.0)
        by_end = self._steady(named, silent, self.done + from_end, least=0.0)
        if by_end.any():
            return by_end
        # A kernel that starts when it is launched is followed by all that the thread does then.
        by_start = self._steady(named, silent, self.start + from_start, least=EXPLAINED)
        return by_start if by_start.any() else self._works_after(named, silent)

    def _works_after(
        self, named: NDArray[np.bool_], silent: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Find the silences that last until the kernels' ends and equally long beyond them.

        A thread that works silently after its wait, equally long each time, falls silent for
        longer the later the kernel ends. One that waits for nothing does not: its silences are as
        long whenever that is. Only kernels of like duration are compared: larger layers may have
        both longer kernels and more to do on the host.
        """
        reaction, length = self.ended - self.done, self.ended - self.began
        none = np.zeros_like(silent)
        goes_ahead = (named & (self.next < self.done - EXPLAINED)).any()
        if goes_ahead or (reaction[silent] < 0).any():
            return none
        lasted = np.log((self.done - self.start)[silent] + CONTRADICTED)
        alike, number = np.unique(np.round(lasted / _ALIKE), return_inverse=True)
        spare = int(silent.sum()) - len(alike)
        if spare < _AGAIN:
            return none
        differ, steady = (
            float(np.sqrt(((each - means[number]) ** 2).sum() / spare))
            for each in (length[silent], reaction[silent])
            for means in (np.bincount(number, each) / np.bincount(number),)
        )
        return silent if differ > max(_STEADIER * steady, EXPLAINED) else none

    def _steady(
        self, named: NDArray[np.bool_], silent: NDArray[np.bool_], written: Floats, *, least: float
    ) -> NDArray[np.bool_]:
        """Find the silences that end in kernels, if most do just when these have written.

        Their lengths differ by more than ``least`` (s), and more than what the thread takes to go
        on. A wait that is told so often may end a little sooner or later another time.
        """
        reaction, length = self.ended - written, self.ended - self.began
        inside = silent & (self.ended >= self.start) & (self.ended <= self.done + EXPLAINED)
        prompt = inside & (np.abs(reaction) <= EXPLAINED)
        none = np.zeros_like(prompt)
        if (named & (self.next < np.minimum(written, self.done) - EXPLAINED) & ~inside).any():
            return none
        outside = int((silent & ~inside).sum())
        # Either they end wherever the kernels have written, each time alike (the first shows
        # where), or just before these end, be it not alike: within as long as one went on.
        went_on = float(np.max(self.done[silent] - self.ended[silent]))
        alike = prompt if silent.sum() > 1 else none
        for ended, span in ((alike, 2 * EXPLAINED), (inside, EXPLAINED + max(went_on, 0.0))):
            if (ended == silent).all() and (length[silent] >= _SURELY * span).all():
                return inside
        if prompt.sum() < max(_AGAIN, silent.sum() / 2) or inside.sum() <= 3 * outside:
            return none
        quartiles = (0.25, 0.75)
        steady, differ = (
            float(np.ptp(np.quantile(durations[prompt], quartiles)))
            for durations in (reaction, length)
        )
        return inside if differ > max(_STEADIER * steady, least) else none


def _long_silences(
    trace: RankTrace, window: Window, thread: int, least: float
) -> tuple[Floats, Floats]:
    """Return a thread's long spans without any begin or end, outside of runtime calls (s).

    The last of them never begins, so that a search beyond all others finds it.
    """
    host = trace.host
    rows = window.host[host.thread[window.host] == thread]
    rows = rows[host.kind[rows] != HostKind.ANNOTATION]
    sounds = np.unique(np.concatenate([host.start[rows], host.end[rows]]))
    long = np.flatnonzero(np.diff(sounds) >= least)
    begins, ends = sounds[long], sounds[long + 1]
    runtime = rows[host.kind[rows] == HostKind.RUNTIME]
    if len(runtime):
        inside = np.searchsorted(host.start[runtime], begins, side="right") - 1
        library = (inside >= 0) & (host.end[runtime][np.maximum(inside, 0)] >= ends)
        begins, ends = begins[~library], ends[~library]
    return np.append(begins, np.inf), np.append(ends, np.inf)


class Handover(Struct, frozen=True):
    """A thread asleep from ``asleep`` to ``awake``, woken by another at ``source_time`` (s)."""

    thread: int
    asleep: float
    awake: float
    source_thread: int
    source_time: float

    @property
    def lag(self) -> float:
        """Time from the wake-up call to being awake (s)."""
        return max(0.0, self.awake - self.source_time)


class Silence(Struct, frozen=True):
    """A span of a thread without events (s)."""

    start: float
    end: float
    thread: int


_WAKE_UP = 1e-3
"""A thread is awake at most this long after the one that woke it fell silent (s).

Waking a thread takes 5-50 us; Python's interpreter lock adds up to a fifth of its switch interval.
"""


def handovers(trace: RankTrace, window: Window, main: int) -> Iterator[Handover]:
    """Return which threads of a step woke which; none wakes the main thread at its start."""
    quiet = sorted(silences(trace, window), key=lambda silence: (silence.start, silence.thread))
    begins = [silence.start for silence in quiet]
    # Stretches in which each thread shows signs of life, shape ``(stretches, 2)`` (s).
    active: dict[int, Floats] = {}
    for thread in {silence.thread for silence in quiet}:
        intervals = [(silence.start, silence.end) for silence in quiet if silence.thread == thread]
        edges = np.clip([window.start, *np.ravel(intervals), window.end], window.start, window.end)
        active[thread] = edges.reshape(-1, 2)
    turns = {
        (thread, partner): _take_turns(active[thread], active[partner])
        for thread in active
        for partner in active
    }
    for slept in quiet:
        if slept.thread == main and slept.start == -np.inf:
            continue
        candidate = bisect_left(begins, slept.end) - 1  # strictly before: no two wake each other
        while candidate >= 0 and begins[candidate] >= max(slept.end - _WAKE_UP, slept.start):
            partner = quiet[candidate]
            woke = partner.start > slept.start and partner.end > slept.end
            if woke and partner.thread != slept.thread and turns[slept.thread, partner.thread]:
                yield Handover(slept.thread, slept.start, slept.end, partner.thread, partner.start)
                break
            candidate -= 1


_TOGETHER = 0.2
"""Threads that wait for each other overlap for at most this share of the shorter one's time.

Backward and its caller overlap by microseconds at each handover; independent threads by the share
of time in which the other is busy.
"""


def _take_turns(first: Floats, second: Floats) -> bool:
    """Whether two threads hardly ever work at the same time, as those that wait for each other.

    Independent threads fall silent and resume at the same time by chance only.
    """
    # Cumulative busy time of the second thread at the bounds of its intervals; between bounds it
    # grows linearly inside an interval and not at all outside, so np.interp gives it at any time.
    gone = np.zeros(second.size)
    gone[1::2] = np.diff(second)[:, 0]
    both = float(np.diff(np.interp(first, second.ravel(), np.cumsum(gone))).sum())
    least = min(float(np.diff(part).sum()) for part in (first, second))
    return both <= _TOGETHER * least


SILENT = 100e-6
"""Silence shorter than this (s) is an operator at work, not a thread asleep."""


def silences(trace: RankTrace, window: Window) -> Iterator[Silence]:
    """Return the spans in which a thread neither begins nor ends an operator or runtime call.

    The program's own ranges (``Optimizer.step``) count as events, too: they begin where Python has
    reached them. Those of communication do not, for a worker waits inside them. A thread is silent
    before its first event and after its last. It is not while it works inside an operator, however
    long: see :func:`_at_work`.
    """
    host = trace.host
    waiting = (host.kind == HostKind.ANNOTATION) & (host.comm >= 0)
    rows = window.host[~waiting[window.host]]
    for thread in np.unique(host.thread[rows]).tolist():
        on_thread = rows[host.thread[rows] == thread]
        sounds = np.unique(np.concatenate([host.start[on_thread], host.end[on_thread]]))
        edges = np.concatenate([[-np.inf], sounds, [np.inf]])
        calls = on_thread[host.kind[on_thread] == HostKind.RUNTIME]
        calls = calls[host.end[calls] - host.start[calls] > SILENT]
        inside_call = set(zip(host.start[calls].tolist(), host.end[calls].tolist(), strict=True))
        gaps = np.flatnonzero(np.diff(edges) > SILENT)
        at_work = _at_work(trace, on_thread, edges[gaps]) if len(gaps) else gaps
        for gap, works in zip(gaps.tolist(), at_work.tolist(), strict=True):
            if works or (edges[gap], edges[gap + 1]) in inside_call:
                continue  # waiting inside the CUDA library is what traces.profiler.host_waits reads
            yield Silence(float(edges[gap]), float(edges[gap + 1]), thread)


_DISPATCHED = re.compile(r"^\w[\w.]*::\w+$")
"""Operators by PyTorch's dispatcher (``aten::mm``): no ranges or nodes of autograd, both of which
may contain a wait that no event shows."""
_MAY_WAIT = re.compile(r"wait|barrier|synchronize", re.IGNORECASE)
"""Operators that communicate, although no communication is recorded with them
(``_c10d_functional::wait_tensor``)."""


def _at_work(trace: RankTrace, rows: Longs, begins: Floats) -> NDArray[np.bool_]:
    """Whether a thread is at work in gaps that begin at given times; ``rows`` are its events.

    It is if it is inside an operator without events of its own that does not communicate, and
    before, between and after the events of a dispatched one that contains no communicating one.
    """
    host = trace.host
    starts, ends = host.start[rows], host.end[rows]
    latest = np.maximum.accumulate(ends)
    may_wait = np.isin(host.name[rows], names_with(trace, _MAY_WAIT))
    wait = (host.comm[rows] >= 0) | may_wait
    # Prefix sums: waits[b] - waits[a] counts the waits among events a to b - 1.
    waits = np.concatenate([[0], np.cumsum(wait)])
    is_busy = np.zeros(len(begins), dtype=bool)
    for gap, begin in enumerate(begins.tolist()):
        inner = _innermost(starts, ends, latest, begin)
        if inner is None or host.kind[rows[inner]] != HostKind.OPERATOR:
            continue
        # Events from inner + 1 to after - 1 begin inside the innermost: rows are sorted by start.
        after = max(inner + 1, int(np.searchsorted(starts, ends[inner])))
        alone = after == inner + 1
        communicates = waits[after] > waits[inner]
        name = trace.names[host.name[rows[inner]]]
        is_busy[gap] = not communicates and (alone or bool(_DISPATCHED.match(name)))
    return is_busy


def _innermost(starts: Floats, ends: Floats, latest: Floats, time: float) -> int | None:
    """Return the latest event that covers each time; ``latest`` are running maxima of ends."""
    event = int(np.searchsorted(starts, time, side="right")) - 1
    while event >= 0 and latest[event] > time:
        if ends[event] > time:
            return event
        event -= 1
    return None
