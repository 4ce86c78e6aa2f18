"""Validate: predictions beside what was measured."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli import options
from experiments.cli.networks import OF_TABLES, Kind, Ranks, RanksPerNode, kind_of
from experiments.cli.options import (
    Figure,
    Output,
    OutputOption,
    completed,
    is_given,
    refuse_given,
    settings_of,
    with_settings,
)
from experiments.cli.show import check_figure, show

if TYPE_CHECKING:
    from collectives.files.measured_calls import Layout
    from experiments.questions.validation.recordings import ValidationReport


def _table_kinds() -> Iterable[str]:
    from experiments.validation.tables import KINDS

    return KINDS


_OF_CALLS = ("ranks", "ranks_per_node", "kind")
_MEANINGLESS = {
    "steps": (*_OF_CALLS, "predictions", "predict", "nodes", "algorithm", "figure"),
    "ratios": (*_OF_CALLS, "predict", "cluster", "nodes", "algorithm", "workers", "figure"),
    "collectives": ("predictions", "predict", "brief", "engine", "algorithm", "workers"),
    "what-ifs": (*_OF_CALLS, "predict", "workers"),
    None: (*_OF_CALLS, "predictions", "workers"),
}
"""Options of validate that have no effect for tables of a kind; None: for traces."""


@with_settings(only=("engine", "nodes", "algorithm"), before="workers")
def validate(
    ctx: typer.Context,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|LOG|TRACE]...",
            show_default=False,
            help="Tables of measured what-ifs (CSV with trace, cluster, what_if or resource and "
            "factor, measured_step_s), of training steps (model, cluster, tp, pp, dp, sequence, "
            "global_batch, step_s), of ratios of two settings (step_ratio_b_over_a_measured) or of "
            "collectives (kind, ranks, size_bytes, time_us); logs of benchmarks, as of nccl-tests; "
            "or traces, of which TRACE@CLUSTER names its cluster.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            autocompletion=completed(options.clusters),
            help=f"For sources that do not name their cluster. {options.CLUSTER_HELP}",
        ),
    ] = None,
    read_as: Annotated[
        str | None,
        typer.Option(
            "--as",
            **options.choice(_table_kinds),
            show_default="by the columns of the file",
            help="Read all sources as tables of this kind.",
        ),
    ] = None,
    predict: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACE@CLUSTER",
            help="Predict this recording of the same program from the traces; may be repeated.",
        ),
    ] = None,
    ratios: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.csv",
            help="A table of what-ifs that others measured (model, hardware or cluster, knob, both "
            "settings, step_ratio_b_over_a_measured): predict each ratio; may be repeated.",
        ),
    ] = None,
    serving: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.csv",
            help="A table of measured serving (engine, model, machine, tp, isl, osl, concurrency, "
            "ttft_ms, tpot_ms): predict TTFT and TPOT of each row; may be repeated.",
        ),
    ] = None,
    serving_log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A serving log (meta.json, requests.jsonl): answer its requests on --cluster.",
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Predictions of other tools (row: its line in the table, predicted, tool) of a "
            "table of what-ifs or of ratios: score them beside these and a roofline's.",
        ),
    ] = None,
    ranks: Ranks = None,
    ranks_per_node: RanksPerNode = None,
    kind: Kind = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel=OF_TABLES, help="Processes that predict the steps of a table."
        ),
    ] = 1,
    *,
    brief: Annotated[
        bool, typer.Option("--brief", help="Omit the tables of single what-ifs or steps.")
    ] = False,
    figure: Figure = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Report the errors of predictions of measured what-ifs, steps and collectives.

    Every step of a trace is replayed; with --predict a trace predicts another
    recording of the same program. An error is predicted less measured, in % of
    what was measured.
    """
    check_figure(figure)
    if serving or serving_log is not None:
        _validate_serving(ctx, serving or [], serving_log, cluster, output, brief=brief)
        return
    sources = _sources(ctx, sources or [], ratios or [])
    table = "ratios" if ratios else _one_kind(sources, read_as)
    refuse_given(ctx, _MEANINGLESS[table], f"for {table or 'traces'}")
    if table in _OF_PLANS:
        _OF_PLANS[table](ctx, sources, output, brief=brief)
        return
    if table is None and not predict:
        refuse_given(ctx, ("brief",), "for traces without --predict")
    traces = [*sources, *(predict or ())]
    if table is None and cluster is not None and all(map(_names_cluster, traces)):
        raise typer.BadParameter("--cluster has no effect: every trace names its own.")
    if table == "collectives" and cluster is None:
        raise typer.BadParameter("collectives need a cluster to model them on: --cluster C.")
    layout = None
    if table == "collectives":
        layout = _layout(ranks, ctx.params["nodes"], ranks_per_node, kind)
    report = _validated(ctx, table, sources, cluster, predict or (), layout)
    show(replace(report, brief=brief), output, figure)


