"""What every command begins with: read the trace, set up the scenario, simulate it once."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from collectives.libraries.rules import parse
from experiments.cards.cluster import CardCluster, card_cluster
from experiments.costing.modes import with_costs
from experiments.costing.slowdown import (
    TRACE,
    SlowDown,
    given,
    recorded_steps,
    slow_down,
    with_slow_down,
)
from experiments.scenario.scenario import Scenario
from simulator.engine.simulate import Progress
from simulator.errors import ClusterError
from simulator.timeline import Timeline
from topologies import Cluster, load_cluster
from traces.card.package import find_package, open_package
from traces.core.loaded import Loaded, Options
from traces.load import OpenTrace

Watch = Callable[[str], Progress | None]
"""Called with what is about to be simulated; returns where its progress goes."""


Where = Cluster | CardCluster | Path | str | None
"""A cluster, a name of the catalogue or a YAML file; None is that of the package's card."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to simulate: the options that every command shares.

    ``step`` is a ``ProfilerStep`` number, ``median`` or ``all``; ``collective_cost`` is ``model``
    or ``trace``; ``nodes`` spreads the ranks evenly over that many nodes. ``algorithms`` force
    algorithms, as :func:`collectives.libraries.rules.parse` reads them:
    ``all_reduce[1MiB..]@tp=ring``. ``workers`` is how many processes simulate the what-ifs; the
    answers do not depend on it. ``what_ifs`` change the step before anything is asked of it, as
    :func:`experiments.scenario.language.parse` reads them: ``rank 3 compute x1.2``. ``kernels`` and
    ``replicate`` are those of :class:`traces.core.loaded.Options`. ``slow_down`` is how much longer
    kernels take beside a call, as :func:`experiments.costing.slowdown.slow_down` reads it:
    ``0.15``. ``fold`` simulates ranks that do the same once, which changes no answer; None: where
    it pays.
    """

    engine: str = "flow"
    collective_cost: str = "model"
    step: str = "median"
    nodes: int | None = None
    algorithms: tuple[str, ...] = ()
    workers: int = 1
    what_ifs: tuple[str, ...] = ()
    kernels: Path | None = None
    replicate: bool = False
    slow_down: str = ""
    fold: bool | None = None

    @property
    def reading(self) -> Options:
        """How the trace is read."""
        return Options(self.kernels, self.replicate)


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """A trace on the cluster it is taken to have been recorded on, and what was made of it.

    ``recorded`` is the step as it is, which took ``replayed_step`` (s) when simulated;
    ``scenario`` and ``timeline`` are the step that questions are asked of: the same, unless the
    settings have what-ifs, of which ``notes`` say what each touched.
    ``read`` reads other steps of the trace. ``slow_down`` is None where kernels do not slow down.
    """

    loaded: Loaded
    scenario: Scenario
    timeline: Timeline
    settings: Settings
    read: OpenTrace
    recorded: Scenario
    replayed_step: float
    notes: tuple[str, ...] = ()
    slow_down: SlowDown | None = None

    def on(self, cluster: Cluster) -> Scenario:
        """Return the step that is asked about on another cluster, with the same what-ifs."""
        return self.asked(replace(self.recorded, cluster=cluster))

    def asked(self, recorded: Scenario) -> Scenario:
        """Return a step as it was recorded with the what-ifs of the settings."""
        return _changed(recorded, self.settings.what_ifs)[0]

    @property
    def error(self) -> float | None:
        """Simulated against measured step time: (simulated - measured) / measured.

        None where nothing was measured: a workload that was generated.
        """
        measured = self.loaded.measured_step
        return (self.replayed_step - measured) / measured if measured > 0 else None

    def record(self) -> dict[str, object]:
        """Return what every JSON answer says first."""
        return {
            "trace": self.loaded.trace,
            "cluster": self.scenario.cluster.name,
            "engine": self.settings.engine,
            "collective_cost": self.settings.collective_cost,
            "slow_down": None if self.slow_down is None else asdict(self.slow_down),
            "folded": self.timeline.folded,
            "step": self.loaded.coverage.step,
            "coverage": self.loaded.coverage.record(),
            "measured_step_s": None if self.error is None else self.loaded.measured_step,
            "simulated_step_s": self.replayed_step,
            "baseline_error_pct": None if self.error is None else 100 * self.error,
            "what_ifs": [
                {"change": change, "note": note}
                for change, note in zip(self.settings.what_ifs, self.notes, strict=True)
            ],
            "changed_step_s": self.timeline.makespan if self.notes else None,
        }


def baseline(
    trace: Path | str,
    cluster: Where,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> Baseline:
    """Read a trace or package, replay it on a cluster, then with the what-ifs of the settings.

    Without a cluster it is that of the package's card.

    Raises
    ------
    TwofoldError
        As :func:`traces.load.load`, :func:`topologies.load_cluster`,
        :func:`simulator.engine.simulate.simulate` and :func:`experiments.scenario.change` say.
    """
    settings = settings or Settings()
    where, notes = _where(trace, cluster)
    for rule in settings.algorithms:
        parse(rule)
    if settings.slow_down not in ("", TRACE):
        given(settings.slow_down)
    _check_what_ifs(settings.what_ifs)
    return replayed(_noting(open_package(trace, settings.reading), notes), where, settings, watch)


def _check_what_ifs(what_ifs: tuple[str, ...]) -> None:
    """Read what-ifs before anything that takes time is begun."""
    if what_ifs:
        from experiments.scenario.language import parse

        for change in what_ifs:
            parse(change)


def _changed(scenario: Scenario, what_ifs: tuple[str, ...]) -> tuple[Scenario, tuple[str, ...]]:
    """Change a scenario as is written; return it, and what each change came upon."""
    if not what_ifs:
        return scenario, ()
    from experiments.scenario.change import changed  # most scenarios are asked about as they are
    from experiments.scenario.language import parse

    return changed(scenario, map(parse, what_ifs))


def replayed(
    read: OpenTrace, cluster: Cluster, settings: Settings, watch: Watch = lambda _: None
) -> Baseline:
    """Replay a step of a trace that has been read on a cluster; errors as :func:`baseline`."""
    loaded = read(settings.step)
    found = slow_down(settings.slow_down, recorded_steps(loaded, read))
    scenario = with_slow_down(costed(loaded, cluster, settings), found)
    timeline = scenario.run(watch("baseline"))
    base = Baseline(
        loaded, scenario, timeline, settings, read, scenario, timeline.makespan, slow_down=found
    )
    if not settings.what_ifs:
        return base
    scenario, notes = _changed(scenario, settings.what_ifs)
    return replace(base, scenario=scenario, timeline=scenario.run(watch("what if")), notes=notes)


def costed(loaded: Loaded, cluster: Cluster, settings: Settings) -> Scenario:
    """Make a scenario of a step on the cluster it was recorded on, its collectives costed.

    Its kernels last as long as they were recorded, whatever they run beside.
    """
    forced = tuple(parse(rule) for rule in settings.algorithms)
    scenario = Scenario(
        loaded.workload, cluster, settings.engine, settings.nodes, forced, fold=settings.fold
    )
    return with_costs(scenario, settings.collective_cost)


def _noting(read: OpenTrace, notes: tuple[str, ...]) -> OpenTrace:
    """Add to the notes of every step that is read."""

    def noting(step: str) -> Loaded:
        loaded = read(step)
        coverage = replace(loaded.coverage, notes=(*loaded.coverage.notes, *notes))
        return replace(loaded, coverage=coverage)

    return noting


def _where(trace: Path | str, cluster: Where) -> tuple[Cluster, tuple[str, ...]]:
    """Find the cluster, and what there is to say about it."""
    if isinstance(cluster, Cluster):
        return cluster, ()
    if isinstance(cluster, CardCluster):
        return cluster.cluster, cluster.notes
    if cluster is not None:
        return load_cluster(cluster), ()
    package = find_package(trace)
    if package is None:
        raise ClusterError(f"{trace}: no workload card tells its cluster: name one with --cluster")
    made = card_cluster(package.card, source=str(package.file))
    return made.cluster, made.notes
