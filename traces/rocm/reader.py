"""The reader of AMD's profilers: a file's format is recognised by its content.

Kernels, copies and calls are converted to the columns of Nsight Systems' exports, and then to ranks
as those are (:mod:`traces.core.gpu_exports`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.support.errors import TraceError
from simulator.support.input_files import beginning
from traces.core.events import Job, RankTrace
from traces.core.files import SQLITE, is_rocm
from traces.core.gpu_exports.database import opened
from traces.core.gpu_exports.job import ExportReader, read_exported_job
from traces.core.gpu_exports.processes import ExportFile
from traces.rocm.rocpd import read_rocpd, read_rpd
from traces.rocm.rocprofv3 import read_rocprofv3


def read_rocm(path: Path) -> Job:
    """Read the ranks of a recording, or of those in a directory, without sub-directories."""
    return read_exported_job(path, _READER)


def _file(path: Path) -> ExportFile:
    if not beginning(path, len(SQLITE)).startswith(SQLITE):
        return ExportFile(path, read_rocprofv3(path), [])
    with opened(path) as database:
        if database.has("rocpd_op"):
            return ExportFile(path, read_rpd(database), [])
        if any(table.startswith("rocpd_kernel_dispatch") for table in database.tables):
            return ExportFile(path, read_rocpd(database), [])
        raise TraceError(
            f"{path}: neither rocpd_op (RPD) nor rocpd_kernel_dispatch (rocprofv3) is a table of "
            "this database: record again"
        )


def _lacking(files: Sequence[ExportFile], traces: Sequence[RankTrace]) -> Iterator[str]:
    """Describe what these recordings lack, and how to record it."""
    for file in files:
        if not len(file.export.runtime):
            yield (
                f"{file.path.name}: launches were not recorded: kernels keep their order and gaps, "
                "and the host is unknown; record with 'rocprofv3 --runtime-trace'"
            )
    if any(trace.backend for trace in traces):
        yield "sizes and communicators of RCCL's calls are not in these recordings"


_READER = ExportReader("recording of a profiler of ROCm", is_rocm, _file, _lacking)
