"""Calls of many ranks matched as columns, where ranks' calls are few different ones.

It says what :func:`traces.matching.match.match` says, of calls without sequence numbers, a hundred
times as fast; or nothing, where ranks disagree or calls are uneven, which that then tells or
settles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.shares import Shares
from simulator.workload import Floats, by_appearance
from traces.core.calls import LocalCall
from traces.matching.match import Matching, group_of

Index = NDArray[np.int64]
Key = tuple[tuple[int, ...], str]
"""Ranks and label of a group."""


@dataclass(frozen=True, slots=True, eq=False)
class RankCalls:
    """The calls of a rank in order of use: the ``n``-th is ``different[which[n]]``.

    It is op ``op[n]`` of the rank, and ``start[n]`` orders it among those of all ranks.
    """

    rank: int
    different: Sequence[LocalCall]
    which: Index
    op: Index
    start: Floats


@dataclass(frozen=True, slots=True, eq=False)
class MatchedColumns:
    """Calls in order of their first start; those of ``group[c]`` are of ``groups[group[c]]``.

    The members of call ``c`` are ops ``op[offset[c]:offset[c + 1]]`` of the ranks that stand at
    ``rank_index`` of the same rows, ascending.
    """

    kind: tuple[str, ...]
    group: Index
    sequence: Index
    size: Floats
    dtype: tuple[str, ...]
    groups: tuple[Key, ...]
    offset: Index
    rank_index: Index
    op: Index
    eager: NDArray[np.bool_]
    assumed_groups: int = 0
    notes: tuple[str, ...] = ()
    shares: tuple[Shares | None, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def call(self) -> Index:
        """Call of every member, shape ``(members,)``."""
        return np.repeat(np.arange(len(self)), np.diff(self.offset))


def as_columns(matching: Matching) -> MatchedColumns:
    """Put matched calls into columns."""
    groups: dict[Key, int] = {}
    group = [groups.setdefault((call.ranks, call.label), len(groups)) for call in matching.calls]
    ends = np.cumsum([0, *(len(call.ops) for call in matching.calls)])
    return MatchedColumns(
        kind=tuple(call.kind for call in matching.calls),
        group=np.array(group, dtype=np.int64),
        sequence=np.array([call.sequence for call in matching.calls], dtype=np.int64),
        size=np.array([call.size for call in matching.calls], dtype=np.float64),
        dtype=tuple(call.dtype for call in matching.calls),
        groups=tuple(groups),
        offset=ends.astype(np.int64),
        rank_index=np.array([at for call in matching.calls for at in call.ops], dtype=np.int64),
        op=np.array([op for call in matching.calls for op in call.ops.values()], dtype=np.int64),
        eager=np.array([call.eager for call in matching.calls], dtype=np.bool_),
        assumed_groups=matching.assumed_groups,
        notes=tuple(matching.notes),
        shares=tuple(call.shares for call in matching.calls),
    )


def match_alike(ranks: Sequence[RankCalls], job_ranks: int) -> MatchedColumns | None:
    """Match the calls of all ranks: the n-th of each on a communicator are one.

    None where that is not all there is to it.

    Raises
    ------
    TraceError
        If a call does not tell its group.
    """
    table = _DifferentCalls.of(ranks, job_ranks)
    if table is None:
        return None
    if not len(table.communicator):
        return as_columns(Matching([]))
    every = _concatenated(ranks)
    of = table.first[every.rank_index] + every.which
    communicator = table.communicator[of]
    slot = communicator * len(ranks) + every.rank_index
    counts = np.bincount(slot, minlength=table.communicators * len(ranks))
    counts = counts.reshape(-1, len(ranks))
    if not _complete(counts, table.present):
        return None
    begin = np.concatenate([[0], np.cumsum(counts.max(axis=1))])
    number = _numbered(slot)
    call = begin[communicator] + number
    order = np.argsort(call, kind="stable")
    offset = np.searchsorted(call[order], np.arange(begin[-1] + 1))
    if not _agree(table, of[order], offset):
        return None
    return _in_order(table, every, of, number, (order, offset))


@dataclass(frozen=True, slots=True, eq=False)
class _EveryCall:
    """The calls of all ranks, one rank after the other."""

    rank_index: Index
    which: Index
    op: Index
    start: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _DifferentCalls:
    """The different calls of all ranks, those of rank ``p`` from ``first[p]`` on.

    ``communicator`` is which of ``communicators`` each is on, ``present`` which ranks should be on
    each, shape ``(communicators, ranks)``.
    """

    first: Index
    calls: tuple[LocalCall, ...]
    group: Index
    groups: tuple[Key, ...]
    communicator: Index
    communicators: int
    present: NDArray[np.bool_]
    assumed_groups: int

    @staticmethod
    def of(ranks: Sequence[RankCalls], job_ranks: int) -> "_DifferentCalls | None":
        """Collect them; None if any has a sequence number, or tells sizes of pairs."""
        calls = tuple(call for rank_calls in ranks for call in rank_calls.different)
        if any(call.sequence is not None or call.splits.told for call in calls):
            return None
        groups: dict[Key, int] = {}
        used: dict[int, dict[int, dict[str, list[int]]]] = {}
        group = np.zeros(len(calls), dtype=np.int64)
        assumed, row = 0, 0
        for rank_index, rank_calls in enumerate(ranks):
            own = Matching([])
            often = np.bincount(rank_calls.which, minlength=len(rank_calls.different)).tolist()
            for at in _by_first_use(rank_calls):
                call, own.assumed_groups = rank_calls.different[at], 0
                key = group_of(call, rank_calls.rank, job_ranks, own)
                number = group[row + at] = groups.setdefault(key, len(groups))
                by_name = used.setdefault(int(number), {}).setdefault(rank_index, {})
                by_name.setdefault(call.key, []).append(row + at)
                assumed += own.assumed_groups * often[at]
            row += len(rank_calls.different)
        communicator, of_group = _communicators(used, len(calls))
        here = [rank_calls.rank for rank_calls in ranks]
        keys = tuple(groups)
        present = np.array([np.isin(here, keys[number][0]) for number in of_group])
        return _DifferentCalls(
            first=np.cumsum([0, *(len(rank_calls.different) for rank_calls in ranks)]),
            calls=calls,
            group=group,
            groups=keys,
            communicator=communicator,
            communicators=len(of_group),
            present=present.reshape(len(of_group), len(ranks)),
            assumed_groups=assumed,
        )


def _by_first_use(rank_calls: RankCalls) -> list[int]:
    used: list[int] = rank_calls.which[by_appearance(rank_calls.which)[1]].tolist()
    return used


def _communicators(
    used: dict[int, dict[int, dict[str, list[int]]]], calls: int
) -> tuple[Index, list[int]]:
    """Tell communicators of the same ranks apart, as :mod:`traces.matching.match` does.

    Returns the communicator of each call, and the group of each communicator.
    """
    communicator = np.zeros(calls, dtype=np.int64)
    of_group: list[int] = []
    for group, by_place in used.items():
        same = len({frozenset(by_name) for by_name in by_place.values()}) == 1
        known: dict[str | int, int] = {}
        for by_name in by_place.values():
            for number, (name, rows) in enumerate(by_name.items()):
                key = name if same else number
                if key not in known:
                    known[key] = len(of_group)
                    of_group.append(group)
                communicator[rows] = known[key]
    return communicator, of_group


def _concatenated(ranks: Sequence[RankCalls]) -> _EveryCall:
    lengths = [len(rank_calls.which) for rank_calls in ranks]
    return _EveryCall(
        rank_index=np.repeat(np.arange(len(ranks)), lengths),
        which=np.concatenate([rank_calls.which for rank_calls in ranks]),
        op=np.concatenate([rank_calls.op for rank_calls in ranks]),
        start=np.concatenate([rank_calls.start for rank_calls in ranks]),
    )


def _complete(counts: NDArray[np.intp], present: NDArray[np.bool_]) -> bool:
    """Whether all ranks that should be on a communicator have as many calls on it."""
    return bool((counts == np.where(present, counts.max(axis=1, keepdims=True), 0)).all())


def _numbered(slot: Index) -> Index:
    """Count the calls of each slot, in their order."""
    order = np.argsort(slot, kind="stable")
    ordered = slot[order]
    begins = np.searchsorted(ordered, ordered)
    number = np.empty(len(slot), dtype=np.int64)
    number[order] = np.arange(len(slot)) - begins
    return number


def _agree(table: _DifferentCalls, of: Index, offset: Index) -> bool:
    """Whether the members of each call say the same of it."""
    kinds = {call.kind: number for number, call in enumerate(table.calls)}
    kind = np.array([kinds[call.kind] for call in table.calls])[of]
    size = np.nan_to_num(np.array([call.size for call in table.calls]), nan=-1.0)[of]
    eager = np.array([call.eager for call in table.calls])[of]
    first = np.repeat(offset[:-1], np.diff(offset))
    alike = (kind == kind[first]) & (size == size[first]) & (eager == eager[first])
    return bool(alike.all())


def _in_order(
    table: _DifferentCalls, every: _EveryCall, of: Index, number: Index, rows: tuple[Index, Index]
) -> MatchedColumns:
    """Put calls in the order of their first start; ``rows`` are their members and where they begin.

    Calls that start first at once stay as they are: by communicator.
    """
    order, offset = rows
    start = np.minimum.reduceat(every.start[order], offset[:-1])
    turn = np.argsort(start, kind="stable")
    lengths = np.diff(offset)[turn]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.arange(len(order)) - np.repeat(ends[:-1], lengths)
    members = order[np.repeat(offset[:-1][turn], lengths) + inside]
    first = members[ends[:-1]]
    calls = [table.calls[row] for row in of[first].tolist()]
    group, groups = _renumbered(table.group[of[first]], table.groups)
    return MatchedColumns(
        kind=tuple(call.kind for call in calls),
        group=group,
        sequence=number[first],
        size=np.array([call.size for call in calls], dtype=np.float64),
        dtype=tuple(call.dtype for call in calls),
        groups=groups,
        offset=ends.astype(np.int64),
        rank_index=every.rank_index[members],
        op=every.op[members],
        eager=np.array([call.eager for call in calls], dtype=np.bool_),
        assumed_groups=table.assumed_groups,
    )


def _renumbered(group: Index, groups: tuple[Key, ...]) -> tuple[Index, tuple[Key, ...]]:
    """Give groups numbers in the order of their first call."""
    number, first = by_appearance(group)
    return number, tuple(groups[used] for used in group[first].tolist())
