"""Partners at distances that double or halve: log2 n steps.

The exchanges need n to be a power of two and refuse other groups; Thakur, Rabenseifner and Gropp
2005 (doi 10.1177/1094342005051521), section 4. The dissemination barrier takes any n.
"""

import numpy as np

from simulator.errors import ScheduleError
from simulator.schedule import Schedule, Step


def doubling_all_reduce(n: int) -> Schedule:
    """Partners at distance 1, 2, 4, … add what the other has: log2 n steps of S."""
    steps = tuple(
        _exchange(n, distance, block=1, parts=1, reduce=True)
        for distance in _distances("recursive_doubling all_reduce", n)
    )
    return Schedule("all_reduce", "recursive_doubling", ranks=n, chunks=1, parts=1, steps=steps)


def halving_reduce_scatter(n: int) -> Schedule:
    """Partners at distance n/2, n/4, … 1 give away the other's half of what is left."""
    steps = tuple(
        _exchange(n, distance, block=distance, parts=n, reduce=True)
        for distance in reversed(_distances("recursive_halving reduce_scatter", n))
    )
    return Schedule("reduce_scatter", "recursive_halving", ranks=n, chunks=n, parts=n, steps=steps)


def doubling_all_gather(n: int) -> Schedule:
    """Partners at distance 1, 2, 4, … send all they have: log2 n steps, the fewest bytes."""
    steps = tuple(
        _exchange(n, distance, block=distance, parts=n, reduce=False)
        for distance in _distances("recursive_doubling all_gather", n)
    )
    return Schedule("all_gather", "recursive_doubling", ranks=n, chunks=n, parts=n, steps=steps)


def halving_doubling_all_reduce(n: int) -> Schedule:
    """Halving reduce-scatter, then doubling all-gather: 2 log2 n steps, the fewest bytes.

    Known as Rabenseifner's algorithm.
    """
    _distances("halving_doubling all_reduce", n)
    steps = halving_reduce_scatter(n).steps + doubling_all_gather(n).steps
    return Schedule("all_reduce", "halving_doubling", ranks=n, chunks=n, parts=n, steps=steps)


def barrier(n: int) -> Schedule:
    """Tell the rank 1, 2, 4, … further on who has come: ceil(log2 n) steps, any n.

    The dissemination barrier of Hensgen, Finkel and Manber, Int. J. Parallel Programming 17
    (1988). Ranks hear of each other twice where n is no power of two, which a barrier permits.
    """
    rank = np.arange(n, dtype=np.int32)
    zero, one = np.zeros_like(rank), np.ones_like(rank)
    steps = tuple(
        Step(rank, (rank + np.int32(2**power)) % np.int32(n), zero, one, reduce=True)
        for power in range((n - 1).bit_length())
    )
    return Schedule("barrier", "dissemination", ranks=n, chunks=1, parts=1, steps=steps)


def _distances(name: str, n: int) -> tuple[int, ...]:
    if n < 1 or n & (n - 1):
        raise ScheduleError(f"{name} needs a power of two of ranks, not {n}")
    return tuple(2**power for power in range(n.bit_length() - 1))


def _exchange(n: int, distance: int, *, block: int, parts: int, reduce: bool) -> Step:
    """Partners at a distance exchange a block: the target's when adding, the own when copying."""
    source = np.arange(n, dtype=np.int32)
    target = source ^ np.int32(distance)
    chunk = (target if reduce else source) // np.int32(block) * np.int32(block) % np.int32(parts)
    return Step(source, target, chunk, np.full_like(source, block), reduce=reduce)
