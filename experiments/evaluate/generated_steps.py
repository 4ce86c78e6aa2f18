"""Workloads of planned steps: rates of the ranks' accelerators, and as few ranks as suffice.

Ranks that are equivalent to others are not written out if the engine can fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collectives.libraries.planners import parse_rule
from experiments.costing.slowdown import beside_exchanges
from experiments.scenario.scenario import FOLDING, Scenario
from experiments.settings import Settings
from simulator.folding.copies import why_not_copies
from simulator.support.errors import ClusterError, WhatIfError
from simulator.timeline import Timeline
from simulator.workload import Workload
from topologies import Cluster, place
from traces.generate.generate import Volumes, copies, expand, fewest_replicas, volumes, written
from traces.generate.generate import generate as generate_step
from traces.generate.kernel_times import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, KernelRates
from traces.generate.plan import CUDA_RESERVE, DeviceMemory, GenerationPlan, RankRates
from traces.generate.program import RankProgram
from traces.generate.run import RECIPES, Training
from traces.generate.stage import stage_programs


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedStep:
    """The workload of a plan, and the compute and communication of the whole job.

    ``folded`` says how many ranks represent all, or why none do; "" if folding was not tried.
    """

    plan: GenerationPlan
    workload: Workload
    volumes: Volumes
    kernel_times: dict[str, float]
    folded: str = ""


def all_ranks(
    plan: GenerationPlan, programs: Sequence[RankProgram] = (), folded: str = ""
) -> GeneratedStep:
    """Write out all ranks of a plan, which run the programs of its stages."""
    programs = programs or stage_programs(plan)
    counted = volumes(programs, plan)
    return GeneratedStep(plan, written(programs, plan), counted, programs[0].clock.shares(), folded)


def accelerator_of(
    cluster: Cluster,
    precision: str,
    *,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
) -> KernelRates:
    """Return the rates of a cluster's accelerator at a precision.

    Raises ClusterError if the cluster's file does not give them: there is no default.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> accelerator_of(load_cluster("hgx-h100"), "bf16").peak
    989000000000000.0
    """
    accelerator = cluster.accelerator
    precision = RECIPES.get(precision, precision)
    peak = accelerator.peak.get(precision)
    if peak is None and accelerator.generation not in _ONE_HALF:
        peak = accelerator.peak.get(_OTHER_HALF.get(precision, ""))
    if peak is None:
        precisions = ", ".join(accelerator.peak) or "none"
        raise ClusterError(
            f"{cluster.name}: accelerator.peak.{precision} is missing, and a generated workload"
            f" needs it (given: {precisions})"
        )
    if accelerator.memory_bandwidth is None:
        raise ClusterError(
            f"{cluster.name}: accelerator.memory_bandwidth is missing, and a generated workload"
            " needs it"
        )
    return KernelRates(
        peak=peak,
        memory_bandwidth=accelerator.memory_bandwidth,
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
        name=accelerator.name,
        generation=accelerator.generation or "",
        peaks=tuple(sorted(accelerator.peak.items())),
        sustained=accelerator.sustained,
        kernel_time=1.0 if cluster.steps is None else cluster.steps.kernel_time,
        host_time=1.0 if cluster.steps is None else cluster.steps.host_time,
    )


_OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}
"""Matrix units multiply both 16-bit types at one rate (data sheets of A100, H100, MI300X) ..."""
_ONE_HALF = ("pascal", "volta", "tpu")
"""... except those of these generations, which have only one of them."""


def with_own_rates(
    plan: GenerationPlan, cluster: Cluster, nodes: int | None = None
) -> GenerationPlan:
    """Give every rank of a plan the rates of its own accelerator, on clusters with mixed nodes.

    A plan stays unchanged if it gives the rates of ranks itself, or if its accelerator is not the
    cluster's: then it was made for another one. Ranks sit on ``nodes`` of ``cluster`` as
    :func:`topologies.place` has it. Raises ClusterError if the job does not fit, or a kind of node
    does not give its accelerator's rates.
    """
    accelerator, precision = plan.accelerator, plan.run.precision

    def rates(part_cluster: Cluster) -> KernelRates:
        return accelerator_of(
            part_cluster,
            precision,
            compute_efficiency=accelerator.compute_efficiency,
            memory_efficiency=accelerator.memory_efficiency,
        )

    same = rates(cluster)
    is_own = (same.peak, same.memory_bandwidth) == (accelerator.peak, accelerator.memory_bandwidth)
    if not cluster.node_kinds or plan.others or not is_own:
        return plan
    others = []
    for part in place(cluster, plan.parallelism.ranks, nodes).parts:
        named = f"{cluster.name} node_kinds.{part.kind}"
        part_rates = rates(part.cluster.model_copy(update={"name": named}))
        members = part.placement.members
        if part_rates != same:
            memory = None if plan.memory is None else memory_on(part.cluster)
            others.append(RankRates(members.start, members.stop - 1, part_rates, memory))
    return replace(plan, others=tuple(others))


def representatives(
    plan: GenerationPlan, cluster: Cluster, settings: Settings | None = None
) -> GeneratedStep:
    """Generate the fewest replicas whose times, on this cluster, are those of the whole job.

    If no fewer suffice, all of them. Times of ops are those of the whole job, bytes on links those
    of the workload's own calls. Raises WhatIfError if the engine of the settings cannot fold.
    """
    settings = settings or Settings()
    if settings.engine not in FOLDING:
        choices = ", ".join(FOLDING)
        raise WhatIfError(
            f"engine {settings.engine!r} cannot simulate fewer replicas for all; use {choices}"
        )
    plan, p = replace(plan, replicas=None), plan.parallelism
    programs = stage_programs(plan)
    computed = volumes(programs, plan)
    replicas = fewest_replicas(
        p,
        place(cluster, p.ranks, settings.nodes).ranks_per_node,
        unlike=1 if plan.imbalance is None else p.ep,
    )
    reason = "it is no larger" if replicas else "its replicas do not fill whole nodes"
    if plan.others or cluster.node_kinds:
        reason = "its nodes differ"
    else:
        forced = tuple(parse_rule(rule) for rule in settings.algorithms)
        # The fewest first: whether they do is cheap to tell.
        of_replica = p.cp * p.tp > 1 and plan.imbalance is None
        for one_each in (True, False) if of_replica else (False,):
            simulated = replicas or p.dp
            if simulated == p.dp and not one_each:
                break
            part = replace(plan, replicas=None if simulated == p.dp else simulated)
            workload = expand(programs, part, one_each=one_each)
            scenario = Scenario(workload, cluster, settings.engine, settings.nodes, forced)
            stand_ins = copies(workload, p, simulated, one_each=one_each)
            reason = why_not_copies(workload, stand_ins, scenario.site.costs)
            if not reason:
                ranks = f"{len(workload.ranks)} of {p.ranks} ranks stand for all"
                return GeneratedStep(part, workload, computed, programs[0].clock.shares(), ranks)
    return all_ranks(plan, programs, f"nothing is folded: {reason}")


def simulated(plan: GenerationPlan, cluster: Cluster, settings: Settings | None = None) -> Timeline:
    """Simulate the step of a plan on a cluster, folded if possible.

    Times are those of :func:`experiments.questions.generate.generate`; nothing else is computed.
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


def memory_on(cluster: Cluster) -> DeviceMemory | None:
    """Return the memory of a cluster's accelerator; None if its file does not give it.

    Programs on TPUs are XLA's: the catalogue gives the memory that XLA leaves them, and XLA
    rematerialises by itself if memory is short.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> memory_on(load_cluster("tpu-v5e")).rematerialises
    True
    """
    chip = cluster.accelerator
    if chip.memory is None:
        return None
    is_xla = chip.generation == "tpu"
    return DeviceMemory(
        size=chip.memory, reserve=0.0 if is_xla else CUDA_RESERVE, rematerialises=is_xla
    )
