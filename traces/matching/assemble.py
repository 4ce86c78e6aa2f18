"""Ranks' graphs and matched calls to one workload on one clock.

Messages that a host posts and waits for later: gloo keeps a message until its receiver has said
that it is ready (``handleRemotePendingRecv`` of transport/tcp/pair.cc, github.com/pytorch/gloo): it
moves when both ends are posted. Then the sender writes it to its socket, whose buffer takes it
before it has moved, and a wait for the send ends. It has one TCP connection between two ranks, and
what is written to it leaves in order. So a message moves behind the one before it that goes the
same way, and a receiver's notice (``NOTIFY_RECV_READY``), without which nothing is sent, leaves
behind what the receiver has begun to send the other way.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.calls import CallRow, Calls, Group
from simulator.support.arrays import Floats
from simulator.workload import Edges, What, Workload
from traces.core.columns import ValueIndex
from traces.core.files import uncollected
from traces.core.rank_graph import LinkedRank
from traces.matching.clocks import MessageEnds, offsets
from traces.matching.match import MatchedCall

_MOSTLY = 0.5
"""A sender that waited for more than this part of the time a message moved waited for it to arrive:
one that waits for a buffer to take it is gone at once, and there is little in between but messages
of about the size of the buffer (4 MiB at most by default, net.ipv4.tcp_wmem of Linux)."""


class End(NamedTuple):
    """A place in the list of ranks, and the op of that rank that is an end of a message."""

    rank_index: int
    op: int

    def start(self, graphs: Sequence[LinkedRank]) -> float:
        """When the op began, by its rank's clock (s)."""
        return float(graphs[self.rank_index].starts[self.op])

    def end(self, graphs: Sequence[LinkedRank]) -> float:
        """When the op ended, by its rank's clock (s)."""
        return float(graphs[self.rank_index].ends[self.op])

    def posted(self, graphs: Sequence[LinkedRank]) -> bool:
        """Whether its event opens where it is posted and closes where it has been waited for."""
        return self.op in graphs[self.rank_index].posted

    def waited(self, graphs: Sequence[LinkedRank]) -> bool:
        """Whether its end is seen: its rank was kept waiting for it, or it is not a posted one."""
        return graphs[self.rank_index].posted.get(self.op, True)


class Message(Struct, frozen=True):
    """A call that is a message, of which both ends were recorded."""

    call: MatchedCall
    sender: End
    receiver: End


def messages_of(graphs: Sequence[LinkedRank], calls: Sequence[MatchedCall]) -> list[Message]:
    """List the messages among calls; one of which an end was not recorded is none."""
    messages = []
    for call in calls:
        by_role = {
            graphs[rank_index].what[op]: End(rank_index, op) for rank_index, op in call.ops.items()
        }
        if by_role.keys() == {What.SEND, What.RECEIVE}:
            messages.append(Message(call, by_role[What.SEND], by_role[What.RECEIVE]))
    return messages


def by_hosts(graphs: Sequence[LinkedRank], call: MatchedCall) -> bool:
    """Whether hosts carry a call out themselves (gloo)."""
    return any(op in graphs[rank_index].by_host for rank_index, op in call.ops.items())


def call_ends(
    graphs: Sequence[LinkedRank], shift: Floats, call: MatchedCall
) -> Iterator[MessageEnds]:
    """Take a call that hosts carry out as messages between its first member and each other (s).

    Nobody has what it waits for before all have begun; but the ends of ranks that come late differ
    by as much as half of what the call moves, and are no measure of clocks.
    """
    first, *others = (End(rank_index, op) for rank_index, op in call.ops.items())
    for member in others:
        for sender, receiver in ((first, member), (member, first)):
            yield MessageEnds(
                sender.rank_index,
                receiver.rank_index,
                sender.start(graphs) + float(shift[sender.rank_index]),
                receiver.end(graphs) + float(shift[receiver.rank_index]),
            )


