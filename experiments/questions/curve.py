"""The whole curve of step time over one resource, to a stated gap, and where more stops to pay."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from collectives.libraries.planners import one_schedule
from experiments.baseline import Baseline, Settings, Watch, Where, baseline
from experiments.evaluate.design_points import Study
from experiments.questions.utility import without_effect
from experiments.report import Report, Rows
from experiments.scenario.change import LINKS
from experiments.scenario.resources import (
    RANKS,
    check_factor,
    check_resource,
    utility_pct,
    value_of,
)
from experiments.scenario.scenario import Scenario
from simulator.analytic.curve import Curve, break_even, trace
from simulator.errors import WhatIfError
from simulator.quantities import parse_quantity
from simulator.workload import Floats
from topologies import resource_values


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point: a resource ``factor`` times as good, and the step without contention (s)."""

    factor: float
    value: str
    step_s: float
    utility_pct: float


@dataclass(frozen=True, slots=True, eq=False)
class CurveReport(Report):
    """Points in order of the factor; straight lines between them, over 1/factor, are the curve.

    ``gap_s`` is how far the step can be off these lines, as ``certificate`` says: *convex*
    (every call has one schedule), *monotone* (the step does not fall as the resource gets worse),
    or *none* (it was seen to fall). It is more than was asked where the step jumps, or where
    thousands of points were not enough. From a factor of
    ``break_even`` on, doubling the resource buys less than ``threshold_pct`` of the step, as far
    as the curve goes; None if it still buys as much at its end.
    """

    printed_by: ClassVar[str] = "experiments.output.tables.curves:print_curve"
    drawn_by: ClassVar[str] = "experiments.output.figures:draw_curve"

    base: Baseline
    resource: str
    points: tuple[CurvePoint, ...]
    gap_s: float
    certificate: str
    threshold_pct: float
    break_even: float | None
    break_even_value: str
    note: str

    def record(self) -> dict[str, object]:
        """Return the JSON answer."""
        return self.base.record() | {
            "resource": self.resource,
            "gap_s": self.gap_s,
            "certificate": self.certificate,
            "threshold_pct": self.threshold_pct,
            "break_even_factor": self.break_even,
            "break_even_value": self.break_even_value,
            "note": self.note,
            "points": [asdict(point) for point in self.points],
        }

    def table(self) -> Rows:
        """Return the CSV answer."""
        return CurvePoint, self.points


def curve(  # noqa: PLR0913 - what is asked, of what, and how exactly
    job: Path | str,
    cluster: Where,
    resource: str,
    *,
    reach: str | tuple[float, float] = (0.25, 16.0),
    gap: float = 1e-3,
    threshold: float = 5.0,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> CurveReport:
    """Trace the step time over a resource from the first factor of ``reach`` to the last.

    As text it may be values, too: ``0.25..16`` or ``1 GB/s..400 GB/s``. ``gap`` is a fraction of
    the step, ``threshold`` in percent of it. There is no contention in a
    curve: ``engine`` of the settings does not count, and the note says where it would.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says; WhatIfError for a resource that changes
        which links there are, or factors and gaps that cannot be.
    """
    _check(resource, gap, threshold)
    if not isinstance(reach, str):
        _check_reach(*reach)
    settings = replace(settings or Settings(), engine="analytic")
    base = baseline(job, cluster, settings, watch)
    scenario, step = base.scenario, base.timeline.makespan
    factors = _factors(reach, scenario, resource)
    note = without_effect(base, resource, 2.0)
    evaluate = _evaluate(scenario, resource, used=not note)
    ends = 1 / factors[1], 1 / factors[0]
    convex = resource in RANKS or _fixed(scenario)
    traced = trace(evaluate, *ends, gap=gap * step, convex=convex)
    even = break_even(evaluate, *ends, factor=2.0, least=threshold / 100)
    shared = scenario.contention(base.timeline)
    if shared.calls and not note:
        note = f"calls overlap on links: up to {100 * shared.fraction:.2g} % more with contention"
    return CurveReport(
        base=base,
        resource=resource,
        points=_points(base, resource, traced),
        gap_s=float(traced.gap.max()),
        certificate="none" if traced.fell else "convex" if convex else "monotone",
        threshold_pct=threshold,
        break_even=None if even is None else 1 / even,
        break_even_value="" if even is None else value_of(scenario, resource, 1 / even),
        note=note,
    )


def _check(resource: str, gap: float, threshold: float) -> None:
    check_resource(resource)
    if resource not in (*LINKS, *RANKS):
        raise WhatIfError(f"{resource} comes in whole numbers: there is no curve; sweep it")
    if not 1e-6 <= gap < 1:
        raise WhatIfError(f"gap {gap:g} is not a fraction of the step from 1e-6 to 1")
    if not 0 < threshold < 100:
        raise WhatIfError(f"threshold {threshold:g} is not a percentage between 0 and 100")


def _factors(
    reach: str | tuple[float, float], scenario: Scenario, resource: str
) -> tuple[float, float]:
    """Read the ends of the curve as factors, the worse first."""
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
        raise WhatIfError(f"a curve from {low:g} to {high:g} has no doubling in it")


def _factor(end: str, scenario: Scenario, resource: str) -> float:
    """Read a factor, or a value of the resource as one."""
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


def _evaluate(scenario: Scenario, resource: str, *, used: bool) -> Callable[[Floats], Floats]:
    """Make the function that the curve is of; a resource that is not used changes nothing."""
    study = Study(scenario)

    def evaluate(x: Floats) -> Floats:
        return study.steps_at({resource if used else "compute": 1 / x if used else x * 0 + 1})

    return evaluate


def _fixed(scenario: Scenario) -> bool:
    """Whether every call has one schedule on all networks of the scenario's graph."""
    graph, machine = scenario.topology(), scenario.machine()
    workload = scenario.workload
    calls = (workload.call_view(index) for index in range(len(workload.calls)))
    known = {(call.kind, call.group.ranks): call for call in calls if not np.isnan(call.size)}
    return all(one_schedule(call, graph, machine) for call in known.values())


def _points(base: Baseline, resource: str, traced: Curve) -> tuple[CurvePoint, ...]:
    step = base.timeline.makespan
    return tuple(
        CurvePoint(
            factor=1 / x,
            value=value_of(base.scenario, resource, 1 / x),
            step_s=seconds,
            utility_pct=utility_pct(step, seconds),
        )
        for x, seconds in zip(traced.x[::-1].tolist(), traced.step[::-1].tolist(), strict=True)
    )
