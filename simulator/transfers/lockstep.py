"""Whether a call takes the sum of its steps, which is a closed form.

A step of a whole group lasts its longest latency plus its longest drain, on its busiest link. A
call takes the sum of that over its steps

* if in every step all transfers start together and end together: equal bytes, equal latencies, and
  each on some busiest link; or
* if some rank is last in every step: a busiest link carries only what this rank sends or receives,
  or only one transfer of its, all of it at the longest latency. No rank is sooner than the steps
  say, then, nor later, where no link serves two ranks, in one step or in two: a rank that runs
  ahead would otherwise meet a transfer of an earlier step there; or
* if there is one step only, of equal transfers, and all those on a busiest link have the longest
  latency.

Where none of these holds, ranks may run ahead of each other, and the call is simulated.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from simulator.routing.routes import routes
from simulator.schedule import Plan, Schedule, Step
from simulator.support.arrays import Floats, Longs, Mask
from simulator.topology import Topology
from simulator.transfers.program import Positions, transfers

_ANY = -2
"""Owner of a link that was not used yet."""
_ALIKE = 1e-12
"""Relative difference below which times are equal."""


class Pace(NamedTuple):
    """Which transfers of a step decide when it ends.

    ``together``: all start and end together, if their ranks do. ``full``: all transfers of some
    busiest link have the longest latency. ``single`` marks transfers that are alone on such a link,
    ``sends`` and ``receives`` those that share it only with others of their source or target.
    ``users`` says which ranks each link serves; None if nothing moves.
    """

    together: bool
    full: bool
    users: "_Users | None"
    single: Mask
    sends: Mask
    receives: Mask


def is_lockstep(plan: Plan, positions: Positions, size: float, network: Topology) -> bool:
    """Whether a call alone on its links takes the sum of its steps.

    Arguments are those of :func:`simulator.costing.link_load.plan_loads`; the plan is a list of
    transfers.
    """
    keeping = _Progress.of(plan.schedule, network)
    for step in plan.schedule.steps:
        if not keeping.holds_after(step, _pace(step, plan, positions, (size, network))):
            return False
    return True


def has_slowest_chain(plan: Plan, positions: Positions, size: float, network: Topology) -> bool:
    """Whether some rank is last in every step, so that the sum of the steps is a lower bound.

    The bound holds whatever else is on the links: what this rank sends or receives in a step uses a
    link of its own, and not before the rank is there. It holds too for a single step if all
    transfers of a busiest link have the longest latency. Arguments are those of
    :func:`is_lockstep`.
    """
    keeping = _Progress.of(plan.schedule, network)
    for step in plan.schedule.steps:
        pace = _pace(step, plan, positions, (size, network))
        keeping.holds_after(step, pace)
        if keeping.single and pace.full:
            return True
        if not keeping.chained:
            return False
    return True


class _Progress(Struct, eq=False):
    """What holds for all steps so far: ``last`` marks ranks that were last in each of them.

    ``owner`` are the ranks, at most two, at which all transfers of a link so far start or end,
    shape ``(2, links)``: -1 is none, ``_ANY`` a link that was not used.
    """

    single: bool
    last: Mask
    owner: Longs
    together: bool = True
    chained: bool = True
    before: Step | None = None

    @staticmethod
    def of(schedule: Schedule, network: Topology) -> "_Progress":
        """Start with all ranks at the same time."""
        is_single = sum(step.repeats for step in schedule.steps) == 1
        owner = np.full((2, len(network)), _ANY)
        return _Progress(is_single, np.ones(schedule.ranks, dtype=np.bool_), owner)

    def holds_after(self, step: Step, pace: Pace) -> bool:
        """Add a step; return whether one of the three conditions still holds."""
        self.together = self.together and pace.together and self._follows_last_step(step)
        self.before = step
        self.chained = self.chained and (pace.users is None or self._serves_one_rank(pace.users))
        for _ in range(min(step.repeats, len(self.last))):
            if not self.chained:
                break
            before, lasting = self.last, np.zeros_like(self.last)
            both = pace.single & (before[step.source] | before[step.target])
            lasting[step.source[both | (pace.sends & before[step.source])]] = True
            lasting[step.target[both | (pace.receives & before[step.target])]] = True
            self.last = lasting
            self.chained = bool(self.last.any())
            if np.array_equal(before, self.last):  # further repetitions change nothing
                break
        return self.together or self.chained or (self.single and pace.full)

    def _serves_one_rank(self, users: "_Users") -> bool:
        """Whether every link has served a single rank so far."""
        before = self.owner[:, users.link]
        again = ((before == users.owner[0]) | (before == users.owner[1])) & (before >= 0)
        now = np.where(before[0] == _ANY, users.owner, np.where(again, before, -1))
        self.owner[:, users.link] = now
        return bool((now >= 0).any(axis=0).all())

    def _follows_last_step(self, step: Step) -> bool:
        """Whether every transfer has a rank that took part in the step before."""
        if self.before is None:
            return True
        reached = np.zeros(len(self.last), dtype=np.bool_)
        reached[self.before.source] = reached[self.before.target] = True
        return bool((reached[step.source] | reached[step.target]).all())


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
    """Return the pace of a step, given its busiest links (``most``) and ``slow`` transfers.

    ``uses`` are the transfer and the link of each use; ``equal``: all transfers have equal bytes.
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
    """Users of each link of a step: whether a single transfer, or those of one source or target.

    ``many`` counts the transfers. ``owner`` are their common source and target, -1 where they
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


class LockstepOnNetworks(Struct, frozen=True, eq=False, dict=True):
    """Whether a schedule is in lockstep, on many networks of one graph with link classes ``of``.

    Links of a class are equal on every network. Networks then differ only in which links are the
    busiest and which transfers the slowest: a few distinct cases, each decided once.
    """

    schedule: Schedule
    positions: Positions
    graph: Topology
    of: NDArray[np.intp]

    def on(self, bandwidth: Floats, latency: Floats) -> Mask:
        """Return for each network whether the schedule is in lockstep.

        Parameters
        ----------
        bandwidth, latency
            Of every class of links (B/s, s), shape ``(classes, networks)``.

        Returns
        -------
        Mask
            Shape ``(networks,)``. Transfers over different classes of links count as different even
            if their latencies are equal, so False may be returned for a network in lockstep.
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
        """Whether all transfers of a step use the same classes of links, equally loaded."""
        keeping = _Progress.of(self.schedule, self.graph)
        keeping.chained = False  # which rank is last differs between networks
        nobody = np.zeros(0, dtype=np.bool_)
        for step, judged in zip(self.schedule.steps, self._steps, strict=True):
            pace = Pace(judged.uniform, False, None, nobody, nobody, nobody)  # noqa: FBT003
            if not keeping.holds_after(step, pace):
                return False
        return True

    def _judge(self, answers: list[tuple[Mask, Mask]]) -> bool:
        keeping = _Progress.of(self.schedule, self.graph)
        return all(
            keeping.holds_after(step, judged.pace(most, slow))
            for step, judged, (most, slow) in zip(
                self.schedule.steps, self._steps, answers, strict=True
            )
        )

    @cached_property
    def _steps(self) -> list["_StepOnClasses"]:
        return [_on_classes(step, self) for step in self.schedule.steps]


