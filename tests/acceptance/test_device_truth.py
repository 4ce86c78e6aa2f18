"""The test of a what-if on what a device does by itself: graphs, overlapping kernels, host spins.

A program is simulated, and written down as a profiler would record it: the nodes of a graph under
one launch, a kernel that was launched to start early from when it was put on the device, a host
that spins as silence. The trace is asked a what-if, and the program itself is run with it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baseline import with_costs
from experiments.scenario.resources import improve
from experiments.scenario.scenario import Scenario
from helpers.link_tapes import LATENCY, US, Tape
from simulator.builder import WorkloadBuilder
from simulator.timeline import Timeline
from simulator.workload import What
from topologies import load_cluster
from traces.load import load

CLUSTER = "dgx-a100"
MAIN, SIDE = 7, 8


@dataclass(frozen=True)
class Graph:
    """Lengths of nodes (us); a branch beside ``branch`` of them; all launched to start early?"""

    nodes: tuple[float, ...]
    branch: int
    early: float


@dataclass(frozen=True)
class Program:
    """A step: rounds of eager kernels, a graph, and a kernel for which the host spins (us)."""

    host: float
    kernel: float
    graphs: tuple[Graph, ...]
    spins: tuple[float, ...]


lengths = st.one_of(st.floats(3, 12), st.floats(12, 300))
graphs = st.builds(
    Graph,
    nodes=st.lists(lengths, min_size=4, max_size=25).map(tuple),
    branch=st.sampled_from((0, 0, 2, 3)),
    early=st.sampled_from((0.0, 0.0, 0.3, 0.9)),
)
programs = st.builds(
    Program,
    host=st.floats(5, 60),
    kernel=st.floats(5, 200),
    graphs=st.lists(graphs, min_size=4, max_size=6).map(tuple),
    spins=st.one_of(st.just(()), st.lists(st.floats(150, 900), min_size=6, max_size=6).map(tuple)),
)


@dataclass(frozen=True)
class Node:
    """A kernel: how long it works (us), and how much earlier it is on the device."""

    us: float
    stream: int = MAIN
    early: float = 0.0
    waits: tuple[int, ...] = ()
    name: str = "gemm"


@dataclass
class Truth:
    """The program as ops; what it takes to write them down."""

    builder: WorkloadBuilder = field(default_factory=lambda: WorkloadBuilder(job_ranks=1))
    thread: int | None = None
    last: dict[int, int] = field(default_factory=dict)
    host_ops: list[int] = field(default_factory=list)
    launched: dict[int, list[tuple[int, "Node"]]] = field(default_factory=dict)

    def host(self, us: float, after: int | None = None) -> int:
        op = self.builder.op(What.HOST, rank=0, lane="thread 1", name="aten::op", duration=us * US)
        for source in (self.thread, after):
            if source is not None:
                self.builder.edge(source, op)
        self.thread = op
        self.host_ops.append(op)
        return op

    def kernel(self, launch: int, node: "Node") -> int:
        op = self.builder.op(
            What.COMPUTE,
            rank=0,
            lane=f"stream {node.stream}",
            name=node.name,
            duration=node.us * US,
        )
        if launch not in self.launched:
            self.builder.edge(launch, op, lag=LATENCY * US)
        before = [self.last[node.stream]] if node.stream in self.last and not node.waits else []
        for source in (*before, *node.waits):
            self.builder.edge(source, op)
        self.last[node.stream] = op
        self.launched.setdefault(launch, []).append((op, node))
        return op

    def graph(self, graph: Graph, host: float) -> None:
        """A chain of nodes; if wanted a branch that starts as the first ends, and joins it."""
        launch = self.host(host)
        fork: int | None = None
        branch: tuple[int, ...] = ()
        for number, us in enumerate(graph.nodes):
            joined = number == 1 + graph.branch and branch
            waits = (self.last[MAIN], *branch) if joined else ()
            early = 0.0
            if number and not joined:
                early = graph.early * min(us, graph.nodes[number - 1], 5.0)
            node = self.kernel(launch, Node(us, early=early, waits=waits))
            if graph.branch and number == 0:
                fork = node
            if fork is not None and number == 1:
                branch = (self.kernel(launch, Node(2 * us, SIDE, waits=(fork,))),)

    def tape(self, timeline: Timeline) -> Tape:
        tape = Tape()
        start, end = timeline.start / US, timeline.end / US
        for op in self.host_ops:
            tape.host("aten::op", start[op], end[op] - start[op])
            if op not in self.launched:
                continue
            nodes = self.launched[op]
            name = "cudaGraphLaunch" if len(nodes) > 1 else "cudaLaunchKernel"
            call = tape.call(name, end[op], 2.0)
            for op_of_node, node in nodes:
                begun = start[op_of_node] - node.early
                tape.kernel(call, node.stream, begun, end[op_of_node] - begun, node.name)
        return tape


def build(program: Program) -> Truth:
    truth = Truth()
    truth.kernel(truth.host(50.0), Node(5.0))
    for turn, graph in enumerate(program.graphs):
        truth.kernel(truth.host(program.host), Node(program.kernel))
        truth.graph(graph, program.host)
        if program.spins:
            us = program.spins[turn]
            counted = truth.kernel(truth.host(program.host), Node(us, name="count_tokens"))
            truth.host(4.0, after=counted)
            truth.host(program.host)
    return truth


@settings(max_examples=40, deadline=None, derandomize=True)
@given(programs, st.sampled_from(("compute", "host")), st.sampled_from((0.5, 2.0, 4.0)))
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_what_if_on_the_trace_is_what_the_program_would_do(
    program: Program, resource: str, factor: float
) -> None:
    truth = build(program)
    real = Scenario(truth.builder.build(), load_cluster(CLUSTER))
    timeline = real.run()
    with TemporaryDirectory() as folder:
        loaded = load(truth.tape(timeline).write(Path(folder)))
    trace = with_costs(Scenario(loaded.workload, real.cluster), "trace")
    assert trace.run().makespan == pytest.approx(timeline.makespan, rel=2e-3)
    predicted = improve(trace, resource, factor).run().makespan
    assert predicted == pytest.approx(improve(real, resource, factor).run().makespan, rel=0.02)
