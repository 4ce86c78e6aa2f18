"""One small recording as each of AMD's profilers writes it: RPD, rocpd of rocprofv3, and its JSON.

Tables and columns are those of ROCm/rocmProfileData (schema 2) and of ROCprofiler-SDK's
``rocpd_tables.sql`` (schema 3), fields those of ``generateJSON.cpp``.
"""

import json
import sqlite3
from dataclasses import dataclass

PID, THREAD = 4711, 4712
COPIES = {"HtoD": ("CopyHostToDevice", 2), "DtoH": ("CopyDeviceToHost", 3)}
WORDS = ("NONE", "HOST_TO_HOST", "HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE")
UUID = "_00001a2b_3c4d"


@dataclass(frozen=True)
class Event:
    """A mark, or a call and what it launched on a queue; times in ns."""

    name: str
    start: int
    end: int
    queue: int = 0
    runs: tuple[int, int] | None = None
    call: str = "hipLaunchKernel"
    copy: str = ""
    size: int = 0


def two_steps():
    """Two steps of two kernels and a copy, on two queues."""
    events = []
    for step in range(2):
        at = 10_000_000 + 1_000_000 * step
        events += [
            Event(f"step {step}", at, at + 900_000),
            Event("gemm", at + 10_000, at + 15_000, 0, (at + 20_000, at + 300_000)),
            Event(
                *("", at + 30_000, at + 35_000, 1, (at + 40_000, at + 140_000)),
                call="hipMemcpyAsync",
                copy="HtoD",
                size=1 << 20,
            ),
            Event("norm", at + 50_000, at + 55_000, 0, (at + 310_000, at + 400_000)),
            Event("", at + 60_000, at + 420_000, call="hipDeviceSynchronize"),
        ]
    return events


def _is_mark(event):
    return event.runs is None and not event.call.startswith("hipD")


def write_rpd(path, events):
    strings = {}

    def text(words):
        return strings.setdefault(words, len(strings) + 1)

    with sqlite3.connect(path) as database:
        for table, columns in {
            "rocpd_string": "id integer primary key, string text",
            "rocpd_api": "id integer primary key, pid, tid, start, end, apiName_id, args_id",
            "rocpd_op": "id integer primary key, gpuId, queueId, sequenceId, completionSignal, "
            "start, end, description_id, opType_id",
            "rocpd_api_ops": "id integer primary key, api_id, op_id",
            "rocpd_copyapi": "api_ptr_id integer primary key, stream, size, kind",
        }.items():
            database.execute(f"create table {table} ({columns})")
        for number, event in enumerate(events, 1):
            mark = _is_mark(event)
            name, words = ("UserMarker", event.name) if mark else (event.call, "")
            row = (number, PID, THREAD, event.start, event.end, text(name), text(words))
            database.execute("insert into rocpd_api values (?,?,?,?,?,?,?)", row)
            if event.runs is None:
                continue
            kind = COPIES[event.copy][0] if event.copy else "KernelExecution"
            row = (number, 0, event.queue, 0, "", *event.runs, text(event.name), text(kind))
            database.execute("insert into rocpd_op values (?,?,?,?,?,?,?,?,?)", row)
            database.execute("insert into rocpd_api_ops values (?,?,?)", (number, number, number))
            if event.copy:
                row = (number, "0x0", event.size, 1)
                database.execute("insert into rocpd_copyapi values (?,?,?,?)", row)
        database.executemany(
            "insert into rocpd_string values (?,?)",
            [(number, words) for words, number in strings.items()],
        )
    database.close()
    return path


