"""Rows of CCL-Bench's table as plans: which step ran, on which cluster, and what is assumed.

Nothing here is fitted: a row's model, degrees, batch, framework and bandwidths are the table's;
what it does not say is what its framework does if not told otherwise, and stands in ``assumed``.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.questions.generate import plan_on
from simulator.support.errors import TraceError, TwofoldError, WorkloadError
from topologies import Cluster, load_cluster
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan
from traces.generate.run import Recompute, Serving, Training

_GIGABIT = 1e9 / 8
_NEEDED = ("workload_name", "phase", "hardware_model", "framework", "tp", "scale_up_bw_utility")
_MODELS = {
    "llama-3.1-8b": "llama-3.1-8b",
    "qwen-3-4b": "qwen3-4b",
    "qwen3-4b": "qwen3-4b",
    "deepseek-moe-16b": "deepseek-moe-16b",
    "deepseek-v2-lite": "deepseek-v3-16b",
    "deepseek-v2-16b": "deepseek-v3-16b",
    "deepseek_v3_16b": "deepseek-v3-16b",
    "deepseek-v3-16b": "deepseek-v3-16b",
    "deepseek_v3_236b": "deepseek-v2-236b",
}
"""Model cards by the table's names; DeepSeek-V2-Lite has the shape of torchtitan's 16B."""
_FRAMEWORKS = {
    "torchtitan": "fsdp2",
    "torchtitan-0.1.0": "fsdp2",
    "megatron-lm": "megatron",
    "maxtext": "maxtext",
    "torchxla": "maxtext",
    "vllm": "vllm",
    "sglang": "vllm",
}
_STAND_INS = {"torchxla": "run as MaxText, which XLA compiles too", "sglang": "run as vLLM"}
_CLUSTERS = {"nvidia_a100": "perlmutter", "tpu_v6e": "tpu-v6e"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table that can be answered.

    ``utility`` is the scale-up utility that is published (%), ``step`` the step time (s); None
    where they are not. ``bandwidths`` are those of the card, scale-up and scale-out (B/s).
    ``own_all_reduce`` says that all-reduces run by kernels that are not NCCL's.
    """

    name: str
    plan: GenerationPlan
    cluster: Cluster
    bandwidths: tuple[float, float]
    utility: float | None
    step: float | None
    own_all_reduce: bool
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A row that cannot be answered, and why."""

    name: str
    utility: float | None
    step: float | None
    reason: str


def read_rows(path: Path) -> list[Row | Unanswered]:
    """Read the table.

    Raises
    ------
    TraceError
        If the file cannot be read, or has not the columns of CCL-Bench's table.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}, line 1: no column {', '.join(missing)}")
            return [_row(row, f"{path}, line {reader.line_num}") for row in reader]
    except (OSError, UnicodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read as CCL-Bench's table: {error}") from error


def _row(row: Mapping[str, str], place: str) -> Row | Unanswered:
    name = row["workload_name"]
    published = _number(row, "scale_up_bw_utility"), _number(row, "avg_step_time")
    try:
        why = _why_not(row)
        return Unanswered(name, *published, why) if why else _answerable(row, published)
    except (TwofoldError, ValueError) as error:
        return Unanswered(name, *published, f"{place}: {' '.join(str(error).split())}")


def _why_not(row: Mapping[str, str]) -> str:
    if row["phase"] == "serving":
        return "a run of a server under load: which step its time is of is not said"
    if row["comm_library"] == "Gloo":
        return "tensors go through the host to Gloo: no model of that beside kernels of a GPU"
    if row["hardware_model"] not in _CLUSTERS:
        return f"no measured figures of {row['hardware_model']}"
    if row["model_family"].lower() not in _MODELS:
        return f"no card of {row['model_family']}"
    return ""


def _answerable(row: Mapping[str, str], published: tuple[float | None, float | None]) -> Row:
    assumed = [_STAND_INS[row["framework"]]] if row["framework"] in _STAND_INS else []
    cluster = load_cluster(_CLUSTERS[row["hardware_model"]])
    within, between = _bandwidths(row, cluster)
    if row["hardware_model"] == "nvidia_a100":  # a torus has its own links, not the card's sum
        scale_up = cluster.scale_up.model_copy(update={"bandwidth": within})
        cluster = cluster.model_copy(update={"scale_up": scale_up})
    training = row["phase"] == "training"
    parallelism = _parallelism(row, training=training)
    run = _training(row, parallelism, assumed) if training else _decode(row, assumed)
    model = _MODELS[row["model_family"].lower()]
    count = int(_number(row, "total_count") or 1)
    if parallelism.ranks > count or (training and parallelism.ranks < count):
        raise WorkloadError(f"{parallelism} is {parallelism.ranks} ranks, total_count {count}")
    if parallelism.ranks < count:
        assumed.append(f"{parallelism.ranks} of {count} accelerators at work")
    plan = plan_on(cluster, model=model, parallelism=parallelism, run=run, ignore_memory=True)
    own = row["phase"] == "inference" and row["comm_library"] == "MSCCL++"
    return Row(
        row["workload_name"], plan, cluster, (within, between), *published, own, tuple(assumed)
    )


def _bandwidths(row: Mapping[str, str], cluster: Cluster) -> tuple[float, float]:
    """Scale-up and scale-out bandwidth of the card, the cluster's where it has none (B/s)."""
    within = _number(row, "bandwidth_scaleup")
    between = _number(row, "bandwidth_scaleout")
    own = cluster.scale_up.bandwidth
    return (
        own if within is None else within * _GIGABIT,
        cluster.scale_out.bandwidth if between is None else between * _GIGABIT,
    )


def _parallelism(row: Mapping[str, str], *, training: bool) -> Parallelism:
    degree = {name: int(_number(row, name) or 1) for name in ("tp", "pp", "cp", "ep")}
    shard, replicate = (int(_number(row, f"dp_{kind}") or 1) for kind in ("shard", "replicate"))
    told = row["framework"]
    if not training:
        # Experts beside tensor ranks alone: every rank has all tokens, and sums are all-reduced,
        # be an expert on one rank or a part of it on each.
        return Parallelism(**{**degree, "ep": 1}, dp=shard * replicate)
    sharded = shard > 1
    ep, tp = degree["ep"], degree["tp"]
    own_axis = ep if told == "maxtext" else 1  # of its mesh, over which the batch is divided too
    return Parallelism(
        **degree,
        dp=shard * replicate * own_axis,
        zero=3 if sharded else 0,
        dp_replicate=replicate if sharded else 1,
        sequence_parallel=tp > 1 and told != "torchxla",
        etp=1 if ep > 1 and tp > 1 and told.startswith("torchtitan") else None,
    )


def _training(row: Mapping[str, str], parallelism: Parallelism, assumed: list[str]) -> Training:
    framework = _FRAMEWORKS[row["framework"]]
    batch = int(_number(row, "batch_size") or 1)
    given = _number(row, "pp_mb")
    if parallelism.pp > 1 and given:
        micro_batch = int(given)
    elif framework == "megatron":
        micro_batch = 1
        assumed.append("micro-batches of 1 sequence")
    else:
        micro_batch = max(1, batch // parallelism.dp)
    recompute: Recompute = "op" if framework == "fsdp2" else "none"
    if recompute == "op":
        assumed.append("selective checkpointing by operator, torchtitan's default")
    return Training(
        micro_batch=micro_batch,
        global_batch=batch,
        sequence=int(_number(row, "seq_len") or 1),
        recompute=recompute,
        scores="causal",
        framework=framework,
    )


def _decode(row: Mapping[str, str], assumed: list[str]) -> Serving:
    """Return the step of ``avg_step_time``, which is the time of an output token, half way."""
    read = _number(row, "input_len") or _number(row, "seq_len") or 1
    assumed.append("a decode step, half way through the output")
    return Serving(
        phase="decode",
        batch=int(_number(row, "batch_size") or 1),
        context=int(read + (_number(row, "output_len") or 0) / 2),
        framework=_FRAMEWORKS[row["framework"]],
    )


def _number(row: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(row.get(name) or "nan")
    except ValueError:  # N/A and TBD
        return None
    return None if math.isnan(value) else value
