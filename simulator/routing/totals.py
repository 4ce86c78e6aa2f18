"""Totals of many messages sent at once: the load on each link, and the slowest message.

The same as summing :func:`simulator.routing.routes.routes`, without the list of all links: that of
an all-to-all on 4,096 ranks of a torus would have 200 million entries. Messages are processed in
blocks of goals (:mod:`simulator.routing.messages`), so that memory does not grow with their number.

Where messages are divided over detours, or by capacity, the part on each kind of path is one number
for all messages of a step, and between the hubs at which they enter and leave the fabric all are
treated equally. So messages are gathered by first and last hub. Those pairs, a few thousand for
millions of messages, are then routed as :mod:`simulator.routing.routes` routes a message.

In an all-to-all of equal messages, two symmetries leave few messages to route:

* nodes with a single cable to a hub differ only by that hub, so messages are gathered by first and
  last hub without visiting them one by one;
* where automorphisms of the network take any node to any other (shifts of a torus), the load of
  messages to one node determines that to all: the load of a link is the mean over its orbit, times
  the number of nodes. Candidates are read off the numbers of node 0's neighbours; one counts only
  if it maps every link to one with the same numbers.

Neither applies where a hash of both ends chooses among several paths.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from simulator.routing.messages import Traffic, hub_pairs, listed
from simulator.routing.paths import (
    CHOICES,
    Survey,
    check_nodes,
    found_paths,
    sum_between,
    sum_links,
    survey_of,
)
from simulator.routing.routes import (
    Avoiding,
    Routes,
    avoided,
    is_uneven,
    may_gain,
    mixed,
    part_alike,
    part_of_loads,
    part_on_slowed,
    routes,
    with_detours,
    without_slowed,
)
from simulator.routing.tree import ALIKE, BY_CAPACITY, HASH, SAME, slowest, sums
from simulator.support.arrays import Floats, Ints, Longs, Mask
from simulator.support.limits import FORESEEN, Limits, limits
from simulator.topology import DIVIDING, Topology

_LISTED = 1 << 16
"""Messages whose links are listed at a time, where loads cannot be summed without a list."""
_MOST_HUBS = 2048
"""Most hubs of a network with a table of pairs of hubs: 24 B per pair, 96 MiB. An all-to-all of
equal messages needs no table, and twice as many hubs take half a GB."""


class Gathered(Struct, frozen=True, eq=False):
    """Messages gathered by where they enter and leave the fabric.

    Parameters
    ----------
    first, last
        Nodes, shape ``(pairs,)``.
    amount
        Total from one to the other, shape ``(pairs,)``.
    outside
        Longest latency outside the fabric of any message of the pair (s), shape ``(pairs,)``.
    number
        Number of that message, shape ``(pairs,)``.
    load
        Load on links outside the fabric, shape ``(links,)``.
    near
        Latency (s) and number of the slowest message that passes no hub; -1: there is none.
    images
        If only messages to one of equal nodes are gathered: the automorphisms that map them to
        messages to the others (:func:`simulator.routing.totals.automorphisms`).
    """

    first: Longs
    last: Longs
    amount: Floats
    outside: Floats
    number: Longs
    load: Floats
    near: tuple[float, int]
    images: tuple[Longs, ...] = ()

    def of_all(self, load: Floats, nodes: int) -> Floats:
        """Return the load of all messages, given that of the gathered ones."""
        return nodes * mean_of_orbits(load, self.images) if self.images else load


class Parts(Struct, frozen=True):
    """How messages are divided: ``alike`` over all paths of least metric, the rest by capacity.

    ``least`` of the whole is on paths of least metric, the rest on detours. Of each of ``around``,
    a part goes so and the rest avoids slow cables, divided in turn.
    """

    alike: float
    least: float
    around: tuple[tuple[Avoiding, float, "Parts"], ...] = ()


_WHOLE = Parts(1.0, 1.0)


def _gather(survey: Survey, traffic: Traffic) -> Gathered | None:
    """Gather messages by first and last hub, or by their ends if there are no hubs."""
    if not survey.hub.any():
        if survey.network.routing.resource:
            return None
        return _gather_to_one(survey, traffic) or _gather_none(survey, traffic)
    hubs = int(survey.hub.sum())
    even = _gather_even(survey, traffic) if hubs <= 2 * _MOST_HUBS else None
    if even is not None or hubs > _MOST_HUBS:
        return even
    total, pairs = (sums(len(survey.network)), slowest()), hub_pairs(survey.hub)
    rule = survey.rule._replace(choice=ALIKE)
    blocks = traffic.blocks(len(survey.hub))
    if not all(sum_links(sent, survey, rule, total, pairs) for sent in blocks):
        return None
    passing, near = total
    if near.number[0] >= 0 and not survey.network.routing.resource:
        return None  # messages that pass no hub are divided, too
    hub, some = np.flatnonzero(survey.hub), np.flatnonzero(pairs.number >= 0)
    first, last = np.divmod(some, len(hub))
    return Gathered(
        first=hub[first],
        last=hub[last],
        amount=pairs.amount[some],
        outside=pairs.outside[some],
        number=pairs.number[some],
        load=passing.load,
        near=(float(near.latency[0]), int(near.number[0])),
    )


def _gather_even(survey: Survey, traffic: Traffic) -> Gathered | None:
    """Gather an equal all-to-all by hub; None unless each node has a single cable, to a hub."""
    nodes = traffic.source
    cables = hub_of(survey, nodes) if traffic.is_even else None
    if cables is None:
        return None
    of_node, up, down = cables
    hub, first, members = np.unique(of_node, return_index=True, return_counts=True)
    second = np.full(len(survey.hub), -1)
    later = np.setdiff1d(np.arange(len(nodes)), first)[::-1]
    second[of_node[later]] = later
    sender, goal = np.meshgrid(np.arange(len(hub)), np.arange(len(hub)), indexing="ij")
    own = np.eye(len(hub), dtype=np.bool_)
    some = ~own | (members > 1)[:, None]
    to = np.where(own, second[hub][:, None], first[None, :])
    latency, load = survey.network.latency, np.zeros(len(survey.network))
    load[up] = load[down] = len(nodes) - 1
    outside = latency[up[first]][:, None] + latency[down[first]]
    number = first[:, None] * np.int64(len(nodes)) + to
    return Gathered(
        first=hub[sender[some]],
        last=hub[goal[some]],
        amount=(members[:, None] * np.where(own, members - 1, members))[some].astype(np.float64),
        outside=outside[some],
        number=number[some],
        load=load,
        near=(-1.0, -1),
    )


def _gather_to_one(survey: Survey, traffic: Traffic) -> Gathered | None:
    """Gather the messages to one node of an all-to-all of equal nodes; None if they differ."""
    network, nodes = survey.network, len(survey.network.nodes)
    group, resource = network.routing.group, network.routing.resource
    if not traffic.is_even or len(traffic.goal) < nodes or resource:
        return None
    if group is not None and len(np.unique(group)) not in (1, nodes):
        return None  # automorphisms may not map groups to groups
    images = automorphisms(network)
    if images is None:
        return None
    goal = int(traffic.goal[0])
    first = np.delete(traffic.source, 0).astype(np.int64)
    return Gathered(
        first=first,
        last=np.full(nodes - 1, goal, dtype=np.int64),
        amount=np.ones(nodes - 1),
        outside=np.zeros(nodes - 1),
        number=np.arange(1, nodes, dtype=np.int64) * nodes,
        load=np.zeros(len(network)),
        near=(-1.0, -1),
        images=images,
    )


def _gather_none(survey: Survey, traffic: Traffic) -> Gathered:
    """Return each message as a pair of its own."""
    blocks = list(traffic.blocks(len(survey.hub)))
    amount = np.concatenate([sent.amount for sent in blocks])
    some = amount > 0
    return Gathered(
        first=np.concatenate([sent.source for sent in blocks])[some].astype(np.int64),
        last=np.concatenate([sent.target for sent in blocks])[some].astype(np.int64),
        amount=amount[some],
        outside=np.zeros(int(some.sum())),
        number=np.concatenate([sent.number for sent in blocks])[some],
        load=np.zeros(len(survey.network)),
        near=(-1.0, -1),
    )


def _route_pairs(survey: Survey, gathered: Gathered, choice: int) -> tuple[Floats, Floats] | None:
    """Route from hub to hub: return the load on links, and the latency of each pair (s)."""
    total, rule = (sums(len(survey.network)), slowest(len(gathered.amount))), survey.rule
    if len(gathered.amount):
        ends = gathered.first.astype(np.int32), gathered.last.astype(np.int32)
        blocks = listed(*ends, gathered.amount).blocks(len(survey.hub))
        rule = rule._replace(choice=choice)
        if not all(sum_between(sent, survey, rule, total) for sent in blocks):
            return None
    return gathered.of_all(total[0].load, len(survey.hub)), total[1].took


def _has_detours(survey: Survey, gathered: Gathered) -> Mask | None:
    """Mark the pairs that have detours; None if the fabric has other pairs, too."""
    first, last, group = gathered.first, gathered.last, survey.network.routing.group
    if group is None:
        return None
    around = (group[first] >= 0) & (group[last] >= 0) & (first != last)
    return around if around[first != last].all() else None


_STEP_OF_DETOURS, _LONG = 35e-9, 10.0
"""Processor time for each pair of hubs and group that detours may pass (s); what is announced."""


def _with_detours(
    survey: Survey, gathered: Gathered, around: Mask, direct: tuple[Floats, Floats]
) -> tuple[float, Floats, Floats]:
    """Divide messages between paths of least metric and detours: return the part on the former.

    Also return the loads on links, and the latency of each pair (s); ``direct`` are both of these
    without detours.
    """
    network, (load, took) = survey.network, direct
    first, last = gathered.first, gathered.last
    some: Mask | slice = slice(None) if around.all() else around  # do not copy millions of pairs
    if _is_one_group_of_equals(network, gathered):
        # Each half of the detours over all N equal nodes is an all-to-all of (N - 1) / N of the
        # bytes: of N detours, one has this half empty. So each link has ``times`` its direct load,
        # and all pairs have the same mean latency.
        nodes = len(took) + 1
        times = 2 * (nodes - 1) / nodes
        detoured = gathered.load + times * (load - gathered.load)
        least = part_of_loads(network, load, detoured)
        longer = least * took + (1 - least) * 2 * took.sum() / nodes
        return least, least * load + (1 - least) * detoured, longer
    seconds = len(took) * (int(survey.detours.group.max()) + 1) * _STEP_OF_DETOURS
    if seconds > _LONG:
        what = f"summing the detours of all pairs of routers takes about {seconds:.2g} s of"
        FORESEEN.get()(f"{what} processor time: less on fewer ranks, or with the routing minimal")
    detours = survey.detours.loads(first[some], last[some], gathered.amount[some])
    detoured = gathered.load + gathered.of_all(detours, len(survey.hub))
    least = part_of_loads(network, load, detoured)
    if least == 1.0:
        return least, load, took
    longer = took.copy()
    longer[some] *= least
    longer[some] += (1 - least) * survey.detours.latencies(first[some], last[some])
    return least, least * load + (1 - least) * detoured, longer


def _is_one_group_of_equals(network: Topology, gathered: Gathered) -> bool:
    """Return whether detours pass all nodes, and automorphisms take any of them to any other."""
    group = network.routing.group
    return bool(gathered.images) and group is not None and bool((group == group[0]).all())


def _slowest(gathered: Gathered, took: Floats) -> int:
    """Return the number of the message of longest latency; among equals, the first."""
    latency = np.append(gathered.outside + took, gathered.near[0])
    number = np.append(gathered.number, gathered.near[1])
    return int(number[latency >= latency.max() * (1 - SAME)].min())


class Totals(Struct, frozen=True, eq=False):
    """Totals of messages sent at once.

    Parameters
    ----------
    load
        Load on each link, in the unit of the amounts, shape ``(links,)``.
    slowest
        Source and target of the message of longest latency; among equals, the first.
    latency_of
        Its latency by resource (s), shape ``(resources,)``.
    passing
        Number of messages on the watched link, and the numbers of the first few.
    parts
        How messages are divided.
    """

    load: Floats
    slowest: tuple[int, int]
    latency_of: Floats
    passing: tuple[int, list[int]]
    parts: Parts


def totals(network: Topology, traffic: Traffic, watched: int = -1) -> Totals | None:
    """Return the load of messages on each link, and the slowest message.

    Parameters
    ----------
    network
        The topology.
    traffic
        Messages sent at once; at least one of them with an amount above 0.
    watched
        A link whose messages are counted, where each message takes one path.

    Returns
    -------
    Totals or None
        None if messages must be listed: where the topology gives the paths itself or chooses NICs
        as doors, where messages have several flows, where a hash chooses behind a division, and
        where there is no path, or none without a slow cable.
    """
    check_nodes(network, traffic.source, traffic.goal)
    if network.route is not None or network.doors is not None:
        return None
    if network.routing.flows > 1:
        return None
    total = _totals_of_all(network, traffic, watched)
    for avoiding in without_slowed(network) if total is not None else ():
        around = totals(avoiding.network, traffic)
        if total is None or around is None:
            return None
        total = _avoiding(network, total, avoiding, around)
    return total


def _avoiding(network: Topology, total: Totals, avoiding: Avoiding, around: Totals) -> Totals:
    """Divide messages between these paths and paths around slow cables.

    The slowest message is the slower of the slowest on either.
    """
    whole = np.zeros(len(network))
    whole[avoiding.link] = around.load
    part = part_on_slowed(network, total.load, whole)
    parts = replace(total.parts, around=(*total.parts.around, (avoiding, part, around.parts)))
    load = part * total.load + (1 - part) * whole
    of_slowest = [
        _totals(network, load, ends, parts, total.passing)
        for ends in (total.slowest, around.slowest)
    ]
    return max(of_slowest, key=lambda summed: float(summed.latency_of.sum()))


def _totals_of_all(network: Topology, traffic: Traffic, watched: int) -> Totals | None:
    """Return totals of messages that avoid no slow cable."""
    if network.routing.policy in ("adaptive", "valiant"):
        return _totals_of_divided(network, traffic)
    if watched < 0 and traffic.is_even:
        ended = _totals_of_even(network, traffic)
        if ended is not None:
            return ended
    passing, noted = sums(len(network), watched), slowest()
    survey, choice = survey_of(network), CHOICES[network.routing.policy]
    if choice == HASH:
        _check_followed(network, traffic)
    rule, none = survey.rule._replace(choice=choice), hub_pairs(survey.hub[:0])
    blocks = traffic.blocks(len(survey.hub))
    if not all(sum_links(sent, survey, rule, (passing, noted), none) for sent in blocks):
        return None
    few = noted.passing[1 : 1 + min(int(noted.passing[0]), len(noted.passing) - 1)]
    ends, passed = traffic.ends(int(noted.number[0])), (int(noted.passing[0]), few.tolist())
    return _totals(network, passing.load, ends, _WHOLE, passed)


def link_loads(network: Topology, source: Ints, target: Ints, amount: Floats) -> Floats:
    """Return the load on each link of messages that are sent at once, shape ``(links,)``.

    Equals the sum of ``amount * share`` over :func:`simulator.routing.routes.routes`, also for
    millions of messages, as between all pairs of a large network.

    Raises
    ------
    TopologyError
        If two nodes have no path, naming them, or a message names a node that does not exist.
    LimitError
        If a hash routes so many messages one by one that following them takes minutes.
    """
    total = totals(network, listed(source, target, amount)) if len(source) > 1 else None
    if total is not None:
        return total.load
    load = np.zeros(len(network))
    # How messages are divided depends on the loads of all of them: these are one block.
    size = len(source) if network.routing.policy in DIVIDING else _LISTED
    for begin in range(0, len(source), max(size, 1)):
        some = slice(begin, begin + size)
        ways = routes(network, source[some], target[some], amount[some])
        load += ways.loads(amount[some], len(network))
    return load


_LINK_STEPS = 6
"""Steps of the limit of work per message and link that a hash follows, which takes 40 ns (6 to 7
steps); the usual limit is then ten seconds."""
_SAMPLE = 64
"""Messages from which the mean number of links of a message is estimated."""


def _check_followed(network: Topology, traffic: Traffic) -> None:
    """Refuse messages that a hash routes one by one if following them takes minutes."""
    many = int(traffic.offset[-1])
    work = int(_LINK_STEPS * many * _mean_links(network, traffic))
    seconds = work * 10 / Limits().work
    how_long = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} s"
    what = (
        f"following {many / 1e6:.0f} million messages that a hash sends one by one takes about"
        f" {how_long} and {work} steps (routing spray gathers them)"
    )
    limits().check("work", work, network.name, what)


_LISTED_BYTES = 50, 170
"""Bytes of memory for each link of a listed message, without and with paths that avoid slow cables;
each link also takes up to a microsecond of one core."""


def check_listed(network: Topology, traffic: Traffic) -> None:
    """Refuse to list messages (:func:`totals` is None) that take more memory than allowed."""
    many = int(traffic.offset[-1])
    each = _LISTED_BYTES[bool(without_slowed(network))]
    memory = int(each * many * _mean_links(network, traffic))
    what = (
        f"listing the links of {many / 1e6:.0f} million messages takes about {memory / 1e9:.1f} GB"
    )
    limits().check("memory", memory, network.name, what)


def _mean_links(network: Topology, traffic: Traffic) -> float:
    """Estimate the mean number of links of a message from a few paths of least metric."""
    senders = traffic.source[:: max(1, len(traffic.source) // _SAMPLE)][:_SAMPLE]
    senders = senders[senders != traffic.goal[-1]]
    if not len(senders):
        return 0.0
    goal = np.full(len(senders), traffic.goal[-1], np.int32)
    return len(found_paths(network, senders, goal).link) / len(senders)


def _totals_of_even(network: Topology, traffic: Traffic) -> Totals | None:
    """Return totals of an all-to-all of equal nodes; None if they differ, or a hash chooses."""
    survey = survey_of(network)
    hubs, alike = int(survey.hub.sum()), CHOICES[network.routing.policy] == ALIKE
    if not alike and hubs != 1:
        return None
    gathered = _gather_even(survey, traffic) if hubs else _gather_to_one(survey, traffic)
    routed = None if gathered is None else _route_pairs(survey, gathered, ALIKE)
    if gathered is None or routed is None:
        return None
    ends = traffic.ends(_slowest(gathered, routed[1]))
    return _totals(network, gathered.load + routed[0], ends, _WHOLE)


def _totals_of_divided(network: Topology, traffic: Traffic) -> Totals | None:
    """Return totals of messages that are routed adaptively, or by Valiant's detours.

    None if messages must be listed: where a hash chooses behind a division, where there are too
    many hubs, or no path.
    """
    survey = survey_of(network)
    gathered = _gather(survey, traffic)
    if gathered is None:
        return None
    evenly = _route_pairs(survey, gathered, ALIKE)
    by_capacity = _route_pairs(survey, gathered, BY_CAPACITY) if is_uneven(network) else evenly
    if evenly is None or by_capacity is None:
        return None
    part = 1.0
    if is_uneven(network):
        part = part_alike(network, gathered.load + evenly[0], gathered.load + by_capacity[0])
    load = gathered.load + part * evenly[0] + (1 - part) * by_capacity[0]
    took = part * evenly[1] + (1 - part) * by_capacity[1]
    least, around = 1.0, None
    if network.routing.detours and may_gain(network, load):
        detoured = _has_detours(survey, gathered)
        if detoured is None:
            return None
        if _is_one_group_of_equals(network, gathered):
            # Each half of the detours over all N equal nodes has the mean latency of all messages,
            # those of a node to itself included: N^2 of them put ``load`` on the links.
            once = np.bincount(network.resource, network.latency * load, len(network.resources))
            around = np.asarray(2 * once / len(network.nodes) ** 2, dtype=np.float64)
        least, load, took = _with_detours(survey, gathered, detoured, (load, took))
    ends = traffic.ends(_slowest(gathered, took))
    return _totals(network, load, ends, Parts(part, least), around=around)


def _totals(
    network: Topology,
    load: Floats,
    ends: tuple[int, int],
    parts: Parts,
    passing: tuple[int, list[int]] = (0, []),
    around: Floats | None = None,
) -> Totals:
    """Add to loads the latency of the slowest message by resource, divided like the others.

    ``around`` is the mean latency of its detours, where that is known without a search.
    """
    source, target = (np.array([end], dtype=np.int32) for end in ends)
    searched = parts if around is None else replace(parts, least=1.0)
    _, link, share = _divided_routes(network, source, target, searched)
    hop = network.latency[link] * share
    latency_of = np.bincount(network.resource[link], hop, len(network.resources)).astype(np.float64)
    if around is not None:
        latency_of = parts.least * latency_of + (1 - parts.least) * around
    return Totals(load, ends, latency_of, passing, parts)


def routes_in_blocks(network: Topology, traffic: Traffic, parts: Parts) -> Iterator[Routes]:
    """Iterate over the routes of messages, some goals at a time, divided as by :func:`totals`."""
    for sent in traffic.blocks(len(network.nodes)):
        some = sent.amount > 0
        ends = sent.source[some], sent.target[some]
        yield _divided_routes(network, *ends, parts)


def _divided_routes(network: Topology, source: Ints, target: Ints, parts: Parts) -> Routes:
    paths = found_paths(network, source, target)
    if parts.alike < 1.0:
        paths = mixed(paths, found_paths(network, source, target, by_capacity=True), parts.alike)
    straight = parts.alike == parts.least == 1.0
    ways = Routes(*paths[:3]) if straight else with_detours(network, paths, parts.least)
    for avoiding, part, within in parts.around:
        around = _divided_routes(avoiding.network, source, target, within)
        ways = avoided(avoiding, ways, around, part)
    return ways


_MOST_NEIGHBOURS = 16
"""Most neighbours of a node of a grid: two for each dimension."""


def hub_of(survey: Survey, nodes: Ints) -> tuple[Longs, Longs, Longs] | None:
    """Return the hub that each node is attached to by one cable, and the cable's two links.

    Links lead up, and down. None if a node has other cables, or if cables of one hub differ in
    latency.
    """
    network, graph = survey.network, survey.graph
    leaves, enters = graph.out.offset, graph.into.offset
    single = (leaves[nodes + 1] - leaves[nodes] == 1) & (enters[nodes + 1] - enters[nodes] == 1)
    if not single.all():
        return None
    up = graph.out.item[leaves[nodes]].astype(np.int64)
    down = graph.into.item[enters[nodes]].astype(np.int64)
    hub = network.target[up].astype(np.int64)
    if not survey.hub[hub].all() or (network.source[down] != hub).any():
        return None
    for link in (up, down):
        first = np.full(len(network.nodes), np.nan)
        first[hub[::-1]] = network.latency[link[::-1]]
        if (network.latency[link] != first[hub]).any():
            return None
    return hub, up, down


def automorphisms(network: Topology) -> tuple[Longs, ...] | None:
    """Return automorphisms of a network that together take any node to any other.

    Returns
    -------
    tuple of ndarray or None
        For each automorphism the image of each link, shape ``(links,)``; None if there are none.

    Examples
    --------
    >>> from simulator.topology import Link, topology
    >>> ends = [(rank, (rank + step) % 5) for rank in range(5) for step in (1, 4)]
    >>> ring = topology("ring", 5, [Link(a, b, 1e9, 0.0) for a, b in ends])
    >>> [len(images) for images in automorphisms(ring)]
    [10]
    """
    count = len(network.nodes)
    near = np.unique(network.target[network.source == 0]).astype(np.int64)
    if count != network.ranks or not 0 < len(near) <= _MOST_NEIGHBOURS or network.kind:
        return None
    # The numbers of each link that an automorphism preserves.
    owner = np.unique(network.latency_resource, return_inverse=True)[1].ravel()
    numbers = np.stack([network.bandwidth, network.latency, network.resource, owner])
    images: list[tuple[Longs, Longs]] = []
    for stride in near.tolist():
        for far in near[near >= stride].tolist():
            if far % stride or count % (far + stride):
                continue
            length = far // stride + 1  # the wrap-around neighbour is at (length - 1) strides
            place = np.arange(count) // stride % length
            turned = np.arange(count) + np.where(place < length - 1, stride, -far)
            links = _link_images(network, numbers, turned)
            if links is not None:
                images.append((turned, links))
    if _orbits(count, [turned for turned, _ in images]).any():
        return None
    return tuple(links for _, links in images)


def mean_of_orbits(load: Floats, images: tuple[Longs, ...]) -> Floats:
    """Return for each link the mean load over its orbit under the automorphisms."""
    orbit = _orbits(len(load), images)
    total, members = np.bincount(orbit, load), np.bincount(orbit)
    return np.asarray(total[orbit] / np.maximum(members, 1)[orbit], dtype=np.float64)


def _orbits(count: int, images: Sequence[Longs]) -> Longs:
    """Label each item with the least member of its orbit."""
    orbit, before = np.arange(count), None
    while before is None or (orbit != before).any():
        before = orbit
        for image in images:
            orbit = np.minimum(orbit, orbit[image])
    return orbit


def _link_images(network: Topology, numbers: Floats, turned: Longs) -> Longs | None:
    """Return the image of each link when nodes are permuted; None if one is not a link."""
    count = len(network.nodes)
    key = network.source.astype(np.int64) * count + network.target
    order = np.argsort(key, kind="stable")
    if (np.diff(key[order]) == 0).any():
        return None  # parallel cables
    to = turned[network.source] * count + turned[network.target]
    at = np.minimum(np.searchsorted(key[order], to), len(key) - 1)
    links = order[at]
    kept = (key[links] == to).all() and (numbers[:, links] == numbers).all()
    return links if kept else None
