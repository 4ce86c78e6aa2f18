"""Generate a step from its plan, without a trace.

A model card, degrees of parallelism, a run and an accelerator give the same graph of ops that a
trace would: kernels timed by a roofline, collectives by their sizes, streams as lanes. FLOPs and
communicated bytes of the step are counted as well, as formulas in papers state them and MFU needs.

Each rank runs its stage's program (SPMD). Ranks are in order, each with all its ops in a row, so
that equal ranks stay easy to recognise. If not all replicas are written out, those written out
represent the others.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.metrics import mfu
from simulator.analysis.phases import WHOLE, Phase
from simulator.calls import KINDS, Calls, Group
from simulator.support.arrays import Floats, Ints
from simulator.support.errors import TraceError, WorkloadError
from simulator.support.limits import FORESEEN
from simulator.workload import Copies, Edges, What, Workload
from traces.core.loaded import ALL, GENERATED, MEDIAN, Coverage, Loaded
from traces.generate.layers import chunks
from traces.generate.parallelism import Parallelism, ep_of, stage_ranks
from traces.generate.plan import GenerationPlan, read_plan
from traces.generate.program import Channel, ChannelKey, RankProgram, channel_groups
from traces.generate.run import Training, micro_batch, micro_batches, new_tokens
from traces.generate.stage import stage_programs
from traces.generate.what_fits import check_memory

if TYPE_CHECKING:
    from simulator.shares import Shares


@dataclass(frozen=True, slots=True)
class CallVolume:
    """Calls of one label and kind in the whole job.

    Parameters
    ----------
    label
        Label of the groups: ``tp``, ``dp``, ``pp``, …
    kind
        Kind of the calls: ``all_reduce``, ``send_receive``, …
    calls
        Number of calls.
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
    """FLOPs, tokens and communication of a step of the whole job.

    Parameters
    ----------
    tokens
        Tokens read or generated.
    model_flops
        FLOPs that the model needs whatever the parallelism: nothing is recomputed or computed twice
        (PaLM, arXiv 2204.02311, appendix B).
    flops
        FLOPs of all kernels.
    exchanged
        The calls by label of their groups and kind.
    """

    tokens: int
    model_flops: float
    flops: float
    exchanged: Mapping[tuple[str, str], CallVolume]

    def mfu(self, step: float, *, ranks: int, peak: float) -> float:
        """Return the MFU at ``step`` s per step, as :func:`simulator.analysis.metrics.mfu`."""
        return mfu(self.model_flops, step=step, ranks=ranks, peak=peak)


