"""Output of nccl-tests and rccl-tests: tables as printed, and the JSON that newer ones write.

A table may have any version's columns: ``size count type [redop] [root]``, then ``time algbw busbw
error`` (or ``#wrong``, and any further columns of a version) once for out-of-place and once for
in-place. The out-of-place call is read, or the in-place one if it is the only one. ``#wrong``
counts wrong elements, ``error`` of older versions is the largest deviation, of which a little is
rounding. A file may contain several runs, and other output of a job.

Sources: NVIDIA/nccl-tests src/common.cu and src/util.cu (2.0 to 2.17), ROCm/rccl-tests.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from collectives.bandwidth import busbw
from collectives.files.measured_calls import (
    GIGA,
    MICRO,
    SECONDS,
    BenchmarkLog,
    Layout,
    MeasuredCall,
    nodes_of,
    placed,
    seconds,
)
from simulator.calls import kind_named
from simulator.support.errors import TraceError, shown
from simulator.support.input_files import json_values, reason_of
from simulator.support.quantities import MOST_RANKS, count_of, number_of

_PROGRAM = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_UNMODELLED = ("alltoallv", "hypercube")
"""Programs of nccl-tests whose calls have no kind here."""
_RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,18})\s+(?:Group\s+(\d{1,18})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+"
    r"\[[^\]]*\]\s*(.*)"
)
_CONFIG = re.compile(
    r"#?\s*nThread\s+(\d{1,18})\s+nGpus\s+(\d{1,18})\s+minBytes\s+\d+\s+maxBytes\s+(\d{1,18})(.*)"
)
_STEP = re.compile(r"step:\s*(\d{1,18})\((\w+)\)")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(\S+)")
_FAILED = re.compile(r"#?\s*(Out of bounds values|Bitwise mismatches)\s*:\s*(\d{1,18}) FAILED")
_LIBRARY_CODE = re.compile(r"\bnccl-library=(\d{5})\b")
"""NCCL_VERSION_CODE from 2.9 on: 10000 major + 100 minor + patch (nccl.h)."""
_LIBRARY_VERSION = re.compile(r"\b[NR]CCL version\s*:?\s*(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_ELEMENT_BYTES = {
    **{"int8": 1, "uint8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1},
    **{"half": 2, "bfloat16": 2, "float": 4, "int32": 4, "uint32": 4},
    **{"double": 8, "int64": 8, "uint64": 8},
}
"""Bytes per element by nccl-tests' names of types; others are not checked."""
_TOLERANCE = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}
"""Deviation up to which a result is right (DeltaMaxValue of nccl-tests 2.0 to 2.11)."""
_ROUNDING = 0.02
"""Relative rounding of a printed bandwidth: two decimals, and three digits of the time."""
_MEAN_ROUNDING = 0.005
"""Relative rounding of the mean of printed bandwidths, of at least three digits if large."""
_LAST_DIGIT = 0.0051 * GIGA
_NOT_ROUNDED, _SKIPPED = 4096, 1.5
"""Sizes below this are rounded to whole elements of all ranks; ratio that skips a step."""
_CPU_TIME = "cputime"


@dataclass(slots=True)
class _Run:
    """One run of a program, as read so far."""

    location: str
    program: str = ""
    names: list[str] = field(default_factory=list)
    unit: float = MICRO
    hosts: list[str] = field(default_factory=list)
    last: int = -1
    devices: list[str] = field(default_factory=list)
    gpus: int | None = None
    most: float | None = None
    step: tuple[float, str] | None = None
    rows: "list[_Row]" = field(default_factory=list)
    average: float | None = None
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Timing:
    """Columns of a call out of place or in place: bandwidths in B/s, NaN if not given.

    ``wrong`` is the cell of the check, ``most`` the value up to which the result is right.
    """

    time: float
    algbw: float
    busbw: float
    wrong: str
    most: float = 0.0

    @property
    def is_wrong(self) -> bool:
        """Whether the check failed; RCCL marks that with an asterisk."""
        return self.wrong.endswith("*") or number_of(self.wrong) > self.most


@dataclass(frozen=True, slots=True)
class _Row:
    location: str
    size: float
    count: float
    dtype: str
    redop: str
    root: int | None
    out_of_place: _Timing | None
    in_place: _Timing | None

    @property
    def timing(self) -> _Timing:
        """The out-of-place call, else the in-place one; rows without either were refused."""
        return self.out_of_place or self.in_place or _Timing(math.nan, math.nan, math.nan, "")


