"""Workload: a step of a job as a columnar graph of ops.

One row per op, edges in compressed rows (CSR) by source, calls and groups in tables of their own. A
step of 64 ranks has a million ops; an object per op would cost gigabytes. ``Op`` and ``Call`` are
views for tests, messages and small graphs written by hand.

Times are seconds since the earliest start of the step on any rank.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.calls import ALL_KINDS, SEND_RECEIVE, Call, Calls, Group, check_table
from simulator.support.arrays import Floats, Ints, Longs, Mask, offsets_by_row
from simulator.support.compiled import hot_loop
from simulator.support.errors import WorkloadError
from simulator.support.quantities import CENTURY, MOST_RANKS

_LEAST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Repeats:
    """How a step follows the one before it.

    Attributes
    ----------
    pause
        From the end of a step on a rank's main thread to the begin of the next (s).
    period
        From the end of the step before to that of the recorded one (s).
    """

    pause: float
    period: float

    def __post_init__(self) -> None:
        for name in ("pause", "period"):
            if not 0 <= getattr(self, name) < inf:
                raise WorkloadError(
                    f"the {name} of steps, {getattr(self, name)!r} s, is not a time"
                )


STEP_BEFORE = "step before"
"""Name of the op for work of the previous step still on a stream: no kernel of this step."""
IN_PART = "part of a kernel"
"""Name of the op for the part of a kernel that ran before another, overlapping one started; the
kernel is counted with the other part."""
LAUNCH_DELAY = "launch delay"
"""Name of an op of length 0, and of the time behind it on the critical path: the part of a launch
beyond the usual latency that nothing recorded explains."""
UNEXPLAINED_HOST = "unexplained host"
"""Name of a host op in which the trace shows no work: it has the same length on any host."""
DATA_LOADER = "data loader"
"""Name of the op for the time in which worker processes prepare the batch that a rank waits for: no
resource of the cluster shortens it."""
NOT_RECORDED = (STEP_BEFORE, IN_PART, LAUNCH_DELAY)
"""Names of ops that represent no event of the step's own."""


_OVER_BUS = re.compile(r"(?!.*pageable).*(HtoD|DtoH|H2D|D2H|HostToDevice|DeviceToHost)", re.I)
"""Names that profilers give to copies limited by the bus between host and device.

CUDA and ROCm stage a copy of pageable memory through a pinned buffer that the host fills: the
host's copying limits it, not the bus.
"""
_SHORT_COPY = 10e-6
"""A copy that was recorded to take less counts as set-up (s).

The shortest copies, of a few bytes, last 0.8 to 2.3 us on A100, H100 and B300 (traces published by
HTA, TraceLens and FastVideo), so set-up is at most a fifth of a longer one.
"""


class What(IntEnum):
    """Kind of an op; the value is the code in ``Workload.what``.

    Ops from ``COLLECTIVE`` on are part of a call.

    Examples
    --------
    >>> What.COMPUTE < What.COLLECTIVE, What(5).name
    (True, 'RECEIVE')
    """

    HOST = 0
    COMPUTE = 1
    COPY = 2
    COLLECTIVE = 3
    SEND = 4
    RECEIVE = 5
    BUS = 6
    """The part of time of copies that the bus limits; no op has this code."""


class Op(Struct, frozen=True):
    """One row of a workload, as a view."""

    index: int
    what: What
    rank: int
    lane: str
    name: str
    duration: float
    call: int | None

    def __str__(self) -> str:
        """Where and what: ``rank 3 stream 7 'gemm' (op 42)``."""
        return f"rank {self.rank} {self.lane} {self.name!r} (op {self.index})"


