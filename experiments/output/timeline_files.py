"""Timelines as files of other tools: for ui.perfetto.dev, and Parquet with a row per op.

For Perfetto measured and simulated times are side by side, with the critical path, in Chrome's JSON
trace format: complete events (``ph`` X) on processes and threads. Each rank is two processes,
measured above simulated, with a thread per lane, host threads above streams. In a call, the slice
``transfer`` is when it moves data; before it the rank waits for others. The critical path is a
process of its own: one track without gaps, whose outer slice names the rank. Below all is a counter
of the job's power: an accelerator draws its active power while a kernel or a copy runs on it, else
its idle power, and all other parts of the bill are always active, as in the energy of studies.

``ts`` and ``dur`` are microseconds. Both ends of a slice are rounded to nanoseconds, not its
length: adjacent slices stay adjacent, and nested ones stay nested.
"""

import gzip
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.files import writing
from simulator.analysis.critical_path import CriticalPath
from simulator.analysis.metrics import union
from simulator.engine.repeating import StepTimes
from simulator.support.errors import ClusterError
from simulator.timeline import Timeline, first_start
from simulator.workload import What, Workload
from topologies.cluster.bill import bill_of

if TYPE_CHECKING:
    from experiments.baseline import Baseline
    from experiments.questions.collective_calls import CollectiveCallsReport
    from experiments.questions.serving import ServingReport
    from experiments.questions.share import ShareReport

Event = dict[str, Any]


class WithPath(Protocol):
    """A report with a replay and its critical path."""

    @property
    def base(self) -> "Baseline":
        """The replay."""

    @property
    def path(self) -> CriticalPath:
        """The critical path, in order of time."""


_PATH, _POWER = 1, 2
"""Process ids of the critical path and of the power; rank r is measured in 10 + 2 r and simulated
in 11 + 2 r."""
_LAST_PROCESS = 1 << 30
"""Sort index of a process below all ranks."""


def write(report: WithPath, path: Path) -> None:
    """Write the file; gzipped if its name ends in ``.gz``."""
    base = report.base
    about = {
        "trace": base.loaded.trace,
        "cluster": base.scenario.cluster.name,
        "engine": base.settings.engine,
        "measured step [us]": 1e6 * base.loaded.measured_step,
        "simulated step [us]": 1e6 * base.timeline.makespan,
    }
    try:
        drawn = power(base)
    except ClusterError as error:
        about["no power over time"] = str(error)
        drawn = []
    write_events(path, about, chain(_power(drawn), events(report)))


def write_events(path: Path, about: Mapping[str, object], events: Iterable[Event]) -> None:
    """Write events; gzipped if the name ends in ``.gz``."""
    with writing(path) as stream:
        if path.suffix != ".gz":
            stream.writelines(_lines(about, events))
            return
        with gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
            packed.writelines(_lines(about, events))


def _lines(about: Mapping[str, object], events: Iterable[Event]) -> Iterator[bytes]:
    """Encode event by event: a million ops as objects would take gigabytes."""
    encode = msgspec.json.Encoder().encode
    yield b'{"displayTimeUnit":"ms","otherData":' + encode(about) + b',"traceEvents":[\n'
    for number, event in enumerate(events):
        yield (b",\n" if number else b"") + encode(event)
    yield b"\n]}\n"


def power(base: "Baseline") -> list[tuple[float, float]]:
    """Power of a simulated step over time: instants of change (s), and the power from then on (W).

    The last moment is the end of the step. Accelerators of its nodes that have no rank are idle.
    Raises ClusterError if what a part draws is not known; names the field that gives it.
    """
    timeline, scenario = base.timeline, base.scenario
    workload, origin = timeline.workload, first_start(timeline)
    bill = bill_of(scenario.cluster, scenario.ranks, scenario.nodes)
    works = np.isin(workload.what, (What.COMPUTE, What.COPY))
    working = [
        union(timeline.start[of_rank], timeline.end[of_rank]) - origin
        for of_rank in (ops[works[ops]] for ops in map(workload.ops_of, workload.ranks))
    ]
    begins, ends = np.concatenate([np.empty((0, 2)), *working]).T
    end = float(timeline.end.max()) - origin
    moments, which = np.unique(np.concatenate([[0.0, end], begins, ends]), return_inverse=True)
    steps = np.concatenate([[0, 0], np.ones(len(begins)), -np.ones(len(ends))])
    share = np.cumsum(np.bincount(which, steps)) / len(workload.ranks)
    busy = np.clip(share, 0, 1) * scenario.ranks / bill.count("accelerator")
    drawn = [bill.energy(1.0, {"accelerator": part}) for part in busy.tolist()]
    return list(zip(moments.tolist(), drawn, strict=True))


