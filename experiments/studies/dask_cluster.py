"""Chunks of points answered by the workers of a Dask cluster: of other machines, or of this one.

What is under way is bounded, so a scheduler is never handed a whole study, and answers come back
one by one. A worker that is killed costs what it was computing: the scheduler hands it to another.
When the connection to the scheduler is lost, it is made again and what was under way is handed out
anew. Neither changes an answer, so neither changes a study's results.

A worker is offered inputs, and takes them only if it runs the same code as the client. It keeps
them by content, so they are shipped to it once, whatever studies ask of them. A worker that has
them says so as a Dask resource, of which each chunk needs one: the scheduler hands chunks to no
other worker, and to each worker process one at a time.
"""

import hashlib
import logging
import os
import pickle
import threading
import time
from asyncio import CancelledError
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from platform import python_version_tuple
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from experiments.provenance import version
from experiments.studies.answers import Answerer
from experiments.studies.placed import Answer, Base, Chunk, whole_identity
from simulator.support.errors import StudyError, pip_install

LOCAL = "local"
"""Beginning of an address that stands for workers of this machine: ``local:2``."""
_PER_CORE = 8
"""Local workers for each core at most: each is a process with the inputs, and they only wait."""
AHEAD = 2
"""Chunks per worker that are handed out before answers are awaited, so that none is idle."""
_LOGGERS = ("distributed", "tornado")
_CONNECT = 10.0
"""Seconds in which a scheduler answers."""
_GRACE = 2.0
"""Seconds more in which a connection that is made says so."""
_PATIENCE = 60.0
"""Seconds after which a connection that was lost will not be made again."""
_LOOK = 1.0
"""Seconds between two looks at which workers there are."""
_FETCH = 5.0
"""Seconds in which an answer that is there is fetched: later, whoever had it was killed."""
_AUDIT = 10.0
"""Seconds without an answer after which the scheduler is asked what it has handed out."""
_ATTEMPTS = 5
"""How often a chunk is handed out whose workers were killed again and again; the scheduler tries
each of these times several workers (``distributed.scheduler.allowed-failures``)."""
LACKS = "lacks inputs"
"""What a worker that could answer says before it has the inputs."""
_KEPT = 4
"""Inputs that a worker keeps, the latest."""

Done = tuple[int, list[Answer]]
Lost = tuple[type[BaseException], ...]
Note = Callable[[str], None]


def local_workers(address: str) -> int | None:
    """Return how many workers of this machine an address stands for; None: it is a scheduler's.

    Raises
    ------
    StudyError
        If it is no address, or stands for far more workers than this machine has cores.

    Examples
    --------
    >>> local_workers("local:2"), local_workers("tcp://10.0.0.1:8786")
    (2, None)
    """
    protocol, sign, rest = address.partition(":")
    if sign and protocol == LOCAL and rest.isdecimal() and int(rest[:9]) > 0:
        most = _PER_CORE * (os.cpu_count() or 1)
        if len(rest) > 9 or int(rest) > most:
            raise StudyError(
                f"--dask {address!r}: this machine's cores bear {most} workers at most"
            )
        return int(rest)
    if not rest.startswith("//") or len(rest) < 3:
        raise StudyError(f"--dask {address!r}: write tcp://HOST:PORT of a scheduler, or local:2")
    return None


