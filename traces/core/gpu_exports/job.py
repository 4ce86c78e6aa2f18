"""The job that exports of a tool hold, one or a directory: each process on a GPU is a rank."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.support.errors import TraceError
from simulator.support.input_files import head_of
from traces.core.events import Job, RankTrace, Skipped
from traces.core.gpu_exports.communicators import common_part, with_groups
from traces.core.gpu_exports.processes import ExportFile
from traces.core.gpu_exports.ranks import rank_traces
from traces.core.gpu_exports.steps import add_steps


@dataclass(frozen=True, slots=True)
class ExportReader:
    """How files of a tool are read.

    ``begins`` recognises the first bytes of one, ``read`` reads it, ``lacking`` says what files
    lack and how to record it, ``name`` is what errors call one.
    """

    name: str
    begins: Callable[[bytes], bool]
    read: Callable[[Path], ExportFile]
    lacking: Callable[[Sequence[ExportFile], Sequence[RankTrace]], Iterable[str]]


def read_exported_job(path: Path, reader: ExportReader) -> Job:
    """Read the ranks of an export, or of the exports in a directory, not of sub-directories."""
    files, skipped = _files(path, reader)
    traces, units, notes = rank_traces(files)
    traces, grouped = with_groups(traces)
    traces, stepped = add_steps(traces, units)
    cropped: list[str] = []
    if not traces[0].steps:
        traces, cropped = common_part(traces)
    world = max(trace.world_size or 0 for trace in traces)
    source = "the processes with a GPU"
    if world > len(traces):
        notes.append(f"{len(traces)} of {world} ranks were recorded")
        source = "the largest communicator or rank"
    notes += [*grouped, *stepped, *cropped, *reader.lacking(files, traces)]
    return Job(tuple(traces), world, source, skipped, tuple(notes))


def _files(path: Path, reader: ExportReader) -> tuple[list[ExportFile], tuple[Skipped, ...]]:
    if not path.is_dir():
        return [reader.read(path)], ()
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    files, skipped = [], []
    for file in inside:
        if not file.is_file():
            skipped.append(Skipped(file, "not a file; sub-directories are not searched"))
        elif reader.begins(_head(file)):
            files.append(reader.read(file))
        else:
            skipped.append(Skipped(file, f"no {reader.name}"))
    if not files:
        raise TraceError(f"{path}: no {reader.name} in this directory")
    return files, tuple(skipped)


def _head(file: Path) -> bytes:
    """Return the first bytes; none where they are damaged, which is no reason to read nothing."""
    try:
        return head_of(file)
    except TraceError:
        return b""