def generate(plan: GenerationPlan) -> tuple[Workload, Volumes]:
    """Generate the step of a plan.

    Parameters
    ----------
    plan
        The plan; with ``plan.replicas`` only the ranks of that many replicas are in the workload.

    Returns
    -------
    Workload
        The ops of the ranks, their calls and dependencies; times in s, sizes in B.
    Volumes
        FLOPs, tokens and bytes of the whole job, all replicas included.

    Raises
    ------
    WorkloadError
        If the step has more ops than a 32-bit index can number.

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
    """Expand the programs of a plan's stages to its ranks, each at its accelerator's rates.

    ``programs`` are at the rates of ``plan.accelerator``.

    Returns
    -------
    Workload
        The same ops whatever the rates; kernels of ``plan.others`` have the durations of theirs.
    """
    _foresee(programs, plan)
    workload = expand(programs, plan)
    duration = workload.duration
    for other_ranks in plan.others:
        with_rates = replace(plan, accelerator=other_ranks.rates, others=())
        in_range = (workload.rank >= other_ranks.first) & (workload.rank <= other_ranks.last)
        duration = np.where(
            in_range, expand(stage_programs(with_rates), with_rates).duration, duration
        )
    return replace(workload, duration=duration) if plan.others else workload


_SECONDS, _BYTES = (1.5e-6, 3.6e-6), (2.2e2, 3.0e2)
"""Processor time (s) and memory (B) per op of a step that is written out: to generate and simulate
it, and to change it in ten ways, too (measured: 5.4 and 6.5 million ops, two models)."""
_LONG, _LARGE = 10.0, 1e9
"""What takes more time (s) or memory (B) is announced."""


def _foresee(programs: Sequence[RankProgram], plan: GenerationPlan) -> None:
    """Announce a step that is long to write out, with what makes it shorter."""
    p = plan.parallelism
    replicas = p.dp if plan.replicas is None else plan.replicas
    ops = replicas * p.cp * p.tp * sum(len(program.ops) for program in programs)
    if ops * _SECONDS[1] > _LONG or ops * _BYTES[1] > _LARGE:
        (once, often), (memory, most) = (
            [ops * each for each in per_op] for per_op in (_SECONDS, _BYTES)
        )
        folding = ", or with replicas that stand for all (generate --fold --write)" * (replicas > 1)
        FORESEEN.get()(
            f"a step of {ops / 1e6:.1f} million ops takes about {once:.2g} s of processor time and"
            f" {memory / 1e9:.2g} GB, a question with many changes {often:.2g} s and"
            f" {most / 1e9:.2g} GB: less with fewer micro-batches{folding}"
        )


def volumes(programs: Sequence[RankProgram], plan: GenerationPlan) -> Volumes:
    """Count FLOPs, tokens and communication of all ranks of a plan that run these programs."""
    exchanged: dict[tuple[str, str], CallVolume] = {}
    for channel in programs[0].channels.by_key.values():
        groups = len(channel.groups)
        for call in channel.calls:
            key = channel.label, call.kind
            before = exchanged.get(key, CallVolume(*key, calls=0, size_bytes=0.0))
            exchanged[key] = CallVolume(
                *key, calls=before.calls + groups, size_bytes=before.size_bytes + groups * call.size
            )
    return Volumes(
        tokens=new_tokens(plan.parallelism, plan.run),
        model_flops=model_flops(plan),
        flops=math.fsum(program.flops for program in programs) * plan.parallelism.ranks_per_stage,
        exchanged=exchanged,
    )


def model_flops(plan: GenerationPlan) -> float:
    """Count the FLOPs of the model on all sequences of a step, backward too in training."""
    batch = micro_batch(plan.model, plan.parallelism, plan.run)
    kernels = [
        kernel
        for chunk in chunks(replace(batch, parallelism=Parallelism()))
        for block in chunk
        for part in block.parts
        for kernel in part.kernels
    ]
    flops = math.fsum(kernel.forward.flops for kernel in kernels)
    if isinstance(plan.run, Training):
        flops += math.fsum(k.input_gradient.flops + k.weight_gradient.flops for k in kernels)
    return flops * (micro_batches(plan.parallelism, plan.run) * plan.parallelism.dp)


def load_plan(path: Path, step: str) -> Loaded:
    """Generate the step of a plan's file, in the form of a loaded trace.

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
    """Return a generated step in the form of a loaded trace; nothing was measured.

    ``kernel_times`` are shares of its kernels' time by origin. Without ``trace`` it is named after
    the model and its parallelism.
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
    # Every rank of a generated pass is in the pass's phase.
    return Loaded(
        trace=trace or str(plan),
        workload=workload,
        coverage=coverage,
        measured_step=math.nan,
        measured_begin={},
        measured_end={},
        generated_by=plan.run.framework if isinstance(plan.run, Training) else None,
        generated_at=(plan.accelerator.kernel_time, plan.accelerator.host_time),
        has_experts=plan.model.experts is not None,
        kernel_times=kernel_times,
        phases=()
        if isinstance(plan.run, Training)
        else tuple(Phase(plan.run.phase, rank, WHOLE, 0.0, 0.0) for rank in workload.ranks),
    )


class _RankColumns(NamedTuple):
    """Columns of ops; those of one stage have shape ``(ranks, ops)``."""

    what: NDArray[np.uint8]
    rank: Ints
    lane: Ints
    name: Ints
    call: Ints
    duration: Floats
    flops: Floats
    traffic: Floats


_COLUMNS: list[type] = [np.uint8, *[np.int32] * 4, *[np.float64] * 3]


def expand(
    programs: Sequence[RankProgram], plan: GenerationPlan, *, one_each: bool = False
) -> Workload:
    """Give every rank its stage's program; ``programs`` are in the order of the stages.

    The workload has the ranks of the first ``plan.replicas`` replicas, or of all if that is None;
    with ``one_each`` the first rank of each replica and stage: its tensor and context ranks do the
    same.
    """
    p = plan.parallelism
    kept_ranks = p.ranks_per_stage if plan.replicas is None else plan.replicas * p.cp * p.tp
    every = p.cp * p.tp if one_each else 1
    written_ranks = kept_ranks // every
    ops = written_ranks * sum(len(program.ops) for program in programs)
    if ops > np.iinfo(np.int32).max:
        raise WorkloadError(f"the step has {ops} ops, more than 32 bits can number")
    ranks = [stage_ranks(p, program.stage)[:kept_ranks:every] for program in programs]
    channels = {
        key: replace(
            channel,
            groups=channel.groups[np.isin(channel.groups, np.concatenate(ranks)).any(axis=1)],
        )
        for key, channel in programs[0].channels.by_key.items()
    }
    # The number of each channel's first call: channels one after another.
    counts = (len(channel.calls) * len(channel.groups) for channel in channels.values())
    first_call = dict(zip(channels, accumulate(counts, initial=0), strict=False))
    lanes = _table(op.lane for program in programs for op in program.ops)
    names = _table(op.name for program in programs for op in program.ops)
    every_column: list[NDArray[Any]] = [np.empty(ops, dtype) for dtype in _COLUMNS]
    columns, end = _RankColumns(*every_column), 0
    for program, of_stage in zip(programs, ranks, strict=True):
        begin, end = end, end + written_ranks * len(program.ops)
        stage = _RankColumns(*(c[begin:end].reshape(written_ranks, -1) for c in every_column))
        stage.lane[:] = [lanes[op.lane] for op in program.ops]
        stage.name[:] = [names[op.name] for op in program.ops]
        stage.what[:] = [op.what for op in program.ops]
        stage.rank[:] = of_stage[:, None]
        stage.duration[:] = [op.duration for op in program.ops]
        stage.flops[:] = [op.work.flops for op in program.ops]
        stage.traffic[:] = [op.work.traffic for op in program.ops]
        # Every rank has the program's work, except ops whose work depends on its experts.
        for number, by_ep in program.by_ep.items():
            work = by_ep[ep_of(p, of_stage)].T
            stage.duration[:, number], stage.flops[:, number], stage.traffic[:, number] = work
        _fill_calls(stage.call, program, of_stage, channels, first_call)
    calls, groups = _calls(list(channels.values()), p)
    unmeasured = np.full(ops, np.nan)
    return Workload(
        **columns._asdict(),
        ready=np.zeros(ops),
        measured_start=unmeasured,
        measured_end=unmeasured,
        edges=_edges(programs, written_ranks),
        calls=calls,
        groups=groups,
        names=tuple(names),
        lanes=tuple(lanes),
        job_ranks=p.ranks,
        notes=plan.assumptions,
    )


def _table(texts: Iterable[str]) -> dict[str, int]:
    return {text: index for index, text in enumerate(dict.fromkeys(texts))}


def _fill_calls(
    call: Ints,
    program: RankProgram,
    ranks: NDArray[np.int64],
    channels: Mapping[ChannelKey, Channel],
    first_call: Mapping[ChannelKey, int],
) -> None:
    """Fill in the call of each op and rank: by channel, group, and number in the group."""
    # A call's number is first_call[channel] + group * calls per group + number within the group.
    call[:] = -1
    joins: dict[ChannelKey, list[tuple[int, int]]] = {}
    for number, op in enumerate(program.ops):
        if op.call is not None:
            joins.setdefault(op.call.channel, []).append((number, op.call.number))
    for key, numbers in joins.items():
        ops, number_in_group = np.array(numbers).T
        channel = channels[key]
        # The group of each rank: members sorted by rank, with the group of each at the same index.
        group = np.repeat(np.arange(len(channel.groups)), channel.groups.shape[1])
        order = np.argsort(channel.groups, axis=None)
        member = np.searchsorted(channel.groups.ravel(), ranks, sorter=order)
        first = first_call[key] + group[order][member] * len(channel.calls)
        call[:, ops] = first[:, None] + number_in_group


def _edges(programs: Sequence[RankProgram], copies: int) -> Edges:
    """Sort the edges of a program once, and repeat them for every rank."""
    stages = [
        Edges.of(len(p.ops), np.array(p.source), np.array(p.target), np.zeros(len(p.source)))
        for p in programs
    ]
    offset = np.zeros(1 + copies * sum(len(p.ops) for p in programs), dtype=np.int64)
    target = np.empty(copies * sum(len(stage.target) for stage in stages), dtype=np.int32)
    ops = edges = 0
    for stage in stages:
        length, count = len(stage.offset) - 1, len(stage.target)
        # Row i is copy i: its op numbers are those of the program, offset by i program lengths.
        copy = np.arange(copies)[:, None]
        next_ops, next_edges = ops + copies * length, edges + copies * count
        offset[ops + 1 : next_ops + 1] = (edges + copy * count + stage.offset[1:]).ravel()
        target[edges:next_edges] = (ops + copy * length + stage.target).ravel()
        ops, edges = next_ops, next_edges
    return Edges(offset, target, np.zeros(edges))


def _calls(
    channels: Sequence[Channel], parallelism: Parallelism
) -> tuple[Calls, tuple[Group, ...]]:
    """Return all calls and groups; every group makes all calls of its channel."""
    groups: dict[Group, int] = {}
    of_call, kind, sequence, size = [], [], [], []
    dtype: list[str] = []
    shares: list[Shares | None] = []
    for channel in channels:
        members = [
            groups.setdefault(Group(tuple(ranks), channel.label), len(groups))
            for ranks in channel.groups.tolist()
        ]
        calls, copies = channel.calls, len(members)
        of_call.append(np.repeat(np.array(members, dtype=np.int32), len(calls)))
        kind.append(np.tile([KINDS.index(call.kind) for call in calls], copies))
        sequence.append(np.tile(np.arange(len(calls)), copies))
        # Ranks of a group share the expert-parallel coordinate that scales its calls: its first
        # rank's.
        ep = ep_of(parallelism, channel.groups[:, 0])
        size.append(
            np.array(
                [
                    call.size * (call.by_ep[at] if call.by_ep else 1.0)
                    for at in ep.tolist()
                    for call in calls
                ]
            )
        )
        dtype += [call.dtype for call in calls] * copies
        shares += [call.shares for call in calls] * copies
    total = len(dtype)
    return Calls(
        kind=_concatenate(kind, np.uint8),
        group=_concatenate(of_call, np.int32),
        sequence=_concatenate(sequence, np.int64),
        size=_concatenate(size, np.float64),
        dtype=tuple(dtype),
        transfer=np.full(total, np.nan),
        factor=np.ones(total),
        late=np.zeros(total),
        eager=np.zeros(total, dtype=np.bool_),
        shares=tuple(shares) if any(call_shares is not None for call_shares in shares) else (),
    ), tuple(groups)


def _concatenate(columns: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.empty(0), *columns]).astype(dtype)


def copies(
    workload: Workload, parallelism: Parallelism, replicas: int, *, one_each: bool = False
) -> Copies:
    """Return the rank that represents each of the job, and which groups make a group's calls.

    ``replicas`` and ``one_each`` are those with which :func:`expand` wrote the workload.
    """
    p = parallelism
    # Ranks are numbered with tp and cp innermost, then dp, then pp.
    job = np.arange(p.ranks).reshape(p.pp, p.dp, -1)
    stand_in = job[:, np.arange(p.dp) % replicas]
    if one_each:
        stand_in = np.broadcast_to(stand_in[..., :1], job.shape)
    stand_in = stand_in.ravel()
    # The label of a group, and the stages of its first and last rank
    keys = [
        ChannelKey(group.label, *(group.ranks[end] // p.ranks_per_stage for end in (0, -1)))
        for group in workload.groups
    ]
    groups = {key: channel_groups(p, key) for key in dict.fromkeys(keys)}
    return Copies(stand_in, tuple(groups[key] for key in keys))


def fewest_replicas(
    parallelism: Parallelism, ranks_per_node: int, *, unlike: int = 1
) -> int | None:
    """Return the least number of replicas that fill whole nodes; None if those of a stage do not.

    It is a multiple of ``unlike``: that many successive replicas differ from each other.

    Examples
    --------
    >>> fewest_replicas(Parallelism(tp=2, dp=16, pp=4), 8)
    4
    """
    ranks = parallelism.tp * parallelism.cp
    replicas = lcm(lcm(ranks, ranks_per_node) // ranks, unlike)
    return replicas if parallelism.dp % replicas == 0 else None
