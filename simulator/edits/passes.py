"""The passes of micro-batches in a recorded pipeline: which ops of a rank form which pass.

A rank's launched ops are cut at its messages. A schedule, GPipe's or 1F1B, determines the passes
between two of them, forward or backward; the recorded messages must be in its order, and the work
between them must be as long as so many passes. So each stage has a forward and a backward pass of
each micro-batch. Several passes between the same messages, as on the last stage under 1F1B, are
divided in proportion to those of the other stages.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import median
from typing import NamedTuple

import numpy as np

from simulator.calls import SEND_RECEIVE
from simulator.edits.repeats import Program
from simulator.support.arrays import Floats, Longs, Mask
from simulator.support.errors import WorkloadError
from simulator.workload import What, Workload

_ALL = 1.0 - 1e-12
"""Fraction of a pass above which it is complete: fractions are rounded sums."""
_TIE = 1e-9
"""Fraction of a pass, shorter than any op: assigns calls between two host ops to the later one."""
_MOST_LONGER = 1.1
"""A segment longer than its passes by more than this factor contains other work at an end."""
_MOST_UNEXPLAINED = 0.5
"""Largest fraction of work between messages that a schedule may leave unexplained."""
_FORWARD_SHARE = 1 / 3
"""Fraction of both passes, if no stage shows one alone: the backward pass has twice the products.
"""


class Pass(NamedTuple):
    """A pass of a micro-batch through a stage: forward, or backward."""

    is_forward: bool
    micro_batch: int


Order = Callable[[int, int, int], Sequence[Pass]]
"""Passes of a stage in order: ``(stage, stages, micro_batches)``."""


class Direction(NamedTuple):
    """Direction of a message, and the side on which a rank is."""

    is_forward: bool
    sends: bool


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The recorded pipeline: ``ranks[s, c]`` is the rank of stage ``s`` in column ``c``.

    ``stride`` is the difference of the ranks of neighbouring stages.
    """

    ranks: Longs
    stride: int
    micro_batches: int

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.ranks)

    def next_ranks(self, stage: int) -> set[int]:
        """Return the ranks of the next stage."""
        return set(self.ranks[stage + 1].tolist()) if stage + 1 < self.stages else set()

    def rank(self, stage: int, column: int, stages: int) -> int:
        """Return the rank of a column's stage in a pipeline of ``stages`` stages."""
        outer, inner = divmod(int(self.ranks[0, column]), self.stride * self.stages)
        return outer * self.stride * stages + stage * self.stride + inner


def pipeline_of(workload: Workload, programs: Sequence[Program]) -> Pipeline:
    """Infer the stages of a pipeline from the senders and receivers of messages.

    Raises
    ------
    WorkloadError
        If ranks exchange no messages, not as the stages of a pipeline do, or were not all recorded.
    """
    if len(workload.ranks) != workload.job_ranks:
        raise WorkloadError("not all of its ranks were recorded")
    neighbours: dict[int, set[int]] = {rank: set() for rank in workload.ranks}
    for group in set(workload.calls.group[workload.calls.kind == SEND_RECEIVE].tolist()):
        sender, receiver = workload.groups[group].ranks
        neighbours[sender].add(receiver)
        neighbours[receiver].add(sender)
    if not any(neighbours.values()):
        raise WorkloadError("its ranks exchange no messages, so it has no pipeline")
    first = {
        program.rank: program
        for program in programs
        if _begins_pipeline(workload, program, neighbours)
    }
    columns = [_column(rank, neighbours) for rank in sorted(first)]
    stages = {len(column) for column in columns}
    seen = sorted(rank for column in columns for rank in column)
    if len(stages) != 1 or seen != list(workload.ranks):
        raise WorkloadError(
            "its messages are not those of a pipeline without interleaving: each rank must exchange"
            " them with the stages before and after its own only"
        )
    ranks = np.array(columns, dtype=np.int64).T
    stride = int(ranks[1, 0] - ranks[0, 0])
    sent = messages_among(workload, first[int(ranks[0, 0])].ops)
    pipeline = Pipeline(ranks, stride, sum(int(workload.what[op] == What.SEND) for op in sent))
    again = [
        [pipeline.rank(stage, column, len(ranks)) for column in range(ranks.shape[1])]
        for stage in range(len(ranks))
    ]
    if stride < 1 or not np.array_equal(again, ranks):
        raise WorkloadError("the ranks of its stages are not equally far apart")
    return pipeline


