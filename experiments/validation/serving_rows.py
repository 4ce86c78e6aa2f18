"""Tables of measured serving: deployments and their loads, with TTFT and TPOT.

A table is CSV with a row per measurement; columns are those of ``measured_serving.csv``:
``engine``, ``engine_version``, ``model``, ``machine``, ``mode`` (``agg``, ``disagg``), ``isl``,
``osl``, ``concurrency``, parallel degrees (``tp``, ``dp``, ``ep``, ``expert_tp``, ``pp``, and with
``prefill_`` or ``decode_`` before them), ``weights``, ``experts``, ``client``, ``speculative``; and
``ttft_ms`` and ``tpot_ms``, which may be absent. A row that cannot be answered has the reason.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import cast

from experiments.evaluate.deployments import Deployment, Speculation, memory_use, read_weights
from experiments.validation.errors import Differ
from experiments.validation.tables import Cells, read_rows, refusal
from simulator.accelerators import named, sheets
from simulator.serving.engines import Engine, engine
from simulator.support.errors import TraceError, TwofoldError, WorkloadError, shown
from simulator.support.quantities import CENTURY, INSTANT, parse_quantity
from simulator.support.yaml_text import parse_yaml
from topologies import Cluster, catalog, load_cluster
from traces.generate.inference import Precisions
from traces.generate.model import Model, load_model, model_names
from traces.generate.parallelism import Parallelism
from traces.requests.table import INFERENCEX

OUTCOMES = ("id", "ttft_ms", "tpot_ms", "measured", "unusable", "note", "gpus")
"""Columns that are not part of the configuration: names, measurements, and derived values."""
DIFFER: Differ = {
    "machine": ("machine", ()),
    "tensor parallel": ("tp", ("ep", "expert_tp")),
    "precision": ("weights", ("experts",)),
    "concurrency": ("concurrency", ()),
}
"""What rows may differ in: two measurements with that difference check a what-if's ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCase:
    """The deployment and load of a row.

    ``decode`` is the deployment that decodes if it is not ``deployment``, which then only runs
    prefill; ``workers`` are the numbers of each.
    """

    id: str
    client: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    deployment: Deployment
    decode: Deployment | None
    workers: tuple[int, int]
    interval: int
    poll: int
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """A row of a table: its case, or the reason why there is none, and its measurements (s).

    ``facts`` are its cells except :data:`OUTCOMES`; ``unmeasured``: measurements that are NaN or 0.
    """

    id: str
    engine: str
    model: str
    machine: str
    mode: str
    precision: str
    client: str
    concurrency: int
    place: str
    measured_ttft: float | None
    measured_tpot: float | None
    facts: Mapping[str, str]
    case: ServingCase | None
    refused: str = ""
    unmeasured: tuple[str, ...] = ()


def read_serving(path: Path | str) -> list[ServingRow]:
    """Read a table of measured serving; a TraceError names file and line."""
    return read_rows(path, "serving row", _row, _check_columns)


def _check_columns(columns: set[str]) -> None:
    if missing := sorted({"engine", "model", "machine", "isl", "osl"} - columns):
        raise TraceError(
            f"no column {missing[0]}; a table of serving needs engine, model, machine, isl, osl,"
            " concurrency and tp"
        )


def _row(row: Cells) -> ServingRow:
    concurrency = row.number("concurrency")
    times = {column: _milliseconds(row, column) for column in ("ttft_ms", "tpot_ms")}
    absent = [each for each, time in times.items() if time is None and row.text(each)]
    read = ServingRow(
        id=row.text("id", str(row.line)),
        engine=row.text("engine"),
        model=row.text("model"),
        machine=row.text("machine"),
        mode=row.text("mode", "agg"),
        precision=row.text("weights", "bf16"),
        client=row.text("client", "other"),
        concurrency=int(concurrency) if concurrency == concurrency else 0,
        place=row.location,
        measured_ttft=times["ttft_ms"],
        measured_tpot=times["tpot_ms"],
        facts={name: cell.strip() for name, cell in row.by_column.items() if name not in OUTCOMES},
        case=None,
        unmeasured=tuple(f"{each} {row.text(each)} counts as not measured" for each in absent),
    )
    try:
        case = _case(row, read)
        _check_times(read, case)
        return replace(read, case=case)
    except TwofoldError as error:
        return replace(read, refused=refusal(row.location, error))