def _power(drawn: Iterable[tuple[float, float]]) -> Iterator[Event]:
    """Yield a counter of the power (W), on a process of its own."""
    for number, (moment, watts) in enumerate(drawn):
        if not number:
            yield meta("process_name", _POWER, 0, "power (simulated)")
            yield meta("process_sort_index", _POWER, 0, _LAST_PROCESS)
        at = {"pid": _POWER, "tid": 0, "ts": round(1e9 * moment) / 1e3}
        yield {"ph": "C", "name": "power [W]", **at, "args": {"W": round(watts, 1)}}


_TOGETHER, _ALONE = 1, 2
"""Process ids of concurrent calls, and of calls alone."""


def events_of_calls(report: "CollectiveCallsReport") -> Iterator[Event]:
    """All events of concurrent calls: a thread for each, together and alone."""
    for process, word in ((_TOGETHER, "together"), (_ALONE, "as long as alone")):
        yield meta("process_name", process, 0, word)
        yield meta("process_sort_index", process, 0, process)
        for call in report.calls:
            yield meta("thread_name", process, call.number, f"{call.number} {call.call}")
    for span in report.spans:
        call = report.calls[span.call - 1]
        alone = span.start_s + call.alone_s
        for process, end in ((_TOGETHER, span.end_s), (_ALONE, alone)):
            yield timed_slice(call.kind, "call", (span.start_s, end), (process, span.call))


def events(report: WithPath) -> Iterator[Event]:
    """All events: names of processes and threads, ops as measured and as simulated, the path."""
    timeline = report.base.timeline
    workload, origin = timeline.workload, first_start(timeline)
    yield meta("process_name", _PATH, 0, "critical path (simulated)")
    yield meta("process_sort_index", _PATH, 0, 0)
    yield meta("thread_name", _PATH, 1, "rank and op")
    for rank in workload.ranks:
        of_rank = workload.ops_of(rank)
        lanes = np.unique(workload.lane[of_rank])
        of_host = set(workload.lane[of_rank[workload.what[of_rank] == What.HOST]].tolist())
        for process, word in ((_process(rank), "measured"), (_process(rank) + 1, "simulated")):
            yield meta("process_name", process, 0, f"rank {rank} {word}")
            yield meta("process_sort_index", process, 0, process)
            for lane in lanes.tolist():
                yield meta("thread_name", process, lane + 1, workload.lanes[lane])
                order = lane + 1 + (0 if lane in of_host else len(workload.lanes))
                yield meta("thread_sort_index", process, lane + 1, order)
    yield from _path(report)
    for op in range(len(workload)):
        yield from _measured(workload, op)
        where = _process(int(workload.rank[op])) + 1, int(workload.lane[op]) + 1
        args = {"op": op, "released by op": int(timeline.released_by[op])}
        yield from _simulated(workload, timeline, op, -origin, where, args)


def meta(what: str, process: int, thread: int, value: object) -> Event:
    """Return an event that names a process or a thread, or gives its sort index."""
    key = "sort_index" if what.endswith("sort_index") else "name"
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {key: value}}


def _process(rank: int) -> int:
    return 10 + 2 * rank


def timed_slice(name: str, kind: str, span: tuple[float, float], where: tuple[int, int]) -> Event:
    """Make a slice of a span (s) on a process and thread."""
    start, end = (round(1e9 * time) for time in span)
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": where[0],
        "tid": where[1],
        "ts": start / 1e3,
        "dur": max(0, end - start) / 1e3,
    }


def _measured(workload: Workload, op: int) -> Iterator[Event]:
    span = float(workload.measured_start[op]), float(workload.measured_end[op])
    if np.isnan(span[0]):
        return
    where = _process(int(workload.rank[op])), int(workload.lane[op]) + 1
    yield timed_slice(*called(workload, op), span, where) | {"args": {"op": op}}
    if workload.what[op] >= What.COLLECTIVE:
        took = float(workload.calls.transfer[workload.call[op]])
        if 0 < took < span[1] - span[0]:
            yield timed_slice("transfer", "transfer", (span[1] - took, span[1]), where)


