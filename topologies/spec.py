"""Topologies from a short spec (``torus:4x4``, ``leaf_spine:4x2x8:2``), and its parts."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.support.errors import TopologyError
from simulator.support.limits import limits
from simulator.support.names import either, nearest
from simulator.support.plugins import TOPOLOGIES, names_added
from simulator.support.quantities import count_of
from simulator.topology import HASHED, POLICIES, Link, Routing, Topology
from topologies.families.family import Family, ParsedSpec
from topologies.families.from_file import SUFFIXES, custom
from topologies.families.table import FAMILIES, family_named, family_names
from topologies.faults import with_outages


def parse_topology(
    spec: str, *, bandwidth: float | None = None, latency: float | None = None
) -> Topology:
    """Build the topology of a spec, with this bandwidth and latency for every cable.

    ``FAMILY:NUMBERS[:OPTION][@ROUTING]`` or the path of a graph
    (:mod:`topologies.families.from_file`), whose edges may have their own bandwidth and latency.
    ``leaf_spine:4x2x8:2`` is oversubscribed twofold, ``mesh:4x4:yn`` closes the first dimension.
    ``dragonfly:GROUPSxROUTERSxRANKS`` has the fewest global links per router that join all groups,
    unless a fourth number gives them. A torus or mesh may be routed ``@dimension_order``, and any
    topology by a policy of :mod:`simulator.topology`, ``fat_tree:8@d_mod_k`` or, with a seed of its
    hash, ``@ecmp:7``. By default messages take the shortest path that such a hash chooses.

    Parameters
    ----------
    spec
        The spec.
    bandwidth
        Bandwidth of every cable, one direction (B/s); edges of a graph may give their own.
    latency
        Latency of every link (s); edges of a graph may give their own.

    Returns
    -------
    Topology
        Its name contains its parameters.

    Raises
    ------
    TopologyError
        If the family is unknown (the message lists all), the numbers do not fit it, or the graph
        cannot be read.

    Examples
    --------
    >>> parse_topology("torus:4x4", bandwidth=50e9, latency=500e-9).name
    'torus(4x4)'
    >>> parse_topology("dragonfly:9x4x2", bandwidth=25e9, latency=1e-6).ranks
    72
    """
    path, _, policy = spec.partition("@")
    if Path(path).suffix in SUFFIXES:
        drawn = with_outages(custom(path, bandwidth=bandwidth, latency=latency))
        return routed(drawn, policy) if policy else drawn
    words = spec_words(spec)
    if bandwidth is None or latency is None:
        raise TopologyError(
            f"{words.words!r} needs a bandwidth and a latency for its cables: write "
            f"'{words.words}, 50 GB/s, 1 us'"
        )
    family = words.of
    Link("cable", "end", bandwidth, latency)  # checks both
    try:
        parsed = ParsedSpec(words.numbers, words.option, bandwidth, latency)
        # Refuse far more links than can be simulated, before a mistyped digit exhausts the memory.
        where = f"topology {words.words}"
        limits().check("items", max(parsed.numbers), where, f"{max(parsed.numbers)} of a kind")
        links = family.counts(parsed).links
        limits().check("items", links, where, f"{links} links")
        routing = words.routing
        network = family.build(parsed)
        if not routing:
            return network
        if routing in family.routings:
            return family.routings[routing](network, parsed)
        return routed(network, routing, group=family.group)
    except ValueError as error:
        raise TopologyError(f"{words.words!r}: write {_syntax(family)}: {error}") from error


@dataclass(frozen=True, slots=True)
class SpecWords:
    """A parsed spec: ``words`` is its text without the routing, the other fields are its parts."""

    words: str
    family: str
    of: Family = field(repr=False)
    numbers: tuple[int, ...]
    option: str
    routing: str

    @property
    def on_unit_cables(self) -> ParsedSpec:
        """The spec with cables of 1 B/s and no latency, which suffices to count it."""
        return ParsedSpec(self.numbers, self.option, 1.0, 0.0)

    @property
    def ranks(self) -> int:
        """Number of ranks by the closed form."""
        try:
            return self.of.counts(self.on_unit_cables).ranks
        except ValueError as error:
            raise TopologyError(f"{self.words!r}: write {_syntax(self.of)}: {error}") from error


def spec_words(spec: str) -> SpecWords:
    """Parse a spec into its parts: an existing family, and as many numbers as it allows.

    Raises
    ------
    TopologyError
        If the family is unknown (the message lists all), or the syntax is wrong.

    Examples
    --------
    >>> spec_words("leaf_spine:4x2x8:2")
    SpecWords(words='leaf_spine:4x2x8:2', family='leaf_spine', numbers=(4, 2, 8), option='2', routing='')
    """  # noqa: E501
    words, _, routing = spec.partition("@")
    name, _, rest = words.partition(":")
    named_family = family_named(name)
    if named_family is None:
        near = nearest(name, family_names())
        forms = [
            FAMILIES[candidate].form if candidate in FAMILIES else f"{candidate}:…"
            for candidate in near
        ]
        hint = f"did you mean {either(forms)}? " if near else ""
        raise TopologyError(f"{words!r} is not a topology; {hint}accepted: {accepted()}")
    name, family = named_family
    digits, _, option = rest.partition(":")
    parts = digits.split("x")
    if not all(re.fullmatch("[0-9]{1,18}", part) for part in parts) or (
        len(parts) not in family.numbers or (option and not family.option)
    ):
        raise TopologyError(f"{words!r}: write {_syntax(family)}")
    return SpecWords(words, name, family, tuple(int(part) for part in parts), option, routing)


def _syntax(family: Family) -> str:
    return family.form + family.option


def accepted() -> str:
    """Return the syntax of all specs, in one line."""
    forms = [_syntax(family) for family in FAMILIES.values()]
    forms += [f"{name}:…" for name in names_added(TOPOLOGIES, tuple(FAMILIES))]
    return f"{', '.join(forms)}, or the path of a graph (.graphml, .json)"


def routed(
    network: Topology, policy: str, *, group: Callable[[Topology], NDArray[np.int32]] | None = None
) -> Topology:
    """Return the topology with a routing policy: ``POLICY[:SEED]``, as behind the ``@`` of a spec.

    Parameters
    ----------
    network
        The topology; it is not changed.
    policy
        One of :data:`simulator.topology.POLICIES`, with the seed of its hash behind a colon.
    group
        Returns the group of routers of each node; without it there are no detours.

    Raises
    ------
    TopologyError
        If the policy is unknown or needs groups, or the seed is not a number, or of a policy
        without a hash.

    Examples
    --------
    >>> network = parse_topology("fat_tree:4", bandwidth=50e9, latency=1e-6)
    >>> routed(network, "ecmp:7").routing.seed
    7
    """
    name, _, seed = policy.partition(":")
    if count_of(seed or "0") is None:
        raise TopologyError(f"{policy!r}: the seed after the colon is not a number: write {name}:1")
    if seed and name in POLICIES and name not in HASHED:
        raise TopologyError(
            f"{policy!r}: only {' and '.join(HASHED)} take a seed, for their hash; "
            f"write {name} without one"
        )
    groups = None if group is None else group(network)
    return replace(network, routing=Routing(name, seed=int(seed or 0), group=groups))
