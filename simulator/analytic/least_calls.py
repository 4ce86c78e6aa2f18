"""The least that a call takes, and that it makes of each link, whatever else goes on.

Under sharing no rate is above the one on idle links, and nothing starts before what it waits for
ends: so each transfer of a call counts with its time alone, from the end of the longest chain of
transfers before it, and is followed by the longest chain after it. That bounds

* the call: it is no shorter than the longest chain, nor than what any of its links has to move;
* each of its links: none of the call's bytes are on it *before* so long after the call's start,
  they keep it *busy* for their number over its bandwidth, and so much of the call comes *after*.

Which algorithm carries out the call is not asked here: that does not depend on what else goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Carried, Costs, distinct_calls
from simulator.costing.crowd import Program
from simulator.costing.keeping_step import keeps_chain
from simulator.costing.link_load import Load, cost
from simulator.costing.programs import has_transfers, runs_ahead, write
from simulator.schedule import Plan
from simulator.topology import Topology
from simulator.workload import Call, Floats, Ints, Offsets, Workload

Indices = NDArray[np.integer]

_ROUNDING = 1e-12
"""Times that differ by less than this fraction are the same, but for rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkWork:
    """What calls make of each link, at the least; a row for each call and link it uses.

    Rows ``offset[i]:offset[i + 1]`` are of one link: the ``call`` is under way for ``before`` (s)
    until its first byte can be there, its bytes keep the link ``busy`` (s), and ``after`` (s) of
    the call comes after the last of them. Links of which all that is the same stand once.
    """

    offset: Offsets
    call: Ints
    before: Floats
    busy: Floats
    after: Floats


@dataclass(frozen=True, slots=True, eq=False)
class LeastCalls:
    """Of every call of a workload the least time (s), shape ``(calls,)``, and its work on links.

    A call that nobody takes part in takes 0.
    """

    time: Floats
    links: LinkWork


class _Least(NamedTuple):
    """A call's least time (s), and of each of its links what :class:`LinkWork` has."""

    time: float
    link: Indices
    before: Floats
    busy: Floats
    after: Floats


_Known = dict[tuple[int, ...], tuple[Carried, _Least]]
"""What was judged of calls that lie alike; a call is kept as long as it is known by addresses."""


