"""Validate serving: TTFT and TPOT of deployments that others measured, and logs request by request.

A log has the settings of an engine, and the times at which each request was queued and answered.
Its folder has ``requests.jsonl``, a line per request: ``request_id``, ``input_toks``,
``output_toks``, ``arrival_time`` or ``queued_ts`` and, if measured, ``first_token_ts`` and
``last_token_ts`` (s); and ``meta.json`` with ``model``, ``vllm_version`` and ``engine_kwargs``, as
LLMServingSim's benchmark writes them (github casys-kaist/LLMServingSim).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from experiments.baseline import Settings
from experiments.documents import validation as documents
from experiments.evaluate.deployments import Deployment, cache_bytes
from experiments.evaluate.parallel import map_rows
from experiments.evaluate.serving_clients import Closed
from experiments.evaluate.serving_fleets import Instances
from experiments.evaluate.serving_instances import parallelism_of, unmeasured_kernels
from experiments.evaluate.serving_runs import serve
from experiments.priors.errors import ServingPrior, serving_prior
from experiments.provenance import Inputs
from experiments.report import Report, or_none, question
from experiments.settings import Watch
from experiments.validation.errors import (
    PairErrors,
    Prediction,
    error_pct,
    error_summary,
    groups,
    ratio_errors,
)
from experiments.validation.serving_rows import (
    DIFFER,
    GROUPS,
    USUAL_MEMORY,
    ServingCase,
    ServingRow,
    context_of,
    model_named,
    read_serving,
)
from experiments.validation.tables import SERVING_LOG, read_tables, refusal
from simulator.serving.engines import check_version, engine, engine_settings
from simulator.support.arrays import Floats
from simulator.support.errors import TraceError, TwofoldError, shown
from simulator.support.input_files import parse_json, read_text
from simulator.support.names import one_of
from simulator.support.quantities import MOST_RANKS
from topologies import Cluster, load_cluster
from traces.generate.inference import Precisions
from traces.requests.readers import Logged, read_logged
from traces.requests.table import MOST_TOKENS, SPREAD


@dataclass(frozen=True, slots=True)
class ServingPrediction:
    """A row's answer: mean time to the first token and per output token (s).

    Errors are predicted against measured (%); a row without an answer has the reason in
    ``refused``. ``assumed`` is what the row does not state.
    """

    id: str
    ttft_s: float | None
    tpot_s: float | None
    measured_ttft_s: float | None
    measured_tpot_s: float | None
    ttft_error_pct: float | None
    tpot_error_pct: float | None
    refused: str = ""
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class ServingErrors:
    """Errors (%) of a group of similar rows; ratios are predicted to measured."""

    by: str
    value: str
    rows: int
    answered: int
    tpot_median_pct: float | None
    tpot_p90_pct: float | None
    tpot_ratio: float | None
    ttft_median_pct: float | None
    ttft_p90_pct: float | None
    ttft_ratio: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ValidateServingReport(Report):
    """Predictions in the order of the table's rows; their errors by groups, and of pairs."""

    schema: ClassVar[str] = "twofold/validate_serving/1"
    listed: ClassVar = ServingPrediction, "rows"
    document = documents.predicted_serving
    answered: ClassVar = "rows errors pairs"

    rows: tuple[ServingPrediction, ...]
    asked: tuple[ServingRow, ...]
    settings: Settings
    brief: bool = False

    @property
    def errors(self) -> tuple[ServingErrors, ...]:
        """Errors of all rows, then of groups of them."""
        both = list(zip(self.asked, self.rows, strict=True))
        by = {
            name: partial(lambda of, pair: of(pair[0]), value_of)
            for name, value_of in GROUPS.items()
        }
        return tuple(
            _errors(what, value, [row for _, row in alike])
            for what, value, alike in groups(both, by)
        )

    @property
    def pairs(self) -> tuple[PairErrors, ...]:
        """Errors of ratios of TPOT, by what two rows differ in: the check of utilities."""
        answered = [
            (measured.facts, measured.measured_tpot, row.tpot_s)
            for measured, row in zip(self.asked, self.rows, strict=True)
            if measured.measured_tpot is not None and row.tpot_s is not None
        ]
        return ratio_errors(answered, DIFFER)


