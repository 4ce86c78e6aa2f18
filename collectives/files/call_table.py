"""Tables of measured calls: CSV, or JSON with an object per line, a row per call.

Columns are recognised by name, in any order and case: the kind (``kind``, ``collective``,
``op_name``, ``name``), ``ranks`` (or ``gpus``, ``num_gpus``), ``nodes`` if known, a size
(``size_bytes``, ``size_MiB``, …) and a time (``time_us``, ``latency_ms``, …) whose names give their
units. Others are ignored, except ``system`` and ``device``, which must have a single value.

Two tools have names of their own, and are recognised by them: rccl-tests' files (``algBw``,
``busBw``, ``inPlace``, ``gpus`` or ``ranks`` and ``nodes``; time in us), and NVIDIA
aiconfigurator's ``nccl_perf`` (``nccl_dtype``, ``message_size`` in elements, ``latency`` in ms).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isnan

from collectives.bandwidth import busbw
from collectives.files.measured_calls import (
    GIGA,
    MICRO,
    SECONDS,
    BenchmarkLog,
    Layout,
    MeasuredCall,
    placed,
    seconds,
)
from simulator.calls import KINDS, kind_named
from simulator.support.errors import LimitError, TraceError, WorkloadError, shown
from simulator.support.input_files import csv_rows, parse_json
from simulator.support.quantities import MOST_RANKS, bytes_per_element, number_of

_KIND = ("kind", "collective", "op_name", "operation", "op", "name")
_RANKS = ("ranks", "gpus", "num_gpus", "n_ranks", "nranks", "world_size")
_NODES = ("nodes", "num_nodes", "n_nodes", "nnodes")
_MACHINE = ("system", "device", "cluster", "machine", "gpu", "gpu_name", "accelerator")
_SIZE = re.compile(r"^(?:message_)?(?:size|bytes|message_size)?[ _(]*(b|bytes|kib|mib|gib)\)?$")
_TIME = re.compile(r"^(?:time|latency|duration|t)[ _(\[]+(s|sec|ms|us|usec|µs|ns)[)\]]?$")
_BYTES = {"b": 1.0, "bytes": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
_SPEED = re.compile(r"^(algbw|busbw)(?:[ _(\[]+(gb/s|gbps|gbytes/s)[)\]]?)?$")
_RELATIVE_ROUNDING, _LAST_DIGIT = 0.03, 0.0051
"""Rounding of a printed bandwidth: relative, and of its last digit (GB/s)."""
_MOST_DIFFERENCE = 0.01
_RCCL = {"size", "time", "algbw", "busbw", "inplace"}
_AICONFIGURATOR = {"nccl_dtype", "message_size", "latency"}
_CUSTOM = {"allreduce_dtype", "message_size", "latency"}
"""Columns of aiconfigurator's times of kernels of serving frameworks, which are no library's."""

Cells = Mapping[str, str]
Read = Callable[[Cells, str], float]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a table by meaning; ``size`` (B) and ``time`` (s) read a row."""

    kind: str | None
    ranks: str | None
    nodes: str | None
    size: Read
    time: Read
    tool: str = "table"
    library: str = ""
    others: tuple[Read, ...] = ()
    """Readers of further times, which must agree with the first."""


def is_table(text: str) -> bool:
    """Whether a text is a table with a size and a time."""
    names = _first_names(text)
    return names is not None and (
        names >= _RCCL
        or "message_size" in names
        or any(_SIZE.match(name) or _TIME.match(name) for name in names)
    )


def read_table(text: str, path: str, layout: Layout) -> BenchmarkLog:
    """Read a table of measured calls."""
    rows = list(_rows(text, path))
    if not rows:
        raise TraceError(f"{path}: the table has no rows; it needs one per measured call")
    columns = _columns(rows[0][1], path)
    machines = {
        name: list(dict.fromkeys(row[name] for _, row in rows))
        for name in _MACHINE
        if name in rows[0][1]
    }
    for name, several in machines.items():
        if len(several) > 1:
            raise TraceError(
                f"{path}: {name}: rows of {len(several)} machines ({several[0]}, {several[1]}"
                f"{', …' * (len(several) > 2)}): keep those of one"
            )
    calls: list[MeasuredCall] = []
    notes: list[str] = []
    for location, row in rows:
        if row.get("inplace", "0") not in ("0", "false"):
            continue
        call = _call(columns, row, layout, location)
        if call.size or call.kind == "barrier":
            calls.append(call)
        else:
            notes.append(f"{path}: rows with 0 bytes are left out")
    return BenchmarkLog(
        path,
        columns.tool,
        tuple(calls),
        columns.library,
        tuple(several[0] for several in machines.values() if several[0]),
        tuple(dict.fromkeys(notes)),
    )


