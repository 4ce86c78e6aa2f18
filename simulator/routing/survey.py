"""What all searches of one network need: its graph, its hubs, and its routing policy compiled.

A link of the scale-out fabric counts as much as a thousand others; where a node is wired as a graph
a PCIe link counts as much as eight (:mod:`simulator.routing.routes` says why).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.policy import GROUPED, Routing
from simulator.routing.choice import ALIKE, DIGITS, HASH, TABLE, Rule
from simulator.routing.detours import Detours
from simulator.routing.graph import UNKNOWN, CsrRows, Graph, grouped
from simulator.routing.hubs import Cells, Hubs, cells, hubs
from simulator.topology import HOP, PCIE, SCALE_OUT, SCALE_OUT_HOPS, Topology

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
    def detours(self) -> Detours:
        """Paths over routers, or groups of them, in between."""
        group = self.network.routing.group
        if group is None:
            raise TopologyError(f"{self.network.name} has no groups of routers to go by")
        return Detours(self.graph, group.astype(np.int32), self.rule)


def survey_of(network: Topology) -> Survey:
    """Survey a network, once."""
    known = network.known_graph
    if "survey" not in known:
        graph, hub = graph_of(network), _hub_switches(network)
        known["survey"] = Survey(network, graph, hub, cells(graph, hub))
    survey: Survey = known["survey"]
    return survey


def rule_of(network: Topology, hub: NDArray[np.bool_]) -> Rule:
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
    )


def _ruled(network: Topology, routing: Routing) -> NDArray[np.bool_]:
    """Mark the nodes where the policy holds: those all of whose links out are of its resource."""
    if not routing.resource:
        return np.ones(len(network.nodes), dtype=np.bool_)
    ruled = np.arange(len(network.nodes)) >= network.ranks
    ruled[network.source[~of_resource(network, routing)]] = False
    return ruled


def of_resource(network: Topology, routing: Routing) -> NDArray[np.bool_]:
    """Mark the links of the resource that a policy is for."""
    if not routing.resource:
        return np.ones(len(network), dtype=np.bool_)
    names = np.array(network.resources)
    return np.asarray(names[network.resource] == routing.resource)


def between_switches(network: Topology) -> NDArray[np.bool_]:
    """Mark the links of the fabric that join its switches, or ranks that are their own."""
    survey = survey_of(network)
    inner = survey.hub if survey.hub.any() else np.ones_like(survey.hub)
    return inner[network.source] & inner[network.target] & of_resource(network, network.routing)


def capacity_of(network: Topology) -> NDArray[np.float64]:
    """Return what adaptive switches think that links can carry."""
    capacity = network.routing.capacity
    return network.bandwidth if capacity is None else capacity


def _port_numbers(
    network: Topology, hub: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
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


def link_metrics(network: Topology) -> NDArray[np.int64]:
    """Say what every link counts on a path."""
    metric = np.ones(len(network), dtype=np.int64)
    if SCALE_OUT in network.resources:
        metric[network.resource == network.resources.index(SCALE_OUT)] = SCALE_OUT_HOPS
    if network.doors is not None and PCIE in network.resources:
        metric[network.resource == network.resources.index(PCIE)] = _PCIE_METRIC
    if network.metric is not None:
        metric = np.where(network.metric > 0, network.metric, HOP * metric)
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


def _hub_switches(network: Topology) -> NDArray[np.bool_]:
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
