"""Functions that return a topology, and the catalogue of real clusters."""

from topologies.bisection import closed_form
from topologies.clos import LeafSpineShape, fat_tree, leaf_spine
from topologies.cluster import Cluster, quantities
from topologies.compose import build
from topologies.custom import custom
from topologies.degrade import cut, double, slow
from topologies.dragonfly import DragonflyShape, dragonfly
from topologies.load import catalog, load_cluster, parse_cluster
from topologies.mesh import hypercube, mesh, torus
from topologies.paths import dimension_order, minimal, path_links, valiant
from topologies.placement import Placement, place
from topologies.properties import bisection_bandwidth, diameter
from topologies.rail import RailShape, rail
from topologies.ring import line, ring
from topologies.routed import by_valiant, dimension_ordered, minimally
from topologies.spec import FAMILIES, Summary, parse_topology, summary
from topologies.switch import fully_connected, switch
from topologies.twisted import twisted_torus
from topologies.what_if import changed, resource_values, with_topology

__all__ = [
    "FAMILIES",
    "Cluster",
    "DragonflyShape",
    "LeafSpineShape",
    "Placement",
    "RailShape",
    "Summary",
    "bisection_bandwidth",
    "build",
    "by_valiant",
    "catalog",
    "changed",
    "closed_form",
    "custom",
    "cut",
    "diameter",
    "dimension_order",
    "dimension_ordered",
    "double",
    "dragonfly",
    "fat_tree",
    "fully_connected",
    "hypercube",
    "leaf_spine",
    "line",
    "load_cluster",
    "mesh",
    "minimal",
    "minimally",
    "parse_cluster",
    "parse_topology",
    "path_links",
    "place",
    "quantities",
    "rail",
    "resource_values",
    "ring",
    "slow",
    "summary",
    "switch",
    "torus",
    "twisted_torus",
    "valiant",
    "with_topology",
]
