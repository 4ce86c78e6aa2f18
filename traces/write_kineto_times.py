"""A simulated step in whole nanoseconds, where it lies in the file."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.timeline import Timeline
from simulator.workload import Workload

_BEFORE = 1_000_000
_BETWEEN = 10_000
"""From the base of the file to the first step, and from step to step (ns)."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Start and end of the ops of step ``number``, in nanoseconds since the base of the file."""

    number: int
    workload: Workload
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def span(self, op: int) -> tuple[int, int]:
        """Start and end of an op."""
        return int(self.start[op]), int(self.end[op])

    def rank_end(self, rank: int) -> int:
        """When the rank's last op ends."""
        return int(self.end[self.workload.rank == rank].max())


def in_sequence(timelines: Sequence[Timeline], first: int) -> list[StepTimes]:
    """Put simulated steps one behind the other, each after the last rank is done with the other."""
    steps: list[StepTimes] = []
    origin = _BEFORE
    for number, timeline in enumerate(timelines, first):
        start, end = (
            np.rint(column * 1e9).astype(np.int64) + origin
            for column in (timeline.start, timeline.end)
        )
        steps.append(StepTimes(number, timeline.workload, start, end))
        origin = int(end.max(initial=origin)) + _BETWEEN
    return steps
