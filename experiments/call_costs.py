"""What the calls of a step cost on many networks of one graph, each different call asked once.

Calls are the same where kind, size and group are, and where groups lie alike on the network: two
tensor-parallel groups in two like nodes pay the same (:mod:`simulator.symmetry`), whatever their
links are multiplied by as long as the classes of links are exchanged with the nodes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectives.force import choose
from collectives.machine import Machine
from collectives.many import times
from experiments.scenario import Scenario
from simulator.engine import Costs
from simulator.networks import Networks
from simulator.routing import routes
from simulator.symmetry import Symmetry, symmetry
from simulator.workload import Call, Floats, Workload

Indices = NDArray[np.intp]

_WORTH_IT = 16
"""Different calls before it is asked which of their groups lie alike."""
_MOST_MEMBERS = 64
"""Members of a group of which all paths are looked at; few groups of a job are larger."""


@dataclass(frozen=True, slots=True, eq=False)
class CallCosts:
    """Different calls of a scenario; call ``c`` of the workload costs what ``calls[row[c]]`` does.

    ``machine`` keeps what planning finds out, so a second network is answered sooner.
    """

    scenario: Scenario
    machine: Machine
    calls: tuple[Call, ...]
    row: Indices

    def on(self, networks: Networks) -> Floats:
        """Time of each different call on each network while idle (s).

        The networks are those of the scenario's ranks, in place of the scenario's own, and have
        the classes of links that :func:`different_calls` was given.
        """
        unlike, which = networks.distinct()
        few = networks.at(networks.bandwidth[:, unlike], networks.latency[:, unlike])
        cost = np.empty((len(self.calls), len(few)))
        for number, call in enumerate(self.calls):
            cost[number] = self._times(call, few)
        return cost[:, which]

    def _times(self, call: Call, networks: Networks) -> Floats | float:
        if np.isnan(call.size):
            return call.transfer
        if call.kind in self.scenario.cluster.calibration:
            return self._one_by_one(call, networks)
        library = self.scenario.cluster.library
        return times(library.name if library else "none")(
            call.kind,
            call.group.ranks,
            call.size,
            networks,
            machine=self.machine,
            algorithm=_forced(self.scenario, call),
        )

    def _one_by_one(self, call: Call, networks: Networks) -> Floats:
        """Plan network by network: a calibration changes what a call costs after it is chosen."""
        planner = self.scenario.planner()
        there = (networks.network(index) for index in range(len(networks)))
        return np.array([Costs(network, planner).idle_time(call) for network in there])


def different_calls(scenario: Scenario, networks: Networks) -> CallCosts:
    """Find calls that cost the same on all networks that have these classes of links."""
    workload = scenario.workload
    first, row = _distinct(workload)
    calls = [workload.call_view(index) for index in first]
    machine = scenario.machine()
    if len(calls) < _WORTH_IT:
        return CallCosts(scenario, machine, tuple(calls), row)
    alike = _Alike.of(networks)
    number: dict[object, int] = {}
    for index, call in enumerate(calls):
        number.setdefault(alike.key(scenario, call) or index, len(number))
    same = [number[alike.key(scenario, call) or index] for index, call in enumerate(calls)]
    chosen = np.unique(same, return_index=True)[1]
    return CallCosts(
        scenario, machine, tuple(calls[index] for index in chosen), np.array(same)[row]
    )


def _distinct(workload: Workload) -> tuple[list[int], Indices]:
    """Find calls of one kind, group and size: the first of each, and which every call is."""
    calls = workload.calls
    known = ~np.isnan(calls.size)
    size = np.where(known, calls.size, -1.0)
    measured = np.where(known, 0.0, calls.transfer)
    columns = np.stack([calls.kind, calls.group, size, measured], axis=1)
    _, first, row = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    return first.tolist(), row.ravel()


def _forced(scenario: Scenario, call: Call) -> str | None:
    return choose(scenario.forced, call.kind, call.size, call.group.label)


@dataclass(slots=True, eq=False)
class _Alike:
    """Tells which groups lie alike, by the classes of links in place of their numbers."""

    networks: Networks
    found: Symmetry | None
    patterns: dict[tuple[int, ...], bytes | None]
    confined: dict[bytes, bool]

    @classmethod
    def of(cls, networks: Networks) -> "_Alike":
        graph = networks.graph
        classes: Floats = networks.of + np.float64(1)
        numbered = replace(graph, bandwidth=classes, latency=np.zeros_like(classes))
        return cls(networks, symmetry(numbered), {}, {})

    def key(self, scenario: Scenario, call: Call) -> tuple[object, ...] | None:
        """Say what calls that cost the same have in common; None for a call like no other."""
        ranks = call.group.ranks
        if np.isnan(call.size) or self.found is None or len(ranks) > _MOST_MEMBERS:
            return None
        if ranks not in self.patterns:
            self.patterns[ranks] = self._pattern(self.found, np.array(ranks))
        pattern = self.patterns[ranks]
        if pattern is None:
            return None
        return pattern, call.kind, call.size, _forced(scenario, call)

    def _pattern(self, found: Symmetry, ranks: NDArray[np.int64]) -> bytes | None:
        """Say how a group lies; None if messages between its members leave their components."""
        pattern = found.pattern(ranks)
        if pattern is None:
            return None
        if pattern not in self.confined:
            source, target = (one.ravel() for one in np.meshgrid(ranks, ranks))
            ends = np.stack([source, target])[:, source != target].astype(np.int32)
            links = routes(self.networks.graph, *ends)[1]
            self.confined[pattern] = found.confined(links, found.components(ranks))
        return pattern if self.confined[pattern] else None
