"""A call written out transfer by transfer, and what it takes alone on its links.

Ranks run ahead: each takes its own steps in order, and a transfer starts when both its ends have
ended all that they send and receive in the steps before. Where all ranks end every step at the same
time, or a chain of transfers runs through the slowest of every step, the call takes as long as its
steps one after the other (:func:`keeps_step`), and that is a closed form. Elsewhere it takes less,
sometimes by a third, and is simulated once by itself (:func:`alone`).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.crowd import Crowd, Ints, Program
from simulator.routing.routes import Routes, routes
from simulator.schedule import Plan, Step
from simulator.topology import Topology
from simulator.workload import Floats

Positions = NDArray[np.int32]
"""Where the ranks of a group sit: nodes of the graph, in the order of the group."""

MOST = 2**18
"""Transfers of a call that are taken one by one, at the most; of more, like steps are taken several
at a time: their latencies, then their bytes."""
WIDEST = 2**12
"""Transfers of a step, at the most; the steps of a call with a wider one end for the whole group at
once."""
_ALIKE = 1e-12
"""Times that differ by less than this fraction are the same."""


def has_transfers(plan: Plan | None) -> bool:
    """Whether a call is a list of transfers.

    It is none if its plan is unknown, if all its steps are under way at once, or if the switches
    add up.
    """
    if plan is None or plan.pipelined:
        return False
    return not any(step.in_network for step in plan.schedule.steps)


def runs_ahead(plan: Plan | None) -> bool:
    """Whether each rank of a call goes its own way: a list of transfers, and not too long a one."""
    if plan is None or not has_transfers(plan):
        return False
    width = [len(step.source) for step in plan.schedule.steps]
    return 0 < max(width, default=0) <= WIDEST and sum(width) <= MOST


def by_resource(factors: Mapping[str, float], network: Topology) -> Floats:
    """Factors in the order of the topology's resources, 1 where none is given."""
    return np.array([factors.get(name, 1.0) for name in network.resources])


