"""Hot loops: the way from a node to the goal of a search, on one path or over all of them.

What a search finds (:class:`~simulator.routing.graph.SearchState`) is which links of a node come
nearer to the goal; a :class:`Rule`, which is a policy (:mod:`simulator.policy`) compiled
for a graph, says which of these a message takes.
"""

from typing import NamedTuple

import numpy as np

from simulator.routing.graph import (
    Ends,
    Graph,
    LinkColumns,
    SearchState,
    choose_link,
    count_nearer,
    ecmp_hash,
    nearer,
    put,
)
from simulator.support.arrays import Floats, Longs, Mask
from simulator.support.compiled import hot_loop
from simulator.support.heap import pop, push

HASH, TABLE, DIGITS, ALIKE, BY_CAPACITY = range(5)
"""How the next hop is chosen; from ``ALIKE`` on a message is divided."""

_UNLIMITED = 1e200


class Rule(NamedTuple):
    """How a message is routed.

    ``choice`` holds at nodes that are ``ruled``; elsewhere the hash of ``seed`` chooses.
    ``capacity`` is what each link can carry. ``place`` and ``switch`` number the ports at which
    messages leave the fabric, by link: the port on its switch and the switch among those that have
    any; a switch has at most ``ports``. ``senders`` are sides of NICs with several ports, where
    ``flow`` of a message takes the port of its number; -1 is a single flow, which is hashed.
    """

    choice: int
    seed: int
    ruled: Mask
    capacity: Floats
    place: Longs
    switch: Longs
    ports: int
    senders: Mask
    flow: int = -1


class Port(NamedTuple):
    """Where a message leaves the fabric: a node, and its number in digits (see :class:`Rule`)."""

    node: int
    place: int
    switch: int


class Scratch(NamedTuple):
    """Per node, what of a message is there, and what can be carried on; zero between messages.

    ``onward`` is to be set to 0 for each search.
    """

    amount: Floats
    onward: Floats


class Walk(NamedTuple):
    """What walks of messages over a graph need, and where their links are written.

    ``state`` is that of the last search; its goal is where walks end.
    """

    graph: Graph
    rule: Rule
    state: SearchState
    work: Scratch
    links: LinkColumns


def scratch(nodes: int) -> Scratch:
    """Make scratch arrays for a graph."""
    return Scratch(np.zeros(nodes), np.zeros(nodes))


@hot_loop
def follow(node: int, goal: int, ends: Ends, port: Port, walk: Walk) -> None:
    """Write the links of one path from a node to the goal of a search behind all others."""
    graph, state = walk.graph, walk.state
    single = walk.rule.choice == HASH
    digits = -1  # what is left of the port's number; -1 at the first switch that chooses
    while node != goal:
        link = state.via[node]  # right where a single link comes nearer
        if state.ways[node] > 1:
            if walk.rule.flow >= 0 and walk.rule.senders[node]:
                ways = count_nearer(node, state.metric, graph)
                link = nearer(node, walk.rule.flow % ways, state.metric, graph)
            elif single or not walk.rule.ruled[node]:
                link = choose_link(node, ends, state.metric, graph)
            else:
                ways = count_nearer(node, state.metric, graph)
                number = _number(node, ways, digits, port, walk.rule)
                digits = digits_left(ways, digits, port, walk.rule)
                link = nearer(node, number, state.metric, graph)
        put(link, 1.0, walk.links)
        node = graph.stop[link]


@hot_loop
def _number(node: int, ways: int, digits: int, port: Port, rule: Rule) -> int:
    """Which of its next hops a switch takes for a port; ``digits`` is -1 at the first switch."""
    if rule.choice == TABLE:
        return int(np.int64(ecmp_hash(0, port.node, node, rule.seed) % np.uint64(ways)))
    return (port.place if digits < 0 else digits) % ways


@hot_loop
def digits_left(ways: int, digits: int, port: Port, rule: Rule) -> int:
    """Drop the digit of a port's number that a switch has used; the first is that of its place."""
    if digits >= 0:
        return digits // ways
    return port.place // ways + port.switch * ((rule.ports + ways - 1) // ways)


