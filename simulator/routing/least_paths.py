"""Hot loops: what many messages put on links in all, goal by goal, without a list of their links.

All messages to one goal share a search. At a node from which there is one path on, or from which
everything is divided in the same way whoever sent it, messages are alike: their bytes are added up
there and go on together, farthest nodes first. Only where a hash of a message's ends chooses is
each followed by itself, up to such a node. The paths are those of
:mod:`simulator.routing.messages`, to the link.
"""

from typing import NamedTuple

import numpy as np

from simulator.routing.choice import (
    ALIKE,
    BY_CAPACITY,
    HASH,
    TABLE,
    Port,
    Rule,
    digits_left,
    leaving_port,
)
from simulator.routing.graph import (
    UNKNOWN,
    Ends,
    Graph,
    Hubs,
    LinkColumns,
    SearchState,
    begin_search,
    choose_link,
    count_nearer,
    ecmp_hash,
    nearer,
    reverse,
    search,
    search_state,
)
from simulator.routing.messages import Messages
from simulator.support.arrays import Floats, Ints, Longs, Mask
from simulator.support.compiled import hot_loop

_SAME = 1e-12
"""Latencies that differ by less, relatively, are one; of such messages the first is the slowest."""
FEW = 4
"""Messages on a watched link of which the numbers are kept."""
_UNLIMITED = 1e200
_NOT_YET, _SEVERAL = -2, -1
"""Of a node outside the fabric whose way in is not known yet, or is more than one way."""


class Block(NamedTuple):
    """Messages, those to one goal together: ``offset[g]:offset[g + 1]`` go to node ``goal[g]``.

    ``number`` orders them as they are sent; a message of nothing is none.
    """

    goal: Ints
    offset: Longs
    source: Ints
    amount: Floats
    number: Longs


class Tree(NamedTuple):
    """The paths of least metric to a goal, per node, as a search has found it.

    From ``node`` the links
    ``near[first[node]:first[node] + ways[node]]`` come nearer, each with ``part`` of what is
    divided there. ``smooth`` says that whatever is there goes on alike; ``onward`` is the latency
    from there (s), over paths as they are divided, and ``uses`` whether the watched link is on
    them. ``carries`` is what the links from there can carry to the goal, where parts follow that.
    ``waiting`` is what is to go on from there.
    """

    state: SearchState
    first: Longs
    ways: Ints
    near: Ints
    part: Floats
    smooth: Mask
    onward: Floats
    uses: Mask
    carries: Floats
    waiting: Floats


class Sums(NamedTuple):
    """What is added up: bytes on each link; latency and number of the slowest message so far.

    ``watched`` is a link, or -1; ``hit[0]`` says that the message under way passes it, ``passing``
    counts such messages, and keeps the least of their numbers in order.
    """

    load: Floats
    slowest: Floats
    number: Longs
    watched: int
    hit: Mask
    passing: Longs


class Field(NamedTuple):
    """Where messages are added up; ``even`` says that all links that a search passes count alike.

    ``latency`` is that of each link (s), ``inner`` where a search may lead.
    """

    graph: Graph
    rule: Rule
    latency: Floats
    inner: Mask
    even: bool
    tree: Tree
    sums: Sums


class HubPairs(NamedTuple):
    """What goes through the fabric from hub to hub, of messages that are divided there.

    ``row[node]`` numbers the hubs, ``hubs`` counts them. By first hub and last: ``amount``, and of
    the message of longest latency outside the fabric that latency (s) and its number; empty where
    messages are not gathered.
    """

    row: Longs
    hubs: int
    amount: Floats
    outside: Floats
    number: Longs


class Edge(NamedTuple):
    """Ways between the fabric and nodes outside of it, as they are found for one last hub.

    ``entry`` is the hub at which messages of a node come in, ``head`` the latency up to there (s),
    ``hit`` whether that passes the watched link, ``sent`` what came that way; ``came`` lists the
    nodes that sent, ``many[0]`` of them. ``took[0]`` is the latency of the last walk (s).
    """

    to_last: Longs
    from_last: Longs
    entry: Longs
    head: Floats
    hit: Mask
    sent: Floats
    came: Ints
    many: Longs
    took: Floats


_Crossing = tuple[Messages, HubPairs, Hubs, Edge, Field]


