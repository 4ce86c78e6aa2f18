"""The compiled loop of :mod:`simulator.engine.fluid`: what the flow engine does, without SimPy.

Event for event what :mod:`simulator.engine.flow` and :mod:`simulator.engine.meeting` say: events
come in order of time, of those of one instant the judging last, and of equal ones the one that was
made first. Nothing is allocated here: where room is missing, or a call's transfers have not been
written yet, :func:`go_on` says so before anything has happened, and is called again.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.crowd_loop import abandon, advance, begin, move_in, reset
from simulator.costing.crowd_state import OVER as CALLS_OVER
from simulator.costing.crowd_state import State, records
from simulator.engine.propagate import Columns, leave, release
from simulator.heap import Heap, pop, push
from simulator.hot import hot_loop
from simulator.workload import Floats, Matrix

Ints = NDArray[np.int64]

START, END_ALONE, JUDGE, END_FOLDED, END_TOGETHER, WAKE = 0, 1, 2, 3, 4, 5
"""Events: a call starts; ends that is on no link; who meets is judged; a folded call ends, unless
it has met others; calls end that share links; those have something to do again."""
NORMAL, AFTER = 0, 1
"""What is ``AFTER`` comes behind all else of its instant."""
_SLOTS, _ORDER = 28, 61
"""Bits of an event's number in its heap item, above which is when it was made; and where the
priority is."""
NOBODY = -1

DONE, PAUSED, NEEDS_PROGRAM, NEEDS_EVENTS = 0, 1, 2, 3
"""Why the loop came back."""

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


class World(NamedTuple):
    """All of it.

    ``crowd`` has the calls that share links, ``past`` makes up what a folded one is in the middle
    of; ``local`` is the ranks' time. ``links`` are those of the works; ``idle`` the free events,
    ``new`` the calls to judge, ``held`` scratch. ``alone`` is where the time of each work goes
    alone, ``spent`` that of each call (s), shape ``(…, resources + 1)``.
    """

    crowd: State
    past: State
    local: Columns
    calls: Annotated[Any, CALL]
    works: Annotated[Any, WORK]
    wires: Annotated[Any, WIRE]
    events: Annotated[Any, EVENT]
    heap: Heap
    idle: Ints
    links: Ints
    new: Ints
    held: Ints
    alone: Matrix
    spent: Matrix
    clock: Floats
    tally: Ints


@hot_loop
def set_out(w: World, roots: int) -> None:
    """Release the ops at the front of the queue, which wait for nothing."""
    local = w.local
    _schedule(w, release(local.queue, local.edges, local.work, local.ops, local.calls, roots))


@hot_loop
def go_on(w: World, most: int) -> int:
    """Go on until ``most`` calls more have ended, nothing is left, or something is needed."""
    tally, heap = w.tally, w.heap
    limit = tally[ENDED] + most
    while tally[QUEUED] > 0:
        if tally[IDLE] < len(w.calls) + 4:
            return NEEDS_EVENTS
        slot = heap.item[0] & ((1 << _SLOTS) - 1)
        if w.events[slot].kind == JUDGE:
            tally[LACKING] = _lacking(w)
            if tally[LACKING] >= 0:
                return NEEDS_PROGRAM
        w.clock[NOW] = heap.key[0]
        tally[QUEUED] = pop(heap, tally[QUEUED])
        w.idle[tally[IDLE]] = slot
        tally[IDLE] += 1
        tally[PASSED] += 1
        _happen(w, w.events[slot].kind, w.events[slot].what, w.events[slot].due)
        if tally[ENDED] >= limit:
            return PAUSED
    return DONE


@hot_loop
def _happen(w: World, kind: int, what: int, due: float) -> None:
    if kind == START:
        _start(w, what)
    elif kind == END_ALONE:
        _spend_alone(w, what)
        _end(w, what)
    elif kind == JUDGE:
        _judge(w)
    elif kind == END_FOLDED:
        _end_folded(w, what)
    elif kind == END_TOGETHER:
        _end_together(w, what)
    else:
        w.tally[WAKES] -= 1
        if due == w.clock[NEXT_WAKE]:
            w.clock[NEXT_WAKE] = np.inf
            _judge_later(w)


@hot_loop
def _at(w: World, time: float, priority: int, kind: int, what: int) -> int:
    """Make an event at a time (s), or now if that has passed; return which it is."""
    tally = w.tally
    tally[IDLE] -= 1
    slot = int(w.idle[tally[IDLE]])
    w.events[slot].kind, w.events[slot].what = kind, what
    item = (priority << _ORDER) | (tally[MADE] << _SLOTS) | slot
    tally[MADE] += 1
    tally[QUEUED] = push(w.heap, tally[QUEUED], max(time, w.clock[NOW]), item)
    return slot


@hot_loop
def _schedule(w: World, count: int) -> None:
    """Make events of the calls at the front of the queue, which can start."""
    for place in range(count):
        call = w.local.queue[place]
        _at(w, w.local.calls.start[call], NORMAL, START, call)


@hot_loop
def _judge_later(w: World) -> None:
    if not w.tally[JUDGING]:
        w.tally[JUDGING] = 1
        _at(w, w.clock[NOW], AFTER, JUDGE, NOBODY)


@hot_loop
def _start(w: World, call: int) -> None:
    calls, works, tally = w.calls, w.works, w.tally
    work = calls[call].work
    if works[work].order < 0:
        works[work].order = tally[BEGUN]
        tally[BEGUN] += 1
    works[work].factors += calls[call].factor
    calls[call].begun = w.clock[NOW]
    if works[work].first == works[work].last:
        end = w.clock[NOW] + works[work].time * calls[call].factor
        _at(w, end, NORMAL, END_ALONE, call)
        return
    _occupy(w, work, 1)
    w.new[tally[NEW]] = call
    tally[NEW] += 1
    _judge_later(w)


@hot_loop
def _occupy(w: World, work: int, by: int) -> None:
    for place in range(w.works[work].first, w.works[work].last):
        w.wires[w.links[place]].present += by


@hot_loop
def _hold(w: World, work: int, holder: int) -> None:
    for place in range(w.works[work].first, w.works[work].last):
        w.wires[w.links[place]].holder = holder


@hot_loop
def _meets(w: World, work: int) -> bool:
    """Whether another call is on one of the links of one that is on them."""
    for place in range(w.works[work].first, w.works[work].last):
        if w.wires[w.links[place]].present > 1:
            return True
    return False


@hot_loop
def _end(w: World, call: int) -> None:
    """End a call: its ranks go on."""
    local = w.local
    w.tally[ENDED] += 1
    local.calls.end[call] = w.clock[NOW]
    _schedule(w, leave(local.queue, local.edges, local.work, local.ops, local.calls, call))


@hot_loop
def _spend_alone(w: World, call: int) -> None:
    work, factor = w.calls[call].work, w.calls[call].factor
    for part in range(w.spent.shape[1]):
        w.spent[call, part] = w.alone[work, part] * factor


@hot_loop
def _fold(w: World, call: int) -> None:
    calls, works = w.calls, w.works
    w.tally[FOLDED] += 1
    calls[call].number = w.tally[FOLDED]
    calls[call].folded = 1
    _hold(w, calls[call].work, call)
    end = w.clock[NOW] + works[calls[call].work].time * calls[call].factor
    _at(w, end, NORMAL, END_FOLDED, call)


@hot_loop
def _end_folded(w: World, call: int) -> None:
    """End a call that was alone all the time."""
    calls = w.calls
    if not calls[call].folded:
        return
    calls[call].folded = 0
    _hold(w, calls[call].work, NOBODY)
    _occupy(w, calls[call].work, -1)
    _spend_alone(w, call)
    _end(w, call)


@hot_loop
def _lacking(w: World) -> int:
    """Find a work of which there are fewer places than judging may need; none: -1."""
    tally, calls = w.tally, w.calls
    tally[STAMP] += 1
    for number in range(tally[NEW]):
        work = int(calls[w.new[number]].work)
        if not _meets(w, work):
            continue
        if _lacks(w, work):
            return work
        for place in range(w.works[work].first, w.works[work].last):
            holder = w.wires[w.links[place]].holder
            if holder == NOBODY or calls[holder].mark == tally[STAMP]:
                continue
            calls[holder].mark = tally[STAMP]
            if _lacks(w, calls[holder].work):
                return int(calls[holder].work)
    return NOBODY


@hot_loop
def _lacks(w: World, work: int) -> bool:
    """Count a call that may want a place; say whether there is none for it."""
    works, stamp = w.works, w.tally[STAMP]
    if works[work].mark != stamp:
        works[work].mark = stamp
        works[work].wanted = 0
    works[work].wanted += 1
    return bool(works[work].past < 0 or works[work].wanted > works[work].spare)


@hot_loop
def _judge(w: World) -> None:
    """Fold who is alone, take transfer by transfer who is not, and go on until a call ends."""
    tally, calls, new = w.tally, w.calls, w.new
    tally[JUDGING] = 0
    meeting = 0
    for number in range(tally[NEW]):
        call = new[number]
        if _meets(w, calls[call].work):
            new[meeting] = call
            meeting += 1
        else:
            _fold(w, call)
    tally[NEW] = meeting
    if meeting and _advance(w, w.clock[NOW]):
        return
    tally[NEW] = 0
    for number in range(meeting):
        _unfold(w, calls[new[number]].work)
        _join(w, new[number])
    until = w.heap.key[0] if tally[QUEUED] else np.inf
    if tally[MET] and not _advance(w, until):
        _wake_by(w, w.crowd.book.clock[1])


@hot_loop
def _place(w: World, call: int) -> int:
    """Take a place in the crowd for a call."""
    work = w.calls[call].work
    number = int(w.works[work].free)
    w.works[work].free = w.crowd.calls[number].next
    w.works[work].spare -= 1
    w.crowd.calls[number].owner = call
    w.tally[MET] += 1
    return number


@hot_loop
def _join(w: World, call: int) -> None:
    """Let a call share links from its begin on."""
    number = _place(w, call)
    _begin(w.crowd, number, w.calls[call].factor, w.works[w.calls[call].work].overhead)


@hot_loop
def _begin(s: State, number: int, factor: float, overhead: float) -> None:
    reset(s, number, factor)
    for part in range(s.call_spent.shape[1]):
        s.call_spent[number, part] = 0.0
    s.call_spent[number, s.call_spent.shape[1] - 1] = overhead * factor
    begin(s, number, overhead * factor)


@hot_loop
def _unfold(w: World, work: int) -> None:
    """Take the folded calls on a work's links transfer by transfer from now on.

    One that is about to end stays as it is.
    """
    calls, past = w.calls, w.past
    for number in range(_holders(w, work)):
        call = w.held[number]
        place = w.works[calls[call].work].past
        past.book.clock[0] = calls[call].begun
        _begin(past, place, calls[call].factor, w.works[calls[call].work].overhead)
        if advance(past, w.clock[NOW]):
            past.book.tally[CALLS_OVER] = 0
            continue
        past.book.clock[0] = w.clock[NOW]
        move_in(w.crowd, _place(w, call), past, place)
        calls[call].folded = 0
        _hold(w, calls[call].work, NOBODY)
        abandon(past, past.calls[place].first_flow, past.calls[place].last_flow)


@hot_loop
def _holders(w: World, work: int) -> int:
    """List the folded calls on a work's links in the order in which they were; return how many."""
    calls, held, tally = w.calls, w.held, w.tally
    tally[STAMP] += 1
    many = 0
    for place in range(w.works[work].first, w.works[work].last):
        call = w.wires[w.links[place]].holder
        if call == NOBODY or calls[call].mark == tally[STAMP]:
            continue
        calls[call].mark = tally[STAMP]
        slot = many
        while slot > 0 and calls[held[slot - 1]].number > calls[call].number:
            held[slot] = held[slot - 1]
            slot -= 1
        held[slot] = call
        many += 1
    return many


