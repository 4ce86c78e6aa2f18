"""What files hold, and files made of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.options import (
    ClusterOfTrace,
    Kernels,
    Output,
    OutputOption,
    Replicate,
    Step,
    Trace,
    with_settings,
)
from experiments.cli.show import show

if TYPE_CHECKING:
    from experiments.baseline import Settings


def inspect(trace: Trace, step: Step = "median", output: OutputOption = Output.TABLE) -> None:
    """Say what is in a trace, what could be used of it, what is missing and why."""
    from experiments.questions.inspect_trace import look

    show(look(trace, step=step), output)


@with_settings("workers")
def metrics(
    trace: Trace,
    cluster: ClusterOfTrace = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Compute a step's metrics as measured and as simulated, and check a package's card."""
    from experiments.output.progress import watching
    from experiments.questions.metrics import metrics as ask

    with watching() as watch:
        report = ask(trace, cluster, settings=settings, watch=watch)
    show(report, output)


@with_settings("workers")
def package(
    trace: Trace,
    directory: Annotated[
        Path, typer.Option("--directory", "-o", help="Where to write it: new, or empty.")
    ],
    cluster: ClusterOfTrace = None,
    script: Annotated[
        list[Path] | None, typer.Option(help="A launch script to put in; may be repeated.")
    ] = None,
    *,
    settings: "Settings",
    output: Annotated[Output, typer.Option("--output", help="How to print the answer.")] = (
        Output.TABLE
    ),
) -> None:
    """Write a CCL-Bench package: workload card, traces, launch scripts, metrics."""
    from experiments.questions.package import package as ask

    report = ask(trace, directory, cluster=cluster, scripts=script or (), settings=settings)
    show(report, output)


def convert(
    source: Trace,
    target: Annotated[Path, typer.Argument(help="A file, or a directory with one per rank.")],
    *,
    to: Annotated[str, typer.Option("--to", help="chakra, goal or kineto.")] = "chakra",
    read_as: Annotated[
        str | None, typer.Option("--from", show_default="by content", help="Format of the source.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", "-c", help="Says how collectives are carried out."),
    ] = None,
    step: Step = "median",
    kernels: Kernels = None,
    replicate: Replicate = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a step in a form that other tools read."""
    from experiments.baseline import Settings
    from experiments.questions.convert import convert as ask

    settings = Settings(step=step, kernels=kernels, replicate=replicate)
    show(ask(source, target, to, read_as=read_as, cluster=cluster, settings=settings), output)
