"""What shares links at the same time: calls, and messages of one call; where, and what that costs.

:func:`meetings` lists the links on which calls delayed each other most. A hash, or a forwarding
table, gives every message of a call one path, and some links several messages though others are
free: what that costs (:func:`collision`) is the difference to the same call on the same links with
its messages divided alike over all shortest paths.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from simulator.costing.call_costs import Costs
from simulator.costing.link_load import Load, bytes_on_links, cost, is_wide, lay, passing, summed
from simulator.routing.paths import between_switches
from simulator.routing.routes import routes
from simulator.schedule import Plan, Schedule
from simulator.support.arrays import Floats, Ints
from simulator.timeline import Timeline
from simulator.topology import Topology

_LOOKED_AT = 500
"""Calls of which it is asked whom they met: those that were held up longest."""
_HELD_UP = 1e-6
"""A call was held up if it took longer by more than this fraction."""
_HELD_UP = 1e-6
"""A call was held up if it took longer by more than this fraction."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A link on which calls of two sorts met.

    Parameters
    ----------
    link
        Its ends.
    calls
        Kind, and label of the group in brackets where it has one, of both sorts.
    times
        How often.
    lost
        By how much longer calls took that met there, added up (s). Calls lose time at the same
        time, and behind other work, so that a step need not be longer by as much.
    """

    link: tuple[str, str]
    calls: tuple[str, str]
    times: int
    lost: float


def meetings(timeline: Timeline, costs: Costs, most: int = 3) -> tuple[Meeting, ...]:
    """Find the links on which most time was lost by calls that met.

    Of a call that took longer than on an idle network, the time it lost is counted on the link that
    it and the call beside it kept busiest, of all links they have in common; of several calls
    beside it, with that which overlapped longest.
    """
    loads = costs.loads_by_index(timeline.workload)
    # By how much each call was longer than on an idle network (s).
    lasted = timeline.call_end - timeline.call_start
    alone = costs.idle_times(timeline.workload) * timeline.workload.calls.factor
    lost: Floats = np.nan_to_num(lasted - alone)
    lost[lost <= _HELD_UP * alone] = 0.0
    lost_by_link: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for call in np.argsort(-lost, kind="stable")[:_LOOKED_AT].tolist():
        if not lost[call] > 0:
            break
        busy = _busy(loads(call), timeline)
        for neighbour in _overlapping(call, timeline):
            shared = np.minimum(busy, _busy(loads(neighbour), timeline))
            if shared.any():
                names = sorted((_name(call, timeline), _name(neighbour, timeline)))
                lost_by_link[int(np.argmax(shared)), names[0], names[1]].append(float(lost[call]))
                break
    ranked = sorted(lost_by_link.items(), key=lambda item: (-sum(item[1]), item[0]))
    nodes, network = timeline.topology.nodes, timeline.topology
    return tuple(
        Meeting(
            (str(nodes[network.source[link]]), str(nodes[network.target[link]])),
            (first, second),
            len(times),
            sum(times),
        )
        for (link, first, second), times in ranked[:most]
    )


def _overlapping(call: int, timeline: Timeline) -> list[int]:
    """List the calls that were under way at the same time, the longest beside first."""
    start, end = timeline.call_start, timeline.call_end
    both = np.minimum(end, end[call]) - np.maximum(start, start[call])
    both[call] = 0.0
    both = np.nan_to_num(both)
    neighbours = np.flatnonzero(both > 0)
    ordered: list[int] = neighbours[np.argsort(-both[neighbours], kind="stable")].tolist()
    return ordered


def _busy(loads: tuple[Load, ...], timeline: Timeline) -> Floats:
    """How long a call keeps each link busy (s)."""
    busy = np.zeros(len(timeline.topology))
    for load in loads:
        busy[load.link] += load.weight * load.amount
    return busy / timeline.topology.bandwidth


def _name(call: int, timeline: Timeline) -> str:
    view = timeline.workload.call_view(call)
    return f"{view.kind} ({view.group.label})" if view.group.label else view.kind


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
    return replace(network, routing=replace(network.routing, policy="spray", flows=1))


def collision(
    plan: Plan, positions: Ints, size: float, networks: tuple[Topology, Topology]
) -> Collision | None:
    """Say where messages of a call meet by the choice of the policy; None where that costs little.

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
    chosen, spread = (cost(lay(plan, positions, size, routed)) for routed in networks)
    if chosen <= spread * (1 + MATTERS):
        return None
    steps = range(len(plan.schedule.steps))
    lost = [_lost_in_step(plan, step, positions, networks) for step in steps]
    number = int(np.argmax(lost))
    busy, even = (_busy_in_step(plan, number, positions, routed) for routed in networks)
    busy[busy <= even * (1 + _ALIKE)] = 0.0
    link = int(np.argmax(busy))
    messages, pairs = _on_link(plan.schedule, number, (positions, network), link)
    ends = network.nodes[network.source[link]], network.nodes[network.target[link]]
    return Collision(
        link=(str(ends[0]), str(ends[1])),
        messages=messages,
        pairs=tuple(pairs)[:_PAIRS],
        slower=chosen / spread,
    )


def _busy_in_step(plan: Plan, number: int, positions: Ints, network: Topology) -> Floats:
    """How long each link is busy in a step, in proportion."""
    schedule, step = plan.schedule, plan.schedule.steps[number]
    total = summed(schedule, step, positions, network, everyone=False) if is_wide(step) else None
    if total is not None:
        return total.load / network.bandwidth
    ways = routes(network, positions[step.source], positions[step.target])
    amount = schedule.units(step)
    return bytes_on_links(step, amount, ways, network) / network.bandwidth


def _on_link(
    schedule: Schedule, number: int, where: tuple[Ints, Topology], link: int
) -> tuple[int, list[tuple[int, int]]]:
    """Count the messages of a step on a link; say of the first few who sends to whom."""
    step, (positions, network) = schedule.steps[number], where
    listed = passing(schedule, step, where, link) if is_wide(step) else None
    if listed is not None:
        return listed
    ways = routes(network, positions[step.source], positions[step.target])
    meeting = np.unique(ways.message[ways.link == link])
    pairs = zip(step.source[meeting].tolist(), step.target[meeting].tolist(), strict=True)
    return len(meeting), list(pairs)


def _lost_in_step(
    plan: Plan, number: int, positions: Ints, networks: tuple[Topology, Topology]
) -> float:
    """How much longer the busiest link of a step is busy than with messages spread alike."""
    chosen, spread = (_busy_in_step(plan, number, positions, routed) for routed in networks)
    return plan.schedule.steps[number].repeats * float(chosen.max() - spread.max())
