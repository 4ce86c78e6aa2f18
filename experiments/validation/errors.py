"""Errors of predictions in a few figures, the same for every kind of table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Prediction(NamedTuple):
    """One row of any table: its name, and the error of its prediction (% of what was measured).

    ``is_inside`` says whether what was measured is within the prediction's 95 % interval; None
    where it has no interval.
    """

    name: str
    error_pct: float
    is_inside: bool | None = None


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors in %: median and 90th percentile without sign, ``bias_pct`` the median with its sign.

    ``inside`` of the ``intervals`` rows that have a 95 % interval were measured within it;
    ``worst`` are the rows with the largest errors, the largest first.
    """

    rows: int
    median_pct: float
    p90_pct: float
    bias_pct: float
    inside: int
    intervals: int
    worst: tuple[Prediction, ...]


NEAR_PCT = 10.0
"""Calls within this need no explanation: a benchmark's own repeatability is of this order."""
_WORST = 3
"""Rows that are named as the worst."""


def error_summary(predictions: Iterable[Prediction]) -> ErrorSummary | None:
    """Sum up the errors of predictions; None of no prediction.

    Examples
    --------
    >>> summary = error_summary([Prediction("a", -2.0, True), Prediction("b", 4.0, False)])
    >>> summary.median_pct, summary.bias_pct, summary.inside, summary.worst[0].name
    (3.0, 1.0, 1, 'b')
    """
    rows = list(predictions)
    if not rows:
        return None
    signed = np.array([row.error_pct for row in rows])
    inside = [row.is_inside for row in rows if row.is_inside is not None]
    return ErrorSummary(
        rows=len(rows),
        median_pct=float(np.median(np.abs(signed))),
        p90_pct=float(np.quantile(np.abs(signed), 0.9)),
        bias_pct=float(np.median(signed)),
        inside=sum(inside),
        intervals=len(inside),
        worst=tuple(sorted(rows, key=lambda row: -abs(row.error_pct))[:_WORST]),
    )
