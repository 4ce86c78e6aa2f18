"""Nodes of all ranks that were not measured, as the columns of a workload."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simulator.workload import CallRow, Calls, Edges, Group, Ints, Workload
from traces.chakra_nodes import COMMUNICATION, RankNodes, lanes_of
from traces.lane_order import LOOSE, before_on_lane, with_lanes
from traces.lane_order_passes import Given
from traces.match import MatchedCall


def columns(
    ranked: Sequence[RankNodes],
    calls: Sequence[MatchedCall],
    job_ranks: int,
    transfers: Sequence[float],
) -> Workload:
    """Make a workload in which lanes run one op at a time: not calls without a stream."""
    counts = [len(one.nodes) for one in ranked]
    first = np.cumsum([0, *counts])
    forms = [form for one in ranked for form in one.forms]
    base = np.cumsum([0, *(len(one.forms) for one in ranked)])
    of = np.concatenate(
        [np.array(one.form, dtype=np.int64) + at for one, at in zip(ranked, base, strict=False)]
    )
    lane, lanes = _table(lane for one in ranked for lane in lanes_of(one))
    name, names = _table(form.name for form in forms)
    groups: dict[Group, int] = {}
    call, rows = _calls(calls, first, groups, transfers)
    duration = np.where(call < 0, np.array([form.duration for form in forms])[of], 0.0)
    rank = np.repeat([one.rank for one in ranked], counts)
    edges, nothing = _edges(ranked, first), np.full(len(of), np.nan)
    communicates = lanes.index(COMMUNICATION) if COMMUNICATION in lanes else -1
    given = Given(
        lane=rank * len(lanes) + lane[of],
        takes=lane[of] != communicates,
        call=call,
        duration=duration,
        transfer=np.nan_to_num(rows.transfer, nan=0.0),
        members=np.bincount(call[call >= 0], minlength=len(rows)).astype(np.int32),
        offset=edges.offset,
        target=edges.target,
        lag=edges.lag,
    )
    before, loose = before_on_lane(given, np.zeros(len(of)))
    return Workload(
        what=np.array([form.what for form in forms], dtype=np.uint8)[of],
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
        groups=tuple(groups),
        names=names,
        lanes=lanes,
        job_ranks=job_ranks,
        notes=(LOOSE,) if loose else (),
    )


def _table(texts: Iterator[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return the index of each text, and the texts in the order in which they were first seen."""
    index: dict[str, int] = {}
    column = [index.setdefault(text, len(index)) for text in texts]
    return np.array(column, dtype=np.int32), tuple(index)


def _calls(
    calls: Sequence[MatchedCall],
    first: NDArray[np.int64],
    groups: dict[Group, int],
    transfers: Sequence[float],
) -> tuple[Ints, Calls]:
    """Return the call of each op, and the calls; adds their groups."""
    found = np.full(first[-1], -1, dtype=np.int32)
    begin = first.tolist()
    members = [begin[at] + op for call in calls for at, op in call.ops.items()]
    found[members] = np.repeat(np.arange(len(calls)), [len(call.ops) for call in calls])
    index: dict[tuple[tuple[int, ...], str], int] = {}
    rows = []
    for call, transfer in zip(calls, transfers, strict=True):
        key = call.ranks, call.label
        if key not in index:
            index[key] = groups.setdefault(Group(*key), len(groups))
        row = CallRow(call.kind, index[key], call.sequence, call.size, call.dtype, transfer)
        rows.append(row)
    return found, Calls.of(rows)


def _edges(ranked: Sequence[RankNodes], first: NDArray[np.int64]) -> Edges:
    sources, targets = [], []
    for one, begin in zip(ranked, first.tolist(), strict=False):
        counts = np.fromiter(map(len, one.waits), dtype=np.int64, count=len(one.waits))
        sources.append(begin + np.array([*chain.from_iterable(one.waits)], dtype=np.int64))
        targets.append(begin + np.repeat(np.arange(len(counts)), counts))
    source, target = np.concatenate(sources), np.concatenate(targets)
    return Edges.of(int(first[-1]), source, target, np.zeros(len(source)))
