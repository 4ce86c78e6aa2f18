"""Sources whose steps lie on lines: they were extended by a rule, not measured one by one.

Steps that differ in the number of micro-batches alone grow by as much for each, but no clock tells
it to a hundredth of a per cent: pipelines fill, hosts and clocks waver. Where the steps of a source
do so all the same, somebody measured some and worked the others out. They say little of what steps
take, and nothing of how much they scatter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.validation.measured_steps import MeasuredStep, UnreadStep
from experiments.validation.step_pairs import facts

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


def linear_series(asked: Sequence[MeasuredStep | UnreadStep]) -> tuple[LinearSeries, ...]:
    """Return the sources whose steps were extended by a rule.

    Parameters
    ----------
    asked
        Rows of tables.

    Returns
    -------
    tuple of LinearSeries
        Of each source with series of three steps or more that differ in the global batch alone, all
        of which lie on a line to 0.01 % of the longest step; ``steps`` are all of the source's.
    """
    return tuple(_linear(asked))


def _linear(asked: Sequence[MeasuredStep | UnreadStep]) -> Iterator[LinearSeries]:
    measured = [one for one in asked if isinstance(one, MeasuredStep) and one.measured is not None]
    for source in dict.fromkeys(one.source for one in measured):
        own = [one for one in measured if one.source == source]
        series = [one for one in _series(own) if len(one) >= _FEWEST]
        if series and all(_on_a_line(one) for one in series):
            yield LinearSeries(source, len(own), len(series))


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
