"""Launch files say what their plans say, in files that shells, TOML, JSON and Python can read."""

import ast
import json
import re
import shlex
import subprocess
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import WorkloadError
from traces.generate.kernel_times import KernelRates
from traces.generate.launch_files import LAUNCHERS, Job, launch_file
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan
from traces.generate.run import Serving, Training

RATES = KernelRates(peak=1e15, memory_bandwidth=3e12)


def job(model="llama-3.1-8b", parallelism=None, **run):
    parallelism = parallelism or Parallelism(dp=8)
    step = {"micro_batch": 1, "global_batch": 4 * parallelism.dp, "sequence": 4096} | run
    plan = GenerationPlan(
        model=load_model(model), parallelism=parallelism, run=Training(**step), accelerator=RATES
    )
    return Job(plan=plan, cluster="hgx-h100", nodes=parallelism.ranks // 8 or 1, ranks_per_node=8)


def megatron_arguments(text):
    """Read the options behind ``pretrain_gpt.py`` of a script, as a shell would."""
    words = shlex.split(text[text.index("pretrain_gpt.py") :].replace("\\\n", " "))
    arguments = {}
    for word in words[1:]:
        if word.startswith("--"):
            arguments[word] = True
            last = word
        else:
            arguments[last] = word
    return arguments


@given(
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([0, 1, 2, 3]),
    micro_batch=st.sampled_from([1, 2]),
    rounds=st.integers(1, 5),
)
def test_megatrons_degrees_make_up_all_ranks_and_its_batch_the_steps(
    tp, pp, dp, zero, micro_batch, rounds
):
    parallelism = Parallelism(tp=tp, pp=pp, dp=dp, zero=zero)
    batch = micro_batch * dp * rounds
    step = job(parallelism=parallelism, micro_batch=micro_batch, global_batch=batch)
    arguments = megatron_arguments(launch_file(step, "megatron"))
    model_ranks = int(arguments["--tensor-model-parallel-size"]) * int(
        arguments["--pipeline-model-parallel-size"]
    )
    # Megatron-LM derives the replicas: ranks over those that share a model.
    replicas = parallelism.ranks // model_ranks
    assert replicas == dp
    per_round = int(arguments["--micro-batch-size"]) * replicas
    assert int(arguments["--global-batch-size"]) == per_round * rounds
    assert ("--use-distributed-optimizer" in arguments) == (zero > 0)
    assert ("--use-megatron-fsdp" in arguments) == (zero > 1)


def test_megatron_is_given_the_models_numbers():
    arguments = megatron_arguments(launch_file(job("llama-3.1-70b"), "megatron"))
    # Llama 3.1 70B's model card: 80 layers, 8192 wide, 64 heads, 8 for keys, 28672 inside.
    numbers = {
        "num-layers": "80",
        "hidden-size": "8192",
        "num-attention-heads": "64",
        "num-query-groups": "8",
        "ffn-hidden-size": "28672",
        "seq-length": "4096",
        "normalization": "RMSNorm",
        # 128,256 tokens, one of which NullTokenizer adds itself.
        "vocab-size": "128255",
    }
    assert {name: arguments[f"--{name}"] for name in numbers} == numbers
    assert {"--swiglu", "--group-query-attention", "--bf16"} <= arguments.keys()


SWITCHES = {
    "dropout": ({"dropout": True}, {"attention-dropout": "0.1", "hidden-dropout": "0.1"}),
    "loss": ({"loss": "parallel"}, {"cross-entropy-loss-fusion": None}),
    "cuda graphs": ({"cuda_graphs": True}, {"enable-cuda-graph": True}),
    "scores": ({"attention": "unfused"}, {"attention-backend": "unfused"}),
    "recompute scores": ({"recompute": "selective"}, {"recompute-granularity": "selective"}),
    "recompute": (
        {"recompute": "full"},
        {
            **{"recompute-granularity": "full", "recompute-method": "uniform"},
            "recompute-num-layers": "1",
        },
    ),
    "bucket": ({"bucket": 40e6}, {"ddp-bucket-size": "10000000"}),
    "gradients": (
        {"gradient": "bf16"},
        {
            **{"accumulate-allreduce-grads-in-fp32": None, "grad-reduce-in-bf16": True},
            "ddp-bucket-size": "13107200",
        },
    ),
    "sequence": (
        {"sequence": 262144},
        {"seq-length": "262144", "max-position-embeddings": "262144"},
    ),
    "fp16": ({"precision": "fp16"}, {"bf16": None, "fp16": True}),
    "fp8": ({"precision": "fp8"}, {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"}),
    "mxfp8": ({"precision": "mxfp8"}, {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}),
    "nvfp4": ({"precision": "nvfp4"}, {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}),
    "states": (
        {"optimizer": "adam-bf16"},
        {
            **{"use-precision-aware-optimizer": True, "exp-avg-dtype": "bf16"},
            "exp-avg-sq-dtype": "bf16",
        },
    ),
    "batch": (
        {"micro_batch": 2, "global_batch": 64},
        {"micro-batch-size": "2", "global-batch-size": "64"},
    ),
}
"""What a field of a run sets in Megatron-LM's arguments (megatron/training/arguments.py)."""


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_of_the_run_changes_its_own_arguments_of_megatron_and_no_others(name):
    run, expected = SWITCHES[name]
    plain = {"loss": "fused", "attention": "flash", "framework": "megatron"}
    before, after = (
        megatron_arguments(launch_file(job(**plain | each), "megatron")) for each in ({}, run)
    )
    options = before.keys() | after.keys()
    changed = {
        option[2:]: after.get(option)
        for option in options
        if before.get(option) != after.get(option)
    }
    assert changed == expected


def test_layers_that_stages_do_not_divide_are_laid_out_one_by_one():
    step = job("llama-3.1-405b", Parallelism(tp=8, pp=16, dp=1))
    layout = megatron_arguments(launch_file(step, "megatron"))["--pipeline-model-parallel-layout"]
    sizes = [int(size) for size in re.findall(r"t\*(\d+)", layout)]
    assert (len(sizes), sum(sizes)) == (16, 126)
    assert (layout[0], layout[-1]) == ("E", "L")


def test_experts_and_latent_attention_have_arguments():
    step = job("deepseek-v3-671b", Parallelism(pp=16, dp=8, ep=8))
    arguments = megatron_arguments(launch_file(step, "megatron"))
    # DeepSeek-V3 (arXiv 2412.19437, section 4.2).
    assert (arguments["--num-experts"], arguments["--moe-router-topk"]) == ("256", "8")
    assert (arguments["--kv-lora-rank"], arguments["--q-lora-rank"]) == ("512", "1536")
    assert arguments["--moe-layer-freq"] == "([0]*3+[1]*58)"
    assert arguments["--expert-model-parallel-size"] == "8"


@pytest.mark.parametrize("launcher", ["megatron", "slurm"])
def test_scripts_are_scripts(launcher):
    step = job("llama-3.1-405b", Parallelism(tp=8, pp=16, dp=2))
    text = launch_file(step, launcher)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=True).returncode == 0


def test_slurm_has_a_task_for_each_gpu():
    text = launch_file(job(parallelism=Parallelism(tp=8, dp=4)), "slurm")
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8" in text


def test_torchtitan_divides_a_replicas_batch_only_in_a_pipeline():
    flat = job(parallelism=Parallelism(dp=8, zero=3), micro_batch=2, global_batch=64)
    tables = tomllib.loads(launch_file(flat, "torchtitan"))
    assert tables["model"] == {"name": "llama3", "flavor": "8B", "converters": []}
    assert tables["training"]["local_batch_size"] == 2
    assert tables["parallelism"]["data_parallel_shard_degree"] == 8
    staged = job(parallelism=Parallelism(dp=4, pp=2, zero=2), micro_batch=2, global_batch=64)
    tables = tomllib.loads(launch_file(staged, "torchtitan"))
    assert tables["training"]["local_batch_size"] == 16
    assert tables["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert tables["parallelism"]["fsdp_reshard_after_forward"] == "never"


def test_deepspeeds_batch_is_the_product_that_it_checks():
    step = job(parallelism=Parallelism(dp=8, zero=3, dp_replicate=2), micro_batch=2)
    settings = json.loads(launch_file(step, "deepspeed"))
    assert settings["train_batch_size"] == (
        settings["train_micro_batch_size_per_gpu"] * settings["gradient_accumulation_steps"] * 8
    )
    assert settings["zero_optimization"]["mics_shard_size"] == 4
    assert settings["zero_optimization"]["reduce_bucket_size"] == step.training.bucket / 4, "fp32"


def test_nemos_program_parses_and_has_the_degrees():
    parallelism = Parallelism(tp=4, pp=2, dp=2, virtual=2, zero=1, sequence_parallel=True)
    step = job("mixtral-8x7b", parallelism, schedule="interleaved", recompute="full")
    tree = ast.parse(launch_file(step, "nemo"))
    given_keywords = {
        keyword.arg: ast.literal_eval(keyword.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if isinstance(keyword.value, ast.Constant)
    }
    assert given_keywords["tensor_model_parallel_size"] == 4
    assert given_keywords["virtual_pipeline_model_parallel_size"] == 2
    assert given_keywords["num_moe_experts"] == 8
    assert given_keywords["recompute_granularity"] == "full"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_variable_of_the_library_is_in_every_file_that_has_a_place_for_it(launcher):
    plain = job(parallelism=Parallelism(dp=8, zero=3) if launcher == "torchtitan" else None)
    step = Job(plan=plain.plan, cluster="x", nodes=1, ranks_per_node=8, environment={"A_B": "7"})
    assert ("A_B" in launch_file(step, launcher)) == (launcher != "deepspeed")


@pytest.mark.parametrize(
    ("launcher", "step", "reason"),
    [
        ("megatron", {"schedule": "zb-h1", "parallelism": Parallelism(pp=2)}, "schedule zb-h1"),
        ("megatron", {"model": "gemma-2-9b"}, "4 norms"),
        ("megatron", {"recompute": "op"}, "recompute op"),
        ("torchtitan", {"model": "gpt-2"}, "model gpt-2"),
        ("torchtitan", {"parallelism": Parallelism(tp=2)}, "--sequence-parallel"),
        ("nemo", {"parallelism": Parallelism(dp=8, zero=3)}, "zero 3"),
        ("deepspeed", {"parallelism": Parallelism(cp=2)}, "cp 2"),
        ("slurm", {"lora_rank": 8}, "--lora-rank"),
        ("kubernetes", {}, "launcher 'kubernetes'"),
    ],
)
def test_what_a_launcher_cannot_do_is_refused_with_the_reason(launcher, step, reason):
    with pytest.raises(WorkloadError, match=re.escape(reason)):
        launch_file(job(**step), launcher)


def test_a_pass_of_serving_has_no_launch_file():
    plan = GenerationPlan(
        model=load_model("llama-3.1-8b"),
        parallelism=Parallelism(),
        run=Serving(phase="decode", batch=8, context=1024),
        accelerator=RATES,
    )
    with pytest.raises(WorkloadError, match="not of a pass of serving"):
        launch_file(Job(plan=plan, cluster="x", nodes=1, ranks_per_node=1), "megatron")
