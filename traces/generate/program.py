"""The program of one rank of a pipeline stage, as columns of ops, and the clock of its kernels.

The ranks of a stage differ only in their groups. So an op names a *channel*, which is one group per
rank, and the number of a call on it; :mod:`traces.generate.generate` maps both to the calls of
every rank (SPMD expansion).
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.shares import Shares
from simulator.support.arrays import Floats
from simulator.workload import What
from traces.generate.framework import Framework
from traces.generate.kernel_times import (
    Accelerator,
    Gemm,
    KernelRates,
    KernelTime,
    KernelTimes,
    OwnKernels,
    Streaming,
    kernel_times,
    roofline_time,
    work_of,
)
from traces.generate.layer_kernels import Kernel, Work
from traces.generate.layers import Exchange
from traces.generate.parallelism import Parallelism, groups, stage_ranks

FIRST_FLASH = {"ampere": 0.38, "hopper": 0.21}
"""Largest fraction of the peak reached by attention of the first FlashAttention.

25 to 40 % on A100 (arXiv 2307.08691, section 1). It has no instructions of Hopper's own, and 0.21
there is fitted to steps of MosaicML with sequences of 16k to 64k tokens.
"""
SUSTAINED = {"volta": 0.5, "ampere": 0.92, "ada": 0.92, "hopper": 0.82, "blackwell": 0.85}
"""Clock of matrix units under a training step's load, over that of kernels measured alone."""

_QUANTISED = {"fp8": 1.0, "fp8_block": 1.0, "mxfp8": 1.0, "nvfp4": 0.5, "mxfp4": 0.5}
"""Recipes whose tables time layers that cast their input, and bytes of an element of it then."""
_KERNELS = {"fp8": ("fp8_block",)}
"""Recipes whose kernels substitute for those of another recipe."""


@dataclass(frozen=True, slots=True)
class KernelClock:
    """Times of kernels on one accelerator under one framework.

    Parameters
    ----------
    rates
        Of the accelerator.
    framework
        Determines whether tables of measured kernels or a roofline give the times.
    own
        Kernels measured on the user's machine, in a step: their times are taken unchanged.
    serving
        Whether kernels are an engine's, whose casts are in their tables, at the tables' clock: a
        serving step is memory-bound most of the time, and does not throttle as training does.
    spent
        Time (s) of all kernels that were timed, by origin.
    """

    rates: KernelRates
    framework: Framework
    own: OwnKernels | None = None
    serving: bool = False
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    _times: list[KernelTimes] = field(default_factory=list, repr=False)

    def time(self, work: Work) -> tuple[float, str]:
        """Return the time of one kernel on the device (s), and its origin."""
        time, origin = self._tabled(work)
        return (time if self.serving else self.rates.kernel_time * time), origin

    def _tabled(self, work: Work) -> tuple[float, str]:
        if not self.framework.measured:
            return roofline_time(work.flops, work.traffic, self.rates), "roofline"
        shape = work.shape
        if shape is None:
            if not work.traffic:
                return 0.0, "roofline"
            shape = Streaming(work.traffic)
        if not self._times:
            self._times.append(times_of(self.rates, self.own))
        time, origin = self._times[0].fastest(shape) if self.serving else self._times[0].time(shape)
        if self.serving or isinstance(shape, Streaming) or self._times[0].is_own(shape):
            return time, origin
        if isinstance(shape, Gemm) and shape.dtype in _QUANTISED:
            time, origin = self._product_alone(shape)
        most = FIRST_FLASH.get(self.rates.generation) if work.first_flash else None
        if most is not None:
            peak = dict(self.rates.peaks).get("bf16", self.rates.peak)
            time = max(time, work_of(shape).flops / (most * peak))
        return time / (SUSTAINED.get(self.rates.generation, 1.0) * self.rates.sustained), origin

    def _product_alone(self, shape: Gemm) -> KernelTime:
        """Return the time of a product of 8 or 4 bits (s) without its input's cast, and its origin.

        The tables timed a layer of vLLM (``collector/vllm/collect_gemm.py`` of aiconfigurator),
        which casts its input from 16 bits first: 2 B read and what is written. A training step has
        such casts as separate kernels. One scale for a matrix needs no more work than one for each
        block: the shorter of the two times is used.
        """
        times, width = self._times[0], _QUANTISED[shape.dtype]
        cast = shape.batch * shape.m * shape.k * (2.0 + width) / self.rates.memory_bandwidth
        times_of_recipes = [
            times.time(replace(shape, dtype=recipe)) for recipe in _KERNELS.get(shape.dtype, ())
        ]
        whole, origin = min([times.time(shape), *times_of_recipes])
        return KernelTime(max(whole - cast, times.least(shape)), origin)

    def note(self, spent: Mapping[str, float]) -> None:
        """Add times of kernels (s), by origin, to ``spent``."""
        for origin, time in spent.items():
            self.spent[origin] = self.spent.get(origin, 0.0) + time

    def shares(self) -> dict[str, float]:
        """Return the share of kernels' time by origin, the largest first; they add up to 1."""
        whole = math.fsum(self.spent.values())
        ordered = sorted(self.spent.items(), key=lambda item: -item[1])
        return {origin: time / whole for origin, time in ordered if time}

    def total(
        self, works: Iterable[Work], spent: dict[str, float] | None = None
    ) -> tuple[float, float, float]:
        """Return time (s), FLOPs and bytes of a sequence of kernels.

        Times are added to ``spent`` by origin.
        """
        together = flops = traffic = 0.0
        for work in works:
            time, origin = self.time(work)
            together += time
            flops += work.flops
            traffic += work.traffic
            if spent is not None:
                spent[origin] = spent.get(origin, 0.0) + time
        return together, flops, traffic


