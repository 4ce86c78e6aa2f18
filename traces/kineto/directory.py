"""The ranks of a recorded job: one file, or a directory with a file per rank.

All files must be of one run: distinct ranks, one world size, one backend, common steps. A missing
rank is an error if most ranks are present (more than half of those up to the highest), because it
was probably lost. Fewer count as an intended sample (ranks 0 and 8 of 16), which is noted, as are
missing ranks above the highest, which cannot be distinguished from a sample.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, structs

from simulator.support.errors import TraceError, shown
from simulator.support.input_files import PACKED, head_of, open_file
from simulator.support.quantities import format_ranks, some_ranks
from traces.core.events import (
    NAMED,
    Job,
    JobHead,
    RankHead,
    RankTrace,
    Skipped,
    rank_in_name,
    unknown_rank,
)
from traces.core.files import files_in, is_kineto, note_copies
from traces.core.loaded import ODD
from traces.kineto.reader import (
    ASSUMED,
    IN_NAME,
    LABELLED,
    ForeignFile,
    named_json,
    rank_traces,
    read_document,
    read_ranks,
)


class ReadRank(Struct, frozen=True, eq=False):
    """A rank that was read from a file, with the facts that show whether files are of one job.

    ``largest_group`` is the least number of ranks of a job with its calls; ``ended`` is the end of
    its last event (ns, as ``epoch`` counts).
    """

    head: RankHead
    largest_group: int
    ended: int


_Read = TypeVar("_Read", bound=ReadRank)


def read_job(path: Path, *, sample: bool = False, ranks: Sequence[int] = ()) -> Job:
    """Read a rank's file, or the files of a directory without its sub-directories.

    ``sample``: ranks are missing on purpose; ``ranks`` are those to read, all if empty. Execution
    Traces beside the files are skipped here: :func:`traces.pytorch_et.join.with_execution_traces`
    adds their records.

    Raises
    ------
    TraceError
        A file cannot be read or is broken, there is none, or the files are not of one run.
    """
    traces: dict[RankHead, RankTrace] = {}

    def read() -> Iterator[Sequence[ReadRank] | Skipped]:
        of_files = map(read_file, chosen.files)
        for read_ones in of_files if path.is_dir() else [read_ranks(path, alone=True)]:
            if isinstance(read_ones, Skipped):
                yield read_ones
                continue
            own = _alone(read_ones) if len(chosen.files) == 1 else read_ones
            traces.update((trace, trace) for trace in own)
            yield [ReadRank(trace, largest_group(trace), end_of(trace)) for trace in own]

    chosen = files_of_ranks(path, ranks)
    job = job_of(path, *ranks_of(path, read(), chosen), sample=sample, chosen=chosen)
    with_events = tuple(traces[head] for head in job.ranks)
    return Job(with_events, job.job_ranks, job.job_ranks_source, job.skipped, job.notes)


def _alone(ranks: list[RankTrace]) -> list[RankTrace]:
    """Renumber the rank of a single file unless its name says ``rank``, or calls are of more."""
    of_name = [rank for rank in ranks if rank.rank_source == IN_NAME]
    if not of_name or NAMED.search(of_name[0].file.name):
        return ranks
    if largest_group(of_name[0]) > of_name[0].rank:
        return ranks
    return [structs.replace(of_name[0], rank=0, rank_source=ASSUMED)]


class ChosenFiles(Struct, frozen=True):
    """The files to read, and the ``ranks`` to keep from them: all if empty.

    ``recorded`` are the ranks of the files left out, by their first bytes or names.
    """

    files: Sequence[Path]
    ranks: frozenset[int] = frozenset()
    recorded: frozenset[int] = frozenset()


def files_of_ranks(path: Path, ranks: Sequence[int] = ()) -> ChosenFiles:
    """Choose the files of some ranks; the rank of others is in their first bytes or names."""
    files = files_in(path) if path.is_dir() else [path]
    if not ranks or not path.is_dir():
        return ChosenFiles(files, frozenset(ranks))
    ahead = {file: rank_ahead(file) for file in files}
    chosen = [file for file in files if ahead[file] is None or ahead[file] in ranks]
    others = frozenset(rank for rank in ahead.values() if rank is not None) - {*ranks}
    return ChosenFiles(chosen, frozenset(ranks), others)


LARGE = 64e6
"""Unpacked bytes of a directory's files from which its ranks are read by several processes. A core
reads some 40 MB/s: with less, starting processes costs as much as it saves."""
_PACKING_RATIO = 12
"""Ratio of unpacked to packed bytes of a profile; between 10 and 16 where it was measured."""


def is_large(path: Path, ranks: Sequence[int] = (), least: float = LARGE) -> bool:
    """Whether a directory has several files with enough bytes for several processes."""
    if not path.is_dir():
        return False
    files = [file for file in files_of_ranks(path, ranks).files if file.is_file()]
    unpacked = 0
    for file in files if len(files) > 1 else ():
        with open_file(file) as opened:
            is_packed = (opened.read(max(map(len, PACKED))) or b"").startswith(PACKED)
        unpacked += file.stat().st_size * (_PACKING_RATIO if is_packed else 1)
    return len(files) > 1 and unpacked >= least


_RANK_AHEAD = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*"?(\d{1,7})\b')
_EVENTS = b'"traceEvents"'


def rank_ahead(file: Path) -> int | None:
    """Return a profile's rank without reading all of it; None for other files, or if unknown.

    The profiler writes the job's properties before the events; if the rank is missing there, it is
    taken from the name of the file.
    """
    try:
        head = head_of(file) if file.is_file() else b""
    except TraceError:
        return None  # reading it will raise the error
    if not is_kineto(head):
        return None
    before, begun, _ = head.partition(_EVENTS)
    written = _RANK_AHEAD.search(before)
    if written is not None:
        return int(written[1])
    return rank_in_name(file) if begun or head.lstrip().startswith(b"[") else None


def read_file(file: Path) -> list[RankTrace] | Skipped:
    """Read a file of a directory, or return the reason why it is not of a rank."""
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


def ranks_of(
    path: Path, reads: Iterable[Sequence[_Read] | Skipped], chosen: ChosenFiles
) -> tuple[list[_Read], tuple[Skipped, ...]]:
    """Collect the chosen ranks of files in their order, sorted, and the skipped files.

    Raises
    ------
    TraceError
        If there is no rank, a chosen one is missing, or one of several files does not record its
        rank.
    """
    ranks: list[_Read] = []
    skipped: list[Skipped] = []
    for read in reads:
        if isinstance(read, Skipped):
            skipped.append(read)
            continue
        ranks += read
        guessed = [rank.head.file for rank in ranks if rank.head.rank_source == ASSUMED]
        if guessed and len(ranks) > 1:
            raise unknown_rank(guessed[0])
    ranks = list(_without_merged(ranks, skipped))
    if chosen.ranks:
        recorded = chosen.recorded | {rank.head.rank for rank in ranks}
        if missing := chosen.ranks - recorded:
            raise TraceError(
                f"{path}: no file of {_plural(missing)}; those of {_plural(recorded)} are here: "
                "choose among them with --ranks"
            )
        ranks = [rank for rank in ranks if rank.head.rank in chosen.ranks]
    if not ranks:
        raise TraceError(f"{path}: no profiler trace in this directory{_skipped_summary(skipped)}")
    return sorted(ranks, key=lambda rank: rank.head.rank), tuple(skipped)


def _plural(ranks: Collection[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {format_ranks(ranks) or 'none'}"


def job_of(
    path: Path,
    ranks: Sequence[ReadRank],
    skipped: tuple[Skipped, ...],
    *,
    sample: bool,
    chosen: ChosenFiles,
) -> JobHead:
    """Make a job of the sorted ranks that were read."""
    heads = tuple(rank.head for rank in ranks)
    _check_one_run(heads)
    job_ranks, source = _job_ranks(ranks, chosen)
    if chosen.ranks:
        listed, recorded = format_ranks(chosen.ranks), len(chosen.ranks | chosen.recorded)
        missing = iter([f"{len(heads)} of {recorded} recorded ranks were read: {listed}"])
    else:
        missing = _missing(path, heads, job_ranks, sample=sample)
    odd = (f"{reason}; {ODD}" for reason in (*_misnamed(heads), *_contradicting(heads)))
    notes = (*note_copies(heads), *missing, *_steps(heads), *_clocks(ranks), *odd)
    return JobHead(heads, job_ranks, source, skipped, notes)


def largest_group(trace: RankTrace) -> int:
    """Return the least number of ranks of the job, from the groups of a rank's calls."""
    largest = 0
    for record in trace.comms:
        largest = max(largest, record.group_size or 0, *(r + 1 for r in record.group_ranks or ()))
    return largest


