"""A step before there is a trace.

A command declares the options that it takes; those of the settings are gathered by ``settings_of``.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.cli.options import (
    FORMS,
    Cluster,
    Options,
    Output,
    OutputOption,
    choice,
    completed,
    fraction,
    in_panel,
    models,
    names_in,
    option,
    quantity,
    refuse_given,
    settings_of,
    with_files,
    with_options,
    with_settings,
    written,
)
from experiments.cli.show import say, show
from experiments.files import check_output
from experiments.output.progress import watching
from simulator.support.errors import WorkloadError

if TYPE_CHECKING:
    from topologies import Cluster as ClusterDescription
    from traces.generate.plan import GenerationPlan
    from traces.generate.run import Serving, Training

_of_parallelism = in_panel("Parallelism in detail")
_of_model = in_panel("Model and training in detail")
_of_kernels = in_panel("Kernel and host times")
Phase = Literal["training", "prefill", "decode"]
Attention = Literal["flash", "unfused", "flex"]
Recompute = Literal["none", "selective", "op", "full"]
Scores = Literal["full", "causal"]
Loss = Literal["fused", "parallel", "torch"]


_PLAN: Options = {
    "tp": option(int, "Tensor-parallel ranks.", default=1, min=1),
    "cp": _of_parallelism(int, "Context-parallel ranks.", default=1, min=1),
    "pp": option(int, "Pipeline stages.", default=1, min=1),
    "virtual": _of_parallelism(int, "Chunks of layers per stage.", default=1, min=1),
    "dp": option(int, "Data-parallel replicas.", default=1, min=1),
    "ep": _of_parallelism(int, "Replicas over which experts are spread.", default=1, min=1),
    "etp": _of_parallelism(
        int,
        "Tensor-parallel ranks that share an expert.",
        min=1,
        show_default="tp where ep divides dp, else 1",
    ),
    "dp_replicate": _of_parallelism(
        int, "Copies of each ZeRO shard (HSDP), a divisor of dp.", default=1, min=1
    ),
    "zero": _of_parallelism(int, "Stage of ZeRO; 3 is FSDP.", default=0, min=0, max=3),
    "sequence_parallel": _of_parallelism(
        bool, "Divide norms along the sequence.", "--sequence-parallel", default=False
    ),
    "phase": option(Phase, "What is simulated.", default="training"),
    "micro_batch": _of_model(int, "Sequences in a micro-batch.", default=1, min=1),
    "global_batch": option(
        int,
        "Sequences per step, summed over all replicas.",
        min=1,
        show_default="micro-batch x dp; 4 x pp times that in training",
    ),
    "sequence": option(int, "Tokens of a sequence.", "--sequence", default=4096, min=1),
    "precision": _of_model(str, "Precision of weights and activations.", default="bf16"),
    "recompute": _of_model(Recompute, "What the backward pass recomputes.", default="none"),
    "framework": option(
        str,
        "The framework, with its measured kernels, host times and overlap: megatron, "
        "deepspeed, nemo, fsdp2, composer, maxtext, vllm; none: a roofline.",
        default="none",
        **choice(names_in("traces.generate.framework:FRAMEWORKS")),
    ),
    "attention": _of_model(Attention, "Whether scores stay on the chip.", default="flash"),
    "fused": _of_kernels(
        bool,
        "Bias, dropout and residual in one kernel.",
        "--fused/--no-fused",
        show_default="as the framework has it",
    ),
    "cuda_graphs": _of_kernels(
        bool,
        "Launch the kernels of a layer as one graph.",
        "--cuda-graphs/--no-cuda-graphs",
        show_default="as the framework has it",
    ),
    "scores": _of_model(
        Scores,
        "Attention scores to compute: all, or the lower half.",
        show_default="full in training, causal in serving",
    ),
    "gradient": _of_model(str, "Precision of summed gradients.", default="fp32"),
    "optimizer": _of_model(
        str,
        "The optimiser, which decides the memory per parameter.",
        default="adam",
        **choice(names_in("traces.generate.run:OPTIMIZERS")),
    ),
    "lora_rank": _of_model(
        int, "Rank of adapters trained beside frozen weights; 0: none.", default=0, min=0
    ),
    "lora_targets": _of_model(
        str,
        "Products with adapters, separated by commas: qkv,proj,up,down.",
        show_default="all of them",
    ),
    "loss": _of_model(Loss, "How the loss stores the logits.", default="fused"),
    "schedule": _of_parallelism(
        str,
        "gpipe, 1f1b, interleaved, zb-h1.",
        show_default="1f1b or interleaved",
        **choice(names_in("traces.generate.parallelism:SCHEDULES")),
    ),
    "launch_time": _of_kernels(str, "Host time per op, such as '5 us'.", callback=quantity("s")),
    "compute_efficiency": _of_kernels(
        float, "Share of the peak that kernels reach.", callback=fraction, show_default="0.8"
    ),
    "memory_efficiency": _of_kernels(
        float,
        "Share of the memory bandwidth that kernels reach.",
        callback=fraction,
        show_default="0.9",
    ),
    "kernels_from": _of_kernels(
        Path,
        "Kernel times of your own machine: a CSV with kernel, shape, seconds, or a "
        "PyTorch profile with record_shapes=True.",
    ),
    "expert_imbalance": _of_kernels(
        str,
        "How unevenly tokens choose experts: busiest rank over mean (1.5), zipf:1.2, "
        "or a CSV file with layer, expert, tokens.",
    ),
    "memory_only": option(
        bool, "Show what fills each rank's memory; generate nothing.", "--memory", default=False
    ),
    "ignore_memory": _of_model(
        bool, "Simulate even if the step does not fit.", "--ignore-memory", default=False
    ),
    "folded": _of_parallelism(
        bool,
        "Simulate only as many replicas as represent all.",
        "--fold/--no-fold",
        show_default="from 512 ranks on",
    ),
    "launch": option(
        str,
        "Print the file that starts the step, and simulate nothing: megatron, torchtitan, "
        "nemo, deepspeed, slurm.",
        **choice(names_in("traces.generate.launch_files:LAUNCHERS")),
    ),
}


@with_settings(only=("engine", "nodes", "algorithm", "what_if", "slow_down"), before="output")
@with_options(_PLAN, before="write")
@with_files("plan_file", "events", "html")
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
    output: OutputOption = Output.TABLE,
) -> None:
    """Generate a step from a model's shape or a plan, and simulate it; no trace needed."""
    from experiments.questions.generate import generate as ask
    from experiments.questions.generate import memory, write_memory, write_plan
    from topologies import load_cluster

    _check(ctx)
    where = load_cluster(cluster)
    plan = _plan_in(ctx, model) or _plan_of(ctx.params, where)
    if ctx.params["memory_only"]:
        refuse_given(ctx, ("html", "launch", *_OF_ANSWERS), "with --memory")
        show(memory(plan), output)
        for write, form in ((write_plan, "plan_file"), (write_memory, "events")):
            for path in written(form):
                write(plan, path)
                say(f"wrote {path}")
        return
    if (launcher := ctx.params["launch"]) is not None:
        refuse_given(ctx, ("html", "plan_file", "output"), "with --launch")
        # Print the launch file of a plan; what its format has no comments for is told beside it
        from experiments.questions.generate import launch_file

        file = launch_file(plan, where, launcher, settings=settings_of(ctx))
        typer.echo(file.text, nl=False)
        for note in file.notes:
            say(note)
        return

    def keep(plan: "GenerationPlan") -> None:
        for path in written("plan_file"):
            write_plan(plan, path)
            say(f"wrote {path}; next: twofold utility {path} --cluster {cluster}")

    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(
            plan,
            where,
            fold_replicas=ctx.params["folded"],
            settings=settings,
            watch=watch,
            planned=keep,
        )
    show(report, output)


