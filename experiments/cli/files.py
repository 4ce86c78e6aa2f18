"""What files hold, and files made of them.

A command declares the options that it takes; ``with_settings`` gives it those of the settings,
which ``settings_of`` gathers.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.bare_networks import on_a_network
from experiments.cli.options import (
    ClusterOfTrace,
    Kernels,
    Output,
    OutputOption,
    Replicate,
    Step,
    Trace,
    choice,
    clusters,
    completed,
    settings_of,
    with_settings,
)
from experiments.cli.show import show


def _forms() -> Iterable[str]:
    from experiments.questions.convert import FORMS

    return FORMS


def _formats() -> Iterable[str]:
    from traces.load import format_names

    return format_names()


def inspect(trace: Trace, step: Step = "median", output: OutputOption = Output.TABLE) -> None:
    """Say what is in a trace, what could be used of it, what is missing and why."""
    from experiments.questions.inspect_trace import look

    show(look(trace, step=step), output)


@on_a_network
def convert(
    ctx: typer.Context,
    source: Trace,
    target: Annotated[Path, typer.Argument(help="A file, or a directory with one per rank.")],
    *,
    to: Annotated[
        str, typer.Option("--to", **choice(_forms), help="chakra, goal or kineto.")
    ] = "chakra",
    read_as: Annotated[
        str | None,
        typer.Option(
            "--from",
            **choice(_formats),
            show_default="by content",
            help="Format of the source.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            autocompletion=completed(clusters),
            help="Says how collectives are carried out, where the form is goal or kineto.",
        ),
    ] = None,
    step: Step = "typical",
    kernels: Kernels = None,
    replicate: Replicate = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a step in a form that other tools read."""
    from experiments.questions.convert import convert as ask

    if to == "chakra" and cluster is not None:
        raise typer.BadParameter("--cluster means nothing for chakra, which has calls as recorded.")
    settings = settings_of(ctx)
    show(ask(source, target, to, read_as=read_as, cluster=cluster, settings=settings), output)


@on_a_network
@with_settings("workers")
def package(
    ctx: typer.Context,
    trace: Trace,
    directory: Annotated[
        Path, typer.Option("--directory", "-o", help="Where to write it: new, or empty.")
    ],
    cluster: ClusterOfTrace = None,
    script: Annotated[
        list[Path] | None, typer.Option(help="A launch script to put in; may be repeated.")
    ] = None,
    *,
    output: Annotated[
        Output, typer.Option("--output", help="How to print the answer.")
    ] = Output.TABLE,
) -> None:
    """Write a CCL-Bench package: workload card, traces, launch scripts, metrics."""
    from experiments.questions.package import package as ask

    settings = settings_of(ctx)
    report = ask(trace, directory, cluster=cluster, scripts=script or (), settings=settings)
    show(report, output)
