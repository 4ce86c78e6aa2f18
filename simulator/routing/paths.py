"""Paths of least metric of many messages: by the topology's own function, by NICs, or searched."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.routing.choice import BY_CAPACITY, HASH
from simulator.routing.graph import UNKNOWN
from simulator.routing.messages import across, gathered, inside, messages, no_links
from simulator.routing.survey import CHOICES, survey_of
from simulator.topology import Doors, Topology

THROUGH = 1
"""What :func:`section_of` calls the way through the fabric."""


class Found(NamedTuple):
    """Paths of least metric; those through the fabric have a head and a tail outside of it.

    ``offset``, ``link`` and ``share`` are those of :class:`Routes`; of the links of a message the
    first ``head`` and the last ``tail`` are not the fabric's, shape ``(messages,)``.
    """

    offset: NDArray[np.int64]
    link: NDArray[np.int32]
    share: NDArray[np.float64]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]


def check_nodes(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
    """Refuse messages that name a node that is not there."""
    count = len(network.nodes)
    for ends in (source, target):
        outside = ends[(ends < 0) | (ends >= count)]
        if len(outside):
            raise TopologyError(f"{network.name}: no node {outside[0]}: it has 0 to {count - 1}")


def found_paths(
    network: Topology,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    *,
    by_capacity: bool = False,
) -> Found:
    """Find paths of least metric, or those that the topology itself gives.

    A divided message takes them alike, or in proportion to what they can carry on.
    """
    if network.route is not None:
        return _follow(network, source, target)
    choice = BY_CAPACITY if by_capacity else CHOICES[network.routing.policy]
    if network.doors is not None:
        return _by_doors(network, network.doors, (source, target), choice)
    return _search(network, source, target, choice)


def _follow(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> Found:
    """Take the paths that the topology's own ``route`` gives."""
    index = {node: number for number, node in enumerate(network.nodes)}
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    number_of = {pair: number for number, pair in enumerate(ends)}
    offset, links = [0], []
    route = network.route or (lambda start, end: (start, end))
    for start, end in zip(source.tolist(), target.tolist(), strict=True):
        path = route(start, end)
        try:
            links += [number_of[index[a], index[b]] for a, b in pairwise(path)]
        except KeyError:
            way = " - ".join(map(str, path))
            raise TopologyError(f"{network.name}: no path {way}: a link is missing") from None
        offset.append(len(links))
    none = np.zeros(len(source), dtype=np.int64)
    return Found(
        np.array(offset, dtype=np.int64),
        np.array(links, dtype=np.int32),
        np.ones(len(links)),
        none,
        none,
    )


def _by_doors(
    network: Topology,
    doors: Doors,
    ends: tuple[NDArray[np.int32], NDArray[np.int32]],
    choice: int,
) -> Found:
    """Search the way of a message between nodes in three parts: to its NIC, on to the other's, in.

    A message with an end that is no rank is sent as it is.
    """
    source, target = ends
    far = (source < network.ranks) & (target < network.ranks)
    far[far] = doors.node[source[far]] != doors.node[target[far]]
    here, there = source[far], target[far]
    leaving = doors.nic[there if doors.by_target else here]
    out = doors.out[doors.node[here], leaving]
    into = doors.into[doors.node[there], doors.nic[there]]
    near, across = np.flatnonzero(~far), np.flatnonzero(far)
    offset, link, share, head, tail = _search(
        network,
        np.concatenate([source[near], here, out, into]).astype(np.int32),
        np.concatenate([target[near], out, into, there]).astype(np.int32),
        choice,
    )
    message = np.concatenate([near, across, across, across])
    order = np.argsort(message, kind="stable")
    hops, first = np.diff(offset)[order], offset[:-1][order]
    taken = np.arange(hops.sum()) + np.repeat(first - (np.cumsum(hops) - hops), hops)
    begins = np.zeros(len(source) + 1, dtype=np.int64)
    np.cumsum(np.bincount(message[order], hops, len(source)).astype(np.int64), out=begins[1:])
    count, many = len(near), len(across)
    parts = np.diff(offset)[count:].reshape(3, many)
    heads, tails = np.zeros(len(source), dtype=np.int64), np.zeros(len(source), dtype=np.int64)
    heads[near], tails[near] = head[:count], tail[:count]
    heads[across] = parts[0] + head[count + many : count + 2 * many]
    tails[across] = parts[2] + tail[count + many : count + 2 * many]
    return Found(begins, link[taken], share[taken], heads, tails)


def _search(
    network: Topology, source: NDArray[np.int32], target: NDArray[np.int32], choice: int
) -> Found:
    survey = survey_of(network)
    graph, rule = survey.graph, survey.rule._replace(choice=choice)
    inside_rule = rule if not network.routing.resource else rule._replace(choice=HASH)
    sent = messages(source, target, len(network.nodes))
    links = inside(sent, graph, survey.cells, inside_rule, no_links(sent, graph))
    if (sent.metric >= survey.least_by_hub).any():
        links = across(sent, graph, survey.hubs, rule, links)
    lost = np.flatnonzero(sent.metric == UNKNOWN)
    if len(lost):
        ends = network.nodes[source[lost[0]]], network.nodes[target[lost[0]]]
        raise TopologyError(f"{network.name}: no path from {ends[0]} to {ends[1]}")
    return Found(*gathered(sent, links), sent.head, sent.tail)


def section_of(found: Found) -> NDArray[np.int64]:
    """Say of each entry whether it belongs to the head (0), the way through (1) or the tail (2)."""
    message = message_of(found)
    at = np.arange(len(found.link)) - found.offset[message]
    left = found.offset[message + 1] - found.offset[message] - at
    behind = (at >= found.head[message]).astype(np.int64)
    return behind + (left <= found.tail[message])


def message_of(found: Found) -> NDArray[np.int64]:
    """Which message each entry belongs to."""
    return np.repeat(np.arange(len(found.head)), np.diff(found.offset))


def loads_of(found: Found, amount: NDArray[np.float64], network: Topology) -> NDArray[np.float64]:
    """Add up what messages put on each link (B)."""
    sent = amount[message_of(found)]
    loads: NDArray[np.float64] = np.bincount(
        found.link, weights=sent * found.share, minlength=len(network)
    ).astype(np.float64)
    return loads
