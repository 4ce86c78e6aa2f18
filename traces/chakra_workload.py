"""Chakra files to one workload: calls matched between ranks, measured where starts are told."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.builder import WorkloadBuilder
from simulator.units import format_quantity
from simulator.workload import UNKNOWN, CallRow, What
from traces.assemble import Clock, align, assemble
from traces.chakra_calls import highest_rank, local_calls
from traces.chakra_files import Files
from traces.chakra_nodes import (
    COMMUNICATION,
    OWN,
    RankNodes,
    lanes_of,
    rank_nodes,
    what_of,
)
from traces.chakra_schema import COLL, COMP, MEM_LOAD, MEM_STORE, RECV, SEND
from traces.chakra_times import connect, spans
from traces.comms import UNKNOWN_GROUP
from traces.coverage import Coverage
from traces.graph import LocalOp, RankGraph
from traces.lane_order import one_at_a_time
from traces.loaded import Loaded
from traces.match import MatchedCall, Matching, match

_MICRO = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """The ranks' nodes and graphs, and what is known of all of them."""

    ranked: list[RankNodes]
    graphs: list[RankGraph]
    matching: Matching
    job_ranks: int
    notes: Counter[str]

    @property
    def timed(self) -> bool:
        """Whether every file tells starts."""
        return all(ranked.timed for ranked in self.ranked)


def load_files(path: Path, files: Files) -> Loaded:
    """Make a workload of the files of a job.

    Raises
    ------
    TraceError
        If dependencies make a circle, or ranks disagree on their calls.
    """
    ranked = [rank_nodes(file.trace, file.rank) for file in files.ranks]
    notes: Counter[str] = Counter()
    timed = all(one.timed for one in ranked)
    job_ranks = _job_ranks(files, ranked)
    graphs = []
    for file, one in zip(files.ranks, ranked, strict=True):
        graph = _graph(one, notes, timed=timed)
        tables = (file.told.groups, files.groups)
        graph.collectives = local_calls(one, tables, job_ranks, notes)
        graphs.append(graph)
    job = _Job(ranked, graphs, match(graphs, job_ranks), job_ranks, notes)
    return _measured(path, files, job) if timed else _unmeasured(path, files, job)


def _job_ranks(files: Files, ranked: Sequence[RankNodes]) -> int:
    """Count the ranks of the job: the highest that a file, a group or a message names."""
    highest = max(one.rank for one in ranked)
    tables = [files.groups, *(file.told.groups for file in files.ranks)]
    for table in tables:
        for group in table.values():
            highest = max(highest, *(group.ranks or (0,)))
    return 1 + max(highest, *(highest_rank(one) for one in ranked))


def _graph(ranked: RankNodes, notes: Counter[str], *, timed: bool) -> RankGraph:
    """Ops of a rank, in file order; without measured starts their place in the order is one."""
    durations = [_duration(ranked, place) for place in range(len(ranked.nodes))]
    if timed:
        times = spans(ranked, durations)
    else:
        times = [(0.0, 0.0)] * len(durations)
        for number, place in enumerate(ranked.order):
            times[place] = (float(number), number + durations[place])
    graph = RankGraph(ranked.rank, 0.0)
    lanes = lanes_of(ranked)
    for place, (start, end) in enumerate(times):
        node = ranked.nodes[place]
        what = what_of(node, ranked.values[place])
        graph.add(LocalOp(what, lanes[place], node.name, start, end))
        _count_lacking(ranked, place, notes)
    if timed:
        connect(graph, ranked)
    return graph


def _duration(ranked: RankNodes, place: int) -> float:
    """Seconds: exact where this project wrote them, else the whole microseconds."""
    values = ranked.values[place]
    exact = values.get(f"{OWN}duration")
    if isinstance(exact, float) and 0 <= exact < math.inf and f"{OWN}call" not in values:
        return exact
    return ranked.nodes[place].duration_micros * _MICRO


def _count_lacking(ranked: RankNodes, place: int, notes: Counter[str]) -> None:
    node, values = ranked.nodes[place], ranked.values[place]
    if node.duration_micros or f"{OWN}duration" in values:
        return
    if node.type == COMP and values.get("num_ops"):
        notes["compute nodes that tell their operations and no duration: taken as 0 s"] += 1
    if node.type in (MEM_LOAD, MEM_STORE):
        notes["memory nodes without a duration: taken as 0 s"] += 1


def _measured(path: Path, files: Files, job: _Job) -> Loaded:
    """Put what was measured on one clock, as every trace whose starts are told."""
    epochs = [one.epoch * 1000 for one in job.ranked]
    clock = align(job.graphs, epochs, job.matching.calls)
    workload = assemble(job.graphs, job.matching.calls, clock, job.job_ranks)
    shifts = [float(shift) for shift in clock.shift]
    ends = {g.rank: g.end + s for g, s in zip(job.graphs, shifts, strict=True)}
    begins = {g.rank: g.start + s for g, s in zip(job.graphs, shifts, strict=True)}
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(files, job, clock),
        measured_step=max(ends.values()),
        measured_begin=begins,
        measured_end=ends,
    )


