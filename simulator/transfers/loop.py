"""The compiled loop of :mod:`simulator.transfers.crowd`.

Each rank takes its steps in order. A transfer starts when both its ranks have completed all sends
and receives of the steps before; it waits its latency and then moves its bytes at a max-min fair
share of its links (:func:`simulator.engine.simpy_model.max_min_rates`). When a transfer starts or
stops moving bytes, rates are recomputed for the flows that this can affect.

Nothing is allocated here: :class:`simulator.transfers.crowd.Crowd` makes room.
"""

import numpy as np

from simulator.support.arrays import Floats, Longs
from simulator.support.compiled import hot_loop
from simulator.transfers.fair_shares import (
    ACTIVE,
    BLOCK,
    DIRTY,
    IDLE,
    MOVES,
    OVER,
    STALE,
    WAITS,
    State,
    account,
    set_next_event,
    update_rates,
)

_SLACK = 1e-12
"""A flow that would end within this many seconds, or this fraction of the clock, has ended.

It must exceed the spacing of floats around the clock (1.1e-13 s at 1000 s), or time stands still.
Early in a simulation, where transfers may last only picoseconds, the fraction is the smaller.
"""


@hot_loop
def advance(s: State, until: float) -> bool:
    """Handle events up to ``until`` (s), or until calls end; return whether any has ended."""
    book = s.book
    while True:
        if book.tally[DIRTY]:
            update_rates(s)
        coming = _next_event_time(s)
        book.clock[1] = coming  # infinite if no flow is under way
        if not coming <= until:
            return False
        book.clock[0] = max(coming, book.clock[0])
        _handle_due(s)
        if book.tally[OVER]:
            return True