def _milliseconds(row: Cells, column: str) -> float | None:
    """Read a time; None if it was not measured."""
    cell, value = row.text(column), row.number(column) / 1e3
    if cell.lower() in ("", "nan", "n/a") or value == 0:
        return None
    if not INSTANT <= value <= CENTURY:
        raise TraceError(f"{column}: {shown(cell)} is not a time in milliseconds")
    return value


def _check_times(read: ServingRow, case: ServingCase) -> None:
    """Refuse times in which a rank cannot have read its weights from memory once for each pass."""
    decoding = case.decode or case.deployment
    drafts = decoding.speculation.drafts if decoding.speculation else 0
    for column, time, by, tokens in (
        ("ttft_ms", read.measured_ttft, case.deployment, 1),
        ("tpot_ms", read.measured_tpot, decoding, 1 + drafts),
    ):
        bandwidth = by.cluster.accelerator.memory_bandwidth
        least = read_weights(by) / (bandwidth * tokens) if bandwidth else 0.0
        if time is not None and time < least:
            raise TraceError(
                f"{column}: {1e3 * time:.4g} ms, but reading the weights of a rank alone takes"
                f" {1e3 * least:.4g} ms at the bandwidth of {by.cluster.accelerator.name}: write"
                " milliseconds, and check model, weights and tp"
            )


def _case(row: Cells, read: ServingRow) -> ServingCase:
    drafts = _check(row, read)
    cluster, model = cluster_of_machine(read.machine), model_named(read.model)
    precisions = precisions_of(row, cluster, model, read.engine)
    inputs, outputs = row.count("isl"), row.count("osl")
    most = model.longest if model.name == read.model else None
    if most is not None and inputs + outputs > most:
        raise TraceError(f"isl and osl: {inputs + outputs} tokens, and {model.name} takes {most}")
    concurrency = row.count("concurrency")
    chip = cluster.accelerator
    by = engine(read.engine, row.text("engine_version"), chip.memory or USUAL_MEMORY, chip.name)
    if by.name == "trtllm":
        # Scripts of InferenceX allow a whole prompt beside all decodes, at least 8,192 tokens.
        by = replace(by, tokens=max(by.tokens, concurrency + inputs + 64))
        if read.client == INFERENCEX and read.mode == "agg":
            by = replace(by, balance=_BALANCE)
            if model.experts is None:
                # Workers of their own send the responses (num_postprocess_workers).
                by = replace(by, tokens=_DENSE_TOKENS, host=by.host._replace(response=0.0))
                if inputs == outputs == 1024 and row.count("tp") < 8:
                    by = replace(by, waits=_WAITS, fills=_FILLS * by.tokens)
    if by.name == "vllm" and read.client == INFERENCEX:
        # Its scripts allow as many requests as the client sends (--max-num-seqs).
        by = replace(by, sampling=by.sampling * min(1.0, concurrency / by.sequences))
    interval, poll = client_settings(read.client, by.name, model, cluster, concurrency)
    parts = ("prefill_", "decode_") if read.mode == "disagg" else ("",)
    degrees = {part: _parallelism(row, part, model, cluster) for part in parts}
    setting = [read.client, by.name, model.name, chip.name.partition("-")[0].lower()]
    limits = {} if len(parts) == 1 else _limits(setting, row, degrees, by, concurrency)
    deployments = []
    for part, parallelism in degrees.items():
        sequences, tokens = limits.get(part, (by.sequences, by.tokens))
        deployment = Deployment(
            model=model,
            cluster=cluster,
            parallelism=parallelism,
            engine=replace(by, sequences=sequences, tokens=tokens),
            precisions=precisions,
            context=context_of(inputs + outputs),
            speculation=_speculation(parallelism) if drafts else None,
        )
        deployments.append(_with_room(deployment))
    workers = [row.count(f"{part}workers") for part in parts if part] or [1, 1]
    return ServingCase(
        id=read.id,
        client=read.client,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=concurrency,
        deployment=deployments[0],
        decode=deployments[1] if len(deployments) > 1 else None,
        workers=(workers[0], workers[1]),
        interval=interval,
        poll=poll,
        assumed=tuple(_assumed(read, cluster, model, drafts=drafts)),
    )


