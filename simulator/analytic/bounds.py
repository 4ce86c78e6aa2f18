"""Lower bounds on a step in which calls share links, without simulating it.

Under sharing, no rate exceeds that on idle links, and nothing starts before its predecessors end.
So each transfer of a call counts with its time alone, between the longest chain of transfers before
it and the longest chain after it (:func:`least_calls`). That bounds

* the call: it takes at least its longest chain, and the time any of its links is busy;
* each of its links: none of the call's bytes are on it for *before* after the call's start, they
  keep it *busy* for their number over its bandwidth, and *after* of the call remains.

Whatever shares the links, and however fairly, a step takes at least

* its longest path with every call at its least time: a call starts when the last of its members has
  arrived, and all of them continue when it has ended, so a step is a longest path through its calls
  and ops, and grows with each of them;
* the time of any link: it starts no earlier than the longest path to the first of its calls, moves
  bytes at its bandwidth at most, and the longest path from its calls follows
  (:func:`least_of_links`). A step that repeats may begin before the one before it has ended: its
  period is at least the time that a link is busy with the calls of one step.

The period of a step that repeats is the end of the second less that of the first, and so is its
longest path. That is a bound if calls of the first step wait for each other no longer than those of
the second; of 1,500 random jobs three violated it, by at most 0.2 %.

The algorithm of a call does not depend on other calls, and is given. Nothing follows for other
steps: a better network may make a step longer where links are shared (Graham, Bounds on
multiprocessing timing anomalies, 1969), so the bound for each network is computed on that network.
Costs of calls may be anything; neither convexity nor monotony is assumed.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from simulator.analytic.contraction import Contracted
from simulator.analytic.longest_path import Points, makespans, starts
from simulator.calls import Call
from simulator.costing.call_costs import Carried, Costs
from simulator.costing.link_load import Load, cost
from simulator.schedule import Plan
from simulator.support.arrays import (
    Floats,
    Ints,
    Longs,
    entries_of,
    offsets,
    offsets_by_row,
    row_of_entries,
)
from simulator.support.compiled import hot_loop
from simulator.support.heap import Heap, pop, push, room
from simulator.topology import Topology
from simulator.transfers.crowd import Program
from simulator.transfers.lockstep import has_slowest_chain
from simulator.transfers.program import has_transfers, runs_ahead, widest, write
from simulator.workload import Workload

Indices = NDArray[np.integer]

_ROUNDING = 1e-12
"""Relative difference below which times are equal except for rounding."""


class LinkWork(Struct, frozen=True, eq=False):
    """Least work of calls on links; a row for each link and call that uses it.

    Rows ``offset[i]:offset[i + 1]`` are of one link. ``call`` runs for at least ``before`` (s)
    until its first byte can be on the link, its bytes keep the link ``busy`` (s), and ``after`` (s)
    of the call follows the last of them. Links with equal rows are listed once.
    """

    offset: Longs
    call: Ints
    before: Floats
    busy: Floats
    after: Floats


class LeastCalls(Struct, frozen=True, eq=False):
    """Least time of every call of a workload (s), shape ``(calls,)``, and its work on links.

    A call without members takes 0.
    """

    time: Floats
    links: LinkWork


class _Least(NamedTuple):
    """A call's least time (s), and the columns of :class:`LinkWork` for each of its links."""

    time: float
    link: Indices
    before: Floats
    busy: Floats
    after: Floats


def least_calls(workload: Workload, costs: Costs, engine: str) -> LeastCalls:
    """Return the least times of a workload's calls, and their work on links, under an engine."""
    first, row = workload.distinct_calls
    # By the addresses of plan and weights; the call is kept, so that they stay valid. Loads of
    # calls of equivalent groups share their weights, link by link in the same order.
    judged: dict[tuple[int, ...], tuple[Carried, _Least]] = {}
    least = []
    for index in first:
        call = workload.call_view(index)
        carried = costs.carried(call)
        link = np.concatenate([load.link for load in carried.loads])
        key = id(carried.plan), *(id(load.weight) for load in carried.loads)
        if key not in judged:
            of_call = _compute_least(call, carried, costs.topology, engine)
            used, entry = np.unique(link, return_index=True)
            of_call = of_call._replace(link=entry[np.searchsorted(used, of_call.link)])
            judged[key] = carried, of_call
        of_call = judged[key][1]
        least.append(of_call._replace(link=link[of_call.link]))
    time = np.array([*(call.time for call in least), 0.0])[row] * workload.calls.factor
    return LeastCalls(time, _link_work(least, row, workload.calls.factor))


