"""Nodes of all ranks that were not measured, as the columns of a workload."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.workload import CallRow, Calls, Edges, Floats, Group, Ints, Workload
from traces.chakra_nodes import COMMUNICATION, Form, lanes_of
from traces.chakra_ranks import RankColumns
from traces.lane_order import LOOSE, before_on_lane, with_lanes
from traces.lane_order_passes import Given
from traces.matched import Matched


def columns(
    ranked: Sequence[RankColumns], calls: Matched, job_ranks: int, transfers: Floats
) -> Workload:
    """Make a workload in which lanes run one op at a time: not calls without a stream."""
    counts = [len(one) for one in ranked]
    first = np.cumsum([0, *counts])
    forms, of = forms_of(ranked)
    lane, lanes = _table(lane for one in ranked for lane in lanes_of(one.nodes))
    name, names = _table(form.name for form in forms)
    call = np.full(len(of), -1, dtype=np.int32)
    call[first[calls.place] + calls.op] = calls.call
    groups, rows = _calls(calls, transfers)
    duration = np.where(call < 0, np.array([form.duration for form in forms])[of], 0.0)
    rank = np.repeat(np.array([one.nodes.rank for one in ranked], dtype=np.int64), counts)
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
        groups=groups,
        names=names,
        lanes=lanes,
        job_ranks=job_ranks,
        notes=(LOOSE,) if loose else (),
    )


def forms_of(ranked: Sequence[RankColumns]) -> tuple[list[Form], NDArray[np.int64]]:
    """Forms of all ranks, and which every node is of, one rank after the other."""
    base = np.cumsum([0, *(len(one.nodes.forms) for one in ranked)])
    of = [one.form + begin for one, begin in zip(ranked, base, strict=False)]
    return [form for one in ranked for form in one.nodes.forms], np.concatenate(of)


def _table(texts: Iterator[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return the index of each text, and the texts in the order in which they were first seen."""
    index: dict[str, int] = {}
    column = [index.setdefault(text, len(index)) for text in texts]
    return np.array(column, dtype=np.int32), tuple(index)


def _calls(calls: Matched, transfers: Floats) -> tuple[tuple[Group, ...], Calls]:
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
        strict=True,
    )
    return tuple(groups), Calls.of([CallRow(*row) for row in rows])


def _edges(ranked: Sequence[RankColumns], first: NDArray[np.int64]) -> Edges:
    sources = [one.source + begin for one, begin in zip(ranked, first.tolist(), strict=False)]
    targets = [one.target + begin for one, begin in zip(ranked, first.tolist(), strict=False)]
    source = np.concatenate(sources)
    return Edges.of(int(first[-1]), source, np.concatenate(targets), np.zeros(len(source)))
