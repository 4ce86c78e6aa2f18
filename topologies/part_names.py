"""Names of the parts of a network: its cables, NICs, switches and nodes, as a user calls them.

A cable is both directions of a link; the two sides of a NIC are one part. ``leaf:0-spine:1`` is the
cable between two switches, ``rank3-scale_up:0`` that of rank 3 to the switch of its domain,
``nic:2.3-leaf:0`` the cable of NIC 3 of node 2. Case, colons and blanks make no other name:
``leaf0-spine1`` is the first of these.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.support.arrays import Longs, Mask
from simulator.support.errors import TopologyError
from simulator.support.names import did_you_mean
from simulator.support.quantities import count_of
from simulator.topology import Node, Topology

NOWHERE = -1
"""Node of what belongs to none: a switch between nodes."""
_SIDE = re.compile(r"(.*):(?:out|in)")
_NIC = re.compile(r"nic:(\d{1,18})\.(\d{1,18})(?:-(\d{1,18}))?")
_ONE_NIC = re.compile(r"nic(\d{1,18})\.(\d{1,18})")
_DOMAIN = re.compile(r"scale_up(\d{1,18})")
_PLANE = re.compile(r"plane(\d{1,18})")
_RANK = re.compile(r"rank(\d{1,18})")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Cable:
    """Both directions of a link, or the one that there is.

    ``bandwidth`` (B/s) and ``latency`` (s) are those of the first direction; infinite where nothing
    limits it.
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
        Node (host) of each node of the graph, :data:`NOWHERE` of what belongs to none, shape
        ``(nodes,)``; None where the network has no hosts.
    """

    network: Topology
    home: Longs | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of every part that is not a cable, in the order of the graph."""
        return tuple(dict.fromkeys(map(part_name, self.network.nodes)))

    @cached_property
    def part(self) -> Longs:
        """Which part each node of the graph is, as an index into ``names``."""
        number = {name: index for index, name in enumerate(self.names)}
        return np.array([number[part_name(node)] for node in self.network.nodes], dtype=np.int64)

    @cached_property
    def cable(self) -> Longs:
        """Which cable each link is a direction of, numbered as they appear, shape ``(links,)``."""
        ends = self.part[self.network.source], self.part[self.network.target]
        key = np.minimum(*ends) * len(self.names) + np.maximum(*ends)
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[which.ravel()], dtype=np.int64)

    @cached_property
    def first_link(self) -> Longs:
        """First direction of each cable, shape ``(cables,)``."""
        return np.asarray(np.unique(self.cable, return_index=True)[1], dtype=np.int64)

    def cable_name(self, cable: int) -> str:
        """Return what a cable is called: ``leaf:0-spine:1``."""
        link = self.first_link[cable]
        network = self.network
        source, target = self.part[network.source[link]], self.part[network.target[link]]
        return f"{self.names[source]}-{self.names[target]}"

    def cables(self) -> Iterator[Cable]:
        """Go through all cables in the order of the network's links."""
        for number, index in enumerate(self.first_link.tolist()):
            link = self.network.link(index)
            yield Cable(self.cable_name(number), link.resource, link.bandwidth, link.latency)

    def link_named(self, text: str) -> tuple[Mask, int]:
        """Links that ``leaf0-spine1`` names: both directions; of ``leaf0->spine1`` the one.

        Returns
        -------
        tuple
            Which links, and for how many cables they stand: NICs that serve a rank together are
            drawn as one, and an end may name one of them.

        Raises
        ------
        TopologyError
            If there is no such cable: with the nearest names, or what the first end leads to.
        """
        source, target, one_way = self._ends(text)
        links = self._between(source, target, one_way=one_way)
        if not links.any():
            first = self.vertices(source)[self.network.source]
            led = dict.fromkeys(self.names[self.part[end]] for end in self.network.target[first])
            name = self._name(source)
            raise TopologyError(
                f"{self.network.name} has no link {text}: {name} leads to {_listed(led)}"
            )
        return links, max(self._stands_for(source), self._stands_for(target))

    def link_moved(self, text: str) -> tuple[Mask, int]:
        """Links that a name meant on a network whose domains had other sizes, and so other numbers.

        Of a rank and the switch of its domain it is the link to the switch of the domain that the
        rank is in now; of all else, and where the name still is one, as :meth:`link_named`.
        """
        ends = text.replace("→", "->").replace("->", "-").split("-")
        match = [_DOMAIN.fullmatch(_letters(end)) for end in ends]
        rank = [_RANK.fullmatch(_letters(end)) for end in ends]
        if len(ends) != 2 or not any(match) or not any(rank):
            return self.link_named(text)
        number = next(int(rank_match[1]) for rank_match in rank if rank_match)
        if number >= self.network.ranks:
            return self.link_named(text)
        out = self.part[self.network.target[self.network.source == number]]
        switches = [
            self.names[part] for part in out if _DOMAIN.fullmatch(_letters(self.names[part]))
        ]
        if len(switches) != 1:
            return self.link_named(text)
        moved = [
            switches[0] if rank_match else end for rank_match, end in zip(match, ends, strict=True)
        ]
        return self.link_named(("->" if "->" in text or "→" in text else "-").join(moved))

    def _ends(self, text: str) -> tuple[str, str, bool]:
        """Split the name of a link at the hyphen that is between its ends."""
        arrow = text.replace("→", "->")
        if "->" in arrow:
            source, target = arrow.split("->", 1)
            return source, target, True
        marks = [index for index, letter in enumerate(text) if letter == "-"]
        if not marks:
            raise TopologyError(f"link {text!r}: name both ends, as in leaf0-spine1")
        tried = [(text[:mark], text[mark + 1 :]) for mark in marks]
        return (*max(tried, key=self._how_known), False)

    def vertices(self, name: str) -> Mask:
        """Nodes of the graph that are the part of a name, shape ``(nodes,)``."""
        return np.asarray(self.part == self.names.index(self._name(name)))

    def nic(self, node: int, number: int) -> tuple[Mask, int]:
        """Nodes of the graph that stand for a NIC, and for how many NICs together they stand."""
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
        """Nodes of the graph that are inside a node (host), shape ``(nodes,)``."""
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
        """Nodes of the graph that are a switch of this name; of ``plane1`` all that stand there.

        Raises
        ------
        TopologyError
            If no part is called so, or it is a rank or a NIC.
        """
        plane = _PLANE.fullmatch(_letters(name))
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
    def _spelt(self) -> dict[str, str]:
        spelt = {str(rank): part_name(rank) for rank in range(self.network.ranks)}
        return spelt | {_letters(name): name for name in self.names}

    def _known(self, name: str) -> bool:
        return _letters(name) in self._spelt or self._together(name) is not None

    def _together(self, name: str) -> str | None:
        """Return the name of the NICs of which a text names one; None if it names no such."""
        match = _ONE_NIC.fullmatch(_letters(name))
        if match is None or _letters(name) in self._spelt:
            return None
        node, number = int(match[1]), int(match[2])
        return next(
            (vertex for vertex, first, last in self._nics_of(node) if first <= number <= last), None
        )

    def _stands_for(self, name: str) -> int:
        """For how many NICs the part stands of which a text names one; 1 of anything else."""
        together = self._together(name)
        match = _NIC.fullmatch(together) if together else None
        return int(match[3]) - int(match[2]) + 1 if match else 1

    def _nics_of(self, node: int) -> list[tuple[str, int, int]]:
        """NICs of a node: the name, the first and the last number that it stands for."""
        return [
            (name, int(match[2]), int(match[3] or match[2]))
            for name in self.names
            if (match := _NIC.fullmatch(name)) and int(match[1]) == node
        ]

    def _how_known(self, pair: tuple[str, str]) -> int:
        """Count ends that exist, and the cable between them: names may hold hyphens."""
        matched = sum(map(self._known, pair))
        return matched + (matched == len(pair) and bool(self._between(*pair, one_way=False).any()))

    def _name(self, text: str) -> str:
        if not self._known(text):
            hint = did_you_mean(text, self.names)
            raise TopologyError(
                f"no part of {self.network.name} is called {text.strip()!r}; {hint}"
                "'twofold clusters NAME --links' lists all names"
            )
        return self._together(text) or self._spelt[_letters(text)]

    def _between(self, first: str, second: str, *, one_way: bool) -> Mask:
        from_first, to_second = self.vertices(first), self.vertices(second)
        network = self.network
        links: Mask = from_first[network.source] & to_second[network.target]
        if not one_way:
            links |= to_second[network.source] & from_first[network.target]
        return links


def part_name(node: Node) -> str:
    """Return what a node of a graph is called; the two sides of a NIC are called the same.

    Examples
    --------
    >>> part_name(3), part_name("nic:0.1:out"), part_name("spine:1")
    ('rank3', 'nic:0.1', 'spine:1')
    """
    if isinstance(node, int):
        return f"rank{node}"
    text = str(node)
    side = _SIDE.fullmatch(text)
    return side[1] if side else text


def homes(network: Topology, node_of_rank: Sequence[int], inside: Iterable[str] = ()) -> Longs:
    """Say in which node (host) each node of a cluster's graph is.

    Parameters
    ----------
    network
        As :func:`topologies.build` makes it.
    node_of_rank
        Node of each rank.
    inside
        Names of what else is in a node, followed in the graph by its number: the vertices of a
        wiring.

    Returns
    -------
    array of int
        Node of each node of the graph, :data:`NOWHERE` of switches between nodes, shape
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


def _letters(name: str) -> str:
    return re.sub(r"[:\s]", "", name).lower()


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
