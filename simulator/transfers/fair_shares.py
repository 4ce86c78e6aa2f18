"""The arrays of :mod:`simulator.transfers.crowd`, and max-min fair shares of its transfers.

Of calls, their transfers, ranks and links there is one record each; lists are chained through
records or stand beside them, so that the loops here and in :mod:`simulator.transfers.loop` allocate
nothing.

Shares are found again where something changed. The rates are those of
:func:`simulator.engine.simpy_model.max_min_rates`; what an event costs follows from how many they
change for.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np

from simulator.support.arrays import Floats, Longs, Matrix, records
from simulator.support.compiled import hot_loop

IDLE, WAITS, MOVES = 0, 1, 2
"""What a flow does: nothing, wait for its latency to pass, move bytes."""


FLOW = records(
    "call source target first last doing held_by place mark fixed holds",
    "latency amount wakes remaining rate since end share",
)
"""A transfer: between which ranks, on which links, and how far it is.

It is on the uses ``first`` to ``last``. ``latency`` (s) and ``amount`` (B) are those of one step.
``place`` is where it stands among the active. Of the last share, ``mark`` tells whether it was
shared anew and ``fixed`` in which turn; ``share`` and ``holds`` are the rate that it is to have
(B/s) and the link that holds it to that.
"""
USE = records("flow link after before", "weight")
"""A link of a flow: ``weight`` of its rate is what it puts on the link.

``after`` and ``before`` join those of the flows that move on one link.
"""
WIRE = records("resource head mark free found full dirty is_dirty", "bandwidth left demand")
"""A link: ``head`` is the first use by a flow that moves; the others are scratch of a share.

``found``, ``full`` and ``dirty`` are lists of links, which only stand here.
"""
RANK = records("call local run segment pending")
"""A rank of a call: the run it is in, which segment of it, and how many transfers end before it
goes on."""
CALL = records(
    "first_rank last_rank first_run last_run first_flow last_flow transfers left owner next",
    "factor",
)
"""A call: ranks, runs, flows, and how many of its transfers are left.

``factor`` multiplies latencies and amounts. ``owner`` and ``next`` are for whoever keeps calls in
lists (:mod:`simulator.engine.event_loop`).
"""
RUN = records("row repeats stride segments")
"""A run of like steps: rank ``r`` takes part in the flows of row ``row + r``.

Of the ``repeats`` steps ``stride`` are taken at a time, in ``segments``.
"""
ROW = records("first last")
"""Entries of a row, each a flow."""


class Book(NamedTuple):
    """Time and lists: ``clock`` is now and the next event (s).

    ``coming[i]`` is when something happens next to flow ``active[i]`` (s), ``soonest[b]`` the least
    of block ``b`` of these. Blocks in which that may have changed are in the list ``stale``, and
    ``is_stale`` marks them: so an event costs what it changes, and a look at one time per block.

    ``tally`` says how many flows are active, links dirty, calls over, shares there were, blocks
    stale, and flows in the share.
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
"""Flows of which the next event is looked for together."""


