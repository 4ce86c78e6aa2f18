"""The runtime calls of a step: what each launched, and the communication call around it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
class RuntimeCall:
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
) -> Iterator[RuntimeCall]:
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
    for row, thread, number, start, end in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        name = trace.names[number]
        around = _around(enclosing, thread, (start, end), name)
        sequence = None if around is None else enclosing.waits_for(row)
        yield RuntimeCall(thread, start, name, tuple(launched_by.get(row, ())), around, sequence)


def _around(
    enclosing: Enclosing, thread: int, called: tuple[float, float], name: str
) -> int | None:
    """Find the outermost event of the communication call around a runtime call.

    The middle of the call tells: the next may begin at the tick on which the one before ended.
    Of those without length at that tick, an event recorded is the library's last, a wait is not.
    """
    instant = (called[0] + called[1]) / 2 + (-TICK if "EventRecord" in name else TICK)
    return enclosing.outermost(thread, instant)