def _compute_least(call: Call, carried: Carried, network: Topology, engine: str) -> _Least:
    plan, loads = carried
    ahead = has_transfers(plan) if engine == "simpy" else runs_ahead(plan, widest(network))
    if plan is None or not plan.schedule.steps or not ahead:
        # The call is a sequence of flows, each on all its links at once.
        time = np.cumsum([0.0, *(load.time for load in loads)])
        parts = []
        for number, load in enumerate(loads):
            begin = time[number] + _first_byte(load)
            busy = load.weight * load.amount / network.bandwidth[load.link]
            after = np.full(len(busy), time[-1] - time[number + 1])
            parts.append((load.link, np.full(len(busy), begin), busy, after))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return _merge_uses(float(time[-1]), *columns)
    where = np.array(call.group.ranks, dtype=np.int32), call.size, network
    least, alone = _least_by_transfers(write(plan, *where), plan, network), cost(loads)
    is_less = least.time < alone * (1 - _ROUNDING)
    return least._replace(time=alone) if is_less and has_slowest_chain(plan, *where) else least


def _first_byte(load: Load) -> float:
    """Return the shortest time until a load's first bytes, by any grouping of its steps (s)."""
    waits = 0.0
    for repeats, latency, amount in load.runs:
        if amount:
            return waits + latency
        waits += repeats * latency
    return load.latency


def _least_by_transfers(written: Program, plan: Plan, network: Topology) -> _Least:
    """Return the least of a call whose ranks run ahead, by its chains of transfers.

    That are the longest of transfers that depend on each other, each alone on its path (s).
    """
    of = row_of_entries(written.offset)
    busy = written.weight * written.amount[of] / network.bandwidth[written.link]
    lasts = np.zeros(len(written.source))
    np.maximum.at(lasts, of, busy)
    lasts += written.latency
    flows = written.flows_of_runs
    repeats = np.repeat(written.repeats, np.diff(flows))
    times = written.repeats.tolist()
    if (written.stride > 1).any():
        # The loop simulates several equal steps at a time, as many as contention allows. So no
        # dependence between ranks is certain across the repetitions of one run.
        lasts, times = lasts * repeats, [1] * len(times)
    runs = [(slice(*ends), count) for ends, count in zip(pairwise(flows), times, strict=True)]
    before, longest = _forward_pass(written, lasts, runs)
    after, _ = _forward_pass(written, lasts, runs[::-1])
    begin = plan.overhead + before + written.latency
    return _merge_uses(
        plan.overhead + longest, written.link, begin[of], busy * repeats[of], after[of]
    )


def _merge_uses(time: float, link: Indices, before: Floats, busy: Floats, after: Floats) -> _Least:
    """Merge uses of each link: the least before, all busy time, and the least after."""
    used = np.flatnonzero(busy)
    links, row = np.unique(link[used], return_inverse=True)
    row = row.ravel()
    first, last = np.full((2, len(links)), np.inf)
    np.minimum.at(first, row, before[used])
    np.minimum.at(last, row, after[used])
    whole = np.bincount(row, busy[used], len(links)).astype(np.float64)
    most = float((first + whole + last).max(initial=time))
    return _Least(most, links, first, whole, last)


def _forward_pass(
    written: Program, lasts: Floats, runs: Sequence[tuple[slice, int]]
) -> tuple[Floats, float]:
    """Return the start of each flow in the first repetition of its run, and the end of all (s).

    A transfer starts when both its ends have ended all that they send and receive before. With runs
    in reverse this gives the chains after it. Once a repetition delays all its ranks equally, every
    further one does so by the same time, since starts are maxima of sums.
    """
    start = np.zeros(len(lasts))
    free = np.zeros(written.ranks)
    for flows, repeats in runs:
        source, target = written.source[flows], written.target[flows]
        ends = np.union1d(source, target)
        start[flows] = np.maximum(free[source], free[target])
        for number in range(repeats):
            end = np.maximum(free[source], free[target]) + lasts[flows]
            later = free.copy()
            np.maximum.at(later, source, end)
            np.maximum.at(later, target, end)
            passed = (later - free)[ends]
            free = later
            if np.ptp(passed) <= _ROUNDING * passed.max():
                free[ends] += passed.min() * (repeats - 1 - number)
                break
    return start, float(free.max(initial=0.0))


def _link_work(least: Sequence[_Least], row: NDArray[np.intp], factor: Floats) -> LinkWork:
    """Return the work of distinct calls by link, equal links once, expanded to all calls."""
    link, before, busy, after = (
        np.concatenate([np.empty(0), *(getattr(call_least, name) for call_least in least)])
        for name in ("link", "before", "busy", "after")
    )
    distinct = np.repeat(np.arange(len(least)), [len(call_least.link) for call_least in least])
    order = np.argsort(link, kind="stable")
    edges = np.flatnonzero(np.diff(link[order], prepend=-1.0, append=-1.0))
    # The rows of a link are next to each other, and so are their bytes.
    row_bytes = np.stack([distinct, before, busy, after], axis=1)[order]
    data, width = row_bytes.tobytes(), row_bytes.strides[0]
    distinct_links: dict[bytes, slice] = {}
    for first, last in pairwise(edges.tolist()):
        distinct_links.setdefault(data[first * width : last * width], slice(first, last))
    rows = np.concatenate([order[:0], *(order[link_rows] for link_rows in distinct_links.values())])
    by_row = np.argsort(row, kind="stable").astype(np.int32)
    begin = np.searchsorted(row[by_row], np.arange(len(least) + 1))
    count = np.diff(begin)[distinct[rows]]
    call = by_row[entries_of(begin, distinct[rows])]
    ends, rows = offsets(count), np.repeat(rows, count)
    times = factor[call]
    offset = ends[offsets(links.stop - links.start for links in distinct_links.values())]
    return LinkWork(offset, call, before[rows] * times, busy[rows] * times, after[rows] * times)


