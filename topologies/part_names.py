"""Names of the parts of a network: its cables, NICs, switches and nodes, as users write them.

A cable is both directions of a link; the two sides of a NIC are one part. ``leaf:0-spine:1`` is the
cable between two switches, ``rank3-scale_up:0`` that of rank 3 to the switch of its domain,
``nic:2.3-leaf:0`` the cable of NIC 3 of node 2. Case, colons and blanks are ignored:
``leaf0-spine1`` is the first of these.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import Struct

from simulator.support.arrays import Longs, Mask
from simulator.support.errors import TopologyError
from simulator.support.names import did_you_mean
from simulator.support.quantities import count_of
from simulator.topology import Node, Topology

NOWHERE = -1
"""Node number of parts outside all nodes: switches between nodes."""
_NIC_SIDE = re.compile(r"(.*):(?:out|in)")
_NIC = re.compile(r"nic:(\d{1,18})\.(\d{1,18})(?:-(\d{1,18}))?")
_ONE_NIC = re.compile(r"nic(\d{1,18})\.(\d{1,18})")
_DOMAIN = re.compile(r"scale_up(\d{1,18})")
_PLANE = re.compile(r"plane(\d{1,18})")
_RANK = re.compile(r"rank(\d{1,18})")
_MOST_LISTED = 8


class Cable(Struct, frozen=True):
    """Both directions of a link, or the only one.

    ``bandwidth`` (B/s) and ``latency`` (s) are those of the first direction; bandwidth is infinite
    if unlimited.
    """

    name: str
    resource: str
    bandwidth: float
    latency: float


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of one network, by name.

    Parameters
    ----------
    network
        The topology.
    home
        Node (host) of each node of the graph, :data:`NOWHERE` for those outside all, shape
        ``(nodes,)``; None if the network has no hosts.
    """

    network: Topology
    home: Longs | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all parts that are not cables, in the order of the graph."""
        return tuple(dict.fromkeys(map(part_name, self.network.nodes)))

    @cached_property
    def part(self) -> Longs:
        """Part of each node of the graph, as an index into ``names``."""
        number = {name: index for index, name in enumerate(self.names)}
        return np.array([number[part_name(node)] for node in self.network.nodes], dtype=np.int64)

    @cached_property
    def cable(self) -> Longs:
        """Cable of each link, numbered by first appearance, shape ``(links,)``."""
        ends = self.part[self.network.source], self.part[self.network.target]
        key = np.minimum(*ends) * len(self.names) + np.maximum(*ends)
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[which.ravel()], dtype=np.int64)

    @cached_property
    def first_link(self) -> Longs:
        """First direction of each cable, shape ``(cables,)``."""
        return np.asarray(np.unique(self.cable, return_index=True)[1], dtype=np.int64)

    def cable_name(self, cable: int) -> str:
        """Return the name of a cable: ``leaf:0-spine:1``."""
        link = self.first_link[cable]
        network = self.network
        source, target = self.part[network.source[link]], self.part[network.target[link]]
        return f"{self.names[source]}-{self.names[target]}"

    def cables(self) -> Iterator[Cable]:
        """Yield all cables in the order of the network's links."""
        for number, index in enumerate(self.first_link.tolist()):
            link = self.network.link(index)
            yield Cable(self.cable_name(number), link.resource, link.bandwidth, link.latency)

    def link_named(self, text: str) -> tuple[Mask, int]:
        """Return both directions of ``leaf0-spine1``; the one of ``leaf0->spine1``.

        Returns
        -------
        tuple
            The links, and the number of cables they represent: NICs that serve a rank together are
            one node of the graph, and an end may name one of them.

        Raises
        ------
        TopologyError
            If there is no such cable; lists the nearest names, or the neighbours of the first end.
        """
        source, target, one_way = self._split_link(text)
        links = self._joining(source, target, one_way=one_way)
        if not links.any():
            first = self.vertices(source)[self.network.source]
            led = dict.fromkeys(self.names[self.part[end]] for end in self.network.target[first])
            name = self._name(source)
            raise TopologyError(
                f"{self.network.name} has no link {text}: {name} leads to {_first_names(led)}"
            )
        return links, max(self._nic_count(source), self._nic_count(target))

    def link_moved(self, text: str) -> tuple[Mask, int]:
        """Return the links of a name from a network with other sizes, and so numbers, of domains.

        For a rank and the switch of its domain it is the link to the switch of the rank's present
        domain. For others, and if the name still exists, as :meth:`link_named`.
        """
        ends = text.replace("→", "->").replace("->", "-").split("-")
        match = [_DOMAIN.fullmatch(_normalised(end)) for end in ends]
        rank = [_RANK.fullmatch(_normalised(end)) for end in ends]
        if len(ends) != 2 or not any(match) or not any(rank):
            return self.link_named(text)
        number = next(int(rank_match[1]) for rank_match in rank if rank_match)
        if number >= self.network.ranks:
            return self.link_named(text)
        out = self.part[self.network.target[self.network.source == number]]
        switches = [
            self.names[part] for part in out if _DOMAIN.fullmatch(_normalised(self.names[part]))
        ]
        if len(switches) != 1:
            return self.link_named(text)
        moved = [switches[0] if rank else end for rank, end in zip(match, ends, strict=True)]
        return self.link_named(("->" if "->" in text or "→" in text else "-").join(moved))

    def _split_link(self, text: str) -> tuple[str, str, bool]:
        """Split the name of a link at the hyphen that is between its ends."""
        arrow = text.replace("→", "->")
        if "->" in arrow:
            source, target = arrow.split("->", 1)
            return source, target, True
        marks = [index for index, letter in enumerate(text) if letter == "-"]
        if not marks:
            raise TopologyError(f"link {text!r}: name both ends, as in leaf0-spine1")
        tried = [(text[:mark], text[mark + 1 :]) for mark in marks]
        return (*max(tried, key=self._match_score), False)

    def vertices(self, name: str) -> Mask:
        """Return the graph's nodes of a named part, shape ``(nodes,)``."""
        return np.asarray(self.part == self.names.index(self._name(name)))

    def nic(self, node: int, number: int) -> tuple[Mask, int]:
        """Return the graph's nodes of a NIC, and how many NICs they represent together."""
        nics = self._nics_of(node)
        for name, first, last in nics:
            if first <= number <= last:
                return self.vertices(name), last - first + 1
        if not nics:
            self.node(node)
            raise TopologyError(f"{self.network.name}: node {node} has no NICs")
        most = max(last for _, _, last in nics)
        raise TopologyError(f"{self.network.name}: node {node} has NICs 0 to {most}, not {number}")

    def node(self, node: int) -> Mask:
        """Return the graph's nodes inside a node (host), shape ``(nodes,)``."""
        if self.home is None:
            raise TopologyError(
                f"{self.network.name} has no record of its nodes (hosts); name links or switches"
            )
        inside = np.asarray(self.home == node)
        if not inside.any():
            raise TopologyError(
                f"{self.network.name} has no node {node}: the job is on nodes 0 to"
                f" {self.home.max()}"
            )
        return inside

    def switch(self, name: str) -> Mask:
        """Return the graph's nodes of a switch; for ``plane1`` those of all switches in it.

        Raises
        ------
        TopologyError
            If no part has this name, or it is a rank or a NIC.
        """
        plane = _PLANE.fullmatch(_normalised(name))
        if plane is not None:
            inside = np.array([part.endswith(f".p{plane[1]}") for part in self.names])[self.part]
            if inside.any():
                return inside
        vertices = self.vertices(name)
        if vertices[: self.network.ranks].any() or _NIC.fullmatch(self._name(name)):
            raise TopologyError(f"{self._name(name)} is not a switch; name its link or NIC")
        return vertices

    @cached_property
    def switches(self) -> Longs:
        """Parts that are neither ranks nor NICs, as indices into ``names``."""
        ranks = set(self.part[: self.network.ranks].tolist())
        return np.array(
            [
                number
                for number, name in enumerate(self.names)
                if number not in ranks and not _NIC.fullmatch(name)
            ],
            dtype=np.int64,
        )

    @cached_property
    def nics(self) -> Longs:
        """Parts that are NICs, as indices into ``names``."""
        numbers = [number for number, name in enumerate(self.names) if _NIC.fullmatch(name)]
        return np.array(numbers, dtype=np.int64)

    @cached_property
    def _name_of_spelling(self) -> dict[str, str]:
        spelt = {str(rank): part_name(rank) for rank in range(self.network.ranks)}
        return spelt | {_normalised(name): name for name in self.names}

    def _known(self, name: str) -> bool:
        return _normalised(name) in self._name_of_spelling or self._name_of_nics(name) is not None

    def _name_of_nics(self, name: str) -> str | None:
        """Return the name of the group of NICs that a NIC belongs to; None for others."""
        match = _ONE_NIC.fullmatch(_normalised(name))
        if match is None or _normalised(name) in self._name_of_spelling:
            return None
        node, number = int(match[1]), int(match[2])
        return next(
            (vertex for vertex, first, last in self._nics_of(node) if first <= number <= last), None
        )

    def _nic_count(self, name: str) -> int:
        """Return how many NICs the part of a named NIC represents; 1 for other parts."""
        together = self._name_of_nics(name)
        match = _NIC.fullmatch(together) if together else None
        return int(match[3]) - int(match[2]) + 1 if match else 1

    def _nics_of(self, node: int) -> list[tuple[str, int, int]]:
        """Return the NICs of a node: name, first and last number of each."""
        return [
            (name, int(match[2]), int(match[3] or match[2]))
            for name in self.names
            if (match := _NIC.fullmatch(name)) and int(match[1]) == node
        ]

    def _match_score(self, pair: tuple[str, str]) -> int:
        """Count existing ends, and the cable between them: names may contain hyphens."""
        matched = sum(map(self._known, pair))
        return matched + (matched == len(pair) and bool(self._joining(*pair, one_way=False).any()))

    def _name(self, text: str) -> str:
        if not self._known(text):
            hint = did_you_mean(text, self.names)
            raise TopologyError(
                f"no part of {self.network.name} is called {text.strip()!r}; {hint}"
                "'twofold clusters NAME --links' lists all names"
            )
        return self._name_of_nics(text) or self._name_of_spelling[_normalised(text)]

    def _joining(self, first: str, second: str, *, one_way: bool) -> Mask:
        from_first, to_second = self.vertices(first), self.vertices(second)
        network = self.network
        links: Mask = from_first[network.source] & to_second[network.target]
        if not one_way:
            links |= to_second[network.source] & from_first[network.target]
        return links


