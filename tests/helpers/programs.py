"""Random training steps as programs: launched op by op, with streams, groups, phases and skew.

Each is what a rank's thread would do: forward and backward of layers that differ in size, under
tensor parallelism inside a node and data parallelism or sharding across, with expert exchange,
phases of small kernels that the host cannot feed fast enough, and read-backs. Some are pipelines,
inside nodes or across, which send the activations of each micro-batch on and gradients back, in the
order of GPipe (arXiv 1811.06965) or with one forward and one backward in turn (arXiv 1806.03377).
Compute and launches jitter, ranks start apart, some are slow.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What, Workload

COMPUTE, TENSOR, DATA, EXPERT = "stream 7", "stream 20", "stream 24", "stream 28"
NORM = "stream 32"
TO, FROM, BACK_TO, BACK_FROM = "stream 36", "stream 40", "stream 44", "stream 48"
"""Each way to each neighbour in a pipeline has a stream."""
RANKS, NODE, REPLICAS = 8, 4, 2


@dataclass(frozen=True)
class Pipeline:
    """What is drawn of a pipeline; one of a single stage has one batch.

    ``scattered``: the stages share each node, else they are apart. ``early``: what comes next is
    asked for before it is needed. ``norm``: all ranks reduce a few bytes at the end.
    """

    stages: int = 1
    batches: int = 1
    in_turn: bool = False
    scattered: bool = False
    early: bool = False
    norm: bool = False

    def schedule(self, stage: int) -> list[tuple[str, int]]:
        """Forward and backward passes of a stage, and the number of each one's batch."""
        ahead = min(self.batches, self.stages - stage - 1) if self.in_turn else self.batches
        order = [("forward", batch) for batch in range(ahead)]
        for batch in range(ahead, self.batches):
            order += [("forward", batch), ("backward", batch - ahead)]
        return [
            *order,
            *(("backward", batch) for batch in range(self.batches - ahead, self.batches)),
        ]


pipelines = st.one_of(
    st.just(Pipeline()),
    st.builds(
        Pipeline,
        stages=st.sampled_from((2, 4)),
        batches=st.integers(2, 6),
        in_turn=st.booleans(),
        scattered=st.booleans(),
        early=st.booleans(),
        norm=st.booleans(),
    ),
)


@dataclass(frozen=True)
class Program:
    """What is drawn of a step; times in us, sizes in bytes."""

    layers: int
    kernel: float
    launch: float
    latency: float
    activation: int
    gradient: int
    expert: int
    sharded: bool
    tensor: bool
    small: int
    read_back: bool
    skew: float
    straggler: float
    jitter: float
    seed: int
    pipeline: Pipeline = Pipeline()
    ranks: int = RANKS


