"""The network over simulated time: loads in, completions out.

Loads that use the same links at the same time share them max-min fairly. Nothing happens between
the instants at which a load joins or ends; all that happen at one instant are settled together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import EventPriority

from simulator.load import Load
from simulator.sharing import max_min_rates
from simulator.topology import Topology

_SLACK = 1e-12
"""A load that would end within this many seconds is over.

Must exceed the spacing of floats around ``env.now`` (1.1e-13 s at 1000 s), or a wake-up can be
too short to move the clock and the simulation stands still.
"""
_AFTER_ALL_OTHERS = 2
"""SimPy priority behind its own ``NORMAL`` (1): what happens at one instant is settled once."""

Done = Callable[[], None]


@dataclass(slots=True, eq=False)
class Traffic:
    """A call's loads under way, one after the other.

    ``spent`` (s) adds up where the time went: shape ``(resources + 1,)``, the last for software.
    """

    loads: tuple[Load, ...]
    factor: float
    done: Done
    spent: NDArray[np.float64]
    phase: int = 0
    remaining: float = 0.0
    rate: float = 0.0
    since: float = 0.0
    end: float = np.inf
    held_by: int = -1

    @property
    def load(self) -> Load:
        """The load under way."""
        return self.loads[self.phase]


@dataclass(slots=True, eq=False)
class Network:
    """Links shared by the traffic on them; made, run and thrown away with its environment."""

    env: simpy.Environment
    topology: Topology
    link_bytes: NDArray[np.float64] = field(init=False)
    _moving: dict[int, Traffic] = field(default_factory=dict)
    _users: NDArray[np.int32] = field(init=False)
    _shared: bool = False
    _settling: bool = False
    _next_wake: float = np.inf

    def __post_init__(self) -> None:
        self.link_bytes = np.zeros(len(self.topology))
        self._users = np.zeros(len(self.topology), dtype=np.int32)

    def start(self, loads: tuple[Load, ...], factor: float, done: Done) -> Traffic:
        """Begin a call now; ``done`` is called when its last load has ended.

        ``factor`` multiplies latencies and amounts: 1 is the model as it is.
        """
        spent = np.zeros(len(self.topology.resources) + 1)
        traffic = Traffic(loads, factor, done, spent)
        self._begin_phase(traffic)
        return traffic

    def _begin_phase(self, traffic: Traffic) -> None:
        load = traffic.load
        traffic.spent += load.latency_of * traffic.factor
        self._at(load.latency * traffic.factor, lambda _: self._join(traffic))

    def _at(self, delay: float, callback: Callable[[Any], None], priority: int = 1) -> None:
        event = self.env.event()
        event._ok, event._value = True, None
        event.callbacks.append(callback)
        self.env.schedule(event, priority=EventPriority(priority), delay=delay)

    def _join(self, traffic: Traffic) -> None:
        load = traffic.load
        amount = load.amount * traffic.factor
        self.link_bytes[load.link] += load.weight * amount
        if amount == 0.0:
            self._next_phase(traffic)
            return
        traffic.remaining = amount
        traffic.rate = 0.0
        traffic.since = self.env.now
        self._users[load.link] += 1
        self._shared |= bool((self._users[load.link] > 1).any())
        self._moving[id(traffic)] = traffic
        self._settle_later()

    def _next_phase(self, traffic: Traffic) -> None:
        traffic.phase += 1
        if traffic.phase < len(traffic.loads):
            self._begin_phase(traffic)
        else:
            traffic.done()

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self._at(0.0, lambda _: self._settle(), priority=_AFTER_ALL_OTHERS)

    def _wake(self, due: float) -> None:
        if due == self._next_wake:
            self._next_wake = np.inf
            self._settle_later()

    def _settle(self) -> None:
        """End what is over, share what is left, and sleep until the next end."""
        self._settling = False
        now = self.env.now
        over = [traffic for traffic in self._moving.values() if traffic.end <= now + _SLACK]
        for traffic in over:
            del self._moving[id(traffic)]
            self._users[traffic.load.link] -= 1
            self._account(traffic)
        self._share()
        self._sleep()
        for traffic in over:
            traffic.end = np.inf
            self._next_phase(traffic)

    def _share(self) -> None:
        """Give every load its rate; only loads on shared links can hold each other back."""
        crowd = []
        for traffic in self._moving.values():
            if self._shared and (self._users[traffic.load.link] > 1).any():
                crowd.append(traffic)
            else:
                self._set_rate(traffic, traffic.load.alone, traffic.load.bottleneck)
        self._shared = bool(crowd)
        if crowd:
            rates, holds = max_min_rates(
                [traffic.load.link for traffic in crowd],
                [traffic.load.weight for traffic in crowd],
                self.topology.bandwidth,
            )
            for traffic, rate, link in zip(crowd, rates.tolist(), holds.tolist(), strict=True):
                self._set_rate(traffic, rate, link)

    def _set_rate(self, traffic: Traffic, rate: float, link: int) -> None:
        """Change a rate; an end that does not change is not computed again, to the last bit."""
        if rate == traffic.rate:
            return
        self._account(traffic)
        traffic.rate = rate
        traffic.held_by = link
        traffic.end = self.env.now + traffic.remaining / rate

    def _account(self, traffic: Traffic) -> None:
        """Move what has flowed since the last change from ``remaining`` to the books."""
        passed = self.env.now - traffic.since
        traffic.since = self.env.now
        if traffic.rate > 0:
            traffic.remaining = max(0.0, traffic.remaining - traffic.rate * passed)
            traffic.spent[self.topology.resource[traffic.held_by]] += passed

    def _sleep(self) -> None:
        if not self._moving:
            return
        due = min(traffic.end for traffic in self._moving.values())
        if due < self._next_wake:
            self._next_wake = due
            self._at(max(0.0, due - self.env.now), lambda _: self._wake(due))