def write(plan: Plan, positions: Positions, size: float, network: Topology) -> Program:
    """Write out a plan that :func:`runs_ahead`, transfer by transfer.

    Parameters
    ----------
    plan, positions, size, network
        As :func:`simulator.costing.link_load.lay` has them.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    steps = plan.schedule.steps
    parts = [_transfers(step, plan, positions, (size, network)) for step in steps]
    source = np.concatenate([step.source for step in steps]).astype(np.int64)
    target = np.concatenate([step.target for step in steps]).astype(np.int64)
    widths = np.array([len(step.source) for step in steps], dtype=np.int64)
    repeats = np.array([step.repeats for step in steps], dtype=np.int64)
    ranks = plan.schedule.ranks
    of_step = np.repeat(np.arange(len(steps)), widths)
    row = np.concatenate([of_step * ranks + source, of_step * ranks + target])
    flow = np.tile(np.arange(len(source)), 2)
    hops = np.concatenate([part.hops for part in parts])
    stride = _stride(repeats, widths)
    return Program(
        ranks=ranks,
        source=source,
        target=target,
        latency=np.concatenate([part.latency_of.sum(axis=1) for part in parts]),
        amount=np.concatenate([part.amount for part in parts]),
        latency_of=np.concatenate([part.latency_of for part in parts]),
        offset=np.concatenate([[0], np.cumsum(hops)]).astype(np.int64),
        link=np.concatenate([part.link for part in parts]).astype(np.int64),
        weight=np.concatenate([part.weight for part in parts]),
        row=np.arange(len(steps), dtype=np.int64) * ranks,
        repeats=repeats,
        stride=np.minimum(stride, repeats),
        row_offset=np.searchsorted(np.sort(row), np.arange(len(steps) * ranks + 1)),
        row_flow=flow[np.argsort(row, kind="stable")],
        transfers=int((-(-repeats // stride) * widths).sum()),
    )


class _Transfers(NamedTuple):
    """Of a step: latencies (s), bytes, and the links of finite bandwidth of each transfer."""

    latency_of: Floats
    amount: Floats
    hops: Ints
    link: Ints
    weight: Floats


def _transfers(
    step: Step, plan: Plan, positions: Positions, where: tuple[float, Topology]
) -> _Transfers:
    size, network = where
    amount: Floats = step.count * np.float64(size / plan.schedule.parts / plan.efficiency)
    ways = routes(network, positions[step.source], positions[step.target], amount)
    finite = np.isfinite(network.bandwidth[ways.link])
    link = ways.link[finite]
    hops = np.bincount(ways.message[finite], minlength=len(amount))
    factor = by_resource(plan.bandwidth_factor, network)[network.resource[link]]
    return _Transfers(
        latency_of=latencies(ways, plan, network),
        amount=np.where(hops > 0, amount, 0.0),
        hops=hops,
        link=link.astype(np.int64),
        weight=ways.share[finite] / factor,
    )


def latencies(ways: Routes, plan: Plan, network: Topology) -> Floats:
    """Latency of each message of a step by resource (s), the last for software."""
    messages, parts = len(ways.offset) - 1, len(network.resources) + 1
    at = ways.message * parts + network.resource[ways.link]
    hop = network.latency[ways.link] * ways.share
    found = np.bincount(at, weights=hop, minlength=messages * parts).reshape(messages, parts)
    found[:, :-1] *= plan.latencies * by_resource(plan.latency_factor, network)
    found[:, -1] = plan.step_latency
    return np.asarray(found, dtype=np.float64)


def _stride(repeats: Ints, widths: Ints) -> int:
    """Return how many like steps are taken at a time, so that there are not too many transfers."""
    stride = max(1, int(-(-(repeats * widths).sum() // MOST)))
    while (-(-repeats // stride) * widths).sum() > MOST:
        stride += max(1, stride // 4)
    return stride


class Alone(NamedTuple):
    """How long a call takes alone on its links (s), and where that goes, the last for software."""

    time: float
    spent: Floats


def alone(program: Program, overhead: float, network: Topology) -> Alone:
    """Simulate a call by itself, its software taking ``overhead`` (s) first."""
    used, link = np.unique(program.link, return_inverse=True)
    own = program.on(link.ravel().astype(np.int64))
    bandwidth = network.bandwidth[used]
    crowd = Crowd(bandwidth, network.resource[used], len(network.resources))
    call = crowd.begin(own, 1.0, overhead)
    crowd.advance(np.inf)
    return Alone(crowd.time, crowd.spent(call))


def keeps_step(plan: Plan, positions: Positions, size: float, network: Topology) -> bool:
    """Whether a call alone takes as long as its steps one after the other.

    A step of a whole group lasts its longest latency and then its longest drain, found on its
    busiest link. That is what the call takes if, step by step, all transfers start together and
    end together; or if ranks that were last in the step before are so again: the busiest link
    carries only what such a rank sends or receives, all of it at the longest latency.
    """
    last = np.ones(plan.schedule.ranks, dtype=np.bool_)
    together, chained = True, True
    steps = plan.schedule.steps
    single = sum(step.repeats for step in steps) == 1
    for before, step in pairwise((None, *steps)):
        assert step is not None  # noqa: S101
        pace = _pace(step, plan, positions, (size, network))
        together = together and pace.together and _follows(before, step)
        chained = chained and pace.own
        for _ in range(min(step.repeats, plan.schedule.ranks) if chained else 0):
            chained = bool((last := _last(pace, step, last)).any())
        if single and pace.full.any():
            return True
        if not (together or chained):
            return False
    return True


class _Pace(NamedTuple):
    """How the transfers of a step keep pace.

    ``together``: all start and end together, if their ranks do. ``own``: every link is used by one
    rank only. ``full`` marks transfers on a busiest link all of whose transfers have the longest
    latency, ``single`` those of them that have it for themselves, ``sends`` and ``receives`` those
    that have it with others of their source or target.
    """

    together: bool
    own: bool
    full: NDArray[np.bool_]
    single: NDArray[np.bool_]
    sends: NDArray[np.bool_]
    receives: NDArray[np.bool_]


def _pace(step: Step, plan: Plan, positions: Positions, where: tuple[float, Topology]) -> _Pace:
    found, (_, network) = _transfers(step, plan, positions, where), where
    latency, count = found.latency_of.sum(axis=1), len(step.source)
    slow = latency >= latency.max() * (1 - _ALIKE)
    of = np.repeat(np.arange(count), found.hops)
    used, link = np.unique(found.link, return_inverse=True)
    link = link.ravel()
    equal = bool((found.amount == found.amount[0]).all())
    if not len(used) or not found.amount.any():
        return _Pace(bool(slow.all()), True, slow, slow, slow, slow)
    busy = np.bincount(link, found.amount[of] * found.weight) / network.bandwidth[used]
    of_all = np.bincount(link)
    lone, clean = of_all == 1, np.bincount(link, slow[of]) == of_all
    own_source, own_target = (
        _of_one(end[of], link, len(used)) for end in (step.source, step.target)
    )
    most = busy >= busy.max() * (1 - _ALIKE)
    full = most & clean
    sound = equal or bool(lone.all())
    marks = [
        np.bincount(of[(one & sound)[link]], minlength=count) > 0
        for one in (full, full & lone, full & own_source, full & own_target)
    ]
    on_most = np.bincount(of[most[link]], minlength=count) > 0
    together = bool(equal and slow.all() and on_most.all())
    return _Pace(together, bool((own_source | own_target).all()), *marks)


def _of_one(end: NDArray[np.int32], link: Ints, links: int) -> NDArray[np.bool_]:
    """Whether the transfers on each link have the same end."""
    least = np.full(links, np.iinfo(np.int64).max)
    most = np.full(links, -1, dtype=np.int64)
    np.minimum.at(least, link, end)
    np.maximum.at(most, link, end)
    return np.asarray(least == most)


def _last(pace: _Pace, step: Step, last: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Ranks that are last in a step, of those that were in the step before."""
    found = np.zeros_like(last)
    both = pace.single & (last[step.source] | last[step.target])
    found[step.source[both | (pace.sends & last[step.source])]] = True
    found[step.target[both | (pace.receives & last[step.target])]] = True
    return found