def received(
    graphs: Sequence[LinkedRank], call: MatchedCall, ends: Sequence[float]
) -> float | None:
    """Return when a posted message was received (s); None if no wait for it was recorded.

    ``ends`` are when its members' events closed, in the order of ``call.ops``.
    """
    return next(
        (
            closed
            for (rank_index, op), closed in zip(call.ops.items(), ends, strict=True)
            if graphs[rank_index].what[op] != What.SEND and End(rank_index, op).waited(graphs)
        ),
        None,
    )


class EdgeColumns(NamedTuple):
    """Edges in no order: ops of all ranks, and the least time from end to start (s)."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    lag: Floats


def handed_over(
    graphs: Sequence[LinkedRank],
    messages: Sequence[Message],
    first: NDArray[np.int64],
    shift: Floats,
    edges: EdgeColumns,
) -> EdgeColumns:
    """Let who waits for a message that it sent go on as soon as the receiver has posted its end.

    ``first`` is the number of each rank's first op. A sender that was seen to wait for as long as
    the message moved still does.
    """
    stays = np.ones(len(edges.source), dtype=bool)
    more: list[tuple[int, int, float]] = []
    for message in messages:
        if not message.sender.posted(graphs):
            continue
        send, receive = (int(first[end.rank_index]) + end.op for end in _both(message))
        posting = np.flatnonzero(edges.target == receive)
        if not len(posting) or _kept_waiting(graphs, shift, message):
            continue
        waiting = np.flatnonzero(edges.source == send)
        stays[waiting] = False
        more += [
            (int(edges.source[posted]), int(edges.target[wait]), float(edges.lag[posted]))
            for wait in waiting.tolist()
            for posted in posting.tolist()
        ]
    if not more:
        return edges
    added = (np.array(column) for column in zip(*more, strict=True))
    columns = zip(edges, added, strict=True)
    return EdgeColumns(*(np.concatenate([old[stays], new]) for old, new in columns))


def _both(message: Message) -> tuple[End, End]:
    return message.sender, message.receiver


def _kept_waiting(graphs: Sequence[LinkedRank], shift: Floats, message: Message) -> bool:
    if not all(end.waited(graphs) for end in _both(message)):
        return False
    starts = [end.start(graphs) + shift[end.rank_index] for end in _both(message)]
    ends = [end.end(graphs) + shift[end.rank_index] for end in _both(message)]
    moved_from, (written, arrived) = max(starts), ends
    return bool(written - moved_from > _MOSTLY * (arrived - moved_from))


_END_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "unknown")
"""Calls of which no rank can be done before all have arrived: the root of a broadcast can."""


class JobClock(Struct, frozen=True, eq=False):
    """Seconds to add to each rank's times to have them since the job's first start of the step.

    ``offset`` is what each rank's clock was ahead (s), taken off already.
    """

    shift: NDArray[np.float64]
    offset: NDArray[np.float64]

    def of_ranks(self, graphs: Sequence[LinkedRank]) -> tuple[dict[int, float], ...]:
        """Return begin and end of each rank's step (s), and the offsets that are not 0."""
        rows = list(zip(graphs, self.shift.tolist(), self.offset.tolist(), strict=True))
        begins = {graph.rank: graph.start + shift for graph, shift, _ in rows}
        ends = {graph.rank: graph.end + shift for graph, shift, _ in rows}
        return begins, ends, {graph.rank: offset for graph, _, offset in rows if offset}


