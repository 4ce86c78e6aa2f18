"""Recordings from the planes of a profile: devices, and their numbers in the job.

A GPU has a plane (``/device:GPU:0``) with a line per stream: an event is a kernel or a copy, with
its HLO op and the number of its launch. Lines that a tool derived from the streams (``XLA Ops``,
``Framework Ops``) are duplicates.

JAX's CPU devices are threads of the host, several in one process. Such a device has no line: its
ops are on any threads of a pool, distinguished by ``device_ordinal``; executions of a program by
``run_id``. TPUs have a module of their own, :mod:`traces.xla.tpu`.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from traces.core.loaded import EXPLAINED
from traces.xla.device_graph import Operands
from traces.xla.hlo import HloModule
from traces.xla.host import HOST, XlaHostEvents, host_events
from traces.xla.planes import (
    Plane,
    PlaneEvent,
    Programs,
    XlaDevice,
    XlaOp,
    XlaRecording,
    event_kind,
    leaves,
    step_at,
)
from traces.xla.tpu import PLANE as TPU
from traces.xla.tpu import global_numbers, tpu_devices

GPU = re.compile(r"/device:GPU:(\d{1,18})$")
_HOST_PREFIX = re.compile(r"(.*?)\s*(/(?:device|host):.*)", re.DOTALL)
"""A plane's name with its owner's as prefix: ``worker-3 /device:GPU:0``, as tools write that merge
the profiles of several hosts, or ``/job:worker/replica:0/task:3/device:GPU:0``."""


def recordings_of(
    file: Path, planes: Sequence[Plane], modules: Mapping[str, HloModule], epoch: int
) -> list[XlaRecording]:
    """Make a recording for each host with planes in a file, as if it had a file of its own.

    Hosts are distinguished by the prefixes of their planes' names; as no host has two devices of
    one name, a second plane of a name belongs to another host.
    """
    every = [_recording(file, host_planes, modules, epoch) for host_planes in _by_host(planes)]
    with_chips = [each for each in every if any(_chip(device.name) for device in each.devices)]
    with_devices = with_chips or [each for each in every if each.devices]
    for each in every:
        # A host whose accelerators were idle has no ranks, and its recording is not returned.
        if with_chips and not any(each is busy for busy in with_chips):
            with_chips[0].notes += each.notes
    if len(with_devices) > 1:
        with_devices[0].notes.append(
            f"{file.name}: planes of {len(with_devices)} hosts in one file"
        )
    return with_devices or every[:1]


def _by_host(planes: Sequence[Plane]) -> list[list[Plane]]:
    """Group planes by host; those of threads without a host belong to all hosts."""
    devices: dict[tuple[str, int], list[Plane]] = {}
    others: dict[str, list[Plane]] = {}
    often: Counter[tuple[str, str]] = Counter()
    for plane in planes:
        named = _HOST_PREFIX.fullmatch(plane.name)
        whose, name = (named[1], named[2]) if named else ("", plane.name)
        renamed = replace(plane, name=name)
        if TPU.match(name) or GPU.match(name):
            devices.setdefault((whose, often[whose, name]), []).append(renamed)
            often[whose, name] += 1
        else:
            others.setdefault(whose, []).append(renamed)
    if not devices:
        return list(others.values()) or [[]]
    used = {whose for whose, _ in devices}
    shared = [plane for whose, rest in others.items() if whose not in used for plane in rest]
    return [[*host_planes, *others.get(host, shared)] for (host, _), host_planes in devices.items()]


def _recording(
    file: Path, planes: Sequence[Plane], modules: Mapping[str, HloModule], epoch: int
) -> XlaRecording:
    """Make devices of planes; CPU devices count only if there is no accelerator."""
    unused: Counter[str] = Counter()
    host, programs = host_events(planes, unused), Programs(modules)
    devices = tpu_devices(planes, host, programs, unused)
    chips, usual = bool(devices), ""
    devices += gpu_devices(planes, host, programs, unused)
    if not devices:
        devices, usual = cpu_devices(host, programs), "CPU"
    elif host.ops:
        unused["ops of the host"] += sum(len(line.events) for line in host.ops)
    for plane in planes:
        if not any(pattern.match(plane.name) for pattern in (TPU, GPU, HOST)):
            events = sum(len(line.events) for line in plane.lines)
            if events:
                unused[f"events of {plane.name}"] += events
    named = (plane.stats.get("device_type_string") for plane in planes)
    accelerator = next((str(name) for name in named if name), usual)
    result = XlaRecording(file, devices, epoch, accelerator, unused=dict(unused))
    result.one_clock = not chips
    for device in devices:
        # A TPU's ops are on the chip's clock, which the host's spans cannot be compared with.
        device.waits = [] if chips else host.waits
    used = {_chip(device.name) for device in devices} | {None}
    idle = [plane.name for plane in planes if _chip(plane.name) not in used]
    if idle:
        result.notes.append(f"{file.name}: {', '.join(idle)} ran nothing and counts as no rank")
    _renumber(result, global_numbers(planes))
    return result


def _chip(plane: str) -> tuple[str, str] | None:
    """Kind and number of the accelerator, or core of one, that a plane represents; else None."""
    for kind, pattern in (("GPU", GPU), ("TPU", TPU)):
        if (match := pattern.match(plane)) is not None:
            return kind, match[1]
    return None


def number_ranks(recordings: Sequence[XlaRecording]) -> None:
    """Assign ranks to the devices of several files: files follow each other if numbers collide."""
    seen: set[int] = set()
    for each in recordings:
        ranks = {device.rank for device in each.devices}
        if ranks & seen:
            first = max(seen) + 1
            for device in each.devices:
                device.rank += first
            each.notes.append(
                f"{each.file.name}: its devices are ranks {first} and up, by file name"
            )
        seen |= {device.rank for device in each.devices}


def _renumber(result: XlaRecording, numbers: Mapping[int, int]) -> None:
    """Use the numbers of the whole job if the profile has only a part of it."""
    ranks = {device.rank for device in result.devices}
    if not ranks <= set(numbers) or largest_member(result.devices) < len(ranks):
        return
    for device in result.devices:
        device.rank = numbers[device.rank]
    if {device.rank for device in result.devices} != ranks:
        chips = ", ".join(str(device.rank) for device in result.devices)
        result.notes.append(f"the profile is of chips {chips} of the job; each chip is a rank")


def largest_member(devices: Sequence[XlaDevice]) -> int:
    """Return the highest number in any replica group."""
    hlos = (hlo for device in devices for hlo in device.collectives())
    groups = (group for hlo in hlos for group in (*(hlo.groups or ()), *hlo.pairs))
    return max((member for group in groups for member in group), default=-1)


_STREAM = re.compile(r"Stream\b")
_DERIVED_LINES = ("XLA Ops", "TensorFlow Ops", "Framework Ops")
"""Lines derived from the streams; used only if a tool left the streams out."""


def gpu_devices(
    planes: Sequence[Plane], host: XlaHostEvents, programs: Programs, unused: Counter[str]
) -> list[XlaDevice]:
    """Make a device of each GPU's plane; lanes are streams."""
    devices: list[XlaDevice] = []
    for plane in planes:
        gpu = GPU.match(plane.name)
        if gpu is None:
            continue
        device = XlaDevice(int(gpu[1]), plane.name, [])
        # Lines of a GPU that are read: its streams, else the first of the derived lines.
        streams = [line for line in plane.lines if _STREAM.match(line.name) and line.events]
        derived = (line for name in _DERIVED_LINES for line in plane.lines if line.name == name)
        lines = streams or [line for line in derived if line.events][:1]
        for line in plane.lines:
            if not any(line is used for used in lines):
                unused[f"{line.name} of GPUs"] += len(line.events)
                continue
            lane = line.name.split("(")[0]
            events = leaves(line.events) if line.name in _DERIVED_LINES else line.events
            device.ops += [_gpu_op(event, lane, host, programs) for event in events]
        device.ops.sort(key=lambda op: (op.start, op.end))
        _number_gpu_runs(device, host)
        if device.ops:
            devices.append(device)
    return devices


