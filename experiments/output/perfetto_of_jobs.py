"""Jobs that share a network, for ui.perfetto.dev: a process per job, the last steps of each.

A job's process has a thread per lane of each of its ranks, and one for its steps. Times are those
since the jobs began, so that what ran beside what is seen. In a call, the slice ``transfer`` is
when it moves.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from experiments.files import writing
from experiments.output.perfetto import Event, called, meta, timed_slice
from simulator.engine.repeating import StepTimes
from simulator.workload import Workload

if TYPE_CHECKING:
    from experiments.questions.share import ShareReport


def write(report: "ShareReport", path: Path) -> None:
    """Write the steps that the report has kept; gzipped if the name ends in ``.gz``.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with writing(path) as stream:
        if path.suffix != ".gz":
            stream.writelines(_document(report))
            return
        with gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
            packed.writelines(_document(report))


def _document(report: "ShareReport") -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    about = {
        "cluster": report.cluster.name,
        "placement": report.seating.placement,
        "jobs": {job.job: f"{job.slow_down:.3f}x" for job in report.jobs},
    }
    yield b'{"displayTimeUnit":"ms","otherData":' + encode(about) + b',"traceEvents":[\n'
    for number, event in enumerate(events(report)):
        yield (b",\n" if number else b"") + encode(event)
    yield b"\n]}\n"


def events(report: "ShareReport") -> Iterator[Event]:
    """All events: names of processes and threads, and the ops of the steps that were kept."""
    for number, (placed, found) in enumerate(zip(report.placed, report.sharing.jobs, strict=True)):
        process = number + 1
        if found.done is None:
            workload, alone = found.alone.workload, found.alone
            times = StepTimes(
                placed.begins, alone.start, alone.end, alone.call_start, alone.call_end
            )
            steps = {0: times}
        else:
            workload, kept = found.workload, list(found.done.kept)
            steps = dict(enumerate(kept, start=len(found.done.length) - len(kept)))
        threads = _threads(workload)
        yield from _names(placed.name, process, workload, threads)
        for step, times in steps.items():
            yield from _step(workload, step, times, (process, threads))


def _threads(workload: Workload) -> dict[tuple[int, int], int]:
    """Give a number to each lane of each rank; 1 is that of the steps."""
    pairs = np.unique(np.stack([workload.rank, workload.lane]), axis=1).T.tolist()
    return {(rank, lane): number for number, (rank, lane) in enumerate(pairs, start=2)}


def _names(
    name: str, process: int, workload: Workload, threads: dict[tuple[int, int], int]
) -> Iterator[Event]:
    yield meta("process_name", process, 0, f"job {name}")
    yield meta("process_sort_index", process, 0, process)
    yield meta("thread_name", process, 1, "steps")
    for (rank, lane), thread in threads.items():
        yield meta("thread_name", process, thread, f"seat {rank} {workload.lanes[lane]}")
        yield meta("thread_sort_index", process, thread, thread)


def _step(
    workload: Workload,
    number: int,
    times: StepTimes,
    where: tuple[int, dict[tuple[int, int], int]],
) -> Iterator[Event]:
    process, threads = where
    begin = times.begin
    whole = begin, begin + float(times.end.max())
    yield timed_slice(f"step {number}", "step", whole, (process, 1))
    for op in range(len(workload)):
        span = begin + float(times.start[op]), begin + float(times.end[op])
        at = process, threads[int(workload.rank[op]), int(workload.lane[op])]
        call = int(workload.call[op])
        args: dict[str, object] = {"op": op, "step": number}
        if call >= 0:
            args["call"] = str(workload.call_view(call))
        yield timed_slice(*called(workload, op), span, at) | {"args": args}
        if call >= 0:
            moving = max(span[0], begin + float(times.call_start[call]))
            over = begin + float(times.call_end[call])
            if moving <= over:
                yield timed_slice("transfer", "transfer", (moving, over), at)
