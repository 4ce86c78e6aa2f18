"""The programs: small trainings in PyTorch over gloo, each a function that makes a step.

They are what large jobs do, made small. Layers are real matrix products; where more ranks run than
there are cores, an operator that sleeps stands in for most of the computing, because ranks that
wait for a core compute at a speed that no profile of one of them explains.

``NAMES`` has all of them; ``torch`` is imported here, so only a rank's process imports this module.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.live.shapes import BACKWARD, FORWARD, Shape, Unit, units_of

Step = Callable[[], None]

_LIBRARY = torch.library.Library("stand_in", "DEF")
_LIBRARY.define("compute(Tensor values, float seconds) -> Tensor")


def _compute(values: torch.Tensor, seconds: float) -> torch.Tensor:
    """Take as long as a computation that needs no core: an accelerator's, say."""
    time.sleep(seconds)
    return values.clone()


_LIBRARY.impl("compute", _compute, "CPU")


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


def all_to_all(shape: Shape) -> Step:
    """Experts: tokens go to another rank's experts and come back, forward and backward."""
    tokens = torch.randn(shape.batch, shape.hidden)
    experts = [0.02 * torch.randn(shape.hidden, shape.hidden) for _ in range(shape.layers)]

    def exchanged(values: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(values)
        distributed.all_to_all_single(received, values)
        return received

    def step() -> None:
        values = tokens
        for expert in experts:
            chosen = _rest(values, shape.sleep / 2)  # attention and the router
            values = exchanged(_rest(exchanged(chosen) @ expert, shape.sleep / 2))
        gradient = 1e-3 * values
        for expert in reversed(experts):
            inner = exchanged(gradient) @ expert.t()
            gradient = _rest(exchanged(_rest(inner, shape.sleep)), shape.sleep)

    return step


def two_groups(shape: Shape) -> Step:
    """Tensor parallel in pairs, data parallel between them: gradients move beside the layers."""
    rank, width = distributed.get_rank(), shape.hidden
    size = 2
    pairs = [list(range(first, first + size)) for first in range(0, shape.ranks, size)]
    across = [list(range(first, shape.ranks, size)) for first in range(size)]
    tensor, data = (
        next(
            group
            for ranks, group in [(r, distributed.new_group(r)) for r in groups]
            if rank in ranks
        )
        for groups in (pairs, across)
    )
    weights = [0.02 * torch.randn(width, width) for _ in range(shape.layers)]
    inputs = torch.randn(shape.batch, width)

    def step() -> None:
        values = [inputs]
        for weight in weights:
            out = _rest(torch.relu(values[-1] @ weight), shape.sleep)
            distributed.all_reduce(out, group=tensor)
            values.append(out)
        gradient, reduced = 1e-3 * values[-1], []
        for layer in reversed(range(shape.layers)):
            gradient = _rest(gradient, 2 * shape.sleep)
            own = values[layer].t() @ gradient
            reduced.append((layer, own, distributed.all_reduce(own, group=data, async_op=True)))
            gradient = gradient @ weights[layer].t()
            distributed.all_reduce(gradient, group=tensor)
        for layer, own, work in reduced:
            work.wait()
            weights[layer].add_(own, alpha=-1e-9)

    return step


class _Pipeline:
    """A rank of a pipeline: activations and gradients are messages between neighbours."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.rank = shape, distributed.get_rank()
        self.last = shape.ranks * shape.chunks - 1
        self.units = units_of(shape, self.rank)
        self.weights = {
            virtual: [0.02 * torch.randn(shape.hidden, shape.hidden) for _ in range(shape.layers)]
            for virtual in range(self.rank, self.last + 1, shape.ranks)
        }
        self.inputs = torch.randn(shape.batch, shape.hidden)
        self.kept: dict[tuple[int, int], list[torch.Tensor]] = {}
        self.sent: list[Any] = []

    def _tag(self, unit: Unit) -> int:
        """Return the number of what a pass sends, the same on both sides."""
        return 2 * (unit.micro * (self.last + 1) + unit.virtual) + (unit.what == FORWARD)

    def received(self, unit: Unit) -> torch.Tensor:
        values = torch.empty_like(self.inputs)
        distributed.recv(values, unit.virtual % self.shape.ranks, tag=self._tag(unit))
        return values

    def send(self, values: torch.Tensor, unit: Unit, to: int) -> None:
        work = distributed.isend(values, to % self.shape.ranks, tag=self._tag(unit))
        self.sent.append((work, values))

    def forward(self, unit: Unit) -> None:
        before = Unit(FORWARD, unit.micro, unit.virtual - 1)
        values = [self.received(before) if unit.virtual else self.inputs]
        for weight in self.weights[unit.virtual]:
            values.append(_rest(torch.relu(values[-1] @ weight), self.shape.sleep))
        self.kept[unit.micro, unit.virtual] = values
        if unit.virtual < self.last:
            self.send(values[-1], unit, unit.virtual + 1)

    def backward(self, unit: Unit) -> None:
        values = self.kept.pop((unit.micro, unit.virtual))
        behind = Unit(BACKWARD, unit.micro, unit.virtual + 1)
        is_last = unit.virtual == self.last
        gradient = 1e-3 * values[-1] if is_last else self.received(behind)
        for layer in reversed(range(self.shape.layers)):
            gradient = _rest(gradient * (values[layer + 1] > 0), 2 * self.shape.sleep)
            weight = self.weights[unit.virtual][layer]
            weight.addmm_(values[layer].t(), gradient, alpha=-1e-9)
            gradient = gradient @ weight.t()
        if unit.virtual:
            self.send(gradient, unit, unit.virtual - 1)

    def step(self) -> None:
        for unit in self.units:
            (self.forward if unit.what == FORWARD else self.backward)(unit)
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()


def pipeline(shape: Shape) -> Step:
    """Layers cut over the ranks; activations and gradients are messages."""
    return _Pipeline(shape).step


NAMES: dict[str, Callable[[Shape], Step]] = {
    "data_parallel": data_parallel,
    "sharded": sharded,
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
    "all_to_all": all_to_all,
    "two_groups": two_groups,
}
