"""Which rank does what: degrees of parallelism, coordinates of a rank, and the groups they form.

The order is Megatron-LM's (``tp-cp-ep-dp-pp``): tensor ranks are neighbours, pipeline stages are
farthest apart. Expert parallelism uses the ranks of a stage a second time. Where each expert is
divided over the ``tp`` ranks and ``ep`` divides ``dp``, ``ep`` neighbours of the ``dp`` replicas
share the experts among them. Otherwise ``ep`` neighbours (those of ``etp`` ranks each) among all
``dp x cp x tp`` ranks do, as in TorchTitan and with Megatron-Core's ``tp-ep`` folding (arXiv
2504.14960). With HSDP (``dp_replicate``) neighbours share shards, and replicas of them lie apart.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import WorkloadError

Ranks = NDArray[np.int64]


class Coordinates(NamedTuple):
    """A rank's position in every dimension of parallelism; ``ep`` is part of the others."""

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
    etp
        Tensor-parallel ranks that share one expert: ``tp``, or 1. None: ``tp`` where ``ep`` divides
        ``dp``, else 1.
    dp_replicate
        Replicas of the shards that ZeRO makes (HSDP): ``dp`` is ``dp_replicate`` times the ranks
        that share shards.

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
    etp: int | None = None
    dp_replicate: int = 1

    def __post_init__(self) -> None:
        for name in (*_DEGREES, "dp_replicate"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} {getattr(self, name)} must be at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise WorkloadError(f"zero {self.zero} is not a stage of ZeRO: 0, 1, 2 or 3")
        self._check_experts()
        self._check_replicas()
        if self.virtual > 1 and self.pp == 1:
            raise WorkloadError(f"virtual {self.virtual} needs pp of at least 2")
        if self.ep > 1 and self.tp > 1 and not self.sequence_parallel:
            raise WorkloadError("ep with tp needs sequence_parallel, or tokens are sent tp times")

    def _check_experts(self) -> None:
        if self.etp not in (None, 1, self.tp):
            raise WorkloadError(
                f"etp {self.etp}: an expert is on 1 or all of {self.tp} tensor ranks"
            )
        if self.etp not in (None, self.tp) and self.ep == 1:
            raise WorkloadError(f"etp {self.etp} means nothing without ep of 2 or more")
        if self.ranks_per_stage % (self.ep * self.expert_tp):
            if self.etp is not None and self.etp > 1:
                raise WorkloadError(
                    f"ep {self.ep} x etp {self.etp} does not divide dp x cp x tp = "
                    f"{self.ranks_per_stage}"
                )
            raise WorkloadError(
                f"ep {self.ep} does not divide dp {self.dp}, nor dp x cp x tp = "
                f"{self.dp} x {self.cp} x {self.tp} = {self.ranks_per_stage} ranks of a stage"
            )

    def _check_replicas(self) -> None:
        if self.dp_replicate == 1:
            return
        if self.dp % self.dp_replicate:
            raise WorkloadError(f"dp_replicate {self.dp_replicate} does not divide dp {self.dp}")
        if not self.zero:
            raise WorkloadError(
                f"dp_replicate {self.dp_replicate} says over how many replicas nothing is sharded, "
                "and without zero of 1 to 3 nothing is"
            )
        if self.ep > 1:
            raise WorkloadError("dp_replicate with ep: experts are sharded over all their replicas")

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel ranks that share one expert."""
        if self.etp is not None:
            return self.etp
        return 1 if self.dp % self.ep else self.tp

    @property
    def expert_replicas(self) -> int:
        """Ranks of a stage that hold the same experts."""
        return self.ranks_per_stage // (self.ep * self.expert_tp)

    @property
    def is_folded(self) -> bool:
        """Whether ranks that share out experts are neighbours among all ranks of a stage."""
        return self.expert_tp != self.tp or self.dp % self.ep != 0

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
        return self.dp * self.cp // self.dp_replicate

    @property
    def sequence_shards(self) -> int:
        """Ranks that share the tokens between two tensor-parallel parts of a layer."""
        return self.tp if self.sequence_parallel else 1

    def __str__(self) -> str:
        """Name the degrees that differ from one rank: ``tp8-cp2-dp4-pp16``."""
        named = [f"{name}{getattr(self, name)}" for name in _DEGREES if getattr(self, name) > 1]
        named += ["sp"] if self.sequence_parallel else []
        named += [f"zero{self.zero}"] if self.zero else []
        named += [f"etp{self.expert_tp}"] if self.ep > 1 and self.expert_tp != self.tp else []
        named += [f"hsdp{self.dp_replicate}"] if self.dp_replicate > 1 else []
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
    ep = int(ep_of(parallelism, np.array([rank]))[0])
    return Coordinates(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep)


def ep_of(parallelism: Parallelism, ranks: Ranks) -> Ranks:
    """Return the expert-parallel coordinate of ranks.

    Examples
    --------
    >>> ep_of(Parallelism(tp=2, dp=4, ep=2, sequence_parallel=True), np.arange(8)).tolist()
    [0, 0, 1, 1, 0, 0, 1, 1]
    >>> ep_of(Parallelism(tp=2, dp=2, ep=4, sequence_parallel=True), np.arange(4)).tolist()
    [0, 1, 2, 3]
    """
    p = parallelism
    if p.is_folded:
        return np.asarray(ranks % p.ranks_per_stage // p.expert_tp % p.ep, dtype=np.int64)
    replica: Ranks = ranks // (p.cp * p.tp) % p.dp
    return replica % p.ep


def rank_at(parallelism: Parallelism, at: Coordinates) -> int:
    """Return the rank with these coordinates; the inverse of :func:`coordinates`."""
    index = (at.pp, at.dp, at.cp, at.tp)
    return int(np.ravel_multi_index(index, _shape(parallelism)))


def groups(parallelism: Parallelism, label: str, stage: int) -> Ranks:
    """Return the groups of a label on a pipeline stage, shape ``(groups, members)``.

    ``tp``, ``cp`` and ``ep`` are the groups of those dimensions. ``dp`` has the ranks that hold
    the same weights, which context-parallel ranks do as well; of these, ``fsdp`` has those that
    share the shards of ZeRO, and ``hsdp`` those that hold the same shard. ``edp`` has those that
    hold the same experts.

    Examples
    --------
    >>> groups(Parallelism(tp=2, dp=2), "dp", 0).tolist()
    [[0, 2], [1, 3]]
    >>> groups(Parallelism(dp=4, zero=3, dp_replicate=2), "fsdp", 0).tolist()
    [[0, 1], [2, 3]]
    """
    p = parallelism
    shape: tuple[int, ...] = (p.dp_replicate, p.dp // p.dp_replicate, p.cp, p.tp)
    along: tuple[int, ...] = _MEMBERS[label]
    if label in _EXPERT_MEMBERS and p.is_folded:
        shape, along = (p.expert_replicas, p.ep, p.expert_tp), _EXPERT_MEMBERS[label]
    elif label in _EXPERT_MEMBERS:
        shape = (p.dp // p.ep, p.ep, p.cp, p.tp)
    members_last = np.moveaxis(stage_ranks(p, stage).reshape(shape), along, range(-len(along), 0))
    members = int(np.prod(members_last.shape[-len(along) :]))
    return np.asarray(members_last.reshape(-1, members), dtype=np.int64)


def stage_ranks(parallelism: Parallelism, stage: int) -> Ranks:
    """Return a stage's ranks; the ``i``-th of one stage sends to the ``i``-th of the next."""
    first = stage * parallelism.ranks_per_stage
    return np.arange(first, first + parallelism.ranks_per_stage)


_DEGREES = ("tp", "cp", "ep", "dp", "pp", "virtual")
_MEMBERS = {
    "tp": (3,),
    "cp": (2,),
    "dp": (0, 1, 2),
    "fsdp": (1, 2),
    "hsdp": (0,),
    "ep": (1,),
    "edp": (0, 2),
}
"""Dimensions along which a label's members lie: of a stage as (replicas of shards, ranks that share
them, cp, tp), those of experts as (replicas of experts, ep, cp, tp)."""
_EXPERT_MEMBERS = {"ep": (1,), "edp": (0,)}
"""The same where experts are spread over all ranks of a stage: (replicas of experts, ep, etp)."""


def _shape(parallelism: Parallelism) -> tuple[int, int, int, int]:
    return parallelism.pp, parallelism.dp, parallelism.cp, parallelism.tp
