"""One pipeline stage works off its slots: parts of layers, exchanges, messages to its neighbours.

Messages wait for the kernel that makes them and are waited for by the one that needs them. They
are asynchronous and receives are posted ahead, in the order of the sender: a stage that is late
never holds up the one before. Buffers for what has arrived are not limited.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.workload import What
from traces.layer_parts import Block, Part
from traces.phases import MicroBatch
from traces.pipeline_schedule import Phase, Slot
from traces.program import (
    COMPUTE,
    ChannelCall,
    Channels,
    Program,
    forward,
    input_gradients,
    weight_gradients,
)
from traces.replicas import Replicas
from traces.roofline import Kernel, Work

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