def _unmeasured(path: Path, files: Files, job: _Job) -> Loaded:
    """Order what only has durations, as an execution would; no step was measured."""
    builder = WorkloadBuilder(job_ranks=job.job_ranks)
    call_of: dict[tuple[int, int], int] = {}
    for call in job.matching.calls:
        row = CallRow(
            kind=call.kind,
            group=builder.group(call.ranks, call.label),
            sequence=call.sequence,
            size=call.size,
            dtype=call.dtype,
            transfer=_transfer(job, call),
        )
        call_of.update(dict.fromkeys(call.ops.items(), builder.call(row)))
    busy: list[bool] = []
    for place, (ranked, graph) in enumerate(zip(job.ranked, job.graphs, strict=True)):
        first = len(busy)
        for number, op in enumerate(graph.ops):
            index = call_of.get((place, number), -1)
            builder.op(
                op.what,
                rank=ranked.rank,
                lane=op.lane,
                name=op.name,
                duration=_duration(ranked, number) if index < 0 else 0.0,
                call=index,
            )
            busy.append(op.lane != COMMUNICATION)
        for number, waits in enumerate(ranked.waits):
            for one in waits:
                builder.edge(first + one, first + number)
    workload = one_at_a_time(builder.build(), np.array(busy, dtype=np.bool_))
    nothing = dict.fromkeys(workload.ranks, math.nan)
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(files, job, None, workload.notes),
        measured_step=math.nan,
        measured_begin=nothing,
        measured_end=dict(nothing),
    )


def _transfer(job: _Job, call: MatchedCall) -> float:
    """Take the least duration of any member (s): the last to arrive did not wait.

    NaN where none is told; a call that has no size either then costs nothing, which is noted.
    """
    told = [_duration(job.ranked[place], op) for place, op in call.ops.items()]
    known = [duration for duration in told if duration > 0]
    if known:
        return min(known)
    if math.isnan(call.size):
        job.notes["calls with neither a size nor a duration: taken as 0 s"] += 1
        return 0.0
    return math.nan


def _coverage(files: Files, job: _Job, clock: Clock | None, notes: Sequence[str] = ()) -> Coverage:
    kernels = [(one, place) for one in job.ranked for place in _kernels(one)]
    calls = job.matching.calls
    starts = sum((Counter(graph.explained) for graph in job.graphs), Counter[str]())
    unused = sum((one.unused for one in job.ranked), Counter[str]())
    ahead: Mapping[int, float] = {}
    if clock is not None:
        pairs = zip(job.graphs, clock.offset, strict=True)
        ahead = {graph.rank: float(offset) for graph, offset in pairs if offset != 0.0}
    return Coverage(
        step="all",
        steps=(),
        ranks=tuple(one.rank for one in job.ranked),
        ranks_in_job=job.job_ranks,
        kernels=len(kernels),
        launches_paired=sum(_launched(one, place) for one, place in kernels),
        collectives=len(calls),
        collectives_matched=sum(1 for call in calls if _complete(call, job)),
        sizes_known=sum(1 for call in calls if _sized(call, job)),
        starts=dict(starts),
        clock_offset=ahead,
        unused=dict(unused),
        skipped=files.skipped,
        notes=(*files.notes, *_notes(files, job), *notes),
    )


def _kernels(ranked: RankNodes) -> list[int]:
    pairs = enumerate(zip(ranked.nodes, ranked.values, strict=True))
    return [
        place
        for place, (node, values) in pairs
        if not values.get("is_cpu_op")
        and (node.type in (SEND, RECV, COLL) or what_of(node, values) == What.COMPUTE)
    ]


def _launched(ranked: RankNodes, place: int) -> bool:
    return any(
        what_of(ranked.nodes[one], ranked.values[one]) == What.HOST for one in ranked.waits[place]
    )


def _complete(call: MatchedCall, job: _Job) -> bool:
    here = sum(1 for one in job.ranked if one.rank in call.ranks)
    return call.label != UNKNOWN_GROUP and len(call.ops) == here


def _waited(job: _Job) -> Iterator[str]:
    """Say how long ranks waited in a collective, which durations need not explain."""
    most = 0.0
    for call in job.matching.calls:
        told = [_duration(job.ranked[place], op) for place, op in call.ops.items()]
        most = max(most, max(told) - min(told) if min(told) > 0 else 0.0)
    if most > 0:
        yield (
            f"a rank waited {format_quantity(most, 's')} in a collective for another: a replay "
            "has of such waiting what durations explain"
        )


def _sized(call: MatchedCall, job: _Job) -> bool:
    """Whether the files tell a call's size, of use or not: it is of none without the group."""
    told = any(
        job.ranked[at].values[op].get("comm_size") is not None for at, op in call.ops.items()
    )
    return call.kind != UNKNOWN and (told or not math.isnan(call.size))


def _notes(files: Files, job: _Job) -> list[str]:
    notes = [f"{count} {what}" for what, count in job.notes.items()]
    if not job.timed:
        notes.append(
            "the files tell durations and no starts: no step was measured, ranks are taken to "
            "begin together, and each lane runs what becomes ready first"
        )
        notes.extend(_waited(job))
        some = sum(one.timed for one in job.ranked)
        if some:
            notes.append(f"starts that {some} of {len(job.ranked)} files tell are not used")
    if job.matching.assumed_groups:
        notes.append(
            f"{job.matching.assumed_groups} calls without a group, or of one that nothing "
            f"describes: taken as the whole job of {job.job_ranks} ranks"
        )
    if len(job.ranked) < job.job_ranks:
        notes.append(f"{len(job.ranked)} of {job.job_ranks} ranks are there")
    sources = {file.rank_source for file in files.ranks}
    notes.append(f"ranks are told by: {', '.join(sorted(sources))}")
    return [*notes, *job.matching.notes]
