"""A collective written out for n ranks, as data: steps of transfers.

A schedule says which chunk goes where in which order; it knows no network and no time.
``collectives`` builds schedules and proves them, :mod:`simulator.costing.link_load` lays them on a
topology.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScheduleError


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Transfers that go on at the same time, repeated ``repeats`` times as a run of like steps.

    Columns have shape ``(transfers,)``: rank ``source`` sends chunks ``chunk … chunk + count - 1``
    to rank ``target`` (ranks are positions in the group). In repetition ``k`` the first chunk is
    moved by ``k * shift`` within its block of ``cycle`` chunks::

        chunk // cycle * cycle + (chunk % cycle + k * shift) % cycle

    With ``reduce`` the target adds what arrives to what it has, without it the target replaces
    it. A step begins, for the whole group, when the one before has ended.

    With ``in_network`` the switches add and copy on the way (NVLS, SHARP): on every link the
    transfers of a chunk to one target, if they reduce, or from one source, if not, count once.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    chunk: NDArray[np.int32]
    count: NDArray[np.int32]
    reduce: bool
    repeats: int = 1
    shift: int = 0
    cycle: int = 1
    in_network: bool = False

    def chunks_at(self, repetition: int) -> NDArray[np.int32]:
        """First chunk of each transfer in the given repetition (0 is the first)."""
        block, place = np.divmod(self.chunk, self.cycle)
        moved = block * self.cycle + (place + repetition * self.shift) % self.cycle
        return np.asarray(moved, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """How ``ranks`` ranks carry out a collective of ``kind``.

    The buffer of ``size`` bytes (S of nccl-tests) is cut into ``parts`` chunks of
    ``size / parts`` bytes; ``chunks`` counts the distinct chunks of the whole group (more than
    ``parts`` in an all-to-all, where every rank's buffer is another one).

    Raises
    ------
    ScheduleError
        If a transfer names a rank or chunk that does not exist, or goes from a rank to itself.
    """

    kind: str
    algorithm: str
    ranks: int
    chunks: int
    parts: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.chunks < 1 or self.parts < 1:
            raise ScheduleError(f"{self}: ranks, chunks and parts must be positive")
        for number, step in enumerate(self.steps):
            self._check_step(f"{self}, step {number}", step)

    def __str__(self) -> str:
        """Name it: ``ring all_reduce (n=8)``."""
        return f"{self.algorithm} {self.kind} (n={self.ranks})"

    def _check_step(self, where: str, step: Step) -> None:
        columns = (step.source, step.target, step.chunk, step.count)
        if len({len(column) for column in columns}) != 1 or not len(step.source):
            raise ScheduleError(f"{where}: columns must have one length, and not 0")
        if step.repeats < 1 or step.cycle < 1:
            raise ScheduleError(f"{where}: repeats and cycle must be positive")
        ends = np.concatenate([step.source, step.target])
        if ends.min() < 0 or ends.max() >= self.ranks:
            raise ScheduleError(f"{where}: a transfer names a rank outside 0..{self.ranks - 1}")
        if np.any(step.source == step.target):
            raise ScheduleError(f"{where}: a rank sends to itself")
        if (
            step.chunk.min() < 0
            or step.count.min() < 1
            or (step.chunk + step.count).max() > self.chunks
        ):
            raise ScheduleError(f"{where}: a transfer names a chunk outside 0..{self.chunks - 1}")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a library carries out one call: a schedule and what the software adds to the wire.

    ``overhead`` is paid once per call before anything moves, ``step_latency`` once per step on
    top of the links' latency (both s). ``efficiency`` is the fraction of each link's bandwidth
    that carries payload under the protocol (NCCL's LL carries 4 B in 8: 0.5).

    With ``pipelined`` the message is cut into slices and nobody waits for the group: all steps
    are under way at once, so their bytes are on the links together, and each costs the mean
    latency of its transfers. What it takes to fill the pipeline belongs into ``overhead``.

    ``latency_factor`` and ``bandwidth_factor`` multiply what the topology says of the links of a
    resource, for this call: what was measured of the library there (1 where nothing is said).
    """

    schedule: Schedule
    overhead: float = 0.0
    step_latency: float = 0.0
    efficiency: float = 1.0
    protocol: str = ""
    pipelined: bool = False
    latency_factor: Mapping[str, float] = field(default_factory=dict)
    bandwidth_factor: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.overhead < 0 or self.step_latency < 0 or not 0 < self.efficiency <= 1:
            raise ScheduleError(
                f"{self.schedule}: times must not be negative, efficiency in (0, 1]"
            )
        if min(self.latency_factor.values(), default=0.0) < 0:
            raise ScheduleError(f"{self.schedule}: a latency factor must not be negative")
        if min(self.bandwidth_factor.values(), default=1.0) <= 0:
            raise ScheduleError(f"{self.schedule}: a bandwidth factor must be positive")


Plans = NDArray[np.object_]
"""Plan of every call of a workload, shape ``(calls,)``: a :class:`Plan`, or None."""
