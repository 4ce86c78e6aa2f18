"""The compiled event loop of :mod:`simulator.engine.flow`.

A call starts, and is folded while it has its links to itself: it ends after what it takes alone. As
soon as another is on one of its links both are taken transfer by transfer from the middle of what
they are in (:mod:`simulator.transfers.loop`). What begins at one instant is judged together: events
come in order of time, of those of one instant the judging last, and of equal ones the one that was
made first.

Nothing is allocated here: where room is missing, or a call's transfers have not been written yet,
:func:`go_on` says so before anything has happened, and is called again.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.engine.simulation import Columns, leave, release
from simulator.support.arrays import Floats, Longs, Matrix, records
from simulator.support.compiled import hot_loop
from simulator.support.heap import Heap, pop, push
from simulator.transfers.fair_shares import OVER as CALLS_OVER
from simulator.transfers.fair_shares import State
from simulator.transfers.loop import abandon, advance, begin, move_in, reset

START, END_ALONE, JUDGE, END_FOLDED, END_TOGETHER, WAKE, ALARM = 0, 1, 2, 3, 4, 5, 6
"""Events: a call starts; ends that is on no link; who meets is judged; a folded call ends, unless
it has met others; calls end that share links; those have something to do again; Python wants to be
called."""
NORMAL, AFTER = 0, 1
"""What is ``AFTER`` comes behind all else of its instant."""
_SLOTS, _ORDER = 28, 61
"""Bits of an event's number in its heap item, above which is when it was made; and where the
priority is."""
NOBODY = -1

DONE, PAUSED, NEEDS_PROGRAM, NEEDS_EVENTS, RANG = 0, 1, 2, 3, 4
"""Why the loop came back; which alarm rang is in the tally ``LACKING``."""

CALL = records("work folded number mark", "factor begun")
"""A call: which of the distinct ones it is; ``number`` counts those folded."""
WORK = records("first last past free spare wanted mark order", "time overhead factors")
"""What a call is to the links: its links ``first`` to ``last``, how long it takes alone (s) and its
software before the first transfer (s).

``past`` is its place in the crowd of the past, ``free`` the first of its places in the other that
are free, of which there are ``spare``; ``factors`` adds those of the calls that have begun, the
first of them as the ``order``-th.
"""
WIRE = records("present holder")
"""A link: how many calls are on it, and the folded one."""
EVENT = records("kind what", "due")

NEW, QUEUED, IDLE, MADE, MET, JUDGING, ENDED, FOLDED, WAKES, BEGUN, STAMP, LACKING, PASSED = range(
    13
)
"""Tallies: calls to judge, events in the heap, free events, events made so far, calls in the crowd,
whether judging is due, calls over, calls folded so far, wake-ups, works begun, marks, the work
whose program is lacking, and events that have happened."""
TALLIES = 13
NOW, NEXT_WAKE = 0, 1


class Control(NamedTuple):
    """Calls, the links that they are on, and events: all but transfers and the ranks' time.

    ``links`` are those of the works; ``idle`` the free events, ``new`` the calls to judge, ``held``
    scratch. What needs no more than this is given no more: every array of a tuple is an argument of
    seven to the compiler.
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
    """All of it.

    ``crowd`` has the calls that share links, ``past`` makes up what a folded one is in the middle
    of; ``local`` is the ranks' time. ``alone`` is where the time of each work goes alone, ``spent``
    that of each call (s), shape ``(…, resources + 1)``.
    """

    control: Control
    crowd: State
    past: State
    local: Columns
    alone: Matrix
    spent: Matrix


@hot_loop
def set_out(control: Control, local: Columns, roots: int) -> None:
    """Release the ops at the front of the queue, which wait for nothing."""
    released = release(local.queue, local.edges, local.work, local.ops, local.calls, roots)
    _schedule(control, local.queue, local.calls.start, released)


@hot_loop
def set_alarm(control: Control, time: float, what: int) -> None:
    """Have :func:`go_on` come back at a time (s); there must be a free event."""
    _at(control, time, NORMAL, ALARM, what)


