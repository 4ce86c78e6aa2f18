"""GOAL schedules (LogGOPSim) to workloads: calcs are compute ops, messages are calls.

What LogGOPSim decides while it runs is decided here while reading, and noted: which send a receive
from any source gets, and in which order a cpu runs what is free. An eager message, up to
LogGOPSim's ``S``, does not hold up what requires its send: that waits for the send's start only.
"""

import math
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simulator.builder import WorkloadBuilder
from simulator.errors import TraceError, WorkloadError
from simulator.workload import CallRow, What, Workload
from traces.core.files import unpack
from traces.core.loaded import Coverage, Loaded
from traces.goal.text import ANY, Goal, GoalOp, GoalRank, Need, parse_goal
from traces.matching.lane_order import one_at_a_time

OpPlace = tuple[int, int]
"""A rank and the place of a statement in it."""


def load_goal(path: Path, step: str = "all") -> Loaded:
    """Read a GOAL schedule, which has all ranks in one file and no steps.

    Raises
    ------
    TraceError
        If it cannot be read, a message has no other end, or what is required makes a cycle.
    """
    if step not in ("median", "all"):
        raise TraceError(f"{path}: no step {step}: a GOAL schedule has no steps")
    if path.is_dir():
        raise TraceError(f"{path}: a GOAL schedule is one file with all ranks: name that file")
    goal = parse_goal(path, unpack(path).decode("utf-8", "replace"))
    notes: Counter[str] = Counter()
    try:
        workload = _workload(path, goal, notes)
    except WorkloadError as error:
        raise TraceError(f"{path}: {error}") from error
    nothing = dict.fromkeys(workload.ranks, math.nan)
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(workload, notes),
        measured_step=math.nan,
        measured_begin=nothing,
        measured_end=dict(nothing),
    )


@dataclass(slots=True)
class _GoalBuild:
    """A workload while it is put together: the op of each statement, and which run alone."""

    builder: WorkloadBuilder
    exact: bool
    call_of: dict[OpPlace, int]
    busy: list[bool] = field(default_factory=list)


def _workload(path: Path, goal: Goal, notes: Counter[str]) -> Workload:
    builder = WorkloadBuilder(job_ranks=goal.num_ranks)
    build = _GoalBuild(builder, goal.exact, _calls(path, goal, builder, notes))
    for rank in sorted(goal.ranks):
        _add_rank(build, goal.ranks[rank], notes)
    workload = builder.build()
    if goal.exact:
        return workload
    return one_at_a_time(workload, np.array(build.busy, dtype=np.bool_))


def _calls(
    path: Path, goal: Goal, builder: WorkloadBuilder, notes: Counter[str]
) -> dict[OpPlace, int]:
    """Make a call of each pair of a send and a receive."""
    call_of: dict[OpPlace, int] = {}
    sequence: Counter[tuple[int, int]] = Counter()
    for (sender, sent), (receiver, received) in pair_messages(path, goal, notes):
        pair = (sender[0], receiver[0])
        if sent.amount != received.amount:
            notes["messages whose ends tell different sizes: that of the send is taken"] += 1
        row = CallRow("send_receive", builder.group(pair), sequence[pair], float(sent.amount))
        sequence[pair] += 1
        call_of[sender] = call_of[receiver] = builder.call(row)
    return call_of


_NANO = 1e-9
_WHAT = {"calc": What.COMPUTE, "send": What.SEND, "recv": What.RECEIVE}


def _add_rank(build: _GoalBuild, own: GoalRank, notes: Counter[str]) -> None:
    builder = build.builder
    starts = {need.other for need in own.needs if _start_only(build, own, need)}
    eager = sum(_start_only(build, own, need) and not need.start for need in own.needs)
    if eager:
        notes["times an op requires an eager send: it waits for the send's start only"] += eager
    op_of: dict[int, int] = {}
    start_of: dict[int, int] = {}
    for number, op in enumerate(own.ops):
        lane = f"cpu {op.cpu}" if op.what == "calc" else f"nic {op.nic}"
        op_of[number] = builder.op(
            _WHAT[op.what],
            rank=own.rank,
            lane=lane,
            name=op.label or op.what,
            duration=op.amount * _NANO if op.what == "calc" else 0.0,
            call=build.call_of.get((own.rank, number), -1),
        )
        build.busy.append(op.what == "calc")
        if number in starts:
            start_of[number] = builder.op(
                What.COMPUTE,
                rank=own.rank,
                lane=lane,
                name=f"start of {op.label or op.what}",
                duration=0.0,
            )
            build.busy.append(False)
            builder.edge(start_of[number], op_of[number])
    for need in own.needs:
        waits = start_of if _start_only(build, own, need) else op_of
        builder.edge(waits[need.other], start_of.get(need.op, op_of[need.op]))


