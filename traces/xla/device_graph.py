"""A rank's part of the graph, from a device's ops of a step.

An op waits for those before it on its lane, for asynchronous ops whose ``done`` came before it, for
the producers of its HLO operands if lanes run concurrently, and for its launch. Causes of starts
are counted as for other traces (:mod:`traces.profiler.streams`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.calls import UNKNOWN
from simulator.support.errors import TraceError
from simulator.support.quantities import MOST_BYTES
from simulator.workload import What
from traces.core.loaded import CONTRADICTED
from traces.core.rank_graph import UNKNOWN_GROUP, LocalCall, LocalOp, RankGraph
from traces.profiler.device import DeviceOps
from traces.profiler.stream_waits import Waits
from traces.profiler.streams import add_stream_edges
from traces.xla.hlo import HloModule, call_size, peers_of, replica_group_of
from traces.xla.host import add_host
from traces.xla.planes import XlaOp
from traces.xla.steps import StepOps

Made = dict[int, list[int]]
"""Ops of the graph by the row of the profile's op from which they were made."""


@dataclass(slots=True, eq=False)
class _GraphBuild:
    """A graph under construction.

    ``ops_of_row`` maps a row of the step's ops to its ops of the graph, ``beside`` a lane to
    messages of its last op for which the next one also waits; ``unstarted`` counts waits without a
    start.
    """

    part: StepOps
    file: str
    job_ranks: int
    graph: RankGraph
    ops: DeviceOps
    ops_of_row: dict[int, list[int]] = field(default_factory=dict)
    waits: Waits = field(default_factory=lambda: defaultdict(set))
    streams: dict[str, int] = field(default_factory=dict)
    beside: dict[str, list[int]] = field(default_factory=dict)
    unstarted: int = 0


def device_graph(part: StepOps, file: str, job_ranks: int) -> RankGraph:
    """Add the ops of a rank's step and all edges between them."""
    graph = RankGraph(rank=part.device.rank, start=part.start)
    build = _GraphBuild(part, file, job_ranks, graph, DeviceOps(graph))
    pending: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    least = _shortest_transfers(part.ops)
    for row, op in enumerate(part.ops):
        if op.phase == "start":
            issued = _add(build, row, What.COMPUTE, op.lane, (op.start, op.end))
            pending[op.run, op.name].append((row, issued))
        elif op.phase == "done":
            _add_done(build, row, pending, least)
        else:
            _add_op(build, row, (op.start, op.end), op.lane)
    if part.busy and build.ops_of_row:
        graph.ops[min(min(numbers) for numbers in build.ops_of_row.values())].ready = part.ops[
            0
        ].start
    wait_for_transfers(build.ops, part.ops, build.ops_of_row, build.waits)
    wait_for_operands(build.ops, part.ops, build.ops_of_row, build.waits)
    lane_op, latency, guessed = add_host(build.ops, part, build.ops_of_row)
    add_stream_edges(build.ops, build.waits, latency, lane_op)
    # Count gaps attributed to the host without evidence as not explained
    if guessed:
        graph.explained["launch"] = graph.explained.get("launch", 0) - guessed
        graph.explained["unexplained"] = graph.explained.get("unexplained", 0) + guessed
    unpaired = sum(len(rows) for rows in pending.values())
    if unpaired:
        graph.notes.append(f"rank {graph.rank}: {unpaired} asynchronous ops end after the step")
    if build.unstarted:
        graph.notes.append(
            f"rank {graph.rank}: {build.unstarted} waits for asynchronous ops that began before "
            "the step or left no event: counted as compute"
        )
    return graph


def _add(build: _GraphBuild, row: int, what: What, lane: str, span: tuple[float, float]) -> int:
    """Add an op of a lane; ``row`` is the profile's op from which it is made."""
    op = _add_local(build, row, what, lane, span)
    stream = build.streams.setdefault(lane, len(build.streams))
    _register(build, op, stream)
    build.ops_of_row.setdefault(row, []).append(op)
    build.waits[op].update(build.beside.pop(lane, []))
    return op


def _add_local(
    build: _GraphBuild, row: int, what: What, lane: str, span: tuple[float, float]
) -> int:
    """Add an op; the names of copies between device and host say so, as in profilers."""
    source = build.part.ops[row]
    scope, crosses = (source.hlo.scope, source.hlo.host_copy) if source.hlo else ("", "")
    name = f"{source.name} {crosses}" if crosses and what == What.COPY else source.name
    return build.graph.add(LocalOp(what, lane, name, *span, module=scope))


def _register(build: _GraphBuild, op: int, stream: int) -> None:
    build.ops.append(op, stream)
    build.ops.on_stream.setdefault(stream, []).append(op)


def _add_beside(build: _GraphBuild, row: int, what: What, span: tuple[float, float]) -> int:
    """Add an op on a stream of its own, so that no other op waits for it by order."""
    op = _add_local(build, row, what, f"async {build.part.ops[row].lane}", span)
    _register(build, op, -2 - op)
    build.ops_of_row.setdefault(row, []).append(op)
    return op


_LEAST_WAIT = 1e-7
"""A ``done`` longer than this (s) waited; if its op had ended, it takes a few ns."""


