"""The baseline of every command: read the trace, set up the scenario, simulate it once."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from typing_extensions import TypedDict

from collectives.libraries.planners import parse_rule
from experiments.cards import CardCluster, card_cluster
from experiments.costing.collective_costs import (
    CALIBRATED,
    COLLECTIVE_COSTS,
    by_model,
    by_trace,
    has_recorded_cost,
)
from experiments.costing.slowdown import (
    TRACE,
    SlowDown,
    beside_exchanges,
    recorded_steps,
    slope_of_text,
    slow_down,
    with_slow_down,
)
from experiments.costing.unrecorded import Unprofiled, UnprofiledAnswer, without_stalls
from experiments.priors.doubts import (
    CommunicationError,
    Doubts,
    communication_error,
    hardware_warning,
)
from experiments.priors.errors import WITHIN_90, WITHIN_95, class_of, own_error, step_class
from experiments.priors.network import NetworkPrior, prior_of
from experiments.priors.placement import Misplaced, misplaced, other_devices, other_hosts
from experiments.priors.steps import KernelPrior, StepPrior, kernel_prior, step_prior
from experiments.provenance import Head
from experiments.scenario.change import changed
from experiments.scenario.resources import check_resources
from experiments.scenario.scenario import EngineCheck, Scenario, engine_check
from experiments.settings import Settings as Settings
from experiments.settings import SettingsOptions, Watch, percentile_of, settings_of
from simulator.support.compiled import expect
from simulator.support.errors import (
    ClusterError,
    SettingsError,
    TraceError,
    TwofoldError,
    WhatIfError,
)
from simulator.support.names import one_of
from simulator.support.quantities import format_quantity, parse_quantity
from simulator.timeline import Timeline, comparable
from simulator.workload import Workload
from topologies import Cluster, load_cluster, place, with_nodes
from topologies.cluster.bare import unspecified
from topologies.cluster.catalog import clusters_with
from traces.card.package import find_package, open_package
from traces.core.loaded import MEDIAN, CoverageRecord, Loaded
from traces.load import OpenTrace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from experiments.costing.unrecorded import DrawnStep

Where = Cluster | CardCluster | Path | str | None
"""A cluster, a name of the catalogue or a YAML file; None for the one of the package's card."""


