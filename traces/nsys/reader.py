"""The reader of Nsight Systems exports (``nsys export --type sqlite``), gzip or not.

One file may hold several GPUs and processes, a directory several files: each process on a GPU is a
rank. After that all is shared with the PyTorch profiler's files: windows, launches, streams, waits
and matching (:func:`traces.profiler.link.link_job`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.errors import TraceError
from traces.core.events import Job, RankTrace, Skipped
from traces.core.files import beginning
from traces.core.sniff import SQLITE, is_sqlite
from traces.nsys.communicators import common_part, with_groups
from traces.nsys.database import opened
from traces.nsys.nccl import nccl_calls
from traces.nsys.processes import ExportFile
from traces.nsys.ranks import rank_traces
from traces.nsys.steps import add_steps
from traces.nsys.tables import GRAPH_ROWS, read_export


def read_exports(path: Path) -> Job:
    """Read the ranks of an export, or of the exports in a directory, not of sub-directories.

    Raises
    ------
    TraceError
        If a file is damaged, is no export, or lacks what is needed.
    """
    files, skipped = _files(path)
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
    notes += [*grouped, *stepped, *cropped, *_lacking(files, traces)]
    return Job(tuple(traces), world, source, skipped, tuple(notes))


def _files(path: Path) -> tuple[list[ExportFile], tuple[Skipped, ...]]:
    if not path.is_dir():
        return [_file(path)], ()
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    files, skipped = [], []
    for file in inside:
        if not file.is_file():
            skipped.append(Skipped(file, "not a file; sub-directories are not searched"))
        elif _is_export(file):
            files.append(_file(file))
        else:
            skipped.append(Skipped(file, "not a SQLite database"))
    if not files:
        raise TraceError(f"{path}: no Nsight Systems export (.sqlite) in this directory")
    return files, tuple(skipped)


def _is_export(path: Path) -> bool:
    return is_sqlite(beginning(path, len(SQLITE)))


def _file(path: Path) -> ExportFile:
    with opened(path) as database:
        export = read_export(database)
        return ExportFile(path, export, nccl_calls(database, export))


def _lacking(files: Sequence[ExportFile], traces: Sequence[RankTrace]) -> Iterator[str]:
    """Say what these exports do not tell, and how to record it."""
    for file in files:
        if not len(file.export.runtime):
            yield (
                f"{file.path.name}: launches were not recorded: kernels keep their order and "
                "gaps, and the host is unknown; record with --trace=cuda"
            )
        graphs = file.export.unused.get(GRAPH_ROWS, 0)
        if graphs:
            yield (
                f"{file.path.name}: {graphs} {GRAPH_ROWS}, collectives in them unseen; "
                "record with --cuda-graph-trace=node"
            )
    sized = any(record.dtype for trace in traces for record in trace.comms)
    if any(trace.backend for trace in traces) and not sized:
        yield (
            "no message sizes: record with --trace=cuda,nvtx and export with "
            "--include-blobs=true, which keeps what NCCL says of its calls"
        )
