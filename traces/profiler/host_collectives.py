"""Collectives that the host itself carries out: gloo, MPI and UCC, on worker threads.

The profiler marks the work (``gloo:all_reduce``) on a worker's thread and the call
(``c10d::allreduce_``), which only queues it, on the caller's; nothing joins the two but their
order: workers take calls first come, first served. Where the caller waits there is no event at
all, only a silence that ends when a collective does.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.workload import What
from traces.core.events import HostKind, RankTrace
from traces.core.rank_graph import LocalOp, RankGraph
from traces.profiler.comms import local_call
from traces.profiler.host_waits import HostWait, Silence, silences
from traces.profiler.window import Window

_WORK = re.compile(r"^(gloo|mpi|ucc):")
_CALL = re.compile(r"^c10d::")
_WOKEN = 5e-3
"""A caller resumes at most this long after the collective it waited for (s).

Measured on an oversubscribed host (4 ranks on 2 cores): median 60 us, 90th percentile 1 ms, most
5.2 ms.
"""
_CLOSED_LATE = 2e-3
"""The work's event may close this long after its caller resumed (s), measured: 1.8 ms at most.

The future completes before the worker closes the event; a worker that is preempted in between
closes it late.
"""


@dataclass(frozen=True, slots=True, eq=False)
class HostCollective:
    """A collective's op in the graph; ``call`` is the host row that queued it, None if unknown."""

    op: int
    row: int
    call: int | None


def add_host_collectives(
    trace: RankTrace, window: Window, graph: RankGraph
) -> list[HostCollective]:
    """Add the work of a step's host collectives to the graph."""
    work = work_rows(trace, window).tolist()
    queued = _named(trace, window, HostKind.OPERATOR, _CALL).tolist() if work else []
    calls: Sequence[int | None] = queued if len(queued) == len(work) else [None] * len(work)
    if work and len(queued) != len(work):
        graph.notes.append(
            f"rank {trace.rank}: {len(queued)} calls and {len(work)} works of host collectives; "
            "which call queued which work is not told"
        )
    return [_add(trace, graph, row, call) for row, call in zip(work, calls, strict=True)]


def work_rows(trace: RankTrace, window: Window) -> NDArray[np.int64]:
    """Rows of a step's host events that are a worker carrying out a collective."""
    return _named(trace, window, HostKind.ANNOTATION, _WORK)


def _named(
    trace: RankTrace, window: Window, kind: HostKind, name: re.Pattern[str]
) -> NDArray[np.int64]:
    """Rows with a record of a communication, of a kind, with a name that matches."""
    matching = [index for index, word in enumerate(trace.names) if name.match(word)]
    host, rows = trace.host, window.host
    rows = rows[(host.comm[rows] >= 0) & (host.kind[rows] == kind)]
    return np.asarray(rows[np.isin(host.name[rows], matching)])


def _add(trace: RankTrace, graph: RankGraph, row: int, issued: int | None) -> HostCollective:
    host = trace.host
    name = trace.names[host.name[row]]
    start, end = float(host.start[row]), float(host.end[row])
    lane = trace.threads[host.thread[row]]
    op = graph.add(LocalOp(What.COLLECTIVE, lane, name, start, end))
    records = [trace.comms[host.comm[said_by]] for said_by in (row, issued) if said_by is not None]
    where = f"{trace.file}: {name!r} at {start:.6f} s"
    graph.collectives[op] = call = local_call(trace, records, name, where)
    graph.ops[op].what = call.what
    return HostCollective(op, row, issued)


def add_queue_edges(
    trace: RankTrace, graph: RankGraph, works: list[HostCollective], lane_op: dict[int, int]
) -> None:
    """Work starts after its call, and after its worker's work before."""
    before: dict[int, int] = {}
    delays = [
        graph.ops[work.op].start - float(trace.host.start[work.call])
        for work in works
        if work.call is not None
    ]
    least = max(0.0, min(delays, default=0.0))
    for work in works:
        start = graph.ops[work.op].start
        worker = int(trace.host.thread[work.row])
        previous = before.get(worker)
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
        before[worker] = work.op


def collective_waits(
    trace: RankTrace, window: Window, graph: RankGraph, works: list[HostCollective]
) -> Iterator[HostWait]:
    """Find the silences in which a caller waited for the collectives it had queued.

    The end of a collective whose caller resumed before its event was closed is moved to then.
    """
    by_caller: dict[int, list[HostCollective]] = {}
    if not works:
        return
    for work in works:
        if work.call is not None:
            by_caller.setdefault(int(trace.host.thread[work.call]), []).append(work)
    for silence in sorted(silences(trace, window), key=lambda quiet: quiet.start):
        mine = by_caller.get(silence.thread, [])
        awaited = _ended_in(trace, graph, mine, silence, window)
        if awaited is None:
            continue
        mine.remove(awaited)
        op = graph.ops[awaited.op]
        until = min(silence.end, window.end)
        op.end = min(op.end, until)
        yield HostWait(silence.thread, silence.start, until, f"wait for {op.name}", (awaited.op,))


def _ended_in(
    trace: RankTrace,
    graph: RankGraph,
    works: list[HostCollective],
    silence: Silence,
    window: Window,
) -> HostCollective | None:
    """Find the collective whose end is nearest to the end of a silence, if it ended within it."""
    until = min(silence.end, window.end)
    ended = [
        work
        for work in works
        if float(trace.host.start[work.call or 0]) < until
        and max(silence.start, until - _WOKEN) < graph.ops[work.op].end <= until + _CLOSED_LATE
    ]
    return min(ended, key=lambda work: abs(graph.ops[work.op].end - until), default=None)
