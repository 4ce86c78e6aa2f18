"""Jobs that share a network, each repeating its step.

A step of a job begins on all its ranks when the one before has ended on the last of them, as every
other answer counts the step time: alone, each step takes the time of the first. Jobs do not wait
for each other. Their calls contend for links like those of one job, in one event loop
(:mod:`simulator.engine.flow`). The number of steps of a job is not known beforehand, so a step is
set up when it begins, and the caller decides when to stop.

The loss of a call is its time from its last member's arrival on, less that on an idle network. It
counts for each of its members: the loss of a job is the mean over its ranks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs
from simulator.engine.event_loop import DONE, IDLE, LACKING, QUEUED, RANG, schedule_roots, set_alarm
from simulator.engine.flow import Loop
from simulator.engine.flow import Step as LoopStep
from simulator.engine.simulation import (
    Columns,
    LocalTimes,
    OpColumns,
    OpTimes,
    Rendezvous,
    Successors,
    explain_deadlock,
)
from simulator.engine.works import Work, Works
from simulator.support.arrays import Floats, Ints
from simulator.support.errors import DeadlockError, WorkloadError
from simulator.topology import Topology
from simulator.transfers.crowd import Crowd
from simulator.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedJob:
    """A job whose step is repeated.

    Parameters
    ----------
    name
        Its name in messages.
    workload
        Its step; its ranks are those of the topology on which it runs.
    costs
        Costs of its calls on that topology.
    begins
        When its first step begins (s).
    steps
        Most steps to run.
    stands_for
        Number of ranks of the job that each of its ranks represents, which are equivalent, shape
        ``(workload.job_ranks,)``; one if not given.

    Raises
    ------
    WorkloadError
        If it begins before 0 or never, or has less than one step.
    """

    name: str
    workload: Workload
    costs: Costs
    begins: float = 0.0
    steps: float = inf
    stands_for: Floats | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.begins < inf:
            raise WorkloadError(f"{self.name}: begins at {self.begins!r} s, which is not a time")
        if not self.steps >= 1:
            raise WorkloadError(f"{self.name}: {self.steps!r} steps; write 1 or more")


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Times of the ops and calls of one step, counted from ``begin`` (s); NaN: call not made."""

    begin: float
    start: Floats
    end: Floats
    call_start: Floats
    call_end: Floats


@dataclass(slots=True, eq=False)
class JobSteps:
    """Steps of a job so far.

    Attributes
    ----------
    begin
        Start of each step (s), including the current one.
    length
        Duration of each completed step (s).
    lost
        Time that the calls of each completed step lost to others, including those of the job
        itself: the mean over its ranks (s), by :attr:`distinct calls
        <simulator.workload.Workload.distinct_calls>`, shape ``(distinct calls,)``.
    kept
        Times of the last steps, as many as were asked for.
    """

    begin: list[float] = field(default_factory=list)
    length: list[float] = field(default_factory=list)
    lost: list[Floats] = field(default_factory=list)
    kept: deque[StepTimes] = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """Result for jobs: their steps, and the bytes (B) on each link, shape ``(links,)``."""

    jobs: tuple[JobSteps, ...]
    link_bytes: Floats


Enough = Callable[[Sequence[JobSteps]], bool]
"""Called whenever a step has ended; returns whether to stop."""


def repeat_together(
    jobs: Sequence[RepeatedJob],
    topology: Topology,
    enough: Enough = lambda _: False,
    *,
    keep: int = 0,
) -> Together:
    """Let jobs repeat their steps on one network until ``enough``, or all have run all steps.

    Parameters
    ----------
    jobs
        On disjoint ranks of the topology.
    topology
        The network they share.
    enough
        Called whenever a step has ended, with the steps of all jobs, in their order.
    keep
        Number of last steps of each job whose times of all ops are kept.

    Raises
    ------
    DeadlockError
        If a step cannot end.
    WorkloadError
        If two jobs have ops on one rank, or a step takes no time and would repeat for ever.
    """
    owner: dict[int, str] = {}
    for job in jobs:
        for rank in job.workload.ranks:
            if rank in owner:
                raise WorkloadError(f"rank {rank} is both {owner[rank]}'s and {job.name}'s")
            owner[rank] = job.name
    if not jobs:
        return Together((), np.zeros(len(topology)))
    run = _Run.of(jobs, topology, keep)
    run.until(enough)
    return Together(tuple(part.done for part in run.parts), run.loop.link_bytes())


