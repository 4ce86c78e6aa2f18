"""A generated step of serving under a framework is the engine's pass, kernel for kernel."""

import pytest

from experiments.evaluate.generated_steps import simulated
from experiments.questions.generate import plan_on
from simulator.accelerators import accelerators
from topologies import load_cluster
from traces.generate.generate import volumes
from traces.generate.inference import InferencePass, Segment
from traces.generate.kernel_times import kernel_times
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.pass_times import PassClock
from traces.generate.run import Serving
from traces.generate.stage import stage_programs

CLUSTER = load_cluster("hgx-h200")
KERNELS = kernel_times(accelerators()["H200-SXM-141GB"])


def planned(name, parallelism, phase, batch, context):
    """Return a generated step and the pass of an engine that it is."""
    run = Serving(phase=phase, batch=batch, context=context, framework="vllm")
    model = load_model(name)
    new = 1 if phase == "decode" else context
    segments = (Segment(batch, new, context),)
    return (
        plan_on(CLUSTER, model=model, parallelism=parallelism, run=run, ignore_memory=True),
        InferencePass(model=model, parallelism=parallelism, segments=segments),
    )


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b", "qwen3.5-397b"])
def test_a_generated_decode_takes_what_the_pass_takes(name):
    """One rank has no exchange: the simulated step is the sum of the pass's kernels."""
    plan, batch = planned(name, Parallelism(), "decode", 16, 2000)
    clock = PassClock(KERNELS, lambda _: 0.0)
    assert simulated(plan, CLUSTER).makespan == pytest.approx(clock.time(batch), rel=1e-6)


@pytest.mark.parametrize(("phase", "size"), [("decode", (16, 2000)), ("prefill", (2, 512))])
@pytest.mark.parametrize(
    ("name", "degrees", "ratio"),
    [
        ("llama-3.1-8b", {"tp": 4}, 1.0),
        ("gpt-oss-120b", {"tp": 4}, 1.0),
        ("deepseek-v3-671b", {"tp": 8}, 1.0),
        ("qwen3.5-397b", {"tp": 2}, 1.0),
        ("mixtral-8x7b", {"dp": 4, "ep": 4}, 3 / 4),  # an engine sends tokens in 8 bits
    ],
)
def test_a_generated_step_exchanges_what_the_pass_does(name, degrees, ratio, phase, size):
    plan, batch = planned(name, Parallelism(**degrees), phase, *size)
    alone = PassClock(KERNELS, lambda _: 0.0).time(batch)
    said = volumes(stage_programs(plan), plan).exchanged
    if "tp" in degrees:  # logits of each sequence, of 2 B
        logits = 2 * size[0] * plan.model.vocabulary
        assert said["tp", "all_gather"].size_bytes == pytest.approx(logits)
    for key, exchanged in said.items():
        counted = PassClock(KERNELS, lambda e, key=key: e.size * ((e.label, e.kind) == key))
        assert counted.time(batch) - alone == pytest.approx(ratio * exchanged.size_bytes)
    total = PassClock(KERNELS, lambda exchange: exchange.size).time(batch) - alone
    sent = sum(each.size_bytes for each in said.values())
    assert total == pytest.approx(ratio * sent), "and nothing besides"
