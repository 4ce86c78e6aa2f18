"""Nsight Systems exports with a known truth: what a profiler's file says, in their tables.

The tables and columns are those of NVIDIA's "SQLite Export Schema Reference" of the version named;
payloads as NCCL's ``nvtx_payload_schemas.h`` has them.
"""

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from helpers.link_tapes import Tape
from traces.core.comm_kernels import communicates
from traces.core.events import CommRecord, HostKind, Job, RankTrace, merged_record
from traces.core.rank_graph import kind_of
from traces.kineto.directory import read_job

CLOCK = 28_254_349_605
"""What the file's clock shows when the session starts (ns)."""
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
VERSIONS = ("2026", "2021", "2019")
_TABLES = {
    "2026": {
        "KERNEL": "start end deviceId contextId greenContextId streamId correlationId globalPid "
        "demangledName shortName mangledName graphNodeId",
        "MEMCPY": "start end deviceId contextId streamId correlationId globalPid bytes copyKind "
        "srcKind dstKind",
        "MEMSET": "start end deviceId contextId streamId correlationId globalPid value bytes",
        "RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
        "SYNCHRONIZATION": "start end deviceId streamId correlationId globalPid syncType eventId "
        "eventSyncId",
        "CUDA_EVENT": "deviceId streamId correlationId globalPid eventId eventSyncId",
    },
    "2021": {
        "KERNEL": "start end deviceId contextId streamId correlationId globalPid demangledName "
        "shortName",
        "MEMCPY": "start end deviceId contextId streamId correlationId globalPid bytes copyKind "
        "srcKind dstKind",
        "MEMSET": "start end deviceId contextId streamId correlationId globalPid value bytes",
        "RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
        "SYNCHRONIZATION": "start end deviceId streamId correlationId globalPid syncType eventId",
        "CUDA_EVENT": "deviceId streamId correlationId globalPid eventId",
    },
    "2019": {
        "KERNEL": "start end deviceId streamId correlationId shortName",
        "MEMCPY": "start end deviceId streamId correlationId copyKind srcKind dstKind",
        "MEMSET": "start end deviceId streamId correlationId",
        "RUNTIME": "start end globalTid correlationId nameId",
    },
}
_NVTX = {
    "2026": "start end eventType rangeId text globalTid textId domainId binaryData",
    "2021": "start end eventType rangeId text globalTid textId domainId binaryData",
    "2019": "start end eventType text globalTid textId domainId",
}
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed")
_SYNC_KINDS = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
_WORDS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "all_to_all": "AllToAll",
}
_FIELDS = {
    "init": ((18, "NCCL communicator ID"), (5, "No. of ranks"), (5, "Rank"), (5, "CUDA device")),
    "work": ((18, "NCCL communicator ID"), (22, "Message size [bytes]")),
    "message": ((18, "NCCL communicator ID"), (22, "Message size [bytes]"), (5, "Peer rank")),
}
_SCHEMA = {name: 16777216 + number for number, name in enumerate(_FIELDS)}
_WIDTH = {5: 4, 18: 8, 22: 8}