@question("validate_serving")
def validate_serving(
    tables: Sequence[Path | str] | Path | str, *, watch: Watch = lambda _: None
) -> ValidateServingReport:
    """Predict TTFT and TPOT of each row of tables of measured serving.

    Parameters
    ----------
    tables
        As :mod:`experiments.validation.serving_rows` describes them.
    watch
        Called with what is about to be done; returns where its progress goes.

    Returns
    -------
    ValidateServingReport
        An answer per row, in order; a refused row has the reason.

    Raises
    ------
    TraceError
        As :func:`experiments.validation.serving_rows.read_serving`.
    WhatIfError
        If there are no tables.
    """
    rows, files = read_tables(tables, "serving", read_serving)
    answers = map_rows(rows, predicted, "rows", watch=watch)
    return ValidateServingReport(
        tuple(answers), tuple(rows), Settings(), inputs=Inputs(files=files)
    )


def predicted(row: ServingRow) -> ServingPrediction:
    """Predict one row; a row that cannot be predicted has the reason."""
    if row.case is None:
        return _answer(row, None, None, row.refused)
    try:
        return _answer(row, *mean_times(row.case))
    except (TwofoldError, ArithmeticError, LookupError, ValueError) as error:
        # A row that raises is refused with the error, so that thousands of others are answered.
        return _answer(row, None, None, refusal(row.place, error))


_UNKNOWN_SPREAD = 0.97
"""Of the lengths of clients that do not say: with equal ones all requests of a closed loop would
end, and come, at once, which makes TTFT of SGLang's and vLLM's rows up to five times the measured.
"""


def mean_times(case: ServingCase) -> tuple[float, float | None]:
    """Return the means of TTFT and TPOT (s) that the row's client would measure.

    Requests of one token have no TPOT.
    """
    client = Closed(
        case.concurrency,
        case.input_tokens,
        case.output_tokens,
        spread=SPREAD.get(case.client, _UNKNOWN_SPREAD),
        interval=case.interval,
        poll=case.poll,
    )
    instances = Instances(
        deployment=case.deployment,
        count=case.workers[0],
        decode=case.decode,
        decode_count=case.workers[1] if case.decode is not None else 0,
    )
    run = serve(instances, client)
    tpot = run.tpot[np.isfinite(run.tpot)]
    return float(run.ttft.mean()), float(tpot.mean()) if len(tpot) else None


def _answer(
    row: ServingRow, ttft: float | None, tpot: float | None, refused: str = ""
) -> ServingPrediction:
    return ServingPrediction(
        row.id,
        ttft,
        tpot,
        row.measured_ttft,
        row.measured_tpot,
        error_pct(ttft, row.measured_ttft),
        error_pct(tpot, row.measured_tpot),
        refused,
        "; ".join((*(row.case.assumed if row.case else ()), *row.unmeasured)),
    )


