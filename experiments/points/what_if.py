"""What-ifs beyond doubling: any change that can be written, each on its own, against the step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np

from experiments.baseline import Baseline, Settings, Where, baseline
from experiments.documents import points as documents
from experiments.evaluate.design_points import Changing, simulated
from experiments.evaluate.parallel import Outcome, exposed_outcome, interruption
from experiments.points.report import INTERVAL, Columns, Point, PointsReport, saved_by
from experiments.priors.doubts import touched
from experiments.report import question
from experiments.scenario.change import Change, Changed
from experiments.scenario.language import parse_change
from experiments.settings import SettingsOptions, Watch
from simulator.support.errors import DisconnectedError, TwofoldError, WhatIfError
from simulator.support.limits import limits

_COLUMNS = Columns(
    "WhatIfPoint",
    (
        *("change", "step_s", "gain_pct", "exposed_communication_s", "note", "warning"),
        *("assumptions", "draws", "seed", "draws_cut_off", "step_p10_s", "step_p90_s"),
        *("step_worst_s", *INTERVAL),
    ),
)


@dataclass(frozen=True, slots=True)
class RefusedChange:
    """A change that does not apply to this step or cluster; ``reason`` is what is missing."""

    change: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WhatIfReport(PointsReport):
    """Changes, each on its own, in the order they were given; ``refused`` could not be made."""

    refused: tuple[RefusedChange, ...] = ()
    schema: ClassVar[str] = "twofold/what-if/1"
    document = documents.what_ifs
    columns: ClassVar[Columns] = _COLUMNS
    answered: ClassVar = "points=rows refused"


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
        Number of draws of a random change (``1% of links down``), by default :data:`DRAWS`. Draw
        ``k`` of a seed is always the same.
    seed
        Seed of all changes written without one; by default 0.
    settings, watch
        As :func:`experiments.baseline.baseline` takes them.

    Returns
    -------
    WhatIfReport
        A point for each change that can be made, in order, and the reasons why others cannot.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`; WhatIfError for a text that is no change, and
        for draws if no change is random, before any is simulated. If none of the changes can be
        made, the error of the first: WhatIfError if it matches nothing in the step,
        DisconnectedError if it disconnects ranks, or does so in every draw.
    """
    if not changes:
        raise WhatIfError("say what to change, such as 'compute x0.5'")
    changes = (changes,) if isinstance(changes, str) else changes
    parsed = [parse_change(text) for text in changes]
    _check_draws(parsed, draws, seed)
    base = baseline(trace, cluster, settings, watch)
    applied, errors = [], {}
    for change in parsed:
        try:
            applied.append(_apply(base, change, draws or DRAWS, seed or 0))
        except TwofoldError as error:
            errors[change.text] = error
    if not applied:
        raise next(iter(errors.values()))
    changing = [
        Changing(case.change.text, case.change, tuple(draw.scenario for draw in case.draws))
        for case in applied
    ]
    answered = simulated(base, changing, watch, exposed_outcome)
    points = [
        _described(base, point, case, answer.outcomes)
        for point, case, answer in zip(saved_by(base, answered), applied, answered, strict=False)
    ]  # after Ctrl-C only the first ones
    refused = tuple(  # the cause does not repeat the change
        RefusedChange(text, str(error.__cause__ or error)) for text, error in errors.items()
    )
    interrupted = interruption(len(points), len(applied), "changes")
    return WhatIfReport(base, tuple(points), refused, interrupted=interrupted)


DRAWS = 20
"""Default number of draws of a random change."""

_WORK_PER_DRAW = 300_000
"""Work of a draw in steps of the limit ``work``: a draw of a small step takes 2 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class _Applied:
    """A change applied to the step: one scenario, or one per draw that disconnects no rank."""

    change: Change
    draws: tuple[Changed, ...]
    seed: int = 0
    cut_off: int = 0


def _check_draws(changes: Sequence[Change], draws: int | None, seed: int | None) -> None:
    """Refuse meaningless numbers of draws."""
    if draws is not None and draws < 1:
        raise WhatIfError(f"{draws} draws are too few; ask for 1 or more")
    if seed is not None and seed < 0:
        raise WhatIfError(f"seed {seed} is negative; write 0 or more")
    drawn = sum(change.is_drawn for change in changes) * (draws or DRAWS)
    limits().check("work", _WORK_PER_DRAW * drawn, "draws", f"{drawn} of them are simulated")
    options = [name for name, value in (("draws", draws), ("seed", seed)) if value is not None]
    if options and not any(change.is_drawn for change in changes):
        raise WhatIfError(
            f"{' and '.join(options)} have no effect unless a change is drawn at random, as in"
            " '1% of links down'"
        )


def _apply(base: Baseline, change: Change, draws: int, seed: int) -> _Applied:
    """Apply a change, or every draw of it."""
    if not change.is_drawn:
        return _Applied(change, (change.apply(base.scenario),))
    scenarios, cut_off = [], None
    for draw in range(draws):
        try:
            scenarios.append(change.drawn(seed, draw).apply(base.scenario))
        except DisconnectedError as error:
            cut_off = cut_off or error
    if cut_off is not None and not scenarios:
        raise cut_off
    return _Applied(change, tuple(scenarios), change.seed(seed), draws - len(scenarios))


HELPFUL = "faster than without this fault: messages take other paths, which collide less here"
"""Note of a fault that helps: the intact network has those paths, too, but does not use them."""
_SLIGHT_PCT = 0.1
"""Gains (%) up to this can be due to other values of a hash."""


def _described(base: Baseline, point: Point, case: _Applied, outcomes: Sequence[Outcome]) -> Point:
    """Add to a point the change, what it touched, and the spread of draws."""
    first = case.draws[0]
    exposed = [outcome.exposed_communication for outcome in outcomes]
    # Does it make parts of the network worse, and nothing better?
    faults = first.scenario.faults[len(base.scenario.faults) :]
    is_fault = bool(faults) and all(
        fault.factor is None or (fault.factor < 1) == (fault.value == "bandwidth")
        for fault in faults
    )
    helps = is_fault and point.gain_pct > _SLIGHT_PCT
    around = "; calls avoid it where that is faster" * bool(first.scenario.site.topology.outages)
    note = f"{first.note}{around}{f'; {HELPFUL}' if helps else ''}"
    point = replace(
        point,
        change=case.change.text,
        exposed_communication_s=float(np.median(exposed)),
        note=note,
        warning=base.doubts.of(*touched(base.scenario, first.scenario)),
        assumptions="\n".join(first.assumptions),
    )
    if not case.change.is_drawn:
        return point
    steps = np.array([outcome.makespan for outcome in outcomes])
    return replace(
        point,
        note=f"first draw: {note}" if len(outcomes) > 1 else note,
        draws=len(outcomes) + case.cut_off,
        seed=case.seed,
        draws_cut_off=case.cut_off,
        step_p10_s=float(np.quantile(steps, 0.1)),
        step_p90_s=float(np.quantile(steps, 0.9)),
        step_worst_s=float(steps.max()),
    )
