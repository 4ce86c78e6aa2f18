"""The job in a tool's exports, one file or a directory: each process on a GPU is a rank.

Steps are ranges that repeat and contain the GPU's work: ``ProfilerStep#3``, ``step 3``,
``iteration_3`` are steps by name. Any other range is a step if it repeats on a thread without
overlap and nearly all kernels were launched inside one; of several such ranges the longest, which
is the outermost.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import structs

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from traces.core.events import HostKind, Job, ProfilerStep, RankTrace, Skipped, checked
from traces.core.files import files_in, note_copies
from traces.core.gpu_exports.communicators import common_part, with_groups
from traces.core.gpu_exports.database import beginning_of
from traces.core.gpu_exports.export import Export, Ranges
from traces.core.gpu_exports.processes import ExportFile, GpuProcess
from traces.core.gpu_exports.ranks import rank_traces


@dataclass(frozen=True, slots=True)
class ExportReader:
    """How files of a tool are read.

    ``begins`` recognises the first bytes of a file, ``read`` reads it, ``lacking`` says what files
    lack and how to record it, ``name`` is their name in errors. ``fills`` recognises a directory
    that is read as one export.
    """

    name: str
    begins: Callable[[bytes], bool]
    read: Callable[[Path], ExportFile]
    lacking: Callable[[Sequence[ExportFile], Sequence[RankTrace]], Iterable[str]]
    fills: Callable[[Path], bool] = lambda _: False


def read_exported_job(path: Path, reader: ExportReader) -> Job:
    """Read the ranks of an export, or of the exports in a directory, not of sub-directories."""
    files, skipped = _files(path, reader)
    traces, units, notes = rank_traces(files)
    traces, grouped = with_groups(traces)
    traces, stepped = add_steps(traces, units)
    traces = [checked(trace) for trace in traces]
    cropped: list[str] = []
    if not traces[0].steps:
        traces, cropped = common_part(traces)
    world = max(trace.world_size or 0 for trace in traces)
    source = "the processes with a GPU"
    if world > len(traces):
        notes.append(f"{len(traces)} of {world} ranks were recorded")
        source = "the largest communicator or rank"
    notes += [*note_copies(traces), *grouped, *stepped, *cropped, *reader.lacking(files, traces)]
    return Job(tuple(traces), world, source, skipped, tuple(notes))


def _files(path: Path, reader: ExportReader) -> tuple[list[ExportFile], tuple[Skipped, ...]]:
    if not path.is_dir() or reader.fills(path):
        return [reader.read(path)], ()
    files, skipped = [], []
    for file in files_in(path):
        if file.is_dir() and reader.fills(file):
            files.append(reader.read(file))
        elif not file.is_file():
            skipped.append(Skipped(file, "not a file; sub-directories are not searched"))
        elif reader.begins(beginning_of(file)):
            files.append(reader.read(file))
        else:
            skipped.append(Skipped(file, f"no {reader.name}"))
    if not files:
        raise TraceError(f"{path}: no {reader.name} in this directory")
    return files, tuple(skipped)


_STEP = re.compile(r"(?:profiler|train(?:ing)?|global)?[ _.]?(?:step|iter(?:ation)?|batch)")
_NUMBER = re.compile(r"(\d{1,9})(?:/\d+)?\D{0,2}$")
_SUFFIX = re.compile(r"[\s_#=:.]*\d+(?:/\d+)?\D{0,2}$")
"""The number of a range with its separator: ``step_3``, ``Step 3/100``, ``(step=3)``."""
_HELD = 0.8
"""Least share of a rank's launches inside a range that is not a step by name."""
_HELD_BY_NAME = 0.2
"""The same for a step by name: a recording of few steps has much before and after them."""
_SAME = 0.01
"""If the shares of two ranges differ by less, the longer is the outer one."""
_NONE = (
    "no range repeats around each step: the whole recording is used; mark steps with "
    "torch.cuda.nvtx.range_push(f'step {i}')"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Series:
    """Ranges of one name, apart from its number, on one thread: times (ns) and numbers."""

    name: str
    start: Longs
    end: Longs
    numbers: tuple[int, ...]
    held: float


def add_steps(
    traces: Sequence[RankTrace], units: Sequence[GpuProcess]
) -> tuple[list[RankTrace], list[str]]:
    """Add the steps that all ranks have; none, with a note, if they are not recorded."""
    series = [_series(trace, unit) for trace, unit in zip(traces, units, strict=True)]
    common = set.intersection(*({ranges.name for ranges in of_rank} for of_rank in series))
    chosen = [_best([ranges for ranges in of_rank if ranges.name in common]) for of_rank in series]
    agreed = [
        ranges
        for ranges in chosen
        if ranges is not None and ranges.name == (chosen[0] or ranges).name
    ]
    if len(agreed) < len(traces):
        return list(traces), [_NONE]
    rows = zip(traces, units, agreed, strict=True)
    steps = _aligned(traces, [_steps(trace, unit, ranges) for trace, unit, ranges in rows])
    numbers = set.intersection(*({step.number for step in rank_steps} for rank_steps in steps))
    if not numbers:
        return list(traces), [
            "the ranks' ranges have no step in common: the whole recording is used"
        ]
    left = sum(len(rank_steps) for rank_steps in steps) - len(numbers) * len(steps)
    note = f"a step is a range {agreed[0].name!r}: {len(numbers)} of them"
    note += f"; {left} that not every rank recorded are left out" if left else ""
    return [
        structs.replace(trace, steps=tuple(step for step in rank_steps if step.number in numbers))
        for trace, rank_steps in zip(traces, steps, strict=True)
    ], [note]


def _series(trace: RankTrace, unit: GpuProcess) -> list[_Series]:
    """Collect a rank's ranges that repeat, or are steps by name, and contain its launches."""
    export = unit.file.export
    ranges = export.ranges.only(
        ~export.ranges.operator & (export.ranges.thread >> 24 == unit.process)
    )
    # When the rank's device events were launched (ns of the file's clock), sorted.
    host = trace.host
    runtime = (host.kind == HostKind.RUNTIME) & np.isin(host.correlation, trace.device.correlation)
    runtime &= host.correlation >= 0
    zero = trace.epoch - unit.file.export.utc
    launches = np.sort(np.round(host.start[runtime] * 1e9).astype(np.int64) + zero)
    # Names of ranges without their numbers, in lower case
    plain = [_SUFFIX.sub("", name).strip("( ").lower() or name for name in export.names]
    keys: dict[tuple[str, int, bool], list[int]] = {}
    columns = (ranges.name.tolist(), ranges.thread.tolist(), ranges.nested.tolist())
    for row, (name, thread, nested) in enumerate(zip(*columns, strict=True)):
        if "nccl" not in plain[name] and "::" not in plain[name]:
            keys.setdefault((plain[name], thread, nested), []).append(row)
    candidates = [
        _one_series(export, ranges, name, np.array(rows), launches)
        for (name, _, _), rows in keys.items()
    ]
    return [ranges for ranges in candidates if ranges is not None]


def _one_series(
    export: Export, ranges: Ranges, name: str, rows: Longs, launches: Longs
) -> _Series | None:
    rows = rows[np.argsort(ranges.start[rows], kind="stable")]
    start, end = ranges.start[rows], ranges.end[rows]
    by_name = _STEP.fullmatch(name) is not None
    if (len(rows) < 2 and not by_name) or (start[1:] < end[:-1]).any() or not len(launches):
        return None
    held_share = float(
        (np.searchsorted(launches, end) - np.searchsorted(launches, start)).sum() / len(launches)
    )
    if held_share < (_HELD_BY_NAME if by_name else _HELD):
        return None
    matches = [_NUMBER.search(export.names[number]) for number in ranges.name[rows].tolist()]
    numbers = tuple(int(match[1]) for match in matches if match)
    all_numbered = len(numbers) == len(set(numbers)) == len(rows)
    return _Series(name, start, end, numbers if all_numbered else (), held_share)


def _best(series: Sequence[_Series]) -> _Series | None:
    """Prefer steps by name, then those with most launches, then the longest."""
    return max(
        series,
        key=lambda ranges: (
            _STEP.fullmatch(ranges.name) is not None,
            round(ranges.held / _SAME),
            float(np.mean(ranges.end - ranges.start)),
            ranges.name,
        ),
        default=None,
    )


def _steps(trace: RankTrace, unit: GpuProcess, series: _Series) -> list[ProfilerStep]:
    zero = trace.epoch - unit.file.export.utc
    numbers = series.numbers or range(len(series.start))
    return [
        ProfilerStep(number, (start - zero) / 1e9, (end - zero) / 1e9)
        for number, start, end in zip(
            numbers, series.start.tolist(), series.end.tolist(), strict=True
        )
    ]


def _aligned(
    traces: Sequence[RankTrace], steps: Sequence[list[ProfilerStep]]
) -> list[list[ProfilerStep]]:
    """Renumber steps that ranks count differently, by the first rank's at the same time."""
    if len({tuple(step.number for step in rank_steps) for rank_steps in steps}) == 1:
        return list(steps)
    lead = np.array([traces[0].epoch / 1e9 + step.start for step in steps[0]])
    aligned = []
    for trace, rank_steps in zip(traces, steps, strict=True):
        nearest = [
            int(np.abs(lead - (trace.epoch / 1e9 + step.start)).argmin()) for step in rank_steps
        ]
        fits = len(set(nearest)) == len(rank_steps)
        numbers = [steps[0][index].number for index in nearest]
        aligned.append(
            [
                structs.replace(step, number=number)
                for step, number in zip(rank_steps, numbers, strict=True)
            ]
            if fits
            else rank_steps
        )
    return aligned
