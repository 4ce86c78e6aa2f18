"""Several jobs on one network."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import (
    Cluster,
    Figure,
    Html,
    Output,
    OutputOption,
    Resources,
    check_factor,
    completed,
    settings_of,
    with_settings,
)
from experiments.cli.show import check_figure, check_html, check_perfetto, say, show

_WINDOW = "Which steps are averaged"
_KEPT = 3
"""Steps of each job, the last ones, that are written for Perfetto."""


def _placements() -> Iterable[str]:
    from experiments.scenario.seating import PLACEMENTS

    return PLACEMENTS


def _starts(values: list[str] | None) -> list[str]:
    for value in values or ():
        if not all(value.rpartition("=")[::2]):
            raise typer.BadParameter(f"{value!r}: write JOB=TIME, such as 'b=20 ms'.")
    return values or []


@with_settings("engine", "slow_down", "step_time", "workers", "only_ranks")
def share(
    ctx: typer.Context,
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE...",
            help="Two or more traces or plans; x3 after one means three copies of it.",
        ),
    ],
    cluster: Cluster,
    placement: Annotated[
        str,
        typer.Option(
            autocompletion=completed(_placements),
            help="packed, striped, random, or a file: CSV (job,rank,seat) or YAML (job: 0-7,16).",
        ),
    ] = "packed",
    place_on: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Place on N nodes.", show_default="as few as hold all"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of --placement random.")] = 0,
    start: Annotated[
        list[str] | None,
        typer.Option(
            callback=_starts,
            metavar="JOB=TIME",
            help="Start of a job's first step: 'b=20 ms'; may be repeated.",
            show_default="0 s",
        ),
    ] = None,
    factor: Annotated[
        float,
        typer.Option(callback=check_factor, help="How many times as good; 2 halves a latency."),
    ] = 2.0,
    resource: Resources = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            help="Write the last steps for ui.perfetto.dev: a process per job, and its ranks."
        ),
    ] = None,
    figure: Figure = None,
    html: Html = None,
    *,
    utilities: Annotated[
        bool,
        typer.Option(
            "--utilities/--no-utilities", help="Say what twice of each resource would save."
        ),
    ] = True,
    steps: Annotated[
        int,
        typer.Option(
            min=2,
            rich_help_panel=_WINDOW,
            help="Steps of the slowest job to average; fewer if all repeat, up to 5 times as many.",
        ),
    ] = 10,
    warm_up: Annotated[
        int,
        typer.Option(min=0, rich_help_panel=_WINDOW, help="First steps of each job to leave out."),
    ] = 2,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run several jobs on one network: what each loses to the others, where, and what helps.

    Jobs repeat their steps until that is steady. They are called by their
    files; copies are a:1, a:2. --nodes is how each was recorded, for its
    baseline; --placement is where they run together.
    """
    from experiments.output.progress import watching
    from experiments.questions.share import share as ask

    check_figure(figure)
    check_html(html)
    check_perfetto(perfetto)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(
            traces,
            cluster,
            placement=placement,
            place_on=place_on,
            seed=seed,
            starts=dict(_split(text) for text in start or ()),
            steps=steps,
            warm_up=warm_up,
            factor=factor,
            resources=(resource or ()) if utilities else None,
            keep=_KEPT if perfetto else 0,
            settings=settings,
            watch=watch,
        )
    if perfetto is not None:
        from experiments.output.perfetto import write_jobs

        write_jobs(report, perfetto)
        say(f"wrote {perfetto}; open it at https://ui.perfetto.dev")
    show(report, output, figure, html)


def _split(start: str) -> tuple[str, str]:
    name, _, time = start.rpartition("=")
    return name.strip(), time.strip()
