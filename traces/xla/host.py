"""The host of a profile: steps, launches, ops of CPU devices, and its waits for a device.

A rank's host is one lane from launch to launch. A profile records when the program blocks until a
result is ready (``block_until_ready``), and no other wait. Two are inferred: a program launched
only when the device was idle was delayed by a wait for it (a result that was fetched), and a launch
with a full device queue continued when an op ended and freed a slot.
"""

import math
import re
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from simulator.support.arrays import Floats
from simulator.workload import UNEXPLAINED_HOST, What
from traces.core.loaded import EXPLAINED
from traces.core.rank_graph import LocalOp, RankGraph, shortest_silence
from traces.profiler.device import DeviceOps
from traces.xla.planes import Plane, PlaneEvent, PlaneLine, Span, XlaOp
from traces.xla.steps import StepOps

HOST = re.compile(r"/host:CPU|/host:.*:CPU|/host:python")
_END = "end: "
_BLOCKING_CALLS = re.compile(r"block_?(?:host_?)?until_?ready|Buffer::Await", re.IGNORECASE)
"""JAX's Python (``$array.py:610 block_until_ready``) and PjRt (``TfrtCpuBuffer::Await``)."""
_EXECUTE = re.compile(r"^\[\d+\] .*Execute")


@dataclass(slots=True)
class XlaHostEvents:
    """Events of the host by use.

    ``steps`` are annotated steps by number. ``produced`` maps a flow's number to the event at its
    start, ``correlated`` the number of a GPU's launch to its call. ``executed`` are calls that run
    a program on one device, by the flow from which they come. ``waits`` are the calls in which the
    host blocks until a device has a result ready. ``ops`` are ops of CPU devices with the name of
    their thread, ``ended`` the end of the work of the op at a flow's start: an op may continue in
    other threads after its own event.
    """

    steps: dict[int, Span] = field(default_factory=dict)
    produced: dict[int, PlaneEvent] = field(default_factory=dict)
    correlated: dict[int, Span] = field(default_factory=dict)
    executed: list[PlaneEvent] = field(default_factory=list)
    ended: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ops: list[PlaneLine] = field(default_factory=list)
    waits: list[Span] = field(default_factory=list)

    def launch_of(self, module: PlaneEvent) -> Span | None:
        """Return the host's call that launched a program: the flow that ends in it."""
        flow = module.flow("_c")
        event = self.produced.get(flow) if flow is not None else None
        return None if event is None else (event.start, event.end)


def host_events(planes: Sequence[Plane], unused: Counter[str]) -> XlaHostEvents:
    """Classify the events of all threads of the host."""
    events = XlaHostEvents()
    annotations: dict[str, dict[int, Span]] = defaultdict(dict)
    for plane in planes:
        if HOST.match(plane.name) is None:
            continue
        for line in plane.lines:
            blocking = [event for event in line.events if _BLOCKING_CALLS.search(event.name)]
            events.waits += [(event.start, event.end) for event in blocking]
            ops = [event for event in line.events if _classify(events, annotations, event, unused)]
            if ops:
                events.ops.append(PlaneLine(line.name, ops))
    if annotations:
        events.steps = max(annotations.values(), key=len)
    return events


def _classify(
    sorted_out: XlaHostEvents,
    annotations: dict[str, dict[int, Span]],
    event: PlaneEvent,
    unused: Counter[str],
) -> bool:
    """Add an event to its use; return whether it is an op of a CPU device."""
    stats = event.stats
    if "hlo_op" in stats and "device_ordinal" in stats:
        return not event.name.startswith(_END)
    step = event.number("step_num")
    if step is not None:
        previous = annotations[event.name].get(step, (event.start, event.end))
        span = (min(previous[0], event.start), max(previous[1], event.end))
        annotations[event.name][step] = span
        return False
    used = False
    flow = event.flow("_p")
    if flow is not None and "run_id" in stats:
        sorted_out.produced[flow], used = event, True
    flow = event.flow("_c")
    if flow is not None and event.name.startswith(_END):
        insort(sorted_out.ended[flow], event.end)
        used = True
    correlation = event.number("correlation_id")
    if correlation is not None:
        sorted_out.correlated[correlation], used = (event.start, event.end), True
    if _EXECUTE.match(event.name):
        sorted_out.executed.append(event)
        used = True
    if not used:
        unused["events of the host"] += 1
    return False