_COLLECTIVE = re.compile(r"nccl|rccl|all_?reduce|allgather|collective", re.IGNORECASE)
_COPY = re.compile(r"mem(cpy|set)", re.IGNORECASE)


def _gpu_op(event: PlaneEvent, lane: str, host: XlaHostEvents, programs: Programs) -> XlaOp:
    module = programs.module(event)
    hlo = programs.op(event, module) if "hlo_op" in event.stats else None
    correlation = event.number("correlation_id")
    op = XlaOp(
        name=str(event.stats.get("hlo_op") or event.name),
        lane=lane,
        start=event.start,
        end=event.end,
        program=str(event.stats.get("hlo_module", "")),
        hlo=hlo,
        module=module,
        copy=_COPY.match(event.name) is not None,
        transfer=True,
        launch=None if correlation is None else host.correlated.get(correlation),
    )
    if _COLLECTIVE.search(event.name):
        op.kind = event_kind(event, hlo)
    op.transfer = bool(op.kind) or (hlo is not None and hlo.phase != "")
    return op


def _number_gpu_runs(device: XlaDevice, host: XlaHostEvents) -> None:
    """Distinguish runs: a change of program or of step begins another run."""
    run, last = -1, None
    for op in device.ops:
        time = op.start if op.launch is None else op.launch[0]
        op.step = step_at(time, host.steps)
        key = (op.program or (last[0] if last else ""), op.step)
        if key != last:
            run, last = run + 1, key
        op.run = run
    device.start_steps(host.steps)


