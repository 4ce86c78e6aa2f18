"""A difference between two steps of one graph, put down to what changed: parts that add up to it.

Two timelines of the same ops and edges differ in how long ops, launch latencies and calls take.
Let all of these go from their values in one to those in the other together, in a straight line.
On the way the step is the longest of all ways through the graph, each of which is linear: a convex
function, of straight pieces. On a piece it changes by what the things on its critical path change
by. So a thing's part of the difference is how much it changes times the share of the way on which
it is critical, and the parts add up to the difference::

    T(1) - T(0) = sum over things of (value(1) - value(0)) * share of [0, 1] on the critical path

That is the Aumann-Shapley value of the step as a function of the durations (Aumann and Shapley,
Values of Non-Atomic Games, Princeton 1974; Billera and Heath, Math. Oper. Res. 7(1), 1982,
doi 10.1287/moor.7.1.32), known from machine learning as integrated gradients (Sundararajan et al.,
arXiv 1703.01365). Interaction, as when a second way becomes critical because the first got shorter,
is shared by where on the way it happens: nothing is left over, and no order is preferred.

It holds for any engine whose calls end together: how long each call took, contention included, is a
value like the others. Where several ways are equally long the engine's is taken, which prefers the
op with the lowest index.
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.critical_path import Released, ended_with, ops_on_path
from simulator.engine.propagate import LocalTimes
from simulator.errors import WorkloadError
from simulator.timeline import Timeline
from simulator.workload import Edges, Floats, Workload

_GAP = 1e-9
"""A piece is straight if no way is longer by this share of the step: what rounding leaves of it."""
_PIECES = 400
"""Places that are timed at most; what has more corners is cut where lines meet, and adds up."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What each thing adds to the difference (s); together they are the difference.

    ``duration`` is by the ops' own time, shape ``(ops,)``, ``moving`` by the time of the calls,
    by the op through which the critical path leaves one, shape ``(ops,)``; ``lag`` by edges, shape
    ``(edges,)``; ``ready`` by when ops may start at the earliest, ``late`` by when ranks that were
    not recorded arrive, shape ``(ops,)``. ``share`` is on how much of the way each op is critical
    (0 to 1), ``call_share`` its call through it, shape ``(ops,)``. ``pieces`` is
    how many straight pieces the way has.
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


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """How long things take in a step (s)."""

    duration: Floats
    ready: Floats
    lag: Floats
    late: Floats
    cost: Floats

    @staticmethod
    def of(timeline: Timeline) -> "_Values":
        workload = timeline.workload
        joined = workload.members > 0
        moved = np.where(joined, timeline.call_end - timeline.call_start, 0.0)
        return _Values(
            workload.duration, workload.ready, workload.edges.lag, workload.calls.late, moved
        )

    def towards(self, other: "_Values", share: float) -> "_Values":
        """Values on the straight line to others."""

        def between(mine: Floats, theirs: Floats) -> Floats:
            return mine + share * (theirs - mine)

        return _Values(
            between(self.duration, other.duration),
            between(self.ready, other.ready),
            between(self.lag, other.lag),
            between(self.late, other.late),
            between(self.cost, other.cost),
        )

    def same_ops(self, other: "_Values") -> bool:
        """Whether only the calls differ."""
        return (
            np.array_equal(self.duration, other.duration)
            and np.array_equal(self.ready, other.ready)
            and np.array_equal(self.lag, other.lag)
            and np.array_equal(self.late, other.late)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """A place on the way: the step there (s), its critical path, and how fast that changes.

    ``call`` are those with whose end the ops of ``left`` ended, -1 of one without.
    """

    at: float
    step: float
    left: NDArray[np.int32]
    call: NDArray[np.int32]
    arrived: NDArray[np.int32]
    before: NDArray[np.int32]
    slope: float

    def line(self, at: float) -> float:
        """Length of the critical path somewhere else on the way (s)."""
        return self.step + self.slope * (at - self.at)


def path_integral(base: Timeline, changed: Timeline) -> Parts:
    """Put the difference of two steps, ``changed`` less ``base``, down to what differs in them.

    Parameters
    ----------
    base, changed
        Timelines of workloads with the same ops, calls and edges.

    Returns
    -------
    Parts
        They add up to ``changed.makespan - base.makespan``.

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
    _check_alike(base.workload, changed.workload)
    way = _Way(base.workload, _Values.of(base), _Values.of(changed))
    first, last = way.point(0.0), way.point(1.0)
    for point, timeline in ((first, base), (last, changed)):
        if abs(point.step - timeline.makespan) > _GAP * max(timeline.makespan, 1e-9):
            raise WorkloadError(
                f"engine {timeline.engine!r}: ranks leave a call before it is over, so that a step "
                "is no sum of its calls and ops; take engine flow or analytic"
            )
    return way.integral(first, last)


def _check_alike(one: Workload, other: Workload) -> None:
    same = (
        np.array_equal(one.what, other.what)
        and np.array_equal(one.rank, other.rank)
        and np.array_equal(one.call, other.call)
        and np.array_equal(one.edges.offset, other.edges.offset)
        and np.array_equal(one.edges.target, other.edges.target)
    )
    if not same:
        raise WorkloadError("the two steps are not the same graph of ops and calls")


class _Way:
    """The straight line between two steps, and what has been added up on it."""

    def __init__(self, workload: Workload, base: _Values, changed: _Values) -> None:
        self._workload, self._base, self._changed = workload, base, changed
        self._only_calls = base.same_ops(changed)
        edges = workload.edges
        self._key = edges.source.astype(np.int64) * max(1, len(workload)) + edges.target
        self._order = np.argsort(self._key, kind="stable")
        self._difference = _Values(
            changed.duration - base.duration,
            changed.ready - base.ready,
            changed.lag - base.lag,
            changed.late - base.late,
            changed.cost - base.cost,
        )

    def point(self, at: float) -> _Point:
        """Time the step at a place of the way."""
        values = self._base.towards(self._changed, at) if at < 1 else self._changed
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
        point = _Point(at, step, left, call[left], arrived, before, 0.0)
        return replace(point, slope=self._slope(point))

    def integral(self, first: _Point, last: _Point) -> Parts:
        """Add up what lies on critical paths, piece by piece, those that are least straight first.

        Where the lines of two ends meet is a corner if the step lies there on both of them; else
        there is another way between, and its line is met with either.
        """
        parts = self._nothing()
        gap = _GAP * max(first.step, last.step)
        waiting: list[tuple[float, float, _Point, _Point, _Point | None]] = []
        self._meet(waiting, first, last, points=2)
        slopes: list[tuple[float, float]] = []
        points = 3
        while waiting:
            off, _, one, other, middle = heappop(waiting)
            corner = one.at if middle is None else middle.at
            if middle is None or -off <= gap or points >= _PIECES:
                for point, start, width in (
                    (one, one.at, corner - one.at),
                    (other, corner, other.at - corner),
                ):
                    if width > 0:
                        self._add(parts, point, width)
                        slopes.append((start, point.slope))
                continue
            self._meet(waiting, one, middle, points)
            self._meet(waiting, middle, other, points)
            points += 2
        return replace(parts, pieces=_pieces(slopes, gap))

    def _meet(
        self,
        waiting: list[tuple[float, float, _Point, _Point, _Point | None]],
        one: _Point,
        other: _Point,
        points: int,
    ) -> None:
        """Find where the lines of two ends meet, and how far the step is off them there."""
        width = other.at - one.at
        bend = other.slope - one.slope
        level = bend <= 0 or width <= 0
        if level:
            # Parallel lines of one step: the same way, or two of one length.
            heappush(waiting, (0.0, one.at, one, other, self._half(one, other)))
            return
        corner = (one.line(one.at) - other.line(one.at)) / bend + one.at
        corner = min(max(corner, one.at), other.at)
        middle = self.point(corner) if points < _PIECES else replace(one, at=corner)
        off = max(0.0, middle.step - max(one.line(corner), other.line(corner)))
        heappush(waiting, (-off, one.at, one, other, middle))

    @staticmethod
    def _half(one: _Point, other: _Point) -> _Point:
        return replace(one, at=(one.at + other.at) / 2)

    def _slope(self, point: _Point) -> float:
        """How much longer a way is at the end of the line than at its beginning (s)."""
        change, calls = self._difference, point.call[point.call >= 0]
        return float(
            change.duration[point.left].sum()
            + change.cost[calls].sum()
            + change.late[calls].sum()
            + change.lag[self._edges(point.before, point.arrived)].sum()
            + change.ready[point.arrived[point.before < 0]].sum()
        )

    def _edges(self, before: NDArray[np.int32], arrived: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the edges that a way takes."""
        taken = before >= 0
        key = before[taken].astype(np.int64) * max(1, len(self._workload)) + arrived[taken]
        return self._order[np.searchsorted(self._key, key, sorter=self._order)]

    def _nothing(self) -> Parts:
        ops, edges = len(self._workload), len(self._workload.edges.target)
        return Parts(
            duration=np.zeros(ops),
            moving=np.zeros(ops),
            lag=np.zeros(edges),
            ready=np.zeros(ops),
            late=np.zeros(ops),
            share=np.zeros(ops),
            call_share=np.zeros(ops),
            pieces=0,
        )

    def _add(self, parts: Parts, point: _Point, width: float) -> None:
        """Add what a way changes by on a piece of the line."""
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


def _pieces(slopes: list[tuple[float, float]], gap: float) -> int:
    """Count straight pieces: neighbours that rise alike are one."""
    slope = np.array([slope for _, slope in sorted(slopes)])
    return int((np.abs(np.diff(slope)) > gap).sum()) + 1 if len(slope) else 0


_NOTHING = (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))
