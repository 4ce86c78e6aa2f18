"""Which rank holds what: degrees of parallelism, coordinates of a rank, and the groups they make.

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
    """Where a rank stands in every dimension; ``ep`` is part of ``dp``."""

    tp: int
    cp: int
    dp: int
    pp: int
    ep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Degrees of parallelism.

    ``tp`` cuts matrices, ``cp`` sequences, ``pp`` layers into stages of ``virtual`` chunks each,
    ``dp`` the batch; ``ep`` spreads experts over that many of the ``dp`` replicas.
    ``sequence_parallel`` cuts norms and residuals along the sequence over the ``tp`` ranks
    (arXiv 2205.05198). ``zero`` is the stage of ZeRO (arXiv 1910.02054): 0 shares nothing out over
    the replicas, 1 optimiser states, 2 gradients too, 3 weights too (FSDP).

    Raises
    ------
    WorkloadError
        If a degree is not a positive number, or degrees do not fit each other.
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
        """Ranks of one pipeline stage; those of a stage are numbered in a row."""
        return self.ranks // self.pp

    @property
    def chunks(self) -> int:
        """Pieces the layers are cut into: chunk ``c`` is on stage ``c % pp``."""
        return self.pp * self.virtual

    @property
    def sharded(self) -> int:
        """Ranks that share one copy of the optimiser's states where ``zero`` is 1 or more."""
        return self.dp * self.cp if self.zero else 1

    @property
    def tokens_cut(self) -> int:
        """Ranks that share the tokens between two tensor-parallel parts."""
        return self.tp if self.sequence_parallel else 1

    def __str__(self) -> str:
        """Name what differs from one rank: ``tp8-cp2-dp4-pp16``."""
        degrees = [(f.name, getattr(self, f.name)) for f in fields(self)]
        said = [f"{name}{degree}" for name, degree in degrees[:6] if degree > 1]
        said += ["sp"] if self.sequence_parallel else []
        said += [f"zero{self.zero}"] if self.zero else []
        return "-".join(said) or "one rank"


def coordinates(parallelism: Parallelism, rank: int) -> Coordinates:
    """Where a rank stands.

    Examples
    --------
    >>> coordinates(Parallelism(tp=8, dp=2, pp=4), 17)
    Coordinates(tp=1, cp=0, dp=0, pp=1, ep=0)
    """
    if not 0 <= rank < parallelism.ranks:
        raise WorkloadError(f"rank {rank} is not one of {parallelism.ranks}")
    pp, dp, cp, tp = (int(one) for one in np.unravel_index(rank, _shape(parallelism)))
    return Coordinates(tp=tp, cp=cp, dp=dp, pp=pp, ep=dp % parallelism.ep)


def rank_at(parallelism: Parallelism, at: Coordinates) -> int:
    """Which rank stands there; the inverse of :func:`coordinates`."""
    place = (at.pp, at.dp, at.cp, at.tp)
    return int(np.ravel_multi_index(place, _shape(parallelism)))


def groups(parallelism: Parallelism, label: str, stage: int) -> Ranks:
    """Return the groups of a label on a pipeline stage, shape ``(groups, members)``.

    ``tp``, ``cp`` and ``ep`` are the groups of those dimensions. ``dp`` has the ranks that hold
    the same weights, which context parallelism adds to; ``edp`` has those that hold the same
    experts.
    """
    p = parallelism
    job = np.arange(p.ranks).reshape(p.pp, p.dp // p.ep, p.ep, p.cp, p.tp)
    moved = np.moveaxis(job[stage], _MEMBERS[label], range(-len(_MEMBERS[label]), 0))
    members = int(np.prod(moved.shape[-len(_MEMBERS[label]) :]))
    return np.asarray(moved.reshape(-1, members), dtype=np.int64)


def stage_ranks(parallelism: Parallelism, stage: int) -> Ranks:
    """Return a stage's ranks; the ``i``-th of one stage passes on to the ``i``-th of the next."""
    first = stage * parallelism.ranks_per_stage
    return np.arange(first, first + parallelism.ranks_per_stage)


_MEMBERS = {"tp": (3,), "cp": (2,), "ep": (1,), "dp": (0, 1, 2), "edp": (0, 2)}
"""Dimensions of a stage (replicas of experts, ep, cp, tp) along which a label's members lie."""


def _shape(parallelism: Parallelism) -> tuple[int, int, int, int]:
    return parallelism.pp, parallelism.dp, parallelism.cp, parallelism.tp
