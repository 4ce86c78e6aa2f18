"""The processes of one machine that share a task: scenarios, parts of a study, files of a job.

Shared data is pickled once, without its columns, which lie in one file that every process maps: a
column that several scenarios share is in memory once. A column that is writable in the parent is
writable in a worker, as a private copy: Numba treats a read-only array as another type, for which
every worker would compile the hot loops again.
"""

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from simulator.support.errors import Interrupted, WhatIfError
from simulator.support.limits import Budget, budget, keep_to

Watch = Callable[[str], Callable[[int, int], None] | None]
"""Called with the questions about to be asked; returns a callback for the numbers of answered
questions and of all, or None."""
Answer = TypeVar("Answer")
Case = TypeVar("Case")
_CLOCK = ("simulator.engine.flow",)
"""Modules that simulation needs."""
_PIPED = 2048
"""Largest answer that is sent through the pipe between processes, which accepts up to 4,096 bytes
at once (``PIPE_BUF``). A worker that is killed may leave the beginning of a longer one there, and
the reader would wait for the rest for ever; so longer answers are written to a file."""
_ALIGNED = 64
"""Columns begin at multiples of this many bytes, a cache line."""


@contextmanager
def worker_pool(
    shared: object, workers: int, imports: Sequence[str] = _CLOCK
) -> "Iterator[Callable[..., Future[Any]]]":
    """Start processes that all have a copy of ``shared``, and stop them with the context.

    The yielded function submits a function and its arguments; a process calls it with its copy of
    ``shared`` as first argument. Processes start with the first submission; the modules in
    ``imports`` are imported once for all of them, if they are the first processes of this one.

    Raises
    ------
    BrokenProcessPool
        If a worker was killed.
    """
    context = process_context(imports)
    parent, parent_end = context.Pipe(duplex=False)  # nobody writes: it ends when this process does
    before = set(multiprocessing.active_children())
    pool: ProcessPoolExecutor | None = None
    with tempfile.TemporaryDirectory(prefix="twofold-") as folder:

        def submit(function: Callable[..., Any], *arguments: object) -> "Future[Any]":
            nonlocal pool
            if pool is None:
                path = Path(folder) / "columns"
                graph, columns = _written(shared, path)
                begin = graph, path, columns, parent, budget()
                pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=begin)
            return pool.submit(_call, function, *arguments)

        try:
            yield submit
        except BaseException:
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)
            parent_end.close()
            parent.close()


def ask_all(
    cases: Sequence[Case],
    ask: Callable[[Case], Answer],
    workers: int,
    watch: Watch,
    named: str = "scenarios",
    imports: Sequence[str] = _CLOCK,
) -> list[Answer]:
    """Answer the same question for every case, ``workers`` at a time; answers are in order.

    A case is anything that can be pickled; ``named`` is its name in progress reports, and
    ``imports`` are modules that answering needs.

    Raises
    ------
    WhatIfError
        If a worker was killed.
    TwofoldError
        The error of the first case that fails.
    """
    progress = watch(f"{len(cases)} {named} in {workers} processes")
    try:
        with worker_pool(cases, min(workers, len(cases)), imports) as submit:
            futures = [submit(_ask, ask, index) for index in range(len(cases))]
            answers = []
            try:
                for future in futures:
                    answers.append(_unpacked(future.result()))
                    if progress is not None:
                        progress(len(answers), len(futures))
            except KeyboardInterrupt:
                raise Interrupted(answers) from None
            return answers
    except BrokenProcessPool:
        raise WhatIfError(
            "a worker was killed, perhaps for lack of memory; try fewer workers"
        ) from None


def _ask(cases: Sequence[Case], ask: Callable[[Case], object], index: int) -> bytes | Path:
    """Answer a case: pickled, in a file if it is long."""
    answer = pickle.dumps(ask(cases[index]), protocol=5)
    if len(answer) <= _PIPED:
        return answer
    path: Path = _mapped["folder"] / f"answer {index}"
    path.write_bytes(answer)
    return path


def _unpacked(answer: bytes | Path) -> Any:
    if isinstance(answer, bytes):
        return pickle.loads(answer)
    with answer.open("rb") as file:
        unpacked = pickle.load(file)
    answer.unlink()
    return unpacked


def process_context(imports: Sequence[str] = _CLOCK) -> BaseContext:
    """Return the way to start processes: forks of a clean server that has imported ``imports``."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *imports])
    return context


class _Column(NamedTuple):
    """Position of a column in the file (B), and whether it is read-only."""

    begin: int
    end: int
    read_only: bool


def _written(shared: object, path: Path) -> tuple[bytes, list[_Column]]:
    """Pickle a value without its columns and write those to a file; return their positions."""
    columns: list[pickle.PickleBuffer] = []
    graph = pickle.dumps(shared, protocol=5, buffer_callback=columns.append)
    places = []
    with path.open("wb") as file:
        for column in columns:
            begin, raw = file.tell(), column.raw()
            places.append(_Column(begin, begin + raw.nbytes, raw.readonly))
            file.write(raw)
            file.write(bytes(-raw.nbytes % _ALIGNED))
        file.write(bytes(_ALIGNED))
    return graph, places


_mapped: dict[str, Any] = {}
"""The shared value of a worker process; nothing in any other process."""


def _begin(
    graph: bytes, path: Path, places: list[_Column], parent: Connection, memory: Budget
) -> None:
    """Initialise a worker; an interrupt is left to the parent, and no worker outlives it."""
    keep_to(memory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _attach(graph, path, places)


def _end_with(parent: Connection) -> None:
    """End this process when the process it works for has ended, even if that was killed.

    The server that forked it lives as long as it does, so the server's end is no sign of it.
    """
    try:
        parent.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _attach(graph: bytes, path: Path, places: list[_Column]) -> None:
    """Read the shared value with its columns mapped, copied on write."""
    with path.open("rb") as file:
        columns = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers = [
        columns[begin:end].toreadonly() if read_only else columns[begin:end]
        for begin, end, read_only in places
    ]
    _mapped.update(shared=pickle.loads(graph, buffers=buffers), folder=path.parent)


def _call(function: Callable[..., Answer], *arguments: object) -> Answer:
    return function(_mapped["shared"], *arguments)
