"""Goodput under failures, and what better parts, checkpoints or restarts would save.

Failures are random and independent. A job writes checkpoints at intervals and stands still
meanwhile; after a failure it restarts from the last one and repeats the work since. This is J. T.
Daly's model (Future Generation Computer Systems 22, 2006, eq. 13), in closed form.
"""

import re
from dataclasses import dataclass, replace
from math import exp, expm1, inf, sqrt

from typing_extensions import TypedDict

from simulator.support.errors import WhatIfError, shown
from simulator.support.quantities import CENTURY

_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MONTH = 30 * _SECONDS["d"]
_PART = re.compile(r"(\w+)\s+([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-z]+)")
_NAMES = ("mtbf", "checkpoint", "restart", "every")
_EXAMPLE = "'mtbf 50000 h, checkpoint 60 s, restart 10 min'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a job fails, and what checkpoints and restarts cost; all in seconds.

    ``mtbf`` is the mean time between failures of the whole job, ``checkpoint`` the time that steps
    stand still for one, ``restart`` that from a failure until steps go on: detection, new nodes,
    reading the checkpoint. ``every`` is the work between two checkpoints; None: the interval that
    loses least. A time that is not positive is a ValueError; checkpoint and restart may be 0 (a
    checkpoint only with ``every``).
    """

    mtbf: float
    checkpoint: float
    restart: float
    every: float | None = None

    def __post_init__(self) -> None:
        if not self.mtbf > 0:
            raise ValueError("the time between failures must be more than 0")
        if not (self.checkpoint >= 0 and self.restart >= 0):
            raise ValueError("the times of checkpoint and restart must not be negative")
        if self.every is None and not self.checkpoint:
            raise ValueError("a checkpoint that takes no time has no best interval: say every")
        if self.every is not None and not self.every > 0:
            raise ValueError("the work between two checkpoints must be more than 0")


@dataclass(frozen=True, slots=True)
class Goodput:
    """Shares of a run's time; together they are 1. ``every`` is work between checkpoints (s)."""

    productive: float
    checkpoints: float
    redone: float
    restarts: float
    every: float


def goodput(failures: Failures) -> Goodput:
    """Return the long-run shares of a job's time.

    Between two checkpoints that are kept lie ``every`` seconds of work and one checkpoint. If
    failures have the rate ``1 / mtbf``, a segment of length ``t`` fails ``exp(t / mtbf) - 1`` times
    before it succeeds; restarts may fail, too.

    Examples
    --------
    >>> result = goodput(Failures(mtbf=3 * 3600, checkpoint=60, restart=600))
    >>> f"{result.productive:.3f}, every {result.every / 60:.1f} min"
    '0.850, every 18.3 min'
    """
    mtbf = failures.mtbf
    every = best_interval(failures) if failures.every is None else failures.every
    segment = every + failures.checkpoint
    if segment / mtbf > _HOPELESS or failures.restart / mtbf > _HOPELESS:
        return Goodput(0.0, 0.0, 1.0, 0.0, every)
    fails = expm1(segment / mtbf)
    whole = mtbf * exp(failures.restart / mtbf) * fails
    return Goodput(
        productive=every / whole,
        checkpoints=failures.checkpoint / whole,
        redone=(mtbf * fails - segment) / whole,
        restarts=mtbf * expm1(failures.restart / mtbf) * fails / whole,
        every=every,
    )


_HOPELESS = 300.0
"""Mean times between failures beyond which a segment practically never succeeds."""


def best_interval(failures: Failures) -> float:
    """Return the work between two checkpoints that leaves most of the time to steps (s).

    It is ``x`` times the time between failures, where ``(1 - x) exp(x) = exp(-checkpoint / mtbf)``:
    the derivative of the productive share is zero there. For short checkpoints that is Young's
    ``sqrt(2 checkpoint mtbf)`` (Communications of the ACM 17, 1974).
    """
    target = exp(-failures.checkpoint / failures.mtbf)
    low, high = 0.0, 1.0
    x = min(sqrt(2 * failures.checkpoint / failures.mtbf), 0.5)
    # Newton's method, kept between bounds: (1 - x) exp(x) falls from 1 to 0.
    for _ in range(_ROUNDS):
        value = (1 - x) * exp(x) - target
        low, high = (x, high) if value > 0 else (low, x)
        step = x + value / (x * exp(x)) if x else inf
        x = step if low < step < high else (low + high) / 2
    return x * failures.mtbf


_ROUNDS = 60
"""Iterations of Newton's method; bisection alone would leave 1e-18."""


