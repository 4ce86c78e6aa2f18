"""Steps of very many transfers, laid on a network without a list of what passes which link.

What an all-to-all on 4,096 ranks puts on each link, and which of its 16.8 million transfers is the
slowest, is added up goal by goal (:mod:`simulator.routing.totals`), once for calls of every size.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.programs import WIDEST
from simulator.routing.routes import Routes
from simulator.routing.totals import Totals, each_way, totals
from simulator.routing.traffic import Traffic, exchange, listed
from simulator.schedule import Exchange, Schedule, Step
from simulator.topology import Topology

Floats = NDArray[np.float64]
Positions = NDArray[np.int32]
_KEPT = 8
"""Answers kept per topology: steps of the schedules that a planner compares."""


class Summed(NamedTuple):
    """What a step of a schedule comes to, of chunks of one byte.

    ``load`` is what it puts on each link (B), ``largest`` its largest transfer (B); ``latency_of``
    is the latency of its slowest transfer, or of all in the mean, by resource (s), the last for
    software, 0.
    """

    load: Floats
    largest: float
    latency_of: Floats


def is_wide(step: Step) -> bool:
    """Whether a step is to be summed up: it has very many transfers, and switches do not add."""
    return step.width > WIDEST and not step.in_network


def summed(
    schedule: Schedule, step: Step, positions: Positions, network: Topology, *, everyone: bool
) -> Summed | None:
    """Sum up a step of a schedule.

    Parameters
    ----------
    schedule, step
        The schedule, and a wide step of it.
    positions
        Node of each rank of the group.
    network
        Where it is laid.
    everyone
        The latency is the mean of all transfers, not the slowest one's.

    Returns
    -------
    Summed or None
            None where only a list of all transfers tells (:func:`simulator.routing.totals.totals`).

    Raises
    ------
    TopologyError
        If a rank has no node there.
    """
    found = _totals(network, _traffic(schedule, step, positions))
    if found is None:
        return None
    alike = schedule.lengths is None and isinstance(step, Exchange)
    largest = 1.0 if alike else float(schedule.units(step).max())
    if not everyone:
        return Summed(found.load, largest, np.append(found.latency_of, 0.0))
    if not alike and network.routing.policy == "adaptive":
        return None  # the parts that go which way are not those of messages of one byte
    mean = _mean_latency_of(schedule, step, positions, network)
    return None if mean is None else Summed(found.load, largest, mean)


def _mean_latency_of(
    schedule: Schedule, step: Step, positions: Positions, network: Topology
) -> Floats | None:
    """Mean latency of the transfers of a step by resource (s), the last for software, 0."""
    found = _totals(network, _traffic(schedule, step, positions, alike=True))
    if found is None:
        return None
    hop = network.latency * found.load / step.width
    return np.bincount(network.resource, hop, len(network.resources) + 1).astype(np.float64)


def ways_of(
    schedule: Schedule, step: Step, positions: Positions, network: Topology
) -> Iterator[Routes] | None:
    """List the links of the transfers of a wide step some at a time; None as :func:`summed`.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    traffic = _traffic(schedule, step, positions)
    found = _totals(network, traffic)
    return None if found is None else each_way(network, traffic, found.parts)


def passing(
    schedule: Schedule, step: Step, where: tuple[Positions, Topology], link: int
) -> tuple[int, list[tuple[int, int]]] | None:
    """Count the transfers of a wide step on a link; say of the first few who sends to whom."""
    positions, network = where
    found = totals(network, _traffic(schedule, step, positions), link)
    if found is None:
        return None
    count, numbers = found.passing
    return count, [ends_of(step, number) for number in numbers]


def ends_of(step: Step, number: int) -> tuple[int, int]:
    """Ranks of a transfer, by its number in :class:`~simulator.routing.totals.Traffic`."""
    if isinstance(step, Exchange):
        sender, receiver = divmod(number, len(step.members))
        return int(step.members[sender]), int(step.members[receiver])
    return int(step.source[number]), int(step.target[number])


def _traffic(
    schedule: Schedule, step: Step, positions: Positions, *, alike: bool = False
) -> Traffic:
    """Return the transfers of a step as messages between nodes; all of one byte if ``alike``."""
    if not isinstance(step, Exchange):
        amount = None if alike else schedule.units(step)
        return listed(positions[step.source], positions[step.target], amount)
    nodes = positions[step.members]
    if schedule.lengths is None or alike:
        return exchange(nodes)
    member = np.arange(len(nodes))
    chunk = member[:, None] * step.by_source + member * step.by_target
    return exchange(nodes, schedule.lengths[np.minimum(chunk, schedule.chunks - 1)])


def _totals(network: Topology, traffic: Traffic) -> Totals | None:
    """Sum up messages, or say again what the last few came to."""
    known: dict[bytes, Totals | None] = network.known_graph.setdefault("totals", {})
    key = _key(traffic)
    if key not in known:
        if len(known) >= _KEPT:
            del known[next(iter(known))]
        known[key] = totals(network, traffic)
    return known[key]


def _key(traffic: Traffic) -> bytes:
    """Tell traffic from other traffic."""
    digest = blake2b(digest_size=16)
    for column in (traffic.goal, traffic.source, traffic.offset, traffic.number, traffic.amount):
        shape = None if column is None else column.shape
        digest.update(repr(shape).encode())
        if column is not None:
            digest.update(np.ascontiguousarray(column).data)
    return digest.digest()
