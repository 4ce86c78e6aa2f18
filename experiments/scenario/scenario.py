"""A question ready to be simulated: a workload on a cluster, an engine, and costs of calls.

Engine ``flow`` answers. ``simpy`` (:mod:`simulator.engine.simpy_model`) states the same model and
is small enough to be read. A baseline is simulated by both if that takes SimPy at most about a
second, and every answer says how well they agree.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from collectives.libraries.planners import plan
from collectives.machine import Machine, NodeFigures, Rule, slowest
from simulator.costing.call_costs import Likenesses
from simulator.edits.slowdown import settled
from simulator.engine.next_step import begins, joints, shifted, without_backlog
from simulator.engine.simulate import Costs, Progress, Replays, simulate_on
from simulator.engine.simulation import meeting
from simulator.folding.fold import MANY_OPS, PAYS, Folded, Folds, Totals, most_alike
from simulator.support.arrays import Longs
from simulator.support.errors import DeadlockError
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.workload import Workload
from topologies import Cluster, build, place
from topologies.cluster.placement import islands
from topologies.faults import Broken, Fault, broken
from topologies.part_names import homes

if TYPE_CHECKING:
    from simulator.folding.copies import WrittenOut

Times = TypeVar("Times", Timeline, Totals)
Unfold = Callable[[Folded, Timeline], Times]
_NO_LIBRARY = "none"
FOLDING = ("flow", "analytic")
"""Engines that can simulate representative ranks; ``simpy`` simulates every transfer."""


@dataclass(slots=True, eq=False)
class Findings:
    """Results that a scenario shares with those derived from it, so that they are computed once.

    Equivalent groups of a graph, representative ranks, and the compiled engine's written transfers.
    Another process starts without them.
    """

    likenesses: Likenesses = field(default_factory=Likenesses)
    folds: Folds = field(default_factory=Folds)
    replays: Replays = field(default_factory=Replays)

    def __reduce__(self) -> "tuple[type[Findings], tuple[()]]":
        return Findings, ()


@dataclass(frozen=True, eq=False)
class Site:
    """Where a job runs: the part of a cluster that its ranks use, built on first use.

    Scenarios that differ only in workload or engine share a site, so the network is built once and
    the results of planning are kept with it. ``carrier`` is the library that carried out the calls
    of the trace, "" if unknown. ``faults`` are faults of single parts of the network. ``findings``
    are shared by all sites derived from each other. ``in_service``: no call takes a slow link out.
    """

    cluster: Cluster
    ranks: int
    nodes: int | None
    forced: tuple[Rule, ...]
    carrier: str = ""
    faults: tuple[Fault, ...] = ()
    findings: Findings = field(default_factory=Findings)
    in_service: bool = False

    def __getstate__(self) -> dict[str, object]:
        """Leave out what another process builds again."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def is_that_of(self, scenario: "Scenario", *, faults: bool = True) -> bool:
        """Whether a scenario's job runs here; or, without ``faults``, does but for these."""
        faulty, of_scenario = (self.faults, self.in_service), (scenario.faults, scenario.in_service)
        return (
            (not faults or faulty == of_scenario)
            and (self.ranks, self.nodes, self.forced, self.carrier)
            == (scenario.ranks, scenario.nodes, scenario.forced, scenario.workload.library)
            and (self.cluster is scenario.cluster or self.cluster == scenario.cluster)
        )

    @staticmethod
    def of(scenario: "Scenario", similar: "Site | None") -> "Site":
        """Return the site of a scenario, with the network of one that differs only in faults."""
        library = scenario.workload.library
        site = Site(
            scenario.cluster,
            scenario.ranks,
            scenario.nodes,
            scenario.forced,
            library,
            scenario.faults,
            Findings() if similar is None else similar.findings,
            scenario.in_service,
        )
        if similar is not None and similar.is_that_of(scenario, faults=False):
            site.__dict__.update({"intact": similar.intact} if "intact" in similar.__dict__ else {})
        return site

    @cached_property
    def intact(self) -> Topology:
        """The network without its faults."""
        return build(self.cluster, self.ranks, self.nodes)

    @cached_property
    def home(self) -> Longs:
        """Node (host) of each node of the network's graph."""
        ranks = self.intact.ranks  # a user's graph is whole: it may have more than the job
        placement = place(self.cluster, ranks, self.nodes if ranks == self.ranks else None)
        seats = [placement.seat(rank)[0] for rank in range(ranks)]
        wiring = self.cluster.wiring
        return homes(self.intact, seats, wiring.vertices if wiring else ())

    @cached_property
    def broken(self) -> Broken:
        """The network with its faults, and the parts that they affect."""
        if not self.faults:
            return Broken(self.intact)
        return broken(self.intact, self.faults, self.home)

    @cached_property
    def topology(self) -> Topology:
        """The network."""
        network = self.broken.network
        return replace(network, outages=()) if self.in_service and network.outages else network

    @cached_property
    def costs(self) -> Costs:
        """Costs of calls."""
        network, machine = self.topology, self.machine
        likeness = self.findings.likenesses.of(network, machine.domains)
        return Costs(network, partial(plan, machine=machine), likeness)

    @property
    def parts(self) -> NDArray[np.integer[Any]]:
        """Part of the machine of each rank: its scale-up domain, or itself if alone there."""
        domains = self.machine.domains
        return domains if domains.any() else np.arange(self.ranks)

    @property
    def library(self) -> str:
        """The library whose calls are modelled: the cluster's, else that of the trace (gloo)."""
        named = self.cluster.library.name if self.cluster.library else _NO_LIBRARY
        return self.carrier or named if named == _NO_LIBRARY else named

    @cached_property
    def machine(self) -> Machine:
        """The machine as the cluster's communication library sees it."""
        cluster = self.cluster
        placement = place(cluster, self.ranks, self.nodes)
        parts = placement.parts_of(cluster)
        kinds = []
        for node in (part.cluster for part in parts):
            up, out, nics = node.scale_up, node.scale_out, 0
            if out is not None:  # those of a full scale-up domain, part of a node or several
                nics = max(1, out.nics_per_node * up.size // node.ranks_per_node)
            kinds.append(
                NodeFigures(
                    generation=node.accelerator.generation or "",
                    cpu=node.host.cpu if node.host else "",
                    in_network=up.in_network_reduction,
                    link=up.link or "",
                    net_message=out.message_overhead if out else None,
                    nics=nics,
                    fabric=(out.link if out else None) or "",
                    in_order=out.in_order if out else True,
                )
            )
        counts = [part.placement.ranks for part in parts]
        least = slowest(tuple(kinds))
        return Machine(
            domains=islands(cluster, self.ranks, self.nodes),
            library=self.library,
            generation=least.generation,
            cpu=least.cpu,
            link=least.link,
            fabric=least.fabric,
            version=(cluster.library.version or "") if cluster.library else "",
            in_network=least.in_network,
            overhead=cluster.collective_overhead,
            net_message=least.net_message,
            nics=least.nics,
            in_order=least.in_order,
            pxn=cluster.library is None or cluster.library.pxn,
            sharp=cluster.library is not None and cluster.library.sharp,
            ranks_per_process=cluster.library.ranks_per_process if cluster.library else 1,
            calibration=cluster.calibration,
            forced=self.forced,
            wired=cluster.wiring is not None,
            kinds=tuple(kinds) if len(kinds) > 1 else (),
            kind_of=np.repeat(np.arange(len(kinds)), counts) if len(kinds) > 1 else None,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scenario:
    """The input of one simulation. A what-if is a function from a scenario to a scenario.

    ``nodes`` spreads the ranks evenly over that many nodes; None fills nodes in order. ``forced``
    are rules that choose an algorithm by kind, size and group; otherwise the library chooses.
    ``slow_down`` is how much longer kernels take beside a call that moves data
    (:mod:`simulator.edits.slowdown`): durations are then those of kernels alone. With ``fold``
    equivalent ranks are simulated once (:mod:`simulator.folding.fold`), which changes no answer;
    the timeline says what was folded; None: where it pays. ``faults`` are links, NICs, nodes and
    switches of the network that are slow or down; they stay when the cluster is changed. ``trace``
    is the source of the workload, "" if it was generated. ``kernel_error`` is the standard
    deviation of the logarithm of the kernels' total time, if a model gives it rather than a
    recording (a generated step, another accelerator): 0 for a recording. ``host_error`` is that of
    host code that a profiler slowed down, at another size of the job: 0 for the step as recorded.
    ``timed_on`` is the cluster whose accelerators the kernel durations belong to, None for
    ``cluster``. ``in_service``: no call takes slow links of the network out of service.
    """

    workload: Workload
    cluster: Cluster
    engine: str = "flow"
    nodes: int | None = None
    forced: tuple[Rule, ...] = ()
    slow_down: float = 0.0
    fold: bool | None = False
    faults: tuple[Fault, ...] = ()
    trace: str = ""
    kernel_error: float = 0.0
    host_error: float = 0.0
    timed_on: Cluster | None = None
    in_service: bool = False

    _site: Site | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self._site is None or not self._site.is_that_of(self):
            object.__setattr__(self, "_site", Site.of(self, self._site))

    def __repr__(self) -> str:
        """Say it in one line: columns of a million ops are no description."""
        return f"<Scenario {self.workload!r} on {self.cluster.name}, engine {self.engine}>"

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.workload.job_ranks

    @property
    def site(self) -> Site:
        """Where the job runs; scenarios derived from each other share it."""
        return self._site  # type: ignore[return-value]  # __post_init__ has set it

    def run(self, progress: Progress | None = None) -> Timeline:
        """Simulate it.

        The timeline's workload has the simulated durations of kernels. Of ranks that are copies it
        has those that determine the times of all. Where calls take slow links out of service, each
        as if it were alone, and crowd on what is left, all links stay in service.
        """
        return self._shorter(progress, Folded.unfold)

    def totals(self, progress: Progress | None = None) -> Timeline | Totals:
        """Simulate it, and write no times out of ranks that others represent."""
        return self._shorter(progress, Folded.totals)

    def _shorter(self, progress: Progress | None, unfold: Unfold[Times]) -> Timeline | Times:
        answer = self._run(progress, unfold)
        if not self.site.topology.outages:
            return answer
        in_service = replace(self, in_service=True)._run(progress, unfold)
        return min(answer, in_service, key=lambda times: times.makespan)

    def that_ran(self, timeline: Timeline) -> "Scenario":
        """Return the scenario that the timeline is of: with its links in service, or this."""
        if timeline.topology.outages or not self.site.topology.outages:
            return self
        return replace(self, in_service=True)

    def _run(self, progress: Progress | None, unfold: Unfold[Times]) -> Timeline | Times:
        if self.workload.copies is not None:
            enough = self._enough(self.engine)
            few = replace(self, workload=enough.workload, fold=False)
            return enough.unfold(few._run(progress, Folded.unfold))
        if self.slow_down:
            plain = replace(self, slow_down=0.0)
            return settled(
                lambda workload: replace(plain, workload=workload)._run(progress, Folded.unfold),
                self.workload,
                self.slow_down,
            )
        if self.fold is False:
            return self._simulated(self.workload, progress)
        if reason := self.not_worth():
            timeline = self._simulated(self.workload, progress)
            return replace(timeline, folded=f"nothing is folded: {reason}")
        folded = self.site.findings.folds.fold(self.workload, self.site.costs, self.seen)
        try:
            timeline = self._simulated(folded.workload, progress)
        except DeadlockError:
            self._simulated(self.workload, None)  # which names the waiting ranks among all
            raise
        return unfold(folded, timeline)

    def _simulated(self, workload: Workload, progress: Progress | None) -> Timeline:
        """Simulate a workload in place of the scenario's; a repeating step after the one before."""
        if workload.repeats is None:
            return self._simulated_alone(workload, progress)
        step = without_backlog(workload)
        step = step.lasting(ready=step.ready - step.ready.min(initial=0.0))
        before = self._simulated_alone(step, progress)
        ready = begins(joints(step), before.end)
        origin = float(ready.min(initial=0.0))
        timeline = self._simulated_alone(step.lasting(ready=ready - origin), progress)
        return shifted(timeline, origin - before.makespan)

    def _simulated_alone(self, workload: Workload, progress: Progress | None) -> Timeline:
        if self.engine == "flow":
            return self.site.findings.replays.timeline(workload, self.site.costs, progress)
        return simulate_on(workload, self.site.costs, engine=self.engine, progress=progress)

    def at_rest(self) -> "Scenario":
        """Return the scenario with the copies that determine all times without contention."""
        if self.workload.copies is None:
            return self
        return replace(self, workload=self._enough("analytic").workload)

    def whole(self) -> "Scenario":
        """Return the scenario with the programs of all ranks written out."""
        from simulator.folding.copies import written_out

        return replace(self, workload=written_out(self.workload))

    def _enough(self, engine: str) -> "WrittenOut":
        """Write out the ranks that determine the times of all."""
        from simulator.folding import copies  # few steps have any

        if engine == "analytic":
            return copies.representatives_without_contention(self.workload, self.site.costs)
        if engine in FOLDING:
            return copies.representatives_for_flow(self.workload, self.site.costs, self.seen)
        return copies.all_ranks(self.workload)

    def not_worth(self) -> str:
        """Return why folding is not tried; "" if it is."""
        if self.engine not in FOLDING:
            return f"engine {self.engine!r} simulates every transfer"
        if self.fold:
            return ""
        if self.engine == "analytic":
            return f"engine {self.engine!r} is sooner without"
        parts = self.site.parts if len(self.workload) < MANY_OPS else np.arange(self.ranks)
        pays = most_alike(self.workload, parts) >= PAYS
        return "" if pays else "too few ranks are alike for folding to pay off"

    def seen(self, label: str) -> str:
        """Return what planning depends on of a group's label: whether a rule names it."""
        return label if any(rule.label == label for rule in self.forced) else ""

    def calls_that_meet(self, timeline: Timeline) -> int:
        """Count the calls that meet others on a link in its ``analytic`` timeline."""
        return int(meeting(timeline, self.that_ran(timeline).site.costs).sum())


AGREES = 1e-9
"""Differences above this, as :func:`difference` counts them, are more than rounding."""
MOST_TRANSFERS, MOST_OPS = 15_000, 40_000
"""Most transfers and ops that SimPy simulates beside an answer.

Measured in processor time on a loaded machine of two cores: 1,248 transfers and 2,776 ops in 0.35
s, 9,408 and 12,656 in 1.3 s. In steps of many transfers each counts more, because all of them share
links anew whenever one ends: see :func:`transfers`.
"""
_WIDE = 64
"""Number of transfers of a step up to which each costs the same."""


class EngineCheck(TypedDict):
    """The engine of a step, and how well SimPy's model agrees.

    ``difference`` is the largest of any time, as a fraction of the step, and of the bytes on any
    link, as a fraction of the most on one; null if SimPy was not asked. ``agrees`` says that it is
    at most ``limit``. ``transfers`` is their number, ``note`` the result as a sentence; ``warning``
    is empty unless the engines disagree.
    """

    engine: str
    transfers: int
    difference: float | None
    limit: float
    agrees: bool
    note: str
    warning: str


def engine_check(scenario: Scenario, timeline: Timeline) -> EngineCheck:
    """Simulate a timeline's step with SimPy, too, if it is small enough, and compare."""
    engine, count, weighted = timeline.engine, *transfers(scenario, timeline)
    off: float | None = None
    note, warning = engine, ""
    if engine == "flow" and weighted <= MOST_TRANSFERS and len(timeline.workload) <= MOST_OPS:
        off = difference(timeline, _by_simpy(scenario, timeline))
        # An upper bound of rounding, whose exact value differs between machines.
        bound = next((f"{most:g}" for most in (1e-12, AGREES) if off <= most), f"{off:.2g}")
        note = f"{engine}; SimPy agrees within {bound}"
        if off > AGREES:
            note = f"{engine}; SimPy differs by {off:.2g}"
            warning = (
                f"engine {engine} differs from the SimPy model by {off:.2g} of the step, more than "
                f"{AGREES:g}: please report the trace"
            )
    elif engine == "flow":
        number = f"{count / 1e6:.2g} million" if count >= 1e6 else f"{count:,}"
        note = f"{engine}; not checked by SimPy: {number} transfers"
    return {
        "engine": engine,
        "transfers": count,
        "difference": off,
        "limit": AGREES,
        "agrees": off is None or off <= AGREES,
        "note": note,
        "warning": warning,
    }


def transfers(scenario: Scenario, timeline: Timeline) -> tuple[int, float]:
    """Count the transfers of all calls, and again with those of wide steps counting more."""
    workload, costs = timeline.workload, scenario.that_ran(timeline).site.costs
    first, row = workload.distinct_calls
    often = np.bincount(row[row >= 0], minlength=len(first)).tolist()
    count, weighted = 0, 0.0
    for times, call in zip(often, first, strict=True):
        plan = costs.carried(workload.call_view(call)).plan
        for step in plan.schedule.steps if plan is not None else ():
            count += times * step.repeats * step.width
            weighted += times * step.repeats * step.width * max(1.0, step.width / _WIDE)
    copies = workload.job_ranks / max(len(workload.ranks), 1)  # of which only some have a program
    return round(count * copies), weighted * copies


def _by_simpy(scenario: Scenario, timeline: Timeline) -> Timeline:
    """Simulate what the timeline shows, with the simulated durations of kernels."""
    scenario = scenario.that_ran(timeline)
    if scenario.workload.copies is not None:
        return replace(scenario, engine="simpy").run()
    workload = timeline.workload  # when its ops are ready has what they wait for of the step before
    origin = float(workload.ready.min(initial=0.0))
    ready = workload.lasting(ready=workload.ready - origin)
    return shifted(simulate_on(ready, scenario.site.costs, engine="simpy"), origin)


_TIMES = ("start", "end", "call_start", "call_end")


def difference(timeline: Timeline, reference: Timeline) -> float:
    """Return how far two timelines of one step differ.

    It is the largest difference of a time, as a fraction of the step, or of the bytes on a link, of
    the most on one; infinite if one has a time that the other lacks. For timelines of different
    ranks of one job, the difference of the step.
    """
    step = reference.makespan or 1.0
    if timeline.start.shape != reference.start.shape:
        return abs(timeline.makespan - reference.makespan) / step
    most = float(reference.link_bytes.max(initial=0.0)) or 1.0
    pairs = [(getattr(timeline, name), getattr(reference, name), step) for name in _TIMES]
    pairs.append((timeline.link_bytes, reference.link_bytes, most))
    largest = 0.0
    for column, expected, unit in pairs:
        if not np.array_equal(np.isnan(column), np.isnan(expected)):
            return float("inf")
        off = float(np.nanmax(np.abs(column - expected), initial=0.0))
        largest = max(largest, off / unit)
    return largest
