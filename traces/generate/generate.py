"""Generate a step from its plan, before there is a trace.

A model card, degrees of parallelism, a run and an accelerator make the same graph of ops that a
trace would: kernels timed by a roofline, collectives by their sizes, streams as lanes. What the
step computes and communicates is counted besides, as formulas in papers state it and MFU needs it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simulator.analysis.metrics import mfu
from simulator.analysis.phases import WHOLE, Phase
from simulator.support.errors import TraceError, WorkloadError
from simulator.workload import What, Workload
from traces.core.loaded import ALL, GENERATED, MEDIAN, Coverage, Loaded
from traces.generate.expand import expand
from traces.generate.layers import chunks
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan, read_plan
from traces.generate.program import RankProgram
from traces.generate.run import Training, micro_batch, micro_batches, new_tokens
from traces.generate.stage import stage_programs
from traces.generate.what_fits import check_memory


@dataclass(frozen=True, slots=True)
class CallVolume:
    """Calls of one label and kind in the whole job.

    Parameters
    ----------
    label
        Of the groups: ``tp``, ``dp``, ``pp``, …
    kind
        Of the calls: ``all_reduce``, ``send_receive``, …
    calls
        How many there are.
    size_bytes
        Sum of their sizes (B). A call's size is S of nccl-tests: the larger of a rank's input and
        output.
    """

    label: str
    kind: str
    calls: int
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Volumes:
    """What a step of the whole job computes and communicates.

    Parameters
    ----------
    tokens
        Tokens read or made.
    model_flops
        FLOPs that the model needs whatever the parallelism: nothing is recomputed or computed twice
        (PaLM, arXiv 2204.02311, appendix B).
    flops
        FLOPs of all kernels.
    exchanged
        The calls of each label of groups and kind.
    """

    tokens: int
    model_flops: float
    flops: float
    exchanged: Mapping[tuple[str, str], CallVolume]

    def mfu(self, step: float, *, ranks: int, peak: float) -> float:
        """MFU of ``model_flops`` in ``step`` s, as :func:`simulator.analysis.metrics.mfu`."""
        return mfu(self.model_flops, step=step, ranks=ranks, peak=peak)


def generate(plan: GenerationPlan) -> tuple[Workload, Volumes]:
    """Generate the step of a plan.

    Parameters
    ----------
    plan
        Which step; with ``plan.replicas`` only the ranks of that many replicas are in the workload.

    Returns
    -------
    Workload
        The ops of the ranks, their calls, and what waits for what; times in s, sizes in B.
    Volumes
        FLOPs, tokens and bytes of the whole job, all replicas included.

    Raises
    ------
    WorkloadError
        If the step has more ops than 32 bits can number.

    Examples
    --------
    >>> from traces.generate.kernel_times import KernelRates
    >>> from traces.generate.model import load_model
    >>> plan = GenerationPlan(
    ...     model=load_model("llama-3.1-8b"),
    ...     parallelism=Parallelism(tp=4, dp=2),
    ...     run=Training(micro_batch=1, global_batch=8, sequence=4096),
    ...     accelerator=KernelRates(peak=989e12, memory_bandwidth=3.35e12),
    ... )
    >>> workload, volumes = generate(plan)
    >>> workload.job_ranks, sorted({group.label for group in workload.groups})
    (8, ['dp', 'tp'])
    >>> volumes.exchanged["dp", "all_reduce"].calls
    136
    """
    programs = stage_programs(plan)
    return written(programs, plan), volumes(programs, plan)


def written(programs: Sequence[RankProgram], plan: GenerationPlan) -> Workload:
    """Write the programs of a plan's stages out for its ranks, each at its accelerator's rates.

    ``programs`` are at the rates of ``plan.accelerator``.

    Returns
    -------
    Workload
        The same ops whatever the rates; kernels of ``plan.others`` last as theirs have it.
    """
    workload = expand(programs, plan)
    duration = workload.duration
    for other_ranks in plan.others:
        with_rates = replace(plan, accelerator=other_ranks.rates, others=())
        in_range = (workload.rank >= other_ranks.first) & (workload.rank <= other_ranks.last)
        duration = np.where(
            in_range, expand(stage_programs(with_rates), with_rates).duration, duration
        )
    return replace(workload, duration=duration) if plan.others else workload


def volumes(programs: Sequence[RankProgram], plan: GenerationPlan) -> Volumes:
    """Count what all ranks of a plan compute and communicate that run these programs."""
    exchanged: dict[tuple[str, str], CallVolume] = {}
    for channel in programs[0].channels.by_key.values():
        groups = len(channel.groups)
        for call in channel.calls:
            key = channel.label, call.kind
            before = exchanged.get(key, CallVolume(*key, calls=0, size_bytes=0.0))
            exchanged[key] = CallVolume(
                *key, calls=before.calls + groups, size_bytes=before.size_bytes + groups * call.size
            )
    # FLOPs of the model on the sequences of a step: forward, and backward in training.
    batch = micro_batch(plan.model, plan.parallelism, plan.run)
    kernels = [
        kernel
        for chunk in chunks(replace(batch, parallelism=Parallelism()))
        for block in chunk
        for part in block.parts
        for kernel in part.kernels
    ]
    flops = sum(kernel.forward.flops for kernel in kernels)
    if isinstance(plan.run, Training):
        flops += sum(k.input_gradient.flops + k.weight_gradient.flops for k in kernels)
    return Volumes(
        tokens=new_tokens(plan.parallelism, plan.run),
        model_flops=flops * (micro_batches(plan.parallelism, plan.run) * plan.parallelism.dp),
        flops=sum(program.flops for program in programs) * plan.parallelism.ranks_per_stage,
        exchanged=exchanged,
    )


def load_plan(path: Path, step: str) -> Loaded:
    """Generate the step of a plan's file, as if it were its trace.

    Raises
    ------
    TraceError
        If the file is not a plan, its model is unknown, it has no such step, or the step does not
        fit into the memory that the file gives.
    """
    if step not in (MEDIAN, ALL, GENERATED):
        raise TraceError(f"{path}: no step {step}; a plan has one step")
    plan = read_plan(path)
    try:
        check_memory(
            plan, remedy="leave accelerator.memory out of the file to have it answered all the same"
        )
        programs = stage_programs(plan)
        workload = written(programs, plan)
    except WorkloadError as error:
        raise TraceError(f"{path}: {error}") from error
    return as_loaded(workload, plan, programs[0].clock.shares(), trace=str(path))


def as_loaded(
    workload: Workload, plan: GenerationPlan, kernel_times: Mapping[str, float], *, trace: str = ""
) -> Loaded:
    """Return a generated step in the form of a trace that has been read; nothing was measured.

    ``kernel_times`` are shares of its kernels' time by how that is known. Without ``trace`` it is
    named after the model and its parallelism.
    """
    kernels = int((workload.what == What.COMPUTE).sum())
    calls = len(workload.calls)
    coverage = Coverage(
        step=GENERATED,
        ranks=workload.ranks,
        ranks_in_job=workload.job_ranks,
        kernels=kernels,
        launches_paired=0 if plan.launch is None else kernels,
        collectives=calls,
        collectives_matched=calls,
        sizes_known=calls,
        notes=workload.notes,
    )
    # A generated pass is the phase that it is of, on every rank.
    return Loaded(
        trace=trace or str(plan),
        workload=workload,
        coverage=coverage,
        measured_step=math.nan,
        measured_begin={},
        measured_end={},
        generated_by=plan.run.framework if isinstance(plan.run, Training) else None,
        generated_at=(plan.accelerator.kernel_time, plan.accelerator.host_time),
        kernel_times=kernel_times,
        phases=()
        if isinstance(plan.run, Training)
        else tuple(Phase(plan.run.phase, rank, WHOLE, 0.0, 0.0) for rank in workload.ranks),
    )
