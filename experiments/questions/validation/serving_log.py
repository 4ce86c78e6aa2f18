"""Validate a serving log: answer each of its requests, and compare with what was measured.

A log is what an engine was set to, and when each of its requests was queued and answered. Its
folder has ``requests.jsonl``, a line per request: ``request_id``, ``input_toks``, ``output_toks``,
``arrival_time`` or ``queued_ts`` and, where measured, ``first_token_ts`` and ``last_token_ts`` (s);
and ``meta.json`` with ``model``, ``vllm_version`` and ``engine_kwargs``, as LLMServingSim's
benchmark writes them (github casys-kaist/LLMServingSim).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from experiments.baseline import Settings
from experiments.evaluate.serving_fleets import InstanceRun, serve
from experiments.evaluate.serving_instances import Deployment
from experiments.output.document import Document
from experiments.provenance import Head, Inputs
from experiments.question import question
from experiments.report import Report, Rows
from experiments.validation.errors import error_pct
from experiments.validation.serving_rows import USUAL_MEMORY, context_of, model_named, runs_as
from simulator.serving.engines import engine
from simulator.serving.schedulers import Columns
from simulator.support.arrays import Floats, Longs
from simulator.support.errors import TraceError, shown
from simulator.support.input_files import json_rows, parse_json, read_text
from simulator.support.names import one_of
from simulator.support.quantities import CENTURY, MOST_RANKS
from topologies import Cluster, load_cluster
from traces.generate.inference import Precisions
from traces.generate.parallelism import Parallelism
from traces.requests.table import MOST_TOKENS

_FILES = ("meta.json", "requests.jsonl")


@dataclass(frozen=True, slots=True, eq=False)
class ServingLog:
    """Requests in the order of their arrival; times count from the first arrival (s).

    ``first`` and ``last`` are NaN where nothing was measured.
    """

    ids: tuple[str, ...]
    arrival: Floats
    prompt: Longs
    output: Longs
    first: Floats
    last: Floats
    deployment: Deployment


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A request's times (s), predicted and measured: to the first token, for each after, in all."""

    request_id: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    measured_ttft_s: float | None
    measured_tpot_s: float | None
    measured_e2e_s: float | None


@dataclass(frozen=True, slots=True)
class LogFigure:
    """A figure of all requests (s), predicted and measured, and the error (%)."""

    metric: str
    figure: str
    predicted_s: float
    measured_s: float | None
    error_pct: float | None


class ValidateServingLogAnswer(Head):
    """The times of every request, means and percentiles, and rank correlations by metric."""

    requests: list[RequestTimes]
    figures: list[LogFigure]
    rank_correlation: dict[str, float]
    blocks: int | None
    preemptions: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingLogReport(Report):
    """Requests in the order of their arrival."""

    schema: ClassVar[str] = "twofold/validate_serving_log/1"

    requests: tuple[RequestTimes, ...]
    figures: tuple[LogFigure, ...]
    correlations: dict[str, float]
    cluster: Cluster
    settings: Settings
    title: str
    preemptions: int
    blocks: int | None

    def answer(self) -> "ValidateServingLogAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.cluster, self.settings),
            "requests": list(self.requests),
            "figures": list(self.figures),
            "rank_correlation": self.correlations,
            "blocks": self.blocks,
            "preemptions": self.preemptions,
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import validation  # numbers need none of it

        return validation.serving_log(self)

    def table(self) -> Rows:
        """Return the CSV answer: a row per request."""
        return RequestTimes, self.requests


