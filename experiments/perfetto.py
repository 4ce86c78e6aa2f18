"""A replay for ui.perfetto.dev: measured and simulated side by side, and the critical path.

Chrome's JSON trace format: complete events (``ph`` X) on processes and threads, times in
microseconds. Each rank is two processes, measured above simulated, with a thread per lane; the
critical path is a process of its own.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.replay import ReplayReport
from simulator.errors import OutputError
from simulator.workload import What, Workload

Event = dict[str, Any]
_US = 1e6
_PATH = 1
"""Process id of the critical path; rank r is measured in 10 + 2 r and simulated in 11 + 2 r."""


def write(report: ReplayReport, path: Path) -> None:
    """Write the file; gzipped if its name ends in ``.gz``.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    document = {"traceEvents": list(events(report)), "displayTimeUnit": "ms"}
    text = json.dumps(document, separators=(",", ":")).encode()
    try:
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def events(report: ReplayReport) -> Iterator[Event]:
    """All events: names of processes and threads, ops as measured and as simulated, the path."""
    workload = report.base.timeline.workload
    yield from _names(workload)
    yield from _path(report)
    for op in range(len(workload)):
        yield from _op(report, op)


def _names(workload: Workload) -> Iterator[Event]:
    yield _name("process_name", _PATH, 0, "critical path (simulated)")
    yield _name("process_sort_index", _PATH, 0, -1)
    for rank in workload.ranks:
        for process, word in ((_process(rank), "measured"), (_process(rank) + 1, "simulated")):
            yield _name("process_name", process, 0, f"rank {rank} {word}")
            yield _name("process_sort_index", process, 0, process)
            for lane in np.unique(workload.lane[workload.rank == rank]).tolist():
                yield _name("thread_name", process, lane + 1, workload.lanes[lane])


def _name(what: str, process: int, thread: int, value: object) -> Event:
    key = "sort_index" if what.endswith("sort_index") else "name"
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {key: value}}


def _process(rank: int) -> int:
    return 10 + 2 * rank


def _op(report: ReplayReport, op: int) -> Iterator[Event]:
    timeline, workload = report.base.timeline, report.base.timeline.workload
    args = _args(report, op)
    view = workload.op(op)
    common = {"ph": "X", "name": view.name, "cat": view.what.name.lower(), "args": args}
    thread = int(workload.lane[op]) + 1
    measured = float(workload.measured_start[op])
    end = float(workload.measured_end[op])
    if not np.isnan(measured):
        span = {"ts": measured * _US, "dur": max(0.0, end - measured) * _US}
        yield common | {"pid": _process(view.rank), "tid": thread} | span
    start = float(timeline.start[op])
    span = {"ts": start * _US, "dur": (float(timeline.end[op]) - start) * _US}
    yield common | {"pid": _process(view.rank) + 1, "tid": thread} | span


def _args(report: ReplayReport, op: int) -> dict[str, Any]:
    timeline, workload = report.base.timeline, report.base.timeline.workload
    args: dict[str, Any] = {"op": op, "released by": int(timeline.released_by[op])}
    call = int(workload.call[op])
    if workload.what[op] >= What.COLLECTIVE:
        args |= {
            "call": str(workload.call_view(call)),
            "waiting [us]": (float(timeline.call_start[call]) - float(timeline.start[op])) * _US,
            "transfer [us]": (float(timeline.call_end[call] - timeline.call_start[call])) * _US,
        }
    return args


def _path(report: ReplayReport) -> Iterator[Event]:
    workload = report.base.timeline.workload
    for number, what in enumerate(sorted({segment.what for segment in report.path})):
        yield _name("thread_name", _PATH, number + 1, what)
    threads = sorted({segment.what for segment in report.path})
    for segment in report.path:
        yield {
            "ph": "X",
            "name": f"rank {int(workload.rank[segment.op])}: {workload.op(segment.op).name}",
            "cat": segment.what,
            "pid": _PATH,
            "tid": threads.index(segment.what) + 1,
            "ts": segment.start * _US,
            "dur": segment.duration * _US,
            "args": {"op": segment.op},
        }
