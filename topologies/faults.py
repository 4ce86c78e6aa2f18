"""Faults of parts of a network: a link, a NIC, a node or a switch that is slow or down.

A fault is data: the part and its effect. :func:`broken` applies faults to a topology; nodes of the
graph keep their numbers, so that traffic that avoids the faults is unchanged to the last bit. Paths
are recomputed on the remaining links, by the routing of the network.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct

from simulator.support.arrays import Floats, Longs, Mask
from simulator.support.errors import DisconnectedError, TopologyError
from simulator.support.names import did_you_mean
from simulator.support.quantities import format_ranks
from simulator.topology import SCALE_OUT, Doors, Outage, Topology, with_links
from topologies.part_names import Parts

if TYPE_CHECKING:
    import networkx as nx

Value = Literal["bandwidth", "latency"]
DRAWN = ("links", "nics", "switches", "nodes")
"""Kinds of parts that can be drawn at random."""
_MOST_NAMED = 3
"""Most drawn parts, and most groups of cut-off ranks, that are named individually."""


class LinkNamed(Struct, frozen=True):
    """Both directions of ``leaf0-spine1``; only one of ``leaf0->spine1``."""

    name: str

    def __str__(self) -> str:
        return f"link {self.name}"


class NicNamed(Struct, frozen=True):
    """A NIC of a node, by number."""

    node: int
    number: int

    def __str__(self) -> str:
        return f"nic {self.number} of node {self.node}"


class NodeNamed(Struct, frozen=True):
    """A node (host): all links with an end inside."""

    node: int

    def __str__(self) -> str:
        return f"node {self.node}"


class SwitchNamed(Struct, frozen=True):
    """A switch: all links with an end there."""

    name: str

    def __str__(self) -> str:
        return f"switch {self.name}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random share of the links, NICs, switches or nodes.

    ``percent`` of those of the job's network, rounded to a whole number. The same ``seed`` and
    ``draw`` give the same parts, and a smaller share is a subset of a larger one. ``seed`` is None
    if the caller chooses it; 0 by default.
    """

    percent: float
    of: str
    resource: str | None = None
    seed: int | None = None
    draw: int = 0

    def __str__(self) -> str:
        tier = f"{self.resource} " if self.resource else ""
        return f"{self.percent:g}% of {tier}{self.of}"


Named = LinkNamed | NicNamed | NodeNamed | SwitchNamed


class Chosen(Struct, frozen=True):
    """The parts drawn, and a summary with the number they were drawn from."""

    lot: Drawn
    parts: tuple[Named, ...]
    summary: str

    def __str__(self) -> str:
        return str(self.lot)


Part = Named | Drawn | Chosen


@dataclass(frozen=True, slots=True)
class Fault:
    """Effect on a part: it is down (``factor`` None), or a value is multiplied.

    With ``resource`` only its links of that resource are meant.

    Raises
    ------
    TopologyError
        If the factor is not positive and finite.

    Examples
    --------
    >>> print(Fault(LinkNamed("leaf0-spine1"), 0.5), Fault(NicNamed(2, 3), None), sep="; ")
    link leaf0-spine1 x0.5; nic 3 of node 2 down
    """

    part: Part
    factor: float | None
    value: Value = "bandwidth"
    resource: str | None = None

    def __post_init__(self) -> None:
        if self.factor is not None and not 0 < self.factor < np.inf:
            raise TopologyError(f"{self.part}: factor {self.factor!r} is not positive and finite")

    def __str__(self) -> str:
        if self.factor is None:
            return f"{self.part} down"
        value = f"{self.resource}.{self.value} " if self.resource else f"{self.value} "
        plain = self.value == "bandwidth" and self.resource is None
        return f"{self.part} {'' if plain else value}x{self.factor:g}"


