"""Functions that return a topology, and the catalogue of real clusters."""

from topologies.clos import LeafSpineShape, fat_tree, leaf_spine
from topologies.cluster import Cluster, quantities
from topologies.compose import build
from topologies.dragonfly import DragonflyShape, dragonfly
from topologies.load import catalog, load_cluster, parse_cluster
from topologies.mesh import hypercube, mesh, torus
from topologies.placement import Placement, place
from topologies.properties import bisection_bandwidth, diameter
from topologies.ring import line, ring
from topologies.switch import fully_connected, switch
from topologies.what_if import changed, resource_values, with_topology

__all__ = [
    "Cluster",
    "DragonflyShape",
    "LeafSpineShape",
    "Placement",
    "bisection_bandwidth",
    "build",
    "catalog",
    "changed",
    "diameter",
    "dragonfly",
    "fat_tree",
    "fully_connected",
    "hypercube",
    "leaf_spine",
    "line",
    "load_cluster",
    "mesh",
    "parse_cluster",
    "place",
    "quantities",
    "resource_values",
    "ring",
    "switch",
    "torus",
    "with_topology",
]
