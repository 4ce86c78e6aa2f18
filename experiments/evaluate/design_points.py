"""Many what-ifs of one step at once: thousands of design points in a single analytic pass.

A *design point* is a set of factors, one per resource. What a factor does to the links and to the
ranks is found out once; then calls are costed on all networks together
(:mod:`collectives.libraries.planners`) and the contracted step is passed over once
(:mod:`simulator.analytic.longest_path`). The answers are those of the ``analytic`` engine, scenario
by scenario: no contention.

Workloads that differ only in how fast the ranks are: found by comparing their columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.evaluate.call_costs import CallCosts, different_calls
from experiments.evaluate.parallel import map_scenarios, outcome
from experiments.scenario.resources import check_factor, check_resource, improve
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import PARTS, Contracted, contract
from simulator.analytic.longest_path import Points, makespans
from simulator.costing.stacked_networks import Networks, same_graph, stacked
from simulator.errors import DeadlockError, WhatIfError
from simulator.topology import Topology
from simulator.workload import Floats, What, Workload

Scales = dict[What, float]
"""How long each part of local time is, 1 being as in another workload; 1 is left out."""

_CLOSE = 1e-12
"""Durations that were divided by one factor agree to rounding."""


def scales(base: Workload, other: Workload) -> Scales | None:
    """Say how another workload scales the parts of local time of a base; None if it is another.

    Host, compute and copy ops have each a scale of their own, lags behind host ops that of the
    host. All else must be the same.
    """
    if other is base:
        return {}
    if not _same_structure(base, other):
        return None
    edges, after = base.edges, other.edges
    leaves_host = base.what[edges.source] == What.HOST
    found: Scales = {}
    for part in PARTS:
        mine = base.what == part
        lags = leaves_host if part == What.HOST else np.zeros(len(leaves_host), dtype=np.bool_)
        before = np.concatenate([base.duration[mine], edges.lag[lags]])
        scale = _ratio(before, np.concatenate([other.duration[mine], after.lag[lags]]))
        if scale is None:
            return None
        if scale != 1:
            found[part] = scale
    calls = base.what >= What.COLLECTIVE
    same = np.array_equal(base.duration[calls], other.duration[calls]) and np.array_equal(
        edges.lag[~leaves_host], after.lag[~leaves_host]
    )
    return found if same else None


def _same_structure(one: Workload, other: Workload) -> bool:
    """Whether ops, edges and calls are the same but for durations and lags."""
    pairs: list[tuple[Any, Any]] = [
        (getattr(one, name), getattr(other, name)) for name in ("what", "rank", "call", "ready")
    ]
    pairs += [
        (getattr(one.edges, name), getattr(other.edges, name)) for name in ("offset", "target")
    ]
    pairs += [
        (getattr(one.calls, name), getattr(other.calls, name))
        for name in ("kind", "group", "factor", "late")
    ]
    numbers = [
        (getattr(one.calls, name), getattr(other.calls, name)) for name in ("size", "transfer")
    ]
    return (
        one.groups == other.groups
        and all(a is b or np.array_equal(a, b) for a, b in pairs)
        and all(a is b or np.array_equal(a, b, equal_nan=True) for a, b in numbers)
    )


def _ratio(before: Floats, after: Floats) -> float | None:
    """Return what all of ``before`` is multiplied by; None if there is no such factor."""
    if not before.any():
        return None if after.any() else 1.0
    most = int(np.argmax(before))
    ratio = float(after[most] / before[most])
    if np.array_equal(before, after):
        return 1.0
    return ratio if np.allclose(after, ratio * before, rtol=_CLOSE, atol=0.0) else None


Flags = NDArray[np.bool_]
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


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """A step to be asked of many times: what all its design points have in common is kept.

    The first point contracts the step, finds what follows each resource and plans the calls; a
    further one, asked alone or with others, costs the calls on its network and passes over the
    contracted step. Nothing of a point itself is kept.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from topologies import load_cluster
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> _ = builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=3e-3)
    >>> study = Study(Scenario(builder.build(), load_cluster("hgx-h100")))
    >>> [float(study.steps_at({"compute": [factor]})[0]) for factor in (1, 3)]
    [0.003, 0.001]

    Raises
    ------
    WhatIfError
        If kernels slow down by what they run beside.
    """

    base: Scenario
    _shapes: dict[tuple[tuple[str, float], ...], "_Shape"] = field(default_factory=dict)
    _graphs: dict[tuple[What, ...], Contracted] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.base.slow_down:
            raise WhatIfError(
                "a study passes over all its points at once, where kernels cannot slow down by "
                "what they run beside: ask without --slow-down, or for a sweep"
            )

    def steps_at(self, factors: Mapping[str, Sequence[float] | Floats]) -> Floats:
        """Step time (s) at each design point: point ``i`` has ``factors[resource][i]`` of each.

        Raises
        ------
        WhatIfError
            If a resource is unknown, a factor cannot be, or resources have different numbers.
        DeadlockError
            If the step cannot end.
        """
        given = _checked(factors)
        shapes = {name: values for name, values in given.items() if name not in (*LINKS, *RANKS)}
        step = np.empty(len(next(iter(given.values()))))
        for shape, chosen in _shaped(shapes, len(step)):
            part = {name: values[chosen] for name, values in given.items() if name not in shapes}
            networks, calls = self._shape(shape).asked(part, len(chosen))
            scale = {part: values for part, values in _scale(part).items() if (values != 1).any()}
            graph = self._graph(tuple(scale))
            factor = self.base.workload.calls.factor
            step[chosen] = makespans(graph, Points(calls.on(networks), calls.row, factor, scale))
        return step

    def _shape(self, factors: tuple[tuple[str, float], ...]) -> "_Shape":
        """Return the step on the graph that some resources change."""
        if factors not in self._shapes:
            scenario = self.base
            for name, factor in factors:
                scenario = improve(scenario, name, factor)
            self._shapes[factors] = _Shape(scenario, scenario.topology())
        return self._shapes[factors]

    def _graph(self, parts: tuple[What, ...]) -> Contracted:
        """Contract the step; a graph that tells more parts apart does for fewer."""
        for known, graph in self._graphs.items():
            if set(parts) <= set(known):
                return graph
        self._graphs[parts] = _contracted(self.base, parts)
        return self._graphs[parts]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A scenario on one graph of links, and what follows the resources asked about so far."""

    scenario: Scenario
    graph: Topology
    _followers: dict[str, tuple[Flags, Flags]] = field(default_factory=dict)
    _calls: dict[tuple[str, ...], tuple[Networks, CallCosts]] = field(default_factory=dict)

    def asked(self, factors: Factors, count: int) -> tuple[Networks, CallCosts]:
        """Return the networks of design points, and what is known of the calls on them."""
        names = tuple(sorted(name for name in factors if name in LINKS))
        if names not in self._calls:
            classes = self._classes(names)
            self._calls[names] = classes, different_calls(self.scenario, classes)
        classes, calls = self._calls[names]
        bandwidth = np.repeat(classes.bandwidth, count, axis=1)
        latency = np.repeat(classes.latency, count, axis=1)
        of_class = np.empty(len(classes.resource), dtype=np.intp)
        of_class[classes.of] = np.arange(len(self.graph))
        for name in names:
            faster, sooner = self._follow(name)
            bandwidth[faster[of_class]] *= factors[name]
            latency[sooner[of_class]] /= factors[name]
        return classes.at(bandwidth, latency), calls

    def _classes(self, names: tuple[str, ...]) -> Networks:
        """Put links that follow the same factors, and whose numbers are the same, in a class."""
        graph = self.graph
        flags = [flag for name in names for flag in self._follow(name)]
        columns = np.stack([graph.resource, graph.bandwidth, graph.latency, *flags], axis=1)
        _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        bandwidth, latency = graph.bandwidth[first][:, None], graph.latency[first][:, None]
        return Networks(graph, of.ravel(), graph.resource[first], bandwidth, latency)

    def _follow(self, resource: str) -> tuple[Flags, Flags]:
        if resource not in self._followers:
            self._followers[resource] = _followers(self.scenario, self.graph, resource)
        return self._followers[resource]


