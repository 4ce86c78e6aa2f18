"""Output of OSU's micro-benchmarks, between ranks, and of perftest, from NIC to NIC.

OSU: collectives, ``osu_latency`` and ``osu_bw``. Their size is one rank's message: for all-gather,
all-to-all, gather and scatter S of nccl-tests is n times as much; for reduce-scatter it is the
whole input already. Bandwidths are in 1e6 B/s. ``osu_bw`` keeps many messages in flight, so it
gives the bandwidth and no latency. Source: mvapich.cse.ohio-state.edu/benchmarks (OMB 5 to 7), the
README of its files.

perftest: ``ib_write_bw``, ``ib_write_lat`` and similar programs. A bandwidth "MB/sec" is in 2**20
B, as documented by the tool's help and confirmed by its message rate; "Gb/sec" (``--report_gbits``)
is in 1e9 bits. A latency is one way. Source: linux-rdma/perftest, src/perftest_parameters.h.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectives.files.measured_calls import (
    LINK,
    MICRO,
    BenchmarkLog,
    Layout,
    MeasuredCall,
    placed,
    seconds,
)
from simulator.calls import kind_named
from simulator.support.errors import TraceError, shown
from simulator.support.quantities import count_of, number_of

_TITLE = re.compile(r"^#\s*OSU\s+(.*?)\s+(Latency|Bandwidth|Bandwidth / Message Rate)\s+Test", re.I)
_LIBRARIES = {"nccl": "nccl", "rccl": "rccl", "xccl": ""}
"""Library by its name in a title, in order of precedence: ``XCCL-NCCL``, ``NCCL-CUDA``."""
_PER_RANK = ("all_gather", "all_to_all", "gather", "scatter")
"""Kinds whose S is n times a rank's message."""
_MEGA = 1e6
_PAIR = 2


@dataclass(frozen=True, slots=True)
class _Heading:
    """Contents of a table's heading: kind, library, and whether the numbers are bandwidths."""

    kind: str
    is_bandwidth: bool
    library: str


_OSU_UNIT = re.compile(r"^#.*(?:Latency|Bandwidth)\s*\(([^()]*)\)")
_OSU_UNITS = ("us", "MB/s")


def is_osu(text: str) -> bool:
    """Whether a text is output of the OSU micro-benchmarks."""
    return any(_TITLE.match(line.strip()) for line in text.splitlines())


def read_osu(text: str, path: str, layout: Layout) -> BenchmarkLog:
    """Read the tables of one or several OSU benchmarks."""
    calls: list[MeasuredCall] = []
    notes: list[str] = []
    libraries: list[str] = []
    table: _Heading | None = None
    for count, raw in enumerate(text.splitlines(), 1):
        line, location = raw.strip(), f"{path}, line {count}"
        if title := _TITLE.match(line):
            table = _heading(title, location, notes)
            libraries += [table.library] if table else []
        elif table is not None and (unit := _OSU_UNIT.search(line)) and unit[1] not in _OSU_UNITS:
            raise TraceError(
                f"{location}: unit {unit[1]!r} is not one that OSU writes: {', '.join(_OSU_UNITS)}"
            )
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


def _heading(title: "re.Match[str]", location: str, notes: list[str]) -> _Heading | None:
    """Read a heading; None for a benchmark that identifies no call."""
    words = title[1].lower().split()
    named = re.findall("[a-z]+", title[1].lower())
    library = next((value for name, value in _LIBRARIES.items() if name in named), "mpi")
    name = words[-1].removeprefix("non-blocking").strip("-") if words else ""
    is_bandwidth = title[2].lower() != "latency"
    kind = kind_named(name)
    if kind and not is_bandwidth and "non-blocking" not in title[1].lower():
        return _Heading(kind, is_bandwidth=False, library=library)
    plain = re.sub(r"[^a-z]", "", title[1].lower().removeprefix(words[0] if words else ""))
    if not plain or plain in ("cuda", "rocm", "openacc"):
        return _Heading("send_receive", is_bandwidth=is_bandwidth, library=library)
    notes.append(f"{location}: {title[0].lstrip('# ')}: does not identify a call, and is left out")
    return None


