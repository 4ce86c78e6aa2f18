"""algbw and busbw of a collective, and lower bounds on its bytes.

``size`` is S of nccl-tests doc/PERFORMANCE.md, in bytes: the larger of a rank's input and output.
For all-gather that is the output, for reduce-scatter the input, each n times a rank's share.
"""

import math
from collections.abc import Callable

from simulator.shares import Shares
from simulator.support.errors import ScheduleError

_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: float(n > 1),
    "reduce": lambda n: float(n > 1),
    "send_receive": lambda n: float(n > 1),
    "barrier": lambda _: 0.0,
}


def algbw(size: float, time: float) -> float:
    """Algorithm bandwidth S/t (nccl-tests doc/PERFORMANCE.md).

    Returns
    -------
    float
        B/s; infinite if the time is 0: a single rank has nothing to send.

    Examples
    --------
    >>> algbw(1e9, 0.01)
    100000000000.0
    """
    if not time:
        return math.inf if size else 0.0
    return size / time


def busbw(kind: str, *, size: float, n: int, time: float, shares: Shares | None = None) -> float:
    """Bus bandwidth: algbw times the factor of the kind (nccl-tests doc/PERFORMANCE.md).

    Without in-network reduction it cannot exceed what a rank's port carries in one direction.

    Parameters
    ----------
    kind
        Of the collective: a key of :data:`collectives.COLLECTIVES`.
    size
        S of nccl-tests (B).
    n
        Ranks of the group.
    time
        Of the call (s).
    shares
        Of an all-to-all with unequal bytes per pair.

    Returns
    -------
    float
        B/s.

    Raises
    ------
    ScheduleError
        If the kind is unknown.

    Examples
    --------
    >>> busbw("all_reduce", size=1e9, n=8, time=0.01)
    175000000000.0
    """
    factor = busbw_factor(kind, n, shares)
    return factor and algbw(size, time) * factor


def busbw_factor(kind: str, n: int, shares: Shares | None = None) -> float:
    """Return the fewest bytes through the busiest port in one direction, as a share of ``size``.

    nccl-tests doc/PERFORMANCE.md, and the code of its gather, scatter and sendrecv tests. A barrier
    moves nothing, and a single rank sends nothing. For an all-to-all with unequal bytes per pair it
    is the share of the busiest port, as (n-1)/n is with equal ones.

    Raises
    ------
    ScheduleError
        If the kind is unknown.
    """
    if kind not in _FACTORS:
        raise ScheduleError(f"kind {kind!r} is not one of {', '.join(_FACTORS)}")
    return _FACTORS[kind](n) if shares is None else shares.port


def least_bytes(kind: str, *, size: float, n: int) -> float:
    """Return the fewest bytes that the busiest rank sends or receives, whichever is more.

    Chan, Heimlich, Purkayastha and van de Geijn, Concurrency Computat.: Pract. Exper. 19 (2007),
    doi 10.1002/cpe.1206, table 1 (lower bounds); for all-reduce Patarasuk and Yuan, J. Parallel
    Distrib. Comput. 69 (2009), doi 10.1016/j.jpdc.2008.09.002. Valid where switches do not compute.
    """
    return size * busbw_factor(kind, n)
