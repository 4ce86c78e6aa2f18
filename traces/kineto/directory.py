"""A job as its ranks recorded it: one file, or a directory with a file per rank.

All files must be of one run: no two of one rank, one world size, one backend, steps in common. A
missing rank is an error where most ranks are there, because then it was lost: more than half of
those up to the highest. Fewer are a sample, taken on purpose (ranks 0 and 8 of 16), and a note
says so; so does one for ranks above the highest, which nothing tells from a sample.

Execution Traces beside the profiler's files: each adds what it knows to its rank.

The format ``kineto``: files of the PyTorch profiler, one per rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from simulator.errors import TraceError
from traces.core.events import Job, RankTrace, Skipped
from traces.core.files import unpack
from traces.core.loaded import Loaded, Options
from traces.core.sniff import is_execution_trace
from traces.kineto.document import (
    ASSUMED,
    EXECUTION_TRACE,
    Foreign,
    load,
    named_json,
    rank_of,
    unknown_rank,
)
from traces.kineto.reader import rank_trace, read_rank
from traces.kineto.schema import Header
from traces.profiler.link import linked
from traces.pytorch_et.join import Linked, enriched, link
from traces.pytorch_et.reader import parse

_HEAD = 1 << 16


def attach(
    ranks: Sequence[RankTrace], files: Sequence[Path]
) -> tuple[list[RankTrace], Mapping[Path, str], list[str]]:
    """Link files with their ranks; return the ranks, why which file was not used, and notes.

    A file's rank is the number in its name, or the only one there is. A file that is damaged, of
    another run or of a rank that is not there does no harm. Groups are taken only where every rank
    has a file.
    """
    known = {trace.rank: trace for trace in ranks}
    refused: dict[Path, str] = {}
    linked: list[Linked] = []
    for file in files:
        try:
            data = unpack(file)
            if is_execution_trace(data[:_HEAD]):
                rank = _rank(file, known, {one.rank.rank for one in linked})
                linked.append(link(parse(file, data), known[rank]))
        except TraceError as error:
            refused[file] = str(error).removeprefix(f"{file}: ")
    every = len(linked) == len(ranks)
    added = {one.rank.file: enriched(one, groups=every) for one in linked}
    used = {one.trace.file for one in linked}
    refused |= dict.fromkeys(set(files) - used - refused.keys(), EXECUTION_TRACE)
    found = [added.get(trace.file, trace) for trace in ranks]
    return found, refused, [_note(linked)] if linked else []


def _rank(file: Path, ranks: Mapping[int, RankTrace], done: set[int]) -> int:
    only = next(iter(ranks)) if len(ranks) == 1 else None
    number = only if only is not None else rank_of(file, Header(), alone=False)[0]
    if number not in ranks:
        raise TraceError(
            f"{file}: an execution trace of rank {number}, which has no profiler trace"
        )
    if number in done:
        raise TraceError(f"{file}: a second execution trace of rank {number}")
    return number


def _note(linked: Sequence[Linked]) -> str:
    """Say how well they fit, in numbers that add up."""
    kernels = sum(one.kernels for one in linked)
    known = sum(one.kernels_linked for one in linked)
    comms = [one.comms for one in linked]
    host_only = sum(sum(one.host_only.values()) for one in comms)
    lost = sum(sum(one.unlinked.values()) for one in comms)
    names = sorted({name for one in linked for name in one.unlinked_kernels})
    note = (
        f"{len(linked)} execution traces used: {known} of {kernels} kernels linked to their "
        f"operator; of {sum(one.records for one in comms)} communication records "
        f"{sum(one.with_kernel for one in comms)} have a kernel, {host_only} are the host's alone, "
        f"{lost} are not in the profiler's trace"
    )
    return note + (f"; not linked: {', '.join(name[:40] for name in names[:5])}" if names else "")


def read_job(path: Path, *, sample: bool = False, executions: bool = True) -> Job:
    """Read a rank's file, or the files of a directory, not of its sub-directories.

    ``sample`` says that ranks are missing on purpose, ``executions`` that Execution Traces beside
    the files add what they know (:func:`with_execution_traces`).

    Raises
    ------
    TraceError
        A file cannot be read or is broken, there is none, or the files are not of one run.
    """
    skipped: tuple[Skipped, ...] = ()
    if path.is_dir():
        ranks, skipped = _directory(path)
    else:
        ranks = (read_rank(path, alone=True),)
    ranks = tuple(sorted(ranks, key=lambda trace: trace.rank))
    _check_one_run(ranks)
    job_ranks, source = _job_ranks(ranks)
    missing = _missing(path, ranks, job_ranks, sample=sample)
    notes = (*missing, *_steps(ranks), *_clocks(ranks))
    job = Job(ranks, job_ranks, source, skipped, notes)
    return with_execution_traces(job) if executions else job


def has_execution_traces(job: Job) -> bool:
    """Whether Execution Traces lie beside the files that were read, and were not used."""
    return any(one.reason == EXECUTION_TRACE for one in job.skipped)


def with_execution_traces(job: Job) -> Job:
    """Let Execution Traces beside the profiler's files add to their ranks what they know."""
    files = [one.file for one in job.skipped if one.reason == EXECUTION_TRACE]
    if not files:
        return job
    found, refused, notes = attach(job.ranks, files)
    left = tuple(
        replace(one, reason=refused.get(one.file, one.reason))
        for one in job.skipped
        if one.file in refused or one.file not in files
    )
    return replace(job, ranks=tuple(found), skipped=left, notes=(*job.notes, *notes))