def messages_among(workload: Workload, ops: Iterable[int]) -> list[int]:
    """Return those of ops that send or receive a message, in their order."""
    call, kind = workload.call, workload.calls.kind
    return [int(op) for op in ops if call[op] >= 0 and kind[call[op]] == SEND_RECEIVE]


def _begins_pipeline(
    workload: Workload, program: Program, neighbours: Mapping[int, set[int]]
) -> bool:
    """Whether a rank has one neighbour, to which it sends before it receives anything."""
    messages = messages_among(workload, program.ops)
    sends = bool(messages) and bool(workload.what[messages[0]] == What.SEND)
    return sends and len(neighbours[program.rank]) == 1


def _column(rank: int, neighbours: Mapping[int, set[int]]) -> list[int]:
    """Follow messages from a first stage to the last."""
    column = [rank]
    while True:
        ahead = neighbours[column[-1]] - set(column[-2:])
        if len(ahead) != 1 or len(column) > len(neighbours):
            return column
        column.extend(ahead)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Order in which stages pass micro-batches on.

    ``early``: the message that a pass needs is received before the previous pass, not after it.
    """

    name: str
    order: Order
    early: bool
    micro_batches: int

    def tokens(self, stage: int, stages: int) -> list[Pass | Direction]:
        """Return the passes of a stage among its messages."""
        passes = self.order(stage, stages, self.micro_batches)
        first, last = stage == 0, stage + 1 == stages
        tokens: list[Pass | Direction] = []
        awaited = 0  # number of passes whose receives are listed
        for number, passing in enumerate(passes):
            tokens += [
                Direction(ahead.is_forward, sends=False)
                for ahead in passes[awaited : number + 1 + self.early]
                if not (first if ahead.is_forward else last)
            ]
            awaited = number + 1 + self.early
            tokens.append(passing)
            if not (last if passing.is_forward else first):
                tokens.append(Direction(passing.is_forward, sends=True))
        return tokens


@dataclass(frozen=True, slots=True)
class Segment:
    """Work of a rank between two messages: ops in order, and their passes.

    ``weight`` of an op is its contribution to the length of the segment (s). ``message`` is the op
    that ends it, -1 at the end of the step. ``opaque``: no kernels were recorded, only the host's
    time. ``follows``: ops of no weight that belong to the kernel before them, not to the next.
    """

    passes: tuple[Pass, ...]
    ops: Longs
    weight: Floats
    follows: Mask
    message: int
    opaque: bool

    @property
    def length(self) -> float:
        """Duration of its work, without waiting (s)."""
        return float(self.weight.sum())

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of forward and of backward passes."""
        forward = sum(passing.is_forward for passing in self.passes)
        return forward, len(self.passes) - forward


class Piece(NamedTuple):
    """Ops of one rank in order, and the fraction of each one's duration that is included."""

    ops: Longs
    part: Floats

    @staticmethod
    def nothing() -> "Piece":
        """Return the piece without ops."""
        return Piece(np.empty(0, dtype=np.int64), np.empty(0))

    def and_then(self, later: "Piece") -> "Piece":
        """Return this piece, followed by another."""
        return Piece(np.append(self.ops, later.ops), np.append(self.part, later.part))


