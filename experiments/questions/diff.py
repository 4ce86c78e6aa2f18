"""Compare two steps: what makes one slower than the other, and which what-ifs explain it.

Measured and simulated, each class of ops adds something to the step of either
(:mod:`simulator.analysis.difference`); the differences add up to that of the steps. The measured
part needs no cluster. With one, the changes that would turn the first step into the second
(:mod:`experiments.evaluate.likely_changes`) are simulated, one by one and all together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np
from typing_extensions import TypedDict

from experiments.baseline import Baseline, Settings, Where, baseline
from experiments.costing.collective_costs import alone, by_trace
from experiments.documents import steps as documents
from experiments.evaluate.likely_changes import Likely, Recorded, call_costs, likely_changes
from experiments.evaluate.parallel import map_scenarios, outcome
from experiments.provenance import Head
from experiments.report import Report, question
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import Scenario
from experiments.settings import SettingsOptions, Watch
from simulator.analysis.attribution import Account, account
from simulator.analysis.difference import compared
from simulator.support.arrays import Floats
from simulator.support.errors import SettingsError, TraceError, TwofoldError
from simulator.timeline import RunTimes, measured
from traces.card.package import find_package, open_package
from traces.core.loaded import Coverage, CoverageRecord, Loaded

MEASURED, SIMULATED = "measured", "simulated"
_LEAST_CHANGE = 0.02
"""A change of A by less than this share of the difference is not listed on its own."""
_POOR_REPLAY = 0.05
"""A replay of B with a larger error makes B's cluster doubtful."""


@dataclass(frozen=True, slots=True)
class DiffPart:
    """What a class of ops adds to the steps of A and B (s), as measured or as simulated.

    ``what`` is a use of a rank's time, ``name`` the class: a name, or a pattern if names differ
    only in arguments or numbers. ``a_count`` and ``b_count`` are over all ranks, ``a_lasts_s`` and
    ``b_lasts_s`` the mean time of an op, None if there is none. ``a_adds_s`` and ``b_adds_s`` are
    means over ranks; each adds up to the step, ``difference_s`` to the difference.
    ``difference_pct`` is in percent of A's step.
    """

    run: str
    what: str
    name: str
    a_count: int
    b_count: int
    a_lasts_s: float | None
    b_lasts_s: float | None
    a_adds_s: float
    b_adds_s: float
    difference_s: float
    difference_pct: float


@dataclass(frozen=True, slots=True)
class ChangeOfA:
    """A what-if on A alone: the step with it (s), and by how much that is longer than A's.

    ``explains_pct`` is its share of the difference between A and B, None if they do not differ.
    """

    change: str
    step_s: float
    difference_s: float
    explains_pct: float | None
    note: str


class SideAnswer(TypedDict):
    """One of the two steps; times in s, null if nothing was measured or simulated."""

    trace: str
    step: str
    ranks: int
    job_ranks: int
    cluster: str | None
    measured_step_s: float | None
    simulated_step_s: float | None
    baseline_error_pct: float | None
    coverage: CoverageRecord


class UseDifference(TypedDict):
    """What a use of time adds to either step in all (s)."""

    run: str
    what: str
    a_adds_s: float
    b_adds_s: float
    difference_s: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Side:
    """One of the two steps: ``base`` is None without a cluster, ``measured`` if it was not."""

    loaded: Loaded
    base: Baseline | None
    measured: Account | None
    simulated: Account | None

    @property
    def step(self) -> float:
        """The step as measured, or else as simulated (s)."""
        step = self.measured or self.simulated
        return step.step if step is not None else 0.0

    @property
    def coverage(self) -> Coverage:
        """What of the trace could be used."""
        return self.loaded.coverage

    @property
    def record(self) -> SideAnswer:
        """The step, for JSON."""
        base = self.base
        error = base.error if base is not None else None
        return {
            "trace": self.loaded.trace,
            "step": self.coverage.step,
            "ranks": len(self.loaded.workload.ranks),
            "job_ranks": self.loaded.workload.job_ranks,
            "cluster": base.scenario.cluster.name if base is not None else None,
            "measured_step_s": None if self.measured is None else self.measured.step,
            "simulated_step_s": None if self.simulated is None else self.simulated.step,
            "baseline_error_pct": None if error is None else 100 * error,
            "coverage": self.coverage.record(),
        }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DiffReport(Report):
    """Two steps compared: ``uses`` and ``parts`` of a run add up to the difference of its steps.

    ``parts`` has the largest differences first. ``what_ifs`` change A, each on its own;
    ``together`` is A with all of them, null without a cluster, or if there are none.
    """

    schema: ClassVar[str] = "twofold/diff/1"
    listed: ClassVar = DiffPart, "parts"
    document = documents.diff
    answered: ClassVar = (
        "a=a.record b=b.record notes uses=differences parts what_ifs=changes together"
    )

    a: Side
    b: Side
    parts: tuple[DiffPart, ...]
    changes: tuple[ChangeOfA, ...] = ()
    together: ChangeOfA | None = None
    notes: tuple[str, ...] = ()

    def of_run(self, run: str) -> tuple[DiffPart, ...]:
        """Return the parts of a run: ``measured`` or ``simulated``."""
        return tuple(part for part in self.parts if part.run == run)

    @property
    def runs(self) -> tuple[str, ...]:
        """Runs that both steps have."""
        return tuple(dict.fromkeys(part.run for part in self.parts))

    def uses(self, run: str) -> list[UseDifference]:
        """Sum the parts of a run by use of time, the largest difference first."""
        differences: dict[str, UseDifference] = {}
        for part in self.of_run(run):
            row = differences.setdefault(
                part.what,
                {
                    "run": run,
                    "what": part.what,
                    "a_adds_s": 0.0,
                    "b_adds_s": 0.0,
                    "difference_s": 0.0,
                },
            )
            row["a_adds_s"] += part.a_adds_s
            row["b_adds_s"] += part.b_adds_s
            row["difference_s"] += part.difference_s
        return sorted(differences.values(), key=lambda row: -abs(row["difference_s"]))

    @property
    def differences(self) -> list[UseDifference]:
        """Differences of all runs by use of time."""
        return [row for run in self.runs for row in self.uses(run)]

    def headed(self) -> Head:
        """Return the head of the answer."""
        base = self.a.base
        return self.head() if base is None else self.head(base.recorded.cluster, base.settings)


