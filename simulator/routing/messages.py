"""Hot loops: least-metric paths of many messages at once, whose links are summed or listed.

A path is found in one of two ways (for *hub*, see :mod:`simulator.routing.graph`):

* *inside*: a path that passes no hub (neighbours on a ring, ranks on the switch of a small domain)
  is found by a search backwards from its target that stops at hubs;
* *across*: any other path has a last hub. What is *near* a hub, that is, reaches it or is reached
  from it without another hub, is computed once. Then for each possible last hub there is one search
  backwards from hub to hub, for all messages that end behind it.

The smaller metric of both is exact on any graph, whichever nodes are chosen as hubs.

On a path across, the *head* (from the source to the first hub) and the *tail* (from the last hub to
the target) are single paths: which NIC, or which neighbour with a NIC, a message leaves and enters
by is the sender's choice, made by a hash. The part between belongs to the fabric and follows its
rule (:mod:`simulator.routing.tree`), which may divide it over several paths. A path inside follows
a rule of its own all the way.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.routing.graph import (
    UNKNOWN,
    Cells,
    CsrRows,
    Ends,
    Graph,
    Hubs,
    LinkColumns,
    Near,
    SearchState,
    choose_link,
    count_nearer,
    ecmp_hash,
    grouped,
    reverse,
)
from simulator.routing.tree import (
    ALIKE,
    SAME,
    Field,
    Passing,
    Port,
    Slowest,
    Space,
    carry,
    exit_port,
    forward_waiting,
    pass_link,
    record,
    settle,
    survey_paths,
)
from simulator.support.arrays import Floats, Ints, Longs, Mask, offsets
from simulator.support.compiled import hot_loop

_UNKNOWN_ENTRY, _SEVERAL_ENTRIES = -2, -1
"""Entry hub of a node outside the fabric: not yet computed, or more than one path leads in."""


class Messages(NamedTuple):
    """Messages, grouped by target, and the best path of each so far.

    ``amount`` is 0 for a message that sends nothing; ``number`` is the order of sending. ``by`` is
    the last hub of the path (-1: none), ``hashed`` the hash that broke the tie among equal paths.
    Where links are listed, those of a message are ``length`` ones from ``first`` on, of which the
    first ``head`` lead to the first hub and the last ``tail`` from the last hub to the target.
    """

    source: Ints
    target: Ints
    to: CsrRows
    amount: Floats
    number: Longs
    metric: Longs
    by: Ints
    hashed: NDArray[np.uint64]
    first: Longs
    length: Longs
    head: Longs
    tail: Longs


class HubPairs(NamedTuple):
    """Amounts through the fabric by first and last hub, of messages that are divided there.

    ``row[node]`` numbers the hubs, ``hubs`` counts them. For each pair: ``amount``, and of the
    message of longest latency outside the fabric that latency (s) and its number. Empty where
    messages are not gathered.
    """

    row: Longs
    hubs: int
    amount: Floats
    outside: Floats
    number: Longs


class Edge(NamedTuple):
    """Paths between the fabric and nodes outside it, for one last hub at a time.

    ``to_last`` and ``from_last`` are the metrics of each node to that hub (-1: not computed) and
    from it. Its search serves the sources ``asked``, up to metric ``limit[0]``; ``chosen[0]`` says
    that the last hub of each message has been chosen. ``entry`` is the hub at which messages of a
    node enter, ``head`` the latency up to it (s), ``hit`` whether that passes the watched link,
    ``sent`` the amount on that path. ``came`` lists the nodes with a single path in, ``many[0]`` of
    them. ``took[0]`` is the latency of the last walk (s), and ``sole[0]`` says that this walk had
    no choice.
    """

    to_last: Longs
    from_last: Longs
    asked: Mask
    limit: Longs
    chosen: Mask
    entry: Longs
    head: Floats
    hit: Mask
    sent: Floats
    came: Ints
    many: Longs
    took: Floats
    sole: Mask


def messages(
    source: Ints,
    target: Ints,
    nodes: int,
    amount: Floats | None = None,
    number: Longs | None = None,
) -> Messages:
    """Return messages without paths yet."""
    count = len(source)
    return Messages(
        source=np.ascontiguousarray(source, dtype=np.int32),
        target=np.ascontiguousarray(target, dtype=np.int32),
        to=grouped(target, nodes),
        amount=np.ones(count) if amount is None else amount,
        number=np.arange(count) if number is None else number,
        metric=np.full(count, UNKNOWN, dtype=np.int64),
        by=np.full(count, -1, dtype=np.int32),
        hashed=np.zeros(count, dtype=np.uint64),
        first=np.zeros(count, dtype=np.int64),
        length=np.zeros(count, dtype=np.int64),
        head=np.zeros(count, dtype=np.int64),
        tail=np.zeros(count, dtype=np.int64),
    )


_BLOCK = 1 << 18
"""Most messages processed at a time, except that those to one goal stay together."""


class Traffic(Struct, frozen=True, eq=False):
    """Messages sent at once, grouped by goal; a message with ``amount`` 0 sends nothing.

    Parameters
    ----------
    goal
        Receiving nodes, each once, shape ``(goals,)``.
    offset
        Messages ``offset[g]:offset[g + 1]`` are for goal ``g``, shape ``(goals + 1,)``.
    source
        Sending nodes, shape ``(messages,)``; with ``everyone``, ``(goals,)``.
    amount
        Of each message, in proportion to bytes, shape ``(messages,)``; with ``everyone`` a matrix
        with a row per sender, ``(goals, goals)``. None: all 1.
    number
        Order in which messages are sent, shape ``(messages,)``; unused with ``everyone``.
    everyone
        All of ``source``, which then equals ``goal``, send to all others, in order of the sender.
    """

    goal: Ints
    offset: Longs
    source: Ints
    amount: Floats | None
    number: Longs
    everyone: bool = False

    @property
    def is_even(self) -> bool:
        """Whether this is an all-to-all of equal messages."""
        return self.everyone and self.amount is None

    def ends(self, number: int) -> tuple[int, int]:
        """Return source and target of a message, given its number."""
        if self.everyone:
            return int(self.source[number // len(self.goal)]), int(
                self.goal[number % len(self.goal)]
            )
        at = int(np.flatnonzero(self.number == number)[0])
        goal = int(np.searchsorted(self.offset, at, side="right")) - 1
        return int(self.source[at]), int(self.goal[goal])

    def blocks(self, nodes: int) -> Iterator[Messages]:
        """Iterate over the messages, some goals at a time, on a network of ``nodes`` nodes."""
        first = 0
        while first < len(self.goal):
            most = self.offset[first] + _BLOCK
            last = max(first + 1, int(np.searchsorted(self.offset, most, side="right")) - 1)
            goal = np.repeat(np.arange(first, last), np.diff(self.offset[first : last + 1]))
            if self.everyone:
                among_others = np.tile(np.arange(len(self.goal) - 1), last - first)
                sender = among_others + (among_others >= goal)
                source, number = self.source[sender], sender * len(self.goal) + goal
                amount = None if self.amount is None else self.amount[sender, goal]
            else:
                which = slice(int(self.offset[first]), int(self.offset[last]))
                source, number = self.source[which], self.number[which]
                amount = None if self.amount is None else self.amount[which]
            yield messages(source, self.goal[goal], nodes, amount, number)
            first = last


def listed(source: Ints, target: Ints, amount: Floats | None = None) -> Traffic:
    """Return messages as traffic; all arguments have shape ``(messages,)``.

    Examples
    --------
    >>> ends = np.array([0, 1, 2], np.int32), np.array([3, 0, 3], np.int32)
    >>> [block.source.tolist() for block in listed(*ends).blocks(4)]
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

    ``amount[i, j]`` goes from ``nodes[i]`` to ``nodes[j]``; all are equal if it is not given.

    Examples
    --------
    >>> next(exchange(np.array([4, 7, 9], np.int32)).blocks(10)).source.tolist()
    [7, 9, 4, 9, 4, 7]
    """
    nodes = np.ascontiguousarray(nodes, dtype=np.int32)
    offset = np.arange(len(nodes) + 1, dtype=np.int64) * (len(nodes) - 1)
    return Traffic(nodes, offset, nodes, amount, np.empty(0, dtype=np.int64), everyone=True)


def hub_pairs(hub: Mask) -> HubPairs:
    """Return an empty table of pairs of hubs; without hubs nothing is gathered in it."""
    row, count = np.cumsum(hub) - 1, int(hub.sum())
    nothing = np.full(count * count, -1)
    return HubPairs(row, count, np.zeros(count * count), np.zeros(count * count), nothing)


def edge(nodes: int) -> Edge:
    """Allocate the state of paths into and out of the fabric."""
    return Edge(
        to_last=np.empty(nodes, dtype=np.int64),
        from_last=np.empty(nodes, dtype=np.int64),
        asked=np.empty(nodes, dtype=np.bool_),
        limit=np.empty(1, dtype=np.int64),
        chosen=np.zeros(1, dtype=np.bool_),
        entry=np.empty(nodes, dtype=np.int64),
        head=np.zeros(nodes),
        hit=np.zeros(nodes, dtype=np.bool_),
        sent=np.zeros(nodes),
        came=np.zeros(nodes, dtype=np.int32),
        many=np.zeros(1, dtype=np.int64),
        took=np.zeros(1),
        sole=np.zeros(1, dtype=np.bool_),
    )


@hot_loop
def inside(
    begin: int,
    sent: Messages,
    cells: Cells,
    field: Field,
    measuring: bool,  # noqa: FBT001  a hot loop has no keywords
) -> int:
    """Carry the messages within cells, target after target; ``measuring``: only set their metrics.

    Returns the first target whose messages do not fit, or must be listed, else ``targets``.
    """
    targets = len(cells.part)
    for target in range(begin, targets):
        missing = _mark_wanted_in_cell(target, sent, cells, field.tree.state.wanted)
        if missing == 0:
            continue
        settle(target, missing, UNKNOWN, field.space, field.tree.state)
        if not measuring:
            survey_paths(target, field)
        if not _send_inside(target, sent, field, measuring):
            return target
        if not (measuring or field.passing.listing):
            forward_waiting(field.tree.state.size[1] - 1, Ends(target, target, 0), field)
    return targets


@hot_loop
def _mark_wanted_in_cell(target: int, sent: Messages, cells: Cells, wanted: Mask) -> int:
    """Mark the sources in the cell of a target that need no hub; return their number."""
    offset, item = sent.to
    missing = 0
    for index in range(offset[target], offset[target + 1]):
        message = item[index]
        node = sent.source[message]
        near = cells.part[node] == cells.part[target] and sent.by[message] < 0
        if near and not wanted[node]:
            wanted[node] = True
            missing += 1
    return missing


@hot_loop
def _send_inside(
    target: int,
    sent: Messages,
    field: Field,
    measuring: bool,  # noqa: FBT001  a hot loop has no keywords
) -> bool:
    """Carry the messages to a target; return False if links do not fit, or they must be listed."""
    offset, item = sent.to
    state, passing, seed = field.tree.state, field.passing, field.rule.seed
    links = passing.links
    for index in range(offset[target], offset[target + 1]):
        state.wanted[sent.source[item[index]]] = False
    # Most links of a message: a path passes no node twice, a divided message no link twice.
    most = len(field.latency) if field.rule.choice >= ALIKE else state.size[0]
    port, begin = Port(target, target, 0), links.used[0]
    for index in range(offset[target], offset[target + 1]):
        message = item[index]
        node, amount = int(np.int64(sent.source[message])), sent.amount[message]
        if state.metric[node] == UNKNOWN or sent.by[message] >= 0:
            continue
        sent.metric[message] = state.metric[node]
        if measuring:
            sent.hashed[message] = ecmp_hash(node, target, target, seed)
        elif passing.listing and links.used[0] + most > len(links.link):
            links.used[0] = begin
            return False
        elif amount != 0.0:
            passing.hit[0], first = False, links.used[0]
            latency = carry(node, target, Ends(node, target, seed), port, amount, field)
            if latency < 0.0:
                return False
            _record(message, latency, (first, 0, 0), sent, passing, field.slowest)
    return True


@hot_loop
def _record(
    message: int,
    latency: float,
    links: tuple[int, int, int],
    sent: Messages,
    passing: Passing,
    slowest: Slowest,
) -> None:
    """Record a message: its latency, or its first link and the number of links of both ends."""
    if passing.listing:
        sent.first[message], sent.head[message], sent.tail[message] = links
        sent.length[message] = passing.links.used[0] - links[0]
    else:
        record(latency, sent.number[message], passing.hit[0], slowest)


@hot_loop
def choose_hubs(sent: Messages, hubs: Hubs, edge: Edge, field: Field) -> None:
    """Choose the last hub of each message whose path is shorter through hubs."""
    state = field.tree.state
    for row in hubs.order:
        if _search_from(row, sent, hubs, edge, field.space, state):
            _compare(row, sent, hubs, edge.to_last, state.metric, field.rule.seed)
    edge.chosen[0] = True


@hot_loop
def across(
    begin: int, sent: Messages, hubs: Hubs, edge: Edge, pairs: HubPairs, field: Field
) -> int:
    """Carry the messages of each last hub, from the ``begin``-th hub of the order on.

    Returns the first hub of the order whose messages do not fit or must be listed, else its length.
    """
    offset, behind = hubs.beyond.offset, hubs.beyond.item
    for step in range(begin, len(hubs.order)):
        row = hubs.order[step]
        if not _search_from(row, sent, hubs, edge, field.space, field.tree.state):
            continue
        last = int(np.int64(behind[offset[row]]))
        survey_paths(last, field)
        edge.entry[:] = _SEVERAL_ENTRIES if field.passing.listing else _UNKNOWN_ENTRY
        edge.many[0] = 0
        edge.from_last[:] = UNKNOWN
        for index in range(offset[row], offset[row + 1]):
            edge.from_last[behind[index]] = hubs.beyond.metric[index]
        used = field.passing.links.used[0]
        for index in range(offset[row], offset[row + 1]):
            if sent.to.offset[behind[index]] == sent.to.offset[behind[index] + 1]:
                continue
            if not _send_behind(behind[index], last, sent, pairs, (hubs, edge), field):
                field.passing.links.used[0] = used
                return step
        if not field.passing.listing:
            # In sums, bytes wait at nodes of the fabric and at sources with a single path in.
            forward_waiting(field.tree.state.size[1] - 1, Ends(last, last, 0), field)
            _send_gathered(hubs, edge, field)
    return len(hubs.order)


@hot_loop
def _search_from(
    row: int, sent: Messages, hubs: Hubs, edge: Edge, space: Space, state: SearchState
) -> bool:
    """Search backwards from a hub as far as a message needs; return whether any needs it."""
    missing = _mark_wanted(row, sent, hubs, edge, state.wanted)
    if missing > 0:
        last = hubs.beyond.item[hubs.beyond.offset[row]]
        settle(last, missing, edge.limit[0], space, state)
        state.wanted[:] = False
        edge.to_last[:] = -1  # of no node computed yet
    return missing > 0


@hot_loop
def _mark_wanted(row: int, sent: Messages, hubs: Hubs, edge: Edge, wanted: Mask) -> int:
    """Mark the hubs near sources whose path may end at a hub; return their number.

    Sets ``edge.limit``. With last hubs chosen (``edge.chosen``) only messages of this one count.
    """
    offset, item = sent.to
    last = hubs.beyond.item[hubs.beyond.offset[row]]
    missing = 0
    limit = -1
    edge.asked[:] = False
    for behind in range(hubs.beyond.offset[row], hubs.beyond.offset[row + 1]):
        target = hubs.beyond.item[behind]
        for index in range(offset[target], offset[target + 1]):
            message = item[index]
            # Largest metric to this hub with which a path is as short as the best one so far.
            slack = sent.metric[message] - hubs.beyond.metric[behind]
            if slack < 0 or (edge.chosen[0] and sent.by[message] != last):
                continue
            limit = max(limit, slack)
            node = sent.source[message]
            if not edge.asked[node]:
                edge.asked[node] = True
                missing += _mark_hubs_near(node, hubs.after, wanted)
    edge.limit[0] = limit
    return missing


@hot_loop
def _mark_hubs_near(node: int, after: Near, wanted: Mask) -> int:
    """Mark the hubs near a node; return how many were not marked before."""
    missing = 0
    for index in range(after.offset[node], after.offset[node + 1]):
        missing += not wanted[after.item[index]]
        wanted[after.item[index]] = True
    return missing


@hot_loop
def _compare(
    row: int, sent: Messages, hubs: Hubs, to_last: Longs, metric: Longs, seed: int
) -> None:
    """Set this hub as last of the messages that gain by it; equal metrics: least hash wins."""
    (offset, item), beyond = sent.to, hubs.beyond
    best, by, hashes = sent.metric, sent.by, sent.hashed
    last = beyond.item[beyond.offset[row]]
    for behind in range(beyond.offset[row], beyond.offset[row + 1]):
        target = beyond.item[behind]
        for index in range(offset[target], offset[target + 1]):
            message = item[index]
            node = sent.source[message]
            _set_metric_to_last(node, hubs.after, metric, to_last)
            # Source to hub plus hub to target; a hash of all three breaks ties.
            total = to_last[node] + beyond.metric[behind]
            if total > best[message] or total >= UNKNOWN:
                continue
            hashed = ecmp_hash(node, target, last, seed)
            if total < best[message] or hashed < hashes[message]:
                best[message], by[message], hashes[message] = total, last, hashed


@hot_loop
def _send_behind(  # noqa: C901, PLR0912, PLR0915  a hot loop: a call per message costs more than its work
    target: int, last: int, sent: Messages, pairs: HubPairs, fringe: tuple[Hubs, Edge], field: Field
) -> bool:
    """Carry the messages to a target with this last hub; return False as :func:`_send_inside`.

    In sums, messages with a single path in, or out, are carried over it together.
    """
    (hubs, edge), (offset, item), passing = fringe, sent.to, field.passing
    links, hit, back = passing.links, passing.hit, reverse(field.space.graph)
    # Most links of a message: the longest path, and if divided every link of the network once.
    most = len(edge.entry) + (len(field.latency) if field.rule.choice >= ALIKE else 0)
    ends = Ends(target, target, field.rule.seed)
    port = exit_port(ends, last, back, edge.from_last, field.rule)
    sole, tail, tail_hit, together = False, 0.0, False, 0.0
    if not passing.listing:
        # Walked once with amount 0 for its latency; the amounts of all messages follow at the end.
        hit[0] = False
        _walk_out(ends, last, 0.0, back, edge, field)
        sole, tail, tail_hit = edge.sole[0], edge.took[0], hit[0]
    for index in range(offset[target], offset[target + 1]):
        message = item[index]
        amount, source = sent.amount[message], int(np.int64(sent.source[message]))
        if sent.by[message] != last or amount == 0.0:
            continue
        if passing.listing and links.used[0] + most > len(links.link):
            return False
        ends = Ends(source, target, field.rule.seed)
        if not sole:
            port = exit_port(ends, last, back, edge.from_last, field.rule)
        first, hit[0] = links.used[0], sole and tail_hit
        if edge.entry[source] == _UNKNOWN_ENTRY:
            _find_entry(ends, hubs, edge, field)
        entry, head = edge.entry[source], edge.head[source]
        if entry >= 0:
            # A single path in: amounts of a source are gathered, and carried over it together.
            edge.sent[source] += amount
            hit[0] = hit[0] or edge.hit[source]
        else:
            entry = _walk_in(ends, amount, hubs, edge, field)
            head = edge.took[0]
        begin, through = links.used[0], 0.0  # of the part through the fabric
        if pairs.hubs == 0:
            through = carry(entry, last, ends, port, amount, field)
        end = links.used[0]
        if sole:
            together += amount
        else:
            _walk_out(ends, last, amount, back, edge, field)
            _reverse_links(end, links)  # the walk was backwards, from the target to the last hub
            tail = edge.took[0]
        if pairs.hubs > 0:
            # Only gathered by first and last hub: the pairs are routed later, divided.
            about = (amount, head + tail, sent.number[message])
            _add_to_pair(pairs.row[entry], pairs.row[last], about, pairs)
        elif through < 0.0:
            return False
        else:
            parts = (first, begin - first, links.used[0] - end)
            _record(message, head + tail + through, parts, sent, passing, field.slowest)
    if together > 0.0:
        _walk_out(Ends(target, target, field.rule.seed), last, together, back, edge, field)
    return True


@hot_loop
def _add_to_pair(first: int, last: int, message: tuple[float, float, int], pairs: HubPairs) -> None:
    """Add a message to its pair of hubs: its amount, latency outside, and number."""
    amount, outside, number = message
    at = first * pairs.hubs + last  # row-major table of hubs by hubs
    pairs.amount[at] += amount
    if pairs.number[at] < 0 or outside > pairs.outside[at] * (1 + SAME):
        pairs.outside[at], pairs.number[at] = outside, number
    elif outside >= pairs.outside[at] * (1 - SAME):
        pairs.number[at] = min(pairs.number[at], number)


@hot_loop
def _walk_out(ends: Ends, last: int, amount: float, back: Graph, edge: Edge, field: Field) -> None:
    """Send a message from the last hub to its target; the walk is backwards from the target."""
    node, edge.took[0], edge.sole[0] = ends.target, 0.0, True
    while node != last:
        edge.sole[0] = edge.sole[0] and count_nearer(node, edge.from_last, back) == 1
        link = choose_link(node, ends, edge.from_last, back)
        pass_link(link, amount, field.passing)
        edge.took[0] += field.latency[link]
        node = back.stop[link]


@hot_loop
def _walk_in(ends: Ends, amount: float, hubs: Hubs, edge: Edge, field: Field) -> int:
    """Send a message to its first hub, by least metric to the last hub; return the first hub."""
    graph, metric = field.space.graph, field.tree.state.metric
    offset, item = graph.out
    node, edge.took[0], edge.sole[0] = ends.source, 0.0, True
    _set_metric_to_last(node, hubs.after, metric, edge.to_last)
    while not hubs.hub[node]:
        for index in range(offset[node], offset[node + 1]):
            _set_metric_to_last(graph.stop[item[index]], hubs.after, metric, edge.to_last)
        edge.sole[0] = edge.sole[0] and count_nearer(node, edge.to_last, graph) == 1
        link = choose_link(node, ends, edge.to_last, graph)
        pass_link(link, amount, field.passing)
        edge.took[0] += field.latency[link]
        node = graph.stop[link]
    return int(node)


@hot_loop
def _set_metric_to_last(node: int, after: Near, metric: Longs, to_last: Longs) -> None:
    """Set ``to_last`` of a node if not yet known: the least over the hubs near it."""
    if to_last[node] >= 0:
        return
    to_last[node] = UNKNOWN
    for index in range(after.offset[node], after.offset[node + 1]):
        to_last[node] = min(to_last[node], after.metric[index] + metric[after.item[index]])


@hot_loop
def _find_entry(ends: Ends, hubs: Hubs, edge: Edge, field: Field) -> None:
    """Determine whether a node has a single path in, and at which hub it enters."""
    node, hit = ends.source, field.passing.hit
    before, hit[0] = hit[0], False
    entry = _walk_in(ends, 0.0, hubs, edge, field)
    edge.entry[node] = entry if edge.sole[0] else _SEVERAL_ENTRIES
    edge.head[node], edge.hit[node] = edge.took[0], hit[0]
    hit[0] = before
    if edge.sole[0]:
        edge.came[edge.many[0]] = node
        edge.many[0] += 1


@hot_loop
def _send_gathered(hubs: Hubs, edge: Edge, field: Field) -> None:
    """Send the gathered amounts of nodes over their single paths in."""
    for index in range(edge.many[0]):
        node = int(np.int64(edge.came[index]))
        amount, edge.sent[node] = edge.sent[node], 0.0
        if amount > 0.0:
            _walk_in(Ends(node, node, field.rule.seed), amount, hubs, edge, field)


@hot_loop
def _reverse_links(begin: int, links: LinkColumns) -> None:
    """Reverse the order of the links from ``begin`` on."""
    link, end = links.link, links.used[0]
    for index in range((end - begin) // 2):
        mirrored = end - 1 - index
        link[begin + index], link[mirrored] = link[mirrored], link[begin + index]


def gathered(sent: Messages, links: LinkColumns) -> tuple[Longs, Ints, Floats]:
    """Return the listed paths in CSR form, in the order of the messages."""
    offset = offsets(sent.length)
    entry = np.arange(offset[-1]) + np.repeat(sent.first - offset[:-1], sent.length)
    return offset, links.link[entry], links.share[entry]
