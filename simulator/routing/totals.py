"""What many messages that are sent at once put on each link in all, and which of them is slowest.

The same as summing up :func:`simulator.routing.routes.routes`, without the list of all links: that
of an all-to-all on 4,096 ranks of a torus would be 200 million entries. Messages are taken a block
of goals at a time (:mod:`simulator.routing.least_paths`), so what it takes does not grow with their
number.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.routing.choice import HASH, Rule
from simulator.routing.graph import UNKNOWN
from simulator.routing.least_paths import (
    Block,
    Field,
    Sums,
    add_by_hubs,
    add_direct,
    add_walked,
    edge,
    same_everywhere,
    sums,
    tree,
)
from simulator.routing.messages import (
    choose_hubs,
    inside,
    messages,
    no_links,
)
from simulator.routing.paths import check_nodes
from simulator.routing.survey import CHOICES, Survey, survey_of
from simulator.topology import Topology

Floats = NDArray[np.float64]
Nodes = NDArray[np.int32]
_BLOCK = 1 << 18
"""Messages that are taken at a time, or those to one goal, if they are more."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Messages sent at once, those to one goal in a row; nothing is sent where ``amount`` is 0.

    Parameters
    ----------
    goal
        Nodes that are sent to, each once, shape ``(goals,)``.
    offset
        Messages ``offset[g]:offset[g + 1]`` are for goal ``g``, shape ``(goals + 1,)``.
    source
        Nodes that send, shape ``(messages,)``; or where ``everyone`` holds, ``(goals,)``.
    amount
        Of each message, in proportion to bytes, shape ``(messages,)``; or where ``everyone`` holds
        senders in rows, ``(goals, goals)``. None: all alike, 1.
    number
        Order in which messages are sent, shape ``(messages,)``; not where ``everyone`` holds.
    everyone
        All of ``source``, which then equals ``goal``, send to all others, in order of the sender.
    """

    goal: Nodes
    offset: NDArray[np.int64]
    source: Nodes
    amount: Floats | None
    number: NDArray[np.int64]
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
        mine = slice(int(self.offset[first]), int(self.offset[last]))
        source = np.ascontiguousarray(self.source[mine])
        amount = np.ones(len(source)) if self.amount is None else self.amount[mine]
        offset = self.offset[first : last + 1] - self.offset[first]
        goal = np.ascontiguousarray(self.goal[first:last])
        return Block(goal, offset, source, np.ascontiguousarray(amount), self.number[mine])

    def _of_everyone(self, first: int, last: int) -> Block:
        count = len(self.goal)
        goals = np.arange(first, last)
        other = np.arange(count - 1)[None, :]
        sender = (other + (other >= goals[:, None])).ravel()
        goal = np.repeat(goals, count - 1)
        amount = np.ones(len(sender)) if self.amount is None else self.amount[sender, goal]
        return Block(
            goal=np.ascontiguousarray(self.goal[first:last]),
            offset=self.offset[first : last + 1] - self.offset[first],
            source=self.source[sender],
            amount=amount,
            number=sender * count + goal,
        )


def listed(source: Nodes, target: Nodes, amount: Floats | None = None) -> Traffic:
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


def exchange(nodes: Nodes, amount: Floats | None = None) -> Traffic:
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


@dataclass(frozen=True, eq=False)
class Totals:
    """What messages come to.

    Parameters
    ----------
    load
        On each link, in the unit of the amounts, shape ``(links,)``.
    slowest
        Ends of the message of longest latency, the first of such.
    passing
        How many messages are on the watched link, and numbers of the first few.
    """

    load: Floats
    slowest: tuple[int, int]
    passing: tuple[int, list[int]]


def totals(network: Topology, traffic: Traffic, watched: int = -1) -> Totals | None:
    """Add up what messages put on each link.

    Parameters
    ----------
    network
        The topology.
    traffic
        Messages sent at once; at least one of them of something.
    watched
        A link of which the messages are counted; divided ones as one message each.

    Returns
    -------
    Totals or None
        None where messages have to be listed: where the topology gives the paths itself, has NICs
        for doors or takes detours, where a choice by hash stands behind a division, and where there
        is no path.

    Raises
    ------
    TopologyError
        If a message names a node that is not there.
    """
    check_nodes(network, traffic.source, traffic.goal)
    if network.route is not None or network.doors is not None:
        return None
    if network.routing.policy in ("adaptive", "valiant"):
        return None
    found = sums(len(network), watched)
    survey = survey_of(network)
    add = _by_hubs(survey, found) if survey.hub.any() else _directly(survey, found)
    for block in traffic.blocks():
        if not add(block):
            return None
    few = found.passing[1 : 1 + min(int(found.passing[0]), len(found.passing) - 1)]
    ends = traffic.ends(int(found.number[0]))
    return Totals(found.load, ends, (int(found.passing[0]), few.tolist()))


def _directly(survey: Survey, found: Sums) -> Callable[[Block], bool]:
    """Return what adds up a block of messages where there are no hubs: False where it cannot."""
    rule = survey.rule._replace(choice=CHOICES[survey.network.routing.policy])
    if survey.network.routing.resource:
        rule = rule._replace(choice=HASH)
    field = _field(survey, survey.cells.outside, rule, found)
    return lambda block: add_direct(block, field) == 0


def _by_hubs(survey: Survey, found: Sums) -> Callable[[Block], bool]:
    """Return what adds up a block of messages where there are hubs: False where it cannot."""
    network, graph = survey.network, survey.graph
    rule = survey.rule._replace(choice=CHOICES[network.routing.policy])
    inside_rule = rule._replace(choice=HASH) if network.routing.resource else rule
    field = _field(survey, survey.hubs.inner, rule, found)
    ways = edge(len(network.nodes))

    def add(block: Block) -> bool:
        sent = messages(block.source, np.repeat(block.goal, np.diff(block.offset)), len(survey.hub))
        links = inside(sent, graph, survey.cells, inside_rule, no_links(sent, graph))
        if (sent.metric >= survey.least_by_hub).any():
            choose_hubs(sent, graph, survey.hubs, rule.seed)
        if (sent.metric == UNKNOWN).any():
            return False
        add_walked(block, sent, links, field)
        return add_by_hubs(block, sent, survey.hubs, ways, field) == 0

    return add


def _field(survey: Survey, inner: NDArray[np.bool_], rule: Rule, found: Sums) -> Field:
    return Field(
        graph=survey.graph,
        rule=rule,
        latency=survey.network.latency,
        inner=inner,
        even=same_everywhere(survey.graph, inner),
        tree=tree(survey.graph),
        sums=found,
    )