@hot_loop
def go_on(w: World, most: int) -> int:
    """Go on until ``most`` calls more have ended, nothing is left, or something is needed."""
    control = w.control
    tally, events = control.tally, control.events
    limit = tally[ENDED] + most
    while tally[QUEUED] > 0:
        reason = _prepare(control)
        if reason != DONE:
            return reason
        slot = _take(control)
        # Read now: the slot is free, and whatever happens next may take it for an event of its own.
        kind, what = events[slot].kind, events[slot].what
        if kind == ALARM:
            tally[LACKING] = what
            return RANG
        if kind == JUDGE:
            _judge(control, w.crowd, w.past)
        elif kind == END_TOGETHER:
            _end_together(w, what)
        elif _happen(control, kind, what, events[slot].due):
            _spend_alone(control, w.alone, w.spent, what)
            _end(control, w.local, what)
        if tally[ENDED] >= limit:
            return PAUSED
    return DONE


@hot_loop
def _happen(control: Control, kind: int, what: int, due: float) -> bool:
    """Let a call start, wake those that share links, or say that a call ends that met nobody."""
    if kind == START:
        _start(control, what)
    elif kind == WAKE:
        _wake(control, due)
    elif kind == END_FOLDED:
        return _let_go(control, what)
    return kind == END_ALONE


@hot_loop
def _prepare(control: Control) -> int:
    """Say what the next event lacks; nothing: ``DONE``."""
    tally = control.tally
    # At one instant every call may start or end, and judging, a wake-up and an alarm come besides.
    if tally[IDLE] < len(control.calls) + 4:
        return NEEDS_EVENTS
    if control.events[control.heap.item[0] & ((1 << _SLOTS) - 1)].kind == JUDGE:
        tally[LACKING] = _lacking(control)
        if tally[LACKING] >= 0:
            return NEEDS_PROGRAM
    return DONE


@hot_loop
def _take(control: Control) -> int:
    """Take the next event from the heap and free its slot, which nobody fills before it is read."""
    tally, heap = control.tally, control.heap
    slot = heap.item[0] & ((1 << _SLOTS) - 1)
    control.clock[NOW] = heap.key[0]
    tally[QUEUED] = pop(heap, tally[QUEUED])
    control.idle[tally[IDLE]] = slot
    tally[IDLE] += 1
    tally[PASSED] += 1
    return int(slot)


@hot_loop
def _wake(control: Control, due: float) -> None:
    control.tally[WAKES] -= 1
    if due == control.clock[NEXT_WAKE]:
        control.clock[NEXT_WAKE] = np.inf
        _judge_later(control)


@hot_loop
def _at(control: Control, time: float, priority: int, kind: int, what: int) -> int:
    """Make an event at a time (s), or now if that has passed; return which it is."""
    tally = control.tally
    tally[IDLE] -= 1
    slot = int(control.idle[tally[IDLE]])
    control.events[slot].kind, control.events[slot].what = kind, what
    # Among events of one time the heap takes the least item: priority first, then age; the slot in
    # the low bits only says where the event is.
    item = (priority << _ORDER) | (tally[MADE] << _SLOTS) | slot
    tally[MADE] += 1
    tally[QUEUED] = push(control.heap, tally[QUEUED], max(time, control.clock[NOW]), item)
    return slot


@hot_loop
def _schedule(control: Control, queue: NDArray[np.int32], start: Floats, count: int) -> None:
    """Make events of the calls at the front of the queue, which can start."""
    for index in range(count):
        call = queue[index]
        _at(control, start[call], NORMAL, START, call)


@hot_loop
def _judge_later(control: Control) -> None:
    if not control.tally[JUDGING]:
        control.tally[JUDGING] = 1
        _at(control, control.clock[NOW], AFTER, JUDGE, NOBODY)


@hot_loop
def _start(control: Control, call: int) -> None:
    calls, works, tally = control.calls, control.works, control.tally
    work = calls[call].work
    if works[work].order < 0:
        works[work].order = tally[BEGUN]
        tally[BEGUN] += 1
    # Bytes of a work are counted once at the end, times the sum of the factors it began with.
    works[work].factors += calls[call].factor
    calls[call].begun = control.clock[NOW]
    if works[work].first == works[work].last:
        end = control.clock[NOW] + works[work].time * calls[call].factor
        _at(control, end, NORMAL, END_ALONE, call)
        return
    _occupy(control, work, 1)
    control.new[tally[NEW]] = call
    tally[NEW] += 1
    _judge_later(control)