@contextmanager
def dask_cluster(
    bases: Sequence[Base], address: str, note: Note
) -> Iterator[Callable[[Iterable[Chunk]], Iterator[Done]]]:
    """Answer chunks by the workers of a Dask cluster.

    Parameters
    ----------
    bases
        The workloads, shipped once to each worker.
    address
        Of the scheduler; or ``local:N`` for N processes of this machine, which end with the study.
    note
        Called with sentences about the cluster: its dashboard, workers that cannot be used.

    Raises
    ------
    StudyError
        If no scheduler answers, all workers run other code, or the connection is lost for good.
    """
    try:
        import distributed
    except ImportError as error:
        raise StudyError(f"--dask needs Dask: {pip_install('dask[distributed]')}") from error
    workers = local_workers(address)
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        if workers is not None:
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )
            stack.enter_context(closing(cluster))
            address = cluster.scheduler_address
        connection = _Connection(address, note, _Inputs.of(bases))
        stack.callback(connection.close)
        connection.open()
        yield lambda chunks: _UnderWay(connection, iter(chunks)).answered()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask's log of what is handled here away from the terminal.

    Dask gives levels to some of its loggers, so that those of their parents do not hold for them.
    """
    names = [one for one in logging.root.manager.loggerDict if one.startswith(_LOGGERS)]
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    """What workers need: pickled, with its hash, which is also the name of a Dask resource."""

    name: str
    content: bytes

    @staticmethod
    def of(bases: Sequence[Base]) -> "_Inputs":
        content = pickle.dumps(list(bases), protocol=5)
        return _Inputs(f"twofold-{hashlib.sha256(content).hexdigest()}", content)


@dataclass(eq=False)
class _Connection:
    """A connection to a scheduler, made again when it is lost; and who of the workers is ready.

    ``ready`` is how many workers can answer, ``made`` how often the connection was made: what was
    handed out before belongs to one that is gone. Whoever sees that it is gone sets ``lost``. The
    new one is another client to the scheduler: one that comes back under the old name, as Dask's
    own would, may be forgotten with the old one.
    """

    address: str
    note: Note
    inputs: _Inputs
    client: Any = None
    ready: int = 0
    made: int = 0
    lost: bool = False
    _refused: dict[tuple[str, str], str] = field(default_factory=dict)
    _looked: float = -_LOOK
    _noted: set[str] = field(default_factory=set)

    def open(self) -> None:
        """Connect, and say where the dashboard is.

        Raises
        ------
        StudyError
            If no scheduler answers, or no worker can be used and some could not.
        """
        self._connect(_CONNECT)
        self._once(_dashboard(self.client))
        self.look()
        if not self.ready and self._refused:
            (address, _), reason = next(iter(self._refused.items()))
            raise StudyError(
                f"--dask {self.address}: no worker runs the code of this: {address} has {reason}"
            )

    def look(self) -> None:
        """See, once a second, which workers there are, and offer inputs to those that are new.

        Raises
        ------
        StudyError
            If the connection was lost and cannot be made again.
        """
        if time.monotonic() - self._looked < _LOOK:
            return
        if self.lost or self.client.status != "running":
            self._connect(_PATIENCE)
        self._looked = time.monotonic()
        workers = self._workers()
        new = [
            address
            for address, worker in workers.items()
            if not self._is_ready(worker) and (address, str(worker["name"])) not in self._refused
        ]
        if new:
            self._offer(new, workers)
            workers = self._workers()
        self.ready = sum(map(self._is_ready, workers.values()))
        if not self.ready:
            self._once("no worker is there that can answer: waiting for one (Ctrl-C leaves)")

    def processing(self) -> frozenset[str]:
        """Say what the scheduler has handed to workers."""
        try:
            by_worker = self.client.processing()
        except _lost():
            self.lost = True
            return frozenset()
        return frozenset(key for keys in by_worker.values() for key in keys)

    def submit(self, chunk: Chunk, key: str) -> Any:
        """Hand a chunk out, to a worker that has the inputs."""
        return self.client.submit(
            answers, self.inputs.name, chunk, key=key, resources={self.inputs.name: 1}, pure=False
        )

    def close(self) -> None:
        """Leave the cluster; what is under way there is dropped."""
        if self.client is not None:
            with suppress(*_lost()):
                self.client.close(timeout=2)

    def _connect(self, patience: float) -> None:
        self.close()
        try:
            self.client = _client(self.address, patience)
        except (OSError, TimeoutError, ValueError) as error:
            raise StudyError(
                f"--dask {self.address}: no scheduler answers there within {patience:g} s; what "
                "was done is kept"
            ) from error
        self.made += 1
        self.lost = False
        self._looked = -_LOOK

    def _workers(self) -> dict[str, dict[str, Any]]:
        info: dict[str, Any] = {}
        try:
            info = self.client.scheduler_info(n_workers=-1)
        except _lost():
            self.lost = True
        workers: dict[str, dict[str, Any]] = info.get("workers", {})
        return workers

    def _is_ready(self, worker: dict[str, Any]) -> bool:
        return bool(worker["resources"].get(self.inputs.name))

    def _offer(self, new: Sequence[str], workers: dict[str, dict[str, Any]]) -> None:
        """Offer inputs to workers by their hash, then ship them to those that lack them."""
        lacking = []
        for address, reply in self._asked(new, None):
            if reply == LACKS:
                lacking.append(address)
            else:
                self._judge(address, reply, workers[address])
        for address, reply in self._asked(lacking, self.inputs.content):
            self._judge(address, reply, workers[address])

    def _asked(self, workers: Sequence[str], content: bytes | None) -> list[tuple[str, object]]:
        if not workers:
            return []
        code, resource = code_of_this(), self.inputs.name
        try:
            replies = self.client.run(
                offer, code, resource, content, workers=list(workers), on_error="return"
            )
        except _lost():  # the next look sees who is there
            return []
        return list(replies.items())

    def _judge(self, address: str, reply: object, worker: dict[str, Any]) -> None:
        """Note what a worker said: one that is gone meanwhile said nothing."""
        if reply == "":
            if worker["nthreads"] > 1:
                self._once(
                    f"workers have {worker['nthreads']} threads, of which one computes: start them "
                    "with --nthreads 1, and more of them"
                )
        elif not isinstance(reply, OSError | TimeoutError):
            reason = reply if isinstance(reply, str) else f"no twofold that answers: {reply}"
            self._refused[address, str(worker["name"])] = reason
            self._once(f"worker {address} is left out: it has {reason}")

    def _once(self, sentence: str) -> None:
        if sentence and sentence not in self._noted:
            self._noted.add(sentence)
            self.note(sentence)


@dataclass(eq=False)
class _UnderWay:
    """Chunks that are handed out, no more than keep the workers busy."""

    connection: _Connection
    left: Iterator[Chunk]
    _again: "deque[Chunk]" = field(default_factory=deque)
    _out: dict[str, tuple[Chunk, Any]] = field(default_factory=dict)
    _done: "SimpleQueue[str]" = field(default_factory=SimpleQueue)
    _attempts: dict[int, int] = field(default_factory=dict)
    _made: int = 0
    _audited: float = field(default_factory=time.monotonic)
    _missed: set[str] = field(default_factory=set)

    def answered(self) -> Iterator[Done]:
        """Yield chunks' answers as they come, in any order."""
        try:
            while self._fill():
                try:
                    key = self._done.get(timeout=_LOOK)
                except Empty:
                    self._audit()
                    continue
                chunk, future = self._out.pop(key, (None, None))
                chunk_answers = None if chunk is None else self._result(chunk, future)
                if chunk is not None and chunk_answers is not None:
                    yield chunk.number, chunk_answers
        finally:
            for _, future in self._out.values():
                self._drop(future)

    def _fill(self) -> bool:
        """Hand out as much as there is room for; say whether anything is left to wait for."""
        self.connection.look()
        if self._made != self.connection.made:
            self._made = self.connection.made
            self._again.extend(chunk for chunk, _ in self._out.values())
            self._out.clear()
        while len(self._out) < self.connection.ready * AHEAD:
            chunk = self._again.popleft() if self._again else next(self.left, None)
            if chunk is None:
                return bool(self._out)
            key = f"twofold-{uuid4().hex}"
            try:
                future = self.connection.submit(chunk, key)
            except _lost():
                self.connection.lost = True
                self._again.append(chunk)
                break
            self._out[key] = chunk, future
            future.add_done_callback(lambda finished: self._done.put(finished.key))
        return True

    def _audit(self) -> None:
        """Hand out again what no worker was given twice in a row: a scheduler may lose it, too."""
        if time.monotonic() - self._audited < _AUDIT or not self.connection.ready:
            return
        processing = self.connection.processing()
        missed = {
            key
            for key, (_, future) in self._out.items()
            if key not in processing and future.status == "pending"
        }
        for key in missed & self._missed:
            chunk, future = self._out.pop(key)
            self._drop(future)
            self._again.append(chunk)
        self._audited, self._missed = time.monotonic(), missed

    @staticmethod
    def _drop(future: Any) -> None:
        with suppress(*_lost()):
            future.cancel()

    def _result(self, chunk: Chunk, future: Any) -> list[Answer] | None:
        """Return a chunk's answers; None where it is to be handed out again.

        Raises
        ------
        StudyError
            If its workers were killed again and again.
        """
        chunk_answers: list[Answer] | None = None
        if future.status == "error":
            self._failed(chunk, future.exception(timeout=_FETCH))
        elif future.status == "cancelled":
            self.connection.lost = True
        else:
            try:
                chunk_answers = future.result(timeout=_FETCH)
            except _lost():  # the connection, or whoever had the answer: the next look says
                self._drop(future)
        if chunk_answers is None:
            self._again.append(chunk)
        return chunk_answers

    def _failed(self, chunk: Chunk, error: BaseException) -> None:
        """Raise what is wrong with the program, or with a chunk that no worker survives."""
        from distributed import KilledWorker

        if isinstance(error, InputsGoneError):
            return
        if not isinstance(error, KilledWorker):
            raise error
        tried = self._attempts[chunk.number] = self._attempts.get(chunk.number, 0) + 1
        if tried >= _ATTEMPTS:
            raise StudyError(
                "the same points' workers were killed again and again, perhaps for want of "
                "memory: what was done is kept; run the same command again, on larger workers"
            ) from error


