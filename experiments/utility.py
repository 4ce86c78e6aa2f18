"""The main job: what twice of each resource would buy."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.baseline import Baseline, Settings, Watch, baseline
from experiments.what_if import RESOURCES, improve, not_used, value_of
from simulator.errors import WhatIfError
from topologies import Cluster


@dataclass(frozen=True, slots=True)
class Utility:
    """One resource: its value now and changed, the step time with it (s), and its utility.

    ``utility_pct`` is 100 (T_base - T_changed) / T_base, in percent of step time (CCL-Bench 1.0,
    arXiv 2605.06544). Both are None where the resource cannot matter; ``note`` says why.
    """

    resource: str
    baseline: str
    changed: str
    step_s: float | None
    utility_pct: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class UtilityReport:
    """Utilities of a job's resources, the greatest first."""

    base: Baseline
    factor: float
    utilities: tuple[Utility, ...]

    def record(self) -> dict[str, object]:
        """Return the JSON answer."""
        rows = [asdict(utility) for utility in self.utilities]
        return self.base.record() | {"factor": self.factor, "utilities": rows}


def utility(
    trace: Path | str,
    cluster: Cluster | Path | str,
    *,
    factor: float = 2.0,
    resources: Sequence[str] = (),
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> UtilityReport:
    """Ask what ``factor`` times of each resource would buy.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says, and for an unknown resource or a factor
        that is not positive.
    """
    unknown = [name for name in resources if name not in RESOURCES]
    if unknown:
        raise WhatIfError(f"{unknown[0]!r} is not a resource; choose from {', '.join(RESOURCES)}")
    if factor <= 0:
        raise WhatIfError(f"factor {factor:g} is not positive")
    base = baseline(trace, cluster, settings, watch)
    rows = [_one(base, name, factor, watch) for name in resources or RESOURCES]
    rows.sort(key=lambda row: -float("inf") if row.utility_pct is None else row.utility_pct)
    return UtilityReport(base, factor, tuple(reversed(rows)))


def utility_pct(base: float, changed: float) -> float:
    """Say it in percent of step time: 100 (base - changed) / base (arXiv 2605.06544)."""
    return 100 * (base - changed) / base if base else 0.0


def _one(base: Baseline, resource: str, factor: float, watch: Watch) -> Utility:
    now = value_of(base.scenario, resource)
    reason = not_used(base.timeline, base.scenario, resource)
    if reason:
        return Utility(resource, now, value_of(base.scenario, resource, factor), None, None, reason)
    try:
        scenario = improve(base.scenario, resource, factor)
    except WhatIfError as error:
        return Utility(resource, now, "", None, None, str(error))
    step = scenario.run(watch(resource)).makespan
    gain = utility_pct(base.timeline.makespan, step)
    return Utility(resource, now, value_of(base.scenario, resource, factor), step, gain)
