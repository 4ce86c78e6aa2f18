"""Fabrics other than the catalogue's named ones: a graph of the user's, or a topology's spec.

In a cluster file ``topology`` of either tier may be a table or text instead of a name:

==================================  ============================================================
``{file: g.json}``                  a graph (:mod:`topologies.families.from_file`), its path
                                    relative to the cluster file
``{spec: "torus:4x4"}``             a topology by its spec (:mod:`topologies.spec`)
``torus:4x4``, ``g.json``           short for these
==================================  ============================================================

A spec of a family that the tier has by name becomes that fabric (``torus:2x4`` is
``topology: torus`` with ``dimensions: 2x4``), so that a network has the same results however it is
written. All others become ``topology: graph`` with a table ``graph``, which this module defines.

In the scale-up tier ranks of the graph are the ranks of a domain, in order. In the scale-out tier
they are the places where NICs are plugged in: NIC ``i`` of node ``n`` at rank
``n * nics_per_node + i`` (``ranks: nics``), or all NICs of node ``n`` at rank ``n``
(``ranks: nodes``).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import ceil, inf, prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from pydantic import ValidationError

from simulator.support.errors import TopologyError, TwofoldError, WhatIfError
from simulator.support.quantities import count_of
from simulator.topology import POLICIES, SCALE_OUT, SCALE_UP, Topology
from topologies.cluster.fabrics import GRAPH, Graph, GraphFabric, check_content, sha256_of
from topologies.families.from_file import SUFFIXES
from topologies.families.table import FAMILIES, SCALE_UP_ROLES
from topologies.spec import SpecWords, spec_words


def is_graph_file(name: str) -> bool:
    """Whether a name is that of a graph's file, by its suffix."""
    return Path(name).suffix.lower() in SUFFIXES


def _port_bandwidth(network: Topology) -> float:
    """Return the most bandwidth of a rank over all its cables (B/s, one way)."""
    out = network.source < network.ranks
    of_ranks = np.bincount(network.source[out], network.bandwidth[out], network.ranks)
    return float(of_ranks.max(initial=0.0))


def is_switched(network: Topology) -> bool:
    """Whether every cable of a rank leads to a switch."""
    return not bool(((network.source < network.ranks) & (network.target < network.ranks)).any())


class Size(Struct, frozen=True):
    """Size of a cluster file, as far as it can be read: nodes, and NICs of each."""

    nodes: int
    nics: int


def expanded(data: Any) -> Any:
    """Return a cluster file's table with named topologies in both tiers.

    Other errors are left to the validation of the fields.

    Raises
    ------
    ValueError
        If a graph cannot be read, or does not have the ranks that the tier needs.
    """
    if not isinstance(data, Mapping):
        return data
    data = dict(data)
    for tier, fill in ((SCALE_UP, _scale_up), (SCALE_OUT, _scale_out)):
        if isinstance(data.get(tier), Mapping):
            try:
                part = _normalised(tier, dict(data[tier]))
                graph = _graph(part)
                data[tier] = part if graph is None else fill(data, part, graph)
            except TwofoldError as error:
                raise ValueError(f"{tier}.topology: {error}") from error
    return data


def _normalised(tier: str, part: dict[str, Any]) -> dict[str, Any]:
    """Write a table, a file or a spec as ``topology: graph`` with its ``graph``."""
    value = part.get("topology")
    if isinstance(value, Mapping):
        return part | {"topology": GRAPH, "graph": dict(value)}
    if isinstance(value, str) and is_graph_file(value):
        return part | {"topology": GRAPH, "graph": {"file": value}}
    words = value.partition("@")[0] if isinstance(value, str) else ""
    plain = words in FAMILIES and words not in KNOWN[tier]
    if ":" in words or plain:
        return part | {"topology": GRAPH, "graph": {"spec": value}}
    return part