@cache
def _lost() -> Lost:
    """Return what is raised of a connection that was lost, and of what was handed out by it."""
    from distributed import client

    closed = getattr(client, "ClosedClientError", CancelledError)  # since 2025
    ended = RuntimeError  # of a client whose loop has ended
    return CancelledError, FutureCancelledError, OSError, TimeoutError, closed, ended


def _client(address: str, patience: float) -> Any:
    """Connect to a scheduler; what listens there and is none never answers, so a thread asks it.

    Raises
    ------
    OSError
        If there is none.
    TimeoutError
        If it does not answer.
    """
    import distributed

    results: SimpleQueue[Any] = SimpleQueue()

    def connect() -> None:
        try:
            results.put(
                distributed.Client(
                    address, timeout=patience, set_as_default=False, direct_to_workers=False
                )
            )
        except Exception as error:  # it is raised where it can be handled
            results.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        result = results.get(timeout=patience + _GRACE)
    except Empty:
        raise TimeoutError(address) from None
    if isinstance(result, Exception):
        raise result
    return result


def _dashboard(client: Any) -> str:
    """Say where the scheduler shows its work; "" where it does not."""
    try:
        link = client.dashboard_link
    except KeyError:  # a scheduler without Bokeh has none
        return ""
    return f"dashboard: {link}" if link else ""


