"""The reader of Nsight Systems exports (``nsys export --type sqlite``), packed or not.

One file may hold several GPUs and processes, a directory several files: each process on a GPU is a
rank (:mod:`traces.core.gpu_exports`). After that all is shared with the PyTorch profiler's files:
windows, launches, streams, waits and matching (:func:`traces.profiler.link.link_job`).

Of a call of NCCL a kernel's name gives only the kind. NCCL marks each call (``ncclAllReduce``) and,
from 2.15 on, attaches a payload: the communicator's id, the bytes of one message, root or peer;
``ncclCommInitRank`` has the communicator's size and this rank's place in it (NVIDIA/nccl,
``src/include/nvtx_payload_schemas.h``). An export has the payloads if it was made with
``--include-blobs=true``: 32 bytes of header, in them the schema's number at byte 8 and the
payload's length at byte 16, then the fields where the table ``NVTX_PAYLOAD_SCHEMA_ENTRIES`` says.
Calls between ``ncclGroupStart`` and ``ncclGroupEnd`` are launched by the latter, together.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from traces.core.events import Job, RankTrace
from traces.core.files import is_sqlite
from traces.core.gpu_exports.database import Database, opened
from traces.core.gpu_exports.export import Export
from traces.core.gpu_exports.job import ExportReader, read_exported_job
from traces.core.gpu_exports.processes import ExportFile, NcclCall, Payload
from traces.nsys.tables import GRAPH_ROWS, read_export


def read_exports(path: Path) -> Job:
    """Read the ranks of an export, or of the exports in a directory, not of sub-directories."""
    return read_exported_job(path, _READER)


def _file(path: Path) -> ExportFile:
    with opened(path) as database:
        export = read_export(database)
        return ExportFile(path, export, nccl_calls(database, export))


def _lacking(files: Sequence[ExportFile], traces: Sequence[RankTrace]) -> Iterator[str]:
    """Say what these exports lack, and how to record it."""
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


_READER = ExportReader("Nsight Systems export (.sqlite)", is_sqlite, _file, _lacking)


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
    """Read a payload; None where it is not of the form that is known."""
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
