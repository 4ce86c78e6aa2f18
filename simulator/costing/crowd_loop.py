"""The compiled loop of :mod:`simulator.costing.crowd`: arrays, and what happens to them over time.

Each rank takes its steps in order; a transfer starts when both its ends have ended all that they
send and receive in the steps before, waits its latency, and then moves its bytes at a max-min fair
share of its links (:func:`simulator.engine.max_min.max_min_rates`). What joins or leaves changes
the shares of those only that it is connected with by links.

Nothing is allocated here: :class:`simulator.costing.crowd.Crowd` makes room.
"""

from typing import Annotated, Any, NamedTuple

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


def records(whole: str, real: str = "") -> np.dtype[np.void]:
    """Make the type of records of whole and real numbers."""
    columns = [(name, np.int64) for name in whole.split()]
    return np.dtype(columns + [(name, np.float64) for name in real.split()])


FLOW = records(
    "call source target first last doing held_by place mark fixed",
    "latency amount wakes remaining rate since end",
)
"""A transfer: between which ranks, on which links, and how far it is.

It is on the uses ``first`` to ``last``. ``latency`` (s) and ``amount`` (B) are those of one step.
``place`` is where it stands among the active; ``mark`` and ``fixed`` tell the last share.
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
lists (:mod:`simulator.engine.fluid_loop`).
"""
RUN = records("row repeats stride segments")
"""A run of like steps: rank ``r`` takes part in the flows of row ``row + r``.

Of the ``repeats`` steps ``stride`` are taken at a time, in ``segments``.
"""
ROW = records("first last")
"""Entries of a row, each a flow."""


class Book(NamedTuple):
    """Time and lists: ``clock`` is now and the next event (s).

    ``coming[i]`` is when something happens next to flow ``active[i]`` (s): side by side, since all
    are looked through at every event.

    ``tally`` says how many flows are active, links dirty and calls over, and how many shares there
    were.
    """

    clock: Floats
    tally: Ints
    active: Ints
    coming: Floats
    due: Ints
    over: Ints
    before: Floats


ACTIVE, DIRTY, OVER, STAMP = 0, 1, 2, 3
TALLIES = 4


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
    entries: Ints
    latency_of: Matrix
    spent: Matrix
    call_spent: Matrix
    book: Book


@hot_loop
def advance(s: State, until: float) -> bool:
    """Go on until a call is over, or to the last event that is not after ``until``."""
    book = s.book
    while True:
        if book.tally[DIRTY]:
            _share(s)
        coming = _least(book.coming, book.tally[ACTIVE])
        book.clock[1] = coming
        if not coming <= until:
            return False
        book.clock[0] = max(coming, book.clock[0])
        _settle(s)
        if book.tally[OVER]:
            return True


@hot_loop(nan_free=True)
def _least(values: Floats, count: int) -> float:
    """Return the least of the first ``count``, in several lanes at a time."""
    least = np.inf
    for place in range(count):
        least = min(least, values[place])
    return least


@hot_loop
def _list_due(s: State) -> int:
    """List the flows that begin to move or end at this instant; return how many.

    They are in the order in which they stand in their calls, so that of transfers that end together
    the last is the same whatever calls came and went before.
    """
    flows, book = s.flows, s.book
    now, many = book.clock[0], 0
    for place in range(book.tally[ACTIVE]):
        if book.coming[place] <= now + _SLACK:
            flow = book.active[place]
            if flows[flow].doing == MOVES or flows[flow].wakes <= now:
                book.due[many] = flow
                many += 1
    _sort(book.due, many)
    return many


@hot_loop
def _sort(values: Ints, count: int) -> None:
    """Sort the first ``count`` in place (Shell, Communications of the ACM 2:7, 1959)."""
    gap = count // 2
    while gap > 0:
        for place in range(gap, count):
            value, slot = values[place], place
            while slot >= gap and values[slot - gap] > value:
                values[slot] = values[slot - gap]
                slot -= gap
            values[slot] = value
        gap = 1 if gap == 2 else gap * 5 // 11


