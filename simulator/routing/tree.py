"""Hot loops: the paths of least metric to one goal, and what messages put on the links of these.

One search that sums or lists: all messages to one goal share a search backwards from it
(:func:`settle`), of which :func:`survey_paths` makes a tree: which links of a node come nearer, and
what part of a divided message each of them takes. Messages are then carried over it one by one
(:func:`carry`) by a :class:`Rule`, which is a policy (:mod:`simulator.topology`) compiled for a
graph. What passes a link is either written behind all other links or added to what passed it before
(:func:`take`).

Lists and sums part where messages are alike: from a node on from which there is one path, or from
which everything is divided in the same way whoever sent it, a sum lets them wait, and all of them
go on together at the end, farthest nodes first (:func:`go_on`). In a list each goes on by itself.
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
"""How the next hop is chosen; from ``ALIKE`` on a message is divided."""
SAME = 1e-12
"""Latencies that differ by less, relatively, are one; of such messages the first is the slowest."""
FEW = 4
"""Messages on a watched link of which the numbers are kept."""
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


class Tree(NamedTuple):
    """The paths of least metric to a goal, per node, as a search has found it.

    From ``node``, the ``place[node]``-th nearest, the links
    ``near[first[node]:first[node] + ways[node]]`` come nearer, each with ``part`` of what is
    divided there. ``smooth`` says that whatever is there goes on alike; ``onward`` is the latency
    from there (s), over paths as they are divided, and ``uses`` whether the watched link is on
    them. ``carries`` is what the links from there can carry to the goal, where parts follow that.
    ``waiting`` is what is to go on from there.
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
    """What passes links: written to ``links`` if ``listing``, else bytes added to ``load``.

    ``watched`` is a link, or -1; ``hit[0]`` says that the message under way passes it.
    """

    load: Floats
    links: LinkColumns
    listing: bool
    watched: int
    hit: Mask


class Slowest(NamedTuple):
    """What is noted of summed messages: latency and number of the slowest so far.

    ``passing`` counts the messages on the watched link, and keeps the least of their numbers in
    order. ``took`` is the latency of each message by its number (s); empty where that is not asked
    for.
    """

    latency: Floats
    number: Longs
    passing: Longs
    took: Floats


class Ground(NamedTuple):
    """Where a search leads: through ``inner`` nodes; ``even``: all links there count alike."""

    graph: Graph
    inner: Mask
    even: bool


class Field(NamedTuple):
    """All that messages are carried with; ``latency`` is that of each link (s)."""

    ground: Ground
    rule: Rule
    latency: Floats
    tree: Tree
    passing: Passing
    slowest: Slowest


def tree(graph: Graph) -> Tree:
    """Make room for the paths to a goal, to be found anew for each."""
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
    """Add up what passes links; nothing does yet."""
    hit = np.zeros(1, dtype=np.bool_)
    return Passing(np.zeros(links), _room(0), listing=False, watched=watched, hit=hit)


def listing(links: int) -> Passing:
    """List what passes links, with room for so many at first."""
    hit = np.zeros(1, dtype=np.bool_)
    return Passing(np.zeros(0), _room(links), listing=True, watched=-1, hit=hit)


def _room(links: int) -> LinkColumns:
    return LinkColumns(np.zeros(links, np.int32), np.zeros(links), np.zeros(1, np.int64))


def slowest(messages: int = 0) -> Slowest:
    """Note messages, of which none was; the latency of so many is asked for."""
    passing = np.full(FEW + 1, np.iinfo(np.int64).max)
    passing[0] = 0
    return Slowest(np.full(1, -1.0), np.full(1, -1), passing, np.zeros(messages))


def ground(graph: Graph, inner: Mask) -> Ground:
    """Look whether all links between inner nodes count the same."""
    metric = graph.metric[inner[graph.start] & inner[graph.stop]]
    return Ground(graph, inner, even=not len(metric) or bool((metric == metric[0]).all()))


