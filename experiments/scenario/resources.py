"""What-ifs: functions from a scenario to a scenario, one per resource.

A factor of 2 means twice as good: twice the bandwidth, the domain, the NICs or the speed, and
half the latency.
"""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.errors import WhatIfError
from simulator.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from simulator.workload import What
from topologies import changed, resource_values

CLUSTER_RESOURCES = {
    "scale_up.bandwidth": "B/s",
    "scale_up.latency": "s",
    "scale_out.bandwidth": "B/s",
    "scale_out.latency": "s",
    "scale_up.size": "ranks",
    "scale_out.nics_per_node": "NICs",
    "pcie.bandwidth": "B/s",
}
"""Resources of the cluster and their units."""
MOST = 1e6
"""The greatest factor: beyond it floats, not the cluster, make the answer."""


def improve(scenario: Scenario, resource: str, factor: float) -> Scenario:
    """Return the scenario with a resource ``factor`` times as good.

    Raises
    ------
    WhatIfError
        If the resource is unknown, the cluster has none, the factor is not positive, or the
        result is no cluster.
    """
    if not 0 < factor < np.inf:
        raise WhatIfError(f"{resource}: factor {factor!r} is not positive and finite")
    if resource not in RESOURCES:
        raise WhatIfError(f"{resource!r} is not a resource; choose from {', '.join(RESOURCES)}")
    return RESOURCES[resource](scenario, resource, factor)


def check_factor(factor: float) -> None:
    """Refuse a factor that nothing can be multiplied by, before anything is read.

    Raises
    ------
    WhatIfError
        If it is not a number between the bounds.
    """
    if not 1 / MOST <= factor <= MOST:
        raise WhatIfError(f"factor {factor:g} is not a number from {1 / MOST:g} to {MOST:g}")


def _cluster(scenario: Scenario, resource: str, factor: float) -> Scenario:
    by = 1 / factor if resource.endswith("latency") else factor
    return replace(scenario, cluster=changed(scenario.cluster, resource, by))


def _compute(scenario: Scenario, resource: str, factor: float) -> Scenario:
    """Make kernels ``factor`` times as fast; copies are the memory's and the bus's."""
    del resource
    workload = scenario.workload
    kernels = workload.what == What.COMPUTE
    duration = np.where(kernels, workload.duration / factor, workload.duration)
    return replace(scenario, workload=replace(workload, duration=duration))


def _host(scenario: Scenario, resource: str, factor: float) -> Scenario:
    """Make host ops and launch latencies ``factor`` times as fast."""
    del resource
    workload = scenario.workload
    is_host = workload.what == What.HOST
    duration = np.where(is_host, workload.duration / factor, workload.duration)
    edges = workload.edges
    lag = np.where(is_host[edges.source], edges.lag / factor, edges.lag)
    faster = replace(workload, duration=duration, edges=replace(edges, lag=lag))
    return replace(scenario, workload=faster)


RESOURCES: dict[str, Callable[[Scenario, str, float], Scenario]] = {
    **dict.fromkeys(CLUSTER_RESOURCES, _cluster),
    "compute": _compute,
    "host": _host,
}
"""Every resource one can ask about, by name."""


def check_resource(name: str) -> None:
    """Refuse what is no resource, before anything is read.

    Raises
    ------
    WhatIfError
        With the choices, and the nearest of them.
    """
    if name not in RESOURCES:
        near = get_close_matches(name, RESOURCES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        choices = ", ".join(RESOURCES)
        raise WhatIfError(f"{name!r} is not a resource; {hint}choose from {choices}")


def utility_pct(base: float, changed: float) -> float:
    """Say it in percent of step time: 100 (base - changed) / base (arXiv 2605.06544)."""
    return 100 * (base - changed) / base if base else 0.0


def value_of(scenario: Scenario, resource: str, factor: float = 1.0) -> str:
    """Say what a resource is, ``factor`` times as good, as text with a unit."""
    if resource not in CLUSTER_RESOURCES:
        return f"{factor:g}x"
    values = resource_values(scenario.cluster)
    if resource not in values:
        return "none"
    by = 1 / factor if resource.endswith("latency") else factor
    unit = CLUSTER_RESOURCES[resource]
    if unit in ("B/s", "s"):
        return format_quantity(values[resource] * by, unit)
    return f"{values[resource] * by:g} {unit}"


def amount_of(scenario: Scenario, resource: str, factor: float = 1.0) -> float | None:
    """Say the same as a number in the resource's unit; None where the cluster has none of it."""
    if resource not in CLUSTER_RESOURCES:
        return factor
    values = resource_values(scenario.cluster)
    by = 1 / factor if resource.endswith("latency") else factor
    return float(values[resource] * by) if resource in values else None


def unit_of(resource: str) -> str:
    """Return the unit of :func:`amount_of`: "1" where it is a multiple of what was recorded."""
    return CLUSTER_RESOURCES.get(resource, "1")


def not_used(baseline: Timeline, scenario: Scenario, resource: str) -> str:
    """Why a resource cannot matter to this job, in words; "" if it can."""
    workload = scenario.workload
    if resource == "compute":
        return "" if (workload.what == What.COMPUTE).any() else "no kernels: the host computes"
    if resource == "host":
        return "" if (workload.what == What.HOST).any() else "no host ops in the trace"
    if not len(workload.calls):
        return "no collectives in the step"
    if np.isnan(workload.calls.size).all():
        return "no collective's size is known: each costs what was measured on any network"
    moved = baseline.resource_bytes()
    if resource == "scale_up.size":
        return "" if moved.get(SCALE_OUT) else _one_domain(scenario)
    tier = resource.partition(".")[0]
    return "" if moved.get(tier) else _no_traffic(scenario, tier)


def _no_traffic(scenario: Scenario, tier: str) -> str:
    if tier == SCALE_UP:
        return "no traffic inside a scale-up domain"
    if tier == PCIE and scenario.cluster.pcie is None:
        return "the cluster gives no PCIe: ranks reach their NICs unhindered"
    return _one_domain(scenario)


def _one_domain(scenario: Scenario) -> str:
    per_node = scenario.cluster.ranks_per_node
    if scenario.ranks <= per_node:
        return "one node: no scale-out traffic"
    return "one scale-up domain: no scale-out traffic"
