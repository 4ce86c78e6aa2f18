"""Binomial trees: the fewest steps for one root, whole buffers in each.

Thakur, Rabenseifner and Gropp 2005 (doi 10.1177/1094342005051521), section 3; any n.
"""

from dataclasses import replace

import numpy as np

from simulator.schedule import Schedule, Step


def broadcast(n: int) -> Schedule:
    """Ranks that have it double in each step: ceil(log2 n) steps of S."""
    return Schedule("broadcast", "tree", ranks=n, chunks=1, parts=1, steps=_growth(n))


def reduce(n: int) -> Schedule:
    """Add up along the broadcast backwards: ceil(log2 n) steps of S."""
    return Schedule("reduce", "tree", ranks=n, chunks=1, parts=1, steps=_shrinkage(n))


def all_reduce(n: int) -> Schedule:
    """Reduce to rank 0, then broadcast: 2 ceil(log2 n) steps of S."""
    steps = _shrinkage(n) + _growth(n)
    return Schedule("all_reduce", "tree", ranks=n, chunks=1, parts=1, steps=steps)


def _growth(n: int) -> tuple[Step, ...]:
    steps = []
    have = 1
    while have < n:
        source = np.arange(min(have, n - have), dtype=np.int32)
        zero, one = np.zeros_like(source), np.ones_like(source)
        steps.append(Step(source, source + np.int32(have), zero, one, reduce=False))
        have *= 2
    return tuple(steps)


def _shrinkage(n: int) -> tuple[Step, ...]:
    return tuple(
        replace(step, source=step.target, target=step.source, reduce=True)
        for step in reversed(_growth(n))
    )
