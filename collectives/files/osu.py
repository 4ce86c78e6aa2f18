"""Output of the OSU micro-benchmarks: collectives, ``osu_latency`` and ``osu_bw``.

Their size is a rank's own message: of all-gather, all-to-all, gather and scatter S of nccl-tests is
n times as much; of reduce-scatter it is the whole input already. Bandwidths are of 1e6 B/s.
``osu_bw`` keeps many messages under way, so it gives the bandwidth and no latency.

Source: mvapich.cse.ohio-state.edu/benchmarks (OMB 5 to 7), the README of its files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from collectives.files.measured_calls import (
    MICRO,
    BenchmarkLog,
    Layout,
    MeasuredCall,
    number,
    placed,
    seconds,
)
from simulator.support.errors import TraceError, shown

_TITLE = re.compile(r"^#\s*OSU\s+(.*?)\s+(Latency|Bandwidth|Bandwidth / Message Rate)\s+Test", re.I)
_LIBRARIES = {"nccl": "nccl", "rccl": "rccl", "xccl": ""}
"""Which library a title names, the first that it does: ``XCCL-NCCL``, ``NCCL-CUDA``."""
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
_SHARES = ("all_gather", "all_to_all", "gather", "scatter")
"""Kinds whose S is n times a rank's message."""
_MEGA = 1e6
_PAIR = 2


@dataclass(frozen=True, slots=True)
class _Table:
    """What a heading says: a kind, and whether the numbers are a bandwidth."""

    kind: str
    is_bandwidth: bool
    library: str


def is_osu(text: str) -> bool:
    """Whether it is output of the OSU micro-benchmarks."""
    return any(_TITLE.match(line.strip()) for line in text.splitlines())


def read_osu(text: str, path: str, layout: Layout) -> BenchmarkLog:
    """Read the tables of one or several OSU benchmarks.

    Raises
    ------
    TraceError
        If a row is torn, or it is not known how many ranks took part.
    """
    calls: list[MeasuredCall] = []
    notes: list[str] = []
    libraries: list[str] = []
    table: _Table | None = None
    for count, raw in enumerate(text.splitlines(), 1):
        line, location = raw.strip(), f"{path}, line {count}"
        if title := _TITLE.match(line):
            table = _table(title, location, notes)
            libraries += [table.library] if table else []
        elif table is not None and line[:1].isdigit():
            if line.split()[-1].lower() == "fail":
                notes.append(f"{path}: rows with wrong results are left out")
            else:
                calls.append(_call(table, line.split(), layout, location))
    if len(set(libraries)) > 1:
        raise TraceError(f"{path}: calls of {' and '.join(sorted(set(libraries)))} in one log")
    return BenchmarkLog(
        path,
        "OSU",
        tuple(calls),
        library="".join(set(libraries)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _table(title: "re.Match[str]", location: str, notes: list[str]) -> _Table | None:
    """Read a heading; None of a benchmark that shows nothing here."""
    words = title[1].lower().split()
    named = re.findall("[a-z]+", title[1].lower())
    library = next(
        (library_name for name, library_name in _LIBRARIES.items() if name in named), "mpi"
    )
    name = words[-1].removeprefix("non-blocking").strip("-") if words else ""
    is_bandwidth = title[2].lower() != "latency"
    if name in _KINDS and not is_bandwidth and "non-blocking" not in title[1].lower():
        return _Table(_KINDS[name], is_bandwidth=False, library=library)
    plain = re.sub(r"[^a-z]", "", title[1].lower().removeprefix(words[0] if words else ""))
    if not plain or plain in ("cuda", "rocm", "openacc"):
        return _Table("send_receive", is_bandwidth=is_bandwidth, library=library)
    notes.append(f"{location}: {title[0].lstrip('# ')}: does not identify a call, and is left out")
    return None


def _call(table: _Table, words: Sequence[str], layout: Layout, location: str) -> MeasuredCall:
    if table.kind == "send_receive":
        pair = Layout(None, layout.nodes, layout.ranks_per_node)
        ranks, nodes = placed(_PAIR, None, pair, location)
    else:
        ranks, nodes = placed(None, None, layout, location)
    if table.kind == "barrier":
        time = seconds(words[0], MICRO, location, "latency")
        return MeasuredCall("barrier", ranks, nodes, 0.0, time, location)
    if len(words) < 2:
        raise TraceError(f"{location}: the row ends after its size: is the table truncated?")
    size = number(words[0]) * (ranks if table.kind in _SHARES else 1)
    if not table.is_bandwidth:
        time = seconds(words[1], MICRO, location, "latency")
        return MeasuredCall(table.kind, ranks, nodes, size, time, location)
    speed = number(words[1]) * _MEGA
    if not speed > 0:
        raise TraceError(f"{location}: bandwidth: {shown(words[1])} is not a bandwidth")
    return MeasuredCall(table.kind, ranks, nodes, size, size / speed, location, streamed=True)