def end_of(trace: RankTrace) -> int:
    """Return the end of a rank's last event (ns, as its ``epoch`` counts)."""
    ends = [float(events.end.max()) for events in (trace.host, trace.device) if len(events)]
    return trace.epoch + round(max(ends) * 1e9)


def _without_merged(ranks: Sequence[_Read], skipped: list[Skipped]) -> Iterator[_Read]:
    """Leave out merged files whose ranks have files of their own; SGLang writes both."""
    heads = [rank.head for rank in ranks]
    separate = {head.rank for head in heads if head.rank_source != LABELLED}
    merged: dict[Path, set[int]] = {}
    for head in heads:
        if head.rank_source == LABELLED:
            merged.setdefault(head.file, set()).add(head.rank)
    copies = {file for file, ranks_held in merged.items() if ranks_held <= separate}
    skipped += [
        Skipped(file, "ranks that have files of their own, merged") for file in sorted(copies)
    ]
    yield from (rank for rank in ranks if rank.head.file not in copies)


def _skipped_summary(skipped: Sequence[Skipped]) -> str:
    """Summarise why the files of a directory without traces were skipped."""
    if not skipped:
        return ": it is empty"
    shown = [f"{skip.file.name}: {skip.reason}" for skip in skipped[:3]]
    return f" ({len(skipped)} skipped; {'; '.join(shown)})"


