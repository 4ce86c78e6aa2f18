"""Faults of single parts of a network: a link, a NIC, a node or a switch that is slow or down.

A fault is data: which part, and what becomes of it. :func:`broken` applies faults to a topology;
nodes of the graph keep their numbers, so that whatever does not use what is broken stays as it is
to the last bit. Ways are searched anew on what is left, by the routing of the network.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from simulator.support.arrays import Floats, Longs, Mask
from simulator.support.errors import DisconnectedError, TopologyError
from simulator.support.names import did_you_mean
from simulator.topology import SCALE_OUT, Doors, Topology, with_links
from topologies.part_names import Parts

Value = Literal["bandwidth", "latency"]
DRAWN = ("links", "nics", "switches", "nodes")
"""What may be drawn by lot."""
_NAMED = 3
"""Parts of a draw, and groups of ranks that are cut off, that are named one by one."""


@dataclass(frozen=True, slots=True)
class LinkNamed:
    """Both directions of ``leaf0-spine1``; of ``leaf0->spine1`` the one."""

    name: str

    def __str__(self) -> str:
        return f"link {self.name}"


@dataclass(frozen=True, slots=True)
class NicNamed:
    """A NIC of a node, by number."""

    node: int
    number: int

    def __str__(self) -> str:
        return f"nic {self.number} of node {self.node}"


@dataclass(frozen=True, slots=True)
class NodeNamed:
    """A node (host): all links that begin or end inside."""

    node: int

    def __str__(self) -> str:
        return f"node {self.node}"


@dataclass(frozen=True, slots=True)
class SwitchNamed:
    """A switch: all links that begin or end there."""

    name: str

    def __str__(self) -> str:
        return f"switch {self.name}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A share of the links, NICs, switches or nodes, drawn by lot.

    ``percent`` of those that the job's network has, to the nearest whole number. The same ``seed``
    and ``draw`` are the same parts, and a smaller share is part of a greater one. ``seed`` is None
    where the caller decides; 0 by default.
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was drawn: the parts, and in words out of how many."""

    lot: Drawn
    parts: tuple[Named, ...]
    summary: str

    def __str__(self) -> str:
        return str(self.lot)


Part = Named | Drawn | Chosen


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of a part: it is down (``factor`` None), or a value is multiplied.

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


@dataclass(frozen=True, slots=True, eq=False)
class Broken:
    """A network after its faults; ``notes`` says of each what it met, ``tiers`` on what resources.

    ``rerouted`` is whether links are gone, so that ways had to be searched anew.
    """

    network: Topology
    notes: tuple[str, ...] = ()
    tiers: tuple[tuple[str, ...], ...] = ()
    rerouted: bool = False


@dataclass(slots=True, eq=False)
class _Links:
    """What becomes of every link: factors, and whether it is left."""

    bandwidth: Floats
    latency: Floats
    left: Mask
    tiers: list[tuple[str, ...]] = field(default_factory=list)


