"""GOAL schedules (LogGOPSim), read and written: calcs are compute ops, messages are calls.

LogGOPSim's decisions at run time are taken here when reading, and noted: the send for a receive
from any source, and the order in which a cpu runs ready ops. An eager message, up to LogGOPSim's
``S``, does not delay ops that require its send: they wait for the send's start only.

The text is LogGOPSim's dialect of the Group Operation Assembly Language, by the grammar of its
``txt2bin.re``::

    num_ranks 2

    rank 0 {
    l1: calc 100 cpu 0
    l2: send 10b to 1 tag 5
    l2 requires l1
    }

A ``calc`` counts nanoseconds, as LogGOPSim's own times do. ``l2 irequires l1``: l2 may start once
l1 has started.

GOAL has no collectives: each is written as its schedule of transfers. Lags and earliest starts are
calcs, on a cpu of their own. GOAL has no names, dtypes or measured times of calls, and these are
dropped; edges between ranks cannot be written, and are refused.
"""

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow
from simulator.schedule import Schedule, Step
from simulator.support.errors import OutputError, TraceError, WorkloadError
from simulator.support.input_files import unpack
from simulator.workload import What, Workload
from traces.core.files import GOAL_COMMENT, write_files
from traces.core.loaded import Coverage, Loaded
from traces.matching.lane_order import one_at_a_time

ANY = -1
"""Any source or any tag."""
EXACT = "// twofold: a send ends when it has arrived, and requires tells all order there is"
"""Line of files written here: no eager messages, and all orders on a cpu are explicit."""
_MOST_RANKS = 10**7
_MOST = 2**64
_RANKS = re.compile(r"num_ranks\s+(\d{1,19})")
_RANK = re.compile(r"rank\s+(\d{1,19})\s*(\{?)")
_OP = re.compile(
    r"(?:(?P<label>[A-Za-z]\w*)\s*:\s*)?"
    r"(?:calc\s+(?P<calc>\d{1,20})|"
    r"(?P<what>send|recv)\s+(?P<size>\d{1,20})\s*b\s+(?P<way>to|from)\s+(?P<peer>-1|\d{1,10})"
    r"(?:\s+tag\s+(?P<tag>-1|\d{1,10}))?)"
    r"(?:\s+cpu\s+(?P<cpu>\d{1,3}))?(?:\s+nic\s+(?P<nic>\d{1,3}))?"
)
_NEED = re.compile(r"([A-Za-z]\w*)\s+(i?requires)\s+([A-Za-z]\w*)")


@dataclass(frozen=True, slots=True)
class GoalOp:
    """A statement: ``what`` is calc, send or recv, ``amount`` nanoseconds or bytes."""

    what: str
    amount: int
    peer: int = ANY
    tag: int = 0
    cpu: int = 0
    nic: int = 0
    label: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """``op`` requires ``other``, or its ``start`` only; both are indices within the rank."""

    op: int
    other: int
    start: bool = False


@dataclass(slots=True)
class GoalRank:
    """One rank: its statements and their dependencies."""

    rank: int
    ops: list[GoalOp] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)


@dataclass(slots=True)
class Goal:
    """A schedule; ``exact`` marks a file with :data:`EXACT`."""

    num_ranks: int
    ranks: dict[int, GoalRank] = field(default_factory=dict)
    exact: bool = False


def parse_goal(path: Path, text: str) -> Goal:
    """Parse a schedule."""
    lines = _lines(text)
    number, first = next(lines, (1, ""))
    ranks = _RANKS.fullmatch(first)
    if ranks is None or not 0 < int(ranks[1]) <= _MOST_RANKS:
        raise TraceError(
            f"{path}:{number}: a GOAL schedule begins with 'num_ranks N', N 1 to {_MOST_RANKS:,}"
        )
    goal = Goal(int(ranks[1]), exact=EXACT in text)
    for number, line in lines:
        head = _RANK.fullmatch(line)
        if head is None:
            raise TraceError(f"{path}:{number}: {line[:60]!r} is not 'rank N {{'")
        rank = int(head[1])
        if rank >= goal.num_ranks or rank in goal.ranks:
            why = "appears twice"
            if rank not in goal.ranks:
                why = f"does not exist: num_ranks is {goal.num_ranks}"
            raise TraceError(f"{path}:{number}: rank {rank} {why}")
        if not head[2] and next(lines, (0, ""))[1] != "{":
            raise TraceError(f"{path}:{number}: rank {rank}: '{{' is missing")
        goal.ranks[rank] = _rank(path, goal, rank, lines)
    return goal


def goal_lines(goal: Goal) -> Iterator[str]:
    """Yield the lines of a schedule."""
    yield f"num_ranks {goal.num_ranks}"
    if goal.exact:
        yield EXACT
    for rank in range(goal.num_ranks):
        rank_ops = goal.ranks.get(rank, GoalRank(rank))
        yield ""
        yield f"rank {rank} {{"
        for number, op in enumerate(rank_ops.ops):
            yield f"l{number}: {_statement(op)}"
        for need in rank_ops.needs:
            yield f"l{need.op} {'irequires' if need.start else 'requires'} l{need.other}"
        yield "}"