@dataclass(frozen=True, eq=False, repr=False)
class Edges:
    """Successors in CSR form: op ``i`` is followed by ``target[offset[i]:offset[i + 1]]``.

    ``lag`` is the least time from the end of the source to the start of the target. A lag on an
    edge that leaves a host op is host time (launch latency); any other is the device's.
    """

    offset: Longs
    target: Ints
    lag: Floats

    def __repr__(self) -> str:
        """Say it in one line: columns are no description."""
        return f"<Edges: {len(self.target):,}>"

    @staticmethod
    def of(ops: int, source: NDArray[Any], target: NDArray[Any], lag: NDArray[Any]) -> "Edges":
        """Sort unordered edges into rows; equal edges are kept once, with their greatest lag."""
        source = np.asarray(source, dtype=np.int64)
        target = np.asarray(target, dtype=np.int64)
        lag = np.asarray(lag, dtype=np.float64)
        if len(source) and (
            min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= ops
        ):
            raise WorkloadError(f"an edge names an op outside 0..{ops - 1}")
        key = source * ops + target
        if lag.any():
            order = np.lexsort((-lag, key))
            key, lag = key[order], lag[order]
        else:
            key = np.sort(key)
        first = np.ones(len(key), dtype=bool)
        first[1:] = key[1:] != key[:-1]
        source, target = np.divmod(key[first], max(1, ops))
        lag = lag[first]
        return Edges(offsets_by_row(source, ops), target.astype(np.int32), lag)

    @property
    def source(self) -> Ints:
        """The op each edge leaves, shape ``(edges,)``."""
        ops = np.arange(len(self.offset) - 1, dtype=np.int32)
        return np.repeat(ops, np.diff(self.offset))

    @cached_property
    def cycle(self) -> list[int]:
        """Ops on a cycle, in order; empty if there is none."""
        on_or_behind = np.ones(len(self.offset) - 1, dtype=bool)
        on_or_behind[topological_order(self.offset, self.target)] = False
        if not on_or_behind.any():
            return []
        import networkx as nx  # slow to import, and seldom is there a cycle

        stuck = on_or_behind[self.source]
        graph = nx.DiGraph(
            zip(self.source[stuck].tolist(), self.target[stuck].tolist(), strict=True)
        )
        return [int(op) for op, _ in nx.find_cycle(graph)]


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The rest of a job: rank ``r`` runs the program of ``stand_in[r]``, a rank of the workload.

    ``groups[i]`` are all groups of the job that make the calls of group ``i`` of the workload, one
    per row and itself among them; groups that are copies of each other share one array.
    """

    stand_in: Longs
    groups: tuple[Longs, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Workload:
    """A step of a job as a graph of ops; columns have shape ``(ops,)``.

    Read one from a trace (:func:`traces.load`), or put it together with
    :class:`simulator.builder.WorkloadBuilder`.

    Parameters
    ----------
    what, rank
        What each op is (:class:`What`), and whose.
    lane, name
        Where it runs and what it is called, as indices into ``lanes`` and ``names``.
    call
        The call it is part of, -1 for none.
    duration
        Own duration (s). Of an op of a call: its rank's time after the end of the call (draining,
        usually 0); the network determines how long the call takes.
    ready
        Earliest start, whatever the predecessors (s): for a rank that starts late, or a stream
        still busy with the step before. In a step that ``repeats`` it may be negative: time 0 is
        when the step before has ended on all ranks, and some ended it earlier.
    measured_start, measured_end
        As recorded (s), NaN if not recorded.
    edges, calls, groups
        The dependencies, the collectives and messages, and the groups that make them.
    names, lanes
        Tables of text.
    job_ranks
        Size of the job; ``ranks`` are those the workload holds.
    notes
        Remarks of the trace's reader.
    flops, traffic
        Floating-point operations and bytes from and to the accelerator's memory, NaN if unknown;
        None if they are unknown for all ops.
    module, modules
        The layer, module or range of the program that each op belongs to, as an index into
        ``modules`` (-1: unknown), and their names; None if unknown for all ops. It has no influence
        on the simulation.
    library
        The communication library of all its calls, if the trace names it; else "".
    copies
        Representatives of the ranks that the workload does not hold; None if not given
        (:mod:`simulator.folding.copies` writes them out).
    repeats
        How the step follows the one before; None if unknown: it is simulated alone.
    advance
        Of the first op of a lane, the least time from the lane's last op of the step before to its
        start (s), negative if it started before that ended; NaN for others and if unknown
        (:mod:`simulator.engine.next_step`).

    Raises
    ------
    WorkloadError
        If columns differ in length, a time is negative or not finite, an index points nowhere, a
        call is joined by a rank outside its group or twice by one rank, the edges make a cycle, or
        copies are not those of the job.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> builder = WorkloadBuilder(job_ranks=2)
    >>> _ = builder.op(What.COMPUTE, rank=1, lane="stream 7", name="gemm", duration=1e-3)
    >>> workload = builder.build()
    >>> len(workload), workload.ranks, str(workload.op(0))
    (1, (1,), "rank 1 stream 7 'gemm' (op 0)")
    """

    what: NDArray[np.uint8]
    rank: Ints
    lane: Ints
    name: Ints
    call: Ints
    duration: Floats
    ready: Floats
    measured_start: Floats
    measured_end: Floats
    edges: Edges
    calls: Calls
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    lanes: tuple[str, ...]
    job_ranks: int
    notes: tuple[str, ...] = field(default=())
    flops: Floats | None = None
    traffic: Floats | None = None
    module: Ints | None = None
    modules: tuple[str, ...] = ()
    library: str = ""
    copies: Copies | None = None
    repeats: Repeats | None = None
    advance: Floats | None = None

    def __post_init__(self) -> None:
        _check_columns(self)
        length = len(self)
        for name in ("flops", "traffic"):
            amounts = getattr(self, name)
            if amounts is not None and (
                len(amounts) != length or np.any((amounts < 0) | np.isinf(amounts))
            ):
                raise WorkloadError(f"column {name!r} is not {length} amounts, NaN where unknown")
        _check_ranks(self)
        check_table(self.calls, self.groups)
        _check_calls(self)
        if cycle := self.edges.cycle:
            ops = " -> ".join(str(self.op(op)) for op in [*cycle, cycle[0]])
            raise WorkloadError(f"the edges make a cycle: {ops}")

    def __repr__(self) -> str:
        """Say it in one line: columns of a million ops are no description."""
        ranks = f"{len(self.ranks):,} of {self.job_ranks:,} ranks"
        return f"<Workload of {ranks}: {len(self):,} ops, {len(self.calls):,} calls>"

    def __len__(self) -> int:
        return len(self.what)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that have ops, ascending."""
        return tuple(np.flatnonzero(np.bincount(self.rank)).tolist())

    def ops_of(self, rank: int) -> NDArray[np.intp]:
        """Return the ops of one rank that has some, ascending."""
        return self._of_ranks[self.ranks.index(rank)]

    @cached_property
    def _of_ranks(self) -> list[NDArray[np.intp]]:
        order = np.argsort(self.rank, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.rank[order])) + 1)

    @cached_property
    def part(self) -> NDArray[np.uint8]:
        """The part of time of each op's duration, shape ``(ops,)``: the op's kind.

        ``COLLECTIVE`` is time that no resource scales: a rank's own time after a call, and host
        time without visible work (:data:`UNEXPLAINED_HOST`) or of a :data:`DATA_LOADER`.
        """
        kinds = np.minimum(self.what, np.uint8(What.COLLECTIVE))
        for name in (UNEXPLAINED_HOST, DATA_LOADER):
            kinds[self.is_host_named(name)] = What.COLLECTIVE
        return kinds

    def is_host_named(self, name: str) -> Mask:
        """Return the mask of host ops of a name, shape ``(ops,)``."""
        return np.asarray(self.is_named(name) & (self.what == What.HOST))

    def is_named(self, *names: str) -> Mask:
        """Return the mask of ops of some names, shape ``(ops,)``."""
        numbers = [number for number, name in enumerate(self.names) if name in names]
        return np.isin(self.name, numbers) if numbers else np.zeros(len(self), dtype=np.bool_)

    @cached_property
    def over_bus(self) -> Mask:
        """Mask of copies limited by the bus of the host, shape ``(ops,)``.

        These are the copies between device and pinned memory, except those so short that they
        hardly move any bytes.
        """
        names = [number for number, name in enumerate(self.names) if _OVER_BUS.match(name)]
        if not names:
            return np.zeros(len(self), dtype=np.bool_)
        short = self.measured_end - self.measured_start < _SHORT_COPY  # not where it is unknown
        return np.asarray((self.what == What.COPY) & np.isin(self.name, names) & ~short)

    @cached_property
    def own(self) -> Mask:
        """Mask of ops that are events of the step, shape ``(ops,)``: :data:`NOT_RECORDED`."""
        return ~self.is_named(*NOT_RECORDED)

    @cached_property
    def predecessors(self) -> Ints:
        """Number of predecessors of each op, shape ``(ops,)``."""
        return np.bincount(self.edges.target, minlength=len(self)).astype(np.int32)

    @cached_property
    def unawaited(self) -> Mask:
        """Mask of ops that their call does not wait for, shape ``(ops,)``: :func:`unawaited`."""
        return unawaited(self.what, self.call, self.calls.eager)

    @cached_property
    def members(self) -> Ints:
        """Number of ops of the workload in each call, shape ``(calls,)``."""
        joined = self.call[self.call >= 0]
        return np.bincount(joined, minlength=len(self.calls)).astype(np.int32)

    @cached_property
    def distinct_calls(self) -> tuple[list[int], NDArray[np.intp]]:
        """The first of each set of calls of equal cost on any network, and each call's set.

        A call without members is in no set (-1).
        """
        calls = self.calls
        dtypes = {dtype: number for number, dtype in enumerate(dict.fromkeys(calls.dtype))}
        # The bits of floats from 0 on, as integers, have the order of the floats. Shifted down by
        # the least integer are measured times, of calls of unknown size; those without either come
        # first.
        sized, timed = ~np.isnan(calls.size), ~np.isnan(calls.transfer)
        amount = np.where(sized, calls.size, np.where(timed, calls.transfer, 0.0)) + 0.0
        order = amount.view(np.int64) + np.where(sized, 0, np.where(timed, _LEAST + 1, _LEAST))
        sort = calls.kind.astype(np.int64) * len(self.groups) + calls.group
        sort = sort * len(dtypes) + np.array([dtypes[dtype] for dtype in calls.dtype])
        for column in (order, calls.spread):
            values, which = np.unique(column, return_inverse=True)
            sort = sort * len(values) + which
        joined = np.flatnonzero(self.members)
        _, first, which = np.unique(sort[joined], return_index=True, return_inverse=True)
        row = np.full(len(calls), -1, dtype=np.intp)
        row[joined] = which
        return joined[first].tolist(), row

    def op(self, index: int) -> Op:
        """Return a view of one op."""
        call = int(self.call[index])
        return Op(
            index=index,
            what=What(self.what[index]),
            rank=int(self.rank[index]),
            lane=self.lanes[self.lane[index]],
            name=self.names[self.name[index]],
            duration=float(self.duration[index]),
            call=call if call >= 0 else None,
        )

    def call_view(self, index: int) -> Call:
        """Return a view of one call."""
        calls = self.calls
        return Call(
            index=index,
            kind=ALL_KINDS[calls.kind[index]],
            group=self.groups[calls.group[index]],
            sequence=int(calls.sequence[index]),
            size=float(calls.size[index]),
            dtype=calls.dtype[index],
            transfer=float(calls.transfer[index]),
            eager=bool(calls.eager[index]),
            shares=calls.shares_of(index),
        )

    def ops(self) -> Iterator[Op]:
        """All ops as views; for small graphs."""
        return (self.op(index) for index in range(len(self)))

    def columns_of(self, rows: NDArray[Any]) -> dict[str, Any]:
        """Columns of some ops by name, given as a mask or indices: all but calls and edges."""
        every = ("what", "rank", "lane", "name", "duration", "ready", *_MEASURED, *_KNOWN_OF_SOME)
        columns = {name: getattr(self, name) for name in every}
        return {name: None if values is None else values[rows] for name, values in columns.items()}

    def columns_with(self, like: NDArray[Any], **values: Any) -> dict[str, Any]:
        """Columns as :meth:`columns_of`, of all ops and behind them of copies of those in ``like``.

        ``values`` are the copies' own, by column; their measured times are unknown.
        """
        columns = self.columns_of(np.concatenate([np.arange(len(self)), like]))
        for name, value in (dict.fromkeys(_MEASURED, np.nan) | values).items():
            if columns[name] is not None:
                columns[name][len(self) :] = value
        return columns

    def lasting(
        self, duration: Floats | None = None, lag: Floats | None = None, ready: Floats | None = None
    ) -> "Workload":
        """Return the same ops, calls and edges with other durations, lags or ready times.

        Cached facts about the graph are kept, which :func:`dataclasses.replace` would compute and
        check again. Nothing that is cached here may depend on times.

        Columns that are not given stay: ``duration`` and ``ready`` of ops, ``lag`` of edges (s).
        """
        copy = object.__new__(Workload)
        copy.__dict__.update(self.__dict__)
        if duration is not None:
            copy.__dict__["duration"] = duration
        if ready is not None:
            copy.__dict__["ready"] = ready
        if lag is not None:
            copy.__dict__["edges"] = replace(self.edges, lag=lag)
        _check_columns(copy)
        return copy

    def with_calls(self, **columns: Any) -> "Workload":
        """Return the workload with columns of its calls replaced."""
        return replace(self, calls=replace(self.calls, **columns))


