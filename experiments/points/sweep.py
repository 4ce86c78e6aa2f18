"""A sweep: the step time over a range of one resource, from a quarter of it to eight times."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Unpack

from experiments.baseline import Settings, Where, baseline
from experiments.evaluate.design_points import steps
from experiments.output.document import Document
from experiments.points.report import (
    INTERVAL,
    Columns,
    PointsAnswer,
    PointsReport,
    interruption,
    of_factor,
    saved_by,
    without_effect,
)
from experiments.question import question
from experiments.scenario.resources import better, check_resource
from experiments.scenario.words import check_factor
from experiments.settings import SettingsOptions, Watch
from simulator.support.errors import WhatIfError
from simulator.support.quantities import format_quantity

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


_COLUMNS = Columns(
    "SweepPoint",
    (
        *("resource", "factor", "value", "step_s", "utility_pct", "engine", "factor_means"),
        *(*INTERVAL, "value_number", "unit"),
    ),
)


class SweepAnswer(PointsAnswer):
    """The step time over one resource, in order of the factor; ``warning``: why it is doubtful."""

    resource: str
    note: str
    warning: str
    points: Annotated[list[dict[str, Any]], _COLUMNS]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SweepReport(PointsReport):
    """Points of one resource in order of the factor; ``note`` says if it cannot matter."""

    schema: ClassVar[str] = "twofold/sweep/1"
    columns: ClassVar[Columns] = _COLUMNS

    resource: str
    note: str

    def answer(self) -> SweepAnswer:
        """Return the JSON answer."""
        return {
            **self.of_baseline(),
            "resource": self.resource,
            "note": self.note,
            "warning": self.warning,
            "points": self.rows(),
        }

    @property
    def warning(self) -> str:
        """What makes it doubtful what the resource buys; "" where it cannot matter."""
        return "" if self.note else self.base.doubts.of(self.resource)

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import points  # numbers need none of it

        return points.sweep(self)

    def summary(self) -> str:
        """Say the answer in a few words."""
        steps = [format_quantity(point.step, "s") for point in self.points]
        first, last = self.points[0], self.points[-1]
        reach = f"{steps[0]} at {first.factor:g}x to {steps[-1]} at {last.factor:g}x"
        return f"{self.base.title}, {self.resource}: {len(steps)} points, {reach}"


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
    factors = sorted(set(factors))
    changes = [(f"{resource} x{factor:g}", better(resource, factor)) for factor in factors]
    saved = saved_by(base, steps(base, changes, watch))
    points = [
        of_factor(base, point, resource, factor)
        for point, factor in zip(saved, factors, strict=False)  # less than all after Ctrl-C
    ]
    note = without_effect(base, resource, min(factors))
    interrupted = interruption(len(points), len(factors), "factors")
    return SweepReport(base, tuple(points), resource, note, interrupted=interrupted)