def broken(network: Topology, faults: Iterable[Fault], home: Longs | None = None) -> Broken:
    """Apply faults to a network, in order; factors of one link multiply.

    Parameters
    ----------
    network
        The topology; it stays as it is.
    faults
        What is wrong with it.
    home
        Node (host) of each node of the graph (:func:`topologies.part_names.homes`), shape
        ``(nodes,)``; without it nodes cannot be named.

    Returns
    -------
    Broken
        The network, named after its faults, and what each of them met.

    Raises
    ------
    TopologyError
        If there is no such part (with the nearest names), or it has no links that the fault could
        change.
    DisconnectedError
        If ranks are cut off from the others, naming them.

    Examples
    --------
    >>> from topologies import ring
    >>> there = broken(ring(4, bandwidth=50e9, latency=1e-6), [Fault(LinkNamed("0-1"), None)])
    >>> len(there.network), there.notes
    (6, ('rank0-rank1',))
    """
    parts, faults = Parts(network, home), _all_chosen(network, faults, home)
    ones = np.ones(len(network))
    links = _Links(ones.copy(), ones.copy(), np.ones(len(network), dtype=np.bool_))
    notes = tuple(_apply(parts, fault, links) for fault in faults)
    routing, slowed = network.routing, np.minimum(links.bandwidth, 1.0)
    if routing.slowed is not None:
        slowed *= routing.slowed
    capacity = None if routing.capacity is None else routing.capacity * links.bandwidth
    routing = replace(routing, capacity=capacity, slowed=slowed if (slowed < 1).any() else None)
    done = replace(network, bandwidth=network.bandwidth * links.bandwidth, routing=routing)
    done = replace(done, latency=network.latency * links.latency)
    gone = not links.left.all()
    if gone:
        done = with_links(done, links.left)
        done = done if done.doors is None else _by_other_nics(done, done.doors)
        _check_joined(done, faults)
    if faults:  # no closed form of its family holds any longer
        done = replace(done, name=", ".join([network.name, *map(str, faults)]))
    return Broken(done, notes, tuple(links.tiers), gone)


def _all_chosen(
    network: Topology, faults: Iterable[Fault], home: Longs | None
) -> tuple[Fault, ...]:
    """Draw what is to be drawn; the draws of one network are numbered, so that they differ."""
    faults_of_parts: list[Fault] = []
    for fault in faults:
        drawn = isinstance(fault.part, Drawn)
        faults_of_parts.append(
            chosen(network, fault, lots(faults_of_parts), home) if drawn else fault
        )
    return tuple(faults_of_parts)


def lots(faults: Iterable[Fault]) -> int:
    """Count the lots among faults."""
    return sum(isinstance(fault.part, Drawn | Chosen) for fault in faults)


def chosen(network: Topology, fault: Fault, number: int, home: Longs | None = None) -> Fault:
    """Draw the parts of a fault by lot, and check that the link of any other is there.

    Parameters
    ----------
    network
        What is drawn from: without faults.
    fault
        By lot or not.
    number
        How many lots there were before, so that the next one differs.
    home
        As :func:`broken` takes it.

    Returns
    -------
    Fault
        Of parts that are named, and stay these on a network that was changed.

    Raises
    ------
    TopologyError
        If a link is not there, there is nothing to draw from, or the share is less than one part.
    """
    if isinstance(fault.part, LinkNamed):
        Parts(network, home).link_named(fault.part.name)
    if not isinstance(fault.part, Drawn):
        return fault
    return replace(fault, part=_drawn(Parts(network, home), fault.part, number))


def _apply(parts: Parts, fault: Fault, links: _Links) -> str:
    """Write a fault into what becomes of the links; returns what it met."""
    network = parts.network
    drawn = fault.part.parts if isinstance(fault.part, Chosen) else (fault.part,)
    summary = fault.part.summary if isinstance(fault.part, Chosen) else ""
    touched = np.zeros(len(network), dtype=np.bool_)
    # What this fault leaves of each link's bandwidth.
    factor = np.ones(len(network))
    for part in drawn:
        met, count = _links_of(parts, part, fault)
        touched |= met
        # of NICs that stand together each loses its own share; of two slow ends one is enough
        share = fault.factor or 0.0
        factor[met] = share if count == 1 else factor[met] - (1 - share) / count
    links.tiers.append(_tiers(network, touched))
    if fault.value == "latency":
        links.latency *= np.where(touched, fault.factor or 1.0, 1.0)
        return summary or _cable_summary(parts, touched)
    # A link without bandwidth is taken out rather than left with 0, which would be a division by
    # zero.
    gone = touched & (factor < _NOTHING)
    links.left &= ~gone
    links.bandwidth *= np.where(gone, 1.0, factor)
    return summary or _cable_summary(parts, touched)


_NOTHING = 1e-9
"""Shares of NICs that stand together add up to all of them but for rounding."""


