"""Databases of AMD's profilers: rocpd, and its predecessor RPD.

rocpd is rocprofv3's (ROCprofiler-SDK, schema 3). The name of every table ends in the id of the
process that wrote it, so that several can share a file. An event's ``stack_id`` is rocprofiler's
internal correlation id: that of a kernel is that of the call that launched it
(``source/lib/output/generateRocpd.cpp``).

RPD (ROCm/rocmProfileData, schema 2) has ``rocpd_op``, ``rocpd_api`` and a join table. An op is a
kernel, a copy, a fill, or a task of a graph; an api is a call of HIP, or a mark of the user
(``UserMarker``), in which ``rpd.autograd`` has PyTorch's operators. ``rocpd_api_ops`` joins an op
to the call that launched it. A queue is the lane on which ops run in order.
"""

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from traces.core.columns import ValueIndex
from traces.core.gpu_exports.database import Database
from traces.core.gpu_exports.export import (
    Export,
    IntColumns,
    blocks_of,
    check_times,
    joined,
    looked_up,
    ranges_of,
    thread_number,
)

COPY_NAMES = {
    "HOST_TO_HOST": "Memcpy HtoH",
    "HOST_TO_DEVICE": "Memcpy HtoD",
    "DEVICE_TO_HOST": "Memcpy DtoH",
    "DEVICE_TO_DEVICE": "Memcpy DtoD",
}
"""Copies by their names in the PyTorch profiler, so that all rules for copies apply to them."""
MEMSET = "Memset (Device)"
_DISPATCH = re.compile(r"rocpd_kernel_dispatch(_?[\w-]*)$")
_SIDES = ("x", "y", "z")
_COPY = "MEMORY_COPY_"
_UNUSED = ("rocpd_pmc_event", "rocpd_memory_allocate", "rocpd_sample")
_CALLS, _MARKS = "HIP_", "MARKER_"
"""Prefixes of the categories of HIP's calls and of marks (ROCTX)."""


def read_rocpd(database: Database) -> Export:
    """Read a whole file."""
    names: ValueIndex[str] = ValueIndex()
    unused: Counter[str] = Counter()
    endings = [match[1] for table in database.tables if (match := _DISPATCH.match(table))]
    for ending in endings:
        if not database.has(f"rocpd_kernel_dispatch{ending}", "start", "end"):
            raise TraceError(
                f"{database.path}: table rocpd_kernel_dispatch{ending} has no column 'start': "
                "a rocpd database of schema 3 has (ROCm 7); convert it with 'rocpd convert'"
            )
    device: list[dict[str, Longs]] = []
    runtime: list[dict[str, Longs]] = []
    marks: list[dict[str, Longs]] = []
    products: set[str] = set()
    for ending in endings:
        rows = database.values(
            f"rocpd_info_agent{ending}", ("id", "type", "type_index", "product_name", "name")
        )
        agents = {}  # index of each GPU on its node, by the id of its agent
        for number, kind, index, product, name in rows:
            if kind == "GPU" and isinstance(number, int):
                agents[number] = index if isinstance(index, int) else number
                products.add(str(product or name))
        device += [read(database, ending, names, agents) for read in (_kernels, _copies)]
        called, marked = _regions(database, ending, names, unused)
        runtime.append(called)
        marks.append(marked)
        for table in _UNUSED:
            if count := database.count(f"{table}{ending}"):
                unused[table] += count
    columns = joined(device), joined(runtime), ranges_of(joined(marks))
    chips = ", ".join(sorted(products))
    export = Export(tuple(names.index), *columns, accelerator=chips, unused=unused)
    return checked(database.path, export)


def _devices(agents: dict[int, int], agent: Longs) -> Longs:
    numbers, indices = (np.array(list(part), dtype=np.int64) for part in (agents, agents.values()))
    return looked_up(numbers, indices, agent)


def _check_named(database: Database, names: Collection[str]) -> None:
    if names and not any(names):
        raise TraceError(f"{database.path}: its kernels have no names: which communicate?")


def _lane(queue: Longs, stream: Longs) -> Longs:
    """Return the stream of HIP, or the queue if there is none."""
    return np.where(stream >= 0, stream, queue)


