"""The communication call of a kernel or host event: kind, size, group, sequence number.

The trace records it in several places: metadata on the kernel (PyTorch 2.2 and later),
``record_param_comms``, ``nccl:…`` and ``c10d::…`` events around its launch. Each fills in what the
previous ones leave open; nothing else is assumed. :class:`Enclosing` finds the events around a time
of a thread.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field, structs

from simulator.calls import UNKNOWN
from simulator.support.errors import TraceError, WorkloadError, shown
from simulator.support.quantities import MOST_BYTES, bytes_per_element
from traces.core.comm_kernels import BY_NAME, SYMMETRIC, KernelRule
from traces.core.events import CommRecord, HostKind, ProcessGroup, RankTrace, merged_record
from traces.core.rank_graph import NO_SPLITS, PARAM_COMMS, UNKNOWN_GROUP, LocalCall, Splits, kind_of
from traces.profiler.window import Window

_RINGS = ("all_reduce", "all_gather", "reduce_scatter")
_OTHERS = ("broadcast", "all_to_all", "send_receive")
"""Kinds that are never made of the kernels of one another; a barrier may be an all-reduce."""
_ENDS = {"send": "send", "recv": "receive", "receive": "receive"}


def local_call(
    trace: RankTrace,
    records: Sequence[CommRecord],
    name: str,
    where: str,
    rule: KernelRule | None = None,
) -> LocalCall:
    """Return one call from the records of an event called ``name``, a kernel by its ``rule``.

    If nothing records the collective (RCCL's generic kernel without a ``record_param_comms`` around
    its launch) the kind is ``unknown``.

    Raises
    ------
    TraceError
        If a dtype is unknown, or a record contradicts itself.
    """
    words = [record.collective for record in records if kind_of(record.collective)]
    by_name = rule.kind if rule is not None and rule.kind != BY_NAME else kind_of(name)
    kind = (kind_of(words[0]) if words else by_name) or UNKNOWN
    if rule is not None and by_name in _RINGS and kind in (*_RINGS, *_OTHERS) and kind != by_name:
        raise TraceError(f"{where}: a kernel of {by_name}, but it is recorded as {shown(words[0])}")
    for record in records:
        group, sent, received = record.group_ranks, record.in_elements, record.out_elements
        if group and record.group_size not in (None, len(group)):
            raise TraceError(
                f"{where}: Group size is {record.group_size}, but its ranks are {len(group)}"
            )
        is_reduced = kind_of(record.collective) == "all_reduce"
        if is_reduced and sent and received and sent != received:
            raise TraceError(f"{where}: an all_reduce of {sent} elements to {received}")
    record = merged_record(records) if records else CommRecord(collective=name)
    listed = _listed(trace, record)
    ranks = record.group_ranks or (listed.ranks if listed else None)
    size = record.group_size if ranks is None else len(ranks)
    if size is None:
        size = listed.size if listed else 2 if trace.world_size == 2 else None
    if ranks is None and size is not None and size == trace.world_size:
        ranks = tuple(range(size))
    may_be_any = len(trace.groups) > 1 or not (
        rule is None or rule.listed or (rule.library == SYMMETRIC and bool(records))
    )
    lost = ranks is None and size is None and may_be_any
    direction, peer = "", None
    if kind == "send_receive":
        of_words = (re.match(r"i?(send|recv|receive)(?!_?recv)", word.lower()) for word in words)
        direction = next((_ENDS[match[1]] for match in of_words if match), "")
        peer, position = record.peer, record.group_peer
        if peer is None and ranks is not None and position is not None and position < len(ranks):
            peer = ranks[position]
        if peer is None and direction and ranks is not None and len(ranks) == 2:
            peer = sum(ranks) - trace.rank  # the other of two ranks
    call = LocalCall(
        kind=kind,
        size=math.nan if lost else _bytes(record, kind, size, where),
        dtype=record.dtype,
        key=record.group_key,
        label=UNKNOWN_GROUP if lost else record.group_label or (listed.label if listed else ""),
        ranks=(trace.rank,) if lost else ranks,
        group_size=size,
        sequence=record.sequence,
        peer=peer,
        where=where,
        direction=direction,
        splits=_split_bytes(record, records, size, where) if kind == "all_to_all" else NO_SPLITS,
    )
    return structs.replace(call, may_be=_on_listed(trace, record, call)) if lost else call


def _on_listed(trace: RankTrace, record: CommRecord, call: LocalCall) -> tuple[LocalCall, ...]:
    """Return a call of unknown group for each group that is listed for this rank."""
    return tuple(
        structs.replace(
            call,
            size=_bytes(record, call.kind, group.size, call.where),
            key=group.key,
            label=group.label,
            ranks=group.ranks,
            group_size=group.size,
        )
        for group in trace.groups.values()
        if group.ranks is not None and group.size > 1 and trace.rank in group.ranks
    )


def _listed(trace: RankTrace, record: CommRecord) -> ProcessGroup | None:
    """Return a call's group in ``pg_config``: by its name, else the only possible one.

    Frameworks make many groups of the same ranks (world, tensor, expert), and many of one rank, in
    which nothing moves: if all remaining groups have the same ranks, any of them serves.
    """
    named = trace.groups.get(record.group_key)
    if named is not None:
        return named
    size = record.group_size
    fitting = [group for group in trace.groups.values() if size in (None, group.size)]
    if len(fitting) > 1:
        fitting = [
            group
            for group in fitting
            if group.size > 1 and (group.ranks is None or trace.rank in group.ranks)
        ]
    same_ranks = len({group.ranks for group in fitting}) == 1 and fitting[0].ranks is not None
    return fitting[0] if len(fitting) == 1 or same_ranks else None


def _bytes(record: CommRecord, kind: str, group: int | None, where: str) -> float:
    """S of nccl-tests: the larger of input and output; a missing side follows."""
    if kind == "barrier":
        return 0.0
    if kind == UNKNOWN:
        return math.nan
    if record.dtype == "" or (record.in_elements is None and record.out_elements is None):
        return math.nan
    try:
        element = bytes_per_element(record.dtype)
    except WorkloadError as error:
        raise TraceError(f"{where}: {error}") from error
    sent, received = record.in_elements or 0, record.out_elements or 0
    size = max(sent, received) * element
    if (kind == "all_gather" and not received) or (kind == "reduce_scatter" and not sent):
        if group is None:
            return math.nan
        size *= group
    if not 0 <= size <= MOST_BYTES:
        raise TraceError(f"{where}: {shown(size)} B is not a size of a message")
    return float(size)


def _split_bytes(
    record: CommRecord, records: Sequence[CommRecord], group: int | None, where: str
) -> Splits:
    """Bytes for and from each rank, by the splits of ``all_to_all_single`` (rows of the tensor)."""
    elided = any(comm.elided_split for comm in records)
    if record.dtype == "" or not (record.in_split or record.out_split):
        return Splits(elided=elided)
    element = bytes_per_element(record.dtype)
    sent, received = (
        tuple(part * element for part in _elements_each(split, elements, group, f"{where}: {name}"))
        for name, split, elements in (
            ("In split size", record.in_split, record.in_elements),
            ("Out split size", record.out_split, record.out_elements),
        )
    )
    return Splits(sent, received, elided)


def _elements_each(
    split: tuple[int, ...], elements: int | None, group: int | None, where: str
) -> tuple[float, ...]:
    """Elements of each part of a tensor that is split along its first dimension."""
    if not split or elements is None:
        return ()
    if group is not None and len(split) != group:
        raise TraceError(f"{where}: {len(split)} numbers, but the group has {group} ranks")
    rows = sum(split)
    if min(split) < 0 or (elements % rows if rows else elements):
        raise TraceError(f"{where}: {rows} rows in all cannot be those of {elements} elements")
    return tuple(part * (elements // rows) if rows else 0.0 for part in split)


class CommSpan(NamedTuple):
    """An outermost span of a thread that is a single communication call (s).

    ``rows`` are its events, ``starts`` and ``ends`` theirs, ``comms`` their records; ``order`` has
    their indices with ``record_param_comms``, the library's own, first, then inner to outer.
    """

    start: float
    end: float
    rows: tuple[int, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    comms: tuple[int, ...]
    order: tuple[int, ...]

    def holding(self, time: float) -> list[int]:
        """Return the indices of the events that cover a time, in their ``order``."""
        starts, ends = self.starts, self.ends
        return [event for event in self.order if starts[event] <= time <= ends[event]]

    def outermost(self, time: float) -> int | None:
        """Return the row of the longest event that covers a time."""
        if self.ends[0] == self.end and self.start <= time <= self.end:
            return self.rows[0]
        longest = max(
            sorted(self.holding(time)),
            key=lambda event: self.ends[event] - self.starts[event],
            default=None,
        )
        return None if longest is None else self.rows[longest]


class Enclosing(Struct, eq=False):
    """Communication spans and outermost operators of each thread in a step."""

    trace: RankTrace
    _carried: dict[int, int] = field(default_factory=dict)
    _spans: dict[int, list[CommSpan]] = field(default_factory=dict)
    _span_starts: dict[int, list[float]] = field(default_factory=dict)
    _operators: dict[int, tuple[list[float], list[float], list[str]]] = field(default_factory=dict)

    @staticmethod
    def of(trace: RankTrace, window: Window) -> "Enclosing":
        """Collect them."""
        enclosing, host = Enclosing(trace), trace.host
        rows = window.host[host.comm[window.host] >= 0]
        for thread in np.unique(host.thread[rows]).tolist():
            on_thread = rows[host.thread[rows] == thread]
            starts, ends = host.start[on_thread], host.end[on_thread]
            # An event that starts after all before it have ended opens a new outermost span.
            outer = np.flatnonzero(starts[1:] > np.maximum.accumulate(ends)[:-1]) + 1
            bounds = [0, *outer.tolist(), len(on_thread)]
            columns = (on_thread, starts, ends, host.comm[on_thread], host.name[on_thread])
            whole: tuple[list[Any], ...] = tuple(column.tolist() for column in columns)
            spans = []
            for first, end in pairwise(bounds):
                events, begins, until, comms, names = (tuple(part[first:end]) for part in whole)
                # Innermost first, since it knows most; the library's own records before those
                # around them.
                inner = range(end - first - 1, -1, -1)
                is_library = [trace.names[name] == PARAM_COMMS for name in names]
                order = [event for event in inner if is_library[event]]
                order += [event for event in inner if not is_library[event]]
                spans.append(
                    CommSpan(begins[0], max(until), events, begins, until, comms, tuple(order))
                )
            enclosing._spans[thread] = spans
            enclosing._span_starts[thread] = [span.start for span in spans]
        rows = window.host[host.kind[window.host] == HostKind.OPERATOR]
        for thread in np.unique(host.thread[rows]).tolist():
            on_thread = rows[host.thread[rows] == thread]
            before = np.maximum.accumulate(host.end[on_thread])
            outer = on_thread[np.concatenate([[True], host.start[on_thread][1:] >= before[:-1]])]
            operators = [trace.names[name] for name in host.name[outer].tolist()]
            times = host.start[outer].tolist(), host.end[outer].tolist()
            enclosing._operators[thread] = (*times, operators)
        return enclosing

    def span(self, thread: int, time: float) -> CommSpan | None:
        """Return the communication span of a thread at a time."""
        after = bisect_right(self._span_starts.get(thread, []), time)
        if not after:
            return None
        span = self._spans[thread][after - 1]
        return span if time <= span.end else None

    def outermost(self, thread: int, time: float) -> int | None:
        """Return the outermost event of the communication call of a thread at a time.

        If another call carries that out, the other's.
        """
        span = self.span(thread, time)
        row = None if span is None else span.outermost(time)
        return None if row is None else self._carried.get(row, row)

    def carry(self, spans: Iterable[CommSpan], row: int) -> None:
        """Record that the call around a launch carries out those of earlier spans."""
        host = self.trace.host
        carrier = self.outermost(int(host.thread[row]), float(host.start[row]))
        if carrier is not None:
            self._carried |= {held_row: carrier for span in spans for held_row in span.rows}

    def waits_for(self, row: int) -> int | None:
        """Return the number of the collective that the communication call around a row waits for.

        ``work.wait()`` writes a ``record_param_comms`` of its own with that number; the one around
        a launch writes the same number, but inside this one there is no launch.
        """
        return next(
            (record.sequence for record in self.records(row) if record.sequence is not None), None
        )

    def records(self, row: int) -> list[CommRecord]:
        """Return the records around a host event: ``record_param_comms``, then inner to outer."""
        host = self.trace.host
        time = float(host.start[row])
        span = self.span(int(host.thread[row]), time)
        if span is None:
            return []
        return [self.trace.comms[span.comms[event]] for event in span.holding(time)]

    def calls_between(self, thread: int, after: float, before: float) -> list[CommSpan]:
        """Return the communication calls of a thread that lie between two times (s)."""
        starts = self._span_starts.get(thread, [])
        first, last = bisect_right(starts, after), bisect_left(starts, before)
        return [span for span in self._spans.get(thread, [])[first:last] if span.end < before]

    def operator(self, thread: int, time: float) -> str | None:
        """Return the name of the outermost operator of a thread at a time."""
        starts, ends, names = self._operators.get(thread, ([], [], []))
        last = bisect_right(starts, time) - 1
        return names[last] if last >= 0 and time <= ends[last] else None
