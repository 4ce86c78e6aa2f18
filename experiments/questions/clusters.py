"""The catalogue: clusters with the sources of their numbers, bills, links, and plugins."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import ClassVar

from experiments.documents import catalogue as documents
from experiments.provenance import Head
from experiments.report import Report, Rows, question
from simulator.support.errors import (
    ClusterError,
    PluginError,
    ScheduleError,
    TwofoldError,
    WhatIfError,
)
from simulator.support.input_files import as_printed, decoded, read_bytes
from simulator.support.plugins import (
    ALGORITHMS,
    CLUSTERS,
    GROUPS,
    TOPOLOGIES,
    TRACE_FORMATS,
    Plugin,
    load_plugin,
    plugin_named,
    plugins,
)
from simulator.support.quantities import format_quantity
from topologies import Cluster, build, catalog, load_cluster, quantities
from topologies.cluster.bill import Bill, bill_of
from topologies.cluster.catalog import clusters_with
from topologies.cluster.changed import with_topology
from topologies.cluster.placement import place
from topologies.cluster.schema import describe, kinds_of
from topologies.part_names import Parts


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a cluster: dotted name, value in ``unit`` ("": a count), and source.

    A value that is not a number (the dimensions of a torus) is text.
    """

    quantity: str
    value: float | int | str
    unit: str
    source: str

    def __str__(self) -> str:
        """Value and unit as tables print them: ``300 GB/s``."""
        if self.unit and not isinstance(self.value, str):
            return format_quantity(self.value, self.unit)
        return f"{self.value:.6g}" if isinstance(self.value, float) else str(self.value)


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster of the catalogue; ``ranks_per_node`` is the most if nodes differ."""

    cluster: str
    accelerator: str
    ranks_per_node: int
    nodes: int
    network: str
    description: str


@dataclass(frozen=True, slots=True)
class NamedLink:
    """A cable of the network that a job uses, by its name in what-ifs.

    ``bandwidth`` (B/s) and ``latency`` (s) are of one direction; the bandwidth is None if it is
    unlimited. ``sort`` is the name with ``N`` for every number: cables of one sort are equal.
    """

    link: str
    sort: str
    resource: str
    bandwidth: float | None
    latency: float


class CatalogueAnswer(Head):
    """The clusters of the catalogue."""

    clusters: list[ClusterRow]


class LinksAnswer(Head):
    """Every cable of the network that a job of ``ranks`` ranks uses on a cluster."""

    ranks: int
    links: list[NamedLink]


class OneClusterAnswer(Head):
    """One cluster with all of its numbers, in base units."""

    accelerator: str
    ranks_per_node: int
    nodes: int
    network: str
    description: str
    quantities: list[Quantity]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClustersReport(Report):
    """The clusters asked for; of a single one also its numbers, or its links for ``ranks``.

    ``accelerator`` is the one that was asked for and that all of them have; "" if none was.
    """

    schema: ClassVar[str] = "twofold/clusters/1"
    document = documents.clusters

    clusters: tuple[ClusterRow, ...]
    quantities: tuple[Quantity, ...]
    asked: Cluster | None = None
    ranks: int = 0
    links: tuple[NamedLink, ...] = ()
    accelerator: str = ""

    def answer(self) -> CatalogueAnswer | OneClusterAnswer | LinksAnswer:
        """Return the JSON answer: clusters, or one with its numbers or links."""
        if self.asked is None:
            return {**self.head(), "clusters": list(self.clusters)}
        if self.ranks:
            return {**self.head(self.asked), "ranks": self.ranks, "links": list(self.links)}
        row = self.clusters[0]
        return {
            **self.head(self.asked),
            "accelerator": row.accelerator,
            "ranks_per_node": row.ranks_per_node,
            "nodes": row.nodes,
            "network": row.network,
            "description": row.description,
            "quantities": list(self.quantities),
        }

    def table(self) -> Rows:
        """Return the CSV answer."""
        if self.ranks:
            return NamedLink, self.links
        if self.quantities:
            return Quantity, self.quantities
        return ClusterRow, self.clusters


@question("clusters")
def clusters(  # noqa: PLR0913 - the options of the command
    name: Cluster | Path | str | None = None,
    *,
    from_nccl: Path | str | None = None,
    from_nvidia_smi: Path | str | None = None,
    from_infragraph: Path | str | None = None,
    like: Cluster | Path | str | None = None,
    accelerator: str | None = None,
    links: bool = False,
    ranks: int | None = None,
) -> ClustersReport:
    """Return the catalogue, or one cluster with its sources: by name, or from a dump of a node.

    Parameters
    ----------
    name
        A name of the catalogue, or a YAML file.
    from_nccl
        A topology that NCCL or RCCL dumped (``NCCL_TOPO_DUMP_FILE``).
    from_nvidia_smi
        A matrix of ``nvidia-smi topo -m``.
    from_infragraph
        An infrastructure of InfraGraph, YAML or JSON.
    like
        The cluster that supplies what a dump lacks; by default the nearest of the catalogue. A
        matrix or an infrastructure does not name its GPUs, so these need it.
    accelerator
        List only clusters with this accelerator, as a trace spells it: ``NVIDIA H100 80GB HBM3``.
    links
        Whether to return the links of one cluster's network instead of its numbers, by the names
        that what-ifs use (``link leaf:0-spine:1 down``).
    ranks
        Ranks of the job whose network this is; by default the whole cluster.

    Raises
    ------
    ClusterError
        If there is no such cluster, none has the accelerator, the file draws no node, or the ranks
        do not fit.
    WhatIfError
        If more than one cluster is asked for, or links of none.
    """
    if ranks is not None and not links:
        raise WhatIfError("ranks has no effect without links")
    files = {"from_nccl": from_nccl, "from_nvidia_smi": from_nvidia_smi} | {
        "from_infragraph": from_infragraph
    }
    drawings = {kind: file for kind, file in files.items() if file is not None}
    if len(drawings) + (name is not None) > 1:
        raise WhatIfError("give a name or one topology dump: of NCCL, nvidia-smi or InfraGraph")
    if like is not None and not drawings:
        raise WhatIfError("--like has no effect without a topology dump: it adds what a dump lacks")
    if name is None and not drawings and links:
        raise WhatIfError("--links needs a cluster: name one, or give a topology dump")
    if accelerator is not None and (name is not None or drawings):
        raise WhatIfError("--accelerator filters the catalogue: do not name a cluster as well")
    if name is None and not drawings:
        names = tuple(catalog()) if accelerator is None else _with_accelerator(accelerator)
        listed = tuple(_row(load_cluster(catalog_name)) for catalog_name in names)
        return ClustersReport(listed, (), accelerator=accelerator or "")
    like_cluster = None if like is None else load_cluster(like)
    cluster = load_cluster(name) if name is not None else _dumped(*drawings.popitem(), like_cluster)
    if links:
        job = cluster.capacity if ranks is None else ranks
        named = tuple(
            NamedLink(
                link=cable.name,
                sort=re.sub(r"\d+", "N", cable.name),
                resource=cable.resource,
                bandwidth=cable.bandwidth if isfinite(cable.bandwidth) else None,
                latency=cable.latency,
            )
            for cable in Parts(build(cluster, job)).cables()
        )
        return ClustersReport((_row(cluster),), (), cluster, job, named)
    rows = tuple(
        Quantity(field, _plain(value), _unit(field), cluster.sources.get(field, "not given"))
        for field, value in quantities(cluster).items()
    )
    return ClustersReport((_row(cluster),), rows, cluster)


def _with_accelerator(accelerator: str) -> tuple[str, ...]:
    """List the clusters of the catalogue with an accelerator, the closest match first."""
    if names := clusters_with(accelerator):
        return names
    accelerators = ", ".join(sorted({load_cluster(name).accelerator.name for name in catalog()}))
    raise ClusterError(
        f"accelerator {accelerator!r}: no cluster of the catalogue has it; they have {accelerators}"
    )


def kind_of_drawing(file: Path | str) -> str:
    """Return the parameter of :func:`clusters` that takes a drawing of a node, by its content.

    Raises ClusterError if the file cannot be read, or is none of the drawings that can be.
    """
    data = read_bytes(Path(file), ClusterError)
    try:
        text = decoded(data)
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # its reader says what is wrong with it
    if text.lstrip().startswith("<"):
        return "from_nccl"
    text = as_printed(text)
    if re.search(r"^\s*GPU0\s", text, re.MULTILINE):
        return "from_nvidia_smi"
    if "devices" in text and "instances" in text:
        return "from_infragraph"
    raise ClusterError(
        f"{file}: not a topology dump of NCCL or RCCL (XML), the output of 'nvidia-smi topo -m', or"
        " an infrastructure of InfraGraph (YAML or JSON with devices and instances)"
    )


def _dumped(kind: str, file: Path | str, like: Cluster | None) -> Cluster:
    """Read a dump of a node; readers are imported when needed."""
    if kind == "from_nccl":
        from topologies.readers.from_nccl import from_nccl

        return from_nccl(file, like)
    if like is None:
        raise WhatIfError(
            f"{file}: it does not name its GPUs: give --like a cluster with the same GPUs, a name"
            " of the catalogue or as a YAML file"
        )
    if kind == "from_nvidia_smi":
        from topologies.readers.from_nvidia_smi import from_nvidia_smi

        return from_nvidia_smi(file, like)
    from topologies.readers.from_infragraph import from_infragraph

    return from_infragraph(file, like)


def _row(cluster: Cluster) -> ClusterRow:
    kinds = kinds_of(cluster).values()
    return ClusterRow(
        cluster=cluster.name,
        accelerator=" and ".join(dict.fromkeys(kind.accelerator.name for kind in kinds)),
        ranks_per_node=max(kind.ranks_per_node for kind in kinds),
        nodes=cluster.nodes,
        network=describe(cluster),
        description=cluster.description,
    )


def _plain(value: object) -> float | int | str:
    if isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        return len(value)
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return value if isinstance(value, (float, int)) else str(value)


def _unit(field: str) -> str:
    last = field.rpartition(".")[2]
    if "bandwidth" in last:
        return "B/s"
    if last == "memory":
        return "B"
    if "latency" in last or "overhead" in last:
        return "s"
    return "FLOP/s" if ".peak." in field else ""


@dataclass(frozen=True, slots=True)
class PluginRow(Plugin):
    """One entry point of a distribution; ``adds`` is the name under which it can be used.

    ``refused`` is the reason if it cannot be used, "" if it can.
    """

    adds: str
    refused: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PluginsReport(Report):
    """Plug-ins of installed distributions; each was loaded to check that it works."""

    schema: ClassVar[str] = "twofold/plugins/1"
    listed: ClassVar = PluginRow, "rows"
    document = documents.plugins
    answered: ClassVar = "plugins=rows"

    rows: tuple[PluginRow, ...]


@question("plugins")
def list_plugins() -> PluginsReport:
    """List the plug-ins of installed distributions; load each to check that it works.

    Returns
    -------
    PluginsReport
        A plug-in that is broken, or whose name is taken, is a row with the reason.
    """
    rows = []
    for plugin in (plugin for group in GROUPS for plugin in plugins(group)):
        adds, refused = plugin.name, ""
        try:
            plugin_named(plugin.group, plugin.name)
            adds = _ADDS[plugin.group](plugin)
        except TwofoldError as error:
            refused = str(error)
        rows.append(PluginRow(**asdict(plugin), adds=adds, refused=refused))
    return PluginsReport(tuple(rows))


def _family(plugin: Plugin) -> str:
    from topologies.families.table import FAMILIES, as_family

    _check_free(plugin, FAMILIES)
    return f"{load_plugin(plugin, as_family).form}"


def _algorithm(plugin: Plugin) -> str:
    from collectives.libraries.planners import algorithm_names
    from collectives.select import as_algorithm, prove

    kind, _, name = plugin.name.partition(".")
    try:
        _check_free(plugin, algorithm_names(kind), name)
        prove(kind, load_plugin(plugin, as_algorithm))
    except ScheduleError as error:
        raise PluginError(f"{plugin} ({plugin.target}) cannot be used: {error}") from error
    return f"{kind}={name}"


def _format(plugin: Plugin) -> str:
    from traces.load import FORMATS, as_format

    _check_free(plugin, FORMATS)
    load_plugin(plugin, as_format)
    return plugin.name


def _clusters(plugin: Plugin) -> str:
    from topologies.cluster.catalog import added_clusters, load_cluster

    names = [name for name, added in added_clusters().items() if added.plugin == plugin]
    for name in names:
        load_cluster(name)
    return ", ".join(names)


_ADDS: dict[str, Callable[[Plugin], str]] = {
    TOPOLOGIES: _family,
    ALGORITHMS: _algorithm,
    TRACE_FORMATS: _format,
    CLUSTERS: _clusters,
}


def _check_free(plugin: Plugin, existing: object, name: str | None = None) -> None:
    """Refuse the name of a built-in: a plug-in can add, but not replace."""
    name = name or plugin.name
    if isinstance(existing, dict | tuple) and name in existing:
        raise PluginError(f"{plugin}: {name} is a name of twofold's own: choose another")


@dataclass(frozen=True, slots=True)
class BillRow:
    """Pieces of one part: price in USD, and power in W when idle and when active.

    Spreads are fractions. A number that is not published is None; ``cost`` is of all pieces.
    """

    part: str
    what: str
    count: int
    price_usd: float | None
    price_spread: float
    cost_usd: float | None
    price_source: str
    idle_w: float | None
    active_w: float | None
    power_spread: float
    power_source: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BillReport(Report):
    """The bill of a job of ``ranks`` on ``nodes`` nodes of a cluster, part by part.

    Cost (USD) and power (W) are of its site; None if a part's is unknown. ``overhead`` is the power
    of the site over that of its parts (PUE), ``missing`` names the fields of the cluster file that
    would supply what is missing.
    """

    schema: ClassVar[str] = "twofold/bill/1"
    listed: ClassVar = BillRow, "rows"
    document = documents.bill
    answered: ClassVar = (
        "where ranks nodes switches=bill.switches cost_usd cost_spread_usd idle_w active_w"
        " overhead=bill.overhead energy_price_usd_per_kwh missing=bill.missing parts=rows"
    )

    cluster: Cluster
    ranks: int
    nodes: int
    bill: Bill

    @property
    def rows(self) -> Sequence[BillRow]:
        """A row for each part."""
        return [
            BillRow(
                part=line.part,
                what=line.what,
                count=line.count,
                price_usd=line.piece.price,
                price_spread=line.piece.price_spread,
                cost_usd=line.cost,
                price_source=line.piece.price_source,
                idle_w=line.piece.idle,
                active_w=line.piece.active,
                power_spread=line.piece.power_spread,
                power_source=line.piece.power_source,
            )
            for line in self.bill.lines
        ]

    @property
    def where(self) -> str:
        """The cluster in words."""
        return describe(self.cluster)

    @property
    def cost_usd(self) -> float | None:
        """Cost of all parts."""
        return self.bill.cost if self.bill.has_all("prices") else None

    @property
    def cost_spread_usd(self) -> float | None:
        """Uncertainty of the cost."""
        return self.bill.cost_spread if self.bill.has_all("prices") else None

    @property
    def idle_w(self) -> float | None:
        """Power with all parts idle."""
        return self.bill.idle_power if self.bill.has_all("power") else None

    @property
    def active_w(self) -> float | None:
        """Power with all parts active."""
        return self.bill.active_power if self.bill.has_all("power") else None

    @property
    def energy_price_usd_per_kwh(self) -> float:
        """Price of energy."""
        return self.bill.energy_price * 3.6e6


@question("bill")
def bill(
    cluster: Cluster | Path | str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    topologies: Sequence[str] = (),
) -> BillReport:
    """List the parts of a job's share of a cluster, with their cost and power.

    Parameters
    ----------
    cluster
        A name of the catalogue, or a YAML file; its ``prices`` and ``power`` replace the defaults.
    ranks
        Ranks of the job; by default the whole machine.
    nodes
        Number of nodes over which the ranks are spread; by default as few as possible.
    topologies
        Changes of the network, as ``compare`` takes them: ``scale_out=fat_tree:16``.

    Raises
    ------
    ClusterError
        If there is no such cluster or topology, or the job does not fit.

    Examples
    --------
    >>> report = bill("hgx-h100", ranks=1024)
    >>> report.bill.switches, report.bill.count("cable"), round(report.bill.cost / 1e6, 1)
    (48, 2048, 43.5)
    """
    machine = load_cluster(cluster)
    job = machine.capacity if ranks is None else ranks
    for change in topologies:
        machine = with_topology(machine, change, place(machine, job, nodes).nodes)
    used = place(machine, job, nodes).nodes
    return BillReport(machine, job, used, bill_of(machine, job, nodes))
