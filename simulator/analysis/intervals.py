"""Unions of intervals of time, and what two of them have in common."""

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]
"""Disjoint intervals, sorted, shape ``(n, 2)``: start and end (s)."""


def union(start: NDArray[np.float64], end: NDArray[np.float64]) -> Intervals:
    """Disjoint intervals that cover the same time, sorted, shape ``(n, 2)``.

    Examples
    --------
    >>> union(np.array([4.0, 0.0, 1.0]), np.array([5.0, 2.0, 3.0])).tolist()
    [[0.0, 3.0], [4.0, 5.0]]
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if len(order) else end
    if not len(start):
        return np.empty((0, 2))
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([start[first], end[last]], axis=1)


def length(intervals: Intervals) -> float:
    """Time that disjoint intervals cover (s)."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def common(first: Intervals, second: Intervals) -> float:
    """Length of what two unions have in common: lengths add up, less what the union of both has."""
    return length(first) + length(second) - length(united(first, second))


def united(first: Intervals, second: Intervals) -> Intervals:
    """Union of two unions."""
    both = np.concatenate([first, second])
    return union(both[:, 0], both[:, 1])


def cover(
    intervals: Intervals, start: NDArray[np.float64], end: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How much of each span from ``start`` to ``end`` disjoint intervals cover (s).

    Examples
    --------
    >>> calls = np.array([[0.0, 3.0], [4.0, 5.0]])
    >>> cover(calls, np.array([2.0, 3.0]), np.array([6.0, 3.5])).tolist()
    [2.0, 0.0]
    """
    return _covered_before(intervals, end) - _covered_before(intervals, start)


def _covered_before(intervals: Intervals, time: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(intervals):
        return np.zeros(len(time))
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate([[0.0], np.cumsum(lengths)])
    begun = np.searchsorted(intervals[:, 0], time, side="right")
    last = np.maximum(begun - 1, 0)
    inside = np.minimum(time, intervals[last, 1]) - intervals[last, 0]
    return np.where(begun > 0, before[last] + inside, 0.0)