@hot_loop
def leaving_port(ends: Ends, last: int, back: Graph, from_last: Longs, rule: Rule) -> Port:
    """Find where a message leaves its last hub.

    ``back`` is the graph with every link turned round, ``from_last`` the metric of each node behind
    that hub: the message is followed from its target backwards.
    """
    node = ends.target
    port, number, switch = node, 0, 0
    while node != last:
        link = choose_link(node, ends, from_last, back)
        port, number, switch = node, rule.place[link], rule.switch[link]
        node = back.stop[link]
    return Port(port, number, switch)


@hot_loop
def spread_from(node: int, goal: int, ends: Ends, walk: Walk) -> None:
    """Write the links of all paths from a node to the goal of a search behind all others."""
    walk.work.amount[node] = 1.0
    waiting = push(walk.state.heap, 0, -float(walk.state.metric[node]), node)
    spread(waiting, goal, ends, walk)


@hot_loop
def spread(waiting: int, goal: int, ends: Ends, walk: Walk) -> None:
    """Divide what is at some nodes over all paths to the goal of a search, farthest nodes first.

    These nodes, ``waiting`` of them, are in the heap of the search by their negative metric.
    """
    heap, amount = walk.state.heap, walk.work.amount
    if walk.rule.choice == BY_CAPACITY:
        for index in range(waiting):
            _measure_onward(heap.item[index], goal, walk)
    # Farthest first: all that comes to a node is there before any of it goes on.
    while waiting > 0:
        node = heap.item[0]
        waiting = pop(heap, waiting)
        part = amount[node]
        amount[node] = 0.0
        if node == goal:
            continue
        if walk.rule.ruled[node]:
            waiting = _divide(node, part, waiting, walk)
        else:
            link = choose_link(node, ends, walk.state.metric, walk.graph)
            waiting = _pass(link, part, waiting, walk)


@hot_loop
def _divide(node: int, part: float, waiting: int, walk: Walk) -> int:
    """Send what is at a node on over all links that come nearer; return how many nodes wait."""
    graph, metric = walk.graph, walk.state.metric
    offset, item = graph.out
    whole = 0.0  # sum of the weights of the links that come nearer
    for index in range(offset[node], offset[node + 1]):
        link = item[index]
        if metric[graph.stop[link]] + graph.metric[link] == metric[node]:
            whole += link_weight(link, walk)
    for index in range(offset[node], offset[node + 1]):
        link = item[index]
        if metric[graph.stop[link]] + graph.metric[link] == metric[node]:
            waiting = _pass(link, part * (link_weight(link, walk) / whole), waiting, walk)
    return waiting


@hot_loop
def link_weight(link: int, walk: Walk) -> float:
    """In proportion to what a link takes of a message: 1, or what it can carry to the goal."""
    if walk.rule.choice == ALIKE:
        return 1.0
    return float(min(walk.rule.capacity[link], walk.work.onward[walk.graph.stop[link]]))


@hot_loop
def _pass(link: int, part: float, waiting: int, walk: Walk) -> int:
    """Send a part over a link; return how many nodes wait."""
    put(link, part, walk.links)
    node = walk.graph.stop[link]
    # A node of which something is there waits in the heap already.
    if walk.work.amount[node] == 0.0:
        waiting = push(walk.state.heap, waiting, -float(walk.state.metric[node]), node)
    walk.work.amount[node] += part
    return waiting


@hot_loop
def _measure_onward(begin: int, goal: int, walk: Walk) -> None:
    """Find what each node on the paths to the goal can carry there.

    That is the sum over its next hops of what the link, and the node behind it, can carry. Nodes
    are worked off a stack; one that still waits for another is looked at again after that.
    """
    onward, stack = walk.work.onward, walk.state.stack
    onward[goal] = _UNLIMITED
    stack[0] = begin
    height = 1
    while height > 0:
        node = stack[height - 1]
        missing = -1 if onward[node] > 0.0 else _sum_up(node, walk)
        if missing >= 0:
            stack[height] = missing
            height += 1
        else:
            height -= 1


@hot_loop
def _sum_up(node: int, walk: Walk) -> int:
    """Set what a node can carry on, or return a next hop of which that must be known first."""
    graph, metric, onward = walk.graph, walk.state.metric, walk.work.onward
    offset, item = graph.out
    total = 0.0
    for index in range(offset[node], offset[node + 1]):
        link = item[index]
        next_node = graph.stop[link]
        if metric[next_node] + graph.metric[link] == metric[node]:
            if onward[next_node] == 0.0:
                return int(next_node)
            total += min(walk.rule.capacity[link], onward[next_node])
    onward[node] = total
    return -1
