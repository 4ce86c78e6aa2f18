"""What many messages that are sent at once put on each link in all, and which of them is slowest.

The same as summing up :func:`simulator.routing.routes.routes`, without the list of all links: that
of an all-to-all on 4,096 ranks of a torus would be 200 million entries. Messages are taken a block
of goals at a time (:mod:`simulator.routing.least_paths`), so what it takes does not grow with their
number.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.routing.adaptive import Columns, mixed, with_detours
from simulator.routing.divided_totals import Parts, divided
from simulator.routing.least_paths import no_pairs, sums
from simulator.routing.paths import check_nodes, found_paths
from simulator.routing.routes import Routes
from simulator.routing.summing import by_hubs, through
from simulator.routing.survey import CHOICES, survey_of
from simulator.routing.traffic import Traffic
from simulator.topology import Topology

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Totals:
    """What messages come to.

    Parameters
    ----------
    load
        On each link, in the unit of the amounts, shape ``(links,)``.
    slowest
        Ends of the message of longest latency, the first of such.
    latency_of
        Its latency by resource (s), shape ``(resources,)``.
    passing
        How many messages are on the watched link, and numbers of the first few.
    parts
        How messages are divided.
    """

    load: Floats
    slowest: tuple[int, int]
    latency_of: Floats
    passing: tuple[int, list[int]]
    parts: Parts


def totals(network: Topology, traffic: Traffic, watched: int = -1) -> Totals | None:
    """Add up what messages put on each link.

    Parameters
    ----------
    network
        The topology.
    traffic
        Messages sent at once; at least one of them of something.
    watched
        A link of which the messages are counted, where each takes one path.

    Returns
    -------
    Totals or None
        None where messages have to be listed: where the topology gives the paths itself or has NICs
        for doors, where a choice by hash stands behind a division, and where there is no path.

    Raises
    ------
    TopologyError
        If a message names a node that is not there.
    """
    check_nodes(network, traffic.source, traffic.goal)
    if network.route is not None or network.doors is not None:
        return None
    if network.routing.policy in ("adaptive", "valiant"):
        return _divided(network, traffic)
    found = sums(len(network), watched)
    survey, choice = survey_of(network), CHOICES[network.routing.policy]
    if survey.hub.any():
        add = by_hubs(survey, found, choice, no_pairs())
    else:
        add = through(survey, found, choice, np.zeros(0))
    if not all(add(block) for block in traffic.blocks()):
        return None
    few = found.passing[1 : 1 + min(int(found.passing[0]), len(found.passing) - 1)]
    ends = traffic.ends(int(found.number[0]))
    whole = Parts(1.0, 1.0)
    latency_of = _latency_of(network, ends, whole)
    return Totals(found.load, ends, latency_of, (int(found.passing[0]), few.tolist()), whole)


def _divided(network: Topology, traffic: Traffic) -> Totals | None:
    found = divided(network, traffic)
    if found is None:
        return None
    ends = traffic.ends(found.slowest)
    return Totals(found.load, ends, _latency_of(network, ends, found.parts), (0, []), found.parts)


def _latency_of(network: Topology, ends: tuple[int, int], parts: Parts) -> Floats:
    """Latency of one message by resource (s), divided as it is among the others."""
    source, target = (np.array([end], dtype=np.int32) for end in ends)
    _, link, share = _divided_ways(network, source, target, parts)
    hop = network.latency[link] * share
    return np.bincount(network.resource[link], hop, len(network.resources)).astype(np.float64)


def each_way(network: Topology, traffic: Traffic, parts: Parts) -> Iterator[Routes]:
    """List the links of messages some at a time, divided as :func:`totals` says.

    Raises
    ------
    TopologyError
        If two nodes have no path.
    """
    for block in traffic.blocks():
        some = block.amount > 0
        goal = np.repeat(block.goal, np.diff(block.offset))[some]
        yield Routes(*_divided_ways(network, block.source[some], goal, parts))


def _divided_ways(
    network: Topology, source: NDArray[np.int32], target: NDArray[np.int32], parts: Parts
) -> Columns:
    found = found_paths(network, source, target)
    if parts.alike < 1.0:
        found = mixed(found, found_paths(network, source, target, by_capacity=True), parts.alike)
    if parts.alike == parts.least == 1.0:
        return found[:3]
    return with_detours(network, found, parts.least)