def _simulated(
    workload: Workload,
    times: Timeline | StepTimes,
    op: int,
    later: float,
    where: tuple[int, int],
    args: Mapping[str, object],
) -> Iterator[Event]:
    """Yield an op that is ``later`` (s) than in its step, and when its call moves data."""
    span = later + float(times.start[op]), later + float(times.end[op])
    call = int(workload.call[op])
    if call >= 0:
        args = {**args, "call": str(workload.call_view(call))}
    yield timed_slice(*called(workload, op), span, where) | {"args": args}
    if call >= 0:
        # A receiver may arrive while an eager message moves, or after that.
        moving = max(span[0], later + float(times.call_start[call]))
        over = later + float(times.call_end[call])
        if moving <= over:
            yield timed_slice("transfer", "transfer", (moving, over), where)


def called(workload: Workload, op: int) -> tuple[str, str]:
    """Return the name of an op and what it is."""
    return workload.names[workload.name[op]], What(workload.what[op]).name.lower()


def _path(report: WithPath) -> Iterator[Event]:
    workload, origin = report.base.timeline.workload, first_start(report.base.timeline)
    for rank, run in groupby(report.path, lambda segment: int(workload.rank[segment.op])):
        segments = list(run)
        whole = segments[0].start - origin, segments[-1].end - origin
        yield timed_slice(f"rank {rank}", "rank", whole, (_PATH, 1))
        for segment in segments:
            name = f"{segment.what}: {workload.names[workload.name[segment.op]]}"
            span = segment.start - origin, segment.end - origin
            yield timed_slice(name, segment.what, span, (_PATH, 1)) | {"args": {"op": segment.op}}


def events_of_jobs(report: "ShareReport") -> Iterator[Event]:
    """All events: names of processes and threads, and the ops of the steps that were kept."""
    for number, (placed, job) in enumerate(zip(report.placed, report.sharing.jobs, strict=True)):
        process = number + 1
        if job.done is None:
            workload, alone = job.alone.workload, job.alone
            times = StepTimes(
                placed.begins, alone.start, alone.end, alone.call_start, alone.call_end
            )
            steps = {0: times}
        else:
            workload, steps_kept = job.workload, list(job.done.kept)
            steps = dict(enumerate(steps_kept, start=len(job.done.length) - len(steps_kept)))
        # Number the lanes of each rank; 1 is the thread of the steps
        pairs = np.unique(np.stack([workload.rank, workload.lane]), axis=1).T.tolist()
        threads = {(rank, lane): number for number, (rank, lane) in enumerate(pairs, start=2)}
        yield meta("process_name", process, 0, f"job {placed.name}")
        yield meta("process_sort_index", process, 0, process)
        yield meta("thread_name", process, 1, "steps")
        for (rank, lane), thread in threads.items():
            yield meta("thread_name", process, thread, f"seat {rank} {workload.lanes[lane]}")
            yield meta("thread_sort_index", process, thread, thread)
        for step, times in steps.items():
            whole = times.begin, times.begin + float(times.end.max())
            yield timed_slice(f"step {step}", "step", whole, (process, 1))
            for op in range(len(workload)):
                where = process, threads[int(workload.rank[op]), int(workload.lane[op])]
                args = {"op": op, "step": step}
                yield from _simulated(workload, times, op, times.begin, where, args)


_INSTANCES, _REQUESTS = 1, 2
"""Process ids of instances, each a thread, and of requests."""
_SHOWN = 2_000
"""Number of requests that are written, the first ones."""


def events_of_serving(report: "ServingReport") -> Iterator[Event]:
    """Return an event for each iteration, and nested ones of a request's queue, prompt, decodes."""
    run = report.first_run
    yield meta("process_name", _INSTANCES, 0, "instances")
    yield meta("process_name", _REQUESTS, 0, "requests")
    for instance in np.unique(run.iterations["instance"]).tolist():
        yield meta("thread_name", _INSTANCES, instance, run.track(instance))
    for instance, begin, end, tokens, chunks in run.iterations.tolist():
        name = "decodes and prompts" if chunks else "decodes"
        event = timed_slice(name, "iteration", (begin, end), (_INSTANCES, int(instance)))
        yield event | {"args": {"tokens": int(tokens), "chunks": int(chunks)}}
    begins = run.arrived[:_SHOWN]
    columns = (begins, begins + run.queued[:_SHOWN], begins + run.ttft[:_SHOWN])
    for number, times in enumerate(zip(*columns, begins + run.end_to_end[:_SHOWN], strict=True)):
        arrived, scheduled, first, last = map(float, times)
        for name, begin, end in (
            (f"request {number}", arrived, last),
            ("queue", arrived, scheduled),
            ("prefill", scheduled, first),
            ("decode", first, last),
        ):
            for phase, time in (("b", begin), ("e", end)):
                yield {
                    **{"ph": phase, "name": name, "cat": "request", "id": number},
                    **{"pid": _REQUESTS, "tid": 0, "ts": round(1e9 * time) / 1e3},
                }


