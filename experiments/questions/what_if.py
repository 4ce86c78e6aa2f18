"""What-ifs beyond doubling: any change that can be written, each on its own, against the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np

from experiments.baseline import Baseline, Settings, Watch, Where, baseline
from experiments.confidence import touched
from experiments.evaluate.contended import EngineCheck, PointsAnswer, answered
from experiments.evaluate.contended import answer as points_answer
from experiments.evaluate.parallel import ExposedOutcome, exposed_outcome
from experiments.evaluate.prediction_error import prediction_half_width
from experiments.evaluate.prior_interval import (
    OpenBy,
    compared_half_width,
    greater,
    joined,
    of_generated,
    widths_of,
)
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.scenario.change import Change, Changed
from experiments.scenario.language import parse_change
from experiments.scenario.resources import utility_pct
from experiments.settings import SettingsOptions
from simulator.errors import DisconnectedError, WhatIfError


@dataclass(frozen=True, slots=True)
class WhatIfPoint:
    """One change: the step time with it (s), and what it saves of the step in percent.

    ``note`` says what it touched, ``warning`` what makes the gain doubtful
    (:mod:`experiments.confidence`), ``assumptions`` what is taken for granted, one sentence a line.
    ``interval_pct`` is half the width of the gain's 95 % interval, of ``prior_pct``,
    ``prediction_pct`` and the greater of ``generated_pct`` (what generated steps like it were off,
    :mod:`experiments.costing.step_prior`) and ``kernels_pct`` together: how figures are known
    (:mod:`experiments.evaluate.prior_interval`; None where the change makes other calls, or is
    drawn by lot), what such predictions were off on real runs
    (:mod:`experiments.evaluate.prediction_error`), and how the times of kernels are known that were
    generated, or are another accelerator's (:mod:`experiments.evaluate.kernel_interval`; None where
    they were recorded, and where ``prior_pct`` is).

    Of a change by lot (``1% of links down``) ``step_s``, and all that follows from it, is the
    median over ``draws`` draws of ``seed``; ``step_p10_s``, ``step_p90_s`` and ``step_worst_s`` are
    their 10th and 90th percentile (interpolated between neighbours) and the longest. A draw that
    cuts ranks off is counted in ``draws_cut_off`` and is in none of the times.
    """

    change: str
    step_s: float
    gain_pct: float
    exposed_communication_s: float
    note: str
    warning: str = ""
    assumptions: str = ""
    draws: int | None = None
    seed: int | None = None
    draws_cut_off: int | None = None
    step_p10_s: float | None = None
    step_p90_s: float | None = None
    step_worst_s: float | None = None
    prior_pct: float | None = None
    prediction_pct: float | None = None
    generated_pct: float | None = None
    kernels_pct: float | None = None
    interval_pct: float | None = None


class WhatIfAnswer(Head, PointsAnswer):
    """Changes of a step, each on its own, in the order they were given."""

    points: list[WhatIfPoint]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WhatIfReport(Report):
    """Changes in the order they were given."""

    schema: ClassVar[str] = "twofold/what-if/1"
    printed_by: ClassVar[str] = "experiments.output.tables.questions:print_what_ifs"
    paged_by: ClassVar[str] = "experiments.output.pages.questions:what_ifs"
    drawn_by: ClassVar[str] = "experiments.output.figures:what_ifs"

    base: Baseline
    points: tuple[WhatIfPoint, ...]
    check: EngineCheck | None = None

    def answer(self) -> "WhatIfAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **points_answer(self.base, self.check),
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
def what_ifs(  # noqa: PLR0913 - the options of the command
    trace: Path | str,
    cluster: Where,
    changes: Sequence[str] | str,
    *,
    draws: int | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> WhatIfReport:
    """Simulate a step with each of several changes, each written as text.

    :func:`experiments.scenario.language.parse_change` reads them.

    Parameters
    ----------
    trace, cluster
        As :func:`experiments.baseline.baseline` takes them.
    changes
        What to change, one answer each.
    draws
        How often parts are drawn of a change by lot (``1% of links down``); :data:`DRAWS` if it is
        not given. Draw ``k`` of a seed is the same wherever it is asked for.
    seed
        Of all draws whose change is written without one; 0 if it is not given.
    settings, watch
        As :func:`experiments.baseline.baseline` takes them.

    Returns
    -------
    WhatIfReport
        A point for each change, in order.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says; WhatIfError for a change that is none, or
        that names nothing in the step, and for draws where nothing is drawn, before any is
        simulated; DisconnectedError where ranks are cut off, of a change by lot in every draw.
    """
    if not changes:
        raise WhatIfError("say what to change, such as 'compute x0.5'")
    changes = (changes,) if isinstance(changes, str) else changes
    asked = [parse_change(text) for text in changes]
    _check_draws(asked, draws, seed)
    base = baseline(trace, cluster, settings, watch)
    made = [_made(base, change, draws or DRAWS, seed or 0) for change in asked]
    sure = {one.change.text: one for one in made if not one.change.is_drawn}
    own = {
        name: one.done[0].scenario.kernel_error - base.scenario.kernel_error
        for name, one in sure.items()
    }
    open_by = widths_of(base, {name: one.change for name, one in sure.items()}, own)
    scenarios = [(one.change.text, done.scenario) for one in made for done in one.done]
    answers, check = answered(base, scenarios, exposed_outcome, watch)
    found = iter(answers)
    points = [_point(base, one, list(islice(found, len(one.done)))) for one in made]
    opened = (_open(base, one, done, open_by) for one, done in zip(points, made, strict=True))
    return WhatIfReport(base, tuple(opened), check)


def _open(
    base: Baseline, point: WhatIfPoint, made: "_Made", open_by: Mapping[str, OpenBy]
) -> WhatIfPoint:
    """Say what is open of a gain; another network errs by itself."""
    by = open_by.get(point.change, OpenBy())
    if made.change.is_network and not made.change.is_drawn:
        by = by._replace(prior=compared_half_width(base, made.done[0].scenario, point.step_s))
    off, generated = prediction_half_width(point.gain_pct), of_generated(base, point.gain_pct)
    return replace(
        point,
        prior_pct=by.prior,
        prediction_pct=off,
        generated_pct=generated,
        kernels_pct=by.kernels,
        interval_pct=joined(by.prior, off, greater(generated, by.kernels)),
    )


DRAWS = 20
"""Draws of a change by lot, unless more or fewer are asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """What a change made of the step: one scenario, or one of each draw that cuts nobody off."""

    change: Change
    done: tuple[Changed, ...]
    seed: int = 0
    cut_off: int = 0


