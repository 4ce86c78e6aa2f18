"""A call written out as transfers, and its time alone on its links.

Ranks run ahead of each other: each takes its own steps in order, and a transfer starts when both
its ranks have completed all sends and receives of the steps before. If all ranks end every step at
the same time, or a chain of transfers runs through the slowest of every step, the call takes the
sum of its steps (:mod:`simulator.transfers.lockstep`), a closed form. Otherwise it takes less,
sometimes by a third, and is simulated once by itself (:func:`alone`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.routing.routes import Routes, routes_in
from simulator.schedule import Plan, Step
from simulator.support.arrays import Floats, Longs, offsets
from simulator.topology import Topology
from simulator.transfers.crowd import Crowd, Program, Ways

Positions = NDArray[np.int32]
"""Nodes of the graph on which the ranks of a group are placed, in the order of the group."""

MOST, MOST_ALIKE = 2**16, 2**18
"""Most transfers of a call that are simulated one by one; of calls with more, several equal steps
are simulated at a time: their latencies, then their bytes. The larger limit is for calls whose
transfers are alike in every step: most of them share their instants, which is ten times faster."""
WIDEST, _MOST_LISTED = 2**12, 2**21
"""Most transfers of a step for which ranks run ahead, and most links that these list; wider steps
end for the whole group at once."""


def has_transfers(plan: Plan | None) -> bool:
    """Whether a call is a list of transfers.

    It is not if its plan is unknown, if its steps are pipelined, or if switches reduce.
    """
    if plan is None or plan.pipelined:
        return False
    return not any(step.in_network for step in plan.schedule.steps)


def widest(network: Topology) -> int:
    """Return the most transfers of a step for which ranks run ahead.

    They are fewer where a detour passes any router, as on a torus: it is divided over all links.
    """
    routing = network.routing
    over_all = routing.detours and routing.group is not None and not routing.group.any()
    return min(WIDEST, _MOST_LISTED // len(network)) if over_all else WIDEST


def runs_ahead(plan: Plan | None, most: int = WIDEST) -> bool:
    """Whether the ranks of a call run ahead of each other: a list of not too many transfers.

    ``most`` are those of a step: :func:`widest`.
    """
    if plan is None or not has_transfers(plan):
        return False
    width = [step.width for step in plan.schedule.steps]
    return 0 < max(width, default=0) <= most and sum(width) <= MOST


def by_resource(factors: Mapping[str, float], network: Topology) -> Floats:
    """Factors in the order of the topology's resources, 1 where none is given."""
    return np.array([factors.get(name, 1.0) for name in network.resources])


def write(plan: Plan, positions: Positions, size: float, network: Topology) -> Program:
    """Write out the transfers of a plan that :func:`runs_ahead`."""
    steps = plan.schedule.steps
    source = np.concatenate([step.source for step in steps]).astype(np.int64)
    target = np.concatenate([step.target for step in steps]).astype(np.int64)
    widths = np.array([len(step.source) for step in steps], dtype=np.int64)
    ranks = plan.schedule.ranks
    of_step = np.repeat(np.arange(len(steps)), widths)
    row = np.concatenate([of_step * ranks + source, of_step * ranks + target])
    flow = np.tile(np.arange(len(source)), 2)
    by_step = [_ways(step, plan, positions, (size, network)) for step in steps]
    routes = Routes(
        offsets(np.concatenate([np.diff(ways.offset) for ways in by_step])),
        np.concatenate([ways.link for ways in by_step]),
        np.concatenate([ways.share for ways in by_step]),
    )
    finite = np.isfinite(network.bandwidth[routes.link])
    hops = np.bincount(routes.message[finite], minlength=len(source))
    units = np.concatenate([plan.schedule.units(step) for step in steps])
    ways = Ways(np.where(hops > 0, units, 0.0), routes, routes.share[finite], widths)
    none = np.zeros(len(source))
    unnumbered = Program(
        ranks=ranks,
        source=source,
        target=target,
        latency=none,
        amount=none,
        latency_of=none.reshape(-1, 1),
        offset=offsets(hops),
        link=routes.link[finite].astype(np.int64),
        weight=ways.share,
        row=np.arange(len(steps), dtype=np.int64) * ranks,
        repeats=np.array([step.repeats for step in steps], dtype=np.int64),
        stride=np.ones_like(widths),
        row_offset=np.searchsorted(np.sort(row), np.arange(len(steps) * ranks + 1)),
        row_flow=flow[np.argsort(row, kind="stable")],
        transfers=0,
        ways=ways,
    )
    return numbered(unnumbered, plan, size, network)


def numbered(program: Program, plan: Plan, size: float, network: Topology) -> Program:
    """Return a program with the latencies, bytes and weights of a network.

    Parameters
    ----------
    program
        Of the same schedule, written for a network of the same graph and with the same links of
        infinite bandwidth; it has ``ways``.
    plan, size, network
        The plan there, the size of the message (B) and the network.

    Returns
    -------
    Program
        Equal to what :func:`write`, and the same dropping of equivalent transfers, would return.
    """
    ways = program.ways
    if ways is None:
        raise ValueError("a call that is not a list of transfers is written anew")
    latency_of = latencies(ways.routes, plan, network)
    factor = by_resource(plan.bandwidth_factor, network)[network.resource[program.link]]
    return strided(
        replace(
            program,
            latency=latency_of.sum(axis=1),
            amount=_bytes(ways.units, plan, size),
            latency_of=latency_of,
            weight=ways.share / factor,
        )
    )


