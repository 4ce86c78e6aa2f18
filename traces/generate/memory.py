"""Memory of a rank by use, stage by stage, and whether it fits.

Weights, gradients and optimiser states are those of mixed precision (arXiv 1910.02054, section 3.1)
in Megatron-LM: weights in the precision of the step, gradients in that of their sum, a master copy
in fp32 and the optimiser's states, divided over replicas by ZeRO's stage. ZeRO-3 is PyTorch's FSDP:
the shard of a weight is its master copy, gradients are as long, and blocks are gathered in the
precision of the step (arXiv 2304.11277). Activations are counted along the schedule of the pipeline
(:mod:`traces.generate.activations`). The memory of the driver, CUDA and NCCL is added. The
allocator's cache is separate: no step is refused for it, but tools report it as reserved.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from math import fsum
from typing import NamedTuple

from simulator.support.quantities import bytes_per_element
from traces.generate.activations import (
    element_bytes,
    embedding_activations,
    forward_working,
    head_activations,
    is_pytorch,
    layer_activations,
)
from traces.generate.layers import chunks, parameters_on_rank
from traces.generate.model import GroupedAttention, LatentAttention, Parameters
from traces.generate.parallelism import SCHEDULES, Pipeline, Slot, SlotKind
from traces.generate.plan import CUDA_RESERVE, GenerationPlan
from traces.generate.run import OPTIMIZERS, MicroBatch, Serving, Training, micro_batch

_MASTER = 4
"""Bytes of a master weight: fp32."""
_LEAST_TRAINED_BYTES = 2
"""Least bytes of a trained weight: fp8 recipes cast weights for each product and store them in bf16
(Transformer Engine's documentation, ``fp8_autocast``)."""
_WARM_UP_ROUNDS = 3
"""Rounds of p micro-batches to simulate: warm-up is at most ``2 (p - 1) + (v - 1) p`` forward
slots, fewer than those of three rounds through v chunks."""
_BLOCKS_GATHERED = 2
"""Of ZeRO-3: the current block and the next (arXiv 2304.11277, section 3.4)."""
_COMMUNICATOR = 16 * 2 * 4 * 2.0**20
"""Bytes of an NCCL communicator: 4 MiB (``NCCL_BUFFSIZE``) on each of 16 channels, for a ring and a
tree."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory of each rank of a pipeline stage by use, at the peak of a step (B).

    Parameters
    ----------
    stage
        Number of the pipeline stage.
    weights
        In the precision of the step; with ZeRO-3 the shards in fp32.
    gradients
        In the precision of their sum.
    optimiser
        Master copies and states.
    gathered
        With ZeRO-3: weights and gradients of whole blocks.
    activations
        Of the micro-batches in flight.
    working
        Temporaries of the backward pass through a block: recomputed tensors, gradients of
        activations; in serving, those of the widest layer or the logits.
    kv_cache
        In serving: keys and values of all sequences.
    buffers
        Of communication: NCCL's, and those for messages between pipeline stages.
    reserve
        The driver's and CUDA's.
    cached
        Unused memory in the cache of PyTorch's allocator at that moment: not part of
        ``total``, since the allocator frees it before it runs out of memory.
    """

    stage: int
    weights: float
    gradients: float = 0.0
    optimiser: float = 0.0
    gathered: float = 0.0
    activations: float = 0.0
    working: float = 0.0
    kv_cache: float = 0.0
    buffers: float = 0.0
    reserve: float = CUDA_RESERVE
    cached: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by use."""
        names = [field.name for field in fields(self) if field.name not in ("stage", "cached")]
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> float:
        """Total bytes."""
        return fsum(self.parts.values())

    @property
    def allocated(self) -> float:
        """Bytes allocated by the framework: without NCCL's buffers, driver and context."""
        return self.total - self.reserve - self.buffers

    @property
    def reserved(self) -> float:
        """Bytes that the allocator takes from the driver (``torch.cuda.max_memory_reserved``)."""
        return self.allocated + self.cached


def memory_of(plan: GenerationPlan) -> tuple[StageMemory, ...]:
    """Return the memory by use (B) of a rank of every pipeline stage, in their order.

    Parameters
    ----------
    plan
        Which step. All ranks of a stage hold equally much; uneven experts are taken as even.

    Examples
    --------
    >>> from traces.generate.kernel_times import KernelRates
    >>> from traces.generate.model import load_model
    >>> from traces.generate.parallelism import Parallelism
    >>> plan = GenerationPlan(
    ...     model=load_model("llama-3.1-8b"),
    ...     parallelism=Parallelism(dp=8, zero=3),
    ...     run=Training(micro_batch=1, global_batch=8, sequence=4096, recompute="full"),
    ...     accelerator=KernelRates(peak=989e12, memory_bandwidth=3.35e12),
    ... )
    >>> (stage,) = memory_of(plan)
    >>> f"{stage.weights / 1e9:.2f} GB of weights, {stage.optimiser / 1e9:.2f} of states"
    '4.02 GB of weights, 8.03 of states'
    """
    batch = micro_batch(plan.model, plan.parallelism, plan.run)
    blocks, count = _blocks_on_rank(batch), plan.parallelism.pp
    reserve = CUDA_RESERVE if plan.memory is None else plan.memory.reserve
    keeps = plan.memory is None or not plan.memory.rematerialises  # else it is XLA's allocator
    stages = (
        _serving(batch, plan.run, stage, blocks[stage::count])
        if isinstance(plan.run, Serving)
        else _training(batch, plan.run, stage, blocks[stage::count])
        for stage in range(count)
    )
    return tuple(
        replace(stage, reserve=reserve, cached=stage.cached if keeps else 0.0) for stage in stages
    )


def fullest(stages: Sequence[StageMemory]) -> StageMemory:
    """Return the stage that needs most, the first of equals."""
    return max(stages, key=lambda stage: stage.total)


class _RankBlock(NamedTuple):
    """A block on a rank: the number of its layer in the model, None for embedding and head.

    ``held`` are all of its parameters, ``trained`` those that have gradients.
    """

    layer: int | None
    is_head: bool
    held: Parameters
    trained: Parameters


def _blocks_on_rank(batch: MicroBatch) -> list[list[_RankBlock]]:
    """Return the blocks of each chunk of the pipeline."""
    parts, numbers = chunks(batch), count()
    return [
        [
            _RankBlock(
                next(numbers) if block.is_layer else None,
                part is parts[-1] and block is part[-1],
                *(parameters_on_rank(each, batch) for each in (block.held, block.trained)),
            )
            for block in part
        ]
        for part in parts
    ]


def _training(
    batch: MicroBatch, run: Training, stage: int, own_chunks: Sequence[Sequence[_RankBlock]]
) -> StageMemory:
    """Return the memory of a stage in training."""
    blocks = [block for chunk in own_chunks for block in chunk]
    width, states, zero = _trained_bytes(batch), OPTIMIZERS[run.optimizer], batch.parallelism.zero
    (whole, shard), (whole_trained, shard_trained) = (
        _whole_and_shard(batch, part)
        for part in ([block.held for block in blocks], [block.trained for block in blocks])
    )
    if zero == 3:  # the shard of a weight is its master copy, and gradients are as long
        longest = max(width, _MASTER)
        weights = (shard - shard_trained) * width + shard_trained * longest
        gradients, optimiser = shard_trained * longest, shard_trained * states
    else:
        summed = shard_trained if zero == 2 else whole_trained
        weights, gradients = whole * width, summed * bytes_per_element(run.gradient)
        optimiser = shard_trained * (states + (_MASTER if width < _MASTER else 0))
    slots = _slots(batch, run, stage, own_chunks)
    peak = max((moment for slot in slots for moment in slot.moments), key=sum)
    return StageMemory(
        stage=stage,
        weights=weights,
        gradients=gradients,
        optimiser=optimiser,
        gathered=peak.gathered,
        # The head frees more than a layer needs where nothing is recomputed.
        activations=peak.activations + min(peak.working, 0.0),
        working=max(peak.working, 0.0),
        buffers=_buffers(batch),
        cached=_cached(batch, blocks),
    )


def _whole_and_shard(batch: MicroBatch, parameters: Sequence[Parameters]) -> tuple[float, float]:
    """Return the numbers of a rank's parameters, before and after ZeRO shards them."""
    p = batch.parallelism
    dense = fsum(part.sharded + part.replicated for part in parameters)
    experts = fsum(part.experts for part in parameters)
    if not p.zero:
        return dense + experts, dense + experts
    replicas = p.shard_ranks if p.ep == 1 else p.expert_replicas
    return dense + experts, dense / p.shard_ranks + experts / replicas


def _trained_bytes(batch: MicroBatch) -> int:
    return max(batch.element_bytes, _LEAST_TRAINED_BYTES)


class _PeakBytes(NamedTuple):
    """Bytes on a rank besides its states, at one moment of a step."""

    gathered: float
    activations: float
    working: float


class _ChunkBytes(NamedTuple):
    """Bytes that a chunk of a stage's layers adds.

    ``kept`` is allocated for a micro-batch from its forward to its backward pass, ``stays`` until
    the end of the step; ``layer`` and ``head`` are temporaries of the backward pass, in a layer
    (less what the head had kept, which is freed by then) and in the head (None without one).
    """

    kept: float
    stays: float
    layer: float
    head: float | None
    weights: float
    gradients: float


class _SlotBytes(NamedTuple):
    """A slot of the schedule, its chunk, its moments in order, and what is gathered after it."""

    slot: Slot
    part: _ChunkBytes
    moments: list[_PeakBytes]
    gathered: float


def _slots(
    batch: MicroBatch, run: Training, stage: int, own_chunks: Sequence[Sequence[_RankBlock]]
) -> Iterator[_SlotBytes]:
    """Walk through the schedule of a stage: a rank's memory besides its states.

    Every forward slot adds what its chunk keeps, every backward slot (that of the weights, if the
    two gradients are separate) frees it. Except GPipe's, schedules are periodic after the first
    rounds of as many micro-batches as stages.

    Under ZeRO-3 on a pipeline a chunk's weights stay gathered and its gradients whole until the
    last micro-batch: FSDP2 does not shard them again between micro-batches (torchtitan,
    ``reshard_after_forward``). The gradients are allocated in the chunk's first backward slot.
    """
    p, count = batch.parallelism, run.micro_batches(batch.parallelism)
    simulated = count if run.schedule == "gpipe" else min(count, _WARM_UP_ROUNDS * p.pp)
    parts = [_chunk_bytes(batch, run, chunk) for chunk in own_chunks]
    whole = p.zero == 3 and p.pp > 1
    level = _messages(batch, stage, count) + fsum(part.stays for part in parts) * (
        count - simulated
    )
    gathered = fsum(part.weights for part in parts) if whole else 0.0
    blocks = [block for chunk in own_chunks for block in chunk]
    by_layer, by_head = _gathered(batch, run, blocks)
    begun: set[int] = set()
    for slot in SCHEDULES[run.schedule](stage, Pipeline(p.pp, simulated, p.virtual)):
        part = parts[slot.chunk]
        if slot.kind is SlotKind.FORWARD:
            level += part.kept + part.stays
            yield _SlotBytes(slot, part, [_PeakBytes(gathered, level, 0.0)], gathered)
            continue
        moments = [_PeakBytes(gathered + by_layer, level, part.layer)]
        if part.head is not None:
            moments.insert(0, _PeakBytes(gathered + by_head, level, part.head))
        if whole and slot.chunk not in begun:
            begun.add(slot.chunk)
            gathered += part.gradients
            moments.append(_PeakBytes(gathered + by_layer, level - part.kept, part.layer))
        yield _SlotBytes(slot, part, moments, gathered)
        if slot.kind in (SlotKind.BACKWARD, SlotKind.WEIGHT_GRADIENT):
            level -= part.kept


class MemoryEvent(NamedTuple):
    """A rank allocates or frees a block of so many bytes, for ``what``."""

    block: int
    size: float
    what: str
    is_free: bool = False


def memory_events(plan: GenerationPlan) -> tuple[list[MemoryEvent], ...]:
    """Return what a rank of every pipeline stage allocates and frees in a step, in order.

    What a chunk of layers keeps for a micro-batch is one block. Of periodic schedules the first
    rounds stand for all. What is held at once reaches the total of :func:`memory_of`, and no more.
    """
    batch, run = micro_batch(plan.model, plan.parallelism, plan.run), plan.run
    blocks = _blocks_on_rank(batch)
    stages = []
    for memory in memory_of(plan):
        held = {use: size for use, size in memory.parts.items() if use != "working"}
        if isinstance(run, Training):
            slots = list(
                _slots(batch, run, memory.stage, blocks[memory.stage :: plan.parallelism.pp])
            )
            first = slots[0]
            whole_step = first.moments[0].activations - first.part.kept - first.part.stays
            changes = [held | {"gathered": 0.0, "activations": whole_step}]
            changes += [change for slot in slots for change in _held_in(slot)]
        else:
            changes = [held | {"working": memory.working}, {"working": 0.0}]
        stages.append(list(_events(changes)))
    return tuple(stages)


def _held_in(step: _SlotBytes) -> Iterator[dict[str, float]]:
    """Yield the bytes of what changes in a slot, moment by moment."""
    slot, part = step.slot, step.part
    of = f"of micro-batch {slot.micro_batch}, chunk {slot.chunk}"
    kept = f"activations {of}"
    for moment in step.moments:
        # Of what was kept is free what this moment has less of, and what its working memory lacks.
        freed = step.moments[0].activations - moment.activations - min(moment.working, 0.0)
        gathered = moment.gathered + min(part.kept - freed, 0.0)
        yield {kept: part.kept - freed, "gathered": gathered, "working": moment.working}
    is_over = slot.kind in (SlotKind.BACKWARD, SlotKind.WEIGHT_GRADIENT)
    still = {kept: 0.0 if is_over else part.kept, f"outputs {of}": part.stays}
    yield still | {"gathered": step.gathered, "working": 0.0}


def _events(changes: Iterable[Mapping[str, float]]) -> Iterator[MemoryEvent]:
    """Yield events of blocks by what they are for; another size is another block."""
    held: dict[str, MemoryEvent] = {}
    numbers = count(1)
    for sizes in changes:
        for what in [what for what in held if sizes.get(what, held[what].size) != held[what].size]:
            yield held.pop(what)._replace(is_free=True)
        for what, size in sizes.items():
            if what not in held and size > 0:
                held[what] = MemoryEvent(next(numbers), size, what)
                yield held[what]


def _chunk_bytes(batch: MicroBatch, run: Training, chunk: Sequence[_RankBlock]) -> _ChunkBytes:
    blocks = [
        layer_activations(batch, block.layer, run)
        if block.layer is not None
        else head_activations(batch, run)
        if block.is_head
        else embedding_activations(batch, run)
        for block in chunk
    ]
    trained = [numbered.trained.total for numbered in chunk]
    # Gradients to be added to those of other micro-batches are in the precision of the weights.
    is_whole = batch.parallelism.zero == 3 and batch.parallelism.pp > 1
    fresh = _trained_bytes(batch) if is_whole else 0
    pairs = list(zip(blocks, trained, strict=True))
    layers, head = (pairs[:-1], pairs[-1:]) if chunk[-1].is_head else (pairs, [])
    kept_bytes, stays = fsum(block.kept for block in blocks), 0.0
    if _is_pytorch_pipeline(batch):
        # Received activations are in a buffer (``_messages``); sent ones are kept.
        received = chunk[0].layer is not None or chunk[0].is_head
        if head:  # pipelines return the logits of all micro-batches at the end of the step
            tokens = batch.sequences * batch.logit_tokens / batch.parallelism.cp
            stays = tokens * batch.model.vocabulary / batch.parallelism.tp * element_bytes(batch)
        kept_bytes += (not head) * _message(batch) - received * _message(batch) - stays
    return _ChunkBytes(
        kept=kept_bytes,
        stays=stays,
        layer=max((block.working + fresh * size for block, size in layers), default=0.0)
        - fsum(block.kept - stays for block, _ in head),
        head=max((block.working + fresh * size for block, size in head), default=None),
        weights=fsum(each.held.total for each in chunk) * _trained_bytes(batch),
        gradients=fsum(trained) * bytes_per_element(run.gradient),
    )


def _is_pytorch_pipeline(batch: MicroBatch) -> bool:
    return batch.parallelism.pp > 1 and is_pytorch(batch)


def _message(batch: MicroBatch) -> float:
    """Bytes of a message to the next stage for a micro-batch."""
    return batch.sharded_tokens * batch.model.hidden * element_bytes(batch)


def _messages(batch: MicroBatch, stage: int, count: int) -> float:
    """Bytes of a stage's receive buffers under PyTorch's pipelines.

    ``torch.distributed.pipelining`` allocates one for each micro-batch and direction before the
    first step (``args_recv_info``, ``grad_recv_info`` of its stages), and keeps them.
    """
    if not _is_pytorch_pipeline(batch):
        return 0.0
    p = batch.parallelism
    received = 2 * p.virtual - (stage == 0) - (stage + 1 == p.pp)
    return received * count * _message(batch)


def _gathered(
    batch: MicroBatch, run: Training, numbered: Sequence[_RankBlock]
) -> tuple[float, float]:
    """Bytes of temporary whole weights and gradients, in a layer and in the head.

    ZeRO-2 fills one bucket of gradients while another is reduced. ZeRO-3 has two layers, the
    gradients of one as they are computed and those of another as they are reduced, and, throughout
    the step, the root's weights, which are those of embedding and head, with the head's gradient.
    The head has only the last layer, which is not sharded again, and no layer's gradient. On a
    pipeline all are whole throughout (:func:`_slots`), and none are temporary.
    """
    zero, width = batch.parallelism.zero, _trained_bytes(batch)
    if zero == 2:
        return 2 * run.bucket, 2 * run.bucket
    if zero < 3 or batch.parallelism.pp > 1:
        return 0.0, 0.0
    layer, root = _layer_and_root(numbered)
    trained = max((each.trained.total for each in numbered if each.layer is not None), default=0.0)
    head = fsum(each.held.total for each in numbered if each.is_head and not batch.lora_rank)
    # The gradient of a layer in the weights' precision, and in that of the sum.
    gradients = trained * (width + bytes_per_element(run.gradient))
    always = (root + head) * width
    return layer * _BLOCKS_GATHERED * width + gradients + always, layer * width + always


def _layer_and_root(blocks: Sequence[_RankBlock]) -> tuple[float, float]:
    """Return the parameters on a rank of the largest layer, and of embedding and head together."""
    layer = max((each.held.total for each in blocks if each.layer is not None), default=0.0)
    return layer, fsum(each.held.total for each in blocks if each.layer is None)


def _cached(batch: MicroBatch, numbered: Sequence[_RankBlock]) -> float:
    """Bytes in the cache of PyTorch's allocator that are unused at the peak.

    Memory freed on one stream is not reused on another: FSDP gathers into buffers on a separate
    stream, those of a block while those of the previous block are copied out of. And the
    temporaries of a layer's forward pass leave gaps between kept tensors, too short for longer
    ones: all of them are counted once, which is an allowance, not a law.
    """
    layers = {block.layer for block in numbered if block.layer is not None}
    pieces = max((forward_working(batch, layer) for layer in layers), default=0.0)
    if batch.parallelism.zero < 3:
        return pieces
    layer, root = _layer_and_root(numbered)
    return pieces + (max(root, layer) + layer) * _trained_bytes(batch)


def _serving(
    batch: MicroBatch, run: Serving, stage: int, own_chunks: Sequence[Sequence[_RankBlock]]
) -> StageMemory:
    """Return a stage's memory in serving: weights, all sequences' cache, a pass through a layer."""
    blocks = [block for chunk in own_chunks for block in chunk]
    layers = [block.layer for block in blocks if block.layer is not None]
    needs = [forward_working(batch, layer) for layer in set(layers)]
    if any(block.is_head for block in blocks):
        logits = batch.sequences * batch.logit_tokens * batch.model.vocabulary
        needs.append(logits * (max(batch.element_bytes, 2) + 4))
    # Bytes per token of the context in a layer's cache on one rank: heads are divided over
    # tensor ranks, and copied where there are fewer; MLA's latent is on all of them (arXiv
    # 2405.04434, section 2.1.2).
    p = batch.parallelism
    match batch.model.attention:
        case GroupedAttention(kv_heads=kv_heads, head=head):
            elements = 2 * max(kv_heads / p.tp, 1.0) * head
        case LatentAttention(kv_rank=kv_rank, rope=rope):
            elements = float(kv_rank + rope)
    return StageMemory(
        stage=stage,
        weights=fsum(block.held.total for block in blocks) * batch.element_bytes,
        working=max(needs, default=0.0),
        kv_cache=elements
        * batch.element_bytes
        / p.cp
        * run.batch
        * fsum(batch.model.seen(layer, run.context) for layer in layers)
        * batch.model.makes_tokens,
        buffers=_buffers(batch),
    )


def _buffers(batch: MicroBatch) -> float:
    """Bytes of NCCL's communicators, and of a message in each direction between stages."""
    p = batch.parallelism
    degrees = (p.tp, p.cp, p.ep, p.dp, p.pp)
    between = 4 * batch.hidden_bytes / p.sequence_shards if p.pp > 1 else 0.0
    return sum(degree > 1 for degree in degrees) * _COMMUNICATOR + between
