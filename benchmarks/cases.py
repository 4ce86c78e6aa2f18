"""What is measured: traces that are there, and workloads made to size."""

import gzip
import json
from pathlib import Path

import numpy as np

from collectives.algorithms import ring as ring_schedules
from experiments.baseline import Settings, baseline
from experiments.evaluate.generated_steps import representatives
from experiments.questions.generate import plan_on
from experiments.scenario.change import Change
from experiments.scenario.resources import RESOURCES, better, improve
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow
from simulator.engine.simulate import simulate
from simulator.schedule import Plan
from simulator.support.arrays import Floats
from simulator.support.errors import WhatIfError
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import What, Workload
from topologies import Cluster, load_cluster
from traces.generate.generate import generate
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan
from traces.generate.run import Training

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "traces" / "samples" / "gloo-ddp-4"
GPU_SAMPLE = ROOT / "traces" / "samples" / "gpu-dp2-tp4"
SHARED = ROOT.parent / "shared" / "traces"
MEGATRON = SHARED / "megatron-tp8-a100"
LARGEST = SHARED / "kineto" / "v100_2gpu_many_allreduce_rank1.json.gz"
_LARGE = 50e6
"""Bytes of JSON of the file that stands in for the largest trace."""


def job() -> tuple[Path, str]:
    """Choose the job to ask about, and the cluster it ran on."""
    return (MEGATRON if MEGATRON.is_dir() else SAMPLE), "dgx-a100"


def study() -> Scenario:
    """Read the step of which many what-ifs are asked, and the cluster it ran on."""
    path, cluster, nodes = (MEGATRON, "dgx-a100", None)
    if not path.is_dir():
        path, cluster, nodes = (GPU_SAMPLE, "dgx-a100", 2)
    return baseline(path, cluster, Settings(engine="analytic", nodes=nodes)).scenario


def what_ifs(scenario: Scenario) -> list[Change]:
    """Make the change to nothing, and to twice of every resource that the cluster has."""
    return [Change(), *(better(name) for name in RESOURCES if has(scenario, name))]


def has(scenario: Scenario, resource: str) -> bool:
    """Whether the cluster can have twice as much of a resource."""
    try:
        improve(scenario, resource, 2)
    except WhatIfError:
        return False
    return True


def design_points(count: int) -> dict[str, Floats]:
    """Spread points over bandwidth and latency of the scale-up fabric, and over compute."""
    draws = np.random.default_rng(0).uniform(-2, 3, (3, count))
    names = ("scale_up.bandwidth", "scale_up.latency", "compute")
    return {name: 2.0**draw for name, draw in zip(names, draws, strict=True)}


def one_by_one(scenario: Scenario, points: dict[str, Floats]) -> list[float]:
    """Answer design points with the engine that takes a scenario at a time."""
    steps = []
    for factors in zip(*points.values(), strict=True):
        one = scenario
        for name, factor in zip(points, factors, strict=True):
            one = improve(one, name, float(factor))
        steps.append(one.run().makespan)
    return steps


def study_file(folder: Path) -> Path:
    """Write a study of 10,000 points of the step."""
    trace, cluster = job()
    path = folder / "study.yaml"
    path.write_text(
        f"name: bench\nworkloads: [{{trace: {trace.resolve()}}}]\ncluster: {cluster}\nspace:\n"
        "  host: {log: [0.5, 8], steps: 100}\n"
        "  scale_up.bandwidth: {log: [75 GB/s, 2.4 TB/s], steps: 100}\n"
        "objectives: {step_s: min, scale_up.bandwidth: min}\n"
    )
    return path


def large_file(folder: Path) -> Path:
    """Unpack the largest trace, or write the events of the sample until they are as many."""
    path = folder / "large.json"
    if LARGEST.is_file():
        path.write_bytes(gzip.decompress(LARGEST.read_bytes()))
        return path
    text = gzip.decompress((SAMPLE / "rank0.json.gz").read_bytes())
    document = json.loads(text)
    document["traceEvents"] *= max(1, round(_LARGE / len(text)))
    path.write_text(json.dumps(document))
    return path


def generated() -> Workload:
    """Make a step of Llama 3.1 405B on 1,024 ranks: a million ops."""
    plan = plan_on(
        machine(),
        model="llama-3.1-405b",
        parallelism=Parallelism(tp=8, pp=16, dp=8, sequence_parallel=True, zero=1),
        run=Training(micro_batch=1, global_batch=8 * 10, sequence=8192),
    )
    return generate(plan)[0]


