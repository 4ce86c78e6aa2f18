"""Least-metric paths for many messages at once: the compiled part of :mod:`simulator.routing`.

A *hub* is a switch with many links, a thousand at times, of which a message needs two. So no
search goes on through a hub unless it must:

* *inside*: a path that meets no hub (neighbours on a ring, ranks on the switch of a small domain)
  is found by a search backwards from its target that stops at hubs;
* *across*: any other path has a last hub. What is *near* a hub, which is what reaches it without
  a further hub or is reached so, is found once; then for each hub that can be a last one there is
  one search backwards from hub to hub, whatever the number of messages that end behind it.

The least of both is exact on any graph, whatever is called a hub. The second search leaves out
what lies on no useful way from hub to hub (:func:`between`): NICs and ranks mostly, but not a rank
that reaches a rail only through its neighbour.
"""

# ruff: noqa: C901, PLR0913, PLR0915  kernels: a call per message costs more than its work
# mypy: disable-error-code="no-untyped-def"

import heapq
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Indices = NDArray[np.int32]
Mask = NDArray[np.bool_]

UNKNOWN = 1 << 60
"""Metric of a path that is not found."""


class Rows(NamedTuple):
    """Lists by number: those of ``i`` are ``item[offset[i]:offset[i + 1]]``."""

    offset: Ints
    item: Indices


class Graph(NamedTuple):
    """Links with their metric (1 or more), and which leave or enter a node."""

    start: Indices
    stop: Indices
    metric: Ints
    out: Rows
    into: Rows


class Near(NamedTuple):
    """Nodes near each hub (a row per hub), or hubs near each node (per node), and how near."""

    offset: Ints
    item: Indices
    metric: Ints


class Messages(NamedTuple):
    """Messages, those to one target together, and the best path of each so far.

    ``by`` is its last hub (-1: none), ``lot`` what it won by among equals; ``first`` and
    ``length`` say where its links are.
    """

    source: Indices
    to: Rows
    metric: Ints
    by: Indices
    lot: NDArray[np.uint64]
    first: Ints
    length: Ints


class Found(NamedTuple):
    """What a search finds, per node: its metric to the goal, a link that comes nearer, how many do.

    ``wanted`` marks the nodes that it is for; the rest is its own. A metric that is not
    ``final`` is an upper bound, and above all that are.
    """

    metric: Ints
    via: Indices
    ways: Indices
    final: Mask
    wanted: Mask
    seen: Indices
    level: Indices
    size: Ints


def rows(key: NDArray[np.int32], count: int) -> Rows:
    """Group ``0 … len(key) - 1`` by key, each group in ascending order."""
    offset = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(key, minlength=count), out=offset[1:])
    return Rows(offset, np.argsort(key, kind="stable").astype(np.int32))


def nothing_found(nodes: int) -> Found:
    """Return the arrays that every search of a graph with so many nodes fills anew."""
    return Found(
        metric=np.full(nodes, UNKNOWN, dtype=np.int64),
        via=np.zeros(nodes, dtype=np.int32),
        ways=np.zeros(nodes, dtype=np.int32),
        final=np.zeros(nodes, dtype=np.bool_),
        wanted=np.zeros(nodes, dtype=np.bool_),
        seen=np.zeros(nodes, dtype=np.int32),
        level=np.zeros(nodes, dtype=np.int32),
        size=np.zeros(1, dtype=np.int64),
    )


def reverse(graph: Graph) -> Graph:
    """Return the graph with every link turned round."""
    return Graph(graph.stop, graph.start, graph.metric, graph.into, graph.out)


