"""What-ifs on a cluster: the values that can be multiplied, and the cluster with one multiplied."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from simulator.support.errors import ClusterError, TopologyError, WhatIfError, faults, shown
from simulator.support.names import did_you_mean, same_name
from simulator.support.quantities import whole_of
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from topologies.cluster.catalog import complaints
from topologies.cluster.fabrics import (
    DATA_SHEET,
    GRAPH,
    TRANSPORT_FIELDS,
    TRANSPORTS,
    GraphFabric,
    PlanedFabric,
)
from topologies.cluster.graphs import SIZED, fabric_fields, fabric_for
from topologies.cluster.node import WIRED, LinkFactors
from topologies.cluster.schema import Cluster, kinds_of, split_resource
from topologies.cluster.wiring import HOST_MEMORY

_SIZE = "scale_up.size"
_SCALE_UP = ("scale_up.bandwidth", "scale_up.latency", _SIZE)
_SCALE_OUT = ("scale_out.bandwidth", "scale_out.latency", "scale_out.nics_per_node")
_PCIE = "pcie.bandwidth"
_MEMORY = f"{HOST_MEMORY}.bandwidth"
"""Shared by all messages through the buffers of one processor: ``pcie.paths.memory``."""
_ROUTER_CABLE_FIELDS = {
    "scale_out.bandwidth": ("local_bandwidth", "global_bandwidth"),
    "scale_out.latency": ("hop_latency",),
}
"""Fields of the cables between routers that change with a value, if the file gives them."""


def resource_values(cluster: Cluster) -> dict[str, float | int]:
    """Return the values that can be multiplied, in base units; of tiers that the cluster has.

    For links of a graph it is the greatest value of each resource that the graph's file names
    (:func:`resource_range` has the least, too). If nodes differ, it is the value of the first kind
    that has the resource, and besides that of every kind as ``scale_up@a100.bandwidth``.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> resource_values(load_cluster("dgx-a100"))["scale_up.bandwidth"]
    300000000000.0
    >>> resource_values(load_cluster("ring:8, 50 GB/s, 1 us"))
    {'scale_up.bandwidth': 50000000000.0, 'scale_up.latency': 1e-06}
    """
    if cluster.node_kinds:
        merged: dict[str, float | int] = {}
        by_kind: dict[str, float | int] = {}
        for name, view in kinds_of(cluster).items():
            for resource, value in resource_values(view).items():
                merged.setdefault(resource, value)
                tier, _, field = resource.partition(".")
                by_kind[f"{tier}@{name}.{field}"] = value
        return merged | by_kind
    drawn = resource_range(cluster)
    values: dict[str, float | int] = {}
    if SCALE_UP not in cluster.graphs:
        values = {
            name: getattr(cluster.scale_up, name.partition(".")[2])
            for name in _SCALE_UP
            if name != _SIZE or cluster.scale_up.topology not in (WIRED, GRAPH)
        }
    if cluster.scale_out is not None:
        fabric, by = cluster.scale_out, cluster.link_factors.get(SCALE_OUT, LinkFactors())
        values |= {
            _SCALE_OUT[0]: fabric.bandwidth * by.bandwidth,
            _SCALE_OUT[1]: fabric.latency * by.latency,
        }
        if not (isinstance(fabric, GraphFabric) and fabric.graph.ranks == "nics"):
            values[_SCALE_OUT[2]] = fabric.nics_per_node
    if cluster.pcie is not None:
        values[_PCIE] = cluster.pcie.bandwidth
        if cluster.pcie.paths is not None:
            values[_MEMORY] = cluster.pcie.paths.memory
    return values | {name: ends[1] for name, ends in drawn.items() if name not in values}


def resource_range(cluster: Cluster) -> dict[str, tuple[float, float]]:
    """Return least and greatest bandwidth and latency of each resource of the cluster's graphs.

    In base units, after what-ifs. Empty if no tier is a graph.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for network in cluster.graphs.values():
        for number, resource in enumerate(network.resources):
            links, by = network.resource == number, cluster.link_factors.get(resource)
            by = by or LinkFactors()
            for name, each in (
                (f"{resource}.bandwidth", network.bandwidth[links] * by.bandwidth),
                (f"{resource}.latency", network.latency[links] * by.latency),
            ):
                low, high = ranges.get(name, (math.inf, 0.0))
                ranges[name] = min(low, float(each.min())), max(high, float(each.max()))
    return ranges


