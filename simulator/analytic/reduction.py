"""Hot loops over weighted edges that make them fewer, for :mod:`simulator.analytic.contraction`.

Edges are columns ``source``, ``target`` and ``weight`` of shape ``(edges, parts)``.
"""

# ruff: noqa: C901  hot loops: a call per edge costs more than its work

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.hot import hot_loop
from simulator.topological_order import topological_order as order_of
from simulator.workload import Ints, Matrix, Offsets

Mask = NDArray[np.bool_]

_COMPARED = 32
"""Edges an edge is compared with at most, so that the work stays linear."""


class EdgeRows(NamedTuple):
    """The edges of each point ``p``: ``edge[offset[p]:offset[p + 1]]``."""

    offset: Offsets
    edge: Offsets


class _Columns(NamedTuple):
    source: Ints
    target: Ints
    weight: Matrix


class _Stand(NamedTuple):
    """Per point: how many edges enter it, the last of them, what it stands for and how much later.

    A point that is itself stands for itself, 0 later.
    """

    waits: Ints
    edge: Offsets
    point: Ints
    later: Matrix


def topological(points: int, source: Ints, target: Ints) -> Ints:
    """Points in an order along the edges; fewer than all if there is a cycle."""
    begin = np.zeros(points + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=points), out=begin[1:])
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
    kept = _forwards(order, fixed, stands, _Columns(source, target, weight))
    return source[:kept], target[:kept], weight[:kept]


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
    kept = np.zeros(len(source), dtype=np.bool_)
    _longest(_Columns(source, target, weight), np.empty(len(source), dtype=np.int64), kept)
    return kept


def direct(out: Offsets, into: EdgeRows, source: Ints, target: Ints, weight: Matrix) -> Mask:
    """Mark the edges that no way over a third point replaces.

    ``out`` is where the edges of each source begin, ``into`` the same by target with their numbers.
    A dropped edge may still serve as part of such a way: what replaced it is no shorter.
    """
    kept = np.ones(len(source), dtype=np.bool_)
    first = np.full(len(out), -1)
    _direct(out, into, _Columns(source, target, weight), first, kept)
    return kept


@hot_loop
def _forwards(order: Ints, fixed: Mask, stands: _Stand, edges: _Columns) -> int:
    source, target, weight = edges
    parts = weight.shape[1]
    for edge in range(len(source)):
        stands.edge[target[edge]] = edge
    for point in order:
        if stands.waits[point] == 1 and not fixed[point]:
            edge = stands.edge[point]
            stands.point[point] = stands.point[source[edge]]
            for part in range(parts):
                before = stands.later[source[edge], part]
                stands.later[point, part] = before + weight[edge, part]
    kept = 0
    for edge in range(len(source)):
        if stands.point[target[edge]] == target[edge]:
            for part in range(parts):
                weight[kept, part] = weight[edge, part] + stands.later[source[edge], part]
            source[kept] = stands.point[source[edge]]
            target[kept] = target[edge]
            kept += 1
    return kept


@hot_loop
def _no_shorter(weight: Matrix, one: int, other: int) -> bool:
    for part in range(weight.shape[1]):  # noqa: SIM110  Numba has no generators
        if weight[one, part] < weight[other, part]:
            return False
    return True


@hot_loop
def _between(weight: Matrix, low: int, one: int, high: int) -> bool:
    """Whether some weighted mean of two edges is no shorter than ``one``."""
    least, most = 0.0, 1.0
    for part in range(weight.shape[1]):
        gain = weight[high, part] - weight[low, part]
        need = weight[one, part] - weight[low, part]
        if gain > 0:
            least = max(least, need / gain)
        elif gain < 0:
            most = min(most, need / gain)
        elif need > 0:
            return False
    return least <= most


@hot_loop
def _longest(edges: _Columns, stack: Offsets, kept: Mask) -> None:
    source, target, weight = edges
    size = 0
    for edge in range(len(source)):
        if size and (source[stack[0]] != source[edge] or target[stack[0]] != target[edge]):
            for at in range(size):
                kept[stack[at]] = True
            size = 0
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
        kept[stack[at]] = True


@hot_loop
def _way_no_shorter(weight: Matrix, one: int, second: int, edge: int) -> bool:
    """Whether two edges, one after the other, are no shorter than a third in any part."""
    for part in range(weight.shape[1]):
        if weight[one, part] + weight[second, part] < weight[edge, part]:
            return False
    return True


@hot_loop
def _direct(out: Offsets, into: EdgeRows, edges: _Columns, first: Offsets, kept: Mask) -> None:
    """Fill ``kept``; ``first`` is scratch: the first edge to each point from the one at hand."""
    source, target, weight = edges
    for point in range(len(out) - 1):
        for edge in range(out[point + 1] - 1, out[point] - 1, -1):
            first[target[edge]] = edge
        for edge in range(out[point], out[point + 1]):
            end = target[edge]
            last = min(into.offset[end + 1], into.offset[end] + _COMPARED)
            for at in range(into.offset[end], last):
                second = into.edge[at]
                one = first[source[second]]
                while one >= 0 and one < out[point + 1] and target[one] == source[second]:
                    if _way_no_shorter(weight, one, second, edge):
                        kept[edge] = False
                        break
                    one += 1
                if not kept[edge]:
                    break
        for edge in range(out[point], out[point + 1]):
            first[target[edge]] = -1
