"""Edges between device ops: stream order, recorded waits, and what explains a start.

Edges come from what is certain (launch, stream order), from what was recorded (``cuda_sync``
events with ids), from the order of ``EventRecord`` and ``StreamWaitEvent`` calls on the host, and
last from measured times: a kernel that starts just when one on another stream ends waited for it.
No edge is kept that the measured times contradict.
"""

import math
from bisect import bisect_right

from traces.core.loaded import CONTRADICTED, EXPLAINED, Gap
from traces.profiler.device import DeviceOps
from traces.profiler.stream_waits import Waits


def add_stream_edges(ops: DeviceOps, waits: Waits, latency: float, lane_op: dict[int, int]) -> None:
    """Give every device op its edges and lags, and count what explains its start.

    ``latency`` is the typical launch latency (s), ``lane_op`` the host op whose end is the launch.
    The predecessor that was last to allow the start carries the rest of the measured delay as lag;
    a device op that nothing explains keeps that delay too, and is counted ``unexplained``.
    """
    ends = sorted(zip(ops.ends, range(len(ops.ends)), strict=True))
    end_times = [end for end, _ in ends]
    previous = _stream_order(ops)
    for op in range(len(ops.stream)):
        if op in ops.before:
            continue
        allowed = _allowed_by(ops, op, previous.get(op, set()) | waits.get(op, set()), latency)
        last = _last(allowed)
        reason = _reason(ops, op, allowed, last)
        if reason == "unexplained":
            inferred = _last_to_end(
                ops, op, (end_times, ends), max(allowed.values(), default=math.inf)
            )
            if inferred is not None:
                allowed[inferred] = ops.ends[inferred]
                last = _last(allowed)
                reason = _reason(ops, op, allowed, last).replace("wait", "inferred")
        if reason == "unexplained":
            ops.graph.gaps.append(_gap(ops, op, allowed, last))
        ops.graph.explained[reason] = ops.graph.explained.get(reason, 0) + 1
        _connect(ops, op, (allowed, last), lane_op, latency)


def _stream_order(ops: DeviceOps) -> Waits:
    """Each op waits for those before it on its stream, unless the measured times say otherwise.

    Kernels of one stream overlap where the later one was launched to (programmatic dependent
    launch), or where a graph's branches are recorded on one stream. An op does not wait for one
    that was launched after it, whatever the stamps say.
    """
    waits: Waits = {}
    ends = ops.ends
    for order in ops.on_stream.values():
        unfollowed: list[tuple[int, float]] = []
        for op in order:
            limit, launched = ops.starts[op] + CONTRADICTED, ops.launched[op]
            allowed = math.inf if launched is None else launched
            before = [
                earlier
                for earlier in unfollowed
                if ends[earlier[0]] <= limit and earlier[1] <= allowed
            ]
            waits[op] = {earlier for earlier, _ in before}
            if len(before) < len(unfollowed):
                unfollowed = [earlier for earlier in unfollowed if earlier not in before]
            else:
                unfollowed = []
            latest = max([called for _, called in before], default=-math.inf)
            unfollowed.append((op, latest if launched is None else launched))
    return waits


_LAUNCH = -1
"""Stands for the launch among an op's predecessors."""
_NOTHING = -2
"""Stands for none of them: a stream that was busy with the step before."""


def _allowed_by(ops: DeviceOps, op: int, sources: set[int], latency: float) -> dict[int, float]:
    """When each predecessor alone would have let the op start (s)."""
    allowed = {source: ops.ends[source] for source in sources}
    launched = ops.launched[op]
    if launched is not None:
        ready = max(launched + latency, _held_up(ops, op, launched + latency))
        allowed[_LAUNCH] = min(ready, max(ops.starts[op], launched))
    return allowed


def _held_up(ops: DeviceOps, op: int, due: float) -> float:
    """When a launch that took unusually long returned, if its kernel had not started by then (s).

    The call was held up (a module loaded, the thread preempted) before it reached the device.
    """
    returned = ops.returned[op]
    long = returned > due + EXPLAINED and ops.starts[op] >= returned - CONTRADICTED
    return returned if long else due


def _gap(ops: DeviceOps, op: int, allowed: dict[int, float], last: int | None) -> Gap:
    """Describe a start that nothing explains."""
    graph = ops.graph
    before = graph.start if last is None else allowed[last]
    behind = "the begin of the step" if last is None else "its launch"
    if last is not None and last >= 0:
        behind = f"{graph.ops[last].name!r} on {graph.ops[last].lane}"
    return Gap(
        rank=graph.rank,
        lane=graph.ops[op].lane,
        name=graph.ops[op].name,
        time=ops.starts[op] - graph.start,
        length=max(0.0, ops.starts[op] - before),
        behind=behind,
    )


def _last(allowed: dict[int, float]) -> int | None:
    """Find the predecessor that was last to allow a start."""
    if len(allowed) < 2:
        return next(iter(allowed), None)
    return max((time, source) for source, time in allowed.items())[1]


def _reason(ops: DeviceOps, op: int, allowed: dict[int, float], last: int | None) -> str:
    ready = ops.graph.ops[op].ready
    if last is None:
        return "step before" if ready is not None else "unexplained"
    if ready is not None and ready > allowed[last]:
        return "step before"
    if ops.starts[op] - allowed[last] > EXPLAINED:
        return "unexplained"
    if last == _LAUNCH:
        return "launch"
    if last in ops.before:
        return "step before"
    return "stream" if ops.stream[last] == ops.stream[op] else "wait"


def _last_to_end(
    ops: DeviceOps, op: int, ends: tuple[list[float], list[tuple[float, int]]], allowed: float
) -> int | None:
    """Find the op on another stream that ended last between ``allowed`` and the start of ``op``.

    It explains the start if it ended just before. Even if not, a device that was still busy is
    nearer to the cause of the delay than the host that launched long ago.
    """
    times, by_end = ends
    latest = bisect_right(times, ops.start(op)) - 1
    while latest >= 0 and times[latest] > allowed:
        candidate = by_end[latest][1]
        if ops.stream[candidate] != ops.stream[op] and ops.launched_before(candidate, op):
            return candidate
        latest -= 1
    return None


def _connect(
    ops: DeviceOps,
    op: int,
    released: tuple[dict[int, float], int | None],
    lane_op: dict[int, int],
    latency: float,
) -> None:
    """Turn predecessors into edges; the last to allow the start carries the rest as lag."""
    start = ops.starts[op]
    allowed, last = released
    ready = ops.graph.ops[op].ready
    if last is not None and ready is not None and ready > allowed[last]:
        ops.graph.ops[op].ready, last = start, _NOTHING
    for source in sorted(allowed):
        if source == _LAUNCH:
            delay = max(0.0, start - (ops.launched[op] or 0.0))
            lag = delay if source == last else min(latency, delay)
            ops.graph.wait_for(op, [lane_op[op]], lag=lag)
        else:
            lag = max(0.0, start - ops.end(source)) if source == last else 0.0
            ops.graph.wait_for(op, [source], lag=lag)
    if last is None:
        ops.graph.ops[op].ready = start