def _check(ctx: typer.Context) -> None:
    """Refuse options that have no effect beside others, and a plan that cannot be written."""
    values = ctx.params
    for path in () if values["memory_only"] else written("events"):
        check_output(path, (*FORMS["plan_file"].endings, *FORMS["html"].endings))
    if written("plan_file") and values["kernels_from"] is not None:
        raise typer.BadParameter("--write does not keep times of --kernels-from; leave one out.")
    for name in ("schedule", "recompute", "gradient", "optimizer", "loss", "lora_rank"):
        source = ctx.get_parameter_source(name)
        if values["phase"] != "training" and source is not None and source.name == "COMMANDLINE":
            raise WorkloadError(
                f"--{name.replace('_', '-')} is for training, not for {values['phase']}"
            )
    if values["lora_targets"] is not None and not values["lora_rank"]:
        raise typer.BadParameter("--lora-targets has no effect without a --lora-rank.")
    if values["sequence_parallel"] and values["tp"] == 1:
        raise typer.BadParameter("--sequence-parallel has no effect without a --tp of 2 or more.")
    if values["framework"] == "none" and values["kernels_from"] is not None:
        raise typer.BadParameter("--kernels-from has no effect without a --framework.")
    if values["framework"] == "none" and values["fused"] is not None:
        raise typer.BadParameter("--fused and --no-fused have no effect without a --framework.")


_OF_PLANS = frozenset(
    {"ctx", "model", "cluster", "memory_only", "folded", "write", "launch", "html", "output"}
)
_OF_ANSWERS = frozenset({"engine", "nodes", "algorithm", "what_if", "slow_down"})
_OF_PLANS |= _OF_ANSWERS | {"verbose"}
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
    from traces.generate.run import LORA_TARGETS, Training, check_trains

    usual_batch = values["micro_batch"] * values["dp"] * 4 * values["pp"]
    targets = values["lora_targets"]
    run = Training(
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
    check_trains(run)
    return run


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
