"""Hot loops: the paths of least metric to one goal, and the load of messages on their links.

One search serves sums and lists: all messages to one goal share a search backwards from it
(:func:`settle`), of which :func:`survey_paths` makes a tree: which links of a node lead nearer to
the goal, and the part of a divided message on each. Messages are then carried over it one by one
(:func:`carry`) by a :class:`Rule`, a routing policy (:mod:`simulator.topology`) compiled for a
graph. A link that is passed is appended to a list, or its load is added to (:func:`pass_link`).

Lists and sums differ where the rest of the path no longer depends on the message: from a node with
a single path on, or where everything is divided in the same way. There a sum leaves bytes waiting
at the node; they are forwarded together at the end, farthest nodes first (:func:`forward_waiting`).
In a list each message continues by itself.
"""

from typing import NamedTuple

import numpy as np

from simulator.routing.graph import (
    UNKNOWN,
    Ends,
    Graph,
    LinkColumns,
    SearchState,
    begin_search,
    choose_link,
    ecmp_hash,
    put,
    search,
    search_state,
)
from simulator.support.arrays import Floats, Ints, Longs, Mask
from simulator.support.compiled import hot_loop

HASH, TABLE, DIGITS, ALIKE, BY_CAPACITY = range(5)
"""How the next hop is chosen; from ``ALIKE`` on a message is divided over all of them."""
SAME = 1e-12
"""Relative difference below which latencies are equal; the first such message is the slowest."""
FEW = 4
"""Most messages on a watched link whose numbers are kept."""
_UNLIMITED = 1e200


