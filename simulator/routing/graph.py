"""Hot loops: a graph, its hubs, the search for least-metric paths in it, and the hash of ECMP.

A *hub* is a switch with many links, a thousand at times, of which a message needs two. So no
search goes on through a hub unless it must (:mod:`simulator.routing.messages`). What lies near and
between hubs is found once, whoever sends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Ints, Longs, Mask, offsets_by_row
from simulator.support.compiled import hot_loop
from simulator.support.heap import Heap, pop, push, room

UNKNOWN = 1 << 60
"""Metric of a path that is not found."""


class CsrRows(NamedTuple):
    """Rows in CSR form: that of ``i`` is ``item[offset[i]:offset[i + 1]]``."""

    offset: Longs
    item: Ints


class Graph(NamedTuple):
    """Links with their metric (1 or more), and which leave or enter a node.

    Those that leave a node are sorted by where to.
    """

    start: Ints
    stop: Ints
    metric: Longs
    out: CsrRows
    into: CsrRows


class SearchState(NamedTuple):
    """What a search finds, per node: its metric to the goal.

    ``wanted`` marks the nodes that it is for. A metric that is not ``final`` is an upper bound, and
    above all that are; ``order[:size[1]]`` are the nodes whose metric is, nearest first.
    ``seen[:size[0]]`` are all nodes that a search has come to. ``heap`` is scratch.
    """

    metric: Longs
    final: Mask
    wanted: Mask
    seen: Ints
    order: Ints
    size: Longs
    heap: Heap


class Ends(NamedTuple):
    """The nodes that a message is sent from and to, and the seed of the hash of both."""

    source: int
    target: int
    seed: int


class LinkColumns(NamedTuple):
    """Links of many messages, one message after the other: ``used[0]`` of them are there.

    ``share`` is the part of the message that passes the link.
    """

    link: Ints
    share: Floats
    used: Longs


def grouped(key: Ints, count: int) -> CsrRows:
    """List the indices of each key from 0 to ``count``, ascending."""
    return CsrRows(offsets_by_row(key, count), np.argsort(key, kind="stable").astype(np.int32))


@hot_loop
def reverse(graph: Graph) -> Graph:
    """Return the graph with every link turned round."""
    return Graph(graph.stop, graph.start, graph.metric, graph.into, graph.out)


def search_state(graph: Graph) -> SearchState:
    """Return the arrays that every search of a graph fills anew."""
    nodes = len(graph.out.offset) - 1
    return SearchState(
        metric=np.full(nodes, UNKNOWN, dtype=np.int64),
        final=np.zeros(nodes, dtype=np.bool_),
        wanted=np.zeros(nodes, dtype=np.bool_),
        seen=np.zeros(nodes, dtype=np.int32),
        order=np.zeros(nodes, dtype=np.int32),
        size=np.zeros(2, dtype=np.int64),
        heap=room(len(graph.start) + 1),  # a link brings its start nearer at most once
    )


@hot_loop
def search(
    goal: int, missing: int, limit: int, graph: Graph, inner: Mask, state: SearchState
) -> None:
    """Dijkstra backwards from ``goal`` through ``inner`` nodes, of which it finds the metric.

    It ends when ``missing`` of the wanted nodes are final, or all nodes within ``limit`` are. All
    nodes of one metric become final before any of them is gone on from: those that are the last
    wanted, as neighbours mostly are, need not be.
    """
    final, wanted, order, heap = state.final, state.wanted, state.order, state.heap
    begin_search(goal, state)
    waiting = push(heap, 0, 0.0, goal)
    while waiting > 0 and missing > 0 and heap.key[0] <= limit:
        far = heap.key[0]  # metrics are whole numbers below 2**53: exact as floats
        first = reached = state.size[1]
        while waiting > 0 and heap.key[0] == far:
            node = heap.item[0]
            waiting = pop(heap, waiting)
            if not final[node]:
                final[node] = True
                order[reached] = node
                reached += 1
                missing -= wanted[node]
        # Nothing is gone on from once the last wanted node is final.
        state.size[1] = reached
        for index in range(first, reached if missing > 0 else first):
            waiting = _go_on(order[index], graph, inner, state, waiting)


@hot_loop
def begin_search(goal: int, state: SearchState) -> None:
    """Forget what the last search found."""
    for index in range(state.size[0]):
        state.metric[state.seen[index]] = UNKNOWN
        state.final[state.seen[index]] = False
    state.metric[goal] = 0
    state.seen[0] = goal
    state.size[0], state.size[1] = 1, 0


@hot_loop
def _go_on(node: int, graph: Graph, inner: Mask, state: SearchState, waiting: int) -> int:
    """Reach the nodes before a node; return how many nodes wait to be gone on from."""
    metric, (offset, into) = state.metric, graph.into
    for index in range(offset[node], offset[node + 1]):
        link = into[index]
        before = graph.start[link]
        step = metric[node] + graph.metric[link]
        if not inner[before] or step >= metric[before]:
            continue
        if metric[before] == UNKNOWN:
            state.seen[state.size[0]] = before
            state.size[0] += 1
        metric[before] = step
        waiting = push(state.heap, waiting, float(step), before)
    return waiting


@hot_loop
def put(link: int, share: float, links: LinkColumns) -> None:
    """Write a link behind all others."""
    links.link[links.used[0]] = link
    links.share[links.used[0]] = share
    links.used[0] += 1


@hot_loop
def count_nearer(node: int, metric: Longs, graph: Graph) -> int:
    """Count the links of a node whose far end is nearer by their length."""
    stop, length, (offset, item) = graph.stop, graph.metric, graph.out
    ways = 0
    for index in range(offset[node], offset[node + 1]):
        ways += metric[stop[item[index]]] + length[item[index]] == metric[node]
    return ways


@hot_loop
def nearer(node: int, number: int, metric: Longs, graph: Graph) -> int:
    """Return the link of that number, from 0, among those whose far end is nearer; -1: none."""
    stop, length, (offset, item) = graph.stop, graph.metric, graph.out
    for index in range(offset[node], offset[node + 1]):
        link = item[index]
        if metric[stop[link]] + length[link] == metric[node]:
            if number == 0:
                return int(link)
            number -= 1
    return -1


@hot_loop
def choose_link(node: int, ends: Ends, metric: Longs, graph: Graph) -> int:
    """Choose by ECMP hash among the links of a node whose far end is nearer by their length."""
    ways = count_nearer(node, metric, graph)
    if ways < 2:
        return nearer(node, 0, metric, graph)
    hashed = ecmp_hash(ends.source, ends.target, node, ends.seed)
    return nearer(node, int(np.int64(hashed % np.uint64(ways))), metric, graph)


@hot_loop
def ecmp_hash(source: int, target: int, node: int, seed: int) -> int:
    """Hash of 64 bits (the finaliser of MurmurHash3, Appleby 2011, public domain constants)."""
    key = np.uint64(source) * np.uint64(0x9E3779B97F4A7C15)
    key ^= np.uint64(target) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(node)
    key ^= np.uint64(seed) * np.uint64(0xD6E8FEB86659FD93)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xFF51AFD7ED558CCD)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xC4CEB9FE1A85EC53)
    return int(key ^ (key >> np.uint64(33)))


class Cells(NamedTuple):
    """What a network falls apart into without its hubs: which nodes are none, the part of each."""

    outside: Mask
    part: Longs


class Near(NamedTuple):
    """Nodes near each hub (a row per hub), or hubs near each node (per node), and how near."""

    offset: Longs
    item: Ints
    metric: Longs


class Hubs(NamedTuple):
    """Which nodes are hubs, what each of them reaches, and which each node reaches.

    ``order`` are the rows of ``beyond`` as they are to be searched from; ``inner`` marks where a
    way from hub to hub may lead.
    """

    hub: Mask
    inner: Mask
    beyond: Near
    after: Near
    order: Longs


def cells(graph: Graph, hub: Mask) -> Cells:
    """Let the network fall apart."""
    fallen_apart = Cells(~hub, np.arange(len(hub)))
    _join(graph, fallen_apart)
    return fallen_apart


def hubs(graph: Graph, hub: Mask) -> Hubs:
    """Find what is near hubs, and what lies on useful ways between them.

    That leaves out NICs and ranks mostly, but not a rank that reaches a rail only through its
    neighbour.
    """
    numbers = np.flatnonzero(hub)
    back = Graph(graph.stop, graph.start, graph.metric, graph.into, graph.out)
    beyond, towards = _near(numbers, back, hub), _near(numbers, graph, hub)
    before, after = _by_node(beyond, numbers, len(hub)), _by_node(towards, numbers, len(hub))
    inner = hub.copy()
    _between(graph, before, after, inner)
    # Hubs of the fabric come before those of domains
    farthest = np.maximum.reduceat(beyond.metric, beyond.offset[:-1])
    return Hubs(hub, inner, beyond, after, np.argsort(-farthest, kind="stable"))


def _near(numbers: Longs, graph: Graph, hub: Mask) -> Near:
    """Find the nodes that reach each hub without another: the hub itself, then the others."""
    offset = np.zeros(len(numbers) + 1, dtype=np.int64)
    outside, state = ~hub, search_state(graph)
    item, metric = filled(
        lambda begin, item, metric: _reach(
            begin, numbers, graph, outside, state, Near(offset, item, metric)
        ),
        len(numbers),
        (np.zeros(1024, dtype=np.int32), np.zeros(1024, dtype=np.int64)),
    )
    return Near(offset, item[: offset[-1]].copy(), metric[: offset[-1]].copy())


def _by_node(near: Near, numbers: Longs, nodes: int) -> Near:
    """Turn a row per hub into a row per node."""
    offset, order = grouped(near.item, nodes)
    of = np.repeat(numbers, np.diff(near.offset)).astype(np.int32)
    return Near(offset, of[order], near.metric[order])


Arrays = tuple[NDArray[Any], ...]


def filled(go_on: Callable[..., int], end: int, arrays: Arrays) -> Arrays:
    """Go on until ``end``, whenever arrays are full with twice the room; return the last ones.

    ``go_on(begin, *arrays)`` does what there is to do from ``begin`` on, and returns where it
    stopped for want of room, or ``end``. What it has written is there when it goes on.

    Examples
    --------
    >>> def squares(begin, array):
    ...     stop = min(10, len(array))
    ...     array[begin:stop] = np.arange(begin, stop) ** 2
    ...     return stop
    >>> filled(squares, 10, (np.zeros(3, dtype=int),))[0].tolist()
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 0, 0, 0, 0, 0]
    """
    begin = go_on(0, *arrays)
    while begin < end:
        arrays = tuple(np.append(array, np.zeros(len(array) + 1, array.dtype)) for array in arrays)
        begin = go_on(begin, *arrays)
    return arrays


@hot_loop
def _join(graph: Graph, cells: Cells) -> None:
    """Give the nodes of a part its least number (union-find)."""
    outside, part = cells
    for link in range(len(graph.start)):
        start, stop = graph.start[link], graph.stop[link]
        if outside[start] and outside[stop]:
            # The least number of a part is its root, so that parts have the same numbers always.
            low, high = _root(start, part), _root(stop, part)
            part[max(low, high)] = min(low, high)
    for node in range(len(part)):
        part[node] = part[part[node]]


@hot_loop
def _root(node: int, part: Longs) -> int:
    """Find the least number known of a node's part, and shorten the way there."""
    while part[node] != node:
        part[node] = part[part[node]]  # halve the way for whoever comes next
        node = part[node]
    return node


