"""The compiled event loop of :mod:`simulator.engine.flow`.

While a call has its links to itself it is *folded*: a single event ends it after its time alone. As
soon as another call uses one of its links, both are simulated transfer by transfer, from where they
are at that moment (:mod:`simulator.transfers.loop`). Calls that start at one instant are checked
for contention together, so events are ordered by time, then by priority (contention comes last),
then by age.

Nothing is allocated here. Where an array is full, or the transfers of a call have not been written
out yet, :func:`run_events` returns the reason before it handles the event, and is called again.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.simulation import Columns, end_call, release
from simulator.support.arrays import Floats, Longs, Matrix, records
from simulator.support.compiled import hot_loop
from simulator.support.heap import Heap, pop, push
from simulator.transfers.fair_shares import OVER as CALLS_OVER
from simulator.transfers.fair_shares import State
from simulator.transfers.loop import adopt_call, advance, begin_call, drop_flows, reset_call

START, END_ALONE, CONTENTION, END_FOLDED, END_TOGETHER, WAKE, ALARM = 0, 1, 2, 3, 4, 5, 6
"""Events: a call starts; a call without links ends; contention is resolved; a folded call ends,
unless it has been unfolded since; contended calls end; the next event among contended calls is due;
the caller asked to be called at this time."""
NORMAL, LAST = 0, 1
"""Priorities: events with ``LAST`` are handled after all others of the same instant."""
_SLOTS, _ORDER = 28, 61
"""A heap item has the event's slot in its lowest bits, then its age, and its priority on top: the
number of bits of the slot, and the first bit of the priority."""
NOBODY = -1

DONE, PAUSED, NEEDS_PROGRAM, NEEDS_EVENTS, RANG = 0, 1, 2, 3, 4
"""Why :func:`run_events` returned; the tally ``LACKING`` says which alarm rang."""

CALL = records("work folded number mark", "factor begun")
"""A call: ``work`` is the index of its distinct call, ``number`` its position among the folded."""
WORK = records("first last past free spare wanted mark order", "time overhead factors")
"""A distinct call: its links ``first`` to ``last``, its time alone and the software overhead before
its first transfer (s).

