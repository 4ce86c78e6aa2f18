"""One pass over the events of a Kineto file, batch by batch, each event by its category.

A batch becomes columns at once: a few Python calls per event cost more than decoding its JSON. An
event of a category that is used must be whole, or the file is refused with the event's number, name
and field; events of other categories are counted.

Files whose events have no correlation ids link launches to kernels by arrows. The profiler draws an
arrow (``ac2g``, formerly ``async_cpu_to_gpu``) from each launch to its kernel: two flow events of
one id, at the start of either. As a rule the id is the correlation id of both, and the arrow is
redundant.

With ``with_modules`` or ``with_stack`` the profiler records a range per call of a module
(``python_function``, ``nn.Module: Linear_3``), with ``with_stack`` of every Python function. It
draws an arrow (``fwdbwd``) from each operator of the forward pass to the one that autograd runs for
it. These events do not become ops, and damaged ones are skipped.
"""

import re
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import compress, count
from math import nan
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
import numpy as np
from msgspec import Raw, Struct, structs

from simulator.support.errors import TraceError, shown
from traces.core.columns import EventRows, LaneLabels, ValueIndex
from traces.core.comm_kernels import communicates
from traces.core.events import (
    CommRecord,
    HostKind,
    ModuleEvents,
    ProfilerStep,
    PythonCalls,
    SyncEvent,
)
from traces.core.rank_graph import is_comm
from traces.kineto.comm import comm_record
from traces.kineto.mtia import CATEGORIES as MTIA
from traces.kineto.mtia import MtiaEvents
from traces.kineto.schema import (
    ABSENT,
    EventArgs,
    KinetoEvent,
    LooseNumber,
    SyncArgs,
    decode_batch,
    decode_event,
    decode_sync,
    durations_ns,
    identifier,
    identifiers,
    name_of,
    nanoseconds,
    stamps,
    unwrapped,
)

MODULE_CATEGORIES = ("python_function", "fwdbwd")
"""Categories of the events that :class:`ModuleReading` takes."""
_MODULE = "nn.Module: "
_LONG_CALL = 100_000
"""Shorter calls (ns) neither explain nor cause silences of the host, which take a millisecond."""
_WAITING_CALLS = re.compile(
    r"<built-in .*?\b(?:acquire|sleep|wait\w*|select|poll|recv\w*|accept|join|get|run_backward"
    r"|\w*synchronize)\b"
)
"""C functions in which a thread waits: for a lock, a clock, a file, the device, or for autograd's
threads."""
_Lane = tuple[LooseNumber, LooseNumber]
_Place = tuple[_Lane, int]
"""A process and thread, and a time (ns since ``baseTimeNanoseconds``)."""


class _Flow(Struct, gc=False):
    """An end of an arrow."""

    ph: str = ""
    cat: str | None = None
    id: Raw = ABSENT
    pid: LooseNumber = None
    tid: LooseNumber = None
    ts: LooseNumber = None


_decode_flow = msgspec.json.Decoder(_Flow).decode


