"""Contention: links shared by calls, or by messages of one call, and its cost.

:func:`meetings` lists the links on which calls delayed each other most. A hash or a forwarding
table gives each message of a call one path, so that some links carry several messages while others
are free. The cost of that (:func:`collision`) is the difference to the same call with its messages
spread evenly over all shortest paths.
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

_MOST_CALLS = 500
"""Number of calls whose delays are attributed to links: those delayed most."""
_DELAYED = 1e-6
"""A call was held up if it took longer by more than this fraction."""
_DELAYED = 1e-6
"""A call counts as delayed if it took longer by more than this fraction."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A link on which calls of two kinds met.

    Parameters
    ----------
    link
        Its ends.
    calls
        Kind and group label of both, the label in brackets.
    times
        Number of meetings.
    lost
        Total delay of the calls that met there (s). Delays overlap in time and may be hidden by
        other work, so the step need not be longer by as much.
    """

    link: tuple[str, str]
    calls: tuple[str, str]
    times: int
    lost: float


def meetings(timeline: Timeline, costs: Costs, most: int = 3) -> tuple[Meeting, ...]:
    """Find the links on which calls that met lost most time.

    The delay of a call, compared with an idle network, counts for the link that it and the other
    call together kept busiest, of all links that they share; of several other calls, for the one
    that overlapped longest.
    """
    loads = costs.loads_by_index(timeline.workload)
    # By how much each call was longer than on an idle network (s).
    lasted = timeline.call_end - timeline.call_start
    alone = costs.idle_times(timeline.workload) * timeline.workload.calls.factor
    lost: Floats = np.nan_to_num(lasted - alone)
    lost[lost <= _DELAYED * alone] = 0.0
    lost_by_link: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for call in np.argsort(-lost, kind="stable")[:_MOST_CALLS].tolist():
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
    """List the calls under way at the same time, the longest overlap first."""
    start, end = timeline.call_start, timeline.call_end
    both = np.minimum(end, end[call]) - np.maximum(start, start[call])
    both[call] = 0.0
    both = np.nan_to_num(both)
    neighbours = np.flatnonzero(both > 0)
    ordered: list[int] = neighbours[np.argsort(-both[neighbours], kind="stable")].tolist()
    return ordered


def _busy(loads: tuple[Load, ...], timeline: Timeline) -> Floats:
    """Time for which a call keeps each link busy (s)."""
    busy = np.zeros(len(timeline.topology))
    for load in loads:
        busy[load.link] += load.weight * load.amount
    return busy / timeline.topology.bandwidth


def _name(call: int, timeline: Timeline) -> str:
    view = timeline.workload.call_view(call)
    return f"{view.kind} ({view.group.label})" if view.group.label else view.kind


SIGNIFICANT = 0.05
"""A collision is reported if a call takes longer by more than this fraction."""
_PAIRS = 4
_ALIKE = 1e-9
"""Relative difference below which links are equally busy: sums of shares are rounded."""


@dataclass(frozen=True, slots=True)
class Collision:
    """The link on which most messages of a call meet.

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


def spread_evenly(network: Topology) -> Topology:
    """Return the network with messages spread evenly over all shortest paths."""
    return replace(network, routing=replace(network.routing, policy="spray", flows=1))


def collision(
    plan: Plan, positions: Ints, size: float, networks: tuple[Topology, Topology]
) -> Collision | None:
    """Find where messages of a call meet by the routing policy's choice; None if it costs little.

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
    if chosen <= spread * (1 + SIGNIFICANT):
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
    """Time for which each link is busy in a step, in arbitrary units."""
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
    """Count the messages of a step on a link; return source and target of the first few."""
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
    """How much longer the busiest link of a step is busy than with messages spread evenly."""
    chosen, spread = (_busy_in_step(plan, number, positions, routed) for routed in networks)
    return plan.schedule.steps[number].repeats * float(chosen.max() - spread.max())
