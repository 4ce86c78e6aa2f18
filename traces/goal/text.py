"""GOAL text (LogGOPSim's dialect of the Group Operation Assembly Language), both ways.

::

    num_ranks 2

    rank 0 {
    l1: calc 100 cpu 0
    l2: send 10b to 1 tag 5
    l2 requires l1
    }

The grammar is that of LogGOPSim's ``txt2bin.re``. A ``calc`` counts nanoseconds, as LogGOPSim's
own times do. ``l2 irequires l1``: l2 may start once l1 has started.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulator.errors import TraceError
from traces.core.sniff import GOAL_COMMENT

ANY = -1
"""Any source, any tag."""
EXACT = "// twofold: a send ends when it has arrived, and requires tells all order there is"
"""A line of files written here: no eager messages, no order on a cpu that is not written."""
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
    """``op`` requires ``other``, or its ``start`` only; both are places in the rank."""

    op: int
    other: int
    start: bool = False


@dataclass(slots=True)
class GoalRank:
    """One rank: its statements, and what they require."""

    rank: int
    ops: list[GoalOp] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)


@dataclass(slots=True)
class Goal:
    """A schedule; ``exact`` is said by :data:`EXACT`."""

    num_ranks: int
    ranks: dict[int, GoalRank] = field(default_factory=dict)
    exact: bool = False


def parse_goal(path: Path, text: str) -> Goal:
    """Read a schedule.

    Raises
    ------
    TraceError
        If a line is none of GOAL's, a label is not there or stands twice, or a rank is not closed.
    """
    lines = _lines(text)
    number, first = next(lines, (1, ""))
    ranks = _RANKS.fullmatch(first)
    if ranks is None or not 0 < int(ranks[1]) <= _MOST_RANKS:
        raise TraceError(f"{path}:{number}: a GOAL schedule begins with 'num_ranks N', N >= 1")
    goal = Goal(int(ranks[1]), exact=EXACT in text)
    for number, line in lines:
        head = _RANK.fullmatch(line)
        if head is None:
            raise TraceError(f"{path}:{number}: {line[:60]!r} is not 'rank N {{'")
        rank = int(head[1])
        if rank >= goal.num_ranks or rank in goal.ranks:
            why = "again" if rank in goal.ranks else f"of num_ranks {goal.num_ranks}"
            raise TraceError(f"{path}:{number}: rank {rank} {why}")
        if not head[2] and next(lines, (0, ""))[1] != "{":
            raise TraceError(f"{path}:{number}: rank {rank}: '{{' is missing")
        goal.ranks[rank] = _rank(path, goal, rank, lines)
    return goal


def goal_lines(goal: Goal) -> Iterator[str]:
    """Write a schedule, line by line."""
    yield f"num_ranks {goal.num_ranks}"
    if goal.exact:
        yield EXACT
    for rank in range(goal.num_ranks):
        own = goal.ranks.get(rank, GoalRank(rank))
        yield ""
        yield f"rank {rank} {{"
        for number, op in enumerate(own.ops):
            yield f"l{number}: {_statement(op)}"
        for need in own.needs:
            yield f"l{need.op} {'irequires' if need.start else 'requires'} l{need.other}"
        yield "}"


def _statement(op: GoalOp) -> str:
    where = f" cpu {op.cpu}" if op.cpu else ""
    nic = f" nic {op.nic}" if op.nic else ""
    if op.what == "calc":
        return f"calc {op.amount}{where}"
    way = "to" if op.what == "send" else "from"
    return f"{op.what} {op.amount}b {way} {op.peer} tag {op.tag}{where}{nic}"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that say something, with their numbers; a brace may share one with a statement."""
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
            raise TraceError(f"{path}:{number}: rank {rank}: label {op.label!r} stands twice")
        result.ops.append(op)
    raise TraceError(f"{path}: rank {rank} is not closed by '}}': the file is cut short")


def _resolve(
    path: Path,
    result: GoalRank,
    labels: dict[str, int],
    needs: list[tuple[int, str, bool, str]],
) -> None:
    for number, label, start, other in needs:
        for named in (label, other):
            if named not in labels:
                raise TraceError(
                    f"{path}:{number}: rank {result.rank}: no op is labelled {named!r}"
                )
        result.needs.append(Need(labels[label], labels[other], start))


def _op(path: Path, number: int, line: str, num_ranks: int) -> GoalOp:
    parsed = _OP.fullmatch(line)
    if parsed is None or (parsed["what"] and (parsed["way"] == "to") != (parsed["what"] == "send")):
        raise TraceError(
            f"{path}:{number}: {line[:60]!r} is none of: calc N; send Nb to R tag T; "
            "recv Nb from R tag T; l1 requires l2; l1 irequires l2"
        )
    amount = int(parsed["calc"] or parsed["size"])
    if amount >= _MOST:
        raise TraceError(f"{path}:{number}: {amount} does not fit in 64 bits")
    peer, tag = int(parsed["peer"] or ANY), int(parsed["tag"] or 0)
    if parsed["what"]:
        if peer >= num_ranks:
            raise TraceError(f"{path}:{number}: rank {peer} of num_ranks {num_ranks}")
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
