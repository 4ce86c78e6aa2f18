"""Read a cluster from an InfraGraph file (Keysight, infragraph.dev): infrastructure as a graph.

An infrastructure lists devices (components joined by edges), instances of them and edges between
instances; an endpoint such as ``xpu[0:4]`` is a Python slice of components. Supported are the
versions up to 2.4 whose edges have ``ep1``, ``ep2`` and ``link``, YAML or JSON, with ``scheme`` or
the older ``many2many``, ``xpu`` or the older ``npu``; not the first drafts, whose ``connections``
are text with dots. The format gives a link a name and sometimes a bandwidth: other values of
accelerators, latencies and libraries are those of a given cluster.

The device with accelerators becomes a wired node. Between nodes a file may have no fabric, one
switch, or leaves that are all connected to all spines.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import fsum
from pathlib import Path
from typing import Any

from simulator.support.errors import ClusterError, shown
from simulator.support.input_files import read_text
from simulator.support.limits import limits
from simulator.support.quantities import number_of
from simulator.support.yaml_text import parse_yaml
from simulator.topology import PCIE, SCALE_UP
from topologies.cluster.schema import Cluster
from topologies.cluster.wiring import Cable, reached
from topologies.readers.drawn import (
    GIGA,
    Chip,
    Drawing,
    processor_of,
    socket_width,
    technology_of,
    vendor_of,
    wired_cluster,
)

_ACCELERATORS, _PCI = ("xpu", "npu"), re.compile("pci", re.IGNORECASE)
_SCALE_UP = re.compile(r"nv_?link|xgmi|ualink|xpu_fabric|scale.?up|\bici\b", re.IGNORECASE)
_ENDPOINT = re.compile(r"([\w ()<>-]+?)(?:\[(-?\d{0,9})(?:(:)(-?\d{0,9}))?\])?")
_UNITS = {"gigabits_per_second": 0.125, "gigabytes_per_second": 1.0}
"""GB/s of each unit of bandwidth; transfers per second are not one, as their size is unknown."""


def from_infragraph(path: str | Path, like: Cluster) -> Cluster:
    """Read an infrastructure as a cluster, whose ``sources`` name where each number is from.

    Parameters
    ----------
    path
        A YAML or JSON file with an infrastructure, or with one under ``infrastructure``.
    like
        A cluster with the same accelerators, for what the format lacks.

    Raises
    ------
    ClusterError
        If the file is not an infrastructure, or not one a cluster can have; names the part.
    """
    file = Path(path)
    text = read_text(file, ClusterError)
    try:
        return _cluster(file, parse_yaml(text, str(file), ClusterError), like)
    except _GraphError as error:
        raise ClusterError(f"{file}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"field {error} is missing" if isinstance(error, KeyError) else repr(error)
        raise ClusterError(f"{file}: not an InfraGraph infrastructure: {reason}") from error


class _GraphError(Exception):
    """A fault of a part; the reader adds the file to its message."""


@dataclass(frozen=True, slots=True)
class _Edge:
    """Two vertices, and the link between them."""

    source: str
    target: str
    link: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Device:
    """Vertices by name (``xpu.0``) with their kinds, and the edges between them."""

    kinds: dict[str, str]
    edges: tuple[_Edge, ...]

    def vertices_of(self, *kinds: str) -> list[str]:
        """Return the vertices of some kinds, in order."""
        return [vertex for vertex, kind in self.kinds.items() if kind in kinds]


def _cluster(file: Path, data: Any, like: Cluster) -> Cluster:
    table = data.get("infrastructure", data) if isinstance(data, dict) else data
    if not isinstance(table, dict) or not {"devices", "instances"} <= table.keys():
        raise _GraphError("not an InfraGraph infrastructure: no devices and instances")
    kinds = _named(table["devices"])
    if any("connections" in entry for entry in (table, *kinds.values())):
        raise _GraphError("this is the first draft of the format: write its 'connections' as edges")
    devices = {name: _whole(name, kinds) for name in kinds}
    instances = _named(table["instances"])
    unknown = [entry["device"] for entry in instances.values() if entry["device"] not in devices]
    if unknown:
        raise _GraphError(f"device {unknown[0]!r} of an instance is not among the devices")
    hosts = [
        name
        for name, entry in instances.items()
        if devices[entry["device"]].vertices_of(*_ACCELERATORS)
    ]
    if len(hosts) != 1:
        raise _GraphError(
            f"{len(hosts)} kinds of instances with accelerators; a cluster has one kind of node"
        )
    host, node = hosts[0], devices[instances[hosts[0]]["device"]]
    fabric = _Fabric(host, _count(instances[host]), _fabric_edges(table, kinds, instances))
    cluster = wired_cluster(_drawing(file, str(table["name"]), node, fabric, like), like)
    return _with_fabric(file, cluster, fabric)


def _whole(name: str, kinds: dict[str, Any], inside: tuple[str, ...] = ()) -> _Device:
    """Return a device's vertices and edges, with those of devices inside it."""
    if name not in kinds:
        raise _GraphError(f"device {name!r} is not among the devices")
    if name in inside:
        raise _GraphError(f"device {name!r} contains itself: a cycle")
    kinds_of_vertices: dict[str, str] = {}
    edges: list[_Edge] = []
    for component in kinds[name]["components"]:
        kind = component["choice"]
        part = _whole(component["name"], kinds, (*inside, name)) if kind == "device" else None
        count = _count(component)
        total = len(kinds_of_vertices) + count * (1 if part is None else len(part.kinds))
        limits().check("items", total, f"device {name}", f"{total} vertices")
        for number in range(count):
            vertex = f"{component['name']}.{number}"
            if part is None:
                kinds_of_vertices[vertex] = (
                    component["custom"]["type"]
                    if kind == "custom" and ("custom" in component)
                    else kind
                )
                continue
            kinds_of_vertices |= {f"{vertex}.{name}": what for name, what in part.kinds.items()}
            edges += [
                _Edge(
                    f"{vertex}.{part_name.source}", f"{vertex}.{part_name.target}", part_name.link
                )
                for part_name in part.edges
            ]
    links = _named(kinds[name].get("links", ()))
    for edge in kinds[name].get("edges", ()):
        ends = []
        for end in (edge["ep1"], edge["ep2"]):
            within = f"{end['device']}." if end.get("device") else ""
            ends.append(_vertices_of(f"{within}{end['component']}", name, kinds))
        edges += [
            _Edge(source, target, _link_of(edge, links)) for source, target in _pairs(edge, *ends)
        ]
    return _Device(kinds_of_vertices, tuple(edges))


