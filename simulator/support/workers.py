"""The processes of one machine that share one task: scenarios, chunks of a study, files of a job.

What they share is pickled once, and its columns not at all: these lie in one file that every
process maps, so a column that several scenarios share is in memory once. A column can be
written in a worker where it can in the parent, and what is written stays there: to Numba a
read-only array is of another type, for which every worker would compile the hot loops anew.
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
"""Called with what is about to be asked; returns what is called with how many of how many are done,
or None."""
Answer = TypeVar("Answer")
Case = TypeVar("Case")
_CLOCK = ("simulator.engine.flow",)
"""What simulating needs."""
_PIPED = 2048
"""Bytes of an answer that go through the pipe between processes, which takes up to 4,096 at once
(``PIPE_BUF``). Of a longer one a worker that is ended may leave the beginning there, for whose rest
would be waited for ever; so it lies in a file.
"""
_ALIGNED = 64
"""Columns begin at multiples of this many bytes, a cache line."""


@contextmanager
def worker_pool(
    shared: object, workers: int, imports: Sequence[str] = _CLOCK
) -> "Iterator[Callable[..., Future[Any]]]":
    """Start processes that all have a copy of ``shared``, and end them with the context.

    What is yielded submits a function and its arguments; a process calls it with its copy of
    ``shared`` before them. The processes start with the first submission; modules that they need,
    ``imports``, are imported once for all of them if they are the first of this process.

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
    """Ask every case the same, ``workers`` at a time; answers in order.

    A case is anything that can be pickled; ``named`` is what progress calls them, and ``imports``
    are modules that answering needs.

    Raises
    ------
    WhatIfError
        If a worker was killed.
    TwofoldError
        What the first case that fails raises.
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
    """Answer a case: pickled, in a file where it is long."""
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
    """Return how processes are started: copies of a clean one, which imports once for all."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *imports])
    return context


class _Column(NamedTuple):
    """Where in the file a column is (bytes), and whether it is read-only."""

    begin: int
    end: int
    read_only: bool


def _written(shared: object, path: Path) -> tuple[bytes, list[_Column]]:
    """Pickle a value without its columns, and put these into a file; return where each is."""
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
"""What a worker process was given when it began; nothing in any other process."""


def _begin(
    graph: bytes, path: Path, places: list[_Column], parent: Connection, memory: Budget
) -> None:
    """Begin a worker; an interrupt is the parent's to handle, and no worker outlives its parent."""
    keep_to(memory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _attach(graph, path, places)


def _end_with(parent: Connection) -> None:
    """End this process when the one that it works for is gone, killed perhaps.

    The server that forked it lives as long as it does, so it is not a sign of the parent's end.
    """
    try:
        parent.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _attach(graph: bytes, path: Path, places: list[_Column]) -> None:
    """Read the shared value with its columns mapped: copied when written."""
    with path.open("rb") as file:
        columns = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers = [
        columns[begin:end].toreadonly() if read_only else columns[begin:end]
        for begin, end, read_only in places
    ]
    _mapped.update(shared=pickle.loads(graph, buffers=buffers), folder=path.parent)


def _call(function: Callable[..., Answer], *arguments: object) -> Answer:
    return function(_mapped["shared"], *arguments)
