"""A broken or better cable: functions from a topology to a topology.

They change both directions of the cable between two nodes of the graph; where only one direction
exists, that one. Nodes are named as in the graph: ranks by number, ``"fabric"``, ``"nic:0.1:out"``.
Cutting may disconnect ranks: then whoever asks for a path between them gets a ``TopologyError``.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TopologyError
from simulator.topology import Node, Topology, with_links


def slow(network: Topology, here: Node, there: Node, *, factor: float) -> Topology:
    """Divide the bandwidth of a cable by ``factor``, which is at least 1; its latency stays.

    Parameters
    ----------
    network
        The topology; it stays as it is.
    here, there
        The nodes at the ends of the cable.
    factor
        By how much, at least 1.

    Returns
    -------
    Topology
        Named after what was done to it.

    Raises
    ------
    TopologyError
        If there is no such cable, or the factor is less than 1 or not finite.

    Examples
    --------
    >>> from topologies import ring
    >>> network = slow(ring(4, bandwidth=50e9, latency=1e-6), 0, 1, factor=5)
    >>> network.name, sorted(set(network.bandwidth.tolist()))
    ('ring(4), 0-1 slowed by 5', [10000000000.0, 50000000000.0])
    """
    if not 1 <= factor < math.inf:
        raise TopologyError(f"a cable is slowed by a factor of at least 1, not {factor!r}")
    return _scaled(network, here, there, 1 / factor, f"slowed by {factor:g}")


def double(network: Topology, here: Node, there: Node) -> Topology:
    """Put a second cable beside one: twice the bandwidth, the same latency.

    Parameters
    ----------
    network
        The topology; it stays as it is.
    here, there
        The nodes at the ends of the cable.

    Returns
    -------
    Topology
        Named after what was done to it.

    Raises
    ------
    TopologyError
        If there is no such cable.

    Examples
    --------
    >>> from topologies import ring
    >>> double(ring(4, bandwidth=50e9, latency=1e-6), 0, 1).bandwidth.max()
    np.float64(100000000000.0)
    """
    return _scaled(network, here, there, 2.0, "doubled")


def cut(network: Topology, here: Node, there: Node) -> Topology:
    """Take a cable away.

    Parameters
    ----------
    network
        The topology; it stays as it is.
    here, there
        The nodes at the ends of the cable.

    Returns
    -------
    Topology
        Named after what was done to it.

    Raises
    ------
    TopologyError
        If there is no such cable.

    Examples
    --------
    >>> from topologies import diameter, ring
    >>> diameter(cut(ring(8, bandwidth=50e9, latency=1e-6), 0, 7))
    7
    """
    kept = ~cable(network, here, there)
    return with_links(network, kept, name=f"{network.name}, {here}-{there} cut")


def cable(network: Topology, here: Node, there: Node) -> NDArray[np.bool_]:
    """Which links are a direction of the cable between two nodes.

    Raises
    ------
    TopologyError
        If a node is unknown, or they have no cable; it names the neighbours that the first has.
    """
    for node in (here, there):
        if node not in network.nodes:
            raise TopologyError(f"{network.name} has no node {node!r}")
    start, end = network.nodes.index(here), network.nodes.index(there)
    out = network.source == start
    back = network.target == start
    chosen: NDArray[np.bool_] = (out & (network.target == end)) | (back & (network.source == end))
    if not chosen.any():
        near = sorted({str(network.nodes[node]) for node in network.target[out]})
        shown = ", ".join(near[:8]) + (", …" if len(near) > 8 else "")
        raise TopologyError(f"{network.name}: no cable {here} - {there}; {here} leads to {shown}")
    return chosen


def _scaled(network: Topology, here: Node, there: Node, factor: float, how: str) -> Topology:
    chosen = cable(network, here, there)
    return replace(
        network,
        name=f"{network.name}, {here}-{there} {how}",
        bandwidth=np.where(chosen, network.bandwidth * factor, network.bandwidth),
    )
