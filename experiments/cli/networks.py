"""Clusters, collectives and topologies, and how far a cluster's figures can be believed.

A command declares the options that it takes; those of the settings are gathered by ``settings_of``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.bare_networks import (
    Bandwidth,
    BareTopology,
    Latency,
    network_of,
    on_a_network,
)
from experiments.cli.options import (
    Algorithms,
    ClusterOfTrace,
    Engine,
    EngineOfCalls,
    Figure,
    Fold,
    Kernels,
    Nodes,
    Output,
    OutputOption,
    Replicate,
    SlowDown,
    Step,
    completed,
    quantity,
    settings_of,
)
from experiments.cli.show import check_figure, check_perfetto, say, show

if TYPE_CHECKING:
    from experiments.questions.calibrate import CalibrationReport, LogCalibrationReport

_SIZES = "1KiB..1GiB"


CableBandwidth = Annotated[
    str | None,
    typer.Option(
        callback=quantity("B/s"),
        help="Of each cable, one direction, such as '50 GB/s'; of a file's, where it says none.",
        show_default="1 GB/s; a file's own",
    ),
]
CableLatency = Annotated[
    str | None,
    typer.Option(
        callback=quantity("s"),
        help="Of each cable, such as '500 ns'; of a file's, where it says none.",
        show_default="1 us; a file's own",
    ),
]


def _algorithms() -> Iterable[str]:
    from collectives.libraries.rules import known

    return dict.fromkeys(name for kind in options.kinds() for name in known(kind))


class ClusterOutput(StrEnum):
    """How a cluster is printed: as any answer, or as a cluster file."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    YAML = "yaml"


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completed(options.clusters), help="One cluster, with its sources."
        ),
    ] = None,
    from_nccl: Annotated[
        Path | None,
        typer.Option(help="Draw the node from a topology of NCCL or RCCL (NCCL_TOPO_DUMP_FILE)."),
    ] = None,
    from_nvidia_smi: Annotated[
        Path | None, typer.Option(help="Draw the node from what 'nvidia-smi topo -m' printed.")
    ] = None,
    from_infragraph: Annotated[
        Path | None, typer.Option(help="Read an infrastructure of InfraGraph (YAML, JSON).")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            autocompletion=completed(options.clusters),
            help="A cluster with the same GPUs, for what a drawing does not tell.",
        ),
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", "-w", help="Write the cluster: a YAML file.")
    ] = None,
    *,
    links: Annotated[
        bool, typer.Option("--links", help="List the links, as what-ifs name them.")
    ] = False,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Of the job that sees these links; default: all.")
    ] = None,
    output: Annotated[
        ClusterOutput,
        typer.Option("--output", "-o", help="How the answer is printed; yaml: as a cluster file."),
    ] = ClusterOutput.TABLE,
) -> None:
    """List the catalogue of clusters, one with the source of every number, or draw your own."""
    from experiments.files import check_output
    from experiments.questions.clusters import clusters as ask

    if write is not None:
        check_output(write, (".yaml", ".yml"))
    report = ask(
        name,
        from_nccl=from_nccl,
        from_nvidia_smi=from_nvidia_smi,
        from_infragraph=from_infragraph,
        like=like,
        links=links,
        ranks=ranks,
    )
    if report.asked is None and (write is not None or output == ClusterOutput.YAML):
        raise typer.BadParameter("which cluster? Name one, or give a drawing.")
    if links and output == ClusterOutput.YAML:
        raise typer.BadParameter("links are no part of a cluster file: table, csv or json")
    if write is not None and report.asked is not None:
        from experiments.questions.calibrate import write_cluster

        write_cluster(report.asked, write)
        say(f"wrote {write}; use it with --cluster {write}")
    if output == ClusterOutput.YAML and report.asked is not None:
        from topologies.cluster.cluster_text import cluster_text

        typer.echo(cluster_text(report.asked), nl=False)
        return
    show(report, Output(output))


