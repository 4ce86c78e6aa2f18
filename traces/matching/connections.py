"""The order in which messages that hosts post move: on their connection, and through their NIC.

gloo has one TCP connection between two ranks (``transport/tcp/pair.cc``, github.com/pytorch/gloo),
and what is written to it leaves in order. So a message moves behind the one before it that goes the
same way, and a receiver's notice (``NOTIFY_RECV_READY``), without which nothing is sent, leaves
behind what the receiver has begun to send the other way.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ALONE = 0.9
"""Part of the time that a message takes alone by which it must have ended after another for it to
have waited for that: stamps, and the other's last packets, take the rest."""


@dataclass(frozen=True, slots=True)
class Posted:
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


@dataclass(frozen=True, slots=True)
class Behind:
    """The end ``op`` of a message waited ``until`` (s) for what op ``receive`` receives."""

    receive: int
    op: int
    until: float


def in_order(messages: Sequence[Posted]) -> Iterator[Behind]:
    """Find which messages wait for others of their connection, or their receiver's NIC.

    None does that came sooner than it could have behind the other. What a rank sends to others than
    the message's sender stands in the queue of the same NIC in part only: a notice is taken to have
    waited for it where that was still under way and the message came as late as that.

    Parameters
    ----------
    messages
        Of all ranks, in any order.

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
        ahead = [(last, op) for last, op in before if message.over - last.over > least]
        begun = message.begun
        for last, op in ahead:
            until = min(last.over, message.over)
            begun = max(begun, until)
            yield Behind(last.receive, op, until)
        begun_on[way].append((begun, message))
