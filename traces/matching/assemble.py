"""Ranks' graphs and matched calls to one workload on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.workload import CallRow, Calls, Edges, Floats, Group, What, Workload
from traces.core.columns import ValueIndex
from traces.core.files import uncollected
from traces.core.rank_graph import RankGraph
from traces.matching.clocks import MessageEnds, offsets
from traces.matching.match import MatchedCall

_END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "unknown")
"""Calls of which no rank can be done before all have arrived: the root of a broadcast can."""


@dataclass(frozen=True, slots=True, eq=False)
class JobClock:
    """Seconds to add to each rank's times to have them since the job's first start of the step.

    ``offset`` is what each rank's clock was ahead (s), taken off already.
    """

    shift: NDArray[np.float64]
    offset: NDArray[np.float64]


def align(
    graphs: Sequence[RankGraph], epochs: Sequence[int], calls: Sequence[MatchedCall]
) -> JobClock:
    """Put all ranks on one clock; ``epochs`` are the traces' (ns)."""
    first = min(epochs)
    shift = np.array([(epoch - first) * 1e-9 for epoch in epochs])
    ends = []
    for call in calls:
        row = np.full(len(graphs), np.nan)
        for rank_index, op in call.ops.items():
            row[rank_index] = graphs[rank_index].ops[op].end + shift[rank_index]
        if len(call.ops) > 1 and call.kind in _END_TOGETHER:
            ends.append(row)
    ahead = offsets(ends, _messages(graphs, shift, calls), len(graphs))
    shift -= ahead
    shift -= min(graph.start + own for graph, own in zip(graphs, shift, strict=True))
    return JobClock(shift=shift, offset=ahead)


def _messages(
    graphs: Sequence[RankGraph], shift: NDArray[np.float64], calls: Sequence[MatchedCall]
) -> list[MessageEnds]:
    """Messages of which both ends were recorded."""
    messages = []
    for call in calls:
        own = {graphs[rank_index].ops[op].what: rank_index for rank_index, op in call.ops.items()}
        if own.keys() == {What.SEND, What.RECEIVE}:
            sender, receiver = own[What.SEND], own[What.RECEIVE]
            sent, received = (
                graphs[rank_index].ops[call.ops[rank_index]].end + float(shift[rank_index])
                for rank_index in (sender, receiver)
            )
            messages.append(MessageEnds(sender, receiver, sent, received, call.eager))
    return messages


@uncollected()
def assemble(
    graphs: Sequence[RankGraph], calls: Sequence[MatchedCall], clock: JobClock, job_ranks: int
) -> Workload:
    """Make one workload of all ranks."""
    ops = _Ops.of(graphs, clock)
    groups: dict[Group, int] = {}
    rows = []
    for index, call in enumerate(calls):
        group = groups.setdefault(Group(call.ranks, call.label), len(groups))
        transfer = ops.join(index, call)
        rows.append(
            CallRow(
                call.kind,
                group,
                call.sequence,
                call.size,
                call.dtype,
                transfer=transfer,
                eager=call.eager,
            )
        )
    names, lanes = ValueIndex[str](), ValueIndex[str]()
    every = [op for graph in graphs for op in graph.ops]
    return Workload(
        what=ops.what,
        rank=np.repeat([graph.rank for graph in graphs], np.diff(ops.first)).astype(np.int32),
        lane=lanes.column([op.lane for op in every]),
        name=names.column([op.name for op in every]),
        call=ops.call,
        duration=np.maximum(0.0, ops.end - ops.over),
        ready=ops.ready,
        measured_start=ops.start,
        measured_end=ops.end,
        edges=_edges(graphs, ops.first),
        calls=Calls.of(rows),
        groups=tuple(groups),
        names=tuple(names.index),
        lanes=tuple(lanes.index),
        job_ranks=job_ranks,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Ops:
    """Columns of the ops of all ranks on one clock (s); those of a rank begin at its ``first``.

    ``over`` is when an op's own time begins: at its start, or when its call is over.
    """

    first: NDArray[np.int64]
    what: NDArray[np.uint8]
    start: Floats
    end: Floats
    ready: Floats
    over: Floats
    call: NDArray[np.int32]

    @staticmethod
    def of(graphs: Sequence[RankGraph], clock: JobClock) -> "_Ops":
        """Collect them, of no call yet."""
        first = np.cumsum([0, *(len(graph.ops) for graph in graphs)], dtype=np.int64)
        shift = np.repeat(clock.shift, np.diff(first))
        every = [op for graph in graphs for op in graph.ops]
        start = np.array([op.start for op in every], dtype=np.float64) + shift
        end = np.array([op.end for op in every], dtype=np.float64) + shift
        given = [-np.inf if op.ready is None else op.ready for op in every]
        ready = np.maximum(0.0, np.array(given, dtype=np.float64) + shift)
        what = np.array([op.what for op in every], dtype=np.uint8)
        call = np.full(len(start), -1, np.int32)
        return _Ops(first, what, start, end, ready, start.copy(), call)

    def join(self, index: int, call: MatchedCall) -> float:
        """Join a call's members; returns how long it moved after the last arrived (s).

        It is over when the first member ends; what the others need after that is their own
        (draining a ring, being scheduled), and kept as the ``duration`` of their ops. When an
        eager message is over, :func:`simulator.timeline.measured` says.
        """
        members = np.array([self.first[at] + op for at, op in call.ops.items()], dtype=np.int64)
        sends = self.what[members] == What.SEND
        awaited = members[sends] if call.eager and sends.any() else members
        arrived, over = float(self.start[awaited].max()), float(self.end[awaited].min())
        for op in np.setdiff1d(members, awaited).tolist():
            if self.start[op] < over:
                over = float(self.end[op])
        transfer = max(0.0, over - arrived)
        self.over[members] = np.maximum(self.start[members], arrived + transfer)
        self.call[members] = index
        return transfer


def _edges(graphs: Sequence[RankGraph], first: NDArray[np.int64]) -> Edges:
    edges = [edge for graph in graphs for edge in graph.edges]
    source, target, lag = zip(*edges, strict=True) if edges else ((), (), ())
    base = np.repeat(first[:-1], [len(graph.edges) for graph in graphs])
    from_op, to_op = (np.array(column, dtype=np.int64) + base for column in (source, target))
    return Edges.of(int(first[-1]), from_op, to_op, np.array(lag, dtype=np.float64))
