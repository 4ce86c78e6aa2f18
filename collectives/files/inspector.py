"""Lines of NCCL's and RCCL's Inspector: times of a production job's calls, rank by rank.

Each process writes a file of JSON lines, a line per call and rank (NVIDIA/nccl,
``plugins/profiler/inspector``, formats 4 and 5). A kernel waits for the last rank, so the shortest
time of a call's ranks is that of the transfer; a call is identified by its communicator's id and
its number there. Calls of one kind, group and size are then one call with their median time: in
production other traffic makes them differ.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from collectives.files.measured_calls import MICRO, BenchmarkLog, Layout, MeasuredCall, placed
from simulator.calls import kind_named
from simulator.support.errors import TraceError, shown
from simulator.support.input_files import json_rows
from simulator.support.quantities import CENTURY, INSTANT, MOST_BYTES

_KEYS = ('"coll_perf"', '"p2p_perf"')
_GPU_CLOCK = "kernel_gpu"
"""Source of times measured by the GPU's clock; others are of host threads and longer."""
_ROUNDING = 0.01
"""Relative rounding of the written bandwidth, which must agree with size and time."""
_GIGA = 1e9


def is_inspector(text: str) -> bool:
    """Whether a text has the Inspector's lines: JSON objects with a header and a call's times."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return (
        first.lstrip().startswith("{")
        and '"header"' in first
        and any(key in first for key in _KEYS)
    )


def read_inspector(files: Sequence[tuple[str, str]], layout: Layout) -> BenchmarkLog:
    """Read the files of a job, each with its path and text, as one log."""
    calls: dict[tuple[str, str, int], dict[int, _RankCall]] = defaultdict(dict)
    left_out: dict[str, int] = defaultdict(int)
    for path, text in files:
        for number, row in json_rows(text, path):
            line = _rank_call(row, f"{path}, line {number}", left_out)
            if line is None:
                continue
            # NCCL numbers the calls of a communicator by kind.
            by_rank = calls[line.communicator, line.kind, line.sequence]
            first = next(iter(by_rank.values()), line)
            if line.rank in by_rank or line.shared != first.shared:
                wrong = "a rank twice, or another size or job: keep the lines of one run"
                raise TraceError(f"{line.location}: contradicts {first.location}: {wrong}")
            by_rank[line.rank] = line
    path = files[0][0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    rows = list(_medians(calls, layout))
    return BenchmarkLog(
        path, "NCCL Inspector", tuple(rows), notes=tuple(_notes(path, calls, left_out))
    )


class _RankCall:
    """One rank's record of a call."""

    def __init__(self, row: Mapping[str, Any], location: str) -> None:
        header, call = (_table(row, name, location) for name in ("header", "coll_perf"))
        self.location = location
        self.communicator = str(header.get("id"))
        self.rank = _whole(header, "rank", location)
        self.ranks = _whole(header, "n_ranks", location)
        if self.rank >= self.ranks:
            raise TraceError(f"{location}: header.rank {self.rank} is none of {self.ranks} ranks")
        self.nodes = _whole(header, "nnodes", location) if "nnodes" in header else None
        self.sequence = _whole(call, "coll_sn", location)
        kind = kind_named(str(call.get("coll")))
        if kind is None:
            raise TraceError(f"{location}: coll_perf.coll: {shown(call.get('coll'))} is not a call")
        self.kind = kind
        self.time = _whole(call, "coll_exec_time_us", location) * MICRO
        if not INSTANT <= self.time <= CENTURY:
            raise TraceError(f"{location}: coll_perf.coll_exec_time_us: {self.time} s is no time")
        self.size = self._size(call)
        self.shared = self.size, self.ranks, self.nodes

    def _size(self, call: Mapping[str, Any]) -> float:
        """Return the size of a call as nccl-tests defines it (B).

        The Inspector writes one rank's bytes for reduce-scatter and all-gather; its bandwidth
        always refers to the bytes of all.
        """
        size = _whole(call, "coll_msg_size_bytes", self.location)
        speed = call.get("coll_algobw_gbs")
        if (
            not isinstance(speed, int | float)
            or isinstance(speed, bool)
            or not 0 <= speed <= MOST_BYTES
        ):
            raise TraceError(
                f"{self.location}: coll_perf.coll_algobw_gbs: {shown(speed)} is not a bandwidth"
            )
        for total in (size, size * self.ranks):
            if abs(speed * _GIGA * self.time - total) <= _ROUNDING * total and total <= MOST_BYTES:
                return float(total)
        raise TraceError(
            f"{self.location}: {size} B in {self.time / MICRO:.0f} us are not {speed:.6g} GB/s, "
            f"nor are {self.ranks} times as many: the line is damaged"
        )


def _rank_call(row: Mapping[str, Any], location: str, left_out: dict[str, int]) -> _RankCall | None:
    """Read a line; None for a message, or for a time measured by a host thread."""
    if "coll_perf" not in row:
        if "p2p_perf" not in row:
            raise TraceError(
                f"{location}: neither coll_perf nor p2p_perf, so not a line of the Inspector"
            )
        left_out["messages (p2p_perf), which say nothing of their way"] += 1
        return None
    source = _table(row, "coll_perf", location).get("coll_timing_source", _GPU_CLOCK)
    if source != _GPU_CLOCK:
        left_out[f"calls timed by {shown(source)}, which is longer than the transfer"] += 1
        return None
    return _RankCall(row, location)


def _table(row: Mapping[str, Any], name: str, location: str) -> Mapping[str, Any]:
    value = row.get(name)
    if not isinstance(value, dict):
        raise TraceError(f"{location}: {name}: {shown(value)} is not a table of fields")
    return value


def _whole(table: Mapping[str, Any], name: str, location: str) -> int:
    value = table.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise TraceError(f"{location}: {name}: {shown(value)} is not a whole number")
    return value


_Calls = Mapping[tuple[str, str, int], Mapping[int, _RankCall]]


def _medians(calls: _Calls, layout: Layout) -> Iterator[MeasuredCall]:
    equal: dict[tuple[str, int, int | None, float], list[_RankCall]] = defaultdict(list)
    for by_rank in calls.values():
        last = min(by_rank.values(), key=lambda line: line.time)
        if last.ranks >= 2 and last.size:
            ranks, nodes = placed(last.ranks, last.nodes, layout, last.location)
            equal[last.kind, ranks, nodes, last.size].append(last)
    for key, lines in sorted(equal.items(), key=lambda item: str(item[0])):
        time = median(line.time for line in lines)
        yield MeasuredCall(*key, time=time, location=lines[0].location)


def _notes(path: str, calls: _Calls, left_out: Mapping[str, int]) -> Iterator[str]:
    for what, count in left_out.items():
        yield f"{path}: {count} {what}, are left out"
    partial = [
        by_rank for by_rank in calls.values() if len(by_rank) < next(iter(by_rank.values())).ranks
    ]
    if partial:
        yield (
            f"{path}: {len(partial)} of {len(calls)} calls lack lines of some of their ranks: "
            "their times may hold waiting for late ranks; give the files of all processes"
        )
