"""Routes: the links that a message takes.

Messages take shortest paths, where a link of the scale-out fabric counts as much as a thousand
others: a message stays in its scale-up domain if possible, however many hops that takes. A path may
lead through other ranks, if that is shorter or the only path. Among equal next hops the topology's
routing policy (:mod:`simulator.topology`) chooses; without one, a hash of source, target and node
(static ECMP). From which switch the target is entered, among equal paths, is the sender's choice,
always by that hash: all equal-cost paths are used, and every run chooses the same.

A graph may name resources of its own (:mod:`topologies.families.from_file`): of paths with equal
hops the one over the faster resource is taken, even if a what-if changes their bandwidths.

Where a node is wired as a graph (:class:`~simulator.topology.Doors`) a PCIe link counts as much as
eight others: peers use NVLink or xGMI wherever it leads, also through other ranks (NCCL's order of
paths is NVL, NVB, and then PIX to SYS), and the path between nodes is by the NICs of the ranks.

Adaptive routing sends a part ``x`` of every message of a step on paths of least metric and the rest
on detours (:mod:`simulator.routing.detours`), with the largest ``x`` in [0, 1] that minimises the
load of the busiest link. A choice between the two by queue length (UGAL: A. Singh, "Load-Balanced
Routing in Interconnection Networks", Stanford 2005) tends to this in a steady state. On paths of
least metric, messages are divided in the same way between all of these equally and all in
proportion to their capacity. Other traffic is not considered.

So that a cable that a fault slowed is no worse than one that it cut, a part of every divided
message is routed as if slow cables between switches were cut.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from simulator.routing.paths import (
    THROUGH,
    Found,
    between_switches,
    capacity_of,
    check_nodes,
    found_paths,
    of_resource,
    survey_of,
)
from simulator.support.arrays import (
    Floats,
    Ints,
    Longs,
    Mask,
    entries_of,
    offsets_by_row,
    row_of_entries,
)
from simulator.support.errors import TopologyError
from simulator.topology import DIVIDING, Topology, with_links

_EQUAL = 1e-9
"""Relative difference below which loads are equal: sums of shares are rounded."""


class Routes(NamedTuple):
    """Links of messages in CSR form, and the part of a message on each of them.

    Message ``i`` takes ``link[offset[i]:offset[i + 1]]``, each at most once, and ``share`` of its
    bytes passes each link. A message on one path has shares of 1, with its links in the order of
    the path. The shares of a divided one are above 0 and sum to 1 over every cut between its ends
    (shares that come back over the cut are subtracted); its links are in no particular order.
    """

    offset: Longs
    link: Ints
    share: Floats

    @property
    def message(self) -> Longs:
        """The message of each entry of ``link`` and ``share``."""
        return row_of_entries(self.offset)

    def along(self, value: Floats) -> Floats:
        """Sum a value of links (s, hops) along the path of each message, shape ``(messages,)``.

        For a divided message it is the mean over its paths, weighted by bytes.
        """
        total: Floats = np.bincount(
            self.message, weights=value[self.link] * self.share, minlength=len(self.offset) - 1
        ).astype(np.float64)
        return total

    def loads(self, amount: Floats, links: int) -> Floats:
        """Return the load of messages on each of ``links`` links (B)."""
        sent = amount[self.message] * self.share
        return np.bincount(self.link, sent, links).astype(np.float64)


def is_uneven(network: Topology) -> bool:
    """Return whether adaptive switches have next hops of different capacity."""
    if network.routing.policy != "adaptive" or network.route is not None:
        return False
    cache = network.known_graph
    if "uneven" not in cache:
        capacity = capacity_of(network)[between_switches(network)]
        cache["uneven"] = bool(len(capacity)) and bool(capacity.min() < capacity.max())
    return bool(cache["uneven"])


def mixed(first: Found, second: Found, part: float) -> Found:
    """Divide messages between two sets of paths through the fabric: ``part`` on the first.

    The second path is listed after the first one, so that a link may occur twice.
    """
    if part == 1.0:
        return first
    sections = [paths.section for paths in (first, second)]
    through = [section == THROUGH for section in sections]
    message = np.concatenate([first.message, second.message[through[1]]])
    section = np.concatenate([sections[0], sections[1][through[1]]])
    link = np.concatenate([first.link, second.link[through[1]]])
    shares = np.where(through[0], part * first.share, first.share)
    share = np.concatenate([shares, (1 - part) * second.share[through[1]]])
    order = np.lexsort((section, message))
    offset = offsets_by_row(message, len(first.offset) - 1)
    return Found(offset, link[order], share[order], first.head, first.tail)


class _FabricPart(NamedTuple):
    """Messages with a path through the fabric that a detour may replace.

    ``message`` are their numbers, ``first`` and ``last`` the routers at both ends; ``entry`` marks
    the entries of all links on those paths.
    """

    message: Longs
    first: Longs
    last: Longs
    entry: Mask


def _fabric_part(network: Topology, paths: Found) -> _FabricPart:
    group = network.routing.group
    begin, end = paths.offset[:-1] + paths.head, paths.offset[1:] - paths.tail
    message = np.flatnonzero(begin < end)
    first = network.source[paths.link[begin[message]]].astype(np.int64)
    last = network.target[paths.link[end[message] - 1]].astype(np.int64)
    if group is not None:
        detours = (group[first] >= 0) & (group[last] >= 0) & (first != last)
        message, first, last = message[detours], first[detours], last[detours]
    detoured = np.zeros(len(paths.head), dtype=np.bool_)
    detoured[message] = True
    entry = detoured[paths.message] & (paths.section == THROUGH)
    return _FabricPart(message, first, last, entry)


def detoured_loads(paths: Found, amount: Floats, network: Topology) -> Floats:
    """Return the load on each link if all messages take detours (B)."""
    middle = _fabric_part(network, paths)
    outside = paths._replace(share=np.where(middle.entry, 0.0, paths.share))
    around = survey_of(network).detours.loads(middle.first, middle.last, amount[middle.message])
    return _loads(outside, amount, network) + around


def _loads(paths: Found, amount: Floats, network: Topology) -> Floats:
    return Routes(*paths[:3]).loads(amount, len(network))


def part_without_detours(network: Topology, paths: Found, amount: Floats) -> float:
    """Return the part of the messages that takes no detour."""
    if network.routing.policy == "valiant":
        return 0.0
    least = _loads(paths, amount, network)
    if not may_gain(network, least):
        return 1.0
    return part_of_loads(network, least, detoured_loads(paths, amount, network))


def may_gain(network: Topology, loads: Floats) -> bool:
    """Return whether the busiest link is one between routers: detours avoid no other link.

    Always true for Valiant's policy, which takes detours regardless.
    """
    if network.routing.policy == "valiant":
        return True
    group = network.routing.group
    if group is None:
        return False
    busy = busy_of(network, loads)
    between = (group[network.source] >= 0) & (group[network.target] >= 0)
    return bool(busy[between].max(initial=0.0) > busy[~between].max(initial=0.0))


def busy_of(network: Topology, loads: Floats) -> Floats:
    """Return how long each link of the fabric is busy, relative to the others."""
    busy: Floats = loads / capacity_of(network)
    busy[~of_resource(network, network.routing)] = 0.0
    return busy


def part_of_loads(network: Topology, least: Floats, detoured: Floats) -> float:
    """Return the part on paths of least metric that minimises the load of the busiest link."""
    if network.routing.policy == "valiant":
        return 0.0
    return best_part(busy_of(network, least), busy_of(network, detoured))


def part_alike(network: Topology, alike: Floats, uneven: Floats) -> float:
    """Return the part of messages that next hops share equally; the rest is divided by capacity.

    It is the least part that minimises the load of the busiest link: if it makes no difference to
    these messages, because one NIC limits them, other messages are spared the slow links.
    """
    return 1.0 - best_part(busy_of(network, uneven), busy_of(network, alike))


def best_part(least: Floats, detoured: Floats) -> float:
    """Return the greatest ``x`` in [0, 1] that minimises ``max(x * least + (1 - x) * detoured)``.

    Each link is a line in ``x``, so the maximum is convex and piecewise linear. One rising and one
    falling line are kept, and at their crossing the highest line replaces one of them, until the
    crossing is the minimum (a cutting-plane method in one variable, exact).

    Examples
    --------
    All of it on one link, or half as much on each of two others that carry 0.2 already:

    >>> best_part(np.array([1.0, 0.2, 0.2]), np.array([0.0, 0.7, 0.7])).__round__(3)
    0.467
    """
    slope = least - detoured

    def value(at: float) -> Floats:
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
        if float(value(at)[highest]) <= height * (1 + _EQUAL):
            return min(1.0, max(0.0, at))
        if slope[highest] > 0:
            rising = highest
        else:
            falling = highest
    return min(1.0, max(0.0, at))


def with_detours(network: Topology, paths: Found, part: float) -> Routes:
    """Divide messages: ``part`` on paths of least metric, the rest on detours."""
    if part == 1.0:
        return rows_of_links(len(paths.head), paths.message, paths.link, paths.share)
    middle = _fabric_part(network, paths)
    pairs = np.stack([middle.first, middle.last])
    distinct, pair = np.unique(pairs, axis=1, return_inverse=True)
    offset, link, share = survey_of(network).detours.between(*distinct)
    hops, at = np.diff(offset)[pair.ravel()], entries_of(offset, pair.ravel())
    message = paths.message
    shares = np.where(middle.entry, part * paths.share, paths.share)
    message = np.concatenate([message, np.repeat(middle.message, hops)])
    links = np.concatenate([paths.link, link[at]])
    shares = np.concatenate([shares, (1 - part) * share[at]])
    return rows_of_links(len(paths.head), message, links, shares)


def rows_of_links(count: int, message: Longs, link: Ints, share: Floats) -> Routes:
    """Return entries in CSR form; equal message and link are merged, zero shares dropped.

    The links of a message are in ascending order.
    """
    most = int(link.max(initial=0)) + 1
    key, which = np.unique(message * most + link, return_inverse=True)
    whole = np.bincount(which.ravel(), weights=share, minlength=len(key)).astype(np.float64)
    used = whole > 0
    message_of_key, links = np.divmod(key[used], most)
    return Routes(offsets_by_row(message_of_key, count), links.astype(np.int32), whole[used])


_MOST_CACHED, _MOST_CACHED_LINKS = 2048, 1 << 22
"""Answers cached per graph, and approximately the number of their links: 48 MiB."""
_MOST_CAPACITIES = 4
"""Most networks of one graph with other capacities whose adaptive routes are shared."""


def routes(network: Topology, source: Ints, target: Ints, amount: Floats | None = None) -> Routes:
    """Return the links of each message, and the part of it on each link.

    The last answers are cached with the topology: a call is routed on it once to choose a plan and
    once to execute it.

    ``amount`` is in bytes, or anything proportional to them; equal if not given. Only adaptive
    routing depends on the sizes of messages sent at once.

    Raises
    ------
    TopologyError
        If two nodes have no path, naming them, or a message names a node that is not there.
    """
    if len(source) == 1:  # whose links do not depend on its size
        single: dict[tuple[int, int], Routes] = network.known_graph.setdefault("messages", {})
        ends = int(source[0]), int(target[0])
        if ends not in single:
            check_nodes(network, source, target)
            ways = _divide_by_bandwidth_left(network, source, target)
            if len(ways.link) * len(single) > _MOST_CACHED_LINKS:
                single.clear()
            single[ends] = ways
        return single[ends]
    cache = network.known_routes
    adaptive = network.routing.policy == "adaptive"
    amounts = amount.tobytes() if amount is not None and adaptive else b""
    key = (source.tobytes(), target.tobytes(), amounts)
    if key not in cache:
        check_nodes(network, source, target)
        cache[key] = _routes(network, source, target, amount)
        cache.links += len(cache[key].link)
        while len(cache) > 1 and (len(cache) > _MOST_CACHED or cache.links > _MOST_CACHED_LINKS):
            cache.links -= len(cache.pop(next(iter(cache))).link)
    routed: Routes = cache[key]
    return routed


def share_routes(network: Topology, similar: Topology) -> None:
    """Let a network take the routes found on another of its graph, where they are equal.

    Only adaptive ones depend on bandwidths. They are equal to the last bit if the capacities that
    decide are the same, or the same times a power of two.
    """
    routing, similar_routing = network.routing, similar.routing
    sound = routing.slowed is similar_routing.slowed is None
    if not (sound and routing.flows == similar_routing.flows):
        return
    cached = _cached_on(similar)
    if routing.policy == "adaptive":
        survey = survey_of(similar)
        inner = survey.hub | survey.hubs.inner if survey.hub.any() else np.ones_like(survey.hub)
        ruled = of_resource(similar, similar.routing)
        decides = ruled | inner[similar.source] & inner[similar.target]
        now = capacity_of(network)[decides]
        kinds: list[tuple[Floats, _Cached]] = similar.known_graph.setdefault(
            "capacities", [(capacity_of(similar)[decides], cached)]
        )
        caches = [cache for before, cache in kinds if _in_proportion(now, before)]
        cached = caches[0] if caches else _cached_on(network)
        if not caches and len(kinds) < _MOST_CAPACITIES:
            kinds.append((now, cached))
    network.__dict__["known_routes"], network.known_graph["messages"] = cached


_Cached = tuple[dict[Any, Any], dict[Any, Any]]
"""Routes found on a network, and those of single messages: no reference to the network, which
holds much more."""


def _cached_on(network: Topology) -> _Cached:
    return network.known_routes, network.known_graph.setdefault("messages", {})


def _in_proportion(now: Floats, before: Floats) -> bool:
    """Whether the capacities that adaptive routing compares only differ by a power of two."""
    if np.array_equal(now, before) or np.isinf(before).any():
        return np.array_equal(now, before)
    ratio = now[:1] / before[:1]
    return bool(np.frexp(ratio)[0] == 0.5) and np.array_equal(now, ratio * before)


def _divide_by_bandwidth_left(network: Topology, source: Ints, target: Ints) -> Routes:
    """Divide a message over sound cables and cables slowed by faults.

    A cable with a fraction ``f`` of its bandwidth carries ``f`` of its load if sound; the rest
    takes the paths without it. So no cable is busy for longer than in one case or the other:
    whatever other messages there are (not known here), a slow cable costs all of them at most as
    much as the worse of a sound and a dead one. If the paths without slow cables are less busy, as
    with Valiant's detours or a single shortest path, only those are used.
    """
    if not without_slowed(network):
        return _routes(network, source, target, None)
    parts: list[tuple[float, Longs, Floats]] = []
    begin = 0.0
    for end, link, left in _networks_by_bandwidth_left(network):
        try:
            ways = _routes(left, source, target, None)
        except TopologyError:  # there is no other path
            if not parts:
                raise
            parts[-1] = (parts[-1][0] + 1.0 - begin, *parts[-1][1:])
            break
        parts.append((end - begin, link[ways.link], ways.share))
        begin = end
    mixture, around = _merge_parts(parts), _merge_parts([(1.0, *parts[-1][1:])])
    busy, busy_around = (
        busy_of(network, way.loads(np.ones(1), len(network))).max() for way in (mixture, around)
    )
    return around if begin == 1.0 and busy_around < busy * (1 - _EQUAL) else mixture


def _merge_parts(parts: list[tuple[float, Longs, Floats]]) -> Routes:
    """Merge the parts of one message: the weight of each, its links, and their shares."""
    share = np.concatenate([weight * share for weight, _, share in parts])
    links = np.concatenate([link for _, link, _ in parts]).astype(np.int32)
    return rows_of_links(1, np.zeros(len(links), dtype=np.int64), links, share)


def _networks_by_bandwidth_left(network: Topology) -> list[tuple[float, Longs, Topology]]:
    """Return networks without the cables whose fraction of bandwidth left is below a level.

    Each is a sound network with the level up to which it is used; ``link`` are the numbers of its
    links in the whole network.
    """
    cache = network.known_graph
    if "by what is left" not in cache:
        factor = network.routing.slowed
        slowed = between_switches(network)
        left = np.ones(len(network)) if factor is None else np.where(slowed, factor, 1.0)
        capacity = network.routing.capacity
        routing = replace(
            network.routing, capacity=None if capacity is None else capacity / left, slowed=None
        )
        sound = replace(network, bandwidth=network.bandwidth / left, routing=routing)
        ends = np.unique(left)
        cache["by what is left"] = [
            (float(end), np.flatnonzero(left >= end), with_links(sound, left >= end))
            for end in ends
        ]
    networks: list[tuple[float, Longs, Topology]] = cache["by what is left"]
    return networks


class Avoiding(NamedTuple):
    """A network without one slow cable, or without several of them.

    ``link`` are the numbers of its links in the whole network.
    """

    network: Topology
    link: Longs


def in_outage(network: Topology, number: int) -> Avoiding:
    """Return the network that is left in one of its outages, -1 for the whole network."""
    if number < 0:
        return Avoiding(network, np.arange(len(network)))
    cache: dict[int, Avoiding] = network.known_graph.setdefault("outages", {})
    if number not in cache:
        left, doors = network.outages[number]
        whole = replace(network, doors=doors, outages=())
        cache[number] = Avoiding(with_links(whole, left), np.flatnonzero(left))
    return cache[number]


def routes_in(network: Topology, number: int, ends: tuple[Ints, Ints], amount: Floats) -> Routes:
    """Return :func:`routes` in one of the network's outages, -1 for none."""
    if number < 0:
        return routes(network, *ends, amount)
    around, link = in_outage(network, number)
    ways = routes(around, *ends, amount)
    return ways._replace(link=link[ways.link].astype(np.int32))