@dataclass(frozen=True, slots=True)
class Better:
    """An improved time: before and after (s), and its saving in % of the run's time."""

    what: str
    now_s: float
    then_s: float
    productive_pct: float
    utility_pct: float


class FailuresAnswer(TypedDict):
    """Use of a job's time, in %, with the given failures.

    ``mtbf_s`` is the job's, ``every_s`` the work between two checkpoints. ``step_s`` is the step
    with its share of all losses, None if no step is ever kept, and ``steps_a_month`` the number of
    kept steps in 30 days.
    """

    mtbf_s: float
    every_s: float
    productive_pct: float
    checkpoints_pct: float
    redone_pct: float
    restarts_pct: float
    step_s: float | None
    steps_a_month: float
    better: list[Better]


@dataclass(frozen=True, slots=True)
class FailingJob:
    """A job of ``ranks`` accelerators with failures; ``step`` in s, ``factor`` of the question."""

    failures: Failures
    ranks: int
    step: float
    factor: float

    def answer(self) -> FailuresAnswer:
        """Return the JSON answer, with what ``factor`` times as good parts and times would save."""
        base, result = self.failures, goodput(self.failures)
        better = []
        for what, field, factor in (
            ("time between failures", "mtbf", self.factor),
            ("checkpoint", "checkpoint", 1 / self.factor),
            ("restart", "restart", 1 / self.factor),
        ):
            value = getattr(base, field)
            if not value:
                continue
            then = goodput(replace(base, **{field: value * factor})).productive
            of_part = self.ranks if field == "mtbf" else 1
            row = Better(
                what,
                now_s=value * of_part,
                then_s=value * factor * of_part,
                productive_pct=100 * then,
                utility_pct=100 * (1 - result.productive / then) if then else 0.0,
            )
            better.append(row)
        return {
            "mtbf_s": self.failures.mtbf,
            "every_s": result.every,
            "productive_pct": 100 * result.productive,
            "checkpoints_pct": 100 * result.checkpoints,
            "redone_pct": 100 * result.redone,
            "restarts_pct": 100 * result.restarts,
            "step_s": self.step / result.productive if result.productive else None,
            "steps_a_month": result.productive * _MONTH / self.step if self.step else 0.0,
            "better": sorted(better, key=lambda row: -row.utility_pct),
        }


def parse_failures(text: str, ranks: int) -> Failures:
    """Parse the failures of a job.

    Parameters
    ----------
    text
        ``mtbf`` of one accelerator with its share of all else that fails, ``checkpoint``,
        ``restart`` and perhaps ``every``, each with a time and its unit: ms, s, min, h, d.
    ranks
        Accelerators of the job.

    Raises
    ------
    WhatIfError
        If it cannot be read, or a time cannot be.

    Examples
    --------
    >>> parse_failures("mtbf 50000 h, checkpoint 60 s, restart 10 min", 1000).mtbf / 3600
    50.0
    """
    times: dict[str, float] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match[1] not in _NAMES or match[3] not in _SECONDS:
            raise WhatIfError(
                f"failures: {shown(part.strip())} is not one of {', '.join(_NAMES)} with a time in"
                f" {', '.join(_SECONDS)}; write {_EXAMPLE}"
            )
        if match[1] in times:
            raise WhatIfError(f"failures: {match[1]} is there twice")
        times[match[1]] = _seconds(match[2], match[3])
    missing = [name for name in _NAMES[:-1] if name not in times]
    if missing:
        raise WhatIfError(f"failures: {missing[0]} is missing; write {_EXAMPLE}")
    times["mtbf"] /= ranks
    try:
        failures = Failures(**times)
    except ValueError as error:
        raise WhatIfError(f"failures: {error}") from error
    if goodput(failures).productive < _LEAST_PRODUCTIVE:
        raise WhatIfError(
            f"failures: one every {failures.mtbf:.3g} s leaves no time to steps beside checkpoints"
            " and restarts: are the units right?"
        )
    return failures


_LEAST_PRODUCTIVE = 1e-3


def _seconds(number: str, unit: str) -> float:
    try:
        value = float(number) * _SECONDS[unit]
    except ValueError:
        raise WhatIfError(f"failures: {shown(number)} is not a number") from None
    if value > _LONGEST:
        raise WhatIfError(f"failures: {number} {unit} is longer than ten thousand years")
    if 0 < value < _SHORTEST:
        raise WhatIfError(f"failures: {number} {unit} is shorter than a millisecond")
    return value


_SHORTEST = 1e-3
_LONGEST = 100 * CENTURY
"""Upper limit, beyond any measured time between failures of an accelerator."""
