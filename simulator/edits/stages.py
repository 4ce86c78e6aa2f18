"""Another number of pipeline stages: the recorded passes, divided among other ranks.

The stages of the new pipeline cover the same layers: stage ``t`` of ``Q`` those from ``t / Q`` to
``(t + 1) / Q`` of the model, where the recorded stages cover ``1 / P`` each. Its passes are these
parts of the recorded passes (:mod:`simulator.edits.passes`), in their order: kernels and calls are
not split; if only messages were recorded, the host's time between them is. Passes are in the order
of the same schedule for ``Q`` stages, which determines the number of micro-batches in flight (Huang
et al., GPipe, arXiv 1811.06965; Narayanan et al., arXiv 2104.04473, section 2.2).
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow, Group
from simulator.edits.passes import (
    Direction,
    Order,
    Pass,
    Piece,
    Pipeline,
    RecordedRank,
    Schedule,
    Segment,
    direction_of,
    messages_among,
    passes_of_ranks,
    recognised,
)
from simulator.edits.repeats import Program
from simulator.support.arrays import Mask
from simulator.support.errors import WorkloadError
from simulator.workload import What, Workload


def restaged(
    workload: Workload,
    programs: Sequence[Program],
    pipeline: Pipeline,
    orders: Mapping[str, Order],
    stages: int,
) -> tuple[Workload, str]:
    """Return the step of the same model on another number of stages, and its schedule's name.

    Parameters
    ----------
    workload, programs, pipeline
        The recorded step, the launches of its ranks, and its stages.
    orders
        Schedules by name, of which the step must follow one; the one that explains it best is used.
    stages
        New number of stages.

    Raises
    ------
    WorkloadError
        If messages are in no schedule's order, a pass has too few kernels to be divided, or a group
        has members in some stages without counterparts in others.
    """
    schedule, segments = recognised(workload, programs, pipeline, orders)
    return _NewJob(workload, pipeline, stages, segments, schedule).build(), schedule.name


class _MessageStyle(NamedTuple):
    """Form of messages in one direction: as ``op``, launched by the host and maybe awaited by it.

    ``host`` is the host's time before one that follows another message (s), ``lag`` that from its
    launch to its start (s), ``size`` in bytes. ``lanes`` are the streams whose work a sent message
    waits for, or whose work waits for a received one.
    """

    op: int
    host: float
    lag: float
    size: float
    is_awaited: bool
    lanes: frozenset[str]


@dataclass(eq=False)
class _NewJob:
    """The new job under construction."""

    workload: Workload
    pipeline: Pipeline
    stages: int
    segments: Mapping[int, Sequence[Segment]]
    schedule: Schedule
    calls: dict[tuple[int, int, str], int] = field(default_factory=dict)
    calls_made: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    recorded_op: dict[int, int] = field(default_factory=dict)
    """The recorded op that an op is a part of; none for messages and waits for them."""

    def __post_init__(self) -> None:
        ranks = self.pipeline.ranks
        self.stage_of = {int(rank): stage for stage, row in enumerate(ranks) for rank in row}
        self.column_of = {int(rank): c for row in ranks for c, rank in enumerate(row)}
        self.builder = WorkloadBuilder(
            job_ranks=self.workload.job_ranks // self.pipeline.stages * self.stages,
            notes=list(self.workload.notes),
        )
        self.contents = passes_of_ranks(self.workload, self.pipeline, self.segments)
        self.launches = np.full(len(self.workload), -1)  # the name of what a host op launches
        self.styles = self._message_styles()
        hosts = np.unique(self.workload.lane[self.workload.what == What.HOST])
        self.host_lanes = {self.workload.lanes[lane] for lane in hosts.tolist()}

    def build(self) -> Workload:
        """Write all ranks."""
        for stage in range(self.stages):
            for column in range(self.pipeline.ranks.shape[1]):
                _NewRank(self, stage, column).write()
        built = self.builder.build()
        for call in np.flatnonzero(
            built.members != [len(built.groups[g].ranks) for g in built.calls.group]
        ):
            raise WorkloadError(f"ranks would make different calls: {built.call_view(int(call))}")
        step = self.workload
        module = None
        if step.module is not None:
            module = np.full(len(built), -1, dtype=np.int32)
            module[list(self.recorded_op)] = step.module[list(self.recorded_op.values())]
        return replace(
            built, library=step.library, repeats=step.repeats, module=module, modules=step.modules
        )

    def recorded(self, stage: int, column: int) -> RecordedRank:
        """Return the passes of a recorded stage, and its work before and after them."""
        return self.contents[int(self.pipeline.ranks[stage, column])]

    def main_lane(self, stage: int, column: int) -> str:
        """Return the lane of the first host op of a recorded stage; "" if it has none."""
        workload = self.workload
        segments = self.segments[int(self.pipeline.ranks[stage, column])]
        ops = np.concatenate([segment.ops for segment in segments])
        hosts = ops[workload.what[ops] == What.HOST]
        return workload.lanes[workload.lane[hosts[0]]] if len(hosts) else ""

    def _message_styles(self) -> dict[Direction, _MessageStyle]:
        workload, edges = self.workload, self.workload.edges
        host = workload.what == What.HOST
        source, target = edges.source, edges.target
        launch = host[source] & ~host[target] & (workload.rank[source] == workload.rank[target])
        self.launches[source[launch]] = workload.name[target[launch]]
        lag, awaited = np.zeros(len(workload)), np.zeros(len(workload), dtype=np.bool_)
        lag[target[launch]] = edges.lag[launch]
        awaited[source[~host[source] & host[target]]] = True
        messages: dict[Direction, list[int]] = defaultdict(list)
        between: dict[Direction, list[float]] = defaultdict(list)
        for rank, segments in self.segments.items():
            stage = self.stage_of[rank]
            for number, segment in enumerate(segments[:-1]):
                direction = direction_of(workload, segment.message, self.pipeline.next_ranks(stage))
                messages[direction].append(segment.message)
                if number and not segment.passes:
                    hosts = segment.ops[host[segment.ops]]
                    between[direction].append(float(workload.duration[hosts].sum()))
        return {
            direction: _MessageStyle(
                op=ops[0],
                host=median(between[direction] or [0.0]),
                lag=float(np.median(lag[ops])),
                size=median(workload.calls.size[workload.call[ops]].tolist()),
                is_awaited=bool(awaited[ops].mean() > 0.5),
                lanes=self._streams_beside(ops, sends=direction.sends),
            )
            for direction, ops in messages.items()
        }

    def _streams_beside(self, messages: Sequence[int], *, sends: bool) -> frozenset[str]:
        """Return the streams of other ops that messages wait for, or that wait for them."""
        workload, edges = self.workload, self.workload.edges
        ends, others = (edges.target, edges.source) if sends else (edges.source, edges.target)
        next_to = others[np.isin(ends, messages)]
        next_to = next_to[(workload.what[next_to] != What.HOST) & ~self._is_message[next_to]]
        return frozenset(workload.lanes[lane] for lane in np.unique(workload.lane[next_to]))

    @cached_property
    def _is_message(self) -> Mask:
        mask = np.zeros(len(self.workload), dtype=np.bool_)
        mask[messages_among(self.workload, range(len(self.workload)))] = True
        return mask

    def group(self, group: Group, stage: int) -> tuple[int, ...] | None:
        """Return the ranks of a group's members on a stage; None if it has none there."""
        by_stage: dict[int, list[int]] = defaultdict(list)
        for rank in group.ranks:
            by_stage[self.stage_of[rank]].append(self.column_of[rank])
        last = self.pipeline.stages - 1
        if len(by_stage) == 1:
            (columns,) = by_stage.values()
            return tuple(self.pipeline.rank(stage, column, self.stages) for column in columns)
        if len(by_stage) == self.pipeline.stages and len({*map(tuple, by_stage.values())}) == 1:
            members = dict.fromkeys(range(self.stages), by_stage[0])
        elif set(by_stage) == {0, last}:
            members = {0: by_stage[0], self.stages - 1: by_stage[last]}
        else:
            raise WorkloadError(f"{group} has members in some stages of the pipeline only")
        if stage not in members:
            return None
        number = self.pipeline.rank
        return tuple(sorted(number(s, c, self.stages) for s, row in members.items() for c in row))

    def call(self, rank: int, ranks: tuple[int, ...], row: CallRow, label: str) -> int:
        """Return the next call of a rank in a group, the same for all of its members."""
        group = self.builder.group(ranks, label)
        number = self.calls_made[group, rank]
        self.calls_made[group, rank] += 1
        key = group, number, row.kind
        if key not in self.calls:
            self.calls[key] = self.builder.call(replace(row, group=group, sequence=number))
        return self.calls[key]