def collective(
    calls: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND | CALL...",
            autocompletion=completed(options.kinds),
            help="all_reduce, alltoall_perf, … over sizes; or calls beside each other, such as "
            "'all_reduce 64MiB ranks 0-15' 'all_to_all 1MiB ranks 0-31 every 2ms x10 at 1ms'.",
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", min=1, show_default=False, help="How many take part."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            "--size",
            "-s",
            help="S of nccl-tests: 64MiB, a list 1KiB,64MiB, or powers of two 1KiB..1GiB.",
            show_default=_SIZES,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            autocompletion=completed(options.clusters),
            help="A name of the catalogue, or a YAML file.",
        ),
    ] = None,
    nodes: Nodes = None,
    topology: BareTopology = None,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            autocompletion=completed(_algorithms),
            help="Force one: ring, tree, …, or a file: .json, MSCCL .xml.",
        ),
    ] = None,
    imbalance: Annotated[
        str | None,
        typer.Option(
            help="Of all_to_all: busiest rank over mean (1.5), zipf:1.2, or a CSV file: a matrix "
            "of bytes, a histogram of experts.",
        ),
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            help="Measured calls to hold it against: a log of nccl-tests, …, or CSV; repeat it."
        ),
    ] = None,
    engine: EngineOfCalls = "flow",
    figure: Annotated[
        Path | None, typer.Option("--figure", "--plot", help="Draw it: .png, .svg or .pdf.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write calls beside each other for ui.perfetto.dev.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time a collective as nccl-tests does, or several beside each other."""
    check_figure(figure)
    check_perfetto(perfetto)
    if topology is not None and nodes is not None:
        raise typer.BadParameter("--nodes means nothing for a bare --topology: it has none.")
    network = _network(cluster, topology, bandwidth, latency)
    several = _calls(calls)
    if several is not None:
        given = {"--sizes": sizes, "--algorithm": algorithm, "--imbalance": imbalance}
        for name in [*(one for one in given if given[one]), *(["--baseline"] if baseline else [])]:
            raise typer.BadParameter(f"{name} means nothing for calls: each has its own words.")
        from experiments.questions.collective_calls import collective_calls

        together = collective_calls(several, network, ranks=ranks, nodes=nodes, engine=engine)
        if perfetto is not None:
            from experiments.output.perfetto import write_calls

            write_calls(together, perfetto)
            say(f"wrote {perfetto}; open it at https://ui.perfetto.dev")
        show(together, output, figure)
        return
    if ranks is None:
        raise typer.BadParameter("how many take part? Give --ranks.")
    if perfetto is not None:
        raise typer.BadParameter("--perfetto is for calls beside each other, not for one kind.")
    from experiments.output.progress import watching
    from experiments.questions.collective import collective as ask
    from experiments.questions.collective import parse_sizes
    from simulator.workload import kind_named

    if sizes is not None and kind_named(calls[0]) == "barrier":
        raise typer.BadParameter("--sizes means nothing for a barrier: it moves no data.")
    with watching("transfers" if engine == "transfer" else "calls") as watch:
        report = ask(
            calls[0],
            network,
            None if sizes is None else parse_sizes(sizes),
            ranks=ranks,
            nodes=nodes,
            algorithm=algorithm,
            engine=engine,
            imbalance=imbalance,
            baseline=baseline or (),
            watch=watch,
        )
    show(report, output, figure)


def _network(
    cluster: str | None, topology: str | None, bandwidth: str | None, latency: str | None
) -> str:
    """Return the one of cluster and topology that was given, as one text."""
    network = network_of(cluster, topology=topology, bandwidth=bandwidth, latency=latency)
    if network is None:
        raise typer.BadParameter("give either --cluster or --topology.")
    return network


def _calls(words: "Sequence[str]") -> list[str] | None:
    """Return the calls that were typed, one of which may lack its quotes; None for a kind alone."""
    if any(" " in word.strip() for word in words):
        return list(words)
    return None if len(words) == 1 else [" ".join(words)]


def topology(
    spec: Annotated[
        str,
        typer.Argument(
            autocompletion=completed(options.topologies),
            help="torus:4x4, dragonfly:9x4x2, … or a graph's file.",
        ),
    ],
    bandwidth: CableBandwidth = None,
    latency: CableLatency = None,
    throughput: Annotated[
        str | None,
        typer.Option(
            metavar="TRAFFIC",
            help="Say how much it carries of uniform, adversarial, complement or shift:K traffic, "
            "by its routing (torus:8x8@valiant).",
            show_default=False,
        ),
    ] = None,
    figure: Figure = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Count a topology's nodes and links, by resource; its diameter and bisection bandwidth."""
    from experiments.questions.topology import topology as ask

    check_figure(figure)
    report = ask(spec, bandwidth=bandwidth, latency=latency, throughput=throughput)
    show(report, output, figure)


def bill(
    cluster: Annotated[
        str,
        typer.Argument(
            autocompletion=completed(options.clusters),
            help="A name of the catalogue, or a YAML file with prices and power of its own.",
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", min=1, help="Of the job; default: all.", show_default=False),
    ] = None,
    nodes: Nodes = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TIER=]TOPOLOGY",
            help="Another network: scale_out=fat_tree:16, scale_out=rail:128x8x16; repeat it.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Count the parts of a job's nodes and network: what they cost, and what they draw."""
    from experiments.questions.bill import bill as ask

    show(ask(cluster, ranks=ranks, nodes=nodes, topologies=topology or ()), output)


Logs = Annotated[
    list[Path] | None,
    typer.Option(
        help="Calibrate with what benchmarks printed there instead: nccl-tests, rccl-tests, OSU, "
        "ib_write_bw, CSV; repeat it.",
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(min=1, help="How many took part, where a log does not say.", show_default=False),
]
RanksPerNode = Annotated[
    int | None,
    typer.Option(min=1, help="How they lie, where a log does not say.", show_default=False),
]
Kind = Annotated[
    str | None,
    typer.Option(
        autocompletion=completed(options.kinds),
        help="Which collective, where a log does not say.",
        show_default=False,
    ),
]
_OF_TRACES = ("engine", "step", "algorithm", "kernels", "replicate", "slow_down", "fold")
"""Options of calibrate that mean nothing for logs."""


@on_a_network
def calibrate(
    ctx: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="[TRACE]", help="A directory with a file per rank, or one file."),
    ] = None,
    cluster: ClusterOfTrace = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", "-w", help="Write the calibrated cluster: a YAML file."),
    ] = None,
    *,
    engine: Engine = "flow",
    step: Step = "typical",
    nodes: Nodes = None,
    algorithm: Algorithms = None,
    kernels: Kernels = None,
    replicate: Replicate = False,
    slow_down: SlowDown = "",
    fold: Fold = None,
    logs: Logs = None,
    ranks: Ranks = None,
    ranks_per_node: RanksPerNode = None,
    kind: Kind = None,
    figure: Figure = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fit a cluster's latencies, bandwidths and overheads to a trace, or to benchmarks' logs."""
    from experiments.files import check_output
    from experiments.output.progress import watching

    check_figure(figure)
    _check_calibration(ctx, trace, logs)
    if write is not None:
        check_output(write, (".yaml", ".yml"))
    report: CalibrationReport | LogCalibrationReport
    with watching() as watch:
        if logs:
            from experiments.questions.calibrate import calibrate_logs

            report = calibrate_logs(
                logs,
                cluster or "",
                ranks=ranks,
                nodes=nodes,
                ranks_per_node=ranks_per_node,
                kind=_kind(kind),
                watch=watch,
            )
        else:
            from experiments.questions.calibrate import calibrate as ask

            report = ask(trace or "", cluster, settings=settings_of(ctx), watch=watch)
    if write is not None:
        from experiments.questions.calibrate import write_cluster

        write_cluster(report.cluster, write)
        say(f"wrote {write}; use it with --cluster {write}")
    show(report, output, figure)


def _check_calibration(
    ctx: typer.Context, trace: Path | None, logs: "Sequence[Path] | None"
) -> None:
    """Refuse options that mean nothing beside each other."""
    given = [name for name, value in ctx.params.items() if _is_given(ctx, name) and value]
    if (trace is None) == (not logs):
        raise typer.BadParameter("name a TRACE, or logs of benchmarks with --logs.")
    if logs and ctx.params["cluster"] is None:
        raise typer.BadParameter("--logs need the cluster to begin with: --cluster C.")
    wrong = _OF_TRACES if logs else ("ranks", "ranks_per_node", "kind", "figure")
    for name in given:
        if name in wrong:
            other = "--logs" if logs else "a TRACE"
            raise typer.BadParameter(f"--{name.replace('_', '-')} means nothing for {other}.")


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def _kind(text: str | None) -> str | None:
    """Return the kind that an option spells."""
    if text is None:
        return None
    from simulator.names import one_of
    from simulator.workload import KINDS, kind_named

    named = kind_named(text)
    if named is None:
        raise typer.BadParameter(f"--kind {one_of(text, KINDS)}")
    return named


@on_a_network
def validate(
    ctx: typer.Context,
    trace: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TRACE]...", help="Traces; TRACE@CLUSTER names its own."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            autocompletion=completed(options.clusters),
            help="For traces that name none.",
        ),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="Predict the measured points of a table instead: CSV with trace, cluster, "
            "resource, factor, measured_step_s."
        ),
    ] = None,
    predict: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACE@CLUSTER", help="Predict this recording of the same program instead."
        ),
    ] = None,
    collectives: Annotated[
        list[Path] | None,
        typer.Option(
            help="Model the calls of a table or log instead: CSV with kind, nodes, ranks, "
            "size_bytes, time_us, or what nccl-tests printed."
        ),
    ] = None,
    steps: Annotated[
        list[Path] | None,
        typer.Option(
            help="Predict the training steps of a table instead: CSV with model or layers, hidden, "
            "heads, vocab; cluster, sequence, global_batch, tp, pp, dp, …, step_s."
        ),
    ] = None,
    ranks: Ranks = None,
    ranks_per_node: RanksPerNode = None,
    kind: Kind = None,
    engine: Engine = "flow",
    nodes: Nodes = None,
    algorithm: Algorithms = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that predict the steps of --steps.")
    ] = 1,
    *,
    brief: Annotated[
        bool, typer.Option("--brief", help="Leave out single points, or single steps.")
    ] = False,
    figure: Figure = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay every step of many traces, or predict what was measured on other networks."""
    from collectives.files.measured_calls import Layout
    from experiments.output.progress import watching
    from experiments.questions.validate import EVERY
    from experiments.questions.validate import validate as ask

    check_figure(figure)
    traces, others, tables = trace or [], predict or [], against or []
    if steps:
        _check_steps(ctx, (*traces, *others, *tables, *(collectives or ())))
        _validate_steps(ctx, steps, cluster, output)
        return
    if _is_given(ctx, "workers"):
        raise typer.BadParameter("--workers is of --steps.")
    if collectives:
        _check_calls(ctx, cluster, (*traces, *others, *tables))
        layout = Layout(ranks, nodes, ranks_per_node, _kind(kind))
        with watching() as watch:
            report = ask((), cluster, collectives=collectives, layout=layout, watch=watch)
        show(report, output, figure)
        return
    _check_validation(traces, others, tables)
    for name in ("ranks", "ranks_per_node", "kind"):
        if _is_given(ctx, name):
            raise typer.BadParameter(f"--{name.replace('_', '-')} is of --collectives.")
    if brief and not (others or tables):
        raise typer.BadParameter("--brief is of predictions: give --against or --predict.")
    if traces and cluster is not None and all(map(_names_cluster, (*traces, *others))):
        raise typer.BadParameter("--cluster means nothing: every trace names its own.")
    settings = replace(settings_of(ctx), step=EVERY)
    with watching() as watch:
        report = ask(
            traces, cluster, against=tables, predict=others, settings=settings, watch=watch
        )
    show(replace(report, brief=brief), output, figure)


def _check_steps(ctx: typer.Context, others: Sequence[object]) -> None:
    """Refuse what means nothing beside a table of steps."""
    if others:
        raise typer.BadParameter(
            "--steps tells all: give no TRACE, --predict, --against or --collectives."
        )
    for name in ("ranks", "ranks_per_node", "kind", "nodes", "algorithm", "figure"):
        if _is_given(ctx, name):
            raise typer.BadParameter(f"--{name.replace('_', '-')} means nothing for --steps.")


def _validate_steps(
    ctx: typer.Context, tables: Sequence[Path], cluster: str | None, output: Output
) -> None:
    """Predict tables of training steps."""
    from experiments.output.progress import watching
    from experiments.questions.validate_steps import validate_steps as ask

    given = {"engine": ctx.params["engine"]} if _is_given(ctx, "engine") else {}
    with watching() as watch:
        report = ask(tables, cluster, workers=ctx.params["workers"], watch=watch, **given)
    show(replace(report, brief=ctx.params["brief"]), output)


def _check_calls(ctx: typer.Context, cluster: str | None, others: Sequence[object]) -> None:
    """Refuse what means nothing beside a table of calls."""
    if others:
        raise typer.BadParameter("--collectives tells all: give no TRACE, --predict or --against.")
    if cluster is None:
        raise typer.BadParameter("--collectives need a cluster to model them on: --cluster C.")
    for name in ("brief", "engine", "algorithm"):
        if _is_given(ctx, name):
            raise typer.BadParameter(f"--{name} means nothing for --collectives.")


def _check_validation(traces: list[str], others: list[str], tables: list[Path]) -> None:
    """Refuse options that mean nothing beside each other."""
    if tables and (traces or others):
        raise typer.BadParameter("--against names the recordings itself: give no TRACE beside it.")
    if not traces and not tables:
        raise typer.BadParameter(
            "name a TRACE, or a table: of measured points with --against, of calls with "
            "--collectives."
        )


def _names_cluster(trace: str) -> bool:
    from experiments.questions.validate import BETWEEN

    return BETWEEN in trace and not Path(trace).exists()
