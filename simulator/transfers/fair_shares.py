"""The arrays of :mod:`simulator.transfers.crowd`, and max-min fair shares of its transfers.

Calls, transfers, ranks and links have one record each. Lists are linked through the records or
stored beside them, so that the loops here and in :mod:`simulator.transfers.loop` allocate nothing.

Rates are recomputed only where something changed: they equal those of
:func:`simulator.engine.simpy_model.max_min_rates`, and the cost of an event follows the number of
flows whose rate changes.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from simulator.support.arrays import Floats, Longs, Matrix, records
from simulator.support.compiled import hot_loop

IDLE, WAITS, MOVES = 0, 1, 2
"""State of a flow: not under way, waiting for its latency to pass, moving bytes."""


FLOW = records(
    "call source target first last doing held_by place mark fixed holds",
    "latency amount wakes remaining rate since end share",
)
"""A transfer: its ranks, its links and its progress.

Its links are the uses ``first`` to ``last``. ``latency`` (s) and ``amount`` (B) are those of one
step. ``place`` is its index among the active flows. In the latest update of rates, ``mark`` says
whether it was included, ``fixed`` in which round its rate was set; ``share`` is that rate (B/s) and
``holds`` the link that limits it.
"""
USE = records("flow link after before", "weight")
"""One link of a flow: the flow puts ``weight`` times its rate on it.

``after`` and ``before`` link the uses of one link by flows that move bytes.
"""
WIRE = records("resource head mark free found full dirty is_dirty", "bandwidth left demand")
"""A link: ``head`` is the first use by a flow that moves bytes; other fields are scratch.

``found``, ``full`` and ``dirty`` are lists of links whose i-th entry is stored in record i.
"""
RANK = records("call local run segment pending")
"""A rank of a call: its run, the segment of the run, and how many transfers it waits for."""
CALL = records(
    "first_rank last_rank first_run last_run first_flow last_flow transfers left owner next",
    "factor",
)
"""A call: its ranks, runs and flows, and how many transfers are left.

``factor`` multiplies latencies and amounts. ``owner`` and ``next`` belong to
:mod:`simulator.engine.event_loop`, which keeps calls in lists.
"""
RUN = records("row repeats stride segments")
"""A run of equal steps: rank ``r`` takes part in the flows of row ``row + r``.

