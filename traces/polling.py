"""Loops that ask the device until it says yes: waiting, although no call of it waits."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from traces.device import DeviceOps
from traces.events import HostKind, RankTrace
from traces.synchronize import Wait
from traces.waits import STAMPS
from traces.window import Window

_ASKS = re.compile(r"(Event|Stream)Query")
_ENOUGH = 4
"""Questions at least: an allocator asks once for each block that another stream has used."""
_LONG = 100e-6
"""A loop lasts at least this long (s): an allocator that goes through its blocks takes less."""


@dataclass(frozen=True, slots=True)
class _Loop:
    """Questions that a thread asked and did nothing else in between (s)."""

    thread: int
    name: str
    starts: Sequence[float]
    ends: Sequence[float]


def polling_waits(trace: RankTrace, window: Window, ops: DeviceOps) -> Iterator[Wait]:
    """Find the loops of queries that ended as an op of the device did.

    The answer was no before the last question: the op ended between the last two answers.
    """
    for loop in _loops(trace, window):
        if len(loop.starts) < _ENOUGH or loop.ends[-1] - loop.starts[0] < _LONG:
            continue
        last = (ops.last_launched(stream, loop.starts[0]) for stream in ops.on_stream)
        asked, answered = loop.starts[-2], loop.ends[-1] + STAMPS
        done = [op for op in last if op is not None and asked <= ops.ends[op] <= answered]
        if done:
            source = max(done, key=lambda op: (ops.ends[op], op))
            yield Wait(loop.thread, loop.starts[0], loop.ends[-1], loop.name, (source,))


def _loops(trace: RankTrace, window: Window) -> Iterator[_Loop]:
    """Find runs of queries without another runtime call between them."""
    host = trace.host
    asks = [number for number, name in enumerate(trace.names) if _ASKS.search(name)]
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    if not np.isin(host.name[rows], asks).any():
        return
    for thread in np.unique(host.thread[rows]).tolist():
        mine = rows[host.thread[rows] == thread]
        query = np.isin(host.name[mine], asks)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], query, [False]]).astype(np.int8)))
        for first, last in edges.reshape(-1, 2).tolist():
            run = mine[first:last]
            name = trace.names[host.name[run[0]]]
            yield _Loop(thread, name, host.start[run].tolist(), host.end[run].tolist())