@hot_loop
def settle(goal: int, missing: int, limit: int, ground: Ground, state: SearchState) -> None:
    """Find the metric of inner nodes: :func:`simulator.routing.graph.search`, or what is faster.

    Where links count the same the order of a queue is that of metrics.
    """
    graph, inner, even = ground
    if not even:
        search(goal, missing, limit, graph, inner, state)
        return
    metric, order, (offset, into) = state.metric, state.order, graph.into
    begin_search(goal, state)
    order[0] = goal
    missing -= state.wanted[goal]
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
    """Find the links that come nearer from each node, and where messages go on alike."""
    tree, graph, watched = field.tree, field.ground.graph, field.passing.watched
    metric, order, (offset, item) = tree.state.metric, tree.state.order, graph.out
    used = 0  # links written to ``near`` so far, node after node
    # Nearest first: what lies behind a next hop is known when its neighbours ask for it.
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
    """Say which part each next hop takes: alike, or as it and what lies behind it can carry."""
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
    """Say whether what is at a node goes on alike, and how; of its next hops that is known."""
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
    """Send a message from a node to the goal; return its latency (s), -1 if it cannot be."""
    tree, passing, rule = field.tree, field.passing, field.rule
    if tree.state.metric[node] == UNKNOWN:
        return -1.0
    latency, digits = 0.0, -1
    while node != goal:
        if tree.smooth[node] and not passing.listing:
            # From here on all go the same ways: this message goes on with the others.
            tree.waiting[node] += amount
            passing.hit[0] = passing.hit[0] or tree.uses[node]
            return float(latency + tree.onward[node])
        ways, number = tree.ways[node], 0
        if ways > 1:
            number, digits = _number(node, ways, digits, ends, port, rule)
            if number < 0:  # the message is divided
                if not passing.listing:
                    return -1.0  # and a hash chooses further on: to be listed
                tree.waiting[node] = amount
                go_on(tree.place[node], ends, field)
                return float(latency)
        link = tree.near[tree.first[node] + number]
        take(link, amount, passing)
        latency += field.latency[link]
        node = field.ground.graph.stop[link]
    return float(latency)


@hot_loop
def take(link: int, amount: float, passing: Passing) -> None:
    """Have a message take a link: write it down, or add to what is on it."""
    if passing.listing:
        put(link, amount, passing.links)
    else:
        passing.load[link] += amount
        passing.hit[0] = passing.hit[0] or link == passing.watched


@hot_loop
def _number(
    node: int, ways: int, digits: int, ends: Ends, port: Port, rule: Rule
) -> tuple[int, int]:
    """Return which of its next hops a node takes, -1 for all, and the digits left of the port's.

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
    # The first digit is that of the port's place on its switch, the next ones are the switch's.
    more = port.switch * ((rule.ports + ways - 1) // ways)
    return port.place % ways, port.place // ways + more


@hot_loop
def _remainder(hashed: int, ways: int) -> int:
    """Return the remainder of a hash; a division by a constant is several times as fast."""
    if ways == 2:
        return int(np.int64(np.uint64(hashed) % np.uint64(2)))
    if ways == 3:
        return int(np.int64(np.uint64(hashed) % np.uint64(3)))
    return int(np.int64(np.uint64(hashed) % np.uint64(ways)))


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
def go_on(farthest: int, ends: Ends, field: Field) -> None:
    """Let what waits at nodes go on to the goal, none of which is farther than that place."""
    tree, stop = field.tree, field.ground.graph.stop
    # Farthest first, so that each node passes on all that comes to it; 0 is the goal itself.
    for reached in range(farthest, 0, -1):
        node = tree.state.order[reached]
        amount = tree.waiting[node]
        if amount == 0.0:
            continue
        tree.waiting[node] = 0.0
        first, ways = tree.first[node], tree.ways[node]
        if ways > 1 and not field.rule.ruled[node]:
            # A hash of its ends chooses: it is a single message, whose links are listed.
            hashed = ecmp_hash(ends.source, ends.target, node, ends.seed)
            link = tree.near[first + _remainder(hashed, ways)]
            take(link, amount, field.passing)
            tree.waiting[stop[link]] += amount
            continue
        for index in range(first, first + ways):
            link, part = tree.near[index], amount * tree.part[index]
            take(link, part, field.passing)
            tree.waiting[stop[link]] += part
    tree.waiting[tree.state.order[0]] = 0.0


@hot_loop
def note(latency: float, number: int, hit: bool, slowest: Slowest) -> None:  # noqa: FBT001
    """Note a message if it is the slowest so far, or on the watched link."""
    if len(slowest.took) > 0:
        slowest.took[number] = latency
    if latency > slowest.latency[0] * (1 + SAME) or slowest.number[0] < 0:
        slowest.latency[0], slowest.number[0] = latency, number
    elif latency >= slowest.latency[0] * (1 - SAME):
        slowest.number[0] = min(slowest.number[0], number)
    if not hit:
        return
    slowest.passing[0] += 1
    # Insert the number among the least ones; what falls out at the end is lost.
    for slot in range(1, len(slowest.passing)):
        if number < slowest.passing[slot]:
            number, slowest.passing[slot] = slowest.passing[slot], number
