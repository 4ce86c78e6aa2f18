"""Operators of a PyTorch profiler file with the sizes of their inputs and their kernels.

The profiler writes sizes (``Input Dims``) if ``record_shapes=True``. A kernel belongs to the launch
of its correlation id, and that to the innermost requested operator around it on its thread, or if
there is none to the innermost that has sizes. Kernels without a launch are assigned by their
``External id``, which is the operator's.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable
from math import fsum
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct, field

from simulator.serving.surface import Batch
from simulator.support.errors import TraceError
from traces.core.events import RecordedOperator
from traces.kineto.reader import ForeignFile, parts_of, read_document
from traces.kineto.schema import (
    ABSENT,
    EventArgs,
    KinetoEvent,
    LooseNumber,
    durations_ns,
    stamps,
    unwrapped,
)


class _Args(EventArgs, gc=False):
    dims: Raw = field(name="Input Dims", default=ABSENT)
    dims_old: Raw = field(name="Input dims", default=ABSENT)
    types: Raw = field(name="Input type", default=ABSENT)
    values: Raw = field(name="Concrete Inputs", default=ABSENT)


class _Event(KinetoEvent, gc=False):
    args: _Args | None = None


_decode = msgspec.json.Decoder(_Event).decode
_NO_ARGS = _Args()
_OPERATORS = ("cpu_op", "operator")
_KERNELS = ("kernel",)
_Thread = tuple[LooseNumber, LooseNumber]


class _Call(Struct, gc=False):
    """An operator's call: times, event, and its caller on the thread."""

    start: int
    end: int
    event: _Event
    caller: int = -1


class EngineStep(NamedTuple):
    """An iteration of a serving engine: when it began and its kernels' time (s), and its batch."""

    begin: float
    kernels: float
    batch: Batch


ENGINE_STEP = re.compile(
    r"execute_\d+_context_(\d+)\(sq(\d+)sk\d+sqsq(\d+)sqsk(\d+)\)"
    r"_generation_(\d+)\(sq(\d+)sk(\d+)sqsq\d+sqsk\d+\)"
)
"""How vLLM (with ``detailed_trace_annotation``) and SGLang annotate an iteration: the number of
prompts and of decodes, and the sums of their queries, keys, queries squared, and queries times
keys."""


