"""Resources that can be doubled: the change of each, and its description.

A factor of 2 means twice as good: twice the bandwidth, the domain, the NICs or the speed, and half
the latency.
"""

from collections.abc import Iterable, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np

from experiments.scenario.change import (
    BUS_BANDWIDTH,
    CLUSTER_RESOURCES,
    MEMORY_BANDWIDTH,
    Change,
    is_of_links,
    times_as_good,
    unit_of_value,
    value_text,
)
from experiments.scenario.change import RANKS as RANKS
from experiments.scenario.change import utility_pct as utility_pct
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import PARTS
from simulator.support.errors import TwofoldError, WhatIfError
from simulator.support.names import did_you_mean, same_name
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from simulator.workload import What
from topologies import Cluster, resource_values
from topologies.cluster.bill import bill_of
from topologies.cluster.changed import changed
from topologies.cluster.prices import NETWORK_PARTS
from topologies.cluster.schema import by_kind, differing, split_resource

RESOURCES = (*CLUSTER_RESOURCES, *RANKS)
"""Every resource that a question asks about unless some are named."""
BY_NAME = (MEMORY_BANDWIDTH,)
"""Resources that are asked about by name only: the kernels of a trace are recognised for it, which
reads the trace again."""


def better(resource: str, factor: float = 2.0) -> Change:
    """Return the change that makes a resource ``factor`` times as good.

    Twice the bandwidth, the domain, the NICs or the speed, and half the latency. Raises WhatIfError
    if the resource is unknown, or the factor is not positive and finite.

    Examples
    --------
    >>> better("scale_up.latency", 4.0).parts
    (Multiplied(resource='scale_up.latency', times=1.0, over=4.0),)
    """
    if not 0 < factor < np.inf:
        raise WhatIfError(f"{resource}: factor {factor!r} is not positive and finite")
    resource = check_resource(resource)
    if resource == MEMORY_BANDWIDTH:
        from experiments.scenario.cluster import memory_bandwidth

        return Change(parts=(memory_bandwidth(factor),))
    return Change(parts=(times_as_good(resource, factor),))


def improve(scenario: Scenario, resource: str, factor: float) -> Scenario:
    """Return the scenario with a resource ``factor`` times as good.

    Raises WhatIfError as :func:`better`, and if the cluster has no such resource or the result is
    not a cluster.
    """
    return better(resource, factor).apply(scenario).scenario


def check_resource(name: str) -> str:
    """Return the resource that a text spells: ``scale-out.bandwidth``.

    ``scale_up@a100.bandwidth`` is that of one kind of node, of a cluster whose nodes differ. Raises
    WhatIfError if it is none: with the choices, and the nearest of them.

    Examples
    --------
    >>> check_resource("scaleout.bandwidth")
    'scale_out.bandwidth'
    """
    plain, kind = split_resource(name)
    if kind is not None and (tier := same_name(plain, CLUSTER_RESOURCES)):
        return f"{tier.partition('.')[0]}@{kind}.{tier.partition('.')[2]}"
    resource = same_name(name, (*RESOURCES, *BY_NAME))
    if resource is None and is_of_links(name):
        return name  # only the cluster knows whether a graph has such links
    if resource is None:
        raise WhatIfError(_unknown(name, (*RESOURCES, *BY_NAME)))
    return resource


def every_resource(cluster: Cluster) -> tuple[str, ...]:
    """Return all resources that can be asked about on a cluster, whether it has them or not.

    Those that every cluster may have come first, then those that its graph names, then the ranks'.
    """
    return tuple(dict.fromkeys((*CLUSTER_RESOURCES, *resource_values(cluster), *RANKS)))


def check_resources(names: Iterable[str], cluster: Cluster) -> None:
    """Refuse a resource that is neither general nor one of this cluster; hint at the nearest."""
    choices = (*every_resource(cluster), *BY_NAME)
    for name in names:
        if name not in choices:
            raise WhatIfError(f"{cluster.name}: {_unknown(name, choices)}")


def _unknown(name: str, choices: Sequence[str]) -> str:
    part, _, number = name.partition(".")
    meant = PARTS.get(part.lower(), part)
    hint = did_you_mean(f"{meant}.{number}" if number and "." not in meant else meant, choices)
    return f"{name!r} is not a resource; {hint}choose from {', '.join(choices)}"


def factor_means(resource: str) -> str:
    """Say what twice as good means for a resource: for a latency half of it.

    Examples
    --------
    >>> factor_means("scale_up.latency"), factor_means("compute")
    ('half the latency', 'kernels in half the time')
    """
    field = resource.rpartition(".")[2]
    spelt = {
        "latency": "half the latency",
        "bandwidth": "twice the bandwidth",
        "size": "twice the ranks of a domain",
        "nics_per_node": "twice the NICs",
        "compute": "kernels in half the time",
        "host": "host ops and launches in half the time",
    }
    return spelt[field]


