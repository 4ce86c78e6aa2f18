"""The format ``kineto``: files of the PyTorch profiler, one per rank."""

from collections.abc import Callable
from pathlib import Path

from simulator.errors import TraceError
from traces.job import has_execution_traces, read_job, with_execution_traces
from traces.link import linked
from traces.loaded import Loaded, Options


def reader(path: Path, options: Options) -> Callable[[str], Loaded]:
    """Read, and link any step of it; errors as :func:`traces.load.load`.

    Execution Traces beside the files are read if these lack something that they may know, or if
    ``options.executions`` asks for it: they take as long to read as all the rest.
    """
    job = read_job(path, sample=options.replicate, executions=options.executions)

    def link(step: str) -> Loaded:
        nonlocal job
        try:
            loaded = linked(path, job, step, options)
        except TraceError:
            if not has_execution_traces(job):
                raise
            loaded = None
        if loaded is None or (_lacks(loaded) and has_execution_traces(job)):
            job = with_execution_traces(job)
            loaded = linked(path, job, step, options)
        return loaded

    return link


def _lacks(loaded: Loaded) -> bool:
    """Whether the files do not tell the size or the group of a collective."""
    coverage = loaded.coverage
    return coverage.bytes_known < 1 or coverage.collectives_matched < coverage.collectives