@dataclass(frozen=True, slots=True, eq=False)
class _Delays:
    """Delay of calls over an idle network, as the mean over a job's ranks.

    For the calls that are ``made``: ``idle`` is the time on an idle network (s), ``share`` the
    fraction of the ranks that are members, ``row`` the index of the distinct call.
    """

    made: NDArray[np.intp]
    idle: Floats
    share: Floats
    row: NDArray[np.intp]

    @staticmethod
    def of(job: RepeatedJob) -> "_Delays":
        """Return the delays of a job's calls with members."""
        workload = job.workload
        ranks = job.stands_for if job.stands_for is not None else np.ones(workload.job_ranks)
        joined = np.flatnonzero(workload.call >= 0)
        of_each = ranks[workload.rank[joined]]
        members = np.bincount(workload.call[joined], of_each, len(workload.calls))
        all_ranks = ranks[list(workload.ranks)].sum()
        row = workload.distinct_calls[1]
        made = np.flatnonzero(row >= 0)
        idle = job.costs.idle_times(workload) * workload.calls.factor
        return _Delays(made, idle[made], members[made] / all_ranks, row[made])

    def lost(self, start: Floats, end: Floats) -> Floats:
        """Return the time lost by calls with these starts and ends, by distinct call (s)."""
        longer = end[self.made] - start[self.made] - self.idle
        return np.bincount(self.row, self.share * longer).astype(np.float64)


@dataclass(slots=True, eq=False)
class _JobState:
    """State of a job: the ranges of its ops and calls among those of all jobs.

    ``ends`` is when its step ends (s), once known; inf before the first step and until then.
    """

    job: RepeatedJob
    done: JobSteps
    ops: slice
    calls: slice
    before: LocalTimes
    waits: _Delays
    ends: float = inf

    @property
    def has_steps_left(self) -> bool:
        return len(self.done.length) < self.job.steps


