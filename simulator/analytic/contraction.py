"""Contraction: the ops between calls, as a graph of few points and weighted edges.

A point of the contracted graph is the start or the end of the step, the start of a call, or an op
with several predecessors that matter. All else is in the edges: an edge from ``u`` to ``v`` means
that ``v`` starts no earlier than its weight after ``u`` (after the *end* of ``u`` if that is a
call). A weight is a vector: a number per *part* of time that a what-if scales by itself (host,
compute, copy), and one for the rest. So the graph is exact for all factors:

* a point with a single predecessor is merged into that, and one with a single successor into that;
  weights add up;
* an edge is dropped if a parallel edge, or a path over a third point, is at least as long in every
  part.

A step that repeats is contracted with the step before it (:mod:`simulator.engine.next_step`): its
period is the time between the ends of the two.

The hot loops take edges as columns ``source``, ``target`` and ``weight`` of shape
``(edges, parts)``.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.engine.next_step import joints, without_backlog
from simulator.support.arrays import Floats, Ints, Longs, Mask, Matrix, offsets_by_row
from simulator.support.compiled import hot_loop
from simulator.support.errors import DeadlockError
from simulator.workload import What, Workload, topological_order

_COMPARED = 32
"""Most edges that one edge is compared with, so that the work stays linear."""


class EdgeRows(NamedTuple):
    """The edges of each point ``p``: ``edge[offset[p]:offset[p + 1]]``."""

    offset: Longs
    edge: Longs


class _Edges(NamedTuple):
    """Unordered edges: points ``source`` and ``target``, weights of shape ``(edges, parts)``."""

    source: Ints
    target: Ints
    weight: Matrix

    def taken(self, rows: Mask | Longs | slice) -> "_Edges":
        """Return some of the edges, or all in another order."""
        return _Edges(self.source[rows], self.target[rows], self.weight[rows])

    def turned(self) -> "_Edges":
        """Return all edges in the other direction."""
        return _Edges(self.target, self.source, self.weight)


class _Merged(NamedTuple):
    """Per point: its number of predecessors, its last edge, the point it is merged into, the delay.

    A point that is not merged is its own ``point``, with ``later`` 0.
    """

    waits: Ints
    edge: Longs
    point: Ints
    later: Matrix


def _merged(edges: _Edges, order: Ints, fixed: Mask) -> _Edges:
    """Merge points with a single predecessor into that; the columns are overwritten.

    ``order`` is a topological order of the points, ``fixed`` marks those that must stay.
    """
    points = len(order)
    stands = _Merged(
        waits=np.bincount(edges.target, minlength=points).astype(np.int32),
        edge=np.zeros(points, dtype=np.int64),
        point=np.arange(points, dtype=np.int32),
        later=np.zeros((points, edges.weight.shape[1])),
    )
    return edges.taken(slice(_merge_forwards(order, fixed, stands, edges)))


@hot_loop
def _merge_forwards(order: Ints, fixed: Mask, stands: _Merged, edges: _Edges) -> int:
    source, target, weight = edges
    parts = weight.shape[1]
    for edge in range(len(source)):
        stands.edge[target[edge]] = edge
    # In topological order, so that a point's predecessor has been merged before it, if at all.
    for point in order:
        if stands.waits[point] == 1 and not fixed[point]:
            edge = stands.edge[point]
            stands.point[point] = stands.point[source[edge]]
            for part in range(parts):
                before = stands.later[source[edge], part]
                stands.later[point, part] = before + weight[edge, part]
    written = 0  # kept edges overwrite those already read: never beyond the one being read
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
def _mean_no_shorter(weight: Matrix, low: int, middle: int, high: int) -> bool:
    """Whether some weighted mean of ``low`` and ``high`` is no shorter than ``middle``."""
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
def _mark_longest(edges: _Edges, stack: Longs, marks: Mask) -> None:
    """Mark the parallel edges that are the longest at some factors.

    Parallel edges must be adjacent, sorted by their first part. An edge is never the longest if a
    weighted mean of two others is no shorter in any part. With one scaled part all such edges are
    found, with more parts those that are compared.
    """
    source, target, weight = edges
    size = 0
    for edge in range(len(source)):
        if size and (source[stack[0]] != source[edge] or target[stack[0]] != target[edge]):
            for at in range(size):
                marks[stack[at]] = True
            size = 0
        # ``stack`` holds the parallel edges between the present two points that are needed so far.
        needed = True
        for back in range(1, min(size, _COMPARED) + 1):
            if _no_shorter(weight, stack[size - back], edge):
                needed = False
                break
        if not needed:
            continue
        while size and (
            _no_shorter(weight, edge, stack[size - 1])
            or (size > 1 and _mean_no_shorter(weight, stack[size - 2], stack[size - 1], edge))
        ):
            size -= 1
        stack[size] = edge
        size += 1
    for at in range(size):
        marks[stack[at]] = True


@hot_loop
def _path_no_shorter(weight: Matrix, first: int, second: int, edge: int) -> bool:
    """Whether a path of two edges is no shorter than a third edge in any part."""
    for part in range(weight.shape[1]):
        if weight[first, part] + weight[second, part] < weight[edge, part]:
            return False
    return True


@hot_loop
def _mark_without_detours(
    out: Longs, into: EdgeRows, edges: _Edges, first: Longs, needed: Mask
) -> None:
    """Unmark the edges that a path over a third point replaces.

    ``out`` are the offsets of edges by source, ``into`` the edges by target; ``first`` is scratch:
    the first edge from the present point to each. A dropped edge may still be part of such a path,
    because what replaces it is no shorter.
    """
    source, target, weight = edges
    for point in range(len(out) - 1):
        for edge in range(out[point + 1] - 1, out[point] - 1, -1):
            first[target[edge]] = edge
        for edge in range(out[point], out[point + 1]):
            end = target[edge]
            last = min(into.offset[end + 1], into.offset[end] + _COMPARED)
            for at in range(into.offset[end], last):
                second = into.edge[at]
                # Edges of a source are sorted by target: those to ``source[second]`` are adjacent.
                leading = first[source[second]]
                while (
                    leading >= 0 and leading < out[point + 1] and target[leading] == source[second]
                ):
                    if _path_no_shorter(weight, leading, second, edge):
                        needed[edge] = False
                        break
                    leading += 1
                if not needed[edge]:
                    break
        for edge in range(out[point], out[point + 1]):
            first[target[edge]] = -1


PARTS = (What.HOST, What.COMPUTE, What.COPY, What.BUS)
"""Parts of time that can be scaled by themselves.