_MEASURED = ("measured_start", "measured_end")
_KNOWN_OF_SOME = ("flops", "traffic", "module", "advance")


def _check_columns(workload: Workload) -> None:
    length = len(workload.what)
    columns = ("rank", "lane", "name", "call", "duration", "ready", *_MEASURED)
    for name in (*columns, "advance", "module"):
        column = getattr(workload, name)
        if column is not None and len(column) != length:
            raise WorkloadError(f"column {name!r} does not have {length} rows")
    _check_edges(workload.edges, length)
    for name, values in (
        ("duration", workload.duration),
        ("ready", workload.ready),
        ("lag", workload.edges.lag),
    ):
        least = -math.inf if name == "ready" and workload.repeats is not None else 0.0
        wrong = np.flatnonzero(~((values >= least) & (values <= CENTURY)))
        if len(wrong):
            row = wrong[0]
            raise WorkloadError(
                f"{name} {values[row]:g} s (row {row}) is not a time within a century"
            )
    tables = ("lane", workload.lanes), ("name", workload.names), ("module", workload.modules)
    for name, table in tables:
        column, least = getattr(workload, name), -1 if name == "module" else 0
        if column is None or not length:
            continue
        if column.min() < least or column.max() >= len(table):
            raise WorkloadError(f"column {name!r} points outside its table of {len(table)}")


