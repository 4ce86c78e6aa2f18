"""Put the clocks of several hosts on one: a collective ends everywhere at the same time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ENOUGH = 3
"""Fewer common collectives than this say nothing about a clock."""
_SPREAD = 3.0
"""An offset counts when it exceeds this many median deviations of the ends it is read from."""


def offsets(ends: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """How far each rank's clock is ahead of the ranks' median clock (s), shape ``(ranks,)``.

    ``ends[k]`` has one entry per rank: when collective ``k`` ended by that rank's clock, NaN for a
    rank that is not in it. The ends of one collective differ by how the ring drains, a few
    microseconds; an offset within that spread is left alone.
    """
    table = np.array(ends, dtype=np.float64)
    if not table.size:
        return np.zeros(0)
    result = np.zeros(table.shape[1])
    relative = table - np.nanmedian(table, axis=1, keepdims=True)
    for rank in range(table.shape[1]):
        own = relative[~np.isnan(relative[:, rank]), rank]
        if len(own) >= _ENOUGH:
            offset = float(np.median(own))
            spread = float(np.median(np.abs(own - offset)))
            result[rank] = offset if abs(offset) > _SPREAD * spread else 0.0
    return result