@question("validate_serving_log")
def validate_serving_log(folder: Path | str, cluster: Cluster | Path | str) -> ServingLogReport:
    """Answer the requests of a log by an instance with the log's settings.

    Parameters
    ----------
    folder
        As :mod:`experiments.questions.validation.serving_log` describes it.
    cluster
        Where it ran: a cluster, its name in the catalogue, or the path of its file.

    Raises
    ------
    TwofoldError
        If the log cannot be read, or the model does not fit.
    """
    where = load_cluster(cluster)
    log = read_log(folder, where)
    runs = served(log)
    times = [
        (runs.ttft, log.first - log.arrival),
        (runs.tpot, (log.last - log.first) / np.maximum(log.output - 1, 1)),
        (runs.end_to_end, log.last - log.arrival),
    ]
    rows = tuple(
        RequestTimes(
            name,
            *(float(predicted[index]) for predicted, _ in times),
            *(_or_none(measured[index]) for _, measured in times),
        )
        for index, name in enumerate(log.ids)
    )
    figures, correlations = [], {}
    for metric, (predicted, measured) in zip(("ttft", "tpot", "e2e"), times, strict=True):
        figures += _figures(metric, predicted, measured)
        if np.isfinite(measured).all() and len(measured) > 1:
            correlations[metric] = rank_correlation(measured.tolist(), predicted.tolist())
    return ServingLogReport(
        rows,
        tuple(figures),
        correlations,
        where,
        Settings(),
        f"{log.deployment.model.name} on {where.name}",
        int(runs.totals["preemptions"]),
        log.deployment.blocks,
        inputs=Inputs(files=tuple(Path(folder) / name for name in _FILES)),
    )


def served(log: ServingLog) -> InstanceRun:
    """Serve a log's requests; data-parallel ranks have a queue each and step together."""
    alone = np.full(len(log.ids), -1)
    return serve(log.deployment, Columns(log.arrival, log.prompt, log.output, alone))


def _figures(metric: str, predicted: Floats, measured: Floats) -> list[LogFigure]:
    figures = []
    for name, quantile in (("mean", None), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        of_predicted, of_measured = (
            float(times.mean() if quantile is None else np.quantile(times, quantile))
            for times in (predicted, measured)
        )
        true = _or_none(of_measured)
        figures.append(
            LogFigure(metric, name, of_predicted, true, error_pct(of_predicted, true or None))
        )
    return figures


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def rank_correlation(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Spearman's rank correlation, ties by the mean of their ranks.

    Examples
    --------
    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.5
    """
    ranks = []
    for values in (np.asarray(measured), np.asarray(predicted)):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranks.append((ends - (counts - 1) / 2)[inverse])
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 12)


def read_log(folder: Path | str, cluster: Cluster) -> ServingLog:
    """Read a log.

    Parameters
    ----------
    folder
        With ``meta.json`` and ``requests.jsonl``.
    cluster
        Where the engine ran.

    Raises
    ------
    TraceError
        If a file is missing, or a field is; names file, line and field.
    """
    settings, requests = (Path(folder) / name for name in _FILES)
    lines = json_rows(read_text(requests, TraceError, "as requests"), requests)
    rows = [_Fields(f"{requests}, line {line}", row) for line, row in lines]
    if not rows:
        raise TraceError(f"{requests}: has no request")
    arrivals = np.array([row.first_number("queued_ts", "arrival_time", "arrival") for row in rows])
    order = np.argsort(arrivals, kind="stable")
    rows, arrivals = [rows[index] for index in order], arrivals[order]
    origin = float(arrivals[0])
    prompt, output = (
        np.array([row.count(name) for row in rows], dtype=np.int64)
        for name in ("input_toks", "output_toks")
    )
    first, last = (
        np.array([row.number(name, -CENTURY, CENTURY) for row in rows], dtype=float) - origin
        for name in ("first_token_ts", "last_token_ts")
    )
    if (first < arrivals - origin).any() or (last < first).any():
        raise TraceError(
            f"{requests}: a request has its last token before its first, or its first before it"
            " arrives"
        )
    meta = parse_json(
        read_text(settings, TraceError, "as the settings of an engine"), settings, TraceError
    )
    deployment = _deployment(meta, settings, cluster, int((prompt + output).max()))
    ids = tuple(str(row.by_name.get("request_id", number)) for number, row in enumerate(rows))
    return ServingLog(ids, arrivals - origin, prompt, output, first, last, deployment)


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of a log by name, and where they stand; one that is null is not given."""

    location: str
    by_name: Mapping[str, Any]

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.by_name.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TraceError(f"{self.location}: {name}: {shown(value)} is not a number")
        if not least <= value <= most:
            raise TraceError(f"{self.location}: {name}: {value:g} is not {least:g} to {most:g}")
        return value

    def first_number(self, *names: str) -> float:
        """Return the time (s) of the first of these fields that is given."""
        for name in names:
            if (value := self.number(name, -CENTURY, CENTURY)) is not None:
                return value
        raise TraceError(f"{self.location}: {' or '.join(names)}: missing")

    def choice(self, name: str, choices: Mapping[Any, _Value]) -> _Value:
        """Return what a setting's word stands for; None where it is not given."""
        value = self.by_name.get(name)
        if isinstance(value, list | dict) or value not in choices:
            known = [str(choice) for choice in choices if choice is not None]
            raise TraceError(f"{self.location}: {name} {one_of(str(value), known)}")
        return choices[value]

    def count(self, name: str, usual: int | None = None, most: int = MOST_TOKENS) -> int:
        value = self.number(name, 1, most)
        value = usual if value is None else value
        if not isinstance(value, int):
            reason = "missing" if value is None else f"{value:g} is not a whole number"
            raise TraceError(f"{self.location}: {name}: {reason}")
        return value


_DTYPES: Mapping[str | None, str] = dict.fromkeys(
    (None, "auto", "bfloat16", "float16", "half"), "bf16"
)
_QUANTIZATIONS: Mapping[str | None, str] = {
    None: "bf16",
    **dict.fromkeys(("fp8", "modelopt", "fbgemm_fp8", "ptpc_fp8"), "fp8"),
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin"), "int4_wo"),
    "modelopt_fp4": "nvfp4",
}
"""Recipe of weights by vLLM's ``quantization`` (``layers/quantization/__init__.py``)."""
_CACHES: Mapping[str | None, str] = {
    **_DTYPES,
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), "fp8"),
}
"""Type of the cache by vLLM's ``kv_cache_dtype`` (``vllm/config/cache.py``)."""


