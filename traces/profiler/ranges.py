"""What ranges of a program say: the module an op belongs to, and which are prefill and decode.

Ranges are what the program marks itself: ``nn.Module`` calls, ``record_function`` and NVTX ranges.
A kernel belongs to the ranges that enclose its launch, a host op to those that enclose its end, at
which it launches or waits. What autograd runs belongs to the module of its forward pass, where the
profiler draws arrows between them; else to the function of autograd, such as ``AccumulateGrad``,
from whose hooks gradients are reduced. Host collectives belong where they are queued.

Prefill and decode are words that people write, and names of engines. vLLM names a forward pass by
its requests and tokens, ``execute_context_2(512)_generation_37(37)`` (``annotate_profile`` of
vllm/v1/worker/gpu_worker.py; forks put the total and more counts into it:
``execute_8192_context_9(sq8155…)_generation_37(…)``; before, ``execute_new_2_cached_37``, where a
later chunk of a long prompt counts as cached), SGLang by its forward mode, ``step[DECODE bs=16]``
(inside ``scheduler.run_batch``, which does not say what it runs), TensorRT-LLM by its
requests: ``[Executor] _forward_step 7: 1 ctx reqs, 32 gen reqs`` of its PyTorch executor,
``executeStep: …`` of its C++ one. A pass may do both.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from msgspec import Struct, field

from simulator.analysis.phases import DECODE, MIXED, PREFILL, Phase
from simulator.workload import What
from traces.core.events import HostKind, RankTrace
from traces.core.rank_graph import RankGraph, is_comm
from traces.profiler.device import DeviceOps
from traces.profiler.streams import IN_FLIGHT
from traces.profiler.window import Launches, Window, pair

_AUTOGRAD = "autograd::engine::evaluate_function: "
"""PyTorch's name for the range in which its engine runs one node of the backward graph."""
_BACKWARD = " (backward)"
_SEPARATOR = "/"


class _Range(Struct, frozen=True):
    """A range of a thread (s); ``path`` replaces the names of the enclosing ranges, if given."""

    start: float
    end: float
    name: str
    path: str = ""


class _Thread(Struct):
    """The ranges of a thread by start, each with the enclosing one (-1: none) and its path."""

    ranges: list[_Range] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    around: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @staticmethod
    def of(ranges: Iterable[_Range]) -> "_Thread":
        """Nest ranges; one that begins with another and ends later encloses it."""
        thread = _Thread(sorted(ranges, key=lambda span: (span.start, -span.end)))
        open_ranges: list[int] = []
        for number, span in enumerate(thread.ranges):
            while open_ranges and thread.ranges[open_ranges[-1]].end < span.end:
                open_ranges.pop()
            outer = open_ranges[-1] if open_ranges else -1
            inside = thread.paths[outer] + _SEPARATOR if outer >= 0 else ""
            thread.starts.append(span.start)
            thread.around.append(outer)
            thread.paths.append(span.path or inside + span.name)
            open_ranges.append(number)
        return thread

    def at(self, time: float) -> str:
        """Return the path of the innermost range at a time; "" outside all."""
        number = bisect_right(self.starts, time) - 1
        while number >= 0 and self.ranges[number].end < time:
            number = self.around[number]
        return self.paths[number] if number >= 0 else ""


def name_modules(trace: RankTrace, ops: DeviceOps, graph: RankGraph) -> None:
    """Give the ops of a rank's graph the names of their modules, if the trace records them."""
    threads = _threads(trace)
    if not threads:
        return
    nowhere = _Thread()
    thread_of = {label: number for number, label in enumerate(trace.threads)}
    for op in graph.ops:
        if op.what == What.HOST or op.lane in thread_of:
            op.module = threads.get(thread_of.get(op.lane, -1), nowhere).at(op.end)
    for number in ops.op_of.values():
        launch = ops.launch[number]
        if launch is not None:
            thread = threads.get(int(trace.host.thread[launch]), nowhere)
            graph.ops[number].module = thread.at(float(trace.host.start[launch]))
    for stands, kernel in ops.kernel_of.items():
        graph.ops[stands].module = graph.ops[kernel].module
    # Calls without a launch of their own are of the modules of the host ops that queue them.
    for source, target, _ in graph.edges:
        called = graph.ops[target].what >= What.COLLECTIVE and not graph.ops[target].module
        if called and graph.ops[source].what == What.HOST:
            graph.ops[target].module = graph.ops[source].module


