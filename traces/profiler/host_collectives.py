"""Collectives that the host itself carries out: gloo, MPI and UCC, on worker threads.

The profiler marks the work (``gloo:all_reduce``) on a worker's thread and the call
(``c10d::allreduce_``), which only queues it, on the caller's; nothing joins the two but their
order: workers take calls first come, first served. What a worker does inside its mark (allocate,
wait for its peers, copy the result) is the work, and no program of the worker's own. Where the
caller waits there is no event at all, only a silence that ends when a collective does.

The mark of a message (``gloo:send``, ``gloo:recv``) has no worker: it opens on the caller's thread
where the message is posted and closes where the caller has waited for it, however long it was over
by then (``SendWork`` and ``RecvWork`` of PyTorch's ProcessGroupGloo.cpp).

gloo's works name no group, which some traces record nowhere else. But each ``ProcessGroupGloo``
starts worker threads of its own, two, when it is made, so

* all that a thread carried out belongs to one group;
* threads made later belong to groups made later;
* members of a group have the same calls in the same order;
* a call ends at about the same time on all of its members.

The first three leave few assignments: mostly, a group that is not used could be one that is. Of
these the ones with the fewest groups are taken, since both workers of a group find work sooner or
later; and of these the one in which calls end most together, by whatever each clock is ahead.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from simulator.support.arrays import Floats
from simulator.workload import What
from traces.core.events import HostKind, RankTrace, names_with
from traces.core.rank_graph import UNKNOWN_GROUP, LinkedRank, LocalCall, LocalOp, RankGraph, kind_of
from traces.profiler.comms import local_call
from traces.profiler.host_waits import SILENT, HostWait, Silence, silences
from traces.profiler.window import Window

_WORK = re.compile(r"^(gloo|mpi|ucc):")
_MESSAGE = re.compile(r"^(gloo|mpi|ucc):i?(send|recv)")
_CALL = re.compile(r"^c10d::")
_POSTED = re.compile(r"^c10d::i?(send|recv)")
_WOKEN = 5e-3
"""A caller resumes at most this long after the collective it waited for (s).

Measured on an oversubscribed host (4 ranks on 2 cores): median 60 us, 90th percentile 1 ms, maximum
5.2 ms.
"""
_CLOSED_LATE = 2e-3
"""The work's event may close this long after its caller resumed (s); measured: at most 1.8 ms.

The future completes before the worker closes the event; a worker preempted in between closes it
late.
"""


class HostCollective(Struct, frozen=True, eq=False):
    """A collective's op in the graph; ``call`` is the host row that queued it, None if unknown.

    ``posted``: a message, whose event stays open on its caller's thread until that has waited.
    """

    op: int
    row: int
    call: int | None
    posted: bool = False


def outside_works(trace: RankTrace, window: Window) -> Window:
    """Leave out of a step the events that workers make inside their works, as part of these.

    Works that call the device's runtime stay as they are: their copies are ops of the step.
    """
    works = _worker_rows(trace)
    if not len(works):
        return window
    host, rows = trace.host, window.host
    inside = np.zeros(len(rows), dtype=bool)
    for thread in np.unique(host.thread[works]).tolist():
        thread_works = works[host.thread[works] == thread]
        at = np.searchsorted(host.start[thread_works], host.start[rows], side="right") - 1
        around = thread_works[np.maximum(at, 0)]
        enclosed = (host.thread[rows] == thread) & (at >= 0) & (rows != around)
        enclosed &= host.end[rows] <= host.end[around]
        on_device = around[enclosed & (host.kind[rows] == HostKind.RUNTIME)]
        inside |= enclosed & ~np.isin(around, on_device)
    return structs.replace(window, host=rows[~inside])


def _worker_rows(trace: RankTrace) -> NDArray[np.int64]:
    """Rows of all works that have a worker: on threads that queue none themselves."""
    every = np.arange(len(trace.host), dtype=np.int64)
    works = _named(trace, every, HostKind.ANNOTATION, _WORK)
    if not len(works):
        return works
    works = works[~np.isin(trace.host.name[works], names_with(trace, _MESSAGE))]
    calls = _named(trace, every, HostKind.OPERATOR, _CALL)
    return np.asarray(works[~np.isin(trace.host.thread[works], trace.host.thread[calls])])


def add_host_collectives(
    trace: RankTrace, window: Window, graph: RankGraph
) -> list[HostCollective]:
    """Add the work of a step's host collectives to the graph."""
    rows = work_rows(trace, window)
    if not len(rows):
        return []
    message = np.isin(trace.host.name[rows], names_with(trace, _MESSAGE))
    queued = _named(trace, window.host, HostKind.OPERATOR, _CALL)
    posts = np.isin(trace.host.name[queued], names_with(trace, _POSTED))
    return [
        *_with_calls(trace, graph, rows[~message], queued[~posts]),
        *_with_calls(trace, graph, rows[message], queued[posts], posted=True),
    ]


