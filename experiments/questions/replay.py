"""Measured against simulated: whether the replay deserves to be asked what-ifs."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Unpack

from experiments.baseline import Baseline, BaselineAnswer, Settings, Where, baseline
from experiments.output.document import Document
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.routing_notes import RoutingAnswer, RoutingNotes, notes_of_step
from experiments.settings import SettingsOptions, Watch, as_recorded
from simulator.analysis.critical_path import Segment, critical_path, path_by_group, path_by_what
from simulator.analysis.metrics import RankTime, mean_exposed, rank_times
from simulator.timeline import step_before_ended


@dataclass(frozen=True, slots=True)
class RankReplay:
    """One rank: measured and simulated span of its step (s), and where simulated time went.

    What was measured is None for a rank that was not recorded, and so is the error, as well as
    where what-ifs changed the step.
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


class ReplayAnswer(Head, BaselineAnswer):
    """A replay, rank by rank; the critical path by what it was spent on, and by group (s)."""

    exposed_communication_s: float
    ranks: list[RankReplay]
    critical_path_s: dict[str, float]
    critical_path_by_group_s: dict[str, float]
    routing: RoutingAnswer


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReplayReport(Report):
    """A replay, rank by rank, and the time on its critical path by what it was spent on (s)."""

    schema: ClassVar[str] = "twofold/replay/1"

    base: Baseline
    ranks: tuple[RankReplay, ...]
    exposed_communication_s: float
    path: tuple[Segment, ...]
    path_by_what: dict[str, float]
    path_by_group: dict[str, float]
    routing: RoutingNotes

    def answer(self) -> "ReplayAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **self.base.answer(),
            "exposed_communication_s": self.exposed_communication_s,
            "ranks": list(self.ranks),
            "critical_path_s": self.path_by_what,
            "critical_path_by_group_s": self.path_by_group,
            "routing": self.routing.answer(),
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import steps  # numbers need none of it

        return steps.replay(self)

    def table(self) -> Rows:
        """Return the CSV answer."""
        return RankReplay, self.ranks


@question("replay")
def replay(
    trace: Path | str,
    cluster: Where = None,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> ReplayReport:
    """Simulate a step as it was recorded.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says.
    """
    base = baseline(trace, cluster, as_recorded(settings), watch)
    ends = base.loaded.measured_end
    rows = rank_times(base.timeline)
    path = critical_path(base.timeline)
    return ReplayReport(
        base=base,
        ranks=tuple(_rank(base, row) for row in rows if not ends or row.rank in ends),
        exposed_communication_s=mean_exposed(rows),
        path=tuple(path),
        path_by_what=path_by_what(base.timeline, path),
        path_by_group=path_by_group(base.timeline, path),
        routing=notes_of_step(base.scenario, base.timeline),
    )


def _rank(base: Baseline, row: RankTime) -> RankReplay:
    origin = step_before_ended(base.loaded.workload)
    begin = _or_none(base.loaded.measured_begin.get(row.rank, math.nan) - origin)
    end = _or_none(base.loaded.measured_end.get(row.rank, math.nan) - origin)
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


def _or_none(time: float) -> float | None:
    return None if math.isnan(time) else time
