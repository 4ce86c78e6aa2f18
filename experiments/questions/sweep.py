"""A sweep: the step time over a range of one resource, from a quarter of it to eight times."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Unpack

from experiments.baseline import Baseline, Settings, Watch, Where, baseline
from experiments.evaluate.contended import EngineCheck, PointsAnswer
from experiments.evaluate.contended import answer as points_answer
from experiments.evaluate.design_points import steps
from experiments.evaluate.prediction_error import prediction_half_width
from experiments.evaluate.prior_interval import OpenBy, greater, joined, of_generated, widths_of
from experiments.provenance import Head
from experiments.question import question
from experiments.questions.utility import without_effect
from experiments.report import Report, Rows
from experiments.scenario.resources import (
    amount_of,
    better,
    check_factor,
    check_resource,
    factor_means,
    unit_of,
    utility_pct,
    value_of,
)
from experiments.settings import SettingsOptions
from simulator.errors import WhatIfError
from simulator.quantities import format_quantity

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point: a resource ``factor`` times as good, and the step time with it (s).

    ``interval_pct`` is half the width of the utility's 95 % interval, of ``prior_pct``,
    ``prediction_pct`` and the greater of ``generated_pct`` and ``kernels_pct`` together: how the
    cluster's figures are known (:mod:`experiments.evaluate.prior_interval`; None where that is not
    known), what such predictions were off on real runs
    (:mod:`experiments.evaluate.prediction_error`), what generated steps like it were off from
    measured ones (:mod:`experiments.costing.step_prior`), and how the times of their kernels are
    known (:mod:`experiments.evaluate.kernel_interval`; both None of a recorded step).
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
    prior_pct: float | None = None
    prediction_pct: float | None = None
    generated_pct: float | None = None
    kernels_pct: float | None = None
    interval_pct: float | None = None


@dataclass(frozen=True, slots=True)
class SweepRow(SweepPoint):
    """A point with the number of its value, in ``unit`` ("1": a multiple)."""

    value_number: float | None = None
    unit: str = ""


class SweepAnswer(Head, PointsAnswer):
    """The step time over one resource, in order of the factor; ``warning``: why it is doubtful."""

    resource: str
    note: str
    warning: str
    points: list[SweepRow]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SweepReport(Report):
    """Points of one resource in order of the factor; ``note`` says if it cannot matter."""

    schema: ClassVar[str] = "twofold/sweep/1"
    printed_by: ClassVar[str] = "experiments.output.tables.questions:print_sweep"
    paged_by: ClassVar[str] = "experiments.output.pages.questions:sweep"
    drawn_by: ClassVar[str] = "experiments.output.figures:sweep"

    base: Baseline
    resource: str
    points: tuple[SweepPoint, ...]
    note: str
    check: EngineCheck | None = None

    def answer(self) -> "SweepAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **points_answer(self.base, self.check),
            "resource": self.resource,
            "note": self.note,
            "warning": self.warning,
            "points": list(self.rows),
        }

    @property
    def warning(self) -> str:
        """What makes it doubtful what the resource buys; "" where it cannot matter."""
        return "" if self.note else self.base.doubts.of(self.resource)

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """Points with their values as numbers."""
        return tuple(self._row(one) for one in self.points)

    def _row(self, one: SweepPoint) -> SweepRow:
        return SweepRow(
            **{column.name: getattr(one, column.name) for column in fields(one)},
            value_number=amount_of(self.base.scenario, one.resource, one.factor),
            unit=unit_of(one.resource),
        )

    def summary(self) -> str:
        """Say the answer in a few words."""
        steps = [format_quantity(point.step_s, "s") for point in self.points]
        first, last = self.points[0], self.points[-1]
        reach = f"{steps[0]} at {first.factor:g}x to {steps[-1]} at {last.factor:g}x"
        return f"{self.base.title}, {self.resource}: {len(steps)} points, {reach}"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return SweepRow, self.rows


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
        As :func:`experiments.baseline.baseline` says; WhatIfError for a factor or resource that
        the cluster cannot be asked for.
    """
    factors = [float(factor) for factor in factors]  # NumPy spells its own otherwise
    if not factors:
        raise WhatIfError("a sweep needs a factor")
    resource = check_resource(resource)
    for factor in factors:
        check_factor(factor)
    base = baseline(trace, cluster, settings, watch, resources=[resource])
    asked = sorted(set(factors))
    changes = [(f"{resource} x{factor:g}", better(resource, factor)) for factor in asked]
    answers, check = steps(base, changes, watch)
    open_by = widths_of(base, dict(changes))
    points, means = [], f"2: {factor_means(resource)}"
    for factor, (name, _), (step, engine) in zip(asked, changes, answers, strict=True):
        gain = utility_pct(base.timeline.makespan, step)
        value = value_of(base.scenario, resource, factor)
        (prior, kernels), off = open_by.get(name, OpenBy()), prediction_half_width(gain)
        generated = of_generated(base, gain)
        together = joined(prior, off, greater(generated, kernels))
        said = prior, off, generated, kernels, together
        points.append(SweepPoint(resource, factor, value, step, gain, engine, means, *said))
    note = without_effect(base, resource, min(factors))
    return SweepReport(base, resource, tuple(points), note, check)