def _graph(part: Mapping[str, Any]) -> Graph | None:
    """Validate the graph of a tier; None if it has none, or its fields are invalid."""
    if part.get("topology") != GRAPH or not isinstance(part.get("graph"), Mapping):
        return None
    try:
        graph = Graph.model_validate(part["graph"])
    except ValidationError:
        return None
    if graph.file is None:
        return graph
    if graph.sha256 is not None:
        check_content(graph.file, graph.sha256)
        return graph
    return graph.model_copy(update={"sha256": sha256_of(graph.file)})


def _scale_up(data: Mapping[str, Any], part: dict[str, Any], graph: Graph) -> dict[str, Any]:
    """Make a domain of a graph: its size and, if the graph gives them, a rank's values.

    A spec of a family that a domain has by name becomes that.
    """
    del data
    if graph.spec is not None and graph.is_absolute is False:
        spec = spec_words(graph.spec)
        role = None if spec.routing else SCALE_UP_ROLES.get(spec.family)
        if role is not None:
            part = {name: value for name, value in part.items() if name != GRAPH}
            part["topology"] = spec.family
            if role.dimensions:
                part["dimensions"] = "x".join(map(str, spec.numbers))
            size = part.setdefault("size", spec.ranks)
            if isinstance(size, int) and size != spec.ranks:
                raise TopologyError(
                    f"{spec.words} has {spec.ranks} ranks, but scale_up.size is {size}"
                )
            return part
        network = graph.network(SCALE_UP, 1.0, 0.0)
    else:
        graph = _with_tier_values(graph, part)
        network = graph.network(SCALE_UP)
        part |= {
            "bandwidth": f"{_port_bandwidth(network)!r} B/s",
            "latency": f"{float(network.latency.max(initial=0.0))!r} s",
        }
    size = part.setdefault("size", network.ranks)
    if isinstance(size, int) and size != network.ranks:
        raise TopologyError(
            f"{graph.name} has {network.ranks} ranks, but scale_up.size is {size}: draw one domain,"
            " a rank for each of its places"
        )
    return part | {"graph": graph.model_dump(mode="json", exclude_none=True)}


def _with_tier_values(graph: Graph, part: Mapping[str, Any]) -> Graph:
    """Give edges without values those of the tier, if it has any.

    Invalid text is reported later, with its field.
    """
    fields = graph.model_dump(mode="json", exclude_none=True)
    try:
        graph.network(SCALE_UP)
    except TopologyError:
        fields = {name: part[name] for name in ("bandwidth", "latency") if name in part} | fields
    try:
        return Graph.model_validate(fields)
    except ValidationError:
        return graph


def _scale_out(data: Mapping[str, Any], part: dict[str, Any], graph: Graph) -> dict[str, Any]:
    """Make a fabric of a graph: determine what its ranks are and check their number."""
    nodes, nics = data.get("nodes"), part.get("nics_per_node")
    if not isinstance(nodes, int) or not isinstance(nics, int):
        return part
    if graph.spec is not None and graph.is_absolute is False:
        spec = spec_words(graph.spec)
        policy, _, seed = spec.routing.partition(":")
        if policy and (policy not in POLICIES or count_of(seed or "0") is None):
            policies = ", ".join(POLICIES)
            raise TopologyError(
                f"{graph.spec}: of a fabric between nodes the routing is one of {policies}"
            )
        if policy:  # behind the spec's @: the fabric's own field
            part = part | {"routing": policy} | ({"routing_seed": int(seed)} if seed else {})
            graph = graph.model_copy(update={"spec": spec.words})
        if spec.family in _NATIVE_FABRICS:
            fields = _NATIVE_FABRICS[spec.family](spec, Size(nodes, nics), graph.ranks)
            del part[GRAPH]
            return part | {"topology": spec.family} | fields
    network = graph.network(SCALE_OUT, 1.0, 0.0)
    if graph.ranks is None:
        units = {nodes * nics: "nics", nodes: "nodes"}
        if network.ranks not in units:
            raise TopologyError(
                f"{graph.name} has {network.ranks} ranks, but the cluster has {nodes} nodes with"
                f" {nodes * nics} NICs: draw one rank per node or one per NIC; if there are more,"
                " set 'ranks: nodes' or 'ranks: nics'"
            )
        graph = graph.model_copy(update={"ranks": units[network.ranks]})
    for node in network.nodes[network.ranks :]:
        if str(node).startswith(_RESERVED):
            raise TopologyError(f"{graph.name}: node {node}: call a switch by another name")
    return part | {"graph": graph.model_dump(mode="json", exclude_none=True)}


