"""Calls that share links, transfer by transfer, over time.

What :mod:`simulator.engine.simpy_model` says with processes, transfer by transfer, is here a
compiled loop over arrays (:mod:`simulator.transfers.loop`), so that a call may be taken transfer by
transfer wherever it matters. A call that is not a list of transfers is one of a single rank, whose
every step is one flow on all its links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator.routing.routes import Routes
from simulator.support.arrays import Floats, Longs, Matrix, entries_of, offsets, row_of_entries
from simulator.transfers.fair_shares import (
    BLOCK,
    CALL,
    FLOW,
    IDLE,
    OVER,
    RANK,
    ROW,
    RUN,
    TALLIES,
    USE,
    WIRE,
    Book,
    State,
)
from simulator.transfers.loop import abandon, advance, begin, move_in, reset

_KEPT = 2**21
"""Links kept of flows of calls that have ended, at the most: the next like call takes their
place."""


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """What the numbers of a program follow from, on any network of the same graph.

    Parameters
    ----------
    units
        What each flow moves in one step, in chunks of the schedule; 0 where all its links are of
        infinite bandwidth. Shape ``(flows,)``.
    routes
        The links that each flow passes, those of infinite bandwidth too.
    share
        What a flow of 1 B/s puts on the link of each of its uses (B/s), as long as the library
        reaches what the links have. Shape ``(uses,)``.
    width
        Transfers of a step of each run, before one of several that are alike was kept.
    compared
        Whether that was done (:mod:`simulator.transfers.equivalence`).
    """

    units: Floats
    routes: Routes
    share: Floats
    width: Longs
    compared: bool = False

    def of(self, flows: Longs, share: Floats, *, compared: bool) -> "Ways":
        """Keep some flows, which have as many uses as there are shares."""
        offset = offsets(np.diff(self.routes.offset)[flows])
        entry = entries_of(self.routes.offset, flows)
        routes = Routes(offset, self.routes.link[entry], self.routes.share[entry])
        return Ways(self.units[flows], routes, share, self.width, compared)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What a call does, step by step and transfer by transfer, ready for a crowd.

    Of the flows of all distinct steps: ranks ``source`` and ``target`` of the group, the uses
    ``first:last`` of links, latency (s) and amount (B) of one step. ``row`` and the like are those
    of :class:`Rows`, with flows and rows counted from 0; run ``k`` has the rows from ``row[k]`` on,
    one for each of ``ranks``.

    ``ways`` says how its numbers follow from the network's; None of a call that is not a list of
    transfers.
    """

    ranks: int
    source: Longs
    target: Longs
    latency: Floats
    amount: Floats
    latency_of: Matrix
    offset: Longs
    link: Longs
    weight: Floats
    row: Longs
    repeats: Longs
    stride: Longs
    row_offset: Longs
    row_flow: Longs
    transfers: int
    ways: Ways | None = None

    def on(self, link: Longs) -> "Program":
        """Return the same program on other links."""
        return replace(self, link=link)

    @property
    def flows_of_runs(self) -> Longs:
        """First flow of each run, and how many there are: every flow stands in two rows."""
        first: Longs = self.row_offset[:: self.ranks] // 2
        return first

    def bytes_on_links(self, links: int) -> Floats:
        """Bytes of all its transfers on each of so many links (B)."""
        times = np.repeat(self.repeats, np.diff(self.flows_of_runs))
        moved = self.weight * (self.amount * times)[row_of_entries(self.offset)]
        return np.bincount(self.link, weights=moved, minlength=links).astype(np.float64)

    @property
    def run(self) -> Longs:
        """Which run each flow belongs to."""
        run = np.empty(len(self.source), dtype=np.int64)
        run[self.row_flow] = row_of_entries(self.row_offset) // self.ranks
        return run

    @property
    def segments(self) -> Longs:
        """In how many parts each run is taken."""
        return -(-self.repeats // self.stride)


@dataclass(slots=True, eq=False)
class _Block:
    """Where a call's flows, uses, ranks, runs, rows and entries begin, and its number."""

    program: Program
    call: int
    at: tuple[int, ...]


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
        s.call_spent[block.call] = 0.0
        s.call_spent[block.call, -1] = delay
        begin(s, block.call, delay)
        return block.call

    def advance(self, until: float) -> list[int]:
        """Go on to ``until``, or until calls are over; return which are, at :attr:`time`."""
        if not advance(self._state, until):
            return []
        book = self._state.book
        over: list[int] = book.over[: book.tally[OVER]].tolist()
        book.tally[OVER] = 0
        return over

    def wait(self, time: float) -> None:
        """Set the clock to a time before the next event."""
        self._state.book.clock[0] = time

    def spent(self, call: int) -> Floats:
        """Where the time of a call that is over went (s), shape ``(resources + 1,)``."""
        found: Floats = self._state.call_spent[call].copy()
        return found

    def forget(self, call: int) -> None:
        """Give a call's place free; one that is under way is taken off its links."""
        block = self._live.pop(call)
        if self._state.calls["left"][call]:
            first = block.at[0]
            abandon(self._state, first, first + len(block.program.source))
        self._idle.setdefault(id(block.program), []).append(block)
        self._idle_uses += len(block.program.link)
        if self._idle_uses > _KEPT:
            self._rebuild((0,) * 6)

    @property
    def state(self) -> State:
        """All of it, for a loop that goes on from here; :meth:`reserve` may give it another."""
        return self._state

    def reserve(self, program: Program) -> int:
        """Make a place for a call that a loop over :attr:`state` begins; return its number."""
        return self._placed(program, 1.0).call

    def restart(self, bandwidth: Floats) -> None:
        """Set the clock to 0 and give the links other bandwidths (B/s); nobody may be under way."""
        self.bandwidth = bandwidth
        self._state.wires["bandwidth"] = bandwidth
        self._state.book.clock[:] = 0.0, np.inf

    def rewrite(self, call: int, program: Program) -> bool:
        """Give the place of a call that is not under way a like program; say whether it fits.

        One that :func:`simulator.transfers.program.numbered` has made of what stands there does.
        """
        block = self._live[call]
        before = block.program
        if _sizes(program) != _sizes(before):
            return False
        block.program = program
        if program.link is before.link and program.row_flow is before.row_flow:
            _write_numbers(self._state, block)
        else:
            _write(self._state, block)
        return True

    def _placed(self, program: Program, factor: float) -> _Block:
        """Find or make a place for a call, and set its ranks before their first step."""
        known = self._idle.get(id(program))
        if known:
            block = known.pop()
            self._idle_uses -= len(program.link)
        else:
            block = self._new_place(program)
            _write(self._state, block)
        self._live[block.call] = block
        reset(self._state, block.call, factor)
        return block

    def _new_place(self, program: Program) -> _Block:
        """Make a place for a call; where there is no room, in that of one of its sizes."""
        sizes = _sizes(program)

        def is_full() -> bool:
            return any(a + b > c for a, b, c in zip(self._filled, sizes, self._room, strict=True))

        if is_full() or not self._free_calls:
            for blocks in self._idle.values():
                if blocks and _sizes(blocks[-1].program) == sizes:
                    self._idle_uses -= sizes[1]
                    return replace(blocks.pop(), program=program)
        if not self._free_calls:
            self._rebuild(sizes, more=True)
        if is_full():
            self._rebuild(sizes)
        block = _Block(program, self._free_calls.pop(), self._filled)
        self._filled = tuple(a + b for a, b in zip(self._filled, sizes, strict=True))
        return block

    def _rebuild(self, needed: Sequence[int], *, more: bool = False) -> None:
        """Make room, and drop the places of calls that are over."""
        old, blocks = self._state, list(self._live.values())
        used = [_sizes(block.program) for block in blocks]
        total = [sum(column) for column in zip(needed, *used, strict=True)]
        calls = len(old.calls) * (2 if more else 1)
        self._live, self._idle, self._idle_uses, self._filled = {}, {}, 0, (0,) * 6
        self._allocate(tuple(max(64, 2 * one) for one in total), calls)
        self._state.book.clock[:] = old.book.clock
        taken = {block.call for block in blocks}
        self._free_calls = [call for call in reversed(range(calls)) if call not in taken]
        for block, sizes in zip(blocks, used, strict=True):
            settled = _Block(block.program, block.call, self._filled)
            self._filled = tuple(a + b for a, b in zip(self._filled, sizes, strict=True))
            _write(self._state, settled)
            for name in ("owner", "next"):
                self._state.calls[name][settled.call] = old.calls[name][block.call]
            self._live[settled.call] = settled
            move_in(self._state, settled.call, old, block.call)

    def _allocate(self, room: tuple[int, ...], calls: int) -> None:
        flows, uses, ranks, runs, rows, entries = self._room = room
        parts = self.resources + 1
        wires = np.zeros(len(self.bandwidth), WIRE)
        wires["bandwidth"], wires["resource"], wires["head"] = self.bandwidth, self.resource, -1
        book = Book(
            clock=np.array([0.0, np.inf]),
            tally=_ints(TALLIES),
            active=_ints(flows),
            coming=np.zeros(flows),
            soonest=np.full(flows // BLOCK + 2, np.inf),
            stale=_ints(flows // BLOCK + 2),
            is_stale=_ints(flows // BLOCK + 2),
            due=_ints(flows),
            over=_ints(calls),
            before=np.zeros(parts),
        )
        self._state = State(
            flows=np.zeros(flows, FLOW),
            uses=np.zeros(uses, USE),
            wires=wires,
            ranks=np.zeros(ranks, RANK),
            calls=np.zeros(calls, CALL),
            runs=np.zeros(runs, RUN),
            rows=np.zeros(rows, ROW),
            entries=_ints(entries),
            latency_of=np.zeros((flows, parts)),
            spent=np.zeros((flows, parts)),
            call_spent=np.zeros((calls, parts)),
            book=book,
        )
        self._free_calls = list(reversed(range(calls)))


def _ints(length: int) -> Longs:
    return np.zeros(length, dtype=np.int64)


def _write(state: State, block: _Block) -> None:
    """Write all about a call that does not change while it is under way to its place."""
    _write_flows(state, block)
    _write_numbers(state, block)
    program, call = block.program, block.call
    flow, _, rank, run, row, entry = block.at
    _, _, ranks, runs, rows, entries = _sizes(program)
    span = slice(rank, rank + ranks)
    state.ranks["call"][span] = call
    state.ranks["local"][span] = np.arange(ranks)
    state.calls["first_rank"][call], state.calls["last_rank"][call] = rank, rank + ranks
    state.calls["first_run"][call], state.calls["last_run"][call] = run, run + runs
    flows = len(program.source)
    state.calls["first_flow"][call], state.calls["last_flow"][call] = flow, flow + flows
    span = slice(run, run + runs)
    state.runs["row"][span] = program.row + row
    state.runs["repeats"][span] = program.repeats
    span = slice(row, row + rows)
    state.rows["first"][span] = program.row_offset[:-1] + entry
    state.rows["last"][span] = program.row_offset[1:] + entry
    state.entries[entry : entry + entries] = program.row_flow + flow


def _write_flows(state: State, block: _Block) -> None:
    program = block.program
    flow, use, rank = block.at[:3]
    flows, uses = len(program.source), len(program.link)
    span = slice(flow, flow + flows)
    state.flows["call"][span] = block.call
    state.flows["source"][span] = program.source + rank
    state.flows["target"][span] = program.target + rank
    state.flows["first"][span] = program.offset[:-1] + use
    state.flows["last"][span] = program.offset[1:] + use
    state.flows["doing"][span] = IDLE
    span = slice(use, use + uses)
    state.uses["flow"][span] = np.repeat(np.arange(flow, flow + flows), np.diff(program.offset))
    state.uses["link"][span] = program.link


def _write_numbers(state: State, block: _Block) -> None:
    """Write what follows from bandwidths and latencies, and from how fast the library is."""
    program = block.program
    flow, use, _, run = block.at[:4]
    span = slice(flow, flow + len(program.source))
    state.flows["latency"][span] = program.latency
    state.flows["amount"][span] = program.amount
    state.latency_of[span] = program.latency_of
    state.uses["weight"][use : use + len(program.link)] = program.weight
    span = slice(run, run + len(program.row))
    state.runs["stride"][span] = program.stride
    state.runs["segments"][span] = program.segments
    state.calls["transfers"][block.call] = program.transfers