def times_of(rates: KernelRates, own: OwnKernels | None = None) -> KernelTimes:
    """Return the times of kernels on an accelerator, measured or by the nearest known source.

    Rates without a name and peaks are those of 16-bit products on an unknown accelerator.
    """
    chip = Accelerator(
        name=rates.name,
        peaks=dict(rates.peaks) or {"bf16": rates.peak},
        memory_bandwidth=rates.memory_bandwidth,
        generation=rates.generation,
    )
    return kernel_times(
        chip,
        own=own,
        compute_efficiency=rates.compute_efficiency,
        memory_efficiency=rates.memory_efficiency,
    )


COMPUTE = "compute"
"""Name of the lane of kernels; collectives have a lane named after their group's label."""
HOST = "host"
NO_GRAPH = -1
"""Graph number of an op that is part of no CUDA graph."""
UNKNOWN_WORK = Work(math.nan, math.nan)
"""Work of an op that is not a kernel."""


class ChannelKey(NamedTuple):
    """Key of a channel: the label of its groups, and the stages of their first and last ranks."""

    label: str
    first_stage: int
    last_stage: int


class ChannelCall(NamedTuple):
    """Communication of every group of a channel in one call; fields as :class:`Exchange`'s."""

    kind: str
    size: float
    dtype: str
    shares: Shares | None = None
    by_ep: tuple[float, ...] = ()


class NumberedCall(NamedTuple):
    """A call by its channel and its number on it."""

    channel: ChannelKey
    number: int


@dataclass(slots=True)
class Channel:
    """Groups of one label, shape ``(groups, members)``, all of which make the same calls."""

    label: str
    groups: NDArray[np.int64]
    calls: list[ChannelCall] = field(default_factory=list)

    def add(self, call: ChannelCall) -> int:
        """Add a call and return its number."""
        self.calls.append(call)
        return len(self.calls) - 1


