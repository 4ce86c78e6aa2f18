"""The timeline of ranks as the page draws it: what share of each pixel a rank spent on what.

A step has more ops than a screen has pixels. A strip is a rank's time in windows of equal length,
and of each window the share of every use of time
(:func:`simulator.analysis.attribution.rank_parts_in`), as a byte. So it takes the same room
whatever the step, and nothing short is lost: it is a share.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.analysis.attribution import (
    AFTER,
    BEFORE,
    COMPUTE,
    COPY,
    EXPOSED,
    HOST,
    IDLE,
    LAUNCH,
    WAITING,
    rank_parts_in,
)
from simulator.analysis.critical_path import Segment
from simulator.analysis.metrics import cover, moves, union
from simulator.support.arrays import Floats
from simulator.support.errors import SettingsError
from simulator.timeline import Timeline
from simulator.workload import UNEXPLAINED_HOST, What

COMMUNICATION, DELAY = "communication", "delay"
USES = (COMPUTE, COMMUNICATION, COPY, WAITING, HOST, LAUNCH, DELAY)
"""What time is spent on, in the order in which it is drawn; the rest is idle."""
_USE = {
    **{COMPUTE: COMPUTE, COPY: COPY, WAITING: WAITING, HOST: HOST, LAUNCH: LAUNCH},
    **dict.fromkeys((BEFORE, AFTER, IDLE), ""),
    **dict.fromkeys((UNEXPLAINED_HOST, "gap", "launch delay", "not ready"), DELAY),
    **dict.fromkeys((COMMUNICATION, "drain"), COMMUNICATION),
    "absent ranks": WAITING,
}
"""By uses of a rank's time and of the critical path; exposed communication of all groups is one."""
RANKS_SHOWN = 16
"""Ranks of one screen."""
MOST_WINDOWS, LEAST_WINDOWS = 2000, 16
_FULL = 255


@dataclass(frozen=True, slots=True)
class Strip:
    """A row of the timeline: a byte per window and use, 255 for all of it, in base64."""

    rank: int
    uses: dict[str, str]
    moving: str = ""


@dataclass(frozen=True, slots=True)
class Strips:
    """A timeline, in windows of equal length.

    ``moving`` of a strip is communication whether hidden or not. ``path`` is the critical path,
    ``path_rank`` the rank that it is on in the middle of each window (-1 behind its end).
    ``ranks`` are those of the job that the timeline has, ``all_ranks`` how many the job has.
    """

    step_s: float
    windows: int
    uses: tuple[str, ...]
    rows: tuple[Strip, ...]
    path: Strip
    path_rank: list[int]
    ranks: int
    first_rank: int
    all_ranks: int


def strips(
    timeline: Timeline, path: Sequence[Segment], windows: int, first_rank: int = 0
) -> Strips:
    """Cut a timeline into windows.

    Parameters
    ----------
    timeline, path
        A simulated step, and its critical path.
    windows
        How many there are.
    first_rank
        The first that is shown, counted among the ranks of the timeline; of too few, the last ones
        are shown.

    Raises
    ------
    SettingsError
        If the number of windows is out of range.
    """
    if not LEAST_WINDOWS <= windows <= MOST_WINDOWS:
        raise SettingsError(f"{windows} windows: ask for {LEAST_WINDOWS} to {MOST_WINDOWS}")
    ranks = timeline.workload.ranks
    first_rank = min(first_rank, max(0, len(ranks) - 1) // RANKS_SHOWN * RANKS_SHOWN)
    edges = np.linspace(0.0, timeline.makespan or 1e-9, windows + 1)
    return Strips(
        step_s=timeline.makespan,
        windows=windows,
        uses=USES,
        rows=tuple(_of_rank(timeline, rank, edges) for rank in ranks[first_rank:][:RANKS_SHOWN]),
        path=_of_path(path, edges),
        path_rank=_path_ranks(timeline, path, edges),
        ranks=len(ranks),
        first_rank=first_rank,
        all_ranks=timeline.workload.job_ranks,
    )


def _of_rank(timeline: Timeline, rank: int, edges: Floats) -> Strip:
    workload = timeline.workload
    ops = workload.ops_of(rank)
    calls = ops[workload.what[ops] >= What.COLLECTIVE]
    moving = cover(union(*moves(timeline, calls)), edges[:-1], edges[1:])
    return Strip(rank, _by_use(rank_parts_in(timeline, rank, edges), edges), _bytes(moving, edges))


def _of_path(path: Sequence[Segment], edges: Floats) -> Strip:
    spans: dict[str, list[tuple[float, float]]] = {}
    for segment in path:
        spans.setdefault(segment.what, []).append((segment.start, segment.end))
    parts = {}
    for what, each in spans.items():
        start, end = np.array(each).T
        parts[what] = cover(union(start, end), edges[:-1], edges[1:])
    return Strip(-1, _by_use(parts, edges))


def _path_ranks(timeline: Timeline, path: Sequence[Segment], edges: Floats) -> list[int]:
    """Rank that the path is on in the middle of each window, -1 where it is over."""
    if not path:
        return [-1] * (len(edges) - 1)
    ends = np.array([segment.end for segment in path])
    rank = np.append(timeline.workload.rank[[segment.op for segment in path]], -1)
    middle = (edges[:-1] + edges[1:]) / 2
    ranks: list[int] = rank[np.searchsorted(ends, middle, side="left")].tolist()
    return ranks


def _by_use(parts: Mapping[str, Floats], edges: Floats) -> dict[str, str]:
    totals: dict[str, Floats] = {}
    for name, seconds in parts.items():
        if use := use_of(name):
            totals[use] = totals.get(use, 0.0) + seconds
    return {use: _bytes(totals[use], edges) for use in USES if use in totals and totals[use].any()}


def _bytes(seconds: Floats, edges: Floats) -> str:
    share = np.clip(seconds / np.diff(edges), 0.0, 1.0)
    return b64encode(np.rint(_FULL * share).astype(np.uint8).tobytes()).decode()


def use_of(what: str) -> str:
    """Return how a use of a rank's time, or of the critical path, is drawn; "" for idle time."""
    return COMMUNICATION if what.startswith(EXPOSED) else _USE[what]