class Broken(Struct, frozen=True, eq=False):
    """A network after its faults; ``notes`` and ``tiers`` give each fault's links and resources.

    ``rerouted`` is whether links were removed, so that paths had to be recomputed.
    """

    network: Topology
    notes: tuple[str, ...] = ()
    tiers: tuple[tuple[str, ...], ...] = ()
    rerouted: bool = False


@dataclass(slots=True, eq=False)
class _LinkFactors:
    """Factors of every link's values, and whether it remains."""

    bandwidth: Floats
    latency: Floats
    left: Mask
    tiers: list[tuple[str, ...]] = field(default_factory=list)


def broken(network: Topology, faults: Iterable[Fault], home: Longs | None = None) -> Broken:
    """Apply faults to a network, in order; several factors of a link multiply.

    Parameters
    ----------
    network
        The topology; it is not changed.
    faults
        Faults to apply.
    home
        Node (host) of each node of the graph (:func:`topologies.part_names.homes`), shape
        ``(nodes,)``; without it nodes cannot be named.

    Returns
    -------
    Broken
        The network, named after its faults, and the links that each of them affects.

    Raises
    ------
    TopologyError
        If there is no such part (lists the nearest names), or it has no links that the fault can
        change.
    DisconnectedError
        If ranks are cut off from the others; names them.

    Examples
    --------
    >>> from topologies import ring
    >>> result = broken(ring(4, bandwidth=50e9, latency=1e-6), [Fault(LinkNamed("0-1"), None)])
    >>> len(result.network), result.notes
    (6, ('rank0-rank1',))
    """
    drawn: list[Fault] = []  # draws of one network are numbered, so that they differ
    for fault in faults:
        is_random = isinstance(fault.part, Drawn)
        drawn.append(chosen(network, fault, lots(drawn), home) if is_random else fault)
    parts, faults = Parts(network, home), tuple(drawn)
    ones = np.ones(len(network))
    links = _LinkFactors(ones.copy(), ones.copy(), np.ones(len(network), dtype=np.bool_))
    notes = tuple(_apply_fault(parts, fault, links) for fault in faults)
    routing, slowed = network.routing, np.minimum(links.bandwidth, 1.0)
    slower = slowed[links.left]
    if routing.slowed is not None:
        slowed *= routing.slowed
    capacity = None if routing.capacity is None else routing.capacity * links.bandwidth
    routing = replace(routing, capacity=capacity, slowed=slowed if (slowed < 1).any() else None)
    result = replace(network, bandwidth=network.bandwidth * links.bandwidth, routing=routing)
    result = replace(result, latency=network.latency * links.latency)
    gone = not links.left.all()
    if gone:
        result = with_links(result, links.left)
        result = result if result.doors is None else _use_nearest_nics(result, result.doors)
        _check_connected(result, faults)
    if faults:  # the family's closed forms no longer hold
        result = with_outages(result, slower)
        result = replace(result, name=", ".join([network.name, *map(str, faults)]))
    return Broken(result, notes, tuple(links.tiers), gone)


_FEW_WIDTHS, _MOST_TRIED = 5, 1 << 15
"""Every combination of so few bandwidths of slow links may go out of service, of more in a graph so
small that the combinations have at most so many links in all (256 links: seven bandwidths)."""


