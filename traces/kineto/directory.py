"""A job as its ranks recorded it: one file, or a directory with a file per rank.

All files must be of one run: no two of one rank, one world size, one backend, steps in common. A
missing rank is an error where most ranks are there, because then it was lost: more than half of
those up to the highest. Fewer are a sample, taken on purpose (ranks 0 and 8 of 16), and a note
says so; so does one for ranks above the highest, which look the same as a sample.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from simulator.support.errors import TraceError
from traces.core.events import Job, RankTrace, Skipped, unknown_rank
from traces.kineto.merged import LABELLED
from traces.kineto.reader import (
    ASSUMED,
    ForeignFile,
    named_json,
    rank_traces,
    read_document,
    read_ranks,
)


def read_job(path: Path, *, sample: bool = False) -> Job:
    """Read a rank's file, or the files of a directory, not of its sub-directories.

    ``sample`` says that ranks are missing on purpose. Execution Traces beside the files are skipped
    here: :func:`traces.pytorch_et.join.with_execution_traces` adds what they know.

    Raises
    ------
    TraceError
        A file cannot be read or is broken, there is none, or the files are not of one run.
    """
    skipped: tuple[Skipped, ...] = ()
    if path.is_dir():
        ranks, skipped = _directory(path)
    else:
        ranks = tuple(read_ranks(path, alone=True))
    ranks = tuple(sorted(ranks, key=lambda trace: trace.rank))
    _check_one_run(ranks)
    job_ranks, source = _job_ranks(ranks)
    missing = _missing(path, ranks, job_ranks, sample=sample)
    notes = (*missing, *_steps(ranks), *_clocks(ranks))
    return Job(ranks, job_ranks, source, skipped, notes)


def _directory(path: Path) -> tuple[tuple[RankTrace, ...], tuple[Skipped, ...]]:
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    ranks: list[RankTrace] = []
    skipped: list[Skipped] = []
    for file in files:
        read = _read(file)
        if isinstance(read, Skipped):
            skipped.append(read)
            continue
        ranks += read
        guessed = [trace.file for trace in ranks if trace.rank_source == ASSUMED]
        if guessed and len(ranks) > 1:
            raise unknown_rank(guessed[0])
    ranks = list(_without_copies(ranks, skipped))
    if not ranks:
        raise TraceError(f"{path}: no profiler trace in this directory{_reasons(skipped)}")
    return tuple(ranks), tuple(skipped)


def _without_copies(ranks: Sequence[RankTrace], skipped: list[Skipped]) -> Iterator[RankTrace]:
    """Leave out merged files whose ranks have files of their own, as SGLang leaves both."""
    own = {trace.rank for trace in ranks if trace.rank_source != LABELLED}
    merged: dict[Path, set[int]] = {}
    for trace in ranks:
        if trace.rank_source == LABELLED:
            merged.setdefault(trace.file, set()).add(trace.rank)
    copies = {file for file, held in merged.items() if held <= own}
    skipped += [
        Skipped(file, "ranks that have files of their own, merged") for file in sorted(copies)
    ]
    yield from (trace for trace in ranks if trace.file not in copies)


def _read(file: Path) -> list[RankTrace] | Skipped:
    if not file.is_file():
        return Skipped(file, "not a file; sub-directories are not searched")
    try:
        document = read_document(file)
    except TraceError as error:
        if named_json(file):
            raise
        return Skipped(file, str(error).removeprefix(f"{file}: "))
    if isinstance(document, ForeignFile):
        return Skipped(file, document.reason)
    return rank_traces(document, alone=True)


def _reasons(skipped: Sequence[Skipped]) -> str:
    """Say what was in a directory without traces, shortly."""
    if not skipped:
        return ": it is empty"
    shown = [f"{skip.file.name}: {skip.reason}" for skip in skipped[:3]]
    return f" ({len(skipped)} skipped; {'; '.join(shown)})"


def _check_one_run(ranks: Sequence[RankTrace]) -> None:
    for earlier, later in pairwise(ranks):
        if earlier.rank == later.rank:
            raise TraceError(
                f"{later.file}: rank {earlier.rank} again, as {earlier.file} "
                f"(from {earlier.rank_source}, from {later.rank_source}): remove one of them"
            )
    for what, values in (
        ("distributedInfo.world_size", [(trace, trace.world_size) for trace in ranks]),
        ("distributedInfo.backend", [(trace, trace.backend or None) for trace in ranks]),
    ):
        recorded = [(trace, value) for trace, value in values if value is not None]
        for trace, value in recorded[1:]:
            if value != recorded[0][1]:
                raise TraceError(
                    f"{trace.file}: {what} is {value}, but {recorded[0][1]} in "
                    f"{recorded[0][0].file}: the files are not of one job"
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
            "add it, or use --replicate to copy the others"
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
        each = (f"rank {trace.rank}: {_listed(sorted(steps[trace])) or 'none'}" for trace in ranks)
        yield f"the ranks recorded different steps ({'; '.join(each)})"


def _clocks(ranks: Sequence[RankTrace]) -> Iterator[str]:
    """Clocks of hosts may differ, so that files of different times are noted, not refused."""
    latest = max(ranks, key=lambda trace: trace.epoch)
    earliest = min(ranks, key=_end)
    gap = (latest.epoch - _end(earliest)) / 1e9
    if gap > 0:
        seconds = f"{gap:,.0f}" if gap >= 100 else f"{gap:.3g}"
        yield (
            f"rank {latest.rank} begins {seconds} s after rank {earliest.rank} has ended: files of "
            "different runs, or of hosts whose clocks differ; check that they belong together"
        )


def _end(trace: RankTrace) -> int:
    ends = [float(events.end.max()) for events in (trace.host, trace.device) if len(events)]
    return trace.epoch + round(max(ends) * 1e9)


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    return f"{shown}, ... ({len(numbers)} in all)" if len(numbers) > 8 else shown
