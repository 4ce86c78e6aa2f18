"""The program of every pipeline stage: its slots in order, and what data parallelism and ZeRO move.

Messages between stages are asynchronous: they wait for the kernel that makes them, and the kernel
that needs them waits for them. Receives are posted ahead, in the order of the sender, so that a
late stage never delays the one before. Buffers for received messages are not limited.

Replicas of a stage reduce gradients and shard states and weights. Volumes are those of ZeRO (arXiv
1910.02054, section 7): with ``P`` parameters the gradients cost an all-reduce of ``P``, the same as
a reduce-scatter and an all-gather (stages 1 and 2); stage 3 gathers the weights twice, forward and
backward, and scatters the gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import fsum
from sys import intern
from typing import NamedTuple

from simulator.support.quantities import bytes_per_element
from simulator.workload import What
from traces.generate.framework import NONE, framework
from traces.generate.inference import pass_chunks
from traces.generate.layer_kernels import Kernel, Work, streamed
from traces.generate.layers import (
    Exchange,
    Exchanges,
    LayerPart,
    ModelBlock,
    chunks,
    parameters_on_rank,
)
from traces.generate.model import Parameters
from traces.generate.parallelism import SCHEDULES, Pipeline, Slot, SlotKind
from traces.generate.plan import GenerationPlan
from traces.generate.program import (
    COMPUTE,
    NO_GRAPH,
    ChannelCall,
    Channels,
    HostCosts,
    KernelClock,
    NumberedCall,
    RankProgram,
    TimedKernels,
    forward,
    input_gradients,
    weight_gradients,
    with_launches,
)
from traces.generate.run import MicroBatch, Serving, Training, micro_batch, micro_batches

_STATE_BYTES = 12
"""Master weight and two moments in fp32 per parameter (Adam in mixed precision, arXiv 1910.02054,
section 3.1): read, and written back."""
_NORM_BYTES = 4
"""A norm is one number in fp32."""
_BLOCKS_AHEAD = 2
"""Blocks whose weights are gathered at once: the current one and the next, which is prefetched, as
PyTorch's FSDP limits its all-gathers (arXiv 2304.11277, section 3.4)."""


def stage_programs(plan: GenerationPlan) -> tuple[RankProgram, ...]:
    """Return the program of every pipeline stage's ranks, in the order of the stages."""
    parallelism, run = plan.parallelism, plan.run
    batch = micro_batch(plan.model, parallelism, run, plan.imbalance)
    by = framework(run.framework)
    engine = pass_chunks(batch) if isinstance(run, Serving) and by.measured else None
    blocks = chunks(batch) if engine is None else engine
    slots = [_slots(stage, plan) for stage in range(parallelism.pp)]
    channels = Channels(parallelism)
    messages = _messages(batch, slots, channels)
    programs = []
    clock = KernelClock(plan.accelerator, by, plan.kernels, serving=engine is not None)
    for stage in range(parallelism.pp):
        program = RankProgram(stage, channels, clock, batch.dtype)
        writer = _StageWriter(program, batch, blocks, messages, captures=bool(run.cuda_graphs))
        if isinstance(run, Training):
            stage_blocks = [block for chunk in blocks[stage :: parallelism.pp] for block in chunk]
            writer.data_parallel = _DataParallelWriter(program, batch, run, stage_blocks)
            writer.recompute = run.recompute
        writer.write(slots[stage])
        programs.append(program)
    host = host_costs(plan)
    if host is None:
        return tuple(programs)
    return tuple(with_launches(program, host) for program in programs)


def host_costs(plan: GenerationPlan) -> HostCosts | None:
    """Return the host's times: the plan's, else the framework's; None without a host."""
    by = framework(plan.run.framework)
    if plan.launch is not None:
        return HostCosts(plan.launch, plan.launch)
    launched = plan.run.cuda_graphs is False or not by.captured
    if not launched or not (by.launch or by.exchange):
        return None
    longer = plan.accelerator.host_time
    return HostCosts(longer * by.launch, longer * by.exchange)