def _correlation(database: Database, ending: str, event: Longs) -> Longs:
    events = database.numbers(f"rocpd_event{ending}", ("id", "stack_id"))
    return looked_up(events["id"], events["stack_id"], event)


def _kernels(
    database: Database, ending: str, names: ValueIndex[str], agents: dict[int, int]
) -> dict[str, Longs]:
    grid = [f"grid_size_{side}" for side in _SIDES]
    group = [f"workgroup_size_{side}" for side in _SIDES]
    rows = database.numbers(
        f"rocpd_kernel_dispatch{ending}",
        ("start", "end", "pid", "agent_id", "kernel_id", "queue_id"),
        ("event_id", "stream_id", *grid, *group),
    )
    symbols = {
        number: str(name)
        for number, name in database.values(
            f"rocpd_info_kernel_symbol{ending}", ("id", "display_name")
        )
    }
    _check_named(database, symbols.values())
    return {
        "start": rows["start"],
        "end": rows["end"],
        "deviceId": _devices(agents, rows["agent_id"]),
        "streamId": _lane(rows["queue_id"], rows["stream_id"]),
        "correlationId": _correlation(database, ending, rows["event_id"]),
        "process": rows["pid"],
        "name": names.longs(symbols.get(k, f"kernel {k}") for k in rows["kernel_id"].tolist()),
        "copy": np.zeros(len(rows), dtype=np.int64),
        "bytes": np.full(len(rows), -1, dtype=np.int64),
        "blocks": blocks_of([rows[name] for name in grid], [rows[name] for name in group]),
    }


def _copies(
    database: Database, ending: str, names: ValueIndex[str], agents: dict[int, int]
) -> dict[str, Longs]:
    rows = database.numbers(
        f"rocpd_memory_copy{ending}",
        ("start", "end", "pid", "name_id", "size"),
        ("dst_agent_id", "src_agent_id", "queue_id", "stream_id", "event_id"),
    )
    strings = database.strings(rows["name_id"], f"rocpd_string{ending}", "string")
    labels = [strings[number].removeprefix(_COPY) for number in rows["name_id"].tolist()]
    target = _devices(agents, rows["dst_agent_id"])
    return {
        "start": rows["start"],
        "end": rows["end"],
        "deviceId": np.where(target >= 0, target, _devices(agents, rows["src_agent_id"])),
        "streamId": _lane(rows["queue_id"], rows["stream_id"]),
        "correlationId": _correlation(database, ending, rows["event_id"]),
        "process": rows["pid"],
        "name": names.longs(COPY_NAMES.get(label, f"Memcpy {label.lower()}") for label in labels),
        "copy": np.ones(len(rows), dtype=np.int64),
        "bytes": rows["size"],
        "blocks": np.full(len(rows), -1, dtype=np.int64),
    }


def _regions(
    database: Database, ending: str, names: ValueIndex[str], unused: Counter[str]
) -> tuple[dict[str, Longs], dict[str, Longs]]:
    """Read the calls of HIP, and the marks of the user."""
    rows = database.numbers(
        f"rocpd_region{ending}", ("start", "end", "pid", "tid", "name_id"), ("event_id",)
    )
    ended = rows["end"] != -1  # NULL if the process was killed
    if not ended.all():
        unused["regions without an end"] += int((~ended).sum())
    rows = rows.only(ended)
    events = database.numbers(f"rocpd_event{ending}", ("id", "category_id"))
    category_id = looked_up(events["id"], events["category_id"], rows["event_id"])
    used_ids = np.concatenate([rows["name_id"], category_id[category_id >= 0]])
    strings = database.strings(used_ids, f"rocpd_string{ending}", "string")
    categories = [strings.get(number, "") for number in category_id.tolist()]
    called = np.array([name.startswith(_CALLS) for name in categories], dtype=np.bool_)
    marked = np.array([name.startswith(_MARKS) for name in categories], dtype=np.bool_)
    for name, used in zip(categories, (called | marked).tolist(), strict=True):
        if not used:
            unused[name or "regions of no category"] += 1
    columns = {
        "start": rows["start"],
        "end": rows["end"],
        "thread": thread_number(rows["pid"], rows["tid"]),
        "correlationId": _correlation(database, ending, rows["event_id"]),
        "name": names.longs(strings[number] for number in rows["name_id"].tolist()),
    }
    return (
        {name: column[called] for name, column in columns.items()},
        {name: column[marked] for name, column in columns.items()},
    )


