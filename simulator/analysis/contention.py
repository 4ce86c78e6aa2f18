"""Contention: links shared by calls, or by messages of one call, and its cost.

:func:`meetings` lists the links on which calls delayed each other most. A hash or a forwarding
table gives each message of a call one path, so that some links carry several messages while others
are free. The cost of that (:func:`collision`) is the difference to the same call with its messages
spread evenly over all shortest paths. :func:`packet_factor` is what packets lose on full links,
which the model's messages do not.
"""

import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
from msgspec import Struct

from simulator.costing.call_costs import Costs
from simulator.costing.link_load import (
    Load,
    bytes_on_links,
    cost,
    is_wide,
    passing,
    plan_loads,
    summed,
)
from simulator.routing.paths import between_switches, of_resource, policy_of
from simulator.routing.routes import Routes, in_outage, routes
from simulator.schedule import Plan, Schedule, Step
from simulator.support.arrays import Floats, Ints
from simulator.timeline import Timeline
from simulator.topology import DIVIDING, POLICIES, Topology

_MOST_CALLS = 500
"""Number of calls whose delays are attributed to links: those delayed most."""
_DELAYED = 1e-6
"""A call counts as delayed if it took longer by more than this fraction."""


class Meeting(Struct, frozen=True):
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
    start, end = timeline.call_start, timeline.call_end
    alone = costs.idle_times(timeline.workload) * timeline.workload.calls.factor
    lost: Floats = np.nan_to_num(end - start - alone)
    lost[lost <= _DELAYED * alone] = 0.0
    lost_by_link: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for call in np.argsort(-lost, kind="stable")[:_MOST_CALLS].tolist():
        if not lost[call] > 0:
            break
        busy = _busy(loads(call), timeline)
        # Calls under way at the same time, the longest overlap first.
        both = np.minimum(end, end[call]) - np.maximum(start, start[call])
        both[call] = 0.0
        both = np.nan_to_num(both)
        neighbours = np.flatnonzero(both > 0)
        for neighbour in neighbours[np.argsort(-both[neighbours], kind="stable")].tolist():
            shared = np.minimum(busy, _busy(loads(neighbour), timeline))
            if shared.any():
                names = sorted((_name(call, timeline), _name(neighbour, timeline)))
                lost_by_link[int(np.argmax(shared)), names[0], names[1]].append(float(lost[call]))
                break
    ranked = sorted(lost_by_link.items(), key=lambda item: (-math.fsum(item[1]), item[0]))
    nodes, network = timeline.topology.nodes, timeline.topology
    return tuple(
        Meeting(
            (str(nodes[network.source[link]]), str(nodes[network.target[link]])),
            (first, second),
            len(times),
            math.fsum(times),
        )
        for (link, first, second), times in ranked[:most]
    )


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


class Collision(Struct, frozen=True):
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
    """Find where messages of a call meet by the policy's choice; None if it costs little."""
    network, spread_network = (in_outage(routed, plan.outage).network for routed in networks)
    networks, plan = (network, spread_network), replace(plan, outage=-1)
    if network.route is not None or network.routing.divides:
        return None
    if not between_switches(network).any():
        return None
    chosen, spread = (cost(plan_loads(plan, positions, size, routed)) for routed in networks)
    if chosen <= spread * (1 + SIGNIFICANT):
        return None
    # The step whose busiest link is busy longest beyond its time with messages spread evenly.
    most, worst, link = -math.inf, plan.schedule.steps[0], 0
    for step in plan.schedule.steps:
        busy, even = (_busy_in_step(plan.schedule, step, positions, each) for each in networks)
        lost = step.repeats * float(busy.max() - even.max())
        if lost > most:
            busy[busy <= even * (1 + _ALIKE)] = 0.0
            most, worst, link = lost, step, int(np.argmax(busy))
    messages, pairs = _on_link(plan.schedule, worst, (positions, network), link)
    ends = network.nodes[network.source[link]], network.nodes[network.target[link]]
    return Collision(
        link=(str(ends[0]), str(ends[1])),
        messages=messages,
        pairs=tuple(pairs)[:_PAIRS],
        slower=chosen / spread,
    )