``past`` is its place in the crowd that recomputes the past of folded calls; ``free`` is the first
of a linked list of ``spare`` unused places in the crowd of contended calls. ``factors`` is the sum
of the factors of its calls so far, ``order`` when the first of them began.
"""
WIRE = records("present holder")
"""A link: the number of calls that use it now, and the folded call among them."""
EVENT = records("kind what", "due")

NEW, QUEUED, IDLE, MADE, IN_CROWD, DUE, ENDED, FOLDED, WAKES, BEGUN, STAMP, LACKING, HANDLED = (
    range(13)
)
"""Counters: calls to check for contention, events in the heap, free event slots, events made so
far, calls in the crowd, whether a contention event is due, calls ended, calls folded so far,
wake-ups queued, distinct calls begun, the latest mark, the distinct call without a place (or the
alarm), and events handled."""
TALLIES = 13
NOW, NEXT_WAKE = 0, 1


class Control(NamedTuple):
    """Calls, links and events: all state but that of transfers and ranks.

    ``links`` are the links of the distinct calls, ``idle`` the free event slots, ``new`` the calls
    to check for contention, ``held`` scratch. Functions that need no more are given no more: for
    each array of a tuple the compiler passes seven arguments.
    """

    calls: Annotated[Any, CALL]
    works: Annotated[Any, WORK]
    wires: Annotated[Any, WIRE]
    events: Annotated[Any, EVENT]
    heap: Heap
    idle: Longs
    links: Longs
    new: Longs
    held: Longs
    clock: Floats
    tally: Longs


class World(NamedTuple):
    """The whole state.

    ``crowd`` holds the contended calls; ``past`` recomputes how far a folded call has come;
    ``local`` is the state of ops and rendezvous. ``alone`` splits the time of each distinct call
    alone by resource, ``spent`` that of each call (s), shape ``(…, resources + 1)``.
    """

    control: Control
    crowd: State
    past: State
    local: Columns
    alone: Matrix
    spent: Matrix


@hot_loop
def schedule_roots(control: Control, local: Columns, roots: int) -> None:
    """Release the first ``roots`` ops of the queue, which wait for nothing."""
    released = release(local.queue, local.edges, local.work, local.ops, local.calls, roots)
    _schedule_starts(control, local.queue, local.calls.start, released)


@hot_loop
def set_alarm(control: Control, time: float, what: int) -> None:
    """Make :func:`run_events` return at a time (s); there must be a free event slot."""
    _add_event(control, time, NORMAL, ALARM, what)


@hot_loop
def run_events(w: World, most: int) -> int:
    """Handle events until ``most`` more calls have ended, none is left, or room is missing."""
    control = w.control
    tally, events = control.tally, control.events
    limit = tally[ENDED] + most
    while tally[QUEUED] > 0:
        reason = _missing_room(control)
        if reason != DONE:
            return reason
        slot = _pop_event(control)
        # Read first: the slot is free now, and handling the event may reuse it.
        kind, what = events[slot].kind, events[slot].what
        if kind == ALARM:
            tally[LACKING] = what
            return RANG
        if kind == CONTENTION:
            _resolve_contention(control, w.crowd, w.past)
        elif kind == END_TOGETHER:
            _end_contended(w, what)
        elif _dispatch(control, kind, what, events[slot].due):
            _spend_alone(control, w.alone, w.spent, what)
            _end_call(control, w.local, what)
        if tally[ENDED] >= limit:
            return PAUSED
    return DONE


@hot_loop
def _dispatch(control: Control, kind: int, what: int, due: float) -> bool:
    """Handle a start or a wake-up; return whether the event ends a call that met no other."""
    if kind == START:
        _start_call(control, what)
    elif kind == WAKE:
        _wake(control, due)
    elif kind == END_FOLDED:
        return _release_folded(control, what)
    return kind == END_ALONE


@hot_loop
def _missing_room(control: Control) -> int:
    """Return what is missing to handle the next event; ``DONE``: nothing."""
    tally = control.tally
    # At one instant every call may start or end; contention, a wake-up and an alarm come on top.
    if tally[IDLE] < len(control.calls) + 4:
        return NEEDS_EVENTS
    if control.events[control.heap.item[0] & ((1 << _SLOTS) - 1)].kind == CONTENTION:
        tally[LACKING] = _work_without_place(control)
        if tally[LACKING] >= 0:
            return NEEDS_PROGRAM
    return DONE


@hot_loop
def _pop_event(control: Control) -> int:
    """Pop the next event and free its slot, which the caller reads before it adds an event."""
    tally, heap = control.tally, control.heap
    slot = heap.item[0] & ((1 << _SLOTS) - 1)
    control.clock[NOW] = heap.key[0]
    tally[QUEUED] = pop(heap, tally[QUEUED])
    control.idle[tally[IDLE]] = slot
    tally[IDLE] += 1
    tally[HANDLED] += 1
    return int(slot)


@hot_loop
def _wake(control: Control, due: float) -> None:
    control.tally[WAKES] -= 1
    if due == control.clock[NEXT_WAKE]:
        control.clock[NEXT_WAKE] = np.inf
        _schedule_contention(control)


@hot_loop
def _add_event(control: Control, time: float, priority: int, kind: int, what: int) -> int:
    """Add an event at a time (s), or now if that has passed; return its slot."""
    tally = control.tally
    tally[IDLE] -= 1
    slot = int(control.idle[tally[IDLE]])
    control.events[slot].kind, control.events[slot].what = kind, what
    # Events of one time are ordered by item: by priority, then by age. The slot, in the lowest
    # bits, only says where the event is.
    item = (priority << _ORDER) | (tally[MADE] << _SLOTS) | slot
    tally[MADE] += 1
    tally[QUEUED] = push(control.heap, tally[QUEUED], max(time, control.clock[NOW]), item)
    return slot


@hot_loop
def _schedule_starts(control: Control, queue: NDArray[np.int32], start: Floats, count: int) -> None:
    """Add a start event for each of the first ``count`` calls of the queue."""
    for index in range(count):
        call = queue[index]
        _add_event(control, start[call], NORMAL, START, call)


@hot_loop
def _schedule_contention(control: Control) -> None:
    if not control.tally[DUE]:
        control.tally[DUE] = 1
        _add_event(control, control.clock[NOW], LAST, CONTENTION, NOBODY)


@hot_loop
def _start_call(control: Control, call: int) -> None:
    calls, works, tally = control.calls, control.works, control.tally
    work = calls[call].work
    if works[work].order < 0:
        works[work].order = tally[BEGUN]
        tally[BEGUN] += 1
    # Bytes on links are added once, at the end: those of the distinct call times this sum.
    works[work].factors += calls[call].factor
    calls[call].begun = control.clock[NOW]
    if works[work].first == works[work].last:
        end = control.clock[NOW] + works[work].time * calls[call].factor
        _add_event(control, end, NORMAL, END_ALONE, call)
        return
    _count_on_links(control, work, 1)
    control.new[tally[NEW]] = call
    tally[NEW] += 1
    _schedule_contention(control)


@hot_loop
def _count_on_links(control: Control, work: int, by: int) -> None:
    for index in range(control.works[work].first, control.works[work].last):
        control.wires[control.links[index]].present += by


@hot_loop
def _set_holder(control: Control, work: int, holder: int) -> None:
    for index in range(control.works[work].first, control.works[work].last):
        control.wires[control.links[index]].holder = holder


@hot_loop
def _shares_a_link(control: Control, work: int) -> bool:
    """Whether a second call uses one of the links of a call that is on them already."""
    for index in range(control.works[work].first, control.works[work].last):
        if control.wires[control.links[index]].present > 1:
            return True
    return False


@hot_loop
def _end_call(control: Control, local: Columns, call: int) -> None:
    """End a call and schedule the calls that can start then."""
    control.tally[ENDED] += 1
    local.calls.end[call] = control.clock[NOW]
    released = end_call(local.queue, local.edges, local.work, local.ops, local.calls, call)
    _schedule_starts(control, local.queue, local.calls.start, released)


@hot_loop
def _spend_alone(control: Control, alone: Matrix, spent: Matrix, call: int) -> None:
    work, factor = control.calls[call].work, control.calls[call].factor
    for part in range(spent.shape[1]):
        spent[call, part] = alone[work, part] * factor


@hot_loop
def _fold(control: Control, call: int) -> None:
    calls, works = control.calls, control.works
    control.tally[FOLDED] += 1
    calls[call].number = control.tally[FOLDED]
    calls[call].folded = 1
    _set_holder(control, calls[call].work, call)
    end = control.clock[NOW] + works[calls[call].work].time * calls[call].factor
    _add_event(control, end, NORMAL, END_FOLDED, call)


@hot_loop
def _release_folded(control: Control, call: int) -> bool:
    """Take a call off its links if it is still folded; return whether it was."""
    calls = control.calls
    if not calls[call].folded:
        return False
    calls[call].folded = 0
    _set_holder(control, calls[call].work, NOBODY)
    _count_on_links(control, calls[call].work, -1)
    return True


@hot_loop
def _work_without_place(control: Control) -> int:
    """Return a distinct call with fewer places than contention may need; -1: none."""
    tally, calls = control.tally, control.calls
    tally[STAMP] += 1
    for number in range(tally[NEW]):
        work = int(calls[control.new[number]].work)
        if not _shares_a_link(control, work):
            continue
        if _needs_place(control, work):
            return work
        for index in range(control.works[work].first, control.works[work].last):
            holder = control.wires[control.links[index]].holder
            if holder == NOBODY or calls[holder].mark == tally[STAMP]:
                continue
            calls[holder].mark = tally[STAMP]
            if _needs_place(control, calls[holder].work):
                return int(calls[holder].work)
    return NOBODY


@hot_loop
def _needs_place(control: Control, work: int) -> bool:
    """Count a call that may need a place; return whether there is none left for it."""
    works, stamp = control.works, control.tally[STAMP]
    if works[work].mark != stamp:
        works[work].mark = stamp
        works[work].wanted = 0
    works[work].wanted += 1
    return bool(works[work].past < 0 or works[work].wanted > works[work].spare)


@hot_loop
def _resolve_contention(control: Control, crowd: State, past: State) -> None:
    """Fold new calls that are alone on their links; simulate the others by transfers.

    Then advance the contended calls to the next event, or until one of them ends.
    """
    tally, calls, new = control.tally, control.calls, control.new
    tally[DUE] = 0
    meeting = 0
    for number in range(tally[NEW]):
        call = new[number]
        if _shares_a_link(control, calls[call].work):
            new[meeting] = call
            meeting += 1
        else:
            _fold(control, call)
    tally[NEW] = meeting
    # The crowd is advanced to this instant first. If calls end in it, links may have become free,
    # and the new calls are checked again after those ends.
    if meeting and _advance_crowd(control, crowd, control.clock[NOW]):
        return
    tally[NEW] = 0
    for number in range(meeting):
        _unfold(control, crowd, past, calls[new[number]].work)
        _join_crowd(control, crowd, new[number])
    until = control.heap.key[0] if tally[QUEUED] else np.inf
    # No call can join before the next event, so the crowd runs up to it without interruption.
    if tally[IN_CROWD] and not _advance_crowd(control, crowd, until):
        _schedule_wake(control, crowd.book.clock[1])


@hot_loop
def _take_place(control: Control, crowd: State, call: int) -> int:
    """Take one of the free places of a call's kind in the crowd; return its number."""
    work = control.calls[call].work
    number = int(control.works[work].free)
    control.works[work].free = crowd.calls[number].next
    control.works[work].spare -= 1
    crowd.calls[number].owner = call
    control.tally[IN_CROWD] += 1
    return number