def write_rocpd(path, events):
    strings = {}

    def text(words):
        return strings.setdefault(words, len(strings) + 1)

    timed = "nid integer, pid integer, tid integer, start bigint, end bigint"
    with sqlite3.connect(path) as database:
        for table, columns in {
            "rocpd_metadata": "id integer primary key, tag text, value text",
            "rocpd_string": "id integer primary key, guid text, string text",
            "rocpd_info_agent": "id integer primary key, guid text, type text, type_index integer, "
            "name text, product_name text",
            "rocpd_info_kernel_symbol": "id integer primary key, guid text, kernel_name text, "
            "display_name text",
            "rocpd_event": "id integer primary key, guid text, category_id integer, "
            "stack_id integer, parent_stack_id integer, correlation_id integer",
            "rocpd_region": f"id integer primary key, guid text, {timed}, name_id integer, "
            "event_id integer",
            "rocpd_kernel_dispatch": f"id integer primary key, guid text, {timed}, "
            "agent_id integer, kernel_id integer, queue_id integer, stream_id integer, "
            "workgroup_size_x integer, workgroup_size_y integer, workgroup_size_z integer, "
            "grid_size_x integer, grid_size_y integer, grid_size_z integer, event_id integer",
            "rocpd_memory_copy": f"id integer primary key, guid text, {timed}, name_id integer, "
            "dst_agent_id integer, src_agent_id integer, size integer, queue_id integer, "
            "stream_id integer, event_id integer",
        }.items():
            database.execute(f'create table "{table}{UUID}" ({columns})')

        def insert(table, *row):
            marks = ",".join("?" * len(row))
            database.execute(f'insert into "{table}{UUID}" values ({marks})', row)

        insert("rocpd_info_agent", 0, "", "CPU", 0, "EPYC", "EPYC")
        insert("rocpd_info_agent", 2, "", "GPU", 0, "gfx942", "AMD Instinct MI300X")
        for number, event in enumerate(events, 1):
            mark = _is_mark(event)
            category = "MARKER_CORE_RANGE_API" if mark else "HIP_RUNTIME_API_EXT"
            insert("rocpd_event", 2 * number, "", text(category), number, 0, 0)
            name = text(event.name if mark else event.call)
            insert(
                *("rocpd_region", number, "", 1, PID, THREAD, event.start, event.end),
                *(name, 2 * number),
            )
            if event.runs is None:
                continue
            category = "MEMORY_COPY" if event.copy else "KERNEL_DISPATCH"
            insert("rocpd_event", 2 * number + 1, "", text(category), number, number, 0)
            place = (number, "", 1, PID, THREAD, *event.runs)
            if event.copy:
                name = text(f"MEMORY_COPY_{WORDS[COPIES[event.copy][1]]}")
                ends = (2, 0) if event.copy == "HtoD" else (0, 2)
                insert(
                    *("rocpd_memory_copy", *place, name, *ends, event.size),
                    *(event.queue, event.queue, 2 * number + 1),
                )
            else:
                insert("rocpd_info_kernel_symbol", number, "", "_Z", event.name)
                sizes = (256, 1, 1, 25600, 1, 1)
                insert(
                    *("rocpd_kernel_dispatch", *place, 2, number, event.queue, event.queue),
                    *(*sizes, 2 * number + 1),
                )
        for words, number in strings.items():
            insert("rocpd_string", number, "", words)
    database.close()
    return path


def rocprofv3(events):
    """The JSON document."""
    kinds = [
        {"kind": "NONE", "operations": []},
        {"kind": "HIP_RUNTIME_API", "operations": sorted({event.call for event in events})},
        {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA"]},
        {"kind": "MEMORY_COPY", "operations": [f"MEMORY_COPY_{word}" for word in WORDS]},
        {"kind": "KERNEL_DISPATCH", "operations": ["KERNEL_DISPATCH_COMPLETE"]},
    ]
    records = {name: [] for name in ("kernel_dispatch", "memory_copy", "hip_api", "marker_api")}
    records |= {"hsa_api": [], "rccl_api": []}
    symbols, texts = [], []
    for number, event in enumerate(events, 1):
        common = {"thread_id": THREAD, "correlation_id": {"internal": number, "external": 0}}
        host = common | {"start_timestamp": event.start, "end_timestamp": event.end}
        if _is_mark(event):
            records["marker_api"].append(host | {"kind": 2, "operation": 0})
            texts.append({"key": number, "value": event.name})
            continue
        operation = kinds[1]["operations"].index(event.call)
        records["hip_api"].append(host | {"kind": 1, "operation": operation})
        if event.runs is None:
            continue
        start, end = event.runs
        device = common | {"start_timestamp": start, "end_timestamp": end}
        device |= {"stream_id": {"handle": event.queue}}
        gpu, cpu = {"handle": 902}, {"handle": 900}
        if event.copy:
            ends = (gpu, cpu) if event.copy == "HtoD" else (cpu, gpu)
            copy = {"kind": 3, "operation": COPIES[event.copy][1], "bytes": event.size}
            copy |= dict(zip(("dst_agent_id", "src_agent_id"), ends, strict=True))
            records["memory_copy"].append(device | copy)
            continue
        symbols.append({"kernel_id": number, "formatted_kernel_name": event.name})
        dispatch = {
            "agent_id": gpu,
            "queue_id": {"handle": event.queue},
            "kernel_id": number,
            "workgroup_size": {"x": 256, "y": 1, "z": 1},
            "grid_size": {"x": 25600, "y": 1, "z": 1},
        }
        records["kernel_dispatch"].append(
            device | {"kind": 4, "operation": 0, "dispatch_info": dispatch}
        )
    agents = [
        {"id": {"handle": 900}, "type": 1, "logical_node_type_id": 0, "name": "EPYC"},
        {
            "id": {"handle": 902},
            "type": 2,
            "logical_node_type_id": 0,
            "name": "gfx942",
            "product_name": "AMD Instinct MI300X",
            "cu_count": 304,
        },
    ]
    part = {
        "metadata": {"pid": PID},
        "agents": agents,
        "kernel_symbols": symbols,
        "strings": {"buffer_records": kinds, "marker_api": texts},
        "buffer_records": records,
    }
    return {"rocprofiler-sdk-tool": [part]}


def write_rocprofv3(path, events):
    path.write_text(json.dumps(rocprofv3(events)))
    return path


WRITERS = {"rpd": write_rpd, "rocpd": write_rocpd, "rocprofv3": write_rocprofv3}
