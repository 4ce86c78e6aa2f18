"""Contraction: what happens between calls, as few weighted edges between few points.

A point of the contracted graph is the start of the step, its end, the start of a call, or an op
where times of different origin meet. All else is on the edges: an edge from ``u`` to ``v`` says
that ``v`` starts no earlier than its weight after ``u`` (after its *end*, where ``u`` is a call).
A weight is not a number but one per *part* of time that a what-if scales by itself (host,
compute, copy) and one for the rest, so the graph is exact whatever the factors are:

* a point that waits for a single other point is that one, later; a point for which a single other
  point waits is that one, earlier; the weights add up;
* an edge is dropped where another between the same points, or a way over a third, is at least as
  long in every part.

A step that repeats is contracted with the step before it (:mod:`simulator.engine.next_step`): its
length is from the end of that to its own.

The hot loops take edges as columns ``source``, ``target`` and ``weight`` of shape
``(edges, parts)``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.next_step import joints, without_backlog
from simulator.support.arrays import Floats, Ints, Longs, Mask, Matrix, offsets_by_row
from simulator.support.compiled import hot_loop
from simulator.support.errors import DeadlockError
from simulator.workload import What, Workload
from simulator.workload import topological_order as order_of

_COMPARED = 32
"""Edges an edge is compared with at most, so that the work stays linear."""


class EdgeRows(NamedTuple):
    """The edges of each point ``p``: ``edge[offset[p]:offset[p + 1]]``."""

    offset: Longs
    edge: Longs


class _Columns(NamedTuple):
    source: Ints
    target: Ints
    weight: Matrix


class _Stand(NamedTuple):
    """Per point: how many edges enter it, the last of them, what it stands for and how much later.

    A point that is itself stands for itself, 0 later.
    """

    waits: Ints
    edge: Longs
    point: Ints
    later: Matrix


def topological(points: int, source: Ints, target: Ints) -> Ints:
    """Points in an order along the edges; fewer than all if there is a cycle."""
    begin = offsets_by_row(source, points)
    order: Ints = order_of(begin, target[np.argsort(source, kind="stable")])
    return order


def forwards(
    order: Ints, fixed: Mask, source: Ints, target: Ints, weight: Matrix
) -> tuple[Ints, Ints, Matrix]:
    """Replace points that wait for one other only by that one, and later; the columns are reused.

    ``order`` has the points along the edges, ``fixed`` marks those that are to stay.
    """
    points = len(order)
    stands = _Stand(
        waits=np.bincount(target, minlength=points).astype(np.int32),
        edge=np.zeros(points, dtype=np.int64),
        point=np.arange(points, dtype=np.int32),
        later=np.zeros((points, weight.shape[1])),
    )
    edges = _forwards(order, fixed, stands, _Columns(source, target, weight))
    return source[:edges], target[:edges], weight[:edges]


def backwards(
    order: Ints, fixed: Mask, source: Ints, target: Ints, weight: Matrix
) -> tuple[Ints, Ints, Matrix]:
    """Replace points that one other only waits for by that one, and earlier."""
    turned = np.ascontiguousarray(order[::-1])
    target, source, weight = forwards(turned, fixed, target, source, weight)
    return source, target, weight


def longest(source: Ints, target: Ints, weight: Matrix) -> Mask:
    """Mark the edges to keep; those between the same points come together, by their first part.

    What two edges are longer than at any factors is never the longest: a mean of both is no
    shorter. With one scaled part this finds all such edges, with more those that it meets.
    """
    needed = np.zeros(len(source), dtype=np.bool_)
    _longest(_Columns(source, target, weight), np.empty(len(source), dtype=np.int64), needed)
    return needed


def direct(out: Longs, into: EdgeRows, source: Ints, target: Ints, weight: Matrix) -> Mask:
    """Mark the edges that no way over a third point replaces.

    ``out`` is where the edges of each source begin, ``into`` the same by target with their numbers.
    A dropped edge may still serve as part of such a way: what replaced it is no shorter.
    """
    needed = np.ones(len(source), dtype=np.bool_)
    first = np.full(len(out), -1)
    _direct(out, into, _Columns(source, target, weight), first, needed)
    return needed


@hot_loop
def _forwards(order: Ints, fixed: Mask, stands: _Stand, edges: _Columns) -> int:
    source, target, weight = edges
    parts = weight.shape[1]
    for edge in range(len(source)):
        stands.edge[target[edge]] = edge
    # Along the edges: what a point waits for stands for another already, if it does.
    for point in order:
        if stands.waits[point] == 1 and not fixed[point]:
            edge = stands.edge[point]
            stands.point[point] = stands.point[source[edge]]
            for part in range(parts):
                before = stands.later[source[edge], part]
                stands.later[point, part] = before + weight[edge, part]
    written = 0  # edges that stay, written over those read: never beyond the one at hand
    for edge in range(len(source)):
        if stands.point[target[edge]] == target[edge]:
            for part in range(parts):
                weight[written, part] = weight[edge, part] + stands.later[source[edge], part]
            source[written] = stands.point[source[edge]]
            target[written] = target[edge]
            written += 1
    return written


@hot_loop
def _no_shorter(weight: Matrix, edge: int, than: int) -> bool:
    for part in range(weight.shape[1]):  # noqa: SIM110  Numba has no generators
        if weight[edge, part] < weight[than, part]:
            return False
    return True


@hot_loop
def _between(weight: Matrix, low: int, middle: int, high: int) -> bool:
    """Whether some weighted mean of two edges is no shorter than ``middle``."""
    least, most = 0.0, 1.0  # weights of ``high`` at which the mean is no shorter in all parts
    for part in range(weight.shape[1]):
        gain = weight[high, part] - weight[low, part]
        need = weight[middle, part] - weight[low, part]
        if gain > 0:
            least = max(least, need / gain)
        elif gain < 0:
            most = min(most, need / gain)
        elif need > 0:
            return False
    return least <= most


@hot_loop
def _longest(edges: _Columns, stack: Longs, marks: Mask) -> None:  # noqa: C901  a hot loop
    source, target, weight = edges
    size = 0
    for edge in range(len(source)):
        if size and (source[stack[0]] != source[edge] or target[stack[0]] != target[edge]):
            for at in range(size):
                marks[stack[at]] = True
            size = 0
        # ``stack`` holds the edges between the two points at hand that are needed so far.
        needed = True
        for back in range(1, min(size, _COMPARED) + 1):
            if _no_shorter(weight, stack[size - back], edge):
                needed = False
                break
        if not needed:
            continue
        while size and (
            _no_shorter(weight, edge, stack[size - 1])
            or (size > 1 and _between(weight, stack[size - 2], stack[size - 1], edge))
        ):
            size -= 1
        stack[size] = edge
        size += 1
    for at in range(size):
        marks[stack[at]] = True


@hot_loop
def _way_no_shorter(weight: Matrix, first: int, second: int, edge: int) -> bool:
    """Whether two edges, one after the other, are no shorter than a third in any part."""
    for part in range(weight.shape[1]):
        if weight[first, part] + weight[second, part] < weight[edge, part]:
            return False
    return True


@hot_loop
def _direct(  # noqa: C901  a hot loop: a call per edge costs more than its work
    out: Longs, into: EdgeRows, edges: _Columns, first: Longs, needed: Mask
) -> None:
    """Fill ``needed``; ``first`` is scratch: the first edge to each point from the one at hand."""
    source, target, weight = edges
    for point in range(len(out) - 1):
        for edge in range(out[point + 1] - 1, out[point] - 1, -1):
            first[target[edge]] = edge
        for edge in range(out[point], out[point + 1]):
            end = target[edge]
            last = min(into.offset[end + 1], into.offset[end] + _COMPARED)
            for at in range(into.offset[end], last):
                second = into.edge[at]
                # Edges of a source come sorted by target: those to ``source[second]`` in a row.
                # Edges of a source come sorted by target: those to ``source[second]`` in a row.
                leading = first[source[second]]
                while (
                    leading >= 0 and leading < out[point + 1] and target[leading] == source[second]
                ):
                    if _way_no_shorter(weight, leading, second, edge):
                        needed[edge] = False
                        break
                    leading += 1
                if not needed[edge]:
                    break
        for edge in range(out[point], out[point + 1]):
            first[target[edge]] = -1


PARTS = (What.HOST, What.COMPUTE, What.COPY, What.BUS)
"""Parts of time that can be scaled by themselves; the rest never is.

