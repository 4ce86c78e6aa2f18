"""Bundles of ``nsys-jax`` (NVIDIA's JAX-Toolbox): a zip archive per process.

The table of NVTX ranges, projected to the GPU, has for each thunk (an HLO op, launched) when the
host launched it and when the device ran it; the dump has the compiled programs, and so each op's
kind, communication peers, and the place of an asynchronous op's wait. Tables are Parquet, programs
serialized HLO.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.support.errors import TraceError
from simulator.support.input_files import open_zip, read_member, unpack_xz
from traces.core.files import parquet_columns
from traces.core.loaded import Loaded
from traces.xla.hlo import HloModule, kind_by_name, parse_module
from traces.xla.link import link_recordings
from traces.xla.planes import XlaDevice, XlaOp, XlaRecording, bundle_files

TRACE = "nvtx_gpu_proj_trace/trace.parquet"


def is_bundle(path: Path) -> bool:
    """Whether a file is a bundle: a zip archive with the table of projected ranges."""
    try:
        with Bundle(path) as bundle:
            return bundle.has(TRACE)
    except TraceError:
        return False


def load_bundles(path: Path, step: str) -> Loaded:
    """Read a bundle, or a directory with one per process, and link one step to a workload."""
    modules: dict[bytes, HloModule] = {}
    bundles = bundle_files(path, is_bundle)
    return link_recordings(path, step, bundles, lambda file: [_read(file, modules)])


def _read(file: Path, modules: dict[bytes, HloModule]) -> XlaRecording:
    with Bundle(file) as bundle:
        ranges = _ranges(bundle)
        numbers, accelerator = bundle.devices()
        members = bundle.programs()
        needed = sorted({key[1] for nvtx_range in ranges if (key := _program(nvtx_range.name))})
        programs = {n: bundle.module(members[n], modules) for n in needed if n in members}
    unused: Counter[str] = Counter()
    notes: list[str] = []
    devices = _device_threads(file, _devices(ranges, programs, unused), len(numbers), notes)
    recording = XlaRecording(file, devices, 0, accelerator, one_clock=True, unused=dict(unused))
    recording.notes += notes
    if len(numbers) == len(devices):
        for device, number in zip(devices, numbers, strict=True):
            device.rank = number
        if len(devices) > 1:
            recording.notes.append(
                f"{file.name}: {len(devices)} devices; assumed to be those of its threads, in order"
            )
    return recording


_DEVICES = "device-metadata.parquet"
_DUMP = re.compile(r"dump/module_(\d{1,18})\..*after_optimizations\.hlo\.pb(\.xz)?$")
_NAME = "Name"
"""The column of texts, which repeat and are stored once."""


class Bundle:
    """An open archive; every failure is a :class:`TraceError` that names file and member."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._zip = open_zip(file)
        self._members = {info.filename: info for info in self._zip.infolist()}

    def __enter__(self) -> "Bundle":
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def has(self, name: str) -> bool:
        """Whether a member has this name, in any folder of the archive."""
        return any(f"/{member}".endswith(f"/{name}") for member in self._members)

    def table(self, name: str, columns: Sequence[str]) -> dict[str, list[Any]]:
        """Read columns of a table; raise if one is missing."""
        member = self._find(name)
        repeated = [_NAME] if _NAME in columns else []
        return parquet_columns(f"{self.file}: {member}", self._read(member), columns, repeated)

    def devices(self) -> tuple[list[int], str]:
        """Numbers of the process's devices in the job, and their kinds; empty if not recorded."""
        if not self.has(_DEVICES):
            return [], ""
        named = "('TARGET_INFO_NVTX_CUDA_DEVICE', 'name')"
        table = self.table(_DEVICES, [named, "('TARGET_INFO_GPU', 'name')"])
        numbers = [re.search(r"global=(\d{1,9})\b", str(text)) for text in table[named]]
        kinds = [str(kind) for kind in table["('TARGET_INFO_GPU', 'name')"]]
        return sorted(int(number[1]) for number in numbers if number), kinds[0] if kinds else ""

    def programs(self) -> dict[int, str]:
        """Members with compiled programs, by the program's number."""
        dumped = ((_DUMP.search(name), name) for name in self._members)
        return {int(match[1]): name for match, name in dumped if match is not None}

    def module(self, member: str, modules: dict[bytes, HloModule]) -> HloModule:
        """Read a program; ``modules`` caches those of other processes' bundles."""
        data = self._read(member)
        if member.endswith(".xz"):
            data = unpack_xz(f"{self.file}: {member}", data)
        if data not in modules:
            modules[data] = parse_module(data, f"{self.file}: {member}")
        return modules[data]

    def _find(self, name: str) -> str:
        if named := [member for member in self._members if f"/{member}".endswith(f"/{name}")]:
            return named[0]
        raise TraceError(f"{self.file}: no {name} in the archive; was it written by nsys-jax?")

    def _read(self, member: str) -> bytes:
        return read_member(self.file, self._zip, member)


