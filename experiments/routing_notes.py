"""Notes on routing in an answer: the policy, where messages collide, and where calls meet."""

from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import TypedDict

from experiments.scenario.scenario import Scenario
from simulator.analysis.contention import (
    Collision,
    Meeting,
    collision,
    meetings,
    packet_factor,
    spread_evenly,
)
from simulator.costing.call_costs import distinct_calls
from simulator.routing.paths import policy_of
from simulator.schedule import Plan
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.topology import Topology

DIFFER = 0.05
"""By how much the answers of ``analytic`` and ``flow`` may differ without a word."""
_CALLS = 12
"""Sorts of calls of a step that are looked at: those that take longest in all."""


class CollisionAnswer(TypedDict):
    """Messages of one call that the routing puts on one link though others are free.

    ``messages`` are on the ``link`` at once in one step of the call, between these ranks among
    others; it takes ``slower`` times as long as if all shortest paths were used alike.
    """

    call: str
    link: list[str]
    messages: int
    ranks: list[list[int]]
    slower: float


class MeetingAnswer(TypedDict):
    """A link on which two sorts of calls met, how often, and what these lost there in all (s)."""

    link: list[str]
    calls: list[str]
    times: int
    lost_s: float


class RoutingAnswer(TypedDict):
    """How messages are routed, and where they collide.

    ``analytic_step_s`` is the step if calls did not share links; null where that was not asked.
    ``meetings`` are listed where it differs from the answer by more than 5 %. ``packet_factor`` is
    how many times as long packets take on full links as the model's sharing; null of single paths.
    """

    policy: str
    packet_factor: float | None
    collisions: list[CollisionAnswer]
    analytic_step_s: float | None
    meetings: list[MeetingAnswer]


@dataclass(frozen=True, slots=True)
class RoutingNotes:
    """What there is to say; ``collisions`` come with the call they are of, and its ranks."""

    policy: str
    packet_factor: float | None = None
    collisions: tuple[tuple[str, tuple[int, ...], Collision], ...] = ()
    analytic: float | None = None
    meetings: tuple[Meeting, ...] = ()

    def answer(self) -> RoutingAnswer:
        """Return what the JSON answer has of it."""
        return {
            "policy": self.policy,
            "packet_factor": self.packet_factor,
            "collisions": [
                {
                    "call": call,
                    "link": list(note.link),
                    "messages": note.messages,
                    "ranks": [[group[source], group[target]] for source, target in note.pairs],
                    "slower": note.slower,
                }
                for call, group, note in self.collisions
            ],
            "analytic_step_s": self.analytic,
            "meetings": [
                {
                    "link": list(note.link),
                    "calls": list(note.calls),
                    "times": note.times,
                    "lost_s": note.lost,
                }
                for note in self.meetings
            ],
        }

    def lines(self) -> list[str]:
        """Say it in sentences; nothing where all is well."""
        sentences = [_say_collision(*note, policy=self.policy) for note in self.collisions]
        if self.packet_factor is not None:
            sentences.append(
                f"on full links, headers and colliding packets make messages up to"
                f" {self.packet_factor:.2f} times as long; the times above leave this out"
            )
        if self.meetings and self.analytic is not None:
            alone = format_quantity(self.analytic, "s")
            sentences.append(f"calls that share links make the step longer: alone it takes {alone}")
        sentences += [
            f"{note.calls[0]} and {note.calls[1]} meet {note.times} times on"
            f" {note.link[0]} -> {note.link[1]} and lose {format_quantity(note.lost, 's')} there"
            for note in self.meetings
        ]
        return sentences


def _say_collision(call: str, group: tuple[int, ...], worst: Collision, *, policy: str) -> str:
    pairs = ", ".join(f"{group[source]} to {group[target]}" for source, target in worst.pairs)
    more = ", …" if worst.messages > len(worst.pairs) else ""
    return (
        f"{call} takes {worst.slower:.2f} times as long as with all paths used equally: routing"
        f" {policy} puts {worst.messages} concurrent messages on {worst.link[0]} -> {worst.link[1]}"
        f" (ranks {pairs}{more})"
    )


def notes_of_call(
    call: str, plan: Plan, ranks: int, size: float, network: Topology
) -> RoutingNotes:
    """Look at one call of all ranks."""
    positions = np.arange(ranks, dtype=np.int32)
    worst = collision(plan, positions, size, (network, spread_evenly(network)))
    collisions = () if worst is None else ((call, tuple(range(ranks)), worst),)
    return RoutingNotes(policy_of(network), packet_factor(network), collisions)


def notes_of_step(scenario: Scenario, timeline: Timeline) -> RoutingNotes:
    """Look at a step: its longest calls alone, and all of them together."""
    policy, factor = policy_of(timeline.topology), packet_factor(timeline.topology)
    collisions = _collisions(timeline)
    if scenario.engine == "analytic":
        return RoutingNotes(policy, factor, collisions)
    alone = replace(scenario, engine="analytic").run().makespan
    differ = abs(timeline.makespan - alone) > DIFFER * timeline.makespan
    met = meetings(timeline, scenario.costs()) if differ else ()
    return RoutingNotes(policy, factor, collisions, alone, met)


def _collisions(timeline: Timeline) -> tuple[tuple[str, tuple[int, ...], Collision], ...]:
    """Find collisions in the sorts of calls that take longest in all, a sort once."""
    network, workload = timeline.topology, timeline.workload
    if network.route is not None or network.routing.divides:
        return ()
    networks = network, spread_evenly(network)
    lasted = np.nan_to_num(timeline.call_end - timeline.call_start)
    first, row = distinct_calls(workload)
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
            collisions.append((name, view.group.ranks, worst))
    return tuple(collisions)
