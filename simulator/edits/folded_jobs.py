"""Folding of jobs that share a network: of all jobs at once, and of each job some ranks are kept.

Components of the network are alike where the same job does the same; ranks of different jobs never
stand for each other, as each job repeats its step at its own pace. Like ranks of one job begin
every step at the same time, so what holds of one step (:mod:`simulator.folding.fold`) holds of all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs
from simulator.edits.merged import merged
from simulator.edits.replicas import cut
from simulator.folding.fold import Folded, fold, most_alike
from simulator.workload import UNKNOWN, CallRow, Calls, Edges, Group, What, Workload


@dataclass(frozen=True, slots=True, eq=False)
class FoldedJobs:
    """The ranks of each job that stand for all of its ranks; ``text`` says how many.

    ``stands_for`` says for how many ranks each stands, shape ``(job_ranks,)``; 0 of those left out.
    """

    workloads: tuple[Workload, ...]
    stands_for: NDArray[np.float64]
    text: str


def fold_jobs(
    workloads: Sequence[Workload],
    costs: Costs,
    seen: Callable[[str], str] = str,
    *,
    pays: float = 0.0,
    part: NDArray[np.integer] | None = None,
) -> FoldedJobs:
    """Keep of each job as few ranks as tell the times of all, beside the other jobs.

    Parameters
    ----------
    workloads
        Steps of jobs on different ranks of the network of ``costs``.
    costs
        What calls of all jobs put on its links.
    seen
        What their planner sees of a group's label.
    pays, part
        Fold only where at a glance there are so many parts of the network for each that differs;
        ``part`` is that of each rank, shape ``(ranks,)``, its own number if not given.

    Returns
    -------
    FoldedJobs
        Steps of the jobs in their order; whole where nothing is folded.
    """
    marked, marks = _marked(workloads)
    each = np.ones(marked.job_ranks)
    if part is None:
        part = np.arange(marked.job_ranks)
    if most_alike(marked, part) < pays:
        return FoldedJobs(tuple(workloads), each, "nothing is folded: too few ranks do the same")
    folded = fold(marked, costs, lambda label: label if label in marks else seen(label))
    if len(folded.kept) == len(marked):
        return FoldedJobs(tuple(workloads), each, folded.text)
    stands_for = np.zeros(marked.job_ranks)
    stands_for[list(folded.workload.ranks)] = folded.copies
    kept = tuple(_of_job(folded, one, marks) for one in workloads)
    return FoldedJobs(kept, stands_for, folded.text)


def _marked(workloads: Sequence[Workload]) -> tuple[Workload, tuple[str, ...]]:
    """Merge jobs, each with a call of its own that costs nothing, by which their ranks differ."""
    marks = tuple(f"ranks of job {number}" for number in range(len(workloads)))
    return merged([_with_mark(*one) for one in zip(workloads, marks, strict=True)]), marks


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
        flops=None,
        traffic=None,
        module=None,
        modules=(),
    )


def _of_job(folded: Folded, job: Workload, marks: Sequence[str]) -> Workload:
    """Cut a job out of what was kept, without the call that told it from the others."""
    whole = folded.workload
    own = np.zeros(whole.job_ranks, dtype=np.bool_)
    own[list(job.ranks)] = True
    groups = np.array(
        [own[group.ranks[0]] and group.label not in marks for group in whole.groups], dtype=np.bool_
    )
    marked = np.array([group.label in marks for group in whole.groups], dtype=np.bool_)
    mark = np.zeros(len(whole), dtype=np.bool_)
    calling = whole.call >= 0
    mark[calling] = marked[whole.calls.group[whole.call[calling]]]
    return replace(cut(whole, own[whole.rank] & ~mark, groups), library=job.library)
