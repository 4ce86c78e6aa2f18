"""A step before there is a trace: generated from a model's shape, and simulated."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.baseline import Baseline, Settings, Watch, replayed
from experiments.folded import Step, replicas_enough
from experiments.generate import roofline
from experiments.output import writing
from experiments.render import Rows
from simulator.critical_path import critical_path, path_by_group, path_by_what
from simulator.metrics import exposed_communication
from topologies import Cluster, load_cluster
from traces.model_card import Model, load_model, parameters
from traces.parallelism import Parallelism
from traces.phases import Serving, Training
from traces.plan import Plan, PlannedAccelerator, text_of
from traces.synthetic import generated, volumes
from traces.volumes import Volumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What step to generate: ``model`` is a card's name or file, ``launch`` the host's time per op.

    ``compute_efficiency`` and ``memory_efficiency`` are the parts of the accelerator's peaks that
    kernels reach; None takes the defaults, which :mod:`traces.roofline` gives sources for.
    ``fold`` writes down no more replicas than have the times of all on the cluster.
    """

    model: str
    parallelism: Parallelism
    run: Training | Serving
    launch: float | None = None
    compute_efficiency: float | None = None
    memory_efficiency: float | None = None
    fold: bool = False


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Calls of one label and kind in the whole job, and the sum of their sizes (B)."""

    label: str
    kind: str
    calls: int
    size_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class GenerationReport:
    """A generated step on a cluster: how long, how well, and what it computes and communicates."""

    base: Baseline
    model: Model
    plan: Plan
    volumes: Volumes
    mfu: float
    exposed_communication_s: float
    path_by_what: dict[str, float]
    path_by_group: dict[str, float]
    folded: str

    @property
    def exchanged(self) -> tuple[Exchanged, ...]:
        """What is communicated, the most first."""
        rows = (
            Exchanged(label, kind, volume.calls, volume.size)
            for (label, kind), volume in self.volumes.exchanged.items()
        )
        return tuple(sorted(rows, key=lambda row: -row.size_bytes))

    @property
    def tokens_per_second(self) -> float:
        """New tokens of the whole job per second."""
        return self.volumes.tokens / self.base.timeline.makespan

    def record(self) -> dict[str, object]:
        """Return the JSON answer."""
        return self.base.record() | {
            "model": self.model.name,
            "parameters": parameters(self.model),
            "parallelism": asdict(self.plan.parallelism),
            "tokens_per_second": self.tokens_per_second,
            "model_flops": self.volumes.model_flops,
            "mfu": self.mfu,
            "folded": self.folded or self.base.timeline.folded,
            "exposed_communication_s": self.exposed_communication_s,
            "exchanged": [asdict(row) for row in self.exchanged],
            "critical_path_s": self.path_by_what,
            "critical_path_by_group_s": self.path_by_group,
        }

    def table(self) -> Rows:
        """Return the CSV answer."""
        return Exchanged, self.exchanged


def generate(
    asked: Asked,
    cluster: Cluster | Path | str,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> GenerationReport:
    """Generate a step for a cluster's accelerator and simulate it there.

    Raises
    ------
    TwofoldError
        If the model, its parallelism and its run do not fit each other, or the cluster does not
        give its accelerator's peak and memory bandwidth.
    """
    where = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    model = load_model(asked.model)
    settings = settings or Settings()
    plan, folded = _plan(asked, where), ""
    if asked.fold:
        plan, folded = _folded(plan, model, where, settings)
    made = generated(
        model,
        plan.parallelism,
        plan.run,
        plan.chip,
        launch=plan.launch,
        replicas=plan.replicas,
    )
    base = replayed(lambda _: made, where, settings, watch)
    done = volumes(model, plan.parallelism, plan.run, plan.chip)
    path = critical_path(base.timeline)
    step = base.timeline.makespan
    return GenerationReport(
        base=base,
        model=model,
        plan=plan,
        volumes=done,
        mfu=done.mfu(step, ranks=plan.parallelism.ranks, peak=plan.chip.peak),
        exposed_communication_s=exposed_communication(base.timeline),
        path_by_what=path_by_what(base.timeline, path),
        path_by_group=path_by_group(base.timeline, path),
        folded=folded,
    )


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan as a file that every command reads as a trace.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with writing(path) as stream:
        stream.write(text_of(plan).encode())


def _plan(asked: Asked, cluster: Cluster) -> Plan:
    chip = roofline(cluster, asked.run.precision, **_given(asked))
    name = "training" if isinstance(asked.run, Training) else "serving"
    run: dict[str, Any] = {name: asked.run}
    return Plan(
        model=asked.model,
        parallelism=asked.parallelism,
        accelerator=PlannedAccelerator.model_construct(**asdict(chip)),
        launch=None if asked.launch is None else f"{asked.launch!r} s",
        **run,
    )


def _folded(plan: Plan, model: Model, cluster: Cluster, settings: Settings) -> tuple[Plan, str]:
    """Write down no more replicas than needed, and say how many ranks that is, or why all."""
    step = Step(model, plan.parallelism, plan.run, plan.chip, plan.launch)
    replicas, text = replicas_enough(step, cluster, settings.engine)
    return plan.model_copy(update={"replicas": replicas}), text


def _given(asked: Asked) -> dict[str, float]:
    """Efficiencies that were asked for."""
    names = ("compute_efficiency", "memory_efficiency")
    return {name: value for name in names if (value := getattr(asked, name)) is not None}
