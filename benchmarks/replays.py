"""What replays on other networks were off by: ``python -m benchmarks.replays``.

The points of ``traces/live/pairs.csv``, each recorded once and run again on another network, by
what the steps of their programs wait for (:mod:`experiments.priors.replays`). Points whose own
scatter is above 4 % are left out: they are no truth. Beside each class is how many points are
inside the intervals that were made without the program that they are of. The class ``step`` are the
steps on the networks of the recordings. ``--write`` puts the errors where answers find them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.measured_figure import PAIRS
from experiments.baseline import baseline
from experiments.priors.errors import Errors, student_95, write_errors
from experiments.priors.replays import CLASSES, REPLAY_ERRORS, STEP, class_of, replay_error
from experiments.validation.predicted_points import MeasuredPoint, measured_of, read_points

MOST_SCATTER = 0.04
"""Median absolute deviation, a share of the median, of points that are a truth."""


@dataclass(frozen=True, slots=True)
class Off:
    """A point: how far ``log(step / baseline)`` was off, as a share of the predicted one.

    Of a step on the network of its recording, how far its logarithm was.
    """

    program: str
    class_name: str
    error: float


def points() -> Iterator[Off]:
    """Predict every point of ``pairs.csv`` that is a truth."""
    for (trace, cluster), same in groupby(
        read_points(PAIRS), key=lambda point: (point.trace, point.cluster)
    ):
        rows = [point for point in same if _is_truth(point)]
        recorded = next((point for point in rows if point.change is None), None)
        if recorded is None:
            continue
        base = baseline(trace, cluster)
        step = measured_of(base, recorded)
        yield Off(trace.name, STEP, math.log(recorded.measured / step))
        for point in rows:
            if point.change is not None:
                predicted = math.log(measured_of(base, point) / step)
                measured = math.log(point.measured / recorded.measured)
                error = (measured - predicted) / abs(predicted)
                yield Off(trace.name, class_of(base.timeline), error)


def _is_truth(point: MeasuredPoint) -> bool:
    return point.scatter is not None and point.scatter <= MOST_SCATTER * point.measured


def errors(rows: list[Off]) -> dict[tuple[str, ...], Errors]:
    """Sum up errors by class; ``shared`` is their root mean square."""
    table = {}
    for name in (*CLASSES, STEP):
        own = np.array([row.error for row in rows if row.class_name == name])
        if not len(own):
            continue
        table[name,] = Errors(
            key=(name,),
            count=len(own),
            median_pct=round(100 * float(np.median(np.abs(own))), 1),
            p90_pct=round(100 * float(np.quantile(np.abs(own), 0.9)), 1),
            bias_pct=round(100 * float(np.median(own)), 1),
            shared=round(float(np.sqrt(np.mean(own**2))), 4),
            machines=tuple(sorted({row.program for row in rows if row.class_name == name})),
        )
    return table


def inside(rows: list[Off]) -> dict[str, int]:
    """Count the points of each class that are inside what the other programs say."""
    found = dict.fromkeys(CLASSES, 0)
    rows = [row for row in rows if row.class_name != STEP]
    for program in {row.program for row in rows}:
        table = errors([row for row in rows if row.program != program])
        for row in rows:
            if row.program == program:
                found[row.class_name] += abs(row.error) <= replay_error(row.class_name, table)
    return found


def main(
    *, write: Annotated[bool, typer.Option("--write", help=f"write {REPLAY_ERRORS.name}")] = False
) -> None:
    """Print the errors by class, and how many points intervals of other programs hold."""
    rows = list(points())
    table, held = errors(rows), inside(rows)
    changed = sum(row.class_name != STEP for row in rows)
    shown = Table("class", "programs", "points", "median %", "p90 %", "95 % interval", "inside")
    for (name,), row in table.items():
        off = student_95(row.count - 1) * row.shared if name == STEP else replay_error(name, table)
        cells = f"{row.median_pct:.1f}", f"{row.p90_pct:.1f}", f"{100 * off:.1f}"
        counted = f"{len(row.machines)}", f"{row.count}"
        shown.add_row(
            name, *counted, *cells, f"{held[name]} of {row.count}" if name in held else ""
        )
    Console().print(shown)
    Console().print(f"inside: {sum(held.values())} of {changed}, without the point's own program")
    if write:
        command = "python -m benchmarks.replays --write"
        write_errors(REPLAY_ERRORS, ("class",), table.values(), command)


if __name__ == "__main__":
    typer.run(main)
