"""Step times of jobs that share a network, once they are steady.

The first steps of each job are left out. If the rest repeats, one cycle tells everything: equal
phases of all jobs against the slowest one, and equal steps, twice in a row. If phases drift and
nothing repeats, steps are averaged over a window, and the drift of the phases says how many of
their possible positions the window has covered.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import Protocol

import numpy as np

from simulator.support.arrays import Floats

_LONGEST_CYCLE = 12
"""Longest cycle that is looked for, in steps of the slowest job."""
_SAME = 1e-8
"""Relative tolerance, in steps, of equal phases and steps ..."""
_SAME_TIME = 1e-11
"""... and absolute tolerance (s): the network rounds ends to a picosecond."""


_HELD = 0.01
"""Phases that drift by at most this share of a step are locked."""


class Steps(Protocol):
    """Begins of a job's steps (s), the current one included, and their lengths (s)."""

    @property
    def begin(self) -> list[float]:
        """Begin of each step (s)."""

    @property
    def length(self) -> list[float]:
        """Length of each completed step (s)."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which steps are averaged.

    Parameters
    ----------
    warm_up
        Steps of each job that are left out.
    least, most
        Least number of steps of the slowest job that are averaged, and most if the mean still
        moves.
    close
        A mean has settled if those of the window's halves differ by at most this fraction.
    """

    warm_up: int = 2
    least: int = 10
    most: int = 100
    close: float = 0.005

    def __post_init__(self) -> None:
        if self.warm_up < 0 or not 2 <= self.least <= self.most or not self.close > 0:
            raise ValueError(f"{self} is not a window")


@dataclass(frozen=True, slots=True)
class SteadyStep:
    """The averaged steps of a job.

    Attributes
    ----------
    first, count
        Index of the first of them, and their number.
    mean
        Mean length (s); of a cycle exactly its time over the number of its steps.
    least, worst, deviation
        The shortest and the longest length, and the standard deviation (s).
    halves
        Difference of the means of the window's halves, as a fraction of the mean; 0 of a cycle.
    drift
        How far the job's phase against the slowest job's steps moved in the window, in its own
        steps, without sign; 0 of a cycle.
    """

    first: int
    count: int
    mean: float
    least: float
    worst: float
    deviation: float
    halves: float = 0.0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class Steady:
    """The result: ``cycle`` steps of job ``slowest`` after which everything repeats, or 0."""

    jobs: tuple[SteadyStep, ...]
    slowest: int
    cycle: int
    settled: bool


def is_steady(jobs: Sequence[Steps], window: Window) -> bool:
    """Return whether more steps would add nothing: a cycle, settled means, or the most steps.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> alike = SimpleNamespace(begin=[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0], length=[2.0] * 6)
    >>> is_steady([alike, alike], Window())
    True
    """
    if not _is_long_enough(jobs, window):
        return False
    slowest = _slowest(jobs)
    if find_cycle(jobs, slowest, window.warm_up):
        return True
    counted = [_counted(job, _warmed_up(jobs, window)) for job in jobs]
    if min(map(len, counted)) < window.least:
        return False
    return len(counted[slowest]) >= window.most or _settled(jobs, window).settled


def steady(jobs: Sequence[Steps], window: Window) -> Steady:
    """Average the counted steps of jobs that are steady, or have ended."""
    slowest = _slowest(jobs)
    cycle = find_cycle(jobs, slowest, window.warm_up) if _is_long_enough(jobs, window) else 0
    if not cycle:
        return _settled(jobs, window)
    bounds = _boundaries(jobs[slowest])
    start, stop = bounds[-1 - cycle], bounds[-1]
    rows = []
    for job in jobs:
        steps = _begun_in(job, start, stop)
        rows.append(_row(job, steps))
    return Steady(tuple(rows), slowest, cycle, settled=True)


