"""The difference of two steps of one graph, attributed to what changed: parts that sum to it.

Two timelines of the same ops and edges differ in the durations of ops, launch latencies and calls.
Move all of these together, on a straight line, from their values in one to those in the other. The
step is the longest path through the graph, and each path is linear in these values; so along the
line the step is convex and piecewise linear. On each piece it changes as the critical path does. A
value's part of the difference is its change times the share of the line on which it is critical,
and the parts sum to the difference::

    T(1) - T(0) = sum over values of (value(1) - value(0)) * share of [0, 1] on the critical path

That is the Aumann-Shapley value of the step as a function of the durations (Aumann and Shapley,
Values of Non-Atomic Games, Princeton 1974; Billera and Heath, Math. Oper. Res. 7(1), 1982, doi
10.1287/moor.7.1.32), known in machine learning as integrated gradients (Sundararajan et al., arXiv
1703.01365). Interaction, as when a second path becomes critical because the first got shorter, is
divided by where on the line it happens: no remainder, and no preferred order.

It holds for every engine whose calls end for all members together: the time of each call,
contention included, is a value like the others. Of several equally long paths the engine's is
taken, which prefers the op of lowest index.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import fsum
from typing import NamedTuple

import numpy as np

from simulator.analysis.critical_path import Released, ended_with, ops_on_path
from simulator.engine.simulate import Costs
from simulator.engine.simulation import LocalTimes
from simulator.support.arrays import Floats, Ints, Longs, equal_in
from simulator.support.errors import WorkloadError
from simulator.timeline import Timeline
from simulator.workload import Edges, What, Workload

_GAP = 1e-9
"""A piece counts as straight if no path is longer by this share of the step: rounding."""
_PIECES = 400
"""Most points that are timed; with more corners a piece is cut where lines meet, and still adds up.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Contribution of each value to the difference (s); together they are the difference.

    ``duration`` is by ops' own time, shape ``(ops,)``; ``moving`` by the time of calls, at the op
    through which the critical path leaves one, shape ``(ops,)``; ``lag`` by edges, shape
    ``(edges,)``; ``ready`` by the earliest starts of ops, ``late`` by arrivals of ranks that were
    not recorded, shape ``(ops,)``. ``share`` is the share of the line on which each op is critical
    (0 to 1), ``call_share`` that of its call through it, shape ``(ops,)``. ``pieces`` counts the
    straight pieces of the line.
    """

    duration: Floats
    moving: Floats
    lag: Floats
    ready: Floats
    late: Floats
    share: Floats
    call_share: Floats
    pieces: int

    @property
    def total(self) -> float:
        """Sum of all parts (s)."""
        every = (self.duration, self.moving, self.lag, self.ready, self.late)
        return float(sum(part.sum() for part in every))


class _Values(NamedTuple):
    """All durations of a step (s)."""

    duration: Floats
    ready: Floats
    lag: Floats
    late: Floats
    cost: Floats

    @staticmethod
    def from_timeline(timeline: Timeline) -> "_Values":
        workload = timeline.workload
        joined = workload.members > 0
        moved = np.where(joined, timeline.call_end - timeline.call_start, 0.0)
        return _Values(
            workload.duration, workload.ready, workload.edges.lag, workload.calls.late, moved
        )

    def interpolated(self, end: "_Values", share: float) -> "_Values":
        """Values on the straight line to others, at a share of it."""
        pairs = zip(self, end, strict=True)
        return _Values(*(first + share * (last - first) for first, last in pairs))


@dataclass(frozen=True, slots=True, eq=False)
class _PointOnLine:
    """A point on the line: the step (s), its critical path, and the slope there.

    ``call`` are the calls with whose end the ops of ``left`` ended, -1 for an op without one.
    """

    at: float
    step: float
    left: Ints
    call: Ints
    arrived: Ints
    before: Ints
    slope: float

    def line(self, at: float) -> float:
        """Length of this point's critical path elsewhere on the line (s)."""
        return self.step + self.slope * (at - self.at)


