"""One rank's Chakra nodes: their attributes as values, who waits for whom, and where they run."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import TraceError
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
    ChakraNode,
)
from traces.chakra.stream import ChakraTrace

_COPIES = (MEM_LOAD, MEM_STORE, STORAGE)
CALLS = {SEND: What.SEND, RECV: What.RECEIVE, COLL: What.COLLECTIVE}
_MICRO = 1e-6
_MODELLED = (COMP, SEND, RECV, COLL, *_COPIES)
_OWN_COMPUTE = (What.HOST, What.COMPUTE, What.COPY)
"""What a COMP_NODE that this project wrote may be; one of a call is told by the call."""
_MOVES = re.compile(r"Mem(cpy|set)\b")
"""Names that PyTorch's profiler gives to what copy engines do; such nodes are typed COMP_NODE."""
COMMUNICATION = "communication"
"""Lane of calls of which no stream is told: those may overlap."""

Dependencies = list[list[int]]


@dataclass(frozen=True, slots=True, eq=False)
class NodeForm:
    """What nodes may have alike: all but id, start, dependencies, and what goes in and out.

    ``duration`` (s) is exact where this project wrote it, else whole microseconds. ``on_host`` says
    whether it runs on a host thread, which what it is need not tell.
    """

    type: int
    name: str
    micros: int
    values: AttributeValues
    what: What
    on_host: bool
    duration: float


@dataclass(slots=True, eq=False)
class RankNodes:
    """The nodes of one rank; everything that is per node has their order in the file.

    Each node is of one of ``forms``: ``form`` has its place. ``waits`` are the places of the nodes
    that each node waits for, ``order`` the nodes so that each comes after those. ``start`` is in
    seconds since ``epoch`` (us), None where the file tells none.
    """

    rank: int
    file: Path
    nodes: Sequence[ChakraNode]
    forms: list[NodeForm]
    form: list[int]
    waits: Dependencies
    order: list[int]
    start: list[float | None]
    epoch: int
    unused: Counter[str] = field(default_factory=Counter)

    @property
    def timed(self) -> bool:
        """Whether the file tells when its nodes started."""
        return any(start is not None for start in self.start)

    def of(self, position: int) -> NodeForm:
        """Return what a node is."""
        return self.forms[self.form[position]]

    def where(self, position: int) -> str:
        """Name file and node, as messages do."""
        node = self.nodes[position]
        return f"{self.file}: node {node.id} {node.name!r}"


def rank_nodes(trace: ChakraTrace, rank: int) -> RankNodes:
    """Make sense of one rank's nodes.

    Raises
    ------
    TraceError
        If an id stands twice, or the data dependencies make a cycle.
    """
    unused = Counter(trace.unused)
    place_of = _places(trace)
    data = _waits(place_of, [node.data_deps for node in trace.nodes], "data", unused)
    control = _waits(place_of, [node.ctrl_deps for node in trace.nodes], "control", unused)
    start, epoch = _starts(trace.nodes)
    waits = [
        [*by_data, *by_control] if by_control else by_data
        for by_data, by_control in zip(data, control, strict=True)
    ]
    order = _order(waits)
    if len(order) < len(waits):
        dropped = sum(len(node_waits) for node_waits in control)
        unused["control dependencies, which contradict the data dependencies"] = dropped
        waits, order = data, _order(data)
    if len(order) < len(waits):
        raise TraceError(f"{trace.file}: {_cycle(trace.nodes, waits, order)}")
    forms, form = _forms(trace)
    unused.update(count_other(forms, form))
    waits = [_distinct(node_waits) if len(node_waits) > 1 else node_waits for node_waits in waits]
    nodes = trace.nodes
    return RankNodes(rank, trace.file, nodes, forms, form, waits, order, start, epoch, unused)


def count_other(forms: Sequence[NodeForm], form: Sequence[int]) -> Counter[str]:
    """Count the nodes of types that are not modelled, given which of the forms each node is of."""
    others: Counter[str] = Counter()
    for kind_of_node, count in zip(forms, often(forms, form), strict=True):
        if kind_of_node.type not in _MODELLED:
            others[f"nodes of type {_type_name(kind_of_node.type)}: kept as host ops"] += count
    return others


def often(forms: Sequence[NodeForm], form: Sequence[int]) -> list[int]:
    """Count the nodes of each form."""
    counts: list[int] = np.bincount(form, minlength=len(forms)).tolist()
    return counts


def lanes_of(ranked: RankNodes) -> list[str]:
    """Name the lane of each form: its host thread, its stream, else what kind of work it is.

    Older converters give a kernel's stream as its ``tid``; newer ones give its host thread there
    and the stream besides.
    """
    threads = {form.values.get("tid") for form in ranked.forms if form.on_host}
    return [
        str(form.values[f"{OWN}lane"])
        if f"{OWN}lane" in form.values
        else _host_lane(form.values)
        if form.on_host
        else _device_lane(form, threads)
        for form in ranked.forms
    ]


def _forms(trace: ChakraTrace) -> tuple[list[NodeForm], list[int]]:
    """Find the different forms in order of appearance, and which each node is of."""
    index: dict[tuple[int, str, int, int], int] = {}
    forms: list[NodeForm] = []
    form = []
    for node, values in zip(trace.nodes, trace.values, strict=True):
        key = (node.type, node.name, node.duration_micros, id(values))
        number = index.setdefault(key, len(forms))
        if number == len(forms):
            forms.append(form_of(*key[:3], values))
        form.append(number)
    return forms, form


