"""Arrows from launches to kernels, for files whose events carry no correlation ids.

The profiler draws an arrow (``ac2g``, once ``async_cpu_to_gpu``) from each launch to what it
launched: two flow events of one id, at the start of either. As a rule the id is the correlation id
of both, and nothing here is needed.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from simulator.errors import shown
from traces.core.columns import EventRows, LaneLabels
from traces.kineto.schema import ABSENT, LooseNumber, identifier, nanoseconds, unwrapped

_ARROWS = ("ac2g", "async_cpu_to_gpu")
_FROM, _TO = "s", "f"


class _Flow(Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    id: Raw = ABSENT
    pid: LooseNumber = None
    tid: LooseNumber = None
    ts: LooseNumber = None


_decode = msgspec.json.Decoder(_Flow).decode


def correlate(
    events: Sequence[Raw], host: tuple[EventRows, LaneLabels], device: tuple[EventRows, LaneLabels]
) -> None:
    """Give kernels without a correlation id the one of the launch that an arrow comes from.

    A launch without one gets its kernel's. An arrow that points to nothing is passed over.
    """
    (calls, threads), (kernels, streams) = host, device
    all_known = min(kernels.correlation, default=0) >= 0 and max(calls.correlation, default=0) >= 0
    if all_known:
        return
    ends: dict[str, dict[int, tuple[int | None, int]]] = {_FROM: {}, _TO: {}}
    lanes = {_FROM: threads, _TO: streams}
    for index, raw in enumerate(events):
        flow = _decode(raw)
        if flow.cat not in _ARROWS or flow.ph not in ends:
            continue
        try:
            number = identifier(_number(flow.id), "id")
            stamp = nanoseconds(flow.ts, raw, "ts")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"event {index} {flow.cat!r}: {error}") from error
        ends[flow.ph][number] = (lanes[flow.ph].known(flow.pid, flow.tid), stamp)
    source, target = _Finder(calls), _Finder(kernels)
    for number, end in ends[_TO].items():
        row, call = target.at(*end), source.at(*ends[_FROM].get(number, (None, 0)))
        if row is None or call is None:
            continue
        both = (kernels.correlation[row], calls.correlation[call])
        if min(both) < 0:
            same = max(both) if max(both) >= 0 else number
            kernels.correlation[row] = calls.correlation[call] = same


def _number(piece: Raw) -> LooseNumber:
    value = unwrapped(piece)
    if not isinstance(value, int | float | str | None):
        raise ValueError(f"field 'id': {shown(value)} is not an integer")  # noqa: TRY004 - of the file
    return value


class _Finder:
    """Finds the innermost row of a lane at a time (ns)."""

    def __init__(self, rows: EventRows) -> None:
        self._rows = rows
        self._lanes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, lane in enumerate(rows.lane):
            self._lanes[lane].append((rows.start[row], row))
        for rows_of_lane in self._lanes.values():
            rows_of_lane.sort()

    def at(self, lane: int | None, time: int) -> int | None:
        """Return the row that began last on a lane by a time, if it still goes on."""
        rows = [] if lane is None else self._lanes[lane]
        last = bisect_right(rows, (time, len(self._rows))) - 1
        if last < 0 or self._rows.end[rows[last][1]] < time:
            return None
        return rows[last][1]
