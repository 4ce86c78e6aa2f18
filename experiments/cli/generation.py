"""A step before there is a trace.

A command declares the options that it takes; those of the settings are gathered by ``settings_of``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.cli.options import (
    Algorithms,
    Cluster,
    Engine,
    Html,
    Nodes,
    Output,
    OutputOption,
    SlowDown,
    Transport,
    WhatIfs,
    choice,
    completed,
    fraction,
    models,
    quantity,
    refuse_given,
    settings_of,
)
from experiments.cli.show import check_html, say, show
from simulator.support.errors import WorkloadError

if TYPE_CHECKING:
    from experiments.settings import Settings
    from topologies import Cluster as ClusterDescription
    from traces.generate.plan import GenerationPlan
    from traces.generate.run import Serving, Training

_DETAIL = "Model and parallelism in detail"
Phase = Literal["training", "prefill", "decode"]
Attention = Literal["flash", "unfused", "flex"]
Recompute = Literal["none", "selective", "op", "full"]
Scores = Literal["full", "causal"]
Loss = Literal["fused", "parallel", "torch"]


def _schedules() -> Iterable[str]:
    from traces.generate.parallelism import SCHEDULES

    return SCHEDULES


def _optimizers() -> Iterable[str]:
    from traces.generate.run import OPTIMIZERS

    return OPTIMIZERS


def _launchers() -> Iterable[str]:
    from traces.generate.launch_files import LAUNCHERS

    return LAUNCHERS


def _frameworks() -> Iterable[str]:
    from traces.generate.framework import FRAMEWORKS

    return FRAMEWORKS


def generate(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|PLAN",
            autocompletion=completed(models),
            help="A model of the catalogue (llama-3.1-405b, …), its card (YAML), or a plan "
            "written by --write, which holds all the options below that define the step.",
        ),
    ],
    *,
    cluster: Cluster,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    cp: Annotated[
        int, typer.Option(rich_help_panel=_DETAIL, min=1, help="Context-parallel ranks.")
    ] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    virtual: Annotated[
        int, typer.Option(rich_help_panel=_DETAIL, min=1, help="Chunks of layers per stage.")
    ] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel replicas.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Replicas over which experts are spread.")] = 1,
    etp: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            min=1,
            show_default="tp where ep divides dp, else 1",
            help="Tensor-parallel ranks that share an expert.",
        ),
    ] = None,
    dp_replicate: Annotated[
        int,
        typer.Option(
            rich_help_panel=_DETAIL,
            min=1,
            help="Copies of each ZeRO shard (HSDP), a divisor of dp.",
        ),
    ] = 1,
    zero: Annotated[
        int, typer.Option(rich_help_panel=_DETAIL, min=0, max=3, help="Stage of ZeRO; 3 is FSDP.")
    ] = 0,
    sequence_parallel: Annotated[
        bool,
        typer.Option(
            "--sequence-parallel", rich_help_panel=_DETAIL, help="Cut norms along the sequence."
        ),
    ] = False,
    phase: Annotated[Phase, typer.Option(help="What the model does.")] = "training",
    micro_batch: Annotated[
        int, typer.Option(rich_help_panel=_DETAIL, min=1, help="Sequences in a micro-batch.")
    ] = 1,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="micro-batch x dp; 4 x pp times that in training",
            help="Sequences per step, summed over all replicas.",
        ),
    ] = None,
    sequence: Annotated[
        int, typer.Option("--sequence", min=1, help="Tokens of a sequence.")
    ] = 4096,
    precision: Annotated[
        str, typer.Option(rich_help_panel=_DETAIL, help="Precision of weights and activations.")
    ] = "bf16",
    recompute: Annotated[
        Recompute, typer.Option(rich_help_panel=_DETAIL, help="What the backward pass recomputes.")
    ] = "none",
    framework: Annotated[
        str,
        typer.Option(
            **choice(_frameworks),
            help="The framework, with its measured kernels, host times and overlap: megatron, "
            "deepspeed, nemo, fsdp2, composer, maxtext, vllm; none: a roofline.",
        ),
    ] = "none",
    attention: Annotated[
        Attention,
        typer.Option(rich_help_panel=_DETAIL, help="Scores on the chip, or written to memory."),
    ] = "flash",
    fused: Annotated[
        bool | None,
        typer.Option(
            "--fused/--no-fused",
            rich_help_panel=_DETAIL,
            show_default="as the framework has it",
            help="Bias, dropout and residual in one kernel.",
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool | None,
        typer.Option(
            "--cuda-graphs/--no-cuda-graphs",
            rich_help_panel=_DETAIL,
            show_default="as the framework has it",
            help="A layer's kernels are launched at once.",
        ),
    ] = None,
    scores: Annotated[
        Scores | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            show_default="full in training, causal in serving",
            help="Attention scores to compute: all, or the lower half.",
        ),
    ] = None,
    gradient: Annotated[
        str, typer.Option(rich_help_panel=_DETAIL, help="Precision of summed gradients.")
    ] = "fp32",
    optimizer: Annotated[
        str,
        typer.Option(
            rich_help_panel=_DETAIL,
            **choice(_optimizers),
            help="The optimiser, which decides the memory per parameter.",
        ),
    ] = "adam",
    lora_rank: Annotated[
        int,
        typer.Option(
            rich_help_panel=_DETAIL,
            min=0,
            help="Rank of adapters trained beside frozen weights; 0: none.",
        ),
    ] = 0,
    lora_targets: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            show_default="all of them",
            help="Products with adapters, separated by commas: qkv,proj,up,down.",
        ),
    ] = None,
    loss: Annotated[
        Loss, typer.Option(rich_help_panel=_DETAIL, help="How the loss stores the logits.")
    ] = "fused",
    schedule: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            **choice(_schedules),
            show_default="1f1b or interleaved",
            help="gpipe, 1f1b, interleaved, zb-h1.",
        ),
    ] = None,
    launch_time: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            callback=quantity("s"),
            help="Host time per op, such as '5 us'.",
        ),
    ] = None,
    compute_efficiency: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            callback=fraction,
            show_default="0.8",
            help="Share of the peak that kernels reach.",
        ),
    ] = None,
    memory_efficiency: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            callback=fraction,
            show_default="0.9",
            help="Share of the memory bandwidth that kernels reach.",
        ),
    ] = None,
    kernels_from: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            help="Kernel times of your own machine: a CSV with kernel, shape, seconds, or a "
            "PyTorch profile with record_shapes=True.",
        ),
    ] = None,
    expert_imbalance: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            help="How unevenly tokens choose experts: busiest rank over mean (1.5), zipf:1.2, "
            "or a CSV file with "
            "layer, expert, tokens.",
        ),
    ] = None,
    memory_only: Annotated[
        bool, typer.Option("--memory", help="Show what fills each rank's memory; generate nothing.")
    ] = False,
    ignore_memory: Annotated[
        bool,
        typer.Option(
            "--ignore-memory",
            rich_help_panel=_DETAIL,
            help="Simulate even if the step does not fit.",
        ),
    ] = False,
    folded: Annotated[
        bool | None,
        typer.Option(
            "--fold/--no-fold",
            rich_help_panel=_DETAIL,
            show_default="from 512 ranks on",
            help="Simulate only as many replicas as represent all.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", "-w", help="Write the plan, a YAML file for other commands."),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_DETAIL,
            **choice(_launchers),
            help="Print the file that starts the step, and simulate nothing: megatron, torchtitan, "
            "nemo, deepspeed, slurm.",
        ),
    ] = None,
    html: Html = None,
    engine: Engine = "flow",
    nodes: Nodes = None,
    algorithm: Algorithms = None,
    transport: Transport = None,
    what_if: WhatIfs = None,
    slow_down: SlowDown = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Generate a step from a model's shape or a plan, and simulate it; no trace needed."""
    from experiments.output.progress import watching
    from experiments.questions.generate import generate as ask
    from experiments.questions.generate import write_plan
    from topologies import load_cluster

    _check(ctx)
    check_html(html)
    where = load_cluster(cluster)
    plan = _plan_in(ctx, model) or _plan_of(ctx.params, where)
    if memory_only:
        _show_memory(plan, output)
        return
    if launch is not None:
        _print_launch_file(plan, where, launch, settings_of(ctx))
        return

    def keep(plan: "GenerationPlan") -> None:
        if write is not None:
            write_plan(plan, write)
            say(f"wrote {write}; next: twofold utility {write} --cluster {cluster}")

    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(
            plan, where, fold_replicas=folded, settings=settings, watch=watch, planned=keep
        )
    show(report, output, html=html)


