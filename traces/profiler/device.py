"""Device ops of a rank's step: kernels, copies and collectives, and their streams.

A kernel may carry out several calls. ``batch_isend_irecv`` and other coalescing groups make one
call after the other, each with its own record and without a launch; ``ncclGroupEnd``, inside
``nccl:coalesced``, launches one kernel for all. That launch names no kind: the calls since the
thread's previous launch do.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from simulator.calls import UNKNOWN
from simulator.workload import STEP_BEFORE, What
from traces.core.comm_kernels import KERNELS, KernelRules
from traces.core.events import CommRecord, HostEvents, RankTrace
from traces.core.loaded import CONTRADICTED, EXPLAINED
from traces.core.rank_graph import LocalCall, LocalOp, RankGraph, kind_of
from traces.profiler.comms import Enclosing, local_call
from traces.profiler.window import Launches, Window, first_nodes

Parts = Mapping[int, Sequence[list[CommRecord]]]
"""Per launch row, the records of each of the calls that it launches."""


class DeviceOps(Struct, eq=False):
    """Device ops of a step: the first ops of the rank's graph, in order of their start.

    ``starts`` and ``ends`` are measured (s). ``launch`` is an op's host row, ``launched`` when that
    reached the device (its start, s, or its end if it was delayed), None for a kernel without one,
    ``returned`` its end. ``on_stream`` lists each stream's ops in execution order. ``before`` are
    ops that represent a stream's remaining work of the previous step. ``held`` are delayed
    launches, ``nodes`` the further ops of each launch. ``kernel_of`` maps ops that represent a part
    of a kernel, or a delay before one, to that kernel. ``written`` is when a kernel that ran on had
    written what a host thread waited for (s). ``first`` are the first of their streams in the whole
    recording, calls left out.
    """

    graph: RankGraph
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    op_of: dict[int, int] = field(default_factory=dict)
    stream: list[int] = field(default_factory=list)
    launch: list[int | None] = field(default_factory=list)
    launched: list[float | None] = field(default_factory=list)
    returned: list[float] = field(default_factory=list)
    on_stream: dict[int, list[int]] = field(default_factory=dict)
    before: set[int] = field(default_factory=set)
    held: frozenset[int] = frozenset()
    nodes: set[int] = field(default_factory=set)
    kernel_of: dict[int, int] = field(default_factory=dict)
    written: dict[int, float] = field(default_factory=dict)
    first: frozenset[int] = frozenset()
    _by_launch: dict[int, tuple[list[float], list[int]]] = field(default_factory=dict)
    _before: dict[int, int] = field(default_factory=dict)

    def append(
        self, op: int, stream: int, launch: int | None = None, host: HostEvents | None = None
    ) -> None:
        """Append the graph's last op to the columns, with the row of its ``launch`` if it has one.

        A delayed launch reached the device only when it returned.
        """
        reached, returned = None, -math.inf
        if launch is not None and host is not None:
            returned = float(host.end[launch])
            reached = returned if launch in self.held else float(host.start[launch])
        self.starts.append(self.graph.ops[op].start)
        self.ends.append(self.graph.ops[op].end)
        self.stream.append(stream)
        self.launch.append(launch)
        self.launched.append(reached)
        self.returned.append(returned)

    def stand_in(self, stands: LocalOp, kernel: int) -> int:
        """Add an op for a part of a kernel or a delay before it; return its index."""
        stands.module = self.graph.ops[kernel].module
        op = self.graph.add(stands)
        self.kernel_of[op] = kernel
        return op

    def launched_before(self, op: int, later: int) -> bool:
        """Whether both launches are known and the first op's came first."""
        if op in self.before:
            return True
        if self.launch[op] is not None and self.launch[op] == self.launch[later]:
            return op < later  # nodes of a graph: in the order in which they ran
        first, second = self.launched[op], self.launched[later]
        return first is not None and second is not None and first < second

    def previous(self, op: int) -> int | None:
        """Return the previous op on its stream."""
        if not self._before:
            order = self.on_stream.values()
            self._before = {op: before for ops in order for before, op in pairwise(ops)}
        return self._before.get(op)

    def next(self, op: int) -> int | None:
        """Return the next op on its stream."""
        order = self.on_stream[self.stream[op]]
        backlog = next(
            (at for at, queued in enumerate(order) if queued not in self.before), len(order)
        )
        after = bisect_right(order, op, lo=backlog)
        return order[after] if after < len(order) else None

    def last_launched(self, stream: int, time: float) -> int | None:
        """Return the last op of a stream whose launch began before ``time``."""
        times, ops = self._launch_order(stream)
        after = bisect_left(times, time)
        return ops[after - 1] if after else None

    def launched_by(self, time: float) -> list[int]:
        """Return the last op of each stream whose launch began before ``time``."""
        last = (self.last_launched(stream, time) for stream in self.on_stream)
        return [op for op in last if op is not None]

    def last_ended(self, ops: Collection[int]) -> list[int]:
        """Return the op that ended last, the later one of two; none of none."""
        return [max(ops, key=lambda op: (self.ends[op], op))] if ops else []

    def first_launched(self, stream: int, time: float) -> int | None:
        """Return the first op of a stream whose launch began after ``time``."""
        times, ops = self._launch_order(stream)
        first = bisect_right(times, time)
        return ops[first] if first < len(ops) else None

    def _launch_order(self, stream: int) -> tuple[list[float], list[int]]:
        if stream not in self._by_launch:
            launches = ((self.launched[op], op) for op in self.on_stream.get(stream, []))
            pairs = sorted((time, op) for time, op in launches if time is not None)
            self._by_launch[stream] = ([time for time, _ in pairs], [op for _, op in pairs])
        return self._by_launch[stream]


