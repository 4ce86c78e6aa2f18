"""How much a step computes and communicates: what formulas in papers state, and MFU needs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.metrics import mfu
from traces.layers import chunks
from traces.parallelism import Parallelism
from traces.phases import MicroBatch, Serving, Training


class Volume(NamedTuple):
    """Calls of one label and kind in the whole job, and the sum of their sizes (B).

    A call's size is S of nccl-tests: the larger of a rank's input and output.
    """

    calls: int
    size: float


@dataclass(frozen=True, slots=True)
class Volumes:
    """A step of the whole job.

    ``model_flops`` are those the model needs whatever the parallelism: nothing is recomputed or
    computed twice (PaLM, arXiv 2204.02311, appendix B). ``flops`` are those of all kernels.
    ``exchanged`` has a volume for every label of groups and kind of call.
    """

    tokens: int
    model_flops: float
    flops: float
    exchanged: Mapping[tuple[str, str], Volume]

    def record(self) -> dict[str, object]:
        """Return what a JSON answer says: one entry per label and kind, sizes in bytes."""
        return {
            "tokens": self.tokens,
            "model_flops": self.model_flops,
            "flops": self.flops,
            "exchanged": [
                {"label": label, "kind": kind, "calls": volume.calls, "size": volume.size}
                for (label, kind), volume in self.exchanged.items()
            ],
        }

    def mfu(self, step: float, *, ranks: int, peak: float) -> float:
        """MFU of ``model_flops`` in a step of ``step`` s, as :func:`simulator.metrics.mfu`."""
        return mfu(self.model_flops, step=step, ranks=ranks, peak=peak)


def model_flops(batch: MicroBatch, run: Training | Serving) -> float:
    """FLOPs of the model on the sequences of one micro-batch: forward, and backward in training."""
    alone = replace(batch, parallelism=Parallelism())
    kernels = [
        kernel
        for chunk in chunks(alone)
        for block in chunk
        for part in block.parts
        for kernel in part.kernels
    ]
    total = sum(kernel.forward.flops for kernel in kernels)
    if isinstance(run, Training):
        total += sum(k.input_gradient.flops + k.weight_gradient.flops for k in kernels)
    return total


def tokens(batch: MicroBatch, run: Training | Serving) -> int:
    """Return the new tokens of a step of the whole job."""
    if isinstance(run, Training):
        return run.global_batch * run.sequence
    return run.batch * batch.length * batch.parallelism.dp