def with_outages(network: Topology, left: Floats | None = None) -> Topology:
    """Return the network with outages of its slow links, of whose bandwidth less than 1 is left.

    If not given, a link has as much left as it is wide beside the widest of its resource. Links
    with equally much left go together: in every combination of a few, else the slowest one to
    eight, 16, 32 and so on. Ranks reach each other in every outage.
    """
    if left is None:
        finite = np.where(np.isfinite(network.bandwidth), network.bandwidth, 1.0)
        widest = np.ones(len(network.resources))
        np.maximum.at(widest, network.resource, finite)
        left = network.bandwidth / widest[network.resource]
    slow_links = [left == value for value in np.unique(left[left < 1])]
    # Of a graph of a thousand bandwidths a dozen outages are planned, not a thousand.
    sizes = [n for n in range(1, len(slow_links) + 1) if n <= 8 or n & (n - 1) == 0]
    sets = [tuple(slow_links[:size]) for size in sizes]
    if len(slow_links) <= _FEW_WIDTHS or len(network) << len(slow_links) <= _MOST_TRIED:
        sets = [links for size in sizes for links in combinations(slow_links, size)]
    every_link = np.ones(len(network), dtype=np.bool_)
    outages = {every_link.tobytes(): Outage(every_link, network.doors)}
    earlier = [every_link, *(outage.left for outage in network.outages)]
    for remaining, links in product(earlier, [(), *sets]):
        sound = remaining & ~np.logical_or.reduce(links) if links else remaining
        around = with_links(network, sound)
        around = around if around.doors is None else _use_nearest_nics(around, around.doors)
        if sound.tobytes() not in outages and len(joined_ranks(around)) == 1:
            outages[sound.tobytes()] = Outage(sound, around.doors)
    return replace(network, outages=tuple(outages.values())[1:])


def lots(faults: Iterable[Fault]) -> int:
    """Count the random draws among faults."""
    return sum(isinstance(fault.part, Drawn | Chosen) for fault in faults)


def chosen(network: Topology, fault: Fault, number: int, home: Longs | None = None) -> Fault:
    """Draw a fault's random parts; check that the link of any other fault exists.

    ``number`` counts earlier draws, so that the next one differs.

    Returns
    -------
    Fault
        A fault of named parts, which stay these on a network that was changed.

    Raises
    ------
    TopologyError
        If a link does not exist, there is nothing to draw from, or the share is below one part.
    """
    if isinstance(fault.part, LinkNamed):
        Parts(network, home).link_named(fault.part.name)
    if not isinstance(fault.part, Drawn):
        return fault
    return replace(fault, part=_draw_parts(Parts(network, home), fault.part, number))


def _apply_fault(parts: Parts, fault: Fault, links: _LinkFactors) -> str:
    """Apply a fault to the factors of links; return a summary of the cables it affects."""
    network = parts.network
    drawn = fault.part.parts if isinstance(fault.part, Chosen) else (fault.part,)
    touched = np.zeros(len(network), dtype=np.bool_)
    # Remaining share of each link's bandwidth after this fault.
    factor = np.ones(len(network))
    for part in drawn:
        affected, count = _links_of(parts, part, fault)
        touched |= affected
        # NICs modelled as one each lose their own share; of two slow ends only one counts
        share = fault.factor or 0.0
        factor[affected] = share if count == 1 else factor[affected] - (1 - share) / count
    tiers = tuple(network.resources[number] for number in np.unique(network.resource[touched]))
    links.tiers.append(tiers)
    if fault.value == "latency":
        links.latency *= np.where(touched, fault.factor or 1.0, 1.0)
    else:
        # Remove a link without bandwidth rather than leave it with 0, which would divide by zero.
        gone = touched & (factor < _ROUNDING)
        links.left &= ~gone
        links.bandwidth *= np.where(gone, 1.0, factor)
    cables = np.unique(parts.cable[touched])
    if isinstance(fault.part, Chosen):
        return fault.part.summary
    if len(cables) == 1:
        return parts.cable_name(int(cables[0]))
    return f"{len(cables)} links of {' and '.join(tiers)}"


_ROUNDING = 1e-9
"""Shares of NICs that are modelled as one add up to 1 up to this rounding error."""


def _links_of(parts: Parts, part: Part, fault: Fault) -> tuple[Mask, int]:
    """Return the links of a part that a fault changes, and how many NICs they represent."""
    network = parts.network
    affected, count = _LINKS_OF_PART[type(part)](parts, part)
    if count > 1 or (isinstance(part, NicNamed) and fault.factor is not None):
        affected &= network.following(f"{SCALE_OUT}.bandwidth")  # not the rank's slot for it
    if fault.resource is not None:
        _check_resource(network, fault.resource)
        affected &= network.following(f"{fault.resource}.bandwidth")
    if fault.factor is not None:
        limited = np.isfinite(network.bandwidth)
        affected &= limited if fault.value == "bandwidth" else network.latency > 0
    if not affected.any():
        what = f"{fault.resource} links" if fault.resource else f"{fault.value} of its own"
        raise TopologyError(f"{part} of {network.name} has no {what} to change")
    return affected, count


