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
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from pydantic import ValidationError

from simulator.support.errors import TopologyError, TwofoldError
from simulator.support.quantities import count_of
from simulator.topology import POLICIES, SCALE_OUT, SCALE_UP, Topology
from topologies.cluster.fabrics import GRAPH, Graph, GraphFabric, check_content, sha256_of
from topologies.families.from_file import SUFFIXES
from topologies.families.table import FAMILIES, SCALE_UP_ROLES
from topologies.spec import SpecWords, spec_words


def is_graph_file(name: str) -> bool:
    """Whether a name is that of a graph's file, by its suffix."""
    return Path(name).suffix.lower() in SUFFIXES


def ports(network: Topology) -> tuple[float, int]:
    """Return the most bandwidth of a rank over all its cables (B/s, one way), and their number.

    Examples
    --------
    >>> from topologies import parse_topology
    >>> ports(parse_topology("mesh:3x3", bandwidth=50e9, latency=0.0))
    (200000000000.0, 4)
    """
    out = network.source < network.ranks
    both = (
        np.bincount(network.source[out], of, network.ranks)
        for of in (network.bandwidth[out], np.ones(out.sum()))
    )
    each, cables = (float(bandwidths.max(initial=0.0)) for bandwidths in both)
    return each, int(cables)


def is_switched(network: Topology) -> bool:
    """Whether every cable of a rank leads to a switch."""
    return not bool(((network.source < network.ranks) & (network.target < network.ranks)).any())


def divided(graph: Graph, resource: str, bandwidth: float, latency: float) -> Topology:
    """Build a spec with a given bandwidth per rank, over all its cables (B/s).

    In a switched topology a rank's message pays half of the latency on each of its two cables, as
    in every fabric of a cluster; elsewhere all of it on each.
    """
    # With cables of 1 B/s the bandwidth of a rank's ports is the number of its cables, by which the
    # tier's bandwidth is divided.
    unit = graph.network(resource, 1.0, latency)
    stated = graph.latency if graph.latency is not None else latency
    share = stated / 2 if is_switched(unit) and graph.latency is None else stated
    most = ports(unit)[0]
    return replace(
        unit,
        bandwidth=unit.bandwidth * (bandwidth / (most or 1.0)),
        latency=np.full(len(unit), share),
    )


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
                data[tier] = fill(data, _normalised(tier, dict(data[tier])))
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


def _with_graph(part: dict[str, Any], graph: Graph) -> dict[str, Any]:
    return part | {"graph": graph.model_dump(mode="json", exclude_none=True)}


def _scale_up(data: Mapping[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Make a domain of a graph: its size and, if the graph gives them, a rank's values."""
    del data
    graph = _graph(part)
    if graph is None:
        return part
    if graph.spec is not None and graph.is_absolute is False:
        native = _native_domain(part, spec_words(graph.spec))
        if native is not None:
            return native
        network = graph.network(SCALE_UP, 1.0, 0.0)
    else:
        graph = _with_tier_values(graph, part)
        network = graph.network(SCALE_UP)
        part |= {
            "bandwidth": f"{ports(network)[0]!r} B/s",
            "latency": f"{float(network.latency.max(initial=0.0))!r} s",
        }
    size = part.setdefault("size", network.ranks)
    if isinstance(size, int) and size != network.ranks:
        raise TopologyError(
            f"{graph.name} has {network.ranks} ranks, but scale_up.size is {size}: draw one domain,"
            " a rank for each of its places"
        )
    return _with_graph(part, graph)


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


def _native_domain(part: dict[str, Any], spec: SpecWords) -> dict[str, Any] | None:
    """Write a spec of a family that a domain has by name as that; None for others."""
    role = SCALE_UP_ROLES.get(spec.family)
    if role is None or spec.routing:
        return None
    part = {name: value for name, value in part.items() if name != GRAPH}
    part["topology"] = spec.family
    if role.dimensions:
        part["dimensions"] = "x".join(map(str, spec.numbers))
    ranks = spec.ranks
    if isinstance(size := part.setdefault("size", ranks), int) and size != ranks:
        raise TopologyError(f"{spec.words} has {ranks} ranks, but scale_up.size is {size}")
    return part


def _scale_out(data: Mapping[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Make a fabric of a graph: determine what its ranks are and check their number."""
    graph = _graph(part)
    nodes, nics = data.get("nodes"), part.get("nics_per_node")
    if graph is None or not isinstance(nodes, int) or not isinstance(nics, int):
        return part
    size = Size(nodes, nics)
    if graph.spec is not None and graph.is_absolute is False:
        spec = spec_words(graph.spec)
        part, graph = _with_policy(part, graph, spec)
        if spec.family in _NATIVE_FABRICS:
            without_graph = {name: value for name, value in part.items() if name != GRAPH}
            return (
                without_graph
                | {"topology": spec.family}
                | _NATIVE_FABRICS[spec.family](spec, size, graph.ranks)
            )
    ranks = graph.network(SCALE_OUT, 1.0, 0.0).ranks
    rank_unit = graph.ranks or _infer_rank_unit(graph.name, ranks, size)
    network = graph.network(SCALE_OUT, 1.0, 0.0)
    for node in network.nodes[network.ranks :]:
        if str(node).startswith(_RESERVED):
            raise TopologyError(f"{graph.name}: node {node}: call a switch by another name")
    return _with_graph(part, graph.model_copy(update={"ranks": rank_unit}))


def _with_policy(
    part: dict[str, Any], graph: Graph, spec: SpecWords
) -> tuple[dict[str, Any], Graph]:
    """Write the policy behind a spec's ``@`` as the fabric's ``routing``."""
    if not spec.routing:
        return part, graph
    policy, _, seed = spec.routing.partition(":")
    if policy not in POLICIES or count_of(seed or "0") is None:
        raise TopologyError(
            f"{graph.spec}: of a fabric between nodes the routing is one of {', '.join(POLICIES)}"
        )
    part = part | {"routing": policy} | ({"routing_seed": int(seed)} if seed else {})
    return part, graph.model_copy(update={"spec": spec.words})


_RESERVED = ("nic:", "host:", "scale_up:", "gpu:", "seat:", "place:")
"""Prefixes of node names that a cluster assigns itself."""


def _infer_rank_unit(name: str, ranks: int, size: Size) -> Literal["nics", "nodes"]:
    """Infer what the ranks of a graph are from their number."""
    if ranks == size.nodes:
        return "nodes"
    if ranks == size.nodes * size.nics:
        return "nics"
    raise TopologyError(
        f"{name} has {ranks} ranks, but the cluster has {size.nodes} nodes with"
        f" {size.nodes * size.nics} NICs: draw one rank per node or one per NIC; if there are more,"
        " set 'ranks: nodes' or 'ranks: nics'"
    )


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
    words = {"file" if graph.file is not None else "spec": topology}
    return words | {"ranks": "nics" if of_nics else "nodes"}, ranks // nics if of_nics else ranks


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
        bandwidth=unit.bandwidth * (plugged * each / (ports(unit)[0] or 1.0)),
        latency=np.where(free, 0.0, hop),
    )


def domain_graph(graph: Graph, bandwidth: float, latency: float, efficiency: float) -> Topology:
    """Return the graph of a scale-up domain; a spec divides ``bandwidth`` of a rank."""
    if graph.is_absolute:
        network = graph.network(SCALE_UP)
        return replace(network, bandwidth=network.bandwidth * efficiency)
    return divided(graph, SCALE_UP, bandwidth * efficiency, latency)
