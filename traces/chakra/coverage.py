"""What could be used of Chakra files, what they leave open, and what explains measured starts.

Where the file tells starts, the op that was last to allow a start carries the rest of the delay as
lag, and a start that nothing precedes is when the op was ready: a replay then begins every op when
it was measured to. A start long after all that allows it is counted as not explained.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.quantities import format_quantity
from simulator.workload import UNKNOWN, Floats, What
from traces.chakra.columns import RankColumns, forms_of
from traces.chakra.files import ChakraFiles
from traces.chakra.nodes import CALLS, COMMUNICATION, NodeForm, RankNodes
from traces.core.calls import UNKNOWN_GROUP
from traces.core.loaded import CONTRADICTED, EXPLAINED, Coverage
from traces.core.rank_graph import LocalOp, RankGraph
from traces.matching.match_columns import MatchedColumns

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ChakraJob:
    """The ranks' nodes and calls, and how often what is lacking."""

    ranked: list[RankColumns]
    calls: MatchedColumns
    job_ranks: int
    notes: Counter[str]


def chakra_coverage(
    files: ChakraFiles, job: ChakraJob, on_times: Sequence[str] = (), last: Sequence[str] = ()
) -> Coverage:
    """Say what was read; ``told`` are notes on times, ``last`` those that come last."""
    kernels = [_of(ranked, _is_kernel) for ranked in job.ranked]
    return Coverage(
        step="all",
        steps=(),
        ranks=tuple(ranked.nodes.rank for ranked in job.ranked),
        ranks_in_job=job.job_ranks,
        kernels=sum(int(own.sum()) for own in kernels),
        launches_paired=sum(map(_launched, job.ranked, kernels)),
        collectives=len(job.calls),
        collectives_matched=_complete(job),
        sizes_known=_sized(job),
        starts={},
        clock_offset={},
        unused=dict(sum((ranked.nodes.unused for ranked in job.ranked), Counter[str]())),
        skipped=files.skipped,
        notes=(*files.notes, *_notes(files, job, on_times), *last),
    )


def member_durations(job: ChakraJob) -> Floats:
    """Duration that each member of a call tells (s)."""
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
            "has of such waiting what durations explain"
        )


def _forms_of_members(job: ChakraJob) -> NDArray[np.int64]:
    """Which form, of those of all ranks, each member of a call has."""
    first = np.cumsum([0, *(len(ranked) for ranked in job.ranked)])
    return forms_of(job.ranked)[1][first[job.calls.rank_index] + job.calls.op]


def _is_kernel(form: NodeForm) -> bool:
    """Whether it is what a device does, and no copy engine."""
    return not form.values.get("is_cpu_op") and (form.type in CALLS or form.what == What.COMPUTE)


def _is_host(form: NodeForm) -> bool:
    return form.what == What.HOST


def _of(ranked: RankColumns, is_so: Callable[[NodeForm], bool]) -> Mask:
    """Mark the nodes of a rank whose forms are so."""
    return np.array([is_so(form) for form in ranked.nodes.forms], dtype=np.bool_)[ranked.form]


def _launched(ranked: RankColumns, kernel: Mask) -> int:
    """Count the kernels that wait for the host."""
    host = _of(ranked, _is_host)
    waits = np.zeros(len(ranked), dtype=np.bool_)
    waits[ranked.target[host[ranked.source]]] = True
    return int((waits & kernel).sum())


def _complete(job: ChakraJob) -> int:
    """Count the calls of a known group of which all ranks that are there take part."""
    there = {ranked.nodes.rank for ranked in job.ranked}
    expected = [
        -1 if label == UNKNOWN_GROUP else len(there.intersection(ranks))
        for ranks, label in job.calls.groups
    ]
    members = np.diff(job.calls.offset)
    return int((members == np.array(expected, dtype=np.int64)[job.calls.group]).sum())


def _sized(job: ChakraJob) -> int:
    """Count the calls whose size is told, of use or not: it is of none without the group."""
    if not len(job.calls):
        return 0
    forms, _ = forms_of(job.ranked)
    tells = np.array([form.values.get("comm_size") is not None for form in forms])
    tells_size = np.logical_or.reduceat(tells[_forms_of_members(job)], job.calls.offset[:-1])
    of_kind = np.array([kind != UNKNOWN for kind in job.calls.kind])
    return int((of_kind & (tells_size | ~np.isnan(job.calls.size))).sum())


def _notes(files: ChakraFiles, job: ChakraJob, on_times: Sequence[str]) -> list[str]:
    notes = [*(f"{count} {what}" for what, count in job.notes.items()), *on_times]
    if job.calls.assumed_groups:
        notes.append(
            f"{job.calls.assumed_groups} calls without a group, or of one that nothing "
            f"describes: taken as the whole job of {job.job_ranks} ranks"
        )
    if len(job.ranked) < job.job_ranks:
        notes.append(f"{len(job.ranked)} of {job.job_ranks} ranks are there")
    sources = {file.rank_source for file in files.ranks}
    notes.append(f"ranks are told by: {', '.join(sorted(sources))}")
    return [*notes, *job.calls.notes]


def spans(ranked: RankNodes, durations: list[float]) -> list[tuple[float, float]]:
    """Start and end of each node (s); one that is not told starts when what it waits for ends."""
    times = [(0.0, 0.0)] * len(ranked.nodes)
    for position in ranked.order:
        start = ranked.start[position]
        if start is None:
            start = max((times[source][1] for source in ranked.waits[position]), default=0.0)
        times[position] = (start, start + durations[position])
    return times


def connect(graph: RankGraph, ranked: RankNodes) -> None:
    """Give the ops of a graph that was measured their edges, lags and earliest starts."""
    before = _lane_before(graph)
    contradicted = 0
    for position, op in enumerate(graph.ops):
        waits = {*ranked.waits[position], *before.get(position, ())}
        allowed = {
            source: graph.ops[source].end
            for source in waits
            if graph.ops[source].end <= op.start + CONTRADICTED
        }
        contradicted += len(set(ranked.waits[position]) - set(allowed))
        _explain(graph, position, allowed)
    if contradicted:
        reason = "dependencies whose source ends after the start that waits for it"
        ranked.unused[reason] += contradicted


def _lane_before(graph: RankGraph) -> dict[int, list[int]]:
    """Find the op before each on its lane, where the one had ended when the other started."""
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
        reason = _reason(op, graph.ops[last] if last is not None else None)
        graph.explained[reason] = graph.explained.get(reason, 0) + 1


def _reason(op: LocalOp, last: LocalOp | None) -> str:
    """Name what explains a device op's start, in the words of the coverage line."""
    if last is None or op.start - last.end > EXPLAINED:
        return "unexplained"
    if last.what == What.HOST:
        return "launch"
    return "stream" if last.lane == op.lane else "wait"
