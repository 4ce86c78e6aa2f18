"""Diameter, bisection bandwidth and saturation throughput of a topology; closed forms.

A topology's name contains its parameters, ``torus(4x8)``, by which :func:`closed_form` selects the
formula of the family. A network that was changed afterwards has another name or unequal links, and
no closed form. Tests compare the closed forms with the measurements of this module.

For the throughput every rank sends at one rate to the destinations of a traffic pattern. The load
on each link follows from the routing (:func:`simulator.routing.totals.link_loads`), and the rate at
which the busiest link is full is the throughput: W. J. Dally, B. Towles, "Principles and Practices
of Interconnection Networks" (2004), section 3.3, ``Theta = b / gamma_max``. Queues and flow
control, which keep real routers somewhat below it, are not modelled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.routing.messages import exchange
from simulator.routing.totals import link_loads, totals
from simulator.support.arrays import Longs
from simulator.support.errors import TopologyError
from simulator.support.limits import limits
from simulator.support.names import did_you_mean
from simulator.support.quantities import whole_of
from simulator.topology import Node, Topology
from topologies.families.family import Family, ParsedSpec, family_of
from topologies.families.table import family_named

if TYPE_CHECKING:
    import networkx as nx


def diameter(network: Topology) -> int:
    """Return the number of links on the longest shortest path of two ranks; 0 for a single rank.

    Raises
    ------
    TopologyError
        If a rank cannot reach another.

    Examples
    --------
    >>> from topologies import ring
    >>> diameter(ring(8, bandwidth=50e9, latency=1e-6))
    4
    """
    ranks, family = np.arange(network.ranks), _family(network)
    if family is not None and len(ranks) > _BLOCK:
        formula = family[0].counts(ParsedSpec(family[1], "", 1.0, 0.0)).diameter
        # No rank is farther if some are as far from others as the family's formula says.
        if formula is not None and _farthest(network, ranks[:_BLOCK]) == formula:
            return formula
    return _farthest(network, ranks)


def _farthest(network: Topology, ranks: NDArray[np.int64]) -> int:
    """Return the most hops from these ranks to any; refuse what would take minutes."""
    # Hops times links times words, estimated from one rank's hops.
    work = _eccentricity(network, ranks[:1]) * len(network) * -(-len(ranks) // 64)
    what = f"its diameter takes {work:.1e} steps to count"
    limits().check("work", work, network.name, what)
    blocks = range(0, len(ranks), _BLOCK)
    return max(_eccentricity(network, ranks[begin : begin + _BLOCK]) for begin in blocks)


def _family(network: Topology) -> tuple[Family, tuple[int, ...]] | None:
    """Return the family and numbers of a network that nobody changed."""
    name, numbers, change = family_of(network)
    named = family_named(name) if name and not change else None
    return None if named is None else (named[1], numbers)


_BLOCK = 1024
"""Ranks per breadth-first search: 128 bytes per link, whatever the size of the machine."""


def _eccentricity(network: Topology, ranks: NDArray[np.int64]) -> int:
    """Return the hops until each of these ranks reaches all ranks, searching from all at once.

    Bit ``i`` of a node's row is whether rank ``ranks[i]`` reaches the node.
    """
    # Sort links by target, so that those into a node are one run of rows, which reduceat combines.
    order = np.argsort(network.target, kind="stable")
    ends, first = np.unique(network.target[order], return_index=True)
    bit = np.arange(len(ranks))
    # 64 ranks per word of 64 bits, rounded up: bit i % 64 of word i // 64.
    reached = np.zeros((len(network.nodes), -(-len(ranks) // 64)), dtype=np.uint64)
    reached[ranks, bit // 64] = np.uint64(1) << (bit % 64).astype(np.uint64)
    # Initially each bit is set in one row only; in the end every rank's row must have all of them.
    full = np.bitwise_or.reduce(reached, axis=0)
    hops = 0
    while (reached[: network.ranks] != full).any():
        # All links at once, from the state before: one round is exactly one hop.
        before = reached.copy()
        if len(order):
            arriving = before[network.source[order]]
            reached[ends] |= np.bitwise_or.reduceat(arriving, first, axis=0)
        hops += 1
        if (reached == before).all():
            missing = reached[: network.ranks] ^ full
            unreached, word = (int(index) for index in np.argwhere(missing)[0])
            # value & -value is its lowest set bit: the first rank that is missing.
            lowest = (
                int(missing[unreached, word]) & -int(missing[unreached, word])
            ).bit_length() - 1
            lost = ranks[64 * word + lowest]
            raise TopologyError(f"{network.name}: rank {lost} does not reach rank {unreached}")
    return hops


def bisection_bandwidth(network: Topology) -> float:
    """Return the least one-way bandwidth over all balanced cuts of the ranks, trying every cut.

    Nodes that are not ranks fall on the side where the cut is least (maximum flow from one half to
    the other). With an odd number of ranks the halves differ by one.

    Parameters
    ----------
    network
        A topology of at most 12 ranks.

    Returns
    -------
    float
        Bandwidth (B/s).

    Raises
    ------
    TopologyError
        If there are fewer than 2 ranks, or more than 12: then use the closed form.

    Examples
    --------
    >>> from topologies import switch
    >>> bisection_bandwidth(switch(8, bandwidth=50e9, latency=1e-6))
    200000000000.0
    """
    ranks = network.ranks
    if not 2 <= ranks <= MOST_RANKS:
        raise TopologyError(f"{network.name}: cuts are of 2 to {MOST_RANKS} ranks, not {ranks}")
    graph = network.graph()
    # With an odd number of ranks either half may send, and links need not be symmetric.
    halves = {ranks // 2, ranks - ranks // 2}
    cuts = (half for size in sorted(halves) for half in combinations(range(ranks), size))
    return min(_least_cut(graph, half, ranks) for half in cuts)


def middle_cut(network: Topology) -> float:
    """Return the least one-way bandwidth (B/s) between the first and the second half of the ranks.

    An upper bound of the bisection bandwidth: another cut may be smaller. Nodes that are
    not ranks fall on the side where the cut is least; the lesser of both directions counts.

    Parameters
    ----------
    network
        A topology of at least 2 ranks and at most :data:`MOST_LINKS` links.

    Raises
    ------
    TopologyError
        If it has fewer ranks, or more links.

    Examples
    --------
    >>> from topologies import ring
    >>> middle_cut(ring(16, bandwidth=50e9, latency=1e-6))
    100000000000.0
    """
    ranks = network.ranks
    if ranks < 2 or len(network) > MOST_LINKS:
        raise TopologyError(f"{network.name}: cuts need 2 ranks and at most {MOST_LINKS} links")
    graph, half = network.graph(), range(ranks // 2)
    rest = range(ranks // 2, ranks)
    return min(_least_cut(graph, half, ranks), _least_cut(graph, rest, ranks))


MOST_LINKS = 20_000
"""Most links of a network for one cut: a second or two."""


@dataclass(frozen=True, slots=True)
class LinksOf:
    """Links of one resource: their one-way count, and least and greatest values.

    Bandwidths in B/s, latencies in s; ``total_bandwidth`` is the sum over all.
    """

    resource: str
    links: int
    least_bandwidth: float
    most_bandwidth: float
    total_bandwidth: float
    least_latency: float
    most_latency: float


def links_by_resource(network: Topology) -> tuple[LinksOf, ...]:
    """Return the links of each resource, in the order of ``network.resources``.

    Examples
    --------
    >>> from topologies import ring
    >>> links_by_resource(ring(4, bandwidth=50e9, latency=1e-6))[0].total_bandwidth
    400000000000.0
    """
    kinds = []
    for number, resource in enumerate(network.resources):
        links = network.resource == number
        speed, delay = network.bandwidth[links], network.latency[links]
        ends = float(speed.min()), float(speed.max()), float(speed.sum())
        times = float(delay.min()), float(delay.max())
        kinds.append(LinksOf(resource, int(links.sum()), *ends, *times))
    return tuple(kinds)


MOST_RANKS = 12
"""Most ranks whose balanced cuts are all tried: 924 for 12, a second or two; 12,870 for 16."""


def _least_cut(graph: "nx.DiGraph[Node]", half: Sequence[int], ranks: int) -> float:
    """Return the least cut from the ranks of ``half`` to the others, tied without limit."""
    import networkx as nx  # slow to load, and nothing else here needs it

    tied = graph.copy()
    tied.add_edges_from(("half", rank) for rank in half)
    tied.add_edges_from((rank, "rest") for rank in set(range(ranks)) - set(half))
    return float(nx.minimum_cut_value(tied, "half", "rest", capacity="bandwidth"))


def closed_form(network: Topology) -> float | None:
    """Return the bisection bandwidth by the family's formula (B/s); None if it has none.

    The docstrings of the builders have the formulas and their sources.

    Parameters
    ----------
    network
        A topology as its builder returned it, perhaps with the links of a resource scaled.

    Examples
    --------
    >>> from topologies import fat_tree, torus
    >>> closed_form(torus((16, 16), bandwidth=50e9, latency=1e-6))
    1600000000000.0
    >>> closed_form(torus((15, 15), bandwidth=50e9, latency=1e-6)) is None
    True
    """
    family = _family(network)
    if family is None or family[0].bisection is None or not len(network):
        return None
    return family[0].bisection(network, family[1])


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and figures of a topology.

    ``diameter`` is in hops, ``bisection_bandwidth`` in B/s (None if it is not known), and
    ``bisection_from`` says how that was computed, or why not.
    """

    name: str
    ranks: int
    nodes: int
    links: int
    diameter: int
    bisection_bandwidth: float | None
    bisection_from: str


