"""Stragglers removed: what every rank does, every rank does in the median time."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.workload import What, Workload


@dataclass(frozen=True, slots=True, eq=False)
class Evened:
    """A workload without stragglers: ``ops`` were compared over ``ranks``.

    ``latest`` is how much later than the first the last rank started (s).
    """

    workload: Workload
    ops: int
    ranks: int
    latest: float


def evened(workload: Workload) -> Evened:
    """Give like ops of all ranks their median duration, and let all ranks start with the first.

    Like are ops of one name that occur equally often on every rank: the n-th of each. Ops that
    only some ranks have (stages of a pipeline, a rank that logs) keep their duration.
    """
    ranks = len(workload.ranks)
    alike = _alike(workload)
    duration = workload.duration.copy()
    table = duration[alike]
    duration[alike] = np.median(table, axis=1, keepdims=True) if len(alike) else table
    late = _late(workload)
    ready = np.maximum(0.0, workload.ready - late[np.searchsorted(workload.ranks, workload.rank)])
    result = replace(workload, duration=duration, ready=ready)
    return Evened(result, int(alike.size), ranks, float(late.max(initial=0.0)))


def _alike(workload: Workload) -> NDArray[np.int64]:
    """Rows of like ops, one column per rank, shape ``(likes, ranks)``."""
    ranks = len(workload.ranks)
    ops = np.flatnonzero(workload.what < What.COLLECTIVE)
    kind = workload.name[ops].astype(np.int64) * len(What) + workload.what[ops]
    rank = np.searchsorted(workload.ranks, workload.rank[ops])
    ops = ops[np.lexsort((ops, rank, kind))]
    kinds, which = np.unique(np.sort(kind), return_inverse=True)
    rank = np.searchsorted(workload.ranks, workload.rank[ops])
    counts = np.bincount(which * ranks + rank, minlength=len(kinds) * ranks).reshape(-1, ranks)
    common = (counts == counts[:, :1]).all(axis=1) & (counts[:, 0] > 0)
    ops, rank = ops[common[which]], rank[common[which]]
    # In order of kind, then place, and each rank has as many of each kind: the n-th is the n-th.
    found = [ops[rank == one] for one in range(ranks)]
    return np.stack(found, axis=1) if found else np.empty((0, 0), dtype=np.int64)


def _late(workload: Workload) -> NDArray[np.float64]:
    """How much later than the first rank each begins: its earliest op that waits for nobody (s)."""
    begins = np.full(len(workload.ranks), np.inf)
    first = np.flatnonzero(workload.predecessors == 0)
    rank = np.searchsorted(workload.ranks, workload.rank[first])
    np.minimum.at(begins, rank, workload.ready[first])
    begins[np.isinf(begins)] = 0.0
    return np.asarray(begins - begins.min(initial=np.inf))
