"""Chunks of points answered by the workers of a Dask cluster: of other machines, or of this one.

The number of chunks in flight is bounded, so a scheduler never gets a whole study at once, and
answers are received one by one. A killed worker costs its present chunks: the scheduler gives them
to another. When the connection to the scheduler is lost, another client replaces it and submits the
chunks in flight again. Neither changes an answer, so neither changes a study's results.

Inputs are scattered to all workers. A plugin on each of them, and on later ones, compares its code
with the client's, and limits it to one chunk at a time.
"""

import logging
import os
import threading
from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from platform import python_version_tuple
from typing import Any
from uuid import uuid4

import distributed
from distributed.client import ClosedClientError
from distributed.utils import silence_logging_cmgr

from experiments.provenance import version
from experiments.studies.answers import Answerer
from experiments.studies.placed import (
    AHEAD,
    Answer,
    Base,
    Chunk,
    Done,
    Note,
    Run,
    digest,
    whole_identity,
)
from simulator.support.errors import StudyError, shown
from simulator.support.quantities import count_of

LOCAL = "local"
"""Prefix of an address for workers of this machine: ``local:2``."""
_PROTOCOLS = ("tcp", "tls", "ws", "wss")
"""Prefixes of a scheduler's address that need nothing but Dask."""
_PER_CORE = 8
"""Most local workers per core: each is a process with the inputs, and more would only wait."""
_LOGGERS = ("distributed", "tornado")
_CONNECT = 10.0
"""Timeout of connecting to a scheduler (s)."""
_GRACE = 2.0
"""Additional time for an established connection to report itself (s)."""
_RECONNECT = 60.0
"""Time after which a lost connection is given up (s)."""
_FETCH = 5.0
"""Timeout of fetching a finished answer (s): if it passes, the worker was killed."""
_LOST = (CancelledError, FutureCancelledError, OSError, TimeoutError, ClosedClientError)
"""Exceptions of a lost connection, and of the tasks submitted by it."""


def local_workers(address: str) -> int | None:
    """Return the number of workers of this machine in an address; None if it is a scheduler's.

    Raises StudyError if it is not an address, or stands for far more workers than this machine has
    cores.

    Examples
    --------
    >>> local_workers("local:2"), local_workers("tcp://10.0.0.1:8786")
    (2, None)
    """
    protocol, sign, rest = address.partition(":")
    if sign and protocol == LOCAL and (workers := count_of(rest)):
        most = _PER_CORE * (os.cpu_count() or 1)
        if workers > most:
            raise StudyError(f"--dask {shown(address)}: this machine runs at most {most} workers")
        return workers
    if protocol not in _PROTOCOLS or not rest.startswith("//") or len(rest) < 3:
        raise StudyError(f"--dask {shown(address)}: give tcp://HOST:PORT of a scheduler or local:2")
    return None


@contextmanager
def dask_cluster(bases: Sequence[Base], address: str, note: Note) -> Iterator[Run]:
    """Answer chunks by the workers of a Dask cluster.

    ``bases`` are shipped once to each worker. The address ``local:N`` stands for N processes of
    this machine, which end with the study. ``note`` is called with sentences about the cluster: its
    dashboard, or that it has no worker yet. Raises StudyError if no scheduler answers.
    """
    workers = local_workers(address)
    with ExitStack() as stack:
        for logger in _LOGGERS:  # errors are reported here
            stack.enter_context(silence_logging_cmgr(logging.CRITICAL + 1, logger))
        if workers is not None:
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )
            address = stack.enter_context(cluster).scheduler_address
        connection = _Connection(address, Answerer(bases), note)
        stack.callback(connection.close)
        connection.open(_CONNECT)
        connection.describe()
        yield connection.answered


class _ConnectionLostError(Exception):
    """The tasks of a client are lost with its connection."""


@contextmanager
def _detecting_lost_connection() -> Iterator[None]:
    """Distinguish exceptions of a lost connection from errors of the program."""
    try:
        yield
    except _LOST as error:
        raise _ConnectionLostError from error


