"""The step time over one resource: at given factors, or as a whole curve.

Points of a curve are chosen so that linear interpolation between them is off by at most a stated
gap; the curve gives the factor from which on more hardly pays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Unpack

import numpy as np

from collectives.libraries.planners import one_schedule
from experiments.baseline import Baseline, Settings, Where, baseline
from experiments.documents import points as documents
from experiments.evaluate.design_points import Answered, DesignPoints, steps
from experiments.evaluate.parallel import interruption
from experiments.intervals.interval import Interval
from experiments.points.report import (
    INTERVAL,
    Columns,
    Point,
    PointsReport,
    of_factor,
    saved_by,
    without_effect,
)
from experiments.report import question
from experiments.scenario.change import is_of_links
from experiments.scenario.resources import (
    BY_NAME,
    RANKS,
    amount_of,
    better,
    check_resource,
    factor_means,
    improve,
    unit_of,
    value_of,
)
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import check_factor
from experiments.settings import SettingsOptions, Watch
from simulator.analytic.curve import Curve, break_even, sample_curve, trace_curve
from simulator.support.arrays import Floats
from simulator.support.errors import Interrupted, WhatIfError
from simulator.support.quantities import parse_quantity
from topologies import resource_values
from topologies.cluster.schema import split_resource

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


_COLUMNS = Columns(
    "SweepPoint",
    (
        *("resource", "factor", "value", "step_s", "utility_pct", "engine", "factor_means"),
        *(*INTERVAL, "value_number", "unit"),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SweepReport(PointsReport):
    """The step over one resource by factor; ``note`` is the reason if it has no effect.

    ``warning`` is what makes the savings doubtful.
    """

    schema: ClassVar[str] = "twofold/sweep/1"
    document = documents.sweep
    columns: ClassVar[Columns] = _COLUMNS
    answered: ClassVar = "resource note warning points=rows"

    resource: str
    note: str

    @property
    def warning(self) -> str:
        """What makes the savings of the resource doubtful; "" if it has no effect."""
        return "" if self.note else self.base.doubts.of(self.resource)


@question("sweep")
def sweep(
    trace: Path | str,
    cluster: Where,
    resource: str,
    *,
    factors: Sequence[float] = FACTORS,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> SweepReport:
    """Simulate a step with a resource at each of several factors.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`; WhatIfError for a factor or resource that the
        cluster cannot be asked for.
    """
    factors = [float(factor) for factor in factors]  # NumPy's floats print differently
    if not factors:
        raise WhatIfError("a sweep needs a factor")
    resource = check_resource(resource)
    for factor in factors:
        check_factor(factor)
    base = baseline(trace, cluster, settings, watch, resources=[resource])
    factors = sorted(set(factors))
    changes = [(f"{resource} x{factor:g}", better(resource, factor)) for factor in factors]
    saved = saved_by(base, steps(base, changes, watch))
    points = [
        of_factor(base, point, resource, factor)
        for point, factor in zip(saved, factors, strict=False)  # fewer after Ctrl-C
    ]
    note = without_effect(base, resource, min(factors))
    interrupted = interruption(len(points), len(factors), "factors")
    return SweepReport(base, tuple(points), resource, note, interrupted=interrupted)


_LEAST_GAP = 1e-6
"""Smallest gap (fraction of the step): below it rounding prevents convergence."""


_CURVE_COLUMNS = Columns(
    "CurvePoint", ("factor", "value", "step_s", "utility_pct", *INTERVAL, "value_number", "unit")
)
Certificate = Literal["convex", "monotone", "sampled", "none"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CurveReport(PointsReport):
    """Points in order of the factor; straight lines between them, over 1/factor, are the curve.

    ``gap_s`` is the largest distance of the step from these lines, with a ``certificate``:
    *convex* (every call has one schedule), *monotone* (the step does not fall as the resource gets
    worse), *none* (it was seen to fall), or *sampled*: calls share links, no law is known, each
    point is simulated, and the gap is the error of the lines halfway between points. It is larger
    than requested if the step jumps, or if the points did not suffice. From a factor of
    ``break_even`` on, doubling the resource buys less than ``threshold_pct`` of the step, as far as
    the curve goes; None if it still buys as much at its end.
    """

    schema: ClassVar[str] = "twofold/curve/1"
    document = documents.curve
    columns: ClassVar[Columns] = _CURVE_COLUMNS
    answered: ClassVar = (
        "resource factor_means gap_s certificate threshold_pct break_even_factor=break_even "
        "break_even_value break_even_number unit note warning points=rows"
    )

    resource: str
    gap_s: float
    certificate: Certificate
    threshold_pct: float
    break_even: float | None
    break_even_value: str
    note: str

    @property
    def factor_means(self) -> str:
        """What twice of the resource is."""
        return f"2: {factor_means(self.resource)}"

    @property
    def break_even_number(self) -> float | None:
        """The resource at ``break_even``, in base units."""
        even = self.break_even
        return None if even is None else amount_of(self.base.scenario, self.resource, even)

    @property
    def unit(self) -> str:
        """The base unit of the resource."""
        return unit_of(self.resource)

    @property
    def warning(self) -> str:
        """What makes the savings of the resource doubtful; "" if it has no effect."""
        unused = without_effect(self.base, self.resource, 2.0)
        return "" if unused else self.base.doubts.of(self.resource)


@question("curve")
def curve(  # noqa: PLR0913 - what is asked, of what, and how exactly
    trace: Path | str,
    cluster: Where,
    resource: str,
    *,
    reach: str | tuple[float, float] = (0.125, 8.0),
    gap: float = 1e-3,
    threshold: float = 1.0,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> CurveReport:
    """Compute the step time over a resource, and the point beyond which doubling buys little.

    If no calls overlap on a link, at the baseline and both ends of the range, the curve is computed
    without contention, with a proof. Otherwise points are simulated with the settings' engine. With
    engine ``analytic`` there is no contention, and the note gives what it would add to the step.

    Parameters
    ----------
    trace, cluster, settings, watch, options
        As for :func:`experiments.baseline.baseline`.
    resource
        The resource to vary.
    reach
        The first and the last factor, the last at least twice the first; or text, which may also
        hold values: ``0.25..16`` or ``1 GB/s..400 GB/s``.
    gap
        Largest error of interpolation between points, as a fraction of the step.
    threshold
        The saving by doubling that counts as little, in percent of the step.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`; WhatIfError for a resource that changes
        which links there are, or factors and gaps that cannot be.
    """
    resource = check_resource(resource)
    _check(resource, gap, threshold)
    if not isinstance(reach, str):
        _check_reach(*reach)
    base = baseline(trace, cluster, settings, watch, resources=[resource])
    step = base.timeline.makespan
    alone = replace(base.scenario, engine="analytic")
    factors = _factors(reach, alone, resource)
    note = without_effect(base, resource, 2.0)
    design = DesignPoints(alone)

    def evaluate(x: Floats) -> Floats:  # constant if the resource is not used
        return design.steps_at({"compute": x * 0 + 1} if note else {resource: 1 / x})

    ends = 1 / factors[1], 1 / factors[0]
    engine = "analytic"
    certificate: Certificate
    if not note and base.scenario.engine != "analytic" and _calls_meet(alone, resource, factors):
        points = _Simulated(base, resource, watch)
        traced = sample_curve(points, *ends, gap=gap * step)
        first, last = float(traced.x[0]), float(traced.x[-1])
        if last < 2 * first:  # Ctrl-C left no doubling
            raise KeyboardInterrupt
        even = break_even(traced.at, first, last, factor=2.0, least=threshold / 100)
        certificate = "sampled"
        engine = "flow"
        note = "" if not traced.fell else "the step was seen to get longer with a better resource"
    else:
        convex = resource in RANKS or _has_fixed_schedules(alone)
        traced = trace_curve(evaluate, *ends, gap=gap * step, convex=convex)
        even = break_even(evaluate, *ends, factor=2.0, least=threshold / 100)
        certificate = "none" if traced.fell else "convex" if convex else "monotone"
    if not note and base.scenario.engine == "analytic" and alone.calls_that_meet(base.timeline):
        shared = replace(alone, engine="flow").totals(watch("contention")).makespan
        note = f"calls share links: the step takes {100 * (shared / step - 1):.2g} % longer"
    return CurveReport(
        base=base,
        resource=resource,
        points=_points(base, resource, traced, engine),
        gap_s=float(traced.gap.max()),
        certificate=certificate,
        threshold_pct=threshold,
        break_even=None if even is None else 1 / even,
        break_even_value="" if even is None else value_of(alone, resource, 1 / even),
        note=note,
        interrupted=f"interrupted: the curve has only {len(traced.x)} points" if traced.cut else "",
    )


def _calls_meet(alone: Scenario, resource: str, factors: tuple[float, float]) -> bool:
    """Whether calls share a link, at the baseline or an end of the curve, without contention."""
    scenarios = (improve(alone, resource, factor) for factor in (1.0, *factors))
    return any(scenario_at.calls_that_meet(scenario_at.run()) for scenario_at in scenarios)


@dataclass(slots=True)
class _Simulated:
    """Simulated points of a curve; after Ctrl-C those that were done, if any."""

    base: Baseline
    resource: str
    watch: Watch
    any_done: bool = False

    def __call__(self, x: Floats) -> Floats:
        changes = [
            (f"{self.resource} x{factor:.4g}", better(self.resource, factor))
            for factor in (1 / x).tolist()
        ]
        try:
            answered = steps(self.base, changes, self.watch)
        except Interrupted:
            if not self.any_done:
                raise
            answered = []
        self.any_done = True
        return np.array([point.step for point in answered])


def _check(resource: str, gap: float, threshold: float) -> None:
    if split_resource(resource)[1] is not None:
        raise WhatIfError(f"a curve covers all kinds of node, not {resource} alone: use sweep")
    if resource in BY_NAME:
        raise WhatIfError(f"{resource} changes each kernel by itself: use sweep without --curve")
    if resource not in RANKS and not is_of_links(resource):
        raise WhatIfError(f"{resource} comes in whole numbers, so it has no curve: use sweep")
    if not _LEAST_GAP <= gap < 1:
        raise WhatIfError(
            f"gap {100 * gap:g} % of the step: ask for {100 * _LEAST_GAP:g} % or more, below 100 %"
        )
    if not 0 < threshold < 100:
        raise WhatIfError(f"threshold {threshold:g} %: ask for more than 0 %, below 100 %")


def _factors(
    reach: str | tuple[float, float], scenario: Scenario, resource: str
) -> tuple[float, float]:
    """Parse the ends of the curve as factors, the worse first."""
    if isinstance(reach, str):
        ends = reach.split("..")
        if len(ends) != 2:
            raise WhatIfError(f"range {reach!r}: write two ends, 0.25..16 or '1 GB/s..400 GB/s'")
        low, high = sorted(_factor(end.strip(), scenario, resource) for end in ends)
    else:
        low, high = reach
    _check_reach(low, high)
    return low, high


def _check_reach(low: float, high: float) -> None:
    check_factor(low)
    check_factor(high)
    if not high >= 2 * low:
        raise WhatIfError(
            f"a curve from {low:g} to {high:g} contains no doubling: let it end at {2 * low:g} "
            "or later"
        )


def _factor(end: str, scenario: Scenario, resource: str) -> float:
    """Parse a factor, or a value of the resource as a factor."""
    try:
        return float(end)
    except ValueError:
        now = resource_values(scenario.cluster).get(resource)
        if now is None or not now:
            raise WhatIfError(f"range end {end!r}: {resource} takes factors only") from None
    if resource.endswith("latency"):
        value = parse_quantity(end, "s")
        return now / value if value else math.inf
    return parse_quantity(end, "B/s") / now


def _has_fixed_schedules(scenario: Scenario) -> bool:
    """Whether every call has one schedule on all networks of the scenario's graph."""
    graph, machine = scenario.site.topology, scenario.site.machine
    workload = scenario.workload
    calls = (workload.call_view(index) for index in range(len(workload.calls)))
    different = {(call.kind, call.group.ranks): call for call in calls if not np.isnan(call.size)}
    return all(one_schedule(call, graph, machine) for call in different.values())


def _points(base: Baseline, resource: str, traced: Curve, engine: str) -> tuple[Point, ...]:
    """Return the points of a curve in order of the factor."""
    factors = [1 / x for x in traced.x[::-1].tolist()]
    is_unused = bool(without_effect(base, resource, 2.0))  # the cluster may not have it
    answered = []
    for factor, step in zip(factors, traced.step[::-1].tolist(), strict=True):
        change = better(resource, factor)
        scenario = base.scenario if is_unused else change.apply(base.scenario).scenario
        answered.append(Answered(change, scenario, step, engine))
    saved = saved_by(base, answered, [Interval()] * len(answered) if is_unused else None)
    return tuple(
        of_factor(base, point, resource, factor)
        for point, factor in zip(saved, factors, strict=True)
    )