def _validated(
    ctx: typer.Context,
    table: str | None,
    sources: list[str],
    cluster: str | None,
    predict: Sequence[str],
    layout: "Layout | None",
) -> "ValidationReport":
    """Answer tables of what-ifs or collectives, or traces."""
    from experiments.output.progress import watching
    from experiments.questions.validation.recordings import validate as ask
    from experiments.settings import EVERY

    settings = replace(settings_of(ctx), step=EVERY)
    with watching() as watch:
        if table == "collectives":
            return ask((), cluster, collectives=sources, layout=layout, watch=watch)
        if table == "what-ifs":
            return ask(
                (),
                cluster,
                against=sources,
                predictions=ctx.params["predictions"],
                settings=settings,
                watch=watch,
            )
        return ask(sources, cluster, predict=predict, settings=settings, watch=watch)


def _sources(ctx: typer.Context, sources: list[str], ratios: list[str]) -> list[str]:
    """Return what to validate: sources of any kind, or tables of ratios."""
    if ratios:
        refuse_given(ctx, ("sources", "read_as"), "for ratios")
    elif not sources:
        raise typer.BadParameter("name a table, a log or a trace, or --serving FILE.csv.")
    return ratios or sources


def _validate_steps(ctx: typer.Context, sources: list[str], output: Output, *, brief: bool) -> None:
    """Answer tables of training steps."""
    from experiments.output.progress import watching
    from experiments.questions.validation.steps import validate_steps

    cluster, workers = ctx.params["cluster"], ctx.params["workers"]
    with watching() as watch:
        steps = validate_steps(sources, cluster, workers=workers, watch=watch, **_engine_of(ctx))
    show(replace(steps, brief=brief), output)


def _validate_ratios(
    ctx: typer.Context, sources: list[str], output: Output, *, brief: bool
) -> None:
    """Answer tables of what-ifs that others measured."""
    from experiments.output.progress import watching
    from experiments.questions.validation.ratios import validate_ratios

    with watching() as watch:
        ratios = validate_ratios(
            sources, predictions=ctx.params["predictions"], watch=watch, **_engine_of(ctx)
        )
    show(replace(ratios, brief=brief), output)


_OF_PLANS = {"steps": _validate_steps, "ratios": _validate_ratios}
"""Tables of steps that are generated, and what answers them."""


def _engine_of(ctx: typer.Context) -> dict[str, str]:
    """Return the engine where one is given: generated steps have a default of their own."""
    return {"engine": ctx.params["engine"]} if is_given(ctx, "engine") else {}


def _validate_serving(
    ctx: typer.Context,
    tables: list[Path],
    log: Path | None,
    cluster: str | None,
    output: Output,
    *,
    brief: bool,
) -> None:
    """Answer tables or a log of measured serving."""
    from experiments.output.progress import watching

    refuse_given(
        ctx,
        (
            "sources",
            "read_as",
            "predict",
            "ratios",
            "predictions",
            *_OF_CALLS,
            "engine",
            "nodes",
            "algorithm",
            "figure",
        ),
        "for serving",
    )
    if log is not None:
        from experiments.questions.validation.serving_log import validate_serving_log

        if tables:
            raise typer.BadParameter("--serving and --serving-log: validate them separately.")
        if cluster is None:
            raise typer.BadParameter("a serving log needs the cluster it ran on: --cluster C.")
        show(validate_serving_log(log, cluster), output)
        return
    from experiments.questions.validation.serving import validate_serving

    if cluster is not None:
        raise typer.BadParameter("--cluster has no effect: rows name their machine.")
    with watching("rows") as watch:
        report = validate_serving(tables, watch=watch)
    show(replace(report, brief=brief), output)


def _one_kind(sources: Sequence[str], read_as: str | None) -> str | None:
    """Return what all sources are: the kind of their tables, None if they are traces."""
    from experiments.validation.tables import table_kind

    kinds = {source: read_as or table_kind(source) for source in sources}
    first, *rest = kinds
    for source in rest:
        if kinds[source] != kinds[first]:
            raise typer.BadParameter(
                f"{first} is {_words_of(kinds[first])} and {source} {_words_of(kinds[source])}: "
                "validate them separately, or name the kind of both with --as."
            )
    return kinds[first]


def _words_of(kind: str | None) -> str:
    return "a trace" if kind is None else f"a table of {kind}"


def _names_cluster(trace: str) -> bool:
    from experiments.questions.validation.recordings import BETWEEN

    return BETWEEN in trace and not Path(trace).exists()


def _layout(
    ranks: int | None, nodes: int | None, ranks_per_node: int | None, kind: str | None
) -> "Layout":
    """Return what options say of a log that does not say it."""
    from collectives.files.measured_calls import Layout

    return Layout(ranks, nodes, ranks_per_node, kind_of(kind))