def _links_of_nic(parts: Parts, part: NicNamed) -> tuple[Mask, int]:
    ends, count = parts.nic(part.node, part.number)
    return _links_at(parts.network, ends), count


_LINKS_OF_PART: dict[type, Callable[[Parts, Any], tuple[Mask, int]]] = {
    LinkNamed: lambda parts, part: parts.link_moved(part.name),
    NicNamed: _links_of_nic,
    NodeNamed: lambda parts, part: (_links_at(parts.network, parts.node(part.node)), 1),
    SwitchNamed: lambda parts, part: (_links_at(parts.network, parts.switch(part.name)), 1),
}
"""By kind of part: its links, and how many NICs they represent together."""


def _check_resource(network: Topology, resource: str) -> None:
    if resource not in network.resources:
        hint = did_you_mean(resource, network.resources)
        raise TopologyError(
            f"{network.name} has no links of {resource!r}; {hint}it has"
            f" {', '.join(network.resources)}"
        )


def _links_at(network: Topology, vertices: Mask) -> Mask:
    """Return the links with an end at given nodes of the graph."""
    return np.asarray(vertices[network.source] | vertices[network.target])


def _draw_parts(parts: Parts, lot: Drawn, number: int) -> Chosen:
    """Draw parts; ``number`` distinguishes the draws of one network."""
    tier = f"{lot.resource} " if lot.resource else ""
    if lot.resource is not None:
        _check_resource(parts.network, lot.resource)
    candidates = _CANDIDATES[lot.of](parts, lot.resource)
    if not candidates:
        raise TopologyError(f"{parts.network.name} has no {tier}{lot.of} to draw from")
    count = int(lot.percent / 100 * len(candidates) + 0.5)
    if not count:
        raise TopologyError(
            f"{lot.percent:g} % of {len(candidates)} {tier}{lot.of} of {parts.network.name} is less"
            f" than one; the least is {np.ceil(500 / len(candidates)) / 10:g} %"
        )
    generator = np.random.default_rng([lot.seed or 0, lot.draw, number])
    order = generator.permutation(len(candidates))[:count]
    drawn = tuple(candidates[index] for index in sorted(order.tolist()))
    names = ", ".join(str(part).removeprefix("link ") for part in drawn[:_MOST_NAMED])
    more = ", …" if count > _MOST_NAMED else ""
    return Chosen(lot, drawn, f"{count} of {len(candidates)} {tier}{lot.of}: {names}{more}")


def _link_candidates(parts: Parts, resource: str | None) -> list[Named]:
    """Return cables of limited bandwidth; others exist only in the model and cannot fail."""
    network, first = parts.network, parts.first_link
    drawable = np.isfinite(network.bandwidth[first])
    if resource is not None:
        drawable &= network.following(f"{resource}.bandwidth")[first]
    return [LinkNamed(parts.cable_name(number)) for number in np.flatnonzero(drawable).tolist()]


def _nic_candidates(parts: Parts, resource: str | None) -> list[Named]:
    del resource  # NICs are in scale_out only
    nics: list[Named] = []
    for name in (parts.names[number] for number in parts.nics):
        node, _, numbers = name.removeprefix("nic:").partition(".")
        first, _, last = numbers.partition("-")
        nics += [NicNamed(int(node), nic) for nic in range(int(first), int(last or first) + 1)]
    return nics


