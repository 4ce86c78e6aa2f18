"""Adaptive routing: how much of a message takes which way.

Adaptive routing sends the part ``x`` of every message of a step on paths of least metric and the
rest on detours (:mod:`simulator.routing.detours`), with the largest ``x`` in [0, 1] for which the
busiest link is least busy: what the choice between the two by the length of queues (UGAL: A. Singh,
"Load-Balanced Routing in Interconnection Networks", Stanford 2005) tends to in a steady state. The
paths of least metric are a mixture, found in the same way, of all of them alike and of all in
proportion to what they can carry on. Other traffic is not looked at.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.routing.paths import THROUGH, Found, loads_of, message_of, section_of
from simulator.routing.survey import between_switches, capacity_of, of_resource, survey_of
from simulator.topology import Topology

Columns = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]
"""``offset``, ``link`` and ``share``, as in :class:`simulator.routing.routes.Routes`."""

_ALIKE = 1e-9
"""Loads that differ by less, relatively, are taken for equal: sums of shares are rounded."""


def is_uneven(network: Topology) -> bool:
    """Whether adaptive switches have next hops that can carry more and such as can carry less."""
    if network.routing.policy != "adaptive" or network.route is not None:
        return False
    capacity = capacity_of(network)[between_switches(network)]
    return bool(len(capacity)) and bool(capacity.min() < capacity.max())


def mixed(found: Found, other: Found, part: float) -> Found:
    """Divide messages between two ways through the fabric, this part on the first.

    The other way stands behind the first one, so that it may name links again.
    """
    if part == 1.0:
        return found
    sections = [section_of(one) for one in (found, other)]
    through = [section == THROUGH for section in sections]
    message = np.concatenate([message_of(found), message_of(other)[through[1]]])
    section = np.concatenate([sections[0], sections[1][through[1]]])
    link = np.concatenate([found.link, other.link[through[1]]])
    shares = np.where(through[0], part * found.share, found.share)
    share = np.concatenate([shares, (1 - part) * other.share[through[1]]])
    order = np.lexsort((section, message))
    offset = np.zeros_like(found.offset)
    np.cumsum(np.bincount(message, minlength=len(offset) - 1), out=offset[1:])
    return Found(offset, link[order], share[order], found.head, found.tail)


class _Middle(NamedTuple):
    """Messages that have a way through the fabric which a detour may replace.

    ``message`` says which they are, ``first`` and ``last`` between which routers; ``entry`` marks
    the entries of all links that belong to that way.
    """

    message: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    entry: NDArray[np.bool_]


def _middle(network: Topology, found: Found) -> _Middle:
    group = network.routing.group
    begin, end = found.offset[:-1] + found.head, found.offset[1:] - found.tail
    message = np.flatnonzero(begin < end)
    first = network.source[found.link[begin[message]]].astype(np.int64)
    last = network.target[found.link[end[message] - 1]].astype(np.int64)
    if group is not None:
        kept = (group[first] >= 0) & (group[last] >= 0) & (first != last)
        message, first, last = message[kept], first[kept], last[kept]
    detoured = np.zeros(len(found.head), dtype=np.bool_)
    detoured[message] = True
    entry = detoured[message_of(found)] & (section_of(found) == THROUGH)
    return _Middle(message, first, last, entry)


def detoured_loads(
    found: Found, amount: NDArray[np.float64], network: Topology
) -> NDArray[np.float64]:
    """Add up what messages put on each link if all of them take detours (B)."""
    middle = _middle(network, found)
    outside = found._replace(share=np.where(middle.entry, 0.0, found.share))
    around = survey_of(network).detours.loads(middle.first, middle.last, amount[middle.message])
    loads: NDArray[np.float64] = loads_of(outside, amount, network) + around
    return loads


def part_without_detours(network: Topology, found: Found, amount: NDArray[np.float64]) -> float:
    """Say which part of the messages takes no detour."""
    if network.routing.policy == "valiant":
        return 0.0
    least = loads_of(found, amount, network)
    if not may_gain(network, least):
        return 1.0
    return part_of_loads(network, least, detoured_loads(found, amount, network))


def may_gain(network: Topology, loads: NDArray[np.float64]) -> bool:
    """Whether the busiest link is one between routers: no detour avoids any other.

    Valiant's detours are taken whether or not.
    """
    if network.routing.policy == "valiant":
        return True
    group = network.routing.group
    if group is None:
        return False
    busy = busy_of(network, loads)
    between = (group[network.source] >= 0) & (group[network.target] >= 0)
    return bool(busy[between].max(initial=0.0) > busy[~between].max(initial=0.0))


def busy_of(network: Topology, loads: NDArray[np.float64]) -> NDArray[np.float64]:
    """How long each link of the fabric is busy, in proportion to each other."""
    busy: NDArray[np.float64] = loads / capacity_of(network)
    busy[~of_resource(network, network.routing)] = 0.0
    return busy


def part_of_loads(
    network: Topology, least: NDArray[np.float64], detoured: NDArray[np.float64]
) -> float:
    """Find the part on paths of least metric for which the busiest link is least busy."""
    if network.routing.policy == "valiant":
        return 0.0
    return best_part(busy_of(network, least), busy_of(network, detoured))


def best_part(least: NDArray[np.float64], detoured: NDArray[np.float64]) -> float:
    """Find the greatest ``x`` in [0, 1] that minimises ``max(x * least + (1 - x) * detoured)``.

    Each link is a line in ``x``, so the maximum is convex and piecewise linear. Of the lines that
    rise and those that fall towards ``x = 1`` the highest are found in turn; they cross at the
    minimum in the end (a cutting-plane method in one variable, exact).

    Examples
    --------
    All of it on one link, or half as much on each of two others that carry 0.2 already:

    >>> best_part(np.array([1.0, 0.2, 0.2]), np.array([0.0, 0.7, 0.7])).__round__(3)
    0.467
    """
    slope = least - detoured

    def value(at: float) -> NDArray[np.float64]:
        return detoured + at * slope

    top = int(np.argmax(value(1.0)))
    if slope[top] <= 0:
        return 1.0
    rising, falling = top, int(np.argmax(value(0.0)))
    if slope[falling] >= 0:
        return 0.0
    for _ in range(len(least)):
        gap = slope[rising] - slope[falling]
        at = float((detoured[falling] - detoured[rising]) / gap)
        height = float(detoured[rising] + at * slope[rising])
        highest = int(np.argmax(value(at)))
        if float(value(at)[highest]) <= height * (1 + _ALIKE):
            return min(1.0, max(0.0, at))
        if slope[highest] > 0:
            rising = highest
        else:
            falling = highest
    return min(1.0, max(0.0, at))


def with_detours(network: Topology, found: Found, part: float) -> Columns:
    """Divide messages: this part on paths of least metric, the rest on detours."""
    if part == 1.0:
        return joined(len(found.head), message_of(found), found.link, found.share)
    middle = _middle(network, found)
    pairs = np.stack([middle.first, middle.last])
    distinct, pair = np.unique(pairs, axis=1, return_inverse=True)
    offset, link, share = survey_of(network).detours.between(*distinct)
    hops = np.diff(offset)[pair.ravel()]
    begin = np.cumsum(hops) - hops
    at = np.arange(hops.sum()) + np.repeat(offset[:-1][pair.ravel()] - begin, hops)
    message = message_of(found)
    shares = np.where(middle.entry, part * found.share, found.share)
    message = np.concatenate([message, np.repeat(middle.message, hops)])
    links = np.concatenate([found.link, link[at]])
    shares = np.concatenate([shares, (1 - part) * share[at]])
    return joined(len(found.head), message, links, shares)


def joined(
    count: int,
    message: NDArray[np.int64],
    link: NDArray[np.int32],
    share: NDArray[np.float64],
) -> Columns:
    """Put entries into CSR form, those of one message and link as one, those of nothing left out.

    The links of a message stand in order of their numbers.
    """
    most = int(link.max(initial=0)) + 1
    key, which = np.unique(message * most + link, return_inverse=True)
    whole = np.bincount(which.ravel(), weights=share, minlength=len(key)).astype(np.float64)
    kept = whole > 0
    of, links = np.divmod(key[kept], most)
    offset = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(of, minlength=count), out=offset[1:])
    return offset, links.astype(np.int32), whole[kept]
