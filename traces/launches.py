"""Which host event launched which device event."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.events import HostKind, RankTrace
from traces.window import Window


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
    pairs.sort(key=lambda one: (trace.host.start[one[0]], trace.device.start[one[1]]))
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Launches(both[:, 0], both[:, 1], {device: launch for launch, device in pairs})


def typical_latency(trace: RankTrace, window: Window, launches: Launches) -> float:
    """Median time from a launch's start to its kernel's on a stream that was idle (s).

    The least seen where no stream was ever idle; 0 without launches.
    """
    if not len(launches.device):
        return 0.0
    delay = trace.device.start[launches.device] - trace.host.start[launches.host]
    idle = delay[_stream_idle(trace, window, launches) & (delay >= 0)]
    if len(idle):
        return float(np.median(idle))
    return float(max(0.0, delay.min()))


def _stream_idle(trace: RankTrace, window: Window, launches: Launches) -> NDArray[np.bool_]:
    before = np.full(len(trace.device), -np.inf)
    rows = window.device[
        np.lexsort((trace.device.start[window.device], trace.device.stream[window.device]))
    ]
    same = trace.device.stream[rows[1:]] == trace.device.stream[rows[:-1]]
    before[rows[1:][same]] = trace.device.end[rows[:-1][same]]
    return np.asarray(before[launches.device] < trace.host.start[launches.host])
