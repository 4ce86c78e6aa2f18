"""Clusters whose nodes differ: kinds of node on one scale-out fabric.

The cluster's own fields describe what all nodes have in common. ``node_kinds`` gives the number of
nodes of each kind and their differences: ranks, accelerator, scale-up fabric, NICs, PCIe, host. A
job fills the kinds in the order of the file. A scale-up domain is of one kind. The scale-out fabric
is built for the NICs that the cluster's ``scale_out`` gives; a kind may have other NICs.

A resource such as ``scale_up.bandwidth`` is that of all kinds, ``scale_up@a100.bandwidth`` that of
one.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from simulator.support.errors import ClusterError, WhatIfError, faults
from simulator.support.names import did_you_mean
from simulator.support.quantities import format_quantity
from topologies.cluster.fabrics import GraphFabric
from topologies.cluster.schema import OF_A_NODE, OF_NICS, Cluster, kinds_of

Load = Callable[[str], Cluster]
"""From a name of the catalogue, or a path, to the cluster."""
Change = Callable[[Cluster, str, float], Cluster]
"""From a cluster of equal nodes, a resource and a factor to the changed cluster."""


def like_others(data: dict[str, Any], load: Load) -> dict[str, Any]:
    """Expand kinds that are ``like`` another cluster to fields of its nodes and NICs.

    Fields that a kind gives itself take precedence.
    """
    kinds = data.get("node_kinds")
    if not isinstance(kinds, dict):
        return data
    written, sources = dict(kinds), dict(data.get("sources") or {})
    for name, kind in kinds.items():
        if not (isinstance(kind, dict) and "like" in kind):
            continue
        if not isinstance(kind["like"], str):
            raise ClusterError(
                f"node_kinds.{name}.like: {kind['like']!r}: name a cluster of the catalogue, or a"
                " YAML file"
            )
        try:
            model = load(kind["like"])
        except ClusterError as error:
            raise ClusterError(f"node_kinds.{name}.like: {error}") from error
        written[name] = _fields_like(kind, model)
        sources = _sources_of_model(name, kind, model) | sources
    return data | {"node_kinds": written} | ({"sources": sources} if sources else {})


def _sources_of_model(name: str, kind: Mapping[str, Any], model: Cluster) -> dict[str, str]:
    """Return the sources of the numbers that a kind takes from another cluster."""
    sources = {}
    for path, source in model.sources.items():
        field, _, number = path.partition(".")
        of_nics = field == "scale_out" and number in OF_NICS
        stated = kind.get(field)
        is_stated = number in stated if isinstance(stated, dict) and number else field in kind
        if (of_nics or field in OF_A_NODE) and not is_stated:
            sources[f"node_kinds.{name}.{path}"] = f"{model.name}: {source}"
    return sources


def _fields_like(kind: Mapping[str, Any], model: Cluster) -> dict[str, Any]:
    table = model.model_dump(mode="json", exclude_unset=True)
    fields = {field: table.get(field) for field in ("pcie", "host")}
    fields |= {field: table[field] for field in ("ranks_per_node", "accelerator", "scale_up")}
    nics = table.get("scale_out") or {}
    fields["scale_out"] = {field: nics[field] for field in OF_NICS if field in nics}
    for field, value in kind.items():
        before = fields.get(field)
        both = isinstance(value, dict) and isinstance(before, dict)
        fields[field] = before | value if both else value
    fields.pop("like")
    return {field: value for field, value in fields.items() if value != {}}


def split_resource(resource: str) -> tuple[str, str | None]:
    """Split the resource of one kind of node into resource and kind.

    Returns
    -------
    tuple
        The resource of all, and the kind; None where no kind is named.

    Examples
    --------
    >>> split_resource("scale_up@a100.bandwidth"), split_resource("scale_up.bandwidth")
    (('scale_up.bandwidth', 'a100'), ('scale_up.bandwidth', None))
    """
    tier, at, rest = resource.partition("@")
    kind, dot, field = rest.rpartition(".")
    return (f"{tier}.{field}", kind) if at and dot else (resource, None)


def changed_kinds(cluster: Cluster, resource: str, factor: float, change: Change) -> Cluster:
    """Return the cluster with a value of all kinds of node, or of one, multiplied.

    Parameters
    ----------
    cluster
        A cluster with ``node_kinds``; it is not changed.
    resource
        ``scale_up.bandwidth``, ``scale_up@a100.bandwidth``.
    factor
        Factor of the value.
    change
        From a cluster of equal nodes, a resource and a factor to the changed one
        (:func:`topologies.cluster.changed.changed`).

    Raises
    ------
    WhatIfError
        If there is no such kind, none has the resource, or the result is not a cluster.
    """
    plain, only = split_resource(resource)
    views = kinds_of(cluster)
    if only is not None and only not in views:
        hint = did_you_mean(only, views)
        raise WhatIfError(
            f"{cluster.name} has no nodes of kind {only!r}; {hint}it has"
            f" {', '.join(filter(None, views)) or 'nodes of one kind only'}"
        )
    tier, _, field = plain.partition(".")
    has = [
        name
        for name, view in views.items()
        if only in (None, name) and getattr(view, tier, None) is not None
    ]
    if not has:
        raise WhatIfError(f"{only or cluster.name} has no {tier}, so there is no {plain} to change")
    data = cluster.model_dump(mode="json", exclude_unset=True)
    for name in has:
        part = change(views[name], plain, factor).model_dump(mode="json", exclude_unset=True)[tier]
        stated = data["node_kinds"][name].get(tier) or {}
        data["node_kinds"][name][tier] = (
            part if tier != "scale_out" else stated | {field: part[field]}
        )
    if only is None:
        data |= _common_part(cluster, plain, factor, change)
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise WhatIfError(f"{resource} times {factor:g}: {faults(error)}") from error


def _common_part(cluster: Cluster, resource: str, factor: float, change: Change) -> dict[str, Any]:
    """Return the changed tier of all nodes; the fabric follows the NICs."""
    tier = resource.partition(".")[0]
    if getattr(cluster, tier) is None:
        return {}
    sources = {key: text for key, text in cluster.sources.items() if not key.startswith("node_k")}
    alone = cluster.model_copy(update={"node_kinds": {}, "sources": sources})
    done = change(alone, resource, factor)
    table = done.model_dump(mode="json", exclude_unset=True)
    return {tier: table[tier], "sources": dict(cluster.sources) | dict(done.sources)}


def values_of_kinds(
    cluster: Cluster, values: Callable[[Cluster], Mapping[str, float | int]]
) -> dict[str, float | int]:
    """Return the values that can be multiplied of a cluster whose nodes differ.

    Returns
    -------
    dict
        For each resource the value of the first kind that has it, and the value of every kind as
        ``scale_up@a100.bandwidth``.
    """
    merged: dict[str, float | int] = {}
    by_kind: dict[str, float | int] = {}
    for name, view in kinds_of(cluster).items():
        for resource, value in values(view).items():
            merged.setdefault(resource, value)
            tier, _, field = resource.partition(".")
            by_kind[f"{tier}@{name}.{field}"] = value
    return merged | by_kind


def by_kind(cluster: Cluster, resource: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a resource kind by kind; empty if all nodes are equal.

    ``values`` are those of :func:`values_of_kinds`. For a resource of one kind it is empty, too.
    """
    tier, _, field = resource.partition(".")
    named = ((name, f"{tier}@{name}.{field}") for name in cluster.node_kinds)
    return {name: values[shared_name] for name, shared_name in named if shared_name in values}


def differing(values: Mapping[str, float]) -> bool:
    """Whether kinds have different values."""
    first = next(iter(values.values()))
    return not all(math.isclose(value, first) for value in values.values())


def describe(cluster: Cluster) -> str:
    """Describe a cluster's network in one line; if nodes differ, kind by kind."""
    if cluster.node_kinds:
        kinds = kinds_of(cluster).items()
        return " | ".join(f"{part.nodes} {name}: {describe(part)}" for name, part in kinds)
    up, out = cluster.scale_up, cluster.scale_out
    drawn = up.graph.name if up.graph is not None else up.topology
    inside = f"{drawn} of {up.size} at {format_quantity(up.bandwidth, 'B/s')}"
    if out is None:
        return inside
    nic = format_quantity(out.bandwidth, "B/s")
    between = out.graph.name if isinstance(out, GraphFabric) else out.topology
    routed = "" if out.topology == "switch" else f", routing {out.policy}"
    return f"{inside}; {between}, {out.nics_per_node} x {nic} per node{routed}"