def _with_calls(
    trace: RankTrace,
    graph: RankGraph,
    rows: NDArray[np.int64],
    queued: NDArray[np.int64],
    *,
    posted: bool = False,
) -> list[HostCollective]:
    """Add works in the order of their calls, with these."""
    calls: Sequence[int | None] = [None] * len(rows)
    if len(rows) == len(queued):
        calls = queued.tolist() if posted else _queued_as(trace, rows, queued)
    elif len(rows):
        graph.notes.append(
            f"rank {trace.rank}: {len(queued)} calls and {len(rows)} works of host collectives; "
            "which call queued which work is not recorded"
        )
    works = [
        HostCollective(_add(trace, graph, row, call), row, call, posted)
        for row, call in zip(rows.tolist(), calls, strict=True)
    ]
    if posted:
        graph.posted.update((work.op, False) for work in works)
    else:
        graph.by_host.update(work.op for work in works)
        # Note which worker carried out which call, by its place among all workers of the trace.
        host = trace.host
        threads = {*host.thread[_worker_rows(trace)].tolist()}
        threads |= {int(host.thread[work.row]) for work in works}
        by_age = sorted(threads, key=lambda thread: (_thread_number(trace, thread), thread))
        worker_number = {thread: number for number, thread in enumerate(by_age)}
        for work in works:
            begun = host.start[work.row if work.call is None else work.call]
            graph.workers[work.op] = worker_number[int(host.thread[work.row])], float(begun)
    return works


def _queued_as(
    trace: RankTrace, rows: NDArray[np.int64], queued: NDArray[np.int64]
) -> Sequence[int | None]:
    """Return the call of each work; a group has its own queue and workers, but no name.

    A call's work is the first that begins after it and moves what the call is about: that of
    another group, queued later, may have begun before. If that leaves any over, they are matched in
    order.
    """
    if sum(group.size > 1 for group in trace.groups.values()) <= 1:
        return list(queued.tolist())
    left = dict.fromkeys(rows.tolist())
    carried = {_kind(trace, row) for row in left}
    caller_of: dict[int, int | None] = {}
    for call in queued.tolist():
        row = next((row for row in left if _may_carry_out(trace, row, call, carried)), None)
        if row is None:
            return list(queued.tolist())
        del left[row]
        caller_of[row] = call
    return [caller_of[row] for row in rows.tolist()]


def _kind(trace: RankTrace, row: int) -> str | None:
    return kind_of(trace.names[trace.host.name[row]])


def _may_carry_out(trace: RankTrace, row: int, call: int, carried: Set[str | None]) -> bool:
    """Whether a work may belong to a call: by start, kind, and what they move.

    A kind without works of its own (``carried`` are all kinds of works) is carried out as another
    one: reduce-scatter as all-reduce.
    """
    host, kind = trace.host, _kind(trace, call)
    if host.start[row] < host.start[call]:
        return False
    if kind in carried and kind != _kind(trace, row):
        return False
    work, request = trace.comms[host.comm[row]], trace.comms[host.comm[call]]
    moved = {work.in_elements, work.out_elements} - {None}
    wanted = {request.in_elements, request.out_elements} - {None}
    return not moved or not wanted or bool(moved & wanted)


