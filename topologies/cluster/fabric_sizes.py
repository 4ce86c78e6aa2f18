"""Fabrics between nodes by their family's name alone: sized for a job, of switches of 64 ports.

Who compares families names no member of them: which one is meant follows from the job and from
the switch. Half of a switch's ports go down and half go up. What is given takes the place of what
follows here.
"""

from collections.abc import Callable, Mapping
from math import ceil, inf, prod
from typing import Any

from simulator.errors import WhatIfError
from topologies.cluster.schema import Cluster

PORTS = 64
"""Ports of a switch, where nothing is said: NVIDIA QM9700 (64 x 400 Gbit/s, data sheet) and
Ethernet switches of 51.2 Tbit/s (64 x 800 Gbit/s, Broadcom Tomahawk 5) have as many."""
Fabric = tuple[dict[str, object], float]
"""Fields of ``scale_out``, and how many nodes there is room for."""


def fabric_fields(
    family: str, cluster: Cluster, nodes: int, given: Mapping[str, object]
) -> Fabric | None:
    """Size a family of fabrics for the nodes of a job.

    Parameters
    ----------
    family
        ``switch``, ``leaf_spine``, ``rail``, ``fat_tree``, ``torus`` or ``dragonfly``.
    cluster
        Tells how many NICs a node has.
    nodes
        Of the job.
    given
        Fields that are not to follow; ``ports`` are those of a switch.

    Returns
    -------
    tuple or None
        Fields of ``scale_out``, and how many nodes there is room for; None where the text is no
        such name: a spec or a graph.

    Raises
    ------
    WhatIfError
        If switches have too few ports.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> fabric_fields("rail", load_cluster("hgx-h100"), 128, {})
    ({'topology': 'rail', 'nodes_per_pod': 32, 'spines': 32}, inf)
    """
    if family not in _SIZES:
        return None
    ports = given.get("ports", PORTS)
    if not isinstance(ports, int) or isinstance(ports, bool) or ports < 4:
        raise WhatIfError(f"{family}: ports {ports!r}: a switch has 4 or more")
    nics = cluster.scale_out.nics_per_node if cluster.scale_out is not None else 1
    sized = _SIZES[family](nodes, nics, ports)
    rest = {key: value for key, value in given.items() if key != "ports" or "ports" in sized}
    made = {"topology": family, **sized, **rest}
    return made, _room(made, nics)


def _switch(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    del nodes, nics, ports
    return {}


def _leaf_spine(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Whole nodes on half of a leaf's ports, and a cable from each other port to a spine."""
    del nodes
    return {"nodes_per_leaf": max(1, ports // 2 // nics), "spines": ports // 2}


def _rail(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Put a node on each port of the lower half of a rail switch."""
    del nodes, nics
    return {"nodes_per_pod": ports // 2, "spines": ports // 2}


def _fat_tree(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Three levels; more ports than a switch has where the job does not fit."""
    while ports**3 // 4 < nodes * nics:
        ports += 2
    return {"ports": ports + ports % 2}


def _torus(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Find the three lengths nearest to each other whose product is the number of nodes."""
    del nics, ports
    sides = [
        (one, two, nodes // one // two)
        for one in range(1, round(nodes ** (1 / 3)) + 1)
        if nodes % one == 0
        for two in range(one, int((nodes // one) ** 0.5) + 1)
        if nodes // one % two == 0
    ]
    best = min(sides, key=lambda lengths: lengths[2] - lengths[0])
    return {"dimensions": "x".join(str(length) for length in best if length > 1) or "1"}


def _dragonfly(nodes: int, nics: int, ports: int) -> dict[str, Any]:
    """Balance it, ``a = 2 p = 2 h`` of ``4 p - 1`` ports (J. Kim et al., ISCA 2008)."""
    each = max(1, (ports + 1) // 4)
    routers = 2 * each
    in_group = max(1, routers * each // nics)
    groups = max(2, ceil(nodes / in_group))
    if groups > routers * each + 1:
        raise WhatIfError(
            f"dragonfly: {nodes} nodes are {groups} groups, and switches of {ports} ports join "
            f"{routers * each + 1}: give ports"
        )
    return {
        "groups": groups,
        "routers_per_group": routers,
        "nodes_per_group": in_group,
        "global_links_per_router": each,
    }


def _room(made: Mapping[str, Any], nics: int) -> float:
    """Nodes that a fabric has room for."""
    if made["topology"] == "fat_tree":
        return float(made["ports"] ** 3 // 4 // nics)
    if made["topology"] == "torus":
        return float(prod(int(length) for length in str(made["dimensions"]).split("x")))
    if made["topology"] == "dragonfly":
        return float(made["groups"] * made["nodes_per_group"])
    return inf


_SIZES: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "switch": _switch,
    "leaf_spine": _leaf_spine,
    "rail": _rail,
    "fat_tree": _fat_tree,
    "torus": _torus,
    "dragonfly": _dragonfly,
}
SIZED = tuple(_SIZES)
"""The families."""
