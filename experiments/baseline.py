"""What every command begins with: read the trace, set up the scenario, simulate it once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from collectives.force import parse
from experiments.changes import changed
from experiments.changes import parse as parse_change
from experiments.cost_modes import with_costs
from experiments.scenario import Scenario
from simulator.engine import Progress
from simulator.timeline import Timeline
from topologies import Cluster, load_cluster
from traces.coverage import Coverage
from traces.load import Reader, reader
from traces.loaded import Loaded

Watch = Callable[[str], Progress | None]
"""Called with what is about to be simulated; returns where its progress goes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to simulate: the options that every command shares.

    ``step`` is a ``ProfilerStep`` number, ``median`` or ``all``; ``collective_cost`` is ``model``
    or ``trace``; ``nodes`` spreads the ranks evenly over that many nodes. ``algorithms`` force
    algorithms, as :func:`collectives.force.parse` reads them: ``all_reduce[1MiB..]@tp=ring``.
    ``what_ifs`` change the step before anything is asked of it, as
    :func:`experiments.changes.parse` reads them: ``rank 3 compute x1.2``.
    """

    engine: str = "flow"
    collective_cost: str = "model"
    step: str = "median"
    nodes: int | None = None
    algorithms: tuple[str, ...] = ()
    what_ifs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """A trace on the cluster it is taken to have been recorded on, and what was made of it.

    ``recorded`` is the step as it is, which took ``replayed_step`` (s) when simulated;
    ``scenario`` and ``timeline`` are the step that questions are asked of: the same, unless the
    settings have what-ifs, of which ``notes`` say what each touched.
    ``read`` reads other steps of the trace.
    """

    loaded: Loaded
    scenario: Scenario
    timeline: Timeline
    settings: Settings
    read: Reader
    recorded: Scenario
    replayed_step: float
    notes: tuple[str, ...] = ()

    def on(self, cluster: Cluster) -> Scenario:
        """Return the step that is asked about on another cluster, with the same what-ifs."""
        return self.asked(replace(self.recorded, cluster=cluster))

    def asked(self, recorded: Scenario) -> Scenario:
        """Return a step as it was recorded with the what-ifs of the settings."""
        return changed(recorded, map(parse_change, self.settings.what_ifs))[0]

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
            "step": self.loaded.coverage.step,
            "coverage": coverage_record(self.loaded.coverage),
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
    cluster: Cluster | Path | str,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> Baseline:
    """Read a trace and replay it on a cluster, then with the what-ifs of the settings.

    Raises
    ------
    TwofoldError
        As :func:`traces.load.load`, :func:`topologies.load_cluster`,
        :func:`simulator.engine.simulate` and :func:`experiments.changes.changed` say.
    """
    settings = settings or Settings()
    where = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    for rule in settings.algorithms:
        parse(rule)
    for change in settings.what_ifs:
        parse_change(change)
    return replayed(reader(trace), where, settings, watch)


def replayed(
    read: Reader, cluster: Cluster, settings: Settings, watch: Watch = lambda _: None
) -> Baseline:
    """Replay a step of a trace that has been read on a cluster; errors as :func:`baseline`."""
    loaded = read(settings.step)
    scenario = costed(loaded, cluster, settings)
    timeline = scenario.run(watch("baseline"))
    base = Baseline(loaded, scenario, timeline, settings, read, scenario, timeline.makespan)
    if not settings.what_ifs:
        return base
    scenario, notes = changed(scenario, map(parse_change, settings.what_ifs))
    return replace(base, scenario=scenario, timeline=scenario.run(watch("what if")), notes=notes)


def costed(loaded: Loaded, cluster: Cluster, settings: Settings) -> Scenario:
    """Make a scenario of a step on the cluster it was recorded on, its collectives costed."""
    forced = tuple(parse(rule) for rule in settings.algorithms)
    scenario = Scenario(loaded.workload, cluster, settings.engine, settings.nodes, forced)
    return with_costs(scenario, settings.collective_cost)


def coverage_record(coverage: Coverage) -> dict[str, object]:
    """Return the coverage line as a record: counts, and fractions between 0 and 1."""
    return {
        "ranks": len(coverage.ranks),
        "ranks_in_job": coverage.ranks_in_job,
        "kernels": coverage.kernels,
        "launches_paired": coverage.launches_paired,
        "collectives": coverage.collectives,
        "collectives_matched": coverage.collectives_matched,
        "bytes_known": coverage.bytes_known,
        "starts_explained": coverage.starts_explained,
        "notes": list(coverage.notes),
    }
