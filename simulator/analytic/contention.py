"""Does contention matter to a step: are calls on the same link at the same time.

Read off a timeline of the ``analytic`` engine, in which every call has its links to itself. If no
two calls that share a link overlap there, that is the timeline of ``flow`` and ``fluid``, too: up
to the first overlap nothing is shared, and there is none. If some do, only an engine that shares
links can say what becomes of the step: an estimate of that took longer than the answer, 27 s
against 0.1 s on 49,000 calls of 1,024 ranks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import distinct_calls
from simulator.engine.simulate import Costs
from simulator.hot import hot_loop
from simulator.timeline import Timeline
from simulator.workload import Call, Floats, Offsets

Marks = NDArray[np.bool_]


class _Spans(NamedTuple):
    """Of every call: start and end (s), and which of the distinct calls it is."""

    start: Floats
    end: Floats
    row: Offsets


class _Links(NamedTuple):
    """Distinct call ``d`` is on ``link[offset[d]:offset[d + 1]]``."""

    offset: Offsets
    link: NDArray[np.int32]


def meeting(timeline: Timeline, costs: Costs) -> Marks:
    """Mark the calls that are on a link while another call is.

    Parameters
    ----------
    timeline
        Of the ``analytic`` engine.
    costs
        Those it was made with: which links calls are on.

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
    workload = timeline.workload
    first, row = distinct_calls(workload)
    used = [_links_of(costs, workload.call_view(call)) for call in first]
    offset = np.cumsum([0, *map(len, used)], dtype=np.int64)
    began = np.flatnonzero(~np.isnan(timeline.call_start) & (row >= 0))
    order = began[np.argsort(timeline.call_start[began], kind="stable")]
    found = np.zeros(len(row), dtype=np.bool_)
    _mark(
        order,
        _Spans(timeline.call_start, timeline.call_end, row.astype(np.int64)),
        _Links(offset, np.concatenate([np.empty(0, dtype=np.int32), *used])),
        np.full(len(timeline.topology), -np.inf),
        np.zeros(len(timeline.topology), dtype=np.int64),
        found,
    )
    return found


def _links_of(costs: Costs, call: Call) -> NDArray[np.int32]:
    """All links that a call uses at some time."""
    links = [load.link for load in costs.loads(call)]
    return np.unique(np.concatenate([np.empty(0, dtype=np.int32), *links]))


@hot_loop
def _mark(
    order: Offsets, spans: _Spans, used: _Links, until: Floats, holder: Offsets, found: Marks
) -> None:
    """Mark calls that meet, in the order in which they start.

    ``until`` is when the last call on each link ends, ``holder`` which that is. A call that met
    somebody other than the holder met the holder, too, or was the holder before: it is marked.
    """
    for call in order:
        row = spans.row[call]
        for place in range(used.offset[row], used.offset[row + 1]):
            link = used.link[place]
            if until[link] > spans.start[call] and spans.end[call] > spans.start[call]:
                found[call] = True
                found[holder[link]] = True
            if spans.end[call] > until[link]:
                until[link] = spans.end[call]
                holder[link] = call
