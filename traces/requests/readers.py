"""Readers of request traces: Azure, Vidur, BurstGPT, Mooncake, LLMServingSim, engines' benchmarks.

Formats are recognised by their columns; ``hash_ids`` (with ``hash_tokens``, 512 in Mooncake's),
``session_id``, ``priority``, ``adapter`` and ``model`` (``Model`` in BurstGPT's) are read from all.
Arrivals must ascend, except in logs, and count from the first. Lines of BurstGPT without tokens are
failures, and left out.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.support.arrays import Floats, Longs, offsets
from simulator.support.errors import TraceError, shown
from simulator.support.input_files import csv_table, json_rows, reason_of, unpack
from simulator.support.quantities import CENTURY, number_of
from traces.requests.table import Hashes, Requests


@dataclass(frozen=True, slots=True)
class Format:
    """Columns of a format: of time, prompt and output, and the seconds of a unit of time.

    Lines of a format that is not ``ordered`` may be in any order: a log has them as they end.
    Without a unit times are dates. ``hashed`` is the number of tokens per block of ``hash_ids``,
    unless the file gives it (``hash_tokens``). ``fails``: a line without a token is a failure.
    """

    name: str
    arrival: str
    prompt: str
    output: str
    unit: float | None = 1.0
    hashed: int = 0
    fails: bool = False
    ordered: bool = True


FORMATS = (
    Format("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    Format("Vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    Format("BurstGPT", "Timestamp", "Request tokens", "Response tokens", fails=True),
    Format("Mooncake", "timestamp", "input_length", "output_length", 1e-3, 512),
    Format("LLMServingSim", "arrival_time_ns", "input_toks", "output_toks", 1e-9),
    *(
        Format("log", time, "input_toks", "output_toks", ordered=False)
        for time in ("queued_ts", "arrival_time", "arrival")
    ),
    Format("twofold", "arrival_s", "prompt_tokens", "output_tokens"),
)
"""Formats by their columns: AzurePublicDataset, microsoft/vidur, HPMLL/BurstGPT, kvcache-ai/
Mooncake, casys-kaist/LLMServingSim and its logs of vLLM, and this project's own."""

_TOTALS = ("num_total_tokens", "Total tokens")
_OPTIONAL = ("session_id", "priority", "adapter", "hash_ids", "hash_tokens")
_LARGEST = 2**53
"""Largest number in a list: beyond it a float no longer counts by ones."""


