"""A collective written out for n ranks, as data: steps of transfers.

A schedule says which chunk goes where, in which order; it has no network and no times.
``collectives`` builds schedules and proves them; :mod:`simulator.costing.link_load` computes their
loads on a topology.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Ints
from simulator.support.errors import ScheduleError


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Simultaneous transfers, repeated ``repeats`` times as a run of similar steps.

    A step begins, for the whole group, when the one before has ended. In repetition
    ``k`` the first chunk is shifted by ``k * shift`` within its block of ``cycle`` chunks::

        chunk // cycle * cycle + (chunk % cycle + k * shift) % cycle

    Parameters
    ----------
    source, target
        Ranks, as positions in the group, shape ``(transfers,)``.
    chunk, count
        Rank ``source`` sends chunks ``chunk … chunk + count - 1``, shape ``(transfers,)``.
    reduce
        Whether the target adds received data to its own, or replaces its own.
    repeats, shift, cycle
        A run of similar steps, as above.
    in_network
        The switches add and copy on the way (NVLS, SHARP): on every link the transfers of a chunk
        to one target, if they reduce, or from one source, if not, count once.

    Examples
    --------
    >>> pair = np.array([0, 1], np.int32)
    >>> exchange = Step(pair, pair[::-1], pair, np.ones(2, np.int32), reduce=True, shift=1, cycle=2)
    >>> exchange.chunks_at(1).tolist()
    [1, 0]
    """

    source: Ints
    target: Ints
    chunk: Ints
    count: Ints
    reduce: bool
    repeats: int = 1
    shift: int = 0
    cycle: int = 1
    in_network: bool = False

    def chunks_at(self, repetition: int) -> Ints:
        """Return the first chunk of each transfer in a repetition (0 is the first)."""
        block, offset = np.divmod(self.chunk, self.cycle)
        moved = block * self.cycle + (offset + repetition * self.shift) % self.cycle
        return np.asarray(moved, dtype=np.int32)

    @property
    def width(self) -> int:
        """Number of transfers."""
        return len(self.source)

    def relabelled(self, order: Ints) -> "Step":
        """Return the step with rank ``order[i]`` in place of ``i``; chunk numbers stay."""
        return replace(self, source=order[self.source], target=order[self.target])