_RESERVED = ("nic:", "host:", "scale_up:", "gpu:", "seat:", "place:")
"""Prefixes of node names that a cluster assigns itself."""


def _place_counts(
    spec: SpecWords, size: Size, rank_unit: str | None, *, usual: str = "nodes"
) -> tuple[int, int]:
    """Return the places for nodes in a spec, and the ranks of a node, by what a rank is."""
    ranks = spec.ranks
    if rank_unit is None and usual == "nodes" and ranks == size.nodes * size.nics != size.nodes:
        rank_unit = "nics"
    each = size.nics if (rank_unit or usual) == "nics" else 1
    return ranks // each, each


def fabric_for(topology: str, nics: int, needed: int) -> tuple[dict[str, str] | str, int | None]:
    """Return the ``scale_out.topology`` of a topology between nodes, and how many nodes fit.

    Parameters
    ----------
    topology
        A family's name, a spec, or the file of a graph.
    nics
        NICs of a node.
    needed
        Nodes of the job. If a graph has a rank for each of their NICs, its ranks are NICs.
        Otherwise the ranks of a graph are nodes, and so are those of a spec by default.

    Returns
    -------
    tuple
        Value of ``scale_out.topology``, and the number of nodes that fit: None for a bare name,
        which grows with the cluster.

    Raises
    ------
    TopologyError
        If there is no such graph, or the job does not fit.

    Examples
    --------
    >>> fabric_for("torus:4x4", 8, 2), fabric_for("switch", 8, 2)
    (({'spec': 'torus:4x4', 'ranks': 'nics'}, 2), ('switch', None))
    >>> fabric_for("fat_tree:8", 8, 2)
    ({'spec': 'fat_tree:8', 'ranks': 'nics'}, 16)
    """
    if ":" not in topology and not is_graph_file(topology):
        return topology, None
    graph = Graph(file=topology) if is_graph_file(topology) else Graph(spec=topology)
    ranks = graph.network(SCALE_OUT, 1.0, 0.0).ranks
    family = "" if graph.spec is None else spec_words(topology).family
    of_nics = family in _OF_NICS or (ranks == needed * nics and ranks != needed)
    room = ranks // nics if of_nics else ranks
    if room < needed:
        raise TopologyError(f"it has room for {room} nodes, and the job needs {needed}")
    words = {"file" if graph.file is not None else "spec": topology}
    return words | {"ranks": "nics" if of_nics else "nodes"}, room


PORTS = 64
"""Default ports of a switch: NVIDIA QM9700 (64 x 400 Gbit/s, data sheet) and Ethernet switches of
51.2 Tbit/s (64 x 800 Gbit/s, Broadcom Tomahawk 5) have as many."""