def _statement(op: GoalOp) -> str:
    where = f" cpu {op.cpu}" if op.cpu else ""
    nic = f" nic {op.nic}" if op.nic else ""
    if op.what == "calc":
        return f"calc {op.amount}{where}"
    preposition = "to" if op.what == "send" else "from"
    return f"{op.what} {op.amount}b {preposition} {op.peer} tag {op.tag}{where}{nic}"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with statements, numbered; a brace may share a line with a statement."""
    bare = GOAL_COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for number, line in enumerate(bare.splitlines(), 1):
        for piece in re.split(r"(?<=\{)|(?=\})", line):
            if piece.strip():
                yield number, piece.strip()


def _rank(path: Path, goal: Goal, rank: int, lines: Iterator[tuple[int, str]]) -> GoalRank:
    result = GoalRank(rank)
    labels: dict[str, int] = {}
    needs: list[tuple[int, str, bool, str]] = []
    for number, line in lines:
        if line.startswith("}"):
            _resolve(path, result, labels, needs)
            return result
        need = _NEED.fullmatch(line)
        if need is not None:
            needs.append((number, need[1], need[2] == "irequires", need[3]))
            continue
        op = _op(path, number, line, goal.num_ranks)
        if op.label and labels.setdefault(op.label, len(result.ops)) != len(result.ops):
            raise TraceError(f"{path}:{number}: rank {rank}: label {op.label!r} occurs twice")
        result.ops.append(op)
    raise TraceError(f"{path}: rank {rank} is not closed by '}}': the file is cut short")


def _resolve(
    path: Path, result: GoalRank, labels: dict[str, int], needs: list[tuple[int, str, bool, str]]
) -> None:
    for number, label, start, waited_for in needs:
        for named in (label, waited_for):
            if named not in labels:
                raise TraceError(
                    f"{path}:{number}: rank {result.rank}: no op is labelled {named!r}"
                )
        result.needs.append(Need(labels[label], labels[waited_for], start))


def _op(path: Path, number: int, line: str, num_ranks: int) -> GoalOp:
    parsed = _OP.fullmatch(line)
    if parsed is None or (parsed["what"] and (parsed["way"] == "to") != (parsed["what"] == "send")):
        raise TraceError(
            f"{path}:{number}: {line[:60]!r} is not one of: calc N; send Nb to R tag T; "
            "recv Nb from R tag T; l1 requires l2; l1 irequires l2"
        )
    amount = int(parsed["calc"] or parsed["size"])
    if amount >= _MOST:
        raise TraceError(f"{path}:{number}: {amount} does not fit in 64 bits")
    peer, tag = int(parsed["peer"] or ANY), int(parsed["tag"] or 0)
    if parsed["what"]:
        if peer >= num_ranks:
            raise TraceError(
                f"{path}:{number}: rank {peer} does not exist: num_ranks is {num_ranks}"
            )
        if parsed["what"] == "send" and ANY in (peer, tag):
            raise TraceError(f"{path}:{number}: only a recv may have any source or any tag")
    return GoalOp(
        what=parsed["what"] or "calc",
        amount=amount,
        peer=peer,
        tag=tag,
        cpu=int(parsed["cpu"] or 0),
        nic=int(parsed["nic"] or 0),
        label=parsed["label"] or "",
        line=number,
    )


OpPlace = tuple[int, int]
"""A rank and the index of a statement in it."""


def load_goal(path: Path, step: str = "all") -> Loaded:
    """Read a GOAL schedule, which has all ranks in one file and no steps.

    Raises
    ------
    TraceError
        If it cannot be read, a message has only one end, or the dependencies have a cycle.
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
    calls = len(workload.calls)
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=Coverage(
            step="all",
            ranks=workload.ranks,
            ranks_in_job=workload.job_ranks,
            collectives=calls,
            collectives_matched=calls,
            sizes_known=calls,
            notes=(
                "a GOAL schedule: nothing was measured",
                *(f"{count} {what}" for what, count in notes.items()),
                *workload.notes,
            ),
        ),
        measured_step=math.nan,
        measured_begin=nothing,
        measured_end=dict(nothing),
    )


@dataclass(slots=True)
class _Build:
    """A workload under construction: the call of each statement, and which ops are exclusive."""

    builder: WorkloadBuilder
    exact: bool
    call_of: dict[OpPlace, int]
    busy: list[bool] = field(default_factory=list)


def _workload(path: Path, goal: Goal, notes: Counter[str]) -> Workload:
    builder = WorkloadBuilder(job_ranks=goal.num_ranks)
    build = _Build(builder, goal.exact, _calls(path, goal, builder, notes))
    for rank in sorted(goal.ranks):
        _add_rank(build, goal.ranks[rank], notes)
    workload = builder.build()
    if goal.exact:
        return workload
    return one_at_a_time(workload, np.array(build.busy, dtype=np.bool_))


