"""The compiled loop of :mod:`simulator.costing.crowd`: arrays, and what happens to them over time.

Each rank takes its steps in order; a transfer starts when both its ends have ended all that they
send and receive in the steps before, waits its latency, and then moves its bytes at a max-min fair
share of its links (:func:`simulator.engine.max_min.max_min_rates`). What joins or leaves changes
the shares of those only that it is connected with by links.

Nothing is allocated here: :class:`simulator.costing.crowd.Crowd` makes room.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.hot import hot_loop
from simulator.workload import Floats, Matrix

Ints = NDArray[np.int64]

IDLE, WAITS, MOVES = 0, 1, 2
"""What a flow does: nothing, wait for its latency to pass, move bytes."""
_SLACK = 1e-12
"""A flow that would end within this many seconds is over.

Must exceed the spacing of floats around the clock (1.1e-13 s at 1000 s), or time stands still.
"""
_SAME = 1e-12
"""Links whose levels differ by less than this fraction saturate together."""


class Flows(NamedTuple):
    """Transfers: between which ranks, on which links, and how far they are.

    Flow ``f`` is on the uses ``first[f]:last[f]``. ``latency`` (s) and ``amount`` (B) are those of
    one step; what is under way is ``latency_of``, by resource, and ``spent`` since the call began,
    both with shape ``(flows, resources + 1)``. ``place`` is where it stands among the active.
    """

    call: Ints
    source: Ints
    target: Ints
    first: Ints
    last: Ints
    latency: Floats
    amount: Floats
    latency_of: Matrix
    doing: Ints
    wakes: Floats
    remaining: Floats
    rate: Floats
    since: Floats
    end: Floats
    held_by: Ints
    place: Ints
    mark: Ints
    fixed: Ints
    spent: Matrix


class Uses(NamedTuple):
    """Links of flows: ``weight`` of its rate is what a flow puts on the link.

    ``after`` and ``before`` join those of the flows that move on one link.
    """

    flow: Ints
    link: Ints
    weight: Floats
    after: Ints
    before: Ints


class Wires(NamedTuple):
    """Links: ``head`` is the first use by a flow that moves; the others are scratch of a share."""

    bandwidth: Floats
    resource: Ints
    head: Ints
    mark: Ints
    left: Floats
    demand: Floats
    free: Ints
    found: Ints
    full: Ints
    dirty: Ints
    is_dirty: Ints


class Ranks(NamedTuple):
    """Ranks of calls: the run they are in, which segment of it, and what they wait for there."""

    call: Ints
    local: Ints
    run: Ints
    segment: Ints
    pending: Ints


class Calls(NamedTuple):
    """Calls: ranks, runs, and how many transfers are left.

    ``factor`` multiplies latencies and amounts.
    """

    first_rank: Ints
    last_rank: Ints
    first_run: Ints
    last_run: Ints
    left: Ints
    factor: Floats
    spent: Matrix


class Rows(NamedTuple):
    """Runs of like steps: rank ``r`` takes part in the flows of row ``row[run] + r``.

    Of the ``repeats`` steps of a run ``stride`` are taken at a time, in ``segments``. The flows of
    a row are ``flow[first[row]:last[row]]``.
    """

    row: Ints
    repeats: Ints
    stride: Ints
    segments: Ints
    first: Ints
    last: Ints
    flow: Ints


class Book(NamedTuple):
    """Time and lists: ``clock`` is now and the next event (s).

    ``tally`` says how many flows are active, links dirty and calls over, and how many
    shares there were.
    """

    clock: Floats
    tally: Ints
    active: Ints
    due: Ints
    over: Ints
    before: Floats


ACTIVE, DIRTY, OVER, STAMP = 0, 1, 2, 3
TALLIES = 4


class State(NamedTuple):
    """All of it."""

    flows: Flows
    uses: Uses
    wires: Wires
    ranks: Ranks
    calls: Calls
    rows: Rows
    book: Book


@hot_loop
def advance(s: State, until: float) -> bool:
    """Go on until a call is over, or to the last event that is not after ``until``."""
    book = s.book
    while True:
        if book.tally[DIRTY]:
            _share(s)
        coming = np.inf
        for place in range(book.tally[ACTIVE]):
            flow = book.active[place]
            due = s.flows.wakes[flow] if s.flows.doing[flow] == WAITS else s.flows.end[flow]
            coming = min(coming, due)
        book.clock[1] = coming
        if not coming <= until:
            return False
        book.clock[0] = max(coming, book.clock[0])
        _settle(s)
        if book.tally[OVER]:
            return True


@hot_loop
def _settle(s: State) -> None:
    """Let begin and end what does at this instant."""
    flows, book = s.flows, s.book
    now, many = book.clock[0], 0
    for place in range(book.tally[ACTIVE]):
        flow = book.active[place]
        if flows.doing[flow] == WAITS:
            if flows.wakes[flow] <= now:
                book.due[many] = flow
                many += 1
        elif flows.end[flow] <= now + _SLACK:
            book.due[many] = flow
            many += 1
    for number in range(many):
        flow = book.due[number]
        if flows.doing[flow] == MOVES:
            _account(s, flow)
            _leave(s, flow)
            _over(s, flow)
        elif flows.remaining[flow] == 0.0:
            _over(s, flow)
        else:
            _join(s, flow)


@hot_loop
def _over(s: State, flow: int) -> None:
    """End a transfer: its two ranks go on, unless it was the last of its call."""
    flows, ranks, calls, book = s.flows, s.ranks, s.calls, s.book
    _retire(s, flow)
    call, source, target = flows.call[flow], flows.source[flow], flows.target[flow]
    for part in range(len(book.before)):
        book.before[part] = flows.spent[flow, part]
    calls.left[call] -= 1
    if calls.left[call] == 0:
        for part in range(len(book.before)):
            calls.spent[call, part] = book.before[part]
        book.over[book.tally[OVER]] = call
        book.tally[OVER] += 1
        return
    ranks.pending[source] -= 1
    if target != source:
        ranks.pending[target] -= 1
    _go_on(s, source, 0.0)
    if target != source:
        _go_on(s, target, 0.0)


@hot_loop
def _go_on(s: State, rank: int, delay: float) -> None:
    """Take a rank to the first step in which it still waits for something, if it may.

    What starts by that does so ``delay`` (s) from now.
    """
    ranks, calls, rows, flows = s.ranks, s.calls, s.rows, s.flows
    call = ranks.call[rank]
    while ranks.pending[rank] == 0 and ranks.run[rank] < calls.last_run[call]:
        run = ranks.run[rank]
        row = -1 if run < calls.first_run[call] else rows.row[run] + ranks.local[rank]
        if (
            row >= 0
            and rows.first[row] < rows.last[row]
            and (ranks.segment[rank] + 1 < rows.segments[run])
        ):
            ranks.segment[rank] += 1
        else:
            run += 1
            ranks.run[rank] = run
            ranks.segment[rank] = 0
            if run == calls.last_run[call]:
                return
            row = rows.row[run] + ranks.local[rank]
        ranks.pending[rank] = rows.last[row] - rows.first[row]
        for entry in range(rows.first[row], rows.last[row]):
            flow = rows.flow[entry]
            source, target = flows.source[flow], flows.target[flow]
            other = target if source == rank else source
            if ranks.run[other] == run and ranks.segment[other] == ranks.segment[rank]:
                _start(s, flow, run, ranks.segment[rank], delay)


@hot_loop
def _start(s: State, flow: int, run: int, segment: int, delay: float) -> None:
    flows, rows, book = s.flows, s.rows, s.book
    taken = rows.stride[run]
    taken = min(taken, rows.repeats[run] - segment * taken)
    times = taken * s.calls.factor[flows.call[flow]]
    flows.doing[flow] = WAITS
    flows.wakes[flow] = book.clock[0] + delay + flows.latency[flow] * times
    flows.remaining[flow] = flows.amount[flow] * times
    for part in range(len(book.before)):
        flows.spent[flow, part] = book.before[part] + flows.latency_of[flow, part] * times
    flows.place[flow] = book.tally[ACTIVE]
    book.active[book.tally[ACTIVE]] = flow
    book.tally[ACTIVE] += 1


@hot_loop
def _join(s: State, flow: int) -> None:
    """Put a flow on its links."""
    flows, uses, wires = s.flows, s.uses, s.wires
    flows.doing[flow] = MOVES
    flows.since[flow] = s.book.clock[0]
    flows.rate[flow] = 0.0
    flows.held_by[flow] = -1
    flows.end[flow] = np.inf
    for use in range(flows.first[flow], flows.last[flow]):
        head = wires.head[uses.link[use]]
        uses.before[use], uses.after[use] = -1, head
        if head >= 0:
            uses.before[head] = use
        wires.head[uses.link[use]] = use
        _soil(s, uses.link[use])


@hot_loop
def _leave(s: State, flow: int) -> None:
    """Take a flow from its links; only who is left there has something to share."""
    flows, uses, wires = s.flows, s.uses, s.wires
    for use in range(flows.first[flow], flows.last[flow]):
        before, after = uses.before[use], uses.after[use]
        if before >= 0:
            uses.after[before] = after
        else:
            wires.head[uses.link[use]] = after
        if after >= 0:
            uses.before[after] = before
        if wires.head[uses.link[use]] >= 0:
            _soil(s, uses.link[use])


@hot_loop
def _soil(s: State, link: int) -> None:
    wires, tally = s.wires, s.book.tally
    if not wires.is_dirty[link]:
        wires.is_dirty[link] = 1
        wires.dirty[tally[DIRTY]] = link
        tally[DIRTY] += 1


@hot_loop
def _account(s: State, flow: int) -> None:
    """Move what has flowed since the last change from ``remaining`` to the books."""
    flows, now = s.flows, s.book.clock[0]
    passed = now - flows.since[flow]
    flows.since[flow] = now
    if flows.rate[flow] > 0:
        flows.remaining[flow] = max(0.0, flows.remaining[flow] - flows.rate[flow] * passed)
        flows.spent[flow, s.wires.resource[flows.held_by[flow]]] += passed


@hot_loop
def _share(s: State) -> None:
    """Give new rates to the flows connected with what changed: progressive filling."""
    flows, uses, wires, book = s.flows, s.uses, s.wires, s.book
    book.tally[STAMP] += 1
    stamp = book.tally[STAMP]
    links, many = _connected(s, stamp)
    unfixed = many
    while unfixed > 0:
        lowest, full = _fullest(s, links)
        for number in range(full):
            use = wires.head[wires.full[number]]
            while use >= 0:
                flow = uses.flow[use]
                if flows.fixed[flow] != stamp:
                    flows.fixed[flow] = stamp
                    unfixed -= 1
                    _fix(s, flow, lowest, wires.full[number])
                use = uses.after[use]


@hot_loop
def _fullest(s: State, links: int) -> tuple[float, int]:
    """Find the links that are full first, if all flows grow alike; return when, and how many."""
    wires = s.wires
    lowest = np.inf
    for number in range(links):
        link = wires.found[number]
        if wires.free[link] > 0:
            lowest = min(lowest, max(wires.left[link], 0.0) / wires.demand[link])
    full = 0
    for number in range(links):
        link = wires.found[number]
        if wires.free[link] > 0:
            level = max(wires.left[link], 0.0) / wires.demand[link]
            if level <= lowest * (1 + _SAME):
                wires.full[full] = link
                full += 1
    return lowest, full


@hot_loop
def _connected(s: State, stamp: int) -> tuple[int, int]:
    """Find what is connected with dirty links; return how many links and flows."""
    flows, uses, wires, book = s.flows, s.uses, s.wires, s.book
    links = many = 0
    for number in range(book.tally[DIRTY]):
        link = wires.dirty[number]
        wires.is_dirty[link] = 0
        wires.mark[link] = stamp
        wires.found[links] = link
        links += 1
    book.tally[DIRTY] = 0
    seen = 0
    while seen < links:
        link = wires.found[seen]
        seen += 1
        wires.left[link] = wires.bandwidth[link]
        wires.demand[link], wires.free[link] = 0.0, 0
        use = wires.head[link]
        while use >= 0:
            flow = uses.flow[use]
            wires.demand[link] += uses.weight[use]
            wires.free[link] += 1
            use = uses.after[use]
            if flows.mark[flow] == stamp:
                continue
            flows.mark[flow] = stamp
            many += 1
            for other in range(flows.first[flow], flows.last[flow]):
                if wires.mark[uses.link[other]] != stamp:
                    wires.mark[uses.link[other]] = stamp
                    wires.found[links] = uses.link[other]
                    links += 1
    return links, many


@hot_loop
def _fix(s: State, flow: int, rate: float, link: int) -> None:
    """Give a flow its rate; an end that does not change is not computed again."""
    flows, uses, wires = s.flows, s.uses, s.wires
    for use in range(flows.first[flow], flows.last[flow]):
        on = uses.link[use]
        wires.left[on] -= uses.weight[use] * rate
        wires.demand[on] -= uses.weight[use]
        wires.free[on] -= 1
    if rate == flows.rate[flow] and link == flows.held_by[flow]:
        return
    _account(s, flow)
    flows.held_by[flow] = link
    if rate != flows.rate[flow]:
        flows.rate[flow] = rate
        flows.end[flow] = s.book.clock[0] + flows.remaining[flow] / rate


@hot_loop
def begin(s: State, call: int, delay: float) -> None:
    """Send every rank of a call into its first step, ``delay`` (s) from now."""
    calls, book = s.calls, s.book
    for part in range(len(book.before)):
        book.before[part] = calls.spent[call, part]
    for rank in range(calls.first_rank[call], calls.last_rank[call]):
        _go_on(s, rank, delay)


@hot_loop
def rejoin(s: State, first: int, last: int) -> None:
    """Put flows that came with their state on the lists they belong to."""
    flows, uses, wires, book = s.flows, s.uses, s.wires, s.book
    for flow in range(first, last):
        if flows.doing[flow] == IDLE:
            continue
        flows.place[flow] = book.tally[ACTIVE]
        book.active[book.tally[ACTIVE]] = flow
        book.tally[ACTIVE] += 1
        if flows.doing[flow] != MOVES:
            continue
        for use in range(flows.first[flow], flows.last[flow]):
            head = wires.head[uses.link[use]]
            uses.before[use], uses.after[use] = -1, head
            if head >= 0:
                uses.before[head] = use
            wires.head[uses.link[use]] = use
            _soil(s, uses.link[use])


@hot_loop
def abandon(s: State, first: int, last: int) -> None:
    """Take flows off the lists that they are on, in the middle of what they do."""
    flows = s.flows
    for flow in range(first, last):
        if flows.doing[flow] == IDLE:
            continue
        if flows.doing[flow] == MOVES:
            _leave(s, flow)
        _retire(s, flow)


@hot_loop
def _retire(s: State, flow: int) -> None:
    """Take a flow out of the active ones."""
    flows, book = s.flows, s.book
    book.tally[ACTIVE] -= 1
    last = book.active[book.tally[ACTIVE]]
    book.active[flows.place[flow]] = last
    flows.place[last] = flows.place[flow]
    flows.doing[flow] = IDLE
