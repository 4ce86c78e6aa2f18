"""Launch files: how Megatron-LM, TorchTitan, NeMo, DeepSpeed and Slurm start a generated step.

A launch file has the settings of the plan: degrees, batch, precision, recomputation, overlap, and
NCCL's variables where the cluster differs from NCCL's defaults. What a framework cannot do is
refused, not left out. Names are those of Megatron Core 0.13 (``megatron/training/arguments.py``),
TorchTitan 0.2 (``torchtitan/config/job_config.py``), NeMo 2 (``MegatronStrategy``, ``GPTConfig``)
and DeepSpeed 0.17 (its configuration reference).
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from textwrap import wrap
from typing import NoReturn

from simulator.support.errors import WorkloadError
from simulator.support.names import one_of
from simulator.support.quantities import bytes_per_element
from traces.generate.framework import framework
from traces.generate.layers import chunk_sizes
from traces.generate.model import GroupedAttention, Model
from traces.generate.plan import GenerationPlan
from traces.generate.run import Training

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A plan on the nodes of a cluster.

    Parameters
    ----------
    plan
        A training step.
    cluster
        The cluster's name.
    nodes, ranks_per_node
        Number of nodes, and of ranks on each.
    environment
        Variables of the communication library.
    """

    plan: GenerationPlan
    cluster: str
    nodes: int
    ranks_per_node: int
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def training(self) -> Training:
        """The training step of the plan."""
        if not isinstance(self.plan.run, Training):
            raise WorkloadError("a launch file is of a training step, not of a pass of serving")
        return self.plan.run


def launch_file(job: Job, launcher: str) -> str:
    """Return the file that starts a step.

    Parameters
    ----------
    job
        The step and its nodes.
    launcher
        ``megatron`` (a shell script that each node runs), ``torchtitan`` (TOML), ``nemo``
        (a Python program), ``deepspeed`` (JSON) or ``slurm`` (a batch script that runs the command
        after it with one task for each GPU).

    Raises
    ------
    WorkloadError
        If there is no such launcher, or it has no setting for something in the plan.
    """
    if launcher not in LAUNCHERS:
        raise WorkloadError(f"launcher {one_of(launcher, LAUNCHERS)}")
    if job.training.lora_rank:
        raise WorkloadError(f"{launcher}: launch files are of full training, without --lora-rank")
    return LAUNCHERS[launcher](job)


def _refuse(launcher: str, what: str) -> NoReturn:
    raise WorkloadError(f"{launcher} cannot run this plan: {what}")


def notes_of(job: Job) -> list[str]:
    """Return the file's comments: its origin, and what of the simulated step it does not set."""
    plan, run = job.plan, job.training
    notes = [
        f"{plan.model.name} on {plan.parallelism.ranks} GPUs, {job.nodes} nodes of {job.cluster}:"
        f" {plan.parallelism}",
        str(run),
        "Yours to choose: data (mock here), learning rate (3e-4 here), checkpoints (none here).",
    ]
    if run.framework != "none":
        notes.append(f"Kernels, host and overlap were simulated as those of {run.framework}.")
    if plan.imbalance is not None:
        notes.append("Tokens were simulated as choosing experts unevenly; the router decides.")
    if plan.model.left_out:
        notes.append(f"Not simulated: {plan.model.left_out}")
    return notes


def _comments(job: Job) -> list[str]:
    return [f"# {line}" for note in notes_of(job) for line in wrap(note, 98)]


def _overlaps(job: Job) -> dict[str, bool]:
    """Return what overlaps with computation, by the names of Megatron's arguments."""
    style, p = framework(job.training.framework), job.plan.parallelism
    is_replicated = p.dp * p.cp > 1
    return {
        "overlap_grad_reduce": is_replicated and (style.overlaps_gradients or p.zero > 1),
        "overlap_param_gather": is_replicated
        and p.zero > 0
        and (style.overlaps_weights or p.zero > 1),
        "tp_comm_overlap": p.tp > 1 and p.sequence_parallel and style.overlaps_tensor_exchanges,
    }


