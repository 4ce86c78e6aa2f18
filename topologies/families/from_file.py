"""A user's graph: GraphML, or node-link JSON as networkx and d3 write it.

A node with the attribute ``rank`` is that rank; the ranks are ``0 … n - 1``. Every other node is a
switch. An edge has ``bandwidth`` (``"50 GB/s"``) and ``latency`` (``"1 us"``), text with units, and
may have ``resource``: ``scale_up``, ``scale_out``, ``pcie`` or a name of the user's, which a
what-if can then multiply (by default ``scale_up``, or the tier whose fabric the graph is). An edge
of an undirected graph is a cable, of a directed graph one direction of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.support.errors import QuantityError, TopologyError
from simulator.support.input_files import parse_json, parse_xml, read_bytes, read_text
from simulator.support.names import did_you_mean
from simulator.support.quantities import parse_quantity
from simulator.topology import (
    HOP,
    PCIE,
    SCALE_OUT,
    SCALE_OUT_HOPS,
    SCALE_UP,
    Link,
    Node,
    Topology,
    topology,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import networkx as nx


_BASES = {"bandwidth": "B/s", "latency": "s"}
_EDGE_FIELDS = (*_BASES, "resource", "id", "key")
_NODE_FIELDS = ("rank", "id", "name", "label")
SUFFIXES = (".graphml", ".json")
"""Suffixes of files that hold a graph."""
_RESOURCE = re.compile(r"[^\W\d][\w-]*")
"""A resource's name: one word without a dot, because what-ifs write ``NAME.bandwidth``."""

MOST_OF_LINK = 1e14
"""Bytes/s that a link may have: fifty times the fastest announced."""
_MOST_CLASSES = 63
"""Most classes of resources by speed: over 16 hops their sum is less than a hop, so that they only
break ties."""


def custom(
    path: str | Path,
    *,
    bandwidth: float | None = None,
    latency: float | None = None,
    resource: str = SCALE_UP,
) -> Topology:
    """Read a graph from a file.

    Parameters
    ----------
    path
        A GraphML (``.graphml``) or node-link JSON (``.json``) file.
    bandwidth
        Default of edges (B/s).
    latency
        Default of edges (s).
    resource
        Default of edges.

    Returns
    -------
    Topology
        Named after the file.

    Raises
    ------
    TopologyError
        If the file cannot be read or is not such a graph: it names the file, the node or edge, and
        the field.

    Examples
    --------
    >>> import json, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "pair.json"
    >>> graph = {"nodes": [{"id": "a", "rank": 0}, {"id": "b", "rank": 1}],
    ...          "edges": [{"source": "a", "target": "b", "bandwidth": "50 GB/s"}]}
    >>> _ = path.write_text(json.dumps(graph))
    >>> network = custom(path, latency=1e-6)
    >>> network.name, network.ranks, len(network)
    ('pair', 2, 2)
    """
    file = Path(path)
    defaults = {"bandwidth": bandwidth, "latency": latency}
    graph = _read(file)
    try:
        return _topology(graph, file.stem, defaults, resource)
    except (TopologyError, QuantityError) as error:
        raise TopologyError(f"{file}: {error}") from error


