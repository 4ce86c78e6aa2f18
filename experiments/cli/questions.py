"""Questions about a step of a trace on a cluster.

A command declares the options that it takes; ``with_settings`` gives it those of the settings,
which ``settings_of`` gathers.
"""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import (
    Changes,
    Cluster,
    ClusterB,
    ClusterOfTrace,
    Factor,
    Options,
    Output,
    OutputOption,
    Resource,
    Resources,
    StepB,
    Trace,
    TraceB,
    Utility,
    check_change,
    check_factors,
    completed,
    in_panel,
    names_in,
    of_cluster,
    option,
    percent,
    refuse_given,
    settings_of,
    topologies,
    with_files,
    with_options,
    with_settings,
    written,
)
from experiments.cli.show import answer, say
from experiments.output.progress import watching

_CURVE = "With --curve"
_CURVES = {True: "for --curve", False: "without --curve"}
_METRICS = {
    True: (("perfetto", "parquet"), "for --metrics"),
    False: (("windows",), "without --metrics"),
}
"""Options that have no effect with, or without, ``--metrics``."""


def _is_deployment(trace: Path) -> bool:
    """Whether what stands for a trace is the file of a deployment."""
    if trace.suffix not in (".yaml", ".yml"):
        return False
    from experiments.evaluate.serving_plan import is_serving_plan

    return is_serving_plan(trace)


