"""Chakra execution traces (mlcommons/chakra), as ASTRA-sim and MLPerf's tools write them, read.

One ``.et`` file per rank, or its JSON, gzip or not, becomes one workload: calls are matched between
ranks, and starts are as measured where the files tell them. See :mod:`traces.chakra.write` for the
way back.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simulator.errors import TraceError, WorkloadError
from simulator.workload import Floats
from traces.chakra.calls import calls_of, highest_rank, local_calls, with_own_places
from traces.chakra.columns import of_nodes, of_plain, rank_calls, workload_of_columns
from traces.chakra.coverage import (
    ChakraJob,
    chakra_coverage,
    connect,
    member_durations,
    spans,
    waited,
)
from traces.chakra.files import ChakraFiles, read_files
from traces.chakra.nodes import RankNodes, lanes_of, often, rank_nodes
from traces.chakra.schema import COMP, MEM_LOAD, MEM_STORE, OWN
from traces.core.calls import LocalCall
from traces.core.files import uncollected
from traces.core.loaded import Loaded
from traces.core.rank_graph import LocalOp, RankGraph
from traces.matching.match import Matching, match
from traces.matching.match_columns import as_columns, match_alike


@uncollected()
def load_chakra(path: Path, step: str = "all") -> Loaded:
    """Read a Chakra trace: one file, or a directory with one per rank.

    Chakra has no steps: ``median`` and ``all`` are the whole trace.

    Raises
    ------
    TraceError
        If a file cannot be read or used; names file, node and field.
    """
    if step not in ("median", "all"):
        raise TraceError(f"{path}: no step {step}: a Chakra trace has no steps")
    files = read_files(path)
    if files.whole:
        from traces.chakra.round_trip import load_own  # others' files do without

        return load_own(path, files)
    try:
        return load_files(path, files)
    except WorkloadError as error:
        raise TraceError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class _MeasuredRanks:
    """The ranks' nodes and graphs, of files that tell starts, and their calls."""

    graphs: list[RankGraph]
    epochs: list[int]
    matching: Matching


def load_files(path: Path, files: ChakraFiles) -> Loaded:
    """Make a workload of the files of a job.

    Raises
    ------
    TraceError
        If dependencies make a cycle, or ranks disagree on their calls.
    """
    job = _plain(files)
    if job is not None:
        return _unmeasured(path, files, job)
    ranked = [rank_nodes(file.trace, file.rank) for file in files.ranks]
    notes: Counter[str] = Counter()
    timed = all(nodes.timed for nodes in ranked)
    job_ranks = _job_ranks(files, ranked)
    graphs, calls = [], []
    for file, nodes in zip(files.ranks, ranked, strict=True):
        graphs.append(_graph(nodes, notes, timed=timed))
        tables = (file.groups.groups, files.groups)
        calls.append(local_calls(nodes, tables, job_ranks, notes))
    matching = _matching(ranked, graphs, calls, job_ranks)
    if not timed:
        places = [[*own] for own in calls]
        for call in matching.calls:
            call.ops = {at: places[at][op] for at, op in call.ops.items()}
    job = ChakraJob([of_nodes(nodes) for nodes in ranked], as_columns(matching), job_ranks, notes)
    if not timed:
        return _unmeasured(path, files, job)
    epochs = [nodes.epoch * 1000 for nodes in ranked]
    return _measured(path, files, job, _MeasuredRanks(graphs, epochs, matching))


def _plain(files: ChakraFiles) -> ChakraJob | None:
    """Take plain files as they are; None where nodes or calls have to be looked at one by one."""
    ranked, calls = [], []
    notes: Counter[str] = Counter()
    for file in files.ranks:
        rank_columns = of_plain(file.trace, file.rank)
        if rank_columns is None:
            return None
        ranked.append(rank_columns)
    try:
        job_ranks = _job_ranks(files, [rank_columns.nodes for rank_columns in ranked])
        everyone = tuple(range(job_ranks))
        for file, rank_columns in zip(files.ranks, ranked, strict=True):
            _count_lacking(rank_columns.nodes, notes)
            calls.append(
                rank_calls(rank_columns, ((file.groups.groups, files.groups), everyone), notes)
            )
        calls_matched = match_alike(calls, job_ranks)
    except TraceError:
        return None
    return None if calls_matched is None else ChakraJob(ranked, calls_matched, job_ranks, notes)


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
        return _match(ranked, graphs, list(map(with_own_places, ranked, calls)), job_ranks)


def _match(
    ranked: Sequence[RankNodes],
    graphs: Sequence[RankGraph],
    calls: Sequence[dict[int, LocalCall]],
    job_ranks: int,
) -> Matching:
    timed = all(nodes.timed for nodes in ranked)
    for graph, own in zip(graphs, calls, strict=True):
        graph.collectives = own if timed else dict(enumerate(own.values()))
    return match(graphs, job_ranks)