def _limits(
    setting: list[str], row: Cells, degrees: Mapping[str, Parallelism], by: Engine, concurrency: int
) -> dict[str, tuple[int, int]]:
    """Return requests and tokens of an iteration of pools, where a row's recipe says them."""
    prefill, decode = degrees["prefill_"], degrees["decode_"]
    key = [*setting, *map(row.text, _OF_RECIPES), f"{decode.tp * decode.dp}", f"{concurrency}"]
    batch, tp, prefill_batch, prefill_tokens = _recipes().get(",".join(key), ("",) * 4)
    if not batch or tp not in ("", f"{prefill.tp}"):
        return {}
    limits = {"decode_": (int(batch), by.tokens)}
    if tp:
        limits["prefill_"] = int(prefill_batch), int(prefill_tokens)
    return limits


@cache
def _recipes() -> dict[str, list[str]]:
    """Read ``max_batch_size`` of pools that decode, by what InferenceX ran with it.

    Of github ishandhanani/srt-slurm, recipes/trtllm (sa-submission-q1-2026), to which InferenceX's
    nvidia-master.yaml (@0004cf5f) refers. More requests wait where their prompts were read. On H200
    (h200/8k1k/stp, @4893f83e), for pools of so many tensor ranks, ``max_batch_size`` and
    ``max_num_tokens`` of prefill, too. Those of H200 and, in 8 bits, of B200 are of the files'
    contents: names of files say others.
    """
    lines = (files("experiments.validation") / "recipes.csv").read_text("utf-8").split()
    cells = [line.rsplit(",", 4) for line in lines]
    return {key: values for key, *values in cells}


def _with_room(deployment: Deployment) -> Deployment:
    """Raise the static part of memory if weights need more, as InferenceX's dsr1_fp8_b200.sh."""
    try:
        memory_use(deployment)
    except WorkloadError:
        if deployment.engine.memory_of == "static":
            return replace(deployment, engine=replace(deployment.engine, memory_fraction=0.95))
    return deployment


def _assumed(read: ServingRow, cluster: Cluster, model: Model, *, drafts: bool) -> Iterator[str]:
    """Return what a row leaves out, with the assumption made for it."""
    if read.client != INFERENCEX:
        yield "closed loop with lengths that vary by 3 %"
    if cluster.name not in catalog() and not Path(read.machine).is_file():
        yield f"on {cluster.name}"
    if model.name != read.model:
        yield f"the shape of {model.name}"
    if drafts:
        yield "drafts and acceptance of InferenceX's MTP"


_OF_RECIPES = ("weights", "isl", "osl", "prefill_workers", "decode_workers")
_BALANCE = 60
"""Iterations: ``attention_dp_config`` of InferenceX's scripts for TensorRT-LLM, ``enable_balance:
true, batching_wait_iters: 0, timeout_iters: 60``."""
_DENSE_TOKENS, _WAITS, _FILLS = 16384, 20, 0.9
"""Of InferenceX's scripts for TensorRT-LLM with Llama (70b_fp8_h200_trt_slurm.sh, @a267b4bd):
``max_num_tokens``, and, with 1,024 tokens of prompt and of output on fewer than eight ranks,
``batch_wait_timeout_iters`` and ``batch_wait_max_tokens_ratio``."""
USUAL_MEMORY = 80e9
"""Memory assumed for an accelerator without data (B): engines choose their budgets by it."""


def _check(row: Cells, read: ServingRow) -> bool:
    """Reject unknown values; return whether tokens are drafted."""
    if row.text("unusable"):
        raise TraceError(f"unusable: {row.text('unusable')}")
    speculative = row.text("speculative", "no")
    if speculative not in ("no", "mtp"):
        raise TraceError(f"speculative: {speculative!r}: what is drafted is not known")
    if read.mode not in ("agg", "disagg"):
        raise TraceError(f"mode: {read.mode!r} is not agg or disagg")
    for column in ("prefill_workers", "decode_workers"):
        if read.mode == "disagg" and not row.text(column):
            raise TraceError(f"{column}: missing: workers are not known")
    return speculative == "mtp"


def context_of(longest: int) -> int:
    """Round a context up (tokens), so that deployments of similar contexts share a surface."""
    return max(4096, 1 << (longest - 1).bit_length())


