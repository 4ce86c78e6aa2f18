"""Which scale-up domain each rank of a job is in."""

import numpy as np
from numpy.typing import NDArray

from simulator.topology import SCALE_UP, Topology
from topologies.cluster.graphs import domain_graph
from topologies.cluster.placement import place
from topologies.cluster.schema import Cluster


def islands(cluster: Cluster, ranks: int, nodes: int | None = None) -> NDArray[np.int32]:
    """Tell in which scale-up domain each rank of a job is.

    It is that of the cluster file. Where one graph draws the whole network, ranks that reach each
    other over links of ``scale_up`` alone are a domain; without links of another resource, or
    without any of ``scale_up``, all are one.

    Parameters
    ----------
    cluster
        The machine.
    ranks, nodes
        Of the job, as :func:`topologies.cluster.placement.place` takes them.

    Returns
    -------
    ndarray of int32
        Shape ``(ranks,)``, numbered by first appearance.

    Raises
    ------
    ClusterError
        If the job does not fit.
    """
    placement = place(cluster, ranks, nodes)
    found = np.empty(ranks, dtype=np.int32)
    for domain, members in placement.domains(cluster).items():
        found[members] = domain
    scale_up = cluster.scale_up
    if scale_up.graph is None or not cluster.is_one_graph:
        return found
    network = domain_graph(scale_up.graph, scale_up.bandwidth, scale_up.latency, 1.0)
    return joined(network)[:ranks] if len(network.resources) > 1 else found


def joined(network: Topology) -> NDArray[np.int32]:
    """Tell which ranks links of ``scale_up`` join: the number of a part, shape ``(ranks,)``.

    Examples
    --------
    >>> from simulator.topology import Link, topology
    >>> links = [Link(0, 1, 1.0, 0.0), Link(1, 2, 1.0, 0.0, "fibre"), Link(2, 3, 1.0, 0.0)]
    >>> joined(topology("two pairs", 4, links)).tolist()
    [0, 0, 1, 1]
    """
    if SCALE_UP not in network.resources:
        return np.zeros(network.ranks, dtype=np.int32)
    part = list(range(len(network.nodes)))

    def root(node: int) -> int:
        while part[node] != node:
            part[node] = part[part[node]]
            node = part[node]
        return node

    inside = network.resource == network.resources.index(SCALE_UP)
    ends = zip(network.source[inside].tolist(), network.target[inside].tolist(), strict=True)
    for here, there in ends:
        part[root(here)] = root(there)
    number: dict[int, int] = {}
    found = [number.setdefault(root(rank), len(number)) for rank in range(network.ranks)]
    return np.array(found, dtype=np.int32)
