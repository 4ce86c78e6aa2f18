"""Edges between device ops: stream order, recorded waits, and what explains a start.

Edges come from certain facts (launch, stream order), from records (``cuda_sync`` events with ids),
from the order of ``EventRecord`` and ``StreamWaitEvent`` calls on the host, and last from measured
times: a kernel that starts just when one on another stream ends waited for it. An edge that the
measured times contradict is dropped.

Kernels of one stream overlap if the later one was launched to (programmatic dependent launch), or
if a graph's branches are recorded on one stream. In the first case the later kernel is put on the
device while the earlier one still runs, and waits there for its end before it touches anything that
the earlier one writes (CUDA C++ Programming Guide, "Programmatic Dependent Launch":
``cudaGridDependencySynchronize`` returns when the earlier grid has completed). So if it overlaps
the end of the earlier kernel, it follows that, and its own work is the part after it: a device that
is twice as fast does both in half the time. If the overlap is longer, so that it is unknown whether
it waited for that end, it starts when the earlier kernel has made the same progress. In the second
case it waits for what the kernel beside it waited for.
"""

import math
from bisect import bisect_right
from typing import NamedTuple

from msgspec import Struct

from simulator.support.quantities import format_quantity
from simulator.workload import IN_PART, LAUNCH_DELAY, STEP_BEFORE, What
from traces.core.loaded import CONTRADICTED, EXPLAINED, Gap
from traces.core.rank_graph import LocalOp
from traces.profiler.device import DeviceOps
from traces.profiler.stream_waits import STAMPS, Waits


def add_stream_edges(ops: DeviceOps, waits: Waits, latency: float, lane_op: dict[int, int]) -> None:
    """Give every device op its edges and lags, and count what explains its start.

    ``latency`` is the typical launch latency (s), ``lane_op`` the host op whose end is the launch.
    The predecessor that allowed the start last carries the rest of the measured delay as lag. A
    device op without an explanation keeps that delay, too, and is counted ``unexplained``; after a
    launch it is a gap of the device, not a lag of the host, which a faster host would shorten.
    """
    ends = _Ends.of(ops)
    order = _stream_order(ops)
    overlapped = {running_op for behind in order.values() for running_op in behind.running}
    obeyed: Waits = {}
    released: dict[int, _Edges] = {}
    for op in range(len(ops.stream)):
        if op in ops.before:
            continue
        running = order[op].running
        inherited = (obeyed.get(running_op, set()) for running_op in running)
        sources = order[op].ended.union(waits.get(op, ()), *inherited)
        allowed = _allowed_by(ops, op, sources, latency)
        edges: _Edges = []
        if _started_early(ops, op, running, allowed):
            allowed[_BESIDE] = ops.starts[op]
            edges.append(_progress(ops, op, running[0], released.get(running[0], [])))
        edges += _edges_of(ops, op, allowed, ends, (lane_op, latency))
        ops.graph.edges += [(source, op, lag) for source, lag in edges]
        if op in overlapped:
            obeyed[op], released[op] = sources, edges


_Edges = list[tuple[int, float]]
"""Predecessors of an op, each with the lag after it (s)."""


class _StreamBefore(NamedTuple):
    """Earlier ops of an op's stream: those that had ``ended``, and those still ``running``."""

    ended: set[int]
    running: list[int]


def _stream_order(ops: DeviceOps) -> dict[int, _StreamBefore]:
    """Let each op wait for earlier ops of its stream, unless the measured times contradict it.

    An op does not wait for one that was launched after it, whatever the stamps say.
    """
    behind: dict[int, _StreamBefore] = {}
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
            running = []
            if len(before) < len(unfollowed):
                unfollowed = [earlier for earlier in unfollowed if earlier not in before]
                running = [op_before for op_before, called in unfollowed if called <= allowed]
            else:
                unfollowed = []
            behind[op] = _StreamBefore({earlier for earlier, _ in before}, running)
            latest = max([called for _, called in before], default=-math.inf)
            unfollowed.append((op, latest if launched is None else launched))
    return behind