def steps_at(base: Scenario, factors: Mapping[str, Sequence[float] | Floats]) -> Floats:
    """Step time (s) at each design point, asked once: see :meth:`Study.steps_at`.

    Raises
    ------
    TwofoldError
        As :class:`Study` and its method do.
    """
    return Study(base).steps_at(factors)


def steps(scenarios: Sequence[Scenario], workers: int = 1) -> Floats:
    """Step time (s) of each scenario; those that differ in numbers only are passed over together.

    Scenarios of another engine than ``analytic``, or whose kernels slow down by what they run
    beside, are simulated one by one, or by ``workers`` processes.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run` does.
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
        and np.array_equal(machines[0].domains, machines[1].domains)
        and all(getattr(machines[0], name) == getattr(machines[1], name) for name in fields)
    )


def _checked(factors: Mapping[str, Sequence[float] | Floats]) -> dict[str, Floats]:
    """Refuse what cannot be asked about before anything is contracted."""
    given = {name: np.asarray(values, dtype=np.float64) for name, values in factors.items()}
    if len({values.shape for values in given.values()}) != 1:
        raise WhatIfError("a study needs resources, and as many factors of one as of the other")
    for name, values in given.items():
        check_resource(name)
        for factor in (values.min(initial=1.0), values.max(initial=1.0)):
            check_factor(float(factor))
    return given


def _shaped(
    shapes: Factors, count: int
) -> list[tuple[tuple[tuple[str, float], ...], NDArray[np.intp]]]:
    """Every combination of what changes the graph, and the points that have it."""
    if not shapes:
        return [((), np.arange(count))]
    rows = np.stack(list(shapes.values()), axis=1)
    different, which = np.unique(rows, axis=0, return_inverse=True)
    return [
        (
            tuple(one for one in zip(shapes, row.tolist(), strict=True) if one[1] != 1),
            np.flatnonzero(which.ravel() == number),
        )
        for number, row in enumerate(different)
    ]


def _scale(factors: Factors) -> dict[What, Floats]:
    return {RANKS[name]: 1 / values for name, values in factors.items() if name in RANKS}


def _followers(scenario: Scenario, graph: Topology, resource: str) -> tuple[Flags, Flags]:
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
    calls = different_calls(scenario, networks)
    scale = {part: values for part, values in scale.items() if (values != 1).any()}
    points = Points(calls.on(networks), calls.row, scenario.workload.calls.factor, scale)
    return makespans(_contracted(scenario, tuple(scale)), points)


def _contracted(scenario: Scenario, parts: tuple[What, ...]) -> Contracted:
    """Contract the step; one that cannot end is simulated, which says who waits for whom."""
    try:
        return contract(scenario.workload, parts)
    except DeadlockError:
        replace(scenario, engine="analytic").run()
        raise
