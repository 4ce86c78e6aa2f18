"""Chakra execution traces (mlcommons/chakra), as ASTRA-sim and MLPerf's tools write them, read.

One ``.et`` file per rank, or its JSON, gzip or not, becomes one workload: calls are matched between
ranks, and starts are as measured where the files have them. See :mod:`traces.chakra.write` for the
way back.

If the files have starts, the last dependency of an op gets the rest of the delay as lag, and a
start without dependencies is the op's ready time: so a replay begins every op at its measured time.
A start long after all its dependencies counts as unexplained.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.calls import UNKNOWN, CallRow, Calls, Group
from simulator.support.arrays import Floats, Mask
from simulator.support.errors import TraceError, WorkloadError
from simulator.support.quantities import format_quantity
from simulator.workload import Edges, What, Workload, unawaited
from traces.chakra.calls import UNDESCRIBED, highest_rank, rank_calls, with_own_places
from traces.chakra.files import ChakraFiles, read_files
from traces.chakra.nodes import (
    COMMUNICATION,
    Index,
    NodeForm,
    RankNodes,
    lanes_of,
    often,
    rank_nodes,
)
from traces.chakra.schema import COMP, MEM_LOAD, MEM_STORE, OWN
from traces.core.columns import ValueIndex
from traces.core.files import uncollected
from traces.core.loaded import CONTRADICTED, EXPLAINED, NO_TIME, ODD, Coverage, Loaded
from traces.core.rank_graph import UNKNOWN_GROUP, LocalOp, RankGraph
from traces.matching.lane_order import LOOSE, LaneGraph, awaited, before_on_lane, with_lanes
from traces.matching.match import Matching, match


@dataclass(frozen=True, slots=True, eq=False)
class ChakraJob:
    """The ranks' nodes and calls, and counts of missing fields."""

    ranked: list[RankNodes]
    calls: Matching
    job_ranks: int
    notes: Counter[str]


def chakra_coverage(
    files: ChakraFiles, job: ChakraJob, on_times: Sequence[str] = (), last: Sequence[str] = ()
) -> Coverage:
    """Return the coverage; ``on_times`` are notes on times, ``last`` the last notes."""
    kernels = [_nodes_of_forms(ranked, _is_kernel) for ranked in job.ranked]
    names = [what for what in job.notes if what.startswith(UNDESCRIBED)]
    notes = [f"{job.notes[what]} {what}" for what in job.notes if what not in names]
    notes += on_times
    if len(names) > 1:
        notes.append(f"{len(names)} groups that no file describes are read as all ranks; {ODD}")
    unused = sum((ranked.unused for ranked in job.ranked), Counter[str]())
    notes += [f"{unused[what]} {what}; {ODD}" for what in unused if what.startswith("data ")]
    if job.calls.assumed_groups:
        notes.append(
            f"{job.calls.assumed_groups:,} calls without a group, or of one that is not described: "
            "read as calls of all ranks"
        )
    if len(job.ranked) < job.job_ranks:
        notes.append(f"{len(job.ranked)} of {job.job_ranks} ranks were recorded")
    sources = {file.rank_source for file in files.ranks}
    notes.append(f"ranks are identified by: {', '.join(sorted(sources))}")
    return Coverage(
        step="all",
        ranks=tuple(ranked.rank for ranked in job.ranked),
        ranks_in_job=job.job_ranks,
        kernels=sum(int(is_kernel.sum()) for is_kernel in kernels),
        launches_paired=sum(map(_launched, job.ranked, kernels)),
        collectives=len(job.calls),
        collectives_matched=_count_complete(job),
        sizes_known=_count_sized(job),
        unused=dict(unused),
        skipped=files.skipped,
        notes=(*files.notes, *notes, *job.calls.notes, *last),
    )


def waited(job: ChakraJob, durations: Floats) -> Iterator[str]:
    """Note how long ranks waited in a collective, which durations need not explain."""
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
    """Return the form, among those of all ranks, of each member of a call."""
    first = np.cumsum([0, *(len(ranked) for ranked in job.ranked)])
    return forms_of(job.ranked)[1][first[job.calls.rank_index] + job.calls.op]


def _is_kernel(form: NodeForm) -> bool:
    """Whether it is a device op other than a copy."""
    return not form.values.get("is_cpu_op") and (form.is_call or form.what == What.COMPUTE)


def _nodes_of_forms(ranked: RankNodes, is_so: Callable[[NodeForm], bool]) -> Mask:
    """Mark the nodes of a rank whose forms satisfy a condition."""
    return np.array([is_so(form) for form in ranked.forms], dtype=np.bool_)[ranked.form]


