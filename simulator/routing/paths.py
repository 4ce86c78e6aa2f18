"""Least-metric paths of many messages: from the topology's own function, by NICs, or by search.

What all searches of one network need is computed once: its graph, its hubs, and its compiled
routing policy. A link of the scale-out fabric counts as much as a thousand others; where a node is
wired as a graph a PCIe link counts as much as eight (:mod:`simulator.routing.routes` explains why).
"""

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct

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
    Passing,
    Rule,
    Slowest,
    Space,
    listing,
    slowest,
    space,
    tree,
)
from simulator.support.arrays import Floats, Ints, Longs, Mask, entries_of, offsets, row_of_entries
from simulator.support.errors import TopologyError
from simulator.topology import HOP, PCIE, SCALE_OUT, SCALE_OUT_HOPS, Doors, Routing, Topology

_PCIE_METRIC = 8
"""More than the hops by which a mesh of xGMI or NVLink joins the ranks of a node."""
_BETWEEN_GROUPS = 3
"""Factor on the metric of a cable between groups: a path takes one with a hop on each side, never
two (Kim et al. 2008, section 4.1: minimal routing crosses at most one global channel)."""
_SMALL_DOMAIN = 16
"""Most ranks of a node whose switch is no hub; larger domains (72 on one switch) gain by one."""
_MOST_CAPACITY = 1e100
"""Capacity of an unlimited link (B/s): finite, as parts are ratios of capacities."""
CHOICES = {
    "ecmp": HASH,
    "static": TABLE,
    "d_mod_k": DIGITS,
    "spray": ALIKE,
    "minimal": ALIKE,
    "valiant": ALIKE,
    "adaptive": ALIKE,
}
"""How switches choose under each policy; adaptive ones may also divide by capacity."""


class Survey(Struct, eq=False, dict=True):
    """What all searches of one graph need; parts for the fabric are computed on first use."""

    network: Topology
    graph: Graph
    hub: Mask
    cells: Cells

    @cached_property
    def least_by_hub(self) -> int:
        """Lower bound of the metric of a path through a hub between two other nodes."""
        graph, hub = self.graph, self.hub
        enter, leave = graph.metric[hub[graph.stop]], graph.metric[hub[graph.start]]
        return int(enter.min() + leave.min()) if len(enter) and len(leave) else UNKNOWN

    @cached_property
    def hubs(self) -> Hubs:
        """Which nodes are near hubs, and which lie between hubs."""
        return hubs(self.graph, self.hub)

    @cached_property
    def domains(self) -> Space:
        """Where a search for paths without hubs leads."""
        return space(self.graph, self.cells.outside)

    @cached_property
    def fabric(self) -> Space:
        """Where a search from hub to hub leads."""
        return space(self.graph, self.hubs.inner)

    @cached_property
    def rule(self) -> Rule:
        """How a message is routed from hub to hub."""
        return rule_of(self.network, self.hub)

    @cached_property
    def detours(self) -> Detours:
        """Detours over routers, or groups of them."""
        group = self.network.routing.group
        if group is None:
            raise TopologyError(f"{self.network.name} has no groups of routers for detours")
        return Detours(self.graph, group.astype(np.int32), self.rule, self.network.latency)


def survey_of(network: Topology) -> Survey:
    """Return the survey of a network, cached with it."""
    cache = network.known_graph
    if "survey" not in cache:
        graph, hub = graph_of(network), _mark_hubs(network)
        cache["survey"] = Survey(network, graph, hub, cells(graph, hub))
    survey: Survey = cache["survey"]
    return survey


def rule_of(network: Topology, hub: Mask) -> Rule:
    """Compile the policy of a network."""
    routing, of_policy = network.routing, of_resource(network, network.routing)
    # The policy applies at nodes whose outgoing links are all of its resource.
    ruled = np.ones(len(network.nodes), dtype=np.bool_)
    if routing.resource:
        ruled[: network.ranks] = False
        ruled[network.source[~of_policy]] = False
    # Hubs that no hub has a link to: the sending sides of NICs with several ports.
    senders = hub.copy()
    senders[network.target[hub[network.source]]] = False
    # Ports that leave the fabric have the digits of Zahavi's host number. Hosts are counted switch
    # by switch, also where some ports of a switch are not in use, and where rails connect to a
    # switch hosts that do not communicate over it.
    order = network.out_links[1]
    leaving = hub[network.source] & ~hub[network.target] & of_policy
    place, switch = np.zeros((2, len(network)), dtype=np.int64)
    link = order[leaving[order]]
    _, begin, of = np.unique(network.source[link], return_index=True, return_inverse=True)
    place[link] = np.arange(len(link)) - begin[of.ravel()]
    switch[link] = of.ravel()
    return Rule(
        choice=CHOICES[routing.policy],
        seed=routing.seed,
        ruled=ruled,
        capacity=np.minimum(capacity_of(network), _MOST_CAPACITY),
        place=place,
        switch=switch,
        ports=int(place.max(initial=0)) + 1,
        senders=senders,
    )


