"""A network: ranks, switches and NICs joined by links, each link part of a resource.

A resource (``scale_up``, ``scale_out``, ``pcie``, or a name of the user's) is what one doubles:
a what-if on the network scales the links of one resource and touches nothing else.

How it routes is data of a topology, too. Where several next hops are as near to a message's target,
a policy (:class:`Routing`) says which of them it takes:

============  =====================================================================================
``ecmp``      one, by a hash of source, target and switch (RFC 2992); every pair keeps its path
``static``    one, by a hash of target and switch: a forwarding table that knows no source
``d_mod_k``   one, by the digits of the target's number: E. Zahavi, "D-Mod-K Routing Providing
              Non-Blocking Traffic for Shift Permutations on Real Life Fat Trees", CCIT Report 776,
              Technion 2010
``spray``     all of them alike: packets are spread one by one
``adaptive``  all of them, in proportion to what they can carry on; and a part of the message over
              detours, where that takes bytes off the busiest link
``minimal``   all of them alike
``valiant``   all of them alike, first to each group, or router, in between: L. G. Valiant, "A
              scheme for fast parallel communication", SIAM J. Computing 11 (1982)
============  =====================================================================================

Where routers are in groups (:attr:`Routing.group`) a cable between two groups counts as longer than
two cables inside, under every policy: least paths take one of them. Detours are Valiant's, so
without groups ``adaptive`` has none, and ``valiant`` does not exist.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Ints, Longs, Mask, offsets_by_row
from simulator.support.errors import TopologyError
from simulator.support.names import did_you_mean

if TYPE_CHECKING:
    import networkx as nx

POLICIES = ("ecmp", "static", "d_mod_k", "spray", "adaptive", "minimal", "valiant")
"""Every policy by its name."""
HASHED = ("ecmp", "static")
"""Those that choose by a hash, of which a seed is another draw."""
DIVIDING = ("spray", "adaptive", "minimal", "valiant")
"""Those under which a message may take several paths."""


@dataclass(frozen=True, eq=False)
class Routing:
    """How switches choose among next hops that are equally near to the target.

    Parameters
    ----------
    policy
        One of :data:`POLICIES`.
    resource
        The policy is that of the switches all of whose links out are of this resource, "" for all
        nodes. Elsewhere, at ranks with several NICs for instance, a hash chooses.
    seed
        Of the hash: another one is another draw of all paths.
    flows
        How many flows ``ecmp`` hashes by themselves of each message, which carry as much each: the
        channels of a connection and the queue pairs that its data are split over.
    group
        Of each node the group of routers that it belongs to, -1 for none, shape ``(nodes,)``. In
        a single group every router may be the middle of a detour, else every group.
    capacity
        What adaptive switches think each link can carry, in proportion to each other, shape
        ``(links,)``; its bandwidth if not given.
    slowed
        What faults left of the bandwidth of each link, 1 of a sound one, shape ``(links,)``.
        Messages that are divided avoid what is slower.

    Raises
    ------
    TopologyError
        If the policy is unknown, the seed is negative, there are no flows or several of another
        policy than ``ecmp``, or ``valiant`` has no groups.

    Examples
    --------
    >>> Routing("adaptiv")
    Traceback (most recent call last):
        ...
    simulator.support.errors.TopologyError: 'adaptiv' is not a routing policy; did you mean adaptive? there are ecmp, static, d_mod_k, spray, adaptive, minimal, valiant
    """  # noqa: E501

    policy: str = "ecmp"
    resource: str = ""
    seed: int = 0
    flows: int = 1
    group: Ints | None = field(default=None, repr=False)
    capacity: Floats | None = field(default=None, repr=False)
    slowed: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            hint = did_you_mean(self.policy, POLICIES)
            raise TopologyError(
                f"{self.policy!r} is not a routing policy; {hint}there are {', '.join(POLICIES)}"
            )
        if self.seed < 0:
            raise TopologyError(f"seed {self.seed} of a routing is negative; give 0 or more")
        if self.flows < 1 or (self.flows > 1 and self.policy != "ecmp"):
            raise TopologyError(
                f"{self.flows} flows of a message under {self.policy}: give 1, or more under ecmp"
            )
        if self.policy == "valiant" and self.group is None:
            raise TopologyError("routing valiant needs groups of routers, and the network has none")

    @property
    def divides(self) -> bool:
        """Whether a message may take several paths."""
        return self.policy in DIVIDING or self.flows > 1

    @property
    def detours(self) -> bool:
        """Whether a message may take a path that is not of least metric."""
        return self.group is not None and self.policy in ("adaptive", "valiant")


Node = Hashable
Route = Callable[[int, int], Sequence[Node]]
"""Nodes from a rank to another, both included."""
SCALE_UP, SCALE_OUT, PCIE = "scale_up", "scale_out", "pcie"
_LONGEST = 3600.0
"""Seconds of a latency: light takes 1.3 to the Moon, and 1,300 to Mars."""
SCALE_OUT_HOPS = 1000
"""Hops that a link between domains counts as: more than any scale-up domain has, so that leaving it
never looks shorter."""
HOP = 1024
"""What a link counts on a path where links have metrics of their own: parts of it break ties."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a cable.

    Parameters
    ----------
    source, target
        Nodes: ranks by number, all else by name.
    bandwidth
        B/s; infinite if nothing limits it.
    latency
        s.
    resource
        The resource it belongs to; a what-if scales the links of one resource.
    latency_resource
        The resource whose latency it has, "" for its own: a PCIe switch may have the latency of the
        scale-up fabric.
    metric
        Its routing metric, in parts of a hop (:data:`HOP`); 0 for that of its resource
        (:mod:`simulator.routing.routes`).

    Raises
    ------
    TopologyError
        If the bandwidth is not positive, the latency not a time, or both ends are the same node.

    Notes
    -----
    ``latency`` is alpha and ``1 / bandwidth`` is beta of the Hockney model (Parallel Computing
    20, 1994): a message of ``m`` bytes on an idle link takes ``latency + m / bandwidth``. On a
    path the message is cut through, not stored: latencies add up, the least bandwidth counts.

    Examples
    --------
    >>> Link(0, "switch", 50e9, 1e-6).resource
    'scale_up'
    """

    source: Node
    target: Node
    bandwidth: float
    latency: float
    resource: str = SCALE_UP
    latency_resource: str = ""
    metric: int = 0

    def __post_init__(self) -> None:
        wrong = ""
        try:
            if not self.bandwidth > 0:
                wrong = f": bandwidth {self.bandwidth!r} is not positive"
            elif not 0 <= self.latency <= _LONGEST:
                wrong = f": latency {self.latency!r} s is not 0 to {_LONGEST:g} s"
            elif self.source == self.target:
                wrong = " ends where it starts"
        except TypeError:
            wrong = f": {self.bandwidth!r} and {self.latency!r}: write numbers, in B/s and s"
        if wrong:
            raise TopologyError(f"link {self.source} -> {self.target}{wrong}")


@dataclass(frozen=True, eq=False)
class Doors:
    """The NIC by which each rank leaves and enters its node, in nodes with paths to several NICs.

    A message between nodes takes the shortest path from its source to that NIC, from NIC to NIC,
    and from there to its target. Inside a node no message passes through a NIC.

    Parameters
    ----------
    node, nic
        Node of each rank, and index of its NIC there, shape ``(ranks,)``.
    out, into
        The sending and the receiving side of each NIC, indices into the nodes of the topology,
        shape
        ``(nodes, NICs of a node)``.
    by_target
        Whether a message leaves by the NIC with the index of its target's: if NICs of one index
        share a switch (rails), it then crosses no other switch.
    """

    node: Ints
    nic: Ints
    out: Ints
    into: Ints
    by_target: bool = False


class Outage(NamedTuple):
    """Slow links out of service: marks the links that are ``left``, and the doors then."""

    left: Mask
    doors: Doors | None


class KnownRoutes(dict[tuple[bytes, ...], Any]):
    """Routes by sources and targets of messages, oldest first, and how many links they have."""

    links = 0


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """Links compiled to columns; ranks are the nodes ``0 … ranks - 1``.

    Build one with :func:`topology`, or with a function of :mod:`topologies`.

    Parameters
    ----------
    name
        With its parameters: ``torus(4x8)``.
    ranks
        How many; they are the first of ``nodes``.
    nodes
        Ranks, switches, NICs.
    source, target
        Ends of each link, as indices into ``nodes``, shape ``(links,)``.
    bandwidth, latency
        Of each link (B/s, s), shape ``(links,)``.
    resource
        Of each link, as an index into ``resources``, shape ``(links,)``.
    resources
        Their names.
    latency_resource
        Name of the resource whose latency each link has, shape ``(links,)``.
    route
        Which nodes a message passes, both ends included; without it
        :mod:`simulator.routing.routes` finds the shortest path.
    doors
        By which NICs messages leave and enter nodes; without them by those on the shortest path.
    metric
        What each link counts on a path, 0 for what its resource does, shape ``(links,)``; None
        where none has a metric of its own.
    routing
        How switches choose among equally near next hops; by a hash if not given.
    kind
        Which kind of node each rank sits on, where kinds differ in more than their links; parts
        of the network with ranks of other kinds are not alike.
    outages
        Ways to take slow links out of service, of which a call may take one if it ends earlier.

    Examples
    --------
    >>> network = topology("pair", 2, [Link(0, 1, 50e9, 1e-6), Link(1, 0, 50e9, 1e-6)])
    >>> len(network), network.resources, network.link(1).target
    (2, ('scale_up',), 0)
    """

    name: str
    ranks: int
    nodes: tuple[Node, ...]
    source: Ints
    target: Ints
    bandwidth: Floats
    latency: Floats
    resource: NDArray[np.int16]
    resources: tuple[str, ...]
    latency_resource: NDArray[np.str_]
    route: Route | None = None
    doors: Doors | None = None
    metric: Longs | None = None
    routing: Routing = field(default_factory=Routing)
    kind: tuple[int, ...] = ()
    outages: tuple[Outage, ...] = ()

    def __repr__(self) -> str:
        """Say it in one line: columns of thousands of links are no description."""
        return f"<Topology {self.name}: {self.ranks:,} ranks, {len(self):,} links>"

    def __len__(self) -> int:
        return len(self.source)

    def following(self, value: str) -> Mask:
        """Links that change in proportion with a value such as ``scale_up.latency``.

        Examples
        --------
        >>> links = [Link(0, 1, 1e9, 0.0), Link(1, 0, 1e9, 0.0, PCIE, latency_resource=SCALE_UP)]
        >>> pair = topology("pair", 2, links)
        >>> [pair.following(f"scale_up.{of}").tolist() for of in ("bandwidth", "latency")]
        [[True, False], [True, True]]
        """
        tier, _, number = value.partition(".")
        if number == "latency":
            return np.asarray(self.latency_resource == tier)
        if tier not in self.resources:
            return np.zeros(len(self), dtype=np.bool_)
        return np.asarray(self.resource == self.resources.index(tier))

    @cached_property
    def out_links(self) -> tuple[Longs, Ints]:
        """CSR of links by source node, each row sorted by target: ``(offset, link)``."""
        order = np.lexsort((self.target, self.source)).astype(np.int32)
        return offsets_by_row(self.source, len(self.nodes)), order

    @cached_property
    def known_routes(self) -> "KnownRoutes":
        """Latest results of :func:`simulator.routing.routes.routes`."""
        return KnownRoutes()

    @cached_property
    def known_graph(self) -> dict[str, Any]:
        """Results of :mod:`simulator.routing.routes` that depend on the graph only."""
        return {}

    def link(self, index: int) -> Link:
        """Return a view of one link."""
        return Link(
            source=self.nodes[self.source[index]],
            target=self.nodes[self.target[index]],
            bandwidth=float(self.bandwidth[index]),
            latency=float(self.latency[index]),
            resource=self.resources[self.resource[index]],
            latency_resource=str(self.latency_resource[index]),
            metric=0 if self.metric is None else int(self.metric[index]),
        )

    def graph(self) -> "nx.DiGraph[Node]":
        """Return a networkx graph; edges carry ``bandwidth``, ``latency`` and ``resource``."""
        import networkx as nx  # slow to load, and nothing else here needs it

        graph: nx.DiGraph[Node] = nx.DiGraph(name=self.name, ranks=self.ranks)
        graph.add_nodes_from(self.nodes)
        for index in range(len(self)):
            link = self.link(index)
            graph.add_edge(
                link.source,
                link.target,
                bandwidth=link.bandwidth,
                latency=link.latency,
                resource=link.resource,
            )
        return graph


def topology(name: str, ranks: int, links: Iterable[Link]) -> Topology:
    """Compile links into a topology; ranks are the nodes ``0 … ranks - 1``.

    Parameters
    ----------
    name
        What errors and tables call it.
    ranks
        How many there are.
    links
        Every direction of every cable.

    Returns
    -------
    Topology
        Nodes other than ranks come in the order in which links name them.

    Raises
    ------
    TopologyError
        If there is no rank, a link is given twice, or a rank among several has no link.

    Examples
    --------
    >>> links = [Link(rank, "s", 50e9, 1e-6) for rank in (0, 1)]
    >>> links += [Link("s", rank, 50e9, 1e-6) for rank in (0, 1)]
    >>> topology("star", 2, links).nodes
    (0, 1, 's')
    """
    if ranks < 1:
        raise TopologyError(f"{name}: a topology needs a rank, not {ranks}")
    table = list(links)
    ends_of_links: list[Node] = [end for link in table for end in (link.source, link.target)]
    nodes = tuple(dict.fromkeys(chain(range(ranks), ends_of_links)))
    index = {node: number for number, node in enumerate(nodes)}
    ends = np.fromiter(map(index.__getitem__, ends_of_links), np.int32).reshape(-1, 2)
    pairs = ends[:, 0] * np.int64(len(nodes)) + ends[:, 1]
    _, pair, count = np.unique(pairs, return_inverse=True, return_counts=True)
    if len(count) != len(table):
        twice = table[int(np.argmax(count[pair] > 1))]
        raise TopologyError(
            f"{name}: two links {twice.source} -> {twice.target}; join them, bandwidths added"
        )
    alone = np.setdiff1d(np.arange(ranks), ends)
    if ranks > 1 and len(alone):
        raise TopologyError(f"{name}: rank {alone[0]} has no link")
    resources = tuple(dict.fromkeys(link.resource for link in table))
    number_of = {resource: number for number, resource in enumerate(resources)}
    return Topology(
        name=name,
        ranks=ranks,
        nodes=nodes,
        source=ends[:, 0],
        target=ends[:, 1],
        bandwidth=np.array([link.bandwidth for link in table], dtype=np.float64),
        latency=np.array([link.latency for link in table], dtype=np.float64),
        resource=np.array([number_of[link.resource] for link in table], dtype=np.int16),
        resources=resources,
        latency_resource=np.array(
            [link.latency_resource or link.resource for link in table], dtype=np.str_
        ),
        metric=(
            np.array([link.metric for link in table], dtype=np.int64)
            if any(link.metric for link in table)
            else None
        ),
    )


def with_links(network: Topology, links: Mask) -> Topology:
    """Return the topology with some of its links only; its nodes and its routing stay.

    Examples
    --------
    >>> pair = topology("pair", 2, [Link(0, 1, 1e9, 0.0), Link(1, 0, 1e9, 0.0)])
    >>> len(with_links(pair, np.array([True, False])))
    1
    """
    capacity, slowed = network.routing.capacity, network.routing.slowed
    return replace(
        network,
        source=network.source[links],
        target=network.target[links],
        bandwidth=network.bandwidth[links],
        latency=network.latency[links],
        resource=network.resource[links],
        latency_resource=network.latency_resource[links],
        metric=None if network.metric is None else network.metric[links],
        outages=tuple(Outage(outage.left[links], outage.doors) for outage in network.outages),
        routing=replace(
            network.routing,
            capacity=None if capacity is None else capacity[links],
            slowed=None if slowed is None else slowed[links],
        ),
    )
