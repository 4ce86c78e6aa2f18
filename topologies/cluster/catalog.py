"""Read a :class:`Cluster` from the catalogue or a YAML file, and write such a file.

Every fault in a file is a ``ClusterError`` that names file, field, the value found and what is
accepted.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simulator.accelerators import models, vendor
from simulator.support.errors import ClusterError, PluginError, QuantityError, fault, shown
from simulator.support.input_files import parse_json, read_text, reason_of
from simulator.support.names import did_you_mean, same_name
from simulator.support.plugins import CLUSTERS, Plugin, load_plugin, plugins
from simulator.support.quantities import format_quantity, parse_quantity
from simulator.support.yaml_text import parse_yaml
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from topologies.cluster.bare import bare_network, is_bare
from topologies.cluster.fabrics import FABRICS
from topologies.cluster.graphs import is_graph_file
from topologies.cluster.node import NVLINKS
from topologies.cluster.schema import OF_A_NODE, OF_NICS, Cluster
from topologies.families.from_file import MOST_OF_LINK


def load_cluster(name_or_path: Cluster | str | Path) -> Cluster:
    """Read a cluster by catalogue name, YAML file or bare network; catalogue names take precedence.

    Parameters
    ----------
    name_or_path
        A name (``dgx-a100``), or the path of a file like those in ``topologies/catalog``. Other
        spellings of a name (``DGX_A100``) are accepted unless a file is called so. Or a bare
        network, as :func:`topologies.cluster.bare.bare_network` takes it: ``g.json``,
        ``torus:4x4x4, 50 GB/s, 1 us``. A cluster is returned unchanged.

    Raises
    ------
    ClusterError
        If there is no such cluster or file, or the file is not a cluster: every wrong field is
        named.
    TopologyError
        If a bare network cannot be built.

    Examples
    --------
    >>> load_cluster("dgx-a100").scale_up.size
    8
    """
    if not isinstance(name_or_path, Cluster | str | Path):
        raise ClusterError(f"cluster {shown(name_or_path)}: write a name, a path or a Cluster")
    return name_or_path if isinstance(name_or_path, Cluster) else _load(name_or_path, ())


def _load(name_or_path: str | Path, within: tuple[str, ...]) -> Cluster:
    """Read a cluster; ``within`` names the clusters whose kinds of node are ``like`` it."""
    path = Path(name_or_path)
    if is_bare(str(name_or_path)) and not _holds_cluster(path):
        return bare_network(str(name_or_path))
    names = catalog()
    try:
        name = str(name_or_path) if path.exists() else same_name(str(name_or_path), names)
        if name in names:
            return _of_catalog(name)
        added = None if path.exists() else added_clusters().get(str(name_or_path))
        if added is not None:
            return _parse(added.text, f"{added.plugin}: {name_or_path}", within)
        if not (path.exists() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1):
            hint = did_you_mean(str(name_or_path), (*catalog(), *added_clusters()))
            raise ClusterError(
                f"{name_or_path}: no such cluster; {hint}'twofold clusters' lists the catalogue; "
                "the path of a YAML file or a graph (.json, .graphml) works too"
            )
        text = read_text(path, ClusterError, "as a cluster")
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path}: cannot be read as a cluster: {reason_of(error)}") from error
    return _parse(text, str(path), within)


@cache
def _of_catalog(name: str) -> Cluster:
    """Read a cluster of the catalogue, cached: clusters and the program's files never change."""
    text = (files("topologies") / "catalog" / f"{name}.yaml").read_text("utf-8")
    return _parse(text, name, ())


def _holds_cluster(path: Path) -> bool:
    """Whether a JSON file is a cluster file, which may be JSON too, rather than a graph."""
    if path.suffix.lower() != ".json":
        return False
    try:
        data = parse_json(read_text(path, ClusterError), path, ClusterError)
    except ClusterError:
        return False
    return isinstance(data, dict) and bool({"scale_up", "accelerator"} & data.keys())


def parse_cluster(text: str, *, source: str) -> Cluster:
    """Turn the YAML text of a cluster file into a cluster; errors name the file ``source``.

    Raises
    ------
    ClusterError
        If the text is not a cluster: every wrong field is named.

    Examples
    --------
    >>> text = '''
    ... name: pair
    ... accelerator: {name: chip}
    ... ranks_per_node: 2
    ... nodes: 1
    ... scale_up: {topology: switch, size: 2, bandwidth: 100 GB/s, latency: 2 us}
    ... '''
    >>> parse_cluster(text, source="pair.yaml").scale_up.bandwidth
    100000000000.0
    """
    return _parse(text, source, ())


