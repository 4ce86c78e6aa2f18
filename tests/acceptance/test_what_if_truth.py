"""The test of a what-if: a trace whose truth is known, asked what its program would have done.

The shipped GPU-like sample was written from a simulated program. Here the program itself is run
with a resource changed, and the trace, which knows nothing of the program but what a profiler
records, is asked the same what-if.
"""

from dataclasses import replace

import pytest

from benchmarks import gpu_sample
from experiments.baseline import Settings, baseline
from experiments.scenario.resources import RESOURCES, improve
from experiments.scenario.scenario import Scenario
from topologies import load_cluster

SAMPLE = "traces/samples/gpu-dp2-tp4"


@pytest.fixture(scope="module")
def cluster():
    return load_cluster(gpu_sample.CLUSTER)


@pytest.fixture(scope="module", params=["1", "3"])
def pair(request, cluster, pytestconfig):
    """The program, and the trace of it: of one step, which begins when and as it was recorded."""
    step = request.param
    program = Scenario(gpu_sample.workload(cluster, int(step)), cluster, nodes=gpu_sample.NODES)
    settings = Settings(nodes=gpu_sample.NODES, step=step)
    trace = baseline(pytestconfig.rootpath / SAMPLE, cluster, settings).scenario
    return program, replace(trace, workload=replace(trace.workload, repeats=None))


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("resource", list(RESOURCES))
def test_a_what_if_on_the_trace_is_what_the_program_would_do(pair, resource, factor):
    program, trace = pair
    truth = improve(program, resource, factor).run().makespan
    # Stamps are whole nanoseconds and the launch latency is a median over jittered ones.
    assert improve(trace, resource, factor).run().makespan == pytest.approx(truth, rel=1e-3)
