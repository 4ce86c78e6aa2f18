"""The main job: what twice of each resource would buy.

How much a resource can be worth at most is bounded by the least that the changed step can take
(:mod:`simulator.analytic.bounds`): that holds for every engine, and for whatever the library makes
of the changed network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np

from experiments.baseline import Baseline, Settings, Watch, Where, baseline
from experiments.evaluate.contended import EngineCheck, PointsAnswer, answered
from experiments.evaluate.contended import answer as points_answer
from experiments.evaluate.design_points import DesignPoints
from experiments.evaluate.kernel_interval import kernel_half_widths
from experiments.evaluate.parallel import Outcome, outcome, spent
from experiments.evaluate.prediction_error import prediction_half_width
from experiments.evaluate.prior_interval import greater, joined, of_generated, prior_half_widths
from experiments.evaluate.utility_bound import BOUND_ASSUMES, bounds, not_below
from experiments.evaluate.utility_interval import half_widths, spread
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.scenario.extra_parts import extra_parts
from experiments.scenario.resources import (
    RANKS,
    amount_of,
    better,
    check_factor,
    check_resource,
    check_resources,
    every_resource,
    improve,
    not_used,
    unit_of,
    utility_pct,
    value_of,
)
from experiments.scenario.scenario import Scenario
from experiments.settings import SettingsOptions
from simulator.errors import WhatIfError
from simulator.names import one_of
from simulator.quantities import format_quantity
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP


def most_utility(
    base: Scenario, *, factor: float = 2.0, resources: Sequence[str] = ()
) -> dict[str, float]:
    """Upper bound on the utility of each resource (% of the simulated step).

    Resources of which the cluster has none, or cannot have ``factor`` times as much, are left out.

    Raises
    ------
    WhatIfError
        If a resource is unknown, or the factor cannot be.
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run`.
    """
    asked = tuple(map(check_resource, resources)) or every_resource(base.cluster)
    check_resources(asked, base.cluster)
    check_factor(factor)
    changes = {name: better(name, factor) for name in asked}
    costed = DesignPoints(replace(base, slow_down=0.0)).ask(changes)
    return bounds(base.run().makespan, costed, changes, dict.fromkeys(changes, base.engine))


_TIER_NAMES = {PCIE: "PCIe", SCALE_UP: "scale-up", SCALE_OUT: "scale-out"}
"""How the resources of links are called in a sentence."""
_SHIFTED = 0.25
"""Another tier holds back if it takes up this share of the time that a better one freed."""


@dataclass(frozen=True, slots=True)
class Utility:
    """One resource: its value now and changed, the step time with it (s), and its utility.

    ``utility_pct`` is 100 (T_base - T_changed) / T_base, in percent of step time (CCL-Bench 1.0,
    arXiv 2605.06544). Both are None where the resource cannot matter; ``note`` says why.
    ``interval_pct`` is half the width of its 95 % interval, of three that are independent:
    ``scatter_pct``, what steps and calls of the trace scatter by
    (:mod:`experiments.evaluate.utility_interval`; None where it shows no spread), ``prior_pct``,
    what follows from how the cluster's figures are known
    (:mod:`experiments.evaluate.prior_interval`; None where no call moves anything), and
    ``prediction_pct``, what such predictions were off on real runs
    (:mod:`experiments.evaluate.prediction_error`). Of a generated step ``generated_pct`` is a
    fourth: what steps like it were off from measured ones (:mod:`experiments.costing.step_prior`;
    None where the step was recorded, or nothing like it was measured), and ``kernels_pct`` how the
    times of its kernels are known (:mod:`experiments.evaluate.kernel_interval`; None where they
    were recorded): what steps were off has their kernels' errors in it, so the greater counts.
    ``bound_pct`` is what it can be at most if what ``bound_assumes`` says is so
    (:func:`most_utility`), None where the cluster cannot have that.
    ``engine`` is the one that answered. ``warning`` says what makes the utility doubtful
    (:mod:`experiments.confidence`), "" where nothing does. ``extra_cost_usd`` and
    ``extra_power_w`` are what more of the resource adds to the cluster's bill
    (:mod:`experiments.scenario.extra_parts`), None where no price says so.
    """

    resource: str
    baseline: str
    changed: str
    step_s: float | None
    utility_pct: float | None
    note: str = ""
    interval_pct: float | None = None
    scatter_pct: float | None = None
    prior_pct: float | None = None
    prediction_pct: float | None = None
    generated_pct: float | None = None
    kernels_pct: float | None = None
    bound_pct: float | None = None
    bound_assumes: str = ""
    engine: str = ""
    warning: str = ""
    extra_cost_usd: float | None = None
    extra_power_w: float | None = None


@dataclass(frozen=True, slots=True)
class UtilityRow(Utility):
    """A utility with the numbers of its texts, in ``unit`` ("1": a multiple).

    They are None where there is no such value: the cluster has none, or cannot have as much.
    """

    baseline_value: float | None = None
    changed_value: float | None = None
    unit: str = ""


class UtilityAnswer(Head, PointsAnswer):
    """What ``factor`` times of each resource buys, the greatest first."""

    factor: float
    utilities: list[UtilityRow]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UtilityReport(Report):
    """Utilities of a job's resources, the greatest first; ``per`` says for what more of each."""

    schema: ClassVar[str] = "twofold/utility/1"
    printed_by: ClassVar[str] = "experiments.output.tables.questions:print_utility"
    paged_by: ClassVar[str] = "experiments.output.pages.questions:utility"
    drawn_by: ClassVar[str] = "experiments.output.figures:utility"

    base: Baseline
    factor: float
    utilities: tuple[Utility, ...]
    check: EngineCheck | None = None
    per: str = ""

    def answer(self) -> "UtilityAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **points_answer(self.base, self.check),
            "factor": self.factor,
            "utilities": list(self.rows),
        }

    @property
    def rows(self) -> tuple[UtilityRow, ...]:
        """Utilities with their values as numbers."""
        return tuple(self._row(one) for one in self.utilities)

    def _row(self, one: Utility) -> UtilityRow:
        scenario, name = self.base.scenario, one.resource
        return UtilityRow(
            **{column.name: getattr(one, column.name) for column in fields(one)},
            baseline_value=amount_of(scenario, name),
            changed_value=amount_of(scenario, name, self.factor) if one.changed else None,
            unit=unit_of(name),
        )

    def summary(self) -> str:
        """Say the answer in a few words."""
        known = [row for row in self.utilities if row.utility_pct is not None]
        gains = [f"{row.resource} {row.utility_pct:.2f} %" for row in known[:3]]
        more = ["…"] if len(known) > len(gains) else []
        step = format_quantity(self.base.timeline.makespan, "s")
        return f"{self.base.title}: {', '.join([f'step {step}', *gains, *more])}"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return UtilityRow, self.rows


@question("utility")
def utility(  # noqa: PLR0913 - the options of the command
    trace: Path | str,
    cluster: Where = None,
    *,
    factor: float = 2.0,
    resources: Sequence[str] | str = (),
    per: str = "",
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> UtilityReport:
    """Ask what ``factor`` times of each resource would buy.

    Parameters
    ----------
    trace, cluster
        As :func:`experiments.baseline.baseline` takes them.
    factor
        How many times as good each resource is; 2 is half of a latency.
    resources
        Which, all if there are none.
    per
        ``cost`` or ``power`` puts first what buys most for a dollar, or a watt, more; resources
        without a price come after.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says, and for an unknown resource or a factor
        that is not positive, or if ``per`` is neither.
    """
    if per and per not in PER:
        raise WhatIfError(f"per {one_of(per, PER)}")
    resources = (resources,) if isinstance(resources, str) else resources
    named = tuple(dict.fromkeys(map(check_resource, resources)))
    check_factor(factor)
    base = baseline(trace, cluster, settings, watch, resources=named)
    rows, check = utilities(base, factor, named, watch)
    if per:
        rows.sort(key=lambda row: inf if (gain := PER[per](row)) is None else -gain)
    return UtilityReport(base, factor, tuple(rows), check, per)


def utilities(
    base: Baseline,
    factor: float = 2.0,
    resources: Sequence[str] = (),
    watch: Watch = lambda _: None,
) -> tuple[list[Utility], EngineCheck | None]:
    """Ask a step that has been replayed what ``factor`` times of each resource would buy.

    Returns
    -------
    list of Utility
        The greatest first; of all resources if none are named.
    EngineCheck or None
        How the compiled engine is held against the other; None where it answered nothing.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run`.
    """
    asked = resources or every_resource(base.scenario.cluster)
    prepared = {name: _prepared(base, name, factor) for name in asked}
    rows, check = _simulated(base, prepared, factor, watch)
    rows = _with_doubt(base, rows, factor, prepared)
    rows = [_with_extra(base, row, factor) for row in rows]
    rows.sort(key=lambda row: inf if row.utility_pct is None else -row.utility_pct)
    return rows, check


def _with_extra(base: Baseline, row: Utility, factor: float) -> Utility:
    extra = None
    if row.utility_pct is not None:
        extra = extra_parts(base.scenario, row.resource, factor)
    if extra is None:
        return row
    return replace(row, extra_cost_usd=extra.cost, extra_power_w=extra.power)


def _for_each(utility: float | None, extra: float | None) -> float | None:
    """Points of utility for each unit that is added; None where nothing is."""
    return None if utility is None or not extra else utility / extra


PER: dict[str, Callable[[Utility], float | None]] = {
    "cost": lambda row: _for_each(row.utility_pct, row.extra_cost_usd),
    "power": lambda row: _for_each(row.utility_pct, row.extra_power_w),
}
"""What utility may be asked per: points for a dollar, and for a watt, that is added."""


_Prepared = Mapping[str, Utility | Scenario]
"""Of each resource the scenario to be simulated, or the answer."""


def _simulated(
    base: Baseline, prepared: _Prepared, factor: float, watch: Watch
) -> tuple[list[Utility], EngineCheck | None]:
    scenarios = [(name, one) for name, one in prepared.items() if isinstance(one, Scenario)]
    answers, check = answered(base, scenarios, outcome, watch)
    found = iter(answers)
    rows = [
        one if isinstance(one, Utility) else _answered(base, name, factor, next(found))
        for name, one in prepared.items()
    ]
    return rows, check


def _with_doubt(
    base: Baseline, rows: Sequence[Utility], factor: float, prepared: _Prepared
) -> list[Utility]:
    """Say how sure each utility is, and how much it can be at most; both of one costing."""
    names = [row.resource for row in rows if row.utility_pct is not None]
    if not names:
        return list(rows)
    changes = {name: better(name, factor) for name in names}
    found = spread(base)
    asked = [design.ask(changes) for design in found.designs] if found else []
    alone = replace(base.scenario, slow_down=0.0)
    shared = asked and not base.scenario.slow_down
    of_step = asked[0] if shared else DesignPoints(alone).ask(changes)
    made = {name: one for name, one in prepared.items() if isinstance(one, Scenario)}
    engines = {row.resource: row.engine for row in rows}
    most = bounds(base.timeline.makespan, of_step, changes, engines, made)
    widths = half_widths(found, asked) if found else {}
    told = base.told_calls(of_step.design.base.workload)
    before = prior_half_widths(of_step, changes, base.network_prior["tiers"], told)
    kernels = kernel_half_widths(of_step, base.scenario.kernel_error)
    return [
        replace(
            row,
            interval_pct=joined(
                widths.get(row.resource),
                before.get(row.resource),
                off,
                greater(of_generated(base, row.utility_pct), kernels.get(row.resource)),
            ),
            scatter_pct=widths.get(row.resource),
            prior_pct=before.get(row.resource),
            prediction_pct=off,
            generated_pct=of_generated(base, row.utility_pct),
            kernels_pct=kernels.get(row.resource),
            bound_pct=not_below(most.get(row.resource), row.utility_pct),
            bound_assumes=BOUND_ASSUMES if row.resource in most else "",
        )
        for row, off in zip(rows, map(_off, rows), strict=True)
    ]


def _off(row: Utility) -> float | None:
    return None if row.utility_pct is None else prediction_half_width(row.utility_pct)


def _prepared(base: Baseline, resource: str, factor: float) -> Utility | Scenario:
    """Return the scenario to be simulated, or the answer if there is nothing to simulate."""
    now = value_of(base.scenario, resource)
    reason = without_effect(base, resource, factor)
    if reason:
        return Utility(resource, now, value_of(base.scenario, resource, factor), None, None, reason)
    try:
        return improve(base.scenario, resource, factor)
    except WhatIfError as error:
        return Utility(resource, now, "", None, None, str(error))


def _answered(base: Baseline, resource: str, factor: float, found: Outcome) -> Utility:
    return Utility(
        resource=resource,
        baseline=value_of(base.scenario, resource),
        changed=value_of(base.scenario, resource, factor),
        step_s=found.makespan,
        utility_pct=utility_pct(base.timeline.makespan, found.makespan),
        note="; ".join(
            filter(
                None,
                (
                    _limited_by(spent(base.timeline), found.spent, resource),
                    _unsized(base, resource),
                ),
            )
        ),
        engine=found.engine,
        warning=base.doubts.of(resource),
    )


def _unsized(base: Baseline, resource: str) -> str:
    """Say how many calls no network can make faster, as nobody knows what they move; "" if none."""
    if resource in RANKS:
        return ""
    unknown = np.isnan(base.scenario.workload.calls.size)
    if not unknown.any():
        return ""
    return (
        f"{np.count_nonzero(unknown):,} of {len(unknown):,} calls of unknown size: "
        "as measured on any network"
    )


def _limited_by(held: dict[str, float], now: dict[str, float], resource: str) -> str:
    """Say which tier that was no limit before holds calls back now; "" if none does.

    Twice the NICs' bandwidth buys less where PCIe cannot feed them.
    """
    tier = resource.partition(".")[0]
    freed = held.get(tier, 0.0) - now.get(tier, 0.0)
    others = {one: now[one] for one in now if one != tier and not held.get(one, 0.0)}
    if tier not in held or freed <= 0 or not others:
        return ""
    most = max(others, key=lambda one: others[one])
    name = _TIER_NAMES.get(most, most)
    return f"limited by {name}" if others[most] > _SHIFTED * freed else ""


def without_effect(base: Baseline, resource: str, factor: float) -> str:
    """Why the resource ``factor`` times as good changes nothing, in words; "" if it may.

    A smaller domain can make traffic between domains where there was none.
    """
    if resource == "scale_up.size" and factor < 1:
        return ""
    return not_used(base.timeline, base.scenario, resource)