def changed(cluster: Cluster, resource: str, factor: float) -> Cluster:
    """Return the cluster with one value multiplied; all others stay.

    Multiplying ``scale_up.size`` keeps the NICs of a node and the bandwidth of a rank. A torus or
    mesh grows in its shortest dimension and shrinks in its longest, to stay near a cube. The
    bandwidth and latency of ``scale_out`` scale those of the cables between routers, too.

    Parameters
    ----------
    cluster
        The cluster; it is not changed.
    resource
        One of :func:`resource_values`; if nodes differ, ``scale_up.bandwidth`` is that of all
        kinds and ``scale_up@a100.bandwidth`` that of one.
    factor
        Factor of the value.

    Returns
    -------
    Cluster
        Validated again; its ``sources``, or ``link_factors`` for links of a graph, record the
        factor.

    Raises
    ------
    WhatIfError
        If the resource is unknown or the cluster has none of it, the factor is not positive, or the
        result is not a cluster (half a NIC, a domain that cuts a node).

    Examples
    --------
    >>> from topologies import load_cluster
    >>> changed(load_cluster("dgx-a100"), "scale_up.size", 2).scale_up.size
    16
    """
    if cluster.node_kinds or "@" in resource:
        return _changed_kinds(cluster, resource, factor)
    values = resource_values(cluster)
    if resource not in values:
        raise WhatIfError(_unknown_resource(cluster, resource, tuple(values)))
    if not 0 < factor < math.inf:
        raise WhatIfError(f"{resource}: factor {factor!r} is not positive and finite")
    value = values[resource] * factor
    if isinstance(values[resource], int):
        if not math.isclose(value, round(value), rel_tol=1e-9) or round(value) < 1:
            raise WhatIfError(
                f"{resource}: {factor:g} times {values[resource]} is {value:g}, not a whole number"
            )
        value = round(value)
    try:
        tier, _, number = resource.partition(".")
        graph = isinstance(cluster.scale_out, GraphFabric) and tier == SCALE_OUT
        graph = graph or any(tier in network.resources for network in cluster.graphs.values())
        if graph and number in LinkFactors.model_fields:
            # Factors compose: multiply the factor that earlier what-ifs left.
            factors = cluster.link_factors.get(tier, LinkFactors())
            after = factors.model_copy(update={number: getattr(factors, number) * factor})
            return cluster.model_copy(update={"link_factors": cluster.link_factors | {tier: after}})
        return _with_value(cluster, resource, value, factor)
    except ValidationError as error:
        raise WhatIfError(f"{resource} times {factor:g}: {complaints(error)}") from error


def _changed_kinds(cluster: Cluster, resource: str, factor: float) -> Cluster:
    """Return the cluster with a value of all kinds of node, or of one, multiplied."""
    plain, only = split_resource(resource)
    views = kinds_of(cluster)
    if only is not None and only not in views:
        hint = did_you_mean(only, views)
        raise WhatIfError(
            f"{cluster.name} has no nodes of kind {only!r}; {hint}it has"
            f" {', '.join(filter(None, views)) or 'nodes of one kind only'}"
        )
    tier = plain.partition(".")[0]
    has = [
        name
        for name, view in views.items()
        if only in (None, name) and getattr(view, tier, None) is not None
    ]
    if not has:
        raise WhatIfError(f"{only or cluster.name} has no {tier}, so there is no {plain} to change")
    data = cluster.model_dump(mode="json", exclude_unset=True)
    field = plain.partition(".")[2]
    for name in has:
        part = changed(views[name], plain, factor).model_dump(mode="json", exclude_unset=True)[tier]
        stated = data["node_kinds"][name].get(tier) or {}
        data["node_kinds"][name][tier] = (
            part if tier != "scale_out" else stated | {field: part[field]}
        )
    if only is None and getattr(cluster, tier) is not None:
        # The tier of all nodes; the fabric follows the NICs.
        common_sources = (
            item for item in cluster.sources.items() if not item[0].startswith("node_kinds")
        )
        alone = cluster.model_copy(update={"node_kinds": {}, "sources": dict(common_sources)})
        common = changed(alone, plain, factor)
        data[tier] = common.model_dump(mode="json", exclude_unset=True)[tier]
        data["sources"] = dict(cluster.sources) | dict(common.sources)
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise WhatIfError(f"{resource} times {factor:g}: {faults(error)}") from error


