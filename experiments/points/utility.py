"""Utility, the central question: what twice of each resource would buy.

The utility of a resource is bounded by the least time of the changed step
(:mod:`simulator.analytic.bounds`): that holds for every engine, and for whatever the library does
on the changed network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np

from experiments.baseline import Baseline, Settings, Where, baseline
from experiments.documents import points as documents
from experiments.evaluate.design_points import Changing, simulated
from experiments.evaluate.parallel import interruption, spent
from experiments.intervals.interval import BOUND_ASSUMES
from experiments.points.failures import FailingJob, FailuresAnswer, parse_failures
from experiments.points.report import Columns, Point, PointsReport, saved_by, without_effect
from experiments.report import question
from experiments.scenario.resources import (
    RANKS,
    amount_of,
    better,
    check_resource,
    every_resource,
    extra_parts,
    unit_of,
    value_of,
)
from experiments.scenario.words import check_factor
from experiments.settings import SettingsOptions, Watch
from simulator.support.errors import WhatIfError
from simulator.support.names import one_of
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP

_TIER_NAMES = {PCIE: "PCIe", SCALE_UP: "scale-up", SCALE_OUT: "scale-out"}
_TIER_NAMES |= {"host_copies": "copies by the host", "host_memory": "host memory"}
"""How the resources of links are called in a sentence."""
NOT_ANSWERED = "interrupted before it was simulated"
"""The note of a resource that was not simulated before Ctrl-C."""
_NEW_LIMIT = 0.25
"""Another tier becomes the limit if it takes this share of the time that the better one freed."""
_COLUMNS = Columns(
    "Utility",
    (
        *("resource", "baseline", "changed", "step_s", "utility_pct", "note", "interval_pct"),
        *("scatter_pct", "prior_pct", "prediction_pct", "generated_pct", "kernels_pct"),
        *("model_bound_pct", "bound_pct", "bound_assumes", "engine", "warning"),
        *("extra_cost_usd", "extra_power_w"),
        *("baseline_value", "changed_value", "unit"),
    ),
    may_be_unused=True,
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UtilityReport(PointsReport):
    """Utility of ``factor`` times each resource, the largest first, and the cost of failures.

    They are in order of saving per cost or power if ``per`` is one of these.
    """

    schema: ClassVar[str] = "twofold/utility/1"
    document = documents.utility
    columns: ClassVar[Columns] = _COLUMNS
    answered: ClassVar = "factor failures utilities=rows"

    factor: float
    per: str = ""
    failing: FailingJob | None = None

    @property
    def utilities(self) -> tuple[Point, ...]:
        """The points, as the JSON answer calls them."""
        return self.points

    @property
    def failures(self) -> FailuresAnswer | None:
        """What failures cost the job."""
        return None if self.failing is None else self.failing.answer()


@question("utility")
def utility(  # noqa: PLR0913 - the options of the command
    trace: Path | str,
    cluster: Where = None,
    *,
    factor: float = 2.0,
    resources: Sequence[str] | str = (),
    per: str = "",
    failures: str = "",
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> UtilityReport:
    """Compute the utility of ``factor`` times each resource.

    Parameters
    ----------
    trace, cluster
        As :func:`experiments.baseline.baseline` takes them.
    factor
        The factor by which each resource is better; 2 halves a latency.
    resources
        The resources to ask about; by default all.
    per
        ``cost`` or ``power`` orders resources by the saving per additional dollar or watt; those
        without a price come last.
    failures
        How the job fails, such as ``mtbf 50000 h, checkpoint 60 s, restart 10 min``
        (:func:`experiments.points.failures.parse_failures`): the answer then has the share of a
        long run spent on steps that are kept, and what fewer failures would save. "" is none.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`, and for an unknown resource or a factor that
        is not positive, or if ``per`` is neither, or ``failures`` cannot be read.
    """
    if per and per not in PER:
        raise WhatIfError(f"per {one_of(per, PER)}")
    resources = (resources,) if isinstance(resources, str) else resources
    named = tuple(dict.fromkeys(map(check_resource, resources)))
    check_factor(factor)
    if failures:
        parse_failures(failures, 1)  # refuse before reading a trace
    base = baseline(trace, cluster, settings, watch, resources=named)
    rows = utilities(base, factor, named, watch)
    if per:
        rows.sort(key=lambda row: inf if (gain := PER[per](row)) is None else -gain)
    missing = sum(1 for row in rows if row.note == NOT_ANSWERED)
    interrupted = interruption(len(rows) - missing, len(rows), "resources")
    failing = None
    if failures:
        ranks, drawn = base.scenario.ranks, base.drawn
        step = base.timeline.makespan if drawn is None else drawn.median  # a long run has them all
        failing = FailingJob(parse_failures(failures, ranks), ranks, step, factor)
    return UtilityReport(base, tuple(rows), factor, per, failing, interrupted=interrupted)


def utilities(
    base: Baseline,
    factor: float = 2.0,
    resources: Sequence[str] = (),
    watch: Watch = lambda _: None,
) -> list[Point]:
    """Compute the utility of ``factor`` times each resource for a replayed step.

    The largest comes first; all resources are asked about if none are named.
    """
    of_step = base.scenario
    unknown = np.isnan(of_step.workload.calls.size)
    unsized = (
        f"{np.count_nonzero(unknown):,} of {len(unknown):,} calls of unknown size: "
        "as measured on any network"
    )
    rows: dict[str, Point] = {}
    changes = []
    for name in resources or every_resource(of_step.cluster):
        rows[name] = Point(resource=name, note=NOT_ANSWERED)
        if reason := without_effect(base, name, factor):
            rows[name] = replace(rows[name], changed=value_of(of_step, name, factor), note=reason)
            continue
        try:
            change = better(name, factor)
            changes.append(Changing(name, change, (change.apply(of_step).scenario,)))
        except WhatIfError as error:
            rows[name] = replace(rows[name], note=str(error))

    answered = simulated(base, changes, watch)
    spent_now = spent(base.timeline)
    for changing, answer, row in zip(changes, answered, saved_by(base, answered), strict=False):
        name = changing.name
        limit = _limited_by(spent_now, answer.outcomes[0].spent, name)
        no_size = unsized if unknown.any() and name not in RANKS else ""
        extra = extra_parts(of_step, name, factor)
        rows[name] = replace(
            row,
            resource=name,
            changed=value_of(of_step, name, factor),
            note="; ".join(filter(None, (limit, no_size))),
            warning=base.doubts.of(name),
            bound_assumes="" if row.bound_pct is None else BOUND_ASSUMES,
            extra_cost_usd=extra and extra.cost,
            extra_power_w=extra and extra.power,
        )

    valued = [
        replace(
            row,
            baseline=value_of(of_step, name),
            baseline_value=amount_of(of_step, name),
            changed_value=amount_of(of_step, name, factor) if row.changed else None,
            unit=unit_of(name),
        )
        for name, row in rows.items()
    ]
    return sorted(valued, key=lambda row: inf if row.utility_pct is None else -row.utility_pct)


def _per_unit(utility: float | None, extra: float | None) -> float | None:
    """Points of utility per added unit; None if nothing is added."""
    return None if utility is None or not extra else utility / extra


PER: dict[str, Callable[[Point], float | None]] = {
    "cost": lambda row: _per_unit(row.utility_pct, row.extra_cost_usd),
    "power": lambda row: _per_unit(row.utility_pct, row.extra_power_w),
}
"""What utility can be divided by: points per added dollar, and per added watt."""


def _limited_by(before: dict[str, float], after: dict[str, float], resource: str) -> str:
    """Return which tier limits calls now that did not before; "" if none does.

    Twice the NICs' bandwidth buys less if PCIe cannot feed them.
    """
    changed = resource.partition(".")[0]
    freed = before.get(changed, 0.0) - after.get(changed, 0.0)
    new = {tier: after[tier] for tier in after if tier != changed and not before.get(tier, 0.0)}
    if changed not in before or freed <= 0 or not new:
        return ""
    slowest = max(new, key=lambda tier: new[tier])
    name = _TIER_NAMES.get(slowest, slowest)
    return f"limited by {name}" if new[slowest] > _NEW_LIMIT * freed else ""
