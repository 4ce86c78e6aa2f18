"""Stretches of a host thread in which nothing is seen at work, too long to be the interpreter's.

Between two operators a thread runs Python, which profilers do not record: that is work, and a
faster processor shortens it. A silence of many milliseconds may be anything: a data loader, a lock,
a sleep, a wait for a device or another process. Nothing says that the processor is what it takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traces.core.events import Floats, RankTrace
from traces.profiler.window import Window

_LONGEST = 1e-3
"""A pause between events longer than this (s) may be a silence.

In a millisecond CPython executes some 10,000 to 100,000 instructions, hundreds of times what lies
between two operators. In the real traces at hand half the pauses are of 1 to 60 us, and of those
in threads that never sleep 99 % are below 0.5 ms.
"""
_TIMES = 100
"""... if it is also so many times the rank's usual pause: where a program does much between its
events, or the profiler recorded only some of them, pauses of milliseconds are usual."""
_CERTAIN = 0.1
"""A longer pause (s) is one, whatever is usual: that is a million instructions and more."""
_FEWEST = 10
"""Pauses below which nothing is usual."""


@dataclass(frozen=True, slots=True, eq=False)
class Silences:
    """Silences of a rank's threads: of each shape ``(silences, 2)``, longer than ``shortest`` (s).

    The time before a thread's first event of the step and after its last may be silence, too; there
    a bound is infinite.
    """

    shortest: float
    of_thread: Mapping[int, Floats]

    def within(self, thread: int, begin: float, end: float) -> list[tuple[float, float]]:
        """Return what a thread is silent between two times, if that is still long (s)."""
        inside = np.clip(self.of_thread.get(thread, np.empty((0, 2))), begin, end)
        return [(begun, over) for begun, over in inside.tolist() if over - begun > self.shortest]


def unexplained_silences(trace: RankTrace, window: Window) -> Silences:
    """Find where nothing is at work on each thread of a step: no operator, call or annotation.

    An annotation that goes on says what the thread does, but that of a whole step is none.
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
    return Silences(shortest, long)


def shortest_silence(pauses: Mapping[int, Floats]) -> float:
    """Return how long a pause of a rank's threads is no longer the interpreter's (s)."""
    lengths = [spans[:, 1] - spans[:, 0] for spans in pauses.values()]
    known = np.concatenate([np.empty(0), *lengths])
    known = known[np.isfinite(known)]
    usual = float(np.median(known)) if len(known) >= _FEWEST else 0.0
    return min(max(_LONGEST, _TIMES * usual), _CERTAIN)