def _thread_number(trace: RankTrace, thread: int) -> int:
    """Return the system's number of a thread, which rises in order of creation."""
    numbers = re.findall(r"\d{1,18}", trace.threads[thread]) if trace.threads else []
    return int(numbers[0]) if numbers else 0


def work_rows(trace: RankTrace, window: Window) -> NDArray[np.int64]:
    """Rows of a step's host events that are a host collective, or a message."""
    return _named(trace, window.host, HostKind.ANNOTATION, _WORK)


def _named(
    trace: RankTrace, rows: NDArray[np.int64], kind: HostKind, name: re.Pattern[str]
) -> NDArray[np.int64]:
    """Of rows, those with a record of a communication, of a kind, with a name that matches."""
    host = trace.host
    rows = rows[(host.comm[rows] >= 0) & (host.kind[rows] == kind)]
    return np.asarray(rows[np.isin(host.name[rows], names_with(trace, name))])


def _add(trace: RankTrace, graph: RankGraph, row: int, issued: int | None) -> int:
    host = trace.host
    name = trace.names[host.name[row]]
    start, end = float(host.start[row]), float(host.end[row])
    lane = trace.threads[host.thread[row]]
    op = graph.add(LocalOp(What.COLLECTIVE, lane, name, start, end))
    records = [trace.comms[host.comm[said_by]] for said_by in (row, issued) if said_by is not None]
    where = f"{trace.file}: {name!r} at {start:.6f} s"
    graph.collectives[op] = call = local_call(trace, records, name, where)
    graph.ops[op].what = call.what
    return op


def add_queue_edges(
    trace: RankTrace, graph: RankGraph, works: list[HostCollective], lane_op: dict[int, int]
) -> None:
    """Let work start after its call and its worker's previous work; a message after its call."""
    before: dict[int, int] = {}
    delays = [
        graph.ops[work.op].start - float(trace.host.start[work.call])
        for work in works
        if work.call is not None and not work.posted
    ]
    least = max(0.0, min(delays, default=0.0))
    for work in works:
        start = graph.ops[work.op].start
        worker = int(trace.host.thread[work.row])
        previous = None if work.posted else before.get(worker)
        free = graph.ops[previous].end if previous is not None else -np.inf
        if work.call is not None:
            delay = max(0.0, start - float(trace.host.start[work.call]))
            queued = start - delay
            lag = delay if queued + min(least, delay) >= free else min(least, delay)
            graph.wait_for(work.op, [lane_op[work.call]], lag=lag)
        else:
            graph.ops[work.op].ready = start
        if previous is not None:
            graph.wait_for(work.op, [previous])
        if not work.posted:
            before[worker] = work.op


def collective_waits(
    trace: RankTrace, window: Window, graph: RankGraph, works: list[HostCollective]
) -> Iterator[HostWait]:
    """Return the waits of callers for the collectives they had queued or messages posted.

    The end of a collective whose caller resumed before its event was closed is moved to that time.
    A wait for one that was over leaves no silence; it is made part of its caller's last wait.
    """
    quiet = sorted(silences(trace, window), key=lambda silence: silence.start)
    messages = [work for work in works if work.posted]
    for work in sorted(messages, key=lambda message: trace.host.end[message.row]):
        wait, quiet = _message_wait(trace, graph, work, quiet)
        if wait.end <= window.end:
            yield wait
    by_caller: dict[int, list[HostCollective]] = defaultdict(list)
    for work in works:
        if work.call is not None and not work.posted:
            by_caller[int(trace.host.thread[work.call])].append(work)
    waits: dict[int, list[HostWait]] = defaultdict(list)
    for silence in quiet:
        thread, thread_works = silence.thread, by_caller[silence.thread]
        awaited = _ended_in(trace, graph, thread_works, silence, window)
        if awaited is None:
            continue
        thread_works.remove(awaited)
        op = graph.ops[awaited.op]
        until = min(silence.end, window.end)
        op.end = min(op.end, until)
        wait = HostWait(thread, silence.start, until, f"wait for {op.name}", (awaited.op,))
        waits[thread].append(wait)
    for thread, (*earlier, last) in waits.items():
        yield from earlier
        over = (work.op for work in by_caller[thread] if graph.ops[work.op].end <= last.end)
        yield structs.replace(last, sources=(*last.sources, *over))


