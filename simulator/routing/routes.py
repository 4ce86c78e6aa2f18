"""Which links a message takes.

Shortest path, where a link of the scale-out fabric counts as much as a thousand others: a message
stays in its scale-up domain if it can, however many hops that takes. A path may lead through other
ranks, where that is shorter or the only way. Among equal next hops the topology's routing policy
(:mod:`simulator.routing.policy`) chooses; if it has none, a hash of source, target and node (static
ECMP). Which switch the target is entered from, among equal paths, is the sender's choice and always
by that hash: equal-cost paths are all used and every run chooses the same.

Adaptive routing sends the part ``x`` of every message of a step on paths of least metric and the
rest on detours (:mod:`simulator.routing.detours`), with the largest ``x`` in [0, 1] for which the
busiest link is least busy: what the choice between the two by the length of queues (UGAL: A. Singh,
"Load-Balanced Routing in Interconnection Networks", Stanford 2005) tends to in a steady state.
Other traffic is not looked at.

Where a node is wired as a graph (:class:`~simulator.topology.Doors`) a PCIe link counts as much as
eight others: peers use NVLink or xGMI wherever it leads, over other ranks too (NCCL's order of
paths is NVL, NVB, and then PIX to SYS), and the way between nodes is that by the ranks' NICs.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.routing.choice import ALIKE, BY_CAPACITY, DIGITS, HASH, TABLE, Rule
from simulator.routing.detours import Detours
from simulator.routing.graph import UNKNOWN, CsrRows, Graph, grouped
from simulator.routing.hubs import Cells, Hubs, cells, hubs
from simulator.routing.messages import across, gathered, inside, messages, no_links
from simulator.routing.policy import GROUPED, Routing
from simulator.topology import PCIE, SCALE_OUT, Doors, Topology

_SCALE_OUT_METRIC = 1000
"""More than the hops of any scale-up domain, so that leaving it never looks shorter."""
_PCIE_METRIC = 8
"""More than the hops over which a mesh of xGMI or NVLink joins the ranks of a node."""
_KEPT = 8
"""Answers kept per topology: steps of the schedules that a planner compares."""
_SMALL_DOMAIN = 16
"""Ranks of a node; larger domains (72 on one NVLink switch) gain by a search of their own."""
_BETWEEN_GROUPS = 3
"""A cable between groups counts as three inside: over one with a hop on each side, never over two
(Kim et al. 2008, section 4.1: minimal routing crosses at most one global channel)."""
_CHOICES = {
    "ecmp": HASH,
    "static": TABLE,
    "d_mod_k": DIGITS,
    "spray": ALIKE,
    "minimal": ALIKE,
    "valiant": ALIKE,
    "adaptive": BY_CAPACITY,
}
_BLOCK = 1 << 16
"""Messages of which loads are added up at once."""


class Routes(NamedTuple):
    """Links of messages in CSR form, and what part of a message each of them carries.

    Message ``i`` takes ``link[offset[i]:offset[i + 1]]``, each at most once; of its bytes
    ``share`` passes that link. A message on one path has shares of 1, and its links stand in the
    order of the path. The shares of a divided one are above 0 and add up to 1 over every cut
    between its ends, what comes back over it subtracted; where its links stand says nothing.
    """

    offset: NDArray[np.int64]
    link: NDArray[np.int32]
    share: NDArray[np.float64]

    @property
    def message(self) -> NDArray[np.int64]:
        """Which message each entry of ``link`` and ``share`` belongs to."""
        return np.repeat(np.arange(len(self.offset) - 1), np.diff(self.offset))

    def along(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up a value of links (s, hops) on the way of each message, shape ``(messages,)``.

        Of a divided message it is the mean over its paths, as its bytes are divided over them.
        """
        found: NDArray[np.float64] = np.bincount(
            self.message, weights=value[self.link] * self.share, minlength=len(self.offset) - 1
        ).astype(np.float64)
        return found