class _Connection:
    """A client of a scheduler, replaced by another one when its connection is lost.

    Dask itself would reconnect under the old name, which may be forgotten with the old client.
    """

    def __init__(self, address: str, answerer: Answerer, note: Note) -> None:
        self._address, self._answerer, self._note = address, answerer, note
        self._plugin = SameCode()
        self._client: Any = None
        self._inputs: Any = None
        self._stream: Any = None

    def open(self, patience: float) -> None:
        """Connect, and ship the inputs once there is a worker."""
        self.close()
        try:
            self._client = _client(self._address, patience)
            self._stream = self._client.scheduler_comm
            with suppress(ImportError):  # without twofold on a worker its first chunk fails, too
                self._client.register_plugin(self._plugin)
            if not self._client.nthreads():
                self._note("no worker is there that can answer: waiting for one (Ctrl-C leaves)")
                self._client.wait_for_workers(1)
            self._inputs = self._client.scatter(self._answerer, broadcast=True, hash=False)
        except TypeError as error:  # tls:// without certificates
            raise StudyError(f"--dask {self._address}: {str(error).split(' (')[0]}") from error
        except (*_LOST, ValueError) as error:
            raise StudyError(
                f"--dask {self._address}: no scheduler answered within {patience:g} s; finished "
                "points are kept"
            ) from error

    def describe(self) -> None:
        """Report the dashboard's address, and threads of workers that stay idle."""
        with suppress(KeyError):  # none on a scheduler without Bokeh
            self._note(f"dashboard: {self._client.dashboard_link}")
        if (threads := max(self._client.nthreads().values(), default=1)) > 1:
            self._note(
                f"workers have {threads} threads, of which one computes: start them with "
                "--nthreads 1, and more of them"
            )

    def close(self) -> None:
        """Leave the cluster; chunks in flight there are dropped."""
        if self._client is not None:
            with suppress(*_LOST):
                self._client.close(timeout=2)

    def answered(self, chunks: Iterable[Chunk]) -> Iterator[Done]:
        """Yield chunks' answers as they arrive, in any order."""
        left, out = iter(chunks), dict[str, Chunk]()
        while True:
            completed = distributed.as_completed(loop=self._client.loop)
            try:
                self._hand_out(left, out, completed)
                for future in completed:
                    chunk_answers = _result(future)
                    yield out.pop(future.key).number, chunk_answers
                    self._hand_out(left, out, completed)
            except _ConnectionLostError:
                left, out = chain(out.values(), left), {}
                self.open(_RECONNECT)
            else:
                return

    def _hand_out(self, left: Iterator[Chunk], out: dict[str, Chunk], completed: Any) -> None:
        """Submit no more chunks than keep the workers busy."""
        with _detecting_lost_connection():
            room = AHEAD * max(1, len(self._client.nthreads())) - len(out)
        for chunk in islice(left, max(0, room)):
            key = f"twofold-{uuid4().hex}"
            out[key] = chunk
            with _detecting_lost_connection():
                completed.add(
                    self._client.submit(answers, self._inputs, self._plugin.name, chunk, key=key)
                )
        if self._client.scheduler_comm is not self._stream:  # Dask has reconnected by itself
            raise _ConnectionLostError


def _client(address: str, patience: float) -> Any:
    """Connect to a scheduler, in a thread: other servers at the address may never answer.

    Raises OSError if there is none. Raises TimeoutError if it does not answer.
    """
    connected: Future[Any] = Future()

    def connect() -> None:
        try:
            client = distributed.Client(
                address, timeout=patience, set_as_default=False, direct_to_workers=False
            )
            connected.set_result(client)
        except Exception as error:  # it is raised where it can be handled
            connected.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    return connected.result(timeout=patience + _GRACE)


def _result(future: Any) -> list[Answer]:
    """Return a chunk's answers.

    Raises StudyError if its workers were killed again and again, or have no twofold. Raises
    Exception any other error of the program.
    """
    with _detecting_lost_connection():
        error = future.exception(timeout=_FETCH) if future.status == "error" else None
        if error is None:
            chunk_answers: list[Answer] = future.result(timeout=_FETCH)
            return chunk_answers
    if isinstance(error, distributed.KilledWorker):
        raise StudyError(
            "the same points' workers were killed again and again, perhaps for lack of "
            "memory; finished points are kept: run the same command again on larger workers"
        ) from error
    if isinstance(error, ImportError):
        raise StudyError(f"--dask: twofold does not run on a worker: {error}") from error
    raise error


class SameCode(distributed.WorkerPlugin):  # type: ignore[misc]
    """Compares a worker's code with the client's, and limits it to one chunk at a time."""

    idempotent = True

    def __init__(self) -> None:
        self.code = code_of_this()
        self.name = f"twofold-{digest(self.code)}"

    def setup(self, worker: distributed.Worker) -> None:
        """Prepare a worker."""
        reason = difference(self.code, code_of_this())
        self.refusal = reason and f"--dask: worker {worker.address} has {reason}"
        self.turn = threading.Lock()


def code_of_this() -> dict[str, str]:
    """Return the versions of the code here: the bits of an answer depend on them and its inputs."""
    import numba
    import numpy as np

    return {
        "twofold": f"{version()} ({whole_identity()[:12]})",
        "Python": ".".join(python_version_tuple()[:2]),
        "NumPy": np.__version__,
        "Numba": numba.__version__,
    }


def difference(client: Mapping[str, str], worker: Mapping[str, str]) -> str:
    """Return the code in which client and worker differ; "" if it is the same.

    Examples
    --------
    >>> difference({"NumPy": "2.4.0"}, {"NumPy": "2.5.0"})
    'NumPy 2.5.0, not 2.4.0'
    """
    names = (name for name in client if client[name] != worker.get(name))
    return ", ".join(f"{name} {worker.get(name)}, not {client[name]}" for name in names)


def answers(answerer: Answerer, plugin_name: str, chunk: Chunk) -> list[Answer]:
    """Answer a chunk, as a task; a StudyError if this worker runs other code than the client."""
    plugin = distributed.get_worker().plugins[plugin_name]
    if plugin.refusal:
        raise StudyError(plugin.refusal)
    with plugin.turn:
        return answerer.answers(chunk)