def _show_memory(plan: "GenerationPlan", output: Output) -> None:
    """Show what fills the memory of the ranks of a plan."""
    from experiments.questions.generate import memory

    show(memory(plan), output)


def _print_launch_file(
    plan: "GenerationPlan", cluster: "ClusterDescription", launcher: str, settings: "Settings"
) -> None:
    """Print the launch file of a plan; what its format has no comments for is told beside it."""
    from experiments.questions.generate import launch_file

    file = launch_file(plan, cluster, launcher, settings=settings)
    typer.echo(file.text, nl=False)
    for note in file.notes:
        say(note)


def _check(ctx: typer.Context) -> None:
    """Refuse options that have no effect beside others, and a plan that cannot be written."""
    from experiments.files import check_output

    values = ctx.params
    if values["write"] is not None:
        check_output(values["write"], (".yaml", ".yml"))
    if values["write"] is not None and values["kernels_from"] is not None:
        raise typer.BadParameter(
            "--write does not keep the times of --kernels-from; leave one out."
        )
    for name in ("schedule", "recompute", "gradient", "optimizer", "loss", "lora_rank"):
        source = ctx.get_parameter_source(name)
        if values["phase"] != "training" and source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise WorkloadError(f"--{option} is for training, not for {values['phase']}")
    if values["lora_targets"] is not None and not values["lora_rank"]:
        raise typer.BadParameter("--lora-targets has no effect without a --lora-rank.")
    if values["sequence_parallel"] and values["tp"] == 1:
        raise typer.BadParameter("--sequence-parallel has no effect without a --tp of 2 or more.")
    _check_framework(values)


