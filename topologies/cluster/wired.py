"""Links of nodes that a cluster file wires cable by cable (:mod:`topologies.cluster.wiring`).

In the graph a vertex ``plx0`` of node 3 is ``plx0:3``, a GPU that the job does not use
``gpu:3.7``; GPUs in use are ranks, and a NIC has the two sides that all NICs have.

A path between two GPUs costs the latency of the tier they meet on: a cable of the scale-up fabric
all of it between two GPUs, half of it between a GPU and anything else, and none deeper inside. PCIe
has latency only where peers have to use it: elsewhere it leads to NICs, whose latency has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from simulator.topology import PCIE, SCALE_UP, Doors, Link, Node, Topology
from topologies.cluster.fabrics import RailFabric
from topologies.cluster.placement import Placement
from topologies.cluster.scale_out import Nic
from topologies.cluster.schema import Cluster
from topologies.cluster.wiring import Cable, Wiring, gpu_number, nic_number


def wired_links(
    cluster: Cluster, placement: Placement, nics: Sequence[Nic], wiring: Wiring
) -> Iterator[Link]:
    """Links inside every node in use; none to NICs where there is no fabric.

    Parameters
    ----------
    cluster
        The machine.
    placement
        Where the ranks of the job sit.
    nics
        As :func:`topologies.cluster.scale_out.node_nics` lists them; empty without a fabric.
    wiring
        That of the cluster.

    Yields
    ------
    Link
        Of the resources ``scale_up`` and ``pcie``.
    """
    speed = _speeds(cluster, wiring)
    for node in range(placement.nodes):
        own = {nic.first // nic.count: nic for nic in nics if nic.node == node}
        for cable in wiring.cables:
            bandwidth = cable.width * speed[cable.tier]
            number = [one for end in cable.ends if (one := nic_number(end)) is not None]
            if number and number[0] in own:
                nic = own[number[0]]
                plug = next(end for end in cable.ends if nic_number(end) is None)
                vertex = _vertex(plug, node, placement)
                yield Link(vertex, nic.out, nic.count * bandwidth, 0.0, PCIE)
                yield Link(nic.into, vertex, nic.count * bandwidth, 0.0, PCIE)
            elif not number:
                here, there = (_vertex(end, node, placement) for end in cable.ends)
                link = _link(cluster, wiring, cable, bandwidth)
                yield replace(link, source=here, target=there)
                yield replace(link, source=there, target=here)


def with_doors(
    network: Topology, cluster: Cluster, placement: Placement, nics: Sequence[Nic]
) -> Topology:
    """Return the network, its messages leaving and entering nodes by the ranks' own NICs."""
    wiring = cluster.wiring
    own = wiring.own_nics() if wiring is not None and nics else []
    index = {node: number for number, node in enumerate(network.nodes)}
    seats = [placement.seat(rank) for rank in range(placement.ranks)]
    shape = (placement.nodes, len(nics) // placement.nodes)
    sides = [np.array([index[side] for side in row], dtype=np.int32) for row in _sides(nics)]
    doors = Doors(
        node=np.array([node for node, _ in seats], dtype=np.int32),
        nic=np.array([own[slot] if own else 0 for _, slot in seats], dtype=np.int32),
        out=sides[0].reshape(shape),
        into=sides[1].reshape(shape),
        by_target=isinstance(cluster.scale_out, RailFabric),
    )
    return replace(network, doors=doors)


def _sides(nics: Sequence[Nic]) -> tuple[list[str], list[str]]:
    return [nic.out for nic in nics], [nic.into for nic in nics]


def _speeds(cluster: Cluster, wiring: Wiring) -> dict[str, float]:
    """Payload bandwidth of a cable of width 1, by tier (B/s)."""
    whole = {SCALE_UP: cluster.scale_up.link_bandwidth}
    if cluster.pcie is not None:
        whole[PCIE] = cluster.pcie.bandwidth * cluster.pcie.efficiency
    return {tier: each / unit for tier, each in whole.items() if (unit := wiring.unit(tier))}


def _vertex(name: str, node: int, placement: Placement) -> Node:
    slot = gpu_number(name)
    if slot is None:
        return f"{name}:{node}"
    rank = node * placement.ranks_per_node + slot
    used = slot < placement.ranks_per_node and rank < placement.ranks
    return rank if used else f"gpu:{node}.{slot}"


def _link(cluster: Cluster, wiring: Wiring, cable: Cable, bandwidth: float) -> Link:
    """Return a direction of a cable; whoever asked for it puts the ends in place."""
    share = sum(gpu_number(end) is not None for end in cable.ends) / 2
    if cable.tier == SCALE_UP:
        latency = cluster.scale_up.latency * share
        return Link(cable.source, cable.target, bandwidth, latency, SCALE_UP)
    told = None if cluster.pcie is None else cluster.pcie.latency
    latency = (cluster.scale_up.latency if told is None else told) * share
    if not wiring.peers_use_pcie:
        latency = 0.0
    of = SCALE_UP if told is None else PCIE
    return Link(cable.source, cable.target, bandwidth, latency, PCIE, latency_resource=of)