def _links_of(parts: Parts, part: Part, fault: Fault) -> tuple[Mask, int]:
    """Links of a part that a fault changes, and for how many NICs they stand (1: itself)."""
    network = parts.network
    met, count = _FIND[type(part)](parts, part)
    if count > 1 or (isinstance(part, NicNamed) and fault.factor is not None):
        met &= network.following(f"{SCALE_OUT}.bandwidth")  # not the slot a rank reaches it by
    if fault.resource is not None:
        _check_resource(network, fault.resource)
        met &= network.following(f"{fault.resource}.bandwidth")
    if fault.factor is not None:
        met = _with_value(network, met, fault)
    if not met.any():
        what = f"{fault.resource} links" if fault.resource else f"{fault.value} of its own"
        raise TopologyError(f"{part} of {network.name} has no {what} to change")
    return met, count


def _of_nic(parts: Parts, part: NicNamed) -> tuple[Mask, int]:
    ends, count = parts.nic(part.node, part.number)
    return _at(parts.network, ends), count


_FIND: dict[type, Callable[[Parts, Any], tuple[Mask, int]]] = {
    LinkNamed: lambda parts, part: parts.link_moved(part.name),
    NicNamed: _of_nic,
    NodeNamed: lambda parts, part: (_at(parts.network, parts.node(part.node)), 1),
    SwitchNamed: lambda parts, part: (_at(parts.network, parts.switch(part.name)), 1),
}
"""Per sort of part: its links, and for how many NICs together they stand."""


def _check_resource(network: Topology, resource: str) -> None:
    if resource not in network.resources:
        hint = did_you_mean(resource, network.resources)
        raise TopologyError(
            f"{network.name} has no links of {resource!r}; {hint}it has"
            f" {', '.join(network.resources)}"
        )


def _with_value(network: Topology, met: Mask, fault: Fault) -> Mask:
    """Leave out links that have no such value: unlimited ones, and ones without latency."""
    if fault.value == "bandwidth":
        return met & np.isfinite(network.bandwidth)
    return met & (network.latency > 0)


def _at(network: Topology, vertices: Mask) -> Mask:
    """Links that begin or end at some nodes of the graph."""
    return np.asarray(vertices[network.source] | vertices[network.target])


def _drawn(parts: Parts, lot: Drawn, number: int) -> Chosen:
    """Draw parts; ``number`` tells the lots of one network apart."""
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
    names = ", ".join(str(part).removeprefix("link ") for part in drawn[:_NAMED])
    more = ", …" if count > _NAMED else ""
    return Chosen(lot, drawn, f"{count} of {len(candidates)} {tier}{lot.of}: {names}{more}")


def _some_links(parts: Parts, resource: str | None) -> list[Named]:
    """Cables whose bandwidth is limited; the others are drawn for the eye, nothing can break."""
    network, first = parts.network, parts.first_link
    drawable = np.isfinite(network.bandwidth[first])
    if resource is not None:
        drawable &= network.following(f"{resource}.bandwidth")[first]
    return [LinkNamed(parts.cable_name(number)) for number in np.flatnonzero(drawable).tolist()]


def _some_nics(parts: Parts, resource: str | None) -> list[Named]:
    del resource  # a NIC is of the scale-out fabric
    nics: list[Named] = []
    for name in (parts.names[number] for number in parts.nics):
        node, _, numbers = name.removeprefix("nic:").partition(".")
        first, _, last = numbers.partition("-")
        nics += [
            NicNamed(int(node), number) for number in range(int(first), int(last or first) + 1)
        ]
    return nics


def _some_switches(parts: Parts, resource: str | None) -> list[Named]:
    network, switches = parts.network, parts.switches
    if resource is not None:
        of_resource = network.following(f"{resource}.bandwidth")
        ends = parts.part[
            np.concatenate([network.source[of_resource], network.target[of_resource]])
        ]
        switches = switches[np.isin(switches, ends)]
    return [SwitchNamed(parts.names[number]) for number in switches.tolist()]


