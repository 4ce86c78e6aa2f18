"""Questions about a step of a trace on a cluster.

A command declares the options that it takes; ``with_settings`` gives it those of the settings,
which ``settings_of`` gathers.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.bare_networks import Bandwidth, Latency, network_of, on_a_network
from experiments.cli.options import (
    Changes,
    ClusterB,
    ClusterOfTrace,
    Figure,
    Html,
    Output,
    OutputOption,
    Perfetto,
    Resource,
    Resources,
    StepB,
    Trace,
    TraceB,
    Utility,
    check_factor,
    check_factors,
    clusters,
    completed,
    percent,
    settings_of,
    topologies,
    with_settings,
)
from experiments.cli.show import check_figure, check_html, check_perfetto, draw_perfetto, say, show


@on_a_network
@with_settings()
def utility(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    factor: Annotated[
        float,
        typer.Option(callback=check_factor, help="How many times as good: 2 is half of a latency."),
    ] = 2.0,
    resource: Resources = None,
    *,
    per: Annotated[
        str,
        typer.Option(
            metavar="cost|power",
            autocompletion=completed(lambda: ("cost", "power")),
            help="Put first what buys most for a dollar, or a watt, more (see bill).",
            show_default=False,
        ),
    ] = "",
    figure: Figure = None,
    html: Html = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what twice of each resource would buy: the main job."""
    from experiments.output.progress import watching
    from experiments.questions.utility import utility as ask

    check_figure(figure)
    check_html(html)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(
            trace,
            cluster,
            factor=factor,
            resources=resource or (),
            per=per,
            settings=settings,
            watch=watch,
        )
    show(report, output, figure, html)


@on_a_network
@with_settings()
def sweep(
    ctx: typer.Context,
    trace: Trace,
    *,
    cluster: ClusterOfTrace = None,
    resource: Resource,
    factors: Annotated[
        str,
        typer.Option(
            callback=check_factors,
            help="How many times as good, separated by commas: 2 is half of a latency.",
        ),
    ] = "0.25,0.5,1,2,4,8",
    figure: Figure = None,
    html: Html = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Sweep one resource: the step time from a quarter of it to eight times.

    A factor is how many times as good the resource is: 2 is twice a bandwidth
    and half a latency. In what-if an x multiplies the value itself:
    'scale_up.latency x2' is twice as long.
    """
    from experiments.output.progress import watching
    from experiments.questions.sweep import sweep as ask

    check_figure(figure)
    check_html(html)
    numbers = [float(number) for number in factors.split(",")]
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(trace, cluster, resource, factors=numbers, settings=settings, watch=watch)
    show(report, output, figure, html)


@on_a_network
@with_settings("fold")
def curve(
    ctx: typer.Context,
    trace: Trace,
    *,
    cluster: ClusterOfTrace = None,
    resource: Resource,
    reach: Annotated[
        str,
        typer.Option(
            "--range",
            help="From its worst to its best: '1 GB/s..400 GB/s', or factors 0.1..10, of which 2 "
            "is half of a latency.",
        ),
    ] = "0.125..8",
    gap: Annotated[
        str, typer.Option(help="How far the step may be off the lines between points.")
    ] = "0.1%",
    threshold: Annotated[
        str, typer.Option(help="Beyond which value does doubling buy less than this of the step?")
    ] = "1%",
    figure: Figure = None,
    html: Html = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Draw the whole curve of step time over a resource, and from where on more is wasted."""
    from experiments.output.progress import watching
    from experiments.questions.curve import curve as ask

    check_figure(figure)
    check_html(html)
    settings = settings_of(ctx)
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
    show(report, output, figure, html)


@with_settings()
def compare(
    ctx: typer.Context,
    trace: Trace,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            "-c",
            autocompletion=completed(clusters),
            help="The cluster of the trace first, then others, graphs' files among them; repeat "
            "it.",
            show_default=False,
        ),
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=completed(topologies),
            help="The first cluster with another: ring, torus:2x4, scale_out=fat_tree:8, "
            "scale_out=g.json. With --bandwidth or --latency, a bare network: torus:4x4.",
        ),
    ] = None,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    figure: Figure = None,
    html: Html = None,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the networks of several clusters and topologies on one step."""
    from experiments.output.progress import watching
    from experiments.questions.compare import compare as ask

    where, changes = _compared(cluster, topology, bandwidth, latency)
    check_figure(figure)
    check_html(html)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(trace, where, topologies=changes, settings=settings, watch=watch)
    show(report, output, figure, html)


def _compared(
    cluster: list[str] | None,
    topology: list[str] | None,
    bandwidth: str | None,
    latency: str | None,
) -> tuple[list[str], list[str]]:
    """Return clusters and bare networks, and topologies that the first of them is to have."""
    changes, bare = topology or [], []
    if (bandwidth, latency) != (None, None):
        if not changes:
            raise typer.BadParameter("--bandwidth and --latency are for bare networks: --topology.")
        cables = {"bandwidth": bandwidth, "latency": latency}
        bare = [network_of(None, topology=one, **cables) or "" for one in changes]
        changes = []
    where = [*(cluster or ()), *bare]
    if not where:
        raise typer.BadParameter("Missing option '--cluster' / '-c'.")
    return where, changes


@on_a_network
@with_settings()
def what_if(
    ctx: typer.Context,
    trace: Trace,
    change: Changes,
    cluster: ClusterOfTrace = None,
    figure: Figure = None,
    html: Html = None,
    *,
    draws: Annotated[
        int | None,
        typer.Option(min=1, help="How often parts are drawn of '1% of links down': 20 times."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of these draws: 0; the same seed draws the same.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the step in ways that can be written, one row each.

    x multiplies what is named, a time or a bandwidth: 'compute x0.5' is half
    the time, 'scale_up.latency x2' twice the latency (in utility and sweep a
    factor 2 is twice as good: half of it).

    \b
    \\[rank R] compute|host|copy|NAME* xF   their time; quote a NAME with spaces
    \\[rank R] launch|gaps xF               until a kernel begins; between kernels
    \\[rank R] compute|host|NAME*|... drop  no time, and nobody launches them
    \\[rank R] fuse NAME* \\[xF]              adjacent kernels become one
    RESOURCE xF, RESOURCE = VALUE         scale_out.bandwidth = 400 Gbit/s
    \\[KIND]\\[@LABEL] bytes|time xF          all_reduce@tp bytes x0.5
    all_to_all\\[@LABEL] imbalance 1.5     busiest rank over mean; zipf:A; a FILE
    KIND\\[@LABEL] drop, calls drop         they do not happen
    algorithm KIND\\[1MiB..]@LABEL=NAME     all_reduce=tree
    overlap none|full                     of compute and communication
    one call per rank                     calls wait for each other, receives not
    stragglers removed                    every rank as the median one
    accelerator NAME                      another, by roofline
    cluster NAME, topology \\[TIER=]SPEC   another network; routing POLICY
    link A-B down, switch S x0.5          names: twofold clusters C --links
    nic I of node N x0.5, node N down     or: node N latency x10
    P% of \\[TIER] links xF                by lot; or nics, switches, nodes
    replicas\\[@LABEL] x4 \\[outermost]     data-parallel groups and nodes times 4

    What is dropped or fused takes with it the host's work since the launch
    before it.
    R is 3 or 0-3,8. Changes joined by 'and' apply together.
    """  # noqa: D301 - a real backspace, by which click keeps the lines
    from experiments.output.progress import watching
    from experiments.questions.what_if import what_ifs as ask

    check_figure(figure)
    check_html(html)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(trace, cluster, change, draws=draws, seed=seed, settings=settings, watch=watch)
    show(report, output, figure, html)