@dataclass(frozen=True, eq=False, repr=False)
class Baseline:
    """A trace on the cluster where it is assumed to be recorded, and its replay.

    ``recorded`` is the step as recorded, and ``replay`` its simulation; ``scenario`` and
    ``timeline`` are the step that questions are about: the same, unless the settings have what-ifs;
    ``notes`` are what each of these touched, ``assumptions`` what they assume. ``read`` reads other
    steps of the trace. ``slow_down`` is None if kernels do not slow down, ``unprofiled`` if no
    unprofiled step time was given; else ``loaded`` has the step without its stalls, and that time
    as the measured one. ``by_hosts`` is whether the number of nodes follows from the host names in
    the recording. ``drawn`` is the step at the requested percentile: it is ``recorded``, and
    ``loaded`` has it.
    """

    loaded: Loaded
    scenario: Scenario
    timeline: Timeline
    settings: Settings
    read: OpenTrace
    recorded: Scenario
    replay: Timeline
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    slow_down: SlowDown | None = None
    unprofiled: Unprofiled | None = None
    by_hosts: bool = False
    drawn: "DrawnStep | None" = None

    def on(self, cluster: Cluster) -> Scenario:
        """Return the step in question on another cluster, with the same what-ifs."""
        nodes = None if cluster.is_one_graph else self.recorded.nodes  # a graph has no nodes
        return self.asked(replace(self.recorded, cluster=cluster, nodes=nodes))

    def as_read(self, loaded: Loaded) -> Scenario:
        """Return a step of the trace on this one's cluster, its calls not yet costed."""
        return replace(self.recorded, workload=loaded.workload, slow_down=0.0)

    def asked(self, recorded: Scenario) -> Scenario:
        """Apply the what-ifs of the settings to a recorded step."""
        if not self.settings.what_ifs:
            return recorded
        from experiments.scenario.language import parse_change  # most scenarios have no what-ifs

        return changed(recorded, map(parse_change, self.settings.what_ifs))[0]

    @property
    def replayed_step(self) -> float:
        """Simulated time of the recorded step (s)."""
        return self.replay.makespan

    @property
    def latency(self) -> float | None:
        """Time from begin to end of a recorded step that repeats (s); None for a single one.

        For a single step the begin of the next one is unknown, and its length is its latency.
        """
        repeats = self.recorded.workload.repeats is not None
        return self.replay.latency if repeats else None

    @cached_property
    def communication_error(self) -> CommunicationError:
        """Modelled against measured transfer times of the recorded step."""
        return communication_error(self.replay, self.settings.collective_cost)

    @cached_property
    def doubts(self) -> Doubts:
        """What makes answers about the step doubtful."""
        return Doubts(self.scenario, self.timeline)

    @cached_property
    def misplaced(self) -> Misplaced | None:
        """Recorded calls that contradict the assumed nodes of the ranks."""
        return misplaced(self.recorded)

    @cached_property
    def other_hosts(self) -> Misplaced | None:
        """Host names in the recording that contradict the nodes of its ranks."""
        recorded = self.recorded
        return other_hosts(self.loaded.hosts, recorded.cluster, recorded.ranks, recorded.nodes)

    @cached_property
    def other_devices(self) -> Misplaced | None:
        """Accelerators that ranks saw, which contradict the number of these per node."""
        recorded, seen = self.recorded, self.loaded.visible_devices
        timed = self.communication_error["calls"] > 0
        where = recorded.cluster, recorded.ranks, recorded.nodes
        return other_devices(seen, *where, timed=timed)

    @cached_property
    def engine_check(self) -> EngineCheck:
        """How far the SimPy model agrees on the step in question."""
        return engine_check(self.scenario, self.timeline)

    @cached_property
    def network_prior(self) -> "NetworkPriorAnswer":
        """Sources of the figures of the network in question, and their uncertainty.

        For calls whose time was recorded, only the effect of a change is uncertain.
        """
        is_timed = self.timed_calls(self.scenario.workload)
        tiers = prior_of(self.scenario)
        return {"calls": len(is_timed), "calls_told": int(is_timed.sum()), "tiers": tiers}

    @cached_property
    def kernel_prior(self) -> KernelPrior | None:
        """Uncertainty of the kernels in question; None for recorded ones."""
        prior = _kernels(self.loaded, self.recorded.cluster)
        prior["shared"] = self.scenario.kernel_error
        return prior if prior["origins"] or prior["shared"] else None

    @cached_property
    def step_prior(self) -> StepPrior | None:
        """Errors of similar generated steps against measured ones; None for a recorded step."""
        by = self.loaded.generated_by
        if by is None:
            return None
        cluster = self.recorded.cluster
        fitted = None if self.has_other_rates else cluster.steps
        name, experts = cluster.accelerator.name, self.loaded.has_experts
        return step_prior(by, name, self.recorded.ranks, fitted, experts=experts)

    @property
    def has_other_rates(self) -> bool:
        """Whether a plan was written without the measured steps of the cluster, or with others."""
        steps, at = self.recorded.cluster.steps, self.loaded.generated_at
        fitted = (1.0, 1.0) if steps is None else (steps.kernel_time, steps.host_time)
        return at is not None and at != fitted

    def timed_calls(self, workload: Workload) -> "NDArray[np.bool_]":
        """Which calls of a step take the time that was recorded, shape ``(calls,)``.

        Where the model costs them, those are the calls that can be compared with it: how far they
        are off is measured, and known.
        """
        by_trace = self.settings.collective_cost == "trace"
        return has_recorded_cost(workload) if by_trace else comparable(workload)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes every answer doubtful, as sentences."""
        cluster, loaded = self.recorded.cluster, self.loaded
        warnings = {
            part.kind: hardware_warning(
                loaded.accelerator, loaded.workload, part.cluster.accelerator, cluster.name
            )
            for part in place(cluster, self.recorded.ranks, self.settings.nodes).parts_of(cluster)
        }
        given_warnings = {kind: text for kind, text in warnings.items() if text}
        if given_warnings and len(given_warnings) < len(warnings):
            return (
                f"the trace names {loaded.accelerator} only: on nodes of kind"
                f" {' and '.join(given_warnings)} too, kernels and host code keep recorded times",
            )
        return tuple(dict.fromkeys(given_warnings.values()))

    @property
    def error(self) -> float | None:
        """Simulated against measured step time: (simulated - measured) / measured.

        None if nothing was measured, as for a generated workload.
        """
        measured = self.loaded.measured_step
        return (self.replayed_step - measured) / measured if measured > 0 else None

    @property
    def step_interval_pct(self) -> float | None:
        """Half the width of the 95 % interval of the step itself (% of it); None if not known.

        For a recording, how far the replay is off it, and what recordings are off runs without a
        profiler; for a generated step, from errors of similar ones against measured steps.
        """
        if self.error is not None:
            return 100 * (abs(self.error) + own_error(step_class(class_of(self.timeline))))
        prior = self.step_prior
        return None if prior is None else WITHIN_95 / WITHIN_90 * prior["p90_pct"]

    def __repr__(self) -> str:
        """Return one line: columns of a million ops are no description."""
        return f"<Baseline {self.title}: step {format_quantity(self.timeline.makespan, 's')}>"

    @property
    def title(self) -> str:
        """Name of the trace and the cluster: ``gpu-dp2-tp4 on dgx-a100``."""
        return f"{Path(self.loaded.trace).name} on {self.scenario.cluster.name}"

    def answer(self) -> "BaselineAnswer":
        """Return the part of every answer on its replay."""
        return {
            "trace": self.loaded.trace,
            "engine": self.settings.engine,
            "engine_check": self.engine_check,
            "collective_cost": self.settings.collective_cost,
            "slow_down": self.slow_down,
            "unprofiled": None if self.unprofiled is None else self.unprofiled.answer(),
            "folded": self.timeline.folded,
            "step": self.loaded.coverage.step,
            "coverage": self.loaded.coverage.record(),
            "measured_step_s": None if self.error is None else self.loaded.measured_step,
            "simulated_step_s": self.replayed_step,
            "step_interval_pct": self.step_interval_pct,
            "latency_s": self.latency,
            "baseline_error_pct": None if self.error is None else 100 * self.error,
            "communication_error_pct": self.communication_error["median_pct"],
            "communication_error": self.communication_error,
            "network_prior": self.network_prior,
            "kernel_prior": self.kernel_prior,
            "pinned_pct": self.doubts.pinned_pct,
            "pinned_by_cause_pct": dict(self.doubts.pinned),
            "warnings": [*self.warnings, *filter(None, [self.engine_check["warning"]])],
            "what_ifs": [
                {"change": change, "note": note}
                for change, note in zip(self.settings.what_ifs, self.notes, strict=True)
            ],
            "assumptions": list(self.assumptions),
            "changed_step_s": self.timeline.makespan if self.notes else None,
        }


class WhatIfNote(TypedDict):
    """A what-if of the baseline, and what it touched."""

    change: str
    note: str


class NetworkPriorAnswer(TypedDict):
    """Uncertainty of the network's model, tier by tier, before anything was measured.

    The errors are those of calls whose time is not from the trace: ``calls`` less ``calls_told``.
    For the others only the effect of a change is uncertain.
    """

    calls: int
    calls_told: int
    tiers: list[NetworkPrior]


class BaselineAnswer(TypedDict):
    """The replay an answer is based on: its error (%), and what of the trace it covers.

    ``assumptions`` are what the what-ifs assume without evidence in a trace.

    Times are in seconds. If a trace shows how steps follow each other, a step is its period: from
    the end of the one before to its own end; ``latency_s`` is from its begin to its end. Else
    ``latency_s`` is null, and the step is from its begin to its end. ``step_interval_pct`` is half
    the width of the 95 % interval of the step itself (% of it), null if nothing similar was
    measured. ``measured_step_s`` and ``baseline_error_pct`` are null if nothing was measured,
    ``changed_step_s`` if no what-if changed the step. If an unprofiled step time was given, that is
    the measured step, and ``unprofiled`` lists the removed stalls. ``communication_error_pct`` is
    the signed median of ``communication_error``. ``pinned_pct`` is what remains of the step in
    question if every resource is a million times as good, in % of it.
    """

    trace: str
    engine: str
    engine_check: EngineCheck
    collective_cost: str
    slow_down: SlowDown | None
    unprofiled: UnprofiledAnswer | None
    folded: str
    step: str
    coverage: CoverageRecord
    measured_step_s: float | None
    simulated_step_s: float
    step_interval_pct: float | None
    latency_s: float | None
    baseline_error_pct: float | None
    communication_error_pct: float | None
    communication_error: CommunicationError
    network_prior: NetworkPriorAnswer
    kernel_prior: KernelPrior | None
    pinned_pct: float
    pinned_by_cause_pct: dict[str, float]
    warnings: list[str]
    what_ifs: list[WhatIfNote]
    assumptions: list[str]
    changed_step_s: float | None


class BaselineHead(Head, BaselineAnswer):
    """The beginning of an answer about a step."""


def by_engine(base: Baseline, engine: str) -> Baseline:
    """Return a baseline by another engine; it shares no state that simulating would change."""

    def fresh(scenario: Scenario) -> Scenario:
        return replace(scenario, engine=engine, _site=None)

    recorded = fresh(base.recorded)
    scenario = recorded if base.scenario is base.recorded else fresh(base.scenario)
    replay = recorded.run()
    return replace(
        base,
        settings=replace(base.settings, engine=engine),
        recorded=recorded,
        replay=replay,
        scenario=scenario,
        timeline=replay if scenario is recorded else scenario.run(),
    )


def baseline(
    trace: Path | str,
    cluster: Where = None,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    *,
    resources: Iterable[str] = (),
    **options: Unpack[SettingsOptions],
) -> Baseline:
    """Read a trace or package, replay it on a cluster, then with the what-ifs of the settings.

    The default cluster is that of the package's card. Settings are given whole or field by field.
    ``resources`` are those that will be asked about: one that the cluster does not have is refused
    before anything is simulated.

    Raises
    ------
    TwofoldError
        As :func:`traces.load.load`, :func:`topologies.load_cluster`,
        :func:`simulator.engine.simulate.simulate` and :func:`experiments.scenario.change`.
    """
    settings = settings_of(settings, options) or Settings()
    where, notes = _cluster_of(trace, cluster)
    # What can be refused is, before anything that takes time
    check_resources(resources, where)
    for rule in settings.algorithms:
        parse_rule(rule)
    if settings.slow_down not in ("", TRACE):
        slope_of_text(settings.slow_down)
    if settings.what_ifs:
        from experiments.scenario.language import parse_change

        for change in settings.what_ifs:
            parse_change(change)
    from experiments.kept_steps import open_kept  # imports SQLite: slow

    kept = open_kept(trace, settings.reading, watch)

    def read(step: str) -> Loaded:
        loaded = kept(step)
        coverage = replace(loaded.coverage, notes=(*loaded.coverage.notes, *notes))
        return replace(loaded, coverage=coverage)

    return replayed(read, where, settings, watch)


def replayed(
    read: OpenTrace, cluster: Cluster, settings: Settings, watch: Watch = lambda _: None
) -> Baseline:
    """Replay a step of a trace on a cluster; errors as :func:`baseline`."""
    percentile = percentile_of(settings.step)
    if percentile is not None and settings.step_time:
        raise SettingsError(
            f"step_time is for one recorded step; step {settings.step} is drawn from several"
        )
    loaded = read(settings.step if percentile is None else Settings().step)
    expect(_STEPS_PER_OP * len(loaded.workload))
    asked_nodes = settings.nodes
    loaded, settings = _on_hosts(loaded, cluster, settings)
    cluster = with_nodes(cluster, settings.nodes)
    kernel_slope = slow_down(settings.slow_down, recorded_steps(loaded, read))
    others = recorded_steps(loaded, read) if settings.step == MEDIAN else ()
    recorded = costed(loaded, cluster, settings, others)
    unprofiled = None
    if settings.step_time:  # without the stalls that make the recorded step longer
        if not loaded.measured_step > 0:
            raise SettingsError(
                f"step_time: nothing was recorded of {loaded.trace}, so nothing in it is a stall"
            )
        step = parse_quantity(settings.step_time, "s")
        _, *others_read = recorded_steps(loaded, read)
        recorded, unprofiled = without_stalls(recorded, step, others_read)
        loaded = replace(loaded, workload=recorded.workload, measured_step=step)
    drawn = None
    if percentile is not None:
        loaded, drawn = _drawn(loaded, recorded, percentile, read, watch)
        recorded = drawn.scenario
    scenario = with_slow_down(recorded, kernel_slope)
    if kernel_slope is None:
        scenario = beside_exchanges(scenario, loaded.generated_by)
    timeline = scenario.run(watch("baseline"))
    if not timeline.makespan > 0:
        raise TraceError(f"{loaded.trace}: nothing in the step takes time")
    base = Baseline(
        *(loaded, scenario, timeline, settings, read, scenario, timeline),
        slow_down=kernel_slope,
        unprofiled=unprofiled,
        by_hosts=settings.nodes != asked_nodes,
        drawn=drawn,
    )
    if not settings.what_ifs:
        return base
    from experiments.scenario.language import parse_change

    scenario, changes = changed(scenario, map(parse_change, settings.what_ifs))
    return replace(
        base,
        scenario=scenario,
        timeline=scenario.run(watch("what if")),
        notes=tuple(change.note for change in changes),
        assumptions=tuple(text for change in changes for text in change.assumptions),
    )


_STEPS_PER_OP = 20_000
"""Loop iterations per op to answer a question (``utility``: 18,000 to 19,000 for small steps)."""


def _on_hosts(loaded: Loaded, cluster: Cluster, settings: Settings) -> tuple[Loaded, Settings]:
    """Spread the ranks over as many nodes as the recording names hosts, by default."""
    job_ranks = loaded.workload.job_ranks
    if settings.nodes is not None or not loaded.hosts or job_ranks > cluster.capacity:
        return loaded, settings
    hosts = other_hosts(loaded.hosts, cluster, job_ranks, None)
    if hosts is None or hosts.nodes is None or job_ranks // hosts.nodes > cluster.ranks_per_node:
        return loaded, settings
    note = f"{hosts}, unless --nodes says otherwise"
    coverage = replace(loaded.coverage, notes=(*loaded.coverage.notes, note))
    return replace(loaded, coverage=coverage), replace(settings, nodes=hosts.nodes)


def _drawn(
    typical: Loaded, recorded: Scenario, percentile: int, read: OpenTrace, watch: Watch
) -> "tuple[Loaded, DrawnStep]":
    """Draw the step at a percentile; as one that was read it has no measurements."""
    from experiments.costing.unrecorded import DRAWS, at_percentile  # rarely needed
    from traces.core.typical import like_steps

    steps = like_steps(read, typical)
    progress = watch(f"{DRAWS} steps")
    drawn = at_percentile(recorded, typical.measured_step, steps, percentile, progress)
    notes = (*typical.coverage.notes, drawn.note)
    coverage = replace(typical.coverage, step=f"p{percentile}", typical_of=(), notes=notes)
    workload = drawn.scenario.workload
    return replace(typical, workload=workload, measured_step=nan, coverage=coverage), drawn


def costed(
    loaded: Loaded, cluster: Cluster, settings: Settings, others: Iterable[Workload] = ()
) -> Scenario:
    """Return the scenario of a step on the cluster of its recording, with costs of its collectives.

    ``others`` are further recorded steps, for the calibration of collectives. Its kernels last as
    long as recorded, whatever they overlap.
    """
    forced = tuple(parse_rule(rule) for rule in settings.algorithms)
    scenario = Scenario(
        loaded.workload,
        cluster,
        settings.engine,
        settings.nodes,
        forced,
        fold=settings.fold,
        trace=loaded.trace,
        kernel_error=_kernels(loaded, cluster)["shared"],
    )
    return with_costs(scenario, settings.collective_cost, others)


def with_costs(scenario: Scenario, mode: str, others: Iterable[Workload] = ()) -> Scenario:
    """Set the costs of a scenario's calls; ``scenario`` is the one recorded.

    ``others`` are further recorded steps, which only calibration needs. Raises WhatIfError if there
    is no mode of this name.
    """
    if mode not in COLLECTIVE_COSTS:
        raise WhatIfError(f"collective cost {one_of(mode, COLLECTIVE_COSTS)}")
    if not len(scenario.workload.calls):
        return scenario
    if mode == CALIBRATED:
        from experiments.calibration.calibration import by_calibration

        return by_calibration(scenario, others)
    return by_trace(scenario) if mode == "trace" else by_model(scenario)


def _kernels(loaded: Loaded, cluster: Cluster) -> KernelPrior:
    if not loaded.kernel_times:  # a recorded step
        return {"shared": 0.0, "held_to": "", "origins": []}
    return kernel_prior(
        loaded.kernel_times, loaded.generated_by, cluster.accelerator.name, cluster.steps
    )


_MOST_NAMED = 3
"""Most clusters that are named."""


def _cluster_of(trace: Path | str, cluster: Where) -> tuple[Cluster, tuple[str, ...]]:
    """Return the cluster, and notes about it."""
    if isinstance(cluster, Cluster):
        return cluster, unspecified(cluster)
    if isinstance(cluster, CardCluster):
        return cluster.cluster, cluster.notes
    if cluster is not None:
        loaded = load_cluster(cluster)
        return loaded, unspecified(loaded)
    package = find_package(trace)
    if package is not None:
        of_card = card_cluster(package.card, source=str(package.file))
        return of_card.cluster, of_card.notes
    hint = ""
    with suppress(TwofoldError):  # errors of the trace are raised once its cluster is known
        accelerator = open_package(trace)(MEDIAN).accelerator
        if clusters := clusters_with(accelerator):
            hint = f"; {accelerator} is in {', '.join(clusters[:_MOST_NAMED])}"
        if len(clusters) > _MOST_NAMED:
            hint += f" and others: twofold clusters --accelerator '{accelerator}'"
    raise ClusterError(
        f"{trace}: no workload card names its cluster: give one with --cluster{hint}"
    )
