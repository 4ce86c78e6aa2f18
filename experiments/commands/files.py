"""What files hold, and files made of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands.options import (
    ClusterOfTrace,
    Output,
    OutputOption,
    Step,
    Trace,
    with_settings,
)
from experiments.commands.show import show

if TYPE_CHECKING:
    from experiments.baseline import Settings


def inspect(trace: Trace, step: Step = "median", output: OutputOption = Output.TABLE) -> None:
    """Say what is in a trace, what could be used of it, what is missing and why."""
    from experiments.inspection import inspect as ask

    show(ask(trace, step=step), output)


@with_settings()
def metrics(
    trace: Trace,
    cluster: ClusterOfTrace = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Compute a step's metrics as measured and as simulated, and check a package's card."""
    from experiments.metrics import metrics as ask
    from experiments.progress import watching

    with watching() as watch:
        report = ask(trace, cluster, settings=settings, watch=watch)
    show(report, output)


@with_settings()
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
    from experiments.package import package as ask

    report = ask(trace, directory, cluster=cluster, scripts=script or (), settings=settings)
    show(report, output)
