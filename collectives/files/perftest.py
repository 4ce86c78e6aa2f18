"""Output of perftest: ``ib_write_bw``, ``ib_write_lat`` and their like, from NIC to NIC.

A bandwidth "MB/sec" is of 2**20 B, as the tool's help has it and its message rate confirms;
"Gb/sec" (``--report_gbits``) is of 1e9 bits. A latency is one way.

Source: linux-rdma/perftest, src/perftest_parameters.h.
"""

import re
from collections.abc import Mapping

from collectives.files.measured_calls import (
    LINK,
    MICRO,
    BenchmarkLog,
    MeasuredCall,
    number,
    seconds,
)
from simulator.support.errors import TraceError, shown
from simulator.support.quantities import count_of

_HEAD = re.compile(r"^\s*#bytes\s+#iterations\s+(.*)$")
_COLUMN = re.compile(r"[^\s\[\]](?:[^\[\]]*?[^\s\[\]])?\s*\[[^\]]*\]")
_UNITS = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_BOTH = re.compile(r"\bBidirectional\b", re.I)
_PAIR = 2
_RATE_OFF = 0.02
"""The message rate has six decimals: of large messages four digits are left."""


def is_perftest(text: str) -> bool:
    """Whether it has a table of perftest."""
    return any(_HEAD.match(line) for line in text.splitlines())


def read_perftest(text: str, path: str) -> BenchmarkLog:
    """Read the tables of a perftest program.

    Raises
    ------
    TraceError
        If it was run in both directions at once, or a row is torn or contradicts itself.
    """
    if _BOTH.search(text):
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
            calls.append(_call(cells, float(words[0]), location))
    return BenchmarkLog(path, "perftest", tuple(calls))


def _call(cells: Mapping[str, str], size: float, location: str) -> MeasuredCall:
    for name, text in cells.items():
        if name.startswith("BW average"):
            time = size / _speed(name, text, location)
            _check_rate(cells, time, location)
            return MeasuredCall(LINK, _PAIR, _PAIR, size, time, location, streamed=True)
    for wanted in ("t_typical", "t_avg"):
        for name, text in cells.items():
            if name.startswith(wanted):
                time = seconds(text, MICRO, location, name)
                return MeasuredCall(LINK, _PAIR, _PAIR, size, time, location)
    raise TraceError(f"{location}: neither a mean bandwidth nor a latency among its columns")


def _speed(name: str, text: str, location: str) -> float:
    unit = name.partition("[")[2].rstrip("]").strip()
    speed = number(text)
    if unit not in _UNITS or not speed > 0:
        raise TraceError(f"{location}: {name}: {shown(text)} is not a bandwidth")
    return speed * _UNITS[unit]


def _check_rate(cells: Mapping[str, str], time: float, location: str) -> None:
    """Hold the bandwidth against the rate of messages, where that is printed."""
    rate = next((number(cells[name]) for name in cells if name.startswith("MsgRate")), 0.0)
    if rate > 1000 * 1e-6 and abs(rate * 1e6 * time - 1) > _RATE_OFF:
        raise TraceError(
            f"{location}: {rate:g} million messages a second are not the bandwidth beside it: is a "
            "unit wrong?"
        )
