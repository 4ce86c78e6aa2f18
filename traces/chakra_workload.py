"""Chakra files to one workload: calls matched between ranks, measured where starts are told."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.errors import TraceError
from simulator.units import format_quantity
from simulator.workload import UNKNOWN, What
from traces.assemble import Clock, align, assemble
from traces.calls import UNKNOWN_GROUP, LocalCall
from traces.chakra_attributes import OWN
from traces.chakra_calls import calls_of, highest_rank, local_calls, placed
from traces.chakra_columns import columns
from traces.chakra_files import Files
from traces.chakra_nodes import RankNodes, lanes_of, rank_nodes
from traces.chakra_schema import COLL, COMP, MEM_LOAD, MEM_STORE, RECV, SEND
from traces.chakra_times import connect, spans
from traces.coverage import Coverage
from traces.graph import LocalOp, RankGraph
from traces.loaded import Loaded
from traces.match import MatchedCall, Matching, match


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
    graphs, calls = [], []
    for file, one in zip(files.ranks, ranked, strict=True):
        graphs.append(_graph(one, notes, timed=timed))
        tables = (file.told.groups, files.groups)
        calls.append(local_calls(one, tables, job_ranks, notes))
    job = _Job(ranked, graphs, _matching(ranked, graphs, calls, job_ranks), job_ranks, notes)
    if timed:
        return _measured(path, files, job)
    places = [[*own] for own in calls]
    for call in job.matching.calls:
        call.ops = {at: places[at][op] for at, op in call.ops.items()}
    return _unmeasured(path, files, job)


def _matching(
    ranked: Sequence[RankNodes],
    graphs: Sequence[RankGraph],
    calls: Sequence[dict[int, LocalCall]],
    job_ranks: int,
) -> Matching:
    """Match the calls of all ranks; only an error asks for the node of each."""
    try:
        return _match(ranked, graphs, calls, job_ranks)
    except TraceError:
        return _match(ranked, graphs, list(map(placed, ranked, calls)), job_ranks)


def _match(
    ranked: Sequence[RankNodes],
    graphs: Sequence[RankGraph],
    calls: Sequence[dict[int, LocalCall]],
    job_ranks: int,
) -> Matching:
    timed = all(one.timed for one in ranked)
    for graph, own in zip(graphs, calls, strict=True):
        graph.collectives = own if timed else dict(enumerate(own.values()))
    return match(graphs, job_ranks)


def _job_ranks(files: Files, ranked: Sequence[RankNodes]) -> int:
    """Count the ranks of the job: the highest that a file, a group or a message names."""
    highest = max(one.rank for one in ranked)
    tables = [files.groups, *(file.told.groups for file in files.ranks)]
    for table in tables:
        for group in table.values():
            highest = max(highest, *(group.ranks or (0,)))
    return 1 + max(highest, *(highest_rank(one) for one in ranked))


def _graph(ranked: RankNodes, notes: Counter[str], *, timed: bool) -> RankGraph:
    """Ops of a rank, in file order; without measured starts their place in the order is one.

    Of those only what matching calls between ranks needs: the calls.
    """
    _count_lacking(ranked, notes)
    graph = RankGraph(ranked.rank, 0.0)
    lanes = lanes_of(ranked)
    if not timed:
        number_of = np.argsort(np.array(ranked.order, dtype=np.int64)).tolist()
        for place in calls_of(ranked):
            form = ranked.of(place)
            number = number_of[place]
            lane = lanes[ranked.form[place]]
            graph.add(LocalOp(form.what, lane, form.name, number, number + form.duration))
        return graph
    times = spans(ranked, [ranked.forms[form].duration for form in ranked.form])
    for index, (start, end) in zip(ranked.form, times, strict=True):
        known = ranked.forms[index]
        graph.add(LocalOp(known.what, lanes[index], known.name, start, end))
    connect(graph, ranked)
    return graph


def _count_lacking(ranked: RankNodes, notes: Counter[str]) -> None:
    for number, count in Counter(ranked.form).items():
        form = ranked.forms[number]
        if form.micros or f"{OWN}duration" in form.values:
            continue
        if form.type == COMP and form.values.get("num_ops"):
            notes["compute nodes that tell their operations and no duration: taken as 0 s"] += count
        if form.type in (MEM_LOAD, MEM_STORE):
            notes["memory nodes without a duration: taken as 0 s"] += count


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
    workload = columns(job.ranked, job.matching.calls, job.job_ranks, _transfers(job))
    nothing = dict.fromkeys(workload.ranks, math.nan)
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(files, job, None, workload.notes),
        measured_step=math.nan,
        measured_begin=nothing,
        measured_end=dict(nothing),
    )


def _transfers(job: _Job) -> list[float]:
    """Take the least duration of any member (s): the last to arrive did not wait.

    NaN where none is told; a call that has no size either then costs nothing, which is noted.
    """
    found = []
    for call, told in zip(job.matching.calls, _told(job), strict=True):
        known = [duration for duration in told if duration > 0]
        if not known and math.isnan(call.size):
            job.notes["calls with neither a size nor a duration: taken as 0 s"] += 1
            known = [0.0]
        found.append(min(known, default=math.nan))
    return found


def _told(job: _Job) -> Iterator[list[float]]:
    """List the durations of the members of each call (s)."""
    durations = [[form.duration for form in one.forms] for one in job.ranked]
    forms = [one.form for one in job.ranked]
    for call in job.matching.calls:
        yield [durations[at][forms[at][op]] for at, op in call.ops.items()]


def _coverage(files: Files, job: _Job, clock: Clock | None, notes: Sequence[str] = ()) -> Coverage:
    kernels = [_kernels(one) for one in job.ranked]
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
        kernels=sum(map(len, kernels)),
        launches_paired=sum(map(_launched, job.ranked, kernels)),
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
    """Places of what a device does and no copy engine."""
    forms = [
        not form.values.get("is_cpu_op")
        and (form.type in (SEND, RECV, COLL) or form.what == What.COMPUTE)
        for form in ranked.forms
    ]
    return [place for place, form in enumerate(ranked.form) if forms[form]]


def _launched(ranked: RankNodes, kernels: Sequence[int]) -> int:
    """Count the kernels that wait for the host."""
    hosts = [form.what == What.HOST for form in ranked.forms]
    if not any(hosts):
        return 0
    return sum(any(hosts[ranked.form[one]] for one in ranked.waits[place]) for place in kernels)


def _complete(call: MatchedCall, job: _Job) -> bool:
    if call.label == UNKNOWN_GROUP:
        return False
    return len(call.ops) == len({one.rank for one in job.ranked}.intersection(call.ranks))


def _waited(job: _Job) -> Iterator[str]:
    """Say how long ranks waited in a collective, which durations need not explain."""
    most = 0.0
    for told in _told(job):
        most = max(most, max(told) - min(told) if min(told) > 0 else 0.0)
    if most > 0:
        yield (
            f"a rank waited {format_quantity(most, 's')} in a collective for another: a replay "
            "has of such waiting what durations explain"
        )


def _sized(call: MatchedCall, job: _Job) -> bool:
    """Whether the files tell a call's size, of use or not: it is of none without the group."""
    told = not math.isnan(call.size) or any(
        job.ranked[at].of(op).values.get("comm_size") is not None for at, op in call.ops.items()
    )
    return call.kind != UNKNOWN and told


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