def _with_value(cluster: Cluster, resource: str, value: float, factor: float) -> Cluster:
    """Return the cluster with a value set, validated again; its sources record the factor."""
    if resource == _MEMORY and cluster.pcie is not None and cluster.pcie.paths is not None:
        tier, field, part = PCIE, "paths", cluster.pcie
        value_of_field: object = cluster.pcie.paths.model_copy(update={"memory": value})
    else:
        tier, _, field = resource.partition(".")
        part, value_of_field = getattr(cluster, tier), value
    update: dict[str, object] = {field: value_of_field}
    if resource == "scale_up.size" and cluster.scale_up.dimensions is not None:
        lengths = list(cluster.scale_up.dimensions)
        chosen = lengths.index(min(lengths) if factor >= 1 else max(lengths))
        length = lengths[chosen] * factor
        if not math.isclose(length, round(length), rel_tol=1e-9):
            raise WhatIfError(
                f"scale_up.size: {factor:g} times dimension {lengths[chosen]} is not a whole number"
            )
        lengths[chosen] = round(length)
        update["dimensions"] = tuple(lengths)
    for companion in _ROUTER_CABLE_FIELDS.get(resource, ()):
        if companion_value := getattr(part, companion, None):
            update[companion] = companion_value * factor
    sources = dict(cluster.sources)
    for name in update:
        if (source := sources.get(f"{tier}.{name}")) is not None:
            sources[f"{tier}.{name}"] = f"{factor:g} times: {source}"
    changes = {tier: part.model_copy(update=update), "sources": sources}
    text = cluster.model_copy(update=changes).model_dump(mode="json", exclude_unset=True)
    return Cluster.model_validate(text)


def _unknown_resource(cluster: Cluster, resource: str, resources: tuple[str, ...]) -> str:
    if resource == _SCALE_OUT[2] and cluster.scale_out is not None:
        return (
            f"the fabric of {cluster.name} is a graph with a rank for each NIC: draw more of them"
        )
    if resource in (*_SCALE_OUT, _PCIE):
        tier = resource.partition(".")[0]
        if cluster.is_one_graph:
            drawn = ", ".join(resources)
            return f"{cluster.name} is one graph without links of {tier}; it has {drawn}"
        return f"{cluster.name} has no {tier}, so there is no {resource} to change"
    if resource == _SIZE:
        how = {GRAPH: "drawn as a graph"}.get(cluster.scale_up.topology, "wired cable by cable")
        how = "one graph" if cluster.is_one_graph else how
        return f"{cluster.name} is {how}, so its domains cannot grow or shrink"
    hint = did_you_mean(resource, resources)
    return f"{resource!r} is not a resource of {cluster.name}; {hint}it has {', '.join(resources)}"


def _as_data_sheet(figures: dict[str, Any], tier: str) -> dict[str, Any]:
    """Return the provenance of figures with one tier reset: no such tier was measured."""
    errors = {
        name: tier_errors for name, tier_errors in figures.get("errors", {}).items() if name != tier
    }
    return {**figures, tier: DATA_SHEET, "errors": errors}


def with_topology(cluster: Cluster, change: str, nodes: int | None = None) -> Cluster:
    """Return the cluster with another topology in one tier: ``[TIER=]TOPOLOGY``.

    The tier is ``scale_up`` if it is not named. Every rank, and every NIC, keeps its bandwidth. A
    topology is a family's name, any spec (:mod:`topologies.spec`) or the file of a graph. If the
    tier knows the family by name, ``torus:2x4`` gives its dimensions. A family of fabrics without
    numbers (``scale_out=dragonfly``) is sized for the job's nodes.

    Parameters
    ----------
    cluster
        The cluster; it is not changed.
    change
        ``torus:2x4``, ``scale_out=fat_tree:8``, ``scale_out=g.json``.
    nodes
        Nodes of the job, if the fabric need only hold these: the cluster then has no more nodes
        than fit. By default all of its nodes must fit.

    Raises
    ------
    ClusterError
        If the tier or topology is unknown, or the number of its ranks does not fit the tier.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> dgx = load_cluster("dgx-a100")
    >>> with_topology(dgx, "torus:2x4").name
    'dgx-a100 (scale_up torus:2x4)'
    >>> with_topology(dgx, "scale_out=torus:2x2", nodes=2).nodes
    4
    """
    tier, _, kind = change.rpartition("=")
    tier = same_name(tier, (SCALE_UP, SCALE_OUT)) or tier or SCALE_UP
    data = cluster.model_dump(mode="json", exclude_unset=True)
    part = data.get(tier)
    if tier not in (SCALE_UP, SCALE_OUT) or part is None:
        raise ClusterError(f"topology {change!r}: {cluster.name} has no tier {tier!r}")
    keep = ("size", "nics_per_node", "bandwidth", "latency", "efficiency", "hop_latency", "link")
    part = {name: value for name, value in part.items() if name in keep} | {"topology": kind}
    if tier == SCALE_UP:
        data.pop("wiring", None)
    data |= {tier: part, "name": f"{cluster.name} ({tier} {kind})", "sources": {}}
    data["known"] = _as_data_sheet(data.get("known", {}), tier)
    try:
        if tier == SCALE_OUT and nodes is not None and kind in SIZED:
            fields, most = fabric_fields(kind, part["nics_per_node"], nodes, {}) or ({}, math.inf)
            part |= fields
            data["nodes"] = int(min(cluster.nodes, most))
        elif tier == SCALE_OUT and nodes is not None:
            part["topology"], room = fabric_for(kind, part["nics_per_node"], nodes)
            data["nodes"] = cluster.nodes if room is None else min(room, cluster.nodes)
        if kind.partition(":")[0] == "switch":
            part.pop("hop_latency", None)  # a single switch has none
        return Cluster.model_validate(data)
    except (ValidationError, TopologyError) as error:
        problem = complaints(error) if isinstance(error, ValidationError) else str(error)
        raise ClusterError(f"topology {change!r}: {problem}") from error