def form_of(kind: int, name: str, micros: int, values: AttributeValues) -> NodeForm:
    """Say what nodes of a type, with a name, a duration (us) and attributes, are."""
    what = _what_of(kind, name, values)
    says_host = values.get("is_cpu_op")
    on_host = bool(says_host) if says_host is not None else what == What.HOST
    exact = values.get(f"{OWN}duration")
    duration = micros * _MICRO
    if isinstance(exact, float) and 0 <= exact < math.inf and f"{OWN}call" not in values:
        duration = exact
    return NodeForm(kind, name, micros, values, what, on_host, duration)


def _what_of(kind: int, name: str, values: AttributeValues) -> What:
    """Tell what a node is in a workload; calls are told by their type."""
    own = values.get(f"{OWN}what")
    if kind == COMP and own in _OWN_COMPUTE:
        return What(own)
    if kind in CALLS:
        return CALLS[kind]
    if kind in _COPIES:
        return What.COPY
    if kind != COMP or values.get("is_cpu_op"):
        return What.HOST
    return What.COPY if _MOVES.match(name) else What.COMPUTE


def _places(trace: ChakraTrace) -> dict[int, int]:
    places = {node.id: position for position, node in enumerate(trace.nodes)}
    if len(places) == len(trace.nodes):
        return places
    places.clear()
    for position, node in enumerate(trace.nodes):
        if places.setdefault(node.id, position) != position:
            first = trace.nodes[places[node.id]].name
            raise TraceError(
                f"{trace.file}: node id {node.id} stands twice ({first!r} and {node.name!r}): "
                "the file is damaged, or made of two"
            )
    return places


def _waits(
    place_of: dict[int, int], ids: Iterable[Sequence[int]], which: str, unused: Counter[str]
) -> Dependencies:
    waits = [list(own) for own in ids]
    numbered = [*place_of] == [*range(len(place_of))]
    if numbered and max((max(own) for own in waits if own), default=0) < len(waits):
        return waits
    dangling = 0
    for number, own in enumerate(waits):
        known = (
            [place_of[waited_for] for waited_for in own if waited_for in place_of] if own else []
        )
        dangling += len(own) - len(known)
        waits[number] = known
    if dangling:
        unused[f"{which} dependencies on nodes that are not in the file"] += dangling
    return waits


def _distinct(own: list[int]) -> list[int]:
    """Sort what one node waits for; most wait for two that are sorted."""
    if len(own) == 2 and own[0] < own[1]:
        return own
    return sorted(set(own))


def _starts(nodes: Sequence[ChakraNode]) -> tuple[list[float | None], int]:
    """Read starts (s) where the file tells any, since the first of them (us).

    A start of 0 is also what a file holds that tells none: it is one only where the other starts
    are as near to it as to each other.
    """
    recorded = [node.start_time_micros for node in nodes if node.start_time_micros]
    if not recorded:
        return [None] * len(nodes), 0
    least, most = min(recorded), max(recorded)
    zero_told = least <= most - least or len(recorded) == 1
    epoch = 0 if zero_told and len(recorded) < len(nodes) else least
    zero = 0.0 if zero_told else None
    starts = [node.start_time_micros for node in nodes]
    return [(start - epoch) * 1e-6 if start else zero for start in starts], epoch


def _order(waits: Dependencies) -> list[int]:
    """Sort so that each comes after those it waits for, else in the order of the file.

    Shorter than ``waits`` if those make a cycle (Kahn 1962).
    """
    if all(not own or max(own) < position for position, own in enumerate(waits)):
        return list(range(len(waits)))
    followers: Dependencies = [[] for _ in waits]
    for position, own in enumerate(waits):
        for waited_for in own:
            followers[waited_for].append(position)
    missing = [len(own) for own in waits]
    free = [position for position, count in enumerate(missing) if count == 0]
    order = []
    while free:
        position = heappop(free)
        order.append(position)
        for follower in followers[position]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heappush(free, follower)
    return order


def _cycle(nodes: Sequence[ChakraNode], waits: Dependencies, order: Sequence[int]) -> str:
    """Name a cycle: going back from a node that is never free, one comes round to it."""
    free = set(order)
    position = next(position for position in range(len(waits)) if position not in free)
    seen: dict[int, int] = {}
    path: list[int] = []
    while position not in seen:
        seen[position] = len(path)
        path.append(position)
        position = next(waited_for for waited_for in waits[position] if waited_for not in free)
    names = [
        f"{nodes[on_cycle].id} {nodes[on_cycle].name[:60]!r}" for on_cycle in path[seen[position] :]
    ]
    shown = " <- ".join(names[:6]) + (f" ... ({len(names)} in all)" if len(names) > 6 else "")
    return f"the data dependencies make a cycle: node {shown}"


def _type_name(number: int) -> str:
    return TYPES[number] if 0 <= number < len(TYPES) else str(number)


def _host_lane(values: AttributeValues) -> str:
    return f"thread {values['tid']}" if values.get("tid") is not None else "host"


def _device_lane(form: NodeForm, threads: set[Any]) -> str:
    values = form.values
    if values.get("stream") is not None:
        return f"stream {values['stream']}"
    if values.get("tid") is not None and values["tid"] not in threads:
        return f"stream {values['tid']}"
    if form.type in CALLS:
        return COMMUNICATION
    return "memory" if form.what == What.COPY else "compute"