def _call(table: _Heading, words: Sequence[str], layout: Layout, location: str) -> MeasuredCall:
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
    size = number_of(words[0]) * (ranks if table.kind in _PER_RANK else 1)
    if not table.is_bandwidth:
        time = seconds(words[1], MICRO, location, "latency")
        return MeasuredCall(table.kind, ranks, nodes, size, time, location)
    speed = number_of(words[1]) * _MEGA
    if not speed > 0:
        raise TraceError(f"{location}: bandwidth: {shown(words[1])} is not a bandwidth")
    return MeasuredCall(table.kind, ranks, nodes, size, size / speed, location, streamed=True)


_HEAD = re.compile(r"^\s*#bytes\s+#iterations\s+(.*)$")
_COLUMN = re.compile(r"[^\s\[\]](?:[^\[\]]*?[^\s\[\]])?\s*\[[^\]]*\]")
_UNITS = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_BIDIRECTIONAL = re.compile(r"\bBidirectional\b", re.I)
_RATE_ROUNDING = 0.02
"""The message rate has six decimals, which leaves few digits for large messages."""


def is_perftest(text: str) -> bool:
    """Whether a text has a table of perftest."""
    return any(_HEAD.match(line) for line in text.splitlines())


def read_perftest(text: str, path: str) -> BenchmarkLog:
    """Read the tables of a perftest program."""
    if _BIDIRECTIONAL.search(text):
        raise TraceError(f"{path}: the bandwidths of both directions are added up: run without -b")
    calls: list[MeasuredCall] = []
    columns: list[str] = []
    for count, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            columns = [" ".join(heading.split()) for heading in _COLUMN.findall(head[1])]
        words = line.split()
        if columns and len(words) > 1 and all(count_of(word) is not None for word in words[:2]):
            location = f"{path}, line {count}"
            if len(words) - 2 < len(columns):
                shortfall = f"{len(words)} of {2 + len(columns)} columns"
                raise TraceError(
                    f"{location}: the row ends early ({shortfall}): is the table truncated?"
                )
            cells = dict(zip(columns, words[2:], strict=False))
            calls.append(_message(cells, float(words[0]), location))
    return BenchmarkLog(path, "perftest", tuple(calls))


def _message(cells: Mapping[str, str], size: float, location: str) -> MeasuredCall:
    for name, text in cells.items():
        if name.startswith("BW average"):
            unit = name.partition("[")[2].rstrip("]").strip()
            speed = number_of(text)
            if unit not in _UNITS or not speed > 0:
                raise TraceError(f"{location}: {name}: {shown(text)} is not a bandwidth")
            time = size / (speed * _UNITS[unit])
            _check_rate(cells, time, location)
            return MeasuredCall(LINK, _PAIR, _PAIR, size, time, location, streamed=True)
    for wanted in ("t_typical", "t_avg"):
        for name, text in cells.items():
            if name.startswith(wanted):
                time = seconds(text, MICRO, location, name)
                return MeasuredCall(LINK, _PAIR, _PAIR, size, time, location)
    raise TraceError(f"{location}: neither a mean bandwidth nor a latency among its columns")


def _check_rate(cells: Mapping[str, str], time: float, location: str) -> None:
    """Compare the bandwidth with the message rate, if that is printed."""
    rate = next((number_of(cells[name]) for name in cells if name.startswith("MsgRate")), 0.0)
    if rate > 1000 * 1e-6 and abs(rate * 1e6 * time - 1) > _RATE_ROUNDING:
        raise TraceError(
            f"{location}: {rate:g} million messages a second are not the bandwidth beside it: is a "
            "unit wrong?"
        )
