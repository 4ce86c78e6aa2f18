"""What the drawing of a network is made of: nodes in their places, links with how busy they were.

A link's utilisation is the bytes that crossed it over what it could have carried while the step
ran: ``bytes / (bandwidth · step)``.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.output.columns import Column, Columns
from simulator.support.arrays import Floats
from simulator.timeline import Timeline
from simulator.topology import Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_RANKS = 1024
"""More are a black rectangle."""
BUSIEST = 8
"""Links that are listed."""


@dataclass(frozen=True, slots=True)
class TierUse:
    """How busy the links of a resource were: how many, bytes (B), mean and greatest utilisation."""

    resource: str
    links: int
    bytes: float
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link, what crossed it (B), its bandwidth (B/s) and utilisation."""

    source: str
    target: str
    resource: str
    bytes: float
    bandwidth: float
    use: float


def utilisation(timeline: Timeline) -> Floats:
    """Say how busy each link was while the step ran, from 0 to 1, shape ``(links,)``.

    A link that nothing limits is never busy.
    """
    room = timeline.topology.bandwidth * timeline.makespan
    return np.divide(
        timeline.link_bytes, room, out=np.zeros(len(room)), where=np.isfinite(room) & (room > 0)
    )


def by_resource(timeline: Timeline) -> list[TierUse]:
    """Say how busy the links of each resource were, in the order of the topology."""
    network, use = timeline.topology, utilisation(timeline)
    rows = []
    for number, name in enumerate(network.resources):
        of_resource = network.resource == number
        if of_resource.any():
            crossed = float(timeline.link_bytes[of_resource].sum())
            rows.append(
                TierUse(
                    name,
                    int(of_resource.sum()),
                    crossed,
                    float(use[of_resource].mean()),
                    use[of_resource].max(),
                )
            )
    return rows


def busiest(timeline: Timeline, most: int = BUSIEST) -> list[LinkUse]:
    """Return the links that were busiest, none that nothing crossed."""
    network, use = timeline.topology, utilisation(timeline)
    order = np.argsort(-use, kind="stable")[:most]
    return [
        LinkUse(
            str(link.source),
            str(link.target),
            link.resource,
            float(timeline.link_bytes[number]),
            link.bandwidth,
            float(use[number]),
        )
        for number, link in ((int(at), network.link(int(at))) for at in order)
        if use[number] > 0
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """A network as pages draw it: ``about`` is JSON, ``nodes`` and ``links`` are its tables."""

    about: dict[str, Any]
    nodes: Columns
    links: Columns


def links_drawn(timeline: Timeline) -> Links | None:
    """Make what a page draws of the network of a step; None of more than 1,024 ranks.

    Both directions of a cable are one line with the utilisation of the busier one.
    """
    network = timeline.topology
    if network.ranks > MOST_RANKS:
        return None
    from topologies.drawing import merged, places  # brings matplotlib, which is slow to load

    where = places(network)
    graph = merged(network)
    nodes = [node for node in graph if node in where]
    at = {node: position for position, node in enumerate(nodes)}
    use, crossed, wide, pairs = _cables(timeline, at)
    ends = np.array(list(pairs), np.int64).reshape(-1, 2)
    resources = np.array([pairs[pair] for pair in pairs], np.int64)
    about = {
        "name": network.name,
        "resources": list(network.resources),
        "step_s": timeline.makespan,
    }
    return Links(
        about,
        {
            "name": Column([str(node) for node in nodes]),
            "x": Column(np.array([where[node][0] for node in nodes], np.float64)),
            "y": Column(np.array([where[node][1] for node in nodes], np.float64)),
            "kind": Column([_kind(node) for node in nodes]),
        },
        {
            "a": Column(ends[:, 0]),
            "b": Column(ends[:, 1]),
            "resource": Column(resources),
            "use": Column(use),
            "bytes": Column(crossed, "B"),
            "bandwidth": Column(wide, "B/s"),
        },
    )


def _cables(
    timeline: Timeline, at: dict[Node, int]
) -> tuple[Floats, Floats, Floats, dict[tuple[int, int], int]]:
    """Put both directions of every cable together: utilisation, bytes, bandwidth, resource."""
    from topologies.drawing import figure_node

    network, use = timeline.topology, utilisation(timeline)
    drawn = np.array([at[figure_node(node)] for node in network.nodes], np.int64)
    ends = np.sort(np.stack([drawn[network.source], drawn[network.target]], axis=1), axis=1)
    between_nodes = np.flatnonzero(
        ends[:, 0] != ends[:, 1]
    )  # not from one side of a NIC to the other
    unique, first, inverse = np.unique(
        ends[between_nodes], axis=0, return_index=True, return_inverse=True
    )
    inverse = inverse.reshape(-1)
    most = np.zeros(len(unique))
    np.maximum.at(most, inverse, use[between_nodes])
    crossed = np.zeros(len(unique))
    np.add.at(crossed, inverse, timeline.link_bytes[between_nodes])
    first = between_nodes[first]
    resources: NDArray[np.int64] = network.resource[first].astype(np.int64)
    pairs = {
        (a, b): resource
        for (a, b), resource in zip(unique.tolist(), resources.tolist(), strict=True)
    }
    return most, crossed, network.bandwidth[first], pairs


def _kind(node: Node) -> str:
    """Say what is drawn of a node: a rank, a NIC, or a switch."""
    if isinstance(node, int):
        return "rank"
    return "nic" if str(node).startswith("nic:") else "switch"