def tree(graph: Graph) -> Tree:
    """Make room for the paths to a goal, to be found anew for each."""
    nodes, links = len(graph.out.offset) - 1, len(graph.start)
    return Tree(
        state=search_state(graph),
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


def sums(links: int, watched: int) -> Sums:
    """Return sums of nothing."""
    passing = np.full(FEW + 1, np.iinfo(np.int64).max)
    passing[0] = 0
    return Sums(
        load=np.zeros(links),
        slowest=np.full(1, -1.0),
        number=np.full(1, -1),
        watched=watched,
        hit=np.zeros(1, dtype=np.bool_),
        passing=passing,
    )


def hub_pairs(hub: Mask) -> HubPairs:
    """Return no messages from any hub to any."""
    row = np.cumsum(hub) - 1
    count = int(hub.sum())
    nothing = np.full(count * count, -1)
    return HubPairs(row, count, np.zeros(count * count), np.zeros(count * count), nothing)


def no_pairs() -> HubPairs:
    """Return pairs in which nothing is gathered."""
    none = np.zeros(0, dtype=np.int64)
    return HubPairs(none, 0, np.zeros(0), np.zeros(0), none)


def edge(nodes: int) -> Edge:
    """Make room for the ways in and out."""
    return Edge(
        to_last=np.empty(nodes, dtype=np.int64),
        from_last=np.empty(nodes, dtype=np.int64),
        entry=np.empty(nodes, dtype=np.int64),
        head=np.zeros(nodes),
        hit=np.zeros(nodes, dtype=np.bool_),
        sent=np.zeros(nodes),
        came=np.zeros(nodes, dtype=np.int32),
        many=np.zeros(1, dtype=np.int64),
        took=np.zeros(1),
    )


def same_everywhere(graph: Graph, inner: Mask) -> bool:
    """Whether all links between inner nodes count the same."""
    metric = graph.metric[inner[graph.start] & inner[graph.stop]]
    return not len(metric) or bool((metric == metric[0]).all())


@hot_loop
def add_direct(block: Block, took: Floats, field: Field) -> int:
    """Add up messages none of which is outside the fabric; return 0, or 1 more than one that fails.

    ``took[number]`` is set to the latency of each (s), unless ``took`` is empty.
    """
    for row in range(len(block.goal)):
        goal = int(np.int64(block.goal[row]))
        _settle(goal, _want(row, goal, block, field.tree.state), field)
        _survey(goal, field)
        port = Port(goal, goal, 0)
        for at in range(block.offset[row], block.offset[row + 1]):
            if block.amount[at] == 0.0:
                continue
            ends = Ends(int(np.int64(block.source[at])), goal, field.rule.seed)
            field.sums.hit[0] = False
            latency = _carry(ends.source, goal, ends, port, block.amount[at], field)
            if latency < 0.0:
                return at + 1
            if len(took) > 0:
                took[block.number[at]] = latency
            _note(latency, block.number[at], field.sums)
        _go_on(goal, field)
    return 0


@hot_loop
def add_walked(block: Block, sent: Messages, links: LinkColumns, field: Field) -> None:
    """Add up the messages that need no hub, of which the links are written."""
    sums = field.sums
    for message in range(len(sent.source)):
        amount = block.amount[message]
        if sent.by[message] >= 0 or amount == 0.0:
            continue
        latency, first = 0.0, sent.first[message]
        sums.hit[0] = False
        for index in range(first, first + sent.length[message]):
            link, share = links.link[index], links.share[index]
            sums.load[link] += amount * share
            latency += field.latency[link] * share
            sums.hit[0] = sums.hit[0] or link == sums.watched
        _note(latency, block.number[message], sums)


@hot_loop
def add_by_hubs(
    block: Block, sent: Messages, pairs: HubPairs, hubs: Hubs, edge: Edge, field: Field
) -> int:
    """Add up the messages that ``sent`` gives to a last hub, hub by hub; return as above.

    What goes through the fabric is gathered in ``pairs`` instead, unless they are empty.
    """
    crossing = (sent, pairs, hubs, edge, field)
    for step in range(len(hubs.order)):
        row = hubs.order[step]
        last = hubs.beyond.item[hubs.beyond.offset[row]]
        if not _any(row, last, sent, hubs):
            continue
        _settle(last, len(hubs.hub), field)
        _survey(last, field)
        _begin_edge(row, hubs, edge, field)
        for behind in range(hubs.beyond.offset[row], hubs.beyond.offset[row + 1]):
            failed = _add_to(hubs.beyond.item[behind], last, block, crossing)
            if failed > 0:
                return failed
        _go_on(last, field)
        _end_edge(hubs, edge, field)
    return 0


@hot_loop
def _want(row: int, goal: int, block: Block, state: SearchState) -> int:
    """Want the senders to a goal, and no others; return how many nodes there are."""
    state.wanted[:] = False
    missing = 0
    for at in range(block.offset[row], block.offset[row + 1]):
        node = block.source[at]
        if block.amount[at] != 0.0 and node != goal and not state.wanted[node]:
            state.wanted[node] = True
            missing += 1
    return missing


@hot_loop
def _settle(goal: int, missing: int, field: Field) -> None:
    """Find the metric of inner nodes, nearest to a goal first, until none that is wanted misses."""
    if field.even:
        _in_a_queue(goal, missing, field)
    else:
        search(goal, missing, UNKNOWN, field.graph, field.inner, field.tree.state)


@hot_loop
def _in_a_queue(goal: int, missing: int, field: Field) -> None:
    """Search breadth first: of links that count the same the queue is the order of metrics."""
    state, graph = field.tree.state, field.graph
    metric, order, (offset, into) = state.metric, state.order, graph.into
    begin_search(goal, state)
    order[0] = goal
    reached, done = 1, 0
    while done < reached and missing > 0:
        node = order[done]
        done += 1
        for index in range(offset[node], offset[node + 1]):
            before = graph.start[into[index]]
            if metric[before] == UNKNOWN and field.inner[before]:
                metric[before] = metric[node] + graph.metric[into[index]]
                order[reached] = state.seen[reached] = before
                reached += 1
                missing -= state.wanted[before]
    state.size[0] = state.size[1] = reached


@hot_loop
def _survey(goal: int, field: Field) -> None:
    """Find the links that come nearer from each node, and where messages go on alike."""
    tree, graph = field.tree, field.graph
    metric, order, (offset, item) = tree.state.metric, tree.state.order, graph.out
    used = 0  # links written to ``near`` so far, node after node
    # Nearest first: what lies behind a next hop is known when its neighbours ask for it.
    for index_of_node in range(tree.state.size[1]):
        node = order[index_of_node]
        tree.first[node] = used
        if node != goal:
            for index in range(offset[node], offset[node + 1]):
                link = item[index]
                if metric[graph.stop[link]] + graph.metric[link] == metric[node]:
                    tree.near[used] = link
                    used += 1
        tree.ways[node] = used - tree.first[node]
        tree.carries[node] = _UNLIMITED if node == goal else 0.0
        _divide(node, field)
        _measure_onward(node, field)


@hot_loop
def _divide(node: int, field: Field) -> None:
    """Say which part each next hop takes: alike, or as it and what lies behind it can carry."""
    tree, rule = field.tree, field.rule
    first, ways = tree.first[node], tree.ways[node]
    if rule.choice != BY_CAPACITY:
        for index in range(first, first + ways):
            tree.part[index] = 1.0 / ways
        return
    for index in range(first, first + ways):
        link = tree.near[index]
        tree.part[index] = min(rule.capacity[link], tree.carries[field.graph.stop[link]])
        tree.carries[node] += tree.part[index]
    for index in range(first, first + ways):
        tree.part[index] /= tree.carries[node]


@hot_loop
def _measure_onward(node: int, field: Field) -> None:
    """Say whether what is at a node goes on alike, and how; of its next hops that is known."""
    tree, rule = field.tree, field.rule
    ways = tree.ways[node]
    smooth = ways < 2 or (rule.choice >= ALIKE and rule.ruled[node])
    onward, uses = 0.0, False
    for index in range(tree.first[node], tree.first[node] + ways):
        link = tree.near[index]
        next_node = field.graph.stop[link]
        smooth = smooth and tree.smooth[next_node]
        onward += (field.latency[link] + tree.onward[next_node]) * tree.part[index]
        uses = uses or link == field.sums.watched or tree.uses[next_node]
    tree.smooth[node], tree.onward[node], tree.uses[node] = smooth, onward, uses


@hot_loop
def _carry(node: int, goal: int, ends: Ends, port: Port, amount: float, field: Field) -> float:
    """Send a message from a node to the goal; return its latency (s), -1 if it cannot be."""
    tree, sums = field.tree, field.sums
    if tree.state.metric[node] == UNKNOWN:
        return -1.0
    latency, digits = 0.0, -1
    while node != goal:
        if tree.smooth[node]:
            # From here on all go the same ways: this message goes on with the others.
            tree.waiting[node] += amount
            sums.hit[0] = sums.hit[0] or tree.uses[node]
            return float(latency + tree.onward[node])
        ways = tree.ways[node]
        number = 0
        if ways > 1:
            if field.rule.choice == HASH or not field.rule.ruled[node]:
                hashed = ecmp_hash(ends.source, ends.target, node, ends.seed)
                number = _remainder(hashed, ways)
            elif field.rule.choice >= ALIKE:
                return -1.0  # divided here, and a hash chooses further on: to be listed
            elif field.rule.choice == TABLE:
                number = _remainder(ecmp_hash(0, port.node, node, field.rule.seed), ways)
            else:
                number = (port.place if digits < 0 else digits) % ways
                digits = digits_left(ways, digits, port, field.rule)
        link = tree.near[tree.first[node] + number]
        sums.load[link] += amount
        latency += field.latency[link]
        sums.hit[0] = sums.hit[0] or link == sums.watched
        node = field.graph.stop[link]
    return float(latency)


@hot_loop
def _remainder(hashed: int, ways: int) -> int:
    """Return the remainder of a hash; a division by a constant is several times as fast."""
    if ways == 2:
        return int(np.int64(np.uint64(hashed) % np.uint64(2)))
    if ways == 3:
        return int(np.int64(np.uint64(hashed) % np.uint64(3)))
    return int(np.int64(np.uint64(hashed) % np.uint64(ways)))


@hot_loop
def _go_on(goal: int, field: Field) -> None:
    """Let what waits at nodes go on to the goal, farthest nodes first."""
    tree, graph = field.tree, field.graph
    # Farthest first, so that each node passes on all that comes to it; 0 is the goal itself.
    for reached in range(tree.state.size[1] - 1, 0, -1):
        node = tree.state.order[reached]
        amount = tree.waiting[node]
        if amount == 0.0:
            continue
        tree.waiting[node] = 0.0
        for index in range(tree.first[node], tree.first[node] + tree.ways[node]):
            link, part = tree.near[index], amount * tree.part[index]
            field.sums.load[link] += part
            tree.waiting[graph.stop[link]] += part
    tree.waiting[goal] = 0.0


@hot_loop
def _note(latency: float, number: int, sums: Sums) -> None:
    """Note a message if it is the slowest so far, or on the watched link."""
    if latency > sums.slowest[0] * (1 + _SAME) or sums.number[0] < 0:
        sums.slowest[0] = latency
        sums.number[0] = number
    elif latency >= sums.slowest[0] * (1 - _SAME):
        sums.number[0] = min(sums.number[0], number)
    if not sums.hit[0]:
        return
    sums.passing[0] += 1
    # Insert the number among the least ones; what falls out at the end is lost.
    for slot in range(1, len(sums.passing)):
        if number < sums.passing[slot]:
            number, sums.passing[slot] = sums.passing[slot], number


@hot_loop
def _any(row: int, last: int, sent: Messages, hubs: Hubs) -> bool:
    """Whether a hub is the last of any message."""
    offset, item = sent.to
    for behind in range(hubs.beyond.offset[row], hubs.beyond.offset[row + 1]):
        target = hubs.beyond.item[behind]
        for index in range(offset[target], offset[target + 1]):
            if sent.by[item[index]] == last:
                return True
    return False


@hot_loop
def _begin_edge(row: int, hubs: Hubs, edge: Edge, field: Field) -> None:
    """Say how far each node is from this last hub, and how far it is behind it."""
    metric, after = field.tree.state.metric, hubs.after
    edge.entry[:] = _NOT_YET
    edge.from_last[:] = UNKNOWN
    edge.many[0] = 0
    for node in range(len(edge.to_last)):
        least = UNKNOWN  # by the best of the hubs near the node
        for index in range(after.offset[node], after.offset[node + 1]):
            least = min(least, after.metric[index] + metric[after.item[index]])
        edge.to_last[node] = least
    for behind in range(hubs.beyond.offset[row], hubs.beyond.offset[row + 1]):
        edge.from_last[hubs.beyond.item[behind]] = hubs.beyond.metric[behind]


@hot_loop
def _add_to(target: int, last: int, block: Block, where: _Crossing) -> int:
    """Add up the messages to a target whose last hub is this; return as :func:`add_direct`.

    Where there is one way from the hub to the target they take it together. What is done for every
    message stands here or is short: a call that is not inlined takes longer than a message does.
    """
    sent, pairs, hubs, edge, field = where
    offset, item = sent.to
    back = reverse(field.graph)
    ends = Ends(target, target, field.rule.seed)
    sole = _is_sole(target, last, edge.from_last, back, hubs.hub)
    port = leaving_port(ends, last, back, edge.from_last, field.rule)
    field.sums.hit[0] = False
    _walk(target, last, ends, 0.0, back, (edge.from_last, hubs.hub, edge, field))
    # The way out was walked with nothing on it, for its latency; what takes it together follows.
    tail, hit, together = edge.took[0], field.sums.hit[0], 0.0
    for index in range(offset[target], offset[target + 1]):
        message = item[index]
        amount, number = block.amount[message], block.number[message]
        if sent.by[message] != last or amount == 0.0:
            continue
        ends = Ends(int(np.int64(sent.source[message])), target, field.rule.seed)
        field.sums.hit[0] = sole and hit
        if sole:
            together += amount
        else:
            port = leaving_port(ends, last, back, edge.from_last, field.rule)
            _walk(target, last, ends, amount, back, (edge.from_last, hubs.hub, edge, field))
            tail = edge.took[0]
        entry = _enter(ends, amount, hubs, edge, field)
        outside = edge.took[0] + tail
        if len(pairs.amount) > 0:
            _gather(pairs.row[entry], pairs.row[last], (amount, outside, number), pairs)
        elif not _cross(entry, last, ends, port, (amount, outside, number), field):
            return int(message) + 1
    if together > 0.0:
        _walk(target, last, ends, together, back, (edge.from_last, hubs.hub, edge, field))
    return 0


@hot_loop
def _cross(
    entry: int, last: int, ends: Ends, port: Port, message: tuple[float, float, int], field: Field
) -> bool:
    """Send a message through the fabric, and note it: its amount, latency outside, and number."""
    amount, outside, number = message
    through = _carry(entry, last, ends, port, amount, field)
    if through < 0.0:
        return False
    _note(outside + through, number, field.sums)
    return True


@hot_loop
def _gather(first: int, last: int, message: tuple[float, float, int], pairs: HubPairs) -> None:
    """Note what a message sends from hub to hub."""
    amount, outside, number = message
    at = first * pairs.hubs + last  # a table of hubs by hubs
    pairs.amount[at] += amount
    if pairs.number[at] < 0 or outside > pairs.outside[at] * (1 + _SAME):
        pairs.outside[at], pairs.number[at] = outside, number
    elif outside >= pairs.outside[at] * (1 - _SAME):
        pairs.number[at] = min(pairs.number[at], number)


@hot_loop
def _is_sole(node: int, last: int, metric: Longs, graph: Graph, hub: Mask) -> bool:
    """Whether no choice is made on the way from a node to the last hub, or to any (-1)."""
    while node != last and (last >= 0 or not hub[node]):
        if count_nearer(node, metric, graph) != 1:
            return False
        node = graph.stop[nearer(node, 0, metric, graph)]
    return True


@hot_loop
def _walk(
    node: int,
    last: int,
    ends: Ends,
    amount: float,
    graph: Graph,
    where: tuple[Longs, Mask, Edge, Field],
) -> int:
    """Send a message from a node to the last hub, or to any (-1); return to which."""
    metric, hub, edge, field = where
    edge.took[0] = 0.0
    while node != last and (last >= 0 or not hub[node]):
        link = choose_link(node, ends, metric, graph)
        field.sums.load[link] += amount
        field.sums.hit[0] = field.sums.hit[0] or link == field.sums.watched
        edge.took[0] += field.latency[link]
        node = graph.stop[link]
    return int(node)


@hot_loop
def _enter(ends: Ends, amount: float, hubs: Hubs, edge: Edge, field: Field) -> int:
    """Send a message to its first hub; return to which. What has one way there goes together."""
    node, hit = ends.source, field.sums.hit
    where = (edge.to_last, hubs.hub, edge, field)
    if edge.entry[node] == _NOT_YET:
        # Asked once per node and last hub: is there a single way in, and where does it end?
        edge.entry[node] = _SEVERAL
        if _is_sole(node, -1, edge.to_last, field.graph, hubs.hub):
            before, hit[0] = hit[0], False
            edge.entry[node] = _walk(node, -1, ends, 0.0, field.graph, where)
            edge.head[node], edge.hit[node] = edge.took[0], hit[0]
            hit[0] = before
            edge.came[edge.many[0]] = node
            edge.many[0] += 1
    if edge.entry[node] == _SEVERAL:
        return _walk(node, -1, ends, amount, field.graph, where)
    edge.sent[node] += amount
    edge.took[0] = edge.head[node]
    hit[0] = hit[0] or edge.hit[node]
    return int(edge.entry[node])


@hot_loop
def _end_edge(hubs: Hubs, edge: Edge, field: Field) -> None:
    """Add up what was sent together on the ways in."""
    for index in range(edge.many[0]):
        node = int(np.int64(edge.came[index]))
        amount, edge.sent[node] = edge.sent[node], 0.0
        if amount > 0.0:
            ends = Ends(node, node, field.rule.seed)
            _walk(node, -1, ends, amount, field.graph, (edge.to_last, hubs.hub, edge, field))