def is_nccl_tests(text: str) -> bool:
    """Whether a text is a table or the JSON of nccl-tests or rccl-tests."""
    if text.lstrip()[:1] == "{":
        return '"results"' in text and '"out_of_place"' in text
    return any(_header(line) for line in text.splitlines()) or bool(_CONFIG.search(text))


def read_nccl_tests(text: str, path: str, layout: Layout) -> BenchmarkLog:
    """Read the printed output or the JSON of a job's runs of nccl-tests or rccl-tests."""
    runs = _json_runs(text, path) if text.lstrip()[:1] == "{" else _printed_runs(text, path)
    calls: list[MeasuredCall] = []
    notes: list[str] = []
    for run in runs:
        calls += _calls(run, layout, notes)
    devices = tuple(dict.fromkeys(name for run in runs for name in run.devices if name))
    amd = "rccl" in text.lower() or any("AMD" in name or "Instinct" in name for name in devices)
    return BenchmarkLog(
        path=path,
        tool="rccl-tests" if amd else "nccl-tests",
        calls=tuple(calls),
        library="rccl" if amd else "nccl",
        version=_version(text),
        devices=devices,
        notes=tuple(dict.fromkeys(notes)),
    )


def _version(text: str) -> str:
    """Return the library's version, from nccl-tests' heading or the output of NCCL_DEBUG.

    Examples
    --------
    >>> _version("# nccl-tests version 2.16.4 nccl-headers=22703 nccl-library=22703")
    '2.27.3'
    >>> _version("NCCL version 2.21.5+cuda12.4")
    '2.21.5'
    """
    if code := _LIBRARY_CODE.search(text):
        number = int(code[1])
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
    printed = _LIBRARY_VERSION.search(text)
    return printed[1] if printed else ""


def _printed_runs(text: str, path: str) -> list[_Run]:
    """Split the text into runs, and read their rows."""
    runs: list[_Run] = []
    program = ""
    for count, raw in enumerate(text.splitlines(), 1):
        line, location = raw.strip(), f"{path}, line {count}"
        program = _program_of(line) or program
        config, rank, header = _CONFIG.match(line), _RANK.match(line), _header(line)
        begins = config is not None or rank is not None or bool(header)
        if begins and (not runs or runs[-1].rows or (config and runs[-1].hosts)):
            runs.append(_Run(location, program))
        if not runs:
            continue
        if config:
            run = runs[-1]
            run.gpus = _count(config[1], location) * _count(config[2], location)
            run.most = number_of(config[3])
            if step := _STEP.search(config[4]):
                run.step = number_of(step[1]), step[2]
        elif rank:
            _add_rank(runs[-1], rank, location)
        elif header:
            runs[-1].names, runs[-1].program = header, runs[-1].program or program
        else:
            _read_line(runs[-1], line, location)
    return runs


def _program_of(line: str) -> str:
    """Return the program of nccl-tests that a line names, as a command or in a heading."""
    for match in _PROGRAM.finditer(line):
        name = match[1].lower().removeprefix("nccl_").removeprefix("rccl_")
        if kind_named(name) or name in _UNMODELLED:
            return name
    return ""


def _count(text: object, location: str) -> int:
    count = number_of(str(text))
    if not 0 <= count <= MOST_RANKS or count % 1:
        raise TraceError(f"{location}: {shown(text)} is not a number of threads, GPUs or ranks")
    return int(count)


def _add_rank(run: _Run, rank: "re.Match[str]", location: str) -> None:
    """Add a rank's host and device; of several groups (split communicators) the first counts."""
    if rank[2] is not None and _count(rank[2], location):
        return
    number_of_rank = _count(rank[1], location)
    if number_of_rank <= run.last:
        raise TraceError(
            f"{location}: rank {rank[1]} appears twice: each process ran by itself; "
            "build nccl-tests with MPI=1"
        )
    if rank[2] is None and number_of_rank != run.last + 1:
        raise TraceError(f"{location}: rank {run.last + 1} is missing before rank {rank[1]}")
    run.last = number_of_rank
    run.hosts.append(rank[3])
    run.devices.append(rank[4].strip())