def _follows(before: Step | None, step: Step) -> bool:
    """Whether every transfer has an end that takes part in the step before."""
    if before is None:
        return True
    there = np.concatenate([before.source, before.target])
    return bool((np.isin(step.source, there) | np.isin(step.target, there)).all())


def in_a_row(runs: Sequence["OneFlow"], resources: int) -> Program:
    """Write out a call whose steps are one flow each: of a single rank.

    Parameters
    ----------
    runs
        Like steps, one run after the other.
    resources
        How many the topology has.
    """
    repeats = np.array([run.repeats for run in runs], dtype=np.int64)
    stride = np.maximum(1, -(-repeats.sum() // SEGMENTS)) * np.ones(len(runs), dtype=np.int64)
    waits = np.array([not (run.latency and run.amount) for run in runs])
    stride = np.minimum(repeats, np.where(waits, repeats, stride))
    numbers = np.arange(len(runs), dtype=np.int64)
    hops = [len(run.link) for run in runs]
    return Program(
        ranks=1,
        source=np.zeros_like(numbers),
        target=np.zeros_like(numbers),
        latency=np.array([run.latency for run in runs]),
        amount=np.array([run.amount for run in runs]),
        latency_of=np.array([run.latency_of for run in runs]).reshape(-1, resources + 1),
        offset=np.concatenate([[0], np.cumsum(hops)]).astype(np.int64),
        link=np.concatenate([run.link for run in runs]).astype(np.int64),
        weight=np.concatenate([run.weight for run in runs]),
        row=numbers,
        repeats=repeats,
        stride=stride,
        row_offset=np.arange(len(runs) + 1, dtype=np.int64),
        row_flow=numbers,
        transfers=int((-(-repeats // stride)).sum()),
    )


SEGMENTS = 256
"""Parts in which a call of a single flow is taken, at the most.

Enough for every step of a ring all-reduce on 129 ranks; of longer ones several steps are one.
"""


class OneFlow(NamedTuple):
    """Like steps, each one flow on all its links: latency (s), by resource, then bytes."""

    repeats: int
    latency: float
    latency_of: Floats
    amount: float
    link: NDArray[np.int32]
    weight: Floats
