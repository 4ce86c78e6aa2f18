"""A step before there is a trace: generated from a model's shape for a cluster, and simulated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Unpack

from collectives.libraries.rules import parse_rule
from experiments.baseline import Baseline, BaselineAnswer, Settings, Watch, replayed
from experiments.costing.slowdown import beside_exchanges
from experiments.costing.step_prior import StepPrior, likely_step, step_prior
from experiments.files import writing
from experiments.provenance import Head
from experiments.question import question
from experiments.questions.memory import memory_on
from experiments.report import Report, Rows
from experiments.scenario.scenario import FOLDING, Scenario
from experiments.settings import SettingsOptions
from simulator.analysis.critical_path import critical_path, path_by_group, path_by_what
from simulator.analysis.metrics import exposed_communication
from simulator.errors import ClusterError, WhatIfError
from simulator.folding.representatives import why_not_copies
from simulator.imbalance import Imbalance, parse_imbalance
from simulator.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.workload import Workload
from topologies import Cluster, load_cluster, place, with_nodes
from traces.generate.expand import copies, expand, fewest_replicas
from traces.generate.generate import CallVolume, Volumes, as_loaded, volumes, written
from traces.generate.generate import generate as generate_step
from traces.generate.kernel_times import (
    COMPUTE_EFFICIENCY,
    MEMORY_EFFICIENCY,
    KernelRates,
    OwnKernels,
)
from traces.generate.memory import StageMemory, fullest, memory_of
from traces.generate.model import Model, load_model, parameters
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan, RankRates, plan_text
from traces.generate.program import RankProgram
from traces.generate.run import RECIPES, Serving, Training
from traces.generate.stage import stage_programs
from traces.generate.what_fits import check_memory


class GenerateAnswer(Head, BaselineAnswer):
    """A generated step: how long, how well, and what it computes and communicates."""

    model: str
    parameters: float
    parallelism: Parallelism
    tokens_per_second: float
    memory_bytes: float
    accelerator_memory_bytes: float | None
    model_flops: float
    mfu: float
    exposed_communication_s: float
    kernel_times: dict[str, float]
    steps_like_it: StepPrior | None
    likely_step_s: float | None
    exchanged: list[CallVolume]
    critical_path_s: dict[str, float]
    critical_path_by_group_s: dict[str, float]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GenerationReport(Report):
    """A generated step on a cluster: its time, its MFU, and what it computes and communicates.

    ``exposed_communication_s`` is the mean over ranks. ``path_by_what`` and ``path_by_group`` say
    what the critical path consists of (s). ``folded`` says which ranks stand for all.
    ``kernel_times`` are the shares of kernels' time by how it is known: measured, carried over from
    a relative, or by a roofline.
    """

    schema: ClassVar[str] = "twofold/generate/1"
    printed_by: ClassVar[str] = "experiments.output.tables.steps:print_generation"
    paged_by: ClassVar[str] = "experiments.output.pages.replays:generation"

    base: Baseline
    plan: GenerationPlan
    volumes: Volumes
    mfu: float
    exposed_communication_s: float
    path_by_what: dict[str, float]
    path_by_group: dict[str, float]
    folded: str
    kernel_times: dict[str, float]

    @property
    def exchanged(self) -> tuple[CallVolume, ...]:
        """What is communicated, the most bytes first."""
        return tuple(sorted(self.volumes.exchanged.values(), key=lambda row: -row.size_bytes))

    @property
    def steps_like_it(self) -> StepPrior | None:
        """What measured training steps like this one were off; None where there are none."""
        if not isinstance(self.plan.run, Training):
            return None
        accelerator = self.base.recorded.cluster.accelerator.name
        return step_prior(self.plan.run.framework, accelerator, self.plan.parallelism.ranks)

    @property
    def likely_step_s(self) -> float | None:
        """The step if it is off as the median of measured ones (s); None where there are none."""
        prior = self.steps_like_it
        return None if prior is None else likely_step(self.base.timeline.makespan, prior)

    @property
    def memory(self) -> StageMemory:
        """What fills the memory of a rank of the fullest stage."""
        return fullest(memory_of(self.plan))

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
            "model": self.plan.model.name,
            "parameters": parameters(self.plan.model),
            "parallelism": self.plan.parallelism,
            "tokens_per_second": self.tokens_per_second,
            "memory_bytes": self.memory.total,
            "accelerator_memory_bytes": None if self.plan.memory is None else self.plan.memory.size,
            "model_flops": self.volumes.model_flops,
            "mfu": self.mfu,
            "exposed_communication_s": self.exposed_communication_s,
            "kernel_times": self.kernel_times,
            "steps_like_it": self.steps_like_it,
            "likely_step_s": self.likely_step_s,
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
        return CallVolume, self.exchanged


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedStep:
    """The workload of a plan, and what the whole job computes and communicates.

    ``folded`` says how many ranks stand for all, or why none do; "" where that was not asked.
    """

    plan: GenerationPlan
    workload: Workload
    volumes: Volumes
    kernel_times: dict[str, float]
    folded: str = ""


@question("generate")
def generate(
    plan: GenerationPlan,
    cluster: Cluster | Path | str,
    *,
    fold_replicas: bool = False,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    planned: Callable[[GenerationPlan], None] = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> GenerationReport:
    """Generate a step and simulate it on a cluster.

    Parameters
    ----------
    plan
        Which step; :func:`plan_on` makes one for a cluster's accelerator.
    cluster
        The cluster, its name in the catalogue, or the path of its YAML file.
    fold_replicas
        Write down no more replicas than have the times of all on this cluster, as
        :func:`representatives` does.
    settings
        How to simulate.
    watch
        Called with what is about to be simulated; returns where its progress goes.
    planned
        Called with the plan, its replicas included, before anything is simulated: whoever writes it
        to a file has it also if the simulation fails.

    Returns
    -------
    GenerationReport
        Time of the step, MFU, exposed communication, and what is communicated.

    Raises
    ------
    TwofoldError
        If the step does not fit on the cluster or into the memory of its accelerators, or cannot
        be simulated; WhatIfError for
        ``fold_replicas`` with an engine that cannot.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> cluster = load_cluster("hgx-h100")
    >>> step = Training(micro_batch=1, global_batch=4, sequence=4096)
    >>> plan = plan_on(cluster, model="qwen3-4b", parallelism=Parallelism(tp=2), run=step)
    >>> 0.3 < generate(plan, cluster).mfu < 0.8
    True
    """
    settings = settings or Settings()
    known = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    where = with_nodes(known, settings.nodes)
    place(where, plan.parallelism.ranks, settings.nodes)  # what does not fit need not be generated
    plan = with_own_rates(plan, where, settings.nodes)
    check_memory(plan)
    if fold_replicas:
        step = representatives(plan, where, settings)
        planned(step.plan)
    else:
        planned(plan)
        step = whole(plan)
    loaded = as_loaded(step.workload, step.plan, step.kernel_times)
    base = replayed(lambda _: loaded, where, settings, watch)
    if base.scenario.ranks != plan.parallelism.ranks:
        raise WhatIfError(
            "a step is generated at another size with another --dp: what is computed and"
            " communicated would be that of the plan; or --write the plan, and ask of that"
        )
    path = critical_path(base.timeline)
    return GenerationReport(
        base=base,
        plan=step.plan,
        volumes=step.volumes,
        mfu=step.volumes.mfu(base.timeline.makespan, ranks=plan.parallelism.ranks, peak=plan.peak),
        exposed_communication_s=exposed_communication(base.timeline),
        path_by_what=path_by_what(base.timeline, path),
        path_by_group=path_by_group(base.timeline, path),
        folded=step.folded,
        kernel_times=step.kernel_times,
    )


def whole(plan: GenerationPlan) -> GeneratedStep:
    """Write down all ranks of a plan."""
    return _whole(plan, stage_programs(plan))


def _whole(
    plan: GenerationPlan, programs: Sequence[RankProgram], folded: str = ""
) -> GeneratedStep:
    """Write down all ranks of a plan that run these programs."""
    counted = volumes(programs, plan)
    return GeneratedStep(plan, written(programs, plan), counted, programs[0].clock.shares(), folded)


def plan_on(  # noqa: PLR0913 - what a plan says, and the cluster
    cluster: Cluster,
    *,
    model: Model | Path | str,
    parallelism: Parallelism,
    run: Training | Serving,
    launch: float | None = None,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
    imbalance: Imbalance | str | None = None,
    ignore_memory: bool = False,
    kernels: OwnKernels | Path | str | None = None,
) -> GenerationPlan:
    """Plan a step for the accelerator of a cluster.

    Parameters
    ----------
    cluster
        Its file gives the accelerator's peak and memory bandwidth.
    model
        A model, its name, or the path of its card.
    parallelism, run, launch
        As :class:`traces.generate.plan.GenerationPlan` has them; ``launch`` in s.
    compute_efficiency, memory_efficiency
        Fractions of peak and memory bandwidth that kernels reach;
        :mod:`traces.generate.kernel_times` gives the sources of the defaults.
    imbalance
        How unevenly tokens choose experts, as :func:`simulator.imbalance.parse_imbalance` reads it.
    ignore_memory
        Leave out of the plan how much memory the accelerator has, so that nobody checks that the
        step fits into it.
    kernels
        Kernels measured on one's own machine, or where they are, as
        :func:`traces.kernels.own_kernels` reads them.

    Raises
    ------
    TwofoldError
        If there is no such model, the cluster does not give peak and bandwidth, or model,
        parallelism and run do not fit each other.
    """
    shape = model if isinstance(model, Model) else load_model(model)
    accelerator = accelerator_of(
        cluster,
        run.precision,
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
    )
    return GenerationPlan(
        model=shape,
        parallelism=parallelism,
        run=run,
        accelerator=accelerator,
        launch=launch,
        imbalance=parse_imbalance(imbalance) if isinstance(imbalance, str) else imbalance,
        memory=None if ignore_memory else memory_on(cluster),
        kernels=_own_kernels(kernels),
    )


def _own_kernels(kernels: OwnKernels | Path | str | None) -> OwnKernels | None:
    if kernels is None or isinstance(kernels, OwnKernels):
        return kernels
    from traces.kernels import own_kernels

    return own_kernels(Path(kernels))


def accelerator_of(
    cluster: Cluster,
    precision: str,
    *,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
) -> KernelRates:
    """Return the rates of a cluster's accelerator at a precision.

    Raises
    ------
    ClusterError
        If the cluster's file does not give them: there is no default.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> accelerator_of(load_cluster("hgx-h100"), "bf16").peak
    989000000000000.0
    """
    given = cluster.accelerator
    precision = RECIPES.get(precision, precision)
    peak = given.peak.get(precision)
    if peak is None and given.generation not in _ONE_HALF:
        peak = given.peak.get(_OTHER_HALF.get(precision, ""))
    if peak is None:
        known = ", ".join(given.peak) or "none"
        raise ClusterError(
            f"{cluster.name}: accelerator.peak.{precision} is missing, and a generated workload"
            f" needs it (given: {known})"
        )
    if given.memory_bandwidth is None:
        raise ClusterError(
            f"{cluster.name}: accelerator.memory_bandwidth is missing, and a generated workload"
            " needs it"
        )
    return KernelRates(
        peak=peak,
        memory_bandwidth=given.memory_bandwidth,
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
        name=given.name,
        generation=given.generation or "",
        peaks=tuple(sorted(given.peak.items())),
        sustained=given.sustained,
    )


_OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}
"""Matrix units multiply both at one rate (data sheets of A100, H100, MI300X) ..."""
_ONE_HALF = ("pascal", "volta", "tpu")
"""... but those of these generations, which have only one of them."""


def with_own_rates(
    plan: GenerationPlan, cluster: Cluster, nodes: int | None = None
) -> GenerationPlan:
    """Give every rank of a plan the rates of its own accelerator, where kinds of node differ.

    A plan stays as it is that says itself which ranks have others, or whose accelerator is not the
    cluster's: it was made for another.

    Parameters
    ----------
    plan
        As :func:`plan_on` makes it, at the rates of the accelerator that the cluster's own fields
        give.
    cluster, nodes
        Where ranks sit, as :func:`topologies.place` has it.

    Returns
    -------
    GenerationPlan
        With ``others``, the efficiencies being the same.

    Raises
    ------
    ClusterError
        If the job does not fit, or a kind of node does not give its accelerator's rates.
    """
    own, precision = plan.accelerator, plan.run.precision

    def rates(one: Cluster) -> KernelRates:
        return accelerator_of(
            one,
            precision,
            compute_efficiency=own.compute_efficiency,
            memory_efficiency=own.memory_efficiency,
        )

    same = rates(cluster)
    is_own = (same.peak, same.memory_bandwidth) == (own.peak, own.memory_bandwidth)
    if not cluster.node_kinds or plan.others or not is_own:
        return plan
    others = []
    for part in place(cluster, plan.parallelism.ranks, nodes).parts:
        named = f"{cluster.name} node_kinds.{part.kind}"
        found = rates(part.cluster.model_copy(update={"name": named}))
        members = part.placement.members
        if found != same:
            memory = None if plan.memory is None else memory_on(part.cluster)
            others.append(RankRates(members.start, members.stop - 1, found, memory))
    return replace(plan, others=tuple(others))


def representatives(
    plan: GenerationPlan, cluster: Cluster, settings: Settings | None = None
) -> GeneratedStep:
    """Generate the fewest replicas that have, on this cluster, the times of the whole job.

    Where no fewer do, all of them. Times of the workload's ops are those of the whole job, bytes on
    links those of its own calls alone.

    Raises
    ------
    WhatIfError
        If the engine of the settings cannot fold.
    """
    settings = settings or Settings()
    if settings.engine not in FOLDING:
        choices = ", ".join(FOLDING)
        raise WhatIfError(
            f"engine {settings.engine!r} simulates every transfer; {choices} can fold"
        )
    whole, p = replace(plan, replicas=None), plan.parallelism
    programs = stage_programs(whole)
    computed = volumes(programs, whole)
    replicas = fewest_replicas(
        p,
        place(cluster, p.ranks, settings.nodes).ranks_per_node,
        unlike=1 if plan.imbalance is None else p.ep,
    )
    if plan.others or cluster.node_kinds:
        reason = "its nodes differ"
    elif replicas is None:
        reason = "its replicas do not fill whole nodes"
    elif replicas == p.dp:
        reason = "it is no larger"
    else:
        part = replace(whole, replicas=replicas)
        workload = expand(programs, part)
        reason = _why_not(workload, part, cluster, settings)
        if not reason:
            ranks = f"{len(workload.ranks)} of {p.ranks} ranks stand for all"
            return GeneratedStep(part, workload, computed, programs[0].clock.shares(), ranks)
    text = f"nothing is folded: {reason}"
    return _whole(whole, programs, text)


def _why_not(workload: Workload, plan: GenerationPlan, cluster: Cluster, settings: Settings) -> str:
    """Why the replicas of a plan do not stand for all on a cluster; "" if they do."""
    forced = tuple(parse_rule(rule) for rule in settings.algorithms)
    scenario = Scenario(workload, cluster, settings.engine, settings.nodes, forced)
    stand_ins = copies(workload, plan.parallelism, plan.replicas or plan.parallelism.dp)
    return why_not_copies(workload, stand_ins, scenario.costs())


def simulated(plan: GenerationPlan, cluster: Cluster, settings: Settings | None = None) -> Timeline:
    """Simulate the step of a plan on a cluster, folded where ranks stand for others.

    Times are those of :func:`generate`; nothing else is worked out.

    Raises
    ------
    TwofoldError
        As :func:`generate`.
    """
    settings = settings or Settings()
    plan = with_own_rates(plan, cluster, settings.nodes)
    if settings.engine in FOLDING:
        workload = representatives(plan, cluster, settings).workload
    else:
        workload = generate_step(plan)[0]
    forced = tuple(parse_rule(rule) for rule in settings.algorithms)
    scenario = Scenario(workload, cluster, settings.engine, settings.nodes, forced, fold=None)
    generated_by = plan.run.framework if isinstance(plan.run, Training) else None
    return beside_exchanges(scenario, generated_by).run()


def write_plan(plan: GenerationPlan, path: Path | str) -> None:
    """Write a plan as a YAML file, which every question takes as it takes a trace.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with writing(Path(path)) as stream:
        stream.write(plan_text(plan).encode())
