"""Max-min sharing beside a packet simulator: ``python -m benchmarks.packets``.

Twelve patterns of point-to-point traffic between 128 hosts of a fat tree (k = 8, 100 Gbit/s, 1 us a
hop, 4 MB a flow), and when the last flow ended in `uet-htsim` (commit 40ccb05, ``htsim_uec``: NSCC
with trimming; ``../shared/reference/packets``, which does not ship; where it is absent this says so
and passes). Its policies are ours: ``oblivious`` is ``spray``, ``reps`` ``adaptive``, ``ecmp``
``ecmp``, whose packets are hashed by other functions, so that only the mean over patterns and
seeds compares.

Sharing without loss is what packets cannot quite reach. ``in packets`` is what the model says with
what :mod:`simulator.analysis.contention` knows of packets: their headers, the acknowledgement of
the last one, and the queues in which they wait for others where each takes a path of its own.
Nothing in it was fitted; the two halves of the last table are every second row.

Under ECMP a pattern ends when the uplink does that most flows were hashed to, a whole number of
them: in 20 draws four on most (80 %), five or six else. A median of five draws is therefore one of
a few numbers, and the table has the flows on that uplink, there and here. ``rings`` and ``shift16``
are the same flows, and end at 1,651 and 1,356 us there: no model is nearer than 10 % to both.
"""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments.questions.explain import ReplayReport, replay
from experiments.settings import Settings
from simulator.analysis.contention import HEADERS, PAYLOAD, packets_of
from simulator.routing.routes import Routes, routes
from simulator.routing.totals import link_loads
from simulator.support.arrays import Floats

FOLDER = Path(__file__).parents[1] / ".." / "shared" / "reference" / "packets"
CLUSTER = "fat_tree:8@{}, 100 Gbit/s, 1 us"
POLICIES = {"oblivious": "spray", "reps": "adaptive", "ecmp": "ecmp"}
SLOW = " one uplink at 25 %"
"""Behind a pattern's name: one of the uplinks of its first edge switch is slow."""
SEEDS = range(5)
"""Draws of ECMP's hash; the packet simulator's own figure is the median of as many."""
EQUAL = ("rings", "shift16")
"""Patterns of equal flows that fill uplinks."""
ALONE = 4e6 / 12.5e9 * 1e6
"""What a flow takes on a link by itself (us)."""


_PRECISION = 1e-9
"""To which a delay is found."""


class Row(NamedTuple):
    """A pattern under a policy: when its last flow ended, there and here, and in packets (us)."""

    pattern: str
    policy: str
    packets: float
    modelled: float
    in_packets: float

    @property
    def error(self) -> float:
        """By what part the model in packets is off; positive is too slow."""
        return self.in_packets / self.packets - 1


def rows(folder: Path) -> list[Row]:
    """Simulate every pattern that the table has."""
    table = pd.read_csv(folder / "completion.csv")
    return [
        Row(
            row.scenario,
            row.policy,
            float(row.end_us),
            *modelled(folder, row.scenario, POLICIES[row.policy]),
        )
        for row in table.itertuples()
    ]


def modelled(folder: Path, scenario: str, policy: str) -> tuple[float, float]:
    """Return when the last flow of a pattern ends, and in packets (us); of ECMP's draws medians."""
    pattern, slow = scenario.removesuffix(SLOW), scenario.endswith(SLOW)
    settings = Settings(what_ifs=("link edge:0.0->aggregation:0.0 x0.25",) if slow else ())
    draws = [f"{policy}:{seed}" for seed in SEEDS] if policy == "ecmp" else [policy]
    trace = folder / f"{pattern}.goal.gz"
    reports = [replay(trace, CLUSTER.format(draw), settings=settings) for draw in draws]
    ends = [(end, in_packets(report, end)) for report in reports for end in [_end(report)]]
    fluid, packed = np.median(ends, axis=0)
    return 1e6 * float(fluid), 1e6 * float(packed)


def _end(report: ReplayReport) -> float:
    return max(rank.simulated_end_s for rank in report.ranks)


