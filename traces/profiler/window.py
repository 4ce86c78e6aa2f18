"""The part of a rank's trace that is the step, and the launches of its device events."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from simulator.support.quantities import whole_of
from simulator.workload import Repeats
from traces.core.events import ProfilerStep, RankHead, RankTrace, launch_rows
from traces.core.loaded import ALL, CONTRADICTED, EXPLAINED, MEDIAN


class Window(Struct, frozen=True, eq=False):
    """Rows of a rank's host and device events that belong to the step, and its bounds (s).

    A device event belongs to the step whose host launched it, even if it ran later; one whose
    launch is not in the trace (``unlaunched``) belongs to the step in which it started.
    ``in_flight`` counts those that ran during the step and were launched before the recording
    began: they belong to no step. Times are those of the trace, since its epoch.
    """

    start: float
    end: float
    host: NDArray[np.int64]
    device: NDArray[np.int64]
    unlaunched: NDArray[np.int64]
    step: str
    in_flight: int = 0


def choose_step(ranks: Sequence[RankHead], step: str) -> str:
    """Resolve ``median`` to a step's number; a number and ``all`` must exist on every rank.

    The median is taken over the steps' longest duration on any rank, without the first step if
    there are more than three: it is often a warm-up, which the median of three stands. A job
    without steps answers ``all``.

    Raises
    ------
    TraceError
        If ranks hold different steps and none was named, or the named one is missing.
    """
    numbers = [frozenset(profiled.number for profiled in rank.steps) for rank in ranks]
    common = frozenset.intersection(*numbers)
    every = frozenset.union(*numbers)
    if not every:
        if step not in (MEDIAN, ALL):
            raise TraceError(f"{ranks[0].file}: no ProfilerStep#{step}; the trace has no steps")
        return ALL
    if step not in (MEDIAN, ALL):
        for rank in ranks:
            if whole_of(step) not in _numbers(rank):
                has = ", ".join(str(number) for number in sorted(_numbers(rank))) or "none"
                raise TraceError(f"{rank.file}: no ProfilerStep#{step}; it has {has}")
        return step
    if common != every:
        rank = next(rank for rank, number in zip(ranks, numbers, strict=True) if number != every)
        lacks = ", ".join(f"ProfilerStep#{number}" for number in sorted(every - _numbers(rank)))
        hint = f"choose one with --step {max(common)}" if common else "they have none in common"
        raise TraceError(f"{rank.file}: lacks {lacks}, which other ranks have; {hint}")
    if step == ALL:
        return ALL
    candidates = sorted(common)[1 if len(common) > 3 else 0 :]
    longest = dict.fromkeys(candidates, 0.0)
    for rank in ranks:
        for number in candidates:
            span = _numbered_step(rank, number)
            longest[number] = max(longest[number], span.end - span.start)
    by_time = sorted(candidates, key=lambda number: (longest[number], number))
    return str(by_time[len(by_time) // 2])


def _numbers(rank: RankHead) -> frozenset[int]:
    return frozenset(step.number for step in rank.steps)


def repeats_of(
    ranks: Sequence[RankHead], step: str, lasted: Sequence[float | None]
) -> Repeats | None:
    """Return how a step follows the one before it; None without successive steps, and for ``all``.

    ``lasted`` is the result of :func:`period` of each rank.

    The pause is the median over all ranks and pairs of successive steps. The period is from the end
    of the previous step to that of the step, on host and device, in the mean over ranks: a host
    ahead of its device begins steps at any time. For the first recorded step, whose predecessor is
    unknown, it is the length on the host plus the pause.
    """
    if step == ALL:
        return None
    pauses = [
        after.start - before.end
        for rank in ranks
        for before, after in pairwise(sorted(rank.steps, key=lambda profiled: profiled.start))
        if after.number == before.number + 1
    ]
    if not pauses:
        return None
    pause, number = max(0.0, float(np.median(pauses))), int(step)
    periods = [length for length in lasted if length is not None]
    if len(periods) < len(ranks):
        spans = (_numbered_step(rank, number) for rank in ranks)
        periods = [span.end - span.start + pause for span in spans]
    return Repeats(pause=pause, period=max(0.0, float(np.mean(periods))))


def period(rank: RankTrace, window: Window) -> float | None:
    """From the end of the previous step to that of a step (s); None if not recorded.

    A step has ended when it has on the rank's host, and all that it launched on its device.
    """
    if window.step == ALL or int(window.step) - 1 not in _numbers(rank):
        return None
    before = step_window(rank, str(int(window.step) - 1))
    begun, ended = (
        float(rank.device.end[step.device].max(initial=step.end)) for step in (before, window)
    )
    return ended - begun


def _numbered_step(rank: RankHead, number: int) -> ProfilerStep:
    return next(step for step in rank.steps if step.number == number)


def step_window(rank: RankTrace, step: str) -> Window:
    """Select a rank's events of a step (a number, or ``all``)."""
    device = rank.device
    launched = rank.host.correlation[rank.host.correlation >= 0]
    paired = _among(device.correlation, launched) & (device.correlation >= 0)
    # Start of the first op of each stream whose launch is in the trace (s): anything earlier was
    # launched before the recording began and belongs to no step of the trace.
    first = np.full(int(device.stream.max(initial=-1)) + 1, np.inf)
    np.minimum.at(first, device.stream[paired], device.start[paired])
    in_flight = ~paired & (device.start < np.where(np.isinf(first), -np.inf, first)[device.stream])
    if rank.steps:
        chosen = rank.steps if step == ALL else (_numbered_step(rank, int(step)),)
        start = min(profiled.start for profiled in chosen)
        end = max(profiled.end for profiled in chosen)
    else:
        of_any_step = device.start[~in_flight] if len(rank.host) else device.start
        starts = [column[0] for column in (rank.host.start, of_any_step) if len(column)]
        ends = [column.end.max() for column in (rank.host, device) if len(column)]
        if not starts:
            reason = "no host or device event; record CPU and CUDA activities"
            raise TraceError(f"{rank.file}: {reason}")
        start, end = float(min(starts)), float(np.nextafter(max(ends), np.inf))
    host = np.flatnonzero((rank.host.start >= start) & (rank.host.start < end))
    # A kernel belongs to the step in which it was launched, whenever it runs. One without a launch
    # in the trace belongs to the step in which it starts, unless it was launched before the
    # recording.
    in_window = _among(device.correlation, rank.host.correlation[host]) & (device.correlation >= 0)
    orphan = ~paired & ~in_flight & (device.start >= start) & (device.start < end)
    if rank.steps and step != ALL:
        in_flight &= (device.start >= start) & (device.start < end)
    return Window(
        start=start,
        end=end,
        host=host,
        device=np.flatnonzero(in_window | orphan),
        unlaunched=np.flatnonzero(orphan),
        step=step,
        in_flight=int(in_flight.sum()),
    )