def _header(line: str) -> list[str]:
    """Return the names of a table's columns, none if the line is not its head.

    Text pasted into a web page loses its ``#``.
    """
    names = line.strip().lstrip("#").split()
    is_head = names[:2] == ["size", "count"] and ("time" in names or _CPU_TIME in names)
    return names if is_head else []


def _read_line(run: _Run, line: str, location: str) -> None:
    words = line.split()
    if average := _AVERAGE.match(line.strip()):
        run.average = number_of(average[1])
    elif failed := _FAILED.match(line.strip()):
        run.failures.append(f"{location}: the run failed its own check: {failed[1]}: {failed[2]}")
    elif "(elements)" in words and words[0].startswith(("#", "(")):
        units = [word.strip("#()") for word in words if word.strip("#()")]
        if unknown := sorted({*units} - {"B", "elements", "GB/s", *SECONDS}):
            raise TraceError(f"{location}: unit {shown(unknown[0])}: sizes are in B, algbw in GB/s")
        units = [unit for unit in units if unit in SECONDS]
        run.unit = SECONDS[units[0]] if units else run.unit
    elif run.names and len(words) > 1 and all(count_of(word) is not None for word in words[:2]):
        run.rows.append(_row(run, words, location))


def _row(run: _Run, words: Sequence[str], location: str) -> _Row:
    """Read a row by its column names; cells may be blank where old versions left them out."""
    names = list(run.names)
    if _CPU_TIME in names:
        raise TraceError(f"{location}: times of the CPU (-C 1), not of the calls: run without -C 1")
    first = names.index("time")
    period = names.index("time", first + 1) - first if names.count("time") > 1 else None
    width = (
        len([name for name in names[first:] if name != "timestamp"]) if period is None else period
    )
    rest = list(words[2:])
    dtype = rest.pop(0) if "type" in names and rest else ""
    redop = rest.pop(0) if "redop" in names and rest and rest[0][:1].isalpha() else ""
    root = int(rest.pop(0)) if "root" in names and rest and _is_integer(rest[0]) else None
    groups = [names[first : first + width], names[first : first + width]]
    cell_count = len(rest) - (2 if "timestamp" in names else 0)
    if cell_count not in (width, 2 * width):
        shortfall = f"{len(words)} of {2 * width + first} columns"
        raise TraceError(f"{location}: the row ends early ({shortfall}): is the table truncated?")
    timings = [
        _timing(dict(zip(group, rest[start:], strict=False)), run.unit, location, dtype)
        for group, start in zip(groups, range(0, cell_count, width), strict=False)
    ]
    out_of_place, in_place = timings if len(timings) == 2 else (None, timings[0])
    size, count = number_of(words[0]), number_of(words[1])
    if math.isnan(size) or math.isnan(count):
        raise TraceError(f"{location}: {shown(words[0])} B is not a size of a message")
    return _Row(location, size, count, dtype, redop, root, out_of_place, in_place)


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,9}", text) is not None


def _timing(cells: Mapping[str, str], unit: float, location: str, dtype: str) -> _Timing:
    check = next((name for name in ("#wrong", "error", "res") if name in cells), "")
    most = 0.0 if check == "#wrong" else _TOLERANCE.get(dtype, 0.0)
    time = number_of(cells["time"])
    if math.isnan(time):
        raise TraceError(f"{location}: time: {shown(cells['time'])} is not a time")
    algbw, bus = (GIGA * number_of(cells.get(name, "nan")) for name in ("algbw", "busbw"))
    return _Timing(time * unit, algbw, bus, cells.get(check, ""), most)


def _json_runs(text: str, path: str) -> list[_Run]:
    """Read the JSON of one run (``-J``), or of several in sequence."""
    runs = []
    for document in _documents(text, path):
        config = document.get("config")
        run = _Run(path, _program_of(" ".join(map(str, document.get("args", ())))))
        if isinstance(config, dict):
            run.gpus = _count(config.get("nthreads", 1), path) * _count(
                config.get("ngpus", 1), path
            )
            devices = [device for device in config.get("devices") or () if not device.get("group")]
            # A process records its first device only.
            run.hosts = [
                str(device.get("hostname", "")) for device in devices for _ in range(run.gpus)
            ]
            run.devices = [str(device.get("device_info", "")) for device in devices]
        for count, row in enumerate(document.get("results") or (), 1):
            run.rows.append(_json_row(row, f"{path}, result {count}"))
        average = document.get("average_bus_bandwidth")
        run.average = number_of(str(average["bandwidth"])) if isinstance(average, dict) else None
        for name in ("out_of_bounds", "bitwise_mismatches"):
            check = document.get(name)
            if isinstance(check, dict) and check.get("okay") is False:
                what = f"{name.capitalize().replace('_', ' ')}: {shown(check.get('count'))}"
                run.failures.append(f"{path}: the run failed its own check: {what}")
        runs.append(run)
    return runs