def _start_only(build: _GoalBuild, own: GoalRank, need: Need) -> bool:
    """Whether what requires an op waits for its start only."""
    return need.start or (_is_eager(own.ops[need.other]) and not build.exact)


EAGER = 65535
"""Bytes up to which a message is eager: the default of ``S`` (LogGOPSim's ``simulator.ggo``)."""


def _is_eager(op: GoalOp) -> bool:
    return op.what == "send" and op.amount <= EAGER


def _coverage(workload: Workload, notes: Counter[str]) -> Coverage:
    calls = len(workload.calls)
    return Coverage(
        step="all",
        steps=(),
        ranks=workload.ranks,
        ranks_in_job=workload.job_ranks,
        kernels=0,
        launches_paired=0,
        collectives=calls,
        collectives_matched=calls,
        sizes_known=calls,
        starts={},
        clock_offset={},
        unused={},
        skipped=(),
        notes=(
            "a GOAL schedule: nothing was measured",
            *(f"{count} {what}" for what, count in notes.items()),
            *workload.notes,
        ),
    )


Statement = tuple[OpPlace, GoalOp]


def pair_messages(path: Path, goal: Goal, notes: Counter[str]) -> list[tuple[Statement, Statement]]:
    """Pair sends and receives, each in the order of the file for its source, target and tag.

    Receives from any source, or with any tag, get what the others leave, in the order of the file:
    LogGOPSim gives them what arrives first. They are counted.

    Raises
    ------
    TraceError
        If a message has no other end, or goes to its own rank.
    """
    mailbox = _Mailbox()
    for sent in _statements(goal, "send"):
        (rank, _), op = sent
        if op.peer == rank:
            raise TraceError(f"{path}:{op.line}: rank {rank} sends to itself")
        mailbox.put(sent)
    receives = _statements(goal, "recv")
    pairs = []
    for receive in sorted(receives, key=lambda receive: ANY in (receive[1].peer, receive[1].tag)):
        (rank, _), op = receive
        if ANY in (op.peer, op.tag):
            notes["receives from any source or tag: matched in the order of the file"] += 1
        send = mailbox.take(rank, op)
        if send is None:
            wanted = f"{op.amount}b from {op.peer} tag {op.tag}"
            raise TraceError(f"{path}:{op.line}: rank {rank}: nobody sends {wanted}")
        pairs.append((send, receive))
    for (rank, _), op in mailbox.left():
        where = f"{path}:{op.line}: rank {rank}"
        raise TraceError(f"{where}: nobody receives {op.amount}b to {op.peer} tag {op.tag}")
    return pairs


def _statements(goal: Goal, what: str) -> list[Statement]:
    return [
        ((rank, number), op)
        for rank, own in sorted(goal.ranks.items())
        for number, op in enumerate(own.ops)
        if op.what == what
    ]


@dataclass(slots=True)
class _Mailbox:
    """Sends that are not received yet, in a queue for each way a receive may ask for them."""

    queues: dict[tuple[int, int, int], deque[Statement]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    taken: set[OpPlace] = field(default_factory=set)

    def put(self, send: Statement) -> None:
        (source, _), op = send
        for asked_source in (source, ANY):
            for tag in (op.tag, ANY):
                self.queues[op.peer, asked_source, tag].append(send)

    def take(self, rank: int, receive: GoalOp) -> Statement | None:
        queue = self.queues.get((rank, receive.peer, receive.tag), deque())
        while queue:
            send = queue.popleft()
            if send[0] not in self.taken:
                self.taken.add(send[0])
                return send
        return None

    def left(self) -> list[Statement]:
        return [
            send for queue in self.queues.values() for send in queue if send[0] not in self.taken
        ]