def of_resource(network: Topology, routing: Routing) -> Mask:
    """Mark the links of the resource that a policy applies to."""
    if not routing.resource:
        return np.ones(len(network), dtype=np.bool_)
    cache, key = network.known_graph, f"links of {routing.resource}"
    if key not in cache:
        is_ruled = np.array(network.resources) == routing.resource
        cache[key] = is_ruled[network.resource]
    links: Mask = cache[key]
    return links


def between_switches(network: Topology) -> Mask:
    """Mark the links of the fabric between its switches, or between ranks that act as switches."""
    cache = network.known_graph
    if "between switches" not in cache:
        hub = survey_of(network).hub
        inner = hub if hub.any() else np.ones_like(hub)
        ruled = of_resource(network, network.routing)
        cache["between switches"] = inner[network.source] & inner[network.target] & ruled
    links: Mask = cache["between switches"]
    return links


def policy_of(network: Topology) -> str:
    """Return how a network routes: its policy, ``its own`` paths, or ``single paths``."""
    if network.route is not None:
        return "its own"
    return network.routing.policy if between_switches(network).any() else "single paths"


def capacity_of(network: Topology) -> Floats:
    """Return the capacity of links that adaptive switches assume."""
    capacity = network.routing.capacity
    return network.bandwidth if capacity is None else capacity


def link_metrics(network: Topology) -> Longs:
    """Return the metric of every link."""
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
    """Compile the links of a network for searches."""
    metric = link_metrics(network)
    into = grouped(network.target, len(network.nodes))
    start, stop = np.ascontiguousarray(network.source), np.ascontiguousarray(network.target)
    return Graph(start, stop, metric, CsrRows(*network.out_links), into)


def _mark_hubs(network: Topology) -> Mask:
    """Mark the switches to search from; the choice affects speed, not metrics.

    Hubs have several links in and out, so the two ends of a NIC are none. They join more than the
    ranks of one small domain, through whose switch a search may simply pass. A NIC with several
    ports is a hub: the fabric's rule chooses among its ports.
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
        # Sides of NICs with several ports: all links out lead to hubs, or all in come from hubs.
        ruled = of_resource(network, network.routing)
        sends = np.bincount(network.source[ruled & hub[network.target]], minlength=nodes)
        receives = np.bincount(network.target[ruled & hub[network.source]], minlength=nodes)
        hub |= ~rank & (((sends == out) & (out > 1)) | ((receives == into) & (into > 1)))
    return hub


THROUGH = 1
"""The section of a path through the fabric, in :attr:`Found.section`."""


class Found(NamedTuple):
    """Paths of least metric; those through the fabric have a head and a tail outside it.

    ``offset``, ``link`` and ``share`` are as in :class:`Routes`. Of the links of a message the
    first ``head`` and the last ``tail`` are outside the fabric, shape ``(messages,)``.
    """

    offset: Longs
    link: Ints
    share: Floats
    head: Longs
    tail: Longs

    @property
    def message(self) -> Longs:
        """The message of each entry."""
        return row_of_entries(self.offset)

    @property
    def section(self) -> Longs:
        """The section of each entry: head (0), through the fabric (1) or tail (2)."""
        message = self.message
        at = np.arange(len(self.link)) - self.offset[message]
        left = self.offset[message + 1] - self.offset[message] - at
        return (at >= self.head[message]).astype(np.int64) + (left <= self.tail[message])


def check_nodes(network: Topology, source: Ints, target: Ints) -> None:
    """Refuse messages that name a node that does not exist."""
    count = len(network.nodes)
    for ends in (source, target):
        outside = ends[(ends < 0) | (ends >= count)]
        if len(outside):
            raise TopologyError(f"{network.name}: no node {outside[0]}: it has 0 to {count - 1}")


def found_paths(
    network: Topology, source: Ints, target: Ints, *, by_capacity: bool = False, flow: int = 0
) -> Found:
    """Return paths of least metric, or those that the topology itself gives.

    A divided message uses them equally, or in proportion to their capacity. For every ``flow``
    except the first the hash has another seed.
    """
    if network.route is not None:
        return _paths_of_topology(network, source, target)
    choice = BY_CAPACITY if by_capacity else CHOICES[network.routing.policy]
    rule = survey_of(network).rule
    number = flow if network.routing.flows > 1 else -1
    rule = rule._replace(choice=choice, seed=rule.seed + flow * _NEXT_FLOW, flow=number)
    if network.doors is not None:
        return _search_by_nics(network, network.doors, (source, target), rule)
    return _search(network, source, target, rule)


_NEXT_FLOW = 1_000_003
"""Difference between seeds of two flows of a message: above the seeds of repeated draws."""


def _paths_of_topology(network: Topology, source: Ints, target: Ints) -> Found:
    """Return the paths that the topology's own ``route`` gives."""
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


