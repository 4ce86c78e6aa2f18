"""One pipeline stage works off its slots: parts of layers, exchanges, messages to its neighbours.

Messages wait for the kernel that makes them and are waited for by the one that needs them. They
are asynchronous and receives are posted ahead, in the order of the sender: a stage that is late
never holds up the one before. Buffers for what has arrived are not limited.

What replicas of a stage share: gradients are reduced, states and weights are held in part.

Volumes are those of ZeRO (arXiv 1910.02054, section 7): with ``P`` parameters the gradients cost
an all-reduce of ``P``, the same as a reduce-scatter and an all-gather (stages 1 and 2); stage 3
gathers the weights twice, forward and backward, and scatters the gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.quantities import bytes_per_element
from simulator.workload import What
from traces.generate.kernel_times import Kernel, Work
from traces.generate.layers import Block, Exchange, Part, weights_on_rank
from traces.generate.model import Parameters
from traces.generate.pipeline import Phase, Slot
from traces.generate.program import (
    COMPUTE,
    ChannelCall,
    Channels,
    Program,
    forward,
    input_gradients,
    weight_gradients,
)
from traces.generate.run import MicroBatch, Training

_STATE_BYTES = 12
"""Master weight and two moments in fp32 per parameter (Adam in mixed precision, arXiv 1910.02054,
section 3.1): read, and written back."""
_AHEAD = 2
"""Blocks whose weights are held at once: the one under way and the next, which is prefetched, as
PyTorch's FSDP limits its all-gathers (arXiv 2304.11277, section 3.4)."""


@dataclass(slots=True)
class Replicas:
    """A stage's data parallelism while its program is written.

    ``blocks`` are all the stage holds. ``ready`` are parameters whose gradients wait to fill a
    bucket, ``ends`` the last kernel of every block passed, in order.
    """

    program: Program
    batch: MicroBatch
    training: Training
    blocks: Sequence[Block]
    ready: Parameters = field(default_factory=Parameters)
    ends: list[int] = field(default_factory=list)

    def gather(self, block: Block) -> None:
        """ZeRO-3: gather a block's weights ahead of its first kernel."""
        if self.batch.parallelism.zero < 3:
            return
        after = self.ends[-_AHEAD : 1 - _AHEAD]
        weights = weights_on_rank(block.weights, self.batch)
        for one in self._exchanges("all_gather", weights, self.batch.width):
            op = self.program.collective(one, f"{one.label} gather", after)
            self.program.weights += [op] if op is not None else []

    def passed(self) -> None:
        """Note that a block has been passed: its weights may go."""
        self.ends += self.program.last(COMPUTE)

    def reduce(self, block: Block, micro_batch: int) -> None:
        """Reduce a block's gradients, which are there, once they are complete.

        From ZeRO-2 on nobody holds all gradients, so that those of every micro-batch go out; until
        then they are added up and go out with the last.
        """
        p = self.batch.parallelism
        is_last = micro_batch + 1 == self.training.micro_batches(p)
        if not is_last and p.zero < 2:
            return
        self.ready = _sum(self.ready, weights_on_rank(block.weights, self.batch))
        if self.ready.total * self._gradient_bytes >= self.training.bucket or p.zero == 3:
            self._flush()

    def finish(self) -> None:
        """Reduce what is left, step the optimiser, and hand new weights out."""
        self._flush()
        program, p = self.program, self.batch.parallelism
        if self.batch.model.tied_embeddings and p.pp > 1 and program.stage in (0, p.pp - 1):
            self._sum_embeddings()
        lanes = ("dp", "edp", "fsdp reduce", "edp reduce", "embd")
        program.waits = [op for lane in lanes for op in program.last(lane)]
        program.compute("optimiser", (self._step(),))
        if p.zero not in (1, 2):
            return
        for block in self.blocks:
            weights = weights_on_rank(block.weights, self.batch)
            for one in self._exchanges("all_gather", weights, self.batch.width):
                program.collective(one, one.label, program.last(COMPUTE))

    @property
    def _gradient_bytes(self) -> int:
        return bytes_per_element(self.training.gradient)

    def _flush(self) -> None:
        p = self.batch.parallelism
        kind = "reduce_scatter" if p.zero else "all_reduce"
        for one in self._exchanges(kind, self.ready, self._gradient_bytes):
            lane = f"{one.label} reduce" if p.zero == 3 else one.label
            after = self.program.last(COMPUTE)
            self.program.collective(one, lane, after, self.training.gradient)
        self.ready = Parameters()

    def _exchanges(self, kind: str, held: Parameters, width: int) -> list[Exchange]:
        """Exchange of what all replicas hold, and of experts among those that hold the same."""
        p = self.batch.parallelism
        label = "fsdp" if p.zero == 3 else "dp"
        dense = held.cut + held.whole + (held.experts if p.ep == 1 else 0.0)
        found = [Exchange(kind, label, dense * width)] if dense else []
        if held.experts and p.ep > 1:
            found.append(Exchange(kind, "edp", held.experts * width))
        return found

    def _sum_embeddings(self) -> None:
        """First and last stage hold a tied matrix each, and add up their gradients."""
        program, p, model = self.program, self.batch.parallelism, self.batch.model
        key = program.channels.between("embd", 0, p.pp - 1)
        channel = program.channels.all[key]
        size = model.vocabulary * model.hidden / p.tp * self._gradient_bytes
        if not channel.calls:
            channel.add(ChannelCall("all_reduce", size, self.training.gradient))
        program.message(What.COLLECTIVE, "embd", (key, 0), program.last(COMPUTE))

    def _step(self) -> Work:
        """Adam on this rank's share: gradients and states read, states and weights written."""
        p = self.batch.parallelism
        held = [weights_on_rank(block.weights, self.batch) for block in self.blocks]
        experts = sum(one.experts for one in held) * (p.ep if p.zero else 1) / p.sharded
        dense = sum(one.cut + one.whole for one in held) / p.sharded
        each = self._gradient_bytes + 2 * _STATE_BYTES + self.batch.width
        return Work(traffic=(dense + experts) * each)


