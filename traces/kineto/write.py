"""The writer of Kineto files: simulated steps as PyTorch's profiler would have recorded them.

One ``rank<N>.json.gz`` per rank, with host operators, launches, kernels on streams, NCCL's kernels
with their metadata, and what waited for what (``cuda_sync``). What is written reads back: the
makespan of the step that :func:`traces.load.load` makes of it, simulated on the same network, is
the one it was written from. Stamps are whole nanoseconds, so each call a path runs through may
shift what follows by one: the tolerance is two nanoseconds per call, and two for the ends. (Where
calls share links, the shares change with the shift, and nothing bounds that; it stayed within the
same.) For that a workload must have the structure of :mod:`traces.kineto.write_program`, and
the earliest op of a step is taken as its start.
"""

import gzip
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from simulator.errors import OutputError, WorkloadError
from simulator.timeline import Timeline
from simulator.workload import Group, Workload
from traces.kineto.write_comm import JsonObject, WrittenCall, written_ends
from traces.kineto.write_events import RankEvents
from traces.kineto.write_program import in_sequence, lane_number, thread_programs

_BASE = 1_735_689_600_000_000_000
"""``baseTimeNanoseconds``: 2025-01-01 00:00 UTC, fixed, so that equal input gives equal bytes."""
_NAME = "rank{}.json.gz"


def write_kineto(
    timelines: Sequence[Timeline], directory: Path | str, *, accelerator: str = "", first: int = 1
) -> tuple[Path, ...]:
    """Write simulated steps of one job, in order, as files of PyTorch's profiler.

    Parameters
    ----------
    timelines
        The steps: ``ProfilerStep#first`` and on.
    directory
        Made if need be; files of these ranks are replaced, and all are complete before the first
        is.
    accelerator
        What ``deviceProperties`` says the ranks ran on.
    first
        The number of the first step.

    Returns
    -------
    tuple of Path
        ``rank<N>.json.gz`` of every rank, in order.

    Raises
    ------
    WorkloadError
        If a Kineto file cannot say what the workload is, or the steps are not of one job.
    OutputError
        If the directory cannot be written to, or has a file of a rank outside the job.
    """
    folder = Path(directory)
    documents = list(_documents(timelines, accelerator, first))
    files = [folder / _NAME.format(rank) for rank in range(len(documents))]
    parts = [file.with_name(f".{file.name}.part") for file in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_alone(folder, files)
        for part, document in zip(parts, documents, strict=True):
            part.write_bytes(gzip.compress(document, mtime=0))
        for part, file in zip(parts, files, strict=True):
            part.replace(file)
    except OSError as error:
        _remove(parts)
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"{error.filename or folder}: cannot be written: {reason}") from error
    return tuple(files)


def _remove(parts: Sequence[Path]) -> None:
    """Take away what was begun; where even that is refused, nothing was begun."""
    for part in parts:
        try:
            part.unlink(missing_ok=True)
        except OSError:
            return


def _check_alone(folder: Path, files: Sequence[Path]) -> None:
    strangers = sorted(set(folder.glob(_NAME.format("*"))) - set(files))
    if strangers:
        raise OutputError(
            f"{strangers[0]}: of a rank outside this job of {len(files)}; both would be read as one"
        )


def _documents(timelines: Sequence[Timeline], accelerator: str, first: int) -> Iterator[bytes]:
    """Yield each rank's file, unpacked."""
    ranks = {timeline.workload.job_ranks for timeline in timelines}
    if len(ranks) != 1:
        raise WorkloadError(f"steps of one job have one number of ranks, not {sorted(ranks)}")
    apart = [thread_programs(timeline) for timeline in timelines]
    steps = in_sequence(timelines, first)
    groups: dict[Group, int] = {}
    comms = _comms([timeline.workload for timeline in timelines], groups)
    job_ranks = ranks.pop()
    for rank in range(job_ranks):
        events = RankEvents(rank)
        streams = {
            lane_number(step.workload, host.launched)
            for step, of_ranks in zip(steps, apart, strict=True)
            for host in of_ranks[rank].host
            if host.launched is not None
        }
        events.add_names(apart[0][rank].thread, streams)
        for step, of_ranks, calls in zip(steps, apart, comms, strict=True):
            events.add_step(step, of_ranks[rank], calls)
        yield _document(_header((rank, job_ranks), groups, accelerator), events.events)


def _comms(
    workloads: Sequence[Workload], groups: dict[Group, int]
) -> list[tuple[dict[int, WrittenCall], ...]]:
    """Describe the calls of every step to each rank; sequence numbers go on from step to step."""
    described = []
    used: dict[int, int] = defaultdict(int)
    for workload in workloads:
        for known in workload.groups:
            groups.setdefault(known, len(groups))
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
    """Everything but the events; PyTorch lists the groups that the rank is a member of."""
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


def _document(header: JsonObject, events: Sequence[JsonObject]) -> bytes:
    """JSON with one event per line."""
    head = msgspec.json.encode(header).removesuffix(b"}")
    lines = b",\n".join(msgspec.json.encode(event) for event in events)
    return head + b',"traceEvents":[\n' + lines + b"\n]}\n"
