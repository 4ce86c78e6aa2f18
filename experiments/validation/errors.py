"""Errors of predictions in a few figures, the same for every kind of table.

They are of all rows, of groups of rows, and of the ratios of pairs that differ in one thing. A
planner asks what tensor parallelism or another machine would change: so a pair's ratio of times is
compared with the ratio of predictions, and common errors cancel.

Other tools' predictions are scored beside this project's and a roofline's on the same rows. A table
of predictions is CSV: ``row``, the line of the table of measurements (its first row is line 2),
``predicted``, in the unit of the measurement (s, or a ratio), and ``tool`` if a file has several
tools' predictions; else the name of the file is the tool's. Rows that one of the tools leaves out
are left out for all: a tool is not better for answering only the easy ones.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from experiments.scenario.scenario import Scenario
from experiments.validation.tables import Cells, read_rows
from simulator.support.errors import TraceError, shown
from simulator.workload import What


class Prediction(NamedTuple):
    """One row of any table: its name, and the error of its prediction (% of the measurement).

    ``is_inside`` is whether the measurement is within the prediction's 95 % interval, which is
    ``interval_pct`` to each side; ``off_pct`` is its distance. ``is_beyond`` is whether a saving is
    more than the most that was predicted. None without an interval, or without a saving.
    """

    name: str
    error_pct: float
    is_inside: bool | None = None
    off_pct: float | None = None
    interval_pct: float | None = None
    is_beyond: bool | None = None


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors in %: median and 90th percentile are absolute, ``bias_pct`` is the signed median.

    Of the ``intervals`` rows that have a 95 % interval, ``inside`` were measured within it. Its
    median half-width is ``interval_pct``; 95 % of these rows were at most ``p95_off_pct`` off. Of
    ``savings`` with a bound, ``beyond`` were measured beyond it.
    ``worst`` are the rows with the largest errors, the largest first.
    """

    rows: int
    median_pct: float
    p90_pct: float
    bias_pct: float
    inside: int
    intervals: int
    interval_pct: float | None
    p95_off_pct: float | None
    savings: int
    beyond: int
    worst: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Absolute errors of the ratios of pairs that differ in ``what`` (%)."""

    what: str
    pairs: int
    median_pct: float
    p90_pct: float


Differ = Mapping[str, tuple[str, tuple[str, ...]]]
"""What rows may differ in: the column, and those that follow from it or cancel in the ratio."""
Known = tuple[Mapping[str, Hashable], float, float]
"""A configuration by columns; its measured and its predicted time (s)."""
Row = TypeVar("Row")
ALL = "all"
_DIGITS = 12
"""Number of characters that numbers are padded to, so that they sort as numbers."""
NEAR_PCT = 10.0
"""Errors of calls below this need no explanation: a benchmark's own repeatability is of this order.
"""
_WORST = 3
"""Number of rows that are listed as the worst."""


def error_summary(predictions: Iterable[Prediction]) -> ErrorSummary | None:
    """Summarise the errors of predictions; None without predictions.

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
    widths = [row.interval_pct for row in rows if row.interval_pct is not None]
    off = [abs(row.off_pct) for row in rows if row.off_pct is not None]
    beyond = [row.is_beyond for row in rows if row.is_beyond is not None]
    return ErrorSummary(
        rows=len(rows),
        median_pct=float(np.median(np.abs(signed))),
        p90_pct=float(np.quantile(np.abs(signed), 0.9)),
        bias_pct=float(np.median(signed)),
        inside=sum(inside),
        intervals=len(inside),
        interval_pct=float(np.median(widths)) if widths else None,
        p95_off_pct=float(np.quantile(off, 0.95)) if off else None,
        savings=len(beyond),
        beyond=sum(beyond),
        worst=tuple(sorted(rows, key=lambda row: -abs(row.error_pct))[:_WORST]),
    )


def median_of(column: str, rows: str) -> property:
    """Return a report's property: the median of absolute values in a column of its rows, or None.

    Rows without a value do not count.
    """

    def median(report: object) -> float | None:
        values = [getattr(row, column) for row in getattr(report, rows)]
        magnitudes = [abs(value) for value in values if value is not None]
        return float(np.median(magnitudes)) if magnitudes else None

    return property(median)


def error_pct(predicted: float | None, measured: float | None) -> float | None:
    """Return the error of a prediction in % of the measurement; None if one of them is unknown."""
    return None if predicted is None or measured is None else 100 * (predicted / measured - 1)