def _busy_in_step(schedule: Schedule, step: Step, positions: Ints, network: Topology) -> Floats:
    """Time for which each link is busy in a step, in arbitrary units."""
    total = (
        summed(schedule, step, positions, network, everyone=False)
        if is_wide(step, network)
        else None
    )
    if total is not None:
        return total.load / network.bandwidth
    ways = routes(network, positions[step.source], positions[step.target])
    amount = schedule.units(step)
    return bytes_on_links(step, amount, ways, network) / network.bandwidth


def _on_link(
    schedule: Schedule, step: Step, where: tuple[Ints, Topology], link: int
) -> tuple[int, list[tuple[int, int]]]:
    """Count the messages of a step on a link; return source and target of the first few."""
    positions, network = where
    listed = passing(schedule, step, where, link) if is_wide(step, network) else None
    if listed is not None:
        return listed
    ways = routes(network, positions[step.source], positions[step.target])
    meeting = np.unique(ways.message[ways.link == link])
    pairs = zip(step.source[meeting].tolist(), step.target[meeting].tolist(), strict=True)
    return len(meeting), list(pairs)


PAYLOAD, HEADERS = 4096, 64
"""Bytes of a packet of InfiniBand or RoCE at most, and about those around them."""
_ASKED = 8
"""Ranks, evenly spaced, to whom rank 0 sends where the worst path of a network is looked for."""


def packet_factor(network: Topology) -> float | None:
    """Say how many times as long packets take as the model's messages, all cables on a path full.

    They have headers, and collide where each takes a path of its own. A cable of load ``x`` on
    which packets come from many ports at random has a queue of ``variance * x / (2 (1 - x))``
    packets, ``variance`` being ``1 - 1 / ports`` (M. Karol, M. Hluchyj and S. Morgan, IEEE Trans.
    Communications 35, 1987). A sender lets as many packets be on their way as fill it without
    queues, which is what congestion control aims at, and no more: by Little's law it sends the
    slower the longer they wait. Where all cables are full the delay is ``sqrt(sum(variance) / (2
    in_flight))`` of the time. None where the network has no choice of paths.
    """
    if policy_of(network) not in POLICIES:
        return None
    targets = np.unique(np.linspace(1, network.ranks - 1, _ASKED).astype(np.int32))
    ways = routes(spread_evenly(network), np.zeros_like(targets), targets)
    delays = [0.0]
    for first, last in pairwise(ways.offset.tolist()):
        way = Routes(np.array([0, last - first]), ways.link[first:last], ways.share[first:last])
        variance, in_flight = packets_of(network, way)
        delays.append(math.sqrt(variance.sum() / (2 * in_flight)))
    return (1 + HEADERS / PAYLOAD) * (1 + max(delays))


def packets_of(network: Topology, ways: Routes) -> tuple[Floats, float]:
    """Describe one message as packets.

    Returns
    -------
    tuple
        By link of ``ways`` how far the number of packets on it varies by chance, times the part of
        the message that passes it; and how many packets fill the way there and back.
    """
    link, share = ways.link, ways.share
    governed = of_resource(network, network.routing)[link]
    if not governed.any():
        return np.zeros(len(link)), 1.0
    between, policy = between_switches(network)[link], network.routing.policy
    # A hash keeps the packets of a flow together. Adaptive switches choose the shortest queue on
    # the way up; what meets on the way down, where there is no choice, was sent by others.
    chance = 0.0 if policy not in DIVIDING else 0.5 if policy == "adaptive" else 1.0
    fewest = share[between].max(initial=0.0)
    # Of a single least path the ways are detours, over many routers.
    chance *= 1 - fewest if fewest < 1 - _ALIKE else 1.0
    variance = np.where(between, chance * share, 0.0)
    packet = (PAYLOAD + HEADERS) / network.bandwidth[
        link[governed & (share == share[governed].max())]
    ].min()
    latency = float(network.latency[link[governed]] @ share[governed])
    return variance, 2 * latency / packet + float(share[governed].sum())