What the bus limits is scaled with other copies, too. A step without it has no such part.
"""

_ROUNDS = 12
"""Rounds at most: each takes away what the one before made superfluous; four suffice as a rule."""


class _Web(NamedTuple):
    """Edges in no order: points ``source`` and ``target``, weights of shape ``(edges, parts)``."""

    source: Ints
    target: Ints
    weight: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Contracted:
    """Points in topological order: the first is the start of the step, the last its end.

    Of a step that ``repeats`` the first is the start of the step before, whose end is the last but
    one. Calls of both steps have the same numbers.

    Point ``v`` waits for ``source[offset[v]:offset[v + 1]]`` with weights of the same rows of
    ``weight``, shape ``(edges, 1 + len(parts))``: the first column is never scaled, the others
    belong to ``parts``. ``call`` is the call a point is the start of, -1 for none. ``ops`` is
    how many ops, and ``edges`` how many edges, it was contracted from.
    """

    parts: tuple[What, ...]
    call: Ints
    offset: Longs
    source: Ints
    weight: Floats
    ops: int
    edges: int
    repeats: bool = False

    def __len__(self) -> int:
        return len(self.call)

    @property
    def ratio(self) -> float:
        """Edges before for every edge now."""
        return self.edges / max(len(self.source), 1)


def contract(workload: Workload, parts: Sequence[What] = PARTS) -> Contracted:
    """Contract a workload; ``parts`` are those that are going to be scaled, fewer are faster.

    Raises
    ------
    DeadlockError
        If calls wait for each other in a cycle.
    """
    scaled = told_apart(workload, parts)
    if workload.repeats is None:
        web, steps = _web(workload, scaled), 1
    else:
        workload = without_backlog(workload)
        web, steps = _twice(workload, _web(workload, scaled), scaled), 2
    of_step = len(workload) + len(workload.calls)
    points = steps * of_step + 1 + steps
    order = _order(workload, web, points)
    fixed = np.ones(points, dtype=np.bool_)
    for step in range(steps):
        fixed[step * of_step : step * of_step + len(workload)] = False
    before, first = -1, True
    for _ in range(_ROUNDS):
        if len(web.source) == before:
            break
        before = len(web.source)
        for pulled in (forwards, backwards):
            fewer = _Web(*pulled(order, fixed, *web))
            if first or len(fewer.source) < len(web.source):  # else they are as they were
                web = _distinct(fewer)
            first = False
        # An edge is needed unless a way over a third point is as long; edges are sorted by source
        out, into = offsets_by_row(web.source, points), offsets_by_row(web.target, points)
        needed = direct(out, EdgeRows(into, np.argsort(web.target, kind="stable")), *web)
        web = _Web(web.source[needed], web.target[needed], web.weight[needed])
    return _compact(workload, web, order, scaled, steps)


def told_apart(workload: Workload, parts: Iterable[What]) -> tuple[What, ...]:
    """Return the parts, in order, that a contracted step has columns for."""
    has_bus = workload.over_bus.any()
    return tuple(sorted({part for part in parts if part != What.BUS or has_bus}))


def _web(workload: Workload, parts: tuple[What, ...]) -> _Web:
    """All edges of a workload: between ops, to and from calls, from the start and to the end.

    Points are ops, then calls, then the start and the end of the step.
    """
    ops, calls = len(workload), len(workload.calls)
    begin, finish = ops + calls, ops + calls + 1
    edges = workload.edges
    of = edges.source
    point = _end_points(workload)
    # A receiver that its message does not wait for stays a point, which comes after the message.
    after = np.flatnonzero(workload.unawaited)
    member = np.flatnonzero((workload.call >= 0) & ~workload.unawaited)
    leaf = np.flatnonzero(np.diff(edges.offset) == 0)
    first = np.flatnonzero((workload.ready > 0) | (workload.predecessors == 0))
    sent = ops + workload.call[after]
    source: list[NDArray[np.integer]] = [point[of], member, point[leaf], _all(begin, first), sent]
    target: list[NDArray[np.integer]] = [
        edges.target,
        point[member],
        _all(finish, leaf),
        first,
        after,
    ]
    weight: list[Floats] = [np.zeros((len(points), 1 + len(parts))) for points in source]
    # The latency of a launch is its host's.
    host = _columns(parts)[np.where(workload.what[of] == What.HOST, What.HOST, What.COLLECTIVE)]
    weight[0][np.arange(len(of)), host] += edges.lag
    weight[0] += _durations(workload, of, parts)
    weight[1][:, 0] = workload.calls.late[workload.call[member]]
    weight[2] = _durations(workload, leaf, parts)
    weight[3][:, 0] = workload.ready[first]
    return _Web(
        np.concatenate(source).astype(np.int32),
        np.concatenate(target).astype(np.int32),
        np.concatenate(weight),
    )


def _columns(parts: tuple[What, ...]) -> NDArray[np.intp]:
    """Return the column of weights that each part has, 0 where it is never scaled."""
    column = np.zeros(len(What), dtype=np.intp)
    column[list(parts)] = 1 + np.arange(len(parts))
    return column


def _durations(workload: Workload, ops: Ints | Longs, parts: tuple[What, ...]) -> Floats:
    """Durations of ops (s), in the columns of their parts, shape ``(ops, 1 + parts)``."""
    weight = np.zeros((len(ops), 1 + len(parts)))
    column = _columns(parts)
    of_part = column[workload.part[ops]]
    if What.BUS in parts:
        of_part[workload.over_bus[ops]] = column[What.BUS]
    weight[np.arange(len(ops)), of_part] = workload.duration[ops]
    return weight


def _end_points(workload: Workload) -> NDArray[np.integer]:
    """Return the point after which, by its duration, each op ends: the op, or the call's start."""
    point = np.arange(len(workload))
    member = np.flatnonzero((workload.call >= 0) & ~workload.unawaited)
    point[member] = len(workload) + workload.call[member]
    return point


