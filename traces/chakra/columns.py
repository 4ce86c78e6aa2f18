"""The nodes of ranks as columns, and the workload that they make where no starts were measured."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.workload import (
    CallRow,
    Calls,
    Edges,
    Floats,
    Group,
    Workload,
    by_appearance,
    unawaited,
)
from traces.chakra.calls import JobGroups, call_of
from traces.chakra.nodes import (
    CALLS,
    COMMUNICATION,
    NodeForm,
    RankNodes,
    count_other,
    form_of,
    lanes_of,
)
from traces.chakra.plain import Plain, PlainNodes
from traces.chakra.stream import ChakraTrace
from traces.core.columns import ValueIndex
from traces.matching.lane_order import LOOSE, Given, awaited, before_on_lane, with_lanes
from traces.matching.match_columns import MatchedColumns, RankCalls

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RankColumns:
    """A rank's nodes: ``form`` is which of ``nodes.forms`` each is of.

    Node ``target[e]`` waits for node ``source[e]``; both are places in the file.
    """

    nodes: RankNodes
    form: Index
    source: Index
    target: Index

    def __len__(self) -> int:
        return len(self.form)


def of_nodes(nodes: RankNodes) -> RankColumns:
    """Put decoded nodes into columns."""
    counts = [len(own) for own in nodes.waits]
    return RankColumns(
        nodes,
        np.array(nodes.form, dtype=np.int64),
        np.array([source for own in nodes.waits for source in own], dtype=np.int64),
        np.repeat(np.arange(len(counts)), counts),
    )


def of_plain(trace: ChakraTrace, rank: int) -> RankColumns | None:
    """Make columns of a plain file.

    None if ids stand twice or are missing, or a node stands before one that it waits for: decoded
    nodes tell what that means.
    """
    if trace.plain is None:
        return None
    source = _places(trace.plain.columns.id, trace.plain.waits)
    if source is None or (source >= trace.plain.waiting).any():
        return None
    form, forms = _forms(trace.plain)
    nodes = RankNodes(
        rank=rank,
        file=trace.file,
        nodes=PlainNodes(trace.plain),
        forms=forms,
        form=form.tolist(),
        waits=[],
        order=[],
        start=[],
        epoch=0,
        unused=count_other(forms, form.tolist()),
    )
    return RankColumns(nodes, form, source, trace.plain.waiting)


def _places(ids: Index, asked: Index) -> Index | None:
    """Where the nodes with some ids stand; None if one is not there, or any id stands twice."""
    position = asked - ids[0]
    if (ids == ids[0] + np.arange(len(ids))).all():
        return position if ((position >= 0) & (position < len(ids))).all() else None
    order = np.argsort(ids)
    ordered = ids[order]
    if (ordered[1:] == ordered[:-1]).any():
        return None
    position = order[np.minimum(np.searchsorted(ordered, asked), len(ids) - 1)]
    return position if (ids[position] == asked).all() else None


def _forms(plain: Plain) -> tuple[Index, list[NodeForm]]:
    """Tell forms apart by kind and duration, in the order in which they appear."""
    micros, duration = np.unique(plain.columns.micros.view(np.uint64), return_inverse=True)
    both = plain.columns.form.astype(np.int64) * len(micros) + duration
    number, first = by_appearance(both)
    forms = []
    for pair in both[first].tolist():
        kind, which_duration = divmod(pair, len(micros))
        node = plain.kinds[kind]
        forms.append(form_of(node.type, node.name, int(micros[which_duration]), plain.values[kind]))
    return number, forms


def rank_calls(ranked: RankColumns, job: JobGroups, notes: Counter[str]) -> RankCalls:
    """Make a call of each communication node; those that are alike are one. Count what is missing.

    Raises
    ------
    TraceError
        As :func:`traces.chakra.calls.local_calls` does.
    """
    are_calls = np.array([form.type in CALLS for form in ranked.nodes.forms])
    places = np.flatnonzero(are_calls[ranked.form])
    which, first = _alike(ranked, places)
    often = np.bincount(which, minlength=len(first)).tolist()
    different = []
    for position, times in zip(first, often, strict=True):
        call, missing = call_of(ranked.nodes, position, job)
        different.append(call)
        notes.update({what: times * count for what, count in missing.items()})
    return RankCalls(ranked.nodes.rank, different, which, places, places.astype(np.float64))


def _alike(ranked: RankColumns, places: Index) -> tuple[Index, list[int]]:
    """Tell which nodes are alike, and where the first of each stands, in order of appearance."""
    form = ranked.form[places]
    nodes = ranked.nodes.nodes
    if isinstance(nodes, PlainNodes) and not nodes.have_inputs(places):
        which, first = by_appearance(form)
        return which, places[first].tolist()
    inputs = _inputs(ranked, places)
    index: dict[tuple[int, bytes], int] = {}
    keys = zip(form.tolist(), inputs, strict=True)
    which, first = by_appearance(
        np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)
    )
    return which, places[first].tolist()


def _inputs(ranked: RankColumns, places: Index) -> list[bytes]:
    nodes = ranked.nodes.nodes
    if not isinstance(nodes, PlainNodes):
        return [nodes[position].inputs.types.encode() for position in places.tolist()]
    return nodes.inputs(places)


def workload_of_columns(
    ranked: Sequence[RankColumns], calls: MatchedColumns, job_ranks: int, transfers: Floats
) -> Workload:
    """Make a workload in which lanes run one op at a time: not calls without a stream."""
    counts = [len(rank_columns) for rank_columns in ranked]
    first = np.cumsum([0, *counts])
    forms, of = forms_of(ranked)
    lanes, names = ValueIndex[str](), ValueIndex[str]()
    lane = lanes.column(lane for rank_columns in ranked for lane in lanes_of(rank_columns.nodes))
    name = names.column(form.name for form in forms)
    call = np.full(len(of), -1, dtype=np.int32)
    call[first[calls.rank_index] + calls.op] = calls.call
    groups, rows = _calls(calls, transfers)
    duration = np.where(call < 0, np.array([form.duration for form in forms])[of], 0.0)
    rank = np.repeat(
        np.array([rank_columns.nodes.rank for rank_columns in ranked], dtype=np.int64), counts
    )
    what = np.array([form.what for form in forms], dtype=np.uint8)[of]
    not_awaited = unawaited(what, call, rows.eager)
    edges, nothing = _edges(ranked, first), np.full(len(of), np.nan)
    communicates = lanes.index.get(COMMUNICATION, -1)
    given = Given(
        lane=rank * len(lanes.index) + lane[of],
        takes=lane[of] != communicates,
        call=call,
        duration=duration,
        transfer=np.nan_to_num(rows.transfer, nan=0.0),
        awaited=awaited(call, not_awaited, len(rows)),
        unawaited=not_awaited,
        offset=edges.offset,
        target=edges.target,
        lag=edges.lag,
    )
    before, loose = before_on_lane(given, np.zeros(len(of)))
    return Workload(
        what=what,
        rank=rank.astype(np.int32),
        lane=lane[of],
        name=name[of],
        call=call,
        duration=duration,
        ready=np.zeros(len(of)),
        measured_start=nothing,
        measured_end=nothing.copy(),
        edges=with_lanes(edges, before),
        calls=rows,
        groups=groups,
        names=tuple(names.index),
        lanes=tuple(lanes.index),
        job_ranks=job_ranks,
        notes=(LOOSE,) if loose else (),
    )


def forms_of(ranked: Sequence[RankColumns]) -> tuple[list[NodeForm], NDArray[np.int64]]:
    """Forms of all ranks, and which every node is of, one rank after the other."""
    base = np.cumsum([0, *(len(rank_columns.nodes.forms) for rank_columns in ranked)])
    of = [rank_columns.form + begin for rank_columns, begin in zip(ranked, base, strict=False)]
    return [form for rank_columns in ranked for form in rank_columns.nodes.forms], np.concatenate(
        of
    )


def _calls(calls: MatchedColumns, transfers: Floats) -> tuple[tuple[Group, ...], Calls]:
    """Return the groups of calls, and the calls."""
    groups: dict[Group, int] = {}
    number = [groups.setdefault(Group(*key), len(groups)) for key in calls.groups]
    rows = zip(
        calls.kind,
        [number[group] for group in calls.group.tolist()],
        calls.sequence.tolist(),
        calls.size.tolist(),
        calls.dtype,
        transfers.tolist(),
        calls.eager.tolist(),
        calls.shares or [None] * len(calls),
        strict=True,
    )
    return tuple(groups), Calls.of([CallRow(*row) for row in rows])


def _edges(ranked: Sequence[RankColumns], first: NDArray[np.int64]) -> Edges:
    sources = [
        rank_columns.source + begin
        for rank_columns, begin in zip(ranked, first.tolist(), strict=False)
    ]
    targets = [
        rank_columns.target + begin
        for rank_columns, begin in zip(ranked, first.tolist(), strict=False)
    ]
    source = np.concatenate(sources)
    return Edges.of(int(first[-1]), source, np.concatenate(targets), np.zeros(len(source)))
