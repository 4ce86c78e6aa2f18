"""The same step on several clusters and topologies; the first is where it was recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Unpack

from experiments.baseline import Baseline, Settings, Watch, baseline
from experiments.confidence import touched
from experiments.costing.calibration import with_calibration
from experiments.costing.prior import prior_of, say_prior
from experiments.evaluate.contended import EngineCheck, PointsAnswer, answered
from experiments.evaluate.contended import answer as points_answer
from experiments.evaluate.kernel_interval import compared_kernel_half_width
from experiments.evaluate.parallel import ExposedOutcome, exposed_outcome, told
from experiments.evaluate.prediction_error import prediction_half_width
from experiments.evaluate.prior_interval import (
    compared_half_width,
    greater,
    joined,
    of_generated,
)
from experiments.provenance import ClusterIdentity, Head, identity
from experiments.question import question
from experiments.questions.clusters import describe
from experiments.report import Report, Rows
from experiments.scenario.resources import utility_pct
from experiments.scenario.scenario import Scenario
from experiments.settings import SettingsOptions
from simulator.errors import ClusterError
from simulator.quantities import format_quantity
from topologies import Cluster, load_cluster, place, with_topology
from topologies.cluster.bare import untold


@dataclass(frozen=True, slots=True)
class ComparePoint:
    """One cluster: ``value`` says what it is, ``utility_pct`` is against the first.

    ``engine`` is the one that answered, ``warning`` says what makes the utility doubtful
    (:mod:`experiments.confidence`). ``interval_pct`` is half the width of the utility's 95 %
    interval, of ``prior_pct``, ``prediction_pct`` and the greater of ``generated_pct`` and
    ``kernels_pct`` together: how the figures of both clusters are known
    (:mod:`experiments.evaluate.prior_interval`; ``network_prior`` says how), what predictions were
    off on real runs (:mod:`experiments.evaluate.prediction_error`), what generated steps like it
    were off from measured ones (:mod:`experiments.costing.step_prior`), and how the times of their
    kernels are known (:mod:`experiments.evaluate.kernel_interval`; both None of a recorded step).
    All are None for the first.
    """

    cluster: str
    value: str
    step_s: float
    utility_pct: float
    exposed_communication_s: float
    engine: str
    warning: str = ""
    prior_pct: float | None = None
    prediction_pct: float | None = None
    generated_pct: float | None = None
    kernels_pct: float | None = None
    interval_pct: float | None = None
    network_prior: str = ""


class CompareAnswer(Head, PointsAnswer):
    """A step on several clusters, in the order they were given.

    ``notes`` say what bare networks among them leave open.
    """

    clusters: list[ClusterIdentity]
    notes: list[str]
    points: list[ComparePoint]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CompareReport(Report):
    """Clusters in the order they were given."""

    schema: ClassVar[str] = "twofold/compare/1"
    printed_by: ClassVar[str] = "experiments.output.tables.questions:print_compare"
    paged_by: ClassVar[str] = "experiments.output.pages.questions:compare"
    drawn_by: ClassVar[str] = "experiments.output.figures:compare"

    base: Baseline
    points: tuple[ComparePoint, ...]
    clusters: tuple[Cluster, ...] = ()
    check: EngineCheck | None = None

    def answer(self) -> "CompareAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **points_answer(self.base, self.check),
            "clusters": [identity(cluster) for cluster in self.clusters],
            "notes": list(self.notes),
            "points": list(self.points),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What bare networks among the others leave open, and which settings are not of them."""
        others, nodes = self.clusters[1:], self.base.settings.nodes
        found = [note for cluster in others for note in untold(cluster)]
        if nodes is not None:
            graphs = [cluster.name for cluster in others if cluster.is_one_graph]
            found += [
                f"{name} has no nodes: --nodes {nodes} does not apply to it" for name in graphs
            ]
        return tuple(found)

    def summary(self) -> str:
        """Say the answer in a few words."""
        told = [f"{one.cluster} {format_quantity(one.step_s, 's')}" for one in self.points]
        return f"{Path(self.base.loaded.trace).name}: {', '.join(told)}"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return ComparePoint, self.points


@question("compare")
def compare(
    trace: Path | str,
    clusters: Sequence[Cluster | Path | str],
    *,
    topologies: Sequence[str] = (),
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
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
    nodes = place(here, base.recorded.ranks, base.settings.nodes).nodes
    candidates = [here, *elsewhere, *(with_topology(here, change, nodes) for change in topologies)]
    others = [(cluster.name, base.on(cluster)) for cluster in candidates[1:]]
    found, check = answered(base, others, exposed_outcome, watch)
    answers = [((here.name, base.scenario), told(base.timeline)), *zip(others, found, strict=True)]
    points = tuple(_point(base, name, one, to) for (name, one), to in answers)
    return CompareReport(base, points, tuple(candidates), check)


def _point(base: Baseline, cluster: str, scenario: Scenario, found: ExposedOutcome) -> ComparePoint:
    first = scenario is base.scenario
    gain = utility_pct(base.timeline.makespan, found.makespan)
    prior = None if first else compared_half_width(base, scenario, found.makespan)
    off = None if first else prediction_half_width(gain)
    kernels = None if first else compared_kernel_half_width(base.scenario, scenario)
    generated = None if first else of_generated(base, gain)
    return ComparePoint(
        cluster=cluster,
        value=describe(scenario.cluster),
        step_s=found.makespan,
        utility_pct=gain,
        exposed_communication_s=found.exposed_communication,
        engine=found.engine,
        warning=base.doubts.of(*touched(base.scenario, scenario)),
        prior_pct=prior,
        prediction_pct=off,
        generated_pct=generated,
        kernels_pct=kernels,
        interval_pct=joined(prior, off, greater(generated, kernels)),
        network_prior=" · ".join(say_prior(prior_of(scenario))),
    )
