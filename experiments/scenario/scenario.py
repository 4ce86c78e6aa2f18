"""A question ready to be simulated: a workload on a cluster, with an engine and a way to cost."""

from dataclasses import dataclass, replace

import numpy as np

from collectives.libraries.planners import LIBRARIES
from collectives.libraries.rules import Rule, choose
from collectives.machine import Machine, calibrated
from simulator.analytic.contention import Overlap, overlap
from simulator.edits.slowdown import settled
from simulator.engine.simulate import Costs, Planner, Progress, simulate
from simulator.errors import DeadlockError
from simulator.schedule import Plan
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Call, Workload
from topologies import Cluster, build, place

AUTO = "auto"
"""Stands for the engine that is enough."""
FOLDING = ("flow", "analytic")
"""Engines that take a call as one load; ``transfer`` lets its ranks run ahead of each other."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scenario:
    """What one simulation needs. A what-if is a function from a scenario to a scenario.

    ``nodes`` spreads the ranks evenly over that many nodes; None fills nodes in order.
    ``forced`` are rules that choose an algorithm by kind, size and group; what none of them names
    is the library's to choose. ``slow_down`` is how much longer kernels take beside a call that
    moves (:mod:`simulator.edits.slowdown`): durations are then those of kernels alone. With
    ``fold`` ranks that do the same in the same place are simulated once
    (:mod:`simulator.folding.fold`), which changes no answer; the timeline says what was folded.
    None: where it pays.
    """

    workload: Workload
    cluster: Cluster
    engine: str = "flow"
    nodes: int | None = None
    forced: tuple[Rule, ...] = ()
    slow_down: float = 0.0
    fold: bool | None = False

    def __repr__(self) -> str:
        """Say it in one line: columns of a million ops are no description."""
        return f"<Scenario {self.workload!r} on {self.cluster.name}, engine {self.engine}>"

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.workload.job_ranks

    def topology(self) -> Topology:
        """Build the part of the cluster that the job uses."""
        return build(self.cluster, self.ranks, self.nodes)

    def machine(self) -> Machine:
        """Say what the cluster's communication library finds where it runs."""
        cluster = self.cluster
        domains = np.empty(self.ranks, dtype=np.int32)
        placement = place(cluster, self.ranks, self.nodes)
        for domain, ranks in placement.domains(cluster).items():
            domains[ranks] = domain
        return Machine(
            domains=domains,
            generation=cluster.accelerator.generation or "",
            cpu=cluster.host.cpu if cluster.host else "",
            version=(cluster.library.version or "") if cluster.library else "",
            in_network=cluster.scale_up.in_network_reduction,
            overhead=cluster.collective_overhead,
            net_message=cluster.scale_out.message_overhead if cluster.scale_out else None,
            calibration=cluster.calibration,
        )

    def planner(self) -> Planner:
        """Say how the cluster's library carries out a call."""
        machine = self.machine()
        carry_out = LIBRARIES[self.cluster.library.name if self.cluster.library else "none"]
        forced = self.forced

        def planner(call: Call, topology: Topology) -> Plan:
            plan = carry_out(
                call.kind,
                call.group.ranks,
                call.size,
                topology,
                machine=machine,
                algorithm=choose(forced, call.kind, call.size, call.group.label),
            )
            return calibrated(plan, machine.calibration.get(call.kind))

        return planner

    def run(self, progress: Progress | None = None) -> Timeline:
        """Simulate it; ``auto`` is ``analytic`` where contention does not matter, else ``flow``.

        The timeline's workload has the durations that kernels turned out to have.
        """
        if self.slow_down:
            plain = replace(self, slow_down=0.0)
            return settled(
                lambda workload: replace(plain, workload=workload).run(progress),
                self.workload,
                self.slow_down,
            )
        if self.engine == AUTO:
            timeline = replace(self, engine="analytic").run(progress)
            matters = self.contention(timeline).matters
            return replace(self, engine="flow").run(progress) if matters else timeline
        if self.fold is not False:
            return self._folded(progress)
        return simulate(
            self.workload, self.topology(), self.planner(), engine=self.engine, progress=progress
        )

    def _folded(self, progress: Progress | None) -> Timeline:
        """Simulate the ranks that stand for all; where these wait for ever, say who of all does."""
        plain = replace(self, fold=False)
        if reason := self._not_worth():
            return replace(plain.run(progress), folded=f"nothing is folded: {reason}")
        from simulator.folding.fold import fold  # most simulations do without

        network, planner = self.topology(), self.planner()
        folded = fold(self.workload, network, planner, self._seen)
        try:
            timeline = simulate(
                folded.workload, network, planner, engine=self.engine, progress=progress
            )
        except DeadlockError:
            plain.run()
            raise
        return folded.unfold(timeline)

    def _not_worth(self) -> str:
        """Why it is not tried to fold; "" if it is."""
        if self.engine not in FOLDING:
            return f"engine {self.engine!r} simulates every transfer"
        if self.fold:
            return ""
        if self.engine == "analytic":
            return f"engine {self.engine!r} is sooner without"
        from simulator.folding.fold import most_alike

        domains = self.machine().domains
        parts = domains if domains.any() else np.arange(self.ranks)
        pays = most_alike(self.workload, parts) >= _PAYS
        return "" if pays else "too few ranks do the same for it to pay"

    def _seen(self, label: str) -> str:
        """Return what planning depends on of a group's label: whether a rule names it."""
        return label if any(rule.label == label for rule in self.forced) else ""

    def contention(self, timeline: Timeline) -> Overlap:
        """Judge a timeline of the ``analytic`` engine of this scenario."""
        return overlap(timeline, Costs(timeline.topology, self.planner()))


_PAYS = 4
"""Nodes for each that differs: with fewer it takes as long to find out who is alike."""
