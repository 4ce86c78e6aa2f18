"""Partners at distances that double or halve: about log2 n steps.

The exchanges need a power of two as n and refuse other groups; Thakur, Rabenseifner and Gropp 2005
(doi 10.1177/1094342005051521), section 4. The dissemination barrier, Bruck's all-to-all and PAT
take any n: a chunk's distance from source to target is written in binary, and the chunk makes one
hop for each bit that is set, so that in each step a rank sends to one rank at distance 2^k.
"""

import numpy as np

from simulator.schedule import Schedule, Step
from simulator.support.arrays import Ints
from simulator.support.errors import ScheduleError


def doubling_all_reduce(n: int) -> Schedule:
    """Partners at distance 1, 2, 4, … add each other's buffers: log2 n steps of S."""
    steps = tuple(
        _exchange(n, distance, block=1, parts=1, reduce=True)
        for distance in _distances("recursive_doubling all_reduce", n)
    )
    return Schedule("all_reduce", "recursive_doubling", ranks=n, chunks=1, parts=1, steps=steps)


def halving_doubling_all_reduce(n: int) -> Schedule:
    """Halving reduce-scatter, then doubling all-gather: 2 log2 n steps, the fewest bytes.

    Known as Rabenseifner's algorithm. Halves are exchanged at distance 1, quarters at 2, and so on:
    the most bytes travel the shortest distance, and the all-gather reverses all steps. In step k a
    rank keeps the half given by bit k of its number, so its block begins at the reversed bits.
    """
    powers = range(len(_distances("halving_doubling all_reduce", n)))
    rank = np.arange(n, dtype=np.int32)
    halved = [
        sum(((rank >> bit & 1) * (n >> bit + 1) for bit in range(power + 1)), np.zeros_like(rank))
        for power in powers
    ]
    halving, doubling = [], []
    for power in powers:
        partner, block = rank ^ np.int32(1 << power), np.full_like(rank, n >> power + 1)
        halving.append(Step(rank, partner, halved[power][partner], block, reduce=True))
        doubling.append(Step(rank, partner, halved[power], block, reduce=False))
    steps = (*halving, *reversed(doubling))
    return Schedule("all_reduce", "halving_doubling", ranks=n, chunks=n, parts=n, steps=steps)


def halving_reduce_scatter(n: int) -> Schedule:
    """Partners at distance n/2, n/4, … 1 send the other's half of the remaining block."""
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


def _distances(name: str, n: int) -> tuple[int, ...]:
    """Return the distances 1, 2, 4, … n/2; ``name`` is the algorithm in errors."""
    if n < 1 or n & (n - 1):
        raise ScheduleError(f"{name} needs a power of two of ranks, not {n}")
    return tuple(2**power for power in range(n.bit_length() - 1))


def _exchange(n: int, distance: int, *, block: int, parts: int, reduce: bool) -> Step:
    """Partners at a distance exchange a block: the target's to add, the source's to copy."""
    source = np.arange(n, dtype=np.int32)
    # Partners differ in one bit of their numbers.
    target = source ^ np.int32(distance)
    chunk = (target if reduce else source) // np.int32(block) * np.int32(block) % np.int32(parts)
    return Step(source, target, chunk, np.full_like(source, block), reduce=reduce)


def barrier(n: int) -> Schedule:
    """Notify the rank 1, 2, 4, … further on of all arrivals so far: ceil(log2 n) steps, any n.

    The dissemination barrier of Hensgen, Finkel and Manber, Int. J. Parallel Programming 17 (1988).
    If n is not a power of two, ranks receive some notices twice, which a barrier permits.
    """
    rank = np.arange(n, dtype=np.int32)
    zero, single = np.zeros_like(rank), np.ones_like(rank)
    steps = tuple(
        Step(rank, (rank + np.int32(2**power)) % np.int32(n), zero, single, reduce=True)
        for power in range((n - 1).bit_length())
    )
    return Schedule("barrier", "dissemination", ranks=n, chunks=1, parts=1, steps=steps)


def bruck_all_to_all(n: int) -> Schedule:
    """Hops of 1, 2, 4, …: ceil(log2 n) steps of at most n/2 chunks, lg n / 2 times the bytes.

    Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE Trans. Parallel Distrib. Syst. 8 (1997), doi
    10.1109/71.642949, section 3 with radix 2.
    """
    distance = np.arange(1, n, dtype=np.int32)
    steps = []
    for bit in range((n - 1).bit_length()):
        hop = np.int32(1 << bit)
        # A chunk at distance d from its target hops once for each bit of d, the lowest bit first;
        # `moved & (hop - 1)` is the distance that it has covered.
        moving = distance[distance & hop > 0]
        holder, moved = (part.ravel() for part in np.meshgrid(np.arange(n, dtype=np.int32), moving))
        source = (holder - (moved & (hop - np.int32(1)))) % np.int32(n)
        chunk = source * np.int32(n) + (source + moved) % np.int32(n)
        steps.append(_hop(holder, hop, chunk, n))
    return Schedule("all_to_all", "bruck", ranks=n, chunks=n * n, parts=n, steps=tuple(steps))


def pat_all_gather(n: int, most: int | None = None) -> Schedule:
    """Trees from all ranks at once, the farthest hop first: ceil(log2 n) steps, fewest bytes.

    ``most`` limits the chunks of a message, as NCCL's buffers do, at the cost of more steps.
    Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv
    2506.20252; NCCL since 2.23.
    """
    return Schedule("all_gather", "pat", ranks=n, chunks=n, parts=n, steps=_pat(n, most))


def pat_reduce_scatter(n: int, most: int | None = None) -> Schedule:
    """Reverse the all-gather and add up: the nearest hop first."""
    steps = tuple(
        Step(step.target, step.source, step.chunk, step.count, reduce=True)
        for step in reversed(_pat(n, most))
    )
    return Schedule("reduce_scatter", "pat", ranks=n, chunks=n, parts=n, steps=steps)


def _pat(n: int, most: int | None) -> tuple[Step, ...]:
    """Before the step of hop 2^k, chunks have reached the multiples of 2^(k+1) as distances."""
    if most is not None and most < 1:
        raise ScheduleError(f"pat needs a message of at least one chunk, not {most}")
    steps = []
    for bit in reversed(range((n - 1).bit_length())):
        hop = np.int32(1 << bit)
        # Distances that a chunk has reached and from which a hop stays within n.
        receiver = np.arange(0, n - hop, 2 * hop, dtype=np.int32)
        width = most or len(receiver)
        for first in range(0, len(receiver), width):
            ranks = np.arange(n, dtype=np.int32)
            holder, gone = (part.ravel() for part in np.meshgrid(ranks, receiver[first:][:width]))
            steps.append(_hop(holder, hop, (holder - gone) % np.int32(n), n))
    return tuple(steps)


def _hop(source: Ints, hop: np.int32, chunk: Ints, n: int) -> Step:
    return Step(source, (source + hop) % np.int32(n), chunk, np.ones_like(source), reduce=False)