@hot_loop
def _occupy(control: Control, work: int, by: int) -> None:
    for index in range(control.works[work].first, control.works[work].last):
        control.wires[control.links[index]].present += by


@hot_loop
def _hold(control: Control, work: int, holder: int) -> None:
    for index in range(control.works[work].first, control.works[work].last):
        control.wires[control.links[index]].holder = holder


@hot_loop
def _meets(control: Control, work: int) -> bool:
    """Whether another call is on one of the links of one that is on them."""
    for index in range(control.works[work].first, control.works[work].last):
        if control.wires[control.links[index]].present > 1:
            return True
    return False


@hot_loop
def _end(control: Control, local: Columns, call: int) -> None:
    """End a call: its ranks go on."""
    control.tally[ENDED] += 1
    local.calls.end[call] = control.clock[NOW]
    released = leave(local.queue, local.edges, local.work, local.ops, local.calls, call)
    _schedule(control, local.queue, local.calls.start, released)


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
    _hold(control, calls[call].work, call)
    end = control.clock[NOW] + works[calls[call].work].time * calls[call].factor
    _at(control, end, NORMAL, END_FOLDED, call)


@hot_loop
def _let_go(control: Control, call: int) -> bool:
    """Take a folded call from its links; say whether it still was one: it has met nobody."""
    calls = control.calls
    if not calls[call].folded:
        return False
    calls[call].folded = 0
    _hold(control, calls[call].work, NOBODY)
    _occupy(control, calls[call].work, -1)
    return True


@hot_loop
def _lacking(control: Control) -> int:
    """Find a work of which there are fewer places than judging may need; none: -1."""
    tally, calls = control.tally, control.calls
    tally[STAMP] += 1
    for number in range(tally[NEW]):
        work = int(calls[control.new[number]].work)
        if not _meets(control, work):
            continue
        if _lacks(control, work):
            return work
        for index in range(control.works[work].first, control.works[work].last):
            holder = control.wires[control.links[index]].holder
            if holder == NOBODY or calls[holder].mark == tally[STAMP]:
                continue
            calls[holder].mark = tally[STAMP]
            if _lacks(control, calls[holder].work):
                return int(calls[holder].work)
    return NOBODY


@hot_loop
def _lacks(control: Control, work: int) -> bool:
    """Count a call that may want a place; say whether there is none for it."""
    works, stamp = control.works, control.tally[STAMP]
    if works[work].mark != stamp:
        works[work].mark = stamp
        works[work].wanted = 0
    works[work].wanted += 1
    return bool(works[work].past < 0 or works[work].wanted > works[work].spare)


@hot_loop
def _judge(control: Control, crowd: State, past: State) -> None:
    """Fold who is alone, take transfer by transfer who is not, and go on until a call ends."""
    tally, calls, new = control.tally, control.calls, control.new
    tally[JUDGING] = 0
    meeting = 0
    for number in range(tally[NEW]):
        call = new[number]
        if _meets(control, calls[call].work):
            new[meeting] = call
            meeting += 1
        else:
            _fold(control, call)
    tally[NEW] = meeting
    # The crowd first comes to this instant; if calls end in it, their links may be free after all,
    # and those that begin are judged again behind that.
    if meeting and _advance(control, crowd, control.clock[NOW]):
        return
    tally[NEW] = 0
    for number in range(meeting):
        _unfold(control, crowd, past, calls[new[number]].work)
        _join(control, crowd, new[number])
    until = control.heap.key[0] if tally[QUEUED] else np.inf
    # Nothing can join before the next event: up to there the crowd goes on by itself.
    if tally[MET] and not _advance(control, crowd, until):
        _wake_by(control, crowd.book.clock[1])


