"""The order in which a pipeline stage works: slots of micro-batches, as published.

Chunk ``c`` of a stage is the ``c``-th of its chunks of layers; without interleaving there is one.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class SlotKind(Enum):
    """What a slot computes; ``BACKWARD`` is both gradients, the last two are its halves."""

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
    """Stages of a pipeline, micro-batches of a step, and chunks on each stage."""

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
