"""Transfers that share links, over time: what every rank of some calls does next, compiled.

Each rank takes its steps in order; a transfer starts when both its ends have ended all that they
send and receive in the steps before, waits its latency, and then moves its bytes at a max-min fair
share of its links (:mod:`simulator.engine.max_min`). That is what
:mod:`simulator.engine.transfers` says with SimPy, flow by flow; here it is a loop over arrays, so
that a call may be taken transfer by transfer wherever it matters. What joins or leaves changes the
shares of those only that it is connected with by links.

A call that is no list of transfers is one of a single rank, whose every step is one flow on all
its links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
_KEPT = 2**21
"""Links of flows of calls that have ended kept, at the most: the next like call takes their place."""


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

    ``count`` says how many are active, dirty, due, over, and how many searches there were.
    """

    clock: Floats
    count: Ints
    active: Ints
    due: Ints
    found: Ints
    over: Ints
    before: Floats


_ACTIVE, _DIRTY, _OVER, _STAMP = 0, 1, 2, 3


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
def _advance(s: State, until: float) -> bool:
    """Go on until a call is over, or to the last event that is not after ``until``."""
    book = s.book
    while True:
        if book.count[_DIRTY]:
            _share(s)
        coming = np.inf
        for place in range(book.count[_ACTIVE]):
            flow = book.active[place]
            due = s.flows.wakes[flow] if s.flows.doing[flow] == WAITS else s.flows.end[flow]
            coming = min(coming, due)
        book.clock[1] = coming
        if not coming <= until:
            return False
        book.clock[0] = max(coming, book.clock[0])
        _settle(s)
        if book.count[_OVER]:
            return True


@hot_loop
def _settle(s: State) -> None:
    """Let begin and end what does at this instant."""
    flows, book = s.flows, s.book
    now, many = book.clock[0], 0
    for place in range(book.count[_ACTIVE]):
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
    book.count[_ACTIVE] -= 1
    last = book.active[book.count[_ACTIVE]]
    book.active[flows.place[flow]] = last
    flows.place[last] = flows.place[flow]
    flows.doing[flow] = IDLE
    call, source, target = flows.call[flow], flows.source[flow], flows.target[flow]
    for part in range(len(book.before)):
        book.before[part] = flows.spent[flow, part]
    calls.left[call] -= 1
    if calls.left[call] == 0:
        for part in range(len(book.before)):
            calls.spent[call, part] = book.before[part]
        book.over[book.count[_OVER]] = call
        book.count[_OVER] += 1
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
    flows.place[flow] = book.count[_ACTIVE]
    book.active[book.count[_ACTIVE]] = flow
    book.count[_ACTIVE] += 1


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
    wires, count = s.wires, s.book.count
    if not wires.is_dirty[link]:
        wires.is_dirty[link] = 1
        wires.dirty[count[_DIRTY]] = link
        count[_DIRTY] += 1


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
    book.count[_STAMP] += 1
    stamp = book.count[_STAMP]
    links, many = _connected(s, stamp)
    unfixed = many
    while unfixed > 0:
        lowest = np.inf
        for number in range(links):
            link = wires.found[number]
            if wires.free[link] > 0:
                lowest = min(lowest, max(wires.left[link], 0.0) / wires.demand[link])
        full = 0
        for number in range(links):
            link = wires.found[number]
            if wires.free[link] > 0 and max(wires.left[link], 0.0) / wires.demand[
                link
            ] <= lowest * (1 + _SAME):
                wires.full[full] = link
                full += 1
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
def _connected(s: State, stamp: int) -> tuple[int, int]:
    """Find what is connected with dirty links; return how many links and flows."""
    flows, uses, wires, book = s.flows, s.uses, s.wires, s.book
    links = many = 0
    for number in range(book.count[_DIRTY]):
        link = wires.dirty[number]
        wires.is_dirty[link] = 0
        wires.mark[link] = stamp
        wires.found[links] = link
        links += 1
    book.count[_DIRTY] = 0
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
def _begin(s: State, call: int, delay: float) -> None:
    """Send every rank of a call into its first step, ``delay`` (s) from now."""
    calls, ranks, book = s.calls, s.ranks, s.book
    for part in range(len(book.before)):
        book.before[part] = calls.spent[call, part]
    for rank in range(calls.first_rank[call], calls.last_rank[call]):
        _go_on(s, rank, delay)


