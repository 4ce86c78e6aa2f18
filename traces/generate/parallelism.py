"""Degrees of parallelism, groups of ranks, and schedules of pipelines.

The order is Megatron-LM's (``tp-cp-ep-dp-pp``): tensor ranks are neighbours, pipeline stages are
farthest apart. Expert parallelism uses the ranks of a stage a second time. Where each expert is
divided over the ``tp`` ranks and ``ep`` divides ``dp``, ``ep`` neighbours of the ``dp`` replicas
share the experts among them. Otherwise ``ep`` neighbours (those of ``etp`` ranks each) among all
``dp x cp x tp`` ranks do, as in TorchTitan and with Megatron-Core's ``tp-ep`` folding (arXiv
2504.14960). With HSDP (``dp_replicate``) neighbours share shards, and replicas of them lie apart.

A schedule is the order in which a stage works: slots of micro-batches, as published. Chunk ``c`` of
a stage is the ``c``-th of its chunks of layers; without interleaving there is one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.errors import WorkloadError, check_types

Ranks = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Degrees of parallelism of a job.

    Parameters
    ----------
    tp
        Tensor-parallel ranks, which share the matrices of a layer.
    cp
        Context-parallel ranks, which share the tokens of a sequence; of prompts in serving.
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
        check_counts(self, *_DEGREES, *["etp"] * (self.etp is not None), "dp_replicate")
        check_types(self)
        refuse(self._misfits())

    def _misfits(self) -> Iterator[tuple[object, str]]:
        """Yield what must not be, each with the reason."""
        etp, ranks, copies = self.etp, self.ranks_per_stage, self.dp_replicate
        yield self.zero not in range(4), f"zero {self.zero} is not a stage of ZeRO: 0, 1, 2 or 3"
        yield etp and self.tp % etp, f"etp {etp}: it must divide the {self.tp} tensor ranks"
        yield etp not in (None, self.tp) and self.ep == 1, f"etp {etp} needs ep of 2 or more"
        if ranks % (self.ep * self.expert_tp):
            yield (
                (etp or 1) > 1,
                f"ep {self.ep} x etp {etp} does not divide dp x cp x tp = {ranks}",
            )
            yield (
                True,
                f"ep {self.ep} does not divide dp {self.dp}, nor dp x cp x tp = "
                f"{self.dp} x {self.cp} x {self.tp} = {ranks} ranks of a stage",
            )
        if copies > 1:
            yield self.dp % copies, f"dp_replicate {copies} does not divide dp {self.dp}"
            yield (
                not self.zero,
                f"dp_replicate {copies} needs zero of 1 to 3: without it nothing is sharded",
            )
            yield self.ep > 1, "dp_replicate with ep: experts are sharded over all their replicas"
        yield self.virtual > 1 and self.pp == 1, f"virtual {self.virtual} needs pp of at least 2"

    @property
    def expert_tp(self) -> int:
        """Number of tensor-parallel ranks that share one expert."""
        if self.etp is not None:
            return self.etp
        return 1 if self.dp % self.ep else self.tp

    @property
    def expert_replicas(self) -> int:
        """Number of ranks of a stage that hold the same experts."""
        return self.ranks_per_stage // (self.ep * self.expert_tp)

    @property
    def is_folded(self) -> bool:
        """Whether the ranks that share experts are neighbours among all ranks of a stage."""
        return self.expert_tp != self.tp or self.dp % self.ep != 0

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def ranks_per_stage(self) -> int:
        """Number of ranks of one pipeline stage, which are numbered consecutively."""
        return self.ranks // self.pp

    @property
    def chunks(self) -> int:
        """Number of chunks of the layers: chunk ``c`` is on stage ``c % pp``."""
        return self.pp * self.virtual

    @property
    def shard_ranks(self) -> int:
        """Number of ranks over which ZeRO shards."""
        return self.dp * self.cp // self.dp_replicate

    @property
    def sequence_shards(self) -> int:
        """Number of ranks that share the tokens between two tensor-parallel parts of a layer."""
        return self.tp if self.sequence_parallel else 1

    def __str__(self) -> str:
        """Return the degrees that are not one: ``tp8-cp2-dp4-pp16``."""
        named = [f"{name}{getattr(self, name)}" for name in _DEGREES if getattr(self, name) > 1]
        named += ["sp"] if self.sequence_parallel else []
        named += [f"zero{self.zero}"] if self.zero else []
        named += [f"etp{self.expert_tp}"] if self.ep > 1 and self.expert_tp != self.tp else []
        named += [f"hsdp{self.dp_replicate}"] if self.dp_replicate > 1 else []
        return "-".join(named) or "one rank"


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
    # Ranks of a stage are numbered tp innermost, then cp, then dp.
    replica: Ranks = ranks // (p.cp * p.tp) % p.dp
    return replica % p.ep


def groups(parallelism: Parallelism, label: str, stage: int) -> Ranks:
    """Return the groups of a label on a pipeline stage, shape ``(groups, members)``.

    ``tp``, ``cp`` and ``ep`` are the groups of those dimensions. ``dp`` has the ranks that hold the
    same weights, which context-parallel ranks do as well; of these, ``fsdp`` has those that share
    the shards of ZeRO, and ``hsdp`` those that hold the same shard. ``edp`` has those that hold the
    same experts.

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
    # A stage's ranks as an array over dimensions, with the group's axes last: each row of the
    # result is one group.
    members_last = np.moveaxis(stage_ranks(p, stage).reshape(shape), along, range(-len(along), 0))
    members = int(np.prod(members_last.shape[-len(along) :]))
    return np.asarray(members_last.reshape(-1, members), dtype=np.int64)