def in_packets(report: ReplayReport, end: float) -> float:
    """Return when a pattern's last packet is acknowledged (s) if its last byte arrives at ``end``.

    All flows start at once. Of those that may end last the one counts that waits longest for
    packets of others: a flow lasts as long as the fullest link on its way is busy.
    """
    network, workload = report.base.timeline.topology, report.base.scenario.workload
    views = [workload.call_view(call) for call in range(len(workload.calls))]
    source, target = np.array([view.group.ranks for view in views], dtype=np.int32).T
    size = np.array([view.size for view in views])
    busy = link_loads(network, source, target, size) / network.bandwidth
    ways, lasts, delay, there_and_back = routes(network, source, target, size), 0.0, 0.0, 0.0
    for flow, (first, last) in enumerate(pairwise(ways.offset.tolist())):
        way = Routes(np.array([0, last - first]), ways.link[first:last], ways.share[first:last])
        variance, in_flight = packets_of(network, way)
        fullest, wire = float(busy[way.link].max()), network.bandwidth[way.link[0]]
        waited = 0.0
        for part, flows in phases(size[source == source[flow]]):
            windows = flows * fullest / busy[way.link[0]]
            waited += part * packet_delay(busy[way.link] / fullest, variance, in_flight, windows)
        if fullest * (1 + waited) > lasts * (1 + delay):
            lasts, delay = fullest, waited
            there_and_back = in_flight * (PAYLOAD + HEADERS) / wire
    latency = float(ways.along(network.latency).max())
    return (end - latency) * (1 + HEADERS / PAYLOAD) * (1 + delay) + there_and_back


def phases(size: Floats) -> list[tuple[float, int]]:
    """Part the time that a NIC sends flows of these sizes (B) at equal rates: how many are left.

    Each has a window of its own, so that together they wait the less the more there are.
    """
    flows = np.arange(len(size), 0, -1)
    sent = np.diff(np.sort(size), prepend=0.0) * flows / size.sum()
    return list(zip(sent.tolist(), flows.tolist(), strict=True))


def is_hashed(row: Row) -> bool:
    """Whether whole flows meet, by a hash."""
    return row.policy == "ecmp" and row.pattern in EQUAL


def flows_on_busiest(time: float) -> int:
    """Count the flows of 4 MB that a link of 100 Gbit/s has sent one after the other in a time."""
    return round(time / ALONE)


def report(measured: list[Row], console: Console) -> None:
    """Print every row, and what the model in packets is off on every second one and on others."""
    shown = Table("pattern", "policy", "packets us", "max-min us", "in packets us", "error %")
    for row in measured:
        error = f"{100 * row.error:+.1f}"
        if is_hashed(row):
            flows = flows_on_busiest(row.packets), flows_on_busiest(row.modelled)
            error += f" ({flows[0]} and {flows[1]} flows)"
        times = f"{row.packets:.0f}", f"{row.modelled:.0f}", f"{row.in_packets:.0f}"
        shown.add_row(row.pattern, row.policy, *times, error)
    console.print(shown)
    left = Table("policy", "rows", "mean %", "worst %", "one half %", "other half %", "max-min %")
    for policy in POLICIES:
        own = [row for row in measured if row.policy == policy]
        off = 100 * np.abs([row.error for row in own])
        without = 100 * np.abs([row.modelled / row.packets - 1 for row in own])
        figures = off.mean(), off.max(), off[::2].max(), off[1::2].max(), without.max()
        left.add_row(policy, str(len(own)), *(f"{value:.1f}" for value in figures))
    console.print(left)


def main(folder: Path = FOLDER, *, console: Console | None = None) -> None:
    """Print modelled beside simulated packet by packet."""
    console = console or Console(width=110)
    if not folder.exists():
        console.print(f"skipped: {folder.name} is not here; the patterns do not ship")
        return
    report(rows(folder), console)


def packet_delay(load: Floats, variance: Floats, in_flight: float, windows: float = 1.0) -> float:
    """Say by what part of their time packets of a message wait for others.

    A cable of load ``x`` on which packets come from many ports at random has a queue of
    ``variance * x / (2 (1 - x))`` packets, ``variance`` being ``1 - 1 / ports`` (M. Karol,
    M. Hluchyj and S. Morgan, IEEE Trans. Communications 35, 1987). A sender lets as many packets
    be on their way as fill it without queues, which is what congestion control aims at, and no
    more: by Little's law it sends the slower the longer they wait.

    Parameters
    ----------
    load
        Of each cable on the way, of what the fullest carries, shape ``(cables,)``.
    variance
        Of packets on it, by the part of the message that passes it, shape ``(cables,)``.
    in_flight
        Packets that fill the way there and back.
    windows
        How many times as many the sender lets be on their way for each that its share of the
        network needs: more if it has several messages, or other cables slow it.

    Examples
    --------
    >>> round(packet_delay(np.ones(4), np.full(4, 0.75), 42.0), 3)
    0.189
    """
    low, high = 0.0, 10.0
    while high - low > _PRECISION:
        delay = (low + high) / 2
        busy = load / (1 + delay)
        queued = float((variance * busy / (2 * (1 - busy))).sum())
        if in_flight + queued > windows * in_flight * (1 + delay):
            low = delay
        else:
            high = delay
    return low


if __name__ == "__main__":
    main()
