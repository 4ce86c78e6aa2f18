"""Many changes of one step at once: thousands of design points in a single analytic pass.

A *design point* is a change (:mod:`experiments.scenario.change`), or a set of factors, one per
resource. Changes that only multiply numbers share a graph of links and a graph of ops: calls are
costed on all their networks together (:mod:`collectives.libraries.planners`), and one pass goes
over the contracted step (:mod:`simulator.analytic.longest_path`). Any other change is applied and
has graphs of its own. The results are those of the ``analytic`` engine for each scenario, without
contention.

Equal calls are costed once: those of one kind and size whose groups are equivalent on the network.
Two tensor-parallel groups in two equal nodes cost the same, whatever factors their links have.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from collectives.libraries.planners import times
from collectives.machine import Machine, choose
from experiments.baseline import Baseline
from experiments.evaluate.parallel import Ask, Outcome, map_scenarios, outcome
from experiments.scenario.change import BUS_BANDWIDTH, Change, Multiplied, Part, Scaled, is_of_links
from experiments.scenario.resources import BY_NAME, RANKS, better, check_resource
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import check_factor
from experiments.settings import Watch
from simulator.analytic.contraction import Contracted, contract, scaled_parts
from simulator.analytic.longest_path import Points, makespans
from simulator.calls import Call
from simulator.costing.call_costs import Likeness
from simulator.costing.stacked_networks import Networks, classes
from simulator.support.arrays import Floats, Longs
from simulator.support.errors import DeadlockError, Interrupted, WhatIfError, check_type
from simulator.workload import What, Workload
from topologies import Cluster, resource_values

Indices = NDArray[np.intp]
Recalibrate = Callable[[Cluster], Cluster]
"""Maps a cluster to one that differs in its calibration only."""

_WORTH_IT = 16
"""Number of distinct calls from which on equivalent groups are looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class CallCosts:
    """Distinct calls of steps: call ``c`` of step ``w`` costs the same as ``calls[rows[w][c]]``.

    A call without members has row -1. ``machine`` keeps the results of planning, so a second
    network is answered sooner.
    """

    machine: Machine
    calls: tuple[Call, ...]
    rows: tuple[Indices, ...]

    def on(self, networks: Networks) -> Floats:
        """Time of each distinct call on each network while idle (s), shape ``(calls, S)``.

        The networks have the classes of links that :func:`different_calls` was given.
        """
        cost = np.empty((len(self.calls), len(networks)))
        for number, call in enumerate(self.calls):
            cost[number] = times(call, networks, self.machine)
        return cost


def different_calls(
    steps: Sequence[Workload],
    machine: Machine,
    networks: Networks,
    likeness: Likeness | None = None,
) -> CallCosts:
    """Return the distinct calls of steps, for all networks with these classes of links.

    ``likeness`` holds what is known already about equivalent groups there.
    """
    calls: list[Call] = []
    number: dict[object, int] = {}
    rows: list[Indices] = []
    for workload in steps:
        first, row = workload.distinct_calls
        row_of_first = np.empty(len(first) + 1, dtype=np.intp)
        row_of_first[-1] = -1
        for position, index in enumerate(first):
            call = workload.call_view(index)
            costs = -call.transfer if np.isnan(call.size) else call.size
            equal = call.kind, call.group, np.isnan(call.size), costs, call.dtype, call.shares
            row_of_first[position] = number.setdefault(equal, len(calls))
            if row_of_first[position] == len(calls):
                calls.append(call)
        rows.append(row_of_first[row])
    if len(calls) < _WORTH_IT:
        return CallCosts(machine, tuple(calls), tuple(rows))

    likeness = likeness or Likeness(networks.graph, machine.domains)
    patterns = {ranks: likeness.pattern(ranks) for ranks in {call.group.ranks for call in calls}}
    number = {}
    same = []
    for index, call in enumerate(calls):
        pattern = patterns[call.group.ranks]
        sort = call.kind, call.size, call.shares
        key = pattern and (pattern, sort, choose(machine.forced, call))
        same.append(number.setdefault(index if np.isnan(call.size) else key or index, len(number)))
    chosen = np.unique(same, return_index=True)[1]
    chosen_calls = tuple(calls[index] for index in chosen)
    return CallCosts(machine, chosen_calls, tuple(np.append(same, -1)[row] for row in rows))


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
class _Numbers:
    """Points that differ in numbers only: multiples of the cluster's values and of parts of time.

    ``times`` and ``over`` are those of the changes (:mod:`experiments.scenario.change`), shape
    ``(2, count)`` each.
    """

    count: int
    values: dict[str, Floats] = field(default_factory=dict)
    parts: dict[What, Floats] = field(default_factory=dict)

    def ratio(self, part: Scaled | Multiplied) -> Floats:
        """Return the product of the numbers of a part of a change."""
        ones = np.ones((2, self.count))
        if isinstance(part, Scaled):
            return self.parts.setdefault(part.part, ones)
        return self.values.setdefault(part.resource, ones)


