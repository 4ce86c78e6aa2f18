"""Jobs that share a network, each repeating its step.

A step of a job begins on all its ranks when the one before has ended on the last of them, as the
step time that every other answer gives counts it: what a step is alone, it is again and again. Jobs
do not wait for each other. Their calls meet on links as those of one job do
(:mod:`simulator.engine.meeting`); nothing is known beforehand of how many steps a job gets
done, so a step is set up when it begins, and whoever asks says when he has seen enough.

What a call loses is how much longer it takes, from its last member's arrival on, than on an idle
network. It counts for each of its members: what a job loses is the mean over its ranks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs, distinct_calls
from simulator.engine.meeting import At, Meetings
from simulator.engine.propagate import LocalTimes
from simulator.engine.simulation import explain_deadlock
from simulator.engine.works import Work, Works
from simulator.errors import DeadlockError, WorkloadError
from simulator.topology import Topology
from simulator.workload import Floats, Workload


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedJob:
    """A job whose step is repeated.

    Parameters
    ----------
    name
        What messages call it.
    workload
        Its step; its ranks are those of the topology on which it runs.
    costs
        What its calls put on the links of that topology.
    begins
        When its first step begins (s).
    steps
        How many steps it does at most.
    stands_for
        Ranks of the job that each of its ranks stands for, those that do the same, shape
        ``(workload.job_ranks,)``; one if not given.

    Raises
    ------
    WorkloadError
        If it begins before 0 or never, or does less than a step.
    """

    name: str
    workload: Workload
    costs: Costs
    begins: float = 0.0
    steps: float = inf
    stands_for: Floats | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.begins < inf:
            raise WorkloadError(f"{self.name}: begins at {self.begins!r} s, which is no time")
        if not self.steps >= 1:
            raise WorkloadError(f"{self.name}: {self.steps!r} steps; it does one at least")


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """When the ops and calls of one step ran, counted from ``begin`` (s); NaN: call not made."""

    begin: float
    start: Floats
    end: Floats
    call_start: Floats
    call_end: Floats


@dataclass(slots=True, eq=False)
class JobSteps:
    """What a job has done so far.

    Attributes
    ----------
    begin
        When each step began (s), that under way too.
    length
        How long each step took that is over (s).
    lost
        What the calls of each such step lost to others, those of the job itself among them: the
        mean over its ranks (s), by :func:`distinct calls
        <simulator.costing.call_costs.distinct_calls>`, shape ``(distinct calls,)``.
    kept
        The times of the last steps, as many as were asked for.
    """

    begin: list[float] = field(default_factory=list)
    length: list[float] = field(default_factory=list)
    lost: list[Floats] = field(default_factory=list)
    kept: deque[StepTimes] = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """What jobs did together: their steps, and the bytes (B) on each link, shape ``(links,)``."""

    jobs: tuple[JobSteps, ...]
    link_bytes: Floats


Enough = Callable[[Sequence[JobSteps]], bool]
"""Asked whenever a step has ended: whether to stop."""


def repeat_together(
    jobs: Sequence[RepeatedJob],
    topology: Topology,
    enough: Enough = lambda _: False,
    *,
    keep: int = 0,
) -> Together:
    """Let jobs repeat their steps on one network until ``enough``, or all have done their steps.

    Parameters
    ----------
    jobs
        On different ranks of the topology; none is there twice.
    topology
        What they share.
    enough
        Asked whenever a step has ended, with what the jobs have done in their order.
    keep
        Of how many steps of each job, the last ones, to keep the times of all ops.

    Returns
    -------
    Together

    Raises
    ------
    DeadlockError
        If a step cannot end.
    WorkloadError
        If two jobs have ops on one rank, or a step takes no time and would be repeated for ever.

    Examples
    --------
    Two jobs send 1 GB each over one link of 1 GB/s, one of them half as often: both get half of it
    until the shorter message is through.

    >>> from simulator.builder import WorkloadBuilder
    >>> from simulator.schedule import Plan, Schedule, Step
    >>> from simulator.topology import Link, topology
    >>> from simulator.workload import CallRow, What
    >>> def message(sender, receiver, size):
    ...     builder = WorkloadBuilder(job_ranks=4)
    ...     pair = builder.group((sender, receiver))
    ...     call = builder.call(CallRow("send_receive", pair, sequence=0, size=size))
    ...     for rank, what in ((sender, What.SEND), (receiver, What.RECEIVE)):
    ...         _ = builder.op(what, rank=rank, lane="nic", name="message", duration=0.0, call=call)
    ...     return builder.build()
    >>> ways = [(0, "a"), (1, "a"), ("b", 2), ("b", 3)]
    >>> links = [Link(*way, 10e9, 0.0) for way in ways] + [Link("a", "b", 1e9, 0.0)]
    >>> shared = topology("two switches", 4, links)
    >>> once = Step(np.array([0]), np.array([1]), np.array([0]), np.array([1]), reduce=False)
    >>> plan = Plan(Schedule("send_receive", "direct", ranks=2, chunks=1, parts=1, steps=(once,)))
    >>> costs = Costs(shared, lambda call, network: plan)
    >>> both = [
    ...     RepeatedJob("a", message(0, 2, 1e9), costs, steps=2),
    ...     RepeatedJob("b", message(1, 3, 3e9), costs, steps=1),
    ... ]
    >>> found = repeat_together(both, shared)
    >>> [[round(length, 9) for length in job.length] for job in found.jobs]
    [[2.0, 2.0], [5.0]]
    >>> round(found.link_bytes[4])
    5000000000
    """
    _check_apart(jobs)
    env = simpy.Environment()
    network = Meetings(env, topology)
    stop = env.event()
    works = Works(topology)
    runs = [
        _Run(
            env, network, job, JobSteps(kept=deque(maxlen=keep)), works.of(job.workload, job.costs)
        )
        for job in jobs
    ]
    done = [run.done for run in runs]

    def ended() -> None:
        if not stop.triggered and (enough(done) or not any(run.goes_on for run in runs)):
            stop.succeed()

    for run in runs:
        run.begin_at(run.job.begins, ended)
    if runs:
        env.run(until=stop)
    return Together(tuple(done), network.link_bytes)


def _check_apart(jobs: Sequence[RepeatedJob]) -> None:
    owner: dict[int, str] = {}
    for job in jobs:
        for rank in job.workload.ranks:
            if rank in owner:
                raise WorkloadError(f"rank {rank} is both {owner[rank]}'s and {job.name}'s")
            owner[rank] = job.name


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """By how much calls take longer than on an idle network, as the mean over a job's ranks.

    ``idle`` is how long each takes there (s), ``share`` the part of the ranks that takes part in
    it, ``row`` which of the distinct calls it is; of calls that are ``made``.
    """

    made: NDArray[np.intp]
    idle: Floats
    share: Floats
    row: NDArray[np.intp]

    @staticmethod
    def of(job: RepeatedJob) -> "_Waits":
        """Take a job's calls that somebody takes part in."""
        workload = job.workload
        ranks = job.stands_for if job.stands_for is not None else np.ones(workload.job_ranks)
        joined = np.flatnonzero(workload.call >= 0)
        of_each = ranks[workload.rank[joined]]
        members = np.bincount(workload.call[joined], of_each, len(workload.calls))
        everyone = ranks[list(workload.ranks)].sum()
        row = distinct_calls(workload)[1]
        made = np.flatnonzero(row >= 0)
        idle = job.costs.idle_times(workload) * workload.calls.factor
        return _Waits(made, idle[made], members[made] / everyone, row[made])

    def lost(self, start: Floats, end: Floats) -> Floats:
        """Return what calls that started and ended then lost, by distinct calls (s)."""
        longer = end[self.made] - start[self.made] - self.idle
        return np.bincount(self.row, self.share * longer).astype(np.float64)