def _check_framework(values: dict[str, Any]) -> None:
    """Refuse options that have no effect where kernels take what a roofline says."""
    if values["framework"] == "none" and values["kernels_from"] is not None:
        raise typer.BadParameter("--kernels-from has no effect without a --framework.")
    if values["framework"] == "none" and values["fused"] is not None:
        raise typer.BadParameter("--fused and --no-fused have no effect without a --framework.")


_OF_PLANS = frozenset(
    {"ctx", "model", "cluster", "memory_only", "folded", "write", "launch", "html", "output"}
)
_OF_PLANS |= {"engine", "nodes", "algorithm", "transport", "what_if", "slow_down", "verbose"}
"""Options that mean something for a plan, which says itself what runs."""


def _plan_in(ctx: typer.Context, name: str) -> "GenerationPlan | None":
    """Read the plan that a name is the file of; None if it is a model's, or its card's."""
    from simulator.support.input_files import HEAD, read_bytes
    from traces.core.files import is_plan
    from traces.generate.plan import read_plan

    path = Path(name)
    if not path.is_file() or not is_plan(read_bytes(path, most=HEAD + 1)):
        return None
    refuse_given(ctx, ctx.params.keys() - _OF_PLANS, "for a plan, which says what runs: change it")
    return read_plan(path)


def _plan_of(values: dict[str, Any], cluster: "ClusterDescription") -> "GenerationPlan":
    """Make the plan that the options describe."""
    from experiments.questions.generate import plan_on
    from simulator.support.limits import allow_for_job
    from simulator.support.quantities import parse_quantity
    from traces.generate.kernel_times import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
    from traces.generate.parallelism import Parallelism

    degrees = ("tp", "cp", "ep", "dp", "pp", "virtual", "sequence_parallel", "zero", "etp")
    compute, memory = values["compute_efficiency"], values["memory_efficiency"]
    allow_for_job()
    return plan_on(
        cluster,
        model=values["model"],
        parallelism=Parallelism(
            **{name: values[name] for name in degrees}, dp_replicate=values["dp_replicate"]
        ),
        run=_training(values) if values["phase"] == "training" else _serving(values),
        launch=None
        if values["launch_time"] is None
        else parse_quantity(values["launch_time"], "s"),
        compute_efficiency=COMPUTE_EFFICIENCY if compute is None else compute,
        memory_efficiency=MEMORY_EFFICIENCY if memory is None else memory,
        imbalance=values["expert_imbalance"],
        ignore_memory=values["ignore_memory"],
        kernels=values["kernels_from"],
    )


def _of_both(values: dict[str, Any]) -> dict[str, Any]:
    """Take what training and serving have in common; without an option it is their own default."""
    names = ("precision", "framework", "attention", "fused", "cuda_graphs")
    scores = {} if values["scores"] is None else {"scores": values["scores"]}
    return {name: values[name] for name in names} | scores


def _training(values: dict[str, Any]) -> "Training":
    """Make a training step."""
    from traces.generate.run import LORA_TARGETS, Training

    usual_batch = values["micro_batch"] * values["dp"] * 4 * values["pp"]
    targets = values["lora_targets"]
    return Training(
        micro_batch=values["micro_batch"],
        global_batch=values["global_batch"] or usual_batch,
        sequence=values["sequence"],
        schedule=values["schedule"] or ("interleaved" if values["virtual"] > 1 else "1f1b"),
        lora_targets=LORA_TARGETS
        if targets is None
        else tuple(word.strip() for word in targets.split(",") if word.strip()),
        **{
            name: values[name]
            for name in ("recompute", "gradient", "optimizer", "loss", "lora_rank")
        },
        **_of_both(values),
    )


def _serving(values: dict[str, Any]) -> "Serving":
    """Make a pass of every replica."""
    from traces.generate.run import Serving

    micro_batch, dp = values["micro_batch"], values["dp"]
    sequences = values["global_batch"] or micro_batch * dp
    if sequences % (micro_batch * dp):
        raise WorkloadError(
            f"global_batch {sequences} is not a multiple of micro_batch x dp = {micro_batch} x {dp}"
        )
    return Serving(
        phase=values["phase"],
        batch=sequences // dp,
        context=values["sequence"],
        micro_batches=sequences // (micro_batch * dp),
        **_of_both(values),
    )