def _first_names(text: str) -> set[str] | None:
    """Names of the columns, in lower case; None if it is not a table."""
    first = next((line for line in text.splitlines() if line.strip()[:1] not in ("", "#")), "")
    if first.lstrip()[:1] in ("{", "["):
        try:
            rows = _json_rows(text, "the file")
        except (LimitError, TraceError):
            return {name.lower() for name in re.findall(r'"(\w+)"\s*:', first)} or None
        return set().union(*({key.lower() for key in row} for _, row in rows[:1])) or None
    separator = _separator(first)
    return set(_cells(first, separator)) if separator else None


def _separator(head: str) -> str | None:
    """Return the separator of a heading's columns; None if there is none."""
    return next((separator for separator in (",", ";", "\t") if separator in head), None)


def _cells(head: str, separator: str) -> list[str]:
    _, names = next(csv_rows([head], "line 1", TraceError, delimiter=separator), (1, []))
    return [name.strip().lower() for name in names]


def _json_rows(text: str, path: str) -> list[tuple[int, Mapping[str, object]]]:
    """Read an object per line, or one list of objects, each with its line or index."""
    if text.lstrip().startswith("["):
        rows = list(enumerate(parse_json(text, path, TraceError), 1))
    else:
        rows = []
        for at, line in enumerate(text.splitlines(), 1):
            if line.strip()[:1] not in ("", "#"):
                rows.append((at, parse_json(line, f"{path}, line {at}", TraceError)))
    if not all(isinstance(row, dict) for _, row in rows):
        raise TraceError(f"{path}: the JSON is not a list of objects, one per call")
    return rows


def _rows(text: str, path: str) -> Iterator[tuple[str, Cells]]:
    """Yield each row with its location, without comments (``#``) and empty lines."""
    lines = text.splitlines()
    numbered_lines = [
        (at, line) for at, line in enumerate(lines, 1) if line.strip()[:1] not in ("", "#")
    ]
    if numbered_lines and numbered_lines[0][1].lstrip()[:1] in ("{", "["):
        what = "row" if text.lstrip().startswith("[") else "line"
        rows = _json_rows(text, path)
        absent = {key.lower(): "" for _, row in rows for key in row}
        for at, row in rows:
            values = {key.lower(): _text(row[key]) for key in row}
            yield f"{path}, {what} {at}", absent | values
        return
    separator = _separator(numbered_lines[0][1]) or ","
    names = _cells(numbered_lines[0][1], separator)
    for at, line in numbered_lines[1:]:
        _, cells = next(csv_rows([line], f"{path}, line {at}", TraceError, delimiter=separator))
        while len(cells) > len(names) and not cells[-1].strip():
            cells.pop()
        if len(cells) != len(names):
            reason = f"{len(cells)} of {len(names)} columns"
            how = "ends early" if len(cells) < len(names) else "is too long"
            raise TraceError(f"{path}, line {at}: the row {how} ({reason}): is a table truncated?")
        yield f"{path}, line {at}", dict(zip(names, (cell.strip() for cell in cells), strict=True))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _columns(row: Cells, path: str) -> _Columns:
    names = set(row)
    kind, ranks, nodes = (
        next(filter(names.__contains__, spellings), None) for spellings in (_KIND, _RANKS, _NODES)
    )
    if names >= _RCCL:
        return _Columns(
            kind,
            None if "gpusperrank" in names else ranks,
            nodes,
            _reader("size", 1.0),
            _timer("time", SECONDS["us"]),
            "rccl-tests",
            "rccl",
        )
    if names >= _AICONFIGURATOR:
        return _Columns(
            kind,
            ranks,
            nodes,
            _elements,
            _timer("latency", SECONDS["ms"]),
            "aiconfigurator",
            "nccl",
        )
    if names >= _CUSTOM:
        raise TraceError(
            f"{path}: allreduce_dtype: these are times of a serving framework's own kernels, "
            "not of a library's calls: give nccl_perf"
        )
    sizes = [(name, unit[1]) for name in sorted(names) if (unit := _SIZE.match(name))]
    times = [(name, unit[1]) for name in sorted(names) if (unit := _TIME.match(name))]
    for what, readers, example in (("size", sizes, "size_bytes"), ("time", times, "time_us")):
        if not readers:
            raise TraceError(
                f"{path}: no column is a {what} with its unit in the name, such as {example}"
            )
    timers = tuple(_timer(name, SECONDS[unit]) for name, unit in times)
    size, width = sizes[0]
    return _Columns(kind, ranks, nodes, _reader(size, _BYTES[width]), timers[0], others=timers[1:])


