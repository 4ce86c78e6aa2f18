"""Passes over weighted edges that make them fewer: the compiled part of :mod:`simulator.contract`.

Edges are columns ``source``, ``target`` and ``weight`` of shape ``(edges, parts)``.
"""

# ruff: noqa: C901  kernels: a call per edge costs more than its work
# mypy: disable-error-code="no-untyped-def"

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.order import topological as order_of
from simulator.workload import Floats, Ints

_COMPARED = 32
"""Edges an edge is compared with at most, so that the work stays linear."""


def topological(points: int, source: Ints, target: Ints) -> Ints:
    """Points in an order along the edges; fewer than all if there is a circle."""
    begin = np.zeros(points + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=points), out=begin[1:])
    order: Ints = order_of(begin, target[np.argsort(source, kind="stable")])
    return order


@njit(cache=True)
def forwards(order, fixed, source, target, weight):
    """Replace points that wait for one other only by that one, and later."""
    points, parts = len(order), weight.shape[1]
    waits = np.zeros(points, dtype=np.int32)
    edge_of = np.zeros(points, dtype=np.int64)
    for edge in range(len(source)):
        waits[target[edge]] += 1
        edge_of[target[edge]] = edge
    stands_for = np.arange(points).astype(np.int32)
    later = np.zeros((points, parts))
    for point in order:
        if waits[point] == 1 and not fixed[point]:
            edge = edge_of[point]
            stands_for[point] = stands_for[source[edge]]
            later[point] = later[source[edge]] + weight[edge]
    kept = 0
    for edge in range(len(source)):
        if stands_for[target[edge]] == target[edge]:
            weight[kept] = weight[edge] + later[source[edge]]
            source[kept] = stands_for[source[edge]]
            target[kept] = target[edge]
            kept += 1
    return source[:kept], target[:kept], weight[:kept]


def backwards(
    order: Ints, fixed: NDArray[np.bool_], source: Ints, target: Ints, weight: Floats
) -> tuple[Ints, Ints, Floats]:
    """Replace points that one other only waits for by that one, and earlier."""
    turned = np.ascontiguousarray(order[::-1])
    target, source, weight = forwards(turned, fixed, target, source, weight)
    return source, target, weight


@njit(cache=True)
def _no_shorter(one, other):
    for part in range(len(one)):  # noqa: SIM110  Numba has no generators
        if one[part] < other[part]:
            return False
    return True


@njit(cache=True)
def _between(low, one, high):
    """Whether some weighted mean of ``low`` and ``high`` is no shorter than ``one``."""
    least, most = 0.0, 1.0
    for part in range(len(one)):
        gain, need = high[part] - low[part], one[part] - low[part]
        if gain > 0:
            least = max(least, need / gain)
        elif gain < 0:
            most = min(most, need / gain)
        elif need > 0:
            return False
    return least <= most


@njit(cache=True)
def longest(source, target, weight):
    """Mark the edges to keep; those between the same points come together, by their first part.

    What two edges are longer than at any factors is never the longest: a mean of both is no
    shorter. With one scaled part this finds all such edges, with more those that it meets.
    """
    kept = np.zeros(len(source), dtype=np.bool_)
    stack = np.empty(len(source), dtype=np.int64)
    size = 0
    for edge in range(len(source)):
        if size and (source[stack[0]] != source[edge] or target[stack[0]] != target[edge]):
            kept[stack[:size]] = True
            size = 0
        needed = True
        for back in range(1, min(size, _COMPARED) + 1):
            if _no_shorter(weight[stack[size - back]], weight[edge]):
                needed = False
                break
        if not needed:
            continue
        while size and (
            _no_shorter(weight[edge], weight[stack[size - 1]])
            or (
                size > 1
                and _between(weight[stack[size - 2]], weight[stack[size - 1]], weight[edge])
            )
        ):
            size -= 1
        stack[size] = edge
        size += 1
    kept[stack[:size]] = True
    return kept


@njit(cache=True)
def direct(out, into, source, target, weight):
    """Mark the edges that no way over a third point replaces.

    ``out`` is where the edges of each source begin, ``into`` the same by target with their numbers.
    A dropped edge may still serve as part of such a way: what replaced it is no shorter.
    """
    kept = np.ones(len(source), dtype=np.bool_)
    offset, row = into
    first = np.full(len(out), -1)
    for point in range(len(out) - 1):
        for edge in range(out[point + 1] - 1, out[point] - 1, -1):
            first[target[edge]] = edge
        for edge in range(out[point], out[point + 1]):
            end = target[edge]
            for at in range(offset[end], min(offset[end + 1], offset[end] + _COMPARED)):
                second = row[at]
                one = first[source[second]]
                while one >= 0 and one < out[point + 1] and target[one] == source[second]:
                    if _no_shorter(weight[one] + weight[second], weight[edge]):
                        kept[edge] = False
                        break
                    one += 1
                if not kept[edge]:
                    break
        for edge in range(out[point], out[point + 1]):
            first[target[edge]] = -1
    return kept
