"""Closed forms: what each algorithm takes on a fully connected network.

``size`` is S of nccl-tests (bytes), ``alpha`` the latency (s) and ``bandwidth`` that of the link
between any two ranks, one way (B/s), of Hockney's model: a message of m bytes takes
``alpha + m / bandwidth`` (Parallel Computing 20, 1994). A rank may use all its links at once, and
adding costs nothing.

Sources, where a docstring names no other: Thakur, Rabenseifner and Gropp, Int. J. High Perform.
Comput. Appl. 19 (2005), doi 10.1177/1094342005051521 (TRG); Chan, Heimlich, Purkayastha and van de
Geijn, Concurrency Computat.: Pract. Exper. 19 (2007), doi 10.1002/cpe.1206 (CHPG).
"""

from typing import Protocol

import numpy as np

from collectives.algorithms.ring import PIPELINE
from simulator.schedule import Schedule


class Cost(Protocol):
    """A closed form in seconds."""

    def __call__(self, *, size: float, n: int, alpha: float, bandwidth: float) -> float:
        """Seconds for ``n`` ranks."""


def time_on_full_mesh(schedule: Schedule, *, size: float, alpha: float, bandwidth: float) -> float:
    """Time of a schedule, added up from its steps: each lasts as long as its busiest link."""
    seconds = 0.0
    for step in schedule.steps:
        link = step.source.astype(np.int64) * schedule.ranks + step.target
        chunks = np.bincount(link, weights=schedule.units(step)).max()
        seconds += step.repeats * (alpha + chunks * size / schedule.parts / bandwidth)
    return seconds


def ring_half(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``(n-1)(alpha + S/(n B))``: all-gather (TRG 4.1), reduce-scatter; pairwise all-to-all."""
    return (n - 1) * (alpha + size / n / bandwidth)


def ring_all_reduce(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``2(n-1)(alpha + S/(n B))`` (CHPG: bucket algorithms)."""
    return 2 * ring_half(size=size, n=n, alpha=alpha, bandwidth=bandwidth)


def bruck(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``Σ_k (alpha + c_k S/(n B))``: c_k of the distances 1 … n-1 have bit k set."""
    moved = sum(distance.bit_count() for distance in range(n))
    return (n - 1).bit_length() * alpha + moved * size / n / bandwidth


def neighbours_all_to_all(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``(n-1) alpha + (n-1)/2 S/B``: all-to-all by neighbours only."""
    return (n - 1) * (alpha + size / 2 / bandwidth)


def chain(*, size: float, n: int, alpha: float, bandwidth: float, chunks: int = PIPELINE) -> float:
    """``(c+n-2)(alpha + S/(c B))``: a chain of n-1 hops, c chunks one behind the other."""
    return (chunks + n - 2) * (alpha + size / chunks / bandwidth) if n > 1 else 0.0


def direct_half(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``alpha + S/(n B)``: every rank's share goes to where it belongs, all at once."""
    return alpha + size / n / bandwidth if n > 1 else 0.0


def two_shot(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``2(alpha + S/(n B))``."""
    return 2 * direct_half(size=size, n=n, alpha=alpha, bandwidth=bandwidth)


def one_message(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``alpha + S/B``: one message of everything (send/receive, one-shot all-reduce)."""
    return alpha + size / bandwidth if n > 1 else 0.0


def doubling(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``ceil(log2 n)(alpha + S/B)``: binomial trees (TRG 3), recursive doubling (TRG 4.5)."""
    return (n - 1).bit_length() * (alpha + size / bandwidth)


def tree_all_reduce(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``2 ceil(log2 n)(alpha + S/B)``: reduce, then broadcast."""
    return 2 * doubling(size=size, n=n, alpha=alpha, bandwidth=bandwidth)


def halving(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``log2 n alpha + (n-1)/n S/B``: recursive halving and doubling of blocks (TRG 4)."""
    return (n - 1).bit_length() * alpha + (n - 1) / n * size / bandwidth


def halving_doubling(*, size: float, n: int, alpha: float, bandwidth: float) -> float:
    """``2 log2 n alpha + 2(n-1)/n S/B``: Rabenseifner's all-reduce (TRG 4.5)."""
    return 2 * halving(size=size, n=n, alpha=alpha, bandwidth=bandwidth)


def hierarchical_half(
    levels: tuple[int, ...], *, size: float, alpha: float, bandwidth: float
) -> float:
    """``Σ (n_i - 1)(alpha + S/(n_1 … n_i B))``: a ring on each level, of what is left."""
    seconds, share = 0.0, size
    for n in levels:
        seconds += ring_half(size=share, n=n, alpha=alpha, bandwidth=bandwidth)
        share /= n
    return seconds


def hierarchical_all_reduce(
    levels: tuple[int, ...], *, size: float, alpha: float, bandwidth: float
) -> float:
    """Twice :func:`hierarchical_half`: out by reduce-scatter, back by all-gather."""
    return 2 * hierarchical_half(levels, size=size, alpha=alpha, bandwidth=bandwidth)


COSTS: dict[str, dict[str, Cost]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "two_shot": two_shot,
        "one_shot": one_message,
        "tree": tree_all_reduce,
        "recursive_doubling": doubling,
        "halving_doubling": halving_doubling,
    },
    "all_gather": {
        "ring": ring_half,
        "direct": direct_half,
        "recursive_doubling": halving,
        "pat": halving,
    },
    "reduce_scatter": {
        "ring": ring_half,
        "direct": direct_half,
        "recursive_halving": halving,
        "pat": halving,
    },
    "all_to_all": {
        "direct": direct_half,
        "pairwise": ring_half,
        "bruck": bruck,
        "ring": neighbours_all_to_all,
    },
    "broadcast": {"ring": chain, "tree": doubling, "scatter_gather": two_shot},
    "reduce": {"ring": chain, "tree": doubling, "scatter_gather": two_shot},
    "gather": {"direct": direct_half},
    "scatter": {"direct": direct_half},
    "barrier": {"dissemination": doubling},
    "send_receive": {"direct": one_message},
}
"""The closed form of each of :data:`collectives.select.ALGORITHMS`, by kind and name."""
