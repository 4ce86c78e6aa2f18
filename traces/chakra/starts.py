"""Measured starts of Chakra nodes: what explains them, and the gaps that dependencies leave.

Where the file tells starts, the op that was last to allow a start carries the rest of the delay as
lag, and a start that nothing precedes is when the op was ready: a replay then begins every op when
it was measured to. A start long after all that allows it is counted as not explained.
"""

from itertools import pairwise

from simulator.workload import What
from traces.chakra.nodes import COMMUNICATION, RankNodes
from traces.core.loaded import CONTRADICTED, EXPLAINED
from traces.core.rank_graph import LocalOp, RankGraph


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
