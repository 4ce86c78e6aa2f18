"""JAX's profile as Chrome trace JSON (``.trace.json.gz``), which it writes beside ``.xplane.pb``.

It is the same profile with less in it: at most a million events, no flows from launches to
programs, and no HLO modules, so that outside TPUs (whose events carry their HLO text) neither the
sizes nor the groups of collectives are known.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from simulator.support.errors import TraceError
from traces.core.files import is_xla_json
from traces.core.loaded import Loaded
from traces.xla.devices import number_ranks, recordings_of
from traces.xla.link import link_recordings
from traces.xla.planes import (
    USED_STATS,
    Plane,
    PlaneEvent,
    PlaneLine,
    XlaRecording,
    profile_files,
    unpacked,
)

_LONGEST = 1e14
"""Stamps (us) beyond three years are damage."""


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
    """Read a profile, or a directory with one per host, and make a workload of one step."""
    files, skipped = profile_files(path, ".trace.json", is_xla_json)
    recordings = [recording for file in files for recording in _read(file)]
    number_ranks(recordings)
    return link_recordings(path, recordings, step, skipped)


def _read(file: Path) -> list[XlaRecording]:
    data = unpacked(file)
    try:
        document = msgspec.json.decode(data, type=_TraceJson)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise TraceError(f"{file}: the JSON ({len(data)} bytes) is broken: {error}") from error
    if document.columns is not None and document.rows is None:
        raise TraceError(
            f"{file}: a table of HLO statistics, not a trace: it sums each op over all its runs, "
            "so that neither order nor overlap is known; give the .xplane.pb it was made of"
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
            processes[row.pid] = str(row.args.get("name", ""))
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
    if not (abs(row.ts) < _LONGEST and 0 <= row.dur < _LONGEST):
        raise TraceError(
            f"{file}: event {row.name[:60]!r}: ts {row.ts}, dur {row.dur}: the file is damaged"
        )
    stats = {name: value for name, value in row.args.items() if name in USED_STATS}
    text = str(row.args.get("long_name", ""))
    start = row.ts * 1e-6
    return PlaneEvent(row.name, start, start + row.dur * 1e-6, text if " = " in text else "", stats)