@dataclass(frozen=True, slots=True)
class Content:
    """The ops between two messages, of which a pass is the part from ``begin`` to ``end``.

    ``opaque`` is time of which only the length is known: it may be cut anywhere.
    """

    ops: Longs
    weight: Floats
    follows: Mask
    opaque: bool
    begin: float = 0.0
    end: float = 1.0

    def piece(self, low: float, high: float) -> Piece:
        """Return the ops between two fractions of its length."""
        low, high = (self.begin + share * (self.end - self.begin) for share in (low, high))
        total = float(self.weight.sum()) or 1.0
        ends = np.cumsum(self.weight) / total
        begins = ends - self.weight / total
        middle = (begins + ends) / 2
        long = ends > begins
        if self.opaque:
            middle[~long] += _TIE
        elif long.any():
            # Ops of no length are where the kernel is that they follow, or that follows them
            count = np.cumsum(long)
            kernel = np.where(self.follows | long, count - 1, count).clip(0, count[-1] - 1)
            middle = middle[long][kernel]
        part = ((middle >= low) & ((middle < high) | (high > _ALL))).astype(np.float64)
        if self.opaque:
            shared = np.minimum(ends, high)[long] - np.maximum(begins, low)[long]
            part[long] = np.maximum(0.0, shared / (ends - begins)[long])
        inside = part > 0
        return Piece(self.ops[inside], part[inside])


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """A rank of the recorded pipeline: its passes, and its work before and after them."""

    passes: Mapping[Pass, Content]
    before: Piece
    after: Piece


def recognised(
    workload: Workload, programs: Sequence[Program], pipeline: Pipeline, orders: Mapping[str, Order]
) -> tuple[Schedule, dict[int, list[Segment]]]:
    """Identify the schedule that the messages follow, and cut each rank's work at them.

    Of several it is the one whose passes best explain the lengths of work between messages.
    """
    by_rank = {program.rank: program for program in programs}
    edges = workload.edges
    is_kernel = (workload.what == What.COMPUTE) | (workload.what == What.COPY)
    after_kernel = np.zeros(len(workload), dtype=np.bool_)
    after_kernel[edges.target[is_kernel[edges.source]]] = True
    least, nearest = _MOST_UNEXPLAINED, None
    for (name, order), early in itertools.product(orders.items(), (False, True)):
        schedule = Schedule(name, order, early, pipeline.micro_batches)
        segments: dict[int, list[Segment]] = {}
        for stage, ranks in enumerate(pipeline.ranks.tolist()):
            tokens = schedule.tokens(stage, pipeline.stages)
            next_ranks = pipeline.next_ranks(stage)
            for rank in ranks:
                messages = messages_among(workload, by_rank[rank].ops)
                if _matches([direction_of(workload, op, next_ranks) for op in messages], tokens):
                    segments[rank] = _segments(
                        workload, by_rank[rank], messages, tokens, after_kernel
                    )
        if len(segments) == pipeline.ranks.size and (misfit := _misfit(segments)) < least:
            least, nearest = misfit, (schedule, segments)
    if nearest is not None:
        return nearest
    raise WorkloadError(
        f"its messages are not in the order of {' or '.join(orders)}: interleaved and zero-bubble"
        " schedules cannot be divided"
    )


def _misfit(segments: Mapping[int, Sequence[Segment]]) -> float:
    """Return the fraction of the work between messages that a schedule leaves unexplained.

    Work between two messages is explained by the passes there, if forward passes are equally long
    on all stages, and backward passes. Before and after all passes is other work.
    """
    every = [part for parts in segments.values() for part in parts]
    is_end = np.array([n in (0, len(p) - 1) for p in segments.values() for n in range(len(p))])
    counts = np.array([part.counts for part in every], dtype=np.float64)
    length = np.array([part.length for part in every])
    pass_length, *_ = np.linalg.lstsq(counts[~is_end], length[~is_end], rcond=None)
    missing = counts @ pass_length - length
    unexplained = np.where(is_end, np.maximum(0.0, missing), np.abs(missing))
    return float(unexplained.sum()) / (float(length.sum()) or 1.0)


def _matches(messages: Sequence[Direction], tokens: Sequence[Pass | Direction]) -> bool:
    """Whether messages are in a schedule's order: between two passes, in any order."""
    position = 0
    for is_pass, group in itertools.groupby(tokens, lambda token: isinstance(token, Pass)):
        if is_pass:
            continue
        wanted = list(group)
        if sorted(messages[position : position + len(wanted)]) != sorted(wanted):
            return False
        position += len(wanted)
    return position == len(messages)


