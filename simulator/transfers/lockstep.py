"""Does a call take as long as its steps one after the other: then its time is a closed form.

A step of a whole group lasts its longest latency and then its longest drain, on its busiest link.
A call takes the sum of that over its steps

* if in every step all transfers start together and end together: equal bytes, equal latencies, and
  each on some busiest link; or
* if some rank is last in every step: a busiest link carries only what this rank sends or receives,
  or only one transfer of its, all of it at the longest latency. No rank is sooner than the steps
  say, then, nor later, where no link serves two ranks, in one step or in two: a rank that runs
  ahead would otherwise meet a transfer of an earlier step there; or
* if there is one step only, of equal transfers, and all those on a busiest link have the longest
  latency.

Where none of these holds ranks may run ahead of each other, and the call is simulated.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.routing.routes import Routes, routes
from simulator.schedule import Plan, Schedule, Step
from simulator.support.arrays import Floats, Longs, Mask
from simulator.topology import Topology
from simulator.transfers.program import Positions, transfers

_ANY = -2
"""Stands for any rank, where a link was not used yet."""
_ALIKE = 1e-12
"""Times that differ by less than this fraction are the same."""


class Pace(NamedTuple):
    """How the transfers of a step keep pace.

    ``together``: all start and end together, if their ranks do. ``full``: on some busiest link all
    transfers have the longest latency; ``single`` marks the transfers that have such a link for
    themselves, ``sends`` and ``receives`` those that have it with others of their source or target.
    ``users`` says which ranks each link serves; None where nothing moves.
    """

    together: bool
    full: bool
    users: "_Users | None"
    single: Mask
    sends: Mask
    receives: Mask


def keeps_step(plan: Plan, positions: Positions, size: float, network: Topology) -> bool:
    """Whether a call alone takes as long as its steps one after the other.

    Arguments are those of :func:`simulator.costing.link_load.lay`; the plan is a list of transfers.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    keeping = _Keeping.of(plan.schedule, network)
    for step in plan.schedule.steps:
        if not keeping.goes_on(step, _pace(step, plan, positions, (size, network))):
            return False
    return True


