"""Calls over simulated time: alone on their links they are folded, where they meet they are not.

A call that has its links to itself takes what it takes alone: one event, for any number of steps.
As soon as another is on one of its links it is taken transfer by transfer, from the middle of what
is under way: its ranks go their own ways, and its transfers share links max-min fairly with those
of the other (:mod:`simulator.costing.crowd`, which says the same as the reference,
:mod:`simulator.engine.transfers`, in one compiled loop). What begins at one instant is judged
together.

Of one job the same calls often begin together again and again: a bucket of gradients of every layer
on all data-parallel groups. Where nothing else joins them they take as long as the first time, so
that is remembered (:class:`_Episode`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import EventPriority

from simulator.costing.crowd import Crowd
from simulator.engine.works import Work
from simulator.topology import Topology
from simulator.workload import Floats

Done = Callable[[Floats], None]
"""Called when a call ends, with where its time went (s), shape ``(resources + 1,)``."""

_AFTER_ALL_OTHERS = 2
"""SimPy priority behind its own ``NORMAL`` (1): what happens at one instant is judged once."""
_NOBODY = -1


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way: ``folded`` while it is alone on its links."""

    work: Work
    factor: float
    done: Done
    begun: float
    folded: bool = False


_Together = tuple[tuple[int, float], ...]
"""Calls that begin at one instant on links that nobody else is on: works, and their factors."""


class At(float):
    """A time (s) to give to SimPy as a delay.

    SimPy adds a delay to its clock, which rounds: the event of a call that starts at a time may
    come one spacing of floats before or after it, and by that before or after others of the same
    instant. The sum of a clock and this is the time itself.
    """

    def __radd__(self, now: float) -> float:
        """Return the time, or what the clock says if that is later."""
        return max(now, float(self))


class _Ended(NamedTuple):
    """A call of an episode: which, how long after its begin it ended (s), where that went (s)."""

    call: int
    after: float
    spent: Floats