def _check_edges(edges: Edges, ops: int) -> None:
    """Refuse edges that would make a loop read or write outside a column: loops check no index."""
    offset, target = edges.offset, edges.target
    if len(offset) != ops + 1 or not len(target) == len(edges.lag) == offset[-1]:
        raise WorkloadError(f"the edges are not those of {ops} ops")
    if offset[0] != 0 or np.any(offset[1:] < offset[:-1]):
        raise WorkloadError("the rows of the edges do not follow each other")
    if len(target) and not (target.min() >= 0 and target.max() < ops):
        raise WorkloadError(f"an edge names an op outside 0..{ops - 1}")


def _check_ranks(workload: Workload) -> None:
    """Refuse ranks and copies that are not those of the job."""
    if workload.job_ranks > MOST_RANKS:
        raise WorkloadError(f"{workload.job_ranks} ranks; a job has at most {MOST_RANKS}")
    outside = np.flatnonzero((workload.rank < 0) | (workload.rank >= workload.job_ranks))
    if len(outside):
        op = workload.op(int(outside[0]))
        raise WorkloadError(f"{op}: a job of {workload.job_ranks} ranks has no such rank")
    for group in workload.groups:
        for rank in (min(group.ranks), max(group.ranks)):
            if not 0 <= rank < workload.job_ranks:
                job = f"a job of {workload.job_ranks}"
                raise WorkloadError(
                    f"group {group} names rank {rank}, which does not exist in {job}"
                )
    copies = workload.copies
    if copies is None:
        return
    if len(copies.stand_in) != workload.job_ranks or len(copies.groups) != len(workload.groups):
        job = f"{workload.job_ranks} ranks and {len(workload.groups)} groups"
        raise WorkloadError(f"the copies are not those of a job of {job}")
    strangers = np.setdiff1d(workload.rank, copies.stand_in)
    if len(strangers):
        raise WorkloadError(f"rank {strangers[0]} is in the workload, but represents no rank")


