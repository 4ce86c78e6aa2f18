"""A step before there is a trace.

A command declares the options that it takes; those of the settings are gathered by ``settings_of``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.cli.bare_networks import on_a_network
from experiments.cli.options import (
    Algorithms,
    Cluster,
    Engine,
    Html,
    Nodes,
    Output,
    OutputOption,
    SlowDown,
    WhatIfs,
    choice,
    completed,
    fraction,
    models,
    quantity,
    settings_of,
)
from experiments.cli.show import check_html, say, show
from simulator.errors import WorkloadError

if TYPE_CHECKING:
    from traces.generate.plan import GenerationPlan
    from traces.generate.run import Serving, Training

Phase = Literal["training", "prefill", "decode"]
Attention = Literal["flash", "unfused", "flex"]
Recompute = Literal["none", "selective", "op", "full"]
Scores = Literal["full", "causal"]
Loss = Literal["fused", "parallel", "torch"]
Batch = tuple[int, int, int]
"""Sequences at once, in the step of all replicas, and tokens of each."""


def _schedules() -> Iterable[str]:
    from traces.generate.pipeline import SCHEDULES

    return SCHEDULES


def _optimizers() -> Iterable[str]:
    from traces.generate.run import OPTIMIZERS

    return OPTIMIZERS


def _frameworks() -> Iterable[str]:
    from traces.generate.framework import FRAMEWORKS

    return FRAMEWORKS


@on_a_network
def generate(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=completed(models), help="llama-3.1-405b, gpt-3-175b, … or a YAML card."
        ),
    ],
    *,
    cluster: Cluster,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    cp: Annotated[int, typer.Option(min=1, help="Context-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    virtual: Annotated[int, typer.Option(min=1, help="Chunks of layers per stage.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel replicas.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Replicas that share out experts.")] = 1,
    etp: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="tp where ep divides dp, else 1",
            help="Tensor-parallel ranks that share an expert.",
        ),
    ] = None,
    dp_replicate: Annotated[
        int, typer.Option(min=1, help="Replicas of what ZeRO shards (HSDP), of dp.")
    ] = 1,
    zero: Annotated[int, typer.Option(min=0, max=3, help="Stage of ZeRO; 3 is FSDP.")] = 0,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Cut norms along the sequence.")
    ] = False,
    phase: Annotated[Phase, typer.Option(help="What is asked of the model.")] = "training",
    micro_batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="micro-batch x dp; 4 x pp times that in training",
            help="Sequences in a step of all replicas.",
        ),
    ] = None,
    sequence: Annotated[
        int, typer.Option("--sequence", "--context", min=1, help="Tokens of a sequence.")
    ] = 4096,
    precision: Annotated[str, typer.Option(help="Of weights and activations.")] = "bf16",
    recompute: Annotated[Recompute, typer.Option(help="What backward repeats.")] = "none",
    framework: Annotated[
        str,
        typer.Option(
            **choice(_frameworks),
            help="What runs it, with kernels as measured, its host and its overlap: megatron, "
            "deepspeed, nemo, fsdp2, composer, maxtext, vllm; none: a roofline.",
        ),
    ] = "none",
    attention: Annotated[
        Attention, typer.Option(help="Scores on the chip, or written to memory.")
    ] = "flash",
    fused: Annotated[
        bool | None,
        typer.Option(
            "--fused/--no-fused",
            show_default="as the framework has it",
            help="Bias, dropout and residual in one kernel.",
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool | None,
        typer.Option(
            "--cuda-graphs/--no-cuda-graphs",
            show_default="as the framework has it",
            help="A layer's kernels are launched at once.",
        ),
    ] = None,
    scores: Annotated[
        Scores | None,
        typer.Option(
            show_default="full in training, causal in serving",
            help="Attention scores that are computed: all, or the lower half.",
        ),
    ] = None,
    gradient: Annotated[str, typer.Option(help="Precision of summed gradients.")] = "fp32",
    optimizer: Annotated[
        str, typer.Option(**choice(_optimizers), help="What is kept of every parameter.")
    ] = "adam",
    lora_rank: Annotated[
        int, typer.Option(min=0, help="Rank of adapters trained beside frozen weights; 0: none.")
    ] = 0,
    lora_targets: Annotated[
        str | None,
        typer.Option(
            show_default="all of them", help="What has adapters, by commas: qkv,proj,up,down."
        ),
    ] = None,
    loss: Annotated[Loss, typer.Option(help="How the loss holds the logits.")] = "fused",
    schedule: Annotated[
        str | None,
        typer.Option(
            **choice(_schedules),
            show_default="1f1b or interleaved",
            help="gpipe, 1f1b, interleaved, zb-h1.",
        ),
    ] = None,
    launch: Annotated[
        str | None, typer.Option(callback=quantity("s"), help="Host time per op, such as '5 us'.")
    ] = None,
    compute_efficiency: Annotated[
        float | None,
        typer.Option(callback=fraction, show_default="0.8", help="Part of the peak reached."),
    ] = None,
    memory_efficiency: Annotated[
        float | None,
        typer.Option(callback=fraction, show_default="0.9", help="Part of the bandwidth reached."),
    ] = None,
    kernels_from: Annotated[
        Path | None,
        typer.Option(
            help="Kernels of one's own machine: a CSV with kernel, shape, seconds, or a PyTorch "
            "profile with record_shapes=True."
        ),
    ] = None,
    expert_imbalance: Annotated[
        str | None,
        typer.Option(
            help="Tokens over experts: busiest rank over mean (1.5), zipf:1.2, or a CSV file with "
            "layer, expert, tokens."
        ),
    ] = None,
    memory_only: Annotated[
        bool, typer.Option("--memory", help="Show what fills each rank's memory; generate nothing.")
    ] = False,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Answer also if the step does not fit.")
    ] = False,
    folded: Annotated[
        bool, typer.Option("--fold", help="Simulate no more replicas than stand for all.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", "-w", help="Write the plan, a YAML file other commands read."),
    ] = None,
    html: Html = None,
    engine: Engine = "flow",
    nodes: Nodes = None,
    algorithm: Algorithms = None,
    what_if: WhatIfs = None,
    slow_down: SlowDown = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Generate a step from a model's shape and simulate it: before there is a trace."""
    from experiments.output.progress import watching
    from experiments.questions.generate import generate as ask
    from experiments.questions.generate import plan_on, write_plan
    from simulator.quantities import parse_quantity
    from topologies import load_cluster
    from traces.generate.kernel_times import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
    from traces.generate.parallelism import Parallelism
    from traces.generate.run import LORA_TARGETS

    _check(ctx)
    check_html(html)
    how: dict[str, Any] = {"framework": framework, "attention": attention, "fused": fused}
    how |= {"cuda_graphs": cuda_graphs}
    how |= {} if scores is None else {"scores": scores}
    parallelism = Parallelism(
        tp=tp,
        cp=cp,
        ep=ep,
        dp=dp,
        pp=pp,
        virtual=virtual,
        sequence_parallel=sequence_parallel,
        zero=zero,
        etp=etp,
        dp_replicate=dp_replicate,
    )
    sequences = global_batch or micro_batch * dp * (4 * pp if phase == "training" else 1)
    batch = (micro_batch, sequences, sequence)
    where = load_cluster(cluster)
    plan = plan_on(
        where,
        model=model,
        parallelism=parallelism,
        run=(
            _training(
                batch,
                precision,
                recompute=recompute,
                schedule=schedule or ("interleaved" if virtual > 1 else "1f1b"),
                gradient=gradient,
                optimizer=optimizer,
                loss=loss,
                lora_rank=lora_rank,
                lora_targets=LORA_TARGETS if lora_targets is None else _words(lora_targets),
                **how,
            )
            if phase == "training"
            else _serving(phase, batch, precision, dp=dp, **how)
        ),
        launch=None if launch is None else parse_quantity(launch, "s"),
        compute_efficiency=(
            COMPUTE_EFFICIENCY if compute_efficiency is None else compute_efficiency
        ),
        memory_efficiency=MEMORY_EFFICIENCY if memory_efficiency is None else memory_efficiency,
        imbalance=expert_imbalance,
        ignore_memory=ignore_memory,
        kernels=kernels_from,
    )
    if memory_only:
        _show_memory(plan, output)
        return

    def keep(plan: "GenerationPlan") -> None:
        if write is not None:
            write_plan(plan, write)
            say(f"wrote {write}; ask of it: twofold utility {write} --cluster {cluster}")

    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(
            plan, where, fold_replicas=folded, settings=settings, watch=watch, planned=keep
        )
    show(report, output, html=html)