def _twice(workload: Workload, web: _Web, parts: tuple[What, ...]) -> _Web:
    """Edges of two steps in a row, given those of one.

    Points are those of the first step, of the second, the start of the first, and the ends of both.
    The second starts where joints let it, and when no op of it was recorded to be ready.
    """
    of_step = len(workload) + len(workload.calls)
    begin, finish = of_step, of_step + 1
    source, target = web.source.astype(np.int64), web.target.astype(np.int64)
    later = source != begin
    joint = joints(workload)
    weight = _durations(workload, joint.source, parts)
    weight[:, 0] += joint.lag
    first_source = np.where(source == begin, 2 * of_step, source)
    first_target = np.where(target == finish, 2 * of_step + 1, target)
    next_target = np.where(target == finish, 2 * of_step + 2, target + of_step)[later]
    return _Web(
        np.concatenate(
            [first_source, source[later] + of_step, _end_points(workload)[joint.source]]
        ).astype(np.int32),
        np.concatenate([first_target, next_target, joint.target + of_step]).astype(np.int32),
        np.concatenate([web.weight, web.weight[later], weight]),
    )


def _all(point: int, others: NDArray[np.integer]) -> NDArray[np.integer]:
    return np.full(len(others), point)


def _order(workload: Workload, web: _Web, points: int) -> Ints:
    order: Ints = topological(points, web.source, web.target)
    if len(order) == points:
        return order
    stuck = np.setdiff1d(np.arange(len(workload), len(workload) + len(workload.calls)), order)
    stuck = stuck - len(workload)
    names = "; ".join(str(workload.call_view(int(call))) for call in stuck[:3])
    more = f" and {len(stuck) - 3} more" if len(stuck) > 3 else ""
    raise DeadlockError(f"calls wait for each other in a cycle: {names}{more}")