def _check_draws(asked: Sequence[Change], draws: int | None, seed: int | None) -> None:
    """Refuse numbers of draws that mean nothing.

    Raises
    ------
    WhatIfError
        Naming the option.
    """
    if draws is not None and draws < 1:
        raise WhatIfError(f"{draws} draws tell nothing; 1 or more do")
    if seed is not None and seed < 0:
        raise WhatIfError(f"seed {seed} is negative; 0 or more are seeds")
    given = [name for name, value in (("draws", draws), ("seed", seed)) if value is not None]
    if given and not any(change.is_drawn for change in asked):
        raise WhatIfError(
            f"{' and '.join(given)} mean nothing where nothing is drawn by lot, as in"
            " '1% of links down'"
        )


def _made(base: Baseline, change: Change, draws: int, seed: int) -> _Made:
    """Apply a change, or every draw of it."""
    if not change.is_drawn:
        return _Made(change, (change.apply(base.scenario),))
    done, cut_off = [], None
    for draw in range(draws):
        try:
            done.append(change.drawn(seed, draw).apply(base.scenario))
        except DisconnectedError as error:
            cut_off = cut_off or error
    if cut_off is not None and not done:
        raise cut_off
    return _Made(change, tuple(done), change.seed(seed), draws - len(done))


def _point(base: Baseline, made: _Made, found: Sequence[ExposedOutcome]) -> WhatIfPoint:
    steps = np.array([one.makespan for one in found])
    step, first = float(np.median(steps)), made.done[0]
    point = WhatIfPoint(
        change=made.change.text,
        step_s=step,
        gain_pct=utility_pct(base.timeline.makespan, step),
        exposed_communication_s=float(np.median([one.exposed_communication for one in found])),
        note=first.note,
        warning=base.doubts.of(*touched(base.scenario, first.scenario)),
        assumptions="\n".join(first.assumptions),
    )
    if not made.change.is_drawn:
        return point
    return replace(
        point,
        note=f"first draw: {first.note}" if len(found) > 1 else first.note,
        draws=len(found) + made.cut_off,
        seed=made.seed,
        draws_cut_off=made.cut_off,
        step_p10_s=float(np.quantile(steps, 0.1)),
        step_p90_s=float(np.quantile(steps, 0.9)),
        step_worst_s=float(steps.max()),
    )
