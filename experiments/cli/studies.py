"""Design-space exploration: studies, and the cache of their answers."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import Output, OutputOption, quantity
from experiments.cli.show import say, show


def study(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A study file: workloads, space, objectives, …")
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            "-d",
            help="Where points are kept: new, or this study's, which goes on where it stopped.",
            show_default="nothing is kept",
        ),
    ] = None,
    *,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that simulate; no answer depends on it.")
    ] = 1,
    cache: Annotated[
        bool,
        typer.Option(help="Take answers that any study has computed, and keep them for others."),
    ] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explore a space of designs from a file: search it, keep all points, say the front."""
    from experiments.output.progress import watching
    from experiments.studies.study import study as ask

    with watching("points") as watch:
        report = ask(file, directory, workers=workers, cache=cache, watch=watch, note=say)
    show(report, output)


def cache(
    limit: Annotated[
        str | None,
        typer.Option(
            callback=quantity("B"),
            help="How much it may take from now on, such as '2 GB'.",
            show_default="1 GB",
        ),
    ] = None,
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Throw out all answers.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what is in the cache of studies' answers; limit it, or empty it."""
    from experiments.studies.cache_report import cache as ask

    show(ask(limit=limit, clear=clear), output)
