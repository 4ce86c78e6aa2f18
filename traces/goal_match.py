"""Which send of a GOAL schedule each receive gets."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

from simulator.errors import TraceError
from traces.goal_text import ANY, Goal, GoalOp

Place = tuple[int, int]
"""A rank and the place of a statement in it."""
Statement = tuple[Place, GoalOp]


def matched(path: Path, goal: Goal, notes: Counter[str]) -> list[tuple[Statement, Statement]]:
    """Pair sends and receives, each in the order of the file for its source, target and tag.

    Receives from any source, or with any tag, get what the others leave, in the order of the file:
    LogGOPSim gives them what arrives first. They are counted.

    Raises
    ------
    TraceError
        If a message has no other end, or goes to its own rank.
    """
    mailbox = _Mailbox()
    for sent in _statements(goal, "send"):
        (rank, _), op = sent
        if op.peer == rank:
            raise TraceError(f"{path}:{op.line}: rank {rank} sends to itself")
        mailbox.put(sent)
    receives = _statements(goal, "recv")
    pairs = []
    for receive in sorted(receives, key=lambda one: ANY in (one[1].peer, one[1].tag)):
        (rank, _), op = receive
        if ANY in (op.peer, op.tag):
            notes["receives from any source or tag: matched in the order of the file"] += 1
        send = mailbox.take(rank, op)
        if send is None:
            wanted = f"{op.amount}b from {op.peer} tag {op.tag}"
            raise TraceError(f"{path}:{op.line}: rank {rank}: nobody sends {wanted}")
        pairs.append((send, receive))
    for (rank, _), op in mailbox.left():
        where = f"{path}:{op.line}: rank {rank}"
        raise TraceError(f"{where}: nobody receives {op.amount}b to {op.peer} tag {op.tag}")
    return pairs


def _statements(goal: Goal, what: str) -> list[Statement]:
    return [
        ((rank, place), op)
        for rank, own in sorted(goal.ranks.items())
        for place, op in enumerate(own.ops)
        if op.what == what
    ]


@dataclass(slots=True)
class _Mailbox:
    """Sends that are not received yet, in a queue for each way a receive may ask for them."""

    queues: dict[tuple[int, int, int], deque[Statement]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    taken: set[Place] = field(default_factory=set)

    def put(self, send: Statement) -> None:
        (source, _), op = send
        for asked_source in (source, ANY):
            for tag in (op.tag, ANY):
                self.queues[op.peer, asked_source, tag].append(send)

    def take(self, rank: int, receive: GoalOp) -> Statement | None:
        queue = self.queues.get((rank, receive.peer, receive.tag), deque())
        while queue:
            send = queue.popleft()
            if send[0] not in self.taken:
                self.taken.add(send[0])
                return send
        return None

    def left(self) -> list[Statement]:
        return [one for queue in self.queues.values() for one in queue if one[0] not in self.taken]
