"""A process on a GPU of a Nsight Systems export becomes a :class:`RankTrace`.

What waited for what, CUPTI recorded in ``CUPTI_ACTIVITY_KIND_SYNCHRONIZATION``. A wait for an event
names it; the table ``CUPTI_ACTIVITY_KIND_CUDA_EVENT`` (``nsys profile --cuda-event-trace=true``)
names the call and the stream by which the event had been recorded. An event is recorded again and
again: ``eventSyncId`` distinguishes the times in newer exports, in older ones it is the last before
the wait.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Longs
from traces.core.comm_kernels import communicates
from traces.core.events import (
    CommRecord,
    DeviceEvents,
    HostEvents,
    HostKind,
    LinkSamples,
    ProcessGroup,
    RankTrace,
    SyncEvent,
    fingerprint_of,
)
from traces.core.gpu_exports.export import Export, IntColumns, looked_up
from traces.core.gpu_exports.processes import (
    IN_ORDER,
    Communicator,
    ExportFile,
    GpuProcess,
    NcclCall,
    communicators_of,
    find_gpu_processes,
    launching_calls,
    memberships,
    rank_numbers,
    record_of_calls,
)
from traces.core.rank_graph import is_comm


def rank_traces(files: Sequence[ExportFile]) -> tuple[list[RankTrace], list[GpuProcess], list[str]]:
    """Return the ranks of all files, sorted, each with its unit, and notes on what was left out."""
    units, notes = find_gpu_processes(files)
    members = {file.path: memberships(file.calls) for file in files}
    numbers, source = rank_numbers(units, members)
    if source == IN_ORDER and len(units) > 1:
        notes.append(f"the export does not record ranks: they are numbered in the {source}")
    communicators = communicators_of(units, numbers, members)
    sizes = [communicator.size or 0 for communicator in communicators.values()]
    world = max(len(units), *(number + 1 for number in numbers), *sizes)
    in_order = sorted(zip(numbers, units, strict=True), key=lambda numbered: numbered[0])
    traces = [
        structs.replace(
            _rank_trace(unit, number, communicators), rank_source=source, world_size=world
        )
        for number, unit in in_order
    ]
    for file in files:  # what a file holds besides is counted once
        first = next((i for i, trace in enumerate(traces) if trace.file == file.path), 0)
        unused = Counter(traces[first].unused) + file.export.unused
        traces[first] = structs.replace(traces[first], unused=dict(unused))
    return traces, [unit for _, unit in in_order], notes


def _rank_trace(
    unit: GpuProcess, number: int, communicators: Mapping[int, Communicator]
) -> RankTrace:
    """Make a rank of a unit."""
    export = unit.file.export
    device = export.device.only(unit.rows)
    # By start, then end: lexsort sorts by its last key first.
    device = device.only(np.lexsort((device["end"], device["start"])))
    host, kinds = _host(unit, export)
    first = min(int(column[0]) for column in (device["start"], host["start"]) if len(column))
    comms: list[CommRecord] = []
    comm_of_device = _device_comms(unit, device, host, comms, communicators)
    # The record of what a name says, by the name's index; -1 for none.
    comm_of_name = np.full(max(1, len(export.names)), -1, dtype=np.int64)
    for index, name in enumerate(export.names):
        if is_comm(name) or name.startswith(("nccl", "pnccl")):
            word = name.rpartition(":")[2].partition(" ")[0] if ":" in name else ""
            comm_of_name[index] = len(comms)
            comms.append(CommRecord(collective=word))
    threads, thread = np.unique(host["thread"], return_inverse=True)
    streams, stream = np.unique(device["streamId"], return_inverse=True)
    labels = tuple(f"stream {stream_id}" for stream_id in streams.tolist())
    syncs, unread = sync_events(export, unit.process, set(streams.tolist()), first)
    return RankTrace(
        file=unit.file.path,
        rank=number,
        rank_source="",
        world_size=None,
        backend="nccl" if unit.collectives else "",
        epoch=export.utc + first,
        host=HostEvents(
            kind=kinds,
            thread=thread.astype(np.int32),
            name=host["name"].astype(np.int32),
            start=(host["start"] - first) / 1e9,
            end=(host["end"] - first) / 1e9,
            correlation=host["correlationId"],
            external=np.full(len(host), -1, dtype=np.int64),
            comm=np.where(kinds == HostKind.RUNTIME, -1, comm_of_name[host["name"]]).astype(
                np.int32
            ),
        ),
        device=DeviceEvents(
            copy=device["copy"] == 1,
            stream=stream.astype(np.int32),
            name=device["name"].astype(np.int32),
            start=(device["start"] - first) / 1e9,
            end=(device["end"] - first) / 1e9,
            correlation=device["correlationId"],
            external=np.full(len(device), -1, dtype=np.int64),
            comm=comm_of_device,
            blocks=_nan_if_unknown(device["blocks"]) / export.processors.get(unit.device, np.nan),
            moved=_nan_if_unknown(device["bytes"]),
        ),
        syncs=syncs,
        comms=tuple(comms),
        steps=(),
        groups={
            communicator.key: ProcessGroup(
                communicator.key, "", communicator.size or 0, communicator.ranks
            )
            for communicator in communicators.values()
            if communicator.ranks is not None and number in communicator.ranks
        },
        names=export.names,
        threads=tuple(f"thread {thread_id & 0xFFFFFF}" for thread_id in threads.tolist()),
        streams=labels,
        unused=unread,
        accelerator=export.accelerator,
        fingerprint=fingerprint_of(device["end"] - device["start"]),
        host_name=export.host_name,
        links=tuple(
            LinkSamples(name, (times - first) / 1e9, percents / 100)
            for name, times, percents in export.links.get(unit.device, [])
        ),
    )


def _nan_if_unknown(counted: Longs) -> Floats:
    """Replace -1, which means not recorded, by NaN."""
    return np.where(counted >= 0, counted, np.nan)


def _host(unit: GpuProcess, export: Export) -> tuple[IntColumns, NDArray[np.uint8]]:
    """Select calls of the CUDA library and ranges of threads, an enclosing event first."""
    ranges, runtime = export.ranges, export.runtime
    # Nsight's global thread id: the process in the upper bits, the thread in the lower 24.
    in_process = (ranges.thread >> 24 == unit.process) & ranges.nested
    calls = runtime.only(runtime["thread"] >> 24 == unit.process)
    used = ranges.only(in_process)
    columns = {
        "start": np.concatenate([used.start, calls["start"]]),
        "end": np.concatenate([used.end, calls["end"]]),
        "thread": np.concatenate([used.thread, calls["thread"]]),
        "name": np.concatenate([used.name, calls["name"]]),
        "correlationId": np.concatenate([np.full(len(used.row), -1), calls["correlationId"]]),
    }
    kinds = np.full(len(columns["start"]), HostKind.RUNTIME, dtype=np.uint8)
    kinds[: len(used.row)] = np.where(
        used.operator, HostKind.OPERATOR.value, HostKind.ANNOTATION.value
    )
    # Of events that start together the longest first: it encloses the others.
    order = np.lexsort((-columns["end"], columns["start"]))
    return IntColumns(columns).only(order), kinds[order]


def _device_comms(
    unit: GpuProcess,
    device: IntColumns,
    host: IntColumns,
    comms: list[CommRecord],
    communicators: Mapping[int, Communicator],
) -> NDArray[np.int32]:
    """Give each kernel of NCCL the record of the calls that it carries out."""
    comm_of_row = np.full(len(device), -1, dtype=np.int32)
    by_thread = _launched_by(unit, device, host)
    for call, together in launching_calls(
        [call for call in unit.file.calls if call.process == unit.process]
    ):
        index, count = unit.place
        carried = together if len(together) % count else together[index::count]
        times, rows = by_thread.get(call.thread, _NOTHING)
        kernels = rows[np.searchsorted(times, call.start) : np.searchsorted(times, call.end)]
        several = len(kernels) > 1 and len(kernels) == len(carried)
        for number, row in enumerate(kernels.tolist()):
            # Several calls in several kernels are paired only where their numbers are equal.
            part = carried if len(kernels) == 1 else (carried[number],) if several else ()
            comm_of_row[row] = len(comms)
            comms.append(_with_group(part, carried, communicators))
    return comm_of_row


_NOTHING = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def _launched_by(
    unit: GpuProcess, device: IntColumns, host: IntColumns
) -> dict[int, tuple[Longs, Longs]]:
    """Return by thread the launch times of NCCL's kernels, in order, and their rows."""
    names = [i for i, name in enumerate(unit.file.export.names) if communicates(name)]
    rows = np.flatnonzero(np.isin(device["name"], names))
    rows = rows[device["correlationId"][rows] >= 0]
    correlation = device["correlationId"][rows]
    launch = looked_up(host["correlationId"], np.arange(len(host)), correlation)
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    order = np.argsort(host["start"][launch], kind="stable")
    rows, launch = rows[order], launch[order]
    thread = host["thread"][launch]
    return {
        thread_id: (host["start"][launch[thread == thread_id]], rows[thread == thread_id])
        for thread_id in np.unique(thread).tolist()
    }


