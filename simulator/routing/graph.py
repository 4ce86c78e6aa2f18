"""Hot loops: a graph, its hubs, the search for least-metric paths in it, and the hash of ECMP.

A *hub* is a switch with many links (sometimes a thousand), of which a message uses two. So no
search expands a hub unless it must (:mod:`simulator.routing.messages`). What is near hubs, and
between them, is computed once for all senders.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Ints, Longs, Mask, offsets_by_row
from simulator.support.compiled import hot_loop
from simulator.support.heap import Heap, pop, push, room

UNKNOWN = 1 << 60
"""Metric of a node without a known path."""


class CsrRows(NamedTuple):
    """Rows in CSR form: row ``i`` is ``item[offset[i]:offset[i + 1]]``."""

    offset: Longs
    item: Ints


class Graph(NamedTuple):
    """Links with their metric (1 or more), grouped by the node they leave and the node they enter.

    Those that leave a node are sorted by the node they lead to.
    """

    start: Ints
    stop: Ints
    metric: Longs
    out: CsrRows
    into: CsrRows


class SearchState(NamedTuple):
    """State of a search, per node: its metric to the goal.

    ``wanted`` marks the nodes whose metric is asked for. A metric that is not ``final`` is an upper
    bound, and above all final ones. ``order[:size[1]]`` are the final nodes, nearest first, and
    ``seen[:size[0]]`` all nodes with a metric. ``heap`` is scratch.
    """

    metric: Longs
    final: Mask
    wanted: Mask
    seen: Ints
    order: Ints
    size: Longs
    heap: Heap


class Ends(NamedTuple):
    """Source and target of a message, and the seed of the ECMP hash."""

    source: int
    target: int
    seed: int


class LinkColumns(NamedTuple):
    """Links of many messages, one message after the other, of which ``used[0]`` are filled.

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
    """Return the graph with every link reversed."""
    return Graph(graph.stop, graph.start, graph.metric, graph.into, graph.out)


def search_state(graph: Graph) -> SearchState:
    """Return the arrays of a search, which every search of the graph reuses."""
    nodes = len(graph.out.offset) - 1
    return SearchState(
        metric=np.full(nodes, UNKNOWN, dtype=np.int64),
        final=np.zeros(nodes, dtype=np.bool_),
        wanted=np.zeros(nodes, dtype=np.bool_),
        seen=np.zeros(nodes, dtype=np.int32),
        order=np.zeros(nodes, dtype=np.int32),
        size=np.zeros(2, dtype=np.int64),
        heap=room(len(graph.start) + 1),  # each link is relaxed at most once
    )