class _StepOnClasses(Struct, frozen=True, eq=False):
    """A step on classes of links.

    Transfer ``t`` takes path ``way[t]`` of ``ways`` (number of links of each class). Link ``l`` has
    ``pair[l]``, a distinct pair of class and bytes (B). ``of`` and ``link`` are the transfer and
    the link of each use.
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
        """Whether all transfers are equal, and each uses a busiest link of every class."""
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
        """Mark the busiest pairs and the slowest paths of each network."""
        busy = self.pair_bytes[:, None] / bandwidth[self.pair_class]
        slow = self.ways @ latency
        alike = 1 - _ALIKE
        return busy >= busy.max(axis=0) * alike, slow >= slow.max(axis=0) * alike

    def pace(self, most: Mask, slowest: Mask) -> Pace:
        """Return the pace, given which pairs are the busiest and which paths the slowest."""
        uses = self.of, self.link
        return _pace_of(self.users, uses, most[self.pair], slowest[self.way], equal=self.equal)


def _on_classes(step: Step, where: LockstepOnNetworks) -> _StepOnClasses:
    graph, count = where.graph, len(step.source)
    amount: Floats = where.schedule.units(step)
    paths = routes(graph, where.positions[step.source], where.positions[step.target], amount)
    # Distinct paths, as numbers of links of each class, and the path of each message.
    classes = int(where.of.max()) + 1
    at = paths.message * classes + where.of[paths.link]
    hops = np.bincount(at, weights=paths.share, minlength=count * classes)
    ways, way = np.unique(hops.reshape(count, classes), axis=0, return_inverse=True)
    used, link = np.unique(paths.link, return_inverse=True)
    link = link.ravel().astype(np.int64)
    on_link = np.bincount(link, amount[paths.message] * paths.share)
    both = np.stack([where.of[used], on_link], axis=1)
    pairs, pair = np.unique(both, axis=0, return_inverse=True)
    return _StepOnClasses(
        ways=ways.astype(np.float64),
        way=way.ravel().astype(np.int64),
        pair_class=pairs[:, 0].astype(np.int64),
        pair_bytes=pairs[:, 1].astype(np.float64),
        pair=pair.ravel().astype(np.int64),
        of=paths.message,
        link=link,
        users=_users(step, paths.message, link, used),
        equal=bool((amount == amount[0]).all()),
    )
