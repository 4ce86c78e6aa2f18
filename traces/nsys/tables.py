"""The tables of a Nsight Systems export that a replay needs, as columns of one form.

Field by field as NVIDIA's "SQLite Export Schema Reference" has them; columns that came or went
between versions are optional. A process is ``globalPid`` without its last 24 bits, a thread
``globalTid``. Times are nanoseconds of the file's own clock.
"""

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from simulator.support.errors import TraceError
from traces.core.columns import ValueIndex
from traces.core.events import Longs, known_host
from traces.core.gpu_exports.database import Database
from traces.core.gpu_exports.export import Export, IntColumns, Ranges

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_DEVICE = ("start", "end", "deviceId", "streamId")
_ALSO = ("correlationId", "globalPid")
_COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD"}
_COPIES |= {9: "HtoH", 10: "PtoP"}
"""``CUpti_ActivityMemcpyKind``; named as the PyTorch profiler names its copies."""
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed", "Unknown")
"""Kinds of memory as Nsight Systems counts them, where ``ENUM_CUDA_MEM_KIND`` is missing."""
_VERSION = re.compile(r"(_ptsz|_ptds)?_v\d{4,}$")
"""What CUPTI appends to the name of a function: the version of CUDA that brought it."""
_EMITTED = re.compile(r", (seq|op_id|sizes|input_op_ids) = .*$", re.DOTALL)
"""What ``torch.autograd.profiler.emit_nvtx`` appends to the name of an operator."""
_PUSH_POP, _START_END = (59, 70), (60, 71)
GRAPH_ROWS = "CUDA graphs recorded as one op each"
_USED = {f"{_PREFIX}{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")}
_USED |= {f"{_PREFIX}SYNCHRONIZATION", f"{_PREFIX}CUDA_EVENT", "NVTX_EVENTS", "StringIds"}
_SAMPLES, _SAMPLED = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_USED |= {_SAMPLES}
_LINK = "NVLink"
"""NVLink's counters begin so: ``NVLink TX Responses User Data [Throughput %]``."""
_GRID = ("gridX", "gridY", "gridZ")
_ABOUT = re.compile(r"(ENUM_|META_|TARGET_|ANALYSIS_|NVTX_PAYLOAD|NVTX_SCOPES|EXPORT_|sqlite_)")
_LISTS = ("PROCESSES", "ThreadNames", "ProcessStreams", "MODULES", "UnwindMethodType")


