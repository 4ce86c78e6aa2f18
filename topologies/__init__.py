"""Builders of topologies, and the catalogue of real clusters."""

from topologies.cluster.build import build
from topologies.cluster.catalog import catalog, load_cluster, parse_cluster
from topologies.cluster.changed import changed, resource_values, with_nodes, with_topology
from topologies.cluster.placement import place
from topologies.cluster.schema import Cluster, quantities
from topologies.families.table import FAMILIES
from topologies.spec import parse_topology

__all__ = [
    "FAMILIES",
    "Cluster",
    "build",
    "catalog",
    "changed",
    "load_cluster",
    "parse_cluster",
    "parse_topology",
    "place",
    "quantities",
    "resource_values",
    "with_nodes",
    "with_topology",
]
