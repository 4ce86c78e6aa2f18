"""The report of many changes of one step: a row for each change, and the columns of a command.

``utility``, ``sweep``, ``curve``, ``compare`` and ``what-if`` differ in their choice of changes and
of columns.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, get_type_hints

from msgspec import Struct
from typing_extensions import TypedDict

from experiments.baseline import Baseline, BaselineHead
from experiments.evaluate.design_points import Answered
from experiments.intervals.interval import Interval, intervals, reach
from experiments.report import Report, Rows
from experiments.scenario.resources import (
    amount_of,
    factor_means,
    not_used,
    unit_of,
    utility_pct,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Point:
    """One change of a step, and its saving.

    Times are in seconds. ``step_s`` is the step with the change and ``utility_pct`` the saving, 100
    (T_base - T_changed) / T_base, in percent of step time (CCL-Bench 1.0, arXiv 2605.06544); both
    are None if the resource has no effect, and ``note`` gives the reason. ``gain_pct`` is
    ``utility_pct``, or then 0. ``engine`` is the one that answered.

    ``interval_pct`` is half the width of the saving's 95 % interval, and ``scatter_pct`` to
    ``kernels_pct`` are its parts (:class:`experiments.intervals.interval.Interval`);
    ``model_bound_pct`` is an upper bound on the saving in the model, where ``bound_assumes`` holds,
    and ``bound_pct`` one with what the model may be off by; the interval ends there. ``warning`` is
    what makes the saving doubtful (:mod:`experiments.priors.doubts`), "" if nothing does.
    ``assumptions`` are the assumptions of the change, one sentence a line.

    For a resource that is ``factor`` times as good, ``value`` is its new value as text, and
    ``value_number`` as a number in ``unit`` ("1": a multiple), None if there is none; ``baseline``
    and ``changed`` are its value before and after, ``baseline_value`` and ``changed_value`` as
    numbers. ``factor_means`` explains a factor of 2: for a latency, half of it. ``extra_cost_usd``
    and ``extra_power_w`` are what more of the resource adds to the cluster's bill, None if no price
    is known. For a cluster, ``value`` describes it, and ``network_prior`` is the uncertainty of its
    figures.

    For a random change (``1% of links down``) ``step_s``, and all that follows from it, is the
    median over ``draws`` draws of ``seed``; ``step_p10_s``, ``step_p90_s`` and ``step_worst_s`` are
    their 10th and 90th percentile (interpolated between neighbours) and the longest. A draw that
    disconnects ranks is counted in ``draws_cut_off`` and is in none of the times.
    """

    resource: str = ""
    cluster: str = ""
    change: str = ""
    factor: float = 1.0
    value: str = ""
    baseline: str = ""
    changed: str = ""
    step_s: float | None = None
    utility_pct: float | None = None
    exposed_communication_s: float = 0.0
    note: str = ""
    warning: str = ""
    assumptions: str = ""
    engine: str = ""
    scatter_pct: float | None = None
    prior_pct: float | None = None
    prediction_pct: float | None = None
    generated_pct: float | None = None
    kernels_pct: float | None = None
    interval_pct: float | None = None
    model_bound_pct: float | None = None
    bound_pct: float | None = None
    bound_assumes: str = ""
    network_prior: str = ""
    extra_cost_usd: float | None = None
    extra_power_w: float | None = None
    factor_means: str = ""
    value_number: float | None = None
    baseline_value: float | None = None
    changed_value: float | None = None
    unit: str = ""
    draws: int | None = None
    seed: int | None = None
    draws_cut_off: int | None = None
    step_p10_s: float | None = None
    step_p90_s: float | None = None
    step_worst_s: float | None = None

    @property
    def gain_pct(self) -> float:
        """Saving (% of the step); 0 if the resource has no effect."""
        return self.utility_pct or 0.0

    @property
    def reach_pct(self) -> tuple[float, float]:
        """How far the 95 % interval reaches below and above the saving (points)."""
        return reach(self.gain_pct, self.interval_pct, self.bound_pct)

    @property
    def step(self) -> float:
        """The step with the change (s); 0 if the resource has no effect."""
        return self.step_s or 0.0


INTERVAL = (
    *("scatter_pct", "prior_pct", "prediction_pct", "generated_pct", "kernels_pct"),
    *("interval_pct", "model_bound_pct", "bound_pct"),
)
"""Columns of an interval, in the order of most commands."""


class Columns(Struct, frozen=True):
    """The columns of points that a command prints, in order.

    ``title`` names a row in the JSON Schema. ``may_be_unused`` is whether rows can be of resources
    without effect, which have no step.
    """

    title: str
    names: tuple[str, ...]
    may_be_unused: bool = False

    def row(self, point: Point) -> dict[str, Any]:
        """Return the columns of a point."""
        return {name: getattr(point, name) for name in self.names}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Describe the rows to pydantic, which makes the JSON Schema of answers."""
        simulated = {"step_s": float, "utility_pct": float, "gain_pct": float}
        types = get_type_hints(Point) | ({} if self.may_be_unused else simulated)
        row = TypedDict(self.title, {name: types[name] for name in self.names})  # type: ignore[misc]
        row.__doc__ = Point.__doc__
        return handler(list[row])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BaselineReport(Report):
    """An answer about a step, which begins with its baseline."""

    base: Baseline

    def headed(self) -> BaselineHead:
        """Return the head of the answer, and the part on the replay."""
        head = self.head(self.base.recorded.cluster, self.base.settings)
        return {**head, **self.base.answer()}


class PointsHead(BaselineHead):
    """The common part of answers about changes of a step."""

    interrupted: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PointsReport(BaselineReport):
    """Savings by changes of one step, a row for each.

    ``interrupted`` counts the answered changes if Ctrl-C was pressed; "" if all are.
    """

    columns: ClassVar[Columns]

    points: tuple[Point, ...]
    interrupted: str = field(default="", kw_only=True)

    def headed(self) -> PointsHead:
        """Return the head of the answer, and how much of it is there."""
        return {**BaselineReport.headed(self), "interrupted": self.interrupted}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the JSON answer."""
        return [self.columns.row(point) for point in self.points]

    def table(self) -> Rows:
        """Return the CSV answer."""
        return self.columns.names, self.points


def saved_by(
    base: Baseline, answered: Sequence[Answered], rows: Sequence[Interval] | None = None
) -> list[Point]:
    """Return the saving by each change of a step, with its interval.

    ``rows`` are the intervals, if they are not those of :func:`intervals`.
    """
    whole = base.timeline.makespan
    return [
        Point(
            step_s=change.step,
            utility_pct=utility_pct(whole, change.step),
            engine=change.engine,
            **asdict(interval),
            interval_pct=interval.interval_pct,
        )
        for change, interval in zip(answered, rows or intervals(base, answered), strict=True)
    ]


def of_factor(base: Baseline, point: Point, resource: str, factor: float) -> Point:
    """Add the resource and the factor to a point."""
    return replace(
        point,
        resource=resource,
        factor=factor,
        factor_means=f"2: {factor_means(resource)}",
        value=value_of(base.scenario, resource, factor),
        value_number=amount_of(base.scenario, resource, factor),
        unit=unit_of(resource),
    )


def without_effect(base: Baseline, resource: str, factor: float) -> str:
    """Return why ``factor`` times the resource changes nothing, in words; "" if it may.

    A smaller domain can cause traffic between domains that did not exist before.
    """
    if resource == "scale_up.size" and factor < 1:
        return ""
    return not_used(base.timeline, base.scenario, resource)
