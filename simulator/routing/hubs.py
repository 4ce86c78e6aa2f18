"""Hubs of a graph, and what lies near and between them: found once, whoever sends.

A *hub* is a switch with many links, a thousand at times, of which a message needs two. So no
search goes on through a hub unless it must (:mod:`simulator.routing.messages`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.hot import hot_loop
from simulator.routing.graph import (
    UNKNOWN,
    Graph,
    Indices,
    Ints,
    Mask,
    SearchState,
    grouped,
    reverse,
    search,
    search_state,
)


class Cells(NamedTuple):
    """What a network falls apart into without its hubs: which nodes are none, the part of each."""

    outside: Mask
    part: Ints


class Near(NamedTuple):
    """Nodes near each hub (a row per hub), or hubs near each node (per node), and how near."""

    offset: Ints
    item: Indices
    metric: Ints


class Hubs(NamedTuple):
    """Which nodes are hubs, what each of them reaches, and which each node reaches.

    ``order`` are the rows of ``beyond`` as they are to be searched from; ``inner`` marks where a
    way from hub to hub may lead.
    """

    hub: Mask
    inner: Mask
    beyond: Near
    after: Near
    order: Ints


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
    beyond, towards = _near(numbers, reverse(graph), hub), _near(numbers, graph, hub)
    before, after = _by_node(beyond, numbers, len(hub)), _by_node(towards, numbers, len(hub))
    inner = hub.copy()
    _between(graph, before, after, inner)
    return Hubs(hub, inner, beyond, after, _farthest_first(beyond))


def _near(numbers: Ints, graph: Graph, hub: Mask) -> Near:
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


def _by_node(near: Near, numbers: Ints, nodes: int) -> Near:
    """Turn a row per hub into a row per node."""
    offset, order = grouped(near.item, nodes)
    of = np.repeat(numbers, np.diff(near.offset)).astype(np.int32)
    return Near(offset, of[order], near.metric[order])


def _farthest_first(beyond: Near) -> Ints:
    """Order hubs: those of the fabric before those of domains.

    What is found over the fabric bounds the search from a domain's switch, which few need.
    """
    farthest = np.maximum.reduceat(beyond.metric, beyond.offset[:-1])
    return np.argsort(-farthest, kind="stable")


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
            low, high = _root(start, part), _root(stop, part)
            part[max(low, high)] = min(low, high)
    for node in range(len(part)):
        part[node] = part[part[node]]


@hot_loop
def _root(node: int, part: Ints) -> int:
    """Find the least number known of a node's part, and shorten the way there."""
    while part[node] != node:
        part[node] = part[part[node]]
        node = part[node]
    return node


@hot_loop
def _reach(
    begin: int, numbers: Ints, graph: Graph, outside: Mask, state: SearchState, near: Near
) -> int:
    """Write the row of each hub from ``begin`` on; return that for which there is no room."""
    for row in range(begin, len(numbers)):
        search(numbers[row], 1, UNKNOWN, graph, outside, state)
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
