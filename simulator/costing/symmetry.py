"""Which parts of a network are alike, so that what is known of one is known of all.

Without its *hubs* (the switches with most links) a network falls into *components*: nodes of a
cluster with their NICs, racks, single ranks on a switch. Two components have one *shape* if their
nodes, in order, have the same links with the same numbers, those to hubs to the same hubs. To
exchange two components of one shape then changes nothing: a call of some ranks puts on their links
what the same call of ranks in the same places of other components puts on theirs.

That holds where there is one shortest path only. Among several a hash of the nodes' numbers
chooses (:mod:`simulator.routing.routes`), differently for each pair; such pairs are not *certain*.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simulator.routing.graph import cells
from simulator.routing.paths import graph_of, link_metrics
from simulator.support.arrays import Floats, Ints, Longs, Mask, distinct, numbers_among_equals
from simulator.topology import Topology

_HUB = -1
_LEVELS = 4
"""Numbers of links tried as the least of a hub, from the greatest on."""
_COPIES = 4
"""Components of a shape that stand for all in the search for second paths.

A path between two that led through a third would have a second one through a fourth.
"""
_MOST_HUBS = 64
_MOST_SHAPES = 8
"""Beyond these the network is irregular, and to look for what is alike costs more than it saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Symmetry:
    """Components of a topology and what is where in them.

    ``component`` and ``place`` have shape ``(nodes,)``, ``link_component`` and ``link_place``
    ``(links,)``; of a hub, and of a link between hubs, the component is -1. ``shape`` has shape
    ``(components,)``; ``links`` are sorted by component and place, those of component ``c`` begin
    at ``first_link[c]``. ``kind`` numbers shape and place of every rank; ``certain[k, l]`` says
    that there is one shortest path from ranks of kind ``k`` to ranks of kind ``l``.
    """

    component: Longs
    place: Longs
    shape: Longs
    link_component: Longs
    link_place: Longs
    links: Longs
    first_link: Longs
    kind: Longs
    certain: Mask

    def components(self, ranks: Longs) -> Longs:
        """Components of a group, ascending."""
        return distinct(self.component[ranks])

    def pattern(self, ranks: Longs) -> bytes | None:
        """Say how a group lies in its components, whichever they are; None if paths differ.

        Groups of one pattern are exchanged by exchanging components without changing their order.
        """
        component = self.component[ranks]
        _, first, order = np.unique(component, return_index=True, return_inverse=True)
        kinds = distinct(self.kind[ranks])
        if not self.certain[np.ix_(kinds, kinds)].all():
            return None
        columns = np.concatenate([order.ravel(), self.place[ranks], self.shape[component[first]]])
        return columns.tobytes()

    def confined(self, links: Ints, components: Longs) -> bool:
        """Whether links are in these components or between hubs."""
        return bool(np.isin(self.link_component[links], [_HUB, *components]).all())

    def moved(self, links: Ints, source: Longs, target: Longs) -> Ints:
        """Links in the components ``target`` that are where ``links`` are in ``source``."""
        component = self.link_component[links]
        inside = component >= 0
        to = target[np.searchsorted(source, component[inside])]
        result = links.copy()
        result[inside] = self.links[self.first_link[to] + self.link_place[links[inside]]]
        return result


def symmetry(network: Topology) -> Symmetry | None:
    """Find the components of a network; None if it has none that are alike.

    Examples
    --------
    Two ranks on a switch are two components of one shape:

    >>> from simulator.topology import Link, topology
    >>> ends = [(0, "switch"), (1, "switch"), ("switch", 0), ("switch", 1)]
    >>> found = symmetry(topology("pair", 2, [Link(a, b, 1e9, 0.0) for a, b in ends]))
    >>> found.shape.tolist(), found.kind.tolist()
    ([0, 0], [0, 0])
    """
    if network.route is not None or network.doors is not None:
        return None
    links = np.bincount(network.source, minlength=len(network.nodes))
    links += np.bincount(network.target, minlength=len(network.nodes))
    links[: network.ranks] = 0
    for least in distinct(links[links > 2])[::-1][:_LEVELS]:
        components = _without(network, links >= least)
        if components is not None:
            return components
    return None


def _without(network: Topology, hub: Mask) -> Symmetry | None:
    """Find the components that are left, if most are alike; those without ranks are hubs too."""
    component = _components(network, hub)
    inhabited = np.isin(component, component[: network.ranks])
    if not (inhabited | hub).all():
        hub = ~inhabited
        component = _components(network, hub)
    if hub.sum() > _MOST_HUBS or not _in_rows(component[: network.ranks]):
        return None
    index = numbers_among_equals(component)
    link_component, ends = _ends(network, component, index)
    owner = np.unique(network.latency_resource, return_inverse=True)[1].ravel()
    columns = np.stack([network.bandwidth, network.latency, network.resource, owner])
    order = np.lexsort((ends[1], ends[0], link_component))
    link_place = np.empty(len(network), dtype=np.int64)
    link_place[order] = numbers_among_equals(link_component[order])
    first_link = np.searchsorted(link_component[order], np.arange(component.max() + 2))
    rows = np.concatenate([ends, columns]).T[order]
    shape = _shapes(rows, first_link, component)
    if network.kind:
        shape = _by_kind(shape, component, network)
    if 2 * (shape.max() + 1) > len(shape) or shape.max() >= _MOST_SHAPES:
        return None
    at = shape[component[: network.ranks]] * (index.max() + 1) + index[: network.ranks]
    kind = np.unique(at, return_inverse=True)[1].ravel()
    return Symmetry(
        component=component,
        place=index,
        shape=shape,
        link_component=link_component,
        link_place=link_place,
        links=order,
        first_link=first_link,
        kind=kind,
        certain=_certain(network, component, shape, kind),
    )