def _message_wait(
    trace: RankTrace, graph: RankGraph, work: HostCollective, quiet: list[Silence]
) -> tuple[HostWait, list[Silence]]:
    """Return the wait in which a message's event closed, and the remaining silences.

    A caller that found the message completed did not block and does not see when that was: only a
    long silent wait ends with the message.
    """
    thread, until = int(trace.host.thread[work.row]), float(trace.host.end[work.row])
    around = [
        number
        for number, silence in enumerate(quiet)
        if silence.thread == thread and silence.start < until <= silence.end
    ]
    begun = until
    if around:
        silence = quiet[around[0]]
        begun = silence.start
        rest = structs.replace(silence, start=until)
        quiet = [*quiet[: around[0]], *quiet[around[0] + 1 :]]
        if rest.end - rest.start > SILENT:
            quiet.append(rest)
    graph.posted[work.op] = until - begun > SILENT
    name = f"wait for {graph.ops[work.op].name}"
    return HostWait(thread, begun, until, name, (work.op,)), quiet


def _ended_in(
    trace: RankTrace,
    graph: RankGraph,
    works: list[HostCollective],
    silence: Silence,
    window: Window,
) -> HostCollective | None:
    """Return the collective whose end is nearest to the end of a silence, if within it.

    A collective that had not begun by then is not what its caller waited for.
    """
    until = min(silence.end, window.end)
    ended = [
        work
        for work in works
        if float(trace.host.start[work.call or 0]) < until
        and graph.ops[work.op].start < until
        and max(silence.start, until - _WOKEN) < graph.ops[work.op].end <= until + _CLOSED_LATE
    ]
    return min(ended, key=lambda work: abs(graph.ops[work.op].end - until), default=None)


_WORKERS = 2
"""Worker threads of a group: ``Options::threads`` of PyTorch's ProcessGroupGloo, 2 in
``create_default_options`` and in its constructor; no public function of PyTorch sets it."""
_MOST_OPTIONS = 2000
"""Most assignments of one rank's workers to its groups that are considered: 8 workers of 7 groups.
"""
_MOST_TRIED = 50_000
"""Most assignments of all ranks that are tried, a second's work; beyond that none is chosen."""

Name = tuple[tuple[int, ...], str]
"""Ranks and key of a group."""


class _Option(Struct, frozen=True):
    """Groups of a rank's calls: by group, what they are in order, and their ops.

    ``groups`` is the number of groups with a worker.
    """

    groups: int
    calls: Mapping[Name, tuple[object, ...]]
    ops: Mapping[Name, tuple[int, ...]]
    chosen: Mapping[int, LocalCall]


