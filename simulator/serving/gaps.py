"""Times between two tokens of a request: counted in bins, since a run has millions of them."""

import math

import numpy as np

from simulator.support.arrays import Floats
from simulator.support.compiled import hot_loop

GAP_BINS, LEAST_GAP, GAPS_PER_E = 1152, 1e-5, 64
"""Bins of times between tokens: 64 for each factor of e, from 10 us to 650 s."""


@hot_loop
def gap_bin(gap: float) -> int:
    """Return the bin of a time (s)."""
    return min(int(math.log(max(gap, LEAST_GAP) / LEAST_GAP) * GAPS_PER_E), GAP_BINS - 1)


def gap_quantile(gaps: Floats, quantile: float | None) -> float:
    """Return a quantile of the times between tokens (s), to 1.6 %; None: the mean.

    Examples
    --------
    >>> counts = np.zeros(GAP_BINS)
    >>> counts[int(math.log(0.02 / LEAST_GAP) * GAPS_PER_E)] = 5
    >>> 0.0198 < gap_quantile(counts, 0.5) < 0.0202
    True
    """
    total = gaps.sum()
    if not total:
        return 0.0
    centres = LEAST_GAP * np.exp((np.arange(GAP_BINS) + 0.5) / GAPS_PER_E)
    if quantile is None:
        return float((gaps * centres).sum() / total)
    return float(centres[np.searchsorted(np.cumsum(gaps), quantile * total)])
