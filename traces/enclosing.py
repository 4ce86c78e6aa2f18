"""The host events around a host event: which communication call, which operator it belongs to."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from traces.events import CommRecord, HostKind, RankTrace
from traces.window import Window

_RECORD = "record_param_comms"


@dataclass(frozen=True, slots=True)
class Span:
    """An outermost stretch of a thread that is all one communication call (s).

    ``rows`` are its events, ``starts`` and ``ends`` theirs, ``comms`` their records; ``library``
    says which were written by the library itself, ``record_param_comms``.
    """

    start: float
    end: float
    rows: tuple[int, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    comms: tuple[int, ...]
    library: tuple[bool, ...]

    def holding(self, time: float) -> list[int]:
        """Return the places in ``rows`` of the events that go on at a time."""
        return [
            place
            for place, (start, end) in enumerate(zip(self.starts, self.ends, strict=True))
            if start <= time <= end
        ]


@dataclass(slots=True, eq=False)
class Enclosing:
    """Communication spans and outermost operators of each thread in a step."""

    trace: RankTrace
    _carried: dict[int, int] = field(default_factory=dict)
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

    def outermost(self, thread: int, time: float) -> int | None:
        """Find the outermost event of the communication call of a thread at a time.

        Of a call that another carries out, that other's.
        """
        span = self.span(thread, time)
        if span is None:
            return None
        longest = max(
            span.holding(time), key=lambda one: span.ends[one] - span.starts[one], default=None
        )
        if longest is None:
            return None
        return self._carried.get(span.rows[longest], span.rows[longest])

    def carry(self, spans: Iterable[Span], row: int) -> None:
        """Note that the call around a launch carries out those of spans before it."""
        host = self.trace.host
        carrier = self.outermost(int(host.thread[row]), float(host.start[row]))
        if carrier is not None:
            self._carried |= {one: carrier for span in spans for one in span.rows}

    def waits_for(self, row: int) -> int | None:
        """Tell the number of the collective that the communication call around a row waits for.

        ``work.wait()`` writes a ``record_param_comms`` of its own, with that number; one around
        a launch writes the same number, but there is no launch inside this one.
        """
        return next((one.sequence for one in self.records(row) if one.sequence is not None), None)

    def records(self, row: int) -> list[CommRecord]:
        """Collect records around a host event: ``record_param_comms``, then inner to outer."""
        host = self.trace.host
        time = float(host.start[row])
        span = self.span(int(host.thread[row]), time)
        if span is None:
            return []
        return self._in_order(span, span.holding(time))

    def calls_between(self, thread: int, after: float, before: float) -> list[Span]:
        """Find the communication calls of a thread that begin and end between two times (s)."""
        starts = self._span_starts.get(thread, [])
        first, last = bisect_right(starts, after), bisect_left(starts, before)
        return [span for span in self._spans.get(thread, [])[first:last] if span.end < before]

    def records_of(self, span: Span) -> list[CommRecord]:
        """Collect the records of a call: ``record_param_comms``, then inner to outer."""
        return self._in_order(span, list(range(len(span.rows))))

    def _in_order(self, span: Span, places: list[int]) -> list[CommRecord]:
        places.sort(key=lambda place: (not span.library[place], -place))
        return [self.trace.comms[span.comms[place]] for place in places]

    def operator(self, thread: int, time: float) -> str | None:
        """Name the outermost operator of a thread at a time."""
        starts, ends, names = self._operators.get(thread, ([], [], []))
        place = bisect_right(starts, time) - 1
        return names[place] if place >= 0 and time <= ends[place] else None

    def _collect_spans(self, window: Window) -> None:
        host = self.trace.host
        rows = window.host[host.comm[window.host] >= 0]
        for thread in np.unique(host.thread[rows]).tolist():
            mine = rows[host.thread[rows] == thread]
            starts, ends = host.start[mine], host.end[mine]
            outer = np.flatnonzero(starts[1:] > np.maximum.accumulate(ends)[:-1]) + 1
            bounds = [0, *outer.tolist(), len(mine)]
            library = [self.trace.names[name] == _RECORD for name in host.name[mine].tolist()]
            whole = (mine.tolist(), starts.tolist(), ends.tolist(), host.comm[mine].tolist())
            for one, other in pairwise(bounds):
                part = [tuple(column[one:other]) for column in (*whole, library)]
                span = Span(float(starts[one]), float(ends[one:other].max()), *part)
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
