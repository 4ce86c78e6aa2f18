"""Predictions of any tool, scored beside this project's and a roofline's on the same rows.

A table of predictions is CSV: ``row``, the line of the table of what was measured (its first row is
line 2), ``predicted``, in the unit of what was measured (s, or a ratio), and ``tool`` where a file
holds several tools' predictions; else the name of the file is the tool's. Rows that one of the
tools leaves out are left out for all: a tool is not better for answering only what is easy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.scenario.scenario import Scenario
from experiments.validation.errors import ErrorSummary, Prediction, error_summary
from experiments.validation.tables import Cells, read_rows
from simulator.support.errors import TraceError, shown
from simulator.workload import What

OURS, ROOFLINE = "twofold", "roofline"
"""What the scores call this project's predictions, and those of a roofline."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of a table by its line: its name, what was measured, and what is predicted by whom."""

    line: int
    name: str
    measured: float
    predicted: float | None
    roofline: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """A tool's errors on the rows that every tool answers; ``answered`` counts all of its own."""

    tool: str
    answered: int
    errors: ErrorSummary | None


def line_of(location: str) -> int:
    """Return the line of a row by its location in words: ``pairs.csv, line 7``."""
    return int(location.rpartition(" ")[2])


def read_predictions(path: Path | str) -> dict[str, dict[int, float]]:
    """Read a table of predictions: by tool, and by line of the table of what was measured.

    Raises
    ------
    TraceError
        If the file cannot be read as CSV, a number is none, or a tool predicts a row twice.
    """
    predictions: dict[str, dict[int, float]] = {}

    def read(row: Cells) -> None:
        tool, line = row.text("tool", row.source.stem), row.count("row")
        if tool in (OURS, ROOFLINE):
            raise TraceError(f"tool: {tool!r} is computed here: call yours otherwise")
        value = row.number("predicted")
        if not 0 < value < math.inf:
            raise TraceError(
                f"predicted: {shown(row.text('predicted'))} is not positive and finite"
            )
        if line in predictions.setdefault(tool, {}):
            raise TraceError(f"row: {tool} predicts line {line} twice")
        predictions[tool][line] = value

    read_rows(path, "prediction", read)
    return predictions


def scores(
    rows: Sequence[Measured], predictions: Mapping[str, Mapping[int, float]], source: Path | str
) -> tuple[Score, ...]:
    """Score tools on the rows that all answer: this project first, then a roofline, then others.

    Raises
    ------
    TraceError
        If a tool predicts a line on which nothing was measured.
    """
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
    """Return the step that a plain roofline predicts (s): the busiest thread, stream or link.

    As if all of them overlapped: no thread or stream takes less than its own ops, and no link less
    than its bytes over its bandwidth (Williams, Waterman and Patterson, Comm. ACM 52, 2009, with
    the network as one more roof). Latencies, and what waits for what, are left out.
    """
    timeline = scenario.run()
    workload = timeline.workload
    local = workload.what < What.COLLECTIVE
    lane = workload.rank.astype(np.int64) * (len(workload.lanes) + 1) + workload.lane
    busy = np.bincount(lane[local], weights=workload.duration[local], minlength=1)
    bandwidth = timeline.topology.bandwidth
    moved = timeline.link_bytes / np.where(bandwidth > 0, bandwidth, math.inf)
    return float(max(busy.max(initial=0.0), moved.max(initial=0.0)))