def _sum(one: Parameters, other: Parameters) -> Parameters:
    return Parameters(*(a + b for a, b in zip(one, other, strict=True)))


FORWARD, BACKWARD = "forward", "backward"
Message = tuple[str, int, int]
"""Direction, micro-batch, and the chunk of the whole pipeline that sends it."""
Mail = dict[Message, tuple[tuple[str, int, int], int]]
"""The channel of each message, and its number there."""


def mail(batch: MicroBatch, orders: Sequence[Sequence[Slot]], channels: Channels) -> Mail:
    """Assign the messages between stages their numbers, a channel's in the order of sending.

    A message is ``b s h`` elements, each tensor rank's share of it where the sequence is cut
    (arXiv 2104.04473, section 3.2 and 4.1).
    """
    p = batch.parallelism
    size = batch.hidden_bytes / p.tokens_cut
    found: Mail = {}
    for stage, order in enumerate(orders):
        for slot in order:
            place = slot.chunk * p.pp + stage
            if slot.phase is Phase.FORWARD:
                direction, receiver, is_sent = FORWARD, stage + 1, place + 1 < p.chunks
            else:
                direction, receiver, is_sent = BACKWARD, stage - 1, place > 0
            if not is_sent or slot.phase is Phase.WEIGHT_GRADIENT:
                continue
            key = channels.between("pp", stage, receiver % p.pp)
            call = ChannelCall("send_receive", size, batch.dtype)
            found[direction, slot.micro_batch, place] = key, channels.all[key].add(call)
    return found