@dataclass(eq=False)
class _NewRank:
    """A rank of the new job, whose ops are written in program order."""

    job: _NewJob
    stage: int
    column: int

    def __post_init__(self) -> None:
        self.rank = self.job.pipeline.rank(self.stage, self.column, self.job.stages)
        self._template = self._recorded_stage()
        self._main = self.job.main_lane(self._template, self.column)
        self._last: dict[tuple[str, What | None], int] = {}  # the last op of a lane
        self._waits_for: list[int] = []  # predecessors of the next piece
        self._posted: dict[bool, list[int]] = {True: [], False: []}  # pending receives
        self._arrived: dict[str, int] = {}  # message that a stream's next op waits for
        self._sent: list[int] = []
        # By recorded op of a later piece: the ops of earlier pieces that it waits for, and lags.
        self._awaited: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self._equivalents: dict[int, list[int]] = defaultdict(
            list
        )  # by op before or after the passes
        parts, stages = self.job.pipeline.stages, self.job.stages
        self._low, self._high = self.stage * parts / stages, (self.stage + 1) * parts / stages
        self._covered = range(int(self._low + 1e-9), min(parts, int(np.ceil(self._high - 1e-9))))

    def _recorded_stage(self) -> int:
        """Return the recorded stage whose work before and after its passes this one has."""
        parts, stages = self.job.pipeline.stages, self.job.stages
        if self.stage + 1 == stages:
            return parts - 1
        return int((self.stage + 0.5) * parts / stages) if self.stage else 0

    def write(self) -> None:
        """Write the rank's step."""
        job, stages = self.job, self.job.stages
        recorded = [job.recorded(stage, self.column) for stage in range(job.pipeline.stages)]
        self._outside_passes([of_stage.before for of_stage in recorded])
        for token in job.schedule.tokens(self.stage, stages):
            if isinstance(token, Direction):
                self._message(token)
            else:
                self._pass(token)
        if any(job.styles[d].is_awaited for d in job.styles if d.sends):
            self._wait(self._sent)
        self._outside_passes(
            [of_stage.after for of_stage in recorded], share=len(recorded) / stages
        )

    def _outside_passes(self, pieces: Sequence[Piece], share: float | None = None) -> None:
        """Write the work before the passes, or behind them, given that of the recorded stages.

        What only the first stage has is written if there is one stage. What only an end of the
        pipeline has is written there, whole.
        """
        template, last = pieces[self._template], len(pieces) - 1
        for stage in self._covered:
            for op, same in self._like(template, pieces[stage]).items():
                self._equivalents[op].append(same)
        whole = [(template, self._main, share)]
        if self.job.stages == 1:
            ops, part = pieces[0]
            alone = ~np.isin(ops, list(self._like(template, pieces[0]).values()))
            main = self.job.main_lane(0, self.column)
            whole.insert(share is not None, (Piece(ops[alone], part[alone]), main, None))
        elif self._template in (0, last):
            ops, part = template
            common = np.isin(ops, list(self._like(template, pieces[last - self._template])))
            if 0 < self.stage < self.job.stages - 1:
                whole = [(Piece(ops[common], part[common]), self._main, share)]
            elif share is not None:  # what only an end has is not divided
                scaled = ~self._has_kernels(template) | (
                    self.job.workload.what[ops] == What.COMPUTE
                )
                part = np.where(common | ~scaled, part, part / share)
                whole = [(Piece(ops, part), self._main, share)]
        for piece in whole:
            self._piece(*piece)

    def _like(self, piece: Piece, other: Piece) -> dict[int, int]:
        """Pair the ops of two pieces: the n-th of a name on a stream, or that launches it."""
        workload, ops = self.job.workload, defaultdict(list)
        names, others = (
            zip(
                np.where(
                    workload.what[ops_of] == What.HOST, -1, workload.lane[ops_of]
                ).tolist(),  # threads differ
                workload.what[ops_of].tolist(),
                workload.name[ops_of].tolist(),
                self.job.launches[ops_of].tolist(),
                strict=True,
            )
            for ops_of in (piece.ops, other.ops)
        )
        for op, name in zip(piece.ops.tolist(), names, strict=True):
            ops[name].append(op)
        pairs = zip(other.ops.tolist(), others, strict=True)
        return {ops[name].pop(0): op for op, name in pairs if ops[name]}

    def _pass(self, recorded_pass: Pass) -> None:
        """Write the parts of recorded passes that belong to the stage's layers."""
        stages, low, high, numbers = self.job.stages, self._low, self._high, self._covered
        forward = recorded_pass.is_forward
        if self._posted[forward]:
            # The pass begins after the message that it needs.
            message = self._posted[forward].pop(0)
            style = self.job.styles[Direction(forward, sends=False)]
            if style.is_awaited:
                self._wait([message])
            else:
                self._arrived = dict.fromkeys(style.lanes, message)
        sees_kernels = False
        for number in numbers if forward else reversed(numbers):
            begin, end = max(0.0, low - number), min(1.0, high - number)
            content = self.job.recorded(number, self.column).passes[recorded_pass]
            main = self.job.main_lane(number, self.column)
            piece = content.piece(*((begin, end) if forward else (1 - end, 1 - begin)))
            sees_kernels |= content.opaque or self._has_kernels(piece)
            self._piece(piece, main)
        if not sees_kernels:
            raise WorkloadError(
                f"a pass of stage {numbers[0]} has too few kernels to be divided among {stages}"
                " stages"
            )

    def _piece(self, piece: Piece, main: str, share: float | None = None) -> None:
        """Write ops and the edges among them; weight updates take ``share`` of their time."""
        workload, builder = self.job.workload, self.job.builder
        copies: dict[int, int] = {}
        has_kernels = self._has_kernels(piece)
        for op, part in zip(piece.ops.tolist(), piece.part.tolist(), strict=True):
            what, call = What(workload.what[op]), self._call(op, share)
            if call is None:
                continue
            is_scaled = share is not None and (what == What.COMPUTE or not has_kernels)
            factor = part * share if is_scaled and share is not None else part
            lane = workload.lanes[workload.lane[op]]
            # NaN where unknown.
            flops, traffic = (
                math.nan if column is None else float(column[op]) * factor
                for column in (workload.flops, workload.traffic)
            )
            copies[op] = builder.op(
                what,
                rank=self.rank,
                lane=self._main if lane == main else lane,
                name=workload.names[workload.name[op]],
                duration=float(workload.duration[op]) * factor,
                call=call,
                work=(flops, traffic),
            )
            self.job.recorded_op[copies[op]] = op
            for same in self._equivalents.get(op, (op,)):
                for before, lag in self._awaited[same]:
                    builder.edge(before, copies[op], lag=lag)
            if (message := self._arrived.pop(lane, None)) is not None:
                builder.edge(message, copies[op])
            self._in_order(self._main if lane == main else lane, copies[op])
        self._edges(copies)

    def _has_kernels(self, piece: Piece) -> bool:
        return bool((self.job.workload.what[piece.ops] == What.COMPUTE).any())

    def _in_order(self, lane: str, op: int, what: What | None = None) -> None:
        """Let an op follow the last one of its lane."""
        if (lane, what) in self._last:
            self.job.builder.edge(self._last[lane, what], op)
        self._last[lane, what] = op

    def _edges(self, copies: Mapping[int, int]) -> None:
        edges, builder = self.job.workload.edges, self.job.builder
        begins = set(copies.values())
        for op, copy in copies.items():
            rows = [
                range(*edges.offset[same : same + 2]) for same in self._equivalents.get(op, (op,))
            ]
            for edge in itertools.chain(*rows):
                target, lag = edges.target[edge], edges.lag[edge]
                if (after := copies.get(int(target))) is not None:
                    builder.edge(copy, after, lag=float(lag))
                    begins.discard(after)
                else:
                    self._awaited[int(target)].append((copy, float(lag)))
        for begin in begins:
            for before in self._waits_for:
                builder.edge(before, begin)
        if copies:
            # Other threads of the host, such as autograd's, end before the main one continues
            hosts = (self._last.get((lane, None)) for lane in self.job.host_lanes - {self._main})
            self._waits_for = [op for op in hosts if op in set(copies.values())]

    def _call(self, op: int, share: float | None) -> int | None:
        """Return the call that the copy of an op is part of; -1: none, None: it is dropped."""
        workload, call = self.job.workload, int(self.job.workload.call[op])
        if call < 0:
            return -1
        view = workload.call_view(call)
        ranks = self.job.group(view.group, self.stage)
        if ranks is None:
            return None
        stages = {self.job.stage_of[rank] for rank in view.group.ranks}
        of_weights = share is not None and len(stages) == 1
        row = CallRow(
            view.kind,
            group=0,
            sequence=0,
            size=view.size * share if of_weights and share is not None else view.size,
            dtype=view.dtype,
            transfer=view.transfer,
            eager=view.eager,
            shares=view.shares,
        )
        return self.job.call(self.rank, ranks, row, view.group.label)

    def _message(self, direction: Direction) -> None:
        """Write a message to or from a neighbour, in the form of its direction."""
        job, builder, style = self.job, self.job.builder, self.job.styles[direction]
        workload = job.workload
        view = workload.call_view(int(workload.call[style.op]))
        neighbour_stage = self.stage + (1 if direction.is_forward is direction.sends else -1)
        neighbour = job.pipeline.rank(neighbour_stage, self.column, job.stages)
        ranks = (self.rank, neighbour) if direction.sends else (neighbour, self.rank)
        row = CallRow(view.kind, 0, 0, size=style.size, dtype=view.dtype, eager=view.eager)
        if not direction.sends and style.host and self._last:
            self._host_op("between messages", style.host)
        what, lane = What(workload.what[style.op]), workload.lanes[workload.lane[style.op]]
        is_stream = lane not in job.host_lanes
        lane = lane if is_stream else self._main
        op = builder.op(
            what,
            rank=self.rank,
            lane=lane,
            name=workload.names[workload.name[style.op]],
            duration=float(workload.duration[style.op]),
            call=job.call(self.rank, ranks, row, view.group.label),
        )
        self._in_order(lane, op, None if is_stream else what)
        if (launch := self._last.get((self._main, None))) is not None:
            builder.edge(launch, op, lag=style.lag)
        if direction.sends:
            for stream in sorted(style.lanes):
                if (end := self._last.get((stream, None))) is not None:
                    builder.edge(end, op)
            self._sent.append(op)
        else:
            self._posted[direction.is_forward].append(op)

    def _host_op(self, name: str, duration: float) -> int:
        op = self.job.builder.op(
            What.HOST, rank=self.rank, lane=self._main, name=name, duration=duration
        )
        self._in_order(self._main, op)
        for before in self._waits_for:
            self.job.builder.edge(before, op)
        self._waits_for = [op]
        return op

    def _wait(self, ops: Sequence[int]) -> None:
        """Let the host wait for ops."""
        wait = self._host_op("wait for messages", 0.0)
        for op in ops:
            self.job.builder.edge(op, wait)
