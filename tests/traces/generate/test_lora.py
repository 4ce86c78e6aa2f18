"""Adapters beside frozen weights: laws of what they compute, exchange and keep."""

import pytest

from experiments.evaluate.generated_steps import simulated
from experiments.questions.generate import plan_on
from experiments.settings import Settings
from simulator.support.errors import WorkloadError
from topologies import load_cluster
from traces.generate.generate import generate
from traces.generate.memory import fullest, memory_of
from traces.generate.model import adapter_parameters, load_model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import plan_text, read_plan
from traces.generate.run import LORA_TARGETS, Training

H100 = load_cluster("hgx-h100")
DENSE = load_model("llama-3.1-8b").model_copy(update={"layers": 4, "vocabulary": 4096})
EXPERTS = load_model("mixtral-8x7b").model_copy(update={"layers": 2, "vocabulary": 4096})
LATENT = load_model("deepseek-v3-16b").model_copy(update={"layers": 2, "vocabulary": 4096})


def planned(model=DENSE, degrees=None, **run):
    step = Training(**{"micro_batch": 1, "global_batch": 8, "sequence": 2048, **run})
    parallelism = Parallelism(**degrees or {})
    return plan_on(H100, model=model, parallelism=parallelism, run=step, ignore_memory=True)


def seconds(**how):
    return simulated(planned(**how), H100, Settings(engine="analytic")).makespan


@pytest.mark.parametrize("model", [DENSE, EXPERTS, LATENT], ids=lambda model: model.name)
@pytest.mark.parametrize("framework", ["none", "nemo", "composer"])
def test_adapters_take_no_longer_than_all_weights_and_less_memory(model, framework):
    degrees = {"dp": 8, "zero": 3} if framework == "composer" else {"dp": 4, "tp": 2}
    how = {"model": model, "degrees": degrees, "framework": framework}
    assert seconds(**how, lora_rank=16) <= seconds(**how)
    few, all_of_it = (fullest(memory_of(planned(**how, lora_rank=r))) for r in (16, 0))
    for part in ("gradients", "optimiser", "total"):
        assert getattr(few, part) < getattr(all_of_it, part)


def test_more_adapters_take_longer():
    ranks = [seconds(framework="nemo", lora_rank=rank) for rank in (8, 64, 512)]
    assert ranks == sorted(ranks)
    targets = [
        seconds(framework="nemo", lora_rank=16, lora_targets=LORA_TARGETS[:count])
        for count in range(1, 5)
    ]
    assert targets == sorted(targets)


def test_flops_are_two_thirds_of_those_of_all_weights_and_the_adapters():
    """Forward and the inputs' gradients; an adapter's parameters have six FLOPs a token."""
    tokens = 8 * 2048
    full, some, twice = (generate(planned(lora_rank=rank))[1].flops for rank in (0, 16, 32))
    none = 2 * some - twice
    weights = 4 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 4096
    assert full - none == pytest.approx(2 * weights * tokens)
    adapters = 4 * adapter_parameters(DENSE, 0, 16, LORA_TARGETS).total
    assert some - none == pytest.approx(6 * adapters * tokens)


def test_adapters_have_as_many_parameters_as_others_count():
    """PEFT prints 159,907,840 trainable parameters of Llama 2 7B, rank 64 beside every product."""
    model = load_model("llama-2-7b")
    layers = range(model.layers)
    # Queries, keys and values have one adapter here, of 4 x 4096; apart they have 6 x 4096.
    whole = sum(adapter_parameters(model, layer, 64, LORA_TARGETS).total for layer in layers)
    apart = whole + 32 * 64 * 2 * 4096 + 32 * 64 * 4096  # a second input of gate and up
    assert apart == 159_907_840


def test_only_gradients_of_adapters_are_reduced():
    (full,), (few,) = (
        [
            one.size_bytes
            for one in generate(planned(degrees={"dp": 4}, lora_rank=r))[1].exchanged.values()
        ]
        for r in (0, 8)
    )
    adapters = 4 * adapter_parameters(DENSE, 0, 8, LORA_TARGETS).total
    assert few == pytest.approx(adapters * 4)
    assert full > 100 * few


def test_what_no_layer_has_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match="lora_targets 'gate'"):
        planned(lora_rank=8, lora_targets=("gate",))
    with pytest.raises(WorkloadError, match="lora_targets: none"):
        planned(lora_rank=8, lora_targets=())
    with pytest.raises(WorkloadError, match="lora_rank"):
        planned(lora_rank=-1)
    plan = planned(lora_rank=8, lora_targets=("qkv",), framework="nemo", cuda_graphs=True)
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(plan))
    assert read_plan(path).run == plan.run
