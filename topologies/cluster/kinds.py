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
from topologies.cluster.schema import WIRED, Cluster, NodeKind

Load = Callable[[str], Cluster]
"""From a name of the catalogue, or a path, to the cluster."""
Change = Callable[[Cluster, str, float], Cluster]
"""From a cluster whose nodes are alike, a resource and a factor to the changed cluster."""
_OF_A_NODE = ("ranks_per_node", "accelerator", "scale_up", "pcie", "host")
_OF_NICS = ("nics_per_node", "bandwidth", "latency", "efficiency", "message_overhead")
_PORTS_IN_ROWS = ("rail", "fat_tree", "dragonfly")
"""Fabrics whose ports are numbered node by node, so that no node can have more than its share."""


def kinds_of(cluster: Cluster) -> dict[str, Cluster]:
    """Return each kind of node as a cluster by itself: as if all its nodes were of this kind.

    Parameters
    ----------
    cluster
        Any.

    Returns
    -------
    dict of Cluster
        By name, in the order in which a job fills them; a cluster whose nodes are all alike is its
        only kind, ``""``.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> list(kinds_of(load_cluster("dgx-a100")))
    ['']
    """
    if not cluster.node_kinds:
        return {"": cluster}
    return {name: _view(cluster, kind) for name, kind in cluster.node_kinds.items()}


def _view(cluster: Cluster, kind: NodeKind) -> Cluster:
    update: dict[str, object] = {"nodes": kind.count, "node_kinds": {}, "sources": {}}
    given = kind.model_fields_set
    update |= {name: getattr(kind, name) for name in _OF_A_NODE if name in given}
    if kind.scale_out is not None and cluster.scale_out is not None:
        nics = {
            name: value for name in _OF_NICS if (value := getattr(kind.scale_out, name)) is not None
        }
        update["scale_out"] = cluster.scale_out.model_copy(update=nics)
    return cluster.model_copy(update=update)


def check_kinds(cluster: Cluster) -> None:
    """Refuse kinds that contradict each other or the cluster.

    Raises
    ------
    ValueError
        Naming the kind, the field and what is wrong.
    """
    kinds = cluster.node_kinds
    counted = sum(kind.count for kind in kinds.values())
    if counted != cluster.nodes:
        raise ValueError(f"nodes {cluster.nodes} is not the sum of node_kinds, which is {counted}")
    if cluster.wiring is not None or cluster.scale_up.topology == WIRED:
        raise ValueError("node_kinds do not go with a wiring, by which all nodes are alike")
    if cluster.scale_out is None:
        raise ValueError("node_kinds need a scale_out to join them")
    for name, kind in kinds.items():
        _check_fields(name, kind)
        _check_kind(cluster, name, _view(cluster, kind))
    _check_makers(cluster)


def _check_fields(name: str, kind: NodeKind) -> None:
    if not name or any(letter in name for letter in "@. \t"):
        raise ValueError(f"node_kinds: {name!r} is no name; write letters, digits and hyphens")
    for field in ("ranks_per_node", "accelerator", "scale_up"):
        if field in kind.model_fields_set and getattr(kind, field) is None:
            raise ValueError(f"node_kinds.{name}.{field}: there is none: leave it out")


def _check_makers(cluster: Cluster) -> None:
    """Refuse accelerators that the cluster's library does not run on together."""
    makers = {_maker(view.accelerator.generation) for view in kinds_of(cluster).values()} - {""}
    library = cluster.library.name if cluster.library else "none"
    if len(makers) > 1 and library not in ("none", "gloo"):
        raise ValueError(
            f"node_kinds: accelerators of {' and '.join(sorted(makers))} have no {library} in"
            " common; 'library: {name: none}' models ideal algorithms"
        )


def _maker(generation: str | None) -> str:
    if generation is None:
        return ""
    return "AMD" if generation.startswith("cdna") else "Google" if generation == "tpu" else "NVIDIA"


def _check_kind(cluster: Cluster, name: str, view: Cluster) -> None:
    where = f"node_kinds.{name}"
    if view.scale_up.topology == WIRED:
        raise ValueError(f"{where}: a wired node cannot be one of several kinds")
    try:
        Cluster.model_validate(view.model_dump(mode="json", exclude_unset=True))
    except ValidationError as error:
        told = "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
        raise ValueError(f"{where}: {told}") from error
    own, fabric = view.scale_out, cluster.scale_out
    if own is None or fabric is None or fabric.topology not in _PORTS_IN_ROWS:
        return
    if own.nics_per_node > fabric.nics_per_node:
        raise ValueError(
            f"{where}: {own.nics_per_node} NICs per node, and the {fabric.topology} has ports for"
            f" {fabric.nics_per_node}: let scale_out.nics_per_node be the most that a node has"
        )


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
        other = load(kind["like"])
        written[name] = _like(kind, other)
        sources = _sources(name, kind, other) | sources
    return data | {"node_kinds": written} | ({"sources": sources} if sources else {})


def _sources(name: str, kind: Mapping[str, Any], other: Cluster) -> dict[str, str]:
    """Say of each number that is another cluster's where that has it from."""
    found = {}
    for path, source in other.sources.items():
        field, _, number = path.partition(".")
        of_nics = field == "scale_out" and number in _OF_NICS
        own = kind.get(field)
        given = number in own if isinstance(own, dict) and number else field in kind
        if (of_nics or field in _OF_A_NODE) and not given:
            found[f"node_kinds.{name}.{path}"] = f"{other.name}: {source}"
    return found


def _like(kind: Mapping[str, Any], other: Cluster) -> dict[str, Any]:
    given = other.model_dump(mode="json", exclude_unset=True)
    fields = {field: given.get(field) for field in ("pcie", "host")}
    fields |= {field: given[field] for field in ("ranks_per_node", "accelerator", "scale_up")}
    nics = given.get("scale_out") or {}
    fields["scale_out"] = {field: nics[field] for field in _OF_NICS if field in nics}
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
