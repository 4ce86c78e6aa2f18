"""One rank's Chakra nodes: their attributes as values, who waits for whom, and where they run."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from simulator.errors import TraceError
from simulator.workload import What
from traces.chakra_schema import COLL, COMP, MEM_LOAD, MEM_STORE, RECV, SEND, STORAGE, TYPES, Node
from traces.chakra_stream import ChakraTrace

OWN = "twofold_"
"""What the names of our own attributes begin with."""
_READ = frozenset(
    (
        *("is_cpu_op", "stream", "tid", "num_ops", "tensor_size", "comm_type", "comm_size"),
        *("comm_src", "comm_dst", "comm_tag", "comm_group", "pg_name", "involved_dim"),
    )
)
_COPIES = (MEM_LOAD, MEM_STORE, STORAGE)
_MODELLED = (COMP, SEND, RECV, COLL, *_COPIES)
_OWN_COMPUTE = (What.HOST, What.COMPUTE, What.COPY)
"""What a COMP_NODE that this project wrote may be; one of a call is told by the call."""
_MOVES = re.compile(r"Mem(cpy|set)\b")
"""Names that PyTorch's profiler gives to what copy engines do; such nodes are typed COMP_NODE."""
COMMUNICATION = "communication"
"""Lane of calls of which no stream is told: those may overlap."""

Values = dict[str, Any]
Waits = list[list[int]]


@dataclass(slots=True, eq=False)
class RankNodes:
    """The nodes of one rank; everything that is per node has their order in the file.

    ``waits`` are the places of the nodes that each node waits for, ``order`` the nodes so that each
    comes after those. ``start`` is in seconds since ``epoch`` (us), None where the file tells none.
    """

    rank: int
    file: Path
    nodes: list[Node]
    values: list[Values]
    waits: Waits
    order: list[int]
    start: list[float | None]
    epoch: int
    unused: Counter[str] = field(default_factory=Counter)

    @property
    def timed(self) -> bool:
        """Whether the file tells when its nodes started."""
        return any(start is not None for start in self.start)

    def where(self, place: int) -> str:
        """Name file and node, as messages do."""
        node = self.nodes[place]
        return f"{self.file}: node {node.id} {node.name!r}"


def rank_nodes(trace: ChakraTrace, rank: int) -> RankNodes:
    """Make sense of one rank's nodes.

    Raises
    ------
    TraceError
        If an id stands twice, or the data dependencies make a circle.
    """
    unused = Counter(trace.unused)
    place_of = _places(trace)
    data = _waits(place_of, [node.data_deps for node in trace.nodes], "data", unused)
    control = _waits(place_of, [node.ctrl_deps for node in trace.nodes], "control", unused)
    start, epoch = _starts(trace.nodes)
    waits = [[*one, *other] for one, other in zip(data, control, strict=True)]
    order = _order(waits)
    if len(order) < len(waits):
        dropped = sum(len(one) for one in control)
        unused["control dependencies, which contradict the data dependencies"] = dropped
        waits, order = data, _order(data)
    if len(order) < len(waits):
        raise TraceError(f"{trace.file}: {_circle(trace.nodes, waits, order)}")
    values = [_values(node) for node in trace.nodes]
    other = Counter(node.type for node in trace.nodes if node.type not in _MODELLED)
    for number, count in other.items():
        unused[f"nodes of type {_type_name(number)}: kept as host ops"] = count
    waits = [sorted(set(one)) for one in waits]
    return RankNodes(rank, trace.file, trace.nodes, values, waits, order, start, epoch, unused)


def what_of(node: Node, values: Values) -> What:
    """Tell what a node is in a workload; calls are told by their type."""
    own = values.get(f"{OWN}what")
    if node.type == COMP and own in _OWN_COMPUTE:
        return What(own)
    if node.type in (SEND, RECV, COLL):
        return {SEND: What.SEND, RECV: What.RECEIVE, COLL: What.COLLECTIVE}[node.type]
    if node.type in _COPIES:
        return What.COPY
    if node.type != COMP or values.get("is_cpu_op"):
        return What.HOST
    return What.COPY if _MOVES.match(node.name) else What.COMPUTE


