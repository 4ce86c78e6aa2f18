"""A program whose gradients are reduced beside its backward pass, with kernels that slow down."""

from dataclasses import replace

from experiments.scenario.scenario import Scenario
from helpers.programs import NODE, RANKS, Program, build
from simulator.timeline import Timeline
from simulator.workload import Workload
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")
DEEP = Program(
    layers=30,
    kernel=200.0,
    launch=8.0,
    latency=5.0,
    activation=1 << 20,
    gradient=2_000_000 // 64 * 64,
    expert=0,
    sharded=False,
    tensor=False,
    small=0,
    read_back=False,
    skew=300.0,
    straggler=1.1,
    jitter=0.02,
    seed=7,
)
"""Many layers, whose gradients are reduced beside the backward pass of ranks that drift apart."""


def slowed(slope: float, program: Program = DEEP) -> Scenario:
    return Scenario(build(program), CLUSTER, nodes=RANKS // NODE, slow_down=slope)


def as_recorded(timeline: Timeline) -> Workload:
    """Return what a profiler without errors would have recorded."""
    measured = replace(timeline.workload, measured_start=timeline.start, measured_end=timeline.end)
    return measured.with_calls(transfer=timeline.call_end - timeline.call_start)