def _calls(
    path: Path, goal: Goal, builder: WorkloadBuilder, notes: Counter[str]
) -> dict[OpPlace, int]:
    """Add a call for each pair of a send and a receive; return them by statement."""
    call_of: dict[OpPlace, int] = {}
    sequence: Counter[tuple[int, int]] = Counter()
    for (sender, sent), (receiver, received) in pair_messages(path, goal, notes):
        pair = (sender[0], receiver[0])
        if sent.amount != received.amount:
            notes["messages whose ends record different sizes: that of the send is taken"] += 1
        row = CallRow("send_receive", builder.group(pair), sequence[pair], float(sent.amount))
        sequence[pair] += 1
        call_of[sender] = call_of[receiver] = builder.call(row)
    return call_of


_NANO = 1e-9
_WHAT = {"calc": What.COMPUTE, "send": What.SEND, "recv": What.RECEIVE}


def _add_rank(build: _Build, rank_ops: GoalRank, notes: Counter[str]) -> None:
    builder = build.builder
    starts = {need.other for need in rank_ops.needs if _start_only(build, rank_ops, need)}
    eager = sum(_start_only(build, rank_ops, need) and not need.start for need in rank_ops.needs)
    if eager:
        notes["times an op requires an eager send: it waits for the send's start only"] += eager
    op_of: dict[int, int] = {}
    start_of: dict[int, int] = {}
    for number, op in enumerate(rank_ops.ops):
        lane = f"cpu {op.cpu}" if op.what == "calc" else f"nic {op.nic}"
        op_of[number] = builder.op(
            _WHAT[op.what],
            rank=rank_ops.rank,
            lane=lane,
            name=op.label or op.what,
            duration=op.amount * _NANO if op.what == "calc" else 0.0,
            call=build.call_of.get((rank_ops.rank, number), -1),
        )
        build.busy.append(op.what == "calc")
        if number in starts:
            start_of[number] = builder.op(
                What.COMPUTE,
                rank=rank_ops.rank,
                lane=lane,
                name=f"start of {op.label or op.what}",
                duration=0.0,
            )
            build.busy.append(False)
            builder.edge(start_of[number], op_of[number])
    for need in rank_ops.needs:
        waits = start_of if _start_only(build, rank_ops, need) else op_of
        builder.edge(waits[need.other], start_of.get(need.op, op_of[need.op]))


def _start_only(build: _Build, rank_ops: GoalRank, need: Need) -> bool:
    """Whether an op with a dependency waits for the start of the other op only."""
    op = rank_ops.ops[need.other]
    return need.start or ((op.what == "send" and op.amount <= EAGER) and not build.exact)


EAGER = 65535
"""Largest eager message (B): the default of ``S`` (LogGOPSim's ``simulator.ggo``)."""


Statement = tuple[OpPlace, GoalOp]


def pair_messages(path: Path, goal: Goal, notes: Counter[str]) -> list[tuple[Statement, Statement]]:
    """Pair sends and receives, each in the order of the file for its source, target and tag.

    Receives from any source, or with any tag, take the remaining sends, in the order of the file;
    LogGOPSim assigns them by arrival. They are counted.

    Raises
    ------
    TraceError
        If a message has only one end, or is sent to its own rank.
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
            raise TraceError(f"{path}:{op.line}: rank {rank}: no rank sends {wanted}")
        if op.amount < send[1].amount:
            amounts = f"{op.amount}b are received of {send[1].amount}b (line {send[1].line})"
            raise TraceError(f"{path}:{op.line}: rank {rank}: {amounts}")
        pairs.append((send, receive))
    for (rank, _), op in mailbox.left():
        where = f"{path}:{op.line}: rank {rank}"
        raise TraceError(f"{where}: no rank receives {op.amount}b to {op.peer} tag {op.tag}")
    return pairs


def _statements(goal: Goal, what: str) -> list[Statement]:
    return [
        ((rank, number), op)
        for rank, rank_ops in sorted(goal.ranks.items())
        for number, op in enumerate(rank_ops.ops)
        if op.what == what
    ]


@dataclass(slots=True)
class _Mailbox:
    """Sends not received yet, in a queue for each combination that a receive may ask for."""

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


ScheduleOf = Callable[[Call], Schedule]
_MOST_CPUS = 255
"""LogGOPSim numbers cpus with 8 bits."""
_DIGITS = 6
"""Digits of a byte beyond which a fractional size is due to rounding."""


def write_goal(workload: Workload, path: Path, schedule_of: ScheduleOf | None = None) -> None:
    """Write a workload as a GOAL schedule.

    Its dependencies must be within ranks. ``schedule_of`` gives the schedule of transfers of a
    call's collective; None if there are no collectives.

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
    write_files([(path, "\n".join([*goal_lines(goal), ""]).encode())])


@dataclass(slots=True)
class _RankWriter:
    """One rank while it is written: the first and last statements of each op."""

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
        """Add dependencies between statements, through one calc if that takes fewer lines."""
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
        """List this rank's sends and receives, one list per step that has any."""
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
        """List this rank's sends and receives in a step, one message per peer."""
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