@njit(cache=True)
def search(goal, missing, limit, graph, inner, found):
    """Dijkstra backwards from ``goal`` through ``inner`` nodes, of which it finds the metric.

    It ends when ``missing`` of the wanted nodes are final, or all nodes within ``limit`` are. All
    nodes of one metric become final before any of them is gone on from: those that are the last
    wanted, as neighbours mostly are, need not be.
    """
    start, length, (offset, into) = graph.start, graph.metric, graph.into
    metric, via, ways, final, wanted, seen, level, _ = found
    for place in range(found.size[0]):
        metric[seen[place]] = UNKNOWN
        final[seen[place]] = False
    heap = [(np.int64(0), np.int64(goal))]
    metric[goal] = 0
    seen[0] = goal
    size = 1
    while heap and missing > 0 and heap[0][0] <= limit:
        far = heap[0][0]
        reached = 0
        while heap and heap[0][0] == far:
            node = heapq.heappop(heap)[1]
            if not final[node]:
                final[node] = True
                level[reached] = node
                reached += 1
                missing -= wanted[node]
        for at in range(reached if missing > 0 else 0):
            node = level[at]
            for place in range(offset[node], offset[node + 1]):
                link = into[place]
                before = np.int64(start[link])
                step = far + length[link]
                if not inner[before] or step > metric[before]:
                    continue
                if step == metric[before]:
                    ways[before] += 1
                    continue
                if metric[before] == UNKNOWN:
                    seen[size] = before
                    size += 1
                metric[before] = step
                via[before] = link
                ways[before] = 1
                heapq.heappush(heap, (step, before))
    found.size[0] = size


@njit(cache=True)
def cells(graph, hub):
    """Return the part of each node when the network falls apart without its hubs (union-find)."""
    part = np.arange(len(hub))
    for link in range(len(graph.start)):
        one, other = np.int64(graph.start[link]), np.int64(graph.stop[link])
        if hub[one] or hub[other]:
            continue
        while part[one] != one:
            part[one] = part[part[one]]
            one = part[one]
        while part[other] != other:
            part[other] = part[part[other]]
            other = part[other]
        part[max(one, other)] = min(one, other)
    for node in range(len(part)):
        part[node] = part[part[node]]
    return part


@njit(cache=True)
def near(hubs, graph, hub, found):
    """Return the rows of :class:`Near`: a hub, then the nodes that reach it without another."""
    outside = ~hub
    offset = np.zeros(len(hubs) + 1, dtype=np.int64)
    item = np.empty(1024, dtype=np.int32)
    metric = np.empty(1024, dtype=np.int64)
    used = 0
    for row in range(len(hubs)):
        search(hubs[row], 1, UNKNOWN, graph, outside, found)
        while used + found.size[0] > len(item):
            item = np.concatenate((item, np.empty_like(item)))
            metric = np.concatenate((metric, np.empty_like(metric)))
        for place in range(found.size[0]):
            item[used] = found.seen[place]
            metric[used] = found.metric[item[used]]
            used += 1
        offset[row + 1] = used
    return offset, item[:used].copy(), metric[:used].copy()


@njit(cache=True)
def between(graph, hub, before, after):
    """Mark hubs, and nodes on a way from hub to hub that no direct link between them beats.

    ``before`` are the hubs that reach a node, ``after`` those it reaches. No other node is on a
    least-metric path between two hubs.
    """
    inner = hub.copy()
    for node in range(len(hub)):
        for one in range(before.offset[node], before.offset[node + 1]):
            if inner[node]:
                break
            for other in range(after.offset[node], after.offset[node + 1]):
                ends = before.item[one], after.item[other]
                way = before.metric[one] + after.metric[other]
                if ends[0] != ends[1] and way <= _direct(ends[0], ends[1], graph):
                    inner[node] = True
                    break
    return inner


@njit(cache=True)
def _direct(start, stop, graph):
    """Metric of the link between two nodes; links that leave a node are sorted by where to."""
    low, high = graph.out.offset[start], graph.out.offset[start + 1]
    while low < high:
        middle = (low + high) // 2
        if graph.stop[graph.out.item[middle]] < stop:
            low = middle + 1
        else:
            high = middle
    if low < graph.out.offset[start + 1] and graph.stop[graph.out.item[low]] == stop:
        return graph.metric[graph.out.item[low]]
    return UNKNOWN