def engine_steps(annotated: Iterable[RecordedOperator]) -> list[EngineStep]:
    """Return the iterations that a serving engine has annotated in its recording, in order."""
    steps = []
    for recorded in annotated:
        if words := ENGINE_STEP.fullmatch(recorded.name):
            chunks, tokens, squares, products, decodes, queries, keys = map(int, words.groups())
            width, pairs = max(1, queries // max(1, decodes)), products - squares / 2
            batch = Batch(width, decodes, float(keys), chunks, float(tokens), pairs)
            kernels = fsum(time for _, time in recorded.kernels)
            steps.append(EngineStep(recorded.begin, kernels, batch))
    return sorted(steps)


def recorded_operators(
    path: Path, wanted: Collection[str] = (), ranges: re.Pattern[str] | None = None
) -> list[RecordedOperator]:
    """Read the operators of a file that launched kernels.

    Parameters
    ----------
    path
        A file of the PyTorch profiler, compressed or not.
    wanted
        Names of operators that precede others nearer to a kernel's launch.
    ranges
        Names of a user's annotations that are taken for such operators.

    Returns
    -------
    list
        An operator per call, and one without a name per kernel that has no operator.

    Raises
    ------
    TraceError
        If the file cannot be read, is of another kind, or has no kernels.
    """
    document = read_document(path)
    if isinstance(document, ForeignFile):
        raise TraceError(f"{path}: {document.reason}; operators are read from PyTorch profiles")
    try:
        # Ids of events are unique within a rank only.
        lists = [part.events for part in parts_of(document)] or [document.events]
        readings = [_Reading(events, ranges) for events in lists]
        every = [reading.operators(reading.ranges | set(wanted), path) for reading in readings]
        return [operator for operators in every for operator in operators]
    except (ValueError, OverflowError, RecursionError, msgspec.DecodeError) as error:
        raise TraceError(f"{path}: {error}") from error


def is_profile(path: Path) -> bool:
    """Whether a file is one of the PyTorch profiler; other files may be in the same folder."""
    return not isinstance(read_document(path), ForeignFile)


class _Reading:
    """Events of one file by use; made, used and dropped."""

    def __init__(self, events: list[Raw], ranges: re.Pattern[str] | None) -> None:
        self.ranges: set[str] = set()
        self.kernels: list[tuple[_Event, float]] = []
        self.launches: dict[int, tuple[_Thread, int]] = {}
        self.calls: dict[_Thread, list[_Call]] = defaultdict(list)
        for raw in events:
            event = _decode(raw)
            category = (event.cat or "").lower()
            if event.ph != "X":
                continue
            if ranges and category == "user_annotation" and ranges.fullmatch(event.name):
                self.ranges.add(event.name)
                category = _OPERATORS[0]
            if category in _KERNELS:
                self.kernels.append((event, 1e-9 * float(durations_ns([event.dur], [raw])[0])))
            elif category in _OPERATORS or "runtime" in category or "driver" in category:
                self._add_call(event, raw, category)
        if ranges:
            self._leave_out_overlaps()

    def _add_call(self, event: _Event, raw: Raw, category: str) -> None:
        start = int(stamps([event.ts], [raw], "ts")[0])
        end = start + int(durations_ns([event.dur], [raw])[0])
        thread = (event.pid, event.tid)
        if category in _OPERATORS:
            self.calls[thread].append(_Call(start, end, event))
        elif (correlation := _number((event.args or _NO_ARGS).correlation)) is not None:
            self.launches[correlation] = (thread, start)

    def _leave_out_overlaps(self) -> None:
        """Count of each kernel only what no earlier one covers: dependent launches wait on it."""
        begins = [1e-6 * float(event.ts or 0.0) for event, _ in self.kernels]
        end = 0.0
        for row in sorted(range(len(begins)), key=begins.__getitem__):
            event, seconds = self.kernels[row]
            over = begins[row] + seconds
            self.kernels[row] = event, min(seconds, max(0.0, over - end))
            end = max(end, over)

    def operators(self, wanted: set[str], path: Path) -> list[RecordedOperator]:
        """Assign every kernel to an operator."""
        if not self.kernels:
            raise TraceError(f"{path}: has no kernels; record the device, too")
        starts = {thread: _link_callers(calls) for thread, calls in self.calls.items()}
        by_id = {
            number: call
            for calls in self.calls.values()
            for call in calls
            if (number := _external(call.event)) is not None
        }
        launched: dict[int, tuple[_Call, list[tuple[str, float]]]] = {}
        alone = []
        for event, seconds in self.kernels:
            call = self._launcher(event, starts, wanted) or by_id.get(_external(event) or -1)
            if call is None:
                alone.append(RecordedOperator("", (), (), (), ((event.name, seconds),)))
            else:
                launched.setdefault(id(call), (call, []))[1].append((event.name, seconds))
        return [_with_kernels(call, kernels) for call, kernels in launched.values()] + alone

    def _launcher(
        self, kernel: _Event, starts: dict[_Thread, list[int]], wanted: set[str]
    ) -> _Call | None:
        launch = self.launches.get(_number((kernel.args or _NO_ARGS).correlation) or -1)
        if launch is None:
            return None
        thread, time = launch
        calls = self.calls.get(thread, [])
        row = bisect_right(starts.get(thread, []), time) - 1
        sized = None
        while row >= 0:
            call = calls[row]
            if call.end >= time:
                if call.event.name in wanted:
                    return call
                if sized is None and _has_sizes(call.event):
                    sized = call
            row = call.caller
        return sized


def _link_callers(calls: list[_Call]) -> list[int]:
    """Sort a thread's calls, set the caller of each, and return their starts."""
    calls.sort(key=lambda call: (call.start, -call.end))
    stack: list[int] = []
    for row, call in enumerate(calls):
        while stack and calls[stack[-1]].end < call.end:
            stack.pop()
        call.caller = stack[-1] if stack else -1
        stack.append(row)
    return [call.start for call in calls]


def _with_kernels(call: _Call, kernels: list[tuple[str, float]]) -> RecordedOperator:
    args = call.event.args or _NO_ARGS
    sizes = unwrapped(args.dims) or unwrapped(args.dims_old) or []
    return RecordedOperator(
        call.event.name,
        tuple(_sizes(value) for value in sizes) if isinstance(sizes, list) else (),
        tuple(str(value) for value in _list(args.types)),
        tuple(str(value) for value in _list(args.values)),
        tuple(kernels),
        1e-9 * call.start,
    )


def _sizes(value: object) -> tuple[int, ...]:
    """Sizes of a tensor; lists of tensors and other values have none."""
    if isinstance(value, list) and all(isinstance(length, int) for length in value):
        return tuple(value)
    return ()


def _list(piece: Raw) -> list[object]:
    value = unwrapped(piece)
    return value if isinstance(value, list) else []


def _has_sizes(event: _Event) -> bool:
    args = event.args
    return args is not None and (args.dims != ABSENT or args.dims_old != ABSENT)


def _external(event: _Event) -> int | None:
    args = event.args or _NO_ARGS
    return _number(args.external_old if args.external is None else args.external)


def _number(value: LooseNumber) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
