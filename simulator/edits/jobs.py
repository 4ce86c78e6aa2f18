"""Several jobs on one machine: moved to their ranks, merged into one workload, and folded.

Folding treats all jobs at once, and keeps some ranks of each. Components of the network are
equivalent if the same job does the same there; ranks of different jobs never represent each other,
as each job repeats its step at its own pace. Equivalent ranks of one job begin every step at the
same time, so what holds of one step (:mod:`simulator.folding.fold`) holds of all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calls import UNKNOWN, CallRow, Calls, Group
from simulator.costing.call_costs import Costs
from simulator.edits.replicas import cut
from simulator.folding.fold import Folded, fold, most_alike
from simulator.support.arrays import Floats, Ints, Longs, offsets
from simulator.support.errors import WorkloadError
from simulator.workload import Edges, What, Workload


def moved(workload: Workload, ranks: Longs, job_ranks: int) -> Workload:
    """Return the step with rank ``r`` renumbered as ``ranks[r]`` among ``job_ranks`` ranks.

    Parameters
    ----------
    workload
        A workload without copies: all ranks are written out.
    ranks
        The new number of each rank of the job, all different, shape ``(workload.job_ranks,)``.
    job_ranks
        Total number of ranks of the machine; those of no job do nothing.

    Raises
    ------
    WorkloadError
        If there is not one number for each rank, two are the same or one is out of range; or the
        workload has copies of ranks.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.workload import What
    >>> builder = WorkloadBuilder(job_ranks=2)
    >>> for rank in range(2):
    ...     _ = builder.op(What.COMPUTE, rank=rank, lane="stream 7", name="gemm", duration=1e-3)
    >>> there = moved(builder.build(), np.array([5, 2]), 8)
    >>> there.job_ranks, there.ranks, there.rank.tolist()
    (8, (2, 5), [5, 2])
    """
    ranks = np.asarray(ranks, dtype=np.int64)
    if workload.copies is not None:
        raise WorkloadError("copies of ranks must be written out before the job is moved")
    if ranks.shape != (workload.job_ranks,):
        raise WorkloadError(f"{ranks.size} new numbers do not fit {workload.job_ranks} ranks")
    if len(np.unique(ranks)) != len(ranks) or ranks.min() < 0 or ranks.max() >= job_ranks:
        raise WorkloadError(f"new numbers of ranks must differ and be from 0 to {job_ranks - 1}")
    groups = tuple(
        Group(tuple(ranks[list(group.ranks)].tolist()), group.label) for group in workload.groups
    )
    rank = ranks[workload.rank].astype(np.int32)
    return replace(workload, rank=rank, groups=groups, job_ranks=job_ranks)


def merged(workloads: Sequence[Workload]) -> Workload:
    """Merge jobs that run on different ranks of one machine; ops of the first come first.

    Parameters
    ----------
    workloads
        One or more, on different ranks (:func:`simulator.edits.jobs.moved`) of one machine with the
        same ``job_ranks``, without copies.

    Raises
    ------
    WorkloadError
        If two have ops on one rank or are on machines of different sizes, or one has copies.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.workload import What
    >>> jobs = []
    >>> for rank in range(2):
    ...     builder = WorkloadBuilder(job_ranks=2)
    ...     _ = builder.op(What.COMPUTE, rank=rank, lane="stream 7", name="gemm", duration=1e-3)
    ...     jobs.append(builder.build())
    >>> merged(jobs).rank.tolist()
    [0, 1]
    """
    if any(job.copies is not None for job in workloads):
        raise WorkloadError("copies of ranks must be written out before jobs are merged")
    if len({job.job_ranks for job in workloads}) != 1:
        raise WorkloadError("the jobs must be on ranks of the same machine")
    ranks = np.concatenate([np.array(job.ranks, dtype=np.int64) for job in workloads])
    values, count = np.unique(ranks, return_counts=True)
    if (count > 1).any():
        raise WorkloadError(f"two jobs have ops on rank {values[count > 1][0]}")
    first_op = offsets(map(len, workloads))
    first_call = offsets(len(job.calls) for job in workloads)
    first_group = offsets(len(job.groups) for job in workloads)

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(workload, name) for workload in workloads])

    names, name = _tables([job.names for job in workloads], [job.name for job in workloads])
    lanes, lane = _tables([job.lanes for job in workloads], [job.lane for job in workloads])
    modules, module = _modules(workloads)
    call = [
        np.where(job.call >= 0, job.call + first, -1)
        for job, first in zip(workloads, first_call.tolist(), strict=False)
    ]
    calls = [
        replace(job.calls, group=(job.calls.group + first).astype(np.int32))
        for job, first in zip(workloads, first_group.tolist(), strict=False)
    ]
    before = offsets(len(job.edges.target) for job in workloads)
    offset = [job.edges.offset[:-1] + at for job, at in zip(workloads, before, strict=False)]
    target = [job.edges.target + at for job, at in zip(workloads, first_op, strict=False)]
    return Workload(
        name=name,
        lane=lane,
        call=np.concatenate(call).astype(np.int32),
        edges=Edges(
            offset=np.concatenate([*offset, before[-1:]]).astype(np.int64),
            target=np.concatenate(target).astype(np.int32),
            lag=np.concatenate([job.edges.lag for job in workloads]),
        ),
        calls=calls[0].followed_by(*calls[1:]),
        groups=tuple(group for job in workloads for group in job.groups),
        names=names,
        lanes=lanes,
        job_ranks=workloads[0].job_ranks,
        notes=tuple(dict.fromkeys(note for job in workloads for note in job.notes)),
        flops=_column(workloads, "flops"),
        traffic=_column(workloads, "traffic"),
        module=module,
        modules=modules,
        what=column("what"),
        rank=column("rank"),
        duration=column("duration"),
        ready=column("ready"),
        measured_start=column("measured_start"),
        measured_end=column("measured_end"),
    )


def _tables(
    tables: Sequence[tuple[str, ...]], columns: Sequence[Ints]
) -> tuple[tuple[str, ...], Ints]:
    """Concatenate tables of text without duplicates, and the columns that index them (-1: none)."""
    number: dict[str, int] = {}
    parts = []
    for table, column in zip(tables, columns, strict=True):
        to = np.array([*(number.setdefault(text, len(number)) for text in table), -1])
        parts.append(to[column])
    return tuple(number), np.concatenate(parts).astype(np.int32)


def _modules(workloads: Sequence[Workload]) -> tuple[tuple[str, ...], Ints | None]:
    if all(job.module is None for job in workloads):
        return (), None
    columns = [
        np.full(len(job), -1, dtype=np.int32) if job.module is None else job.module
        for job in workloads
    ]
    return _tables([job.modules for job in workloads], columns)


def _column(workloads: Sequence[Workload], name: str) -> Floats | None:
    columns = [getattr(job, name) for job in workloads]
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(len(job), np.nan) if column is None else column
            for job, column in zip(workloads, columns, strict=True)
        ]
    )


@dataclass(frozen=True, slots=True, eq=False)
class FoldedJobs:
    """The kept ranks of each job, which represent all of its ranks; ``text`` describes how many.

    ``stands_for`` is the number of ranks that each represents, shape ``(job_ranks,)``, or 0.
    """

    workloads: tuple[Workload, ...]
    stands_for: Floats
    text: str


def fold_jobs(
    workloads: Sequence[Workload],
    costs: Costs,
    seen: Callable[[str], str] = str,
    *,
    pays: float = 0.0,
    part: NDArray[np.integer] | None = None,
) -> FoldedJobs:
    """Keep of each job as few ranks as determine the times of all, beside the other jobs.

    Parameters
    ----------
    workloads
        Steps of jobs on different ranks of the network of ``costs``.
    costs
        Loads of all jobs' calls on its links.
    seen
        The part of a group's label that their planner distinguishes.
    pays, part
        Fold only if a quick estimate gives at least ``pays`` equal parts of the network per class;
        ``part`` is that of each rank, shape ``(ranks,)``, its own number if not given.
    """
    # A free call of its own distinguishes the ranks of each job.
    marks = tuple(f"ranks of job {number}" for number in range(len(workloads)))
    marked = merged([_with_mark(*pair) for pair in zip(workloads, marks, strict=True)])
    each = np.ones(marked.job_ranks)
    if part is None:
        part = np.arange(marked.job_ranks)
    if most_alike(marked, part) < pays:
        return FoldedJobs(tuple(workloads), each, "nothing is folded: too few ranks are alike")
    folded = fold(marked, costs, lambda label: label if label in marks else seen(label))
    if len(folded.kept) == len(marked):
        return FoldedJobs(tuple(workloads), each, folded.text)
    stands_for = np.zeros(marked.job_ranks)
    stands_for[list(folded.workload.ranks)] = folded.copies
    steps = tuple(_of_job(folded, job, marks) for job in workloads)
    return FoldedJobs(steps, stands_for, folded.text)


def _with_mark(workload: Workload, mark: str) -> Workload:
    ranks = np.array(workload.ranks, dtype=np.int32)
    extra = len(ranks)
    row = CallRow(UNKNOWN, group=len(workload.groups), sequence=0, size=np.nan, transfer=0.0)
    table = workload.calls.followed_by(Calls.of([row]))
    unknown = np.full(extra, np.nan)
    ends = np.full(extra, workload.edges.offset[-1])
    edges = workload.edges

    def longer(name: str, value: float) -> NDArray[Any]:
        column = getattr(workload, name)
        return np.append(column, np.full(extra, value)).astype(column.dtype)

    return replace(
        workload,
        what=longer("what", What.COLLECTIVE),
        rank=np.append(workload.rank, ranks),
        lane=longer("lane", 0),
        name=longer("name", 0),
        call=longer("call", len(workload.calls)),
        duration=longer("duration", 0.0),
        ready=longer("ready", 0.0),
        measured_start=np.append(workload.measured_start, unknown),
        measured_end=np.append(workload.measured_end, unknown),
        edges=Edges(np.append(edges.offset, ends), edges.target, edges.lag),
        calls=table,
        groups=(*workload.groups, Group(tuple(ranks.tolist()), mark)),
        advance=None,
        flops=None,
        traffic=None,
        module=None,
        modules=(),
    )


def _of_job(folded: Folded, job: Workload, marks: Sequence[str]) -> Workload:
    """Extract a job from the kept ranks, without the call that marked it."""
    whole = folded.workload
    of_job = np.zeros(whole.job_ranks, dtype=np.bool_)
    of_job[list(job.ranks)] = True
    marked = np.array([group.label in marks for group in whole.groups], dtype=np.bool_)
    groups = of_job[[group.ranks[0] for group in whole.groups]] & ~marked
    mark = np.zeros(len(whole), dtype=np.bool_)
    calling = whole.call >= 0
    mark[calling] = marked[whole.calls.group[whole.call[calling]]]
    return replace(cut(whole, of_job[whole.rank] & ~mark, groups), library=job.library)