def _components(network: Topology, hub: Mask) -> Longs:
    """Give numbers to the components, by their first node; hubs have none."""
    label = cells(graph_of(network), hub).part
    _, first, number = np.unique(label[~hub], return_index=True, return_inverse=True)
    component = np.full(len(network.nodes), _HUB, dtype=np.int64)
    component[~hub] = np.argsort(np.argsort(first))[number.ravel()]
    return component


def _in_rows(component: Longs) -> bool:
    """Whether the ranks of every component are numbered in a row, as are the components.

    Libraries order the members of a group by number: so does whoever exchanges components.
    """
    return bool(len(component)) and bool((np.diff(component) >= 0).all())


def _ends(network: Topology, component: Longs, index: Longs) -> tuple[Longs, Longs]:
    """Component of each link, and where it begins and ends: a place, or a hub (from -1 down)."""
    hub = component < 0
    named = np.where(hub, -1 - np.arange(len(component)), index)
    both = np.stack([network.source, network.target]).astype(np.int64)
    of = np.where(hub[both[0]], component[both[1]], component[both[0]])
    return of, named[both]


def _shapes(rows: Floats, first_link: Longs, component: Longs) -> Longs:
    """Tell the shapes of components, given the links of each and how many nodes it has."""
    nodes = np.bincount(component[component >= 0])
    shapes: dict[bytes, int] = {}
    found_shapes = []
    for number, (begin, end) in enumerate(pairwise(first_link)):
        key = nodes[number].tobytes() + rows[begin:end].tobytes()
        found_shapes.append(shapes.setdefault(key, len(shapes)))
    return np.array(found_shapes, dtype=np.int64)


def _by_kind(shape: Longs, component: Longs, network: Topology) -> Longs:
    """Tell shapes apart whose ranks sit on other kinds of node."""
    kind = np.array(network.kind, dtype=np.int64)
    number = np.zeros(len(shape), dtype=np.int64)
    number[component[: network.ranks]] = (
        kind  # of a component that spans kinds the last; links differ
    )
    both = shape * (kind.max() + 1) + number
    return np.asarray(np.unique(both, return_inverse=True)[1].ravel(), dtype=np.int64)


def _certain(network: Topology, component: Longs, shape: Longs, kind: Longs) -> Mask:
    """Count shortest paths between ranks of a few components of every shape, and the hubs."""
    few = np.flatnonzero(numbers_among_equals(shape) < _COPIES)
    tested = np.flatnonzero((component < 0) | np.isin(component, few))
    number = np.full(len(component), -1, dtype=np.int64)
    number[tested] = np.arange(len(tested))
    chosen = np.flatnonzero((number[network.source] >= 0) & (number[network.target] >= 0))
    start, stop = number[network.source[chosen]], number[network.target[chosen]]
    metric = link_metrics(network)[chosen].astype(np.float64)
    ranks = tested[tested < network.ranks]
    begin = ranks[numbers_among_equals(shape[component[ranks]] * len(few) + kind[ranks]) == 0]
    paths = _paths((start, stop, metric), number[begin], len(tested))
    certain = np.ones((kind.max() + 1, kind.max() + 1), dtype=np.bool_)
    for rank, path in zip(begin, paths, strict=True):
        np.logical_and.at(certain[kind[rank]], kind[ranks], path[number[ranks]] == 1)
    return certain & certain.T


def _paths(graph: tuple[Longs, Longs, Floats], begin: Longs, nodes: int) -> Longs:
    """Count the shortest paths from each of some nodes to every node (2: two or more)."""
    start, stop, metric = graph
    near = np.full((len(begin), nodes), np.inf)
    near[np.arange(len(begin)), begin] = 0.0
    last = np.zeros_like(near)
    while not np.array_equal(near, last):
        last = near.copy()
        for row in near:
            np.minimum.at(row, stop, row[start] + metric)
    on_way = (near[:, start] + metric == near[:, stop]) & np.isfinite(near[:, start])
    paths = np.zeros((len(begin), nodes), dtype=np.int64)
    while True:
        more = np.zeros_like(paths)
        more[np.arange(len(begin)), begin] = 1
        for number, way in enumerate(on_way):
            arriving = np.bincount(stop[way], weights=paths[number, start[way]], minlength=nodes)
            more[number] += arriving.astype(np.int64)
        more = np.minimum(more, 2)
        if np.array_equal(more, paths):
            return paths
        paths = more
