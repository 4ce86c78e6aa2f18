"""What the ranks of a recording share: their communicators, and the part that all recorded.

An export without NCCL's payloads does not record the groups of collectives. But a collective ends
on all its members at once, and a communicator has its own stream on each rank: streams on which
collectives of the same names end together, one after another, belong to one communicator.

A recording begins and ends on each rank at another call: what only some ranks recorded at its ends
is left out, and so is all that ran before a rank's first launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from traces.core.comm_kernels import communicates
from traces.core.events import (
    CommRecord,
    DeviceEvents,
    HostEvents,
    HostKind,
    RankTrace,
    launch_rows,
    launch_times,
)
from traces.core.rank_graph import UNKNOWN_GROUP, kind_of

_TOGETHER = 100e-6
"""Largest difference of the ends of one collective (s): microseconds on one host, the offset of
clocks on several."""
_MOST_SHIFT = 64
"""Most calls that a rank recorded before another's first."""
_SAMPLED = 512
"""Number of calls of two lanes that are compared to find their shift."""
_AGREE = 0.9
"""Least share of simultaneous calls of two lanes, of those in their common time."""
_TICK = 1e-9
"""Clocks of Nsight Systems count nanoseconds."""
_Events = TypeVar("_Events", HostEvents, DeviceEvents)
_OUTSIDE = "events outside the part that all ranks recorded"


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveLane:
    """A rank's collectives of one communicator or stream, in order of their ends.

    ``rows`` are device rows, ``end`` the ends on the clock of the job (s), ``kind`` the words of
    the kernels' names.
    """

    rank_index: int
    key: str
    rows: NDArray[np.int64]
    end: NDArray[np.float64]
    kind: tuple[str, ...]


