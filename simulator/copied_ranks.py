"""Copies of a rank: the same ops and edges, in calls of other groups.

The caller determines which ranks are copied and which calls a copy joins. A workload that holds
some ranks of a job records it (:mod:`simulator.folding.copies`); for a trace it follows from the
recorded groups (:mod:`traces.missing_ranks`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.calls import Group
from simulator.support.arrays import Floats, Longs, entries_of, offsets
from simulator.support.errors import WorkloadError
from simulator.workload import Edges, Workload


@dataclass(frozen=True, slots=True, eq=False)
class RankProgram:
    """One rank's part of a workload: its ops, its edges by local index, its groups.

    ``call`` is the call of each op, -1 for none.
    """

    ops: Longs
    source: Longs
    target: Longs
    lag: Floats
    call: Longs
    groups: list[int]

    @staticmethod
    def of(workload: Workload, rank: int, ops: Longs) -> "RankProgram":
        """Extract it from a workload; ``ops`` are all ops of the rank, ascending.

        Raises
        ------
        WorkloadError
            If an edge joins one of the ops to another rank's op.
        """
        edges = workload.edges
        edge = entries_of(edges.offset, ops)
        target = edges.target[edge]
        into = workload.rank[edges.target] == rank
        if (workload.rank[target] != rank).any() or np.count_nonzero(into) != len(edge):
            raise WorkloadError(f"rank {rank} waits for another outside of a call")
        call = workload.call[ops].astype(np.int64)
        return RankProgram(
            ops=ops,
            source=np.repeat(np.arange(len(ops)), np.diff(edges.offset)[ops]),
            target=np.searchsorted(ops, target),
            lag=edges.lag[edge],
            call=call,
            groups=np.unique(workload.calls.group[call[call >= 0]]).tolist(),
        )


class CopiedRank(NamedTuple):
    """A rank, its program, and the call that each op of the program joins, -1 for none."""

    rank: int
    program: RankProgram
    joined: Longs


class MadeCalls(NamedTuple):
    """Additional calls of a group, given by its index: one for each of the original calls."""

    like: Longs
    group: int


def with_copies(
    workload: Workload,
    copies: Sequence[CopiedRank],
    further: Sequence[MadeCalls],
    groups: Sequence[Group],
) -> Workload:
    """Append copied ranks to a workload, without measured times.

    ``further`` are calls that only copies join, numbered after those of the workload; ``groups``
    are all that calls name, those of the workload first.
    """
    ops = np.concatenate([np.empty(0, dtype=np.int64), *(copy.program.ops for copy in copies)])
    sizes = [len(copy.program.ops) for copy in copies]
    # The ops of each copy begin behind all before; its edges move by as much.
    begins = (len(workload) + offsets(sizes)[:-1]).tolist()
    moved = [(copy.program, begin) for copy, begin in zip(copies, begins, strict=True)]
    edges, calls = workload.edges, workload.calls
    source = [edges.source, *(program.source + begin for program, begin in moved)]
    target = [edges.target, *(program.target + begin for program, begin in moved)]
    lag = [edges.lag, *(program.lag for program, _ in moved)]
    edge_columns = (np.concatenate(column) for column in (source, target, lag))
    like = np.concatenate([np.arange(len(calls)), *(more.like for more in further)]).astype(
        np.int64
    )
    group = [calls.group, *(np.full(len(more.like), more.group) for more in further)]
    return replace(
        workload,
        **workload.columns_with(ops, rank=np.repeat([copy.rank for copy in copies], sizes)),
        call=np.concatenate([workload.call, *(copy.joined for copy in copies)]).astype(np.int32),
        edges=Edges.of(len(workload) + len(ops), *edge_columns),
        calls=replace(calls.taken(like), group=np.concatenate(group).astype(np.int32)),
        groups=tuple(groups),
    )
