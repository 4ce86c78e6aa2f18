"""Builders of topologies, and the catalogue of real clusters."""

from topologies.cluster.build import build
from topologies.cluster.catalog import catalog, load_cluster, parse_cluster
from topologies.cluster.changed import changed, resource_values, with_nodes, with_topology
from topologies.cluster.placement import place
from topologies.cluster.schema import Cluster, quantities
from topologies.families.clos import LeafSpineShape, RailShape, fat_tree, leaf_spine, rail
from topologies.families.dragonfly import DragonflyShape, dragonfly
from topologies.families.from_file import custom
from topologies.families.grid import (
    dimension_order,
    dimension_ordered,
    hypercube,
    mesh,
    torus,
    twisted_torus,
)
from topologies.families.ring_and_switch import fully_connected, line, ring, switch
from topologies.families.table import FAMILIES
from topologies.faults import Fault, LinkNamed, broken
from topologies.properties import bisection_bandwidth, closed_form, diameter, summary, throughput
from topologies.spec import parse_topology

__all__ = [
    "FAMILIES",
    "Cluster",
    "DragonflyShape",
    "Fault",
    "LeafSpineShape",
    "LinkNamed",
    "RailShape",
    "bisection_bandwidth",
    "broken",
    "build",
    "catalog",
    "changed",
    "closed_form",
    "custom",
    "diameter",
    "dimension_order",
    "dimension_ordered",
    "dragonfly",
    "fat_tree",
    "fully_connected",
    "hypercube",
    "leaf_spine",
    "line",
    "load_cluster",
    "mesh",
    "parse_cluster",
    "parse_topology",
    "place",
    "quantities",
    "rail",
    "resource_values",
    "ring",
    "summary",
    "switch",
    "throughput",
    "torus",
    "twisted_torus",
    "with_nodes",
    "with_topology",
]