def _check_calls(workload: Workload) -> None:
    is_call = workload.what >= What.COLLECTIVE
    if np.any(is_call != (workload.call >= 0)) or np.any(workload.call >= len(workload.calls)):
        raise WorkloadError("exactly the collective, send and receive ops must name a call")
    ops = np.flatnonzero(is_call)
    keys = workload.call[ops].astype(np.int64) * workload.job_ranks + workload.rank[ops]
    _, first = np.unique(keys, return_index=True)
    if len(first) != len(keys):
        twice = np.setdiff1d(np.arange(len(ops)), first)[0]
        op, call = int(ops[twice]), int(workload.call[ops[twice]])
        joined = f"{workload.op(op)} joins {workload.call_view(call)}"
        raise WorkloadError(f"{joined}, which its rank has joined already")
    # A collective waits for all its members: only messages are eager.
    calls = workload.calls
    wrong = np.flatnonzero(calls.eager & (calls.kind != SEND_RECEIVE))
    if len(wrong):
        raise WorkloadError(f"{workload.call_view(int(wrong[0]))} is eager and no message")
    both = ops[calls.eager[workload.call[ops]] & (workload.what[ops] == What.COLLECTIVE)]
    if len(both):
        eager = workload.call_view(int(workload.call[both[0]]))
        raise WorkloadError(
            f"{workload.op(int(both[0]))} neither sends nor receives {eager}, eager"
        )
    belongs = [
        index * workload.job_ranks + rank
        for index, group in enumerate(workload.groups)
        for rank in group.ranks
    ]
    group = calls.group[workload.call[ops]].astype(np.int64)
    stranger = ~np.isin(group * workload.job_ranks + workload.rank[ops], belongs)
    if stranger.any():
        op, index = int(ops[stranger][0]), int(group[stranger][0])
        joined = f"{workload.op(op)} joins a call of {workload.groups[index]}"
        raise WorkloadError(f"{joined}, to which its rank does not belong")


