"""The runtime calls of a step: what each launched, and the communication call around it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traces.device import DeviceOps
from traces.enclosing import Enclosing
from traces.events import HostKind, RankTrace
from traces.launches import Launches
from traces.window import Window

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
    """Collect the runtime calls of all threads in order of their start.

    They do not nest: of two that begin at one tick the shorter was first.
    """
    host = trace.host
    launched_by: dict[int, list[int]] = {}
    for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True):
        launched_by.setdefault(launch, []).append(ops.op_of[device])
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    for row in rows[np.lexsort((rows, host.end[rows], host.start[rows]))].tolist():
        around = _around(trace, enclosing, row)
        sequence = None if around is None else enclosing.waits_for(row)
        name, launched = trace.names[host.name[row]], tuple(launched_by.get(row, ()))
        thread, start = int(host.thread[row]), float(host.start[row])
        yield Call(thread, start, name, launched, around, sequence)


def _around(trace: RankTrace, enclosing: Enclosing, row: int) -> int | None:
    """Find the outermost event of the communication call around a runtime call.

    The middle of the call tells: the next may begin at the tick on which the one before ended.
    Of those without length at that tick, an event recorded is the library's last, a wait is not.
    """
    host = trace.host
    last = "EventRecord" in trace.names[host.name[row]]
    instant = float(host.start[row] + host.end[row]) / 2 + (-TICK if last else TICK)
    span = enclosing.span(int(host.thread[row]), instant)
    rows = () if span is None else span.rows
    holding = [one for one in rows if host.start[one] <= instant <= host.end[one]]
    return max(holding, key=lambda one: float(host.end[one] - host.start[one]), default=None)