def summary(network: Topology) -> Summary:
    """Count nodes, links and hops; compute the bisection bandwidth, by closed form or by cuts.

    Of a graph that no family describes, with too many ranks to try all, one cut gives an upper
    bound of it.

    Returns
    -------
    Summary
        Bandwidth in B/s.

    Raises
    ------
    TopologyError
        If a rank does not reach another.

    Examples
    --------
    >>> from topologies import parse_topology
    >>> summary(parse_topology("torus:4x4", bandwidth=50e9, latency=500e-9))
    Summary(name='torus(4x4)', ranks=16, nodes=16, links=64, diameter=4, bisection_bandwidth=400000000000.0, bisection_from='closed form')
    """  # noqa: E501
    bandwidth, how = closed_form(network), "closed form"
    if network.ranks < 2:
        bandwidth, how = None, "one rank cannot be cut in two"
    elif bandwidth is None and network.ranks <= MOST_RANKS:
        bandwidth, how = bisection_bandwidth(network), "every cut tried"
    elif bandwidth is None and not family_of(network)[0] and len(network) <= MOST_LINKS:
        bandwidth, half = middle_cut(network), network.ranks // 2
        how = f"upper bound: least cut between ranks 0-{half - 1} and the others"
    elif bandwidth is None:
        how = f"no closed form is known, and {network.ranks} ranks have too many cuts to try"
    return Summary(
        network.name,
        network.ranks,
        len(network.nodes),
        len(network),
        diameter(network),
        bandwidth,
        how,
    )


