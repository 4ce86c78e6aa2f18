"""Contraction: what happens between calls, as few weighted edges between few points.

A point of the contracted graph is the start of the step, its end, the start of a call, or an op
where times of different origin meet. All else is on the edges: an edge from ``u`` to ``v`` says
that ``v`` starts no earlier than its weight after ``u`` (after its *end*, where ``u`` is a call).
A weight is not a number but one per *part* of time that a what-if scales on its own (host,
compute, copy) and one for the rest, so the graph is exact whatever the factors are:

* a point that waits for one other only is that one, later; a point that one other only waits for
  is that one, earlier; the weights add up;
* an edge is dropped where another between the same points, or a way over a third, is at least as
  long in every part.

:func:`expand` gives every op its times back once the calls have theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.analytic.reduction import EdgeRows, backwards, direct, forwards, longest, topological
from simulator.engine.propagate import LocalTimes
from simulator.errors import DeadlockError
from simulator.workload import Floats, Ints, Offsets, What, Workload

PARTS = (What.HOST, What.COMPUTE, What.COPY)
"""Parts of time that can be told apart; what belongs to none of them is never scaled."""

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

    Point ``v`` waits for ``source[offset[v]:offset[v + 1]]`` with weights of the same rows of
    ``weight``, shape ``(edges, 1 + len(parts))``: the first column is never scaled, the others
    belong to ``parts``. ``call`` is the call a point is the start of, -1 for none. ``ops`` is
    how many ops, and ``edges`` how many edges, it was contracted from.
    """

    parts: tuple[What, ...]
    call: Ints
    offset: Offsets
    source: Ints
    weight: Floats
    ops: int
    edges: int

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
    asked = tuple(sorted(set(parts)))
    web = _web(workload, asked)
    points = len(workload) + len(workload.calls) + 2
    order = _order(workload, web, points)
    fixed = np.zeros(points, dtype=np.bool_)
    fixed[len(workload) :] = True
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
        web = _without(web, points)
    return _compact(workload, web, order, asked)


def expand(workload: Workload, call_end: Floats) -> tuple[Floats, Floats]:
    """Start and end of every op, given when the calls end (s)."""
    local = LocalTimes.of(workload, call_end=call_end)
    local.begin()
    return local.ops.start, local.ops.end


def _web(workload: Workload, parts: tuple[What, ...]) -> _Web:
    """All edges of a workload: between ops, to and from calls, from the start and to the end.

    Points are ops, then calls, then the start and the end of the step.
    """
    ops, calls = len(workload), len(workload.calls)
    begin, finish = ops + calls, ops + calls + 1
    edges = workload.edges
    of = edges.source
    # A receiver that its message does not wait for stays a point, which comes after the message.
    after = np.flatnonzero(workload.unawaited)
    member = np.flatnonzero((workload.call >= 0) & ~workload.unawaited)
    leaf = np.flatnonzero(np.diff(edges.offset) == 0)
    first = np.flatnonzero((workload.ready > 0) | (workload.predecessors == 0))
    point = np.arange(ops)
    point[member] = ops + workload.call[member]
    sent = ops + workload.call[after]
    source: list[NDArray[np.integer]] = [point[of], member, point[leaf], _all(begin, first), sent]
    target: list[NDArray[np.integer]] = [
        edges.target,
        point[member],
        _all(finish, leaf),
        first,
        after,
    ]
    column = np.zeros(len(What), dtype=np.intp)
    column[list(parts)] = 1 + np.arange(len(parts))
    weight: list[Floats] = [np.zeros((len(one), 1 + len(parts))) for one in source]
    host = column[np.where(workload.what[of] == What.HOST, What.HOST, What.COLLECTIVE)]
    weight[0][np.arange(len(of)), host] += edges.lag
    weight[0][np.arange(len(of)), column[workload.part[of]]] += workload.duration[of]
    weight[1][:, 0] = workload.calls.late[workload.call[member]]
    weight[2][np.arange(len(leaf)), column[workload.part[leaf]]] = workload.duration[leaf]
    weight[3][:, 0] = workload.ready[first]
    return _Web(
        np.concatenate(source).astype(np.int32),
        np.concatenate(target).astype(np.int32),
        np.concatenate(weight),
    )


def _all(point: int, others: NDArray[np.integer]) -> NDArray[np.integer]:
    return np.full(len(others), point)


def _order(workload: Workload, web: _Web, points: int) -> Ints:
    order: Ints = topological(points, web.source, web.target)
    if len(order) == points:
        return order
    stuck = np.setdiff1d(np.arange(len(workload), points - 2), order) - len(workload)
    names = "; ".join(str(workload.call_view(int(call))) for call in stuck[:3])
    more = f" and {len(stuck) - 3} more" if len(stuck) > 3 else ""
    raise DeadlockError(f"calls wait for each other in a cycle: {names}{more}")


def _distinct(web: _Web) -> _Web:
    """Drop edges that others between the same points make superfluous."""
    order = _by_ends(web)
    web = _Web(web.source[order], web.target[order], web.weight[order])
    kept = longest(*web)
    return _Web(web.source[kept], web.target[kept], web.weight[kept])


def _by_ends(web: _Web) -> NDArray[np.intp]:
    """Sort edges by their ends, those between the same points the longest first.

    Most are the only ones between their points, and need no comparison by weight.
    """
    ends = web.source.astype(np.int64) * (int(web.target.max(initial=0)) + 1) + web.target
    order = np.argsort(ends, kind="stable")
    same = ends[order][1:] == ends[order][:-1]
    rows = np.flatnonzero(np.append(same, False) | np.append(False, same))
    several = order[rows]
    weight = web.weight[several]
    order[rows] = several[np.lexsort((-weight.sum(axis=1), -weight[:, 0], ends[several]))]
    return order


def _without(web: _Web, points: int) -> _Web:
    """Drop edges that a way over a third point is no shorter than; edges come sorted by source."""
    out, into = np.zeros((2, points + 1), dtype=np.int64)
    np.cumsum(np.bincount(web.source, minlength=points), out=out[1:])
    np.cumsum(np.bincount(web.target, minlength=points), out=into[1:])
    kept = direct(out, EdgeRows(into, np.argsort(web.target, kind="stable")), *web)
    return _Web(web.source[kept], web.target[kept], web.weight[kept])


def _compact(workload: Workload, web: _Web, order: Ints, parts: tuple[What, ...]) -> Contracted:
    """Give numbers in topological order to what is left, and sort the edges by where they end."""
    begin, finish = len(order) - 2, len(order) - 1
    used = np.zeros(len(order), dtype=np.bool_)
    used[web.source] = used[web.target] = True
    used[begin] = used[finish] = False
    middle = order[used[order]]
    points = np.concatenate([[begin], middle, [finish]])
    number = np.empty(len(order), dtype=np.int32)
    number[points] = np.arange(len(points), dtype=np.int32)
    by_target = np.argsort(number[web.target], kind="stable")
    offset = np.zeros(len(points) + 1, dtype=np.int64)
    np.cumsum(np.bincount(number[web.target], minlength=len(points)), out=offset[1:])
    ops = len(workload)
    is_call = (points >= ops) & (points < begin)
    return Contracted(
        parts=parts,
        call=np.where(is_call, points - ops, -1).astype(np.int32),
        offset=offset,
        source=number[web.source[by_target]],
        weight=np.ascontiguousarray(web.weight[by_target]),
        ops=ops,
        edges=len(workload.edges.target),
    )
