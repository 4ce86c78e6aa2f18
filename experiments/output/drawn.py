"""What pages draw of a step: slices of the ops of ranks, and the links of the network, as columns.

Rows of slices are lanes (host threads and streams) of a rank, measured above simulated; the first
row is the critical path. A slice is a part of an op: a call has one for waiting, and one for
moving data. A link's utilisation is the bytes that crossed it over what it could have carried
during the step: ``bytes / (bandwidth · step)``.

A page has columns of numbers and text as typed arrays, compressed, as text. A table is JSON: the
number of rows, for each column its name, unit and encoding, and the bytes: gzip as
base64, which browsers unpack by themselves. Numbers keep every bit.

==========  ====================================================================================
``type``    ``f8``, ``u4``, ``u2`` or ``u1``: items in the bytes, little-endian, from ``offset``
``levels``  items are indices into it: a column of few values
``texts``   items are indices into these texts: ``[offset, bytes]`` of a list as JSON
``sums``    items are differences to the item before, modulo 2^32
``shuffled``  first the first bytes of all items, then the second ones, …: compresses better
==========  ====================================================================================
"""

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.critical_path import CriticalPath
from simulator.support.arrays import Floats
from simulator.timeline import RunTimes, Timeline, first_start, measured
from simulator.topology import Node
from simulator.workload import What

_FEW = 4
"""A column with fewer distinct values than a quarter of its rows is stored as indices into them."""
_LEVEL = 9
"""Compression level of gzip: a page is written once and opened often."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Numbers or texts of a table, shape ``(rows,)``.

    ``unit`` is the base unit of numbers, "" of counts and texts. ``sums`` marks integers that
    mostly ascend, stored as differences. With ``levels`` they are indices into these.
    """

    values: NDArray[Any] | Sequence[str]
    unit: str = ""
    sums: bool = False
    levels: Sequence[str] | None = None


Columns = Mapping[str, Column]


