"""Cost of failures of a job, and what better parts, checkpoints or restarts would save."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from typing_extensions import TypedDict

from simulator.analysis.goodput import Failures, goodput
from simulator.support.errors import WhatIfError, shown
from simulator.support.quantities import CENTURY

_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MONTH = 30 * _SECONDS["d"]
_PART = re.compile(r"(\w+)\s+([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-z]+)")
_NAMES = ("mtbf", "checkpoint", "restart", "every")
_EXAMPLE = "'mtbf 50000 h, checkpoint 60 s, restart 10 min'"


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

    def _better(self) -> Iterator[Better]:
        """Yield savings by ``factor`` times as reliable parts, fast checkpoints and restarts."""
        base, now = self.failures, goodput(self.failures).productive
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
            yield Better(
                what,
                now_s=value * of_part,
                then_s=value * factor * of_part,
                productive_pct=100 * then,
                utility_pct=100 * (1 - now / then) if then else 0.0,
            )

    def answer(self) -> FailuresAnswer:
        """Return the JSON answer."""
        result = goodput(self.failures)
        return {
            "mtbf_s": self.failures.mtbf,
            "every_s": result.every,
            "productive_pct": 100 * result.productive,
            "checkpoints_pct": 100 * result.checkpoints,
            "redone_pct": 100 * result.redone,
            "restarts_pct": 100 * result.restarts,
            "step_s": self.step / result.productive if result.productive else None,
            "steps_a_month": result.productive * _MONTH / self.step if self.step else 0.0,
            "better": sorted(self._better(), key=lambda row: -row.utility_pct),
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
        return Failures(**times)
    except ValueError as error:
        raise WhatIfError(f"failures: {error}") from error


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