def _some_nodes(parts: Parts, resource: str | None) -> list[Named]:
    del resource
    return [] if parts.home is None else [NodeNamed(n) for n in range(int(parts.home.max()) + 1)]


_CANDIDATES: dict[str, Callable[[Parts, str | None], list[Named]]] = {
    "links": _some_links,
    "nics": _some_nics,
    "switches": _some_switches,
    "nodes": _some_nodes,
}


def _cable_summary(parts: Parts, touched: Mask) -> str:
    """Name the cables that a fault met: one, or how many of which resources."""
    cables = np.unique(parts.cable[touched])
    if len(cables) == 1:
        return parts.cable_name(int(cables[0]))
    tiers = " and ".join(_tiers(parts.network, touched))
    return f"{len(cables)} links of {tiers}"


def _tiers(network: Topology, touched: Mask) -> tuple[str, ...]:
    return tuple(network.resources[number] for number in np.unique(network.resource[touched]))


def _by_other_nics(network: Topology, doors: Doors) -> Topology:
    """Let what used a NIC without links use the nearest that is left of the node, if one is."""
    leaves = np.bincount(network.source, minlength=len(network.nodes)) > 0
    enters = np.bincount(network.target, minlength=len(network.nodes)) > 0
    alive = leaves[doors.out] & enters[doors.out] & leaves[doors.into] & enters[doors.into]
    out, into = doors.out.copy(), doors.into.copy()
    for node, nic in np.argwhere(~alive).tolist():
        others = np.flatnonzero(alive[node])
        if not len(others):
            continue  # a sender there is cut off, which is reported elsewhere
        users = np.flatnonzero((doors.node == node) & (doors.nic == nic))
        start = users[:1] if len(users) else np.flatnonzero(doors.node == node)[:1]
        far = _hops(network, start)
        after = (others - nic) % alive.shape[1]
        nearest = others[np.lexsort((after, far[doors.out[node, others]]))[0]]
        out[node, nic], into[node, nic] = doors.out[node, nearest], doors.into[node, nearest]
    return replace(network, doors=replace(doors, out=out, into=into))


def _hops(network: Topology, start: Longs) -> Longs:
    """Links from a node of the graph to every other, at least; as many as there are nodes if none.

    The way back of a link is the same number the other way round.
    """
    far = np.full(len(network.nodes), len(network.nodes), dtype=np.int64)
    far[start] = 0
    front = np.zeros(len(network.nodes), dtype=np.bool_)
    front[start] = True
    steps = 0
    while front.any():
        steps += 1
        reached = np.zeros_like(front)
        reached[network.target[front[network.source]]] = True
        front = reached & (far == len(far))
        far[front] = steps
    return far


def _check_joined(network: Topology, faults: tuple[Fault, ...]) -> None:
    """Refuse a network on which ranks no longer reach each other; the largest group is the rest."""
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
    back = replace(network, source=network.target, target=network.source)
    nodes, groups = len(network.nodes), []
    todo = np.arange(network.ranks)
    while len(todo):
        first = todo[:1]
        # Ranks that reach the first and are reached by it: a strongly connected component, as seen
        # by ranks.
        mutual = (_hops(network, first) < nodes) & (_hops(back, first) < nodes)
        groups.append(todo[mutual[todo]])
        todo = todo[~mutual[todo]]
    return groups


def say_ranks(ranks: Longs) -> str:
    """Say which ranks: ``rank 3``, ``ranks 0-7, 16``.

    Examples
    --------
    >>> say_ranks(np.array([0, 1, 2, 5]))
    'ranks 0-2, 5'
    """
    # Ascending ranks, cut wherever a number is skipped.
    runs = np.split(ranks, np.flatnonzero(np.diff(ranks) > 1) + 1)
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    more = ", …" if len(ranges) > 2 * _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranges[: 2 * _NAMED])}{more}"