@hot_loop
def _settle(s: State) -> None:
    """Let begin and end what does at this instant."""
    flows, book = s.flows, s.book
    many = _list_due(s)
    for number in range(many):
        flow = book.due[number]
        if flows[flow].doing == MOVES:
            _account(s, flow)
            _leave(s, flow)
            _over(s, flow)
        elif flows[flow].remaining == 0.0:
            _over(s, flow)
        else:
            _join(s, flow)


@hot_loop
def _over(s: State, flow: int) -> None:
    """End a transfer: its two ranks go on, unless it was the last of its call."""
    flows, ranks, calls, book = s.flows, s.ranks, s.calls, s.book
    _retire(s, flow)
    call, source, target = flows[flow].call, flows[flow].source, flows[flow].target
    for part in range(len(book.before)):
        book.before[part] = s.spent[flow, part]
    calls[call].left -= 1
    if calls[call].left == 0:
        for part in range(len(book.before)):
            s.call_spent[call, part] = book.before[part]
        book.over[book.tally[OVER]] = call
        book.tally[OVER] += 1
        return
    ranks[source].pending -= 1
    if target != source:
        ranks[target].pending -= 1
    _go_on(s, source, 0.0)
    if target != source:
        _go_on(s, target, 0.0)


@hot_loop
def _go_on(s: State, rank: int, delay: float) -> None:
    """Take a rank to the first step in which it still waits for something, if it may.

    What starts by that does so ``delay`` (s) from now.
    """
    ranks, calls, runs, rows, flows = s.ranks, s.calls, s.runs, s.rows, s.flows
    call = ranks[rank].call
    while ranks[rank].pending == 0 and ranks[rank].run < calls[call].last_run:
        run = ranks[rank].run
        row = -1 if run < calls[call].first_run else runs[run].row + ranks[rank].local
        if (
            row >= 0
            and rows[row].first < rows[row].last
            and (ranks[rank].segment + 1 < runs[run].segments)
        ):
            ranks[rank].segment += 1
        else:
            run += 1
            ranks[rank].run = run
            ranks[rank].segment = 0
            if run == calls[call].last_run:
                return
            row = runs[run].row + ranks[rank].local
        ranks[rank].pending = rows[row].last - rows[row].first
        for entry in range(rows[row].first, rows[row].last):
            flow = s.entries[entry]
            source, target = flows[flow].source, flows[flow].target
            other = target if source == rank else source
            if ranks[other].run == run and ranks[other].segment == ranks[rank].segment:
                _start(s, flow, run, ranks[rank].segment, delay)


@hot_loop
def _start(s: State, flow: int, run: int, segment: int, delay: float) -> None:
    flows, book = s.flows, s.book
    taken = s.runs[run].stride
    taken = min(taken, s.runs[run].repeats - segment * taken)
    times = taken * s.calls[flows[flow].call].factor
    flows[flow].doing = WAITS
    flows[flow].wakes = book.clock[0] + delay + flows[flow].latency * times
    flows[flow].remaining = flows[flow].amount * times
    for part in range(len(book.before)):
        s.spent[flow, part] = book.before[part] + s.latency_of[flow, part] * times
    _activate(s, flow, flows[flow].wakes)


@hot_loop
def _activate(s: State, flow: int, coming: float) -> None:
    """Put a flow on the list of the active ones."""
    book = s.book
    s.flows[flow].place = book.tally[ACTIVE]
    book.active[book.tally[ACTIVE]] = flow
    book.coming[book.tally[ACTIVE]] = coming
    book.tally[ACTIVE] += 1


@hot_loop
def _join(s: State, flow: int) -> None:
    """Put a flow on its links."""
    flows, uses, wires = s.flows, s.uses, s.wires
    flows[flow].doing = MOVES
    flows[flow].since = s.book.clock[0]
    flows[flow].rate = 0.0
    flows[flow].held_by = -1
    flows[flow].end = np.inf
    s.book.coming[flows[flow].place] = np.inf
    for use in range(flows[flow].first, flows[flow].last):
        head = wires[uses[use].link].head
        uses[use].before, uses[use].after = -1, head
        if head >= 0:
            uses[head].before = use
        wires[uses[use].link].head = use
        _soil(s, uses[use].link)