def _named(entries: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries of a list by name."""
    named: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["name"] in named:
            raise _GraphError(f"two entries of one list are called {entry['name']!r}: keep one")
        named[entry["name"]] = entry
    return named


def _link_of(edge: dict[str, Any], links: dict[str, Any]) -> dict[str, Any]:
    if edge["link"] not in links:
        raise _GraphError(f"an edge names the link {edge['link']!r}, which is not among the links")
    link: dict[str, Any] = links[edge["link"]]
    return link


def _vertices_of(text: str, device: str, kinds: dict[str, Any]) -> list[str]:
    """Return the vertices of an endpoint (``cx5[0:2].port``) within a device, in order."""
    paths = [""]
    for part in text.split("."):
        components = _named(kinds[device]["components"])
        name, numbers = _parse_slice(part, {entry: _count(c) for entry, c in components.items()})
        paths = [f"{before}{name}.{number}." for before, number in product(paths, numbers)]
        device = name if components[name]["choice"] == "device" else device
    return [vertex.rstrip(".") for vertex in paths]


def _parse_slice(part: str, counts: dict[str, int]) -> tuple[str, range]:
    match = _ENDPOINT.fullmatch(part)
    name = match.group(1) if match else part
    if match is None or name not in counts:
        raise _GraphError(f"endpoint {part!r}: there is no {name!r}; there are {', '.join(counts)}")
    start, colon, stop = match.group(2), match.group(3), match.group(4)
    everything = range(counts[name])
    if start is None:
        return name, everything
    if not colon:
        if int(start) >= counts[name]:
            raise _GraphError(f"endpoint {part!r}: there are {counts[name]} of {name}")
        return name, everything[int(start) : int(start) + 1]
    if int(stop or 0) > counts[name]:
        raise _GraphError(f"endpoint {part!r}: there are {counts[name]} of {name}")
    numbers = everything[int(start or 0) : int(stop) if stop else None]
    if not numbers:
        raise _GraphError(f"endpoint {part!r} selects none of the {counts[name]} {name} instances")
    return name, numbers


def _pairs(
    edge: dict[str, Any], sources: list[str], targets: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield the ends of the edges that one edge represents; each pair once, none with itself."""
    scheme = edge.get("scheme")
    if scheme is None and isinstance(edge.get("many2many"), bool):
        scheme = "many2many" if edge["many2many"] else "one2one"
    if scheme not in ("many2many", "one2one"):
        raise _GraphError(f"scheme {scheme!r} of an edge: known are many2many and one2one")
    if scheme == "one2one" and len(sources) != len(targets):
        raise _GraphError(
            f"one2one of {len(sources)} and {len(targets)} ends: {sources[0]} - {targets[0]}"
        )
    count = len(sources) * (len(targets) if scheme == "many2many" else 1)
    limits().check("items", count, f"edge of {sources[:1]}", f"{count} cables")
    ends = (
        product(sources, targets) if scheme == "many2many" else zip(sources, targets, strict=True)
    )
    seen = set()
    for pair in ends:
        if pair[0] != pair[1] and frozenset(pair) not in seen:
            seen.add(frozenset(pair))
            yield pair


_Port = tuple[str, int, str]
"""An instance, its number, and a vertex of its device."""


@dataclass(frozen=True, slots=True)
class _Fabric:
    """Edges between ports of instances, of which ``host`` has the accelerators."""

    host: str
    nodes: int
    edges: tuple[tuple[_Port, _Port, dict[str, Any]], ...]

    @property
    def outlets(self) -> list[tuple[_Port, _Port, dict[str, Any]]]:
        """Edges of hosts, with the host's port first."""
        turned = [(b, a, link) if b[0] == self.host else (a, b, link) for a, b, link in self.edges]
        return [edge for edge in turned if edge[0][0] == self.host]


def _fabric_edges(
    table: dict[str, Any], kinds: dict[str, Any], instances: dict[str, Any]
) -> tuple[tuple[_Port, _Port, dict[str, Any]], ...]:
    counts = {name: _count(entry) for name, entry in instances.items()}
    links = _named(table.get("links", ()))
    edges = []
    for edge in table.get("edges", ()):
        ends = []
        for end in (edge["ep1"], edge["ep2"]):
            name, numbers = _parse_slice(str(end["instance"]), counts)
            vertices = _vertices_of(str(end["component"]), instances[name]["device"], kinds)
            ends.append([f"{name}|{n}|{vertex}" for n, vertex in product(numbers, vertices)])
        for pair in _pairs(edge, *ends):
            (name, n, vertex), (peer, m, end) = (port.split("|") for port in pair)
            edges.append(((name, int(n), vertex), (peer, int(m), end), _link_of(edge, links)))
    return tuple(edges)


def _speed(link: dict[str, Any]) -> float | None:
    """Return the bandwidth of a link (GB/s); None if it has none."""
    bandwidth = (link.get("physical") or {}).get("bandwidth")
    if not bandwidth:
        return None
    unit = bandwidth.get("choice") or next(iter(bandwidth))
    if unit not in _UNITS:
        raise _GraphError(f"link {link['name']!r}: bandwidth in {unit} is not in bit/s or B/s")
    speed = number_of(bandwidth[unit]) * _UNITS[unit]
    if not 0 < speed <= _MOST_GBPS:
        raise _GraphError(f"link {link['name']!r}: {shown(bandwidth[unit])} {unit} is no bandwidth")
    return speed


_MOST_GBPS = 1e9
"""GB/s: a million times that of real links."""


def _count(entry: dict[str, Any]) -> int:
    count = entry["count"]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise _GraphError(f"{shown(entry.get('name'))}: count {shown(count)} is not 1 or more")
    limits().check("items", count, str(entry.get("name")), f"{count} of one kind")
    return count


def _drawing(file: Path, name: str, node: _Device, fabric: _Fabric, like: Cluster) -> Drawing:
    if like.pcie is None or like.scale_out is None:
        raise _GraphError(f"{like.name} gives no pcie or no scale_out to take what is missing from")
    ports = {port[2] for port, _, _ in fabric.outlets} or set(node.vertices_of("nic"))
    names = {vertex: f"gpu{slot}" for slot, vertex in enumerate(node.vertices_of(*_ACCELERATORS))}
    plugs = [vertex for vertex in node.kinds if vertex in ports]
    cables, notes = _cables(node, names, like)
    cables = _name_nics(cables, plugs)
    unit = fsum(cable.width for cable in cables if cable.tier == SCALE_UP and "gpu0" in cable.ends)
    has_speed = any(_speed(edge.link) for edge in node.edges if _tier(edge, node) == SCALE_UP)
    speeds = {_speed(link) for _, _, link in fabric.outlets}
    if len(speeds) > 1:
        raise _GraphError("NICs of several speeds; a cluster file has one")
    nic = next(iter(speeds), None)
    chip = Chip(
        like.accelerator.name,
        vendor_of(like),
        like.accelerator.generation or "",
        like.scale_up.link or technology_of(like),
        GIGA if has_speed or not unit else like.scale_up.bandwidth / unit,
        file.name if has_speed else f"taken from {like.name}",
    )
    drawing = Drawing(
        file=file.name,
        name=name,
        chip=chip,
        cables=cables,
        nic_bandwidth=nic * GIGA if nic else like.scale_out.bandwidth,
        nic_source=file.name if nic else f"taken from {like.name}",
        pcie_source=""
        if any(_tier(edge, node) == PCIE and _speed(edge.link) for edge in node.edges)
        else f"taken from {like.name}",
        cpu=like.host.cpu if like.host else "",
        notes=tuple(notes),
    )
    if drawing.technology != technology_of(like):
        raise _GraphError(
            f"accelerators are joined by {drawing.technology}, and those of {like.name} by"
            f" {technology_of(like)}: name a cluster with the same"
        )
    return drawing


def _name_nics(cables: tuple[Cable, ...], plugs: list[str]) -> tuple[Cable, ...]:
    """Rename the vertices that lead outside to NICs; next to a card's inner vertex add a NIC."""
    degree = Counter(end for cable in cables for end in cable.ends)
    names = {vertex: f"nic{n}" for n, vertex in enumerate(plugs)}
    leaves = {vertex: name for vertex, name in names.items() if degree[vertex] == 1}
    renamed = [
        cable.model_copy(
            update={
                "source": leaves.get(cable.source, cable.source),
                "target": leaves.get(cable.target, cable.target),
            }
        )
        for cable in cables
    ]
    inner = [
        Cable(source=vertex, target=name, tier=PCIE, width=_UNLIMITED)
        for vertex, name in names.items()
        if vertex not in leaves
    ]
    return (*renamed, *inner)


_UNLIMITED = 5000.0
"""GB/s inside a chip or card, which limits nothing (LOC_BW, NVIDIA/nccl src/graph/topo.h)."""


def _tier(edge: _Edge, node: _Device) -> str:
    """Return the tier of an edge by its link's name and description; "" inside a chip."""
    text = f"{edge.link['name']} {edge.link.get('description') or ''}"
    if _PCI.search(text):
        return PCIE
    if _SCALE_UP.search(text):
        return SCALE_UP
    if any(node.kinds[end] in _ACCELERATORS for end in (edge.source, edge.target)):
        raise _GraphError(
            f"link {edge.link['name']!r} of {edge.source} - {edge.target}: neither its name nor "
            "its description mentions PCIe, NVLink, xGMI or UALink"
        )
    return ""


def _cables(
    node: _Device, names: dict[str, str], like: Cluster
) -> tuple[tuple[Cable, ...], list[str]]:
    """Return the cables of a node; switches that reach the same accelerators are merged."""
    pcie = (like.pcie.bandwidth if like.pcie else like.scale_up.bandwidth) / GIGA
    processor, assumptions = processor_of(like, pcie)
    merged = _merged_switches(node)
    widths: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    notes: dict[str, None] = {}
    for edge in node.edges:
        tier = _tier(edge, node)
        source, target = (
            names.get(merged.get(end, end), merged.get(end, end))
            for end in (edge.source, edge.target)
        )
        width = _speed(edge.link)
        if width is None and tier == PCIE:
            width = pcie
        elif width is None and tier == SCALE_UP:
            width = 1.0
        elif width is None and {node.kinds[edge.source], node.kinds[edge.target]} == {"cpu"}:
            width = socket_width(processor)
            notes |= dict.fromkeys(assumptions)
        if source != target:
            ends = (target, source) if source > target else (source, target)
            widths[(*ends, tier or PCIE)] += _UNLIMITED if width is None else width
    cables = [
        Cable(source=source, target=target, tier=tier, width=width)
        for (source, target, tier), width in widths.items()
    ]
    near = reached("gpu0", cables)
    if not all(_speed(edge.link) for edge in node.edges):
        notes[f"Links without a bandwidth have that of {like.name}."] = None
    return tuple(cable for cable in cables if cable.source in near), list(notes)


def _merged_switches(node: _Device) -> dict[str, str]:
    """Return a name for each switch of the scale-up fabric by the accelerators it reaches."""
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    for edge in node.edges:
        if _tier(edge, node) == SCALE_UP:
            neighbours[edge.source].add(edge.target)
            neighbours[edge.target].add(edge.source)
    groups: dict[frozenset[str], str] = {}
    return {
        vertex: groups.setdefault(frozenset(reached), f"fabric{len(groups)}")
        for vertex, reached in neighbours.items()
        if node.kinds[vertex] not in _ACCELERATORS
    }


def _with_fabric(file: Path, cluster: Cluster, fabric: _Fabric) -> Cluster:
    """Set the fabric between nodes: none, one switch, or leaves connected to all spines."""
    if fabric.nodes > 1 and not fabric.outlets:
        raise _GraphError(f"{fabric.nodes} of {fabric.host}, and no edges between them")
    data = cluster.model_dump(mode="json", exclude_unset=True)
    data["nodes"] = fabric.nodes
    data["sources"]["nodes"] = file.name
    leaves: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for port, switch, _ in fabric.outlets:
        leaves[switch[:2]].append(port[1])
    if len(leaves) > 1:
        data["scale_out"] |= _leaf_spine(fabric, dict(leaves))
        for field in ("nodes_per_leaf", "spines", "oversubscription"):
            data["sources"][f"scale_out.{field}"] = file.name
    return Cluster.model_validate(data)


def _leaf_spine(fabric: _Fabric, leaves: dict[tuple[str, int], list[int]]) -> dict[str, object]:
    """Return the fields of a leaf-spine fabric; whole nodes fill the leaves in order."""
    up: defaultdict[tuple[tuple[str, int], tuple[str, int]], float] = defaultdict(float)
    for source, target, link in fabric.edges:
        if fabric.host not in (source[0], target[0]):
            ends = (source[:2], target[:2]) if source[:2] in leaves else (target[:2], source[:2])
            up[ends] += _speed(link) or 0.0
    spines = {spine for _, spine in up}
    seated = [sorted(set(nodes)) for nodes in leaves.values()]
    per_leaf = len(seated[0])
    in_order = [
        list(range(first, min(first + per_leaf, fabric.nodes)))
        for first in range(0, fabric.nodes, per_leaf)
    ]
    is_regular = up.keys() == set(product(leaves, spines)) and len(set(up.values())) == 1
    if spines & leaves.keys() or not is_regular or seated != in_order:
        raise _GraphError(
            "the fabric is neither one switch nor leaves of whole nodes that all reach all spines"
        )
    first, each = next(iter(leaves)), next(iter(up.values()))
    down = fsum(_speed(link) or 0.0 for _, port, link in fabric.outlets if port[:2] == first)
    if not each or not down:
        raise _GraphError("links of NICs, or between switches, have no bandwidth")
    return {
        "topology": "leaf_spine",
        "nodes_per_leaf": per_leaf,
        "spines": len(spines),
        "oversubscription": max(1.0, down / (len(spines) * each)),
    }
