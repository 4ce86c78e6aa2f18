"""XLA's own profile, as JAX writes it: one file per host, with all its devices.

``.xplane.pb`` is ``XSpace`` of ``tsl/profiler/protobuf/xplane.proto``; TensorFlow is not required.
Chrome trace JSON (``.trace.json.gz``) beside it is the same profile with fewer data: at most a
million events, no flows from launches to programs, and no HLO modules, so that, except on TPUs
(whose events carry their HLO text), neither the sizes nor the groups of collectives are known.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from simulator.support.errors import TraceError
from traces.core.files import is_xla_json, is_xplane, message_class
from traces.core.loaded import Loaded
from traces.xla.devices import recordings_of
from traces.xla.hlo import HloModule, parse_module
from traces.xla.link import link_recordings
from traces.xla.planes import (
    USED_STATS,
    Plane,
    PlaneEvent,
    PlaneLine,
    Stats,
    XlaRecording,
    profile_files,
    unpacked,
)

_MESSAGES = {
    "XSpace": [(1, "planes", "XPlane*")],
    "XPlane": [
        (2, "name", "bytes"),
        (3, "lines", "XLine*"),
        (4, "events", "EventEntry*"),
        (5, "stat_names", "StatEntry*"),
        (6, "stats", "XStat*"),
    ],
    "EventEntry": [(1, "key", "int64"), (2, "value", "XEventMetadata")],
    "StatEntry": [(1, "key", "int64"), (2, "value", "XStatMetadata")],
    "XLine": [
        (2, "name", "bytes"),
        (3, "timestamp_ns", "int64"),
        (4, "events", "XEvent*"),
        (11, "display_name", "bytes"),
    ],
    "XEvent": [
        (1, "metadata", "int64"),
        (2, "offset_ps", "int64"),
        (3, "duration_ps", "int64"),
        (4, "stats", "XStat*"),
    ],
    "XStat": [
        (1, "metadata", "int64"),
        (2, "double", "double"),
        (3, "uint64", "uint64"),
        (4, "int64", "int64"),
        (5, "text", "bytes"),
        (6, "data", "bytes"),
        (7, "ref", "uint64"),
    ],
    "XEventMetadata": [(2, "name", "bytes"), (4, "display_name", "bytes"), (5, "stats", "XStat*")],
    "XStatMetadata": [(2, "name", "bytes")],
}
_LONGEST = 1e8
"""Profiles of more than three years (s) are damaged."""
_PROTO = "Hlo Proto"


def load_xplane(path: Path, step: str) -> Loaded:
    """Read a profile, or a directory with one per host, and link one step to a workload."""
    return link_recordings(path, step, profile_files(path, ".xplane.pb", is_xplane), _read)


def _read(file: Path) -> list[XlaRecording]:
    data = unpacked(file)
    try:
        space = message_class(_MESSAGES, "XSpace").FromString(data)
    except DecodeError as error:
        raise TraceError(f"{file}: not a whole XSpace message: {error}: copy it again") from error
    planes, modules, epoch = [], dict[str, HloModule](), 0
    for message in space.planes:
        reader = _PlaneReader(message, file)
        plane = Plane(_text(message.name), reader.lines(), reader.stats(message.stats))
        if plane.name == "/host:metadata":
            modules |= reader.modules()
        started = plane.stats.get("profile_start_time")
        epoch = int(started) if isinstance(started, int) else epoch
        planes.append(plane)
    return recordings_of(file, planes, modules, epoch)


class _PlaneReader:
    """One plane and its tables of names."""

    def __init__(self, plane: Any, file: Path) -> None:
        self._plane, self._file = plane, file
        self._stat_names = {entry.key: _text(entry.value.name) for entry in plane.stat_names}
        self._metadata = {entry.key: entry.value for entry in plane.events}
        self._known: dict[int, tuple[str, str, Stats]] = {}

    def lines(self) -> list[PlaneLine]:
        return [
            PlaneLine(_text(line.display_name or line.name), list(self._events(line)))
            for line in self._plane.lines
        ]

    def stats(self, stats: Iterable[Any]) -> dict[str, Any]:
        used = {}
        for stat in stats:
            name = self._stat_names.get(stat.metadata, "")
            if name in USED_STATS:
                used[name] = self._value(stat)
        return used

    def modules(self) -> dict[str, HloModule]:
        """Read the programs, by name and number: ``jit_step(20)``."""
        by_name: dict[str, HloModule] = {}
        for metadata in self._metadata.values():
            for stat in metadata.stats:
                if self._stat_names.get(stat.metadata) == _PROTO and stat.data:
                    name = _text(metadata.name)
                    module = parse_module(stat.data, f"{self._file}: {_PROTO} of {name}")
                    by_name[name] = module
                    by_name.setdefault(module.name, module)
                    by_name["(" + name.rpartition("(")[2]] = module
        return by_name

    def _events(self, line: Any) -> Iterable[PlaneEvent]:
        base = line.timestamp_ns * 1e-9
        for event in line.events:
            name, text, shared = self._described(event.metadata)
            start = base + event.offset_ps * 1e-12
            end = start + event.duration_ps * 1e-12
            if event.duration_ps < 0 or not -_LONGEST < start <= end < _LONGEST:
                raise TraceError(
                    f"{self._file}: event {name[:60]!r} of {_text(line.name)!r}: offset_ps "
                    f"{event.offset_ps}, duration_ps {event.duration_ps}: the file is damaged"
                )
            stats = self.stats(event.stats)
            yield PlaneEvent(name, start, end, text, {**shared, **stats} if stats else shared)

    def _described(self, number: int) -> tuple[str, str, Stats]:
        """Return name, HLO text and statistics common to all events of one kind."""
        if number not in self._known:
            metadata = self._metadata.get(number)
            if metadata is None:
                raise TraceError(
                    f"{self._file}: an event of {_text(self._plane.name)!r} names metadata "
                    f"{number}, which does not exist in the plane: the file is damaged"
                )
            name, shown = _text(metadata.name), _text(metadata.display_name)
            text = name if " = " in name else ""
            name = shown if text and shown else name
            self._known[number] = (name, text, self.stats(metadata.stats))
        return self._known[number]

    def _value(self, stat: Any) -> Any:
        for field, value in stat.ListFields():
            if field.name == "ref":
                return self._stat_names.get(value, "")
            if field.name != "metadata":
                return _text(value) if field.name == "text" else value
        return 0


def _text(data: bytes) -> str:
    """Decode a name, which may have any bytes: the profiler does not check them."""
    return data.decode("utf-8", "replace")


_LONGEST_US = 1e14
"""Stamps (us) beyond three years are damaged."""


class _JsonEvent(msgspec.Struct):
    """An event, or the name of a process or thread (``ph`` is ``M``)."""

    ph: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    name: str = ""
    args: dict[str, Any] = {}


class _TraceJson(msgspec.Struct):
    rows: list[_JsonEvent] | None = msgspec.field(default=None, name="traceEvents")
    columns: list[Any] | None = msgspec.field(default=None, name="cols")


def load_trace_json(path: Path, step: str) -> Loaded:
    """Read a profile, or a directory with one per host, and link one step to a workload."""
    return link_recordings(path, step, profile_files(path, ".trace.json", is_xla_json), _read_json)


def _read_json(file: Path) -> list[XlaRecording]:
    data = unpacked(file)
    try:
        document = msgspec.json.decode(data, type=_TraceJson)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise TraceError(f"{file}: the JSON ({len(data)} bytes) is broken: {error}") from error
    if document.columns is not None and document.rows is None:
        raise TraceError(
            f"{file}: a table of HLO statistics, not a trace: it sums each op over all its runs, "
            "so that neither order nor overlap is known; give the .xplane.pb it was made from"
        )
    results = recordings_of(file, _planes(document.rows or [], file), {}, 0)
    devices = [device for result in results for device in result.devices]
    if any(op.kind and op.hlo is None for device in devices for op in device.ops):
        results[0].notes.append(
            f"{file.name}: the JSON does not record what collectives move; the .xplane.pb that "
            "JAX writes beside it does"
        )
    return results


def _planes(rows: Sequence[_JsonEvent], file: Path) -> list[Plane]:
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    events: dict[int, dict[int, list[PlaneEvent]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.ph == "M" and row.name == "process_name":
            name = str(row.args.get("name", ""))
            if processes.setdefault(row.pid, name) != name:
                raise TraceError(f"{file}: pid {row.pid} is both {processes[row.pid]} and {name}")
        elif row.ph == "M" and row.name == "thread_name":
            threads[row.pid, row.tid] = str(row.args.get("name", ""))
        elif row.ph == "X":
            events[row.pid][row.tid].append(_event(row, file))
    return [
        Plane(
            processes.get(pid, f"process {pid}"),
            [
                PlaneLine(threads.get((pid, tid), f"{tid}"), line_events)
                for tid, line_events in lines.items()
            ],
        )
        for pid, lines in events.items()
    ]


def _event(row: _JsonEvent, file: Path) -> PlaneEvent:
    if not (abs(row.ts) < _LONGEST_US and 0 <= row.dur < _LONGEST_US):
        raise TraceError(
            f"{file}: event {row.name[:60]!r}: ts {row.ts}, dur {row.dur}: the file is damaged"
        )
    stats = {name: value for name, value in row.args.items() if name in USED_STATS}
    text = str(row.args.get("long_name", ""))
    start = row.ts * 1e-6
    return PlaneEvent(row.name, start, start + row.dur * 1e-6, text if " = " in text else "", stats)