def _show_memory(plan: "GenerationPlan", output: Output) -> None:
    """Show what fills the memory of the ranks of a plan."""
    from experiments.questions.memory import memory

    show(memory(plan), output)


def _check(ctx: typer.Context) -> None:
    """Refuse options that mean nothing beside others, and a plan that cannot be written."""
    from experiments.files import check_output

    given = ctx.params
    if given["write"] is not None:
        check_output(given["write"], (".yaml", ".yml"))
    if given["write"] is not None and given["kernels_from"] is not None:
        raise typer.BadParameter(
            "--write does not keep the times of --kernels-from; leave one out."
        )
    for name in ("schedule", "recompute", "gradient", "optimizer", "loss", "lora_rank"):
        source = ctx.get_parameter_source(name)
        if given["phase"] != "training" and source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise WorkloadError(f"--{option} is for training, not for {given['phase']}")
    if given["lora_targets"] is not None and not given["lora_rank"]:
        raise typer.BadParameter("--lora-targets means nothing without a --lora-rank.")
    if given["sequence_parallel"] and given["tp"] == 1:
        raise typer.BadParameter("--sequence-parallel means nothing without a --tp of 2 or more.")
    _check_framework(given)


def _check_framework(given: dict[str, Any]) -> None:
    """Refuse options that mean nothing where kernels take what a roofline says."""
    if given["framework"] == "none" and given["kernels_from"] is not None:
        raise typer.BadParameter("--kernels-from means nothing without a --framework.")
    if given["framework"] == "none" and given["fused"] is not None:
        raise typer.BadParameter("--fused and --no-fused mean nothing without a --framework.")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _training(batch: Batch, precision: str, **how: Any) -> "Training":
    """Make a training step."""
    from traces.generate.run import Training

    at_once, sequences, length = batch
    return Training(
        micro_batch=at_once,
        global_batch=sequences,
        sequence=length,
        precision=precision,
        **how,
    )


def _serving(
    phase: Literal["prefill", "decode"], batch: Batch, precision: str, *, dp: int, **how: Any
) -> "Serving":
    """Make a pass of every replica."""
    from traces.generate.run import Serving

    at_once, sequences, length = batch
    if sequences % (at_once * dp):
        raise WorkloadError(
            f"global_batch {sequences} is not a multiple of micro_batch x dp = {at_once} x {dp}"
        )
    return Serving(
        phase=phase,
        batch=sequences // dp,
        context=length,
        precision=precision,
        micro_batches=sequences // (at_once * dp),
        **how,
    )