def with_groups(traces: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Infer missing communicators of collectives from which ones end together."""
    open_lanes = [lane for lane in _lanes(traces) if lane.key.startswith("stream")]
    if len(traces) < 2 or not open_lanes:
        return list(traces), []
    groups = _clusters(open_lanes)
    records: list[dict[int, CommRecord]] = [{} for _ in traces]
    lost = 0
    for number, lanes in enumerate(groups):
        ranks = tuple(sorted(traces[lane.rank_index].rank for lane in lanes))
        lost += sum(len(lane.rows) for lane in lanes) if len(lanes) == 1 else 0
        record = CommRecord(collective="", group_key=f"stream group {number}", group_ranks=ranks)
        if len(lanes) == 1:
            record = structs.replace(record, group_label=UNKNOWN_GROUP, dtype="")
        for lane in lanes:
            records[lane.rank_index].update(dict.fromkeys(lane.rows.tolist(), record))
    note = (
        f"the export has no communicators: {sum(len(g) > 1 for g in groups)} inferred from "
        "collectives that end together"
    )
    if lost:
        note += f"; {lost} collectives end with no other and keep their measured times"
    return [
        _recorded(trace, rank_records) for trace, rank_records in zip(traces, records, strict=True)
    ], [note]


def common_part(traces: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Cut the ranks to the part that all recorded, each from its first launch on."""
    cut = [_launched_part(trace) for trace in traces]
    for _ in range(8):  # a cut on one communicator may uncover a surplus on another
        bounds = _surplus(cut)
        if bounds is None:
            break
        cut = [_cropped(trace, *bound) for trace, bound in zip(cut, bounds, strict=True)]
    lost = sum(trace.unused.get(_OUTSIDE, 0) for trace in cut)
    return cut, [f"{lost} {_OUTSIDE} are left out"] if lost else []


def _lanes(traces: Sequence[RankTrace]) -> list[CollectiveLane]:
    lanes = []
    base = min(trace.epoch for trace in traces)
    for rank_index, trace in enumerate(traces):
        names = [i for i, name in enumerate(trace.names) if communicates(name)]
        rows = np.flatnonzero(np.isin(trace.device.name, names))
        keys = [_key(trace, row) for row in rows.tolist()]
        for key in sorted(set(keys)):
            lane_rows = rows[np.array([other_key == key for other_key in keys])]
            lane_rows = lane_rows[np.argsort(trace.device.end[lane_rows], kind="stable")]
            kind = tuple(
                kind_of(trace.names[trace.device.name[row]]) or "" for row in lane_rows.tolist()
            )
            end = trace.device.end[lane_rows] + (trace.epoch - base) / 1e9
            lanes.append(CollectiveLane(rank_index, key, lane_rows, end, kind))
    return lanes


def _key(trace: RankTrace, row: int) -> str:
    """Return a kernel's communicator, or its stream where that is not known."""
    comm = int(trace.device.comm[row])
    key = trace.comms[comm].group_key if comm >= 0 else ""
    return key or trace.streams[trace.device.stream[row]]


def _clusters(lanes: Sequence[CollectiveLane]) -> list[list[CollectiveLane]]:
    """Group lanes of different ranks that end together, each with the nearest."""
    clusters: list[list[CollectiveLane]] = []
    for lane in lanes:
        fitting = [
            (agreement, number)
            for number, group in enumerate(clusters)
            if all(member.rank_index != lane.rank_index for member in group)
            and (agreement := min(_agreement(member, lane) for member in group)) >= _AGREE
        ]
        if fitting:
            clusters[max(fitting, key=lambda fit: (fit[0], -fit[1]))[1]].append(lane)
        else:
            clusters.append([lane])
    return clusters


def _agreement(first_lane: CollectiveLane, second_lane: CollectiveLane) -> float:
    """Share of calls that end together, of those in the time that both lanes recorded."""
    shift = _shift(first_lane, second_lane)
    # A positive shift skips calls of the second lane, a negative one of the first.
    first, second = first_lane.end[max(0, -shift) :], second_lane.end[max(0, shift) :]
    both = min(len(first), len(second))
    if not both:
        return 0.0
    skip = max(0, -shift), max(0, shift)
    same = [first_lane.kind[skip[0] + i] == second_lane.kind[skip[1] + i] for i in range(both)]
    near = np.abs(first[:both] - second[:both]) <= _TOGETHER
    return float(np.mean(near & np.array(same)))


def _shift(first_lane: CollectiveLane, second_lane: CollectiveLane) -> int:
    """Return how many calls the second lane recorded before the first's first; may be negative."""
    best, best_shift = np.inf, 0
    for shift in sorted(range(-_MOST_SHIFT, _MOST_SHIFT + 1), key=abs):
        first, second = first_lane.end[max(0, -shift) :], second_lane.end[max(0, shift) :]
        both = min(len(first), len(second))
        if 2 * both < min(len(first_lane.end), len(second_lane.end)) or not both:
            continue
        some = np.linspace(0, both - 1, min(both, _SAMPLED)).astype(np.int64)
        scatter = float(np.median(np.abs(first[some] - second[some])))
        if scatter < best:
            best, best_shift = scatter, shift
    return best_shift


def _recorded(trace: RankTrace, records: dict[int, CommRecord]) -> RankTrace:
    """Add a group to the records of device rows that have none."""
    comm = trace.device.comm.copy()
    comms = list(trace.comms)
    for row, record in records.items():
        earlier = comms[comm[row]] if comm[row] >= 0 else record
        comm[row] = len(comms)
        comms.append(
            structs.replace(
                earlier,
                group_key=record.group_key,
                group_label=record.group_label,
                group_ranks=record.group_ranks,
            )
        )
    return structs.replace(
        trace, device=structs.replace(trace.device, comm=comm), comms=tuple(comms)
    )


def _surplus(traces: Sequence[RankTrace]) -> list[tuple[float, float]] | None:
    """Return the times (s) between which every rank has every call; None: nothing to cut."""
    bounds = [(-np.inf, np.inf) for _ in traces]
    by_key: dict[str, list[CollectiveLane]] = {}
    for lane in _lanes(traces):
        by_key.setdefault(lane.key, []).append(lane)
    changed = False
    for lanes in by_key.values():
        shifts = [_shift(lanes[0], lane) for lane in lanes]
        before = [shift - min(shifts) for shift in shifts]
        length = min(len(lane.rows) - lead for lane, lead in zip(lanes, before, strict=True))
        for lane, lead in zip(lanes, before, strict=True):
            late = lane.rows[lead + max(0, length) :]
            changed |= bool(lead or len(late))
            start, end = bounds[lane.rank_index]
            called, _ = launch_times(traces[lane.rank_index])
            start = max([start, *(called[lane.rows[:lead]] + _TICK)])
            bounds[lane.rank_index] = start, min([end, *called[late]])
    return bounds if changed else None


def _launched_part(trace: RankTrace) -> RankTrace:
    """Cut a rank to the time from its first launch to the end of its last device event."""
    called, paired = launch_times(trace)
    if not paired.any():
        return trace
    last = float(np.nextafter(trace.device.end.max(), np.inf))
    return _cropped(trace, float(called[paired].min()), last)


def _cropped(trace: RankTrace, start: float, end: float) -> RankTrace:
    """Keep the host's events from ``start`` to ``end`` (s), and what they launch.

    Work launched before and still running at ``start`` is kept from then on, without its launch, if
    more follows on its stream; a user's range that is not inside is dropped.
    """
    host, device = trace.host, trace.device
    called, paired = launch_times(trace)
    launches = np.zeros(len(host), dtype=np.bool_)
    launches[launch_rows(trace)[paired]] = True
    marks = (host.kind == HostKind.ANNOTATION) & (host.comm < 0)
    whole = (host.start >= start) & np.where(marks, host.end <= end, host.start < end)
    kept_host = whole | ((host.end > start) & (host.start < start) & ~marks & ~launches)
    called_inside = (called >= start) & (called < end)
    followed = np.isin(device.stream, np.unique(device.stream[called_inside & paired]))
    in_step = called_inside | ((called < end) & (device.end > start) & followed)
    lost = int((~kept_host).sum() + (~in_step).sum())
    return structs.replace(
        trace,
        host=_rows_from(host, kept_host, start),
        device=_rows_from(device, in_step, start),
        unused={**trace.unused, _OUTSIDE: trace.unused.get(_OUTSIDE, 0) + lost},
    )


def _rows_from(events: _Events, rows: NDArray[np.bool_], start: float) -> _Events:
    """Select rows, and clip their starts to ``start``."""
    columns = {name: getattr(events, name)[rows] for name in events.__struct_fields__}
    columns["start"] = np.maximum(columns["start"], start)
    return structs.replace(events, **columns)