def stage_ranks(parallelism: Parallelism, stage: int) -> Ranks:
    """Return a stage's ranks; the ``i``-th of one stage sends to the ``i``-th of the next."""
    first = stage * parallelism.ranks_per_stage
    return np.arange(first, first + parallelism.ranks_per_stage)


def check_counts(part: object, *names: str, most: int | None = None) -> None:
    """Refuse fields that are not whole numbers of 1 or more, by a ``WorkloadError``."""
    for name in names:
        value, limits = getattr(part, name), f"1 to {most}" if most else "at least 1"
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise WorkloadError(f"{name} {value!r} is not a whole number")
        if not 1 <= int(value) <= (most or int(value)):
            raise WorkloadError(f"{name} {value} must be {limits}")


def refuse(misfits: Iterable[tuple[object, str]]) -> None:
    """Raise a ``WorkloadError`` with the first reason whose condition holds."""
    for is_misfit, reason in misfits:
        if is_misfit:
            raise WorkloadError(reason)


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
"""Axes along which a label's members vary: of a stage as (replicas of shards, ranks that share
them, cp, tp), for experts as (replicas of experts, ep, cp, tp)."""
_EXPERT_MEMBERS = {"ep": (1,), "edp": (0,)}
"""The same if experts are spread over all ranks of a stage: (replicas of experts, ep, etp)."""


class SlotKind(Enum):
    """Computation of a slot; ``BACKWARD`` is both gradients, the last two are its halves."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


class Slot(NamedTuple):
    """One micro-batch in one chunk of a stage."""

    kind: SlotKind
    micro_batch: int
    chunk: int = 0


class Pipeline(NamedTuple):
    """Numbers of stages of a pipeline, of micro-batches of a step, and of chunks on each stage."""

    stages: int
    micro_batches: int
    chunks: int = 1


def gpipe(stage: int, pipeline: Pipeline) -> list[Slot]:
    """All forward slots, then all backward slots (GPipe, arXiv 1811.06965).

    Bubble: ``(p - 1) / (m + p - 1)`` of the step for ``p`` stages and ``m`` micro-batches.
    """
    batches = range(pipeline.micro_batches)
    forward = [Slot(SlotKind.FORWARD, batch) for batch in batches]
    return forward + [Slot(SlotKind.BACKWARD, batch) for batch in batches]


def one_forward_one_backward(stage: int, pipeline: Pipeline) -> list[Slot]:
    """1F1B (PipeDream-Flush, arXiv 2006.09503): the bubble of GPipe, activations of ``p`` batches.

    Examples
    --------
    >>> order = one_forward_one_backward(0, Pipeline(stages=2, micro_batches=3))
    >>> " ".join(f"{slot.kind.value}{slot.micro_batch}" for slot in order)
    'F0 F1 B0 F2 B1 B2'
    """
    warm_up = min(pipeline.stages - 1 - stage, pipeline.micro_batches)
    batches = range(pipeline.micro_batches)
    return _alternate(
        [Slot(SlotKind.FORWARD, batch) for batch in batches],
        [Slot(SlotKind.BACKWARD, batch) for batch in batches],
        warm_up,
    )


def interleaved(stage: int, pipeline: Pipeline) -> list[Slot]:
    """1F1B on several chunks per stage (arXiv 2104.04473, section 2.2).

    The bubble is that of 1F1B divided by the chunks. Micro-batches pass a chunk in rounds of ``p``;
    a stage runs ``2 (p - stage - 1) + (v - 1) p`` forward slots ahead.
    """
    p, m, v = pipeline
    forward = [
        Slot(SlotKind.FORWARD, batch, chunk)
        for first in range(0, m, p)
        for chunk in range(v)
        for batch in range(first, min(first + p, m))
    ]
    backward = [Slot(SlotKind.BACKWARD, slot.micro_batch, v - 1 - slot.chunk) for slot in forward]
    return _alternate(forward, backward, min(2 * (p - stage - 1) + (v - 1) * p, m * v))


def zero_bubble(stage: int, pipeline: Pipeline) -> list[Slot]:
    """ZB-H1: 1F1B whose weight gradients wait for idle time (arXiv 2401.10241, section 2.1).

    Stage ``i`` defers ``i`` weight gradients, so that input gradients reach the stage before
    sooner. With times F, I and W of a slot the bubble shrinks from ``(p - 1)(F + I + W)`` to
    ``(p - 1)(F + I - W)``; activations are those of 1F1B.
    """
    slots: list[Slot] = []
    deferred: list[Slot] = []
    for slot in one_forward_one_backward(stage, pipeline):
        if slot.kind is SlotKind.FORWARD:
            slots.append(slot)
            continue
        slots.append(Slot(SlotKind.INPUT_GRADIENT, slot.micro_batch))
        deferred.append(Slot(SlotKind.WEIGHT_GRADIENT, slot.micro_batch))
        if len(deferred) > stage:
            slots.append(deferred.pop(0))
    return slots + deferred


def _alternate(forward: list[Slot], backward: list[Slot], warm_up: int) -> list[Slot]:
    """Run ``warm_up`` forward slots, then alternate, then the backward slots that are left."""
    slots = forward[:warm_up]
    steady = len(forward) - warm_up
    for ahead, behind in zip(forward[warm_up:], backward, strict=False):
        slots += [ahead, behind]
    return slots + backward[steady:]


SCHEDULES: dict[str, Callable[[int, Pipeline], list[Slot]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
}
"""Schedules by name."""
