"""Equal components of a network, so that what is computed for one holds for all.

Without its *hubs* (the switches with most links) a network splits into *components*: nodes of a
cluster with their NICs, racks, single ranks on a switch. Two components have one *shape* if their
nodes, in order, have the same links with the same numbers, those to hubs to the same hubs.
:func:`symmetry_of_ranks` takes switches of nodes for hubs, too, and has components of one rank:
hubs may then be others, as long as two components of a group share one if their counterparts do.
Exchanging two components of one shape then changes nothing: a call loads the links of its
components as the same call of ranks in the same places of other components loads theirs.

This holds only where there is a single shortest path. Among several, a hash of node numbers chooses
(:mod:`simulator.routing.routes`), differently for each pair; such pairs are not *certain*.
"""

from itertools import pairwise

import numpy as np
from msgspec import Struct

from simulator.routing.graph import cells
from simulator.routing.paths import graph_of, link_metrics
from simulator.support.arrays import (
    Floats,
    Ints,
    Longs,
    Mask,
    by_appearance,
    distinct,
    numbers_among_equals,
)
from simulator.topology import Topology

_HUB = -1
_LEVELS = 4
"""Thresholds tried for the number of links of a hub, from the greatest down."""
_SAMPLE = 4
"""Components of a shape that represent all in the search for second paths.

A path between two that led through a third would have a second one through a fourth.
"""
_MOST_HUBS = 64
_MOST_SHAPES = 8
"""Beyond these the network is irregular, and the search for equal components does not pay."""


class Symmetry(Struct, frozen=True, eq=False):
    """Components of a topology, and the place of each node and link in them.

    ``component`` and ``place`` have shape ``(nodes,)``, ``link_component`` and ``link_place``
    ``(links,)``; the component of a hub, and of a link between hubs, is -1. ``shape`` has shape
    ``(components,)``; ``links`` are sorted by component and place, those of component ``c`` begin
    at ``first_link[c]``. ``kind`` numbers the pairs of shape and place of ranks; ``certain[k, l]``:
    there is a single shortest path from ranks of kind ``k`` to ranks of kind ``l``. ``hubs`` are
    those of each component in the order of its links, where equal components may have others,
    shape ``(components, most links)``, -1 beyond; else None.
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
    hubs: Longs | None = None

    def components(self, ranks: Longs) -> Longs:
        """Return the components of a group, ascending."""
        return distinct(self.component[ranks])

    def pattern(self, ranks: Longs) -> bytes | None:
        """Return the places of a group in its components, for any components; None if paths differ.

        Groups of one pattern map to each other by exchanging components without changing their
        order.
        """
        component = self.component[ranks]
        _, first, order = np.unique(component, return_index=True, return_inverse=True)
        kinds = distinct(self.kind[ranks])
        if not self.certain[np.ix_(kinds, kinds)].all():
            return None
        columns = [order.ravel(), self.place[ranks], self.shape[component[first]]]
        if self.hubs is not None:  # which components of the group share a hub
            columns.append(by_appearance(self.hubs[component[first]].ravel())[0])
        return np.concatenate(columns).tobytes()

    def confined(self, links: Ints, components: Longs) -> bool:
        """Return whether all links are in these components or between hubs that all share."""
        shared = [_HUB] if self.hubs is None else []
        return bool(np.isin(self.link_component[links], [*shared, *components]).all())

    def moved(self, links: Ints, source: Longs, target: Longs) -> Ints:
        """Map links in components ``source`` to those at the same places in ``target``."""
        component = self.link_component[links]
        inside = component >= 0
        to = target[np.searchsorted(source, component[inside])]
        result = links.copy()
        result[inside] = self.links[self.first_link[to] + self.link_place[links[inside]]]
        return result


def symmetry(network: Topology) -> Symmetry | None:
    """Return the components of a network; None if none of them are equal.

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
        components = _symmetry_without_hubs(network, links >= least)
        if components is not None:
            return components
    return None


def symmetry_of_ranks(network: Topology) -> Symmetry | None:
    """Return components of one rank each, whose hubs may be others; None if none are equal.

    Examples
    --------
    Two nodes of two ranks with a switch in each, and a NIC for each rank:

    >>> from simulator.topology import Link, topology
    >>> pairs = [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    >>> pairs += [(rank, f"nic {rank}") for rank in range(4)]
    >>> pairs += [(f"nic {rank}", "top") for rank in range(4)]
    >>> links = [Link(*ends, 1e9, 0.0) for a, b in pairs for ends in ((a, b), (b, a))]
    >>> found = symmetry_of_ranks(topology("pairs", 4, links))
    >>> found.shape.tolist(), found.pattern(np.array([0, 1])) == found.pattern(np.array([2, 3]))
    ([0, 0, 0, 0], True)
    >>> found.pattern(np.array([0, 2])) == found.pattern(np.array([0, 1]))
    False
    """
    if network.route is not None or network.doors is not None:
        return None
    links = np.bincount(network.source, minlength=len(network.nodes))
    links[: network.ranks] = 0
    for least in distinct(links[links > 1])[::-1][:_LEVELS]:
        hub = links >= least
        component = _components(network, hub)
        if component.max() + 1 == network.ranks and (component[: network.ranks] >= 0).all():
            return _symmetry_without_hubs(network, hub, any_hub=True)
    return None