def read_requests(path: Path | str) -> Requests:
    """Read a request trace: CSV, JSON lines or vLLM's benchmark JSON, also compressed (.gz).

    Raises
    ------
    TraceError
        If the file cannot be read, its columns are of no format, or a line lacks a number; names
        file, line and field.
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
    if text.lstrip().startswith(("{", "[")):
        rows = json_rows(text, file)
    else:
        names, rows = csv_table(text, file)
        _format(dict.fromkeys(names), file)
    records = list(_parsed(rows, file))
    if not records:
        raise TraceError(f"{file}: no request asks for a token")
    columns = records[0].columns
    if not columns.ordered:
        records.sort(key=lambda each: each.arrival)
    falls = [later for early, later in pairwise(records) if later.arrival < early.arrival]
    if falls:
        raise TraceError(f"{falls[0].where}: it arrives before the one above: sort the requests")
    model, models = _numbered([each.model for each in records])
    return Requests(
        np.array([each.arrival for each in records]) - records[0].arrival,
        np.array([each.prompt for each in records], dtype=np.int64),
        np.array([each.output for each in records], dtype=np.int64),
        str(file),
        _joined([each.hashes for each in records], columns.hashed),
        _numbered([each.session for each in records])[0],
        _priorities(records),
        model,
        models,
        _numbered([each.adapter for each in records])[0],
    )


class Logged(NamedTuple):
    """An engine's log: its requests, their names, and when their first and last tokens were made.

    Times count from the first arrival (s), and are NaN where none is recorded.
    """

    requests: Requests
    ids: tuple[str, ...]
    first: Floats
    last: Floats


def read_logged(path: Path | str) -> Logged:
    """Read an engine's log.

    Raises
    ------
    TraceError
        As :func:`read_requests`, or if ``first_token_ts`` and ``last_token_ts`` of a line, where it
        has them, do not ascend from its arrival, or its ``request_id`` stands twice; names file and
        line.
    """
    file, requests = Path(path), read_requests(path)
    lines: dict[str, int] = {}
    rows: list[tuple[float, float, float, Mapping[str, Any]]] = []
    for line, row in json_rows(unpack(file).decode(), file):
        where = f"{file}, line {line}"
        queued = _time(row, _format(row, file), where)
        stamps = [row.get(name) for name in ("first_token_ts", "last_token_ts")]
        first, last = (math.nan if stamp is None else number_of(stamp) for stamp in stamps)
        both = zip((first, last), stamps, strict=True)
        given = [time for time, stamp in both if stamp is not None]
        if not all(early <= late <= CENTURY for early, late in pairwise([queued, *given])):
            raise TraceError(
                f"{where}: first_token_ts and last_token_ts do not ascend from {queued:.9g} s"
            )
        if (
            "request_id" in row
            and (earlier := lines.setdefault(str(row["request_id"]), line)) < line
        ):
            raise TraceError(
                f"{where}: request_id {shown(row['request_id'])} is that of line {earlier}, too"
            )
        rows.append((queued, first, last, row))
    rows.sort(key=lambda stamped: stamped[0])
    times = np.array([stamped[1:3] for stamped in rows], dtype=float) - rows[0][0]
    ids = tuple(str(row.get("request_id", number)) for number, (*_, row) in enumerate(rows))
    return Logged(requests, ids, times[:, 0], times[:, 1])


@dataclass(frozen=True, slots=True)
class _ParsedRequest:
    """A line: a request, and the columns that it was read from."""

    arrival: float
    prompt: int
    output: int
    hashes: Sequence[Any]
    session: Any
    priority: Any
    model: Any
    adapter: Any
    columns: Format
    where: str


def _parsed(rows: Iterable[tuple[int, Mapping[str, Any]]], file: Path) -> Iterator[_ParsedRequest]:
    chosen: Format | None = None
    offsets_from_utc: set[str] = set()
    for line, row in rows:
        where = f"{file}, line {line}"
        if chosen is None:
            chosen = _format(row, file)
            chosen = replace(chosen, hashed=_hash_tokens(row, chosen, where))
        arrival = _time(row, chosen, where)
        if chosen.unit is None:
            offset = _OFFSET.search(str(row[chosen.arrival]))
            offsets_from_utc.add(offset[0].strip("+-0:Zz") if offset else "none")
        if "none" in offsets_from_utc and offsets_from_utc - {"none", ""}:
            column = chosen.arrival
            raise TraceError(f"{where}: {column}: times with and without an offset from UTC")
        prompt = _tokens(row, chosen.prompt, where)
        output = _tokens(row, chosen.output, where)
        if prompt and output:
            _check_twins(row, prompt, output, where)
            hashes = _hashes(row, chosen, where)
            model = row.get("model", row.get("Model"))
            others = (row.get("session_id"), row.get("priority"), model, row.get("adapter"))
            yield _ParsedRequest(arrival, prompt, output, hashes, *others, chosen, where)
        elif not chosen.fails:
            column = chosen.output if prompt else chosen.prompt
            raise TraceError(f"{where}: {column} 0: a request has at least 1 token of each")


_OFFSET = re.compile(r"(?<=[0-9])(?:Z|[-+][0-9]{2}:?[0-9]{2})$", re.IGNORECASE)


def _check_twins(row: Mapping[str, Any], prompt: int, output: int, where: str) -> None:
    """Refuse totals, and columns of another format, that say something else."""
    counts = dict.fromkeys(_TOTALS, f"{prompt} + {output}")
    for each in FORMATS:
        counts |= {each.prompt: str(prompt), each.output: str(output)}
    for name in filter(row.get, counts):
        if _tokens(row, name, where) != sum(map(int, counts[name].split("+"))):
            raise TraceError(f"{where}: {name} {row[name]} is not {counts[name]}")


def _hash_tokens(row: Mapping[str, Any], chosen: Format, where: str) -> int:
    if row.get("hash_ids") is None:
        return 0
    tokens = row.get("hash_tokens", chosen.hashed)
    if re.fullmatch("[0-9]{1,9}", str(tokens)) is None or not int(tokens):
        raise TraceError(f"{where}: hash_tokens {tokens!r}: how many tokens does a hash stand for?")
    return int(tokens)


def _hashes(row: Mapping[str, Any], chosen: Format, where: str) -> Sequence[Any]:
    """Return a row's hashes: a list, or words in a cell; none where the first line has none."""
    hashes = row.get("hash_ids")
    if not chosen.hashed and hashes is None:
        return ()
    if not chosen.hashed:
        raise TraceError(f"{where}: hash_ids: the first line has none: give all or none")
    if _hash_tokens(row, chosen, where) not in (0, chosen.hashed):
        raise TraceError(f"{where}: hash_tokens: the first line has {chosen.hashed}")
    if isinstance(hashes, str):
        hashes = hashes.split()
    if not isinstance(hashes, list) or not all(type(name) in (int, str) for name in hashes):
        raise TraceError(f"{where}: hash_ids {shown(hashes)} is not a list of numbers or words")
    return hashes