@hot_loop
def _next_event_time(s: State) -> float:
    """Return the time of the next event of any flow (s)."""
    book = s.book
    active = book.tally[ACTIVE]
    for number in range(book.tally[STALE]):
        block = book.stale[number]
        book.is_stale[block] = 0
        first = block * BLOCK
        book.soonest[block] = _minimum(book.coming, first, min(first + BLOCK, active))
    book.tally[STALE] = 0
    return _minimum(book.soonest, 0, (active + BLOCK - 1) // BLOCK)


@hot_loop(nan_free=True)
def _minimum(values: Floats, first: int, last: int) -> float:
    """Return the minimum of ``values[first:last]``; a loop that the compiler vectorises."""
    least = np.inf
    for index in range(first, last):
        least = min(least, values[index])
    return least


@hot_loop
def _list_due(s: State) -> int:
    """List the flows that start to move bytes or end at this instant; return how many.

    They are sorted by index, so that of transfers that end together the last is the same whatever
    calls came and went before.
    """
    flows, book = s.flows, s.book
    now, many, active = book.clock[0], 0, book.tally[ACTIVE]
    soon = now + _SLACK * min(1.0, now)
    for block in range((active + BLOCK - 1) // BLOCK):
        if not book.soonest[block] <= soon:
            continue
        for index in range(block * BLOCK, min((block + 1) * BLOCK, active)):
            if book.coming[index] <= soon:
                flow = book.active[index]
                # An end may be early by rounding, the end of a latency may not: starts keep order.
                if flows[flow].doing == MOVES or flows[flow].wakes <= now:
                    book.due[many] = flow
                    many += 1
    _sort(book.due, many)
    return many


@hot_loop
def _sort(values: Longs, count: int) -> None:
    """Sort the first ``count`` in place (Shell, Communications of the ACM 2:7, 1959)."""
    gap = count // 2
    while gap > 0:
        for index in range(gap, count):
            value, slot = values[index], index
            while slot >= gap and values[slot - gap] > value:
                values[slot] = values[slot - gap]
                slot -= gap
            values[slot] = value
        gap = 1 if gap == 2 else gap * 5 // 11


@hot_loop
def _handle_due(s: State) -> None:
    """Start and end the flows that are due at this instant."""
    flows, book = s.flows, s.book
    many = _list_due(s)
    for number in range(many):
        # Due are ends of transfers, ends of latencies of flows without bytes, and starts.
        flow = book.due[number]
        if flows[flow].doing == MOVES:
            account(s, flow)
            _remove_from_links(s, flow)
            _end_transfer(s, flow)
        elif flows[flow].remaining == 0.0:
            _end_transfer(s, flow)
        else:
            _add_to_links(s, flow)


@hot_loop
def _end_transfer(s: State, flow: int) -> None:
    """End a transfer and advance its two ranks, unless it was the last of its call."""
    flows, ranks, calls, book = s.flows, s.ranks, s.calls, s.book
    _deactivate(s, flow)
    call, source, target = flows[flow].call, flows[flow].source, flows[flow].target
    # Transfers that this end releases inherit its time, split by resource.
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
    _advance_rank(s, source, 0.0)
    if target != source:
        _advance_rank(s, target, 0.0)


@hot_loop
def _advance_rank(s: State, rank: int, delay: float) -> None:
    """Advance a rank to the first step in which it has a transfer pending.

    Transfers that start by this do so ``delay`` (s) from now.
    """
    ranks, calls, runs, rows, flows = s.ranks, s.calls, s.runs, s.rows, s.flows
    call = ranks[rank].call
    while ranks[rank].pending == 0 and ranks[rank].run < calls[call].last_run:
        run = ranks[rank].run
        # Until the call begins a rank is before its first run, at ``first_run - 1``.
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
            peer = target if source == rank else source
            # The rank that arrives second starts the transfer.
            if ranks[peer].run == run and ranks[peer].segment == ranks[rank].segment:
                _start_transfer(s, flow, run, ranks[rank].segment, delay)


@hot_loop
def _start_transfer(s: State, flow: int, run: int, segment: int, delay: float) -> None:
    flows, book = s.flows, s.book
    steps = s.runs[run].stride
    steps = min(steps, s.runs[run].repeats - segment * steps)
    times = steps * s.calls[flows[flow].call].factor
    flows[flow].doing = WAITS
    flows[flow].wakes = book.clock[0] + delay + flows[flow].latency * times
    flows[flow].remaining = flows[flow].amount * times
    for part in range(len(book.before)):
        s.spent[flow, part] = book.before[part] + s.latency_of[flow, part] * times
    _activate(s, flow, flows[flow].wakes)


@hot_loop
def _activate(s: State, flow: int, coming: float) -> None:
    """Append a flow to the active flows; its next event is at ``coming`` (s)."""
    book = s.book
    s.flows[flow].place = book.tally[ACTIVE]
    book.active[book.tally[ACTIVE]] = flow
    set_next_event(s, book.tally[ACTIVE], coming)
    book.tally[ACTIVE] += 1


@hot_loop
def _add_to_links(s: State, flow: int) -> None:
    """Add a flow to the flows of its links, without a rate yet."""
    flows = s.flows
    flows[flow].doing = MOVES
    flows[flow].since = s.book.clock[0]
    flows[flow].rate = 0.0
    flows[flow].held_by = -1
    flows[flow].end = np.inf
    set_next_event(s, flows[flow].place, np.inf)
    _list_on_links(s, flow)


@hot_loop
def _list_on_links(s: State, flow: int) -> None:
    """Add a flow to the lists of its links, which are dirty then."""
    uses, wires = s.uses, s.wires
    for use in range(s.flows[flow].first, s.flows[flow].last):
        # Pushed to the front of the link's list, doubly linked through the records of uses.
        head = wires[uses[use].link].head
        uses[use].before, uses[use].after = -1, head
        if head >= 0:
            uses[head].before = use
        wires[uses[use].link].head = use
        _mark_dirty(s, uses[use].link)


@hot_loop
def _remove_from_links(s: State, flow: int) -> None:
    """Remove a flow from its links; a link is dirty if other flows are left on it."""
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
            _mark_dirty(s, uses[use].link)


@hot_loop
def _mark_dirty(s: State, link: int) -> None:
    wires, tally = s.wires, s.book.tally
    if not wires[link].is_dirty:
        wires[link].is_dirty = 1
        wires[tally[DIRTY]].dirty = link
        tally[DIRTY] += 1


@hot_loop
def begin_call(s: State, call: int, delay: float) -> None:
    """Advance every rank of a call into its first step, ``delay`` (s) from now."""
    calls, book = s.calls, s.book
    for part in range(len(book.before)):
        book.before[part] = s.call_spent[call, part]
    for rank in range(calls[call].first_rank, calls[call].last_rank):
        _advance_rank(s, rank, delay)


@hot_loop
def reset_call(s: State, call: int, factor: float) -> None:
    """Reset the ranks of a call to before their first step, and set its factor."""
    ranks, calls = s.ranks, s.calls
    for rank in range(calls[call].first_rank, calls[call].last_rank):
        ranks[rank].run = calls[call].first_run - 1
        ranks[rank].segment = 0
        ranks[rank].pending = 0
    calls[call].left = calls[call].transfers
    calls[call].factor = factor


@hot_loop
def adopt_call(s: State, call: int, old: State, old_call: int) -> None:
    """Copy the progress of an equal call from another state, and continue it here."""
    first, last = s.calls[call].first_flow, s.calls[call].last_flow
    # Equal calls list their flows in one order, so that one shift leads from these to those.
    shift = old.calls[old_call].first_flow - first
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
    _adopt_ranks(s, call, old, old_call)
    for part in range(len(s.book.before)):
        s.call_spent[call, part] = old.call_spent[old_call, part]
    s.calls[call].left = old.calls[old_call].left
    s.calls[call].factor = old.calls[old_call].factor
    relist_flows(s, first, last)


@hot_loop
def _adopt_ranks(s: State, call: int, old: State, old_call: int) -> None:
    shift = old.calls[old_call].first_rank - s.calls[call].first_rank
    runs = s.calls[call].first_run - old.calls[old_call].first_run
    for rank in range(s.calls[call].first_rank, s.calls[call].last_rank):
        s.ranks[rank].run = old.ranks[rank + shift].run + runs
        s.ranks[rank].segment = old.ranks[rank + shift].segment
        s.ranks[rank].pending = old.ranks[rank + shift].pending


@hot_loop
def relist_flows(s: State, first: int, last: int) -> None:
    """Add flows whose progress was copied to the lists of active flows and of links."""
    flows = s.flows
    for flow in range(first, last):
        if flows[flow].doing == IDLE:
            continue
        if flows[flow].doing == WAITS:
            _activate(s, flow, flows[flow].wakes)
            continue
        _activate(s, flow, flows[flow].end)
        _list_on_links(s, flow)


@hot_loop
def drop_flows(s: State, first: int, last: int) -> None:
    """Remove unfinished flows from all lists."""
    flows = s.flows
    for flow in range(first, last):
        if flows[flow].doing == IDLE:
            continue
        if flows[flow].doing == MOVES:
            _remove_from_links(s, flow)
        _deactivate(s, flow)


@hot_loop
def _deactivate(s: State, flow: int) -> None:
    """Remove a flow from the active flows."""
    flows, book = s.flows, s.book
    book.tally[ACTIVE] -= 1
    # The last active flow takes its place, and the slot at the end has no next event.
    last = book.active[book.tally[ACTIVE]]
    book.active[flows[flow].place] = last
    set_next_event(s, flows[flow].place, book.coming[book.tally[ACTIVE]])
    set_next_event(s, book.tally[ACTIVE], np.inf)
    flows[last].place = flows[flow].place
    flows[flow].doing = IDLE
