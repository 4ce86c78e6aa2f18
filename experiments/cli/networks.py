"""Clusters, collectives and topologies, and how far a cluster's figures can be believed.

A command declares the options that it takes; those of the settings are gathered by ``settings_of``.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.options import (
    OF_LOGS,
    Cluster,
    ClusterOfTrace,
    Options,
    Output,
    OutputOption,
    completed,
    in_panel,
    is_given,
    kind_of,
    option,
    refuse_given,
    settings_of,
    with_files,
    with_options,
    with_settings,
    written,
)
from experiments.cli.show import say, show
from experiments.output.progress import watching

if TYPE_CHECKING:
    from experiments.questions.calibrate import (
        CalibrationReport,
        LogCalibrationReport,
        StepCalibrationReport,
    )
    from topologies import Cluster as Description

_SIZES = "1KiB..1GiB"


def _algorithms() -> Iterable[str]:
    from collectives.libraries.planners import algorithm_names

    return dict.fromkeys(name for kind in options.kinds() for name in algorithm_names(kind))


class ClusterOutput(StrEnum):
    """How a cluster is printed: as any answer, or as a cluster file."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    YAML = "yaml"


_of_drawing = in_panel("A cluster from a topology dump of your machine")
_CLUSTER: Options = {
    "from_file": _of_drawing(
        Path,
        "Read the node from a topology dump of NCCL or RCCL (NCCL_TOPO_DUMP_FILE), the output of "
        "'nvidia-smi topo -m', or an infrastructure of InfraGraph (YAML, JSON).",
    ),
    "like": _of_drawing(
        str,
        "A cluster with the same GPUs that fills in what the file lacks.",
        autocompletion=completed(options.clusters),
    ),
    "accelerator": option(
        str, "List only clusters with this accelerator: 'NVIDIA H100 80GB HBM3', MI300X."
    ),
    "links": option(bool, "List the links, as what-ifs name them.", "--links", default=False),
    "bill": option(
        bool,
        "Count the parts of a job's nodes and network: their cost and power.",
        "--bill",
        default=False,
    ),
    "ranks": option(
        int,
        "Ranks of the job, for --links and --bill.",
        *("--ranks", "-n"),
        min=1,
        show_default="all",
    ),
    "nodes": option(int, "For --bill: spread the ranks over N nodes.", min=1, show_default="fill"),
    "topology": option(
        list[str],
        "For --bill: another network, such as scale_out=fat_tree:16, "
        "scale_out=rail:128x8x16; may be repeated.",
        metavar="[TIER=]TOPOLOGY",
    ),
}
_OF_BILLS = ("nodes", "topology")
_OF_DRAWINGS = ("from_file", "like")


@with_options(_CLUSTER, before="write")
@with_files("cluster_file")
def clusters(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=completed(options.clusters),
            help="One cluster, with its sources.",
        ),
    ] = None,
    output: Annotated[
        ClusterOutput,
        typer.Option("--output", "-o", help="How the answer is printed; yaml: as a cluster file."),
    ] = ClusterOutput.TABLE,
) -> None:
    """List the catalogue, show a cluster with its sources, or make one from your machine."""
    from experiments.questions.clusters import clusters as ask
    from experiments.questions.clusters import kind_of_drawing

    links, files = ctx.params["links"], written("cluster_file")
    if ctx.params["bill"]:
        refuse_given(ctx, (*_OF_DRAWINGS, "write", "links", "accelerator"), "with --bill")
        _show_bill(ctx, name, output)
        return
    refuse_given(ctx, _OF_BILLS, "without --bill")
    asked = {key: ctx.params[key] for key in ("like", "accelerator", "links", "ranks")}
    drawn = ctx.params["from_file"]
    report = ask(name, **asked, **({} if drawn is None else {kind_of_drawing(drawn): drawn}))
    if links and output == ClusterOutput.YAML:
        raise typer.BadParameter("a cluster file has no links: use --output table, csv or json")
    if report.asked is None:
        if files or output == ClusterOutput.YAML:
            raise typer.BadParameter("no cluster: name one, or give a topology dump.")
    else:
        for path in files:
            _write(report.asked, path)
        if output == ClusterOutput.YAML:
            from topologies.cluster.catalog import cluster_text

            typer.echo(cluster_text(report.asked), nl=False)
            return
    show(report, Output(output))