def value_of(scenario: Scenario, resource: str, factor: float = 1.0) -> str:
    """Format ``factor`` times a resource, with its unit."""
    if resource in RANKS:
        return f"{factor:g}x"
    if resource == MEMORY_BANDWIDTH:
        bandwidth = scenario.cluster.accelerator.memory_bandwidth
        return "none" if bandwidth is None else format_quantity(factor * bandwidth, "B/s")
    if resource not in resource_values(scenario.cluster):
        return "none"
    by = 1 / factor if resource.endswith("latency") else factor
    return value_text(scenario.cluster, resource, by)


def amount_of(scenario: Scenario, resource: str, factor: float = 1.0) -> float | None:
    """Return ``factor`` times a resource in its unit.

    None if the cluster does not have it, or if kinds of node differ in it. Of unequal links it is
    the largest.
    """
    if resource in RANKS:
        return factor
    if resource == MEMORY_BANDWIDTH:
        bandwidth = scenario.cluster.accelerator.memory_bandwidth
        return None if bandwidth is None else factor * bandwidth
    values = resource_values(scenario.cluster)
    kinds = by_kind(scenario.cluster, resource, values)
    if kinds and differing(kinds):
        return None
    by = 1 / factor if resource.endswith("latency") else factor
    return float(values[resource] * by) if resource in values else None


def unit_of(resource: str) -> str:
    """Return the unit of :func:`amount_of`: "1" for a multiple of what was recorded."""
    if resource == MEMORY_BANDWIDTH:
        return "B/s"
    return "1" if resource in RANKS else unit_of_value(resource)


def not_used(baseline: Timeline, scenario: Scenario, resource: str) -> str:
    """Return why a resource cannot matter to this job; "" if it can."""
    resource = split_resource(resource)[0]
    workload, cluster = scenario.workload, scenario.cluster
    if resource == MEMORY_BANDWIDTH and cluster.accelerator.memory_bandwidth is None:
        return "the cluster file has no accelerator.memory_bandwidth"
    if resource in ("compute", MEMORY_BANDWIDTH):
        return "" if (workload.what == What.COMPUTE).any() else "no kernels; the host computes"
    if resource == "host":
        return "" if (workload.part == What.HOST).any() else "no host ops in the trace"
    if resource == BUS_BANDWIDTH and workload.over_bus.any():
        return "" if cluster.pcie is not None else _NO_BUS
    if not len(workload.calls):
        return "no collectives in the step"
    if np.isnan(workload.calls.size).all():
        return "no collective has known size and ranks: each keeps its measured time on any network"
    tier = resource.partition(".")[0]
    if cluster.is_one_graph:
        tier = resource.rpartition(".")[0]
    elif resource == "scale_up.size":
        tier = SCALE_OUT  # a larger domain takes traffic from there
    return "" if baseline.resource_bytes().get(tier) else _no_traffic(scenario, resource, tier)


_NO_BUS = "the cluster file has no pcie.bandwidth, with which the step's copies would scale"


def _no_traffic(scenario: Scenario, resource: str, tier: str) -> str:
    """Say why no message is on the links of a tier: there are none, or none is used."""
    cluster = scenario.cluster
    if cluster.is_one_graph and resource not in resource_values(cluster):
        if resource == "scale_up.size":
            return "one graph, whose domains cannot grow"
        return f"the graph has no links of {tier}"
    if cluster.is_one_graph or tier not in (SCALE_UP, SCALE_OUT, PCIE):
        return f"no traffic on links of {tier}"
    if tier == SCALE_UP:
        return "no traffic inside a scale-up domain"
    if tier == PCIE and cluster.pcie is None:
        return "the cluster file has no PCIe, so it limits nothing"
    if scenario.ranks <= cluster.ranks_per_node:
        return "one node: no scale-out traffic"
    return "one scale-up domain: no scale-out traffic"


PRICED = ("scale_out.bandwidth", "scale_out.nics_per_node")
"""Resources of which more means more, or dearer, parts of the network. No prices are published for
an accelerator, a host or a scale-up fabric of twice the speed."""


class ExtraParts(NamedTuple):
    """Additional cost (USD), and power of working parts (W, for the whole site)."""

    cost: float
    power: float


def extra_parts(scenario: Scenario, resource: str, factor: float) -> ExtraParts | None:
    """Return what ``factor`` times a resource adds to the bill of a scenario's cluster.

    None if no price is known (:data:`PRICED`), or if the cluster cannot have as much.
    """
    if resource not in PRICED:
        return None
    costs, powers = [], []
    try:
        for cluster in (scenario.cluster, changed(scenario.cluster, resource, factor)):
            bill = bill_of(cluster, scenario.ranks, scenario.nodes)
            lines = [line for line in bill.lines if line.part in NETWORK_PARTS]  # all have prices
            costs.append(fsum(line.cost or 0.0 for line in lines))
            drawn = fsum(line.power[1] for line in lines if line.power is not None)
            powers.append(bill.overhead * drawn)
    except TwofoldError:
        return None
    return ExtraParts(costs[1] - costs[0], powers[1] - powers[0])
