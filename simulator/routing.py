"""Which links a message takes.

Shortest path, where a link of the scale-out fabric counts as much as a thousand others: a message
stays in its scale-up domain if it can, however many hops that takes. Among equal next hops one is
chosen by a hash of source, target and place (static ECMP), so that equal-cost paths are all used
and every run chooses the same.
"""

import heapq

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.topology import SCALE_OUT, Topology

_SCALE_OUT_METRIC = 1000
"""More than the hops of any scale-up domain, so that leaving it never looks shorter."""


def routes(
    network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Links of each message from node ``source[i]`` to ``target[i]``, as rows ``(offset, link)``.

    Raises
    ------
    TopologyError
        If two nodes have no path, naming them.
    """
    order = np.argsort(target, kind="stable")
    metric = np.ones(len(network), dtype=np.int64)
    if SCALE_OUT in network.resources:
        metric[network.resource == network.resources.index(SCALE_OUT)] = _SCALE_OUT_METRIC
    into = np.argsort(network.target, kind="stable").astype(np.int32)
    into_offset = np.zeros(len(network.nodes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(network.target, minlength=len(network.nodes)), out=into_offset[1:])
    hops, flat, lost = _walk(
        (source[order].astype(np.int32), target[order].astype(np.int32)),
        (network.source, network.target, metric),
        network.out_links,
        (into_offset, into),
    )
    if lost >= 0:
        message = int(order[lost])
        ends = network.nodes[source[message]], network.nodes[target[message]]
        raise TopologyError(f"{network.name}: no path from {ends[0]} to {ends[1]}")
    return _in_order(order, hops, flat)


def _in_order(
    order: NDArray[np.int64], hops: NDArray[np.int64], flat: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Put rows that were found in ``order`` back into the callers' order."""
    begin = np.concatenate([[0], np.cumsum(hops)[:-1]]) if len(hops) else hops
    length = np.empty_like(hops)
    first = np.empty_like(hops)
    length[order], first[order] = hops, begin
    offset = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    place = np.arange(offset[-1]) - np.repeat(offset[:-1], length) + np.repeat(first, length)
    return offset, flat[place]


@njit(cache=True)
def _distances(goal, sources, links, into, found):  # type: ignore[no-untyped-def] # noqa: C901
    """Dijkstra backwards from ``goal`` until every source has its final distance.

    ``found`` is, per node: the distance (-1: none), a link that comes nearer, and how many do.
    """
    start, _, metric = links
    offset, inward = into
    distance, via, ways = found
    distance[:] = -1
    wanted = len(sources)
    waiting = np.zeros(len(distance), dtype=np.int32)
    for node in sources:
        waiting[node] += 1
    done = np.zeros(len(distance), dtype=np.bool_)
    heap = [(np.int64(0), np.int64(goal))]
    distance[goal] = 0
    while heap and wanted > 0:
        far, node = heapq.heappop(heap)
        if done[node]:
            continue
        done[node] = True
        wanted -= waiting[node]
        for place in range(offset[node], offset[node + 1]):
            link = inward[place]
            before = np.int64(start[link])
            step = far + metric[link]
            if distance[before] < 0 or step < distance[before]:
                distance[before] = step
                via[before] = link
                ways[before] = 1
                heapq.heappush(heap, (step, before))
            elif step == distance[before]:
                ways[before] += 1
    for node in range(len(distance)):
        if not done[node]:
            distance[node] = -1


@njit(cache=True)
def _hash(source, target, node):  # type: ignore[no-untyped-def]
    """Mix 64 bits (the finaliser of MurmurHash3, Appleby 2011, public domain constants)."""
    key = np.uint64(source) * np.uint64(0x9E3779B97F4A7C15)
    key ^= np.uint64(target) * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(node)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xFF51AFD7ED558CCD)
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xC4CEB9FE1A85EC53)
    return key ^ (key >> np.uint64(33))


@njit(cache=True)
def _next_link(node, ends, found, links, out):  # type: ignore[no-untyped-def]
    """Choose by hash among the links that come nearer by just their metric."""
    _, stop, metric = links
    distance, via, ways = found
    if ways[node] == 1:
        return via[node]
    offset, outward = out
    left = np.int64(_hash(ends[0], ends[1], node) % np.uint64(ways[node]))
    for place in range(offset[node], offset[node + 1]):
        link = outward[place]
        after = distance[stop[link]]
        if after >= 0 and after + metric[link] == distance[node]:
            if left == 0:
                return link
            left -= 1
    return via[node]


@njit(cache=True)
def _walk(messages, links, out, into):  # type: ignore[no-untyped-def]
    """Follow every message; messages are sorted by target.

    Returns hops per message, the links one after the other, and the first message without a path
    (-1: none).
    """
    source, target = messages
    nodes = len(into[0]) - 1
    distance = np.full(nodes, -1, dtype=np.int64)
    found = (distance, np.zeros(nodes, dtype=np.int32), np.zeros(nodes, dtype=np.int32))
    hops = np.zeros(len(source), dtype=np.int64)
    flat = np.empty(max(2 * len(source), 16), dtype=np.int32)
    used = 0
    first = 0
    while first < len(source):
        last = first
        while last < len(source) and target[last] == target[first]:
            last += 1
        _distances(target[first], source[first:last], links, into, found)
        for message in range(first, last):
            node = source[message]
            if distance[node] < 0:
                return hops, flat[:used], message
            while node != target[first]:
                link = _next_link(node, (source[message], target[first]), found, links, out)
                if used == len(flat):
                    flat = np.concatenate((flat, np.empty(len(flat), dtype=np.int32)))
                flat[used] = link
                used += 1
                hops[message] += 1
                node = links[1][link]
        first = last
    return hops, flat[:used], -1