_MOST_SINGLE = 3
"""Most slow cables of which each is avoided by itself, in all sets of them: 16 times the routes."""


def without_slowed(network: Topology) -> tuple[Avoiding, ...]:
    """Return the networks in which slow cables are avoided: without each of a few, or all.

    Where packets of a message take several paths it can always act as if a slow cable were cut, so
    that a slow one costs no more than that. This holds for blind spraying too: packets that the
    slow cable drops are sent again on another path. (htsim_uec: 4 MB from each of 128 hosts over a
    fat tree of which one uplink has a quarter of its bandwidth end after 425 us sprayed and 415 us
    adaptively, 381 and 376 us where none is slow.)
    """
    left = network.routing.slowed
    if left is None or network.routing.policy not in DIVIDING or network.route is not None:
        return ()
    cache = network.known_graph
    if "avoiding" not in cache:
        slowed = np.flatnonzero((left < 1) & between_switches(network))
        ends = np.sort([network.source[slowed], network.target[slowed]], axis=0)
        cables, cable = np.unique(ends, axis=1, return_inverse=True)
        count, cable = cables.shape[1], cable.ravel()
        sets = [slowed[cable == at] for at in range(count)] if count <= _MOST_SINGLE else [slowed]
        remaining = [np.setdiff1d(np.arange(len(network)), links) for links in sets]
        cache["avoiding"] = tuple(
            Avoiding(with_links(network, np.isin(np.arange(len(network)), link)), link)
            for link in remaining
        )
    avoiding: tuple[Avoiding, ...] = cache["avoiding"]
    return avoiding