class ModuleReading:
    """Collects module calls, Python calls and arrows while the events are read."""

    def __init__(self) -> None:
        self._calls: list[tuple[_Lane, int, int, bool]] = []
        self._ranges: list[tuple[_Lane, str, int, int]] = []
        self._ends: dict[str, dict[int, _Place]] = {_FROM: {}, _TO: {}}

    def add(self, event: KinetoEvent, raw: Raw) -> None:
        """Add an event of one of the categories; events of no module are ignored."""
        with suppress(ValueError, OverflowError, RecursionError):
            if event.cat == "fwdbwd":
                arrow = _decode_flow(raw)
                number = unwrapped(arrow.id)
                if arrow.ph in self._ends and isinstance(number, int | float | str):
                    where = (event.pid, event.tid), nanoseconds(event.ts, raw, "ts")
                    self._ends[arrow.ph][identifier(number, "id")] = where
                return
            if event.ph != "X":
                return
            start, length = nanoseconds(event.ts, raw, "ts"), nanoseconds(event.dur, raw, "dur")
            lane, end = (event.pid, event.tid), start + length
            if length >= 0 and event.name.startswith(_MODULE):
                self._ranges.append((lane, event.name.removeprefix(_MODULE), start, end))
            if length >= _LONG_CALL:
                self._calls.append((lane, start, end, _WAITING_CALLS.match(event.name) is not None))

    def python(self, threads: LaneLabels, first: int) -> PythonCalls | None:
        """Return the long calls on threads that have other events; None if there are none.

        ``first`` is the start of the trace's times (ns).
        """
        calls = [
            (thread, start, end, waits)
            for lane, start, end, waits in self._calls
            if (thread := threads.known(*lane)) is not None
        ]
        if not calls:
            return None
        columns = np.array(calls, dtype=np.int64)
        return PythonCalls(
            thread=columns[:, 0].astype(np.int32),
            start=(columns[:, 1] - first) / 1e9,
            end=(columns[:, 2] - first) / 1e9,
            waits=columns[:, 3].astype(np.bool_),
        )

    def events(self, threads: LaneLabels, first: int) -> ModuleEvents | None:
        """Return the ranges and arrows on threads that have other events; None if there are none.

        ``first`` is the start of the trace's times (ns).
        """
        ranges = [
            (thread, name, start, end)
            for lane, name, start, end in self._ranges
            if (thread := threads.known(*lane)) is not None
        ]
        forward, backward = self._ends[_FROM], self._ends[_TO]
        arrows = [
            (source, forward[number][1], target, backward[number][1])
            for number in forward.keys() & backward.keys()
            if (source := threads.known(*forward[number][0])) is not None
            and (target := threads.known(*backward[number][0])) is not None
        ]
        if not (ranges or arrows):
            return None
        times = np.array([row[2:] for row in ranges], dtype=np.int64).reshape(-1, 2)
        ends = np.array(arrows, dtype=np.int64).reshape(-1, 4)
        return ModuleEvents(
            thread=np.array([row[0] for row in ranges], dtype=np.int32),
            name=tuple(row[1] for row in ranges),
            start=(times[:, 0] - first) / 1e9,
            end=(times[:, 1] - first) / 1e9,
            forward_thread=ends[:, 0].astype(np.int32),
            forward=(ends[:, 1] - first) / 1e9,
            backward_thread=ends[:, 2].astype(np.int32),
            backward=(ends[:, 3] - first) / 1e9,
        )


_ARROWS = ("ac2g", "async_cpu_to_gpu")
_FROM, _TO = "s", "f"


def correlate(
    events: Sequence[Raw], host: tuple[EventRows, LaneLabels], device: tuple[EventRows, LaneLabels]
) -> None:
    """Give kernels without a correlation id that of the launch from which an arrow comes.

    A launch without one gets its kernel's. An arrow without an event at an end is ignored.
    """
    (calls, threads), (kernels, streams) = host, device
    if min(kernels.correlation, default=0) >= 0 and max(calls.correlation, default=0) >= 0:
        return
    ends: dict[str, dict[int, tuple[int | None, int]]] = {_FROM: {}, _TO: {}}
    lanes = {_FROM: threads, _TO: streams}
    for index, raw in enumerate(events):
        flow = _decode_flow(raw)
        if flow.cat not in _ARROWS or flow.ph not in ends:
            continue
        try:
            number = identifier(_number(flow.id), "id")
            stamp = nanoseconds(flow.ts, raw, "ts")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"event {index} {flow.cat!r}: {error}") from error
        ends[flow.ph][number] = (lanes[flow.ph].known(flow.pid, flow.tid), stamp)
    source, target = _Finder(calls), _Finder(kernels)
    for number, end in ends[_TO].items():
        row, call = target.at(*end), source.at(*ends[_FROM].get(number, (None, 0)))
        if row is None or call is None:
            continue
        both = (kernels.correlation[row], calls.correlation[call])
        if min(both) < 0:
            same = max(both) if max(both) >= 0 else number
            kernels.correlation[row] = calls.correlation[call] = same


