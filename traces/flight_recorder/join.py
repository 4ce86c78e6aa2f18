"""What dumps of the flight recorder add to a profiler's files: the groups of all ranks.

A few ranks are profiled, all are dumped. The dumps list the groups of ranks that were not profiled,
which makes copies of them possible where their pattern is irregular, and how many ranks there are.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from simulator.support.errors import TraceError
from traces.core.events import JobHead, ProcessGroup, Skipped
from traces.flight_recorder.dump import Dump, read_dump

_Job = TypeVar("_Job", bound=JobHead)


def with_dumps(job: _Job, files: Sequence[Path]) -> _Job:
    """Give a job the groups that dumps beside its files list.

    A dump that is damaged or of another job does no harm: it stays skipped, with the reason.
    """
    dumps: list[Dump] = []
    refused: dict[Path, str] = {}
    for file in files:
        try:
            dump = read_dump(file)
            _check_same_job(job, dump)
            dumps.append(dump)
        except TraceError as error:
            refused[file] = str(error).removeprefix(f"{file}: ")
    if not dumps:
        return replace(job, skipped=_skipped(job, (), refused))
    groups = {group.ranks: group for dump in dumps for group in dump.groups.values() if group.ranks}
    highest = max(max(ranks) for ranks in groups) if groups else 0
    job_ranks, source = job.job_ranks, job.job_ranks_source
    if highest >= job_ranks:
        job_ranks, source = highest + 1, "the groups of the flight recorder"
    note = f"the flight recorder's dumps of {len(dumps)} ranks list {len(groups)} groups"
    return replace(
        job,
        job_ranks=job_ranks,
        job_ranks_source=source,
        groups=tuple(_listed(dumps)),
        skipped=_skipped(job, [dump.file for dump in dumps], refused),
        notes=(*job.notes, note),
    )


def _listed(dumps: Sequence[Dump]) -> list[ProcessGroup]:
    every = (group for dump in dumps for group in dump.groups.values())
    return list({(group.label, group.ranks): group for group in every}.values())


def _check_same_job(job: JobHead, dump: Dump) -> None:
    """Refuse a dump whose groups contradict what the rank's own file lists.

    Raises
    ------
    TraceError
        If a group of one name has other ranks.
    """
    trace = next((trace for trace in job.ranks if trace.rank == dump.rank), None)
    for key, group in dump.groups.items():
        profiled = None if trace is None else trace.groups.get(key)
        if profiled is None or None in (profiled.ranks, group.ranks):
            continue
        if profiled.label == group.label and profiled.ranks != group.ranks:
            raise TraceError(
                f"{dump.file}: of another job: its group {key} ({group.label}) has other ranks "
                f"than in the profile of rank {dump.rank}"
            )


def _skipped(job: JobHead, used: Sequence[Path], refused: dict[Path, str]) -> tuple[Skipped, ...]:
    return tuple(
        replace(skip, reason=refused.get(skip.file, skip.reason))
        for skip in job.skipped
        if skip.file not in used
    )
