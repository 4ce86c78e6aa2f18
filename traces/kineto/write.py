"""The writer of Kineto files: simulated steps as PyTorch's profiler would have recorded them.

One ``rank<N>.json.gz`` per rank, with host operators, launches, kernels on streams, NCCL's kernels
with their metadata, and waits (``cuda_sync``). The files can be read back: the makespan of the step
that :func:`traces.load.load` makes of them, simulated on the same network, equals the original's.
Stamps are whole nanoseconds, so each call on a path may shift later ops by one: the tolerance is
two nanoseconds per call, and two for the ends. (If calls share links, the shares change with the
shift, without a bound; observed shifts stayed within the same.) This requires a workload with the
structure of :mod:`traces.kineto.write_program`, and the earliest op of a step counts as its start.
A step that was read, from any format, is written with the same kernels, copies and calls; waits
inferred from times, and host ops of no duration, may be more or fewer. It reads back within 1 % of
its time.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from simulator.calls import Group
from simulator.support.errors import OutputError, WorkloadError
from simulator.timeline import Timeline
from simulator.workload import What, Workload
from traces.core.files import write_files
from traces.kineto.write_events import JsonObject, RankEvents, WrittenCall, written_ends
from traces.kineto.write_program import StepTimes, in_sequence, rank_programs

_BASE = 1_735_689_600_000_000_000
"""``baseTimeNanoseconds``: 2025-01-01 00:00 UTC, fixed, so that equal input gives equal bytes."""
_NAME = "rank{}.json.gz"


def write_kineto(
    timelines: Sequence[Timeline], directory: Path | str, *, accelerator: str = "", first: int = 1
) -> tuple[Path, ...]:
    """Write simulated steps of one job, in order, as files of PyTorch's profiler.

    Steps are ``ProfilerStep#first`` and on. Files of these ranks in the directory are replaced once
    all new ones are complete.

    Raises
    ------
    WorkloadError
        If a Kineto file cannot represent the workload, or the steps are not of one job.
    OutputError
        If the directory cannot be written to, or has a file of a rank outside the job.
    """
    folder = Path(directory)
    documents = dict(_documents(timelines, accelerator, first))
    files = [folder / _NAME.format(rank) for rank in documents]
    strangers = sorted(set(folder.glob(_NAME.format("*"))) - set(files))
    if strangers:
        raise OutputError(
            f"{strangers[0]}: is not of the {len(files)} ranks written, and would be read as one of"
            " the job: remove it, or write into another directory"
        )
    # With a header of gzip (31), which ``gzip.compress`` writes otherwise since Python 3.13.
    packed = (zlib.compress(document, 9, wbits=31) for document in documents.values())
    write_files(zip(files, packed, strict=True), folder=folder)
    return tuple(files)


def missing_in_kineto(timeline: Timeline) -> tuple[str, ...]:
    """Return the facts of a simulated step that Kineto files cannot represent; none if all can."""
    workload = timeline.workload
    notes = []
    on_host = [lane.startswith("thread ") for lane in workload.lanes]
    host_calls = np.flatnonzero((workload.call >= 0) & np.array(on_host)[workload.lane])
    if len(host_calls):
        count = len(np.unique(workload.call[host_calls]))
        notes.append(
            f"{count} calls that the host carried out are written as NCCL kernels on streams"
        )
    unwritten = sum(program.unwritten for program in rank_programs(timeline).values())
    if unwritten:
        notes.append(
            f"{unwritten} waits between streams are not written as events, since what waits has no "
            "launch of its own: a reader may infer them from the times"
        )
    return tuple(notes)


def _documents(
    timelines: Sequence[Timeline], accelerator: str, first: int
) -> Iterator[tuple[int, bytes]]:
    """Yield each rank and its file, unpacked."""
    ranks = {timeline.workload.job_ranks for timeline in timelines}
    if len(ranks) != 1:
        raise WorkloadError(
            f"all steps of a job must have the same number of ranks, not {sorted(ranks)}"
        )
    rank_steps = [rank_programs(timeline) for timeline in timelines]
    if len({tuple(programs) for programs in rank_steps}) != 1:
        raise WorkloadError("all steps of a job must be of the same ranks")
    steps = in_sequence(timelines, first)
    groups: dict[Group, int] = {}
    comms = _comms([timeline.workload for timeline in timelines], groups)
    job_ranks = ranks.pop()
    for rank in rank_steps[0]:
        events = RankEvents(rank)
        events.add_names(*_lanes(steps, rank))
        for step, of_ranks, calls in zip(steps, rank_steps, comms, strict=True):
            events.add_step(step, of_ranks[rank], calls)
        # JSON with one event per line.
        head = msgspec.json.encode(_header((rank, job_ranks), groups, accelerator)).removesuffix(
            b"}"
        )
        lines = b",\n".join(msgspec.json.encode(event) for event in events.events)
        yield rank, (head + b',"traceEvents":[\n' + lines + b"\n]}\n")


def _lanes(steps: Sequence[StepTimes], rank: int) -> tuple[set[int], set[int]]:
    """Numbers of a rank's threads and of its streams."""
    threads, streams = set[int](), set[int]()
    for step in steps:
        on_rank, host = step.workload.rank == rank, step.workload.what == What.HOST
        threads |= set(step.lane[on_rank & host].tolist())
        streams |= set(step.lane[on_rank & ~host].tolist())
    return threads, streams


def _comms(
    workloads: Sequence[Workload], groups: dict[Group, int]
) -> list[tuple[dict[int, WrittenCall | None], ...]]:
    """Describe the calls of every step for each rank; sequence numbers continue across steps."""
    described = []
    used: dict[int, int] = defaultdict(int)
    for workload in workloads:
        for communicator in workload.groups:
            groups.setdefault(communicator, len(groups))
        calls = [workload.call_view(index) for index in range(len(workload.calls))]
        before = dict(used)
        step = []
        for call in calls:
            group = groups[call.group]
            sequence = before.get(group, 0) + call.sequence
            used[group] = max(used[group], sequence + 1)
            seen = written_ends(call, group, sequence)
            step.append(dict(zip(call.group.ranks, seen, strict=True)))
        described.append(tuple(step))
    return described


def _header(rank_of_job: tuple[int, int], groups: dict[Group, int], accelerator: str) -> JsonObject:
    """Return all but the events; PyTorch lists the groups of which the rank is a member."""
    rank, world = rank_of_job
    configs = [
        {
            "pg_name": str(number),
            "pg_desc": group.label,
            "backend_config": "cuda:nccl",
            "pg_size": len(group.ranks),
            "ranks": group.ranks,
        }
        for group, number in groups.items()
        if rank in group.ranks
    ]
    distributed = {"backend": "nccl", "rank": rank, "world_size": world}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": accelerator}],
        "distributedInfo": distributed | {"pg_count": len(configs), "pg_config": configs},
        "simulated_by": "twofold",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": _BASE,
    }
