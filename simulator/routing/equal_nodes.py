"""All-to-alls among equal nodes: what one pair puts on the links tells of all pairs like it.

Where every node sends the same to every other one, two symmetries leave few messages to follow:

* nodes that hang on a hub by one cable each are told apart by that hub only, so messages are
  gathered by first and last hub without being looked at one by one;
* where the nodes of a network can be exchanged so that any becomes any other (a torus turned by
  some places), what goes to one of them tells what goes to all: a link has its orbit's mean, times
  the nodes. Candidates are read off the numbers of node 0's neighbours; an exchange counts only if
  it takes every link to one with the same numbers.

Neither holds where a hash of both ends chooses among several paths.
"""

from collections.abc import Sequence

import numpy as np

from simulator.routing.paths import Survey
from simulator.support.arrays import Floats, Ints, Longs
from simulator.topology import Topology

_MOST_NEIGHBOURS = 16
"""Of a node of a grid: two for each dimension."""


def hub_of(survey: Survey, nodes: Ints) -> tuple[Longs, Longs, Longs] | None:
    """Return the hub that each node hangs on by one cable, and that cable up and down.

    None where a node has other cables, or where cables of one hub differ in latency.
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


def turns(network: Topology) -> tuple[Longs, ...] | None:
    """Find exchanges of nodes that leave a network as it is and take any node to any other.

    Returns
    -------
    tuple of ndarray or None
        By exchange the link that each link becomes, shape ``(links,)``; None where there are none.

    Examples
    --------
    >>> from simulator.topology import Link, topology
    >>> ends = [(rank, (rank + step) % 5) for rank in range(5) for step in (1, 4)]
    >>> ring = topology("ring", 5, [Link(a, b, 1e9, 0.0) for a, b in ends])
    >>> [len(turn) for turn in turns(ring)]
    [10]
    """
    count = len(network.nodes)
    near = np.unique(network.target[network.source == 0]).astype(np.int64)
    if count != network.ranks or not 0 < len(near) <= _MOST_NEIGHBOURS or network.kind:
        return None
    numbers = _numbers(network)
    exchanges: list[tuple[Longs, Longs]] = []
    for stride in near.tolist():
        for far in near[near >= stride].tolist():
            if far % stride or count % (far + stride):
                continue
            length = far // stride + 1  # the neighbour on the other side is as far as it is long
            place = np.arange(count) // stride % length
            turned = np.arange(count) + np.where(place < length - 1, stride, -far)
            links = _image(network, numbers, turned)
            if links is not None:
                exchanges.append((turned, links))
    if _orbits(count, [turned for turned, _ in exchanges]).any():
        return None
    return tuple(links for _, links in exchanges)


def mean_of_orbits(load: Floats, exchanges: tuple[Longs, ...]) -> Floats:
    """Return the mean of what is on the links that exchanges take to each other."""
    orbit = _orbits(len(load), exchanges)
    total, members = np.bincount(orbit, load), np.bincount(orbit)
    return np.asarray(total[orbit] / np.maximum(members, 1)[orbit], dtype=np.float64)


def _orbits(count: int, exchanges: Sequence[Longs]) -> Longs:
    """Give all that exchanges take to each other the least number among them."""
    orbit, before = np.arange(count), None
    while before is None or (orbit != before).any():
        before = orbit
        for image in exchanges:
            orbit = np.minimum(orbit, orbit[image])
    return orbit


def _numbers(network: Topology) -> Floats:
    """Return what an exchange must keep of each link, shape ``(4, links)``."""
    owner = np.unique(network.latency_resource, return_inverse=True)[1].ravel()
    return np.stack([network.bandwidth, network.latency, network.resource, owner])


def _image(network: Topology, numbers: Floats, turned: Longs) -> Longs | None:
    """Return the link that each one becomes when nodes are exchanged; None if one becomes none."""
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