Copies over the bus are scaled both with other copies and by themselves; a step without any has no
such part.
"""

_MOST_ROUNDS = 12
"""Most rounds: each drops what the one before made redundant; four usually suffice."""


class Contracted(Struct, frozen=True, eq=False):
    """Points in topological order: the first is the start of the step, the last its end.

    Of a step that ``repeats`` the first point is the start of the step before, whose end is the
    last but one. Calls of both steps have the same numbers.

    Point ``v`` waits for ``source[offset[v]:offset[v + 1]]``, equal ones in a row, with the same
    rows of ``weight``, shape ``(edges, 1 + len(parts))``: the first column is never scaled, the
    others belong to ``parts``. ``call`` is the call that starts at a point, -1 for none; ``like``
    one with the times of each call, None: itself. ``ops`` and ``edges`` count those contracted.
    """

    parts: tuple[What, ...]
    call: Ints
    offset: Longs
    source: Ints
    weight: Floats
    ops: int
    edges: int
    repeats: bool = False
    like: Longs | None = None

    def __len__(self) -> int:
        return len(self.call)

    @property
    def ratio(self) -> float:
        """Edges before for every edge now."""
        return self.edges / max(len(self.source), 1)


def contract(workload: Workload, parts: Sequence[What] = PARTS) -> Contracted:
    """Contract a workload; ``parts`` are those that will be scaled: fewer are faster.

    Raises
    ------
    DeadlockError
        If calls wait for each other in a cycle.
    """
    scaled = scaled_parts(workload, parts)
    if workload.repeats is None:
        web, steps = _edge_list(workload, scaled), 1
    else:
        workload = without_backlog(workload)
        web, steps = _two_steps(workload, _edge_list(workload, scaled), scaled), 2
    of_step = len(workload) + len(workload.calls)
    points = steps * of_step + 1 + steps
    order = _order(workload, web, points)
    fixed = np.ones(points, dtype=np.bool_)
    for step in range(steps):
        fixed[step * of_step : step * of_step + len(workload)] = False
    before, first = -1, True
    backwards = np.ascontiguousarray(order[::-1])
    for _ in range(_MOST_ROUNDS):
        if len(web.source) == before:
            break
        before = len(web.source)
        for turn in (False, True):  # into predecessors; with all edges turned, into successors
            if turn:
                fewer = _merged(web.turned(), backwards, fixed).turned()
            else:
                fewer = _merged(web, order, fixed)
            if first or len(fewer.source) < len(web.source):  # else nothing was merged
                web = _drop_parallel(fewer)
            first = False
        # An edge is needed unless a path over a third point is as long; edges are sorted by source
        out, into = offsets_by_row(web.source, points), offsets_by_row(web.target, points)
        needed = np.ones(len(web.source), dtype=np.bool_)
        by_target = EdgeRows(into, np.argsort(web.target, kind="stable"))
        _mark_without_detours(out, by_target, web, np.full(len(out), -1), needed)
        web = web.taken(needed)
    return _renumbered(workload, web, order, scaled, steps)


def scaled_parts(workload: Workload, parts: Iterable[What]) -> tuple[What, ...]:
    """Return the sorted parts that have a column of their own in a contracted step."""
    has_bus = workload.over_bus.any()
    return tuple(sorted({part for part in parts if part != What.BUS or has_bus}))


def _edge_list(workload: Workload, parts: tuple[What, ...]) -> _Edges:
    """All edges of a workload: between ops, to and from calls, from the start and to the end.

    Points are ops, then calls, then the start and the end of the step.
    """
    ops, calls = len(workload), len(workload.calls)
    begin, finish = ops + calls, ops + calls + 1
    edges = workload.edges
    of = edges.source
    point = _end_points(workload)
    # The receiver of an eager message stays a point, which comes after the message.
    after = np.flatnonzero(workload.unawaited)
    member = np.flatnonzero((workload.call >= 0) & ~workload.unawaited)
    leaf = np.flatnonzero(np.diff(edges.offset) == 0)
    first = np.flatnonzero((workload.ready > 0) | (workload.predecessors == 0))
    sent = ops + workload.call[after]
    source = [point[of], member, point[leaf], np.full(len(first), begin), sent]
    target = [edges.target, point[member], np.full(len(leaf), finish), first, after]
    ends = np.cumsum([len(points) for points in source])
    weight = np.zeros((ends[-1], 1 + len(parts)))
    _add_durations(weight[: ends[0]], workload, of, parts)
    # The lag of a launch scales with the host.
    host = _columns(parts)[np.where(workload.what[of] == What.HOST, What.HOST, What.COLLECTIVE)]
    weight[np.arange(ends[0]), host] += edges.lag
    weight[ends[0] : ends[1], 0] = workload.calls.late[workload.call[member]]
    _add_durations(weight[ends[1] : ends[2]], workload, leaf, parts)
    weight[ends[2] : ends[3], 0] = workload.ready[first]
    return _Edges(
        np.concatenate(source, dtype=np.int32, casting="same_kind"),
        np.concatenate(target, dtype=np.int32, casting="same_kind"),
        weight,
    )


def _columns(parts: tuple[What, ...]) -> NDArray[np.intp]:
    """Return the column of weights that each part has, 0 where it is never scaled."""
    column = np.zeros(len(What), dtype=np.intp)
    column[list(parts)] = 1 + np.arange(len(parts))
    return column


def _add_durations(
    weight: Floats, workload: Workload, ops: Ints | Longs, parts: tuple[What, ...]
) -> None:
    """Add durations of ops (s) in the columns of their parts, shape ``(ops, 1 + parts)``."""
    column = _columns(parts)
    of_part = column[workload.part[ops]]
    if What.BUS in parts:
        of_part[workload.over_bus[ops]] = column[What.BUS]
    weight[np.arange(len(ops)), of_part] += workload.duration[ops]


def _end_points(workload: Workload) -> NDArray[np.integer]:
    """Return the point from which an op's duration counts: the op itself, or its call's start."""
    point = np.arange(len(workload))
    member = np.flatnonzero((workload.call >= 0) & ~workload.unawaited)
    point[member] = len(workload) + workload.call[member]
    return point


def _two_steps(workload: Workload, web: _Edges, parts: tuple[What, ...]) -> _Edges:
    """Edges of two successive steps, given those of one.

    Points are those of the first step, of the second, the start of the first, and the ends of both.
    The joints between the steps, not recorded ready times, decide when the second starts.
    """
    of_step = len(workload) + len(workload.calls)
    begin, finish = of_step, of_step + 1
    source, target = web.source.astype(np.int64), web.target.astype(np.int64)
    later = source != begin
    joint = joints(workload)
    weight = np.zeros((len(joint.source), 1 + len(parts)))
    _add_durations(weight, workload, joint.source, parts)
    weight[:, 0] += joint.lag
    first_source = np.where(source == begin, 2 * of_step, source)
    first_target = np.where(target == finish, 2 * of_step + 1, target)
    next_target = np.where(target == finish, 2 * of_step + 2, target + of_step)[later]
    return _Edges(
        np.concatenate(
            [first_source, source[later] + of_step, _end_points(workload)[joint.source]]
        ).astype(np.int32),
        np.concatenate([first_target, next_target, joint.target + of_step]).astype(np.int32),
        np.concatenate([web.weight, web.weight[later], weight]),
    )


def _order(workload: Workload, web: _Edges, points: int) -> Ints:
    by_source = np.argsort(web.source, kind="stable")
    order: Ints = topological_order(offsets_by_row(web.source, points), web.target[by_source])
    if len(order) == points:
        return order
    stuck = np.setdiff1d(np.arange(len(workload), len(workload) + len(workload.calls)), order)
    stuck = stuck - len(workload)
    names = "; ".join(str(workload.call_view(int(call))) for call in stuck[:3])
    more = f" and {len(stuck) - 3} more" if len(stuck) > 3 else ""
    raise DeadlockError(f"calls wait for each other in a cycle: {names}{more}")


def _drop_parallel(web: _Edges) -> _Edges:
    """Drop parallel edges that are never the longest."""
    # Edges are sorted by their ends, parallel ones from the longest; most have no parallel one and
    # need no comparison by weight.
    ends = web.source.astype(np.int64) * (int(web.target.max(initial=0)) + 1) + web.target
    order = np.argsort(ends, kind="stable")
    same = ends[order][1:] == ends[order][:-1]
    rows = np.flatnonzero(np.append(same, False) | np.append(False, same))
    several = order[rows]
    weight = web.weight[several]
    order[rows] = several[np.lexsort((-weight.sum(axis=1), -weight[:, 0], ends[several]))]
    web = web.taken(order)
    needed = np.zeros(len(web.source), dtype=np.bool_)
    _mark_longest(web, np.empty(len(web.source), dtype=np.int64), needed)
    return web.taken(needed)


def _renumbered(
    workload: Workload, web: _Edges, order: Ints, parts: tuple[What, ...], steps: int
) -> Contracted:
    """Renumber the remaining points in topological order, and sort the edges by target.

    Parallel edges stay adjacent. The ends of steps come last: nothing waits for them.
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