def _documents(text: str, path: str) -> Iterator[dict[str, Any]]:
    try:
        for document, _ in json_values(text):
            if isinstance(document, dict):
                yield document
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}: the JSON ends or breaks at line {error.lineno}") from error
    except (ValueError, RecursionError) as error:  # an endless number, or too deep nesting
        raise TraceError(f"{path}: the JSON cannot be read: {reason_of(error)}") from error


def _json_row(row: Mapping[str, Any], location: str) -> _Row:
    timings = []
    for name in ("out_of_place", "in_place"):
        cells = row.get(name)
        if isinstance(cells, dict) and "cpu_time" in cells:
            raise TraceError(f"{location}: times of the CPU (-C 1), not of calls: run without -C 1")
        renamed = {"time": "time", "alg_bw": "algbw", "bus_bw": "busbw", "nwrong": "#wrong"}
        renamed_cells = (
            {renamed[key]: str(cells[key]) for key in renamed if key in cells} if cells else {}
        )
        renamed_cells = {
            key: "N/A" if value == "None" else value for key, value in renamed_cells.items()
        }
        timings.append(
            _timing(renamed_cells, MICRO, location, "") if "time" in renamed_cells else None
        )
    if timings == [None, None]:
        raise TraceError(f"{location}: neither out_of_place nor in_place has a time")
    root = str(row.get("root", "")).strip()
    return _Row(
        location,
        number_of(str(row.get("size", "nan"))),
        number_of(str(row.get("count", "nan"))),
        str(row.get("type", "")),
        str(row.get("redop", "")),
        int(root) if _is_integer(root) else None,
        *timings,
    )


def _calls(run: _Run, layout: Layout, notes: list[str]) -> Iterator[MeasuredCall]:
    """Check a run as a whole, and yield its calls."""
    notes += run.failures
    if not run.rows:
        notes.append(f"{run.location}: a run without rows is left out: did it fail?")
        return
    recorded_ranks = len(run.hosts) or None
    if run.gpus and len(run.hosts) % run.gpus:
        raise TraceError(
            f"{run.location}: {len(run.hosts)} ranks of processes with {run.gpus} GPUs each"
        )
    nodes = nodes_of(run.hosts, run.location) if run.hosts else None
    ranks, nodes = placed(recorded_ranks, nodes, layout, run.location)
    _check_whole(run)
    kind = _kind(run, ranks, layout)
    for row in run.rows:
        if not row.size:
            continue
        _check_row(row, kind, ranks)
        if row.timing.is_wrong:
            notes.append(f"{run.location}: rows with wrong results are left out")
            continue
        if row.in_place is not None and row.in_place.is_wrong:
            notes.append(f"{run.location}: results in place are wrong in some rows")
        if kind == "send_receive" and ranks > 2:
            notes.append(
                f"{run.location}: sendrecv of {ranks} ranks is left out: it is no one message"
            )
            return
        time = seconds(repr(row.timing.time), 1.0, row.location, "time")
        yield MeasuredCall(kind, ranks, nodes, row.size, time, row.location)


def _check_whole(run: _Run) -> None:
    """Refuse a table with missing rows, by the run's own settings and mean."""
    factor = run.step[0] if run.step is not None and run.step[1] == "factor" else math.inf
    for row, next_row in pairwise(run.rows):
        steps = next_row.size / row.size if row.size >= _NOT_ROUNDED else 0.0
        if steps > _SKIPPED * factor:
            raise TraceError(
                f"{next_row.location}: rows are missing: {next_row.size:.0f} B after "
                f"{row.size:.0f}, and the sizes grow by a factor of {factor:g}"
            )
    last = run.rows[-1]
    if run.average is None:
        if run.most is not None and run.step is not None and last.size:
            amount, how = run.step
            following = last.size * amount if how == "factor" else last.size + amount
            if following <= run.most:
                shortfall = f"it ends at {last.size:.0f} B, and maxBytes is {run.most:.0f}"
                raise TraceError(f"{last.location}: the table is truncated: {shortfall}")
        return
    speeds = [
        timing.busbw
        for row in run.rows
        for timing in (row.out_of_place, row.in_place)
        if timing is not None
    ]
    mean, stated = math.fsum(speeds) / len(speeds), GIGA * run.average
    if abs(mean - stated) > _MEAN_ROUNDING * stated + _LAST_DIGIT:
        raise TraceError(
            f"{run.location}: the mean busbw of {len(run.rows)} rows is {mean / GIGA:.4g} GB/s, "
            f"but the run reports {run.average:g}: rows are missing, or not of this run"
        )


