"""What every command begins with: read the trace, set up the scenario, simulate it once."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collectives.force import parse
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
    ``workers`` is how many processes simulate the what-ifs; the answers do not depend on it.
    """

    engine: str = "flow"
    collective_cost: str = "model"
    step: str = "median"
    nodes: int | None = None
    algorithms: tuple[str, ...] = ()
    workers: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """A trace on the cluster it is taken to have been recorded on, simulated as it is.

    ``read`` reads other steps of the trace.
    """

    loaded: Loaded
    scenario: Scenario
    timeline: Timeline
    settings: Settings
    read: Reader

    @property
    def error(self) -> float | None:
        """Simulated against measured step time: (simulated - measured) / measured.

        None where nothing was measured: a workload that was generated.
        """
        measured = self.loaded.measured_step
        return (self.timeline.makespan - measured) / measured if measured > 0 else None

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
            "simulated_step_s": self.timeline.makespan,
            "baseline_error_pct": None if self.error is None else 100 * self.error,
        }


def baseline(
    trace: Path | str,
    cluster: Cluster | Path | str,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> Baseline:
    """Read a trace and replay it on a cluster.

    Raises
    ------
    TwofoldError
        As :func:`traces.load.load`, :func:`topologies.load_cluster` and
        :func:`simulator.engine.simulate` say.
    """
    settings = settings or Settings()
    where = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    for rule in settings.algorithms:
        parse(rule)
    return replayed(reader(trace), where, settings, watch)


def replayed(
    read: Reader, cluster: Cluster, settings: Settings, watch: Watch = lambda _: None
) -> Baseline:
    """Replay a step of a trace that has been read on a cluster; errors as :func:`baseline`."""
    loaded = read(settings.step)
    scenario = costed(loaded, cluster, settings)
    return Baseline(loaded, scenario, scenario.run(watch("baseline")), settings, read)


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
