"""The reader of Nsight Systems exports (``nsys export --type sqlite``), packed or not.

One file may hold several GPUs and processes, a directory several files: each process on a GPU is a
rank (:mod:`traces.core.gpu_exports`). After that all is shared with the PyTorch profiler's files:
windows, launches, streams, waits and matching (:func:`traces.profiler.link.link_job`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from traces.core.events import Job, RankTrace
from traces.core.files import is_sqlite
from traces.core.gpu_exports.database import opened
from traces.core.gpu_exports.job import ExportReader, read_exported_job
from traces.core.gpu_exports.processes import ExportFile
from traces.nsys.nccl import nccl_calls
from traces.nsys.tables import GRAPH_ROWS, read_export


def read_exports(path: Path) -> Job:
    """Read the ranks of an export, or of the exports in a directory, not of sub-directories.

    Raises
    ------
    TraceError
        If a file is damaged, is not an export, or lacks what is needed.
    """
    return read_exported_job(path, _READER)


def _file(path: Path) -> ExportFile:
    with opened(path) as database:
        export = read_export(database)
        return ExportFile(path, export, nccl_calls(database, export))


def _lacking(files: Sequence[ExportFile], traces: Sequence[RankTrace]) -> Iterator[str]:
    """Say what these exports lack, and how to record it."""
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
            "--include-blobs=true, which keeps NCCL's records of its calls"
        )


_READER = ExportReader("Nsight Systems export (.sqlite)", is_sqlite, _file, _lacking)
