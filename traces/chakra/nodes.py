"""One rank's Chakra nodes: attributes as values, dependencies, and lanes."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, by_appearance
from simulator.support.errors import TraceError
from simulator.workload import What
from traces.chakra.schema import (
    COLL,
    COMP,
    MEM_LOAD,
    MEM_STORE,
    OWN,
    RECV,
    SEND,
    STORAGE,
    TYPES,
    AttributeValues,
)
from traces.chakra.stream import ChakraTrace, Dependencies, NodeColumns

_COPIES = (MEM_LOAD, MEM_STORE, STORAGE)
CALLS = {SEND: What.SEND, RECV: What.RECEIVE, COLL: What.COLLECTIVE}
_MICRO = 1e-6
_MODELLED = (COMP, SEND, RECV, COLL, *_COPIES)
_OWN_COMPUTE_KINDS = (What.HOST, What.COMPUTE, What.COPY)
"""Kinds of a COMP_NODE written by this project; one of a call has its call's kind."""
_COPY_NAMES = re.compile(r"Mem(cpy|set)\b")
"""PyTorch profiler's names of ops of copy engines; their nodes are typed COMP_NODE."""
COMMUNICATION = "communication"
"""Lane of calls without a recorded stream: those may overlap."""

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NodeForm:
    """Fields that nodes may share: all but id, start, dependencies, inputs and outputs.

    ``duration`` (s) is exact if this project wrote it, else whole microseconds. ``on_host``:
    whether it runs on a host thread, which its type does not determine.
    """

    type: int
    name: str
    micros: int
    values: AttributeValues
    what: What
    on_host: bool
    duration: float

    @property
    def is_call(self) -> bool:
        """Whether it is a call of its rank, and not the host op that issues one."""
        return self.what in CALLS.values()


@dataclass(frozen=True, slots=True, eq=False)
class RankNodes:
    """The nodes of one rank as columns, in the order of the file.

    ``trace`` is their file, ``form`` the index of each node's form in ``forms``. Node ``target[e]``
    waits for node ``source[e]``; both are indices in the file, and an edge may occur twice.
    ``order`` is a topological order of the nodes. ``start`` is in seconds since ``epoch`` (us), NaN
    if the file has none.
    """

    rank: int
    trace: ChakraTrace
    forms: list[NodeForm]
    form: Index
    source: Index
    target: Index
    order: Index
    start: Floats
    epoch: int
    unused: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.form)

    @property
    def timed(self) -> bool:
        """Whether the file has the starts of its nodes."""
        return not bool(np.isnan(self.start).all())

    def of(self, position: int) -> NodeForm:
        """Return the form of a node."""
        return self.forms[int(self.form[position])]

    def where(self, position: int) -> str:
        """Return file and node for messages."""
        node = self.trace.nodes[position]
        return f"{self.trace.file}: node {node.id} {node.name!r}"

    def durations(self) -> Floats:
        """Return the duration of each node (s)."""
        return np.array([form.duration for form in self.forms], dtype=np.float64)[self.form]

    def waits(self) -> list[list[int]]:
        """Return the dependencies of each node, ascending and unique."""
        count = len(self)
        target, source = np.divmod(np.unique(self.target * count + self.source), count)
        ends = np.searchsorted(target, np.arange(count + 1)).tolist()
        sources = source.tolist()
        return [sources[begin:end] for begin, end in pairwise(ends)]


def rank_nodes(trace: ChakraTrace, rank: int) -> RankNodes:
    """Read one rank's nodes into columns.

    Raises
    ------
    TraceError
        If an id occurs twice, or the data dependencies have a cycle.
    """
    columns, unused = trace.columns, Counter(trace.unused)
    by_id = _ById.of(trace)
    data = by_id.edges(columns.data_deps, "data", unused)
    control = by_id.edges(columns.control_deps, "control", unused)
    edges = _Edges(*(np.concatenate(pair) for pair in zip(data, control, strict=True)))
    order = _order(len(columns), edges)
    if len(order) < len(columns):
        unused["control dependencies, which contradict the data dependencies"] = len(control.source)
        edges, order = data, _order(len(columns), data)
    if len(order) < len(columns):
        raise TraceError(f"{trace.file}: {_cycle(trace, data, order)}")
    start, epoch = _starts(columns.per_node.start.view(np.uint64))
    form, forms = _forms(columns)
    # Count the nodes of types that are not modelled, given which of the forms each node is of.
    others: Counter[str] = Counter()
    for kind_of_node, count in zip(forms, often(forms, form), strict=True):
        if (number := kind_of_node.type) not in _MODELLED:
            name = TYPES[number] if 0 <= number < len(TYPES) else str(number)
            others[f"nodes of type {name}: kept as host ops"] += count
    unused.update(others)
    return RankNodes(
        rank=rank,
        trace=trace,
        forms=forms,
        form=form,
        source=edges.source,
        target=edges.target,
        order=order,
        start=start,
        epoch=epoch,
        unused=unused,
    )