def _shape(model: Model, launcher: str) -> dict[str, Value]:
    """Return the model by the names of Megatron's ``TransformerConfig``."""
    lacks = {
        "gated delta nets": model.delta is not None,
        "gates on attention's output": model.gated_attention,
        "encoders": bool(model.encoder_layers),
        "patches": model.patch is not None,
        "modulated norms": bool(model.modulations),
        f"{model.norms} norms in a layer": model.norms != 2,
        "norms over all heads together": model.qk_norm_across,
        "sparse attention": getattr(model.attention, "sparse", None) is not None,
    }
    for part, is_there in lacks.items():
        if is_there:
            _refuse(launcher, f"{model.name} has {part}, which no argument sets")
    shape: dict[str, Value] = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn or (0 if model.experts is None else model.experts.hidden),
        "num_attention_heads": model.attention.heads,
        "normalization": "LayerNorm" if model.biases else "RMSNorm",
        "qk_layernorm": model.qk_norm,
        "add_qkv_bias": model.qkv_biases,
    }
    attention, experts = model.attention, model.experts
    if isinstance(attention, GroupedAttention):
        shape |= {"num_query_groups": attention.kv_heads, "kv_channels": attention.head}
    else:
        shape |= {
            "kv_lora_rank": attention.kv_rank,
            "qk_head_dim": attention.nope,
            "qk_pos_emb_head_dim": attention.rope,
            "v_head_dim": attention.value,
        }
        if attention.q_rank is not None:
            shape["q_lora_rank"] = attention.q_rank
    if experts is not None:
        sparse = model.layers - experts.dense_layers
        shape |= {
            "num_moe_experts": experts.count,
            "moe_router_topk": experts.top_k,
            "moe_ffn_hidden_size": experts.hidden,
            "moe_layer_freq": f"([0]*{experts.dense_layers}+[1]*{sparse})",
            "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall",
        }
        if experts.shared:
            shape["moe_shared_expert_intermediate_size"] = experts.shared * experts.hidden
    return shape


def _degrees(job: Job, launcher: str) -> dict[str, Value]:
    """Return degrees and batch by the names of Megatron's arguments."""
    plan, run, p = job.plan, job.training, job.plan.parallelism
    if run.schedule not in ("1f1b", "interleaved"):
        _refuse(launcher, f"it has no schedule {run.schedule}; it has 1f1b and interleaved")
    degrees: dict[str, Value] = {
        "tensor_model_parallel_size": p.tp,
        "pipeline_model_parallel_size": p.pp,
        "context_parallel_size": p.cp,
        "expert_model_parallel_size": p.ep,
        "sequence_parallel": p.sequence_parallel,
    }
    if p.ep > 1:
        degrees["expert_tensor_parallel_size"] = p.expert_tp
    sizes = chunk_sizes(plan.model.layers, p.chunks)
    if len(set(sizes)) > 1:
        # One part for each chunk, in the order of the layers: E embedding, t layer, L loss.
        parts = "|".join(f"t*{size}" for size in sizes)
        degrees["pipeline_model_parallel_layout"] = f"E{parts}L"
    elif p.virtual > 1:
        degrees["virtual_pipeline_model_parallel_size"] = p.virtual
    return degrees


_OPTIMIZERS = {"adam": "adam", "adamw": "adam", "adam-bf16": "adam", "sgd": "sgd"}
_RECOMPUTE: dict[str, dict[str, Value]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}
_FP8_RECIPES = {"fp8": "tensorwise", "fp8_block": "blockwise", "mxfp8": "mxfp8"}


def _of_choices(choices: Mapping[str, object], name: str, what: str, launcher: str) -> None:
    if name not in choices:
        _refuse(launcher, f"{what} {name} is not among its own ({', '.join(choices)})")


def _precision(job: Job, launcher: str) -> dict[str, Value]:
    """Return the precision of products by the names of Megatron's arguments."""
    precision = job.training.precision
    if precision in _FP8_RECIPES:
        fp8 = "e4m3" if precision == "mxfp8" else "hybrid"
        return {"bf16": True, "fp8": fp8, "fp8_recipe": _FP8_RECIPES[precision]}
    if precision == "nvfp4":
        return {"bf16": True, "fp4": "e2m1", "fp4_recipe": "nvfp4"}
    names = {"bf16": {"bf16": True}, "fp16": {"fp16": True}, "fp32": {}}
    _of_choices(names | _FP8_RECIPES | {"nvfp4": {}}, precision, "precision", launcher)
    return dict(names[precision])


_MEGATRON_NAMES = {
    "num_moe_experts": "num-experts",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "fp8": "fp8-format",
    "fp4": "fp4-format",
}
"""Fields of ``TransformerConfig`` with another name on the command line."""