def _distinct(web: _Web) -> _Web:
    """Drop edges that others between the same points make superfluous."""
    # Sort edges by their ends, those between the same points the longest first. Most are the only
    # ones between their points, and need no comparison by weight.
    ends = web.source.astype(np.int64) * (int(web.target.max(initial=0)) + 1) + web.target
    order = np.argsort(ends, kind="stable")
    same = ends[order][1:] == ends[order][:-1]
    rows = np.flatnonzero(np.append(same, False) | np.append(False, same))
    several = order[rows]
    weight = web.weight[several]
    order[rows] = several[np.lexsort((-weight.sum(axis=1), -weight[:, 0], ends[several]))]
    web = _Web(web.source[order], web.target[order], web.weight[order])
    needed = longest(*web)
    return _Web(web.source[needed], web.target[needed], web.weight[needed])


def _compact(
    workload: Workload, web: _Web, order: Ints, parts: tuple[What, ...], steps: int
) -> Contracted:
    """Give numbers in topological order to what is left, and sort the edges by where they end.

    The ends of steps come last: nothing waits for them.
    """
    begin = len(order) - 1 - steps
    used = np.zeros(len(order), dtype=np.bool_)
    used[web.source] = used[web.target] = True
    used[begin:] = False
    middle = order[used[order]]
    points = np.concatenate([[begin], middle, np.arange(begin + 1, len(order))])
    number = np.empty(len(order), dtype=np.int32)
    number[points] = np.arange(len(points), dtype=np.int32)
    by_target = np.argsort(number[web.target], kind="stable")
    ops = len(workload)
    of_step = points % (ops + len(workload.calls)) if begin else points
    is_call = (of_step >= ops) & (points < begin)
    return Contracted(
        parts=parts,
        call=np.where(is_call, of_step - ops, -1).astype(np.int32),
        offset=offsets_by_row(number[web.target], len(points)),
        source=number[web.source[by_target]],
        weight=np.ascontiguousarray(web.weight[by_target]),
        ops=ops,
        edges=len(workload.edges.target),
        repeats=steps == 2,
    )
