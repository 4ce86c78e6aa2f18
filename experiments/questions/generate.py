"""A step before there is a trace: generated from a model's shape, and simulated.

A cluster's accelerator as the roofline that times generated kernels.

Large jobs generated in part: replicas that stand for all, and it is said so.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

from experiments.baseline import Baseline, BaselineAnswer, Settings, Watch, replayed
from experiments.files import writing
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.scenario.scenario import FOLDING, Scenario
from experiments.settings import SettingsOptions
from simulator.analysis.critical_path import critical_path, path_by_group, path_by_what
from simulator.analysis.metrics import exposed_communication
from simulator.errors import ClusterError, WhatIfError
from simulator.folding.representatives import check
from simulator.quantities import format_quantity
from topologies import Cluster, load_cluster
from traces.generate.generate import Volumes, generated, volumes
from traces.generate.generate import generate as generate_workload
from traces.generate.kernel_times import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, Accelerator
from traces.generate.model import Model, load_model, parameters
from traces.generate.parallelism import Parallelism
from traces.generate.plan import Plan, PlannedAccelerator, text_of
from traces.generate.representatives import copies, fewest_replicas
from traces.generate.run import Serving, Training


def roofline(
    cluster: Cluster,
    precision: str,
    *,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
) -> Accelerator:
    """Return the peak of a precision and the memory bandwidth that the cluster file gives.

    Raises
    ------
    ClusterError
        If the file does not give them: there is no default.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> roofline(load_cluster("hgx-h100"), "bf16").peak
    989000000000000.0
    """
    chip = cluster.accelerator
    if precision not in chip.peak:
        known = ", ".join(chip.peak) or "none"
        raise ClusterError(
            f"{cluster.name}: accelerator.peak.{precision} is missing, and a generated workload"
            f" needs it (given: {known})"
        )
    if chip.memory_bandwidth is None:
        raise ClusterError(
            f"{cluster.name}: accelerator.memory_bandwidth is missing, and a generated workload"
            " needs it"
        )
    return Accelerator(
        peak=chip.peak[precision],
        memory_bandwidth=chip.memory_bandwidth,
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What is generated: arguments of :func:`traces.generate.generate.generate`."""

    model: Model
    parallelism: Parallelism
    run: Training | Serving
    accelerator: Accelerator
    launch: float | None = None

    def scenario(self, cluster: Cluster, engine: str, replicas: int | None = None) -> Scenario:
        """Generate all ranks, or those of so many replicas."""
        workload = generate_workload(
            self.model,
            self.parallelism,
            self.run,
            self.accelerator,
            launch=self.launch,
            replicas=replicas,
        )
        return Scenario(workload, cluster, engine)


def representatives(step: Step, cluster: Cluster, engine: str = "flow") -> tuple[Scenario, str]:
    """Generate the fewest ranks that have, on this cluster, the times of the whole job.

    Returns all of them where no fewer do; the text says how many stand for all, or why not. Times
    of the scenario's ops are those of the whole job, bytes on links those of its calls alone.

    Raises
    ------
    TwofoldError
        As :func:`traces.generate.generate.generate` does; WhatIfError for an engine that cannot.
    """
    replicas, text = replicas_enough(step, cluster, engine)
    return step.scenario(cluster, engine, replicas), text


def replicas_enough(step: Step, cluster: Cluster, engine: str = "flow") -> tuple[int | None, str]:
    """How many data-parallel replicas stand for all on this cluster; None if all are needed.

    The text says how many ranks that is, or why nothing can be folded; errors as
    :func:`representatives`.
    """
    _check_engine(engine)
    parallelism = step.parallelism
    replicas = fewest_replicas(parallelism, cluster.ranks_per_node)
    if replicas is None or replicas == parallelism.dp:
        reason = "its replicas do not fill whole nodes" if replicas is None else "it is no larger"
        return None, f"nothing is folded: {reason}"
    scenario = step.scenario(cluster, engine, replicas)
    stands = copies(scenario.workload, parallelism, replicas)
    reason = check(scenario.workload, stands, scenario.topology(), scenario.planner())
    if reason:
        return None, f"nothing is folded: {reason}"
    return replicas, f"{len(scenario.workload.ranks)} of {parallelism.ranks} ranks stand for all"


def _check_engine(engine: str) -> None:
    if engine not in FOLDING:
        choices = " and ".join(FOLDING)
        raise WhatIfError(f"engine {engine!r} simulates every transfer; {choices} can fold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What step to generate: ``model`` is a card's name or file, ``launch`` the host's time per op.

    ``compute_efficiency`` and ``memory_efficiency`` are the parts of the accelerator's peaks that
    kernels reach; None takes the defaults, which :mod:`traces.generate.kernel_times` gives sources
    for. ``fold`` writes down no more replicas than have the times of all on the cluster.
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


class GenerateAnswer(Head, BaselineAnswer):
    """A generated step: how long, how well, and what it computes and communicates."""

    model: str
    parameters: float
    parallelism: Parallelism
    tokens_per_second: float
    model_flops: float
    mfu: float
    exposed_communication_s: float
    exchanged: list[Exchanged]
    critical_path_s: dict[str, float]
    critical_path_by_group_s: dict[str, float]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GenerationReport(Report):
    """A generated step on a cluster: how long, how well, and what it computes and communicates."""

    schema: ClassVar[str] = "twofold/generate/1"
    printed_by: ClassVar[str] = "experiments.output.tables.generations:print_generation"

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

    def answer(self) -> "GenerateAnswer":
        """Return the JSON answer."""
        base = self.base.answer()
        base["folded"] = self.folded or base["folded"]
        return {
            **self.head(self.base.recorded.cluster, self.base.settings),
            **base,
            "model": self.model.name,
            "parameters": parameters(self.model),
            "parallelism": self.plan.parallelism,
            "tokens_per_second": self.tokens_per_second,
            "model_flops": self.volumes.model_flops,
            "mfu": self.mfu,
            "exposed_communication_s": self.exposed_communication_s,
            "exchanged": list(self.exchanged),
            "critical_path_s": self.path_by_what,
            "critical_path_by_group_s": self.path_by_group,
        }

    def summary(self) -> str:
        """Say the answer in a few words."""
        step = format_quantity(self.base.timeline.makespan, "s")
        return f"{self.base.title}: step {step}, MFU {100 * self.mfu:.2f} %"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return Exchanged, self.exchanged


@question("generate")
def generate(
    asked: Asked,
    cluster: Cluster | Path | str,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
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
