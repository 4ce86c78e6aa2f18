"""Ranks' graphs and matched calls to one workload on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.builder import WorkloadBuilder
from simulator.workload import CallRow, Workload
from traces.clocks import offsets
from traces.graph import RankGraph
from traces.match import MatchedCall

_END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "unknown")
"""Calls of which no rank can be done before all have arrived: the root of a broadcast can."""


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """Seconds to add to each rank's times to have them since the job's first start of the step.

    ``offset`` is what each rank's clock was ahead (s), taken off already.
    """

    shift: NDArray[np.float64]
    offset: NDArray[np.float64]


def align(
    graphs: Sequence[RankGraph], epochs: Sequence[int], calls: Sequence[MatchedCall]
) -> Clock:
    """Put all ranks on one clock; ``epochs`` are the traces' (ns)."""
    first = min(epochs)
    shift = np.array([(epoch - first) * 1e-9 for epoch in epochs])
    ends = []
    for call in calls:
        row = np.full(len(graphs), np.nan)
        for place, op in call.ops.items():
            row[place] = graphs[place].ops[op].end + shift[place]
        if len(call.ops) > 1 and call.kind in _END_TOGETHER:
            ends.append(row)
    ahead = offsets(ends) if ends else np.zeros(len(graphs))
    shift -= ahead
    shift -= min(graph.start + own for graph, own in zip(graphs, shift, strict=True))
    return Clock(shift=shift, offset=ahead)


def assemble(
    graphs: Sequence[RankGraph], calls: Sequence[MatchedCall], clock: Clock, job_ranks: int
) -> Workload:
    """Make one workload of all ranks."""
    builder = WorkloadBuilder(job_ranks=job_ranks)
    call_of: dict[tuple[int, int], int] = {}
    over: list[float] = []
    for call in calls:
        begun, transfer = _measured(graphs, call, clock)
        over.append(begun + transfer)
        index = builder.call(
            CallRow(
                kind=call.kind,
                group=builder.group(call.ranks, call.label),
                sequence=call.sequence,
                size=call.size,
                dtype=call.dtype,
                transfer=transfer,
            )
        )
        call_of.update(dict.fromkeys(call.ops.items(), index))
    for place, graph in enumerate(graphs):
        _add_rank(builder, graph, float(clock.shift[place]), _joined(call_of, place, over))
    return builder.build()


def _measured(graphs: Sequence[RankGraph], call: MatchedCall, clock: Clock) -> tuple[float, float]:
    """When a call's last member arrived and for how long it then moved (s), without the waiting.

    It is over when the first member ends; what the others need after that is their own (draining
    a ring, being scheduled), and kept as the ``duration`` of their ops.
    """
    spans = [
        (
            graphs[place].ops[op].start + clock.shift[place],
            graphs[place].ops[op].end + clock.shift[place],
        )
        for place, op in call.ops.items()
    ]
    arrived = max(start for start, _ in spans)
    return float(arrived), float(max(0.0, min(end for _, end in spans) - arrived))


def _joined(
    call_of: dict[tuple[int, int], int], place: int, over: list[float]
) -> dict[int, tuple[int, float]]:
    """Map a rank's ops to ``(call, when the call was over)``."""
    return {op: (call, over[call]) for (rank, op), call in call_of.items() if rank == place}


def _add_rank(
    builder: WorkloadBuilder,
    graph: RankGraph,
    shift: float,
    joined: dict[int, tuple[int, float]],
) -> None:
    numbers = []
    for number, op in enumerate(graph.ops):
        call, over = joined.get(number, (-1, op.start + shift))
        numbers.append(
            builder.op(
                op.what,
                rank=graph.rank,
                lane=op.lane,
                name=op.name,
                duration=max(0.0, op.end + shift - over),
                call=call,
                ready=0.0 if op.ready is None else max(0.0, op.ready + shift),
                measured=(op.start + shift, op.end + shift),
            )
        )
    for source, target, lag in graph.edges:
        builder.edge(numbers[source], numbers[target], lag=lag)