@hot_loop
def search(
    goal: int, missing: int, limit: int, graph: Graph, inner: Mask, state: SearchState
) -> None:
    """Compute metrics to ``goal``: Dijkstra's algorithm backwards through ``inner`` nodes.

    It ends when ``missing`` of the wanted nodes are final, or all nodes within ``limit`` are. All
    nodes of one metric become final before any of them is expanded: often the last wanted nodes are
    among them (neighbours mostly), and then none of them has to be.
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
        # No node is expanded once the last wanted node is final.
        state.size[1] = reached
        for index in range(first, reached if missing > 0 else first):
            waiting = _relax_into(order[index], graph, inner, state, waiting)


@hot_loop
def begin_search(goal: int, state: SearchState) -> None:
    """Reset what the last search wrote, and start at ``goal``."""
    for index in range(state.size[0]):
        state.metric[state.seen[index]] = UNKNOWN
        state.final[state.seen[index]] = False
    state.metric[goal] = 0
    state.seen[0] = goal
    state.size[0], state.size[1] = 1, 0


@hot_loop
def _relax_into(node: int, graph: Graph, inner: Mask, state: SearchState, waiting: int) -> int:
    """Relax all links into a node; return the new number of entries of the heap."""
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
        # An older entry of the node stays in the heap; whoever takes it out sees that it is final.
        metric[before] = step
        waiting = push(state.heap, waiting, float(step), before)
    return waiting


@hot_loop
def put(link: int, share: float, links: LinkColumns) -> None:
    """Append a link."""
    links.link[links.used[0]] = link
    links.share[links.used[0]] = share
    links.used[0] += 1


@hot_loop
def count_nearer(node: int, metric: Longs, graph: Graph) -> int:
    """Count the links of a node that are on a least-metric path."""
    stop, length, (offset, item) = graph.stop, graph.metric, graph.out
    count = 0
    for index in range(offset[node], offset[node + 1]):
        count += metric[stop[item[index]]] + length[item[index]] == metric[node]
    return count


@hot_loop
def nearer(node: int, number: int, metric: Longs, graph: Graph) -> int:
    """Return the ``number``-th (from 0) link of a node on a least-metric path; -1: none."""
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
    """Choose by ECMP hash among the links of a node that are on a least-metric path."""
    ways = count_nearer(node, metric, graph)
    if ways < 2:
        return nearer(node, 0, metric, graph)
    hashed = ecmp_hash(ends.source, ends.target, node, ends.seed)
    return nearer(node, int(np.int64(hashed % np.uint64(ways))), metric, graph)


@hot_loop
def ecmp_hash(source: int, target: int, node: int, seed: int) -> int:
    """Return a hash of 64 bits (the finaliser of MurmurHash3, Appleby 2011, public domain)."""
    key = np.uint64(source) * np.uint64(0x9E3779B97F4A7C15)
    key ^= np.uint64(target) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(node)
    key ^= np.uint64(seed) * np.uint64(0xD6E8FEB86659FD93)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xFF51AFD7ED558CCD)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xC4CEB9FE1A85EC53)
    return int(key ^ (key >> np.uint64(33)))


class Cells(NamedTuple):
    """The connected parts of a network without its hubs: nodes that are no hub, part by node."""

    outside: Mask
    part: Longs


class Near(NamedTuple):
    """Nodes near each hub (a row per hub), or hubs near each node (a row per node), and metrics."""

    offset: Longs
    item: Ints
    metric: Longs


class Hubs(NamedTuple):
    """Which nodes are hubs, which nodes each hub reaches, and which hubs each node reaches.

    ``order`` is the order in which rows of ``beyond`` are searched from. ``inner`` marks the nodes
    that a path from hub to hub may pass.
    """

    hub: Mask
    inner: Mask
    beyond: Near
    after: Near
    order: Longs


def cells(graph: Graph, hub: Mask) -> Cells:
    """Split the network into its connected parts without hubs."""
    parts = Cells(~hub, np.arange(len(hub)))
    _label_parts(graph, parts)
    return parts


def hubs(graph: Graph, hub: Mask) -> Hubs:
    """Compute which nodes are near hubs, and which lie on useful paths between hubs.

    The latter are mostly not NICs and ranks, but include a rank that reaches a rail only through
    its neighbour.
    """
    numbers = np.flatnonzero(hub)
    back = Graph(graph.stop, graph.start, graph.metric, graph.into, graph.out)
    beyond, towards = _rows_near_hubs(numbers, back, hub), _rows_near_hubs(numbers, graph, hub)
    before, after = _by_node(beyond, numbers, len(hub)), _by_node(towards, numbers, len(hub))
    inner = hub.copy()
    _mark_between_hubs(graph, before, after, inner)
    # Hubs with distant nodes first: those of the fabric before those of domains.
    farthest = np.maximum.reduceat(beyond.metric, beyond.offset[:-1])
    return Hubs(hub, inner, beyond, after, np.argsort(-farthest, kind="stable"))


def _rows_near_hubs(numbers: Longs, graph: Graph, hub: Mask) -> Near:
    """Return the nodes that reach each hub without another: the hub first, then the others."""
    offset = np.zeros(len(numbers) + 1, dtype=np.int64)
    outside, state = ~hub, search_state(graph)
    item, metric = filled(
        lambda begin, item, metric: _fill_rows(
            begin, numbers, graph, outside, state, Near(offset, item, metric)
        ),
        len(numbers),
        (np.zeros(1024, dtype=np.int32), np.zeros(1024, dtype=np.int64)),
    )
    return Near(offset, item[: offset[-1]].copy(), metric[: offset[-1]].copy())


def _by_node(near: Near, numbers: Longs, nodes: int) -> Near:
    """Transpose rows per hub to rows per node."""
    offset, order = grouped(near.item, nodes)
    of = np.repeat(numbers, np.diff(near.offset)).astype(np.int32)
    return Near(offset, of[order], near.metric[order])


Arrays = tuple[NDArray[Any], ...]


def filled(fill: Callable[..., int], end: int, arrays: Arrays) -> Arrays:
    """Run a loop up to ``end``, doubling its arrays whenever they are full; return the last arrays.

    ``fill(begin, *arrays)`` does the work from ``begin`` on, and returns where it stopped because
    an array was full, or ``end``. What it has written is kept when it is called again.

    Examples
    --------
    >>> def squares(begin, array):
    ...     stop = min(10, len(array))
    ...     array[begin:stop] = np.arange(begin, stop) ** 2
    ...     return stop
    >>> filled(squares, 10, (np.zeros(3, dtype=int),))[0].tolist()
    [0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 0, 0, 0, 0, 0]
    """
    begin = fill(0, *arrays)
    while begin < end:
        arrays = tuple(np.append(array, np.zeros(len(array) + 1, array.dtype)) for array in arrays)
        begin = fill(begin, *arrays)
    return arrays


@hot_loop
def _label_parts(graph: Graph, cells: Cells) -> None:
    """Label the nodes of each connected part with its least node (union-find)."""
    outside, part = cells
    for link in range(len(graph.start)):
        start, stop = graph.start[link], graph.stop[link]
        if outside[start] and outside[stop]:
            # The least node of a part is its root: labels do not depend on the order of links.
            low, high = _root(start, part), _root(stop, part)
            part[max(low, high)] = min(low, high)
    for node in range(len(part)):
        part[node] = part[part[node]]


@hot_loop
def _root(node: int, part: Longs) -> int:
    """Return the root of a node: the least node known of its part. Shortens the path to it."""
    while part[node] != node:
        part[node] = part[part[node]]  # path halving
        node = part[node]
    return node


@hot_loop
def _fill_rows(
    begin: int, numbers: Longs, graph: Graph, outside: Mask, state: SearchState, near: Near
) -> int:
    """Fill the row of each hub from ``begin`` on; return the first row that does not fit."""
    for row in range(begin, len(numbers)):
        search(numbers[row], 1, UNKNOWN, graph, outside, state)
        # The first entry of ``seen`` is the hub itself, at metric 0.
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
def _mark_between_hubs(graph: Graph, before: Near, after: Near, inner: Mask) -> None:
    """Mark nodes on a path from hub to hub that is no longer than a direct link between them.

    ``before`` are the hubs that reach a node, ``after`` those it reaches. No other node is on a
    least-metric path between two hubs.
    """
    for node in range(len(inner)):
        if not inner[node]:
            inner[node] = _is_between_hubs(node, graph, before, after)


@hot_loop
def _is_between_hubs(node: int, graph: Graph, before: Near, after: Near) -> bool:
    for entry in range(before.offset[node], before.offset[node + 1]):
        for leaving in range(after.offset[node], after.offset[node + 1]):
            start, stop = before.item[entry], after.item[leaving]
            through = before.metric[entry] + after.metric[leaving]
            if start != stop and through <= _direct_metric(start, stop, graph):
                return True
    return False


@hot_loop
def _direct_metric(start: int, stop: int, graph: Graph) -> int:
    """Return the metric of the link between two nodes, ``UNKNOWN`` if there is none."""
    offset, item = graph.out
    # Links that leave a node are sorted by the node they lead to: binary search.
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
