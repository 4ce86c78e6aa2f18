"""A workload from a model's shape, before there is a trace.

A model card, degrees of parallelism, a run and an accelerator make the same graph of ops that a
trace would: kernels timed by a roofline, collectives by their sizes, streams as lanes.

How much a step computes and communicates: what formulas in papers state, and MFU needs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.analysis.metrics import mfu
from simulator.errors import WorkloadError
from simulator.workload import What, Workload
from traces.core.loaded import Coverage, Loaded
from traces.generate.expand import tile
from traces.generate.kernel_times import Accelerator
from traces.generate.layers import chunks
from traces.generate.model import Model
from traces.generate.parallelism import Parallelism
from traces.generate.pipeline import SCHEDULES, Phase, Pipeline, Slot
from traces.generate.program import Channels, Program, with_launches
from traces.generate.run import MicroBatch, Serving, Training, check, micro_batch, micro_batches
from traces.generate.stage import Replicas, Stage, mail


class Volume(NamedTuple):
    """Calls of one label and kind in the whole job, and the sum of their sizes (B).

    A call's size is S of nccl-tests: the larger of a rank's input and output.
    """

    calls: int
    size: float


@dataclass(frozen=True, slots=True)
class Volumes:
    """A step of the whole job.

    ``model_flops`` are those the model needs whatever the parallelism: nothing is recomputed or
    computed twice (PaLM, arXiv 2204.02311, appendix B). ``flops`` are those of all kernels.
    ``exchanged`` has a volume for every label of groups and kind of call.
    """

    tokens: int
    model_flops: float
    flops: float
    exchanged: Mapping[tuple[str, str], Volume]

    def record(self) -> dict[str, object]:
        """Return what a JSON answer says: one entry per label and kind, sizes in bytes."""
        return {
            "tokens": self.tokens,
            "model_flops": self.model_flops,
            "flops": self.flops,
            "exchanged": [
                {"label": label, "kind": kind, "calls": volume.calls, "size": volume.size}
                for (label, kind), volume in self.exchanged.items()
            ],
        }

    def mfu(self, step: float, *, ranks: int, peak: float) -> float:
        """MFU of ``model_flops`` in ``step`` s, as :func:`simulator.analysis.metrics.mfu`."""
        return mfu(self.model_flops, step=step, ranks=ranks, peak=peak)


def model_flops(batch: MicroBatch, run: Training | Serving) -> float:
    """FLOPs of the model on the sequences of one micro-batch: forward, and backward in training."""
    alone = replace(batch, parallelism=Parallelism())
    kernels = [
        kernel
        for chunk in chunks(alone)
        for block in chunk
        for part in block.parts
        for kernel in part.kernels
    ]
    total = sum(kernel.forward.flops for kernel in kernels)
    if isinstance(run, Training):
        total += sum(k.input_gradient.flops + k.weight_gradient.flops for k in kernels)
    return total


def tokens(batch: MicroBatch, run: Training | Serving) -> int:
    """Return the new tokens of a step of the whole job."""
    if isinstance(run, Training):
        return run.global_batch * run.sequence
    return run.batch * batch.length * batch.parallelism.dp


GENERATED = "generated"
"""The name of a generated step."""


def generate(
    model: Model,
    parallelism: Parallelism,
    run: Training | Serving,
    accelerator: Accelerator,
    *,
    launch: float | None = None,
    replicas: int | None = None,
) -> Workload:
    """Make the workload of one step of a run.

    ``launch`` is the time the host needs for each op (s); None leaves the host out. With
    ``replicas`` only the ranks of that many data-parallel replicas are written down, groups and
    all: :func:`traces.generate.representatives.copies` says for whom they stand,
    :func:`simulator.folding.representatives.check` whether they do so on a network.

    Raises
    ------
    WorkloadError
        If model, parallelism and run do not fit each other, or there are fewer replicas.

    Examples
    --------
    >>> from traces.generate.model import load_model
    >>> chip = Accelerator(peak=989e12, memory_bandwidth=3.35e12)
    >>> step = Training(micro_batch=1, global_batch=8, sequence=4096)
    >>> workload = generate(load_model("llama-3.1-8b"), Parallelism(tp=4, dp=2), step, chip)
    >>> workload.job_ranks, sorted({group.label for group in workload.groups})
    (8, ['dp', 'tp'])
    """
    if launch is not None and not (launch >= 0 and math.isfinite(launch)):
        raise WorkloadError(f"launch {launch!r} is not a time")
    if replicas is not None and not 1 <= replicas <= parallelism.dp:
        raise WorkloadError(f"{replicas} replicas are not some of {parallelism.dp}")
    programs = _programs(model, parallelism, run, accelerator)
    if launch is not None:
        programs = [with_launches(program, launch) for program in programs]
    notes = _notes(model, parallelism, run, accelerator)
    if replicas is not None and replicas < parallelism.dp:
        notes.append(f"{replicas} of {parallelism.dp} replicas stand for all")
    return tile(programs, parallelism, tuple(notes), replicas)


def volumes(
    model: Model, parallelism: Parallelism, run: Training | Serving, accelerator: Accelerator
) -> Volumes:
    """Count what the workload of :func:`generate` computes and communicates."""
    programs = _programs(model, parallelism, run, accelerator)
    batch = micro_batch(model, parallelism, run)
    done: dict[tuple[str, str], Volume] = {}
    for channel in programs[0].channels.all.values():
        for call in channel.calls:
            calls, size = done.get((channel.label, call.kind), Volume(0, 0.0))
            copies = len(channel.groups)
            done[channel.label, call.kind] = Volume(calls + copies, size + copies * call.size)
    passes = micro_batches(parallelism, run) * parallelism.dp
    return Volumes(
        tokens=tokens(batch, run),
        model_flops=model_flops(batch, run) * passes,
        flops=sum(program.flops for program in programs) * parallelism.ranks_per_stage,
        exchanged=done,
    )


def generated(
    model: Model,
    parallelism: Parallelism,
    run: Training | Serving,
    accelerator: Accelerator,
    *,
    launch: float | None = None,
    replicas: int | None = None,
) -> Loaded:
    """As :func:`generate`, in the form of a trace that has been read; nothing was measured."""
    workload = generate(model, parallelism, run, accelerator, launch=launch, replicas=replicas)
    coverage = Coverage(
        step=GENERATED,
        steps=(),
        ranks=workload.ranks,
        ranks_in_job=parallelism.ranks,
        kernels=int((workload.what == What.COMPUTE).sum()),
        launches_paired=0 if launch is None else int((workload.what == What.COMPUTE).sum()),
        collectives=len(workload.calls),
        collectives_matched=len(workload.calls),
        sizes_known=len(workload.calls),
        starts={},
        clock_offset={},
        unused={},
        skipped=(),
        notes=workload.notes,
    )
    return Loaded(
        trace=f"{model.name} {parallelism}",
        workload=workload,
        coverage=coverage,
        measured_step=math.nan,
        measured_begin={},
        measured_end={},
    )


def _programs(
    model: Model, parallelism: Parallelism, run: Training | Serving, accelerator: Accelerator
) -> list[Program]:
    """Write the program of every stage."""
    check(model, parallelism, run)
    batch = micro_batch(model, parallelism, run)
    orders = [_order(stage, parallelism, run) for stage in range(parallelism.pp)]
    channels = Channels(parallelism)
    letters = mail(batch, orders, channels)
    blocks = chunks(batch)
    programs = []
    for number, slots in enumerate(orders):
        program = Program(number, channels, accelerator, batch.dtype)
        stage = Stage(program, batch, blocks, letters)
        if isinstance(run, Training):
            own = [block for chunk in blocks[number :: parallelism.pp] for block in chunk]
            stage.replicas = Replicas(program, batch, run, own)
            stage.recompute = run.recompute
        stage.work(slots)
        if stage.replicas is not None:
            stage.replicas.finish()
        programs.append(program)
    return programs


def _order(stage: int, parallelism: Parallelism, run: Training | Serving) -> list[Slot]:
    batches = micro_batches(parallelism, run)
    if isinstance(run, Serving):
        return [Slot(Phase.FORWARD, batch) for batch in range(batches)]
    return SCHEDULES[run.schedule](stage, Pipeline(parallelism.pp, batches, parallelism.virtual))


def _notes(
    model: Model, parallelism: Parallelism, run: Training | Serving, accelerator: Accelerator
) -> list[str]:
    """Say what was assumed, for whoever reads the answer."""
    a = accelerator
    return [
        f"generated, not measured: {model.name} on {parallelism.ranks} ranks, {parallelism}",
        f"{run}",
        f"kernels by a roofline of {a.compute_efficiency:.0%} of {a.peak / 1e12:g} TFLOP/s and "
        f"{a.memory_efficiency:.0%} of {a.memory_bandwidth / 1e12:g} TB/s",
    ]
