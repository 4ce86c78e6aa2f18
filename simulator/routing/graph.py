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
Floats = NDArray[np.float64]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Mask = NDArray[np.bool_]

UNKNOWN = 1 << 60
"""Metric of a path that is not found."""


class CsrRows(NamedTuple):
    """CsrRows in CSR form: that of ``i`` is ``item[offset[i]:offset[i + 1]]``."""

    offset: Ints
    item: Indices


class Graph(NamedTuple):
    """Links with their metric (1 or more), and which leave or enter a node.

    Those that leave a node are sorted by where to.
    """

    start: Indices
    stop: Indices
    metric: Ints
    out: CsrRows
    into: CsrRows


class SearchState(NamedTuple):
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
    """The nodes that a message is sent from and to, and the seed of the hash of both."""

    source: int
    target: int
    seed: int


class LinkColumns(NamedTuple):
    """Links of many messages, one message after the other: ``used[0]`` of them are there.

    ``share`` is the part of the message that passes the link.
    """

    link: Indices
    share: Floats
    used: Ints


def grouped(key: NDArray[np.int32], count: int) -> CsrRows:
    """List the indices of each key from 0 to ``count``, ascending."""
    offset = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(key, minlength=count), out=offset[1:])
    return CsrRows(offset, np.argsort(key, kind="stable").astype(np.int32))


def reverse(graph: Graph) -> Graph:
    """Return the graph with every link turned round."""
    return Graph(graph.stop, graph.start, graph.metric, graph.into, graph.out)


def search_state(graph: Graph) -> SearchState:
    """Return the arrays that every search of a graph fills anew."""
    nodes = len(graph.out.offset) - 1
    return SearchState(
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
def search(
    goal: int, missing: int, limit: int, graph: Graph, inner: Mask, state: SearchState
) -> None:
    """Dijkstra backwards from ``goal`` through ``inner`` nodes, of which it finds the metric.

    It ends when ``missing`` of the wanted nodes are final, or all nodes within ``limit`` are. All
    nodes of one metric become final before any of them is gone on from: those that are the last
    wanted, as neighbours mostly are, need not be.
    """
    final, wanted, level, heap = state.final, state.wanted, state.level, state.heap
    _begin(goal, state)
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
        for index in range(reached if missing > 0 else 0):
            waiting = _go_on(level[index], graph, inner, state, waiting)


@hot_loop
def _begin(goal: int, state: SearchState) -> None:
    """Forget what the last search found."""
    for index in range(state.size[0]):
        state.metric[state.seen[index]] = UNKNOWN
        state.final[state.seen[index]] = False
    state.metric[goal] = 0
    state.seen[0] = goal
    state.size[0] = 1


@hot_loop
def _go_on(node: int, graph: Graph, inner: Mask, state: SearchState, waiting: int) -> int:
    """Reach the nodes before a node; return how many nodes wait to be gone on from."""
    metric, via, ways = state.metric, state.via, state.ways
    offset, into = graph.into
    for index in range(offset[node], offset[node + 1]):
        link = into[index]
        before = graph.start[link]
        step = metric[node] + graph.metric[link]
        if not inner[before] or step > metric[before]:
            continue
        if step == metric[before]:
            ways[before] += 1
            continue
        if metric[before] == UNKNOWN:
            state.seen[state.size[0]] = before
            state.size[0] += 1
        metric[before] = step
        via[before] = link
        ways[before] = 1
        waiting = push(state.heap, waiting, float(step), before)
    return waiting


@hot_loop
def put(link: int, share: float, links: LinkColumns) -> None:
    """Write a link behind all others."""
    links.link[links.used[0]] = link
    links.share[links.used[0]] = share
    links.used[0] += 1


@hot_loop
def count_nearer(node: int, metric: Ints, graph: Graph) -> int:
    """Count the links of a node whose far end is nearer by their length."""
    stop, length, (offset, item) = graph.stop, graph.metric, graph.out
    ways = 0
    for index in range(offset[node], offset[node + 1]):
        ways += metric[stop[item[index]]] + length[item[index]] == metric[node]
    return ways


@hot_loop
def nearer(node: int, number: int, metric: Ints, graph: Graph) -> int:
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
def choose_link(node: int, ends: Ends, metric: Ints, graph: Graph) -> int:
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