def routes(
    network: Topology,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    amount: NDArray[np.float64] | None = None,
) -> Routes:
    """Find the links of each message, and what part of it passes them.

    The last few answers are kept with the topology: a call is laid on it once to choose how it is
    carried out and once to be carried out.

    Parameters
    ----------
    network
        The topology.
    source, target
        Nodes of each message, shape ``(messages,)``.
    amount
        Bytes of each message, or anything in proportion to them, shape ``(messages,)``; alike if
        not given. Only adaptive routing asks how large the messages are that are sent at once.

    Returns
    -------
    Routes
        ``offset``, ``link`` and ``share``.

    Raises
    ------
    TopologyError
        If two nodes have no path, naming them, or a message names a node that is not there.
    """
    known = network.known_routes
    adaptive = network.routing.policy == "adaptive"
    amounts = amount.tobytes() if amount is not None and adaptive else b""
    asked = (source.tobytes(), target.tobytes(), amounts)
    if asked not in known:
        _check_nodes(network, source, target)
        if len(known) >= _KEPT:
            del known[next(iter(known))]
        known[asked] = _routes(network, source, target, amount)
    return known[asked]


def link_loads(
    network: Topology,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    amount: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Add up what messages that are sent at once put on each link, shape ``(links,)``.

    The same as the sum of ``amount * share`` over :func:`routes`, without the list of all links:
    for millions of messages, as between all pairs of a large network.

    Parameters
    ----------
    network
        The topology.
    source, target
        Nodes of each message, shape ``(messages,)``.
    amount
        Bytes of each, shape ``(messages,)``.

    Raises
    ------
    TopologyError
        If two nodes have no path, naming them, or a message names a node that is not there.
    """
    _check_nodes(network, source, target)
    least, detoured = np.zeros(len(network)), np.zeros(len(network))
    for begin in range(0, len(source), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        found = _found(network, source[block], target[block])
        least += _loads(found, amount[block], network)
        if network.routing.detours:
            detoured += _detoured(network, found, amount[block])
    if not network.routing.detours:
        return least
    part = _part(network, least, detoured)
    return part * least + (1 - part) * detoured


class _Found(NamedTuple):
    """Paths of least metric; those through the fabric have a head and a tail outside of it.

    ``offset``, ``link`` and ``share`` are those of :class:`Routes`; of the links of a message the
    first ``head`` and the last ``tail`` are not the fabric's, shape ``(messages,)``.
    """

    offset: NDArray[np.int64]
    link: NDArray[np.int32]
    share: NDArray[np.float64]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]


def _routes(
    network: Topology,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    amount: NDArray[np.float64] | None,
) -> Routes:
    found = _found(network, source, target)
    part = 1.0
    if network.routing.detours:
        sent = np.ones(len(source)) if amount is None else amount
        part = _part_of(network, found, sent)
    ways = Routes(*found[:3]) if part == 1.0 else _with_detours(network, found, part)
    for column in ways:
        column.flags.writeable = False
    return ways


def _found(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> _Found:
    """Find paths of least metric, or those that the topology itself gives."""
    if network.route is not None:
        return _follow(network, source, target)
    if network.doors is not None:
        return _by_doors(network, network.doors, source, target)
    return _search(network, source, target)


def _check_nodes(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
    count = len(network.nodes)
    for ends in (source, target):
        outside = ends[(ends < 0) | (ends >= count)]
        if len(outside):
            raise TopologyError(f"{network.name}: no node {outside[0]}: it has 0 to {count - 1}")


def _follow(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> _Found:
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
    return _Found(
        np.array(offset, dtype=np.int64),
        np.array(links, dtype=np.int32),
        np.ones(len(links)),
        none,
        none,
    )


def _by_doors(
    network: Topology, doors: Doors, source: NDArray[np.int32], target: NDArray[np.int32]
) -> _Found:
    """Search the way of a message between nodes in three parts: to its NIC, on to the other's, in.

    A message with an end that is no rank is sent as it is.
    """
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
    )
    message = np.concatenate([near, across, across, across])
    order = np.argsort(message, kind="stable")
    hops, first = np.diff(offset)[order], offset[:-1][order]
    taken = np.arange(hops.sum()) + np.repeat(first - (np.cumsum(hops) - hops), hops)
    ends = np.zeros(len(source) + 1, dtype=np.int64)
    np.cumsum(np.bincount(message[order], hops, len(source)).astype(np.int64), out=ends[1:])
    count, many = len(near), len(across)
    parts = np.diff(offset)[count:].reshape(3, many)
    heads, tails = np.zeros(len(source), dtype=np.int64), np.zeros(len(source), dtype=np.int64)
    heads[near], tails[near] = head[:count], tail[:count]
    heads[across] = parts[0] + head[count + many : count + 2 * many]
    tails[across] = parts[2] + tail[count + many : count + 2 * many]
    return _Found(ends, link[taken], share[taken], heads, tails)


def _search(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> _Found:
    survey = _survey(network)
    graph = survey.graph
    sent = messages(source, target, len(network.nodes))
    links = inside(sent, graph, survey.cells, survey.rule_inside, no_links(sent, graph))
    if (sent.metric >= survey.least_by_hub).any():
        links = across(sent, graph, survey.hubs, survey.rule, links)
    lost = np.flatnonzero(sent.metric == UNKNOWN)
    if len(lost):
        ends = network.nodes[source[lost[0]]], network.nodes[target[lost[0]]]
        raise TopologyError(f"{network.name}: no path from {ends[0]} to {ends[1]}")
    return _Found(*gathered(sent, links), sent.head, sent.tail)


def _loads(found: _Found, amount: NDArray[np.float64], network: Topology) -> NDArray[np.float64]:
    """Add up what messages put on each link (B)."""
    sent = amount[np.repeat(np.arange(len(amount)), np.diff(found.offset))]
    loads: NDArray[np.float64] = np.bincount(
        found.link, weights=sent * found.share, minlength=len(network)
    ).astype(np.float64)
    return loads


class _Middle(NamedTuple):
    """Messages that have a way through the fabric which a detour may replace.

    ``message`` says which they are, ``first`` and ``last`` between which routers; ``entry`` marks
    the entries of all links that belong to that way.
    """

    message: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    entry: NDArray[np.bool_]


def _middle(network: Topology, found: _Found) -> _Middle:
    group = network.routing.group
    begin, end = found.offset[:-1] + found.head, found.offset[1:] - found.tail
    message = np.flatnonzero(begin < end)
    first = network.source[found.link[begin[message]]].astype(np.int64)
    last = network.target[found.link[end[message] - 1]].astype(np.int64)
    if group is not None:
        kept = (group[first] >= 0) & (group[last] >= 0) & (first != last)
        message, first, last = message[kept], first[kept], last[kept]
    change = np.zeros(len(found.link) + 1, dtype=np.int64)
    np.add.at(change, begin[message], 1)
    np.add.at(change, end[message], -1)
    return _Middle(message, first, last, np.cumsum(change[:-1]) > 0)


def _detoured(network: Topology, found: _Found, amount: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up what messages put on each link if all of them take detours (B)."""
    middle = _middle(network, found)
    outside = found._replace(share=np.where(middle.entry, 0.0, found.share))
    around = _survey(network).detours.loads(middle.first, middle.last, amount[middle.message])
    loads: NDArray[np.float64] = _loads(outside, amount, network) + around
    return loads


def _part_of(network: Topology, found: _Found, amount: NDArray[np.float64]) -> float:
    """Say which part of the messages takes no detour."""
    if network.routing.policy == "valiant":
        return 0.0
    least = _loads(found, amount, network)
    if not _may_gain(network, least):
        return 1.0
    return _part(network, least, _detoured(network, found, amount))


def _may_gain(network: Topology, loads: NDArray[np.float64]) -> bool:
    """Whether the busiest link is one between routers: no detour avoids any other."""
    group = network.routing.group
    if group is None:
        return False
    busy = _busy(network, loads)
    between = (group[network.source] >= 0) & (group[network.target] >= 0)
    return bool(busy[between].max(initial=0.0) > busy[~between].max(initial=0.0))


def _busy(network: Topology, loads: NDArray[np.float64]) -> NDArray[np.float64]:
    """How long each link of the fabric is busy, in proportion to each other."""
    routing = network.routing
    capacity = network.bandwidth if routing.capacity is None else routing.capacity
    busy: NDArray[np.float64] = loads / capacity
    if routing.resource in network.resources:
        busy[network.resource != network.resources.index(routing.resource)] = 0.0
    return busy


def _part(network: Topology, least: NDArray[np.float64], detoured: NDArray[np.float64]) -> float:
    """Find the part on paths of least metric for which the busiest link is least busy."""
    if network.routing.policy == "valiant":
        return 0.0
    return best_part(_busy(network, least), _busy(network, detoured))


_ALIKE = 1e-9
"""Loads that differ by less, relatively, are taken for equal: sums of shares are rounded."""


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


def _with_detours(network: Topology, found: _Found, part: float) -> Routes:
    """Divide messages: this part on paths of least metric, the rest on detours."""
    middle = _middle(network, found)
    pairs = np.stack([middle.first, middle.last])
    distinct, pair = np.unique(pairs, axis=1, return_inverse=True)
    offset, link, share = _survey(network).detours.between(*distinct)
    hops = np.diff(offset)[pair.ravel()]
    begin = np.cumsum(hops) - hops
    at = np.arange(hops.sum()) + np.repeat(offset[:-1][pair.ravel()] - begin, hops)
    message = np.repeat(np.arange(len(found.head)), np.diff(found.offset))
    shares = np.where(middle.entry, part * found.share, found.share)
    message = np.concatenate([message, np.repeat(middle.message, hops)])
    links = np.concatenate([found.link, link[at]])
    shares = np.concatenate([shares, (1 - part) * share[at]])
    return _joined(len(found.head), message, links, shares)


def _joined(
    count: int,
    message: NDArray[np.int64],
    link: NDArray[np.int32],
    share: NDArray[np.float64],
) -> Routes:
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
    return Routes(offset, links.astype(np.int32), whole[kept])


@dataclass(eq=False)
class _Survey:
    """What all searches of one graph need; the way from hub to hub only some of them do."""

    network: Topology
    graph: Graph
    hub: NDArray[np.bool_]
    cells: Cells

    @property
    def least_by_hub(self) -> int:
        """Metric that no path through a hub between two other nodes can be below."""
        graph, hub = self.graph, self.hub
        enter, leave = graph.metric[hub[graph.stop]], graph.metric[hub[graph.start]]
        return int(enter.min() + leave.min()) if len(enter) else UNKNOWN + 1

    @cached_property
    def hubs(self) -> Hubs:
        """What is near hubs, and what lies between them."""
        return hubs(self.graph, self.hub)

    @cached_property
    def rule(self) -> Rule:
        """How a message goes from hub to hub."""
        return rule_of(self.network, self.hub)

    @cached_property
    def rule_inside(self) -> Rule:
        """How a message goes that meets no hub: as the policy says, if that is for all nodes."""
        if not self.network.routing.resource:
            return self.rule
        return self.rule._replace(choice=HASH)

    @cached_property
    def detours(self) -> Detours:
        """Paths over routers, or groups of them, in between."""
        group = self.network.routing.group
        if group is None:
            raise TopologyError(f"{self.network.name} has no groups of routers to go by")
        return Detours(self.graph, group.astype(np.int32), self.rule)


def _survey(network: Topology) -> _Survey:
    known = network.known_graph
    if "survey" not in known:
        graph, hub = graph_of(network), _hubs(network)
        known["survey"] = _Survey(network, graph, hub, cells(graph, hub))
    survey: _Survey = known["survey"]
    return survey


def rule_of(network: Topology, hub: NDArray[np.bool_]) -> Rule:
    """Compile the policy of a network."""
    routing = network.routing
    place, switch, ports = _port_numbers(network, hub)
    capacity = network.bandwidth if routing.capacity is None else routing.capacity
    return Rule(
        choice=_CHOICES[routing.policy],
        seed=routing.seed,
        ruled=_ruled(network, routing),
        capacity=np.minimum(capacity, _MOST_CAPACITY),
        place=place,
        switch=switch,
        ports=ports,
    )


_MOST_CAPACITY = 1e100
"""Of a link that nothing limits (B/s): its part of a message is a ratio to that of others."""


def _ruled(network: Topology, routing: Routing) -> NDArray[np.bool_]:
    """Mark the nodes where the policy holds: those all of whose links out are of its resource."""
    if not routing.resource:
        return np.ones(len(network.nodes), dtype=np.bool_)
    ruled = np.arange(len(network.nodes)) >= network.ranks
    ruled[network.source[~_of_resource(network, routing)]] = False
    return ruled


def _of_resource(network: Topology, routing: Routing) -> NDArray[np.bool_]:
    if not routing.resource:
        return np.ones(len(network), dtype=np.bool_)
    names = np.array(network.resources)
    return np.asarray(names[network.resource] == routing.resource)


def _port_numbers(
    network: Topology, hub: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Count the ports by which messages leave the fabric: place and switch by link, and the most.

    Of Zahavi's number of a host these are the digits: hosts are counted switch by switch, also
    where not all ports of a switch are in use, and where rails make the hosts of a switch
    strangers to each other.
    """
    order = network.out_links[1]
    leaving = hub[network.source] & ~hub[network.target] & _of_resource(network, network.routing)
    place, switch = np.zeros(len(network), dtype=np.int64), np.zeros(len(network), dtype=np.int64)
    link = order[leaving[order]]
    _, begin, of = np.unique(network.source[link], return_index=True, return_inverse=True)
    place[link] = np.arange(len(link)) - begin[of.ravel()]
    switch[link] = of.ravel()
    return place, switch, int(place.max(initial=0)) + 1


def link_metrics(network: Topology) -> NDArray[np.int64]:
    """Say what every link counts on a path."""
    metric = np.ones(len(network), dtype=np.int64)
    if SCALE_OUT in network.resources:
        metric[network.resource == network.resources.index(SCALE_OUT)] = _SCALE_OUT_METRIC
    if network.doors is not None and PCIE in network.resources:
        metric[network.resource == network.resources.index(PCIE)] = _PCIE_METRIC
    group = network.routing.group
    if group is not None and network.routing.policy in GROUPED:
        here, there = group[network.source], group[network.target]
        metric[(here >= 0) & (there >= 0) & (here != there)] *= _BETWEEN_GROUPS
    return metric


def graph_of(network: Topology) -> Graph:
    """Compile the links for searches."""
    metric = link_metrics(network)
    into = grouped(network.target, len(network.nodes))
    start, stop = np.ascontiguousarray(network.source), np.ascontiguousarray(network.target)
    return Graph(start, stop, metric, CsrRows(*network.out_links), into)


def _hubs(network: Topology) -> NDArray[np.bool_]:
    """Mark the switches to search from; which they are decides about speed, not about metrics.

    They have several links in and out, so the ends of a NIC are none, and join more than the
    ranks of one small domain: a search may as well pass through its switch.
    """
    nodes = len(network.nodes)
    rank = np.arange(nodes) < network.ranks
    out = np.bincount(network.source, minlength=nodes)
    into = np.bincount(network.target, minlength=nodes)
    from_ranks = np.bincount(network.target[rank[network.source]], minlength=nodes)
    to_ranks = np.bincount(network.source[rank[network.target]], minlength=nodes)
    domain = (out == to_ranks) & (into == from_ranks) & (out <= _SMALL_DOMAIN)
    hub: NDArray[np.bool_] = ~rank & ~domain & (out > 1) & (into > 1)
    return hub