def _errors(by: str, value: str, rows: Sequence[ServingPrediction]) -> ServingErrors:
    def figures(errors: Iterable[float | None]) -> tuple[float | None, float | None, float | None]:
        summary = error_summary(Prediction("", error) for error in errors if error is not None)
        if summary is None:
            return None, None, None
        return summary.median_pct, summary.p90_pct, 1 + summary.bias_pct / 100

    tpot = figures(row.tpot_error_pct for row in rows)
    ttft = figures(row.ttft_error_pct for row in rows)
    answered = sum(row.ttft_s is not None for row in rows)
    return ServingErrors(by, value, len(rows), answered, *tpot, *ttft)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Times of a request (s), predicted and measured: TTFT, per output token, total."""

    request_id: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    measured_ttft_s: float | None
    measured_tpot_s: float | None
    measured_e2e_s: float | None


@dataclass(frozen=True, slots=True)
class LogFigure:
    """A statistic over all requests (s), predicted and measured, and its error (%)."""

    metric: str
    figure: str
    predicted_s: float
    measured_s: float | None
    error_pct: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingLogReport(Report):
    """Times of requests in the order of their arrival, means and percentiles, rank correlations."""

    schema: ClassVar[str] = "twofold/validate_serving_log/1"
    listed: ClassVar = RequestTimes, "requests"
    document = documents.serving_log
    answered: ClassVar = "requests figures rank_correlation=correlations blocks preemptions"

    requests: tuple[RequestTimes, ...]
    figures: tuple[LogFigure, ...]
    correlations: dict[str, float]
    cluster: Cluster
    settings: Settings
    title: str
    preemptions: int
    blocks: int | None
    unused: tuple[str, ...]
    doubts: tuple[str, ...]
    prior: ServingPrior


@question("validate_serving_log")
def validate_serving_log(folder: Path | str, cluster: Cluster | Path | str) -> ServingLogReport:
    """Predict the requests of a log with an instance that has the log's settings.

    Parameters
    ----------
    folder
        As :mod:`experiments.questions.validation.serving` describes it.
    cluster
        Where it ran: a cluster, its name in the catalogue, or the path of its file.

    Raises
    ------
    TwofoldError
        If the log cannot be read, or the model does not fit.
    """
    where = load_cluster(cluster)
    (requests, ids, first, last), deployment, unused = read_log(folder, where)
    runs = serve(deployment, requests)
    times = [
        (runs.ttft, first - requests.arrival),
        (np.nan_to_num(runs.tpot), (last - first) / np.maximum(requests.output - 1, 1)),
        (runs.end_to_end, last - requests.arrival),
    ]
    rows = tuple(
        RequestTimes(
            name,
            *(float(predicted[index]) for predicted, _ in times),
            *(or_none(measured[index]) for _, measured in times),
        )
        for index, name in enumerate(ids)
    )
    figures, correlations = [], {}
    for metric, (predicted, measured) in zip(("ttft", "tpot", "e2e"), times, strict=True):
        figures += _figures(metric, predicted, measured)
        if np.isfinite(measured).all() and len(measured) > 1:
            correlations[metric] = _rank_correlation(measured, predicted)
    return ServingLogReport(
        rows,
        tuple(figures),
        correlations,
        where,
        Settings(),
        f"{deployment.model.name} on {where.name}",
        int(runs.totals["preemptions"]),
        deployment.blocks,
        unused,
        unmeasured_kernels(deployment),
        serving_prior(deployment.engine.name),
        inputs=Inputs(files=tuple(Path(folder) / name for name in SERVING_LOG)),
    )


def _figures(metric: str, predicted: Floats, measured: Floats) -> list[LogFigure]:
    both = [
        (float(times.mean()), *np.quantile(times, (0.5, 0.9, 0.99)).tolist())
        for times in (predicted, measured)
    ]
    return [
        LogFigure(metric, name, given, or_none(true), error_pct(given, or_none(true) or None))
        for name, given, true in zip(("mean", "p50", "p90", "p99"), *both, strict=True)
    ]


def _rank_correlation(measured: Floats, predicted: Floats) -> float:
    """Return Spearman's rank correlation; ties get the mean of their ranks."""
    ranks = []
    for values in (measured, predicted):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranks.append((ends - (counts - 1) / 2)[inverse])
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 12)


def read_log(folder: Path | str, cluster: Cluster) -> tuple[Logged, Deployment, tuple[str, ...]]:
    """Read a log, the deployment that its settings describe, and settings without effect on it.

    It has ``meta.json`` and ``requests.jsonl``. Raises TraceError if a file is missing, or a field
    is; names file, line and field.
    """
    settings, requests = (Path(folder) / name for name in SERVING_LOG)
    logged = read_logged(requests)
    meta = parse_json(
        read_text(settings, TraceError, "as the settings of an engine"), settings, TraceError
    )
    longest = int((logged.requests.prompt + logged.requests.output).max())
    deployment = _deployment(meta, settings, cluster, longest)
    unused = _unused(meta.get("engine_kwargs") or {}, settings)
    if known := deployment.engine.assumed:
        unused += (f"what is new in vLLM since {known}",)
    return logged, deployment, unused


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of a log by name, and their location; a field that is null counts as missing."""

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

    def choice(self, name: str, choices: Mapping[Any, _Value]) -> _Value:
        """Return the meaning of a setting's value; None if it is missing."""
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
"""Quantisation of weights by vLLM's ``quantization`` (``layers/quantization/__init__.py``)."""
_CACHES: Mapping[str | None, str] = {
    **_DTYPES,
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), "fp8"),
}
"""Type of the KV cache by vLLM's ``kv_cache_dtype`` (``vllm/config/cache.py``)."""