def keeps_chain(plan: Plan, positions: Positions, size: float, network: Topology) -> bool:
    """Whether some rank is last in every step, so that nothing makes the call any sooner.

    That is so whatever else is on its links: what this rank sends or receives in a step passes a
    link of its own, none of it before the rank is there. It is so too of a single step all of whose
    transfers on a busiest link have the longest latency. Arguments are those of
    :func:`keeps_step`.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    keeping = _Keeping.of(plan.schedule, network)
    for step in plan.schedule.steps:
        pace = _pace(step, plan, positions, (size, network))
        keeping.goes_on(step, pace)
        if keeping.single and pace.full:
            return True
        if not keeping.chained:
            return False
    return True


@dataclass(slots=True, eq=False)
class _Keeping:
    """What holds of all steps so far: ``last`` marks ranks that were last in each of them.

    ``owner`` are the ranks, at most two, that all transfers of a link so far begin or end at, shape
    ``(2, links)``: -1 is none, ``_ANY`` a link that was not used.
    """

    single: bool
    last: Mask
    owner: Longs
    together: bool = True
    chained: bool = True
    before: Step | None = None

    @staticmethod
    def of(schedule: Schedule, network: Topology) -> "_Keeping":
        """Begin: nobody is sooner or later than others."""
        is_single = sum(step.repeats for step in schedule.steps) == 1
        owner = np.full((2, len(network)), _ANY)
        return _Keeping(is_single, np.ones(schedule.ranks, dtype=np.bool_), owner)

    def goes_on(self, step: Step, pace: Pace) -> bool:
        """Whether it still holds of something after a further step."""
        self.together = self.together and pace.together and self._follows(step)
        self.before = step
        self.chained = self.chained and (pace.users is None or self._owns(pace.users))
        for _ in range(min(step.repeats, len(self.last))):
            if not self.chained:
                break
            before, self.last = self.last, _last(pace, step, self.last)
            self.chained = bool(self.last.any())
            if np.array_equal(before, self.last):  # and so it is after every further repetition
                break
        return self.together or self.chained or (self.single and pace.full)

    def _owns(self, users: "_Users") -> bool:
        """Whether every link still serves one rank only."""
        before = self.owner[:, users.link]
        again = ((before == users.owner[0]) | (before == users.owner[1])) & (before >= 0)
        now = np.where(before[0] == _ANY, users.owner, np.where(again, before, -1))
        self.owner[:, users.link] = now
        return bool((now >= 0).any(axis=0).all())

    def _follows(self, step: Step) -> bool:
        """Whether every transfer has an end that takes part in the step before."""
        if self.before is None:
            return True
        reached = np.zeros(len(self.last), dtype=np.bool_)
        reached[self.before.source] = reached[self.before.target] = True
        return bool((reached[step.source] | reached[step.target]).all())


def _last(pace: Pace, step: Step, last: Mask) -> Mask:
    """Ranks that are last in a step, of those that were in the step before."""
    lasting = np.zeros_like(last)
    both = pace.single & (last[step.source] | last[step.target])
    lasting[step.source[both | (pace.sends & last[step.source])]] = True
    lasting[step.target[both | (pace.receives & last[step.target])]] = True
    return lasting


def _pace(step: Step, plan: Plan, positions: Positions, where: tuple[float, Topology]) -> Pace:
    sent, network = transfers(step, plan, positions, where), where[1]
    latency, count = sent.latency_of.sum(axis=1), len(step.source)
    slow = latency >= latency.max() * (1 - _ALIKE)
    of = np.repeat(np.arange(count), sent.hops)
    equal = bool((sent.amount == sent.amount[0]).all())
    if not len(of) or not sent.amount.any():
        return Pace(bool(slow.all()), True, None, slow, slow, slow)  # noqa: FBT003
    used, link = np.unique(sent.link, return_inverse=True)
    link = link.ravel()
    busy = np.bincount(link, sent.amount[of] * sent.weight) / network.bandwidth[used]
    users = _users(step, of, link, used)
    most = busy >= busy.max() * (1 - _ALIKE)
    return _pace_of(users, (of, link), most, slow, equal=equal)


def _pace_of(
    users: "_Users", uses: tuple[Longs, Longs], most: Mask, slow: Mask, *, equal: bool
) -> Pace:
    """Say how transfers keep pace of which those marked are slow, where links are the busiest.

    ``uses`` are the transfer and the link of each use; ``equal``: all transfers have as many bytes.
    """
    of, link = uses
    full = most & (np.bincount(link, slow[of]) == users.many)
    if not equal and not users.lone.all():
        full[:] = False
    marks = [
        np.bincount(of[busiest[link]], minlength=len(slow)) > 0
        for busiest in (full & users.lone, full & users.by_source, full & users.by_target)
    ]
    on_most = np.bincount(of[most[link]], minlength=len(slow)) > 0
    together = bool(equal and slow.all() and on_most.all())
    return Pace(together, bool(full.any()), users, *marks)


class _Users(NamedTuple):
    """Who uses each link of a step: one transfer alone, those of one source or target.

    ``many`` counts them. ``owner`` are the source and the target that all have, -1 where they
    differ, shape ``(2, links)``; ``link`` are the links' numbers in the network.
    """

    many: Longs
    lone: Mask
    by_source: Mask
    by_target: Mask
    owner: Longs
    link: Longs


def _users(step: Step, of: Longs, link: Longs, used: NDArray[np.integer]) -> _Users:
    """``of`` is the transfer of each use, ``link`` its link, as an index into those ``used``."""
    count = np.bincount(link)
    owner = np.zeros((2, len(count)), dtype=np.int64)
    for first, end in zip(owner, (step.source, step.target), strict=True):
        first[link] = end[of]
        first[np.bincount(link, end[of] != first[link]) > 0] = -1
    by_source, by_target = owner >= 0
    return _Users(count, count == 1, by_source, by_target, owner, used.astype(np.int64))


@dataclass(frozen=True, eq=False)
class KeepingStep:
    """Judges a schedule on many networks of one graph, whose links have the classes ``of``.

    Links of a class have the same numbers on every network, so that what differs from network to
    network is which links are the busiest and which transfers the slowest: few different answers,
    each judged once.
    """

    schedule: Schedule
    positions: Positions
    graph: Topology
    of: NDArray[np.intp]

    def on(self, bandwidth: Floats, latency: Floats) -> Mask:
        """Say of each network whether the schedule keeps step there.

        Parameters
        ----------
        bandwidth, latency
            Of every class of links (B/s, s), shape ``(classes, networks)``.

        Returns
        -------
        Mask
            Shape ``(networks,)``. Transfers of equal latency that pass links of different classes
            are taken to differ, so a network may be denied that keeps step.
        """
        if self.uniform:
            return np.ones(bandwidth.shape[1], dtype=np.bool_)
        answers = [step.answers(bandwidth, latency) for step in self._steps]
        which = np.concatenate([np.concatenate(answer) for answer in answers]).T
        _, first, number = np.unique(which, axis=0, return_index=True, return_inverse=True)
        judged = [self._judge([(most[:, i], slow[:, i]) for most, slow in answers]) for i in first]
        return np.array(judged, dtype=np.bool_)[number.ravel()]

    @cached_property
    def uniform(self) -> bool:
        """Whether all transfers of each step pass the same classes of links as busy."""
        keeping = _Keeping.of(self.schedule, self.graph)
        keeping.chained = False  # who is last differs from network to network
        nobody = np.zeros(0, dtype=np.bool_)
        for step, judged in zip(self.schedule.steps, self._steps, strict=True):
            pace = Pace(judged.uniform, False, None, nobody, nobody, nobody)  # noqa: FBT003
            if not keeping.goes_on(step, pace):
                return False
        return True

    def _judge(self, answers: list[tuple[Mask, Mask]]) -> bool:
        keeping = _Keeping.of(self.schedule, self.graph)
        return all(
            keeping.goes_on(step, judged.pace(most, slow))
            for step, judged, (most, slow) in zip(
                self.schedule.steps, self._steps, answers, strict=True
            )
        )

    @cached_property
    def _steps(self) -> list["_StepOnClasses"]:
        return [_on_classes(step, self) for step in self.schedule.steps]


@dataclass(frozen=True, slots=True, eq=False)
class _StepOnClasses:
    """A step on classes of links.

    Transfer ``t`` goes way ``way[t]``, of those in ``ways`` (links of each class); link ``l`` has
    ``pair[l]``, one of the pairs of a class and bytes (B). ``of`` and ``link`` are transfer and
    link of each use.
    """

    ways: Floats
    way: Longs
    pair_class: Longs
    pair_bytes: Floats
    pair: Longs
    of: Longs
    link: Longs
    users: _Users
    equal: bool

    @property
    def uniform(self) -> bool:
        """Whether all transfers are equal, and each is on the busiest links of all classes."""
        if not self.equal or len(self.ways) > 1:
            return False
        most = np.zeros(self.ways.shape[1])
        np.maximum.at(most, self.pair_class, self.pair_bytes)
        on_busiest = (self.pair_bytes >= most[self.pair_class] * (1 - _ALIKE))[self.pair[self.link]]
        transfer, of_class = self.of[on_busiest], self.pair_class[self.pair[self.link[on_busiest]]]
        on_class = np.zeros((len(self.way), self.ways.shape[1]), dtype=np.bool_)
        on_class[transfer, of_class] = True
        return bool(on_class[:, self.ways[0] > 0].all())

    def answers(self, bandwidth: Floats, latency: Floats) -> tuple[Mask, Mask]:
        """Which pairs are the busiest, and which ways the slowest, on each network."""
        busy = self.pair_bytes[:, None] / bandwidth[self.pair_class]
        slow = self.ways @ latency
        alike = 1 - _ALIKE
        return busy >= busy.max(axis=0) * alike, slow >= slow.max(axis=0) * alike

    def pace(self, most: Mask, slowest: Mask) -> Pace:
        """Say how the transfers keep pace where those are the busiest and the slowest."""
        uses = self.of, self.link
        return _pace_of(self.users, uses, most[self.pair], slowest[self.way], equal=self.equal)


def _on_classes(step: Step, where: KeepingStep) -> _StepOnClasses:
    graph, count = where.graph, len(step.source)
    amount: Floats = where.schedule.units(step)
    paths = routes(graph, where.positions[step.source], where.positions[step.target], amount)
    ways, way = _ways(paths, where.of, count)
    used, link = np.unique(paths.link, return_inverse=True)
    link = link.ravel().astype(np.int64)
    on_link = np.bincount(link, amount[paths.message] * paths.share)
    both = np.stack([where.of[used], on_link], axis=1)
    pairs, pair = np.unique(both, axis=0, return_inverse=True)
    return _StepOnClasses(
        ways=ways,
        way=way,
        pair_class=pairs[:, 0].astype(np.int64),
        pair_bytes=pairs[:, 1].astype(np.float64),
        pair=pair.ravel().astype(np.int64),
        of=paths.message,
        link=link,
        users=_users(step, paths.message, link, used),
        equal=bool((amount == amount[0]).all()),
    )


def _ways(paths: Routes, of: NDArray[np.intp], count: int) -> tuple[Floats, Longs]:
    """Links of each class that messages pass: the different ways, and which each message goes."""
    classes = int(of.max()) + 1
    at = paths.message * classes + of[paths.link]
    hops = np.bincount(at, weights=paths.share, minlength=count * classes)
    ways, way = np.unique(hops.reshape(count, classes), axis=0, return_inverse=True)
    return ways.astype(np.float64), way.ravel().astype(np.int64)