_LAUNCH = -1
"""The launch, among an op's predecessors."""
_BESIDE = -2
"""The op that ran when this one started, whose progress released it."""
_NOTHING = -3
"""None of them: a device that was busy with the previous step."""


def _started_early(ops: DeviceOps, op: int, running: list[int], allowed: dict[int, float]) -> bool:
    """Whether the progress of the overlapping op put this op on the device.

    It did if this op ran on after the other had ended, both alone on the stream, and no launch and
    no end explains its start: a branch of a graph starts when what it waits for ends.
    """
    if len(running) != 1 or ops.ends[op] <= ops.ends[running[0]]:
        return False
    if ops.graph.ops[running[0]].what != What.COMPUTE:
        return False
    last = _last(allowed)
    late = math.inf if last is None else ops.starts[op] - allowed[last]
    return late > (EXPLAINED if last == _LAUNCH else STAMPS)


def _progress(ops: DeviceOps, op: int, running: int, released: "_Edges") -> tuple[int, float]:
    """Add an op for the part of another kernel before this one started, and let this follow it.

    It lies beside the whole kernel, starts with it, and scales with it.
    """
    whole = ops.graph.ops[running]
    start = ops.starts[op]
    begun = min(start, whole.start if whole.begun is None else whole.begun)
    done = LocalOp(What.COMPUTE, whole.lane, IN_PART, begun, start, whole.ready)
    part = ops.stand_in(done, running)
    for source, lag in released:
        ops.graph.wait_for(part, [source], lag=lag)
    return part, 0.0


def _allowed_by(ops: DeviceOps, op: int, sources: set[int], latency: float) -> dict[int, float]:
    """When each predecessor alone would have allowed the start (s)."""
    allowed = {source: ops.ends[source] for source in sources}
    launched = ops.launched[op]
    if launched is not None:
        due = launched if ops.launch[op] in ops.held else launched + latency
        # When a call that took unusually long returned, if its op had not started by then (s)
        returned = ops.returned[op]
        long = returned > due + EXPLAINED and ops.starts[op] >= returned - CONTRADICTED
        ready = max(due, returned if long and op not in ops.nodes else due)
        allowed[_LAUNCH] = min(ready, max(ops.starts[op], launched))
    return allowed


def _gap(ops: DeviceOps, op: int, allowed: dict[int, float], last: int | None) -> Gap:
    """Describe an unexplained start."""
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
    """Return the predecessor that allowed a start last."""
    if len(allowed) < 2:
        return next(iter(allowed), None)
    return max(zip(allowed.values(), allowed, strict=True))[1]


def _reason(ops: DeviceOps, op: int, allowed: dict[int, float], last: int | None) -> str:
    ready = ops.graph.ops[op].ready
    if ready is not None and (last is None or ready > allowed[last]):
        return "step before"
    if last is None:
        return "unexplained"
    if ops.starts[op] - allowed[last] > EXPLAINED:
        return "unexplained"
    if last == _LAUNCH:
        return "launch"
    if last in ops.before:
        return "step before"
    if last == _BESIDE:
        return "stream"
    return "stream" if ops.stream[last] == ops.stream[op] else "wait"


class _Ends(Struct, frozen=True):
    """Ops in order of their ends (s)."""

    times: list[float]
    ops: list[int]

    @staticmethod
    def of(ops: DeviceOps) -> "_Ends":
        """Sort them."""
        by_end = sorted(zip(ops.ends, range(len(ops.ends)), strict=True))
        return _Ends([end for end, _ in by_end], [op for _, op in by_end])

    def last_before(self, ops: DeviceOps, op: int, allowed: float) -> int | None:
        """Return the last op on another stream that ended between ``allowed`` and the start.

        It explains the start if it ended just before. Even if not, a device that was still busy is
        a more likely cause of the delay than a host that launched long ago.
        """
        latest = bisect_right(self.times, ops.starts[op] + STAMPS) - 1
        while latest >= 0 and self.times[latest] > allowed:
            candidate = self.ops[latest]
            if ops.stream[candidate] != ops.stream[op] and ops.launched_before(candidate, op):
                return candidate
            latest -= 1
        return None


