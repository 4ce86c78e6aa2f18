"""Logs of serving: an engine's settings, and when each of its requests was queued and answered.

A folder has ``requests.jsonl``, a line per request: ``request_id``, ``input_toks``,
``output_toks``, ``arrival_time`` or ``queued_ts`` and, where measured, ``first_token_ts`` and
``last_token_ts`` (s); and ``meta.json`` with ``model``, ``vllm_version`` and ``engine_kwargs``, as
LLMServingSim's benchmark writes them (github casys-kaist/LLMServingSim).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.evaluate.serving_instances import Deployment
from experiments.validation.serving_rows import model_named
from simulator.serving.engines import engine
from simulator.support.arrays import Floats, Longs
from simulator.support.errors import TraceError, shown
from simulator.support.input_files import json_rows, parse_json, read_text
from simulator.support.quantities import CENTURY, MOST_RANKS
from topologies import Cluster
from traces.generate.inference import Precisions
from traces.generate.parallelism import Parallelism
from traces.requests.table import MOST_TOKENS


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
    path = Path(folder)
    meta = _json(path / "meta.json")
    rows = _rows(path / "requests.jsonl")
    arrivals = np.array([_arrival(row, path) for row in rows])
    order = np.argsort(arrivals, kind="stable")
    rows, arrivals = [rows[index] for index in order], arrivals[order]
    origin = float(arrivals[0])
    prompt, output = (
        np.array([_tokens(row, name, path) for row in rows], dtype=np.int64)
        for name in ("input_toks", "output_toks")
    )
    first, last = (
        np.array([_answered(row, name, path) - origin for row in rows])
        for name in ("first_token_ts", "last_token_ts")
    )
    if (first < arrivals - origin).any() or (last < first).any():
        raise TraceError(
            f"{path / 'requests.jsonl'}: a request has its last token before its first, or its"
            " first before it arrives"
        )
    deployment = _deployment(meta, path, cluster, int((prompt + output).max()))
    ids = tuple(str(row.get("request_id", number)) for number, row in enumerate(rows))
    return ServingLog(ids, arrivals - origin, prompt, output, first, last, deployment)


def _json(file: Path) -> Mapping[str, Any]:
    words = "as the settings of an engine"
    data = parse_json(read_text(file, TraceError, words), file, TraceError)
    if not isinstance(data, dict):
        raise TraceError(f"{file}: the settings of an engine must be a table")
    return data


def _rows(file: Path) -> list[dict[str, Any]]:
    lines = read_text(file, TraceError, "as requests")
    rows = [row for _, row in json_rows(lines, file)]
    if not rows:
        raise TraceError(f"{file}: has no request")
    return rows


def _arrival(row: Mapping[str, Any], path: Path) -> float:
    """When the engine queued a request; else when the client sent it."""
    for name in ("queued_ts", "arrival_time", "arrival"):
        value: Any = row.get(name)
        if _is_number(value, -CENTURY, CENTURY):
            return float(value)
    raise TraceError(f"{path / 'requests.jsonl'}: queued_ts or arrival_time is missing, or no time")


def _answered(row: Mapping[str, Any], name: str, path: Path) -> float:
    """When a token was sent; NaN where it was not measured."""
    value = row.get(name)
    if value is None:
        return np.nan
    if _is_number(value, -CENTURY, CENTURY):
        return float(value)
    raise TraceError(f"{path / 'requests.jsonl'}: {name} {shown(value)} is not a time")


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _tokens(row: Mapping[str, Any], name: str, path: Path) -> int:
    value = row.get(name)
    if not isinstance(value, int) or not _is_number(value, 1, MOST_TOKENS):
        raise TraceError(
            f"{path / 'requests.jsonl'}: {name} {shown(value)} is not a count of tokens"
        )
    return value


def _deployment(meta: Mapping[str, Any], path: Path, cluster: Cluster, longest: int) -> Deployment:
    settings = meta.get("engine_kwargs") or {}
    if not isinstance(settings, dict):
        raise TraceError(f"{path / 'meta.json'}: engine_kwargs is not a table")

    def count(name: str, usual: int, most: int = MOST_TOKENS) -> int:
        value = settings.get(name)
        value = usual if value is None else value
        if not isinstance(value, int) or not _is_number(value, 1, most):
            raise TraceError(f"{path / 'meta.json'}: {name} {shown(value)} is not a count")
        return value

    name = meta.get("model") or settings.get("model")
    if not isinstance(name, str):
        raise TraceError(f"{path / 'meta.json'}: model is missing")
    model = model_named(name)
    tp, dp = (count(f"{way}_parallel_size", 1, MOST_RANKS) for way in ("tensor", "data"))
    spread = bool(settings.get("enable_expert_parallel")) and model.experts is not None
    memory = cluster.accelerator.memory or 80e9
    by = engine("vllm", str(meta.get("vllm_version", "")), memory)
    part = settings.get("gpu_memory_utilization")
    part = by.memory_fraction if part is None else part
    if not _is_number(part, 0.01, 1):
        raise TraceError(f"{path / 'meta.json'}: gpu_memory_utilization {shown(part)}: 0.01 to 1")
    by = replace(
        by,
        tokens=count("max_num_batched_tokens", by.tokens),
        sequences=count("max_num_seqs", by.sequences),
        memory_fraction=float(part),
        block=count("block_size", by.block),
        # The log's times are the engine's own: no server and no client stand before it.
        host=by.host._replace(first=0.0, per_token=0.0),
    )
    weights = {"fp8": "fp8", "modelopt": "fp8"}.get(str(settings.get("quantization")), "bf16")
    cache = "fp8" if str(settings.get("kv_cache_dtype", "")).startswith("fp8") else "bf16"
    settings["num_gpu_blocks"] = meta.get("num_gpu_blocks") or settings.get(
        "num_gpu_blocks_override"
    )
    context = 4096
    while context < longest:
        context *= 2
    return Deployment(
        model=model,
        cluster=cluster,
        parallelism=Parallelism(
            tp=tp, dp=dp, ep=tp * dp if spread else 1, etp=1 if spread else None
        )
        if tp * dp > 1
        else Parallelism(),
        engine=by,
        precisions=Precisions(attention=weights, network=weights, experts=weights, cache=cache),
        context=context,
        blocks=count("num_gpu_blocks", 1) if settings["num_gpu_blocks"] else None,
    )


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