def _among(correlation: Longs, launched: Longs) -> NDArray[np.bool_]:
    """Mark the ids that are among others: as ``np.isin``, in a tenth of its time for ids apart."""
    ids = np.append(np.sort(launched), -1)  # beyond all of them: no id of a launch
    return np.asarray(ids[np.searchsorted(ids[:-1], correlation)] == correlation)


class Launches(Struct, frozen=True, eq=False):
    """Launches of a step in order of their start; columns have shape ``(launched,)``.

    Host row ``host[i]`` launched device row ``device[i]`` (one launch of a graph has many rows).
    ``of_device`` maps a device row to its host row. ``latency`` is the usual one
    (:func:`typical_latency`, s). ``held`` are the host rows whose call reached the device only as
    it returned: a module was loaded, a graph uploaded, the thread preempted. The call took longer
    than a launch, and its first kernel did not start before it had ended; all that time is the
    host's.
    """

    host: NDArray[np.int64]
    device: NDArray[np.int64]
    of_device: dict[int, int]
    latency: float = 0.0
    held: frozenset[int] = frozenset()


def pair(trace: RankTrace, window: Window) -> Launches:
    """Pair launches and device events by correlation id."""
    host, device = trace.host, trace.device
    launched = launch_rows(trace)[window.device]
    inside = np.isin(launched, window.host)
    both = np.column_stack((launched, window.device))[inside]
    both = both[np.lexsort((device.start[both[:, 1]], host.start[both[:, 0]]))]
    of_device = dict(zip(both[:, 1].tolist(), both[:, 0].tolist(), strict=True))
    paired = Launches(both[:, 0], both[:, 1], of_device)
    latency, first = typical_latency(trace, paired), first_nodes(paired)
    called, node = paired.host[first], paired.device[first]
    # A call that copies may wait for the copy and is not delayed.
    late = (host.end[called] > host.start[called] + latency + EXPLAINED) & ~device.copy[node]
    late &= device.start[node] >= host.end[called] - CONTRADICTED
    return structs.replace(paired, latency=latency, held=frozenset(called[late].tolist()))


_AT_MOST = 10e-6
"""Latency (s) if no launch of the step met an idle device: CUDA's is 5-10 us."""
_LONGEST = 50e-6
"""A launch that took longer (s) waited for something: CUDA's and HIP's take 5-20 us."""


def typical_latency(trace: RankTrace, launches: Launches) -> float:
    """Return the median time from a launch's start to its kernel's on an idle device (s).

    Of the kernels of a graph only the first counts: the others wait for one another. Idle means on
    all streams: an idle stream may wait for a busy one. A kernel that started as a long call
    returned was launched then. If the device was never idle, or all took too long, it is the least
    seen, but at most a launch's usual latency; 0 without launches.
    """
    if not len(launches.device):
        return 0.0
    first, row = first_nodes(launches), launch_rows(trace)
    called, start = launches.host[first], trace.device.start[launches.device[first]]
    begun, returned = trace.host.start[called], trace.host.end[called]
    behind = (returned > begun + EXPLAINED) & (start >= returned - CONTRADICTED)
    delay = start - begun
    alone = np.where(behind, np.maximum(0.0, start - returned), delay)
    # Idle: all earlier launches, of whatever step, had ended. Ops without a launch in the trace
    # were launched before its first; without any, what the device did at first is unknown.
    launched = np.full(len(row), -np.inf)
    launched[row >= 0] = trace.host.start[row[row >= 0]]
    order = np.argsort(launched, kind="stable")
    # ended[i]: when the last of the first i launched ops had ended; infinity before any.
    ended = np.concatenate([[np.inf], np.maximum.accumulate(trace.device.end[order])])
    is_idle = ended[np.searchsorted(launched[order], begun)] <= begun
    good = is_idle & (alone >= 0) & (alone <= _LONGEST)
    if good.any():
        return float(np.median(alone[good]))
    return float(max(0.0, min(_AT_MOST, delay.min())))


def first_nodes(launches: Launches) -> NDArray[np.int64]:
    """Return the row of the first device op of each launch, shape ``(calls,)``; rows are sorted."""
    _, first = np.unique(launches.host, return_index=True)
    return np.sort(first)