class InputsGoneError(Exception):
    """A worker was handed a chunk whose inputs it has no longer: it is to be handed out again."""


_answerers: "WeakKeyDictionary[Any, OrderedDict[str, Answerer]]" = WeakKeyDictionary()
"""What each worker of this process keeps, by the hash of the inputs."""


def code_of_this() -> dict[str, str]:
    """Say which code runs here: what the bits of an answer depend on, beside its inputs."""
    import numba
    import numpy as np

    return {
        "twofold": f"{version()} ({whole_identity()[:12]})",
        "Python": ".".join(python_version_tuple()[:2]),
        "NumPy": np.__version__,
        "Numba": numba.__version__,
    }


def difference(client: Mapping[str, str], worker: Mapping[str, str]) -> str:
    """Say which code differs; "" where none does.

    Examples
    --------
    >>> difference({"NumPy": "2.4.0"}, {"NumPy": "2.5.0"})
    'NumPy 2.5.0, not 2.4.0'
    """
    names = (name for name in client if client[name] != worker.get(name))
    return ", ".join(f"{name} {worker.get(name)}, not {client[name]}" for name in names)


async def offer(
    code: Mapping[str, str], inputs: str, content: bytes | None, dask_worker: Any = None
) -> str:
    """Offer inputs to the worker that runs this: their hash first, then their content.

    Returns
    -------
    str
        "" if it is ready, :data:`LACKS` if it needs the content, else why it cannot answer.
    """
    if reason := difference(code, code_of_this()):
        return reason
    answerers = _answerers.setdefault(dask_worker, OrderedDict())
    if inputs not in answerers:
        if content is None:
            return LACKS
        answerers[inputs] = Answerer(pickle.loads(content))
    answerers.move_to_end(inputs)
    resources = {inputs: 1.0}
    while len(answerers) > _KEPT:
        resources[answerers.popitem(last=False)[0]] = 0.0
    await dask_worker.set_resources(**resources)
    return ""


def answers(inputs: str, chunk: Chunk) -> list[Answer]:
    """Answer a chunk, as a task.

    Raises
    ------
    InputsGoneError
        If other studies' inputs have taken the place of these.
    """
    from distributed import get_worker

    answerer = _answerers.get(get_worker(), OrderedDict()).get(inputs)
    if answerer is None:
        raise InputsGoneError(inputs)
    return answerer.answers(chunk)
