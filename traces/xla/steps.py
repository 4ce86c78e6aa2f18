"""The choice of the step: which of a device's ops belong to it.

Steps are those that the program annotated (``StepTraceAnnotation``). Without annotations a step is
a run of the program that takes most of the device's time, with all ops before the next run,
provided that program communicates or no program does. Otherwise no step represents the whole, and
``median`` returns ``all``; a run can still be chosen by its number. Without annotations ``all`` is
the whole recording, including ops before the first run.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.support.errors import TraceError
from simulator.support.quantities import whole_of
from traces.core.loaded import ALL, MEDIAN
from traces.xla.planes import NO_STEP, XlaDevice, XlaOp, XlaRecording


@dataclass(frozen=True, slots=True)
class StepOps:
    """A device's ops of the step, which began on it at ``start`` (s).

    ``busy``: the device still had ops of the step before, and began this one after them.
    """

    device: XlaDevice
    ops: list[XlaOp]
    start: float
    busy: bool = False


@dataclass(frozen=True, slots=True)
class StepChoice:
    """The chosen step, the available steps, and each device's part of it."""

    step: str
    steps: tuple[int, ...]
    parts: tuple[StepOps, ...]
    notes: tuple[str, ...] = ()
    left_out: int = 0


def choose_xla_step(recordings: Sequence[XlaRecording], step: str) -> StepChoice:
    """Select the ops of a step: a number, ``median`` or ``all``.

    The median is taken over the steps' longest duration on any device, without the first step if
    there are more than two: it is often a warm-up.
    """
    devices = [device for recording in recordings for device in recording.devices]
    where = str(recordings[0].file)
    notes: list[str] = []
    annotated = any(op.step != NO_STEP for device in devices for op in device.ops)
    stands = True
    if not annotated:
        stands = _number_runs(devices, notes)
    device_steps = [{op.step for op in device.ops} - {NO_STEP} for device in devices]
    common = sorted(set.intersection(*device_steps)) if device_steps else []
    if not common and any(device_steps):
        counts = ", ".join(str(len(steps)) for steps in device_steps[:8])
        raise TraceError(f"{where}: the devices have no step in common ({counts} steps on each)")
    numbers = common
    if step == MEDIAN:
        step = _median(devices, numbers) if numbers and stands else ALL
    if step != ALL and whole_of(step) not in numbers:
        has = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
        raise TraceError(f"{where}: no step {step}; it has {has or 'none'}")
    whole = step == ALL and not annotated
    wanted = set(numbers) if step == ALL else {int(step)}
    parts = tuple(
        _step_ops(device, device.ops if whole else [op for op in device.ops if op.step in wanted])
        for device in devices
    )
    if not any(part.ops for part in parts):
        raise TraceError(f"{where}: step {step} has no op on any device; choose another step")
    inside = sum(len(part.ops) for part in parts)
    left_out = sum(len(device.ops) for device in devices) - inside
    return StepChoice(step, tuple(numbers), parts, tuple(notes), left_out)


def _number_runs(devices: Sequence[XlaDevice], notes: list[str]) -> bool:
    """Count the main program's runs from 1; return whether such a run represents the whole."""
    time: dict[str, float] = defaultdict(float)
    talks: set[str] = set()
    for device in devices:
        for op in device.ops:
            time[op.program] += op.end - op.start
            if op.kind:
                talks.add(op.program)
    if not any(time):
        return False
    main = max((program for program in time if program), key=lambda program: time[program])
    for device in devices:
        number, run, last = 0, None, 0.0
        for op in device.ops:
            if op.program == main and op.run != run:
                number, run = number + 1, op.run
            if op.program == main:
                last = op.end
            op.step = number or NO_STEP
        for op in device.ops:
            if op.start > last:
                op.step = NO_STEP
    _align_runs(devices, main, notes)
    if talks and main not in talks:
        notes.append(
            f"{main} takes most of the time but only others, such as {min(talks)}, communicate: "
            "the whole recording is used; --step N chooses one run"
        )
    return not talks or main in talks


def _align_runs(devices: Sequence[XlaDevice], main: str, notes: list[str]) -> None:
    """Give runs that began together one number, if devices recorded more or fewer."""
    begun: list[list[float]] = []  # start of each numbered run (s)
    for device in devices:
        starts_of_runs: dict[int, float] = {}
        for op in device.ops:
            if op.step != NO_STEP:
                starts_of_runs.setdefault(op.step, op.start)
        begun.append([starts_of_runs[number] for number in sorted(starts_of_runs)])
    fewest = min(begun, key=len)
    if len(fewest) == len(max(begun, key=len)) or not fewest:
        return
    notes.append(
        f"the devices recorded {len(fewest)} runs of {main} in common; others are left out"
    )
    for device, starts in zip(devices, begun, strict=True):
        gaps = [
            float(np.median(np.abs(np.array(starts[skip : skip + len(fewest)]) - fewest)))
            for skip in range(len(starts) - len(fewest) + 1)
        ]
        skip = int(np.argmin(gaps))
        for op in device.ops:
            inside = skip < op.step <= skip + len(fewest)
            op.step = op.step - skip if inside else NO_STEP


def _median(devices: Sequence[XlaDevice], numbers: list[int]) -> str:
    if len(numbers) > 2:
        numbers = numbers[1:]
    longest = dict.fromkeys(numbers, 0.0)
    for device in devices:
        ops: dict[int, list[XlaOp]] = defaultdict(list)
        for op in device.ops:
            ops[op.step].append(op)
        for number in numbers:
            part = _step_ops(device, ops[number])
            span = max(op.end for op in part.ops) - part.start
            longest[number] = max(longest[number], span)
    by_time = sorted(numbers, key=lambda number: (longest[number], number))
    return str(by_time[len(by_time) // 2])


def _step_ops(device: XlaDevice, ops: list[XlaOp]) -> StepOps:
    """Return a device's step; it starts when the host began it and the step before had ended."""
    if not ops:
        return StepOps(device, ops, 0.0)
    first = ops[0].start
    called = [op.launch[0] for op in ops if op.launch is not None]
    called += [device.begun[run] for run in {op.run for op in ops} if run in device.begun]
    called += [device.steps[step] for step in {op.step for op in ops} if step in device.steps]
    begun = min([first, *called])
    busy = min(first, max((op.end for op in device.ops if op.start < first), default=-math.inf))
    return StepOps(device, ops, max(begun, busy), busy > begun)
