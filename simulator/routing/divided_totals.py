"""What messages come to where they are divided over detours, or by what paths can carry.

What part of a message takes which way is one number for all messages of a step, and behind the hubs
at which they enter and leave the fabric they are all alike. So messages are gathered by first and
last hub; those pairs, a few thousand of millions of messages, are then routed as
:mod:`simulator.routing.routes` routes a message.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.routing.adaptive import best_part, busy_of, is_uneven, may_gain, part_of_loads
from simulator.routing.choice import ALIKE, BY_CAPACITY
from simulator.routing.least_paths import hub_pairs, sums
from simulator.routing.summing import by_hubs, through
from simulator.routing.survey import Survey, survey_of
from simulator.routing.traffic import Traffic, listed
from simulator.topology import Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_MOST_HUBS = 2048
"""Of a network whose pairs of hubs are tabled: 24 B for each pair, 96 MiB."""
_WRITTEN = 1 << 22
"""Links of detours that are written at once, at the most."""
_SAME = 1e-12
"""Latencies that differ by less, relatively, are one."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """Messages gathered by where they enter and leave the fabric.

    Parameters
    ----------
    first, last
        Nodes, shape ``(pairs,)``.
    amount
        What goes from one to the other, shape ``(pairs,)``.
    outside
        Longest latency outside the fabric of any message of the pair (s), shape ``(pairs,)``.
    number
        Of that message, shape ``(pairs,)``.
    load
        What is on links outside the fabric, shape ``(links,)``.
    near
        Latency (s) and number of the slowest message that passes no hub; -1: there is none.
    """

    first: Ints
    last: Ints
    amount: Floats
    outside: Floats
    number: Ints
    load: Floats
    near: tuple[float, int]


@dataclass(frozen=True, slots=True)
class Parts:
    """How messages are divided: ``alike`` over all paths of least metric, the rest by capacity.

    ``least`` of it all is on paths of least metric, the rest on detours.
    """

    alike: float
    least: float


@dataclass(frozen=True, eq=False)
class Divided:
    """What messages come to: bytes on links, the number of the slowest one, and the parts."""

    load: Floats
    slowest: int
    parts: Parts


def divided(network: Topology, traffic: Traffic) -> Divided | None:
    """Add up messages that are routed adaptively, or by Valiant's detours.

    Parameters
    ----------
    network
        With such a policy.
    traffic
        Messages sent at once.

    Returns
    -------
    Divided or None
        None where messages have to be listed: where a choice by hash stands behind a division,
        where there are too many hubs, or no path.
    """
    survey = survey_of(network)
    gathered = _gathered(survey, traffic)
    if gathered is None:
        return None
    alike = _routed(survey, gathered, ALIKE)
    by_capacity = _routed(survey, gathered, BY_CAPACITY) if is_uneven(network) else alike
    if alike is None or by_capacity is None:
        return None
    part = 1.0
    if is_uneven(network):
        loads = (gathered.load + one[0] for one in (alike, by_capacity))
        part = best_part(*(busy_of(network, load) for load in loads))
    load = gathered.load + part * alike[0] + (1 - part) * by_capacity[0]
    took = part * alike[1] + (1 - part) * by_capacity[1]
    least = 1.0
    if network.routing.detours and may_gain(network, load):
        around = _around(survey, gathered)
        if around is None:
            return None
        least, load, took = _with_detours(survey, gathered, around, (load, took))
    return Divided(load, _slowest(gathered, took), Parts(part, least))


def _gathered(survey: Survey, traffic: Traffic) -> Gathered | None:
    """Gather messages by first and last hub, or by their ends where there are no hubs."""
    if not survey.hub.any():
        return None if survey.network.routing.resource else _listed(survey, traffic)
    if survey.hub.sum() > _MOST_HUBS:
        return None
    found, pairs = sums(len(survey.network), -1), hub_pairs(survey.hub)
    add = by_hubs(survey, found, ALIKE, pairs)
    if not all(add(block) for block in traffic.blocks()):
        return None
    if found.number[0] >= 0 and not survey.network.routing.resource:
        return None  # those inside a cell are divided, too
    hubs, some = np.flatnonzero(survey.hub), np.flatnonzero(pairs.number >= 0)
    first, last = np.divmod(some, len(hubs))
    return Gathered(
        first=hubs[first],
        last=hubs[last],
        amount=pairs.amount[some],
        outside=pairs.outside[some],
        number=pairs.number[some],
        load=found.load,
        near=(float(found.slowest[0]), int(found.number[0])),
    )


def _listed(survey: Survey, traffic: Traffic) -> Gathered:
    """Return all messages by themselves."""
    blocks = list(traffic.blocks())
    amount = np.concatenate([block.amount for block in blocks])
    some = amount > 0
    goals = [np.repeat(block.goal, np.diff(block.offset)) for block in blocks]
    return Gathered(
        first=np.concatenate([block.source for block in blocks])[some].astype(np.int64),
        last=np.concatenate(goals)[some].astype(np.int64),
        amount=amount[some],
        outside=np.zeros(int(some.sum())),
        number=np.concatenate([block.number for block in blocks])[some],
        load=np.zeros(len(survey.network)),
        near=(-1.0, -1),
    )


def _routed(survey: Survey, gathered: Gathered, choice: int) -> tuple[Floats, Floats] | None:
    """Route from hub to hub: bytes on links, and the latency of each pair (s)."""
    found, took = sums(len(survey.network), -1), np.zeros(len(gathered.amount))
    if not len(took):
        return found.load, took
    ends = gathered.first.astype(np.int32), gathered.last.astype(np.int32)
    add = through(survey, found, choice, took)
    if not all(add(block) for block in listed(*ends, gathered.amount).blocks()):
        return None
    return found.load, took


def _around(survey: Survey, gathered: Gathered) -> NDArray[np.bool_] | None:
    """Mark the pairs that detours lead round; None where the fabric has other pairs, too."""
    first, last, group = gathered.first, gathered.last, survey.network.routing.group
    if group is None:
        return None
    around = (group[first] >= 0) & (group[last] >= 0) & (first != last)
    return around if around[first != last].all() else None


def _with_detours(
    survey: Survey, gathered: Gathered, around: NDArray[np.bool_], direct: tuple[Floats, Floats]
) -> tuple[float, Floats, Floats]:
    """Divide messages between paths of least metric and detours: the part on the former.

    Besides, what is on links then, and the latency of each pair (s); ``direct`` is what they are
    without detours.
    """
    network, (load, took) = survey.network, direct
    first, last = gathered.first, gathered.last
    detours = survey.detours.loads(first[around], last[around], gathered.amount[around])
    detoured = gathered.load + detours
    least = part_of_loads(network, load, detoured)
    if least == 1.0:
        return least, load, took
    longer = took.copy()
    longer[around] *= least
    longer[around] += (1 - least) * _latency_around(survey, first[around], last[around])
    return least, least * load + (1 - least) * detoured, longer


def _latency_around(survey: Survey, first: Ints, last: Ints) -> Floats:
    """Mean latency of the detours of each pair of routers (s)."""
    latency = survey.network.latency
    found = np.zeros(len(first))
    order = np.argsort(first, kind="stable")  # few sources at a time
    size = max(1, _WRITTEN // len(latency))
    for begin in range(0, len(order), size):
        chosen = order[begin : begin + size]
        offset, link, share = survey.detours.between(first[chosen], last[chosen])
        message = np.repeat(np.arange(len(chosen)), np.diff(offset))
        found[chosen] = np.bincount(message, latency[link] * share, len(chosen))
    return found


def _slowest(gathered: Gathered, took: Floats) -> int:
    """Return the number of the message of longest latency, the first of such."""
    latency = np.append(gathered.outside + took, gathered.near[0])
    number = np.append(gathered.number, gathered.near[1])
    return int(number[latency >= latency.max() * (1 - _SAME)].min())
