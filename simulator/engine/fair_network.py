"""The network over simulated time: loads in, completions out.

Loads that use the same links at the same time share them max-min fairly. Nothing happens between
the instants at which a load waits, joins or ends; all that happen at one instant are settled
together, and rates are found anew only where loads share.

A load that has its links to itself is folded: all its latencies, then all its bytes, two events
for any number of steps. It is done when its steps are, and half-way its steps are where time says.
As long as another load is on any of its links, waiting or moving, it is taken step by step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import EventPriority

from simulator.costing.link_load import Load, Run
from simulator.engine.max_min import max_min_rates
from simulator.topology import Topology

Done = Callable[[], None]


@dataclass(slots=True, eq=False)
class Traffic:
    """A call's loads under way, one after the other.

    ``spent`` (s) adds up where the time went: shape ``(resources + 1,)``, the last for software.

    What is left of the load comes in segments, each a latency and then bytes. The segment under
    way ends its latency at ``wakes`` and then has ``remaining`` bytes, which flow at ``rate``
    since ``since``; ``todo`` comes after it, ``stride`` steps to a segment. While the load is
    ``folded`` everything is one segment, nothing else is on its links, and ``todo`` is what was
    left at ``folded_at`` (empty: all of the load). ``turn`` counts segments: a latency that ends
    in another turn than it began in has been overtaken.
    """

    loads: tuple[Load, ...]
    factor: float
    done: Done
    spent: NDArray[np.float64]
    phase: int = 0
    folded: bool = False
    todo: list[Run] = field(default_factory=list)
    stride: int = 1
    turn: int = 0
    wakes: float = 0.0
    remaining: float = 0.0
    rate: float = 0.0
    since: float = 0.0
    folded_at: float = 0.0
    end: float = np.inf
    held_by: int = -1

    @property
    def load(self) -> Load:
        """The load under way."""
        return self.loads[self.phase]

    def take(self) -> tuple[float, float]:
        """Remove the next segment from what is to do; return its latency (s) and amount (B).

        Where a run has no latency, or no bytes, its steps are one segment.
        """
        repeats, latency, amount = self.todo[0]
        taken = min(self.stride, repeats) if latency and amount else repeats
        if taken < repeats:
            self.todo[0] = Run(repeats - taken, latency, amount)
        else:
            del self.todo[0]
        return latency * taken, amount * taken


@dataclass(slots=True, eq=False)
class Network:
    """Links shared by the traffic on them; made, run and thrown away with its environment.

    ``_present[link]`` counts the loads on a link, ``_users[link]`` those of them that move bytes.
    """

    env: simpy.Environment
    topology: Topology
    _bytes: NDArray[np.float64] = field(init=False)
    _begun: dict[int, tuple[Load, float]] = field(default_factory=dict)
    _moving: dict[int, Traffic] = field(default_factory=dict)
    _users: NDArray[np.int32] = field(init=False)
    _shared: bool = False
    _changed: bool = False
    _of_steps: dict[int, Traffic] = field(default_factory=dict)
    _present: NDArray[np.int32] = field(init=False)
    _recount: bool = False
    _settling: bool = False
    _next_wake: float = np.inf

    def __post_init__(self) -> None:
        self._bytes = np.zeros(len(self.topology))
        self._users = np.zeros(len(self.topology), dtype=np.int32)
        self._present = np.zeros(len(self.topology), dtype=np.int32)

    @property
    def link_bytes(self) -> NDArray[np.float64]:
        """Bytes of the loads that have begun, on each link, shape ``(links,)``."""
        for load, times in self._begun.values():
            self._bytes[load.link] += load.weight * (load.amount * times)
        self._begun.clear()
        return self._bytes

    def start(self, loads: tuple[Load, ...], factor: float, done: Done) -> Traffic:
        """Begin a call now; ``done`` is called when its last load has ended.

        ``factor`` multiplies latencies and amounts: 1 is the model as it is.
        """
        spent = np.zeros(len(self.topology.resources) + 1)
        traffic = Traffic(loads, factor, done, spent)
        self._begin_load(traffic)
        return traffic

    def _begin_load(self, traffic: Traffic) -> None:
        load = traffic.load
        traffic.spent += load.latency_of * traffic.factor
        self._note(load, traffic.factor)
        self._present[load.link] += 1
        if load.runs and len(load.link):
            self._of_steps[id(traffic)] = traffic
        if self._meets_others(load, 1) and load.runs:
            traffic.todo = runs_of(load, traffic.factor)
            self._unfolded(traffic)
        else:
            traffic.todo = []
            self._folded(traffic, load.latency * traffic.factor, load.amount * traffic.factor)

    def _note(self, load: Load, factor: float) -> None:
        """Note that a load begins; those that begin often are added to the books at once."""
        _, times = self._begun.get(id(load), (load, 0.0))
        self._begun[id(load)] = load, times + factor
        if len(self._begun) >= _NOTED:
            self._bytes = self.link_bytes

    def _meets_others(self, load: Load, itself: int) -> bool:
        """Say whether others are on the links of a load that comes or goes; see to it if so."""
        if not self._of_steps or not (self._present[load.link] > itself).any():
            return False
        self._recount = True
        self._settle_later()
        return True

    def _folded(self, traffic: Traffic, latency: float, amount: float) -> None:
        """Take what is left of the load as one."""
        traffic.folded = True
        traffic.folded_at = self.env.now
        self._segment(traffic, latency, amount)

    def _unfolded(self, traffic: Traffic) -> None:
        """Take what is left of the load step by step."""
        traffic.folded = False
        traffic.stride = -(-steps_of(traffic.todo) // _SEGMENTS)
        self._next_segment(traffic)

    def _next_segment(self, traffic: Traffic) -> None:
        if not traffic.folded and traffic.todo:
            self._segment(traffic, *traffic.take())
            return
        self._present[traffic.load.link] -= 1
        self._of_steps.pop(id(traffic), None)
        self._meets_others(traffic.load, 0)
        traffic.phase += 1
        if traffic.phase < len(traffic.loads):
            self._begin_load(traffic)
        else:
            traffic.done()

    def _segment(self, traffic: Traffic, latency: float, amount: float) -> None:
        traffic.turn = turn = traffic.turn + 1
        traffic.remaining = amount
        traffic.wakes = self.env.now + latency
        self._at(latency, lambda _: self._join(traffic, turn))

    def _at(self, delay: float, callback: Callable[[Any], None], priority: int = 1) -> None:
        event = self.env.event()
        event._ok, event._value = True, None
        event.callbacks.append(callback)
        self.env.schedule(event, priority=EventPriority(priority), delay=delay)

    def _join(self, traffic: Traffic, turn: int) -> None:
        if turn != traffic.turn:
            return
        if traffic.remaining == 0.0:
            self._next_segment(traffic)
            return
        load = traffic.load
        traffic.rate = 0.0
        traffic.since = self.env.now
        self._moving[id(traffic)] = traffic
        users = self._users[load.link] + 1
        self._users[load.link] = users
        if users.max(initial=0) > 1:
            self._shared = self._changed = True
            self._settle_later()
        else:
            self._set_rate(traffic, load.alone, load.bottleneck)
            self._wake_by(traffic.end)

    def _leave(self, traffic: Traffic) -> None:
        link = traffic.load.link
        del self._moving[id(traffic)]
        users = self._users[link] - 1
        self._users[link] = users
        traffic.end = np.inf
        self._changed |= bool(users.any())

    def _settle_later(self) -> None:
        if not self._settling:
            self._settling = True
            self._at(0.0, lambda _: self._settle(), priority=_AFTER_ALL_OTHERS)

    def _wake(self, due: float) -> None:
        if due == self._next_wake:
            self._next_wake = np.inf
            self._settle_later()

    def _settle(self) -> None:
        """End what is over, fold and unfold, share what is left, and sleep until the next end.

        What begins by that, or changes its mind, is settled at this instant once more, and only
        then shared.
        """
        now = self.env.now
        self._settling = False
        over = [traffic for traffic in self._moving.values() if traffic.end <= now + _SLACK]
        for traffic in over:
            self._account(traffic)
            self._leave(traffic)
        for traffic in over:
            self._next_segment(traffic)
        if self._recount and not self._settling:
            self._fold_and_unfold()
        if not self._settling:
            if self._changed:
                self._share()
            self._sleep()

    def _fold_and_unfold(self) -> None:
        """Fold the loads that are alone on their links, unfold those that no longer are."""
        self._recount = False
        loads = list(self._of_steps.values())
        for traffic, crowded in zip(loads, _crowded(loads, self._present), strict=True):
            if crowded and traffic.folded:
                self._unfold(traffic)
            elif not (crowded or traffic.folded):
                self._fold(traffic)

    def _fold(self, traffic: Traffic) -> None:
        """Put the segment under way back to what is to do, and fold it all."""
        if id(traffic) in self._moving:
            self._account(traffic)
            self._leave(traffic)
        waits = max(0.0, traffic.wakes - self.env.now)
        traffic.todo.insert(0, Run(1, waits, traffic.remaining))
        self._folded(traffic, latency_of(traffic.todo), amount_of(traffic.todo))

    def _unfold(self, traffic: Traffic) -> None:
        """Unfold what time has left of the load; so far it had its links to itself."""
        if id(traffic) in self._moving:
            self._leave(traffic)
        load, passed = traffic.load, self.env.now - traffic.folded_at
        todo = traffic.todo or runs_of(load, traffic.factor)
        traffic.todo = left_after(todo, passed, load.alone)
        moved = passed - (latency_of(todo) - latency_of(traffic.todo))
        traffic.spent[self.topology.resource[load.bottleneck]] += moved
        self._unfolded(traffic)

    def _share(self) -> None:
        """Give every load its rate; only loads on shared links can hold each other back."""
        self._changed = False
        moving = list(self._moving.values())
        crowd: list[Traffic] = []
        shared = _crowded(moving, self._users) if self._shared else [False] * len(moving)
        for traffic, others in zip(moving, shared, strict=True):
            if others:
                crowd.append(traffic)
            else:
                load = traffic.load
                self._set_rate(traffic, load.alone, load.bottleneck)
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
        if rate == traffic.rate and link == traffic.held_by:
            return
        self._account(traffic)
        traffic.held_by = link
        if rate != traffic.rate:
            traffic.rate = rate
            traffic.end = self.env.now + traffic.remaining / rate

    def _account(self, traffic: Traffic) -> None:
        """Move what has flowed since the last change from ``remaining`` to the books."""
        passed = self.env.now - traffic.since
        traffic.since = self.env.now
        if traffic.rate > 0:
            traffic.remaining = max(0.0, traffic.remaining - traffic.rate * passed)
            traffic.spent[self.topology.resource[traffic.held_by]] += passed

    def _sleep(self) -> None:
        if self._moving:
            self._wake_by(min(traffic.end for traffic in self._moving.values()))

    def _wake_by(self, due: float) -> None:
        if due < self._next_wake:
            self._next_wake = due
            self._at(max(0.0, due - self.env.now), lambda _: self._wake(due))


_SLACK = 1e-12
"""A load that would end within this many seconds is over.