def _add_done(
    build: _GraphBuild,
    row: int,
    pending: dict[tuple[int, str], list[tuple[int, int]]],
    least: dict[tuple[str, float], float],
) -> None:
    """Add an asynchronous op from its start to its ``done``, and the wait for it."""
    done = build.part.ops[row]
    started = pending.get((done.run, _started_by(done)))
    if not started:
        _add(build, row, What.COMPUTE, done.lane, (done.start, done.end))
        build.unstarted += 1
        return
    begun, issued = started.pop(0)
    start = build.graph.ops[issued].end
    if done.end - done.start > _LEAST_WAIT:
        end = done.end
    else:
        end = min(done.start, start + least.get(_gap_key(build.part.ops[begun]), math.inf))
    moved = _add_op(build, begun, (start, max(start, end)), "")
    for op in moved:
        build.waits[op].add(issued)
    resumed = max(min(end, done.end), done.start)
    wait = _add(build, row, What.COMPUTE, done.lane, (resumed, done.end))
    build.waits[wait].update(moved)


def _add_op(build: _GraphBuild, row: int, span: tuple[float, float], lane: str) -> list[int]:
    """Add an op by kind: compute, copy, collective or messages; lane "" is a stream of its own."""
    source = build.part.ops[row]
    calls = _calls(build, row) if source.kind else []
    if not calls:
        copies = source.copy or (
            source.hlo is not None and source.hlo.opcode == "copy" and not lane
        )
        what = What.COPY if copies else What.COMPUTE
        return [_add(build, row, what, lane, span) if lane else _add_beside(build, row, what, span)]
    numbers = []
    for number, call in enumerate(calls):
        what = What.COLLECTIVE
        if lane and number == 0:
            op = _add(build, row, what, lane, span)
        else:
            op = _add_beside(build, row, what, span)
        build.graph.collectives[op] = call
        numbers.append(op)
    if lane and len(numbers) > 1:
        _order_messages(build, numbers, lane)
    return numbers


def _order_messages(build: _GraphBuild, numbers: list[int], lane: str) -> None:
    """Let several messages of an op start after the op before on its lane, and delay the next."""
    order = build.ops.on_stream[build.streams[lane]]
    for op in numbers[1:]:
        build.waits[op].update(order[-2:-1])
    build.beside[lane] = numbers[1:]


def _calls(build: _GraphBuild, row: int) -> list[LocalCall]:
    """Return the calls of a rank's op: one, or a message for each pair of a permute.

    The text of a fusion that communicates has neither size nor group.
    """
    op, rank = build.part.ops[row], build.graph.rank
    where = f"{build.file}: {op.name} on {build.part.device.name} at {op.start:.6f} s"
    if op.hlo is None or op.kind == UNKNOWN:
        if op.kind == "barrier":
            return [_call(op, "barrier", 0.0, tuple(range(build.job_ranks)), where)]
        return [_call(op, op.kind, math.nan, None, where, rank)]
    if op.kind == "send_receive":
        size = call_size(op.hlo, None)
        to, source = peers_of(op.hlo, rank, op.module)
        messages = [(rank, peer) for peer in to] + [(peer, rank) for peer in source]
        return [_call(op, op.kind, size, ends, where) for ends in messages if ends[0] != ends[1]]
    ranks = replica_group_of(op.hlo, rank, op.module) if op.hlo.kind else None
    if ranks is None:
        return [_call(op, op.kind, math.nan, None, where, rank)]
    ranks = ranks or tuple(range(build.job_ranks))
    if len(ranks) == 1:
        return []
    return [_call(op, op.kind, call_size(op.hlo, len(ranks)), ranks, where)]


def _call(
    op: XlaOp, kind: str, size: float, ranks: tuple[int, ...] | None, where: str, alone: int = 0
) -> LocalCall:
    """Return a rank's part of a call; without ``ranks`` it has no peers, and its measured time."""
    if size > MOST_BYTES:
        raise TraceError(f"{where}: {size:.3g} B is not a size of a message")
    return LocalCall(
        kind=kind if ranks is not None or kind != "send_receive" else UNKNOWN,
        size=size,
        dtype=op.hlo.dtype if op.hlo is not None else "",
        key=f"{op.program}/{op.name}",
        label="" if ranks is not None else UNKNOWN_GROUP,
        ranks=ranks if ranks is not None else (alone,),
        group_size=None if ranks is None else len(ranks),
        sequence=None,
        peer=None,
        where=where,
    )


def _shortest_transfers(ops: list[XlaOp]) -> dict[tuple[str, float], float]:
    """Return the shortest time of waited-for asynchronous ops, by kind and size (s).

    If a ``done`` found its op finished, the op's end is earlier by an unknown time, which is
    estimated from equal ops.
    """
    started: dict[tuple[int, str], list[XlaOp]] = defaultdict(list)
    least: dict[tuple[str, float], float] = {}
    for op in ops:
        if op.phase == "start":
            started[op.run, op.name].append(op)
        elif op.phase == "done" and started.get((op.run, _started_by(op))):
            begun = started[op.run, _started_by(op)].pop(0)
            if op.end - op.start > _LEAST_WAIT:
                key = _gap_key(begun)
                least[key] = min(least.get(key, math.inf), op.end - begun.end)
    return least


