"""Bounds on the step of a what-if, for every engine, from the baseline's critical path alone.

The step is no shorter than any way through the graph. A way that was the longest in the baseline is
still there when calls cost something else or the ranks are faster, so the step is never shorter
than *its* length then, with each of its calls at the least that it can take (:func:`least_times`).
That holds whatever the change does to a call's cost: the library may choose another algorithm, and
it need be neither convex nor monotone. It holds with contention, too, which only adds to a call.
Only the costs of the calls on the way are needed, no pass.

Where calls share links, these bound the step as well (:func:`least_of_link`): a link moves no more
than its bandwidth, not before the first of its calls can start, and what follows them comes after.

For algorithms that stay as they are, and without contention, this is the tangent of step time over
1/bandwidth (a maximum of lines) at the baseline, or above it where a call's own bottleneck moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from simulator.analytic.contraction import Contracted
from simulator.analytic.longest_path import Points, starts
from simulator.costing.call_costs import Costs, distinct_calls
from simulator.costing.crowd import Program
from simulator.costing.keeping_step import keeps_chain
from simulator.costing.link_load import cost
from simulator.costing.programs import has_transfers, runs_ahead, write
from simulator.topology import Topology
from simulator.workload import Call, Floats, Ints, Workload


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


def least_step(ways: Sequence[Way], graph: Contracted, points: Points) -> Floats:
    """Lower bound on the step of each scenario (s): the longest of some ways there."""
    least: Floats = np.max([way.length(graph, points) for way in ways], axis=0)
    return least


class LinkWork(NamedTuple):
    """How long each of some calls keeps a link busy (s), shape ``(calls,)`` each."""

    calls: Ints
    busy: Floats


_LINKS = 8
"""Links whose work is looked at, the busiest: any of them gives a bound, and few give the best."""


def busiest_links(workload: Workload, costs: Costs) -> list[LinkWork]:
    """Return what the calls of a workload put on the links that are busy longest in all."""
    first, row = distinct_calls(workload)
    bandwidth = costs.topology.bandwidth
    own: list[tuple[Ints, Floats]] = []
    joined = np.flatnonzero(row >= 0)
    often = np.bincount(row[joined], workload.calls.factor[joined], len(first))
    total = np.zeros(len(bandwidth))
    for index, times in zip(first, often.tolist(), strict=True):
        busy = np.zeros(len(bandwidth))
        for load in costs.loads(workload.call_view(index)):
            busy[load.link] += load.weight * load.amount / bandwidth[load.link]
        used = np.flatnonzero(busy).astype(np.int32)
        own.append((used, busy[used]))
        total += busy * times
    busiest = np.argsort(-total, kind="stable")[:_LINKS]
    alone = np.zeros((len(busiest), len(first) + 1))
    for number, (used, busy) in enumerate(own):
        at, where = np.nonzero(busiest[:, None] == used)
        alone[at, number] = busy[where]
    rows = alone[:, row] * workload.calls.factor
    return [LinkWork(np.flatnonzero(busy).astype(np.int32), busy[busy > 0]) for busy in rows]


def least_of_links(graph: Contracted, points: Points, works: list[LinkWork]) -> float:
    """Lower bound on the step of one scenario in which calls share links (s).

    ``points`` is that scenario, each call at the least that it can take.
    """
    point = np.zeros(int(graph.call.max(initial=-1)) + 1, dtype=np.int64)
    is_call = np.flatnonzero(graph.call >= 0)
    point[graph.call[is_call]] = is_call
    head = starts(graph, points)[:, 0]
    tail = starts(_reversed(graph), points)[::-1, 0]
    return max(
        (least_of_link(head[at], work.busy, tail[at]) for work in works for at in [point[work[0]]]),
        default=0.0,
    )


def least_of_link(head: Floats, busy: Floats, tail: Floats) -> float:
    """Lower bound on a step from one link (s): the preemptive schedule of one machine.

    Call ``i`` keeps the link busy for ``busy[i]``, not before ``head[i]`` after the step's start,
    and ``tail[i]`` of the step comes after its end. However the link is shared, the step is no
    shorter than if it always served, of the calls that are there, the one with the longest tail
    (Jackson's preemptive schedule: Carlier, The one-machine sequencing problem, 1982, section 3).

    Examples
    --------
    >>> least_of_link(np.array([0.0, 1.0]), np.array([3.0, 2.0]), np.array([0.0, 4.0]))
    7.0
    """
    waiting: list[tuple[float, float]] = []
    now, least = 0.0, 0.0
    order = np.argsort(head, kind="stable")
    arrivals = [*head[order].tolist(), np.inf]
    for number, call in enumerate(order.tolist()):
        now = max(now, arrivals[number])
        heappush(waiting, (-float(tail[call]), float(busy[call])))
        while waiting and now < arrivals[number + 1]:
            after, left = heappop(waiting)
            served = min(left, arrivals[number + 1] - now)
            now += served
            if served < left:
                heappush(waiting, (after, left - served))
            else:
                least = max(least, now - after)
    return least


def _reversed(graph: Contracted) -> Contracted:
    """Turn every edge round: the start of a call is then what comes after its end."""
    last = len(graph) - 1
    ends = np.repeat(np.arange(len(graph)), np.diff(graph.offset))
    order = np.argsort(last - graph.source, kind="stable")
    offset = np.zeros(len(graph) + 1, dtype=np.int64)
    np.cumsum(np.bincount(last - graph.source, minlength=len(graph)), out=offset[1:])
    return replace(
        graph,
        call=np.ascontiguousarray(graph.call[::-1]),
        offset=offset,
        source=(last - ends[order]).astype(np.int32),
        weight=np.ascontiguousarray(graph.weight[order]),
    )


def least_times(workload: Workload, costs: Costs, engine: str) -> Floats:
    """Return the least that each call can take under an engine, whatever it shares links with (s).

    A call that is one flow, or a row of them, cannot be faster than on an idle network: its rate is
    at most the one it has alone, and so is that of ``analytic``, by definition. Where its ranks go
    their own ways it might be, since who is held up elsewhere is out of the way here: there it is
    the longest chain of transfers that wait for each other, each alone on its path, or the bytes of
    the call on a link over the link's bandwidth.

    Parameters
    ----------
    workload
        Whose calls; their factors are multiplied in.
    costs
        What they put on the links.
    engine
        A name of :data:`simulator.engine.simulate.ENGINES`, or ``auto``, which is one of those.

    Returns
    -------
    Floats
        Shape ``(calls,)``; 0 for a call that nobody takes part in.
    """
    if engine == "analytic":
        return np.asarray(costs.idle_times(workload) * workload.calls.factor)
    first, row = distinct_calls(workload)
    calls = [workload.call_view(index) for index in first]
    ahead = has_transfers if engine == "transfer" else runs_ahead
    least = [_least(call, costs, ahead(costs.carried(call).plan)) for call in calls]
    return np.array([*least, 0.0])[row] * workload.calls.factor


def _least(call: Call, costs: Costs, ahead: bool) -> float:  # noqa: FBT001 - one of two cases
    plan, loads = costs.carried(call)
    if plan is None or not ahead:
        return cost(loads)
    positions, network = np.array(call.group.ranks, dtype=np.int32), costs.topology
    if keeps_chain(plan, positions, call.size, network):
        return cost(loads)
    written = write(plan, positions, call.size, network)
    return plan.overhead + max(_longest_chain(written, network), _busiest_link(written, network))


def _longest_chain(written: Program, network: Topology) -> float:
    """Time of the longest chain of transfers that wait for each other, each alone (s).

    A transfer starts when both its ends have ended all that they send and receive before.
    """
    of = np.repeat(np.arange(len(written.source)), np.diff(written.offset))
    slowest = np.zeros(len(written.source))
    np.maximum.at(slowest, of, written.weight / network.bandwidth[written.link])
    lasts = written.latency + written.amount * slowest
    free = np.zeros(written.ranks)
    flows = written.flows_of_runs
    for run, repeats in enumerate(written.repeats.tolist()):
        mine = slice(flows[run], flows[run + 1])
        source, target = written.source[mine], written.target[mine]
        for _ in range(repeats):
            end = np.maximum(free[source], free[target]) + lasts[mine]
            after = free.copy()
            np.maximum.at(after, source, end)
            np.maximum.at(after, target, end)
            free = after
    return float(free.max(initial=0.0))


def _busiest_link(written: Program, network: Topology) -> float:
    """Bytes on a link over its bandwidth, the most of any (s)."""
    return float((written.bytes_on_links(len(network)) / network.bandwidth).max(initial=0.0))
