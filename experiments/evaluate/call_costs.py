"""What the calls of steps cost on many networks of one graph, each different call asked once.

Calls are the same where kind and size are and their groups lie alike on the network: two
tensor-parallel groups in two like nodes pay the same, whatever their links are multiplied by.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.libraries.planners import times
from collectives.machine import Machine, Ranks, choose
from simulator.costing.call_costs import distinct
from simulator.costing.stacked_networks import Networks
from simulator.distinct import by_appearance
from simulator.routing.routes import routes
from simulator.workload import Call, Floats, Workload

Indices = NDArray[np.intp]

_WORTH_IT = 16
"""Different calls before it is asked which of their groups lie alike."""
_MOST_MEMBERS = 64
"""Members of a group of which all paths are looked at; few groups of a job are larger."""


@dataclass(frozen=True, slots=True, eq=False)
class CallCosts:
    """Different calls of steps: call ``c`` of step ``w`` costs what ``calls[rows[w][c]]`` does.

    One that nobody takes part in has row -1. ``machine`` keeps what planning finds out, so a second
    network is answered sooner.
    """

    machine: Machine
    calls: tuple[Call, ...]
    rows: tuple[Indices, ...]

    def on(self, networks: Networks) -> Floats:
        """Time of each different call on each network while idle (s), shape ``(calls, S)``.

        The networks have the classes of links that :func:`different_calls` was given.
        """
        unlike, which = networks.distinct()
        few = networks.at(networks.bandwidth[:, unlike], networks.latency[:, unlike])
        cost = np.empty((len(self.calls), len(few)))
        for number, call in enumerate(self.calls):
            cost[number] = times(call, few, self.machine)
        return cost[:, which]


def different_calls(steps: Sequence[Workload], machine: Machine, networks: Networks) -> CallCosts:
    """Find calls of steps that cost the same on all networks that have these classes of links."""
    calls, rows = _of_all(steps)
    if len(calls) < _WORTH_IT:
        return CallCosts(machine, tuple(calls), rows)
    places = {
        ranks: _place(np.array(ranks, dtype=np.int32), machine, networks)
        for ranks in {call.group.ranks for call in calls}
    }
    number: dict[object, int] = {}
    same = []
    for index, call in enumerate(calls):
        place = places[call.group.ranks]
        key = place and (place, call.kind, call.size, choose(machine.forced, call))
        same.append(number.setdefault(index if np.isnan(call.size) else key or index, len(number)))
    chosen = np.unique(same, return_index=True)[1]
    kept = tuple(calls[index] for index in chosen)
    return CallCosts(machine, kept, tuple(np.append(same, -1)[row] for row in rows))


def _of_all(steps: Sequence[Workload]) -> tuple[list[Call], tuple[Indices, ...]]:
    """Different calls of all steps, and which of them every call of each step is."""
    calls: list[Call] = []
    number: dict[object, int] = {}
    rows = []
    for workload in steps:
        first, row = distinct(workload)
        own = np.empty(len(first) + 1, dtype=np.intp)
        own[-1] = -1
        for place, index in enumerate(first):
            call = workload.call_view(index)
            costs = -call.transfer if np.isnan(call.size) else call.size
            key = call.kind, call.group, np.isnan(call.size), costs, call.dtype
            own[place] = number.setdefault(key, len(calls))
            if own[place] == len(calls):
                calls.append(call)
        rows.append(own[row])
    return calls, tuple(rows)


def _place(ranks: Ranks, machine: Machine, networks: Networks) -> tuple[bytes, ...] | None:
    """Say how a group lies on a network, whichever its ranks and links are; None if it is large.

    Groups lie alike if their members are in domains in the same order, if the same members have
    links of the same classes between them, and if the messages of the same members pass links of
    the same classes and meet on the same of them.
    """
    if len(ranks) > _MOST_MEMBERS:
        return None
    graph = networks.graph
    inside = np.flatnonzero(np.isin(graph.source, ranks) & np.isin(graph.target, ranks))
    order = np.argsort(ranks)
    ends = [
        order[np.searchsorted(ranks, of[inside], sorter=order)]
        for of in (graph.source, graph.target)
    ]
    cables = np.stack([*ends, networks.of[inside]])
    member = np.arange(len(ranks))
    source, target = (one.ravel() for one in np.meshgrid(member, member))
    apart = source != target
    offset, link = routes(graph, ranks[source[apart]], ranks[target[apart]])
    parts = [
        order,
        np.unique(machine.domains[ranks], return_inverse=True)[1],
        cables[:, np.lexsort(cables[:2])],
        offset,
        by_appearance(link)[0],
        networks.of[link],
    ]
    return tuple(np.ascontiguousarray(part, dtype=np.int64).tobytes() for part in parts)
