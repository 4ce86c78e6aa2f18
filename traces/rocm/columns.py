"""What AMD profilers' records have in common on their way to the columns that all exports share.

Copies are named as in the PyTorch profiler, so that all rules for copies apply to them. Calls of
the host are those of HIP; lower-level HSA calls, and a profiler's own, are counted as unused.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from traces.core.gpu_exports.export import Export, IntColumns, Ranges, check_times

COPY_NAMES = {
    "HOST_TO_HOST": "Memcpy HtoH",
    "HOST_TO_DEVICE": "Memcpy HtoD",
    "DEVICE_TO_HOST": "Memcpy DtoH",
    "DEVICE_TO_DEVICE": "Memcpy DtoD",
}
MEMSET = "Memset (Device)"
_PROCESS_BITS, _THREADS = 24, 1 << 24
"""Exports have a thread in the lower 24 bits of a number, its process above them."""


def thread_number(process: Longs, thread: Longs) -> Longs:
    """Combine a process and a thread into one number, as exports do."""
    return (process << _PROCESS_BITS) | (thread % _THREADS)


def checked(path: Path, export: Export) -> Export:
    """Return an export that has device events, and no impossible times.

    Clocks count since the machine booted: they compare only among the ranks of one machine.
    """
    device, runtime, marks = export.device, export.runtime, export.ranges
    if not len(device):
        raise TraceError(
            f"{path}: no kernel and no copy was recorded: record with 'rocprofv3 --runtime-trace' "
            "or 'runTracer.sh'"
        )
    check_times(path, device["start"], device["end"], "a kernel or copy")
    check_times(path, runtime["start"], runtime["end"], "a call of HIP")
    check_times(path, marks.start, marks.end, "a mark")
    return export


def ranges_of(marks: IntColumns) -> Ranges:
    """Return marks, which are ``start``, ``end``, ``thread`` and ``name``, as nested ranges."""
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


def joined(tables: Sequence[dict[str, Longs]]) -> IntColumns:
    """Concatenate tables with the same columns."""
    names = tables[0]
    return IntColumns({name: np.concatenate([table[name] for table in tables]) for name in names})


def blocks_of(grid: Sequence[Longs], group: Sequence[Longs]) -> Longs:
    """Return a kernel's number of workgroups, from its grid in work items; -1 if not recorded."""
    sides = [
        np.where((work > 0) & (size > 0), -(-work // np.maximum(size, 1)), -1)
        for work, size in zip(grid, group, strict=True)
    ]
    counted = np.all([side > 0 for side in sides], axis=0)
    return np.asarray(np.where(counted, np.prod(sides, axis=0), -1), dtype=np.int64)