@dataclass(slots=True)
class Channels:
    """Channels of a job, in the order of first use."""

    parallelism: Parallelism
    by_key: dict[ChannelKey, Channel] = field(default_factory=dict)

    def between(self, label: str, sender: int, receiver: int) -> ChannelKey:
        """Return the key of a channel on a stage, or from each of its ranks to one of another."""
        key = ChannelKey(label, sender, receiver)
        if key not in self.by_key:
            self.by_key[key] = Channel(label, channel_groups(self.parallelism, key))
        return key


def channel_groups(parallelism: Parallelism, key: ChannelKey) -> NDArray[np.int64]:
    """Return the groups of a channel in the whole job, shape ``(groups, members)``."""
    label, first, last = key
    if first != last:
        return np.stack([stage_ranks(parallelism, stage) for stage in (first, last)], axis=1)
    return groups(parallelism, label, first)


class TimedKernels(NamedTuple):
    """Kernels that form one op: their time (s), work and launches.

    ``by_ep`` has time, FLOPs and bytes on each expert-parallel rank, where they differ; ``spent``
    is the time by origin.
    """

    time: float
    work: Work
    launches: int
    by_ep: Floats | None
    spent: Mapping[str, float]


class ProgramOp(NamedTuple):
    """An op of a rank: its lane and name, its time (s), and the call that it joins.

    ``work`` is the total work of its kernels, ``UNKNOWN_WORK`` if it has none, ``launches`` their
    number. ``graph`` is the number of the CUDA graph that it belongs to, -1 if the host launches it
    by itself.
    """

    what: What
    lane: str
    name: str
    duration: float = 0.0
    work: Work = UNKNOWN_WORK
    launches: int = 1
    call: NumberedCall | None = None
    graph: int = NO_GRAPH


@dataclass(slots=True)
class RankProgram:
    """Ops of a rank of one stage, numbered from 0; ops of a lane run in order.

    Edges lead from ``source`` to ``target``. ``waits`` are the ops that the next kernel or exchange
    waits for besides its lane, ``weight_gathers`` those that only the next kernel waits for.
    ``flops`` is the sum over ops, ``blocking`` are the ops that the host waits for; new ops belong
    to the graph ``captured``. ``by_ep`` has the duration and work of ops that differ among
    expert-parallel ranks: rows of time (s), FLOPs and bytes, shape ``(ep, 3)``; the ops themselves
    then have those of the mean rank.
    """

    stage: int
    channels: Channels
    clock: KernelClock
    dtype: str
    ops: list[ProgramOp] = field(default_factory=list)
    source: "array[int]" = field(default_factory=lambda: array("i"))
    target: "array[int]" = field(default_factory=lambda: array("i"))
    waits: list[int] = field(default_factory=list)
    weight_gathers: list[int] = field(default_factory=list)
    flops: float = 0.0
    blocking: set[int] = field(default_factory=set)
    captured: int = NO_GRAPH
    by_ep: dict[int, Floats] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def last(self, lane: str) -> list[int]:
        """Return the last op of a lane; nothing if the lane is empty."""
        return [self._last[lane]] if lane in self._last else []

    def compute(self, name: str, works: Iterable[Work]) -> int:
        """Add kernels as one op, which waits for all pending waits."""
        return self.add(name, self.timed(works))

    def timed(self, works: Iterable[Work], by_ep: Iterable[Iterable[Work]] = ()) -> TimedKernels:
        """Time kernels that form one op, which may be added many times.

        ``by_ep`` are those of each expert-parallel rank, where they differ.
        """
        kernels = list(works)
        totals = [self.clock.total(own) for own in by_ep]
        spent: dict[str, float] = {}
        time, flops, traffic = self.clock.total(kernels, spent)
        return TimedKernels(
            time,
            Work(flops, traffic),
            sum(work.launches for work in kernels),
            np.array(totals) if totals else None,
            spent,
        )

    def add(self, name: str, kernels: TimedKernels) -> int:
        """Add timed kernels, as :meth:`compute` does."""
        time, work, launches, by_ep, spent = kernels
        op = ProgramOp(What.COMPUTE, COMPUTE, name, time, work, launches, graph=self.captured)
        number = self._put(op, [*self.waits, *self.weight_gathers])
        self.flops += work.flops
        self.clock.note(spent)
        if by_ep is not None:
            self.by_ep[number] = by_ep
        self.waits, self.weight_gathers = [], []
        return number

    def exchange(self, exchange: Exchange) -> None:
        """Add a collective that waits for the last kernel; the next kernel waits for it."""
        op = self.collective(exchange, exchange.label, self.waits or self.last(COMPUTE))
        if op is not None:
            self.waits = [op]

    def collective(
        self, exchange: Exchange, lane: str, after: Iterable[int], dtype: str | None = None
    ) -> int | None:
        """Add a collective on a lane; none if the group is a single rank."""
        key = self.channels.between(exchange.label, self.stage, self.stage)
        channel = self.channels.by_key[key]
        if channel.groups.shape[1] == 1:
            return None
        call = ChannelCall(
            exchange.kind, exchange.size, dtype or self.dtype, exchange.shares, exchange.by_ep
        )
        joined = NumberedCall(key, channel.add(call))
        op = ProgramOp(What.COLLECTIVE, lane, exchange.kind, call=joined, graph=self.captured)
        return self._put(op, after)

    def join(self, what: What, lane: str, call: NumberedCall, after: Iterable[int]) -> int:
        """Add this rank's op of a call that is already on its channel."""
        return self._put(ProgramOp(what, lane, lane, call=call, graph=self.captured), after)

    def _put(self, op: ProgramOp, after: Iterable[int]) -> int:
        """Add an op that waits for the last one of its lane, and for others."""
        number = len(self.ops)
        self.ops.append(op)
        self.source.extend([*self.last(op.lane), *after])
        self.target.extend([number] * (len(self.source) - len(self.target)))
        self._last[op.lane] = number
        return number


