"""Design-space exploration: studies, and the cache of their answers."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import Output, OutputOption, quantity
from experiments.cli.show import check_html, say, show


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
        int,
        typer.Option(min=1, help="Processes here that simulate; no answer depends on it."),
    ] = 1,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A Dask cluster that simulates: tcp://HOST:PORT of its scheduler, or local:N.",
            show_default="none",
        ),
    ] = None,
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
        report = ask(
            file, directory, workers=workers, dask=dask, cache=cache, watch=watch, note=say
        )
    show(report, output)


def report(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Of a study, as study -d wrote it; finished or not."),
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", "-o", help="Write a page: one .html file that opens anywhere."),
    ] = None,
    *,
    point: Annotated[
        list[int] | None,
        typer.Option(min=0, help="A point to look at closely, too; may be repeated."),
    ] = None,
    details: Annotated[
        int,
        typer.Option(
            min=0, help="Points of the front to look at closely: bill, utilities, timeline."
        ),
    ] = 12,
    folder: Annotated[
        Path | None,
        typer.Option(help="From where the study takes its paths.", show_default="where it was"),
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", help="How to print the answer.")
    ] = Output.TABLE,
) -> None:
    """Read a study's directory back, and make a page of it: front, filters, points in detail."""
    from experiments.output.progress import watching
    from experiments.studies.kept.report import report as ask

    check_html(html)
    closely = details if html is not None else 0
    with watching("points") as watch:
        found = ask(
            directory, points=point or (), details=closely, folder=folder, watch=watch, note=say
        )
    show(found, output, html=html)


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