def _directory(path: Path) -> tuple[tuple[RankTrace, ...], tuple[Skipped, ...]]:
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    ranks: list[RankTrace] = []
    skipped: list[Skipped] = []
    for file in files:
        found = _read(file)
        if isinstance(found, Skipped):
            skipped.append(found)
            continue
        ranks.append(found)
        guessed = [trace.file for trace in ranks if trace.rank_source == ASSUMED]
        if guessed and len(ranks) > 1:
            raise unknown_rank(guessed[0])
    if not ranks:
        raise TraceError(f"{path}: no profiler trace in this directory{_reasons(skipped)}")
    return tuple(ranks), tuple(skipped)


def _read(file: Path) -> RankTrace | Skipped:
    if not file.is_file():
        return Skipped(file, "not a file; sub-directories are not searched")
    try:
        document = load(file)
    except TraceError as error:
        if named_json(file):
            raise
        return Skipped(file, str(error).removeprefix(f"{file}: "))
    if isinstance(document, Foreign):
        return Skipped(file, document.reason)
    return rank_trace(document, alone=True)


def _reasons(skipped: Sequence[Skipped]) -> str:
    """Say what was in a directory without traces, shortly."""
    if not skipped:
        return ": it is empty"
    shown = [f"{skip.file.name}: {skip.reason}" for skip in skipped[:3]]
    return f" ({len(skipped)} skipped; {'; '.join(shown)})"


def _check_one_run(ranks: Sequence[RankTrace]) -> None:
    for one, other in pairwise(ranks):
        if one.rank == other.rank:
            raise TraceError(
                f"{other.file}: rank {one.rank} again, as {one.file} "
                f"(from {one.rank_source}, from {other.rank_source}): leave one of them"
            )
    for what, said in (
        ("distributedInfo.world_size", [(trace, trace.world_size) for trace in ranks]),
        ("distributedInfo.backend", [(trace, trace.backend or None) for trace in ranks]),
    ):
        told = [(trace, value) for trace, value in said if value is not None]
        for trace, value in told[1:]:
            if value != told[0][1]:
                raise TraceError(
                    f"{trace.file}: {what} is {value}, but {told[0][1]} in {told[0][0].file}: "
                    "the files are not of one job"
                )


