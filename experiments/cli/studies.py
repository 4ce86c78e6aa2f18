"""Design-space exploration, and the site that is made of a study of models and clusters."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import Output, OutputOption, refuse_given, with_files, written
from experiments.cli.show import WORDS, say, show
from experiments.output.progress import watching
from simulator.support.errors import shown
from simulator.support.limits import KEEPS

_PAGE = "Points in detail"
Workers = Annotated[
    int, typer.Option(min=1, help="Processes that simulate; the answer does not depend on it.")
]

_OF_FILES = ("directory", "workers", "dask", "cache")
_OF_DIRECTORIES = ("point", "folder")


@with_files("html")
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
            help="Where points are stored: a new directory, or that of this study, to resume it.",
            show_default="not stored",
        ),
    ] = None,
    *,
    workers: Workers = 1,
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
            help="For a directory: the folder to which the study's paths are relative.",
            show_default="where it was",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Search a space of designs from a file, store all points, report the front.

    Of a study's directory: read it back. With --write PAGE.html, of either, a
    page with the front, filters and points in detail.
    """
    if file.is_dir():
        refuse_given(ctx, _OF_FILES, "for a directory, which is only read")
        _show_kept(file, output, details=details, points=point or (), folder=folder)
        return
    refuse_given(ctx, _OF_DIRECTORIES, "for a study file: name the directory of its points")
    if not written("html"):
        refuse_given(ctx, ("details",), "without a page: --write PAGE.html")
    elif directory is None:
        raise typer.BadParameter("a page shows the points of a directory: give --directory DIR.")
    from experiments.studies.study import study as ask

    # --no-cache is of all commands and stands before them: neither steps nor answers are kept.
    keeps = cache and KEEPS.get()
    with watching("points") as watch:
        report = ask(
            file, directory, workers=workers, dask=dask, cache=keeps, watch=watch, note=say
        )
    if directory is not None and written("html"):
        _show_kept(directory, output, details=details)
    else:
        show(report, output)


def _show_kept(
    directory: Path,
    output: Output,
    *,
    details: int,
    points: Sequence[int] = (),
    folder: Path | None = None,
) -> None:
    """Show what the directory of a study holds."""
    from experiments.studies.report import report as ask

    details = details if written("html") else 0
    with watching("points") as watch:
        report = ask(
            directory, points=points, details=details, folder=folder, watch=watch, note=say
        )
    show(report, output)


def _names(value: str | None) -> list[str]:
    return [name.strip() for name in (value or "").split(",") if name.strip()]


def _sizes(value: str | None) -> list[int]:
    from simulator.support.quantities import count_of

    sizes = {size: count_of(size) for size in _names(value)}
    if wrong := [size for size, number in sizes.items() if not number]:
        raise typer.BadParameter(f"{shown(wrong[0])}: write numbers of GPUs such as 64,512.")
    return [number for number in sizes.values() if number]


def atlas(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A study file whose space has plan.model, cluster and plan.gpus.",
            show_default=False,
        ),
    ] = None,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where the site is written, or resumed."
        ),
    ],
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="Models of the catalogue, or cards.", show_default=False
        ),
    ] = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="Clusters of the catalogue, or files.", show_default=False
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N,…", help="Sizes of the job.", show_default=False)
    ] = None,
    workers: Workers = 1,
) -> None:
    """Write a site of utilities, steps and bills: models x clusters x sizes, a page each.

    Its overview, index.html, opens without a server. For each cell the best of
    several plans is taken; one that does not fit into memory says so.
    """
    from experiments.studies.atlas.atlas import atlas as ask
    from experiments.studies.atlas.atlas import declare_grid, write_overview

    grid = {"--models": models, "--clusters": clusters, "--gpus": gpus}
    named = [name for name, value in grid.items() if value is not None]
    if file is not None and named:
        raise typer.BadParameter(f"{named[0]} has no effect for a file, which declares the grid.")
    if file is None and (missing := [name for name in grid if name not in named]):
        raise typer.BadParameter(f"name a study file, or give {', '.join(missing)} too.")
    if file is None:
        file = declare_grid(_names(models), _names(clusters), _sizes(gpus), output)
    with watching("points") as watch:
        report = ask(file, output, workers=workers, cache=KEEPS.get(), watch=watch, note=say)
    report = replace(report, command=shlex.join(("twofold", *WORDS.get())))
    path = write_overview(report)
    show(report, Output.TABLE)
    say(f"wrote {path}")
