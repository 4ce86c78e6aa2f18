"""Bundles of ``nsys-jax`` (NVIDIA's JAX-Toolbox): a zip archive per process.

The table of NVTX ranges, projected to the GPU, has for each thunk (an HLO op, launched) when the
host launched it and when the device ran it; the dump has the compiled programs, and so what each
op is, whom it communicates with, and where an asynchronous one is waited for.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import TraceError
from traces.hlo import HloModule, kind_by_name
from traces.loaded import Loaded
from traces.nsys_jax_bundle import TRACE, Bundle
from traces.xla_events import Device, Recording, XlaOp
from traces.xla_files import bundle_files
from traces.xla_load import linked
from traces.xla_recording import number_ranks

_THUNK = re.compile(r"TSL:Thunk:#(?:.*,)?hlo_op=([^,#]+)#$", re.DOTALL)
_MODULE = re.compile(
    r"TSL:XlaModule:#(?:.*,)?hlo_module=([^,#]+),program_id=(\d{1,9})#$", re.DOTALL
)
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
"""Stamps (ns) beyond three years are damage."""
_COPIES = ("copy", "copy-start")


@dataclass(frozen=True, slots=True)
class _Range:
    """A row of the table (ns): when the GPU was busy with it, and when the host was."""

    name: str
    start: float
    duration: float
    called: float
    calling: float
    thread: int
    number: int
    parent: int | None


def recognise_file(path: Path) -> bool:
    """Whether a file is a bundle: a zip archive with the table of projected ranges."""
    try:
        with Bundle(path) as bundle:
            return bundle.has(TRACE)
    except TraceError:
        return False


def load(path: Path, step: str) -> Loaded:
    """Read a bundle, or a directory with one per process, and make a workload of one step.

    Raises
    ------
    TraceError
        If a bundle is damaged or lacks what is needed, or has no such step.
    """
    files, skipped = bundle_files(path, recognise_file)
    known: dict[bytes, HloModule] = {}
    recordings = [_read(file, known) for file in files]
    number_ranks(recordings)
    return linked(path, recordings, step, skipped)


def _read(file: Path, known: dict[bytes, HloModule]) -> Recording:
    with Bundle(file) as bundle:
        ranges = _ranges(bundle)
        numbers, accelerator = bundle.devices()
        members = bundle.programs()
        needed = sorted({key[1] for one in ranges if (key := _program(one.name))})
        programs = {n: bundle.module(members[n], known) for n in needed if n in members}
    unused: Counter[str] = Counter()
    devices = _devices(ranges, programs, unused)
    found = Recording(file, devices, 0, accelerator, one_clock=True, unused=dict(unused))
    if len(numbers) == len(devices):
        for device, number in zip(devices, numbers, strict=True):
            device.rank = number
        if len(devices) > 1:
            found.notes.append(
                f"{file.name}: {len(devices)} devices; threads are taken as theirs in order"
            )
    return found


def _ranges(bundle: Bundle) -> list[_Range]:
    table = bundle.table(TRACE, _COLUMNS)
    found = []
    for row in zip(*(table[column] for column in _COLUMNS), strict=True):
        name, *numbers, parent = row
        if not isinstance(name, str) or None in numbers:
            continue
        if not all(isinstance(one, (int, float)) and 0 <= one < _LONGEST for one in numbers):
            where = f"{bundle.file}: {TRACE}: range {name[:60]!r}"
            raise TraceError(f"{where}: {numbers} are not times and numbers: the file is damaged")
        start, duration, called, calling, thread, number = numbers
        own = int(parent) if isinstance(parent, (int, float)) and abs(parent) < _LONGEST else None
        found.append(_Range(name, start, duration, called, calling, int(thread), int(number), own))
    return found


def _program(name: str) -> tuple[str, int] | None:
    """Name and number of the program a range executes; those of the autotuner have no number."""
    found = _MODULE.match(name)
    return (found[1], int(found[2])) if found is not None else None


def _devices(
    ranges: list[_Range], programs: dict[int, HloModule], unused: Counter[str]
) -> list[Device]:
    """Make a device of each thread that launches: JAX has one for each GPU of a process."""
    by_number = {one.number: one for one in ranges}
    thunks: list[tuple[_Range, _Range]] = []
    parents: set[int] = set()
    for one in ranges:
        run = _run_of(one, by_number, parents) if _THUNK.match(one.name) else None
        if run is not None:
            thunks.append((one, run))
        elif _program(one.name) is None:
            unused["ranges that launch no op of a program"] += 1
    devices: dict[int, Device] = {}
    runs: dict[int, int] = {}
    wrapped = {number: {op.wrapped for op in one.ops.values()} for number, one in programs.items()}
    for one, run in sorted(thunks, key=lambda pair: pair[0].called):
        if one.number in parents:
            continue
        device = devices.setdefault(one.thread, Device(len(devices), f"thread {one.thread}", []))
        number = runs.setdefault(run.number, len(runs))
        device.begun.setdefault(number, run.called * 1e-9)
        device.ops.append(_op(one, run, number, programs, wrapped))
    found = [devices[thread] for thread in sorted(devices)]
    for rank, device in enumerate(found):
        device.rank = rank
        device.ops.sort(key=lambda op: (op.start, op.end))
    return found


def _run_of(one: _Range, by_number: dict[int, _Range], parents: set[int]) -> _Range | None:
    """Find the execution of a program that a thunk is part of; marks thunks that contain it."""
    above = one.parent
    for _ in range(len(by_number)):
        outer = by_number.get(above) if above is not None else None
        if outer is None or _program(outer.name):
            return outer
        if _THUNK.match(outer.name):
            parents.add(outer.number)
        above = outer.parent
    return None


def _op(
    one: _Range,
    run: _Range,
    number: int,
    programs: dict[int, HloModule],
    wrapped: dict[int, set[str]],
) -> XlaOp:
    match, program = _THUNK.match(one.name), _program(run.name)
    name = match[1] if match is not None else one.name
    title, key = program or ("", -1)
    module = programs.get(key)
    hlo = module.ops.get(name) if module is not None else None
    beside = hlo is not None and (hlo.phase == "start" or name in wrapped[key])
    start = one.start * 1e-9
    return XlaOp(
        name=name,
        lane="communication" if beside else "compute",
        start=start,
        end=start + one.duration * 1e-9,
        run=number,
        program=title,
        hlo=hlo,
        module=module,
        kind=hlo.kind if hlo is not None else kind_by_name(name),
        copy=hlo is not None and hlo.opcode in _COPIES,
        transfer=beside,
        launch=(one.called * 1e-9, (one.called + one.calling) * 1e-9),
    )