@dataclass(slots=True, eq=False)
class _Run:
    """A job under way: its local time, counted from the begin of the step, and its calls."""

    env: simpy.Environment
    network: Meetings
    job: RepeatedJob
    done: JobSteps
    work: Callable[[int], Work]
    goes_on: bool = True
    _ended: Callable[[], None] = lambda: None
    _factor: list[float] = field(init=False, repr=False)
    _waits: _Waits = field(init=False, repr=False)
    _local: LocalTimes = field(init=False, repr=False)
    _left: int = 0
    _under_way: int = 0

    def __post_init__(self) -> None:
        workload = self.job.workload
        self._factor = workload.calls.factor.tolist()
        self._waits = _Waits.of(self.job)

    def begin_at(self, time: float, ended: Callable[[], None]) -> None:
        """Begin the first step then; ``ended`` is called whenever a step has ended."""
        self._ended = ended
        self.env.timeout(time).callbacks.append(lambda _: self._begin())

    def _begin(self) -> None:
        self.done.begin.append(self.env.now)
        self._left, self._under_way = len(self._waits.made), 0
        self._local = LocalTimes.of(self.job.workload)
        self._go_on(self._local.begin())

    def _go_on(self, calls: list[int]) -> None:
        """Schedule calls that can start; without any, the step is over or stands still."""
        begun = self.done.begin[-1]
        self._under_way += len(calls)
        for call in calls:
            start = At(begun + float(self._local.calls.start[call]))
            self.env.timeout(start).callbacks.append(partial(self._start, call))
        if not self._under_way:
            ends = self._local.ops.end
            if self._left or np.isnan(ends).any():
                explained = explain_deadlock(self.job.workload, self._local)
                raise DeadlockError(f"{self.job.name}: {explained}")
            length = float(ends.max(initial=0.0))
            if not length > 0:
                raise WorkloadError(f"{self.job.name}: its step takes no time: nothing to repeat")
            self.env.timeout(At(begun + length)).callbacks.append(lambda _: self._end(length))

    def _start(self, call: int, _: simpy.Event) -> None:
        self.network.start(self.work(call), self._factor[call], lambda _: self._finish(call))

    def _finish(self, call: int) -> None:
        self._left -= 1
        self._under_way -= 1
        now = self.env.now - self.done.begin[-1]
        self._go_on(self._local.finish(call, max(now, float(self._local.calls.start[call]))))

    def _end(self, length: float) -> None:
        done, ops, calls = self.done, self._local.ops, self._local.calls
        done.length.append(length)
        done.lost.append(self._waits.lost(calls.start, calls.end))
        if done.kept.maxlen:
            done.kept.append(StepTimes(done.begin[-1], ops.start, ops.end, calls.start, calls.end))
        self.goes_on = len(done.length) < self.job.steps
        self._ended()
        if self.goes_on:
            self._begin()