@hot_loop
def _rejoin(s: State, first: int, last: int) -> None:
    """Put flows that came with their state on the lists they belong to."""
    flows, uses, wires, book = s.flows, s.uses, s.wires, s.book
    for flow in range(first, last):
        if flows.doing[flow] == IDLE:
            continue
        flows.place[flow] = book.count[_ACTIVE]
        book.active[book.count[_ACTIVE]] = flow
        book.count[_ACTIVE] += 1
        if flows.doing[flow] != MOVES:
            continue
        for use in range(flows.first[flow], flows.last[flow]):
            head = wires.head[uses.link[use]]
            uses.before[use], uses.after[use] = -1, head
            if head >= 0:
                uses.before[head] = use
            wires.head[uses.link[use]] = use
            _soil(s, uses.link[use])


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What a call does, step by step and transfer by transfer, ready for a crowd.

    Of the flows of all distinct steps: ranks ``source`` and ``target`` of the group, the uses
    ``first:last`` of links, latency (s) and amount (B) of one step. ``row`` and the like are those
    of :class:`Rows`, with flows and rows counted from 0; run ``k`` has the rows from ``row[k]`` on,
    one for each of ``ranks``.
    """

    ranks: int
    source: Ints
    target: Ints
    latency: Floats
    amount: Floats
    latency_of: Matrix
    offset: Ints
    link: Ints
    weight: Floats
    row: Ints
    repeats: Ints
    stride: Ints
    row_offset: Ints
    row_flow: Ints
    transfers: int

    def on(self, link: Ints) -> "Program":
        """Return the same program on other links."""
        return replace(self, link=link)

    @property
    def segments(self) -> Ints:
        """In how many parts each run is taken."""
        return -(-self.repeats // self.stride)


@dataclass(slots=True, eq=False)
class _Block:
    """Where a call's flows, uses, ranks, runs, rows and entries begin, and its number."""

    program: Program
    call: int
    at: tuple[int, ...]


_STATES = ("doing", "wakes", "remaining", "rate", "since", "end", "held_by", "spent")
"""Columns of :class:`Flows` that are how far a flow is."""


def _sizes(program: Program) -> tuple[int, ...]:
    return (
        len(program.source),
        len(program.link),
        program.ranks,
        len(program.row),
        len(program.row_offset) - 1,
        len(program.row_flow),
    )


