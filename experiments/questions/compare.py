"""The same step on several clusters and topologies; the first is where it was recorded."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from experiments.baseline import Baseline, Settings, Watch, baseline
from experiments.costing.calibration import with_calibration
from experiments.evaluate.parallel import Outcome, map_scenarios, outcome, told
from experiments.questions.clusters import describe
from experiments.report import Report, Rows
from experiments.scenario.resources import utility_pct
from experiments.scenario.scenario import Scenario
from simulator.errors import ClusterError
from topologies import Cluster, load_cluster, with_topology


@dataclass(frozen=True, slots=True)
class ComparePoint:
    """One cluster: ``value`` says what it is, ``utility_pct`` is against the first.

    ``engine`` is the one that answered.
    """

    cluster: str
    value: str
    step_s: float
    utility_pct: float
    exposed_communication_s: float
    engine: str


@dataclass(frozen=True, slots=True, eq=False)
class CompareReport(Report):
    """Clusters in the order they were given."""

    printed_by: ClassVar[str] = "experiments.output.tables.questions:print_compare"
    drawn_by: ClassVar[str] = "experiments.output.figures:draw_compare"

    base: Baseline
    points: tuple[ComparePoint, ...]

    def record(self) -> list[dict[str, object]]:
        """Return the JSON answer: a list of rows."""
        return [asdict(point) for point in self.points]

    def table(self) -> Rows:
        """Return the CSV answer."""
        return ComparePoint, self.points


def compare(
    trace: Path | str,
    clusters: Sequence[Cluster | Path | str],
    *,
    topologies: Sequence[str] = (),
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> CompareReport:
    """Simulate a step on several clusters, and on the first with other scale-up topologies.

    Compute and host times stay as they were recorded: this compares networks. The first cluster is
    the one the trace was recorded on; ``topologies`` are ``TIER=TOPOLOGY``, such as
    ``scale_up=ring``, and change it alone.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says; ClusterError for a topology or cluster that
        cannot be built.
    """
    if not clusters:
        raise ClusterError("nothing to compare: name a cluster")
    known = [one if isinstance(one, Cluster) else load_cluster(one) for one in clusters]
    base = baseline(trace, known[0], settings, watch)
    here = base.recorded.cluster
    elsewhere = [with_calibration(cluster, here.calibration) for cluster in known[1:]]
    candidates = [here, *elsewhere, *(with_topology(here, change) for change in topologies)]
    others = [(cluster.name, base.on(cluster)) for cluster in candidates[1:]]
    found = map_scenarios(others, outcome, workers=base.settings.workers, watch=watch)
    answers = [((here.name, base.scenario), told(base.timeline)), *zip(others, found, strict=True)]
    return CompareReport(base, tuple(_point(base, name, one, to) for (name, one), to in answers))


def _point(base: Baseline, cluster: str, scenario: Scenario, found: Outcome) -> ComparePoint:
    return ComparePoint(
        cluster=cluster,
        value=describe(scenario.cluster),
        step_s=found.makespan,
        utility_pct=utility_pct(base.timeline.makespan, found.makespan),
        exposed_communication_s=found.exposed_communication,
        engine=found.engine,
    )
