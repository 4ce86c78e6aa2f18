"""Which host event launched which device event."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traces.core.events import HostKind, RankTrace, launch_rows
from traces.core.loaded import CONTRADICTED, EXPLAINED
from traces.profiler.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """Launches of a step in order of their start; columns have shape ``(launched,)``.

    Row ``i`` says that host row ``host[i]`` launched device row ``device[i]`` (one launch of a
    graph has many rows). ``of_device`` maps a device row to its host row. ``held`` are the host
    rows whose call reached the device only as it returned (:func:`held_up`).
    """

    host: NDArray[np.int64]
    device: NDArray[np.int64]
    of_device: dict[int, int]
    held: frozenset[int] = frozenset()

    def submitted(self, trace: RankTrace, row: int) -> float:
        """When a call (host row) reached the device, before its latency (s)."""
        return float((trace.host.end if row in self.held else trace.host.start)[row])


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
    paired = Launches(both[:, 0], both[:, 1], {device: launch for launch, device in pairs})
    return replace(paired, held=held_up(trace, paired, typical_latency(trace, paired)))


_AT_MOST = 10e-6
"""Latency (s) where no launch of the step met an idle device: CUDA's is 5-10 us."""
_LONGEST = 50e-6
"""A launch that took longer (s) waited for something: CUDA's and HIP's take 5-20 us."""


def typical_latency(trace: RankTrace, launches: Launches) -> float:
    """Median time from a launch's start to its kernel's on a device that was idle (s).

    Of the kernels of a graph only the first counts: the others wait for one another. Idle on all
    streams: an idle stream may wait for a busy one. A kernel that started as a long call returned
    was launched then. Where none was ever idle, and where all took too long, the least seen and no
    more than a launch takes; 0 without launches.
    """
    if not len(launches.device):
        return 0.0
    first = first_nodes(launches)
    called, start = launches.host[first], trace.device.start[launches.device[first]]
    returned = trace.host.end[called]
    long = returned > trace.host.start[called] + EXPLAINED
    behind = long & (start >= returned - CONTRADICTED)
    delay = start - trace.host.start[called]
    alone = np.where(behind, np.maximum(0.0, start - returned), delay)
    good = _device_idle(trace, called) & (alone >= 0) & (alone <= _LONGEST)
    if good.any():
        return float(np.median(alone[good]))
    return float(max(0.0, min(_AT_MOST, delay.min())))


def first_nodes(launches: Launches) -> NDArray[np.int64]:
    """Find the row of the first device op of each launch, shape ``(calls,)``: they are sorted."""
    _, first = np.unique(launches.host, return_index=True)
    return np.sort(first)


def later_nodes(launches: Launches) -> NDArray[np.int64]:
    """Return the device rows of all ops but the first of each launch."""
    return np.delete(launches.device, first_nodes(launches))


def _device_idle(trace: RankTrace, host: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether all that was launched before a launch, in whatever step, had ended by then.

    A busy device is between two kernels now and then, with its queue full. What is not launched in
    the trace was launched before its first launch; where nothing was, nobody knows what the device
    had to do when the recording began.
    """
    called = _launch_times(trace)
    order = np.argsort(called, kind="stable")
    ended = np.concatenate([[np.inf], np.maximum.accumulate(trace.device.end[order])])
    start = trace.host.start[host]
    return np.asarray(ended[np.searchsorted(called[order], start)] <= start)


def held_up(trace: RankTrace, launches: Launches, latency: float) -> frozenset[int]:
    """Find the calls (host rows) that reached the device only as they returned.

    A module was loaded, a graph uploaded, the thread preempted: the call took longer than a launch
    (``latency``, s) and its first kernel did not start before it was over. All that time is the
    host's. A call that copies may wait for the copy: it is none of them.
    """
    first = first_nodes(launches)
    called = launches.host[first]
    returned = trace.host.end[called]
    late = returned > trace.host.start[called] + latency + EXPLAINED
    late &= trace.device.start[launches.device[first]] >= returned - CONTRADICTED
    late &= ~trace.device.copy[launches.device[first]]
    return frozenset(called[late].tolist())


def _launch_times(trace: RankTrace) -> NDArray[np.float64]:
    """When each device op of the trace was launched (s); -inf where its launch is not in it."""
    row = launch_rows(trace)
    if not len(trace.host):
        return np.full(len(trace.device), -np.inf)
    return np.where(row >= 0, trace.host.start[row], -np.inf)
