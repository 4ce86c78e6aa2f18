"""Hot loops of :mod:`simulator.routing.routes`: least-metric paths for many messages at once.

A path is found in one of two ways (what a *hub* is: :mod:`simulator.routing.graph`):

* *inside*: a path that meets no hub (neighbours on a ring, ranks on the switch of a small domain)
  is found by a search backwards from its target that stops at hubs;
* *across*: any other path has a last hub. What is *near* a hub, which is what reaches it without
  a further hub or is reached so, is found once; then for each hub that can be a last one there is
  one search backwards from hub to hub, whatever the number of messages that end behind it.

The least of both is exact on any graph, whatever is called a hub.

On a path across, the *head* (from the source to the first hub) and the *tail* (from the last hub to
the target) are single: which NIC, or which neighbour with a NIC, a message leaves and enters by is
the sender's choice, and a hash makes it. What lies between is the fabric's, and goes by its rule
(:mod:`simulator.routing.choice`), divided over several paths perhaps. A path inside goes all the
way by a rule of its own.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.routing.choice import (
    ALIKE,
    Port,
    Rule,
    Walk,
    follow,
    leaving_port,
    scratch,
    spread_from,
)
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
    ecmp_hash,
    filled,
    grouped,
    put,
    reverse,
    search,
    search_state,
)
from simulator.support.arrays import Floats, Ints, Longs, Mask
from simulator.support.compiled import hot_loop

_FOLLOWED = -2


class Messages(NamedTuple):
    """Messages, those to one target together, and the best path of each so far.

    ``by`` is its last hub (-1: none, -2: it was followed already), ``hashed`` what it won by among
    equals; ``first`` and ``length`` say where its links are, of which the first ``head`` lead to
    the first hub and the last ``tail`` from the last one to the target.
    """

    source: Ints
    to: CsrRows
    metric: Longs
    by: Ints
    hashed: NDArray[np.uint64]
    first: Longs
    length: Longs
    head: Longs
    tail: Longs


class Written(NamedTuple):
    """Where the links from a first hub to the last one stand already, by node; length 0: nowhere.

    Only a divided message takes the links that another one takes there, with the same shares.
    """

    first: Longs
    length: Longs


class Reach(NamedTuple):
    """What is known, per node, of paths by a last hub: to it, and from it to what is behind.

    ``to_last`` is -1 where it was not asked for yet. ``state`` is that of the search backwards from
    that hub, which is of use up to a metric of ``limit[0]``; ``asked`` marks sources it is for.
    """

    state: SearchState
    to_last: Longs
    from_last: Longs
    asked: Mask
    limit: Longs


class Crossing(NamedTuple):
    """All that paths through hubs are found with; the state of ``walk`` is that of ``reach``."""

    sent: Messages
    hubs: Hubs
    reach: Reach
    written: Written
    walk: Walk


def messages(source: Ints, target: Ints, nodes: int) -> Messages:
    """Return messages of which no path is known."""
    return Messages(
        source=source.astype(np.int32),
        to=grouped(target, nodes),
        metric=np.full(len(source), UNKNOWN, dtype=np.int64),
        by=np.full(len(source), -1, dtype=np.int32),
        hashed=np.zeros(len(source), dtype=np.uint64),
        first=np.zeros(len(source), dtype=np.int64),
        length=np.zeros(len(source), dtype=np.int64),
        head=np.zeros(len(source), dtype=np.int64),
        tail=np.zeros(len(source), dtype=np.int64),
    )


def no_links(sent: Messages, graph: Graph) -> LinkColumns:
    """Make room for the links of messages, for two of each at first."""
    room = 2 * (len(sent.source) + len(graph.out.offset) - 1)
    return LinkColumns(np.zeros(room, dtype=np.int32), np.zeros(room), np.zeros(1, np.int64))


def inside(
    sent: Messages, graph: Graph, cells: Cells, rule: Rule, links: LinkColumns
) -> LinkColumns:
    """Find the path of every message within a cell; return the links of all."""
    walk = Walk(graph, rule, search_state(graph), scratch(len(cells.part)), links)
    link, share = filled(
        lambda begin, link, share: _inside(
            begin, sent, cells, walk._replace(links=LinkColumns(link, share, links.used))
        ),
        len(cells.part),
        (links.link, links.share),
    )
    return LinkColumns(link, share, links.used)


def across(sent: Messages, graph: Graph, hubs: Hubs, rule: Rule, links: LinkColumns) -> LinkColumns:
    """Improve paths by those through hubs; return the links of all."""
    choose_hubs(sent, graph, hubs, rule.seed)
    nodes = len(hubs.hub)
    reach = _reach(nodes, graph)
    written = Written(np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64))
    walk = Walk(graph, rule, reach.state, scratch(nodes), links)
    crossing = Crossing(sent, hubs, reach, written, walk)
    link, share = filled(
        lambda begin, link, share: _across(
            begin, crossing._replace(walk=walk._replace(links=LinkColumns(link, share, links.used)))
        ),
        len(hubs.order),
        (links.link, links.share),
    )
    return LinkColumns(link, share, links.used)


def gathered(sent: Messages, links: LinkColumns) -> tuple[Longs, Ints, Floats]:
    """Put the kept paths one after the other, in the order of the messages."""
    offset = np.zeros(len(sent.length) + 1, dtype=np.int64)
    np.cumsum(sent.length, out=offset[1:])
    link, share = np.empty(offset[-1], dtype=np.int32), np.empty(offset[-1])
    _gather(sent, links, offset, link, share)
    return offset, link, share


def choose_hubs(sent: Messages, graph: Graph, hubs: Hubs, seed: int) -> None:
    """Give each message that gains by hubs the last of them: what :func:`across` does first."""
    _choose_all(sent, graph, hubs, _reach(len(hubs.hub), graph), seed)


def _reach(nodes: int, graph: Graph) -> Reach:
    return Reach(
        state=search_state(graph),
        to_last=np.empty(nodes, dtype=np.int64),
        from_last=np.empty(nodes, dtype=np.int64),
        asked=np.empty(nodes, dtype=np.bool_),
        limit=np.empty(1, dtype=np.int64),
    )


@hot_loop
def _choose_all(sent: Messages, graph: Graph, hubs: Hubs, reach: Reach, seed: int) -> None:
    for row in hubs.order:
        if _search_from(row, sent, graph, hubs, reach, False):  # noqa: FBT003  no keywords here
            _compare(row, sent, hubs, reach, seed)


@hot_loop
def _inside(begin: int, sent: Messages, cells: Cells, walk: Walk) -> int:
    """Find paths to each target from ``begin`` on; return that for which there is no room."""
    targets = len(cells.part)
    for target in range(begin, targets):
        missing = _ask(target, sent, cells, walk.state)
        if missing > 0:
            search(target, missing, UNKNOWN, walk.graph, cells.outside, walk.state)
            if not _answer(target, sent, walk):
                return target
    return targets


@hot_loop
def _ask(target: int, sent: Messages, cells: Cells, state: SearchState) -> int:
    """Want the sources in the cell of a target; return how many there are."""
    offset, item = sent.to
    missing = 0
    for index in range(offset[target], offset[target + 1]):
        node = sent.source[item[index]]
        if cells.part[node] == cells.part[target] and not state.wanted[node]:
            state.wanted[node] = True
            missing += 1
    return missing


@hot_loop
def _answer(target: int, sent: Messages, walk: Walk) -> bool:
    """Follow the messages that a search found, unless there is no room for all of them."""
    offset, item = sent.to
    state, links, seed = walk.state, walk.links, walk.rule.seed
    for index in range(offset[target], offset[target + 1]):
        state.wanted[sent.source[item[index]]] = False
    divided = walk.rule.choice >= ALIKE
    most = len(walk.graph.start) if divided else state.size[0]  # no path passes a node twice
    port = Port(target, target, 0)
    walk.work.onward[:] = 0.0
    begin = links.used[0]
    for index in range(offset[target], offset[target + 1]):
        message = item[index]
        node = int(np.int64(sent.source[message]))
        if state.metric[node] == UNKNOWN:
            continue
        if links.used[0] + most > len(links.link):
            links.used[0] = begin
            return False
        sent.metric[message] = state.metric[node]
        sent.hashed[message] = ecmp_hash(node, target, target, seed)
        sent.first[message] = links.used[0]
        if divided:
            spread_from(node, target, Ends(node, target, seed), walk)
        else:
            follow(node, target, Ends(node, target, seed), port, walk)
        sent.length[message] = links.used[0] - sent.first[message]
    return True


@hot_loop
def _across(begin: int, crossing: Crossing) -> int:
    """Follow the messages of each last hub, from one on; return that for which there is no room."""
    sent, hubs, reach = crossing.sent, crossing.hubs, crossing.reach
    for step in range(begin, len(hubs.order)):
        row = hubs.order[step]
        if _search_from(row, sent, crossing.walk.graph, hubs, reach, True) and not _walk(  # noqa: FBT003
            row, crossing
        ):
            return step
    return len(hubs.order)


@hot_loop
def _search_from(
    row: int,
    sent: Messages,
    graph: Graph,
    hubs: Hubs,
    reach: Reach,
    winners: bool,  # noqa: FBT001  a hot loop has no keywords
) -> bool:
    """Search backwards from a hub as far as some message needs it; say whether any does.

    Those are the messages that it might be the last hub of, or the ``winners``, of which it is.
    """
    missing = _want(row, sent, hubs, reach, winners)
    if missing == 0:
        return False
    last = hubs.beyond.item[hubs.beyond.offset[row]]
    search(last, missing, reach.limit[0], graph, hubs.inner, reach.state)
    reach.state.wanted[:] = False
    reach.to_last[:] = -1  # not known yet of any node
    return True


@hot_loop
def _want(
    row: int,
    sent: Messages,
    hubs: Hubs,
    reach: Reach,
    winners: bool,  # noqa: FBT001  a hot loop has no keywords
) -> int:
    """Mark the hubs near sources whose path may end at a hub, and say how far; return how many."""
    offset, item = sent.to
    last = hubs.beyond.item[hubs.beyond.offset[row]]
    missing = 0
    limit = -1
    reach.asked[:] = False
    for behind in range(hubs.beyond.offset[row], hubs.beyond.offset[row + 1]):
        target = hubs.beyond.item[behind]
        for index in range(offset[target], offset[target + 1]):
            message = item[index]
            # What the way to this hub may take at most, to be as good as the path found so far.
            slack = sent.metric[message] - hubs.beyond.metric[behind]
            if slack < 0 or (winners and sent.by[message] != last):
                continue
            limit = max(limit, slack)
            node = sent.source[message]
            if not reach.asked[node]:
                reach.asked[node] = True
                missing += _want_hubs(node, hubs.after, reach.state.wanted)
    reach.limit[0] = limit
    return missing


@hot_loop
def _want_hubs(node: int, after: Near, wanted: Mask) -> int:
    """Mark the hubs near a node; return how many were not yet."""
    missing = 0
    for index in range(after.offset[node], after.offset[node + 1]):
        missing += not wanted[after.item[index]]
        wanted[after.item[index]] = True
    return missing


@hot_loop
def _measure(node: int, after: Near, reach: Reach) -> None:
    """Set ``to_last`` of a node, where it is not yet: by the best of the hubs near it."""
    to_last, metric = reach.to_last, reach.state.metric
    if to_last[node] >= 0:
        return
    to_last[node] = UNKNOWN
    for index in range(after.offset[node], after.offset[node + 1]):
        to_last[node] = min(to_last[node], after.metric[index] + metric[after.item[index]])


@hot_loop
def _compare(row: int, sent: Messages, hubs: Hubs, reach: Reach, seed: int) -> None:
    """Note the messages that gain by one hub as their last; among equals the least hash wins."""
    offset, item = sent.to
    best, by, hashes = sent.metric, sent.by, sent.hashed
    last = hubs.beyond.item[hubs.beyond.offset[row]]
    for behind in range(hubs.beyond.offset[row], hubs.beyond.offset[row + 1]):
        target = hubs.beyond.item[behind]
        for index in range(offset[target], offset[target + 1]):
            message = item[index]
            node = sent.source[message]
            _measure(node, hubs.after, reach)
            # Source to hub, and hub to target; a hash of all three decides between equals.
            total = reach.to_last[node] + hubs.beyond.metric[behind]
            if total > best[message] or total >= UNKNOWN:
                continue
            hashed = ecmp_hash(node, target, last, seed)
            if total < best[message] or hashed < hashes[message]:
                best[message], by[message], hashes[message] = total, last, hashed


@hot_loop
def _walk(row: int, crossing: Crossing) -> bool:
    """Follow the messages whose last hub was searched for, or as many as there is room for."""
    sent, hubs, links = crossing.sent, crossing.hubs, crossing.walk.links
    offset, item = sent.to
    begin, end = hubs.beyond.offset[row], hubs.beyond.offset[row + 1]
    last = hubs.beyond.item[begin]
    _begin_at(row, crossing)
    # Room for the longest path, or for every link of the network once.
    most = len(hubs.hub)
    if crossing.walk.rule.choice >= ALIKE:
        most += len(crossing.walk.graph.start)
    for behind in range(begin, end):
        target = hubs.beyond.item[behind]
        for index in range(offset[target], offset[target + 1]):
            message = item[index]
            if sent.by[message] != last:
                continue
            if links.used[0] + most > len(links.link):
                return False
            # Marked, so that it is not written again when the loop comes back with more room.
            sent.by[message] = _FOLLOWED
            sent.first[message] = links.used[0]
            _cross(message, target, last, crossing)
            sent.length[message] = links.used[0] - sent.first[message]
    return True


@hot_loop
def _begin_at(row: int, crossing: Crossing) -> None:
    """Note how far it is from a last hub to what is behind it, and forget those before."""
    beyond, from_last = crossing.hubs.beyond, crossing.reach.from_last
    from_last[:] = UNKNOWN  # of the hub before
    for behind in range(beyond.offset[row], beyond.offset[row + 1]):
        from_last[beyond.item[behind]] = beyond.metric[behind]
    crossing.walk.work.onward[:] = 0.0
    crossing.written.length[:] = 0


@hot_loop
def _cross(message: int, target: int, last: int, crossing: Crossing) -> None:
    """Follow a message to a hub, on to the last, to the target.

    The third part is found from the target backwards: there a hub's thousand links are one.
    """
    sent, hubs, reach, walk = crossing.sent, crossing.hubs, crossing.reach, crossing.walk
    graph, links = walk.graph, walk.links
    offset, item = graph.out
    node = int(np.int64(sent.source[message]))
    ends = Ends(node, target, walk.rule.seed)
    _measure(node, hubs.after, reach)
    # Head: from the source to the first hub, always towards the nearest way to the last one.
    while not hubs.hub[node]:
        for index in range(offset[node], offset[node + 1]):
            _measure(graph.stop[item[index]], hubs.after, reach)
        link = choose_link(node, ends, reach.to_last, graph)
        put(link, 1.0, links)
        node = graph.stop[link]
    sent.head[message] = links.used[0] - sent.first[message]
    back = reverse(graph)
    if walk.rule.choice >= ALIKE:
        _cross_divided(node, last, ends, crossing)
    else:
        follow(node, last, ends, leaving_port(ends, last, back, reach.from_last, walk.rule), walk)
    # Tail: walked from the target up to the last hub, then turned round.
    tail = links.used[0]
    node = target
    while node != last:
        link = choose_link(node, ends, reach.from_last, back)
        put(link, 1.0, links)
        node = graph.start[link]
    _turn(tail, links)
    sent.tail[message] = links.used[0] - tail


@hot_loop
def _cross_divided(first: int, last: int, ends: Ends, crossing: Crossing) -> None:
    """Divide a message from hub to hub, or copy what was written of another between the two."""
    written, walk = crossing.written, crossing.walk
    links, begin = walk.links, walk.links.used[0]
    if written.length[first] > 0:
        for index in range(written.first[first], written.first[first] + written.length[first]):
            put(links.link[index], links.share[index], links)
        return
    spread_from(first, last, ends, walk)
    written.first[first] = begin
    written.length[first] = links.used[0] - begin
    for index in range(begin, links.used[0]):
        if not walk.rule.ruled[walk.graph.start[links.link[index]]]:
            written.length[first] = 0  # a hash of the message chose


@hot_loop
def _turn(begin: int, links: LinkColumns) -> None:
    """Turn round the order of the links from ``begin`` on."""
    link, end = links.link, links.used[0]
    for index in range((end - begin) // 2):
        mirrored = end - 1 - index
        link[begin + index], link[mirrored] = link[mirrored], link[begin + index]


@hot_loop
def _gather(sent: Messages, links: LinkColumns, offset: Longs, link: Ints, share: Floats) -> None:
    for message in range(len(sent.length)):
        for index in range(sent.length[message]):
            link[offset[message] + index] = links.link[sent.first[message] + index]
            share[offset[message] + index] = links.share[sent.first[message] + index]