@dataclass(slots=True, eq=False)
class Crowd:
    """Calls under way on shared links; made, run and thrown away with a simulation.

    Parameters
    ----------
    bandwidth
        Of every link (B/s), shape ``(links,)``.
    resource
        Of every link, shape ``(links,)``.
    resources
        How many there are.
    now
        The time (s).
    """

    bandwidth: Floats
    resource: NDArray[np.integer]
    resources: int
    now: float = 0.0
    _state: State = field(init=False)
    _live: dict[int, _Block] = field(default_factory=dict)
    _idle: dict[int, list[_Block]] = field(default_factory=dict)
    _idle_uses: int = 0
    _free_calls: list[int] = field(default_factory=list)
    _filled: tuple[int, ...] = (0,) * 6
    _room: tuple[int, ...] = (0,) * 6

    def __post_init__(self) -> None:
        self._allocate((64,) * 6, 16)
        self._state.book.clock[0] = self.now

    def __len__(self) -> int:
        return len(self._live)

    @property
    def next_event(self) -> float:
        """When something happens next, as known after :meth:`advance` (s)."""
        return float(self._state.book.clock[1])

    @property
    def time(self) -> float:
        """Up to when events have happened (s)."""
        return float(self._state.book.clock[0])

    def begin(self, program: Program, factor: float, delay: float) -> int:
        """Begin a call at the crowd's time, its software taking ``delay`` (s) first.

        Returns
        -------
        int
            The call's number, until it is over.
        """
        block = self._placed(program, factor)
        s = self._state
        s.calls.spent[block.call] = 0.0
        s.calls.spent[block.call, -1] = delay
        _begin(s, block.call, delay)
        return block.call

    def advance(self, until: float) -> list[int]:
        """Go on to ``until``, or until calls are over; return which are, at :attr:`time`."""
        if not _advance(self._state, until):
            return []
        book = self._state.book
        over: list[int] = book.over[: book.count[_OVER]].tolist()
        book.count[_OVER] = 0
        return over

    def wait(self, time: float) -> None:
        """Set the clock to a time before the next event."""
        self._state.book.clock[0] = time

    def spent(self, call: int) -> Floats:
        """Where the time of a call that is over went (s), shape ``(resources + 1,)``."""
        found: Floats = self._state.calls.spent[call].copy()
        return found

    def forget(self, call: int) -> None:
        """Give a call's place free."""
        block = self._live.pop(call)
        self._idle.setdefault(id(block.program), []).append(block)
        self._idle_uses += len(block.program.link)
        if self._idle_uses > _KEPT:
            self._rebuild((0,) * 6)

    def moved_in(self, other: "Crowd", call: int) -> int:
        """Take over a call that is under way in another crowd; return its number here."""
        there = other._live[call]
        block = self._placed(there.program, float(other._state.calls.factor[call]))
        self._copy(other._state, there, block)
        return block.call

    def _copy(self, old: State, there: _Block, here: _Block) -> None:
        s, sizes = self._state, _sizes(there.program)
        source = slice(there.at[0], there.at[0] + sizes[0])
        target = slice(here.at[0], here.at[0] + sizes[0])
        for name in _STATES:
            getattr(s.flows, name)[target] = getattr(old.flows, name)[source]
        source = slice(there.at[2], there.at[2] + sizes[2])
        target = slice(here.at[2], here.at[2] + sizes[2])
        s.ranks.run[target] = old.ranks.run[source] + (here.at[3] - there.at[3])
        s.ranks.segment[target] = old.ranks.segment[source]
        s.ranks.pending[target] = old.ranks.pending[source]
        s.calls.left[here.call] = old.calls.left[there.call]
        s.calls.spent[here.call] = old.calls.spent[there.call]
        _rejoin(s, here.at[0], here.at[0] + sizes[0])

    def _placed(self, program: Program, factor: float) -> _Block:
        """Find or make a place for a call, and set its ranks before their first step."""
        known = self._idle.get(id(program))
        if known:
            block = known.pop()
            self._idle_uses -= len(program.link)
        else:
            sizes = _sizes(program)
            if not self._free_calls:
                self._rebuild(sizes, more=True)
            if any(a + b > c for a, b, c in zip(self._filled, sizes, self._room, strict=True)):
                self._rebuild(sizes)
            block = _Block(program, self._free_calls.pop(), self._filled)
            self._filled = tuple(a + b for a, b in zip(self._filled, sizes, strict=True))
            _write(self._state, block)
        self._live[block.call] = block
        s, (ranks, runs) = self._state, block.at[2:4]
        mine = slice(ranks, ranks + program.ranks)
        s.ranks.run[mine] = runs - 1
        s.ranks.segment[mine] = 0
        s.ranks.pending[mine] = 0
        s.calls.left[block.call] = program.transfers
        s.calls.factor[block.call] = factor
        return block

    def _rebuild(self, needed: Sequence[int], *, more: bool = False) -> None:
        """Make room, and drop the places of calls that are over."""
        old, blocks = self._state, list(self._live.values())
        used = [_sizes(block.program) for block in blocks]
        total = [sum(column) for column in zip(needed, *used, strict=True)]
        calls = len(old.calls.left) * (2 if more else 1)
        self._live, self._idle, self._idle_uses, self._filled = {}, {}, 0, (0,) * 6
        self._allocate(tuple(max(64, 2 * one) for one in total), calls)
        self._state.book.clock[:] = old.book.clock
        taken = {block.call for block in blocks}
        self._free_calls = [call for call in reversed(range(calls)) if call not in taken]
        for block, sizes in zip(blocks, used, strict=True):
            here = _Block(block.program, block.call, self._filled)
            self._filled = tuple(a + b for a, b in zip(self._filled, sizes, strict=True))
            _write(self._state, here)
            self._state.calls.factor[here.call] = old.calls.factor[block.call]
            self._live[here.call] = here
            self._copy(old, block, here)

    def _allocate(self, room: tuple[int, ...], calls: int) -> None:
        flows, uses, ranks, runs, rows, entries = self._room = room
        parts, links = self.resources + 1, len(self.bandwidth)
        whole = {name: np.zeros(flows, dtype=np.int64) for name in _WHOLE}
        real = {name: np.zeros(flows) for name in _REAL}
        table = {name: np.zeros((flows, parts)) for name in ("latency_of", "spent")}
        self._state = State(
            Flows(**whole, **real, **table),
            Uses(_ints(uses), _ints(uses), np.zeros(uses), _ints(uses), _ints(uses)),
            Wires(
                np.ascontiguousarray(self.bandwidth, dtype=np.float64),
                np.ascontiguousarray(self.resource, dtype=np.int64),
                np.full(links, -1, dtype=np.int64),
                _ints(links),
                np.zeros(links),
                np.zeros(links),
                *(_ints(links) for _ in range(5)),
            ),
            Ranks(*(_ints(ranks) for _ in range(5))),
            Calls(*(_ints(calls) for _ in range(5)), np.zeros(calls), np.zeros((calls, parts))),
            Rows(*(_ints(runs) for _ in range(4)), _ints(rows), _ints(rows), _ints(entries)),
            Book(
                np.array([0.0, np.inf]),
                _ints(4),
                *(_ints(flows) for _ in range(3)),
                _ints(calls),
                np.zeros(parts),
            ),
        )
        self._free_calls = list(reversed(range(calls)))