@dataclass(slots=True)
class Stage:
    """A stage while its program is written; ``replicas`` shares out weights and gradients.

    ``losses`` are the exchanges behind which a micro-batch's loss is known.
    """

    program: Program
    batch: MicroBatch
    blocks: Sequence[Sequence[Block]]
    mail: Mail
    replicas: Replicas | None = None
    recompute: str = "none"
    losses: dict[int, list[int]] = field(default_factory=dict)

    def work(self, slots: Sequence[Slot]) -> None:
        """Write the program of these slots."""
        for slot in slots:
            _WORK[slot.phase](self, slot)

    def _forward(self, slot: Slot) -> None:
        place = self._place(slot)
        if place > 0:
            self._receive((FORWARD, slot.micro_batch, place - 1))
        for block in self._blocks(slot):
            self._gather(block)
            for part in block.parts:
                self._forward_part(part, "forward")
            self._passed()
        if place + 1 < self.batch.parallelism.chunks:
            self._send((FORWARD, slot.micro_batch, place))
        else:
            self.losses[slot.micro_batch], self.program.waits = self.program.waits, []

    def _backward(self, slot: Slot) -> None:
        place = self._place(slot)
        if place + 1 < self.batch.parallelism.chunks:
            self._receive((BACKWARD, slot.micro_batch, place + 1))
        else:
            self.program.waits = self.losses.pop(slot.micro_batch)
        for block in reversed(self._blocks(slot)):
            self._gather(block)
            self._recompute(block)
            for part in reversed(block.parts):
                self._backward_part(part, slot.phase)
            self._passed()
            if slot.phase is Phase.BACKWARD:
                self._reduce(block, slot)
        if place > 0:
            self._send((BACKWARD, slot.micro_batch, place))

    def _weight_gradient(self, slot: Slot) -> None:
        for block in reversed(self._blocks(slot)):
            for part in reversed(block.parts):
                works = weight_gradients(part.kernels)
                if works:
                    self.program.compute(f"{part.name} weight gradient", works)
            self._reduce(block, slot)

    def _forward_part(self, part: Part, what: str) -> None:
        for one in part.before:
            self.program.exchange(one)
        self.program.compute(f"{part.name} {what}", forward(part.kernels))
        for one in part.after:
            self.program.exchange(one)

    def _backward_part(self, part: Part, phase: Phase) -> None:
        """Gradients of a part; those of the weights it enters by overlap what it exchanges.

        Megatron-LM computes them while the input's gradient is reduced. With sequence parallelism
        it gathers the input of such a matrix once more, in the shadow of the input's gradient;
        that is left out.
        """
        for one in part.back_before:
            self.program.exchange(one)
        works = self._repeated_scores(part) + input_gradients(part.kernels)
        shadow: list[Work] = []
        if phase is Phase.BACKWARD and self._exchanges(part):
            works += weight_gradients(kernel for kernel in part.kernels if not kernel.entry)
            shadow = weight_gradients(kernel for kernel in part.kernels if kernel.entry)
        elif phase is Phase.BACKWARD:
            works += weight_gradients(part.kernels)
        name = "input gradient" if phase is Phase.INPUT_GRADIENT else "backward"
        self.program.compute(f"{part.name} {name}", works)
        for one in part.back_after:
            self.program.exchange(one)
        if shadow:
            waits, self.program.waits = self.program.waits, []
            self.program.compute(f"{part.name} weight gradient", shadow)
            self.program.waits = waits

    def _exchanges(self, part: Part) -> bool:
        """Whether what follows the part's gradients is between several ranks."""
        p = self.batch.parallelism
        degree = {"tp": p.tp, "cp": p.cp, "ep": p.ep}
        return any(degree[one.label] > 1 for one in part.back_after)

    def _recompute(self, block: Block) -> None:
        """Repeat a layer's forward pass, exchanges and all, once its gradient has come."""
        if self.recompute != "full" or not block.is_layer:
            return
        for part in block.parts:
            self._forward_part(part, "recomputation")

    def _repeated_scores(self, part: Part) -> list[Work]:
        scores: list[Kernel] = []
        if self.recompute == "selective":
            scores = [kernel for kernel in part.kernels if kernel.name == "scores"]
        return forward(scores)

    def _receive(self, message: Message) -> None:
        lane = f"pp receive {message[0]}"
        self.program.waits = [self.program.message(What.RECEIVE, lane, self.mail[message], ())]

    def _send(self, message: Message) -> None:
        after = self.program.waits or self.program.last(COMPUTE)
        self.program.message(What.SEND, f"pp send {message[0]}", self.mail[message], after)
        self.program.waits = []

    def _gather(self, block: Block) -> None:
        if self.replicas is not None:
            self.replicas.gather(block)

    def _passed(self) -> None:
        if self.replicas is not None:
            self.replicas.passed()

    def _reduce(self, block: Block, slot: Slot) -> None:
        if self.replicas is not None:
            self.replicas.reduce(block, slot.micro_batch)

    def _place(self, slot: Slot) -> int:
        """Chunk of the whole pipeline."""
        return slot.chunk * self.batch.parallelism.pp + self.program.stage

    def _blocks(self, slot: Slot) -> Sequence[Block]:
        return self.blocks[self._place(slot)]


_WORK = {
    Phase.FORWARD: Stage._forward,
    Phase.BACKWARD: Stage._backward,
    Phase.INPUT_GRADIENT: Stage._backward,
    Phase.WEIGHT_GRADIENT: Stage._weight_gradient,
}