@dataclass(slots=True, eq=False)
class _Run:
    """Jobs in one event loop; an alarm rings whenever a step begins or ends.

    ``columns`` are the ops and calls of all jobs, numbered job by job.
    """

    loop: Loop
    columns: Columns
    parts: list[_JobState]

    @staticmethod
    def of(jobs: Sequence[RepeatedJob], topology: Topology, keep: int) -> "_Run":
        """Set up the loop, with an alarm for the start of each job."""
        works, distinct, rows = Works(topology), list[Work](), list[NDArray[np.intp]]()
        parts: list[_JobState] = []
        first_op = first_call = 0
        for job in jobs:
            work, row = works.distinct(job.workload, job.costs)
            rows.append(np.where(row >= 0, row + len(distinct), row))
            distinct += work
            ops = slice(first_op, first_op + len(job.workload))
            calls = slice(first_call, first_call + len(row))
            first_op, first_call = ops.stop, calls.stop
            steps = JobSteps(kept=deque(maxlen=keep))
            before = LocalTimes.of(job.workload)
            parts.append(_JobState(job, steps, ops, calls, before, _Delays.of(job)))
        columns = _join_columns(parts)
        factor = np.concatenate([job.workload.calls.factor for job in jobs])
        spent = np.zeros((first_call, len(topology.resources) + 1))
        loop = Loop.of(topology, distinct, np.concatenate(rows), LoopStep(columns, factor, spent))
        while loop.world.control.tally[IDLE] < first_call + 2 * len(jobs) + 8:
            loop.make_events()
        run = _Run(loop, columns, parts)
        for number, part in enumerate(parts):
            set_alarm(loop.world.control, part.job.begins, number)
        return run

    def until(self, enough: Enough) -> None:
        """Simulate until ``enough`` returns True, or all jobs have run all steps."""
        done = [part.done for part in self.parts]
        while True:
            # Fewest calls that must still end before a step can: the loop need not return sooner.
            end = self.columns.calls.end
            left = [
                int(np.isnan(end[part.calls][part.waits.made]).sum())
                for part in self.parts
                if part.ends == inf and part.done.begin
            ]
            reason = self.loop.run_events(max(1, min(left, default=1)))
            if reason == RANG:
                part = self.parts[int(self.loop.world.control.tally[LACKING])]
                if part.done.begin:
                    self._record_step(part)
                    if enough(done) or not any(each.has_steps_left for each in self.parts):
                        return
                if part.has_steps_left:
                    self._begin_step(part)
            for number, part in enumerate(self.parts):
                self._set_end_alarm(number, part)
            if reason == DONE and not self.loop.world.control.tally[QUEUED]:
                return

    def _begin_step(self, part: _JobState) -> None:
        """Reset the ops and calls of a job to before its step, and begin the step now."""
        now = float(self.loop.world.control.clock[0])
        part.done.begin.append(now)
        part.ends = inf
        ops, calls, before = self.columns.ops, self.columns.calls, part.before
        ops.available[part.ops] = before.ops.available + now
        for column in ("released_by", "waits", "start", "end"):
            getattr(ops, column)[part.ops] = getattr(before.ops, column)
        for column in ("missing", "last_arrival", "last_member", "start", "end"):
            getattr(calls, column)[part.calls] = getattr(before.calls, column)
        roots = np.flatnonzero(before.ops.waits == 0)
        self.columns.queue[: len(roots)] = roots + part.ops.start
        schedule_roots(self.loop.world.control, self.columns, len(roots))

    def _set_end_alarm(self, number: int, part: _JobState) -> None:
        """Set the alarm for the end of a job's step once all its calls have ended.

        If no call runs but some remain, the job is deadlocked.
        """
        if not part.done.begin or part.ends < inf:
            return
        calls = self.columns.calls
        start, end = calls.start[part.calls], calls.end[part.calls]
        if (~np.isnan(start) & np.isnan(end)).any():
            return  # a call is running
        times = self.columns.ops.start[part.ops], self.columns.ops.end[part.ops]
        part.ends = _step_end(part.job, part.done.begin[-1], *times)
        set_alarm(self.loop.world.control, part.ends, number)

    def _record_step(self, part: _JobState) -> None:
        """Record a step that has ended."""
        ops, calls, begin = self.columns.ops, self.columns.calls, part.done.begin[-1]
        times = StepTimes(
            begin,
            ops.start[part.ops] - begin,
            ops.end[part.ops] - begin,
            calls.start[part.calls] - begin,
            calls.end[part.calls] - begin,
        )
        part.done.length.append(part.ends - begin)
        part.done.lost.append(part.waits.lost(times.call_start, times.call_end))
        if part.done.kept.maxlen:
            part.done.kept.append(times)


def _step_end(job: RepeatedJob, begin: float, start: Floats, end: Floats) -> float:
    """Return when a step of which no call is running ends (s); refuse one that cannot.

    Of a call that cannot begin some member's op has not ended.
    """
    if np.isnan(end).any():
        times = LocalTimes.of(job.workload)
        times.ops.start[:], times.ops.end[:] = start - begin, end - begin
        raise DeadlockError(f"{job.name}: {explain_deadlock(job.workload, times)}")
    last = float(end.max(initial=0.0))
    if not last > begin:
        raise WorkloadError(f"{job.name}: its step takes no time: nothing to repeat")
    return last


_ENDS, _STARTS, _STEPS = 0, 1, 2
"""Events of a job in a crowd: a call without links ends, a call starts, a step begins."""