def _switch_candidates(parts: Parts, resource: str | None) -> list[Named]:
    network, switches = parts.network, parts.switches
    if resource is not None:
        of_resource = network.following(f"{resource}.bandwidth")
        ends = parts.part[
            np.concatenate([network.source[of_resource], network.target[of_resource]])
        ]
        switches = switches[np.isin(switches, ends)]
    return [SwitchNamed(parts.names[number]) for number in switches.tolist()]


_CANDIDATES: dict[str, Callable[[Parts, str | None], list[Named]]] = {
    "links": _link_candidates,
    "nics": _nic_candidates,
    "switches": _switch_candidates,
    "nodes": lambda parts, _: (
        [] if parts.home is None else [NodeNamed(n) for n in range(int(parts.home.max()) + 1)]
    ),
}


def _graph(network: Topology) -> "nx.DiGraph[int]":
    """Return the links as pairs of numbers of nodes."""
    import networkx as nx  # slow to load

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(network.nodes)))
    graph.add_edges_from(zip(network.source.tolist(), network.target.tolist(), strict=True))
    return graph


def _use_nearest_nics(network: Topology, doors: Doors) -> Topology:
    """Replace NICs without links by the nearest remaining NIC of their node, if any."""
    import networkx as nx

    leaves = np.bincount(network.source, minlength=len(network.nodes)) > 0
    enters = np.bincount(network.target, minlength=len(network.nodes)) > 0
    alive = leaves[doors.out] & enters[doors.out] & leaves[doors.into] & enters[doors.into]
    out, into, graph = doors.out.copy(), doors.into.copy(), _graph(network)
    for node, nic in np.argwhere(~alive).tolist():
        others = np.flatnonzero(alive[node])
        if not len(others):
            continue  # a sender there is cut off, which is reported elsewhere
        users = np.flatnonzero((doors.node == node) & (doors.nic == nic))
        start = users[:1] if len(users) else np.flatnonzero(doors.node == node)[:1]
        hops = nx.single_source_shortest_path_length(graph, int(start[0]))
        far = [hops.get(out, len(graph)) for out in doors.out[node, others].tolist()]
        nearest = others[np.lexsort(((others - nic) % alive.shape[1], far))[0]]
        out[node, nic], into[node, nic] = doors.out[node, nearest], doors.into[node, nearest]
    return replace(network, doors=replace(doors, out=out, into=into))


def _check_connected(network: Topology, faults: tuple[Fault, ...]) -> None:
    """Refuse a network with ranks cut off from others; the largest group counts as the rest."""
    groups = joined_ranks(network)
    if len(groups) == 1:
        return
    groups.sort(key=len, reverse=True)
    lost = np.sort(np.concatenate(groups[1:]))
    causes = " and ".join(map(str, faults))
    rest = f"the other {len(groups[0])}" if len(groups[0]) > 1 else f"rank {groups[0][0]}"
    verb = "is" if len(lost) == 1 else "are"
    raise DisconnectedError(
        f"{network.name}: {causes}: {say_ranks(lost)} {verb} cut off from {rest}: no path is left"
    )


def joined_ranks(network: Topology) -> list[Longs]:
    """Return the groups of ranks that reach each other in both directions, each ascending.

    Examples
    --------
    >>> from topologies import ring
    >>> [len(group) for group in joined_ranks(ring(4, bandwidth=50e9, latency=1e-6))]
    [4]
    """
    import networkx as nx  # slow to load

    nodes = map(sorted, nx.strongly_connected_components(_graph(network)))
    groups = [np.array([node for node in part if node < network.ranks]) for part in nodes]
    return sorted((group for group in groups if len(group)), key=lambda group: int(group[0]))


def say_ranks(ranks: Longs) -> str:
    """Format ranks: ``rank 3``, ``ranks 0-7, 16``.

    Examples
    --------
    >>> say_ranks(np.array([0, 1, 2, 5]))
    'ranks 0-2, 5'
    """
    ranges = format_ranks(ranks.tolist()).split(",")
    more = ", …" if len(ranges) > 2 * _MOST_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranges[: 2 * _MOST_NAMED])}{more}"