def _search_by_nics(network: Topology, doors: Doors, ends: tuple[Ints, Ints], rule: Rule) -> Found:
    """Search paths between nodes in three parts: to a NIC, to the other node's NIC, to the target.

    A message with an end that is not a rank is routed in one part.
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
    """List the links of messages; the metric of a message without a path stays unknown.

    They are appended to ``passing``, by default with room for two per message at first.
    """
    field = _field(survey, rule, passing or listing(2 * (len(sent.source) + len(survey.hub))))
    carried = _carry_all(sent, survey, rule, field, hub_pairs(survey.hub[:0]))
    return field.passing.links if carried is None else carried


def sum_links(
    sent: Messages, survey: Survey, rule: Rule, total: tuple[Passing, Slowest], pairs: HubPairs
) -> bool:
    """Add the loads of messages to ``total``; return False if they must be listed instead.

    Amounts from hub to hub are gathered in ``pairs`` instead, unless it is empty.
    """
    field = _field(survey, rule, *total)
    if _carry_all(sent, survey, rule, field, pairs) is None:
        return False
    # Without hubs, messages that send nothing are skipped: their missing metric means nothing.
    lost = (sent.metric == UNKNOWN) & ((sent.amount != 0) | bool(survey.hub.any()))
    return not lost.any()


def sum_between(sent: Messages, survey: Survey, rule: Rule, total: tuple[Passing, Slowest]) -> bool:
    """Add the loads of messages from hub to hub, or between any nodes if there are no hubs."""
    field = _field(survey, rule, *total)
    if survey.hub.any():
        field = field._replace(space=survey.fabric, rule=rule)
    inner = field.space.inner
    anywhere = Cells(inner, np.zeros(len(inner), dtype=np.int64))
    done = inside(0, sent, anywhere, field, False)  # noqa: FBT003  no keywords here
    return done == len(inner) and not ((sent.metric == UNKNOWN) & (sent.amount != 0)).any()


def _field(survey: Survey, rule: Rule, passing: Passing, noted: Slowest | None = None) -> Field:
    """Return the field for messages without hubs; a policy of the fabric does not apply there."""
    inner_rule = rule._replace(choice=HASH) if survey.network.routing.resource else rule
    return Field(
        space=survey.domains,
        rule=inner_rule,
        latency=survey.network.latency,
        tree=tree(survey.graph),
        passing=passing,
        slowest=noted or slowest(),
    )


def _carry_all(
    sent: Messages, survey: Survey, rule: Rule, field: Field, pairs: HubPairs
) -> LinkColumns | None:
    """Carry messages inside cells, and across hubs; return None if they must be listed."""
    links: LinkColumns | None = field.passing.links
    if survey.hub.any():
        inside(0, sent, survey.cells, field, True)  # noqa: FBT003  no keywords here
        if (sent.metric >= survey.least_by_hub).any():
            hubs, ways = survey.hubs, edge(len(survey.hub))
            fabric = field._replace(space=survey.fabric, rule=rule)
            choose_hubs(sent, hubs, ways, fabric)
            is_last = np.zeros(len(survey.hub), dtype=np.bool_)
            is_last[sent.by[sent.by >= 0]] = True
            some = hubs.order[is_last[hubs.beyond.item[hubs.beyond.offset[hubs.order]]]]
            hubs = hubs._replace(order=some)
            links = _run(
                lambda begin, passing: across(
                    begin, sent, hubs, ways, pairs, fabric._replace(passing=passing)
                ),
                len(some),
                field.passing,
            )
    if links is None:
        return None
    return _run(
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


def _run(loop: Callable[[int, Passing], int], end: int, passing: Passing) -> LinkColumns | None:
    """Run a loop to its end, with more room for links if full; return None if it stops early."""
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
