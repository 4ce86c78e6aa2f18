"""Chakra execution traces (mlcommons/chakra), as ASTRA-sim and MLPerf's tools write them, read.

One ``.et`` file per rank, or its JSON, gzip or not, becomes one workload: calls are matched between
ranks, and starts are as measured where the files have them. See :mod:`traces.chakra.write` for the
way back.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.calls import UNKNOWN
from simulator.support.arrays import Floats
from simulator.support.errors import TraceError, WorkloadError
from simulator.support.quantities import format_quantity
from simulator.workload import What
from traces.chakra.calls import highest_rank, rank_calls, with_own_places
from traces.chakra.files import ChakraFiles, read_files
from traces.chakra.nodes import NodeForm, RankNodes, often, rank_nodes
from traces.chakra.schema import COMP, MEM_LOAD, MEM_STORE, OWN
from traces.chakra.workload import forms_of, measured_graph, node_spans, workload_of_columns
from traces.core.files import uncollected
from traces.core.loaded import Coverage, Loaded
from traces.core.rank_graph import UNKNOWN_GROUP
from traces.matching.match import Matching, match

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ChakraJob:
    """The ranks' nodes and calls, and how often what is lacking."""

    ranked: list[RankNodes]
    calls: Matching
    job_ranks: int
    notes: Counter[str]


def chakra_coverage(
    files: ChakraFiles, job: ChakraJob, on_times: Sequence[str] = (), last: Sequence[str] = ()
) -> Coverage:
    """Return what was read; ``on_times`` are notes on times, ``last`` those that come last."""
    kernels = [_nodes_with(ranked, _is_kernel) for ranked in job.ranked]
    return Coverage(
        step="all",
        steps=(),
        ranks=tuple(ranked.rank for ranked in job.ranked),
        ranks_in_job=job.job_ranks,
        kernels=sum(int(is_kernel.sum()) for is_kernel in kernels),
        launches_paired=sum(map(_launched, job.ranked, kernels)),
        collectives=len(job.calls),
        collectives_matched=_complete(job),
        sizes_known=_sized(job),
        starts={},
        clock_offset={},
        unused=dict(sum((ranked.unused for ranked in job.ranked), Counter[str]())),
        skipped=files.skipped,
        notes=(*files.notes, *_notes(files, job, on_times), *last),
    )


def member_durations(job: ChakraJob) -> Floats:
    """Return the recorded duration of each member of a call (s)."""
    return np.array([form.duration for form in forms_of(job.ranked)[0]])[_forms_of_members(job)]


def waited(job: ChakraJob, durations: Floats) -> Iterator[str]:
    """Say how long ranks waited in a collective, which durations need not explain."""
    if not len(job.calls):
        return
    begin = job.calls.offset[:-1]
    least, most = np.minimum.reduceat(durations, begin), np.maximum.reduceat(durations, begin)
    longest = float(np.where(least > 0, most - least, 0.0).max())
    if longest > 0:
        yield (
            f"a rank waited {format_quantity(longest, 's')} in a collective for another: a replay "
            "reproduces only as much of it as durations explain"
        )


def _forms_of_members(job: ChakraJob) -> NDArray[np.int64]:
    """Which form, of those of all ranks, each member of a call has."""
    first = np.cumsum([0, *(len(ranked) for ranked in job.ranked)])
    return forms_of(job.ranked)[1][first[job.calls.rank_index] + job.calls.op]


def _is_kernel(form: NodeForm) -> bool:
    """Whether it is what a device does, and no copy engine."""
    return not form.values.get("is_cpu_op") and (form.is_call or form.what == What.COMPUTE)


def _is_host(form: NodeForm) -> bool:
    return form.what == What.HOST


def _nodes_with(ranked: RankNodes, is_so: Callable[[NodeForm], bool]) -> Mask:
    """Mark the nodes of a rank whose forms are so."""
    return np.array([is_so(form) for form in ranked.forms], dtype=np.bool_)[ranked.form]


def _launched(ranked: RankNodes, kernel: Mask) -> int:
    """Count the kernels that wait for the host."""
    host = _nodes_with(ranked, _is_host)
    waits = np.zeros(len(ranked), dtype=np.bool_)
    waits[ranked.target[host[ranked.source]]] = True
    return int((waits & kernel).sum())


def _complete(job: ChakraJob) -> int:
    """Count the calls of a known group of which all ranks that are there take part."""
    recorded = {ranked.rank for ranked in job.ranked}
    expected = [
        -1 if label == UNKNOWN_GROUP else len(recorded.intersection(ranks))
        for ranks, label in job.calls.groups
    ]
    members = np.diff(job.calls.offset)
    return int((members == np.array(expected, dtype=np.int64)[job.calls.group]).sum())


def _sized(job: ChakraJob) -> int:
    """Count the calls whose size is recorded, of use or not: it is of none without the group."""
    if not len(job.calls):
        return 0
    forms, _ = forms_of(job.ranked)
    has_size = np.array([form.values.get("comm_size") is not None for form in forms])
    any_size = np.logical_or.reduceat(has_size[_forms_of_members(job)], job.calls.offset[:-1])
    of_kind = np.array([kind != UNKNOWN for kind in job.calls.kind])
    return int((of_kind & (any_size | ~np.isnan(job.calls.size))).sum())


