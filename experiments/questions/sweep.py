"""A sweep: the step time over a range of one resource, from a quarter of it to eight times."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from experiments.baseline import Baseline, Settings, Watch, Where, baseline
from experiments.evaluate.parallel import map_scenarios, outcome
from experiments.questions.utility import without_effect
from experiments.report import Report, Rows
from experiments.scenario.resources import (
    check_factor,
    check_resource,
    factor_means,
    improve,
    utility_pct,
    value_of,
)
from simulator.errors import WhatIfError

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point: a resource ``factor`` times as good, and the step time with it (s).

    ``engine`` is the one that answered. ``factor_means`` says what a factor of 2 is: of a latency
    it is the half.
    """

    resource: str
    factor: float
    value: str
    step_s: float
    utility_pct: float
    engine: str
    factor_means: str


@dataclass(frozen=True, slots=True, eq=False)
class SweepReport(Report):
    """Points of one resource in order of the factor; ``note`` says if it cannot matter."""

    printed_by: ClassVar[str] = "experiments.output.tables.questions:print_sweep"
    drawn_by: ClassVar[str] = "experiments.output.figures:draw_sweep"

    base: Baseline
    resource: str
    points: tuple[SweepPoint, ...]
    note: str

    def record(self) -> list[dict[str, object]]:
        """Return the JSON answer: a list of rows."""
        return [asdict(point) for point in self.points]

    def table(self) -> Rows:
        """Return the CSV answer."""
        return SweepPoint, self.points


def sweep(
    trace: Path | str,
    cluster: Where,
    resource: str,
    *,
    factors: Sequence[float] = FACTORS,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> SweepReport:
    """Simulate a step with a resource at each of several factors.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says; WhatIfError for a factor or resource that
        the cluster cannot be asked for.
    """
    if not factors:
        raise WhatIfError("a sweep needs a factor")
    resource = check_resource(resource)
    for factor in factors:
        check_factor(factor)
    base = baseline(trace, cluster, settings, watch)
    asked = sorted(set(factors))
    scenarios = [
        (f"{resource} x{factor:g}", improve(base.scenario, resource, factor)) for factor in asked
    ]
    outcomes = map_scenarios(scenarios, outcome, workers=base.settings.workers, watch=watch)
    points, means = [], f"2: {factor_means(resource)}"
    for factor, found in zip(asked, outcomes, strict=True):
        step = found.makespan
        gain = utility_pct(base.timeline.makespan, step)
        value = value_of(base.scenario, resource, factor)
        points.append(SweepPoint(resource, factor, value, step, gain, found.engine, means))
    note = without_effect(base, resource, min(factors))
    return SweepReport(base, resource, tuple(points), note)