def _topology(
    graph: "nx.Graph[Any]", name: str, defaults: Mapping[str, float | None], usual: str
) -> Topology:
    names = _node_names(graph)
    cables: dict[tuple[tuple[Node, Node], tuple[float, str]], float] = {}
    for source, target, edge_data in graph.edges(data=True):
        attributes = graph.graph.get("edge_default", {}) | edge_data  # of GraphML: <key><default>
        if unknown := sorted(set(attributes) - set(_EDGE_FIELDS)):
            raise TopologyError(
                f"edge {source} - {target}: no such field {unknown[0]!r}; accepted:"
                f" {', '.join(_EDGE_FIELDS)}"
            )
        speed, delay = (
            _quantity(f"edge {source} - {target}", attributes, f, defaults) for f in _BASES
        )
        resource = attributes.get("resource", usual)
        if not isinstance(resource, str) or not _RESOURCE.fullmatch(resource):
            raise TopologyError(
                f"edge {source} - {target}: resource {resource!r}: write one word of letters, "
                "digits, '_' and '-', such as scale_out or leaf"  # what a what-if can refer to
            )
        ends = names[source], names[target]
        for way in (ends,) if graph.is_directed() else (ends, ends[::-1]):
            alike = way, (delay, resource)  # of a multigraph, which says that it has several
            cables[alike] = cables.get(alike, 0.0) + speed
    links = [Link(*ends, speed, *rest) for (ends, rest), speed in cables.items()]
    ranks = sum(isinstance(node, int) for node in names.values())
    return topology(name, ranks, preferring_fast(links))


def preferring_fast(links: Sequence[Link], hops: int = 1) -> list[Link]:
    """Return the links, with metrics if a resource is not one of the usual tiers.

    Of two paths with equally many hops a message then takes the one over the faster resources: a
    network card and a switch between GPUs may both be two hops away. Links of ``scale_out`` count
    as they do elsewhere.

    Parameters
    ----------
    links
        Links of the graph.
    hops
        Number of hops that each counts as.
    """
    fastest: dict[str, float] = {}
    for link in links:
        fastest[link.resource] = max(fastest.get(link.resource, 0.0), link.bandwidth)
    if fastest.keys() <= {SCALE_UP, SCALE_OUT, PCIE}:
        return list(links)
    order = sorted(set(fastest.values()), reverse=True)
    slow = {name: min(order.index(speed), _MOST_CLASSES) for name, speed in fastest.items()}
    far = {SCALE_OUT: SCALE_OUT_HOPS}
    return [
        replace(link, metric=HOP * max(hops, far.get(link.resource, 1)) + slow[link.resource])
        for link in links
    ]


def _node_names(graph: "nx.Graph[Any]") -> dict[Any, Node]:
    """Return the topology's node for each node of the file: ranks as numbers, others as text."""
    names: dict[Any, Node] = {}
    for node, attributes in graph.nodes(data=True):
        if unknown := sorted(set(attributes) - set(_NODE_FIELDS)):
            raise TopologyError(
                f"node {node}: no such field {unknown[0]!r}; accepted: {', '.join(_NODE_FIELDS)}"
            )
        rank = attributes.get("rank")
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int)):
            raise TopologyError(f"node {node}: rank {rank!r} is not a whole number")
        names[node] = str(node) if rank is None else rank
    ranks = sorted(name for name in names.values() if isinstance(name, int))
    if not ranks:
        raise TopologyError("no node has a rank: give the ranks the attribute 'rank'")
    if ranks != list(range(len(ranks))):
        raise TopologyError(f"ranks must be 0 to {len(ranks) - 1}, each once, not {ranks}")
    return names


def _quantity(
    where: str, attributes: Mapping[str, object], field: str, defaults: Mapping[str, float | None]
) -> float:
    if (text := attributes.get(field)) is None:
        if (default := defaults[field]) is not None:
            return default
        raise TopologyError(f"{where}: {field} is missing")
    try:
        value = parse_quantity(text, _BASES[field])
    except QuantityError as error:
        raise TopologyError(f"{where}: {field}: {error}") from error
    if field == "bandwidth" and value > MOST_OF_LINK:
        raise TopologyError(f"{where}: bandwidth: {text!r} exceeds 100 TB/s: is the unit right?")
    return value