def _threads(trace: RankTrace) -> dict[int, _Thread]:
    """Nest the ranges of each thread, those of backward passes by the names of the forward."""
    host, calls = trace.host, trace.modules
    ranges: dict[int, list[_Range]] = defaultdict(list)
    # Ranges that the program marks, and those in which autograd runs a function.
    marks = np.flatnonzero((host.kind == HostKind.ANNOTATION) & (host.comm < 0))
    for row in marks.tolist():
        written = trace.names[host.name[row]]
        name = written.strip("# ")
        if name and not is_comm(written):
            span = float(host.start[row]), float(host.end[row])
            ranges[int(host.thread[row])].append(_Range(*span, name))
    engine = [number for number, name in enumerate(trace.names) if name.startswith(_AUTOGRAD)]
    for row in np.flatnonzero(np.isin(host.name, engine)).tolist():
        function = trace.names[host.name[row]].removeprefix(_AUTOGRAD).rpartition("::")[2]
        span = float(host.start[row]), float(host.end[row])
        ranges[int(host.thread[row])].append(_Range(*span, function))
    if calls is None:
        return {thread: _Thread.of(spans) for thread, spans in ranges.items()}
    columns = calls.thread.tolist(), calls.start.tolist(), calls.end.tolist(), calls.name
    for thread, *module in zip(*columns, strict=True):
        ranges[thread].append(_Range(*module))
    threads = {thread: _Thread.of(spans) for thread, spans in ranges.items()}
    # Operators that autograd runs, with the modules in which the forward pass ran theirs.
    ends: dict[tuple[int, float], float] = {}
    began = np.isin(host.start, calls.backward) & (host.kind == HostKind.OPERATOR)
    for row in np.flatnonzero(began).tolist():
        key = int(host.thread[row]), float(host.start[row])
        ends[key] = max(ends.get(key, 0.0), float(host.end[row]))
    arrows = calls.forward_thread, calls.forward, calls.backward_thread, calls.backward
    changed = set()
    for source, forward, target, backward in zip(*(end.tolist() for end in arrows), strict=True):
        path = threads[source].at(forward) if source in threads else ""
        end = ends.get((target, backward))
        if path and end is not None:
            ranges[target].append(_Range(backward, end, path, path + _BACKWARD))
            changed.add(target)
    return threads | {thread: _Thread.of(ranges[thread]) for thread in changed}


_WORDS = {
    PREFILL: re.compile(r"(?<![a-z])prefill(?![a-z])", re.IGNORECASE),
    DECODE: re.compile(r"(?<![a-z])decode(?![a-z])", re.IGNORECASE),
}
_COUNTS = (
    re.compile(
        r"^execute_(?:\d+_)?context_(?P<context>\d+)\(.*\)_generation_(?P<generation>\d+)\("
    ),
    re.compile(r"^execute_new_(?P<context>\d+)_cached_(?P<generation>\d+)$"),
    re.compile(
        r"^(?:\[Executor\] _forward_step \d+|_forward_step|executeStep): "
        r"(?P<context>\d+) ctx reqs, (?:\d+ ctx tokens, )?(?P<generation>\d+) gen reqs"
    ),
)
"""Names that count requests in prefill, and requests in decode."""
_MODE = re.compile(r"^step\[(?P<mode>[A-Z_]+)")
_OF_MODE = {
    "EXTEND": PREFILL,
    "SPLIT_PREFILL": PREFILL,
    "DECODE": DECODE,
    "TARGET_VERIFY": DECODE,
    "MIXED": MIXED,
}
"""SGLang's ``ForwardMode`` (srt/model_executor/forward_batch_info.py): the others make no token."""


@lru_cache(maxsize=1 << 12)
def phase_of(name: str) -> str | None:
    """Return the phase that a range's name marks; None if none, or if several words do.

    Examples
    --------
    >>> phase_of("decode_step 3"), phase_of("Prefill"), phase_of("decoder layer")
    ('decode', 'prefill', None)
    >>> phase_of("execute_context_2(512)_generation_37(37)"), phase_of("step[DECODE bs=16]")
    ('mixed', 'decode')
    """
    mode = _MODE.match(name)
    if mode is not None:
        return _OF_MODE.get(mode["mode"])
    counts = next((match for counted in _COUNTS if (match := counted.match(name))), None)
    if counts is not None:
        reads, makes = int(counts["context"]) > 0, int(counts["generation"]) > 0
        return MIXED if reads and makes else PREFILL if reads else DECODE if makes else None
    marked = [phase for phase, word in _WORDS.items() if word.search(name)]
    return marked[0] if len(marked) == 1 else None


def rank_phases(trace: RankTrace, window: Window) -> Iterator[Phase]:
    """Yield the marked ranges of a rank's step, by its own clock."""
    marked = ((index, phase_of(name)) for index, name in enumerate(trace.names))
    marks = {index: name for index, name in marked if name is not None}
    host = trace.host
    rows = window.host[host.kind[window.host] == HostKind.ANNOTATION]
    rows = rows[np.isin(host.name[rows], list(marks))]
    launches = pair(trace, window) if len(rows) else None
    for row in rows.tolist():
        thread, name = trace.threads[host.thread[row]], marks[int(host.name[row])]
        phase = Phase(name, trace.rank, thread, float(host.start[row]), float(host.end[row]))
        yield phase if launches is None else _with_device(trace, launches, phase)


def shifted(phase: Phase, shift: float) -> Phase:
    """Return a phase on the job's clock, which ``shift`` (s) puts it on."""
    start, end, done = phase.start + shift, phase.end + shift, phase.done + shift
    return replace(phase, start=start, end=end, done=done)


def _with_device(trace: RankTrace, launches: Launches, phase: Phase) -> Phase:
    """Extend a phase to the end of all it launched; begin it when its device is free of others.

    An engine prepares a pass while the previous one still runs: one begins when the other ends.
    """
    called, device = trace.host.start[launches.host], trace.device
    inside = np.flatnonzero((called >= phase.start) & (called <= phase.end))
    if not len(inside):
        return phase
    ops = launches.device[inside]
    first, last = np.argmin(device.start[ops]), np.argmax(device.end[ops])
    phase = replace(
        phase, stream=trace.streams[device.stream[ops[last]]], done=float(device.end[ops[last]])
    )
    begun = float(device.start[ops[first]])
    if begun - called[inside[first]] <= IN_FLIGHT:
        return phase
    return replace(phase, lane=trace.streams[device.stream[ops[first]]], start=begun, end=begun)
