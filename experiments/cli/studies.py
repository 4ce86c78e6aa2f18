"""Design-space exploration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import Html, Output, OutputOption, refuse_given
from experiments.cli.show import check_html, say, show
from simulator.support.limits import KEEPS

_PAGE = "Points in detail"


_OF_FILES = ("directory", "workers", "dask", "cache")
_OF_DIRECTORIES = ("point", "folder")


def study(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR",
            help="A study file (workloads, space, objectives, …), or the directory of a study, "
            "finished or not, to read back.",
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            "-d",
            help="Where points are stored: a new directory, or this study's to resume it.",
            show_default="not stored",
        ),
    ] = None,
    *,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that simulate; the answer does not depend on it.")
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
        bool, typer.Option(help="Reuse answers of other studies, and store new ones for them.")
    ] = True,
    html: Html = None,
    details: Annotated[
        int,
        typer.Option(
            min=0,
            rich_help_panel=_PAGE,
            help="Points of the front whose bill, utilities and timeline the page shows.",
        ),
    ] = 12,
    point: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            rich_help_panel=_PAGE,
            help="For a directory: also show this point in detail; may be repeated.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_PAGE,
            help="For a directory: the folder that the study's paths are relative to.",
            show_default="where it was",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Search a space of designs from a file, store all points, report the front.

    Of a study's directory: read it back. With --html, of either, a page with
    the front, filters and points in detail.
    """
    check_html(html)
    if file.is_dir():
        refuse_given(ctx, _OF_FILES, "for a directory, which is only read")
        _show_kept(file, output, html, details=details, points=point or (), folder=folder)
        return
    refuse_given(ctx, _OF_DIRECTORIES, "for a study file: name the directory of its points")
    if html is None:
        refuse_given(ctx, ("details",), "without --html")
    elif directory is None:
        raise typer.BadParameter("--html shows the points of a directory: give --directory DIR.")
    from experiments.output.progress import watching
    from experiments.studies.study import study as ask

    # --no-cache is of all commands and stands before them: neither steps nor answers are kept.
    keeps = cache and KEEPS.get()
    with watching("points") as watch:
        report = ask(
            file, directory, workers=workers, dask=dask, cache=keeps, watch=watch, note=say
        )
    if directory is not None and html is not None:
        _show_kept(directory, output, html, details=details)
    else:
        show(report, output)


def _show_kept(
    directory: Path,
    output: Output,
    html: Path | None,
    *,
    details: int,
    points: Sequence[int] = (),
    folder: Path | None = None,
) -> None:
    """Show what the directory of a study holds."""
    from experiments.output.progress import watching
    from experiments.studies.report import report as ask

    details = details if html is not None else 0
    with watching("points") as watch:
        report = ask(
            directory, points=points, details=details, folder=folder, watch=watch, note=say
        )
    show(report, output, html=html)
