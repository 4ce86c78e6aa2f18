"""The programs: small trainings in PyTorch over gloo, each a function that makes a step.

They are what large jobs do, made small. Layers are real matrix products; where more ranks run than
there are cores, an operator that sleeps stands in for most of the computing, because ranks that
wait for a core compute at a speed that no profile of one of them explains.

``NAMES`` has all of them; ``torch`` is imported here, so only a rank's process imports this module.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[], None]

_LIBRARY = torch.library.Library("stand_in", "DEF")
_LIBRARY.define("compute(Tensor values, float seconds) -> Tensor")


def _compute(values: torch.Tensor, seconds: float) -> torch.Tensor:
    """Take as long as a computation that needs no core: an accelerator's, say."""
    time.sleep(seconds)
    return values.clone()


_LIBRARY.impl("compute", _compute, "CPU")


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a program is.

    ``sleep`` (s) stands in for computing per layer forward, twice that backward; ``bucket_mib`` is
    of data parallelism's gradients, ``micro_batches`` of a pipeline.
    """

    ranks: int
    layers: int
    hidden: int
    batch: int
    sleep: float = 0.0
    bucket_mib: float = 4.0
    micro_batches: int = 4


class _Resting(torch.autograd.Function):
    """The operator that sleeps, forward and twice as long backward."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return torch.ops.stand_in.compute(values, seconds)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.ops.stand_in.compute(gradient, 2 * ctx.seconds), None


class _Rest(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _Resting.apply(values, self.seconds) if self.seconds else values


def _rest(values: torch.Tensor, seconds: float) -> torch.Tensor:
    return torch.ops.stand_in.compute(values, seconds) if seconds else values


def data_parallel(shape: Shape) -> Step:
    """Gradients in buckets, each all-reduced while the backward pass goes on."""
    width = shape.hidden
    layers: list[torch.nn.Module] = []
    for _ in range(shape.layers):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU(), _Rest(shape.sleep)]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=shape.bucket_mib, gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(2, shape.batch, width)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        distributed.all_reduce(loss.detach())

    return step


class _Sharded:
    """Weights cut over the ranks: gathered a layer ahead of their use, gradients scattered."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.part = shape.hidden * shape.hidden // shape.ranks
        self.shards = [0.02 * torch.randn(self.part) for _ in range(shape.layers)]
        self.inputs = torch.randn(shape.batch, shape.hidden)

    def gather(self, layer: int) -> tuple[torch.Tensor, Any]:
        whole = torch.empty(self.shape.hidden, self.shape.hidden)
        flat = whole.view(-1)
        return whole, distributed.all_gather_into_tensor(flat, self.shards[layer], async_op=True)

    def forward(self) -> list[torch.Tensor]:
        values, coming = [self.inputs], self.gather(0)
        for layer in range(self.shape.layers):
            weights, work = coming
            work.wait()
            if layer + 1 < self.shape.layers:
                coming = self.gather(layer + 1)
            values.append(_rest(torch.relu(values[-1] @ weights), self.shape.sleep))
        return values

    def backward(self, values: list[torch.Tensor]) -> None:
        gradient, coming = values[-1] - 1, self.gather(self.shape.layers - 1)
        scattered = []
        for layer in reversed(range(self.shape.layers)):
            weights, work = coming
            work.wait()
            if layer:
                coming = self.gather(layer - 1)
            gradient = _rest(gradient * (values[layer + 1] > 0), 2 * self.shape.sleep)
            own, whole = torch.empty(self.part), values[layer].t() @ gradient
            work = distributed.reduce_scatter_tensor(own, whole.view(-1), async_op=True)
            scattered.append((layer, own, whole, work))
            gradient = gradient @ weights.t() if layer else gradient
        for layer, own, _, work in scattered:
            work.wait()
            self.shards[layer].add_(own, alpha=-1e-6)


def sharded(shape: Shape) -> Step:
    """Weights, gradients and optimizer state cut over the ranks, as ZeRO-3 and FSDP do."""
    model = _Sharded(shape)
    return lambda: model.backward(model.forward())


def tensor_parallel(shape: Shape) -> Step:
    """Wait for an all-reduce per layer, forward and backward: bound by latency."""
    width, part = shape.hidden, 2 * shape.hidden // shape.ranks
    rising = [0.02 * torch.randn(width, part) for _ in range(shape.layers)]
    falling = [0.02 * torch.randn(part, width) for _ in range(shape.layers)]
    inputs = torch.randn(shape.batch, width)

    def step() -> None:
        values, between = [inputs], []
        for up, down in zip(rising, falling, strict=True):
            between.append(torch.relu(values[-1] @ up))
            out = _rest(between[-1] @ down, shape.sleep)
            distributed.all_reduce(out)
            values.append(out)
        gradient = 1e-3 * values[-1]
        for layer in reversed(range(shape.layers)):
            gradient = _rest(gradient, 2 * shape.sleep)
            inner = (gradient @ falling[layer].t()) * (between[layer] > 0)
            falling[layer].add_(between[layer].t() @ gradient, alpha=-1e-9)
            gradient = inner @ rising[layer].t()
            rising[layer].add_(values[layer].t() @ inner, alpha=-1e-9)
            distributed.all_reduce(gradient)

    return step


class _Stage:
    """A stage of a pipeline: all micro-batches forward, then all backward (GPipe)."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.rank = shape, distributed.get_rank()
        self.first, self.last = self.rank == 0, self.rank == shape.ranks - 1
        weights = (torch.randn(shape.hidden, shape.hidden) for _ in range(shape.layers))
        self.weights = [0.02 * one for one in weights]
        self.inputs = torch.randn(shape.batch, shape.hidden)

    def received(self, source: int, tag: int) -> torch.Tensor:
        values = torch.empty_like(self.inputs)
        distributed.recv(values, source, tag=tag)
        return values

    def forward(self, micro: int) -> list[torch.Tensor]:
        values = [self.inputs if self.first else self.received(self.rank - 1, micro)]
        for weight in self.weights:
            values.append(_rest(torch.relu(values[-1] @ weight), self.shape.sleep))
        return values

    def backward(self, micro: int, values: list[torch.Tensor]) -> torch.Tensor:
        tag = self.shape.micro_batches + micro
        gradient = 1e-3 * values[-1] if self.last else self.received(self.rank + 1, tag)
        for layer in reversed(range(self.shape.layers)):
            gradient = _rest(gradient * (values[layer + 1] > 0), 2 * self.shape.sleep)
            self.weights[layer].addmm_(values[layer].t(), gradient, alpha=-1e-9)
            gradient = gradient @ self.weights[layer].t()
        return gradient

    def step(self) -> None:
        kept, sent = [], []
        for micro in range(self.shape.micro_batches):
            kept.append(self.forward(micro))
            if not self.last:
                sent.append(distributed.isend(kept[-1][-1], self.rank + 1, tag=micro))
        for micro, values in enumerate(kept):
            gradient = self.backward(micro, values)
            tag = self.shape.micro_batches + micro
            if not self.first:
                sent.append(distributed.isend(gradient, self.rank - 1, tag=tag))
        for work in sent:
            work.wait()


def pipeline(shape: Shape) -> Step:
    """Layers cut over the ranks; activations and gradients are messages."""
    return _Stage(shape).step


NAMES: dict[str, Callable[[Shape], Step]] = {
    "data_parallel": data_parallel,
    "sharded": sharded,
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
}