class Rule(NamedTuple):
    """How messages are routed.

    ``choice`` applies at ``ruled`` nodes; elsewhere the hash with ``seed`` chooses. ``capacity`` is
    that of each link. ``place`` and ``switch`` number the ports at which messages leave the fabric,
    by link: the port on its switch, and the switch among those with such ports; a switch has at
    most ``ports``. ``senders`` are sides of NICs with several ports, where flow ``flow`` of a
    message takes the port of its number; -1 is a single flow, which is hashed.
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
    """Where a message leaves the fabric: a node, and its number as digits (see :class:`Rule`)."""

    node: int
    place: int
    switch: int


class Tree(NamedTuple):
    """The paths of least metric to a goal, per node, from a search.

    Node ``node`` is the ``place[node]``-th nearest. Its links ``near[first[node]:first[node] +
    ways[node]]`` lead nearer, each with ``part`` of what is divided there. ``smooth``: all messages
    at a node continue in the same way; then ``onward`` is the latency from there (s), the mean over
    divided paths, and ``uses`` whether the watched link is on them. ``carries`` is the capacity
    from there to the goal, where parts depend on it. ``waiting`` is the amount to be forwarded from
    there.
    """

    state: SearchState
    place: Ints
    first: Longs
    ways: Ints
    near: Ints
    part: Floats
    smooth: Mask
    onward: Floats
    uses: Mask
    carries: Floats
    waiting: Floats


class Passing(NamedTuple):
    """Result: links passed, appended to ``links`` if ``listing``, else bytes added to ``load``.

    ``watched`` is a link, or -1; ``hit[0]`` says whether the current message passes it.
    """

    load: Floats
    links: LinkColumns
    listing: bool
    watched: int
    hit: Mask


class Slowest(NamedTuple):
    """Record of summed messages: latency and number of the slowest so far.

    ``passing`` has the count of messages on the watched link, then the least of their numbers,
    ascending. ``took`` is the latency of each message by its number (s), empty if not asked for.
    """

    latency: Floats
    number: Longs
    passing: Longs
    took: Floats


class Space(NamedTuple):
    """Where a search leads: through ``inner`` nodes; ``even``: all links there have one metric."""

    graph: Graph
    inner: Mask
    even: bool


class Field(NamedTuple):
    """All that carrying a message reads and writes; ``latency`` is that of each link (s)."""

    space: Space
    rule: Rule
    latency: Floats
    tree: Tree
    passing: Passing
    slowest: Slowest


def tree(graph: Graph) -> Tree:
    """Allocate the tree of a goal, which is computed anew for each goal."""
    nodes, links = len(graph.out.offset) - 1, len(graph.start)
    return Tree(
        state=search_state(graph),
        place=np.zeros(nodes, dtype=np.int32),
        first=np.zeros(nodes, dtype=np.int64),
        ways=np.zeros(nodes, dtype=np.int32),
        near=np.zeros(links, dtype=np.int32),
        part=np.zeros(links),
        smooth=np.zeros(nodes, dtype=np.bool_),
        onward=np.zeros(nodes),
        uses=np.zeros(nodes, dtype=np.bool_),
        carries=np.zeros(nodes),
        waiting=np.zeros(nodes),
    )


def sums(links: int, watched: int = -1) -> Passing:
    """Return a result that sums the bytes on links, at zero."""
    hit = np.zeros(1, dtype=np.bool_)
    return Passing(np.zeros(links), _link_room(0), listing=False, watched=watched, hit=hit)


def listing(links: int) -> Passing:
    """Return a result that lists links, with room for the given number at first."""
    hit = np.zeros(1, dtype=np.bool_)
    return Passing(np.zeros(0), _link_room(links), listing=True, watched=-1, hit=hit)


def _link_room(links: int) -> LinkColumns:
    return LinkColumns(np.zeros(links, np.int32), np.zeros(links), np.zeros(1, np.int64))


def slowest(messages: int = 0) -> Slowest:
    """Return an empty record of the slowest message, with room for ``messages`` latencies."""
    passing = np.full(FEW + 1, np.iinfo(np.int64).max)
    passing[0] = 0
    return Slowest(np.full(1, -1.0), np.full(1, -1), passing, np.zeros(messages))


def space(graph: Graph, inner: Mask) -> Space:
    """Return where a search leads, checking whether links between inner nodes have one metric."""
    metric = graph.metric[inner[graph.start] & inner[graph.stop]]
    return Space(graph, inner, even=not len(metric) or bool((metric == metric[0]).all()))


@hot_loop
def settle(goal: int, missing: int, limit: int, space: Space, state: SearchState) -> None:
    """Compute metrics as :func:`simulator.routing.graph.search` does, or by a faster search.

    Where all links have one metric, breadth-first order is order of metric: a queue replaces the
    heap.
    """
    graph, inner, even = space
    if not even:
        search(goal, missing, limit, graph, inner, state)
        return
    metric, order, (offset, into) = state.metric, state.order, graph.into
    begin_search(goal, state)
    order[0] = goal
    missing -= state.wanted[goal]
    # ``order`` is the queue: entries from ``done`` to ``reached`` wait, in order of metric.
    reached, done = 1, 0
    while done < reached and missing > 0 and metric[order[done]] <= limit:
        node = order[done]
        done += 1
        for index in range(offset[node], offset[node + 1]):
            before = graph.start[into[index]]
            if metric[before] == UNKNOWN and inner[before]:
                metric[before] = metric[node] + graph.metric[into[index]]
                order[reached] = state.seen[reached] = before
                reached += 1
                missing -= state.wanted[before]
    state.size[0] = state.size[1] = reached


@hot_loop
def survey_paths(goal: int, field: Field) -> None:
    """Build the tree of the last search: links that lead nearer, their parts, latencies onward."""
    tree, graph, watched = field.tree, field.space.graph, field.passing.watched
    metric, order, (offset, item) = tree.state.metric, tree.state.order, graph.out
    used = 0  # links written to ``near`` so far, node after node
    # Nearest first, so that a next hop is complete before the nodes that use it.
    for index_of_node in range(tree.state.size[1]):
        node = order[index_of_node]
        tree.place[node] = index_of_node
        tree.first[node] = used
        if node != goal:
            for index in range(offset[node], offset[node + 1]):
                link = item[index]
                if metric[graph.stop[link]] + graph.metric[link] == metric[node]:
                    tree.near[used] = link
                    used += 1
        tree.ways[node] = used - tree.first[node]
        tree.carries[node] = _UNLIMITED if node == goal else 0.0
        _divide(node, graph.stop, field.rule, tree)
        _measure_onward(node, graph.stop, field.latency, watched, field.rule, tree)


@hot_loop
def _divide(node: int, stop: Ints, rule: Rule, tree: Tree) -> None:
    """Set the part of each next hop: equal, or by the capacity of it and what lies behind it."""
    first, ways = tree.first[node], tree.ways[node]
    if rule.choice != BY_CAPACITY:
        for index in range(first, first + ways):
            tree.part[index] = 1.0 / ways
        return
    for index in range(first, first + ways):
        link = tree.near[index]
        tree.part[index] = min(rule.capacity[link], tree.carries[stop[link]])
        tree.carries[node] += tree.part[index]
    for index in range(first, first + ways):
        tree.part[index] /= tree.carries[node]


@hot_loop
def _measure_onward(
    node: int, stop: Ints, latency: Floats, watched: int, rule: Rule, tree: Tree
) -> None:
    """Set ``smooth``, ``onward`` and ``uses`` of a node from those of its next hops."""
    ways = tree.ways[node]
    smooth = ways < 2 or (rule.choice >= ALIKE and rule.ruled[node])
    onward, uses = 0.0, False
    for index in range(tree.first[node], tree.first[node] + ways):
        link = tree.near[index]
        next_node = stop[link]
        smooth = smooth and tree.smooth[next_node]
        onward += (latency[link] + tree.onward[next_node]) * tree.part[index]
        uses = uses or link == watched or tree.uses[next_node]
    tree.smooth[node], tree.onward[node], tree.uses[node] = smooth, onward, uses


@hot_loop
def carry(node: int, goal: int, ends: Ends, port: Port, amount: float, field: Field) -> float:
    """Carry a message from a node to the goal; return its latency (s), -1 if that is impossible."""
    tree, passing, rule = field.tree, field.passing, field.rule
    if tree.state.metric[node] == UNKNOWN:
        return -1.0
    latency, digits = 0.0, -1
    while node != goal:
        if tree.smooth[node] and not passing.listing:
            # From here on all messages are treated equally: this one is forwarded with the others.
            tree.waiting[node] += amount
            passing.hit[0] = passing.hit[0] or tree.uses[node]
            return float(latency + tree.onward[node])
        ways, number = tree.ways[node], 0
        if ways > 1:
            number, digits = _choose_hop(node, ways, digits, ends, port, rule)
            if number < 0:  # the message is divided
                if not passing.listing:
                    return -1.0  # a hash chooses behind the division: must be listed
                tree.waiting[node] = amount
                forward_waiting(tree.place[node], ends, field)
                return float(latency)
        link = tree.near[tree.first[node] + number]
        pass_link(link, amount, passing)
        latency += field.latency[link]
        node = field.space.graph.stop[link]
    return float(latency)


@hot_loop
def pass_link(link: int, amount: float, passing: Passing) -> None:
    """Pass a link: append it to the list, or add the amount to its load."""
    if passing.listing:
        put(link, amount, passing.links)
    else:
        passing.load[link] += amount
        passing.hit[0] = passing.hit[0] or link == passing.watched


@hot_loop
def _choose_hop(
    node: int, ways: int, digits: int, ends: Ends, port: Port, rule: Rule
) -> tuple[int, int]:
    """Return which next hop a node chooses, -1 for all, and the remaining digits of the port.

    ``digits`` is -1 at the first node that chooses by them.
    """
    if rule.flow >= 0 and rule.senders[node]:
        return rule.flow % ways, digits
    if rule.choice == HASH or not rule.ruled[node]:
        hashed = ecmp_hash(ends.source, ends.target, node, ends.seed)
        return _remainder(hashed, ways), digits
    if rule.choice >= ALIKE:
        return -1, digits
    if rule.choice == TABLE:
        return _remainder(ecmp_hash(0, port.node, node, rule.seed), ways), digits
    if digits >= 0:
        return digits % ways, digits // ways
    # The lowest digit comes from the port's place on its switch, the next ones from the switch.
    more = port.switch * ((rule.ports + ways - 1) // ways)
    return port.place % ways, port.place // ways + more


@hot_loop
def _remainder(hashed: int, ways: int) -> int:
    """Return the remainder of a hash. Division by a constant is several times as fast."""
    if ways == 2:
        return int(np.int64(np.uint64(hashed) % np.uint64(2)))
    if ways == 3:
        return int(np.int64(np.uint64(hashed) % np.uint64(3)))
    return int(np.int64(np.uint64(hashed) % np.uint64(ways)))


@hot_loop
def exit_port(ends: Ends, last: int, back: Graph, from_last: Longs, rule: Rule) -> Port:
    """Return the port at which a message leaves its last hub.

    ``back`` is the graph with every link reversed, ``from_last`` the metric of each node behind
    that hub: the message is followed backwards from its target.
    """
    node = ends.target
    port, number, switch = node, 0, 0
    while node != last:
        link = choose_link(node, ends, from_last, back)
        port, number, switch = node, rule.place[link], rule.switch[link]
        node = back.stop[link]
    return Port(port, number, switch)


@hot_loop
def forward_waiting(farthest: int, ends: Ends, field: Field) -> None:
    """Forward what waits at nodes to the goal, from the ``farthest``-th nearest node down."""
    tree, stop = field.tree, field.space.graph.stop
    # Farthest first, so that a node has received everything before it forwards; 0 is the goal.
    for reached in range(farthest, 0, -1):
        node = tree.state.order[reached]
        amount = tree.waiting[node]
        if amount == 0.0:
            continue
        tree.waiting[node] = 0.0
        first, ways = tree.first[node], tree.ways[node]
        if ways > 1 and not field.rule.ruled[node]:
            # A hash of its ends chooses. This happens only for a single message that is listed.
            hashed = ecmp_hash(ends.source, ends.target, node, ends.seed)
            link = tree.near[first + _remainder(hashed, ways)]
            pass_link(link, amount, field.passing)
            tree.waiting[stop[link]] += amount
            continue
        for index in range(first, first + ways):
            link, part = tree.near[index], amount * tree.part[index]
            pass_link(link, part, field.passing)
            tree.waiting[stop[link]] += part
    tree.waiting[tree.state.order[0]] = 0.0


@hot_loop
def record(latency: float, number: int, hit: bool, slowest: Slowest) -> None:  # noqa: FBT001
    """Record a message: its latency, if it is the slowest, and if it passes the watched link."""
    if len(slowest.took) > 0:
        slowest.took[number] = latency
    if latency > slowest.latency[0] * (1 + SAME) or slowest.number[0] < 0:
        slowest.latency[0], slowest.number[0] = latency, number
    elif latency >= slowest.latency[0] * (1 - SAME):
        slowest.number[0] = min(slowest.number[0], number)
    if not hit:
        return
    slowest.passing[0] += 1
    # Insertion into the sorted least numbers; the greatest drops out at the end.
    for slot in range(1, len(slowest.passing)):
        if number < slowest.passing[slot]:
            number, slowest.passing[slot] = slowest.passing[slot], number
