"""What replays on other networks were off by: ``python -m benchmarks.replays``.

The points of ``traces/live/pairs.csv`` and ``traces/live/ranks``, each recorded once and run again
on another network, by what the steps of their programs wait for (:mod:`experiments.priors.errors`);
and those of ``traces/live/gpu``, run again with kernels, host code and copies of other lengths:
``no gain`` where the step should hardly change, ``no calls`` elsewhere. ``copies`` are jobs with
more or fewer layers, micro-batches or stages (``traces/live/sizes/repeats.csv``, and on a GPU).
Points whose own scatter is above 4 % are left out: they are no truth. The classes ``step`` and
``step without calls`` are the steps as they were recorded. ``--write`` puts the errors where
answers find them.

Intervals count the scatter of a recording and the errors of its network by themselves, so it is
the rest of an error that they add: the deviation ``t`` of which squares of errors over
``known**2 + (t * change)**2`` have a mean of 1 (Paule and Mandel, J. Res. Natl. Bur. Stand. 87,
1982). Beside each class is how many of its points are inside intervals made without the program
that they are of, half of such an interval in the median and the 95th percentile of the errors
(points of the step), and their ratio: 1 at most where intervals are no wider than twice what they
are to hold.
"""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.error_tables import write_errors
from benchmarks.measured_figure import PAIRS
from experiments.baseline import baseline
from experiments.evaluate.design_points import steps
from experiments.intervals.interval import intervals, waiting
from experiments.priors.errors import (
    CLASSES,
    COPIES,
    NO_CALLS,
    NO_GAIN,
    REPLAY_ERRORS,
    REST,
    STEPS,
    WHOLE,
    WITHIN_95,
    Errors,
    class_of,
    moved,
    own_error,
    replay_error,
    step_class,
)
from experiments.scenario.change import log_copied, utility_pct
from experiments.scenario.language import parse_change
from experiments.scenario.resources import better
from experiments.validation.predicted_points import MeasuredPoint, measured_of, read_points

MOST_SCATTER = 0.04
"""Median absolute deviation, a share of the median, of points that are a truth."""
_NO_GAIN = 0.02
"""A change of the step's logarithm that is none."""
_CLOSE = 1e-6
"""A deviation is found to within this share of the change."""


@dataclass(frozen=True, slots=True)
class Off:
    """A point: the logarithm of step over baseline as predicted (``change``), and measured less it.

    ``known`` is half of the 95 % interval that scatter and the network's prior give that logarithm.
    Of a step as it was recorded, the logarithm is that of measured over predicted, and ``known``
    that of predicted over recorded. ``above`` is how far the model's bound on the saving is above
    the predicted one (points). ``most`` is the most that waits make the logarithm wrong
    (:func:`experiments.intervals.interval.waiting`). ``copied`` is the logarithm of how many times
    as many recorded units a job of ``COPIES`` has.
    """

    program: str
    class_name: str
    error: float
    change: float = 0.0
    known: float = 0.0
    above: float = 0.0
    most: float = math.inf
    copied: float = 0.0

    @property
    def share(self) -> float:
        """The error as a share of the change; itself where a step changes hardly, or not at all."""
        if self.class_name in (*STEPS, NO_GAIN):
            return self.error + (self.known if self.class_name in STEPS else 0.0)
        return self.error / (self.copied or self.moved)

    @property
    def moved(self) -> float:
        """What the change moves, as a share of the longer step."""
        return abs(moved(math.exp(self.change)))

    def half_width(self, off: float, least: float = 0.0) -> float:
        """Half of the 95 % interval: ``off`` of the change, and ``least``, beside ``known``."""
        return math.hypot(self.known, min(off * self.moved, self.most), least)

    def points(self, logarithm: float) -> float:
        """Return what a difference of the logarithm is in percentage points of the baseline."""
        return 100 * math.exp(self.change) * logarithm


def points() -> list[Off]:
    """Predict every point on another network that is a truth."""
    tables = PAIRS, PAIRS.parent / "ranks" / PAIRS.name
    return [row for table in tables for row in _points(table)]


def on_gpu() -> list[Off]:
    """Predict the points on a GPU that are a truth; of other cards, sizes and names the step alone.

    What a loader that nobody waits for hides is left out: its speed is in no trace. Other sizes of
    a model, drawn lengths and other cards are the same program.
    """
    folder, rows = PAIRS.parent / "gpu", []
    for table in ("", "named", "cards", "sizes"):
        for row in _points(folder / table / PAIRS.name):
            name = row.program.removesuffix(".json.gz").removesuffix("-drawn")
            program = "sizes" if table == "sizes" else re.sub("^h[12]00-", "", name)
            is_known = program != "loads-ahead" and not table
            if is_known or row.class_name in (*STEPS, COPIES):
                is_same = row.class_name not in STEPS and abs(row.change) < _NO_GAIN
                class_name = NO_GAIN if is_same else row.class_name
                rows.append(replace(row, program=program, class_name=class_name))
    return rows


