"""The host events around a host event: which communication call, which operator it belongs to."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from traces.events import CommRecord, HostKind, RankTrace
from traces.window import Window

_RECORD = "record_param_comms"


@dataclass(frozen=True, slots=True)
class Span:
    """An outermost stretch of a thread that is all one communication call (s)."""

    start: float
    end: float
    rows: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Enclosing:
    """Communication spans and outermost operators of each thread in a step."""

    trace: RankTrace
    _spans: dict[int, list[Span]] = field(default_factory=dict)
    _span_starts: dict[int, list[float]] = field(default_factory=dict)
    _operators: dict[int, tuple[list[float], list[float], list[str]]] = field(default_factory=dict)

    @staticmethod
    def of(trace: RankTrace, window: Window) -> "Enclosing":
        """Collect them."""
        found = Enclosing(trace)
        found._collect_spans(window)
        found._collect_operators(window)
        return found

    def span(self, thread: int, time: float) -> Span | None:
        """Find the communication span of a thread at a time."""
        place = bisect_right(self._span_starts.get(thread, []), time)
        if not place:
            return None
        span = self._spans[thread][place - 1]
        return span if time <= span.end else None

    def waits_for(self, row: int) -> int | None:
        """Tell the number of the collective that the communication call around a row waits for.

        ``work.wait()`` writes a ``record_param_comms`` of its own, with that number; one around
        a launch writes the same number, but there is no launch inside this one.
        """
        return next((one.sequence for one in self.records(row) if one.sequence is not None), None)

    def records(self, row: int) -> list[CommRecord]:
        """Collect records around a host event: ``record_param_comms``, then inner to outer."""
        trace = self.trace
        time = float(trace.host.start[row])
        span = self.span(int(trace.host.thread[row]), time)
        around = [] if span is None else [one for one in span.rows if _holds(trace, one, time)]
        around.sort(key=lambda one: (trace.names[trace.host.name[one]] != _RECORD, -one))
        return [trace.comms[trace.host.comm[one]] for one in around]

    def operator(self, thread: int, time: float) -> str | None:
        """Name the outermost operator of a thread at a time."""
        starts, ends, names = self._operators.get(thread, ([], [], []))
        place = bisect_right(starts, time) - 1
        return names[place] if place >= 0 and time <= ends[place] else None

    def _collect_spans(self, window: Window) -> None:
        host = self.trace.host
        open_rows: dict[int, list[int]] = {}
        until: dict[int, float] = defaultdict(lambda: -np.inf)
        for row in window.host[host.comm[window.host] >= 0].tolist():
            thread = int(host.thread[row])
            if host.start[row] > until[thread]:
                self._close(thread, open_rows.get(thread, []))
                open_rows[thread] = []
            open_rows[thread].append(row)
            until[thread] = max(until[thread], float(host.end[row]))
        for thread, rows in open_rows.items():
            self._close(thread, rows)

    def _close(self, thread: int, rows: list[int]) -> None:
        if rows:
            host = self.trace.host
            end = max(float(host.end[row]) for row in rows)
            span = Span(float(host.start[rows[0]]), end, tuple(rows))
            self._spans.setdefault(thread, []).append(span)
            self._span_starts.setdefault(thread, []).append(span.start)

    def _collect_operators(self, window: Window) -> None:
        host = self.trace.host
        rows = window.host[host.kind[window.host] == HostKind.OPERATOR]
        for thread in np.unique(host.thread[rows]).tolist():
            mine = rows[host.thread[rows] == thread]
            before = np.maximum.accumulate(host.end[mine])
            outer = mine[np.concatenate([[True], host.start[mine][1:] >= before[:-1]])]
            names = [self.trace.names[name] for name in host.name[outer].tolist()]
            self._operators[thread] = (host.start[outer].tolist(), host.end[outer].tolist(), names)


def _holds(trace: RankTrace, row: int, time: float) -> bool:
    return bool(trace.host.start[row] <= time <= trace.host.end[row])