class State(NamedTuple):
    """All of it.

    By flow and resource, software last, shape ``(flows, resources + 1)``: ``latency_of`` a step,
    and what was ``spent`` since the call began when the flow ends (s). ``call_spent`` is the same
    of calls that are over.
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
_TURNS = 6
"""Times that a share takes in others before it takes in all that are connected."""
_FAIR = 1e-11
"""Fraction by which a rate may be above another, or a link below its bandwidth, by rounding."""


@hot_loop
def share(s: State) -> None:
    """Give new rates to the flows that what changed matters to: progressive filling.

    First to those that are new, or were held by a link that others came to or left, while all
    others keep what they have. Rates are max-min fair if every flow is on a full link on which
    nobody has more (Bertsekas and Gallager, section 6.5.2); whoever is not, then, joins the share.
    After some turns all that are connected by links do.
    """
    tally = s.book.tally
    tally[STAMP] += 1
    stamp = tally[STAMP]
    links = _touched(s, stamp)
    for turn in range(_TURNS):
        alone = _fill(s, links, stamp)
        if alone:
            break
        more = _joined(s, links, stamp)
        if more == 0:
            break
        links = more
        if turn + 2 == _TURNS:
            links = _connected(s, links, stamp)
    _agree(s, links)


@hot_loop
def _touched(s: State, stamp: int) -> int:
    """Begin a share with the flows that dirty links hold or that are new; return how many links."""
    flows, uses, wires, tally = s.flows, s.uses, s.wires, s.book.tally
    dirty = tally[DIRTY]
    # ``dirty`` and ``found`` are two lists in the records of links; record i holds the i-th entry.
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
                links = _take_in(s, flow, links, stamp)
            use = uses[use].after
    return links


@hot_loop
def _take_in(s: State, flow: int, links: int, stamp: int) -> int:
    """Let a flow and its links join the share; return how many links that has then."""
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
def _fill(s: State, links: int, stamp: int) -> bool:
    """Share what others leave of the links; return whether there are no others."""
    flows, uses, wires, tally = s.flows, s.uses, s.wires, s.book.tally
    alone = _leave_others(s, links, stamp)
    # A new stamp marks who has a rate in this turn; ``stamp`` still marks who is in the share.
    tally[STAMP] += 1
    unfixed = tally[SHARED]
    while unfixed > 0:
        lowest, full = _fullest(s, links)
        for number in range(full):
            use = wires[wires[number].full].head
            while use >= 0:
                flow = uses[use].flow
                if flows[flow].mark == stamp and flows[flow].fixed != tally[STAMP]:
                    flows[flow].fixed = tally[STAMP]
                    unfixed -= 1
                    _fix(s, flow, lowest, wires[number].full)
                use = uses[use].after
    return alone


@hot_loop
def _leave_others(s: State, links: int, stamp: int) -> bool:
    """Take from the links what those have who are not in the share; return whether all are."""
    flows, uses, wires = s.flows, s.uses, s.wires
    alone = True
    for number in range(links):
        link = wires[number].found
        left, demand, free = wires[link].bandwidth, 0.0, 0
        use = wires[link].head
        while use >= 0:
            flow = uses[use].flow
            # Demand is in bytes on the link per byte of the flow: level times demand is B/s.
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
def _fullest(s: State, links: int) -> tuple[float, int]:
    """Find the links that are full first, if all flows grow alike; return when, and how many."""
    wires = s.wires
    # What others leave may be below zero by rounding.
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
def _fix(s: State, flow: int, rate: float, link: int) -> None:
    """Say what rate a flow is to have, and take it from its links."""
    flows, uses, wires = s.flows, s.uses, s.wires
    flows[flow].share, flows[flow].holds = rate, link
    for use in range(flows[flow].first, flows[flow].last):
        on = uses[use].link
        wires[on].left -= uses[use].weight * rate
        wires[on].demand -= uses[use].weight
        wires[on].free -= 1


@hot_loop
def _joined(s: State, links: int, stamp: int) -> int:
    """Take in who is not on a full link with nobody above, then; return how many links, or 0."""
    uses, wires, fill = s.uses, s.wires, s.book.tally[STAMP]
    before, many = int(s.book.tally[SHARED]), int(links)
    for number in range(links):
        link = wires[number].found
        level, top, used = _state_of(s, link, fill)
        # Somebody outside is wronged if he has more than the link gives now, or less than he might:
        # the link that holds him is not full any more, or others on it have more.
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
                    many = _take_in(s, flow, many, stamp)
            use = uses[use].after
    return many if int(s.book.tally[SHARED]) > before else 0


@hot_loop
def _state_of(s: State, link: int, fill: int) -> tuple[float, float, float]:
    """Of a link: rate of those it is to hold, highest rate of those in the share, and all rates."""
    flows, uses = s.flows, s.uses
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
def _connected(s: State, links: int, stamp: int) -> int:
    """Take in all that is connected with the share by links; return how many links it has then."""
    uses, wires = s.uses, s.wires
    # The list of links is the queue of a breadth-first search; taking a flow in adds its links.
    seen = 0
    while seen < links:
        use = wires[wires[seen].found].head
        while use >= 0:
            if s.flows[uses[use].flow].mark != stamp:
                links = _take_in(s, uses[use].flow, links, stamp)
            use = uses[use].after
        seen += 1
    return links


@hot_loop
def _agree(s: State, links: int) -> None:
    """Give the flows in the share the rates that were found."""
    flows, uses, wires, fill = s.flows, s.uses, s.wires, s.book.tally[STAMP]
    for number in range(links):
        use = wires[wires[number].found].head
        while use >= 0:
            flow = uses[use].flow
            # Met once for each of its links, and given its rate at the first.
            if flows[flow].fixed == fill:
                flows[flow].fixed = 0
                _go_at(s, flow, flows[flow].share, flows[flow].holds)
            use = uses[use].after


@hot_loop
def _go_at(s: State, flow: int, rate: float, link: int) -> None:
    """Give a flow its rate; an end that does not change is not computed again."""
    flows = s.flows
    if rate == flows[flow].rate and link == flows[flow].held_by:
        return
    account(s, flow)
    flows[flow].held_by = link
    if rate != flows[flow].rate:
        flows[flow].rate = rate
        flows[flow].end = s.book.clock[0] + flows[flow].remaining / rate
        expect(s, flows[flow].place, flows[flow].end)


@hot_loop
def account(s: State, flow: int) -> None:
    """Move what has flowed since the last change from ``remaining`` to the books."""
    flows, now = s.flows, s.book.clock[0]
    passed = now - flows[flow].since
    flows[flow].since = now
    if flows[flow].rate > 0:
        flows[flow].remaining = max(0.0, flows[flow].remaining - flows[flow].rate * passed)
        s.spent[flow, s.wires[flows[flow].held_by].resource] += passed


@hot_loop
def expect(s: State, place: int, coming: float) -> None:
    """Set when something happens next to an active flow (s)."""
    book, block = s.book, place // BLOCK
    book.coming[place] = coming
    if not book.is_stale[block]:
        book.is_stale[block] = 1
        book.stale[book.tally[STALE]] = block
        book.tally[STALE] += 1