Must exceed the spacing of floats around ``env.now`` (1.1e-13 s at 1000 s), or a wake-up can be
too short to move the clock and the simulation stands still.
"""
_AFTER_ALL_OTHERS = 2
"""SimPy priority behind its own ``NORMAL`` (1): what happens at one instant is settled once."""

_NOTED = 4096
"""Different loads noted before the books are brought up to date, so that they can be forgotten."""

_SEGMENTS = 256
"""Segments in which a load is taken, at the most, while others are on its links.

Enough for every step of a ring all-reduce on 129 ranks; of longer ones several steps are one.
"""


def _crowded(traffics: list[Traffic], count: NDArray[np.int32]) -> list[bool]:
    """Say of each whether ``count`` of any of its load's links is more than one."""
    if not traffics:
        return []
    links = [traffic.load.link for traffic in traffics]
    begin = np.cumsum([0, *map(len, links[:-1])])
    shared = np.logical_or.reduceat(count[np.concatenate(links)] > 1, begin)
    crowded: list[bool] = shared.tolist()
    return crowded


def runs_of(load: Load, factor: float) -> list[Run]:
    """Return all steps of a load, times and bytes multiplied."""
    runs = load.runs or (Run(1, load.latency, load.amount),)
    return [Run(run.repeats, run.latency * factor, run.amount * factor) for run in runs]