def lanes_of(ranked: RankNodes) -> list[str]:
    """Name the lane of every node: its host thread, its stream, else what kind of work it is.

    Older converters give a kernel's stream as its ``tid``; newer ones give its host thread there
    and the stream besides.
    """
    pairs = list(zip(ranked.nodes, ranked.values, strict=True))
    host = [_on_host(node, values) for node, values in pairs]
    threads = {values.get("tid") for (_, values), own in zip(pairs, host, strict=True) if own}
    return [
        str(values[f"{OWN}lane"])
        if f"{OWN}lane" in values
        else _host_lane(values)
        if own
        else _device_lane(node, values, threads)
        for (node, values), own in zip(pairs, host, strict=True)
    ]


def _values(node: Node) -> Values:
    """Attributes that are read, by name; of two with one name the first counts, as in ASTRA-sim."""
    values: Values = {}
    for attribute in node.attr:
        name = attribute.name
        if name in _READ or name.startswith(OWN):
            values.setdefault(name, value_of(attribute))
    return values


def value_of(attribute: Any) -> Any:
    """Take the value of an attribute, whichever field it stands in; None if in none."""
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    return list(value.values) if which.endswith("_list") else value


def _places(trace: ChakraTrace) -> dict[int, int]:
    places: dict[int, int] = {}
    for place, node in enumerate(trace.nodes):
        if places.setdefault(node.id, place) != place:
            first = trace.nodes[places[node.id]].name
            raise TraceError(
                f"{trace.file}: node id {node.id} stands twice ({first!r} and {node.name!r}): "
                "the file is damaged, or made of two"
            )
    return places


def _waits(
    place_of: dict[int, int], ids: Iterable[Sequence[int]], which: str, unused: Counter[str]
) -> Waits:
    waits: Waits = []
    dangling = 0
    for own in ids:
        found = [place_of[one] for one in own if one in place_of]
        dangling += len(own) - len(found)
        waits.append(found)
    if dangling:
        unused[f"{which} dependencies on nodes that are not in the file"] += dangling
    return waits


def _starts(nodes: Sequence[Node]) -> tuple[list[float | None], int]:
    """Read starts (s) where the file tells any, since the first of them (us).

    A start of 0 is also what a file holds that tells none: it is one only where the other starts
    are as near to it as to each other.
    """
    told = [node.start_time_micros for node in nodes if node.start_time_micros]
    if not told:
        return [None] * len(nodes), 0
    least, most = min(told), max(told)
    zero_told = least <= most - least or len(told) == 1
    epoch = 0 if zero_told and len(told) < len(nodes) else least
    zero = 0.0 if zero_told else None
    starts = [node.start_time_micros for node in nodes]
    return [(start - epoch) * 1e-6 if start else zero for start in starts], epoch


def _order(waits: Waits) -> list[int]:
    """Sort so that each comes after those it waits for, else in the order of the file.

    Shorter than ``waits`` if those make a circle (Kahn 1962).
    """
    followers: Waits = [[] for _ in waits]
    for place, own in enumerate(waits):
        for one in own:
            followers[one].append(place)
    missing = [len(own) for own in waits]
    free = [place for place, count in enumerate(missing) if count == 0]
    order = []
    while free:
        place = heappop(free)
        order.append(place)
        for follower in followers[place]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heappush(free, follower)
    return order


def _circle(nodes: Sequence[Node], waits: Waits, order: Sequence[int]) -> str:
    """Name a circle: going back from a node that is never free, one comes round to it."""
    free = set(order)
    place = next(place for place in range(len(waits)) if place not in free)
    seen: dict[int, int] = {}
    path: list[int] = []
    while place not in seen:
        seen[place] = len(path)
        path.append(place)
        place = next(one for one in waits[place] if one not in free)
    names = [f"{nodes[one].id} {nodes[one].name[:60]!r}" for one in path[seen[place] :]]
    shown = " <- ".join(names[:6]) + (f" ... ({len(names)} in all)" if len(names) > 6 else "")
    return f"the data dependencies make a circle: node {shown}"


def _type_name(number: int) -> str:
    return TYPES[number] if 0 <= number < len(TYPES) else str(number)


def _on_host(node: Node, values: Values) -> bool:
    told = values.get("is_cpu_op")
    return bool(told) if told is not None else what_of(node, values) == What.HOST


def _host_lane(values: Values) -> str:
    return f"thread {values['tid']}" if values.get("tid") is not None else "host"


def _device_lane(node: Node, values: Values, threads: set[Any]) -> str:
    if values.get("stream") is not None:
        return f"stream {values['stream']}"
    if values.get("tid") is not None and values["tid"] not in threads:
        return f"stream {values['tid']}"
    if node.type in (SEND, RECV, COLL):
        return COMMUNICATION
    return "memory" if what_of(node, values) == What.COPY else "compute"