def packed(columns: Columns) -> dict[str, Any]:
    """Return a table as JSON types; raises ValueError if columns are not of equal length."""
    lengths = {len(column.values) for column in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns must have equal length, not {sorted(lengths)}")
    parts: list[bytes] = []
    offset, described = 0, []
    for name, column in columns.items():
        items, about = _items(column)
        about |= {"name": name, "unit": column.unit, "type": items.dtype.str[1:], "offset": offset}
        raw = items.tobytes()
        if items.itemsize > 1:
            raw = np.frombuffer(raw, np.uint8).reshape(-1, items.itemsize).T.tobytes()
            about["shuffled"] = True
        parts.append(raw)
        offset += len(raw)
        if texts := about.pop("texts", None):
            words = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
            parts.append(words.encode("utf-8", "replace"))
            about["texts"] = [offset, len(parts[-1])]
            offset += len(parts[-1])
        described.append(about)
    # A header of gzip (31), which ``gzip.compress`` writes otherwise since Python 3.13.
    body = zlib.compress(b"".join(parts), _LEVEL, wbits=31)
    return {
        "rows": max(lengths, default=0),
        "columns": described,
        "bytes": base64.b64encode(body).decode("ascii"),
    }


def _items(column: Column) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return the stored items of a column, and how to decode them."""
    if not isinstance(column.values, np.ndarray):
        texts, codes = np.unique(np.array(column.values, dtype=object), return_inverse=True)
        return _as_unsigned(codes), {"texts": [str(text) for text in texts] or [""]}
    if column.levels is not None:
        return _as_unsigned(column.values), {"texts": list(column.levels)}
    if column.sums:
        ticks = column.values.astype("<u4")
        return np.diff(ticks, prepend=np.zeros(1, "<u4")), {"sums": True}
    if column.values.dtype.kind in "bui" and _fits_32_bits(column.values):
        return _as_unsigned(column.values), {}
    numbers = column.values.astype("<f8")
    levels, codes = np.unique(numbers, return_inverse=True)
    if len(levels) * _FEW < len(numbers) and len(levels) < 1 << 16:
        return _as_unsigned(codes), {"levels": [_plain_value(level) for level in levels.tolist()]}
    return numbers, {}


def _fits_32_bits(values: NDArray[Any]) -> bool:
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < 1 << 32)


def _plain_value(number: float) -> float | str | None:
    """Return a number for JSON; NaN is null, and infinities are words."""
    if math.isnan(number):
        return None
    return number if math.isfinite(number) else ("inf" if number > 0 else "-inf")


def _as_unsigned(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers from 0 up in the smallest type that holds them."""
    most = int(values.max()) if len(values) else 0
    kind = "<u1" if most < 1 << 8 else "<u2" if most < 1 << 16 else "<u4"
    return values.astype(kind)


MOST_SLICES = 120_000
"""Most slices of a timeline, which limits the ranks drawn; the slowest is among them."""
MOST_RANKS = 128
CLASSES = ("host", "compute", "copy", "communication", "waiting", "gap")
"""Classes of slices; each has a colour."""
_OF_OPS = {What.HOST: "host", What.COMPUTE: "compute", What.COPY: "copy"}
_PATH_CLASSES = {
    "host": "host",
    "compute": "compute",
    "copy": "copy",
    "communication": "communication",
    "drain": "communication",
    "absent ranks": "waiting",
}
"""Classes of segments of the critical path; all others are gaps."""
_LONGEST_NAME = 160
"""Most characters of an op's name: those of C++ kernels have thousands."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """A timeline as pages draw it: ``about`` is JSON, ``slices`` the table that it describes.

    ``about`` has ``span_s``, ``tick_s`` (the unit of ``start`` and ``length``), ``classes``, and
    ``rows``: each with a ``label``, ``rank`` (None for the path), ``run`` (``path``, ``measured``
    or ``simulated``) and whether it is a ``host`` thread. ``left_out`` lists the omitted ranks.
    """

    about: dict[str, Any]
    slices: Columns


@dataclass(frozen=True, slots=True, eq=False)
class _Slices:
    """Slices of one or more rows (s)."""

    row: NDArray[np.int64]
    start: Floats
    end: Floats
    kind: NDArray[np.int64]
    name: NDArray[np.int64]


def ranks_drawn(
    timeline: Timeline,
    path: CriticalPath | None = None,
    most: int = MOST_SLICES,
    *,
    recorded: bool = True,
) -> Ranks:
    """Prepare the timeline of a simulated step for a page, beside its measured times.

    Parameters
    ----------
    timeline
        A simulated step.
    path
        Its critical path; None draws none.
    most
        Approximate limit on the number of slices.
    recorded
        Whether measured times are drawn, too: they do not apply to a step elsewhere.
    """
    runs: dict[str, RunTimes] = {"simulated": timeline}
    recorded_times = measured(timeline.workload) if recorded else None
    if recorded_times is not None and len(timeline.workload):
        runs = {"measured": recorded_times, **runs}
    chosen = _chosen(timeline, most // len(runs))
    rows: list[dict[str, Any]] = []
    parts = list(_path_slices(timeline, path, rows))
    for rank in chosen:
        for run, times in runs.items():
            parts += _rank_slices(times, rank, run, rows)
    origin = min(map(first_start, runs.values()))  # drawn from the start of the first op
    parts = [replace(part, start=part.start - origin, end=part.end - origin) for part in parts]
    names, codes = _names(timeline.workload.names, [part.name for part in parts])
    ends = (float(part.end.max()) for part in parts if len(part.end))
    span = max([timeline.makespan - origin, *ends])
    tick, total = max(span, 1e-9) / (1 << 31), len(timeline.workload.ranks)
    about = {
        "span_s": span,
        "tick_s": tick,
        "classes": list(CLASSES),
        "rows": rows,
        "left_out": f"{len(chosen)} of {total:,} ranks are drawn: evenly, the slowest among them"
        if len(chosen) < total
        else "",
    }
    return Ranks(about, _table(parts, codes, names, tick))


def _chosen(timeline: Timeline, most: int) -> list[int]:
    """Return the ranks to draw: all, or an even selection that fits, and the slowest."""
    workload = timeline.workload
    ranks = list(workload.ranks)
    each = max(1.0, 1.3 * len(workload) / max(1, len(ranks)))
    room = int(max(1, min(MOST_RANKS, most / each, len(ranks))))
    if room >= len(ranks) or not len(timeline.end):
        return ranks
    slowest = int(workload.rank[int(np.argmax(timeline.end))])
    even = np.linspace(0, len(ranks) - 1, room).round().astype(int)
    chosen = dict.fromkeys([slowest, *(ranks[position] for position in even.tolist())])
    return sorted(list(chosen)[:room])


def _path_slices(
    timeline: Timeline, path: CriticalPath | None, rows: list[dict[str, Any]]
) -> Iterator[_Slices]:
    if not path:
        return
    rows.append({"label": "critical path", "rank": None, "run": "path", "host": False})
    classes = np.full(len(path), CLASSES.index("gap"))
    for use, drawn_as in _PATH_CLASSES.items():
        classes[path.is_spent_on(use)] = CLASSES.index(drawn_as)
    names = timeline.workload.name[path.op].astype(np.int64)
    yield _Slices(np.zeros(len(path), np.int64), path.start, path.end, classes, names)


def _rank_slices(
    times: RunTimes, rank: int, run: str, rows: list[dict[str, Any]]
) -> Iterator[_Slices]:
    """Yield the lanes of a rank, host threads first."""
    workload = times.workload
    ops = np.flatnonzero(workload.rank == rank)
    lanes = np.unique(workload.lane[ops]).tolist()
    host = {
        lane: bool((workload.what[ops[workload.lane[ops] == lane]] == What.HOST).any())
        for lane in lanes
    }
    for lane in sorted(lanes, key=lambda lane: (not host[lane], lane)):
        row = len(rows)
        label = workload.lanes[lane]
        rows.append({"label": label, "rank": int(rank), "run": run, "host": host[lane]})
        yield _lane_slices(times, ops[workload.lane[ops] == lane], row)


def _lane_slices(times: RunTimes, ops: NDArray[np.intp], row: int) -> _Slices:
    """Return the slices of ops on one lane, in order of their starts."""
    workload = times.workload
    start, end = times.start[ops], times.end[ops]
    kinds = np.array([CLASSES.index(_OF_OPS.get(What(w), "communication")) for w in range(6)])
    kind = kinds[workload.what[ops]]
    call = workload.call[ops]
    in_call = call >= 0
    moves = start.copy()
    moves[in_call] = np.clip(times.call_start[call[in_call]], start[in_call], end[in_call])
    waits = moves > start
    starts = np.concatenate([start[waits], moves])
    ends = np.concatenate([moves[waits], end])
    of = np.concatenate([np.flatnonzero(waits), np.arange(len(ops))])
    waiting = np.arange(len(of)) < np.count_nonzero(waits)
    order = np.argsort(starts, kind="stable")
    order = order[ends[order] > starts[order]]
    of = of[order]
    return _Slices(
        np.full(len(of), row, np.int64),
        starts[order],
        ends[order],
        np.where(waiting[order], CLASSES.index("waiting"), kind[of]),
        workload.name[ops[of]].astype(np.int64),
    )


def _names(
    names: Sequence[str], used: Sequence[NDArray[np.int64]]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the used names, shortened, and the index of each name among them."""
    used_names = np.unique(np.concatenate([*used, np.zeros(0, np.int64)]))
    codes = np.zeros(max(len(names), 1), np.int64)
    codes[used_names] = np.arange(len(used_names))
    half = _LONGEST_NAME // 2
    texts = (names[name] for name in used_names.tolist())
    return [
        text if len(text) <= _LONGEST_NAME else f"{text[: half - 1]}…{text[-half:]}"
        for text in texts
    ], codes


def _table(
    parts: Sequence[_Slices], codes: NDArray[np.int64], names: Sequence[str], tick: float
) -> Columns:
    def joined(field: str, kind: type[Any]) -> NDArray[Any]:
        arrays = [getattr(part, field) for part in parts]
        return np.concatenate([*arrays, np.zeros(0, kind)]).astype(kind)

    start = np.round(joined("start", np.float64) / tick).astype(np.int64)
    end = np.round(joined("end", np.float64) / tick).astype(np.int64)
    return {
        "row": Column(joined("row", np.int64)),
        "start": Column(np.maximum(start, 0), sums=True),
        "length": Column(np.maximum(end - start, 0)),
        "class": Column(joined("kind", np.int64)),
        "name": Column(codes[joined("name", np.int64)], levels=names),
    }


MOST_RANKS_OF_A_MAP = 1024
"""More ranks would be a black rectangle."""


@dataclass(frozen=True, slots=True)
class TierUse:
    """Use of the links of a resource: their number, bytes (B), mean and highest utilisation."""

    resource: str
    links: int
    bytes: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link, the bytes that crossed it (B), its bandwidth (B/s) and utilisation."""

    source: str
    target: str
    resource: str
    bytes: float
    bandwidth: float
    use: float


def utilisation(timeline: Timeline) -> Floats:
    """Return the utilisation of each link during the step, from 0 to 1, shape ``(links,)``.

    It is 0 for a link of unlimited bandwidth.
    """
    room = timeline.topology.bandwidth * timeline.makespan
    return np.divide(
        timeline.link_bytes, room, out=np.zeros(len(room)), where=np.isfinite(room) & (room > 0)
    )


def by_resource(timeline: Timeline) -> list[TierUse]:
    """Return the use of links by resource, in the order of the topology."""
    network, use = timeline.topology, utilisation(timeline)
    rows = []
    for number, name in enumerate(network.resources):
        links = np.flatnonzero(network.resource == number)
        if len(links):
            crossed = float(timeline.link_bytes[links].sum())
            rows.append(
                TierUse(name, len(links), crossed, float(use[links].mean()), use[links].max())
            )
    return rows


def busiest(timeline: Timeline) -> list[LinkUse]:
    """Return the eight links with the highest utilisation, none without traffic."""
    network, use = timeline.topology, utilisation(timeline)
    order = np.argsort(-use, kind="stable")[:8]
    return [
        LinkUse(
            str(link.source),
            str(link.target),
            link.resource,
            float(timeline.link_bytes[number]),
            link.bandwidth,
            float(use[number]),
        )
        for number, link in ((int(at), network.link(int(at))) for at in order)
        if use[number] > 0
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """A network as pages draw it: ``about`` is JSON, ``nodes`` and ``links`` are its tables."""

    about: dict[str, Any]
    nodes: Columns
    links: Columns


def links_drawn(timeline: Timeline) -> Links | None:
    """Prepare the network of a step for a page; None for more than 1,024 ranks.

    Both directions of a cable are one line with the utilisation of the busier one.
    """
    network = timeline.topology
    if network.ranks > MOST_RANKS_OF_A_MAP:
        return None
    from topologies.drawing import figure_node, merged, places  # bring matplotlib, slow to load

    where = places(network)
    graph = merged(network)
    nodes = [node for node in graph if node in where]
    at = {node: position for position, node in enumerate(nodes)}
    drawn = np.array([at[figure_node(node)] for node in network.nodes], np.int64)
    ends = np.sort(np.stack([drawn[network.source], drawn[network.target]], axis=1), axis=1)
    # No line between the two sides of a NIC, which are drawn as one node.
    links = np.flatnonzero(ends[:, 0] != ends[:, 1])
    cables, first, cable = np.unique(ends[links], axis=0, return_index=True, return_inverse=True)
    cable, first = cable.reshape(-1), links[first]
    use, crossed = np.zeros(len(cables)), np.zeros(len(cables))
    np.maximum.at(use, cable, utilisation(timeline)[links])
    np.add.at(crossed, cable, timeline.link_bytes[links])
    about = {
        "name": network.name,
        "resources": list(network.resources),
        "step_s": timeline.makespan,
    }
    return Links(
        about,
        {
            "name": Column([str(node) for node in nodes]),
            "x": Column(np.array([where[node][0] for node in nodes], np.float64)),
            "y": Column(np.array([where[node][1] for node in nodes], np.float64)),
            "kind": Column([_kind(node) for node in nodes]),
        },
        {
            "a": Column(cables[:, 0]),
            "b": Column(cables[:, 1]),
            "resource": Column(network.resource[first].astype(np.int64)),
            "use": Column(use),
            "bytes": Column(crossed, "B"),
            "bandwidth": Column(network.bandwidth[first], "B/s"),
        },
    )


def _kind(node: Node) -> str:
    """Return what a node is drawn as: a rank, a NIC, or a switch."""
    if isinstance(node, int):
        return "rank"
    return "nic" if str(node).startswith("nic:") else "switch"