def align(
    graphs: Sequence[LinkedRank], epochs: Sequence[int], calls: Sequence[MatchedCall]
) -> JobClock:
    """Put all ranks on one clock; ``epochs`` are the traces' (ns)."""
    first = min(epochs)
    shift = np.array([(epoch - first) * 1e-9 for epoch in epochs])
    ends = []
    messages = []
    for message in messages_of(graphs, calls):
        # A posted one left no earlier than it was posted, and arrived when its receiver had been
        # kept waiting for it; one that its receiver found there shows nothing. The receiver of an
        # eager one may come to it at any time.
        sender, receiver = message.sender, message.receiver
        if receiver.waited(graphs):
            left = sender.start(graphs) if sender.posted(graphs) else sender.end(graphs)
            messages.append(
                MessageEnds(
                    sender.rank_index,
                    receiver.rank_index,
                    left + float(shift[sender.rank_index]),
                    receiver.end(graphs) + float(shift[receiver.rank_index]),
                    at_most=sender.posted(graphs) or message.call.eager,
                )
            )
    for call in calls:
        if call.kind in _END_TOGETHER and by_hosts(graphs, call):
            messages += call_ends(graphs, shift, call)
            continue
        # A row per call: when each rank ended it, NaN for a rank that is not in it.
        row = np.full(len(graphs), np.nan)
        for rank_index, op in call.ops.items():
            row[rank_index] = graphs[rank_index].ends[op] + shift[rank_index]
        if len(call.ops) > 1 and call.kind in _END_TOGETHER:
            ends.append(row)
    ahead = offsets(ends, messages, len(graphs))
    shift -= ahead
    # The job's first start is 0 on the common clock.
    shift -= min(graph.start + seconds for graph, seconds in zip(graphs, shift, strict=True))
    return JobClock(shift=shift, offset=ahead)


@uncollected()
def assemble(
    graphs: Sequence[LinkedRank], calls: Sequence[MatchedCall], clock: JobClock, job_ranks: int
) -> Workload:
    """Make one workload of all ranks."""
    ops = _Ops.of(graphs, clock)
    messages = messages_of(graphs, calls)
    queued = _in_order(graphs, messages, ops) if messages else []
    groups: dict[Group, int] = {}
    rows = []
    for index, call in enumerate(calls):
        group = groups.setdefault(Group(call.ranks, call.label), len(groups))
        transfer = ops.join(index, call, graphs)
        rows.append(
            CallRow(
                call.kind,
                group,
                call.sequence,
                call.size,
                call.dtype,
                transfer=transfer,
                eager=call.eager,
                shares=call.shares,
            )
        )
    lane, lanes = _joined((graph.lane, graph.lanes) for graph in graphs)
    name, names = _joined((graph.name, graph.names) for graph in graphs)
    module, (_, *modules) = _joined(((graph.module, graph.modules) for graph in graphs), "")
    # What carried out all calls, "" where it is not recorded
    carriers = {
        graph.names[graph.name[op]].partition(":")[0]
        if op in graph.by_host or op in graph.posted
        else ""
        for graph in graphs
        for op in graph.collectives
    }
    # Edges are numbered within a rank: moved by where the rank's ops begin.
    base = np.repeat(ops.first[:-1], [len(graph.source) for graph in graphs])
    columns = EdgeColumns(
        np.concatenate([graph.source for graph in graphs]) + base,
        np.concatenate([graph.target for graph in graphs]) + base,
        np.concatenate([graph.lag for graph in graphs]),
    )
    if messages:
        columns = handed_over(graphs, messages, ops.first, clock.shift, columns)
    more = np.array(queued, dtype=np.int64).reshape(-1, 2)
    return Workload(
        what=ops.what,
        rank=np.repeat([graph.rank for graph in graphs], np.diff(ops.first)).astype(np.int32),
        lane=lane,
        name=name,
        call=ops.call,
        duration=np.maximum(0.0, ops.end - ops.over),
        ready=ops.ready,
        measured_start=ops.start,
        measured_end=ops.end,
        edges=Edges.of(
            int(ops.first[-1]),
            np.concatenate([columns.source, more[:, 0]]),
            np.concatenate([columns.target, more[:, 1]]),
            np.concatenate([columns.lag, np.zeros(len(more))]),
        ),
        calls=Calls.of(rows),
        groups=tuple(groups),
        names=names,
        lanes=lanes,
        job_ranks=job_ranks,
        module=module - np.int32(1) if modules else None,
        modules=tuple(modules),
        library=_MODELLED if carriers == {_MODELLED} else "",
    )