_QUEUE_FULL = 900
"""With this many launches ahead of the device, a launch waits for a slot: CUDA's queue has 1,024,
of which events and waits take some (971 to 1,021 kernels were seen)."""
_LEAST_DEPTH, _LEAST_LAUNCHES = 8, 8
"""Programs in flight, found by at least so many launches, from which the queue counts as full."""
_LANE = "host"


@dataclass(slots=True, eq=False)
class _HostLane:
    """The host's lane under construction: ``ended`` are the ops launched so far, sorted by end.

    Time of an op beyond ``silent`` (s) is more than the interpreter takes from one launch to the
    next (:mod:`traces.core.rank_graph`), and nothing in the profile explains it.
    """

    graph: RankGraph
    at: float
    silent: float
    last: int | None = None
    ended: list[tuple[float, int]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    def add(self, name: str, start: float, end: float, sources: list[int]) -> int:
        """Add an op; its unexplained time becomes an op of its own before it."""
        if end - start > self.silent:
            self._chain(UNEXPLAINED_HOST, start, end, sources)
            start, sources = end, []
        return self._chain(name, start, end, sources)

    def _chain(self, name: str, start: float, end: float, sources: list[int]) -> int:
        local = LocalOp(What.HOST, _LANE, name, min(start, end), end)
        local.ready = self.graph.start if self.last is None and not sources else None
        op = self.graph.add(local)
        self.graph.wait_for(op, sources if self.last is None else [self.last, *sources])
        self.last, self.at = op, end
        return op

    def add_delayed_launch(self, name: str, end: float, freed: float, source: int) -> int:
        """Add a launch that waited for a slot, which an op freed when it ended, at ``freed``.

        Clocks of chips are not exact, so a delay of some length is no evidence about the host.
        """
        begun = max(self.at, freed)
        return self._chain(name, begun if end - begun <= self.silent else end, end, [source])

    def wait_until_ready(self, wait: Span, last_ops: set[int]) -> None:
        """Wait for the op that ended while the host was blocked, preferably the last of a run."""
        begin, end = wait
        first, after = (bisect_right(self.ended, (time, 1 << 62)) for time in wait)
        ended = self.ended[first:after]
        if begin < self.at or not ended:
            return
        freed, op = max([row for row in ended if row[1] in last_ops] or ended)
        self.add("host", self.at, begin, [])
        self._chain("block_until_ready", freed, end, [op])

    def ended_by(self, time: float) -> tuple[float, int] | None:
        after = bisect_right(self.ended, (time, 1 << 62))
        return self.ended[after - 1] if after else None


def add_host(
    ops: DeviceOps, part: StepOps, ops_of_row: dict[int, list[int]]
) -> tuple[dict[int, int], float, int]:
    """Add the host's lane; return the host op that launches each op, the latency, and a count.

    The latency is the usual time from a launch to the start of its op on an idle device (s). The
    count is that of launches that are not in the profile, but inferred from a gap.
    """
    rows = sorted(
        (op.launch, ops_of_row[row][0], row)
        for row, op in enumerate(part.ops)
        if op.launch is not None and row in ops_of_row and op.launch[0] >= part.start
    )
    follow = _without_launch(part, ops_of_row)
    launched = np.array([span for span, _, _ in rows]).reshape(-1, 2)
    silent = _silence_threshold(launched)
    host = _HostLane(ops.graph, part.start, silent)
    ends = _ends_of_runs(ops, part, ops_of_row)
    last_ops = {op for _, op in ends.values()}
    waits = sorted(part.device.waits, reverse=True)
    made_room = _waits_for_room(ends, [part.ops[row].run for _, _, row in rows], launched)
    lane_op: dict[int, int] = {}
    run: int | None = None
    delays: list[float] = []
    for number, ((start, end), op, row) in enumerate(rows):
        source = part.ops[row]
        if len(host.ended) == bisect_right(host.ended, (start, 1 << 62)):
            delays.append(ops.starts[op] - start)
        while waits and waits[-1][1] <= start:
            host.wait_until_ready(waits.pop(), last_ops)
        full = number - bisect_right(host.begun, start) >= _QUEUE_FULL
        new_run, run = source.run != run, source.run
        if room := made_room.get(number):
            lane_op[op] = host.add_delayed_launch(source.program, end, *room)
        else:
            lane_op[op] = _launch(host, source, (start, end), full=full, fresh=new_run)
        ops.launched[op] = end if full else start
        ops.returned[op] = end
        for made_op in [*ops_of_row[row], *follow.pop(source.run, [])]:
            insort(host.ended, (ops.ends[made_op], made_op))
        insort(host.begun, ops.starts[op])
    guessed = _guess_launches(ops, part, ops_of_row, silent)
    recorded = [delay for delay in delays if delay >= 0]
    return lane_op | guessed, median(recorded) if recorded else EXPLAINED, len(guessed)


def _without_launch(part: StepOps, ops_of_row: dict[int, list[int]]) -> dict[int, list[int]]:
    """Collect, by run, the ops without a recorded launch of their own."""
    follow: dict[int, list[int]] = defaultdict(list)
    for row, source in enumerate(part.ops):
        if source.launch is None:
            follow[source.run] += ops_of_row.get(row, [])
    return follow


def _silence_threshold(launched: Floats) -> float:
    """Return the time from one launch to the next (s) that is too long for the interpreter."""
    pauses = np.stack([launched[:-1, 1], launched[1:, 0]], axis=1)
    return shortest_silence({0: pauses[pauses[:, 1] > pauses[:, 0]]})


def _ends_of_runs(
    ops: DeviceOps, part: StepOps, ops_of_row: dict[int, list[int]]
) -> dict[int, tuple[float, int]]:
    """Return each run's end and the op that ends then, for which a wait for the run waits."""
    last: dict[int, tuple[float, int]] = {}
    for row, made_ops in ops_of_row.items():
        run = part.ops[row].run
        last[run] = max([(ops.ends[op], op) for op in made_ops] + [last.get(run, (-math.inf, -1))])
    return last


def _waits_for_room(
    ends: dict[int, tuple[float, int]], runs: list[int], launched: Floats
) -> dict[int, tuple[float, int]]:
    """Return, for launches of whole programs that waited for a slot, the op that freed it.

    A TPU's client limits the programs in flight (32 with PjRt). The limit is inferred if many
    launches find the same number of programs before them, and none finds more. The depth of CUDA's
    queue of kernels is known (:data:`_QUEUE_FULL`).

    ``ends`` has each run's end, and the op that ends then; ``launched`` is in s, shape ``(launches,
    2)``.
    """
    if len(set(runs)) < len(runs):
        return {}
    ended = np.sort([end for end, _ in ends.values()])
    ahead = np.arange(len(runs)) - np.searchsorted(ended, launched[:, 0], side="right")
    depth = int(ahead.max(initial=0))
    full = np.flatnonzero(ahead == depth).tolist()
    if depth < _LEAST_DEPTH or len(full) < _LEAST_LAUNCHES:
        return {}
    # The programs in flight are those ahead, so the one before these has ended.
    return {number: ends[runs[number - depth - 1]] for number in full if number > depth}


def _launch(host: _HostLane, source: XlaOp, span: Span, *, full: bool, fresh: bool) -> int:
    """Add the host's time up to a launch; a ``fresh`` run may have waited for the device."""
    start, end = span
    if full and (freed := host.ended_by(end)) is not None:
        if start > host.at:
            host.add("host", host.at, start, [])
        return host.add(source.name, max(start, freed[0]), end, [freed[1]])
    begun, sources = host.at, list[int]()
    if fresh and host.ended and host.ended[-1][0] <= start:
        begun, sources = max(host.at, host.ended[-1][0]), [host.ended[-1][1]]
    return host.add(source.program or "host", begun, max(start, begun), sources)


def _guess_launches(
    ops: DeviceOps, part: StepOps, ops_of_row: dict[int, list[int]], silent: float
) -> dict[int, int]:
    """Give a program without a recorded launch a host op as long as the gap before it.

    It counts as unexplained: only the gap is evidence that the host was the cause. If it is longer
    than ``silent`` (s), it is not attributed to the host's work either.
    """
    guessed: dict[int, int] = {}
    graph, last, run, ended = ops.graph, None, None, -math.inf
    for row, op in enumerate(part.ops):
        if row not in ops_of_row:
            continue
        first = ops_of_row[row][0]
        gap = ops.starts[first] - ended
        if op.run != run and last is not None and op.launch is None and gap > EXPLAINED:
            begun = graph.ops[last].end
            name = UNEXPLAINED_HOST if gap > silent else f"gap before {op.program}"
            idle = LocalOp(What.HOST, _LANE, name, begun, ops.starts[first])
            guessed[first] = graph.add(idle)
            graph.wait_for(guessed[first], [last])
            ops.launched[first] = ops.starts[first]
        run = op.run
        for made_op in ops_of_row[row]:
            if ops.ends[made_op] >= ended:
                last, ended = made_op, ops.ends[made_op]
    return guessed
