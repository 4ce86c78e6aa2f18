"""What files hold, and files made of them.

A command declares the options that it takes; ``with_settings`` gives it those of the settings,
which ``settings_of`` gathers.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import (
    OF_CARD,
    Output,
    OutputOption,
    Trace,
    choice,
    names_in,
    of_cluster,
    refuse_given,
    settings_of,
    with_settings,
)
from experiments.cli.show import show

PACKAGE = "package"
_OF_PACKAGES = (
    *("script", "engine", "collective_cost", "nodes", "algorithm", "what_if", "slow_down", "fold"),
)
"""Options of convert that are for packages, whose metrics are simulated."""


def _forms() -> Iterable[str]:
    from experiments.questions.convert import FORMS

    return (*FORMS, PACKAGE)


@with_settings(only=("step",), step="median")
def inspect(ctx: typer.Context, trace: Trace, output: OutputOption = Output.TABLE) -> None:
    """Say what is in a trace, how much can be used, and what is missing."""
    from experiments.questions.inspect_trace import look

    show(look(trace, step=ctx.params["step"]), output)


@with_settings("workers", "step_time", "only_ranks")
def convert(
    ctx: typer.Context,
    source: Trace,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR",
            help="A file, or a directory with a file per rank; a package needs a new or empty one.",
        ),
    ],
    *,
    to: Annotated[
        str, typer.Option("--to", **choice(_forms), help="chakra, goal, kineto or package.")
    ] = "chakra",
    read_as: Annotated[
        str | None,
        typer.Option(
            "--from",
            **choice(names_in("traces.load:format_names")),
            show_default="by content",
            help="Format of the source.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        of_cluster(
            show_default=OF_CARD,
            help="For goal and kineto: the cluster whose library carries out the collectives. "
            "For package: where the trace was recorded.",
        ),
    ] = None,
    script: Annotated[
        list[Path] | None,
        typer.Option(help="For package: a launch script to put in; may be repeated."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a step in the format of another tool, or as a CCL-Bench package.

    A package holds the workload card, the traces, launch scripts and metrics;
    for the other forms only --step, --kernels and --replicate are read.
    """
    settings = settings_of(ctx)
    if to == PACKAGE:
        refuse_given(ctx, ("read_as",), "for a package")
        from experiments.questions.convert import package

        written = package(source, target, cluster=cluster, scripts=script or (), settings=settings)
        show(written, output)
        return
    from experiments.questions.convert import convert as ask

    refuse_given(ctx, _OF_PACKAGES, f"for {to}: it is for --to package")
    if to == "chakra" and cluster is not None:
        raise typer.BadParameter(
            "--cluster has no effect for chakra, which keeps calls as recorded."
        )
    show(ask(source, target, to, read_as=read_as, cluster=cluster, settings=settings), output)
