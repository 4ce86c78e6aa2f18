"""What-ifs on serving instances: a multiple of a resource, for every pool and model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from experiments.evaluate.serving_fleets import Instances
from experiments.evaluate.serving_instances import Deployment
from simulator.support.errors import WhatIfError
from simulator.support.names import one_of
from topologies import changed, resource_values

COMPUTE, MEMORY_BANDWIDTH, MEMORY, HOST = "compute", "memory.bandwidth", "memory.size", "host"
RATES = (COMPUTE, MEMORY_BANDWIDTH, MEMORY, HOST)
"""Resources of an accelerator and its host; those of the network are the cluster's."""


class Before(NamedTuple):
    """Instances before a resource of theirs was multiplied.

    ``host`` is the factor by which the times of their engine's host are divided.
    """

    instances: Instances
    host: float = 1.0


def resources_of(deployment: Deployment, wanted: Sequence[str] | None = None) -> list[str]:
    """Return the resources of a deployment that a question multiplies: the default or those wanted.

    Raises
    ------
    WhatIfError
        If it has no such resource.
    """
    network = list(resource_values(deployment.cluster))
    if unknown := [name for name in wanted or () if name not in (*RATES, *network)]:
        raise WhatIfError(f"resource {one_of(unknown[0], (*RATES, *network))}")
    usual = ("scale_up.bandwidth", "scale_up.latency", "scale_out.bandwidth")
    each = [*RATES, *(name for name in network if name.startswith(usual))]
    return each if wanted is None else list(wanted)


def of_pools(instances: Instances, change: Callable[[Deployment], Deployment]) -> Instances:
    """Return instances with changed deployments in all pools and models."""
    decode = None if instances.decode is None else change(instances.decode)
    beside = tuple(
        each._replace(instances=of_pools(each.instances, change)) for each in instances.beside
    )
    deployment = change(instances.deployment)
    return replace(instances, deployment=deployment, decode=decode, beside=beside)


def with_more_of(instances: Instances, resource: str, factor: float) -> Instances:
    """Return instances that all have a multiple of a resource, as :func:`with_more`."""
    return of_pools(instances, lambda deployment: with_more(deployment, resource, factor))


def with_more(deployment: Deployment, resource: str, factor: float) -> Deployment:
    """Return a deployment with a multiple of a resource; latencies are divided.

    Raises
    ------
    WhatIfError
        If there is no such resource.
    """
    cluster = deployment.cluster
    accelerator = cluster.accelerator
    if resource == COMPUTE:
        peaks = {dtype: peak * factor for dtype, peak in accelerator.peak.items()}
        fields: dict[str, object] = {"peak": peaks}
    elif resource == MEMORY_BANDWIDTH:
        fields = {"memory_bandwidth": (accelerator.memory_bandwidth or 0.0) * factor}
    elif resource == MEMORY:
        fields = {"memory": (accelerator.memory or 0.0) * factor}
    elif resource == HOST:
        return deployment
    else:
        times = 1 / factor if resource.endswith("latency") else factor
        return replace(deployment, cluster=changed(cluster, resource, times))
    with_fields = accelerator.model_copy(update=fields)
    return replace(deployment, cluster=cluster.model_copy(update={"accelerator": with_fields}))