@hot_loop
def _advance(w: World, until: float) -> bool:
    """Let the crowd go on until then; if calls end on the way, end them when it is time."""
    book, now = w.crowd.book, w.clock[NOW]
    if not advance(w.crowd, until):
        book.clock[0] = max(book.clock[0], now)
        return False
    first = NOBODY
    for number in range(book.tally[CALLS_OVER] - 1, -1, -1):
        w.crowd.calls[book.over[number]].next = first
        first = book.over[number]
    book.tally[CALLS_OVER] = 0
    _at(w, book.clock[0], NORMAL, END_TOGETHER, first)
    return True


@hot_loop
def _end_together(w: World, number: int) -> None:
    """End calls that shared links, which are over at the same instant."""
    places, works = w.crowd.calls, w.works
    _judge_later(w)
    while number >= 0:
        after, call = places[number].next, places[number].owner
        work = w.calls[call].work
        w.tally[MET] -= 1
        for part in range(w.spent.shape[1]):
            w.spent[call, part] = w.crowd.call_spent[number, part]
        places[number].next = works[work].free
        works[work].free = number
        works[work].spare += 1
        _occupy(w, work, -1)
        _end(w, call)
        number = after


@hot_loop
def _wake_by(w: World, due: float) -> None:
    if due < w.clock[NEXT_WAKE]:
        w.clock[NEXT_WAKE] = due
        w.tally[WAKES] += 1
        w.events[_at(w, due, AFTER, WAKE, NOBODY)].due = due
