"""Paths of least metric of many messages: by the topology's own function, by NICs, or searched.

What all searches of one network need is surveyed once: its graph, its hubs, and its routing policy
compiled. A link of the scale-out fabric counts as much as a thousand others; where a node is wired
as a graph a PCIe link counts as much as eight (:mod:`simulator.routing.routes` says why).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.routing.detours import Detours
from simulator.routing.graph import (
    UNKNOWN,
    Cells,
    CsrRows,
    Graph,
    Hubs,
    LinkColumns,
    cells,
    filled,
    grouped,
    hubs,
)
from simulator.routing.messages import (
    HubPairs,
    Messages,
    across,
    choose_hubs,
    edge,
    gathered,
    hub_pairs,
    inside,
    messages,
)
from simulator.routing.tree import (
    ALIKE,
    BY_CAPACITY,
    DIGITS,
    HASH,
    TABLE,
    Field,
    Ground,
    Passing,
    Rule,
    Slowest,
    ground,
    listing,
    slowest,
    tree,
)
from simulator.support.arrays import Floats, Ints, Longs, Mask, entries_of, offsets, row_of_entries
from simulator.support.errors import TopologyError
from simulator.topology import HOP, PCIE, SCALE_OUT, SCALE_OUT_HOPS, Doors, Routing, Topology

_PCIE_METRIC = 8
"""More than the hops over which a mesh of xGMI or NVLink joins the ranks of a node."""
_BETWEEN_GROUPS = 3
"""A cable between groups counts as three inside: over one with a hop on each side, never over two
(Kim et al. 2008, section 4.1: minimal routing crosses at most one global channel)."""
_SMALL_DOMAIN = 16
"""Ranks of a node; larger domains (72 on one NVLink switch) gain by a search of their own."""
_MOST_CAPACITY = 1e100
"""Of a link that nothing limits (B/s): its part of a message is a ratio to that of others."""
CHOICES = {
    "ecmp": HASH,
    "static": TABLE,
    "d_mod_k": DIGITS,
    "spray": ALIKE,
    "minimal": ALIKE,
    "valiant": ALIKE,
    "adaptive": ALIKE,
}
"""How switches choose under each policy; adaptive ones may divide by capacity besides."""


@dataclass(eq=False)
class Survey:
    """What all searches of one graph need; the way from hub to hub only some of them do."""

    network: Topology
    graph: Graph
    hub: Mask
    cells: Cells

    @cached_property
    def least_by_hub(self) -> int:
        """Metric that no path through a hub between two other nodes can be below."""
        graph, hub = self.graph, self.hub
        enter, leave = graph.metric[hub[graph.stop]], graph.metric[hub[graph.start]]
        return int(enter.min() + leave.min()) if len(enter) and len(leave) else UNKNOWN

    @cached_property
    def hubs(self) -> Hubs:
        """What is near hubs, and what lies between them."""
        return hubs(self.graph, self.hub)

    @cached_property
    def domains(self) -> Ground:
        """Where a message leads that meets no hub."""
        return ground(self.graph, self.cells.outside)

    @cached_property
    def fabric(self) -> Ground:
        """Where a message leads from hub to hub."""
        return ground(self.graph, self.hubs.inner)

    @cached_property
    def rule(self) -> Rule:
        """How a message goes from hub to hub."""
        return rule_of(self.network, self.hub)

    @cached_property
    def detours(self) -> Detours:
        """Paths over routers, or groups of them, in between."""
        group = self.network.routing.group
        if group is None:
            raise TopologyError(f"{self.network.name} has no groups of routers for detours")
        return Detours(self.graph, group.astype(np.int32), self.rule)


def survey_of(network: Topology) -> Survey:
    """Survey a network, once."""
    cache = network.known_graph
    if "survey" not in cache:
        graph, hub = graph_of(network), _hub_switches(network)
        cache["survey"] = Survey(network, graph, hub, cells(graph, hub))
    survey: Survey = cache["survey"]
    return survey


def rule_of(network: Topology, hub: Mask) -> Rule:
    """Compile the policy of a network."""
    routing = network.routing
    place, switch, ports = _port_numbers(network, hub)
    return Rule(
        choice=CHOICES[routing.policy],
        seed=routing.seed,
        ruled=_ruled(network, routing),
        capacity=np.minimum(capacity_of(network), _MOST_CAPACITY),
        place=place,
        switch=switch,
        ports=ports,
        senders=_senders(network, hub),
    )


def _senders(network: Topology, hub: Mask) -> Mask:
    """Mark hubs that no hub leads to: the sending sides of NICs with several ports."""
    senders = hub.copy()
    senders[network.target[hub[network.source]]] = False
    return senders


def _ruled(network: Topology, routing: Routing) -> Mask:
    """Mark the nodes where the policy holds: those all of whose links out are of its resource."""
    if not routing.resource:
        return np.ones(len(network.nodes), dtype=np.bool_)
    ruled = np.arange(len(network.nodes)) >= network.ranks
    ruled[network.source[~of_resource(network, routing)]] = False
    return ruled


def of_resource(network: Topology, routing: Routing) -> Mask:
    """Mark the links of the resource that a policy is for."""
    if not routing.resource:
        return np.ones(len(network), dtype=np.bool_)
    names = np.array(network.resources)
    return np.asarray(names[network.resource] == routing.resource)


def between_switches(network: Topology) -> Mask:
    """Mark the links of the fabric that join its switches, or ranks that are their own."""
    survey = survey_of(network)
    inner = survey.hub if survey.hub.any() else np.ones_like(survey.hub)
    return inner[network.source] & inner[network.target] & of_resource(network, network.routing)


def policy_of(network: Topology) -> str:
    """Name how a network routes: its policy, unless it has paths of its own, or no two switches."""
    if network.route is not None:
        return "its own"
    return network.routing.policy if between_switches(network).any() else "single paths"


def capacity_of(network: Topology) -> Floats:
    """Return what adaptive switches think that links can carry."""
    capacity = network.routing.capacity
    return network.bandwidth if capacity is None else capacity


def _port_numbers(network: Topology, hub: Mask) -> tuple[Longs, Longs, int]:
    """Count the ports by which messages leave the fabric: place and switch by link, and the most.

    Of Zahavi's number of a host these are the digits: hosts are counted switch by switch, also
    where not all ports of a switch are in use, and where rails make the hosts of a switch
    strangers to each other.
    """
    order = network.out_links[1]
    leaving = hub[network.source] & ~hub[network.target] & of_resource(network, network.routing)
    place, switch = np.zeros(len(network), dtype=np.int64), np.zeros(len(network), dtype=np.int64)
    link = order[leaving[order]]
    _, begin, of = np.unique(network.source[link], return_index=True, return_inverse=True)
    place[link] = np.arange(len(link)) - begin[of.ravel()]
    switch[link] = of.ravel()
    return place, switch, int(place.max(initial=0)) + 1


def link_metrics(network: Topology) -> Longs:
    """Say what every link counts on a path."""
    metric = np.ones(len(network), dtype=np.int64)
    if SCALE_OUT in network.resources:
        metric[network.resource == network.resources.index(SCALE_OUT)] = SCALE_OUT_HOPS
    if network.doors is not None and PCIE in network.resources:
        metric[network.resource == network.resources.index(PCIE)] = _PCIE_METRIC
    if network.metric is not None:
        metric = np.where(network.metric > 0, network.metric, HOP * metric)
    group = network.routing.group
    if group is not None:
        group_of_source, group_of_target = group[network.source], group[network.target]
        metric[
            (group_of_source >= 0) & (group_of_target >= 0) & (group_of_source != group_of_target)
        ] *= _BETWEEN_GROUPS
    return metric


def graph_of(network: Topology) -> Graph:
    """Compile the links for searches."""
    metric = link_metrics(network)
    into = grouped(network.target, len(network.nodes))
    start, stop = np.ascontiguousarray(network.source), np.ascontiguousarray(network.target)
    return Graph(start, stop, metric, CsrRows(*network.out_links), into)


def _hub_switches(network: Topology) -> Mask:
    """Mark the switches to search from; which they are decides about speed, not about metrics.

    They have several links in and out, so the ends of a NIC are none, and join more than the
    ranks of one small domain: a search may as well pass through its switch. A NIC with several
    ports is one, whose choice among them is the fabric's.
    """
    nodes = len(network.nodes)
    rank = np.arange(nodes) < network.ranks
    out = np.bincount(network.source, minlength=nodes)
    into = np.bincount(network.target, minlength=nodes)
    from_ranks = np.bincount(network.target[rank[network.source]], minlength=nodes)
    to_ranks = np.bincount(network.source[rank[network.target]], minlength=nodes)
    domain = (out == to_ranks) & (into == from_ranks) & (out <= _SMALL_DOMAIN)
    hub: Mask = ~rank & ~domain & (out > 1) & (into > 1)
    if network.routing.resource:
        # Sides of NICs: several links of the fabric lead from one to hubs, or from hubs to it.
        own = of_resource(network, network.routing)
        sends = np.bincount(network.source[own & hub[network.target]], minlength=nodes)
        receives = np.bincount(network.target[own & hub[network.source]], minlength=nodes)
        hub |= ~rank & (((sends == out) & (out > 1)) | ((receives == into) & (into > 1)))
    return hub


THROUGH = 1
"""What :func:`section_of` calls the way through the fabric."""


class Found(NamedTuple):
    """Paths of least metric; those through the fabric have a head and a tail outside of it.

    ``offset``, ``link`` and ``share`` are those of :class:`Routes`; of the links of a message the
    first ``head`` and the last ``tail`` are not the fabric's, shape ``(messages,)``.
    """

    offset: Longs
    link: Ints
    share: Floats
    head: Longs
    tail: Longs


def check_nodes(network: Topology, source: Ints, target: Ints) -> None:
    """Refuse messages that name a node that is not there."""
    count = len(network.nodes)
    for ends in (source, target):
        outside = ends[(ends < 0) | (ends >= count)]
        if len(outside):
            raise TopologyError(f"{network.name}: no node {outside[0]}: it has 0 to {count - 1}")


def found_paths(
    network: Topology, source: Ints, target: Ints, *, by_capacity: bool = False, flow: int = 0
) -> Found:
    """Find paths of least metric, or those that the topology itself gives.

    A divided message takes them alike, or in proportion to what they can carry on. Of a ``flow``
    other than the first the hash has another seed.
    """
    if network.route is not None:
        return _follow(network, source, target)
    choice = BY_CAPACITY if by_capacity else CHOICES[network.routing.policy]
    rule = survey_of(network).rule
    number = flow if network.routing.flows > 1 else -1
    rule = rule._replace(choice=choice, seed=rule.seed + flow * _NEXT_FLOW, flow=number)
    if network.doors is not None:
        return _by_doors(network, network.doors, (source, target), rule)
    return _search(network, source, target, rule)


_NEXT_FLOW = 1_000_003
"""Between the seeds of two flows of a message: beyond those that anybody draws one by one."""


def _follow(network: Topology, source: Ints, target: Ints) -> Found:
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


def _by_doors(network: Topology, doors: Doors, ends: tuple[Ints, Ints], rule: Rule) -> Found:
    """Search the way of a message between nodes in three parts: to its NIC, on to the other's, in.

    A message with an end that is not a rank is sent as it is.
    """
    source, target = ends
    far = (source < network.ranks) & (target < network.ranks)
    far[far] = doors.node[source[far]] != doors.node[target[far]]
    sender, receiver = source[far], target[far]
    leaving = doors.nic[receiver if doors.by_target else sender]
    out = doors.out[doors.node[sender], leaving]
    into = doors.into[doors.node[receiver], doors.nic[receiver]]
    near, across = np.flatnonzero(~far), np.flatnonzero(far)
    offset, link, share, head, tail = _search(
        network,
        np.concatenate([source[near], sender, out, into]).astype(np.int32),
        np.concatenate([target[near], out, into, receiver]).astype(np.int32),
        rule,
    )
    message = np.concatenate([near, across, across, across])
    order = np.argsort(message, kind="stable")
    hops, entry = np.diff(offset)[order], entries_of(offset, order)
    begins = offsets(np.bincount(message[order], hops, len(source)).astype(np.int64))
    count, many = len(near), len(across)
    parts = np.diff(offset)[count:].reshape(3, many)
    heads, tails = np.zeros(len(source), dtype=np.int64), np.zeros(len(source), dtype=np.int64)
    heads[near], tails[near] = head[:count], tail[:count]
    heads[across] = parts[0] + head[count + many : count + 2 * many]
    tails[across] = parts[2] + tail[count + many : count + 2 * many]
    return Found(begins, link[entry], share[entry], heads, tails)


def _search(network: Topology, source: Ints, target: Ints, rule: Rule) -> Found:
    survey = survey_of(network)
    sent = messages(source, target, len(network.nodes))
    links = list_links(sent, survey, rule)
    lost = np.flatnonzero(sent.metric == UNKNOWN)
    if len(lost):
        ends = network.nodes[source[lost[0]]], network.nodes[target[lost[0]]]
        raise TopologyError(f"{network.name}: no path from {ends[0]} to {ends[1]}")
    return Found(*gathered(sent, links), sent.head, sent.tail)


def list_links(
    sent: Messages, survey: Survey, rule: Rule, passing: Passing | None = None
) -> LinkColumns:
    """List the links of messages; the metric of one without a path stays unknown.

    They are written to ``passing`` while there is room, for two of each message by default.
    """
    field = _field(survey, rule, passing or listing(2 * (len(sent.source) + len(survey.hub))))
    carried = _carried(sent, survey, rule, field, hub_pairs(survey.hub[:0]))
    return field.passing.links if carried is None else carried


def sum_links(
    sent: Messages, survey: Survey, rule: Rule, total: tuple[Passing, Slowest], pairs: HubPairs
) -> bool:
    """Add up what messages put on links; whether that can be done without a list of these.

    What goes from hub to hub is gathered in ``pairs`` instead, unless they are empty.
    """
    field = _field(survey, rule, *total)
    if _carried(sent, survey, rule, field, pairs) is None:
        return False
    # Who sends nothing needs no path where one search finds the path and what passes it.
    lost = (sent.metric == UNKNOWN) & ((sent.amount != 0) | bool(survey.hub.any()))
    return not lost.any()


def sum_between(sent: Messages, survey: Survey, rule: Rule, total: tuple[Passing, Slowest]) -> bool:
    """Add up messages from hub to hub, or between any nodes where there are no hubs."""
    field = _field(survey, rule, *total)
    if survey.hub.any():
        field = field._replace(ground=survey.fabric, rule=rule)
    inner = field.ground.inner
    anywhere = Cells(inner, np.zeros(len(inner), dtype=np.int64))
    done = inside(0, sent, anywhere, field, False)  # noqa: FBT003  no keywords here
    return done == len(inner) and not ((sent.metric == UNKNOWN) & (sent.amount != 0)).any()


def _field(survey: Survey, rule: Rule, passing: Passing, noted: Slowest | None = None) -> Field:
    """Make what carries messages that meet no hub: not by a policy of the fabric alone."""
    inner_rule = rule._replace(choice=HASH) if survey.network.routing.resource else rule
    return Field(
        ground=survey.domains,
        rule=inner_rule,
        latency=survey.network.latency,
        tree=tree(survey.graph),
        passing=passing,
        slowest=noted or slowest(),
    )


def _carried(
    sent: Messages, survey: Survey, rule: Rule, field: Field, pairs: HubPairs
) -> LinkColumns | None:
    """Carry messages inside cells, and across hubs; None where sums cannot be made."""
    links: LinkColumns | None = field.passing.links
    if survey.hub.any():
        inside(0, sent, survey.cells, field, True)  # noqa: FBT003  no keywords here
        if (sent.metric >= survey.least_by_hub).any():
            hubs, ways = survey.hubs, edge(len(survey.hub))
            fabric = field._replace(ground=survey.fabric, rule=rule)
            choose_hubs(sent, hubs, ways, fabric)
            is_last = np.zeros(len(survey.hub), dtype=np.bool_)
            is_last[sent.by[sent.by >= 0]] = True
            some = hubs.order[is_last[hubs.beyond.item[hubs.beyond.offset[hubs.order]]]]
            hubs = hubs._replace(order=some)
            links = _through(
                lambda begin, passing: across(
                    begin, sent, hubs, ways, pairs, fabric._replace(passing=passing)
                ),
                len(some),
                field.passing,
            )
    if links is None:
        return None
    return _through(
        lambda begin, passing: inside(
            begin,
            sent,
            survey.cells,
            field._replace(passing=passing),
            False,  # noqa: FBT003
        ),
        len(survey.hub),
        field.passing._replace(links=links),
    )


def _through(loop: Callable[[int, Passing], int], end: int, passing: Passing) -> LinkColumns | None:
    """Run a loop to its end, with more room for links whenever it is full; None: it gives up."""
    links = passing.links
    if not passing.listing:
        return links if loop(0, passing) == end else None
    link, share = filled(
        lambda begin, link, share: loop(
            begin, passing._replace(links=LinkColumns(link, share, links.used))
        ),
        end,
        (links.link, links.share),
    )
    return LinkColumns(link, share, links.used)


def section_of(paths: Found) -> Longs:
    """Say of each entry whether it belongs to the head (0), the way through (1) or the tail (2)."""
    message = message_of(paths)
    at = np.arange(len(paths.link)) - paths.offset[message]
    left = paths.offset[message + 1] - paths.offset[message] - at
    behind = (at >= paths.head[message]).astype(np.int64)
    return behind + (left <= paths.tail[message])


def message_of(paths: Found) -> Longs:
    """Which message each entry belongs to."""
    return row_of_entries(paths.offset)


def loads_of(paths: Found, amount: Floats, network: Topology) -> Floats:
    """Add up what messages put on each link (B)."""
    sent = amount[message_of(paths)]
    loads: Floats = np.bincount(
        paths.link, weights=sent * paths.share, minlength=len(network)
    ).astype(np.float64)
    return loads