def part_name(node: Node) -> str:
    """Return the name of a node of a graph, which both sides of a NIC share.

    Examples
    --------
    >>> part_name(3), part_name("nic:0.1:out"), part_name("spine:1")
    ('rank3', 'nic:0.1', 'spine:1')
    """
    if isinstance(node, int):
        return f"rank{node}"
    text = str(node)
    side = _NIC_SIDE.fullmatch(text)
    return side[1] if side else text


def homes(network: Topology, node_of_rank: Sequence[int], inside: Iterable[str] = ()) -> Longs:
    """Return the node (host) of each node of a cluster's graph.

    Parameters
    ----------
    network
        A network of :func:`topologies.build`.
    node_of_rank
        Node of each rank.
    inside
        Names of other vertices in a node, followed in the graph by its number: those of a wiring.

    Returns
    -------
    array of int
        Node of each node of the graph, :data:`NOWHERE` for switches between nodes, shape
        ``(nodes,)``.
    """
    named = {"host", *inside}
    home = np.full(len(network.nodes), NOWHERE, dtype=np.int64)
    home[: network.ranks] = node_of_rank
    for index, node in enumerate(network.nodes[network.ranks :], start=network.ranks):
        word, _, number = str(node).partition(":")
        if word in ("nic", "gpu"):
            number = number.partition(".")[0]
        elif word.removesuffix("-down") not in named:
            continue
        of_node = count_of(number)
        home[index] = NOWHERE if of_node is None else of_node
    return home


def _normalised(name: str) -> str:
    return re.sub(r"[:\s]", "", name).lower()


def _first_names(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_MOST_LISTED]) + (", …" if len(names) > _MOST_LISTED else "")
