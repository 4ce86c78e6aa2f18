"""One pass over the events of a Kineto file, each handed to what its category is.

An event of a category that is used must be whole, or the file is refused with the event's number,
name and field; one of another category is counted.
"""

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Raw

from simulator.errors import TraceError
from traces.events import CommRecord, HostKind, ProfilerStep, SyncEvent
from traces.kineto_columns import Lanes, Rows, Table
from traces.kineto_comm import comm_record, is_comm
from traces.kineto_schema import (
    Args,
    Event,
    Number,
    SyncArgs,
    decode_event,
    decode_sync,
    identifier,
    name_of,
    nanoseconds,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_NO_ARGS = Args()
_HOST = {
    "cpu_op": HostKind.OPERATOR,
    "operator": HostKind.OPERATOR,
    "user_annotation": HostKind.ANNOTATION,
    "cuda_runtime": HostKind.RUNTIME,
    "cuda_driver": HostKind.RUNTIME,
    "hip_runtime": HostKind.RUNTIME,
    "hip_driver": HostKind.RUNTIME,
    "xpu_runtime": HostKind.RUNTIME,
    "xpu_driver": HostKind.RUNTIME,
    "mtia_runtime": HostKind.RUNTIME,
    "privateuse1_runtime": HostKind.RUNTIME,
    "privateuse1_driver": HostKind.RUNTIME,
    "runtime": HostKind.RUNTIME,
}
_IS_COPY = {"kernel": False, "gpu_memcpy": True, "gpu_memset": True, "memcpy": True, "memset": True}
_PHASES = {"M": "metadata", "i": "instant", "C": "counter", "X": "no category"}
Span = tuple[int, int]
"""Start and end in nanoseconds since ``baseTimeNanoseconds``."""


class Reading:
    """What the events of one file fill; made, filled and thrown away by the reader."""

    def __init__(self) -> None:
        self.host = Rows()
        self.device = Rows()
        self.names: Table[str] = Table()
        self.threads = Lanes("process", "thread")
        self.streams = Lanes("device", "stream")
        self.comms: list[CommRecord] = []
        self.unused: Counter[str] = Counter()
        self._steps: list[tuple[int, Span]] = []
        self._syncs: list[tuple[str, Span, SyncArgs]] = []
        self._handlers: dict[str, Callable[[Event, Raw, str], None]] = {
            **dict.fromkeys(_HOST, self._add_host),
            **dict.fromkeys(_IS_COPY, self._add_device),
            "cuda_sync": self._add_sync,
        }

    def read(self, file: Path, events: list[Raw]) -> None:
        """Take in all events, or raise a :class:`TraceError` that names the one that is wrong."""
        index = -1
        try:
            for raw in events:
                index += 1
                self._add(decode_event(raw), raw)
        except (ValueError, OverflowError, RecursionError) as error:
            name = name_of(events[index])
            called = f" {shown(name)}" if name else ""
            raise TraceError(f"{file}: event {index}{called}: {error}") from error
        if not (len(self.host) or len(self.device)):
            raise TraceError(
                f"{file}: no operator, launch or kernel among its {len(events)} events"
            )

    def first(self) -> int:
        """Find the earliest start, in nanoseconds since ``baseTimeNanoseconds``."""
        starts = [span[0] for _, span in self._steps] + [span[0] for _, span, _ in self._syncs]
        return min([*starts, *(min(rows.start) for rows in (self.host, self.device) if len(rows))])

    def steps(self, first: int) -> tuple[ProfilerStep, ...]:
        """Sorted by start."""
        steps = (ProfilerStep(number, *_seconds(span, first)) for number, span in self._steps)
        return tuple(sorted(steps, key=lambda step: (step.start, step.number)))

    def syncs(self, first: int) -> tuple[SyncEvent, ...]:
        """Sorted by start; -1, which stands for none or all in these events, becomes None."""
        syncs = (
            SyncEvent(
                name,
                *_seconds(span, first),
                stream=self._stream(args.device, args.stream),
                correlation=identifier(args.correlation, "correlation"),
                source_stream=self._stream(args.device, args.source_stream),
                record_correlation=_present(args.record_correlation, "record_correlation"),
            )
            for name, span, args in self._syncs
        )
        return tuple(sorted(syncs, key=lambda sync: sync.start))

    def _add(self, event: Event, raw: Raw) -> None:
        category = event.cat
        if event.ph == "X" and category is not None:
            category = category.lower()
            handler = self._handlers.get(category)
            if handler is not None:
                handler(event, raw, category)
                return
        self.unused[event.cat or _PHASES.get(event.ph, event.ph)] += 1

    def _add_host(self, event: Event, raw: Raw, category: str) -> None:
        name, kind, comm = event.name, _HOST[category], -1
        span = _span(event, raw)
        if kind is not HostKind.RUNTIME:
            step = _STEP.match(name)
            if step:
                self._steps.append((int(step[1]), span))
                return
            if is_comm(name):
                comm = len(self.comms)
                self.comms.append(comm_record(name, raw))
        self.host.code.append(kind)
        self.host.lane.append(self.threads(event.pid, event.tid))
        self._add_row(self.host, event, span, comm)

    def _add_device(self, event: Event, raw: Raw, category: str) -> None:
        args, comm, span = event.args or _NO_ARGS, -1, _span(event, raw)
        if args.collective is not None:
            comm = len(self.comms)
            self.comms.append(comm_record(event.name, raw))
        device = event.pid if args.device is None else args.device
        stream = event.tid if args.stream is None else args.stream
        self.device.code.append(_IS_COPY[category])
        self.device.lane.append(self.streams(device, stream))
        self._add_row(self.device, event, span, comm)

    def _add_row(self, rows: Rows, event: Event, span: Span, comm: int) -> None:
        args = event.args or _NO_ARGS
        external = args.external_old if args.external is None else args.external
        rows.name.append(self.names(event.name))
        rows.start.append(span[0])
        rows.end.append(span[1])
        rows.correlation.append(identifier(args.correlation, "correlation"))
        rows.external.append(identifier(external, "External id"))
        rows.comm.append(comm)

    def _add_sync(self, event: Event, raw: Raw, _category: str) -> None:
        args = decode_sync(raw).args or SyncArgs()
        args.device = event.pid if args.device is None else args.device
        for which, value in (("stream", args.stream), ("wait_on_stream", args.source_stream)):
            identifier(value, which)
        identifier(args.correlation, "correlation")
        _present(args.record_correlation, "wait_on_cuda_event_record_corr_id")
        self._syncs.append((event.name, _span(event, raw), args))

    def _stream(self, device: Number, stream: Number) -> str | None:
        return None if _present(stream, "stream") is None else self.streams.label(device, stream)


def _seconds(span: Span, first: int) -> tuple[float, float]:
    return (span[0] - first) / 1e9, (span[1] - first) / 1e9


def _span(event: Event, raw: Raw) -> Span:
    start, duration = nanoseconds(event.ts, raw, "ts"), nanoseconds(event.dur, raw, "dur")
    if duration < 0:
        raise ValueError(f"field 'dur': {shown(event.dur)} is negative")
    return start, start + duration


def _present(value: Number, which: str) -> int | None:
    number = identifier(value, which)
    return None if number < 0 else number