def _parse(text: str, source: str, within: tuple[str, ...]) -> Cluster:
    if source in within:
        raise ClusterError(f"{source}: the 'like' fields of its kinds of node form a cycle")
    data = parse_yaml(text, source, ClusterError)
    if not isinstance(data, dict):
        content = "empty" if data is None else f"a {type(data).__name__}"
        raise ClusterError(f"{source}: a cluster is a table of fields, but the file is {content}")
    folder = Path(source).parent
    for tier in (SCALE_UP, SCALE_OUT):
        if isinstance(data.get(tier), dict):
            data[tier] |= {
                name: _resolve_file(folder, data[tier][name])
                for name in ("topology", "graph")
                if name in data[tier]
            }
    try:
        cluster = Cluster.model_validate(_like_others(data, (*within, source)))
    except ValidationError as error:
        raise ClusterError(f"{source}: {complaints(error)}") from error
    _check_links(cluster, source)
    return cluster


_MAKERS = {"nvlink": "nvidia", "nccl": "nvidia", "xgmi": "amd", "rccl": "amd", "ici": "google"}
"""Whose accelerators have links, and run libraries, of these names."""
_ONE_WAY = {"pcie3": 15.75, "pcie4": 31.5, "pcie5": 63.0, "pcie6": 121.0}
"""GB/s of a port of sixteen lanes in one direction, by technology (PCI-SIG)."""


def link_doubts(cluster: Cluster | None) -> tuple[str, ...]:
    """Say what a cluster's links can hardly have: both directions' bandwidth, light's latency."""
    if cluster is None:
        return ()
    up, out = cluster.scale_up, cluster.scale_out
    odd = [
        f"{tier}.latency {format_quantity(late, 's')}: light takes longer; check the unit"
        for tier, least in ((SCALE_UP, 1e-9), (SCALE_OUT, 1e-8))  # of 20 cm and 2 m; 0 is ideal
        if 0 < (late := getattr(getattr(cluster, tier), "latency", 0.0)) < least
    ]
    ports = cluster.pcie.bandwidth * cluster.ranks_per_node if cluster.pcie else inf
    if out is not None and out.bandwidth * out.nics_per_node > 2 * ports:
        odd.append("scale_out.bandwidth of a node's NICs is over twice what its pcie carries")
    library = cluster.library.name if cluster.library else ""
    if out is not None and library in ("nccl", "rccl") and out.transport != "sockets":
        hop, late = getattr(out, "hop_latency", 0.0), out.latency
        if max(late, hop) > _SLOWEST_RDMA:
            long = format_quantity(max(late, hop), "s")
            odd.append(f"scale_out.latency {long} is long for {library} over RDMA; check the unit")
        elif hop > late > 0:
            odd.append("scale_out.hop_latency of one switch is longer than the latency of a step")
    links, speed, _ = NVLINKS.get(up.link or "", (1, _ONE_WAY.get(up.link or "", 0.0), ""))
    for times, how in ((2.0, "in both directions"), (1 / 8, "in Gbit/s")):
        if speed and abs(up.bandwidth / (times * 1e9 * links * speed) - 1) <= 0.05:  # sheets round
            rate, right = (format_quantity(up.bandwidth / by, "B/s") for by in (1, times))
            odd.append(f"scale_up.bandwidth {rate} is that of {up.link} {how}, not {right}")
    return tuple(odd)


_SLOWEST_RDMA = 2e-4
"""Latency of a step (s) beyond every fabric that RDMA is used on; EFA's is 30 us."""


def _check_links(cluster: Cluster, source: str) -> None:
    """Refuse links of a file that are no links of this kind; what-ifs may ask for more."""
    link, generation = cluster.scale_up.link or "", cluster.accelerator.generation
    links, speed, owner = NVLINKS.get(link, (0, 0.0, generation))
    if generation != owner and any(generation in row for row in NVLINKS.values()):
        raise ClusterError(f"{source}: scale_up.link: {link} is of {owner}, not of {generation}")
    maker, library = vendor(generation or ""), cluster.library
    of_link = next((whose for start, whose in _MAKERS.items() if link.startswith(start)), maker)
    if maker and of_link != maker:
        raise ClusterError(f"{source}: scale_up.link: {link} is not of {cluster.accelerator.name}")
    if maker and library is not None and _MAKERS.get(library.name, maker) != maker:
        wrong = f"{library.name} does not run on {cluster.accelerator.name}"
        raise ClusterError(f"{source}: library.name: {wrong}")
    domains = cluster.ranks_per_node // cluster.scale_up.size
    if maker and domains > 64:  # four times the most in use, single GPUs counted
        raise ClusterError(f"{source}: ranks_per_node: {domains} scale-up domains in one node")
    # Machines that do not exist yet have several times as much: what-ifs are written to files, too.
    up = (0.1 * 1e9 * speed, 10 * 1e9 * speed * links) if links else (1e6, MOST_OF_LINK)
    for tier, limits in {SCALE_UP: up, SCALE_OUT: (1e6, 1e13), PCIE: (1e8, 1e13)}.items():
        part = getattr(cluster, tier)
        if part is not None and not limits[0] <= part.bandwidth <= limits[1]:
            rate, *ends = (format_quantity(value, "B/s") for value in (part.bandwidth, *limits))
            wrong = f"{tier}.bandwidth: {rate} is not from {' to '.join(ends)} in one direction"
            raise ClusterError(f"{source}: {wrong}: is the unit right?")


