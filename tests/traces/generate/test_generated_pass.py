"""A generated step of serving under a framework is the engine's pass, kernel for kernel."""

import pytest

from experiments.evaluate.generated_steps import simulated
from experiments.questions.generate import plan_on
from simulator.accelerators import accelerators
from topologies import load_cluster
from traces.generate.inference import InferencePass, Segment
from traces.generate.kernel_times import kernel_times
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.pass_times import PassClock
from traces.generate.run import Serving


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b", "qwen3.5-397b"])
def test_a_generated_decode_takes_what_the_pass_takes(name):
    """One rank has no exchange: the simulated step is the sum of the pass's kernels."""
    cluster = load_cluster("hgx-h200")
    plan = plan_on(
        cluster,
        model=load_model(name),
        parallelism=Parallelism(),
        run=Serving(phase="decode", batch=16, context=2000, framework="vllm"),
        ignore_memory=True,
    )
    batch = InferencePass(
        model=plan.model, parallelism=plan.parallelism, segments=(Segment(16, 1, 2000),)
    )
    clock = PassClock(kernel_times(accelerators()["H200-SXM-141GB"]), lambda _: 0.0)
    assert simulated(plan, cluster).makespan == pytest.approx(clock.time(batch), rel=1e-6)