def direction_of(workload: Workload, op: int, next_ranks: set[int]) -> Direction:
    """Return the direction of a message; ``next_ranks`` are those of the next stage."""
    sender, receiver = workload.groups[workload.calls.group[workload.call[op]]].ranks
    sends = bool(workload.what[op] == What.SEND)
    return Direction(receiver in next_ranks if sends else sender not in next_ranks, sends)


def _segments(
    workload: Workload,
    program: Program,
    messages: Sequence[int],
    tokens: Sequence[Pass | Direction],
    after_kernel: Mask,
) -> list[Segment]:
    """Cut a rank's launched ops at its messages."""
    between: list[list[Pass]] = [[]]
    for token in tokens:
        if isinstance(token, Direction):
            between.append([])
        else:
            between[-1].append(token)
    is_message = np.isin(program.ops, messages)
    launched = np.concatenate([[0], np.cumsum(is_message[:-1])]) if len(is_message) else is_message
    what = workload.what[program.ops]
    sees_kernels = bool(((what == What.COMPUTE) | (what == What.COPY)).any())
    segments = []
    position, at = 0, np.flatnonzero(is_message)
    for number, inside in enumerate(between):
        between_messages = np.flatnonzero((launched == number) & ~is_message)
        is_last = number == len(messages)
        end_op = -1 if is_last else messages[number]
        end = len(program.hosts) if is_last else int(program.position[at[number]])
        hosts = program.hosts[position:end]
        kernels = program.ops[between_messages]
        # A launched op comes after the host op that launches it.
        keys = np.concatenate(
            [np.arange(position, end) + 0.5, program.position[between_messages].astype(float)]
        )
        ops = np.concatenate([hosts, kernels])[np.argsort(keys, kind="stable")]
        counted = (workload.what[ops] == What.HOST) ^ sees_kernels
        weight = np.where(counted & (workload.call[ops] < 0), workload.duration[ops], 0.0)
        follows = _follows(workload, ops, after_kernel)
        segments.append(Segment(tuple(inside), ops, weight, follows, end_op, not sees_kernels))
        position = end
    return segments


def _follows(workload: Workload, ops: Longs, after_kernel: Mask) -> Mask:
    """Mark ops that belong to the kernel before them: calls that wait for it, their launches."""
    follows = after_kernel[ops] & (workload.call[ops] >= 0)
    host = workload.what[ops] == What.HOST
    launched = np.flatnonzero(~host)
    following = np.searchsorted(launched, np.flatnonzero(host))
    follows[host] = np.append(follows[launched], np.False_)[following]
    return follows


def passes_of_ranks(
    workload: Workload, pipeline: Pipeline, recorded: Mapping[int, Sequence[Segment]]
) -> dict[int, RecordedRank]:
    """Return the passes of each rank, by the lengths of those alone between two messages."""
    segments = {
        rank: parts
        for stage in pipeline.ranks.tolist()
        for rank, parts in zip(stage, _mean(workload, [recorded[r] for r in stage]), strict=True)
    }
    spans = _spans_stages(workload, pipeline)
    alone = {rank: (_alone(parts, 0), _alone(parts, 1)) for rank, parts in segments.items()}
    shares = [f / (f + b) for f, b in alone.values() if f is not None and b is not None and f + b]
    share = median(shares) if shares else _FORWARD_SHARE
    return {
        rank: _divide(parts, _pass_lengths(parts, alone[rank], share), spans)
        for rank, parts in segments.items()
    }


def _mean(workload: Workload, columns: Sequence[Sequence[Segment]]) -> list[list[Segment]]:
    """Give equal ops of a stage's ranks their mean weight, so that all are cut at the same ops."""
    result = []
    for parts in zip(*columns, strict=True):
        kinds = {tuple(workload.what[part.ops].tolist()) for part in parts}
        if len(kinds) > 1 or parts[0].opaque:
            result.append(list(parts))
            continue
        weight = np.mean([part.weight for part in parts], axis=0)
        result.append([replace(part, weight=weight) for part in parts])
    return [list(parts) for parts in zip(*result, strict=True)]