@hot_loop
def _leave(s: State, flow: int) -> None:
    """Take a flow from its links; only who is left there has something to share."""
    flows, uses, wires = s.flows, s.uses, s.wires
    for use in range(flows[flow].first, flows[flow].last):
        before, after = uses[use].before, uses[use].after
        if before >= 0:
            uses[before].after = after
        else:
            wires[uses[use].link].head = after
        if after >= 0:
            uses[after].before = before
        if wires[uses[use].link].head >= 0:
            _soil(s, uses[use].link)


@hot_loop
def _soil(s: State, link: int) -> None:
    wires, tally = s.wires, s.book.tally
    if not wires[link].is_dirty:
        wires[link].is_dirty = 1
        wires[tally[DIRTY]].dirty = link
        tally[DIRTY] += 1


@hot_loop
def _account(s: State, flow: int) -> None:
    """Move what has flowed since the last change from ``remaining`` to the books."""
    flows, now = s.flows, s.book.clock[0]
    passed = now - flows[flow].since
    flows[flow].since = now
    if flows[flow].rate > 0:
        flows[flow].remaining = max(0.0, flows[flow].remaining - flows[flow].rate * passed)
        s.spent[flow, s.wires[flows[flow].held_by].resource] += passed


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
            use = wires[wires[number].full].head
            while use >= 0:
                flow = uses[use].flow
                if flows[flow].fixed != stamp:
                    flows[flow].fixed = stamp
                    unfixed -= 1
                    _fix(s, flow, lowest, wires[number].full)
                use = uses[use].after


@hot_loop
def _fullest(s: State, links: int) -> tuple[float, int]:
    """Find the links that are full first, if all flows grow alike; return when, and how many."""
    wires = s.wires
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
def _connected(s: State, stamp: int) -> tuple[int, int]:
    """Find what is connected with dirty links; return how many links and flows."""
    flows, uses, wires, book = s.flows, s.uses, s.wires, s.book
    links = many = 0
    for number in range(book.tally[DIRTY]):
        link = wires[number].dirty
        wires[link].is_dirty = 0
        wires[link].mark = stamp
        wires[links].found = link
        links += 1
    book.tally[DIRTY] = 0
    seen = 0
    while seen < links:
        link = wires[seen].found
        seen += 1
        wires[link].left = wires[link].bandwidth
        wires[link].demand, wires[link].free = 0.0, 0
        use = wires[link].head
        while use >= 0:
            flow = uses[use].flow
            wires[link].demand += uses[use].weight
            wires[link].free += 1
            use = uses[use].after
            if flows[flow].mark == stamp:
                continue
            flows[flow].mark = stamp
            many += 1
            for other in range(flows[flow].first, flows[flow].last):
                if wires[uses[other].link].mark != stamp:
                    wires[uses[other].link].mark = stamp
                    wires[links].found = uses[other].link
                    links += 1
    return links, many


@hot_loop
def _fix(s: State, flow: int, rate: float, link: int) -> None:
    """Give a flow its rate; an end that does not change is not computed again."""
    flows, uses, wires = s.flows, s.uses, s.wires
    for use in range(flows[flow].first, flows[flow].last):
        on = uses[use].link
        wires[on].left -= uses[use].weight * rate
        wires[on].demand -= uses[use].weight
        wires[on].free -= 1
    if rate == flows[flow].rate and link == flows[flow].held_by:
        return
    _account(s, flow)
    flows[flow].held_by = link
    if rate != flows[flow].rate:
        flows[flow].rate = rate
        flows[flow].end = s.book.clock[0] + flows[flow].remaining / rate
        s.book.coming[flows[flow].place] = flows[flow].end


