"""Ranks that were not recorded, as copies of those that were (SPMD).

Traces of one rank of many are common. Without the others' traffic a network looks emptier than it
is: here each missing rank runs the program of the recorded rank with its role, and takes part in
the calls of its own groups. It has no measured times: by that a copy is told from the original.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TraceError
from simulator.workload import KINDS, Calls, Edges, Group, Workload
from traces.missing_ranks.group_patterns import Roles

Ints = NDArray[np.int64]

_MESSAGE = KINDS.index("send_receive")
_UNEVEN = KINDS.index("all_to_all")
"""Kind of the calls whose size may differ from rank to rank."""


def replicate(workload: Workload, listed: Sequence[Group] = ()) -> Workload:
    """Give every rank of the job a program: to those that were not recorded a copy of one that was.

    ``listed`` are groups of the job that are known besides those of the calls; ``notes`` of the
    result say how many ranks are copies of which.

    Raises
    ------
    TraceError
        If the role of a missing rank or a group of it cannot be told, or if its copy would make
        other calls on a group than those that are there.
    """
    present = workload.ranks
    missing = sorted(set(range(workload.job_ranks)) - set(present))
    if not missing:
        return workload
    if not present:
        raise TraceError("a workload without a rank: there is nothing to replicate")
    copies = models(workload, listed)
    table = _CallTable.of(workload)
    roles = Roles(workload.job_ranks, _known(workload, listed))
    parts = {model: _RankProgram.of(workload, model) for model in sorted(set(copies.values()))}
    calls = []
    for rank in missing:
        part = parts[copies[rank]]
        calls.append(table.joined_by(part, rank, roles))
    return _assembled(workload, [(parts[copies[rank]], rank) for rank in missing], calls, table)


def models(workload: Workload, listed: Sequence[Group] = ()) -> dict[int, int]:
    """Choose for each rank that was not recorded the one whose program it runs."""
    known = _known(workload, listed)
    roles = Roles(workload.job_ranks, known)
    messages = np.unique(_groups_of_messages(workload)).tolist()
    pipelines = [roles.pipeline(ends) for ends in (workload.groups[number] for number in messages)]
    groups = {
        rank: [
            group
            for group in known
            if rank in group.ranks and len(group.ranks) < workload.job_ranks
        ]
        for rank in workload.ranks
    }
    missing = sorted(set(range(workload.job_ranks)) - set(workload.ranks))
    return {rank: roles.model(rank, groups, pipelines) for rank in missing}


def _known(workload: Workload, listed: Sequence[Group]) -> tuple[Group, ...]:
    """Collect the groups of several ranks that the traces tell: those listed, those of calls."""
    messages = set(np.unique(_groups_of_messages(workload)).tolist())
    called = (group for index, group in enumerate(workload.groups) if index not in messages)
    every = dict.fromkeys((*listed, *called))
    return tuple(group for group in every if len(group.ranks) > 1)


def _groups_of_messages(workload: Workload) -> Ints:
    calls = workload.calls
    return np.asarray(calls.group[calls.kind == _MESSAGE], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _RankProgram:
    """One rank's rows of a workload: its ops, its edges by their numbers among them, its calls."""

    rank: int
    ops: Ints
    source: Ints
    target: Ints
    lag: NDArray[np.float64]
    calls: Ints

    @staticmethod
    def of(workload: Workload, rank: int) -> "_RankProgram":
        """Cut it out."""
        ops = np.flatnonzero(workload.rank == rank)
        number = np.full(len(workload), -1, dtype=np.int64)
        number[ops] = np.arange(len(ops))
        edges = workload.edges
        source, target = number[edges.source], number[edges.target]
        if np.any((source >= 0) != (target >= 0)):
            raise TraceError(f"rank {rank} waits for another outside of a call: not replicated")
        mine = source >= 0
        calls = workload.call[ops].astype(np.int64)
        return _RankProgram(rank, ops, source[mine], target[mine], edges.lag[mine], calls)


