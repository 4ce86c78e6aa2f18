"""Small things that tests of topologies share: a cable, and what a network looks like."""

from dataclasses import replace

import numpy as np

from simulator.topology import Topology
from topologies import diameter

B = 50e9
CABLE = {"bandwidth": B, "latency": 1e-6}


def figures(network: Topology) -> tuple[int, int, int]:
    """Nodes, links, diameter."""
    return len(network.nodes), len(network), diameter(network)


def neighbours(network: Topology, rank: int) -> set[object]:
    """Where the links of a rank lead."""
    return set(network.graph().successors(rank))


def everyone(network: Topology):
    """Every ordered pair of different ranks."""
    source, target = np.divmod(np.arange(network.ranks**2, dtype=np.int32), network.ranks)
    other = source != target
    return source[other].astype(np.int32), target[other].astype(np.int32)


def scaled(network: Topology, resource: str, *, bandwidth: float = 1.0, latency: float = 1.0):
    """The topology with the links of one resource multiplied."""
    chosen = network.resource == network.resources.index(resource)
    return replace(
        network,
        bandwidth=np.where(chosen, network.bandwidth * bandwidth, network.bandwidth),
        latency=np.where(chosen, network.latency * latency, network.latency),
    )
