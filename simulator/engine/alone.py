"""Engine ``analytic``: every call has its links to itself, so no clock is needed.

The cost of a call does not depend on other calls. One pass over the ops in topological order gives
all times.

If no two calls that share a link overlap at these times, they are also the times of an engine with
sharing: up to the first overlap nothing is shared, and there is none. Otherwise only the event loop
can compute the step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs
from simulator.costing.link_load import cost
from simulator.engine.simulation import LocalTimes, Simulation
from simulator.support.arrays import Floats, Longs, Mask, offsets
from simulator.support.compiled import hot_loop
from simulator.timeline import Timeline
from simulator.workload import Workload


def time_alone(simulation: Simulation) -> None:
    """Compute the times of all ops and calls, time by resource, and the bytes of every link."""
    workload, topology = simulation.workload, simulation.topology
    first, row = workload.distinct_calls
    joined = row >= 0  # calls with members
    factor = np.where(joined, workload.calls.factor, np.nan)
    factors = np.bincount(row[joined], workload.calls.factor[joined], len(first))
    time = np.zeros(len(first))
    spent = np.zeros((len(first) + 1, simulation.spent.shape[1]))  # last row: calls not made
    simulation.link_bytes = np.zeros(len(topology))
    for number, call in enumerate(first):
        loads = simulation.costs.loads(workload.call_view(call))
        time[number] = cost(loads)
        for load in loads:
            spent[number] += load.spent(topology)
            simulation.link_bytes[load.link] += load.weight * (load.amount * factors[number])
    simulation.spent = spent[row] * workload.calls.factor[:, None]
    simulation.local = LocalTimes.of(workload, cost=np.append(time, np.nan)[row] * factor)
    simulation.local.begin()


class _Spans(NamedTuple):
    """For every call: start and end (s), and the index of its distinct call."""

    start: Floats
    end: Floats
    row: Longs


class _Links(NamedTuple):
    """Distinct call ``d`` uses ``link[offset[d]:offset[d + 1]]``."""

    offset: Longs
    link: NDArray[np.int32]


def meeting(timeline: Timeline, costs: Costs) -> Mask:
    """Mark the calls that use a link while another call does.

    Returns
    -------
    NDArray[np.bool_]
        Shape ``(calls,)``. One that begins when another ends does not meet it.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.engine.simulate import simulate_on
    >>> from simulator.topology import topology
    >>> costs = Costs(topology("alone", 1, []), lambda call, network: None)
    >>> meeting(simulate_on(WorkloadBuilder(job_ranks=1).build(), costs), costs).any()
    np.False_
    """
    return overlaps(timeline.workload, costs, timeline.call_start, timeline.call_end)


def closed_form(simulation: Simulation) -> bool:
    """Time calls alone on their links; return whether no two calls meet, so that this is exact."""
    time_alone(simulation)
    calls = simulation.local.calls
    if overlaps(simulation.workload, simulation.costs, calls.start, calls.end).any():
        return False
    if simulation.progress is not None and len(simulation.workload.calls):
        count = len(simulation.workload.calls)
        simulation.progress(count, count)
    return True


def overlaps(workload: Workload, costs: Costs, start: Floats, end: Floats) -> Mask:
    """Mark calls with these starts and ends (s) that overlap on a link; NaN: call not made."""
    first, row = workload.distinct_calls
    none = np.empty(0, dtype=np.int32)
    loads = [costs.loads(workload.call_view(call)) for call in first]
    used = [np.unique(np.concatenate([none, *(load.link for load in of)])) for of in loads]
    offset, links = offsets(map(len, used)), np.concatenate([none, *used])
    joined = np.flatnonzero(~np.isnan(end) & (row >= 0))
    meets = np.zeros(len(row), dtype=np.bool_)
    _mark_overlaps(
        joined[np.argsort(start[joined], kind="stable")],
        _Spans(start, end, row.astype(np.int64)),
        _Links(offset, links),
        np.full(len(costs.topology), -np.inf),
        np.zeros(len(costs.topology), dtype=np.int64),
        meets,
    )
    return meets


@hot_loop
def _mark_overlaps(
    order: Longs, spans: _Spans, used: _Links, until: Floats, holder: Longs, meets: Mask
) -> None:
    """Mark calls that overlap on a link, in the order of their starts.

    ``until`` is the latest end of a call on each link so far, ``holder`` that call. An earlier call
    other than the holder that a call overlaps has overlapped the holder, and been marked.
    """
    for call in order:
        row = spans.row[call]
        for index in range(used.offset[row], used.offset[row + 1]):
            link = used.link[index]
            if until[link] > spans.start[call] and spans.end[call] > spans.start[call]:
                meets[call] = True
                meets[holder[link]] = True
            if spans.end[call] > until[link]:
                until[link] = spans.end[call]
                holder[link] = call