def _write(cluster: "Description", path: Path) -> None:
    from experiments.questions.calibrate import write_cluster

    write_cluster(cluster, path)
    say(f"wrote {path}; use it with --cluster {path}")


def _show_bill(ctx: typer.Context, name: str | None, output: ClusterOutput) -> None:
    from experiments.questions.clusters import bill

    if name is None:
        raise typer.BadParameter("--bill of which cluster? Name one.")
    if output == ClusterOutput.YAML:
        raise typer.BadParameter("a bill is not a cluster file: use --output table, csv or json")
    ranks, nodes, topologies = (ctx.params[key] for key in ("ranks", "nodes", "topology"))
    show(bill(name, ranks=ranks, nodes=nodes, topologies=topologies or ()), Output(output))


@with_settings(only=("nodes", "what_if", "engine"), before="write")
@with_files("figure", "perfetto")
def collective(
    ctx: typer.Context,
    cluster: Cluster,
    calls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND|CALL",
            show_default=False,
            autocompletion=completed(options.kinds),
            help="all_reduce, alltoall_perf, … over sizes; or concurrent calls, such as "
            "'all_reduce 64MiB ranks 0-15' 'all_to_all 1MiB ranks 0-31 every 2ms x10 at 1ms'.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            *("--ranks", "-n"),
            min=1,
            show_default="all of a bare network, or of --nodes",
            help="Number of ranks.",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            "-s",
            help="S of nccl-tests: 64MiB, a list 1KiB,64MiB, or powers of two 1KiB..1GiB.",
            show_default=_SIZES,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            autocompletion=completed(_algorithms),
            help="Force an algorithm: ring, tree, …, or a file: .json, MSCCL .xml.",
        ),
    ] = None,
    imbalance: Annotated[
        str | None,
        typer.Option(
            help="For all_to_all: busiest rank over mean (1.5), zipf:1.2, or a CSV file: a matrix "
            "of bytes, a histogram of experts."
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LOG",
            help="Compare with measured calls: a log of nccl-tests, …, or CSV; repeat it. KIND and "
            "--ranks select from it.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time a collective as nccl-tests does, or several concurrent ones."""
    from topologies.cluster.bare import is_bare

    if ctx.params["nodes"] is not None and is_bare(cluster):
        raise typer.BadParameter("--nodes has no effect for a bare network: it has none.")
    changes = ctx.params["what_if"] or ()
    several = _calls(calls or [])
    if several is not None:
        from experiments.questions.collective_calls import collective_calls

        refuse_given(ctx, _OF_ONE_KIND, "for calls: each has its own words")
        placed = {name: ctx.params[name] for name in ("ranks", "nodes", "engine")}
        show(collective_calls(several, cluster, what_ifs=changes, **placed), output)
        return
    if written("perfetto"):
        raise typer.BadParameter(
            "a timeline needs calls such as 'all_reduce 64MiB ranks 0-15', not one kind over sizes."
        )
    kind = calls[0] if calls else None
    if compare:
        from experiments.questions.collective_compare import collective_compare

        refuse_given(ctx, _OF_MODEL_ALONE, "with --compare")
        selected = {"kind": kind, "ranks": ranks, "nodes": ctx.params["nodes"]}
        with watching("calls") as watch:
            compared = collective_compare(
                compare, cluster, what_ifs=changes, watch=watch, **selected
            )
        show(compared, output)
        return
    if kind is None:
        raise typer.BadParameter("name a kind or calls, or --compare LOG.")
    from experiments.questions.collective import collective as ask
    from experiments.questions.collective import parse_sizes
    from simulator.calls import kind_named

    if sizes is not None and kind_named(kind) == "barrier":
        raise typer.BadParameter("--sizes has no effect for a barrier: it moves no data.")
    with watching("calls") as watch:
        over_sizes = ask(
            kind,
            cluster,
            None if sizes is None else parse_sizes(sizes),
            ranks=ranks,
            nodes=ctx.params["nodes"],
            algorithm=algorithm,
            engine=ctx.params["engine"],
            imbalance=imbalance,
            what_ifs=changes,
            watch=watch,
        )
    show(over_sizes, output)


_OF_ONE_KIND = ("sizes", "algorithm", "imbalance", "compare")
"""Options that have no effect where calls are written out."""
_OF_MODEL_ALONE = ("sizes", "algorithm", "imbalance", "engine")
"""Options that have no effect where measured calls say what is modelled, and how."""


def _calls(words: "Sequence[str]") -> list[str] | None:
    """Return the calls that were typed, one of which may lack its quotes; None for a kind alone."""
    if any(" " in word.strip() for word in words):
        return list(words)
    return None if len(words) < 2 else [" ".join(words)]


@with_files("figure")
def topology(
    ctx: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            autocompletion=completed(options.topologies),
            help="torus:4x4, dragonfly:9x4x2, … or a graph's file; then, after commas, the "
            "bandwidth (one direction) and latency of its cables: 'torus:4x4, 50 GB/s, 500 ns'.",
        ),
    ],
    throughput: Annotated[
        str | None,
        typer.Option(
            metavar="TRAFFIC",
            help="How much uniform, adversarial, complement or shift:K traffic it carries under "
            "its routing (torus:8x8@valiant).",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Describe a topology: nodes, links, diameter and bisection bandwidth."""
    from experiments.questions.topology import topology as ask
    from topologies.cluster.bare import cables_of

    network, cables = cables_of(spec)
    show(ask(network, **cables, throughput=throughput), output)


_OF_TRACES = (
    *("engine", "step", "algorithm", "kernels", "replicate"),
    *("slow_down", "step_time", "fold"),
)
"""Options of calibrate that have no effect for logs."""


@with_options(OF_LOGS, before="write")
@with_settings("collective_cost", "what_if", "only_ranks", "workers", before="logs")
@with_files("cluster_file", "figure")
def calibrate(
    ctx: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="TRACE", help="A directory with a file per rank, or one file."),
    ] = None,
    cluster: ClusterOfTrace = None,
    *,
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            help="Calibrate with logs of benchmarks instead: nccl-tests, rccl-tests, OSU, "
            "ib_write_bw, CSV; repeat it."
        ),
    ] = None,
    steps: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.csv",
            help="Measured training steps, a row each, as validate reads them (model, tp, pp, dp, "
            "sequence, global_batch, step_s): fit generated steps to them; may be repeated.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Fit a cluster to a trace, to benchmark logs, or to measured training steps."""
    _check_calibration(ctx, trace, logs, steps)
    report: CalibrationReport | LogCalibrationReport | StepCalibrationReport
    with watching() as watch:
        if steps:
            from experiments.questions.calibrate import calibrate_steps

            engines = {"engine": ctx.params["engine"]} if is_given(ctx, "engine") else {}
            report = calibrate_steps(steps, cluster, watch=watch, **engines)
        elif logs:
            from experiments.questions.calibrate import calibrate_logs

            report = calibrate_logs(
                logs,
                cluster or "",
                ranks=ctx.params["ranks"],
                nodes=ctx.params["nodes"],
                ranks_per_node=ctx.params["ranks_per_node"],
                kind=kind_of(ctx.params["kind"]),
                watch=watch,
            )
        else:
            from experiments.questions.calibrate import calibrate as ask

            report = ask(trace or "", cluster, settings=settings_of(ctx), watch=watch)
    for path in written("cluster_file"):
        _write(report.cluster, path)
    show(report, output)


def _check_calibration(
    ctx: typer.Context,
    trace: Path | None,
    logs: "Sequence[Path] | None",
    steps: "Sequence[Path] | None",
) -> None:
    """Refuse options that have no effect beside each other."""
    if sum(map(bool, (trace, logs, steps))) != 1:
        raise typer.BadParameter(
            "name one of: a TRACE, logs of benchmarks with --logs, measured steps with --steps."
        )
    if steps:
        without = {"steps", "cluster", "write", "engine", "output"}
        refuse_given(ctx, [name for name in ctx.params if name not in without], "for --steps")
        return
    if logs and ctx.params["cluster"] is None:
        raise typer.BadParameter("--logs need the cluster to begin with: --cluster C.")
    wrong = _OF_TRACES if logs else (*OF_LOGS, "figure")
    refuse_given(ctx, wrong, "for --logs" if logs else "for a TRACE")
