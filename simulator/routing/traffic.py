"""Messages that are sent at once: a list of them, or each of some nodes to every other one."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.routing.least_paths import Block
from simulator.support.arrays import Floats, Ints, Longs

_BLOCK = 1 << 18
"""Messages that are taken at a time, or those to one goal, if they are more."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Messages sent at once, those to one goal in a row; nothing is sent where ``amount`` is 0.

    Parameters
    ----------
    goal
        Ints that are sent to, each once, shape ``(goals,)``.
    offset
        Messages ``offset[g]:offset[g + 1]`` are for goal ``g``, shape ``(goals + 1,)``.
    source
        Ints that send, shape ``(messages,)``; or where ``everyone`` holds, ``(goals,)``.
    amount
        Of each message, in proportion to bytes, shape ``(messages,)``; or where ``everyone`` holds
        senders in rows, ``(goals, goals)``. None: all alike, 1.
    number
        Order in which messages are sent, shape ``(messages,)``; not where ``everyone`` holds.
    everyone
        All of ``source``, which then equals ``goal``, send to all others, in order of the sender.
    """

    goal: Ints
    offset: Longs
    source: Ints
    amount: Floats | None
    number: Longs
    everyone: bool = False

    def ends(self, number: int) -> tuple[int, int]:
        """Return who sends and who receives a message, given its number."""
        if self.everyone:
            return int(self.source[number // len(self.goal)]), int(
                self.goal[number % len(self.goal)]
            )
        at = int(np.flatnonzero(self.number == number)[0])
        goal = int(np.searchsorted(self.offset, at, side="right")) - 1
        return int(self.source[at]), int(self.goal[goal])

    def blocks(self) -> Iterator[Block]:
        """Return the messages, some goals at a time."""
        first = 0
        while first < len(self.goal):
            most = self.offset[first] + _BLOCK
            last = max(first + 1, int(np.searchsorted(self.offset, most, side="right")) - 1)
            yield self._of_everyone(first, last) if self.everyone else self._listed(first, last)
            first = last

    def _listed(self, first: int, last: int) -> Block:
        messages = slice(int(self.offset[first]), int(self.offset[last]))
        source = np.ascontiguousarray(self.source[messages])
        amount = np.ones(len(source)) if self.amount is None else self.amount[messages]
        offset = self.offset[first : last + 1] - self.offset[first]
        goal = np.ascontiguousarray(self.goal[first:last])
        return Block(goal, offset, source, np.ascontiguousarray(amount), self.number[messages])

    def _of_everyone(self, first: int, last: int) -> Block:
        count = len(self.goal)
        goals = np.arange(first, last, dtype=np.int32)
        sender_rank = np.arange(count - 1, dtype=np.int32)[None, :]
        sender = (sender_rank + (sender_rank >= goals[:, None])).ravel()
        goal = np.repeat(goals, count - 1)
        amount = np.ones(len(sender)) if self.amount is None else self.amount[sender, goal]
        return Block(
            goal=np.ascontiguousarray(self.goal[first:last]),
            offset=self.offset[first : last + 1] - self.offset[first],
            source=self.source[sender],
            amount=amount,
            number=sender * np.int64(count) + goal,
        )


def listed(source: Ints, target: Ints, amount: Floats | None = None) -> Traffic:
    """Return messages as traffic; all arguments have shape ``(messages,)``.

    Examples
    --------
    >>> ends = np.array([0, 1, 2], np.int32), np.array([3, 0, 3], np.int32)
    >>> [block.source.tolist() for block in listed(*ends).blocks()]
    [[1, 0, 2]]
    """
    order = np.argsort(target, kind="stable")
    goal, first = np.unique(target[order], return_index=True)
    return Traffic(
        goal=goal.astype(np.int32),
        offset=np.append(first, len(order)).astype(np.int64),
        source=source[order].astype(np.int32),
        amount=None if amount is None else amount[order],
        number=order.astype(np.int64),
    )


def exchange(nodes: Ints, amount: Floats | None = None) -> Traffic:
    """Return messages from each of some nodes to each other one, in order of the sender.

    ``amount[i, j]`` is what ``nodes[i]`` has for ``nodes[j]``; all alike if it is not given.

    Examples
    --------
    >>> next(exchange(np.array([4, 7, 9], np.int32)).blocks()).source.tolist()
    [7, 9, 4, 9, 4, 7]
    """
    nodes = np.ascontiguousarray(nodes, dtype=np.int32)
    offset = np.arange(len(nodes) + 1, dtype=np.int64) * (len(nodes) - 1)
    return Traffic(nodes, offset, nodes, amount, np.empty(0, dtype=np.int64), everyone=True)