def often(forms: Sequence[NodeForm], form: Index) -> list[int]:
    """Count the nodes of each form."""
    counts: list[int] = np.bincount(form, minlength=len(forms)).tolist()
    return counts


def lanes_of(ranked: RankNodes) -> list[str]:
    """Return the lane of each form: its host thread, its stream, else its kind of work.

    Older converters write a kernel's stream as its ``tid``; newer ones write its host thread there
    and the stream in addition.
    """
    threads = {form.values.get("tid") for form in ranked.forms if form.on_host}
    return [
        str(form.values[f"{OWN}lane"])
        if f"{OWN}lane" in form.values
        else (f"thread {form.values['tid']}" if form.values.get("tid") is not None else "host")
        if form.on_host
        else _device_lane(form, threads)
        for form in ranked.forms
    ]


def _forms(columns: NodeColumns) -> tuple[Index, list[NodeForm]]:
    """Distinguish forms by kind and duration, in the order in which they appear."""
    micros, duration = np.unique(columns.per_node.micros.view(np.uint64), return_inverse=True)
    kind_and_duration = columns.per_node.form.astype(np.int64) * len(micros) + duration
    number, first = by_appearance(kind_and_duration)
    forms = []
    for pair in kind_and_duration[first].tolist():
        kind, which = divmod(pair, len(micros))
        node = columns.kinds[kind]
        forms.append(form_of(node.type, node.name, int(micros[which]), columns.values[kind]))
    return number, forms


def form_of(kind: int, name: str, micros: int, values: AttributeValues) -> NodeForm:
    """Return the form of nodes with a type, a name, a duration (us) and attributes."""
    what = _what_of(kind, name, values)
    says_host = values.get("is_cpu_op")
    on_host = bool(says_host) if says_host is not None else what == What.HOST
    exact = values.get(f"{OWN}duration")
    duration = micros * _MICRO
    if isinstance(exact, float) and 0 <= exact < math.inf and f"{OWN}call" not in values:
        duration = exact
    return NodeForm(kind, name, micros, values, what, on_host, duration)


def _what_of(kind: int, name: str, values: AttributeValues) -> What:
    """Return the kind of op of a node; calls are of their type."""
    written = values.get(f"{OWN}what")
    if kind == COMP and written in _OWN_COMPUTE_KINDS:
        return What(written)
    if kind in CALLS and not _issues_call(values):
        return CALLS[kind]
    if kind in _COPIES:
        return What.COPY
    if kind != COMP or values.get("is_cpu_op"):
        return What.HOST
    return What.COPY if _COPY_NAMES.match(name) else What.COMPUTE


_OF_CALLS = ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name", "comm_group")


def _issues_call(values: AttributeValues) -> bool:
    """Whether a communication node is the host op that issues a call: ``c10d::allreduce_``.

    Converters up to 0.0.4 type these like NCCL's kernels, which they issue; only the kernel
    identifies the communication. A call that the host itself carries out (gloo) does so, too.
    """
    written_here = f"{OWN}call" in values or f"{OWN}what" in values
    return (
        bool(values.get("is_cpu_op")) and not written_here and values.keys().isdisjoint(_OF_CALLS)
    )


class _Edges(NamedTuple):
    """Dependencies, by index in the file."""

    source: Index
    target: Index


