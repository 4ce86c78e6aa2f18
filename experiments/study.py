"""Many what-ifs of one step at once: thousands of design points in a single analytic pass.

A *design point* is a set of factors, one per resource. What a factor does to the links and to the
ranks is found out once; then calls are costed on all networks together
(:mod:`collectives.many`) and the contracted step is passed over once
(:mod:`simulator.analytic`). The answers are those of the ``analytic`` engine, scenario by scenario:
no contention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from collectives.force import choose
from collectives.many import times
from experiments.alike import Scales, scales
from experiments.parallel import map_scenarios, outcome
from experiments.scenario import Scenario
from experiments.what_if import check_factor, check_resource, improve
from simulator.analytic import Points, makespans
from simulator.contract import contract
from simulator.engine import Costs
from simulator.errors import DeadlockError, WhatIfError
from simulator.networks import Networks, same_graph, stacked
from simulator.topology import Topology
from simulator.workload import Call, What, Workload

Floats = NDArray[np.float64]
Factors = Mapping[str, Floats]

LINKS = (
    "scale_up.bandwidth",
    "scale_up.latency",
    "scale_out.bandwidth",
    "scale_out.latency",
    "pcie.bandwidth",
)
"""Resources that change numbers of links; any other changes which links there are."""
RANKS = {"compute": What.COMPUTE, "host": What.HOST}


def grid(factors: Mapping[str, Sequence[float]]) -> dict[str, Floats]:
    """Every combination of factors as design points, the last resource fastest.

    Examples
    --------
    >>> grid({"compute": [1, 2], "host": [1, 4]})["host"].tolist()
    [1.0, 4.0, 1.0, 4.0]
    """
    rows = np.array(list(product(*factors.values())), dtype=np.float64)
    return dict(zip(factors, rows.T, strict=True))


def steps_at(base: Scenario, factors: Mapping[str, Sequence[float] | Floats]) -> Floats:
    """Step time (s) at each design point: point ``i`` has ``factors[resource][i]`` of each.

    Raises
    ------
    WhatIfError
        If a resource is unknown, a factor cannot be, or resources have different numbers of them.
    DeadlockError
        If the step cannot end.
    """
    if base.slow_down:
        raise WhatIfError(
            "a study passes over all its points at once, where kernels cannot slow down by what "
            "they run beside: ask without --slow-down, or for a sweep"
        )
    given = {name: np.asarray(values, dtype=np.float64) for name, values in factors.items()}
    if len({values.shape for values in given.values()}) != 1:
        raise WhatIfError("a study needs resources, and as many factors of one as of the other")
    for name, values in given.items():
        check_resource(name)
        for factor in (values.min(initial=1.0), values.max(initial=1.0)):
            check_factor(float(factor))
    shapes = {name: values for name, values in given.items() if name not in (*LINKS, *RANKS)}
    step = np.empty(len(next(iter(given.values()))))
    for scenario, chosen in _shaped(base, shapes, len(step)):
        part = {name: values[chosen] for name, values in given.items() if name not in shapes}
        step[chosen] = _passed(scenario, _networks(scenario, part, len(chosen)), _scale(part))
    return step


def steps(scenarios: Sequence[Scenario], workers: int = 1) -> Floats:
    """Step time (s) of each scenario; those that differ in numbers only are passed over together.

    Scenarios of another engine than ``analytic``, or whose kernels slow down by what they run
    beside, are simulated one by one, or by ``workers`` processes.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.Scenario.run` does.
    """
    step = np.empty(len(scenarios))
    families: list[_Family] = []
    timed = [
        index for index, one in enumerate(scenarios) if one.engine != "analytic" or one.slow_down
    ]
    named = [(f"scenario {index}", scenarios[index]) for index in timed]
    step[timed] = [found.makespan for found in map_scenarios(named, outcome, workers=workers)]
    for index, scenario in enumerate(scenarios):
        if scenario.engine != "analytic" or scenario.slow_down:
            continue
        member = _Member(index, scenario.topology(), None)
        for family in families:
            if (scale := family.scale_of(scenario, member.network)) is not None:
                family.members.append(replace(member, scale=scale))
                break
        else:
            families.append(_Family(scenario, [replace(member, scale={})]))
    for family in families:
        networks = stacked([member.network for member in family.members])
        step[[member.index for member in family.members]] = _passed(
            family.first, networks, family.scale()
        )
    return step


@dataclass(frozen=True, slots=True, eq=False)
class _Member:
    index: int
    network: Topology
    scale: Scales | None


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """Scenarios that differ from the first in bandwidths, latencies and scales only."""

    first: Scenario
    members: list[_Member]

    def scale_of(self, scenario: Scenario, network: Topology) -> Scales | None:
        """Say how a scenario scales the first's local times; None if it is of another family."""
        first = self.first
        if scenario.forced != first.forced or not same_graph(network, self.members[0].network):
            return None
        if scenario.cluster is not first.cluster and not _same_library(scenario, first):
            return None
        return scales(first.workload, scenario.workload)

    def scale(self) -> dict[What, Floats]:
        """Scale of each part that any member scales."""
        parts = sorted({part for member in self.members for part in member.scale or {}})
        return {
            part: np.array([(member.scale or {}).get(part, 1.0) for member in self.members])
            for part in parts
        }


def _same_library(one: Scenario, other: Scenario) -> bool:
    """Whether calls are planned alike but for the links."""
    machines = one.machine(), other.machine()
    fields = ("generation", "cpu", "version", "in_network", "overhead", "net_message")
    return (
        one.cluster.library == other.cluster.library
        and one.cluster.calibration == other.cluster.calibration
        and one.cluster.calibration == other.cluster.calibration
        and np.array_equal(machines[0].domains, machines[1].domains)
        and all(getattr(machines[0], name) == getattr(machines[1], name) for name in fields)
    )


def _shaped(base: Scenario, shapes: Factors, count: int) -> list[tuple[Scenario, NDArray[np.intp]]]:
    """Scenarios of every combination of what changes the graph, and the points that have it."""
    if not shapes:
        return [(base, np.arange(count))]
    rows = np.stack(list(shapes.values()), axis=1)
    different, which = np.unique(rows, axis=0, return_inverse=True)
    found = []
    for number, row in enumerate(different):
        scenario = base
        for name, factor in zip(shapes, row.tolist(), strict=True):
            scenario = improve(scenario, name, factor) if factor != 1 else scenario
        found.append((scenario, np.flatnonzero(which.ravel() == number)))
    return found


def _scale(factors: Factors) -> dict[What, Floats]:
    return {RANKS[name]: 1 / values for name, values in factors.items() if name in RANKS}


def _networks(scenario: Scenario, factors: Factors, count: int) -> Networks:
    """Networks of the design points: links whose numbers follow the same factors are a class."""
    graph = scenario.topology()
    follows = {name: _followers(scenario, graph, name) for name in factors if name in LINKS}
    flags = [flag for pair in follows.values() for flag in pair]
    columns = np.stack([graph.resource, graph.bandwidth, graph.latency, *flags], axis=1)
    _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    bandwidth = np.repeat(graph.bandwidth[first][:, None], count, axis=1)
    latency = np.repeat(graph.latency[first][:, None], count, axis=1)
    for name, (faster, sooner) in follows.items():
        bandwidth[faster[first]] *= factors[name]
        latency[sooner[first]] /= factors[name]
    return Networks(graph, of.ravel(), graph.resource[first], bandwidth, latency)


def _followers(
    scenario: Scenario, graph: Topology, resource: str
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Links whose bandwidth, and whose latency, is twice as good with twice the resource."""
    better = improve(scenario, resource, 2).topology()
    faster = np.isfinite(graph.bandwidth) & ~np.isclose(better.bandwidth, graph.bandwidth)
    sooner = ~np.isclose(better.latency, graph.latency, rtol=1e-9, atol=0.0)
    if not (
        same_graph(graph, better)
        and np.allclose(better.bandwidth[faster], 2 * graph.bandwidth[faster], rtol=1e-9)
        and np.allclose(better.latency[sooner], graph.latency[sooner] / 2, rtol=1e-9, atol=0.0)
    ):
        raise WhatIfError(f"{resource}: the links of {graph.name} do not follow it in proportion")
    return faster, sooner


def _passed(scenario: Scenario, networks: Networks, scale: dict[What, Floats]) -> Floats:
    """Cost the calls on all networks, contract the step, and pass over it once."""
    workload = scenario.workload
    cost, row = call_costs(scenario, networks)
    scale = {part: values for part, values in scale.items() if (values != 1).any()}
    try:
        graph = contract(workload, tuple(scale))
    except DeadlockError:
        replace(scenario, engine="analytic").run()
        raise
    return makespans(graph, Points(cost, row, workload.calls.factor, scale))


def call_costs(scenario: Scenario, networks: Networks) -> tuple[Floats, NDArray[np.intp]]:
    """Time of each distinct call on each network while idle (s), and which of them every call is.

    The networks are those of the scenario's ranks, in place of the scenario's own.
    """
    workload = scenario.workload
    first, row = _distinct_calls(workload)
    unlike, which = networks.distinct()
    few = replace(
        networks,
        bandwidth=np.ascontiguousarray(networks.bandwidth[:, unlike]),
        latency=np.ascontiguousarray(networks.latency[:, unlike]),
    )
    machine = scenario.machine()
    library = scenario.cluster.library
    of_library = times(library.name if library else "none")
    cost = np.empty((len(first), len(few)))
    for number, index in enumerate(first):
        call = workload.call_view(index)
        if np.isnan(call.size):
            cost[number] = call.transfer
            continue
        if call.kind in scenario.cluster.calibration:
            cost[number] = _one_by_one(scenario, call, few)
            continue
        if call.kind in scenario.cluster.calibration:
            cost[number] = _planned(scenario, call, few)
            continue
        forced = choose(scenario.forced, call.kind, call.size, call.group.label)
        cost[number] = of_library(
            call.kind, call.group.ranks, call.size, few, machine=machine, algorithm=forced
        )
    return cost[:, which], row


def _one_by_one(scenario: Scenario, call: Call, networks: Networks) -> Floats:
    """Cost a call that is calibrated, network by network: what was fitted is not in the plans."""
    planner = scenario.planner()
    there = (networks.network(index) for index in range(len(networks)))
    return np.array([Costs(network, planner).idle_time(call) for network in there])


def _planned(scenario: Scenario, call: Call, networks: Networks) -> list[float]:
    """Plan a call network by network: a calibration changes what it costs after it is chosen."""
    return [
        Costs(networks.network(index), scenario.planner()).idle_time(call)
        for index in range(len(networks))
    ]


def _distinct_calls(workload: Workload) -> tuple[list[int], NDArray[np.intp]]:
    """Find calls that cost the same on any network: the first of each, and which every call is."""
    calls = workload.calls
    known = ~np.isnan(calls.size)
    size = np.where(known, calls.size, -1.0)
    measured = np.where(known, 0.0, calls.transfer)
    columns = np.stack([calls.kind, calls.group, size, measured], axis=1)
    _, first, row = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    return first.tolist(), row.ravel()
