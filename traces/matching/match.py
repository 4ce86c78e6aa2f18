"""Matching of calls across ranks: which rank's op is a member of which call.

By sequence number if every member recorded one; otherwise the n-th call of a rank on a group
matches the n-th of the others. Calls that cannot be matched, or disagree, are an error that names
ranks and calls.

Calls are columns: the distinct calls of each rank, and for every call of a rank the index of its
distinct call. A step repeats few calls many times, so nearly all of the work is sorting arrays.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.shares import Shares
from simulator.support.arrays import Floats, Mask, by_appearance
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.core.rank_graph import TAG, LinkedRank, LocalCall
from traces.matching.pair_bytes import PairBytes, pair_bytes

Index = NDArray[np.int64]
Key = tuple[tuple[int, ...], str]
"""Ranks and label of a group."""


class RankCalls(Struct, frozen=True, eq=False):
    """The calls of a rank in order of use: the ``n``-th is ``different[which[n]]``.

    It is op ``op[n]`` of the rank, and ``start[n]`` orders it among those of all ranks.
    """

    rank: int
    different: Sequence[LocalCall]
    which: Index
    op: Index
    start: Floats


def calls_of_graph(graph: LinkedRank) -> RankCalls:
    """Return the calls of a rank in the order in which they were queued.

    Two workers may begin the calls they took from a queue in either order.
    """
    starts = graph.starts

    def queued(op: int) -> tuple[float, int]:
        worker = graph.workers.get(op)
        return float(starts[op]) if worker is None else worker[1], op

    ops = sorted(graph.collectives, key=queued)
    return RankCalls(
        rank=graph.rank,
        different=[graph.collectives[op] for op in ops],
        which=np.arange(len(ops)),
        op=np.array(ops, dtype=np.int64),
        start=starts[np.array(ops, dtype=np.int64)],
    )


class MatchedCall(Struct, frozen=True):
    """A call and its members: ``ops`` maps an index in the list of ranks to that rank's op."""

    kind: str
    ranks: tuple[int, ...]
    label: str
    sequence: int
    size: float
    dtype: str
    ops: Mapping[int, int]
    eager: bool = False
    shares: Shares | None = None


