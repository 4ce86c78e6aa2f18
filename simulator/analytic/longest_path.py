"""Step times of many scenarios without contention: a longest-path pass over a contracted graph.

A scenario is a cost for every call and a scale for every part of local time. Scenarios are the
inner loop, so that the graph is read once for a block of them and the compiler can vectorise. The
result equals ``engine="analytic"`` of :func:`simulator.engine.simulate.simulate` for each scenario.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.analytic.contraction import Contracted
from simulator.support.arrays import Floats, Ints, Longs, Matrix
from simulator.support.compiled import hot_loop
from simulator.support.errors import WorkloadError
from simulator.workload import What

_LEAST_BLOCK, _BLOCK, _MOST_ENDS = 8, 128, 2**25
"""Scenarios of one pass: 128, or fewer if their ends at all points would exceed 256 MiB."""


class _Edges(NamedTuple):
    """Edges of a contracted graph."""

    offset: Longs
    source: Ints
    weight: Matrix


class _Calls(NamedTuple):
    """Of every point, the row of its call's cost (-1: no call) and its factor; and the costs."""

    row: Ints
    factor: Floats
    cost: Matrix


class _Scratch(NamedTuple):
    """Ends of all points, and the length of one edge, in each scenario of a block."""

    end: Matrix
    after: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """``S`` scenarios that differ in the costs of calls and in the scales of local time.

    ``cost`` (s) has a row per distinct call, shape ``(distinct, S)``; call ``c`` costs
    ``factor[c]`` times row ``row[c]``. ``scale`` multiplies the durations of a part of local time,
    shape ``(S,)`` each; a part that is missing is as recorded.

    Raises
    ------
    WorkloadError
        If the shapes disagree, or a cost or a scale is not a number of 0 or more.
    """

    cost: Floats
    row: NDArray[np.intp]
    factor: Floats
    scale: Mapping[What, Floats]

    def __post_init__(self) -> None:
        if any(factors.shape != (len(self),) for factors in self.scale.values()):
            raise WorkloadError(f"every scale needs a value for each of {len(self)} scenarios")
        if len(self.row) != len(self.factor):
            raise WorkloadError("calls have as many factors as rows")
        if len(self.row) and not (self.row.min() >= 0 and self.row.max() < len(self.cost)):
            raise WorkloadError(f"a call names a row outside the {len(self.cost)} of the costs")
        scales = [(f"scale of {part.name.lower()}", scale) for part, scale in self.scale.items()]
        for what, values in [("cost", self.cost), *scales]:
            if not (np.isfinite(values) & (values >= 0)).all():
                raise WorkloadError(f"the {what} in a scenario is not a number of 0 or more")

    def __len__(self) -> int:
        return int(self.cost.shape[1])

    def scales(self, parts: tuple[What, ...]) -> Floats:
        """Scale of each part of a contracted graph, shape ``(1 + len(parts), S)``."""
        if missing := [part.name.lower() for part in self.scale if part not in parts]:
            raise WorkloadError(f"contracted without telling apart {', '.join(missing)}")
        ones = np.ones(len(self))
        scale = {**self.scale}
        if What.BUS in parts:  # a copy, too
            scale[What.BUS] = scale.get(What.BUS, ones) * scale.get(What.COPY, ones)
        return np.stack([ones, *(scale.get(part, ones) for part in parts)])


def makespans(graph: Contracted, points: Points) -> Floats:
    """Step time of each scenario (s), shape ``(S,)``: the period of a step that repeats."""
    if graph.repeats:
        before, end = _start_times(graph, points, len(graph) - 2)
        return np.asarray(end - before, dtype=np.float64)
    last: Floats = _start_times(graph, points, len(graph) - 1)[0]
    return last


def starts(graph: Contracted, points: Points) -> Floats:
    """Start of every point of the graph in each scenario (s), shape ``(len(graph), S)``."""
    return _start_times(graph, points, 0)


