"""A workload from a model's shape, before there is a trace.

A model card, degrees of parallelism, a run and an accelerator make the same graph of ops that a
trace would: kernels timed by a roofline, collectives by their sizes, streams as lanes.
"""

import math

from simulator.errors import WorkloadError
from simulator.workload import What, Workload
from traces.coverage import Coverage
from traces.layers import chunks
from traces.loaded import Loaded
from traces.model_card import Model
from traces.parallelism import Parallelism
from traces.phases import Serving, Training, check, micro_batch, micro_batches
from traces.pipeline_schedule import SCHEDULES, Phase, Pipeline, Slot
from traces.program import Channels, Program, with_launches
from traces.replicas import Replicas
from traces.roofline import Accelerator
from traces.stage import Stage, mail
from traces.tile import tile
from traces.volumes import Volume, Volumes, model_flops, tokens


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
    all: :func:`traces.replicated.copies` says for whom they stand, :func:`simulator.copies.check`
    whether they do so on a network.

    Raises
    ------
    WorkloadError
        If model, parallelism and run do not fit each other, or there are fewer replicas.

    Examples
    --------
    >>> from traces.model_card import load_model
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
        step="generated",
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
