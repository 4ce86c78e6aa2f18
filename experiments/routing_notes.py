"""Notes on routing in an answer: the policy, collisions of messages, and links that calls share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.analysis.contention import (
    Collision,
    collision,
    meetings,
    packet_factor,
    spread_evenly,
)
from simulator.routing.paths import policy_of
from simulator.schedule import Plan
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.topology import Topology

DIFFER = 0.05
"""Relative difference of ``analytic`` and ``flow`` from which on it is noted."""
_CALLS = 12
"""Number of sorts of calls that are examined: those with the longest total time."""


@dataclass(frozen=True, slots=True)
class CallCollision:
    """Messages of one call that the routing puts on one link though others are free.

    ``messages`` are on the ``link`` at once in one step of the call, between these ranks among
    others; it takes ``slower`` times as long as if all shortest paths were used equally.
    """

    call: str
    link: tuple[str, str]
    messages: int
    ranks: tuple[tuple[int, int], ...]
    slower: float


@dataclass(frozen=True, slots=True)
class LinkMeeting:
    """A link that two sorts of calls shared, how often, and the time that these lost there (s)."""

    link: tuple[str, str]
    calls: tuple[str, str]
    times: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class RoutingNotes:
    """How messages are routed, and where they collide.

    ``analytic_step_s`` is the step without contention of calls; None if that was not computed.
    ``meetings`` are listed if it differs from the answer by more than 5 %. ``packet_factor`` is the
    time of packets on full links over that of the model's sharing; None for single paths.
    """

    policy: str
    packet_factor: float | None = None
    collisions: tuple[CallCollision, ...] = ()
    analytic_step_s: float | None = None
    meetings: tuple[LinkMeeting, ...] = ()

    def lines(self) -> list[str]:
        """Return the notes as sentences; none without findings."""
        sentences = []
        for worst in self.collisions:
            pairs = ", ".join(f"{source} to {target}" for source, target in worst.ranks)
            more = ", …" if worst.messages > len(worst.ranks) else ""
            sentences.append(
                f"{worst.call} takes {worst.slower:.2f} times as long as with all paths used"
                f" equally: routing {self.policy} puts {worst.messages} concurrent messages on"
                f" {worst.link[0]} -> {worst.link[1]} (ranks {pairs}{more})"
            )
        if self.packet_factor is not None:
            sentences.append(
                f"where links are full, headers and packet collisions make messages up to"
                f" {self.packet_factor:.2f} times as long; the times above do not include this"
            )
        if self.meetings and self.analytic_step_s is not None:
            alone = format_quantity(self.analytic_step_s, "s")
            sentences.append(f"calls share links; without sharing, the step would take {alone}")
        sentences += [
            f"{note.calls[0]} and {note.calls[1]} meet {note.times} times on"
            f" {note.link[0]} -> {note.link[1]} and lose {format_quantity(note.lost_s, 's')} there"
            for note in self.meetings
        ]
        return sentences


def _of_call(call: str, ranks: Sequence[int], worst: Collision) -> CallCollision:
    """Name the call of a collision, and its ranks in place of positions in the group."""
    pairs = tuple((ranks[source], ranks[target]) for source, target in worst.pairs)
    return CallCollision(call, worst.link, worst.messages, pairs, worst.slower)


def notes_of_call(
    call: str, plan: Plan, ranks: int, size: float, network: Topology
) -> RoutingNotes:
    """Return the notes on one call of all ranks."""
    positions = np.arange(ranks, dtype=np.int32)
    worst = collision(plan, positions, size, (network, spread_evenly(network)))
    collisions = () if worst is None else (_of_call(call, range(ranks), worst),)
    return RoutingNotes(policy_of(network), packet_factor(network), collisions)


def notes_of_step(scenario: Scenario, timeline: Timeline) -> RoutingNotes:
    """Return the notes on a step: on its longest calls alone, and on all together."""
    policy, factor = policy_of(timeline.topology), packet_factor(timeline.topology)
    collisions = _collisions(timeline)
    if scenario.engine == "analytic":
        return RoutingNotes(policy, factor, collisions)
    alone = replace(scenario, engine="analytic").run().makespan
    differ = abs(timeline.makespan - alone) > DIFFER * timeline.makespan
    met = meetings(timeline, scenario.site.costs) if differ else ()
    rows = tuple(LinkMeeting(note.link, note.calls, note.times, note.lost) for note in met)
    return RoutingNotes(policy, factor, collisions, alone, rows)


def _collisions(timeline: Timeline) -> tuple[CallCollision, ...]:
    """Find collisions in the sorts of calls with the longest total time, one call per sort."""
    network, workload = timeline.topology, timeline.workload
    if network.route is not None or network.routing.divides:
        return ()
    networks = network, spread_evenly(network)
    lasted = np.nan_to_num(timeline.call_end - timeline.call_start)
    first, row = workload.distinct_calls
    joined = row >= 0
    total = np.bincount(row[joined], weights=lasted[joined], minlength=len(first))
    seen: set[tuple[str, str, float]] = set()
    collisions = []
    for number in np.argsort(-total, kind="stable").tolist():
        view, plan = workload.call_view(first[number]), timeline.plans[first[number]]
        sort = view.kind, view.group.label, view.size
        if plan is None or sort in seen:
            continue
        if len(seen) == _CALLS:
            break
        seen.add(sort)
        ranks = np.array(view.group.ranks, dtype=np.int32)
        worst = collision(plan, ranks, view.size, networks)
        if worst is not None:
            label = f" ({view.group.label})" if view.group.label else ""
            name = f"{view.kind}{label} of {format_quantity(view.size, 'B')}"
            collisions.append(_of_call(name, view.group.ranks, worst))
    return tuple(collisions)
