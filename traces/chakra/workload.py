"""The workload that Chakra nodes make: where starts were measured, and where they were not.

Where the files have starts, the op that was last to allow a start carries the rest of the delay as
lag, and a start that nothing precedes is when the op was ready: a replay then begins every op when
it was measured to. A start long after all that allows it is counted as not explained.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simulator.calls import CallRow, Calls, Group
from simulator.support.arrays import Floats
from simulator.workload import Edges, What, Workload, unawaited
from traces.chakra.nodes import COMMUNICATION, Index, NodeForm, RankNodes, lanes_of
from traces.core.columns import ValueIndex
from traces.core.loaded import CONTRADICTED, EXPLAINED
from traces.core.rank_graph import LocalOp, RankGraph
from traces.matching.lane_order import LOOSE, Given, awaited, before_on_lane, with_lanes
from traces.matching.match import Matching


def workload_of_columns(
    ranked: Sequence[RankNodes], calls: Matching, job_ranks: int, transfers: Floats
) -> Workload:
    """Make a workload of files without starts: each lane runs what becomes ready first.

    Calls without a stream may overlap; all other lanes run one op at a time. ``transfers`` are how
    long calls took (s).
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
    graph = Given(
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
    """Forms of all ranks, and which every node is of, one rank after the other."""
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
    """Put the edges of all ranks together; the nodes of a rank begin at its ``first``."""
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
    """Make a rank's graph of nodes whose starts and ends (s) are known."""
    graph = RankGraph(ranked.rank, 0.0)
    lanes = lanes_of(ranked)
    times = zip(ranked.form.tolist(), starts.tolist(), ends.tolist(), strict=True)
    for form, start, end in times:
        node = ranked.forms[form]
        graph.add(LocalOp(node.what, lanes[form], node.name, start, end))
    _connect(graph, ranked)
    return graph


def _connect(graph: RankGraph, ranked: RankNodes) -> None:
    """Give the ops of a graph that was measured their edges, lags and earliest starts."""
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
