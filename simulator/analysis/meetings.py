"""On which links calls meet, and how long they hold each other up there."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.costing.call_costs import Costs
from simulator.costing.link_load import Load
from simulator.timeline import Timeline

_LOOKED_AT = 500
"""Calls of which it is asked whom they met: those that were held up longest."""
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

    Parameters
    ----------
    timeline
        Of an engine in which calls share links.
    costs
        Those it was simulated with.
    most
        How many to return.
    """
    loads = costs.of(timeline.workload)
    lost = _lost(timeline, costs)
    found: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for call in np.argsort(-lost, kind="stable")[:_LOOKED_AT].tolist():
        if not lost[call] > 0:
            break
        busy = _busy(loads(call), timeline)
        for other in _beside(call, timeline):
            shared = np.minimum(busy, _busy(loads(other), timeline))
            if shared.any():
                names = sorted(_name(one, timeline) for one in (call, other))
                found[int(np.argmax(shared)), names[0], names[1]].append(float(lost[call]))
                break
    ranked = sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))
    nodes, network = timeline.topology.nodes, timeline.topology
    return tuple(
        Meeting(
            (str(nodes[network.source[link]]), str(nodes[network.target[link]])),
            (one, other),
            len(times),
            sum(times),
        )
        for (link, one, other), times in ranked[:most]
    )


def _lost(timeline: Timeline, costs: Costs) -> NDArray[np.float64]:
    """By how much each call was longer than on an idle network (s)."""
    lasted = timeline.call_end - timeline.call_start
    alone = costs.idle_times(timeline.workload) * timeline.workload.calls.factor
    lost: NDArray[np.float64] = np.nan_to_num(lasted - alone)
    lost[lost <= _HELD_UP * alone] = 0.0
    return lost


def _beside(call: int, timeline: Timeline) -> list[int]:
    """List the calls that were under way at the same time, the longest beside first."""
    start, end = timeline.call_start, timeline.call_end
    both = np.minimum(end, end[call]) - np.maximum(start, start[call])
    both[call] = 0.0
    both = np.nan_to_num(both)
    beside = np.flatnonzero(both > 0)
    ordered: list[int] = beside[np.argsort(-both[beside], kind="stable")].tolist()
    return ordered


def _busy(loads: tuple[Load, ...], timeline: Timeline) -> NDArray[np.float64]:
    """How long a call keeps each link busy (s)."""
    busy = np.zeros(len(timeline.topology))
    for load in loads:
        busy[load.link] += load.weight * load.amount
    return busy / timeline.topology.bandwidth


def _name(call: int, timeline: Timeline) -> str:
    view = timeline.workload.call_view(call)
    return f"{view.kind} ({view.group.label})" if view.group.label else view.kind