def _speculation(parallelism: Parallelism) -> Speculation:
    """Return drafts of MTP as InferenceX sets them: 1 with attention data-parallel, else 3.

    Accepted: measured by SPEED-Bench of DeepSeek-V4-Pro, thinking (InferenceX, 8 June 2026).
    """
    drafts, accepted = (1, 1.79) if parallelism.dp > 1 else (3, 2.49)
    return Speculation(drafts=drafts, accepted=accepted)


def _parallelism(row: Cells, prefix: str, model: Model, cluster: Cluster) -> Parallelism:
    tp, dp = row.count(f"{prefix}tp"), row.count(f"{prefix}dp", 1)
    ep, etp = row.count(f"{prefix}ep", 1), row.count(f"{prefix}expert_tp", 1)
    pp = row.count(f"{prefix}pp", 1)
    spreads = _is_early(row) and cluster.accelerator.generation == "blackwell"
    if model.experts is not None and (dp > 1 or (spreads and row.text("client") == INFERENCEX)):
        # Ranks with a batch of their own share the experts: all spreads over all ranks are equal.
        # The script of early rows has --enable-expert-parallel always (EP_SIZE -ge 1, @07e171a3).
        ep, etp = tp * dp, 1
    if model.experts is None or ep == 1:
        return Parallelism(tp=tp, dp=dp, pp=pp)
    if ep * etp != tp * dp or tp % etp:
        ep, etp = tp * dp, 1
    if model.experts.count % ep:
        raise TraceError(f"ep: {ep} does not divide {model.experts.count} experts")
    return Parallelism(tp=tp, dp=dp, ep=ep, etp=etp, pp=pp)


@cache
def cluster_of_machine(machine: str) -> Cluster:
    """Return the cluster of a machine's name: one of the catalogue, or by its accelerator.

    Raises TraceError if no cluster of the catalogue has such accelerators, or it has no rates.

    Examples
    --------
    >>> cluster_of_machine("h200_sxm").name, cluster_of_machine("hgx-b200").name
    ('hgx-h200', 'hgx-b200')
    """
    if machine in catalog() or Path(machine).is_file():
        return load_cluster(machine)
    wanted = {chip.name for chip in named(machine)}
    have = [
        cluster
        for name in sorted(catalog(), key=lambda name: (not name.startswith(_PLAIN), name))
        if (cluster := load_cluster(name)).accelerator.name in wanted
    ]
    if not have:
        return _node_of_generation(machine)
    if not have[0].accelerator.peak or have[0].accelerator.memory_bandwidth is None:
        raise TraceError(f"machine: {have[0].name} gives no rates of its accelerators")
    return have[0]


def _node_of_generation(machine: str) -> Cluster:
    """Return a node of an accelerator's generation with that accelerator in it."""
    chips = [chip for chip in named(machine) if chip.generation in _NODES]
    if not chips:
        raise TraceError(f"machine: no cluster of the catalogue has accelerators {machine!r}")
    chip, sheet = chips[0], sheets()[chips[0].name]
    if "memory" not in sheet:
        raise TraceError(f"machine: the data sheet of {chip.name} gives no memory")
    node = load_cluster(_NODES[chip.generation])
    table = node.accelerator.model_copy(
        update={
            "name": chip.name,
            "generation": chip.generation,
            "peak": dict(chip.peaks),
            "memory_bandwidth": chip.memory_bandwidth,
            "memory": parse_quantity(sheet["memory"], "B"),
        }
    )
    return node.model_copy(update={"name": f"{node.name} with {chip.name}", "accelerator": table})


_NODES = {
    "ampere": "dgx-a100",
    "ada": "l40s-pcie-8-metal",
    "hopper": "hgx-h200",
    "blackwell": "hgx-b200",
}
"""Nodes that represent those of other accelerators of a generation (``assumed`` in rows)."""
_PLAIN = ("hgx-", "dgx-", "gb200-", "gb300-")
"""A vendor's own clusters, preferred to those of clouds and sites with the same parts."""


def model_named(name: str) -> Model:
    """Return the model that a row names; releases of one shape share its card.

    Raises TraceError if no card is like it.

    Examples
    --------
    >>> model_named("deepseek-r1").name, model_named("kimi-k2.5").name
    ('deepseek-v3-671b', 'kimi-k2-1t')
    """
    plain = re.sub(r"[ _]+", "-", name.strip().lower()).rpartition("/")[2]
    if plain in model_names():
        return load_model(plain)
    for pattern, card in _same_shape().items():
        if re.search(pattern, plain):
            return load_model(card)
    return load_model(name)


