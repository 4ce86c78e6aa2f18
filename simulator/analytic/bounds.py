"""Bounds on the step of a what-if, certified without contention, from the baseline's pass alone.

The step is the longest of all ways through the graph. The way that was the longest in the baseline
is still there when calls cost something else or the ranks are faster, so the step is never shorter
than *its* length then. That holds whatever the change does to a call's cost: the library may
choose another algorithm, and it need be neither convex nor monotone. Only the costs of the calls on
the way are needed, no pass.

For algorithms that stay as they are this is the tangent of step time over 1/bandwidth (a maximum of
lines) at the baseline, or above it where a call's own bottleneck moves.
"""

from dataclasses import dataclass

import numpy as np

from simulator.analytic.contraction import Contracted
from simulator.analytic.longest_path import Points, starts
from simulator.workload import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way through a contracted step, from its start to its end.

    ``weight`` is its local time by part (s), shape ``(1 + len(parts),)`` as the graph's edges
    have it; ``calls`` are those it passes through, in order of time.
    """

    weight: Floats
    calls: Ints

    def length(self, graph: Contracted, points: Points) -> Floats:
        """How long it is in each scenario (s): none of their steps is shorter."""
        cost = points.factor[self.calls, None] * points.cost[points.row[self.calls]]
        length: Floats = self.weight @ points.scales(graph.parts) + cost.sum(axis=0)
        return length


def longest_ways(graph: Contracted, points: Points) -> list[Way]:
    """Return the longest way of each scenario: what its critical path is contracted to."""
    start = starts(graph, points)
    return [_backwards(graph, points, start, scenario) for scenario in range(len(points))]


def _backwards(graph: Contracted, points: Points, start: Floats, scenario: int) -> Way:
    """Go back from the end by what every point waited for longest."""
    scale = points.scales(graph.parts)[:, scenario]
    is_call = graph.call >= 0
    calls_of = graph.call[is_call]
    lasting = np.zeros(len(graph))
    lasting[is_call] = points.factor[calls_of] * points.cost[points.row[calls_of], scenario]
    weight = np.zeros(graph.weight.shape[1])
    calls = []
    point = len(graph) - 1
    while graph.offset[point] < graph.offset[point + 1]:
        edges = slice(graph.offset[point], graph.offset[point + 1])
        source = graph.source[edges]
        arrival = start[source, scenario] + lasting[source]
        last = int(np.argmax(arrival + graph.weight[edges] @ scale))
        weight += graph.weight[edges][last]
        point = int(source[last])
        if graph.call[point] >= 0:
            calls.append(int(graph.call[point]))
    return Way(weight, np.array(calls[::-1], dtype=np.int32))


def least_step(ways: list[Way], graph: Contracted, points: Points) -> Floats:
    """Lower bound on the step of each scenario (s): the longest of some ways there."""
    least: Floats = np.max([way.length(graph, points) for way in ways], axis=0)
    return least
