"""Generate a step from a model's shape for a cluster, without a trace, and simulate it.

Or compute only the memory of each rank, without generating the step.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Unpack

from collectives.libraries.planners import parse_rule
from experiments.baseline import BaselineHead, Settings, replayed
from experiments.documents import steps as documents
from experiments.evaluate.generated_steps import (
    accelerator_of,
    all_ranks,
    memory_on,
    representatives,
    simulated,
    with_own_rates,
)
from experiments.files import writing
from experiments.points.report import BaselineReport
from experiments.priors.steps import StepPrior, likely_step, step_prior
from experiments.report import Report, question
from experiments.scenario.scenario import FOLDING
from experiments.settings import SettingsOptions, Watch
from experiments.validation.measured_steps import MeasuredStep
from simulator.analysis.critical_path import critical_path, path_by_group, path_by_what
from simulator.analysis.metrics import exposed_communication
from simulator.imbalance import Imbalance, parse_imbalance
from simulator.support.errors import TraceError, WhatIfError, WorkloadError
from topologies import Cluster, load_cluster, place, with_nodes
from topologies.cluster.changed import with_setting
from traces.generate.generate import CallVolume, Volumes, as_loaded, model_flops
from traces.generate.kernel_times import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, OwnKernels
from traces.generate.launch_files import Job, notes_of
from traces.generate.launch_files import launch_file as made_launch_file
from traces.generate.memory import StageMemory, fullest, memory_events, memory_of
from traces.generate.model import Model, load_model, parameters
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan, plan_text
from traces.generate.run import Serving, Training
from traces.generate.what_fits import alternatives, check_memory, fits


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GenerationReport(BaselineReport):
    """A generated step on a cluster: its time, its MFU, and what it computes and communicates.

    ``exposed_communication_s`` is the mean over ranks. ``folded`` describes which ranks represent
    all. ``kernel_times`` are the shares of kernels' time by source: measured, carried over from a
    related accelerator, or by a roofline.
    """

    schema: ClassVar[str] = "twofold/generate/1"
    listed: ClassVar = CallVolume, "exchanged"
    document = documents.generation
    answered: ClassVar = (
        "model=plan.model.name parameters parallelism=plan.parallelism tokens_per_second "
        "memory_bytes=memory.total accelerator_memory_bytes=plan.memory.size "
        "model_flops=volumes.model_flops mfu "
        "exposed_communication_s kernel_times steps_like_it likely_step_s exchanged "
        "critical_path_s=path_by_what critical_path_by_group_s=path_by_group"
    )

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
        """Communication by kind and group, the most bytes first."""
        return tuple(sorted(self.volumes.exchanged.values(), key=lambda row: -row.size_bytes))

    @property
    def steps_like_it(self) -> StepPrior | None:
        """Errors of similar measured training steps; None if there are none."""
        if not isinstance(self.plan.run, Training):
            return None
        cluster = self.base.recorded.cluster
        return step_prior(
            self.plan.run.framework,
            cluster.accelerator.name,
            self.plan.parallelism.ranks,
            cluster.steps,
            experts=self.plan.model.experts is not None,
        )

    @property
    def likely_step_s(self) -> float | None:
        """The step corrected by the median error of similar ones (s); None if there are none."""
        prior = self.steps_like_it
        return None if prior is None else likely_step(self.base.timeline.makespan, prior)

    @property
    def memory(self) -> StageMemory:
        """Memory of a rank of the fullest stage."""
        return fullest(memory_of(self.plan))

    @property
    def tokens_per_second(self) -> float:
        """New tokens of the whole job per second."""
        return self.volumes.tokens / self.base.timeline.makespan

    @property
    def parameters(self) -> float:
        """Number of the model's parameters."""
        return parameters(self.plan.model)

    def headed(self) -> BaselineHead:
        """Return the head of the answer, with the replicas that represent all."""
        head = BaselineReport.headed(self)
        return {**head, "folded": self.folded or head["folded"]}


