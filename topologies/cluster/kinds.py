"""Clusters whose nodes differ: kinds of node side by side on one scale-out fabric.

The cluster's own fields say what all nodes have in common; ``node_kinds`` says of each kind how
many nodes it has and in what they differ: ranks, accelerator, scale-up fabric, NICs, PCIe, host. A
job fills the kinds in the order of the file. A scale-up domain is of one kind. The scale-out fabric
is built for the NICs that the cluster's ``scale_out`` gives; a kind may plug in others.

A resource such as ``scale_up.bandwidth`` is that of all kinds, ``scale_up@a100.bandwidth`` that of
one.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from simulator.errors import ClusterError, WhatIfError
from simulator.names import did_you_mean
from topologies.cluster.schema import OF_A_NODE, OF_NICS, Cluster, kinds_of

Load = Callable[[str], Cluster]
"""From a name of the catalogue, or a path, to the cluster."""
Change = Callable[[Cluster, str, float], Cluster]
"""From a cluster whose nodes are alike, a resource and a factor to the changed cluster."""


def like_others(data: dict[str, Any], load: Load) -> dict[str, Any]:
    """Write out kinds that are ``like`` another cluster: its nodes and NICs, as fields.

    Parameters
    ----------
    data
        The table of a cluster file; it stays as it is.
    load
        From a name of the catalogue, or a path, to the cluster.

    Returns
    -------
    dict
        The table without ``like``. What a kind says itself counts, field by field.

    Raises
    ------
    ClusterError
        If there is no such cluster.
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
            other = load(kind["like"])
        except ClusterError as error:
            raise ClusterError(f"node_kinds.{name}.like: {error}") from error
        written[name] = _like(kind, other)
        sources = _sources(name, kind, other) | sources
    return data | {"node_kinds": written} | ({"sources": sources} if sources else {})


def _sources(name: str, kind: Mapping[str, Any], other: Cluster) -> dict[str, str]:
    """Say of each number that is another cluster's where that has it from."""
    found = {}
    for path, source in other.sources.items():
        field, _, number = path.partition(".")
        of_nics = field == "scale_out" and number in OF_NICS
        own = kind.get(field)
        given = number in own if isinstance(own, dict) and number else field in kind
        if (of_nics or field in OF_A_NODE) and not given:
            found[f"node_kinds.{name}.{path}"] = f"{other.name}: {source}"
    return found


def _like(kind: Mapping[str, Any], other: Cluster) -> dict[str, Any]:
    given = other.model_dump(mode="json", exclude_unset=True)
    fields = {field: given.get(field) for field in ("pcie", "host")}
    fields |= {field: given[field] for field in ("ranks_per_node", "accelerator", "scale_up")}
    nics = given.get("scale_out") or {}
    fields["scale_out"] = {field: nics[field] for field in OF_NICS if field in nics}
    for field, value in kind.items():
        before = fields.get(field)
        both = isinstance(value, dict) and isinstance(before, dict)
        fields[field] = before | value if both else value
    fields.pop("like")
    return {field: value for field, value in fields.items() if value != {}}


def split_resource(resource: str) -> tuple[str, str | None]:
    """Tell a resource of one kind of node from that of all.

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
    """Return the cluster with a value of all kinds of node multiplied, or of one.

    Parameters
    ----------
    cluster
        With ``node_kinds``; it stays as it is.
    resource
        ``scale_up.bandwidth``, ``scale_up@a100.bandwidth``.
    factor
        By what it is multiplied.
    change
        From a cluster whose nodes are alike, a resource and a factor to the changed one
        (:func:`topologies.cluster.changed.changed`).

    Returns
    -------
    Cluster
        Checked again.

    Raises
    ------
    WhatIfError
        If there is no such kind, none has the resource, or the result is no cluster.
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
        raise WhatIfError(f"{only or cluster.name} has no {tier}, so nothing of {plain} to change")
    data = cluster.model_dump(mode="json", exclude_unset=True)
    for name in has:
        part = change(views[name], plain, factor).model_dump(mode="json", exclude_unset=True)[tier]
        own = data["node_kinds"][name].get(tier) or {}
        data["node_kinds"][name][tier] = part if tier != "scale_out" else own | {field: part[field]}
    if only is None:
        data |= _own_part(cluster, plain, factor, change)
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        told = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise WhatIfError(f"{resource} times {factor:g}: {told}") from error


def _own_part(cluster: Cluster, resource: str, factor: float, change: Change) -> dict[str, Any]:
    """Return what the cluster says of all nodes, changed; its fabric follows the NICs."""
    tier = resource.partition(".")[0]
    if getattr(cluster, tier) is None:
        return {}
    own = {name: text for name, text in cluster.sources.items() if not name.startswith("node_k")}
    alone = cluster.model_copy(update={"node_kinds": {}, "sources": own})
    done = change(alone, resource, factor)
    table = done.model_dump(mode="json", exclude_unset=True)
    return {tier: table[tier], "sources": dict(cluster.sources) | dict(done.sources)}


def values_of_kinds(
    cluster: Cluster, values: Callable[[Cluster], Mapping[str, float | int]]
) -> dict[str, float | int]:
    """Return the values that can be multiplied of a cluster whose nodes differ.

    Parameters
    ----------
    cluster
        With ``node_kinds``.
    values
        From a cluster whose nodes are alike to its values, by resource.

    Returns
    -------
    dict
        Of every resource the value of the first kind that has it, and that of every kind, as
        ``scale_up@a100.bandwidth``.
    """
    found: dict[str, float | int] = {}
    by_kind: dict[str, float | int] = {}
    for name, view in kinds_of(cluster).items():
        for resource, value in values(view).items():
            found.setdefault(resource, value)
            tier, _, field = resource.partition(".")
            by_kind[f"{tier}@{name}.{field}"] = value
    return found | by_kind


def by_kind(cluster: Cluster, resource: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a resource of all, kind by kind; empty where nodes are alike.

    ``values`` are those of :func:`values_of_kinds`. Of a resource of one kind it is empty, too.
    """
    tier, _, field = resource.partition(".")
    named = ((name, f"{tier}@{name}.{field}") for name in cluster.node_kinds)
    return {name: values[one] for name, one in named if one in values}


def differing(values: Mapping[str, float]) -> bool:
    """Whether kinds have different values of something."""
    first = next(iter(values.values()))
    return not all(math.isclose(value, first) for value in values.values())
