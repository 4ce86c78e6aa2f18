"""Which part of a rank's trace is the step, and which ranges of it are prefill and decode."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.phases import DECODE, PREFILL, Phase
from simulator.errors import TraceError
from traces.core.events import DeviceEvents, HostKind, ProfilerStep, RankTrace
from traces.core.loaded import ALL, MEDIAN


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows of a rank's host and device events that belong to the step, and its bounds (s).

    A device event belongs to the step whose host launched it, even if it ran later; one whose
    launch is not in the trace (``unlaunched``), to the step it started in. Times are those of the
    trace, since its epoch.
    """

    start: float
    end: float
    host: NDArray[np.int64]
    device: NDArray[np.int64]
    unlaunched: NDArray[np.int64]
    step: str


def choose_step(ranks: Sequence[RankTrace], step: str) -> str:
    """Resolve ``median`` to a step's number; a number and ``all`` must exist on every rank.

    The median is taken over the steps' longest duration on any rank, without the first step if
    there are more than two: it is often a warm-up. A job without steps answers ``all``.

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
        return _named(ranks, step)
    if common != every:
        rank = next(rank for rank, own in zip(ranks, numbers, strict=True) if own != every)
        lacks = ", ".join(f"ProfilerStep#{number}" for number in sorted(every - _numbers(rank)))
        hint = f"choose one with --step {max(common)}" if common else "they have none in common"
        raise TraceError(f"{rank.file}: lacks {lacks}, which other ranks have; {hint}")
    if step == ALL:
        return ALL
    return str(_median(ranks, sorted(common)))


def _named(ranks: Sequence[RankTrace], step: str) -> str:
    for rank in ranks:
        if not step.isdigit() or int(step) not in _numbers(rank):
            has = ", ".join(str(number) for number in sorted(_numbers(rank))) or "none"
            raise TraceError(f"{rank.file}: no ProfilerStep#{step}; it has {has}")
    return step


def _numbers(rank: RankTrace) -> frozenset[int]:
    return frozenset(step.number for step in rank.steps)


def _median(ranks: Sequence[RankTrace], numbers: list[int]) -> int:
    if len(numbers) > 2:
        numbers = numbers[1:]
    longest = {
        number: max(_of(rank, number).end - _of(rank, number).start for rank in ranks)
        for number in numbers
    }
    by_time = sorted(numbers, key=lambda number: (longest[number], number))
    return by_time[len(by_time) // 2]


def _of(rank: RankTrace, number: int) -> ProfilerStep:
    return next(step for step in rank.steps if step.number == number)


def step_window(rank: RankTrace, step: str) -> Window:
    """Select a rank's events of a step (a number, or ``all``)."""
    start, end = _bounds(rank, step)
    host = np.flatnonzero((rank.host.start >= start) & (rank.host.start < end))
    launched_in = np.unique(rank.host.correlation[host])
    launched = np.unique(rank.host.correlation[rank.host.correlation >= 0])
    device = rank.device
    mine = np.isin(device.correlation, launched_in) & (device.correlation >= 0)
    paired = np.isin(device.correlation, launched) & (device.correlation >= 0)
    orphan = ~paired & (device.start >= _first_start(device, paired)[device.stream])
    orphan &= (device.start >= start) & (device.start < end)
    return Window(
        start=start,
        end=end,
        host=host,
        device=np.flatnonzero(mine | orphan),
        unlaunched=np.flatnonzero(orphan),
        step=step,
    )


def _first_start(device: DeviceEvents, paired: NDArray[np.bool_]) -> NDArray[np.float64]:
    """When the first op of each stream that has its launch in the trace started (s).

    What ran before it was launched before the recording began: it is of no step of the trace.
    """
    first = np.full(int(device.stream.max(initial=-1)) + 1, np.inf)
    np.minimum.at(first, device.stream[paired], device.start[paired])
    return np.where(np.isinf(first), -np.inf, first)


def _bounds(rank: RankTrace, step: str) -> tuple[float, float]:
    if rank.steps:
        chosen = rank.steps if step == ALL else (_of(rank, int(step)),)
        return min(profiled.start for profiled in chosen), max(profiled.end for profiled in chosen)
    starts = [column[0] for column in (rank.host.start, _of_any_step(rank)) if len(column)]
    ends = [column.end.max() for column in (rank.host, rank.device) if len(column)]
    if not starts:
        raise TraceError(f"{rank.file}: no host or device event; record CPU and CUDA activities")
    return float(min(starts)), float(np.nextafter(max(ends), np.inf))


def _of_any_step(rank: RankTrace) -> NDArray[np.float64]:
    """Return when device events not left over from before the recording start (s), ascending."""
    device, launched = rank.device, np.unique(rank.host.correlation[rank.host.correlation >= 0])
    paired = np.isin(device.correlation, launched)
    if not len(rank.host) or not len(device):
        return device.start
    return device.start[device.start >= _first_start(device, paired)[device.stream]]


_WORDS = {
    PREFILL: re.compile(r"(?<![a-z])prefill(?![a-z])", re.IGNORECASE),
    DECODE: re.compile(r"(?<![a-z])decode(?![a-z])", re.IGNORECASE),
}


def phase_of(name: str) -> str | None:
    """Return the phase that a range's name marks; None if none, or both.

    Examples
    --------
    >>> phase_of("decode_step 3"), phase_of("Prefill"), phase_of("decoder layer")
    ('decode', 'prefill', None)
    """
    marked = [phase for phase, word in _WORDS.items() if word.search(name)]
    return marked[0] if len(marked) == 1 else None


def rank_phases(trace: RankTrace, window: Window, shift: float) -> Iterator[Phase]:
    """Yield the marked ranges of a rank's step; ``shift`` (s) puts them on the job's clock."""
    marks = {index: phase for index, name in enumerate(trace.names) if (phase := phase_of(name))}
    host = trace.host
    rows = window.host[host.kind[window.host] == HostKind.ANNOTATION]
    for row in rows[np.isin(host.name[rows], list(marks))].tolist():
        yield Phase(
            name=marks[int(host.name[row])],
            rank=trace.rank,
            lane=trace.threads[host.thread[row]],
            start=float(host.start[row]) + shift,
            end=float(host.end[row]) + shift,
        )