_COLUMNS = (
    "Name",
    "Projected Start",
    "Projected Duration",
    "Orig Start",
    "Orig Duration",
    "TID",
    "RangeId",
    "ParentId",
)
_LONGEST = 1e17
"""Stamps (ns) beyond three years are damaged."""


@dataclass(frozen=True, slots=True)
class _Range:
    """A row of the table (ns): its spans on the GPU and on the host."""

    name: str
    start: float
    duration: float
    called: float
    calling: float
    thread: int
    number: int
    parent: int | None


def _ranges(bundle: Bundle) -> list[_Range]:
    table = bundle.table(TRACE, _COLUMNS)
    ranges = []
    for row in zip(*(table[column] for column in _COLUMNS), strict=True):
        name, *numbers, parent = row
        if not isinstance(name, str) or None in numbers:
            continue
        if not all(isinstance(value, (int, float)) and 0 <= value < _LONGEST for value in numbers):
            where = f"{bundle.file}: {TRACE}: range {name[:60]!r}"
            raise TraceError(f"{where}: {numbers} are not times and numbers: the file is damaged")
        start, duration, called, calling, thread, number = numbers
        parent_id = (
            int(parent) if isinstance(parent, (int, float)) and abs(parent) < _LONGEST else None
        )
        ranges.append(
            _Range(name, start, duration, called, calling, int(thread), int(number), parent_id)
        )
    return ranges


_MODULE = re.compile(
    r"TSL:XlaModule:#(?:.*,)?hlo_module=([^,#]+),program_id=(\d{1,9})#$", re.DOTALL
)


def _program(name: str) -> tuple[str, int] | None:
    """Name and number of the program that a range executes; autotuner programs have no number."""
    parsed = _MODULE.match(name)
    return (parsed[1], int(parsed[2])) if parsed is not None else None


_THUNK = re.compile(r"TSL:Thunk:#(?:.*,)?hlo_op=([^,#]+)#$", re.DOTALL)


def _devices(
    ranges: list[_Range], programs: dict[int, HloModule], unused: Counter[str]
) -> list[XlaDevice]:
    """Make a device of each launching thread: JAX has one for each GPU of a process."""
    by_number = {nvtx_range.number: nvtx_range for nvtx_range in ranges}
    thunks: list[tuple[_Range, _Range]] = []
    parents: set[int] = set()
    for nvtx_range in ranges:
        run = _run_of(nvtx_range, by_number, parents) if _THUNK.match(nvtx_range.name) else None
        if run is not None:
            thunks.append((nvtx_range, run))
        elif _program(nvtx_range.name) is None:
            unused["ranges that launch no op of a program"] += 1
    devices: dict[int, XlaDevice] = {}
    wrapped = {
        number: {op.wrapped for op in module.ops.values()} for number, module in programs.items()
    }
    for thunk, run in thunks:
        if thunk.number in parents:
            continue
        device = devices.setdefault(
            thunk.thread, XlaDevice(len(devices), f"thread {thunk.thread}", [])
        )
        device.begun[run.number] = run.called * 1e-9
        device.ops.append(_op(thunk, run, programs, wrapped))
    in_order = [devices[thread] for thread in sorted(devices)]
    for rank, device in enumerate(in_order):
        device.rank = rank
        device.ops.sort(key=lambda op: (op.start, op.end))
    return in_order