def path_integral(base: Timeline, changed: Timeline) -> Parts:
    """Attribute the difference of two steps, ``changed`` minus ``base``, to parts that sum to it.

    Raises
    ------
    WorkloadError
        If the workloads are not the same graph, or calls do not end together (engine
        ``transfer``).

    Examples
    --------
    >>> from dataclasses import replace
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.engine.simulate import simulate
    >>> from simulator.topology import topology
    >>> from simulator.workload import What
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> for lane, duration in (("stream 7", 4.0), ("stream 9", 3.0)):
    ...     _ = builder.op(What.COMPUTE, rank=0, lane=lane, name="gemm", duration=duration)
    >>> step = builder.build()
    >>> half = replace(step, duration=step.duration / 2)
    >>> base, changed = (
    ...     simulate(one, topology("alone", 1, []), lambda call, network: None)
    ...     for one in (step, half)
    ... )
    >>> path_integral(base, changed).duration.tolist()
    [-2.0, 0.0]
    """
    steps = base.workload, changed.workload
    edges = (step.edges for step in steps)
    if not (equal_in(("what", "rank", "call"), *steps) and equal_in(("offset", "target"), *edges)):
        raise WorkloadError("the two steps are not the same graph of ops and calls")
    way = _Line(base.workload, _Values.from_timeline(base), _Values.from_timeline(changed))
    first, last = way.point(0.0), way.point(1.0)
    for point, timeline in ((first, base), (last, changed)):
        if abs(point.step - timeline.makespan) > _GAP * max(timeline.makespan, 1e-9):
            raise WorkloadError(
                f"engine {timeline.engine!r}: ranks leave a call before it is over, so that a step "
                "is not a sum of its calls and ops; take engine flow or analytic"
            )
    return way.integrate(first, last)


class _Line:
    """The straight line between two steps, and the parts summed on it."""

    def __init__(self, workload: Workload, base: _Values, changed: _Values) -> None:
        self._workload, self._base, self._changed = workload, base, changed
        self._only_calls = all(map(np.array_equal, base[:-1], changed[:-1]))
        edges = workload.edges
        self._key = edges.source.astype(np.int64) * max(1, len(workload)) + edges.target
        self._order = np.argsort(self._key, kind="stable")
        self._difference = _Values(*map(np.subtract, changed, base))

    def point(self, at: float) -> _PointOnLine:
        """Time the step at a point of the line."""
        values = self._base.interpolated(self._changed, at) if at < 1 else self._changed
        workload = self._workload
        if not self._only_calls:
            edges = Edges(workload.edges.offset, workload.edges.target, values.lag)
            workload = replace(
                workload,
                duration=values.duration,
                ready=values.ready,
                edges=edges,
                calls=replace(workload.calls, late=values.late),
            )
        local = LocalTimes.of(workload, cost=values.cost)
        local.begin()
        end = local.ops.end
        call = ended_with(workload, local.ops.start, local.calls.end)
        released = Released(local.ops.released_by, call, local.calls.last_member)
        left, arrived = ops_on_path(end, released) if len(end) else _NOTHING
        before = released.by[arrived]
        step = float(end.max(initial=0.0))
        point = _PointOnLine(at, step, left, call[left], arrived, before, 0.0)
        # How much longer a way is at the end of the line than at its beginning (s)
        change, calls = self._difference, point.call[point.call >= 0]
        return replace(
            point,
            slope=float(
                change.duration[point.left].sum()
                + change.cost[calls].sum()
                + change.late[calls].sum()
                + change.lag[self._edges(point.before, point.arrived)].sum()
                + change.ready[point.arrived[point.before < 0]].sum()
            ),
        )

    def integrate(self, first: _PointOnLine, last: _PointOnLine) -> Parts:
        """Integrate over critical paths piece by piece, the least straight pieces first.

        Where the tangents of two points meet is a corner if the step lies there on both; otherwise
        another path lies between, and its tangent is intersected with either.
        """
        ops, edges = len(self._workload), len(self._workload.edges.target)
        parts = Parts(
            duration=np.zeros(ops),
            moving=np.zeros(ops),
            lag=np.zeros(edges),
            ready=np.zeros(ops),
            late=np.zeros(ops),
            share=np.zeros(ops),
            call_share=np.zeros(ops),
            pieces=0,
        )
        gap = _GAP * max(first.step, last.step)
        waiting: list[tuple[float, float, _PointOnLine, _PointOnLine, _PointOnLine | None]] = []
        self._corner(waiting, first, last, points=2)
        slopes: list[tuple[float, float]] = []
        points = 3
        while waiting:
            off, _, low, high, middle = heappop(waiting)
            corner = low.at if middle is None else middle.at
            if middle is None or -off <= gap or points >= _PIECES:
                for point, start, width in (
                    (low, low.at, corner - low.at),
                    (high, corner, high.at - corner),
                ):
                    if width > 0:
                        self._add(parts, point, width)
                        slopes.append((start, point.slope))
                continue
            self._corner(waiting, low, middle, points)
            self._corner(waiting, middle, high, points)
            points += 2
        slope = np.array([slope for _, slope in sorted(slopes)])
        pieces = int((np.abs(np.diff(slope)) > gap).sum()) + 1 if len(slope) else 0
        return replace(parts, pieces=pieces)  # neighbours of equal slope are one

    def _corner(
        self,
        waiting: list[tuple[float, float, _PointOnLine, _PointOnLine, _PointOnLine | None]],
        low: _PointOnLine,
        high: _PointOnLine,
        points: int,
    ) -> None:
        """Find where two tangents meet, and how far the step is above them there."""
        width = high.at - low.at
        bend = high.slope - low.slope
        level = bend <= 0 or width <= 0
        if level:
            # Parallel lines of one step: the same way, or two of one length.
            heappush(waiting, (0.0, low.at, low, high, replace(low, at=(low.at + high.at) / 2)))
            return
        corner = (low.line(low.at) - high.line(low.at)) / bend + low.at
        corner = min(max(corner, low.at), high.at)
        middle = self.point(corner) if points < _PIECES else replace(low, at=corner)
        off = max(0.0, middle.step - max(low.line(corner), high.line(corner)))
        heappush(waiting, (-off, low.at, low, high, middle))

    def _edges(self, before: Ints, arrived: Ints) -> Longs:
        """Return the edges of a path."""
        by_edge = before >= 0
        key = before[by_edge].astype(np.int64) * max(1, len(self._workload)) + arrived[by_edge]
        return self._order[np.searchsorted(self._key, key, sorter=self._order)]

    def _add(self, parts: Parts, point: _PointOnLine, width: float) -> None:
        """Add the changes along a path for a piece of the line."""
        change, joined = self._difference, point.call >= 0
        moving, calls = point.left[joined], point.call[joined]
        edges = self._edges(point.before, point.arrived)
        begun = point.arrived[point.before < 0]
        # No op, edge or call is on a way twice.
        parts.share[point.left] += width
        parts.call_share[moving] += width
        parts.duration[point.left] += width * change.duration[point.left]
        parts.moving[moving] += width * change.cost[calls]
        parts.late[moving] += width * change.late[calls]
        parts.lag[edges] += width * change.lag[edges]
        parts.ready[begun] += width * change.ready[begun]