def _power(low: int, high: int) -> st.SearchStrategy[int]:
    return st.floats(low, high).map(lambda power: int(2**power) // 64 * 64)


programs = st.builds(
    Program,
    layers=st.integers(3, 6),
    kernel=st.floats(20, 1500),
    launch=st.floats(4, 25),
    latency=st.floats(3, 10),
    activation=_power(16, 26),
    gradient=_power(20, 28),
    expert=st.one_of(st.just(0), _power(18, 25)),
    sharded=st.booleans(),
    tensor=st.booleans(),
    small=st.integers(0, 60),
    read_back=st.booleans(),
    skew=st.floats(0, 2000),
    straggler=st.floats(1.0, 1.4),
    jitter=st.floats(0, 0.05),
    seed=st.integers(0, 2**16),
    pipeline=pipelines,
)


def build(program: Program) -> Workload:
    """Make the step on its ranks, ``NODE`` to a node."""
    builder = WorkloadBuilder(job_ranks=program.ranks)
    calls: dict[tuple[int, int], int] = {}
    late = np.random.default_rng(program.seed).uniform(0, program.skew, program.ranks)
    for rank in range(program.ranks):
        thread = _Thread(builder, rank, program, calls, 1e-6 * float(late[rank] - late.min()))
        thread.run()
    return builder.build()


@dataclass
class _Thread:
    builder: WorkloadBuilder
    rank: int
    program: Program
    calls: dict[tuple[int, int], int]
    ready: float
    rng: np.random.Generator = field(init=False)
    host_op: int | None = None
    last: dict[str, int] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.program.seed, self.rank])

    def run(self) -> None:
        program = self.program
        for _ in range(program.small):
            self.kernel(3.0)
        gradients: list[int] = []
        order = program.pipeline.schedule(self.stage)
        awaited: list[int] = []
        for place, (way, batch) in enumerate(order):
            arrived = awaited or self.receive(way)
            awaited = []
            if program.pipeline.early and place + 1 < len(order):
                awaited = self.receive(order[place + 1][0])
            if way == "forward":
                self.forward(batch, arrived)
            else:
                gradients += self.backward(batch, arrived)
        if program.pipeline.norm:
            every = range(program.ranks)
            gradients += [self.collective("all_reduce", every, "", 64, NORM, behind=True)]
        for gradient in gradients:
            self.kernel(program.kernel / 8, waits=(gradient,))
        self.synchronize()

    def forward(self, batch: int, arrived: Sequence[int]) -> None:
        program = self.program
        sharded = program.sharded and batch == 0
        gathered = self.gather(0) if sharded else None
        for layer in range(program.layers):
            following = self.gather(layer + 1) if sharded else None
            waits = (*arrived, *(() if gathered is None else (gathered,)))
            self.kernel(program.kernel, waits=waits)
            gathered, arrived = following, ()
            self.tensor_parallel(layer)
            self.exchange(layer)
        self.send(1, TO)
        if program.read_back and batch == program.pipeline.batches - 1:
            self.synchronize()

    def backward(self, batch: int, arrived: Sequence[int]) -> list[int]:
        """Return the gradients that are reduced: those of the last batch."""
        gradients = []
        for layer in range(self.program.layers):
            self.kernel(2 * self.program.kernel, waits=arrived)
            arrived = ()
            self.tensor_parallel(layer)
            if batch == self.program.pipeline.batches - 1:
                gradients.append(self.reduce(layer))
        self.send(-1, BACK_TO)
        return gradients

    def receive(self, way: str) -> list[int]:
        """Receive what a pass begins with: activations from before, or gradients from behind."""
        step, lane = (-1, FROM) if way == "forward" else (1, BACK_FROM)
        if not 0 <= self.stage + step < self.program.pipeline.stages:
            return []
        ends = (self.neighbour(step), self.rank)
        return [self.collective("send_receive", ends, "pp", self.program.activation, lane)]

    def send(self, step: int, lane: str) -> None:
        if 0 <= self.stage + step < self.program.pipeline.stages:
            ends, size = (self.rank, self.neighbour(step)), self.program.activation
            self.collective("send_receive", ends, "pp", size, lane, behind=True)

    def gather(self, layer: int) -> int:
        return self.collective("all_gather", self.across, "dp", self.size(layer), DATA)

    def reduce(self, layer: int) -> int:
        kind = "reduce_scatter" if self.program.sharded else "all_reduce"
        return self.collective(kind, self.across, "dp", self.size(layer), DATA, behind=True)

    def tensor_parallel(self, layer: int) -> None:
        if self.program.tensor and len(self.inside) > 1:
            size = self.program.activation * (1 + layer % 2)
            done = self.collective("all_reduce", self.inside, "tp", size, TENSOR, behind=True)
            self.kernel(self.program.kernel / 4, waits=(done,))

    def exchange(self, layer: int) -> None:
        if self.program.expert:
            size = self.program.expert * (1 + layer % 3)
            done = self.collective("all_to_all", self.experts, "ep", size, EXPERT, behind=True)
            self.kernel(self.program.kernel / 2, waits=(done,))

    @property
    def _steps(self) -> tuple[int, int]:
        """How far apart ranks of neighbouring stages are, and those of replicas."""
        pipeline = self.program.pipeline
        width = self.program.ranks // REPLICAS // pipeline.stages
        return (width, NODE) if pipeline.scattered else (REPLICAS * width, width)

    @property
    def stage(self) -> int:
        return self.rank // self._steps[0] % self.program.pipeline.stages

    def neighbour(self, step: int) -> int:
        return self.rank + step * self._steps[0]

    @property
    def inside(self) -> range:
        width = self.program.ranks // REPLICAS // self.program.pipeline.stages
        first = self.rank // width * width
        return range(first, first + width)

    @property
    def across(self) -> range:
        step = self._steps[1]
        first = self.rank - self.rank // step % REPLICAS * step
        return range(first, first + REPLICAS * step, step)

    @property
    def experts(self) -> tuple[int, ...]:
        """All ranks of the stage."""
        away = [one - self.rank for one in self.across]
        return tuple(sorted(one + far for one in self.inside for far in away))

    def size(self, layer: int) -> int:
        """Layers differ: the last holds the embedding."""
        return self.program.gradient * (3 if layer >= self.program.layers - 1 else 1)

    def kernel(self, us: float, waits: Sequence[int] = ()) -> int:
        jitter = max(0.5, 1 + self.program.jitter * self.rng.standard_normal())
        slow = self.program.straggler if self.rank == self.program.ranks - 1 else 1.0
        duration = 1e-6 * us * jitter * slow
        return self.launch((What.COMPUTE, COMPUTE, "gemm", duration), -1, waits)

    def collective(
        self,
        kind: str,
        ranks: Sequence[int],
        label: str,
        size: int,
        lane: str,
        *,
        behind: bool = False,
    ) -> int:
        group = self.builder.group(tuple(ranks), label)
        number = self.joined[group]
        self.joined[group] += 1
        if (group, number) not in self.calls:
            row = CallRow(kind, group, number, float(size), dtype="BFloat16")
            self.calls[group, number] = self.builder.call(row)
        waits = (self.last[COMPUTE],) if behind else ()
        what = What.COLLECTIVE
        if kind == "send_receive":
            what = What.SEND if ranks[0] == self.rank else What.RECEIVE
        return self.launch((what, lane, kind, 0.0), self.calls[group, number], waits)

    def launch(
        self, row: tuple[What, str, str, float], call: int, waits: Sequence[int] = ()
    ) -> int:
        what, lane, name, duration = row
        host = self.host("aten::op", self.program.launch * self.rng.uniform(0.7, 1.5))
        op = self.builder.op(
            what, rank=self.rank, lane=lane, name=name, duration=duration, call=call
        )
        self.builder.edge(host, op, lag=1e-6 * self.program.latency)
        for before in (*waits, *([self.last[lane]] if lane in self.last else [])):
            self.builder.edge(before, op)
        self.last[lane] = op
        return op

    def synchronize(self) -> None:
        op = self.host("aten::item", 6.0)
        self.builder.edge(self.last[COMPUTE], op)

    def host(self, name: str, us: float) -> int:
        ready = self.ready if self.host_op is None else 0.0
        op = self.builder.op(
            What.HOST, rank=self.rank, lane="thread 1", name=name, duration=1e-6 * us, ready=ready
        )
        if self.host_op is not None:
            self.builder.edge(self.host_op, op)
        self.host_op = op
        return op


def with_noise(workload: Workload, seed: int, deviation: float) -> Workload:
    """Let each call take its own while, around what it should."""
    noise = np.random.default_rng(seed).standard_normal(len(workload.calls))
    return replace(workload.with_calls(factor=np.maximum(0.8, 1 + deviation * noise)))


def skew_clocks(folder: Path, seed: int) -> None:
    """Put every host's clock off by up to 5 ms."""
    ahead = np.random.default_rng(seed).integers(-5_000_000, 5_000_000, RANKS // NODE)
    for rank in range(RANKS):
        file = folder / f"rank{rank}.json.gz"
        trace = json.loads(gzip.decompress(file.read_bytes()))
        trace["baseTimeNanoseconds"] += int(ahead[rank // NODE])
        file.write_bytes(gzip.compress(json.dumps(trace).encode()))
