"""Processes that simulate the scenarios of one question, or predict what is given to them.

Scenarios are pickled once, all together, and their columns not at all: these lie in one file that
every process maps, so a column that several scenarios share is in memory once. A column can be
written in a worker where it can in the parent, and what is written stays there: to Numba a
read-only array is of another type, for which every worker would compile the hot loops anew.
"""

import mmap
import multiprocessing
import pickle
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from experiments.baseline import Watch
from simulator.engine.simulate import Progress
from simulator.errors import WhatIfError

Answer = TypeVar("Answer")
Case = TypeVar("Case")
_ALIGNED = 64
"""Columns begin at multiples of this many bytes, a cache line."""


def asked(
    scenarios: Sequence[Case],
    ask: Callable[[Case], Answer],
    workers: int,
    watch: Watch,
    named: str = "scenarios",
) -> list[Answer]:
    """Ask every scenario the same, ``workers`` at a time; answers in order.

    A scenario is anything that can be pickled; ``named`` is what progress calls them.

    Raises
    ------
    WhatIfError
        If a worker was killed.
    TwofoldError
        What the first scenario that fails raises.
    """
    with tempfile.TemporaryDirectory(prefix="twofold-") as folder:
        columns = Path(folder) / "columns"
        graph, places = _written(scenarios, columns)
        progress = watch(f"{len(scenarios)} {named} in {workers} processes")
        before = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(
            min(workers, len(scenarios)),
            process_context(),
            initializer=_attach,
            initargs=(graph, columns, places),
        )
        try:
            futures = [pool.submit(_answer, ask, index) for index in range(len(scenarios))]
            return _collected(futures, progress)
        except BrokenProcessPool:
            raise WhatIfError(
                "a worker was killed, perhaps for want of memory; try fewer workers"
            ) from None
        except KeyboardInterrupt:
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def process_context() -> BaseContext:
    """Return how processes are started: copies of a clean one, which imports once for all."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "simulator.engine.fluid"])
    return context


def _collected(futures: "list[Future[Answer]]", progress: Progress | None) -> list[Answer]:
    answers = []
    for future in futures:
        answers.append(future.result())
        if progress is not None:
            progress(len(answers), len(futures))
    return answers


class _Column(NamedTuple):
    """Where in the file a column is (bytes), and whether it is read-only."""

    begin: int
    end: int
    read_only: bool


def _written(scenarios: Sequence[object], path: Path) -> tuple[bytes, list[_Column]]:
    """Pickle scenarios without their columns, and put these into a file; return where each is."""
    columns: list[pickle.PickleBuffer] = []
    graph = pickle.dumps(scenarios, protocol=5, buffer_callback=columns.append)
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


def _attach(graph: bytes, path: Path, places: list[_Column]) -> None:
    """Begin a worker: map the columns, copied when written; an interrupt is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with path.open("rb") as file:
        columns = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    buffers = [
        columns[begin:end].toreadonly() if read_only else columns[begin:end]
        for begin, end, read_only in places
    ]
    _mapped["scenarios"] = pickle.loads(graph, buffers=buffers)


def _answer(ask: Callable[[Case], Answer], index: int) -> Answer:
    return ask(_mapped["scenarios"][index])
