"""Where chunks of points are answered: here, in several processes, or by a cluster of machines.

An executor takes chunks as they are needed and yields ``(number, answers)`` as they are done, in
any order; what workloads hold is shipped once per worker. That of clusters is
:mod:`experiments.studies.dask_cluster`.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice

from experiments.studies.answers import Answerer
from experiments.studies.placed import AHEAD, Answer, Base, Chunk, Done, Note, Run
from simulator.support.errors import StudyError, pip_install
from simulator.support.workers import worker_pool

Executor = Callable[[Sequence[Base]], AbstractContextManager[Run]]
"""Given workloads, what answers chunks until the context ends."""


def executor_of(workers: int, dask: str | None, note: Note) -> Executor:
    """Return what answers chunks: this process, so many of this machine, or a Dask cluster.

    Raises
    ------
    StudyError
        If both workers and a cluster are given, or no worker; or Dask is not there.
    """
    if workers < 1:
        raise StudyError(f"{workers} workers: at least 1 is needed")
    if dask is None:
        return here if workers == 1 else partial(processes, workers=workers)
    if workers > 1:
        raise StudyError("--workers are processes of this machine: leave out --workers with --dask")
    try:
        from experiments.studies.dask_cluster import dask_cluster, local_workers
    except ImportError as error:
        raise StudyError(f"--dask needs Dask: {pip_install('dask[distributed]')}") from error
    local_workers(dask)
    return partial(dask_cluster, address=dask, note=note)


@contextmanager
def here(bases: Sequence[Base]) -> Iterator[Run]:
    """Answer chunks in this process, one after the other."""
    answerer = Answerer(bases)
    yield lambda chunks: ((chunk.number, answerer.answers(chunk)) for chunk in chunks)


@contextmanager
def processes(bases: Sequence[Base], workers: int) -> Iterator[Run]:
    """Answer chunks in processes of this machine; they start when the first chunk comes.

    Raises
    ------
    StudyError
        If a worker was killed.
    """
    try:
        with worker_pool(Answerer(bases), workers) as submit:
            yield lambda chunks: _streamed(submit, iter(chunks), workers * AHEAD)
    except BrokenProcessPool as error:
        raise StudyError(
            "a worker was killed, perhaps for lack of memory; finished points are kept: run the "
            "same command again with fewer workers"
        ) from error


def _streamed(
    submit: "Callable[..., Future[list[Answer]]]", chunks: Iterator[Chunk], ahead: int
) -> Iterator[Done]:
    """Keep so many chunks handed out, and yield what is done."""
    number_of: dict[Future[list[Answer]], int] = {}
    for chunk in islice(chunks, ahead):
        number_of[submit(Answerer.answers, chunk)] = chunk.number
    while number_of:
        done, _ = wait(number_of, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=number_of.__getitem__):
            yield number_of.pop(future), future.result()
            for chunk in islice(chunks, 1):
                number_of[submit(Answerer.answers, chunk)] = chunk.number