def _job_ranks(ranks: Sequence[RankTrace]) -> tuple[int, str]:
    highest = ranks[-1].rank + 1
    world = next((trace.world_size for trace in ranks if trace.world_size is not None), None)
    if world is not None:
        if highest > world:
            raise TraceError(f"{ranks[-1].file}: rank {highest - 1} in a world of {world} ranks")
        return world, "distributedInfo.world_size"
    largest = 0
    for trace in ranks:
        for record in trace.comms:
            largest = max(
                largest, record.group_size or 0, *(r + 1 for r in record.group_ranks or ())
            )
    if largest > highest:
        return largest, "the largest communicator"
    return highest, "the highest rank of the files"


def _missing(
    path: Path, ranks: Sequence[RankTrace], job_ranks: int, *, sample: bool
) -> Iterator[str]:
    present = [trace.rank for trace in ranks]
    most_are_there = len(present) > 1 and 2 * len(present) > present[-1] + 1
    if most_are_there and len(present) <= present[-1] and not sample:
        gaps = sorted(set(range(present[-1])) - set(present))
        raise TraceError(
            f"{path}: no file of rank {_listed(gaps)} among those of ranks {_listed(present)}: "
            "add it, or let --replicate put copies of the others there"
        )
    if len(present) < job_ranks:
        yield f"{len(present)} of {job_ranks} ranks were recorded: {_listed(present)}"


def _steps(ranks: Sequence[RankTrace]) -> Iterator[str]:
    steps = {trace: {step.number for step in trace.steps} for trace in ranks}
    stepped = [trace for trace in ranks if steps[trace]]
    for trace in stepped[1:]:
        if not steps[trace] & steps[stepped[0]]:
            raise TraceError(
                f"{trace.file}: ProfilerStep {_listed(sorted(steps[trace]))}, but "
                f"{_listed(sorted(steps[stepped[0]]))} in {stepped[0].file}: no step in common"
            )
    if len({frozenset(numbers) for numbers in steps.values()}) > 1:
        told = (f"rank {trace.rank}: {_listed(sorted(steps[trace])) or 'none'}" for trace in ranks)
        yield f"the ranks recorded different steps ({'; '.join(told)})"


def _clocks(ranks: Sequence[RankTrace]) -> Iterator[str]:
    """Clocks of hosts may differ, so that files of different times are told, not refused."""
    latest = max(ranks, key=lambda trace: trace.epoch)
    earliest = min(ranks, key=_end)
    apart = (latest.epoch - _end(earliest)) / 1e9
    if apart > 0:
        yield (
            f"rank {latest.rank} begins {apart:.3g} s after rank {earliest.rank} has ended: "
            "another run, or another clock"
        )


def _end(trace: RankTrace) -> int:
    ends = [float(events.end.max()) for events in (trace.host, trace.device) if len(events)]
    return trace.epoch + round(max(ends) * 1e9)


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"{shown}, ... ({len(numbers)} in all)" if len(numbers) > 8 else shown


def reader(path: Path, options: Options) -> Callable[[str], Loaded]:
    """Read, and link any step of it; errors as :func:`traces.load.load`.

    Execution Traces beside the files are read if these lack something that they may know, or if
    ``options.executions`` asks for it: they take as long to read as all the rest.
    """
    job = read_job(path, sample=options.replicate, executions=options.executions)

    def link(step: str) -> Loaded:
        nonlocal job
        try:
            loaded = linked(path, job, step, options)
        except TraceError:
            if not has_execution_traces(job):
                raise
            loaded = None
        if loaded is None or (_lacks(loaded) and has_execution_traces(job)):
            job = with_execution_traces(job)
            loaded = linked(path, job, step, options)
        return loaded

    return link


def _lacks(loaded: Loaded) -> bool:
    """Whether the files do not tell the size or the group of a collective."""
    coverage = loaded.coverage
    return coverage.bytes_known < 1 or coverage.collectives_matched < coverage.collectives