@dataclass
class Writer:
    """Rows of one file, until they are written."""

    version: str = "2026"
    base: int = 0
    payloads: bool = True
    strings: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[dict[str, object]]] = field(default_factory=dict)

    def add(self, table: str, **values: object) -> None:
        self.rows.setdefault(table, []).append(values)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def range(
        self, start: int, end: int, thread: int, text: str, data: bytes | None = None
    ) -> None:
        """A push/pop range; every other text is registered, as NVTX calls it."""
        where: dict[str, object] = {"text": text, "textId": None}
        if len(text) % 2:
            where = {"text": None, "textId": self.string(text)}
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=59,
            globalTid=thread,
            domainId=1 if text.startswith("nccl") else 0,
            binaryData=data if self.payloads else None,
            **where,
        )

    def write(self, path: Path) -> Path:
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as database:
            kept = {f"CUPTI_ACTIVITY_KIND_{k}": v for k, v in _TABLES[self.version].items()}
            kept["NVTX_EVENTS"] = _NVTX[self.version]
            for table, columns in kept.items():
                if self.rows.get(table):
                    _create(database, table, columns.split(), self.rows[table])
            _create(
                database,
                "StringIds",
                ["id", "value"],
                [{"id": number, "value": text} for text, number in self.strings.items()],
            )
            self._about(database)
        database.close()
        return path

    def _about(self, database: sqlite3.Connection) -> None:
        start = CLOCK if self.version == "2026" else 0
        told = [{"utcEpochNs": self.base + start}]
        _create(database, "TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], told)
        if self.version == "2026":
            _create(database, "ANALYSIS_DETAILS", ["startTime"], [{"startTime": start}])
        entries = []
        for name, fields in _FIELDS.items():
            offset = 0
            for index, (kind, label) in enumerate(fields):
                entry = {"domainId": 1, "schemaId": _SCHEMA[name], "idx": index, "type": kind}
                entries.append({**entry, "name": label, "offset": offset or None})
                offset += _WIDTH[kind]
        if self.payloads and self.version != "2019":
            columns = ["domainId", "schemaId", "idx", "type", "name", "offset"]
            _create(database, "NVTX_PAYLOAD_SCHEMA_ENTRIES", columns, entries)


def _create(
    database: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterable[dict[str, object]],
) -> None:
    listed = ", ".join(f'"{column}"' for column in columns)
    database.execute(f'CREATE TABLE "{table}" ({listed})')
    marks = ", ".join("?" * len(columns))
    database.executemany(
        f'INSERT INTO "{table}" VALUES ({marks})',
        [[row.get(column) for column in columns] for row in rows],
    )


def payload(schema: str, *values: int) -> bytes:
    forms = {4: "i", 8: "Q"}
    widths = [_WIDTH[kind] for kind, _ in _FIELDS[schema]]
    body = struct.pack("<" + "".join(forms[width] for width in widths), *values)
    body += b"\0" * (-len(body) % 8)
    head = struct.pack("<4I2Q", 1, 0, _SCHEMA[schema], 0, len(body), 32 + len(body))
    return head + body


def write_export(
    path: Path, traces: Sequence[RankTrace], version: str = "2026", *, payloads: bool = True
) -> Path:
    """Write ranks of one host as one export; rank ``n`` is a process on device ``n``."""
    writer = Writer(version, min(trace.epoch for trace in traces) - CLOCK - 10**6, payloads)
    for trace in traces:
        _RankWriter(writer, trace).write()
    return writer.write(path)


class _RankWriter:
    def __init__(self, writer: Writer, trace: RankTrace) -> None:
        self.out, self.trace = writer, trace
        self.pid = (1 << 48) | ((1000 + trace.rank) << 24)
        self.common = {"deviceId": trace.rank, "contextId": 1, "globalPid": self.pid}

    def write(self) -> None:
        for step in self.trace.steps:
            self.out.range(
                self.ns(step.start), self.ns(step.end), self.pid + 1, f"step {step.number}"
            )
        for row in range(len(self.trace.host)):
            self._host(row)
        for row in range(len(self.trace.device)):
            self._device(row)
        for number, sync in enumerate(self.trace.syncs, 1):
            told = {"eventId": number % 7 + 100 * number, "eventSyncId": number}
            self.out.add(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
                start=self.ns(sync.start),
                end=self.ns(sync.end),
                streamId=_number(sync.stream) if sync.stream else 0xFFFFFFFF,
                correlationId=sync.correlation,
                syncType=_SYNC_KINDS[sync.kind],
                **self.common,
                **told,
            )
            if sync.source_stream is not None and sync.record_correlation is not None:
                self.out.add(
                    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
                    streamId=_number(sync.source_stream),
                    correlationId=sync.record_correlation,
                    **self.common,
                    **told,
                )
        self._calls()

    def ns(self, seconds: float) -> int:
        return self.trace.epoch - self.out.base + round(seconds * 1e9)

    def tid(self, row: int) -> int:
        return self.pid + 1 + int(self.trace.host.thread[row])

    def _host(self, row: int) -> None:
        host = self.trace.host
        name = self.trace.names[host.name[row]]
        start, end = self.ns(host.start[row]), self.ns(host.end[row])
        if host.kind[row] == HostKind.RUNTIME:
            self.out.add(
                "CUPTI_ACTIVITY_KIND_RUNTIME",
                start=start,
                end=end,
                globalTid=self.tid(row),
                correlationId=int(host.correlation[row]),
                nameId=self.out.string(f"{name}_v7000"),
                eventClass=0,
                returnValue=0,
            )
        else:
            emitted = f", seq = 7, op_id = {row}" if host.kind[row] == HostKind.OPERATOR else ""
            self.out.range(start, end, self.tid(row), name + emitted)

    def _device(self, row: int) -> None:
        device = self.trace.device
        name = self.trace.names[device.name[row]]
        values = {
            "start": self.ns(device.start[row]),
            "end": self.ns(device.end[row]),
            "streamId": _number(self.trace.streams[device.stream[row]]),
            "correlationId": int(device.correlation[row]),
            **self.common,
        }
        if not device.copy[row]:
            names = {"demangledName": self.out.string(name), "shortName": self.out.string(name)}
            self.out.add("CUPTI_ACTIVITY_KIND_KERNEL", **values, **names)
        elif name.startswith("Memset"):
            self.out.add("CUPTI_ACTIVITY_KIND_MEMSET", **values)
        else:
            kind, _, ends = name.removeprefix("Memcpy ").partition(" ")
            source, _, target = ends.strip("()").partition(" -> ")
            self.out.add(
                "CUPTI_ACTIVITY_KIND_MEMCPY",
                **values,
                copyKind=_COPY_KINDS.get(kind, 8),
                srcKind=_MEMORY.index(source) if source in _MEMORY else None,
                dstKind=_MEMORY.index(target) if target in _MEMORY else None,
            )

    def _calls(self) -> None:
        """What NCCL says of each of its kernels, around the call that launches it."""
        trace = self.trace
        host, device = trace.host, trace.device
        runtime = (host.kind == HostKind.RUNTIME).nonzero()[0]
        launch_of = {int(host.correlation[row]): int(row) for row in runtime}
        begun: set[tuple[int, ...]] = set()
        for row in range(len(device)):
            name = trace.names[device.name[row]]
            launch = launch_of.get(int(device.correlation[row]))
            if not communicates(name) or launch is None:
                continue
            record = self._record(row, launch)
            ranks = record.group_ranks or self._listed(record)
            if ranks is None:
                continue
            if ranks not in begun:
                begun.add(ranks)
                at = self.ns(0.0) - 5000 + len(begun)
                told = payload("init", _id(ranks), len(ranks), ranks.index(trace.rank), trace.rank)
                self.out.range(at, at + 1, self.pid + 1, "ncclCommInitRankConfig", told)
            self._call(launch, name, record, ranks)

    def _call(self, launch: int, name: str, record: CommRecord, ranks: tuple[int, ...]) -> None:
        host, tid = self.trace.host, self.tid(launch)
        start, end = self.ns(host.start[launch]), self.ns(host.end[launch])
        kind = kind_of(record.collective) or kind_of(name) or ""
        width = {"Float": 4, "BFloat16": 2, "c10::Half": 2, "Half": 2, "float": 4}[record.dtype]
        sent, got = ((n or 0) * width for n in (record.in_elements, record.out_elements))
        if kind == "all_to_all":
            self.out.range(start - 900, start - 899, tid, "ncclGroupStart")
            for peer in range(len(ranks)):
                told = payload("message", _id(ranks), max(sent, got) // len(ranks), peer)
                self.out.range(start - 800 + peer, start - 800 + peer, tid, "ncclSend", told)
                self.out.range(start - 400 + peer, start - 400 + peer, tid, "ncclRecv", told)
            self.out.range(start, end, tid, "ncclGroupEnd", None)
            return
        if kind == "send_receive":
            told = payload("message", _id(ranks), max(sent, got), 1 - ranks.index(self.trace.rank))
            word = "ncclSend" if "send" in record.collective else "ncclRecv"
            self.out.range(start, end, tid, word, told)
            return
        size = {
            "all_gather": sent or got // len(ranks),
            "reduce_scatter": got or sent // len(ranks),
        }
        told = payload("work", _id(ranks), size.get(kind, max(sent, got)))
        self.out.range(start, end, tid, f"nccl{_WORDS[kind]}", told)

    def _record(self, row: int, launch: int) -> CommRecord:
        trace = self.trace
        host, at = trace.host, trace.host.start[launch]
        around = (host.comm >= 0) & (host.start <= at) & (host.end >= at)
        around &= host.thread == host.thread[launch]
        own = int(trace.device.comm[row])
        records = [trace.comms[own]] if own >= 0 else []
        records += [trace.comms[host.comm[one]] for one in around.nonzero()[0][::-1]]
        return merged_record(records)

    def _listed(self, record: CommRecord) -> tuple[int, ...] | None:
        found = self.trace.groups.get(record.group_key)
        world = self.trace.world_size
        whole = tuple(range(world)) if world == record.group_size and world else None
        return found.ranks if found else whole


def _number(label: str) -> int:
    return int(label.rpartition(" ")[2])


def _id(ranks: tuple[int, ...]) -> int:
    return 0x8000_0000_0000_0000 + sum(
        (rank + 1) << (5 * place) for place, rank in enumerate(ranks)
    )


def pid(process: int) -> int:
    return process << 24


def launch(
    out: Writer, at: int, number: int, *, process: int = 1, device: int = 0, name: str = "gemm"
) -> None:
    """A call of 2 us and its kernel of 100 us, 5 us later, on stream 7."""
    told = {"correlationId": number, "globalPid": pid(process)}
    out.add(
        RUNTIME,
        start=at,
        end=at + 2000,
        globalTid=pid(process) + 9,
        correlationId=number,
        nameId=out.string("cudaLaunchKernel_v7000"),
    )
    names = {"demangledName": out.string(name), "shortName": out.string(name)}
    where = {"deviceId": device, "streamId": 7}
    out.add(KERNEL, start=at + 5000, end=at + 105_000, **where, **told, **names)


def simple(path: Path, count: int = 8) -> Path:
    """One process; its ranges do not repeat."""
    out = Writer()
    for number in range(count):
        launch(out, 10**6 + 10**5 * number, number + 1)
    for name in ("load", "train"):
        out.range(10**6, 10**6 + 10**5, pid(1) + 9, name)
    return out.write(path)


def surplus(folder: Path) -> Job:
    """Rank 1 recorded one all-reduce more before, rank 0 one more after those of both."""
    for rank in range(2):
        tape = Tape(rank, 2, [("0", "world", (0, 1))])
        for number in range(1 - rank, 6 - rank):
            at = 1000 * number
            tape.launch(at, 7, at + 5, 80, f"gemm{number}")
            tape.collective(at + 20, 20, at + 90 + rank, 100 - rank, elements=1 << 10)
            tape.wait(at + 45)
        tape.write(folder)
    return read_job(folder)


def as_parquet(export: Path, folder: Path) -> Path:
    """Write the tables of a SQLite export as ``nsys export --type parquetdir`` does."""
    folder.mkdir()
    with closing(sqlite3.connect(export)) as database:
        listed = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in listed:
            cursor = database.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
            columns = {name: [row[name] for row in rows] for name in names}
            pq.write_table(pa.table(columns), folder / f"{table}.parquet")
    return folder