def _symmetry_without_hubs(
    network: Topology, hub: Mask, *, any_hub: bool = False
) -> Symmetry | None:
    """Return the components without hubs, if most are equal; parts without ranks become hubs."""
    component = _components(network, hub)
    inhabited = np.isin(component, component[: network.ranks])
    if not (inhabited | hub).all():
        hub = ~inhabited
        component = _components(network, hub)
    # Libraries order the members of a group by number; exchanging components keeps that order only
    # if the ranks of each are consecutive, and components in the order of ranks.
    of_rank = component[: network.ranks]
    if (hub.sum() > _MOST_HUBS and not any_hub) or not len(of_rank) or (np.diff(of_rank) < 0).any():
        return None
    index = numbers_among_equals(component)
    link_component, ends = _ends(network, component, index)
    to_hub = ends
    owner = np.unique(network.latency_resource, return_inverse=True)[1].ravel()
    columns = np.stack([network.bandwidth, network.latency, network.resource, owner])
    if any_hub:  # whatever the hub, equal links have equal places
        ends = np.maximum(ends, _HUB)
        order = np.lexsort((*columns, ends[1], ends[0], link_component))
    else:
        order = np.lexsort((ends[1], ends[0], link_component))
    link_place = np.empty(len(network), dtype=np.int64)
    link_place[order] = numbers_among_equals(link_component[order])
    first_link = np.searchsorted(link_component[order], np.arange(component.max() + 2))
    rows = np.concatenate([ends, columns]).T[order]
    shape = _shapes(rows, first_link, component)
    if network.kind:
        shape = _shapes_by_kind(shape, component, network)
    if 2 * (shape.max() + 1) > len(shape) or shape.max() >= _MOST_SHAPES:
        return None
    at = shape[component[: network.ranks]] * (index.max() + 1) + index[: network.ranks]
    kind = np.unique(at, return_inverse=True)[1].ravel()
    hubs = _hubs_by_component(to_hub, order, first_link, link_component) if any_hub else None
    return Symmetry(
        component=component,
        place=index,
        shape=shape,
        link_component=link_component,
        link_place=link_place,
        links=order,
        first_link=first_link,
        kind=kind,
        certain=_single_paths(network, (component, hubs), shape, kind),
        hubs=hubs,
    )


def _hubs_by_component(ends: Longs, order: Longs, first_link: Longs, component: Longs) -> Longs:
    """Return the hubs of each component in the order of its links, -1 for links without."""
    place = numbers_among_equals(component[order])
    hubs = np.full((len(first_link) - 1, int(place.max(initial=0)) + 1), -1)
    inside = component[order] >= 0
    hubs[component[order][inside], place[inside]] = np.maximum(-1, -1 - ends.min(axis=0))[order][
        inside
    ]
    return hubs


def _components(network: Topology, hub: Mask) -> Longs:
    """Return numbers of components, by their first node; hubs have -1."""
    label = cells(graph_of(network), hub).part
    _, first, number = np.unique(label[~hub], return_index=True, return_inverse=True)
    component = np.full(len(network.nodes), _HUB, dtype=np.int64)
    component[~hub] = np.argsort(np.argsort(first))[number.ravel()]
    return component


def _ends(network: Topology, component: Longs, index: Longs) -> tuple[Longs, Longs]:
    """Return the component of each link, and its ends: a place, or a hub (from -1 down)."""
    hub = component < 0
    named = np.where(hub, -1 - np.arange(len(component)), index)
    both = np.stack([network.source, network.target]).astype(np.int64)
    of = np.where(hub[both[0]], component[both[1]], component[both[0]])
    return of, named[both]


def _shapes(rows: Floats, first_link: Longs, component: Longs) -> Longs:
    """Return the shape of each component, given its links and its number of nodes."""
    nodes = np.bincount(component[component >= 0])
    shapes: dict[bytes, int] = {}
    found_shapes = []
    for number, (begin, end) in enumerate(pairwise(first_link)):
        key = nodes[number].tobytes() + rows[begin:end].tobytes()
        found_shapes.append(shapes.setdefault(key, len(shapes)))
    return np.array(found_shapes, dtype=np.int64)


def _shapes_by_kind(shape: Longs, component: Longs, network: Topology) -> Longs:
    """Distinguish shapes whose ranks are on different kinds of node."""
    kind = np.array(network.kind, dtype=np.int64)
    number = np.zeros(len(shape), dtype=np.int64)
    # A component of several kinds gets that of its last rank: such components differ by links.
    number[component[: network.ranks]] = kind
    both = shape * (kind.max() + 1) + number
    return np.asarray(np.unique(both, return_inverse=True)[1].ravel(), dtype=np.int64)


def _single_paths(
    network: Topology, parts: tuple[Longs, Longs | None], shape: Longs, kind: Longs
) -> Mask:
    """Return which kinds have a single shortest path, from a sample of each shape and hubs."""
    component, hubs = parts
    few = np.flatnonzero(numbers_among_equals(shape) < _SAMPLE)
    if hubs is not None:  # of some sets of hubs some components: neighbours, and others
        same = np.unique(hubs, axis=0, return_inverse=True)[1].ravel()
        of_hubs = numbers_among_equals(same * (shape.max() + 1) + shape) < _SAMPLE
        few = np.flatnonzero(of_hubs & (by_appearance(same)[0] < _SAMPLE))
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
    on_path = (near[:, start] + metric == near[:, stop]) & np.isfinite(near[:, start])
    paths = np.zeros((len(begin), nodes), dtype=np.int64)
    while True:
        more = np.zeros_like(paths)
        more[np.arange(len(begin)), begin] = 1
        for number, used in enumerate(on_path):
            arriving = np.bincount(stop[used], weights=paths[number, start[used]], minlength=nodes)
            more[number] += arriving.astype(np.int64)
        more = np.minimum(more, 2)
        if np.array_equal(more, paths):
            return paths
        paths = more
