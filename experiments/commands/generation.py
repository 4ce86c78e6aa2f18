"""A step before there is a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands.options import (
    ClusterOption,
    Output,
    OutputOption,
    fraction,
    seconds,
    with_settings,
)
from experiments.commands.show import say, show

if TYPE_CHECKING:
    from experiments.baseline import Settings
    from traces.phases import Serving, Training

_Degree = Annotated[int, typer.Option(min=1, help="Ranks.")]


@with_settings("collective_cost", "step", "kernels", "replicate", "workers")
def generate(
    model: Annotated[str, typer.Argument(help="llama-3.1-405b, gpt-3-175b, … or a YAML card.")],
    *,
    cluster: ClusterOption,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    cp: Annotated[int, typer.Option(min=1, help="Context-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 1,
    virtual: Annotated[int, typer.Option(min=1, help="Chunks of layers per stage.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel replicas.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Replicas that share out experts.")] = 1,
    zero: Annotated[int, typer.Option(min=0, max=3, help="Stage of ZeRO; 3 is FSDP.")] = 0,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Cut norms along the sequence.")
    ] = False,
    phase: Annotated[str, typer.Option(help="training, prefill or decode.")] = "training",
    micro_batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 1,
    global_batch: Annotated[
        int | None, typer.Option(min=1, show_default="4 x pp x dp", help="Sequences in a step.")
    ] = None,
    sequence: Annotated[
        int, typer.Option("--sequence", "--context", min=1, help="Tokens of a sequence.")
    ] = 4096,
    precision: Annotated[str, typer.Option(help="Of weights and activations.")] = "bf16",
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    schedule: Annotated[
        str | None,
        typer.Option(show_default="1f1b or interleaved", help="gpipe, 1f1b, interleaved, zb-h1."),
    ] = None,
    launch: Annotated[
        str | None, typer.Option(callback=seconds, help="Host time per op, such as '5 us'.")
    ] = None,
    compute_efficiency: Annotated[
        float | None,
        typer.Option(callback=fraction, show_default="0.8", help="Part of the peak reached."),
    ] = None,
    memory_efficiency: Annotated[
        float | None,
        typer.Option(callback=fraction, show_default="0.9", help="Part of the bandwidth reached."),
    ] = None,
    fold: Annotated[
        bool, typer.Option("--fold", help="Simulate no more replicas than stand for all.")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", "-w", help="Write the plan, a YAML file other commands read."),
    ] = None,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Generate a step from a model's shape and simulate it: before there is a trace."""
    from experiments.generation import Asked, write_plan
    from experiments.generation import generate as ask
    from experiments.output import check_output
    from experiments.progress import watching
    from simulator.units import parse_quantity
    from traces.parallelism import Parallelism

    if write is not None:
        check_output(write, (".yaml", ".yml"))
    parallelism = Parallelism(
        tp=tp,
        cp=cp,
        ep=ep,
        dp=dp,
        pp=pp,
        virtual=virtual,
        sequence_parallel=sequence_parallel,
        zero=zero,
    )
    sequences = global_batch or micro_batch * dp * (4 * pp if phase == "training" else 1)
    asked = Asked(
        model=model,
        parallelism=parallelism,
        run=_run(
            phase,
            (micro_batch, sequences, sequence),
            precision,
            recompute=recompute,
            schedule=schedule or ("interleaved" if virtual > 1 else "1f1b"),
        ),
        launch=None if launch is None else parse_quantity(launch, "s"),
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
        fold=fold,
    )
    with watching() as watch:
        report = ask(asked, cluster, settings=settings, watch=watch)
    if write is not None:
        write_plan(report.plan, write)
        say(f"wrote {write}; ask of it: twofold utility {write} --cluster {cluster}")
    show(report, output)


def _run(
    phase: str,
    batch: tuple[int, int, int],
    precision: str,
    *,
    recompute: str,
    schedule: str,
) -> "Training | Serving":
    """Make a run; ``batch`` is sequences at once, in the step, and tokens of each."""
    from traces.phases import Serving, Training

    at_once, sequences, length = batch
    if phase == "training":
        return Training(
            micro_batch=at_once,
            global_batch=sequences,
            sequence=length,
            precision=precision,
            recompute=recompute,  # type: ignore[arg-type]
            schedule=schedule,
        )
    return Serving(
        phase=phase,  # type: ignore[arg-type]
        batch=sequences,
        context=length,
        precision=precision,
    )
