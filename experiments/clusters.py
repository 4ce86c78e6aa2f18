"""The catalogue: which clusters there are, and where each number of one comes from."""

from dataclasses import dataclass

from experiments.compare import describe
from simulator.units import format_quantity
from topologies import Cluster, catalog, load_cluster, quantities


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a cluster: its name with dots, its value as text, and its source."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class ClustersReport:
    """Clusters, and if it is one that was asked for, its numbers."""

    clusters: tuple[Cluster, ...]
    quantities: tuple[Quantity, ...]

    def record(self) -> object:
        """Return the JSON answer: a list of clusters, or one whole."""
        if self.quantities:
            return self.clusters[0].model_dump(mode="json", exclude_unset=True)
        return [
            {
                "cluster": cluster.name,
                "accelerator": cluster.accelerator.name,
                "ranks_per_node": cluster.ranks_per_node,
                "nodes": cluster.nodes,
                "network": describe(cluster),
                "description": cluster.description,
            }
            for cluster in self.clusters
        ]


def clusters(name: str | None = None) -> ClustersReport:
    """Return the catalogue, or one cluster (a name or a YAML file) with its sources.

    Raises
    ------
    ClusterError
        If there is no such cluster.
    """
    if name is None:
        return ClustersReport(tuple(load_cluster(one) for one in catalog()), ())
    cluster = load_cluster(name)
    rows = tuple(
        Quantity(field, _text(field, value), cluster.sources.get(field, "not given"))
        for field, value in quantities(cluster).items()
    )
    return ClustersReport((cluster,), rows)


def _text(field: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    last = field.rpartition(".")[2]
    if "bandwidth" in last:
        return format_quantity(value, "B/s")
    if "latency" in last or "overhead" in last:
        return format_quantity(value, "s")
    return format_quantity(value, "FLOP/s") if ".peak." in field else f"{value:g}"