def separate(calls: EventRows, kernels: EventRows) -> None:
    """Give calls that share a correlation id, and the kernels of each, ids of their own.

    Ids are unique in a process that CUPTI or roctracer watches, but not always in a file merged
    from several. A kernel belongs to the last call with its id that began before it.
    """
    recorded = np.array(calls.correlation, dtype=np.int64)
    numbers, counts = np.unique(recorded[recorded >= 0], return_counts=True)
    shared: dict[int, list[tuple[int, int]]] = {
        number: [] for number in numbers[counts > 1].tolist()
    }
    if not shared:
        return
    for row, number in enumerate(calls.correlation):
        if number in shared:
            insort(shared[number], (calls.start[row], row))
    fresh = count(max(*calls.correlation, *kernels.correlation) + 1)
    for rows in shared.values():
        for _, row in rows[1:]:
            calls.correlation[row] = next(fresh)
    for row, number in enumerate(kernels.correlation):
        if number in shared:
            before = bisect_right(shared[number], (kernels.start[row], len(calls.start)))
            _, call = shared[number][max(before - 1, 0)]
            kernels.correlation[row] = calls.correlation[call]


def _number(piece: Raw) -> LooseNumber:
    value = unwrapped(piece)
    if not isinstance(value, int | float | str | None):
        raise ValueError(f"field 'id': {shown(value)} is not an integer")  # noqa: TRY004 - of the file
    return value


class _Finder:
    """Finds the innermost row of a lane at a time (ns)."""

    def __init__(self, rows: EventRows) -> None:
        self._rows = rows
        self._lanes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, lane in enumerate(rows.lane):
            self._lanes[lane].append((rows.start[row], row))
        for rows_of_lane in self._lanes.values():
            rows_of_lane.sort()

    def at(self, lane: int | None, time: int) -> int | None:
        """Return the row that began last on a lane by a time, if it has not ended."""
        rows = [] if lane is None else self._lanes[lane]
        last = bisect_right(rows, (time, len(self._rows))) - 1
        if last < 0 or self._rows.end[rows[last][1]] < time:
            return None
        return rows[last][1]


_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_NO_ARGS = EventArgs()
_HOST = {
    "cpu_op": HostKind.OPERATOR,
    "operator": HostKind.OPERATOR,
    "user_annotation": HostKind.ANNOTATION,
    "cuda_runtime": HostKind.RUNTIME,
    "cuda_driver": HostKind.RUNTIME,
    "hip_runtime": HostKind.RUNTIME,
    "hip_driver": HostKind.RUNTIME,
    "xpu_runtime": HostKind.RUNTIME,
    "xpu_driver": HostKind.RUNTIME,
    "privateuse1_runtime": HostKind.RUNTIME,
    "privateuse1_driver": HostKind.RUNTIME,
    "runtime": HostKind.RUNTIME,
}
_KERNEL, _COPY, _SYNC, _MTIA, _UNUSED = range(len(HostKind), len(HostKind) + 5)
_USES: dict[str, int] = {
    **_HOST,
    "kernel": _KERNEL,
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), _COPY),
    "cuda_sync": _SYNC,
    **dict.fromkeys(MTIA, _MTIA),
}
_WORK: dict[HostKind | str | None, int] = {
    **{kind: kind for kind in HostKind},
    "kernel": _KERNEL,
    "copy": _COPY,
    None: _MTIA,
}
"""Use of an event by what the reader of MTIA's events says that it is."""
_PHASES = {"M": "metadata", "i": "instant", "C": "counter", "X": "no category"}
_BATCH = 1 << 12
"""Number of events that become columns together."""
_SHORT = 8
_MIN_LENGTHS = 50
"""Number of operators and kernels from which their lengths determine the unit of times."""
_LEAST_TENTH, _LEAST_HALF = 50_000, 100
"""Upper bound (ns) of the first decile of the lengths of operators and kernels, and lower bound of
their median: in 60 recordings of GPUs and CPUs the decile is 0.1 to 6 us, the median 2 to 61."""
_FEW, _SLOW_CALL = 8, 1_000_000
"""Calls of a device's runtime, but those that wait, that determine the unit of a short file, and an
upper bound (ns) of their median length, which is below 16 us in those recordings."""
_NESTED, _MOST_IDLE = 0.2, 60
"""Least share of operators and runtime calls that begin inside another; and upper bound of the
median ratio of a thread's idle times between them to their lengths. In those recordings 48 to 93 %,
and 0.2 to 8.4; with starts in nanoseconds and lengths in microseconds 0 to 10 %, and 350 to
1,800."""
SpanNs = tuple[int, int]
"""Start and end in nanoseconds since ``baseTimeNanoseconds``."""


