"""Messages of one call that a routing policy puts on the same link, though others are free.

A hash, or a forwarding table, gives every message one path, and some links several messages. What
that costs is told by the same call on the same links with its messages divided alike over all
shortest paths.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.costing.link_load import bytes_on_links, cost, lay
from simulator.costing.wide_steps import is_wide, passing, summed
from simulator.routing.routes import routes
from simulator.routing.survey import between_switches
from simulator.schedule import Plan, Schedule
from simulator.topology import Topology

MATTERS = 0.05
"""A collision is worth a word if a call takes longer by more than this fraction."""
_PAIRS = 4
_ALIKE = 1e-9
"""Links busy for times that differ by less, relatively, are as busy: sums of shares are rounded."""


@dataclass(frozen=True, slots=True)
class Collision:
    """The link on which messages of a call meet most.

    Parameters
    ----------
    link
        Its ends.
    messages
        How many of one step are on it at once, some perhaps in part.
    pairs
        A few of them: positions in the group of who sends and who receives.
    slower
        Time of the call over what it would be with messages divided over all shortest paths.
    """

    link: tuple[str, str]
    messages: int
    pairs: tuple[tuple[int, int], ...]
    slower: float


def spread_alike(network: Topology) -> Topology:
    """Return the network with messages divided over all shortest paths alike."""
    return replace(network, routing=replace(network.routing, policy="spray"))


def collision(
    plan: Plan,
    positions: NDArray[np.int32],
    size: float,
    networks: tuple[Topology, Topology],
) -> Collision | None:
    """Say where messages of a call meet by the choice of the policy; None where that costs little.

    Parameters
    ----------
    plan, positions, size
        As :func:`simulator.costing.link_load.lay` takes them.
    networks
        The network, and what :func:`spread_alike` makes of it.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    network = networks[0]
    if network.route is not None or network.routing.divides:
        return None
    if not between_switches(network).any():
        return None
    here, there = (cost(lay(plan, positions, size, one)) for one in networks)
    if here <= there * (1 + MATTERS):
        return None
    lost = [_lost(plan, number, positions, networks) for number in range(len(plan.schedule.steps))]
    number = int(np.argmax(lost))
    busy, even = (_busy(plan, number, positions, one) for one in networks)
    busy[busy <= even * (1 + _ALIKE)] = 0.0
    link = int(np.argmax(busy))
    messages, pairs = _on_link(plan.schedule, number, (positions, network), link)
    ends = network.nodes[network.source[link]], network.nodes[network.target[link]]
    return Collision(
        link=(str(ends[0]), str(ends[1])),
        messages=messages,
        pairs=tuple(pairs)[:_PAIRS],
        slower=here / there,
    )


def _busy(
    plan: Plan, number: int, positions: NDArray[np.int32], network: Topology
) -> NDArray[np.float64]:
    """How long each link is busy in a step, in proportion."""
    schedule, step = plan.schedule, plan.schedule.steps[number]
    found = summed(schedule, step, positions, network, everyone=False) if is_wide(step) else None
    if found is not None:
        return found.load / network.bandwidth
    ways = routes(network, positions[step.source], positions[step.target])
    amount = schedule.units(step)
    return bytes_on_links(step, amount, ways, network) / network.bandwidth


def _on_link(
    schedule: Schedule, number: int, where: tuple[NDArray[np.int32], Topology], link: int
) -> tuple[int, list[tuple[int, int]]]:
    """Count the messages of a step on a link; say of the first few who sends to whom."""
    step, (positions, network) = schedule.steps[number], where
    found = passing(schedule, step, where, link) if is_wide(step) else None
    if found is not None:
        return found
    ways = routes(network, positions[step.source], positions[step.target])
    meeting = np.unique(ways.message[ways.link == link])
    pairs = zip(step.source[meeting].tolist(), step.target[meeting].tolist(), strict=True)
    return len(meeting), list(pairs)


def _lost(
    plan: Plan, number: int, positions: NDArray[np.int32], networks: tuple[Topology, Topology]
) -> float:
    """How much longer the busiest link of a step is busy than with messages spread alike."""
    here, there = (float(_busy(plan, number, positions, one).max()) for one in networks)
    return plan.schedule.steps[number].repeats * (here - there)
