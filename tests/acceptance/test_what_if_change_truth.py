"""Changes to a trace against the changed program, as ``test_what_if_truth`` does for resources.

The program of the shipped sample is written anew with the change in it: another kernel list,
another rank's speed, other messages. The trace knows nothing of it and is asked in words.
"""

from dataclasses import replace

import pytest

from benchmarks import gpu_sample
from experiments.baseline import Settings, baseline
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from simulator.workload import What
from topologies import load_cluster

SAMPLE = "traces/samples/gpu-dp2-tp4"


class WithoutGelu(gpu_sample.RankThread):
    """Nobody launches the activation function; the host draws its times all the same."""

    def kernel(self, operator, name, duration, what=What.COMPUTE):
        if "Gelu" not in name:
            return super().kernel(operator, name, duration, what)
        self.random.standard_normal()
        self.random.uniform(5e-6, 10e-6)
        return self._last[gpu_sample.COMPUTE]


class FusedGemms(gpu_sample.RankThread):
    """A GEMM right behind a GEMM, with nothing in between, is part of it.

    All computes in a hundredth of the time and there are no calls, so that launches matter.
    """

    def kernel(self, operator, name, duration, what=What.COMPUTE):
        duration *= 0.01 if what == What.COMPUTE else 1.0
        gemm = name == gpu_sample._GEMM
        if not (gemm and self._joined.get("gemm before")):
            self._joined["gemm before"] = gemm
            return super().kernel(operator, name, duration, what)
        jitter = max(0.9, 1 + 0.015 * self.random.standard_normal())
        self.random.uniform(5e-6, 10e-6)
        last = self._last[gpu_sample.COMPUTE]
        row = list(self.builder._rows[last])
        row[5] += duration * jitter
        self.builder._rows[last] = tuple(row)
        return last

    def all_reduce(self, elements, stream):
        self._joined["gemm before"] = False
        self.random.uniform(5e-6, 10e-6)
        return self._last[gpu_sample.COMPUTE]


class SlowRank(gpu_sample.RankThread):
    """Rank 3 computes 1.2 times as long."""

    def kernel(self, operator, name, duration, what=What.COMPUTE):
        slow = 1.2 if self.rank == 3 and what == What.COMPUTE else 1.0
        return super().kernel(operator, name, slow * duration, what)


class FastGemms(gpu_sample.RankThread):
    """GEMMs in half the time, and tensor-parallel messages of half the bytes."""

    def kernel(self, operator, name, duration, what=What.COMPUTE):
        half = 0.5 if name == gpu_sample._GEMM else 1.0
        return super().kernel(operator, name, half * duration, what)

    def all_reduce(self, elements, stream):
        half = 2 if stream == gpu_sample.TENSOR_STREAM else 1
        return super().all_reduce(elements // half, stream)


class NoTensorParallelism(gpu_sample.RankThread):
    """The all-reduces of activations do not happen."""

    def all_reduce(self, elements, stream):
        if stream != gpu_sample.TENSOR_STREAM:
            return super().all_reduce(elements, stream)
        self.random.uniform(5e-6, 10e-6)
        return self._last[gpu_sample.COMPUTE]


class Blocking(gpu_sample.RankThread):
    """What is launched after an all-reduce waits for it."""

    def all_reduce(self, elements, stream):
        op = super().all_reduce(elements, stream)
        self._last[gpu_sample.COMPUTE] = op
        return op


CHANGES = {
    "*Gelu* drop": WithoutGelu,
    "fuse *gemm* and compute x0.01 and calls drop": FusedGemms,
    "rank 3 compute x1.2": SlowRank,
    "*gemm* x0.5 and all_reduce@tp bytes x0.5": FastGemms,
    "all_reduce@tp drop": NoTensorParallelism,
    "overlap none": Blocking,
}


@pytest.fixture(scope="module")
def cluster():
    return load_cluster(gpu_sample.CLUSTER)


@pytest.fixture(scope="module", params=["1", "3"])
def step(request, cluster, pytestconfig):
    settings = Settings(nodes=gpu_sample.NODES, step=request.param)
    recorded = baseline(pytestconfig.rootpath / SAMPLE, cluster, settings).scenario
    return request.param, replace(recorded, workload=replace(recorded.workload, repeats=None))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_to_the_trace_is_what_the_changed_program_would_do(
    monkeypatch, cluster, step, change
):
    number, alone = step
    monkeypatch.setattr(gpu_sample, "RankThread", CHANGES[change])
    program = Scenario(gpu_sample.workload(cluster, int(number)), cluster, nodes=gpu_sample.NODES)
    truth = program.run().makespan
    asked = parse_change(change).apply(alone).scenario.run().makespan
    assert abs(truth / alone.run().makespan - 1) > 1e-3
    assert asked == pytest.approx(truth, rel=1e-3)
