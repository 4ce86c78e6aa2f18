"""Jobs that share a network: each alone in its place, and all together until they are steady.

Jobs without a common link cannot disturb each other. They are not simulated together, so their
times are those alone, to the last bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from experiments.scenario.scenario import Scenario
from experiments.settings import Watch
from simulator.analysis.steady import Steady, SteadyStep, Window, is_steady, steady
from simulator.edits.jobs import fold_jobs
from simulator.engine.repeating import JobSteps, RepeatedJob, repeat_together
from simulator.engine.simulate import Progress
from simulator.folding.fold import PAYS
from simulator.support.arrays import Floats
from simulator.support.errors import WhatIfError
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Workload

Lost = dict[int, float]
"""Time (s) by the index of a link."""
_MOST_STEPS = 100_000
"""Most steps of all jobs that are simulated: minutes even for the smallest."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedJob:
    """A job in its place: a scenario whose ranks are seats of the machine.

    ``begins`` is the start of its first step (s).
    """

    name: str
    scenario: Scenario
    begins: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class SharedJob:
    """The results of a job.

    ``alone`` is its step in its place without other jobs, ``steps`` are those beside the others;
    ``done`` has all simulated ones, None for a job that meets no other. ``meets`` are indices of
    the jobs with which it has a common link. ``lost`` is the delay of its calls on links in a step,
    beyond that among themselves alone; the mean over its ranks (s). The delay of a call is
    attributed to the fullest of its links that another job uses, too, in equal parts if there are
    several. ``workload`` is folded where that pays.
    """

    alone: Timeline
    steps: SteadyStep
    meets: tuple[int, ...]
    lost: Lost
    done: JobSteps | None
    workload: Workload


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Jobs on one network, in their order.

    ``groups`` are the indices of jobs that were simulated together, each with how it settled.
    """

    topology: Topology
    jobs: tuple[SharedJob, ...]
    groups: tuple[tuple[tuple[int, ...], Steady], ...]

    def utilisation(self) -> NDArray[np.float64]:
        """Mean share of each link's bandwidth that each job uses, shape ``(jobs, links)``.

        Bytes of a step over its mean time and the link's bandwidth; 0 if that is infinite.
        """
        bandwidth = self.topology.bandwidth
        return np.array(
            [job.alone.link_bytes / job.steps.mean / bandwidth for job in self.jobs]
        ).reshape(len(self.jobs), len(bandwidth))

    def met(self) -> NDArray[np.intp]:
        """Links on which two or more jobs send bytes."""
        return np.flatnonzero((_uses([job.alone for job in self.jobs])).sum(axis=0) > 1)


def shared(
    jobs: Sequence[PlacedJob], window: Window, *, keep: int = 0, watch: Watch = lambda _: None
) -> Sharing:
    """Let jobs run on one network, each alone and those that meet together.

    Parameters
    ----------
    jobs
        On different seats of the same machine.
    window
        Which steps are averaged.
    keep
        Of how many steps of each job, the last ones, to keep the times of all ops.
    watch
        Told what is simulated.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run`; WhatIfError if one job's steps are so
        much longer than another's that it takes too many of those, or a step takes no time.
    """
    alone = [job.scenario.run(watch(job.name)) for job in jobs]
    for job, timeline in zip(jobs, alone, strict=True):
        if not timeline.makespan > 0:
            raise WhatIfError(f"job {job.name}: its step takes no time: there is nothing to repeat")
    uses = _uses(alone).astype(np.int64)
    meets = (uses @ uses.T) > 0
    rows: list[SharedJob | None] = [None] * len(jobs)
    groups = []
    for part in _groups(meets):
        if len(part) == 1:
            by_itself, step = alone[part[0]], alone[part[0]].makespan
            steps = SteadyStep(0, 1, step, step, step, 0.0)
            rows[part[0]] = SharedJob(by_itself, steps, (), {}, None, by_itself.workload)
            continue
        some = [jobs[number] for number in part]
        settled, group = _together(some, [alone[number] for number in part], window, keep, watch)
        groups.append((part, settled))
        for number, row in zip(part, group, strict=True):
            met = tuple(each for each in part if each != number and meets[number, each])
            rows[number] = replace(row, meets=met)
    return Sharing(alone[0].topology, tuple(row for row in rows if row), tuple(groups))


def _groups(meets: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Group jobs that share links, directly or through others, by which jobs meet."""
    part = list(range(len(meets)))
    for job, second_job in zip(*np.nonzero(meets), strict=True):
        low, high = sorted((part[job], part[second_job]))
        part = [low if number == high else number for number in part]
    return [
        tuple(number for number, of in enumerate(part) if of == first)
        for first in dict.fromkeys(part)
    ]


def _uses(alone: Sequence[Timeline]) -> NDArray[np.bool_]:
    """Mask of finite-bandwidth links over which each job sends bytes, shape ``(jobs, links)``."""
    finite = np.isfinite(alone[0].topology.bandwidth)
    return np.array([(timeline.link_bytes > 0) & finite for timeline in alone])


_ROUNDING = 1e-9
"""Smaller delays, as a share of the step, are rounding."""
_SAME = 1e-6
"""Relative difference below which links are equally full."""


def _together(
    jobs: Sequence[PlacedJob], alone: Sequence[Timeline], window: Window, keep: int, watch: Watch
) -> tuple[Steady, list[SharedJob]]:
    """Simulate jobs that meet until they are steady; return how they settled, and their results."""
    topology = alone[0].topology
    lengths = [timeline.makespan for timeline in alone]
    longest = max(lengths)
    if fsum(longest / length for length in lengths) * (window.warm_up + 3) > _MOST_STEPS:
        raise _check_lengths(jobs, lengths)
    # Fold equivalent ranks where that pays and one library plans for all jobs
    workloads = tuple(job.scenario.workload for job in jobs)
    first = jobs[0].scenario
    stands_for = np.ones(first.ranks)
    if first.fold is not False and all(job.scenario.site is first.site for job in jobs):
        pays = 0.0 if first.fold else PAYS
        costs, parts = first.site.costs, first.site.parts
        folded = fold_jobs(workloads, costs, first.seen, pays=pays, part=parts)
        workloads, stands_for = folded.workloads, folded.stands_for
    repeated = [
        RepeatedJob(job.name, workload, job.scenario.site.costs, job.begins, stands_for=stands_for)
        for job, workload in zip(jobs, workloads, strict=True)
    ]
    names = ", ".join(job.name for job in jobs)
    slowest = len(workloads[lengths.index(longest)].calls)
    stop = _stop_rule(window, watch(f"{names} together"), slowest)
    repeated_jobs = repeat_together(repeated, topology, stop, keep=keep)
    try:
        settled = steady(repeated_jobs.jobs, window)
    except ValueError as error:
        raise _check_lengths(jobs, lengths) from error
    # Utilisation of each link that several jobs use (0 to 1); 0 for all others
    pairs = zip(alone, settled.jobs, strict=True)
    rate = sum(timeline.link_bytes / steps.mean for timeline, steps in pairs)
    full = np.where(_uses(alone).sum(axis=0) > 1, rate, 0.0) / topology.bandwidth
    rows = []
    for by_itself, job, done, steps in zip(
        alone, repeated, repeated_jobs.jobs, settled.jobs, strict=True
    ):
        counted = done.lost[steps.first : steps.first + steps.count]
        once = repeat_together([replace(job, begins=0.0, steps=1)], topology).jobs[0]
        lost = np.mean(counted, axis=0) - once.lost[0]  # beyond that of the job alone
        on_links = _lost_on_links(job, lost, full, _ROUNDING * steps.mean)
        rows.append(SharedJob(by_itself, steps, (), on_links, done, job.workload))
    return settled, rows


def _lost_on_links(job: RepeatedJob, lost: Floats, full: Floats, least: float) -> Lost:
    """Attribute the delay of a job's distinct calls to the fullest of their links."""
    lost_on: Lost = {}
    for call, time in zip(job.workload.distinct_calls[0], lost.tolist(), strict=True):
        loads = job.costs.loads(job.workload.call_view(call))
        links = np.unique(np.concatenate([np.empty(0, np.int64), *(load.link for load in loads)]))
        fullest = links[full[links] >= full[links].max(initial=0.0) * (1 - _SAME)]
        for link in fullest[full[fullest] > 0].tolist():
            lost_on[link] = lost_on.get(link, 0.0) + time / len(fullest)
    return {link: time for link, time in lost_on.items() if time > least}


def _check_lengths(jobs: Sequence[PlacedJob], lengths: Sequence[float]) -> WhatIfError:
    short, long = (lengths.index(of) for of in (min(lengths), max(lengths)))
    takes = [
        f"{jobs[number].name} takes {format_quantity(lengths[number], 's')} a step"
        for number in (short, long)
    ]
    return WhatIfError(
        f"{takes[0]} and {takes[1]}: a few steps of the second last as long as more"
        f" than {_MOST_STEPS:,} of the first, which are not simulated"
    )


def _stop_rule(
    window: Window, progress: Progress | None, calls: int
) -> Callable[[Sequence[JobSteps]], bool]:
    """Make the rule that stops the simulation; it checks once all jobs have ended another step."""
    least = 0

    def stop(jobs: Sequence[JobSteps]) -> bool:
        nonlocal least
        fewest = min(len(job.length) for job in jobs)
        if fewest == least:
            return sum(len(job.length) for job in jobs) > _MOST_STEPS
        least = fewest
        if progress is not None:
            needed = max(fewest, window.warm_up + window.least)
            progress(fewest * calls, needed * calls)
        return is_steady(jobs, window)

    return stop