@dataclass(slots=True, eq=False)
class JobInCrowd:
    """A job that repeats its step in a crowd of calls that somebody else drives.

    Who advances the crowd handles the job's events at :attr:`due` by :meth:`act`, and says when a
    call of the job has ended by :meth:`finish`. All its calls are simulated transfer by transfer.

    Parameters
    ----------
    job
        The job, on ranks of the topology.
    topology
        The network.
    crowd
        Calls under way on its links, of the job and of others.

    Attributes
    ----------
    lengths
        Duration of each completed step (s).
    links
        Links of each distinct call, sorted.
    """

    job: RepeatedJob
    topology: Topology
    crowd: Crowd
    lengths: list[float] = field(default_factory=list)
    links: list[Ints] = field(init=False)
    _works: list[Work] = field(init=False)
    _row: list[int] = field(init=False)
    _times: LocalTimes = field(init=False)
    _begin: float = inf
    _left: int = 0
    _events: list[tuple[float, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        works = Works(self.topology, compares=False)
        self._works, rows = works.distinct(self.job.workload, self.job.costs)
        self._row, self.links = rows.tolist(), [work.link for work in self._works]
        self._events.append((self.job.begins, _STEPS, 0))

    @property
    def due(self) -> float:
        """Time of its next event but for ends of calls in the crowd (s)."""
        return self._events[0][0] if self._events else inf

    def act(self) -> tuple[int, int, int] | None:
        """Handle the event that is due.

        The crowd must have been advanced to that time.

        Returns
        -------
        tuple of int or None
            A call that has begun in the crowd: its number there, its index, and that of its
            distinct call.
        """
        now, kind, call = heappop(self._events)
        if kind == _STEPS:
            self._begin_step(now)
        elif kind == _ENDS:
            self.finish(call, now)
        else:
            row, factor = self._row[call], float(self.job.workload.calls.factor[call])
            work = self._works[row]
            if len(work.link):
                self.crowd.wait(max(now, self.crowd.time))
                return self.crowd.begin(work.program, factor, work.overhead * factor), call, row
            heappush(self._events, (now + work.time * factor, _ENDS, call))
        return None

    def finish(self, call: int, now: float) -> None:
        """End a call at a time (s)."""
        self._left -= 1
        self._release(self._times.finish(call, now))

    def _begin_step(self, now: float) -> None:
        """Begin a step; the one before, if there is one, has ended."""
        if self._begin < inf:
            self.lengths.append(now - self._begin)
        self._begin, self._left = now, sum(row >= 0 for row in self._row)
        self._times = LocalTimes.of(self.job.workload)
        self._times.ops.available[:] += now
        self._release(self._times.begin())

    def _release(self, calls: list[int]) -> None:
        """Let calls start; if none is left, the next step begins when the last op has ended."""
        for call in calls:
            heappush(self._events, (float(self._times.calls.start[call]), _STARTS, call))
        if not self._left:
            ops = self._times.ops
            end = _step_end(self.job, self._begin, ops.start, ops.end)
            heappush(self._events, (end, _STEPS, 0))


def _join_columns(parts: Sequence[_JobState]) -> Columns:
    """Concatenate the initial ops and calls of jobs, numbered job by job."""
    every = [part.before.columns for part in parts]
    ops_before = [part.ops.start for part in parts]
    calls_before = [part.calls.start for part in parts]

    def shifted(arrays: list[NDArray[Any]], by: Sequence[int]) -> NDArray[Any]:
        moved = [
            np.where(array >= 0, array + first, array).astype(array.dtype)
            for array, first in zip(arrays, by, strict=True)
        ]
        return np.concatenate(moved)

    def offsets(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        last = np.cumsum([0, *(array[-1] for array in arrays)])
        rows = [array[:-1] + first for array, first in zip(arrays, last, strict=False)]
        return np.concatenate([*rows, last[-1:]]).astype(arrays[0].dtype)

    edges = [columns.edges for columns in every]
    work = [columns.work for columns in every]
    ops = [columns.ops for columns in every]
    calls = [columns.calls for columns in every]
    return Columns(
        queue=np.concatenate([columns.queue for columns in every]),
        edges=Successors(
            offsets([each.offset for each in edges]),
            shifted([each.target for each in edges], ops_before),
            np.concatenate([each.lag for each in edges]),
        ),
        work=OpColumns(
            shifted([each.call for each in work], calls_before),
            np.concatenate([each.duration for each in work]),
            np.concatenate([each.unawaited for each in work]),
        ),
        ops=OpTimes(*(np.concatenate(column) for column in zip(*ops, strict=True))),
        calls=Rendezvous(
            offsets([each.offset for each in calls]),
            shifted([each.member for each in calls], ops_before),
            *(np.concatenate(column) for column in list(zip(*calls, strict=True))[2:]),
        ),
    )
