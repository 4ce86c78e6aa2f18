"""A case on all its networks: recorded on one, timed on every one, in an order that is shuffled."""

import random
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.live import job, network, probe
from benchmarks.live.cases import LATENCY, Case, Point
from benchmarks.live.network import Network, Rates

Say = Callable[[str], None]
MOST_MAD = 0.04
"""Median absolute deviation of steps, a share of their median, beyond which a case is refused."""
MOST_LONGER = 0.03
"""Share by which recorded steps may be off those without a profiler."""
_OFF = 0.1
"""How far (a share) a network may be from what was set before it is said."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run: ``rounds`` times ``steps`` at every point; ``recorded`` steps profiled.

    A case that takes longer than ``limit`` (s) is given up. ``control`` is TCP's congestion
    control, "" for the host's.
    """

    control: str = ""
    rounds: int = 3
    steps: int = 4
    recorded: int = 4
    limit: float = 180.0


@dataclass(slots=True)
class Measured:
    """What came out: step times (s) by point, and the network the recording was made on."""

    case: Case
    latency: float
    delayed_by: str
    control: str
    steps: dict[Point, list[float]] = field(default_factory=dict)
    recorded: dict[Path, float] = field(default_factory=dict)

    def median(self, point: Point) -> float:
        """Median step (s)."""
        return statistics.median(self.steps[point])

    def unsound(self) -> str:
        """Say why what was measured is no truth; "" if it is.

        Steps on one network may scatter by no more than ``MOST_MAD``, and the recorded ones may
        not be longer or shorter than those without a profiler by more than ``MOST_LONGER``.
        """
        scatter = {point: self.mad(point) / self.median(point) for point in self.steps}
        worst = max(scatter, key=lambda point: scatter[point])
        if scatter[worst] > MOST_MAD:
            return f"steps at x{worst.factor:g} scatter by {scatter[worst]:.1%}"
        plain = self.median(Point(self.case.resource, 1.0))
        longer = min((steps / plain - 1 for steps in self.recorded.values()), key=abs)
        if abs(longer) > MOST_LONGER:
            return f"recorded steps are {longer:+.1%} longer than those without a profiler"
        return ""

    def mad(self, point: Point) -> float:
        """Median absolute deviation of steps from their median (s)."""
        middle = self.median(point)
        return statistics.median(abs(step - middle) for step in self.steps[point])


def measure(case: Case, plan: Plan, folder: Path, scratch: Path, say: Say) -> Measured:
    """Run a case; its recording is in ``folder`` then, a trace per rank.

    Points are visited in another order in each round, so that what the machine does besides falls
    on all alike. The first step after a change of the network is not counted. Each round makes a
    recording; the one is kept whose steps are nearest to those measured on the same network without
    a profiler. That looks at no other network.

    Raises
    ------
    NetworkError, JobError
        As :mod:`benchmarks.live.network` and :mod:`benchmarks.live.job` say.
    """
    with network.up(case.ranks, delayed=case.is_delayed, control=plan.control) as net:
        own = _own_latency(net, case)
        found = Measured(case, own + case.base.delay, net.delayed_by, net.control)
        for point in case.points():
            _check(net, case, point, own, say)
        with job.started(case, net, scratch, plan.limit) as ranks:
            for number in range(plan.rounds):
                points = list(case.points())
                random.Random(number).shuffle(points)
                for point in points:
                    net.set(case.rates(point, own))
                    ranks.steps(1)
                    found.steps.setdefault(point, []).extend(ranks.steps(plan.steps))
                net.set(case.base)
                ranks.steps(1)
                kept = scratch / f"{case.name}.{number}"
                found.recorded[kept] = statistics.median(ranks.record(plan.recorded, kept))
    if not found.unsound():
        _keep(found, folder)
    return found


def _keep(found: Measured, folder: Path) -> None:
    """Move the most typical recording to its place."""
    plain = found.median(Point(found.case.resource, 1.0))
    best = min(found.recorded, key=lambda one: abs(found.recorded[one] - plain))
    if folder.exists():
        shutil.rmtree(folder)
    shutil.move(best, folder)


def _own_latency(net: Network, case: Case) -> float:
    """Measure what the network's latency is besides what is added to it (s)."""
    net.set(case.base)
    return max(0.0, probe.latency(net) - case.base.delay)


def _check(net: Network, case: Case, point: Point, own: float, say: Say) -> None:
    """Say where a network is not what was set: the machine cannot do it then."""
    rates: Rates = case.rates(point, own)
    net.set(rates)
    if point.resource == LATENCY:
        wanted, got, unit = rates.delay + own, probe.latency(net), "us"
        scale = 1e6
    else:
        wanted, got, unit = rates.bandwidth * network.PAYLOAD / 8, probe.bandwidth(net), "MB/s"
        scale = 1e-6
    if abs(got / wanted - 1) > _OFF:
        what = f"{case.name} at {point.resource} x{point.factor:g}"
        say(f"{what}: {scale * wanted:.0f} {unit} were set, {scale * got:.0f} came out")
