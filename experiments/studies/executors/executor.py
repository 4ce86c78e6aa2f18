"""Where chunks of points are answered: here, in several processes, or by a cluster of machines.

An executor takes chunks as they are needed and yields ``(number, answers)`` as they are done, in
any order; what workloads hold is shipped once per worker. That of clusters is
:mod:`experiments.studies.executors.dask_cluster`.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from experiments.evaluate.workers import process_context
from experiments.studies.points.answers import Answer, Answerer, Chunk
from experiments.studies.points.placed import Base
from simulator.errors import StudyError

Done = tuple[int, list[Answer]]
Run = Callable[[Iterable[Chunk]], Iterator[Done]]
"""Answers chunks; yields each one's number and answers when it is done."""
Executor = Callable[[Sequence[Base]], AbstractContextManager[Run]]
"""Given workloads, what answers chunks until the context ends."""
_AHEAD = 2
"""Chunks per worker that are handed out before answers are awaited, so that none is idle."""


def executor_of(workers: int, dask: str | None, note: Callable[[str], None]) -> Executor:
    """Return what answers chunks: this process, so many of this machine, or a Dask cluster.

    Raises
    ------
    StudyError
        If both workers and a cluster are given, or no worker.
    """
    if workers < 1:
        raise StudyError(f"{workers} workers cannot compute anything; 1 or more can")
    if dask is None:
        return here if workers == 1 else partial(processes, workers=workers)
    if workers > 1:
        raise StudyError("--workers are processes of this machine: leave them out beside --dask")
    from experiments.studies.executors.dask_cluster import dask_cluster, local_workers

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
    pool: ProcessPoolExecutor | None = None
    context = process_context()
    here_end, held = context.Pipe(duplex=False)  # nobody writes: it ends when this process does
    before = set(multiprocessing.active_children())

    def run(chunks: Iterable[Chunk]) -> Iterator[Done]:
        nonlocal pool
        left = iter(chunks)
        first = list(islice(left, 1))
        if first and pool is None:
            pool = ProcessPoolExecutor(
                workers,
                context,
                initializer=_begin,
                initargs=(pickle.dumps(list(bases)), here_end),
            )
        if first and pool is not None:
            yield from _streamed(pool, first, left, workers * _AHEAD)

    try:
        yield run
    except BrokenProcessPool as error:
        raise StudyError(
            "a worker was killed, perhaps for want of memory: what was done is kept; run the same "
            "command again, with fewer workers"
        ) from error
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        held.close()
        here_end.close()


def _streamed(
    pool: ProcessPoolExecutor, first: Sequence[Chunk], left: Iterator[Chunk], ahead: int
) -> Iterator[Done]:
    """Keep so many chunks handed out, and yield what is done."""
    out: dict[Future[list[Answer]], int] = {}
    for chunk in (*first, *islice(left, ahead - len(first))):
        out[pool.submit(_answers, chunk)] = chunk.number
    while out:
        done, _ = wait(out, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=out.__getitem__):
            number = out.pop(future)
            yield number, future.result()
            for chunk in islice(left, 1):
                out[pool.submit(_answers, chunk)] = chunk.number


_worker: dict[str, Any] = {}
"""What a worker process was given when it began; nothing in any other process."""


def _begin(bases: bytes, parent: Connection) -> None:
    """Begin a worker; an interrupt is the parent's to handle, and no worker outlives its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    _worker["answerer"] = Answerer(pickle.loads(bases))


def _watch(parent: Connection) -> None:
    """End this process when the one that it works for is gone, killed perhaps.

    The server that forked it lives as long as it does, so it is not the parent's end that tells.
    """
    try:
        parent.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _answers(chunk: Chunk) -> list[Answer]:
    answerer: Answerer = _worker["answerer"]
    return answerer.answers(chunk)