@dataclass(frozen=True, slots=True, eq=False)
class _ById:
    """Nodes by id: ``ids`` are ascending, ``order`` the nodes that have them."""

    ids: Index
    order: Index

    @staticmethod
    def of(trace: ChakraTrace) -> "_ById":
        """Sort a file's nodes by their ids, which must be unique."""
        ids = trace.columns.per_node.id
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        twice = order[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            second = int(twice.min())
            first = int(np.flatnonzero(ids == ids[second])[0])
            name, other_name = trace.nodes[first].name, trace.nodes[second].name
            raise TraceError(
                f"{trace.file}: node id {trace.columns.ids[second]} occurs twice ({name!r} and "
                f"{other_name!r}): the file is damaged, or made of two"
            )
        return _ById(ordered, order)

    def edges(self, deps: Dependencies, which: str, unused: Counter[str]) -> _Edges:
        """Find the nodes that are dependencies; those that are missing are counted."""
        if not len(self.ids):
            return _Edges(deps.ids, deps.waiting)
        row = np.minimum(np.searchsorted(self.ids, deps.ids), len(self.ids) - 1)
        present = self.ids[row] == deps.ids
        if present.all():
            return _Edges(self.order[row], deps.waiting)
        dangling = f"{which} dependencies on nodes that are not in the file"
        unused[dangling] += int((~present).sum())
        return _Edges(self.order[row[present]], deps.waiting[present])


def _starts(start: NDArray[np.uint64]) -> tuple[Floats, int]:
    """Return starts (s) since the first of them (us), NaN if the file has none.

    Files without starts may also have 0 as start: it counts only if the other starts are as near to
    it as to each other.
    """
    recorded = start[start > 0]
    if not len(recorded):
        return np.full(len(start), np.nan), 0
    least, most = int(recorded.min()), int(recorded.max())
    zero_is_start = least <= most - least or len(recorded) == 1
    epoch = 0 if zero_is_start and len(recorded) < len(start) else least
    # Integers are subtracted first: microseconds since 1970 as floats would lose fractions.
    seconds = (start - np.uint64(epoch)).astype(np.float64) * _MICRO
    return np.where(start > 0, seconds, 0.0 if zero_is_start else np.nan), epoch


def _order(count: int, edges: _Edges) -> Index:
    """Return a topological order that otherwise keeps the order of the file.

    Shorter than ``count`` if there is a cycle (Kahn 1962).
    """
    if (edges.source < edges.target).all():
        return np.arange(count)
    by_source = np.argsort(edges.source, kind="stable")
    ends = np.searchsorted(edges.source[by_source], np.arange(count + 1)).tolist()
    followers = edges.target[by_source].tolist()
    missing = np.bincount(edges.target, minlength=count).tolist()
    free = [position for position, waits in enumerate(missing) if waits == 0]
    order = []
    while free:
        # The heap keeps ready nodes in the order of the file.
        position = heappop(free)
        order.append(position)
        for follower in followers[ends[position] : ends[position + 1]]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heappush(free, follower)
    return np.array(order, dtype=np.int64)


def _cycle(trace: ChakraTrace, edges: _Edges, order: Index) -> str:
    """Describe a cycle, found by following dependencies back from a node that is never ready."""
    blocked = np.ones(len(trace.columns), dtype=np.bool_)
    blocked[order] = False
    blocked_by: dict[int, int] = {}
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        if blocked[source]:
            blocked_by.setdefault(target, source)
    position = int(np.flatnonzero(blocked)[0])
    seen: dict[int, int] = {}
    path: list[int] = []
    while position not in seen:
        seen[position] = len(path)
        path.append(position)
        position = blocked_by[position]
    cycle = [trace.nodes[position] for position in path[seen[position] :]]
    names = [f"{node.id} {node.name[:60]!r}" for node in cycle]
    shown = " <- ".join(names[:6]) + (f" ... ({len(names)} in all)" if len(names) > 6 else "")
    return f"the data dependencies make a cycle: node {shown}"


def _device_lane(form: NodeForm, threads: set[Any]) -> str:
    values = form.values
    if values.get("stream") is not None:
        return f"stream {values['stream']}"
    if values.get("tid") is not None and values["tid"] not in threads:
        return f"stream {values['tid']}"
    if form.is_call:
        return COMMUNICATION
    return "memory" if form.what == What.COPY else "compute"
