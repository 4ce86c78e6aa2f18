"""Questions about a trace on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands.options import (
    ClusterOption,
    Figure,
    Output,
    OutputOption,
    Trace,
    check_factor_value,
    check_factors,
    check_resource_name,
    check_resources,
    with_settings,
)
from experiments.commands.show import check_figure, say, show

if TYPE_CHECKING:
    from experiments.baseline import Settings


@with_settings()
def utility(
    trace: Trace,
    cluster: ClusterOption,
    factor: Annotated[
        float, typer.Option(callback=check_factor_value, help="How many times as good.")
    ] = 2.0,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource", "-r", callback=check_resources, help="Only this one; may be repeated."
        ),
    ] = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what twice of each resource would buy: the main job."""
    from experiments.progress import watching
    from experiments.utility import utility as ask

    with watching() as watch:
        report = ask(
            trace, cluster, factor=factor, resources=resource or (), settings=settings, watch=watch
        )
    show(report, output)


@with_settings()
def sweep(
    trace: Trace,
    cluster: ClusterOption,
    resource: Annotated[
        str,
        typer.Option(
            "--resource",
            "-r",
            callback=check_resource_name,
            help="What to sweep, as utility lists them.",
        ),
    ],
    factors: Annotated[
        str,
        typer.Option(callback=check_factors, help="How many times as good, separated by commas."),
    ] = "0.25,0.5,1,2,4,8",
    figure: Figure = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Sweep one resource: the step time from a quarter of it to eight times."""
    from experiments.progress import watching
    from experiments.sweep import sweep as ask

    check_figure(figure)
    numbers = [float(number) for number in factors.split(",")]
    with watching() as watch:
        report = ask(trace, cluster, resource, factors=numbers, settings=settings, watch=watch)
    show(report, output, figure)


@with_settings()
def compare(
    trace: Trace,
    cluster: Annotated[
        list[str],
        typer.Option(
            "--cluster", "-c", help="The cluster of the trace first, then others; repeat it."
        ),
    ],
    topology: Annotated[
        list[str] | None,
        typer.Option(help="The first cluster with another: ring, torus:2x4, scale_out=torus:2x2."),
    ] = None,
    figure: Figure = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the networks of several clusters and topologies on one step."""
    from experiments.compare import compare as ask
    from experiments.progress import watching

    check_figure(figure)
    with watching() as watch:
        report = ask(trace, cluster, topologies=topology or (), settings=settings, watch=watch)
    show(report, output, figure)


@with_settings()
def replay(
    trace: Trace,
    cluster: ClusterOption,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Write measured and simulated side by side for ui.perfetto.dev."),
    ] = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a step as recorded: measured against simulated, per rank, with its critical path."""
    from experiments.output import check_output
    from experiments.progress import watching
    from experiments.replay import replay as ask

    if perfetto is not None:
        check_output(perfetto)
    with watching() as watch:
        report = ask(
            trace,
            cluster,
            settings=settings,
            watch=watch,
        )
    if perfetto is not None:
        from experiments.perfetto import write

        write(report, perfetto)
        say(f"wrote {perfetto}; open it at https://ui.perfetto.dev")
    show(report, output)