def large_step(ranks: int) -> GenerationPlan:
    """Describe a step of Llama 3.1 405B, 16 micro-batches on each replica of 128 ranks."""
    return plan_on(
        machine(),
        model="llama-3.1-405b",
        parallelism=Parallelism(tp=8, pp=16, dp=ranks // 128, sequence_parallel=True),
        run=Training(micro_batch=1, global_batch=16 * (ranks // 128), sequence=8192),
    )


def large(ranks: int = 1024) -> Scenario:
    """Make all ranks of it: on 1,024, 1.9 million ops and 160,000 calls."""
    return Scenario(generate(large_step(ranks))[0], machine())


def folded(ranks: int = 16_384) -> Scenario:
    """Make the ranks of it that stand for all, and check that they do."""
    return Scenario(representatives(large_step(ranks), machine()).workload, machine())


def replicas(ranks: int) -> Scenario:
    """Make a step with the same work for every rank, whatever their number."""
    plan = plan_on(
        machine(),
        model="llama-3.1-8b",
        parallelism=Parallelism(tp=8, dp=ranks // 8, sequence_parallel=True),
        run=Training(micro_batch=1, global_batch=4 * (ranks // 8), sequence=8192),
    )
    return Scenario(generate(plan)[0], machine())


def machine() -> Cluster:
    """Return real nodes, as many as are needed."""
    return load_cluster("hgx-h100").model_copy(update={"nodes": 4096})


def training(ranks: int = 64, layers: int = 625) -> Workload:
    """Make a step of ``5 ranks layers`` ops: launches, kernels, and all-reduces in groups of 8.

    Tensor-parallel groups of 8 and data-parallel groups across them take turns, and every rank is
    a little slower than the one before, so that nothing happens at one instant.
    """
    builder = WorkloadBuilder(job_ranks=ranks)
    last: dict[tuple[int, str], int] = {}
    families = (
        [tuple(range(first, first + 8)) for first in range(0, ranks, 8)],
        [tuple(range(first, ranks, ranks // 8)) for first in range(ranks // 8)],
    )
    for layer in range(layers):
        for rank in range(ranks):
            _layer(builder, last, rank, layer)
        for group in families[layer % 2]:
            label = ("tp", "dp")[layer % 2]
            row = CallRow("all_reduce", builder.group(group, label), layer, 16e6, dtype="float")
            call = builder.call(row)
            for rank in group:
                _add(builder, last, rank, "stream 20", What.COLLECTIVE, 0.0, call)
    return builder.build()


def _layer(
    builder: WorkloadBuilder, last: dict[tuple[int, str], int], rank: int, layer: int
) -> None:
    slow = 1 + 1e-4 * rank + 1e-6 * layer
    for kernel in range(2):
        launch = _add(builder, last, rank, "thread 1", What.HOST, 5e-6 * slow)
        done = _add(
            builder, last, rank, "stream 7", What.COMPUTE, (100 + 50 * kernel) * 1e-6 * slow
        )
        builder.edge(launch, done, lag=3e-6)
    if layer > 1 and (rank, "stream 20") in last:
        builder.edge(last[rank, "stream 20"], last[rank, "stream 7"])


def _add(  # noqa: PLR0913 - one per column
    builder: WorkloadBuilder,
    last: dict[tuple[int, str], int],
    rank: int,
    lane: str,
    what: What,
    duration: float,
    call: int = -1,
) -> int:
    op = builder.op(what, rank=rank, lane=lane, name=lane, duration=duration, call=call)
    before = last.get((rank, "stream 7" if call >= 0 else lane))
    if before is not None:
        builder.edge(before, op)
    last[rank, lane] = op
    return op


def train(workload: Workload) -> Timeline:
    """Simulate it on real nodes with the flow engine."""
    return Scenario(workload, load_cluster("hgx-h100")).run()


def one_all_reduce(ranks: int) -> Workload:
    """Make a workload of a single all-reduce of 64 MiB."""
    builder = WorkloadBuilder(job_ranks=ranks)
    group = builder.group(tuple(range(ranks)), "dp")
    call = builder.call(CallRow("all_reduce", group, 0, 64 * 2.0**20, dtype="float"))
    for rank in range(ranks):
        builder.op(
            What.COLLECTIVE, rank=rank, lane="stream 20", name="nccl", duration=0.0, call=call
        )
    return builder.build()


def ring_all_reduce(workload: Workload, network: Topology) -> Timeline:
    """Simulate it: the schedule is written out, laid on the links and carried out."""
    return simulate(workload, network, _ring)


def _ring(call: Call, network: Topology) -> Plan:
    del network
    return Plan(ring_schedules.all_reduce(len(call.group.ranks)))