def least_calls(workload: Workload, costs: Costs, engine: str) -> LeastCalls:
    """Return the least that the calls of a workload take, and make of links, under an engine.

    Parameters
    ----------
    workload
        Whose calls; their factors are multiplied in.
    costs
        How they are carried out, and what that puts on the links.
    engine
        A name of :data:`simulator.engine.simulate.ENGINES`, one under which calls share links.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    first, row = distinct_calls(workload)
    known: _Known = {}
    least = [_of_call(workload.call_view(index), costs, engine, known) for index in first]
    time = np.array([*(one.time for one in least), 0.0])[row] * workload.calls.factor
    return LeastCalls(time, _by_link(least, row, workload.calls.factor))


def _of_call(call: Call, costs: Costs, engine: str, known: _Known) -> _Least:
    """Judge a call, or move what is known of one that lies alike to the links of this one.

    Loads of calls that lie alike share their weights, link by link in the same order
    (:class:`simulator.costing.call_costs.Costs`).
    """
    carried = costs.carried(call)
    link = np.concatenate([load.link for load in carried.loads])
    key = id(carried.plan), *(id(load.weight) for load in carried.loads)
    if key not in known:
        least = _judged(call, carried, costs.topology, engine)
        used, first = np.unique(link, return_index=True)
        known[key] = carried, least._replace(link=first[np.searchsorted(used, least.link)])
    least = known[key][1]
    return least._replace(link=link[least.link])


def _judged(call: Call, carried: Carried, network: Topology, engine: str) -> _Least:
    plan, loads = carried
    ahead = has_transfers if engine == "transfer" else runs_ahead
    if plan is None or not plan.schedule.steps or not ahead(plan):
        return _in_a_row(loads, network)
    positions = np.array(call.group.ranks, dtype=np.int32)
    found, alone = (
        _by_transfers(write(plan, positions, call.size, network), plan, network),
        cost(loads),
    )
    if found.time < alone * (1 - _ROUNDING) and keeps_chain(plan, positions, call.size, network):
        return found._replace(time=alone)
    return found


def _in_a_row(loads: Sequence[Load], network: Topology) -> _Least:
    """Judge a call that is one flow after the other, each on all its links."""
    time = np.cumsum([0.0, *(load.time for load in loads)])
    parts = []
    for number, load in enumerate(loads):
        begin = time[number] + _first_byte(load)
        busy = load.weight * load.amount / network.bandwidth[load.link]
        after = np.full(len(busy), time[-1] - time[number + 1])
        parts.append((load.link, np.full(len(busy), begin), busy, after))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _of_uses(float(time[-1]), *columns)


def _first_byte(load: Load) -> float:
    """How long a load waits for its first bytes, the least of taking its steps one by one (s)."""
    waits = 0.0
    for repeats, latency, amount in load.runs:
        if amount:
            return waits + latency
        waits += repeats * latency
    return load.latency


def _by_transfers(written: Program, plan: Plan, network: Topology) -> _Least:
    """Judge a call whose ranks go their own ways, by the chains of transfers in it."""
    of = np.repeat(np.arange(len(written.source)), np.diff(written.offset))
    busy = written.weight * written.amount[of] / network.bandwidth[written.link]
    lasts = np.zeros(len(written.source))
    np.maximum.at(lasts, of, busy)
    lasts += written.latency
    chains = _Chains.of(written, lasts)
    repeats = np.repeat(written.repeats, np.diff(written.flows_of_runs))
    begin = plan.overhead + chains.before + written.latency
    return _of_uses(
        plan.overhead + chains.longest,
        written.link,
        begin[of],
        busy * repeats[of],
        chains.after[of],
    )


def _of_uses(time: float, link: Indices, before: Floats, busy: Floats, after: Floats) -> _Least:
    """Put what a call does on each link together: the earliest, all, and what is left at last."""
    used = np.flatnonzero(busy)
    links, place = np.unique(link[used], return_inverse=True)
    place = place.ravel()
    first, last = np.full((2, len(links)), np.inf)
    np.minimum.at(first, place, before[used])
    np.minimum.at(last, place, after[used])
    whole = np.bincount(place, busy[used], len(links)).astype(np.float64)
    most = float((first + whole + last).max(initial=time))
    return _Least(most, links, first, whole, last)


class _Chains(NamedTuple):
    """Longest chains of transfers that wait for each other, each alone on its path (s).

    Of every flow, shape ``(flows,)``: what is ``before`` its first repetition, and what comes
    ``after`` its last one; and the ``longest`` of all.
    """

    before: Floats
    after: Floats
    longest: float

    @staticmethod
    def of(written: Program, lasts: Floats) -> "_Chains":
        flows = written.flows_of_runs
        runs = [
            (slice(flows[run], flows[run + 1]), repeats)
            for run, repeats in enumerate(written.repeats.tolist())
        ]
        if (written.stride > 1).any():
            # Like steps are taken several at a time, and how many depends on what the call meets:
            # nothing is passed on then, for certain, between the repetitions of one run.
            lasts = lasts * np.repeat(written.repeats, np.diff(flows))
            runs = [(mine, 1) for mine, _ in runs]
        before, longest = _passed(written, lasts, runs)
        after, _ = _passed(written, lasts, runs[::-1])
        return _Chains(before, after, longest)


def _passed(
    written: Program, lasts: Floats, runs: Sequence[tuple[slice, int]]
) -> tuple[Floats, float]:
    """Start of each flow in the first repetition of its run, and the end of all (s).

    A transfer starts when both its ends have ended all that they send and receive before. Turned
    round, that is what comes after it. Once a repetition makes all its ranks later by the same, so
    does every further one: starts are maxima of sums.
    """
    start = np.zeros(len(lasts))
    free = np.zeros(written.ranks)
    for mine, repeats in runs:
        source, target = written.source[mine], written.target[mine]
        ends = np.union1d(source, target)
        start[mine] = np.maximum(free[source], free[target])
        for number in range(repeats):
            end = np.maximum(free[source], free[target]) + lasts[mine]
            later = free.copy()
            np.maximum.at(later, source, end)
            np.maximum.at(later, target, end)
            passed = (later - free)[ends]
            free = later
            if np.ptp(passed) <= _ROUNDING * passed.max():
                free[ends] += passed.min() * (repeats - 1 - number)
                break
    return start, float(free.max(initial=0.0))


def _by_link(least: Sequence[_Least], row: NDArray[np.intp], factor: Floats) -> LinkWork:
    """Write down link by link what distinct calls do there, like links once, and then all calls."""
    link, before, busy, after = (
        np.concatenate([np.empty(0), *(getattr(one, name) for one in least)])
        for name in ("link", "before", "busy", "after")
    )
    distinct = np.repeat(np.arange(len(least)), [len(one.link) for one in least])
    order = np.argsort(link, kind="stable")
    edges = np.flatnonzero(np.diff(link[order], prepend=-1.0, append=-1.0))
    kept: dict[bytes, NDArray[np.intp]] = {}
    for first, last in pairwise(edges.tolist()):
        mine = order[first:last]
        same = b"".join(column[mine].tobytes() for column in (distinct, before, busy, after))
        kept.setdefault(same, mine)
    rows = np.concatenate([np.empty(0, dtype=np.intp), *kept.values()])
    by_row = np.argsort(row, kind="stable").astype(np.int32)
    begin = np.searchsorted(row[by_row], np.arange(len(least) + 1))
    count = np.diff(begin)[distinct[rows]]
    ends = np.concatenate([[0], np.cumsum(count)])
    place = np.arange(ends[-1]) - np.repeat(ends[:-1] - begin[distinct[rows]], count)
    call, rows = by_row[place], np.repeat(rows, count)
    times = factor[call]
    offset = ends[np.cumsum([0, *(len(mine) for mine in kept.values())])]
    return LinkWork(offset, call, before[rows] * times, busy[rows] * times, after[rows] * times)
