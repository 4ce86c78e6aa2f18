"""What each op adds to the step of its rank: every instant counts once, so that all adds up.

An instant of a rank counts for what comes first of: kernels, copies, calls that move, calls that
wait for other ranks, the host at work, launches on their way, host threads on which nothing is seen
at work. What is left is time before the rank's first op, after its last, or idle. It is the account
of :func:`simulator.analysis.attribution.rank_parts`, op by op: where several of one sort run at
once, they share the instant equally. On a rank without kernels the host is what computes, and comes
first.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.attribution import AFTER, BEFORE, COMPUTE, COPY, HOST, IDLE, LAUNCH, WAITING
from simulator.analysis.metrics import moves, step_time
from simulator.timeline import RunTimes, Timeline
from simulator.workload import IN_PART, UNEXPLAINED_HOST, Floats, Ints, What, Workload

COMMUNICATION = "communication"
"""A call that moves while its rank computes nothing: exposed communication."""
USES = (COMPUTE, COPY, COMMUNICATION, WAITING, HOST, LAUNCH, UNEXPLAINED_HOST)
"""Uses of time that belong to ops."""
REST = (BEFORE, AFTER, IDLE)
"""Uses of time that belong to a rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Time by use (s): ``of_op[use]`` of each op, ``of_rank[use]`` of each of the ranks.

    ``lasted[use]`` is how long each op was at it, whatever else went on; NaN where it was not.
    Mean over ranks of all together is ``step``.
    """

    workload: Workload
    step: float
    of_op: dict[str, Floats]
    lasted: dict[str, Floats]
    of_rank: dict[str, Floats]

    def totals(self) -> dict[str, float]:
        """Mean over ranks of each use (s); they add up to the step."""
        ranks = max(1, len(self.workload.ranks))
        columns = {**self.of_op, **self.of_rank}
        return {use: float(column.sum()) / ranks for use, column in columns.items()}


def account(run: RunTimes) -> Account:
    """Put every instant of every rank down to an op, or to none.

    Parameters
    ----------
    run
        A simulated timeline, or what was measured (:func:`simulator.timeline.measured`).

    Returns
    -------
    Account

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.timeline import measured
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> for lane, times in (("stream 7", (1.0, 3.0)), ("stream 9", (2.0, 4.0))):
    ...     _ = builder.op(
    ...         What.COMPUTE, rank=0, lane=lane, name="gemm", duration=2.0, measured=times
    ...     )
    >>> found = account(measured(builder.build()))
    >>> found.of_op["compute"].tolist(), found.totals()["not started"]
    ([1.5, 1.5], 1.0)
    """
    workload, step = run.workload, step_time(run)
    spans = _spans(run)
    of_op = {use: np.zeros(len(workload)) for use in USES}
    of_rank = {use: np.zeros(len(workload.ranks)) for use in REST}
    for number, rank in enumerate(workload.ranks):
        ops = workload.ops_of(rank)
        instants = _Instants(ops, spans, step)
        for use in _order(workload, ops):
            of_op[use][ops] = instants.taken(use)
        first, last = run.start[ops].min(), run.end[ops].max()
        for use, column in zip(REST, instants.left(first, last), strict=True):
            of_rank[use][number] = column
    lasted = {use: end - start for use, (start, end) in spans.items()}
    return Account(workload, step, of_op, lasted, of_rank)


def _order(workload: Workload, ops: NDArray[np.intp]) -> tuple[str, ...]:
    if (workload.what[ops] == What.COMPUTE).any():
        return USES
    return (HOST, *(use for use in USES if use != HOST))


_Spans = dict[str, tuple[Floats, Floats]]


def _spans(run: RunTimes) -> _Spans:
    """When each op is at each use (s); NaN where it never is."""
    workload = run.workload
    what, part = workload.what, workload.part
    start, end = run.start, run.end
    # What a kernel had done when another started lies beside the whole: it counts there.
    beside = np.array([name == IN_PART for name in workload.names], dtype=bool)
    kernels = (what == What.COMPUTE) & ~beside[workload.name]
    calls = np.flatnonzero(workload.call >= 0)
    begun, over = np.full((2, len(workload)), np.nan)
    begun[calls], over[calls] = moves(run, calls)
    by = _released_by(run)
    launched = (what != What.HOST) & (by >= 0) & (what[by] == What.HOST)
    silent = (what == What.HOST) & (part != What.HOST)

    def where(mask: NDArray[np.bool_], first: Floats, last: Floats) -> tuple[Floats, Floats]:
        first = np.where(mask, first, np.nan)
        return first, np.where(mask, np.maximum(first, last), np.nan)

    return {
        COMPUTE: where(kernels, start, end),
        COPY: where(what == What.COPY, start, end),
        COMMUNICATION: where(workload.call >= 0, begun, over),
        WAITING: where(workload.call >= 0, start, begun),
        HOST: where(part == What.HOST, start, end),
        LAUNCH: where(launched, end[by], start),
        UNEXPLAINED_HOST: where(silent, start, end),
    }


def _released_by(run: RunTimes) -> Ints:
    """Which op let each op start (-1: none); as measured, the last to end of those it waits for."""
    if isinstance(run, Timeline):
        return run.released_by
    edges = run.workload.edges
    source = edges.source
    order = np.lexsort((-source, run.end[source], edges.target))
    last = np.full(len(run.workload), -1, dtype=np.int32)
    last[edges.target[order]] = source[order]  # the last of each target stays
    return last


class _Instants:
    """The time of a rank between any two starts or ends, and what of it is taken."""

    def __init__(self, ops: NDArray[np.intp], spans: _Spans, step: float) -> None:
        self._spans = {use: (start[ops], end[ops]) for use, (start, end) in spans.items()}
        times = np.concatenate([time for both in self._spans.values() for time in both])
        self._step = step
        self._bounds = np.unique(np.concatenate([[0.0, step], times[~np.isnan(times)]]))
        self._length = np.diff(self._bounds)
        self._free = np.ones(len(self._length), dtype=bool)

    def taken(self, use: str) -> Floats:
        """Give what is free to the ops at a use; return how much each gets (s)."""
        start, end = self._spans[use]
        known = ~np.isnan(start)
        first = np.searchsorted(self._bounds, start[known])
        last = np.searchsorted(self._bounds, end[known])
        count = len(self._bounds)
        busy = np.cumsum(np.bincount(first, minlength=count) - np.bincount(last, minlength=count))
        here = busy[:-1] > 0
        each = np.where(here & self._free, self._length / np.maximum(busy[:-1], 1), 0.0)
        until = np.concatenate([[0.0], np.cumsum(each)])
        self._free &= ~here
        seconds = np.zeros(len(start))
        seconds[known] = until[last] - until[first]
        return seconds

    def left(self, first: float, last: float) -> tuple[float, float, float]:
        """Return what nothing has taken (s): before the first op, after the last, between."""
        free = np.where(self._free, self._length, 0.0)
        before = float(free[self._bounds[1:] <= first].sum())
        after = float(free[self._bounds[:-1] >= last].sum())
        return before, after, float(free.sum()) - before - after