@dataclass(slots=True, eq=False)
class _CallTable:
    """Calls by their groups, in the order in which each group makes them; grows with new groups.

    ``made_as`` has for each group the recorded calls that its own are, or are copies of.
    """

    workload: Workload
    groups: dict[Group, int]
    of_group: dict[int, Ints]
    made_as: dict[int, Ints]
    new: list[Ints] = field(default_factory=list)
    new_group: list[Ints] = field(default_factory=list)
    length: int = 0

    @staticmethod
    def of(workload: Workload) -> "_CallTable":
        """Take the calls that are there."""
        groups = {group: index for index, group in enumerate(workload.groups)}
        order = np.argsort(workload.calls.group, kind="stable")
        own = workload.calls.group[order]
        parts = np.split(order, np.flatnonzero(np.diff(own)) + 1) if len(order) else []
        of_group = {int(workload.calls.group[part[0]]): part for part in parts}
        return _CallTable(workload, groups, of_group, dict(of_group), length=len(workload.calls))

    def joined_by(self, part: _RankProgram, rank: int, roles: Roles) -> Ints:
        """Return the calls that a copy of a part joins, op by op."""
        joins = np.full(len(self.workload.calls), -1, dtype=np.int64)
        group_of = self.workload.calls.group
        used = part.calls[part.calls >= 0]
        for index in np.unique(group_of[used]).tolist():
            group = self.workload.groups[index]
            theirs = self._counterpart(index, group, part.rank, rank, roles)
            joins[self.of_group[index]] = theirs
        return np.where(part.calls >= 0, joins[part.calls], -1)

    def _counterpart(self, index: int, group: Group, model: int, rank: int, roles: Roles) -> Ints:
        own = self.of_group[index]
        message = self.workload.calls.kind[own] == _MESSAGE
        if message.any():
            other = roles.counterpart_of_message(group, model, rank)
        else:
            other = roles.counterpart(group, model, rank)
        number = self.groups.setdefault(other, len(self.groups))
        if number not in self.of_group:
            self.of_group[number] = np.arange(self.length, self.length + len(own))
            self.made_as[number] = own
            self.length += len(own)
            self.new.append(own)
            self.new_group.append(np.full(len(own), number))
        self._check(own, self.made_as[number], (model, rank), other)
        return self.of_group[number]

    def _check(self, own: Ints, theirs: Ints, ranks: tuple[int, int], group: Group) -> None:
        model, rank = ranks
        as_copy = f"rank {rank}, as a copy of rank {model}, would make"
        where = f"on group {group}"
        if len(own) != len(theirs):
            raise TraceError(
                f"{as_copy} {len(own)} calls {where}, which makes {len(theirs)}: their programs "
                "differ; record that rank, or do not replicate"
            )
        calls = self.workload.calls
        same = (calls.size[own] == calls.size[theirs]) | (calls.kind[own] == _UNEVEN)
        same |= np.isnan(calls.size[own]) | np.isnan(calls.size[theirs])
        wrong = np.flatnonzero((calls.kind[own] != calls.kind[theirs]) | ~same)
        if len(wrong):
            views = (self.workload.call_view(int(row[wrong[0]])) for row in (own, theirs))
            raise TraceError(
                f"{as_copy} {next(views)} where {next(views)} is: their programs differ"
            )

    def calls(self) -> tuple[Calls, tuple[Group, ...]]:
        """Return the table with the new calls, which are as those they are copies of."""
        calls = self.workload.calls
        rows = np.concatenate([np.arange(len(calls)), *self.new]).astype(np.int64)
        group = np.concatenate([calls.group, *self.new_group]).astype(np.int32)
        return replace(calls.taken(rows), group=group), tuple(self.groups)


def _assembled(
    workload: Workload,
    copies: Sequence[tuple[_RankProgram, int]],
    joined: Sequence[Ints],
    table: _CallTable,
) -> Workload:
    """Put the copies behind the ranks that were recorded."""
    rows = np.concatenate([np.arange(len(workload)), *(part.ops for part, _ in copies)])
    sizes = [len(part.ops) for part, _ in copies]
    first = len(workload) + np.cumsum([0, *sizes])[:-1]
    edges = workload.edges
    sources = [
        edges.source,
        *(part.source + at for (part, _), at in zip(copies, first, strict=True)),
    ]
    targets = [
        edges.target,
        *(part.target + at for (part, _), at in zip(copies, first, strict=True)),
    ]
    lags = [edges.lag, *(part.lag for part, _ in copies)]
    ranks = np.repeat([rank for _, rank in copies], sizes)
    unmeasured = np.full(len(ranks), np.nan)
    calls, groups = table.calls()
    columns = workload.columns_of(rows) | {
        "rank": np.concatenate([workload.rank, ranks]).astype(np.int32),
        "measured_start": np.concatenate([workload.measured_start, unmeasured]),
        "measured_end": np.concatenate([workload.measured_end, unmeasured]),
    }
    return replace(
        workload,
        **columns,
        call=np.concatenate([workload.call, *joined]).astype(np.int32),
        edges=Edges.of(len(rows), *(np.concatenate(column) for column in (sources, targets, lags))),
        calls=calls,
        groups=groups,
        notes=(*workload.notes, *_notes({rank: part.rank for part, rank in copies})),
    )


def _notes(copies: Mapping[int, int]) -> list[str]:
    """Say how many ranks are copies of which; models of as many are named together."""
    alike: dict[int, list[int]] = defaultdict(list)
    for model, count in sorted(Counter(copies.values()).items()):
        alike[count].append(model)
    notes = []
    for count, ranks in sorted(alike.items()):
        shown = ", ".join(str(rank) for rank in ranks[:8])
        shown += f", ... ({len(ranks)} in all)" if len(ranks) > 8 else ""
        number = count * len(ranks)
        were = (
            "1 rank that was not recorded is a copy"
            if number == 1
            else (f"{number} ranks that were not recorded are copies")
        )
        each = f"of rank {shown}" if len(ranks) == 1 else f"of ranks {shown}, {count} of each"
        notes.append(f"{were} {each}")
    return notes