@hot_loop
def begin(s: State, call: int, delay: float) -> None:
    """Send every rank of a call into its first step, ``delay`` (s) from now."""
    calls, book = s.calls, s.book
    for part in range(len(book.before)):
        book.before[part] = s.call_spent[call, part]
    for rank in range(calls[call].first_rank, calls[call].last_rank):
        _go_on(s, rank, delay)


@hot_loop
def reset(s: State, call: int, factor: float) -> None:
    """Set the ranks of a call before their first step."""
    ranks, calls = s.ranks, s.calls
    for rank in range(calls[call].first_rank, calls[call].last_rank):
        ranks[rank].run = calls[call].first_run - 1
        ranks[rank].segment = 0
        ranks[rank].pending = 0
    calls[call].left = calls[call].transfers
    calls[call].factor = factor


@hot_loop
def move_in(s: State, call: int, old: State, there: int) -> None:
    """Take over a like call that is under way in another state, in the middle of what it does."""
    first, last = s.calls[call].first_flow, s.calls[call].last_flow
    shift = old.calls[there].first_flow - first
    for flow in range(first, last):
        s.flows[flow].doing = old.flows[flow + shift].doing
        s.flows[flow].wakes = old.flows[flow + shift].wakes
        s.flows[flow].remaining = old.flows[flow + shift].remaining
        s.flows[flow].rate = old.flows[flow + shift].rate
        s.flows[flow].since = old.flows[flow + shift].since
        s.flows[flow].end = old.flows[flow + shift].end
        s.flows[flow].held_by = old.flows[flow + shift].held_by
        for part in range(len(s.book.before)):
            s.spent[flow, part] = old.spent[flow + shift, part]
    _move_ranks(s, call, old, there)
    for part in range(len(s.book.before)):
        s.call_spent[call, part] = old.call_spent[there, part]
    s.calls[call].left = old.calls[there].left
    s.calls[call].factor = old.calls[there].factor
    rejoin(s, first, last)


@hot_loop
def _move_ranks(s: State, call: int, old: State, there: int) -> None:
    shift = old.calls[there].first_rank - s.calls[call].first_rank
    runs = s.calls[call].first_run - old.calls[there].first_run
    for rank in range(s.calls[call].first_rank, s.calls[call].last_rank):
        s.ranks[rank].run = old.ranks[rank + shift].run + runs
        s.ranks[rank].segment = old.ranks[rank + shift].segment
        s.ranks[rank].pending = old.ranks[rank + shift].pending


@hot_loop
def rejoin(s: State, first: int, last: int) -> None:
    """Put flows that came with their state on the lists they belong to."""
    flows, uses, wires = s.flows, s.uses, s.wires
    for flow in range(first, last):
        if flows[flow].doing == IDLE:
            continue
        if flows[flow].doing == WAITS:
            _activate(s, flow, flows[flow].wakes)
            continue
        _activate(s, flow, flows[flow].end)
        for use in range(flows[flow].first, flows[flow].last):
            head = wires[uses[use].link].head
            uses[use].before, uses[use].after = -1, head
            if head >= 0:
                uses[head].before = use
            wires[uses[use].link].head = use
            _soil(s, uses[use].link)


@hot_loop
def abandon(s: State, first: int, last: int) -> None:
    """Take flows off the lists that they are on, in the middle of what they do."""
    flows = s.flows
    for flow in range(first, last):
        if flows[flow].doing == IDLE:
            continue
        if flows[flow].doing == MOVES:
            _leave(s, flow)
        _retire(s, flow)


@hot_loop
def _retire(s: State, flow: int) -> None:
    """Take a flow out of the active ones."""
    flows, book = s.flows, s.book
    book.tally[ACTIVE] -= 1
    last = book.active[book.tally[ACTIVE]]
    book.active[flows[flow].place] = last
    book.coming[flows[flow].place] = book.coming[book.tally[ACTIVE]]
    flows[last].place = flows[flow].place
    flows[flow].doing = IDLE