def _start_times(graph: Contracted, points: Points, first: int) -> Floats:
    """Return the starts of the points from ``first`` on."""
    start = np.empty((len(graph) - first, len(points)))
    if start.size:
        edges, scale = _Edges(graph.offset, graph.source, graph.weight), points.scales(graph.parts)
        if len(points) >= _LEAST_BLOCK and len(graph.source) and (scale == scale[:, :1]).all():
            edges, scale = _longest(edges, scale[:, 0]), scale[:1]
        is_call = graph.call >= 0
        row = np.full(len(graph), -1, dtype=np.int32)
        factor = np.zeros(len(graph))
        row[is_call] = points.row[graph.call[is_call]]
        factor[is_call] = points.factor[graph.call[is_call]]
        calls = _Calls(row, factor, np.ascontiguousarray(points.cost))
        block = min(_BLOCK, len(points), max(_LEAST_BLOCK, _MOST_ENDS // len(graph)))
        scratch = _Scratch(np.empty((len(graph), block)), np.empty(block))
        for begin in range(0, len(points), block):
            _sweep(edges, calls, scale, scratch, start, begin)
    return start


def _longest(edges: _Edges, scale: Floats) -> _Edges:
    """Keep the longest of parallel edges, for scenarios that all have the same scales.

    Its length is the sum of :func:`_edge_lengths`, and a maximum commutes with the rounding of a
    sum: the starts are the same to the last bit.
    """
    offset, source, weight = edges
    length = weight[:, 0].copy()
    for part in range(1, len(scale)):
        length += weight[:, part] * scale[part]
    is_first = np.append(True, source[1:] != source[:-1])  # parallel edges are adjacent
    is_first[offset[:-1][np.diff(offset) > 0]] = True
    first = np.flatnonzero(is_first)
    longest = np.maximum.reduceat(length, first)[:, None]
    return _Edges(np.searchsorted(first, offset), source[first], longest)


@hot_loop(nan_free=True)
def _sweep(
    edges: _Edges, calls: _Calls, scale: Matrix, scratch: _Scratch, start: Matrix, begin: int
) -> None:
    """Fill ``start`` of the last points in a block of scenarios that begins at ``begin``."""
    offset, source, weight = edges
    end, after = scratch
    first = len(offset) - 1 - len(start)  # points before it are computed, but not returned
    width = min(len(after), start.shape[1] - begin)
    for point in range(len(offset) - 1):
        # Points are in topological order, so the ends of all predecessors are known.
        ends = end[point, :width]
        ends[:] = 0.0
        for edge in range(offset[point], offset[point + 1]):
            # The first edge needs no comparison: nothing starts before 0.
            is_first = edge == offset[point]
            latest = ends if is_first else after[:width]
            _follow(end[source[edge], :width], weight[edge], scale, begin, latest)
            if not is_first:
                np.fmax(ends, latest, ends)
        if point >= first:
            for at in range(width):
                start[point - first, begin + at] = ends[at]
        row, factor = calls.row[point], calls.factor[point]
        if row >= 0:
            np.multiply(calls.cost[row, begin : begin + width], factor, after[:width])
            np.add(ends, after[:width], ends)


@hot_loop(nan_free=True)
def _follow(before: Floats, weight: Floats, scale: Matrix, begin: int, after: Floats) -> None:
    """Add an edge to the ends of its source in all scenarios of a block.

    Most edges have at most one scaled part.
    """
    # Column 0 of a weight is the fixed part (s); each other one scales with a number of its own.
    parts, part = 0, 0
    for column in range(1, len(weight)):
        if weight[column] > 0:
            parts, part = parts + 1, column
    if parts == 0:
        np.add(before, weight[0], after)
        return
    if parts == 1:
        np.multiply(scale[part, begin : begin + len(after)], weight[part], after)
        np.add(after, weight[0], after)
    else:
        _edge_lengths(weight, scale, begin, after)
    np.add(before, after, after)


@hot_loop(nan_free=True)
def _edge_lengths(weight: Floats, scale: Matrix, begin: int, after: Floats) -> None:
    """Compute the length of an edge in each scenario of a block."""
    after[:] = weight[0]
    for part in range(1, len(weight)):
        if weight[part] > 0:
            for at in range(len(after)):
                after[at] += weight[part] * scale[part, begin + at]