def _in_order(
    graphs: Sequence[LinkedRank], messages: Sequence[Message], ops: "_Ops"
) -> list[tuple[int, int]]:
    """Find which posted messages waited for others; return edges between ops of all ranks.

    The start of an end that waited so (``ops.start``) is moved to when it had.
    """
    posted = []
    for message in messages:
        if not all(end.posted(graphs) for end in _both(message)):
            continue
        ends = _both(message)
        send, receive = (int(ops.first[end.rank_index]) + end.op for end in ends)
        posted.append(
            Posted(
                send,
                receive,
                source=message.sender.rank_index,
                target=message.receiver.rank_index,
                size=message.call.size,
                sent=float(ops.start[send]),
                awaited=float(ops.start[receive]),
                over=float(ops.end[receive]),
            )
        )
    edges = []
    for wait in in_order(posted):
        ops.start[wait.op] = max(ops.start[wait.op], wait.until)
        edges.append((wait.receive, wait.op))
    return edges


_MODELLED = "gloo"
"""The library that the names of its works identify, and has a model of its own."""


def _joined(
    columns: Iterable[tuple[NDArray[np.int32], tuple[str, ...]]], *first: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Put columns of indices behind one another, of one table that begins with ``first``."""
    table = ValueIndex[str]()
    table.many(first)
    joined = [np.empty(0, dtype=np.int32)]
    for column, values in columns:
        joined.append(table.column(values)[column] if len(column) else column)
    return np.concatenate(joined), tuple(table.index)


class _Ops(Struct, frozen=True, eq=False):
    """Columns of the ops of all ranks on one clock (s); those of a rank begin at its ``first``.

    ``over`` is when an op's own time begins: at its start, when what it follows has ended though it
    was on the device before, or when its call is over.
    """

    first: NDArray[np.int64]
    what: NDArray[np.uint8]
    start: Floats
    end: Floats
    ready: Floats
    over: Floats
    call: NDArray[np.int32]

    @staticmethod
    def of(graphs: Sequence[LinkedRank], clock: JobClock) -> "_Ops":
        """Collect them, of no call yet."""
        first = np.cumsum([0, *map(len, graphs)], dtype=np.int64)
        shift = np.repeat(clock.shift, np.diff(first))
        start = np.concatenate([graph.starts for graph in graphs]) + shift
        end = np.concatenate([graph.ends for graph in graphs]) + shift
        ready = np.maximum(0.0, np.concatenate([graph.ready for graph in graphs]) + shift)
        over = np.concatenate([graph.begun for graph in graphs]) + shift
        what = np.concatenate([graph.what for graph in graphs])
        return _Ops(first, what, start, end, ready, over, np.full(len(start), -1, np.int32))

    def join(self, index: int, call: MatchedCall, graphs: Sequence[LinkedRank]) -> float:
        """Join a call's members; returns how long it moved after the last arrived (s).

        A call of devices is over when the first member ends; what the others need after that is
        their own (draining a ring, being scheduled), and kept as the ``duration`` of their ops.
        One that hosts carry out is over when most members are done, if none can be before all have
        arrived: the first had the links for themselves, and the last were held up by their machine.
        Else it is over when the last member has all that it waits for: where the root of a scatter
        comes late others may be done before. A message is over when it was received; NaN where no
        wait for it was recorded. When an eager message is over,
        :func:`simulator.timeline.measured` says.
        """
        # From a rank's op to its place among the ops of all ranks.
        numbers = [int(self.first[rank_index]) + op for rank_index, op in call.ops.items()]
        members = np.array(numbers, dtype=np.int64)
        self.call[members] = index
        if any(op in graphs[rank_index].posted for rank_index, op in call.ops.items()):
            return self._join_posted(call, members, graphs)
        if by_hosts(graphs, call):
            return self._join_hosts(call, members)
        if call.eager:
            return self._join_eager(members)
        arrived = float(self.over[members].max())
        transfer = max(0.0, float(self.end[members].min()) - arrived)
        self.over[members] = arrived + transfer
        return transfer

    def _join_hosts(self, call: MatchedCall, members: NDArray[np.int64]) -> float:
        arrived, ends = float(self.start[members].max()), self.end[members]
        if call.kind in _END_TOGETHER and ends.min() >= arrived:
            over = float(np.sort(ends)[len(ends) // 2])
            self.over[members] = np.minimum(ends, over)
            return over - arrived
        self.over[members] = ends
        return max(0.0, float(ends.max()) - arrived)

    def _join_posted(
        self, call: MatchedCall, members: NDArray[np.int64], graphs: Sequence[LinkedRank]
    ) -> float:
        arrived, ends = float(self.start[members].max()), self.end[members]
        over = received(graphs, call, ends.tolist())
        ends = np.minimum(ends, ends.min() if over is None else over)
        self.end[members] = np.maximum(self.start[members], ends)
        self.over[members] = self.end[members]
        return float("nan") if over is None else max(0.0, over - arrived)

    def _join_eager(self, members: NDArray[np.int64]) -> float:
        sends = self.what[members] == What.SEND
        awaited = members[sends] if sends.any() else members
        arrived, over = float(self.start[awaited].max()), float(self.end[awaited].min())
        # A receiver that was there before the message waits for it: the message is over when it is
        # done.
        for op in np.setdiff1d(members, awaited).tolist():
            if self.start[op] < over:
                over = float(self.end[op])
        transfer = max(0.0, over - arrived)
        self.over[members] = np.maximum(self.start[members], arrived + transfer)
        return transfer


_ALONE = 0.9
"""Part of the time that a message takes alone by which it must have ended after another for it to
have waited for that: stamps, and the other's last packets, take the rest."""


class Posted(Struct, frozen=True):
    """A message whose ends are ops: ``send`` of rank ``source``, ``receive`` of rank ``target``.

    The ends were posted at ``sent`` and ``awaited``; it had come at ``over`` (s).
    """

    send: int
    receive: int
    source: int
    target: int
    size: float
    sent: float
    awaited: float
    over: float

    @property
    def begun(self) -> float:
        """When both ends had been posted (s)."""
        return max(self.sent, self.awaited)


class Behind(Struct, frozen=True):
    """The end ``op`` of a message waited ``until`` (s) for what op ``receive`` receives."""

    receive: int
    op: int
    until: float


def in_order(messages: Sequence[Posted], *, recorded: bool = True) -> Iterator[Behind]:
    """Find which messages wait for others of their connection, or their receiver's NIC.

    gloo has one TCP connection between two ranks (``transport/tcp/pair.cc``), and what is written
    to it leaves in order: a message behind the one before it, a receiver's notice
    (``NOTIFY_RECV_READY``), without which nothing is sent, behind what the receiver has begun to
    send. Of ``recorded`` ones none waits that came sooner than it could have. What a rank sends to
    others than the message's sender stands in the queue of the same NIC in part only: a notice is
    taken to have waited for it where that was still under way and the message came as late as that.

    Parameters
    ----------
    messages
        Of all ranks, in any order.
    recorded
        Whether they are as they moved; else as they would move if none waited.

    Yields
    ------
    Behind
        An edge from a message that had begun before to the one that waits for it.
    """
    alone: dict[float, float] = {}
    for message in messages:
        length = message.over - message.begun
        alone[message.size] = min(length, alone.get(message.size, length))
    begun_on: dict[tuple[int, int], list[tuple[float, Posted]]] = defaultdict(list)
    for message in sorted(messages, key=lambda posted: (posted.begun, posted.send)):
        way = message.source, message.target
        before = [(last, message.receive) for _, last in begun_on[way][-1:]]
        for (source, target), earlier in list(begun_on.items()):
            if source != message.target:
                continue
            last = next((sent for begun, sent in earlier[::-1] if begun < message.awaited), None)
            if last is not None and (target == message.source or last.over > message.awaited):
                before.append((last, message.send))
        least = _ALONE * alone[message.size]
        ahead = [
            (last, op) for last, op in before if not recorded or message.over - last.over > least
        ]
        begun = message.begun
        for last, op in ahead:
            until = min(last.over, message.over)
            begun = max(begun, until)
            yield Behind(last.receive, op, until)
        begun_on[way].append((begun, message))
