"""Questions about a trace on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.options import (
    ClusterOfTrace,
    Figure,
    Output,
    OutputOption,
    Perfetto,
    Trace,
    check_changes,
    check_factor_value,
    check_factors,
    check_resource_name,
    check_resources,
    percent,
    with_settings,
)
from experiments.cli.show import check_figure, check_perfetto, draw_perfetto, say, show

if TYPE_CHECKING:
    from experiments.baseline import Settings


@with_settings()
def utility(
    trace: Trace,
    cluster: ClusterOfTrace = None,
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
    from experiments.output.progress import watching
    from experiments.questions.utility import utility as ask

    with watching() as watch:
        report = ask(
            trace, cluster, factor=factor, resources=resource or (), settings=settings, watch=watch
        )
    show(report, output)


@with_settings()
def sweep(
    trace: Trace,
    *,
    cluster: ClusterOfTrace = None,
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
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Sweep one resource: the step time from a quarter of it to eight times."""
    from experiments.output.progress import watching
    from experiments.questions.sweep import sweep as ask

    check_figure(figure)
    numbers = [float(number) for number in factors.split(",")]
    with watching() as watch:
        report = ask(trace, cluster, resource, factors=numbers, settings=settings, watch=watch)
    show(report, output, figure)


@with_settings("engine", "what_if", "fold", "workers")
def curve(
    trace: Trace,
    *,
    cluster: ClusterOfTrace = None,
    resource: Annotated[
        str,
        typer.Option(
            "--resource", "-r", callback=check_resource_name, help="As utility lists them."
        ),
    ],
    reach: Annotated[
        str,
        typer.Option(
            "--range", help="From its worst to its best: '1 GB/s..400 GB/s', or factors 0.1..10."
        ),
    ] = "0.125..8",
    gap: Annotated[
        str, typer.Option(help="How far the step may be off the lines between points.")
    ] = "0.1%",
    threshold: Annotated[
        str, typer.Option(help="Beyond which value does doubling buy less than this of the step?")
    ] = "1%",
    figure: Figure = None,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Draw the whole curve of step time over a resource, certified, and where more is wasted."""
    from experiments.output.progress import watching
    from experiments.questions.curve import curve as ask

    check_figure(figure)
    with watching() as watch:
        report = ask(
            trace,
            cluster,
            resource,
            reach=reach,
            gap=percent(gap),
            threshold=100 * percent(threshold),
            settings=settings,
            watch=watch,
        )
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
    from experiments.output.progress import watching
    from experiments.questions.compare import compare as ask

    check_figure(figure)
    with watching() as watch:
        report = ask(trace, cluster, topologies=topology or (), settings=settings, watch=watch)
    show(report, output, figure)


@with_settings("workers")
def what_if(
    trace: Trace,
    change: Annotated[
        list[str],
        typer.Argument(
            metavar="CHANGE...",
            callback=check_changes,
            help="Such as 'compute x0.5', 'calls bytes x0.5', 'stragglers removed'.",
        ),
    ],
    cluster: ClusterOfTrace = None,
    figure: Figure = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the step in ways that can be written, one row each.

    x multiplies what is named, a time or a bandwidth: 'compute x0.5' is compute in half the time.

    \b
    \\[rank R] compute|host|copy|NAME* xF   their time; quote a NAME with spaces
    \\[rank R] launch|gaps xF               until a kernel begins; between kernels
    \\[rank R] compute|host|NAME*|... drop  no time, and nobody launches them
    \\[rank R] fuse NAME* \\[xF]              adjacent kernels become one
    RESOURCE xF, RESOURCE = VALUE         scale_out.bandwidth = 400 Gbit/s
    \\[KIND]\\[@LABEL] bytes|time xF          all_reduce@tp bytes x0.5
    KIND\\[@LABEL] drop, calls drop         they do not happen
    algorithm KIND\\[1MiB..]@LABEL=NAME     all_reduce=tree
    overlap none|full                     of compute and communication
    stragglers removed                    every rank as the median one
    accelerator NAME                      another, by roofline

    What is dropped or fused takes with it the host's work since the launch before it.
    R is 3 or 0-3,8. Changes joined by 'and' apply together.
    """  # noqa: D301 - a real backspace, by which click keeps the lines
    from experiments.output.progress import watching
    from experiments.questions.what_if import what_ifs as ask

    check_figure(figure)
    with watching() as watch:
        report = ask(trace, cluster, change, settings=settings, watch=watch)
    show(report, output, figure)


@with_settings("workers")
def replay(
    trace: Trace,
    cluster: ClusterOfTrace = None,
    perfetto: Perfetto = None,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Write when every op started and ended: a table for pandas or DuckDB."),
    ] = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a step as recorded: measured against simulated, per rank, with its critical path."""
    from experiments.files import check_output
    from experiments.output.progress import watching
    from experiments.questions.replay import replay as ask

    check_perfetto(perfetto)
    if parquet is not None:
        check_output(parquet)
    with watching() as watch:
        report = ask(trace, cluster, settings=settings, watch=watch)
    draw_perfetto(report, perfetto)
    if parquet is not None:
        from experiments.output.parquet import write_parquet

        write_parquet(report.base.timeline, parquet)
        say(f"wrote {parquet}")
    show(report, output)


@with_settings("workers")
def explain(
    trace: Trace,
    cluster: ClusterOfTrace = None,
    perfetto: Perfetto = None,
    *,
    settings: "Settings",
    output: OutputOption = Output.TABLE,
) -> None:
    """Put the step down to compute, communication, host and idle, by its critical path."""
    from experiments.output.progress import watching
    from experiments.questions.explain import explain as ask

    check_perfetto(perfetto)
    with watching() as watch:
        report = ask(trace, cluster, settings=settings, watch=watch)
    draw_perfetto(report, perfetto)
    show(report, output)
