"""Execution Traces beside the profiler's files: each adds what it knows to its rank."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from simulator.errors import TraceError
from traces.beginnings import is_execution_trace
from traces.content import unpack
from traces.events import RankTrace
from traces.kineto_document import EXECUTION_TRACE
from traces.kineto_rank import rank_of
from traces.kineto_schema import Header
from traces.pytorch_et import parse
from traces.pytorch_et_link import Linked, enriched, link

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
