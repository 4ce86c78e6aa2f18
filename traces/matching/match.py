"""One call on many ranks: which rank's op is a member of which call.

By sequence number where every member recorded one, else the n-th call of a rank on a group is the
n-th of the others. What cannot be matched, or disagrees, is an error that names ranks and calls.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.errors import TraceError
from simulator.shares import Shares
from simulator.workload import What
from traces.core.calls import LocalCall
from traces.core.rank_graph import RankGraph
from traces.matching.pair_bytes import pair_bytes

OpCalls = list[tuple[int, LocalCall]]
Communicators = dict[str, OpCalls]
"""A rank's calls on communicators of the same ranks, by the trace's own name, in order of use."""


@dataclass(slots=True)
class MatchedCall:
    """A call and its members: ``ops`` maps a position in the list of ranks to that rank's op.

    ``shares`` are of an all-to-all whose pairs have sizes of their own, ``filled`` the pairs of
    which nobody tells; ``elided``: sizes were written, and cut short.
    """

    kind: str
    ranks: tuple[int, ...]
    label: str
    sequence: int
    size: float
    dtype: str
    ops: dict[int, int] = field(default_factory=dict)
    eager: bool = False
    shares: Shares | None = None
    filled: int = 0
    elided: bool = False


@dataclass(slots=True)
class Matching:
    """Calls, and how many ops of each kind of trouble there were."""

    calls: list[MatchedCall]
    assumed_groups: int = 0
    notes: list[str] = field(default_factory=list)


def match(graphs: Sequence[RankGraph], job_ranks: int) -> Matching:
    """Match the collectives of all ranks.

    Raises
    ------
    TraceError
        If a rank lacks a call that the others of its group have, or ranks disagree on what the
        n-th call is or on its size.
    """
    result = Matching([])
    groups: dict[tuple[tuple[int, ...], str], dict[int, Communicators]] = defaultdict(dict)
    for rank_index, graph in enumerate(graphs):
        in_order = sorted(graph.collectives, key=lambda op: (_queued(graph, op), op))
        for op in in_order:
            call = graph.collectives[op]
            group = group_of(call, graph.rank, job_ranks, result)
            by_name = groups[group].setdefault(rank_index, {})
            by_name.setdefault(call.key, []).append((op, call))
    for (ranks, label), members in _communicators(groups):
        present = [rank_index for rank_index, graph in enumerate(graphs) if graph.rank in ranks]
        _check_members(graphs, members, present, (ranks, label))
        result.calls.extend(_match_group(graphs, members, ranks, label))
    result.notes += _notes(result.calls)
    result.calls.sort(key=lambda call: min(graphs[p].ops[op].start for p, op in call.ops.items()))
    return result


def _notes(calls: Sequence[MatchedCall]) -> list[str]:
    """Say of how many all-to-alls sizes of pairs were taken to be what nobody told."""
    notes = []
    filled = [call for call in calls if call.filled]
    if filled:
        pairs = sum(call.filled for call in filled)
        every = sum(len(call.ranks) ** 2 for call in filled)
        notes.append(
            f"all_to_all: {len(filled):,} calls tell the sizes of {every - pairs:,} of {every:,} "
            "pairs; the others, between ranks that were not recorded, follow these"
        )
    elided = sum(call.elided and call.shares is None for call in calls)
    if elided:
        notes.append(
            f"all_to_all: split sizes of {elided:,} calls are cut short in the trace (PyTorch "
            "writes 30 numbers of a list): taken as equal"
        )
    return notes


def _queued(graph: RankGraph, op: int) -> float:
    """When a call was queued; two workers may begin what they took in either order (s)."""
    _, queued = graph.workers.get(op, (0, graph.ops[op].start))
    return queued


def _communicators(
    groups: dict[tuple[tuple[int, ...], str], dict[int, Communicators]],
) -> Iterator[tuple[tuple[tuple[int, ...], str], dict[int, OpCalls]]]:
    """Tell communicators of the same ranks apart: by name where all ranks use the same names.

    Else in order of first use: the names may be pointers, which differ from rank to rank.
    """
    for group, by_place in groups.items():
        same = len({frozenset(by_name) for by_name in by_place.values()}) == 1
        members: dict[str | int, dict[int, OpCalls]] = defaultdict(dict)
        for rank_index, by_name in by_place.items():
            for number, (name, calls) in enumerate(by_name.items()):
                members[name if same else number][rank_index] = calls
        yield from ((group, own) for own in members.values())


def group_of(
    call: LocalCall, rank: int, job_ranks: int, result: Matching
) -> tuple[tuple[int, ...], str]:
    """Ranks of a call's group; the whole job where the trace does not tell, which is counted."""
    if call.kind == "send_receive" and call.peer is not None and call.peer != rank:
        return _ends(rank, call.peer, call.direction), call.label
    if call.ranks is not None:
        return call.ranks, call.label
    if call.group_size not in (None, job_ranks):
        raise TraceError(
            f"{call.where}: a group of {call.group_size} of the job's {job_ranks} ranks, but the "
            "trace does not list them; record with PyTorch 2.2 or newer, which writes pg_config"
        )
    if call.group_size is None:
        result.assumed_groups += 1
    return tuple(range(job_ranks)), call.label


