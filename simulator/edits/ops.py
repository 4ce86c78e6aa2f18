"""Edits: the same step with ops scaled, dropped or fused, or without stragglers.

Each returns another workload. A dropped or fused op stays in its place with no duration, so that
its successors still wait for its predecessors. Its launch goes with it: the edge from the host, and
the host op, if that only launches: its other successors are the next op of its own thread and other
ops that are not launched any more.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulator.support.arrays import Floats, Longs, Mask
from simulator.workload import Edges, What, Workload


def durations_scaled(workload: Workload, ops: Mask, factor: float | Floats) -> Workload:
    """Multiply the durations of ops; of an op of a call, only its drain time (none as a rule).

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> for name in ("gemm", "add"):
    ...     _ = builder.op(What.COMPUTE, rank=0, lane="stream 7", name=name, duration=2e-3)
    >>> durations_scaled(builder.build(), np.array([True, False]), 0.5).duration.tolist()
    [0.001, 0.002]
    """
    return workload.lasting(np.where(ops, workload.duration * factor, workload.duration))


def lags_scaled(workload: Workload, edges: Mask, factor: float) -> Workload:
    """Multiply the lags of edges."""
    lag = np.where(edges, workload.edges.lag * factor, workload.edges.lag)
    return replace(workload, edges=replace(workload.edges, lag=lag))


def dropped(workload: Workload, ops: Mask) -> Workload:
    """Let ops take no time; kernels and copies are not launched, and the gap before them goes.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> for name in ("gemm", "add"):
    ...     _ = builder.op(What.COMPUTE, rank=0, lane="stream 7", name=name, duration=2e-3)
    >>> dropped(builder.build(), np.array([False, True])).duration.tolist()
    [0.002, 0.0]
    """
    edges, is_host = workload.edges, workload.what == What.HOST
    source, target = edges.source, edges.target
    lag = np.where(ops[target] & ~is_host[source], 0.0, edges.lag)
    launch = is_host[source] & ~is_host[target] & ops[target]
    goes_on = (
        is_host[target]
        & (workload.rank[source] == workload.rank[target])
        & (workload.lane[source] == workload.lane[target])
    )
    # Host ops that only launch what is dropped take no time either.
    needless = np.zeros(len(workload), dtype=bool)
    needless[source[launch]] = True
    needless[source[~launch & ~goes_on]] = False
    remaining = Edges.of(len(workload), source[~launch], target[~launch], lag[~launch])
    return replace(
        workload, edges=remaining, duration=np.where(ops | needless, 0.0, workload.duration)
    )


def calls_dropped(workload: Workload, calls: Mask) -> Workload:
    """Drop calls: they transfer nothing, are not launched, and members wait for no others."""
    gone = np.isin(workload.call, np.flatnonzero(calls))
    left = np.flatnonzero(~calls)
    number = np.full(len(calls) + 1, -1, dtype=np.int32)
    number[left] = np.arange(len(left), dtype=np.int32)
    # A column of -1 finds the last row of ``number``, which is -1.
    call = number[workload.call]
    what = np.where(gone, np.uint8(What.COPY), workload.what)
    return dropped(replace(workload, what=what, call=call, calls=workload.calls.taken(left)), gone)


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A workload with runs of kernels fused: ``runs`` launches instead of those of ``kernels``."""

    workload: Workload
    kernels: Mask
    runs: int