def strided(program: Program) -> Program:
    """Choose how many equal steps are simulated at a time, so that transfers are not too many."""
    ways, repeats = program.ways, program.repeats
    if ways is None:
        return program
    run = program.run
    most = MOST
    if (repeats * ways.width).sum() > MOST and _alike(program, run):
        most = MOST_ALIKE
    stride = np.minimum(stride_of(repeats, ways.width, most), repeats)
    width = np.bincount(run, minlength=len(repeats))
    if ways.compared:
        stride = np.minimum(stride_of(repeats, width, MOST), stride)
    transfers = int((-(-repeats // stride) * width).sum())
    return replace(program, stride=stride, transfers=transfers)


def _alike(program: Program, run: Longs) -> bool:
    """Whether all transfers of every step have equal latency and bytes."""
    for value in (program.latency, program.amount):
        least, most = np.full(len(program.row), np.inf), np.full(len(program.row), -np.inf)
        np.minimum.at(least, run, value)
        np.maximum.at(most, run, value)
        if (least < most).any():
            return False
    return True


def _bytes(units: Floats, plan: Plan, size: float) -> Floats:
    """Bytes on the wire of so many chunks of a message (B)."""
    amount: Floats = units * (size / plan.schedule.parts / plan.efficiency)
    return amount


class Transfers(NamedTuple):
    """Of a step: latencies (s), bytes, and the links of finite bandwidth of each transfer."""

    latency_of: Floats
    amount: Floats
    hops: Longs
    link: Longs
    weight: Floats


def transfers(
    step: Step, plan: Plan, positions: Positions, where: tuple[float, Topology]
) -> Transfers:
    """Lay the transfers of a step on links; ``where`` is the message's size and the network."""
    (size, network), ways = where, _ways(step, plan, positions, where)
    finite = np.isfinite(network.bandwidth[ways.link])
    link, amount = ways.link[finite], _bytes(plan.schedule.units(step), plan, size)
    hops = np.bincount(ways.message[finite], minlength=len(amount))
    factor = by_resource(plan.bandwidth_factor, network)[network.resource[link]]
    return Transfers(
        latency_of=latencies(ways, plan, network),
        amount=np.where(hops > 0, amount, 0.0),
        hops=hops,
        link=link.astype(np.int64),
        weight=ways.share[finite] / factor,
    )


def _ways(step: Step, plan: Plan, positions: Positions, where: tuple[float, Topology]) -> Routes:
    size, network = where
    amount = _bytes(plan.schedule.units(step), plan, size)
    ends = positions[step.source], positions[step.target]
    return routes_in(network, plan.outage, ends, amount)


def latencies(ways: Routes, plan: Plan, network: Topology) -> Floats:
    """Latency of each message of a step by resource (s), the last for software."""
    messages, parts = len(ways.offset) - 1, len(network.resources) + 1
    at = ways.message * parts + network.resource[ways.link]
    hop = network.latency[ways.link] * ways.share
    latency: Floats = np.bincount(at, weights=hop, minlength=messages * parts).astype(np.float64)
    latency = latency.reshape(messages, parts)
    latency[:, :-1] *= plan.latencies * by_resource(plan.latency_factor, network)
    latency[:, -1] = plan.step_latency
    return latency


def stride_of(repeats: Longs, widths: Longs, most: int) -> int:
    """Return how many like steps are taken at a time, so that there are not too many transfers."""
    stride = max(1, int(-(-(repeats * widths).sum() // most)))
    while (-(-repeats // stride) * widths).sum() > most:
        stride += max(1, stride // 4)
    return stride


def folded(program: Program, stand_in: Longs) -> Program:
    """Leave of a call's ranks those that stand for all: ``stand_in[r]`` for rank ``r``.

    Ranks that one stands for do the same at the same time, and so do transfers between such, as
    long as all that meets them does: they are one flow, which puts on a link what all of them do.
    """
    ways = program.ways
    if ways is None:
        return program
    runs = program.run
    source, target = stand_in[program.source], stand_in[program.target]
    columns = np.stack([runs, source, target, program.amount, program.latency], axis=1)
    _, first, flow = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    flow = flow.ravel()
    of = np.repeat(flow, np.diff(program.offset))
    links = int(program.link.max(initial=0)) + 1
    use, which = np.unique(of * links + program.link, return_inverse=True)
    weight, share = (
        np.bincount(which.ravel(), weights=each).astype(np.float64)
        for each in (program.weight, ways.share)
    )
    ends = np.concatenate([source, target]) + np.tile(runs * program.ranks, 2)
    row, entry = np.unique(np.stack([ends, np.tile(flow, 2)], axis=1), axis=0).T
    kept = replace(
        program,
        source=source[first],
        target=target[first],
        latency=program.latency[first],
        amount=program.amount[first],
        latency_of=program.latency_of[first],
        offset=np.searchsorted(use, np.arange(len(first) + 1) * links),
        link=use % links,
        weight=weight,
        row_offset=np.searchsorted(row, np.arange(len(program.row_offset))),
        row_flow=entry,
        ways=ways.of(first, share, compared=ways.compared),
    )
    return strided(kept)


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


def in_a_row(runs: Sequence["OneFlow"], resources: int) -> Program:
    """Write out a call whose steps are one flow each: of a single rank."""
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
        offset=offsets(hops),
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
