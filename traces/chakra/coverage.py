"""What could be used of Chakra files, and what they leave open."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.quantities import format_quantity
from simulator.workload import UNKNOWN, Floats, What
from traces.chakra.columns import RankColumns, forms_of
from traces.chakra.files import ChakraFiles
from traces.chakra.nodes import CALLS, NodeForm
from traces.core.calls import UNKNOWN_GROUP
from traces.core.loaded import Coverage
from traces.matching.match_columns import MatchedColumns

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ChakraJob:
    """The ranks' nodes and calls, and how often what is lacking."""

    ranked: list[RankColumns]
    calls: MatchedColumns
    job_ranks: int
    notes: Counter[str]


def chakra_coverage(
    files: ChakraFiles, job: ChakraJob, on_times: Sequence[str] = (), last: Sequence[str] = ()
) -> Coverage:
    """Say what was read; ``told`` are notes on times, ``last`` those that come last."""
    kernels = [_of(ranked, _is_kernel) for ranked in job.ranked]
    return Coverage(
        step="all",
        steps=(),
        ranks=tuple(ranked.nodes.rank for ranked in job.ranked),
        ranks_in_job=job.job_ranks,
        kernels=sum(int(own.sum()) for own in kernels),
        launches_paired=sum(map(_launched, job.ranked, kernels)),
        collectives=len(job.calls),
        collectives_matched=_complete(job),
        sizes_known=_sized(job),
        starts={},
        clock_offset={},
        unused=dict(sum((ranked.nodes.unused for ranked in job.ranked), Counter[str]())),
        skipped=files.skipped,
        notes=(*files.notes, *_notes(files, job, on_times), *last),
    )


def member_durations(job: ChakraJob) -> Floats:
    """Duration that each member of a call tells (s)."""
    return np.array([form.duration for form in forms_of(job.ranked)[0]])[_forms_of_members(job)]


def waited(job: ChakraJob, durations: Floats) -> Iterator[str]:
    """Say how long ranks waited in a collective, which durations need not explain."""
    if not len(job.calls):
        return
    begin = job.calls.offset[:-1]
    least, most = np.minimum.reduceat(durations, begin), np.maximum.reduceat(durations, begin)
    longest = float(np.where(least > 0, most - least, 0.0).max())
    if longest > 0:
        yield (
            f"a rank waited {format_quantity(longest, 's')} in a collective for another: a replay "
            "has of such waiting what durations explain"
        )


def _forms_of_members(job: ChakraJob) -> NDArray[np.int64]:
    """Which form, of those of all ranks, each member of a call has."""
    first = np.cumsum([0, *(len(ranked) for ranked in job.ranked)])
    return forms_of(job.ranked)[1][first[job.calls.rank_index] + job.calls.op]


def _is_kernel(form: NodeForm) -> bool:
    """Whether it is what a device does, and no copy engine."""
    return not form.values.get("is_cpu_op") and (form.type in CALLS or form.what == What.COMPUTE)


def _is_host(form: NodeForm) -> bool:
    return form.what == What.HOST


def _of(ranked: RankColumns, is_so: Callable[[NodeForm], bool]) -> Mask:
    """Mark the nodes of a rank whose forms are so."""
    return np.array([is_so(form) for form in ranked.nodes.forms], dtype=np.bool_)[ranked.form]


def _launched(ranked: RankColumns, kernel: Mask) -> int:
    """Count the kernels that wait for the host."""
    host = _of(ranked, _is_host)
    waits = np.zeros(len(ranked), dtype=np.bool_)
    waits[ranked.target[host[ranked.source]]] = True
    return int((waits & kernel).sum())


def _complete(job: ChakraJob) -> int:
    """Count the calls of a known group of which all ranks that are there take part."""
    there = {ranked.nodes.rank for ranked in job.ranked}
    expected = [
        -1 if label == UNKNOWN_GROUP else len(there.intersection(ranks))
        for ranks, label in job.calls.groups
    ]
    members = np.diff(job.calls.offset)
    return int((members == np.array(expected, dtype=np.int64)[job.calls.group]).sum())


def _sized(job: ChakraJob) -> int:
    """Count the calls whose size is told, of use or not: it is of none without the group."""
    if not len(job.calls):
        return 0
    forms, _ = forms_of(job.ranked)
    tells = np.array([form.values.get("comm_size") is not None for form in forms])
    tells_size = np.logical_or.reduceat(tells[_forms_of_members(job)], job.calls.offset[:-1])
    of_kind = np.array([kind != UNKNOWN for kind in job.calls.kind])
    return int((of_kind & (tells_size | ~np.isnan(job.calls.size))).sum())


def _notes(files: ChakraFiles, job: ChakraJob, on_times: Sequence[str]) -> list[str]:
    notes = [*(f"{count} {what}" for what, count in job.notes.items()), *on_times]
    if job.calls.assumed_groups:
        notes.append(
            f"{job.calls.assumed_groups} calls without a group, or of one that nothing "
            f"describes: taken as the whole job of {job.job_ranks} ranks"
        )
    if len(job.ranked) < job.job_ranks:
        notes.append(f"{len(job.ranked)} of {job.job_ranks} ranks are there")
    sources = {file.rank_source for file in files.ranks}
    notes.append(f"ranks are told by: {', '.join(sorted(sources))}")
    return [*notes, *job.calls.notes]
