"""Replay a step, judge whether the replay is good enough for what-ifs, and explain its time."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np
from typing_extensions import TypedDict

from experiments.baseline import Baseline, Settings, Where, baseline
from experiments.costing.slowdown import SlowDown, measured, recorded_steps
from experiments.documents import steps as documents
from experiments.points.report import BaselineReport, without_effect
from experiments.report import Rows, or_none, question
from experiments.routing_notes import RoutingNotes, notes_of_step
from experiments.scenario.resources import check_resource, improve, utility_pct, value_of
from experiments.scenario.words import check_factor
from experiments.settings import SettingsOptions, Watch, as_recorded
from simulator.analysis.attribution import PathPart, Stretch, path_parts, rank_parts, stretches
from simulator.analysis.critical_path import (
    CriticalPath,
    critical_path,
    path_by_group,
    path_by_what,
)
from simulator.analysis.metrics import RankTime, mean_exposed, rank_times
from simulator.analysis.path_integral import (
    parts_by_cause,
    parts_by_module,
    parts_by_rank,
    path_integral,
)
from simulator.support.errors import CalibrationError, WhatIfError, WorkloadError
from simulator.timeline import Timeline, step_before_ended


@dataclass(frozen=True, slots=True)
class RankReplay:
    """One rank: measured and simulated span of its step (s), and simulated time by use.

    Measured times are None for a rank that was not recorded; the error is also None if what-ifs
    changed the step.
    """

    rank: int
    measured_start_s: float | None
    measured_end_s: float | None
    simulated_end_s: float
    error_pct: float | None
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_waiting_s: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReplayReport(BaselineReport):
    """A replay by rank; the critical path by use of time, and by group (s)."""

    schema: ClassVar[str] = "twofold/replay/1"
    listed: ClassVar = RankReplay, "ranks"
    document = documents.replay
    answered: ClassVar = (
        "exposed_communication_s ranks critical_path_s=path_by_what "
        "critical_path_by_group_s=path_by_group routing"
    )

    ranks: tuple[RankReplay, ...]
    exposed_communication_s: float
    path: CriticalPath
    path_by_what: dict[str, float]
    path_by_group: dict[str, float]
    routing: RoutingNotes

    def write_timeline(self, path: Path) -> None:
        """Write measured and simulated times side by side for ui.perfetto.dev."""
        from experiments.output.timeline_files import write  # brings pyarrow

        write(self, path)


@question("replay")
def replay(
    trace: Path | str,
    cluster: Where = None,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> ReplayReport:
    """Simulate a step as it was recorded."""
    base = baseline(trace, cluster, as_recorded(settings), watch)
    ends = base.loaded.measured_end
    rows = rank_times(base.timeline)
    path = critical_path(base.timeline)
    return ReplayReport(
        base=base,
        ranks=tuple(_rank(base, row) for row in rows if not ends or row.rank in ends),
        exposed_communication_s=mean_exposed(rows),
        path=path,
        path_by_what=path_by_what(base.timeline, path),
        path_by_group=path_by_group(base.timeline, path),
        routing=notes_of_step(base.scenario, base.timeline),
    )


def _rank(base: Baseline, row: RankTime) -> RankReplay:
    origin = step_before_ended(base.loaded.workload)
    begin = or_none(base.loaded.measured_begin.get(row.rank, math.nan) - origin)
    end = or_none(base.loaded.measured_end.get(row.rank, math.nan) - origin)
    return RankReplay(
        rank=row.rank,
        measured_start_s=begin,
        measured_end_s=end,
        simulated_end_s=row.end,
        error_pct=100 * (row.end - end) / end if end and not base.notes else None,
        compute_s=row.compute,
        communication_s=row.communication,
        exposed_communication_s=row.exposed_communication,
        exposed_waiting_s=row.exposed_waiting,
    )


class PathPartAnswer(TypedDict):
    """Time on the critical path by use, name and cause (s)."""

    what: str
    name: str
    time_s: float


class RankTimes(TypedDict):
    """Times of one rank by use (s); they sum to the step."""

    rank: int
    time_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A part of what a better resource saves: seconds, and percent of the step.

    ``by`` is ``cause``, ``module`` or ``rank``: the parts of each add up to the utility. ``what``,
    ``name`` and ``cause`` are those of :class:`simulator.analysis.path_integral.ChangePart`; for a
    module ``name`` is its name, "" if none is known, for a rank its number.
    """

    by: str
    what: str
    name: str
    cause: str
    saved_s: float
    utility_pct: float