_NOTHING = (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


CONTENTION = "contention"
"""Time of a call beyond that on an idle network."""
SOFTWARE = "software"
_ROUNDING = 1e-12
"""Relative size of a difference that is rounding: a call of 1 ms begins at up to 1 s, where floats
are 1e-16 s apart."""
_BUSY = {What.HOST: "host", What.COMPUTE: "compute", What.COPY: "copy"}
_NO_MODULE = ""


@dataclass(frozen=True, slots=True)
class ChangePart:
    """Time that a change saves (s) by ``what``; negative if it costs time.

    ``what`` is ``communication``, ``compute``, ``copy``, ``host``, ``launch``, ``gap``, ``drain``,
    ``absent ranks`` or ``not ready``. ``name`` is an op's, or of communication kind and group;
    ``cause`` of communication a resource's latency or bandwidth, ``software`` or ``contention``.
    """

    what: str
    name: str
    cause: str
    seconds: float


def parts_by_cause(base: Timeline, changed: Timeline, parts: Parts) -> list[ChangePart]:
    """Attribute savings to kinds and groups of calls and to names of ops.

    The largest first, without those of 0 s; they sum to what the step saves.
    """
    totals: dict[tuple[str, str, str], float] = defaultdict(float)
    for key, seconds in (*_of_calls(base, changed, parts), *_of_ops(base.workload, parts)):
        totals[key] -= seconds
    rows = (ChangePart(*key, seconds) for key, seconds in totals.items() if seconds)
    return sorted(rows, key=lambda row: -abs(row.seconds))


def parts_by_module(workload: Workload, parts: Parts) -> dict[str, float]:
    """Attribute savings (s) to modules; "" is the part of no known module.

    A call counts for the module of the op by which the critical path leaves it.
    """
    every = _by_op(workload, parts, parts.moving + parts.late)
    if workload.module is None:
        return {_NO_MODULE: -float(every.sum())}
    seconds = np.bincount(
        workload.module + 1, weights=every, minlength=len(workload.modules) + 1
    ).tolist()
    names = (_NO_MODULE, *workload.modules)
    saved = {name: -time for name, time in zip(names, seconds, strict=True) if time}
    return dict(sorted(saved.items(), key=lambda item: -abs(item[1])))


def parts_by_rank(workload: Workload, parts: Parts) -> dict[int, float]:
    """Attribute savings (s) to ranks; a call counts for its members in equal parts.

    Local time counts for the rank on the critical path. Of equally late ranks that is the lowest,
    so a balanced job has all of its compute on one rank.
    """
    joined = np.flatnonzero(workload.call >= 0)
    call = workload.call[joined]
    of_call = np.bincount(
        call, weights=(parts.moving + parts.late)[joined], minlength=len(workload.calls)
    )
    of_member = np.zeros(len(workload))
    of_member[joined] = of_call[call] / workload.members[call]
    every = _by_op(workload, parts, of_member)
    seconds = np.bincount(workload.rank, weights=every, minlength=workload.job_ranks)
    return {rank: -float(seconds[rank]) for rank in workload.ranks}


def _by_op(workload: Workload, parts: Parts, of_calls: Floats) -> Floats:
    """All parts by op (s); the change of an edge's lag counts for the op that waits."""
    every = parts.duration + parts.ready + of_calls
    np.add.at(every, workload.edges.target, parts.lag)
    return every


_Keyed = tuple[tuple[str, str, str], float]


def _of_ops(workload: Workload, parts: Parts) -> Iterator[_Keyed]:
    """Parts of ops and of edges (s): durations, launches and gaps, starts."""
    is_call = workload.call >= 0
    for what, word in _BUSY.items():
        yield from _named(workload, np.where(workload.what == what, parts.duration, 0.0), word)
    yield from _of_kinds(workload, np.where(is_call, parts.duration, 0.0), "drain")
    yield from _of_kinds(workload, parts.late, "absent ranks")
    yield from _named(workload, parts.ready, "not ready")
    source = workload.edges.source
    by_host = workload.what[source] == What.HOST
    for word, edges in (("launch", by_host), ("gap", ~by_host)):
        before = np.zeros(len(workload))
        np.add.at(before, workload.edges.target[edges], parts.lag[edges])
        yield from _named(workload, before, word)


def _named(workload: Workload, seconds: Floats, what: str) -> Iterator[_Keyed]:
    """Sum by names of ops."""
    ops = np.flatnonzero(seconds)
    total = np.bincount(workload.name[ops], weights=seconds[ops], minlength=len(workload.names))
    for name in np.flatnonzero(total).tolist():
        yield (what, workload.names[name], ""), float(total[name])


def _of_kinds(workload: Workload, seconds: Floats, what: str) -> Iterator[_Keyed]:
    """Sum by kind and group of the ops' calls."""
    for op in np.flatnonzero(seconds).tolist():
        yield (what, call_name(workload, int(workload.call[op])), ""), float(seconds[op])


def call_name(workload: Workload, call: int) -> str:
    """Name a call by kind and group: ``all_reduce tp[4]``."""
    view = workload.call_view(call)
    return f"{view.kind} {view.group}"


def _of_calls(base: Timeline, changed: Timeline, parts: Parts) -> Iterator[_Keyed]:
    """Parts of the time of calls by cause (s)."""
    workload = base.workload
    joined = np.flatnonzero(parts.call_share)
    share = np.bincount(
        workload.call[joined], weights=parts.call_share[joined], minlength=len(workload.calls)
    )
    now = Costs(base.topology, lambda call, _: base.plans[call.index])
    then = Costs(changed.topology, lambda call, _: changed.plans[call.index])
    for call in np.flatnonzero(share).tolist():
        before, after = _causes(base, now, call), _causes(changed, then, call)
        kind = call_name(workload, call)
        for cause in {**before, **after}:
            change = after.get(cause, 0.0) - before.get(cause, 0.0)
            yield ("communication", kind, cause), float(share[call]) * change


def _causes(timeline: Timeline, costs: Costs, call: int) -> dict[str, float]:
    """Time of a call by cause (s); the causes sum to the time."""
    names = timeline.topology.resources
    latency, bandwidth = np.zeros(len(names) + 1), np.zeros(len(names))
    for load in costs.loads(timeline.workload.call_view(call)):
        latency += load.latency_of
        if load.amount:
            bandwidth[timeline.topology.resource[load.bottleneck]] += load.transfer
    factor = float(timeline.workload.calls.factor[call])
    took = float(timeline.call_end[call] - timeline.call_start[call])
    causes = {
        **_scaled(names, latency[:-1], factor, "latency"),
        **_scaled(names, bandwidth, factor, "bandwidth"),
        SOFTWARE: factor * float(latency[-1]),
    }
    beyond = took - fsum(causes.values())
    return {**causes, CONTENTION: beyond if abs(beyond) > _ROUNDING * took else 0.0}


def _scaled(names: tuple[str, ...], seconds: Floats, factor: float, word: str) -> dict[str, float]:
    pairs = zip(names, seconds.tolist(), strict=True)
    return {f"{name} {word}": factor * time for name, time in pairs}