@hot_loop
def _join_crowd(control: Control, crowd: State, call: int) -> None:
    """Simulate a call by transfers from its start."""
    number = _take_place(control, crowd, call)
    _begin(
        crowd, number, control.calls[call].factor, control.works[control.calls[call].work].overhead
    )


@hot_loop
def _begin(s: State, number: int, factor: float, overhead: float) -> None:
    reset_call(s, number, factor)
    for part in range(s.call_spent.shape[1]):
        s.call_spent[number, part] = 0.0
    s.call_spent[number, s.call_spent.shape[1] - 1] = overhead * factor
    begin_call(s, number, overhead * factor)


@hot_loop
def _unfold(control: Control, crowd: State, past: State, work: int) -> None:
    """Simulate the folded calls on these links by transfers from now on.

    One that ends at this instant stays folded.
    """
    calls = control.calls
    for number in range(_list_holders(control, work)):
        call = control.held[number]
        past_call = control.works[calls[call].work].past
        past.book.clock[0] = calls[call].begun
        _begin(past, past_call, calls[call].factor, control.works[calls[call].work].overhead)
        # Replayed alone from its start to now: until now no other call was on its links.
        if advance(past, control.clock[NOW]):
            past.book.tally[CALLS_OVER] = 0
            continue
        past.book.clock[0] = control.clock[NOW]
        adopt_call(crowd, _take_place(control, crowd, call), past, past_call)
        calls[call].folded = 0
        _set_holder(control, calls[call].work, NOBODY)
        drop_flows(past, past.calls[past_call].first_flow, past.calls[past_call].last_flow)


