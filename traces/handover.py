"""Threads that wait for one another: who woke whom, from when they fell silent and awoke.

Profilers do not record that the main thread sleeps in ``backward()`` while autograd's thread
works, nor that it waits for gloo's worker. But a thread that was silent for long and speaks just
when another falls silent was woken by it; so was one that speaks just when a collective ends.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traces.events import Floats, HostKind, RankTrace
from traces.window import Window

_SILENT = 100e-6
"""Silence shorter than this (s) is an operator at work, not a thread asleep."""
_TOGETHER = 0.2
"""Threads that wait for each other work at the same time for at most this share of the lesser.

Backward and its caller overlap by microseconds at each handover; independent threads by the
share of time in which the other is busy.
"""
_WAKE_UP = 1e-3
"""A thread is awake at most this long after the one that woke it fell silent (s).

Waking a thread takes 5-50 us; Python's interpreter lock adds up to its switch interval's fifth.
"""


@dataclass(frozen=True, slots=True)
class Handover:
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


@dataclass(frozen=True, slots=True)
class Silence:
    """A stretch of a thread without a sign of life (s)."""

    start: float
    end: float
    thread: int


def handovers(trace: RankTrace, window: Window, main: int) -> Iterator[Handover]:
    """Find who woke whom among the threads of a step; nobody wakes the main thread at its start."""
    quiet = sorted(silences(trace, window), key=lambda one: (one.start, one.thread))
    begins = [one.start for one in quiet]
    active = _active(quiet, window)
    turns = {
        (one, other): _take_turns(active[one], active[other]) for one in active for other in active
    }
    for slept in quiet:
        if slept.thread == main and slept.start == -np.inf:
            continue
        place = bisect_left(begins, slept.end) - 1  # strictly before: no two wake each other
        while place >= 0 and begins[place] >= max(slept.end - _WAKE_UP, slept.start):
            other = quiet[place]
            woke = other.start > slept.start and other.end > slept.end
            if woke and other.thread != slept.thread and turns[slept.thread, other.thread]:
                yield Handover(slept.thread, slept.start, slept.end, other.thread, other.start)
                break
            place -= 1


def _active(quiet: list[Silence], window: Window) -> dict[int, Floats]:
    """Stretches in which each thread shows signs of life, shape ``(stretches, 2)`` (s)."""
    found: dict[int, Floats] = {}
    for thread in {one.thread for one in quiet}:
        mine = [(one.start, one.end) for one in quiet if one.thread == thread]
        edges = np.clip([window.start, *np.ravel(mine), window.end], window.start, window.end)
        found[thread] = edges.reshape(-1, 2)
    return found


def _take_turns(one: Floats, other: Floats) -> bool:
    """Whether two threads hardly ever work at the same time, as those do that wait for each other.

    Threads that go about their own business fall silent and awake at the same time by chance.
    """
    gone = np.zeros(other.size)
    gone[1::2] = np.diff(other)[:, 0]
    both = float(np.diff(np.interp(one, other.ravel(), np.cumsum(gone))).sum())
    least = min(float(np.diff(part).sum()) for part in (one, other))
    return both <= _TOGETHER * least


def silences(trace: RankTrace, window: Window) -> Iterator[Silence]:
    """Find stretches in which a thread neither begins nor ends an operator or runtime call.

    A thread is silent, too, before its first event and after its last.
    """
    host = trace.host
    rows = window.host[host.kind[window.host] != HostKind.ANNOTATION]
    for thread in np.unique(host.thread[rows]).tolist():
        mine = rows[host.thread[rows] == thread]
        sounds = np.unique(np.concatenate([host.start[mine], host.end[mine]]))
        edges = np.concatenate([[-np.inf], sounds, [np.inf]])
        calls = mine[host.kind[mine] == HostKind.RUNTIME]
        inside_call = set(zip(host.start[calls].tolist(), host.end[calls].tolist(), strict=True))
        for place in np.flatnonzero(np.diff(edges) > _SILENT).tolist():
            if (edges[place], edges[place + 1]) in inside_call:
                continue  # waiting inside the CUDA library is what traces.synchronize reads
            yield Silence(float(edges[place]), float(edges[place + 1]), thread)