@cache
def _same_shape() -> dict[str, str]:
    """Read patterns of the names of releases and quantised packages, with their shape's card."""
    text = (files("experiments.validation") / "releases.yaml").read_text("utf-8")
    return cast("dict[str, str]", parse_yaml(text, "releases.yaml"))


_RECIPES = ("bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4_wo", "int8_wo")


def _is_early(row: Cells) -> bool:
    """Whether a row was run by InferenceX's script of vLLM before 0.19 for scales of blocks."""
    run = "-".join(map(row.text, ("engine", "weights", "engine_version")))
    return re.match(r"vllm-fp8_block-v?0\.1[0-8]\b", run) is not None


def precisions_of(row: Cells, cluster: Cluster, model: Model, engine_name: str) -> Precisions:
    """Return the precisions of a checkpoint's parts, given by row, engine and machine.

    Four-bit checkpoints of models with MLA, and all with four-bit integers, keep attention in 16
    bits (modules to ignore of nvidia/DeepSeek-R1-0528-FP4 and moonshotai/Kimi-K2.5). The cache is
    in 8 bits where the scripts of InferenceX set it or checkpoints of 8 or 4 bits ask for it
    (``kv_cache_quant_algo`` of NVIDIA's): under TensorRT-LLM and, on Blackwell, SGLang and vLLM.
    512 requests of MiniMax-M2.5 with 9,216 tokens each, which tp 4 on B300 served without a queue,
    would not fit in 16 bits. Checkpoints with scales of blocks ask for nothing, and InferenceX's
    scripts of vLLM before 0.19 (@07e171a3) set nothing. Raises TraceError if a recipe is not known.
    """
    weights = row.text("weights", "bf16")
    experts = row.text("experts") or weights
    for column, recipe in (("weights", weights), ("experts", experts)):
        if recipe not in _RECIPES:
            raise TraceError(f"{column}: {recipe!r} is not one of {', '.join(_RECIPES)}")
    blackwell = cluster.accelerator.generation == "blackwell"
    if experts == "mxfp4" and blackwell:
        experts = "w4a8_mxfp4_mxfp8"
    attention = network = weights
    if weights == "int4_wo":
        attention = network = "bf16"
    if weights == "nvfp4" and model.experts is not None:
        attention = "bf16"
    on_blackwell = engine_name in ("sglang", "vllm") and blackwell
    is_small = weights != "bf16" and (engine_name == "trtllm" or on_blackwell)
    cache = "fp8" if is_small and not _is_early(row) else "bf16"
    return Precisions(attention=attention, network=network, experts=experts, cache=cache)


def client_settings(
    client: str, engine_name: str, model: Model, cluster: Cluster, concurrency: int
) -> tuple[int, int]:
    """Return streaming interval (tokens) and poll (iterations) of a client's engine settings.

    Of InferenceX's scripts (benchmarks/*.sh, @843c6254): SGLang streams every 10 tokens, and on
    Blackwell looks for requests every 10 iterations only, 30 from a concurrency of 16; TensorRT-LLM
    streams every 10 for models with experts, and through workers of its own for others, which send
    the first token at once. (Scripts for 8 bits on Blackwell say 30 tokens, but of rows without
    drafts TTFT is 17 to 24 times TPOT, as of 4 and 16 bits.)
    """
    if client != INFERENCEX:
        return 1, 1
    blackwell = cluster.accelerator.generation == "blackwell"
    if engine_name == "sglang":
        return 10, 1 if not blackwell else 10 if concurrency < 16 else 30
    if engine_name == "trtllm" and model.experts is not None:
        return 10, 1
    return 1, 1


GROUPS: dict[str, Callable[[ServingRow], str]] = {
    **{n: attrgetter(n) for n in ("client", "mode", "engine", "machine", "model", "precision")},
    "concurrency": lambda row: next(
        (f"to {most}" for most in (8, 32, 128, 512) if row.concurrency <= most), "more"
    ),
}
"""Properties by which rows are grouped in summaries of errors."""
