"""Launch files say what their plans say, in files that shells, TOML, JSON and Python can read."""

import ast
import json
import math
import re
import shlex
import subprocess
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.support.errors import WorkloadError
from traces.generate.framework import framework
from traces.generate.kernel_times import KernelRates
from traces.generate.launch_files import LAUNCHERS, Job, launch_file
from traces.generate.model import load_model, parameters
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


@pytest.mark.parametrize(
    ("name", "parallelism", "run"),
    [
        ("mistral-7b", Parallelism(dp=8), {}),
        ("deepseek-v3-16b", Parallelism(pp=2, dp=2, ep=2), {"schedule": "1f1b"}),
        ("llama-3.1-8b", Parallelism(pp=3), {}),
    ],
    ids=str,
)
def test_a_shell_gives_torchrun_the_words_that_are_read_of_a_script(
    tmp_path, name, parallelism, run
):
    """No pattern, pipe or bracket of a value is one of the shell's."""
    text = launch_file(job(name, parallelism, **run), "megatron")
    words = shlex.split(text[text.index("pretrain_gpt.py") :].replace("\\\n", " "))
    (tmp_path / "t").touch()
    shown = 'torchrun() { printf "%s\\n" "$@"; }\n' + text
    ran = subprocess.run(
        ["bash", "-c", shown], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-len(words) :] == words
    assert any(set(word) & set("(|*[") for word in words)


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


MODELS = (
    *("gpt-2", "llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-8b", "mistral-7b"),
    *("mixtral-8x7b", "deepseek-moe-16b", "deepseek-v3-16b", "deepseek-v2-236b", "qwen3-30b-a3b"),
)


class Described:
    """The model that Megatron's arguments describe: its parameters, counted from these alone."""

    def __init__(self, arguments):
        self._given = arguments
        self._hidden = self.number("hidden-size")
        self._bias = not self.has("disable-bias-linear")
        self._norm = self._hidden * (2 if arguments["--normalization"] == "LayerNorm" else 1)

    def number(self, name, default=None):
        return int(self._given.get(f"--{name}", default))

    def has(self, name):
        return f"--{name}" in self._given

    def linear(self, inputs, outputs, *, biased=False):
        return inputs * outputs + outputs * (self._bias or biased)

    def network(self, width):
        ups = 2 if self.has("swiglu") else 1
        return self.linear(self._hidden, ups * width) + self.linear(width, self._hidden)

    def attention(self):
        hidden, heads = self._hidden, self.number("num-attention-heads")
        if not self.has("multi-latent-attention"):
            head, keys = self.number("kv-channels"), self.number("num-query-groups")
            assert self.has("group-query-attention")
            biased = self.has("add-qkv-bias")
            total = self.linear(hidden, (heads + 2 * keys) * head, biased=biased)
            return total + self.linear(heads * head, hidden) + 2 * head * self.has("qk-layernorm")
        rope, nope = self.number("qk-pos-emb-head-dim"), self.number("qk-head-dim")
        rank, value = self.number("kv-lora-rank"), self.number("v-head-dim")
        total = self.linear(hidden, rank + rope) + rank + self.linear(rank, heads * (nope + value))
        query = self.number("q-lora-rank", 0)
        total += self.linear(hidden, query) + query if query else 0
        total += self.linear(query or hidden, heads * (nope + rope))
        return total + self.linear(heads * value, hidden)

    def networks(self):
        if not self.has("num-experts"):
            return self.number("num-layers") * self.network(self.number("ffn-hidden-size"))
        dense, sparse = map(int, re.findall(r"\]\*(\d+)", self._given["--moe-layer-freq"]))
        experts = self.number("num-experts")
        each = experts * self.network(self.number("moe-ffn-hidden-size")) + self._hidden * experts
        each += self.network(self.number("moe-shared-expert-intermediate-size", 0))
        return sparse * each + (dense and dense * self.network(self.number("ffn-hidden-size")))

    def parameters(self):
        words = self._hidden * (self.number("vocab-size") + 1)
        words *= 2 if self.has("untie-embeddings-and-output-weights") else 1
        if self._given["--position-embedding-type"] == "learned_absolute":
            words += self._hidden * self.number("max-position-embeddings")
        layers = self.number("num-layers") * (self.attention() + 2 * self._norm)
        return words + layers + self.networks() + self._norm


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_megatrons_arguments_has_as_many_parameters(name):
    model = load_model(name)
    step = job(name, sequence=min(1024, model.positions or 1024))
    counted = Described(megatron_arguments(launch_file(step, "megatron"))).parameters()
    # Cards may count biases of norms and of heads that Megatron has no switch for.
    assert counted == pytest.approx(parameters(model), rel=2e-4 if model.biases else 1e-12)


def keywords_of(text):
    """The keywords of a program's calls that are constants."""
    return {
        keyword.arg: ast.literal_eval(keyword.value)
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if isinstance(keyword.value, ast.Constant)
    }