def _with_group(
    part: tuple[NcclCall, ...],
    calls: tuple[NcclCall, ...],
    communicators: Mapping[int, Communicator],
) -> CommRecord:
    """Return the record of calls that were launched together, with their group."""
    keys = {call.communicator for call in part or calls}
    key = keys.pop() if len(keys) == 1 else None
    group = communicators.get(key) if key is not None else None
    record = record_of_calls(part, group.size if group else None)
    if group is None:
        return record
    return structs.replace(
        record, group_key=group.key, group_ranks=group.ranks, group_size=group.size
    )


_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""``CUpti_ActivitySynchronizationType``, named as the PyTorch profiler names them."""
_UNREAD = "CUDA synchronisations without a stream or event"


def sync_events(
    export: Export, process: int, streams: set[int], first: int
) -> tuple[tuple[SyncEvent, ...], dict[str, int]]:
    """Return a process's waits with a known source, and the number of others.

    ``streams`` are those of the rank; times become seconds since ``first`` (ns).
    """
    syncs = export.syncs.only(export.syncs["globalPid"] >> 24 == process)
    records = _Records(export, process)
    events, unread = [], 0
    columns = ("start", "end", "syncType", "streamId", "correlationId", "eventId", "eventSyncId")
    for row in zip(*(syncs[column].tolist() for column in columns), strict=True):
        start, end, kind, stream, correlation, event, again = row
        source = records.of(event, again, start) if kind in (1, 2) else None
        waiting = stream if stream in streams else None
        if kind not in _KINDS or (source is None and (waiting is None or kind == 2)):
            unread += 1
            continue
        events.append(
            SyncEvent(
                kind=_KINDS[kind],
                start=(start - first) / 1e9,
                end=(end - first) / 1e9,
                stream=None if waiting is None else f"stream {waiting}",
                correlation=correlation,
                source_stream=None if source is None else f"stream {source[0]}",
                record_correlation=None if source is None else source[1],
            )
        )
    events.sort(key=lambda sync: sync.start)
    return tuple(events), {_UNREAD: unread} if unread else {}


_NO_ID = (-1, 0)
Recorded = tuple[int, int]
"""The stream on which an event was recorded, and the correlation id of the call."""


class _Records:
    """Where the events of a process were recorded."""

    def __init__(self, export: Export, process: int) -> None:
        events = export.events.only(export.events["globalPid"] >> 24 == process)
        calls = export.runtime.only(export.runtime["thread"] >> 24 == process)
        called = dict(zip(calls["correlationId"].tolist(), calls["start"].tolist(), strict=True))
        self._numbered: dict[int, Recorded] = {}
        in_order: dict[int, list[tuple[int, Recorded]]] = {}
        columns = ("streamId", "correlationId", "eventId", "eventSyncId")
        for row in zip(*(events[column].tolist() for column in columns), strict=True):
            stream, correlation, event, again = row
            if correlation not in called:
                continue
            if again not in _NO_ID:
                self._numbered[again] = stream, correlation
            in_order.setdefault(event, []).append((called[correlation], (stream, correlation)))
        self._in_order = {event: sorted(rows) for event, rows in in_order.items()}

    def of(self, event: int, again: int, time: int) -> Recorded | None:
        """Find the record that a wait for an event at a time (ns) is for."""
        if again not in _NO_ID and again in self._numbered:
            return self._numbered[again]
        rows = self._in_order.get(event, [])
        after = bisect_right(rows, time, key=lambda record: record[0])
        return rows[after - 1][1] if after else None