def _ends(rank: int, peer: int, direction: str) -> tuple[int, ...]:
    """Order the two ends of a message as sender and receiver; ascending where nothing tells."""
    if direction == "":
        return min(rank, peer), max(rank, peer)
    return (rank, peer) if direction == "send" else (peer, rank)


def _check_members(
    graphs: Sequence[RankGraph],
    members: dict[int, OpCalls],
    present: list[int],
    group: tuple[tuple[int, ...], str],
) -> None:
    counts = {graphs[rank_index].rank: len(members.get(rank_index, [])) for rank_index in present}
    if len(set(counts.values())) > 1:
        most, least = max(counts, key=lambda r: counts[r]), min(counts, key=lambda r: counts[r])
        rank_index = next(rank_index for rank_index in present if graphs[rank_index].rank == most)
        _, extra = members[rank_index][counts[least]]
        raise TraceError(
            f"{extra.where}: rank {most} has {counts[most]} calls on group "
            f"{group[1] or list(group[0])}, rank {least} has {counts[least]}; the first that rank "
            f"{least} may lack is {extra.kind}; choose a step that is complete on all ranks"
        )


def _match_group(
    graphs: Sequence[RankGraph],
    members: dict[int, OpCalls],
    ranks: tuple[int, ...],
    label: str,
) -> list[MatchedCall]:
    if all(_numbered(calls) for calls in members.values()) and not _counted_apart(members):
        for calls in members.values():
            calls.sort(key=lambda numbered: numbered[1].sequence or 0)
        _check_numbers(graphs, members, (ranks, label))
    rows = zip(*members.values(), strict=True)
    return [
        _one_call(graphs, dict(zip(members, row, strict=True)), (ranks, label), number)
        for number, row in enumerate(rows)
    ]


def _numbered(calls: OpCalls) -> bool:
    numbers = [call.sequence for _, call in calls]
    return None not in numbers and len(set(numbers)) == len(numbers)


def _counted_apart(members: dict[int, OpCalls]) -> bool:
    """Whether the numbers are of messages, and each end has its own.

    ``ProcessGroupNCCL`` counts a rank's messages to and from all others together: those between
    two ranks are the n-th of either, whatever else each of them sent.
    """
    calls = [call for own in members.values() for _, call in own]
    if any(call.what == What.COLLECTIVE for call in calls):
        return False
    return len({frozenset(call.sequence for _, call in own) for own in members.values()}) > 1


def _check_numbers(
    graphs: Sequence[RankGraph], members: dict[int, OpCalls], group: tuple[tuple[int, ...], str]
) -> None:
    """Ranks that share some sequence numbers must share all; if none, they count differently."""
    numbers = {
        rank_index: {call.sequence for _, call in calls} for rank_index, calls in members.items()
    }
    every = set.union(*numbers.values())
    if set.intersection(*numbers.values()):
        for rank_index, own in numbers.items():
            missing = sorted(number for number in every - own if number is not None)
            if missing:
                file = members[rank_index][0][1].where.partition(": ")[0]
                raise TraceError(
                    f"{file}: rank {graphs[rank_index].rank} lacks call #{missing[0]} on group "
                    f"{group[1] or list(group[0])}, which other ranks have; choose a step that is "
                    "complete on all ranks"
                )


def _one_call(
    graphs: Sequence[RankGraph],
    row: dict[int, tuple[int, LocalCall]],
    group: tuple[tuple[int, ...], str],
    number: int,
) -> MatchedCall:
    calls = {graphs[rank_index].rank: call for rank_index, (_, call) in row.items()}
    first_rank, first = next(iter(calls.items()))
    for rank, call in calls.items():
        uneven = call.kind == "all_to_all" or np.isnan(call.size) or np.isnan(first.size)
        if call.kind != first.kind or (call.size != first.size and not uneven):
            raise TraceError(
                f"{call.where}: call {number} on group {group[1] or list(group[0])} is "
                f"{call.kind} of {call.size:.0f} B on rank {rank}, but {first.kind} of "
                f"{first.size:.0f} B on rank {first_rank} ({first.where})"
            )
    sizes = [call.size for call in calls.values() if not np.isnan(call.size)]
    pairs = pair_bytes(group[0], calls) if first.kind == "all_to_all" else None
    if pairs is not None:
        sizes = [pairs.size]
    return MatchedCall(
        kind=first.kind,
        ranks=group[0],
        label=group[1],
        sequence=first.sequence if first.sequence is not None else number,
        size=max(sizes) if sizes else float("nan"),
        dtype=first.dtype,
        ops={rank_index: op for rank_index, (op, _) in row.items()},
        eager=all(call.eager and call.what != What.COLLECTIVE for call in calls.values()),
        shares=None if pairs is None else pairs.shares,
        filled=0 if pairs is None else pairs.filled,
        elided=any(call.splits.elided for call in calls.values()),
    )
