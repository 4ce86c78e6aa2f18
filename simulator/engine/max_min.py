"""Max-min fair shares: a pure function."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_SAME = 1e-12
"""Links whose levels differ by less than this fraction saturate together."""


def max_min_rates(
    links: Sequence[NDArray[np.int32]],
    weights: Sequence[NDArray[np.float64]],
    bandwidth: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rates of loads that share links max-min fairly, flow by flow.

    Load ``i`` at rate ``x`` puts ``weights[i][k] * x`` on link ``links[i][k]``: the flows of a
    load advance together, and each flow counts the same at a link (Bertsekas and Gallager, Data
    Networks, 1992, section 6.5.2, progressive filling).

    Parameters
    ----------
    links, weights
        By load: the links it uses, and what it puts on each per unit of its rate.
    bandwidth
        Of every link (B/s), shape ``(links,)``.

    Returns
    -------
    rates
        Of each load (B/s), shape ``(loads,)``.
    holds
        The bottleneck of each, shape ``(loads,)``.

    Examples
    --------
    Two flows on link 0 (3 B/s), one of them also on link 1 (1 B/s):

    >>> ones = np.ones(2)
    >>> rates, _ = max_min_rates(
    ...     [np.array([0], np.int32), np.array([0, 1], np.int32)],
    ...     [ones[:1], ones],
    ...     np.array([3.0, 1.0]),
    ... )
    >>> rates.tolist()
    [2.0, 1.0]
    """
    owner = np.repeat(np.arange(len(links)), [len(link) for link in links])
    used, link = np.unique(np.concatenate(links), return_inverse=True)
    weight = np.concatenate(weights)
    capacity = bandwidth[used].astype(np.float64)
    rates = np.zeros(len(links))
    holds = np.full(len(links), -1, dtype=np.int64)
    free = np.ones(len(links), dtype=bool)
    taken = np.zeros(len(used))
    while free.any():
        active = free[owner]
        demand = np.bincount(link[active], weights=weight[active], minlength=len(used))
        level = np.full(len(used), np.inf)
        np.divide(np.maximum(capacity - taken, 0.0), demand, out=level, where=demand > 0)
        lowest = level.min()
        full = level <= lowest * (1 + _SAME)
        at_full = active & full[link]
        stopped = np.unique(owner[at_full])
        rates[stopped] = lowest
        holds[owner[at_full]] = used[link[at_full]]
        free[stopped] = False
        now_fixed = active & ~free[owner]
        taken += np.bincount(
            link[now_fixed], weights=weight[now_fixed] * lowest, minlength=len(used)
        )
    return rates, holds