def _started_by(done: XlaOp) -> str:
    """Return the name of the start that a ``done`` waits for."""
    named = done.hlo.operands[:1] if done.hlo is not None else ()
    return named[0] if named else done.name.replace("-done", "-start")


def _gap_key(op: XlaOp) -> tuple[str, float]:
    hlo = op.hlo
    size = math.fsum(part.size for part in hlo.inputs or ()) if hlo is not None else 0.0
    return (hlo.opcode if hlo is not None else op.name, 0.0 if math.isnan(size) else size)


def wait_for_transfers(ops: DeviceOps, rows: list[XlaOp], ops_of_row: Made, waits: Waits) -> None:
    """Add the waits of transfers on streams of their own, and of ops for them.

    A transfer waits for the ops that the program had launched when it was issued. The first op
    launched after the transfer's ``done``, by the schedule of the program, waits for it.
    """
    order = [row for row, op in enumerate(rows) if op.launch is not None and row in ops_of_row]
    order.sort(key=lambda row: (rows[row].launch, row))
    done_at: dict[int, dict[str, tuple[int, int]]] = {}
    for index, row in enumerate(order):
        op = rows[row]
        if not op.transfer:
            continue
        before = next((row for row in order[:index][::-1] if rows[row].lane != op.lane), None)
        if before is not None:
            _wait(ops, waits, ops_of_row[row][0], ops_of_row[before][-1])
        if op.module is None:
            continue
        done = done_at.setdefault(id(op.module), _dones(op.module)).get(op.name)
        after = _after_done(rows, order[index + 1 :], op, done)
        if after is not None:
            for transfer in ops_of_row[row]:
                _wait(ops, waits, ops_of_row[after][0], transfer)


def _after_done(
    rows: list[XlaOp], later: list[int], op: XlaOp, done: tuple[int, int] | None
) -> int | None:
    """Return the first op launched after the done of a transfer, in the same loop iteration."""
    if done is None or op.module is None:
        return None
    for row in later:
        done_op = rows[row]
        if done_op.run != op.run or done_op.name == op.name:
            return None
        scheduled = op.module.order.get(done_op.name)
        if (
            done_op.lane != op.lane
            and scheduled is not None
            and scheduled[0] == done[0]
            and scheduled > done
        ):
            return row
    return None


def _dones(module: HloModule) -> dict[str, tuple[int, int]]:
    """Return the schedule positions of each asynchronous op's done, by its name and wrapped op."""
    done_at: dict[str, tuple[int, int]] = {}
    for op in module.ops.values():
        if op.phase == "done" and op.operands and op.name in module.order:
            scheduled = module.order[op.name]
            done_at[op.operands[0]] = scheduled
            started = module.ops.get(op.operands[0])
            if started is not None and started.wrapped:
                done_at[started.wrapped] = scheduled
    return done_at


def wait_for_operands(ops: DeviceOps, rows: list[XlaOp], ops_of_row: Made, waits: Waits) -> None:
    """Let ops wait for the producers of their operands, if a device has several lanes."""
    if len({op.lane for op in rows}) < 2 or any(op.transfer for op in rows):
        return
    operands = Operands(rows)
    latest: dict[tuple[int, str], int] = {}
    for row, op in enumerate(rows):
        if row not in ops_of_row:
            continue
        sources = (latest.get((op.run, name)) for name in operands.of(op))
        for source in sources:
            if source is not None:
                _wait(ops, waits, ops_of_row[row][0], ops_of_row[source][-1])
        latest[op.run, op.name] = row


class Operands:
    """The ops with events of their own that produce the operands of each op."""

    def __init__(self, ops: Iterable[XlaOp]) -> None:
        self._events: dict[str, set[str]] = defaultdict(set)
        self._known: dict[tuple[int, str], set[str]] = {}
        for op in ops:
            self._events[op.program].add(op.name)

    def of(self, op: XlaOp) -> set[str]:
        """Return the names of the operands' producers; empty if the program is unknown."""
        if op.module is None:
            return set()
        key = (id(op.module), op.name)
        if key not in self._known:
            self._known[key] = _producers(op.module, op.name, self._events[op.program])
        return self._known[key]


def _producers(module: HloModule, name: str, events: set[str]) -> set[str]:
    """Return the ops with events of their own that produce a named op's operands."""
    producers: set[str] = set()
    seen: set[str] = set()
    pending = list(module.ops[name].operands) if name in module.ops else []
    while pending:
        source = pending.pop()
        if source in seen:
            continue
        seen.add(source)
        if source in events:
            producers.add(source)
        elif source in module.ops:
            pending.extend(module.ops[source].operands)
    return producers


def _wait(ops: DeviceOps, waits: Waits, op: int, source: int) -> None:
    """Add a wait unless the measured times contradict it."""
    if source != op and ops.ends[source] <= ops.starts[op] + CONTRADICTED:
        waits.setdefault(op, set()).add(source)