@question("generate")
def generate(
    plan: GenerationPlan,
    cluster: Cluster | Path | str,
    *,
    fold_replicas: bool | None = None,
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
        Write out only as many replicas as represent all on this cluster, as
        :func:`representatives` does. By default for jobs of 512 ranks and more without changes.
    settings
        How to simulate.
    watch
        Called with what is about to be simulated; returns where its progress goes.
    planned
        Called with the plan, including its replicas, before anything is simulated, so that it can
        be written to a file even if the simulation fails.

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
    machine = load_cluster(cluster)
    where = with_nodes(machine, settings.nodes)
    place(where, plan.parallelism.ranks, settings.nodes)  # refuse before generating
    plan = with_own_rates(plan, where, settings.nodes)
    check_memory(plan)
    is_whole = plan.replicas is None and not settings.what_ifs
    is_large = plan.parallelism.ranks >= _FOLD_FROM and settings.engine in FOLDING
    folds = is_whole and is_large if fold_replicas is None else fold_replicas
    if folds:
        step = representatives(plan, where, settings)
        planned(step.plan)
    else:
        planned(plan)
        step = all_ranks(plan)
    loaded = as_loaded(step.workload, step.plan, step.kernel_times)
    base = replayed(lambda _: loaded, where, settings, watch)
    if base.scenario.ranks != plan.parallelism.ranks:
        raise WhatIfError(
            "to generate a step at another size, change --dp, or --write the plan and ask about it;"
            " a changed number of ranks would keep this plan's FLOPs and bytes"
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


_FOLD_FROM = 512
"""Ranks from which on equivalent ranks are written out once: a rank takes 3 MB."""


def plan_on(  # noqa: PLR0913 - what a plan says, and the cluster
    cluster: Cluster | Path | str,
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
        The cluster, its name, or its file, which gives the accelerator's peak and bandwidth.
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
        Leave the size of the accelerator's memory out of the plan, so that no check is made
        whether the step fits.
    kernels
        Kernels measured on your own machine, or their file, as
        :func:`traces.load.own_kernels` reads them.

    Raises
    ------
    TwofoldError
        If there is no such model, the cluster does not give peak and bandwidth, or model,
        parallelism and run do not fit each other.
    """
    shape = model if isinstance(model, Model) else load_model(model)
    machine = load_cluster(cluster)
    if not isinstance(run, Training | Serving) or not isinstance(parallelism, Parallelism):
        raise WorkloadError(f"{parallelism!r}, {run!r}: write a Parallelism, and a run")
    if isinstance(kernels, Path | str):
        from traces.load import own_kernels

        kernels = own_kernels(Path(kernels))
    accelerator = accelerator_of(
        machine,
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
        memory=None if ignore_memory else memory_on(machine),
        kernels=kernels,
    )


def write_plan(plan: GenerationPlan, path: Path | str) -> None:
    """Write a plan as a YAML file, which every question accepts in place of a trace."""
    with writing(Path(path)) as stream:
        stream.write(plan_text(plan).encode())


def write_memory(plan: GenerationPlan, path: Path | str) -> None:
    """Write what a step allocates and frees, for PyTorch's viewer (pytorch.org/memory_viz).

    The viewer takes JSON in place of a pickle (``torch/utils/viz/MemoryViz.js``); a stage of the
    pipeline is a device there. Errors as :func:`write_plan`.
    """
    traces: list[list[dict[str, Any]]] = [[] for _ in range(plan.parallelism.pp)]
    for stage, events in enumerate(memory_events(plan)):
        for block, size, what, is_free in events:
            action = "free_completed" if is_free else "alloc"
            frames = [{"filename": plan.model.name, "line": stage, "name": what}]
            event = {"action": action, "addr": block, "size": round(size), "stream": 0}
            traces[stage].append(event | {"frames": frames})
    with writing(Path(path)) as stream:
        stream.write(json.dumps({"segments": [], "device_traces": traces}).encode())


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """The file that starts a step, and notes if its format has no comments."""

    text: str
    notes: tuple[str, ...]


def launch_file(
    plan: GenerationPlan,
    cluster: Cluster | Path | str,
    launcher: str,
    *,
    settings: Settings | None = None,
) -> LaunchFile:
    """Return the file that starts a planned step on a cluster; nothing is simulated.

    Parameters
    ----------
    plan
        A training step.
    cluster
        The cluster, its name in the catalogue, or the path of its YAML file.
    launcher
        A name of :data:`traces.generate.launch_files.LAUNCHERS`: ``megatron``, ``torchtitan``,
        ``nemo``, ``deepspeed`` or ``slurm``.
    settings
        ``nodes`` as everywhere; what-ifs such as ``NCCL_PXN_DISABLE = 1`` and ``transport
        sockets``, and algorithms for whole kinds of calls, become variables of NCCL.

    Raises
    ------
    TwofoldError
        If the step does not fit on the cluster or into memory, the launcher has no setting for
        something in it, or a what-if is of the machine or the step.

    Examples
    --------
    >>> step = Training(micro_batch=1, global_batch=16, sequence=4096)
    >>> degrees = Parallelism(dp=16, zero=1)
    >>> plan = plan_on("hgx-h100", model="qwen3-4b", parallelism=degrees, run=step)
    >>> print(launch_file(plan, "hgx-h100", "deepspeed").text[:27])
    {
      "train_batch_size": 16,
    """
    settings = settings or Settings()
    machine = load_cluster(cluster)
    where = with_nodes(machine, settings.nodes)
    placement = place(where, plan.parallelism.ranks, settings.nodes)
    check_memory(with_own_rates(plan, where, settings.nodes))
    job = Job(
        plan=plan,
        cluster=where.name,
        nodes=placement.nodes,
        ranks_per_node=min(placement.ranks_per_node, plan.parallelism.ranks),
        environment=nccl_environment(where, settings.what_ifs, settings.algorithms),
    )
    text = made_launch_file(job, launcher)
    return LaunchFile(text, () if "#" in text else tuple(notes_of(job)))


@dataclass(frozen=True, slots=True)
class StageBytes:
    """Memory of each rank of a pipeline stage (B), as ``StageMemory`` defines it.

    ``reserved_bytes`` is what PyTorch's allocator would report as reserved; it can exceed
    ``total_bytes``, as the allocator reserves more than it hands out.
    """

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimiser_bytes: float
    gathered_bytes: float
    activations_bytes: float
    working_bytes: float
    kv_cache_bytes: float
    buffers_bytes: float
    reserve_bytes: float
    total_bytes: float
    reserved_bytes: float


@dataclass(frozen=True, slots=True)
class WouldFit:
    """A plan that fits into memory when the requested one does not."""

    change: str
    ranks: int
    total_bytes: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MemoryReport(Report):
    """Memory of the ranks of a step by part.

    ``would_fit`` are plans that fit if this one does not.
    """

    schema: ClassVar[str] = "twofold/memory/1"
    document = documents.memory
    listed: ClassVar = StageBytes, "rows"
    answered: ClassVar = (
        "model=plan.model.name parameters parallelism=plan.parallelism run "
        "ranks=plan.parallelism.ranks accelerator_memory_bytes=plan.memory.size fits "
        "total_bytes=fullest.total stages=rows would_fit"
    )

    plan: GenerationPlan
    stages: tuple[StageMemory, ...]
    fits: bool | None
    would_fit: tuple[WouldFit, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage that needs most."""
        return fullest(self.stages)

    @property
    def parameters(self) -> float:
        """Number of the model's parameters."""
        return parameters(self.plan.model)

    @property
    def run(self) -> str:
        """What runs, in words."""
        return str(self.plan.run)

    @property
    def rows(self) -> list[StageBytes]:
        """A row for each stage."""
        return [
            StageBytes(
                stage=stage.stage,
                **{f"{name}_bytes": size for name, size in stage.parts.items()},
                total_bytes=stage.total,
                reserved_bytes=stage.reserved,
            )
            for stage in self.stages
        ]


@question("memory")
def memory(plan: GenerationPlan) -> MemoryReport:
    """Compute the memory of each rank of a planned step.

    Parameters
    ----------
    plan
        Which step; :func:`plan_on` makes one for a cluster, whose ``accelerator.memory`` is the
        limit.

    Returns
    -------
    MemoryReport
        Bytes of each part for every pipeline stage; whether they fit (None if the plan does not
        give the memory); and what would fit if they do not.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> from traces.generate.run import Training
    >>> plan = plan_on(
    ...     load_cluster("hgx-h100"),
    ...     model="llama-3.1-8b",
    ...     parallelism=Parallelism(dp=8),
    ...     run=Training(micro_batch=1, global_batch=8, sequence=4096),
    ... )
    >>> report = memory(plan)
    >>> report.fits, report.would_fit[0].change
    (False, 'zero 1')
    """
    has_memory = plan.memory is not None or any(part.memory is not None for part in plan.others)
    fitting = fits(plan) if has_memory else None
    return MemoryReport(
        plan=plan,
        stages=memory_of(plan),
        fits=fitting,
        would_fit=()
        if fitting is not False
        else tuple(
            WouldFit(part.change, part.plan.parallelism.ranks, part.needed)
            for part in alternatives(plan)
        ),
    )


def step_on(
    cluster: Cluster, step: MeasuredStep, settings: Settings | None, *, ignore_memory: bool
) -> float:
    """Return the time of the step that a row describes on a cluster (s)."""
    return simulated(
        _plan_of(cluster, step, ignore_memory=ignore_memory), cluster, settings
    ).makespan


def check_measured(cluster: Cluster, step: MeasuredStep) -> None:
    """Refuse a measured time in which the accelerators cannot have computed the step.

    Raises TraceError if it is shorter than the FLOPs of the model, of scores the half that a causal
    mask leaves, take at the peaks of all ranks.
    """
    halved = replace(step, run=replace(step.run, scores="causal"))
    plan = with_own_rates(_plan_of(cluster, halved, ignore_memory=True), cluster)
    least = model_flops(plan) / (plan.parallelism.ranks * plan.peak)
    if step.measured is not None and step.measured < least:
        raise TraceError(
            f"{step.place}: step_s: {step.measured:.4g} s, but the model's FLOPs alone take"
            f" {least:.4g} s at the peak of {plan.parallelism.ranks} {cluster.accelerator.name}:"
            " write seconds, and check model, ranks and global_batch"
        )


def _plan_of(cluster: Cluster, step: MeasuredStep, *, ignore_memory: bool) -> GenerationPlan:
    return plan_on(
        cluster,
        model=step.model,
        parallelism=step.parallelism,
        run=step.run,
        ignore_memory=ignore_memory,
    )


def site_of(step: MeasuredStep, on: Cluster | None = None) -> tuple[Cluster, list[str]]:
    """Return a row's cluster with as many nodes as its job needs, and what that assumes.

    ``on`` replaces the cluster that the row names.
    """
    cluster = on or load_cluster(step.cluster)
    needed = -(-step.parallelism.ranks // cluster.ranks_per_node)
    if cluster.node_kinds or needed <= cluster.nodes:
        return cluster, []
    grown = cluster.model_copy(update={"nodes": needed})
    return grown, [f"{needed} nodes where {cluster.name} has {cluster.nodes}"]


_ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "nvls": "nvls",
    "nvls_tree": "nvlstree",
    "collnet": "collnetchain",
}
"""Algorithms as NCCL_ALGO spells them (NCCL user guide, environment variables)."""
_KINDS = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}


def nccl_environment(
    cluster: Cluster, what_ifs: Sequence[str] = (), algorithms: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables with which NCCL (or RCCL) does what is simulated.

    Parameters
    ----------
    cluster
        Its library and transport, where they differ from NCCL's defaults.
    what_ifs
        ``NCCL_... = VALUE``, ``p2p LEVEL`` and ``transport NAME``.
    algorithms
        Rules for all sizes of a kind, such as ``all_reduce=tree``.

    Raises
    ------
    WhatIfError
        If the library has no such variables, a what-if changes the machine or the step, or a rule
        is for some sizes or groups only, which NCCL_ALGO cannot express.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> nccl_environment(load_cluster("hgx-h100"), ["NCCL_PXN_DISABLE = 1"], ["all_reduce=tree"])
    {'NCCL_PXN_DISABLE': '1', 'NCCL_ALGO': 'allreduce:tree'}
    """
    library = cluster.library
    if library is not None and library.name not in ("nccl", "rccl", "none"):
        raise WhatIfError(f"{cluster.name} runs {library.name}, which has none of NCCL's variables")
    environment = {}
    for text in what_ifs:
        name, equals, value = (part.strip() for part in text.partition("="))
        if equals and name.startswith("NCCL_"):
            cluster = with_setting(cluster, name, value)
            environment[name] = value
        elif name.startswith("transport "):
            cluster = with_setting(cluster, "scale_out.transport", name.removeprefix("transport "))
        elif name.startswith("p2p "):
            cluster = with_setting(cluster, "library.p2p", name.removeprefix("p2p "))
        else:
            raise WhatIfError(f"{text!r} changes the machine or the step, not how it is launched")
    environment |= {
        name: value for name, value in _settings(cluster).items() if name not in environment
    }
    if algorithms:
        environment["NCCL_ALGO"] = ";".join(map(_forced, algorithms))
    return environment


def _settings(cluster: Cluster) -> dict[str, str]:
    """Return settings of the library in a cluster's file that differ from NCCL's defaults."""
    library, fabric = cluster.library, cluster.scale_out
    settings: dict[str, str] = {}
    if library is not None and library.p2p is not None:
        is_off = library.p2p == "LOC"
        settings = {"NCCL_P2P_DISABLE": "1"} if is_off else {"NCCL_P2P_LEVEL": library.p2p}
    if library is not None and not library.pxn:
        settings["NCCL_PXN_DISABLE"] = "1"
    if library is not None and library.sharp:
        settings["NCCL_COLLNET_ENABLE"] = "1"
    if getattr(fabric, "transport", None) == "sockets":
        settings["NCCL_IB_DISABLE"] = "1"
    return settings


def _forced(text: str) -> str:
    rule = parse_rule(text)
    if rule.kind not in _KINDS or rule.algorithm not in _ALGORITHMS:
        raise WhatIfError(f"{text!r}: NCCL_ALGO has no {rule.algorithm} for {rule.kind}")
    if rule.label is not None or (rule.least, rule.most) != (0.0, inf):
        raise WhatIfError(f"{text!r}: NCCL_ALGO is for all sizes and groups of a kind")
    return f"{rule.kind.replace('_', '')}:{_ALGORITHMS[rule.algorithm]}"
