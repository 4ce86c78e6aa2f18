"""The catalogue: which clusters there are, and where each number of one comes from."""

from dataclasses import asdict, dataclass
from typing import ClassVar

from experiments.report import Report, Rows
from simulator.quantities import format_quantity
from topologies import Cluster, catalog, load_cluster, quantities


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a cluster: its name with dots, its value in ``unit`` ("": a count), its source.

    A value that is no number (the dimensions of a torus) is text.
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
    """One cluster of the catalogue."""

    cluster: str
    accelerator: str
    ranks_per_node: int
    nodes: int
    network: str
    description: str


@dataclass(frozen=True, slots=True, eq=False)
class ClustersReport(Report):
    """Clusters, and if it is one that was asked for, its numbers."""

    printed_by: ClassVar[str] = "experiments.output.tables.networks:print_clusters"

    clusters: tuple[ClusterRow, ...]
    quantities: tuple[Quantity, ...]

    def record(self) -> object:
        """Return the JSON answer: a list of clusters, or one with its numbers (base units)."""
        if self.quantities:
            rows = [asdict(quantity) for quantity in self.quantities]
            return asdict(self.clusters[0]) | {"quantities": rows}
        return [asdict(cluster) for cluster in self.clusters]

    def table(self) -> Rows:
        """Return the CSV answer."""
        if self.quantities:
            return Quantity, self.quantities
        return ClusterRow, self.clusters


def clusters(name: str | None = None) -> ClustersReport:
    """Return the catalogue, or one cluster (a name or a YAML file) with its sources.

    Raises
    ------
    ClusterError
        If there is no such cluster.
    """
    if name is None:
        return ClustersReport(tuple(_row(load_cluster(one)) for one in catalog()), ())
    cluster = load_cluster(name)
    rows = tuple(
        Quantity(field, _plain(value), _unit(field), cluster.sources.get(field, "not given"))
        for field, value in quantities(cluster).items()
    )
    return ClustersReport((_row(cluster),), rows)


def describe(cluster: Cluster) -> str:
    """Say what a cluster's network is, in one line."""
    up, out = cluster.scale_up, cluster.scale_out
    inside = f"{up.topology} of {up.size} at {format_quantity(up.bandwidth, 'B/s')}"
    if out is None:
        return inside
    nic = format_quantity(out.bandwidth, "B/s")
    return f"{inside}; {out.topology}, {out.nics_per_node} x {nic} per node"


def _row(cluster: Cluster) -> ClusterRow:
    return ClusterRow(
        cluster=cluster.name,
        accelerator=cluster.accelerator.name,
        ranks_per_node=cluster.ranks_per_node,
        nodes=cluster.nodes,
        network=describe(cluster),
        description=cluster.description,
    )


def _plain(value: object) -> float | int | str:
    if isinstance(value, (list, tuple)):
        return "x".join(map(str, value))
    return value if isinstance(value, (float, int)) else str(value)


def _unit(field: str) -> str:
    last = field.rpartition(".")[2]
    if "bandwidth" in last:
        return "B/s"
    if "latency" in last or "overhead" in last:
        return "s"
    return "FLOP/s" if ".peak." in field else ""