def fabric_fields(
    family: str, nics: int, nodes: int, stated: Mapping[str, object]
) -> tuple[dict[str, Any], float] | None:
    """Size a family of fabrics for the nodes of a job, from switches of 64 ports, half of them up.

    Parameters
    ----------
    family
        ``switch``, ``leaf_spine``, ``rail``, ``fat_tree``, ``torus`` or ``dragonfly``.
    nics
        NICs of a node.
    nodes
        Nodes of the job.
    stated
        Fields that are given rather than sized; ``ports`` are those of a switch.

    Returns
    -------
    tuple or None
        Fields of ``scale_out``, and the number of nodes that fit; None if ``family`` is not such
        a name but a spec or a graph.

    Examples
    --------
    >>> fabric_fields("rail", 8, 128, {})
    ({'topology': 'rail', 'nodes_per_pod': 32, 'spines': 32}, inf)
    """
    if family not in _SIZES:
        return None
    ports = stated.get("ports", PORTS)
    if not isinstance(ports, int) or isinstance(ports, bool) or ports < 4:
        raise WhatIfError(f"{family}: ports {ports!r}: a switch needs at least 4 ports")
    sized = _SIZES[family](nodes, nics, ports)
    rest = {key: value for key, value in stated.items() if key != "ports" or "ports" in sized}
    fields: dict[str, Any] = {"topology": family, **sized, **rest}
    most = inf
    if family == "fat_tree":
        most = float(fields["ports"] ** 3 // 4 // nics)
    elif family == "torus":
        most = float(prod(int(length) for length in str(fields["dimensions"]).split("x")))
    elif family == "dragonfly":
        most = float(fields["groups"] * fields["nodes_per_group"])
    return fields, most


def _sized_fat_tree(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Size three levels; switches get more ports if the job does not fit."""
    while ports**3 // 4 < nodes * nics:
        ports += 2
    return {"ports": ports + ports % 2}


def _sized_torus(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Return the three nearly equal lengths whose product is the number of nodes."""
    del nics, ports
    sides = [
        (candidate, two, nodes // candidate // two)
        for candidate in range(1, round(nodes ** (1 / 3)) + 1)
        if nodes % candidate == 0
        for two in range(candidate, int((nodes // candidate) ** 0.5) + 1)
        if nodes // candidate % two == 0
    ]
    best = min(sides, key=lambda lengths: lengths[2] - lengths[0])
    return {"dimensions": "x".join(str(length) for length in best if length > 1) or "1"}


def _sized_dragonfly(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Size a balanced one, ``a = 2 p = 2 h``, of ``4 p - 1`` ports (J. Kim et al., ISCA 2008)."""
    each = max(1, (ports + 1) // 4)
    routers = 2 * each
    in_group = max(1, routers * each // nics)
    groups = max(2, ceil(nodes / in_group))
    if groups > routers * each + 1:
        raise WhatIfError(
            f"dragonfly: {nodes} nodes make {groups} groups, but switches with {ports} ports "
            f"connect only {routers * each + 1}: set ports"
        )
    return {
        "groups": groups,
        "routers_per_group": routers,
        "nodes_per_group": in_group,
        "global_links_per_router": each,
    }


_SIZES: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "switch": lambda nodes, nics, ports: {},
    # Whole nodes are on half of a leaf's or a rail's ports; each other port has a cable to a spine.
    "leaf_spine": lambda nodes, nics, ports: {
        "nodes_per_leaf": max(1, ports // 2 // nics),
        "spines": ports // 2,
    },
    "rail": lambda nodes, nics, ports: {"nodes_per_pod": ports // 2, "spines": ports // 2},
    "fat_tree": _sized_fat_tree,
    "torus": _sized_torus,
    "dragonfly": _sized_dragonfly,
}
SIZED = tuple(_SIZES)
"""Families that are sized for a job."""


def _leaf_spine(spec: SpecWords, size: Size, rank_unit: str | None) -> dict[str, Any]:
    leaves, spines, ranks = spec.numbers
    each = _place_counts(spec, size, rank_unit)[1]
    if ranks % each:
        raise TopologyError(f"{spec.words}: {ranks} NICs per leaf make no whole nodes of {each}")
    _check_room(spec, leaves * (ranks // each), size)
    return {
        "nodes_per_leaf": ranks // each,
        "spines": spines,
        "oversubscription": spec.on_unit_cables.oversubscription,
    }


def _rail(spec: SpecWords, size: Size, rank_unit: str | None) -> dict[str, Any]:
    del rank_unit
    nodes, rails, spines = spec.numbers
    if rails != size.nics:
        raise TopologyError(f"{spec.words} has {rails} rails, but a node has {size.nics} NICs")
    _check_room(spec, nodes, size)
    return {
        "nodes_per_pod": nodes,
        "spines": spines,
        "oversubscription": spec.on_unit_cables.oversubscription,
    }


def _dragonfly(spec: SpecWords, size: Size, rank_unit: str | None) -> dict[str, Any]:
    groups, routers, ranks, *links = spec.numbers
    room, each = _place_counts(spec, size, rank_unit)
    if (routers * ranks) % each:
        raise TopologyError(
            f"{spec.words}: {routers * ranks} NICs per group do not make whole nodes of {each}"
        )
    _check_room(spec, room, size)
    fewest = -(-(groups - 1) // routers) if routers else 0
    return {
        "groups": groups,
        "routers_per_group": routers,
        "nodes_per_group": routers * ranks // each,
        "global_links_per_router": links[0] if links else max(fewest, 1),
    }


def _torus(spec: SpecWords, size: Size, rank_unit: str | None) -> dict[str, Any]:
    del rank_unit
    _check_room(spec, spec.ranks, size)
    return {"dimensions": "x".join(map(str, spec.numbers))}


def _fat_tree(spec: SpecWords, size: Size, rank_unit: str | None) -> dict[str, Any]:
    _check_room(spec, _place_counts(spec, size, rank_unit, usual="nics")[0], size)
    return {"ports": spec.numbers[0]}


def _switch(spec: SpecWords, size: Size, rank_unit: str | None) -> dict[str, Any]:
    _check_room(spec, _place_counts(spec, size, rank_unit)[0], size)
    return {}


def _check_room(spec: SpecWords, room: int, size: Size) -> None:
    if room < size.nodes:
        raise TopologyError(f"{spec.words} has room for {room} nodes, not for {size.nodes}")


_NATIVE_FABRICS: dict[str, Callable[[SpecWords, Size, str | None], dict[str, Any]]] = {
    "switch": _switch,
    "leaf_spine": _leaf_spine,
    "rail": _rail,
    "fat_tree": _fat_tree,
    "torus": _torus,
    "dragonfly": _dragonfly,
}
"""Families that a fabric between domains has by name: from a spec to the fabric's fields."""
_OF_NICS = ("rail", "fat_tree")
"""Families whose ranks are NICs, on rails or ports."""
KNOWN: dict[str, Collection[str]] = {SCALE_UP: SCALE_UP_ROLES, SCALE_OUT: _NATIVE_FABRICS}
"""Names that are valid as ``topology`` of a tier."""


def fabric_graph(fabric: GraphFabric) -> Topology:
    """Return the graph of a fabric between domains, without ``efficiency``.

    Cables without values in the file take the fabric's: a NIC's bandwidth and ``hop_latency``. Over
    all its cables a rank of a spec has the bandwidth of what is plugged in: a NIC, or a node. If a
    spec's ranks are on switches, their own cables have no latency: the tier's is on the NIC's link,
    as in every fabric.
    """
    graph, each = fabric.graph, fabric.bandwidth
    if graph.is_absolute:
        return graph.network(SCALE_OUT, each, fabric.hop_latency)
    plugged = fabric.nics_per_node if graph.ranks == "nodes" else 1
    unit = graph.network(SCALE_OUT, 1.0, 0.0)
    hop = graph.latency if graph.latency is not None else fabric.hop_latency
    ends = (unit.source < unit.ranks) | (unit.target < unit.ranks)
    free = ends & is_switched(unit)
    return replace(
        unit,
        bandwidth=unit.bandwidth * (plugged * each / (_port_bandwidth(unit) or 1.0)),
        latency=np.where(free, 0.0, hop),
    )


def domain_graph(graph: Graph, bandwidth: float, latency: float, efficiency: float) -> Topology:
    """Return the graph of a scale-up domain; a spec divides ``bandwidth`` of a rank.

    In a switched topology a rank's message pays half of the latency on each of its two cables, as
    in every fabric of a cluster; elsewhere all of it on each.
    """
    if graph.is_absolute:
        network = graph.network(SCALE_UP)
        return replace(network, bandwidth=network.bandwidth * efficiency)
    # With cables of 1 B/s the bandwidth of a rank's ports is the number of its cables.
    unit = graph.network(SCALE_UP, 1.0, latency)
    share = latency / 2 if is_switched(unit) else latency
    return replace(
        unit,
        bandwidth=unit.bandwidth * (bandwidth * efficiency / (_port_bandwidth(unit) or 1.0)),
        latency=np.full(len(unit), share if graph.latency is None else graph.latency),
    )