def _points(pairs: Path) -> Iterator[Off]:
    for (trace, cluster), same in groupby(
        read_points(pairs), key=lambda point: (point.trace, point.cluster)
    ):
        rows = [point for point in same if _is_truth(point)]
        recorded = next((point for point in rows if point.change is None), None)
        if recorded is None:
            continue
        base = baseline(trace, cluster)
        whole = base.timeline.makespan
        step, class_name = measured_of(base, recorded), class_of(base.timeline)
        yield Off(
            trace.name,
            step_class(class_name),
            error=math.log(recorded.measured / step),
            known=math.log1p(base.error or 0.0),
        )
        changed = [(point, point.change) for point in rows if point.change is not None]
        answered = steps(base, [(point.what_if, change) for point, change in changed])
        of_points = enumerate(intervals(base, answered))
        most = waiting(base, {str(number): answer for number, answer in enumerate(answered)})
        for (point, change), answer, (number, interval) in zip(
            changed, answered, of_points, strict=True
        ):
            predicted = measured_of(base, point, answer) / step
            known = math.hypot(interval.scatter_pct or 0.0, interval.prior_pct or 0.0) / 100
            copied = log_copied(change)
            yield Off(
                trace.name,
                COPIES if copied else class_name,
                copied=copied,
                most=most.get(str(number), math.inf),
                error=math.log(point.measured / recorded.measured / predicted),
                change=math.log(predicted),
                known=known / predicted,
                above=(interval.model_bound_pct or 0.0) - utility_pct(whole, answer.step),
            )


