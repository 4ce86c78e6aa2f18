"""Readers of request traces: Azure, Vidur, BurstGPT, Mooncake, LLMServingSim, vLLM's benchmark.

Formats are recognised by their columns. Requests are sorted by arrival, counted from the first.
Lines that ask for no token (failures of BurstGPT) are left out, and counted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from simulator.support.errors import TraceError
from simulator.support.input_files import csv_table, json_rows, reason_of, unpack
from traces.requests.table import Requests


@dataclass(frozen=True, slots=True)
class Format:
    """Columns of a format: of time, prompt and output, and the seconds of a unit of time.

    Without a unit times are dates.
    """

    name: str
    arrival: str
    prompt: str
    output: str
    unit: float | None = 1.0


FORMATS = (
    Format("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    Format("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    Format("BurstGPT", "Timestamp", "Request tokens", "Response tokens"),
    Format("Mooncake", "timestamp", "input_length", "output_length", 1e-3),
    Format("LLMServingSim", "arrival_time_ns", "input_toks", "output_toks", 1e-9),
    Format("log", "queued_ts", "input_toks", "output_toks"),
    Format("twofold", "arrival_s", "prompt_tokens", "output_tokens"),
)
"""Formats by their columns: AzurePublicDataset, microsoft/vidur, HPMLL/BurstGPT, kvcache-ai/
Mooncake, casys-kaist/LLMServingSim and its logs of vLLM, and this project's own."""


def read_requests(path: Path | str) -> Requests:
    """Read a request trace: CSV, JSON lines or vLLM's benchmark JSON, also compressed (.gz).

    Raises
    ------
    TraceError
        If the file cannot be read, is of no columns format, or a line has no number where one is
        needed; names file, line and field.
    """
    file = Path(path)
    try:
        text = unpack(file).decode()
    except UnicodeError as error:
        raise TraceError(f"{file}: cannot be read as requests: {reason_of(error)}") from None
    if not text.strip():
        raise TraceError(f"{file}: there is no request")
    whole = _benchmark(text, str(file)) if text.lstrip().startswith("{") else None
    if whole is not None:
        return whole
    is_json = text.lstrip().startswith("{")
    rows = json_rows(text, file) if is_json else csv_table(text, file)[1]
    parsed: list[tuple[float, int, int]] = []
    chosen: Format | None = None
    for line, row in rows:
        chosen = chosen or _format(row, file)
        arrival = _time(row, chosen, f"{file}, line {line}")
        prompt = _tokens(row, chosen.prompt, f"{file}, line {line}")
        output = _tokens(row, chosen.output, f"{file}, line {line}")
        if prompt and output:
            parsed.append((arrival, prompt, output))
    if not parsed:
        raise TraceError(f"{file}: no request asks for a token")
    parsed.sort(key=lambda request: request[0])
    times = np.array([request[0] for request in parsed])
    prompts = np.array([request[1] for request in parsed], dtype=np.int64)
    outputs = np.array([request[2] for request in parsed], dtype=np.int64)
    return Requests(times - times[0], prompts, outputs, str(file))


def _format(row: Mapping[str, Any], file: Path) -> Format:
    for columns in FORMATS:
        if {columns.arrival, columns.prompt, columns.output} <= set(row):
            return columns
    names = "; ".join(
        f"{columns.arrival}, {columns.prompt}, {columns.output}" for columns in FORMATS
    )
    raise TraceError(f"{file}: its columns are of no request trace; known are {names}")


def _time(row: Mapping[str, Any], columns: Format, place: str) -> float:
    value = row[columns.arrival]
    try:
        if columns.unit is None:
            # Azure writes seven digits of a second; microseconds are what Python keeps.
            return datetime.fromisoformat(str(value)[:26]).timestamp()
        return float(value) * columns.unit
    except (TypeError, ValueError):
        raise TraceError(f"{place}: {columns.arrival} {value!r} is no time") from None


def _tokens(row: Mapping[str, Any], column: str, place: str) -> int:
    value = row[column]
    try:
        count = int(float(value))
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{place}: {column} {value!r} is no count of tokens") from None
    if count < 0:
        raise TraceError(f"{place}: {column} {count} is negative")
    return count


def _benchmark(text: str, source: str) -> Requests | None:
    """Read the JSON of ``vllm bench serve --save-detailed``: lists of lengths and start times."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict) or not {"input_lens", "output_lens"} <= set(data):
        return None
    prompt = np.array(data["input_lens"], dtype=np.int64)
    output = np.array(data["output_lens"], dtype=np.int64)
    starts = np.array(data.get("start_times") or np.zeros(len(prompt)), dtype=float)
    order = np.argsort(starts, kind="stable")
    return Requests(starts[order] - starts.min(), prompt[order], output[order], source)