_WHOLE = ("call", "source", "target", "first", "last", "doing", "held_by", "place", "mark", "fixed")
_REAL = ("latency", "amount", "wakes", "remaining", "rate", "since", "end")


def _ints(length: int) -> Ints:
    return np.zeros(length, dtype=np.int64)


def _write(s: State, block: _Block) -> None:
    """Write what does not change about a call to its place."""
    program, call = block.program, block.call
    flow, use, rank, run, row, entry = block.at
    flows, uses, ranks, runs, rows, entries = _sizes(program)
    mine = slice(flow, flow + flows)
    s.flows.call[mine] = call
    s.flows.source[mine] = program.source + rank
    s.flows.target[mine] = program.target + rank
    s.flows.first[mine] = program.offset[:-1] + use
    s.flows.last[mine] = program.offset[1:] + use
    s.flows.latency[mine] = program.latency
    s.flows.amount[mine] = program.amount
    s.flows.latency_of[mine] = program.latency_of
    s.flows.doing[mine] = IDLE
    mine = slice(use, use + uses)
    s.uses.flow[mine] = np.repeat(np.arange(flow, flow + flows), np.diff(program.offset))
    s.uses.link[mine] = program.link
    s.uses.weight[mine] = program.weight
    mine = slice(rank, rank + ranks)
    s.ranks.call[mine] = call
    s.ranks.local[mine] = np.arange(ranks)
    s.calls.first_rank[call], s.calls.last_rank[call] = rank, rank + ranks
    s.calls.first_run[call], s.calls.last_run[call] = run, run + runs
    mine = slice(run, run + runs)
    s.rows.row[mine] = program.row + row
    s.rows.repeats[mine] = program.repeats
    s.rows.stride[mine] = program.stride
    s.rows.segments[mine] = program.segments
    mine = slice(row, row + rows)
    s.rows.first[mine] = program.row_offset[:-1] + entry
    s.rows.last[mine] = program.row_offset[1:] + entry
    s.rows.flow[entry : entry + entries] = program.row_flow + flow