def read_export(database: Database) -> Export:
    """Read all of a file."""
    names: ValueIndex[str] = ValueIndex()
    unused: Counter[str] = Counter()
    runtime = _runtime(database, names)
    device = _device(database, names, runtime, unused)
    if not len(device):
        has = ", ".join(name for name in database.tables if name not in _LISTS)[:200] or "no table"
        raise TraceError(
            f"{database.path}: no kernel, copy or memset was recorded (it has {has}); "
            "record with 'nsys profile --trace=cuda,nvtx' and export with --type sqlite"
        )
    ranges = _ranges(database, names, unused)
    for table in sorted(set(database.tables) - _USED - set(_LISTS)):
        if not _ABOUT.match(table) and database.count(table):
            unused[table] += database.count(table)
    named = {str(name) for (name,) in database.values("TARGET_INFO_GPU", ("name",)) if name}
    # The machine's name, "" where the export does not have it.
    environment = database.values("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
    # When the file's clock showed 0: the session's start in UTC less the clock then.
    epochs = database.numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
    begun = database.numbers("ANALYSIS_DETAILS", (), ("startTime",))["startTime"]
    return Export(
        utc=int(epochs[0]) - max(0, int(begun[0]) if len(begun) else 0) if len(epochs) else 0,
        names=tuple(names.index),
        device=device,
        runtime=runtime,
        syncs=database.numbers(
            f"{_PREFIX}SYNCHRONIZATION",
            ("start", "end", "deviceId", "streamId"),
            ("syncType", "correlationId", "globalPid", "eventId", "eventSyncId"),
        ),
        events=database.numbers(
            f"{_PREFIX}CUDA_EVENT",
            ("deviceId", "streamId", "eventId"),
            ("correlationId", "globalPid", "eventSyncId"),
        ),
        ranges=ranges,
        accelerator=", ".join(sorted(named)),
        host_name=next(
            (known_host(str(value)) for name, value in environment if name == "Hostname"), ""
        ),
        processors=_processors(database),
        links=_links(database),
        unused=unused,
    )


def _device(
    database: Database, names: ValueIndex[str], runtime: IntColumns, unused: Counter[str]
) -> IntColumns:
    kernel_name = next(
        (
            column
            for column in ("demangledName", "shortName", "mangledName")
            if database.has(f"{_PREFIX}KERNEL", column)
        ),
        "demangledName",
    )
    kernels = database.numbers(f"{_PREFIX}KERNEL", (*_DEVICE, kernel_name), (*_ALSO, *_GRID))
    kinds = ("srcKind", "dstKind")
    copies = database.numbers(f"{_PREFIX}MEMCPY", (*_DEVICE, "copyKind"), (*_ALSO, *kinds, "bytes"))
    memsets = database.numbers(f"{_PREFIX}MEMSET", _DEVICE, _ALSO)
    graphs = database.numbers(f"{_PREFIX}GRAPH_TRACE", _DEVICE, (*_ALSO, "graphId"))
    if len(graphs):
        unused[GRAPH_ROWS] += len(graphs)
    named = (
        (kernels, _strings(database, names, kernels[kernel_name]), 0),
        (copies, _copy_names(database, names, copies), 1),
        (memsets, np.full(len(memsets), names("Memset (Device)") if len(memsets) else 0), 1),
        (graphs, _labels(names, graphs["graphId"], "CUDA graph {}"), 0),
    )
    columns = {
        column: np.concatenate([table[column] for table, _, _ in named])
        for column in (*_DEVICE, *_ALSO)
    }
    columns["name"] = np.concatenate([name for _, name, _ in named])
    columns["copy"] = np.concatenate([np.full(len(table), code) for table, _, code in named])
    columns["bytes"] = _where(copies, copies["bytes"], named)
    # A kernel's thread blocks; -1 where its grid is not recorded
    sides = np.stack([kernels[side] for side in _GRID])
    columns["blocks"] = _where(
        kernels, np.where((sides > 0).all(axis=0), sides.prod(axis=0), -1), named
    )
    columns["process"] = _processes(database, columns.pop("globalPid"), runtime)
    events = IntColumns(columns)
    _check_times(database, events, "a kernel, copy or memset")
    return events


Named = tuple[IntColumns, Longs, int]
"""A table of device events, the index of each one's name, and whether they are copies."""


def _where(columns: IntColumns, values: Longs, tables: Iterable[Named]) -> Longs:
    """Lay a table's column beside the others', which do not have it: -1."""
    parts = [values if table is columns else np.full(len(table), -1) for table, _, _ in tables]
    return np.concatenate(parts).astype(np.int64)


def _processors(database: Database) -> dict[int, int]:
    """Read how many multiprocessors each device has."""
    for table, device, count in (
        ("TARGET_INFO_CUDA_DEVICE", "cudaId", "numMultiprocessors"),
        ("TARGET_INFO_CUDA_DEVICE", "gpuId", "numMultiprocessors"),
        ("TARGET_INFO_GPU", "id", "smCount"),
    ):
        if database.has(table, device, count):
            rows = database.numbers(table, (device, count))
            pairs = zip(rows[device].tolist(), rows[count].tolist(), strict=True)
            return {number: many for number, many in pairs if many > 0}
    return {}


def _links(database: Database) -> dict[int, list[tuple[str, Longs, Longs]]]:
    """Read the samples of NVLink's counters by device.

    The last 8 bits of ``typeId`` are the device's number (NVIDIA's "SQLite Export Schema
    Reference", ``GPU_METRICS``).
    """
    named = database.values(_SAMPLED, ("metricId", "metricName"))
    names = {number: str(name) for number, name in named if str(name).startswith(_LINK)}
    if not names:
        return {}
    rows = database.numbers(_SAMPLES, ("timestamp", "typeId", "metricId", "value"))
    rows = rows.only(np.isin(rows["metricId"], list(names)) & (rows["value"] >= 0))
    links: dict[int, list[tuple[str, Longs, Longs]]] = {}
    both = np.stack([rows["typeId"] & 0xFF, rows["metricId"]], axis=1)
    for device, number in np.unique(both, axis=0).tolist():
        link_rows = rows.only((both == (device, number)).all(axis=1))
        links.setdefault(device, []).append(
            (names[number], link_rows["timestamp"], link_rows["value"])
        )
    return links


def _processes(database: Database, recorded: Longs, runtime: IntColumns) -> Longs:
    """Return the processes of device events; where the export does not, it must be of one."""
    if not len(recorded) or recorded.min() >= 0:
        return recorded >> 24
    only = np.unique(runtime["thread"] >> 24)
    if len(only) > 1:
        raise TraceError(
            f"{database.path}: kernels without globalPid, and {len(only)} processes: "
            "the export does not say which process ran which kernel; "
            "export with a newer Nsight Systems"
        )
    return np.where(recorded < 0, only[0] if len(only) else 0, recorded >> 24)


def _runtime(database: Database, names: ValueIndex[str]) -> IntColumns:
    table = f"{_PREFIX}RUNTIME"
    read = database.numbers(table, ("start", "end", "globalTid", "nameId"), ("correlationId",))
    read = read.only(read["end"] >= 0)  # a call that never returned has no end
    calls = IntColumns(
        {
            "start": read["start"],
            "end": read["end"],
            "thread": read["globalTid"],
            "correlationId": read["correlationId"],
            "name": _strings(database, names, read["nameId"]),
        }
    )
    _check_times(database, calls, "a call of the CUDA library")
    return calls


def _ranges(database: Database, names: ValueIndex[str], unused: Counter[str]) -> Ranges:
    table = "NVTX_EVENTS"
    read = database.numbers(
        table, ("start",), ("end", "eventType", "globalTid", "textId", "domainId")
    )
    kind = read["eventType"]
    # A range has its text itself, or the id of one in StringIds; -1 until either is found.
    texts = np.full(len(read), -1, dtype=np.int64)
    emitted = np.zeros(len(read), dtype=np.bool_)
    for row, (text,) in enumerate(database.values(table, ("text",))):
        if text is not None:
            texts[row], emitted[row] = _named(names, str(text))
    rest = (texts < 0) & (read["textId"] >= 0)
    ids, which = np.unique(read["textId"][rest], return_inverse=True)
    strings = database.strings(ids)
    pairs = [_named(names, strings[number]) for number in ids.tolist()]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    texts[rest], emitted[rest] = both[which, 0], both[which, 1]
    nested = np.isin(kind, _PUSH_POP)
    keep = (texts >= 0) & (read["end"] >= read["start"]) & (nested | np.isin(kind, _START_END))
    if not keep.all():
        unused["NVTX marks, and ranges without an end"] += int((~keep).sum())
    ranges = Ranges(
        row=np.arange(len(read)),
        start=read["start"],
        end=read["end"],
        thread=read["globalTid"],
        name=texts,
        nested=nested,
        operator=emitted,
    )
    return ranges.only(keep)


def _named(names: ValueIndex[str], text: str) -> tuple[int, bool]:
    """Return the name without what ``emit_nvtx`` appends, and whether it did so."""
    plain = _EMITTED.sub("", text)
    return names(plain), len(plain) < len(text)


def _strings(database: Database, names: ValueIndex[str], ids: Longs) -> Longs:
    """Map ids of strings to indices of names."""
    unique, which = np.unique(ids, return_inverse=True)
    strings = database.strings(unique)
    index = [names(_VERSION.sub("", strings[number])) for number in unique.tolist()]
    return np.array(index, dtype=np.int64)[which] if index else np.empty(0, dtype=np.int64)


def _copy_names(database: Database, names: ValueIndex[str], copies: IntColumns) -> Longs:
    labels = database.values("ENUM_CUDA_MEM_KIND", ("id", "label"))
    memory = dict(enumerate(_MEMORY)) | {number: str(label) for number, label in labels}
    kinds = np.stack([copies[column] for column in ("copyKind", "srcKind", "dstKind")], axis=1)
    unique, which = np.unique(kinds, axis=0, return_inverse=True)
    index = [names(_copy_name(memory, *kind)) for kind in unique.tolist()]
    return np.array(index, dtype=np.int64)[which.ravel()] if index else np.empty(0, dtype=np.int64)


def _copy_name(memory: dict[int, str], kind: int, source: int, target: int) -> str:
    name = f"Memcpy {_COPIES.get(kind, f'kind {kind}')}"
    if source not in memory or target not in memory:
        return name
    return f"{name} ({memory[source]} -> {memory[target]})"


def _labels(names: ValueIndex[str], numbers: Longs, form: str) -> Longs:
    index = [names(form.format(number)) for number in numbers.tolist()]
    return np.array(index, dtype=np.int64)


def _check_times(database: Database, events: IntColumns, what: str) -> None:
    wrong = np.flatnonzero((events["start"] < 0) | (events["end"] < events["start"]))
    if len(wrong):
        row = int(wrong[0])
        raise TraceError(
            f"{database.path}: {what} begins at {events['start'][row]} ns and ends at "
            f"{events['end'][row]} ns: export again"
        )