MOST_PAIRS = 1 << 24
"""Uniform traffic of 4,096 ranks: with more, the pairs alone take minutes where they are listed."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of a topology for a traffic pattern under its routing.

    ``per_rank`` (B/s) is each rank's rate when the link from ``busiest[0]`` to ``busiest[1]`` is
    full. ``ideal`` (B/s) is the same for uniform traffic spread over all shortest paths, the
    *capacity* of Dally and Towles; ``of_capacity`` is their quotient.
    """

    traffic: str
    routing: str
    per_rank: float
    ideal: float
    busiest: tuple[str, str]

    @property
    def of_capacity(self) -> float:
        """Throughput as a fraction of the network's capacity."""
        return self.per_rank / self.ideal


def throughput(network: Topology, traffic: str) -> Throughput:
    """Compute the rate (B/s) at which every rank can send.

    Parameters
    ----------
    network
        A topology with its routing, such as ``parse_topology("torus:8x8@valiant", …)``.
    traffic
        ``uniform``: equally to every rank, itself included; ``adversarial``: the worst pattern for
        shortest paths in the family, from the literature (a torus or ring: tornado, almost half
        way round in every dimension; a dragonfly: every group to the next one; others: half of
        the ranks further); ``complement``: from ``i`` to ``n - 1 - i``; ``shift:K``: from ``i`` to
        ``i + K``, modulo ``n``.

    Raises
    ------
    TopologyError
        If the pattern is unknown, has no pair of ranks, or the network is too large for it.

    Examples
    --------
    >>> from topologies import parse_topology
    >>> for routing in ("minimal", "valiant"):
    ...     ring = parse_topology(f"ring:8@{routing}", bandwidth=8e9, latency=0.0)
    ...     found = throughput(ring, "adversarial")
    ...     print(routing, round(found.of_capacity, 3), round(found.per_rank / 8e9, 3))
    minimal 0.333 0.333
    valiant 0.5 0.5
    """
    rate, busiest = saturation(network, traffic)
    policy = "minimal" if network.routing.group is not None else "spray"
    spread = replace(network, route=None, routing=replace(network.routing, policy=policy))
    return Throughput(
        traffic=traffic,
        routing="its own" if network.route is not None else network.routing.policy,
        per_rank=rate,
        ideal=saturation(spread, "uniform")[0],
        busiest=busiest,
    )