def _slots(stage: int, plan: GenerationPlan) -> list[Slot]:
    """Return the slots of a stage in the order of the schedule."""
    count = micro_batches(plan.parallelism, plan.run)
    if isinstance(plan.run, Serving):
        return [Slot(SlotKind.FORWARD, number) for number in range(count)]
    pipeline = Pipeline(plan.parallelism.pp, count, plan.parallelism.virtual)
    return SCHEDULES[plan.run.schedule](stage, pipeline)


class _Message(NamedTuple):
    """Activations or gradients of a micro-batch, sent by a chunk of the pipeline."""

    direction: str
    micro_batch: int
    sender_chunk: int


class _Pieces(NamedTuple):
    """A part whose exchanges are overlapped: its first piece, the rest, and its last piece.

    ``before_last`` is all but the last piece, for the backward pass.
    """

    first: LayerPart
    rest: LayerPart
    last: LayerPart
    before_last: LayerPart


_Works = Callable[[Sequence[Kernel]], list[Work]]
_FORWARD, _BACKWARD = "forward", "backward"
_Messages = dict[_Message, NumberedCall]


def _messages(batch: MicroBatch, orders: Sequence[Sequence[Slot]], channels: Channels) -> _Messages:
    """Assign a call to each message between stages; those of a channel in the order of sending.

    A message is ``b s h`` elements; where the sequence is sharded, a tensor rank's share of them
    (arXiv 2104.04473, sections 3.2 and 4.1).
    """
    p = batch.parallelism
    size = batch.hidden_bytes / p.sequence_shards
    messages: _Messages = {}
    for stage, slots in enumerate(orders):
        for slot in slots:
            chunk = slot.chunk * p.pp + stage
            if slot.kind is SlotKind.FORWARD:
                direction, receiver, is_sent = _FORWARD, stage + 1, chunk + 1 < p.chunks
            else:
                direction, receiver, is_sent = _BACKWARD, stage - 1, chunk > 0
            if not is_sent or slot.kind is SlotKind.WEIGHT_GRADIENT:
                continue
            key = channels.between("pp", stage, receiver % p.pp)
            number = channels.by_key[key].add(ChannelCall("send_receive", size, batch.dtype))
            messages[_Message(direction, slot.micro_batch, chunk)] = NumberedCall(key, number)
    return messages


