"""Changes of deployments: a multiple of a resource, or the times that recordings of them have.

What-ifs multiply a resource for every pool and model.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.evaluate.deployments import Deployment
from experiments.evaluate.serving_fleets import Instances
from experiments.evaluate.serving_instances import instance_surface
from experiments.evaluate.serving_runs import serve
from experiments.scenario.resources import better
from simulator.serving.surface import iteration_time
from simulator.support.errors import TraceError, WhatIfError
from simulator.support.names import one_of
from topologies import changed, resource_values
from traces.kineto.operators import EngineStep
from traces.requests.readers import read_logged

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

    Raises WhatIfError if it has no such resource.
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
    """Return instances that all have a multiple of a resource, as :func:`with_more`.

    Training jobs have it, too: ops of their steps are shorter, and links are those of the cluster.
    """
    more = of_pools(instances, lambda deployment: with_more(deployment, resource, factor))
    if resource == MEMORY:
        return more
    change = better(resource, factor)
    jobs = [replace(job, scenario=change.apply(job.scenario).scenario) for job in more.jobs]
    return replace(more, jobs=tuple(jobs))


def with_more(deployment: Deployment, resource: str, factor: float) -> Deployment:
    """Return a deployment with a multiple of a resource, if there is one; latencies are divided."""
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


def as_logged(deployment: Deployment, log: Path) -> Deployment:
    """Return a deployment whose kernels and first tokens take what a log of it says.

    All kernels take as many times as long as makes the mean TPOT of the log's requests, served as
    they came, that of the log; then first tokens take longer by a constant, if they do. Raises
    TraceError if the log cannot be read, no such factor is between a third and three, or no
    constant explains the first tokens.
    """
    requests, _, starts, ends = read_logged(log)
    several = requests.output > 1
    if not several.any():
        raise TraceError(f"{log}: no request has more than one token")
    tpot = (ends - starts)[several] / (requests.output[several] - 1)
    if np.isnan(ends - starts).any():
        raise TraceError(f"{log}: a request has no first_token_ts or no last_token_ts")
    host, off = deployment.engine.host, math.inf
    kernels, ttft = host.kernels, 0.0
    for _ in range(_FITTINGS):
        scaled = replace(deployment.engine, host=host._replace(kernels=kernels))
        run = serve(Instances(deployment=replace(deployment, engine=scaled)), requests)
        ratio = float(tpot.mean() / run.tpot[several].mean())
        if abs(ratio - 1) < off:
            off, host, ttft = abs(ratio - 1), scaled.host, float(run.ttft.mean())
        if off < _FITTED:
            break
        kernels *= ratio
    factor = host.kernels / deployment.engine.host.kernels
    _check_factor(deployment, factor if off < _NEAR else math.inf, str(log), "tokens")
    waits = starts - requests.arrival
    first = max(0.0, host.first + float(waits.mean()) - ttft)
    if first > waits.min():
        raise TraceError(
            f"{log}: first tokens come {first - host.first:.3g} s later than here, on average, and"
            f" one came after {waits.min():.3g} s: requests waited. Give the engine's limits"
            " (--max-sequences, --max-tokens) as they were"
        )
    engine = replace(deployment.engine, host=host._replace(first=first))
    return replace(deployment, engine=engine, logged=str(log))


def as_recorded(
    deployment: Deployment, profiles: Sequence[Sequence[EngineStep]], source: str
) -> Deployment:
    """Return a deployment whose kernels take what iterations of it in profiles took.

    All kernels take as many times as long as those of all recorded batches together. What passes
    from one iteration to the next without them, the median of two or more, is the host's. Raises
    TraceError if no such factor is between a third and three.
    """
    surface = instance_surface(deployment)
    steps = [step for profile in profiles for step in profile]
    predicted = math.fsum(iteration_time(surface, step.batch) for step in steps)
    factor = math.fsum(step.kernels for step in steps) / predicted
    _check_factor(deployment, factor, source, "kernels")
    waits = [
        later.begin - step.begin - step.kernels
        for profile in profiles
        for step, later in pairwise(profile)
    ]
    host = deployment.engine.host._replace(kernels=factor)
    if len(waits) > 1:
        host = host._replace(step=max(0.0, float(np.median(waits))))
    return replace(deployment, engine=replace(deployment.engine, host=host), logged=source)


def _check_factor(deployment: Deployment, factor: float, source: str, what: str) -> None:
    if not 1 / _FARTHEST <= factor <= _FARTHEST:
        raise TraceError(
            f"{source}: its {what} take {factor:.3g} times as long as {deployment.model.name}'s on"
            f" {deployment.cluster.name}: give the model, cluster and degrees that it is of"
        )


_FITTINGS, _FITTED, _NEAR, _FARTHEST = 12, 0.002, 0.02, 3.0
"""Runs in which the factor of kernels is found, to which part, or, where TPOT jumps because other
requests meet in a batch, at least to which; and how far it may be from 1."""
