"""Which rank does what: degrees of parallelism, coordinates of a rank, and the groups they form.

The order is Megatron-LM's (``tp-cp-ep-dp-pp``): tensor ranks are neighbours, pipeline stages are
farthest apart. Expert parallelism uses data-parallel ranks: of ``dp`` replicas, ``ep`` neighbours
share the experts among them.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import WorkloadError

Ranks = NDArray[np.int64]


class Coordinates(NamedTuple):
    """A rank's position in every dimension of parallelism; ``ep`` is part of ``dp``."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Degrees of parallelism of a job.

    Parameters
    ----------
    tp
        Tensor-parallel ranks, which share the matrices of a layer.
    cp
        Context-parallel ranks, which share the tokens of a sequence.
    ep
        Neighbours among the ``dp`` replicas that share the experts.
    dp
        Data-parallel replicas, which share the batch.
    pp
        Pipeline stages, which share the layers.
    virtual
        Chunks of layers on each stage (interleaved schedule).
    sequence_parallel
        Whether norms and residuals are sharded along the sequence over the ``tp`` ranks
        (arXiv 2205.05198).
    zero
        Stage of ZeRO (arXiv 1910.02054). Sharded over the replicas are: 0 nothing, 1 optimiser
        states, 2 gradients too, 3 weights too (FSDP).

    Raises
    ------
    WorkloadError
        If a degree is not a positive number, or degrees do not fit each other.

    Examples
    --------
    >>> str(Parallelism(tp=8, pp=4, dp=2, zero=1)), Parallelism(tp=8, pp=4, dp=2).ranks
    ('tp8-dp2-pp4-zero1', 64)
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    virtual: int = 1
    sequence_parallel: bool = False
    zero: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "ep", "dp", "pp", "virtual"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} {getattr(self, name)} must be at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise WorkloadError(f"zero {self.zero} is not a stage of ZeRO: 0, 1, 2 or 3")
        if self.dp % self.ep:
            raise WorkloadError(f"ep {self.ep} does not divide dp {self.dp}")
        if self.virtual > 1 and self.pp == 1:
            raise WorkloadError(f"virtual {self.virtual} needs pp of at least 2")
        if self.ep > 1 and self.tp > 1 and not self.sequence_parallel:
            raise WorkloadError("ep with tp needs sequence_parallel, or tokens are sent tp times")

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def ranks_per_stage(self) -> int:
        """Ranks of one pipeline stage, which are numbered consecutively."""
        return self.ranks // self.pp

    @property
    def chunks(self) -> int:
        """Chunks that the layers are divided into: chunk ``c`` is on stage ``c % pp``."""
        return self.pp * self.virtual

    @property
    def optimiser_shards(self) -> int:
        """Ranks that share one copy of the optimiser's states: with ``zero`` all replicas."""
        return self.shard_ranks if self.zero else 1

    @property
    def shard_ranks(self) -> int:
        """Ranks over which ZeRO shards what it shards."""
        return self.dp * self.cp

    @property
    def sequence_shards(self) -> int:
        """Ranks that share the tokens between two tensor-parallel parts of a layer."""
        return self.tp if self.sequence_parallel else 1

    def __str__(self) -> str:
        """Name the degrees that differ from one rank: ``tp8-cp2-dp4-pp16``."""
        degrees = [(f.name, getattr(self, f.name)) for f in fields(self)]
        named = [f"{name}{degree}" for name, degree in degrees[:6] if degree > 1]
        named += ["sp"] if self.sequence_parallel else []
        named += [f"zero{self.zero}"] if self.zero else []
        return "-".join(named) or "one rank"


def coordinates(parallelism: Parallelism, rank: int) -> Coordinates:
    """Return the coordinates of a rank.

    Raises
    ------
    WorkloadError
        If the job has no such rank.

    Examples
    --------
    >>> coordinates(Parallelism(tp=8, dp=2, pp=4), 17)
    Coordinates(tp=1, cp=0, dp=0, pp=1, ep=0)
    """
    if not 0 <= rank < parallelism.ranks:
        raise WorkloadError(f"rank {rank} is not one of {parallelism.ranks}")
    pp, dp, cp, tp = (int(index) for index in np.unravel_index(rank, _shape(parallelism)))
    return Coordinates(tp=tp, cp=cp, dp=dp, pp=pp, ep=dp % parallelism.ep)


def ep_of(parallelism: Parallelism, ranks: Ranks) -> Ranks:
    """Return the expert-parallel coordinate of ranks.

    Examples
    --------
    >>> ep_of(Parallelism(tp=2, dp=4, ep=2, sequence_parallel=True), np.arange(8)).tolist()
    [0, 0, 1, 1, 0, 0, 1, 1]
    """
    p = parallelism
    replica: Ranks = ranks // (p.cp * p.tp) % p.dp
    return replica % p.ep


def rank_at(parallelism: Parallelism, at: Coordinates) -> int:
    """Return the rank with these coordinates; the inverse of :func:`coordinates`."""
    index = (at.pp, at.dp, at.cp, at.tp)
    return int(np.ravel_multi_index(index, _shape(parallelism)))


def groups(parallelism: Parallelism, label: str, stage: int) -> Ranks:
    """Return the groups of a label on a pipeline stage, shape ``(groups, members)``.

    ``tp``, ``cp`` and ``ep`` are the groups of those dimensions. ``dp`` has the ranks that hold
    the same weights, which context-parallel ranks do as well; ``edp`` has those that hold the same
    experts.

    Examples
    --------
    >>> groups(Parallelism(tp=2, dp=2), "dp", 0).tolist()
    [[0, 2], [1, 3]]
    """
    p = parallelism
    job = np.arange(p.ranks).reshape(p.pp, p.dp // p.ep, p.ep, p.cp, p.tp)
    along = _MEMBERS[label]
    members_last = np.moveaxis(job[stage], along, range(-len(along), 0))
    members = int(np.prod(members_last.shape[-len(along) :]))
    return np.asarray(members_last.reshape(-1, members), dtype=np.int64)


def stage_ranks(parallelism: Parallelism, stage: int) -> Ranks:
    """Return a stage's ranks; the ``i``-th of one stage sends to the ``i``-th of the next."""
    first = stage * parallelism.ranks_per_stage
    return np.arange(first, first + parallelism.ranks_per_stage)


_MEMBERS = {"tp": (3,), "cp": (2,), "ep": (1,), "dp": (0, 1, 2), "edp": (0, 2)}
"""Dimensions of a stage (replicas of experts, ep, cp, tp) along which a label's members lie."""


def _shape(parallelism: Parallelism) -> tuple[int, int, int, int]:
    return parallelism.pp, parallelism.dp, parallelism.cp, parallelism.tp
