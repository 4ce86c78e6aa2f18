"""Autoscaling: the number of serving instances follows the number of requests."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.serving.prefix_cache import ABSENT
from simulator.serving.schedulers import COMES, DOWN, KEPT, RUNS, WAITS
from simulator.serving.state import RunState

SERVES, STOPPED, DRAINS = 0, 1, 2
"""States of an instance in ``DOWN``: one that drains gets no new request and ends those it has."""
_TOLERANCE = 0.1
"""Relative deviation from the wanted load before anything changes (Kubernetes, horizontal pod
autoscaling, ``--horizontal-pod-autoscaler-tolerance``)."""


class Scaling(NamedTuple):
    """Rules of autoscaling: enough instances that each has ``requests`` in the mean.

    ``least`` is the least number of serving instances, and the number at first; ``requests`` are
    waiting and running ones wanted for each. ``start`` is the time (s) from the decision until an
    instance serves: loading weights, capturing graphs. ``every`` is the interval (s) between two
    checks of the load, ``keep`` the time for which a recommendation counts before fewer serve:
    defaults of Kubernetes' horizontal pod autoscaler.
    """

    least: int
    requests: float
    start: float
    every: float = 15.0
    keep: float = 300.0


class Outage(NamedTuple):
    """An instance, counted from 0, that is down between two times (s); infinite if for good.

    It loses its cache and its requests in progress, which restart elsewhere. An instance that
    starts late is down from the beginning.
    """

    instance: int
    begin: float
    end: float


def switches(outages: tuple[Outage, ...]) -> list[tuple[int, int, float]]:
    """Return which instances go down (1) or come back (0), and when."""
    return [
        row
        for instance, begin, end in outages
        for row in ((instance, 1, begin), (instance, 0, end))
    ]


@dataclass(slots=True, eq=False)
class Autoscaler:
    """Checks the load of a run at intervals, and starts and drains instances.

    ``desired = ceil(current x load / wanted load)`` (Kubernetes, horizontal pod autoscaling); it is
    lowered only to the largest value wanted within ``keep``. Instances are held from the decision
    to start them until they have drained; their caches are then lost. ``state`` is the run, which
    it modifies; ``width`` are the workers of an instance.
    """

    rules: Scaling
    state: RunState
    width: int
    next: float = 0.0
    held_time: float = 0.0
    _looked: float = 0.0
    _since: float = 0.0
    _starting: dict[int, float] = field(default_factory=dict)
    _wanted: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._down()[self.rules.least :] = STOPPED
        self.next = self._looked = self.rules.every

    def _down(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Return ``DOWN`` as a writable view, a row by instance."""
        return self.state.counters[:, DOWN].reshape(-1, self.width)

    def act(self, now: float) -> bool:
        """Do what is due at a time (s); return whether anything can still happen."""
        self.count_to(now)
        down = self._down()
        for instance, ready in list(self._starting.items()):
            if ready <= now:
                down[instance] = SERVES
                del self._starting[instance]
        counters = self.state.counters
        requests = counters[:, RUNS] + counters[:, WAITS] + counters[:, COMES]
        loads = np.asarray(requests.reshape(-1, self.width).sum(axis=1))
        for instance in np.flatnonzero((down[:, 0] == DRAINS) & (loads == 0)).tolist():
            self._stop(instance)
        if now >= self._looked:
            self._scale(now, loads)
            self._looked = now + self.rules.every
        self.next = min([self._looked, *self._starting.values()])
        more = self.state.sums["coming"][0] < len(self.state.states) or self._starting
        return bool(more) or bool(np.isfinite(self.state.instances["ends"]).any())

    def count_to(self, now: float) -> None:
        """Add the time for which instances are held, up to a time (s)."""
        held = int((self._down()[:, 0] != STOPPED).sum()) + len(self._starting)
        self.held_time += held * (now - self._since)
        self._since = now

    def _scale(self, now: float, loads: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        down = self._down()
        serving = np.flatnonzero(down[:, 0] == SERVES)
        current = len(serving) + len(self._starting)
        ratio = float(loads.sum()) / (current * self.rules.requests)
        wanted = current if abs(ratio - 1) <= _TOLERANCE else math.ceil(current * ratio)
        wanted = min(max(wanted, self.rules.least), len(down))
        self._wanted = [row for row in self._wanted if row[0] > now - self.rules.keep]
        self._wanted.append((now, wanted))
        wanted = max(wanted, min(current, max(count for _, count in self._wanted)))
        draining = np.flatnonzero(down[:, 0] == DRAINS).tolist()
        stopped = np.flatnonzero(down[:, 0] == STOPPED).tolist()
        for instance in draining[: max(0, wanted - current)]:
            down[instance] = SERVES
            current += 1
        idle = [instance for instance in stopped if instance not in self._starting]
        for instance in idle[: max(0, wanted - current)]:
            self._starting[instance] = now + self.rules.start
        fewest = serving[np.argsort(loads[serving], kind="stable")].tolist()
        for instance in fewest[: max(0, current - wanted)]:
            down[instance] = DRAINS

    def _stop(self, instance: int) -> None:
        """Release a drained instance and its cache."""
        workers = slice(instance * self.width, (instance + 1) * self.width)
        self.state.counters[workers, DOWN] = STOPPED
        self.state.counters[workers, KEPT] = 0
        nodes = self.state.caches.nodes
        if len(nodes) >= workers.stop:
            end = nodes.shape[1] - 1
            nodes[workers] = (ABSENT, end, end, 0, 0, end, end)
