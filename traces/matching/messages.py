"""Messages that a host posts and waits for later: when they were over, and who waited for what.

gloo keeps a message until its receiver has said that it is ready (``handleRemotePendingRecv`` of
transport/tcp/pair.cc, github.com/pytorch/gloo): it moves when both ends are posted. Then the sender
writes it to its socket, whose buffer takes it before it has moved, and whoever waits for the send
goes on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.workload import Floats, What
from traces.core.rank_graph import LocalOp, RankGraph
from traces.matching.clocks import MessageEnds
from traces.matching.match import MatchedCall

_MOSTLY = 0.5
"""A sender that waited for more than this part of the time a message moved waited for it to arrive:
one that waits for a buffer to take it is gone at once, and there is little in between but messages
of about the size of the buffer (4 MiB at most by default, net.ipv4.tcp_wmem of Linux)."""


class End(NamedTuple):
    """A place in the list of ranks, and the op of that rank that is an end of a message."""

    rank_index: int
    op: int

    def local(self, graphs: Sequence[RankGraph]) -> LocalOp:
        """Return the op."""
        return graphs[self.rank_index].ops[self.op]

    def posted(self, graphs: Sequence[RankGraph]) -> bool:
        """Whether its event opens where it is posted and closes where it has been waited for."""
        return self.op in graphs[self.rank_index].posted

    def waited(self, graphs: Sequence[RankGraph]) -> bool:
        """Whether its end is seen: its rank was kept waiting for it, or it is no posted one."""
        return graphs[self.rank_index].posted.get(self.op, True)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of which both ends were recorded."""

    sender: End
    receiver: End

    @staticmethod
    def of(graphs: Sequence[RankGraph], call: MatchedCall) -> "Message | None":
        """Return the message that a call is; None if it is none, or an end was not recorded."""
        ends = [End(rank_index, op) for rank_index, op in call.ops.items()]
        by_role = {end.local(graphs).what: end for end in ends}
        if by_role.keys() != {What.SEND, What.RECEIVE}:
            return None
        return Message(by_role[What.SEND], by_role[What.RECEIVE])


def message_ends(
    graphs: Sequence[RankGraph], shift: Floats, calls: Sequence[MatchedCall]
) -> Iterator[MessageEnds]:
    """Yield when messages were sent and received, by the clocks of their ends (s).

    A posted one left no earlier than it was posted, and arrived when its receiver had been kept
    waiting for it; one that its receiver found there tells nothing. The receiver of an eager one
    may come to it at any time.
    """
    for call in calls:
        message = Message.of(graphs, call)
        if message is None or not message.receiver.waited(graphs):
            continue
        sender, receiver = message.sender, message.receiver
        sent = sender.local(graphs)
        yield MessageEnds(
            sender.rank_index,
            receiver.rank_index,
            (sent.start if sender.posted(graphs) else sent.end) + float(shift[sender.rank_index]),
            receiver.local(graphs).end + float(shift[receiver.rank_index]),
            at_most=sender.posted(graphs) or call.eager,
        )


def by_hosts(graphs: Sequence[RankGraph], call: MatchedCall) -> bool:
    """Whether hosts carry a call out themselves (gloo)."""
    return any(op in graphs[rank_index].by_host for rank_index, op in call.ops.items())


def call_ends(
    graphs: Sequence[RankGraph], shift: Floats, call: MatchedCall
) -> Iterator[MessageEnds]:
    """Take a call that hosts carry out as messages between its first member and each other (s).

    Nobody has what it waits for before all have begun; but the ends of ranks that come late differ
    by as much as half of what the call moves, and say nothing of clocks.
    """
    (first, op), *others = call.ops.items()
    one = graphs[first].ops[op]
    for rank_index, number in others:
        other = graphs[rank_index].ops[number]
        here, there = float(shift[first]), float(shift[rank_index])
        yield MessageEnds(first, rank_index, one.start + here, other.end + there)
        yield MessageEnds(rank_index, first, other.start + there, one.end + here)


def received(graphs: Sequence[RankGraph], call: MatchedCall, ends: Sequence[float]) -> float | None:
    """Tell when a posted message was received; None if nobody was seen to wait for that (s).

    ``ends`` are when its members' events closed, in the order of ``call.ops``.
    """
    return next(
        (
            closed
            for (rank_index, op), closed in zip(call.ops.items(), ends, strict=True)
            if graphs[rank_index].ops[op].what != What.SEND and End(rank_index, op).waited(graphs)
        ),
        None,
    )


class EdgeColumns(NamedTuple):
    """Edges in no order: ops of all ranks, and the least time from end to start (s)."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    lag: Floats


def handed_over(
    graphs: Sequence[RankGraph],
    calls: Sequence[MatchedCall],
    first: NDArray[np.int64],
    shift: Floats,
    edges: EdgeColumns,
) -> EdgeColumns:
    """Let who waits for a message that it sent go on as soon as the receiver has posted its end.

    ``first`` is the number of each rank's first op. A sender that was seen to wait for as long as
    the message moved still does.
    """
    kept = np.ones(len(edges.source), dtype=bool)
    more: list[tuple[int, int, float]] = []
    for call in calls:
        message = Message.of(graphs, call)
        if message is None or not message.sender.posted(graphs):
            continue
        send, receive = (int(first[end.rank_index]) + end.op for end in _both(message))
        posting = np.flatnonzero(edges.target == receive)
        if not len(posting) or _kept_waiting(graphs, shift, message):
            continue
        waiting = np.flatnonzero(edges.source == send)
        kept[waiting] = False
        more += [
            (int(edges.source[posted]), int(edges.target[wait]), float(edges.lag[posted]))
            for wait in waiting.tolist()
            for posted in posting.tolist()
        ]
    if not more:
        return edges
    added = (np.array(column) for column in zip(*more, strict=True))
    columns = zip(edges, added, strict=True)
    return EdgeColumns(*(np.concatenate([old[kept], new]) for old, new in columns))


def _both(message: Message) -> tuple[End, End]:
    return message.sender, message.receiver


def _kept_waiting(graphs: Sequence[RankGraph], shift: Floats, message: Message) -> bool:
    if not all(end.waited(graphs) for end in _both(message)):
        return False
    starts, ends = (
        [getattr(end.local(graphs), what) + shift[end.rank_index] for end in _both(message)]
        for what in ("start", "end")
    )
    moved_from, (written, arrived) = max(starts), ends
    return bool(written - moved_from > _MOSTLY * (arrived - moved_from))