def _reader(name: str, unit: float) -> Read:
    def read(row: Cells, location: str) -> float:
        value = number_of(row[name]) * unit
        if not 0 <= value < float("inf") or (unit == 1 and value % 1):
            raise TraceError(f"{location}: {name}: {shown(row[name])} is not a size")
        return value

    return read


def _timer(name: str, unit: float) -> Read:
    return lambda row, location: seconds(row[name], unit, location, name)


def _elements(row: Cells, location: str) -> float:
    """Read aiconfigurator's size, which counts elements."""
    try:
        return _reader("message_size", 1.0)(row, location) * bytes_per_element(row["nccl_dtype"])
    except WorkloadError as error:
        raise TraceError(f"{location}: nccl_dtype: {error}") from error


def _call(columns: _Columns, row: Cells, layout: Layout, location: str) -> MeasuredCall:
    if columns.kind is None and layout.kind is None:
        raise TraceError(
            f"{location}: no column names the kind of collective: call it kind, or give --kind"
        )
    text = row[columns.kind] if columns.kind is not None else layout.kind or ""
    kind = kind_named(text) or kind_named(re.sub("^[nr]ccl", "", text, flags=re.I))
    if kind is None:
        raise TraceError(f"{location}: kind: {shown(text)} is not one of {', '.join(KINDS)}")
    ranks = _whole(row, columns.ranks, location)
    if columns.ranks is None and "gpusperrank" in row:
        ranks = (_whole(row, "ranks", location) or 1) * (_whole(row, "gpusperrank", location) or 1)
    nodes = _whole(row, columns.nodes, location)
    ranks, nodes = placed(ranks, nodes, layout, location)
    call = MeasuredCall(
        kind, ranks, nodes, columns.size(row, location), columns.time(row, location), location
    )
    for other_time in (read(row, location) for read in columns.others):
        if abs(other_time / call.time - 1) > _MOST_DIFFERENCE:
            mismatch = f"{call.time:.4g} s in one column and {other_time:.4g} s in another"
            raise TraceError(f"{location}: {mismatch}: is the unit of one wrong?")
    _check_speeds(call, row)
    return call


def _check_speeds(call: MeasuredCall, row: Cells) -> None:
    """Compare a row's bandwidths, if any, with its size and time, to detect a wrong unit."""
    for name, text in row.items():
        match, speed = _SPEED.match(name), number_of(text)
        if match is None or not call.size or isnan(speed):
            continue
        share = busbw(call.kind, size=1.0, n=call.ranks, time=1.0) if match[1] == "busbw" else 1.0
        should = share * call.size / call.time / GIGA
        units = (1.0, 8.0) if match[2] == "gbps" else (1.0,)  # Gbit/s are also written this way
        if not any(
            abs(speed - unit * should) <= _RELATIVE_ROUNDING * speed + _LAST_DIGIT for unit in units
        ):
            raise TraceError(
                f"{call.location}: {call.size:.0f} B in {call.time / MICRO:.4g} us, {call.kind} of "
                f"{call.ranks} ranks: {name} would be {should:.4g}, not {text}: is a unit wrong, "
                "or the number of ranks?"
            )


def _whole(row: Cells, name: str | None, location: str) -> int | None:
    if name is None or not row.get(name):
        return None
    value = number_of(row[name])
    if not 1 <= value <= MOST_RANKS or value % 1:
        raise TraceError(f"{location}: {name}: {shown(row[name])} is not a whole number above 0")
    return int(value)
