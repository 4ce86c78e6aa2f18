"""Planes of TPUs: a plane per chip (``/device:TPU:0``), with one line of ops.

The line's stamps are the chip's clock converted to the host's, which jumps by a tenth of a second
now and then; ``device_offset_ps`` and ``device_duration_ps`` are the chip's clock itself, and are
used. The host's launches and the modules keep their distance to the chip's ops on the host's clock.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from simulator.support.quantities import whole_of
from traces.core.files import message_class
from traces.xla.hlo import base_name
from traces.xla.host import XlaHostEvents
from traces.xla.planes import (
    Plane,
    PlaneEvent,
    PlaneLine,
    Programs,
    Span,
    XlaDevice,
    XlaOp,
    event_kind,
    leaves,
    step_at,
)

PLANE = re.compile(r"/device:TPU:(\d{1,18})(?: (SparseCore \d{1,18}))?$")
_OPS = ("XLA Ops", "Sparse Core Ops")
_MODULES = ("XLA Modules", "Sparse Core Modules")
_STEPS = ("Steps", "Sparse Core Steps")
_BARRIER = "barrier-cores"
"""Event of a chip that waits for the others before a program that communicates."""
_LATEST = 10**20
"""Stamps (ps) beyond three years are damaged."""
_CORE = {
    "CoreDetails": [
        (1, "hostname", "string"),
        (2, "device_ordinal", "uint32"),
        (5, "global_chip", "uint32"),
        (6, "global_core", "uint32"),
    ]
}


def tpu_devices(
    planes: Sequence[Plane], host: XlaHostEvents, programs: Programs, unused: Counter[str]
) -> list[XlaDevice]:
    """Make a device of each chip's planes, numbered like the host's."""
    devices: dict[int, XlaDevice] = {}
    for plane in planes:
        chip = PLANE.match(plane.name)
        if chip is None:
            continue
        ordinal, core = int(chip[1]), chip[2] or ""
        device = devices.setdefault(ordinal, XlaDevice(ordinal, plane.name, []))
        device.ops += _ops(plane, core, host, programs, unused)
    for device in devices.values():
        device.ops.sort(key=lambda op: (op.start, op.end))
        device.start_steps(host.steps)
    return [device for device in devices.values() if device.ops]


def global_numbers(planes: Sequence[Plane]) -> dict[int, int]:
    """Numbers of the chips in the job, by their number on the host; {} if not recorded."""
    chips, cores = dict[int, int](), dict[int, int]()
    details = message_class(_CORE, "CoreDetails")
    for plane in planes:
        chip = PLANE.match(plane.name)
        if chip is None or chip[2] or not isinstance(plane.stats.get("core_details"), bytes):
            continue
        try:
            core = details.FromString(plane.stats["core_details"])
        except DecodeError:
            return {}
        chips[int(chip[1])], cores[int(chip[1])] = core.global_chip, core.global_core
    for numbers in (chips, cores):
        if len(set(numbers.values())) == len(numbers):
            return numbers
    return {}


def _ops(
    plane: Plane, core: str, host: XlaHostEvents, programs: Programs, unused: Counter[str]
) -> list[XlaOp]:
    lines: dict[str, PlaneLine] = {}
    for line in plane.lines:
        role = next(
            (names[0] for names in (_OPS, _MODULES, _STEPS) if line.name in names), line.name
        )
        lines[role] = line
        if role not in (_OPS[0], _MODULES[0], _STEPS[0], "XLA TraceMe") and line.events:
            unused[f"{line.name} of TPUs"] += len(line.events)
    events = lines[_OPS[0]].events if _OPS[0] in lines else []
    modules = sorted(_events(lines, _MODULES[0]), key=lambda event: event.start)
    runs = _Runs(modules, _events(lines, _STEPS[0]), host)
    own_clock = all(_has_chip_stamp(event) for event in events)
    ops: list[XlaOp] = []
    shifts: dict[int, float] = {}
    for event in leaves([_on_chip(event) for event in events] if own_clock else events):
        at = event.stats.get("host_start", event.start)
        run = runs.at(at)
        op = XlaOp(
            name=_name(event),
            lane=core or _OPS[0],
            start=event.start,
            end=event.end,
            run=run,
            program=runs.program(run),
            hlo=programs.op(event, None),
            step=runs.step(run, at),
        )
        if not event.stats.get("own"):
            op.kind = event_kind(event, op.hlo)
        if run not in shifts:
            shifts[run] = event.start - at
            op.launch = runs.launch(run)
        ops.append(op)
    _launches_on_chip_clock(ops, shifts)
    return _with_barriers(ops, _events(lines, "XLA TraceMe"), runs, shifts, unused)


def _launches_on_chip_clock(ops: list[XlaOp], shifts: dict[int, float]) -> None:
    """Convert launches to the chip's clock; none precedes that of the program before it.

    If the converted clock has jumped ahead, a launch long before its program would otherwise come
    out too early.
    """
    latest = -math.inf
    for op in ops:
        if op.launch is not None:
            start, end = (time + shifts[op.run] for time in op.launch)
            latest = max(latest, min(start, op.start))
            op.launch = (latest, max(latest, end))


def _events(lines: dict[str, PlaneLine], role: str) -> list[PlaneEvent]:
    return lines[role].events if role in lines else []


def _has_chip_stamp(event: PlaneEvent) -> bool:
    """Whether the chip's own clock stamped an event, with valid values."""
    offset, lasted = event.number("device_offset_ps"), event.number("device_duration_ps")
    return offset is not None and 0 <= offset < _LATEST and 0 <= (lasted or 0) < _LATEST