def _device_threads(
    file: Path, threads: list[XlaDevice], device_count: int, notes: list[str]
) -> list[XlaDevice]:
    """Return the devices of a process with ``device_count`` of them (0: not recorded).

    JAX launches a program of several devices from a thread of each, and a program of a single
    device from the calling thread, so that the main thread may appear beside those of the devices.
    The devices' threads are those that launch the program that takes most of the time; where the
    programs of other threads ran is not recorded. A process with one device runs the programs of
    all its threads on it. If the number of devices is not recorded, it is assumed to be the number
    of threads that launch that program.
    """
    if len(threads) <= max(device_count, 1):
        return threads
    main = _longest_program(threads)
    devices = [thread for thread in threads if any(op.program == main for op in thread.ops)]
    if not device_count:
        device_count = len(devices)
        notes.append(
            f"{file.name}: does not record how many devices the process has; taken as "
            f"{device_count}, the number of threads that launch {main}"
        )
    if device_count == 1:
        # Assign the ops that several threads launched to their single device.
        ops = [op for thread in threads for op in thread.ops]
        begun = {run: time for thread in threads for run, time in thread.begun.items()}
        ops.sort(key=lambda op: (op.start, op.end))
        return [XlaDevice(0, ", ".join(thread.name for thread in threads), ops, begun=begun)]
    if len(devices) != device_count:
        raise TraceError(
            f"{file}: {len(devices)} of {len(threads)} threads launch {main!r}, which takes most "
            f"of the time, and the process has {device_count} devices: which thread drives which "
            "device is not recorded"
        )
    for rank, device in enumerate(devices):
        device.rank = rank
    others = [thread for thread in threads if not any(thread is device for device in devices)]
    if not others:
        return devices
    count = sum(len(thread.ops) for thread in others)
    names = ", ".join(thread.name for thread in others)
    notes.append(
        f"{file.name}: {count} ops that {names} launched are left out: it does not launch {main}, "
        "as the devices' threads do, and their device is not recorded"
    )
    return devices


def _longest_program(threads: list[XlaDevice]) -> str:
    """Return the program that takes most of the time, the last by name if several do."""
    time: Counter[str] = Counter()
    for thread in threads:
        for op in thread.ops:
            time[op.program] += round((op.end - op.start) * 1e9)
    return max(time, key=lambda program: (time[program], program))


def _run_of(thunk: _Range, by_number: dict[int, _Range], parents: set[int]) -> _Range | None:
    """Return the program execution that contains a thunk; mark thunks that contain it."""
    above = thunk.parent
    for _ in range(len(by_number)):
        outer = by_number.get(above) if above is not None else None
        if outer is None or _program(outer.name):
            return outer
        if _THUNK.match(outer.name):
            parents.add(outer.number)
        above = outer.parent
    return None


_COPIES = ("copy", "copy-start")


def _op(
    thunk: _Range, run: _Range, programs: dict[int, HloModule], wrapped: dict[int, set[str]]
) -> XlaOp:
    match, program = _THUNK.match(thunk.name), _program(run.name)
    name = match[1] if match is not None else thunk.name
    title, key = program or ("", -1)
    module = programs.get(key)
    hlo = module.ops.get(name) if module is not None else None
    overlaps = hlo is not None and (hlo.phase == "start" or name in wrapped[key])
    start = thunk.start * 1e-9
    return XlaOp(
        name=name,
        lane="communication" if overlaps else "compute",
        start=start,
        end=start + thunk.duration * 1e-9,
        run=run.number,
        program=title,
        hlo=hlo,
        module=module,
        kind=hlo.kind if hlo is not None else kind_by_name(name),
        copy=hlo is not None and hlo.opcode in _COPIES,
        transfer=overlaps,
        launch=(thunk.called * 1e-9, (thunk.called + thunk.calling) * 1e-9),
    )