class Matching(Struct, frozen=True, eq=False, dict=True):
    """Calls in order of their first start; those of ``group[c]`` are of ``groups[group[c]]``.

    The members of call ``c`` are ops ``op[offset[c]:offset[c + 1]]`` of the ranks that stand at
    ``rank_index`` of the same rows, ascending. ``shares`` are of all-to-alls whose pairs have sizes
    of their own. ``assumed_groups`` counts ranks' calls of which nothing records the group.
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
    eager: Mask
    shares: tuple[Shares | None, ...]
    assumed_groups: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def call(self) -> Index:
        """Call of every member, shape ``(members,)``."""
        return np.repeat(np.arange(len(self)), np.diff(self.offset))

    @cached_property
    def calls(self) -> tuple[MatchedCall, ...]:
        """All calls as views."""
        ends, rank_index, op = self.offset.tolist(), self.rank_index.tolist(), self.op.tolist()
        rows = zip(
            *(self.kind, self.group.tolist(), self.sequence.tolist(), self.size.tolist()),
            *(self.dtype, self.eager.tolist(), self.shares, pairwise(ends)),
            strict=True,
        )
        return tuple(
            MatchedCall(
                kind=kind,
                ranks=self.groups[group][0],
                label=self.groups[group][1],
                sequence=sequence,
                size=size,
                dtype=dtype,
                ops=dict(zip(rank_index[begin:end], op[begin:end], strict=True)),
                eager=eager,
                shares=shares,
            )
            for kind, group, sequence, size, dtype, eager, shares, (begin, end) in rows
        )


def match(ranks: Sequence[RankCalls], job_ranks: int) -> Matching:
    """Match the calls of all ranks.

    Raises
    ------
    TraceError
        If a rank lacks a call that the others of its group have, or ranks disagree on what the n-th
        call is or on its size.
    """
    table = _DistinctCalls.of(ranks, job_ranks)
    every = _AllCalls.of(ranks, table)
    number = every.numbers()
    counts = np.bincount(every.slot, minlength=len(table.group_of) * len(ranks))
    most = counts.reshape(len(table.group_of), len(ranks)).max(axis=1, initial=0)
    # Calls are numbered through: those of a communicator stand behind those of the ones before it.
    begin = np.concatenate([[0], np.cumsum(most)])
    call_of_member = begin[every.communicator] + number
    order = np.argsort(call_of_member, kind="stable")
    offset = np.searchsorted(call_of_member[order], np.arange(begin[-1] + 1))
    _Agreement(ranks, table, every, number).check(counts.reshape(-1, len(ranks)), order, offset)
    if not len(order):
        empty = np.zeros(0, dtype=np.int64)
        return Matching(
            (), empty, empty, np.zeros(0), (), (), np.zeros(1, dtype=np.int64), empty, empty,
            np.zeros(0, dtype=np.bool_), (), table.assumed_groups,
        )  # fmt: skip
    pairs, notes = _pairs(ranks, table, every, order, offset)
    size = np.array([call.size for call in table.calls], dtype=np.float64)[every.row[order]]
    eager = np.array([call.eager for call in table.calls], dtype=np.bool_)[every.row]
    eager = (eager & every.is_message)[order]
    # fmax passes over the NaN of members that do not record a size.
    largest = np.fmax.reduceat(size, offset[:-1])
    for call, call_pairs in pairs.items():
        largest[call] = call_pairs.size
    # Calls by the earliest start of any member, of those that start at once in the order of
    # communicators; members stay together.
    turn = np.argsort(np.minimum.reduceat(every.start[order], offset[:-1]), kind="stable")
    lengths = np.diff(offset)[turn]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    # The members of call turn[c] stand at offset[turn[c]] + inside: a gather of ragged rows without
    # a loop.
    inside = np.arange(len(order)) - np.repeat(ends[:-1], lengths)
    members = order[np.repeat(offset[:-1][turn], lengths) + inside]
    first = members[ends[:-1]]
    calls = [table.calls[row] for row in every.row[first].tolist()]
    of_group = np.array(table.group_of, dtype=np.int64)[every.communicator[first]]
    group, group_first = by_appearance(of_group)
    return Matching(
        kind=tuple(call.kind for call in calls),
        group=group,
        sequence=np.where(every.has_sequence[first], every.sequence[first], number[first]),
        size=largest[turn],
        dtype=tuple(call.dtype for call in calls),
        groups=tuple(table.groups[row] for row in of_group[group_first].tolist()),
        offset=ends.astype(np.int64),
        rank_index=every.rank_index[members],
        op=every.op[members],
        # A message is eager if both of its ends say so.
        eager=np.logical_and.reduceat(eager, offset[:-1])[turn],
        shares=tuple(pairs[call].shares if call in pairs else None for call in turn.tolist()),
        assumed_groups=table.assumed_groups,
        notes=tuple(notes),
    )


class _DistinctCalls(Struct, frozen=True, eq=False):
    """The distinct calls of all ranks, those of rank ``p`` from ``first[p]`` on.

    ``communicator`` is that of each call, ``group_of[c]`` the group of communicator ``c``.
    """

    first: Index
    calls: tuple[LocalCall, ...]
    groups: tuple[Key, ...]
    communicator: Index
    group_of: list[int]
    assumed_groups: int

    @staticmethod
    def of(ranks: Sequence[RankCalls], job_ranks: int) -> "_DistinctCalls":
        """Collect them, and tell the communicators that they are on."""
        groups: dict[Key, int] = {}
        rows_by_name: dict[int, dict[int, dict[str, list[int]]]] = {}
        assumed, row = 0, 0
        for rank_index, rank_calls in enumerate(ranks):
            uses = np.bincount(rank_calls.which, minlength=len(rank_calls.different)).tolist()
            by_first_use = rank_calls.which[by_appearance(rank_calls.which)[1]]
            for position in by_first_use.tolist():
                call = rank_calls.different[position]
                key, is_assumed = _group_of(call, rank_calls.rank, job_ranks)
                number = groups.setdefault(key, len(groups))
                by_name = rows_by_name.setdefault(number, {}).setdefault(rank_index, {})
                by_name.setdefault(call.key, []).append(row + position)
                assumed += is_assumed * uses[position]
            row += len(rank_calls.different)
        communicator, group_of = _communicators(rows_by_name, row)
        return _DistinctCalls(
            first=np.cumsum([0, *(len(rank_calls.different) for rank_calls in ranks)]),
            calls=tuple(call for rank_calls in ranks for call in rank_calls.different),
            groups=tuple(groups),
            communicator=communicator,
            group_of=group_of,
            assumed_groups=assumed,
        )

    def key(self, communicator: int) -> Key:
        """Return ranks and label of a communicator."""
        return self.groups[self.group_of[communicator]]


def _communicators(
    rows_by_name: Mapping[int, Mapping[int, Mapping[str, list[int]]]], calls: int
) -> tuple[Index, list[int]]:
    """Distinguish communicators of the same ranks: by name if all ranks use the same names.

    Otherwise by order of first use: the names may be pointers, which differ between ranks; but the
    ends of a message name one tag. Returns the communicator of each call, and the group of each
    communicator.
    """
    communicator = np.zeros(calls, dtype=np.int64)
    group_of: list[int] = []
    for group, by_rank in rows_by_name.items():
        names = {frozenset(by_name) for by_name in by_rank.values()}
        same_names = len(names) == 1 or all(
            name.startswith(TAG) for name in chain.from_iterable(names)
        )
        numbers: dict[str | int, int] = {}
        for by_name in by_rank.values():
            for turn, (name, rows) in enumerate(by_name.items()):
                key = name if same_names else turn
                if key not in numbers:
                    numbers[key] = len(group_of)
                    group_of.append(group)
                communicator[rows] = numbers[key]
    return communicator, group_of


def _group_of(call: LocalCall, rank: int, job_ranks: int) -> tuple[Key, bool]:
    """Return the group of a call, and whether it is assumed to be the whole job."""
    if call.kind == "send_receive" and call.peer is not None and call.peer != rank:
        # Sender and receiver; ascending if the trace has no role.
        ends = (rank, call.peer) if call.direction == "send" else (call.peer, rank)
        return (ends if call.direction else (min(ends), max(ends)), call.label), False
    if call.ranks is not None:
        return (call.ranks, call.label), False
    if call.group_size not in (None, job_ranks):
        raise TraceError(
            f"{call.where}: a group of {call.group_size} of the job's {job_ranks} ranks, but the "
            "trace does not list them; record with PyTorch 2.2 or newer, which writes pg_config"
        )
    return (tuple(range(job_ranks)), call.label), call.group_size is None


class _AllCalls(Struct, frozen=True, eq=False):
    """The calls of all ranks, one rank after the other.

    ``row`` is the index of each among the distinct calls. ``slot`` numbers pairs of a communicator
    and a rank. ``sequence`` is the trace's own number, valid where ``has_sequence``.
    """

    ranks: int
    rank_index: Index
    row: Index
    op: Index
    start: Floats
    communicator: Index
    slot: Index
    sequence: Index
    has_sequence: Mask
    is_message: Mask

    @staticmethod
    def of(ranks: Sequence[RankCalls], table: _DistinctCalls) -> "_AllCalls":
        """Concatenate the calls of all ranks."""
        lengths = [len(rank_calls.which) for rank_calls in ranks]
        rank_index = np.repeat(np.arange(len(ranks)), lengths)
        # `which` counts the different calls of one rank, `row` those of all ranks.
        row = table.first[rank_index] + np.concatenate([calls.which for calls in ranks])
        communicator = table.communicator[row]
        numbers = [call.sequence for call in table.calls]
        columns = (
            np.array([number or 0 for number in numbers], dtype=np.int64),
            np.array([number is not None for number in numbers], dtype=np.bool_),
            np.array([call.what != What.COLLECTIVE for call in table.calls], dtype=np.bool_),
        )
        return _AllCalls(
            len(ranks),
            rank_index,
            row,
            np.concatenate([calls.op for calls in ranks]),
            np.concatenate([calls.start for calls in ranks]),
            communicator,
            # A slot is a communicator on a rank: one number per pair.
            communicator * len(ranks) + rank_index,
            *(column[row] for column in columns),
        )

    def numbers(self) -> Index:
        """Return the index of each call among those of its rank on its communicator."""
        by_use = _count_through(self.slot, np.argsort(self.slot, kind="stable"))
        if not self.has_sequence.any():
            return by_use
        by_sequence = self.by_sequence()
        return np.where(by_sequence[self.communicator], self._sorted_by_sequence(), by_use)

    def _sorted_by_sequence(self) -> Index:
        return _count_through(self.slot, np.lexsort((self.sequence, self.slot)))

    def by_sequence(self) -> Mask:
        """Mark the communicators whose calls are matched by the trace's own numbers.

        There every call of every rank has a number, and no rank has one twice. Messages are counted
        by either end together with those to other ranks (``ProcessGroupNCCL``): if the ends'
        numbers differ, a message is the n-th between the two, whatever else each of them sent.
        """
        communicators = int(self.communicator.max(initial=-1)) + 1
        lacking = np.bincount(self.communicator[~self.has_sequence], minlength=communicators) > 0
        # lexsort sorts by its last key first: by slot, within it by sequence number, so that a
        # number that occurs twice on a slot stands beside itself.
        order = np.lexsort((self.sequence, self.slot))
        slot, sequence = self.slot[order], self.sequence[order]
        twice = order[1:][(slot[1:] == slot[:-1]) & (sequence[1:] == sequence[:-1])]
        lacking[self.communicator[twice]] = True
        collective = np.bincount(self.communicator[~self.is_message], minlength=communicators) > 0
        return ~lacking & (collective | ~self.different_sequences(communicators))

    def different_sequences(self, communicators: int) -> Mask:
        """Mark the communicators on which ranks have different sets of numbers."""
        # The n-th call of each rank on a communicator beside one another: neighbours of the same
        # communicator and position are one call, whose numbers must be equal.
        position = self._sorted_by_sequence()
        order = np.lexsort((position, self.communicator))
        sequence = self.sequence[order]
        differs = sequence[1:] != sequence[:-1]
        for column in (self.communicator[order], position[order]):
            differs &= column[1:] == column[:-1]
        marked = np.zeros(communicators, dtype=np.bool_)
        marked[self.communicator[order][1:][differs]] = True
        return marked


def _count_through(slot: Index, order: Index) -> Index:
    """Return the index of each call in its slot, in an order that keeps slots together."""
    ordered = slot[order]
    number = np.empty(len(slot), dtype=np.int64)
    # Place in the order less the place where the slot begins (`ordered` is sorted).
    number[order] = np.arange(len(slot)) - np.searchsorted(ordered, ordered)
    return number


class _Agreement(Struct, frozen=True, eq=False):
    """Checks that all members of a communicator agree; any disagreement is an error."""

    ranks: Sequence[RankCalls]
    table: _DistinctCalls
    every: _AllCalls
    number: Index

    def check(self, counts: NDArray[np.intp], order: Index, offset: Index) -> None:
        """Raise the error of the first communicator that has one."""
        column = {rank_calls.rank: number for number, rank_calls in enumerate(self.ranks)}
        present = counts > 0
        for number in range(len(counts)):
            members = self.table.key(number)[0]
            present[number, [column[rank] for rank in members if rank in column]] = True
        # A rank that was recorded and belongs to the group must have as many calls as the rank with
        # most; one that was not recorded has none.
        wanted = np.where(present, counts.max(axis=1, keepdims=True, initial=0), 0)
        wrong = (counts != wanted).any(axis=1)
        # Members whose call differs from that of the first; those of an all-to-all may in size.
        calls, row = self.table.calls, self.every.row[order]
        kinds = {call.kind: number for number, call in enumerate(calls)}
        kind = np.array([kinds[call.kind] for call in calls], dtype=np.int64)[row]
        size = np.array([call.size for call in calls], dtype=np.float64)[row]
        first = np.repeat(offset[:-1], np.diff(offset))
        uneven = np.isnan(size) | np.isnan(size[first]) | (kind == kinds.get("all_to_all", -1))
        differs = (kind != kind[first]) | ((size != size[first]) & ~uneven)
        wrong[self.every.communicator[order[differs]]] = True
        if self.every.has_sequence.any():
            by_sequence = self.every.by_sequence()
            wrong |= by_sequence & self.every.different_sequences(len(by_sequence))
        for communicator in np.flatnonzero(wrong).tolist():
            self._check_counts(communicator, counts[communicator], present[communicator])
            self._check_sequences(communicator)
            self._check_calls(communicator)

    def _rows(self, communicator: int) -> Iterator[tuple[int, list[LocalCall]]]:
        """Yield the members of a communicator and their calls, in order of use."""
        for rank_index in range(len(self.ranks)):
            slot = communicator * len(self.ranks) + rank_index
            rows = self.every.row[self.every.slot == slot].tolist()
            if rows:
                yield rank_index, [self.table.calls[row] for row in rows]

    def _check_counts(self, communicator: int, counts: NDArray[np.intp], present: Mask) -> None:
        of_rank = {
            self.ranks[rank_index].rank: int(counts[rank_index])
            for rank_index in np.flatnonzero(present).tolist()
        }
        if len(set(of_rank.values())) < 2:
            return
        most, least = max(of_rank, key=lambda r: of_rank[r]), min(of_rank, key=lambda r: of_rank[r])
        calls = next(
            calls
            for rank_index, calls in self._rows(communicator)
            if self.ranks[rank_index].rank == most
        )
        extra = calls[of_rank[least]]
        raise TraceError(
            f"{extra.where}: rank {most} has {of_rank[most]} calls on group "
            f"{self._group(communicator)}, rank {least} has {of_rank[least]}; the first that rank "
            f"{least} may lack is {extra.kind}; choose a step that is complete on all ranks, or "
            "files of one run"
        )

    def _check_sequences(self, communicator: int) -> None:
        """Check that ranks which share a sequence number share all; else they count differently."""
        if not (self.every.has_sequence.any() and self.every.by_sequence()[communicator]):
            return
        members = dict(self._rows(communicator))
        numbers = {rank: {call.sequence for call in calls} for rank, calls in members.items()}
        if not set.intersection(*numbers.values()):
            return
        all_numbers = set.union(*numbers.values())
        for rank_index, recorded in numbers.items():
            missing = sorted(number for number in all_numbers - recorded if number is not None)
            if missing:
                file = members[rank_index][0].where.partition(": ")[0]
                raise TraceError(
                    f"{file}: rank {self.ranks[rank_index].rank} lacks call #{missing[0]} on group "
                    f"{self._group(communicator)}, which other ranks have; choose a step that is "
                    "complete on all ranks"
                )

    def _check_calls(self, communicator: int) -> None:
        on_it = np.flatnonzero(self.every.communicator == communicator)
        firsts: dict[int, int] = {}
        for member in on_it[np.lexsort((on_it, self.number[on_it]))].tolist():
            number = int(self.number[member])
            first_member = firsts.setdefault(number, member)
            call = self.table.calls[self.every.row[member]]
            first = self.table.calls[self.every.row[first_member]]
            uneven = call.kind == "all_to_all" or np.isnan(call.size) or np.isnan(first.size)
            if call.kind == first.kind and (call.size == first.size or uneven):
                continue
            rank, first_rank = (
                self.ranks[self.every.rank_index[position]].rank
                for position in (member, first_member)
            )
            raise TraceError(
                f"{call.where}: call {number} on group {self._group(communicator)} is "
                f"{_kind_and_size(call)} on rank {rank}, but {_kind_and_size(first)} on rank"
                f" {first_rank} ({first.where})"
            )

    def _group(self, communicator: int) -> str | list[int]:
        ranks, label = self.table.key(communicator)
        return label or list(ranks)


def _kind_and_size(call: LocalCall) -> str:
    return f"{call.kind} of " + ("unknown size" if np.isnan(call.size) else f"{call.size:.0f} B")


def _pairs(
    ranks: Sequence[RankCalls], table: _DistinctCalls, every: _AllCalls, order: Index, offset: Index
) -> tuple[dict[int, PairBytes], list[str]]:
    """Compute the bytes of each pair of the all-to-alls whose members record any, and note on them.

    Noted is how many pairs were inferred, and for how many calls splits were truncated.
    """
    has_splits = np.array(
        [c.splits.recorded and c.kind == "all_to_all" for c in table.calls], dtype=np.bool_
    )
    elided = np.array([call.splits.elided for call in table.calls], dtype=np.bool_)
    of_call: dict[int, PairBytes] = {}
    if not (has_splits.any() or elided.any()):
        return of_call, []
    row, recorded = every.row[order], 0
    for call in np.flatnonzero(np.logical_or.reduceat(has_splits[row], offset[:-1])).tolist():
        members = order[offset[call] : offset[call + 1]].tolist()
        group = table.key(int(every.communicator[members[0]]))[0]
        parts = {
            ranks[every.rank_index[member]].rank: table.calls[every.row[member]]
            for member in members
        }
        pairs = pair_bytes(group, parts)
        if pairs is not None:
            of_call[call] = pairs
            recorded += len(group) ** 2 - pairs.filled if pairs.filled else 0
    notes = []
    filled = [pairs.filled for pairs in of_call.values() if pairs.filled]
    if filled:
        notes.append(
            f"all_to_all: {len(filled):,} calls record the sizes of {recorded:,} of "
            f"{recorded + sum(filled):,} pairs; those between ranks that were not recorded are "
            "inferred from these"
        )
    cut = np.flatnonzero(np.logical_or.reduceat(elided[row], offset[:-1])).tolist()
    taken_equal = set(cut) - {call for call, pairs in of_call.items() if pairs.shares is not None}
    if taken_equal:
        notes.append(
            f"all_to_all: split sizes of {len(taken_equal):,} calls are cut short in the trace "
            "(PyTorch writes 30 numbers of a list): taken as equal"
        )
    return of_call, notes