def other_sizes() -> Iterator[Off]:
    """Predict jobs over gloo with more layers or micro-batches, or on other stages.

    What is measured are latencies. With another bandwidth, too, half of what that change is off by
    is known.
    """
    with PAIRS.open(encoding="utf-8") as file:
        pairs = list(csv.DictReader(file))
    recorded = {
        row["trace"]: float(row["measured_step_s"]) for row in pairs if row["factor"] == "1"
    }
    with (PAIRS.parent / "sizes" / "repeats.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            trace, size = row["trace"], parse_change(row["what_if"])
            base = baseline(PAIRS.parent / trace, PAIRS.parent / f"{row['cluster']}.yaml")
            links = better("scale_out.bandwidth", float(row["factor"]))
            alone, both = (
                change.apply(base.scenario).scenario.run().latency
                for change in (size, size | links)
            )
            step = base.timeline.latency
            off = replay_error(class_of(base.timeline))
            yield Off(
                trace,
                COPIES,
                error=math.log(float(row["measured_step_s"]) / recorded[trace] / (both / step)),
                change=math.log(both / step),
                known=off * abs(moved(both / alone)),
                copied=log_copied(size),
            )


def _is_truth(point: MeasuredPoint) -> bool:
    return point.scatter is not None and point.scatter <= MOST_SCATTER * point.measured


def errors(rows: Sequence[Off]) -> dict[tuple[str, ...], Errors]:
    """Sum up errors by class, as shares of the change; ``shared`` is their root mean square.

    The rest of a class is the deviation beyond what is known of its points.
    """
    table = {}
    for name in (*CLASSES, *STEPS, NO_GAIN, NO_CALLS, COPIES):
        of_class = [row for row in rows if row.class_name == name]
        if name == COPIES:  # of links, too, their own errors are known, and only checked
            of_class = [row for row in of_class if not row.known]
        if not of_class:
            continue
        shares = np.array([row.share for row in of_class])
        machines = tuple(sorted({row.program for row in of_class}))
        whole = Errors(
            key=(name, WHOLE),
            count=len(of_class),
            median_pct=round(100 * float(np.median(np.abs(shares))), 1),
            p90_pct=round(100 * float(np.quantile(np.abs(shares), 0.9)), 1),
            bias_pct=round(100 * float(np.median(shares)), 1),
            shared=round(float(np.sqrt(np.mean(shares**2))), 4),
            machines=machines,
        )
        if name == NO_CALLS:
            least = WITHIN_95 * table[NO_GAIN, WHOLE].shared
            of_class = [replace(row, known=math.hypot(row.known, least)) for row in of_class]
            whole = replace(whole, shared=round(beyond_known(of_class), 4))
        table[name, WHOLE] = whole
        if name in CLASSES:
            rest = round(beyond_known(of_class), 4)
            table[name, REST] = replace(whole, key=(name, REST), shared=rest)
    return table


def beyond_known(rows: Sequence[Off]) -> float:
    """Return the deviation, a share of the change, that errors have beyond what is known.

    Found by halving between none and the root mean square of errors; 0 where what is known is
    enough.

    Examples
    --------
    >>> round(beyond_known([Off("a", "shards", 0.3, math.log(2), 0.2 * 1.96)]), 6)
    0.447214
    >>> beyond_known([Off("a", "shards", 0.1, 1.0, 0.2 * 1.96)])
    0.0
    """
    columns = [(row.error, row.moved, row.known, row.most) for row in rows]
    error, change, known, most = np.array(columns).T

    def is_enough(deviation: float) -> bool:
        of_points = (known / WITHIN_95) ** 2 + np.minimum(deviation * change, most / WITHIN_95) ** 2
        return bool((error**2 <= of_points).all() or np.mean(error**2 / of_points) <= 1)

    low, high = 0.0, float(np.max(np.abs(error / change)))
    if is_enough(low):
        return low
    while high - low > _CLOSE:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Held:
    """What a point is off by, measured less predicted, and half its interval (points of the step).

    ``saves`` is whether the measured step is shorter than the recorded one.
    """

    off: float
    half_width: float
    above: float = 0.0
    saves: bool = False

    @property
    def is_inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return abs(self.off) <= self.half_width

    @property
    def is_beyond(self) -> bool:
        """Whether more was saved than the bound allows."""
        return self.saves and -self.off > self.half_width + self.above


def held_out(rows: Sequence[Off]) -> dict[str, list[Held]]:
    """Return what each class's points are off by, and half their intervals.

    Each interval is made without the program that its point is of. Points of ``no gain`` are among
    those of ``no calls``, as they are for an answer.
    """
    held: dict[str, list[Held]] = {}
    for program in sorted({row.program for row in rows}):
        table = errors([row for row in rows if row.program != program])
        for row in rows:
            if row.program == program:
                class_name = NO_CALLS if row.class_name == NO_GAIN else row.class_name
                if class_name in STEPS:
                    half_width = abs(row.known) + own_error(class_name, table)
                elif class_name == NO_CALLS:
                    off = replay_error(NO_CALLS, table=table)
                    half_width = row.half_width(off, own_error(NO_GAIN, table))
                elif class_name == COPIES:
                    half_width = row.half_width(0.0, own_error(COPIES, table) * row.copied)
                else:
                    half_width = row.half_width(replay_error(class_name, REST, table))
                saves = class_name not in STEPS and row.change + row.error < 0
                off = row.points(math.expm1(row.error))
                held.setdefault(class_name, []).append(
                    Held(off, row.points(half_width), row.above, saves)
                )
    return held


def inside(held: Sequence[Held]) -> int:
    """Count the points whose error is within half their interval."""
    return sum(point.is_inside for point in held)


def p95(held: Sequence[Held]) -> float:
    """Return the 95th percentile of what points are off by."""
    return float(np.quantile([abs(point.off) for point in held], 0.95))


def relative_width(held: Sequence[Held]) -> float:
    """Return half an interval, in the median, over the 95th percentile of the errors."""
    return float(np.median([point.half_width for point in held])) / p95(held)


def main(
    *, write: Annotated[bool, typer.Option("--write", help=f"write {REPLAY_ERRORS.name}")] = False
) -> None:
    """Print the errors by class, and how many points intervals of other programs hold."""
    rows = [*points(), *on_gpu(), *other_sizes()]
    table, widths = errors(rows), held_out(rows)
    columns = "class", "programs", "points", "median", "at 95 %", "inside", "±", "p95", "± / p95"
    shown = Table(*columns)
    for name, of_class in widths.items():
        part = REST if name in CLASSES else WHOLE
        row = table[name, part]
        is_own = name in (*STEPS, COPIES)
        off = own_error(name, table) if is_own else replay_error(name, part, table)
        half_width = float(np.median([point.half_width for point in of_class]))
        counted = f"{len(row.machines)}", f"{len(of_class)}", f"{row.median_pct:.1f}"
        held = f"{100 * off:.1f}", f"{inside(of_class)}", f"{half_width:.1f}"
        ratio = f"{p95(of_class):.1f}", f"{relative_width(of_class):.2f}"
        shown.add_row(name, *counted, *held, *ratio)
    Console().print(shown)
    every = [point for of_class in widths.values() for point in of_class]
    Console().print(
        f"inside: {inside(every)} of {len(every)}, without the point's own program; "
        f"width / p95 of all {relative_width(every):.2f}; "
        f"{sum(point.is_beyond for point in every)} of {sum(point.saves for point in every)} "
        "savings beyond their bound"
    )
    if write:
        command = "python -m benchmarks.replays --write"
        write_errors(REPLAY_ERRORS, ("class", "part"), table.values(), command)


if __name__ == "__main__":
    typer.run(main)