@pytest.mark.parametrize("name", ["gpt-2", "llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b"])
@pytest.mark.parametrize(
    ("parallelism", "run"),
    [
        (Parallelism(dp=8), {"precision": "bf16", "framework": "none"}),
        (Parallelism(tp=2, dp=4, zero=1, sequence_parallel=True), {"precision": "fp8"}),
        (Parallelism(tp=2, dp=4), {"precision": "fp16", "gradient": "bf16", "dropout": True}),
        (Parallelism(dp=8, zero=1, dp_replicate=2), {"precision": "fp32", "recompute": "full"}),
        (Parallelism(tp=2, cp=2, dp=2, zero=1), {"bucket": 8e6, "recompute": "selective"}),
    ],
)
def test_nemo_is_told_what_megatron_is_told(name, parallelism, run):
    step = job(name, parallelism, **({"sequence": 1024, "framework": "megatron"} | run))
    nemo = keywords_of(launch_file(step, "nemo"))
    flags = megatron_arguments(launch_file(step, "megatron"))
    shared = {
        "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "normalization",
        "qk_layernorm", "add_qkv_bias", "num_query_groups", "kv_channels", "seq_length",
        "position_embedding_type", "attention_dropout", "hidden_dropout", "recompute_granularity",
        "recompute_method", "recompute_num_layers", "use_distributed_optimizer",
        "overlap_grad_reduce", "overlap_param_gather", "num_distributed_optimizer_instances",
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
        "expert_model_parallel_size", "sequence_parallel", "fp8_recipe", "moe_router_topk",
        "moe_ffn_hidden_size", "moe_layer_freq", "moe_grouped_gemm", "micro_batch_size",
        "global_batch_size",
    }  # fmt: skip
    for keyword in sorted(shared):
        flag = flags.get(f"--{keyword.replace('_', '-')}", False)
        value = nemo.get(keyword, False)
        assert flag == (value if isinstance(value, bool) else str(value)), keyword
    opposite = {
        "gated_linear_unit": "swiglu",
        "share_embeddings_and_output_weights": "!untie-embeddings-and-output-weights",
        "add_bias_linear": "!disable-bias-linear",
        "grad_reduce_in_fp32": "accumulate-allreduce-grads-in-fp32",
    }
    for keyword, flag in opposite.items():
        assert nemo[keyword] == ((f"--{flag.strip('!')}" in flags) != flag.startswith("!"))
    assert str(nemo["bucket_size"]) == flags["--ddp-bucket-size"]
    mixed = {"16-mixed": "--fp16", "bf16-mixed": "--bf16", "32": None}[nemo["precision"]]
    assert {"--fp16", "--bf16"} & flags.keys() == {mixed} - {None}


@st.composite
def divided(draw):
    """Degrees that TorchTitan can run."""
    zero, tp = draw(st.sampled_from([0, 2, 3])), draw(st.sampled_from([1, 2]))
    return Parallelism(
        tp=tp,
        cp=draw(st.sampled_from([1, 2])),
        pp=draw(st.sampled_from([1, 2])),
        dp=draw(st.sampled_from([2, 4])),
        zero=zero,
        sequence_parallel=tp > 1,
        dp_replicate=draw(st.sampled_from([1, 2])) if zero else 1,
    )


@given(parallelism=divided(), rounds=st.integers(1, 3))
def test_torchtitans_degrees_make_up_all_ranks(parallelism, rounds):
    p = parallelism
    step = job(parallelism=p, micro_batch=2, global_batch=2 * p.dp * rounds)
    tables = tomllib.loads(launch_file(step, "torchtitan"))
    degrees = tables["parallelism"]
    shard, replicate = (degrees[f"data_parallel_{name}_degree"] for name in ("shard", "replicate"))
    rest = (degrees[f"{name}_parallel_degree"] for name in ("tensor", "context", "pipeline"))
    assert shard * replicate * math.prod(rest) == p.ranks
    assert replicate == (p.dp_replicate if p.zero else p.dp)
    assert (degrees["fsdp_reshard_after_forward"] == "never") == (p.zero == 2)
    batch = tables["training"]
    assert batch["global_batch_size"] == 2 * p.dp * rounds
    # A schedule divides a replica's batch; without one each round is a batch of its own.
    assert batch["local_batch_size"] == (2 * rounds if p.pp > 1 else 2)
    assert batch["seq_len"] == 4096
    staged = {
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_microbatch_size": 2,
        "pipeline_parallel_layers_per_stage": 32 // p.pp,
    }
    assert staged.items() <= degrees.items() if p.pp > 1 else not staged.keys() & degrees.keys()


@pytest.mark.parametrize(
    ("parallelism", "run", "overlapping"),
    [
        (Parallelism(dp=1), {}, set()),
        (Parallelism(dp=8), {}, {"grad-reduce"}),
        (Parallelism(cp=2), {}, {"grad-reduce"}),
        (Parallelism(dp=8, zero=1), {}, {"grad-reduce", "param-gather"}),
        (Parallelism(dp=8), {"framework": "none"}, {"grad-reduce"}),
        (Parallelism(tp=2, sequence_parallel=True), {}, {"tp"}),
        (Parallelism(tp=2), {}, set()),
    ],
)
def test_what_overlaps_is_what_was_simulated(parallelism, run, overlapping):
    step = job(parallelism=parallelism, **({"framework": "megatron"} | run))
    style = framework(step.training.framework)
    flags = megatron_arguments(launch_file(step, "megatron"))
    simulated = {
        "grad-reduce": style.overlaps_gradients,
        "param-gather": style.overlaps_weights,
        "tp": style.overlaps_tensor_exchanges,
    }
    for name, does in simulated.items():
        flag = "--tp-comm-overlap" if name == "tp" else f"--overlap-{name}"
        assert (flag in flags) == (name in overlapping and does), name