@hot_loop
def _place(control: Control, crowd: State, call: int) -> int:
    """Take a place in the crowd for a call."""
    work = control.calls[call].work
    number = int(control.works[work].free)
    control.works[work].free = crowd.calls[number].next
    control.works[work].spare -= 1
    crowd.calls[number].owner = call
    control.tally[MET] += 1
    return number


@hot_loop
def _join(control: Control, crowd: State, call: int) -> None:
    """Let a call share links from its begin on."""
    number = _place(control, crowd, call)
    _begin(
        crowd, number, control.calls[call].factor, control.works[control.calls[call].work].overhead
    )


@hot_loop
def _begin(s: State, number: int, factor: float, overhead: float) -> None:
    reset(s, number, factor)
    for part in range(s.call_spent.shape[1]):
        s.call_spent[number, part] = 0.0
    s.call_spent[number, s.call_spent.shape[1] - 1] = overhead * factor
    begin(s, number, overhead * factor)


@hot_loop
def _unfold(control: Control, crowd: State, past: State, work: int) -> None:
    """Take the folded calls on a work's links transfer by transfer from now on.

    One that is about to end stays as it is.
    """
    calls = control.calls
    for number in range(_holders(control, work)):
        call = control.held[number]
        past_call = control.works[calls[call].work].past
        past.book.clock[0] = calls[call].begun
        _begin(past, past_call, calls[call].factor, control.works[calls[call].work].overhead)
        # Played back from its begin to now, by itself: so far nobody has shared its links.
        if advance(past, control.clock[NOW]):
            past.book.tally[CALLS_OVER] = 0
            continue
        past.book.clock[0] = control.clock[NOW]
        move_in(crowd, _place(control, crowd, call), past, past_call)
        calls[call].folded = 0
        _hold(control, calls[call].work, NOBODY)
        abandon(past, past.calls[past_call].first_flow, past.calls[past_call].last_flow)


@hot_loop
def _holders(control: Control, work: int) -> int:
    """List the folded calls on a work's links in the order in which they were; return how many."""
    calls, holders, tally = control.calls, control.held, control.tally
    tally[STAMP] += 1
    many = 0
    for index in range(control.works[work].first, control.works[work].last):
        call = control.wires[control.links[index]].holder
        if call == NOBODY or calls[call].mark == tally[STAMP]:
            continue
        calls[call].mark = tally[STAMP]
        # Insertion sort: links name holders in any order, and few calls hold those of one.
        slot = many
        while slot > 0 and calls[holders[slot - 1]].number > calls[call].number:
            holders[slot] = holders[slot - 1]
            slot -= 1
        holders[slot] = call
        many += 1
    return many


@hot_loop
def _advance(control: Control, crowd: State, until: float) -> bool:
    """Let the crowd go on until then; if calls end on the way, end them when it is time."""
    book, now = crowd.book, control.clock[NOW]
    if not advance(crowd, until):
        book.clock[0] = max(book.clock[0], now)
        return False
    # Chained from the last to the first, so that the chain has them in the order of their ends.
    first = NOBODY
    for number in range(book.tally[CALLS_OVER] - 1, -1, -1):
        crowd.calls[book.over[number]].next = first
        first = book.over[number]
    book.tally[CALLS_OVER] = 0
    _at(control, book.clock[0], NORMAL, END_TOGETHER, first)
    return True


@hot_loop
def _end_together(w: World, number: int) -> None:
    """End calls that shared links, which are over at the same instant."""
    control, places, works = w.control, w.crowd.calls, w.control.works
    _judge_later(control)
    while number >= 0:
        after, call = places[number].next, places[number].owner
        work = control.calls[call].work
        control.tally[MET] -= 1
        for part in range(w.spent.shape[1]):
            w.spent[call, part] = w.crowd.call_spent[number, part]
        places[number].next = works[work].free
        works[work].free = number
        works[work].spare += 1
        _occupy(control, work, -1)
        _end(control, w.local, call)
        number = after


@hot_loop
def _wake_by(control: Control, due: float) -> None:
    if due < control.clock[NEXT_WAKE]:
        control.clock[NEXT_WAKE] = due
        control.tally[WAKES] += 1
        control.events[_at(control, due, AFTER, WAKE, NOBODY)].due = due