def _notes(files: ChakraFiles, job: ChakraJob, on_times: Sequence[str]) -> list[str]:
    notes = [*(f"{count} {what}" for what, count in job.notes.items()), *on_times]
    if job.calls.assumed_groups:
        notes.append(
            f"{job.calls.assumed_groups} calls without a group, or of one that is not described: "
            f"taken as the whole job of {job.job_ranks} ranks"
        )
    if len(job.ranked) < job.job_ranks:
        notes.append(f"{len(job.ranked)} of {job.job_ranks} ranks were recorded")
    sources = {file.rank_source for file in files.ranks}
    notes.append(f"ranks are identified by: {', '.join(sorted(sources))}")
    return [*notes, *job.calls.notes]


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


def load_files(path: Path, files: ChakraFiles) -> Loaded:
    """Make a workload of the files of a job.

    Raises
    ------
    TraceError
        If dependencies make a cycle, or ranks disagree on their calls.
    """
    ranked = [rank_nodes(file.trace, file.rank) for file in files.ranks]
    timed = all(nodes.timed for nodes in ranked)
    job_ranks = _job_ranks(files, ranked)
    spans = [node_spans(nodes) for nodes in ranked] if timed else []
    moments = [start for start, _ in spans] if timed else [_places_in_order(n) for n in ranked]
    everyone = tuple(range(job_ranks))
    notes: Counter[str] = Counter()
    calls = []
    for file, nodes, moment in zip(files.ranks, ranked, moments, strict=True):
        _count_lacking(nodes, notes)
        tables = (file.groups.groups, files.groups)
        calls.append(rank_calls(nodes, moment, (tables, everyone), notes))
    try:
        matching = match(calls, job_ranks)
    except TraceError:
        # Calls that are alike name the first of them: a message is to name the very node.
        matching = match(list(map(with_own_places, ranked, calls)), job_ranks)
    for file in files.ranks:
        file.trace.release()  # forms and edges have all that the workload needs of it
    job = ChakraJob(ranked, matching, job_ranks, notes)
    return _measured(path, files, job, spans) if timed else _unmeasured(path, files, job)


def _places_in_order(ranked: RankNodes) -> Floats:
    """Return the place of each node in an order that respects dependencies."""
    position = np.empty(len(ranked), dtype=np.float64)
    position[ranked.order] = np.arange(len(ranked))
    return position


def _job_ranks(files: ChakraFiles, ranked: Sequence[RankNodes]) -> int:
    """Count the ranks of the job: the highest that a file, a group or a message names."""
    highest = max(nodes.rank for nodes in ranked)
    tables = [files.groups, *(file.groups.groups for file in files.ranks)]
    for table in tables:
        for group in table.values():
            highest = max(highest, *(group.ranks or (0,)))
    return 1 + max(highest, *(highest_rank(nodes) for nodes in ranked))


def _count_lacking(ranked: RankNodes, notes: Counter[str]) -> None:
    for form, count in zip(ranked.forms, often(ranked.forms, ranked.form), strict=True):
        if form.micros or f"{OWN}duration" in form.values:
            continue
        if form.type == COMP and form.values.get("num_ops"):
            notes["compute nodes with operations but no duration: taken as 0 s"] += count
        if form.type in (MEM_LOAD, MEM_STORE):
            notes["memory nodes without a duration: taken as 0 s"] += count


def _measured(
    path: Path, files: ChakraFiles, job: ChakraJob, spans: Sequence[tuple[Floats, Floats]]
) -> Loaded:
    """Put what was measured on one clock, as every trace that has starts."""
    from traces.matching.assemble import align, assemble  # most Chakra files have no starts

    graphs = [
        measured_graph(nodes, *times).linked()
        for nodes, times in zip(job.ranked, spans, strict=True)
    ]
    calls = job.calls.calls
    epochs = [nodes.epoch * 1000 for nodes in job.ranked]
    clock = align(graphs, epochs, calls)
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
        "the files have durations but no start times: no step was measured, ranks are assumed "
        "to begin together, and each lane runs whatever becomes ready first",
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

    NaN where none is recorded; a call that has no size either then costs nothing, which is noted.
    """
    if not len(job.calls):
        return np.zeros(0)
    # Members of a call are consecutive: `offset` is where each call begins. 0 is not recorded.
    least = np.minimum.reduceat(np.where(durations > 0, durations, np.inf), job.calls.offset[:-1])
    least[np.isinf(least)] = np.nan
    nothing = np.isnan(least) & np.isnan(job.calls.size)
    if nothing.any():
        job.notes["calls with neither a size nor a duration: taken as 0 s"] += int(nothing.sum())
    return np.where(nothing, 0.0, least)


def _some_timed(job: ChakraJob) -> Iterator[str]:
    some = sum(nodes.timed for nodes in job.ranked)
    if some:
        yield f"start times in {some} of {len(job.ranked)} files are not used"