def groups(
    rows: Sequence[Row], by: Mapping[str, Callable[[Row], str]]
) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield all rows, then groups with an equal property: its name, its value, and the rows.

    Examples
    --------
    >>> list(groups(["b1", "a1"], {"letter": lambda row: row[0]}))
    [('all', '', ['b1', 'a1']), ('letter', 'a', ['a1']), ('letter', 'b', ['b1'])]
    """
    yield ALL, "", list(rows)
    for what, value_of in by.items():
        by_value: dict[str, list[Row]] = {}
        for row in rows:
            by_value.setdefault(value_of(row), []).append(row)
        yield from ((what, value, by_value[value]) for value in sorted(by_value))


def ratio_errors(answered: Sequence[Known], differ: Differ) -> tuple[PairErrors, ...]:
    """Return the errors of the ratios of pairs, by what they differ in.

    Rows that differ in one thing alone are sorted by its values, and neighbours compared.
    """
    pairs = []
    for what, (column, follow) in differ.items():
        summary = error_summary(
            Prediction(what, 100 * error) for error in _of_neighbours(answered, column, follow)
        )
        if summary is not None:
            pairs.append(PairErrors(what, summary.rows, summary.median_pct, summary.p90_pct))
    return tuple(pairs)


def _of_neighbours(
    answered: Sequence[Known], column: str, follow: Sequence[str]
) -> Iterator[float]:
    by_value: dict[Hashable, list[Known]] = {}
    for row in answered:
        same = tuple(row[0][name] for name in row[0] if name != column and name not in follow)
        by_value.setdefault(same, []).append(row)
    for group in by_value.values():
        group.sort(key=lambda row: str(row[0].get(column, "")).rjust(_DIGITS))
        for (facts, measured, predicted), (facts_b, measured_b, predicted_b) in pairwise(group):
            if facts.get(column) != facts_b.get(column):
                yield (predicted_b / predicted) / (measured_b / measured) - 1


OURS, ROOFLINE = "twofold", "roofline"
"""Names in the scores of this project's predictions, and those of a roofline."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of a table by its line: its name, its measurement, and the predictions of both."""

    line: int
    name: str
    measured: float
    predicted: float | None
    roofline: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """A tool's errors on the rows that every tool answers; ``answered`` counts all its rows."""

    tool: str
    answered: int
    errors: ErrorSummary | None


def line_of(location: str) -> int:
    """Return the line number in a row's location: ``pairs.csv, line 7``."""
    return int(location.rpartition(" ")[2])


def read_predictions(path: Path | str) -> dict[str, dict[int, float]]:
    """Read a table of predictions: by tool, and by line of the table of measurements.

    Raises TraceError if the file cannot be read as CSV, a number is none, or a tool predicts a row
    twice.
    """
    predictions: dict[str, dict[int, float]] = {}

    def read(row: Cells) -> None:
        tool, line = row.text("tool", row.source.stem), row.count("row")
        if tool in (OURS, ROOFLINE):
            raise TraceError(f"tool: {tool!r} is computed here: call yours otherwise")
        value = row.number("predicted")
        if not 0 < value < math.inf:
            raise TraceError(f"predicted {shown(row.text('predicted'))} is not positive and finite")
        if line in predictions.setdefault(tool, {}):
            raise TraceError(f"row: {tool} predicts line {line} twice")
        predictions[tool][line] = value

    read_rows(path, "prediction", read)
    return predictions


def scores(
    rows: Sequence[Measured], predictions: Mapping[str, Mapping[int, float]], source: Path | str
) -> tuple[Score, ...]:
    """Score tools on the rows that all answer: this project first, then a roofline, then others."""
    lines = {row.line for row in rows}
    for tool, values in predictions.items():
        if unknown := sorted(values.keys() - lines):
            raise TraceError(f"{source}: {tool} predicts line {unknown[0]}, which has no row")
    tools: dict[str, Mapping[int, float]] = {
        OURS: {row.line: row.predicted for row in rows if row.predicted is not None},
        ROOFLINE: {row.line: row.roofline for row in rows if row.roofline is not None},
        **predictions,
    }
    shared = [row for row in rows if all(row.line in values for values in tools.values())]
    return tuple(
        Score(
            tool,
            len(values),
            error_summary(
                Prediction(row.name, 100 * (values[row.line] / row.measured - 1)) for row in shared
            ),
        )
        for tool, values in tools.items()
    )


def roofline_step(scenario: Scenario) -> float:
    """Return the step of a plain roofline (s): the busiest thread, stream or link.

    It assumes perfect overlap: no thread or stream takes less than its own ops, and no link less
    than its bytes over its bandwidth (Williams, Waterman and Patterson, Comm. ACM 52, 2009, with
    the network as one more roof). Latencies and dependencies are left out.
    """
    timeline = scenario.run()
    workload = timeline.workload
    local = workload.what < What.COLLECTIVE
    lane = workload.rank.astype(np.int64) * (len(workload.lanes) + 1) + workload.lane
    busy = np.bincount(lane[local], weights=workload.duration[local], minlength=1)
    bandwidth = timeline.topology.bandwidth
    moved = timeline.link_bytes / np.where(bandwidth > 0, bandwidth, math.inf)
    return float(max(busy.max(initial=0.0), moved.max(initial=0.0)))