def _deployment(meta: Any, file: Path, cluster: Cluster, longest: int) -> Deployment:
    """Return the engine that a log's settings describe, with room for its longest request."""
    if not isinstance(meta, dict):
        raise TraceError(f"{file}: the settings of an engine must be a table")
    settings = meta.get("engine_kwargs")
    settings = {} if settings is None else settings
    if not isinstance(settings, dict):
        raise TraceError(f"{file}: engine_kwargs: {shown(settings)} is not a table")
    blocks = meta.get("num_gpu_blocks", settings.get("num_gpu_blocks_override"))
    fields = _Fields(f"{file}", settings | {"num_gpu_blocks": blocks})
    name = meta.get("model") or settings.get("model")
    if not isinstance(name, str):
        raise TraceError(f"{file}: model is missing")
    model = model_named(name)
    tp, dp = (fields.count(f"{way}_parallel_size", 1, MOST_RANKS) for way in ("tensor", "data"))
    parallelism = Parallelism(tp=tp, dp=dp)
    if (
        fields.choice("enable_expert_parallel", {None: False, False: False, True: True})
        and model.experts is not None
        and tp * dp > 1
    ):
        parallelism = replace(parallelism, ep=tp * dp, etp=1)
    usual = engine(
        "vllm", str(meta.get("vllm_version", "")), cluster.accelerator.memory or USUAL_MEMORY
    )
    part = fields.number("gpu_memory_utilization", 0.01, 1)
    fields.choice("dtype", _DTYPES)
    recipe = fields.choice("quantization", _QUANTIZATIONS)
    weights = runs_as(recipe, cluster.accelerator.peak)
    cache = fields.choice("kv_cache_dtype", _CACHES)
    return Deployment(
        model=model,
        cluster=cluster,
        parallelism=parallelism,
        engine=replace(
            usual,
            tokens=fields.count("max_num_batched_tokens", usual.tokens),
            sequences=fields.count("max_num_seqs", usual.sequences),
            memory_fraction=usual.memory_fraction if part is None else float(part),
            block=fields.count("block_size", usual.block),
            # The log's times are the engine's own: no server and no client stand before it.
            host=usual.host._replace(first=0.0, per_token=0.0),
        ),
        precisions=Precisions(attention=weights, network=weights, experts=weights, cache=cache),
        context=context_of(longest),
        blocks=None if blocks is None else fields.count("num_gpu_blocks"),
    )
