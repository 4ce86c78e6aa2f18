"""What replicas of a stage share: gradients are reduced, states and weights are held in part.

Volumes are those of ZeRO (arXiv 1910.02054, section 7): with ``P`` parameters the gradients cost
an all-reduce of ``P``, the same as a reduce-scatter and an all-gather (stages 1 and 2); stage 3
gathers the weights twice, forward and backward, and scatters the gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.dtypes import bytes_per_element
from simulator.workload import What
from traces.layer_parts import Block, Exchange
from traces.layers import weights_on_rank
from traces.model_card import Parameters
from traces.phases import MicroBatch, Training
from traces.program import COMPUTE, ChannelCall, Program
from traces.roofline import Work

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
