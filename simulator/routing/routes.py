"""Which links a message takes.

Shortest path, where a link of the scale-out fabric counts as much as a thousand others: a message
stays in its scale-up domain if it can, however many hops that takes. A path may lead through other
ranks, where that is shorter or the only way. Among equal next hops one is chosen by a hash of
source, target and node (static ECMP), and so is, among equal paths, the switch from which the
target is entered: equal-cost paths are all used and every run chooses the same.

A graph may name resources of its own (:mod:`topologies.families.from_file`): of ways of as many
hops the one over the faster of them is then taken, whatever a what-if makes of their bandwidths.

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
from simulator.routing.graph import UNKNOWN, CsrRows, Graph, grouped
from simulator.routing.hubs import Cells, Hubs, cells, hubs
from simulator.routing.messages import across, gathered, inside, messages, no_links
from simulator.topology import HOP, PCIE, SCALE_OUT, SCALE_OUT_HOPS, Doors, Topology

_PCIE_METRIC = 8
"""More than the hops over which a mesh of xGMI or NVLink joins the ranks of a node."""
_KEPT = 8
"""Answers kept per topology: steps of the schedules that a planner compares."""
_SMALL_DOMAIN = 16
"""Ranks of a node; larger domains (72 on one NVLink switch) gain by a search of their own."""


class Routes(NamedTuple):
    """Links of messages in CSR form, and what part of a message each of them carries.

    Message ``i`` takes ``link[offset[i]:offset[i + 1]]``, each at most once; of its bytes
    ``share``, above 0 and at most 1, passes that link. A message on one path has shares of 1, and
    its links stand in the order of the path. The shares of a divided one add up to 1 over every
    cut between its ends; where its links stand says nothing.
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
    known, messages = network.known_routes, (source.tobytes(), target.tobytes())
    del amount  # no policy asks yet
    if messages not in known:
        _check_nodes(network, source, target)
        if len(known) >= _KEPT:
            del known[next(iter(known))]
        if network.route is not None:
            known[messages] = _follow(network, source, target)
        elif network.doors is not None:
            known[messages] = _by_doors(network, network.doors, source, target)
        else:
            known[messages] = _search(network, source, target)
    return known[messages]


def _check_nodes(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
    count = len(network.nodes)
    for ends in (source, target):
        outside = ends[(ends < 0) | (ends >= count)]
        if len(outside):
            raise TopologyError(f"{network.name}: no node {outside[0]}: it has 0 to {count - 1}")


def _follow(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> Routes:
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
    return Routes(
        np.array(offset, dtype=np.int64), np.array(links, dtype=np.int32), np.ones(len(links))
    )


def _by_doors(
    network: Topology, doors: Doors, source: NDArray[np.int32], target: NDArray[np.int32]
) -> Routes:
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
    offset, link, share = _search(
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
    return Routes(ends, link[taken], share[taken])


def _search(network: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> Routes:
    known = network.known_graph
    survey = known["survey"] = known.get("survey") or _survey(network)
    graph = survey.graph
    sent = messages(source, target, len(network.nodes))
    links = inside(sent, graph, survey.cells, no_links(sent, graph))
    if (sent.metric >= survey.least_by_hub).any():
        links = across(sent, graph, survey.hubs, links)
    lost = np.flatnonzero(sent.metric == UNKNOWN)
    if len(lost):
        ends = network.nodes[source[lost[0]]], network.nodes[target[lost[0]]]
        raise TopologyError(f"{network.name}: no path from {ends[0]} to {ends[1]}")
    offset, link = gathered(sent, links)
    share = np.ones(len(link))
    offset.flags.writeable = link.flags.writeable = share.flags.writeable = False
    return Routes(offset, link, share)


@dataclass(eq=False)
class _Survey:
    """What all searches of one graph need; the way from hub to hub only some of them do."""

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


def _survey(network: Topology) -> _Survey:
    graph, hub = graph_of(network), _hubs(network)
    return _Survey(graph, hub, cells(graph, hub))


def link_metrics(network: Topology) -> NDArray[np.int64]:
    """Say what every link counts on a path."""
    metric = np.ones(len(network), dtype=np.int64)
    if SCALE_OUT in network.resources:
        metric[network.resource == network.resources.index(SCALE_OUT)] = SCALE_OUT_HOPS
    if network.doors is not None and PCIE in network.resources:
        metric[network.resource == network.resources.index(PCIE)] = _PCIE_METRIC
    if network.metric is None:
        return metric
    return np.where(network.metric > 0, network.metric, HOP * metric)


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