def _spans_stages(workload: Workload, pipeline: Pipeline) -> Mask:
    """Mark the ops of calls, not messages, among ranks of several stages, and their launches."""
    stage_of = {rank: s for s, ranks in enumerate(pipeline.ranks.tolist()) for rank in ranks}
    several = np.array([len({stage_of[r] for r in g.ranks}) > 1 for g in workload.groups], bool)
    calls = workload.calls
    wide = several[calls.group] & (calls.kind != SEND_RECEIVE)
    joins: Mask = (workload.call >= 0) & np.append(wide, np.False_)[workload.call]
    if (workload.what == What.COMPUTE).any():  # else the host's time is that of passes
        source, target = workload.edges.source, workload.edges.target
        joins[source[joins[target] & (workload.what[source] == What.HOST)]] = True
    return joins


def _alone(parts: Sequence[Segment], direction: int) -> float | None:
    """Return the length of passes that are alone between messages: 0 forward, 1 backward."""
    lengths: tuple[list[float], list[float]] = [], []
    for number, part in enumerate(parts):
        if part.counts[direction] == 1 and not part.counts[1 - direction]:
            lengths[number in (0, len(parts) - 1)].append(part.length)
    inner, ends = lengths
    return median(inner or ends) if inner or ends else None


def _pass_lengths(
    parts: Sequence[Segment], alone: tuple[float | None, float | None], share: float
) -> tuple[float, float]:
    """Return the lengths of a rank's passes, forward and backward.

    If neither is alone between messages, forward passes have a ``share`` of both.
    """
    forward, backward = alone
    inner = [part for part in parts[1:-1] if part.passes] or [part for part in parts if part.passes]
    if forward is None and backward is None:
        both = median(
            part.length / (part.counts[0] * share + part.counts[1] * (1 - share)) for part in inner
        )
        return share * both, (1 - share) * both
    if forward is None:
        forward = _remaining_length(parts, 0, backward or 0.0)
    if backward is None:
        backward = _remaining_length(parts, 1, forward)
    return forward, backward


def _remaining_length(parts: Sequence[Segment], direction: int, length_of_others: float) -> float:
    """Return the length of passes in one direction, given that of the other."""
    having = [part for part in parts[1:-1] if part.counts[direction]]
    lengths = [
        (part.length - part.counts[1 - direction] * length_of_others) / part.counts[direction]
        for part in having or parts
        if part.counts[direction]
    ]
    return max(0.0, median(lengths)) if lengths else 0.0


def _divide(parts: Sequence[Segment], lengths: tuple[float, float], spans: Mask) -> RecordedRank:
    """Divide the work between messages into passes, and the work before and after them.

    No call among several stages (``spans``) may be between passes.
    """
    passes: dict[Pass, Content] = {}
    before, after = Piece.nothing(), Piece.nothing()
    last = len(parts) - 1
    for number, part in enumerate(parts):
        ops, weight, follows = part.ops, part.weight, part.follows
        if (wide := np.flatnonzero(spans[ops])).size:
            if number not in (0, last):
                raise WorkloadError("ranks of several stages make calls between its passes")
            at = int(wide[0]) if number == last else int(wide[-1]) + 1
            pieces = Piece(ops[:at], np.ones(at)), Piece(ops[at:], np.ones(len(ops) - at))
            if number == last:
                (ops, _), after = pieces
                weight, follows = weight[:at], follows[:at]
            else:
                before, (ops, _) = pieces
                weight, follows = weight[at:], follows[at:]
        content = Content(ops, weight, follows, part.opaque)
        expected = [lengths[not passing.is_forward] for passing in part.passes]
        total, length = fsum(expected), float(weight.sum())
        is_longer = number in (0, last) and _MOST_LONGER * total < length
        share = total / length if is_longer else 1.0
        begin = 1.0 - share if number == 0 else 0.0
        before = before.and_then(content.piece(0.0, begin)) if begin else before
        after = content.piece(share, 1.0).and_then(after) if begin + share < 1 else after
        for passing, pass_length in zip(part.passes, expected, strict=True):
            end = begin + share * pass_length / (total or 1.0)
            passes[passing] = replace(content, begin=begin, end=end)
            begin = end
    return RecordedRank(passes, before, after)