@dataclass(slots=True)
class _StageWriter:
    """Writes the program of a stage; ``data_parallel`` writes its replicas' communication.

    ``captures``: layers are CUDA graphs, of which ``graphs`` is the number of the last. ``losses``
    are the ops after which a micro-batch's loss is known. ``timed``, ``pieces`` and ``kept``
    memoise results per part for the next micro-batches; parts outlive them.
    """

    program: RankProgram
    batch: MicroBatch
    chunks: Sequence[Sequence[ModelBlock]]
    messages: _Messages
    data_parallel: "_DataParallelWriter | None" = None
    recompute: str = "none"
    losses: dict[int, list[int]] = field(default_factory=dict)
    timed: dict[tuple[int, str], TimedKernels] = field(default_factory=dict)
    pieces: dict[int, _Pieces | None] = field(default_factory=dict)
    kept: dict[int, LayerPart] = field(default_factory=dict)
    captures: bool = False
    graphs: int = NO_GRAPH

    def write(self, slots: Sequence[Slot]) -> None:
        """Write the slots, and the end of the step."""
        for slot in slots:
            if slot.kind is SlotKind.FORWARD:
                self._forward(slot)
            elif slot.kind is SlotKind.WEIGHT_GRADIENT:
                for block in reversed(self.chunks[self._chunk(slot)]):
                    with self._capture_graph():
                        for part in reversed(block.parts):
                            if weight_gradients(part.kernels):
                                self._compute(part, "weight gradient", weight_gradients)
                    self._reduce(block, slot)
            else:
                self._backward(slot)
        if self.data_parallel is not None:
            self.data_parallel.finish()

    def _forward(self, slot: Slot) -> None:
        chunk = self._chunk(slot)
        if chunk > 0:
            self._receive(_Message(_FORWARD, slot.micro_batch, chunk - 1))
        for block in self.chunks[chunk]:
            self._gather(block)
            with self._capture_graph():
                for part in block.parts:
                    self._forward_part(part, "forward")
            self._release()
        if chunk + 1 < self.batch.parallelism.chunks:
            self._send(_Message(_FORWARD, slot.micro_batch, chunk))
        else:
            self.losses[slot.micro_batch], self.program.waits = self.program.waits, []

    def _backward(self, slot: Slot) -> None:
        chunk = self._chunk(slot)
        if chunk + 1 < self.batch.parallelism.chunks:
            self._receive(_Message(_BACKWARD, slot.micro_batch, chunk + 1))
        else:
            self.program.waits = self.losses.pop(slot.micro_batch)
        for block in reversed(self.chunks[chunk]):
            self._gather(block)
            with self._capture_graph():
                self._recompute(block)
                for part in reversed(block.parts):
                    self._backward_part(part, slot.kind)
            self._release()
            if slot.kind is SlotKind.BACKWARD:
                self._reduce(block, slot)
        if chunk > 0:
            self._send(_Message(_BACKWARD, slot.micro_batch, chunk))

    @contextmanager
    def _capture_graph(self) -> Iterator[None]:
        """Make the launches of a layer's pass one CUDA graph, if layers are captured.

        As in Megatron-LM's capture, messages, gathers of weights, and sums of gradients are not
        part of it.
        """
        if self.captures:
            self.graphs += 1
            self.program.captured = self.graphs
        yield
        self.program.captured = NO_GRAPH

    def _forward_part(self, part: LayerPart, purpose: str) -> None:
        pieces = self._pieces_of(part)
        if pieces is None:
            for exchange in part.before:
                self.program.exchange(exchange)
            self._compute(part, purpose, forward)
            for exchange in part.after:
                self.program.exchange(exchange)
            return
        self._beside(part.before, pieces.first, purpose, forward)
        self._compute(pieces.rest, purpose, forward)
        self._beside(part.after, pieces.last, purpose, forward)

    def _pieces_of(self, part: LayerPart) -> _Pieces | None:
        if id(part) not in self.pieces:
            self.pieces[id(part)] = self._in_pieces(part)
        return self.pieces[id(part)]

    def _in_pieces(self, part: LayerPart) -> _Pieces | None:
        """Cut a part in three: readers of the exchange before, the rest, producer of the one after.

        Between them is the rest. None where tensor ranks exchange nothing in pieces.
        """
        exchanges = (*part.before, *part.after)
        if (
            not self.program.clock.framework.overlaps_tensor_exchanges
            or self.batch.parallelism.tp == 1
            or part.by_ep
            or any(exchange.label != "tp" for exchange in exchanges)
        ):
            return None
        kernels = part.kernels
        products = [at for at, kernel in enumerate(kernels) if kernel.weight_gradient.flops]
        if not products:
            return None
        begin, end = products[0] + 1, max(products[-1], products[0] + 1)
        return _Pieces(
            first=replace(part, kernels=kernels[:begin]),
            rest=replace(part, kernels=kernels[begin:end]),
            last=replace(part, kernels=kernels[end:]),
            before_last=replace(part, kernels=kernels[:end]),
        )

    def _beside(self, exchanges: Exchanges, part: LayerPart, purpose: str, works: _Works) -> None:
        """Compute a piece of a part beside its exchanges; the next op waits for both."""
        program = self.program
        before, done = list(program.waits), []
        for exchange in exchanges:
            op = program.collective(exchange, exchange.label, before or program.last(COMPUTE))
            done += [] if op is None else [op]
        if any(work.traffic for work in works(part.kernels)):
            self._compute(part, purpose, works)
            program.waits = done
        else:
            program.waits = done or before

    def _backward_part(self, part: LayerPart, kind: SlotKind) -> None:
        """Write the gradients of a part.

        Weight gradients that read its input overlap with the exchange after it: Megatron-LM
        computes them while the input's gradient is reduced. With sequence parallelism it gathers
        the input of such a matrix once more, overlapped with the input's gradient: left out.
        """
        p = self.batch.parallelism
        degree = {"tp": p.tp, "cp": p.cp, "ep": p.ep}
        overlaps = (
            kind is SlotKind.BACKWARD
            and self.program.clock.framework.overlaps_input_gradients
            and any(degree[exchange.label] > 1 for exchange in part.back_after)
        )

        def gradients(kernels: Sequence[Kernel]) -> list[Work]:
            again = self.recompute == "selective"
            scores = forward(kernel for kernel in kernels if again and kernel.name == "scores")
            works = scores + input_gradients(kernels)
            if kind is not SlotKind.BACKWARD:
                return works
            left = [kernel for kernel in kernels if not (overlaps and kernel.reads_input)]
            return works + weight_gradients(left)

        name = "input gradient" if kind is SlotKind.INPUT_GRADIENT else "backward"
        pieces = self._pieces_of(part)
        if pieces is None:
            for exchange in part.back_before:
                self.program.exchange(exchange)
            self._compute(part, name, gradients)
        else:
            self._beside(part.back_before, pieces.last, name, gradients)
            self._compute(pieces.before_last, name, gradients)
        for exchange in part.back_after:
            self.program.exchange(exchange)
        if overlaps and _input_weight_gradients(part.kernels):
            waits, self.program.waits = self.program.waits, []
            self._compute(part, "weight gradient", _input_weight_gradients)
            self.program.waits = waits

    def _compute(self, part: LayerPart, purpose: str, works: _Works) -> None:
        """Write some of a part's kernels as one op."""
        if not part.kernels:
            return
        key = id(part), purpose
        if key not in self.timed:  # equal for every micro-batch
            by_ep = [works(kernels) for kernels in part.by_ep]
            self.timed[key] = self.program.timed(works(part.kernels), by_ep)
        self.program.add(intern(f"{part.name} {purpose}"), self.timed[key])

    def _recompute(self, block: ModelBlock) -> None:
        """Repeat a layer's forward pass, exchanges included, once its gradient has arrived."""
        if self.recompute not in ("full", "op") or not block.is_layer:
            return
        for part in block.parts:
            if self.recompute == "full":
                self._forward_part(part, "recomputation")
                continue
            if id(part) not in self.kept:
                self.kept[id(part)] = _without_kept(part)
            self._forward_part(self.kept[id(part)], "recomputation")

    def _receive(self, message: _Message) -> None:
        lane = f"pp receive {message.direction}"
        received = self.program.join(What.RECEIVE, lane, self.messages[message], ())
        self.program.waits = [received]
        if self.program.clock.framework.waits_for_messages:
            self.program.blocking.add(received)

    def _send(self, message: _Message) -> None:
        after = self.program.waits or self.program.last(COMPUTE)
        lane = f"pp send {message.direction}"
        self.program.join(What.SEND, lane, self.messages[message], after)
        self.program.waits = []

    def _gather(self, block: ModelBlock) -> None:
        if self.data_parallel is not None:
            self.data_parallel.gather(block)

    def _release(self) -> None:
        if self.data_parallel is not None:
            self.data_parallel.release()

    def _reduce(self, block: ModelBlock, slot: Slot) -> None:
        if self.data_parallel is not None:
            self.data_parallel.reduce(block, slot.micro_batch)

    def _chunk(self, slot: Slot) -> int:
        """Return the slot's chunk, numbered over the whole pipeline."""
        return slot.chunk * self.batch.parallelism.pp + self.program.stage