class _Batch(NamedTuple):
    """Events as decoded and as written, and their uses: a ``HostKind``, a kernel or a copy."""

    events: list[KinetoEvent]
    raws: list[Raw]
    uses: list[int]

    def taken(self, which: list[bool]) -> "_Batch":
        """Return some of them."""
        return _Batch(
            list(compress(self.events, which)),
            list(compress(self.raws, which)),
            list(compress(self.uses, which)),
        )


class EventReading:
    """Columns filled from the events of one file; used by the reader and then dropped."""

    def __init__(self) -> None:
        self.host = EventRows()
        self.device = EventRows()
        self.names: ValueIndex[str] = ValueIndex()
        self.threads = LaneLabels("process", "thread")
        self.streams = LaneLabels("device", "stream")
        self.comms: list[CommRecord] = []
        self.unused: Counter[str] = Counter()
        self.modules = ModuleReading()
        self._steps: list[tuple[int, SpanNs]] = []
        self._syncs: list[tuple[str, SpanNs, SyncArgs]] = []
        self._mtia: MtiaEvents | None = None
        self._lists: dict[tuple[int, ...], tuple[int, ...]] = {}

    def read(self, file: Path, events: list[Raw]) -> None:
        """Read all events, or raise a :class:`TraceError` that names the damaged one."""
        for first in range(0, len(events), _BATCH):
            batch = events[first : first + _BATCH]
            try:
                self._add(batch)
            except (ValueError, OverflowError, RecursionError) as error:
                self._refuse(file, batch, first, error)
        if not (len(self.host) or len(self.device)):
            halves = any(decode_event(raw).ph == "B" for raw in events)
            pairs = " (begins and ends, ph B and E; a trace has whole events, ph X)"
            raise TraceError(
                f"{file}: no operator, launch or kernel among its {len(events)} events"
                f"{pairs if halves else ''}"
            )

    def _refuse(self, file: Path, batch: list[Raw], first: int, reason: Exception) -> NoReturn:
        """Find the damaged event of a batch, and name it."""
        for index, raw in enumerate(batch, first):
            try:
                self._add([raw])
            except (ValueError, OverflowError, RecursionError) as error:
                name = name_of(raw)
                called = f" {shown(name)}" if name else ""
                raise TraceError(f"{file}: event {index}{called}: {error}") from error
        raise TraceError(f"{file}: one of the events from {first} on: {reason}") from reason

    def is_twice(self) -> bool:
        """Whether most kernels, or on a CPU most operators, are in the file twice.

        A stream runs one op at a time; a few operators may coincide to the microsecond. Kernels
        without a launch are not compared.
        """
        rows = self.device if len(self.device) else self.host
        if rows is self.device:
            twins = rows.twins() & (np.asarray(rows.correlation) >= 0)
        else:
            twins = rows.twins(rows.correlation, rows.external)
        return 2 * int(twins.sum()) > int((rows.lengths() > 0).sum())

    def check_unit(self) -> None:
        """Refuse times that are not in microseconds, by the lengths of operators and kernels.

        Raises
        ------
        ValueError
            If hardly any length is short, and all are whole; most are below a clock's resolution;
            or whole starts are far apart compared with the lengths.
        """
        lengths = np.concatenate([self.host.lengths(), self.device.lengths()])
        lengths = lengths[lengths > 0]
        if not any((np.asarray(rows.start) % 1000).any() for rows in (self.host, self.device)):
            calls = np.isin(np.asarray(self.host.code), (HostKind.OPERATOR, HostKind.RUNTIME))
            nested, apart = self.host.spacing(calls)
            if np.count_nonzero(calls) >= _MIN_LENGTHS and nested < _NESTED and apart > _MOST_IDLE:
                raise ValueError(
                    f"operators and calls of the runtime are {apart:,.0f} times as far apart as "
                    f"they are long, and {nested:.0%} of them are inside others: is ts in "
                    "nanoseconds where dur is in microseconds? divide ts by 1000"
                )
        if len(lengths) < _MIN_LENGTHS:
            waits = [number for name, number in self.names.index.items() if "ynchronize" in name]
            is_call = np.asarray(self.host.code) == HostKind.RUNTIME
            calls = self.host.lengths()[is_call & ~np.isin(self.host.name, waits)]
            if len(calls) >= _FEW and np.median(calls) >= _SLOW_CALL and not (calls % 1000).any():
                raise ValueError(
                    f"half of {len(calls):,} calls of the runtime, such as launches, last longer "
                    f"than {np.median(calls) / 1e3:,.0f} us: are ts and dur in nanoseconds? divide "
                    "them by 1000"
                )
            return
        short, middle = np.quantile(lengths, (0.1, 0.5)).tolist()
        if short > _LEAST_TENTH and not (lengths % 1000).any():
            raise ValueError(
                f"nine tenths of {len(lengths):,} operators and kernels last longer than "
                f"{short / 1e3:,.0f} us: are ts and dur in nanoseconds? divide them by 1000"
            )
        if middle < _LEAST_HALF:
            raise ValueError(
                f"half of {len(lengths):,} operators and kernels last less than {middle:.0f} ns: "
                "are ts and dur in milliseconds or seconds? write them in microseconds"
            )

    def check_names(self) -> None:
        """Refuse kernels that all lack a name, or share one though calls were recorded."""
        names = np.asarray(self.device.name)[np.asarray(self.device.code) == 0]
        if not len(names) or (names != names[0]).any():
            return
        name = list(self.names.index)[names[0]]
        if not name or (self.comms and len(names) >= _FEW and not communicates(name)):
            raise ValueError(
                f"all {len(names):,} kernels are called {shown(name)}: which of them communicate"
                " cannot be known; export the trace with the names of its kernels"
            )

    def first(self) -> int:
        """Return the earliest start, in nanoseconds since ``baseTimeNanoseconds``."""
        starts = [span[0] for _, span in self._steps] + [span[0] for _, span, _ in self._syncs]
        return min([*starts, *(min(rows.start) for rows in (self.host, self.device) if len(rows))])

    def steps(self, first: int) -> tuple[ProfilerStep, ...]:
        """Sorted by start."""
        steps = (ProfilerStep(number, *_seconds(span, first)) for number, span in self._steps)
        return tuple(sorted(steps, key=lambda step: (step.start, step.number)))

    def syncs(self, first: int) -> tuple[SyncEvent, ...]:
        """Sorted by start; -1, which means none or all in these events, becomes None."""
        syncs = (
            SyncEvent(
                name,
                *_seconds(span, first),
                stream=self._stream(args.device, args.stream),
                correlation=identifier(args.correlation, "correlation"),
                source_stream=self._stream(args.device, args.source_stream),
                record_correlation=None if recorded < 0 else recorded,
            )
            for name, span, args in self._syncs
            for recorded in (identifier(args.record_correlation, "record_correlation"),)
        )
        mtia = () if self._mtia is None else self._mtia.syncs(first, self.streams)
        return tuple(sorted((*syncs, *mtia), key=lambda sync: sync.start))

    def _add(self, raws: list[Raw]) -> None:
        """Add a batch of events."""
        if len(raws) > 1:  # at once, which is faster, but errors then name no event
            events = decode_batch(b"[%s]" % b",".join(raws))
        else:
            events = [decode_event(raws[0])]
        categories = {event.cat for event in events}
        use_of = {category: _USES.get((category or "").lower(), _UNUSED) for category in categories}
        uses = [use_of[event.cat] if event.ph == "X" else _UNUSED for event in events]
        if _MTIA in uses:
            self._mtia = self._mtia or MtiaEvents()
            for row in [row for row, use in enumerate(uses) if use == _MTIA]:
                uses[row] = _WORK[self._mtia.use(events[row], raws[row])]
        batch, unused = _Batch(events, raws, uses), []
        for event, raw, use in zip(*batch.taken([use >= _SYNC for use in uses]), strict=True):
            if use == _SYNC:
                args = decode_sync(raw).args or SyncArgs()
                args.device = event.pid if args.device is None else args.device
                identifier(args.stream, "stream")
                identifier(args.source_stream, "wait_on_stream")
                identifier(args.correlation, "correlation")
                identifier(args.record_correlation, "wait_on_cuda_event_record_corr_id")
                self._syncs.append((event.name, _span(event, raw), args))
            elif use == _UNUSED:
                unused.append(event.cat or _PHASES.get(event.ph, event.ph))
                if event.cat in MODULE_CATEGORIES:
                    self.modules.add(event, raw)
        self.unused.update(unused)
        self._add_host(batch.taken([use < _KERNEL for use in uses]))
        self._add_device(batch.taken([_KERNEL <= use < _SYNC for use in uses]))

    def _add_host(self, picked: _Batch) -> None:
        names = [event.name for event in picked.events]
        special = {name for name in set(names) if is_comm(name) or _STEP.match(name)}
        comms = [-1] * len(names)
        steps = []
        for row in [row for row, name in enumerate(names) if name in special]:
            event, raw = picked.events[row], picked.raws[row]
            step = _STEP.match(event.name)
            if picked.uses[row] == HostKind.RUNTIME:
                continue
            if step:
                self._steps.append((int(step[1]), _span(event, raw)))
                steps.append(row)
            else:
                comms[row] = self._record(event, raw)
        for row in reversed(steps):
            for column in (*picked, comms):
                del column[row]
        lanes = self.threads.many([(event.pid, event.tid) for event in picked.events])
        self._add_rows(self.host, picked, lanes, comms)

    def _record(self, event: KinetoEvent, raw: Raw) -> int:
        """Read an event's fields of a call; long lists of ranks are stored once."""
        record = comm_record(event.name, raw)
        ranks = record.group_ranks or ()
        if len(ranks) > _SHORT:
            record = structs.replace(record, group_ranks=self._lists.setdefault(ranks, ranks))
        self.comms.append(record)
        return len(self.comms) - 1

    def _add_device(self, picked: _Batch) -> None:
        comms, lanes, blocks, moved = [], [], [], []
        for event, raw in zip(picked.events, picked.raws, strict=True):
            args = event.args or _NO_ARGS
            comms.append(-1 if args.collective is None else self._record(event, raw))
            device = event.pid if args.device is None else args.device
            stream = event.tid if args.stream is None else args.stream
            lanes.append((device, stream))
            blocks.append(_count_of(args.blocks))
            moved.append(_count_of(args.moved))
        self._add_rows(self.device, picked, self.streams.many(lanes), comms)
        self.device.extend(blocks=blocks, moved=moved)

    def _add_rows(
        self, rows: EventRows, picked: _Batch, lanes: list[int], comms: list[int]
    ) -> None:
        events, raws, uses = picked
        args = [event.args or _NO_ARGS for event in events]
        start = stamps([event.ts for event in events], raws, "ts")
        external = [
            fields.external_old if fields.external is None else fields.external for fields in args
        ]
        rows.extend(
            code=[use == _COPY for use in uses] if rows is self.device else uses,
            lane=lanes,
            name=self.names.many([event.name for event in events]),
            start=start,
            end=start + durations_ns([event.dur for event in events], raws),
            correlation=identifiers([fields.correlation for fields in args], "correlation"),
            external=identifiers(external, "External id"),
            comm=comms,
        )

    def _stream(self, device: LooseNumber, stream: LooseNumber) -> str | None:
        return self.streams.label(device, stream) if identifier(stream, "stream") >= 0 else None


def _seconds(span: SpanNs, first: int) -> tuple[float, float]:
    return (span[0] - first) / 1e9, (span[1] - first) / 1e9


def _span(event: KinetoEvent, raw: Raw) -> SpanNs:
    start = nanoseconds(event.ts, raw, "ts")
    return start, start + int(durations_ns([event.dur], [raw])[0])


def _count_of(value: LooseNumber) -> float:
    """Return a counted value; NaN if it is not a number, or an impossible one."""
    return value if isinstance(value, (int, float)) and value >= 0 else nan
