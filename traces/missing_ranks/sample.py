"""Which ranks of a job will do, because the others do the same in the same time.

A sample is worth its while only where the ranks that it leaves out were seen to be like those in
it: here each is held against the one whose copy would stand in for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.support.arrays import Floats
from simulator.support.errors import TraceError
from simulator.support.quantities import format_ranks
from simulator.workload import What, Workload
from traces.missing_ranks.replicate import models

_ALIKE = 0.01
"""Ranks whose work differs by less than this part of the step do the same in the same time: replays
are off by more."""
_FEWEST = 16
"""Ranks of the smallest job for which advice is of use: fewer are read in seconds."""
_MOST = 64
"""Ranks of the largest sample that is tried: each is held against all others."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Ranks that will do, and by how much the work of others differs, as a part of the step."""

    ranks: tuple[int, ...]
    job_ranks: int
    off: float

    def sentence(self) -> str:
        """Say it as advice."""
        ranks = format_ranks(self.ranks)
        which = f"rank {ranks}" if len(self.ranks) == 1 else f"one of ranks {ranks}"
        return (
            f"each of the {self.job_ranks:,} ranks does what {which} does, in the same time to"
            f" {100 * self.off:.2g} % of the step: --ranks {ranks} gives the same answers, with"
            " wider intervals, where calls take as long as modelled"
        )


def sample_of(workload: Workload, step: float) -> Sample | None:
    """Find the fewest of the first ranks of a job that stand for all; None where they do not."""
    is_whole = workload.ranks == tuple(range(workload.job_ranks))
    if not is_whole or workload.job_ranks < _FEWEST or not step > 0:
        return None
    work, programs = _work(workload), list(_programs(workload))
    size = 1
    while 2 * size <= workload.job_ranks and size <= _MOST:
        ranks = frozenset(range(size))
        try:
            copies = models(workload, sample=ranks)
        except TraceError:  # the groups of these ranks do not say what the others do
            copies = {}
        if copies and all(programs[rank] == programs[model] for rank, model in copies.items()):
            difference = work[list(copies)] - work[list(copies.values())]
            off = float(np.abs(difference).max() / step)
            if off < _ALIKE:
                return Sample(tuple(sorted(ranks)), workload.job_ranks, off)
        size *= 2
    return None


def _work(workload: Workload) -> Floats:
    """How long each rank works at each kind of op, and pauses after ops (s)."""
    ranks, kinds = workload.job_ranks, len(What)
    work = np.zeros((ranks, kinds + 1))
    row = workload.rank.astype(np.int64) * kinds + workload.part
    times = np.bincount(row, weights=workload.duration, minlength=ranks * kinds)
    work[:, :kinds] = times.reshape(ranks, kinds)
    sources = workload.rank[workload.edges.source]
    work[:, kinds] = np.bincount(sources, weights=workload.edges.lag, minlength=ranks)
    return work


def _programs(workload: Workload) -> Iterator[tuple[bytes, ...]]:
    """Yield what each rank does, in the order of its ops, and what its calls are."""
    order = np.argsort(workload.rank, kind="stable")
    bounds = np.searchsorted(workload.rank[order], np.arange(workload.job_ranks + 1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        ops = order[first:last]
        calls = workload.call[ops[workload.call[ops] >= 0]]
        columns = (workload.what[ops], workload.name[ops], workload.calls.kind[calls])
        yield (*(column.tobytes() for column in columns), workload.calls.size[calls].tobytes())