def _check_row(row: _Row, kind: str, ranks: int) -> None:
    """Refuse a row with inconsistent columns: a wrong unit, or a truncated line."""
    width = _ELEMENT_BYTES.get(row.dtype)
    elements = row.count * width if width else row.size
    if not any(
        abs(row.size - n * elements) <= _ROUNDING * n * elements
        for n in {1, ranks if kind != "all_reduce" else 1}
    ):
        raise TraceError(
            f"{row.location}: {row.count:.0f} elements of type {row.dtype} are not {row.size:.0f} B"
        )
    if row.root is not None and not -1 <= row.root < ranks:
        raise TraceError(f"{row.location}: root: {row.root} is not one of {ranks} ranks")
    timing = row.timing
    if not timing.time > 0:
        raise TraceError(f"{row.location}: time: {timing.time / MICRO:g} us is not a time")
    expected = row.size / timing.time
    for name, printed, should in (
        ("algbw", timing.algbw, expected),
        ("busbw", timing.busbw, busbw(kind, size=row.size, n=ranks, time=timing.time)),
    ):
        if not math.isnan(printed) and abs(printed - should) > _ROUNDING * should + _LAST_DIGIT:
            raise TraceError(
                f"{row.location}: {row.size:.0f} B in {timing.time / MICRO:.4g} us, {kind} of "
                f"{ranks} ranks: {name} would be {should / GIGA:.4g} GB/s, not "
                f"{printed / GIGA:.4g}: is a unit wrong, or the number of ranks?"
            )


def _kind(run: _Run, ranks: int, layout: Layout) -> str:
    """Return the kind that a run timed: by program, by columns, else as given by the user."""
    if run.program in _UNMODELLED:
        raise TraceError(f"{run.location}: {run.program} is not a collective that is modelled here")
    if kind := kind_named(run.program):
        return kind
    sized_rows = [row for row in run.rows if row.size]
    redop = next((row.redop for row in sized_rows if row.redop), "none")
    root = next((row.root for row in sized_rows if row.root is not None), -1)
    kind = _column_kind(sized_rows, ranks, reduces=redop != "none", rooted=root >= 0)
    if kind is not None:
        return kind
    if layout.kind is None:
        raise TraceError(f"{run.location}: the output does not name the collective: give --kind")
    return layout.kind


def _column_kind(rows: Sequence[_Row], ranks: int, *, reduces: bool, rooted: bool) -> str | None:
    """Infer the kind from operator, root, and busbw over algbw; None if these are not enough."""
    largest = max(rows, key=lambda row: row.size, default=None)
    if largest is None or not largest.timing.algbw > 0 or ranks < 2:
        return None
    factor = largest.timing.busbw / largest.timing.algbw
    share = (ranks - 1) / ranks
    if rooted:
        whole = abs(factor - 1) <= _ROUNDING
        return ("reduce" if reduces else "broadcast") if whole else None
    if reduces:
        names = {"all_reduce": 2 * share, "reduce_scatter": share}
        near = [name for name, candidate in names.items() if abs(factor - candidate) <= _ROUNDING]
        return near[0] if near else None
    if abs(factor - 1) <= _ROUNDING:
        return "send_receive"
    pairs = [
        (row.out_of_place.wrong, row.in_place.wrong)
        for row in rows
        if row.out_of_place and row.in_place
    ]
    if any(out_of_place == "N/A" for out_of_place, _ in pairs) or not pairs:
        return None  # nothing was checked
    # An in-place all-to-all has no result to check.
    return "all_to_all" if all(candidate == "N/A" for _, candidate in pairs) else "all_gather"
