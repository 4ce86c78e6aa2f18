"""The same step on several clusters and topologies; the first is where it was recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

from experiments.baseline import Settings, baseline
from experiments.calibration.calibration import with_calibration
from experiments.documents import points as documents
from experiments.evaluate.design_points import Changing, simulated
from experiments.evaluate.parallel import exposed_outcome, interruption
from experiments.points.report import INTERVAL, Columns, Point, PointsReport, saved_by
from experiments.priors.doubts import touched
from experiments.priors.network import prior_of, say_prior
from experiments.provenance import ClusterIdentity, identity
from experiments.report import question
from experiments.scenario.change import Change
from experiments.scenario.cluster import moved_to
from experiments.settings import SettingsOptions, Watch
from simulator.analysis.metrics import exposed_communication
from simulator.support.errors import ClusterError
from topologies import Cluster, load_cluster, place, with_topology
from topologies.cluster.bare import unspecified
from topologies.cluster.schema import describe

_COLUMNS = Columns(
    "ComparePoint",
    (
        *("cluster", "value", "step_s", "utility_pct", "exposed_communication_s", "engine"),
        *("warning", *INTERVAL, "network_prior"),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CompareReport(PointsReport):
    """A step on several clusters in the order they were given; what bare networks lack is noted."""

    schema: ClassVar[str] = "twofold/compare/1"
    document = documents.compare
    columns: ClassVar[Columns] = _COLUMNS
    answered: ClassVar = "clusters=identities notes points=rows"

    clusters: tuple[Cluster, ...] = ()

    @property
    def identities(self) -> list[ClusterIdentity]:
        """The clusters, as an answer names them."""
        return [identity(cluster) for cluster in self.clusters]

    @property
    def notes(self) -> tuple[str, ...]:
        """What bare networks leave undefined, and which settings do not apply to them."""
        nodes = self.base.settings.nodes
        notes = [note for cluster in self.clusters[1:] for note in unspecified(cluster)]
        if nodes is not None:
            notes += [
                f"{cluster.name} has no nodes: --nodes {nodes} does not apply to it"
                for cluster in self.clusters[1:]
                if cluster.is_one_graph
            ]
        return tuple(notes)


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
    """Simulate a step on several clusters, and on the first with other topologies.

    Compute and host times stay as recorded: this compares networks. The first cluster is
    the one the trace was recorded on; ``topologies`` are ``TIER=TOPOLOGY``, such as
    ``scale_up=ring``, and change only that one.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`; ClusterError for a topology or cluster that
        cannot be built.
    """
    if not clusters:
        raise ClusterError("nothing to compare: name a cluster")
    loaded = [load_cluster(name) if not isinstance(name, Cluster) else name for name in clusters]
    base = baseline(trace, loaded[0], settings, watch)
    first = base.recorded.cluster
    nodes = place(first, base.recorded.ranks, base.settings.nodes).nodes
    candidates = [
        first,
        *(with_calibration(cluster, first.calibration) for cluster in loaded[1:]),
        *(with_topology(first, change, nodes) for change in topologies),
    ]
    scenarios = [base.scenario, *(base.on(cluster) for cluster in candidates[1:])]
    changes = [
        Changing(cluster.name, Change(parts=(moved_to(scenario),)), (scenario,))
        for cluster, scenario in zip(candidates[1:], scenarios[1:], strict=True)
    ]
    answered = simulated(base, changes, watch, exposed_outcome)
    timeline = base.timeline
    recorded = Point(step_s=timeline.makespan, utility_pct=0.0, engine=timeline.engine)
    exposed = [exposed_communication(timeline)]
    exposed += [answer.outcomes[0].exposed_communication for answer in answered]
    saved = [recorded, *saved_by(base, answered)]
    points = [  # after Ctrl-C only the first ones
        replace(
            point,
            cluster=cluster.name,
            value=describe(scenario.cluster),
            exposed_communication_s=seconds,
            warning=base.doubts.of(*touched(base.scenario, scenario)),
            network_prior=" · ".join(say_prior(prior_of(scenario))),
        )
        for point, cluster, scenario, seconds in zip(
            saved, candidates, scenarios, exposed, strict=False
        )
    ]
    interrupted = interruption(len(points), len(candidates), "clusters")
    return CompareReport(
        base, tuple(points), tuple(candidates[: len(points)]), interrupted=interrupted
    )