def with_fields(cluster: Cluster, fields: Mapping[str, object], what: str) -> Cluster:
    """Return the cluster with fields of its file set, validated again.

    Fields of a table are ``TABLE.FIELD``: ``scale_out.routing``. ``what`` names the change in
    errors.

    Raises
    ------
    WhatIfError
        If the cluster has no such table, or is not valid with that value.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> tree = with_topology(load_cluster("dgx-a100"), "scale_out=fat_tree:32")
    >>> with_fields(tree, {"scale_out.routing": "spray"}, "routing").scale_out.routing
    'spray'
    """
    data = cluster.model_dump(mode="json", exclude_unset=True)
    for name, value in fields.items():
        table, _, key = name.rpartition(".")
        if table and not isinstance(data.get(table), dict):
            raise WhatIfError(f"{what}: {cluster.name} has no {table}")
        (data[table] if table else data)[key] = value
        data.get("sources", {}).pop(name, None)
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise WhatIfError(f"{what}: {complaints(error)}") from error


_SWITCH = {"1": True, "0": False, "true": True, "false": False, "on": True, "off": False}


def _parse_bool(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise WhatIfError(f"{text!r}: write 1 or 0")
    return _SWITCH[text.lower()]


def _parse_count(text: str) -> int:
    count = whole_of(text) or 0
    if count < 1:
        raise WhatIfError(f"{shown(text)}: write a whole number above 0")
    return count


def _parse_level(text: str) -> str:
    """Return the name of a level of peer access; older versions of NCCL number them."""
    numbered = ("LOC", "PIX", "PXB", "PHB", "PHB", "SYS")
    level = whole_of(text)
    return text.upper() if level is None or not 0 <= level < len(numbered) else numbered[level]


_WITHOUT_NVLS: dict[str, object] = {"scale_up.in_network_reduction": False}

SETTINGS: dict[str, Callable[[str], dict[str, object]]] = {
    "library.p2p": lambda text: {"library.p2p": _parse_level(text)},
    "library.pxn": lambda text: {"library.pxn": _parse_bool(text)},
    "library.sharp": lambda text: {"library.sharp": _parse_bool(text)},
    "library.ranks_per_process": lambda text: {"library.ranks_per_process": _parse_count(text)},
    "library.version": lambda text: {"library.version": text},
    "scale_out.planes": lambda text: {"scale_out.planes": _parse_count(text)},
    "scale_out.nic_ports": lambda text: {"scale_out.nic_ports": _parse_count(text)},
    "scale_out.flows": lambda text: {"scale_out.flows": _parse_count(text)},
    "scale_out.transport": lambda text: {"scale_out.transport": text.lower()},
    "scale_out.host_bandwidth": lambda text: {"scale_out.host_bandwidth": text},
    "scale_up.twisted": lambda text: {"scale_up.twisted": _parse_bool(text)},
    "collective_overhead": lambda text: {"collective_overhead": text},
    "NCCL_P2P_LEVEL": lambda text: {"library.p2p": _parse_level(text)},
    "NCCL_P2P_DISABLE": lambda text: {"library.p2p": "LOC"} if _parse_bool(text) else {},
    "NCCL_NVLS_ENABLE": lambda text: {} if _parse_bool(text) else _WITHOUT_NVLS,
    "NCCL_COLLNET_ENABLE": lambda text: {"library.sharp": _parse_bool(text)},
    "NCCL_PXN_DISABLE": lambda text: {"library.pxn": not _parse_bool(text)},
    "NCCL_IB_DISABLE": lambda text: {"scale_out.transport": "sockets"} if _parse_bool(text) else {},
    "NCCL_IB_QPS_PER_CONNECTION": lambda text: {"scale_out.flows": _parse_count(text)},
    "NCCL_SOCKET_NTHREADS": lambda text: {
        "scale_out.transport": "sockets",
        "scale_out.host_bandwidth": f"{1.5 * _parse_count(text)} GB/s",
    },
}
"""Settings of a library, of its transport and of a slice, by the field of a cluster file and by
NCCL's variable: functions from a setting's text to fields of the file."""


_PLANES = {"scale_out.planes", "scale_out.nic_ports"}


def with_setting(cluster: Cluster, name: str, text: str) -> Cluster:
    """Return the cluster with a setting of its library, or of the transport to its NICs.

    Another transport replaces the figures of the previous one; wires, NICs and cables stay.

    ``name`` is one of :data:`SETTINGS`, such as ``library.p2p`` or ``NCCL_P2P_DISABLE``.

    Raises
    ------
    WhatIfError
        If there is no such setting, the value is invalid, or the cluster has no such table.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> with_setting(load_cluster("hgx-h100"), "NCCL_IB_DISABLE", "1").scale_out.host_bandwidth
    1500000000.0
    """
    setting = same_name(name, SETTINGS)
    if setting is None:
        hint = did_you_mean(name, tuple(SETTINGS))
        raise WhatIfError(f"{name!r} is not a setting; {hint}settings are {', '.join(SETTINGS)}")
    what = f"{setting} = {text}"
    try:
        fields = SETTINGS[setting](text)
    except WhatIfError as error:
        raise WhatIfError(f"{what}: {error}") from error
    fabric = cluster.scale_out
    if _PLANES & fields.keys() and fabric is not None and not isinstance(fabric, PlanedFabric):
        raise WhatIfError(
            f"{what}: planes belong to leaf_spine, rail and fat_tree, but a {fabric.topology} "
            f"joins the NICs of {cluster.name}; write 'topology scale_out=rail and {what}'"
        )
    if "scale_out.flows" in fields and fabric is not None and not hasattr(fabric, "flows"):
        raise WhatIfError(
            f"{what}: one switch joins the NICs of {cluster.name}: queue pairs have no choice of "
            f"paths; write 'topology scale_out=leaf_spine and {what}'"
        )
    if fields == _WITHOUT_NVLS and not getattr(cluster.scale_up, "in_network_reduction", False):
        return cluster
    transport = fields.get("scale_out.transport")
    if transport in TRANSPORTS and cluster.scale_out is not None:
        # Replace the file's figures of its transport by those of the new one.
        after = TRANSPORTS[str(transport)]
        data = cluster.model_dump(mode="json", exclude_unset=True)
        gone = TRANSPORT_FIELDS - ({"link"} - after.keys())
        part = {name: value for name, value in data[SCALE_OUT].items() if name not in gone}
        data["sources"] = {
            name: source
            for name, source in data.get("sources", {}).items()
            if name not in {f"{SCALE_OUT}.{field}" for field in gone}
        }
        data["known"] = _as_data_sheet(data.get("known", {}), SCALE_OUT)
        try:
            cluster = Cluster.model_validate(data | {SCALE_OUT: {**after, **part}})
        except ValidationError as error:
            raise WhatIfError(f"{what}: {complaints(error)}") from error
    return with_fields(cluster, fields, what)


def with_nodes(cluster: Cluster, nodes: int | None) -> Cluster:
    """Return a cluster with at least ``nodes`` nodes, otherwise unchanged.

    Parameters
    ----------
    cluster
        The machine; its nodes must be equal.
    nodes
        Number of nodes that a job is spread over; with None the cluster is returned unchanged.

    Raises
    ------
    ClusterError
        If its nodes differ, or its fabric cannot hold that many.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> with_nodes(load_cluster("dgx-a100"), 200).capacity
    1600
    """
    if nodes is None or nodes <= cluster.nodes or cluster.is_one_graph:
        return cluster
    request = f"{cluster.name}: {nodes} nodes were requested, but it has {cluster.nodes}"
    if cluster.node_kinds:
        raise ClusterError(f"{request}, of several kinds: set the counts in node_kinds")
    data = cluster.model_dump(mode="json", exclude_unset=True) | {"nodes": nodes}
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise ClusterError(f"{request}: {complaints(error)}") from error