def _read(file: Path) -> "nx.Graph[Any]":
    """Parse a graph by the suffix of its file."""
    from xml.etree.ElementTree import ParseError

    import networkx as nx  # slow to load

    malformed = (nx.NetworkXError, ParseError, ArithmeticError, ValueError, LookupError, TypeError)
    try:
        if file.suffix == ".graphml":
            data = read_bytes(file, TopologyError)
            # networkx expands entities without a limit, and of what is given twice it takes one
            _check_once(parse_xml(data, file, TopologyError))
            graph: nx.Graph[Any] = nx.read_graphml(BytesIO(data))
            return graph
        if file.suffix == ".json":
            return _node_link(parse_json(read_text(file, TopologyError), file, TopologyError))
    except (*malformed, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise TopologyError(f"{file}: not a graph: {reason or type(error).__name__}") from error
    raise TopologyError(f"{file}: a graph is a .graphml or .json file")


def _check_once(root: "Element") -> None:
    """Refuse several graphs, and several values of a field, in GraphML."""
    if len(graphs := root.findall(".//{*}graph")) > 1:
        raise ValueError(f"{len(graphs)} graphs in one file: keep one")
    for element in root.iter():
        keys = [data.get("key") for data in element.findall("{*}data")]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{element.get('id') or element.attrib}: a <data key> is given twice")
    for graph in graphs:
        unnamed = [edge.attrib for edge in graph.iterfind("{*}edge") if "id" not in edge.attrib]
        way = graph.get("edgedefault") == "directed"
        _check_parallel(
            unnamed, "they have no id: give each its own", directed=way, may_repeat=False
        )


def _node_link(data: object) -> "nx.Graph[Any]":
    """Build a graph of ``edges`` (networkx 3.4 and later) or ``links`` (before, and d3)."""
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise TypeError("node-link JSON is a table with 'nodes' and 'edges' (or 'links')")
    import networkx as nx

    if "edges" in data and "links" in data:
        raise ValueError("'edges' and 'links' are two names of one list: keep one")
    key = "edges" if "edges" in data else "links"
    ids = {  # as networkx reads them: the number of a node without an id
        _hashable(node.get("id", number) if isinstance(node, dict) else number)
        for number, node in enumerate(data["nodes"])
    }
    _check_edges(data.get(key), ids)
    if len(ids) < len(data["nodes"]):
        raise ValueError("two nodes have the same id: each needs its own")
    if not data.get("multigraph"):
        why, is_said = "'multigraph' is false: set it true", "multigraph" in data
        _check_parallel(data[key], why, directed=bool(data.get("directed")), may_repeat=is_said)
    graph: nx.Graph[Any] = nx.node_link_graph(data, multigraph=False, edges=key)
    return graph


def _check_parallel(
    edges: list[dict[str, Any]], why: str, *, directed: bool, may_repeat: bool
) -> None:
    """Refuse two cables between two nodes, unless they are alike: one would be lost."""
    cables: dict[object, dict[str, Any]] = {}
    for edge in edges:
        ends = _hashable(edge["source"]), _hashable(edge["target"])
        cable = {name: value for name, value in edge.items() if name not in ("source", "target")}
        pair = ends if directed else frozenset(ends)
        if cables.get(pair, cable) != cable or (pair in cables and not may_repeat):
            twice = f"edge {ends[0]} - {ends[1]} is given twice, but {why}, or leave one out"
            raise ValueError(twice)
        cables[pair] = cable


def _hashable(name: object) -> object:
    return tuple(map(_hashable, name)) if isinstance(name, list) else name


def _check_edges(edges: object, nodes: set[object]) -> None:
    """Refuse an end that is not a node of the file: networkx would add a node for a typo."""
    if not isinstance(edges, list):
        raise TypeError("the list 'edges' (or 'links') of cables is missing")
    for edge in edges:
        for end in ("source", "target"):
            if (name := _hashable(edge[end])) not in nodes:
                hint = did_you_mean(str(name), sorted(map(str, nodes)))
                raise ValueError(
                    f"edge {edge['source']} - {edge['target']}: {end} {name!r} is not one of the"
                    f" nodes; {hint}add the node or correct the edge"
                )