def saturation(network: Topology, traffic: str) -> tuple[float, tuple[str, str]]:
    """Compute the rate of every rank (B/s) at which a link is full, and the ends of that link.

    Parameters and errors are those of :func:`throughput`, which compares it with the capacity.
    """
    # Loads are linear in the rate, so the link with the most load per B/s fills first, at 1 over
    # that.
    busy = _loads(network, traffic) / network.bandwidth
    if not busy.max(initial=0.0) > 0:
        raise TopologyError(f"{network.name}: {traffic} traffic passes no link")
    worst = int(np.argmax(busy))
    ends = network.nodes[network.source[worst]], network.nodes[network.target[worst]]
    return float(1 / busy[worst]), (str(ends[0]), str(ends[1]))


def _loads(network: Topology, traffic: str) -> NDArray[np.float64]:
    """Return the load of each link if every rank sends 1; to itself it uses no link."""
    if traffic == "uniform" and network.ranks > 1:
        even = totals(network, exchange(np.arange(network.ranks, dtype=np.int32)))
        if even is not None:
            return even.load / network.ranks
    source, target, amount = _pattern(network, traffic)
    distinct = source != target
    source_rank, target_rank = source[distinct].astype(np.int32), target[distinct].astype(np.int32)
    return link_loads(network, source_rank, target_rank, amount[distinct])


def _pattern(network: Topology, traffic: str) -> tuple[Longs, Longs, NDArray[np.float64]]:
    name, _, number = traffic.partition(":")
    ranks = np.arange(network.ranks)
    if name == "uniform":
        if network.ranks**2 > MOST_PAIRS:
            raise TopologyError(
                f"{network.name}: uniform traffic has {network.ranks**2:,} pairs of ranks, more"
                f" than {MOST_PAIRS:,}; use a smaller network of the family"
            )
        # All ordered pairs: pair number = source * ranks + target.
        source, target = np.divmod(np.arange(network.ranks**2), network.ranks)
        return source, target, np.full(len(source), 1 / network.ranks)
    if name == "shift":
        distance = whole_of(number)
        if distance is None or distance < 0:
            raise TopologyError(
                f"traffic {traffic!r}: say how far, as in shift:{network.ranks // 2}"
            )
        return ranks, (ranks + distance % network.ranks) % network.ranks, np.ones(network.ranks)
    if traffic not in _PERMUTATIONS:
        patterns = ("uniform", *_PERMUTATIONS, "shift:K")
        hint = did_you_mean(traffic, patterns)
        raise TopologyError(
            f"{traffic!r} is not a traffic pattern; {hint}there are {', '.join(patterns)}"
        )
    return ranks, _PERMUTATIONS[traffic](network), np.ones(network.ranks)


def _adversarial(network: Topology) -> Longs:
    """Return the worst pattern for shortest paths, by the family's name."""
    family, numbers, _ = family_of(network)
    ranks = np.arange(network.ranks)
    if family in ("torus", "ring", "twisted_torus"):
        # Tornado (Singh): half way round in every dimension, rounded up, less one, so that the way
        # round is unique.
        places = np.unravel_index(ranks, tuple(numbers))
        moved = tuple(
            (coordinate + -(-length // 2) - 1) % length
            for coordinate, length in zip(places, numbers, strict=True)
        )
        return np.asarray(np.ravel_multi_index(moved, tuple(numbers)), dtype=np.int64)
    if family == "dragonfly":
        # Every rank to its counterpart in the next group: all of a group's traffic wants the few
        # cables between two groups (Kim et al., ISCA 2008).
        return (ranks + numbers[1] * numbers[2]) % network.ranks
    return (ranks + network.ranks // 2) % network.ranks


_PERMUTATIONS: dict[str, Callable[[Topology], Longs]] = {
    "adversarial": _adversarial,
    "complement": lambda network: network.ranks - 1 - np.arange(network.ranks),
}
"""Patterns in which every rank has one destination."""
