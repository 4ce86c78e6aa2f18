"""Random training steps as programs: launched op by op, with streams, groups, phases and skew.

Each is what a rank's thread would do: forward and backward of layers that differ in size, under
tensor parallelism inside a node and data parallelism or sharding across, with expert exchange,
phases of small kernels that the host cannot feed fast enough, and read-backs. Compute and launches
jitter, ranks start apart, some are slow.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from simulator.builder import WorkloadBuilder
from simulator.workload import CallRow, What, Workload

COMPUTE, TENSOR, DATA, EXPERT = "stream 7", "stream 20", "stream 24", "stream 28"
RANKS, NODE = 8, 4


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
)


def build(program: Program) -> Workload:
    """Make the step on ``RANKS`` ranks, ``NODE`` to a node."""
    builder = WorkloadBuilder(job_ranks=RANKS)
    calls: dict[tuple[int, int], int] = {}
    late = np.random.default_rng(program.seed).uniform(0, program.skew, RANKS)
    for rank in range(RANKS):
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
        gathered = self.gather(0) if program.sharded else None
        for layer in range(program.layers):
            following = self.gather(layer + 1) if program.sharded else None
            self.kernel(program.kernel, waits=() if gathered is None else (gathered,))
            gathered = following
            self.tensor_parallel(layer)
            self.exchange(layer)
        if program.read_back:
            self.synchronize()
        gradients = []
        for layer in range(program.layers):
            self.kernel(2 * program.kernel)
            self.tensor_parallel(layer)
            gradients.append(self.reduce(layer))
        for gradient in gradients:
            self.kernel(program.kernel / 8, waits=(gradient,))
        self.synchronize()

    def gather(self, layer: int) -> int:
        return self.collective("all_gather", self.across, "dp", self.size(layer), DATA)

    def reduce(self, layer: int) -> int:
        kind = "reduce_scatter" if self.program.sharded else "all_reduce"
        return self.collective(kind, self.across, "dp", self.size(layer), DATA, behind=True)

    def tensor_parallel(self, layer: int) -> None:
        if self.program.tensor:
            size = self.program.activation * (1 + layer % 2)
            done = self.collective("all_reduce", self.inside, "tp", size, TENSOR, behind=True)
            self.kernel(self.program.kernel / 4, waits=(done,))

    def exchange(self, layer: int) -> None:
        if self.program.expert:
            size = self.program.expert * (1 + layer % 3)
            done = self.collective("all_to_all", range(RANKS), "ep", size, EXPERT, behind=True)
            self.kernel(self.program.kernel / 2, waits=(done,))

    @property
    def inside(self) -> range:
        first = self.rank // NODE * NODE
        return range(first, first + NODE)

    @property
    def across(self) -> range:
        return range(self.rank % NODE, RANKS, NODE)

    def size(self, layer: int) -> int:
        """Layers differ: the last holds the embedding."""
        return self.program.gradient * (3 if layer >= self.program.layers - 1 else 1)

    def kernel(self, us: float, waits: Sequence[int] = ()) -> int:
        jitter = max(0.5, 1 + self.program.jitter * self.rng.standard_normal())
        slow = self.program.straggler if self.rank == RANKS - 1 else 1.0
        duration = 1e-6 * us * jitter * slow
        return self.launch((What.COMPUTE, COMPUTE, "gemm", duration), -1, waits)

    def collective(
        self, kind: str, ranks: range, label: str, size: int, lane: str, *, behind: bool = False
    ) -> int:
        group = self.builder.group(tuple(ranks), label)
        number = self.joined[group]
        self.joined[group] += 1
        if (group, number) not in self.calls:
            row = CallRow(kind, group, number, float(size), dtype="BFloat16")
            self.calls[group, number] = self.builder.call(row)
        waits = (self.last[COMPUTE],) if behind else ()
        return self.launch((What.COLLECTIVE, lane, kind, 0.0), self.calls[group, number], waits)

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
            What.HOST,
            rank=self.rank,
            lane="thread 1",
            name=name,
            duration=1e-6 * us,
            ready=ready,
        )
        if self.host_op is not None:
            self.builder.edge(self.host_op, op)
        self.host_op = op
        return op


def with_noise(workload: Workload, seed: int, deviation: float) -> Workload:
    """Let each call take its own while, around what it should."""
    noise = np.random.default_rng(seed).standard_normal(len(workload.calls))
    return replace(workload.with_calls(factor=np.maximum(0.8, 1 + deviation * noise)))
