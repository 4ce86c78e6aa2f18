"""Pairs of measured rows that differ in one thing: what that thing is worth, and by prediction.

A planner asks what tensor parallelism or recomputation would change. So a pair's ratio of times is
held against the ratio of predictions; what both steps have in common cancels.

Sources whose steps lie on lines were extended by a rule, not measured one by one. Steps that differ
in the number of micro-batches alone grow by as much for each, but no clock tells it to a hundredth
of a per cent: pipelines fill, hosts and clocks waver. Such steps say little of what steps take, and
nothing of how much they scatter.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from experiments.validation.errors import Prediction, error_summary
from experiments.validation.measured_steps import MeasuredStep, UnreadStep


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Errors of the ratios of pairs that differ in ``what``, in % without sign."""

    what: str
    pairs: int
    median_pct: float
    p90_pct: float


def pair_errors(
    rows: Sequence[MeasuredStep | UnreadStep], predicted: Sequence[float | None]
) -> tuple[PairErrors, ...]:
    """Return the errors of pairs, by what they differ in.

    Parameters
    ----------
    rows
        Rows of tables.
    predicted
        Time of each by prediction (s); None where there is none.

    Returns
    -------
    tuple of PairErrors
        Of each thing of which there are pairs. Steps that differ in it alone are put in the order
        of its values, and neighbours compared; all on the same source, the accelerator's apart.
    """
    answered = [
        (facts(step), step.measured, time)
        for step, time in zip(rows, predicted, strict=True)
        if isinstance(step, MeasuredStep) and step.measured is not None and time is not None
    ]
    return ratio_errors(answered, _DIFFER)


Differ = Mapping[str, tuple[str, tuple[str, ...]]]
"""What rows may differ in: the column, and those that follow from it or cancel in the ratio."""
Known = tuple[Mapping[str, Hashable], float, float]
"""What says what ran where, by columns; its time as measured and by prediction (s)."""


def ratio_errors(answered: Sequence[Known], differ: Differ) -> tuple[PairErrors, ...]:
    """Return the errors of the ratios of neighbours in each thing that rows may differ in."""
    pairs = []
    for what, (value, follow) in differ.items():
        summary = error_summary(
            Prediction(what, 100 * error) for error in _errors(answered, value, follow)
        )
        if summary is not None:
            pairs.append(PairErrors(what, summary.rows, summary.median_pct, summary.p90_pct))
    return tuple(pairs)


_DIFFER: Differ = {
    "tensor parallel": ("tp", ("gpus", "sp")),
    "pipeline": ("pp", ("gpus",)),
    "data parallel": ("dp", ("gpus",)),
    "nodes": ("dp", ("gpus", "global_batch")),
    "micro-batch": ("micro_batch", ()),
    "recompute": ("recompute", ("sp",)),
    "sequence": ("sequence", ("global_batch", "micro_batch")),
    "accelerator": ("accelerator", ("cluster", "source", "micro_batch", "global_batch")),
}


def facts(step: MeasuredStep) -> dict[str, Hashable]:
    """Return all that says what ran where, by the names of columns."""
    p, run = step.parallelism, step.run
    return {
        "source": step.source,
        "accelerator": step.accelerator,
        "cluster": str(step.cluster),
        "model": step.model.model_dump_json(exclude={"name", "positions"}),
        "framework": step.framework,
        **{name: getattr(p, name) for name in ("tp", "pp", "dp", "cp", "ep", "zero", "virtual")},
        "sp": p.sequence_parallel,
        "gpus": p.ranks,
        **{
            name: getattr(run, name)
            for name in ("micro_batch", "global_batch", "sequence", "recompute", "precision")
        },
        "gradient": run.gradient,
        "scores": run.scores,
    }


def _errors(answered: Sequence[Known], value: str, follow: Sequence[str]) -> list[float]:
    groups: dict[Hashable, list[Known]] = {}
    for row in answered:
        same = tuple(row[0][name] for name in row[0] if name != value and name not in follow)
        groups.setdefault(same, []).append(row)
    errors = []
    for group in groups.values():
        ordered = sorted(group, key=lambda row: str(row[0].get(value, "")).rjust(_DIGITS))
        errors += [
            (after[2] / before[2]) / (after[1] / before[1]) - 1
            for before, after in pairwise(ordered)
            if before[0].get(value) != after[0].get(value)
        ]
    return errors


_DIGITS = 12
"""Places that numbers are padded to, so that they sort as numbers."""


_FEWEST = 3
"""Steps of a series: a line goes through any two."""
_EXACT = 1e-4
"""Part of the longest step that others are off the line at most."""


@dataclass(frozen=True, slots=True)
class LinearSeries:
    """A source of which all series of steps over the number of micro-batches lie on lines."""

    source: str
    steps: int
    series: int


def linear_series(rows: Sequence[MeasuredStep | UnreadStep]) -> tuple[LinearSeries, ...]:
    """Return the sources whose steps were extended by a rule.

    Parameters
    ----------
    rows
        Rows of tables.

    Returns
    -------
    tuple of LinearSeries
        Of each source with series of three steps or more that differ in the global batch alone, all
        of which lie on a line to 0.01 % of the longest step; ``steps`` are all of the source's.
    """
    return tuple(_linear(rows))


def _linear(rows: Sequence[MeasuredStep | UnreadStep]) -> Iterator[LinearSeries]:
    measured = [
        steps for steps in rows if isinstance(steps, MeasuredStep) and steps.measured is not None
    ]
    for source in dict.fromkeys(steps.source for steps in measured):
        of_source = [steps for steps in measured if steps.source == source]
        series = [steps for steps in _series(of_source) if len(steps) >= _FEWEST]
        if series and all(_on_a_line(steps) for steps in series):
            yield LinearSeries(source, len(of_source), len(series))


def _series(steps: Sequence[MeasuredStep]) -> list[dict[int, float]]:
    """Group steps that differ in the global batch alone: times (s) by it."""
    groups: dict[object, dict[int, float]] = {}
    for step in steps:
        same = tuple(value for name, value in facts(step).items() if name != "global_batch")
        groups.setdefault(same, {})[step.run.global_batch] = step.measured or 0.0
    return list(groups.values())


def _on_a_line(times: dict[int, float]) -> bool:
    batches, seconds = np.array(list(times)), np.array(list(times.values()))
    line = np.polyval(np.polyfit(batches, seconds, 1), batches)
    return bool(np.abs(seconds - line).max() <= _EXACT * seconds.max())
