"""Ranks' graphs and matched calls to one workload on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.workload import CallRow, Calls, Edges, Floats, Group, What, Workload
from traces.core.columns import ValueIndex
from traces.core.files import uncollected
from traces.core.rank_graph import LocalOp, RankGraph
from traces.matching.clocks import offsets
from traces.matching.match import MatchedCall
from traces.matching.messages import (
    EdgeColumns,
    by_hosts,
    call_ends,
    handed_over,
    message_ends,
    received,
)

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
    messages = list(message_ends(graphs, shift, calls))
    for call in calls:
        if call.kind in _END_TOGETHER and by_hosts(graphs, call):
            messages += call_ends(graphs, shift, call)
            continue
        row = np.full(len(graphs), np.nan)
        for rank_index, op in call.ops.items():
            row[rank_index] = graphs[rank_index].ops[op].end + shift[rank_index]
        if len(call.ops) > 1 and call.kind in _END_TOGETHER:
            ends.append(row)
    ahead = offsets(ends, messages, len(graphs))
    shift -= ahead
    shift -= min(graph.start + own for graph, own in zip(graphs, shift, strict=True))
    return JobClock(shift=shift, offset=ahead)


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
        transfer = ops.join(index, call, graphs)
        rows.append(
            CallRow(
                call.kind,
                group,
                call.sequence,
                call.size,
                call.dtype,
                transfer=transfer,
                eager=call.eager,
                shares=call.shares,
            )
        )
    names, lanes = ValueIndex[str](), ValueIndex[str]()
    every = [op for graph in graphs for op in graph.ops]
    module, modules = _modules(every)
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
        edges=_edges(graphs, calls, ops.first, clock.shift),
        calls=Calls.of(rows),
        groups=tuple(groups),
        names=tuple(names.index),
        lanes=tuple(lanes.index),
        job_ranks=job_ranks,
        module=module,
        modules=modules,
        library=_library(graphs),
    )


_MODELLED = "gloo"
"""The library that can be told by the names of its works, and has a model of its own."""


def _library(graphs: Sequence[RankGraph]) -> str:
    """Name the library that carried out all calls, "" where several did or nothing tells."""
    carriers = {
        graph.ops[op].name.partition(":")[0] if op in graph.by_host or op in graph.posted else ""
        for graph in graphs
        for op in graph.collectives
    }
    return _MODELLED if carriers == {_MODELLED} else ""


def _modules(ops: Sequence[LocalOp]) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:
    """Column and table of the modules that ops belong to; none where no op's is known."""
    table = ValueIndex[str]()
    table("")  # which becomes -1
    column = table.column([op.module for op in ops]) - np.int32(1)
    modules = tuple(table.index)[1:]
    return (column, modules) if modules else (None, ())


@dataclass(frozen=True, slots=True, eq=False)
class _Ops:
    """Columns of the ops of all ranks on one clock (s); those of a rank begin at its ``first``.

    ``over`` is when an op's own time begins: at its start, when what it follows has ended though it
    was on the device before, or when its call is over.
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
        begun = [op.start if op.begun is None else op.begun for op in every]
        over = np.array(begun, dtype=np.float64) + shift
        what = np.array([op.what for op in every], dtype=np.uint8)
        return _Ops(first, what, start, end, ready, over, np.full(len(start), -1, np.int32))

    def join(self, index: int, call: MatchedCall, graphs: Sequence[RankGraph]) -> float:
        """Join a call's members; returns how long it moved after the last arrived (s).

        A call of devices is over when the first member ends; what the others need after that is
        their own (draining a ring, being scheduled), and kept as the ``duration`` of their ops.
        One that hosts carry out is over when the last member has all that it waits for: nothing is
        drained there, and where a rank comes late the others may be done long before it. A message
        is over when it was received; NaN where nobody was seen to wait for that. When an eager
        message is over, :func:`simulator.timeline.measured` says.
        """
        own = [int(self.first[place]) + op for place, op in call.ops.items()]
        members = np.array(own, dtype=np.int64)
        self.call[members] = index
        if any(op in graphs[place].posted for place, op in call.ops.items()):
            return self._join_posted(call, members, graphs)
        if by_hosts(graphs, call):
            self.over[members] = self.end[members]
            return max(0.0, float(self.end[members].max() - self.start[members].max()))
        if call.eager:
            return self._join_eager(members)
        arrived = float(self.over[members].max())
        transfer = max(0.0, float(self.end[members].min()) - arrived)
        self.over[members] = arrived + transfer
        return transfer

    def _join_posted(
        self, call: MatchedCall, members: NDArray[np.int64], graphs: Sequence[RankGraph]
    ) -> float:
        arrived, ends = float(self.start[members].max()), self.end[members]
        over = received(graphs, call, ends.tolist())
        ends = np.minimum(ends, ends.min() if over is None else over)
        self.end[members] = np.maximum(self.start[members], ends)
        self.over[members] = self.end[members]
        return float("nan") if over is None else max(0.0, over - arrived)

    def _join_eager(self, members: NDArray[np.int64]) -> float:
        sends = self.what[members] == What.SEND
        awaited = members[sends] if sends.any() else members
        arrived, over = float(self.start[awaited].max()), float(self.end[awaited].min())
        for op in np.setdiff1d(members, awaited).tolist():
            if self.start[op] < over:
                over = float(self.end[op])
        transfer = max(0.0, over - arrived)
        self.over[members] = np.maximum(self.start[members], arrived + transfer)
        return transfer


def _edges(
    graphs: Sequence[RankGraph],
    calls: Sequence[MatchedCall],
    first: NDArray[np.int64],
    shift: Floats,
) -> Edges:
    edges = [edge for graph in graphs for edge in graph.edges]
    source, target, lag = zip(*edges, strict=True) if edges else ((), (), ())
    base = np.repeat(first[:-1], [len(graph.edges) for graph in graphs])
    from_op, to_op = (np.array(column, dtype=np.int64) + base for column in (source, target))
    columns = EdgeColumns(from_op, to_op, np.array(lag, dtype=np.float64))
    return Edges.of(int(first[-1]), *handed_over(graphs, calls, first, shift, columns))