def _resolve_file(folder: Path, value: object) -> object:
    """Resolve the path of a graph, in a field that may name one, relative to the cluster file."""
    if isinstance(value, dict) and isinstance(value.get("file"), str):
        return value | {"file": str(folder / value["file"])}
    if isinstance(value, str) and is_graph_file(value):
        return str(folder / value)
    return value


def _like_others(data: dict[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
    """Expand kinds of node that are ``like`` another cluster to fields of its nodes and NICs.

    Fields that a kind gives itself take precedence, and so do sources of the file.
    """
    kinds = data.get("node_kinds")
    if not isinstance(kinds, dict):
        return data
    written, sources = dict(kinds), dict(data.get("sources") or {})
    for name, kind in kinds.items():
        if not (isinstance(kind, dict) and "like" in kind):
            continue
        if not isinstance(kind["like"], str):
            raise ClusterError(
                f"node_kinds.{name}.like: {kind['like']!r}: name a cluster of the catalogue, or a"
                " YAML file"
            )
        try:
            model = _load(kind["like"], within)
        except ClusterError as error:
            raise ClusterError(f"node_kinds.{name}.like: {error}") from error
        table = model.model_dump(mode="json", exclude_unset=True)
        fields = {field: table.get(field) for field in ("pcie", "host")}
        fields |= {field: table[field] for field in ("ranks_per_node", "accelerator", "scale_up")}
        nics = table.get("scale_out") or {}
        fields["scale_out"] = {field: nics[field] for field in OF_NICS if field in nics}
        for field, value in kind.items():
            before = fields.get(field)
            both = isinstance(value, dict) and isinstance(before, dict)
            fields[field] = before | value if both else value
        fields.pop("like")
        written[name] = {field: value for field, value in fields.items() if value != {}}
        sources = _sources_of_model(name, kind, model) | sources
    return data | {"node_kinds": written} | ({"sources": sources} if sources else {})


def _sources_of_model(name: str, kind: Mapping[str, Any], model: Cluster) -> dict[str, str]:
    """Return the sources of the numbers that a kind takes from another cluster."""
    sources = {}
    for path, source in model.sources.items():
        field, _, number = path.partition(".")
        of_nics = field == "scale_out" and number in OF_NICS
        stated = kind.get(field)
        is_stated = number in stated if isinstance(stated, dict) and number else field in kind
        if (of_nics or field in OF_A_NODE) and not is_stated:
            sources[f"node_kinds.{name}.{path}"] = f"{model.name}: {source}"
    return sources


@cache
def catalog() -> tuple[str, ...]:
    """Return the sorted names of the clusters that ship with the package.

    Examples
    --------
    >>> len(catalog()), catalog()[:3]
    (49, ('a100-mesh-4', 'a100-pcie-8', 'alibaba-hpn7'))
    """
    folder = files("topologies") / "catalog"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


class AddedCluster(Struct, frozen=True):
    """A cluster file that a distribution adds, as text."""

    plugin: Plugin
    text: str


def clusters_with(accelerator: str) -> tuple[str, ...]:
    """Return the catalogue's clusters that have an accelerator, as a trace spells it.

    Sorted by how much of its name (form, memory) they share, then single nodes before machines.

    Examples
    --------
    >>> clusters_with("AMD Instinct MI300X"), clusters_with("AMD Radeon Graphics")
    (('mi300x-8',), ())
    """
    wanted, words = models(accelerator), _name_words(accelerator)
    clusters = [(name, load_cluster(name)) for name in catalog()]
    same = [named for named in clusters if wanted & models(named[1].accelerator.name)]
    same.sort(
        key=lambda named: (-len(words & _name_words(named[1].accelerator.name)), named[1].nodes < 2)
    )
    return tuple(name for name, _ in same)


def _name_words(accelerator: str) -> set[str]:
    return set(re.findall(r"[a-z]+|\d+", accelerator.lower()))


def added_clusters() -> dict[str, AddedCluster]:
    """Return the clusters that distributions add to the catalogue, by name.

    An entry point of ``twofold.clusters`` points to a package, or a path, with a YAML file each.

    Raises
    ------
    PluginError
        If an entry point is broken, or adds a name that is taken.
    """
    clusters: dict[str, AddedCluster] = {}
    for plugin in plugins(CLUSTERS):
        folder = load_plugin(plugin, as_folder)
        for entry in sorted(folder.iterdir(), key=lambda file: file.name):
            if not entry.name.endswith(".yaml"):
                continue
            name = entry.name.removesuffix(".yaml")
            if name in catalog() or name in clusters:
                whose = clusters[name].plugin.distribution if name in clusters else "twofold"
                raise PluginError(f"{plugin}: cluster {name} is {whose}'s already: rename its file")
            clusters[name] = AddedCluster(plugin, entry.read_text("utf-8"))
    return clusters


def as_folder(loaded: object) -> Traversable:
    """Return the folder of a package or of a path."""
    folder = files(loaded) if isinstance(loaded, ModuleType) else loaded
    folder = Path(folder) if isinstance(folder, str) else folder
    if not isinstance(folder, Traversable) or not folder.is_dir():
        raise TypeError("write a package, or the path of a folder, with a YAML file per cluster")
    return folder


def complaints(error: ValidationError, model: type[BaseModel] = Cluster) -> str:
    """Return all errors that pydantic found, in one line, each with its field."""
    return "; ".join(_complaint(detail, model) for detail in error.errors(include_url=False))


def _complaint(detail: ErrorDetails, model: type[BaseModel]) -> str:
    # Dotted path, without the tag that pydantic inserts after a discriminated union.
    location = detail["loc"]
    if location[:1] == ("scale_out",) and location[1:2] and location[1] in FABRICS:
        location = location[:1] + location[2:]
    field = ".".join(str(part) for part in location if part != "[key]")
    value, kind = detail["input"], detail["type"]
    if kind == "union_tag_not_found":
        return f"{field}.topology: missing"
    if kind == "union_tag_invalid":
        tag = value["topology"] if isinstance(value, dict) else value
        return f"{field}.topology: {tag!r} is not one of {', '.join(map(str, FABRICS))}"
    return f"{field}: {fault(detail, model)}".removeprefix(": ")


_UNITS = {
    "B/s": {"GB/s": 1e9, "TB/s": 1e12},
    "s": {"us": 1e-6, "ns": 1e-9, "ms": 1e-3},
    "FLOP/s": {"TFLOP/s": 1e12},
    "W": {"W": 1.0, "kW": 1e3},
    "USD": {"kUSD": 1e3, "USD": 1.0},
    "USD/J": {"USD/kWh": 1 / 3.6e6},
}
"""Units in a cluster file by base unit, the usual one first, and their size in base units."""


def cluster_text(cluster: Cluster) -> str:
    """Write a cluster as YAML, sources last, that reads back as an equal one, to the last bit.

    Examples
    --------
    >>> from topologies import load_cluster, parse_cluster
    >>> cluster = load_cluster("dgx-a100")
    >>> text = cluster_text(cluster)
    >>> parse_cluster(text, source="text") == cluster, text.splitlines()[2]
    (True, 'accelerator:')
    """
    import yaml  # slow to load, and most commands write no cluster

    table = cluster.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    if "node_kinds" in table:  # in a kind, null means that it has none of what others have
        table["node_kinds"] = cluster.model_dump(mode="json", exclude_unset=True)["node_kinds"]
    sources = table.pop("sources", {})
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
    text = yaml.safe_dump(_with_plain_quantities(table), default_flow_style=None, **style)
    if sources:
        text += yaml.safe_dump({"sources": sources}, default_flow_style=False, **style)
    return str(text)


def _with_plain_quantities(value: object) -> object:
    if isinstance(value, dict):
        return {name: _with_plain_quantities(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_plain_quantities(part) for part in value]
    return _with_usual_unit(value) if isinstance(value, str) else value


def _with_usual_unit(text: str) -> str:
    """Write ``300000000000.0 B/s`` as ``300 GB/s`` if that is exactly equal."""
    number, _, base = text.partition(" ")
    try:
        value = float(number)
        shown = [f"{value / scale:.12g} {unit}" for unit, scale in _UNITS.get(base, {}).items()]
        return next((scale for scale in shown if parse_quantity(scale, base) == value), text)
    except (ValueError, QuantityError):
        return text
