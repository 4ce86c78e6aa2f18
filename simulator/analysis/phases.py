"""Phases of serving that a trace marks, and the latencies that follow from them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from msgspec import Struct

from simulator.timeline import RunTimes

PREFILL, DECODE = "prefill", "decode"
MIXED = "mixed"
"""A pass that reads prompts in and makes tokens for other requests."""
WHOLE = ""
"""Lane of a phase that is the whole step of a rank, as in generated steps, which have no measured
times."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A range on a host thread that marks a phase, with its measured times (s).

    Its last device op ended at ``done`` on ``stream``; "" if no op that it launched ran beyond its
    end.
    """

    name: str
    rank: int
    lane: str
    start: float
    end: float
    stream: str = ""
    done: float = -np.inf


class ServingLatency(Struct, frozen=True):
    """Time to first token and time per output token after it (s); None if not defined."""

    ttft: float | None
    tpot: float | None


def serving_latency(run: RunTimes, phases: Iterable[Phase]) -> ServingLatency | None:
    """TTFT and TPOT of the first request whose prefill is marked; None where nothing is.

    TTFT is from the start of the first prefill to the end of the last one before a decode (a
    prefill may come in chunks, beside which tokens are made for other requests); TPOT is from there
    to the end of the last decode, over the number of decodes, each of which makes a token:
    (latency - TTFT) / (output tokens - 1), as vLLM's benchmarks and CCL-Bench (arXiv 2605.06544)
    have it. Without a prefill before them it is from the start of the first decode; without a
    decode, that of the passes which do both. A phase is over when all that it launched has ended.
    Of several ranks the slowest counts. A range that lies in another of its name is part of it.
    """
    by_rank: dict[int, list[Phase]] = {}
    for phase in phases:
        by_rank.setdefault(phase.rank, []).append(phase)
    latencies = [_of_rank(run, _outermost(ranges)) for _, ranges in sorted(by_rank.items())]
    measured = [latency for latency in latencies if latency is not None]
    if not measured:
        return None
    first = [latency.ttft for latency in measured if latency.ttft is not None]
    per_token = [latency.tpot for latency in measured if latency.tpot is not None]
    return ServingLatency(max(first, default=None), max(per_token, default=None))


def moment(run: RunTimes, rank: int, lane: str, time: float) -> float | None:
    """Return when a run reaches a measured time of a lane (s); None if the lane has no ops.

    Inside an op by the share of it that is done, after one by the time since.
    """
    workload = run.workload
    if lane not in workload.lanes:
        return None
    on_lane = (workload.rank == rank) & (workload.lane == workload.lanes.index(lane))
    ops = np.flatnonzero(on_lane & ~np.isnan(workload.measured_start))
    if not len(ops):
        return None
    ops = ops[np.lexsort((workload.measured_end[ops], workload.measured_start[ops]))]
    begun_last = int(np.searchsorted(workload.measured_start[ops], time, side="right")) - 1
    if begun_last < 0:
        return float(run.start[ops[0]]) - (float(workload.measured_start[ops[0]]) - time)
    op = ops[begun_last]
    begun, over = float(workload.measured_start[op]), float(workload.measured_end[op])
    start, end = float(run.start[op]), float(run.end[op])
    if time >= over:
        return end + (time - over)
    return start + (end - start) * (time - begun) / (over - begun)


def _of_rank(run: RunTimes, phases: Sequence[Phase]) -> ServingLatency | None:
    decodes = [phase for phase in phases if phase.name == DECODE]
    first_decode = min((phase.start for phase in decodes), default=np.inf)
    prefills = [p for p in phases if p.name != DECODE and p.start < first_decode]
    ttft = token = None
    if prefills:
        begin, token = _begin(run, prefills[0]), _end(run, prefills[-1])
        if begin is None or token is None:
            return None
        ttft = token - begin
    passes = decodes or [phase for phase in prefills if phase.name == MIXED]
    if not passes:
        return None if ttft is None else ServingLatency(ttft, None)
    from_time = token if decodes and token is not None else _begin(run, passes[0])
    last = _end(run, passes[-1])
    if from_time is None or last is None:
        return None if ttft is None else ServingLatency(ttft, None)
    return ServingLatency(ttft, (last - from_time) / len(passes))


def _begin(run: RunTimes, phase: Phase) -> float | None:
    if phase.lane == WHOLE:
        return float(run.start.min(initial=np.inf))
    return moment(run, phase.rank, phase.lane, phase.start)


def _end(run: RunTimes, phase: Phase) -> float | None:
    """When the thread has left a phase, and its device has ended all that the phase launched."""
    if phase.lane == WHOLE:
        return float(run.end[run.workload.rank == phase.rank].max(initial=-np.inf))
    times = [moment(run, phase.rank, phase.lane, phase.end)]
    if phase.stream and phase.done > phase.end:
        times.append(moment(run, phase.rank, phase.stream, phase.done))
    return max((time for time in times if time is not None), default=None)


def _outermost(phases: Sequence[Phase]) -> list[Phase]:
    """Drop ranges inside another of the same name, and sort by start."""
    by_name: dict[str, list[Phase]] = {}
    for phase in sorted(phases, key=lambda phase: (phase.start, -phase.end)):
        outer = by_name.setdefault(phase.name, [])
        if not outer or phase.end > outer[-1].end:
            outer.append(phase)
    return sorted(chain.from_iterable(by_name.values()), key=lambda phase: phase.start)