class Exchange(Step):
    """A step in which every rank sends one chunk to every other, without a list of the pairs.

    On 4,096 ranks these are 16.8 million transfers, in order of the sender, then of the receiver.
    The columns of :class:`Step` are computed on each access.

    Parameters
    ----------
    members
        Ranks that take part, each once, shape ``(members,)``: at least two.
    reduce
        As for a step.
    by_source, by_target
        Member ``i`` sends member ``j`` chunk ``i * by_source + j * by_target``.

    Raises
    ------
    ScheduleError
        If there are fewer than two members.

    Examples
    --------
    >>> step = Exchange(np.arange(3, dtype=np.int32), reduce=False, by_source=3, by_target=1)
    >>> step.width, step.source.tolist(), step.target.tolist(), step.chunk.tolist()
    (6, [0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1], [1, 2, 3, 5, 6, 7])
    """

    __slots__ = ("by_source", "by_target", "members")

    members: Ints
    by_source: int
    by_target: int

    def __init__(self, members: Ints, *, reduce: bool, by_source: int, by_target: int) -> None:
        if len(members) < 2:
            raise ScheduleError(f"an exchange needs two ranks, not {len(members)}")
        fields = {"members": members, "by_source": by_source, "by_target": by_target}
        constants = {"reduce": reduce, "repeats": 1, "shift": 0, "cycle": 1, "in_network": False}
        for name, value in (fields | constants).items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the parameters only."""
        build = partial(Exchange, reduce=self.reduce, by_source=self.by_source)
        return partial(build, by_target=self.by_target), (self.members,)

    @property
    def width(self) -> int:
        """Number of transfers: ``members * (members - 1)``."""
        return len(self.members) * (len(self.members) - 1)

    @property
    def _sender(self) -> Ints:
        return np.repeat(np.arange(len(self.members), dtype=np.int32), len(self.members) - 1)

    @property
    def _receiver(self) -> Ints:
        index = np.tile(np.arange(len(self.members) - 1, dtype=np.int32), len(self.members))
        return np.asarray(index + (index >= self._sender), dtype=np.int32)

    @property
    def source(self) -> Ints:
        """As in :class:`Step`."""
        return self.members[self._sender]

    @property
    def target(self) -> Ints:
        """As in :class:`Step`."""
        return self.members[self._receiver]

    @property
    def chunk(self) -> Ints:
        """As in :class:`Step`."""
        chunk = self._sender * np.int32(self.by_source) + self._receiver * np.int32(self.by_target)
        return np.asarray(chunk, dtype=np.int32)

    @property
    def count(self) -> Ints:
        """As in :class:`Step`."""
        return np.ones(self.width, dtype=np.int32)

    def relabelled(self, order: Ints) -> "Exchange":
        """As in :class:`Step`."""
        return Exchange(
            order[self.members],
            reduce=self.reduce,
            by_source=self.by_source,
            by_target=self.by_target,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Steps by which ``ranks`` ranks carry out a collective of ``kind``.

    Parameters
    ----------
    kind, algorithm
        The collective (a key of :data:`collectives.COLLECTIVES`), and its algorithm.
    ranks
        Size of the group.
    chunks
        Distinct chunks of the whole group: more than ``parts`` in an all-to-all, where every rank's
        buffer has other chunks.
    parts
        Number of chunks that a buffer of ``size`` bytes (S of nccl-tests) is cut into.
    steps
        Steps in sequence.
    lengths
        Length of each chunk, if they differ, in units of ``size / parts``, shape ``(chunks,)``;
        None: each is one unit.

    Raises
    ------
    ScheduleError
        If a transfer names a rank or chunk that does not exist, or goes from a rank to itself, or
        chunks of different length are moved by a run of steps, or are empty.

    Examples
    --------
    >>> zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    >>> print(Schedule("broadcast", "mine", 2, 1, 1, (Step(zero, one, zero, one, reduce=False),)))
    mine broadcast (n=2)
    """

    kind: str
    algorithm: str
    ranks: int
    chunks: int
    parts: int
    steps: tuple[Step, ...]
    lengths: Floats | None = None

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.chunks < 1 or self.parts < 1:
            raise ScheduleError(f"{self}: ranks, chunks and parts must be positive")
        for number, step in enumerate(self.steps):
            self._check_step(f"{self}, step {number}", step)
        lengths = self.lengths
        if lengths is None:
            return
        if lengths.shape != (self.chunks,) or not (np.isfinite(lengths) & (lengths >= 0)).all():
            raise ScheduleError(f"{self}: {self.chunks} chunks need one length each, none below 0")
        for number, step in enumerate(self.steps):
            if step.repeats > 1:
                raise ScheduleError(f"{self}, step {number}: chunks of unlike length are repeated")
            if not (self.units(step) > 0).all():
                raise ScheduleError(f"{self}, step {number}: a transfer moves nothing")

    def units(self, step: Step) -> Floats:
        """Return the amount of each transfer of a step in units of ``size / parts``; a new array.

        Examples
        --------
        >>> zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
        >>> step = Step(zero, one, zero, one, reduce=False)
        >>> Schedule("broadcast", "mine", 2, 1, 1, (step,), np.array([0.25])).units(step).tolist()
        [0.25]
        """
        if self.lengths is None:
            return step.count.astype(np.float64)
        if isinstance(step, Exchange) or step.count.max() == 1:
            alone: Floats = self.lengths[step.chunk]
            return alone
        before = np.concatenate([np.zeros(1), np.cumsum(self.lengths)])
        moved: Floats = before[step.chunk + step.count] - before[step.chunk]
        return moved

    def __str__(self) -> str:
        """Return a name such as ``ring all_reduce (n=8)``."""
        return f"{self.algorithm} {self.kind} (n={self.ranks})"

    def _check_step(self, where: str, step: Step) -> None:
        if isinstance(step, Exchange):
            self._check_exchange(where, step)
            return
        columns = (step.source, step.target, step.chunk, step.count)
        if len({len(column) for column in columns}) != 1 or not len(step.source):
            raise ScheduleError(f"{where}: columns must have equal length, and not 0")
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

    def _check_exchange(self, where: str, step: Exchange) -> None:
        members, last = step.members, len(step.members) - 1
        if members.min() < 0 or members.max() >= self.ranks:
            raise ScheduleError(f"{where}: a transfer names a rank outside 0..{self.ranks - 1}")
        if len(np.unique(members)) != len(members):
            raise ScheduleError(f"{where}: a rank sends to itself")
        ends = [
            first * step.by_source + second * step.by_target
            for first, second in ((0, 1), (1, 0), (last - 1, last), (last, last - 1))
        ]
        if min(ends) < 0 or max(ends) >= self.chunks:
            raise ScheduleError(f"{where}: a transfer names a chunk outside 0..{self.chunks - 1}")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a library carries out one call: a schedule, and what the software adds to it.

    Parameters
    ----------
    schedule
        The steps.
    overhead
        Time once per call, before the first transfer (s).
    step_latency
        Time once per step, in addition to the links' latency (s).
    efficiency
        Fraction of each link's bandwidth that carries payload under the protocol (NCCL's LL carries
        4 B in 8: 0.5).
    protocol
        The library's name for it; "" if there is none.
    pipelined
        The message is cut into slices and ranks do not wait for the group: all steps run at once,
        so their bytes are on the links together, and each step costs the mean latency of its
        transfers. The time to fill the pipeline belongs to ``overhead``.
    latencies
        One-way latencies of the links per step: 2 where a receiver must first signal that it is
        ready, as gloo's does.
    latency_factor, bandwidth_factor
        Factors by resource on the latency and bandwidth of the topology's links for this call, as
        measured for the library (1 if not given).
    outage
        Which of the topology's outages its messages are routed in, by number; -1 for none.

    Raises
    ------
    ScheduleError
        If a time is negative, or a fraction or factor out of range.
    """

    schedule: Schedule
    overhead: float = 0.0
    step_latency: float = 0.0
    efficiency: float = 1.0
    protocol: str = ""
    pipelined: bool = False
    latencies: float = 1.0
    latency_factor: Mapping[str, float] = field(default_factory=dict)
    bandwidth_factor: Mapping[str, float] = field(default_factory=dict)
    outage: int = -1

    def __post_init__(self) -> None:
        least = min(self.overhead, self.step_latency, self.latencies)
        if least < 0 or not 0 < self.efficiency <= 1:
            raise ScheduleError(f"{self.schedule}: times must be 0 or more, efficiency in (0, 1]")
        if min(self.latency_factor.values(), default=0.0) < 0:
            raise ScheduleError(f"{self.schedule}: a latency factor must not be negative")
        if min(self.bandwidth_factor.values(), default=1.0) <= 0:
            raise ScheduleError(f"{self.schedule}: a bandwidth factor must be positive")


Plans = NDArray[np.object_]
"""Plan of every call of a workload, shape ``(calls,)``: a :class:`Plan`, or None."""