def least_steps(graph: Contracted, points: Points, links: Sequence[LinkWork | None] = ()) -> Floats:
    """Return a lower bound on the step of each scenario (s), shape ``(S,)``.

    Parameters
    ----------
    graph
        The step, contracted.
    points
        The scenarios, with each call at its least time.
    links
        Work of the calls on links in each scenario; None for one in which they share none, as in
        ``analytic``. If empty, calls share links in no scenario.
    """
    if not any(links):
        return makespans(graph, points)
    if graph.repeats:
        period = makespans(graph, points)
        for scenario, work in enumerate(links):
            if work is not None:
                nowhere = np.zeros(len(work.busy))
                busy = structs.replace(work, before=nowhere, after=nowhere)
                period[scenario] = max(period[scenario], least_of_links(busy, nowhere, nowhere))
        return period
    head, tail = starts(graph, points), starts(_reversed(graph), points)[::-1]
    least: Floats = head[-1].copy()
    is_call = np.flatnonzero(graph.call >= 0)
    point = np.zeros(int(graph.call.max(initial=-1)) + 1, dtype=np.int64)
    point[graph.call[is_call]] = is_call
    for scenario, work in enumerate(links):
        if work is not None:
            at = point[work.call if graph.like is None else graph.like[work.call]]
            by_links = least_of_links(work, head[at, scenario], tail[at, scenario])
            least[scenario] = max(least[scenario], by_links)
    return least


def least_of_links(work: LinkWork, head: Floats, tail: Floats) -> float:
    """Return a lower bound on a step from the work of each link (s), the greatest.

    Parameters
    ----------
    work
        Work of calls on links, row by row.
    head, tail
        For the call of each row, shape ``(rows,)``: the least time from the start of the step to
        its start, and from its end to the end of the step (s).

    Returns
    -------
    float
        A call ``i`` keeps a link busy for ``busy[i]``, not before ``head[i] + before[i]`` after the
        start of the step, and ``after[i] + tail[i]`` of the step follows. However the link is
        shared, the step is no shorter than if the link always served, of the calls present, the one
        with the longest tail: the preemptive schedule of one machine (J. R. Jackson, 1955; J.
        Carlier, The one-machine sequencing problem, European Journal of Operational Research 11,
        1982, section 3).

    Examples
    --------
    >>> of_one_link = np.array([0, 2]), np.array([0, 1], dtype=np.int32)
    >>> work = LinkWork(*of_one_link, np.zeros(2), busy=np.array([3.0, 2.0]), after=np.zeros(2))
    >>> least_of_links(work, head=np.array([0.0, 1.0]), tail=np.array([0.0, 4.0]))
    7.0
    """
    release, left = head + work.before, work.after + tail
    of = row_of_entries(work.offset)
    order = np.lexsort((release, of))
    columns = release[order], work.busy[order], left[order]
    return _longest_schedule(work.offset, *columns, np.empty(len(order)), room(len(order)))


@hot_loop
def _longest_schedule(
    offset: Longs, release: Floats, busy: Floats, tail: Floats, left: Floats, heap: Heap
) -> float:
    """Return the longest preemptive schedule of any link; rows of each are sorted by release.

    ``left`` (s) and ``heap`` are scratch, with a slot per row.
    """
    least = 0.0
    for link in range(len(offset) - 1):
        size = 0
        for row in range(offset[link], offset[link + 1]):
            upto = release[row + 1] if row + 1 < offset[link + 1] else np.inf
            now = release[row]  # rows released before have ended, or wait in the heap
            left[row] = busy[row]
            size = push(heap, size, -tail[row], row)
            while size > 0 and now < upto:
                first = heap.item[0]
                if left[first] > upto - now:
                    left[first] -= upto - now
                    now = upto
                else:
                    now += left[first]
                    least = max(least, now + tail[first])
                    size = pop(heap, size)
    return least


def _reversed(graph: Contracted) -> Contracted:
    """Reverse every edge: the start of a call is then the longest path after its end."""
    last = len(graph) - 1
    ends = row_of_entries(graph.offset)
    order = np.argsort(last - graph.source, kind="stable")
    return structs.replace(
        graph,
        call=np.ascontiguousarray(graph.call[::-1]),
        offset=offsets_by_row(last - graph.source, len(graph)),
        source=(last - ends[order]).astype(np.int32),
        weight=np.ascontiguousarray(graph.weight[order]),
    )