@njit(cache=True)
def _hash(source, target, node):
    """Mix 64 bits (the finaliser of MurmurHash3, Appleby 2011, public domain constants)."""
    key = np.uint64(source) * np.uint64(0x9E3779B97F4A7C15)
    key ^= np.uint64(target) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(node)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xFF51AFD7ED558CCD)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xC4CEB9FE1A85EC53)
    return key ^ (key >> np.uint64(33))


@njit(cache=True)
def _choose(node, ends, metric, links, far_end, length):
    """Choose by hash among the links of a node whose far end is nearer by their whole length."""
    offset, item = links
    ways = 0
    link = np.int32(-1)
    for place in range(offset[node], offset[node + 1]):
        if metric[far_end[item[place]]] + length[item[place]] == metric[node]:
            ways += 1
            link = item[place]
    if ways == 1:
        return link
    left = np.int64(_hash(ends[0], ends[1], node) % np.uint64(ways))
    for place in range(offset[node], offset[node + 1]):
        link = item[place]
        if metric[far_end[link]] + length[link] == metric[node]:
            if left == 0:
                break
            left -= 1
    return link


@njit(cache=True)
def _follow(node, goal, ends, graph, found, path, hops):
    """Write the links from a node to the goal of a search into ``path``, behind ``hops`` others."""
    _, stop, length, out, _ = graph
    metric, via, ways = found.metric, found.via, found.ways
    while node != goal:
        link = via[node]
        if ways[node] > 1:
            link = _choose(node, ends, metric, out, stop, length)
        path[hops] = link
        hops += 1
        node = stop[link]
    return hops


@njit(cache=True)
def _append(flat, used, path, hops):
    """Write a path behind all others; return them and their length."""
    while used + hops > len(flat):
        flat = np.concatenate((flat, np.empty_like(flat)))
    for place in range(hops):
        flat[used + place] = path[place]
    return flat, used + hops


@njit(cache=True)
def inside(messages, graph, hub, cell, found):
    """Find the path of every message within a cell; return the links of all, one after other."""
    source, (offset, item), best, _, lot, first, length = messages
    metric, wanted = found.metric, found.wanted
    outside = ~hub
    path = np.empty(len(hub), dtype=np.int32)
    flat = np.empty(2 * len(source) + 16, dtype=np.int32)
    used = 0
    for target in range(len(hub)):
        missing = 0
        for place in range(offset[target], offset[target + 1]):
            node = source[item[place]]
            if cell[node] == cell[target] and not wanted[node]:
                wanted[node] = True
                missing += 1
        if not missing:
            continue
        search(target, missing, UNKNOWN, graph, outside, found)
        for place in range(offset[target], offset[target + 1]):
            message = item[place]
            node = source[message]
            wanted[node] = False
            if metric[node] == UNKNOWN:
                continue
            best[message] = metric[node]
            lot[message] = _hash(node, target, target)
            first[message] = used
            hops = _follow(node, target, (node, target), graph, found, path, 0)
            length[message] = hops
            flat, used = _append(flat, used, path, hops)
    return flat, used


@njit(cache=True)
def across(messages, graph, order, nearness, masks, links):
    """Improve paths by those through hubs, and return the links of all.

    Hub by hub as the last of a path: first find who gains by it, then follow the winners.
    """
    beyond, after = nearness
    hub, inner = masks
    found, flat, used = links
    to_last = np.empty(len(hub), dtype=np.int64)
    from_last = np.full(len(hub), UNKNOWN)
    for winners in (False, True):
        for row in order:
            begin, end = beyond.offset[row], beyond.offset[row + 1]
            behind, metric = beyond.item[begin:end], beyond.metric[begin:end]
            targets = behind, metric
            missing, limit = _want(targets, messages, after, found, winners)
            if not missing:
                continue
            search(behind[0], missing, limit, graph, inner, found)
            found.wanted[:] = False
            to_last[:] = -1
            if not winners:
                _compare(targets, messages, after, found, to_last)
                continue
            from_last[behind] = metric
            known = hub, after, found, to_last, from_last
            flat, used = _walk(behind, messages, graph, known, (flat, used))
            from_last[behind] = UNKNOWN
    return flat, used