@on_a_network
@with_settings("workers")
def replay(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    perfetto: Perfetto = None,
    html: Html = None,
    parquet: Annotated[
        Path | None,
        typer.Option(help="Write when every op started and ended: a table for pandas or DuckDB."),
    ] = None,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a step as recorded: measured against simulated, per rank, with its critical path."""
    from experiments.files import check_output
    from experiments.output.progress import watching
    from experiments.questions.replay import replay as ask

    check_perfetto(perfetto)
    check_html(html)
    if parquet is not None:
        check_output(parquet)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(trace, cluster, settings=settings, watch=watch)
    draw_perfetto(report, perfetto)
    if parquet is not None:
        from experiments.output.parquet import write_parquet

        write_parquet(report.base.timeline, parquet)
        say(f"wrote {parquet}")
    show(report, output, html=html)


@on_a_network
@with_settings("workers")
def explain(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    *,
    utility: Utility = "",
    factor: Annotated[
        float,
        typer.Option(
            callback=check_factor, help="How many times as good, of --utility: 2 halves a latency."
        ),
    ] = 2.0,
    perfetto: Perfetto = None,
    figure: Figure = None,
    html: Html = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put the step down to compute, communication, host and idle, by its critical path.

    With --utility: what makes up the utility of a resource, in parts that add
    up to it.
    """
    from experiments.output.progress import watching
    from experiments.questions.explain import explain as ask

    check_perfetto(perfetto)
    check_figure(figure)
    check_html(html)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(trace, cluster, utility=utility, factor=factor, settings=settings, watch=watch)
    draw_perfetto(report, perfetto)
    show(report, output, figure, html)


@on_a_network
@with_settings("what_if", "replicas", step="median")
def diff(
    ctx: typer.Context,
    trace: Trace,
    trace_b: TraceB = None,
    cluster: ClusterOfTrace = None,
    *,
    cluster_b: ClusterB = None,
    step_b: StepB = "",
    figure: Figure = None,
    html: Html = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare two steps: what makes B slower or faster than A, and which what-if on A would.

    Two traces, or two steps of one: --step 3 --step-b 5. Without a cluster
    only what was measured is compared.
    """
    from experiments.output.progress import watching
    from experiments.questions.diff import diff as ask

    check_figure(figure)
    check_html(html)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(
            trace,
            trace_b,
            cluster,
            cluster_b=cluster_b,
            step_b=step_b,
            settings=settings,
            watch=watch,
        )
    show(report, output, figure, html)


@on_a_network
@with_settings("workers")
def metrics(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    html: Html = None,
    *,
    windows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tell traffic in N parts of the step (JSON).")
    ] = 10,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compute a step's metrics as measured and as simulated, and check a package's card."""
    from experiments.output.progress import watching
    from experiments.questions.metrics import metrics as ask

    check_html(html)
    settings = settings_of(ctx)
    with watching() as watch:
        report = ask(trace, cluster, windows=windows, settings=settings, watch=watch)
    show(report, output, html=html)