def cpu_devices(host: XlaHostEvents, programs: Programs) -> list[XlaDevice]:
    """Make a device of each ordinal; lanes are threads, in order of first use."""
    devices: dict[int, XlaDevice] = {}
    late: dict[int, float] = {}
    for line in host.ops:
        by_device: dict[int, list[PlaneEvent]] = defaultdict(list)
        for event in line.events:
            ordinal = event.number("device_ordinal")
            if ordinal is not None and ordinal >= 0:
                by_device[ordinal].append(event)
        for ordinal, events in by_device.items():
            device = devices.setdefault(ordinal, XlaDevice(ordinal, f"CPU device {ordinal}", []))
            for event in leaves(events):
                op = _cpu_op(event, line.name, programs)
                device.ops.append(op)
                ends = host.ended.get(event.flow("_p") or 0, [])
                reported = ends[bisect_left(ends, event.start) :][:1]
                if reported and reported[0] > event.end + EXPLAINED:
                    late[id(op)] = reported[0]
    runs: dict[tuple[str, int], int] = {}
    begun = {event.flow("run_id"): event.start for event in host.produced.values()}
    for device in devices.values():
        device.ops.sort(key=lambda op: (op.start, op.end))
        _extend_ends(device.ops, late)
        names: dict[str, str] = {}
        for op in device.ops:
            op.lane = names.setdefault(op.lane, f"thread {len(names)}")
        _add_launches(device, host)
        device.begun = {op.run: begun[op.run] for op in device.ops if op.run in begun}
        for op in device.ops:
            op.step = step_at(device.begun.get(op.run, op.start), host.steps)
        device.start_steps(host.steps)
        _number_cpu_runs(device, runs)
    return list(devices.values())


def _cpu_op(event: PlaneEvent, thread: str, programs: Programs) -> XlaOp:
    module = programs.module(event)
    hlo = programs.op(event, module)
    return XlaOp(
        name=str(event.stats.get("hlo_op") or event.name),
        lane=thread,
        start=event.start,
        end=event.end,
        run=event.flow("run_id") or 0,
        program=str(event.stats.get("hlo_module", "")),
        hlo=hlo,
        module=module,
        kind="" if event.stats.get("own") else event_kind(event, hlo),
    )


def _extend_ends(ops: list[XlaOp], late: dict[int, float]) -> None:
    """Extend an op that continues in other threads to the start of the first op that uses it.

    Its reported end is only an upper bound: it is recorded when a thread processes it.
    """
    operands = Operands(ops)
    latest: dict[tuple[int, str], XlaOp] = {}
    for op in ops:
        for name in operands.of(op):
            source = latest.get((op.run, name))
            if source is not None and id(source) in late:
                source.end = max(source.end, min(late.pop(id(source)), op.start))
        latest[op.run, op.name] = op


def _add_launches(device: XlaDevice, host: XlaHostEvents) -> None:
    """Set the launch of the first op of each run: the call that began it on this device."""
    calls = {
        event.flow("_c"): (event.start, event.end)
        for event in host.executed
        if event.number("global_device_id") == device.rank
    }
    seen: set[int] = set()
    for op in device.ops:
        if op.run not in seen:
            seen.add(op.run)
            op.launch = calls.get(op.run)


def _number_cpu_runs(device: XlaDevice, runs: dict[tuple[str, int], int]) -> None:
    """Count the runs from 0, because their identifiers are large and arbitrary."""
    begun = dict(device.begun)
    device.begun = {}
    for op in device.ops:
        number = runs.setdefault((op.program, op.run), len(runs))
        if op.run in begun:
            device.begun[number] = begun[op.run]
        op.run = number
