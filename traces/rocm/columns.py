"""Conversion of AMD profilers' records to the columns that all exports share.

Copies are named as in the PyTorch profiler, so that all rules for copies apply to them. Calls of
the host are those of HIP; lower-level HSA calls, and a profiler's own, are counted as unused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from traces.core.columns import ValueIndex
from traces.core.gpu_exports.export import Export, IntColumns, Ranges

COPY_NAMES = {
    "HOST_TO_HOST": "Memcpy HtoH",
    "HOST_TO_DEVICE": "Memcpy HtoD",
    "DEVICE_TO_HOST": "Memcpy DtoH",
    "DEVICE_TO_DEVICE": "Memcpy DtoD",
}
MEMSET = "Memset (Device)"
NOTHING = np.empty(0, dtype=np.int64)
_NO_SYNCS = (
    *("start", "end", "deviceId", "streamId", "syncType"),
    *("correlationId", "globalPid", "eventId", "eventSyncId"),
)
_PROCESS_BITS, _THREADS = 24, 1 << 24
"""Exports have a thread in the lower 24 bits of a number, its process above them."""


def thread_number(process: Longs, thread: Longs) -> Longs:
    """Combine a process and a thread into one number, as exports do."""
    return (process << _PROCESS_BITS) | (thread % _THREADS)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Contents of a file: ``device``, ``runtime`` and ``marks`` by the columns of an export.

    Device events have ``start``, ``end`` (ns), ``deviceId``, ``streamId``, ``correlationId``,
    ``process``, ``name``, ``copy``, ``bytes`` and ``blocks``; calls and marks ``start``, ``end``,
    ``thread`` and ``name``, calls also ``correlationId``. ``processors`` is the number of compute
    units of each device.
    """

    device: Mapping[str, Longs]
    runtime: Mapping[str, Longs]
    marks: Mapping[str, Longs]
    names: ValueIndex[str]
    unused: Counter[str]
    accelerator: str = ""
    processors: Mapping[int, int] = field(default_factory=dict)


def exported(path: Path, recording: Recording) -> Export:
    """Return an export of a file's contents."""
    device, runtime, marks = recording.device, recording.runtime, recording.marks
    if not len(device["start"]):
        raise TraceError(
            f"{path}: no kernel and no copy was recorded: record with 'rocprofv3 --runtime-trace' "
            "or 'runTracer.sh'"
        )
    timed = ((device, "a kernel or copy"), (runtime, "a call of HIP"), (marks, "a mark"))
    for columns, what in timed:
        wrong = np.flatnonzero((columns["start"] < 0) | (columns["end"] < columns["start"]))
        if len(wrong):
            row = int(wrong[0])
            raise TraceError(
                f"{path}: {what} begins at {columns['start'][row]} ns and ends at "
                f"{columns['end'][row]} ns: record again"
            )
    none = IntColumns(dict.fromkeys(_NO_SYNCS, NOTHING))
    return Export(
        utc=0,  # clocks since boot: comparable only among the ranks of one machine
        names=tuple(recording.names.index),
        device=IntColumns(dict(device)),
        runtime=IntColumns(dict(runtime)),
        syncs=none,
        events=none,
        ranges=_ranges(recording.marks),
        accelerator=recording.accelerator,
        processors=dict(recording.processors),
        unused=recording.unused,
    )


def _ranges(marks: Mapping[str, Longs]) -> Ranges:
    rows = len(marks["start"])
    return Ranges(
        row=np.arange(rows),
        start=marks["start"],
        end=marks["end"],
        thread=marks["thread"],
        name=marks["name"],
        nested=np.ones(rows, dtype=np.bool_),
        operator=np.zeros(rows, dtype=np.bool_),
    )


def joined(tables: Sequence[Mapping[str, Longs]]) -> dict[str, Longs]:
    """Concatenate tables with the same columns."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def blocks_of(grid: Sequence[Longs], group: Sequence[Longs]) -> Longs:
    """Return a kernel's number of workgroups, from its grid in work items; -1 if not recorded."""
    sides = [
        np.where((work > 0) & (size > 0), -(-work // np.maximum(size, 1)), -1)
        for work, size in zip(grid, group, strict=True)
    ]
    counted = np.all([side > 0 for side in sides], axis=0)
    return np.asarray(np.where(counted, np.prod(sides, axis=0), -1), dtype=np.int64)