def forward(kernels: Iterable[Kernel]) -> list[Work]:
    """Return the work of the forward pass."""
    return [kernel.forward for kernel in kernels]


def input_gradients(kernels: Iterable[Kernel]) -> list[Work]:
    """Return the work of the gradients of the kernels' inputs."""
    return [kernel.input_gradient for kernel in kernels]


def weight_gradients(kernels: Iterable[Kernel]) -> list[Work]:
    """Return the work of the gradients of the weights, of kernels that have weights."""
    return [kernel.weight_gradient for kernel in kernels if kernel.weight_gradient.traffic]


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Host time (s) of a kernel, and of a collective or a message."""

    launch: float
    exchange: float

    def of(self, op: ProgramOp, before: ProgramOp | None) -> float:
        """Return the host time of an op, all its kernels together; a graph takes one launch."""
        if op.graph != NO_GRAPH:
            is_first = before is None or before.graph != op.graph
            return min(self.launch, self.exchange) if is_first else 0.0
        return op.launches * self.launch if op.what == What.COMPUTE else self.exchange


def with_launches(program: RankProgram, host: HostCosts) -> RankProgram:
    """Put a host op before every op; the host may run ahead of the device.

    After an op of ``program.blocking`` the host waits until that has ended.
    """
    ops = len(program.ops)
    pairs = zip(program.ops, [None, *program.ops], strict=False)
    hosts = [ProgramOp(What.HOST, HOST, "launch", host.of(*pair), launches=0) for pair in pairs]
    before, device = range(ops), range(ops, 2 * ops)
    blocking = [op for op in sorted(program.blocking) if op + 1 < ops]
    source, target = ((ops + op for op in column) for column in (program.source, program.target))
    return RankProgram(
        stage=program.stage,
        channels=program.channels,
        clock=program.clock,
        dtype=program.dtype,
        ops=hosts + program.ops,
        source=array("i", [*before[:-1], *before, *(ops + op for op in blocking), *source]),
        target=array("i", [*before[1:], *device, *(op + 1 for op in blocking), *target]),
        flops=program.flops,
        by_ep={ops + op: works for op, works in program.by_ep.items()},
    )