def _edges_of(
    ops: DeviceOps,
    op: int,
    allowed: dict[int, float],
    ends: _Ends,
    launches: tuple[dict[int, int], float],
) -> _Edges:
    """Turn predecessors into edges; the last to allow the start carries the rest as lag.

    What explains the start, if need be on another stream, is counted; a start without explanation
    is recorded as a gap. ``launches`` are the host op that launches each op, and the typical
    latency (s).
    """
    start, graph = ops.starts[op], ops.graph
    last = _last(allowed)
    reason = _reason(ops, op, allowed, last)
    if reason == "unexplained":
        inferred = ends.last_before(ops, op, max(allowed.values(), default=math.inf))
        if inferred is not None:
            allowed[inferred] = ops.ends[inferred]
            last = _last(allowed)
            reason = _reason(ops, op, allowed, last).replace("wait", "inferred")
    late = start - allowed.get(_LAUNCH, math.inf)
    if reason == "unexplained" and last == _LAUNCH and op in ops.first and late > IN_FLIGHT:
        reason = "step before"
    if reason == "unexplained":
        graph.gaps.append(_gap(ops, op, allowed, last))
    graph.explained[reason] = graph.explained.get(reason, 0) + 1

    local = graph.ops[op]
    if last is not None and local.ready is not None and local.ready > allowed[last]:
        local.ready, last = start, _NOTHING
    edges = _launch_edges(ops, op, allowed, reason, launches, is_last=last == _LAUNCH)
    for source in sorted(source for source in allowed if source >= 0):
        lag = max(0.0, start - ops.ends[source]) if source == last else 0.0
        edges.append((source, lag))
        if ops.ends[source] > max(start, local.begun or start):
            local.begun = min(ops.ends[source], ops.ends[op])
    if last is None:
        local.ready = start
    return edges


def _launch_edges(
    ops: DeviceOps,
    op: int,
    allowed: dict[int, float],
    reason: str,
    launches: tuple[dict[int, int], float],
    *,
    is_last: bool,
) -> _Edges:
    """Let an op wait for its launch, if it has one, and for the delay that the launch leaves."""
    launched = ops.launched[op]
    if launched is None:
        return []
    lane_op, latency = launches
    delay = max(0.0, ops.starts[op] - launched)
    if not is_last:
        return [(lane_op[op], min(latency, delay))]
    if reason == "step before":
        return [(_in_flight(ops, op), 0.0), (lane_op[op], min(latency, delay))]
    if reason != "unexplained":
        return [(lane_op[op], delay)]
    lag = max(0.0, allowed[_LAUNCH] - launched)
    # Put what a launch does not explain of a delay behind an op of no length: a gap. That op stands
    # where the kernel was due, `lag` after its launch (s).
    due = (ops.launched[op] or 0.0) + lag
    lane = ops.graph.ops[op].lane
    stands = ops.stand_in(LocalOp(What.COPY, lane, LAUNCH_DELAY, due, due), op)
    ops.graph.wait_for(stands, [lane_op[op]], lag=lag)
    return [(stands, max(0.0, ops.starts[op] - due)), (lane_op[op], lag)]


IN_FLIGHT = 1e-3
"""A longer idle time of a stream before a kernel (s) means work in flight."""


def _in_flight(ops: DeviceOps, op: int) -> int:
    """Add the unrecorded work that kept a stream busy when the recording began.

    A stream's first op of the recording that starts long after its launch waits for work launched
    before the recording began: in a server, the previous batch. That counts as compute, as recorded
    work of the previous step does.
    """
    graph = ops.graph
    begin, end = graph.start, ops.starts[op]
    graph.notes.append(
        f"{graph.ops[op].lane} was busy for {format_quantity(end - begin, 's')} with what was "
        "launched before the recording began: counted as compute"
    )
    busy = LocalOp(What.COMPUTE, graph.ops[op].lane, STEP_BEFORE, begin, end, ready=begin)
    return ops.stand_in(busy, op)