_ROWS = 1 << 18
"""Rows per row group, which a reader decodes at once."""


def write_parquet(timeline: Timeline, path: Path) -> None:
    """Write when every op started and ended, measured and simulated (s).

    Columns: op, rank, lane, name, what, start, end, measured_start, measured_end, released_by (the
    op whose end let it start, null: none), call, call_kind, call_group, call_size (bytes),
    call_start, call_end, and call_sent: of an all-to-all whose pairs have different bytes, those
    that the op's rank has for each of the group (else null). Engine, makespan and topology are
    in the file's metadata.
    """
    table = to_table(timeline)
    with writing(path) as stream:
        pq.write_table(table, stream, row_group_size=_ROWS, compression="zstd")


def to_table(timeline: Timeline) -> pa.Table:
    """Make the table; columns share memory with the timeline if they can."""
    workload, call = timeline.workload, timeline.workload.call
    views = [workload.call_view(index) for index in range(len(workload.calls))]
    kinds = list(dict.fromkeys(view.kind for view in views))
    groups = list(dict.fromkeys(str(view.group) for view in views))
    kind = np.array([kinds.index(view.kind) for view in views], dtype=np.int32)
    number_of = {group: number for number, group in enumerate(groups)}
    group = np.array([number_of[str(view.group)] for view in views], dtype=np.int32)
    columns = {
        "op": pa.array(np.arange(len(workload), dtype=np.int32)),
        "rank": pa.array(workload.rank),
        "lane": _named(workload.lane, workload.lanes),
        "name": _named(workload.name, workload.names),
        "what": _named(workload.what.astype(np.int32), [what.name.lower() for what in What]),
        "start": pa.array(timeline.start),
        "end": pa.array(timeline.end),
        "measured_start": _finite_column(workload.measured_start),
        "measured_end": _finite_column(workload.measured_end),
        "released_by": _index(timeline.released_by),
        "call": _index(call),
        # Of the call of each op, null for ops without one
        "call_kind": _named(_by_op(kind, call), kinds),
        "call_group": _named(_by_op(group, call), groups),
        "call_size": _finite_column(_by_op(workload.calls.size, call, np.nan)),
        "call_start": _finite_column(_by_op(timeline.call_start, call, np.nan)),
        "call_end": _finite_column(_by_op(timeline.call_end, call, np.nan)),
        "call_sent": _sent(workload),
    }
    about = {
        "engine": timeline.engine,
        "makespan_s": repr(timeline.makespan),
        "topology": timeline.topology.name,
    }
    return pa.table(columns).replace_schema_metadata(about)


def _sent(workload: Workload) -> pa.Array:
    """Bytes sent to each rank of the group, for calls whose pairs have different ones."""
    lists = pa.list_(pa.float64())
    if not workload.calls.shares:
        return pa.nulls(len(workload), lists)
    rows: list[list[float] | None] = []
    for call, rank in zip(workload.call.tolist(), workload.rank.tolist(), strict=True):
        shares = workload.calls.shares_of(call) if call >= 0 else None
        if shares is None:
            rows.append(None)
            continue
        view = workload.call_view(call)
        rows.append(shares.bytes(view.size)[view.group.ranks.index(rank)].tolist())
    return pa.array(rows, lists)


def _by_op(
    column: NDArray[np.generic], call: NDArray[np.int32], missing: float = -1
) -> NDArray[np.generic]:
    """Expand a column of calls to their ops."""
    if not len(column):
        return np.full(len(call), missing, dtype=column.dtype)
    return np.where(call >= 0, column[call], np.asarray(missing, dtype=column.dtype))


def _named(index: NDArray[np.generic], names: tuple[str, ...] | list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_index(index), pa.array(list(names), pa.string()))


def _index(column: NDArray[np.generic]) -> pa.Array:
    """Put null for an index of -1."""
    return pa.array(column, mask=np.asarray(column) < 0)


def _finite_column(column: NDArray[np.generic]) -> pa.Array:
    return pa.array(column, mask=np.isnan(column))