def unawaited(what: NDArray[np.uint8], call: Ints, eager: Mask) -> Mask:
    """Mark the ops that their call does not wait for: receivers of eager messages.

    Parameters
    ----------
    what, call
        What each op is, and the call it is part of (-1: none), shape ``(ops,)``.
    eager
        Of each call.

    Returns
    -------
    numpy.ndarray
        Shape ``(ops,)``. A receiver whose sender is not among the ops is not marked: then only the
        receiver shows when the message was sent.

    Examples
    --------
    >>> ends = np.array([What.SEND, What.RECEIVE], dtype=np.uint8)
    >>> unawaited(ends, np.array([0, 0], dtype=np.int32), np.array([True])).tolist()
    [False, True]
    """
    marked = np.zeros(len(what), dtype=np.bool_)
    if eager.any():
        receives = np.flatnonzero(what == What.RECEIVE)
        sent = np.zeros(len(eager), dtype=np.bool_)
        sent[call[what == What.SEND]] = True
        marked[receives] = (eager & sent)[call[receives]]
    return marked


def topological_order(offset: Longs, target: Ints) -> Ints:
    """Order the ops of a graph in CSR form topologically (Kahn 1962).

    Ops on or behind a cycle are left out. Ties are broken by index and by the order of release, so
    the same graph always has the same order.
    """
    waits = np.bincount(target, minlength=len(offset) - 1).astype(np.int32)
    queue = np.empty(len(waits), dtype=np.int32)
    return queue[: _queue_ready(offset, target, waits, queue)]


def depths(offset: Longs, target: Ints) -> Longs:
    """Return the number of edges on the longest path to each op of an acyclic graph in CSR form."""
    depth = np.zeros(len(offset) - 1, dtype=np.int64)
    _fill_depths(offset, target, topological_order(offset, target), depth)
    return depth


@hot_loop
def _queue_ready(offset: Longs, target: Ints, waits: Ints, queue: Ints) -> int:
    """Queue ops as soon as all their predecessors are queued; return the number of queued ops."""
    queued = 0
    for op in range(len(waits)):
        if waits[op] == 0:
            queue[queued] = op
            queued += 1
    head = 0  # the queue is the order itself: ops before ``head`` are done
    while head < queued:
        op = queue[head]
        head += 1
        for edge in range(offset[op], offset[op + 1]):
            follower = target[edge]
            waits[follower] -= 1
            if waits[follower] == 0:
                queue[queued] = follower
                queued += 1
    return queued


@hot_loop
def _fill_depths(offset: Longs, target: Ints, order: Ints, depth: Longs) -> None:
    for op in order:
        for edge in range(offset[op], offset[op + 1]):
            depth[target[edge]] = max(depth[target[edge]], depth[op] + 1)