_KERNELS = ("KernelExecution", "Task")
_COPIES = {
    "CopyHostToDevice": COPY_NAMES["HOST_TO_DEVICE"],
    "CopyDeviceToHost": COPY_NAMES["DEVICE_TO_HOST"],
    "CopyDeviceToDevice": COPY_NAMES["DEVICE_TO_DEVICE"],
    "CopyHostToHost": COPY_NAMES["HOST_TO_HOST"],
    "FillBuffer": MEMSET,
}
_MARK = "UserMarker"


def read_rpd(database: Database) -> Export:
    """Read a whole file."""
    names: ValueIndex[str] = ValueIndex()
    unused: Counter[str] = Counter()
    calls = database.numbers(
        "rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
    )
    called = _texts(database, calls["apiName_id"])
    is_call = np.array([name.startswith("hip") for name in called], dtype=np.bool_)
    is_mark = np.array([name == _MARK for name in called], dtype=np.bool_)
    for name in called[~is_call & ~is_mark].tolist():
        unused[f"{name} (of the profiler)"] += 1
    device = IntColumns(_device(database, names, calls, unused))

    def of_threads(rows: IntColumns, labels: NDArray[np.object_]) -> IntColumns:
        columns = {name: rows[name] for name in ("start", "end")}
        columns["thread"] = thread_number(rows["pid"], rows["tid"])
        columns |= {"correlationId": rows["id"], "name": names.longs(labels.tolist())}
        return IntColumns(columns)

    runtime = of_threads(calls.only(is_call), called[is_call])
    marks = calls.only(is_mark & (calls["end"] != -1))  # NULL if the process was killed
    if len(marks) < is_mark.sum():
        unused[f"{_MARK} without an end"] += int(is_mark.sum()) - len(marks)
    ranges = ranges_of(of_threads(marks, _texts(database, marks["args_id"])))
    export = Export(tuple(names.index), device, runtime, ranges, unused=unused)
    return checked(database.path, export)


def _device(
    database: Database, names: ValueIndex[str], calls: IntColumns, unused: Counter[str]
) -> dict[str, Longs]:
    ops = database.numbers(
        "rocpd_op", ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    )
    kinds = _texts(database, ops["opType_id"])
    usable = np.isin(kinds, [*_KERNELS, *_COPIES])
    for kind in kinds[~usable].tolist():
        unused[f"{kind} (an op of unknown kind)"] += 1
    ops, kinds = ops.only(usable), kinds[usable]
    described = _texts(database, ops["description_id"])
    _check_named(database, described[kinds == _KERNELS[0]].tolist())
    launches = database.numbers("rocpd_api_ops", ("api_id", "op_id"))
    call = looked_up(launches["op_id"], launches["api_id"], ops["id"])
    process = looked_up(calls["id"], calls["pid"], call)
    processes = np.unique(calls["pid"])
    if len(processes) == 1:  # ops without a recorded call are of the only process
        process = np.where(process < 0, processes[0], process)
    copies = database.numbers("rocpd_copyapi", ("api_ptr_id",), ("size",))
    copied = np.isin(kinds, list(_COPIES))
    labels = [
        _COPIES.get(kind) or description or kind
        for kind, description in zip(kinds.tolist(), described.tolist(), strict=True)
    ]
    return {
        "start": ops["start"],
        "end": ops["end"],
        "deviceId": ops["gpuId"],
        "streamId": ops["queueId"],
        "correlationId": call,
        "process": np.where(process < 0, 0, process),
        "name": names.longs(labels),
        "copy": copied.astype(np.int64),
        "bytes": np.where(copied, looked_up(copies["api_ptr_id"], copies["size"], call), -1),
        "blocks": np.full(len(ops), -1, dtype=np.int64),
    }


def _texts(database: Database, ids: Longs) -> NDArray[np.object_]:
    """Return the text of each id."""
    unique, which = np.unique(ids, return_inverse=True)
    strings = database.strings(unique, "rocpd_string", "string")
    texts = np.array([strings[number] for number in unique.tolist()], dtype=object)
    return texts[which] if len(texts) else np.empty(0, dtype=object)


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
