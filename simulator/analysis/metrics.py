"""Metrics of a step that people quote: one function and one definition each.

All read :class:`~simulator.timeline.RunTimes`: a simulated timeline, or measured times. Bytes and
bandwidths are in :mod:`collectives.traffic`, phases of serving in :mod:`simulator.analysis.phases`.
Exposed and idle time are differences of unions of intervals, whose functions come first.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from math import fsum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Longs
from simulator.timeline import RunTimes, Timeline
from simulator.workload import What

Intervals = NDArray[np.float64]
"""Disjoint intervals, sorted, shape ``(n, 2)``: start and end (s)."""


def union(start: Floats, end: Floats) -> Intervals:
    """Disjoint intervals that cover the same time, sorted, shape ``(n, 2)``.

    Examples
    --------
    >>> union(np.array([4.0, 0.0, 1.0]), np.array([5.0, 2.0, 3.0])).tolist()
    [[0.0, 3.0], [4.0, 5.0]]
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if len(order) else end
    if not len(start):
        return np.empty((0, 2))
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([start[first], end[last]], axis=1)


def length(intervals: Intervals) -> float:
    """Time that disjoint intervals cover (s)."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def common(first: Intervals, second: Intervals) -> float:
    """Length of the intersection of two unions."""
    return length(first) + length(second) - length(united(first, second))


def united(first: Intervals, second: Intervals) -> Intervals:
    """Union of two unions."""
    both = np.concatenate([first, second])
    return union(both[:, 0], both[:, 1])


def cover(intervals: Intervals, start: Floats, end: Floats) -> Floats:
    """Time of each span from ``start`` to ``end`` that disjoint intervals cover (s).

    Examples
    --------
    >>> calls = np.array([[0.0, 3.0], [4.0, 5.0]])
    >>> cover(calls, np.array([2.0, 3.0]), np.array([6.0, 3.5])).tolist()
    [2.0, 0.0]
    """
    return _covered_before(intervals, end) - _covered_before(intervals, start)


def _covered_before(intervals: Intervals, time: Floats) -> Floats:
    if not len(intervals):
        return np.zeros(len(time))
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    begun = np.searchsorted(intervals[:, 0], time, side="right")
    last = np.maximum(begun - 1, 0)
    inside = np.minimum(time, intervals[last, 1]) - intervals[last, 0]
    return np.where(begun > 0, before[last] + inside, 0.0)


class RankTime(Struct, frozen=True):
    """Where one rank's time went (s).

    ``compute`` is time with a kernel under way; copies and memsets compute nothing.
    ``exposed_communication`` is time a rank communicates while it computes nothing,
    ``exposed_waiting`` time it waits in a call for other members while it computes nothing,
    ``communication`` all time in which a call of the rank moves data. ``exposed_copy`` is time with
    a copy under way, no kernel, and no call that moves data.
    """

    rank: int
    start: float
    end: float
    compute: float
    communication: float
    exposed_communication: float
    exposed_waiting: float
    exposed_copy: float = 0.0


class DominantKernel(Struct, frozen=True):
    """The kernel with the most time, and its share of the time of all kernels (0 to 1)."""

    name: str
    share: float


class Straggler(Struct, frozen=True):
    """How much calls wait for their last member (0 to 1), and for which rank the longest."""

    index: float
    rank: int | None


def rank_times(run: RunTimes) -> list[RankTime]:
    """One row per rank, ascending."""
    workload, rows = run.workload, []
    for rank in workload.ranks:
        ops = workload.ops_of(rank)
        what = workload.what[ops]
        kernels = _spans(run, ops[what == What.COMPUTE])
        copies = _spans(run, ops[what == What.COPY])
        calls = ops[what >= What.COLLECTIVE]
        begun, over = moves(run, calls)
        moving = union(begun, over)
        waiting = union(run.start[calls], np.maximum(run.start[calls], begun))
        row = RankTime(
            rank=rank,
            start=float(run.start[ops].min()),
            end=float(run.end[ops].max()),
            compute=length(kernels),
            communication=length(moving),
            exposed_communication=uncovered(moving, kernels),
            exposed_waiting=uncovered(waiting, kernels),
            exposed_copy=uncovered(copies, united(kernels, moving)),
        )
        rows.append(row)
    return rows


def step_time(run: RunTimes) -> float:
    """End of the last op of any rank (s); of a simulated timeline, its makespan.

    Of a step that repeats it is the period: time 0 is the end of the step before.
    """
    return float(run.end.max()) if len(run.end) else 0.0


def mfu(flops: float, *, step: float, ranks: int, peak: float) -> float:
    """Model FLOPs utilisation: model's FLOPs per step / (step time, ranks and peak FLOP/s).

    Chowdhery et al., PaLM, arXiv 2204.02311, section 4.1: recomputed FLOPs do not count.

    Parameters
    ----------
    flops
        Of the model per step, forward and backward, all ranks together.
    step
        Step time (s).
    ranks
        Accelerators of the job.
    peak
        Peak of one accelerator (FLOP/s), decimal units, without sparsity.

    Returns
    -------
    float
        0 to 1; more means that a number given is wrong.

    Examples
    --------
    >>> mfu(312e12, step=2.0, ranks=1, peak=312e12)
    0.5
    """
    return flops / (step * ranks * peak)


def exposed_communication(run: RunTimes) -> float:
    """Mean over ranks of the time a rank communicates while it computes nothing (s).

    Communicating is from the last member's arrival to the call's end; waiting for members is not.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.timeline import measured
    >>> from simulator.calls import CallRow
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> call = builder.call(CallRow("all_reduce", builder.group((0,)), sequence=0, size=64e6))
    >>> _ = builder.op(What.COLLECTIVE, rank=0, lane="stream 24", name="nccl", duration=0.0,
    ...     call=call, measured=(0.0, 3.0))
    >>> _ = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=2.0,
    ...     measured=(0.0, 2.0))
    >>> exposed_communication(measured(builder.build()))
    1.0
    """
    return mean_exposed(rank_times(run))


def exposed_by_resource(timeline: Timeline) -> dict[str, float]:
    """Return the mean exposed communication of the ranks by resource (s).

    A rank's exposed communication (:func:`exposed_communication`) is
    split by how much of each call is exposed, and by the resources on which the call spends its
    time. Time that no link causes (software, calls of unknown size) is left out.
    """
    workload, names = timeline.workload, timeline.topology.resources
    totals = np.zeros(len(names))
    for rank in workload.ranks:
        ops = workload.ops_of(rank)
        busy = ops[workload.what[ops] == What.COMPUTE]
        members = ops[workload.what[ops] >= What.COLLECTIVE]
        calls = workload.call[members]
        kernels = union(timeline.start[busy], timeline.end[busy])
        exposed = uncovered(union(*moves(timeline, members)), kernels)
        begun, over = timeline.call_start[calls], timeline.call_end[calls]
        hidden = cover(kernels, begun, over)
        alone = np.maximum(0.0, over - begun - hidden)
        spent = timeline.call_spent[calls]
        every = spent.sum(axis=1)
        share = spent / np.where(every > 0, every, 1.0)[:, None]
        together = float(alone.sum())
        if together > 0:
            seconds = (share * alone[:, None]).sum(axis=0)[:-1]
            totals += seconds * min(1.0, exposed / together)
    means = totals / max(1, len(workload.ranks))
    return {name: time for name, time in zip(names, means.tolist(), strict=True) if time > 0}


def mean_exposed(rows: Sequence[RankTime]) -> float:
    """Exposed communication of a run (s), given the times of its ranks."""
    return float(np.mean([row.exposed_communication for row in rows])) if rows else 0.0


def communication_fraction(run: RunTimes) -> float:
    """Mean over ranks of the time in which a call moves data, as a share of the step (0 to 1).

    ``communication_fraction`` of CCL-Bench (arXiv 2605.06544), without the waiting for members that
    its kernel durations include.
    """
    return _share_of_step(run, [row.communication for row in rank_times(run)])


def communication_overlap(run: RunTimes) -> float | None:
    """Share of the communication during which its rank computes (0 to 1), summed over ranks.

    The rest is exposed: overlap * communication + exposed communication = communication. None
    where nothing is communicated. Of CCL-Bench (arXiv 2605.06544) ``communication_overlap_ratio``.
    """
    rows = rank_times(run)
    total = fsum(row.communication for row in rows)
    exposed = fsum(row.exposed_communication for row in rows)
    return min(1.0, max(0.0, (total - exposed) / total)) if total > 0 else None


def memory_transfer_overhead(run: RunTimes) -> float:
    """Mean over ranks of the time of exposed copies, as a share of the step (0 to 1).

    A copy or memset is hidden while a kernel of the rank runs or a call of it moves data.
    ``memory_transfer_overhead`` of CCL-Bench (arXiv 2605.06544) counts hidden copies as well.
    """
    return _share_of_step(run, [row.exposed_copy for row in rank_times(run)])


def load_imbalance(run: RunTimes) -> float | None:
    """Largest compute time of a rank over the mean of all ranks, less 1; 0 is balanced.

    The percent imbalance of Pearce et al., Quantifying the Effectiveness of Load Balance
    Algorithms, ICS 2012, doi 10.1145/2304576.2304601, as a fraction. A rank computes while a kernel
    of the step runs on it. None where nothing computes, and of a single rank.
    """
    workload, kernels = run.workload, _kernels(run)
    kernels_by_rank = [kernels[workload.rank[kernels] == rank] for rank in workload.ranks]
    compute = [length(_spans(run, ops)) for ops in kernels_by_rank]
    mean = float(np.mean(compute)) if len(compute) > 1 else 0.0
    return max(0.0, max(compute) / mean - 1) if mean > 0 else None


def load_imbalance_ratio(run: RunTimes) -> float | None:
    """Largest over least kernel time of a rank, kernels of calls included.

    1 is balanced. ``load_imbalance_ratio`` of CCL-Bench (arXiv 2605.06544). The kernel of a
    collective waits for others, which hides the imbalance that :func:`load_imbalance` shows. None
    for a single rank, and if a rank runs no kernel.
    """
    active = [length(_spans(run, ops)) for ops in _device_ops(run)]
    return max(active) / min(active) if len(active) > 1 and min(active) > 0 else None


def straggler_delay(run: RunTimes) -> float | None:
    """How much later the last rank ends its calls than the first (0 to 1).

    ``straggler`` of CCL-Bench (arXiv 2605.06544): the time between the first and the last rank's
    end of its last call, over that from the first start of any call to the last end. None if fewer
    than two ranks communicate.
    """
    workload = run.workload
    calls = [ops[workload.what[ops] >= What.COLLECTIVE] for ops in _ops_by_rank(run)]
    windows = [(run.start[ops].min(), run.end[ops].max()) for ops in calls if len(ops)]
    if len(windows) < 2:
        return None
    ends = [end for _, end in windows]
    whole = max(ends) - min(start for start, _ in windows)
    return float((max(ends) - min(ends)) / whole) if whole > 0 else 0.0


def communication_time(run: RunTimes) -> float:
    """Mean over ranks of the time with a call under way, waiting included (s).

    ``total_communication_time`` of CCL-Bench (arXiv 2605.06544).
    """
    workload = run.workload
    calls = (ops[workload.what[ops] >= What.COLLECTIVE] for ops in _ops_by_rank(run))
    seconds = [length(_spans(run, ops)) for ops in calls]
    return float(np.mean(seconds)) if seconds else 0.0


_EXPERTS = re.compile(
    r"moe|expert|grouped_?gemm|gating|(?<![a-z])(?:router|routing|topk|deep_?ep)"
    r"|(?<![a-z])(?:dispatch|combine)(?![a-z])",
    re.IGNORECASE,
)
"""Words in the names of kernels that route tokens, exchange them, or compute experts."""


def experts_share(run: RunTimes) -> float | None:
    """Share of the time of all kernels, those of calls included, spent on experts (0 to 1).

    By the kernels' names. Of CCL-Bench (arXiv 2605.06544) ``moe_fraction``, whose words are nearly
    the same. None without kernels.
    """
    workload = run.workload
    ops = np.concatenate([np.empty(0, dtype=np.int64), *_device_ops(run)])
    lasting = run.end[ops] - run.start[ops]
    routed = [number for number, name in enumerate(workload.names) if _EXPERTS.search(name)]
    total = float(lasting.sum())
    return float(lasting[np.isin(workload.name[ops], routed)].sum()) / total if total > 0 else None


def straggler(run: RunTimes) -> Straggler | None:
    """Share of the calls' time that their members spend waiting for the last of them (0 to 1).

    Summed over the calls with at least two members in the run: from the first arrival to the last
    (of an eager message, to the sender's), over from the first arrival to the end. It is
    CCL-Bench's (arXiv 2605.06544) relative lag of the slowest member of a communication group,
    taken where members arrive, because they end together. The rank is the one for which calls
    waited longest. None where no call has two.
    """
    workload = run.workload
    ops = np.flatnonzero(workload.what >= What.COLLECTIVE)
    call = workload.call[ops]
    first = np.full(len(workload.calls), np.inf)
    np.minimum.at(first, call, run.start[ops])
    of_many = workload.members >= 2
    if not of_many.any():
        return None
    last = np.full(len(workload.calls), -np.inf)
    awaited = ~workload.unawaited[ops]
    np.maximum.at(last, call[awaited], run.start[ops[awaited]])
    lag = np.where(of_many, last - first, 0.0)
    span = float((run.call_end - first)[of_many].sum())
    waited: dict[int, float] = defaultdict(float)
    late = awaited & (run.start[ops] == last[call])
    for rank, index in zip(workload.rank[ops[late]].tolist(), call[late].tolist(), strict=True):
        waited[rank] += float(lag[index])
    worst = max(waited, key=lambda rank: (waited[rank], -rank))
    index_value = min(1.0, float(lag.sum()) / span) if span > 0 else 0.0
    return Straggler(index_value, worst if waited[worst] > 0 else None)


def dominant_kernel(run: RunTimes) -> DominantKernel | None:
    """Find the kernel name with the most time on all ranks together; None without kernels.

    Of CCL-Bench (arXiv 2605.06544) ``dominant_kernel_concentration``, over kernels that compute:
    those of collectives mostly wait.
    """
    workload = run.workload
    kernels = _kernels(run)
    spent = np.bincount(
        workload.name[kernels],
        weights=run.end[kernels] - run.start[kernels],
        minlength=len(workload.names),
    )
    total = float(spent.sum())
    if total <= 0:
        return None
    most = int(np.argmax(spent))
    return DominantKernel(workload.names[most], min(1.0, float(spent[most]) / total))


def _kernels(run: RunTimes) -> Longs:
    """Kernels that the step launched; what a stream had left of the step before is not counted."""
    return np.flatnonzero((run.workload.what == What.COMPUTE) & run.workload.own)


def _ops_by_rank(run: RunTimes) -> list[Longs]:
    return [run.workload.ops_of(rank) for rank in run.workload.ranks]


def _device_ops(run: RunTimes) -> list[Longs]:
    """Kernels of each rank: its own, and those of calls if it has others."""
    workload, kernels = run.workload, _kernels(run)
    computes = np.zeros(len(workload), dtype=np.bool_)
    computes[kernels] = True
    every = []
    for ops in _ops_by_rank(run):
        what = workload.what[ops]
        by_device = bool((computes[ops]).any() or (what == What.COPY).any())
        every.append(ops[computes[ops] | (by_device & (what >= What.COLLECTIVE))])
    return every


def _share_of_step(run: RunTimes, seconds: list[float]) -> float:
    step = step_time(run)
    return min(1.0, float(np.mean(seconds)) / step) if seconds and step > 0 else 0.0


def moves(run: RunTimes, ops: Longs) -> tuple[Floats, Floats]:
    """When the calls of ops move data for their ranks (s): from the call's start to the op's end.

    An eager message also moves before its receiver arrives, and ends with the message if that
    arrives later.
    """
    workload = run.workload
    call = workload.call[ops]
    begun = run.call_start[call]
    late = workload.unawaited[ops] & (run.start[ops] > run.call_end[call])
    return begun, np.maximum(begun, np.where(late, run.call_end[call], run.end[ops]))


def _spans(run: RunTimes, ops: Longs) -> Intervals:
    return union(run.start[ops], run.end[ops])


def uncovered(covered: Intervals, by: Intervals) -> float:
    """Length of the part of one union outside another."""
    return max(0.0, length(covered) - common(covered, by))