def left_after(todo: list[Run], passed: float, rate: float) -> list[Run]:
    """Return what is left of ``todo`` after ``passed`` seconds, its bytes flowing at ``rate``."""
    for number, (repeats, latency, amount) in enumerate(todo):
        step = latency + amount / rate
        if passed < step * repeats:
            ended = min(int(passed / step), repeats - 1)
            inside = max(0.0, passed - ended * step)
            if inside == 0.0:
                return [Run(repeats - ended, latency, amount), *todo[number + 1 :]]
            waits = max(0.0, latency - inside)
            moved = max(0.0, inside - latency) * rate
            begun = Run(1, waits, max(0.0, amount - moved))
            later = [Run(repeats - ended - 1, latency, amount)] if ended + 1 < repeats else []
            return [begun, *later, *todo[number + 1 :]]
        passed -= step * repeats
    return []


def steps_of(todo: list[Run]) -> int:
    """Count the steps of runs."""
    return sum(run.repeats for run in todo)


def amount_of(todo: list[Run]) -> float:
    """Add up the bytes of runs (B)."""
    return sum(run.repeats * run.amount for run in todo)


def latency_of(todo: list[Run]) -> float:
    """Add up the latencies of runs (s)."""
    return sum(run.repeats * run.latency for run in todo)
