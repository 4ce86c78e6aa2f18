"""What the measured times of like waits say together, where one wait's own say nothing.

The runtime calls of a step: what each launched, and the communication call around it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from traces.core.events import HostKind, RankTrace
from traces.profiler.comms import Enclosing
from traces.profiler.device import DeviceOps
from traces.profiler.launches import Launches
from traces.profiler.window import Window

_MATTERS = re.compile(r"EventRecord|StreamWaitEvent|DeviceSynchronize")
TICK = 0.5e-9
"""Half of what profilers count time in, at the finest (s)."""


@dataclass(frozen=True, slots=True)
class Call:
    """A runtime call: by which thread, from when (s), what it launched.

    ``around`` is the row of the outermost event of the communication call that it is part of,
    ``sequence`` the number of the collective which that is for, if told.
    """

    thread: int
    start: float
    name: str
    launched: tuple[int, ...]
    around: int | None
    sequence: int | None


def stream_calls(
    trace: RankTrace, window: Window, launches: Launches, enclosing: Enclosing, ops: DeviceOps
) -> Iterator[Call]:
    """Collect the runtime calls of all threads that launch, record or wait, in order of start.

    They do not nest: of two that begin at one tick the shorter was first.
    """
    host = trace.host
    launched_by: dict[int, list[int]] = {}
    for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True):
        launched_by.setdefault(launch, []).append(ops.op_of[device])
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    known = [number for number, name in enumerate(trace.names) if _MATTERS.search(name)]
    rows = rows[np.isin(rows, launches.host) | np.isin(host.name[rows], known)]
    rows = rows[np.lexsort((rows, host.end[rows], host.start[rows]))]
    columns = (rows, host.thread[rows], host.name[rows], host.start[rows], host.end[rows])
    for row, thread, number, start, end in zip(*(one.tolist() for one in columns), strict=True):
        name = trace.names[number]
        around = _around(enclosing, thread, (start, end), name)
        sequence = None if around is None else enclosing.waits_for(row)
        yield Call(thread, start, name, tuple(launched_by.get(row, ())), around, sequence)


def _around(
    enclosing: Enclosing, thread: int, called: tuple[float, float], name: str
) -> int | None:
    """Find the outermost event of the communication call around a runtime call.

    The middle of the call tells: the next may begin at the tick on which the one before ended.
    Of those without length at that tick, an event recorded is the library's last, a wait is not.
    """
    instant = (called[0] + called[1]) / 2 + (-TICK if "EventRecord" in name else TICK)
    return enclosing.outermost(thread, instant)


Site = tuple[int | None, int]
"""What waits have in common: the stream of the collective they follow, the stream that waits."""

Source = tuple[str, int, int]
"""A kind of collective, the stream of the compute launched before, the stream of the collective."""


@dataclass(slots=True)
class Votes:
    """What was seen at each site: collected along all waits of a step, then ``closed`` and asked.

    A program runs the same code for each layer, so like waits are for alike: for the collective
    launched last to some stream (to be waited for at once), or for the oldest there that nobody
    waited for (prefetched). A start that comes before a stream's newest ended refutes the first.

    ``explained`` counts, per stream and whether it was the newest there, starts that came just as a
    collective ended; ``behind`` the collectives that began just as the one launched before them
    ended, ``not_behind`` those that began earlier; ``after`` and ``not_after``
    count the same for compute.
    """

    closed: bool = False
    explained: Counter[tuple[Site, int, bool]] = field(default_factory=Counter)
    refuted: Counter[tuple[Site, int]] = field(default_factory=Counter)
    behind: Counter[Site] = field(default_factory=Counter)
    not_behind: Counter[Site] = field(default_factory=Counter)

    after: Counter[Source] = field(default_factory=Counter)
    not_after: Counter[Source] = field(default_factory=Counter)

    def stream(self, site: Site, streams: Iterable[int]) -> int | None:
        """Choose among streams: most starts explained, newest never refuted, the one followed.

        A wait that follows no collective is for none of them in particular, unless times say so.
        """

        def rank(one: int) -> tuple[int, bool, bool, int]:
            refuted = self.refuted[site, one] > 0
            return -self._fitting(site, one), refuted, one != site[0], one

        known = [one for one in streams if site[0] is not None or self._fitting(site, one)]
        return min(known, key=rank, default=None)

    def takes_newest(self, site: Site, stream: int) -> bool:
        """Whether such a wait is for the newest collective of a stream, not for the oldest."""
        return site[0] is not None and not self.refuted[site, stream]

    def is_behind(self, site: Site) -> bool:
        """Whether a collective waits for the one launched before, not for compute."""
        return self.closed and self.behind[site] > 0 and not self.not_behind[site]

    def is_after(self, source: Source) -> bool:
        """Whether a collective waits for compute: one launched from a side stream never began so.

        One that did now and then was launched while another thread launched compute.
        """
        return self.after[source] > 0 or not self.not_after[source]

    def _fitting(self, site: Site, stream: int) -> int:
        """Count the starts explained that are not of another kind than the waits unexplained."""
        newest = 0 if self.refuted[site, stream] else self.explained[site, stream, True]
        return newest + self.explained[site, stream, False]