_YES_OR_NO = {None: False, False: False, True: True}


def _unused(given: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Return names of settings whose effect is not known; refuse those that are not modelled."""
    known = engine_settings("vllm")
    for name, usual in known["refused"].items():
        if (value := given.get(name)) is not None and value not in usual:
            raise TraceError(
                f"{file}: {name}: {shown(value)} is not modelled: give a log without it"
            )
    names = {name for kind in known.values() for name in kind}
    return tuple(sorted(k for k, v in given.items() if k not in names and v is not None))


def _deployment(meta: Any, file: Path, cluster: Cluster, longest: int) -> Deployment:
    """Return the engine that a log's settings describe, with room for the longest request."""
    if not isinstance(meta, dict):
        raise TraceError(f"{file}: the settings of an engine must be a table")
    settings = {} if meta.get("engine_kwargs") is None else meta["engine_kwargs"]
    if not isinstance(settings, dict):
        raise TraceError(f"{file}: engine_kwargs: {shown(settings)} is not a table")
    if "sglang_version" in meta or "server_args" in meta:
        raise TraceError(f"{file}: settings of SGLang; only those of vLLM are read: vllm_version")
    blocks = meta.get("num_gpu_blocks", settings.get("num_gpu_blocks_override"))
    fields = _Fields(f"{file}", settings | {"num_gpu_blocks": blocks})
    name = meta.get("model") or settings.get("model")
    if not isinstance(name, str):
        raise TraceError(f"{file}: model is missing")
    model = model_named(name)
    tp, dp, pp, dcp, cp = (
        fields.count(f"{way}_parallel_size", 1, MOST_RANKS)
        for way in ("tensor", "data", "pipeline", "decode_context", "prefill_context")
    )
    spreads = fields.choice("enable_expert_parallel", _YES_OR_NO) and model.experts is not None
    chip, version = cluster.accelerator, str(meta.get("vllm_version") or "")
    check_version("vllm", version)
    usual = engine("vllm", version, chip.memory or USUAL_MEMORY, chip.name)
    part = fields.number("gpu_memory_utilization", 0.01, 1)
    if longest > (most := fields.count("max_model_len", model.longest or MOST_TOKENS)):
        raise TraceError(f"{file}: max_model_len is {most}, but a request has {longest} tokens")
    fields.choice("dtype", _DTYPES)
    weights = fields.choice("quantization", _QUANTIZATIONS)
    chunked = fields.choice("enable_chunked_prefill", _YES_OR_NO | {None: usual.chunked})
    whole = {None: usual.reserve, False: "chunk", True: "sequence"}
    tokens = usual.tokens if chunked else max(usual.tokens, most)
    deployment = Deployment(
        model=model,
        cluster=cluster,
        parallelism=parallelism_of(
            model, cluster, (tp, dp, tp * cp * dp if spreads else 1, pp, cp)
        ),
        engine=replace(
            usual,
            tokens=fields.count("max_num_batched_tokens", tokens),
            sequences=fields.count("max_num_seqs", usual.sequences),
            chunked=chunked,
            reserve=fields.choice("scheduler_reserve_full_isl", whole),
            captured=fields.count("max_cudagraph_capture_size", usual.captured),
            memory_fraction=usual.memory_fraction if part is None else float(part),
            # Ranks that share a context have a part of each block of the scheduler's.
            block=fields.count("block_size", usual.block) * dcp,
            # The log's times are the engine's own: without a server and a client.
            host=usual.host._replace(first=0.0, per_token=0.0),
        ),
        precisions=Precisions(
            attention=weights,
            network=weights,
            experts=weights,
            cache=fields.choice("kv_cache_dtype", _CACHES),
        ),
        context=context_of(longest),
        blocks=None if blocks is None else fields.count("num_gpu_blocks"),
        dcp=dcp,
    )
    size = fields.number("kv_cache_memory_bytes", 1, 1e15)
    if size is None or deployment.blocks is not None:
        return deployment
    # The cache has the memory that it is given: vLLM then ignores the utilisation.
    return replace(
        deployment,
        blocks=int(size / (deployment.engine.block * cache_bytes(deployment))),
        engine=replace(deployment.engine, memory_fraction=1.0),
    )