def _megatron(job: Job) -> str:
    plan, run, p = job.plan, job.training, job.plan.parallelism
    _of_choices(_OPTIMIZERS, run.optimizer, "optimizer", "megatron")
    _of_choices(_RECOMPUTE, run.recompute, "recompute", "megatron")
    if run.attention == "flex":
        _refuse("megatron", "it has no flex attention")
    states: dict[str, Value] = {}
    if run.optimizer == "adam-bf16":
        states = {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": "bf16",
            "exp_avg_sq_dtype": "bf16",
        }
    is_summed_in_fp32 = bytes_per_element(run.gradient) == 4
    name = "accumulate_allreduce_grads_in_fp32" if is_summed_in_fp32 else "grad_reduce_in_bf16"
    arguments: dict[str, Value] = {
        **_shape(plan.model, "megatron"),
        **_megatron_style(plan.model),
        "seq_length": run.sequence,
        "max_position_embeddings": max(run.sequence, plan.model.longest or 0),
        **_degrees(job, "megatron"),
        "micro_batch_size": run.micro_batch,
        "global_batch_size": run.global_batch,
        **_precision(job, "megatron"),
        "optimizer": _OPTIMIZERS[run.optimizer],
        **states,
        name: True,
        **_RECOMPUTE[run.recompute],
        "attention_backend": run.attention,
        "attention_dropout": 0.1 if run.dropout else 0.0,
        "hidden_dropout": 0.1 if run.dropout else 0.0,
        "cross_entropy_loss_fusion": run.loss == "fused",
        "enable_cuda_graph": bool(run.cuda_graphs),
        **_megatron_sharding(job),
        **_overlaps(job),
        # The tokenizer adds an end-of-document token.
        "tokenizer_type": "NullTokenizer",
        "vocab_size": plan.model.vocabulary - 1,
        "mock_data": True,
        "train_iters": 100,
        "lr": 3e-4,
    }
    environment = dict(job.environment)
    if p.tp * p.cp > 1 and p.zero < 2:
        # Launches stay in order, so that an exchange starts before the product that hides it.
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    lines = [
        "#!/usr/bin/env bash",
        *_comments(job),
        "# Run on every node with MASTER_ADDR and NODE_RANK set, in a checkout of Megatron-LM.",
        "set -euo pipefail",
        *(f"export {name}={value}" for name, value in environment.items()),
        f"torchrun --nnodes {job.nodes} --nproc-per-node {job.ranks_per_node} \\",
        '  --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" \\',
        "  --master-port 29500 pretrain_gpt.py \\",
    ]
    return "\n".join(lines) + "\n" + " \\\n".join(f"  {flag}" for flag in _flags(arguments)) + "\n"


def _flags(arguments: Mapping[str, Value]) -> Iterator[str]:
    """Format arguments as options of a command; false ones are left out."""
    for name, value in arguments.items():
        option = "--" + _MEGATRON_NAMES.get(name, name.replace("_", "-"))
        if value is True:
            yield option
        elif value is not False:
            yield f"{option} {shlex.quote(str(value))}"


def _megatron_style(model: Model) -> dict[str, Value]:
    """Return the command line's switches for a model, besides its numbers."""
    grouped = isinstance(model.attention, GroupedAttention)
    style: dict[str, Value] = {
        "swiglu": model.gated,
        "disable_bias_linear": not model.biases,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "position_embedding_type": "learned_absolute" if model.positions else "rope",
        "group_query_attention": grouped,
        "multi_latent_attention": not grouped,
    }
    if model.window is not None:
        style["window_size"] = f"({model.window - 1},0)"
        if model.global_every is not None:
            style["window_attn_skip_freq"] = model.global_every
    return style


def _megatron_sharding(job: Job) -> dict[str, Value]:
    p, run = job.plan.parallelism, job.training
    sharding: dict[str, Value] = {
        "ddp_bucket_size": round(run.bucket / bytes_per_element(run.gradient)),
        "use_distributed_optimizer": p.zero > 0,
    }
    if p.dp_replicate > 1:
        sharding["num_distributed_optimizer_instances"] = p.dp_replicate
    if p.zero > 1:
        strategy = "optim_grads" if p.zero == 2 else "optim_grads_params"
        sharding |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": strategy,
            "no_gradient_accumulation_fusion": True,
            "ckpt_format": "fsdp_dtensor",
        }
    return sharding


