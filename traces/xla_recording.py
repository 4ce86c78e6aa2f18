"""Planes of a profile to a recording: its devices, and their numbers in the job."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from traces.hlo import HloModule
from traces.xla_cpu import cpu_devices
from traces.xla_events import Device, Recording
from traces.xla_gpu import PLANE as GPU
from traces.xla_gpu import gpu_devices
from traces.xla_host_events import HOST, host_events
from traces.xla_planes import Plane, Programs
from traces.xla_tpu import PLANE as TPU
from traces.xla_tpu import global_numbers, tpu_devices


def recording(
    file: Path, planes: Sequence[Plane], modules: Mapping[str, HloModule], epoch: int
) -> Recording:
    """Make devices of planes; CPU devices count only where there is no accelerator."""
    unused: Counter[str] = Counter()
    host, programs = host_events(planes, unused), Programs(modules)
    devices = tpu_devices(planes, host, programs, unused)
    chips = bool(devices)
    devices += gpu_devices(planes, host, programs, unused)
    if not devices:
        devices = cpu_devices(host, programs)
    elif host.ops:
        unused["ops of the host"] += sum(len(line.events) for line in host.ops)
    for plane in planes:
        if not any(pattern.match(plane.name) for pattern in (TPU, GPU, HOST)):
            events = sum(len(line.events) for line in plane.lines)
            if events:
                unused[f"events of {plane.name}"] += events
    found = Recording(file, devices, epoch, _accelerator(planes), unused=dict(unused))
    found.one_clock = not chips
    _renumber(found, global_numbers(planes))
    return found


def number_ranks(recordings: Sequence[Recording]) -> None:
    """Give the devices of several files ranks: each file's after those before, if they collide."""
    seen: set[int] = set()
    for one in recordings:
        own = {device.rank for device in one.devices}
        if own & seen:
            first = max(seen) + 1
            for device in one.devices:
                device.rank += first
            one.notes.append(f"{one.file.name}: its devices are ranks {first} and up, by file name")
        seen |= {device.rank for device in one.devices}


def _renumber(found: Recording, numbers: Mapping[int, int]) -> None:
    """Take the numbers of the whole job, where the profile has but a part of it."""
    own = {device.rank for device in found.devices}
    if not own <= set(numbers) or _largest_group(found.devices) < len(own):
        return
    for device in found.devices:
        device.rank = numbers[device.rank]
    if {device.rank for device in found.devices} != own:
        ranks = ", ".join(str(device.rank) for device in found.devices)
        found.notes.append(f"the profile is of chips {ranks} of the job, taken as its ranks")


def _largest_group(devices: Sequence[Device]) -> int:
    """Find the highest number in any replica group."""
    highest = -1
    for device in devices:
        hlos = {id(op.hlo): op.hlo for op in device.ops if op.kind and op.hlo is not None}
        for hlo in hlos.values():
            for group in (*(hlo.groups or ()), *hlo.pairs):
                highest = max([highest, *group])
    return highest


def _accelerator(planes: Sequence[Plane]) -> str:
    named = (plane.stats.get("device_type_string") for plane in planes)
    return next((str(name) for name in named if name), "")