@with_settings()
@with_files("figure", "html")
def utility(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    factor: Factor = 2.0,
    resource: Resources = None,
    *,
    per: Annotated[
        str,
        typer.Option(
            metavar="cost|power",
            autocompletion=completed(lambda: ("cost", "power")),
            help="Order by saving per additional dollar or watt (see clusters --bill).",
            show_default=False,
        ),
    ] = "",
    failures: Annotated[
        str,
        typer.Option(
            help="How the job fails, 'mtbf 50000 h, checkpoint 60 s, restart 10 min': also say "
            "what share of a long run is productive, and what fewer failures would save.",
            show_default=False,
        ),
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Say how much shorter the step gets with each resource doubled."""
    if _is_deployment(trace):
        from experiments.cli.serving import ask_of_deployment

        also = "factor", "resource"
        ask_of_deployment(ctx, cluster, "serving", also=also, factor=factor, resources=resource)
        return
    from experiments.points.utility import utility as ask

    answer(
        ctx,
        ask,
        trace,
        cluster,
        factor=factor,
        resources=resource or (),
        per=per,
        failures=failures,
    )


@with_settings()
@with_files("figure", "html")
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
            help="How many times as good, separated by commas; 2 halves a latency.",
        ),
    ] = "0.25,0.5,1,2,4,8",
    curve: Annotated[
        bool,
        typer.Option(
            "--curve",
            help="Choose the points so that interpolation between them is accurate to --gap, and "
            "find the value above which doubling hardly pays.",
        ),
    ] = False,
    reach: Annotated[
        str,
        typer.Option(
            "--range",
            rich_help_panel=_CURVE,
            help="The range, worst to best: '1 GB/s..400 GB/s', or factors 0.1..10 (2 halves a "
            "latency).",
        ),
    ] = "0.125..8",
    gap: Annotated[
        str,
        typer.Option(
            rich_help_panel=_CURVE,
            help="How far interpolation between points may be off, in % of the step.",
        ),
    ] = "0.1%",
    threshold: Annotated[
        str,
        typer.Option(
            rich_help_panel=_CURVE,
            help="Doubling stops paying below this saving, in % of the step.",
        ),
    ] = "1%",
    output: OutputOption = Output.TABLE,
) -> None:
    """Sweep one resource: the step time from a quarter of it to eight times.

    A factor is how many times as good the resource is: 2 is twice a bandwidth
    and half a latency. In what-if an x multiplies the value itself:
    'scale_up.latency x2' is twice as long.
    """
    numbers = [float(number) for number in factors.split(",")]
    if _is_deployment(trace):
        from experiments.cli.serving import ask_of_deployment

        values, also = [f"{number:g}" for number in numbers], ("resource", "factors")
        ask_of_deployment(ctx, cluster, "serving_sweep", resource, values, also=also)
        return
    refuse_given(ctx, ("factors",) if curve else ("reach", "gap", "threshold"), _CURVES[curve])
    if curve:
        from experiments.points.sweep import curve as ask_curve

        bounds = {"gap": percent(gap, "gap"), "threshold": 100 * percent(threshold, "threshold")}
        answer(ctx, ask_curve, trace, cluster, resource, reach=reach, **bounds)
        return
    from experiments.points.sweep import sweep as ask

    answer(ctx, ask, trace, cluster, resource, factors=numbers)


@with_settings()
@with_files("figure", "html")
def compare(
    ctx: typer.Context,
    trace: Trace,
    cluster: Annotated[
        list[str] | None,
        of_cluster(
            help="The cluster of the trace first, then the others; bare networks such as "
            "'torus:4x4, 50 GB/s, 1 us' are allowed; may be repeated.",
            show_default=False,
        ),
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=completed(topologies),
            help="Also the first cluster with this topology: ring, torus:2x4, "
            "scale_out=fat_tree:8, scale_out=g.json; may be repeated.",
        ),
    ] = None,
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the networks of several clusters and topologies on one step."""
    from experiments.points.compare import compare as ask

    if not cluster:
        raise typer.BadParameter("Missing option '--cluster' / '-c'.")
    if _is_deployment(trace):
        from experiments.cli.serving import ask_of_deployment
        from experiments.evaluate.serving_plan import read_serving_plan, refuse_log

        refuse_log(read_serving_plan(trace))
        ask_of_deployment(ctx, cluster[0], "serving_sweep", "cluster", cluster, also=())
        return
    answer(ctx, ask, trace, cluster, topologies=topology or ())


@with_settings()
@with_files("figure", "html")
def what_if(
    ctx: typer.Context,
    trace: Trace,
    change: Changes,
    cluster: ClusterOfTrace = None,
    *,
    draws: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of random draws for changes such as '1% of links down'; default 20."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of these draws; default 0.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change kernels, calls or the network of the step, one row per change.

    x multiplies what is named, a time or a bandwidth: 'compute x0.5' is half
    the time, 'scale_up.latency x2' twice the latency (in utility and sweep a
    factor 2 is twice as good: half of it).

    \b
    \\[rank R] compute|host|copy|NAME* xF   their time; quote a NAME with spaces
    \\[rank R] launch|gaps xF               launch latency; pauses between kernels
    \\[rank R] compute|host|NAME*|... drop  take no time and are not launched
    \\[rank R] fuse NAME* \\[xF]              adjacent kernels become one
    RESOURCE xF, RESOURCE = VALUE         scale_out.bandwidth = 400 Gbit/s
    \\[KIND]\\[@LABEL] bytes|time xF          all_reduce@tp bytes x0.5
    all_to_all\\[@LABEL] imbalance 1.5      busiest rank over mean; zipf:A; a FILE
    KIND\\[@LABEL] drop, calls drop         they do not happen
    algorithm KIND\\[1MiB..]@LABEL=NAME     all_reduce=tree
    overlap none|full                     compute and communication
    one call per rank                     calls wait for each other, except receives
    stragglers removed                    every rank is as fast as the median
    accelerator NAME                      another; or memory.bandwidth x2
    cluster NAME, topology \\[TIER=]SPEC    another network; routing POLICY
    link A-B down, switch S x0.5          names: twofold clusters C --links
    nic I of node N x0.5, node N down     or: node N latency x10
    P% of \\[TIER] links xF                 at random; or nics, switches, nodes
    replicas\\[@LABEL] x4 \\[outermost]       data-parallel groups and nodes times 4
    layers 6 -> 9, micro-batches 4 -> 8   of the recorded job; stages 2 -> 4,
    hidden 2048 -> 4096, batch 4 -> 8     sequence and tensor N -> M, too

    Dropping or fusing also removes the host's work since the previous launch.
    R is 3 or 0-3,8. Changes joined by 'and' apply together.
    """  # noqa: D301 - a real backspace, by which click keeps the lines
    from experiments.points.what_if import what_ifs as ask

    answer(ctx, ask, trace, cluster, change, draws=draws, seed=seed)


@with_settings("workers")
@with_files("perfetto", "html", "parquet")
def replay(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    *,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Compute the step's metrics instead (MFU, bandwidths, overlap), as measured and "
            "as simulated, and check a package's card.",
        ),
    ] = False,
    windows: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="With --metrics and -o json: parts of the step whose traffic is reported.",
        ),
    ] = 10,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a step: measured and simulated times per rank, and the critical path."""
    refuse_given(ctx, *_METRICS[metrics])
    if metrics:
        from experiments.questions.metrics import metrics as ask_metrics

        answer(ctx, ask_metrics, trace, cluster, windows=windows)
        return
    from experiments.questions.explain import replay as ask

    answer(ctx, ask, trace, cluster)


@with_settings("workers")
@with_files("perfetto", "figure", "html")
def explain(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    *,
    utility: Utility = "",
    factor: Annotated[
        float,
        typer.Option(
            callback=check_change, help="For --utility: how many times as good; 2 halves a latency."
        ),
    ] = 2.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say where the step's time goes: compute, communication, host and idle.

    With --utility: what makes up the utility of a resource, in parts that add
    up to it.
    """
    from experiments.questions.explain import explain as ask

    answer(ctx, ask, trace, cluster, utility=utility, factor=factor)


@with_settings("what_if", "replicas", "step_time", "only_ranks", step="median")
@with_files("figure", "html")
def diff(
    ctx: typer.Context,
    trace: Trace,
    trace_b: TraceB = None,
    cluster: ClusterOfTrace = None,
    *,
    cluster_b: ClusterB = None,
    step_b: StepB = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare two steps: what makes B slower or faster than A, and which what-ifs explain it.

    Two traces, or two steps of one: --step 3 --step-b 5. Without a cluster
    only what was measured is compared.
    """
    from experiments.questions.diff import diff as ask

    answer(ctx, ask, trace, trace_b, cluster, cluster_b=cluster_b, step_b=step_b)


@with_settings("workers")
def explore(
    ctx: typer.Context,
    trace: Trace,
    cluster: ClusterOfTrace = None,
    *,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port of 127.0.0.1 that serves the page.",
            show_default="any free",
        ),
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Open a page on which step, utilities, critical path and timeline follow sliders.

    On this machine only; Ctrl-C stops it. The analytic engine answers while a
    slider moves, --engine when it rests.
    """
    from experiments.explore.explore import serving

    with watching() as watch:
        served = serving(trace, cluster, settings_of(ctx), port, watch)
    typer.echo(served.address)
    say("for this machine only, as long as this runs; Ctrl-C stops it")
    if browser:
        from experiments.explore.server import show_in_browser

        show_in_browser(served.address)
    try:
        served.run()
    except KeyboardInterrupt:
        say("stopped")


_KEPT = 3
"""Steps of each job, the last ones, that are written for Perfetto."""


def _starts(values: list[str] | None) -> list[str]:
    for value in values or ():
        if not all(_split(value)):
            raise typer.BadParameter(f"{value!r}: write JOB=TIME, such as 'b=20 ms'.")
    jobs = [_split(value)[0] for value in values or ()]
    for job in jobs:
        if jobs.count(job) > 1:
            raise typer.BadParameter(f"job {job} is given {jobs.count(job)} times: keep one.")
    return values or []


_of_placement = in_panel("Where the jobs run, and when they start")
_of_window = in_panel("Which steps are averaged")
_PLACEMENT: Options = {
    "placement": option(
        str,
        "packed, striped, random, or a file: CSV (job,rank,seat) or YAML (job: 0-7,16).",
        default="packed",
        autocompletion=completed(names_in("experiments.scenario.seating:PLACEMENTS")),
    ),
    "place_on": _of_placement(
        int, "Number of nodes to use.", min=1, metavar="N", show_default="as few as hold all"
    ),
    "seed": _of_placement(int, "Seed of --placement random.", default=0, min=0),
    "start": _of_placement(
        list[str],
        "Start of a job's first step: 'b=20 ms'; may be repeated.",
        callback=_starts,
        metavar="JOB=TIME",
        show_default="0 s",
    ),
}
_STEPS: Options = {
    "steps": _of_window(
        int,
        "Steps of the slowest job to average: fewer once all jobs repeat themselves.",
        default=10,
        min=2,
    ),
    "warm_up": _of_window(int, "First steps of each job to leave out.", default=2, min=0),
}


@with_settings("engine", "slow_down", "step_time", "workers", "only_ranks")
@with_options(_STEPS)
@with_options(_PLACEMENT, before="factor")
@with_files("perfetto", "figure", "html")
def share(
    ctx: typer.Context,
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE",
            help="Two or more traces or plans; x3 after one means three copies of it.",
        ),
    ],
    cluster: Cluster,
    factor: Factor = 2.0,
    resource: Resources = None,
    *,
    utilities: Annotated[
        bool,
        typer.Option(
            "--utilities/--no-utilities", help="Say what doubling each resource would save."
        ),
    ] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run several jobs on one network: what each loses to the others, where, and what helps.

    Jobs repeat their steps until the pattern is steady. They are named after
    their files; copies are a:1, a:2. --nodes says on how many nodes each was
    recorded, --placement where they run together.
    """
    from experiments.questions.share import share as ask

    asked = {name: ctx.params[name] for name in (*_PLACEMENT, *_STEPS) if name != "start"}
    answer(
        ctx,
        ask,
        traces,
        cluster,
        starts=dict(_split(text) for text in ctx.params["start"] or ()),
        factor=factor,
        resources=(resource or ()) if utilities else None,
        keep=_KEPT if written("perfetto") else 0,
        **asked,
    )


def _split(start: str) -> tuple[str, str]:
    name, _, time = start.rpartition("=")
    return name.strip(), time.strip()