def _launched(ranked: RankNodes, kernel: Mask) -> int:
    """Count the kernels that wait for the host."""
    host = _nodes_of_forms(ranked, lambda form: form.what == What.HOST)
    waits = np.unique(ranked.target[host[ranked.source]])
    return int(kernel[waits].sum())


def _count_complete(job: ChakraJob) -> int:
    """Count the calls of a known group in which all present ranks take part."""
    recorded = {ranked.rank for ranked in job.ranked}
    expected = [
        -1 if label == UNKNOWN_GROUP else len(recorded.intersection(ranks))
        for ranks, label in job.calls.groups
    ]
    members = np.diff(job.calls.offset)
    return int((members == np.array(expected, dtype=np.int64)[job.calls.group]).sum())


def _count_sized(job: ChakraJob) -> int:
    """Count the calls with a recorded size, even if it is useless without the group."""
    if not len(job.calls):
        return 0
    forms, _ = forms_of(job.ranked)
    has_size = np.array([form.values.get("comm_size") is not None for form in forms])
    any_size = np.logical_or.reduceat(has_size[_forms_of_members(job)], job.calls.offset[:-1])
    of_kind = np.array([kind != UNKNOWN for kind in job.calls.kind])
    return int((of_kind & (any_size | ~np.isnan(job.calls.size))).sum())


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
        from traces.chakra.round_trip import load_own  # not needed for others' files

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
        If dependencies have a cycle, or ranks disagree on their calls.
    """
    ranked = [rank_nodes(file.trace, file.rank) for file in files.ranks]
    timed = all(nodes.timed for nodes in ranked)
    job_ranks = _job_ranks(files, ranked)
    spans = [node_spans(nodes) for nodes in ranked] if timed else []
    moments = [start for start, _ in spans] if timed else [_places_in_order(n) for n in ranked]
    all_ranks = tuple(range(job_ranks))
    notes: Counter[str] = Counter()
    calls = []
    for file, nodes, moment in zip(files.ranks, ranked, moments, strict=True):
        for form, count in zip(nodes.forms, often(nodes.forms, nodes.form), strict=True):
            if form.micros or f"{OWN}duration" in form.values:
                continue
            if form.type == COMP and form.values.get("num_ops"):
                notes[f"compute nodes with operations but no duration: {NO_TIME}"] += count
            if form.type in (MEM_LOAD, MEM_STORE):
                notes[f"memory nodes without a duration: {NO_TIME}"] += count
        tables = (file.groups.groups, files.groups)
        calls.append(rank_calls(nodes, moment, (tables, all_ranks), notes))
    try:
        matching = match(calls, job_ranks)
    except TraceError:
        # Equal calls name the first of them, but messages must name their own node.
        matching = match(list(map(with_own_places, ranked, calls)), job_ranks)
    for file in files.ranks:
        file.trace.release()  # the workload needs only its forms and edges
    job = ChakraJob(ranked, matching, job_ranks, notes)
    return _measured(path, files, job, spans) if timed else _unmeasured(path, files, job)


def _places_in_order(ranked: RankNodes) -> Floats:
    """Return the index of each node in a topological order."""
    position = np.empty(len(ranked), dtype=np.float64)
    position[ranked.order] = np.arange(len(ranked))
    return position


def _job_ranks(files: ChakraFiles, ranked: Sequence[RankNodes]) -> int:
    """Return the number of ranks of the job: from the highest in a file, a group or a message."""
    highest = max(nodes.rank for nodes in ranked)
    tables = [files.groups, *(file.groups.groups for file in files.ranks)]
    for table in tables:
        for group in table.values():
            highest = max(highest, *(group.ranks or (0,)))
    return 1 + max(highest, *(highest_rank(nodes) for nodes in ranked))


def _measured(
    path: Path, files: ChakraFiles, job: ChakraJob, spans: Sequence[tuple[Floats, Floats]]
) -> Loaded:
    """Align measured times on one clock, as for all traces with starts."""
    from traces.matching.assemble import align, assemble  # most Chakra files have no starts

    graphs = [
        measured_graph(nodes, *times).linked()
        for nodes, times in zip(job.ranked, spans, strict=True)
    ]
    calls = job.calls.calls
    epochs = [nodes.epoch * 1000 for nodes in job.ranked]
    clock = align(graphs, epochs, calls)
    workload = assemble(graphs, calls, clock, job.job_ranks)
    begins, ends, offsets = clock.of_ranks(graphs)
    starts = sum((Counter(graph.explained) for graph in graphs), Counter[str]())
    covered = replace(chakra_coverage(files, job), starts=dict(starts), clock_offset=offsets)
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=covered,
        measured_step=max(ends.values()),
        measured_begin=begins,
        measured_end=ends,
    )


def _unmeasured(path: Path, files: ChakraFiles, job: ChakraJob) -> Loaded:
    """Schedule files that have only durations, as an execution would; no step was measured."""
    durations = np.array([form.duration for form in forms_of(job.ranked)[0]])[
        _forms_of_members(job)
    ]
    workload = workload_of_columns(job.ranked, job.calls, job.job_ranks, _transfers(job, durations))
    nothing = dict.fromkeys(workload.ranks, math.nan)
    timed = sum(nodes.timed for nodes in job.ranked)
    notes = (
        "the files have durations but no start times: no step was measured, ranks are assumed "
        "to begin together, and each lane runs whatever becomes ready first",
        *waited(job, durations),
        *([f"start times in {timed} of {len(job.ranked)} files are not used"] if timed else []),
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
    """Return the least duration of any member (s): the last to arrive did not wait.

    NaN if none is recorded; a call that also lacks a size then costs nothing, which is noted.
    """
    if not len(job.calls):
        return np.zeros(0)
    # Members of a call are consecutive: `offset` is where each call begins. 0 is not recorded.
    least = np.minimum.reduceat(np.where(durations > 0, durations, np.inf), job.calls.offset[:-1])
    least[np.isinf(least)] = np.nan
    nothing = np.isnan(least) & np.isnan(job.calls.size)
    if nothing.any():
        job.notes[f"calls with neither a size nor a duration: {NO_TIME}"] += int(nothing.sum())
    return np.where(nothing, 0.0, least)


def workload_of_columns(
    ranked: Sequence[RankNodes], calls: Matching, job_ranks: int, transfers: Floats
) -> Workload:
    """Make a workload of files without starts: each lane runs the first ready op.

    Calls without a stream may overlap; all other lanes run one op at a time. ``transfers`` are the
    times of calls (s).
    """
    counts = [len(nodes) for nodes in ranked]
    first = np.cumsum([0, *counts])
    forms, form = forms_of(ranked)
    lanes, names = ValueIndex[str](), ValueIndex[str]()
    lane = lanes.column(lane for nodes in ranked for lane in lanes_of(nodes))
    name = names.column(form.name for form in forms)
    call = np.full(len(form), -1, dtype=np.int32)
    call[first[calls.rank_index] + calls.op] = calls.call
    groups, rows = _calls(calls, transfers)
    duration = np.concatenate([nodes.durations() for nodes in ranked])
    duration[call >= 0] = 0.0
    rank = np.repeat(np.array([nodes.rank for nodes in ranked], dtype=np.int64), counts)
    what = np.array([form.what for form in forms], dtype=np.uint8)[form]
    not_awaited = unawaited(what, call, rows.eager)
    edges, nothing = _edges(ranked, first), np.full(len(form), np.nan)
    communicates = lanes.index.get(COMMUNICATION, -1)
    graph = LaneGraph(
        lane=rank * len(lanes.index) + lane[form],
        takes=lane[form] != communicates,
        call=call,
        duration=duration,
        transfer=np.nan_to_num(rows.transfer, nan=0.0),
        awaited=awaited(call, not_awaited, len(rows)),
        unawaited=not_awaited,
        offset=edges.offset,
        target=edges.target,
        lag=edges.lag,
    )
    before, loose = before_on_lane(graph, np.zeros(len(form)))
    return Workload(
        what=what,
        rank=rank.astype(np.int32),
        lane=lane[form],
        name=name[form],
        call=call,
        duration=duration,
        ready=np.zeros(len(form)),
        measured_start=nothing,
        measured_end=nothing.copy(),
        edges=with_lanes(edges, before),
        calls=rows,
        groups=groups,
        names=tuple(names.index),
        lanes=tuple(lanes.index),
        job_ranks=job_ranks,
        notes=(LOOSE,) if loose else (),
    )


def forms_of(ranked: Sequence[RankNodes]) -> tuple[list[NodeForm], Index]:
    """Return the forms of all ranks, and the form of every node, one rank after the other."""
    base = np.cumsum([0, *(len(nodes.forms) for nodes in ranked)])
    numbers = [nodes.form + begin for nodes, begin in zip(ranked, base, strict=False)]
    return [form for nodes in ranked for form in nodes.forms], np.concatenate(numbers)


def _calls(calls: Matching, transfers: Floats) -> tuple[tuple[Group, ...], Calls]:
    """Return the groups of calls, and the calls."""
    groups: dict[Group, int] = {}
    number = [groups.setdefault(Group(*key), len(groups)) for key in calls.groups]
    rows = zip(
        calls.kind,
        [number[group] for group in calls.group.tolist()],
        calls.sequence.tolist(),
        calls.size.tolist(),
        calls.dtype,
        transfers.tolist(),
        calls.eager.tolist(),
        calls.shares,
        strict=True,
    )
    return tuple(groups), Calls.of([CallRow(*row) for row in rows])


def _edges(ranked: Sequence[RankNodes], first: Index) -> Edges:
    """Join the edges of all ranks; the nodes of a rank begin at its ``first``."""
    begins = first[:-1].tolist()
    source = np.concatenate([nodes.source + b for nodes, b in zip(ranked, begins, strict=True)])
    target = np.concatenate([nodes.target + b for nodes, b in zip(ranked, begins, strict=True)])
    return Edges.of(int(first[-1]), source, target, np.zeros(len(source)))


def node_spans(ranked: RankNodes) -> tuple[Floats, Floats]:
    """Return start and end of each node (s); one without a start begins when its waits end."""
    starts, durations = ranked.start.tolist(), ranked.durations().tolist()
    ends = [0.0] * len(starts)
    waits = ranked.waits()
    for position in ranked.order.tolist():
        if math.isnan(starts[position]):
            starts[position] = max((ends[source] for source in waits[position]), default=0.0)
        ends[position] = starts[position] + durations[position]
    return np.array(starts, dtype=np.float64), np.array(ends, dtype=np.float64)


def measured_graph(ranked: RankNodes, starts: Floats, ends: Floats) -> RankGraph:
    """Make a rank's graph of nodes with known starts and ends (s)."""
    graph = RankGraph(ranked.rank, 0.0)
    lanes = lanes_of(ranked)
    times = zip(ranked.form.tolist(), starts.tolist(), ends.tolist(), strict=True)
    for form, start, end in times:
        node = ranked.forms[form]
        graph.add(LocalOp(node.what, lanes[form], node.name, start, end))
    # Set the edges, lags and earliest starts of a measured graph's ops.
    before = _lane_before(graph)
    contradicted = 0
    waits = ranked.waits()
    for position, op in enumerate(graph.ops):
        earlier = {*waits[position], *before.get(position, ())}
        allowed = {
            source: graph.ops[source].end
            for source in earlier
            if graph.ops[source].end <= op.start + CONTRADICTED
        }
        contradicted += len(set(waits[position]) - set(allowed))
        _explain(graph, position, allowed)
    if contradicted:
        reason = "dependencies whose source ends after the start that waits for it"
        ranked.unused[reason] += contradicted
    return graph