@dataclass(slots=True, eq=False)
class _Episode:
    """Calls that began together while nobody met, up to the end of the last of them.

    ``ended`` is how they ended, so far or the last time. A call is in ``over`` when it has.
    """

    key: _Together
    calls: Sequence[_Call]
    begun: float
    ended: list[_Ended]
    over: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Meetings:
    """Calls on the links of a topology; made, run and thrown away with its environment.

    ``_present[link]`` counts the calls on a link; ``_holder[link]`` is the folded one, if any.

    With ``remembers`` calls that began together before, with nobody else, take what they took then,
    which may differ in the last bits from simulating them again. If others join them after all they
    are simulated from their begin on.
    """

    env: simpy.Environment
    topology: Topology
    remembers: bool = False
    _present: NDArray[np.int32] = field(init=False)
    _holder: NDArray[np.int64] = field(init=False)
    _crowd: Crowd = field(init=False)
    _past: Crowd = field(init=False)
    _met: dict[int, _Call] = field(default_factory=dict)
    _folded: dict[int, _Call] = field(default_factory=dict)
    _new: list[_Call] = field(default_factory=list)
    _often: dict[int, tuple[Work, float]] = field(default_factory=dict)
    _numbers: int = 0
    _judging: bool = False
    _next_wake: float = np.inf
    _known: dict[_Together, list[_Ended] | None] = field(default_factory=dict)
    _recorded: _Episode | None = None
    _repeated: _Episode | None = None

    def __post_init__(self) -> None:
        links = len(self.topology)
        self._present = np.zeros(links, dtype=np.int32)
        self._holder = np.full(links, _NOBODY, dtype=np.int64)
        given = self.topology.bandwidth, self.topology.resource, len(self.topology.resources)
        self._crowd = Crowd(*given, now=self.env.now)
        self._past = Crowd(*given, now=self.env.now)

    @property
    def link_bytes(self) -> Floats:
        """Bytes of the calls that have begun, on each link, shape ``(links,)``."""
        total = np.zeros(len(self.topology))
        for work, times in self._often.values():
            for load in work.loads:
                total[load.link] += load.weight * (load.amount * times)
        return total

    def add_bytes(self, work: Work, times: float) -> None:
        """Count the bytes of a call, so many times."""
        self._often[id(work)] = work, self._often.get(id(work), (work, 0.0))[1] + times

    def start(self, work: Work, factor: float, done: Done) -> None:
        """Begin a call now; ``done`` is called when it has ended.

        ``factor`` multiplies latencies and amounts: 1 is the model as it is.
        """
        self.add_bytes(work, factor)
        call = _Call(work, factor, done, self.env.now)
        if not len(work.link):
            self._at(work.time * factor, lambda _: done(work.spent * factor))
            return
        self._present[work.link] += 1
        self._new.append(call)
        self._judge_later()

    def _at(self, delay: float, callback: Callable[[Any], None], priority: int = 1) -> None:
        event = self.env.event()
        event._ok, event._value = True, None
        event.callbacks.append(callback)
        self.env.schedule(event, priority=EventPriority(priority), delay=delay)

    def _judge_later(self) -> None:
        if not self._judging:
            self._judging = True
            self._at(0.0, lambda _: self._judge(), priority=_AFTER_ALL_OTHERS)

    def _judge(self) -> None:
        """Fold who is alone, take transfer by transfer who is not, and go on until a call ends."""
        self._judging = False
        new, self._new = self._new, []
        meeting = [call for call in new if (self._present[call.work.link] > 1).any()]
        for call in new:
            if call not in meeting:
                self._fold(call)
        if meeting and self._go_on(self.env.now):
            self._new = meeting + self._new
            return
        if meeting and not self._repeats(meeting):
            self._join(meeting)
        self._run()

    def _join(self, meeting: Sequence[_Call]) -> None:
        for call in meeting:
            self._unfold(call.work.link)
            number = self._crowd.begin(call.work.program, call.factor, self._delay(call))
            self._met[number] = call

    def _repeats(self, meeting: Sequence[_Call]) -> bool:
        """Let calls take what they took before; if that is not known begin to record it."""
        if not self.remembers:
            return False
        self._recorded = None
        if self._repeated is not None:
            self._simulate_again(self._repeated)
            return False
        links = np.concatenate([call.work.link for call in meeting])
        if self._met or (self._holder[links] != _NOBODY).any():
            return False
        calls = sorted(meeting, key=lambda call: (id(call.work), call.factor))
        key = tuple((id(call.work), call.factor) for call in calls)
        if key not in self._known:
            self._recorded = _Episode(key, calls, self.env.now, [])
        known = self._known.get(key)
        if known is None:
            return False
        self._repeated = episode = _Episode(key, calls, self.env.now, known)
        for ended in episode.ended:
            self._at(ended.after, partial(self._end_repeated, episode, ended))
        return True

    def _end_repeated(self, episode: _Episode, ended: _Ended, _: simpy.Event) -> None:
        if episode is not self._repeated:
            return  # others joined
        call = episode.calls[ended.call]
        episode.over.add(ended.call)
        if len(episode.over) == len(episode.calls):
            self._repeated = None
        self._present[call.work.link] -= 1
        call.done(ended.spent)

    def _simulate_again(self, episode: _Episode) -> None:
        """Others join: take the calls that are not over transfer by transfer from now on.

        Such calls are not taken as before again, so that no begin is simulated more than twice.
        """
        self._repeated, self._known[episode.key] = None, None
        self._crowd.wait(episode.begun)
        calls = episode.calls
        numbers = [
            self._crowd.begin(call.work.program, call.factor, self._delay(call)) for call in calls
        ]
        while self._crowd.advance(self.env.now):
            pass
        self._crowd.wait(self.env.now)
        ended = {one.call: one for one in episode.ended}
        for place, (number, call) in enumerate(zip(numbers, calls, strict=True)):
            if place in episode.over:
                self._crowd.forget(number)
            elif self._crowd.is_over(number):  # it ends now, but for rounding
                self._crowd.forget(number)
                self._present[call.work.link] -= 1
                self._at(0.0, partial(self._end_now, call, ended[place].spent))
            else:
                self._met[number] = call

    def _end_now(self, call: _Call, spent: Floats, _: simpy.Event) -> None:
        call.done(spent)

    def _record(self, call: _Call, spent: Floats) -> None:
        """Remember how a call ended, and with the last of its episode how all of them did."""
        episode = self._recorded
        if episode is None:
            return
        place = next(at for at, one in enumerate(episode.calls) if one is call)
        episode.ended.append(_Ended(place, self.env.now - episode.begun, spent))
        if len(episode.ended) == len(episode.calls):
            self._known[episode.key] = episode.ended
            self._recorded = None

    def _fold(self, call: _Call) -> None:
        number = self._numbers = self._numbers + 1
        call.folded = True
        self._folded[number] = call
        self._holder[call.work.link] = number
        self._at(call.work.time * call.factor, lambda _: self._end_folded(number))

    def _end_folded(self, number: int) -> None:
        call = self._folded.pop(number, None)
        if call is None:
            return  # met others on the way
        self._holder[call.work.link] = _NOBODY
        self._present[call.work.link] -= 1
        call.done(call.work.spent * call.factor)

    def _delay(self, call: _Call) -> float:
        return call.work.overhead * call.factor

    def _unfold(self, link: NDArray[np.int32]) -> None:
        """Take the calls that have some links to themselves transfer by transfer from now on.

        They were alone so far: what they are in the middle of is what they would be in by
        themselves. One that is about to end stays as it is.
        """
        for number in np.unique(self._holder[link]).tolist():
            if number == _NOBODY:
                continue
            call = self._folded[number]
            self._past.wait(call.begun)
            before = self._past.begin(call.work.program, call.factor, self._delay(call))
            if not self._past.advance(self.env.now):
                self._past.wait(self.env.now)
                self._met[self._crowd.moved_in(self._past, before)] = call
                del self._folded[number]
                self._holder[call.work.link] = _NOBODY
            self._past.forget(before)

    def _run(self) -> None:
        """Let those that share links go on up to the next event of anybody else."""
        if self._met and not self._go_on(self.env.peek()):
            self._wake_by(self._crowd.next_event)

    def _go_on(self, until: float) -> bool:
        """Go on until then; if calls end on the way, end them when it is time and say so."""
        over = self._crowd.advance(until)
        if not over:
            self._crowd.wait(max(self._crowd.time, self.env.now))
            return False
        self._at(At(self._crowd.time), lambda _: self._end(over))
        return True

    def _end(self, over: list[int]) -> None:
        self._judge_later()
        for number in over:
            call = self._met.pop(number)
            spent = self._crowd.spent(number)
            self._crowd.forget(number)
            self._present[call.work.link] -= 1
            self._record(call, spent)
            call.done(spent)

    def _wake_by(self, due: float) -> None:
        if due < self._next_wake:
            self._next_wake = due
            self._at(At(due), lambda _: self._wake(due), priority=_AFTER_ALL_OTHERS)

    def _wake(self, due: float) -> None:
        if due == self._next_wake:
            self._next_wake = np.inf
            self._judge_later()
