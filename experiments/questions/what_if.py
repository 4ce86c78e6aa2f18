"""What-ifs beyond doubling: any change that can be written, each on its own, against the step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Unpack

from experiments.baseline import Baseline, BaselineAnswer, Settings, Watch, Where, baseline
from experiments.confidence import touched
from experiments.evaluate.prior_interval import widths_of
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.scenario.language import parse_change
from experiments.scenario.resources import utility_pct
from experiments.settings import SettingsOptions
from simulator.analysis.metrics import exposed_communication
from simulator.errors import WhatIfError


@dataclass(frozen=True, slots=True)
class WhatIfPoint:
    """One change: the step time with it (s), and what it saves of the step in percent.

    ``note`` says what it touched, ``warning`` what makes the gain doubtful
    (:mod:`experiments.confidence`), ``assumptions`` what is taken for granted, one sentence a line.
    ``prior_pct`` is half the width of what it leaves open of the gain how the cluster's figures are
    known (95 %; :mod:`experiments.evaluate.prior_interval`), None where the change makes other
    calls.
    """

    change: str
    step_s: float
    gain_pct: float
    exposed_communication_s: float
    note: str
    warning: str = ""
    assumptions: str = ""
    prior_pct: float | None = None


class WhatIfAnswer(Head, BaselineAnswer):
    """Changes of a step, each on its own, in the order they were given."""

    points: list[WhatIfPoint]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WhatIfReport(Report):
    """Changes in the order they were given."""

    schema: ClassVar[str] = "twofold/what-if/1"
    printed_by: ClassVar[str] = "experiments.output.tables.questions:print_what_ifs"
    drawn_by: ClassVar[str] = "experiments.output.figures:what_ifs"

    base: Baseline
    points: tuple[WhatIfPoint, ...]

    def answer(self) -> "WhatIfAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **self.base.answer(),
            "points": list(self.points),
        }

    def summary(self) -> str:
        """Say the answer in a few words."""
        told = [f"{one.change} {one.gain_pct:+.2f} %" for one in self.points[:3]]
        more = ["…"] if len(self.points) > len(told) else []
        return f"{self.base.title}: {', '.join([*told, *more])}"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return WhatIfPoint, self.points


@question("what_if")
def what_ifs(
    trace: Path | str,
    cluster: Where,
    changes: Sequence[str] | str,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> WhatIfReport:
    """Simulate a step with each of several changes, each written as text.

    :func:`experiments.scenario.language.parse_change` reads them.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says; WhatIfError for a change that is none, or
        that names nothing in the step, before any is simulated.
    """
    if not changes:
        raise WhatIfError("say what to change, such as 'compute x0.5'")
    changes = (changes,) if isinstance(changes, str) else changes
    asked = [parse_change(text) for text in changes]
    base = baseline(trace, cluster, settings, watch)
    open_by = widths_of(base, {change.text: change for change in asked})
    points = []
    for change, done in [(change, change.apply(base.scenario)) for change in asked]:
        timeline = done.scenario.run(watch(change.text))
        point = WhatIfPoint(
            change=change.text,
            step_s=timeline.makespan,
            gain_pct=utility_pct(base.timeline.makespan, timeline.makespan),
            exposed_communication_s=exposed_communication(timeline),
            note=done.note,
            warning=base.doubts.of(*touched(base.scenario, done.scenario)),
            assumptions="\n".join(done.assumptions),
            prior_pct=open_by.get(change.text),
        )
        points.append(point)
    return WhatIfReport(base, tuple(points))