def _job_ranks(files: ChakraFiles, ranked: Sequence[RankNodes]) -> int:
    """Count the ranks of the job: the highest that a file, a group or a message names."""
    highest = max(nodes.rank for nodes in ranked)
    tables = [files.groups, *(file.groups.groups for file in files.ranks)]
    for table in tables:
        for group in table.values():
            highest = max(highest, *(group.ranks or (0,)))
    return 1 + max(highest, *(highest_rank(nodes) for nodes in ranked))


def _graph(ranked: RankNodes, notes: Counter[str], *, timed: bool) -> RankGraph:
    """Ops of a rank, in file order; without measured starts their place in the order is one.

    Of those only what matching calls between ranks needs: the calls.
    """
    _count_lacking(ranked, notes)
    graph = RankGraph(ranked.rank, 0.0)
    lanes = lanes_of(ranked)
    if not timed:
        number_of = np.argsort(np.array(ranked.order, dtype=np.int64)).tolist()
        for position in calls_of(ranked):
            form = ranked.of(position)
            number = number_of[position]
            lane = lanes[ranked.form[position]]
            graph.add(LocalOp(form.what, lane, form.name, number, number + form.duration))
        return graph
    times = spans(ranked, [ranked.forms[form].duration for form in ranked.form])
    for index, (start, end) in zip(ranked.form, times, strict=True):
        known = ranked.forms[index]
        graph.add(LocalOp(known.what, lanes[index], known.name, start, end))
    connect(graph, ranked)
    return graph


def _count_lacking(ranked: RankNodes, notes: Counter[str]) -> None:
    for form, count in zip(ranked.forms, often(ranked.forms, ranked.form), strict=True):
        if form.micros or f"{OWN}duration" in form.values:
            continue
        if form.type == COMP and form.values.get("num_ops"):
            notes["compute nodes that tell their operations and no duration: taken as 0 s"] += count
        if form.type in (MEM_LOAD, MEM_STORE):
            notes["memory nodes without a duration: taken as 0 s"] += count


def _measured(path: Path, files: ChakraFiles, job: ChakraJob, measured: _MeasuredRanks) -> Loaded:
    """Put what was measured on one clock, as every trace whose starts are told."""
    from traces.matching.assemble import align, assemble  # most Chakra files tell no starts

    graphs, calls = measured.graphs, measured.matching.calls
    clock = align(graphs, measured.epochs, calls)
    workload = assemble(graphs, calls, clock, job.job_ranks)
    shifts = [float(shift) for shift in clock.shift]
    ends = {g.rank: g.end + s for g, s in zip(graphs, shifts, strict=True)}
    begins = {g.rank: g.start + s for g, s in zip(graphs, shifts, strict=True)}
    offsets = zip(graphs, clock.offset, strict=True)
    starts = sum((Counter(graph.explained) for graph in graphs), Counter[str]())
    covered = replace(
        chakra_coverage(files, job),
        starts=dict(starts),
        clock_offset={graph.rank: float(ahead) for graph, ahead in offsets if ahead != 0.0},
    )
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=covered,
        measured_step=max(ends.values()),
        measured_begin=begins,
        measured_end=ends,
    )


def _unmeasured(path: Path, files: ChakraFiles, job: ChakraJob) -> Loaded:
    """Order what only has durations, as an execution would; no step was measured."""
    durations = member_durations(job)
    workload = workload_of_columns(job.ranked, job.calls, job.job_ranks, _transfers(job, durations))
    nothing = dict.fromkeys(workload.ranks, math.nan)
    notes = (
        "the files tell durations and no starts: no step was measured, ranks are taken to "
        "begin together, and each lane runs what becomes ready first",
        *waited(job, durations),
        *_some_timed(job),
    )
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=chakra_coverage(files, job, notes, workload.notes),
        measured_step=math.nan,
        measured_begin=nothing,
        measured_end=dict(nothing),
    )


def _transfers(job: ChakraJob, durations: Floats) -> Floats:
    """Take the least duration of any member (s): the last to arrive did not wait.

    NaN where none is told; a call that has no size either then costs nothing, which is noted.
    """
    if not len(job.calls):
        return np.zeros(0)
    least = np.minimum.reduceat(np.where(durations > 0, durations, np.inf), job.calls.offset[:-1])
    least[np.isinf(least)] = np.nan
    nothing = np.isnan(least) & np.isnan(job.calls.size)
    if nothing.any():
        job.notes["calls with neither a size nor a duration: taken as 0 s"] += int(nothing.sum())
    return np.where(nothing, 0.0, least)


def _some_timed(job: ChakraJob) -> Iterator[str]:
    some = sum(rank_columns.nodes.timed for rank_columns in job.ranked)
    if some:
        yield f"starts that {some} of {len(job.ranked)} files tell are not used"
