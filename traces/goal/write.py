"""A workload as a GOAL schedule (LogGOPSim): calcs in whole nanoseconds, sends and receives.

GOAL has no collectives: a collective is written as its schedule of
transfers. Lags and earliest starts are calcs, on a cpu of their own. Names, dtypes, and what a call
was measured to take have no place in GOAL, nor has an edge between ranks: that is refused.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from simulator.calls import Call
from simulator.schedule import Schedule, Step
from simulator.support.errors import OutputError
from simulator.workload import Workload
from traces.goal.read import Goal, GoalOp, GoalRank, Need, goal_lines

ScheduleOf = Callable[[Call], Schedule]
_MOST_CPUS = 255
"""LogGOPSim numbers cpus with 8 bits."""
_DIGITS = 6
"""Digits of a byte behind which a message that is not a whole number of them is rounding."""


def write_goal(workload: Workload, path: Path, schedule_of: ScheduleOf | None = None) -> None:
    """Write a workload as a GOAL schedule.

    Parameters
    ----------
    workload
        What is written; its dependencies must lie within ranks.
    path
        The file.
    schedule_of
        How a collective is carried out: from a call to its schedule of transfers. None where there
        are no collectives.

    Raises
    ------
    OutputError
        If the file cannot be written, there are collectives and no ``schedule_of``, a call of
        several ranks has no size, or an edge goes from one rank to another.
    """
    edges = workload.edges
    across = np.flatnonzero(workload.rank[edges.source] != workload.rank[edges.target])
    if len(across):
        source, target = (int(column[across[0]]) for column in (edges.source, edges.target))
        raise OutputError(
            f"{path}: {workload.op(target)} waits for {workload.op(source)}: GOAL has "
            "dependencies within a rank only"
        )
    goal = Goal(workload.job_ranks, exact=True)
    for rank in workload.ranks:
        goal.ranks[rank] = _RankWriter(path, workload, rank, schedule_of).written()
    try:
        path.write_text("\n".join(goal_lines(goal)) + "\n")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


@dataclass(slots=True)
class _RankWriter:
    """One rank while it is written: which statements each op begins and ends with."""

    path: Path
    workload: Workload
    rank: int
    schedule_of: ScheduleOf | None
    cpus: dict[str, int] = field(default_factory=dict)
    result: GoalRank = field(default_factory=lambda: GoalRank(0))
    begins: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, list[int]] = field(default_factory=dict)

    def written(self) -> GoalRank:
        self.result = GoalRank(self.rank)
        ops = np.flatnonzero(self.workload.rank == self.rank).tolist()
        for op in ops:
            self._add_op(op)
        edges = self.workload.edges
        for op in ops:
            ready = float(self.workload.ready[op])
            if ready > 0:
                self._need(self.begins[op], [self._calc(ready, "")])
            for edge in range(int(edges.offset[op]), int(edges.offset[op + 1])):
                lag = float(edges.lag[edge])
                ends = self.ends[op]
                if lag > 0:
                    waiting = [self._calc(lag, "")]
                    self._need(waiting, ends)
                    ends = waiting
                self._need(self.begins[int(edges.target[edge])], ends)
        return self.result

    def _add_op(self, op: int) -> None:
        view = self.workload.op(op)
        if view.call is None:
            self.begins[op] = self.ends[op] = [self._calc(view.duration, view.lane)]
            return
        call = self.workload.call_view(view.call)
        rounds = [self._statements(sends) for sends in self._rounds(call)]
        for before, after in pairwise(rounds):
            self._need(after, before)
        if not rounds:
            rounds = [[self._calc(0.0 if math.isnan(call.transfer) else call.transfer, "")]]
        self.begins[op], self.ends[op] = rounds[0], rounds[-1]
        if view.duration > 0:
            draining = [self._calc(view.duration, "")]
            self._need(draining, rounds[-1])
            self.ends[op] = draining

    def _need(self, after: list[int], before: list[int]) -> None:
        """Let statements require others, through one calc where that takes fewer lines."""
        if min(len(after), len(before)) > 2:
            joint = [self._calc(0.0, "")]
            self._need(joint, before)
            before = joint
        self.result.needs.extend(Need(later, earlier) for later in after for earlier in before)

    def _calc(self, duration: float, lane: str) -> int:
        cpu = self.cpus.setdefault(lane, len(self.cpus))
        if cpu > _MOST_CPUS:
            raise OutputError(f"{self.path}: rank {self.rank} has more than {_MOST_CPUS + 1} lanes")
        self.result.ops.append(GoalOp("calc", round(duration * 1e9), cpu=cpu))
        return len(self.result.ops) - 1

    def _statements(self, ops: list[GoalOp]) -> list[int]:
        first = len(self.result.ops)
        self.result.ops.extend(ops)
        return list(range(first, len(self.result.ops)))

    def _rounds(self, call: Call) -> Iterator[list[GoalOp]]:
        """List sends and receives of this rank, one list for each step in which it has some."""
        ranks = call.group.ranks
        if len(ranks) == 1:
            return
        if math.isnan(call.size):
            raise OutputError(
                f"{self.path}: {call} has no size: GOAL needs the bytes of every message"
            )
        if call.kind == "send_receive":
            what, peer = ("send", ranks[1]) if self.rank == ranks[0] else ("recv", ranks[0])
            yield [GoalOp(what, math.ceil(call.size), peer, call.index)]
            return
        if self.schedule_of is None:
            raise OutputError(
                f"{self.path}: {call} is a collective, which does not exist in GOAL: say how it is "
                "carried out (schedule_of), or write Chakra"
            )
        schedule = self.schedule_of(call)
        for step in schedule.steps:
            for _ in range(step.repeats):
                ops = list(self._transfers((schedule, step), call))
                if ops:
                    yield ops

    def _transfers(self, part: tuple[Schedule, Step], call: Call) -> Iterator[GoalOp]:
        """List what this rank sends and receives in a step, one message for each peer."""
        (schedule, step), ranks = part, call.group.ranks
        units, unit = schedule.units(step), call.size / schedule.parts
        position = ranks.index(self.rank)
        for what, from_here, peers in (
            ("send", step.source, step.target),
            ("recv", step.target, step.source),
        ):
            chunks: defaultdict[int, float] = defaultdict(float)
            for row in np.flatnonzero(from_here == position).tolist():
                chunks[ranks[int(peers[row])]] += float(units[row])
            for peer, count in sorted(chunks.items()):
                yield GoalOp(what, math.ceil(round(count * unit, _DIGITS)), peer, call.index)
