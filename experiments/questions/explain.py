"""Where a step goes: the critical path by its causes, and what each rank did with its time."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np
from typing_extensions import TypedDict

from experiments.baseline import Baseline, BaselineAnswer, Settings, Watch, Where, baseline
from experiments.costing.slowdown import SlowDown, measured, recorded_steps
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.settings import SettingsOptions
from simulator.analysis.attribution import Part, Stretch, path_parts, rank_parts, stretches
from simulator.analysis.critical_path import Segment, critical_path
from simulator.errors import CalibrationError
from simulator.quantities import format_quantity


class PathPart(TypedDict):
    """Time on the critical path spent on one thing (s)."""

    what: str
    name: str
    time_s: float


class RankTimes(TypedDict):
    """What one rank did with the step (s)."""

    rank: int
    time_s: dict[str, float]


class ExplainAnswer(Head, BaselineAnswer):
    """Where a step goes: each of ``critical_path``, ``mean_rank_s`` and ``path`` adds up to it."""

    critical_path: list[PathPart]
    mean_rank_s: dict[str, float]
    ranks: list[RankTimes]
    measured_slow_down: SlowDown | None
    slow_down_note: str
    path: list[Stretch]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExplainReport(Report):
    """A step explained.

    ``parts`` put its critical path down to causes, the largest first; ``ranks`` says what each
    rank did, as :func:`simulator.analysis.attribution.rank_parts` defines it, and ``mean`` is the
    mean over ranks. Each of the three adds up to the makespan. ``stretches`` are the critical path
    in order of time, like segments merged. ``slow_down`` is how much longer kernels took beside
    calls as the trace shows it, whether it was asked for or not; else ``slow_down_note`` says why
    it cannot be told.
    """

    schema: ClassVar[str] = "twofold/explain/1"
    printed_by: ClassVar[str] = "experiments.output.tables.steps:print_explain"

    base: Baseline
    parts: tuple[Part, ...]
    mean: dict[str, float]
    ranks: dict[int, dict[str, float]]
    path: tuple[Segment, ...]
    stretches: tuple[Stretch, ...]
    slow_down: SlowDown | None = None
    slow_down_note: str = ""

    def answer(self) -> "ExplainAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **self.base.answer(),
            "critical_path": [
                {"what": part.what, "name": part.name, "time_s": part.seconds}
                for part in self.parts
            ],
            "mean_rank_s": self.mean,
            "ranks": [{"rank": rank, "time_s": parts} for rank, parts in self.ranks.items()],
            "measured_slow_down": self.slow_down,
            "slow_down_note": self.slow_down_note,
            "path": list(self.stretches),
        }

    def summary(self) -> str:
        """Say the answer in a few words."""
        step = self.base.timeline.makespan
        spent: dict[str, float] = {}
        for part in self.parts:
            spent[part.what] = spent.get(part.what, 0.0) + part.seconds
        most = sorted(spent, key=lambda what: -spent[what])[:3]
        told = [f"{what} {100 * spent[what] / (step or 1.0):.1f} %" for what in most]
        return f"{self.base.title}: step {format_quantity(step, 's')}, {', '.join(told)}"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return Stretch, self.stretches


@question("explain")
def explain(
    trace: Path | str,
    cluster: Where = None,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> ExplainReport:
    """Simulate a step and say what it is spent on.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says.
    """
    base = baseline(trace, cluster, settings, watch)
    timeline = base.timeline
    found, why_not = _slow_down(base)
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
        path=tuple(path),
        stretches=tuple(stretches(timeline, path)),
        slow_down=found,
        slow_down_note=why_not,
    )


def _slow_down(base: Baseline) -> tuple[SlowDown | None, str]:
    """Read the slow-down off the trace, or say why it cannot be told."""
    if base.slow_down is not None and base.slow_down.compared:
        return base.slow_down, ""
    try:
        return measured(recorded_steps(base.loaded, base.read)), ""
    except CalibrationError as error:
        return None, str(error)
