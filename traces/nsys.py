"""The reader of Nsight Systems exports, packed or not: a SQLite file, or Parquet files of tables.

``nsys export --type sqlite`` writes one, ``--type parquetdir`` the other, a directory
(``report_pqtdir``). One may hold several GPUs and processes, a directory several of them: each
process on a GPU is a rank (:mod:`traces.core.gpu_exports`). After that all is shared with the
PyTorch profiler's files: windows, launches, streams, waits and matching
(:func:`traces.profiler.link.link_job`).

The tables that a replay needs become columns, field by field as documented in NVIDIA's "SQLite
Export Schema Reference"; columns that differ between versions are optional. A process is
``globalPid`` without its last 24 bits, a thread ``globalTid``. Times are nanoseconds of the file's
own clock.

A kernel's name gives only the kind of an NCCL call. NCCL marks each call (``ncclAllReduce``) and,
from 2.15 on, attaches a payload: the communicator's id, the bytes of one message, root or peer;
``ncclCommInitRank`` has the communicator's size and this rank's position in it (NVIDIA/nccl,
``src/include/nvtx_payload_schemas.h``). An export has the payloads if it was made with
``--include-blobs=true``: 32 bytes of header, with the schema's number at byte 8 and the payload's
length at byte 16, then the fields at the offsets in table ``NVTX_PAYLOAD_SCHEMA_ENTRIES``. Calls
between ``ncclGroupStart`` and ``ncclGroupEnd`` are launched by the latter, together.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from simulator.support.input_files import head_of
from traces.core.columns import ValueIndex
from traces.core.events import Job, RankTrace, RecordedOperator, known_host
from traces.core.files import files_in, is_parquet, is_sqlite
from traces.core.gpu_exports.database import (
    Database,
    beginning_of,
    is_kernel_table,
    opened,
    tables_in,
)
from traces.core.gpu_exports.export import Export, IntColumns, Ranges, check_times, looked_up
from traces.core.gpu_exports.job import ExportReader, read_exported_job
from traces.core.gpu_exports.processes import ExportFile, NcclCall, Payload


def read_exports(path: Path) -> Job:
    """Read the ranks of an export, or of the exports in a directory, not of sub-directories."""
    return read_exported_job(path, _READER)


def exports_in(path: Path) -> list[Path]:
    """Return a path that is an export, or the exports in a folder, not of sub-folders."""
    if _is_export(path):
        return [path]
    return [file for file in files_in(path) if _is_export(file)] if path.is_dir() else []


def _is_export(path: Path) -> bool:
    return _is_directory(path) if path.is_dir() else is_sqlite(beginning_of(path))


def launched_in_ranges(path: Path, wanted: re.Pattern[str]) -> list[list[RecordedOperator]]:
    """Read the push/pop ranges of some names, with the kernels launched in them, by thread.

    Of each kernel only what no earlier one of its process covers counts, since dependent launches
    wait on the device. A CUDA graph that was recorded as one op counts as one kernel.

    Raises
    ------
    TraceError
        If the file cannot be read, or has no kernels.
    """
    with opened(path) as database:
        export = read_export(database)
    named = [i for i, name in enumerate(export.names) if wanted.fullmatch(name)]
    ranges = export.ranges.only(np.isin(export.ranges.name, named) & export.ranges.nested)
    return [
        _operators(export, ranges.only(ranges.thread == thread))
        for thread in np.unique(ranges.thread).tolist()
    ]


def _operators(export: Export, ranges: Ranges) -> list[RecordedOperator]:
    """Return the ranges of one thread, which do not overlap, as operators."""
    thread, order = int(ranges.thread[0]), np.argsort(ranges.start, kind="stable")
    begin, end = ranges.start[order], ranges.end[order]
    device = export.device
    kernels = device.only((device["process"] == thread >> 24) & (device["copy"] == 0))
    kernels = kernels.only(np.argsort(kernels["start"], kind="stable"))
    over = np.maximum.accumulate(kernels["end"])
    covered = np.concatenate([kernels["start"][:1], over[:-1]])
    seconds = 1e-9 * np.maximum(0, kernels["end"] - np.maximum(kernels["start"], covered))
    calls = export.runtime.only(export.runtime["thread"] == thread)
    launched = looked_up(calls["correlationId"], calls["start"], kernels["correlationId"])
    row = np.searchsorted(begin, launched, side="right") - 1
    row[(row < 0) | (launched > end[np.maximum(row, 0)])] = -1
    launches: list[list[tuple[str, float]]] = [[] for _ in begin]
    for at in np.flatnonzero(row >= 0).tolist():
        launches[row[at]].append((export.names[kernels["name"][at]], float(seconds[at])))
    rows = zip(ranges.name[order].tolist(), begin.tolist(), launches, strict=True)
    return [
        RecordedOperator(export.names[name], (), (), (), tuple(of_range), 1e-9 * start)
        for name, start, of_range in rows
    ]


def _is_directory(path: Path) -> bool:
    # A damaged table is recognised by its name: the export is refused, not skipped.
    tables = tables_in(path)
    return any(table.stem.startswith(_PREFIX) or is_kernel_table(table) for table in tables)


def _file(path: Path) -> ExportFile:
    if path.is_file() and is_parquet(head_of(path)):
        raise TraceError(f"{path}: one table of an export; name its directory, {path.parent}")
    with opened(path) as database:
        export = read_export(database)
        return ExportFile(path, export, nccl_calls(database, export))


def _missing_notes(files: Sequence[ExportFile], traces: Sequence[RankTrace]) -> Iterator[str]:
    """Describe what these exports lack, and how to record it."""
    for file in files:
        if not len(file.export.runtime):
            yield (
                f"{file.path.name}: launches were not recorded: kernels keep their order and "
                "gaps, and the host is unknown; record with --trace=cuda"
            )
        graphs = file.export.unused.get(GRAPH_ROWS, 0)
        if graphs:
            yield (
                f"{file.path.name}: {graphs} {GRAPH_ROWS}, collectives in them unseen; "
                "record with --cuda-graph-trace=node"
            )
    sized = any(record.dtype for trace in traces for record in trace.comms)
    if any(trace.backend for trace in traces) and not sized:
        yield (
            "no message sizes: record with --trace=cuda,nvtx and export with "
            "--include-blobs=true, which keeps NCCL's records of its calls"
        )


_READER = ExportReader("Nsight Systems export", is_sqlite, _file, _missing_notes, _is_directory)


_CALL = re.compile(r"p?nccl[A-Z]\w*$")
_HEADER = struct.Struct("<4I2Q")
_FORMATS = {5: "<i", 6: "<I", 7: "<q", 8: "<Q", 9: "<q", 10: "<Q", 15: "<i", 16: "<I"}
_FORMATS |= {17: "<q", 18: "<Q", 22: "<Q", 23: "<Q"}
"""Types of fields: ``NVTX_PAYLOAD_ENTRY_TYPE_*`` of nvToolsExtPayload.h, those of whole numbers."""
Schema = list[tuple[str, str, int]]


def nccl_calls(database: Database, export: Export) -> list[NcclCall]:
    """Collect the calls of NCCL in order of thread and start, with their payloads."""
    matching = [i for i, name in enumerate(export.names) if _CALL.match(name)]
    ranges = export.ranges
    rows = np.flatnonzero(np.isin(ranges.name, matching) & ranges.nested)
    rows = rows[np.lexsort((-ranges.end[rows], ranges.start[rows], ranges.thread[rows]))]
    payloads = _payloads(database, set(ranges.row[rows].tolist()), export.unused)
    return [
        NcclCall(
            range=row,
            thread=int(ranges.thread[row]),
            start=int(ranges.start[row]),
            end=int(ranges.end[row]),
            word=export.names[ranges.name[row]].removeprefix("p"),
            payload=payloads.get(int(ranges.row[row]), {}),
        )
        for row in rows.tolist()
    ]


def _payloads(database: Database, wanted: set[int], unused: Counter[str]) -> dict[int, Payload]:
    # Read the fields of each schema: name, format, offset; a missing offset is 0.
    columns = ("schemaId", "idx", "type", "name", "offset")
    rows = set(database.values("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns))
    fields: dict[int, dict[int, tuple[str, str, int]]] = {}
    for schema, index, kind, name, offset in sorted(rows, key=str):
        if kind in _FORMATS and isinstance(offset, int | None) and 0 <= (offset or 0) < 1 << 16:
            entry = str(name), _FORMATS[kind], offset or 0
            fields.setdefault(schema, {}).setdefault(index, entry)
    schemas = {schema: list(entries.values()) for schema, entries in fields.items()}
    payloads: dict[int, Payload] = {}
    for row, (data,) in enumerate(database.values("NVTX_EVENTS", ("binaryData",))):
        if data is None or row not in wanted:
            continue
        payload = _payload(data, schemas)
        if payload is None:
            unused["NVTX payloads of NCCL (not understood)"] += 1
        else:
            payloads[row] = payload
    return payloads


def _payload(data: object, schemas: dict[int, Schema]) -> Payload | None:
    """Read a payload; None if its form is unknown."""
    if not isinstance(data, bytes | str):
        return None
    try:
        raw = bytes.fromhex(data) if isinstance(data, str) else data
        _, _, schema, _, length, total = _HEADER.unpack_from(raw)
        body = raw[_HEADER.size :]
        if schema not in schemas or total != len(raw) or length != len(body):
            return None
        return {
            name: int(struct.unpack_from(form, body, offset)[0])
            for name, form, offset in schemas[schema]
        }
    except (ValueError, struct.error):
        return None


_PREFIX = "CUPTI_ACTIVITY_KIND_"
_DEVICE = ("start", "end", "deviceId", "streamId")
_ALSO = ("correlationId", "globalPid")
_COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD"}
_COPIES |= {9: "HtoH", 10: "PtoP"}
"""``CUpti_ActivityMemcpyKind``; named as the PyTorch profiler names its copies."""
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed", "Unknown")
"""Kinds of memory as Nsight Systems counts them, if ``ENUM_CUDA_MEM_KIND`` is missing."""
_VERSION_SUFFIX = re.compile(r"(_ptsz|_ptds)?_v\d{4,}$")
"""Suffix that CUPTI appends to the name of a function: the version of CUDA that added it."""
_EMIT_SUFFIX = re.compile(r", (seq|op_id|sizes|input_op_ids) = .*$", re.DOTALL)
"""Suffix that ``torch.autograd.profiler.emit_nvtx`` appends to the name of an operator."""
_PUSH_POP, _START_END = (59, 70), (60, 71)
GRAPH_ROWS = "CUDA graphs recorded as one op each"
_USED = {f"{_PREFIX}{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")}
_USED |= {f"{_PREFIX}SYNCHRONIZATION", f"{_PREFIX}CUDA_EVENT", "NVTX_EVENTS", "StringIds"}
_SAMPLES, _SAMPLED = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_USED |= {_SAMPLES}
_NVLINK_PREFIX = "NVLink"
"""Beginning of NVLink's counters: ``NVLink TX Responses User Data [Throughput %]``."""
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
        has = ", ".join(name for name in database.tables if name not in _LISTS) or "no table"
        raise TraceError(
            f"{database.path}: no kernel, copy or memset was recorded (it has {has:.200}); "
            "record with 'nsys profile --trace=cuda,nvtx' and export anew"
        )
    ranges = _ranges(database, names, unused)
    for table in sorted(set(database.tables) - _USED - set(_LISTS)):
        if not _ABOUT.match(table) and database.count(table):
            unused[table] += database.count(table)
    named = {str(name) for (name,) in database.values("TARGET_INFO_GPU", ("name",)) if name}
    # The machine's name, "" if the export lacks it.
    environment = database.values("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
    # UTC time of the clock's zero: the session's start in UTC minus the clock then.
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
    index = [names(f"CUDA graph {number}") for number in graphs["graphId"].tolist()]
    named = (
        (kernels, _strings(database, names, kernels[kernel_name]), 0),
        (copies, _copy_names(database, names, copies), 1),
        (memsets, np.full(len(memsets), names("Memset (Device)") if len(memsets) else 0), 1),
        (graphs, np.array(index, dtype=np.int64), 0),
    )
    columns = {
        column: np.concatenate([table[column] for table, _, _ in named])
        for column in (*_DEVICE, *_ALSO)
    }
    columns["name"] = np.concatenate([name for _, name, _ in named])
    columns["copy"] = np.concatenate([np.full(len(table), code) for table, _, code in named])
    columns["bytes"] = _aligned(copies, copies["bytes"], named)
    # A kernel's thread blocks; -1 if its grid is not recorded
    sides = np.stack([kernels[side] for side in _GRID])
    columns["blocks"] = _aligned(
        kernels, np.where((sides > 0).all(axis=0), sides.prod(axis=0), -1), named
    )
    columns["process"] = _processes(database, columns.pop("globalPid"), runtime)
    events = IntColumns(columns)
    check_times(database.path, events["start"], events["end"], "a kernel, copy or memset")
    if len(events) and min(int(events[name].min()) for name in ("deviceId", "streamId")) < 0:
        raise TraceError(f"{database.path}: a kernel, copy or memset has no deviceId or streamId")
    return events


Named = tuple[IntColumns, Longs, int]
"""A table of device events, the index of each one's name, and whether they are copies."""


def _aligned(columns: IntColumns, values: Longs, tables: Iterable[Named]) -> Longs:
    """Return a table's column aligned with those of other tables, which get -1."""
    parts = [values if table is columns else np.full(len(table), -1) for table, _, _ in tables]
    return np.concatenate(parts).astype(np.int64)


def _processors(database: Database) -> dict[int, int]:
    """Read the number of multiprocessors of each device."""
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
    names = {number: str(name) for number, name in named if str(name).startswith(_NVLINK_PREFIX)}
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
    """Return the processes of device events; an export without them must be of one process."""
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
    check_times(database.path, calls["start"], calls["end"], "a call of the CUDA library")
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
            texts[row], emitted[row] = _operator_name(names, str(text))
    rest = (texts < 0) & (read["textId"] >= 0)
    ids, which = np.unique(read["textId"][rest], return_inverse=True)
    strings = database.strings(ids)
    pairs = [_operator_name(names, strings[number]) for number in ids.tolist()]
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


def _operator_name(names: ValueIndex[str], text: str) -> tuple[int, bool]:
    """Return the name without the suffix of ``emit_nvtx``, and whether it had one."""
    plain = _EMIT_SUFFIX.sub("", text)
    return names(plain), len(plain) < len(text)


def _strings(database: Database, names: ValueIndex[str], ids: Longs) -> Longs:
    """Map ids of strings to indices of names."""
    unique, which = np.unique(ids, return_inverse=True)
    strings = database.strings(unique)
    index = [names(_VERSION_SUFFIX.sub("", strings[number])) for number in unique.tolist()]
    return np.array(index, dtype=np.int64)[which] if index else np.empty(0, dtype=np.int64)


def _copy_names(database: Database, names: ValueIndex[str], copies: IntColumns) -> Longs:
    labels = database.values("ENUM_CUDA_MEM_KIND", ("id", "label"))
    memory = dict(enumerate(_MEMORY)) | {number: str(label) for number, label in labels}
    kinds = np.stack([copies[column] for column in ("copyKind", "srcKind", "dstKind")], axis=1)
    unique, which = np.unique(kinds, axis=0, return_inverse=True)
    index = []
    for kind, source, target in unique.tolist():
        name = f"Memcpy {_COPIES.get(kind, f'kind {kind}')}"
        if source in memory and target in memory:
            name += f" ({memory[source]} -> {memory[target]})"
        index.append(names(name))
    return np.array(index, dtype=np.int64)[which.ravel()] if index else np.empty(0, dtype=np.int64)