def _check_one_run(ranks: Sequence[RankHead]) -> None:
    for earlier, later in pairwise(ranks):
        if earlier.rank == later.rank:
            raise TraceError(
                f"{later.file}: also rank {earlier.rank}, like {earlier.file} "
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


def _job_ranks(ranks: Sequence[ReadRank], chosen: ChosenFiles) -> tuple[int, str]:
    last = ranks[-1].head
    highest = max(last.rank, *chosen.recorded, -1) + 1
    worlds = (rank.head.world_size for rank in ranks)
    world = next((world for world in worlds if world is not None), None)
    if world is not None:
        if highest > world:
            raise TraceError(f"{last.file}: rank {highest - 1} in a world of {world} ranks")
        return world, "distributedInfo.world_size"
    largest = max(rank.largest_group for rank in ranks)
    if largest > highest:
        return largest, "the largest communicator"
    return highest, "the highest rank of the files"


def _missing(
    path: Path, ranks: Sequence[RankHead], job_ranks: int, *, sample: bool
) -> Iterator[str]:
    present = [trace.rank for trace in ranks]
    most_are_there = len(present) > 1 and 2 * len(present) > present[-1] + 1
    if most_are_there and len(present) <= present[-1] and not sample:
        gaps = sorted(set(range(present[-1])) - set(present))
        raise TraceError(
            f"{path}: no file of rank {some_ranks(gaps)} among those of ranks "
            f"{some_ranks(present)}: add it, or use --replicate to copy the others"
        )
    if len(present) < job_ranks:
        yield f"{len(present)} of {job_ranks} ranks were recorded: {some_ranks(present)}"


def _misnamed(ranks: Sequence[RankHead]) -> Iterator[str]:
    """Note files that are named by each other's ranks."""
    named = [rank_in_name(rank.file) for rank in ranks]
    if sorted(number for number in named if number is not None) != [rank.rank for rank in ranks]:
        return  # no rank, or a local one, is in their names
    for number, rank in zip(named, ranks, strict=True):
        if number != rank.rank:
            yield f"{rank.file.name} is of rank {rank.rank}, by its {rank.rank_source}"
            return


def _contradicting(ranks: Sequence[RankHead]) -> Iterator[str]:
    """Note a group of one name whose ranks differ between its members."""
    named: dict[str, dict[frozenset[int], RankHead]] = {}
    for rank in ranks:
        for key, group in rank.groups.items():
            if group.ranks is not None:
                named.setdefault(key, {}).setdefault(frozenset(group.ranks), rank)
    for key, lists in named.items():
        for (ranks_of_first, first), (ranks_of_last, last) in combinations(lists.items(), 2):
            if ranks_of_first & ranks_of_last:
                yield (
                    f"group {shown(key)} is ranks {some_ranks(sorted(ranks_of_first))} in "
                    f"{first.file.name}, but {some_ranks(sorted(ranks_of_last))} in "
                    f"{last.file.name}"
                )
                return


def _steps(ranks: Sequence[RankHead]) -> Iterator[str]:
    steps = {trace: {step.number for step in trace.steps} for trace in ranks}
    stepped = [trace for trace in ranks if steps[trace]]
    for trace in stepped[1:]:
        if not steps[trace] & steps[stepped[0]]:
            raise TraceError(
                f"{trace.file}: ProfilerStep {some_ranks(sorted(steps[trace]))}, but "
                f"{some_ranks(sorted(steps[stepped[0]]))} in {stepped[0].file}: no step in common"
            )
    common = set.intersection(*steps.values())
    orders = {tuple(s.number for s in rank.steps if s.number in common): rank for rank in ranks}
    if len(orders) > 1:
        (order, first), (last_order, last), *_ = orders.items()
        raise TraceError(
            f"{last.file}: its steps {some_ranks(last_order)} follow one another in another order "
            f"than in {first.file}, {some_ranks(order)}: are the numbers of some exchanged?"
        )
    if len({frozenset(numbers) for numbers in steps.values()}) > 1:
        each = (
            f"rank {trace.rank}: {some_ranks(sorted(steps[trace])) or 'none'}" for trace in ranks
        )
        yield f"the ranks recorded different steps ({'; '.join(each)})"


def _clocks(ranks: Sequence[ReadRank]) -> Iterator[str]:
    """Note files of different times; hosts' clocks may differ, so they are not refused."""
    latest = max(ranks, key=lambda rank: rank.head.epoch).head
    earliest = min(ranks, key=lambda rank: rank.ended)
    gap = (latest.epoch - earliest.ended) / 1e9
    if gap > 0:
        seconds = f"{gap:,.0f}" if gap >= 100 else f"{gap:.3g}"
        yield (
            f"rank {latest.rank} begins {seconds} s after rank {earliest.head.rank} has ended: "
            "files of different runs, or of hosts whose clocks differ; check that they belong "
            "together"
        )
