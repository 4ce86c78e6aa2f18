"""Which host event launched which device event."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.core.events import HostKind, RankTrace, launch_rows
from traces.profiler.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Launches of a step in order of their start; columns have shape ``(launched,)``.

    Row ``i`` says that host row ``host[i]`` launched device row ``device[i]`` (one launch of a
    graph has many rows). ``of_device`` maps a device row to its host row.
    """

    host: NDArray[np.int64]
    device: NDArray[np.int64]
    of_device: dict[int, int]


def pair(trace: RankTrace, window: Window) -> Launches:
    """Pair launches and device events by correlation id."""
    host = window.host[
        (trace.host.kind[window.host] == HostKind.RUNTIME)
        & (trace.host.correlation[window.host] >= 0)
    ]
    row_of = dict(zip(trace.host.correlation[host].tolist(), host.tolist(), strict=True))
    pairs = [
        (row_of[correlation], row)
        for row, correlation in zip(
            window.device.tolist(), trace.device.correlation[window.device].tolist(), strict=True
        )
        if correlation in row_of
    ]
    pairs.sort(
        key=lambda launched: (trace.host.start[launched[0]], trace.device.start[launched[1]])
    )
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Launches(both[:, 0], both[:, 1], {device: launch for launch, device in pairs})


_AT_MOST = 10e-6
"""Latency (s) where no launch of the step met an idle device: CUDA's is 5-10 us."""


def typical_latency(trace: RankTrace, launches: Launches) -> float:
    """Median time from a launch's start to its kernel's on a device that was idle (s).

    Idle on all streams: an idle stream may wait for a busy one. Where none was ever idle the
    least seen; 0 without launches.
    """
    if not len(launches.device):
        return 0.0
    delay = trace.device.start[launches.device] - trace.host.start[launches.host]
    idle = delay[_device_idle(trace, launches) & (delay >= 0)]
    if len(idle):
        return float(np.median(idle))
    return float(max(0.0, min(_AT_MOST, delay.min())))


def _device_idle(trace: RankTrace, launches: Launches) -> NDArray[np.bool_]:
    """Whether all that was launched before a launch, in whatever step, had ended by then.

    A busy device is between two kernels now and then, with its queue full; what is not launched
    in the trace was launched before its first launch.
    """
    called = _launch_times(trace)
    order = np.argsort(called, kind="stable")
    ended = np.concatenate([[-np.inf], np.maximum.accumulate(trace.device.end[order])])
    start = trace.host.start[launches.host]
    return np.asarray(ended[np.searchsorted(called[order], start)] <= start)


def _launch_times(trace: RankTrace) -> NDArray[np.float64]:
    """When each device op of the trace was launched (s); -inf where its launch is not in it."""
    row = launch_rows(trace)
    if not len(trace.host):
        return np.full(len(trace.device), -np.inf)
    return np.where(row >= 0, trace.host.start[row], -np.inf)
