"""Host calls that wait for the device, and what they waited for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.workload import What
from traces.coverage import EXPLAINED
from traces.device import DeviceOps
from traces.events import HostKind, RankTrace
from traces.launches import Launches
from traces.waits import calls_by_correlation
from traces.window import Window

_WAITS = re.compile(r"Synchronize")
_ALL_STREAMS = re.compile(r"(DeviceSynchronize|CtxSynchronize)")
_ONE_STREAM = re.compile(r"StreamSynchronize")
_EVENT = re.compile(r"EventSynchronize")
_BLOCKING_COPY = re.compile(
    r"^(cuda|hip)Memcpy(WithStream|DtoH|HtoD)?$|^cuMemcpy(DtoH|HtoD)?(_v2)?$"
)
_PAGEABLE = "Pageable"
_TO_HOST = "Memcpy DtoH"


@dataclass(frozen=True, slots=True)
class Wait:
    """A host call that returned when device ops had ended (s)."""

    thread: int
    start: float
    end: float
    name: str
    sources: tuple[int, ...]


def device_waits(
    trace: RankTrace, window: Window, launches: Launches, ops: DeviceOps
) -> Iterator[Wait]:
    """Find the synchronising calls of a step, and the copies their caller waited for."""
    recorded = _recorded(trace, ops)
    copies = _copies(launches, ops)
    launched = dict(zip(launches.host.tolist(), launches.device.tolist(), strict=True))
    last: dict[int, int] = {}
    host = trace.host
    may_wait = [number for number, name in enumerate(trace.names) if _WAITS.search(name)]
    rows = window.host[host.kind[window.host] == HostKind.RUNTIME]
    rows = rows[np.isin(rows, launches.host) | np.isin(host.name[rows], may_wait)]
    columns = (rows, host.thread[rows], host.name[rows], host.start[rows], host.end[rows])
    for row, thread, number, start, end in zip(*(one.tolist() for one in columns), strict=True):
        name = trace.names[number]
        if row in launched:
            last[thread] = ops.op_of[launched[row]]
        if row in copies:
            sources = _blocking(ops, name, copies[row], end)
        elif not _WAITS.search(name):
            continue
        else:
            known = recorded.get(int(host.correlation[row]))
            known = _read_back(ops, last.get(thread)) if known is None else known
            sources = _synchronized(ops, name, (start, end), known)
        if sources:
            # A launch is a cut of its own at the same place; the wait begins right behind it.
            yield Wait(thread, start, end, name, tuple(sorted(sources)))


def _copies(launches: Launches, ops: DeviceOps) -> dict[int, int]:
    return {
        launch: ops.op_of[device]
        for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True)
        if ops.graph.ops[ops.op_of[device]].what == What.COPY
    }


def _blocking(ops: DeviceOps, name: str, copy: int, returned: float) -> list[int]:
    """Return the copy if its caller waited for it: pageable memory, or a blocking call."""
    may_block = _BLOCKING_COPY.search(name) or _PAGEABLE in ops.graph.ops[copy].name
    return [copy] if may_block and ops.end(copy) <= returned + EXPLAINED else []


def _read_back(ops: DeviceOps, launched: int | None) -> int | None:
    """Return what a thread launched last if it is a copy to the host: ``item()`` waits for it."""
    return launched if launched is not None and _TO_HOST in ops.graph.ops[launched].name else None


def _synchronized(
    ops: DeviceOps, name: str, called: tuple[float, float], known: int | None
) -> list[int]:
    start, end = called
    if _ALL_STREAMS.search(name):
        last = (ops.last_launched(stream, start) for stream in ops.on_stream)
        return [op for op in last if op is not None and ops.end(op) <= end + EXPLAINED]
    if not (_ONE_STREAM.search(name) or _EVENT.search(name)):
        return []
    if known is not None:
        return [known] if ops.end(known) <= end + EXPLAINED else []
    return _latest(ops, start, end)


def _recorded(trace: RankTrace, ops: DeviceOps) -> dict[int, int]:
    """Map correlation ids of calls to the op that CUPTI's own record says they waited for.

    A stream is waited for up to what was launched before the call, an event up to what was
    launched before it was recorded.
    """
    called_at = calls_by_correlation(trace)
    found = {}
    for sync in trace.syncs:
        label = sync.source_stream or sync.stream
        if "Wait" in sync.kind or label is None or label not in trace.streams:
            continue
        called = called_at.get(sync.correlation)
        if called is None:
            continue
        until = min(called, called_at.get(sync.record_correlation, called))
        op = ops.last_launched(trace.streams.index(label), until)
        if op is not None:
            found[sync.correlation] = op
    return found


def _latest(ops: DeviceOps, start: float, end: float) -> list[int]:
    """Without a record of the stream: what was launched before and ended last by the return.

    A call that did not have to wait returns at once and tells nothing.
    """
    last = (ops.last_launched(stream, start) for stream in ops.on_stream)
    done = [op for op in last if op is not None and start < ops.end(op) <= end + EXPLAINED]
    return [max(done, key=lambda op: (ops.end(op), op))] if done else []