@hot_loop
def _list_holders(control: Control, work: int) -> int:
    """List the folded calls on these links in the order of folding; return how many there are."""
    calls, holders, tally = control.calls, control.held, control.tally
    tally[STAMP] += 1
    many = 0
    for index in range(control.works[work].first, control.works[work].last):
        call = control.wires[control.links[index]].holder
        if call == NOBODY or calls[call].mark == tally[STAMP]:
            continue
        calls[call].mark = tally[STAMP]
        # Insertion sort: links list their holders in any order, and there are few of them.
        slot = many
        while slot > 0 and calls[holders[slot - 1]].number > calls[call].number:
            holders[slot] = holders[slot - 1]
            slot -= 1
        holders[slot] = call
        many += 1
    return many


@hot_loop
def _advance_crowd(control: Control, crowd: State, until: float) -> bool:
    """Advance the crowd; if calls end on the way, add an event for that and return True."""
    book, now = crowd.book, control.clock[NOW]
    if not advance(crowd, until):
        book.clock[0] = max(book.clock[0], now)
        return False
    # Linked from the last to the first, so that the list is in the order of the ends.
    first = NOBODY
    for number in range(book.tally[CALLS_OVER] - 1, -1, -1):
        crowd.calls[book.over[number]].next = first
        first = book.over[number]
    book.tally[CALLS_OVER] = 0
    _add_event(control, book.clock[0], NORMAL, END_TOGETHER, first)
    return True


@hot_loop
def _end_contended(w: World, number: int) -> None:
    """End a linked list of contended calls, which end at the same instant."""
    control, places, works = w.control, w.crowd.calls, w.control.works
    _schedule_contention(control)
    while number >= 0:
        after, call = places[number].next, places[number].owner
        work = control.calls[call].work
        control.tally[IN_CROWD] -= 1
        for part in range(w.spent.shape[1]):
            w.spent[call, part] = w.crowd.call_spent[number, part]
        # The place goes back to the list of free ones of its distinct call.
        places[number].next = works[work].free
        works[work].free = number
        works[work].spare += 1
        _count_on_links(control, work, -1)
        _end_call(control, w.local, call)
        number = after


@hot_loop
def _schedule_wake(control: Control, due: float) -> None:
    if due < control.clock[NEXT_WAKE]:
        control.clock[NEXT_WAKE] = due
        control.tally[WAKES] += 1
        control.events[_add_event(control, due, LAST, WAKE, NOBODY)].due = due