def find_cycle(jobs: Sequence[Steps], slowest: int, warm_up: int) -> int:
    """Return the steps of the slowest job after which all repeats, seen twice in a row; 0: none."""
    bounds = _boundaries(jobs[slowest])[warm_up:]
    usual = np.array([job.length[-1] for job in jobs])
    slack = _SAME_TIME + _SAME * usual
    for cycle in range(1, min(_LONGEST_CYCLE, (len(bounds) - 1) // 2) + 1):
        last = bounds[-1 - 2 * cycle :]
        if last[0] < _warmed_up(jobs, Window(warm_up=warm_up)) - float(slack[slowest]):
            return 0
        phases = np.array([[_phase(job, time) for job in jobs] for time in last])
        periods = np.diff(last)
        same = np.abs(phases[cycle:] - phases[:-cycle]) <= slack
        repeated = np.abs(periods[cycle:] - periods[:-cycle]) <= slack[slowest]
        begun = [_begun_in(job, last[cycle], last[-1]) for job in jobs]
        # Every job begins a step in the cycle, and has ended all that it begins there.
        ended = all(len(s) and s[-1] < len(job.length) for s, job in zip(begun, jobs, strict=True))
        if same.all() and repeated.all() and ended:
            return cycle
    return 0


def _begun_in(job: Steps, start: float, stop: float) -> range:
    """Mark the steps that begin in a span."""
    slack = _SAME_TIME + _SAME * job.length[-1]
    return range(bisect_left(job.begin, start - slack), bisect_left(job.begin, stop - slack))


def _boundaries(job: Steps) -> Floats:
    """Return the ends of a job's steps but the last, at whose instant more may happen."""
    return np.array(job.begin[1 : len(job.length)])


def _phase(job: Steps, time: float) -> float:
    """Time since the job's current step began (s)."""
    slack = _SAME_TIME + _SAME * job.length[-1]
    return time - job.begin[bisect_right(job.begin, time + slack) - 1]


def _slowest(jobs: Sequence[Steps]) -> int:
    """Return the job with the longest steps."""
    return max(range(len(jobs)), key=lambda number: float(np.mean(jobs[number].length)))


def _warmed_up(jobs: Sequence[Steps], window: Window) -> float:
    """Return when all jobs have completed the steps that are left out (s)."""
    return max(job.begin[window.warm_up] for job in jobs)


def _is_long_enough(jobs: Sequence[Steps], window: Window) -> bool:
    return all(len(job.length) > window.warm_up for job in jobs)


def _counted(job: Steps, opens: float) -> range:
    """Mark the completed steps that began after all jobs had warmed up."""
    return range(bisect_left(job.begin, opens - _SAME_TIME), len(job.length))


def _settled(jobs: Sequence[Steps], window: Window) -> Steady:
    """Average all counted steps."""
    if not _is_long_enough(jobs, window):
        raise ValueError("a job has done no step that counts")
    opens, slowest = _warmed_up(jobs, window), _slowest(jobs)
    rows = []
    for job in jobs:
        steps = _counted(job, opens)
        if not len(steps):
            raise ValueError("a job has done no step that counts")
        length = np.array(job.length[steps.start :])
        half = len(steps) // 2
        difference = abs(float(length[:half].mean() - length[-half:].mean())) if half else np.inf
        mean = float(length.mean())
        drift = _drift(job, jobs[slowest], opens)
        rows.append(_row(job, steps, difference / mean, drift))
    still = all(row.halves <= window.close for row in rows)
    swept = all(row.drift >= 1 or row.drift <= _HELD for row in rows)
    return Steady(tuple(rows), slowest, 0, settled=still and swept)


def _row(job: Steps, steps: range, halves: float = 0.0, drift: float = 0.0) -> SteadyStep:
    length = np.array(job.length[steps.start : steps.stop])
    return SteadyStep(
        first=steps[0],
        count=len(steps),
        mean=float(length.mean()),
        least=float(length.min()),
        worst=float(length.max()),
        deviation=float(length.std()),
        halves=halves,
        drift=drift,
    )


def _drift(job: Steps, slowest: Steps, opens: float) -> float:
    """Return how far a phase moved from one step of the slowest job to the next, in steps."""
    if job is slowest:
        return 0.0
    bounds = [time for time in _boundaries(slowest).tolist() if time >= opens]
    usual = float(np.mean(job.length))
    phases = [_phase(job, time) / usual for time in bounds]
    moves = [after - before for before, after in pairwise(phases)]
    return abs(fsum(move - round(move) for move in moves))
