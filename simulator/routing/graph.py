"""A graph and the search for least-metric paths in it: hot loops.

:mod:`simulator.routing.hubs` and :mod:`simulator.routing.messages` use them for many messages at
once.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.heap import Heap, pop, push, room
from simulator.hot import hot_loop

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
    """Links with their metric (1 or more), and which leave or enter a node.

    Those that leave a node are sorted by where to.
    """

    start: Indices
    stop: Indices
    metric: Ints
    out: Rows
    into: Rows


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
    heap: Heap


class Ends(NamedTuple):
    """The nodes that a message is sent from and to."""

    source: int
    target: int


class Links(NamedTuple):
    """Links of many paths, one path after the other: ``used[0]`` of them are there."""

    link: Indices
    used: Ints


def rows(key: NDArray[np.int32], count: int) -> Rows:
    """Group ``0 … len(key) - 1`` by key, each group in ascending order."""
    offset = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(key, minlength=count), out=offset[1:])
    return Rows(offset, np.argsort(key, kind="stable").astype(np.int32))


def reverse(graph: Graph) -> Graph:
    """Return the graph with every link turned round."""
    return Graph(graph.stop, graph.start, graph.metric, graph.into, graph.out)


def nothing_found(graph: Graph) -> Found:
    """Return the arrays that every search of a graph fills anew."""
    nodes = len(graph.out.offset) - 1
    return Found(
        metric=np.full(nodes, UNKNOWN, dtype=np.int64),
        via=np.zeros(nodes, dtype=np.int32),
        ways=np.zeros(nodes, dtype=np.int32),
        final=np.zeros(nodes, dtype=np.bool_),
        wanted=np.zeros(nodes, dtype=np.bool_),
        seen=np.zeros(nodes, dtype=np.int32),
        level=np.zeros(nodes, dtype=np.int32),
        size=np.zeros(1, dtype=np.int64),
        heap=room(len(graph.start) + 1),  # a link brings its start nearer at most once
    )


@hot_loop
def search(goal: int, missing: int, limit: int, graph: Graph, inner: Mask, found: Found) -> None:
    """Dijkstra backwards from ``goal`` through ``inner`` nodes, of which it finds the metric.

    It ends when ``missing`` of the wanted nodes are final, or all nodes within ``limit`` are. All
    nodes of one metric become final before any of them is gone on from: those that are the last
    wanted, as neighbours mostly are, need not be.
    """
    final, wanted, level, heap = found.final, found.wanted, found.level, found.heap
    _begin(goal, found)
    waiting = push(heap, 0, 0.0, goal)
    while waiting > 0 and missing > 0 and heap.key[0] <= limit:
        far = heap.key[0]
        reached = 0
        while waiting > 0 and heap.key[0] == far:
            node = heap.item[0]
            waiting = pop(heap, waiting)
            if not final[node]:
                final[node] = True
                level[reached] = node
                reached += 1
                missing -= wanted[node]
        for place in range(reached if missing > 0 else 0):
            waiting = _go_on(level[place], graph, inner, found, waiting)


@hot_loop
def _begin(goal: int, found: Found) -> None:
    """Forget what the last search found."""
    for place in range(found.size[0]):
        found.metric[found.seen[place]] = UNKNOWN
        found.final[found.seen[place]] = False
    found.metric[goal] = 0
    found.seen[0] = goal
    found.size[0] = 1


@hot_loop
def _go_on(node: int, graph: Graph, inner: Mask, found: Found, waiting: int) -> int:
    """Reach the nodes before a node; return how many nodes wait to be gone on from."""
    metric, via, ways = found.metric, found.via, found.ways
    offset, into = graph.into
    for place in range(offset[node], offset[node + 1]):
        link = into[place]
        before = graph.start[link]
        step = metric[node] + graph.metric[link]
        if not inner[before] or step > metric[before]:
            continue
        if step == metric[before]:
            ways[before] += 1
            continue
        if metric[before] == UNKNOWN:
            found.seen[found.size[0]] = before
            found.size[0] += 1
        metric[before] = step
        via[before] = link
        ways[before] = 1
        waiting = push(found.heap, waiting, float(step), before)
    return waiting


@hot_loop
def follow(node: int, goal: int, ends: Ends, graph: Graph, found: Found, links: Links) -> None:
    """Write the links from a node to the goal of a search behind all others."""
    while node != goal:
        link = found.via[node]
        if found.ways[node] > 1:
            link = choose(node, ends, found.metric, graph)
        put(link, links)
        node = graph.stop[link]


@hot_loop
def put(link: int, links: Links) -> None:
    """Write a link behind all others."""
    links.link[links.used[0]] = link
    links.used[0] += 1


@hot_loop
def choose(node: int, ends: Ends, metric: Ints, graph: Graph) -> int:
    """Choose by hash among the links of a node whose far end is nearer by their whole length."""
    stop, length, (offset, item) = graph.stop, graph.metric, graph.out
    ways = 0
    link = -1
    for place in range(offset[node], offset[node + 1]):
        if metric[stop[item[place]]] + length[item[place]] == metric[node]:
            ways += 1
            link = item[place]
    if ways == 1:
        return link
    left = np.int64(lot(ends.source, ends.target, node) % np.uint64(ways))
    for place in range(offset[node], offset[node + 1]):
        link = item[place]
        if metric[stop[link]] + length[link] == metric[node]:
            if left == 0:
                break
            left -= 1
    return link


@hot_loop
def lot(source: int, target: int, node: int) -> int:
    """Mix 64 bits (the finaliser of MurmurHash3, Appleby 2011, public domain constants)."""
    key = np.uint64(source) * np.uint64(0x9E3779B97F4A7C15)
    key ^= np.uint64(target) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(node)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xFF51AFD7ED558CCD)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xC4CEB9FE1A85EC53)
    return int(key ^ (key >> np.uint64(33)))