def _nemo(job: Job) -> str:
    model, run, p = job.plan.model, job.training, job.plan.parallelism
    _of_choices(_OPTIMIZERS, run.optimizer, "optimizer", "nemo")
    _of_choices(_RECOMPUTE, run.recompute, "recompute", "nemo")
    if p.zero > 1:
        _refuse("nemo", f"MegatronStrategy shards the optimiser alone (zero 1), not zero {p.zero}")
    if not isinstance(model.attention, GroupedAttention):
        _refuse("nemo", f"{model.name} has latent attention, which GPTConfig does not have")
    if model.window is not None:
        _refuse("nemo", f"{model.name} has windowed attention, which GPTConfig does not have")
    shape: dict[str, Value] = {
        **_shape(model, "nemo"),
        "seq_length": run.sequence,
        "gated_linear_unit": model.gated,
        "add_bias_linear": model.biases,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "position_embedding_type": "learned_absolute" if model.positions else "rope",
        "attention_dropout": 0.1 if run.dropout else 0.0,
        "hidden_dropout": 0.1 if run.dropout else 0.0,
        **_RECOMPUTE[run.recompute],
    }
    overlaps = _overlaps(job)
    ddp: dict[str, Value] = {
        "use_distributed_optimizer": p.zero > 0,
        "grad_reduce_in_fp32": bytes_per_element(run.gradient) == 4,
        "bucket_size": round(run.bucket / bytes_per_element(run.gradient)),
        "overlap_grad_reduce": overlaps["overlap_grad_reduce"],
        "overlap_param_gather": overlaps["overlap_param_gather"],
    }
    if p.dp_replicate > 1:
        ddp["num_distributed_optimizer_instances"] = p.dp_replicate
    precision = _precision(job, "nemo")
    wide = "16-mixed" if "fp16" in precision else "bf16-mixed" if "bf16" in precision else "32"
    mixed = {"precision": wide} | {
        name: value for name, value in precision.items() if name not in ("bf16", "fp16")
    }
    activation = ",\n        activation_func=F.silu" if model.gated else ""
    program = (files("traces") / "generate" / "nemo_launch.py.txt").read_text("utf-8")
    return program.format(
        comments="\n".join(_comments(job)),
        environment=json.dumps(dict(job.environment)),
        shape=_keywords(shape, 8)[:-1] + activation + ",\n    ",
        ddp=_keywords(ddp, 8) + "\n    ",
        degrees=_keywords(_degrees(job, "nemo"), 4),
        precision=", ".join(f"{name}={value!r}" for name, value in mixed.items()),
        nodes=job.nodes,
        ranks=job.ranks_per_node,
        sequence=run.sequence,
        micro_batch=run.micro_batch,
        global_batch=run.global_batch,
        optimizer=_OPTIMIZERS[run.optimizer],
        sharded=p.zero > 0,
    )


def _keywords(values: Mapping[str, Value], indent: int) -> str:
    """Format keyword arguments of Python, one per line."""
    return "".join(f"\n{' ' * indent}{name}={value!r}," for name, value in values.items())


_FLAVORS = {
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "deepseek-v3-16b": ("deepseek_v3", "16B"),
    "deepseek-v2-236b": ("deepseek_v3", "236B"),
    "deepseek-v3-671b": ("deepseek_v3", "671B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
}
"""TorchTitan's models by their names here (``torchtitan/models/*/__init__.py``)."""
_TITAN_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
_TITAN_CHECKPOINTS = {
    "none": {"mode": "none"},
    "op": {"mode": "selective", "selective_ac_option": "op"},
    "full": {"mode": "full"},
}
_TITAN_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW"}
_TITAN_PRECISIONS: dict[str, list[str]] = {"bf16": [], "fp8": ["float8"]}


def _torchtitan(job: Job) -> str:
    plan, run, p = job.plan, job.training, job.plan.parallelism
    _of_choices(_FLAVORS, plan.model.name, "model", "torchtitan")
    _of_choices(_TITAN_SCHEDULES, run.schedule, "schedule", "torchtitan")
    _of_choices(_TITAN_CHECKPOINTS, run.recompute, "recompute", "torchtitan")
    _of_choices(_TITAN_OPTIMIZERS, run.optimizer, "optimizer", "torchtitan")
    _of_choices(_TITAN_PRECISIONS, run.precision, "precision", "torchtitan")
    if p.zero == 1:
        _refuse("torchtitan", "FSDP2 shards gradients with the optimiser's states: zero 2 or 3")
    if p.tp > 1 and not p.sequence_parallel:
        _refuse(
            "torchtitan",
            "its tensor parallelism also divides the sequence: add --sequence-parallel",
        )
    name, flavor = _FLAVORS[plan.model.name]
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": p.dp_replicate if p.zero else p.dp,
        "data_parallel_shard_degree": p.dp // p.dp_replicate if p.zero else 1,
        "fsdp_reshard_after_forward": "never" if p.zero == 2 else "always",
        "tensor_parallel_degree": p.tp,
        "context_parallel_degree": p.cp,
        "pipeline_parallel_degree": p.pp,
        "expert_parallel_degree": p.ep,
    }
    if p.ep > 1:
        parallelism["expert_tensor_parallel_degree"] = p.expert_tp
    batch = run.micro_batch
    if p.pp > 1:
        # A replica's sequences per step: the schedule divides them into micro-batches.
        batch = run.global_batch // p.dp
        parallelism |= {
            "pipeline_parallel_schedule": _TITAN_SCHEDULES[run.schedule],
            "pipeline_parallel_microbatch_size": run.micro_batch,
            "pipeline_parallel_layers_per_stage": -(-plan.model.layers // p.chunks),
        }
    tables: dict[str, Mapping[str, object]] = {
        "model": {"name": name, "flavor": flavor, "converters": _TITAN_PRECISIONS[run.precision]},
        "training": {
            "local_batch_size": batch,
            "global_batch_size": run.global_batch,
            "seq_len": run.sequence,
            "steps": 100,
        },
        "optimizer": {"name": _TITAN_OPTIMIZERS[run.optimizer], "lr": 3e-4},
        "parallelism": parallelism,
        "activation_checkpoint": _TITAN_CHECKPOINTS[run.recompute],
    }
    environment = " ".join(f"{name}={value}" for name, value in job.environment.items())
    lines = _comments(job)
    lines.append(
        f"# Run on every node: {environment + ' ' if environment else ''}torchrun"
        f" --nnodes {job.nodes} --nproc-per-node {job.ranks_per_node} -m torchtitan.train"
        " --job.config_file THIS"
    )
    for table, values in tables.items():
        lines += ["", f"[{table}]"]
        # JSON's text, numbers, booleans and lists of text are valid TOML as well.
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


_DEEPSPEED_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "lion": "Lion", "muon": "Muon"}
_DEEPSPEED_PRECISIONS = {"bf16": "bf16", "fp16": "fp16"}