def add_device_ops(
    trace: RankTrace,
    window: Window,
    launches: Launches,
    enclosing: Enclosing,
    graph: RankGraph,
    kernels: KernelRules = KERNELS,
) -> DeviceOps:
    """Add kernels, copies and collectives to the graph, without edges yet."""
    ops = DeviceOps(graph, held=launches.held)
    device = trace.device
    parts = held_back(trace, launches, enclosing)
    used = np.unique(device.name[window.device]).tolist()
    rules = {number: kernels.rule(trace.names[number]) for number in used}
    rows = window.device
    columns = (rows, device.name[rows], device.stream[rows], device.copy[rows])
    times = device.start[rows], device.end[rows]
    for row, number, stream, copy, start, end in zip(
        *(column.tolist() for column in (*columns, *times)), strict=True
    ):
        name = trace.names[number]
        what = What.COPY if copy else What.COLLECTIVE if rules[number] else What.COMPUTE
        launch = launches.of_device.get(row)
        op = graph.add(LocalOp(what, trace.streams[stream], name, start, end))
        if what == What.COLLECTIVE:
            where = f"{trace.file}: kernel {name.split('(')[0]!r} at {start:.6f} s"
            comm = int(device.comm[row])
            own = [trace.comms[comm]] if comm >= 0 else []
            # Those around the launch, or of calls made before it that it carries out.
            around = [] if launch is None or own else parts.get(launch, [])
            if launch is not None and not around:
                around = [enclosing.records(launch)]
            calls = [
                local_call(trace, [*own, *records], name, where, rules[number])
                for records in around or [[]]
            ]
            graph.collectives[op], *others = joint_calls(calls)
            graph.ops[op].what = graph.collectives[op].what
            if others:
                graph.together[op] = others
        ops.op_of[row] = op
        ops.append(op, stream, launch, trace.host)
        ops.on_stream.setdefault(stream, []).append(op)
    later = np.delete(launches.device, first_nodes(launches)).tolist()
    ops.nodes = {ops.op_of[row] for row in later}
    by_start = np.argsort(device.start, kind="stable")
    first = by_start[np.unique(device.stream[by_start], return_index=True)[1]].tolist()
    in_step = (ops.op_of[row] for row in first if row in ops.op_of)
    ops.first = frozenset(op for op in in_step if graph.ops[op].what < What.COLLECTIVE)
    _add_previous_work(trace, window, ops, kernels)
    return ops


class _BusySpan(Struct, frozen=True):
    """A span in which a stream was busy with the previous step (s): at ``work``, or in a call."""

    start: float
    end: float
    what: What
    work: bool


def _add_previous_work(
    trace: RankTrace, window: Window, ops: DeviceOps, kernels: KernelRules
) -> None:
    """Put a stream's remaining work of the previous step before its first op.

    Kernels count as compute: another accelerator would have shortened them, too, while a fixed span
    would bound every what-if from below. Only execution is work: pauses between spans, and calls,
    of which the step knows neither the size nor the members, are lags.
    """
    device = trace.device
    begins = np.full(int(device.stream.max(initial=-1)) + 1, -np.inf)
    for stream, order in ops.on_stream.items():
        begins[stream] = ops.starts[order[0]]
    earlier = (device.end > window.start) & (device.end <= begins[device.stream])
    earlier[window.device] = False
    rows = np.flatnonzero(earlier)
    stretches: dict[int, _BusySpan] = {}
    for stream in np.unique(device.stream[rows]).tolist():
        on_stream = rows[device.stream[rows] == stream]
        added = {}
        for busy in _busy_spans(trace, on_stream, window, kernels):
            start = busy.start if busy.work else busy.end  # length 0 marks the end of a call
            stands = LocalOp(busy.what, trace.streams[stream], STEP_BEFORE, start, busy.end)
            op = ops.graph.add(stands)
            ops.append(op, stream)
            added[op] = busy
        ops.before.update(added)
        ops.on_stream[stream][:0] = list(added)
        stretches |= added
    if stretches:
        _connect_backlog(ops, stretches)