@njit(cache=True)
def _want(targets, messages, after, found, winners):
    """Mark the hubs near sources whose path may end at a hub; return how many and how far."""
    source, (offset, item), best, by, _, _, _ = messages
    after_offset, after_hub, _ = after
    wanted = found.wanted
    asked = np.zeros(len(wanted), dtype=np.bool_)
    behind, beyond = targets
    last = behind[0]
    missing = 0
    limit = np.int64(-1)
    for row in range(len(behind)):
        target = behind[row]
        for place in range(offset[target], offset[target + 1]):
            message = item[place]
            slack = best[message] - beyond[row]
            if slack < 0 or (winners and by[message] != last):
                continue
            limit = max(limit, slack)
            node = source[message]
            if asked[node]:
                continue
            asked[node] = True
            for at in range(after_offset[node], after_offset[node + 1]):
                missing += not wanted[after_hub[at]]
                wanted[after_hub[at]] = True
    return missing, limit


@njit(cache=True)
def _measure(node, after, metric, to_last):
    """Set ``to_last`` of a node, where it is not yet: by the best of the hubs near it."""
    offset, hub, way = after
    if to_last[node] >= 0:
        return
    to_last[node] = UNKNOWN
    for place in range(offset[node], offset[node + 1]):
        to_last[node] = min(to_last[node], way[place] + metric[hub[place]])


@njit(cache=True)
def _compare(targets, messages, after, found, to_last):
    """Note the messages that gain by one hub as their last; equals draw lots by hash."""
    source, (offset, item), best, by, lot, _, _ = messages
    metric = found.metric
    behind, beyond = targets
    last = behind[0]
    for row in range(len(behind)):
        target = behind[row]
        for place in range(offset[target], offset[target + 1]):
            message = item[place]
            node = source[message]
            _measure(node, after, metric, to_last)
            total = to_last[node] + beyond[row]
            if total > best[message] or total >= UNKNOWN:
                continue
            mine = _hash(node, target, last)
            if total < best[message] or mine < lot[message]:
                best[message], by[message], lot[message] = total, last, mine


@njit(cache=True)
def _walk(behind, messages, graph, known, links):
    """Follow the messages whose last hub was searched for: to a hub, on to the last, to the target.

    The third part is found from the target backwards: there a hub's thousand links are one.
    """
    source, (offset, item), _, by, _, first, length = messages
    start, stop, metric, out, into = graph
    hub, after, found, to_last, from_last = known
    found_metric = found.metric
    out_offset, out_link = out
    flat, used = links
    path = np.empty(2 * len(hub), dtype=np.int32)
    last = behind[0]
    for target in behind:
        for place in range(offset[target], offset[target + 1]):
            message = item[place]
            if by[message] != last:
                continue
            node = source[message]
            ends = node, target
            hops = 0
            _measure(node, after, found_metric, to_last)
            while not hub[node]:
                for at in range(out_offset[node], out_offset[node + 1]):
                    _measure(stop[out_link[at]], after, found_metric, to_last)
                path[hops] = _choose(node, ends, to_last, out, stop, metric)
                node = stop[path[hops]]
                hops += 1
            if node != last:
                hops = _follow(node, last, ends, graph, found, path, hops)
            tail = hops
            node = target
            while node != last:
                path[hops] = _choose(node, ends, from_last, into, start, metric)
                node = start[path[hops]]
                hops += 1
            for at in range((hops - tail) // 2):
                other = hops - 1 - at
                path[tail + at], path[other] = path[other], path[tail + at]
            first[message], length[message] = used, hops
            flat, used = _append(flat, used, path, hops)
    return flat, used


@njit(cache=True)
def gathered(messages, flat):
    """Put the kept paths one after the other, in the order of the messages."""
    offset = np.zeros(len(messages.length) + 1, dtype=np.int64)
    offset[1:] = np.cumsum(messages.length)
    link = np.empty(offset[-1], dtype=np.int32)
    first, length = messages.first, messages.length
    for message in range(len(length)):
        for place in range(length[message]):
            link[offset[message] + place] = flat[first[message] + place]
    return offset, link