@pytest.mark.parametrize(
    ("parallelism", "is_ordered"),
    [
        (Parallelism(dp=8), False),
        (Parallelism(tp=2), True),
        (Parallelism(cp=2), True),
        (Parallelism(tp=2, dp=2, zero=1), True),
        (Parallelism(tp=2, dp=2, zero=2), False),
    ],
)
def test_launches_stay_in_order_where_an_exchange_is_hidden_by_a_product(parallelism, is_ordered):
    text = launch_file(job(parallelism=parallelism), "megatron")
    assert ("export CUDA_DEVICE_MAX_CONNECTIONS=1" in text) == is_ordered


@pytest.mark.parametrize(
    ("parallelism", "reason"),
    [
        (Parallelism(cp=2), "cp 2"),
        (Parallelism(tp=2, sequence_parallel=True), "does not divide the sequence"),
        (Parallelism(tp=2, pp=2), "has no pipeline"),
        (Parallelism(tp=2, dp=2, zero=3), "needs zero 0 to 2"),
        (Parallelism(pp=2, dp=2, zero=2), "not zero 2"),
        (Parallelism(dp=4, zero=2, dp_replicate=2), "zero 3 only"),
        (Parallelism(tp=2, dp=2, zero=2), ""),
        (Parallelism(pp=2, dp=2, zero=1), ""),
        (Parallelism(tp=2), ""),
    ],
)
def test_deepspeed_refuses_what_its_own_checks_refuse_and_nothing_else(parallelism, reason):
    step = job(parallelism=parallelism)
    if reason:
        with pytest.raises(WorkloadError, match=reason):
            launch_file(step, "deepspeed")
        return
    settings = json.loads(launch_file(step, "deepspeed"))
    assert settings["zero_optimization"]["stage"] == parallelism.zero
    assert settings.get("tensor_parallel", {}).get("autotp_size", 1) == parallelism.tp
    assert settings.get("pipeline", {}).get("stages", 1) == parallelism.pp
    assert settings["bf16"] == {"enabled": True}
    assert settings["zero_optimization"]["overlap_comm"] == (parallelism.dp > 1)


def test_stages_of_a_pipeline_have_virtual_ones_or_a_layout_if_layers_do_not_divide():
    even = job(parallelism=Parallelism(pp=2, virtual=4), schedule="interleaved")
    flags = megatron_arguments(launch_file(even, "megatron"))
    assert flags["--num-virtual-stages-per-pipeline-rank"] == "4"
    assert "--pipeline-model-parallel-layout" not in flags
    plain = megatron_arguments(launch_file(job(parallelism=Parallelism(pp=2)), "megatron"))
    assert "--num-virtual-stages-per-pipeline-rank" not in plain


def test_a_window_is_of_a_token_and_those_before_it():
    flags = megatron_arguments(launch_file(job("mistral-7b"), "megatron"))
    assert flags["--window-size"] == f"({load_model('mistral-7b').window - 1},0)"


@pytest.mark.parametrize(("ep", "tp"), [(1, 1), (2, 1), (2, 2)])
def test_experts_degrees_are_said_where_experts_are_divided(ep, tp):
    parallelism = Parallelism(ep=ep, tp=tp, dp=4, sequence_parallel=tp > 1)
    step = job("deepseek-v3-16b", parallelism)
    flags = megatron_arguments(launch_file(step, "megatron"))
    degrees = tomllib.loads(launch_file(step, "torchtitan"))["parallelism"]
    expected = str(tp) if ep > 1 else None
    assert flags.get("--expert-tensor-parallel-size") == expected
    assert degrees.get("expert_tensor_parallel_degree") == (tp if ep > 1 else None)
    assert degrees["expert_parallel_degree"] == int(flags["--expert-model-parallel-size"]) == ep


def test_nemo_has_the_activation_of_gated_networks_and_megatron_the_width_of_experts_alone():
    for name, is_gated in (("llama-3.1-8b", True), ("gpt-2", False)):
        text = launch_file(job(name, sequence=1024), "nemo")
        assert ("activation_func=F.silu" in text) == is_gated
    flags = megatron_arguments(launch_file(job("mixtral-8x7b"), "megatron"))
    assert flags["--ffn-hidden-size"] == flags["--moe-ffn-hidden-size"] == "14336"


def test_a_file_says_whose_kernels_were_simulated_if_anybodys():
    for name in ("none", "megatron"):
        text = launch_file(job(framework=name), "megatron")
        assert (f"simulated as those of {name}." in text) == (name != "none")
