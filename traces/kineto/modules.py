"""What a Kineto file says of modules: ``nn.Module`` ranges, and which backward is of which forward.

With ``with_modules`` or ``with_stack`` the profiler records a range per call of a module
(``python_function``, ``nn.Module: Linear_3``). It draws an arrow (``fwdbwd``) from each operator of
the forward pass to the one that autograd runs for it: two flow events of one id, at the start of
either. Nothing is replayed by these events: one that is damaged is passed over.
"""

from contextlib import suppress

import msgspec
import numpy as np
from msgspec import Raw, Struct

from traces.core.columns import LaneLabels
from traces.core.events import ModuleEvents
from traces.kineto.schema import (
    ABSENT,
    KinetoEvent,
    LooseNumber,
    durations_ns,
    identifier,
    nanoseconds,
    unwrapped,
)

CATEGORIES = ("python_function", "fwdbwd")
"""Categories of the events that :class:`ModuleReading` takes."""
_MODULE = "nn.Module: "
_Lane = tuple[LooseNumber, LooseNumber]
_Place = tuple[_Lane, int]
"""A process and thread, and a time (ns since ``baseTimeNanoseconds``)."""


class _Arrow(Struct, gc=False):
    ph: str = ""
    id: Raw = ABSENT


_decode = msgspec.json.Decoder(_Arrow).decode


class ModuleReading:
    """Collects the events as they are read."""

    def __init__(self) -> None:
        self._ranges: list[tuple[_Lane, str, int, int]] = []
        self._ends: dict[str, dict[int, _Place]] = {"s": {}, "f": {}}

    def add(self, event: KinetoEvent, raw: Raw) -> None:
        """Take an event of one of the categories, unless it says nothing of modules."""
        with suppress(ValueError, OverflowError, RecursionError):
            if event.cat == "fwdbwd":
                self._add_arrow(event, raw)
            elif event.ph == "X" and event.name.startswith(_MODULE):
                start = nanoseconds(event.ts, raw, "ts")
                end = start + int(durations_ns([event.dur], [raw])[0])
                name = event.name.removeprefix(_MODULE)
                self._ranges.append(((event.pid, event.tid), name, start, end))

    def _add_arrow(self, event: KinetoEvent, raw: Raw) -> None:
        arrow = _decode(raw)
        number = unwrapped(arrow.id)
        if arrow.ph in self._ends and isinstance(number, int | float | str):
            place = (event.pid, event.tid), nanoseconds(event.ts, raw, "ts")
            self._ends[arrow.ph][identifier(number, "id")] = place

    def events(self, threads: LaneLabels, first: int) -> ModuleEvents | None:
        """Return what was found on threads that have other events; None if nothing was.

        ``first`` is when the times of the trace begin (ns).
        """
        ranges = [
            (thread, name, start, end)
            for lane, name, start, end in self._ranges
            if (thread := threads.known(*lane)) is not None
        ]
        forward, backward = self._ends["s"], self._ends["f"]
        arrows = [
            (source, forward[number][1], target, backward[number][1])
            for number in forward.keys() & backward.keys()
            if (source := threads.known(*forward[number][0])) is not None
            and (target := threads.known(*backward[number][0])) is not None
        ]
        if not (ranges or arrows):
            return None
        times = np.array([row[2:] for row in ranges], dtype=np.int64).reshape(-1, 2)
        ends = np.array(arrows, dtype=np.int64).reshape(-1, 4)
        return ModuleEvents(
            thread=np.array([row[0] for row in ranges], dtype=np.int32),
            name=tuple(row[1] for row in ranges),
            start=(times[:, 0] - first) / 1e9,
            end=(times[:, 1] - first) / 1e9,
            forward_thread=ends[:, 0].astype(np.int32),
            forward=(ends[:, 1] - first) / 1e9,
            backward_thread=ends[:, 2].astype(np.int32),
            backward=(ends[:, 3] - first) / 1e9,
        )