def _on_chip(event: PlaneEvent) -> PlaneEvent:
    """Convert an event to the chip's clock, and keep its start on the host's clock."""
    start = (event.number("device_offset_ps") or 0) * 1e-12
    lasted = event.number("device_duration_ps")
    span = lasted * 1e-12 if lasted is not None else event.end - event.start
    stats = {**event.stats, "host_start": event.start}
    return PlaneEvent(event.name, start, start + span, event.text, stats)


def _name(event: PlaneEvent) -> str:
    if event.text and " = " in event.text:
        return event.text.split(" = ", 1)[0].strip().removeprefix("ROOT ").lstrip("%")
    return event.name.lstrip("%")


class _Runs:
    """Executions of programs on a chip, by their start on the host's clock."""

    def __init__(
        self, modules: list[PlaneEvent], steps: list[PlaneEvent], host: XlaHostEvents
    ) -> None:
        self._modules, self._host = modules, host
        self._starts = [module.start for module in modules]
        self._steps = {}
        for event in steps:
            number = event.number("step_num")
            if number is None:
                number = whole_of(event.name)
            if number is not None:
                self._steps[number] = (event.start, event.end)

    def at(self, time: float) -> int:
        return bisect_right(self._starts, time) - 1

    def program(self, run: int) -> str:
        return self._modules[run].name.split("(")[0] if run >= 0 else ""

    def launch(self, run: int) -> Span | None:
        return self._host.launch_of(self._modules[run]) if run >= 0 else None

    def step(self, run: int, time: float) -> int:
        """Return the step of a run: by the chip's line of steps, else by its launch on the host."""
        if self._steps:
            begun = self._starts[run] if run >= 0 else time
            return step_at(begun, self._steps)
        launch = self.launch(run)
        return step_at(time if launch is None else launch[0], self._host.steps)


def _with_barriers(
    ops: list[XlaOp],
    traced: list[PlaneEvent],
    runs: _Runs,
    shifts: dict[int, float],
    unused: Counter[str],
) -> list[XlaOp]:
    """Put the wait for other chips before the program that waits, with that program's launch."""
    first: dict[int, XlaOp] = {}
    for op in ops:
        first.setdefault(op.run, op)
    for event in traced:
        run = runs.at(event.start)
        follower = first.get(run)
        if base_name(event.name) != _BARRIER or follower is None or follower.kind == "barrier":
            unused["XLA TraceMe of TPUs"] += 1
            continue
        start, end = event.start + shifts[run], event.end + shifts[run]
        if start > follower.start:
            unused["XLA TraceMe of TPUs"] += 1
            continue
        barrier = XlaOp(_BARRIER, follower.lane, start, min(end, follower.start), run)
        barrier.program, barrier.step, barrier.kind = follower.program, follower.step, "barrier"
        barrier.launch, follower.launch = follower.launch, None
        ops.append(barrier)
        first[run] = barrier
    return ops
