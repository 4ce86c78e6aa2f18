"""A tool's export of processes on GPUs, in columns: device events, API calls, ranges, waits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError

_PROCESS_BITS, _THREADS = 24, 1 << 24
"""Exports have a thread in the lower 24 bits of a number, its process above them."""


class IntColumns:
    """Columns of equal length, by name."""

    def __init__(self, columns: dict[str, Longs]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> Longs:
        return self._columns[name]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def only(self, rows: NDArray[Any]) -> "IntColumns":
        """Select rows, by a mask or by their indices."""
        return IntColumns({name: column[rows] for name, column in self._columns.items()})


def joined(tables: Sequence[dict[str, Longs]]) -> IntColumns:
    """Concatenate tables with the same columns."""
    names = tables[0]
    return IntColumns({name: np.concatenate([table[name] for table in tables]) for name in names})


def thread_number(process: Longs, thread: Longs) -> Longs:
    """Combine a process and a thread into one number, as exports do."""
    return (process << _PROCESS_BITS) | (thread % _THREADS)


def looked_up(keys: Longs, values: Longs, wanted: Longs) -> Longs:
    """Return the value of each wanted key; -1 if there is none."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    row = order[at]
    return np.where(keys[row] == wanted, values[row], -1)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """NVTX ranges that have ended; columns ``(ranges,)``.

    ``row`` is the row of the table, ``name`` an index into ``Export.names``, ``nested`` says
    push/pop ranges, which belong to a thread, from start/end ranges, which may cross threads;
    ``operator`` those that ``emit_nvtx`` wrote.
    """

    row: Longs
    start: Longs
    end: Longs
    thread: Longs
    name: Longs
    nested: NDArray[np.bool_]
    operator: NDArray[np.bool_]

    def only(self, rows: NDArray[np.bool_]) -> "Ranges":
        """Take the ranges of a mask."""
        return Ranges(*(getattr(self, column.name)[rows] for column in fields(self)))


def ranges_of(marks: IntColumns) -> Ranges:
    """Return marks, with columns ``start``, ``end``, ``thread`` and ``name``, as nested ranges."""
    rows = len(marks)
    return Ranges(
        row=np.arange(rows),
        start=marks["start"],
        end=marks["end"],
        thread=marks["thread"],
        name=marks["name"],
        nested=np.ones(rows, dtype=np.bool_),
        operator=np.zeros(rows, dtype=np.bool_),
    )


def blocks_of(grid: Sequence[Longs], group: Sequence[Longs]) -> Longs:
    """Return a kernel's number of workgroups, from its grid in work items; -1 if not recorded."""
    sides = [
        np.where((work > 0) & (size > 0), -(-work // np.maximum(size, 1)), -1)
        for work, size in zip(grid, group, strict=True)
    ]
    counted = np.all([side > 0 for side in sides], axis=0)
    return np.asarray(np.where(counted, np.prod(sides, axis=0), -1), dtype=np.int64)


def no_waits() -> IntColumns:
    """Columns of waits and of recorded events for a tool that records neither."""
    names = ("start", "end", "deviceId", "streamId", "syncType", "correlationId", "globalPid")
    nothing = np.empty(0, dtype=np.int64)
    return IntColumns(dict.fromkeys((*names, "eventId", "eventSyncId"), nothing))


def check_times(path: Path, start: Longs, end: Longs, what: str) -> None:
    """Refuse events that begin before the clock does, or end before they begin."""
    wrong = np.flatnonzero((start < 0) | (end < start))
    if len(wrong):
        row = wrong[0]
        raise TraceError(
            f"{path}: {what} begins at {start[row]} ns and ends at {end[row]} ns: record or export"
            " it again"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """One file's events. ``utc`` is the zero of the file's clock (ns since 1970).

    ``device`` has kernels, copies, memsets and whole CUDA graphs with ``start``, ``end``,
    ``deviceId``, ``streamId``, ``correlationId``, ``process``, ``name``, ``copy``, the ``bytes`` of
    a copy and the ``blocks`` of a kernel (-1 if not recorded); ``runtime`` has ``start``, ``end``,
    ``thread``, ``correlationId``, ``name``. ``processors`` are the multiprocessors of each device,
    ``links`` the samples of NVLink's counters by device: a counter's name, times (ns) and percents.
    ``host_name`` is the machine's, "" if unknown.
    """

    names: tuple[str, ...]
    device: IntColumns
    runtime: IntColumns
    ranges: Ranges
    utc: int = 0
    syncs: IntColumns = field(default_factory=no_waits)
    events: IntColumns = field(default_factory=no_waits)
    accelerator: str = ""
    processors: dict[int, int] = field(default_factory=dict)
    links: dict[int, list[tuple[str, Longs, Longs]]] = field(default_factory=dict)
    unused: Counter[str] = field(default_factory=Counter)
    host_name: str = ""
