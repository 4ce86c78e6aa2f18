"""Put the clocks of several hosts on one: a collective ends everywhere at the same time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ENOUGH = 3
"""Fewer common collectives than this say nothing about two clocks."""
_STAMP = 1e-9
"""No offset is less than this (s): profilers stamp whole nanoseconds."""
_SPREAD = 3.0
"""An offset counts when it exceeds this many median deviations of the ends it is read from."""


def offsets(ends: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """How far each rank's clock is ahead of the ranks' median clock (s), shape ``(ranks,)``.

    ``ends[k]`` has one entry per rank: when collective ``k`` ended by that rank's clock, NaN for a
    rank that is not in it. The ends of one collective differ by how the ring drains, a few
    microseconds; an offset within that spread is left alone.

    Two ranks of a collective compare their clocks directly, and through others where they share
    none (tensor-parallel on a host, data-parallel across): the offsets are those that fit all
    comparisons best. Ranks that nothing connects are compared with their own side only.
    """
    table = np.array(ends, dtype=np.float64)
    if not table.size:
        return np.zeros(0)
    first, second, ahead, spread = _comparisons(table)
    ranks = table.shape[1]
    if not len(first):
        return np.zeros(ranks)
    rows = np.arange(len(first))
    signs = np.zeros((len(first), ranks))
    signs[rows, second], signs[rows, first] = 1.0, -1.0
    fit = np.asarray(np.linalg.lstsq(signs, ahead, rcond=None)[0], dtype=np.float64)
    doubt = np.zeros(ranks)
    np.maximum.at(doubt, second, spread)
    return _centred(fit, doubt, first, second)


def _comparisons(
    table: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Pairs of ranks, how far the second is ahead of the first, and the spread of that (s).

    Every member of a collective is compared with its first member.
    """
    known = ~np.isnan(table)
    lead = known.argmax(axis=1)
    relative = table - table[np.arange(len(table)), lead][:, None]
    pairs = []
    for first in np.unique(lead).tolist():
        own = lead == first
        for second in np.flatnonzero(known[own].any(axis=0)).tolist():
            seen = relative[own & known[:, second], second]
            if second != first and len(seen) >= _ENOUGH:
                middle = float(np.median(seen))
                pairs.append((first, second, middle, float(np.median(np.abs(seen - middle)))))
    columns = np.array(pairs, dtype=np.float64).reshape(-1, 4).T
    return columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2], columns[3]


def _centred(
    fit: NDArray[np.float64],
    doubt: NDArray[np.float64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Offsets from the median clock of all that were compared with one another."""
    side = np.arange(len(fit))
    for _ in side:
        joined = side.copy()
        np.minimum.at(joined, first, side[second])
        np.minimum.at(joined, second, side[first])
        if np.array_equal(joined, side):
            break
        side = joined
    result = np.zeros(len(fit))
    for one in np.unique(side[np.concatenate([first, second])]).tolist():
        own = side == one
        result[own] = fit[own] - np.median(fit[own])
        least = max(_SPREAD * float(doubt[own].max()), _STAMP)
        result[own & (np.abs(result) <= least)] = 0.0
    return result