def _busy_spans(
    trace: RankTrace, rows: NDArray[np.int64], window: Window, kernels: KernelRules
) -> list[_BusySpan]:
    """Merge events of a stream that followed each other without a pause."""
    device = trace.device
    columns = (device.name[rows], device.copy[rows], device.start[rows], device.end[rows])
    names = np.unique(device.name[rows]).tolist()
    calls = {number for number in names if kernels.rule(trace.names[number])}
    busy: list[_BusySpan] = []
    for number, copy, started, end in zip(*(column.tolist() for column in columns), strict=True):
        work = copy or number not in calls
        what = What.COPY if copy else What.COMPUTE
        start = max(started, window.start)
        last = busy[-1] if busy else None
        same_work = last is not None and work and (last.what, last.work) == (what, work)
        if last is not None and same_work and start <= last.end + CONTRADICTED:
            busy[-1] = _BusySpan(last.start, max(last.end, end), what, work)
        else:
            busy.append(_BusySpan(start, end, what, work))
    return busy


def _connect_backlog(ops: DeviceOps, stretches: Mapping[int, _BusySpan]) -> None:
    """Let each span follow what ended just before it, else the previous one on its stream.

    A span without such a predecessor begins at its measured time.
    """
    by_end = sorted(stretches, key=lambda op: (ops.ends[op], op))
    ends = [ops.ends[op] for op in by_end]
    for op, busy in stretches.items():
        earlier = ops.previous(op)
        latest = bisect_right(ends, busy.start + CONTRADICTED) - 1
        while latest >= 0 and stretches[by_end[latest]].start >= busy.start:
            latest -= 1
        source = earlier
        if latest >= 0 and ends[latest] >= busy.start - EXPLAINED:
            source = by_end[latest]
        if source is None:
            ops.graph.ops[op].ready = ops.starts[op]
            continue
        ops.graph.wait_for(op, [source], lag=max(0.0, ops.starts[op] - ops.ends[source]))
        if earlier is not None and earlier != source:
            ops.graph.wait_for(op, [earlier])


def held_back(trace: RankTrace, launches: Launches, enclosing: Enclosing) -> Parts:
    """Return the launches that carry out calls made before them."""
    parts: dict[int, list[list[CommRecord]]] = {}
    before: dict[int, float] = defaultdict(lambda: -math.inf)
    for row in dict.fromkeys(launches.host.tolist()):
        thread, start = int(trace.host.thread[row]), float(trace.host.start[row])
        comms = enclosing.records(row)
        if comms and not any(kind_of(record.collective) for record in comms):
            spans = enclosing.calls_between(thread, before[thread], start)
            calls = [(span, [trace.comms[span.comms[at]] for at in span.order]) for span in spans]
            with_kind = [
                call for call in calls if any(kind_of(part.collective) for part in call[1])
            ]
            if with_kind:
                enclosing.carry([span for span, _ in with_kind], row)
                parts[row] = [records for _, records in with_kind]
        before[thread] = start
    return parts


def joint_calls(calls: Sequence[LocalCall]) -> list[LocalCall]:
    """Return what one kernel does for several calls: separate messages, or one collective.

    Collectives of one kind on one group move the sum of their sizes. How several kinds or groups
    share a kernel is unknown: the kind is then unknown, and the call takes its measured time.
    """
    first = calls[0]
    if len(calls) == 1:
        return [first]
    if all(call.kind == "send_receive" and call.peer is not None for call in calls):
        return list(calls)
    if len({(call.kind, call.key, call.ranks, call.group_size) for call in calls}) > 1:
        return [structs.replace(first, kind=UNKNOWN, size=math.nan, sequence=None, peer=None)]
    if first.kind == "send_receive":
        return [structs.replace(first, kind=UNKNOWN, size=math.nan)]
    dtypes = {call.dtype for call in calls}
    dtype = first.dtype if len(dtypes) == 1 else ""
    return [structs.replace(first, size=math.fsum(call.size for call in calls), dtype=dtype)]


def split_written(ops: DeviceOps) -> None:
    """Split kernels at the time by which they had written what a host thread waited for.

    All that began after the kernel's end follows its second part.
    """
    graph = ops.graph
    ends = {op: graph.ops[op].end for op in ops.written}
    rest = {}
    for op, time in ops.written.items():
        kernel = graph.ops[op]
        rest[op] = ops.stand_in(LocalOp(What.COMPUTE, kernel.lane, kernel.name, time, ends[op]), op)
        kernel.end = time
    graph.edges = [
        (rest[source], target, lag)
        if source in rest and graph.ops[target].start >= ends[source] - CONTRADICTED
        else (source, target, lag)
        for source, target, lag in graph.edges
    ]
    graph.edges += [(op, later, 0.0) for op, later in rest.items()]


def split_messages(graph: RankGraph) -> None:
    """Give each message of a kernel its own op beside the kernel's.

    They have the same predecessors and successors, but do not wait for one another: a send to the
    next stage and a receive from the previous one start together, as they do in the kernel.
    """
    twins: dict[int, list[int]] = {}
    for op, calls in graph.together.items():
        model = graph.ops[op]
        for call in calls:
            twin = graph.add(structs.replace(model, what=call.what))
            graph.collectives[twin] = call
            twins.setdefault(op, []).append(twin)
    graph.edges += [
        (from_op, to_op, lag)
        for source, target, lag in graph.edges
        if source in twins or target in twins
        for from_op in (source, *twins.get(source, ()))
        for to_op in (target, *twins.get(target, ()))
        if (from_op, to_op) != (source, target)
    ]
