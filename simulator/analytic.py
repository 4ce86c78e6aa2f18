"""The step of many scenarios at once, without contention: one pass over a contracted graph.

A scenario is what calls cost in it and how long each part of local time is. Scenarios are the
inner loop, so that the graph is read once for a block of them and the compiled loop adds several at
a time. It answers what ``engine="analytic"`` of :func:`simulator.engine.simulate` does, one
scenario after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.contract import Contracted
from simulator.errors import WorkloadError
from simulator.workload import Floats, Ints, What

_LEAST, _BLOCK, _ENDS = 8, 128, 2**25
"""Scenarios of one pass: 128, or fewer where their ends at all points would take over 256 MiB."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Scenarios, ``S`` of them, that differ in what calls cost and how fast the ranks are.

    ``cost`` (s) has a row per distinct call, shape ``(distinct, S)``; call ``c`` costs
    ``factor[c]`` times row ``row[c]``. ``scale`` says how long a part of local time is, 1 being as
    recorded: shape ``(S,)`` each; a part that is not there is as recorded.

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
        if any(one.shape != (len(self),) for one in self.scale.values()):
            raise WorkloadError(f"every scale needs a value for each of {len(self)} scenarios")
        if len(self.row) != len(self.factor):
            raise WorkloadError("calls have as many factors as rows")
        scales = [(f"scale of {part.name.lower()}", one) for part, one in self.scale.items()]
        for what, values in [("cost", self.cost), *scales]:
            if not (np.isfinite(values) & (values >= 0)).all():
                raise WorkloadError(f"the {what} in a scenario is not a number of 0 or more")

    def __len__(self) -> int:
        return int(self.cost.shape[1])

    def scales(self, parts: tuple[What, ...]) -> Floats:
        """Scale of each part of a contracted graph, shape ``(1 + len(parts), S)``.

        Raises
        ------
        WorkloadError
            If a part is scaled that the graph does not tell apart.
        """
        if missing := [part.name.lower() for part in self.scale if part not in parts]:
            raise WorkloadError(f"contracted without telling apart {', '.join(missing)}")
        ones = np.ones(len(self))
        return np.stack([ones, *(self.scale.get(part, ones) for part in parts)])


def makespans(graph: Contracted, points: Points) -> Floats:
    """Step time of each scenario (s), shape ``(S,)``."""
    last: Floats = _swept(graph, points, len(graph) - 1)[0]
    return last


def starts(graph: Contracted, points: Points) -> Floats:
    """Start of every point of the graph in each scenario (s), shape ``(len(graph), S)``."""
    return _swept(graph, points, 0)


def _swept(graph: Contracted, points: Points, first: int) -> Floats:
    """Return the starts of the points from ``first`` on."""
    start = np.empty((len(graph) - first, len(points)))
    if start.size:
        row, factor = _of_points(graph, points)
        edges = graph.offset, graph.source, graph.weight
        calls = row, factor, np.ascontiguousarray(points.cost)
        block = min(_BLOCK, max(_LEAST, _ENDS // len(graph)))
        _sweep(edges, calls, points.scales(graph.parts), start, block)
    return start


def _of_points(graph: Contracted, points: Points) -> tuple[Ints, Floats]:
    """Row of the costs (-1: no call) and factor of every point."""
    is_call = graph.call >= 0
    row = np.full(len(graph), -1, dtype=np.int32)
    factor = np.zeros(len(graph))
    row[is_call] = points.row[graph.call[is_call]]
    factor[is_call] = points.factor[graph.call[is_call]]
    return row, factor


@njit(cache=True, fastmath={"nnan", "nsz"})
def _sweep(edges, calls, scale, start, block):  # type: ignore[no-untyped-def]
    """Fill ``start`` of the last points; ``nnan`` and ``nsz`` let a maximum be one instruction."""
    offset, source, weight = edges
    row, factor, cost = calls
    points, scenarios = len(offset) - 1, start.shape[1]
    first = points - len(start)
    end = np.zeros((points, block))
    for begin in range(0, scenarios, block):
        width = min(block, scenarios - begin)
        local = np.ascontiguousarray(scale[:, begin : begin + width])
        after = np.empty(width)
        for point in range(points):
            mine = end[point, :width]
            mine[:] = 0.0
            for edge in range(offset[point], offset[point + 1]):
                _length(weight[edge], local, after)
                before = end[source[edge]]
                for at in range(width):
                    mine[at] = max(mine[at], before[at] + after[at])
            if point >= first:
                start[point - first, begin : begin + width] = mine
            if row[point] >= 0:
                lasting = cost[row[point], begin : begin + width]
                for at in range(width):
                    mine[at] += factor[point] * lasting[at]


@njit(cache=True, fastmath={"nnan", "nsz"})
def _length(weight, local, after):  # type: ignore[no-untyped-def]
    """Length of an edge in each scenario of a block; most have a part or two that are not 0."""
    after[:] = weight[0]
    for part in range(1, len(weight)):
        if weight[part] > 0:
            for at in range(len(after)):
                after[at] += weight[part] * local[part, at]