def _joined(hashes: Sequence[Sequence[Any]], tokens: int) -> Hashes | None:
    if not tokens:
        return None
    numbers: dict[Any, int] = {}  # names may be numbers or text; only equality matters
    ids = [numbers.setdefault(name, len(numbers)) for row in hashes for name in row]
    return Hashes(tokens, offsets([len(row) for row in hashes]), np.array(ids, dtype=np.int64))


def _numbered(names: Sequence[Any]) -> tuple[Longs | None, tuple[str, ...]]:
    """Return the number of each line's name, -1 without one, and the names."""
    numbers: dict[str, int] = {}
    known = [
        -1 if name in (None, "") else numbers.setdefault(str(name), len(numbers)) for name in names
    ]
    return (np.array(known, dtype=np.int64) if numbers else None), tuple(numbers)


def _priorities(records: Sequence[_ParsedRequest]) -> Longs | None:
    """Return the priorities of requests, 0 for a line without one; None if no line has one."""
    if all(each.priority in (None, "") for each in records):
        return None
    numbers = []
    for each in records:
        text = str(0 if each.priority in (None, "") else each.priority)
        if re.fullmatch("-?[0-9]{1,9}", text) is None:
            raise TraceError(f"{each.where}: priority {shown(each.priority)} is not a whole number")
        numbers.append(int(text))
    return np.array(numbers, dtype=np.int64)


def _format(row: Mapping[str, Any], file: Path) -> Format:
    fitting = [each for each in FORMATS if {each.arrival, each.prompt, each.output} <= set(row)]
    if len({(each.prompt, each.output) for each in fitting}) > 1:
        both = " and ".join(each.name for each in fitting)
        raise TraceError(f"{file}: it has the columns of {both}: keep those of one")
    if fitting:
        for name in set(row) - {*_OPTIONAL, *_TOTALS}:
            if near := get_close_matches(str(name), _OPTIONAL, n=1, cutoff=0.9):
                raise TraceError(f"{file}: column {shown(name)}: did you mean {near[0]}?")
        return fitting[0]
    names = "; ".join(f"{each.arrival}, {each.prompt}, {each.output}" for each in FORMATS)
    raise TraceError(f"{file}: its columns are not those of a request trace; known are {names}")


def _time(row: Mapping[str, Any], columns: Format, where: str) -> float:
    value = row.get(columns.arrival)
    if columns.unit is None:
        try:
            date = datetime.fromisoformat(str(value))
            # In the reader's own zone, clocks go back once a year.
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise TraceError(f"{where}: {columns.arrival} {shown(value)} is not a time") from None
    arrival = number_of(value) * columns.unit
    if not 0 <= arrival <= CENTURY:
        raise TraceError(f"{where}: {columns.arrival} {shown(value)} is not a time")
    return arrival


def _tokens(row: Mapping[str, Any], column: str, where: str) -> int:
    value = row.get(column)
    count = number_of(value)
    if not count >= 0 or count % 1:
        raise TraceError(f"{where}: {column} {shown(value)} is not a count of tokens")
    return int(count)


def _benchmark(text: str, source: str) -> Requests | None:
    """Read the JSON of ``vllm bench serve --save-detailed``: lists of lengths and start times.

    SGLang's ``bench_serving`` has no times, which are not needed if all were sent at once.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None  # JSON with an object per line
    if not isinstance(data, dict) or not {"input_lens", "output_lens"} <= set(data):
        return None
    prompt = _numbers(data, "input_lens", source).astype(np.int64)
    output = _numbers(data, "output_lens", source).astype(np.int64)
    starts = np.zeros(len(prompt))
    if data.get("start_times") is not None:
        starts = _numbers(data, "start_times", source, whole=False)
    elif str(data.get("request_rate", "inf")) != "inf" or data.get("max_concurrency"):
        raise TraceError(
            f"{source}: start_times: missing, so it is not known when requests came: give"
            " their lengths, and --rate or --concurrency, instead of the file"
        )
    if not len(prompt) == len(output) == len(starts):
        raise TraceError(f"{source}: input_lens, output_lens and start_times differ in length")
    for name, count in (("completed", len(output)), ("total_output_tokens", output.sum())):
        if data.get(name, count) != count:
            raise TraceError(f"{source}: {name} {shown(data[name])}: output_lens has {count}")
    order = np.argsort(starts, kind="stable")
    starts = starts[order] - starts.min(initial=np.inf)
    return Requests(starts, prompt[order], output[order], source)


def _numbers(data: Mapping[str, Any], name: str, source: str, *, whole: bool = True) -> Floats:
    """Return a list of numbers within the limits of a table."""
    kinds = (int,) if whole else (int, float)
    values = data[name]
    if not isinstance(values, list) or not all(
        type(value) in kinds and abs(value) <= _LARGEST for value in values
    ):
        what = "whole numbers" if whole else "numbers"
        raise TraceError(f"{source}: {name} is not a list of {what}")
    return np.array(values, dtype=float)