@hot_loop
def _reach(
    begin: int, numbers: Longs, graph: Graph, outside: Mask, state: SearchState, near: Near
) -> int:
    """Write the row of each hub from ``begin`` on; return that for which there is no room."""
    for row in range(begin, len(numbers)):
        search(numbers[row], 1, UNKNOWN, graph, outside, state)
        # ``seen`` begins with the hub itself, at metric 0.
        used = near.offset[row]
        if used + state.size[0] > len(near.item):
            return row
        for index in range(state.size[0]):
            node = state.seen[index]
            near.item[used + index] = node
            near.metric[used + index] = state.metric[node]
        near.offset[row + 1] = used + state.size[0]
    return len(numbers)


@hot_loop
def _between(graph: Graph, before: Near, after: Near, inner: Mask) -> None:
    """Mark nodes on a way from hub to hub that no direct link between them beats.

    ``before`` are the hubs that reach a node, ``after`` those it reaches. No other node is on a
    least-metric path between two hubs.
    """
    for node in range(len(inner)):
        if not inner[node]:
            inner[node] = _joins(node, graph, before, after)


@hot_loop
def _joins(node: int, graph: Graph, before: Near, after: Near) -> bool:
    for entry in range(before.offset[node], before.offset[node + 1]):
        for leaving in range(after.offset[node], after.offset[node + 1]):
            start, stop = before.item[entry], after.item[leaving]
            way = before.metric[entry] + after.metric[leaving]
            if start != stop and way <= _direct(start, stop, graph):
                return True
    return False


@hot_loop
def _direct(start: int, stop: int, graph: Graph) -> int:
    """Metric of the link between two nodes."""
    offset, item = graph.out
    # Links that leave a node are sorted by where they go: binary search.
    low, high = offset[start], offset[start + 1]
    while low < high:
        middle = (low + high) // 2
        if graph.stop[item[middle]] < stop:
            low = middle + 1
        else:
            high = middle
    if low < offset[start + 1] and graph.stop[item[low]] == stop:
        return int(graph.metric[item[low]])
    return UNKNOWN