class _Search(Struct):
    """Depth-first search over ranks for the assignment whose calls end most nearly together."""

    graphs: Sequence[LinkedRank]
    options: Sequence[Sequence[_Option]]
    best: tuple[int, float] = (sys.maxsize, 0.0)
    found: list[_Option] = field(default_factory=list)
    tried: int = 0

    def run(self, chosen: list[_Option], groups: int, spread: float) -> None:
        """Continue from the ranks assigned so far, with the sum of their groups' spreads (s)."""
        if (groups, spread) >= self.best or self.tried > _MOST_TRIED:
            return
        if len(chosen) == len(self.options):
            self.best, self.found = (groups, spread), list(chosen)
            return
        for option in self.options[len(chosen)]:
            self.tried += 1
            if self._fits(chosen, option):
                chosen.append(option)
                self.run(chosen, groups + option.groups, spread + self._spread_of(chosen))
                chosen.pop()

    def _fits(self, chosen: Sequence[_Option], option: _Option) -> bool:
        """Whether earlier ranks have the same calls on the groups that they share."""
        rank = self.graphs[len(chosen)].rank
        for graph, earlier in zip(self.graphs, chosen, strict=False):
            shared = {name for name in option.calls if graph.rank in name[0]}
            shared |= {name for name in earlier.calls if rank in name[0]}
            if any(option.calls.get(name) != earlier.calls.get(name) for name in shared):
                return False
        return True

    def _spread_of(self, chosen: Sequence[_Option]) -> float:
        """Spread of call ends on the groups of which the last rank is the last member (s)."""
        later = {graph.rank for graph in self.graphs[len(chosen) :]}
        total = 0.0
        for name in chosen[-1].ops:
            if later.isdisjoint(name[0]):
                ends = [
                    graph.ends[list(option.ops[name])]
                    for graph, option in zip(self.graphs, chosen, strict=False)
                    if name in option.ops
                ]
                total += _spread(np.array(ends))
        return total


def tell_groups(graphs: Sequence[LinkedRank]) -> list[str]:
    """Give calls of unknown group that of the worker which carried them out; return notes.

    Nothing is changed if the trace does not determine it.
    """
    unnamed = [graph for graph in graphs if _unknown(graph)]
    search = _Search(unnamed, [list(_options(graph)) for graph in unnamed])
    if not unnamed or not all(search.options):
        return []
    search.run([], 0, 0.0)
    if not search.found or search.tried > _MOST_TRIED:
        return []
    for graph, option in zip(unnamed, search.found, strict=True):
        graph.collectives.update(option.chosen)
    named = sum(len(option.chosen) for option in search.found)
    return [f"{named} ops of collectives without a group: that of the worker thread is taken"]


def _unknown(graph: LinkedRank) -> list[int]:
    """Ops of a rank whose group is unknown, in the order in which they were queued."""
    ops = [
        op
        for op, call in graph.collectives.items()
        if call.label == UNKNOWN_GROUP and call.may_be and op in graph.workers
    ]
    return sorted(ops, key=lambda op: (graph.workers[op][1], op))


def _options(graph: LinkedRank) -> Iterator[_Option]:
    """Assign workers to groups in all ways that keep the order of their creation."""
    ops = _unknown(graph)
    workers = range(1 + max(graph.workers[op][0] for op in ops))
    groups = len(graph.collectives[ops[0]].may_be)
    if comb(groups + len(workers) - 1, len(workers)) > _MOST_OPTIONS:
        return
    for numbers in combinations_with_replacement(range(groups), len(workers)):
        if max(Counter(numbers).values()) > _WORKERS:
            continue
        group_of = dict(zip(workers, numbers, strict=True))
        chosen = {op: graph.collectives[op].may_be[group_of[graph.workers[op][0]]] for op in ops}
        by_name: dict[Name, list[int]] = {}
        agreed = {}
        for op, call in chosen.items():
            # What members agree on; sizes as text, since unknown ones must compare equal
            size = "" if call.kind == "all_to_all" else f"{call.size:.0f}"
            agreed[op] = call.kind, call.dtype, size
            by_name.setdefault((call.ranks or (), call.key), []).append(op)
        yield _Option(
            len(set(numbers)),
            {name: tuple(agreed[op] for op in call_ops) for name, call_ops in by_name.items()},
            {name: tuple(call_ops) for name, call_ops in by_name.items()},
            chosen,
        )


def _spread(ends: Floats) -> float:
    """Return the usual distance of members' ends from their call's, times their number (s).

    ``ends`` has a row per member and a column per call. A clock's offset is the same in all calls;
    a stall of the network, tens of ms, delays the end of few: hence medians of both.
    """
    deviations = ends - ends.mean(axis=0)
    deviations -= np.median(deviations, axis=1, keepdims=True)
    return float(np.median(np.abs(deviations)) * deviations.size)