def _deepspeed(job: Job) -> str:
    run, p = job.training, job.plan.parallelism
    _of_choices(_DEEPSPEED_OPTIMIZERS, run.optimizer, "optimizer", "deepspeed")
    _of_choices(_DEEPSPEED_PRECISIONS, run.precision, "precision", "deepspeed")
    cannot = {
        f"cp {p.cp} is set in the program, not in this file": p.cp > 1,
        f"ep {p.ep} is set in the program, not in this file": p.ep > 1,
        "its automatic tensor parallelism does not divide the sequence": p.sequence_parallel,
        "its automatic tensor parallelism has no pipeline": p.tp > 1 and p.pp > 1,
        "its automatic tensor parallelism needs zero 0 to 2": p.tp > 1 and p.zero > 2,
        f"its pipelines shard the optimiser alone, not zero {p.zero}": p.pp > 1 and p.zero > 1,
        "MiCS replicates the shards of zero 3 only": p.dp_replicate > 1 and p.zero < 3,
    }
    for reason, is_so in cannot.items():
        if is_so:
            _refuse("deepspeed", reason)
    sharding: dict[str, object] = {
        "stage": p.zero,
        "overlap_comm": _overlaps(job)["overlap_grad_reduce"],
        "reduce_bucket_size": round(run.bucket / bytes_per_element(run.gradient)),
    }
    if p.dp_replicate > 1:
        sharding["mics_shard_size"] = p.dp // p.dp_replicate
    settings: dict[str, object] = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.micro_batches(p),
        _DEEPSPEED_PRECISIONS[run.precision]: {"enabled": True},
        "data_types": {"grad_accum_dtype": run.gradient},
        "optimizer": {"type": _DEEPSPEED_OPTIMIZERS[run.optimizer], "params": {"lr": 3e-4}},
        "zero_optimization": sharding,
    }
    if p.tp > 1:
        settings["tensor_parallel"] = {"autotp_size": p.tp}
    if p.pp > 1:
        settings["pipeline"] = {"stages": p.pp}
    return json.dumps(settings, indent=2) + "\n"


def _slurm(job: Job) -> str:
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={job.plan.model.name}",
        f"#SBATCH --nodes={job.nodes}",
        f"#SBATCH --ntasks-per-node={job.ranks_per_node}",
        f"#SBATCH --gpus-per-node={job.ranks_per_node}",
        "#SBATCH --exclusive",
        *_comments(job),
        "# sbatch THIS COMMAND ...: one task for each GPU, ranks in the order of the nodes.",
        "set -euo pipefail",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export MASTER_ADDR MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS",
        *(f"export {name}={value}" for name, value in job.environment.items()),
        "srun --distribution=block bash -c \\",
        '  \'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"\' bash "$@"',
    ]
    return "\n".join(lines) + "\n"


LAUNCHERS: dict[str, Callable[[Job], str]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "nemo": _nemo,
    "deepspeed": _deepspeed,
    "slurm": _slurm,
}
"""Writers of launch files, by name of the launcher."""