class Costed(Struct, frozen=True, eq=False):
    """Costs of calls, and scales of local time, at points that share their graphs.

    ``points`` are their indices among the points asked; ``cost`` (s) has shape ``(calls, points)``.
    Call ``c`` of step ``w``, which is ``steps[w]``, costs its factor times row ``rows[w][c]``.
    """

    points: Indices
    steps: tuple[Workload, ...]
    cost: Floats
    rows: tuple[Indices, ...]
    scale: Mapping[What, Floats]

    def of_step(self, step: int = 0) -> Points:
        """Return the points as input of a pass over the contracted step."""
        workload = self.steps[step]
        scale = {part: self.scale[part] for part in scaled_parts(workload, self.scale)}
        return Points(self.cost, self.rows[step], workload.calls.factor, scale)


@dataclass(frozen=True, slots=True, eq=False)
class DesignPoints:
    """A step that is evaluated many times; what all its design points share is kept.

    The first point contracts the step and plans the calls; further ones, alone or together, only
    cost the calls on their networks and pass over the contracted step. Nothing about single points
    is kept. ``others`` are further steps of the job that are costed along. If ranks are copies,
    ``base`` and ``others`` hold the ranks that determine the times of all.

    Examples
    --------
    >>> from simulator.builder import WorkloadBuilder
    >>> from topologies import load_cluster
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> _ = builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=3e-3)
    >>> design = DesignPoints(Scenario(builder.build(), load_cluster("hgx-h100")))
    >>> [float(design.steps_at({"compute": [factor]})[0]) for factor in (1, 3)]
    [0.003, 0.001]

    Raises
    ------
    WhatIfError
        If the durations of kernels depend on what they overlap.
    """

    base: Scenario
    others: tuple[Workload, ...] = ()
    _shapes: dict[tuple[Part, ...], "_Shape"] = field(default_factory=dict)
    _full_steps: list[Scenario] = field(default_factory=list)
    _graphs: dict[int, list[Contracted]] = field(default_factory=dict)
    _folded: list[tuple[Workload, Longs | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_type("base", Scenario, self.base)
        if self.base.slow_down:
            raise WhatIfError(
                "--slow-down does not work with many design points at once: leave it out, or "
                "use sweep"
            )
        steps = (self.base.workload, *self.others)
        self._full_steps[:] = [replace(self.base, workload=workload) for workload in steps]
        base, *others = (scenario.at_rest() for scenario in self._full_steps)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "others", tuple(scenario.workload for scenario in others))
        self._shapes[()] = _Shape([base, *others])

    def steps(self, changes: Sequence[Change]) -> Floats:
        """Step time (s) with each change.

        Raises
        ------
        WhatIfError
            If the step has nothing that a change names, or the cluster cannot be changed so.
        DeadlockError
            If the step cannot end.
        """
        return self._passed(self.costed(changes), len(changes))

    def steps_at(self, factors: Mapping[str, Sequence[float] | Floats]) -> Floats:
        """Step time (s) at each design point: point ``i`` has ``factors[resource][i]`` of each.

        Raises
        ------
        WhatIfError
            If a resource is unknown, a factor cannot be, or resources have different numbers.
        DeadlockError
            If the step cannot end.
        """
        check_type("factors:", Mapping[str, Sequence[float] | Floats], factors)
        by_resource = _checked(factors)
        return self._passed(self._costed_at(by_resource), len(next(iter(by_resource.values()))))

    def costed(
        self, changes: Sequence[Change], otherwise: "Recalibrate | None" = None
    ) -> Iterator[Costed]:
        """Cost the calls of all steps with each change, grouping changes that share a graph.

        ``otherwise`` changes the calibration of each cluster; the choice of algorithms does not
        depend on it.
        """
        by_structure: dict[tuple[Part, ...], list[int]] = {}
        for point, change in enumerate(changes):
            by_structure.setdefault(change.split()[0], []).append(point)
        for structure, points in by_structure.items():
            of_structure = [changes[point] for point in points]
            shape = self._shape(Change(of_structure[0].text, structure))
            numbers = _Numbers(len(of_structure))
            for position, change in enumerate(of_structure):
                change.check(shape.scenarios[0])
                for part in change.split()[1]:
                    numbers.ratio(part)[:, position] *= part.times, part.over
            for name in resource_values(shape.scenarios[0].cluster):
                if is_of_links(name):  # links are distinguished alike, whatever is asked together
                    numbers.values.setdefault(name, np.ones((2, len(of_structure))))
            yield shape.costed(numbers, np.array(points, dtype=np.intp), otherwise)

    def ask(self, changes: Mapping[str, Change]) -> "Asked":
        """Cost the calls of all steps, unchanged and with each change, once for all questions.

        Left out are changes that the cluster does not allow (a resource it lacks, half of one), and
        those after which copies have other representatives: their calls are others.
        """
        possible = {}
        for name, change in changes.items():
            try:
                changed = self._shape(Change(change.text, change.split()[0])).scenarios[0]
                change.check(changed)
            except WhatIfError:
                continue
            if len(changed.workload.calls) == len(self.base.workload.calls):
                possible[name] = change
        return Asked(self, tuple(possible), tuple(self.costed([Change(), *possible.values()])))

    def graph(self, workload: Workload, points: Points, parts: Iterable[What]) -> Contracted:
        """Contract a step, a few ranks for all if these points allow it; more parts serve fewer."""
        if workload is self.base.workload and not self._folded:
            self._folded.append(self._representatives())
        part, like = self._folded[0] if workload is self.base.workload else (workload, None)
        if like is not None:
            # Each call must cost what the one like it does, to the last bit.
            row, factor = points.row, points.factor[:, None]
            (differ,) = np.nonzero((row != row[like]) | (points.factor != points.factor[like]))
            cost, of_like = (points.cost[row[at]] * factor[at] for at in (differ, like[differ]))
            if not np.array_equal(cost, of_like):
                part, like = workload, None
        graphs = self._graphs.setdefault(id(part), [])
        wanted = set(scaled_parts(workload, parts))
        for graph in graphs:
            if wanted <= set(graph.parts):
                return graph
        try:
            contracted = contract(part, tuple(wanted))
        except DeadlockError:  # simulated, for the message that explains it
            replace(self.base, workload=part, engine="analytic").run()
            raise
        graphs.append(structs.replace(contracted, like=like))
        return graphs[-1]

    def _representatives(self) -> tuple[Workload, Longs | None]:
        """Return the step with the ops of a few ranks, and for each call one that they make."""
        step, base = self.base.workload, self.base
        if base.fold is False or step.repeats is not None or base.not_worth():
            return step, None
        folded = base.site.findings.folds.fold(step, base.site.costs, base.seen)
        same = folded.kept[folded.op]
        if any((column[same] != column).any() for column in (step.part, step.over_bus)):
            return step, None
        like = np.arange(len(step.calls) + 1)
        like[step.call] = step.call[same]  # the last is for ops without a call
        call = step.call[folded.kept]
        part = replace(folded.workload, call=call, calls=step.calls, groups=step.groups)
        return part, like[:-1]

    def _passed(self, costed: Iterable[Costed], count: int) -> Floats:
        step = np.empty(count)
        for group in costed:
            points = group.of_step()
            scale = {part: by for part, by in points.scale.items() if (by != 1).any()}
            graph = self.graph(group.steps[0], points, scale)
            step[group.points] = makespans(graph, replace(points, scale=scale))
        return step

    def _costed_at(self, factors: Mapping[str, Floats]) -> Iterator[Costed]:
        """Cost points given as a column of factors per resource, those of a structure together."""
        numbers = {
            name: values for name, values in factors.items() if name in RANKS or is_of_links(name)
        }
        shapes = {name: values for name, values in factors.items() if name not in numbers}
        which = np.zeros(len(next(iter(factors.values()))), dtype=np.intp)
        structures: list[list[float]] = [[]]
        if shapes:
            rows = np.stack(list(shapes.values()), axis=1)
            different, which = np.unique(rows, axis=0, return_inverse=True)
            structures = different.tolist()
        for number, row in enumerate(structures):
            chosen = (pair for pair in zip(shapes, row, strict=True) if pair[1] != 1)
            parts = (part for name, factor in chosen for part in better(name, factor).parts)
            shape = self._shape(Change(parts=tuple(parts)))
            points = np.flatnonzero(which.ravel() == number)
            of_points = _Numbers(len(points))
            for name, values in numbers.items():
                change = better(name)
                change.check(shape.scenarios[0])
                (part,) = change.split()[1]
                divides = name in RANKS or name.endswith("latency")
                of_points.ratio(part)[int(divides)] *= values[points]
            yield shape.costed(of_points, points)

    def _shape(self, change: Change) -> "_Shape":
        """Return the steps on the graph that a change makes; it is kept."""
        if change.parts not in self._shapes:
            scenarios = [change.apply(step).scenario.at_rest() for step in self._full_steps]
            self._shapes[change.parts] = _Shape(scenarios)
        return self._shapes[change.parts]


class Asked(Struct, frozen=True, eq=False):
    """Costs of calls with changes: point 0 is unchanged, then one point for each name."""

    design: DesignPoints
    names: tuple[str, ...]
    costed: tuple[Costed, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """Steps on one graph of links, and what is known about their calls there.

    All are on the site of the first: they differ in their workloads only. The networks of the last
    points are kept: with another calibration the library chooses on them as before.
    """

    scenarios: list[Scenario]
    _calls: dict[tuple[str, ...], tuple[Networks, CallCosts]] = field(default_factory=dict)
    _networks: dict[tuple[str, ...], tuple[Networks, Networks, Indices]] = field(
        default_factory=dict
    )

    def costed(
        self, numbers: _Numbers, points: Indices, otherwise: "Recalibrate | None" = None
    ) -> Costed:
        """Cost the calls on the networks of some points."""
        names = tuple(sorted(numbers.values))
        steps = tuple(scenario.workload for scenario in self.scenarios)
        if names not in self._calls:
            network = classes(self.scenarios[0].site.topology, names)
            machine = self.scenarios[0].site.machine
            likeness = self.scenarios[0].site.costs.alike
            self._calls[names] = network, different_calls(steps, machine, network, likeness)
        network, calls = self._calls[names]
        if otherwise is not None:
            calibration = otherwise(self.scenarios[0].cluster).calibration
            calls = replace(calls, machine=calls.machine.recalibrated(calibration))
        # The networks that some points make of one
        bandwidth = np.repeat(network.bandwidth, numbers.count, axis=1)
        latency = np.repeat(network.latency, numbers.count, axis=1)
        for name in sorted(numbers.values):
            times, over = numbers.values[name]
            follow = network.following(name)
            changing = latency if name.endswith("latency") else bandwidth
            changing[follow] = changing[follow] * times / over
        networks = network.at(bandwidth, latency)
        kept = self._networks.get(names)
        if (
            kept is None
            or not np.array_equal(kept[0].bandwidth, networks.bandwidth)
            or not np.array_equal(kept[0].latency, networks.latency)
        ):
            first, which = networks.distinct()
            distinct = networks.at(networks.bandwidth[:, first], networks.latency[:, first])
            kept = self._networks[names] = networks, distinct, which
        _, unlike, which = kept
        # The scale of each part of local time, 1 being unchanged; copies include the bus's
        scale = {part: times / over for part, (times, over) in numbers.parts.items()}
        if BUS_BANDWIDTH in numbers.values:
            times, over = numbers.values[BUS_BANDWIDTH]
            scale[What.BUS] = over / times
        return Costed(points, steps, calls.on(unlike)[:, which], calls.rows, scale)


class Changing(Struct, frozen=True, eq=False):
    """A named change of a baseline's step, and the changed step; one for each random draw."""

    name: str
    change: Change
    scenarios: tuple[Scenario, ...]


class Answered(Struct, frozen=True, eq=False):
    """A change of a baseline's step, the changed step, and its time (s).

    ``engine`` is the engine used. ``outcomes`` are the results of the simulations, one for each
    draw of a random change, of which ``step`` is the median; empty if nothing was simulated.
    """

    change: Change
    scenario: Scenario
    step: float
    engine: str
    outcomes: tuple[Outcome, ...] = ()


def simulated(
    base: Baseline,
    changes: Sequence[Changing],
    watch: Watch = lambda _: None,
    ask: Ask[Outcome] = outcome,
) -> list[Answered]:
    """Simulate a step with each change; ``ask`` determines what is kept of each timeline.

    On Ctrl-C the result has the changes simulated so far, if there are any.
    """
    every = [(changing.name, scenario) for changing in changes for scenario in changing.scenarios]
    try:
        results = iter(map_scenarios(every, ask, workers=base.settings.workers or 1, watch=watch))
    except Interrupted as interruption:
        if len(interruption.answers) < len(changes[0].scenarios):
            raise
        results = iter(interruption.answers)
    answered = []
    for changing in changes:
        outcomes = tuple(islice(results, len(changing.scenarios)))
        if len(outcomes) < len(changing.scenarios):
            break
        step = float(np.median([result.makespan for result in outcomes]))
        first = changing.scenarios[0]
        answered.append(Answered(changing.change, first, step, outcomes[0].engine, outcomes))
    return answered


def steps(
    base: Baseline, changes: Sequence[tuple[str, Change]], watch: Watch = lambda _: None
) -> list[Answered]:
    """Return the step time with each change; on Ctrl-C those so far, as :func:`simulated`.

    Changes come with their names. The ``analytic`` engine answers all at once, as differences from
    the baseline, so that a change that changes nothing gives the baseline to the last bit.
    """
    scenario = base.scenario
    changing = [
        Changing(name, change, (change.apply(scenario).scenario,)) for name, change in changes
    ]
    if scenario.engine != "analytic" or scenario.slow_down:
        return simulated(base, changing, watch)
    design = DesignPoints(scenario)
    now, *then = design.steps([Change(), *(change for _, change in changes)]).tolist()
    step = base.timeline.makespan
    return [
        Answered(case.change, case.scenarios[0], step * (time / now) if now else time, "analytic")
        for case, time in zip(changing, then, strict=True)
    ]


def steps_at(base: Scenario, factors: Mapping[str, Sequence[float] | Floats]) -> Floats:
    """Step time (s) at each design point, asked once: see :meth:`DesignPoints.steps_at`."""
    return DesignPoints(base).steps_at(factors)


def _checked(factors: Mapping[str, Sequence[float] | Floats]) -> dict[str, Floats]:
    """Resolve the names of resources; refuse impossible factors before the step is contracted."""
    by_resource: dict[str, Floats] = {}
    for name, values in factors.items():
        resource = check_resource(name)
        if resource in BY_NAME:
            raise WhatIfError(f"{resource} changes each kernel by itself: use a what-if")
        if resource in by_resource:
            raise WhatIfError(f"{resource} is given twice, the second time as {name!r}")
        by_resource[resource] = np.asarray(values, dtype=np.float64)
    if len({values.shape for values in by_resource.values()}) != 1:
        raise WhatIfError("give every resource the same number of factors")
    for values in by_resource.values():
        for factor in (values.min(initial=1.0), values.max(initial=1.0)):
            check_factor(float(factor))
    return by_resource