@question("diff")
def diff(  # noqa: PLR0913 - two steps, each with its trace and cluster
    trace: Path | str,
    trace_b: Path | str | None = None,
    cluster: Where = None,
    *,
    cluster_b: Where = None,
    step_b: str | int = "",
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> DiffReport:
    """Compare two steps: what makes B slower or faster than A, and which what-ifs on A explain it.

    Parameters
    ----------
    trace, trace_b
        A and B; None compares two steps of A.
    cluster, cluster_b
        Where A and B were recorded; B's is by default that of its package's card, or A's. Without a
        cluster only what was measured is compared.
    step_b
        The step of B; "" is that of the settings, as for A.
    settings, watch
        As for every question; what-ifs of the settings are refused.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`; TraceError if nothing was measured and no
        cluster is named, SettingsError if A and B are the same step of one trace.
    """
    settings = settings or Settings()
    if settings.what_ifs:
        raise SettingsError("diff compares recorded steps: use what-if for changes")
    trace_or_b = trace if trace_b is None else trace_b
    if trace_b is None and f"{step_b}" in ("", settings.step):
        raise SettingsError("name a second trace, or another step of the first (--step-b, step_b=)")
    settings_b = replace(settings, step=f"{step_b}") if f"{step_b}" else settings
    where = cluster or _card(trace)
    a = _side(trace, where, settings, watch)
    b = _side(trace_or_b, cluster_b or _card(trace_or_b) or where, settings_b, watch)
    runs = [(MEASURED, a.measured, b.measured), (SIMULATED, a.simulated, b.simulated)]
    parts = [
        DiffPart(
            run=run,
            what=row.what,
            name=row.name,
            a_count=row.a.count,
            b_count=row.b.count,
            a_lasts_s=row.a.lasts_s,
            b_lasts_s=row.b.lasts_s,
            a_adds_s=row.a.adds_s,
            b_adds_s=row.b.adds_s,
            difference_s=row.difference,
            difference_pct=100 * row.difference / run_a.step if run_a.step else 0.0,
        )
        for run, run_a, run_b in runs
        if run_a is not None and run_b is not None
        for row in compared(run_a, run_b)
    ]
    if not parts:
        without = [side.loaded.trace for side in (a, b) if side.measured is None]
        raise TraceError(
            f"{' and '.join(dict.fromkeys(without))}: not every op has a measured time: name the "
            "cluster with --cluster, so that steps can be simulated"
        )
    changes, together = _changes(a, b, watch)
    return DiffReport(
        a=a, b=b, parts=tuple(parts), changes=changes, together=together, notes=tuple(_notes(a, b))
    )


def _card(trace: Path | str) -> Where:
    """Return the cluster of a package's card; None if there is none."""
    package = find_package(trace)
    if package is None:
        return None
    from experiments.cards import card_cluster

    return card_cluster(package.card, source=str(package.file))


def _side(trace: Path | str, where: Where, settings: Settings, watch: Watch) -> Side:
    if where is None:
        loaded = open_package(trace, settings.reading)(settings.step)
        return Side(loaded, None, _measured(loaded), None)
    base = baseline(trace, where, settings, watch)
    return Side(base.loaded, base, _measured(base.loaded), account(base.timeline))


def _measured(loaded: Loaded) -> Account | None:
    run = measured(loaded.workload)
    return None if run is None or not len(loaded.workload) else account(run)


def _changes(a: Side, b: Side, watch: Watch) -> tuple[tuple[ChangeOfA, ...], ChangeOfA | None]:
    """Simulate A with the changes that would turn it into B, one by one and all together."""
    if a.base is None or b.base is None:
        return (), None
    base, scenario = a.base, a.base.scenario
    runs = _same_runs(base, b.base)
    cluster = b.base.scenario.cluster
    guess = cluster == scenario.cluster and runs[1].run is not b.base.timeline
    likely = likely_changes(scenario, *runs, None if guess else cluster)
    done = [(change.text, *_applied(scenario, change)) for change in likely]
    possible = [(text, changed, note) for text, changed, note in done if changed is not None]
    if not possible:
        return (), None
    every = scenario
    for change in likely:
        every = _applied(every, change)[0] or every
    scenarios = [*((text, changed) for text, changed, _ in possible), ("together", every)]
    outcomes = map_scenarios(scenarios, outcome, workers=base.settings.workers or 1, watch=watch)
    steps = [change.makespan for change in outcomes]
    rows = [
        _change(text, step, note, a, b)
        for (text, _, note), step in zip(possible, steps, strict=False)
    ]
    shown = [row for row in rows if abs(row.difference_s) >= _LEAST_CHANGE * abs(b.step - a.step)]
    shown.sort(key=lambda row: -abs(row.difference_s))
    small = len(rows) - len(shown)
    note = f"{len(rows)} change{'s' * (len(rows) != 1)}"
    note += f", {small} of them too small to list" if small else ""
    whole = _change(" and ".join(text for text, _, _ in possible), steps[-1], note, a, b)
    return tuple(shown), whole


def _same_runs(a: Baseline, b: Baseline) -> tuple[Recorded, Recorded]:
    """Return both as measured, or else both as simulated."""
    run_a, run_b = (measured(base.loaded.workload) for base in (a, b))
    if run_a is not None and run_b is not None:
        return Recorded(run_a, _alone(a, run_a)), Recorded(run_b, _alone(b, run_b))
    return (
        Recorded(a.timeline, call_costs(a.scenario)),
        Recorded(b.timeline, call_costs(b.scenario)),
    )


def _alone(base: Baseline, run: RunTimes) -> Floats:
    """Return times of calls on an idle network (s); if unknown, from last arrival to end."""
    scenario = replace(base.recorded, workload=base.loaded.workload, slow_down=0.0)
    took = alone(by_trace(scenario))
    return np.where(np.isnan(took), run.call_end - run.call_start, took)


def _applied(scenario: Scenario, change: Likely) -> tuple[Scenario | None, str]:
    """Apply a change to a scenario; None if there is nothing to apply it to."""
    try:
        changed = parse_change(change.text).apply(scenario)
    except TwofoldError as error:
        return None, str(error)
    instead = "".join(f"; {text} explains it equally well" for text in change.instead)
    return changed.scenario, changed.note + instead


def _change(text: str, step: float, note: str, a: Side, b: Side) -> ChangeOfA:
    before = a.simulated.step if a.simulated is not None else 0.0
    difference = b.step - a.step
    share = 100 * (step - before) / difference if difference else None
    return ChangeOfA(text, step, step - before, share, note)


def _notes(a: Side, b: Side) -> Iterator[str]:
    ranks = [len(side.loaded.workload.ranks) for side in (a, b)]
    if ranks[0] != ranks[1]:
        yield (
            f"A has {ranks[0]:,} recorded ranks, B {ranks[1]:,}: what ops add to the step is a "
            "mean over the ranks of each"
        )
    for name, side in (("A", a), ("B", b)):
        recorded, job = len(side.loaded.workload.ranks), side.loaded.workload.job_ranks
        if recorded < job and len(side.loaded.workload.calls):
            yield (
                f"{name} has {recorded:,} of {job:,} ranks: as measured, waiting for the others "
                "counts as communication"
            )
    without = [name for name, side in (("A", a), ("B", b)) if side.measured is None]
    if without:
        have = "have" if len(without) > 1 else "has"
        yield (
            f"{' and '.join(without)} {have} no measured times: only simulated steps are compared"
        )
    if a.base is None:
        yield "no cluster is named: nothing is simulated, and no what-ifs are tried"
    elif b.base is not None and b.base.scenario.cluster == a.base.scenario.cluster:
        errors = [side.base.error or 0.0 for side in (a, b) if side.base is not None]
        if abs(errors[1]) > max(_POOR_REPLAY, 2 * abs(errors[0])):
            yield (
                f"replayed on A's cluster, B is off by {100 * errors[1]:+.1f} %: if it ran "
                "elsewhere, say where with --cluster-b"
            )