class UtilityParts(TypedDict):
    """Breakdown of a utility: ``by_cause``, ``by_module`` and ``by_rank`` each add up to it.

    ``utility_pct`` is that of ``twofold utility``; ``pieces`` is the number of critical paths
    between the step as it is and the step with the better resource.
    """

    resource: str
    factor: float
    baseline: str
    changed: str
    step_s: float
    changed_step_s: float
    utility_pct: float
    engine: str
    pieces: int
    by_cause: list[SavedPart]
    by_module: list[SavedPart]
    by_rank: list[SavedPart]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExplainReport(BaselineReport):
    """Time of a step: each of ``critical_path``, ``mean_rank_s`` and ``path`` adds up to it.

    ``parts`` attribute its critical path to causes, the largest first; ``ranks`` are the times of
    each rank by use, as :func:`simulator.analysis.attribution.rank_parts` defines them, and
    ``mean`` is the mean over ranks. Each of the three adds up to the makespan. ``stretches`` are
    the critical path in order of time, equal segments merged. ``slow_down`` is how much longer
    kernels take beside calls according to the trace, whether it was asked for or not; if it cannot
    be determined, ``slow_down_note`` gives the reason. ``saved`` is a utility broken down, if that
    was asked for: then it is what the table, the CSV and the figure show.
    """

    schema: ClassVar[str] = "twofold/explain/1"
    document = documents.explain
    answered: ClassVar = (
        "critical_path mean_rank_s=mean ranks=rank_times measured_slow_down=slow_down "
        "slow_down_note path=stretches utility=saved"
    )

    parts: tuple[PathPart, ...]
    mean: dict[str, float]
    ranks: dict[int, dict[str, float]]
    path: CriticalPath
    stretches: tuple[Stretch, ...]
    slow_down: SlowDown | None = None
    slow_down_note: str = ""
    saved: UtilityParts | None = None

    def write_timeline(self, path: Path) -> None:
        """Write what a replay writes."""
        from experiments.output.timeline_files import write  # brings pyarrow

        write(self, path)

    @property
    def critical_path(self) -> list[PathPartAnswer]:
        """The parts, for JSON."""
        return [
            {"what": part.what, "name": part.name, "time_s": part.seconds} for part in self.parts
        ]

    @property
    def rank_times(self) -> list[RankTimes]:
        """The times of ranks, for JSON."""
        return [{"rank": rank, "time_s": parts} for rank, parts in self.ranks.items()]

    def table(self) -> Rows:
        """Return the CSV answer."""
        if self.saved is not None:
            saved = self.saved
            return SavedPart, [*saved["by_cause"], *saved["by_module"], *saved["by_rank"]]
        return Stretch, self.stretches


@question("explain")
def explain(
    trace: Path | str,
    cluster: Where = None,
    *,
    utility: str = "",
    factor: float = 2.0,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> ExplainReport:
    """Simulate a step and break down its time, or the utility of a resource.

    Parameters
    ----------
    trace, cluster
        As for every question.
    utility
        A resource, such as ``scale_out.bandwidth``: the saving by ``factor`` times of it is broken
        down by cause, module and rank; "" for none.
    factor
        The factor by which it is better: 2 is twice a bandwidth and half of a latency.
    settings, watch
        As for every question.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`; WhatIfError for an unknown resource, one that
        this step does not use, or an engine whose calls do not end together.
    """
    resource = check_resource(utility) if utility else ""
    check_factor(factor)
    base = baseline(trace, cluster, settings, watch)
    timeline = base.timeline
    slow_down, why_not = _slow_down(base)
    path = critical_path(timeline)
    ranks = {rank: rank_parts(timeline, rank) for rank in timeline.workload.ranks}
    names = dict.fromkeys(name for parts in ranks.values() for name in parts)
    means = {
        name: float(np.mean([parts.get(name, 0.0) for parts in ranks.values()])) for name in names
    }
    return ExplainReport(
        base=base,
        parts=tuple(path_parts(timeline, path)),
        mean={name: seconds for name, seconds in means.items() if seconds},
        ranks=ranks,
        path=path,
        stretches=tuple(stretches(timeline, path)),
        slow_down=slow_down,
        slow_down_note=why_not,
        saved=_utility_parts(base, resource, factor, watch) if resource else None,
    )


def _utility_parts(base: Baseline, resource: str, factor: float, watch: Watch) -> UtilityParts:
    """Simulate with the better resource, and attribute what that saves to causes."""
    if reason := without_effect(base, resource, factor):
        raise WhatIfError(f"{resource}: no utility to break down ({reason})")
    before, after = _with_and_without(base, resource, factor, watch)
    workload = before.workload  # may have more copies than the scenario's
    try:
        parts = path_integral(before, after)
    except WorkloadError as error:
        raise WhatIfError(f"{resource}: its utility cannot be broken down: {error}") from error

    def part(by: str, name: str, seconds: float, what: str = "", cause: str = "") -> SavedPart:
        share = utility_pct(before.makespan, before.makespan - seconds)
        return SavedPart(by, what, name, cause, seconds, share)

    return {
        "resource": resource,
        "factor": factor,
        "baseline": value_of(base.scenario, resource),
        "changed": value_of(base.scenario, resource, factor),
        "step_s": before.makespan,
        "changed_step_s": after.makespan,
        "utility_pct": utility_pct(before.makespan, after.makespan),
        "engine": after.engine,
        "pieces": parts.pieces,
        "by_cause": [
            part("cause", cause_part.name, cause_part.seconds, cause_part.what, cause_part.cause)
            for cause_part in parts_by_cause(before, after, parts)
        ],
        "by_module": [
            part("module", name, seconds)
            for name, seconds in parts_by_module(workload, parts).items()
        ],
        "by_rank": [
            part("rank", f"{rank}", seconds)
            for rank, seconds in parts_by_rank(workload, parts).items()
        ],
    }


def _with_and_without(
    base: Baseline, resource: str, factor: float, watch: Watch
) -> tuple[Timeline, Timeline]:
    """Simulate the same ranks on both networks; all ranks if the two need different copies."""
    before, after = base.timeline, improve(base.scenario, resource, factor).run(watch(resource))
    if np.array_equal(before.workload.rank, after.workload.rank):
        return before, after
    whole = base.scenario.whole()
    return whole.run(), improve(whole, resource, factor).run(watch(resource))


def _slow_down(base: Baseline) -> tuple[SlowDown | None, str]:
    """Fit the slow-down to the trace, or return why it cannot be determined."""
    if base.slow_down is not None and base.slow_down.compared:
        return base.slow_down, ""
    try:
        return measured(recorded_steps(base.loaded, base.read)), ""
    except CalibrationError as error:
        return None, str(error)
