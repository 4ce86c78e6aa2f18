"""A sweep: the step time over a range of one resource, from a quarter of it to eight times."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from experiments.baseline import Baseline, Settings, Watch, Where, baseline
from experiments.evaluate.design_points import steps
from experiments.questions.utility import without_effect
from experiments.report import Report, Rows
from experiments.scenario.resources import (
    better,
    check_factor,
    check_resource,
    utility_pct,
    value_of,
)
from simulator.errors import WhatIfError

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point: a resource ``factor`` times as good, and the step time with it (s).

    ``engine`` is the one that answered.
    """

    resource: str
    factor: float
    value: str
    step_s: float
    utility_pct: float
    engine: str


@dataclass(frozen=True, slots=True, eq=False)
class SweepReport(Report):
    """Points of one resource in order of the factor; ``note`` says if it cannot matter."""

    printed_by: ClassVar[str] = "experiments.output.tables.what_ifs:print_sweep"
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
    check_resource(resource)
    for factor in factors:
        check_factor(factor)
    base = baseline(trace, cluster, settings, watch)
    asked = sorted(set(factors))
    changes = [(f"{resource} x{factor:g}", better(resource, factor)) for factor in asked]
    answers = steps(base, changes, watch)
    points = []
    for factor, (step, engine) in zip(asked, answers, strict=True):
        gain = utility_pct(base.timeline.makespan, step)
        value = value_of(base.scenario, resource, factor)
        points.append(SweepPoint(resource, factor, value, step, gain, engine))
    note = without_effect(base, resource, min(factors))
    return SweepReport(base, resource, tuple(points), note)
