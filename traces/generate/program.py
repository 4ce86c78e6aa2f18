"""What one rank of a pipeline stage does, as columns: tiled to all ranks of the stage later.

Ranks of a stage differ only in which groups they belong to. So an op names a *channel*, which is a
group per rank, and the number of a call on it; :mod:`traces.generate.expand` turns both into calls.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.workload import What
from traces.generate.kernel_times import Accelerator, Kernel, Work, duration
from traces.generate.layers import Exchange
from traces.generate.parallelism import Parallelism, groups, stage_ranks

COMPUTE = "compute"
"""Name of the lane of kernels; collectives have a lane named after their group's label."""
HOST = "host"


class ChannelCall(NamedTuple):
    """What a call on a channel is."""

    kind: str
    size: float
    dtype: str


@dataclass(slots=True)
class Channel:
    """Groups of one label, shape ``(groups, members)``, all of which make the same calls."""

    label: str
    groups: NDArray[np.int64]
    calls: list[ChannelCall] = field(default_factory=list)

    def add(self, call: ChannelCall) -> int:
        """Add a call; returns its number."""
        self.calls.append(call)
        return len(self.calls) - 1


@dataclass(slots=True)
class Channels:
    """Channels of a job, in the order in which they were first used."""

    parallelism: Parallelism
    all: dict[tuple[str, int, int], Channel] = field(default_factory=dict)

    def collective(self, label: str, stage: int) -> tuple[str, int, int]:
        """Key of the channel of a label on a stage."""
        key = (label, stage, stage)
        if key not in self.all:
            dimension = "dp" if label == "fsdp" else label
            self.all[key] = Channel(label, groups(self.parallelism, dimension, stage))
        return key

    def between(self, label: str, sender: int, receiver: int) -> tuple[str, int, int]:
        """Key of the channel from every rank of a stage to its counterpart on another."""
        key = (label, sender, receiver)
        if key not in self.all:
            ends = [stage_ranks(self.parallelism, stage) for stage in (sender, receiver)]
            self.all[key] = Channel(label, np.stack(ends, axis=1))
        return key


UNKNOWN_WORK = Work(math.nan, math.nan)
"""Of an op that is no kernel."""


@dataclass(slots=True)
class Program:
    """Ops of a rank of one stage, numbered from 0; ops of a lane follow each other.

    ``waits`` are what the next kernel or exchange waits for besides its lane, ``weights`` what the
    next kernel alone waits for. ``work`` is what an op's kernels do together, ``UNKNOWN_WORK`` for
    one without; ``flops`` adds it up.
    """

    stage: int
    channels: Channels
    accelerator: Accelerator
    dtype: str
    what: list[int] = field(default_factory=list)
    lane: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    channel: list[tuple[str, int, int] | None] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    flops: float = 0.0
    _last: dict[str, int] = field(default_factory=dict)

    def last(self, lane: str) -> list[int]:
        """Return the last op of a lane; nothing if the lane is empty."""
        return [self._last[lane]] if lane in self._last else []

    def compute(self, name: str, works: Iterable[Work]) -> int:
        """Add kernels as one op, which waits for what is to be waited for."""
        works = tuple(works)
        done = Work(sum(work.flops for work in works), sum(work.traffic for work in works))
        self.flops += done.flops
        time = sum(duration(work, self.accelerator) for work in works)
        op = self._op(What.COMPUTE, COMPUTE, name, time)
        self.work[op] = done
        self._after(op, [*self.waits, *self.weights])
        self.waits, self.weights = [], []
        return op

    def exchange(self, one: Exchange) -> None:
        """Add a collective that waits for the last kernel, and is waited for by the next."""
        op = self.collective(one, one.label, self.waits or self.last(COMPUTE))
        if op is not None:
            self.waits = [op]

    def collective(
        self, one: Exchange, lane: str, after: Iterable[int], dtype: str | None = None
    ) -> int | None:
        """Add a collective on a lane; none where the group is a single rank."""
        key = self.channels.collective(one.label, self.stage)
        channel = self.channels.all[key]
        if channel.groups.shape[1] == 1:
            return None
        number = channel.add(ChannelCall(one.kind, one.size, dtype or self.dtype))
        op = self._op(What.COLLECTIVE, lane, one.kind, 0.0)
        self._names(op, key, number, after)
        return op

    def message(
        self, what: What, lane: str, at: tuple[tuple[str, int, int], int], after: Iterable[int]
    ) -> int:
        """Add this rank's side of a call of a channel that both sides have agreed on."""
        key, number = at
        op = self._op(what, lane, lane, 0.0)
        self._names(op, key, number, after)
        return op

    def _names(self, op: int, key: tuple[str, int, int], number: int, after: Iterable[int]) -> None:
        self.channel[op], self.number[op] = key, number
        self._after(op, after)

    def _op(self, what: What, lane: str, name: str, time: float) -> int:
        op = len(self.what)
        self.what.append(int(what))
        self.lane.append(lane)
        self.name.append(name)
        self.duration.append(time)
        self.work.append(UNKNOWN_WORK)
        self.channel.append(None)
        self.number.append(-1)
        self._after(op, self.last(lane))
        self._last[lane] = op
        return op

    def _after(self, op: int, sources: Iterable[int]) -> None:
        self.edges += [(source, op) for source in sources]


def forward(kernels: Iterable[Kernel]) -> list[Work]:
    """Work of the forward pass."""
    return [kernel.forward for kernel in kernels]


def input_gradients(kernels: Iterable[Kernel]) -> list[Work]:
    """Work of the gradients of what the kernels read."""
    return [kernel.input_gradient for kernel in kernels]


def weight_gradients(kernels: Iterable[Kernel]) -> list[Work]:
    """Work of the gradients of the weights, of kernels that have weights."""
    return [kernel.weight_gradient for kernel in kernels if kernel.weight_gradient.traffic]


def with_launches(program: Program, launch: float) -> Program:
    """Put a host op of ``launch`` seconds before every op, in a row: the host may run ahead."""
    ops = len(program.what)
    host = list(range(ops))
    return Program(
        stage=program.stage,
        channels=program.channels,
        accelerator=program.accelerator,
        dtype=program.dtype,
        what=[int(What.HOST)] * ops + program.what,
        lane=[HOST] * ops + program.lane,
        name=["launch"] * ops + program.name,
        duration=[launch] * ops + program.duration,
        work=[UNKNOWN_WORK] * ops + program.work,
        channel=[*[None] * ops, *program.channel],
        number=[-1] * ops + program.number,
        edges=[
            *pairwise(host),
            *((op, ops + op) for op in host),
            *((ops + source, ops + target) for source, target in program.edges),
        ],
        flops=program.flops,
    )
