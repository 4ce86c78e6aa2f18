"""Calls that share links, transfer by transfer, over time.

The processes of :mod:`simulator.engine.simpy_model` are here a compiled loop over arrays
(:mod:`simulator.transfers.loop`), fast enough to simulate transfers wherever calls meet. A call
that is not a list of transfers has a single rank, and each of its steps is one flow on all links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import Struct
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
from simulator.transfers.loop import adopt_call, advance, begin_call, drop_flows, reset_call

_MOST_IDLE_USES = 2**21
"""Most uses of links kept for calls that have ended, whose places the next equal calls take."""


class Ways(Struct, frozen=True, eq=False):
    """What gives a program its latencies and bytes on any network of the same graph.

    Parameters
    ----------
    units
        Chunks of the schedule that each flow moves in one step; 0 where all its links have infinite
        bandwidth. Shape ``(flows,)``.
    routes
        The links of each flow, including those of infinite bandwidth.
    share
        Load that a flow of 1 B/s puts on the link of each of its uses (B/s), if the library reaches
        the links' full bandwidth. Shape ``(uses,)``.
    width
        Transfers of a step of each run, before equivalent ones were dropped.
    compared
        Whether equivalent ones were dropped (:mod:`simulator.transfers.equivalence`).
    """

    units: Floats
    routes: Routes
    share: Floats
    width: Longs
    compared: bool = False

    def of(self, flows: Longs, share: Floats, *, compared: bool) -> "Ways":
        """Select some flows, whose uses have these shares."""
        offset = offsets(np.diff(self.routes.offset)[flows])
        entry = entries_of(self.routes.offset, flows)
        routes = Routes(offset, self.routes.link[entry], self.routes.share[entry])
        return Ways(self.units[flows], routes, share, self.width, compared)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The transfers of a call, step by step.

    The flows of all distinct steps have the ranks ``source`` and ``target`` of the group, the uses
    ``offset[f]:offset[f + 1]`` of ``link`` and ``weight``, and the latency (s) and amount (B) of
    one step. Run ``k`` is ``repeats[k]`` equal steps; in it rank ``r`` takes part in the flows of
    row ``row[k] + r``, which are ``row_flow[row_offset[row]:row_offset[row + 1]]``.

    ``ways`` gives its numbers on other networks; None for a call that is not a list of transfers.
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
        """First flow of each run, and the number of flows; every flow is in two rows."""
        first: Longs = self.row_offset[:: self.ranks] // 2
        return first

    def bytes_on_links(self, links: int) -> Floats:
        """Bytes of all its transfers on each link (B), shape ``(links,)``."""
        times = np.repeat(self.repeats, np.diff(self.flows_of_runs))
        moved = self.weight * (self.amount * times)[row_of_entries(self.offset)]
        return np.bincount(self.link, weights=moved, minlength=links).astype(np.float64)

    def flows_on_links(self, links: int) -> Floats:
        """Mean number of flows on each link per byte that passes it; 0 where none does.

        Of a flow that puts part of its bytes on a link that part counts. Shape ``(links,)``.
        """
        flow = row_of_entries(self.offset)
        position, row = np.unique(self.run[flow] * links + self.link, return_inverse=True)
        many = np.bincount(row, weights=self.weight)
        moved = self.repeats[position // links] * np.bincount(row, self.weight * self.amount[flow])
        on_link = position % links
        per_byte = np.bincount(on_link, weights=moved * many, minlength=links)
        whole = np.bincount(on_link, weights=moved, minlength=links)
        return np.divide(per_byte, whole, out=np.zeros(links), where=whole > 0)

    @property
    def run(self) -> Longs:
        """Run of each flow, shape ``(flows,)``."""
        run = np.empty(len(self.source), dtype=np.int64)
        run[self.row_flow] = row_of_entries(self.row_offset) // self.ranks
        return run

    @property
    def segments(self) -> Longs:
        """Number of segments of each run: repeats over stride, rounded up."""
        return -(-self.repeats // self.stride)


@dataclass(slots=True, eq=False)
class _Block:
    """A call's number, and where its flows, uses, ranks, runs, rows and entries begin."""

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
    """Calls under way on shared links; it belongs to one simulation.

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
        """Time of the next event, valid after :meth:`advance` (s)."""
        return float(self._state.book.clock[1])

    @property
    def time(self) -> float:
        """Time up to which events have been handled (s)."""
        return float(self._state.book.clock[0])

    def begin(self, program: Program, factor: float, delay: float, again: int | None = None) -> int:
        """Begin a call at the crowd's time; return its number, which is valid until it ends.

        Its first transfers start ``delay`` (s) later.

        ``again`` is one that has ended and is not forgotten, whose program differs in numbers.
        """
        call = self._take_place(program, factor).call if again is None else again
        s = self._state
        if again is not None:
            self.rewrite(call, program)
            reset_call(s, call, factor)
        s.call_spent[call] = 0.0
        s.call_spent[call, -1] = delay
        begin_call(s, call, delay)
        return call

    def advance(self, until: float) -> list[int]:
        """Handle events up to ``until`` (s) or until calls end; return those, ended at `time`."""
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
        """Time of a call that has ended by resource (s), shape ``(resources + 1,)``."""
        found: Floats = self._state.call_spent[call].copy()
        return found

    def forget(self, call: int) -> None:
        """Free a call's place; a call under way is taken off its links."""
        block = self._live.pop(call)
        if self._state.calls["left"][call]:
            first = block.at[0]
            drop_flows(self._state, first, first + len(block.program.source))
        self._idle.setdefault(id(block.program), []).append(block)
        self._idle_uses += len(block.program.link)
        if self._idle_uses > _MOST_IDLE_USES:
            self._rebuild((0,) * 6)

    @property
    def state(self) -> State:
        """The arrays, for a compiled loop; :meth:`reserve` may replace them."""
        return self._state

    def reserve(self, program: Program) -> int:
        """Add a place for a call that a loop over :attr:`state` begins; return its number."""
        return self._take_place(program, 1.0).call

    def restart(self, bandwidth: Floats) -> None:
        """Reset the clock and set the links' bandwidths (B/s); no call may be under way."""
        self.bandwidth = bandwidth
        self._state.wires["bandwidth"] = bandwidth
        self._state.book.clock[:] = 0.0, np.inf

    def rewrite(self, call: int, program: Program) -> bool:
        """Replace the program in the place of an idle call; return False if it does not fit.

        A program that :func:`simulator.transfers.program.numbered` made from the old one fits.
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

    def _take_place(self, program: Program, factor: float) -> _Block:
        """Take an idle place of the same program or a new one, and reset the call."""
        known = self._idle.get(id(program))
        if known:
            block = known.pop()
            self._idle_uses -= len(program.link)
        else:
            block = self._add_place(program)
            _write(self._state, block)
        self._live[block.call] = block
        reset_call(self._state, block.call, factor)
        return block

    def _add_place(self, program: Program) -> _Block:
        """Add a place for a call; without room, reuse an idle one of equal sizes."""
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
        """Allocate larger arrays, and drop the places of calls that have ended."""
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
            adopt_call(self._state, settled.call, old, block.call)

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
    """Write the records of a call into its place: all that is constant while it is under way."""
    _write_numbers(state, block)
    program, call = block.program, block.call
    flow, use, rank, run, row, entry = block.at
    flows, uses, ranks, runs, rows, entries = _sizes(program)
    span = slice(flow, flow + flows)
    state.flows["call"][span] = call
    state.flows["source"][span] = program.source + rank
    state.flows["target"][span] = program.target + rank
    state.flows["first"][span] = program.offset[:-1] + use
    state.flows["last"][span] = program.offset[1:] + use
    state.flows["doing"][span] = IDLE
    span = slice(use, use + uses)
    state.uses["flow"][span] = np.repeat(np.arange(flow, flow + flows), np.diff(program.offset))
    state.uses["link"][span] = program.link
    span = slice(rank, rank + ranks)
    state.ranks["call"][span] = call
    state.ranks["local"][span] = np.arange(ranks)
    state.calls["first_rank"][call], state.calls["last_rank"][call] = rank, rank + ranks
    state.calls["first_run"][call], state.calls["last_run"][call] = run, run + runs
    state.calls["first_flow"][call], state.calls["last_flow"][call] = flow, flow + flows
    span = slice(run, run + runs)
    state.runs["row"][span] = program.row + row
    state.runs["repeats"][span] = program.repeats
    span = slice(row, row + rows)
    state.rows["first"][span] = program.row_offset[:-1] + entry
    state.rows["last"][span] = program.row_offset[1:] + entry
    state.entries[entry : entry + entries] = program.row_flow + flow


def _write_numbers(state: State, block: _Block) -> None:
    """Write what depends on bandwidths, latencies and the library's efficiency."""
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
