"""What could be used of Chakra files, and what they leave open.

Measured starts of Chakra nodes: what explains them, and the gaps that dependencies leave.

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
from traces.chakra.files import Files
from traces.chakra.nodes import CALLS, COMMUNICATION, Form, RankNodes
from traces.core.calls import UNKNOWN_GROUP
from traces.core.loaded import CONTRADICTED, EXPLAINED, Coverage
from traces.core.rank_graph import LocalOp, RankGraph
from traces.matching.match_columns import Matched

_DEVICE = (What.COMPUTE, What.COPY, What.COLLECTIVE, What.SEND, What.RECEIVE)


def spans(ranked: RankNodes, durations: list[float]) -> list[tuple[float, float]]:
    """Start and end of each node (s); one that is not told starts when what it waits for ends."""
    found = [(0.0, 0.0)] * len(ranked.nodes)
    for place in ranked.order:
        start = ranked.start[place]
        if start is None:
            start = max((found[one][1] for one in ranked.waits[place]), default=0.0)
        found[place] = (start, start + durations[place])
    return found


def connect(graph: RankGraph, ranked: RankNodes) -> None:
    """Give the ops of a graph that was measured their edges, lags and earliest starts."""
    before = _lane_before(graph)
    contradicted = 0
    for place, op in enumerate(graph.ops):
        waits = {*ranked.waits[place], *before.get(place, ())}
        allowed = {
            one: graph.ops[one].end
            for one in waits
            if graph.ops[one].end <= op.start + CONTRADICTED
        }
        contradicted += len(set(ranked.waits[place]) - set(allowed))
        _explain(graph, place, allowed)
    if contradicted:
        reason = "dependencies whose source ends after the start that waits for it"
        ranked.unused[reason] += contradicted


def _lane_before(graph: RankGraph) -> dict[int, list[int]]:
    """Find the op before each on its lane, where the one had ended when the other started."""
    lanes: dict[str, list[int]] = {}
    for place in sorted(range(len(graph.ops)), key=lambda one: (graph.ops[one].start, one)):
        if graph.ops[place].lane != COMMUNICATION:
            lanes.setdefault(graph.ops[place].lane, []).append(place)
    return {
        later: [earlier]
        for lane in lanes.values()
        for earlier, later in pairwise(lane)
        if graph.ops[earlier].end <= graph.ops[later].start + CONTRADICTED
    }


def _explain(graph: RankGraph, place: int, allowed: dict[int, float]) -> None:
    op = graph.ops[place]
    last = max(allowed, key=lambda one: (allowed[one], one), default=None)
    if last is None:
        op.ready = op.start
    for one, end in allowed.items():
        lag = max(0.0, op.start - end) if one == last else 0.0
        graph.edges.append((one, place, lag))
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


Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """The ranks' nodes and calls, and how often what is lacking."""

    ranked: list[RankColumns]
    calls: Matched
    job_ranks: int
    notes: Counter[str]


def coverage(
    files: Files, job: Job, told: Sequence[str] = (), last: Sequence[str] = ()
) -> Coverage:
    """Say what was read; ``told`` are notes on times, ``last`` those that come last."""
    kernels = [_of(one, _is_kernel) for one in job.ranked]
    return Coverage(
        step="all",
        steps=(),
        ranks=tuple(one.nodes.rank for one in job.ranked),
        ranks_in_job=job.job_ranks,
        kernels=sum(int(own.sum()) for own in kernels),
        launches_paired=sum(map(_launched, job.ranked, kernels)),
        collectives=len(job.calls),
        collectives_matched=_complete(job),
        sizes_known=_sized(job),
        starts={},
        clock_offset={},
        unused=dict(sum((one.nodes.unused for one in job.ranked), Counter[str]())),
        skipped=files.skipped,
        notes=(*files.notes, *_notes(files, job, told), *last),
    )


def durations(job: Job) -> Floats:
    """Duration that each member of a call tells (s)."""
    return np.array([form.duration for form in forms_of(job.ranked)[0]])[_forms_of_members(job)]


def waited(job: Job, told: Floats) -> Iterator[str]:
    """Say how long ranks waited in a collective, which durations need not explain."""
    if not len(job.calls):
        return
    begin = job.calls.offset[:-1]
    least, most = np.minimum.reduceat(told, begin), np.maximum.reduceat(told, begin)
    longest = float(np.where(least > 0, most - least, 0.0).max())
    if longest > 0:
        yield (
            f"a rank waited {format_quantity(longest, 's')} in a collective for another: a replay "
            "has of such waiting what durations explain"
        )


def _forms_of_members(job: Job) -> NDArray[np.int64]:
    """Which form, of those of all ranks, each member of a call has."""
    first = np.cumsum([0, *(len(one) for one in job.ranked)])
    return forms_of(job.ranked)[1][first[job.calls.place] + job.calls.op]


def _is_kernel(form: Form) -> bool:
    """Whether it is what a device does, and no copy engine."""
    return not form.values.get("is_cpu_op") and (form.type in CALLS or form.what == What.COMPUTE)


def _is_host(form: Form) -> bool:
    return form.what == What.HOST


def _of(one: RankColumns, is_so: Callable[[Form], bool]) -> Mask:
    """Mark the nodes of a rank whose forms are so."""
    return np.array([is_so(form) for form in one.nodes.forms], dtype=np.bool_)[one.form]


def _launched(one: RankColumns, kernel: Mask) -> int:
    """Count the kernels that wait for the host."""
    host = _of(one, _is_host)
    waits = np.zeros(len(one), dtype=np.bool_)
    waits[one.target[host[one.source]]] = True
    return int((waits & kernel).sum())


def _complete(job: Job) -> int:
    """Count the calls of a known group of which all ranks that are there take part."""
    there = {one.nodes.rank for one in job.ranked}
    expected = [
        -1 if label == UNKNOWN_GROUP else len(there.intersection(ranks))
        for ranks, label in job.calls.groups
    ]
    members = np.diff(job.calls.offset)
    return int((members == np.array(expected, dtype=np.int64)[job.calls.group]).sum())


def _sized(job: Job) -> int:
    """Count the calls whose size is told, of use or not: it is of none without the group."""
    if not len(job.calls):
        return 0
    forms, _ = forms_of(job.ranked)
    tells = np.array([form.values.get("comm_size") is not None for form in forms])
    told = np.logical_or.reduceat(tells[_forms_of_members(job)], job.calls.offset[:-1])
    of_kind = np.array([kind != UNKNOWN for kind in job.calls.kind])
    return int((of_kind & (told | ~np.isnan(job.calls.size))).sum())


def _notes(files: Files, job: Job, told: Sequence[str]) -> list[str]:
    notes = [*(f"{count} {what}" for what, count in job.notes.items()), *told]
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