@dataclass(slots=True)
class _DataParallelWriter:
    """Writes the communication of a stage's replicas, and the optimiser.

    ``blocks`` are all of the stage. ``pending`` are the parameters whose gradients wait for a full
    bucket, ``block_ends`` the last kernel of every block so far.
    """

    program: RankProgram
    batch: MicroBatch
    training: Training
    blocks: Sequence[ModelBlock]
    pending: Parameters = field(default_factory=Parameters)
    block_ends: list[int] = field(default_factory=list)

    def gather(self, block: ModelBlock) -> None:
        """ZeRO-3: gather a block's weights ahead of its first kernel."""
        if self.batch.parallelism.zero < 3:
            return
        after = self.block_ends[-_BLOCKS_AHEAD : 1 - _BLOCKS_AHEAD]
        weights = parameters_on_rank(block.held, self.batch)
        for exchange in self._exchanges("all_gather", weights, self.batch.element_bytes):
            op = self.program.collective(exchange, f"{exchange.label} gather", after)
            self.program.weight_gathers += [op] if op is not None else []
        if self.program.weight_gathers and self.program.clock.framework.sharding == "each":
            # Gathered shards are copied from rank order to whole parameters.
            copied = 2.0 * weights.total * self.batch.element_bytes
            self.program.compute("gathered weights", (streamed(copied),))

    def release(self) -> None:
        """Mark a block as computed: its weights may be freed."""
        self.block_ends += self.program.last(COMPUTE)

    def reduce(self, block: ModelBlock, micro_batch: int) -> None:
        """Reduce the gradients of a block that has been computed, once they are complete.

        From ZeRO-2 on no rank holds all gradients, so those of every micro-batch are reduced; below
        they are accumulated and reduced with the last.
        """
        p = self.batch.parallelism
        is_last = micro_batch + 1 == self.training.micro_batches(p)
        if not is_last and p.zero < 2:
            return
        trained = parameters_on_rank(block.trained, self.batch)
        self.pending = Parameters(*(a + b for a, b in zip(self.pending, trained, strict=True)))
        if copied := self._copied_bytes(trained.total):
            self.program.compute("gradients to reduce", (streamed(copied),))
        if p.zero < 2 and not self.program.clock.framework.overlaps_gradients:
            return
        if self.pending.total * self._gradient_bytes >= self.training.bucket or p.zero == 3:
            self._flush()

    def finish(self) -> None:
        """Reduce the last bucket, run the optimiser, and gather the new weights."""
        self._flush()
        program, p = self.program, self.batch.parallelism
        tied = self.batch.model.tied_embeddings and not self.batch.lora_rank
        if tied and p.pp > 1 and program.stage in (0, p.pp - 1):
            # First and last stage hold a copy each of a tied matrix, and sum its gradients.
            key = program.channels.between("embd", 0, p.pp - 1)
            channel, model = program.channels.by_key[key], self.batch.model
            if not channel.calls:
                size = model.vocabulary * model.hidden / p.tp * self._gradient_bytes
                channel.add(ChannelCall("all_reduce", size, self.training.gradient))
            program.join(What.COLLECTIVE, "embd", NumberedCall(key, 0), program.last(COMPUTE))
        lanes = ("dp", "edp", "fsdp", "fsdp reduce", "edp reduce", "hsdp", "embd")
        program.waits = [op for lane in lanes for op in program.last(lane)]
        if program.clock.framework.name != NONE:
            self._gradient_norm()
        # Adam on this rank's shard: gradients and states read, states and weights written.
        bytes_each = self._gradient_bytes + 2 * _STATE_BYTES + self.batch.element_bytes
        program.compute("optimiser", (Work(traffic=self._updated * bytes_each),))
        if p.zero not in (1, 2) or program.clock.framework.overlaps_weights:
            return
        for block in self.blocks:
            weights = parameters_on_rank(block.trained, self.batch)
            for exchange in self._exchanges("all_gather", weights, self.batch.element_bytes):
                program.collective(exchange, exchange.label, program.last(COMPUTE))

    @property
    def _gradient_bytes(self) -> int:
        return bytes_per_element(self.training.gradient)

    def _copied_bytes(self, count: float) -> float:
        """Return the bytes copied to reduce gradients of ``count`` parameters, besides the call's.

        FSDP's flat parameter gets its gradient by concatenation, which is then cast to the
        precision of the sum, and divided by a part of the ranks before it is summed
        (``_reduce_grad`` in torch/distributed/fsdp/_runtime_utils.py). FSDP2 copies and casts in
        one (``chunk_cat`` in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
        """
        p, laid_out = self.batch.parallelism, self.program.clock.framework.sharding
        if p.zero < 2 or p.shard_ranks == 1 or not laid_out:
            return 0.0
        width, summed = self.batch.element_bytes, self._gradient_bytes
        if laid_out == "each":
            return count * (width + summed)
        cast = width + summed if summed != width else 0
        return count * (2 * width + cast + 2 * summed)

    def _flush(self) -> None:
        p = self.batch.parallelism
        kind = "reduce_scatter" if p.zero else "all_reduce"
        for exchange in self._exchanges(kind, self.pending, self._gradient_bytes):
            lane = f"{exchange.label} reduce" if p.zero == 3 else exchange.label
            after = self.program.last(COMPUTE)
            op = self.program.collective(exchange, lane, after, self.training.gradient)
            if p.dp_replicate > 1:
                # HSDP: sum a rank's shard of the gradients over the replicas of the shards
                summed = Exchange("all_reduce", "hsdp", exchange.size / p.shard_ranks)
                shard = after if op is None else [op]
                self.program.collective(summed, "hsdp", shard, self.training.gradient)
        self.pending = Parameters()

    def _exchanges(self, kind: str, parameters: Parameters, element_bytes: int) -> list[Exchange]:
        """Return exchanges among all replicas, and those of experts among replicas of the same."""
        p = self.batch.parallelism
        label = "fsdp" if p.zero == 3 or p.dp_replicate > 1 else "dp"
        dense = parameters.sharded + parameters.replicated
        dense += parameters.experts if p.ep == 1 else 0.0
        exchanges = [Exchange(kind, label, dense * element_bytes)] if dense else []
        if parameters.experts and p.ep > 1:
            exchanges.append(Exchange(kind, "edp", parameters.experts * element_bytes))
        return exchanges

    def _gradient_norm(self) -> None:
        """Read the gradients for their norm, sum it over ranks, and let the host wait for it.

        The host clips by the norm, and skips a step whose norm is not finite. Replicas that shard
        gradients sum it as well: some 10 us that are left out, because a tree over all of them
        would be the only call that differs between replicas, and none could represent the others.
        """
        program = self.program
        program.compute("gradient norm", (streamed(self._updated * self._gradient_bytes),))
        program.exchange(Exchange("all_reduce", "tp", _NORM_BYTES))
        program.blocking.update(program.waits or program.last(COMPUTE))

    @property
    def _updated(self) -> float:
        """Number of parameters that this rank's optimiser updates."""
        p = self.batch.parallelism
        parameters = [parameters_on_rank(block.trained, self.batch) for block in self.blocks]
        shards, replicas = (p.shard_ranks, p.expert_replicas) if p.zero else (1, 1)
        experts = fsum(part.experts for part in parameters) / replicas
        return fsum(part.sharded + part.replicated for part in parameters) / shards + experts


def _without_kept(part: LayerPart) -> LayerPart:
    """Return a part without what ``op`` keeps: attention's output, every second product's."""
    kernels, products = [], 0
    for kernel in part.kernels:
        is_product = kernel.weight_gradient.flops > 0
        products += is_product
        if kernel.name != "scores" and not (is_product and products % 2):
            kernels.append(kernel)
    return replace(part, kernels=tuple(kernels), by_ep=())


def _input_weight_gradients(kernels: Sequence[Kernel]) -> list[Work]:
    """Return the weight gradients that read a part's input: its own gradient may be in flight."""
    return weight_gradients(kernel for kernel in kernels if kernel.reads_input)
