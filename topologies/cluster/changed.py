"""What-ifs on a cluster: the values one may multiply, and the cluster with one multiplied."""

import math
from typing import Any

from pydantic import ValidationError

from simulator.errors import ClusterError, WhatIfError
from simulator.names import did_you_mean, same_name
from topologies.cluster.catalog import complaints
from topologies.cluster.kinds import changed_kinds, values_of_kinds
from topologies.cluster.known import DATA_SHEET
from topologies.cluster.schema import Cluster

_SIZE = "scale_up.size"
_SCALE_UP = ("scale_up.bandwidth", "scale_up.latency", _SIZE)
_SCALE_OUT = ("scale_out.bandwidth", "scale_out.latency", "scale_out.nics_per_node")
_PCIE = "pcie.bandwidth"
_WITH_IT = {
    "scale_out.bandwidth": ("local_bandwidth", "global_bandwidth"),
    "scale_out.latency": ("hop_latency",),
}
"""What belongs to the cables between routers, where the file gives them values of their own."""


def resource_values(cluster: Cluster) -> dict[str, float | int]:
    """Values that can be multiplied, in base units; no ``scale_out`` or ``pcie`` where it has none.

    Where nodes differ those of each kind, too: :func:`topologies.cluster.kinds.values_of_kinds`.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> resource_values(load_cluster("dgx-a100"))["scale_up.bandwidth"]
    300000000000.0
    """
    if cluster.node_kinds:
        return values_of_kinds(cluster, resource_values)
    values: dict[str, float | int] = {
        name: getattr(cluster.scale_up, name.partition(".")[2])
        for name in _SCALE_UP
        if cluster.wiring is None or name != _SIZE  # a wired node is one domain
    }
    if cluster.scale_out is not None:
        fabric = cluster.scale_out
        values |= {name: getattr(fabric, name.partition(".")[2]) for name in _SCALE_OUT}
    if cluster.pcie is not None:
        values[_PCIE] = cluster.pcie.bandwidth
    return values


def changed(cluster: Cluster, resource: str, factor: float) -> Cluster:
    """Return the cluster with one value multiplied; all others stay as they are.

    ``scale_up.size`` grows over nodes, which keep their NICs; each rank keeps its bandwidth. A
    torus or mesh grows in its shortest dimension and shrinks in its longest, so that it stays as
    near to a cube as it was. The bandwidth and latency of ``scale_out`` take with them those of
    the cables between routers.

    Parameters
    ----------
    cluster
        Stays as it is.
    resource
        One of :func:`resource_values`; where nodes differ ``scale_up.bandwidth`` is that of all
        kinds and ``scale_up@a100.bandwidth`` that of one.
    factor
        By what it is multiplied.

    Returns
    -------
    Cluster
        Checked again; its ``sources`` say what was multiplied.

    Raises
    ------
    WhatIfError
        If the resource is unknown or the cluster has none of it, the factor is not positive, or
        the result is no cluster (half a NIC, a domain that cuts a node).

    Examples
    --------
    >>> from topologies import load_cluster
    >>> changed(load_cluster("dgx-a100"), "scale_up.size", 2).scale_up.size
    16
    """
    if cluster.node_kinds or "@" in resource:
        return changed_kinds(cluster, resource, factor, changed)
    values = resource_values(cluster)
    if resource not in values:
        raise WhatIfError(_unknown(cluster, resource, tuple(values)))
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
        return _with(cluster, resource, value, factor)
    except ValidationError as error:
        raise WhatIfError(f"{resource} times {factor:g}: {complaints(error)}") from error


def _with(cluster: Cluster, resource: str, value: float, factor: float) -> Cluster:
    """Check the cluster again with the value in place, and say so in its sources."""
    tier, _, field = resource.partition(".")
    part = getattr(cluster, tier)
    update: dict[str, object] = {field: value}
    if resource == "scale_up.size" and cluster.scale_up.dimensions is not None:
        update["dimensions"] = _grown(cluster.scale_up.dimensions, factor)
    for other in _WITH_IT.get(resource, ()):
        if given := getattr(part, other, None):
            update[other] = given * factor
    sources = dict(cluster.sources)
    for name in update:
        if (source := sources.get(f"{tier}.{name}")) is not None:
            sources[f"{tier}.{name}"] = f"{factor:g} times: {source}"
    changes = {tier: part.model_copy(update=update), "sources": sources}
    text = cluster.model_copy(update=changes).model_dump(mode="json", exclude_unset=True)
    return Cluster.model_validate(text)


def _grown(dimensions: tuple[int, ...], factor: float) -> tuple[int, ...]:
    lengths = list(dimensions)
    chosen = lengths.index(min(lengths) if factor >= 1 else max(lengths))
    length = lengths[chosen] * factor
    if not math.isclose(length, round(length), rel_tol=1e-9):
        raise WhatIfError(
            f"scale_up.size: {factor:g} times dimension {lengths[chosen]} is not a whole number"
        )
    lengths[chosen] = round(length)
    return tuple(lengths)


def _unknown(cluster: Cluster, resource: str, known: tuple[str, ...]) -> str:
    if resource in (*_SCALE_OUT, _PCIE):
        tier = resource.partition(".")[0]
        return f"{cluster.name} has no {tier}, so nothing of {resource} to change"
    if resource == _SIZE:
        return f"{cluster.name} is wired cable by cable, so its domains cannot grow or shrink"
    hint = did_you_mean(resource, known)
    return f"{resource!r} is not a resource of {cluster.name}; {hint}it has {', '.join(known)}"


def _unlike(known: dict[str, Any], tier: str) -> dict[str, Any]:
    """Return what is known where one tier is built as none was that anybody measured."""
    errors = {name: one for name, one in known.get("errors", {}).items() if name != tier}
    return {**known, tier: DATA_SHEET, "errors": errors}


def with_topology(cluster: Cluster, change: str) -> Cluster:
    """Return the cluster with another topology in one tier: ``[TIER=]TOPOLOGY[:DIMENSIONS]``.

    The tier is ``scale_up`` if it is not named. Every rank, and every NIC, keeps its bandwidth.

    Parameters
    ----------
    cluster
        Stays as it is.
    change
        ``torus:2x4``, ``scale_out=switch``.

    Returns
    -------
    Cluster
        Named after the change.

    Raises
    ------
    ClusterError
        If the tier or topology is unknown, or needs more than dimensions (write a file then).

    Examples
    --------
    >>> from topologies import load_cluster
    >>> with_topology(load_cluster("dgx-a100"), "torus:2x4").name
    'dgx-a100 (scale_up torus:2x4)'
    """
    tier, _, kind = change.rpartition("=")
    tier = same_name(tier, ("scale_up", "scale_out")) or tier or "scale_up"
    topology, _, dimensions = kind.partition(":")
    data = cluster.model_dump(mode="json", exclude_unset=True)
    part = data.get(tier)
    if tier not in ("scale_up", "scale_out") or part is None:
        raise ClusterError(f"topology {change!r}: {cluster.name} has no tier {tier!r}")
    keep = ("size", "nics_per_node", "bandwidth", "latency", "efficiency", "hop_latency", "link")
    part = {name: value for name, value in part.items() if name in keep} | {"topology": topology}
    if topology == "switch":
        part.pop("hop_latency", None)
    if dimensions:
        part["dimensions"] = dimensions
    if tier == "scale_up":
        data.pop("wiring", None)
    data |= {tier: part, "name": f"{cluster.name} ({tier} {kind})", "sources": {}}
    data["known"] = _unlike(data.get("known", {}), tier)
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise ClusterError(f"topology {change!r}: {complaints(error)}") from error