def _lane_before(graph: RankGraph) -> dict[int, list[int]]:
    """Return the op before each on its lane, if that had ended when this one started."""
    lanes: dict[str, list[int]] = {}
    for position in sorted(range(len(graph.ops)), key=lambda op: (graph.ops[op].start, op)):
        if graph.ops[position].lane != COMMUNICATION:
            lanes.setdefault(graph.ops[position].lane, []).append(position)
    return {
        later: [earlier]
        for lane in lanes.values()
        for earlier, later in pairwise(lane)
        if graph.ops[earlier].end <= graph.ops[later].start + CONTRADICTED
    }


_DEVICE = (What.COMPUTE, What.COPY, What.COLLECTIVE, What.SEND, What.RECEIVE)


def _explain(graph: RankGraph, position: int, allowed: dict[int, float]) -> None:
    op = graph.ops[position]
    last = max(allowed, key=lambda source: (allowed[source], source), default=None)
    if last is None:
        op.ready = op.start
    for source, end in allowed.items():
        lag = max(0.0, op.start - end) if source == last else 0.0
        graph.edges.append((source, position, lag))
    if op.what in _DEVICE:
        reason = _start_cause(op, graph.ops[last] if last is not None else None)
        graph.explained[reason] = graph.explained.get(reason, 0) + 1


def _start_cause(op: LocalOp, last: LocalOp | None) -> str:
    """Return the cause of a device op's start, in the words of the coverage line."""
    if last is None or op.start - last.end > EXPLAINED:
        return "unexplained"
    if last.what == What.HOST:
        return "launch"
    return "stream" if last.lane == op.lane else "wait"