The ``repeats`` steps are simulated ``stride`` at a time, in ``segments``.
"""
ROW = records("first last")
"""Entries of a row, each a flow."""


class Book(NamedTuple):
    """Clock and lists: ``clock`` holds the present time and that of the next event (s).

    ``coming[i]`` is the next event of flow ``active[i]`` (s), ``soonest[b]`` the minimum over block
    ``b`` of these. ``stale`` lists the blocks whose minimum may have changed, ``is_stale`` marks
    them: finding the next event costs the changed blocks, and one look per block.

    ``tally`` counts active flows, dirty links, calls that have ended, marks so far, stale blocks,
    and flows in the present update of rates.
    """

    clock: Floats
    tally: Longs
    active: Longs
    coming: Floats
    soonest: Floats
    stale: Longs
    is_stale: Longs
    due: Longs
    over: Longs
    before: Floats


ACTIVE, DIRTY, OVER, STAMP, STALE, SHARED = 0, 1, 2, 3, 4, 5
TALLIES = 6
BLOCK = 64
"""Flows whose next event is kept as one minimum."""


class State(NamedTuple):
    """All records and lists.

    ``latency_of`` splits the latency of a step by resource, software last, shape
    ``(flows, resources + 1)``; ``spent`` does so for the time from the start of the call to the end
    of the flow (s), and ``call_spent`` for calls that have ended.
    """

    flows: Annotated[Any, FLOW]
    uses: Annotated[Any, USE]
    wires: Annotated[Any, WIRE]
    ranks: Annotated[Any, RANK]
    calls: Annotated[Any, CALL]
    runs: Annotated[Any, RUN]
    rows: Annotated[Any, ROW]
    entries: Longs
    latency_of: Matrix
    spent: Matrix
    call_spent: Matrix
    book: Book


_SAME = 1e-12
"""Links whose levels differ by less than this fraction saturate together."""
_ROUNDS = 6
"""Rounds of including single flows before all that are connected by links are included."""
_FAIR = 1e-11
"""Relative tolerance of comparisons of rates and of full links."""


@hot_loop
def update_rates(s: State) -> None:
    """Recompute rates by progressive filling, for as few flows as the change allows.

    Included first are flows that are new, or limited by a link that flows joined or left; all other
    flows keep their rates. Rates are max-min fair if every flow has a full link on which no flow is
    faster (Bertsekas and Gallager, *Data Networks*, section 6.5.2). Flows that violate this are
    included in the next round; after some rounds, all that are connected by links.
    """
    tally = s.book.tally
    tally[STAMP] += 1
    stamp = tally[STAMP]
    links = _start_share(s, stamp)
    for turn in range(_ROUNDS):
        alone = _fill_links(s, links, stamp)
        if alone:
            break
        more = _include_unfair(s, links, stamp)
        if more == 0:
            break
        links = more
        if turn + 2 == _ROUNDS:
            links = _include_component(s, links, stamp)
    _apply_rates(s, links)


@hot_loop
def _start_share(s: State, stamp: int) -> int:
    """Include new flows and those limited by dirty links; return the number of links included."""
    flows, uses, wires, tally = s.flows, s.uses, s.wires, s.book.tally
    dirty = tally[DIRTY]
    # ``dirty`` and ``found`` are lists stored in the records of links: record i has entry i.
    for number in range(dirty):
        link = wires[number].dirty
        wires[link].is_dirty = 0
        wires[link].mark = stamp
        wires[number].found = link
    tally[DIRTY] = tally[SHARED] = 0
    links = int(dirty)
    for number in range(dirty):
        link = wires[number].found
        use = wires[link].head
        while use >= 0:
            flow = uses[use].flow
            if flows[flow].mark != stamp and (
                flows[flow].held_by == link or flows[flow].held_by < 0
            ):
                links = _include(s, flow, links, stamp)
            use = uses[use].after
    return links


@hot_loop
def _include(s: State, flow: int, links: int, stamp: int) -> int:
    """Include a flow and its links; return the number of links included then."""
    flows, uses, wires = s.flows, s.uses, s.wires
    flows[flow].mark = stamp
    s.book.tally[SHARED] += 1
    for use in range(flows[flow].first, flows[flow].last):
        link = uses[use].link
        if wires[link].mark != stamp:
            wires[link].mark = stamp
            wires[links].found = link
            links += 1
    return links


@hot_loop
def _fill_links(s: State, links: int, stamp: int) -> bool:
    """Fill the links with the included flows; return whether no other flow is on them."""
    flows, uses, wires, tally = s.flows, s.uses, s.wires, s.book.tally
    alone = _subtract_other_flows(s, links, stamp)
    # The new stamp marks flows with a rate in this round; ``stamp`` still marks those included.
    tally[STAMP] += 1
    unfixed = tally[SHARED]
    while unfixed > 0:
        lowest, full = _next_saturated(s, links)
        for number in range(full):
            use = wires[wires[number].full].head
            while use >= 0:
                flow = uses[use].flow
                if flows[flow].mark == stamp and flows[flow].fixed != tally[STAMP]:
                    flows[flow].fixed = tally[STAMP]
                    unfixed -= 1
                    _fix_rate(s, flow, lowest, wires[number].full)
                use = uses[use].after
    return alone


@hot_loop
def _subtract_other_flows(s: State, links: int, stamp: int) -> bool:
    """Subtract the rates of flows that are not included; return whether there are none."""
    flows, uses, wires = s.flows, s.uses, s.wires
    alone = True
    for number in range(links):
        link = wires[number].found
        left, demand, free = wires[link].bandwidth, 0.0, 0
        use = wires[link].head
        while use >= 0:
            flow = uses[use].flow
            # Demand sums bytes on the link per byte of a flow: times a common rate it is B/s.
            if flows[flow].mark == stamp:
                demand += uses[use].weight
                free += 1
            else:
                left -= uses[use].weight * flows[flow].rate
                alone = False
            use = uses[use].after
        wires[link].left, wires[link].demand, wires[link].free = left, demand, free
    return alone


@hot_loop
def _next_saturated(s: State, links: int) -> tuple[float, int]:
    """List the links that saturate first as all rates grow; return that rate and their number."""
    wires = s.wires
    # The rest may be below zero by rounding.
    lowest = np.inf
    for number in range(links):
        link = wires[number].found
        if wires[link].free > 0:
            lowest = min(lowest, max(wires[link].left, 0.0) / wires[link].demand)
    full = 0
    for number in range(links):
        link = wires[number].found
        if wires[link].free > 0:
            level = max(wires[link].left, 0.0) / wires[link].demand
            if level <= lowest * (1 + _SAME):
                wires[full].full = link
                full += 1
    return lowest, full


@hot_loop
def _fix_rate(s: State, flow: int, rate: float, link: int) -> None:
    """Set the rate that a flow gets, and subtract it from its links."""
    flows, uses, wires = s.flows, s.uses, s.wires
    flows[flow].share, flows[flow].holds = rate, link
    for use in range(flows[flow].first, flows[flow].last):
        on = uses[use].link
        wires[on].left -= uses[use].weight * rate
        wires[on].demand -= uses[use].weight
        wires[on].free -= 1


@hot_loop
def _include_unfair(s: State, links: int, stamp: int) -> int:
    """Include flows without a full link on which none is faster; return the links, 0 if none."""
    uses, wires, fill = s.uses, s.wires, s.book.tally[STAMP]
    before, many = int(s.book.tally[SHARED]), int(links)
    for number in range(links):
        link = wires[number].found
        level, top, used = _link_state(s, link, fill)
        # A flow that is not included has too much if it is faster than the link now allows, and too
        # little if the link that limits it is no longer full or has faster flows.
        is_full = used >= wires[link].bandwidth * (1 - _FAIR)
        use = wires[link].head
        while use >= 0:
            flow = uses[use].flow
            if s.flows[flow].mark != stamp:
                rate = s.flows[flow].rate
                held = s.flows[flow].held_by == link
                if rate > level * (1 + _FAIR) or (
                    held and not (is_full and top <= rate * (1 + _FAIR))
                ):
                    many = _include(s, flow, many, stamp)
            use = uses[use].after
    return many if int(s.book.tally[SHARED]) > before else 0


@hot_loop
def _link_state(s: State, link: int, fill: int) -> tuple[float, float, float]:
    """Return the rate at which a link limits flows, the highest new rate, and the sum of rates."""
    flows, uses = s.flows, s.uses
    # The list of a link holds uses: a flow with its weight, the share of its rate on this link.
    level, top, used = np.inf, 0.0, 0.0
    use = s.wires[link].head
    while use >= 0:
        flow = uses[use].flow
        rate = flows[flow].rate
        if flows[flow].fixed == fill:
            rate = flows[flow].share
            top = max(top, rate)
            if flows[flow].holds == link:
                level = min(level, rate)
        used += uses[use].weight * rate
        use = uses[use].after
    return level, top, used


@hot_loop
def _include_component(s: State, links: int, stamp: int) -> int:
    """Include all flows connected by links; return the number of links included then."""
    uses, wires = s.uses, s.wires
    # The list of links is the queue of a breadth-first search: including a flow adds its links.
    seen = 0
    while seen < links:
        use = wires[wires[seen].found].head
        while use >= 0:
            if s.flows[uses[use].flow].mark != stamp:
                links = _include(s, uses[use].flow, links, stamp)
            use = uses[use].after
        seen += 1
    return links


@hot_loop
def _apply_rates(s: State, links: int) -> None:
    """Apply the new rates to the included flows."""
    flows, uses, wires, fill = s.flows, s.uses, s.wires, s.book.tally[STAMP]
    for number in range(links):
        use = wires[wires[number].found].head
        while use >= 0:
            flow = uses[use].flow
            # A flow is found on each of its links; its rate is set at the first.
            if flows[flow].fixed == fill:
                flows[flow].fixed = 0
                _set_rate(s, flow, flows[flow].share, flows[flow].holds)
            use = uses[use].after


@hot_loop
def _set_rate(s: State, flow: int, rate: float, link: int) -> None:
    """Set a flow's rate; an unchanged rate keeps its end to the last bit."""
    flows = s.flows
    if rate == flows[flow].rate and link == flows[flow].held_by:
        return
    account(s, flow)
    flows[flow].held_by = link
    if rate != flows[flow].rate:
        flows[flow].rate = rate
        flows[flow].end = s.book.clock[0] + flows[flow].remaining / rate
        set_next_event(s, flows[flow].place, flows[flow].end)


@hot_loop
def account(s: State, flow: int) -> None:
    """Subtract the bytes moved since the last change, and attribute the time to a resource."""
    flows, now = s.flows, s.book.clock[0]
    passed = now - flows[flow].since
    flows[flow].since = now
    if flows[flow].rate > 0:
        flows[flow].remaining = max(0.0, flows[flow].remaining - flows[flow].rate * passed)
        s.spent[flow, s.wires[flows[flow].held_by].resource] += passed


@hot_loop
def set_next_event(s: State, place: int, coming: float) -> None:
    """Set the time of an active flow's next event (s)."""
    book, block = s.book, place // BLOCK
    book.coming[place] = coming
    if not book.is_stale[block]:
        book.is_stale[block] = 1
        book.stale[book.tally[STALE]] = block
        book.tally[STALE] += 1