def fused(workload: Workload, ops: Mask, factor: float = 1.0) -> Fused:
    """Fuse each run of ``ops`` that follow each other on a stream into one launch.

    A run continues as long as a kernel waits for nothing but its launch and the kernel before it,
    and nothing but that kernel waits for the one before: otherwise an op in between would wait for
    itself. The one launch takes the sum of the run's times ``factor``; the gaps inside are removed,
    and so are the launches of all but the first.

    ``factor`` is the time of the fused kernel over the sum of its parts'.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> gemm, add = (
    ...     builder.op(What.COMPUTE, rank=0, lane="stream 7", name=name, duration=2e-3)
    ...     for name in ("gemm", "add")
    ... )
    >>> builder.edge(gemm, add)
    >>> fused(builder.build(), np.array([True, True])).workload.duration.tolist()
    [0.004, 0.0]
    """
    edges = workload.edges
    source, target = edges.source, edges.target
    waited = workload.what[source] != What.HOST
    followers = np.diff(edges.offset)
    awaited = np.bincount(target[waited], minlength=len(workload))
    goes_on = (
        ops[source]
        & ops[target]
        & (workload.rank[source] == workload.rank[target])
        & (workload.lane[source] == workload.lane[target])
        & (followers[source] == 1)
        & (awaited[target] == 1)
    )
    # The previous kernel of each kernel's run, -1 for the first of a run.
    before = np.full(len(workload), -1, dtype=np.int64)
    before[target[goes_on]] = source[goes_on]
    first = np.arange(len(workload))
    later = np.flatnonzero(before >= 0)
    first[later] = before[later]
    while not np.array_equal(first[first], first):
        first = first[first]
    heads = np.unique(first[later])
    member = np.zeros(len(workload), dtype=bool)
    member[later] = member[heads] = True

    def summed(column: Floats) -> Floats:
        total = column.copy()
        total[heads] = np.bincount(first, weights=column, minlength=len(column))[heads]
        total[later] = 0.0
        return total

    duration = summed(workload.duration)
    duration[heads] *= factor
    inside = np.zeros(len(workload), dtype=bool)
    inside[later] = True
    gone = dropped(workload, inside)
    # The host ops that only launched later kernels have no duration in ``gone``.
    duration = np.where(member, duration, gone.duration)
    result = replace(
        gone,
        duration=duration,
        flops=None if gone.flops is None else summed(gone.flops),
        traffic=None if gone.traffic is None else summed(gone.traffic),
    )
    return Fused(result, member, len(heads))


@dataclass(frozen=True, slots=True, eq=False)
class Evened:
    """A workload without stragglers: ``ops`` were compared over ``ranks``.

    ``latest`` is the delay of the last rank's start after the first's (s).
    """

    workload: Workload
    ops: int
    ranks: int
    latest: float


def evened(workload: Workload) -> Evened:
    """Give matching ops of all ranks their median duration, and start all ranks with the first.

    Ops match if they have one name that occurs equally often on every rank: the n-th of each. Ops
    that only some ranks have (stages of a pipeline, a rank that logs) keep their duration.
    """
    ranks = len(workload.ranks)
    like = _matching_ops(workload)
    duration = workload.duration.copy()
    table = duration[like]
    duration[like] = np.median(table, axis=1, keepdims=True) if len(like) else table
    # A rank is as late as its earliest op without predecessors.
    begins = np.full(len(workload.ranks), np.inf)
    first = np.flatnonzero(workload.predecessors == 0)
    rank = np.searchsorted(workload.ranks, workload.rank[first])
    np.minimum.at(begins, rank, workload.ready[first])
    begins[np.isinf(begins)] = 0.0
    late = begins - begins.min(initial=np.inf)
    ready = np.maximum(0.0, workload.ready - late[np.searchsorted(workload.ranks, workload.rank)])
    result = replace(workload, duration=duration, ready=ready)
    return Evened(result, int(like.size), ranks, float(late.max(initial=0.0)))


def _matching_ops(workload: Workload) -> Longs:
    """Return rows of matching ops, one column per rank, shape ``(rows, ranks)``."""
    ranks = len(workload.ranks)
    ops = np.flatnonzero(workload.what < What.COLLECTIVE)
    kind = workload.name[ops].astype(np.int64) * len(What) + workload.what[ops]
    rank = np.searchsorted(workload.ranks, workload.rank[ops])
    ops = ops[np.lexsort((ops, rank, kind))]
    kinds, which = np.unique(np.sort(kind), return_inverse=True)
    rank = np.searchsorted(workload.ranks, workload.rank[ops])
    counts = np.bincount(which * ranks + rank, minlength=len(kinds) * ranks).reshape(-1, ranks)
    common = (counts == counts[:, :1]).all(axis=1) & (counts[:, 0] > 0)
    ops, rank = ops[common[which]], rank[common[which]]
    # Sorted by kind, then index, and ranks have equal counts of each kind: the n-th ones match.
    columns = [ops[rank == number] for number in range(ranks)]
    return np.stack(columns, axis=1) if columns else np.empty((0, 0), dtype=np.int64)