def part_on_slowed(network: Topology, loads: Floats, avoiding: Floats) -> float:
    """Return the part of messages that uses slow cables by their bandwidth; the rest avoids them.

    It is the least part that minimises the load of the busiest cable between switches. NICs are not
    counted: other messages may need the capacity that they leave free.
    """
    between = between_switches(network)
    busy, busy_around = busy_of(network, loads)[between], busy_of(network, avoiding)[between]
    return 1.0 - best_part(busy_around, busy)


def _routes(network: Topology, source: Ints, target: Ints, amount: Floats | None) -> Routes:
    """Divide messages over flows, each with a hash of its own, or paths; and around slow cables."""
    sent, flows = np.ones(len(source)) if amount is None else amount, network.routing.flows
    if flows > 1:
        by_flow = [found_paths(network, source, target, flow=flow) for flow in range(flows)]
        message = np.concatenate([paths.message for paths in by_flow])
        link = np.concatenate([paths.link for paths in by_flow])
        share = np.concatenate([paths.share for paths in by_flow]) / flows
        ways = rows_of_links(len(source), message, link, share)
    else:
        paths, evenly, least = found_paths(network, source, target), 1.0, 1.0
        if is_uneven(network):
            uneven = found_paths(network, source, target, by_capacity=True)
            evenly = part_alike(network, *(_loads(way, sent, network) for way in (paths, uneven)))
            paths = mixed(paths, uneven, evenly)
        if network.routing.detours:
            least = part_without_detours(network, paths, sent)
        straight = evenly == least == 1.0
        ways = Routes(*paths[:3]) if straight else with_detours(network, paths, least)
    for avoiding in without_slowed(network):
        try:
            around = _routes(avoiding.network, source, target, sent)
        except TopologyError:  # there is no other path
            continue
        whole = around._replace(link=avoiding.link[around.link].astype(np.int32))
        part = part_on_slowed(network, *(way.loads(sent, len(network)) for way in (ways, whole)))
        ways = avoided(avoiding, ways, around, part)
    for column in ways:
        column.flags.writeable = False
    return ways


def avoided(avoiding: Avoiding, ways: Routes, around: Routes, part: float) -> Routes:
    """Mix paths of which a part uses a slow cable; the rest is ``around`` it."""
    message = np.concatenate([ways.message, around.message])
    links = np.concatenate([ways.link, avoiding.link[around.link].astype(np.int32)])
    shares = np.concatenate([part * ways.share, (1 - part) * around.share])
    return rows_of_links(len(ways.offset) - 1, message, links, shares)
